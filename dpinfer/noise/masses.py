"""Laws on a grid: the mass of each cell, from the tails and by the two algorithms of Xiao et al. 2011."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks


class DiscretizedLaw(NamedTuple):
    """Masses of the cells of a grid.

    Attributes:
        points: [k], the middles of the cells, multiples of the step.
        masses: [k], the probability of each cell.
        missing: the probability outside of the grid, which ``masses`` lack to 1.
    """

    points: jax.Array
    masses: jax.Array
    missing: jax.Array


def discretize(law: Any, step: float = 1.0, *, missing: float = 1e-15) -> DiscretizedLaw:
    """The law of a noise rounded to multiples of ``step``: masses P((k - 1/2) step < X <= (k + 1/2) step).

    Differences of the nearer tail, so that far cells keep their relative accuracy but for the digits that a tail shares with the
    next; 1 - cdf would lose them all.

    Args:
        law: with ``log_survival``, ``cdf``, ``icdf`` and ``mean``, one of it (batch shape []): those of ``dpinfer.noise``.
        step: width of a cell.
        missing: about how much mass may be left out at both ends together; what is left out is in the result.

    Cost: one tail a cell. Host only: how many cells there are depends on the law.
    """
    if not (hasattr(law, "log_survival") and hasattr(law, "icdf")):
        raise ValueError(f"law must be one of dpinfer.noise's, with log_survival and icdf, got {type(law).__name__}.")
    if tuple(law.batch_shape):
        raise ValueError(f"law must be a single one, got a batch of shape {tuple(law.batch_shape)}; discretize one at a time.")
    step = _positive("step", step)
    if not 0 < missing < 1:
        raise ValueError(f"missing must be between 0 and 1, got {missing!r}.")
    centre = float(law.mean)
    # The lower quantile: its probability may be far below a rounding error of 1.
    reach = centre - float(law.icdf(missing / 2))
    first, last = int(np.floor((centre - reach) / step)), int(np.ceil((centre + reach) / step))
    points = step * jnp.arange(first, last + 1)
    low, high = points - step / 2, points + step / 2
    # Each cell from the tail on its own side.
    log_low, log_high = law.log_survival(low), law.log_survival(high)
    above = jnp.exp(log_low) * -jnp.expm1(log_high - log_low)
    masses = jnp.where(points >= centre, above, law.cdf(high) - law.cdf(low))
    return DiscretizedLaw(points, masses, law.cdf(low[0]) + jnp.exp(log_high[-1]))


def sampled_masses(scales: Any, num_draws: int, *, key: jax.Array, step: float = 1.0) -> DiscretizedLaw:
    """Algorithm 5 of Xiao et al. 2011: the histogram of rounded draws of a sum of Laplace noises, for reference.

    The paper divides by the number of draws times the number of terms, whose masses add up to 1 over the number of terms; this
    divides by the number of draws. The error of a mass p is that of a proportion: in all, sum_k sqrt(2 p_k (1 - p_k) / (pi
    num_draws)) is to be expected, 0.01 for 10^6 draws of one noise of scale 20. Far cells come out empty. Use :func:`discretize`.

    Args:
        scales: [n], one for each noise.
        num_draws: how many sums are drawn.
        key: a typed key.
        step: width of a cell.
    """
    from dpinfer.noise.laws import LaplaceSum

    step, num_draws = _positive("step", step), _checks.integer("num_draws", num_draws, least=1)
    draws = np.rint(np.asarray(LaplaceSum(_one_row(scales)).sample(key, (num_draws,))) / step).astype(np.int64)
    counts = np.bincount(draws - draws.min())
    points = step * np.arange(draws.min(), draws.max() + 1)
    return DiscretizedLaw(jnp.asarray(points), jnp.asarray(counts / num_draws), jnp.zeros(()))


def convolved_masses(scales: Any, step: float = 1.0, *, missing: float = 1e-15) -> DiscretizedLaw:
    """Algorithm 6 of Xiao et al. 2011: the convolution of the laws of the rounded noises, for reference.

    This is the law of a sum of rounded noises and not that of the rounded sum: its variance is larger by n step^2 / 12 instead of
    step^2 / 12, and its masses differ by some 1e-4 in all at scale 10 and 0.01 to 0.05 at scales below 1. (In the paper's
    algorithm read "+=" for its last assignment, over all u + v = k and u - v = k with integers k.) Use :func:`discretize`.

    Args:
        scales: [n], one for each noise.
        step: width of a cell.
        missing: about how much mass may be left out of each noise's law.

    Cost: the product of the numbers of cells, for each noise. Host only.
    """
    from dpinfer.noise.laws import LaplaceSum

    masses, kept = np.ones(1), 1.0
    for scale in _one_row(scales):
        law = discretize(LaplaceSum(scale[None]), step, missing=missing)
        masses, kept = np.convolve(masses, np.asarray(law.masses)), kept * (1.0 - float(law.missing))
    reach = masses.size // 2
    return DiscretizedLaw(step * jnp.arange(-reach, reach + 1), jnp.asarray(masses), jnp.asarray(1.0 - kept))


def _positive(name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}.")
    return float(value)


def _one_row(scales: Any) -> np.ndarray:
    scales = np.asarray(scales, dtype=np.float64)
    if scales.ndim != 1 or scales.size == 0 or not np.all(np.isfinite(scales) & (scales > 0)):
        raise ValueError(f"scales must be a row of positive numbers, one for each noise, got {scales!r}.")
    return scales
