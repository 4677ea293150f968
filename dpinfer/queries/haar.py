"""The Haar wavelet as counting queries."""

from functools import cached_property
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.queries.base import Array, Queries, namespace


@final
@pytree
class Haar(Queries):
    """The total, then for every node of a binary tree the sum of its left half less that of its right half: rows of +-1.

    Rows after the total run level by level from the root, left to right. If n is no power of two, the cells are taken as
    followed by empty ones up to the next, N: there are N rows always, and rows over empty cells alone are zero.

    Equal scales for all rows, which is what ``measure`` gives, are Privelet (Xiao, Wang, Gehrke 2010, section IV): its
    coefficients are these rows divided by the node's number of cells, and its weights multiply by that number again.

    One application costs O(N).
    """

    n: int = static()

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _checks.integer("n", self.n, least=1))

    def __repr__(self) -> str:
        padded = f", padded to {self.padded}" if self.padded != self.n else ""
        return f"Haar({self.n}{padded})"

    @property
    def padded(self) -> int:
        """N, the least power of two that is at least n."""
        return 1 << (self.n - 1).bit_length()

    @property
    def shape(self) -> tuple[int, int]:
        return self.padded, self.n

    @property
    def levels(self) -> np.ndarray:
        """The total is level 0, the nodes follow by depth: 1, 2, ..."""
        return np.array([0, *(row.bit_length() for row in range(1, self.padded))])

    @property
    def has_zero_one_entries(self) -> bool:
        return self.padded == 1

    @property
    def has_unit_entries(self) -> bool:
        return True

    @property
    def has_orthogonal_rows(self) -> bool:
        return self.padded == self.n

    @property
    def has_typical_first_cell(self) -> bool:
        return True

    def _forward(self, x: Array) -> Array:
        xp = namespace(x)
        sums = xp.concatenate([x, xp.zeros((*x.shape[:-1], self.padded - self.n), dtype=x.dtype)], axis=-1)
        rows = []
        while sums.shape[-1] > 1:
            pairs = sums.reshape(*sums.shape[:-1], -1, 2)
            rows.insert(0, pairs[..., 0] - pairs[..., 1])
            sums = pairs[..., 0] + pairs[..., 1]
        return xp.concatenate([sums, *rows], axis=-1)

    def _backward(self, y: Array) -> Array:
        return self._spread(y, -1)

    def _spread(self, y: Array, sign: int) -> Array:
        """From the root down, each node's row added to its left half and, times ``sign``, to its right half."""
        xp, cells = namespace(y), y[..., :1]
        while cells.shape[-1] < self.padded:
            size = cells.shape[-1]
            rows = y[..., size : 2 * size]
            cells = xp.stack([cells + rows, cells + sign * rows], axis=-1).reshape(*y.shape[:-1], 2 * size)
        return cells[..., : self.n]

    @cached_property
    def _height(self) -> int:
        return self.padded.bit_length() - 1

    def gram(self) -> Array:
        # Two cells agree in the total and in the nodes that hold them in one half, and are opposite where they part.
        index = np.arange(self.n)
        return self.overlap_gram() - 2 * (index[:, None] != index)

    def overlap_gram(self) -> Array:
        # The total, and one node for each depth down to where the cells part.
        index = np.arange(self.n)
        apart = index[:, None] ^ index
        return (self._height - np.frexp(apart.astype(np.float64))[1] + 1 + (apart > 0)).astype(np.int64)

    def _change_at_equal_weights(self, order: int, neighbors: str) -> int:
        if neighbors == "add_remove":
            return self._height + 1
        # Two cells that part at the root, of which there are some for n > 1.
        return 2**order + 2 * (self._height - 1) if self.n > 1 else 0

    def _largest_row(self) -> int:
        return self.padded

    def _largest_sum(self, order: int) -> int:
        return 4 * (self._height + 2)

    def _column_sums(self, weights: Array, order: int) -> Array:
        del order
        return self._spread(weights, 1)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        # Two cells part at one node, where their entries are 1 and -1, and below it each has rows of its own.
        xp = namespace(weights)
        below = weights[:1] * xp.zeros(self.padded, dtype=weights.dtype)
        is_real = np.arange(self.padded) < self.n
        largest = weights.sum() * 0
        while below.shape[0] > 1:
            size = below.shape[0] // 2
            rows = weights[size : 2 * size]
            halves, real = below.reshape(size, 2), is_real.reshape(size, 2)
            both = np.flatnonzero(real.all(axis=1))
            if both.size:
                pairs = (2**order * rows[both] + halves[both].sum(axis=1)).max()
                largest = max(largest, pairs) if xp is np else xp.maximum(largest, pairs)
            left_only = xp.where(real[:, 1], halves.max(axis=1), halves[:, 0])
            below, is_real = rows + left_only, real.any(axis=1)
        return largest
