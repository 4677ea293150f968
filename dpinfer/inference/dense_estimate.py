"""Least squares by factorising the strategy's matrix."""

from typing import Any, final

import jax
import jax.numpy as jnp

from dpinfer._pytree import pytree
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, row_blocks
from dpinfer.measurement import Measurement
from dpinfer.queries import Queries
from dpinfer.queries.base import Array


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

    def _answer(self, workload: Queries) -> Answers:
        blocks = [self.stddev_of_rows(rows) for rows in row_blocks(workload, self._num_cells)]
        return Answers(jnp.asarray(workload @ self.cells), jnp.concatenate([*blocks, jnp.zeros((0,), self.cells.dtype)]))

    def stddev_of_rows(self, rows: Array) -> jax.Array:
        """The standard deviation of each row of weights, [k, n]; infinite where it is not determined."""
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


@jax.jit
def solve_dense(matrix: Array, values: jax.Array, stddev: jax.Array) -> DenseEstimate:
    """The estimate from a matrix [m, n], the values and their standard deviations; O(m n min(m, n))."""
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
