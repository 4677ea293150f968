"""What the cells mean, and counting records into cells.

Counting sees private records. It follows a policy stated beforehand for nulls and for values outside the axis, does not
raise on a value, reports nothing but the cells, and gives the same number of cells whatever the records hold.
"""

import json
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Int64

from dpinfer import engine_tables, tables
from dpinfer._files import replacing
from dpinfer.axes import Axis


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
            lines += [f"[{_toml(name)}]", *(f"{key} = {_toml(value)}" for key, value in axis.to_dict().items()), ""]
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

        ``kind`` is "integers" (:meth:`Axis.integers`), "edges" (:meth:`Axis.edges`, where a decimal such as 0.1 is exact),
        "categories" (:meth:`Axis.categories`) or "times" (:meth:`Axis.times`).
        """
        try:
            fields = tomllib.loads(Path(path).read_text(encoding="utf-8"), parse_float=str)
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


def _toml(value: Any) -> str:
    """Text, integers, booleans and lists of them: as in JSON, but that TOML knows no surrogates and no bare delete sign."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def count(table: Any, domain: Domain) -> Int64[np.ndarray, " cells"]:
    """How many records fall into each cell: exact int64, shape [domain.size].

    A record counts once, in the cell of its values, or not at all if the policy of any axis drops it. Every value is read by
    itself, so that one record more or less changes one cell by one. Files are read in chunks.

    Args:
        table: private; a mapping from column names to columns of equal length (numpy arrays; anything else value by value);
            or a data frame, eager or lazy, of pandas, polars, pyarrow, DuckDB (a relation, read in chunks) or whatever else
            narwhals knows; or an ibis table, counted in its engine (:func:`~dpinfer.engine_tables.count_in_engine` says what
            of it is refused); or the path of a CSV file with a header line, each line a record (no line breaks inside quotes), or
            of a Parquet file (needs DuckDB). The same records give the same cells whichever of these holds them, where
            it holds them as the same values. Columns that the domain does not name are not looked at.
        domain: the axes, named like the columns.

    Raises:
        ValueError: for what is public: a column that is missing or of a type that its axis cannot read. Never for a value.
    """
    if not isinstance(domain, Domain):
        raise ValueError(f"domain must be a Domain, got {type(domain).__name__}.")
    if domain.size > 2**31:
        raise ValueError(f"domain has {domain.size} cells, more than a vector can hold here (2**31).")
    if (held := engine_tables.engine_table(table)) is not None:
        return engine_tables.count_in_engine(held, domain)
    cells = np.zeros(domain.size, dtype=np.int64)
    for columns in tables.chunks(table, domain.names):
        codes = [axis.codes(column) for axis, column in zip(domain.axes.values(), columns, strict=True)]
        kept = np.all([code >= 0 for code in codes], axis=0)
        flat = np.ravel_multi_index([code[kept] for code in codes], domain.shape)
        cells += np.bincount(flat, minlength=domain.size)
    return cells
