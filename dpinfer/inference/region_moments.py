"""What moves the cells of regions whose noisy sums differ from their noisy cells: means and variances, without densities.

With K the logarithm of one noise's generating function, what q noises of a sum are, given the sum, has mean q <K'> and variance
q^2 var(K') + q <K''>, averages along the path of ``noise.contour``: an integral for each region. Where many regions are alike a
table of these over delta, the difference, serves all; for a single cell they are elementary.
"""

from functools import lru_cache, partial

import jax.numpy as jnp
import numpy as np

from dpinfer._chunks import in_chunks
from dpinfer.noise import contour
from dpinfer.noise.asinh_series import fitted

# So many regions of one size share a table, of differences up to so many standard deviations.
_ENOUGH, _FAR = 256, 50.0
# Scales in integers from which on neighbouring integers are as likely.
_WIDE = 1e5
# Integrals that are looked at together; rows of a table.
_AT_ONCE, _KNOTS = 1024, 1024


def region_moments(
    size: np.ndarray, delta: np.ndarray, cell_scale: float, sum_scales: np.ndarray, *, is_lattice: bool
) -> np.ndarray:
    """Of the regions, what moves their cells: five rows, a to e.

    The e of q cells has mean a q and variance b q^2 + c q. That of the whole region has mean d and variance e, too, which lose no
    digits where its sum has less noise than a cell.

    Args:
        size: int64 [regions], at least 1.
        delta: float64 [regions], noisy sum less noisy cells.
        cell_scale: of the noise of each cell.
        sum_scales: [regions], of the noise of sums; inf where none was measured.
        is_lattice: whether the noise is discrete.
    """
    is_measured = np.isfinite(sum_scales)
    scales = np.stack([np.full(size.size, cell_scale), np.where(is_measured, sum_scales, cell_scale)], axis=1)
    counts = np.stack([size, np.ones(size.size)], axis=1)
    if is_lattice:
        from dpinfer.noise.laws import widths  # which loads numpyro

        scales = np.asarray(widths(jnp.asarray(scales)))
    moments = np.zeros((5, size.size))
    alone = 2 * np.square(scales[:, 0])
    moments[2], moments[4] = alone, alone * size
    far = np.abs(delta)
    group = _numbered(_numbered(scales[:, 1]) * (size.max() + 1) + size)
    stddev = np.sqrt(alone * size + 2 * np.square(scales[:, 1]))
    is_single = is_measured & (size == 1) & (not is_lattice)
    moments[:, is_single] = _given_single(far[is_single], scales[is_single])
    is_common = is_measured & ~is_single & (far <= _FAR * stddev) & (far >= is_lattice)
    is_common &= np.bincount(group[is_common], minlength=size.size)[group] >= _ENOUGH
    for own in (np.flatnonzero(is_common & (group == some)) for some in np.unique(group[is_common])):
        moments[:, own] = _by_table(far[own], scales[own[0]], counts[own[0]], is_lattice)
    own = np.flatnonzero(is_measured & ~is_common & ~is_single)
    if own.size:
        moments[:, own] = _given_sums(far[own], scales[own], counts[own], is_lattice)
    moments[[0, 3]] *= np.sign(delta)
    moments[3] = np.where(is_measured, delta - moments[3], 0.0)
    return moments


def _numbered(x: np.ndarray) -> np.ndarray:
    """Which of the distinct values each is."""
    return np.zeros(x.size, dtype=np.int64) if not x.size or (x == x[0]).all() else np.unique(x, return_inverse=True)[1]


def _given_sums(delta: np.ndarray, scales: np.ndarray, counts: np.ndarray, is_lattice: bool) -> np.ndarray:
    """The moments [5, rows] for delta >= 0, [rows] and twice [rows, 2]; in place of d what the sum's own noise is on average."""
    least = np.maximum(delta, float(is_lattice))
    parts = np.stack(in_chunks(partial(contour.parts_given_sum, lattice=is_lattice), (least, scales, counts), _AT_ONCE))
    # Of wide laws 0 is as 1.
    none = np.flatnonzero((delta == 0) & is_lattice & (scales.max(axis=1) < _WIDE))
    if none.size:
        parts[:, none] = in_chunks(contour.parts_given_no_sum, (scales[none], counts[none]), _AT_ONCE)
    mean, spread, bend = parts
    return np.stack([mean[:, 0], spread[:, 0], bend[:, 0], mean[:, 1], spread[:, 1] + bend[:, 1]])


def _given_single(delta: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """``_given_sums`` for regions of one cell: of exp(-|e| / b - |delta - e| / b_p), which is exponential between its kinks."""
    near, far = 1 / scales.T
    both = near + far
    rate = near - far
    turn = rate * delta
    # Logarithms of the masses before 0, between, and behind delta, each times exp(far delta).
    log = np.stack([-np.log(both), np.zeros(delta.size), -turn - np.log(both)])
    is_small = np.abs(turn) < 1e-3
    k = np.where(is_small, 1.0, turn)
    part = np.where(is_small, 1 - turn / 2 + turn**2 / 6, -np.expm1(-np.abs(k)) / np.abs(k))
    with np.errstate(divide="ignore"):
        log[1] = np.log(delta) + np.log(part) + np.where(is_small, 0.0, np.maximum(-turn, 0.0))
    weights = np.exp(log - log.max(axis=0))
    weights /= weights.sum(axis=0)
    # Between the two, a law that falls (or rises) by that much, in units of delta.
    fallen = np.exp(-np.abs(k))
    middle = np.where(is_small, 0.5 - turn / 12, np.where(k > 0, 0.0, 1.0) + np.sign(k) * (1 / np.abs(k) - fallen / (1 - fallen)))
    spread = np.where(is_small, 1 / 12 - turn**2 / 240, 1 / k**2 - fallen / (1 - fallen) ** 2)
    means = np.stack([-1 / both, delta * middle, delta + 1 / both])
    mean = (weights * means).sum(axis=0)
    variances = np.stack([1 / both**2, delta**2 * spread, 1 / both**2])
    variance = (weights * (variances + np.square(means - mean))).sum(axis=0)
    by_sum = delta - mean
    return np.stack([mean, np.zeros(delta.size), variance, by_sum, variance])


def _by_table(delta: np.ndarray, scales: np.ndarray, counts: np.ndarray, is_lattice: bool) -> np.ndarray:
    """``_given_sums`` for many sums of regions that are otherwise alike; by cubics in asinh(delta / stddev)."""
    stddev = float(np.sqrt(2 * (np.square(scales) * counts).sum()))
    # As far as a power of 2, so that the next release has the same table.
    reach = stddev * 2.0 ** np.ceil(np.log2(max(float(delta.max()) / stddev, 4.0)))
    begin, step, table = _table(tuple(scales.tolist()), tuple(counts.tolist()), stddev, float(reach), is_lattice)
    place = (np.arcsinh(delta / stddev) - begin) / step
    k = np.clip(place.astype(np.int64), 0, table.shape[2] - 1)
    u, (a, b, c, d) = place - k, table.take(k, axis=2)
    return a + u * (b + u * (c + u * d))


@lru_cache(maxsize=256)
def _table(
    scales: tuple[float, ...], counts: tuple[float, ...], stddev: float, reach: float, is_lattice: bool
) -> tuple[float, float, np.ndarray]:
    """The moments as functions of delta between 0 (of integers 1) and ``reach``.

    Returns:
        The first asinh(delta / stddev), the step between knots, and the coefficients of cubics, [4, 5, intervals].
    """

    def function(z: np.ndarray, _: np.ndarray) -> np.ndarray:
        many_scales, many_counts = (np.broadcast_to(x, (z.size, 2)) for x in (scales, counts))
        return _given_sums(z.reshape(-1), many_scales, many_counts, is_lattice).T.reshape(*z.shape, 5)

    found = fitted(function, np.array([stddev]), np.array([float(is_lattice)]), np.array([reach]))
    begin, step = float(found.begin[0]), float(found.length[0]) / (_KNOTS - 1)
    # One knot more on either side.
    x = np.linspace(-1, 1, _KNOTS)
    rows = np.polynomial.chebyshev.chebval(np.concatenate([[2 * x[0] - x[1]], x, [2 * x[-1] - x[-2]]]), found.coefficients[0])
    a, b, c, d = (rows[:, i : i + _KNOTS - 1] for i in range(4))
    # The cubic through four knots, by powers of the part of the way from the second to the third.
    cubic = (b, c - d / 6 - a / 3 - b / 2, (a + c) / 2 - b, (d - a) / 6 + (b - c) / 2)
    return begin, step, np.stack(cubic)
