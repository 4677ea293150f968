"""Least squares by factorising the strategy's matrix."""

from typing import Any, final

import jax
import jax.numpy as jnp

from dpinfer._pytree import pytree
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, joined, root, row_blocks, to_device, unmet
from dpinfer.measurement import Measurement
from dpinfer.queries import Queries
from dpinfer.queries.base import Array


@final
@pytree
class DenseEstimate(LinearEstimate):
    """The least squares estimate of a strategy that was factorised as a matrix.

    Attributes:
        solution: [n], the cells; what the measurement does not determine is filled in with the smallest that agree.
        half: [n, k], H with H H' the pseudo-inverse of A' diag(1/stddev^2) A: the covariance of the cells that are determined.
        length: [n], the norms of the columns of diag(1/stddev) A.
        row_space: [n, n], the projection on the rows that are determined, in cells times ``length``.
    """

    solution: Array
    half: Array
    length: Array
    row_space: Array
    measurement: Measurement | None = None

    def _answer(self, workload: Queries) -> Answers:
        dtype = self.cells.dtype
        blocks = [stddev_of_rows(self, rows) for rows in row_blocks(workload, self._num_cells, dtype)]
        return Answers(jnp.asarray(workload @ self.cells), joined(blocks, dtype))

    def _covariance(self, workload: Queries) -> Array:
        self.answer(workload)  # raises for what is not determined
        spread = to_device(workload.dense(), self.cells.dtype) @ self.half
        return spread @ spread.T


@jax.jit
def stddev_of_rows(estimate: DenseEstimate, rows: jax.Array) -> jax.Array:
    """The standard deviation of each row of weights, [k, n]; infinite where it is not determined."""
    scaled = rows / estimate.length[None, :]
    rest = (scaled - scaled @ estimate.row_space) * estimate.length[None, :]
    return jnp.where(unmet(rest, rows), jnp.inf, root(jnp.square(rows @ estimate.half).sum(axis=1)))


@jax.jit
def solve_dense(matrix: Array, values: jax.Array, stddev: jax.Array) -> DenseEstimate:
    """The estimate from a matrix [m, n], the values and their standard deviations; O(m n min(m, n))."""
    measured = jnp.isfinite(stddev)
    weights = jnp.where(measured, 1.0 / jnp.where(measured, stddev, 1.0), 0.0)
    # Relative to the largest weight, whose square alone could overflow.
    top = jax.lax.stop_gradient(weights.max())
    top = jnp.where(top > 0, top, 1.0)
    weights = weights / top
    weighted = jnp.asarray(matrix, values.dtype) * jnp.broadcast_to(weights, values.shape)[:, None]
    # Columns of equal length: the rank is judged whatever the cells' units.
    length = jnp.sqrt(jnp.square(weighted).sum(axis=0))
    length = jax.lax.stop_gradient(jnp.where(length > 0, length, 1.0))
    solution, half, row_space = _by_singular_values(weighted / length[None, :], jnp.where(measured, values, 0.0) * weights)
    return DenseEstimate(solution / length, half / length[:, None] / top, length, row_space)


@jax.custom_jvp
def _by_singular_values(matrix: jax.Array, wanted: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The shortest minimiser of |B x - b|, H with H H' = (B'B)^+, and the projection on B's row space.

    From the singular values of B itself: forming (B'B)^+ would lose twice the digits. The derivative takes the rank as fixed.
    """
    left, sizes, basis = jnp.linalg.svd(matrix, full_matrices=False)
    rank = sizes > sizes[0] * max(matrix.shape) * jnp.finfo(matrix.dtype).eps
    half = (basis * jnp.where(rank, 1.0 / jnp.where(rank, sizes, 1.0), 0.0)[:, None]).T
    kept = basis * rank[:, None]
    return half @ (left.T @ wanted), half, kept.T @ kept


@_by_singular_values.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    (matrix, wanted), (change, moved) = primals, tangents
    found = x, half, row_space = _by_singular_values(matrix, wanted)
    slope = change.T @ (wanted - matrix @ x) + matrix.T @ (moved - change @ x)
    # Of the many H with H H' = (B'B)^+ the one that moves by -(1/2) (B'B)^+ d(B'B) H.
    gram = change.T @ (matrix @ half) + matrix.T @ (change @ half)
    return found, (half @ (half.T @ slope), -0.5 * half @ (half.T @ gram), jnp.zeros_like(row_space))
