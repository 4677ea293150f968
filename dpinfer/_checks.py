"""Validators by name. Every error says which argument, what was expected, what came, and what to do.

A validator is never given private data: mechanisms check cells by dtype and by public facts only (``mechanisms/linear.py``).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def is_concrete(*values: Any) -> bool:
    """Whether every value is a number that Python can look at (not a tracer of jit, vmap or grad)."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree_util.tree_leaves(values))


def integer(name: str, value: Any, *, least: int) -> int:
    """``value`` as an int that is at least ``least``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
    return int(value)


def grid(name: str, value: Any) -> tuple[int, ...]:
    """``value`` as the numbers of cells along one or more axes, each at least 1."""
    try:
        sizes = tuple(integer(name, size, least=1) for size in value)
    except TypeError:
        raise ValueError(f"{name} must list the cells along each axis, got {value!r}.") from None
    if not sizes:
        raise ValueError(f"{name} must have at least one axis.")
    return sizes


def choice(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    """``value`` if it is one of the allowed names."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def fraction(name: str, value: Any) -> Fraction:
    """``value`` as an exact fraction; a float is read as the decimal number that it prints as (0.1 is 1/10)."""
    if isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be a number, got {value!r}.")
    if isinstance(value, Rational):
        # Python integers: a fraction of numpy integers would compute in 64 bit and wrap.
        return Fraction(int(value.numerator), int(value.denominator))
    if hasattr(value, "as_integer_ratio") and not isinstance(value, (float, np.floating)):  # Decimal
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value!r}.")
        return Fraction(*value.as_integer_ratio())
    if isinstance(value, Real):
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value!r}.")
        # A numpy float32 prints its own shortest digits, so that np.float32(0.1) is 1/10 as well.
        return Fraction(repr(value) if type(value) is float else str(value))
    if isinstance(value, (np.ndarray, jax.Array)) and value.ndim == 0 and is_concrete(value):
        return fraction(name, np.asarray(value)[()])
    raise ValueError(f"{name} must be a number (int, float, Fraction or Decimal), got {value!r}.")


def budget(name: str, value: Any, *, zero: bool = False) -> Fraction:
    """``value`` as an exact positive (with ``zero``: non-negative) privacy budget."""
    if value is None:
        raise ValueError(f"{name} must be a positive number, got None: without a budget nothing can be released.")
    exact = fraction(name, value)
    if exact < 0 or (exact == 0 and not zero):
        raise ValueError(f"{name} must be {'non-negative' if zero else 'positive'}, got {value!r}.")
    return exact


def index_array(name: str, value: Any) -> np.ndarray:
    """``value`` as a one-dimensional int64 array; floats, booleans and numbers that int64 cannot hold are refused."""
    array = np.asarray(value)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}.")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold integers, got dtype {array.dtype}.")
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit 64-bit signed integers, got {array.max()}.")
    return array.astype(np.int64)


def finite(name: str, values: Any, *, hint: str = "Drop those rows, or give them stddev=inf and any finite value.") -> None:
    """Refuse nan and infinity in an array that is at hand; inside jit there is nothing to look at."""
    if is_concrete(values):
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{name} must be real numbers, got dtype {array.dtype}.")
        # The least and the most: nan spreads to both, and no array of truth values has to be formed.
        if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            bad = np.flatnonzero(~np.isfinite(array))
            raise ValueError(
                f"{name} must be finite, got {array.ravel()[bad[0]]} at position {bad[0]} ({bad.size} such in all). {hint}"
            )


def exact_in_float(name: str, values: Any) -> None:
    """Refuse public counts that the current float width would round: float32 counts stop at 2**24."""
    if jax.config.jax_enable_x64 or not is_concrete(values):  # pyright: ignore[reportAttributeAccessIssue]
        return
    array = np.asarray(values)
    if array.size and array.dtype.itemsize > 4 and float(np.max(np.abs(array.astype(np.float64)))) > 2**24:
        raise ValueError(
            f"{name} holds magnitudes above 2**24, which 32-bit floats cannot tell apart. "
            "Type dpinfer.enable_x64() first (before the first array is made)."
        )


def typed_key(key: Any) -> None:
    """Refuse everything but one typed key of JAX."""
    if not (isinstance(key, jax.Array) and jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0):
        raise ValueError("key must be one typed key: jax.random.key(seed), or one of jax.random.split(key, num) under vmap.")


def relation(neighbors: Any) -> str:
    """``neighbors`` if it is a neighbour relation that the library knows."""
    return choice("neighbors", neighbors, ("add_remove", "replace_one"))
