"""What is measured inside bins: their sums alone, their cells too, or all nodes of a tree over each."""

from fractions import Fraction

import numpy as np

from dpinfer.queries import Partition, Queries, Tree

INSIDES = ("flat", "two_level", "tree")


def most_levels(n: int, inside: str) -> int:
    """Into how many levels a bin's budget is split at most, whatever the bins of n cells."""
    return {"flat": 1, "two_level": 2, "tree": 1 + (n - 1).bit_length()}[inside]


def bin_nodes(stops: np.ndarray, inside: str) -> tuple[Queries, list[Fraction]]:
    """Queries whose rows are the nodes inside bins, and a weight for each row; the weights over a cell add up to 1.

    So a budget is split evenly between the levels of each bin: one for a bin of one cell, else two for "two_level", and
    1 + ceil(log2(cells)) for "tree", whose nodes begin at the left and are cut at the bin's end. Row 0 of the trees is the sum of
    all cells, which is not measured: weight 0. Rows then follow bin by bin, each from its sum down.
    """
    sizes = np.diff(stops, prepend=0)
    if inside == "flat":
        return Partition(np.repeat(np.arange(stops.size), sizes)), [Fraction(1)] * stops.size
    parents, weights, leaves, count = [np.array([-1])], [Fraction(0)], [], 1
    for size in sizes.tolist():
        if inside == "two_level":
            widths = [1, size] if size > 1 else [1]
        else:
            widths = [-(-size // 2**level) for level in reversed(range((size - 1).bit_length() + 1))]
        above = np.zeros(1, dtype=np.int64)
        for width in widths:
            reach = width if inside == "two_level" else 2
            parents.append(above[np.arange(width) // reach])
            above = count + np.arange(width)
            count += width
        weights += [Fraction(1, len(widths))] * sum(widths)
        leaves.append(above)
    nodes = np.concatenate(parents)
    is_leaf = np.bincount(nodes[1:], minlength=nodes.size) == 0
    place = np.cumsum(is_leaf) - 1
    cells = np.empty(int(is_leaf.sum()), dtype=np.int64)
    cells[place[np.concatenate(leaves)]] = np.arange(cells.size)
    return Tree.from_parents(nodes, cells), weights
