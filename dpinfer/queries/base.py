"""What every family of counting queries can do: a linear map from cells to answers."""

import abc
import dataclasses
import math
from functools import cached_property
from types import ModuleType
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import content_key

Array = jax.Array | np.ndarray

# Above this many multiplications the exact largest change of replace-one over all pairs of columns is not enumerated.
_MAX_PAIR_WORK = 2**31
# Queries or cells up to which a product with a JAX array is one compiled program; of larger ones the structure (indices, labels)
# would become large constants of the program, which takes long to compile.
_MAX_COMPILED = 2**16


def namespace(x: Any) -> ModuleType:
    """The array module that ``x`` belongs to: numpy for host arrays (64-bit whatever JAX is set to), else jax.numpy."""
    return np if isinstance(x, np.ndarray) else jnp


def as_array(name: str, x: Any) -> Array:
    """``x`` as an array of numbers; everything but JAX arrays becomes a numpy array, small integers become int64."""
    if isinstance(x, jax.Array):
        return x.astype(int) if x.dtype == bool else x
    array = np.asarray(x)
    if array.dtype.kind in "bi" or (array.dtype.kind == "u" and array.dtype.itemsize < 8):
        return array.astype(np.int64)
    if array.dtype.kind not in "ufO":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}.")
    return array


class Queries(abc.ABC):
    """A matrix A with one row a counting query and one column a cell, kept by its structure and never formed unless asked.

    ``q @ x`` is A x for cells x of shape [n] (or a matrix [n, k]), ``q.T @ y`` is A' y, ``q.dense()`` is A. Host arrays
    are computed in numpy, in 64 bit; JAX arrays in JAX, under jit, vmap and grad.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(number of queries m, number of cells n)."""

    @abc.abstractmethod
    def _forward(self, x: Array) -> Array:
        """A x along the last axis of ``x``."""

    @abc.abstractmethod
    def _backward(self, y: Array) -> Array:
        """A' y along the last axis of ``y``."""

    @property
    def is_integer(self) -> bool:
        """Whether every entry of the matrix is an integer, as a real release needs."""
        return True

    @property
    def has_zero_one_entries(self) -> bool:
        """Whether every entry of the matrix is known to be 0 or 1."""
        return True

    @property
    def has_unit_entries(self) -> bool:
        """Whether every entry of the matrix is known to be -1, 0 or 1."""
        return self.has_zero_one_entries

    @property
    def has_orthogonal_rows(self) -> bool:
        """Whether every two rows are known to be orthogonal."""
        return False

    @property
    def has_typical_first_cell(self) -> bool:
        """Whether the first cell and any other relate in every way in which two cells do, as to norms and inner products."""
        return False

    @property
    def levels(self) -> np.ndarray | None:
        """The level of each row, int64 [m], for budgets by level: a tree's from the top, a stack's parts; else None."""
        return None

    def level_sensitivities(self, order: int, neighbors: str) -> list[Any]:
        """For each level, max over neighbours of sum_i |change of answer i|^order over the level's rows alone."""
        levels = self.levels
        if levels is None:
            raise ValueError(f"{self!r} has no levels to budget; only trees and VStack have. Give one epsilon or rho instead.")
        return [
            np.asarray(self.largest_change((levels == level).astype(self.exact_dtype(1, order)), order, neighbors)).item()
            for level in range(levels.max() + 1)
        ]

    def __matmul__(self, x: Any) -> Array:
        return _apply(self, as_array("cells", x), "cells")

    @property
    def T(self) -> "Transposed":
        """The transpose: ``q.T @ y``."""
        return Transposed(self)

    def dense(self) -> Array:
        """The matrix itself, [m, n]; numpy int64 for the structured families. Memory m n."""
        return self._forward(np.eye(self.shape[1], dtype=np.int64)).T

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(starts, stops), int64 [m] each, if every row sums one contiguous range of cells; else None."""
        return None

    def rows(self, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop - 1`` of the matrix, [stop - start, n]."""
        return self._backward(np.eye(stop - start, self.shape[0], k=start, dtype=np.int64))

    def gram(self) -> Array:
        """A' A, [n, n]. Memory n^2."""
        matrix = self.dense()
        return matrix.T @ matrix

    def overlap_gram(self) -> Array:
        """|A|' |A|, [n, n]; for entries of -1, 0 and 1 how many queries hold both of two cells. Memory n^2."""
        if self.has_zero_one_entries:
            return self.gram()
        matrix = abs(self.dense())
        return matrix.T @ matrix

    def sensitivity(self, order: int = 1, neighbors: str = "add_remove") -> Any:
        """The largest L1 (``order=1``) or L2 (``order=2``) change of the answers between two neighbouring databases.

        ``neighbors="add_remove"``: one record more or less; the largest column norm, exact.
        ``neighbors="replace_one"``: one record changes its cell; the largest norm of a difference of two columns. Exact where
        the structure gives it (identity, total, prefix, trees, wavelets, all ranges; other ranges and boxes to 4,096 cells;
        products of such with entries of -1, 0 and 1 and factors of up to 4,096 cells) and where the pairs of columns can be
        enumerated; otherwise an upper bound: the sum of the two largest column norms, or of a stack's parts.
        """
        _checks.choice("order", order, (1, 2))
        _checks.relation(neighbors)
        change = self._change_at_equal_weights(order, neighbors)
        if change is None:
            change = self.largest_change(np.ones(self.shape[0], dtype=self.exact_dtype(1, order)), order, neighbors)
        if isinstance(change, jax.Array) and not _checks.is_concrete(change):
            return jnp.sqrt(change) if order == 2 else change
        number = np.asarray(change).item()
        return math.sqrt(number) if order == 2 else number

    def largest_change(self, weights: Array, order: int, neighbors: str) -> Any:
        """Max over neighbours of sum_i weights_i |change of answer i|^order, for non-negative weights, one a row.

        The privacy loss of Laplace noise is this with order 1 and weights 1 / scale; the zero-concentrated loss of Gaussian
        noise is half of this with order 2 and weights 1 / variance. Exact for integer and object arrays of Python integers.
        """
        _checks.relation(neighbors)
        columns = self._column_sums(weights, order)
        if neighbors == "add_remove":
            return columns.max()
        if self.shape[1] == 1:
            return columns.max() * 0
        return self._largest_pair(weights, order)

    def _change_at_equal_weights(self, order: int, neighbors: str) -> int | None:
        """:meth:`largest_change` with weights of 1 where a formula gives it exactly, without an entry a row; else None."""
        del order, neighbors
        return None

    def exact_dtype(self, largest_weight: int, order: int) -> type:
        """The dtype of weights up to ``largest_weight`` with which :meth:`largest_change` cannot wrap: int64, or object."""
        return np.int64 if largest_weight * max(1, self._largest_sum(order)) < 2**62 else object

    def _largest_sum(self, order: int) -> int:
        """An upper bound of all sums over rows that :meth:`largest_change` forms with weights of 1."""
        del order
        return 4 * self.shape[0]  # entries of 0 and 1

    def _column_sums(self, weights: Array, order: int) -> Array:
        """sum_i weights_i |A_ij|^order for each cell j; entries of 0 and 1 make it A' weights."""
        del order
        return self._backward(weights)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        """max_{j,k} sum_i weights_i |A_ij - A_ik|^order, or twice the two largest column norms where that is too much work."""
        m, n = self.shape
        if not isinstance(weights, np.ndarray) or m * n * n > _MAX_PAIR_WORK:
            top = namespace(weights).sort(self._column_sums(weights, order))
            # (a + b)^2 <= 2 a^2 + 2 b^2: for order 2 the bound on the squared norm needs the factor.
            return (top[-1] + top[-2]) * order
        matrix = np.asarray(self.dense())
        matrix = matrix.astype(object) if weights.dtype == object else matrix
        return max(
            (weights[:, None] * np.abs(matrix[:, j + 1 :] - matrix[:, j : j + 1]) ** order).sum(axis=0).max()
            for j in range(n - 1)
        )

    def _largest_row(self) -> int:
        """An upper bound of the sum of the absolute entries of a row; entries of 0 and 1 make it n."""
        return self.shape[1]

    @cached_property
    def _content(self) -> tuple[Any, ...]:
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return type(self), *(content_key(getattr(self, f.name)) for f in fields)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Queries) and self._content == other._content)

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]} queries of {self.shape[1]} cells)"


@final
class Transposed:
    """The transpose of a family of queries, for ``q.T @ y``."""

    def __init__(self, queries: Queries):
        self.T = queries

    @property
    def shape(self) -> tuple[int, int]:
        m, n = self.T.shape
        return n, m

    def __matmul__(self, y: Any) -> Array:
        return _apply(self.T, as_array("values", y), "values")

    def dense(self) -> Array:
        return self.T.dense().T


def _apply(queries: Queries, x: Array, name: str) -> Array:
    """A x for ``name`` "cells", A' x for "values"."""
    length = queries.shape[1 if name == "cells" else 0]
    if x.ndim not in (1, 2) or x.shape[0] != length:
        raise ValueError(f"{name} must have shape [{length}] or [{length}, k], got {list(x.shape)}.")
    is_compiled = isinstance(x, jax.Array) and _checks.is_concrete(x) and max(queries.shape) <= _MAX_COMPILED
    return (_compiled_product if is_compiled else _product)(queries, x, name)


def _product(queries: Queries, x: Array, name: str) -> Array:
    operation = queries._forward if name == "cells" else queries._backward
    return operation(x) if x.ndim == 1 else operation(x.T).T


_compiled_product = jax.jit(_product, static_argnames="name")
