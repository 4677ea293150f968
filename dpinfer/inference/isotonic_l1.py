"""Monotone fits in absolute deviations, of runs of a vector: the lowest and the highest of the fits that are best.

On one core, and without weights: the slopes of the least deviation of the first i entries as a function of the last fitted value
are kept in a heap (the slope trick), O(n log n). Otherwise: for a threshold t, which entries of a best fit lie above it is a
matter of sums over one block; halving the thresholds sorts all entries of all blocks in log2(n) rounds (Stout 2013, "Isotonic
regression via partitioning"). The sums are exact for integer weights. Both fits are made of input values.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ops import segment_max, segment_min

from dpinfer._loops import fori_loop, read, while_loop, write
from dpinfer.inference.segmented import segmented

# Children of a place in the heap. Values come nearly in order and so rise nearly to the top, but seldom sink far.
_WAYS = 4


def _by_scan(values: jax.Array, weights: jax.Array | None, starts: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    if weights is not None:
        return _by_thresholds(values, weights, starts)
    n = values.shape[0]

    def add(i: jax.Array, carry: Any) -> Any:
        heap, size, top, lowest, highest = carry
        if starts is not None:
            size = jnp.where(read(starts, i), 0, size)
        value = read(values, i)
        # The value enters twice, and the largest leaves: it, if that is the largest.
        goes_in = (size > 0) & (top > value)

        def sink(hole: Any) -> Any:
            heap, place, child, child_value, _ = hole
            heap = write(heap, place, child_value)
            return (heap, child, *_larger_child(heap, child, size, value))

        hole = (heap, jnp.int32(0), jnp.int32(0), top, goes_in)
        heap, place, *_ = while_loop(lambda hole: hole[4], sink, hole)
        heap = write(write(heap, jnp.where(goes_in, place, size), value), size, value)

        def rise(hole: Any) -> Any:
            heap, place, parent, parent_value, _ = hole
            heap = write(heap, place, parent_value)
            return (heap, parent, *_parent(heap, parent, value))

        heap, place, *_ = while_loop(lambda hole: hole[4], rise, (heap, size, *_parent(heap, size, value)))
        heap = write(heap, place, value)
        new = read(heap, 0)
        return heap, size + 1, new, write(lowest, i, new), write(highest, i, jnp.where(goes_in, top, value))

    nothing = jnp.zeros_like(values)
    heap = jnp.zeros(n + 1, values.dtype)
    first = (heap, jnp.int32(0), jnp.zeros((), values.dtype), nothing, nothing)
    *_, lowest, highest = fori_loop(jnp.int32(0), jnp.int32(n), add, first)

    def back(k: jax.Array, carry: Any) -> Any:
        low, high, lower, upper = carry
        i = n - 1 - k
        low, high = jnp.minimum(low, read(lowest, i)), jnp.minimum(high, read(highest, i))
        lower, upper = write(lower, i, low), write(upper, i, high)
        if starts is not None:
            low, high = (jnp.where(read(starts, i), _largest(values.dtype), x) for x in (low, high))
        return low, high, lower, upper

    most = jnp.asarray(_largest(values.dtype), values.dtype)
    return fori_loop(jnp.int32(0), jnp.int32(n), back, (most, most, nothing, nothing))[2:]


def _larger_child(heap: jax.Array, place: jax.Array, size: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The child of a place in the heap that is the largest, its value, and whether that exceeds ``value``."""
    last = jnp.maximum(size - 1, 0)
    first = _WAYS * place + 1
    child = jnp.minimum(first, last)
    largest = read(heap, child)
    for other in (jnp.minimum(first + k, last) for k in range(1, _WAYS)):
        candidate = read(heap, other)
        child, largest = jnp.where(candidate > largest, other, child), jnp.maximum(candidate, largest)
    return child, largest, (first < size) & (largest > value)


def _parent(heap: jax.Array, place: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The parent of a place in the heap, its value, and whether ``value`` exceeds that."""
    parent = lax.div(jnp.maximum(place - 1, 0), jnp.int32(_WAYS))  # // rounds down below 0, too, which takes longer
    parent_value = read(heap, parent)
    return parent, parent_value, (place > 0) & (parent_value < value)


def _largest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def _by_thresholds(values: jax.Array, weights: jax.Array | None, starts: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    return tuple(_at_one_end(values, weights, starts, is_highest) for is_highest in (False, True))


@partial(jax.jit, static_argnums=3)
def _at_one_end(values: jax.Array, weights: jax.Array | None, starts: jax.Array | None, is_highest: bool) -> jax.Array:
    n = values.shape[0]
    place = jnp.arange(n, dtype=jnp.int32)
    segments = (place == 0) if starts is None else starts | (place == 0)
    weights = jnp.ones(n, jnp.int32) if weights is None else weights
    thresholds = jnp.sort(values)
    options: dict[str, Any] = {"num_segments": n, "indices_are_sorted": True}

    def halve(carry: Any) -> Any:
        low, high = carry  # the fit is thresholds[r] for an r from low to high, the same of both in a whole block
        begins = segments | jnp.concatenate([jnp.ones(1, bool), (low[1:] != low[:-1]) | (high[1:] != high[:-1])])
        ids = jnp.cumsum(begins, dtype=jnp.int32) - 1
        middle = low + (high - low + 1) // 2
        slopes = jnp.where(values >= thresholds[middle], -weights, weights)
        sums = jnp.cumsum(slopes)
        start = lax.cummax(jnp.where(begins, place, 0))
        sums = sums - (sums[start] - slopes[start])
        best = segment_max(sums, ids, **options)[ids]
        # Up to and with the first (last) entry where the sum is the largest, none of them if no sum is positive (negative).
        reached = jnp.where(sums == best, place, n if is_highest else -1)
        reached = (segment_min if is_highest else segment_max)(reached, ids, **options)[ids]
        is_low = (place <= reached) & ((best > 0) if is_highest else (best >= 0))
        is_open = low < high
        return jnp.where(is_open & ~is_low, middle, low), jnp.where(is_open & is_low, middle - 1, high)

    start = (jnp.zeros(n, jnp.int32), jnp.full(n, n - 1, jnp.int32))
    low, _ = while_loop(lambda carry: (carry[0] < carry[1]).any(), halve, start)
    return thresholds[low]


# (values, weights or None, starts or None) -> (lowest, highest)
least_deviations_ends = segmented(_by_scan, _by_thresholds)
