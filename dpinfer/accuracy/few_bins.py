"""The expected error of histograms of few bins: exact for bins fixed beforehand, simulated for bins that the noise chooses."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer import noise as laws
from dpinfer.batching import map_problems
from dpinfer.inference.segment_numbers import least_costs
from dpinfer.inference.segment_squares import running_sums
from dpinfer.inference.segmented import by_rows
from dpinfer.mechanisms import simulate
from dpinfer.queries import Identity, Partition
from dpinfer.queries.base import Array, as_array, namespace


class FixedBinsError(NamedTuple):
    """Sums of squares over all cells, of noisy cells averaged over bins fixed beforehand.

    Attributes:
        inside: how far the true cells are from the means of their bins; no noise in it.
        squared_error: expected, of the bins' noisy means against the true cells.
        distance: expected, of the bins' noisy means from the noisy cells, which is the cost that a fit of them reports.
    """

    inside: Any
    squared_error: Any
    distance: Any


def fixed_bins_error(
    truth: Any, stops: Sequence[int] | np.ndarray, *, epsilon: Any = None, scale: Any = None, noise: str = "laplace"
) -> FixedBinsError:
    """What averaging noisy cells over given bins will be off by.

    With noise of variance v in each of n cells, k bins, and ``inside`` the sum over all cells of (x_i - mean of its bin)^2: the
    error against the truth is inside + k v, and the noisy cells are inside + (n - k) v from their bins' means. Exact for any
    independent noise of variance v, if the bins do not depend on it. Medians have no such identity.

    Args:
        truth: [n], the true cells, for studies; it may be traced.
        stops: where each bin ends, exclusive, as ``Segmentation.stops``.
        epsilon, scale: one of them: the budget of the cells, with neighbours that differ by one record, or the noise's parameter;
            they may be traced.
        noise: a law's name; with ``epsilon`` "laplace" or "discrete_laplace".

    Cost: O(n).

    Reference: Xu et al. 2013, lemmas 1 and 2.

    Raises:
        ValueError: if ``stops`` do not increase to n, or the noise is not given by one positive number.
    """
    truth = _checked(truth)
    sizes = bin_sizes(stops, truth.shape[0])
    variance = _variance(epsilon, scale, noise)
    bins = Partition(np.repeat(np.arange(sizes.size), sizes))
    # About one of the cells, so that an offset common to all costs no digits.
    cells = truth * 1.0
    cells = cells - cells[0]
    means = (bins @ cells) / namespace(cells).asarray(sizes, cells.dtype)
    inside = namespace(cells).square(cells - bins.T @ means).sum()
    n, k = truth.shape[0], sizes.size
    return FixedBinsError(inside, inside + k * variance, inside + (n - k) * variance)


def estimated_bins_error(costs: Any, n: int, *, epsilon: Any = None, scale: Any = None, noise: str = "laplace") -> Array:
    """The paper's estimate of the squared error for each number of bins, from the fits' costs alone; [k].

    cost - (n - 2 k) v for k bins, with v the variance of the noise in a cell. For bins that are fixed beforehand it is right on
    average. The bins of least cost have a lower cost and a higher error than such: see :func:`chosen_bins_error`. The paper takes
    the number of bins where it is least.

    Args:
        costs: sums of squares that 1, 2, ... bins leave, as ``v_optimal(values, most).costs``.
        n: how many cells.
        epsilon, scale, noise: as in :func:`fixed_bins_error`.

    Reference: Xu et al. 2013, theorem 1 and equation 4.
    """
    costs = as_array("costs", costs)
    n = _checks.integer("n", n, least=1)
    if costs.ndim != 1 or not 1 <= costs.shape[0] <= n:
        raise ValueError(f"costs must be of 1, 2, ... and at most {n} bins, got shape {list(costs.shape)}.")
    return costs - (n - 2.0 * namespace(costs).arange(1, costs.shape[0] + 1)) * _variance(epsilon, scale, noise)


@final
@dataclass(frozen=True)
class ChosenBinsError:
    """What the paper's estimate says and what the error is, sums over all cells, on average over simulated releases.

    Attributes:
        estimated, estimated_standard_error: [most], for 1, 2, ... bins: equation 4's estimate, and the mean's standard error.
        squared_error, standard_error: [most], the error against the truth of the same bins' means.
        shares: [most], of releases of which this number of bins has the least estimate, the paper's k*.
        best_estimated, best_estimated_standard_error, best_squared_error, best_standard_error: of every release at its own k*.
        num_draws: how many releases.
    """

    estimated: np.ndarray
    estimated_standard_error: np.ndarray
    squared_error: np.ndarray
    standard_error: np.ndarray
    shares: np.ndarray
    best_estimated: float
    best_estimated_standard_error: float
    best_squared_error: float
    best_standard_error: float
    num_draws: int


def chosen_bins_error(
    truth: Any,
    most: int | None = None,
    *,
    epsilon: Any = None,
    scale: Any = None,
    noise: str = "laplace",
    key: jax.Array,
    num_draws: int = 1000,
) -> ChosenBinsError:
    """The squared error of noisy cells averaged over the bins that they suggest, beside the paper's estimate of it.

    Of every simulated release the V-optimal bins of each number are found, and their means compared with the noisy cells (which
    gives the estimate) and with the truth (which gives the error).

    Args:
        truth: [n], the true cells; not private here.
        most: bins at most; left out, n.
        epsilon, scale: as in :func:`fixed_bins_error`.
        noise: "laplace", "discrete_laplace" or "gaussian".
        key: a typed key.
        num_draws: releases, at least 2.

    Cost: most n^2 for each release (some tenth of a second for 500 of 500 cells), and tables of n^2 and most n numbers.

    Reference: Xu et al. 2013, section 3, where theorem 1 is applied to bins that the noise has chosen.

    Raises:
        ValueError: as :func:`fixed_bins_error`, or if ``most`` is not from 1 to n.
    """
    cells = np.asarray(_checked(truth), dtype=float)
    _checks.exact_in_float("truth", cells)
    most = cells.size if most is None else _checks.integer("most", most, least=1)
    if most > cells.size:
        raise ValueError(f"most must be at most the number of cells, {cells.size}, got {most}.")
    num_draws = _checks.integer("num_draws", num_draws, least=2)
    _checks.choice("noise", noise, ("laplace", "discrete_laplace", "gaussian"))
    scale = _scale(epsilon, scale, noise)
    budget = {"rho": 1 / (2 * scale**2)} if noise == "gaussian" else {"epsilon": 1 / scale}
    found = by_rows(*(partial(_costs_and_errors, most=most, at_once=at_once) for at_once in (False, True)))

    def one(*, key: jax.Array) -> Any:
        values = simulate(cells, Identity(cells.size), **budget, noise=noise, key=key).values
        costs, errors = found(values, jnp.asarray(cells, values.dtype))
        return estimated_bins_error(costs, cells.size, scale=scale, noise=noise), errors

    hopes, errors = (np.asarray(x, float) for x in map_problems(one, key=key, num_problems=num_draws))
    best = hopes.argmin(axis=1)
    own_hope, own_error = (_mean(x[np.arange(num_draws), best]) for x in (hopes, errors))
    shares = np.bincount(best, minlength=most) / num_draws
    return ChosenBinsError(*_mean(hopes), *_mean(errors), shares, *own_hope, *own_error, num_draws)


def _costs_and_errors(values: jax.Array, truth: jax.Array, most: int, *, at_once: bool) -> tuple[jax.Array, jax.Array]:
    """The least costs of 1, ..., ``most`` bins of the values, and the squared errors of these bins' means, [most] each."""
    n, dtype = values.shape[0], values.dtype
    seen, hidden = running_sums(values, None), running_sums(truth, None)
    noise = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(values - truth)])
    stops, cuts = jnp.broadcast_arrays(jnp.arange(n + 1)[:, None], jnp.arange(n)[None, :])
    costs = jnp.where(cuts < stops, seen.cost(cuts, jnp.maximum(stops, cuts + 1)), jnp.inf)
    least = least_costs(costs, most, at_once=at_once)

    # Back from the end for all numbers of bins at once: the row of k bins before is the last that k + 1 bins look at.
    def back(carry: Any, row: Any) -> Any:
        i, errors = carry
        k, before = row
        totals = before[None, :] + costs[i]
        # Several times as fast as argmin on a CPU.
        last = jnp.where(totals <= totals.min(axis=1)[:, None], cuts[0][None, :], n).min(axis=1)
        j = jnp.where(k <= jnp.arange(most), last, i)
        size = jnp.maximum(i - j, 1)
        # The bin's mean is off by the mean of its noise, and the cells by what they differ.
        return (j, errors + jnp.where(j < i, hidden.cost(j, i) + jnp.square(noise[i] - noise[j]) / size, 0)), None

    befores = jnp.concatenate([jnp.full((1, n), jnp.inf, dtype).at[0, 0].set(0), least[:-1, :n]])
    start = (jnp.full(most, n), jnp.zeros(most, dtype))
    (_, errors), _ = jax.lax.scan(back, start, (jnp.arange(most), befores), reverse=True)
    return jnp.maximum(least[:, n], 0), errors


def _mean(draws: np.ndarray) -> tuple[Any, Any]:
    """The mean along the first axis, and its standard error."""
    return draws.mean(axis=0), draws.std(axis=0, ddof=1) / np.sqrt(draws.shape[0])


def bin_sizes(stops: Any, n: int) -> np.ndarray:
    """How many of n cells each bin has, int64 [bins], by where it ends."""
    ends = _checks.index_array("stops", np.asarray(stops))
    sizes = np.diff(ends, prepend=0)
    if not ends.size or sizes.min() < 1 or ends[-1] != n:
        raise ValueError(f"stops must increase from at least 1 to the number of cells, {n}, got {ends.tolist()[:10]}.")
    return sizes


def _checked(truth: Any) -> Array:
    truth = as_array("truth", truth)
    if truth.ndim != 1 or not truth.size:
        raise ValueError(f"truth must be a vector of at least one cell, got shape {list(truth.shape)}.")
    _checks.finite("truth", truth, hint="A truth has a count in every cell.")
    return truth


def _variance(epsilon: Any, scale: Any, noise: str) -> Any:
    return laws.stddev(noise, _scale(epsilon, scale, noise)) ** 2


def _scale(epsilon: Any, scale: Any, noise: str) -> Any:
    """The noise's parameter, from whichever was given."""
    _checks.choice("noise", noise, laws.NAMES)
    if (epsilon is None) == (scale is None):
        raise ValueError("Give exactly one of epsilon and scale.")
    name, number = ("scale", scale) if epsilon is None else ("epsilon", epsilon)
    if epsilon is not None and "laplace" not in noise:
        raise ValueError(f"epsilon is the budget of Laplace noise; give the scale of {noise!r} noise.")
    if np.shape(number) != () or (_checks.is_concrete(number) and not 0 < float(number) < np.inf):
        raise ValueError(f"{name} must be one positive number, got {number!r}.")
    return scale if epsilon is None else 1 / (epsilon if not _checks.is_concrete(epsilon) else float(epsilon))
