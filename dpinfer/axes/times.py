"""Axes of naive local times."""

import datetime
import re
from typing import Any, final

import numpy as np

from dpinfer.axes.base import Axis
from dpinfer.axes.column import as_text, column

_NAIVE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?))?")
_STEP = re.compile(r"(\d+) ?(s|min|h|d|w)")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_MICROSECONDS = 10**6


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
        array, null = column(values)
        if array.dtype.kind in "OSU":
            times = [_naive_time(value) for value in array.tolist()]
            array = np.array([np.datetime64("NaT", "us") if t is None else t for t in times], dtype="datetime64[us]")
        if array.dtype.kind in "biuf":
            # No times; and readers that infer types turn integers to floats, or flags to objects, for a single missing value,
            # so that to refuse some of these and not the others would tell of one record.
            array = np.full(array.shape, np.datetime64("NaT", "us"))
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


def _naive_time(value: Any) -> np.datetime64 | None:
    """A naive local time read from text or an object; None if it is null, has a time zone, or cannot be read."""
    value = as_text(value)
    if isinstance(value, str):
        match = _NAIVE_TIME.fullmatch(value.strip())
        if match is None:
            return None
        day, clock = match.groups()
        end_of_day = clock is not None and re.fullmatch(r"24:00(:00(\.0+)?)?", clock) is not None
        try:
            # To the microsecond, a finer part being cut off: the first 15 characters of 12:34:56.123456789.
            moment = np.datetime64(day if end_of_day or clock is None else f"{day}T{clock[:15]}", "us")
        except ValueError:
            return None
        return moment + np.timedelta64(1, "D") if end_of_day else moment
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        if np.datetime_data(value.dtype)[0] in ("ns", "ps", "fs", "as"):
            return value.astype("datetime64[us]")
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
