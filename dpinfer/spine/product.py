"""Noisy measurement files as the Census Bureau publishes them: which units there are, what was measured, what is zero.

    {product}/{level}.parquet/{DPQuery|Constraint}/State=NNN/part-*.parquet

A row of DPQuery is one query of one unit: geocode, query_name, the recode of each attribute, the values, their variance. A row
of Constraint is a bound on a query, or its exact value. Codes, variances and zeros are kept; values are read when they are
wanted, some units at a time.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer.spine.classes import Classes, split_by
from dpinfer.spine.product_files import Digests, LevelFiles, ZeroAnswers, duckdb_or_refusal
from dpinfer.spine.schema import Query, Schema, pl94_persons, pl94_units

_LEVELS = ("US", "State", "County", "Tract", "Block_Group", "Block")
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
        self._digests = Digests()
        self._connection = duckdb.connect()
        self._connection.execute("SET enable_progress_bar = false")
        self._files = _in_order(self._connection, self.folder, top)
        exact = [level_named([files.name for files in self._files], name, "exact_levels") for name in listed(exact_levels)]
        self.schema = _schema_of(self._files) if schema is None else schema
        self._read_queries()
        self._read_units(exact)

    # ---- what there is ----

    def _read_queries(self) -> None:
        """The measured queries, and their numbers by the names in the files."""
        self.queries: list[Query] = []
        self._numbers: dict[str, int] = {}
        for files in self._files:
            for name, query in files.queries("DPQuery", self.schema).items():
                known = [number for number, other in enumerate(self.queries) if other.name == query.name]
                if known and self.queries[known[0]].groups != query.groups:
                    raise ValueError(f"{files.name}: the query {name!r} has other recodes than at other levels.")
                self._numbers[name] = known[0] if known else len(self.queries)
                if not known:
                    self.queries.append(query)
        self._num_noisy = len(self.queries)

    def _read_units(self, exact_levels: Sequence[str]) -> None:
        codes, parents = self._read_codes()
        for files, own in zip(self._files, codes, strict=True):
            files.register(own)
        noisy = [files.variances(self._numbers) for files in self._files]
        zeros = [self._read_zeros(depth) for depth in range(len(self._files))]
        self._exact = [self._read_exact(files, files.name in exact_levels) for files in self._files]
        split: dict[str, str] = {}
        for one in (one for own in zeros for one in own):
            split |= split_by(self.schema, one.query, one.truths)
        self.classes = Classes(self.schema, [*self.queries, *(one.query for own in zeros for one in own)], split)
        self.units: list[Units] = []
        for depth, files in enumerate(self._files):
            is_zero = np.zeros((len(codes[depth]), self.classes.num_dense), dtype=bool)
            for one in zeros[depth]:
                np.logical_or.at(is_zero, one.units, self.classes.zero_rows(one.query, one.truths)[one.kind])
            if self.zeros == "pushed_down" and depth:
                is_zero |= self.units[-1].is_zero[parents[depth]]
            exact = np.full((len(is_zero), len(self.queries) - self._num_noisy), np.inf)
            for number, (at, _) in self._exact[depth].items():
                exact[at, number - self._num_noisy] = 0.0
            variances = np.concatenate([noisy[depth], exact], axis=1)
            self.units.append(Units(files.name, codes[depth], parents[depth], variances, is_zero))

    def _read_codes(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The codes of each level, and the places of the units above."""
        codes = [files.codes() for files in self._files]
        parents = [np.zeros(len(codes[0]), dtype=np.int64)] * len(codes)
        for depth in range(len(codes) - 1, 0, -1):
            above = _beginnings(codes[depth], self._files[depth - 1].width, codes[depth - 1])
            first = np.ones(len(above), dtype=bool)
            first[1:] = above[1:] != above[:-1]
            # A unit of which nothing is known but that there are units below it is a unit without measurements.
            codes[depth - 1] = np.union1d(codes[depth - 1], above[first])
            parents[depth] = np.searchsorted(codes[depth - 1], above[first])[np.cumsum(first) - 1]
        parents[0] = np.zeros(len(codes[0]), dtype=np.int64)
        alone = np.setdiff1d(np.arange(len(codes[0])), parents[1])
        if alone.size:
            names = f"{self._files[0].name} {codes[0].astype(str)[alone[0]].item()!r}"
            raise ValueError(
                f"{names} has no units below it: their codes at {self._files[1].name} must begin with its own. Are files missing?"
            )
        return codes, parents

    def _read_zeros(self, depth: int) -> list[ZeroAnswers]:
        is_ignored = self.zeros == "none" or (self.zeros == "stated" and depth == len(self._files) - 1)
        return [] if is_ignored else self._files[depth].zeros(self.schema)

    def _read_exact(self, files: LevelFiles, is_wanted: bool) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The units and values of exact queries by their numbers."""
        if not is_wanted:
            return {}
        found = {}
        for one in files.equalities(self.schema):
            exact = self.queries[self._num_noisy :]
            known = [number for number, query in enumerate(exact, self._num_noisy) if query == one.query]
            number = known[0] if known else len(self.queries)
            if not known:
                self.queries.append(one.query)
            found[number] = (one.units, one.values)
        if not found:
            raise ValueError(f"exact_levels: the constraints of {files.name} hold no equality but zeros.")
        return found

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

    def level_codes(self, level: str) -> list[str]:
        """The codes of the units of a level, in order."""
        return self.units[self.depth(level)].codes.tolist()

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
        """For each query the places of the units in a range that answer it, in order, and their answers [units, answers].

        Raises:
            ValueError: if a row is not what it should be, or has gone since the product was opened.
        """
        units, sizes = self.units[depth], [query.size for query in self.queries[: self._num_noisy]]
        is_measured = np.isfinite(units.variances[start:stop, : self._num_noisy])
        found = self._files[depth].values(units.packed[start:stop], self._numbers, sizes, is_measured)
        found = [(at + start, values) for at, values in found]
        for number in range(self._num_noisy, len(self.queries)):
            nothing = np.zeros(0, dtype=np.int64), np.zeros((0, self.queries[number].size))
            at, values = self._exact[depth].get(number, nothing)
            order = np.argsort(at)
            order = order[(at[order] >= start) & (at[order] < stop)]
            found.append((at[order], values[order]))
        return found

    def content(self, depth: int, start: int, stop: int) -> list[str]:
        """Digests of what is measured and exact of the units in a range, by whole files."""
        if stop == start:
            return []
        packed = self.units[depth].packed
        paths = self._files[depth].holding(packed[start].decode(), packed[stop - 1].decode())
        found = [self._digests.of(path) for path in paths]
        for number, (at, values) in sorted(self._exact[depth].items()):
            inside = (at >= start) & (at < stop)
            order = np.argsort(at[inside])
            found.append(f"{number} {hashlib.blake2b(values[inside][order].tobytes(), digest_size=16).hexdigest()}")
        return found


def _in_order(connection: Any, folder: Path, top: str | None) -> list[LevelFiles]:
    """The files of the levels from the top down."""
    found = [LevelFiles(connection, path) for path in sorted(folder.glob("*.parquet")) if path.is_dir()]
    found = [files for files in found if not files.is_empty]
    if all(files.name in _LEVELS for files in found):
        found.sort(key=lambda files: _LEVELS.index(files.name))
    else:
        found.sort(key=lambda files: files.width)
    names = [files.name for files in found]
    found = found[names.index(level_named(names, top, "top")) if top is not None else 0 :]
    if len(found) < 2:
        begin = "" if top is None else f" from {top} on"
        raise ValueError(f"{folder} must hold two levels or more{begin}, got {', '.join(f.name for f in found) or 'none'}.")
    for above, below in pairwise(found):
        if above.width >= below.width and above is not found[0]:
            raise ValueError(f"The codes of {above.name} must be shorter than those of {below.name}, which begin with them.")
    return found


def _beginnings(codes: np.ndarray, width: int, above: np.ndarray) -> np.ndarray:
    """The first characters of codes, which name the unit above; one unit of another name, such as the country, is above all."""
    found = codes.view("S1").reshape(len(codes), -1)[:, :width]
    begun = np.ascontiguousarray(found).view(f"S{width}")[:, 0] if found.shape[1] == width > 0 else np.zeros(len(codes), "S1")
    if len(above) == 1 and not (begun == above[0]).any():
        return np.full(len(codes), above[0])
    return begun


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


def _schema_of(found: Sequence[LevelFiles]) -> Schema:
    columns = set().union(*(columns for files in found for columns in files.columns.values()))
    for schema in (pl94_persons(), pl94_units()):
        if set(schema.names) <= columns:
            return schema
    raise ValueError(f"schema must be given: the columns {', '.join(sorted(columns))} are not those of the redistricting data.")
