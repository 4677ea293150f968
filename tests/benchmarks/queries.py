"""The wavelet beside a copy of its cells, sensitivities of large strategies, and the memory of a product of many axes.

python -m tests.benchmarks.queries [--rounds 15]
"""

import argparse
import tracemalloc

import numpy as np

from dpinfer.queries import Haar, Identity, Kronecker, Prefix, Tree
from tests.benchmarks.timing import interleaved, machine, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(machine())
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 1000, 2**20).astype(float)
    haar = Haar(2**20)
    print("\n2^20 cells, float64, on the host")
    times = interleaved({"a copy": cells.copy, "Haar": lambda: haar @ cells, "Haar, transposed": lambda: haar.T @ cells}, rounds)
    for name, median, least, ratio, by_min in summary(times, "a copy"):
        print(f"{name:36}{median:10.2f} ms{least:10.2f} ms min{ratio:8.1f}x{by_min:8.1f}x by min")

    print("\nsensitivity, L1, one record changed")
    strategies = {
        "Tree.complete(2^20, 2)": lambda: Tree.complete(2**20, 2),
        "Haar(2^20)": lambda: Haar(2**20),
        "Identity(1024) x Tree(1024, 2)": lambda: Kronecker([Identity(1024), Tree.complete(1024, 2)]),
        "Haar(1024) x Haar(1024)": lambda: Kronecker([Haar(1024)] * 2),
        "Haar(4) ten times": lambda: Kronecker([Haar(4)] * 10),
        "Prefix(4) ten times": lambda: Kronecker([Prefix(4)] * 10),
    }
    times = interleaved({k: lambda make=make: make().sensitivity(1, "replace_one") for k, make in strategies.items()}, rounds)
    for name, median, least, _, _ in summary(times, next(iter(strategies))):
        print(f"{name:36}{median:10.3f} ms{least:10.3f} ms min")

    print("\na product of ten axes of 4 cells, applied to 2^20 cells: peak memory in bytes of the cells")
    factors = {"Identity": Identity(4), "Prefix": Prefix(4), "Haar": Haar(4)}
    products = {name: Kronecker([factor] * 10) for name, factor in factors.items()}
    products["Tree four times, Identity six"] = Kronecker([Tree.complete(4, 2, root=True)] * 4 + [Identity(4)] * 6)
    for name, product in products.items():
        tracemalloc.start()
        _ = product @ cells
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{name:36}{peak / max(cells.nbytes, product.shape[0] * 8):10.2f}x the larger of cells and answers")


if __name__ == "__main__":
    main()
