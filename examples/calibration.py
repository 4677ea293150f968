"""Simulation-based calibration of posteriors under the models of dpinfer.models: are their draws and intervals right?

python examples/calibration.py [--models poisson_gamma ...] [--methods nuts svi laplace] [--cells 16] [--epsilon 0.3]
    [--problems 300] [--draws 500] [--seed 0] [--output calibration.png]

A truth is drawn from the model, measured with Laplace noise, and its posterior sampled; if that is right the rank of the truth
among the draws is uniform (Talts et al. 2018), for every number that model and noisy values have. Printed are, for each of these,
the p-value of a chi-squared test, and how often the central half and the central 90% of the posterior held the truth, with
standard errors. Problems are those whose largest noisy value is between ten and a thousand times the noise's scale; chosen by
the noisy values alone, which keeps the ranks uniform. The figure shows the histograms of the ranks.

By "nuts" every posterior is one chain, with half as many steps of adaptation; by "svi" and "laplace" the draws are independent,
of a law that only comes near: heaps at both ends of their histograms say that it is too narrow.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import dpinfer as dpi
from dpinfer import models
from dpinfer.evaluation import Calibration, simulation_based_calibration
from dpinfer.inference import posterior
from dpinfer.plots import rank_histogram_figure, save
from dpinfer.queries import Identity, Prefix, Queries, Tree

LEVELS = (0.5, 0.9)


def studies(n: int) -> dict[str, tuple[Queries, Callable[[], Any]]]:
    """What is measured of n cells, and the model, by its name."""
    cells, tree = Identity(n), Tree.complete(n, 4)
    return {
        "log_gaussian": (cells, models.log_gaussian(n)),
        "sparse_counts": (cells, models.sparse_counts(n)),
        "region_counts": (cells, models.region_counts(np.arange(n) // 4)),
        "poisson_gamma": (cells, models.poisson_gamma(n)),
        "ordered_counts": (cells, models.ordered_counts(n)),
        "polya_tree": (tree, models.polya_tree(tree)),
        "count_of_counts": (Prefix(n), models.count_of_counts(n)),
        "segmented_counts": (cells, models.segmented_counts(n)),
    }


def main() -> None:
    names = list(studies(16))
    parser = argparse.ArgumentParser(description="Simulation-based calibration of posteriors under the models of dpinfer.models.")
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--methods", nargs="+", choices=("nuts", "svi", "laplace"), default=["nuts"])
    parser.add_argument("--cells", type=int, default=16)
    parser.add_argument("--epsilon", type=float, default=0.3)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--draws", type=int, default=500, help="of a posterior, of which 63 are compared with the truth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("calibration.png"))
    options = parser.parse_args()
    dpi.enable_x64()

    print(f"{options.problems} problems of {options.cells} cells at epsilon = {options.epsilon:g}; {options.draws} draws each.")
    print("p: that ranks are uniform. Shares of truths in the central half and 90% of their posteriors, +- standard errors.")
    found: dict[str, Calibration] = {}
    for name in options.models:
        strategy, model = studies(options.cells)[name]
        for method in options.methods:
            begin = time.perf_counter()
            one = calibrated(strategy, model, method, options, f"{name}, {method}")
            found[f"{name}\n{method}"] = one
            print(f"\n{name}, {method}: {time.perf_counter() - begin:.0f} s", flush=True)
            print_table(one)
    print("\nLeast p-value of each, times the number of its quantities; share of posteriors converged by their own checks")
    for title, one in found.items():
        p = min(1.0, min(one.p_values.values()) * len(one.ranks))
        print(f"  {title.replace(chr(10), ', '):<28}{p:>10.3g}{one.converged.mean():>8.2f}")
    save(rank_histogram_figure(found), options.output)
    print(f"Figure: {options.output}")


def calibrated(strategy: Queries, model: Callable[[], Any], method: str, options: argparse.Namespace, title: str) -> Calibration:
    settings = {"num_chains": 1, "num_warmup": options.draws // 2} if method == "nuts" else {}

    def infer(measurement: dpi.Measurement, key: jax.Array) -> Any:
        return posterior(measurement, model, method=method, key=key, num_draws=options.draws, **settings)

    def is_of_interest(measurement: dpi.Measurement) -> jax.Array:
        largest = jnp.abs(jnp.asarray(measurement.values)).max() / jnp.asarray(measurement.scale).max()
        return (largest > 10) & (largest < 1000)

    with tqdm(total=options.problems, desc=title, leave=False, disable=None) as bar:
        return simulation_based_calibration(
            strategy,
            model,
            infer,
            epsilon=options.epsilon,
            key=jax.random.key(options.seed),
            num_problems=options.problems,
            accept=is_of_interest,
            progress=lambda done, _: bar.update(done - bar.n),
        )


def print_table(found: Calibration) -> None:
    print(f"  {'':<18}{'p':>8}{'half':>18}{'90%':>18}")
    coverage = [found.coverage(level) for level in LEVELS]
    for name, p in found.p_values.items():
        shares = "".join(f"{f'{share:.3f} +- {error:.3f}':>18}" for share, error in (own[name] for own in coverage))
        print(f"  {name:<18}{p:>8.3f}{shares}")


if __name__ == "__main__":
    main()
