"""Variances of tables of a geography before any data, averaged over the areas of a level, with their gradients.

The variances of all least squares estimates depend on the tree, the queries and the variances of the noise alone. With the
information G = sum_q S_q'S_q / v_q of a level, upwards

    leaves  V = G^-1;     T = sum of the children's V,    J = T^-1,    V = (G + J)^-1,

and downwards, from P = V at the top, with W = J - J P J of the parent,

    P_c = V_c - V_c W V_c.

V depends on the shape of the tree below a node only: nodes with equal trees below them are one *type*. P depends on what is above
too, but linearly, and nodes of one type have equally many children of each type: so the mean of P over the nodes of each type
follows from the means above. That is all that a mean over the areas of a level needs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.spine.classes import Classes
from dpinfer.spine.schema import Query, Schema
from dpinfer.spine.tree_shape import TreeShape

# Entries of a gram below this part of its largest are rounding.
_ROUNDING = 1e-9


def query_precisions(shares: Any, *, rho: Any, neighbors: str = "add_remove") -> Any:
    """1 / variance of each query's Gaussian noise, from its share of the budget: 1 / v = 2 rho share / S^2.

    S^2, the most that the answers to one query can change, squared and added up, is 1 if neighbours differ by one record that is
    added or removed, and 2 if one is replaced; each record counts in one area of a level, and at most once in a query.

    Args:
        shares: an array of any shape; of all levels and queries together at most 1.
        rho: the budget.
    """
    return shares * precision_of_all(rho, neighbors)


def precision_of_all(rho: Any, neighbors: str) -> float:
    """1 / variance of a query that gets all of the budget."""
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
    problem = posed(shape, schema, queries, tables)
    coefficients = [problem.coefficients(query) for _, query in tables]
    return _variances(problem, _checked(problem, precisions), coefficients)


def mean_table_variances(
    shape: TreeShape, schema: Schema, queries: Sequence[Query], precisions: Any, tables: Sequence[tuple[int, Query]]
) -> jax.Array:
    """[tables], the means over the answers of what :func:`table_variances` gives, at less cost where answers are many."""
    problem = posed(shape, schema, queries, tables)
    return means(problem, _checked(problem, precisions))


class Part(NamedTuple):
    """Blocks of one size, of which all class matrices are made: a block's numbers times its basis, added up.

    Attributes:
        grams: [queries, blocks, size, size], the information of each query.
        basis: [blocks, size, size, classes, dense, dense].
    """

    grams: np.ndarray
    basis: np.ndarray


class Problem(NamedTuple):
    """A tree, its coordinates, their blocks, and the tables that are wanted."""

    shape: TreeShape
    classes: Classes
    parts: list[Part]
    tables: Sequence[tuple[int, Query]]

    def coefficients(self, query: Query) -> list[np.ndarray]:
        """For each part [blocks, size, size, answers]: what a block's covariances add to the variance of each answer."""
        return [
            self.classes.variances(query, part.basis.reshape(-1, *part.basis.shape[3:])).reshape(*part.basis.shape[:3], -1)
            for part in self.parts
        ]


def posed(shape: TreeShape, schema: Schema, queries: Sequence[Query], tables: Sequence[tuple[int, Query]]) -> Problem:
    """The problem of some queries and tables, after a look at them."""
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
    return Problem(shape, classes, _split(np.stack([classes.gram(query) for query in queries])), tables)


def _split(grams: np.ndarray) -> list[Part]:
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
            gram = turned[np.ix_(np.arange(num_queries), columns, columns)]
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
        Part(
            np.stack([gram for gram, _ in known], axis=1) * largest[:, None, None, None], np.stack([basis for _, basis in known])
        )
        for _, known in sorted(found.items())
    ]


def _checked(problem: Problem, precisions: Any) -> jax.Array:
    """The precisions as an array; their values are looked at where there are any."""
    array = jnp.asarray(precisions, dtype=float)
    num_levels, num_queries = problem.shape.num_levels, problem.parts[0].grams.shape[0]
    if array.shape != (num_levels, num_queries):
        raise ValueError(
            f"precisions must have shape [{num_levels}, {num_queries}], one for each level, top to bottom, and each query, "
            f"got {list(array.shape)}."
        )
    if _checks.is_concrete(array):
        check_values("precisions", np.asarray(array), problem)
    return array


def check_values(name: str, values: np.ndarray, problem: Problem) -> None:
    """Refuse precisions or shares that are negative or leave cells undetermined."""
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


def means(problem: Problem, precisions: jax.Array) -> jax.Array:
    """Mean variances, [tables]."""
    averaged = [[array.mean(axis=-1, keepdims=True) for array in problem.coefficients(query)] for _, query in problem.tables]
    return jnp.concatenate(_variances(problem, precisions, averaged))


def _variances(problem: Problem, precisions: jax.Array, coefficients: list[list[np.ndarray]]) -> list[jax.Array]:
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
    found = [_mean_of_types(shape, 0, P)]
    for level in range(lowest):
        T, J = sums[level]
        W = J @ (T - P) @ J
        edges, sizes = shape.edges[level], shape.type_sizes
        part = jnp.asarray(sizes[level][edges.parent] * edges.number / sizes[level + 1][edges.child])[:, None, None, None]
        W = jax.ops.segment_sum(part * W[edges.parent], jnp.asarray(edges.child), shape.num_types[level + 1])
        V = upwards[level + 1]
        P = V - V @ W @ V
        found.append(_mean_of_types(shape, level + 1, P))
    return found


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
