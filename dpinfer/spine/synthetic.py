"""Made-up noisy counts in the file layout of the 2020 redistricting data, to try things on: the real files are large.

One state, from the US down to blocks, in two parts: outside (050) and inside (150) of American Indian and Alaska Native areas.
Codes have a fixed width at each level, and a unit's code begins with that of the unit it lies in; that of the US is empty. The
last 16 characters of a block's code are its state, county, tract, block group and block. As in the real files, these are other
block groups than those between tracts and blocks, some units that are alone in the one above have no noisy counts of their own,
and the two parts differ in columns and in the types of integers.
"""

import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, final

import numpy as np

from dpinfer import _checks, _progress
from dpinfer.spine.product_files import duckdb_or_refusal
from dpinfer.spine.schema import pl94_persons

LEVELS = ("US", "State", "County", "Tract", "Block_Group", "Block")

# What each level gets of rho, in 4,099ths.
LEVEL_SHARES = (104, 1440, 447, 687, 1256, 165)
# What each query gets of a level's rho, in percent, from the US down to blocks. Illustrative: not those of the real product.
QUERY_SHARES = {
    "total": (2, 2, 2, 10, 5, 2),
    "cenrace": (3, 3, 3, 3, 3, 2),
    "hispanic": (2, 2, 2, 2, 2, 1),
    "votingage": (2, 2, 2, 2, 2, 1),
    "hhinstlevels": (2, 2, 2, 2, 2, 1),
    "hhgq": (3, 3, 3, 3, 3, 2),
    "hispanic * cenrace": (10, 10, 10, 8, 8, 6),
    "votingage * cenrace": (8, 8, 8, 8, 8, 5),
    "votingage * hispanic": (4, 4, 4, 4, 4, 3),
    "votingage * hispanic * cenrace": (24, 24, 24, 22, 23, 27),
    "detailed": (40, 40, 40, 36, 40, 50),
}

_SCHEMA = pl94_persons()
_QUERIES = [_SCHEMA.query(name) for name in QUERY_SHARES]
# What is known exactly: name, the recode of each attribute, sign.
_NURSING, _TOTAL, _LEAST, _MOST = range(len(_QUERIES), len(_QUERIES) + 4)
_CONSTRAINTS = (
    ("nurse_nva_0_con", ("gqNursingTotal", "nonvoting", "*", "*"), "="),
    ("total_con", ("*", "*", "*", "*"), "="),
    ("hhgq_total_lb_con", ("hhgq", "*", "*", "*"), ">="),
    ("hhgq_total_ub_con", ("hhgq", "*", "*", "*"), "<="),
)

_STATE = "50"
_INSIDE = 0.03
_MOST_BLOCKS = 1_000_000
# Blocks in a block group, block groups in a tract, tracts in a county: how many usually, and the most that codes have room for.
_FAMILIES = ((41.0, 400), (3.2, 10), (28.0, 400))
_ALONE = 0.05

# Facilities of each type of group quarters in a block, and the share of adults, households first.
_FACILITIES = (0.0006, 0.0008, 0.003, 0.0006, 0.004, 0.0004, 0.01)
_ADULTS = (0.78, 0.995, 0.1, 1.0, 0.7, 0.98, 0.99, 0.8)
_MOST_IN_HOMES, _MOST_IN_FACILITIES = 3_000, 2_000
# Of persons of one race, in the order of the races, outside and inside of the areas; and how much rarer each further race makes.
_RACES = ((0.62, 0.13, 0.01, 0.06, 0.003, 0.06), (0.3, 0.02, 0.6, 0.01, 0.003, 0.03))
_FURTHER_RACE = 0.4

_CHUNK_UNITS = 5_000
# Rows held at once to be written: one may be of 2,016 answers.
_ROW_GROUP = 10_240
# Streams of random numbers.
_GEOGRAPHY, _RACE, _PEOPLE, _NOISE, _ORDER = range(5)


@final
@dataclass(frozen=True, eq=False)
class Truth:
    """The counts that the noise was added to.

    Attributes:
        geocodes: for each level above blocks the codes of its units, in order.
        counts: for each level above blocks int32 [units, cells].
    """

    geocodes: dict[str, np.ndarray]
    counts: dict[str, np.ndarray]


@final
@dataclass(frozen=True, eq=False)
class _Level:
    """The units of a level in the order of their codes, so that those outside of the areas come first.

    Attributes:
        geocodes: objects, str.
        outside: how many are outside.
        parents: index of the unit that each lies in.
        precision: [units, queries] inverse variances.
        measured: whether there are noisy counts.
    """

    geocodes: np.ndarray
    outside: int
    parents: np.ndarray
    precision: np.ndarray
    measured: np.ndarray

    def chunks(self, ends: np.ndarray | None = None) -> Iterator[slice]:
        """Some thousand units each, all outside or all inside; with ``ends`` they end only there."""
        if ends is None:
            ends = np.arange(1, self.geocodes.size + 1)
        start = 0
        for last in (self.outside, self.geocodes.size):
            while start < last:
                end = int(ends[min(np.searchsorted(ends, start + _CHUNK_UNITS), ends.size - 1)])
                yield slice(start, min(end, last))
                start = min(end, last)


def write_product(
    folder: str | os.PathLike[str],
    *,
    num_blocks: int,
    seed: int,
    product: str = "US_Person_PL_PROD",
    rho: Any = 2.56,
    num_parts: int = 1,
    shuffle: bool = False,
    progress: bool | Callable[[int, int], None] = False,
) -> Truth:
    """The true counts of a made-up state, whose noisy ones are now in ``folder/product``.

    Needs DuckDB. The noise is Gaussian, rounded to integers, of the variance that the files state.

    Args:
        folder: where the product's folder is to be; made if need be.
        num_blocks: blocks in all, at most 1,000,000.
        seed: the same counts and noise for the same seed, however their rows are arranged.
        product: the name of its folder, which must not exist yet.
        rho: the budget of zero-concentrated differential privacy that the variances are for, where one person may be another.
        num_parts: how many files each chunk of about 5,000 units is spread over.
        shuffle: rows in random order within a chunk, instead of in that of codes.
        progress: True shows a bar; a function is told how many blocks are done, and how many there are.

    Raises:
        ValueError: if an argument is out of its range, or the product's folder exists.
    """
    num_blocks = _checks.integer("num_blocks", num_blocks, least=1)
    if num_blocks > _MOST_BLOCKS:
        raise ValueError(f"num_blocks must be at most {_MOST_BLOCKS}, got {num_blocks}: they make one state.")
    seed = _checks.integer("seed", seed, least=0)
    budget = float(_checks.budget("rho", rho))
    num_parts = _checks.integer("num_parts", num_parts, least=1)
    if product in ("", "..") or Path(product).name != product:
        raise ValueError(f"product must be the name of a folder, got {product!r}.")
    target = Path(folder) / product
    if target.exists():
        raise ValueError(f"{target} exists already: remove it, or give another folder or product.")
    levels = _geography(num_blocks, budget, np.random.default_rng([seed, _GEOGRAPHY]))
    # Rounding adds 1/12 to a variance, to one part in 500 where that makes 1/2, and ever more closely above.
    most = max(float(level.precision.max()) for level in levels)
    if most > 2:
        raise ValueError(f"rho must be at most {budget * 2 / most:.4g}, got {rho!r}: rounding would change variances below 1/2.")
    tell = _progress.reporter(progress, num_blocks, "blocks")
    try:
        with _appearing(target) as temporary, _Writer(temporary, levels, budget, seed, num_parts, shuffle) as writer:
            return _write_levels(writer, levels, seed, tell)
    finally:
        tell(None)


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A new folder that takes the name ``target`` once everything is in it; after an error nothing is left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    temporary.mkdir()
    try:
        yield temporary
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_levels(writer: "_Writer", levels: Sequence[_Level], seed: int, tell: Callable[[int | None], None]) -> Truth:
    blocks = levels[5]
    shares = _race_shares(levels[2], np.random.default_rng([seed, _RACE]))
    county = levels[3].parents[levels[4].parents]
    # Of block groups: counts of cells, and the least and the most persons of each type of quarters.
    sums = [
        np.zeros((levels[4].geocodes.size, columns), kind) for columns, kind in ((_SCHEMA.size, np.int32), (8, int), (8, int))
    ]
    ends = np.append(np.flatnonzero(np.diff(blocks.parents)) + 1, blocks.parents.size)
    for chunk in blocks.chunks(ends):
        groups = blocks.parents[chunk]
        people = _people(shares, county[groups], np.random.default_rng([seed, _PEOPLE, chunk.start]))
        writer.unit_rows(5, chunk, people, _MOST_IN_HOMES + 7 * _MOST_IN_FACILITIES)
        for whole, part in zip(sums, people, strict=True):
            whole[groups[0] : groups[-1] + 1] = _added_up(part, groups)
        tell(groups.size)
    counts = {}
    for depth in range(4, -1, -1):
        counts[LEVELS[depth]] = sums[0]
        most = int(sums[0].sum(axis=1).max())
        for chunk in levels[depth].chunks():
            writer.unit_rows(depth, chunk, [part[chunk] for part in sums], most)
        if depth:
            sums = [_added_up(part, levels[depth].parents) for part in sums]
    return Truth(
        {name: level.geocodes.astype(str) for name, level in zip(LEVELS[:5], levels[:5], strict=True)},
        {name: counts[name] for name in LEVELS[:5]},
    )


def _added_up(values: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """[parents, columns]: the rows of each parent added up; parents are in order."""
    return np.add.reduceat(values, np.flatnonzero(np.diff(parents, prepend=-1)), axis=0, dtype=values.dtype)


# ---- the state ----


def _geography(num_blocks: int, rho: float, rng: np.random.Generator) -> list[_Level]:
    inside = max(round(num_blocks * _INSIDE), 1) if num_blocks > 1 else 0
    parts = [_part(str(i), size, rng) for i, size in enumerate((num_blocks - inside, inside)) if size]
    codes = [[""], *(list(chain(*lists)) for lists in zip(*(part[0] for part in parts), strict=True))]
    outside = [1, *map(len, parts[0][0])]
    parents = [np.zeros(1, int), np.zeros(len(parts), int)]
    for families in zip(*(part[1] for part in parts), strict=True):
        sizes = np.concatenate(families)
        parents.append(np.repeat(np.arange(sizes.size), sizes))
    shares = np.array(list(QUERY_SHARES.values())).T / 100 * np.array(LEVEL_SHARES)[:, None] / sum(LEVEL_SHARES)
    # Noise of variance 1 / rho costs rho: where one record may be another, two answers change by 1.
    precision = [np.tile(rho * share, (len(units), 1)) for share, units in zip(shares, codes, strict=True)]
    measured = [np.ones(len(units), bool) for units in codes]
    # From blocks up: half of those that are alone in the unit above leave it their budget, and what was left to them.
    for depth in (5, 4):
        alone = np.flatnonzero(np.bincount(parents[depth])[parents[depth]] == 1)
        alone = alone[rng.random(alone.size) < 0.5]
        precision[depth - 1][parents[depth][alone]] += precision[depth][alone]
        measured[depth][alone] = False
    return [
        _Level(np.array(codes[i], dtype=object), outside[i], parents[i], precision[i], measured[i]) for i in range(len(LEVELS))
    ]


def _part(prefix: str, num_blocks: int, rng: np.random.Generator) -> tuple[list[list[str]], list[np.ndarray]]:
    """The codes of one part from its state down to blocks, and how many units lie in each of its states, ..., block groups."""
    sizes: list[np.ndarray] = []
    for usual, most in _FAMILIES:
        sizes.insert(0, _family_sizes(rng, int(sizes[0].size) if sizes else num_blocks, usual, most))
    in_county, in_tract, in_group = sizes
    state = prefix + _STATE
    counties = [f"{state}100{2 * i + 1:03d}" for i in range(in_county.size)]
    tracts = [f"{code}{100 * (i + 1):06d}" for code, size in zip(counties, in_county, strict=True) for i in range(size)]
    groups = [f"{code}{i + 1:03d}" for code, size in zip(tracts, in_tract, strict=True) for i in range(size)]
    blocks: list[str] = []
    first = 0
    for tract, size in zip(tracts, in_tract, strict=True):
        owners = np.repeat(np.arange(first, first + size), in_group[first : first + size])
        first += size
        # Block groups of the last 16 characters are of even size: they cut across those of the tree.
        number = min(9, -(-owners.size // 45))
        place = np.arange(owners.size)
        group = place * number // owners.size
        # Tracts outside and inside may be one; their blocks are not.
        block = place + (group * owners.size) // -number + (500 if prefix == "1" else 0)
        real = _STATE + tract[6:]
        blocks += [f"{groups[o]}{real}{g + 1}{g + 1}{b:03d}" for o, g, b in zip(owners, group, block, strict=True)]
    return [[state], counties, tracts, groups, blocks], [np.array([in_county.size]), in_county, in_tract, in_group]


def _family_sizes(rng: np.random.Generator, children: int, usual: float, most: int) -> np.ndarray:
    """Sizes from 1 to ``most`` that add up to ``children``; some are 1, whatever is usual."""
    sizes = 1 + rng.negative_binomial(2, 2 / (usual + 1), children)
    sizes[rng.random(children) < _ALONE] = 1
    ends = np.minimum(np.cumsum(np.minimum(sizes, most)), children)
    return np.diff(ends[: np.searchsorted(ends, children) + 1], prepend=0)


def _race_shares(counties: _Level, rng: np.random.Generator) -> np.ndarray:
    """[counties, hispanic x cenrace]: few combinations are frequent, which ones varies."""
    labels = _SCHEMA.labels["cenrace"]
    names = labels[:6]
    shares = []
    for single in _RACES:
        frequency = dict(zip(names, single, strict=True))
        race = np.array([_FURTHER_RACE ** name.count("+") * prod(frequency[one] for one in name.split("+")) for name in labels])
        hispanic = np.array([0.8 if "sor" in name else 0.08 for name in labels])
        both = np.concatenate([race * (1 - hispanic), race * hispanic])
        shares.append(both / both.sum())
    inside = np.arange(counties.geocodes.size) >= counties.outside
    return np.array([rng.dirichlet(40 * shares[int(part)] + 1e-3) for part in inside])


def _people(shares: np.ndarray, county: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For blocks in given counties: counts of cells, and the least and the most persons of each type of quarters."""
    blocks = county.size
    homes = np.minimum(rng.lognormal(3.4, 1.1, blocks), _MOST_IN_HOMES).astype(int)
    has_homes = rng.random(blocks) < 0.9
    homes[~has_homes | (rng.random(blocks) < 0.2)] = 0
    units = np.where(has_homes, 1 + homes // 2 + rng.poisson(2.0, blocks), 0)
    facilities = rng.poisson(_FACILITIES, (blocks, 7))
    living = np.minimum(facilities * rng.lognormal(3.5, 1.0, facilities.shape), _MOST_IN_FACILITIES).astype(int)
    persons = np.column_stack([homes, np.maximum(living, facilities)])
    least = np.column_stack([np.zeros(blocks, int), facilities > 0])  # homes may stand empty
    most = np.column_stack([99 * units, 99_999 * facilities])
    quarters = np.repeat(np.arange(blocks * 8), persons.ravel())
    where = county[quarters // 8]
    adult = rng.random(quarters.size) < np.array(_ADULTS)[quarters % 8]
    # The cumulative shares of county i between i and i + 1: one search for all.
    steps = np.cumsum(shares, axis=1)
    steps = (steps / steps[:, -1:] + np.arange(len(shares))[:, None]).ravel()
    race = np.minimum(np.searchsorted(steps, where + rng.random(quarters.size), side="right") - where * 126, 125)
    counts = np.bincount((quarters * 2 + adult) * 126 + race, minlength=blocks * _SCHEMA.size)
    return counts.astype(np.int32).reshape(blocks, -1), least, most


# ---- the files ----


@final
class _Writer:
    def __init__(self, folder: Path, levels: Sequence[_Level], rho: float, seed: int, num_parts: int, shuffle: bool):
        duckdb = duckdb_or_refusal()
        self.folder, self.levels, self.rho = folder, levels, rho
        self.seed, self.num_parts, self.shuffle = seed, num_parts, shuffle
        self.written: Counter[Path] = Counter()
        self.connection = duckdb.connect()
        constraints = [(_SCHEMA.query_of(recodes, name), sign) for name, recodes, sign in _CONSTRAINTS]
        asked = [*((query, f"{query.name}_dpq", None) for query in _QUERIES), *((q, q.name, sign) for q, sign in constraints)]
        self.sizes = np.array([query.size for query, _, _ in asked])
        recodes = ", ".join(f"{name} VARCHAR" for name in _SCHEMA.names)
        self.connection.execute(
            f"CREATE TEMP TABLE asked (question INTEGER, query_name VARCHAR, {recodes}, query_shape INTEGER[], sign VARCHAR)"
        )
        for i, (query, name, sign) in enumerate(asked):
            values = [i, name, *query.recodes, list(query.shape), sign]
            self.connection.execute(f"INSERT INTO asked VALUES ({', '.join('?' * len(values))})", values)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def unit_rows(self, depth: int, chunk: slice, people: Sequence[np.ndarray], most: int) -> None:
        """Write the noisy answers and the constraints of a chunk of a level's units; ``most``: of persons in any."""
        level = self.levels[depth]
        codes, precision, measured = level.geocodes[chunk], level.precision[chunk], level.measured[chunk]
        if measured.any():
            answers = self._noisy_answers(depth, chunk.start, people[0][measured], precision[measured], most)
            extra: dict[str, np.ndarray | None] = {"variance": (1 / precision[measured]).astype(np.float32)}
            if chunk.start < level.outside:
                extra["plb"] = precision[measured] / self.rho
            self._write_rows(depth, chunk.start, "DPQuery", codes[measured], range(len(_QUERIES)), answers, extra)
        counts, least, upper = people
        equal, values = [_NURSING], [np.zeros((codes.size, 1), int)]
        if depth < 2:
            equal, values = [*equal, _TOTAL], [*values, counts.sum(axis=1, keepdims=True)]
        exact, bounds = np.concatenate(values, axis=1), np.concatenate([least, upper], axis=1)
        if chunk.start < level.outside:
            asked, limits = [*equal, _LEAST, _MOST], np.concatenate([exact, bounds], axis=1)
            limits = limits.astype(self._integers(depth, False, 2**31 - 1))
            zeros = np.zeros((codes.size, len(asked)))
            extra = {"variance": zeros.astype(np.float32), "sign": None, "plb": zeros}
            self._write_rows(depth, chunk.start, "Constraint", codes, asked, limits, extra)
        else:
            kind = self._integers(depth, True, 2**31 - 1)
            self._write_rows(depth, chunk.start, "Constraint", codes, equal, exact.astype(kind), {})
            self._write_rows(depth, chunk.start, "Constraint", codes, [_LEAST, _MOST], bounds.astype(kind), {"sign": None})

    def _noisy_answers(self, depth: int, start: int, counts: np.ndarray, precision: np.ndarray, most: int) -> np.ndarray:
        sizes = self.sizes[: len(_QUERIES)]
        sd = np.sqrt(1 / precision - 1 / 12).astype(np.float32)
        rng = np.random.default_rng([self.seed, _NOISE, depth, start])
        noise = rng.standard_normal((len(counts), int(sizes.sum())), dtype=np.float32)
        noise *= np.repeat(sd, sizes, axis=1)
        level = self.levels[depth]
        widest = most + int(10 / np.sqrt(level.precision.min()))
        values = np.rint(noise, out=noise).astype(self._integers(depth, start >= level.outside, widest))
        for query, end in zip(_QUERIES, np.cumsum(sizes), strict=True):
            values[:, end - query.size : end] += query.answer(counts).astype(values.dtype)
        return values

    def _integers(self, depth: int, inside: bool, most: int) -> type[np.signedinteger[Any]]:
        """Narrow integers inside of the areas, wide ones outside at the upper levels."""
        kinds = (np.int16, np.int32, np.int64) if inside else (np.int32, np.int64) if depth > 2 else (np.int64,)
        return next((kind for kind in kinds if most <= np.iinfo(kind).max), np.int64)

    def _write_rows(
        self,
        depth: int,
        start: int,
        kind: str,
        codes: np.ndarray,
        questions: Sequence[int],
        values: np.ndarray,
        extra: dict[str, np.ndarray | None],
    ) -> None:
        """Write ``values`` [units, all answers to the questions], a row each unit and question, with more columns for them.

        Args:
            depth, start: level and first unit.
            kind: of rows.
            codes: of the units.
            questions: rows of the table of what is asked.
            values: the answers.
            extra: by name [units, questions], None for a column of that table.
        """
        folder = self.folder / f"{LEVELS[depth]}.parquet" / kind
        if depth:
            folder /= f"State={codes[0][:3]}"
        folder.mkdir(parents=True, exist_ok=True)
        asked = len(questions)
        order = np.arange(codes.size * asked)
        if self.shuffle:
            np.random.default_rng([self.seed, _ORDER, depth, start, len(questions)]).shuffle(order)
        sizes = self.sizes[list(questions)]
        starts = np.arange(codes.size)[:, None] * values.shape[1] + (np.cumsum(sizes) - sizes)
        for rows in np.array_split(order, self.num_parts):
            if rows.size:
                path = folder / f"part-{self.written[folder]:05d}.parquet"
                self.written[folder] += 1
                table = {
                    "place": np.arange(rows.size),
                    "question": np.array(questions)[rows % asked],
                    "geocode": codes[rows // asked],
                }
                table |= {name: column.ravel()[rows] for name, column in extra.items() if column is not None}
                self._copy(path, table, _pieces(values.ravel(), starts.ravel()[rows], sizes[rows % asked]), extra)

    def _copy(self, path: Path, rows: dict[str, np.ndarray], answers: dict[str, np.ndarray], extra: Iterable[str]) -> None:
        columns = ", ".join(("geocode", "query_name", *_SCHEMA.names, "query_shape", "value", *extra))
        lists = 'SELECT place, list(answer ORDER BY number) AS "value" FROM answers GROUP BY place'
        quoted = str(path).replace("'", "''")
        self.connection.register("unit_rows", rows)
        self.connection.register("answers", answers)
        self.connection.execute(
            f"COPY (SELECT {columns} FROM ({lists}) JOIN unit_rows USING (place) JOIN asked USING (question) ORDER BY place) "
            f"TO '{quoted}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP})"
        )
        self.connection.unregister("unit_rows")
        self.connection.unregister("answers")


def _pieces(values: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Columns "place", which piece of ``values`` an answer is of, "number", which is in order, and "answer"."""
    ends = np.cumsum(sizes)
    number = np.arange(ends[-1], dtype=np.int32)
    index = number + np.repeat(starts - (ends - sizes), sizes)
    return {"place": np.repeat(np.arange(sizes.size, dtype=np.int32), sizes), "number": number, "answer": values[index]}
