"""Count-of-counts histograms of a nation: python -m tests.benchmarks.count_of_counts [--groups 125000000]

The made-up households of Kuo et al. 2018, section 6.1, in 52 states of 62 counties, sizes up to 20,000: how long the release, the
estimate of all regions and the consistency take, and the memory at its highest; each method in a process of its own. Runs of
240 million equal counts, too.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

import dpinfer as dp
from dpinfer.evaluation import earth_movers_distance
from dpinfer.inference import consistent_count_of_counts
from dpinfer.mechanisms import count_of_counts_from_histograms, sorted_runs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=125_000_000)
    parser.add_argument("--method")
    options = parser.parse_args()
    if options.method is not None:
        one(options.groups, options.method)
        return
    for method in ("H_c", "H_g"):
        subprocess.run([sys.executable, "-m", __spec__.name, "--groups", str(options.groups), "--method", method], check=True)
    begin = time.perf_counter()
    shares = np.array([26.7, 32.8, 16.1, 13.4, 6.5, 2.6, 1.9]) / 100
    sorted_runs(np.arange(1, 8), multiplicities=(240_900_000 * shares).astype(np.int64), epsilon=0.1)
    print(f"sorted_runs of 240.9 million counts of 7 sizes: {time.perf_counter() - begin:.1f} s")


def one(num_groups: int, method: str) -> None:
    dp.enable_x64()
    cells, regions = dp.datasets.synthetic_groups(
        "households", num_groups=num_groups, states=52, counties=62, max_size=20_000, seed=1
    )
    made = _peak()
    begin = time.perf_counter()
    release = count_of_counts_from_histograms(cells, regions, epsilon=1, method=method)
    measured = time.perf_counter() - begin
    begin = time.perf_counter()
    estimate = consistent_count_of_counts(release)
    estimated = time.perf_counter() - begin
    peak = _peak()
    begin = time.perf_counter()
    consistent_count_of_counts(release)
    again = time.perf_counter() - begin
    truth = regions.sums(cells)
    far = [float(earth_movers_distance(estimate.level(level), true).mean()) for level, true in enumerate(truth)]
    times = f"measure {measured:.1f} s, estimate and make consistent {estimated:.1f} s (again {again:.1f} s)"
    memory = f"peak {peak:.1f} GiB, of which {made:.1f} before"
    distance = ", ".join(f"{mean:,.1f}" for mean in far)
    print(f"{method}, {cells.sum():,} groups, {regions!r}, epsilon = 1: {times}; {memory}; distance {distance}", flush=True)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
