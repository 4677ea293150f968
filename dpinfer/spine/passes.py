"""Weighted least squares over a tree whose nodes hold many cells: one pass up, one down, over the classes of ``classes``.

A node g has the information G_g = sum_q S_q'S_q / v_q and b_g = sum_q S_q'y_q / v_q of its own measurements. Upwards it learns
from its children c, whose counts add up to its own, by T = sum V_c and s = sum z_c,

    J = T^-1,  j = J s;   V = (G + J)^-1,  z = V (b + j),

and an only child passes on G + J and b + j themselves, so that units without measurements of their own need no inverse of a
singular matrix. Downwards, with u = J x - j and W = J - J P J of the parent,

    x_c = z_c + V_c u,   P_c = V_c - V_c W V_c.

Inverses are taken within supports. Generalised least squares over such trees: Cumings-Menon (2024, arXiv 2404.13164).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpinfer.spine.classes import Classes
from dpinfer.spine.supports import Constraint, Supports


@dataclass(frozen=True)
class Level:
    """What the nodes of a level say by themselves, nodes with one parent side by side.

    Attributes:
        parent: [n], places in the level above; all zero at the top.
        gram: [patterns, classes, dense, dense], G by patterns of variances.
        measured: [patterns, queries], which queries a pattern measures.
        pattern: [n].
        vector: [n, dense, columns], b.
        constraints: what nodes may be held to.
        constraint: [n], places in ``constraints``.
        exact: [n, dense, columns], the sum of S'y of exact queries; None where there are none.
        count: [n], for how many nodes alike, whose vectors are added up, an entry stands; None for one each.
        names: [n], for messages.
    """

    parent: np.ndarray
    gram: np.ndarray
    measured: np.ndarray
    pattern: np.ndarray
    vector: np.ndarray
    constraints: list[Constraint]
    constraint: np.ndarray
    exact: np.ndarray | None
    count: np.ndarray | None
    names: Any

    @property
    def size(self) -> int:
        return len(self.parent)


class Below(NamedTuple):
    """What children say of the nodes of a level.

    Attributes:
        matrix, vector: J and j, [n, classes, dense, dense] and [n, dense, columns].
        support: [n], numbers of what the children's sums may be.
        measured: [n, queries], what only children pass on; all where there are more.
        families: [n], numbers of children.
        offset: [n, dense, columns], where the children's exact values put the sum; None where there are none.
    """

    matrix: np.ndarray
    vector: np.ndarray
    support: np.ndarray
    measured: np.ndarray
    families: np.ndarray
    offset: np.ndarray | None


def join(parts: Sequence[Below]) -> Below:
    """What is said of several runs of nodes as one."""
    offset = None
    if any(part.offset is not None for part in parts):
        offset = np.concatenate([np.zeros(part.vector.shape) if part.offset is None else part.offset for part in parts])
    return Below(
        np.concatenate([part.matrix for part in parts]),
        np.concatenate([part.vector for part in parts]),
        np.concatenate([part.support for part in parts]),
        np.concatenate([part.measured for part in parts]),
        np.concatenate([part.families for part in parts]),
        offset,
    )


class Belief(NamedTuple):
    """What the nodes of a level and all below know of them.

    Attributes:
        variance: [kinds, classes, dense, dense], V by kinds of nodes; not to be read where ``is_determined`` is not.
        kind: [n].
        mean: [n, dense, columns], z.
        support: [n].
        is_determined: [n].
    """

    variance: np.ndarray
    kind: np.ndarray
    mean: np.ndarray
    support: np.ndarray
    is_determined: np.ndarray


class Passed(NamedTuple):
    """What nodes pass on upwards besides: G + J by kinds, b + j, measured queries, offsets."""

    matrix: np.ndarray
    vector: np.ndarray
    measured: np.ndarray
    offset: np.ndarray | None


def nothing_below(classes: Classes, size: int, num_queries: int) -> Below:
    """Of leaves."""
    square = (size, classes.num_classes, classes.num_dense, classes.num_dense)
    return Below(
        np.broadcast_to(0.0, square),
        np.broadcast_to(0.0, (size, classes.num_dense, classes.num_columns)),
        np.zeros(size, dtype=np.int64),
        np.zeros((size, num_queries), dtype=bool),
        np.zeros(size, dtype=np.int64),
        None,
    )


def absorb(level: Level, below: Below, supports: Supports) -> tuple[Belief, Passed]:
    """Own measurements and the children's say together."""
    classes = supports.classes
    support = _by_pairs(below.support, level.constraint, lambda a, c: supports.meet(a, level.constraints[c]))
    measured = level.measured[level.pattern] | below.measured
    sets, place = np.unique(np.packbits(measured, axis=1), axis=0, return_inverse=True)
    shown = [measured[i] for i in _first(place, len(sets))]
    is_determined = _by_pairs(support, place, lambda s, m: supports.is_determined(s, shown[m])).astype(bool)
    if below.families.any():
        kind = np.arange(level.size)
        matrix = level.gram[level.pattern] + below.matrix
        kinds_support, kinds_determined = support, is_determined
    else:
        # Leaves with the same variances and support are of one kind.
        pairs, kind = np.unique(np.stack([level.pattern, support]), axis=1, return_inverse=True)
        matrix = level.gram[pairs[0]]
        kinds_support, kinds_determined = pairs[1], is_determined[_first(kind, pairs.shape[1])]
    variance = np.zeros(matrix.shape)
    at = np.flatnonzero(kinds_determined)
    variance[at] = restricted_inverse(matrix[at], kinds_support[at], supports)
    vector = level.vector + below.vector
    offset = _offset(level, below, supports)
    mean = vector if offset is None else vector - classes.apply(matrix[kind], offset)
    mean = by_kind(classes, variance, kind, mean)
    mean = mean if offset is None else mean + offset
    return Belief(variance, kind, mean, support, is_determined), Passed(matrix, vector, measured, offset)


def gather(level: Level, belief: Belief, passed: Passed, num_parents: int, supports: Supports) -> Below:
    """What the nodes of a level say of their parents.

    Raises:
        ValueError: if a node that has siblings is not determined by its own measurements and those below it.
    """
    classes = supports.classes
    count = np.ones(level.size, dtype=np.int64) if level.count is None else level.count
    families = np.bincount(level.parent, count, minlength=num_parents).astype(np.int64)
    is_only = families[level.parent] == 1
    lost = np.flatnonzero(~belief.is_determined & ~is_only)
    if lost.size:
        raise ValueError(
            f"{level.names[lost[0]]} has siblings, and neither its own measurements nor those below it determine all of its "
            f"cells ({lost.size} such nodes): measure its cells in full, or hold at zero what is not measured."
        )
    square = (num_parents, classes.num_classes, classes.num_dense, classes.num_dense)
    below = Below(
        np.zeros(square),
        np.zeros((num_parents, classes.num_dense, classes.num_columns)),
        np.zeros(num_parents, dtype=np.int64),
        np.repeat(families[:, None] > 1, passed.measured.shape[1], axis=1),
        families,
        None if passed.offset is None else add_up(passed.offset, level.parent, num_parents),
    )
    for parent, numbers in _sets(level.parent, belief.support):
        below.support[parent] = supports.span(numbers)
    some = np.flatnonzero(families > 1)
    if some.size:
        at = np.flatnonzero(~is_only)
        place = np.searchsorted(some, level.parent[at])
        # Of kinds: how often each comes under a parent, so that equal leaves are not added up one by one.
        total = _add_kinds(belief.variance, belief.kind[at], count[at], place, len(some))
        sums = add_up(belief.mean[at], place, len(some))
        below.matrix[some] = restricted_inverse(total, below.support[some], supports)
        below.vector[some] = classes.apply(below.matrix[some], sums)
    only = np.flatnonzero(is_only)
    below.matrix[level.parent[only]] = passed.matrix[belief.kind[only]]
    below.vector[level.parent[only]] = passed.vector[only]
    below.measured[level.parent[only]] = passed.measured[only]
    return below


class Estimate(NamedTuple):
    """x and P of the nodes of a level: [n, dense, columns] and [n, classes, dense, dense]."""

    mean: np.ndarray
    covariance: np.ndarray


def at_the_top(level: Level, belief: Belief) -> Estimate:
    """Of nodes without parents.

    Raises:
        ValueError: if everything that is measured does not determine a node.
    """
    lost = np.flatnonzero(~belief.is_determined)
    if lost.size:
        raise ValueError(
            f"{level.names[lost[0]]} is not determined by all the measurements of it and below it: measure its cells in full at "
            "some level."
        )
    return Estimate(belief.mean, belief.variance[belief.kind])


def descend(classes: Classes, parent: np.ndarray, belief: Belief, below: Below, above: Estimate) -> Estimate:
    """Estimates of some children of nodes whose estimates are known.

    Args:
        classes: the coordinates.
        parent: [n], places in the level above.
        belief: of the children.
        below: what all children together say of the parents.
        above: the parents' estimates.
    """
    push, spread = multipliers(classes, below, above)
    mean = belief.mean + by_kind(classes, belief.variance, belief.kind, push[parent])
    is_only = below.families[parent] == 1
    mean[is_only] = above.mean[parent[is_only]]
    return Estimate(mean, covariance_below(parent, belief, below, above, spread))


def covariance_below(parent: np.ndarray, belief: Belief, below: Below, above: Estimate, spread: np.ndarray) -> np.ndarray:
    """P of some children, V - V W V, or that of the parent; ``spread`` is W of the parents."""
    own = belief.variance[belief.kind]
    covariance = own - own @ spread[parent] @ own
    is_only = below.families[parent] == 1
    covariance[is_only] = above.covariance[parent[is_only]]
    return (covariance + np.swapaxes(covariance, -1, -2)) / 2


def multipliers(classes: Classes, below: Below, above: Estimate, covariances: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """The multipliers of "children add up to the parent", u = J x - j, and W = J - J P J."""
    push = classes.apply(below.matrix, above.mean) - below.vector
    if not covariances:
        return push, below.matrix
    return push, below.matrix - below.matrix @ above.covariance @ below.matrix


def restricted_inverse(matrices: np.ndarray, support: np.ndarray, supports: Supports) -> np.ndarray:
    """Inverses of symmetric [n, classes, dense, dense] within their supports, zero outside.

    Raises:
        ValueError: if one is singular in 64 bit, for variances too far apart.
    """
    try:
        return _restricted_inverse(matrices, support, supports)
    except np.linalg.LinAlgError:
        raise ValueError("variances must not be further apart than a factor of some 1e8: the equations are singular.") from None


def _restricted_inverse(matrices: np.ndarray, support: np.ndarray, supports: Supports) -> np.ndarray:
    if supports.are_whole(support):
        found = np.linalg.inv(matrices)
        return (found + np.swapaxes(found, -1, -2)) / 2
    onto = supports.projectors(support)
    # Outside of the support anything of the matrix's own size.
    size = np.trace(matrices, axis1=-2, axis2=-1)[..., None, None] / matrices.shape[-1]
    size = np.where(size > 0, size, 1.0)
    found = onto @ np.linalg.inv(onto @ matrices @ onto + size * (np.eye(matrices.shape[-1]) - onto)) @ onto
    return (found + np.swapaxes(found, -1, -2)) / 2


def by_kind(classes: Classes, matrices: np.ndarray, kind: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Each row of x [n, dense, columns] times the matrix of its kind; few kinds take one product each."""
    if len(matrices) == len(x) or len(matrices) * 8 > len(x):
        return classes.apply(matrices[kind].astype(x.dtype, copy=False), x)
    out = np.empty_like(x)
    order = np.argsort(kind, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
        out[rows] = classes.apply(matrices[kind[rows[0]]][None].astype(x.dtype, copy=False), x[rows])
    return out


def add_up(x: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Sums of rows in 64 bit by group, [num_groups, ...]."""
    dtype = np.result_type(x.dtype, np.int64 if x.dtype.kind in "iu" else np.float64)
    out = np.zeros((num_groups, *x.shape[1:]), dtype)
    if len(x):
        order = np.argsort(group, kind="stable") if (np.diff(group) < 0).any() else slice(None)
        groups = group[order]
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        out[groups[starts]] = np.add.reduceat(x[order], starts, axis=0, dtype=dtype)
    return out


def _add_kinds(matrices: np.ndarray, kind: np.ndarray, count: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    pairs, place = np.unique(group * len(matrices) + kind, return_inverse=True)
    times = np.bincount(place, count)
    return add_up(matrices[pairs % len(matrices)] * times[:, None, None, None], pairs // len(matrices), num_groups)


def _offset(level: Level, below: Below, supports: Supports) -> np.ndarray | None:
    """A point that meets the exact values of a node and of all below; None where there are none.

    Raises:
        ValueError: if the exact values contradict each other.
    """
    classes = supports.classes
    if level.exact is None and below.offset is None:
        return None
    nothing = np.broadcast_to(0.0, level.vector.shape)
    start = nothing if below.offset is None else below.offset
    exact = nothing if level.exact is None else level.exact
    found = start.copy()
    for place, constraint in enumerate(level.constraints):
        if constraint == supports.free:
            continue
        held = supports.held(constraint)[None]
        at_constraint = np.flatnonzero(level.constraint == place)
        for number in np.unique(below.support[at_constraint]):
            at = at_constraint[below.support[at_constraint] == number]
            missed = exact[at] - classes.apply(held, start[at])
            found[at] += classes.apply(supports.solver(int(number), constraint)[None], missed)
            left = np.abs(exact[at] - classes.apply(held, found[at])).max(axis=(1, 2))
            bad = np.flatnonzero(left > 1e-7 * (1 + np.abs(exact[at]).max(axis=(1, 2))))
            if bad.size:
                raise ValueError(
                    f"The exact values of {level.names[at[bad[0]]]} contradict those below it, or cells that are zero, or each "
                    "other: check them, or give a variance to one of the two."
                )
    return found


def _first(place: np.ndarray, size: int) -> np.ndarray:
    """For each number below ``size`` where it comes first."""
    first = np.zeros(size, dtype=np.int64)
    first[place[::-1]] = np.arange(len(place))[::-1]
    return first


def _by_pairs(left: np.ndarray, right: np.ndarray, function: Callable[[int, int], Any]) -> np.ndarray:
    """A function of two numbers, called once for each pair that comes."""
    if not len(left):
        return np.zeros(0, dtype=np.int64)
    width = int(right.max()) + 1
    pairs, place = np.unique(left.astype(np.int64) * width + right, return_inverse=True)
    return np.array([function(int(pair // width), int(pair % width)) for pair in pairs], dtype=np.int64)[place]


def _sets(group: np.ndarray, number: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The different numbers of each group that has any."""
    pairs = np.unique(np.stack([group, number]), axis=1)
    starts = np.flatnonzero(np.diff(pairs[0], prepend=-1))
    return list(zip(pairs[0][starts].tolist(), np.split(pairs[1], starts[1:]), strict=True)) if pairs.shape[1] else []
