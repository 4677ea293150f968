"""Reading the columns of private records, in chunks, from whatever holds them: arrays, data frames, CSV and Parquet files.

What is shown of a table on failure is public: the names and types of its columns. An engine's own message may quote a record
and is replaced.
"""

import csv
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpinfer.axes.column import object_column

if TYPE_CHECKING:
    import narwhals as nw

_CHUNK_ROWS = 1 << 18
_NO_TABLE = (
    "table must map column names to arrays, be a data frame (pandas, polars, pyarrow, DuckDB, ibis or another that narwhals "
    "knows) or the path of a CSV or Parquet file, got {}."
)


def chunks(table: Any, names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    """The named columns of a table, some rows at a time; at least one chunk, so that a wrong type shows without any row.

    Args:
        table: private; see :func:`dpinfer.count`.
        names: columns of which each must be there once.
    """
    if isinstance(table, (str, os.PathLike)):
        return (_parquet_chunks if is_parquet(table) else _csv_chunks)(table, names)
    if isinstance(table, Mapping):
        return _array_chunks(table, names)
    import narwhals as nw  # a fortieth of a second that not everyone needs

    frame = nw.from_native(table, pass_through=True)
    if isinstance(frame, (nw.DataFrame, nw.LazyFrame)):
        return _frame_chunks(frame, names)
    raise ValueError(_NO_TABLE.format(type(table).__name__))


def column_names(table: Any) -> list[str]:
    """The names of a table's columns; of the same tables as :func:`chunks` reads."""
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    if isinstance(table, (str, os.PathLike)):
        if is_parquet(table):
            return list(parquet_columns(table))
        with Path(table).open(newline="\n", encoding="utf-8-sig", errors="replace") as file:
            return _csv_fields(file.readline())
    import narwhals as nw

    frame = nw.from_native(table, pass_through=True)
    if isinstance(frame, (nw.DataFrame, nw.LazyFrame)):
        return [str(name) for name in frame.collect_schema().names()]
    raise ValueError(_NO_TABLE.format(type(table).__name__))


def is_parquet(table: Any) -> bool:
    """Whether a table is the path of a Parquet file."""
    return isinstance(table, (str, os.PathLike)) and os.fspath(table).endswith((".parquet", ".pq"))


def _array_chunks(table: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    check_columns(table, names)
    columns = [_held_column(table[name]) for name in names]
    if len({column.shape for column in columns}) > 1 or len(columns[0].shape) != 1:
        raise ValueError(f"table must have one-dimensional columns of equal length; {', '.join(names)} are not.")
    for begin in range(0, max(1, len(columns[0])), _CHUNK_ROWS):
        parts = [column[begin : begin + _CHUNK_ROWS] for column in columns]
        yield [part if isinstance(part, np.ndarray) else _frame_column(part) for part in parts]


def _held_column(values: Any) -> Any:
    """A column of a mapping: an array, a series of any frame library, or whatever else value by value."""
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "to_pylist"):  # pyarrow's arrays, whose elements are no Python values
        import pyarrow

        values = pyarrow.chunked_array([values]) if isinstance(values, pyarrow.Array) else values
    if not isinstance(values, (list, tuple)):
        import narwhals as nw

        series = nw.from_native(values, series_only=True, pass_through=True)
        if isinstance(series, nw.Series):
            return series
    return object_column(values)


def _frame_chunks(frame: "nw.DataFrame[Any] | nw.LazyFrame[Any]", names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    import narwhals as nw

    check_columns(frame.collect_schema().names(), names)
    if isinstance(frame, nw.DataFrame):
        for begin in range(0, max(1, len(frame)), _CHUNK_ROWS):
            yield [_frame_column(frame[name][begin : begin + _CHUNK_ROWS]) for name in names]
        return
    wanted = frame.select(*names)
    is_duckdb = frame.implementation is nw.Implementation.DUCKDB
    if is_duckdb and find_spec("pyarrow") is None:
        raise ValueError("Reading a DuckDB relation needs pyarrow: pip install pyarrow.")
    with without_quoting("table could not be evaluated by its engine; evaluate it first to see why."):
        parts = _relation_parts(wanted.to_native()) if is_duckdb else [wanted.collect()]
        for part in parts:
            yield from _frame_chunks(part, names)


def _relation_parts(relation: Any) -> "Iterator[nw.DataFrame[Any]]":
    import narwhals as nw
    import pyarrow

    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch  # the latter before DuckDB 1.5
    with read(_CHUNK_ROWS) as reader:
        yield nw.from_native(reader.schema.empty_table(), eager_only=True)
        for batch in reader:
            yield nw.from_native(pyarrow.Table.from_batches([batch]), eager_only=True)


def _frame_column(series: "nw.Series[Any]") -> np.ndarray:
    """A column as the array that tells the most: integers stay integers beside nulls, and objects come one by one."""
    import narwhals as nw

    dtype = series.dtype
    if dtype == nw.Boolean or (dtype.is_numeric() and dtype not in (nw.Decimal, nw.Int128, nw.UInt128)):
        filler = False if dtype == nw.Boolean else 0
        return np.ma.masked_array(series.fill_null(filler).to_numpy(), mask=series.is_null().to_numpy())
    if isinstance(dtype, nw.Datetime) and dtype.time_zone is not None:
        return np.full(len(series), np.datetime64("NaT", "us"))
    if dtype.is_nested() or dtype in (nw.Duration, nw.Time):  # nothing that an axis reads
        return np.full(len(series), None, dtype=object)
    with without_quoting("table has a column that its engine cannot convert."):
        return _times(series) if dtype in (nw.Date, nw.Datetime) else _objects(series)


def _times(series: "nw.Series[Any]") -> np.ndarray:
    try:
        array = series.to_numpy()
        if array.dtype.kind == "M":
            return array
    except (ValueError, OverflowError):
        pass  # years that Python's own dates do not reach
    if find_spec("pyarrow") is None:
        return _objects(series)
    import pyarrow

    arrow = series.to_arrow()
    if pyarrow.types.is_date(arrow.type):
        arrow = arrow.cast(pyarrow.date64()).cast(pyarrow.timestamp("ms"))
    return arrow.to_numpy(zero_copy_only=False) if isinstance(arrow, pyarrow.Array) else arrow.to_numpy()


def _objects(series: "nw.Series[Any]") -> np.ndarray:
    try:
        return object_column(series.to_list())
    except (ValueError, OverflowError):
        # A value that Python cannot hold: each by itself, so that it alone is a null; text that is none as its bytes.
        column = np.full(len(series), None, dtype=object)
        for i in range(len(series)):
            try:
                column[i] = series[i : i + 1].to_list()[0]
            except UnicodeDecodeError as error:
                column[i] = bytes(error.object)
            except (ValueError, OverflowError):
                column[i] = None
        return column


def _csv_chunks(path: str | os.PathLike[str], names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    # Every line is read by itself: a stray quote must not swallow the records behind it, nor may bytes that are no UTF-8, or
    # a field of any length, raise.
    with Path(path).open(newline="\n", encoding="utf-8-sig", errors="replace") as file:
        header = _csv_fields(file.readline())
        check_columns(header, names, is_shown=False)  # without a header, the first line is a record
        places = [header.index(name) for name in names]
        # An empty line is no record, but where there is one column only it is one without a value.
        keeps_empty = len(header) == 1
        while chunk := list(itertools.islice(file, _CHUNK_ROWS)):
            # A line that is too short has nulls at its end.
            rows = [_csv_fields(line) for line in chunk if keeps_empty or line.strip("\r\n")]
            yield [object_column(row[p] if p < len(row) else "" for row in rows) for p in places]


def _csv_fields(line: str) -> list[str]:
    text = line.rstrip("\r\n").replace("\r", " ")
    if len(text) < csv.field_size_limit():
        try:
            return next(csv.reader([text]), [])
        except csv.Error:
            return []
    fields, field, is_quoted, characters = [], [], False, iter(range(len(text)))
    for i in characters:  # the same rules, for fields beyond the reader's limit
        sign = text[i]
        if is_quoted and sign == '"' and text[i + 1 : i + 2] == '"':
            field.append(sign)
            next(characters)
        elif sign == '"' and (is_quoted or not field):
            is_quoted = not is_quoted
        elif sign == "," and not is_quoted:
            fields.append("".join(field))
            field = []
        else:
            field.append(sign)
    return [*fields, "".join(field)]


_PARQUET = "read_parquet(?, hive_partitioning = false)"


def _duckdb(path: str | os.PathLike[str]) -> Any:
    try:
        import duckdb
    except ImportError:
        raise ValueError("Reading Parquet needs DuckDB: pip install 'dpinfer[cli]'.") from None
    Path(path).open("rb").close()  # a missing file is a FileNotFoundError as for CSV
    if set(os.fspath(path)) & set("*?["):
        raise ValueError(f"{os.fspath(path)!r} reads as a pattern of several files: rename it without *, ? and [.")
    return duckdb


def parquet_columns(path: str | os.PathLike[str]) -> dict[str, str]:
    """The names of a Parquet file's columns, and their types as DuckDB calls them."""
    with _duckdb(path).connect() as connection, without_quoting(f"{os.fspath(path)} cannot be read as Parquet."):
        described = connection.execute(f"DESCRIBE FROM {_PARQUET}", [os.fspath(path)]).fetchall()
    return {row[0]: row[1] for row in described}


def _parquet_chunks(path: str | os.PathLike[str], names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    kinds = parquet_columns(path)
    check_columns(kinds, names)
    with _duckdb(path).connect() as connection, without_quoting(f"{os.fspath(path)} cannot be read as Parquet."):
        wanted = ", ".join(_projection(name, kinds[name]) for name in names)
        rows = connection.execute(f"SELECT {wanted} FROM {_PARQUET}", [os.fspath(path)])
        chunk = rows.fetchmany(_CHUNK_ROWS)
        while True:
            columns = zip(*chunk, strict=True) if chunk else [()] * len(names)
            yield [_typed_column(values, kinds[name]) for values, name in zip(columns, names, strict=True)]
            if not (chunk := rows.fetchmany(_CHUNK_ROWS)):
                return


_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_NUMPY_TYPES: dict[str, Any] = dict.fromkeys(_INTEGERS, np.int64)
_NUMPY_TYPES |= {"BOOLEAN": bool, "UBIGINT": np.uint64, "FLOAT": np.float32, "DOUBLE": np.float64}
_INSTANTS = {
    "TIMESTAMP": "epoch_us({0})",
    "TIMESTAMP_S": "epoch_us({0})",
    "TIMESTAMP_MS": "epoch_us({0})",
    "TIMESTAMP_NS": "epoch_ns({0}) // 1000 - (epoch_ns({0}) % 1000 < 0)::INTEGER",  # rounded down also before 1970
    "DATE": "{0} - DATE '1970-01-01'",
}
_OBJECTS = ("VARCHAR", "BLOB", "ENUM", "DECIMAL", "HUGEINT", "UHUGEINT", "UUID", "NULL")


def _projection(name: str, kind: str) -> str:
    """A column as what Python can hold of it: instants as integers, which Python's dates could not reach, and nothing else."""
    column = '"' + name.replace('"', '""') + '"'
    if kind in _INSTANTS:
        return f"CASE WHEN isfinite({column}) THEN {_INSTANTS[kind].format(column)} END"
    return column if kind in _NUMPY_TYPES or kind.split("(")[0] in _OBJECTS else "NULL"


def _typed_column(values: Sequence[Any], kind: str) -> np.ndarray:
    """The fetched values of a column as an array of its own type, with nulls masked."""
    if kind not in _NUMPY_TYPES and kind not in _INSTANTS:
        return object_column(values)
    array = np.array([0 if value is None else value for value in values], dtype=_NUMPY_TYPES.get(kind, np.int64))
    if kind in _INSTANTS:
        array = array.astype("datetime64[D]" if kind == "DATE" else "datetime64[us]")
    return np.ma.masked_array(array, mask=[value is None for value in values])


@contextmanager
def without_quoting(message: str) -> Iterator[None]:
    """Any error inside as one that says ``message`` and nothing of what was read."""
    try:
        yield
    except Exception:
        raise ValueError(message) from None


def check_columns(present: Iterable[Any], names: tuple[str, ...], *, is_shown: bool = True) -> None:
    """Raise a ValueError unless each name is there once."""
    present = list(present)
    missing = [name for name in names if name not in present]
    if missing:
        shown = f"; its columns are {', '.join(map(repr, present))}" if is_shown else " in its first line"
        raise ValueError(f"table has no column {', '.join(map(repr, missing))}{shown}.")
    twice = [name for name in names if present.count(name) > 1]
    if twice:
        raise ValueError(f"table has more than one column {', '.join(map(repr, twice))}.")
