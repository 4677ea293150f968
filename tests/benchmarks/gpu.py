"""Each estimator's batch on the default device: problems a second, and how far the results are from those of the CPU.

python -m tests.benchmarks.gpu [--scale 1.0] [--rounds 5] [--minutes 8] [--markdown]

``--scale`` multiplies the number of problems (0.02 to try it on two CPU cores in a minute or two). Whatever does not fit into
``--minutes`` is left out and said so.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpinfer as dp
from dpinfer.inference import maximum_entropy, nonnegative_least_squares
from dpinfer.inference.iterative_estimate import solve_iteratively
from dpinfer.queries import Haar, Identity, Kronecker, Prefix, Ranges, Total, Tree, VStack
from tests.benchmarks.timing import machine


class Case(NamedTuple):
    name: str
    num_problems: int
    function: Callable[..., Any]
    problems: tuple[Any, ...]
    key: jax.Array | None = None


def batch(queries: Any, num: int, seed: int = 0) -> dp.Measurement:
    rng = np.random.default_rng(seed)
    cells = rng.poisson(3.0, (num, queries.shape[1])).astype(float)
    values = np.asarray(queries @ cells.T).T + 2 * rng.laplace(size=(num, queries.shape[0]))
    return dp.Measurement.batch(queries, values, "laplace", 2.0)


def cells_of(measurement: Any) -> Any:
    return dp.least_squares(measurement).cells


def cases(scale: float) -> Iterator[Case]:
    def number(most: int) -> int:
        return max(2, int(most * scale))

    n, side = 4096, 64
    marginals = VStack([Kronecker([Identity(side), Total(side)]), Kronecker([Total(side), Identity(side)])])
    for branching in (2, 16):
        many = number(10_000)
        yield Case(f"tree of {n:,}, b = {branching}", many, cells_of, (batch(Tree.complete(n, branching), many),))
    many = number(2_000)
    yield Case(
        f"tree of {n:,}, b = 16, 4,096 ranges and their stddev",
        many,
        lambda m: dp.least_squares(m).answer(Prefix(n)),
        (batch(Tree.complete(n, 16), many),),
    )
    yield Case(f"wavelet of {n:,}", number(10_000), cells_of, (batch(Haar(n), number(10_000)),))
    cube = VStack([Identity(n), marginals])
    yield Case(f"cells and marginals of {side} x {side}", number(10_000), cells_of, (batch(cube, number(10_000)),))
    small = VStack([Prefix(128), Ranges(128, np.arange(100), np.arange(20, 120))])
    yield Case("128 cells, factorised", number(500), cells_of, (batch(small, number(500)),))
    yield Case(
        "128 cells, conjugate gradients",
        number(500),
        lambda m: solve_iteratively(m.queries, m.values, m.stddev).cells,
        (batch(small, number(500)),),
    )
    many = number(100)
    yield Case(
        f"tree of {n:,}, non-negative", many, lambda m: nonnegative_least_squares(m).cells, (batch(Tree.complete(n, 16), many),)
    )
    yield Case(f"marginals of {side} x {side}, entropy", many, lambda m: maximum_entropy(m).cells, (batch(marginals, many),))

    def study(epsilon: Any, key: Any) -> Any:
        measurement = dp.simulate(jnp.zeros(n), Tree.complete(n, 16), epsilon=epsilon, key=key)
        return jnp.square(dp.least_squares(measurement).cells).mean()

    many = number(20_000)
    yield Case(f"tree of {n:,}, b = 16, simulated and estimated", many, study, (np.linspace(0.1, 1, many),), jax.random.key(0))


def away(function: Callable[..., Any], problems: Any, key: Any, found: Any, num: int) -> float:
    """The largest difference of the first results from the CPU's, over the largest of these."""

    def first(tree: Any) -> Any:
        return jax.tree.map(lambda x: x if isinstance(x, dp.queries.Queries) else x[:num], tree, is_leaf=is_queries)

    def is_queries(x: Any) -> bool:
        return isinstance(x, dp.queries.Queries)

    with jax.default_device(jax.devices("cpu")[0]):
        expected = dp.map_problems(function, *first(problems), key=key, devices=jax.devices("cpu")[:1])
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    return max(float(np.abs(a - b[:num]).max() / max(np.abs(a).max(), 1e-300)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    dp.enable_x64()
    begin = time.monotonic()
    print(machine())
    print(f"devices: {', '.join(sorted({d.device_kind for d in jax.devices()}))} x {jax.device_count()}, float64\n")
    row = "| {:52} | {:>9} | {:>12} | {:>12} | {:>14} | {:>9} |" if options.markdown else "{:54}{:>9}{:>14}{:>12}{:>14}{:>9}"
    print(row.format("case", "problems", "first call s", "median ms", "problems / s", "off CPU"))
    if options.markdown:
        print("|---|---|---|---|---|---|")
    for case in cases(options.scale):
        if time.monotonic() - begin > 60 * options.minutes * 0.85:
            print(row.format(case.name, case.num_problems, "left out:", "no time", "", ""))
            continue

        def run(case: Case = case) -> Any:
            return dp.map_problems(case.function, *case.problems, key=case.key)

        start = time.perf_counter()
        found = run()
        first = time.perf_counter() - start
        seconds = []
        for _ in range(options.rounds):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
            if time.monotonic() - begin > 60 * options.minutes * 0.85:
                break
        middle = statistics.median(seconds)
        off = away(case.function, case.problems, case.key, found, 2)
        shown = (
            case.name,
            case.num_problems,
            f"{first:.2f}",
            f"{1e3 * middle:,.1f}",
            f"{case.num_problems / middle:,.0f}",
            f"{off:.0e}",
        )
        print(row.format(*shown), flush=True)
    print(f"\n{time.monotonic() - begin:.0f} s in all; transfers from and to host memory are part of every time.")


if __name__ == "__main__":
    main()
