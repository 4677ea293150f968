"""Least squares over a tree in memory whose nodes hold a vector of counts each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from dpinfer.spine import functionals
from dpinfer.spine.areas import AreaAnswers, Areas
from dpinfer.spine.certificate import Certificate, Walk
from dpinfer.spine.classes import Classes, split_by
from dpinfer.spine.functionals import Terms
from dpinfer.spine.levels import build_level
from dpinfer.spine.passes import Belief, Below, Estimate, Level, absorb, at_the_top, descend, gather, nothing_below
from dpinfer.spine.schema import Query, Schema
from dpinfer.spine.supports import Supports


@final
@dataclass(frozen=True)
class Measured:
    """Noisy answers to one query by some nodes.

    Attributes:
        query: a query, or its name in the schema.
        values: [nodes, answers], or [nodes, groups of each attribute].
        variances: of each answer, one for all nodes or [nodes]; 0: exact, infinite: not measured.
        nodes: which nodes; all of the tree by default.
    """

    query: Query | str
    values: Any
    variances: Any
    nodes: Any = None


@final
@dataclass(frozen=True)
class Zeros:
    """Answers known to be zero: by nonnegativity so are all cells that they count.

    Attributes:
        query: a query, or its name in the schema.
        is_zero: [nodes, answers], True where the answer is zero; by default every answer is.
        nodes: which nodes; all of the tree by default.
    """

    query: Query | str
    is_zero: Any = True
    nodes: Any = None


class Stage(NamedTuple):
    """A level on the way up: what it measured, what it heard from below, and what it believes."""

    level: Level
    below: Below
    belief: Belief


def tree_least_squares(
    schema: Schema,
    parents: Any,
    measured: Sequence[Measured],
    *,
    zeros: Sequence[Zeros] = (),
    push_down_zeros: bool = True,
) -> "TreeEstimate":
    """The best linear unbiased estimates of all cells of all nodes of a tree, with their exact covariances.

        min  sum over nodes g and queries q of |S_q x_g - y_gq|^2 / v_gq   where every node is the sum of its children

    Two passes over the tree (``passes``), in coordinates where covariances are a few small matrices (``classes``). Any fan-out,
    only children, nodes that are not measured, leaves at any depth, several roots. Linear: estimates may be negative.

    Args:
        schema: the attributes of every node.
        parents: [n], the node above each, -1 for roots; in any order.
        measured: what was measured, at whichever nodes. A query may come more than once.
        zeros: cells that are known to be zero.
        push_down_zeros: whether a cell that is zero at a node is so at all below it, which holds for counts and makes better
            estimates; without it zeros hold where they are stated, as in the Census Bureau's own least squares.

    Cost: O(n * queries * cells), and for each node a few inverses of the dense cells' size; memory O(n * cells).

    Raises:
        ValueError: if the measurements do not determine every cell of every node, or exact values contradict each other.

    Sources: generalised least squares over the Census Bureau's spine, Cumings-Menon 2024, arXiv 2404.13164; its symmetry, Ghazi
    et al. 2026, arXiv 2603.10099.
    """
    parents = np.asarray(parents)
    order = _levels(parents)
    if not measured:
        raise ValueError("measured must hold at least one Measured.")
    size = len(parents)
    queries = [schema.query(one.query) for one in measured]
    zero_queries = [schema.query(one.query) for one in zeros]
    masks = []
    split: dict[str, str] = {}
    for i, (one, query) in enumerate(zip(zeros, zero_queries, strict=True)):
        nodes = _nodes(f"zeros[{i}].nodes", one.nodes, size)
        masks.append((nodes, query, _truths(f"zeros[{i}].is_zero", one.is_zero, (len(nodes), query.size))))
        split = split_by(schema, query, masks[-1][2]) | split
    classes = Classes(schema, [*queries, *zero_queries], split)
    supports = Supports(classes, queries)
    rows = [_rows(f"measured[{i}]", one, query, size) for i, (one, query) in enumerate(zip(measured, queries, strict=True))]
    is_zero = np.zeros((size, classes.num_dense), dtype=bool)
    for nodes, query, given in masks:
        np.logical_or.at(is_zero, nodes, classes.zero_rows(query, given))
    if push_down_zeros:
        for nodes in order[1:]:
            is_zero[nodes] |= is_zero[parents[nodes]]
    return TreeEstimate(classes, supports, parents, order, rows, is_zero)


@final
class TreeEstimate:
    """Estimates of all nodes of a tree; see :func:`tree_least_squares`.

    Attributes:
        classes: the coordinates, and which attributes are clean or dense.
    """

    def __init__(
        self,
        classes: Classes,
        supports: Supports,
        parents: np.ndarray,
        order: list[np.ndarray],
        rows: list[Any],
        is_zero: np.ndarray,
    ):
        self.classes = classes
        self._supports = supports
        self._depth = np.zeros(len(parents), dtype=np.int64)
        self._place = np.zeros(len(parents), dtype=np.int64)
        self._order = order
        for depth, nodes in enumerate(order):
            self._depth[nodes] = depth
            self._place[nodes] = np.arange(len(nodes))
        levels = []
        for nodes in order:
            parent = np.where(parents[nodes] < 0, 0, self._place[parents[nodes]])
            levels.append(build_level(supports, parent, nodes, rows, is_zero[nodes]))
        self._stages = up(levels, supports)
        self._estimates = down(self._stages, classes)

    @property
    def num_nodes(self) -> int:
        return len(self._depth)

    def areas(self, nodes: Any = None) -> Areas:
        """Estimates and covariances of some nodes; all by default, in their order."""
        nodes = _nodes("nodes", nodes, self.num_nodes)
        shape = (self.classes.num_dense, self.classes.num_columns)
        mean = np.empty((len(nodes), *shape))
        covariance = np.empty((len(nodes), self.classes.num_classes, self.classes.num_dense, self.classes.num_dense))
        for depth, estimate in enumerate(self._estimates):
            at = np.flatnonzero(self._depth[nodes] == depth)
            mean[at] = estimate.mean[self._place[nodes[at]]]
            covariance[at] = estimate.covariance[self._place[nodes[at]]]
        return Areas(nodes, self.classes, mean, covariance)

    def regions(self, regions: Mapping[str, Mapping[int, float] | Sequence[int]]) -> Areas:
        """Sums of nodes, such as places that are no node: for each name nodes, or nodes and what each is multiplied by.

        All in one sweep up the tree; nodes may lie anywhere, within each other too, and weights may be negative, so that
        differences of areas have their variances.
        """
        form = functionals.by_node(self.classes)
        weighted = functionals.with_weights(regions)
        sums, nodes = _flat(weighted, self.num_nodes)
        weights = np.array([weight for one in weighted for weight in one.values()], dtype=float)
        factors = functionals.of_whole_nodes(self.classes, weights)
        covariance = self._sweep(form, sums, nodes, factors, len(regions))
        mean = np.zeros((len(regions), self.classes.num_dense, self.classes.num_columns))
        for depth, estimate in enumerate(self._estimates):
            at = np.flatnonzero(self._depth[nodes] == depth)
            weighted = weights[at][:, None, None] * estimate.mean[self._place[nodes[at]]]
            mean += functionals.add_up(weighted, sums[at], len(regions))
        return Areas(np.array(list(regions), dtype=object), self.classes, mean, covariance)

    def functional(self, coefficients: Sequence[Mapping[int, Any]]) -> AreaAnswers:
        """Any linear functionals: for each the nodes and the coefficient of every cell there, in C order of the schema.

        Returns:
            values and stddev [functionals, 1].
        """
        sums, nodes = _flat(coefficients, self.num_nodes)
        given = [vector for one in coefficients for vector in one.values()]
        factors = self.classes.rotate(functionals.as_vectors(given, self.classes.schema.size))
        variance = self._sweep(functionals.by_cell(self.classes), sums, nodes, factors, len(coefficients))
        values = np.zeros(len(coefficients))
        for depth, estimate in enumerate(self._estimates):
            at = np.flatnonzero(self._depth[nodes] == depth)
            own = np.einsum("tij,tij->t", factors[at], estimate.mean[self._place[nodes[at]]])
            values += functionals.add_up(own, sums[at], len(coefficients))
        return AreaAnswers(values[:, None], np.sqrt(np.maximum(variance, 0.0))[:, None])

    def _sweep(
        self, form: functionals.Form, sums: np.ndarray, nodes: np.ndarray, factors: np.ndarray, num_sums: int
    ) -> np.ndarray:
        risen = Terms(sums[:0], nodes[:0], factors[:0])
        variance = 0.0
        for depth in reversed(range(len(self._stages))):
            at = np.flatnonzero(self._depth[nodes] == depth)
            risen = functionals.merge(risen, Terms(sums[at], self._place[nodes[at]], factors[at]))
            if depth:
                stage, above = self._stages[depth], self._stages[depth - 1]
                risen, own = functionals.rise(form, risen, stage.level.parent, stage.belief, above.below, num_sums)
                variance = variance + own
        return variance + functionals.at_the_top(form, risen, self._estimates[0].covariance, num_sums)

    def certificate(self, counts: Any = None) -> Certificate:
        """How far estimates are from the optimum, by the normal equations; see ``certificate``.

        Args:
            counts: [nodes, cells], estimates found elsewhere; its own by default.
        """
        walk, path = Walk(self._supports), None
        estimates = self._estimates
        if counts is not None:
            given = np.asarray(counts, dtype=float)
            if given.shape != (self.num_nodes, self.classes.schema.size):
                raise ValueError(f"counts must be [{self.num_nodes}, {self.classes.schema.size}], got shape {given.shape}.")
            rotated = [self.classes.rotate(given[nodes]) for nodes in self._order]
            estimates = [own._replace(mean=mean) for own, mean in zip(self._estimates, rotated, strict=True)]
        for depth, (stage, estimate) in enumerate(zip(self._stages, estimates, strict=True)):
            path = walk.step(stage.level, stage.below, estimate, path)
            if depth:
                above = self._stages[depth - 1].below.families > 0
                walk.sums(estimates[depth - 1].mean, estimate.mean, stage.level.parent, above)
        return walk.result()


def up(levels: Sequence[Level], supports: Supports, below: Below | None = None) -> list[Stage]:
    """The pass up: stages from top to bottom; ``below`` is what nodes under the last level say, nothing by default."""
    stages: list[Stage] = []
    for depth in reversed(range(len(levels))):
        level = levels[depth]
        heard = below if below is not None else nothing_below(supports.classes, level.size, len(supports.queries))
        belief, passed = absorb(level, heard, supports)
        stages.append(Stage(level, heard, belief))
        below = gather(level, belief, passed, levels[depth - 1].size, supports) if depth else None
    return stages[::-1]


def down(stages: Sequence[Stage], classes: Classes, top: Estimate | None = None) -> list[Estimate]:
    """The pass down: estimates from top to bottom; ``top`` those of the first level where it has nodes above it."""
    found = [top if top is not None else at_the_top(stages[0].level, stages[0].belief)]
    for above, stage in pairwise(stages):
        found.append(descend(classes, stage.level.parent, stage.belief, above.below, found[-1]))
    return found


def _levels(parents: np.ndarray) -> list[np.ndarray]:
    """The nodes of each depth, those of one parent side by side."""
    size = len(parents)
    if parents.ndim != 1 or not size or parents.dtype.kind not in "iu":
        raise ValueError(f"parents must list the node above each node as integers, got shape {parents.shape} of {parents.dtype}.")
    if (parents < -1).any() or (parents >= size).any():
        raise ValueError(f"parents must be nodes, 0 to {size - 1}, or -1 for roots.")
    order = [np.flatnonzero(parents < 0)]
    place = np.full(size, -1)
    seen = len(order[0])
    while seen < size:
        place[:] = -1
        place[order[-1]] = np.arange(len(order[-1]))
        inside = np.flatnonzero((parents >= 0) & (place[parents] >= 0))
        if not inside.size:
            raise ValueError("parents must lead every node to a root; some go round in a circle.")
        order.append(inside[np.argsort(place[parents[inside]], kind="stable")])
        seen += len(inside)
    return order


def _nodes(name: str, nodes: Any, size: int) -> np.ndarray:
    if nodes is None:
        return np.arange(size)
    found = np.asarray(nodes).reshape(-1)
    if found.size and (found.dtype.kind not in "iu" or (found < 0).any() or (found >= size).any()):
        raise ValueError(f"{name} must be nodes, 0 to {size - 1}, got {nodes!r}.")
    return found.astype(np.int64)


def _truths(name: str, given: Any, shape: tuple[int, int]) -> np.ndarray:
    try:
        return np.broadcast_to(np.asarray(given, dtype=bool), shape)
    except ValueError:
        raise ValueError(f"{name} must be truths of shape {shape}, got shape {np.shape(given)}.") from None


def _rows(name: str, one: Measured, query: Query, size: int) -> tuple[Query, np.ndarray, np.ndarray]:
    """A query with its values and variances for all nodes, those not measured having infinite variance."""
    nodes = _nodes(f"{name}.nodes", one.nodes, size)
    if len(np.unique(nodes)) != len(nodes):
        raise ValueError(f"{name}.nodes lists a node twice; give the second measurement as a Measured of its own.")
    values = np.asarray(one.values, dtype=float)
    if values.size != len(nodes) * query.size:
        raise ValueError(
            f"{name}.values must hold {query.size} answers to {query.name!r} for each of {len(nodes)} nodes, got shape "
            f"{values.shape}."
        )
    given = np.asarray(one.variances, dtype=float)
    if given.shape not in ((), (1,), (len(nodes),)):
        raise ValueError(f"{name}.variances must be one number or one for each of {len(nodes)} nodes, got shape {given.shape}.")
    given = np.broadcast_to(given, len(nodes))
    if not (given >= 0).all():
        raise ValueError(f"{name}.variances must not be negative or nan; 0 is exact, infinity not measured.")
    variances = np.full(size, np.inf)
    variances[nodes] = given
    everywhere = np.zeros((size, query.size))
    everywhere[nodes] = values.reshape(len(nodes), query.size)
    lost = nodes[~np.isfinite(everywhere[nodes]).all(axis=1) & np.isfinite(given)]
    if lost.size:
        raise ValueError(f"{name}.values must be finite, those of node {lost[0]} are not; give it an infinite variance.")
    everywhere[~np.isfinite(variances)] = 0.0
    return query, everywhere, variances


def _flat(given: Sequence[Mapping[int, Any]], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which sum each term belongs to, and its node."""
    sums = np.repeat(np.arange(len(given)), [len(one) for one in given]).astype(np.int64)
    return sums, _nodes("nodes", [node for one in given for node in one], size)
