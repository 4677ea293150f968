"""Noisy cells for estimators that look for bins: values, and how much each counts, in nats of the noise's likelihood."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree
from dpinfer.queries import Identity
from dpinfer.release import as_measurement


def nats(penalty: Any, others: str = "", *, name: str = "penalty") -> Any:
    """A price a bin, once it is seen to be one."""
    if np.shape(penalty) != () or (_checks.is_concrete(penalty) and not 0 <= float(penalty) < np.inf):
        raise ValueError(f"{name} must be a number, at least 0 and finite{others}, got {penalty}.")
    return penalty


@final
@pytree
class NoisyCells:
    """Cells with their noise.

    Attributes:
        values: [n].
        common: the spread of the noise, the same in all cells: for squares the standard deviation, for absolute deviations the
            Laplace scale; None if it differs.
        spread: [n], then; infinite where a cell was not measured.
    """

    values: Any
    common: Any
    spread: Any

    def in_nats(self, is_l1: bool) -> tuple[jax.Array, jax.Array | None, jax.Array]:
        """The values, their weights or None for all alike, and what one unit of weighted cost is in nats."""
        values = jnp.asarray(self.values)
        values = values.astype(jnp.result_type(values, float))
        nat = (lambda s: 1 / s) if is_l1 else (lambda s: 1 / (2 * s * s))
        weights = None if self.spread is None else nat(jnp.asarray(self.spread, values.dtype))
        unit = jnp.ones((), values.dtype) if self.common is None else nat(jnp.asarray(self.common, values.dtype))
        return values, weights, unit


def noisy_cells(measurement: Any, statistic: str) -> NoisyCells:
    """What is in a measurement of cells, for means or medians; a ValueError if it is of something else, or some are exact."""
    _checks.choice("statistic", statistic, ("mean", "median"))
    measurement = as_measurement(measurement)
    if not isinstance(measurement.queries, Identity):
        raise ValueError(f"measurement must be of Identity, noisy cells; got {measurement.queries!r}. least_squares gives cells.")
    spread = measurement.stddev
    if statistic == "median":
        spread = measurement.scale if "laplace" in measurement.noise else spread / np.sqrt(2)
    common: Any = None
    if _checks.is_concrete(spread):
        host = np.asarray(spread, dtype=float)
        if (host == 0).any():
            raise ValueError("measurement must have noise in every cell; exact counts, of scale 0, have none to average out.")
        if not np.isfinite(host).any():
            raise ValueError("measurement must have at least one cell of finite scale.")
        if not host.ndim or (np.ptp(host) == 0 and np.isfinite(host).all()):
            common, spread = float(host.flat[0]), None
    elif not np.ndim(spread):
        common, spread = spread, None
    _checks.finite("measurement", measurement.values)
    _checks.exact_in_float("measurement", measurement.values)
    return NoisyCells(measurement.values, common, spread)
