"""Cells of a known total by multiplicative weights: from a uniform table, scaled query by query towards the noisy answers."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer import noise as laws
from dpinfer._loops import fori_loop, scan
from dpinfer._pytree import pytree
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import over_cells
from dpinfer.measurement import Measurement
from dpinfer.queries.base import Array
from dpinfer.release import Release, as_measurement


@final
@pytree
class MultiplicativeWeightsEstimate:
    """Non-negative cells that add up to a given total.

    Attributes:
        cells: [n].
        residual: the largest difference between a measured query of the cells and its noisy value, over the total.
    """

    cells: Array
    residual: Array

    def answer(self, workload: Any) -> PointAnswers:
        """Sums of the cells; without standard deviations, since what was never measured is made up."""
        queries = over_cells(workload, self.cells.shape[0])
        return PointAnswers(jnp.asarray(queries @ self.cells), "multiplicative_weights")


def multiplicative_weights(measurement: Measurement | Release, total: Any, *, passes: int = 100) -> MultiplicativeWeightsEstimate:
    """Non-negative cells with a known total that come near the noisy answers and stay near uniform.

    For each measured query q with noisy answer y in turn, x_j becomes x_j exp(q_j (y - q x) / (2 total)), scaled to the total;
    so for ``passes`` rounds through all of them. All answers count alike, whatever their noise. The steps stop where they are:
    if they were run to the end, ``inference.maximum_entropy`` would be the same with the total as an exact count.

    Args:
        measurement: of queries with entries from -1 to 1. An infinite scale leaves a row out.
        total: the number of records, public and positive: side information, or released before.
        passes: how often each query is visited, at least 1.

    Returns:
        A :class:`MultiplicativeWeightsEstimate`; the cells after the last step, not their average over the steps.

    Cost: O(passes m n) for m queries of n cells, and memory m n. Runs under jit, vmap and grad.

    Reference: Hardt, Ligett and McSherry 2012, "A simple and practical algorithm for differentially private data release",
    figure 1, the update; visited again and again as in the experiments there.

    Raises:
        ValueError: for queries with other entries, or a total that is not positive.
    """
    measurement = as_measurement(measurement)
    rounds = _checks.integer("passes", passes, least=1)
    if not measurement.queries.has_unit_entries:
        raise ValueError(f"measurement must be of queries with entries from -1 to 1, got {measurement.queries!r}.")
    if _checks.is_concrete(total) and not (np.ndim(total) == 0 and np.isfinite(total) and total > 0):
        raise ValueError(f"total must be one positive number, got {total!r}.")
    _checks.exact_in_float("measurement", measurement.values)
    values = jnp.asarray(measurement.values)
    values = values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(float)
    is_measured = jnp.isfinite(laws.stddev(measurement.noise, jnp.asarray(measurement.scale, values.dtype)))
    is_measured = jnp.broadcast_to(is_measured, values.shape)
    rows = jnp.asarray(measurement.queries.dense(), values.dtype)
    return scaled_cells(rows, values, is_measured, jnp.asarray(total, values.dtype), rounds)


def _scaled_cells(rows: jax.Array, values: jax.Array, is_measured: jax.Array, total: jax.Array, passes: int) -> Any:
    def visit(logs: jax.Array, query: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        row, value, counts = query
        missed = jnp.where(counts, value / total - row @ jax.nn.softmax(logs), 0.0)
        return logs + row * missed / 2, None

    logs = jnp.zeros(rows.shape[1], rows.dtype)
    logs = fori_loop(0, passes, lambda _, logs: scan(visit, logs, (rows, values, is_measured))[0], logs)
    shares = jax.nn.softmax(logs)
    residual = jnp.where(is_measured, jnp.abs(rows @ shares - values / total), 0.0).max(initial=0.0)
    return MultiplicativeWeightsEstimate(total * shares, residual)


scaled_cells = jax.jit(_scaled_cells, static_argnames="passes")
