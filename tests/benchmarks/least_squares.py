"""Least squares beside what one would use instead: cells and marginals of a cube, in closed form and by conjugate gradients;
and with cells that are not negative, beside scipy's active-set method.

python -m tests.benchmarks.least_squares [--rounds 7]       (pip install scipy; mbi is timed where it is installed)
"""

import argparse
import importlib.util
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls
from scipy.sparse.linalg import LinearOperator, lsmr

import dpinfer as dp
from dpinfer.inference import nonnegative_least_squares
from dpinfer.inference.iterative_estimate import solve_iteratively
from dpinfer.queries import Identity, Kronecker, Total, Tree, VStack
from tests.benchmarks.timing import interleaved, machine, summary


def scipy_operator(grid: tuple[int, ...]) -> LinearOperator:
    """Cells and the marginal of each axis in numpy, by sums and broadcasts."""
    n, dims = int(np.prod(grid)), len(grid)
    others = [tuple(a for a in range(dims) if a != axis) for axis in range(dims)]

    def forward(x: np.ndarray) -> np.ndarray:
        table = x.reshape(grid)
        return np.concatenate([x.ravel(), *(table.sum(axis=gone) for gone in others)])

    def adjoint(y: np.ndarray) -> np.ndarray:
        table, start = y[:n].reshape(grid).copy(), n
        for axis, size in enumerate(grid):
            table += y[start : start + size].reshape([size if a == axis else 1 for a in range(dims)])
            start += size
        return table.ravel()

    return LinearOperator((n + sum(grid), n), matvec=forward, rmatvec=adjoint, dtype=np.float64)  # pyright: ignore[reportCallIssue]


def mbi_estimator(grid: tuple[int, ...], values: np.ndarray) -> Any:
    """mbi's default estimator on the same measurements, or None if it is not installed."""
    if importlib.util.find_spec("mbi") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mbi  # pyright: ignore[reportMissingImports]

    names, n = tuple(f"axis_{axis}" for axis in range(len(grid))), int(np.prod(grid))
    pieces = np.split(values, np.cumsum([n, *grid])[:-1])
    cliques = [names, *((name,) for name in names)]
    measurements = [mbi.LinearMeasurement(piece, clique, 1.0) for piece, clique in zip(pieces, cliques, strict=True)]
    return lambda: mbi.estimation.MirrorDescent().estimate(mbi.Domain(names, grid), measurements)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--grid", type=int, nargs="+", default=[50, 100, 256])
    parser.add_argument("--nonnegative-cells", type=int, default=4096)
    options = parser.parse_args()
    dp.enable_x64()
    print(machine())
    grid = tuple(options.grid)
    n = int(np.prod(grid))
    parts = [Kronecker([Identity(k) if a == axis else Total(k) for a, k in enumerate(grid)]) for axis in range(len(grid))]
    strategy = VStack([Identity(n), *parts])
    rng = np.random.default_rng(0)
    cells = rng.poisson(20, n).astype(float)
    values = np.asarray(strategy @ cells) + rng.normal(size=strategy.shape[0])
    device_values, one = jnp.asarray(values), jnp.asarray(1.0)
    operator = scipy_operator(grid)
    closed = jax.jit(lambda v: dp.least_squares(dp.Measurement(strategy, v, "gaussian", one)).cells)
    candidates: dict[str, Any] = {
        "scipy lsmr": lambda: lsmr(operator, values, atol=1e-12, btol=1e-12)[0],
        "dpinfer, closed form": lambda: closed(device_values),
        "dpinfer, conjugate gradients": lambda: solve_iteratively(strategy, device_values, one).cells,
    }
    mbi = mbi_estimator(grid, values)
    if mbi is not None:
        candidates["mbi MirrorDescent, defaults"] = mbi

    def gradient(x: Any) -> float:
        """|A'(y - A x)| over |A'y|: 0 at the least squares solution."""
        x = np.asarray(x)
        return float(np.linalg.norm(operator.rmatvec(values - operator.matvec(x))) / np.linalg.norm(operator.rmatvec(values)))

    print(f"\ncells and {len(grid)} marginals of {' x '.join(map(str, grid))} = {n:,} cells")
    for name, solve in candidates.items():
        if not name.startswith("mbi"):
            print(f"{name:36} gradient {gradient(solve()):.1e}")
    for name, median, least, ratio, by_min in summary(interleaved(candidates, options.rounds), "scipy lsmr"):
        print(f"{name:36}{median:12.1f} ms{least:12.1f} ms min{ratio:10.3f}x{by_min:9.3f}x by min")
    nonnegative(options.nonnegative_cells, 1)  # scipy takes a quarter of a minute a round


def nonnegative(n: int, rounds: int) -> None:
    """A tree over cells of which most are empty, as scipy takes it: a dense matrix."""
    tree = Tree.complete(n, 16)
    rng = np.random.default_rng(1)
    cells = np.where(rng.uniform(size=n) < 0.2, rng.poisson(20, n), 0)
    values = np.asarray(tree @ cells) + rng.laplace(scale=4.0, size=tree.shape[0])
    matrix, measurement = np.asarray(tree.dense(), dtype=float), dp.Measurement(tree, values, "laplace", 4.0)
    candidates: dict[str, Any] = {
        "scipy nnls": lambda: nnls(matrix, values, maxiter=100 * n)[0],
        "dpinfer": lambda: nonnegative_least_squares(measurement).cells,
    }
    apart = np.abs(candidates["scipy nnls"]() - np.asarray(candidates["dpinfer"]())).max()
    print(f"\nnon-negative, a tree (branching 16) over {n:,} cells; largest difference {apart:.1e}")
    for name, median, least, ratio, by_min in summary(interleaved(candidates, rounds), "scipy nnls"):
        print(f"{name:36}{median:12.1f} ms{least:12.1f} ms min{ratio:12.5f}x{by_min:11.5f}x by min")


if __name__ == "__main__":
    main()
