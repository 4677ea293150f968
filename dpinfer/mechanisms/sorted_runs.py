"""Counts in order of their size, fitted and in runs: for so many counts that no noise should be drawn for each.

What it promises. The release has exactly the law of the least-squares isotonic fit to :func:`dpinfer.mechanisms.sorted_counts`'
noisy counts (``fitted_runs``), a function of them alone, so it loses what these do. How long it takes depends on how many
different counts there are, so whoever can watch the clock learns something about that.
"""

import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer._files import read_record, reading, write_record
from dpinfer.mechanisms.fitted_runs import fitted_runs
from dpinfer.mechanisms.linear import host_integers
from dpinfer.mechanisms.sorted_counts import CHANGES
from dpinfer.noise import exact
from dpinfer.privacy import Ledger

_FORMAT = "dpinfer release of runs of sorted counts"
_VERSION = 1
# Counts, or groups of a region, are fewer.
MOST_GROUPS = 2**31


@final
@dataclass(frozen=True, eq=False)
class SortedRuns:
    """The isotonic fit of noisy counts by rank, in runs; made by :func:`sorted_runs` or :meth:`load`.

    Attributes:
        values: float64 [runs], the fitted counts, increasing.
        lengths: int64 [runs], how many ranks have each.
        scale: of the discrete Laplace noise in a count, exact.
        epsilon: the exact loss.
        unit: what epsilon protects, one "row" or one "edge".
        neighbors: "add_remove" or "replace_one" of these.
    """

    values: np.ndarray
    lengths: np.ndarray
    scale: Fraction
    epsilon: Fraction
    unit: str
    neighbors: str

    @property
    def whole_counts(self) -> np.ndarray:
        """int64 [runs], the fitted counts as whole ones: half upward, none below 0."""
        return np.floor(np.clip(self.values, 0.0, 2.0**62) + 0.5).astype(np.int64)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to one .npz file, which appears whole or not at all."""
        header = {"scale": str(self.scale), "epsilon": str(self.epsilon), "unit": self.unit, "neighbors": self.neighbors}
        write_record(path, _FORMAT, _VERSION, header, {"values": self.values, "lengths": self.lengths})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "SortedRuns":
        """The record that :meth:`save` wrote; a ValueError if it is none, is damaged, or of a newer version."""
        header, arrays = read_record(path, _FORMAT, _VERSION)
        with reading(path, _FORMAT):
            scale, epsilon = Fraction(header["scale"]), Fraction(header["epsilon"])
            return SortedRuns(arrays["values"], arrays["lengths"], scale, epsilon, header["unit"], header["neighbors"])


def sorted_runs(
    cells: Any,
    *,
    epsilon: Any,
    multiplicities: Any = None,
    unit: str = "row",
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
) -> SortedRuns:
    """A private release of the counts in order of their size, as the isotonic fit of noisy ones would have them, in runs.

    The same law as ``unattributed_histogram(sorted_counts(cells, epsilon=epsilon), rounded=False)``, but for clipping, from some
    log(n) exact draws for each n equal counts. The number of counts is public.

    Args:
        cells: private; an integer vector of counts.
        epsilon: the budget.
        multiplicities: private; how often each of the counts occurs, a vector of integers; left out: once each. Their sum is
            public, and less than 2^31.
        unit, neighbors, ledger: as in :func:`sorted_counts`.

    Cost: O(n log n) for sorting; for d different counts O(d log n) draws. 240 million counts of 7 sizes at epsilon 0.1 take a
    second.

    Reference: Hay, Rastogi, Miklau and Suciu 2010, section 3, for the query and the fit; ``fitted_runs`` for its law.

    Raises:
        ValueError: for anything wrong with the public arguments, or if the ledger does not have enough left.
    """
    _checks.choice("unit", unit, tuple(CHANGES))
    whole = _checks.budget("epsilon", epsilon)
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
    change = CHANGES[unit] * (2 if _checks.relation(neighbors) == "replace_one" else 1)
    private = host_integers(cells)
    times = np.ones(private.size, dtype=np.int64)
    if multiplicities is not None:
        times = np.maximum(host_integers(multiplicities), 0)
        if times.size != private.size:
            raise ValueError(f"multiplicities must have one entry for each of the {private.size} cells, got {times.size}.")
        if times.sum(dtype=float) >= MOST_GROUPS:
            raise ValueError("multiplicities must add up to less than 2**31.")
    scale = exact.check_scale("epsilon", Fraction(change) / whole)
    if ledger is not None:
        ledger.charge(whole, unit="epsilon", neighbors=neighbors)

    counts, place = np.unique(private, return_inverse=True)
    occurring = np.zeros(counts.size, dtype=np.int64)
    np.add.at(occurring, place.reshape(-1), times)
    values, lengths, _ = fitted_runs(counts, occurring, np.zeros(counts.size, dtype=np.int64), scale)
    return SortedRuns(values, lengths, scale, whole, unit, neighbors)
