"""Sums over the parts of a partition of the cells."""

from functools import cached_property
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import host_array, pytree, read_only, static
from dpinfer.queries.base import Array, Queries, namespace


@final
@pytree
class Partition(Queries):
    """Row g is the sum of the cells labelled g: every cell counts in exactly one row.

    Args:
        labels: int array [n], public, from 0; rows run to the largest label, and a label that no cell has makes a row of zeros.

    One application costs O(n).
    """

    labels: np.ndarray = static(converter=host_array)

    def __post_init__(self) -> None:
        labels = _checks.index_array("labels", self.labels)
        if labels.size == 0 or labels.min() < 0:
            raise ValueError(f"labels must hold one label from 0 for each of at least one cell, got {labels.tolist()[:10]}.")
        if labels.max() >= 2**31:
            raise ValueError(f"labels must be numbered without large gaps, got {labels.max()}.")
        object.__setattr__(self, "labels", read_only(labels))

    @cached_property
    def shape(self) -> tuple[int, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return int(self.labels.max()) + 1, self.labels.size

    @property
    def has_orthogonal_rows(self) -> bool:
        return True

    def _forward(self, x: Array) -> Array:
        size = (*x.shape[:-1], self.shape[0])
        if isinstance(x, jax.Array):
            return jnp.zeros(size, x.dtype).at[..., self.labels].add(x)
        sums = np.zeros(size, dtype=x.dtype)
        np.add.at(sums, (..., self.labels), x)  # pyright: ignore[reportArgumentType]
        return sums

    def _backward(self, y: Array) -> Array:
        return y[..., self.labels]

    def rows(self, start: int, stop: int) -> Array:
        return (np.arange(start, stop)[:, None] == self.labels).astype(np.int64)

    def gram(self) -> Array:
        return (self.labels[:, None] == self.labels).astype(np.int64)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        # Cells of two parts differ in the parts' rows, cells of one part in none.
        used = np.unique(self.labels)
        return namespace(weights).sort(weights[used])[-2:].sum() if used.size > 1 else weights.sum() * 0
