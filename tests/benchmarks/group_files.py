"""Counting the groups of many entities from Parquet files: python -m tests.benchmarks.group_files [--entities 100000000]

Made-up people with names of 16 digits in no order, in two fifths as many households, in 3,000 counties: how long the counting
takes, the memory at its highest and the most that lay in temporary files; within 1 GiB, and for a hundredth of them beside the
same from data frames, each in a process of its own.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb
from pyarrow import parquet

from dpinfer.mechanisms.group_tables import count_groups

HIERARCHY = {"region": range(3000), "level_0": ["US"] * 3000, "level_1": [i // 60 for i in range(3000)], "level_2": range(3000)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--entities", type=int, default=100_000_000)
    parser.add_argument("--folder", help="where the files lie; left out: made, and removed afterwards")
    parser.add_argument("--frames", action="store_true")
    options = parser.parse_args()
    if options.folder is not None:
        one(Path(options.folder), options.frames)
        return
    for number, ways in ((options.entities, ([],)), (options.entities // 100, ([], ["--frames"]))):
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), number)
            for way in ways:
                subprocess.run([sys.executable, "-m", __spec__.name, "--folder", folder, *way], check=True)


def make(folder: Path, number: int) -> None:
    households = max(1, number * 2 // 5)
    for name, query in (
        (
            "entities",
            f'hash(range) % 10000000000000000 AS entity, hash(range + 7) % {households} AS "group" FROM range({number})',
        ),
        ("groups", f'range AS "group", range % 3000 AS region FROM range({households})'),
    ):
        duckdb.execute(f"COPY (SELECT {query}) TO '{folder / name}.parquet' (FORMAT parquet)")


def one(folder: Path, as_frames: bool) -> None:
    tables = [folder / "entities.parquet", folder / "groups.parquet"]
    tempfile.tempdir = str(folder)
    entities, groups = (parquet.read_table(table) if as_frames else table for table in tables)
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            sizes = []
            for file in folder.glob("dpinfer-*/**/*"):
                try:
                    sizes.append(file.stat().st_blocks * 512)
                except FileNotFoundError:
                    continue
            most[0] = max(most[0], sum(sizes))

    watching = threading.Thread(target=watch)
    watching.start()
    begin = time.perf_counter()
    found = count_groups(entities, groups, HIERARCHY, private_groups=False, memory_limit=1 << 30)
    seconds = time.perf_counter() - begin
    done.set()
    watching.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{'frames' if as_frames else 'files'}, {found.counts @ found.sizes:,} entities in {found.counts.sum():,} groups: "
        f"{seconds:.1f} s, memory at the most {peak:.1f} GiB, put aside {most[0] / 2**30:.1f} GiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
