"""Many problems at once: a million histograms in bounded memory, and what the blocks cost beside one large vmap.

python -m tests.benchmarks.batches [--rounds 7] [--problems 1000000]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import dpinfer as dp
from dpinfer.queries import Identity, Prefix, Tree
from tests.benchmarks.timing import interleaved, machine, summary

NUM_CELLS = 256


def estimate(cells: jax.Array, key: jax.Array) -> jax.Array:
    """A release of one histogram and the least squares estimate of its cells, as stored: in single precision."""
    measurement = dp.simulate(cells.astype(float), Tree.complete(NUM_CELLS, 16), epsilon=1.0, key=key)
    return jnp.asarray(dp.least_squares(measurement).cells, jnp.float32)


def stream(folder: str, num: int) -> None:
    """Read ``num`` histograms from a file, write their estimates to another; print seconds and the memory that is not mapped."""
    dp.enable_x64()
    read = np.load(Path(folder) / "cells.npy", mmap_mode="r")[:num]
    written = np.lib.format.open_memmap(Path(folder) / "found.npy", mode="w+", dtype=np.float32, shape=read.shape)
    begin = time.perf_counter()
    for rows, cells in dp.stream_problems(
        estimate, read, key=jax.random.key(0), memory_limit=1 << 28, progress=sys.stderr.isatty()
    ):
        written[rows] = cells
    seconds = time.perf_counter() - begin
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    print(seconds, int(status["RssAnon"].split()[0]) // 1024, sep=" ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--problems", type=int, default=1_000_000)
    options = parser.parse_args()
    dp.enable_x64()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        file = np.lib.format.open_memmap(
            Path(folder) / "cells.npy", mode="w+", dtype=np.float32, shape=(options.problems, NUM_CELLS)
        )
        rng = np.random.default_rng(0)
        for start in range(0, options.problems, 100_000):
            rows = slice(start, min(start + 100_000, options.problems))
            file[rows] = rng.poisson(3.0, (rows.stop - rows.start, NUM_CELLS))
        file.flush()
        print(f"\nfrom a file to a file: histograms of {NUM_CELLS} cells measured and estimated, memory_limit 256 MiB")
        for num in (options.problems // 10, options.problems):
            command = [sys.executable, "-m", "tests.benchmarks.batches_stream", folder, str(num)]
            seconds, memory = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
            print(
                f"{num:>10,} histograms {float(seconds):8.1f} s {num / float(seconds):>10,.0f} a second, {memory} MiB held then"
            )

    tree = Tree.complete(4096, 2)
    values = np.random.default_rng(0).normal(size=(1000, tree.shape[0]))
    problems = dp.Measurement.batch(tree, values, "laplace", 2.0)

    def cells_of(measurement: dp.Measurement) -> jax.Array:
        return jnp.asarray(dp.least_squares(measurement).cells)

    whole = jax.jit(jax.vmap(lambda v: cells_of(dp.Measurement(tree, v, "laplace", 2.0))))
    found = interleaved(
        {
            "one vmap, from and to numpy": lambda: np.asarray(whole(values)),
            "map_problems": lambda: dp.map_problems(cells_of, problems),
        },
        options.rounds,
    )
    print("\n1,000 trees of 4,096 leaves, b = 2")
    for name, median, least, ratio, by_min in summary(found, "one vmap, from and to numpy"):
        print(f"{name:36}{median:12.1f} ms{least:12.1f} ms min{ratio:10.3f}x{by_min:9.3f}x by min")

    print("\nsimulate_error, 1,000 releases of 4,096 cells, compiling included")
    truth = np.random.default_rng(0).poisson(3.0, 4096)
    for name, strategy, workload in (
        ("b = 16, every cell", Tree.complete(4096, 16), Identity(4096)),
        ("b = 2, prefixes", tree, Prefix(4096)),
    ):
        begin = time.perf_counter()
        error = dp.evaluation.simulate_error(
            strategy, dp.least_squares, truth, workload, epsilon=1.0, key=jax.random.key(0), num_draws=1000
        )
        seconds = time.perf_counter() - begin
        print(
            f"{name:24}{seconds:8.1f} s   squared error {error.squared_error:8.2f} +- {error.standard_error:.2f}, "
            f"theory {error.expected:.2f}"
        )


if __name__ == "__main__":
    main()
