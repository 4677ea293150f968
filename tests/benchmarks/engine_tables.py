"""Counting records through ibis on DuckDB: python -m tests.benchmarks.engine_tables [--rows 100000000] [--memory 1GB]

Made-up records in eight Parquet files, with nulls and values outside the axes: how long counting them takes and the memory at
its highest, through ibis with the memory that DuckDB is given, and by the path of each file; and for a hundredth of them the
same beside pandas and arrays. Each in a process of its own.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np

from dpinfer import Axis, Domain, count

DOMAIN = Domain(
    {
        "age": Axis.edges([0, 5, 18, 25, 35, 45, 55, 65, 75, 120], null="other", below="clip", above="other"),
        "income": Axis.edges([*(str(i / 10) for i in range(100)), "1000"], null="other", below="drop", above="clip"),
        "state": Axis.categories([f"S{i:02}" for i in range(50)], null="other", above="other"),
    }
)
# About 1% nulls in each, ages of -10 to 139, incomes of -1 to 100, states of which two are not listed.
QUERY = """SELECT
    CASE WHEN hash(range) % 100 > 0 THEN (hash(range + 1) % 150)::INTEGER - 10 END AS age,
    CASE WHEN hash(range + 2) % 100 > 0 THEN (hash(range + 3) % 10100)::DOUBLE / 100 - 1 END AS income,
    CASE WHEN hash(range + 4) % 100 > 0 THEN printf('S%02d', (hash(range + 5) % 52)::INTEGER) END AS state
    FROM range({}, {})"""
FILES = 8
WAYS = ("ibis", "path", "pandas", "arrays")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--folder", help="where the files lie; left out: made, and removed afterwards")
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args()
    if options.way:
        one(Path(options.folder), options.way, options.memory)
        return
    for rows, ways in ((options.rows, WAYS[:2]), (options.rows // 100, WAYS)):
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), rows)
            size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20
            print(f"{rows} rows, {FILES} files of {size:.0f} MiB together, {DOMAIN.size} cells")
            for way in ways:
                command = [sys.executable, "-m", __spec__.name, "--folder", folder, "--way", way, "--memory", options.memory]
                subprocess.run(command, check=True)
            cells = [np.load(file) for file in Path(folder).glob("*.npy")]
            assert len(cells) == len(ways)
            assert all(np.array_equal(cells[0], other) for other in cells)
            print(f"the same cells, of {cells[0].sum()} records")


def make(folder: Path, rows: int) -> None:
    ends = np.linspace(0, rows, FILES + 1, dtype=int).tolist()
    for i, (begin, end) in enumerate(itertools.pairwise(ends)):
        duckdb.execute(f"COPY ({QUERY.format(begin, end)}) TO '{folder}/{i}.parquet' (FORMAT parquet)")


def one(folder: Path, way: str, memory: str) -> None:
    files, table = sorted(folder.glob("*.parquet")), None
    if way == "ibis":
        import ibis

        engine = ibis.duckdb.connect(memory_limit=memory)
        table = engine.read_parquet(str(folder / "*.parquet"))
    elif way in ("pandas", "arrays"):
        import pandas as pd

        table = pd.concat([pd.read_parquet(file) for file in files])
        if way == "arrays":
            table = {name: table[name].to_numpy() for name in DOMAIN.names}
    before = peak()
    begin = time.perf_counter()
    cells = sum(count(file, DOMAIN) for file in files) if way == "path" else count(table, DOMAIN)
    seconds = time.perf_counter() - begin
    print(f"{way:7}{seconds:8.1f} s, {peak():6.0f} MiB at most ({before:.0f} before counting)")
    np.save(folder / f"{way}.npy", cells)


def peak() -> float:
    """The most memory that this process has held, in MiB; unlike getrusage's, without that of the process it came from."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    main()
