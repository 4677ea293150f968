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


def _by_scan(values: jax.Array, weights: jax.Array | None, starts: jax.Array | None) -> jax.Array:
    """The fit, entry after entry: each is pooled with the blocks on top of the stack that it violates.

    The stack needs no height: what a block comes to is written down at its last entry, and the block below another one ends just
    before that begins. Places are counted from 1; at 0 stands a nan, with which nothing is pooled.
    """
    n, dtype = values.shape[0], values.dtype
    center, shift = _center(values)

    def push(i: jax.Array, stack: tuple[Any, ...]) -> Any:
        means, begins, masses = stack

        def violates(block: Any) -> jax.Array:
            mean, begin, _ = block
            found = read(means, begin) >= mean
            return found if starts is None else found & ~read(starts, begin)

        def pool(block: Any) -> Any:
            mean, begin, mass = block
            other, first = read(means, begin), read(begins, begin)
            if weights is None:
                share = (begin - first).astype(dtype) / (i + 1 - first).astype(dtype)
            else:
                added = read(masses, begin)
                mass = mass + added
                share = jnp.where(mass > 0, added / jnp.where(mass > 0, mass, 1), 0)
            return mean + (other - mean) * share, first, mass

        mass = None if weights is None else read(weights, i)
        mean, begin, mass = while_loop(violates, pool, (read(values, i) - center, i, mass))
        new_masses = None if weights is None else write(masses, i + 1, mass)
        return write(means, i + 1, mean), write(begins, i + 1, begin), new_masses

    empty = jnp.full(n + 1, jnp.nan, dtype), jnp.zeros(n + 1, jnp.int32), None if weights is None else jnp.zeros(n + 1, dtype)
    means, begins, _ = fori_loop(jnp.int32(0), jnp.int32(n), push, empty)

    def fill(carry: Any) -> Any:
        stop, fit = carry
        first, mean = read(begins, stop), read(means, stop) + shift
        return first, fori_loop(first, stop, lambda i, fit: write(fit, i, mean), fit)

    return while_loop(lambda carry: carry[0] > 0, fill, (jnp.int32(n), jnp.zeros(n, dtype)))[1]


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
least_squares_fit = segmented(_by_scan, _by_splitting)


def level_sets(fit: jax.Array, starts: jax.Array | None) -> jax.Array:
    """The number of its block for each entry, from 0 on: the entries of a segment that have one fitted value."""
    new = fit[1:] != fit[:-1]
    new = new if starts is None else new | starts[1:]
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(new, dtype=jnp.int32)])


def _means_by_scan(values: jax.Array, keys: jax.Array, starts: jax.Array | None) -> jax.Array:
    del starts  # the keys of one problem say where its blocks end
    n, dtype = values.shape[0], values.dtype

    def block(carry: Any) -> Any:
        first, means = carry
        key = read(keys, first)

        def goes_on(run: Any) -> jax.Array:
            stop, _ = run
            return (stop < n) & (read(keys, jnp.minimum(stop, n - 1)) == key)

        def add(run: Any) -> Any:
            stop, total = run
            return stop + 1, total + read(values, stop)

        stop, total = while_loop(goes_on, add, (first + 1, read(values, first)))
        mean = total / (stop - first).astype(dtype)
        return stop, fori_loop(first, stop, lambda i, means: write(means, i, mean), means)

    return while_loop(lambda carry: carry[0] < n, block, (jnp.int32(0), jnp.zeros(n, dtype)))[1]


def _means_at_once(values: jax.Array, keys: jax.Array, starts: jax.Array | None) -> jax.Array:
    new = jnp.concatenate([jnp.zeros(1, bool), keys[1:] != keys[:-1]])
    own = jnp.cumsum(new if starts is None else new | starts, dtype=jnp.int32)
    options: dict[str, Any] = {"num_segments": values.shape[0] + 1, "indices_are_sorted": True}
    counts = segment_sum(jnp.ones_like(values), own, **options)
    return (segment_sum(values, own, **options) / jnp.maximum(counts, 1))[own]


_means = segmented(_means_by_scan, _means_at_once)


def block_means(values: jax.Array, keys: jax.Array) -> jax.Array:
    """For each entry the mean of the values in its block, [n]; linear, and its own transpose.

    Neighbours of equal ``keys`` [n] are of one block.
    """
    if not values.shape[0]:
        return values
    keys = lax.stop_gradient(keys)
    # JAX takes the loops of a linear solver as they are, and transposes none whose matrix is symmetric. The matrix itself, the
    # identity here, serves derivatives in what it depends on, which is nothing.
    return lax.custom_linear_solve(lambda x: x, values, lambda _, b: _means(b, keys, None), symmetric=True)
