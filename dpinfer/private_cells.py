"""Private cells behind a budget: an analyst asks question after question and never sees them."""

import threading
from fractions import Fraction
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer.mechanisms import measure
from dpinfer.mechanisms.linear import host_integers
from dpinfer.privacy import Ledger
from dpinfer.queries import Queries
from dpinfer.release import Release


@final
class PrivateCells:
    """Cells that answer only through :func:`dpinfer.measure`, charging one ledger; in the manner of PINQ (McSherry 2009).

    Every measurement is charged before its noise is drawn; one that costs more than remains is refused, and nothing of the
    cells is revealed by the refusal. Questions may depend on earlier answers: the ledger's total was fixed beforehand, so that
    the losses of pure (and of zero-concentrated) differential privacy add up to at most that total whatever is asked.

    Args:
        cells: private; an integer vector [n], n public. A copy is kept.
        ledger: the budget, of epsilon or of rho.
        neighbors: "add_remove" or "replace_one".
    """

    def __init__(self, cells: Any, ledger: Any, *, neighbors: str = "add_remove"):
        if not isinstance(ledger, Ledger):
            raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
        self._cells = host_integers(cells).copy()
        self._ledger = ledger
        self._neighbors = _checks.relation(neighbors)

    @property
    def num_cells(self) -> int:
        """n, which is public."""
        return self._cells.size

    @property
    def remaining(self) -> Fraction:
        """What can still be spent."""
        return self._ledger.remaining

    def measure(self, strategy: Queries, **budget: Any) -> Release:
        """:func:`dpinfer.measure` of these cells: ``strategy`` and one of epsilon, rho, level_epsilons, level_rhos, row_weights.

        Raises:
            ValueError: if less remains than the measurement costs; or as ``measure`` does.
        """
        refused = {"neighbors", "ledger"} & budget.keys()
        if refused:
            raise ValueError(f"{', '.join(sorted(refused))} belong to the PrivateCells and cannot be given to measure.")
        return measure(self._cells, strategy, neighbors=self._neighbors, ledger=self._ledger, **budget)

    def partition(self, labels: Any) -> list["PrivateCells"]:
        """The cells of each label from 0, as cells of their own in index order, that spend from this budget in parallel.

        A record counts in one part only, so that together the parts cost what the most expensive of them costs (McSherry
        2009, theorem 4). This needs ``neighbors="add_remove"``: a record that is replaced may move from one part to another.

        Args:
            labels: int array [n], public; every label from 0 to the largest must occur.
        """
        if self._neighbors != "add_remove":
            raise ValueError("partition needs neighbors='add_remove': a replaced record may leave one part and enter another.")
        labels = _checks.index_array("labels", labels)
        if labels.shape != (self.num_cells,):
            raise ValueError(f"labels must have one label for each of the {self.num_cells} cells, got {list(labels.shape)}.")
        counts = np.bincount(labels) if labels.min() >= 0 else np.zeros(1)
        if not counts.all():
            raise ValueError("labels must run from 0 without gaps.")
        shared = _Parallel(self._ledger, len(counts))
        return [
            PrivateCells(self._cells[labels == label], _Share(shared, label), neighbors=self._neighbors)
            for label in range(len(counts))
        ]

    def __repr__(self) -> str:
        return f"PrivateCells({self.num_cells} cells, {self._ledger.unit}: {self.remaining} remaining)"

    def __reduce__(self) -> Any:
        raise TypeError("PrivateCells are not to be pickled: the file would hold the cells.")


class _Parallel:
    """What each of several disjoint parts has spent; the ledger behind is charged what the largest of these grows by."""

    def __init__(self, ledger: Ledger, num_parts: int):
        self.ledger = ledger
        self.spent = [Fraction(0)] * num_parts
        self.lock = threading.Lock()

    def remaining(self, part: int) -> Fraction:
        return self.ledger.remaining + max(self.spent) - self.spent[part]

    def charge(self, part: int, amount: Fraction, unit: str, neighbors: str) -> None:
        with self.lock:
            growth = self.spent[part] + amount - max(self.spent)
            if growth > 0:
                self.ledger.charge(growth, unit=unit, neighbors=neighbors)
            self.spent[part] += amount


class _Share(Ledger):  # pyright: ignore[reportGeneralTypeIssues]
    """The ledger of one of several disjoint parts."""

    def __init__(self, shared: _Parallel, part: int):
        super().__init__(**{shared.ledger.unit: shared.ledger.total})
        self._shared, self._part = shared, part

    @property
    def spent(self) -> Fraction:
        return self._shared.spent[self._part]

    @property
    def remaining(self) -> Fraction:
        return self._shared.remaining(self._part)

    def charge(self, amount: Any, *, unit: str, neighbors: str) -> None:
        amount = _checks.budget(unit, amount)
        if unit != self.unit:
            raise ValueError(f"This ledger is kept in {self.unit} and cannot be charged {unit}; the two do not mix.")
        self._shared.charge(self._part, amount, unit, _checks.relation(neighbors))
