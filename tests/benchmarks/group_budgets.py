"""A split over levels recommended from public numbers against the equal one: python -m tests.benchmarks.group_budgets

Five kinds of groups, three budgets. Of each level the mean earth mover's distance with the recommended split, divided by that
with the equal split, the mean of some releases each; the groups themselves are never looked at for the recommendation.
"""

import argparse

import jax
import numpy as np

import dpinfer as dp
from dpinfer.allocation import group_levels
from dpinfer.evaluation import earth_movers_distance
from dpinfer.inference import consistent_count_of_counts
from dpinfer.mechanisms import count_of_counts_from_histograms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--releases", type=int, default=8)
    parser.add_argument("--groups", type=int, default=200_000)
    options = parser.parse_args()
    dp.enable_x64()
    print(f"{'groups':<12}{'epsilon':>8}{'ratio':>8}   distance, recommended / equal: whole, states, counties")
    for shape in dp.datasets.GROUP_SHAPES:
        cells, regions = dp.datasets.synthetic_groups(shape, num_groups=options.groups, max_size=5000)
        for epsilon in (0.03, 0.3, 3.0):
            found = group_levels(regions, cells.sum(axis=1), epsilon=epsilon, max_size=5000, key=jax.random.key(0))
            means = {
                name: errors(cells, regions, split, options.releases)
                for name, split in (("recommended", found.level_epsilons), ("equal", [epsilon / 3] * 3))
            }
            ratios = "".join(f"{x:>9.2f}" for x in means["recommended"] / means["equal"])
            print(f"{shape:<12}{epsilon:>8g}{'lowest' if found.ratio is None else str(found.ratio):>8}{ratios}", flush=True)


def errors(cells: np.ndarray, regions: dp.RegionTree, split: object, releases: int) -> np.ndarray:
    found = []
    for _ in range(releases):
        estimate = consistent_count_of_counts(count_of_counts_from_histograms(cells, regions, level_epsilons=split))
        found.append([earth_movers_distance(estimate.level(n), true).mean() for n, true in enumerate(regions.sums(cells))])
    return np.mean(found, axis=0)


if __name__ == "__main__":
    main()
