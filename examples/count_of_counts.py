"""Hierarchical count-of-counts histograms: the comparisons of Kuo, Chiu, Kifer, Hay and Machanavajjhala 2018, section 6.2.

python examples/count_of_counts.py [--data flights] [--epsilons 0.01 0.1 1] [--releases 10] [--groups 1000000] [--output NAME.png]

How far the sizes of groups are off in the whole, on the level below and on the lowest level: the earth mover's distance, the mean
over the regions of a level and over releases, with its standard error. The data are "flights" (planes at an airport for a
carrier, which ship), or made up: "households", "taxis", "dense", "sparse". Every level gets epsilon, so that all of them lose
three times as much; what looks at the lowest level only gets all of it there.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import dpinfer as dpi
from dpinfer.accuracy import omniscient_count_of_counts_error
from dpinfer.evaluation import earth_movers_distance
from dpinfer.group_plots import positions_figure
from dpinfer.group_sizes import from_sizes, to_sizes
from dpinfer.inference import consistent_count_of_counts
from dpinfer.mechanisms import count_of_counts_from_histograms
from dpinfer.plots import save

Histograms = list[np.ndarray]
# What is measured of each level, and what becomes of it.
WAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("H_c", "unmerged", {"method": "unmerged"}),
    ("H_c", "bottom up", {"method": "bottom_up"}),
    ("H_c", "weighted", {}),
    ("H_c", "naive mean", {"merging": "naive"}),
    ("H_c", "the parent's", {"merging": "parent"}),
    ("H_c", "printed variances", {"variances": "printed"}),
    ("H_c", "weighted, squares", {"norm": "l2"}),
    ("H_g", "unmerged", {"method": "unmerged"}),
    ("H_g", "weighted", {}),
    ("H_g x H_c x H_c", "weighted", {}),
    ("H_g x H_c x H_c", "printed variances", {"variances": "printed"}),
    ("H_c x H_c x H_g", "weighted", {}),
    ("H_c x H_c x H_g", "printed variances", {"variances": "printed"}),
    ("fusion", "weighted", {}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Hierarchical count-of-counts histograms (Kuo et al. 2018, section 6.2).")
    parser.add_argument("--data", default="flights", choices=["flights", *dpi.datasets.GROUP_SHAPES])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.01, 0.1, 1.0])
    parser.add_argument("--releases", type=int, default=10)
    parser.add_argument("--groups", type=int, default=1_000_000, help="how many groups are made up")
    parser.add_argument("--max-size", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=Path("count_of_counts.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    cells, regions = histograms_of(options.data, options.groups, options.max_size)
    truth = regions.sums(cells)
    sizes = np.flatnonzero(truth[0][0])
    print(f"{options.data}: {cells.sum():,} groups of {sizes.size:,} sizes from {sizes[0]} to {sizes[-1]:,} in", end=" ")
    print(
        " x ".join(f"{regions.size(level):,}" for level in range(regions.num_levels))
        + f" regions; max_size {options.max_size:,}."
    )
    for epsilon in options.epsilons:
        print_table(cells, regions, truth, epsilon, options.releases)
        known = omniscient_count_of_counts_error(sizes, epsilon=epsilon)
        print(f"Knowing which sizes there are: {known.histogram:,.0f} groups of the whole would be counted wrong", end="; ")
        print(f"distance {known.earth_movers_distance:,.0f}.")
    epsilon = options.epsilons[len(options.epsilons) // 2]
    errors = {method: errors_by_position(truth[0], epsilon, method, options.releases) for method in ("H_g", "H_c")}
    save(positions_figure(to_sizes(truth[0][0]), errors, f"{options.data}, epsilon = {epsilon:g}"), options.output)
    print(f"Figure: {options.output}")


def histograms_of(data: str, num_groups: int, max_size: int) -> tuple[np.ndarray, dpi.RegionTree]:
    if data != "flights":
        cells, regions = dpi.datasets.synthetic_groups(data, num_groups=num_groups, max_size=min(max_size, 10_000))
    else:
        flights = dpi.datasets.plane_flights()
        regions, leaf_of = dpi.RegionTree.from_table(flights.hierarchy)
        leaves = np.array([leaf_of[region] for region in flights.groups["region"].tolist()])
        flown = np.bincount(flights.entities["group"])
        cells = np.array([from_sizes(flown[leaves == leaf], max_size=max_size) for leaf in range(len(leaf_of))])
    return np.pad(cells, [(0, 0), (0, max_size + 1 - cells.shape[1])]), regions


def print_table(cells: np.ndarray, regions: dpi.RegionTree, truth: Histograms, epsilon: float, releases: int) -> None:
    names = ["whole", *(f"level {level}" for level in range(1, regions.num_levels))]
    print(f"\nepsilon = {epsilon:g} a level\n{'measured':<17}{'estimated':<19}" + "".join(f"{name:>22}" for name in names))
    errors: dict[tuple[str, str], list[list[float]]] = {(measured, name): [] for measured, name, _ in WAYS}
    naive = []
    for number in range(releases):
        for measured in dict.fromkeys(way[0] for way in WAYS):
            release = count_of_counts_from_histograms(cells, regions, level_epsilons=[epsilon] * len(truth), method=measured)
            alone = [0.0] * (len(truth) - 1) + [epsilon * len(truth)]
            for _, name, how in (way for way in WAYS if way[0] == measured):
                if how.get("method") == "bottom_up":
                    lowest = count_of_counts_from_histograms(cells, regions, level_epsilons=alone, method=measured)
                    estimate = consistent_count_of_counts(lowest, method="bottom_up")
                else:
                    estimate = consistent_count_of_counts(release, **how)
                errors[measured, name].append(distances(estimate, truth))
        if number < 2:  # two will do
            release = count_of_counts_from_histograms(truth[0], dpi.RegionTree([("all",)]), epsilon=epsilon, method="naive")
            naive.append(distances(consistent_count_of_counts(release), truth[:1]))
    for (measured, name), found in [(("naive", "unmerged"), naive), *errors.items()]:
        table = np.array(found)
        spread = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros(table.shape[1])
        row = [f"{mean:,.1f} +- {error:,.1f}" for mean, error in zip(table.mean(axis=0), spread, strict=True)]
        print(f"{measured:<17}{name:<19}" + "".join(f"{text:>22}" for text in row))


def distances(estimate: dpi.inference.CountOfCountsEstimate, truth: Histograms) -> list[float]:
    return [float(earth_movers_distance(estimate.level(level), true).mean()) for level, true in enumerate(truth)]


def errors_by_position(truth: np.ndarray, epsilon: float, method: str, releases: int) -> np.ndarray:
    """The mean |error| of the size of each group of the whole, the smallest first."""
    total = np.zeros(int(truth.sum()))
    for _ in range(releases):
        release = count_of_counts_from_histograms(truth, dpi.RegionTree([("all",)]), epsilon=epsilon, method=method)
        total += np.abs(to_sizes(consistent_count_of_counts(release).level(0)[0]) - to_sizes(truth[0]))
    return total / releases


if __name__ == "__main__":
    main()
