"""Sums of discrete Laplace noises with coefficients: how large they get.

Such a sum lives on the multiples of a step if its coefficients do. If all are equal, as in a sum of measured counts, its law is
that of ``noise.DiscreteLaplaceSum``. Otherwise the sum takes so many values that only a smoothed distribution is of use. It is
computed from the characteristic function, a product of 1 / (1 + 4 B^2 sin^2(c t / 2)), as

    P(|S| <= x) = (2 / pi) int_0^inf phi(t) sin(t x) / t dt

by the trapezoidal rule, whose error is the probability of falling beyond a period minus x, kept below 1e-12 or so. The
integral ends where phi has fallen for good, as it does if there are enough terms of unlike coefficients; where it does not, as
with two or three, it ends at some t and a smooth window is put on phi: this adds a small noise bounded by w to the sum, and
w is added to the answer, which then holds with at least the probability that was asked for.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._loops import fori_loop
from dpinfer.inference.condense import condensed, tail_quantile

_NODES_AT_ONCE = 256
_MAX_NODES = 1 << 14
# phi below this is nothing, and so are tails beyond the period.
_NEGLIGIBLE = 1e-12
_LEAST_TAIL = 1e-9
# The window is the characteristic function of the sum of so many uniform variables, (sin(a)/a)^order, up to this a: it has
# fallen to 1e-5 there, and what is left out of phi / t beyond is less than 1e-8 of it.
_WINDOW_ORDER = 4
_WINDOW_END = 12.0
_BISECTIONS = 60
# Terms whose lattice counts; noises beyond these have coefficients below a tenth of a standard deviation.
_SINGLE = 128


def discrete_half_widths(coefficients: np.ndarray, scale: np.ndarray, level: float) -> np.ndarray:
    """For each row the least h (or a little more) with P(|sum_i c_i D_i| <= h) >= level.

    Args:
        coefficients: [m, n], at least 0.
        scale: [n], of the discrete Laplace noises; 0 is no noise.
        level: between 0 and 1; 1 - level at least 2e-9.
    """
    if (1 - level) / 2 < _LEAST_TAIL:
        raise ValueError(
            f"level {level!r} leaves less than {2 * _LEAST_TAIL:g}, which sums of discrete noises are not computed to. "
            "Ask for a lower level, for fewer joint answers, or for method='normal'."
        )
    width = np.where(scale > 0, 0.5 / np.sinh(np.minimum(0.5 / np.where(scale > 0, scale, 1.0), 50.0)), 0.0)
    coefficients = coefficients * (scale > 0)
    largest = coefficients.max(axis=1, initial=0.0)
    is_counted = coefficients > 1e-9 * largest[:, None]
    is_level = np.abs(coefficients - largest[:, None]) <= 1e-9 * largest[:, None]
    is_even = (is_counted == is_level).all(axis=1) & (largest > 0)
    half = np.zeros(largest.size)
    if is_even.any():
        half[is_even] = _even(largest[is_even], is_counted[is_even] * width, level)
    uneven = np.flatnonzero(~is_even & (largest > 0))
    if uneven.size:
        half[uneven] = _uneven(coefficients[uneven], width, level)
    return half


def _even(step: np.ndarray, widths: np.ndarray, level: float) -> np.ndarray:
    """All coefficients ``step`` [m] or none; ``widths`` [m, n] with 0 for none."""
    z = tail_quantile(widths, np.log((1 - level) / 2), lattice=True)
    # P(|S| > k) = 2 P(S > k), and z is k + 1/2. A hair more than k steps, so that rounding does not lose the end.
    return step * (np.maximum(np.ceil(z - 0.5 - 1e-9), 0.0) + 1e-6)


def _uneven(coefficients: np.ndarray, width: np.ndarray, level: float) -> np.ndarray:
    scales = coefficients * width
    size = min(_SINGLE, scales.shape[1])
    largest = np.argpartition(-scales, size - 1, axis=1)[:, :size]
    terms = np.take_along_axis(coefficients, largest, axis=1)
    widths = np.broadcast_to(width, coefficients.shape)
    widths = np.take_along_axis(widths, largest, axis=1)
    # The many small coefficients see nothing of the integers: as continuous noises, of the same variance.
    _, others, counts = condensed(scales, _SINGLE)
    stddev = np.sqrt(2 * np.square(scales).sum(axis=1))
    # Beyond this, less than exp(-27): of the largest term alone, or of many that are nearly normal together.
    reach = 12.0 * stddev + 30.0 * scales.max(axis=1) + coefficients.max(axis=1)
    step = np.pi / reach
    given = (terms, widths, others, counts, step)
    phi = np.zeros((stddev.size, _NODES_AT_ONCE))
    active = np.arange(stddev.size)
    for first in range(0, _MAX_NODES, _NODES_AT_ONCE):
        # Rows in powers of two, the first one repeated, so that few programs are compiled.
        padded = np.concatenate([active, np.repeat(active[:1], (1 << (active.size - 1).bit_length()) - active.size)])
        nodes = np.asarray(_characteristic(*(x[padded] for x in given), first))[: active.size]
        if first >= phi.shape[1]:
            phi = np.pad(phi, ((0, 0), (0, phi.shape[1])))
        phi[active, first : first + _NODES_AT_ONCE] = nodes
        # Fallen at every one of the last nodes, not only in passing.
        active = active[(np.abs(nodes[:, _NODES_AT_ONCE // 2 :]) >= _NEGLIGIBLE).any(axis=1)]
        if not active.size:
            break
    bound = np.zeros(stddev.size)
    # sinc(t w / order)^order is that of as many uniform variables on (-w / order, w / order).
    bound[active] = _WINDOW_ORDER * _WINDOW_END / (step[active] * _MAX_NODES)
    t = (1 + np.arange(phi.shape[1])) * step[active, None]
    phi[active] *= np.sinc(t * bound[active, None] / _WINDOW_ORDER / np.pi) ** _WINDOW_ORDER
    return np.asarray(_invert(jnp.asarray(phi), jnp.asarray(step), jnp.asarray(reach), level)) + bound


@jax.jit
def _characteristic(
    terms: jax.Array, widths: jax.Array, others: jax.Array, counts: jax.Array, step: jax.Array, first: Any
) -> jax.Array:
    """Phi at ``first`` + 1, ... times the step of each row, [m, nodes]."""

    def at(k: jax.Array) -> jax.Array:
        t = ((first + k) * step)[:, None]
        log = jnp.log1p(jnp.square(2 * widths * jnp.sin(terms * t / 2))).sum(-1)
        return jnp.exp(-log - (counts * jnp.log1p(jnp.square(others * t))).sum(-1))

    return jax.lax.map(at, jnp.arange(1, _NODES_AT_ONCE + 1, dtype=terms.dtype)).T


@partial(jax.jit, static_argnames="level")
def _invert(phi: jax.Array, step: jax.Array, reach: jax.Array, level: float) -> jax.Array:
    """The x at which P(|S| <= x) is ``level``, by bisection."""
    t = jnp.arange(1, phi.shape[1] + 1, dtype=phi.dtype)[None, :] * step[:, None]
    weights = phi / t

    def halve(_: Any, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        x = (low + high) / 2
        probability = step / jnp.pi * (x + 2 * (weights * jnp.sin(t * x[:, None])).sum(-1))
        return jnp.where(probability < level, x, low), jnp.where(probability < level, high, x)

    return fori_loop(0, _BISECTIONS, halve, (jnp.zeros_like(reach), reach))[1]
