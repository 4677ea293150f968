"""Whole numbers near given ones that keep sums: controlled rounding on a tree."""

from typing import Any

import numpy as np
from jaxtyping import Int64

from dpinfer import _checks
from dpinfer.queries import Tree


def round_preserving_total(values: Any, tree: Any = None, *, total: Any = None) -> Int64[np.ndarray, " n"]:
    """Non-negative integers, the floor or the ceiling of each cell, that keep the total; and that of every node of a tree.

    From the root down each node's total, an integer by then, is handed to its children: their floors, and one more for as many
    as it takes, those of the largest fractions first (Hamilton's method; earlier cells first where fractions are equal). Every
    node's total thus is the floor or the ceiling of what it was, which is always possible on a tree: the integer is between the
    sum of its children's floors and that of their ceilings. Sums are formed in fixed-point arithmetic, so that no rounding
    error upsets this.

    Args:
        values: [n], finite and not negative; the cells of an estimate, say of ``nonnegative_least_squares``.
        tree: of n cells; without it, only the total is kept.
        total: the integer to add up to, from the floor to the ceiling of the sum; left out, the sum's nearest integer.

    Returns:
        int64 [n], on the host. O(nodes log nodes).

    Raises:
        ValueError: if a value is negative, or if the total cannot be reached.
    """
    cells = np.asarray(values, dtype=np.float64)
    if cells.ndim != 1 or cells.size == 0:
        raise ValueError(f"values must be a vector of at least one cell, got shape {list(cells.shape)}.")
    _checks.finite("values", cells)
    if cells.min() < 0:
        place = int(cells.argmin())
        raise ValueError(f"values must not be negative, got {cells[place]:g} at position {place}: use nonnegative_least_squares.")
    if cells.sum() >= 2.0**52:
        raise ValueError(f"values must add up to less than 2**52, got {cells.sum():g}.")
    if tree is not None and (not isinstance(tree, Tree) or tree.shape[1] != cells.size):
        raise ValueError(f"tree must be a Tree of {cells.size} cells, got {tree!r}.")
    # Multiples of 2^-bits, as fine as their sum fits 63 bits: at least 2^-9.
    bits = 61 - int(np.ceil(cells.sum()) + cells.size).bit_length()
    fixed = np.rint(np.ldexp(cells, bits)).astype(np.int64)
    whole, fraction = divmod(int(fixed.sum()), 1 << bits)
    least, most = whole, whole + (fraction > 0)
    if total is None:
        goal = whole + (2 * fraction >= 1 << bits)
    else:
        goal = _checks.integer("total", total, least=0)
        if not least <= goal <= most:
            raise ValueError(
                f"total must be {least}{f' or {most}' if most > least else ''}, since every cell is rounded to a neighbouring "
                f"integer; got {goal}. Scale the values to the total first."
            )
    if tree is None:
        return _share(fixed, np.zeros(cells.size, dtype=np.int64), np.array([goal]), bits)
    sums = np.zeros(tree.num_nodes, dtype=np.int64)
    sums[tree.leaves] = fixed
    parents = np.asarray(tree.parents)
    order = np.argsort(tree.depths, kind="stable")
    levels = np.split(order, np.cumsum(np.bincount(tree.depths))[:-1])
    for nodes in levels[:0:-1]:
        np.add.at(sums, parents[nodes], sums[nodes])
    rounded = np.zeros(tree.num_nodes, dtype=np.int64)
    rounded[levels[0]] = goal
    for nodes in levels[1:]:
        rounded[nodes] = _share(sums[nodes], parents[nodes], rounded, bits)
    return rounded[tree.leaves]


def _share(fixed: np.ndarray, groups: np.ndarray, goals: np.ndarray, bits: int) -> np.ndarray:
    """Floors, and one more for those of the largest fractions, so that each group adds up to its goal."""
    floors, fractions = fixed >> bits, fixed & ((1 << bits) - 1)
    left = goals.copy()
    np.subtract.at(left, groups, floors)
    ranked = np.lexsort((-fractions, groups))
    sizes = np.bincount(groups, minlength=goals.size)
    starts = np.cumsum(sizes) - sizes
    place = np.empty_like(ranked)
    place[ranked] = np.arange(ranked.size) - starts[groups[ranked]]
    return floors + (place < left[groups])
