"""What a measurement costs: losses read off the matrix and the scales in exact fractions, and the ledger that is charged."""

import decimal
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


def epsilon_of_rho(rho: Any, delta: Any) -> float:
    """An epsilon such that every ``rho``-zCDP mechanism is (epsilon, ``delta``)-differentially private; never too small.

    For any order a > 1, epsilon = a rho + ln(1 / (a delta)) / (a - 1) + ln(1 - 1/a) will do (Canonne, Kamath and Steinke 2020,
    Corollary 13). It is least where rho (a - 1)^2 = ln(1 / (a delta)), an increasing function against a decreasing one. The
    bound is evaluated at the order found in decimal arithmetic and rounded up; whatever the order, it holds. It is at least rho.

    Convert once, at the end: losses in rho add up, and add up to less than the epsilons of their parts.

    Args:
        rho: positive.
        delta: between 0 and 1.
    """
    rho, delta = _checks.budget("rho", rho), _delta(delta)
    log_inverse = math.log(delta.denominator) - math.log(delta.numerator)
    r = _moderate(rho)
    x = _root(lambda x: r * x * x + math.log1p(x) - log_inverse, math.sqrt(log_inverse / r))
    with _digits_for(x) as (order, below):
        terms = [order * _decimal(rho), -(order * _decimal(delta)).ln() / below, (below / order).ln()]
        return max(_rounded_up(sum(terms) + _SLACK * sum(map(abs, terms))), _rounded_up(rho))


def delta_of_rho(rho: Any, epsilon: Any) -> float:
    """A delta such that every ``rho``-zCDP mechanism is (``epsilon``, delta)-differentially private; never too small.

    The least over a > 1 of exp((a - 1)(a rho - epsilon)) (1 - 1/a)^a / (a - 1) (Canonne, Kamath and Steinke 2020, Proposition
    12), evaluated and rounded as in :func:`epsilon_of_rho`.

    Args:
        rho: positive.
        epsilon: non-negative.
    """
    rho, epsilon = _checks.budget("rho", rho), _checks.budget("epsilon", epsilon, zero=True)
    r, e = _moderate(rho), _moderate(epsilon)
    x = _root(lambda x: r * (1 + 2 * x) - e - math.log1p(1 / x), (e + 1) / r + 1)
    with _digits_for(x) as (order, below):
        terms = [below * order * _decimal(rho), -below * _decimal(epsilon), order * (below / order).ln(), -below.ln()]
        return min(1.0, _rounded_up((sum(terms) + _SLACK * sum(map(abs, terms))).exp()))


def epsilon_at(delta: Any, *, epsilon: Fraction | None = None, rho: Fraction | None = None) -> float:
    """The epsilon at ``delta`` of a loss known in epsilon, where delta is not needed, or in rho; rounded up."""
    delta, loss = _delta(delta), epsilon if rho is None else rho
    if not loss:
        if loss is None:
            raise ValueError("The loss is not known: these values were made elsewhere.")
        return 0.0
    return _rounded_up(loss) if rho is None else epsilon_of_rho(rho, delta)


def _delta(value: Any) -> Fraction:
    delta = _checks.budget("delta", value)
    if delta >= 1:
        raise ValueError(f"delta must be below 1, got {float(delta)}.")
    return delta


def _moderate(number: Fraction) -> float:
    """About the number, within the range that the search for an order works in."""
    return float(min(max(number, Fraction(1, 10**290)), Fraction(10**290)))


def _root(increasing: Callable[[float], float], upper: float) -> float:
    """About where a function crosses zero between 0 and ``upper``, by bisection on a logarithmic scale."""
    high = math.log(min(upper, 1e300))
    low = high - 600.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(math.exp(middle)) < 0 else (low, middle)
    return math.exp((low + high) / 2)


@contextmanager
def _digits_for(below: float) -> Iterator[tuple[decimal.Decimal, decimal.Decimal]]:
    """The order 1 + ``below`` and ``below`` as decimals, while arithmetic has digits enough for their quotient's logarithm."""
    x = decimal.Decimal(below)
    with decimal.localcontext(decimal.Context(prec=60 + 2 * abs(x.adjusted()))):
        yield 1 + x, x


def _decimal(number: Fraction) -> decimal.Decimal:
    return decimal.Decimal(number.numerator) / number.denominator


def _rounded_up(number: Fraction | decimal.Decimal) -> float:
    """The least positive float that is not below a number."""
    exact = Fraction(number)
    nearest = max(float(exact), 5e-324)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


# Relative to the terms of a sum, more than all rounding of decimals together.
_SLACK = decimal.Decimal(10) ** -40


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

    def epsilon_at(self, delta: Any) -> float:
        """What has been spent as the epsilon of (epsilon, ``delta``)-differential privacy; :func:`epsilon_of_rho` of rho."""
        return epsilon_at(delta, **{self.unit: self.spent})

    def __repr__(self) -> str:
        return f"Ledger({self.unit}={self.total}, spent={self.spent}, remaining={self.remaining})"
