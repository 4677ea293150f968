"""The variance of given ranges, and its average over those of each size, for a measured tree; see ``range_variance.py``."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.accuracy.heights import Height, heights
from dpinfer.accuracy.range_variance import level_precisions
from dpinfer.inference import least_squares
from dpinfer.inference.fewest_nodes import ends_of_ranges, nodes_of_ranges
from dpinfer.measurement import Measurement
from dpinfer.queries import Boxes, Queries, Tree
from dpinfer.queries.base import Array


def variance_of_ranges(
    ranges: Queries,
    branching: int,
    level_epsilons: Any = None,
    *,
    level_rhos: Any = None,
    root: bool = False,
    consistent: bool = True,
    noise: str | None = None,
) -> Array:
    """The variance with which a measured tree will answer each of some ranges, [m].

    Args:
        ranges: ``queries.Ranges`` (or any family of contiguous ranges) for a tree over one axis; ``queries.Boxes`` for a grid.
        branching, level_epsilons, level_rhos, root, consistent, noise: as in :func:`range_variance`.

    Cost: O(height) a range; with boxes and consistency one solution of the grid for each.
    """
    branching = _checks.integer("branching", branching, least=2)
    sides = ranges.grid if isinstance(ranges, Boxes) else (ranges.shape[1],)
    starts, stops = ends_of_ranges(ranges, sides)
    strategy = Tree.grid(sides, branching, root) if len(sides) > 1 else Tree.complete(ranges.shape[1], branching, root)
    weights = level_precisions(max(sides), branching, level_epsilons, level_rhos, root, noise)
    if consistent:
        precise = jnp.stack(weights[::-1])
        spread = jnp.where(precise > 0, 1 / jnp.sqrt(jnp.where(precise > 0, precise, 1.0)), jnp.inf)
        estimate = least_squares(Measurement(strategy, np.zeros(strategy.shape[0]), "gaussian", spread[strategy.levels]))
        return jnp.square(jnp.asarray(estimate.expected_stddev(ranges)))
    if not _checks.is_concrete(weights):
        raise ValueError("level budgets must be numbers and not traced, where consistent is False.")
    precise = np.asarray(weights, dtype=float)
    measured = np.flatnonzero(precise)[::-1]
    if not measured.size or measured[-1] > 0:
        return np.where((starts < stops).all(axis=1), np.inf, 0.0)
    found = np.zeros(starts.shape[0])
    sizes = [branching ** int(height) for height in measured]
    for height, blocks in zip(measured, nodes_of_ranges(starts, stops, sides, sizes), strict=True):
        inside, hidden = (0 if block is None else (block[1] - block[0]).prod(axis=1) for block in blocks)
        found += (inside - hidden) / precise[height]
    return found


def range_variance_by_size(
    n: int,
    branching: int,
    level_epsilons: Any = None,
    *,
    level_rhos: Any = None,
    root: bool = False,
    consistent: bool = True,
    noise: str | None = None,
) -> np.ndarray:
    """The variance of the sum over a range, averaged over the n - r + 1 ranges of each size r = 1, ..., n; [n].

    Arguments as in :func:`range_variance`, for one axis. Exact.

    Cost: O(n height), and Fourier transforms of n numbers for a tree that is cut.
    """
    n = _checks.integer("n", n, least=1)
    weights = level_precisions(n, branching, level_epsilons, level_rhos, root, noise)
    if not _checks.is_concrete(weights):
        raise ValueError("level budgets must be numbers and not traced: these averages are computed on the host.")
    precise = [float(w) for w in weights] + ([] if root else [0.0])
    levels, counts = heights(n, _checks.integer("branching", branching, least=2)), np.arange(n, 0, -1)
    if precise[0] == 0 and n > 1:
        return np.full(n, np.inf)
    if n == 1:
        return np.array([1 / sum(precise) if sum(precise) else np.inf])
    return (_sums_consistent(n, levels, precise) if consistent else _sums_of_fewest(n, levels, precise)) / counts


def _sums_of_fewest(n: int, levels: Sequence[Height], weights: list[float]) -> np.ndarray:
    def inside(level: Height, full: int, cut: int) -> np.ndarray:
        """By size of a range, how many blocks lie in a range, over all ranges; a full block counted ``full`` times."""
        bends = np.zeros(n + 2)  # second differences: a block from p to q lies in (r-s+1)+ - (r-q)+ - (r-n+p)+ ranges of size r
        if level.num_full:
            starts = np.arange(level.num_full) * level.size
            bends[level.size] += full * level.num_full
            bends[starts + level.size + 1] -= full
            bends[n - starts + 1] -= full
        if level.rest:
            bends[level.rest] += cut
            bends[level.rest + 1] -= cut
        return np.cumsum(np.cumsum(bends))[1 : n + 1]

    found = np.zeros(n)
    measured = [height for height, w in enumerate(weights) if w > 0]
    for height, next_above in zip(measured, [*measured[1:], None], strict=True):
        used, size = inside(levels[height], 1, 1), levels[height].size
        if next_above is not None:
            above = levels[next_above]
            used = used - inside(above, above.size // size, -(-above.rest // size))
        found += used / weights[height]
    return found


def _sums_consistent(n: int, levels: Sequence[Height], weights: list[float]) -> np.ndarray:
    """Sums of var(X_(t+r) - X_t) over t, X_k being the estimate of the first k cells: of its variances and autocovariances.

    The covariance of X_j and X_k is a sum over the inner nodes, of terms that vanish unless both ends lie inside the node.
    """
    sizes = np.arange(1, n + 1)
    own = np.zeros(n + 1)  # var X_k
    lagged = np.zeros(n)  # sum over t of cov(X_t, X_(t+r))
    up = {False: 1 / weights[0], True: 0.0}
    cut_share = np.zeros(1)  # a of the block that is cut, if a range holds its first 0, 1, ... cells
    for level, below, weight in zip(levels[1:], levels, weights[1:], strict=False):
        size, s = below.size, level.size
        if level.num_full:
            k = np.arange(s)
            theta = (k % size) / size
            # Times b - k/s at least, so that large k lose no digits.
            inner = up[False] * (k / size - theta * (1 - theta) - k * (k / s) / size)
            own[: level.num_full * s] += np.tile(inner, level.num_full)
            m, q = np.maximum(s - sizes, 0), np.maximum(size - sizes, 0)
            products = m * (m + 1.0) * (2 * m + 1) / 6 + sizes * (m * (m + 1.0) / 2)
            inner = m * (m + 1.0) / (2 * size) - (s // size) * _same_child(q, size) - products / (s * float(size))
            lagged += level.num_full * up[False] * inner
            full = 1 / (weight + size / (s * up[False]))
        else:
            full = 0.0
        if level.rest:
            f, rest = level.rest_full, level.rest
            k, head = np.arange(rest + 1), f * size
            has_cut = level.rest_is_cut
            total = f * up[False] + has_cut * up[True]
            first = np.minimum(k, head) / size
            theta = np.where(k < head, (k % size) / size, 0.0)
            second = np.concatenate([np.zeros(head), cut_share]) if has_cut else np.zeros(rest + 1)
            share = (up[False] * first + up[True] * second) / total
            values = up[False] * (first - theta * (1 - theta)) + up[True] * second**2 - total * share**2
            own[n - rest :] += values
            sums = np.concatenate([np.cumsum(first)[::-1][1:], np.zeros(n - rest)])  # of the first n - r + 1 entries
            q = np.maximum(size - sizes, 0)
            lagged += up[False] * (sums - f * _same_child(q, size))
            lagged += up[True] * _autocorrelation(second, n) - total * _autocorrelation(share, n)
            up, cut_share = {False: full, True: 1 / (weight + 1 / total)}, share
        else:
            up = {False: full, True: 0.0}
    whole = cut_share if levels[-1].rest else np.arange(n + 1) / n
    variance = up[levels[-1].rest > 0]
    own += variance * whole**2
    lagged += variance * _autocorrelation(whole, n)
    before = np.cumsum(own)
    return (before[-1] - before[sizes - 1]) + before[n - sizes] - 2 * lagged


def _same_child(q: np.ndarray, size: int) -> np.ndarray:
    """Sum over two ends in one child, r apart, of theta (1 - theta'), q = size - r."""
    return (q - 1.0) * q * (q + 1.0) / (6 * float(size) ** 2)


def _autocorrelation(values: np.ndarray, n: int) -> np.ndarray:
    """Sum over k of values[k] values[k + r] for r = 1, ..., n."""
    length = 1 << (2 * values.size - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(values, length)) ** 2
    found = np.fft.irfft(spectrum, length)[1 : values.size]
    return np.concatenate([found, np.zeros(n - found.size)])
