"""AHP: noisy cells, and then the sums of clusters of cells whose noisy counts are near each other, wherever they are.

What it promises. The cells are measured with a part of the budget. Which noisy counts are too small to be told from 0, and
which are near enough to share a mean, is decided by looking at these noisy counts alone. The sums over the clusters are
measured with the rest of the budget; which clusters these are may depend on what was released before, and the losses add up.
Clusters are disjoint, so that one record changes one of their sums. Nothing but the cells is known beforehand, not even the
number of records.
"""

import dataclasses
import math
import os
from fractions import Fraction
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import over_cells
from dpinfer.measurement import Measurement
from dpinfer.mechanisms.linear import host_integers, measure
from dpinfer.privacy import Ledger
from dpinfer.queries import Identity, Partition, Queries, VStack
from dpinfer.release import Release
from dpinfer.scales import plan

# How many cells to come are looked at first, where a cell may rather be theirs.
_AHEAD = 32


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ClusteredCells:
    """Noisy cells and the noisy sums of clusters of them; made by :func:`ahp` or :meth:`load`.

    Attributes:
        release: of VStack([Identity(n), Partition(labels)]).
    """

    release: Release

    @property
    def measurement(self) -> Measurement:
        """Of the cells and of the clusters' sums, for estimators: ``least_squares`` makes use of both."""
        return self.release.measurement

    @property
    def epsilon(self) -> Fraction | None:
        """The exact loss, all in all."""
        return self.release.epsilon

    @property
    def neighbors(self) -> str | None:
        """The relation under which it holds."""
        return self.release.neighbors

    @property
    def labels(self) -> np.ndarray:
        """int64 [n], the cluster of each cell, clusters in the order of the noisy counts."""
        queries = self.release.queries
        if not (isinstance(queries, VStack) and len(queries.parts) == 2 and isinstance(queries.parts[1], Partition)):
            raise ValueError(f"release must be of cells and of one partition, as ahp makes it, got {queries!r}.")
        return queries.parts[1].labels

    @property
    def cells(self) -> np.ndarray:
        """float64 [n]: each cell the noisy mean of its cluster, the paper's estimate; the noisy cells are not used again."""
        labels = self.labels
        means = np.asarray(self.release.values, dtype=float)[labels.size :] / np.bincount(labels)
        return means[labels]

    def answer(self, workload: Any) -> PointAnswers:
        """Sums of the cells, taken for equal in their clusters: by how much in error nobody can say, so no intervals."""
        cells = self.cells
        return PointAnswers(jnp.asarray(over_cells(workload, cells.size) @ cells), "ahp")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the release to one .npz file, which appears whole or not at all; ``Release.load`` reads it as well."""
        self.release.save(path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "ClusteredCells":
        """The record that :meth:`save` wrote; a ValueError if it is none, is damaged, or of a newer version."""
        found = ClusteredCells(Release.load(path))
        _ = found.labels
        return found


def ahp(
    cells: Any,
    *,
    epsilon: Any,
    cell_share: Any = Fraction(17, 20),
    threshold: Any = Fraction(7, 20),
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
) -> ClusteredCells:
    """A private histogram of clusters of cells with like counts, neighbours or not; exact integer noise.

    Good for cells where many of them have nearly the same count, most of all 0. Ranges add up the errors of many shared means.

    Args:
        cells: private; an integer vector [n].
        epsilon: the budget.
        cell_share: how much of it goes into the noisy cells, by which clusters are found; a public number below 1.
        threshold: noisy cells up to this times ln(n) / their budget are taken for 0 when clusters are found.
        neighbors: "add_remove" (one record more or less) or "replace_one" (a record moves), which takes twice the noise.
        ledger: charged the whole of epsilon before anything is drawn.

    Returns:
        A :class:`ClusteredCells`.

    Cost: O(n log n), and up to O(n^2) where the counts of many cells are all a little different; exact draws for each cell and
    cluster.

    Reference: Zhang, Chen, Xu, Meng and Xie 2014, "Towards accurate histogram publication under differential privacy" (SDM), with
    its greedy clustering. The defaults are those that Hay et al. 2016 (DPBench) found good.

    Raises:
        ValueError: for anything wrong with the public arguments, or if the ledger does not have enough left.
    """
    whole = _checks.budget("epsilon", epsilon)
    share = _checks.budget("cell_share", cell_share)
    if share >= 1:
        raise ValueError(f"cell_share must be below 1, got {cell_share!r}.")
    limit = _checks.budget("threshold", threshold, zero=True)
    units = 2 if _checks.relation(neighbors) == "replace_one" else 1
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
    first, second = whole * share, whole * (1 - share)
    # What would be refused later is refused now, before anything is charged.
    for budget in (first, second):
        plan(Identity(1), epsilon=budget / units)
    private = host_integers(cells)
    if ledger is not None:
        ledger.charge(whole, unit="epsilon", neighbors=neighbors)

    def measured(queries: Queries, budget: Fraction) -> Release:
        # A record that moves is one less and one more. (Within one cluster nothing moves, and nothing would be lost.)
        found = measure(private, queries, epsilon=budget / units)
        return dataclasses.replace(found, epsilon=budget, neighbors=neighbors)

    noisy = measured(Identity(private.size), first)
    below = float(min(limit * units / first, Fraction(2**62))) * math.log(private.size)
    sums = measured(Partition(clusters(np.asarray(noisy.values), below, float(units / second))), second)
    return ClusteredCells(Release.concat([noisy, sums]))


def clusters(values: np.ndarray, below: float, scale: float) -> np.ndarray:
    """The cluster of each noisy value, int64 [n], numbered from the least values on.

    Along the sorted values the present cluster takes the next one if that errs less than to begin a new cluster with it: the
    error of a cluster is the sum of squares about its mean and the variance of its sum's noise over its size; the new cluster's
    is what this one value would have in the best cluster of values from here on.

    Args:
        values: [n], noisy counts; up to ``below`` they count as 0.
        below: not negative.
        scale: of the noise in a cluster's sum.
    """
    x = np.where(values <= below, 0, values).astype(float)
    order = np.argsort(x, kind="stable")
    x = x[order]
    # About their own middle, so that squares do not cancel.
    x = x - x[x.size // 2]
    sums, squares = (np.concatenate([[0.0], np.cumsum(y)]) for y in (x, x * x))
    variance = 2 * scale**2
    begins, begin, error = np.zeros(x.size, dtype=bool), 0, variance
    for j in range(1, x.size):
        size, total = j + 1 - begin, sums[j + 1] - sums[begin]
        joined = squares[j + 1] - squares[begin] - total * total / size + variance / size
        # What a new cluster adds is not negative and need not be known where joining lowers the error.
        if joined <= error or joined < error + _alone(x, sums, j, variance):
            error = joined
        else:
            begins[j], begin, error = True, j, variance
    labels = np.empty(x.size, dtype=np.int64)
    labels[order] = np.cumsum(begins)
    return labels


def _alone(x: np.ndarray, sums: np.ndarray, j: int, variance: float) -> float:
    """The least squared error of value j as one of the values j to l - 1 that share a noisy mean, over all l."""
    least, first, ahead = math.inf, j + 1, _AHEAD
    while first <= x.size:
        size = np.arange(first, min(first + ahead, x.size + 1)) - j
        bias = np.square((sums[j + size] - sums[j]) / size - x[j])
        least = min(least, float((bias + variance / np.square(size)).min()))
        # Values increase, and so does the bias.
        if bias[-1] >= least:
            break
        first, ahead = first + ahead, 4 * ahead
    return least
