"""The postprocessing of Hay et al.'s experiments: nothing below a node that is not positive, and whole numbers."""

from typing import Any, final

import jax.numpy as jnp

from dpinfer._pytree import pytree
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import over_cells
from dpinfer.inference.least_squares import least_squares
from dpinfer.measurement import Measurement
from dpinfer.queries.base import Array
from dpinfer.queries.grid_tree import GridTree
from dpinfer.queries.tree import CompleteTree
from dpinfer.release import Release, as_measurement


@final
@pytree
class ZeroedEstimate:
    """Cells of least squares after the postprocessing; biased.

    Attributes:
        cells: [n].
    """

    cells: Array

    def answer(self, workload: Any) -> PointAnswers:
        """Sums of the cells; without standard deviations, since their errors depend on the true cells."""
        queries = over_cells(workload, self.cells.shape[0])
        return PointAnswers(jnp.asarray(queries @ self.cells), "zeroed_subtrees")


def zeroed_subtrees(measurement: Measurement | Release, *, nonnegative: bool = True, rounded: bool = True) -> ZeroedEstimate:
    """Least squares on a tree; then cells below any node whose estimate is not positive set to 0, and all rounded.

    Hay et al. 2010, section 5, for sparse histograms. It keeps no sums: :func:`nonnegative_least_squares` and
    :func:`round_preserving_total` do. Runs under jit and vmap.

    Args:
        measurement: of ``Tree.complete`` or ``Tree.grid``.
        nonnegative: whether cells below such nodes are set to 0.
        rounded: whether cells are rounded to whole numbers.
    """
    measurement = as_measurement(measurement)
    tree = measurement.queries
    if not isinstance(tree, (CompleteTree, GridTree)):
        raise ValueError(f"measurement must be of Tree.complete or Tree.grid, got {tree!r}.")
    cells = jnp.asarray(least_squares(measurement).cells)
    if nonnegative:
        empty = jnp.where(jnp.asarray(tree._forward(cells)) <= 0, 1.0, 0.0)
        cells = jnp.where(jnp.asarray(tree._backward(empty)) > 0, 0.0, cells)
    return ZeroedEstimate(jnp.round(cells) if rounded else cells)
