"""Sums over contiguous cells: prefixes, any list of ranges, all ranges."""

from functools import cached_property
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer._pytree import host_array, pytree, read_only, static
from dpinfer.queries.base import Array, Queries, namespace
from dpinfer.queries.boxes import Boxes


@final
@pytree
class Prefix(Queries):
    """Cumulative counts: row i is the sum of cells 0 to i, the i-th included."""

    n: int = static()

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _checks.integer("n", self.n, least=1))

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.n

    def _forward(self, x: Array) -> Array:
        return namespace(x).cumsum(x, axis=-1)

    def _backward(self, y: Array) -> Array:
        return namespace(y).cumsum(y[..., ::-1], axis=-1)[..., ::-1]

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(self.n, dtype=np.int64), np.arange(1, self.n + 1)

    def gram(self) -> Array:
        index = np.arange(self.n)
        return self.n - np.maximum(index[:, None], index)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        return weights[:-1].sum()  # cells 0 and n-1 differ in every row but the last


@final
@pytree
class Suffix(Queries):
    """Counts from each cell on: row i is the sum of cells i to n - 1, the i-th included."""

    n: int = static()

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _checks.integer("n", self.n, least=1))

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.n

    def _forward(self, x: Array) -> Array:
        return namespace(x).cumsum(x[..., ::-1], axis=-1)[..., ::-1]

    def _backward(self, y: Array) -> Array:
        return namespace(y).cumsum(y, axis=-1)

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(self.n), np.full(self.n, self.n)

    def gram(self) -> Array:
        index = np.arange(self.n)
        return 1 + np.minimum(index[:, None], index)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        return weights[1:].sum()  # cells 0 and n-1 differ in every row but the first


@final
@pytree
class Ranges(Queries):
    """Sums of ``cells[start:stop]``, one row a range; half-open, in the order given. Empty ranges are allowed.

    Args:
        n: number of cells.
        starts: int array [m], 0 <= start.
        stops: int array [m], start <= stop <= n.

    One application costs O(m + n). Sums of floats are differences of running totals, so that their rounding error is
    relative to the total of the cells and not to the range.
    """

    n: int = static()
    starts: np.ndarray = static(converter=host_array)
    stops: np.ndarray = static(converter=host_array)

    def __post_init__(self) -> None:
        n = _checks.integer("n", self.n, least=1)
        starts = _checks.index_array("starts", self.starts)
        stops = _checks.index_array("stops", self.stops)
        if starts.shape != stops.shape:
            raise ValueError(f"starts and stops must have the same length, got {starts.size} and {stops.size}.")
        bad = np.flatnonzero((starts < 0) | (starts > stops) | (stops > n))
        if bad.size:
            i = bad[0]
            raise ValueError(
                f"Ranges are half-open and must satisfy 0 <= start <= stop <= n = {n}; "
                f"row {i} is [{starts[i]}, {stops[i]}) ({bad.size} such in all)."
            )
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "starts", read_only(starts))
        object.__setattr__(self, "stops", read_only(stops))

    @property
    def shape(self) -> tuple[int, int]:
        return self.starts.size, self.n

    def _forward(self, x: Array) -> Array:
        xp = namespace(x)
        totals = xp.cumsum(x, axis=-1)
        totals = xp.concatenate([xp.zeros_like(totals[..., :1]), totals], axis=-1)
        return totals[..., self.stops] - totals[..., self.starts]

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return self.starts, self.stops

    def rows(self, start: int, stop: int) -> Array:
        cell = np.arange(self.n)
        return ((self.starts[start:stop, None] <= cell) & (cell < self.stops[start:stop, None])).astype(np.int64)

    def _backward(self, y: Array) -> Array:
        steps = _scatter_add(y, self.starts, self.n + 1) - _scatter_add(y, self.stops, self.n + 1)
        return namespace(y).cumsum(steps[..., :-1], axis=-1)

    @cached_property
    def _boxes(self) -> Boxes:
        return Boxes((self.n,), self.starts[:, None], self.stops[:, None])

    def gram(self) -> Array:
        return self._boxes.gram()

    def _largest_pair(self, weights: Array, order: int) -> Any:
        return self._boxes._largest_pair(weights, order)


@final
@pytree
class AllRange(Queries):
    """Every non-empty range once: [0,1), [0,2), ..., [0,n), [1,2), ..., [n-1,n); n (n + 1) / 2 rows."""

    n: int = static()

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _checks.integer("n", self.n, least=1))

    @cached_property
    def ranges(self) -> Ranges:
        """The same rows as a list of ranges."""
        starts, stops = np.triu_indices(self.n)
        return Ranges(self.n, starts, stops + 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.n * (self.n + 1) // 2, self.n

    def _forward(self, x: Array) -> Array:
        return self.ranges._forward(x)

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return self.ranges.starts, self.ranges.stops

    def rows(self, start: int, stop: int) -> Array:
        return self.ranges.rows(start, stop)

    def _backward(self, y: Array) -> Array:
        return self.ranges._backward(y)

    def gram(self) -> Array:
        index = np.arange(self.n)
        return (np.minimum(index[:, None], index) + 1) * (self.n - np.maximum(index[:, None], index))

    def sensitivity(self, order: int = 1, neighbors: str = "add_remove") -> Any:
        """floor((n + 1)^2 / 4) for L1 under both relations (n > 1), its square root for L2."""
        _checks.choice("order", order, (1, 2))
        _checks.relation(neighbors)
        # Cell j lies in (j+1)(n-j) ranges; cells j < k part in s (n+1-s) of them, s = (j+1) + (n-k) in 2..n.
        largest = 0 if self.n == 1 and neighbors == "replace_one" else (self.n + 1) ** 2 // 4
        return largest if order == 1 else largest**0.5

    def _largest_pair(self, weights: Array, order: int) -> Any:
        return self.ranges._largest_pair(weights, order)


def _scatter_add(values: Array, index: np.ndarray, size: int) -> Array:
    if isinstance(values, np.ndarray):
        out = np.zeros((*values.shape[:-1], size), dtype=values.dtype)
        np.add.at(out, (..., index), values)  # pyright: ignore[reportArgumentType]
        return out
    xp = namespace(values)
    return xp.zeros((*values.shape[:-1], size), values.dtype).at[..., index].add(values)
