"""Answers from the noisy nodes of a tree as they are: each range from the fewest nodes that it is made of.

The estimate H~ of Hay et al. 2010 (section 4.1) and H_b of Qardaji et al. 2013: unbiased, but sums of answers do not agree, and
least squares is never worse. The nodes of a range at one level are a block of neighbours, less those below the nodes taken at the
level above, so that a range is a few differences of running totals for each level.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._pytree import pytree
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import as_floats, over_cells, to_device
from dpinfer.measurement import Measurement
from dpinfer.queries import Boxes, Identity, Queries
from dpinfer.queries.base import Array
from dpinfer.queries.grid_tree import GridTree
from dpinfer.queries.tree import CompleteTree
from dpinfer.release import Release, as_measurement

Span = tuple[np.ndarray, np.ndarray]


class _Level(NamedTuple):
    """The running totals over a measured level, with a zero in front along each axis, and the cells of a node along an axis."""

    values: jax.Array
    variances: jax.Array
    size: int


@final
@pytree
class FewestNodesEstimate:
    """The noisy counts of a tree's nodes, to be added up range by range.

    Attributes:
        measurement: of a complete tree or a grid's.
    """

    measurement: Measurement

    @property
    def cells(self) -> Array:
        """The noisy leaves, [n]. A cell that is all of a node higher up, where the tree is cut, is answered by that."""
        return jnp.asarray(as_floats(self.measurement.values)[-self.measurement.queries.shape[1] :])

    def answer(self, workload: Any) -> Answers:
        """The sums over ranges (boxes of a grid), each from the fewest measured nodes, with exact standard deviations.

        Intervals are normal. Runs under jit and vmap.

        Raises:
            ValueError: if the workload is not one of ranges or boxes.
        """
        tree = self.measurement.queries
        queries = over_cells(workload, tree.shape[1])
        sides, branching = _shape_of(tree)
        starts, stops = ends_of_ranges(queries, sides)
        levels = self._levels(sides, branching)
        values, variances = jnp.zeros(starts.shape[0]), jnp.zeros(starts.shape[0])
        for level, (inside, hidden) in zip(levels, nodes_of_ranges(starts, stops, sides, [x.size for x in levels]), strict=True):
            values = values + _sums(level.values, *inside)
            variances = variances + _sums(level.variances, *inside)
            if hidden is not None:
                values = values - _sums(level.values, *hidden)
                variances = variances - _sums(level.variances, *hidden)
        # Differences of running totals: what should be nothing may be a rounding error below it.
        return Answers(values, jnp.sqrt(jnp.maximum(variances, 0.0)))

    def _levels(self, sides: tuple[int, ...], branching: int) -> list[_Level]:
        """The measured levels, top first."""
        tree, known = self.measurement.queries, self.measurement.known_stddev
        values = as_floats(self.measurement.values)
        variances = jnp.square(jnp.broadcast_to(to_device(self.measurement.stddev, values.dtype), values.shape))
        labels = np.asarray(tree.levels)
        height, found = int(labels.max()), []
        for level in range(height + 1):
            size = branching ** (height - level)
            rows = np.flatnonzero(labels == level)
            if known is not None:
                is_measured = np.isfinite(np.broadcast_to(known, labels.shape)[rows])
                if not is_measured.any():
                    continue
                if not is_measured.all():
                    raise ValueError(f"Level {level} of {tree!r} must be measured as a whole or not at all.")
            shape = tuple(-(-side // size) for side in sides)
            found.append(_Level(_running(values[rows].reshape(shape)), _running(variances[rows].reshape(shape)), size))
        if not found or found[-1].size > 1:
            raise ValueError(f"The leaves of {tree!r} must be measured, else no range that cuts a node has an answer.")
        return found


def fewest_nodes(measurement: Measurement | Release) -> FewestNodesEstimate:
    """The noisy counts of a tree, whose answers to ranges are sums of the fewest nodes: no consistency, no least squares.

    To compare :func:`least_squares` with (H~ of Hay et al. 2010, section 4.1). Its average variance, before any data:
    ``accuracy.range_variance(..., consistent=False)``.

    Args:
        measurement: of ``Tree.complete`` or ``Tree.grid``. A level that is not measured is passed over.

    Raises:
        ValueError: if it is of something else.
    """
    measurement = as_measurement(measurement)
    _shape_of(measurement.queries)
    return FewestNodesEstimate(measurement)


def _shape_of(tree: Queries) -> tuple[tuple[int, ...], int]:
    if isinstance(tree, CompleteTree):
        return (tree.n,), tree.branching
    if isinstance(tree, GridTree):
        return tree.sides, tree.branching
    raise ValueError(f"measurement must be of Tree.complete or Tree.grid, got {tree!r}.")


def ends_of_ranges(queries: Queries, sides: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Starts and stops of ranges, or of the boxes of a grid, [m, axes] each."""
    if isinstance(queries, Boxes) and queries.grid == sides:
        return np.asarray(queries.starts), np.asarray(queries.stops)
    if isinstance(queries, Identity):
        starts = np.stack(np.unravel_index(np.arange(queries.shape[1]), sides), axis=1)
        return starts, starts + 1
    ranges = queries.as_ranges() if len(sides) == 1 else None
    if ranges is None:
        what = "ranges" if len(sides) == 1 else f"Boxes of the grid {sides}"
        raise ValueError(f"workload must be {what}, got {queries!r}.")
    return ranges[0][:, None], ranges[1][:, None]


def nodes_of_ranges(
    starts: np.ndarray, stops: np.ndarray, sides: tuple[int, ...], sizes: Sequence[int]
) -> Iterator[tuple[Span, Span | None]]:
    """Of each measured level, top first, the nodes inside each range, and which of them lie below nodes taken higher up.

    Args:
        starts, stops: of the ranges, [m, axes] each.
        sides: cells along each axis.
        sizes: cells of a node along an axis, for each level.

    Yields:
        Two blocks of neighbouring nodes, each as their first along each axis and one past the last, [m, axes]; empty blocks where
        there are none; None for the top level.
    """
    n, above = np.array(sides), None
    for size in sizes:
        first = -(-starts // size)
        last = np.maximum(np.where(stops == n, -(-n // size), stops // size), first)
        hidden = None
        if above is not None:
            (begin, end), factor = above[0], above[1] // size
            is_empty = (end <= begin).any(axis=1, keepdims=True)
            hidden = begin * factor, np.where(is_empty, begin * factor, np.minimum(end * factor, -(-n // size)))
        yield (first, last), hidden
        above = (first, last), size


def _running(table: jax.Array) -> jax.Array:
    for axis in range(table.ndim):
        table = jnp.cumsum(table, axis=axis)
    return jnp.pad(table, [(1, 0)] * table.ndim)


def _sums(totals: jax.Array, first: np.ndarray, last: np.ndarray) -> jax.Array:
    """The sums over boxes by inclusion and exclusion of their corners."""
    found = jnp.zeros(first.shape[0], totals.dtype)
    for corner in product((0, 1), repeat=totals.ndim):
        index = tuple(last[:, axis] if is_last else first[:, axis] for axis, is_last in enumerate(corner))
        # A first block may lie past the end, where the range holds none.
        index = tuple(np.minimum(places, size - 1) for places, size in zip(index, totals.shape, strict=True))
        found = found + (-1) ** (totals.ndim - sum(corner)) * totals[index]
    return found
