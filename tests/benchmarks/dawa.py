"""DAWA's settings beside each other: errors of ranges over those of the best tree, of cells over those of noisy cells.

python -m tests.benchmarks.dawa [--cells 4096] [--totals 10000 100000 1000000] [--trials 2]
"""

import argparse
import time

import numpy as np

import dpinfer as dp
from dpinfer.mechanisms import dawa

EPSILON = 0.1
SETTINGS = {
    "dyadic, median (as it comes)": {},
    "dyadic, mean": {"cost": "mean"},
    "all, median": {"intervals": "all"},
    "dyadic, median, price 0": {"bucket_price": 0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=4096)
    parser.add_argument("--totals", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--trials", type=int, default=2)
    arguments = parser.parse_args()
    dp.enable_x64()
    n = arguments.cells
    starts, stops = np.sort(np.random.default_rng(0).integers(0, n + 1, (2, 1000)), axis=0)
    workload = dp.queries.Ranges(n, starts, stops)
    tree = dp.methods.consistent_tree(n, dp.accuracy.best_branching(n))
    flat = dp.methods.noisy_cells(n)

    def errors(cells: np.ndarray, ranges: np.ndarray, each: np.ndarray) -> np.ndarray:
        of_ranges = np.asarray(workload @ (ranges - cells))
        return np.array([np.square(of_ranges).mean(), np.square(each - cells).mean()])

    ratios: dict[str, list[np.ndarray]] = {name: [] for name in SETTINGS}
    seconds = dict.fromkeys(SETTINGS, 0.0)
    for shape in dp.datasets.HISTOGRAM_SHAPES:
        for total in arguments.totals:
            cells = dp.datasets.synthetic_histogram(shape, size=n, total=total, seed=3)

            def classical(cells: np.ndarray = cells) -> np.ndarray:
                found = [np.asarray(m.estimate(m.measure(cells, epsilon=EPSILON)).cells) for m in (tree, flat)]
                return errors(cells, *found)

            base = np.mean([classical() for _ in range(arguments.trials)], axis=0)
            for name, setting in SETTINGS.items():
                found = []
                for _ in range(arguments.trials):
                    begin = time.perf_counter()
                    releases = [dawa(cells, epsilon=EPSILON, values=values, **setting) for values in ("tree", "identity")]
                    seconds[name] += time.perf_counter() - begin
                    found.append(errors(cells, *(release.cells for release in releases)))
                ratios[name].append(np.sqrt(np.mean(found, axis=0) / base))
    for name, each in ratios.items():
        ranges, single = np.exp(np.log(each).mean(axis=0))
        time_each = seconds[name] / (2 * arguments.trials * len(each))
        print(f"{name}: ranges {ranges:.2f} of a tree's error, cells {single:.2f} of noisy cells'; {time_each:.2f} s a release")


if __name__ == "__main__":
    main()
