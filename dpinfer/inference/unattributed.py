"""Counts in order of their size, from noisy ones: the order is known, and spares most of the noise."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import over_cells
from dpinfer.inference.isotonic import isotonic_regression
from dpinfer.mechanisms.sorted_runs import SortedRuns
from dpinfer.queries import Identity
from dpinfer.release import as_measurement


@final
@pytree
class UnattributedEstimate:
    """Counts by rank.

    Attributes:
        cells: [ranks], the smallest first; none below 0.
    """

    cells: jax.Array

    def answer(self, workload: Any) -> PointAnswers:
        """Sums over ranks; without standard deviations, since errors depend on how many true counts are equal."""
        queries = over_cells(workload, self.cells.shape[0])
        return PointAnswers(jnp.asarray(queries @ self.cells), "unattributed_histogram")


def unattributed_histogram(
    release: Any, *, method: str = "isotonic", norm: str = "l2", rounded: bool = True
) -> UnattributedEstimate:
    """The counts by rank that fit noisy ones best: in order, not negative, whole.

    With "isotonic" the nearest counts in order (S-bar of Hay et al. 2010): noise averages out over every run of equal counts, so
    that n equal ones are as good as 1 + 1/2 + ... + 1/n noisy ones. With "sorted" the noisy counts put into order, which does
    nothing about the noise but is what one would do first (their S~_r).

    Args:
        release: of ``mechanisms.sorted_counts``, or counts in order of their size from elsewhere, as a measurement of Identity;
            with the same noise in each. Or of ``mechanisms.sorted_runs``, which is fitted already.
        method: "isotonic" or "sorted".
        norm: "l2" or "l1", as in :func:`isotonic_regression`.
        rounded: to whole numbers, half upward. Common to all of a block, so that the order is kept.

    Cost: O(n), or O(n log n) for "sorted" and "l1". Runs under jit and vmap; ``inference.bootstrap`` gives it error bars.

    Reference: Hay et al. 2010, sections 3 and 5.1. Their experiments round and clip, as here; how is not said.
    """
    _checks.choice("method", method, ("isotonic", "sorted"))
    if isinstance(release, SortedRuns):
        if (method, norm) != ("isotonic", "l2"):
            raise ValueError("release holds the least-squares fit only: other methods and norms need mechanisms.sorted_counts.")
        values = release.whole_counts if rounded else np.maximum(release.values, 0.0)
        return UnattributedEstimate(jnp.asarray(np.repeat(values, release.lengths).astype(float)))
    measurement = as_measurement(release)
    if not isinstance(measurement.queries, Identity):
        raise ValueError(f"release must be of Identity, one count for each rank, got {measurement.queries!r}.")
    if np.ndim(measurement.scale) and _checks.is_concrete(measurement.scale) and np.ptp(np.asarray(measurement.scale)) > 0:
        raise ValueError("release must have the same noise in each count: put their weights into isotonic_regression.")
    values = jnp.asarray(measurement.values)
    fit = jnp.sort(values) if method == "sorted" else isotonic_regression(values, norm=norm).values
    cells = jnp.maximum(fit, 0)
    if rounded and jnp.issubdtype(cells.dtype, jnp.floating):
        cells = jnp.floor(cells + 0.5)
    return UnattributedEstimate(cells)
