"""Counting private records where they lie: tables of a database or cluster that ibis reaches, such as DuckDB and Apache Spark.

The engine finds the cell of each record by an expression of that record's values alone, groups by the cell and counts; the
groups that are cells come back, one number each, and no record. So one record more or less changes one cell by one, whatever
the engine. What leaves an engine's own log is up to the engine: its errors, which may quote a record, are replaced here.
"""

import math
import unicodedata
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from dpinfer import tables
from dpinfer.axes import Axis
from dpinfer.axes.categories import CategoryAxis
from dpinfer.axes.column import NULL_WORDS, object_column
from dpinfer.axes.numeric import EdgeAxis, IntegerAxis
from dpinfer.axes.times import TimeAxis

if TYPE_CHECKING:
    from dpinfer.domain import Domain

_FAILED = "table could not be evaluated by its engine; evaluate it first to see why."
_SPARK = ("pyspark", "databricks")
# Expressions of ibis; its own types, which are loaded with it only, say little more.
_Expression = Any


def engine_table(table: Any) -> Any:
    """The ibis table that a table is, or that narwhals wraps; None for any other, without loading ibis."""
    if type(table).__module__.partition(".")[0] == "narwhals":
        import narwhals as nw

        table = nw.to_native(table, pass_through=True)
    if type(table).__module__.partition(".")[0] != "ibis":
        return None
    import ibis

    return table if isinstance(table, ibis.Table) else None


def count_in_engine(table: Any, domain: "Domain") -> Int64[np.ndarray, " cells"]:
    """How many records of an ibis table fall into each cell, as :func:`dpinfer.count` says.

    The values count as they would in the other tables, exactly:

    - integers and decimals of any width, floats of 32 and 64 bits (NaN is a null), booleans: on axes of integers, edges and
      categories;
    - text and UUIDs on axes of categories that are texts. Texts compare as the engine compares them, which must be by their
      characters, as engines do unless a collation is set;
    - dates and times without a zone on time axes. A time with a zone is a null, and so is Spark's TIMESTAMP, which ibis shows
      without one: CAST(... AS TIMESTAMP_NTZ) in Spark makes the local time of it;
    - lists, structures, durations, times of the day, and numbers on time axes: nulls.

    One query, in which an axis of k edges or categories costs log2(k) comparisons a record; the memory is the engine's for a
    group-by of ``domain.size`` groups, and here that of the cells.

    Args:
        table: private; an ibis table.
        domain: the axes, named like the columns.

    Raises:
        ValueError: for what is public: a column that is missing or of a type that its axis does not read, which beyond what
            other tables refuse is text on an axis of anything but texts (engines read numbers and times from text each in
            their own way: cast first), bytes, JSON, 16-bit floats, what ibis does not know, and decimals with a fraction that
            are so near each other, beside the axis, that 64-bit floats, as which they count, do not tell them apart. Or if the
            engine fails, without its message.
    """
    import ibis

    names = domain.names
    tables.check_columns(table.columns, names)
    with tables.without_quoting(_FAILED):
        engine = table.get_backend().name
    strides = np.cumprod((1, *domain.shape[:0:-1]))[::-1].tolist()
    parts = [
        # What one axis leaves out is below zero whatever the others add.
        _Places(axis, table[name], stride, -domain.size, engine).expression()
        for (name, axis), stride in zip(domain.axes.items(), strides, strict=True)
    ]
    with tables.without_quoting(_FAILED):
        cell = ibis.greatest(sum(parts[1:], parts[0]), _constant(-1, "int64"))
        placed = table.select(cell=cell)
        counted = placed.group_by("cell").agg(records=placed.count())
        counted = counted.filter(counted["cell"] >= _constant(0, "int64")).to_pyarrow(limit=None)
        cells = np.zeros(domain.size, dtype=np.int64)
        cells[counted["cell"].to_numpy()] = counted["records"].to_numpy()
    return cells


class _Places:
    """What a column contributes to the number of a record's cell: its code times the axis's stride, or ``dropped``.

    Wherever a value stands for all values near it, its code is the one that the axis itself gives, by :meth:`Axis.codes`.
    """

    def __init__(self, axis: Axis, column: _Expression, stride: int, dropped: int, engine: str):
        self.axis, self.column, self.name, self.engine = axis, column, column.get_name(), engine
        self.stride, self.dropped = stride, dropped
        self.null = self.place(axis.codes(object_column([None])).item())

    def expression(self) -> _Expression:
        axis, column, kind = self.axis, self.column, self.column.type()
        if kind.is_nested() or kind.is_interval() or kind.is_time() or kind.is_null():
            return self.null
        if kind.is_date() or kind.is_timestamp():
            axis.codes(np.empty(0, dtype="datetime64[us]"))  # raises for any other axis
            if kind.is_timestamp() and kind.timezone is not None:
                return self.null
            times = self.unless_null(self.of_times())
            return self.is_instant().ifelse(self.null, times) if kind.is_timestamp() and self.engine in _SPARK else times
        if kind.is_string() or kind.is_uuid():
            if isinstance(axis, CategoryAxis) and isinstance(axis.values[0], str):
                return self.unless_null(self.of_text(column.cast("string")))
            if kind.is_uuid():
                return self.null
            raise self.refusal("reads no text in an engine", "text to numbers or times, or label its categories by text")
        is_read = kind.is_boolean() or kind.is_integer() or kind.is_decimal() or kind.is_float32() or kind.is_float64()
        if not is_read or (kind.is_decimal() and (kind.precision is None or kind.scale is None or kind.scale < 0)):
            raise self.refusal("does not read this type in an engine", "the column to a number or text")
        if isinstance(axis, TimeAxis):
            return self.null
        if kind.is_boolean():
            no, yes = axis.codes(np.array([False, True])).tolist()
            return self.unless_null(column.ifelse(self.place(yes), self.place(no)))
        if kind.is_floating():
            is_null: _Expression = column.isnull() | column.isnan()
            return is_null.ifelse(self.null, self.of_floats())
        return self.unless_null(self.of_integers() if kind.is_integer() else self.of_decimals())

    def is_instant(self) -> _Expression:
        """Whether Spark's type is TIMESTAMP, of a time zone, which ibis shows as it does TIMESTAMP_NTZ."""
        import ibis
        import ibis.expr.datatypes as dt

        typeof = ibis.udf.scalar.builtin(name="typeof", signature=((dt.Timestamp(),), dt.string))(_typeof)
        kind: _Expression = typeof(self.column)
        return kind.isin(["timestamp"])

    def refusal(self, what: str, cast: str) -> ValueError:
        return ValueError(
            f"column {self.name!r} has the type {self.column.type()}, and an axis of {self.axis.kind} {what}: cast {cast} first."
        )

    def place(self, code: int) -> _Expression:
        return _constant(self.dropped if code < 0 else code * self.stride, "int64")

    def unless_null(self, expression: _Expression) -> _Expression:
        return self.column.isnull().ifelse(self.null, expression)

    def steps(self, starts: list[_Expression], codes: Iterable[int]) -> _Expression:
        """The code of the last of some increasing values that is not above the column's; ``codes`` begins before the first."""
        first, *rest = codes
        kept, places = [], [self.place(first)]
        for start, before, code in zip(starts, [first, *rest], rest, strict=False):
            if code != before:
                kept.append(start)
                places.append(self.place(code))
        return _step(self.column, kept, places)

    def line(self, number: _Expression) -> _Expression:
        """Where int64 numbers fall on an axis of integers; nothing overflows within one bin of it."""
        axis: Any = self.axis
        below, above = axis.codes(np.array([axis.start - 1, axis.stop])).tolist()
        inside = number - _constant(axis.start, "int64")
        if self.stride > 1:
            inside = inside * _constant(self.stride, "int64")
        high = (number >= _constant(axis.stop, "int64")).ifelse(self.place(above), inside)
        return (number < _constant(axis.start, "int64")).ifelse(self.place(below), high)

    def of_integers(self) -> _Expression:
        kind = self.column.type()
        dtype = np.dtype(kind.to_numpy())
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if isinstance(self.axis, IntegerAxis):
            if least < self.axis.start - 1 or most > self.axis.stop:
                # Within the axis, in the column's own type, before anything is taken off.
                low, high = (_constant(max(least, min(most, x)), kind) for x in (self.axis.start - 1, self.axis.stop))
                return self.line(_clipped(self.column, low, high).cast("int64"))
            return self.line(self.column.cast("int64"))
        whole = {math.floor(mark) + more for mark in _marks(self.axis) if isinstance(mark, Fraction) for more in (0, 1)}
        starts = sorted(x for x in whole if least < x <= most)
        codes = self.axis.codes(np.array([least, *starts], dtype=dtype)).tolist()
        return self.steps([_constant(x, kind) for x in starts], codes)

    def of_floats(self) -> _Expression:
        is_single = self.column.type().is_float32()
        self.column = self.column.cast("float64")  # exact
        if isinstance(self.axis, IntegerAxis):
            low, high = (_constant(_float_from(x), "float64") for x in (self.axis.start, self.axis.stop))
            below, above = self.axis.codes(np.array([self.axis.start - 1, self.axis.stop])).tolist()
            whole = _clipped(self.column, low, high).floor().cast("int64") - _constant(self.axis.start, "int64")
            inside = whole * _constant(self.stride, "int64") if self.stride > 1 else whole
            return (self.column < low).ifelse(self.place(below), (self.column >= high).ifelse(self.place(above), inside))
        kind = np.float32 if is_single else np.float64
        near = {value + 0.0 for mark in _marks(self.axis) for value in _neighbours(mark, kind)}  # 0.0 for -0.0
        starts = sorted(x for x in near if x > -np.inf)
        codes = self.axis.codes(np.array([-np.inf, *starts], dtype=kind)).tolist()
        return self.steps([_constant(float(x), "float64") for x in starts], codes)

    def of_decimals(self) -> _Expression:
        import ibis
        import ibis.expr.datatypes as dt

        kind = self.column.type()
        scale, limit = kind.scale, 10**kind.precision
        if isinstance(self.axis, IntegerAxis):
            bounds = self.axis.start - 1, self.axis.stop
            if scale and any(_least_read_as(float(x), scale) != x * 10**scale for x in (*bounds, -bounds[0], -bounds[1])):
                raise self.indistinct()
            if not scale:  # which may be integers of 128 bits, of which some are no decimals
                low, high = (_constant(x, "int64") for x in bounds)
                return self.line(_clipped(self.column, low, high).cast("int64"))
            # A bound beyond the type is one that no value reaches.
            low, high = (_constant(x, kind) if abs(x) * 10**scale < limit else None for x in bounds)
            # Not ibis's own floor, which is of the column's type again, where the least value has none.
            floor = ibis.udf.scalar.builtin(name="floor", signature=((kind,), dt.Decimal(38, 0)))(_floor)
            return self.line(floor(_clipped(self.column, low, high)).cast("int64"))
        marks = [mark for mark in _marks(self.axis) if isinstance(mark, Fraction)]
        units = {(math.floor(mark) + more) * 10**scale for mark in marks for more in (0, 1)}
        units |= {math.floor(mark * 10**scale) + more for mark in marks for more in (0, 1)}
        if scale:  # decimals that are no whole numbers count as the floats nearest to them
            units |= {_least_read_as(float(x), scale) for mark in marks for x in _neighbours(mark, np.float64) if np.isfinite(x)}
        starts = sorted(u for u in units if 1 - limit < u < limit)
        codes = []
        for first, beyond in zip([1 - limit, *starts], [*starts, limit], strict=True):
            whole = -(-first // 10**scale) * 10**scale
            broken = first + (first % 10**scale == 0)
            found = [_decimal(u, scale) for u in (whole, broken) if u < beyond] if scale else [Decimal(first)]
            code, *others = set(self.axis.codes(object_column(found)).tolist())
            if others:
                raise self.indistinct()
            codes.append(code)
        if (self.engine, kind.precision, scale) != ("duckdb", 38, 0):
            return self.steps([_constant(format(_decimal(u, scale), "f"), kind) for u in starts], codes)
        # As ibis shows integers of 128 bits, too, of which some are no decimals: DuckDB compares those with integers only.
        if any(not -(2**63) <= u < 2**64 for u in starts):
            raise self.refusal("has labels beyond 64 bits", "the column to decimal(37, 0)")
        return self.steps([_constant(u, "int64" if u < 2**63 else "uint64") for u in starts], codes)

    def indistinct(self) -> ValueError:
        return self.refusal("cannot tell its values apart as 64-bit floats do", "the column to float64")

    def of_text(self, text: _Expression) -> _Expression:
        import ibis

        axis: Any = self.axis
        if any(unicodedata.category(sign) == "Cc" and sign not in "\t\n\r" for label in axis.values for sign in label):
            raise ValueError(f"axis {self.name!r} must have labels without control characters for a table in an engine.")
        listed = {label: self.place(i) for i, label in enumerate(axis.values)}
        other = self.place(axis.codes(object_column([_unlisted(listed)])).item())
        # As CategoryAxis spells a value: as it is, as true or false however written, without the blanks around it.
        bare = text.re_replace(_BLANKS, "")
        small = bare.lower()
        tries = [_found(text, listed)]
        for word in ("true", "false"):
            spelled = [listed[label] for label in (word.title(), word) if label in listed]
            if spelled:
                tries.append((small == word).ifelse(spelled[0], ibis.null("int64")))
        unpadded = {label: place for label, place in listed.items() if label == label.strip()}
        tries.append((bare == text).ifelse(ibis.null("int64"), _found(bare, unpadded)))
        return ibis.coalesce(*tries, small.isin(sorted(NULL_WORDS)).ifelse(self.null, other))

    def of_times(self) -> _Expression:
        import ibis
        import ibis.expr.datatypes as dt

        axis: Any = self.axis
        start, stop = axis.start.astype("datetime64[s]"), axis.stop.astype("datetime64[s]")
        one = np.timedelta64(1, "D")
        days = start.astype("datetime64[D]") - one, stop.astype("datetime64[D]") + one
        if days[0] < np.datetime64("0001-01-01") or days[1] > np.datetime64("9999-12-31"):
            raise ValueError(f"axis {self.name!r} must be of the years 1 to 9999 for a table in an engine, with a day to spare.")
        moment = self.column
        if moment.type().is_timestamp() and (moment.type().scale or 0) > 6:
            # Not every engine rounds to microseconds downwards.
            near = moment.cast(dt.Timestamp(scale=6))
            is_late = near.cast(dt.Timestamp(scale=9)) > moment
            moment = is_late.ifelse(near - ibis.interval(timedelta(microseconds=1)), near)
        # Within a day of the axis, so that neither the ends of time nor the engine's infinite times overflow.
        low, high = (_constant(day, "date") for day in days)
        day = moment.date() if moment.type().is_timestamp() else moment
        second = _clipped(day, low, high).delta(low, unit="day").cast("int64") * _constant(86400, "int64")
        if moment.type().is_timestamp():
            for part, length in ((moment.hour(), 3600), (moment.minute(), 60), (moment.second(), 1)):
                # An infinite time has no hour.
                second = second + part.cast("int64").fill_null(_constant(0, "int64")) * _constant(length, "int64")
        offset = int((start - days[0]).astype("timedelta64[s]").astype(np.int64))
        width = int(axis.step.astype("timedelta64[s]").astype(np.int64))
        first, beyond = (_constant(x, "int64") for x in (offset, offset + width * axis.num_bins))
        below, above = axis.codes(np.array([axis.start - np.timedelta64(1, "us"), axis.stop])).tolist()
        # The quotient of engines is of floats, which is exact after rounding for so few seconds.
        inside = ((second - first) // _constant(width, "int64")).cast("int64") * _constant(self.stride, "int64")
        return (second < first).ifelse(self.place(below), (second >= beyond).ifelse(self.place(above), inside))


# What Python strips off: literal, since engines do not agree on what a class of blanks holds, and as ranges, since in Spark's
# notation sqlglot writes a vertical tab and a form feed as escapes that Spark reads as the letters v and f.
_WHITE = "\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BLANKS = f"^[{_WHITE}]+|[{_WHITE}]+$"


def _constant(value: Any, kind: Any) -> _Expression:
    """A number or date by its digits: engines read numbers of their own notation as other types, or not to the last bit."""
    import ibis

    return ibis.literal(str(value)).cast(kind)


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal(f"{unscaled}E-{scale}")  # arithmetic would round it


def _floor(number): ...  # the engine's


def _typeof(value): ...


def _clipped(value: _Expression, low: _Expression | None, high: _Expression | None) -> _Expression:
    import ibis

    value = value if low is None else ibis.greatest(value, low)
    return value if high is None else ibis.least(value, high)


def _step(value: _Expression, starts: list[_Expression], places: list[_Expression]) -> _Expression:
    """The place after the last start that is not above the value, by bisection."""
    if not starts:
        return places[0]
    middle = len(starts) // 2
    return (value < starts[middle]).ifelse(
        _step(value, starts[:middle], places[: middle + 1]), _step(value, starts[middle + 1 :], places[middle + 1 :])
    )


def _found(text: _Expression, listed: dict[str, _Expression]) -> _Expression:
    """The place of a text that is one of some labels, else null."""
    import ibis

    # By their bytes, as engines sort them; a label that has none in UTF-8 is no engine's text.
    labels = sorted((label.encode(), label) for label in listed if _is_encodable(label))
    nothing = ibis.null("int64")
    constants = [ibis.literal(label) for _, label in labels]
    places = [(text == constant).ifelse(listed[label], nothing) for constant, (_, label) in zip(constants, labels, strict=True)]
    return _step(text, constants, [nothing, *places])


def _is_encodable(label: str) -> bool:
    try:
        label.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unlisted(listed: Iterable[str]) -> str:
    """A text that is none of some."""
    return max(map(len, listed)) * "x" + "x"


def _marks(axis: Axis) -> list[Any]:
    """The public numbers at which the code of a number may change: fractions, or infinite floats."""
    if isinstance(axis, EdgeAxis):
        return list(axis.exact)
    marks = []
    for value in axis.values if isinstance(axis, CategoryAxis) else ():
        try:
            number = Decimal(value)
        except ArithmeticError:  # a label that no number prints as
            continue
        if number.is_infinite():
            marks.append(float(number))
        elif number.is_finite() and abs(number.adjusted()) < 400:
            marks.append(Fraction(number))
    return marks


def _neighbours(mark: Any, kind: type[np.floating]) -> list[np.floating]:
    """The float nearest to a number and some on both sides of it: from the last that could be below it to the next after it."""
    with np.errstate(over="ignore"):
        try:
            near = kind(float(mark))
        except OverflowError:
            return []
        up = np.nextafter(near, kind(np.inf))
        return [np.nextafter(near, kind(-np.inf)), near, up, np.nextafter(up, kind(np.inf))]


def _float_from(whole: int) -> str:
    """The least float that is not below an integer."""
    near = float(whole)
    return repr(near if int(near) >= whole else float(np.nextafter(near, np.inf)))


def _least_read_as(value: float, scale: int) -> int:
    """The least decimal, in units of its last digit, whose nearest float is not below a float."""
    below = float(np.nextafter(value, -np.inf))
    if below == -np.inf:
        return -(10**400)
    units = math.ceil((Fraction(below) + Fraction(value)) / 2 * 10**scale)
    return units + (float(Fraction(units, 10**scale)) < value)  # where the half between both rounds to the one below
