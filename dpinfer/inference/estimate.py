"""What a linear unbiased estimate offers: cells, answers with exact standard deviations, covariances."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.inference.answers import Answers
from dpinfer.inference.error_law import ErrorLaw
from dpinfer.measurement import Measurement
from dpinfer.queries import Queries
from dpinfer.queries.base import Array
from dpinfer.queries.dense import as_queries

# Numbers held at once for a block of answers.
_MAX_ENTRIES = 1 << 24


class LinearEstimate(abc.ABC):
    """A linear, unbiased estimate of the cells from noisy values, of least variance among all such for every answer.

    Attributes:
        cells: [n], the estimated cells; they may be negative and fractional, since clipping would bias every sum.
        measurement: what it was estimated from.
    """

    measurement: Measurement | None
    solution: Array  # of all families but trees, which keep their levels

    @property
    def cells(self) -> Array:
        """The estimated cells, [n]."""
        return self.solution

    @property
    def constraint_residual(self) -> Array:
        """By how much the cells miss each exact count, [k]: one entry for each row of scale 0, in order.

        Raises:
            ValueError: inside jit, if the scales are not known there.
        """
        known = None if self.measurement is None else self.measurement.known_stddev
        if self.measurement is None or known is None:
            raise ValueError("Which rows are exact counts cannot be seen inside jit: look at the estimate outside.")
        exact = np.flatnonzero(np.broadcast_to(known, self.measurement.values.shape) == 0)
        return (self.measurement.queries @ self.cells - self.measurement.values)[exact]

    def answer(self, workload: Any) -> Answers:
        """Estimated answers to ``workload`` (queries of the same cells, or a matrix [m, n]) with exact standard deviations.

        Raises:
            ValueError: if the workload has another number of cells, or rows that the measurement does not determine; inside
                jit such rows have an infinite standard deviation.
        """
        queries = self._check(workload)
        answers = self._answer(queries)
        if _checks.is_concrete(answers):
            bad = np.flatnonzero(~np.isfinite(np.asarray(answers.stddev)))
            if bad.size:
                raise ValueError(
                    f"The measurement does not determine {bad.size} of the {queries.shape[0]} answers asked for: rows "
                    f"{bad[:10].tolist()}{'...' if bad.size > 10 else ''} of {queries!r}. Ask for sums that the measured queries "
                    "can be added up to, or measure more."
                )
            if self.measurement is not None and _checks.is_concrete(self.measurement, queries):
                return Answers(answers.values, answers.stddev, ErrorLaw(self.measurement, queries))
        return answers

    def expected_stddev(self, workload: Any) -> Array:
        """The standard deviation that :meth:`answer` states, [m]; infinite for an answer that the measurement leaves open."""
        return self._answer(self._check(workload)).stddev

    def covariance(self, workload: Any) -> Array:
        """The exact covariance matrix of the answers' errors, [m, m]; memory m^2, time that of m answers.

        Raises:
            ValueError: as :meth:`answer` does.
        """
        return self._covariance(self._check(workload))

    @abc.abstractmethod
    def _answer(self, workload: Queries) -> Answers: ...

    @abc.abstractmethod
    def _covariance(self, workload: Queries) -> Array: ...

    @property
    def _num_cells(self) -> int:
        return self.solution.shape[0]

    def _check(self, workload: Any) -> Queries:
        if self.cells.ndim != 1:
            raise ValueError(
                f"This estimate is a batch (cells of shape {list(self.cells.shape)}); answer inside jax.vmap, one problem each."
            )
        return over_cells(workload, self._num_cells)


def over_cells(workload: Any, num_cells: int) -> Queries:
    """``workload`` as queries, if they are over as many cells as the estimate has."""
    queries = as_queries("workload", workload)
    if queries.shape[1] != num_cells:
        raise ValueError(f"workload must be over the estimate's {num_cells} cells, got {queries.shape[1]}.")
    return queries


def root(variance: jax.Array) -> jax.Array:
    """The square root of a variance, with a derivative of 0 where it is 0 (or below it, by rounding); nan stays nan."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), jnp.where(jnp.isnan(variance), jnp.nan, 0.0))


def unmet(rest: jax.Array, rows: jax.Array) -> jax.Array:
    """Whether what is left of each row, [k, n] in units of the cells, is more than rounding, so that it is not determined."""
    return jnp.abs(rest).max(axis=1) > jnp.finfo(rows.dtype).eps ** 0.625 * jnp.abs(rows).max(axis=1)


def row_blocks(queries: Queries, width: int, dtype: Any) -> Iterator[jax.Array]:
    """The matrix of ``queries`` in blocks of rows, few enough for ``width`` numbers a row to fit the working memory."""
    size = max(1, _MAX_ENTRIES // width)
    for start in range(0, queries.shape[0], size):
        rows = queries.rows(start, min(start + size, queries.shape[0]))
        yield to_device(rows, dtype)


def to_device(array: Any, dtype: Any) -> jax.Array:
    """``array`` as a JAX array of a dtype, converted on the host if it is there, where it needs no compiled program."""
    if isinstance(array, jax.Array):
        return array if array.dtype == dtype else array.astype(dtype)
    return jax.device_put(np.asarray(array, dtype))  # jnp.asarray would compile a program for each shape


def as_floats(array: Any) -> jax.Array:
    """``array`` as a JAX array of its own floating dtype; integers in JAX's default one."""
    return to_device(array, array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.zeros(()).dtype)


def joined(blocks: Sequence[jax.Array], dtype: Any) -> jax.Array:
    """Blocks of answers one after the other."""
    return blocks[0] if len(blocks) == 1 else jnp.concatenate([*blocks, jnp.zeros((0,), dtype)])
