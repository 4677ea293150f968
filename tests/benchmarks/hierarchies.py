"""Errors of hierarchies and of strategies made for a workload, beside what one would take otherwise.

python -m tests.benchmarks.hierarchies [--cells 64 256] [--seed 0]

Exact mean squared errors for epsilon = 1. With ``pip install opendp`` also the branching that OpenDP chooses.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable

import jax
import numpy as np

import dpinfer as dp
from dpinfer.accuracy import best_branching, expected_error, range_variance, recommend
from dpinfer.allocation import Allocation, eigenvalue_strategy, level_budgets, optimize, p_identity
from dpinfer.queries import AllRange, Identity, Queries, Ranges, Tree
from tests.benchmarks.timing import interleaved, machine, summary


def branchings() -> None:
    print("\nAverage variance over all ranges, equal budgets, by the branching that is chosen")
    print(f"{'cells':>10}{'exact best b':>14}{'variance':>12}{'OpenDP b':>12}{'variance':>12}{'ratio':>8}{'optimal budgets':>18}")
    choose = None
    if importlib.util.find_spec("opendp") is not None:
        from opendp.mod import enable_features  # pyright: ignore[reportMissingImports]
        from opendp.transformations import choose_branching_factor as choose  # pyright: ignore[reportMissingImports]

        enable_features("contrib")
    for power in range(4, 21):
        n = 2**power
        ours = best_branching(n)
        least, best = of_tree(n, ours), recommend(n, epsilon=1).variance
        theirs = None if choose is None else int(choose(n))
        other = None if theirs is None else of_tree(n, theirs)
        columns = ["-", "-", "-"] if other is None else [f"{theirs}", f"{other:.1f}", f"{other / least:.2f}"]
        print(f"{n:>10,}{ours:>14}{least:>12.1f}{columns[0]:>12}{columns[1]:>12}{columns[2]:>8}{best:>18.1f}")


def of_tree(n: int, branching: int) -> float:
    return float(range_variance(n, branching, level_budgets(n, branching, epsilon=1)))


def strategies(name: str, workload: Queries, trees: list[Queries], seed: int) -> None:
    print(f"\n{name}: mean squared error for epsilon = 1 (seconds)")

    def show(what: str, run: Callable[[], float]) -> None:
        begin = time.perf_counter()
        error = run()
        print(f"  {what:60}{error:12.3f}{time.perf_counter() - begin:9.1f}")

    def of(strategy: Queries) -> float:
        return float(expected_error(workload, strategy, strategy.sensitivity()))

    def error(found: Allocation) -> float:
        return found.expected_error

    show("flat histogram", lambda: of(Identity(workload.shape[1])))
    for tree in trees:
        show(f"{tree!r}, equal budgets", lambda t=tree: of(t))
        show("  its levels (tables) optimised", lambda t=tree: error(optimize(workload, t, epsilon=1, tied="levels")))
        show("  its rows optimised", lambda t=tree: error(optimize(workload, t, epsilon=1)))
    show("p-identity", lambda: error(p_identity(workload, epsilon=1, key=jax.random.key(seed))))
    show("eigenvalue strategy", lambda: error(eigenvalue_strategy(workload, epsilon=1)))
    start = eigenvalue_strategy(workload, epsilon=1)
    show("  its rows optimised", lambda: error(optimize(workload, start.strategy, epsilon=1, start=start.row_weights)))


def speed() -> None:
    n = 2**20
    print("\nSeconds of the exact average at 2^20 cells, medians")
    split = {b: level_budgets(n, b, epsilon=1) for b in (2, 16, 12)}
    cases = {f"b = {b}": (lambda b=b: range_variance(n, b, split[b])) for b in split}
    for name, median, least, *_ in summary(interleaved(cases, 9), "b = 2"):
        print(f"  {name:24}{median:10.3f} ms (min {least:.3f})")
    budgets = jax.random.uniform(jax.random.key(0), (10_000, 10))
    many = jax.jit(jax.vmap(lambda e: range_variance(1024, 2, e)))
    one = {"10,000 budgets of (1024, 2) in one call": lambda: many(budgets)}
    for name, median, *_ in summary(interleaved(one, 9), next(iter(one))):
        print(f"  {name:44}{median:10.3f} ms")
    for what, run in {
        "best of 1,023 branchings at 2^20": lambda: best_branching(n),
        "optimal budgets of (1024, 2), compiling included": lambda: level_budgets(1024, 2, epsilon=1, method="optimal"),
        "optimal budgets of (2^20, 2), compiling included": lambda: level_budgets(n, 2, epsilon=1, method="optimal"),
    }.items():
        begin = time.perf_counter()
        run()
        print(f"  {what:52}{time.perf_counter() - begin:6.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--cells", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dp.enable_x64()
    print(machine())
    speed()
    branchings()
    rng = np.random.default_rng(options.seed)
    for n in options.cells:
        trees: list[Queries] = [Tree.complete(n, 2), Tree.complete(n, best_branching(n))]
        strategies(f"All ranges of {n} cells", AllRange(n), trees, options.seed)
        starts = rng.integers(0, n, 200)
        stops = starts + 1 + rng.integers(0, n - starts)
        strategies(f"200 random ranges of {n} cells", Ranges(n, starts, stops), trees, options.seed)
    domain = dp.Domain({name: dp.Axis.integers(0, size) for name, size in {"a": 8, "b": 6, "c": 4}.items()})
    two_way = [["a", "b"], ["a", "c"], ["b", "c"]]
    every = dp.workloads.marginals(domain, *two_way, ["a"], ["b"], ["c"], [])
    wanted = dp.workloads.marginals(domain, *two_way)
    strategies("Two-way marginals of 8 x 6 x 4", wanted, [wanted, every], options.seed)


if __name__ == "__main__":
    main()
