"""Posteriors of cells and ranges, fitted to a whole noisy histogram: seconds, compiled beforehand.

python -m tests.benchmarks.empirical_bayes [--rounds 5] [--cells 4096 65536]
"""

import argparse
import statistics
from functools import partial

import jax
import numpy as np

import dpinfer as dp
from dpinfer.inference import cell_posterior, range_posterior, tree_posterior
from tests.benchmarks.timing import interleaved, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", type=int, nargs="+", default=[4096, 65536])
    parser.add_argument("--batch", type=int, default=8, help="histograms of 4,096 cells in one vmap")
    arguments = parser.parse_args()
    dp.enable_x64()
    print(machine())
    for n in arguments.cells:
        cells = dp.datasets.synthetic_histogram("bursty", size=n, total=25 * n)
        tree = dp.methods.empirical_tree(n)
        noisy, nodes = noisy_of(n, 0), tree.simulate(cells, epsilon=0.1, key=jax.random.key(0), noise="discrete_laplace")
        candidates = {
            f"cell_posterior, {prior}": partial(cell_posterior, noisy, prior)
            for prior in ("independent", "segments", "walk", "stacked")
        }
        candidates |= {f"range_posterior, {method}": partial(range_posterior, nodes, method) for method in ("combined", "tilted")}
        show(f"{n:,} cells", candidates, arguments.rounds if n < 20_000 else 1)
    values = np.stack([np.asarray(noisy_of(4096, seed).values) for seed in range(arguments.batch)])
    batch = dp.Measurement.batch(dp.queries.Identity(4096), values, "discrete_laplace", 10.0)
    walk = jax.jit(jax.vmap(lambda m: cell_posterior(m, "walk").cells))
    show(f"{arguments.batch} x 4,096 cells, one vmap", {"cell_posterior, walk": lambda: walk(batch)}, arguments.rounds)
    tree = dp.queries.Tree.complete(4096, 16, root=True)
    cells = dp.datasets.synthetic_histogram("bursty", size=4096, total=100_000)
    nodes = dp.simulate(cells, tree, epsilon=0.4, noise="discrete_laplace", key=jax.random.key(1))
    concrete = dp.Measurement(tree, np.asarray(nodes.values), nodes.noise, np.asarray(nodes.scale))
    show("tree of 4,096 leaves, branching 16", {"tree_posterior": lambda: tree_posterior(concrete).mean}, arguments.rounds)


def noisy_of(n: int, seed: int) -> dp.Measurement:
    cells = dp.datasets.synthetic_histogram("bursty", size=n, total=25 * n, seed=seed)
    return dp.simulate(cells, dp.queries.Identity(n), epsilon=0.1, noise="discrete_laplace", key=jax.random.key(seed))


def show(title: str, candidates: dict, rounds: int) -> None:
    for name, seconds in interleaved(candidates, rounds).items():
        print(f"{title}: {name} {statistics.median(seconds):.2f} s")


if __name__ == "__main__":
    main()
