"""What a measurement costs: losses read off the matrix and the scales in exact fractions, and the ledger that is charged."""

import math
import threading
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dpinfer import _checks
from dpinfer.queries import Queries, Tree


def largest_change(
    queries: Queries, weights: Sequence[Fraction], rows: np.ndarray | None, order: int, neighbors: str
) -> Fraction:
    """Max over neighbours of sum_i w_i |change of answer i|^order, as an exact fraction.

    With w = 1 / scale and order 1 this is the epsilon of (discrete) Laplace noise; with w = 1 / (2 sigma^2) and order 2 it is
    the rho of (discrete) Gaussian noise (Bun and Steinke 2016; Canonne, Kamath and Steinke 2020, Theorem 4 for integers).

    Args:
        queries: integer queries; for real matrices the result is as exact as float64.
        weights: the distinct weights, non-negative.
        rows: index into ``weights`` for each row; None if there is one weight for all.
        order: 1 or 2.
        neighbors: "add_remove" or "replace_one".
    """
    rows = np.zeros(queries.shape[0], dtype=np.int64) if rows is None else rows
    if isinstance(queries, Tree) and neighbors == "add_remove" and np.array_equal(rows, queries.levels):  # pyright: ignore[reportArgumentType]
        return sum(weights, Fraction(0))  # a deepest leaf's path crosses every level once
    denominator = math.lcm(*(w.denominator for w in weights))
    integers = [w.numerator * (denominator // w.denominator) for w in weights]
    integers = np.array(integers, dtype=queries.exact_dtype(max(integers), order))
    return _exact(queries.largest_change(integers[rows], order, neighbors)) / denominator


def _exact(number: Any) -> Fraction:
    number = number.item() if hasattr(number, "item") else number
    return Fraction(number)


class Ledger:
    """A privacy budget that is spent measurement by measurement and never overdrawn; sums are exact fractions.

    Pass it to :func:`dpinfer.measure`, which charges it before any noise is drawn. A float is read as the decimal number it
    prints as, so that ten charges of 0.1 spend 1 exactly. Losses add up (sequential composition) and must be under one
    neighbour relation; the relation of the first charge is the ledger's.

    Args:
        epsilon: a pure differential privacy budget; or
        rho: a zero-concentrated one. Exactly one of the two; they do not mix.
    """

    def __init__(self, *, epsilon: Any = None, rho: Any = None):
        if (epsilon is None) == (rho is None):
            raise ValueError("Ledger needs exactly one of epsilon= and rho=.")
        self.unit = "epsilon" if rho is None else "rho"
        self.total = _checks.budget(self.unit, epsilon if rho is None else rho)
        self.neighbors: str | None = None
        self._spent = Fraction(0)
        self._lock = threading.Lock()

    @property
    def spent(self) -> Fraction:
        """What has been charged so far."""
        return self._spent

    @property
    def remaining(self) -> Fraction:
        """What can still be charged."""
        return self.total - self._spent

    def charge(self, amount: Any, *, unit: str, neighbors: str) -> None:
        """Spend ``amount``, or raise a ValueError and spend nothing if it is more than remains."""
        amount = _checks.budget(unit, amount)
        if unit != self.unit:
            raise ValueError(f"This ledger is kept in {self.unit} and cannot be charged {unit}; the two do not mix.")
        _checks.relation(neighbors)
        with self._lock:
            if self.neighbors not in (None, neighbors):
                raise ValueError(f"This ledger is kept under {self.neighbors!r} and cannot be charged under {neighbors!r}.")
            if amount > self.remaining:
                raise ValueError(
                    f"The ledger has {self.remaining} ({float(self.remaining):.6g}) of {self.unit} left, "
                    f"less than the {amount} ({float(amount):.6g}) asked for. Nothing was spent."
                )
            self._spent += amount
            self.neighbors = neighbors

    def __repr__(self) -> str:
        return f"Ledger({self.unit}={self.total}, spent={self.spent}, remaining={self.remaining})"
