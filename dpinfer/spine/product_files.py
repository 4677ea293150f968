"""The Parquet files of one level of a product, read by DuckDB.

Integer types differ between files, and columns may be missing in some.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from dpinfer.spine.schema import Query, Schema

# Answers of a constraint whose zeros one integer of DuckDB tells.
_MOST_BITS = 62
_CODE = "coalesce(geocode, '')"


class ZeroAnswers(NamedTuple):
    """Answers of a query that are zero: [kinds, answers] truths, the units that say so, and the kind of each."""

    query: Query
    truths: np.ndarray
    units: np.ndarray
    kind: np.ndarray


class Equality(NamedTuple):
    """Exact answers of a query, [units, answers], and the units."""

    query: Query
    units: np.ndarray
    values: np.ndarray


def duckdb_or_refusal() -> Any:
    """DuckDB, which reads and writes the files.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise ValueError("Noisy measurement files need DuckDB: pip install 'dpinfer[cli]'.") from None
    return duckdb


def short_name(name: str) -> str:
    """A query's name without the suffix that files give it."""
    return name.removesuffix("_dpq").removesuffix("_con")


@final
class LevelFiles:
    """The files of one level.

    Raises:
        ValueError: if they are not what they should be, in one line that names the level.
    """

    def __init__(self, connection: Any, folder: Path):
        self.name = folder.name.removesuffix(".parquet")
        self._connection = connection
        self.paths = {
            kind: sorted(os.fspath(path) for path in (folder / kind).rglob("*.parquet") if path.is_file())
            for kind in ("DPQuery", "Constraint")
        }
        self.columns = {kind: self._columns(kind) for kind in self.paths}
        widths = self._run(f"SELECT DISTINCT length({_CODE}) AS n FROM ({self._any()})")["n"] if self.any_files else np.zeros(0)
        if len(widths) > 1:
            raise ValueError(f"{self.name}: geocodes must all be equally long, got {sorted(widths.tolist())} characters.")
        self.is_empty = not len(widths)
        self.width = 0 if self.is_empty else int(widths[0])

    @property
    def any_files(self) -> bool:
        return any(self.paths.values())

    def _run(self, statement: str) -> Mapping[str, Any]:
        import duckdb

        try:
            return self._connection.execute(statement).fetchnumpy()
        except duckdb.Error as error:
            raise ValueError(f"{self.name}: files are not readable: {str(error).splitlines()[0]}") from error

    def _scan(self, kind: str, paths: Sequence[str] | None = None) -> str:
        listed = ", ".join(_text(path) for path in (self.paths[kind] if paths is None else paths))
        return f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"

    def _any(self) -> str:
        return " UNION ALL ".join(f"SELECT geocode FROM {self._scan(kind)}" for kind, paths in self.paths.items() if paths)

    def _columns(self, kind: str) -> set[str]:
        if not self.paths[kind]:
            return set()
        described = self._run(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {self._scan(kind)})")
        types = dict(zip(described["column_name"], described["column_type"], strict=True))
        lacking = {"geocode", "query_name", "value"} - types.keys()
        if lacking:
            raise ValueError(f"{self.name}: {kind} lacks the columns {', '.join(sorted(lacking))}.")
        for column, expected in (("geocode", "VARCHAR"), ("query_name", "VARCHAR")):
            if types[column] != expected:
                raise ValueError(f"{self.name}: the column {column} of {kind} must hold text, got {types[column]}.")
        if not types["value"].endswith("[]") or types["value"].startswith("VARCHAR"):
            raise ValueError(f"{self.name}: the column value of {kind} must hold lists of numbers, got {types['value']}.")
        return set(types)

    def codes(self) -> np.ndarray:
        """All units that are named anywhere, in order."""
        rows = self._run(f"SELECT DISTINCT {_CODE} AS code FROM ({self._any()}) ORDER BY code")
        return np.array([code.encode() for code in rows["code"]], dtype=f"S{max(1, self.width)}")

    def register(self, codes: np.ndarray) -> None:
        """Remember the places of the units."""
        self._table = f"units of {self.name}".replace('"', "")
        self._num_units = len(codes)
        self._remember(self._table, code=codes.astype(str).astype(object), unit=np.arange(len(codes), dtype=np.int32))

    def _remember(self, table: str, **columns: np.ndarray) -> None:
        # DuckDB finds the columns by the name of this variable.
        self._connection.execute(f'CREATE OR REPLACE TEMP TABLE "{table}" AS SELECT * FROM columns')

    def _joined(self, kind: str) -> str:
        """Rows of one kind, d, with the places of their units, u."""
        return f"{self._scan(kind)} d JOIN \"{self._table}\" u ON coalesce(d.geocode, '') = u.code"

    def queries(self, kind: str, schema: Schema, where: str = "true") -> dict[str, Query]:
        """The queries that come, by the names in the files."""
        if not self.paths[kind]:
            return {}
        columns = self.columns[kind]
        given = [f"coalesce(\"{name}\"::VARCHAR, '*')" if name in columns else "NULL" for name in schema.names]
        listed = ", ".join(f"{one} AS r{place}" for place, one in enumerate(given))
        rows = self._run(f"SELECT DISTINCT query_name, {listed} FROM {self._scan(kind)} WHERE {where} ORDER BY ALL")
        found: dict[str, Query] = {}
        for name, *recodes in zip(rows["query_name"], *(rows[f"r{place}"] for place in range(len(given))), strict=True):
            if not isinstance(name, str):
                raise ValueError(f"{self.name}: {kind} holds a row without a query_name.")
            try:
                is_told = all(isinstance(recode, str) for recode in recodes)
                query = schema.query_of(recodes) if is_told else schema.query(short_name(name))
            except ValueError as error:
                raise ValueError(f"{self.name}: {kind} holds {name!r}, which the schema does not know: {error}") from error
            if name in found and found[name].groups != query.groups:
                raise ValueError(f"{self.name}: {kind} holds {name!r} with two sets of recodes.")
            found[name] = replace(query, name=short_name(name) if kind == "DPQuery" else name)
        return found

    def variances(self, numbers: Mapping[str, int]) -> np.ndarray:
        """[units, queries], by numbers of the names in the files; infinite where there is no row, or no finite variance."""
        found = np.full((self._num_units, len(set(numbers.values()))), np.inf)
        if not self.paths["DPQuery"]:
            return found
        if "variance" not in self.columns["DPQuery"]:
            raise ValueError(f"{self.name}: DPQuery lacks the column variance.")
        names = np.array(list(numbers), dtype=object)
        self._remember("queries", name=names, number=np.array(list(numbers.values()), dtype=np.int32))
        rows = self._run(
            f"SELECT u.unit, q.number, d.variance::DOUBLE AS variance FROM {self._joined('DPQuery')} "
            "JOIN queries q ON d.query_name = q.name"
        )
        unit, number = np.asarray(rows["unit"]).astype(np.int64), np.asarray(rows["number"])
        variance = np.ma.filled(np.ma.masked_invalid(np.ma.asarray(rows["variance"])), np.inf)
        if (variance < 0).any():
            raise ValueError(f"{self.name}: DPQuery holds a negative variance.")
        self._refuse_twice(unit * found.shape[1] + number, found.shape[1], {i: short_name(name) for name, i in numbers.items()})
        found[unit, number] = variance
        return found

    def _refuse_twice(self, pairs: np.ndarray, width: int, names: Mapping[int, str]) -> None:
        times = np.bincount(pairs, minlength=1)
        if (times > 1).any():
            twice = int(times.argmax())
            code = self._run(f'SELECT code FROM "{self._table}" WHERE unit = {twice // width}')["code"][0]
            raise ValueError(f"{self.name}: {code!r} has two rows of {names[twice % width]!r}.")

    @cached_property
    def _sign(self) -> str:
        """The sign of a constraint; where it is missing, what its name says, or an equality."""
        by_name = (
            "CASE WHEN query_name LIKE '%\\_lb\\_con' ESCAPE '\\' THEN '>=' "
            "WHEN query_name LIKE '%\\_ub\\_con' ESCAPE '\\' THEN '<=' ELSE '=' END"
        )
        if "sign" not in self.columns["Constraint"]:
            return f"({by_name})"
        given = self._run(f"SELECT DISTINCT trim(sign) AS sign FROM {self._scan('Constraint')} WHERE sign IS NOT NULL")["sign"]
        unknown = [str(sign) for sign in given if sign not in ("=", "<=", ">=")]
        if unknown:
            raise ValueError(f"{self.name}: a sign of Constraint must be '=', '<=' or '>=', got {unknown[0]!r}.")
        return f"coalesce(trim(sign), {by_name})"

    def zeros(self, schema: Schema) -> list[ZeroAnswers]:
        """What answers are zero, by query: those that equal 0 or are at most 0."""
        if not self.paths["Constraint"]:
            return []
        where = f"list_contains(value, 0) AND {self._sign} IN ('=', '<=')"
        found = []
        for name, query in self.queries("Constraint", schema, where).items():
            if query.size > _MOST_BITS:
                raise ValueError(f"{self.name}: {name!r} holds {query.size} values; zeros are read from {_MOST_BITS} at most.")
            one = "CASE WHEN value[j + 1] = 0 THEN (1::BIGINT << j::INTEGER) ELSE 0 END"
            rows = self._run(
                f"SELECT u.unit, list_sum([{one} for j in range(len(value))])::BIGINT AS bits, len(value)::BIGINT AS size "
                f"FROM {self._joined('Constraint')} WHERE query_name = {_text(name)} AND {where}"
            )
            if (np.asarray(rows["size"]) != query.size).any():
                raise ValueError(f"{self.name}: a row of {name!r} does not hold {query.size} values, which its recodes make.")
            kinds, kind = np.unique(np.asarray(rows["bits"]), return_inverse=True)
            truths = (kinds[:, None] >> np.arange(query.size)) & 1 == 1
            found.append(ZeroAnswers(query, truths, np.asarray(rows["unit"]), kind))
        return found

    def equalities(self, schema: Schema) -> list[Equality]:
        """Exact answers that are not all zero, by query."""
        if not self.paths["Constraint"]:
            return []
        where = f"{self._sign} = '=' AND len([x for x in value if x <> 0]) > 0"
        found = []
        for name, query in self.queries("Constraint", schema, where).items():
            rows = self._run(
                f"SELECT u.unit, value FROM {self._joined('Constraint')} WHERE query_name = {_text(name)} AND {where}"
            )
            units = np.asarray(rows["unit"]).astype(np.int64)
            self._refuse_twice(units, 1, {0: name})
            found.append(Equality(query, units, self._stack(name, list(rows["value"]), query.size).astype(float)))
        return found

    @cached_property
    def _bounds(self) -> dict[str, tuple[str, str]]:
        """The first and the last code of each file of measurements."""
        if not self.paths["DPQuery"]:
            return {}
        scan = f"read_parquet([{', '.join(map(_text, self.paths['DPQuery']))}], filename = 'file', hive_partitioning = false)"
        rows = self._run(f"SELECT file, min({_CODE}) AS first, max({_CODE}) AS last FROM {scan} GROUP BY file")
        return {file: (first, last) for file, first, last in zip(rows["file"], rows["first"], rows["last"], strict=True)}

    def holding(self, first: str, last: str) -> list[str]:
        """The files that may hold measurements of units in a range of codes."""
        return sorted(path for path, (low, high) in self._bounds.items() if low <= last and first <= high)

    def values(
        self, codes: np.ndarray, numbers: Mapping[str, int], sizes: Sequence[int], is_measured: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each query the places of the units that answer it, in order, and their answers.

        Args:
            codes: of units that follow each other.
            numbers: of the queries, by their names in the files.
            sizes: answers of each query.
            is_measured: [units, queries]; other rows are not looked at.
        """
        rows: Mapping[str, Any] = {"code": [], "query_name": [], "value": np.zeros(0)}
        if len(codes) and self.paths["DPQuery"]:
            first, last = codes[0].decode(), codes[-1].decode()
            paths = self.holding(first, last)
            # Bounds on the column itself, so that parts of files without such codes are not read.
            within = f"geocode BETWEEN {_text(first)} AND {_text(last)}" if self.width else "true"
            if paths:
                columns = f"{_CODE} AS code, query_name, value"
                rows = self._run(f"SELECT {columns} FROM {self._scan('DPQuery', paths)} WHERE {within}")
        place = {code.decode(): i for i, code in enumerate(codes)}
        unit = np.array([place.get(code, -1) for code in rows["code"]], dtype=np.int64)
        number = np.array([numbers.get(name, -1) for name in rows["query_name"]], dtype=np.int64)
        known = (unit >= 0) & (number >= 0)
        known[known] = is_measured[unit[known], number[known]]
        found = []
        names = {i: short_name(name) for name, i in numbers.items()}
        for i, size in enumerate(sizes):
            at = np.flatnonzero(known & (number == i))
            at = at[np.argsort(unit[at], kind="stable")]
            expected = np.flatnonzero(is_measured[:, i])
            if not np.array_equal(unit[at], expected):
                lost = np.setdiff1d(expected, unit[at])
                code = codes.astype(str)[lost[0] if lost.size else 0].item()
                raise ValueError(
                    f"{self.name}: the row of {names[i]!r} of {code!r} is not there any more: open the product again."
                )
            values = self._stack(names[i], rows["value"][at], size) if at.size else np.zeros((0, size), dtype=np.int64)
            found.append((expected, values))
        return found

    def _stack(self, name: str, values: Any, size: int) -> np.ndarray:
        """[rows, size], of one array a row."""
        rows = list(values)
        if any(isinstance(row, np.ma.MaskedArray) for row in rows):
            raise ValueError(f"{self.name}: a row of {name!r} holds a null, or one among its values.")
        wrong = [len(row) for row in rows if len(row) != size]
        if wrong:
            raise ValueError(f"{self.name}: a row of {name!r} holds {wrong[0]} values, its recodes make {size}.")
        found = np.concatenate(rows).reshape(-1, size)
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise ValueError(f"{self.name}: a row of {name!r} holds a value that is not finite.")
        if found.dtype.kind not in "iuf":
            found = found.astype(float)
        return found


class Digests:
    """What files hold, in a few bytes each; every file is read once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, path: str) -> str:
        """A digest of a file's bytes."""
        if path not in self._known:
            with Path(path).open("rb") as file:
                self._known[path] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        return self._known[path]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
