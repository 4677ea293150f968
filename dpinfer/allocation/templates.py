"""Strategies made for a workload: p-identity strategies, and the eigenvalue strategy of the matrix mechanism.

Their rows are real numbers; a release needs integers, since its noise is integer and exact. So the rows that come out are rounded
to 15 bits, each in a unit of its own that goes into the row weights, and the error that is stated is that of the rounded rows.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.accuracy.mean_variance import MAX_DENSE_CELLS
from dpinfer.allocation.optimize import Allocation, minimized, unit_of
from dpinfer.queries import Dense, Identity, Queries, VStack
from dpinfer.queries.dense import as_queries

_BITS = 15
_FIRST_STEPS = 60


def p_identity(
    workload: Any,
    num_rows: int | None = None,
    *,
    epsilon: Any = None,
    rho: Any = None,
    key: jax.Array,
    num_starts: int = 8,
    max_steps: int = 300,
) -> Allocation:
    """Every cell, and ``num_rows`` weighted sums of all cells, chosen for the workload (McKenna et al. 2018, section 5).

    A = [I; Theta] D with Theta >= 0 and D such that every column's sum (under rho: of squares) is 1: no column is below the
    sensitivity. The mean squared error is minimised over Theta by L-BFGS from random starts.

    Args:
        workload: queries of n cells, or a matrix [k, n].
        num_rows: p; left out, a sixteenth of n and at least 1.
        epsilon, rho: the budget, one of the two, for the stated error.
        key: a typed key, for the starts.
        num_starts: run for 60 steps each; the best of them is run to the end.
        max_steps: of L-BFGS at the end.

    Returns:
        An Allocation: n + p rows, its ``first_error`` that of the cells alone.

    Cost: O(p n^2) a step, up to 4,096 cells.
    """
    order, scale = unit_of(epsilon, rho)
    _checks.typed_key(key)
    queries = _small("workload", workload)
    n = queries.shape[1]
    p = _checks.integer("num_rows", max(1, n // 16) if num_rows is None else num_rows, least=1)
    gram = jnp.asarray(np.asarray(queries.gram(), dtype=float) / queries.shape[0])
    max_steps = _checks.integer("max_steps", max_steps, least=1)
    starts = jax.random.split(key, _checks.integer("num_starts", num_starts, least=1))
    # Where a descent ends depends on where it starts, and on rounding.
    tried = [_descend(order, gram, jnp.sqrt(jax.random.uniform(one, (p, n))), min(max_steps, _FIRST_STEPS)) for one in starts]
    best, _ = min(tried, key=lambda pair: float(pair[1]))
    roots = np.asarray(_descend(order, gram, best, max_steps)[0])
    theta = np.square(roots)
    own = (1 + (theta**order).sum(axis=0)) ** (-1 / order)
    # Columns of cells are not touched: their rows are those of the identity.
    strategy, weights = _whole_numbers(theta * own[None, :])
    weights[np.abs(theta).max(axis=1) < 1e-6 * theta.max()] = 0.0  # rows that it has no use for
    strategy, weights = VStack([Identity(n), strategy]), np.concatenate([own, weights])
    weights = weights / weights.max()
    return Allocation(strategy, weights, scale * _error(strategy, weights, gram, order), scale * float(jnp.trace(gram)))


@partial(jax.jit, static_argnums=0)
def _descend(order: int, gram: jax.Array, start: jax.Array, steps: Any) -> tuple[jax.Array, jax.Array]:
    def error(roots: jax.Array) -> jax.Array:
        theta = jnp.square(roots)
        spread = (1 + (theta**order).sum(axis=0)) ** (1 / order)
        weighed = spread[:, None] * gram * spread[None, :]
        image = theta @ weighed
        inner = jnp.eye(theta.shape[0]) + theta @ theta.T
        # tr((I + Theta' Theta)^-1 G) by the inverse of the p x p matrix (Woodbury).
        return jnp.trace(weighed) - jnp.trace(jnp.linalg.solve(inner, image @ theta.T))

    found = minimized(lambda z: jnp.log(error(z.reshape(start.shape))), start.reshape(-1), steps).reshape(start.shape)
    return found, error(found)


def eigenvalue_strategy(workload: Any, *, epsilon: Any = None, rho: Any = None) -> Allocation:
    """The eigenvectors of W'W, weighted by the fourth roots of their eigenvalues: the matrix mechanism's spectral strategy.

    The weights that minimise tr(W (A'A)^-1 W') at a given sum of squares of A, which is the square of its L2 sensitivity where
    all columns are of equal length (Li and Miklau 2013, "Optimal error of query sets under the differentially-private matrix
    mechanism"; for the singular value bound see there). A start for :func:`optimize`, and what to compare with.

    Args:
        workload: queries of n cells, or a matrix [k, n], up to 4,096 cells.
        epsilon, rho: the budget, one of the two, for the stated error.
    """
    order, scale = unit_of(epsilon, rho)
    queries = _small("workload", workload)
    gram = np.asarray(queries.gram(), dtype=float) / queries.shape[0]
    sizes, vectors = np.linalg.eigh(gram)
    kept = sizes > 1e-12 * sizes[-1]
    strategy, units = _whole_numbers(vectors[:, kept].T)
    weights = units * sizes[kept] ** 0.25
    weights = weights / weights.max()
    error = scale * _error(strategy, weights, jnp.asarray(gram), order)
    return Allocation(strategy, weights, error, error)


def _small(name: str, workload: Any) -> Queries:
    queries = as_queries(name, workload)
    if queries.shape[1] > MAX_DENSE_CELLS:
        raise ValueError(f"{name} must be over at most {MAX_DENSE_CELLS} cells, got {queries.shape[1]}.")
    return queries


def _whole_numbers(rows: np.ndarray) -> tuple[Dense, np.ndarray]:
    """Rows of whole numbers in proportion to the given ones, and the weights that make them those."""
    largest = np.abs(rows).max(axis=1)
    unit = np.where(largest > 0, largest, 1.0) / 2**_BITS
    return Dense(np.rint(rows / unit[:, None]).astype(np.int64)), unit


def _error(strategy: Queries, weights: np.ndarray, gram: jax.Array, order: int) -> float:
    """S^2 tr(W K^-1 W') / rows, of answers that the rounded rows determine."""
    matrix = np.asarray(strategy.dense(), dtype=float) * weights[:, None]
    largest = (np.abs(matrix) ** order).sum(axis=0).max() ** (2 / order)
    if matrix.shape[0] >= matrix.shape[1]:
        inverse = np.linalg.inv(matrix.T @ matrix)
    else:
        inverse = np.linalg.pinv(matrix.T @ matrix, rcond=1e-12, hermitian=True)
    return float(largest * np.vdot(inverse, np.asarray(gram)))
