"""Noisy measurement files as the Census Bureau publishes them: which units there are, what was measured, what is zero.

    {product}/{level}.parquet/{DPQuery|Constraint}/State=NNN/part-*.parquet

A row of DPQuery is one query of one unit: geocode, query_name, the recode of each attribute, the values, their variance. A row
of Constraint is a bound on a query, or its exact value. Codes, variances and zeros are kept; values are read when they are
wanted, some units at a time.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer.spine.classes import Classes, split_by
from dpinfer.spine.product_files import LevelFiles, of_part
from dpinfer.spine.schema import Query, Schema, pl94_persons, pl94_units

_FOLDER = "a folder with one sub-folder a level, such as County.parquet/DPQuery"


@final
@dataclass(frozen=True)
class Units:
    """The units of one level, in the order of their codes.

    Attributes:
        name: of the level.
        packed: [n], the codes as bytes, of the same length each; that of the unit above is its beginning.
        parent: [n], places in the level above.
        variances: [n, queries], infinite where not measured and 0 where exact.
        is_zero: [n, dense], the dense cells that are zero.
    """

    name: str
    packed: np.ndarray
    parent: np.ndarray
    variances: np.ndarray
    is_zero: np.ndarray

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def codes(self) -> np.ndarray:
        """[n], the codes as text."""
        return self.packed.astype(str)


@final
class Product:
    """A folder of noisy measurement files, opened.

    Args:
        folder: of the product: it holds a folder "{level}.parquet" for each level, or one folder that does.
        schema: its attributes; told from the columns for the redistricting data's persons and housing units.
        zeros: what is done where constraints say that an answer is zero or at most zero, so that all cells it counts are zero.
            "pushed_down": they are zero at the unit and at all below it, which is true of counts and makes the best estimates.
            "stated": they are zero at every unit that says so, except at the lowest level, as in the Census Bureau's own least
            squares. "none": nothing.
        exact_levels: levels whose other equalities, such as the total of a state, are held exactly; none by default, as in the
            Census Bureau's own.
        top: the level to begin at, such as "State" for files of some states only; the highest by default. A unit is taken to be
            the sum of the units below it that the files hold: with some states left out the country must be left out too.

    Attributes:
        queries: what is measured at any level, and what is exact.
        classes: the coordinates, and which attributes are dense.
        units: of each level from the top down.

    Raises:
        ValueError: if the files do not have the layout, naming what they lack.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        schema: Schema | None = None,
        zeros: str = "pushed_down",
        exact_levels: str | Sequence[str] = (),
        top: str | None = None,
    ):
        duckdb = duckdb_or_refusal()
        _checks.choice("zeros", zeros, ("pushed_down", "stated", "none"))
        self.folder = _product_folder(Path(folder))
        self.zeros = zeros
        self._connection = duckdb.connect()
        self._connection.execute("SET enable_progress_bar = false")
        found = [LevelFiles(self._connection, path) for path in sorted(self.folder.glob("*.parquet")) if path.is_dir()]
        found = sorted((files for files in found if files.paths["DPQuery"] or files.paths["Constraint"]), key=lambda f: f.width)
        for above, below in pairwise(found):
            if above.width == below.width:
                raise ValueError(
                    f"The codes of {above.name} and {below.name} are equally long; a unit's code begins its children's."
                )
        names = [files.name for files in found]
        exact = [level_named(names, name, "exact_levels") for name in listed(exact_levels)]
        found = found[names.index(level_named(names, top, "top")) if top is not None else 0 :]
        if len(found) < 2:
            raise ValueError(f"{self.folder} must hold two levels or more, got {', '.join(names) or 'none'}.")
        self._files = found
        self.schema = _schema_of(found) if schema is None else schema
        names = self._read_names()
        self.units = self._read_units(names, exact)

    # ---- what there is ----

    def _read_names(self) -> dict[str, int]:
        """Numbers of the measured queries, by their names in the files."""
        self.queries: list[Query] = []
        numbers: dict[str, int] = {}
        for files in self._files:
            for name, query in files.queries("DPQuery", self.schema).items():
                if name not in numbers:
                    numbers[name] = len(self.queries)
                    self.queries.append(query)
                elif self.queries[numbers[name]].groups != query.groups:
                    raise ValueError(f"{files.name}: the query {name!r} has other recodes than at other levels.")
        self._num_noisy = len(self.queries)
        return numbers

    def _read_units(self, names: dict[str, int], exact_levels: Sequence[str]) -> list[Units]:
        codes = [files.codes() for files in self._files]
        parents: list[np.ndarray] = [np.zeros(0, dtype=np.int64)] * len(codes)
        for depth in range(len(codes) - 1, 0, -1):
            above = _beginnings(codes[depth], self._files[depth - 1].width, codes[depth - 1])
            first = np.ones(len(above), dtype=bool)
            first[1:] = above[1:] != above[:-1]
            # A unit of which nothing is known but that there are units below it is a unit without measurements.
            codes[depth - 1] = np.union1d(codes[depth - 1], above[first])
            parents[depth] = np.searchsorted(codes[depth - 1], above[first])[np.cumsum(first) - 1]
        parents[0] = np.zeros(len(codes[0]), dtype=np.int64)
        self._sizes = {number: self.queries[number].size for number in range(self._num_noisy)}
        variances = []
        for files, own in zip(self._files, codes, strict=True):
            files.register(own)
            variances.append(files.variances(names))
        zeros, self._exact = self._read_constraints(codes, exact_levels)
        split: dict[str, str] = {}
        for query, truths, _, _ in (one for own in zeros for one in own):
            split |= split_by(self.schema, query, truths)
        constrained = [query for own in zeros for query, *_ in own]
        self.classes = Classes(self.schema, [*self.queries, *constrained], split)
        units = []
        for depth, (files, own) in enumerate(zip(self._files, codes, strict=True)):
            is_zero = np.zeros((len(own), self.classes.num_dense), dtype=bool)
            for query, truths, at, kind in zeros[depth]:
                np.logical_or.at(is_zero, at, self.classes.zero_rows(query, truths)[kind])
            if self.zeros == "pushed_down" and depth:
                is_zero |= units[-1].is_zero[parents[depth]]
            exact = np.full((len(own), len(self.queries) - self._num_noisy), np.inf)
            for number, at, _ in self._exact[depth]:
                exact[at, number - self._num_noisy] = 0.0
            units.append(Units(files.name, own, parents[depth], np.concatenate([variances[depth], exact], axis=1), is_zero))
        return units

    def _read_constraints(self, codes: list[np.ndarray], exact_levels: Sequence[str]) -> Any:
        """By level the zeros, as the files give them, and the exact answers (query's number, units, values)."""
        zeros: list[list[tuple[Query, np.ndarray, np.ndarray, np.ndarray]]] = []
        exact: list[list[tuple[int, np.ndarray, np.ndarray]]] = []
        numbers: dict[str, int] = {}
        for depth, files in enumerate(self._files):
            ignored = self.zeros == "none" or (self.zeros == "stated" and depth == len(self._files) - 1)
            zeros.append([] if ignored else files.zeros(self.schema))
            exact.append([])
            if files.name in exact_levels:
                for name, (query, at, values) in files.equalities(self.schema).items():
                    if name not in numbers:
                        numbers[name] = len(self.queries)
                        self.queries.append(query)
                    exact[-1].append((numbers[name], at, values))
                if not exact[-1]:
                    raise ValueError(f"exact_levels: the constraints of {files.name} hold no equality but zeros.")
        return zeros, exact

    # ---- values ----

    @property
    def level_names(self) -> list[str]:
        return [units.name for units in self.units]

    def depth(self, level: str) -> int:
        """The place of a level among the levels.

        Raises:
            ValueError: if there is no such level.
        """
        return self.level_names.index(level_named(self.level_names, level, "level"))

    def find(self, codes: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """The depths and places of units by their codes.

        Raises:
            ValueError: if there is no unit of a code.
        """
        depths, places = np.zeros(len(codes), dtype=np.int64), np.zeros(len(codes), dtype=np.int64)
        widths = {files.width: depth for depth, files in enumerate(self._files)}
        for i, given in enumerate(codes):
            code = given.decode() if isinstance(given, bytes) else str(given)
            depth = widths.get(len(code))
            own = self.units[depth].packed if depth is not None else np.array([], dtype="S1")
            place = int(np.searchsorted(own, code.encode()))
            if depth is None or place == len(own) or own[place] != code.encode():
                raise ValueError(f"There is no unit {code!r} in {self.folder}.")
            depths[i], places[i] = depth, place
        return depths, places

    def values(self, depth: int, start: int, stop: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each query the places of the units in a range that answer it, and their answers [units, answers], in 64 bit."""
        own = self.units[depth].packed[start:stop]
        found = self._files[depth].values(own, [query.name for query in self.queries[: self._num_noisy]], self._sizes)
        found = [(at + start, values) for at, values in found]
        for number in range(self._num_noisy, len(self.queries)):
            at, values = np.zeros(0, dtype=np.int64), np.zeros((0, self.queries[number].size))
            for exact, units, answers in self._exact[depth]:
                if exact == number:
                    inside = (units >= start) & (units < stop)
                    at, values = units[inside], answers[inside]
            found.append((at, values))
        return found

    def sources(self, depth: int, code: bytes) -> list[tuple[str, int]]:
        """Names and sizes of the files that hold a unit's level and part."""
        paths = of_part(self._files[depth].paths["DPQuery"], code.decode(), code.decode())
        return [(os.fspath(Path(path).relative_to(self.folder)), os.path.getsize(path)) for path in paths]


def _beginnings(codes: np.ndarray, width: int, above: np.ndarray) -> np.ndarray:
    """The first characters of codes, which name the unit above; where that level has one short code, it is above all."""
    if width == 0 or (width == 1 and len(above) == 1 and above[0] == b"0"):
        return np.full(len(codes), above[0] if len(above) else b"")
    return np.ascontiguousarray(codes.view("S1").reshape(len(codes), -1)[:, :width]).view(f"S{width}")[:, 0]


def _product_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise ValueError(f"folder must be {_FOLDER}; there is no folder {folder}.")
    if any(folder.glob("*.parquet/DPQuery")):
        return folder
    inside = [path for path in sorted(folder.iterdir()) if any(path.glob("*.parquet/DPQuery"))]
    if len(inside) != 1:
        listed = ", ".join(path.name for path in inside) or "none"
        raise ValueError(f"folder must be {_FOLDER}, or hold one such; {folder} holds {listed}.")
    return inside[0]


def level_named(levels: Sequence[str], name: str, argument: str = "level") -> str:
    """The level that a name means, whatever its case, with spaces or underscores.

    Raises:
        ValueError: if there is none.
    """
    wanted = name.strip().lower().replace(" ", "_").replace("-", "_")
    known = {level.lower(): level for level in levels}
    if wanted not in known:
        raise ValueError(f"{argument} must be one of {', '.join(levels)}, got {name!r}.")
    return known[wanted]


def listed(value: Any) -> list[Any]:
    """A list, or one name as a list."""
    return [value] if isinstance(value, (str, bytes)) else list(value)


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


def _schema_of(found: Sequence[LevelFiles]) -> Schema:
    columns = set().union(*(columns for files in found for columns in files.columns.values()))
    for schema in (pl94_persons(), pl94_units()):
        if set(schema.names) <= columns:
            return schema
    raise ValueError(f"schema must be given: the columns {', '.join(sorted(columns))} are not those of the redistricting data.")
