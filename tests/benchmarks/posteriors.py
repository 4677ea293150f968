"""Posterior means and standard deviations of 10,000 sums beside densities on grids, in numpy.

python -m tests.benchmarks.posteriors [--rounds 9] [--queries 10000] [--points 1024]
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import dpinfer as dp
from dpinfer.inference import mmse
from dpinfer.inference.mmse import noisy_parts
from dpinfer.inference.region_moments import region_moments
from dpinfer.queries import Identity, Partition, Ranges, VStack
from tests.benchmarks.timing import interleaved, machine, summary


def release(size: int, num_regions: int, sum_scales: Any, seed: int = 0) -> dp.Measurement:
    """Regions of as many cells, all 0, with Laplace noise of scale 1 in the cells."""
    rng = np.random.default_rng(seed)
    n = size * num_regions
    scale = np.concatenate([np.ones(n), np.broadcast_to(sum_scales, num_regions)])
    queries = VStack((Identity(n), Partition(np.repeat(np.arange(num_regions), size))))
    return dp.Measurement(queries, rng.laplace(0, scale), "laplace", scale)


def dense_single(measurement: dp.Measurement, num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Of regions of one cell: the density on a grid of 20 standard deviations to either side."""
    n = measurement.queries.shape[1]
    y, scale = np.asarray(measurement.values), np.asarray(measurement.scale)
    e = np.linspace(-20, 20, num_points) * np.sqrt(2)
    delta, b = (y[n:] - y[:n])[:, None], scale[n:, None]
    return moments(-np.abs(e) - np.abs(delta - e) / b, e)


def dense_pairs(measurement: dp.Measurement, num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the first two of four cells: closed forms of sums of two noises, and of two and that of the sum."""
    n = measurement.queries.shape[1]
    y, scale = np.asarray(measurement.values), np.asarray(measurement.scale)
    e = np.linspace(-20, 20, num_points) * 2
    delta, b = (y[n:] - y[:n].reshape(-1, 4).sum(axis=1))[:, None], scale[n:, None]
    z = np.abs(delta - e)
    ratio = b**2 / (b**2 - 1)
    other = ratio**2 * np.exp(-z / b) / (2 * b) - (ratio / 2 + (1 + z) / 4) * np.exp(-z) / (b**2 - 1)
    return moments(np.log1p(np.abs(e)) - np.abs(e) + np.log(other), e)


def moments(log_density: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    mean = density @ e
    return mean, np.sqrt(density @ np.square(e) - np.square(mean))


def compare(title: str, candidates: dict[str, Callable[[], Any]], rounds: int) -> None:
    base = next(iter(candidates))
    (mean, stddev), *others = (found() for found in candidates.values())
    off = [max(np.abs(a - mean).max(), np.abs(b - stddev).max()) for a, b in others]
    print(f"\n{title}; largest difference {max(off):.1e} scales")
    for name, median, least, ratio, by_min in summary(interleaved(candidates, rounds), base):
        print(f"  {name:44}{median:12.3f} ms{least:12.3f} ms{ratio:10.4f}{by_min:10.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1024)
    options = parser.parse_args()
    dp.enable_x64()
    print(machine())
    print(f"{options.queries:,} regions, {options.points:,} points a density: median, least, and both in units of the first's")
    for size, dense in ((1, dense_single), (4, dense_pairs)):
        asked = Ranges(
            size * options.queries, size * np.arange(options.queries), size * np.arange(options.queries) + -(-size // 2)
        )
        for title, scales in (
            ("a scale for each sum", np.random.default_rng(1).uniform(2, 6, options.queries)),
            ("sums of one scale", 3.0),
        ):
            measurement = release(size, options.queries, scales)

            def ours(measurement: Any = measurement, asked: Any = asked) -> tuple[np.ndarray, np.ndarray]:
                found = mmse(measurement, asked)
                return found.mean - found.centers, found.stddev

            def read(measurement: Any = measurement, size: int = size) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
                found = noisy_parts(measurement)
                sizes, delta = np.bincount(found.labels), found.sums - np.bincount(found.labels, found.values)
                count = -(-size // 2)

                def moments_alone() -> tuple[np.ndarray, np.ndarray]:
                    scales = found.cell_scale, found.sum_scales
                    mean, spread, bend, *_ = region_moments(sizes, delta, *scales, is_lattice=False)
                    return count * mean, np.sqrt(count * (count * spread + bend))

                return moments_alone

            def numpy_dense(measurement: Any = measurement, dense: Any = dense) -> tuple[np.ndarray, np.ndarray]:
                return dense(measurement, options.points)

            candidates = {"numpy, dense": numpy_dense, "mmse": ours, "mmse, what it asks for being known": read()}
            compare(f"regions of {size}, {title}", candidates, options.rounds)


if __name__ == "__main__":
    main()
