"""What keeping counts from being negative does to totals and to single cells: least squares, clamped, non-negative, known total.

python examples/nonnegative_counts.py [cells] [releases]
"""

import sys

import jax
import numpy as np

import dpinfer as dpi
from dpinfer.inference import nonnegative_least_squares
from dpinfer.queries import Total, Tree

dpi.enable_x64()


def main(n: int = 256, releases: int = 5) -> None:
    tree, every_eighth = Tree.complete(n, 16), np.where(np.arange(n) % 8 == 0, 20.0, 0.0)
    for name, truth in (("all cells empty", np.zeros(n)), ("every eighth cell holds 20", every_eighth)):
        total, rows = truth.sum(), {}
        for key in jax.random.split(jax.random.key(7), releases):
            measurement = dpi.simulate(truth, tree, epsilon=1.0, key=key)
            plain = np.asarray(dpi.least_squares(measurement).cells)
            known = measurement.with_exact(Total(n), [total])
            ways = {
                "least squares": plain,
                "least squares, negatives set to 0": np.maximum(plain, 0),
                "non-negative least squares": np.asarray(nonnegative_least_squares(measurement).cells),
                "the same, total known": np.asarray(nonnegative_least_squares(known).cells),
            }
            for way, cells in ways.items():
                rows.setdefault(way, []).append((cells.sum() - total, np.sqrt(np.square(cells - truth).mean())))
        print(f"{name}: {n:,} cells, {int(total):,} records, mean of {releases} releases")
        print(f"  {'':36}{'error of the total':>20}{'rms error of a cell':>22}")
        for way, errors in rows.items():
            bias, rms = np.mean(errors, axis=0)
            print(f"  {way:36}{bias:20,.1f}{rms:22.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
