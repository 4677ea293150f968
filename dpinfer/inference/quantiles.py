"""Quantiles of ordered cells, read off one linear estimate, with intervals."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from dpinfer.inference.estimate import LinearEstimate
from dpinfer.queries import Prefix, Ranges, Total


class Quantiles(NamedTuple):
    """Cells that hold quantiles; each array is int64 [number of quantiles].

    Attributes:
        cell: the estimate: the first cell whose running total reaches its share of the total.
        lower, upper: the first and the last cell that the noise does not rule out.
    """

    cell: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def quantiles(estimate: LinearEstimate, shares: Sequence[float], level: float = 0.95) -> Quantiles:
    """The cells at which the cumulative count passes given shares of the total, with intervals.

    With P_i the sum of cells 0 to i, S_i of the rest and T of all, the q-quantile is the first i with P_i - q T >= 0. That
    difference is (1 - q) P_i - q S_i, a linear answer of exact variance (1 - q) var P_i + q var S_i - q (1 - q) var T. The
    interval holds every cell i at whose two ends, i - 1 and i, the differences may have opposite signs at the given level: a
    test inverted cell by cell, so that each covers about ``level`` (normal law), whatever the cells.

    Args:
        estimate: of cells in their natural order.
        shares: numbers q strictly between 0 and 1.
        level: of each interval.

    Cost: three range answers of n rows. Host only.
    """
    for share in shares:
        if not 0 < share < 1:
            raise ValueError(f"shares must be strictly between 0 and 1, got {share}.")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    n = estimate.cells.shape[0]
    starts = np.arange(1, n + 1)
    prefix, total = estimate.answer(Prefix(n)), estimate.answer(Total(n))
    suffix = estimate.answer(Ranges(n, starts, np.full(n, n)))
    running, whole = np.asarray(prefix.values), float(total.values[0])
    below, above, both = (np.square(np.asarray(a.stddev)) for a in (prefix, suffix, total))
    # One-sided tests at each end of a cell: level + (1 - level)/2 on either side.
    z = NormalDist().inv_cdf((1 + level) / 2)
    found = []
    for share in shares:
        difference = running - share * whole
        spread = z * np.sqrt(np.maximum((1 - share) * below + share * above - share * (1 - share) * both, 0.0))
        reached = np.flatnonzero(difference >= 0)
        # Cell i is possible unless P_{i-1} - qT is surely positive or P_i - qT surely negative.
        surely_before = difference + spread < 0
        surely_after = np.concatenate([[False], difference[:-1] - spread[:-1] >= 0])
        possible = np.flatnonzero(~surely_before & ~surely_after)
        cell = int(reached[0]) if reached.size else n - 1
        found.append(
            (cell, min(cell, possible[0]) if possible.size else cell, max(cell, possible[-1]) if possible.size else cell)
        )
    return Quantiles(*np.array(found, dtype=np.int64).reshape(-1, 3).T)
