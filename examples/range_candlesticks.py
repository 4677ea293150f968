"""What absolute errors of random ranges are like, method beside method: figure 3 of Qardaji, Yang and Li 2013.

python examples/range_candlesticks.py [--data counts.npy] [--cells 4096] [--epsilons 0.1 1] [--releases 10] [--ranges 1000]
    [--output range_candlesticks.png]

On the departures from New York City by the quarter-hour, or on counts of your own (a .npy file such as those of DPBench; with
--cells its neighbouring cells are summed). Prints the quantiles beside the mean that theory expects, for errors that are normal.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dpinfer as dpi
from dpinfer import methods
from dpinfer.evaluation import absolute_error, candlesticks
from dpinfer.plots import Sticks, candlestick_figure, save
from dpinfer.queries import Ranges


def main() -> None:
    parser = argparse.ArgumentParser(description="Absolute errors of random ranges (Qardaji et al. 2013, figure 3).")
    parser.add_argument("--data", type=Path, help="a .npy file of counts; left out, the departures of 2013")
    parser.add_argument("--cells", type=int, default=4096)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--releases", type=int, default=10)
    parser.add_argument("--ranges", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=Path("range_candlesticks.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    n = options.cells
    if options.data is None:
        truth = dpi.datasets.departures().cells()[:n].astype(float)
    else:
        truth = dpi.datasets.read_histogram(options.data, n).astype(float)
    ranges = dpi.workloads.random_ranges(n, options.ranges, key=jax.random.key(3))
    compared = {
        "flat": methods.noisy_cells(n),
        "binary, fewest nodes": methods.tree_of_fewest_nodes(n, 2),
        "binary, least squares": methods.consistent_tree(n, 2, root=True),
        "quadtree (geometric)": methods.quadtree(n),
        "16-ary, least squares": methods.consistent_tree(n, 16),
        "recommended": methods.recommended(n),
    }
    if n & (n - 1) == 0:
        compared["wavelet"] = methods.privelet(n)
    epsilons = np.repeat(options.epsilons, options.releases)
    sticks: list[list[Sticks]] = [[] for _ in options.epsilons]
    for name, method in compared.items():
        key = jax.random.key(5)
        error = np.asarray(dpi.map_problems(partial(errors, method, truth, ranges), epsilons, key=key))
        # Of normal errors, for epsilon = 1: for another, in proportion.
        answers = method.estimate(method.simulate(truth, epsilon=1, key=key)).answer(ranges)
        mean = np.sqrt(2 / np.pi) * np.mean(answers.stddev)
        for panel, epsilon, own in zip(sticks, options.epsilons, np.split(error, len(options.epsilons)), strict=True):
            panel.append(Sticks(name, candlesticks(own.ravel())[0], float(mean / epsilon)))
    for epsilon, panel in zip(options.epsilons, sticks, strict=True):
        print(f"epsilon = {epsilon:g}: absolute error of {options.ranges} random ranges in {options.releases} releases (records)")
        print(f"{'':>24}{'25%':>10}{'median':>10}{'75%':>10}{'95%':>10}{'mean':>10}{'expected':>10}")
        for name, stick, expected in panel:
            numbers = (stick.lower_quartile, stick.median, stick.upper_quartile, stick.percentile_95, stick.mean, expected)
            print(f"{name:>24}" + "".join(f"{x:>10,.1f}" for x in numbers))
    panels = [(f"{n:,} cells, epsilon = {e:g}", panel) for e, panel in zip(options.epsilons, sticks, strict=True)]
    save(candlestick_figure(panels, "absolute error of a random range (records)"), options.output)
    print(f"Figure: {options.output}")


def errors(method: methods.Method, truth: np.ndarray, ranges: Ranges, epsilon: jax.Array, *, key: jax.Array) -> Any:
    """The absolute error of each range in one simulated release."""
    answers = method.estimate(method.simulate(truth, epsilon=epsilon, key=key)).answer(ranges)
    return absolute_error(answers.values, ranges @ truth)


if __name__ == "__main__":
    main()
