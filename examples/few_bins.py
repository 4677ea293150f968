"""Histograms of few bins beside noisy cells, trees and the wavelet: tables 2 and 3 and figures 14 to 20 of Xu et al. 2013.

python examples/few_bins.py [--data counts.npy] [--shapes sparse rough] [--cells 1024] [--epsilons 0.01 0.1 1]
    [--range-epsilon 0.1] [--releases 20] [--output few_bins.png]

On the departures from New York City by the quarter-hour, or counts of your own (a .npy file such as those of DPBench), and on
histograms that are made up. Prints the squared and the absolute error of a cell, in brackets what theory says of linear methods;
errors of sums by the size of their range, the relative ones to at least a thousandth of all records; and how long an estimate
takes beside the paper's. The figure shows squared errors by the size of the range.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpinfer as dpi
from dpinfer import methods
from dpinfer.datasets import HISTOGRAM_SHAPES, departures, read_histogram, synthetic_histogram
from dpinfer.evaluation import absolute_error, ranges_of_size, relative_error, squared_error
from dpinfer.inference import noise_first, segmentation_average
from dpinfer.plots import ErrorSeries, range_error_figure, save
from dpinfer.queries import Identity, Ranges

PAPER = "NoiseFirst, paper's means"
# As many as can be told apart.
DRAWN = ("noisy cells (Dwork)", "tree of 2 (Boost)", "wavelet (Privelet)", PAPER, "NoiseFirst", "segmentation average")
# Cells whose law of error is worked out, evenly spaced; those of a tree are much alike.
CELLS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Histograms of few bins (Xu et al. 2013, tables 2 and 3, figures 14 to 20).")
    parser.add_argument("--data", type=Path, help="a .npy file of counts; left out, the departures of 2013")
    parser.add_argument("--shapes", nargs="*", choices=HISTOGRAM_SHAPES, default=["sparse", "rough"])
    parser.add_argument("--cells", type=int, default=1024, help="the first so many of the data")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.01, 0.1, 1.0])
    parser.add_argument("--range-epsilon", type=float, help="the one of ranges and times; left out, that in the middle")
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("few_bins.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    counts = departures().cells() if options.data is None else read_histogram(options.data)
    data = {"departures" if options.data is None else options.data.stem: counts[: options.cells].astype(float)}
    n = next(iter(data.values())).size
    data |= {shape: synthetic_histogram(shape, size=n).astype(float) for shape in options.shapes}
    truths, ways = np.stack(list(data.values())), compared(n)
    middle = options.epsilons[len(options.epsilons) // 2] if options.range_epsilon is None else options.range_epsilon
    epsilons = list(dict.fromkeys([*options.epsilons, middle]))
    sizes = [size for size in (1, 4, 16, 64, 256, 1024, 4096) if size <= n]

    theory = {name: expected(way, sizes) for name, way in ways.items()}
    means, spreads = {}, {}
    for name, way in ways.items():
        found = measured(way, truths, epsilons, sizes, options.releases)
        means[name], spreads[name] = found.mean(axis=2), found.std(axis=2, ddof=1) / np.sqrt(options.releases)

    print(f"Mean errors of {options.releases} releases, +- their standard errors.")
    for place, (title, truth) in enumerate(data.items()):
        print(f"{title}: {n:,} cells, {truth.sum():,.0f} records; in brackets what theory says")
        for kind, error in enumerate(("squared", "absolute")):
            print(f"  {f'{error} error of a cell':<28}" + "".join(f"{f'epsilon = {e:g}':>32}" for e in options.epsilons))
            for name in ways:
                line, known = f"  {name:<28}", theory[name]
                for at, epsilon in enumerate(options.epsilons):
                    mean, spread = (x[name][place, at, kind, 0] for x in (means, spreads))
                    said = "" if known is None else f" ({shown(known[kind][0] / epsilon ** (2 - kind))})"
                    line += f"{f'{shown(mean)} +- {shown(spread, 2)}{said}':>32}"
                print(line)

    at = epsilons.index(middle)
    panels = []
    for place, title in enumerate(data):
        print(f"{title}, epsilon = {middle:g}: errors of sums by the cells of their range")
        for kind, error in enumerate(("squared", "absolute", "relative")):
            print(f"  {f'{error} error':<28}" + "".join(f"{size:>13,}" for size in sizes))
            for name in ways:
                print(f"  {name:<28}" + "".join(f"{shown(x):>13}" for x in means[name][place, at, kind]))
        series = []
        for name in DRAWN:
            known = theory[name]
            line = None if known is None else known[0] / middle**2
            series.append(ErrorSeries(name, means[name][place, at, 0], spreads[name][place, at, 0], line))
        panels.append((f"{title}, {n:,} cells, epsilon = {middle:g}", series))

    print(f"time of an estimate over that of {PAPER}, at epsilon = {middle:g}")
    print(f"  {'':<28}" + "".join(f"{title:>13}" for title in data))
    spent = [times(ways, truth, middle) for truth in truths]
    for name in ways:
        print(f"  {name:<28}" + "".join(f"{own[name] / own[PAPER]:>13.3g}" for own in spent))
    save(range_error_figure(sizes, panels, "records squared"), options.output)
    print(f"Figure: {options.output}")


def shown(number: float, digits: int = 4) -> str:
    return f"{number:,.0f}" if number >= 10 ** (digits - 1) else f"{number:.{digits}g}"


def compared(n: int) -> dict[str, methods.Method]:
    fits = {
        PAPER: partial(noise_first, penalty="paper"),
        "NoiseFirst, paper's medians": partial(noise_first, statistic="median", penalty="paper"),
        "NoiseFirst": noise_first,
        "NoiseFirst, cautious": partial(noise_first, penalty="cautious"),
        "segmentation average": segmentation_average,
    }
    return {
        "noisy cells (Dwork)": methods.noisy_cells(n),
        "tree of 2 (Boost)": methods.consistent_tree(n, 2, root=True),
        "wavelet (Privelet)": methods.privelet(n),
        "tree of 16 (H_16)": methods.consistent_tree(n, 16),
    } | {name: methods.Method(name, Identity(n), None, fit) for name, fit in fits.items()}


def expected(method: methods.Method, sizes: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
    """For epsilon = 1 the expected squared errors of ranges by size, and the absolute error of a cell; None if not linear."""
    if method.estimator is not dpi.least_squares:
        return None
    n = method.strategy.shape[1]
    some = np.unique(np.linspace(0, n - 1, CELLS).round().astype(int))
    release = method.simulate(np.zeros(n), epsilon=1, key=jax.random.key(0))

    def cells(values: jax.Array) -> Any:
        return dpi.least_squares(dpi.Measurement(method.strategy, values, "laplace", release.scale)).cells[some]

    variances = jnp.square(dpi.least_squares(release).expected_stddev(ranges_of_sizes(n, sizes)))
    scales = np.asarray(jax.jit(jax.jacrev(cells))(release.values) * release.scale)
    return np.asarray(by_size(variances, n, sizes)), np.atleast_1d(mean_size(scales).mean())


def mean_size(scales: np.ndarray) -> np.ndarray:
    """E|X| of sums X of independent Laplace variables of the given scales, [..., number of them].

    2/pi times the integral of (1 - f(t)) / t^2 over positive t, with f(t) = prod 1 / (1 + scale^2 t^2) the characteristic
    function; here by an angle, tan(angle) = t stddev, over which the integrand is smooth.
    """
    points, weights = np.polynomial.legendre.leggauss(48)
    angle = (points + 1) * np.pi / 4
    stddev = np.sqrt(2 * np.square(scales).sum(axis=-1))
    total = np.zeros(stddev.shape)
    for a, weight in zip(angle, weights, strict=True):
        logs = np.log1p(np.square(scales * (np.tan(a) / stddev)[..., None]))
        total -= weight * np.expm1(-logs.sum(axis=-1)) / np.sin(a) ** 2
    return stddev * total / 2


def ranges_of_sizes(n: int, sizes: list[int]) -> Ranges:
    """All ranges of these sizes, one size after the other."""
    parts = [ranges_of_size(n, size) for size in sizes]
    return Ranges(n, np.concatenate([part.starts for part in parts]), np.concatenate([part.stops for part in parts]))


def by_size(errors: Any, n: int, sizes: list[int]) -> jax.Array:
    """The mean over the ranges of each size, of errors in the order of :func:`ranges_of_sizes`."""
    ends = np.cumsum([n - size + 1 for size in sizes])
    return jnp.stack([part.mean() for part in jnp.split(errors, ends[:-1])])


def measured(method: methods.Method, truths: np.ndarray, epsilons: list[float], sizes: list[int], releases: int) -> np.ndarray:
    """Mean errors over all ranges of each size in simulated releases, [truths, epsilons, releases, kinds of error, sizes]."""
    n = truths.shape[1]
    ranges = ranges_of_sizes(n, sizes)
    bounds = np.maximum(truths.sum(axis=1) / 1000, 1)

    def one(which: jax.Array, epsilon: jax.Array, *, key: jax.Array) -> jax.Array:
        truth = jnp.asarray(truths)[which]
        cells = method.estimate(method.simulate(truth, epsilon=epsilon, key=key)).cells
        kinds = squared_error, absolute_error, partial(relative_error, sanity_bound=jnp.asarray(bounds)[which])
        return jnp.stack([by_size(kind(ranges @ cells, ranges @ truth), n, sizes) for kind in kinds])

    grid = (truths.shape[0], len(epsilons), releases)
    which, place, _ = (axis.ravel() for axis in np.indices(grid))
    found = dpi.map_problems(one, which, np.array(epsilons)[place], key=jax.random.key(7))
    return np.asarray(found).reshape(*grid, 3, len(sizes))


def times(ways: dict[str, methods.Method], truth: np.ndarray, epsilon: float, repeats: int = 5) -> dict[str, float]:
    """Seconds for one estimate by each way, once compiled: the median of repeats that take turns."""
    key = jax.random.key(8)
    runs = {}
    for name, way in ways.items():
        estimate = jax.jit(lambda release, way=way: way.estimate(release).cells)
        runs[name] = partial(estimate, way.simulate(truth, epsilon=epsilon, key=key))
        runs[name]().block_until_ready()
    spent = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run().block_until_ready()
            spent[name].append(time.perf_counter() - start)
    return {name: float(np.median(own)) for name, own in spent.items()}


if __name__ == "__main__":
    main()
