"""Monotone fits beside scipy's, a heap written with heapq, and a linear program.

python -m tests.benchmarks.isotonic [--rounds 9] [--largest 10000000]
"""

import argparse
import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from scipy.optimize import isotonic_regression as scipy_fit
from scipy.optimize import linprog
from scipy.sparse import diags_array, eye_array, hstack

import dpinfer as dp
from dpinfer.inference import isotonic_regression
from tests.benchmarks.timing import interleaved, machine, summary


def noisy_sorted_counts(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(np.minimum(rng.zipf(1.5, n), 10**5)).astype(float) + rng.laplace(0, 20, n)


def heapq_slope_trick(values: np.ndarray) -> np.ndarray:
    """The lowest of the best fits in absolute deviations, with the standard library's heap."""
    heap: list[float] = []
    tops = np.empty(values.size)
    for i, value in enumerate(values.tolist()):
        heapq.heappush(heap, -value)
        if -heap[0] > value:
            heapq.heapreplace(heap, -value)
        tops[i] = -heap[0]
    return np.minimum.accumulate(tops[::-1])[::-1]


def linear_program(values: np.ndarray) -> np.ndarray:
    n = values.size
    one = eye_array(n)
    deviations = hstack([one, -one, one])  # x - over + under = y
    order = hstack([diags_array([1.0, -1.0], offsets=[0, 1], shape=(n - 1, n)), diags_array([0.0], shape=(n - 1, 2 * n))])  # pyright: ignore
    cost, bounds = np.repeat([0.0, 1.0, 1.0], n), [(None, None)] * n + [(0, None)] * (2 * n)
    return linprog(cost, A_ub=order, b_ub=np.zeros(n - 1), A_eq=deviations, b_eq=values, bounds=bounds).x[:n]


def show(title: str, candidates: dict[str, Callable[[], Any]], base: str, rounds: int) -> None:
    print(f"\n{title}")
    print(f"{'':44}{'median ms':>12}{'min ms':>10}{'x base':>10}{'by min':>9}")
    for name, median, least, ratio, by_min in summary(interleaved(candidates, rounds), base):
        print(f"{name:44}{median:12.3f}{least:10.3f}{ratio:10.2f}{by_min:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--segments", type=int, default=3000, help="of 20,000 integers each")
    options = parser.parse_args()
    dp.enable_x64()
    print(machine())
    fit = jax.jit(lambda v: isotonic_regression(v).values)
    fit_and_pull = jax.jit(lambda v, c: (lambda f: (f[0], f[1](c)[0]))(jax.vjp(lambda x: isotonic_regression(x).values, v)))
    for n in (10**4, 10**5, 10**6, 10**7):
        if n > options.largest:
            continue
        values = noisy_sorted_counts(n)
        given = jax.device_put(values)
        np.testing.assert_allclose(fit(given), scipy_fit(values).x, atol=1e-12 * values.max())
        candidates: dict[str, Callable[[], Any]] = {
            "scipy isotonic_regression": lambda values=values: scipy_fit(values).x,
            "dpinfer": lambda given=given: fit(given),
            "dpinfer, fit and vjp": lambda given=given: fit_and_pull(given, given),
        }
        show(f"squares, one vector of {n:,}", candidates, "scipy isotonic_regression", options.rounds)

    rows = np.stack([noisy_sorted_counts(4096, seed) for seed in range(1000)])
    given = jax.device_put(rows)
    halves = [jax.device_put(rows[:500]), jax.device_put(rows[500:])]
    many = jax.jit(jax.vmap(lambda v: isotonic_regression(v).values))
    mapped = jax.jit(lambda v: jax.lax.map(lambda x: isotonic_regression(x).values, v))
    with ThreadPoolExecutor(2) as pool:
        candidates = {
            "scipy, a loop": lambda: [scipy_fit(row).x for row in rows],
            "dpinfer, vmap": lambda: many(given),
            "dpinfer, lax.map": lambda: mapped(given),
            "dpinfer, vmap of halves on two threads": lambda: list(pool.map(lambda x: many(x).block_until_ready(), halves)),
        }
        show("squares, 1,000 x 4,096", candidates, "scipy, a loop", options.rounds)

    values = noisy_sorted_counts(10**5)
    given = jax.device_put(values)
    deviations = {s: jax.jit(lambda v, s=s: isotonic_regression(v, norm="l1", solution=s).values) for s in ("lower", "mid")}
    np.testing.assert_array_equal(deviations["lower"](given), heapq_slope_trick(values))
    candidates = {
        "heapq slope trick (lower)": lambda: heapq_slope_trick(values),
        "dpinfer, lower": lambda: deviations["lower"](given),
        "dpinfer, mid": lambda: deviations["mid"](given),
    }
    show("absolute deviations, one vector of 100,000", candidates, "heapq slope trick (lower)", options.rounds)
    candidates = {"HiGHS": lambda: linear_program(values), "dpinfer, mid": lambda: deviations["mid"](given)}
    show("absolute deviations, one vector of 100,000, beside a linear program", candidates, "HiGHS", 2)

    if options.segments:
        counts = np.tile(np.round(noisy_sorted_counts(20_000)).astype(np.int64), options.segments)
        ids = np.repeat(np.arange(options.segments), 20_000)
        both = jax.jit(lambda v, s: isotonic_regression(v, norm="l1", segments=s).values)
        given = jax.device_put(counts), jax.device_put(ids)
        show(
            f"absolute deviations, {options.segments:,} x 20,000 integers in one call",
            {"dpinfer": lambda: both(*given)},
            "dpinfer",
            2,
        )


if __name__ == "__main__":
    main()
