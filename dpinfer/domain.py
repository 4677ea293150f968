"""What the cells mean, and counting records into cells.

Counting sees private records. It follows a policy stated beforehand for nulls and for values outside the axis, does not
raise on a value, reports nothing but the cells, and gives the same number of cells whatever the records hold.
"""

import csv
import itertools
import json
import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Int64

from dpinfer._files import replacing
from dpinfer.axes import Axis, object_column

_CHUNK_ROWS = 1 << 18


@final
class Domain:
    """Named axes in order; the cells are all combinations of their bins, flat in C order (the last axis runs fastest)."""

    def __init__(self, axes: Mapping[str, Axis]):
        if not isinstance(axes, Mapping) or not axes or not all(isinstance(axis, Axis) for axis in axes.values()):
            raise ValueError(f"axes must map at least one name to an Axis, got {axes!r}.")
        self.axes = dict(axes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return tuple(axis.size for axis in self.axes.values())

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """The domain as plain values, for files."""
        return {name: axis.to_dict() for name, axis in self.axes.items()}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "Domain":
        """The domain that :meth:`to_dict` described."""
        return Domain({name: Axis.from_dict(axis) for name, axis in fields.items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the domain as TOML, one table an axis."""
        lines = []
        for name, axis in self.axes.items():
            # A JSON string is a TOML basic string.
            lines += [f"[{json.dumps(name)}]", *(f"{key} = {json.dumps(value)}" for key, value in axis.to_dict().items()), ""]
        with replacing(path) as file:
            file.write("\n".join(lines))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Domain":
        """The domain written as TOML, one table an axis, with the arguments of the axis.

            [age]
            kind = "integers"
            start = 0
            stop = 100
            above = "clip"

        ``kind`` is "integers" (:meth:`Axis.integers`) or "times" (:meth:`Axis.times`).
        """
        try:
            fields = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{os.fspath(path)} is no TOML: {error}.") from error
        if not fields or not all(isinstance(axis, dict) for axis in fields.values()):
            raise ValueError(f"{os.fspath(path)} is no domain: it must hold one table an axis, such as [age].")
        try:
            return Domain.from_dict(fields)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and list(self.axes.items()) == list(other.axes.items())

    def __hash__(self) -> int:
        return hash(tuple(self.axes.items()))

    def __repr__(self) -> str:
        return f"Domain({self.axes!r})"


def count(table: Any, domain: Domain) -> Int64[np.ndarray, " cells"]:
    """How many records fall into each cell: exact int64, shape [domain.size].

    A record counts once, in the cell of its values, or not at all if the policy of any axis drops it. Every value is read by
    itself, so that one record more or less changes one cell by one. Files are read in chunks.

    Args:
        table: private; a mapping from column names to columns of equal length (numpy arrays; anything else value by value),
            or the path of a CSV file with a header line, each line a record (no line breaks inside quotes), or of a Parquet
            file (needs DuckDB). Columns that the domain does not name are not looked at.
        domain: the axes, named like the columns.

    Raises:
        ValueError: for what is public: a column that is missing or of a type that its axis cannot read. Never for a value.
    """
    if not isinstance(domain, Domain):
        raise ValueError(f"domain must be a Domain, got {type(domain).__name__}.")
    if domain.size > 2**31:
        raise ValueError(f"domain has {domain.size} cells, more than a vector can hold here (2**31).")
    if not isinstance(table, (str, os.PathLike)):
        chunks = _array_chunks(table, domain.names)
    elif os.fspath(table).endswith((".parquet", ".pq")):
        chunks = _parquet_chunks(table, domain.names)
    else:
        chunks = _csv_chunks(table, domain.names)
    cells = np.zeros(domain.size, dtype=np.int64)
    for columns in chunks:
        codes = [axis.codes(column) for axis, column in zip(domain.axes.values(), columns, strict=True)]
        kept = np.all([code >= 0 for code in codes], axis=0)
        flat = np.ravel_multi_index([code[kept] for code in codes], domain.shape)
        cells += np.bincount(flat, minlength=domain.size)
    return cells


def _array_chunks(table: Any, names: tuple[str, ...]) -> Iterator[list[Any]]:
    if not isinstance(table, Mapping):
        raise ValueError(
            f"table must map column names to arrays or be the path of a CSV or Parquet file, got {type(table).__name__}."
        )
    _check_columns(list(table), names)
    columns = [table[name] if isinstance(table[name], np.ndarray) else object_column(table[name]) for name in names]
    if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
        raise ValueError(f"table must have one-dimensional columns of equal length; {', '.join(names)} are not.")
    for begin in range(0, len(columns[0]), _CHUNK_ROWS):
        yield [column[begin : begin + _CHUNK_ROWS] for column in columns]


def _csv_chunks(path: str | os.PathLike[str], names: tuple[str, ...]) -> Iterator[list[Any]]:
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


def _parquet_chunks(path: str | os.PathLike[str], names: tuple[str, ...]) -> Iterator[list[Any]]:
    try:
        import duckdb
    except ImportError:
        raise ValueError("Reading Parquet needs DuckDB: pip install 'dpinfer[cli]'.") from None
    Path(path).open("rb").close()  # a missing file is a FileNotFoundError as for CSV
    with duckdb.connect() as connection:
        try:
            present = [row[0] for row in connection.execute("DESCRIBE FROM read_parquet(?)", [os.fspath(path)]).fetchall()]
        except duckdb.Error:
            # DuckDB's own message may quote the file.
            raise ValueError(f"{os.fspath(path)} cannot be read as Parquet.") from None
        _check_columns(present, names)
        wanted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        rows = connection.execute(f"SELECT {wanted} FROM read_parquet(?)", [os.fspath(path)])
        while chunk := rows.fetchmany(_CHUNK_ROWS):
            yield [object_column(column) for column in zip(*chunk, strict=True)]


def _check_columns(present: Iterable[str], names: tuple[str, ...], *, is_shown: bool = True) -> None:
    present = list(present)
    missing = [name for name in names if name not in present]
    if missing:
        shown = f"; its columns are {', '.join(map(repr, present))}" if is_shown else " in its first line"
        raise ValueError(f"table has no column {', '.join(map(repr, missing))}{shown}.")
