"""Problems of many sizes in few compiled programs: a tree that is cut at n as part of the full tree of its height.

The cells beyond n are known to be zero, and the nodes that the cut tree lacks are not measured; what is estimated for the others
is the same. Outside jit, where every size would compile programs of its own, all sizes from one power of the branching to the
next share those of the full tree.
"""

from typing import Any, NamedTuple, final

import numpy as np

from dpinfer._pytree import pytree, static
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, row_blocks, to_device
from dpinfer.inference.tree_estimate import TreeEstimate, solve_complete
from dpinfer.measurement import Measurement
from dpinfer.queries import Identity, Queries
from dpinfer.queries.base import Array
from dpinfer.queries.tree import CompleteTree

# Cells up to which compiling takes far longer than the work on the cells that are added.
_MAX_CELLS = 1 << 16


class Padding(NamedTuple):
    """The full tree, and which of its rows each row of the cut one is."""

    queries: CompleteTree
    rows: np.ndarray

    def spread(self, entries: Any, elsewhere: float) -> np.ndarray:
        """Something with an entry a row (or one for all), [m], as one of the full tree's rows."""
        entries = np.asarray(entries)
        found = np.full(self.queries.shape[0], elsewhere, entries.dtype if entries.dtype.kind == "f" else np.float64)
        found[self.rows] = entries
        return found


def padding_of(queries: Queries) -> Padding | None:
    """How a complete tree, or the identity, is padded; None if it is something else, full already, or large."""
    if isinstance(queries, Identity):
        n = queries.shape[1]
        size = 1 << (n - 1).bit_length()
        full = CompleteTree(size, max(size, 2))
        return Padding(full, np.arange(n)) if 1 < n < size <= _MAX_CELLS else None
    if not isinstance(queries, CompleteTree):
        return None
    full = CompleteTree(queries.branching ** (len(queries.level_sizes) - 1), queries.branching, queries.root)
    if queries.n == full.n or full.n > _MAX_CELLS:
        return None
    starts = np.cumsum([0, *full.measured_sizes[:-1]])
    rows = [start + np.arange(size) for start, size in zip(starts, queries.measured_sizes, strict=True)]
    return Padding(full, np.concatenate(rows))


@final
@pytree
class PaddedTreeEstimate(LinearEstimate):
    """The least squares estimate of a tree that is cut, read off that of the full tree.

    Attributes:
        tree: the tree that was measured.
        full: the estimate of the full one.
        cells: [n].
    """

    tree: CompleteTree = static()
    full: TreeEstimate
    solution: Array
    measurement: Measurement | None = None

    @property
    def node_values(self) -> np.ndarray:
        """[num_nodes], the estimated counts."""
        return np.asarray(self.full.node_values)[self._nodes]

    @property
    def node_variances(self) -> np.ndarray:
        """[num_nodes], the exact variance of each count."""
        return np.asarray(self.full.node_variances)[self._nodes]

    @property
    def is_determined(self) -> Array:
        return self.full.is_determined

    @property
    def _nodes(self) -> np.ndarray:
        starts = np.cumsum([0, *self.full.tree.level_sizes[:-1]])
        return np.concatenate([start + np.arange(size) for start, size in zip(starts, self.tree.level_sizes, strict=True)])

    def _answer(self, workload: Queries) -> Answers:
        values = workload @ np.asarray(self.solution, dtype=np.float64)
        return Answers(to_device(values, self.solution.dtype), to_device(self._stddev(workload), self.solution.dtype))

    def _stddev(self, workload: Queries) -> np.ndarray:
        num_full = self.full.tree.shape[1]
        if isinstance(workload, Identity):
            return np.asarray(self.full._answer(Identity(num_full)).stddev)[: self.tree.n]
        ranges = workload.as_ranges()
        if ranges is not None:
            return np.asarray(self.full._answer_ranges(*ranges).stddev)
        blocks = row_blocks(workload, self.full.tree.num_nodes, self.solution.dtype)
        found = [np.asarray(self.full.stddev_of_rows(self._widened(rows))) for rows in blocks]
        return np.concatenate([*found, np.zeros(0)])

    def _covariance(self, workload: Queries) -> Array:
        return self.full.covariance_of_rows(self._widened(workload.dense()))

    def _widened(self, rows: Any) -> np.ndarray:
        return np.pad(np.asarray(rows), ((0, 0), (0, self.full.tree.shape[1] - self.tree.n)))


def solve_padded(tree: CompleteTree, padding: Padding, values: np.ndarray, stddev: np.ndarray) -> PaddedTreeEstimate:
    """The estimate of a tree that is cut; on the host but for the full tree's two passes."""
    dtype = values.dtype
    # What is not there is not measured, but for the leaves, which are exactly 0.
    spread = padding.spread(np.broadcast_to(stddev, values.shape), np.inf)
    spread[padding.queries.shape[0] - padding.queries.n + tree.n :] = 0.0
    full = solve_complete(
        padding.queries, to_device(padding.spread(values, 0.0), dtype), to_device(spread, dtype), is_regular=False
    )
    return PaddedTreeEstimate(tree, full, to_device(np.asarray(full.cells)[: tree.n], dtype))
