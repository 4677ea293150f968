"""Degree sequences of graphs: figures 4 and 5 of Hay, Rastogi, Miklau and Suciu 2010.

python examples/degree_sequences.py [--graph routes] [--epsilons 2 1 0.1] [--releases 40] [--output degree_sequences.png]

How far the noisy degrees (S~), the same sorted and rounded (S~_r) and their isotonic fit (S-bar) are off, and where along the
sequence. Neighbouring graphs differ by an edge, which counts at both of its ends. The graph is that of planes and the airports
they flew to ("routes", which ships), a .npy file with degrees of your own, or, where networkx is installed, one of its own:
"karate", "les_miserables", "florentine_families", "davis_southern_women".
"""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpinfer as dpi
from dpinfer.accuracy import sorted_counts_error
from dpinfer.evaluation import coverage
from dpinfer.inference import bootstrap, graphical_degree_sequence, unattributed_histogram
from dpinfer.plots import ErrorSeries, budget_error_figure, rank_figure, save
from dpinfer.queries import Identity

LEVEL = 0.9
METHODS = ("noisy", "sorted, rounded", "isotonic", "isotonic, graphical")


def main() -> None:
    parser = argparse.ArgumentParser(description="Degree sequences of graphs (Hay et al. 2010, figures 4 and 5).")
    parser.add_argument("--graph", default="routes", help="routes, a .npy file of degrees, or a graph of networkx")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 1.0, 0.1])
    parser.add_argument("--releases", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("degree_sequences.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    truth = np.sort(degrees_of(options.graph))
    lengths = np.unique(truth, return_counts=True)[1]
    print(f"{truth.size:,} nodes, {truth.sum() // 2:,} edges, {lengths.size:,} different degrees; neighbours differ by an edge.")
    print(f"Mean squared error a node in {options.releases} releases, divided by that of the noisy degrees that theory expects")
    print(f"{'epsilon':>10}" + "".join(f"{name:>21}" for name in (*METHODS, "at most", "coverage")))
    errors: dict[str, np.ndarray] = {}
    rows, spreads = [], []
    for epsilon in options.epsilons:
        errors, spread, covered = simulated(truth, epsilon, options.releases)
        theory = sorted_counts_error(lengths, epsilon=epsilon, unit="edge")
        mean = {name: error.mean() / theory.noisy * truth.size for name, error in errors.items()}
        numbers = [*mean.values(), theory.isotonic / theory.noisy, covered]
        print(f"{epsilon:>10g}" + "".join(f"{x:>21.4f}" for x in numbers))
        rows.append(numbers)
        spreads.append([x / theory.noisy for x in spread.values()])
    print("at most: of the isotonic fit before rounding.", end=" ")
    print(f"coverage: of {LEVEL:.0%} intervals by the bootstrap, mean over ranks and releases.")

    table, spread, nothing = np.array(rows), np.array(spreads), np.full(len(rows), np.nan)
    series = [ErrorSeries(name, table[:, i], spread[:, i], None) for i, name in enumerate(METHODS[:3])]
    series.append(ErrorSeries("isotonic at most, noisy exactly 1", nothing, nothing, table[:, len(METHODS)]))
    second = options.output.with_stem(options.output.stem + "_by_epsilon")
    title = f"{truth.size:,} nodes, {truth.sum() // 2:,} edges"
    save(budget_error_figure(options.epsilons, [(title, series)], "mean squared error, that of noisy degrees = 1"), second)

    epsilon = options.epsilons[-1]
    release = dpi.mechanisms.sorted_counts(truth, epsilon=epsilon, unit="edge")
    estimate = bootstrap(release, unattributed_histogram, key=jax.random.key(1), num_draws=200)
    answers = estimate.answer(Identity(truth.size))
    middle, lower, upper = (np.asarray(x) for x in (answers.values, *answers.interval(LEVEL)))
    shown = {name: errors[name] for name in METHODS[:3]}
    save(rank_figure(truth, shown, (middle, lower, upper), "degree", level=LEVEL), options.output)
    print(f"Figures: {second}, and at epsilon = {epsilon:g} {options.output}")


def degrees_of(graph: str) -> np.ndarray:
    if graph == "routes":
        table = dpi.datasets.plane_routes().table
        return np.concatenate([np.bincount(table["plane"]), np.bincount(table["airport"])])
    if graph.endswith(".npy"):
        return dpi.datasets.read_histogram(graph)
    if importlib.util.find_spec("networkx") is None:
        raise SystemExit(f"--graph {graph} needs networkx: pip install networkx")
    import networkx  # pyright: ignore[reportMissingImports,reportMissingModuleSource]

    name = "karate_club_graph" if graph == "karate" else f"{graph}_graph"
    return np.array([degree for _, degree in getattr(networkx, name)().degree()])


def simulated(truth: np.ndarray, epsilon: float, releases: int) -> tuple[dict[str, np.ndarray], dict[str, float], float]:
    """By method, the mean squared error at each rank and the standard error of its sum; how often the bootstrap covers."""

    def one(_: Any, *, key: jax.Array) -> Any:
        noise, again = jax.random.split(key)
        # Half of the budget for rows is what it takes to protect an edge.
        noisy = dpi.simulate(truth, Identity(truth.size), epsilon=epsilon / 2, noise="discrete_laplace", key=noise)
        found = jnp.stack(
            [jnp.asarray(noisy.values), *(unattributed_histogram(noisy, method=m).cells for m in ("sorted", "isotonic"))]
        )
        ends = bootstrap(noisy, unattributed_histogram, key=again, num_draws=60).answer(Identity(truth.size)).interval(LEVEL)
        return found, *ends

    found, lower, upper = map(np.asarray, dpi.map_problems(one, np.arange(releases), key=jax.random.key(0)))
    graphical = [graphical_degree_sequence(fit) for fit in found[:, 2]]
    squares = [np.square(values - truth) for values in (found[:, 0], found[:, 1], found[:, 2], np.array(graphical))]
    errors = {name: square.mean(axis=0) for name, square in zip(METHODS, squares, strict=True)}
    sums = [square.sum(axis=1).std(ddof=1) / releases**0.5 for square in squares]
    covered = float(coverage(lower, upper, np.broadcast_to(truth, lower.shape)))
    return errors, dict(zip(METHODS, sums, strict=True)), covered


if __name__ == "__main__":
    main()
