"""Estimating a census-size geography from its files: python -m tests.benchmarks.spine [--blocks 10000 300000]

A made-up state in the published layout, 2,016 cells a block: seconds and the memory at its highest, each run in a process of its
own, in turn, medians over the rounds. Then a block group and its blocks by matrices of 2,016 x 2,016, as they come without the
classes of coordinates, beside the same by classes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dpinfer import spine
from tests.benchmarks.timing import interleaved, machine

WAYS = {
    "county and tract tables": ["--level", "County", "Tract"],
    "the same, zeros as stated": ["--level", "County", "Tract", "--zeros", "stated"],
    "and block groups": ["--level", "County", "Tract", "Block_Group"],
    "block totals, in 64 bit": ["--level", "Block", "--query", "total"],
    "block totals, in 32 bit": ["--level", "Block", "--query", "total", "--single"],
    "the certificate": ["--certificate"],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, nargs="+", default=[10_000, 300_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="of one run; left out: made, and removed afterwards")
    parser.add_argument("--level", nargs="*", default=[])
    parser.add_argument("--query", nargs="*", help="of the redistricting tables by default")
    parser.add_argument("--zeros", default="pushed_down")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--certificate", action="store_true")
    options = parser.parse_args()
    if options.folder is not None:
        print(json.dumps(one(options)))
        return
    print(machine())
    for blocks in options.blocks:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            spine.write_product(folder, num_blocks=blocks, seed=0)
            print(f"\n{blocks:,} blocks; the files were made in {time.perf_counter() - begin:.0f} s")
            found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way, arguments in WAYS.items():
                    command = [sys.executable, "-m", __spec__.name, "--folder", folder, *arguments]
                    found[way].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            for way, runs in found.items():
                seconds, memory = (statistics.median(run[name] for run in runs) for name in ("seconds", "memory"))
                note = f", largest residual {runs[0]['residual']:.0e}" if "residual" in runs[0] else ""
                print(f"{way:28} {seconds:7.1f} s {memory:6.2f} GB{note}")
    beside_dense()


def one(options: argparse.Namespace) -> dict[str, float]:
    """From files to tables or the certificate; seconds without importing, and GB at the highest."""
    begin = time.perf_counter()
    product = spine.Product(options.folder, zeros=options.zeros)
    estimate = spine.product_least_squares(product, leaf_dtype=np.float32 if options.single else np.float64)
    found = {}
    if options.certificate:
        found["residual"] = max(estimate.certificate())
    else:
        with tempfile.TemporaryDirectory() as folder:
            spine.write_tables(estimate, Path(folder) / "tables.parquet", options.level, options.query)
    found["seconds"] = time.perf_counter() - begin
    # Of this process: the maximum of getrusage counts the one that started it.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return found | {"memory": int(status.split("VmHWM:")[1].split()[0]) / 2**20}


def beside_dense(blocks: int = 8) -> None:
    """One block group: up and down by full matrices, and by classes; both find the same."""
    schema = spine.pl94_persons()
    names = ("total", "cenrace", "votingage", "hispanic", "hhgq", "hhinstlevels", "votingage * hispanic * cenrace", "detailed")
    rng = np.random.default_rng(0)
    parents = np.array([-1] + [0] * blocks)
    measured = []
    for name in names:
        query = schema.query(name)
        variances = np.full(blocks + 1, 50.0 + query.size % 7)
        measured.append(spine.Measured(query, rng.normal(0, 8, (blocks + 1, query.size)), variances))
    queries = [schema.query(name) for name in names]

    def by_classes() -> np.ndarray:
        return spine.tree_least_squares(schema, parents, measured).areas().counts

    def dense() -> np.ndarray:
        rows = [query.answer(np.eye(schema.size)).T for query in queries]
        gram, b = np.zeros((schema.size, schema.size)), np.zeros((blocks + 1, schema.size))
        for row, one in zip(rows, measured, strict=True):
            gram += row.T @ row / one.variances[0]
            b += (one.values / one.variances[:, None]) @ row
        leaf = np.linalg.inv(gram)
        z = b[1:] @ leaf
        total = np.linalg.inv(blocks * leaf)
        root = np.linalg.solve(gram + total, b[0] + total @ z.sum(axis=0))
        return np.concatenate([root[None], z + (total @ (root - z.sum(axis=0))) @ leaf])

    difference = np.abs(by_classes() - dense()).max()
    seconds = {name: statistics.median(taken) for name, taken in interleaved({"classes": by_classes, "dense": dense}, 3).items()}
    ratio = seconds["dense"] / seconds["classes"]
    print(
        f"\na block group of {blocks} blocks: by matrices of 2,016 x 2,016 {seconds['dense']:.1f} s, by classes "
        f"{1e3 * seconds['classes']:.0f} ms, {ratio:.0f} times faster; largest difference {difference:.0e}"
    )


if __name__ == "__main__":
    main()
