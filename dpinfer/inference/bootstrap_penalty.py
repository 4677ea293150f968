"""What a bin should cost, by trying prices on simulated releases of what a first fit found."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.inference.error_law import draw_noise
from dpinfer.inference.noise_first import noise_first
from dpinfer.inference.noisy_cells import nats, noisy_cells
from dpinfer.measurement import Measurement
from dpinfer.queries import Identity
from dpinfer.release import as_measurement

# Nats a bin: of the first fit, and those to choose from.
_PILOTS = {"mean": 3.0, "median": 6.0}
CANDIDATES = tuple(np.geomspace(0.5, 25, 24).tolist())


def bootstrap_penalty(
    measurement: Any,
    *,
    statistic: str = "mean",
    pilot: Any = None,
    candidates: Any = CANDIDATES,
    num_draws: int = 4,
    key: jax.Array,
) -> jax.Array:
    """The price a bin, in nats, at which :func:`noise_first` errs least on simulated releases of its own first fit.

    The noisy cells are fitted with a price of ``pilot``; the fit gets fresh noise of the same law ``num_draws`` times, and each
    of these is fitted with each of the ``candidates``. The one with the least mean squared error from the first fit is returned,
    for ``noise_first(measurement, penalty=...)``. Pure post-processing.

    Args:
        measurement: noisy cells, as for :func:`noise_first`.
        statistic: "mean" or "median", as there.
        pilot: nats a bin of the first fit; None: 3 for means, 6 for medians.
        candidates: [c], nats to choose from.
        num_draws: simulated releases.
        key: a typed key.

    Cost: num_draws x c fits.

    Raises:
        ValueError: as :func:`noise_first`, or if no candidate is given or one is negative.
    """
    noisy_cells(measurement, statistic)
    measurement = as_measurement(measurement)
    _checks.typed_key(key)
    num_draws = _checks.integer("num_draws", num_draws, least=1)
    prices = np.asarray(candidates, dtype=float)
    if prices.ndim != 1 or not prices.size or not (np.isfinite(prices) & (prices >= 0)).all():
        raise ValueError(f"candidates must be one or more numbers of nats, at least 0 and finite, got {candidates!r}.")
    first = nats(_PILOTS[statistic] if pilot is None else pilot, name="pilot")
    found = _errors(measurement.values, measurement.scale, first, prices, key, measurement.noise, statistic, num_draws)
    return jnp.asarray(prices)[found.argmin()]


@partial(jax.jit, static_argnums=(5, 6, 7))
def _errors(
    values: Any, scale: Any, pilot: Any, prices: Any, key: jax.Array, noise: str, statistic: str, num_draws: int
) -> jax.Array:
    """The mean squared error of each price, [c]."""
    queries = Identity(values.shape[0])

    def fit(values: Any, price: Any) -> jax.Array:
        return noise_first(Measurement(queries, values, noise, scale), statistic=statistic, penalty=price).cells

    truth = fit(values, pilot)
    rows = truth[None] + draw_noise(key, Measurement(queries, jnp.zeros_like(truth), noise, scale), num_draws)
    off = jax.vmap(lambda price: jax.vmap(lambda row: jnp.square(fit(row, price) - truth).mean())(rows))(prices)
    return off.mean(axis=1)
