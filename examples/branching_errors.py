"""Error of a sum by the branching of the tree and the split of its budget: figures 2 and 4 of Qardaji, Yang and Li 2013.

python examples/branching_errors.py [--data counts.npy] [--shapes 1024 64x64 16x16x16] [--epsilon 1] [--releases 20]
    [--ranges 2000] [--output branching_errors.png]

Trees whose nodes are split along all axes at once, by least squares, with equal, geometric and optimal budgets, beside the flat
histogram. Points are measured, by random ranges or boxes in simulated releases; lines are exact, over all of them. The counts are
the departures from New York City by the quarter-hour, folded to the shape, or your own (a .npy file such as those of DPBench, its
neighbouring cells summed to the shape). The error is the same for all counts: it is a matter of the noise alone.
"""

import argparse
from pathlib import Path

import jax
import numpy as np

import dpinfer as dpi
from dpinfer.accuracy import range_variance
from dpinfer.allocation import level_budgets
from dpinfer.evaluation import simulate_error
from dpinfer.plots import ErrorSeries, branching_error_figure, save
from dpinfer.queries import Identity, Tree
from dpinfer.workloads import random_boxes, random_ranges

BRANCHINGS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
SPLITS = ("equal", "geometric", "optimal")


def main() -> None:
    parser = argparse.ArgumentParser(description="Error of a sum by branching (Qardaji et al. 2013, figures 2 and 4).")
    parser.add_argument("--data", type=Path, help="a .npy file of counts; left out, the departures of 2013")
    parser.add_argument("--shapes", nargs="+", default=["1024", "64x64", "16x16x16"], help="cells along each axis, such as 32x32")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--ranges", type=int, default=2000, help="random ranges, or boxes, that are asked")
    parser.add_argument("--output", type=Path, default=Path("branching_errors.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    panels = []
    for text in options.shapes:
        shape = tuple(map(int, text.split("x")))
        truth = counts_of(options.data, shape)
        branchings = [b for b in BRANCHINGS if b < max(shape)]
        series = errors(shape, truth, branchings, options)
        panels.append((f"{text} cells, epsilon = {options.epsilon:g}", branchings, series))
        print(f"{text} cells: mean squared error of {options.releases} releases, in brackets what theory says of all ranges")
        print(f"{'branching':>12}" + "".join(f"{one.name:>30}" for one in series))
        for place, branching in enumerate(branchings):
            numbers = [(one.measured[place], np.asarray(one.expected)[place]) for one in series]
            cells = ["" if np.isnan(mean) else f"{mean:,.2f} ({theory:,.2f})" for mean, theory in numbers]
            print(f"{branching:>12}" + "".join(f"{cell:>30}" for cell in cells))
    save(branching_error_figure(panels, "records squared"), options.output)
    print(f"Figure: {options.output}")


def counts_of(path: Path | None, shape: tuple[int, ...]) -> np.ndarray:
    if path is None:
        return dpi.datasets.departures().cells()[: int(np.prod(shape))]
    return dpi.datasets.read_histogram(path, shape)


def errors(shape: tuple[int, ...], truth: np.ndarray, branchings: list[int], options: argparse.Namespace) -> list[ErrorSeries]:
    """The flat histogram, and trees with each split of the budget, over the branchings."""
    n, key = truth.size, jax.random.key(11)
    given = {"key": key, "num_draws": options.releases}
    ranges = random_ranges(n, options.ranges, key=key) if len(shape) == 1 else random_boxes(shape, options.ranges, key=key)
    flat = simulate_error(Identity(n), dpi.least_squares, truth, ranges, epsilon=options.epsilon, **given)
    # The same for every branching: one point will do.
    mean, spread = (np.append(np.full(len(branchings) - 1, np.nan), x) for x in (flat.squared_error, flat.standard_error))
    series = [ErrorSeries("flat", mean, spread, np.full(len(branchings), range_variance(shape, max(shape), [options.epsilon])))]
    found = []
    for branching in branchings:
        tree = Tree.complete(n, branching) if len(shape) == 1 else Tree.grid(shape, branching)
        budgets = np.stack([level_budgets(shape, branching, epsilon=options.epsilon, method=split) for split in SPLITS])
        measured = simulate_error(tree, dpi.least_squares, truth, ranges, level_epsilons=budgets, **given)
        theory = [range_variance(shape, branching, split) for split in budgets]
        found.append([measured.squared_error, measured.standard_error, theory])
    for split, (mean, spread, theory) in zip(SPLITS, np.array(found).transpose(2, 1, 0), strict=True):
        series.append(ErrorSeries(f"tree, {split} budgets", mean, spread, theory))
    return series


if __name__ == "__main__":
    main()
