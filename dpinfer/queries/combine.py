"""Queries made of queries."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._pytree import pytree
from dpinfer.queries.base import Array, Queries


@final
@pytree
class VStack(Queries):
    """Several families over the same cells, one under the other: the rows of ``parts[0]`` first."""

    parts: Sequence[Queries]

    def __post_init__(self) -> None:
        parts = tuple(self.parts) if isinstance(self.parts, Iterable) else self.parts
        if not isinstance(parts, tuple) or not parts or not all(isinstance(part, Queries) for part in parts):
            raise ValueError(f"parts must be a non-empty list of queries, got {self.parts!r}.")
        sizes = [part.shape[1] for part in parts]
        if len(set(sizes)) > 1:
            raise ValueError(f"parts must all be over the same cells, got {sizes} cells.")
        object.__setattr__(self, "parts", parts)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def is_integer(self) -> bool:
        return all(part.is_integer for part in self.parts)

    @property
    def has_zero_one_entries(self) -> bool:
        return all(part.has_zero_one_entries for part in self.parts)

    @property
    def has_unit_entries(self) -> bool:
        return all(part.has_unit_entries for part in self.parts)

    @property
    def levels(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.parts)), [part.shape[0] for part in self.parts])

    def split(self, rows: Array) -> list[Array]:
        """Something with one entry a row along its last axis, cut into the parts' shares."""
        stops = accumulate(part.shape[0] for part in self.parts)
        return [rows[..., stop - part.shape[0] : stop] for part, stop in zip(self.parts, stops, strict=True)]

    def _forward(self, x: Array) -> Array:
        return _concatenate([part._forward(x) for part in self.parts])

    def _backward(self, y: Array) -> Array:
        return _sum([part._backward(piece) for part, piece in zip(self.parts, self.split(y), strict=True)])

    def dense(self) -> Array:
        return _concatenate([part.dense().T for part in self.parts]).T

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray] | None:
        parts = [part.as_ranges() for part in self.parts]
        ranges = [part for part in parts if part is not None]
        if len(ranges) < len(parts):
            return None
        starts, stops = zip(*ranges, strict=True)
        return np.concatenate(starts), np.concatenate(stops)

    def rows(self, start: int, stop: int) -> Array:
        first = [0, *accumulate(part.shape[0] for part in self.parts)]
        inside = [(p, max(start - f, 0), min(stop - f, p.shape[0])) for p, f in zip(self.parts, first, strict=False)]
        return _concatenate([part.rows(a, b).T for part, a, b in inside if a < b] or [np.zeros((self.shape[1], 0))]).T

    def gram(self) -> Array:
        return _sum([part.gram() for part in self.parts])

    def _column_sums(self, weights: Array, order: int) -> Array:
        return _sum([p._column_sums(w, order) for p, w in zip(self.parts, self.split(weights), strict=True)])

    def _largest_pair(self, weights: Array, order: int) -> Any:
        pair = super()._largest_pair(weights, order)
        if not isinstance(weights, np.ndarray):
            return pair
        # Where pairs are too many to enumerate that is a bound, and so are the parts' own largest changes together.
        return min(pair, sum(p._largest_pair(w, order) for p, w in zip(self.parts, self.split(weights), strict=True)))

    def overlap_gram(self) -> Array:
        return _sum([part.overlap_gram() for part in self.parts])

    def _largest_sum(self, order: int) -> int:
        return sum(part._largest_sum(order) for part in self.parts)

    def _largest_row(self) -> int:
        return max(part._largest_row() for part in self.parts)


def _sum(pieces: list[Array]) -> Array:
    total: Any = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total


def _concatenate(pieces: list[Array]) -> Array:
    is_jax = any(isinstance(piece, jax.Array) for piece in pieces)
    return (jnp if is_jax else np).concatenate(pieces, axis=-1)
