"""Coordinates in which the covariances of all areas are block diagonal, with few and small blocks.

An attribute that every query counts in full or totals is *clean*. Under orthonormal coordinates of its levels, the first constant
and the others contrasts, S'S of a query S is diagonal along it, with one value for the constant and one for all contrasts. So the
coordinates fall into *classes*, one for each set of clean attributes that are contrasts, and everything that least squares adds
and inverts is, for a class, one matrix over the cells of the other, *dense* attributes, the same for all its coordinates. For the
redistricting data, with zeros that tie household type to age, 4 matrices of 16 x 16 stand for one of 2016 x 2016.

The symmetry is also used, with other compressed dimensions, by BlueDown (Ghazi et al. 2026, arXiv 2603.10099).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, combinations
from typing import final

import numpy as np

from dpinfer.spine.schema import Query, Schema


@final
class Classes:
    """Coordinates in which every query of a list is block diagonal; arrays of counts become [..., dense, columns].

    Args:
        schema: the attributes.
        queries: whatever is measured, held at zero or exact anywhere.
        split: attributes of which some levels are zero and others are not, by queries in full: the names of such queries.

    Attributes:
        dense_names, clean_names: the attributes of either kind.
        reasons: for each dense attribute, the name of a query that makes it dense.
        num_dense: combinations of the levels of dense attributes: rows and columns of a class matrix.
        num_columns: combinations of the levels of clean attributes.
        num_classes: how many class matrices stand for a matrix over all cells.
    """

    def __init__(self, schema: Schema, queries: Iterable[Query], split: Mapping[str, str] | None = None):
        self.schema = schema
        self.reasons: dict[str, str] = dict(split or {})
        for query in queries:
            for axis, name in enumerate(schema.names):
                if not (query.is_total(axis) or query.is_full(axis)):
                    self.reasons.setdefault(name, query.name)
        self._dense = [axis for axis, name in enumerate(schema.names) if name in self.reasons]
        self._clean = [axis for axis, name in enumerate(schema.names) if name not in self.reasons]
        self.dense_names = tuple(schema.names[axis] for axis in self._dense)
        self.clean_names = tuple(schema.names[axis] for axis in self._clean)
        self._sizes = [schema.shape[axis] for axis in self._clean]
        self.num_dense = math.prod(schema.shape[axis] for axis in self._dense)
        self.num_columns = math.prod(self._sizes)
        # A class is a set of clean attributes, by their places among the clean ones; one of a single level has no contrasts.
        places = [place for place, size in enumerate(self._sizes) if size > 1]
        self._classes = [set(some) for some in chain.from_iterable(combinations(places, k) for k in range(len(places) + 1))]
        self.num_classes = len(self._classes)
        counts = [math.prod(self._sizes[place] - 1 for place in some) for some in self._classes]
        ends = np.cumsum(counts)
        self.slices = [slice(int(end - count), int(end)) for end, count in zip(ends, counts, strict=True)]

    def explain(self) -> str:
        """Which attributes are clean and which dense, and by which query, in a sentence."""
        clean = ", ".join(self.clean_names) or "none"
        dense = "; ".join(f"{name} (by {self.reasons[name]!r})" for name in self.dense_names) or "none"
        return (
            f"clean attributes: {clean}; dense: {dense}; {self.num_classes} classes of {self.num_dense} x {self.num_dense} "
            f"for {self.schema.size} cells"
        )

    # ---- counts ----

    def rotate(self, counts: np.ndarray) -> np.ndarray:
        """[n, cells] in C order of the schema to [n, dense, columns], the columns of a class side by side."""
        x = counts.reshape(len(counts), *self.schema.shape)
        x = np.transpose(x, (0, *(axis + 1 for axis in (*self._dense, *self._clean))))
        x = np.ascontiguousarray(x).reshape(len(x), self.num_dense, *self._sizes)
        out = np.empty((len(x), self.num_dense, self.num_columns), _float_of(x))
        self._scatter(out, self._contrasts(x, range(len(self._sizes))), range(len(self._sizes)), add=False)
        return out

    def unrotate(self, x: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`rotate`."""
        grid = np.empty((len(x), self.num_dense, *self._sizes), x.dtype)
        places = range(len(self._sizes))
        for some, columns in zip(self._classes, self.slices, strict=True):
            where, shape = self._where(some, places)
            grid[(slice(None), slice(None), *where)] = x[:, :, columns].reshape(len(x), self.num_dense, *shape)
        # The rotation is symmetric, so that it is its own inverse.
        grid = self._contrasts(grid, places)
        order = [*self._dense, *self._clean]
        grid = grid.reshape(len(x), *(self.schema.shape[axis] for axis in order))
        back = np.argsort(order)
        return np.transpose(grid, (0, *(axis + 1 for axis in back))).reshape(len(x), self.schema.size)

    def add_information(self, out: np.ndarray, query: Query, values: np.ndarray, weights: np.ndarray) -> None:
        """Add weight * S'value of a query S to ``out`` [n, dense, columns]: values [n, size], weights [n]."""
        full = [place for place, axis in enumerate(self._clean) if query.is_full(axis)]
        order = [*self._dense, *(self._clean[place] for place in full)]
        rest = [axis for axis in range(len(query.shape)) if axis not in order]
        y = values.reshape(len(values), *query.shape).astype(out.dtype, copy=False)
        y = np.transpose(y, (0, *(axis + 1 for axis in (*order, *rest))))
        rows = math.prod(query.shape[axis] for axis in self._dense)
        y = np.ascontiguousarray(y).reshape(len(values), rows, math.prod(self._sizes[place] for place in full))
        y = y * (weights * self._scale(query) ** 0.5)[:, None, None].astype(out.dtype)
        if not self._is_identity(query):
            y = np.matmul(self.dense_matrix(query).T.astype(out.dtype), y)
        y = y.reshape(len(values), self.num_dense, *(self._sizes[place] for place in full))
        self._scatter(out, self._contrasts(y, range(len(full))), full, add=True)

    def _contrasts(self, x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        """The orthonormal coordinates along some of the axes after the first two: the constant, then contrasts.

        I - 2 v v' with v along (1, ..., 1) / sqrt n - (1, 0, ..., 0) takes the first unit vector to the constant one.
        """
        for axis in axes:
            size = x.shape[axis + 2]
            if size == 1:
                continue
            lead, after = math.prod(x.shape[: axis + 2]), math.prod(x.shape[axis + 3 :])
            shape = x.shape
            flat = x.reshape(lead, size, after)
            turn = _reflection(size).astype(x.dtype)
            x = (flat[..., 0] @ turn if after == 1 else np.matmul(turn, flat)).reshape(shape)
        return x

    def _where(self, some: set[int], places: Sequence[int]) -> tuple[list[slice], list[int]]:
        """Where a class lies among the coordinates of clean attributes, and its shape there."""
        where = [slice(1, None) if place in some else slice(0, 1) for place in places]
        return where, [self._sizes[place] - 1 if place in some else 1 for place in places]

    def _scatter(self, out: np.ndarray, x: np.ndarray, places: Sequence[int], *, add: bool) -> None:
        """Put the coordinates of some clean attributes, the others being constant, where their classes lie."""
        for some, columns in zip(self._classes, self.slices, strict=True):
            if some <= set(places):
                where, _ = self._where(some, places)
                piece = x[(slice(None), slice(None), *where)].reshape(len(x), x.shape[1], columns.stop - columns.start)
                if add:
                    out[:, :, columns] += piece
                else:
                    out[:, :, columns] = piece

    # ---- class matrices, [classes, dense, dense] ----

    def dense_matrix(self, query: Query) -> np.ndarray:
        """[dense rows, dense]: what a query does to the dense attributes."""
        return reduce(np.kron, (query.matrix(axis) for axis in self._dense), np.ones((1, 1)))

    def _is_identity(self, query: Query) -> bool:
        return all(query.is_full(axis) for axis in self._dense)

    def _scale(self, query: Query) -> int:
        """Levels of the clean attributes that a query adds up over."""
        return math.prod(size for axis, size in zip(self._clean, self._sizes, strict=True) if not query.is_full(axis))

    def sees(self, query: Query) -> list[bool]:
        """For each class whether a query says anything of it."""
        full = {place for place, axis in enumerate(self._clean) if query.is_full(axis)}
        return [some <= full for some in self._classes]

    def gram(self, query: Query) -> np.ndarray:
        """[classes, dense, dense]: S'S of a measured query."""
        rows = self.dense_matrix(query)
        return np.array(self.sees(query), dtype=float)[:, None, None] * (self._scale(query) * rows.T @ rows)

    def apply(self, matrices: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Class matrices, [n or 1, classes, dense, dense], times [n, dense, columns]."""
        out = np.empty((max(len(matrices), len(x)), *x.shape[1:]), x.dtype)
        for number, columns in enumerate(self.slices):
            np.matmul(matrices[:, number], x[:, :, columns], out=out[:, :, columns])
        return out

    def variances(self, query: Query, matrices: np.ndarray) -> np.ndarray:
        """Variance of each answer of any query, [n, size], under covariances [n, classes, dense, dense].

        Under a class the constant of a clean attribute counts g^2 / n for a group of g of its n levels, its contrasts
        g - g^2 / n.
        """
        rows = self.dense_matrix(query)
        dense = np.einsum("ri,ncij,rj->ncr", rows, matrices, rows, optimize=True)
        shape = [query.shape[axis] for axis in (*self._dense, *self._clean)]
        found = np.zeros((len(matrices), len(rows), math.prod(query.shape[axis] for axis in self._clean)))
        for number, some in enumerate(self._classes):
            factors = []
            for place, axis in enumerate(self._clean):
                groups = query.matrix(axis).sum(axis=1)
                constant = groups**2 / self._sizes[place]
                factors.append(groups - constant if place in some else constant)
            found += dense[:, number, :, None] * reduce(np.kron, factors, np.ones(1))
        back = np.argsort([*self._dense, *self._clean])
        found = found.reshape(len(matrices), *shape)
        return np.transpose(found, (0, *(axis + 1 for axis in back))).reshape(len(matrices), query.size)

    # ---- zeros ----

    def zero_rows(self, query: Query, is_zero: np.ndarray) -> np.ndarray:
        """[n, dense]: the dense cells counted by those answers of a query that are zero, [n, size]."""
        shape = [query.shape[axis] for axis in (*self._dense, *self._clean)]
        rows = math.prod(shape[: len(self._dense)])
        x = np.transpose(is_zero.reshape(len(is_zero), *query.shape), (0, *(axis + 1 for axis in (*self._dense, *self._clean))))
        x = x.reshape(len(is_zero), rows, math.prod(shape[len(self._dense) :]))
        if (x.any(axis=2) != x.all(axis=2)).any():
            raise ValueError(f"zeros: {query.name!r} is zero for some levels of {', '.join(self.clean_names)} only.")
        return (x[:, :, 0] @ self.dense_matrix(query)) > 0


def split_by(schema: Schema, query: Query, is_zero: np.ndarray) -> dict[str, str]:
    """The attributes along which zeros of a query, [n, size] truths, differ, with the query's name."""
    grid = is_zero.reshape(len(is_zero), *query.shape)
    axes = range(1, grid.ndim)
    return {schema.names[axis - 1]: query.name for axis in axes if (grid.any(axis=axis) != grid.all(axis=axis)).any()}


def _reflection(size: int) -> np.ndarray:
    v = np.full(size, size**-0.5)
    v[0] -= 1
    return np.eye(size) - 2 * np.outer(v, v) / (v @ v)


def _float_of(x: np.ndarray) -> np.dtype:
    return x.dtype if x.dtype in (np.float32, np.float64) else np.dtype(np.float64)
