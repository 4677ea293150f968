"""How much of a budget each query of each level gets, for the tables that are wanted: by the gradient of their variances.

The variances of all least squares estimates depend on the tree, the queries and the variances of the noise alone, so that no data
is looked at. With the information G = sum_q S_q'S_q / v_q of a level, upwards

    leaves  V = G^-1;     T = sum of the children's V,    J = T^-1,    V = (G + J)^-1,

and downwards, from P = V at the top, with W = J - J P J of the parent,

    P_c = V_c - V_c W V_c.

V depends on the shape of the tree below a node only: nodes with equal trees below them are one *type*. P depends on what is above
too, but linearly, and nodes of one type have equally many children of each type: so the mean of P over the nodes of each type
follows from the means above. That is all that a mean over the areas of a level needs.

Under rho, where 1 / v is proportional to the share that a query gets, all this is convex. For M = sum s_q A_q'A_q the variance of
one answer is c'M^-1 c = 1 / min {x'Mx : c'x = 1}, one over a concave function of s, whose logarithm is convex; and so are the
logarithms of means of such variances. There is one minimum, and the slope at any shares bounds how far they are above it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.allocation.level_budgets import within
from dpinfer.spine.classes import Classes
from dpinfer.spine.schema import Query, Schema

# Entries of a gram below this part of its largest are rounding.
_ROUNDING = 1e-9
# Shares near 0 stay there for long: so much of the budget is spread evenly before the first step.
_SPREAD = 0.5


class _Edges(NamedTuple):
    """Between types of two levels: a node of type ``parent`` has ``number`` children of type ``child``; sorted by parent."""

    parent: np.ndarray
    child: np.ndarray
    number: np.ndarray


@final
class TreeShape:
    """A geography's tree, compressed to types: the nodes of a level whose trees below are equal.

    Of equal shapes one is as good as another: they compare and hash by value, as a static argument of jit may.

    Args:
        parents: for each level below the top, top to bottom, [nodes of the level]: the place in the level above of each node's
            parent. Every node above the lowest level has a child. The top may hold several nodes, which share nothing.

    Attributes:
        num_nodes: of each level.
        num_types: of each level; 1 at the lowest.
        type_sizes: [types] for each level: how many nodes are of each type.
        edges: for each level but the lowest, which types its types have as children, and how many of each.

    Cost: O(nodes), once: 1.4 s for 5,900,000 blocks in 240,000 block groups, 84,000 tracts and 3,200 counties, made up as many as
    the United States have, which are of 1, 160, 38,000 and 3,200 types.

    Raises:
        ValueError: if a parent is missing or childless.
    """

    def __init__(self, parents: Sequence[Any]):
        arrays = [_checks.index_array(f"parents[{place}]", values) for place, values in enumerate(parents)]
        top = int(arrays[0].max()) + 1 if arrays and arrays[0].size else 1
        self.num_nodes = (top, *(array.size for array in arrays))
        for place, array in enumerate(arrays):
            if not np.array_equal(np.unique(array), np.arange(self.num_nodes[place])):
                raise ValueError(
                    f"parents[{place}] must name every node of the level above, 0 to {self.num_nodes[place] - 1}, as a parent, "
                    "and no other; give an area without parts one part at each level down to the lowest."
                )
        types, edges = np.zeros(self.num_nodes[-1], dtype=np.int64), []
        sizes = [np.bincount(types)]
        for array, size in zip(reversed(arrays), self.num_nodes[-2::-1], strict=True):
            types, between = _types_above(array, types, size)
            edges.append(between)
            sizes.append(np.bincount(types))
        self.edges: tuple[_Edges, ...] = tuple(reversed(edges))
        self.type_sizes = tuple(reversed(sizes))
        self.num_types = tuple(map(len, self.type_sizes))
        self._key = tuple(array.tobytes() for array in (*self.type_sizes, *(part for some in self.edges for part in some)))
        self._hash = hash(self._key)

    @property
    def num_levels(self) -> int:
        return len(self.num_nodes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeShape) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        levels = ", ".join(f"{nodes:,} ({types:,})" for nodes, types in zip(self.num_nodes, self.num_types, strict=True))
        return f"TreeShape(nodes and types by level: {levels})"


def _types_above(parent: np.ndarray, types: np.ndarray, size: int) -> tuple[np.ndarray, _Edges]:
    """The types of the nodes of a level from those of their children, and the edges between."""
    base = int(types.max()) + 1
    pairs, counts = np.unique(parent * base + types, return_counts=True)
    rows = np.stack([pairs % base, counts], axis=1)
    starts = np.searchsorted(pairs // base, np.arange(size + 1))
    known: dict[bytes, int] = {}
    own, firsts = np.empty(size, dtype=np.int64), []
    for node, (start, end) in enumerate(pairwise(starts.tolist())):
        own[node] = known.setdefault(rows[start:end].tobytes(), len(known))
        if own[node] == len(firsts):
            firsts.append(rows[start:end])
    kinds = np.concatenate(firsts)
    return own, _Edges(np.repeat(np.arange(len(firsts)), list(map(len, firsts))), kinds[:, 0], kinds[:, 1])


def query_precisions(shares: Any, *, rho: Any, neighbors: str = "add_remove") -> Any:
    """1 / variance of each query's Gaussian noise, from its share of the budget: 1 / v = 2 rho share / S^2.

    S^2, the most that the answers to one query can change, squared and added up, is 1 if neighbours differ by one record that is
    added or removed, and 2 if one is replaced; each record counts in one area of a level, and at most once in a query.

    Args:
        shares: an array of any shape; of all levels and queries together at most 1.
        rho: the budget.
    """
    return shares * _precision_of_all(rho, neighbors)


def _precision_of_all(rho: Any, neighbors: str) -> float:
    return float(_checks.budget("rho", rho)) * (2 if _checks.relation(neighbors) == "add_remove" else 1)


def table_variances(
    shape: TreeShape, schema: Schema, queries: Sequence[Query], precisions: Any, tables: Sequence[tuple[int, Query]]
) -> list[jax.Array]:
    """The variance of each answer of each table by least squares from all levels, averaged over the areas of its level.

    Args:
        shape: the tree.
        schema: what is counted in every area.
        queries: what is measured.
        precisions: [levels, queries], 1 / variance of the noise; 0: not measured. The lowest level's must determine all cells.
        tables: a level (0: the top) and a query each, measured or not.

    Returns:
        One array [answers] a table. Differentiable in the precisions, in both modes and where they are 0; under jit, with all
        else static.

    Cost: a gradient, in time and memory, O(edges between types x numbers in a covariance). The covariances of one node are split
    as far as the queries let them be: for the redistricting data, 2016 x 2016, into 9 numbers and one matrix of 3 x 3.

    Reference: Cumings-Menon 2024, arXiv 2404.13164, for the two passes over trees whose nodes hold many cells.

    Raises:
        ValueError: if the lowest level's queries do not determine its cells, or without 64-bit floats.
    """
    problem = _posed(shape, schema, queries, tables)
    coefficients = [problem.coefficients(query) for _, query in tables]
    return _variances(problem, _checked(problem, precisions), coefficients)


def mean_table_variances(
    shape: TreeShape, schema: Schema, queries: Sequence[Query], precisions: Any, tables: Sequence[tuple[int, Query]]
) -> jax.Array:
    """[tables], the means over the answers of what :func:`table_variances` gives, at less cost where answers are many."""
    problem = _posed(shape, schema, queries, tables)
    return _means(problem, _checked(problem, precisions))


class _Part(NamedTuple):
    """Blocks of one size, of which all class matrices are made: a block's numbers times its basis, added up.

    Attributes:
        grams: [queries, blocks, size, size], the information of each query.
        basis: [blocks, size, size, classes, dense, dense].
    """

    grams: np.ndarray
    basis: np.ndarray


class _Problem(NamedTuple):
    shape: TreeShape
    classes: Classes
    parts: list[_Part]
    tables: Sequence[tuple[int, Query]]

    def coefficients(self, query: Query) -> list[np.ndarray]:
        """For each part [blocks, size, size, answers]: what a block's covariances add to the variance of each answer."""
        return [
            self.classes.variances(query, part.basis.reshape(-1, *part.basis.shape[3:])).reshape(*part.basis.shape[:3], -1)
            for part in self.parts
        ]


def _posed(shape: TreeShape, schema: Schema, queries: Sequence[Query], tables: Sequence[tuple[int, Query]]) -> _Problem:
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("Variances of tables need 64-bit numbers: type dpinfer.enable_x64() first.")
    for name, some in (("queries", list(queries)), ("tables", [query for _, query in tables])):
        if not some:
            raise ValueError(f"{name} must hold at least one.")
        for query in some:
            if tuple(map(len, query.groups)) != schema.shape:
                raise ValueError(f"{name}: {query.name!r} is not over the attributes of {schema!r}; take it from schema.query.")
    for level, query in tables:
        if not 0 <= level < shape.num_levels:
            raise ValueError(
                f"tables: {query.name!r} is wanted at level {level}; levels are 0, the top, to {shape.num_levels - 1}."
            )
    classes = Classes(schema, queries)
    return _Problem(shape, classes, _split(np.stack([classes.gram(query) for query in queries])), tables)


def _split(grams: np.ndarray) -> list[_Part]:
    """Class grams [queries, classes, dense, dense] taken apart, into the blocks that they have in common, by size.

    Eigenvectors of a sum with random weights turn all grams at once into blocks, the smallest ones unless some are alike. Equal
    blocks of size 1, in whatever class, become one.
    """
    from scipy.sparse.csgraph import connected_components  # which takes longer to import than the rest

    num_queries, num_classes, num_dense, _ = grams.shape
    largest = np.abs(grams).max(axis=(1, 2, 3))
    mixed = np.tensordot(np.random.default_rng(0).uniform(1, 2, num_queries) / largest, grams, 1)
    found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for number in range(num_classes):
        turn = np.linalg.eigh(mixed[number])[1]
        turned = turn.T @ grams[:, number] @ turn / largest[:, None, None]
        count, label = connected_components((np.abs(turned) > _ROUNDING).any(axis=0), directed=False)
        for one in range(count):
            columns = np.flatnonzero(label == one)
            size = columns.size
            gram = turned[np.ix_(range(num_queries), columns, columns)]
            basis = np.zeros((size, size, num_classes, num_dense, num_dense))
            basis[:, :, number] = np.einsum("ai,bj->ijab", turn[:, columns], turn[:, columns])
            known = found.setdefault(size, [])
            for other, total in known:
                if size == 1 and np.allclose(other, gram, rtol=0, atol=_ROUNDING):
                    total += basis
                    break
            else:
                known.append((gram, basis))
    return [
        _Part(
            np.stack([gram for gram, _ in known], axis=1) * largest[:, None, None, None], np.stack([basis for _, basis in known])
        )
        for _, known in sorted(found.items())
    ]


def _checked(problem: _Problem, precisions: Any) -> jax.Array:
    """The precisions as an array; their values are looked at where there are any."""
    array = jnp.asarray(precisions, dtype=float)
    num_levels, num_queries = problem.shape.num_levels, problem.parts[0].grams.shape[0]
    if array.shape != (num_levels, num_queries):
        raise ValueError(
            f"precisions must have shape [{num_levels}, {num_queries}], one for each level, top to bottom, and each query, "
            f"got {list(array.shape)}."
        )
    if _checks.is_concrete(array):
        _check_values("precisions", np.asarray(array), problem)
    return array


def _check_values(name: str, values: np.ndarray, problem: _Problem) -> None:
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"{name} must be finite and not negative, got {values.min()} to {values.max()}. Give 0 to what is left out."
        )
    for part in problem.parts:
        gram = part.grams[values[-1] > 0].sum(axis=0)
        least, most = np.linalg.eigvalsh(gram)[:, 0].min(initial=np.inf), np.abs(part.grams).max()
        if least <= _ROUNDING * most:
            raise ValueError(
                f"{name} must determine every cell at the lowest level, and what it measures does not; measure 'detailed' there."
            )


def _means(problem: _Problem, precisions: jax.Array) -> jax.Array:
    """Mean variances, [tables]."""
    averaged = [[array.mean(axis=-1, keepdims=True) for array in problem.coefficients(query)] for _, query in problem.tables]
    return jnp.concatenate(_variances(problem, precisions, averaged))


def _variances(problem: _Problem, precisions: jax.Array, coefficients: list[list[np.ndarray]]) -> list[jax.Array]:
    """For each table the coefficients times the mean covariances of its level."""
    lowest = max(level for level, _ in problem.tables)
    parts = [_mean_covariances(problem.shape, part.grams, precisions, lowest) for part in problem.parts]
    return [
        sum(
            (jnp.einsum("kij,kijr->r", part[level], jnp.asarray(array)) for part, array in zip(parts, arrays, strict=True)),
            start=jnp.zeros(arrays[0].shape[-1]),
        )
        for (level, _), arrays in zip(problem.tables, coefficients, strict=True)
    ]


def _mean_covariances(shape: TreeShape, grams: np.ndarray, precisions: jax.Array, lowest: int) -> list[jax.Array]:
    """P averaged over the nodes of each level down to some level, [blocks, size, size] each."""
    own = jnp.einsum("lq,qkij->lkij", precisions, jnp.asarray(grams))
    # Upwards: V of each type, and T and J = T^-1 of what the children of one say; [types, blocks, size, size].
    V = _inverse(own[-1])[None]
    upwards, sums = [V], []
    for level in reversed(range(shape.num_levels - 1)):
        edges = shape.edges[level]
        added = jnp.asarray(edges.number, dtype=float)[:, None, None, None] * V[edges.child]
        T = jax.ops.segment_sum(added, jnp.asarray(edges.parent), shape.num_types[level], indices_are_sorted=True)
        J = _inverse(T)
        V = _inverse(jnp.expand_dims(own[level], 0) + J)
        upwards.append(V)
        sums.append((T, J))
    upwards.reverse()
    sums.reverse()
    # Downwards: the mean of P over the nodes of each type.
    P = upwards[0]
    means = [_mean_of_types(shape, 0, P)]
    for level in range(lowest):
        T, J = sums[level]
        W = J @ (T - P) @ J
        edges, sizes = shape.edges[level], shape.type_sizes
        part = jnp.asarray(sizes[level][edges.parent] * edges.number / sizes[level + 1][edges.child])[:, None, None, None]
        W = jax.ops.segment_sum(part * W[edges.parent], jnp.asarray(edges.child), shape.num_types[level + 1])
        V = upwards[level + 1]
        P = V - V @ W @ V
        means.append(_mean_of_types(shape, level + 1, P))
    return means


def _mean_of_types(shape: TreeShape, level: int, P: jax.Array) -> jax.Array:
    part = jnp.asarray(shape.type_sizes[level] / shape.num_nodes[level])
    return jnp.einsum("t,tkij->kij", part, P)


@jax.custom_jvp
def _inverse(matrices: jax.Array) -> jax.Array:
    """Of positive definite matrices, with the derivative -V dM V, without which programs take twice as long to compile."""
    if matrices.shape[-1] == 1:
        return 1 / matrices
    root = jnp.linalg.cholesky(matrices)
    eye = jnp.broadcast_to(jnp.eye(matrices.shape[-1]), matrices.shape)
    half = jax.lax.linalg.triangular_solve(root, eye, left_side=True, lower=True)
    return half.mT @ half


@_inverse.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (matrices,), (change,) = primals, tangents
    inverse = _inverse(matrices)
    return inverse, -inverse @ change @ inverse


# ---- shares that are learned ----


@final
@dataclass(frozen=True)
class LearnedShares:
    """Shares of a budget, and what they do to the tables for which they were learned.

    Attributes:
        shares: [levels, queries]; as decimals they add up to no more than 1.
        variances, first_variances: [tables], means over answers and areas, with these shares and with those given.
        objective, first_objective: the weighted mean of the logarithms of these.
        gap: no shares that keep as much of those given have an objective lower by more than this.
        num_steps: of the descent.
        converged: whether the gap is within the tolerance.
    """

    shares: np.ndarray
    variances: np.ndarray
    first_variances: np.ndarray
    objective: float
    first_objective: float
    gap: float
    num_steps: int
    converged: bool


def optimize_shares(
    shape: TreeShape,
    schema: Schema,
    queries: Sequence[Query],
    tables: Sequence[tuple[int, Query]],
    start: Any,
    *,
    rho: Any,
    neighbors: str = "add_remove",
    weights: Any = None,
    kept: Any = 0.5,
    tolerance: Any = 1e-3,
    max_steps: int = 500,
) -> LearnedShares:
    """Shares of rho with which the tables' variances are least, as a weighted geometric mean: min sum_t w_t log variance_t(s).

    The privacy loss stays what it is; accuracy moves from other tables to these. How far is bounded by ``kept``: every query
    keeps that part of its budget, so that no variance, of whatever table, grows to more than 1 / kept times what it was.

    Args:
        shape, schema, queries, tables: as for :func:`table_variances`.
        start: [levels, queries], the shares to improve on; scaled to add up to 1.
        rho, neighbors: as for :func:`query_precisions`. They set the size of the variances; the shares do not depend on them.
        weights: [tables], how much each counts; scaled to add up to 1. Left out, equal.
        kept: above 0 and below 1: so much of every share given is kept.
        tolerance: of the objective, a difference of logarithms: 1e-3 is 0.1% of the variances.
        max_steps: of L-BFGS, in square roots of what is not kept.

    Returns:
        A LearnedShares, never worse than the start.

    Cost: a step takes about three times as long as the variances; on two cores 5 ms for a state of 300,000 blocks and
    55 ms for 5,900,000, the United States; compiling takes some 6 s.

    Reference: the objective is convex in the shares, with M = sum s_q A_q'A_q as the information of an experiment's design
    (Pukelsheim 1993, "Optimal design of experiments"), and sum_i p_i f_i' - min_i f_i' over shares p the gap of Frank and Wolfe
    (Jaggi 2013, "Revisiting Frank-Wolfe").

    Raises:
        ValueError: if the start does not determine all cells at the lowest level, or without 64-bit floats.
    """
    problem, unit = _posed(shape, schema, queries, tables), _precision_of_all(rho, neighbors)
    first = np.asarray(start, dtype=float)
    if first.shape != (shape.num_levels, len(queries)):
        raise ValueError(
            f"start must have shape [{shape.num_levels}, {len(queries)}], levels and queries, got {list(first.shape)}."
        )
    _check_values("start", first, problem)
    if not 0 < (kept := float(_checks.budget("kept", kept))) < 1:
        raise ValueError(f"kept must be below 1, got {kept!r}: nothing is left to move.")
    tolerance = float(_checks.budget("tolerance", tolerance))
    max_steps = _checks.integer("max_steps", max_steps, least=1)
    parts = np.ones(len(tables)) if weights is None else np.asarray(weights, dtype=float)
    if parts.shape != (len(tables),) or not (np.isfinite(parts) & (parts >= 0)).all() or not parts.any():
        raise ValueError(f"weights must be {len(tables)} numbers that are not negative, one a table, not all 0, got {weights!r}.")
    first, parts = first / first.sum(), jnp.asarray(parts / parts.sum())
    variances = jax.jit(lambda shares: _means(problem, shares * unit))

    def objective(shares: jax.Array) -> jax.Array:
        return parts @ jnp.log(_means(problem, shares * unit))

    before = np.asarray(variances(first))
    first_objective = float(parts @ np.log(before))
    found, bound, steps = _descend(objective, first, kept, tolerance, max_steps)
    shares = within(Fraction(1), found.ravel()).reshape(first.shape)
    after = np.asarray(variances(shares))
    value = float(parts @ np.log(after))
    if not value < first_objective:
        shares, after, value = first, before, first_objective
    gap = max(value - bound, 0.0)
    return LearnedShares(shares, after, before, value, first_objective, gap, steps, gap <= tolerance)


def _descend(
    objective: Callable[[jax.Array], jax.Array], first: np.ndarray, kept: float, tolerance: float, max_steps: int
) -> tuple[np.ndarray, float, int]:
    """The best shares that L-BFGS passes, a lower bound of the objective, and the steps taken.

    It ends when the two are near enough, or where the objective is not finite.
    """
    import optax  # which whoever does not optimise need not wait for

    fixed = jnp.asarray(first)

    def moved(roots: jax.Array) -> jax.Array:
        return roots**2 / (roots**2).sum()

    def shares_of(roots: jax.Array) -> jax.Array:
        return kept * fixed + (1 - kept) * moved(roots)

    def loss(roots: jax.Array) -> jax.Array:
        return objective(shares_of(roots))

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def goes_on(carry: tuple[Any, ...]) -> jax.Array:
        *_, lowest, bound, count, is_finite = carry
        return (count < max_steps) & is_finite & ~(lowest - bound <= tolerance)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        roots, state, best, lowest, bound, count, _ = carry
        value, slope = value_and_grad(roots, state=state)
        # By a root r_i the slope is 2 r_i / sum r^2 times f_i' - sum p f', which is all of the tangent plane that a bound needs.
        steepest = (slope / roots).min() * (roots**2).sum() / 2
        is_finite = jnp.isfinite(value) & jnp.isfinite(steepest)
        best = jnp.where(value < lowest, roots, best)
        lowest, bound = jnp.fmin(lowest, value), jnp.fmax(bound, value + steepest)
        update, state = solver.update(slope, state, roots, value=value, grad=slope, value_fn=loss)
        return optax.apply_updates(roots, update), state, best, lowest, bound, count + 1, is_finite

    roots = jnp.sqrt((1 - _SPREAD) * fixed + _SPREAD / fixed.size)
    infinite = jnp.asarray(jnp.inf)
    carry = (roots, solver.init(roots), roots, infinite, -infinite, jnp.zeros((), jnp.int32), jnp.asarray(True))
    _, _, best, _, bound, count, _ = jax.jit(lambda carry: jax.lax.while_loop(goes_on, step, carry))(carry)
    return np.asarray(shares_of(best)), float(bound), int(count)
