"""Least squares for marginals of a table: closed form, however many cells.

Every strategy here is a product over axes of "each cell" or "the sum". Along one axis, both leave the mean of the axis and
the deviations from it apart, so that A' diag(1/variance) A has one eigenvalue for each set T of axes, on the space of tables
that are constant along T and sum to zero along every other axis:

    lambda_T = sum over the parts s that sum over no axis outside T of (product of n_i over the axes it sums) / variance_s

With P_T for the projection on that space, its (pseudo-)inverse is the sum of P_T / lambda_T, and the variance of an answer is
a sum of squares, one for each T. One variance for each part is needed.
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
from dpinfer.inference.estimate import LinearEstimate, joined, root, row_blocks, to_device
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
            is_product = isinstance(workload, (Identity, Total, Kronecker))
            squares = [to_device(part, self.solution.dtype) for part in parts]
            return _stddev_of_squares(jnp.asarray(self.inverse), jnp.asarray(self.is_known), squares, is_product)
        dtype = self.solution.dtype
        return joined([_stddev_of_rows(self, rows) for rows in row_blocks(workload, self._num_cells, dtype)], dtype)

    def _covariance(self, workload: Queries) -> Array:
        self.answer(workload)  # raises for what is not determined
        rows = to_device(workload.dense(), self.solution.dtype)
        return _covariance(self, rows)


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
    inverses = dict(zip(_subsets(dims), inverse.reshape(-1), strict=True))
    # x = sum over T and s of (w_s / lambda_T) P_T A_s' y_s, where P_T keeps the means along T and the deviations along the other
    # axes. It is 0 unless T holds all axes that s sums over; else it varies along the rest, and is kept by these.
    sizes = [int(np.prod([grid[axis] for axis in axes], dtype=np.int64)) for axes in kept]
    tables: dict[Axes, jax.Array] = {}
    for axes, piece, weight in zip(kept, jnp.split(values, np.cumsum(sizes)[:-1]), weights, strict=True):
        summed = {axis for axis in range(dims) if axis not in axes}
        means: dict[Axes, jax.Array] = {(): jnp.where(weight > 0, piece, 0.0).reshape([grid[axis] for axis in axes])}
        for gone in sorted(_subsets_of(axes), key=len):
            if gone:  # from the mean over one axis less
                left = [axis for axis in axes if axis not in gone[:-1]]
                means[gone] = means[gone[:-1]].mean(axis=left.index(gone[-1]))
            rest = tuple(axis for axis in axes if axis not in gone)
            deviation = means[gone]
            for place in range(len(rest)):
                deviation = deviation - deviation.mean(axis=place, keepdims=True)
            factor = weight * inverses[tuple(sorted(summed | set(gone)))]
            tables[rest] = tables.get(rest, 0.0) + factor * deviation
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


def _projections(grid: tuple[int, ...], rows: jax.Array) -> list[jax.Array]:
    """P_T of each row's table for each T, in the order of :func:`_subsets`; [k, product of the sizes of the axes outside T].

    Along the axes of T once the mean times the square root of their size, so that lengths are those of the spread-out tables.
    """
    parts = [rows.reshape(-1, *grid)]
    for axis, size in enumerate(grid, start=1):
        split = []
        for part in parts:
            mean = part.mean(axis=axis, keepdims=True)
            split += [part - mean, mean * size**0.5]
        parts = split
    return [part.reshape(rows.shape[0], -1) for part in parts]


def _parts_of_rows(workload: Queries, grid: tuple[int, ...]) -> list[np.ndarray] | None:
    """For rows that are products over the axes, |deviations|^2 and |mean|^2 of each factor, [2, rows] an axis."""
    match workload:
        case Identity():
            return [np.stack([np.full(n, (n - 1) / n), np.full(n, 1 / n)]) for n in grid]
        case Total():
            return [np.array([[0.0], [float(n)]]) for n in grid]
        case Boxes() if workload.grid == grid:
            counts = zip((workload.stops - workload.starts).T.astype(float), grid, strict=True)
            return [np.stack([inside * ((n - inside) / n), inside * (inside / n)]) for inside, n in counts]
        case Kronecker(parts) if tuple(part.shape[1] for part in parts) == grid:
            matrices = [np.asarray(part.dense(), dtype=float) for part in parts]
            means = [matrix.mean(axis=1, keepdims=True) for matrix in matrices]
            return [
                np.stack([np.square(matrix - mean).sum(axis=1), n * np.square(mean[:, 0])])
                for matrix, mean, n in zip(matrices, means, grid, strict=True)
            ]
        case _:
            return None


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


@partial(jax.jit, static_argnums=3)
def _stddev_of_squares(inverse: jax.Array, is_known: jax.Array, squares: list[jax.Array], is_product: bool) -> jax.Array:
    combine = _over_products if is_product else _over_rows
    unknown = jnp.where(is_known, 0.0, 1.0)
    return _stddev(*(combine(factors, squares) for factors in (inverse, unknown, jnp.ones_like(unknown))))


@jax.jit
def _covariance(estimate: MarginalsEstimate, rows: jax.Array) -> jax.Array:
    parts = zip(jnp.asarray(estimate.inverse).reshape(-1), _projections(estimate.grid, rows), strict=True)
    return jnp.asarray(sum(factor * part @ part.T for factor, part in parts))


@jax.jit
def _stddev_of_rows(estimate: MarginalsEstimate, rows: jax.Array) -> jax.Array:
    norms = jnp.stack([jnp.square(part).sum(axis=1) for part in _projections(estimate.grid, rows)], axis=-1)
    inverse, unknown = jnp.asarray(estimate.inverse).reshape(-1), jnp.where(estimate.is_known, 0.0, 1.0).reshape(-1)
    return _stddev(norms @ inverse, norms @ unknown, norms.sum(axis=1))


def _stddev(variance: jax.Array, unknown: jax.Array, whole: jax.Array) -> jax.Array:
    """From squared lengths: what the variances amount to, and of the row the part that is not known and the whole."""
    return jnp.where(unknown <= jnp.finfo(variance.dtype).eps ** 1.25 * whole, root(variance), jnp.inf)
