"""Least squares for marginals of a table: closed form, however many cells.

Every strategy here is a product over axes of "each cell" or "the sum". Along one axis, both leave the mean of the axis and
the deviations from it apart, so that A' diag(1/variance) A has one eigenvalue for each set T of axes, on the space of tables
that are constant along T and sum to zero along every other axis:

    lambda_T = sum over the parts s that sum over no axis outside T of (product of n_i over the axes it sums) / variance_s

With M_S for averaging over the axes S, its (pseudo-)inverse is sum_S c_S M_S with c_S = sum over T in S of
(-1)^|S - T| / lambda_T, and the variance of an answer is a sum of squares, one for each T. One variance for each part is needed.
"""

from functools import partial
from itertools import product
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, row_blocks
from dpinfer.measurement import Measurement
from dpinfer.queries import Boxes, Identity, Kronecker, Queries, Total, VStack
from dpinfer.queries.base import Array

_MAX_AXES = 12

Axes = tuple[int, ...]


class Marginals(NamedTuple):
    """A stack of marginals: the cells along each axis, and the axes that each part keeps."""

    grid: tuple[int, ...]
    kept: tuple[Axes, ...]


def as_marginals(queries: Queries) -> Marginals | None:
    """What a stack of products of identities and totals asks for; None for anything else."""
    parts = _flat(queries)
    grids = {tuple(f.shape[1] for f in _factors(part)) for part in parts if isinstance(part, Kronecker)}
    if len(grids) != 1:
        return None
    grid = next(iter(grids))
    if len(grid) > _MAX_AXES:
        return None
    kept = []
    for part in parts:
        factors = _factors(part)
        if not all(isinstance(factor, (Identity, Total)) for factor in factors):
            return None
        if isinstance(part, Kronecker):
            kept.append(tuple(axis for axis, factor in enumerate(factors) if isinstance(factor, Identity)))
        else:
            kept.append(tuple(range(len(grid))) if isinstance(part, Identity) else ())
    return Marginals(grid, tuple(kept))


def _flat(queries: Queries) -> list[Queries]:
    return [leaf for part in queries.parts for leaf in _flat(part)] if isinstance(queries, VStack) else [queries]


def _factors(part: Queries) -> list[Queries]:
    return [factor for own in part.parts for factor in _factors(own)] if isinstance(part, Kronecker) else [part]


def part_variances(marginals: Marginals, stddev: jax.Array | np.ndarray) -> Array | None:
    """The variance of each part, if it can be seen that all of its rows share it."""
    sizes = [int(np.prod([marginals.grid[axis] for axis in kept], dtype=np.int64)) for kept in marginals.kept]
    if stddev.ndim == 0:
        return jnp.broadcast_to(jnp.square(stddev), (len(sizes),))
    if not _checks.is_concrete(stddev):
        return None
    pieces = np.split(np.asarray(stddev), np.cumsum(sizes)[:-1])
    return np.square([piece[0] for piece in pieces]) if all(np.all(piece == piece[0]) for piece in pieces) else None


@final
@pytree
class MarginalsEstimate(LinearEstimate):
    """The least squares estimate from marginals of one table.

    Attributes:
        grid: cells along each axis.
        solution: [n], the cells; what is not determined is filled in with the smallest that agree.
        inverse: 1 / lambda_T, [2] * d, index 1 along the axes of T; 0 where lambda_T is.
        is_known: whether lambda_T is positive, [2] * d.
    """

    grid: tuple[int, ...] = static()
    solution: Array
    inverse: Array
    is_known: Array
    measurement: Measurement | None = None

    def _answer(self, workload: Queries) -> Answers:
        return Answers(jnp.asarray(workload @ self.cells), self._stddev(workload))

    def _stddev(self, workload: Queries) -> jax.Array:
        if isinstance(workload, VStack):
            return jnp.concatenate([self._stddev(part) for part in workload.parts])
        parts = _parts_of_rows(workload, self.grid)
        if parts is not None:
            combine = _over_products if isinstance(workload, (Identity, Total, Kronecker)) else _over_rows
            squares = [jnp.asarray(part, self.solution.dtype) for part in parts]
            unknown = jnp.where(self.is_known, 0.0, 1.0)
            return _stddev(*(combine(jnp.asarray(f), squares) for f in (self.inverse, unknown, jnp.ones_like(unknown))))
        blocks = [_stddev_of_rows(self, jnp.asarray(rows, self.solution.dtype)) for rows in row_blocks(workload, self._num_cells)]
        return jnp.concatenate([*blocks, jnp.zeros((0,), self.solution.dtype)])

    def _covariance(self, workload: Queries) -> Array:
        self.answer(workload)  # raises for what is not determined
        rows = jnp.asarray(workload.dense(), self.solution.dtype)
        tables = rows.reshape(-1, *self.grid)
        spread = sum(
            c * jnp.broadcast_to(tables.mean(axis=tuple(a + 1 for a in axes), keepdims=True), tables.shape)
            for axes, c in zip(_subsets(len(self.grid)), _averaging(jnp.asarray(self.inverse)), strict=True)
        )
        return jnp.asarray(spread).reshape(rows.shape) @ rows.T


def solve_marginals(marginals: Marginals, values: jax.Array, variances: Array) -> MarginalsEstimate:
    """The estimate from the parts' values one after the other and the variance of each part (infinite: not measured)."""
    return _solve(marginals.grid, marginals.kept, values, jnp.asarray(variances, values.dtype))


@partial(jax.jit, static_argnums=(0, 1))
def _solve(grid: tuple[int, ...], kept: tuple[Axes, ...], values: jax.Array, variances: jax.Array) -> MarginalsEstimate:
    dims = len(grid)
    measured = jnp.isfinite(variances)
    # Relative to the least variance: the units cancel, and no square overflows.
    least = jax.lax.stop_gradient(jnp.where(measured, variances, jnp.inf).min())
    least = jnp.where(jnp.isfinite(least) & (least > 0), least, 1.0)
    weights = jnp.where(measured, least / jnp.where(measured, variances, 1.0), 0.0)
    eigenvalues = jnp.stack([_eigenvalue(grid, kept, weights, axes) for axes in _subsets(dims)]).reshape((2,) * dims)
    is_known = eigenvalues > 0
    inverse = jnp.where(is_known, 1.0 / jnp.where(is_known, eigenvalues, 1.0), 0.0)
    averaging = dict(zip(_subsets(dims), _averaging(inverse), strict=True))
    # x = sum_s w_s sum_S c_S M_S A_s' y_s. Averaged over S, the table that a part spreads over the cells is the part averaged
    # over those of its axes that are in S; it is kept by the axes it varies along, and spread from few axes to many.
    sizes = [int(np.prod([grid[axis] for axis in axes], dtype=np.int64)) for axes in kept]
    tables: dict[Axes, jax.Array] = {}
    for axes, piece, weight in zip(kept, jnp.split(values, np.cumsum(sizes)[:-1]), weights, strict=True):
        means: dict[Axes, jax.Array] = {(): jnp.where(weight > 0, piece, 0.0).reshape([grid[axis] for axis in axes])}
        for gone in sorted(_subsets_of(axes), key=len):
            if gone:  # from the mean over one axis less
                left = [axis for axis in axes if axis not in gone[:-1]]
                means[gone] = means[gone[:-1]].mean(axis=left.index(gone[-1]))
            factor = sum(c for averaged, c in averaging.items() if set(averaged) & set(axes) == set(gone))
            rest = tuple(axis for axis in axes if axis not in gone)
            tables[rest] = tables.get(rest, 0.0) + weight * factor * means[gone]
    total = jnp.zeros(grid, values.dtype)
    for axes in sorted(tables, key=len):
        total = total + tables[axes].reshape([size if axis in axes else 1 for axis, size in enumerate(grid)])
    return MarginalsEstimate(grid, total.reshape(-1), inverse * least, is_known)


def _subsets(dims: int) -> list[Axes]:
    """All sets of axes, in the order of an array of shape [2] * dims: index 1 for the axes in the set."""
    return [tuple(axis for axis, inside in enumerate(choice) if inside) for choice in product((0, 1), repeat=dims)]


def _subsets_of(axes: Axes) -> list[Axes]:
    return [tuple(axes[i] for i in chosen) for chosen in _subsets(len(axes))]


def _eigenvalue(grid: tuple[int, ...], kept: tuple[Axes, ...], weights: jax.Array, axes: Axes) -> jax.Array:
    """lambda_T for T = ``axes``."""
    total = jnp.zeros((), weights.dtype)
    for own, weight in zip(kept, weights, strict=True):
        summed = [axis for axis in range(len(grid)) if axis not in own]
        if set(summed) <= set(axes):
            total = total + weight * float(np.prod([grid[axis] for axis in summed], dtype=np.float64))
    return total


def _averaging(inverse: jax.Array) -> jax.Array:
    """c_S for each set S, in the order of :func:`_subsets`: differences of 1 / lambda along every axis."""
    for axis in range(inverse.ndim):
        outside, inside = jnp.split(inverse, 2, axis=axis)
        inverse = jnp.concatenate([outside, inside - outside], axis=axis)
    return inverse.reshape(-1)


def _parts_of_rows(workload: Queries, grid: tuple[int, ...]) -> list[np.ndarray] | None:
    """For rows that are products over the axes, |deviations|^2 and |mean|^2 of each factor, [2, rows] an axis."""
    match workload:
        case Identity():
            sums, squares = [np.ones(n) for n in grid], [np.ones(n) for n in grid]
        case Total():
            sums, squares = [np.full(1, float(n)) for n in grid], [np.full(1, float(n)) for n in grid]
        case Boxes() if workload.grid == grid:
            sums = list((workload.stops - workload.starts).T.astype(float))
            squares = sums
        case Kronecker(parts) if tuple(part.shape[1] for part in parts) == grid:
            matrices = [np.asarray(part.dense(), dtype=float) for part in parts]
            sums, squares = [matrix.sum(axis=1) for matrix in matrices], [np.square(matrix).sum(axis=1) for matrix in matrices]
        case _:
            return None
    means = [np.square(total) / n for total, n in zip(sums, grid, strict=True)]
    return [np.stack([np.maximum(square - mean, 0.0), mean]) for square, mean in zip(squares, means, strict=True)]


def _over_products(factors: jax.Array, squares: list[jax.Array]) -> jax.Array:
    """Sum over T of factor_T |P_T w|^2 for every combination of one row an axis."""
    for part in squares:
        factors = jnp.tensordot(factors, part, axes=([0], [0]))
    return factors.reshape(-1)


def _over_rows(factors: jax.Array, squares: list[jax.Array]) -> jax.Array:
    """The same for rows of which each has its own factor along every axis."""
    total = jnp.broadcast_to(factors[..., None], (*factors.shape, squares[0].shape[1]))
    for part in squares:
        total = (total * part.reshape(2, *[1] * (total.ndim - 2), part.shape[1])).sum(axis=0)
    return total


@jax.jit
def _stddev_of_rows(estimate: MarginalsEstimate, rows: jax.Array) -> jax.Array:
    dims = len(estimate.grid)
    tables = rows.reshape(-1, *estimate.grid)
    squares = [jnp.square(tables.sum(axis=tuple(a + 1 for a in axes))) for axes in _subsets(dims)]
    scale = [float(np.prod([estimate.grid[a] for a in axes])) for axes in _subsets(dims)]
    sums = [s.reshape(rows.shape[0], -1).sum(axis=1) / n for s, n in zip(squares, scale, strict=True)]
    norms = jnp.stack(sums, axis=-1).reshape(-1, *(2,) * dims)
    for axis in range(1, dims + 1):  # |M_S w|^2 is the sum of |P_T w|^2 over T that hold S
        outside, inside = jnp.split(norms, 2, axis=axis)
        norms = jnp.concatenate([outside - inside, inside], axis=axis)
    norms = jnp.maximum(norms, 0.0).reshape(rows.shape[0], -1)
    inverse, unknown = jnp.asarray(estimate.inverse).reshape(-1), jnp.where(estimate.is_known, 0.0, 1.0).reshape(-1)
    return _stddev(norms @ inverse, norms @ unknown, norms.sum(axis=1))


def _stddev(variance: jax.Array, unknown: jax.Array, whole: jax.Array) -> jax.Array:
    tolerance = jnp.sqrt(jnp.finfo(variance.dtype).eps)
    return jnp.where(unknown <= tolerance * whole, jnp.sqrt(variance), jnp.inf)
