"""Kronecker products of queries, and queries times weights."""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import any_array, leaf, pytree, read_only
from dpinfer.queries.base import Array, Queries, namespace

# Distinct kinds of pairs of columns of a product that are compared for its replace-one sensitivity, and the cells of a factor
# whose pairs are looked through.
_MAX_KINDS = 1 << 18
_MAX_FACTOR_CELLS = 4096
# Kinds of a factor that are compared with each other.
_MAX_COMPARED = 512


@final
@pytree
class Kronecker(Queries):
    """Every query of the first factor on the first axis, combined with every one of the second on the second, and so on.

    The cells are those of a grid with one axis a factor, flat in C order, and so are the rows. For tables:
    ``Kronecker([Identity(a), Total(b)])`` is the marginal of the first axis. One application costs that of each factor on the
    whole table, and memory linear in the larger of cells and rows on the way.
    """

    parts: Sequence[Queries]

    def __post_init__(self) -> None:
        parts = tuple(self.parts) if isinstance(self.parts, Iterable) else self.parts
        if not isinstance(parts, tuple) or not parts or not all(isinstance(part, Queries) for part in parts):
            raise ValueError(f"parts must be a non-empty list of queries, one for each axis, got {self.parts!r}.")
        object.__setattr__(self, "parts", parts)

    @property
    def shape(self) -> tuple[int, int]:
        rows, cells = zip(*(part.shape for part in self.parts), strict=True)
        return int(np.prod(rows, dtype=object)), int(np.prod(cells, dtype=object))

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
    def has_orthogonal_rows(self) -> bool:
        return all(part.has_orthogonal_rows for part in self.parts)

    def _along_axes(self, x: Array, apply: Any, side: int) -> Array:
        """``apply(part, entries)`` along each axis of the table that ``x`` holds in its last axis."""
        batch = x.shape[:-1]
        sizes = [part.shape[side] for part in self.parts]
        # Factors that shrink the table come first.
        table = x.reshape(-1, *sizes)
        order = sorted(range(len(sizes)), key=lambda i: self.parts[i].shape[1 - side] / max(1, self.parts[i].shape[side]))
        for axis in order:
            moved = namespace(table).moveaxis(table, axis + 1, -1)
            table = namespace(table).moveaxis(apply(self.parts[axis], moved), -1, axis + 1)
        return table.reshape(*batch, self.shape[1 - side])

    def _forward(self, x: Array) -> Array:
        return self._along_axes(x, lambda part, entries: part._forward(entries), 1)

    def _backward(self, y: Array) -> Array:
        return self._along_axes(y, lambda part, entries: part._backward(entries), 0)

    def dense(self) -> Array:
        return reduce(lambda a, b: namespace(a).kron(a, b), (part.dense() for part in self.parts))

    def gram(self) -> Array:
        return reduce(lambda a, b: namespace(a).kron(a, b), (part.gram() for part in self.parts))

    def _column_sums(self, weights: Array, order: int) -> Array:
        return self._along_axes(weights, lambda part, entries: part._column_sums(entries, order), 0)

    def _change_at_equal_weights(self, order: int, neighbors: str) -> int | None:
        exact = all(part.is_integer and part._largest_sum(2) < 2**62 for part in self.parts)
        if not exact:
            return None
        if neighbors == "add_remove":
            columns = (part._column_sums(np.ones(part.shape[0], dtype=np.int64), order).max() for part in self.parts)
            return int(np.prod([int(c) for c in columns], dtype=object))
        if self.shape[1] == 1:
            return 0
        return self._largest_pair_at_equal_weights(order)

    def _largest_pair_at_equal_weights(self, order: int) -> int | None:
        """Exact for squares, and for entries of -1, 0 and 1; None where it is not known or there is too much to compare."""
        small = all(part.shape[1] <= _MAX_FACTOR_CELLS or part.has_typical_first_cell for part in self.parts)
        if not small or not (order == 2 or self.has_unit_entries):
            return None
        # ||u - v||^2 = |u|^2 + |v|^2 - 2 u'v, and all three are products over the factors. With entries of -1, 0 and 1 the L1
        # norm is |u|^2 + |v|^2 - u'v - |u|'|v|, again of products: an entry of both counts 2 if they agree, and 0 if not.
        # Each factor has few kinds of (|u|^2, |v|^2, u'v, |u|'|v|).
        factors, kinds = [_kinds_of_pairs(part, order) for part in self.parts], {(1, 1, 1, 1)}
        if min(min(kind) for own in factors for kind in own) >= 0:
            factors = map(_undominated, factors)
        for own in factors:
            if len(kinds) * len(own) > _MAX_KINDS:
                return None
            kinds = {(a * p, b * q, c * r, d * s) for a, b, c, d in kinds for p, q, r, s in own}
        return max(a + b - c - d for a, b, c, d in kinds)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        is_even = isinstance(weights, np.ndarray) and weights.size > 0 and bool(np.all(weights == weights[0]))
        change = self._change_at_equal_weights(order, "replace_one") if is_even else None
        return super()._largest_pair(weights, order) if change is None else weights[0] * change

    def _largest_sum(self, order: int) -> int:
        return int(np.prod([max(1, part._largest_sum(order)) for part in self.parts], dtype=object)) * 4

    def _largest_row(self) -> int:
        return int(np.prod([part._largest_row() for part in self.parts], dtype=object))


def _undominated(kinds: set[tuple[int, int, int, int]]) -> set[tuple[int, int, int, int]]:
    """The kinds that can lead to the largest difference if nothing is negative: those not worse than another in all four."""
    if len(kinds) > _MAX_COMPARED:
        return kinds
    return {
        (a, b, c, d)
        for a, b, c, d in kinds
        if not any(p >= a and q >= b and r <= c and s <= d and (p, q, r, s) != (a, b, c, d) for p, q, r, s in kinds)
    }


def _kinds_of_pairs(part: Queries, order: int) -> set[tuple[int, int, int, int]]:
    """The distinct (|u|^2, |v|^2, u'v, |u|'|v|) over pairs of columns, a column with itself included; u'v twice for order 2."""
    if part.has_typical_first_cell:
        column = part._forward(np.eye(1, part.shape[1], dtype=np.int64)[0])
        inner = part._backward(column)
        overlap = inner if order == 2 else part._column_sums(abs(column), 1)
        pairs = np.unique(np.stack([inner, overlap], axis=1), axis=0)
        return {(inner[0].item(), inner[0].item(), c, d) for c, d in pairs.tolist()}
    gram = np.asarray(part.gram())
    overlap = gram if order == 2 else np.asarray(part.overlap_gram())
    squares, offset = np.diagonal(gram), int(np.abs(gram).max())
    base = 2 * offset + 1
    if base**4 < 2**63:  # four digits of one number, which sorts ten times faster than rows of four
        keys = np.unique(((squares[:, None] * base + squares) * base + gram + offset) * base + overlap + offset)
        digits = [keys // base**3, keys // base**2 % base, keys // base % base - offset, keys % base - offset]
        return set(zip(*(digit.tolist() for digit in digits), strict=True))
    both = np.broadcast_to(squares, gram.shape)
    kinds = np.unique(np.stack([both.T.ravel(), both.ravel(), gram.ravel(), overlap.ravel()], axis=1), axis=0)
    return {(a, b, c, d) for a, b, c, d in kinds.tolist()}


@final
@pytree
class Weighted(Queries):
    """Queries times weights: row i is ``weights[i]`` times row i. For workloads; a release takes ``row_weights`` instead.

    Args:
        queries: [m, n].
        weights: one number, or one a row [m]; finite.
    """

    queries: Queries
    weights: Array = leaf(converter=any_array)

    def __post_init__(self) -> None:
        if not isinstance(self.queries, Queries):
            raise ValueError(f"queries must be a family from dpinfer.queries, got {type(self.queries).__name__}.")
        weights = self.weights
        if weights.shape not in ((), (self.queries.shape[0],)):
            raise ValueError(
                f"weights must be a number or have shape [{self.queries.shape[0]}], one for each row, got {list(weights.shape)}."
            )
        _checks.finite("weights", weights)
        if not isinstance(weights, jax.Array):
            exact = weights.dtype.kind in "biu"
            weights = read_only(weights, np.int64 if exact else np.float64)
        object.__setattr__(self, "weights", weights)

    @property
    def shape(self) -> tuple[int, int]:
        return self.queries.shape

    @property
    def is_integer(self) -> bool:
        return self.queries.is_integer and self.weights.dtype.kind == "i"

    @property
    def has_zero_one_entries(self) -> bool:
        return False

    @property
    def has_orthogonal_rows(self) -> bool:
        return self.queries.has_orthogonal_rows

    def _times(self, x: Array) -> Array:
        """``x`` [..., m] times the weights."""
        weights: Any = self.weights
        if isinstance(x, jax.Array) or isinstance(weights, jax.Array):
            x = jnp.asarray(x)
            dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(x.dtype, weights.dtype)
            weights = jnp.asarray(weights, dtype)
        elif x.dtype == object:
            weights = weights.astype(object)
        return x * weights.reshape((1,) * (x.ndim - weights.ndim) + weights.shape if weights.ndim else ())

    def _forward(self, x: Array) -> Array:
        return self._times(self.queries._forward(x))

    def _backward(self, y: Array) -> Array:
        return self.queries._backward(self._times(y))

    def rows(self, start: int, stop: int) -> Array:
        weights = self.weights if self.weights.ndim == 0 else self.weights[start:stop, None]
        return self.queries.rows(start, stop) * weights

    def _sizes(self, order: int) -> Array:
        return abs(self.weights) ** order

    def _column_sums(self, weights: Array, order: int) -> Array:
        return self.queries._column_sums(self._scaled(weights, order), order)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        return self.queries._largest_pair(self._scaled(weights, order), order)

    def _scaled(self, weights: Array, order: int) -> Array:
        """Row weights of the unweighted queries that amount to ``weights`` of these."""
        own: Any = self.weights
        if isinstance(weights, np.ndarray) and isinstance(own, np.ndarray):
            own = own.astype(object) if weights.dtype == object else own
            return weights * abs(own) ** order
        return jnp.asarray(weights) * jnp.abs(jnp.asarray(own)) ** order

    def _largest_sum(self, order: int) -> int:
        if not self.is_integer or not _checks.is_concrete(self.weights):
            return 0
        return self.queries._largest_sum(order) * max((abs(int(w)) ** order for w in np.ravel(self.weights)), default=1)

    def _largest_row(self) -> int:
        return self.queries._largest_row() * max((abs(int(w)) for w in np.ravel(self.weights)), default=1)
