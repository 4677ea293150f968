"""Realised error: estimates against a truth that is known, for studies and demonstrations."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.queries import Ranges
from dpinfer.queries.base import Array, as_array, namespace


def squared_error_by_range_size(cells: Any, truth: Any, sizes: Sequence[int]) -> Array:
    """The mean squared error of the sums over all ranges of each size, [len(sizes)].

    For size s, the average over the n - s + 1 ranges of s neighbouring cells of (sum of ``cells`` - sum of ``truth``)^2. Exact,
    not sampled; O(n) for each size; runs under jit and vmap.

    Args:
        cells: [n], estimated.
        truth: [n], the true cells; not private here.
        sizes: how many cells a range holds, each from 1 to n.
    """
    cells, truth = as_array("cells", cells), as_array("truth", truth)
    if cells.ndim != 1 or cells.shape != truth.shape:
        raise ValueError(f"cells and truth must be vectors of one length, got {list(cells.shape)} and {list(truth.shape)}.")
    _check_sizes(cells.shape[0], sizes)
    error = cells - truth
    xp = namespace(error)
    # Sums of differences, so that a large count common to both costs no digits.
    totals = xp.concatenate([xp.zeros((1,), error.dtype), xp.cumsum(error)])
    return xp.stack([xp.square(totals[size:] - totals[: totals.shape[0] - size]).mean() for size in sizes])


def ranges_of_size(n: int, size: int, *, most: int | None = None) -> Ranges:
    """The ranges of ``size`` neighbouring cells of n, from left to right; with ``most``, only that many, evenly spaced."""
    n = _checks.integer("n", n, least=1)
    _check_sizes(n, [size])
    count = n - size + 1
    starts = np.arange(count)
    if most is not None and _checks.integer("most", most, least=1) < count:
        starts = np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))
    return Ranges(n, starts, starts + size)


def coverage(lower: Any, upper: Any, truth: Any) -> Array:
    """The share of true answers inside their intervals, ends included; over all entries."""
    return ((jnp.asarray(lower) <= jnp.asarray(truth)) & (jnp.asarray(truth) <= jnp.asarray(upper))).mean()


def _check_sizes(n: int, sizes: Sequence[int]) -> None:
    for size in sizes:
        if not 1 <= size <= n:
            raise ValueError(f"sizes must be from 1 to the number of cells {n}, got {size}.")
