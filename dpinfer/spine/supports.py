"""Where a node's counts may vary: all of its cells, or those that zeros and exact values leave open.

A support is, for each class, a subspace of the dense cells, kept as an orthogonal projector. Supports come from structure alone,
from which cells are zero and which queries are exact, so that no rank is ever decided from noisy numbers or from variances.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from dpinfer.spine.classes import Classes
from dpinfer.spine.schema import Query

# Of orthonormal bases and rows of zeros and ones: singular values are 0 or far from it.
_ZERO = 1e-9


class Constraint(NamedTuple):
    """What is known exactly of a node: dense cells that are zero, and queries, by their numbers, whose answers are known."""

    zeros: bytes
    exact: tuple[int, ...]


@final
class Supports:
    """Subspaces by number, each once; 0 is the whole space.

    Args:
        classes: the coordinates.
        queries: the measured queries, which the numbers in constraints and in sets of measured queries count.
    """

    def __init__(self, classes: Classes, queries: Sequence[Query]):
        self.classes = classes
        self.queries = tuple(queries)
        size = classes.num_dense
        self._rows = [(classes.dense_matrix(query), classes.sees(query)) for query in self.queries]
        self._projectors: list[np.ndarray] = []
        self._numbers: dict[bytes, int] = {}
        self._spans: dict[frozenset[int], int] = {}
        self._met: dict[tuple[int, Constraint], int] = {}
        self._solvers: dict[tuple[int, Constraint], np.ndarray] = {}
        self._determined: dict[tuple[int, bytes], bool] = {}
        self.free = Constraint(np.zeros(size, dtype=bool).tobytes(), ())
        self.number(np.broadcast_to(np.eye(size), (classes.num_classes, size, size)))

    def number(self, projector: np.ndarray) -> int:
        """The number of a support, [classes, dense, dense], given to it where it is new."""
        key = np.ascontiguousarray(projector).tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._projectors)
            self._projectors.append(np.array(projector))
        return self._numbers[key]

    def projectors(self, numbers: np.ndarray) -> np.ndarray:
        """[n, classes, dense, dense] of supports by their numbers."""
        used, place = np.unique(numbers, return_inverse=True)
        return np.stack([self._projectors[number] for number in used])[place] if len(numbers) else np.empty((0, 0, 0, 0))

    def are_whole(self, numbers: np.ndarray) -> bool:
        """Whether all are the whole space."""
        return not numbers.any()

    def span(self, numbers: np.ndarray) -> int:
        """What sums of vectors in several supports may be."""
        some = frozenset(map(int, numbers))
        if len(some) == 1:
            return next(iter(some))
        if some not in self._spans:
            parts = [self._projectors[number] for number in some]
            found = [_onto(np.concatenate([part[c] for part in parts], axis=1)) for c in range(self.classes.num_classes)]
            self._spans[some] = self.number(np.stack(found))
        return self._spans[some]

    def meet(self, number: int, constraint: Constraint) -> int:
        """What is left of a support under a constraint."""
        if constraint == self.free:
            return number
        if (number, constraint) not in self._met:
            zeros = np.frombuffer(constraint.zeros, dtype=bool)
            held = np.eye(self.classes.num_dense)[zeros]
            found = []
            for c, projector in enumerate(self._projectors[number]):
                rows = [held, *(self._rows[q][0] for q in constraint.exact if self._rows[q][1][c])]
                basis = _basis(projector)
                found.append(_onto(basis @ _kernel(np.concatenate(rows) @ basis)))
            self._met[number, constraint] = self.number(np.stack(found))
        return self._met[number, constraint]

    def held(self, constraint: Constraint) -> np.ndarray:
        """[classes, dense, dense]: the sum of S'S of what a constraint knows."""
        gram = np.diag(np.frombuffer(constraint.zeros, dtype=bool).astype(float))
        return sum(
            (self.classes.gram(self.queries[q]) for q in constraint.exact), np.broadcast_to(gram, self._projectors[0].shape)
        )

    def solver(self, number: int, constraint: Constraint) -> np.ndarray:
        """[classes, dense, dense]: takes what a constraint is missed by to a correction within a support."""
        if (number, constraint) not in self._solvers:
            found = []
            for projector, own in zip(self._projectors[number], self.held(constraint), strict=True):
                basis = _basis(projector)
                seen = own @ basis
                # Singular values below this are rounding, where siblings leave nothing open.
                largest = float(np.linalg.norm(seen, 2)) if seen.size else 0.0
                found.append(basis @ np.linalg.pinv(seen, rcond=_ZERO / min(1.0, max(largest, _ZERO))))
            self._solvers[number, constraint] = np.stack(found)
        return self._solvers[number, constraint]

    def is_determined(self, number: int, measured: np.ndarray) -> bool:
        """Whether measured queries, [queries] of truths, determine every vector of a support."""
        key = (number, measured.tobytes())
        if key not in self._determined:
            found = True
            for c, projector in enumerate(self._projectors[number]):
                rows = [self._rows[q][0] for q in np.flatnonzero(measured) if self._rows[q][1][c]]
                basis = _basis(projector)
                seen = np.concatenate([*rows, np.zeros((1, len(basis)))]) @ basis
                found = found and _kernel(seen).shape[1] == 0
            self._determined[key] = found
        return self._determined[key]


def _basis(projector: np.ndarray) -> np.ndarray:
    """[d, k], orthonormal; of a projector onto some cells, their unit vectors."""
    on = np.diag(projector)
    if np.array_equal(projector, np.diag(on)):
        return np.eye(len(on))[:, on > 0.5]
    values, vectors = np.linalg.eigh(projector)
    return vectors[:, values > 0.5]


def _onto(columns: np.ndarray) -> np.ndarray:
    """The projector onto what columns span, its zeros and ones exact."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    left = left[:, sizes > _ZERO]
    found = left @ left.T
    whole = np.rint(found)
    found = np.where(np.abs(found - whole) < _ZERO, whole + 0.0, found)
    return (found + found.T) / 2


def _kernel(rows: np.ndarray) -> np.ndarray:
    """[k, r], orthonormal vectors that rows of length k take to zero."""
    if not rows.shape[1] or not len(rows):
        return np.eye(rows.shape[1])
    _, sizes, right = np.linalg.svd(rows, full_matrices=True)
    return right[int((sizes > _ZERO).sum()) :].T
