"""Intervals of laws on grids where these are traced, as in ``posterior_grid``."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_SECTIONS, _BISECTIONS = 60, 50
# The least mass that counts, of the largest.
_KEPT = 1e-13


@partial(jax.jit, static_argnames=("kind", "is_lattice"))
def grid_interval(masses: jax.Array, level: Any, *, kind: str, is_lattice: bool) -> tuple[jax.Array, jax.Array]:
    """Lower and upper ends, [...], in points from the first, of laws [..., points]; as ``PosteriorAnswers.interval``."""
    upto, one = _up_to(masses, is_lattice), jnp.ones(masses.shape[:-1], masses.dtype)

    def quantile(p: jax.Array) -> jax.Array:
        return _quantile(masses, upto, p, is_lattice)

    if kind == "equal_tailed":
        tail = (1 - level) / 2 * one
        return quantile(tail), quantile(1 - tail)
    ratio = (5**0.5 - 1) / 2

    def section(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = ends
        left, right = b - ratio * (b - a), a + ratio * (b - a)
        is_left = quantile(left + level) - quantile(left) <= quantile(right + level) - quantile(right)
        return jnp.where(is_left, a, left), jnp.where(is_left, right, b)

    a, b = lax.fori_loop(0, _SECTIONS, section, (0 * one, (1 - level) * one))
    return quantile((a + b) / 2), quantile((a + b) / 2 + level)


def _up_to(masses: jax.Array, is_lattice: bool) -> jax.Array:
    """The probability up to each point: of integers, or by cubics through four points, around intervals or at a law's end."""
    if is_lattice:
        return jnp.cumsum(masses, axis=-1)
    # Where a law begins and ends there may be jumps.
    place = jnp.broadcast_to(jnp.arange(masses.shape[-1]), masses.shape)
    is_kept = masses > _KEPT * masses.max(axis=-1, keepdims=True)
    begin = jnp.where(is_kept, place, masses.shape[-1]).min(axis=-1, keepdims=True)
    end = jnp.where(is_kept, place, 0).max(axis=-1, keepdims=True)
    f = jnp.pad(jnp.where((place >= begin) & (place <= end), masses, 0.0), [(0, 0)] * (masses.ndim - 1) + [(3, 3)])
    at = [f[..., k : k + masses.shape[-1]] for k in range(7)]  # from three points before each to as many behind
    inside = 13 * (at[2] + at[3]) - at[1] - at[4]
    first = 9 * at[2] + 19 * at[3] - 5 * at[4] + at[5]
    last = 9 * at[3] + 19 * at[2] - 5 * at[1] + at[0]
    parts = jnp.where(place == begin + 1, first, jnp.where(place == end, last, inside))
    parts = jnp.where((place > begin) & (place <= end), jnp.maximum(parts, 0), 0.0)
    total = jnp.cumsum(parts, axis=-1)
    return total / total[..., -1:]


def _quantile(masses: jax.Array, upto: jax.Array, p: jax.Array, is_lattice: bool) -> jax.Array:
    after = jnp.minimum((upto < p[..., None]).sum(axis=-1), masses.shape[-1] - 1)
    if is_lattice:
        return after.astype(masses.dtype)
    before = jnp.maximum(after - 1, 0)
    a, b, f0, f1 = (
        jnp.take_along_axis(x, k[..., None], axis=-1)[..., 0]
        for x, k in ((upto, before), (upto, after), (masses, before), (masses, after))
    )

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        t = (low + high) / 2
        there = a * (1 + 2 * t) * (1 - t) ** 2 + f0 * t * (1 - t) ** 2 + b * t * t * (3 - 2 * t) + f1 * t * t * (t - 1)
        return jnp.where(there < p, t, low), jnp.where(there < p, high, t)

    low, high = lax.fori_loop(0, _BISECTIONS, halve, (jnp.zeros_like(p), jnp.ones_like(p)))
    return before + (after - before) * (low + high) / 2
