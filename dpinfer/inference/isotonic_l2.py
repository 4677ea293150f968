"""Monotone fits in squares, of runs of a vector: the blocks of equal fitted values and their means.

On one core: pooling adjacent violators with a stack (Ayer et al. 1955; Best and Chakravarti 1990), linear time. On many: every
block is split at once where the sum of its deviations from its mean is the largest, until no split lowers the error (Luss, Rosset
and Shahar 2012: no split ever has to be taken back); rounds of whole-array operations, about the logarithm of the length.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ops import segment_max, segment_min, segment_sum

from dpinfer._loops import fori_loop, read, while_loop, write
from dpinfer.inference.segmented import segmented


def _by_stack(values: jax.Array, weights: jax.Array | None, starts: jax.Array | None) -> jax.Array:
    """The fit, by a stack of blocks."""
    n, dtype = values.shape[0], values.dtype
    nothing, places = jnp.zeros(n, dtype), jnp.zeros(n, jnp.int32)
    center, shift = _center(values)

    def push(i: jax.Array, stack: tuple[Any, ...]) -> Any:
        height, means, begins, masses = stack

        def violates(block: Any) -> jax.Array:
            below, mean, begin, _ = block
            found = (below > 0) & (read(means, jnp.maximum(below - 1, 0)) >= mean)
            return found if starts is None else found & ~read(starts, begin)

        def pool(block: Any) -> Any:
            below, mean, begin, mass = block
            other, first = read(means, below - 1), read(begins, below - 1)
            if weights is None:
                share = (begin - first).astype(dtype) / (i + 1 - first).astype(dtype)
            else:
                added = read(masses, below - 1)
                mass = mass + added
                share = jnp.where(mass > 0, added / jnp.where(mass > 0, mass, 1), 0)
            return below - 1, mean + (other - mean) * share, first, mass

        mass = None if weights is None else read(weights, i)
        below, mean, begin, mass = while_loop(violates, pool, (height, read(values, i) - center, i, mass))
        new_masses = None if weights is None else write(masses, below, mass)
        return below + 1, write(means, below, mean), write(begins, below, begin), new_masses

    empty = (jnp.int32(0), nothing, places, None if weights is None else nothing)
    height, means, begins, _ = fori_loop(jnp.int32(0), jnp.int32(n), push, empty)

    def fill(k: jax.Array, carry: Any) -> Any:
        block, fit = carry
        i = n - 1 - k
        return jnp.where(read(begins, block) == i, block - 1, block), write(fit, i, read(means, block) + shift)

    return fori_loop(jnp.int32(0), jnp.int32(n), fill, (height - 1, nothing))[1]


def _center(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What to subtract so that an offset common to all costs no digits, and what to add afterwards.

    The entry nearest to 0 if all are on one side of it, so that small entries beside large ones keep their digits, too; else 0.
    Where an entry is not finite, nan is added.
    """
    least, most = values.min(), values.max()
    center = jnp.maximum(least, 0) + jnp.minimum(most, 0)
    return center, jnp.where(jnp.isfinite(least) & jnp.isfinite(most), center, jnp.nan)


def _by_splitting(values: jax.Array, weights: jax.Array | None, starts: jax.Array | None) -> jax.Array:
    """The same, every block of a round at once."""
    n, dtype = values.shape[0], values.dtype
    center, shift = _center(values)
    values = values - center
    place = jnp.arange(n, dtype=jnp.int32)
    weights = jnp.ones(n, dtype) if weights is None else weights
    segments = (place == 0) if starts is None else starts | (place == 0)
    rounding = 8 * float(jnp.finfo(dtype).eps)
    options: dict[str, Any] = {"num_segments": n, "indices_are_sorted": True}

    def means_of(ids: jax.Array) -> jax.Array:
        mass = segment_sum(weights, ids, **options)
        # Of entries without weight alone: their own value, which is the one before them.
        alone = segment_max(values, ids, **options)
        return jnp.where(mass > 0, segment_sum(weights * values, ids, **options) / jnp.where(mass > 0, mass, 1), alone)

    def split(carry: Any) -> Any:
        begins, _ = carry
        ids = jnp.cumsum(begins, dtype=jnp.int32) - 1
        # Deviations of a block add up to 0, so that sums from the very first entry on stay small.
        deviations = weights * (means_of(ids)[ids] - values)
        sums = jnp.cumsum(deviations) - deviations
        sums = sums - sums[lax.cummax(jnp.where(begins, place, 0))]
        best = segment_max(sums, ids, **options)
        gains = (sums == best[ids]) & (best[ids] > rounding * jnp.abs(sums).max())
        first = segment_min(jnp.where(gains, place, n), ids, **options)
        new = first[ids] == place
        return begins | new, new.any()

    begins, _ = while_loop(lambda carry: carry[1], split, (segments, jnp.bool_(n > 0)))

    def decreases(ids: jax.Array) -> jax.Array:
        """Which entries begin a block whose mean is not above that of the block before it."""
        fit = means_of(ids)[ids]
        before = jnp.concatenate([fit[:1], fit[:-1]])
        new = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])
        return new & ~segments & (before >= fit)

    def pool(begins: jax.Array) -> jax.Array:
        return begins & ~decreases(jnp.cumsum(begins, dtype=jnp.int32) - 1)

    # What a rounding error has split too much.
    begins = while_loop(lambda b: decreases(jnp.cumsum(b, dtype=jnp.int32) - 1).any(), pool, begins)
    ids = jnp.cumsum(begins, dtype=jnp.int32) - 1
    return means_of(ids)[ids] + shift


# (values, weights or None, starts or None) -> fit; nan if a value is not finite.
least_squares_fit = segmented(_by_stack, _by_splitting)


def level_sets(fit: jax.Array, starts: jax.Array | None) -> jax.Array:
    """The number of its block for each entry, from 0 on: the entries of a segment that have one fitted value."""
    new = fit[1:] != fit[:-1]
    new = new if starts is None else new | starts[1:]
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(new, dtype=jnp.int32)])


def _means_by_scan(values: jax.Array, ids: jax.Array, starts: jax.Array | None) -> jax.Array:
    del starts  # the ids of one problem say where its blocks end
    n, dtype = values.shape[0], values.dtype

    def is_last(i: jax.Array) -> jax.Array:
        return (i == n - 1) | (read(ids, jnp.minimum(i + 1, n - 1)) != read(ids, i))

    def add(i: jax.Array, carry: Any) -> Any:
        total, begin, means = carry
        total = total + read(values, i)
        mean, ends = total / (i + 1 - begin).astype(dtype), is_last(i)
        return jnp.where(ends, 0, total), jnp.where(ends, i + 1, begin), write(means, i, mean)

    def spread(k: jax.Array, carry: Any) -> Any:
        mean, found = carry
        i = n - 1 - k
        mean = jnp.where(is_last(i), read(means, i), mean)
        return mean, write(found, i, mean)

    zero, nothing = jnp.zeros((), dtype), jnp.zeros_like(values)
    *_, means = fori_loop(jnp.int32(0), jnp.int32(n), add, (zero, jnp.int32(0), nothing))
    return fori_loop(jnp.int32(0), jnp.int32(n), spread, (zero, nothing))[1]


def _means_at_once(values: jax.Array, ids: jax.Array, starts: jax.Array | None) -> jax.Array:
    new = jnp.concatenate([jnp.zeros(1, bool), ids[1:] != ids[:-1]])
    own = jnp.cumsum(new if starts is None else new | starts, dtype=jnp.int32)
    options: dict[str, Any] = {"num_segments": values.shape[0] + 1, "indices_are_sorted": True}
    counts = segment_sum(jnp.ones_like(values), own, **options)
    return (segment_sum(values, own, **options) / jnp.maximum(counts, 1))[own]


_means = segmented(_means_by_scan, _means_at_once)


def block_means(values: jax.Array, ids: jax.Array) -> jax.Array:
    """For each entry the mean of the values in its block, [n]; linear, and its own transpose."""
    if not values.shape[0]:
        return values
    # JAX takes the loops of a linear solver as they are, and transposes none whose matrix is symmetric. The matrix itself, the
    # identity here, serves derivatives in what it depends on, which is nothing.
    return lax.custom_linear_solve(lambda x: x, values, lambda _, b: _means(b, ids, None), symmetric=True)
