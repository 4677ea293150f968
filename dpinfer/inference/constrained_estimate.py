"""Least squares with exact linear constraints, on top of any way to do without them.

To minimise |B x - b|^2 subject to C x = d, the constraints are first taken as measurements with some finite noise, which changes
nothing at any point that keeps them. With S the covariance of that estimate x_0,

    x = x_0 - S C' (C S C')^+ (C x_0 - d),    covariance  S - S C' (C S C')^+ C S

(the method of weighting made exact; Golub and Van Loan, Matrix Computations, section 6.2). Nothing of S is needed but S C', which
is the estimate itself, made from the right values: cells are linear in the values, x_0 = K y, so that S C' = K V K' C'.
"""

from collections.abc import Callable
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, joined, root, row_blocks, unmet
from dpinfer.measurement import Measurement
from dpinfer.queries import Queries
from dpinfer.queries.base import Array

_MAX_ENTRIES = 1 << 26


@final
@pytree
class ConstrainedEstimate(LinearEstimate):
    """The least squares estimate that keeps exact counts.

    Attributes:
        base: the estimate that takes the exact counts as noisy.
        solution: [n], the cells.
        response: [k, n], S C' transposed.
        inverse: [k, k], (C S C')^+.
        basis: [r, n], orthonormal rows that span those of C.
    """

    base: LinearEstimate
    solution: Array
    response: Array
    inverse: Array
    basis: Array
    measurement: Measurement | None = None

    def _spread(self, workload: Queries) -> jax.Array:
        """W S C', [m, k]."""
        return jnp.asarray(workload @ jnp.asarray(self.response).T)

    def _answer(self, workload: Queries) -> Answers:
        before = jnp.square(jnp.asarray(self.base.expected_stddev(workload)))
        spread = self._spread(workload)
        variance = jnp.where(jnp.isinf(before), jnp.inf, before - ((spread @ self.inverse) * spread).sum(axis=1))
        # What the exact counts add up to has no error; the difference above would leave one of rounding.
        blocks = [
            unmet(rows - (rows @ self.basis.T) @ self.basis, rows)
            for rows in row_blocks(workload, self._num_cells, self.cells.dtype)
        ]
        is_open = joined(blocks, bool)
        stddev = jnp.where(is_open, root(variance), 0.0)
        return Answers(jnp.asarray(workload @ self.cells), stddev)

    def _covariance(self, workload: Queries) -> Array:
        spread = self._spread(workload)
        return jnp.asarray(self.base.covariance(workload)) - spread @ self.inverse @ spread.T


def solve_constrained(
    queries: Queries, values: jax.Array, stddev: np.ndarray, solve: Callable[[jax.Array, np.ndarray], LinearEstimate]
) -> ConstrainedEstimate:
    """The estimate that keeps the rows whose standard deviation is 0, by ``solve(values, stddev)`` without such rows.

    Cost: two estimates for each exact row.
    """
    stddev = np.broadcast_to(stddev, values.shape)
    exact = np.flatnonzero(stddev == 0)
    if exact.size * queries.shape[1] > _MAX_ENTRIES:
        raise ValueError(
            f"{exact.size} exact counts (scale 0) of {queries.shape[1]} cells are too many where no structure helps: on trees "
            "and stacks of finer and finer partitions any number can be kept."
        )
    usual = stddev[(stddev > 0) & np.isfinite(stddev)]
    spread = np.where(stddev == 0, usual.min() if usual.size else 1.0, stddev)
    rows = np.concatenate([np.asarray(queries.rows(i, i + 1)) for i in exact.tolist()]).astype(values.dtype)

    def cells(v: jax.Array) -> jax.Array:
        return jnp.asarray(solve(v, spread).cells)

    base = solve(values, spread)
    _, pull_back = jax.vjp(cells, jnp.zeros_like(values))
    coefficients = jax.vmap(lambda row: pull_back(row)[0])(jnp.asarray(rows))
    variance = np.square(np.where(np.isfinite(spread), spread, 0.0)).astype(values.dtype)
    response = jax.vmap(cells)(coefficients * variance[None, :])
    inverse = _pseudo_inverse(jnp.asarray(rows @ response.T))
    found = jnp.asarray(base.cells)
    solution = found - response.T @ (inverse @ (rows @ found - values[exact]))
    residual = rows @ solution - values[exact]
    if _checks.is_concrete(residual):
        size = np.abs(np.asarray(rows)) @ np.abs(np.asarray(solution)) + np.abs(np.asarray(values[exact]))
        bad = np.flatnonzero(np.abs(np.asarray(residual)) > 1e-8 * (size + size.max()))
        if bad.size:
            first = bad[0]
            raise ValueError(
                f"The exact counts (scale 0) contradict each other: row {exact[first]} says {float(values[exact[first]]):g}, the "
                f"others leave {float(residual[first]):+g} between it and the cells ({bad.size} such rows). Correct them, or "
                "give them a positive scale."
            )
    _, sizes, right = np.linalg.svd(np.asarray(rows), full_matrices=False)
    basis = right[sizes > 1e-12 * sizes.max(initial=0.0)]
    return ConstrainedEstimate(base, solution, response, inverse, basis)


def _pseudo_inverse(matrix: jax.Array) -> jax.Array:
    """Of a positive semi-definite matrix, judged in units of its diagonal."""
    unit = jnp.sqrt(jnp.maximum(jnp.diagonal(matrix), 0.0))
    unit = jnp.where(unit > 0, unit, 1.0)
    scaled = matrix / (unit[:, None] * unit[None, :])
    return jnp.linalg.pinv((scaled + scaled.T) / 2, rtol=1e-10, hermitian=True) / (unit[:, None] * unit[None, :])
