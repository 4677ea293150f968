"""Tables of a product's units as Parquet or CSV files, written some units at a time."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from dpinfer._progress import reporter
from dpinfer.spine.areas import Areas
from dpinfer.spine.product import listed
from dpinfer.spine.product_estimate import ProductEstimate
from dpinfer.spine.product_files import duckdb_or_refusal
from dpinfer.spine.schema import Query

# What the published tables P1 to P5 count: race, Hispanic origin by race, both of adults, group quarters.
PL94_TABLES = ("total", "cenrace", "hispanic * cenrace", "voting * cenrace", "voting * hispanic * cenrace", "hhgq")
_FORMATS = {".parquet": "(FORMAT parquet, COMPRESSION zstd)", ".csv": "(FORMAT csv, HEADER)"}
# Rows that are made at a time, in memory.
_ROWS = 400_000


def default_queries(estimate: ProductEstimate) -> list[Query]:
    """What the redistricting tables count; of other schemas, what was measured."""
    schema = estimate.product.schema
    if "voting" in schema.recodes and {"hispanic", "cenrace", "hhgq"} <= set(schema.names):
        return [schema.query(name) for name in PL94_TABLES]
    return list({query.groups: query for query in estimate.product.queries}.values())


def table_format(path: str | os.PathLike[str]) -> str:
    """How DuckDB writes a file, by the ending of its name.

    Raises:
        ValueError: if it is neither .parquet nor .csv.
    """
    if Path(path).suffix not in _FORMATS:
        raise ValueError(f"path must end in {' or '.join(_FORMATS)}, got {os.fspath(path)!r}.")
    return _FORMATS[Path(path).suffix]


def write_tables(
    estimate: ProductEstimate,
    path: str | os.PathLike[str],
    levels: str | Sequence[str],
    queries: str | Iterable[Query | str] | None = None,
    *,
    coverage: float = 0.95,
    progress: bool | Callable[[int, int], None] = False,
) -> int:
    """Write estimates, standard deviations and intervals of all units of some levels; how many rows there are.

    A row an answer: level, geocode, query, the label of each attribute ("*" for its total), value, stddev, lower, upper. The file
    appears whole or not at all; an older one of that name is replaced.

    Args:
        estimate: of a product.
        path: a name that ends in .parquet or .csv.
        levels: names of levels.
        queries: queries or their names; those of the redistricting tables by default.
        coverage: level of the intervals, each by itself.
        progress: True for a bar, or a function of (units done, units in all).

    Raises:
        ValueError: if a name is not known, or the file is of another kind.
    """
    duckdb = duckdb_or_refusal()
    target, form = Path(path), table_format(path)
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be between 0 and 1, got {coverage!r}.")
    if not target.parent.is_dir():
        raise ValueError(f"path must lie in a folder that exists, got {os.fspath(path)!r}.")
    depths = list(dict.fromkeys(estimate.product.depth(name) for name in listed(levels)))
    schema = estimate.product.schema
    wanted = default_queries(estimate) if queries is None else [schema.query(query) for query in listed(queries)]
    wanted = list(dict.fromkeys(wanted))
    if not wanted or not depths:
        raise ValueError("levels and queries must name at least one each.")
    at_once = max(1, _ROWS // sum(query.size for query in wanted))
    tell = reporter(progress, sum(len(estimate.product.units[depth]) for depth in depths), "units")
    # Beside the target, so that the last step is a renaming.
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    rows, parts = 0, []
    try:
        with duckdb.connect() as connection:
            connection.execute("SET enable_progress_bar = false")
            for depth in depths:
                name = estimate.product.level_names[depth]
                for areas in estimate.iterate(name):
                    for start in range(0, len(areas), at_once):
                        part = _part(areas, start, at_once)
                        columns = _columns(part, name, wanted, coverage)
                        rows += len(columns["value"])
                        parts.append(folder / f"{rows:012d}.parquet")
                        connection.execute(f"COPY (SELECT * FROM columns) TO {_quoted(parts[-1])}")
                        tell(len(part))
            whole = folder / f"whole{target.suffix}"
            listing = ", ".join(map(_quoted, parts))
            connection.execute(f"COPY (SELECT * FROM read_parquet([{listing}])) TO {_quoted(whole)} {form}")
        os.replace(whole, target)
    finally:
        tell(None)
        shutil.rmtree(folder)
    return rows


def _part(areas: Areas, start: int, size: int) -> Areas:
    rows = slice(start, start + size)
    return Areas(areas.names[rows], areas.classes, areas.mean[rows], areas.covariance[rows])


def _columns(areas: Areas, name: str, queries: Sequence[Query], coverage: float) -> dict[str, np.ndarray]:
    table = areas.table(queries, coverage)
    text = {"level": np.repeat([name], len(table["value"])), "geocode": table.pop("area")}
    return {key: x.astype(object) if x.dtype.kind == "U" else x for key, x in (text | table).items()}


def _quoted(path: Path) -> str:
    return "'" + os.fspath(path).replace("'", "''") + "'"
