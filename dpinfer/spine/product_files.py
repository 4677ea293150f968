"""The Parquet files of one level of a product, read by DuckDB.

Integer types differ between files, and columns may be missing in some.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from dpinfer.spine.schema import Query, Schema

_PARTITION = re.compile(r"State=(\d+)")
# Answers of a constraint whose zeros one integer of DuckDB tells.
_MOST_BITS = 62


@final
class LevelFiles:
    """The files of one level."""

    def __init__(self, connection: Any, folder: Path):
        self.name = folder.name.removesuffix(".parquet")
        self._connection = connection
        self.paths = {
            kind: sorted(os.fspath(path) for path in (folder / kind).rglob("*.parquet") if path.is_file())
            for kind in ("DPQuery", "Constraint")
        }
        self.columns: dict[str, set[str]] = {kind: self._columns(kind) for kind in self.paths}
        widths = (
            self._run(f"SELECT DISTINCT length(coalesce(geocode, '')) AS n FROM ({self._any('geocode')})")["n"]
            if any(self.paths.values())
            else np.array([0])
        )
        if len(widths) > 1:
            raise ValueError(f"{self.name}: geocodes must all be equally long, got {sorted(widths.tolist())} characters.")
        self.width = int(widths[0])

    def _run(self, statement: str) -> Mapping[str, np.ndarray]:
        return self._connection.execute(statement).fetchnumpy()

    def _scan(self, kind: str, paths: Sequence[str] | None = None) -> str:
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in (self.paths[kind] if paths is None else paths))
        return f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"

    def _any(self, columns: str) -> str:
        return " UNION ALL ".join(f"SELECT {columns} FROM {self._scan(kind)}" for kind, paths in self.paths.items() if paths)

    def _columns(self, kind: str) -> set[str]:
        if not self.paths[kind]:
            return set()
        import duckdb

        try:
            described = self._connection.execute(f"DESCRIBE SELECT * FROM {self._scan(kind)}").fetchall()
        except duckdb.Error as error:
            raise ValueError(f"{self.name}: {kind} is not readable as Parquet: {error}") from error
        found = {row[0] for row in described}
        lacking = {"geocode", "query_name", "value"} - found
        if lacking:
            raise ValueError(f"{self.name}: {kind} lacks the columns {', '.join(sorted(lacking))}.")
        return found

    def codes(self) -> np.ndarray:
        """All units that are named anywhere, in order."""
        rows = self._run(f"SELECT DISTINCT coalesce(geocode, '') AS code FROM ({self._any('geocode')}) ORDER BY code")
        return np.array([code.encode() for code in rows["code"]], dtype=f"S{max(1, self.width)}")

    def register(self, codes: np.ndarray) -> None:
        """Remember the places of the units."""
        self._table = f"units of {self.name}".replace('"', "")
        self._remember(self._table, code=codes.astype(str).astype(object), unit=np.arange(len(codes), dtype=np.int32))

    def _remember(self, table: str, **columns: np.ndarray) -> None:
        # DuckDB finds the columns by the name of this variable.
        self._connection.execute(f'CREATE OR REPLACE TEMP TABLE "{table}" AS SELECT * FROM columns')

    def queries(self, kind: str, schema: Schema, where: str = "true") -> dict[str, Query]:
        """The queries that come, by the names in the files."""
        if not self.paths[kind]:
            return {}
        columns = self.columns[kind]
        given = [f"coalesce(\"{name}\"::VARCHAR, '*')" if name in columns else "NULL" for name in schema.names]
        rows = self._connection.execute(
            f"SELECT DISTINCT query_name, {', '.join(given)} FROM {self._scan(kind)} WHERE {where} ORDER BY ALL"
        ).fetchall()
        found: dict[str, Query] = {}
        for name, *recodes in rows:
            short = str(name).removesuffix("_dpq").removesuffix("_con")
            try:
                query = schema.query(short) if None in recodes else schema.query_of(recodes)
                query = replace(query, name=short if kind == "DPQuery" else str(name))
            except ValueError as error:
                raise ValueError(f"{self.name}: {kind} holds {name!r}, which the schema does not know: {error}") from error
            if name in found and found[name].groups != query.groups:
                raise ValueError(f"{self.name}: {kind} holds {name!r} with two sets of recodes.")
            found[name] = query
        return found

    def variances(self, numbers: dict[str, int]) -> np.ndarray:
        """[units, queries]; infinite where there is no row, or no finite variance in it."""
        num_units = self._run(f'SELECT count(*) AS n FROM "{self._table}"')["n"][0]
        found = np.full((num_units, len(numbers)), np.inf)
        if not self.paths["DPQuery"]:
            return found
        if "variance" not in self.columns["DPQuery"]:
            raise ValueError(f"{self.name}: DPQuery lacks the column variance.")
        names = np.array(list(numbers), dtype=object)
        self._remember("queries", name=names, number=np.array(list(numbers.values()), dtype=np.int32))
        rows = self._run(
            f"SELECT u.unit, q.number, d.variance::DOUBLE AS variance FROM {self._scan('DPQuery')} d "
            f"JOIN \"{self._table}\" u ON coalesce(d.geocode, '') = u.code JOIN queries q ON d.query_name = q.name"
        )
        unit, number = np.asarray(rows["unit"]), np.asarray(rows["number"])
        variance = np.ma.filled(np.ma.masked_invalid(np.ma.asarray(rows["variance"])), np.inf)
        if (variance < 0).any():
            raise ValueError(f"{self.name}: DPQuery holds a negative variance.")
        pairs = unit.astype(np.int64) * len(numbers) + number
        times = np.bincount(pairs)
        if (times > 1).any():
            twice = int(times.argmax())
            code = self._run(f'SELECT code FROM "{self._table}" WHERE unit = {twice // len(numbers)}')["code"][0]
            raise ValueError(f"{self.name}: {code!r} has two rows of {list(numbers)[twice % len(numbers)]!r}.")
        found[unit, number] = variance
        return found

    def _sign(self) -> str:
        return "coalesce(trim(sign), '=')" if "sign" in self.columns["Constraint"] else "'='"

    def zeros(self, schema: Schema) -> list[tuple[Query, np.ndarray, np.ndarray, np.ndarray]]:
        """What answers are zero: by query [kinds, answers] truths, units, and the kind of each."""
        if not self.paths["Constraint"]:
            return []
        where = f"list_contains(value, 0) AND {self._sign()} IN ('=', '<=')"
        found = []
        for name, query in self.queries("Constraint", schema, where).items():
            if query.size > _MOST_BITS:
                raise ValueError(f"{self.name}: {name!r} holds {query.size} values; zeros are read from {_MOST_BITS} at most.")
            one = "CASE WHEN value[j + 1] = 0 THEN (1::BIGINT << j::INTEGER) ELSE 0 END"
            bit = f"list_sum([{one} for j in range(len(value))])"
            rows = self._run(
                f"SELECT u.unit, ({bit})::BIGINT AS bits, len(value)::BIGINT AS size FROM {self._scan('Constraint')} d "
                f"JOIN \"{self._table}\" u ON coalesce(d.geocode, '') = u.code WHERE query_name = {_text(name)} AND {where}"
            )
            if (np.asarray(rows["size"]) != query.size).any():
                raise ValueError(f"{self.name}: a row of {name!r} does not hold {query.size} values, which its recodes make.")
            bits = np.asarray(rows["bits"])
            kinds, kind = np.unique(bits, return_inverse=True)
            truths = (kinds[:, None] >> np.arange(query.size)) & 1 == 1
            found.append((query, truths, np.asarray(rows["unit"]), kind))
        return found

    def equalities(self, schema: Schema) -> dict[str, tuple[Query, np.ndarray, np.ndarray]]:
        """Exact answers that are not all zero: by name the query, the units and [units, answers]."""
        if not self.paths["Constraint"]:
            return {}
        where = f"{self._sign()} = '=' AND len([x for x in value if x <> 0]) > 0"
        found = {}
        for name, query in self.queries("Constraint", schema, where).items():
            rows = self._run(
                f"SELECT u.unit, value FROM {self._scan('Constraint')} d "
                f"JOIN \"{self._table}\" u ON coalesce(d.geocode, '') = u.code WHERE query_name = {_text(name)} AND {where}"
            )
            values = _stack(self.name, name, list(rows["value"]), query.size).astype(float)
            found[name] = (query, np.asarray(rows["unit"]).astype(np.int64), values)
        return found

    def values(self, codes: np.ndarray, names: list[str], sizes: dict[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each query the places of units and their answers, for units between the first and the last of some codes."""
        empty = [(np.zeros(0, dtype=np.int64), np.zeros((0, sizes[number]), dtype=np.int64)) for number in range(len(names))]
        if not self.paths["DPQuery"] or not len(codes):
            return empty
        first, last = codes[0].decode(), codes[-1].decode()
        paths = of_part(self.paths["DPQuery"], first, last)
        if not paths:
            return empty
        # Bounds on the column itself, so that parts of files without such codes are not read.
        within = f"geocode BETWEEN {_text(first)} AND {_text(last)}" if self.width else "true"
        columns = "coalesce(geocode, '') AS code, query_name, value"
        rows = self._run(f"SELECT {columns} FROM {self._scan('DPQuery', paths)} WHERE {within}")
        place = {code.decode(): i for i, code in enumerate(codes)}
        number = {name: i for i, name in enumerate(names)}
        unit = np.array([place[code] for code in rows["code"]], dtype=np.int64)
        which = np.array([number[name.removesuffix("_dpq")] for name in rows["query_name"]], dtype=np.int64)
        found = []
        for i in range(len(names)):
            at = np.flatnonzero(which == i)
            found.append((unit[at], _stack(self.name, names[i], rows["value"][at], sizes[i])) if at.size else empty[i])
        return found


def _stack(level: str, name: str, values: Any, size: int) -> np.ndarray:
    """[rows, size], of one array a row."""
    rows = list(values)
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
        raise ValueError(f"{level}: a row of {name!r} holds a null, or one among its values.")
    wrong = [len(row) for row in rows if len(row) != size]
    if wrong:
        raise ValueError(f"{level}: a row of {name!r} holds {wrong[0]} values, its recodes make {size}.")
    return np.concatenate(rows).reshape(-1, size)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def of_part(paths: Sequence[str], first: str, last: str) -> list[str]:
    """Those of some files that may hold codes in a range: a folder State=NNN holds codes that begin with NNN."""
    if len(first) < 3 or not (first[:3].isdigit() and last[:3].isdigit()):
        return list(paths)
    kept = []
    for path in paths:
        partition = _PARTITION.search(path)
        if partition is None or int(first[:3]) <= int(partition.group(1)) <= int(last[:3]):
            kept.append(path)
    return kept
