"""Weighted least squares: the best linear unbiased estimate of the cells from noisy answers."""

from dataclasses import replace
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, row_blocks
from dpinfer.inference.tree import MAX_REGULAR_RATIO
from dpinfer.inference.tree_estimate import TreeEstimate, solve_complete, solve_deep, solve_shallow
from dpinfer.measurement import Measurement
from dpinfer.queries import Identity, Queries
from dpinfer.queries.base import Array
from dpinfer.queries.grid_tree import GridTree
from dpinfer.queries.parent_tree import ParentTree
from dpinfer.queries.tree import CompleteTree
from dpinfer.release import Release, as_measurement

# m n min(m, n) of the largest matrix that is factorised densely: some ten seconds and a gigabyte.
_MAX_DENSE_WORK = 2**34
_ROW_ENTRIES = 1 << 24
# Large trees of few levels are compiled level by level, which runs faster; all others in a loop over blocks of nodes, which
# compiles in a second whatever the depth.
_MAX_UNROLLED_LEVELS = 40
_MIN_UNROLLED_NODES = 2**16


def least_squares(measurement: Measurement | Release) -> LinearEstimate:
    """The weighted least squares estimate: among all linear unbiased ones that of least variance, for every answer.

    Minimises sum_i (A x - y)_i^2 / stddev_i^2 over real cells x. Trees (and the identity) take two passes, O(nodes), with every
    node's variance (``inference/tree.py``); other strategies are factorised as a dense matrix, O(m n min(m, n)), up to about
    2,000 cells. Runs eagerly or under jit, vmap and grad (in the values and in the scale).

    Args:
        measurement: a Release or a Measurement. An infinite scale leaves a row out; on a tree a zero scale is an exact count.

    Returns:
        A LinearEstimate: ``.cells``, ``.answer(workload)`` and ``.covariance(workload)``.

    Raises:
        ValueError: if the tree has two children of one node that no measurement tells apart, if exact counts contradict each
            other, if the matrix is too large to factorise, or if 32-bit floats would round the values. Inside jit, see
            ``is_determined`` of the result.
    """
    measurement = as_measurement(measurement)
    _checks.exact_in_float("values", measurement.values)
    values = jnp.asarray(measurement.values)
    values = values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(float)
    stddev = jnp.asarray(measurement.stddev).astype(values.dtype)
    match measurement.queries:
        case CompleteTree() as tree:
            estimate = _checked(solve_complete(tree, values, stddev, is_regular=_is_regular(stddev)), measurement)
        case ParentTree() as tree:
            estimate = _checked(_solve_parent_tree(tree, values, stddev), measurement)
        case GridTree() as tree:
            estimate = _checked(_solve_grid_tree(tree, values, stddev), measurement)
        case Identity(n):
            tree = CompleteTree(n, max(n, 2))
            estimate = _checked(solve_complete(tree, values, stddev, is_regular=_is_regular(stddev)), measurement)
        case queries:
            estimate = _solve_dense(queries, values, stddev)
    return replace(estimate, measurement=measurement)


def _is_regular(stddev: jax.Array) -> bool:
    """Whether it can be seen, outside jit, that ``level_gains`` may take the simpler and faster way."""
    if not _checks.is_concrete(stddev):
        return False
    least, most = np.asarray(stddev).min(), np.asarray(stddev).max()
    return bool(least > 0 and most <= MAX_REGULAR_RATIO * least and np.isfinite(most))


def _solve_parent_tree(tree: ParentTree, values: jax.Array, stddev: jax.Array) -> TreeEstimate:
    is_regular = _is_regular(stddev)
    stddev = jnp.broadcast_to(stddev, values.shape)
    if not tree.is_level_order:
        order = jnp.asarray(tree.order)
        values, stddev = values[order], stddev[order]
    if len(tree.level_sizes) <= _MAX_UNROLLED_LEVELS and tree.num_nodes >= _MIN_UNROLLED_NODES:
        return solve_shallow(tree, tree.links, values, stddev, is_regular=is_regular)
    return solve_deep(tree, tree.blocks, jnp.asarray(tree.num_children[tree.order]), values, stddev)


def _solve_grid_tree(tree: GridTree, values: jax.Array, stddev: jax.Array) -> TreeEstimate:
    if not tree.root:  # a root that was not measured
        values = jnp.concatenate([jnp.zeros((1,), values.dtype), values])
        stddev = jnp.concatenate([jnp.full((1,), jnp.inf, stddev.dtype), jnp.broadcast_to(stddev, values[1:].shape)])
    return _solve_parent_tree(tree.with_root, values, stddev)


def _checked(estimate: TreeEstimate, measurement: Measurement) -> TreeEstimate:
    """The estimate, if it is determined and its exact counts agree; inside jit nobody can look."""
    if not _checks.is_concrete(estimate.is_determined, measurement.scale):
        return estimate
    tree = estimate.tree
    if not np.all(np.asarray(estimate.is_determined)):
        bad = np.flatnonzero(np.isinf(np.asarray(estimate.node_variances)))
        nodes = bad if isinstance(tree, CompleteTree) else np.sort(tree.order[bad])
        raise ValueError(
            f"The measurement of {measurement.queries!r} does not determine {nodes.size} of its nodes, {nodes[:10].tolist()}"
            f"{'...' if nodes.size > 10 else ''} (counted from the root): siblings that were not measured cannot be told "
            "apart. Measure all but one of them, give their level a budget, or use a tree that ends above them."
        )
    if np.min(measurement.scale) == 0:
        scale = np.broadcast_to(measurement.scale, measurement.values.shape)
        nodes = np.asarray(estimate.node_values)
        nodes = nodes if isinstance(tree, CompleteTree) else nodes[tree.position]
        nodes = nodes[tree.num_nodes - measurement.queries.shape[0] :]  # without a root that is no row
        values = np.asarray(measurement.values, dtype=nodes.dtype)
        size = np.finfo(nodes.dtype).eps * 64 * max(1.0, float(np.abs(values).max()))
        bad = np.flatnonzero((scale == 0) & (np.abs(nodes - values) > size * np.sqrt(tree.num_nodes)))
        if bad.size:
            raise ValueError(
                f"The exact counts (scale 0) contradict each other: row {bad[0]} says {values[bad[0]]:g}, the others add up to "
                f"{nodes[bad[0]]:g} ({bad.size} such rows). Correct them, or give them a positive scale."
            )
    return estimate


@final
@pytree
class DenseEstimate(LinearEstimate):
    """The least squares estimate of a strategy that was factorised as a matrix.

    Attributes:
        solution: [n], the cells; what the measurement does not determine is filled in with the smallest that agree.
        inverse: [n, n], the pseudo-inverse of A' diag(1/stddev^2) A: the covariance of the cells that are determined.
        length: [n], the norms of the columns of diag(1/stddev) A.
        row_space: [n, n], the projection on the rows that are determined, in cells times ``length``.
    """

    solution: Array
    inverse: Array
    length: Array
    row_space: Array
    measurement: Measurement | None = None

    @property
    def cells(self) -> Array:
        return self.solution

    @property
    def _num_cells(self) -> int:
        return self.solution.shape[0]

    def _answer(self, workload: Queries) -> Answers:
        blocks = [self._stddev(rows) for rows in row_blocks(workload, max(1, _ROW_ENTRIES // self._num_cells))]
        return Answers(jnp.asarray(workload @ self.cells), jnp.concatenate([*blocks, jnp.zeros((0,), self.cells.dtype)]))

    def _stddev(self, rows: Array) -> jax.Array:
        rows = jnp.asarray(rows, self.cells.dtype)
        spread = rows @ self.inverse
        scaled = rows / self.length[None, :]
        rest = jnp.abs(scaled - scaled @ self.row_space).max(axis=1)
        is_determined = rest <= jnp.sqrt(jnp.finfo(rows.dtype).eps) * jnp.abs(scaled).max(axis=1)
        return jnp.where(is_determined, jnp.sqrt(jnp.maximum((spread * rows).sum(axis=1), 0.0)), jnp.inf)

    def _covariance(self, workload: Queries) -> Array:
        self.answer(workload)  # raises for what is not determined
        rows = jnp.asarray(workload.dense(), self.cells.dtype)
        return rows @ self.inverse @ rows.T


def _solve_dense(queries: Queries, values: jax.Array, stddev: jax.Array) -> DenseEstimate:
    m, n = queries.shape
    if m * n * min(m, n) > _MAX_DENSE_WORK:
        raise ValueError(
            f"{queries!r} is too large to be factorised as a dense matrix, and least squares knows no structure in it. "
            "Trees and the identity have no such limit."
        )
    if _checks.is_concrete(stddev) and np.any(np.asarray(stddev) == 0):
        raise ValueError("Exact counts (scale 0) are only supported on trees; give these rows a small positive scale.")
    return _factorise(queries.dense(), values, stddev)


@jax.jit
def _factorise(matrix: Array, values: jax.Array, stddev: jax.Array) -> DenseEstimate:
    measured = jnp.isfinite(stddev)
    weights = jnp.where(measured, 1.0 / jnp.where(measured, stddev, 1.0), 0.0)
    # Relative to the largest weight, whose square alone could overflow.
    top = jax.lax.stop_gradient(jnp.maximum(weights.max(), jnp.finfo(values.dtype).tiny))
    weights = weights / top
    weighted = jnp.asarray(matrix, values.dtype) * jnp.broadcast_to(weights, values.shape)[:, None]
    # Columns of equal length: the rank is judged whatever the cells' units.
    length = jnp.sqrt(jnp.square(weighted).sum(axis=0))
    length = jax.lax.stop_gradient(jnp.where(length > 0, length, 1.0))
    inverse, row_space = _pseudo_inverse_of_gram(weighted / length[None, :])
    inverse = inverse / (length[:, None] * length[None, :])
    solution = inverse @ (weighted.T @ (weights * values))
    return DenseEstimate(solution, inverse / top / top, length, row_space)


@jax.custom_jvp
def _pseudo_inverse_of_gram(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The pseudo-inverse of B'B and the projection on B's row space, [n, n] each; the derivative takes the rank as fixed."""
    _, sizes, basis = jnp.linalg.svd(matrix, full_matrices=False)
    rank = sizes > sizes[0] * max(matrix.shape) * jnp.finfo(matrix.dtype).eps
    scaled = basis * jnp.where(rank, 1.0 / jnp.where(rank, sizes, 1.0), 0.0)[:, None]
    kept = basis * rank[:, None]
    return scaled.T @ scaled, kept.T @ kept


@_pseudo_inverse_of_gram.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    (matrix,), (change,) = primals, tangents
    inverse, row_space = _pseudo_inverse_of_gram(matrix)
    half = inverse @ (matrix.T @ change) @ inverse
    return (inverse, row_space), (-(half + half.T), jnp.zeros_like(row_space))
