"""Any matrix, written out."""

from typing import Any, final

import jax
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import any_array, leaf, pytree, read_only
from dpinfer.queries.base import Array, Queries, namespace


@final
@pytree
class Dense(Queries):
    """A matrix of queries written out, [m, n]; row i is query i. Integer matrices are kept as exact host int64."""

    matrix: Array = leaf(converter=any_array)

    def __post_init__(self) -> None:
        matrix = self.matrix
        if _checks.is_concrete(matrix) and np.asarray(matrix).dtype.kind in "biu":
            # Host int64, whatever came: a narrow dtype would wrap where sensitivities square and add its entries.
            exact = np.asarray(matrix)
            if exact.dtype.kind == "u" and exact.size and int(exact.max()) > np.iinfo(np.int64).max:
                raise ValueError(f"matrix must fit 64-bit signed integers, got {exact.max()}.")
            matrix = read_only(exact)
        elif not isinstance(matrix, jax.Array):
            matrix = read_only(matrix, np.asarray(matrix).dtype)
        if matrix.ndim != 2 or matrix.shape[1] == 0:
            raise ValueError(f"matrix must have shape [m, n] with n at least 1, got {list(matrix.shape)}.")
        _checks.finite("matrix", matrix)
        object.__setattr__(self, "matrix", matrix)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape  # pyright: ignore[reportReturnType]

    @property
    def is_integer(self) -> bool:
        return self.matrix.dtype.kind in "iu"

    @property
    def has_zero_one_entries(self) -> bool:
        return _checks.is_concrete(self.matrix) and bool(np.isin(np.asarray(self.matrix), (0, 1)).all())

    @property
    def has_unit_entries(self) -> bool:
        return _checks.is_concrete(self.matrix) and bool(np.isin(np.asarray(self.matrix), (-1, 0, 1)).all())

    def _forward(self, x: Array) -> Array:
        return x @ self._like(x).T

    def _backward(self, y: Array) -> Array:
        return y @ self._like(y)

    def _like(self, x: Array) -> Array:
        """The matrix where ``x`` lives. A host int64 vector meets a host matrix; anything else is JAX's to combine."""
        matrix = self.matrix
        if isinstance(x, np.ndarray) and not isinstance(matrix, jax.Array):
            return matrix.astype(object) if x.dtype == object else matrix
        return namespace(x).asarray(matrix) if isinstance(x, jax.Array) else matrix

    def dense(self) -> Array:
        return self.matrix

    def rows(self, start: int, stop: int) -> Array:
        return self.matrix[start:stop]

    def _largest_row(self) -> int:
        # Python integers: entries near 2^63 must not wrap.
        return max((sum(map(abs, row)) for row in np.asarray(self.matrix).tolist()), default=0)

    def _largest_sum(self, order: int) -> int:
        if not self.is_integer or not self.shape[0] or not _checks.is_concrete(self.matrix):
            return 0
        return self.shape[0] * max((2 * abs(x)) ** order for x in (int(np.min(self.matrix)), int(np.max(self.matrix))))

    def _column_sums(self, weights: Array, order: int) -> Array:
        return weights @ abs(self._like(weights)) ** order


def as_queries(name: str, value: Any) -> Queries:
    """``value`` if it is a family of queries, or its rows as a matrix; one vector is one query."""
    if isinstance(value, Queries):
        return value
    if isinstance(value, (list, tuple, np.ndarray, jax.Array)):
        array = value if isinstance(value, jax.Array) else np.asarray(value)
        if array.ndim not in (1, 2) or array.shape[-1] == 0 or array.dtype.kind not in "biuf":
            raise ValueError(f"{name} must be a matrix [m, n] of numbers, got shape {list(array.shape)}, dtype {array.dtype}.")
        return Dense(array[None, :] if array.ndim == 1 else array)
    raise ValueError(f"{name} must be queries (dpinfer.queries) or a matrix [m, n], got {type(value).__name__}.")
