"""Histograms of few bins: consecutive cells in bins of one value each, as near to given values as possible."""

from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.ops import segment_min, segment_sum

from dpinfer import _checks
from dpinfer._pytree import pytree
from dpinfer.inference import segment_deviations, segment_squares
from dpinfer.inference.isotonic_l2 import block_means
from dpinfer.inference.segment_numbers import begins_of_number
from dpinfer.queries.base import as_array


@final
@pytree
class Segmentation:
    """Consecutive cells in bins.

    Attributes:
        values: [n], of each cell its bin's value.
        block_ids: int32 [n], the bin of each cell, from 0 along the vector.
        num_bins: int32, how many there are.
        cost: the sum of w_i (y_i - value)^2, or of w_i |y_i - value|; without the penalty.
        costs: [bins], the least cost of 1, 2, ... bins; None if the number of bins was not given.
    """

    values: jax.Array
    block_ids: jax.Array
    num_bins: jax.Array
    cost: jax.Array
    costs: jax.Array | None

    @property
    def stops(self) -> np.ndarray:
        """int64 [num_bins], where each bin ends: the number of cells up to its last one. On the host, of one segmentation."""
        ids = np.asarray(self.block_ids)
        if ids.ndim != 1:
            raise ValueError(f"stops are of one segmentation; block_ids has the shape {list(ids.shape)}.")
        return np.append(np.flatnonzero(np.diff(ids)) + 1, ids.size)


def v_optimal(values: Any, bins: int, *, cost: str = "sse", weights: Any = None) -> Segmentation:
    """The best histogram of a given number of bins: consecutive cells in ``bins`` bins, as near to the values as possible.

    Minimises the sum over the cells of w_i (y_i - v)^2, or of w_i |y_i - v|, with v the value of the cell's bin: its mean, or its
    median. Exact for values in any order (whose costs fail the quadrangle inequality, so that no faster search for
    boundaries applies). Where several are best, the one with the earliest last boundary, and so on from behind.

    Args:
        values: [n], finite.
        bins: how many, from 1 to n; static.
        cost: "sse", squares, or "sae", absolute deviations.
        weights: [n], not negative; None: all 1. Bins of weight 0 cost nothing and have the value 0 (their derivative too).

    Returns:
        A :class:`Segmentation`, with the least costs of all smaller numbers of bins. A derivative holds the bins. In squares,
        costs are compared to about 1e-16 n of the largest squared value (less an offset common to all), so that beside cells of
        1e8 differences of cost below 1 are not told apart.

    Cost: rows of n cells, one for each number of bins, of which each looks at the cuts that are still of use (some tens on noise,
    many more on alternating cells). Memory 8 bins (n + 1) bytes, and for "sae" 8 n (n + 1) more. A batch under vmap is solved row
    by row on a CPU.

    Reference: Jagadish et al. 1998, "Optimal histograms with quality guarantees"; Xu et al. 2013, section 2.1 (figure 3; its
    algorithm reads T[i, j - 1] for T[l, j - 1] and bounds l from the wrong side).

    Raises:
        ValueError: if a value is not finite, a weight is negative, or ``bins`` is not from 1 to n.
    """
    values, weights = _checked(values, weights, cost)
    n = values.shape[0]
    bins = _checks.integer("bins", bins, least=1)
    if bins > n:
        raise ValueError(f"bins must be at most the number of values, {n}, got {bins}.")
    return _with_bins(values, weights, cost == "sae", bins)


def penalized_v_optimal(values: Any, penalty: Any, *, cost: str = "sse", weights: Any = None) -> Segmentation:
    """The histogram of least cost plus ``penalty`` for each bin; see :func:`v_optimal`.

    Args:
        penalty: at least 0, in the units of the cost; may be traced.

    Cost: "sse" O(n) on noise; cells of which few cuts can be told to be useless (constant, alternating) are found to be so, and
    solved by another method, with jax 0.12 at some three times the cost. "sae" O(n^2), with memory O(n).

    Raises:
        ValueError: as :func:`v_optimal`, or if ``penalty`` is negative or no number.
    """
    values, weights = _checked(values, weights, cost)
    if not values.shape[0]:
        raise ValueError("values must hold at least one value.")
    if np.shape(penalty) != ():
        raise ValueError(f"penalty must be one number, got shape {list(np.shape(penalty))}.")
    if _checks.is_concrete(penalty) and not 0 <= float(penalty) < np.inf:
        raise ValueError(f"penalty must be at least 0 and finite, got {penalty}.")
    return _with_penalty(values, weights, penalty, cost == "sae")


def _checked(values: Any, weights: Any, cost: str) -> tuple[Any, Any]:
    _checks.choice("cost", cost, ("sse", "sae"))
    values = as_array("values", values)
    if values.ndim != 1:
        raise ValueError(f"values must be a vector; jax.vmap takes a batch of them. Got shape {list(values.shape)}.")
    if values.dtype.kind not in "iuf" and not jnp.issubdtype(values.dtype, jnp.floating):
        raise ValueError(f"values must hold real numbers, got dtype {values.dtype}.")
    _checks.finite("values", values, hint="Leave them out, or give them a weight of 0 and any finite value.")
    _checks.exact_in_float("values", values)
    if weights is not None:
        weights = as_array("weights", weights)
        if weights.shape != values.shape:
            raise ValueError(f"weights must have the shape of values, {list(values.shape)}, got {list(weights.shape)}.")
        _checks.finite("weights", weights, hint="Weights are finite.")
        if _checks.is_concrete(weights) and weights.size and np.asarray(weights).min() < 0:
            raise ValueError(f"weights must not be negative, got {np.asarray(weights).min()}.")
    return values, weights


@partial(jax.jit, static_argnums=(2, 3))
def _with_bins(values: Any, weights: Any, is_l1: bool, num_bins: int) -> Segmentation:
    values, weights = _floats(values, weights)
    begins, costs = begins_of_number(is_l1, num_bins)(*jax.lax.stop_gradient((values, weights)))
    return _filled(values, weights, begins, is_l1, costs)


@partial(jax.jit, static_argnums=3)
def _with_penalty(values: Any, weights: Any, penalty: Any, is_l1: bool) -> Segmentation:
    values, weights = _floats(values, weights)
    find = (segment_deviations if is_l1 else segment_squares).penalized_begins
    begins = find(*jax.lax.stop_gradient((values, weights, jnp.asarray(penalty, values.dtype))))
    return _filled(values, weights, begins, is_l1, None)


def _floats(values: Any, weights: Any) -> tuple[jax.Array, jax.Array | None]:
    values = jnp.asarray(values)
    values = values.astype(jnp.result_type(values, float))
    return values, None if weights is None else jnp.asarray(weights).astype(values.dtype)


def _filled(
    values: jax.Array, weights: jax.Array | None, begins: jax.Array, is_l1: bool, costs: jax.Array | None
) -> Segmentation:
    ids = jnp.cumsum(begins, dtype=jnp.int32) - 1
    fit = (bin_medians if is_l1 else bin_means)(values, weights, ids)
    off = jnp.abs(values - fit) if is_l1 else jnp.square(values - fit)
    return Segmentation(fit, ids, ids[-1] + 1, (off if weights is None else weights * off).sum(), costs)


def bin_means(values: jax.Array, weights: jax.Array | None, ids: jax.Array) -> jax.Array:
    """[n], for each cell the weighted mean of its bin; 0 where that has no weight."""
    # About one of the values, so that an offset common to all costs no digits.
    center = jax.lax.stop_gradient(jnp.maximum(values.min(), 0) + jnp.minimum(values.max(), 0))
    if weights is None:
        return block_means(values - center, ids) + center
    mass = block_means(weights, ids)
    return jnp.where(mass > 0, block_means(weights * (values - center), ids) / jnp.where(mass > 0, mass, 1) + center, 0)


def bin_medians(values: jax.Array, weights: jax.Array | None, ids: jax.Array) -> jax.Array:
    """[n], for each cell the weighted median of its bin, the middle of all of them; 0 where it has no weight."""
    n = values.shape[0]
    options: dict[str, Any] = {"num_segments": n, "indices_are_sorted": True}
    weights = jnp.ones_like(values) if weights is None else weights
    order = jnp.lexsort((jax.lax.stop_gradient(values), ids))
    mass = segment_sum(weights, ids, **options)
    up_to = jnp.cumsum(weights[order])
    before = jnp.concatenate([jnp.zeros(1, values.dtype), jnp.cumsum(mass)[:-1]])
    share, half = up_to - before[ids], mass[ids] / 2  # the bins stand where they stood
    place = jnp.arange(n)
    ends = [segment_min(jnp.where(found, place, n - 1), ids, **options) for found in (share >= half, share > half)]
    low, high = (values[order[jnp.minimum(end, n - 1)]] for end in ends)
    return jnp.where(mass > 0, low + (high - low) / 2, 0)[ids]
