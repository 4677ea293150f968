"""Counts in order of their size, without saying whose they are: unattributed histograms and degree sequences.

What it promises. The query is S(x), the counts x sorted upward. Sorting brings vectors no farther apart: the sum of
|S(x)_i - S(x')_i| is at most that of |x_j - x'_j|, the best way to match two sets of numbers being in their order. So

- one record more or less changes one count by 1, and S by at most 1 in all (Hay et al. 2010, proposition 3);
- one edge of an undirected graph more or less changes two degrees by 1 each, and S by at most 2: noise of scale 1 / epsilon,
  which is enough for directed edges or records, would spend 2 epsilon there.

If the number of counts is private too, it is released first, with a budget of its own. One record (edge) changes it by at most 1
(2), when a group (the nodes at its ends) appears. S then are the largest so many counts, filled up with zeros. As infinite
vectors, in falling order with zeros behind, neighbours' counts are as close as above, and cutting both at the same length brings
them no farther apart. The two losses add up.

Everything that can raise depends on public facts: the dtype, the budget, the ledger; and on how many counts there are only if
that is public. Counts below 0, which are none, would be measured as 0 if their number is private.
"""

import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer._files import read_record, reading, write_record
from dpinfer.measurement import Measurement
from dpinfer.mechanisms.linear import host_integers, saturating_sum
from dpinfer.noise import exact
from dpinfer.privacy import Ledger
from dpinfer.queries import Identity

_FORMAT = "dpinfer release of sorted counts"
_VERSION = 1
# By how much one unit more or less changes the sorted counts.
CHANGES = {"row": 1, "edge": 2}


@final
@dataclass(frozen=True, eq=False)
class SortedCounts:
    """Noisy counts by rank, the smallest first; made by :func:`sorted_counts` or :meth:`load`.

    Attributes:
        values: int64 [ranks]: a true count each, in order, plus its noise; so not in order themselves, and some negative.
        scale: of the discrete Laplace noise, exact.
        epsilon: the exact loss, all in all.
        size_epsilon: how much of it went into the number of ranks; None if that is public.
        unit: what epsilon protects, one "row" or one "edge".
        neighbors: "add_remove" or "replace_one" of these.
    """

    values: np.ndarray
    scale: Fraction
    epsilon: Fraction
    size_epsilon: Fraction | None
    unit: str
    neighbors: str

    @property
    def measurement(self) -> Measurement:
        """The ranks as cells, each measured by itself: for estimators that know the order, and for the bootstrap."""
        return Measurement(Identity(self.values.size), self.values, "discrete_laplace", float(self.scale))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to one .npz file, which appears whole or not at all."""
        header = {
            "scale": str(self.scale),
            "epsilon": str(self.epsilon),
            "size_epsilon": None if self.size_epsilon is None else str(self.size_epsilon),
            "unit": self.unit,
            "neighbors": self.neighbors,
        }
        write_record(path, _FORMAT, _VERSION, header, {"values": self.values})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "SortedCounts":
        """The record that :meth:`save` wrote; a ValueError if it is none, is damaged, or of a newer version."""
        header, arrays = read_record(path, _FORMAT, _VERSION)
        with reading(path, _FORMAT):
            size_epsilon = header["size_epsilon"]
            return SortedCounts(
                arrays["values"],
                Fraction(header["scale"]),
                Fraction(header["epsilon"]),
                None if size_epsilon is None else Fraction(size_epsilon),
                header["unit"],
                header["neighbors"],
            )


def sorted_counts(
    cells: Any,
    *,
    epsilon: Any,
    unit: str = "row",
    size_epsilon: Any = None,
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
) -> SortedCounts:
    """A private release of the counts in order of their size, with exact integer noise from the operating system.

    Args:
        cells: private; an integer vector of counts: a histogram, or the degree of every node.
        epsilon: the budget for the counts.
        unit: what a neighbour has more or less: a "row" that is counted in one cell, or an "edge" of an undirected graph, which
            is counted at both of its ends (Hay et al.'s social network).
        size_epsilon: None if the number of cells is public (a domain; the nodes of a graph under neighbours that differ by an
            edge). Else the budget for that number, beside ``epsilon``; the number of values then is a noisy one, at least 1.
        neighbors: "add_remove" (one unit more or less) or "replace_one" (one is another), which takes twice the noise.
        ledger: charged epsilon and size_epsilon before any noise is drawn; its records are the units.

    Returns:
        A :class:`SortedCounts`; ``inference.unattributed_histogram`` makes the best of it. O(n log n), and one exact draw a rank.

    Reference: Hay, Rastogi, Miklau and Suciu 2010, section 3. For a graph its experiments (section 5.1) need the "edge".

    Raises:
        ValueError: for anything wrong with the public arguments, or if the ledger does not have enough left.
    """
    _checks.choice("unit", unit, tuple(CHANGES))
    whole = _checks.budget("epsilon", epsilon)
    size_budget = None if size_epsilon is None else _checks.budget("size_epsilon", size_epsilon)
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
    change = CHANGES[unit] * (2 if _checks.relation(neighbors) == "replace_one" else 1)
    is_size_private = size_budget is not None
    if is_size_private and np.ndim(cells) == 1 and np.size(cells) == 0:
        # Refused by its dtype alone, as if there were counts; an empty list has none.
        host_integers(np.zeros(1, dtype=np.int64 if isinstance(cells, (list, tuple)) else np.asarray(cells).dtype))
        private = np.zeros(0, dtype=np.int64)
    else:
        private = host_integers(cells)
    scale = exact.check_scale("epsilon", Fraction(change) / whole)
    size_scale = None if size_budget is None else exact.check_scale("size_epsilon", Fraction(change) / size_budget)
    spend = whole if size_budget is None else whole + size_budget
    if ledger is not None:
        ledger.charge(spend, unit="epsilon", neighbors=neighbors)

    size = private.size
    if size_scale is not None:
        noise = int(exact.discrete_laplace([size_scale], np.zeros(1, dtype=np.int64))[0])
        size = max(1, size + noise)
        largest = np.sort(np.maximum(private, 0))[::-1][:size]
        private = np.concatenate([largest, np.zeros(size - largest.size, dtype=np.int64)])
    drawn = exact.discrete_laplace([scale], np.zeros(size, dtype=np.int64))
    return SortedCounts(saturating_sum(np.sort(private), drawn), scale, spend, size_budget, unit, neighbors)
