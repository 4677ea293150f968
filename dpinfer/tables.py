"""Reading the columns of private records, in chunks, from whatever holds them: arrays, data frames, CSV and Parquet files.

What is shown of a table on failure is public: the names and types of its columns. An engine's own message may quote a record
and is replaced.
"""

import csv
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpinfer.axes.column import object_column

if TYPE_CHECKING:
    import narwhals as nw

_CHUNK_ROWS = 1 << 18


def chunks(table: Any, names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    """The named columns of a table, some rows at a time; at least one chunk, so that a wrong type shows without any row.

    Args:
        table: private; see :func:`dpinfer.count`.
        names: columns of which each must be there once.
    """
    if isinstance(table, (str, os.PathLike)):
        is_parquet = os.fspath(table).endswith((".parquet", ".pq"))
        return (_parquet_chunks if is_parquet else _csv_chunks)(table, names)
    if isinstance(table, Mapping):
        return _array_chunks(table, names)
    import narwhals as nw  # a fortieth of a second that not everyone needs

    frame = nw.from_native(table, pass_through=True)
    if isinstance(frame, (nw.DataFrame, nw.LazyFrame)):
        return _frame_chunks(frame, names)
    raise ValueError(
        "table must map column names to arrays, be a data frame (pandas, polars, pyarrow, DuckDB or another that narwhals knows) "
        f"or the path of a CSV or Parquet file, got {type(table).__name__}."
    )


def _array_chunks(table: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    _check_columns(table, names)
    columns = [table[name] if isinstance(table[name], np.ndarray) else object_column(table[name]) for name in names]
    if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
        raise ValueError(f"table must have one-dimensional columns of equal length; {', '.join(names)} are not.")
    for begin in range(0, max(1, len(columns[0])), _CHUNK_ROWS):
        yield [column[begin : begin + _CHUNK_ROWS] for column in columns]


def _frame_chunks(frame: "nw.DataFrame[Any] | nw.LazyFrame[Any]", names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    import narwhals as nw

    _check_columns(frame.collect_schema().names(), names)
    if isinstance(frame, nw.DataFrame):
        for begin in range(0, max(1, len(frame)), _CHUNK_ROWS):
            yield [_frame_column(frame[name][begin : begin + _CHUNK_ROWS]) for name in names]
        return
    wanted = frame.select(*names)
    is_duckdb = frame.implementation is nw.Implementation.DUCKDB
    if is_duckdb and find_spec("pyarrow") is None:
        raise ValueError("Reading a DuckDB relation needs pyarrow: pip install pyarrow.")
    with _without_quoting("table could not be evaluated by its engine; evaluate it first to see why."):
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
    if dtype in (nw.Date, nw.Datetime) and (array := series.to_numpy()).dtype.kind == "M":
        return array
    return object_column(series.to_list())


def _csv_chunks(path: str | os.PathLike[str], names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    # Every line is read by itself: a stray quote must not swallow the records behind it, nor may bytes that are no UTF-8, or
    # a field of any length, raise.
    with Path(path).open(newline="\n", encoding="utf-8-sig", errors="replace") as file:
        header = _csv_fields(file.readline())
        _check_columns(header, names, is_shown=False)  # without a header, the first line is a record
        places = [header.index(name) for name in names]
        while chunk := list(itertools.islice(file, _CHUNK_ROWS)):
            # A line that is too short has nulls at its end; an empty line is no record.
            rows = [_csv_fields(line) for line in chunk if line.strip("\r\n")]
            yield [object_column(row[p] if p < len(row) else "" for row in rows) for p in places]


def _csv_fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n").replace("\r", " ")]))
    except (csv.Error, StopIteration):  # a field beyond the reader's limit: nothing of the line can be read
        return []


def _parquet_chunks(path: str | os.PathLike[str], names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    try:
        import duckdb
    except ImportError:
        raise ValueError("Reading Parquet needs DuckDB: pip install 'dpinfer[cli]'.") from None
    Path(path).open("rb").close()  # a missing file is a FileNotFoundError as for CSV
    with duckdb.connect() as connection:
        with _without_quoting(f"{os.fspath(path)} cannot be read as Parquet."):
            present = [row[0] for row in connection.execute("DESCRIBE FROM read_parquet(?)", [os.fspath(path)]).fetchall()]
        _check_columns(present, names)
        with _without_quoting(f"{os.fspath(path)} cannot be read as Parquet."):
            wanted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
            rows = connection.execute(f"SELECT {wanted} FROM read_parquet(?)", [os.fspath(path)])
            while chunk := rows.fetchmany(_CHUNK_ROWS):
                yield [object_column(column) for column in zip(*chunk, strict=True)]


@contextmanager
def _without_quoting(message: str) -> Iterator[None]:
    """Any error inside as one that says ``message`` and nothing of what was read."""
    try:
        yield
    except Exception:
        raise ValueError(message) from None


def _check_columns(present: Iterable[Any], names: tuple[str, ...], *, is_shown: bool = True) -> None:
    present = list(present)
    missing = [name for name in names if name not in present]
    if missing:
        shown = f"; its columns are {', '.join(map(repr, present))}" if is_shown else " in its first line"
        raise ValueError(f"table has no column {', '.join(map(repr, missing))}{shown}.")
    twice = [name for name in names if present.count(name) > 1]
    if twice:
        raise ValueError(f"table has more than one column {', '.join(map(repr, twice))}.")
