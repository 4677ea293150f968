"""The three ways to say how many groups have each size.

- A histogram H: entry i is the number of groups of size i, for i = 0 to the largest size.
- Cumulative, H_c: entry i is the number of groups of size at most i.
- By rank, H_g: the sizes themselves, one entry a group, the smallest first.

Sizes start at 0, groups without entities counted (Kuo et al. 2018, section 3, where the introduction's examples start at 1).
"""

from typing import Any

import numpy as np
from jaxtyping import Int64

from dpinfer import _checks


def to_cumulative(histogram: Any) -> Int64[np.ndarray, "*nodes sizes"]:
    """H_c of H: how many groups have at most each size; over the last axis."""
    return np.cumsum(_integers("histogram", histogram), axis=-1)


def from_cumulative(cumulative: Any) -> Int64[np.ndarray, "*nodes sizes"]:
    """H of H_c."""
    return np.diff(_integers("cumulative", cumulative), axis=-1, prepend=0)


def to_sizes(histogram: Any) -> Int64[np.ndarray, " groups"]:
    """H_g of H: the size of every group, in order."""
    counts = _checks.index_array("histogram", histogram)
    if counts.size and counts.min() < 0:
        raise ValueError(f"histogram must not be negative, got {counts.min()}.")
    return np.repeat(np.arange(counts.size), counts)


def from_sizes(sizes: Any, *, max_size: int | None = None) -> Int64[np.ndarray, " sizes"]:
    """H of the sizes of groups, in any order; larger ones count as ``max_size``, left out: as the largest there is."""
    ranks = _checks.index_array("sizes", sizes)
    if ranks.size and ranks.min() < 0:
        raise ValueError(f"sizes must not be negative, got {ranks.min()}.")
    most = int(ranks.max(initial=0)) if max_size is None else _checks.integer("max_size", max_size, least=0)
    return np.bincount(np.minimum(ranks, most), minlength=most + 1)


def _integers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or not array.ndim:
        raise ValueError(f"{name} must be a vector of integers, or rows of them, got dtype {array.dtype}, shape {array.shape}.")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit 64-bit signed integers, got {array.max()}.")
    return array.astype(np.int64)
