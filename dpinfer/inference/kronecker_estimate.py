"""Least squares for a product of strategies along the axes of a table, all rows with the same noise: axis by axis.

(A_1 x ... x A_d)^+ = A_1^+ x ... x A_d^+, and so for the inverse of the gram matrix: only factors are ever factorised.
"""

from functools import reduce
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._pytree import pytree
from dpinfer.inference.answers import Answers
from dpinfer.inference.dense_estimate import DenseEstimate, solve_dense, stddev_of_rows
from dpinfer.inference.estimate import LinearEstimate, joined, root, row_blocks, to_device, unmet
from dpinfer.measurement import Measurement
from dpinfer.queries import Boxes, Identity, Kronecker, Queries, Total, VStack
from dpinfer.queries.base import Array


@final
@pytree
class KroneckerEstimate(LinearEstimate):
    """The least squares estimate from a Kronecker product whose rows all have one standard deviation.

    Attributes:
        solution: [n], the cells; what is not determined is filled in with the smallest that agree.
        factors: for each axis what a measurement of the axis alone, with noise of variance 1, would determine.
        stddev: of every row.
    """

    solution: Array
    factors: tuple[DenseEstimate, ...]
    stddev: Array
    measurement: Measurement | None = None

    @property
    def _grid(self) -> tuple[int, ...]:
        return tuple(factor.solution.shape[0] for factor in self.factors)

    def _answer(self, workload: Queries) -> Answers:
        return Answers(jnp.asarray(workload @ self.cells), _times(jnp.asarray(self.stddev), self._unit_stddev(workload)))

    def _unit_stddev(self, workload: Queries) -> jax.Array:
        if isinstance(workload, VStack):
            return jnp.concatenate([self._unit_stddev(part) for part in workload.parts])
        if isinstance(workload, Boxes) and workload.grid == self._grid:
            ends = zip(workload.starts.T, workload.stops.T, self._grid, strict=True)
            inside = [((a[:, None] <= np.arange(n)) & (np.arange(n) < b[:, None])).astype(float) for a, b, n in ends]
            return _over_boxes(self.factors, [to_device(rows, self.cells.dtype) for rows in inside])
        parts = _factors_of(workload, self._grid)
        if parts is not None:
            return _over_products(self.factors, [to_device(part.dense(), self.cells.dtype) for part in parts])
        dtype = self.cells.dtype
        return joined([_stddev_of_rows(self.factors, rows) for rows in row_blocks(workload, self._num_cells, dtype)], dtype)

    def _covariance(self, workload: Queries) -> Array:
        self.answer(workload)  # raises for what is not determined
        return _covariance(self.factors, jnp.asarray(self.stddev), to_device(workload.dense(), self.cells.dtype))


def solve_kronecker(queries: Kronecker, values: jax.Array, stddev: jax.Array) -> KroneckerEstimate:
    """The estimate from the values of a product and the one standard deviation of its rows."""
    return _solve(tuple(part.dense() for part in queries.parts), values, stddev)


@jax.jit
def _solve(matrices: tuple[Array, ...], values: jax.Array, stddev: jax.Array) -> KroneckerEstimate:
    factors, table = [], values.reshape([matrix.shape[0] for matrix in matrices])
    for axis, matrix in enumerate(matrices):
        one = jnp.ones((), values.dtype)
        factor = solve_dense(matrix, jnp.zeros(matrix.shape[:1], values.dtype), one)
        factors.append(factor)
        half = jnp.asarray(factor.half)
        inverse = half @ (jnp.asarray(matrix, values.dtype) @ half).T
        table = jnp.moveaxis(jnp.tensordot(inverse, table, axes=([1], [axis])), 0, axis)
    measured = jnp.isfinite(stddev)
    return KroneckerEstimate(jnp.where(measured, table.reshape(-1), 0.0), tuple(factors), stddev)


def _factors_of(workload: Queries, grid: tuple[int, ...]) -> list[Queries] | None:
    match workload:
        case Identity():
            return [Identity(n) for n in grid]
        case Total():
            return [Total(n) for n in grid]
        case Kronecker(parts) if tuple(part.shape[1] for part in parts) == grid:
            return list(parts)
        case _:
            return None


@jax.jit
def _over_boxes(factors: tuple[DenseEstimate, ...], rows: list[jax.Array]) -> jax.Array:
    """Standard deviations of rows that have their own factor, [k, cells of the axis], along every axis."""
    return reduce(_times, (stddev_of_rows(factor, own) for factor, own in zip(factors, rows, strict=True)))


@jax.jit
def _over_products(factors: tuple[DenseEstimate, ...], rows: list[jax.Array]) -> jax.Array:
    """Standard deviations of every combination of one row an axis."""
    own = (stddev_of_rows(factor, rows) for factor, rows in zip(factors, rows, strict=True))
    return reduce(lambda a, b: _times(a[:, None], b[None, :]).reshape(-1), own)


def _times(first: jax.Array, second: jax.Array) -> jax.Array:
    """The product of standard deviations, where 0 (of a row of zeros) beats infinity (of one that is not determined)."""
    is_zero = (first == 0) | (second == 0)
    return jnp.where(is_zero, 0.0, jnp.where(is_zero, 1.0, first) * jnp.where(is_zero, 1.0, second))


def _along_axes(matrices: list[Any], rows: jax.Array) -> jax.Array:
    """Each row's table times a matrix along every axis."""
    table = rows.reshape(-1, *(matrix.shape[0] for matrix in matrices))
    for axis, matrix in enumerate(matrices, start=1):
        table = jnp.moveaxis(jnp.tensordot(table, jnp.asarray(matrix), axes=([axis], [0])), -1, axis)
    return table.reshape(rows.shape[0], -1)


@jax.jit
def _covariance(factors: tuple[DenseEstimate, ...], stddev: jax.Array, rows: jax.Array) -> jax.Array:
    spread = _along_axes([f.half for f in factors], rows)
    return jnp.square(stddev) * spread @ spread.T


@jax.jit
def _stddev_of_rows(factors: tuple[DenseEstimate, ...], rows: jax.Array) -> jax.Array:
    length = reduce(lambda a, b: jnp.outer(a, b).reshape(-1), (jnp.asarray(f.length) for f in factors))[None, :]
    scaled = rows / length
    rest = (scaled - _along_axes([f.row_space for f in factors], scaled)) * length
    variance = jnp.square(_along_axes([f.half for f in factors], rows)).sum(axis=1)
    return jnp.where(unmet(rest, rows), jnp.inf, root(variance))
