"""The count-of-counts histogram of each region by itself, from its own noisy answers, and how good it is."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer import noise as laws
from dpinfer.inference.isotonic import isotonic_regression
from dpinfer.inference.matching import merge
from dpinfer.inference.run_store import Store
from dpinfer.inference.size_runs import SizeRuns
from dpinfer.mechanisms.count_of_counts import ReleasedLevel

# Bytes that an entry takes while it is fitted, and the most entries that are fitted at once.
_ENTRY_BYTES, _CHUNK = 160, 1 << 22


class Way(NamedTuple):
    """How nodes are estimated; see ``consistent_count_of_counts``."""

    norm: str
    size_norm: str
    variances: str


def node_histograms(
    level: ReleasedLevel,
    num_groups: np.ndarray,
    max_size: int,
    way: Way,
    *,
    memory_limit: int = 1 << 30,
    store: Store | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> SizeRuns:
    """The runs of each node of a level, as many groups as ``num_groups`` says; see ``consistent_count_of_counts``."""
    estimates = []
    for name, array in level.arrays.items():
        if name in ("cumulative", "tails", "histogram"):
            scale = float(level.scales[name])
            runs = _by_chunks(name, array, num_groups, way.norm, memory_limit, store, report)
            if way.variances == "printed":
                found = _printed(runs, 4, scale)
            else:
                spread = _naive_spread(scale, max_size) if name == "histogram" else np.full(max_size + 1, _mean_abs(scale))
                found = _gap_variances(runs, spread, max_size)
            estimates.append(runs._replace(variances=found))
        elif name in ("run_values", "sizes"):
            estimates.append(_of_sizes(level, num_groups, max_size, way))
            report(num_groups.size)
    if len(estimates) == 1:
        return estimates[0]
    # Two estimates of the same groups: a tree of one child each.
    return merge(estimates[0], estimates[1], np.arange(num_groups.size), "weighted")


def _mean_abs(scale: float) -> float:
    """E|X| of discrete Laplace noise, 1 / sinh(1 / scale)."""
    return float(1 / np.sinh(min(1 / scale, 700.0)))


def _by_chunks(
    name: str,
    array: np.ndarray,
    num_groups: np.ndarray,
    norm: str,
    memory_limit: int,
    store: Store | None,
    report: Callable[[int], None],
) -> SizeRuns:
    """The histograms of some nodes at a time, on all cores: fits of different nodes have nothing to do with each other."""
    nodes, width = array.shape
    workers = max(1, min(os.cpu_count() or 1, 8))
    step = max(1, min(_CHUNK, memory_limit // (_ENTRY_BYTES * workers)) // width)

    def estimated(begin: int) -> SizeRuns:
        noisy, totals = array[begin : begin + step], num_groups[begin : begin + step]
        if name == "tails":
            noisy = totals[:, None] - noisy[:, 1:]

        def fit() -> SizeRuns:
            histograms = _of_naive(noisy, totals) if name == "histogram" else _of_cumulative(noisy, totals, norm)
            return SizeRuns.of_histograms(histograms)

        runs = fit() if store is None else store.kept(f"{name} {norm}", (noisy, totals), fit)
        return runs._replace(nodes=runs.nodes + begin)

    parts = []
    with ThreadPoolExecutor(workers) as pool:
        begins = list(range(0, nodes, step))
        for begin, runs in zip(begins, pool.map(estimated, begins), strict=True):
            parts.append(runs)
            report(min(step, nodes - begin))
    return SizeRuns(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _of_cumulative(noisy: np.ndarray, num_groups: np.ndarray, norm: str) -> np.ndarray:
    """Histograms whose cumulative form fits best: in order, from 0 to the number of groups, which is its last entry."""
    nodes, sizes = noisy.shape
    fit = _isotonic(noisy.reshape(-1), np.repeat(np.arange(nodes), sizes), norm).values
    fitted = np.floor(fit + 0.5).astype(np.int64) if norm == "l2" else fit  # half upward
    total = num_groups[:, None]
    # The last entry is known, so that only the others are fitted; clipping a fit to bounds is optimal.
    return np.diff(np.concatenate([np.clip(fitted.reshape(nodes, sizes), 0, total), total], axis=1), axis=1, prepend=0)


def _isotonic(values: np.ndarray, segments: np.ndarray, norm: str) -> Any:
    size = values.size
    padded = max(1024, 1 << (size - 1).bit_length()) if size else 1024
    _checks.exact_in_float("the noisy answers", values)
    values = np.concatenate([values, np.zeros(padded - size, dtype=np.int64)])
    segments = np.concatenate([segments, np.full(padded - size, segments.max(initial=-1) + 1)])
    fit = isotonic_regression(values, segments=segments, norm=norm)
    return jax.tree.map(lambda x: np.asarray(x)[:size] if x.ndim else x, fit)


@jax.jit
def _simplex(values: jax.Array, totals: jax.Array) -> jax.Array:
    from optax.projections import projection_simplex  # which loads more than importing this should

    return jax.vmap(lambda row, total: projection_simplex(row, total))(values, jnp.maximum(totals, 1.0))


def _of_naive(noisy: np.ndarray, num_groups: np.ndarray) -> np.ndarray:
    """The nearest histograms without negative entries that have so many groups, and whole ones by largest remainders."""
    _checks.exact_in_float("the noisy answers", noisy)
    fit = np.asarray(_simplex(jnp.asarray(noisy.astype(float)), jnp.asarray(num_groups.astype(float))), dtype=float)
    fit = np.where(num_groups[:, None] > 0, fit, 0.0)
    whole = np.floor(fit + 1e-9)
    more = num_groups - whole.sum(axis=1).astype(np.int64)
    # Noise is whole, so that all positive entries have the same fraction but for rounding; smaller sizes get theirs first.
    fraction = np.round(fit - whole, 6)
    rank = np.empty(fit.shape, dtype=np.int64)
    np.put_along_axis(rank, np.argsort(-fraction, axis=1, kind="stable"), np.arange(fit.shape[1])[None, :], axis=1)
    return (whole + (rank < more[:, None])).astype(np.int64)


def _naive_spread(scale: float, max_size: int) -> np.ndarray:
    """About how many groups the cumulative sums of a noisy histogram are off by: they walk, as the square root of the size."""
    deviation = float(laws.stddev("discrete_laplace", scale))
    return deviation * np.sqrt(2 / np.pi * np.arange(1, max_size + 2))


def _printed(runs: SizeRuns, factor: int, scale: float) -> np.ndarray:
    """Kuo et al., sections 5.1.1 (factor 2) and 5.1.2 (factor 4): factor / (S epsilon^2), S groups having the same size."""
    return factor * scale**2 / runs.counts


def _gap_variances(runs: SizeRuns, spread: np.ndarray, max_size: int) -> np.ndarray:
    """By how much the size of a group is off, squared: some ``spread`` groups at each end of a run are of the next size instead.

    Half of ``spread`` groups at each end on average, a gap away, over all groups of the run. The first and the last size of a
    node have one gap only and take it for both, but for sizes 0 and max_size, beyond which there is none.
    """
    same = runs.nodes[1:] == runs.nodes[:-1]
    gaps = np.where(same, np.diff(runs.sizes), 0).astype(float)
    before, after = np.append(0.0, gaps), np.append(gaps, 0.0)
    alone = (before == 0) & (after == 0)
    first = np.where(runs.sizes > 0, np.where(alone, 1.0, after), 0.0)
    last = np.where(runs.sizes < max_size, np.where(alone, 1.0, before), 0.0)
    before, after = np.where(before == 0, first, before), np.where(after == 0, last, after)
    return (before**2 + after**2) / (2 * runs.counts) * spread[runs.sizes]


def _of_sizes(level: ReleasedLevel, num_groups: np.ndarray, max_size: int, way: Way) -> SizeRuns:
    """From sorted sizes: the isotonic fit, rounded and cut off, and how many of its blocks make a size."""
    if "sizes" in level.arrays:
        scale = float(level.scales["sizes"])
        nodes = np.repeat(np.arange(num_groups.size), num_groups)
        fit = _isotonic(level.arrays["sizes"], nodes, way.size_norm)
        values, blocks = fit.values, np.diff(fit.block_ids, prepend=-1)
        lengths = np.ones(values.size, dtype=np.int64)
    else:
        if way.size_norm != "l2":
            raise ValueError("size_norm must be 'l2': release holds the least-squares fit only; release it with keep_sizes=True.")
        scale = float(level.scales["runs"])
        nodes, values, lengths = (level.arrays[f"run_{name}"] for name in ("nodes", "values", "lengths"))
        blocks = np.ones(values.size, dtype=np.int64)
    sizes = np.floor(np.clip(values, 0, max_size) + 0.5).astype(np.int64)
    plain = SizeRuns.gather(nodes, sizes, lengths, np.zeros(sizes.size))
    if way.variances == "printed":
        return plain._replace(variances=_printed(plain, 2, scale))
    key = plain.nodes * (max_size + 1) + plain.sizes
    num_blocks = np.bincount(np.searchsorted(key, nodes * (max_size + 1) + sizes), weights=blocks, minlength=key.size)
    variance = float(laws.stddev("discrete_laplace", scale)) ** 2
    return plain._replace(variances=num_blocks * variance / plain.counts)
