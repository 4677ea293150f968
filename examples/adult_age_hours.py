"""A real table of two dimensions, age by weekly hours of work: which strategy and which estimator answer it best.

At one budget, several strategies are measured (simulated, to average over releases) and answered by least squares and by
non-negative least squares; where mbi is installed, its estimator takes the same measurements of marginals. Printed is the root
mean squared error of a cell, of the counts by age, by hours, and of random rectangles, beside what least squares expects.

python examples/adult_age_hours.py [releases] [epsilon]
"""

import importlib.util
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import dpinfer as dpi
from dpinfer.inference import nonnegative_least_squares
from dpinfer.queries import Boxes, Identity, Kronecker, Queries, Tree, VStack

dpi.enable_x64()


def rectangles(shape: tuple[int, int], num: int) -> Boxes:
    """Rectangles between two random corners, seeded."""
    ends = np.sort(np.random.default_rng(0).integers(0, np.array(shape) + 1, (2, num, 2)), axis=0)
    return Boxes(shape, ends[0], ends[1])


def mbi_cells(measurement: dpi.Measurement, domain: dpi.Domain) -> np.ndarray:
    """mbi's estimate of the table from the same noisy marginals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mbi  # pyright: ignore[reportMissingImports]

        theirs = dpi.interop.to_mbi(measurement, domain)
        model = mbi.estimation.MirrorDescent().estimate(mbi.Domain(domain.names, domain.shape), theirs)
    return np.asarray(model.project(domain.names).datavector())


def main(releases: int = 1, epsilon: float = 0.1) -> None:
    data = dpi.datasets.adult_age_hours()
    domain, truth = data.domain, data.cells().astype(float)
    shape: Any = domain.shape
    strategies: dict[str, Queries] = {
        "cells": Identity(truth.size),
        "cells and marginals": dpi.workloads.marginals(domain, ["age", "hours"], ["age"], ["hours"]),
        "quadtree": Tree.grid(shape, 4),
        "tree x tree": Kronecker([Tree.complete(n, 10, root=True) for n in shape]),
        "cells and tree of ages": VStack(
            [Identity(truth.size), dpi.workloads.product(domain, {"age": Tree.complete(shape[0], 10)})]
        ),
    }
    workloads = {
        "cell": Identity(truth.size),
        "by age": dpi.workloads.marginals(domain, ["age"]),
        "by hours": dpi.workloads.marginals(domain, ["hours"]),
        "rectangle": rectangles(shape, 200),
    }
    has_mbi = importlib.util.find_spec("mbi") is not None
    print(f"{int(truth.sum()):,} people, {truth.size:,} cells, epsilon = {epsilon:g}")
    print(f"root mean squared error of {releases} releases")
    print(f"{'':46}" + "".join(f"{name:>11}" for name in workloads))
    for name, strategy in strategies.items():
        estimators: dict[str, Callable[[Any], Any]] = {
            "least squares": lambda m: dpi.least_squares(m).cells,
            "non-negative": lambda m: nonnegative_least_squares(m).cells,
        }
        if has_mbi and name in ("cells", "cells and marginals"):
            estimators["mbi"] = lambda m: mbi_cells(m, domain)
        errors: dict[str, list[list[float]]] = {way: [] for way in estimators}
        for key in jax.random.split(jax.random.key(0), releases):
            measurement = dpi.simulate(truth, strategy, epsilon=epsilon, key=key)
            for way, estimator in estimators.items():
                wrong = np.asarray(estimator(measurement)) - truth
                errors[way].append([float(np.square(np.asarray(w @ wrong)).mean()) for w in workloads.values()])
        told = dpi.accuracy.explain(strategy, epsilon=epsilon, workloads=workloads)
        print(f"{name:24}{'expected':22}" + "".join(f"{error.rms:11.1f}" for error in told.errors))
        for way, squares in errors.items():
            print(f"{'':24}{way:22}" + "".join(f"{value:11.1f}" for value in np.sqrt(np.mean(squares, axis=0))))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, float(sys.argv[2]) if len(sys.argv) > 2 else 0.1)
