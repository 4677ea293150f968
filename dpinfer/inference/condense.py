"""Sums of very many Laplace noises, by fewer terms of the same law.

What a sum's law depends on is sum_i log(1 - a_i^2 s^2), an integral of log(1 - x s^2) over the distribution of x = a^2. The
largest scales are kept as they are; the many small ones are sorted into bins of x, and each bin's distribution is replaced by
the two points and weights that have its first four moments (Gauss quadrature), one point with its weight where all are equal.
For the small ones x s^2 is small wherever it matters, so that the error, of the order of (x s^2)^4 times the fourth power of
the bin's relative width over a thousand, lies far below any that could be seen.
"""

import jax.numpy as jnp
import numpy as np

from dpinfer.noise import contour

# Scales kept one by one, and bins for the others, each up to this factor wide in the square of the scale.
_SINGLE = 64
_BINS = 48
_RATIO = 1.4


def condensed(scales: np.ndarray, single: int = _SINGLE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(largest scales [m, k], others [m, j], how many noises each of the others stands for [m, j]) for ``scales`` [m, n] >= 0.

    Variances are kept; j is 0 if n <= ``single``. Places that are not needed hold scales or counts of 0.
    """
    num_rows, num_terms = scales.shape
    largest_number = int((scales > 0).sum(axis=1).max(initial=1))
    if largest_number <= single:
        # As many places as some row needs, a power of two so that few programs are compiled.
        size = min(1 << (largest_number - 1).bit_length(), num_terms) if largest_number else 1
        kept = -np.sort(np.partition(-scales, size - 1, axis=1)[:, :size], axis=1)
        return kept, np.zeros((num_rows, 0)), np.zeros((num_rows, 0))
    parted = -np.partition(-scales, single, axis=1)
    kept, rest = -np.sort(-parted[:, :single], axis=1), np.square(parted[:, single:])
    top = rest.max(axis=1)
    unit = np.where(top > 0, top, 1.0)[:, None]
    x = rest / unit
    with np.errstate(divide="ignore"):
        place = np.minimum(-np.log(x) / np.log(_RATIO), _BINS - 1).astype(np.int64)
    index = place + _BINS * np.arange(num_rows)[:, None]

    def moment(values: np.ndarray) -> np.ndarray:
        return np.bincount(index.ravel(), values.ravel(), num_rows * _BINS).reshape(num_rows, _BINS)

    number = moment((x > 0).astype(np.float64))
    mean = moment(x) / np.maximum(number, 1.0)
    # About the mean, in units of it: the differences of raw moments would lose their digits.
    centred = np.where(x > 0, x / np.maximum(np.take_along_axis(mean, place, axis=1), 1e-300) - 1.0, 0.0)
    second, third = (moment(centred**power) / np.maximum(number, 1.0) for power in (2, 3))
    # Two points 1 + (skew -+ sqrt(skew^2 + 4 second)) / 2 have these moments; the last bin, which reaches down to 0, and bins of
    # equal entries take one point.
    is_wide = second > 1e-20
    is_wide[:, -1] = False
    skew = np.where(is_wide, third / np.where(is_wide, second, 1.0), 0.0)
    root = np.sqrt(skew**2 + 4 * np.where(is_wide, second, 0.0))
    low, high = (skew - root) / 2, (skew + root) / 2
    share = np.where(is_wide, -low / np.where(is_wide, root, 1.0), 1.0)
    points = np.concatenate([mean * (1 + low), mean * (1 + high)], axis=1)
    counts = np.concatenate([number * (1 - share), number * share], axis=1)
    # The places in use first, and only as many as some row needs, in steps of 16 so that few programs are compiled.
    order = np.argsort(counts <= 0, axis=1, kind="stable")
    used = min(-(-int((counts > 0).sum(axis=1).max()) // 16) * 16, counts.shape[1])
    points, counts = (np.take_along_axis(array, order, axis=1)[:, :used] for array in (points, counts))
    return kept, np.sqrt(np.maximum(points, 0.0) * unit), np.maximum(counts, 0.0)


def alike(coefficients: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(one row of each kind, the kind of each row) of ``coefficients`` [m, n] >= 0 of noises of ``scales`` [n].

    Rows are of a kind if their largest coefficients and scaled coefficients and the sums of their powers agree to ten digits:
    then their laws do. In a complete tree, all cells are of one kind, and ranges of few.
    """
    scaled = coefficients * scales
    numbers = []
    for entries in (coefficients, scaled):
        largest = entries.max(axis=1, initial=0.0)
        squares = np.square(entries / np.where(largest > 0, largest, 1.0)[:, None])
        power = squares
        numbers.append(largest)
        for _ in range(4):
            numbers.append(power.sum(axis=1))
            power = power * squares
    signature = np.stack(numbers, axis=1)
    with np.errstate(divide="ignore"):
        digits = np.where(signature > 0, 10.0 ** np.floor(np.log10(np.where(signature > 0, signature, 1.0))), 1.0)
    _, first, kind = np.unique(np.round(signature / digits, 9) * digits, axis=0, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)


def tail_quantile(scales: np.ndarray, log_p: float, *, lattice: bool = False) -> np.ndarray:
    """``contour.upper_quantile`` of each row of ``scales`` [m, n] >= 0, condensed; 0 for rows of zeros."""
    single, many, counts = condensed(scales)
    is_none = single[:, 0] == 0
    single[is_none, 0] = 1.0
    log_tail = jnp.full(single.shape[0], log_p)
    if many.shape[1] == 0:
        found = contour.upper_quantile(log_tail, jnp.asarray(single), lattice=lattice)
    else:
        counts = np.concatenate([np.ones_like(single), counts], axis=1)
        terms = np.concatenate([single, many], axis=1)
        found = contour.upper_quantile(log_tail, jnp.asarray(terms), jnp.asarray(counts), lattice=lattice)
    return np.where(is_none, 0.0, np.asarray(found))
