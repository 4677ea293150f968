"""The bins that one attribute of a record falls into."""

import abc
import datetime
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, final

import numpy as np

from dpinfer import _checks

_NULL_WORDS = frozenset(("", "na", "n/a", "nan", "nat", "none", "null"))
_NAIVE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?")
_STEP = re.compile(r"(\d+) ?(s|min|h|d|w)")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_MICROSECONDS = 10**6


class Axis(abc.ABC):
    """One attribute of a record and the bins it falls into; made by :meth:`integers` or :meth:`times`.

    Each axis states, before any record is looked at, what becomes of a null, of a value below the first bin and of one above the
    last: ``"drop"`` leaves the record out, ``"clip"`` (below and above only) counts it in the nearest bin, ``"other"`` counts
    it in one extra public cell after the last bin, which all three may share. Text that cannot be read is a null.
    """

    kind: str

    def __init__(self, null: str, below: str, above: str):
        self.null = _checks.choice("null", null, ("drop", "other"))
        self.below = _checks.choice("below", below, ("drop", "clip", "other"))
        self.above = _checks.choice("above", above, ("drop", "clip", "other"))

    @staticmethod
    def integers(start: int, stop: int, *, null: str = "drop", below: str = "drop", above: str = "drop") -> "IntegerAxis":
        """One bin for each integer from ``start`` to ``stop - 1``. A number that is no integer counts at its floor."""
        return IntegerAxis(start, stop, null=null, below=below, above=above)

    @staticmethod
    def times(start: Any, stop: Any, step: Any, *, null: str = "drop", below: str = "drop", above: str = "drop") -> "TimeAxis":
        """Bins of equal length from ``start`` up to, not including, ``stop``, in naive local time.

        Args:
            start, stop: ISO text such as "2013-01-01" or "2013-01-01T06:30", datetime or numpy datetime64.
            step: text such as "15min" (units s, min, h, d, w), timedelta or numpy timedelta64; must divide stop - start.

        The hour 24:00 is the next day's midnight, as in ISO 8601. A value that carries a time zone is no naive local time
        and counts as a null.
        """
        return TimeAxis(start, stop, step, null=null, below=below, above=above)

    @property
    @abc.abstractmethod
    def num_bins(self) -> int:
        """Number of bins, without the extra cell."""

    @property
    def has_other(self) -> bool:
        """Whether there is an extra cell for what fits no bin."""
        return "other" in (self.null, self.below, self.above)

    @property
    def size(self) -> int:
        """Number of cells: the bins, and the extra cell if the policy asks for one."""
        return self.num_bins + self.has_other

    @cached_property
    def labels(self) -> list[str]:
        """What each cell is called."""
        return [*self._bin_labels(), *(["other"] if self.has_other else [])]

    def codes(self, values: Any) -> np.ndarray:
        """The cell of each value, int64; -1 for a record to leave out. Raises for the type of the column, never for a value."""
        number, null = self._read(values)
        below, above = ~null & (number < 0), ~null & (number >= self.num_bins)
        code = np.where(null | below | above, -1, number)
        for outside, policy, nearest in ((null, self.null, -1), (below, self.below, 0), (above, self.above, self.num_bins - 1)):
            if policy != "drop":
                code[outside] = nearest if policy == "clip" else self.num_bins
        return code

    @abc.abstractmethod
    def boundary(self, text: str) -> int:
        """The number of bins before a public boundary given as text, from 0 to ``num_bins``."""

    @abc.abstractmethod
    def _read(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Bin number of each value (int64, anything out of range meaning below or above) and which values are null."""

    @abc.abstractmethod
    def _bin_labels(self) -> list[str]: ...

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The axis as plain values, for files."""

    def _policies(self) -> dict[str, str]:
        return {"null": self.null, "below": self.below, "above": self.above}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "Axis":
        """The axis that :meth:`to_dict` described."""
        rest = dict(fields)
        kinds = {"integers": IntegerAxis, "times": TimeAxis}
        kind = _checks.choice("kind", rest.pop("kind", None), tuple(kinds))
        try:
            return kinds[kind](**rest)
        except TypeError as error:
            raise ValueError(f"An axis of kind {kind!r} is described by wrong fields: {error}.") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axis) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(tuple(self.to_dict().items()))

    def __repr__(self) -> str:
        return f"Axis({', '.join(f'{k}={v!r}' for k, v in self.to_dict().items())})"


@final
class IntegerAxis(Axis):
    """See :meth:`Axis.integers`."""

    kind = "integers"

    def __init__(self, start: int, stop: int, *, null: str = "drop", below: str = "drop", above: str = "drop"):
        super().__init__(null, below, above)
        self.start = _checks.integer("start", start, least=-(2**62))
        self.stop = _checks.integer("stop", stop, least=self.start + 1)
        if self.stop > 2**62:
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
        array, null = _column(values)
        if array.dtype.kind == "b":
            array = array.astype(np.int64)
        if array.dtype.kind in "OSU":
            numbers = [_number(value) for value in array.tolist()]
            null = null | np.array([number is None for number in numbers], dtype=bool)
            # Python numbers of any size, brought within one bin of the axis before they meet 64 bits.
            clipped = [self.start if v is None else min(max(v, self.start - 1), self.stop) for v in numbers]
            return np.array([math.floor(v) - self.start for v in clipped], dtype=np.int64), null
        if array.dtype.kind not in "iuf":
            raise ValueError(f"An integer axis reads numbers or text, got a column of dtype {array.dtype}.")
        if array.dtype.kind == "f":
            array = array.astype(np.float64)
            null = null | np.isnan(array)
            array = np.floor(np.where(null, self.start, array))
        # Clipped in the column's own type first: 2^63 in an unsigned or floating column must not wrap.
        low = array < self.start
        high = array > self.stop - 1  # the last bin, since a stop of 2^53 + 1 is no float
        inside = np.where(low | high, 0, array).astype(np.int64) - self.start
        return np.where(low, -1, np.where(high, self.num_bins, inside)), null


@final
class TimeAxis(Axis):
    """See :meth:`Axis.times`."""

    kind = "times"

    def __init__(self, start: Any, stop: Any, step: Any, *, null: str = "drop", below: str = "drop", above: str = "drop"):
        super().__init__(null, below, above)
        self.start, self.stop = _instant("start", start), _instant("stop", stop)
        self.step = _duration(step)
        whole = (self.start.astype(np.int64), self.stop.astype(np.int64), self._width)
        if any(int(x) % _MICROSECONDS for x in whole):
            raise ValueError(f"start, stop and step must be whole seconds, got {start!r}, {stop!r} and {step!r}.")
        length = int((self.stop - self.start).astype(np.int64))
        if length <= 0 or length % self._width:
            raise ValueError(f"step {step!r} must divide the time from start {self.start} to a later stop {self.stop}.")

    @property
    def _width(self) -> int:
        return int(self.step.astype(np.int64))

    @property
    def num_bins(self) -> int:
        return int((self.stop - self.start).astype(np.int64)) // self._width

    def boundary(self, text: str) -> int:
        moment = _instant("a boundary", text)
        bins, rest = divmod(int((moment - self.start).astype(np.int64)), self._width)
        if rest or not 0 <= bins <= self.num_bins:
            raise ValueError(f"{text!r} must be from {self.start} to {self.stop} in steps of {self.step}.")
        return bins

    def _bin_labels(self) -> list[str]:
        unit = "m" if self._width % (60 * _MICROSECONDS) == 0 else "s"
        return np.datetime_as_string(self.start + np.arange(self.num_bins) * self.step, unit=unit).tolist()

    def to_dict(self) -> dict[str, Any]:
        seconds = self._width // _MICROSECONDS
        start, stop = (np.datetime_as_string(t, unit="s") for t in (self.start, self.stop))
        return {"kind": self.kind, "start": str(start), "stop": str(stop), "step": f"{seconds}s", **self._policies()}

    def _read(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        array, null = _column(values)
        if array.dtype.kind in "OSU":
            times = [_naive_time(value) for value in array.tolist()]
            array = np.array([np.datetime64("NaT", "us") if t is None else t for t in times], dtype="datetime64[us]")
        if array.dtype.kind != "M":
            raise ValueError(f"A time axis reads datetimes or text, got a column of dtype {array.dtype}.")
        null = null | np.isnat(array)
        if null.all():
            return np.zeros(array.shape, dtype=np.int64), null
        # Finer units are rounded down to microseconds; coarser ones are compared in their own unit, with the bounds rounded
        # down to it, before what is near is converted: a far-away year must not wrap.
        if np.datetime_data(array.dtype)[0] in ("ns", "ps", "fs", "as"):
            array = array.astype("datetime64[us]")
        bounds = np.array([self.start, self.stop]).astype(array.dtype)
        low, high = array < bounds[0], array > bounds[1]
        near = np.where(null | low | high, self.start.astype(array.dtype), array).astype("datetime64[us]")
        offset = (near - self.start).astype(np.int64)
        return np.where(low, -1, np.where(high, self.num_bins, offset // self._width)), null


def _column(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """A column as an array, and its mask if it is a masked array."""
    array = values if isinstance(values, np.ndarray) else object_column(values)
    if isinstance(array, np.ma.MaskedArray):
        return array.data, np.ma.getmaskarray(array)
    return array, np.zeros(array.shape, dtype=bool)


def object_column(values: Iterable[Any]) -> np.ndarray:
    """A column of whatever came, one by one: a common dtype would let one record change how all the others are read."""
    values = list(values)
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def _number(value: Any) -> int | float | None:
    """A number read from text or an object; None if it is null or cannot be read."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in _NULL_WORDS or "_" in text:
            return None
        try:
            return int(text)
        except ValueError:
            pass
        try:
            value = float(text)
        except ValueError:
            return None
    try:
        if value is None or value != value or isinstance(value, (datetime.date, np.datetime64)):
            return None
        return int(value) if isinstance(value, (int, np.integer)) else float(value)
    except (TypeError, ValueError, ArithmeticError):
        return None


def _naive_time(value: Any) -> np.datetime64 | None:
    """A naive local time read from text or an object; None if it is null, has a time zone, or cannot be read."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        match = _NAIVE_TIME.fullmatch(value.strip())
        if match is None:
            return None
        day, clock = match.groups()
        end_of_day = clock is not None and re.fullmatch(r"24:00(:00(\.0+)?)?", clock) is not None
        try:
            moment = np.datetime64(day if end_of_day or clock is None else f"{day}T{clock}", "us")
        except ValueError:
            return None
        return moment + np.timedelta64(1, "D") if end_of_day else moment
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        year = int(value.astype("datetime64[Y]").astype(np.int64))
        # Microseconds reach some 292,000 years; what is farther away is brought near, still beyond every axis.
        if abs(year) < 200_000:
            return value.astype("datetime64[us]")
        return np.datetime64(2**62 if year > 0 else -(2**62), "us")
    if isinstance(value, datetime.date) and getattr(value, "tzinfo", None) is None:
        try:
            return np.datetime64(value, "us")
        except (TypeError, ValueError, OverflowError):  # pandas.NaT is a date, and then it is not
            return None
    return None


def _instant(name: str, value: Any) -> np.datetime64:
    moment = _naive_time(value)
    if moment is None or np.isnat(moment):
        raise ValueError(f"{name} must be a naive local time such as '2013-01-01T06:30', got {value!r}.")
    return moment.astype("datetime64[us]")


def _duration(value: Any) -> np.timedelta64:
    if isinstance(value, str):
        match = _STEP.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"step must be a number and one of the units s, min, h, d, w, such as '15min'; got {value!r}.")
        step = np.timedelta64(int(match[1]) * _SECONDS[match[2]], "s")
    elif isinstance(value, datetime.timedelta):
        step = np.timedelta64(value)
    elif isinstance(value, np.timedelta64):
        if np.datetime_data(value.dtype)[0] in ("Y", "M", "generic"):
            raise ValueError(f"step must have a fixed length, got {value!r}; months and years do not.")
        step = value
    else:
        raise ValueError(f"step must be text such as '15min', a timedelta or a numpy timedelta64, got {value!r}.")
    step = step.astype("timedelta64[us]")
    if np.isnat(step) or step <= np.timedelta64(0, "us"):
        raise ValueError(f"step must be positive, got {value!r}.")
    return step
