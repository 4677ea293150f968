"""The cells themselves, and their sum."""

from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.queries.base import Array, Queries, namespace


@final
@pytree
class Identity(Queries):
    """Every cell by itself: row i is cell i."""

    n: int = static()

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _checks.integer("n", self.n, least=1))

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.n

    @property
    def has_orthogonal_rows(self) -> bool:
        return True

    @property
    def has_typical_first_cell(self) -> bool:
        return True

    def _forward(self, x: Array) -> Array:
        return x

    def _backward(self, y: Array) -> Array:
        return y

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(self.n), np.arange(1, self.n + 1)

    def gram(self) -> Array:
        return np.eye(self.n, dtype=np.int64)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        return namespace(weights).sort(weights)[-2:].sum()


@final
@pytree
class Total(Queries):
    """The sum of all cells, one row."""

    n: int = static()

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _checks.integer("n", self.n, least=1))

    @property
    def shape(self) -> tuple[int, int]:
        return 1, self.n

    @property
    def has_orthogonal_rows(self) -> bool:
        return True

    @property
    def has_typical_first_cell(self) -> bool:
        return True

    def _forward(self, x: Array) -> Array:
        return x.sum(axis=-1, keepdims=True)

    def _backward(self, y: Array) -> Array:
        return namespace(y).broadcast_to(y, (*y.shape[:-1], self.n))

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(1, dtype=np.int64), np.full(1, self.n)

    def gram(self) -> Array:
        return np.ones((self.n, self.n), dtype=np.int64)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        return weights.sum() * 0  # moving a record leaves the total as it is
