"""Functions of z >= 0 that are smooth but for z = 0 and grow like powers of z: Chebyshev series in asinh(z / unit).

Log densities of sums of noises, and what the noises are given their sum, are such functions. A few dozen values, each by
integration along a path of its own, then serve any number of points, near 0 and far out alike.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._loops import fori_loop

Array = np.ndarray | jax.Array

# Terms that are tried, until the last few are below this part of the largest value.
_TERMS, _TOLERANCE = (32, 64, 128, 256, 512), 3e-10


class AsinhSeries(NamedTuple):
    """One function a row.

    Attributes:
        coefficients: float64 [rows, terms] or [rows, terms, k].
        unit: float64 [rows].
        begin: float64 [rows], asinh(z / unit) of the smallest z.
        length: float64 [rows], how much larger it is of the largest.
    """

    coefficients: Array
    unit: Array
    begin: Array
    length: Array


def fitted(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray], unit: np.ndarray, least: np.ndarray, most: np.ndarray
) -> AsinhSeries:
    """The series of functions between ``least`` and ``most``.

    Args:
        function: of z [some rows, points] and which rows these are; [some rows, points] or [some rows, points, k].
        unit: positive, [rows]: where a function is no longer like what it is near 0.
        least, most: [rows], 0 or more.
    """
    begin = np.arcsinh(least / unit)
    length = np.maximum(np.arcsinh(most / unit) - begin, 1e-9)
    rest, known, pieces = np.arange(unit.size), np.zeros(0), []
    for terms in _TERMS:
        # Extrema of a Chebyshev polynomial: every other one of twice as many.
        x = np.cos(np.pi * np.arange(terms + 1) / terms)
        is_new = np.ones(terms + 1, dtype=bool)
        is_new[::2] = not known.size
        v = begin[rest, None] + (1 + x[is_new]) / 2 * length[rest, None]
        fresh = np.asarray(function(unit[rest, None] * np.sinh(v), rest))
        values = np.empty((rest.size, terms + 1, *fresh.shape[2:]))
        values[:, is_new] = fresh
        if known.size:
            values[:, ::2] = known
        found = np.einsum("tp,rp...->rt...", _transform(terms), values)
        size = np.abs(values).max(axis=1) + 1
        is_good = (np.abs(found[:, -4:]).max(axis=1) <= _TOLERANCE * size).reshape(rest.size, -1).all(axis=1)
        if terms == _TERMS[-1]:
            is_good[:] = True
        pieces.append((rest[is_good], found[is_good]))
        rest, known = rest[~is_good], values[~is_good]
        if not rest.size:
            break
    num_terms = max(_needed(part) for _, part in pieces if part.size)
    coefficients = np.zeros((unit.size, num_terms, *pieces[0][1].shape[2:]))
    for rows, part in pieces:
        kept = min(num_terms, part.shape[1])
        coefficients[rows, :kept] = part[:, :kept]
    return AsinhSeries(coefficients, unit, begin, length)


@lru_cache(maxsize=len(_TERMS))
def _transform(terms: int) -> np.ndarray:
    """Coefficients from the values at the extrema of a Chebyshev polynomial."""
    found = 2 / terms * np.cos(np.pi * np.outer(np.arange(terms + 1), np.arange(terms + 1)) / terms)
    found[[0, -1]] /= 2
    found[:, [0, -1]] /= 2
    return found


def _needed(coefficients: np.ndarray) -> int:
    """Terms beyond which nothing is left, rounded up to one of few numbers."""
    size = np.abs(coefficients).max(axis=1, keepdims=True) + 1
    large = (np.abs(coefficients) > _TOLERANCE * size).any(axis=tuple(k for k in range(coefficients.ndim) if k != 1))
    last = int(np.flatnonzero(large)[-1]) + 1 if large.any() else 1
    return next(terms for terms in (2, 8, 16, 24, 32, 48, 64, 96, 128, 256, 513) if terms >= last)


def evaluated(z: jax.Array, series: AsinhSeries) -> jax.Array:
    """The functions' values at z [..., points], by Clenshaw's recurrence; ``series`` has coefficients [..., terms]."""
    coefficients = jnp.asarray(series.coefficients)
    v = jnp.arcsinh(z / series.unit[..., None])
    twice = 4 * (v - series.begin[..., None]) / series.length[..., None] - 2

    def step(k: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        one, two = carry
        at = jax.lax.dynamic_index_in_dim(coefficients, terms - 1 - k, -1)
        return twice * one - two + at, one

    terms = coefficients.shape[-1]
    zero = jnp.zeros(jnp.broadcast_shapes(twice.shape, (*coefficients.shape[:-1], 1)), twice.dtype)
    one, two = fori_loop(0, terms - 1, step, (zero, zero))
    return twice * (one / 2) - two + coefficients[..., :1]
