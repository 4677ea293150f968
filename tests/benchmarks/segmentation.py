"""Histograms of few bins beside the peers: python -m tests.benchmarks.segmentation [--rounds 9]

Steps of 40 cells on average with Laplace noise of scale 10; needs ruptures (KernelCPD, whose search is in C) and numba (pruned
and all-candidates loops, compiled): pip install ruptures numba. Every result is first compared with the others by its cost.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numba  # pyright: ignore[reportMissingImports]
import numpy as np
import ruptures  # pyright: ignore[reportMissingImports]

import dpinfer as dp
from dpinfer.inference import penalized_v_optimal, segmentation_average, v_optimal
from dpinfer.inference.segment_deviations import deviations
from dpinfer.mechanisms import structure_first
from tests.benchmarks.timing import interleaved, machine, summary

PENALTY = 400.0


def noisy_steps(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    step = np.cumsum(rng.random(n) < 1 / 40)
    return rng.integers(0, 200, n)[step] + rng.laplace(0, 10, n)


@numba.njit
def compiled_pelt(values: np.ndarray, penalty: float) -> float:
    n = values.size
    sums, squares, best = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    for i in range(n):
        sums[i + 1], squares[i + 1] = sums[i] + values[i], squares[i] + values[i] ** 2
    cuts, costs, count = np.zeros(n + 1, np.int64), np.zeros(n + 1), 0
    for i in range(1, n + 1):
        cuts[count] = i - 1
        count += 1
        low = np.inf
        for at in range(count):
            j = cuts[at]
            total = sums[i] - sums[j]
            costs[at] = best[j] + squares[i] - squares[j] - total * total / (i - j)
            low = min(low, costs[at])
        best[i] = low + penalty
        kept = 0
        for at in range(count):
            if costs[at] < best[i]:
                cuts[kept] = cuts[at]
                kept += 1
        count = kept
    return best[n]


@numba.njit
def compiled_rows(values: np.ndarray, bins: int) -> float:
    """All candidates for every cell and number of bins."""
    n = values.size
    sums, squares = np.zeros(n + 1), np.zeros(n + 1)
    for i in range(n):
        sums[i + 1], squares[i + 1] = sums[i] + values[i], squares[i] + values[i] ** 2
    before = np.full(n + 1, np.inf)
    before[0] = 0.0
    for _ in range(bins):
        costs = np.full(n + 1, np.inf)
        for i in range(1, n + 1):
            low = np.inf
            for j in range(i):
                total = sums[i] - sums[j]
                low = min(low, before[j] + squares[i] - squares[j] - total * total / (i - j))
            costs[i] = low
        before = costs
    return before[n]


def kernel_cpd(values: np.ndarray, **options: Any) -> Any:
    return ruptures.KernelCPD(kernel="linear", min_size=1, jump=1).fit(values).predict(**options)


def cost_of(values: np.ndarray, stops: Any) -> float:
    return float(sum(((x - x.mean()) ** 2).sum() for x in np.split(values, np.asarray(stops)[:-1])))


def average(measurement: dp.Measurement, statistic: str) -> jax.Array:
    return segmentation_average(measurement, statistic=statistic).cells


def show(title: str, candidates: dict[str, Callable[[], Any]], base: str, rounds: int) -> None:
    print(f"\n{title}")
    print(f"{'':52}{'median ms':>12}{'min ms':>10}{'x base':>10}{'by min':>9}")
    for name, median, least, ratio, by_min in summary(interleaved(candidates, rounds), base):
        print(f"{name:52}{median:12.3f}{least:10.3f}{ratio:10.2f}{by_min:9.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    dp.enable_x64()
    print(machine())
    for n in (1024, 4096, 65_536):
        values = noisy_steps(n)
        fit = penalized_v_optimal(values, PENALTY)
        found = float(fit.cost) + PENALTY * int(fit.num_bins)
        np.testing.assert_allclose(compiled_pelt(values, PENALTY), found, rtol=1e-9)
        ways: dict[str, Callable[[], Any]] = {"PELT compiled by numba": partial(compiled_pelt, values, PENALTY)}
        if n < 10_000:
            stops = kernel_cpd(values, pen=PENALTY)
            np.testing.assert_allclose(cost_of(values, stops) + PENALTY * len(stops), found, rtol=1e-9)
            ways = {"ruptures KernelCPD": partial(kernel_cpd, values, pen=PENALTY)} | ways
        on_device = jax.device_put(values)
        ways |= {"dpinfer": partial(penalized_v_optimal, on_device, PENALTY)}
        for name, other in (("constant", np.zeros(n)), ("alternating", np.arange(n) % 2.0)):
            ways |= {f"dpinfer, {name} cells": partial(penalized_v_optimal, jax.device_put(other), PENALTY)}
        show(f"A price a bin, {n:,} cells ({int(fit.num_bins)} bins)", ways, next(iter(ways)), options.rounds)
    for n, bins in ((1024, 100), (4096, 410)):
        values = noisy_steps(n)
        fit = v_optimal(values, bins)
        np.testing.assert_allclose(compiled_rows(values, bins), float(fit.cost), rtol=1e-9)
        np.testing.assert_allclose(cost_of(values, kernel_cpd(values, n_bkps=bins - 1)), float(fit.cost), rtol=1e-9)
        show(
            f"{bins} bins of {n:,} cells",
            {
                "all candidates, compiled by numba": partial(compiled_rows, values, bins),
                "ruptures KernelCPD": partial(kernel_cpd, values, n_bkps=bins - 1),
                "dpinfer": partial(v_optimal, jax.device_put(values), bins),
            },
            "dpinfer",
            min(options.rounds, 3),
        )
    values = jax.device_put(noisy_steps(4096))
    every = jax.jit(lambda x: deviations(x, None).costs)
    show(
        "Absolute deviations, 4,096 cells",
        {
            "cost of every bin": partial(every, values),
            "410 bins": partial(v_optimal, values, 410, cost="sae"),
            "a price a bin": partial(penalized_v_optimal, values, 30.0, cost="sae"),
        },
        "cost of every bin",
        min(options.rounds, 3),
    )
    for statistic in ("mean", "median"):
        noisy = [dp.Measurement(dp.queries.Identity(n), noisy_steps(n), "laplace", 10.0) for n in (1024, 4096)]
        averages = {
            f"average over all segmentations, {m.values.size:,} cells": partial(average, m, statistic=statistic) for m in noisy
        }
        show(f"{statistic}s", averages, next(iter(averages)), min(options.rounds, 3))
    cells = np.maximum(noisy_steps(4096), 0).astype(int)
    choose = partial(structure_first, cells, epsilon=1)
    show(
        "Bins chosen privately, 4,096 cells, absolute deviations",
        {
            "v_optimal, 410 bins": partial(v_optimal, cells.astype(float), 410, cost="sae"),
            "one boundary after the other, 410 bins": partial(choose, 410, selection="noisy_min"),
            "all at once, any number of bins": choose,
            "all at once, 410 bins": partial(choose, 410),
        },
        "v_optimal, 410 bins",
        min(options.rounds, 3),
    )
    rows = jax.device_put(np.stack([noisy_steps(1024, seed) for seed in range(1000)]))
    batch = jax.jit(jax.vmap(lambda x: penalized_v_optimal(x, PENALTY).values))
    show(
        "A price a bin, 1,000 x 1,024 cells",
        {
            "ruptures KernelCPD, a loop": lambda: [kernel_cpd(row, pen=PENALTY) for row in np.asarray(rows)],
            "dpinfer, vmap": partial(batch, rows),
        },
        "ruptures KernelCPD, a loop",
        min(options.rounds, 5),
    )


if __name__ == "__main__":
    main()
