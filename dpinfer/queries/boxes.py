"""Sums over boxes of cells that lie in a grid."""

from itertools import product
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import host_array, pytree, read_only, static
from dpinfer.queries.base import Array, Queries, namespace

# A table of all pairs of cells, 8 bytes each, gives the exact replace-one sensitivity up to here.
_MAX_PAIR_CELLS = 4096


@final
@pytree
class Boxes(Queries):
    """Sums over ``cells.reshape(shape)[start_1:stop_1, ..., start_d:stop_d]``, one row a box; half-open, in the order given.

    Args:
        shape: cells along each of d axes; the cells are flat in C order.
        starts, stops: int arrays [m, d] with 0 <= start <= stop <= shape.

    One application costs O(n d + m 2^d). Sums of floats are differences of running totals, whose rounding error is relative to
    the total of the cells.
    """

    grid: tuple[int, ...] = static()
    starts: np.ndarray = static(converter=host_array)
    stops: np.ndarray = static(converter=host_array)

    def __post_init__(self) -> None:
        grid = _checks.grid("shape", self.grid)
        corners = []
        for name in ("starts", "stops"):
            array = getattr(self, name)
            if array.ndim != 2 or array.shape[1] != len(grid):
                raise ValueError(f"{name} must have shape [m, {len(grid)}], one corner a box, got {list(array.shape)}.")
            corners.append(_checks.index_array(name, array.reshape(-1)).reshape(array.shape))
        starts, stops = corners
        if starts.shape != stops.shape:
            raise ValueError(f"starts and stops must have the same length, got {len(starts)} and {len(stops)}.")
        bad = np.flatnonzero(((starts < 0) | (starts > stops) | (stops > np.array(grid))).any(axis=1))
        if bad.size:
            row = bad[0]
            raise ValueError(
                f"Boxes are half-open and must satisfy 0 <= start <= stop <= {list(grid)}; row {row} is "
                f"{starts[row].tolist()} to {stops[row].tolist()} ({bad.size} such in all)."
            )
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "starts", read_only(starts))
        object.__setattr__(self, "stops", read_only(stops))

    @property
    def shape(self) -> tuple[int, int]:
        return self.starts.shape[0], int(np.prod(self.grid))

    def _corners(self) -> list[tuple[int, tuple[np.ndarray, ...]]]:
        """(sign, indices into the table of running totals) of each of the 2^d corners of all boxes."""
        ends = [(self.starts[:, axis], self.stops[:, axis]) for axis in range(len(self.grid))]
        return [
            ((-1) ** (len(choice) - sum(choice)), tuple(pair[c] for pair, c in zip(ends, choice, strict=True)))
            for choice in product((0, 1), repeat=len(self.grid))
        ]

    def _forward(self, x: Array) -> Array:
        xp, batch = namespace(x), x.shape[:-1]
        totals = x.reshape(*batch, *self.grid)
        for axis in range(len(batch), totals.ndim):
            totals = xp.cumsum(totals, axis=axis)
        totals = xp.pad(totals, [(0, 0)] * len(batch) + [(1, 0)] * len(self.grid))
        total: Any = xp.zeros((*batch, self.shape[0]), dtype=totals.dtype)
        for sign, corner in self._corners():
            total = total + sign * totals[(..., *corner)]
        return total

    def _backward(self, y: Array) -> Array:
        batch, table = y.shape[:-1], tuple(size + 1 for size in self.grid)
        if isinstance(y, jax.Array):
            steps: Any = jnp.zeros((*batch, *table), y.dtype)
            for sign, corner in self._corners():
                steps = steps.at[(..., *corner)].add(sign * y)
        else:
            steps = np.zeros((*batch, *table), dtype=y.dtype)
            for sign, corner in self._corners():
                np.add.at(steps, (..., *corner), sign * y)  # pyright: ignore[reportArgumentType]
        # A box is the sum over its corners, with signs, of all that lies behind them; (-1)^d turns the starts' sign around.
        for axis in range(len(batch), steps.ndim):
            steps = namespace(y).cumsum(steps, axis=axis)
        cells = steps[(..., *(slice(0, size) for size in self.grid))] * (-1) ** len(self.grid)
        return cells.reshape(*batch, self.shape[1])

    def rows(self, start: int, stop: int) -> Array:
        found: Any = np.ones((stop - start, 1), dtype=np.int64)
        for axis, size in enumerate(self.grid):
            cell = np.arange(size)
            inside = (self.starts[start:stop, axis, None] <= cell) & (cell < self.stops[start:stop, axis, None])
            found = (found[:, :, None] * inside[:, None, :]).reshape(stop - start, found.shape[1] * size)
        return found

    def gram(self) -> Array:
        return self._shared(np.ones(self.shape[0], dtype=np.int64))

    def _shared(self, weights: np.ndarray) -> Array:
        """The weight of the boxes that hold both of two cells, [n, n]: of the boxes of pairs of cells that hold the pair."""
        pairs = Boxes(self.grid * 2, np.tile(self.starts, 2), np.tile(self.stops, 2))
        return pairs._backward(weights).reshape(self.shape[1], self.shape[1])

    def _largest_pair(self, weights: Array, order: int) -> Any:
        if not isinstance(weights, np.ndarray) or self.shape[1] > _MAX_PAIR_CELLS:
            return super()._largest_pair(weights, order)
        shared = self._shared(weights)
        single = np.diagonal(shared)
        return (single[:, None] + single - 2 * shared).max()

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray] | None:
        return (self.starts[:, 0], self.stops[:, 0]) if len(self.grid) == 1 else None
