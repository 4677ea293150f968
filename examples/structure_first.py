"""Histograms of few bins that are chosen privately: figures 6 to 13 and 15 of Xu et al. 2013, and other ways to choose the bins.

python examples/structure_first.py [--data counts.npy] [--shapes sparse smooth] [--cells 256] [--epsilons 0.01 0.1 1]
    [--releases 20] [--output structure_first.png]

On the departures from New York City by the quarter-hour, or counts of your own (a .npy file such as those of DPBench), and on
histograms that are made up. Prints squared errors of sums by the size of their range: for several numbers of bins; for a tenth as
many bins as cells, chosen as the paper does or all at once, with sums or medians measured in them, or nodes inside; and for
methods that choose no bins, or find them in what was released. Then who is best, by these numbers. Every release is a real one,
with exact noise. The figure shows errors by the number of bins; the line is what theory says of as many bins as cells.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dpinfer as dpi
from dpinfer import methods
from dpinfer.datasets import HISTOGRAM_SHAPES, departures, read_histogram, synthetic_histogram
from dpinfer.evaluation import squared_error_by_range_size
from dpinfer.inference import noise_first, segmentation_average
from dpinfer.mechanisms import structure_first
from dpinfer.noise import stddev
from dpinfer.plots import ErrorSeries, range_error_figure, save
from dpinfer.queries import Identity

# Estimated cells, from private ones and epsilon.
Way = Callable[[np.ndarray, float], np.ndarray]
# By the name of the way: [releases, sizes], or [releases] of one size.
Errors = dict[str, np.ndarray]
NOISY_CELLS = "noisy cells"
WORDS = ("better than", "level with", "worse than")


def main() -> None:
    parser = argparse.ArgumentParser(description="Bins that are chosen privately (Xu et al. 2013, figures 6 to 13 and 15).")
    parser.add_argument("--data", type=Path, help="a .npy file of counts; left out, the departures of 2013")
    parser.add_argument("--shapes", nargs="*", choices=HISTOGRAM_SHAPES, default=["sparse", "smooth"])
    parser.add_argument("--cells", type=int, default=256, help="the first so many of the data")
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[0.01, 0.1, 1.0], help="the figure is of the one in the middle"
    )
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("structure_first.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    counts = departures().cells() if options.data is None else read_histogram(options.data)
    data = {"departures" if options.data is None else options.data.stem: counts[: options.cells]}
    n = next(iter(data.values())).size
    if n < 20:
        parser.error(f"a tenth of the cells must be at least 2 bins; there are {n} cells")
    data |= {shape: synthetic_histogram(shape, size=n) for shape in options.shapes}
    sizes = [size for size in (1, 4, 16, 64, 256, 1024, 4096) if size <= n]

    print(f"Mean squared errors of sums by the cells of their range, {options.releases} releases, +- standard errors.")
    cases, panels = {}, []
    by_number, chosen, others = numbers_of_bins(n), {}, without_private_bins(n)
    for title, truth in data.items():
        chosen = choices(truth)
        for epsilon in options.epsilons:
            case = f"{title}, epsilon = {epsilon:g}"
            print(f"{case}: {n:,} cells, {truth.sum():,} records")
            print(f"  {'':<27}" + "".join(f"{size:>24,}" for size in sizes))
            errors = cases[case] = {}
            for name, way in (by_number | chosen | others).items():
                estimates = (way(truth, epsilon) for _ in range(options.releases))
                errors[name] = np.array([squared_error_by_range_size(cells, truth, sizes) for cells in estimates])
                pairs = zip(*mean_and_spread(errors[name]), strict=True)
                print(f"  {name:<27}" + "".join(f"{f'{shown(mean)} +- {shown(spread, 2)}':>24}" for mean, spread in pairs))
            if epsilon == options.epsilons[len(options.epsilons) // 2]:
                # Of one bin the errors are so large that nothing else could be read.
                drawn = [name for name in by_number if name != "one bin"] + ["NoiseFirst"]
                variance = float(stddev("discrete_laplace", 1 / epsilon)) ** 2
                theory = {f"{n} bins": variance * np.array(sizes)}
                panels.append((case, [ErrorSeries(name, *mean_and_spread(errors[name]), theory.get(name)) for name in drawn]))

    print("The best of bins chosen privately, a tenth as many as cells or any number, against the best of the others;")
    print("better or worse by more than two standard errors.")
    wide = max(size for size in sizes if 4 * size <= n)
    for size in dict.fromkeys([1, wide]):
        print(f"Sums of {size} cells:" if size > 1 else "Cells:")
        place = sizes.index(size)
        at_size = {case: {name: found[:, place] for name, found in errors.items()} for case, errors in cases.items()}
        print_verdict(at_size, list(chosen), list(others))
    print("Geometric means of the errors over those of noisy cells, by the cells of a range:")
    print(f"  {'':<27}" + "".join(f"{size:>11,}" for size in sizes))
    for name in [*chosen, *others]:
        logs = [np.log(errors[name].mean(axis=0) / errors[NOISY_CELLS].mean(axis=0)) for errors in cases.values()]
        print(f"  {name:<27}" + "".join(f"{shown(ratio, 3):>11}" for ratio in np.exp(np.mean(logs, axis=0))))
    save(range_error_figure(sizes, panels, "records squared"), options.output)
    print(f"Figure: {options.output}")


def shown(number: float, digits: int = 4) -> str:
    return f"{number:,.0f}" if 10 ** (digits - 1) <= number < 1e7 else f"{number:.{digits}g}"


def numbers_of_bins(n: int) -> dict[str, Way]:
    """The paper's numbers, and any; there is but one way to make 1 or n bins."""
    names = {1: "one bin", n: f"{n} bins"}
    numbers = sorted({1, n // 15, n // 10, n // 5, n})
    ways: dict[str, Way] = {names.get(k, f"joint, {k} bins"): partial(of_bins, bins=k) for k in numbers}
    return ways | {"joint, any number": of_bins}


def choices(truth: np.ndarray) -> dict[str, Way]:
    """Bins that are chosen privately, a tenth as many as cells or any number; with half of the budget, or a twentieth."""
    n = truth.size
    joint = partial(of_bins, bins=n // 10)
    paper = partial(joint, selection="exponential")
    # The bound has to be public; in a study the truth is. Beyond the second one exact squares have no room.
    squares = partial(paper, cost="sse", max_count=min(1 << int(truth.max()).bit_length(), (2**31 - 1) // n))
    return {
        "paper's means, 1/20": partial(squares, structure_share=0.05),
        "paper's means": squares,
        "paper's medians": partial(paper, values="median"),
        "bins as for medians, means": paper,
        "noisy minimum": partial(joint, selection="noisy_min"),
        f"joint, {n // 10} bins": joint,
        "joint, 1/20": partial(joint, structure_share=0.05),
        "joint, medians": partial(joint, values="median"),
        "joint, two levels": partial(joint, inside="two_level"),
        "joint, tree": partial(joint, inside="tree"),
        "joint, any number": of_bins,
    }


def without_private_bins(n: int) -> dict[str, Way]:
    rivals = {
        "NoiseFirst": methods.Method("NoiseFirst", Identity(n), None, noise_first),
        "segmentation average": methods.Method("segmentation average", Identity(n), None, segmentation_average),
        "tree of 16 (H_16)": methods.consistent_tree(n, 16),
        NOISY_CELLS: methods.noisy_cells(n),
    }
    return {name: partial(of_method, method) for name, method in rivals.items()}


def of_bins(cells: np.ndarray, epsilon: float, *, structure_share: float | None = None, **how: Any) -> np.ndarray:
    structure = None if structure_share is None else structure_share * epsilon
    release = structure_first(cells, epsilon=epsilon, structure_epsilon=structure, **how)
    if release.inside == "flat":
        return release.cells
    # These are release.cells too, for which a program would be compiled for every new structure of bins. No node reaches over
    # two bins, but for the sum of everything, which is not measured.
    nodes = release.measurement
    weights = 1 / np.asarray(nodes.scale)
    rows, values = nodes.queries.dense() * weights[:, None], np.asarray(nodes.values) * weights
    blocks = ((block, block.any(axis=1)) for block in np.split(rows, release.stops[:-1], axis=1))
    return np.concatenate([np.linalg.lstsq(block[own], values[own])[0] for block, own in blocks])


def of_method(method: methods.Method, cells: np.ndarray, epsilon: float) -> np.ndarray:
    return np.asarray(method.estimate(method.measure(cells, epsilon=epsilon)).cells)


def mean_and_spread(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over releases, and the mean's standard error."""
    return errors.mean(axis=0), errors.std(axis=0, ddof=1) / np.sqrt(errors.shape[0])


def print_verdict(cases: dict[str, Errors], own: list[str], others: list[str]) -> None:
    """The best of the own ways against the best of the others, and against noisy cells; in every case, and how often."""
    tally = Counter()
    for case, errors in cases.items():
        best, rival = (min(names, key=lambda name: errors[name].mean()) for names in (own, others))
        words = {name: compared(errors[best], errors[name]) for name in (rival, NOISY_CELLS)}
        tally.update([("the best of the others", words[rival]), (NOISY_CELLS, words[NOISY_CELLS])])
        against = ", ".join(f"{word} {name} ({shown(errors[name].mean())})" for name, word in words.items())
        print(f"  {case}: {best} ({shown(errors[best].mean())}) {against}")
    for rival in ("the best of the others", NOISY_CELLS):
        print(f"  {rival}: " + ", ".join(f"{word} {tally[rival, word]}" for word in WORDS) + f" times of {len(cases)}")


def compared(errors: np.ndarray, others: np.ndarray) -> str:
    (mean, spread), (other, other_spread) = mean_and_spread(errors), mean_and_spread(others)
    gap = (other - mean) / np.hypot(spread, other_spread)
    return WORDS[0 if gap > 2 else 2 if gap < -2 else 1]


if __name__ == "__main__":
    main()
