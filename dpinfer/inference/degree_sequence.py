"""Degrees that a graph can have, near given ones.

Both sets of degree sequences are closed under lowering the largest: a sequence that is less spread out (majorized by one that a
graph has, of the same sum) is that of a graph, too. So what is too much is cut off at the top, where it does most.

Graphs. With degrees in falling order, E_k = d_1 + ... + d_k - k (k - 1) - sum over i > k of min(k, d_i) is what Erdos and Gallai
(1960) demand to be at most 0. One unit of change lowers the largest E_k by at most 1, and a unit less at the top lowers it by
1 (E is convex where degrees are equal, so that its maximum lies where they change, and not before the last of the largest). So
max_k E_k is the distance to the hull of all degree sequences, whose integer points of even sum are those of graphs (Koren 1973).
Every change moves the parity of the sum along, so that one more unit is taken where the sum comes out odd; a unit less at the top
of a sequence of odd sum breaks nothing.

Two sides. The distance is that to the degrees of the largest graph within the given ones, which has F = min over k of (the sum of
all but the k largest degrees of one side, plus the sum of min(b_j, k) over the other) edges (Gale 1957, Ryser 1957, Ford and
Fulkerson): in the linear program dual to the distance all numbers may be taken as 1 or -1, and then it is the dual of that.
"""

from typing import Any, overload

import numpy as np

from dpinfer import _checks


@overload
def graphical_degree_sequence(degrees: Any) -> np.ndarray: ...
@overload
def graphical_degree_sequence(degrees: Any, other_side: Any) -> tuple[np.ndarray, np.ndarray]: ...


def graphical_degree_sequence(degrees: Any, other_side: Any = None) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """The degrees of a simple graph that are nearest in absolute deviations; with ``other_side`` of a bipartite one.

    Post-processing: the result costs no privacy where the degrees are released ones, such as the cells of
    ``unattributed_histogram``. Among the nearest, which are many, it is the one with the largest degrees cut.

    Args:
        degrees: [nodes], whole numbers in any order, of any sign.
        other_side: [others], those of the other side, where edges run between two sides only.

    Returns:
        int64 [nodes], in the order given; with ``other_side`` both sides. O(n log n), on the host.

    Reference: Hay, Rastogi, Miklau and Suciu 2010 leave it for future work (section 7); Karwa and Slavkovic 2016 find a nearest
    one by building a graph, which is not needed here.

    Raises:
        ValueError: if a degree is not a whole number.
    """
    first = _whole("degrees", degrees)
    if other_side is None:
        return _graph(np.clip(first, 0, max(first.size - 1, 0)))
    second = _whole("other_side", other_side)
    first, second = np.clip(first, 0, second.size), np.clip(second, 0, first.size)
    edges = _largest_bipartite(first, second)
    return _cut(first, int(first.sum()) - edges), _cut(second, int(second.sum()) - edges)


def _whole(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a vector of whole numbers, got dtype {array.dtype} and shape {list(array.shape)}.")
    _checks.finite(name, array, hint="Degrees are finite.")
    if array.size and not (array == np.round(array)).all():
        place = int(np.flatnonzero(array != np.round(array))[0])
        raise ValueError(f"{name} must be whole numbers, got {array[place]} at position {place}: round them first.")
    # Far beyond any number of nodes, and safe to add up after clipping.
    return np.clip(array, -(2**31), 2**31).astype(np.int64)


def _graph(degrees: np.ndarray) -> np.ndarray:
    n = degrees.size
    falling = np.sort(degrees)[::-1]
    sums = np.concatenate([[0], np.cumsum(falling)])
    k = np.arange(n + 1)
    # Of the entries after the first k, those above k come first: from k to reach.
    reach = np.maximum(n - np.searchsorted(falling[::-1], k, side="right"), k)
    excess = sums - k * (k - 1) - (k * (reach - k) + sums[n] - sums[reach])
    amount = int(excess.max(initial=0))
    return _cut(degrees, amount + (int(degrees.sum()) - amount) % 2)


def _largest_bipartite(first: np.ndarray, second: np.ndarray) -> int:
    """The most edges of a graph whose degrees are no larger than these."""
    rest = np.concatenate([[0], np.cumsum(np.sort(first))])[::-1]  # without the k largest
    rising = np.sort(second)
    sums, k = np.concatenate([[0], np.cumsum(rising)]), np.arange(first.size + 1)
    below = np.searchsorted(rising, k, side="right")
    return int((rest + sums[below] + k * (second.size - below)).min())


def _cut(degrees: np.ndarray, amount: int) -> np.ndarray:
    """The degrees with ``amount`` taken off the largest, a unit at a time."""
    if not amount:
        return degrees
    order = np.argsort(-degrees, kind="stable")
    falling = degrees[order]
    # Taken off when the first k are lowered to the next.
    following = np.concatenate([falling[1:], [0]])
    taken = np.cumsum(falling) - np.arange(1, falling.size + 1) * following
    lowered = int(np.searchsorted(taken, amount)) + 1
    total = int(falling[:lowered].sum()) - amount
    level, ones = divmod(total, lowered)
    falling = falling.copy()
    falling[:lowered] = level
    falling[:ones] += 1
    found = np.empty_like(falling)
    found[order] = falling
    return found
