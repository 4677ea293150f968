"""What intervals of cells cost by their absolute deviations, in whole units of 2^-bits, and by how much a record changes it.

Deviations are from the interval's mean or from its median. Let one cell of an interval of s cells rise by 1:

- The mean rises by 1 / s, so that each of the s - 1 others comes nearer to it, or farther, by at most 1 / s, and the cell
  itself by at most 1 - 1 / s: together 2 (1 - 1 / s). A cell below the mean that falls does it, others above.
- The median is one of the values that make the sum of deviations least. The old one still serves, with a sum that changed by 1;
  and backwards. So the least sum changes by at most 1; and that of one cell alone, which is 0, not at all.

A sum of deviations from the mean is a fraction, rounded down to units. A difference of floors is below the difference plus 1,
hence at most that difference rounded up: what :func:`largest_changes` says is in whole units and holds after rounding.

Cells beyond a public bound are moved to it, a map under which neighbours come no farther apart.
"""

import math
from fractions import Fraction
from typing import final

import numpy as np

COSTS = ("mean", "median")
# Units are 2^-10 of a record, or coarser where noise would not fit 64 bits.
FINEST = 10
# The deviations of all cells together are below. Products of two sizes and a sum then fit 64 bits for MAX_CELLS cells.
_MOST = 2**40
MAX_CELLS = 2**20


def largest_changes(lengths: np.ndarray, cost: str, bits: int) -> list[int]:
    """By how many units one cell that is one more or less changes the costs of intervals of such lengths, at most."""
    if cost == "median":
        return [2**bits if size > 1 else 0 for size in lengths.tolist()]
    return [math.ceil(2 ** (bits + 1) * (1 - Fraction(1, size))) for size in lengths.tolist()]


@final
class IntervalCosts:
    """The costs of intervals of private cells; private too.

    A wavelet matrix over the ranks of the values: level by level the cells are parted by one binary digit of their rank, and
    running counts and sums of those with a 0 lead any interval to its smallest values. An interval takes O(log n), n cells O(n
    log n) memory.

    Args:
        cells: private; int64 [n].
        cost: "mean" or "median", what deviations are from.
        bits: units are 2^-bits.
    """

    def __init__(self, cells: np.ndarray, cost: str, bits: int) -> None:
        n, bound = cells.size, _MOST // cells.size
        values = np.clip(cells, -bound, bound)
        order = np.argsort(values, kind="stable")
        ranks = np.empty(n, dtype=np.int64)
        ranks[order] = np.arange(n)
        self._cost, self._bits = cost, bits
        self._sorted = values[order]
        self._totals = _running(values)
        # One digit more than ranks have, so that n, which is no rank, can be asked for.
        self._digits = n.bit_length()
        self._counts, self._sums = [], []
        for digit in reversed(range(self._digits)):
            is_low = (ranks >> digit) & 1 == 0
            self._counts.append(_running(is_low.astype(np.int64)))
            self._sums.append(_running(np.where(is_low, values, 0)))
            parted = np.argsort(~is_low, kind="stable")
            ranks, values = ranks[parted], values[parted]
        self._last = values

    def between(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """Of the cells from each start to its stop, exclusive; int64 [m]."""
        size, total = stops - starts, self._totals[stops] - self._totals[starts]
        if self._cost == "median":
            low, middle = self._smallest(starts, stops, size // 2)
            return (total - 2 * low - (size & 1) * middle) << self._bits
        # Twice what those below the mean lack: 2 (number x total / size - their sum). Whole cells are below it if they are below
        # the next whole number.
        number, low = self._below(starts, stops, np.searchsorted(self._sorted, -(-total // size)))
        whole, rest = np.divmod(2 * (number * total - size * low), size)
        return (whole << self._bits) + (rest << self._bits) // size

    def _below(self, starts: np.ndarray, stops: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the cells whose rank is below, the number and the sum."""
        number, found = np.zeros(starts.size, dtype=np.int64), np.zeros(starts.size, dtype=np.int64)
        for level, digit in enumerate(reversed(range(self._digits))):
            is_high = (rank >> digit) & 1
            count, total, high = self._parted(level, starts, stops)
            number += is_high * count
            found += is_high * total
            starts, stops = (np.where(is_high, right, left) for left, right in high)
        return number, found

    def _smallest(self, starts: np.ndarray, stops: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sum of so many of the least cells, fewer than all, and the next one."""
        left, found = number, np.zeros(starts.size, dtype=np.int64)
        for level in range(self._digits):
            count, total, high = self._parted(level, starts, stops)
            is_high = left >= count
            left = left - is_high * count
            found += is_high * total
            starts, stops = (np.where(is_high, right, left) for left, right in high)
        return found, self._last[starts]

    def _parted(
        self, level: int, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """How many cells have a 0 there, their sum, and where starts and stops are among those with a 0 and those with a 1."""
        counts, sums = self._counts[level], self._sums[level]
        first, last = counts[starts], counts[stops]
        ones = counts[-1]
        return last - first, sums[stops] - sums[starts], [(first, ones + starts - first), (last, ones + stops - last)]


def _running(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(x)])
