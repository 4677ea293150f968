"""Posteriors under numpyro models: the likelihood beside the queries' own products, many fits in one call, large histograms.

python -m tests.benchmarks.model_posteriors [--rounds 15] [--parts likelihood batch nuts svi]
"""

import argparse
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import dpinfer as dp
from dpinfer import models
from dpinfer.inference.posterior_methods.observed import observed
from dpinfer.queries import Identity, Prefix, Tree
from tests.benchmarks.timing import interleaved, machine, summary

PARTS = ("likelihood", "batch", "nuts", "svi")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    dp.enable_x64()
    print(machine())
    for part in arguments.parts:
        {"likelihood": lambda: likelihood(arguments.rounds), "batch": batch, "nuts": nuts, "svi": svi}[part]()


def likelihood(rounds: int) -> None:
    """Log likelihood and its gradient at 65,536 cells, in units of one product with the queries and one with their transpose."""
    n = 1 << 16
    for strategy in (Identity(n), Prefix(n), Tree.complete(n, 2), Tree.complete(n, 16)):
        for noise in ("laplace", "gaussian"):
            measurement = dp.Measurement(strategy, np.zeros(strategy.shape[0]), noise, 10.0)
            given = observed(measurement)
            value_and_grad = jax.jit(lambda cells, o: jax.value_and_grad(o.log_likelihood)(cells))
            products = jax.jit(lambda x, y, q=strategy: (q._forward(x), q._backward(y)))
            cells = jax.random.normal(jax.random.key(0), (n,))
            rows = jax.random.normal(jax.random.key(1), (strategy.shape[0],))
            candidates = {
                "product and transpose": lambda f=products, x=cells, y=rows: f(x, y),
                "likelihood and gradient": lambda f=value_and_grad, x=cells, o=given: f(x, o),
            }
            name, median, _, ratio, _ = summary(interleaved(candidates, rounds), "product and transpose")[1]
            print(f"{strategy!r}, {noise}: {name} {median:.2f} ms, {ratio:.1f}x product and transpose")


def batch() -> None:
    """1,000 fits of 256 cells in one call."""
    n, problems = 256, 1000
    model = gamma_cells(n)
    cells = np.stack([dp.datasets.synthetic_histogram("smooth", size=n, total=5000, seed=seed) for seed in range(8)])
    truth = np.resize(cells, (problems, n))
    values = truth + np.random.default_rng(0).laplace(scale=10, size=truth.shape)
    many = dp.Measurement.batch(Identity(n), values, "laplace", 10.0)

    def fit(measurement: dp.Measurement, *, key: jax.Array) -> tuple:
        found = dp.inference.posterior(measurement, model, method="svi", key=key, num_draws=100)
        assert found.sampling is not None
        return found.cells, found.sampling.converged

    for kind in ("with compiling", "compiled"):
        begin = time.perf_counter()
        found, converged = dp.map_problems(fit, many, key=jax.random.key(0))
        seconds = time.perf_counter() - begin
        error = np.sqrt(np.square(found - truth).mean())
        print(
            f"1,000 svi fits of 256 cells, {kind}: {seconds:.0f} s; {converged.mean():.0%} converged, error {error:.1f} of 14.1"
        )


def nuts() -> None:
    for name, model, cells in (
        ("log_gaussian", models.log_gaussian(4096), dp.datasets.synthetic_histogram("smooth", size=4096, total=40_000)),
        ("independent gamma cells", gamma_cells(4096), dp.datasets.synthetic_histogram("sparse", size=4096, total=40_000)),
    ):
        report(f"4,096 cells by nuts, {name}", model, cells, method="nuts", num_draws=500, num_chains=2)


def svi() -> None:
    for name, model, shape in (
        ("log_gaussian", models.log_gaussian(1 << 16), "smooth"),
        ("sparse_counts", models.sparse_counts(1 << 16), "sparse"),
    ):
        cells = dp.datasets.synthetic_histogram(shape, size=1 << 16, total=640_000)
        report(f"65,536 cells by svi, {name}", model, cells, method="svi", num_draws=200)


def report(title: str, model: object, cells: np.ndarray, **options: object) -> None:
    strategy = Identity(cells.size)
    measurement = dp.simulate(cells, strategy, epsilon=0.1, key=jax.random.key(0))
    begin = time.perf_counter()
    found = dp.inference.posterior(measurement, model, key=jax.random.key(1), **options)  # pyright: ignore[reportArgumentType]
    seconds = time.perf_counter() - begin
    lower, upper = found.answer(strategy).interval(0.9)
    covered = dp.evaluation.coverage(np.round(lower), np.round(upper), cells)
    sampling = found.sampling
    assert sampling is not None
    chains = "" if sampling.r_hat is None else f", r-hat {np.median(sampling.r_hat):.3f} to {sampling.r_hat.max():.2f}"
    error = np.sqrt(np.square(found.cells - cells).mean())
    print(
        f"{title}: {seconds:.0f} s with compiling, {int(sampling.num_steps):,} steps{chains}; "
        f"converged {bool(sampling.converged)}; error {error:.1f} (noise 14.1), 90% intervals cover {float(covered.mean()):.2f}"
    )


def gamma_cells(n: int):
    """Cells of one gamma law, as a user would write it."""

    def model():
        rate = numpyro.sample("rate", dist.LogNormal(3, 2))
        with numpyro.plate("cell", n):
            return numpyro.sample("cells", dist.Gamma(0.5, 0.5 / rate))

    return model


if __name__ == "__main__":
    main()
