"""Laws of noise sums and exact intervals beside what one would write by hand in numpy and scipy.

python -m tests.benchmarks.laws [--rounds 9]
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

import dpinfer as dp
from dpinfer.inference.condense import tail_quantile
from dpinfer.noise import LaplaceSum
from dpinfer.queries import Ranges, Tree
from tests.benchmarks.timing import interleaved, machine, summary


def log_density_by_logsumexp(z: np.ndarray, n: int) -> np.ndarray:
    """The finite sum of positive terms, in logarithms: sum_k C(2n-2-k, n-1) 2^-(2n-1-k) u^k / k!."""
    k = np.arange(n)[:, None]
    weights = special.gammaln(2 * n - 1 - k) - special.gammaln(n) - special.gammaln(n - k) - (2 * n - 1 - k) * np.log(2)
    return special.logsumexp(weights + special.xlogy(k, np.abs(z)) - special.gammaln(k + 1), axis=0) - np.abs(z)


def half_widths_by_fourier(scales: np.ndarray, level: float) -> np.ndarray:
    """Inversion of the characteristic function on the real axis, row by row: good to some 1e-10 at such levels, not in tails."""
    found = []
    for row in scales:
        stddev = np.sqrt(2 * np.square(row).sum())
        t = np.arange(1, 401) * 0.1 / stddev
        phi = np.exp(-np.log1p(np.square(row[:, None] * t)).sum(axis=0)) / t
        low, high = 0.0, 12 * stddev
        for _ in range(50):
            x = (low + high) / 2
            covered = 0.1 / stddev / np.pi * (x + 2 * (phi * np.sin(t * x)).sum())
            low, high = (x, high) if covered < level else (low, x)
        found.append(high)
    return np.array(found)


def show(title: str, candidates: dict[str, Callable[[], Any]], rounds: int) -> None:
    print(f"\n{title}\n{'':44}{'median ms':>12}{'min ms':>10}{'ratio':>8}")
    first = next(iter(candidates))
    for name, median, least, ratio, _ in summary(interleaved(candidates, rounds), first):
        print(f"{name:44}{median:12.2f}{least:10.2f}{ratio:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    dp.enable_x64()
    print(machine())
    rng = np.random.default_rng(0)

    z = np.linspace(-60, 60, 4096)
    equal = jax.jit(lambda x: LaplaceSum(np.ones(20)).log_prob(x))
    points = jnp.asarray(z)
    np.testing.assert_allclose(equal(points), log_density_by_logsumexp(z, 20), rtol=1e-11)
    show(
        "log density at 4,096 points, 20 equal terms",
        {"scipy logsumexp": lambda: log_density_by_logsumexp(z, 20), "dpinfer": lambda: equal(points)},
        rounds,
    )

    scales = rng.uniform(0.1, 1, (1000, 500))
    on_device, log_tail = jnp.asarray(scales), jnp.full(1000, np.log(0.025))
    direct = jax.jit(lambda s, p: LaplaceSum(s).icdf(1 - jnp.exp(p)))
    np.testing.assert_allclose(half_widths_by_fourier(scales[:20], 0.95), direct(on_device, log_tail)[:20], rtol=1e-7)
    show(
        "1,000 exact 95% intervals of 500 distinct coefficients each",
        {
            "numpy, Fourier on the real axis": lambda: half_widths_by_fourier(scales, 0.95),
            "dpinfer, every term (LaplaceSum.icdf)": lambda: direct(on_device, log_tail),
            "dpinfer, condensed (as intervals do)": lambda: tail_quantile(scales, np.log(0.025)),
        },
        max(3, rounds // 3),
    )

    tree = Tree.complete(4096, 2)
    starts, stops = np.sort(rng.integers(0, 4097, (2, 1000)), axis=0)
    workload = Ranges(4096, starts, stops)
    candidates = {}
    for noise in ("laplace", "discrete_laplace"):
        answers = dp.least_squares(dp.simulate(np.zeros(4096), tree, epsilon=1.0, noise=noise, key=jax.random.key(0))).answer(
            workload
        )
        if noise == "laplace":
            candidates["dpinfer, normal"] = lambda a=answers: a.interval(method="normal")
        candidates[f"dpinfer, exact, {noise}"] = lambda a=answers: a.interval(method="exact")
    show("95% intervals of 1,000 ranges on a tree of 4,096 leaves", candidates, max(3, rounds // 3))


if __name__ == "__main__":
    main()
