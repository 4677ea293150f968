"""What tests/test_batching.py runs in processes of their own: the same batches on other devices, saved to a file.

python batching_script.py OUTPUT [COORDINATOR PROCESS_ID]
"""

import sys

import jax
import numpy as np

import dpinfer as dp
from dpinfer.inference import maximum_entropy, nonnegative_least_squares
from dpinfer.inference.iterative_estimate import solve_iteratively
from dpinfer.queries import Identity, Kronecker, Partition, Prefix, Total, Tree, VStack

NUM = 37  # no multiple of anything


def batches():
    """Function, problems and key of each batch: loops of every kind, noise, queries with numbers in them."""
    rng = np.random.default_rng(0)
    complete, ragged = Tree.complete(11, 3), Tree.from_parents([-1, 0, 0, 1, 1, 1, 4, 4])
    marginals = VStack([Kronecker([Identity(2), Total(3)]), Kronecker([Total(2), Identity(3)])])
    anything = VStack([Prefix(6), Identity(6)])

    def batch(queries, noise="laplace"):
        values = rng.normal(size=(NUM, queries.shape[0])) * 3 + 4
        return dp.Measurement.batch(queries, values, noise, rng.uniform(1, 2, NUM))

    def study(epsilon, cells, key):
        measurement = dp.simulate(cells, complete, epsilon=epsilon, key=key)
        estimate = dp.least_squares(measurement)
        answers = estimate.answer(Prefix(11))
        return {"cells": estimate.cells, "stddev": answers.stddev, "noise": jax.random.normal(key, (2,))}

    return {
        "tree": (lambda m: dp.least_squares(m).cells, (batch(complete),), None),
        "ragged tree": (lambda m: dp.least_squares(m).answer(Total(5)).stddev, (batch(ragged),), None),
        "dense": (lambda m: dp.least_squares(m).answer(Prefix(6)), (batch(anything),), None),
        "iterative": (lambda m: solve_iteratively(m.queries, m.values, m.stddev).cells, (batch(anything),), None),
        "non-negative": (
            lambda m: nonnegative_least_squares(m).cells,
            (batch(VStack([Identity(4), Partition([0, 0, 1, 1])])),),
            None,
        ),
        "entropy": (lambda m: maximum_entropy(m).cells, (batch(marginals),), None),
        "law": (lambda m: dp.noise.LaplaceSum(m.scale * np.arange(1.0, 4.0)).cdf(m.values[0]), (batch(anything),), None),
        "study": (study, (np.linspace(0.5, 2, NUM), rng.poisson(5, (NUM, 11))), jax.random.key(3)),
    }


def main(output, coordinator="", process="0"):
    dp.enable_x64()
    if coordinator:
        jax.distributed.initialize(coordinator, 2, int(process))
    found = {}
    for name, (function, problems, key) in batches().items():
        for number, leaf in enumerate(jax.tree.leaves(dp.map_problems(function, *problems, key=key))):
            found[f"{name} {number}"] = leaf
    np.savez(output, num_devices=jax.device_count(), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
