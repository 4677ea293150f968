"""Error of a sum by the size of its range: figure 6 of Hay, Rastogi, Miklau and Suciu 2010, with theory over the points.

python examples/range_errors.py [--data counts.npy] [--cells 4096] [--releases 10] [--output range_errors.png]

Noisy cells (L~), a binary tree with its root answered from the fewest nodes (H~), the same by least squares (H-bar), and that
with the paper's postprocessing, on the departures from New York City by the quarter-hour, or on counts of your own (a .npy file,
such as those of DPBench). Prints the mean squared errors; the figure shows them all.
"""

import argparse
from pathlib import Path

import jax
import numpy as np

import dpinfer as dpi
from dpinfer import methods
from dpinfer.accuracy import range_variance_by_size
from dpinfer.allocation import level_budgets
from dpinfer.evaluation import ranges_of_size, squared_error
from dpinfer.plots import ErrorSeries, range_error_figure, save

# At most so many ranges of each size are asked, evenly spaced.
RANGES = 300


def main() -> None:
    parser = argparse.ArgumentParser(description="Error of a sum by the size of its range (Hay et al. 2010, figure 6).")
    parser.add_argument("--data", type=Path, help="a .npy file of counts; left out, the departures of 2013")
    parser.add_argument("--cells", type=int, default=4096, help="the first so many of them")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.01, 0.1, 1.0, 2.0])
    parser.add_argument("--releases", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("range_errors.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    counts = dpi.datasets.departures().cells() if options.data is None else dpi.datasets.read_histogram(options.data)
    truth = counts[: options.cells].astype(float)
    n = truth.size
    sizes = [2**k for k in range(int(np.log2(n)) + 1)]

    ways = compared(n)
    found = {name: measured(method, truth, options.epsilons, sizes, options.releases) for name, method, _ in ways}
    panels = []
    for place, epsilon in enumerate(options.epsilons):
        series = []
        for name, _, expected in ways:
            errors = found[name][place]
            mean, spread = errors.mean(axis=0), errors.std(axis=0, ddof=1) / np.sqrt(options.releases)
            theory = None if expected is None else expected[np.array(sizes) - 1] / epsilon**2
            series.append(ErrorSeries(name, mean, spread, theory))
        panels.append((f"epsilon = {epsilon:g}", series))
        print(f"epsilon = {epsilon:g}: mean squared error of {options.releases} releases, in brackets what theory says")
        print(f"  {'range size':>10}" + "".join(f"{s.name:>34}" for s in series))
        for place, size in enumerate(sizes):
            line = f"  {size:>10,}"
            for s in series:
                theory = "" if s.expected is None else f" ({s.expected[place]:,.1f})"
                line += f"{f'{s.measured[place]:,.1f}{theory}':>34}"
            print(line)
    save(range_error_figure(sizes, panels, "records squared"), options.output)
    print(f"Figure: {options.output}")


def compared(n: int) -> list[tuple[str, methods.Method, np.ndarray | None]]:
    """Names, methods, and the exact average variance of each range size for epsilon = 1, [n]; None where there is no theory."""
    hay, consistent = methods.tree_of_fewest_nodes(n, 2), methods.consistent_tree(n, 2, root=True)
    zeroed = methods.consistent_tree(n, 2, root=True, nonnegative=True, rounded=True)
    budgets = level_budgets(n, 2, epsilon=1, root=True)
    return [
        ("noisy cells", methods.noisy_cells(n), 2 * np.arange(1.0, n + 1)),
        ("tree, fewest nodes", hay, range_variance_by_size(n, 2, budgets, root=True, consistent=False)),
        ("tree, least squares", consistent, range_variance_by_size(n, 2, budgets, root=True)),
        ("the same, zeroed and rounded", zeroed, None),
    ]


def measured(method: methods.Method, truth: np.ndarray, epsilons: list[float], sizes: list[int], releases: int) -> np.ndarray:
    """The mean squared error of the ranges of each size in simulated releases, [epsilons, releases, sizes]."""
    workloads = [ranges_of_size(truth.size, size, most=RANGES) for size in sizes]

    def one(epsilon: jax.Array, *, key: jax.Array) -> jax.Array:
        estimate = method.estimate(method.simulate(truth, epsilon=epsilon, key=key))
        errors = [squared_error(estimate.answer(w).values, w @ truth).mean() for w in workloads]
        return jax.numpy.stack(errors)

    found = dpi.map_problems(one, np.repeat(epsilons, releases), key=jax.random.key(7))
    return np.asarray(found).reshape(len(epsilons), releases, len(sizes))


if __name__ == "__main__":
    main()
