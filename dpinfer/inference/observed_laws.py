"""Laws of sums of cells given combinations of noisy answers that a user states: each without bias, with noise of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpinfer import _checks
from dpinfer.inference.posterior_grid import Laws
from dpinfer.inference.product_laws import product_laws
from dpinfer.queries import Queries


def observed_laws(
    measurement: Any, asked: Queries, matrices: Sequence[Any], *, is_lattice: bool, num_points: int
) -> tuple[np.ndarray, Laws]:
    """For each query its first observation, float64 [m], and the law of what it differs from that by.

    Args:
        measurement: with (discrete) Laplace noise.
        asked: m queries.
        matrices: for each a matrix [observations, rows of the measurement]; checked.
        is_lattice: whether the noise is discrete.
        num_points: of the laws' grids.
    """
    values = np.asarray(measurement.values, dtype=np.float64)
    _checks.finite("measurement", values)
    scale = np.broadcast_to(np.asarray(measurement.scale, dtype=np.float64), values.shape)
    centers, noises = [], []
    for i, given in enumerate(matrices):
        matrix = np.asarray(given, dtype=np.float64)
        _check(f"observations[{i}]", matrix, measurement.queries, asked.rows(i, i + 1), scale, is_lattice)
        centers.append([row[row != 0] @ values[row != 0] for row in matrix])
        # Entries of 0, and exact counts, add no noise.
        own = [np.abs(row[row != 0]) * scale[row != 0] for row in matrix]
        noises.append([np.unique(sizes[sizes > 0], return_counts=True) for sizes in own])
    width = max(len(factors) for factors in noises)
    kinds = max(size.size for factors in noises for size, _ in factors)
    scales, counts = np.zeros((len(noises), width, kinds)), np.zeros((len(noises), width, kinds))
    places = np.zeros((len(noises), width))
    for i, factors in enumerate(noises):
        places[i, : len(factors)] = centers[i]
        for j, (size, number) in enumerate(factors):
            scales[i, j, : size.size], counts[i, j, : size.size] = size, number
    center = places[:, 0].copy()
    laws = product_laws(places - center[:, None], scales, counts, is_lattice=is_lattice, num_points=num_points)
    return center, laws


def _check(name: str, matrix: np.ndarray, strategy: Queries, query: Any, scale: np.ndarray, is_lattice: bool) -> None:
    if matrix.ndim != 2 or matrix.shape[1] != scale.size or not matrix.shape[0]:
        raise ValueError(
            f"{name} must be a matrix [k, {scale.size}], a column for each measured answer, got shape {list(matrix.shape)}."
        )
    _checks.finite(name, matrix)
    used = matrix != 0
    shared = np.flatnonzero(used[:, scale > 0].sum(axis=0) > 1)
    if shared.size:
        row = int(np.flatnonzero(scale > 0)[shared[0]])
        raise ValueError(f"{name} must use no noisy answer twice; that of row {row} of the measurement is in two observations.")
    if (used & np.isinf(scale)).any():
        raise ValueError(f"{name} must not use what was not measured (scale inf).")
    if not (used & (scale > 0)).any(axis=1).all():
        raise ValueError(f"{name} must have noise in every observation; one is exact, and needs no estimate.")
    if is_lattice and not np.isin(matrix, (-1, 0, 1)).all():
        raise ValueError(f"{name} must have entries -1, 0 and 1 only: multiples of discrete noise are on no lattice of theirs.")
    answered = np.asarray(strategy.T @ matrix.T).T
    wrong = ~np.isclose(answered, np.asarray(query), rtol=1e-9, atol=1e-9 * max(1.0, np.abs(matrix).max())).all(axis=1)
    if wrong.any():
        raise ValueError(f"{name} must be without bias: observation {int(np.flatnonzero(wrong)[0])} is of another query.")
