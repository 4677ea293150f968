"""How often intervals for histograms of few bins hold the truth: python -m tests.benchmarks.few_bins_coverage

Shares of cells, and of the sums of 16 neighbouring ones, inside their intervals of 90%: of the bootstrap of noise_first, and of
draws of segmentations, in simulated releases with Laplace noise.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import dpinfer as dpi
from dpinfer.evaluation import coverage, ranges_of_size
from dpinfer.inference import bootstrap, noise_first, segmentation_draws

CELLS, RELEASES, DRAWS = 512, 10, 100


def truths() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    departures = np.maximum(dpi.datasets.departures().cells(), 0)[:CELLS].astype(float)
    return {
        "16 levels": np.repeat(rng.integers(0, 200, 16), CELLS // 16).astype(float),
        "a smooth hump": np.round(200 * np.exp(-(((np.arange(CELLS) - 200) / 80) ** 2))),
        "departures": departures,
    }


def main() -> None:
    dpi.enable_x64()
    queries = [dpi.queries.Identity(CELLS), ranges_of_size(CELLS, 16)]

    def bootstrapped(measurement, key):
        return bootstrap(measurement, noise_first, key=key, num_draws=DRAWS)

    def of_means(measurement, key):
        return segmentation_draws(measurement, key=key, num_draws=DRAWS)

    def of_medians(measurement, key):
        return segmentation_draws(measurement, statistic="median", key=key, num_draws=DRAWS)

    ways = {"bootstrap of noise_first": bootstrapped, "segmentations, means": of_means, "segmentations, medians": of_medians}
    print(f"{RELEASES} releases of {CELLS} cells: cells / sums of 16 inside intervals of 90%")
    print(f"{'':16}{'epsilon':>8}" + "".join(f"{name:>28}" for name in ways))
    for name, truth in truths().items():
        for epsilon in (0.01, 0.1, 1.0):

            def inside(key, find, truth=truth, epsilon=epsilon):
                noise_key, own_key = jax.random.split(key)
                noisy = dpi.simulate(truth, dpi.queries.Identity(CELLS), epsilon=epsilon, key=noise_key)
                found = find(noisy, own_key)
                shares = []
                for query in queries:
                    lower, upper = found.answer(query).interval(0.9)
                    shares.append(coverage(lower, upper, query @ truth))
                return jnp.stack(shares)

            keys = jax.random.split(jax.random.key(1), RELEASES)
            shares = [np.asarray(jax.jit(jax.vmap(partial(inside, find=f)))(keys)).mean(axis=0) for f in ways.values()]
            print(f"{name:16}{epsilon:>8g}" + "".join(f"{f'{cells:.0%} / {sums:.0%}':>28}" for cells, sums in shares), flush=True)


if __name__ == "__main__":
    main()
