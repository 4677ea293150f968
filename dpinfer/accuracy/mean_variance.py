"""The mean variance of a workload's answers by least squares, as a function of the precision of each measured row.

Three ways: for all ranges on a tree whose levels are each measured alike, its closed form; up to some thousand cells tr(K^-1 G),
K the strategy's weighted and G the workload's mean gram matrix, whatever the number of answers; else the answers' variances.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.accuracy.heights import axes_of
from dpinfer.accuracy.range_variance import average_consistent
from dpinfer.inference import least_squares
from dpinfer.measurement import Measurement
from dpinfer.noise import stddev as stddev_of
from dpinfer.queries import AllRange, Queries
from dpinfer.queries.base import Array
from dpinfer.queries.dense import as_queries
from dpinfer.queries.tree import CompleteTree

MAX_DENSE_CELLS = 4096
# Answers whose standard deviations are found one by one, where no matrix of the cells is formed.
MAX_ANSWERS = 1 << 16


class MeanVariance(NamedTuple):
    """The mean variance, ``function(arrays, weights)``, of weights [m], one over the standard deviation of each row."""

    function: Callable[[Any, jax.Array], jax.Array]
    arrays: Any

    def __call__(self, weights: jax.Array) -> jax.Array:
        """Nan where the workload is not determined."""
        return self.function(self.arrays, weights)


def mean_variance(workload: Queries, strategy: Queries, labels: np.ndarray) -> MeanVariance:
    """The function for a workload and a strategy, rows of equal label having equal weights.

    Raises:
        ValueError: if the strategy does not determine the workload even if all rows are measured, or the workload is too large.
    """
    n = strategy.shape[1]
    if isinstance(strategy, CompleteTree) and isinstance(workload, AllRange) and _is_level_by_level(strategy, labels):
        first_rows = np.cumsum((0, *strategy.measured_sizes[:-1]))
        return MeanVariance(_of_all_ranges, (strategy, jnp.asarray(first_rows)))
    if n <= MAX_DENSE_CELLS:
        matrix = np.asarray(strategy.dense(), dtype=float)
        gram = np.asarray(workload.gram(), dtype=float) / max(workload.shape[0], 1)
        basis = _row_space(matrix)
        if basis is None:
            return MeanVariance(_by_products, (strategy, jnp.asarray(matrix.T), jnp.asarray(gram)))
        inside = basis.T @ gram @ basis
        if np.trace(inside) < np.trace(gram) * (1 - 1e-9):
            raise ValueError(f"strategy must determine every answer of the workload, and {strategy!r} does not.")
        return MeanVariance(_by_matrix, (jnp.asarray(matrix @ basis), jnp.asarray(inside)))
    if workload.shape[0] > MAX_ANSWERS:
        raise ValueError(
            f"workload must have at most {MAX_ANSWERS} rows where the cells are more than {MAX_DENSE_CELLS}, got "
            f"{workload.shape[0]}: take a sample of them (all ranges may be asked of a tree whose levels are measured alike)."
        )
    return MeanVariance(_by_answers, (workload, strategy))


def _is_level_by_level(tree: CompleteTree, labels: np.ndarray) -> bool:
    return all(np.unique(level).size == 1 for level in tree.split(labels))


def _row_space(matrix: np.ndarray) -> np.ndarray | None:
    """An orthonormal basis of the rows, [n, rank]; None if that is everything."""
    gram = matrix.T @ matrix
    try:
        pivots = np.diag(np.linalg.cholesky(gram))
        if pivots.min() > 1e-6 * pivots.max():
            return None
    except np.linalg.LinAlgError:
        pass
    sizes, vectors = np.linalg.eigh(gram)
    kept = sizes > 1e-10 * sizes[-1]
    return None if kept.all() else vectors[:, kept]


def _of_all_ranges(arrays: Any, weights: jax.Array) -> jax.Array:
    tree, first_rows = arrays
    precise = list(jnp.square(weights[first_rows])[::-1])
    return average_consistent(axes_of((tree.n,), tree.branching), precise if tree.root else [*precise, precise[0] * 0.0])


def _trace(precision: jax.Array, gram: jax.Array) -> jax.Array:
    """The trace of K^-1 G; nan if K is singular to rounding. G is not differentiated."""

    @jax.custom_jvp
    def trace(precision: jax.Array) -> jax.Array:
        return solved(precision)[0]

    def solved(precision: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        lower = jnp.linalg.cholesky(precision)
        least = (jnp.square(jnp.diagonal(lower)) / jnp.diagonal(precision)).min()
        found = jax.scipy.linalg.cho_solve((lower, True), gram)
        return jnp.where(least > jnp.finfo(gram.dtype).eps ** 0.75, jnp.trace(found), jnp.nan), found, lower

    @trace.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        # -<K^-1 G K^-1, dK>: a third of the work of differentiating the factorisation.
        value, found, lower = solved(*primals)
        slope = jax.scipy.linalg.cho_solve((lower, True), found.T)
        return value, -(slope * tangents[0]).sum()

    return trace(precision)


def _by_matrix(arrays: Any, weights: jax.Array) -> jax.Array:
    matrix, gram = arrays
    return _trace(matrix.T @ (jnp.square(weights)[:, None] * matrix), gram)


def _by_products(arrays: Any, weights: jax.Array) -> jax.Array:
    strategy, columns, gram = arrays
    return _trace(jnp.asarray(strategy._backward(columns * jnp.square(weights)[None, :])), gram)


def _by_answers(arrays: Any, weights: jax.Array) -> jax.Array:
    workload, strategy = arrays
    stddev = jnp.where(weights > 0, 1 / jnp.where(weights > 0, weights, 1.0), jnp.inf)
    estimate = least_squares(Measurement(strategy, jnp.zeros(strategy.shape[0], stddev.dtype), "gaussian", stddev))
    return jnp.square(jnp.asarray(estimate.expected_stddev(workload))).mean()


def expected_error(workload: Any, strategy: Queries, scale: Any, *, noise: str = "laplace") -> Array:
    """The mean squared error with which least squares will answer a workload, tr(W (A' S^-1 A)^-1 W') / rows.

    The matrix mechanism's error (Li et al. 2010, proposition 7) for noise of any scale a row, S the diagonal matrix of its
    variances; :func:`explain` words it for a budget.

    Args:
        workload: queries of the same cells, or a matrix [k, n].
        strategy: what is measured.
        scale: the law's parameter, one or [m]; infinite: not measured. Differentiable in it.
        noise: the law's name.

    Cost: up to 65,536 answers that of their standard deviations; more of them a factorisation of a matrix of the cells, up to
    4,096 cells, or O(levels) for all ranges on a complete tree whose levels have equal scales each.

    Raises:
        ValueError: as :func:`dpinfer.least_squares` does, or if the workload is too large; infinite is returned where only some
            answers are not determined.
    """
    queries = as_queries("workload", workload)
    if queries.shape[1] != strategy.shape[1]:
        raise ValueError(f"workload must be over the strategy's {strategy.shape[1]} cells, got {queries.shape[1]}.")
    m = strategy.shape[0]
    spread = jnp.asarray(stddev_of(noise, scale))
    if spread.ndim and spread.shape != (m,):
        raise ValueError(f"scale must be one number or {m}, one for each row, got shape {list(spread.shape)}.")
    if queries.shape[0] <= MAX_ANSWERS:
        estimate = least_squares(Measurement(strategy, jnp.zeros(m, spread.dtype), "gaussian", spread))
        return jnp.square(jnp.asarray(estimate.expected_stddev(queries))).mean()
    weights = jnp.broadcast_to(jnp.where(jnp.isfinite(spread), 1 / spread, 0.0), (m,))
    labels = np.arange(m)
    if not spread.ndim:
        labels = np.zeros(m, dtype=np.int64)
    elif _checks.is_concrete(spread):
        labels = np.unique(np.asarray(spread), return_inverse=True)[1]
    found = mean_variance(queries, strategy, labels)(weights)
    return jnp.where(jnp.isnan(found), jnp.inf, found)
