"""Least squares where every two rows of the strategy are orthogonal: each row is fitted exactly, whatever its noise."""

from typing import final

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
class OrthogonalEstimate(LinearEstimate):
    """A' y with each value over its row's squared length; the shortest cells that agree with every measured value.

    Attributes:
        queries: A.
        solution: [n], the cells.
        squares: [m], the squared lengths of the rows.
        stddev: [m].
    """

    queries: Queries
    solution: Array
    squares: Array
    stddev: Array
    measurement: Measurement | None = None

    def _answer(self, workload: Queries) -> Answers:
        dtype = self.solution.dtype
        blocks = [_stddev_of_rows(self, rows) for rows in row_blocks(workload, max(self.queries.shape), dtype)]
        return Answers(jnp.asarray(workload @ self.cells), joined(blocks, dtype))

    def _covariance(self, workload: Queries) -> Array:
        self.answer(workload)  # raises for what is not determined
        return _covariance(self, to_device(workload.dense(), self.solution.dtype))


def _combination(estimate: OrthogonalEstimate, rows: jax.Array) -> jax.Array:
    """How much of each measured row's value is in each answer, [k, m]."""
    kept = jnp.isfinite(estimate.stddev) & (estimate.squares > 0)
    part = jnp.where(kept, 1.0 / jnp.where(kept, estimate.squares, 1.0), 0.0)
    return jnp.asarray(estimate.queries._forward(rows)) * part[None, :]


@jax.jit
def _covariance(estimate: OrthogonalEstimate, rows: jax.Array) -> jax.Array:
    weights = _combination(estimate, rows)
    return (weights * jnp.square(jnp.where(jnp.isfinite(estimate.stddev), estimate.stddev, 0.0))[None, :]) @ weights.T


@jax.jit
def _stddev_of_rows(estimate: OrthogonalEstimate, rows: jax.Array) -> jax.Array:
    weights = _combination(estimate, rows)
    rest = rows - jnp.asarray(estimate.queries._backward(weights))
    known = jnp.where(jnp.isfinite(estimate.stddev), estimate.stddev, 0.0)
    return jnp.where(unmet(rest, rows), jnp.inf, root(jnp.square(weights * known[None, :]).sum(axis=1)))


@jax.jit
def solve_orthogonal(queries: Queries, values: jax.Array, stddev: jax.Array) -> OrthogonalEstimate:
    """The estimate of a strategy with orthogonal rows; one product with its transpose."""
    stddev = jnp.broadcast_to(stddev, values.shape)
    squares = _squared_lengths(queries, values.dtype)
    kept = jnp.isfinite(stddev) & (squares > 0)
    weights = jnp.where(kept, values / jnp.where(kept, squares, 1.0), 0.0)
    return OrthogonalEstimate(queries, jnp.asarray(queries._backward(weights)), squares, stddev)


def _squared_lengths(queries: Queries, dtype: jnp.dtype) -> jax.Array:
    """|a_i|^2 of each row: the transpose of what gives column sums of squares."""
    m, n = queries.shape
    transposed = jax.linear_transpose(lambda w: jnp.asarray(queries._column_sums(w, 2)), jax.ShapeDtypeStruct((m,), dtype))
    return transposed(jnp.ones((n,), dtype))[0]
