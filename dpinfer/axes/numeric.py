"""Axes of numbers: one bin an integer, or bins between edges."""

import datetime
import math
from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer.axes.base import Axis
from dpinfer.axes.column import NULL_WORDS, as_text, column

_LIMIT = 2**62
_NO_NUMBERS = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, complex, np.complexfloating)


@final
class IntegerAxis(Axis):
    """See :meth:`Axis.integers`."""

    kind = "integers"

    def __init__(self, start: int, stop: int, *, null: str = "drop", below: str = "drop", above: str = "drop"):
        super().__init__(null, below, above)
        self.start = _checks.integer("start", start, least=-_LIMIT)
        self.stop = _checks.integer("stop", stop, least=self.start + 1)
        if self.stop > _LIMIT:
            raise ValueError(f"stop must be at most 2**62, got {stop}.")

    @property
    def num_bins(self) -> int:
        return self.stop - self.start

    def boundary(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} must be an integer from {self.start} to {self.stop}.") from None
        if not self.start <= value <= self.stop:
            raise ValueError(f"{text!r} must be from {self.start} to {self.stop}.")
        return value - self.start

    def _bin_labels(self) -> list[str]:
        return [str(i) for i in range(self.start, self.stop)]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "start": self.start, "stop": self.stop, **self._policies()}

    def _read(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        array, null = numbers(values)
        if array.dtype == object:
            # Python numbers of any size, brought within one bin of the axis before they meet 64 bits.
            clipped = (self.start if v is None else min(max(v, self.start - 1), self.stop) for v in array)
            return np.array([math.floor(v) - self.start for v in clipped], dtype=np.int64), null
        if array.dtype.kind == "f":
            # Floors in the column's own precision, comparisons in 64 bit: 16 bits cannot hold every start.
            array = np.where(null, self.start, np.floor(array).astype(np.float64))
        # Clipped in the column's own type first: 2^63 in an unsigned or floating column must not wrap.
        low = array < self.start
        high = array > self.stop - 1  # the last bin, since a stop of 2^53 + 1 is no float
        inside = np.where(low | high, 0, array).astype(np.int64) - self.start
        return np.where(low, -1, np.where(high, self.num_bins, inside)), null


@final
class EdgeAxis(Axis):
    """See :meth:`Axis.edges`."""

    kind = "edges"

    def __init__(self, edges: Any, *, null: str = "drop", below: str = "drop", above: str = "drop"):
        super().__init__(null, below, above)
        if isinstance(edges, str) or not hasattr(edges, "__iter__"):
            raise ValueError(f"edges must be a list of at least two increasing numbers, got {edges!r}.")
        self.exact = tuple(_edge(i, edge) for i, edge in enumerate(edges))
        if len(self.exact) < 2:
            raise ValueError(f"edges must hold at least two numbers, one more than there are bins, got {len(self.exact)}.")
        for i, (low, high) in enumerate(zip(self.exact, self.exact[1:], strict=False)):
            if low >= high:
                raise ValueError(f"edges must increase, got {_text(low)} before {_text(high)} at position {i}.")
        # An integer is at or above an edge if it is at or above the edge's ceiling.
        self._ceilings = [math.ceil(edge) for edge in self.exact]
        self._floats = [_float(edge, np.float64) for edge in self.exact]

    @property
    def num_bins(self) -> int:
        return len(self.exact) - 1

    def boundary(self, text: str) -> int:
        try:
            return self.exact.index(Fraction(text))
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{text!r} must be one of the edges {_listed([_text(edge) for edge in self.exact])}.") from None

    def _bin_labels(self) -> list[str]:
        return [f"{_text(low)}..{_text(high)}" for low, high in zip(self.exact, self.exact[1:], strict=False)]

    def to_dict(self) -> dict[str, Any]:
        edges = [int(edge) if edge.denominator == 1 else _text(edge) for edge in self.exact]
        return {"kind": self.kind, "edges": edges, **self._policies()}

    def _read(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        array, null = numbers(values)
        if array.dtype == object:
            edges = {int: self._ceilings, float: self._floats}
            return np.array([0 if v is None else bisect_right(edges[type(v)], v) - 1 for v in array], dtype=np.int64), null
        if array.dtype.kind == "f":
            sorted_edges = np.array([_float(edge, array.dtype.type) for edge in self.exact], dtype=array.dtype)
            array = np.where(null, sorted_edges[0], array)
        else:
            sorted_edges = np.array(self._ceilings)
            if array.dtype.kind == "u":
                array = np.minimum(array, np.array(np.iinfo(np.int64).max, dtype=np.uint64)).astype(np.int64)
        return np.searchsorted(sorted_edges, array, side="right") - 1, null


def _edge(position: int, value: Any) -> Fraction:
    name = f"edges[{position}]"
    if isinstance(value, str):
        try:
            edge = Fraction(value.strip())
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{name} must be a number, got {value!r}.") from None
    else:
        edge = _checks.fraction(name, value)
        if edge.denominator != 1 and isinstance(value, (float, np.floating)):
            raise ValueError(f"{name} must be an integer, or an exact decimal as text, got {value!r}: write {str(value)!r}.")
    if abs(edge) > _LIMIT:
        raise ValueError(
            f"{name} must be between -2**62 and 2**62, got {value!r}; values beyond are what below= and above= are for."
        )
    return edge


def _float(edge: Fraction, kind: type[np.floating]) -> Any:
    """The float of ``kind`` that an edge stands for: the nearest if it is no integer, else the least that is not below it."""
    with np.errstate(over="ignore"):
        nearest = kind(float(edge))
        if edge.denominator == 1 and np.isfinite(nearest) and Fraction(float(nearest)) < edge:
            nearest = np.nextafter(nearest, kind(np.inf))
        if nearest == -np.inf:  # minus infinity itself is below every edge
            nearest = np.finfo(kind).min
    return float(nearest) if kind is np.float64 else nearest


def _text(edge: Fraction) -> str:
    """The shortest exact text of a number: 3, 0.25 or 1/3."""
    decimal = Decimal(edge.numerator) / Decimal(edge.denominator)
    return format(decimal.normalize(), "f") if Fraction(decimal) == edge else str(edge)


def _listed(words: list[str]) -> str:
    return ", ".join(words[:10]) + (", ..." if len(words) > 10 else "")


def numbers(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """A column of numbers and which of them are null: an array of integers or floats, or objects that are int, float or None."""
    array, null = column(values)
    if array.dtype.kind == "b":
        return array.astype(np.int64), null
    if array.dtype.kind in "OSU":
        read = np.empty(array.shape, dtype=object)
        for i, value in enumerate(array.tolist()):
            read[i] = number(value)
        return read, null | np.array([value is None for value in read], dtype=bool)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"An axis of numbers reads numbers or text, got a column of dtype {array.dtype}.")
    return array, null | np.isnan(array) if array.dtype.kind == "f" else null


def number(value: Any) -> int | float | None:
    """A number read from text or an object, true and false being 1 and 0; None if it is null or cannot be read."""
    value = as_text(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if text in NULL_WORDS or "_" in text:
            return None
        if text in ("true", "false"):
            return int(text == "true")
        try:
            return int(text)
        except ValueError:
            pass
        try:
            value = Decimal(text)
        except ArithmeticError:
            return None
    try:
        return _number(value)
    except Exception:  # a value's own methods may raise anything; whatever it says must not be seen
        return None


def _number(value: Any) -> int | float | None:
    if value is None or value is np.ma.masked or isinstance(value, _NO_NUMBERS):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, Decimal):
        # Whole numbers stay exact where floats would round them; beyond 400 digits they are as good as infinite.
        if value.is_finite() and value.adjusted() < 400 and value == value.to_integral_value():
            return int(value)
        found = float(value)
    elif isinstance(value, Rational):
        numerator, denominator = int(value.numerator), int(value.denominator)
        if denominator == 1:
            return numerator
        found = numerator / denominator
    elif isinstance(value, np.floating) and value.dtype.itemsize < 8:
        found = float(str(value))  # the decimal that a narrow float stands for
    else:
        found = float(value)
    return None if math.isnan(found) else found
