"""A level of a tree from what its nodes measured and hold exactly."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpinfer.spine.passes import Level
from dpinfer.spine.schema import Query
from dpinfer.spine.supports import Constraint, Supports


def build_level(
    supports: Supports,
    parent: np.ndarray,
    nodes: np.ndarray,
    rows: Sequence[tuple[Query, np.ndarray, np.ndarray]],
    is_zero: np.ndarray,
    *,
    count: np.ndarray | None = None,
    names: Any = None,
    dtype: Any = np.float64,
) -> Level:
    """What some nodes say by themselves.

    Args:
        supports: of the tree.
        parent: [n], places in the level above, in order.
        nodes: [n], their rows in ``rows``.
        rows: for each query its values [all, answers] and variances [all]; 0 is exact, infinite not measured.
        is_zero: [n, dense].
        count: [n], how many nodes alike an entry stands for.
        names: [n], for messages; "node i" by default.
        dtype: of the vectors.
    """
    classes = supports.classes
    variances = np.stack([variance[nodes] for _, _, variance in rows], axis=1) if rows else np.empty((len(nodes), 0))
    patterns, pattern = np.unique(variances, axis=0, return_inverse=True)
    is_exact = patterns == 0
    weights = np.where(is_exact, 0.0, 1 / np.where(is_exact, 1.0, patterns))
    grams = np.stack([classes.gram(query) for query, _, _ in rows]) if rows else np.empty((0, 0))
    gram = np.tensordot(weights, grams, 1)
    vector = np.zeros((len(nodes), classes.num_dense, classes.num_columns), dtype)
    exact = np.zeros_like(vector) if is_exact.any() else None
    for number, (query, values, _) in enumerate(rows):
        weight = weights[pattern, number]
        at = np.flatnonzero(weight)
        if at.size:
            _add(classes, vector, at, query, values[nodes[at]], weight[at])
        known = np.flatnonzero(is_exact[pattern, number])
        if exact is not None and known.size:
            _add(classes, exact, known, query, values[nodes[known]], np.ones(known.size))
    zeros, zero = np.unique(is_zero, axis=0, return_inverse=True)
    exacts, which = np.unique(is_exact, axis=0, return_inverse=True)
    pairs, constraint = np.unique(zero * len(exacts) + which[pattern], return_inverse=True)
    constraints = [
        Constraint(zeros[pair // len(exacts)].tobytes(), tuple(np.flatnonzero(exacts[pair % len(exacts)]).tolist()))
        for pair in pairs
    ]
    names = [f"node {node}" for node in nodes] if names is None else names
    # An exact answer determines what it counts as a measured one does.
    return Level(parent, gram, np.isfinite(patterns), pattern, vector, constraints, constraint, exact, count, names)


def _add(classes: Any, out: np.ndarray, at: np.ndarray, query: Query, values: np.ndarray, weights: np.ndarray) -> None:
    if len(at) == len(out):
        classes.add_information(out, query, values, weights)
        return
    part = np.zeros((len(at), *out.shape[1:]), out.dtype)
    classes.add_information(part, query, values, weights)
    out[at] += part
