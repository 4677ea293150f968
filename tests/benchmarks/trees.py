"""Tree least squares beside a numpy version of the same two passes and, where installed, OpenDP's post-processor.

python -m tests.benchmarks.trees [--rounds 9] [--processes 3]
"""

import argparse
import importlib.util
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpinfer as dp
from dpinfer.queries import Tree
from tests.benchmarks.timing import interleaved, machine, summary


def numpy_two_passes(values: np.ndarray, n: int, branching: int) -> np.ndarray:
    """Cells of a full tree with equal variances, root measured or not, by reshaped sums: what one would write by hand.

    ``values`` [..., nodes below the root], top level first.
    """
    sizes = [n]
    while sizes[0] > branching:
        sizes.insert(0, sizes[0] // branching)
    stops = np.cumsum(sizes)
    levels = [values[..., stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]
    up, sums = levels[-1], []
    for height, level in enumerate(reversed(levels[:-1]), start=2):
        sums.insert(0, up.reshape(*up.shape[:-1], -1, branching).sum(-1))
        weight = (branching**height - branching ** (height - 1)) / (branching**height - 1)
        up = weight * level + (1 - weight) * sums[0]
        levels[len(levels) - height] = up
    final = levels[0]
    for below, total in zip(levels[1:], sums, strict=True):
        share = ((final - total) / branching)[..., None]
        final = (below.reshape(*share.shape[:-1], branching) + share).reshape(below.shape)
    return final


def ragged_parents(level_sizes: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """The parents of a tree with levels of the given sizes whose families are as uneven as chance makes them."""
    start = np.cumsum((0, *level_sizes))
    levels = [start[depth] + np.sort(rng.integers(0, size, below)) for depth, (size, below) in enumerate(pairwise(level_sizes))]
    return np.concatenate([[-1], *levels])


def opendp_consistency(values: np.ndarray, branching: int) -> Callable[[], Any] | None:
    """OpenDP's consistent_b_ary_tree on the same values with a root in front, or None if it is not installed."""
    if importlib.util.find_spec("opendp") is None:
        return None
    from opendp.mod import enable_features  # pyright: ignore[reportMissingImports]
    from opendp.transformations import make_consistent_b_ary_tree  # pyright: ignore[reportMissingImports]

    enable_features("contrib")
    post = make_consistent_b_ary_tree(branching)
    with_root = [int(values[:branching].sum()), *values.astype(int).tolist()]
    return lambda: post(with_root)


def case(n: int, branching: int, batch: int | None, rounds: int) -> dict[str, list[float]]:
    """Seconds of every candidate on one problem, or on ``batch`` of them at once."""
    dp.enable_x64()
    tree = Tree.complete(n, branching)
    rows = tree.shape[0]
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1000, (batch, rows) if batch else rows).astype(float)
    device_values = jnp.asarray(values)

    def cells(v: jax.Array) -> Any:
        return dp.least_squares(dp.Measurement(tree, v, "laplace", jnp.asarray(1.0))).cells

    ours = jax.jit(jax.vmap(cells) if batch else cells)
    candidates: dict[str, Callable[[], Any]] = {
        "numpy, reshaped sums": lambda: numpy_two_passes(values, n, branching),
        "dpinfer, values": lambda: ours(device_values),
    }
    np.testing.assert_allclose(ours(device_values), numpy_two_passes(values, n, branching), atol=1e-9)
    if not batch:
        per_row = jnp.asarray(rng.uniform(1, 2, rows))
        everything = jax.jit(lambda v, s: dp.least_squares(dp.Measurement(tree, v, "laplace", s)))
        candidates["dpinfer, all variances, any scales"] = lambda: everything(device_values, per_row)
        ragged = Tree.from_parents(ragged_parents(tree.level_sizes, rng))
        nodes = jnp.asarray(rng.integers(0, 1000, ragged.num_nodes).astype(float))
        spread = jnp.asarray(rng.uniform(1, 2, ragged.num_nodes))
        candidates["dpinfer, all variances, ragged tree"] = lambda: dp.least_squares(
            dp.Measurement(ragged, nodes, "laplace", spread)
        )
        opendp = opendp_consistency(values, branching)
        if opendp is not None:
            candidates["OpenDP consistent_b_ary_tree"] = opendp
    return interleaved(candidates, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="in each process")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--leaves", type=int, default=2**20)
    parser.add_argument("--batch", type=int, default=1000)
    options = parser.parse_args()
    print(machine())
    # Fresh processes: what a large array leaves behind in the allocator changes the next measurement by half.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh:
        for branching in (2, 16):
            for n, batch in ((options.leaves, None), (4096, options.batch)):
                runs = [fresh.submit(case, n, branching, batch, options.rounds).result() for _ in range(options.processes)]
                pooled = {name: [x for run in runs for x in run[name]] for name in runs[0]}
                print(f"\n{batch or 1} x {n:,} leaves, b = {branching}")
                print(f"{'':36}{'median ms':>12}{'min ms':>10}{'x numpy':>10}{'by min':>9}")
                for name, median, least, ratio, by_min in summary(pooled, "numpy, reshaped sums"):
                    print(f"{name:36}{median:12.2f}{least:10.2f}{ratio:10.2f}{by_min:9.2f}")


if __name__ == "__main__":
    main()
