"""The postprocessing of Hay et al.'s experiments: nothing below a node that is not positive, and whole numbers."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._pytree import pytree
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.fewest_nodes import fewest_nodes
from dpinfer.inference.least_squares import least_squares
from dpinfer.measurement import Measurement
from dpinfer.queries.base import Array
from dpinfer.queries.grid_tree import GridTree
from dpinfer.queries.tree import CompleteTree
from dpinfer.release import Release, as_measurement


@final
@pytree
class ZeroedEstimate:
    """The nodes of a tree after the postprocessing: biased, and no longer sums of each other.

    Attributes:
        nodes: the tree's rows with their counts as values, and noise of no meaning.
    """

    nodes: Measurement

    @property
    def cells(self) -> Array:
        """The leaves, [n]; their sums are worse than the nodes above them."""
        return fewest_nodes(self.nodes).cells

    def answer(self, workload: Any) -> PointAnswers:
        """Ranges (boxes of a grid) from the fewest nodes; without standard deviations, since errors depend on the true cells."""
        return PointAnswers(jnp.asarray(fewest_nodes(self.nodes).answer(workload).values), "zeroed_subtrees")


def zeroed_subtrees(measurement: Measurement | Release, *, nonnegative: bool = True, rounded: bool = True) -> ZeroedEstimate:
    """Least squares on a tree; then every node that is not positive, and all below it, set to 0, and all rounded.

    Hay et al. 2010, section 5, for sparse histograms: much less error where large parts are empty. Ranges are then sums of the
    fewest nodes, since sums of many cells, each of them biased upward, are far off. :func:`nonnegative_least_squares` and
    :func:`round_preserving_total` keep sums. Runs under jit and vmap.

    Args:
        measurement: of ``Tree.complete`` or ``Tree.grid``.
        nonnegative: whether nodes are set to 0.
        rounded: whether they are rounded to whole numbers.
    """
    measurement = as_measurement(measurement)
    tree = measurement.queries
    if not isinstance(tree, (CompleteTree, GridTree)):
        raise ValueError(f"measurement must be of Tree.complete or Tree.grid, got {tree!r}.")
    rows = jnp.asarray(tree._forward(jnp.asarray(least_squares(measurement).cells)))
    if nonnegative:
        rows = jnp.where(_is_below_empty(tree, rows), 0.0, rows)
    return ZeroedEstimate(Measurement(tree, jnp.round(rows) if rounded else rows, "gaussian", np.ones(())))


def _is_below_empty(tree: CompleteTree | GridTree, rows: jax.Array) -> jax.Array:
    """Whether a row's node or one above it is not positive, [m]; the root counts if it is a row."""
    stops = np.cumsum(tree.level_sizes)
    skipped = 0 if tree.root_measured else 1
    above, found = jnp.zeros((1,), bool), []
    for depth, (size, stop) in enumerate(zip(tree.level_sizes, stops, strict=True)):
        start = stop - size
        own = above if depth == 0 and skipped else rows[start - skipped : stop - skipped] <= 0
        if depth:
            own = own | above[tree.parents[start:stop] - stops[depth - 1] + tree.level_sizes[depth - 1]]
        if not (depth == 0 and skipped):
            found.append(own)
        above = own
    return jnp.concatenate(found)
