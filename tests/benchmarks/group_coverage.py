"""How often 90% bootstrap intervals of group sizes cover: python -m tests.benchmarks.group_coverage [--releases 40]

20,000 made-up groups in two states of three counties, sizes up to 300; what is said of the states.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import dpinfer as dp
from dpinfer.inference import CountOfCountsEstimate, bootstrap_count_of_counts
from dpinfer.inference.size_runs import SizeRuns
from dpinfer.mechanisms import count_of_counts_from_histograms

STATISTICS: dict[str, Callable[[CountOfCountsEstimate], np.ndarray]] = {
    "H_c, sizes 1 to 49": lambda e: e.cumulative(1)[:, 1:50],
    "quantiles 0.25, 0.5, 0.75, 0.95": lambda e: e.quantiles(1, [0.25, 0.5, 0.75, 0.95]),
    "shares of sizes 1 to 7": lambda e: e.shares(1, np.arange(1, 8)),
    "largest and fifth largest": lambda e: e.largest(1, [1, 5]),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--releases", type=int, default=40)
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    dp.enable_x64()
    for shape, epsilon, method in (("households", 1.0, "H_c"), ("households", 0.1, "H_c")):
        covered = coverage(shape, epsilon, method, options.releases, options.draws)
        rates = "; ".join(f"{name} {rate:.1%}" for name, rate in covered.items())
        print(f"{shape}, {method}, epsilon = {epsilon:g}: {rates}", flush=True)


def coverage(shape: str, epsilon: float, method: str, releases: int, draws: int) -> dict[str, float]:
    cells, regions = dp.datasets.synthetic_groups(shape, num_groups=20_000, states=2, counties=3, max_size=300)
    truth: Any = CountOfCountsEstimate(regions, 300, [SizeRuns.of_histograms(level) for level in regions.sums(cells)])
    parts = [statistic(truth).size for statistic in STATISTICS.values()]
    true = together(truth)
    hits = np.zeros(true.size)
    for number in range(releases):
        release = count_of_counts_from_histograms(cells, regions, epsilon=epsilon, method=method)
        found = bootstrap_count_of_counts(release, together, key=jax.random.key(number), num_draws=draws)
        lower, upper = (np.asarray(end) for end in found.interval(0.9))
        hits += (lower - 1e-9 <= true) & (true <= upper + 1e-9)
    means = [part.mean() / releases for part in np.split(hits, np.cumsum(parts)[:-1])]
    return dict(zip(STATISTICS, map(float, means), strict=True))


def together(estimate: CountOfCountsEstimate) -> np.ndarray:
    return np.concatenate([statistic(estimate).ravel() for statistic in STATISTICS.values()])


if __name__ == "__main__":
    main()
