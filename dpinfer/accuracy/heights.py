"""The levels of a tree over [0, n) that is cut at n: its blocks, and sums over all ranges of what they share with a block.

Levels are counted from the leaves here: at height l blocks hold b^l cells, but for the last, which is cut. The sums run over all
n(n+1)/2 ranges; they are integers and computed as such. In several dimensions blocks and ranges are products, and sums over all
boxes are products of these.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpinfer import _checks


class Segment(NamedTuple):
    """Some neighbouring cells."""

    start: int
    length: int


class Height(NamedTuple):
    """The blocks at one height, along one axis.

    Attributes:
        size: cells of a full block.
        num_full: full blocks.
        rest: cells of the block that is cut; 0 if none is.
        rest_full: full blocks of the next lower height in it.
        rest_is_cut: whether it also has a cut one.
        shared: sum over the full blocks and all ranges of (cells of the range in the block)^2.
        shared_below: the same for the blocks of the next lower height that lie in full blocks.
        shared_rest: and for the full ones that lie in the block that is cut.
        segments: the cut block as its full blocks of the next lower height, and the segments of the cut one there.
        shared_segments: [segments, segments], sums over all ranges of the product of the cells in two of them, over the number of
            ranges.
        inside: sum over the full blocks of the number of ranges that hold them.
        rest_inside: how many ranges hold the block that is cut.
    """

    size: int
    num_full: int
    rest: int
    rest_full: int
    rest_is_cut: bool
    shared: int
    shared_below: int
    shared_rest: int
    segments: tuple[Segment, ...]
    shared_segments: np.ndarray
    inside: int
    rest_inside: int

    def inside_counted(self, lower: "Height") -> int:
        """Sum over the blocks of the number of ranges that hold them times the number of blocks of a lower height in them."""
        return self.inside * (self.size // lower.size) + self.rest_inside * -(-self.rest // lower.size)


class Axes(NamedTuple):
    """The axes of a grid that have one number of cells.

    Attributes:
        n: their cells.
        num_axes: how many.
        heights: of the tree, from the leaves to its root, along each of them.
    """

    n: int
    num_axes: int
    heights: tuple[Height, ...]


def sides_of(n: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """The cells along each axis, from one number for ``dims`` axes or from a list of them."""
    dims = _checks.integer("dims", dims, least=1)
    if not isinstance(n, Sequence):
        return (_checks.integer("n", n, least=1),) * dims
    sides = _checks.grid("n", n)
    if dims not in (1, len(sides)):
        raise ValueError(f"dims must be left out where n lists the cells along each axis, got {dims} and {len(sides)} axes.")
    return sides


def axes_of(sides: Sequence[int], branching: int) -> tuple[Axes, ...]:
    """The axes by their number of cells, with their heights; the longest decides how high the tree is."""
    top = num_levels(max(sides), branching)
    return tuple(Axes(n, sides.count(n), heights(n, branching, top)) for n in sorted(set(sides)))


def num_levels(n: int, branching: int) -> int:
    """Levels below the root: the least h of at least 1 with branching^h >= n, in integers."""
    h, size = 1, branching
    while size < n:
        h, size = h + 1, size * branching
    return h


@lru_cache(maxsize=4096)
def heights(n: int, branching: int, top: int | None = None) -> tuple[Height, ...]:
    """The heights from the leaves, 0, to the root, which is at ``top`` (by default where one block holds all cells)."""
    n, branching = _checks.integer("n", n, least=1), _checks.integer("branching", branching, least=2)
    found: list[Height] = []
    for height in range((num_levels(n, branching) if top is None else top) + 1):
        size, below = branching**height, branching ** (height - 1) if height else 1
        num_full, rest = divmod(n, size)
        start = num_full * size
        rest_full, left = divmod(rest, below)
        segments: tuple[Segment, ...] = ()
        if rest:
            segments = (Segment(start, rest_full * below),) if rest_full else ()
            segments += found[-1].segments if left else ()
        found.append(
            Height(
                size,
                num_full,
                rest,
                rest_full,
                left > 0,
                _shared(n, 0, size, num_full),
                _shared(n, 0, below, num_full * branching if height else 0),
                _shared(n, start, below, rest_full),
                segments,
                _shared_segments(n, segments),
                _inside(n, size, num_full),
                start + 1 if rest else 0,
            )
        )
    return tuple(found)


def num_ranges(n: int) -> int:
    """All contiguous ranges of at least one cell."""
    return n * (n + 1) // 2


def _shared(n: int, start: int, size: int, count: int) -> int:
    """Sum over ``count`` blocks from ``start`` on and all ranges of (cells of the range in the block)^2.

    That is the sum over pairs of cells i, j of the block of the ranges with both, min(i, j) (n + 1 - max(i, j)) if cells count
    from 1.
    """
    sum_start = count * start + size * (count * (count - 1) // 2)
    sum_squares = count * start**2 + start * size * count * (count - 1) + size**2 * ((count - 1) * count * (2 * count - 1) // 6)
    sum_min = size * (size + 1) * (2 * size + 1) // 6
    sum_max = size * (size + 1) * (4 * size - 1) // 6
    sum_after = count * (n + 1) - sum_start
    crossed = (n + 1) * sum_start - sum_squares
    return size**2 * crossed + sum_min * sum_after - sum_max * sum_start - count * (size * (size + 1) // 2) ** 2


def _shared_segments(n: int, segments: tuple[Segment, ...]) -> np.ndarray:
    found = np.zeros((len(segments), len(segments)))
    for j, (start, length) in enumerate(segments):
        found[j, j] = _shared(n, start, length, 1) / num_ranges(n)
        before = length * start + length * (length + 1) // 2  # the sum of the cells' numbers, from 1
        for k, (later, size) in enumerate(segments[j + 1 :], j + 1):
            after = size * (n - later) - size * (size - 1) // 2
            found[j, k] = found[k, j] = before * after / num_ranges(n)
    found.flags.writeable = False
    return found


def _inside(n: int, size: int, count: int) -> int:
    """Sum over the first ``count`` blocks of the number of ranges that hold them."""
    # The block from p on lies in (p + 1) (n + 1 - p - size) ranges.
    first = count * (count - 1) // 2 * size
    squares = size**2 * ((count - 1) * count * (2 * count - 1) // 6)
    return count * (n + 1 - size) + first * (n + 1 - size) - first - squares
