"""The levels of a tree, and the sizes of what is passed between them where values are not known beforehand."""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dpinfer.inference.tree_beliefs import MOST, SPAN, too_wide
from dpinfer.queries import Tree

# Standard deviations of a family's sum, as least squares has it, that a transform has room for beside the window.
_ROOM = 32.0
# Levels that are compiled one by one.
_MAX_LEVELS = 64


@dataclass(frozen=True)
class Level:
    """The nodes of one depth, siblings side by side.

    Attributes:
        nodes: their numbers in the tree.
        parents: the place of each one's parent in the level above.
        families: of the inner nodes their children's places in the level below, [families, members], its size where a family has
            fewer; in groups of families that are about as large.
        inner: the places of these nodes, group by group.
        leaves: the places of the others.
    """

    nodes: np.ndarray
    parents: np.ndarray
    families: tuple[np.ndarray, ...]
    inner: np.ndarray
    leaves: np.ndarray


def levels_of(tree: Tree) -> list[Level]:
    all_parents, depths = np.asarray(tree.parents), np.asarray(tree.depths)
    by_depth = np.split(np.argsort(depths, kind="stable"), np.cumsum(tree.level_sizes)[:-1])
    levels, place, parents = [], np.zeros(tree.num_nodes, dtype=np.int64), np.zeros(1, dtype=np.int64)
    nodes = by_depth[0]
    for below in (*by_depth[1:], np.zeros(0, dtype=np.int64)):
        place[nodes] = np.arange(nodes.size)
        of_below = place[all_parents[below]]
        below, of_below = below[np.argsort(of_below, kind="stable")], np.sort(of_below)
        counts = np.bincount(of_below, minlength=nodes.size)
        starts = np.cumsum(counts) - counts
        inner = np.flatnonzero(counts)
        sizes = counts[inner]
        # All families in one group, filled up, unless that is much more work than each at about its own size.
        is_even = inner.size * sizes.max(initial=0) <= 2 * below.size
        group = np.zeros(inner.size) if is_even else np.ceil(np.log2(sizes))
        chosen = [inner[group == own] for own in np.unique(group)]
        families = []
        for some in chosen:
            members = np.arange(counts[some].max())
            families.append(np.where(members < counts[some, None], starts[some, None] + members, below.size))
        joined = np.concatenate([np.zeros(0, dtype=np.int64), *chosen])
        levels.append(Level(nodes, parents, tuple(families), joined, np.flatnonzero(counts == 0)))
        nodes, parents = below, of_below
    return levels


def side_by_side(levels: list[Level], leaves: np.ndarray) -> np.ndarray:
    """The cells in an order in which those below a node, any node, are next to each other; leaves run level by level."""
    counts = [(np.isin(np.arange(level.nodes.size), level.leaves)).astype(np.int64) for level in levels]
    for depth in range(len(levels) - 1, 0, -1):
        counts[depth - 1] += np.bincount(levels[depth].parents, counts[depth], levels[depth - 1].nodes.size).astype(np.int64)
    starts = [np.zeros(1, dtype=np.int64)]
    for level, own in zip(levels[1:], counts[1:], strict=True):
        before = np.cumsum(own) - own
        first = np.searchsorted(level.parents, level.parents)
        starts.append(starts[-1][level.parents] + before - before[first])
    return np.argsort(np.concatenate(starts)[leaves], kind="stable")


class Windows(NamedTuple):
    """Sizes that are known beforehand, by level: steps that windows hold to either side, points of its families' transforms."""

    halves: tuple[int, ...]
    sizes: tuple[int, ...]


def windows_of(tree: Tree, scale: np.ndarray, step: float) -> Windows:
    """Sizes for values that do not contradict each other by much more than the noise says; ``scale`` runs as the nodes."""
    levels = _checked(tree)
    own = [2 * np.square(scale[level.nodes]) for level in levels]
    sums: list[np.ndarray] = [np.zeros(0)] * len(levels)
    # Variances of least squares; up with what is measured below, down with all.
    up = [own[-1]]
    for depth in range(len(levels) - 2, -1, -1):
        size = levels[depth].nodes.size
        sums[depth] = np.bincount(levels[depth + 1].parents, up[0], minlength=size)
        below = np.where(np.bincount(levels[depth + 1].parents, minlength=size) > 0, sums[depth], np.inf)
        up.insert(0, 1 / (1 / own[depth] + 1 / below))
    variance, halves = up[0], []
    for depth, level in enumerate(levels):
        if depth:
            total = sums[depth - 1][level.parents]
            share = up[depth] / total
            variance = up[depth] * (1 - share) + np.square(share) * variance[level.parents]
        halves.append(int(np.ceil(SPAN * np.sqrt(variance.max()) / step)) + 4)
    if 2 * max(halves) + 1 > MOST:
        raise too_wide(step)
    room = [float(_ROOM * np.sqrt(total.max()) / step) for total in sums[:-1]]
    return Windows(tuple(halves), _sizes(levels, halves, room))


def windows_with(tree: Tree, num_points: int) -> Windows:
    """Sizes for windows of so many points, taken to be as wide as they should be."""
    levels, half = _checked(tree), (num_points - 1) // 2
    room = [half * _ROOM / SPAN * np.sqrt(max(family.shape[1] for family in level.families)) for level in levels[:-1]]
    return Windows((half,) * len(levels), _sizes(levels, [half] * len(levels), room))


def _checked(tree: Tree) -> list[Level]:
    if len(tree.level_sizes) > _MAX_LEVELS:
        raise ValueError(
            f"measurement must be of a tree of at most {_MAX_LEVELS} levels under jit and vmap, got {len(tree.level_sizes)}; "
            "outside any number will do."
        )
    return levels_of(tree)


def _sizes(levels: list[Level], halves: list[int], room: list[float]) -> tuple[int, ...]:
    from scipy.fft import next_fast_len  # a dependency of jax

    found = []
    for level, (half, below), beside in zip(levels, pairwise(halves), room, strict=False):
        # As much as there can be at all, if that is less.
        most = half + below * max(family.shape[1] for family in level.families) + 2
        size = max(2 * max(half, below) + 1, min(most, 2 * max(half, below) + 2 + int(beside)))
        found.append(int(next_fast_len(size, real=True)))  # pyright: ignore[reportArgumentType]
    return tuple(found)
