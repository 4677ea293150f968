"""Monotone (isotonic) regression: the nearest vector whose entries never decrease."""

from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree
from dpinfer.inference.isotonic_l1 import least_deviations_ends
from dpinfer.inference.isotonic_l2 import block_means, least_squares_fit, level_sets
from dpinfer.queries.base import as_array


@final
@pytree
class IsotonicFit:
    """A monotone fit.

    Attributes:
        values: [n], the fit.
        block_ids: int32 [n], which block of equal fitted values an entry belongs to, counted from 0 along the vector; before the
            bounds are applied. Two segments never share a block.
        num_blocks: int32, how many there are.
    """

    values: jax.Array
    block_ids: jax.Array
    num_blocks: jax.Array


def isotonic_regression(
    values: Any,
    weights: Any = None,
    *,
    norm: str = "l2",
    lower: Any = None,
    upper: Any = None,
    increasing: bool = True,
    solution: str = "mid",
    segments: Any = None,
) -> IsotonicFit:
    """The monotone vector x that is nearest to the values: the least sum of w_i (x_i - y_i)^2, or of w_i |x_i - y_i|.

    x_1 <= ... <= x_n, and ``lower`` <= x_i <= ``upper`` if given: clipping the unbounded fit is optimal, for these and any other
    sum of convex functions of single entries, since an entry of the fit exceeds t where that minimises a sum of slopes at t,
    and the bounds only rule thresholds t out.

    Args:
        values: [n], finite. With "l1" integers are fitted exactly, in integers.
        weights: [n], not negative; None: all 1. A vector with repeated entries has the fit of its distinct runs, each
            weighted by its length. An entry of weight 0 does not count and takes the fit of the entry before it (at the start:
            of the first that counts).
        norm: "l2", squares, or "l1", absolute deviations.
        lower, upper: bounds, numbers.
        increasing: if False, x_1 >= ... >= x_n.
        solution: under "l1", where several fits are best, the "lower" or the "upper" of them, or "mid", their mean (for integers
            rounded half up, which is as good). "mid" is the least biased; sums of many fits show it. Under "l2" there is one.
        segments: integers [n] that never decrease: entries with the same number are fitted by themselves. None: one segment.

    Returns:
        An :class:`IsotonicFit`; inside jit, vmap and grad too. A derivative holds the blocks: under "l2" the fit is the weighted
        mean of its block, under "l1" an entry of it (the mean of these where several are equal); forward, reverse and again.
        The derivative in a weight of 0 is taken as 0. Where values are not finite inside jit, the fit is nan.

    Cost: O(n) for squares, O(n log n) for absolute deviations; on a CPU some 20 and 100 ns an entry. Rows under vmap are solved
    one after the other on a CPU, and all at once elsewhere.

    Reference: Barlow, Bartholomew, Bremner and Brunk 1972, "Statistical inference under order restrictions"; for noisy counts Hay
    et al. 2010, section 3 (theorem 1: the min-max formula; the paper's constraint S[i] < S[i+1] should read <=).

    Raises:
        ValueError: if a value is not finite, a weight is negative, a segment has no weight, or shapes do not fit.
    """
    _checks.choice("norm", norm, ("l2", "l1"))
    _checks.choice("solution", solution, ("lower", "mid", "upper"))
    values = as_array("values", values)
    if values.ndim != 1:
        raise ValueError(f"values must be a vector; jax.vmap takes a batch of them. Got shape {list(values.shape)}.")
    if values.dtype.kind not in "iuf" and not jnp.issubdtype(values.dtype, jnp.floating):
        raise ValueError(f"values must hold real numbers, got dtype {values.dtype}.")
    n = values.shape[0]
    _checks.finite("values", values, hint="Leave them out, or give them a weight of 0 and any finite value.")
    _checks.exact_in_float("values", values)
    starts = None if segments is None else _starts(segments, n)
    if weights is not None:
        weights = as_array("weights", weights)
        _check_weights(weights, starts, n)
    for name, bound in (("lower", lower), ("upper", upper)):
        if bound is not None and np.shape(bound) != ():
            raise ValueError(f"{name} must be one number, got shape {list(np.shape(bound))}.")
        if bound is not None and _checks.is_concrete(bound) and np.isnan(bound):
            raise ValueError(f"{name} must be a number, got {bound}.")
    if lower is not None and upper is not None and _checks.is_concrete([lower, upper]) and lower > upper:
        raise ValueError(f"lower must not exceed upper, got {lower} and {upper}.")
    return _fit(values, weights, starts, lower, upper, norm == "l1", bool(increasing), solution)


def _starts(segments: Any, n: int) -> Any:
    ids = segments if isinstance(segments, jax.Array) else _checks.index_array("segments", segments)
    if ids.shape != (n,):
        raise ValueError(f"segments must have the shape of values, [{n}], got {list(ids.shape)}.")
    if _checks.is_concrete(ids) and (np.diff(np.asarray(ids)) < 0).any():
        raise ValueError("segments must never decrease: entries of a segment stand together.")
    xp = jnp if isinstance(ids, jax.Array) else np
    return xp.concatenate([xp.ones(min(n, 1), bool), ids[1:] != ids[:-1]])


def _check_weights(weights: Any, starts: Any, n: int) -> None:
    if weights.shape != (n,):
        raise ValueError(f"weights must have the shape of values, [{n}], got {list(weights.shape)}.")
    _checks.finite("weights", weights, hint="Weights are finite.")
    if not _checks.is_concrete(weights) or not n:
        return
    host = np.asarray(weights)
    if host.min() < 0:
        raise ValueError(f"weights must not be negative, got {host.min()} at position {int(host.argmin())}.")
    if starts is None:
        masses = host.sum(keepdims=True)
    elif _checks.is_concrete(starts):
        masses = np.add.reduceat(host, np.flatnonzero(np.asarray(starts)))
    else:
        return
    if not masses.all():
        where = "" if starts is None else f" of segment {int(np.flatnonzero(masses == 0)[0])}"
        raise ValueError(f"weights{where} must not all be 0: nothing says what the fit is.")


@partial(jax.jit, static_argnums=(5, 6, 7))
def _fit(
    values: Any, weights: Any, starts: Any, lower: Any, upper: Any, is_l1: bool, increasing: bool, solution: str
) -> IsotonicFit:
    values = jnp.asarray(values)
    if not values.shape[0]:
        kept = values if is_l1 else values.astype(jnp.result_type(values, float))
        return IsotonicFit(kept, jnp.zeros(0, jnp.int32), jnp.int32(0))
    is_integer, center = jnp.issubdtype(values.dtype, jnp.integer), 0
    if is_integer:
        values = values.astype(int)  # in which differences fit
    if is_integer and not is_l1:
        # In integers, so that large counts lose nothing.
        center = values[values.shape[0] // 2]
        values = (values - center).astype(float)
    counted = None
    if weights is not None:
        weights = jnp.asarray(weights)
        if not is_l1 or jnp.issubdtype(weights.dtype, jnp.floating):
            weights = weights.astype(values.dtype if not is_integer or not is_l1 else float)
        else:
            weights = weights.astype(int)  # in which their sum fits
        counted = _nearest_counted(weights, starts)
        # An entry that does not count repeats the one before it, and so never has a block of its own.
        values = jnp.where(weights > 0, values, values[counted])
    turned = values if increasing else _turn(values)
    if is_l1:
        fit = _least_deviations(turned, weights, starts, solution if increasing else _OPPOSITE[solution])
        fit = fit if increasing else _turn(fit)
        fit = fit if counted is None else fit[counted]
        ids = level_sets(fit, starts)
        fit = fit if is_integer else jnp.where(jnp.isfinite(values).all(), fit, jnp.nan)
    else:
        fit, ids = _least_squares(turned, weights, starts)
        fit = fit if increasing else _turn(fit)
        fit, ids = (fit, ids) if counted is None else (fit[counted], ids[counted])
        fit = fit + center if is_integer else fit
    num_blocks = ids[-1] + 1
    if lower is not None:
        fit = jnp.maximum(fit, lower)
    if upper is not None:
        fit = jnp.minimum(fit, upper)
    return IsotonicFit(fit, ids, num_blocks)


_OPPOSITE = {"lower": "upper", "upper": "lower", "mid": "mid down"}


def _turn(values: jax.Array) -> jax.Array:
    """In the opposite order; integers without overflow."""
    return ~values if jnp.issubdtype(values.dtype, jnp.integer) else -values


def _nearest_counted(weights: jax.Array, starts: jax.Array | None) -> jax.Array:
    """For each entry the last one up to it that has weight, in its segment; at the start of that the first that has."""
    place = jnp.arange(weights.shape[0])
    begin = jnp.zeros_like(place) if starts is None else jax.lax.cummax(jnp.where(starts, place, 0))
    before = jax.lax.cummax(jnp.where(weights > 0, place, -1))
    after = jax.lax.cummin(jnp.where(weights > 0, place, place.shape[0] - 1), reverse=True)
    return jnp.where(before >= begin, before, after)


@jax.custom_jvp
def _least_squares(values: jax.Array, weights: Any, starts: Any) -> tuple[jax.Array, jax.Array]:
    fit = least_squares_fit(values, weights, starts)
    return fit, level_sets(fit, starts)


@_least_squares.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """A block's fit is its mean: of w dy + (y - fit) dw, over that of w."""
    values, weights, starts = primals
    change, weights_change, _ = tangents
    fit, ids = _least_squares(values, weights, starts)
    keys = fit if starts is None else ids  # the fit is at hand earlier
    if weights is None:
        spread = block_means(change, keys)
    else:
        pulled = jnp.where(weights > 0, weights * change + weights_change * (values - fit), 0.0)
        mass = block_means(weights, keys)
        spread = block_means(pulled, keys) / jnp.where(mass > 0, mass, 1)
    return (fit, ids), (spread, np.zeros(ids.shape, jax.dtypes.float0))


def _least_deviations(values: jax.Array, weights: Any, starts: Any, solution: str) -> jax.Array:
    if jnp.issubdtype(values.dtype, jnp.floating):
        lowest, highest = _deviations_ends(values, weights, starts)
        middle = lowest + (highest - lowest) / 2
    else:
        lowest, highest = least_deviations_ends(values, weights, starts)
        middle = lowest + (highest - lowest + (solution == "mid")) // 2
    return {"lower": lowest, "upper": highest}.get(solution, middle)


@jax.custom_jvp
def _deviations_ends(values: jax.Array, weights: Any, starts: Any) -> tuple[jax.Array, jax.Array]:
    return least_deviations_ends(values, weights, starts)


@_deviations_ends.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """A block's fit is one of its values, or several that are equal: the mean of their changes."""
    values, weights, starts = primals
    change = tangents[0]
    ends = _deviations_ends(values, weights, starts)
    changes = []
    for fit in ends:
        keys = fit if starts is None else level_sets(fit, starts)
        hit = values == fit if weights is None else (values == fit) & (weights > 0)
        share = block_means(hit.astype(values.dtype), keys)
        changes.append(block_means(jnp.where(hit, change, 0.0), keys) / jnp.where(share > 0, share, 1))
    return ends, tuple(changes)
