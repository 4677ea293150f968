"""Densities of what a cell's neighbours and its region's sum say of it, for one spread of the neighbours.

The setting and its symbols are those of ``neighborhood``, in units of the cells' noise scale. ``by_sums`` has the integral over
m, with the sum's law in it by convolutions; ``by_means`` the simpler one over mu; ``at_equals`` is what is left without a spread.
The first two give grids or nodes, which ``at_sums`` and ``at_means`` evaluate at any place.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._loops import fori_loop

# Nats below the highest density at which integrals end.
_INNER_DEPTH = 26.0
# Points and rounds by which the ends of a log-concave integrand are found; steps to solve for a multiplier.
_SCAN, _ROUNDS, _HALVINGS = 17, 6, 40
# Nodes of the integral over mu; of that over m; points of convolutions and their step, in scales of the noise; of their results.
_MEANS, _SUMS, _POINTS, _STEP, _PLACES = 96, 128, 256, 0.25, 384
# Stands for the logarithm of 0.
_NOTHING = 1e6
# Nats by which densities have at least fallen at the ends of convolutions.
_FADED = 16.0
# How far the density of mu may be off, relatively, where log f is taken for a quadratic over tau / sqrt(n).
TOLERANCE, MOST_BENT = 5e-4, 0.3
# Entries of tables of densities.
_TABLE = 512


class Table(NamedTuple):
    """Logarithms of even densities at unit sinh(k step), k = -1, 0, 1, ... [laws, k]; lines behind the last."""

    log: Any
    unit: Any
    step: Any
    end: Any
    slope: Any


class Spread(NamedTuple):
    """Logarithms of an even density at k step, k = -1, 0, 1, ...; behind the last it falls by 1 for 1."""

    log: Any
    step: Any


class Noise(NamedTuple):
    """The laws of the noise in what is left of the sum: f.

    Attributes:
        table: of log f.
        kink: where f is the law of one noise its scale, else 0.
        steepest: the largest slope of log f; 0 where there is no sum.
        bends: the most of |l''|, |l''''| and |l' l'''|, of l = log f; [laws, 3].
    """

    table: Table
    kink: np.ndarray
    steepest: np.ndarray
    bends: np.ndarray


def rest_laws(kinds: np.ndarray, most: float) -> Noise:
    """For (number of cells with noise of scale 1, scale of the sum's own noise, infinite if there is none)."""
    from dpinfer.noise import contour

    # As many as a power of 4, so that few programs are compiled.
    kinds = np.resize(kinds, (max(16, 4 ** -(-(len(kinds) - 1).bit_length() // 2)), 2))
    rest, scale = kinds.T
    is_measured = np.isfinite(scale)
    own = np.where(is_measured, scale, 1.0)
    unit = np.where(rest > 0, np.sqrt(2 * (rest + np.square(own))), own)
    # A density falls by the first pole, but for powers, long before this.
    end = np.minimum(most, 60 * unit + 60 * np.maximum(own, rest > 0))
    step = np.arcsinh(end / unit) / (_TABLE - 3)
    v = (np.arange(_TABLE) - 1) * step[:, None]
    u = unit[:, None] * np.sinh(v)
    log = np.where(is_measured[:, None], -np.abs(u) / own[:, None] - np.log(2 * own)[:, None], 0.0)
    several = np.flatnonzero(is_measured & (rest > 0))
    for start in range(0, several.size, 16):
        # As many each time, so that one program is compiled.
        some = np.resize(several[start : start + 16], 16)
        scales = np.stack([np.ones(some.size), own[some]], axis=1)
        counts = np.stack([rest[some], np.ones(some.size)], axis=1)
        value = contour.log_density(jnp.abs(jnp.asarray(u[some])), jnp.asarray(scales)[:, None], jnp.asarray(counts)[:, None])
        log[some] = np.asarray(value)
    is_kinked = is_measured & (rest == 0)
    # Beyond the kink its own side goes on.
    log[is_kinked, 0] = 2 * log[is_kinked, 1] - log[is_kinked, 2]
    slope = (log[:, -1] - log[:, -2]) / (u[:, -1] - u[:, -2])
    derivatives = [log]
    for _ in range(4):
        derivatives.append(np.gradient(derivatives[-1], axis=1) / np.gradient(u, axis=1))
    inside = [x[:, 4:-8] for x in derivatives]
    bends = np.stack([np.abs(x).max(axis=1) for x in (inside[2], inside[4], inside[1] * inside[3])], axis=1)
    bends = np.where(is_kinked[:, None], np.inf, np.where(is_measured[:, None], bends, 0.0))
    table = Table(log, unit, step, u[:, -1], slope)
    steepest = np.where(is_measured, 1 / np.maximum(own, rest > 0), 0.0)
    return Noise(table, np.where(is_kinked, own, 0.0), steepest, bends)


def spread_table(tau: float, far: float) -> Spread:
    """Of a Laplace noise of scale 1 and a normal one of standard deviation tau together."""
    from scipy.special import erfcx, log_ndtr

    # Farther out than that it is a line.
    step = min(tau * tau + 8 * tau + 8, far) / (_TABLE - 3)
    d = (np.arange(_TABLE) - 1) * step

    def side(d: np.ndarray) -> np.ndarray:
        """Log of exp(tau^2 / 2 - d) Phi(d / tau - tau)."""
        x = d / tau - tau
        below = -np.square(d / tau) / 2 + np.log(erfcx(-np.minimum(x, 0) / math.sqrt(2)) / 2)
        return np.where(x < 0, below, tau * tau / 2 - d + log_ndtr(np.maximum(x, 0)))

    return Spread(np.logaddexp(side(d), side(-d)) - math.log(2), np.array(step))


def _with_spread(table: Spread, d: Any) -> Any:
    """Log of that density at d; by cubics."""
    size, width = jnp.abs(d) / table.step, table.log.shape[0]
    near = jnp.minimum(size, width - 2.0)
    k = jnp.minimum(jnp.floor(near), width - 4.0)
    at = k.astype(int)
    return _cubic(near - k, *(table.log[at + i] for i in range(4))) - (size - near) * table.step


def _look_up(table: Table, key: Any, x: Any) -> Any:
    """Of the laws ``key`` [c] at x [c, points]; by cubics."""
    key = key[:, None]
    size = jnp.abs(x)
    near = jnp.minimum(size, table.end[key])
    place = jnp.arcsinh(near / table.unit[key]) / table.step[key]
    width = table.log.shape[1]
    k = jnp.clip(jnp.floor(place), 0, width - 4)
    at, log = key * width + k.astype(int), table.log.reshape(-1)
    return _cubic(place - k, *(log[at + i] for i in range(4))) + table.slope[key] * (size - near)


def _cubic(t: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """At t, through a at -1, b at 0, c at 1 and d at 2."""
    outer = (d * (t + 1) - a * (t - 2)) * t * (t - 1) / 6
    return outer + (b * (t - 1) - c * t) * (t + 1) * (t - 2) / 2


def _window(score: Callable[[Any], Any], low: Any, high: Any, depth: float) -> tuple[Any, Any]:
    """Where a log-concave score of [c, points] has not fallen by ``depth``, and a little more; between low and high [c]."""
    part, row = jnp.linspace(0.0, 1.0, _SCAN)[None], jnp.arange(low.shape[0])

    def narrow(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        x = ends[0][:, None] + (ends[1] - ends[0])[:, None] * part
        value = score(x)
        inside = value >= value.max(axis=1, keepdims=True) - depth
        first, last = jnp.argmax(inside, axis=1), _SCAN - 1 - jnp.argmax(inside[:, ::-1], axis=1)
        return x[row, jnp.maximum(first - 1, 0)], x[row, jnp.minimum(last + 1, _SCAN - 1)]

    return fori_loop(0, _ROUNDS, narrow, (low, high))


def _hull(y: Any, has: Any, left: Any, steepest: Any, reach: Any) -> tuple[Any, Any]:
    """Where the mean can be: among the noisy cells, or where the sum says."""
    by_sum = jnp.where(steepest > 0, left / has.sum(axis=1), y[:, 0])
    return jnp.minimum(y.min(axis=1), by_sum) - reach, jnp.maximum(y.max(axis=1), by_sum) + reach


@jax.jit
def by_means(y: Any, has: Any, left: Any, key: Any, tau: Any, spread: Spread, table: Table, steepest: Any) -> tuple[Any, ...]:
    """The density of mu given all but cell i itself, at nodes: the first [c], step [c], logarithms [c, nodes]; evidence [c]."""
    n = has.sum(axis=1)
    variance = (jnp.square(tau) / n)[:, None]
    nudge = 0.05 * table.unit[key][:, None]

    def prior(mu: Any) -> Any:
        u = left[:, None] - n[:, None] * mu
        below, here, above = (_look_up(table, key, u + k * nudge) for k in (-1, 0, 1))
        slope = n[:, None] * (above - below) / (2 * nudge)
        bend = jnp.square(n)[:, None] * (2 * here - above - below) / jnp.square(nudge)
        kept = 1 - jnp.clip(bend * variance, 0.0, MOST_BENT + 0.2)
        found = here - jnp.log(kept) / 2 - jnp.square(slope) * variance / (2 * kept)
        return jnp.where(steepest[key][:, None] > 0, found, 0.0)

    def given_mean(mu: Any) -> Any:
        of_each = _with_spread(spread, y[:, :, None] - mu[:, None, :])
        return jnp.where(has[:, :, None], of_each, 0.0)

    def score(mu: Any) -> Any:
        return prior(mu) + given_mean(mu).sum(axis=1)

    low, high = _hull(y, has, left, steepest[key], 45 + 9 * tau)
    low, high = _window(score, low, high, _INNER_DEPTH)
    step = (high - low) / (_MEANS - 1)
    mu = low[:, None] + step[:, None] * jnp.arange(_MEANS)[None]
    of_each, of_mean = given_mean(mu), prior(mu)
    others = of_mean + of_each[:, 1:].sum(axis=1)
    evidence = jax.nn.logsumexp(others + of_each[:, 0], axis=1) + jnp.log(step)
    return low, step, others, evidence


@jax.jit
def at_means(x: Any, first: Any, step: Any, log: Any, tau: Any) -> Any:
    """Log of the density of the others given that the cell is x [c, points]."""
    # A grid too coarse for tau is not to show.
    wide = jnp.maximum(tau, 0.7 * step)
    mu = first[:, None] + step[:, None] * jnp.arange(_MEANS)[None]
    terms = log[:, None] - jnp.square((x[:, :, None] - mu[:, None]) / wide[:, None, None]) / 2
    return jax.nn.logsumexp(terms, axis=2) + (jnp.log(step / wide) - math.log(2 * math.pi) / 2)[:, None]


@jax.jit
def by_sums(y: Any, has: Any, left: Any, key: Any, tau: Any, table: Table, kink: Any, steepest: Any) -> tuple[Any, ...]:
    """Log of the density of the others given cell i, on a grid.

    Returns:
        The first place [c], the step [c], logarithms [c, points], and whether the grid is too short [c].
    """
    n = has.sum(axis=1)
    real = n.astype(y.dtype)
    square = jnp.square(tau)
    # A single neighbour's density has a kink, which is lost where places are left out.
    nodes = _SUMS * (2 if y.shape[1] == 3 else 1)

    def given_mean(m: Any) -> tuple[Any, Any, Any]:
        """Of means m [c, nodes] the likeliest cells [c, n, nodes], the multiplier of their sum, and how likely they are."""

        def cells(slope: Any) -> Any:
            slope = slope[:, None, :]
            return jnp.clip(y[:, :, None], m[:, None, :] + square * (slope - 1), m[:, None, :] + square * (slope + 1))

        def halve(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
            middle = (ends[0] + ends[1]) / 2
            off = jnp.where(has[:, :, None], cells(middle) - m[:, None, :], 0.0).sum(axis=1)
            return jnp.where(off < 0, middle, ends[0]), jnp.where(off < 0, ends[1], middle)

        low, high = fori_loop(0, _HALVINGS, halve, (jnp.full_like(m, -1.0), jnp.ones_like(m)))
        slope = (low + high) / 2
        x = cells(slope)
        log = -jnp.abs(y[:, :, None] - x) - jnp.square(x - m[:, None, :]) / (2 * square)
        return x, slope, jnp.where(has[:, :, None], log, 0.0).sum(axis=1)

    def score(m: Any) -> Any:
        return _look_up(table, key, left[:, None] - real[:, None] * m) + given_mean(m)[2]

    low, high = _hull(y, has, left, steepest[key], 45.0)
    low, high = _window(score, low, high, _INNER_DEPTH)
    # Where the sum is as sure as the cells nobody knows whose noise it is that they differ by: any cell may be far out.
    apart = jnp.abs(left - jnp.where(has, y, 0.0).sum(axis=1))
    wide = jnp.where(steepest[key] > 0.8, apart / (_POINTS / 4), 0.0)
    h = jnp.minimum(jnp.maximum(_STEP, wide), 0.4 * tau)
    # All cells are on left / n + h Z, so that their sums are on left + h Z; every ``skip``th of these is looked at.
    origin = left / real
    skip = jnp.maximum(1.0, jnp.ceil((high - low) * real / (h * (nodes - 2))))
    total = skip[:, None] * (jnp.floor((low - origin) * real / (h * skip))[:, None] + jnp.arange(nodes)[None])
    m = origin[:, None] + (h / real)[:, None] * total
    x, slope, _ = given_mean(m)
    # Multiplied by exp(slope x), which is the same for all cells of one sum, they have about the sum asked for; but not so much
    # that they reach around the grid.
    steepness = jnp.maximum(1 - 2 * _FADED / (h * _POINTS), 0.0)[:, None]
    slope = jnp.clip(slope, -steepness, steepness)
    center = jnp.round((x - origin[:, None, None]) / h[:, None, None])
    # In the order of Fourier transforms.
    off = jnp.concatenate([jnp.arange(_POINTS // 2), jnp.arange(-_POINTS // 2, 0)]).astype(y.dtype)
    others = slice(1, None)
    u = (origin[:, None, None] + h[:, None, None] * center[:, others])[..., None] + h[:, None, None, None] * off[None, None, None]
    log = -jnp.abs(y[:, others, None, None] - u) - jnp.square(u - m[:, None, :, None]) / (2 * square)
    log = log + slope[:, None, :, None] * (u - m[:, None, :, None])
    top = log.max(axis=-1)
    density = jnp.exp(log - top[..., None])
    # Where the slope jumps, by -2 of the density, the sum over points is off by h^2 B_2 of where between them.
    peak = (y[:, others, None] - origin[:, None, None]) / h[:, None, None] - center[:, others]
    before = jnp.floor(peak)
    t = peak - before
    at_peak = jnp.exp(
        slope[:, None, :] * (y[:, others, None] - m[:, None, :])
        - jnp.square(y[:, others, None] - m[:, None, :]) / (2 * square)
        - top
    )
    fix = -jnp.minimum(h, 2.0)[:, None, None] * (t * t - t + 1 / 6) * at_peak
    after = off[None, None, None] - before[..., None]
    density = density + jnp.where(after == 0, (fix * (1 - t))[..., None], jnp.where(after == 1, (fix * t)[..., None], 0.0))
    transform = jnp.where(has[:, others, None, None], jnp.fft.rfft(density), 1.0).prod(axis=1)
    together = jnp.fft.irfft(transform, _POINTS)
    # The cell's own place on the grid of all m.
    middle = jnp.argmin(jnp.abs(m - ((low + high) / 2)[:, None]), axis=1)
    begin = center[jnp.arange(y.shape[0]), 0, middle] - _PLACES // 2
    own = (begin[:, None] + jnp.arange(_PLACES)[None])[:, None, :]
    rest = (
        total[:, :, None]
        - jnp.where(has, center.transpose(2, 0, 1), 0.0).sum(axis=2).T[:, :, None]
        - (own - center[:, 0, :, None])
    )
    is_near = jnp.abs(own - center[:, 0, :, None]) <= _POINTS // 2
    value = jnp.take_along_axis(together, jnp.mod(rest, _POINTS).astype(int), axis=2)
    theta = origin[:, None] + h[:, None] * own[:, 0]
    is_some = is_near & (value > 1e-14 * together.max(axis=2, keepdims=True))
    log_value = jnp.log(jnp.where(is_some, value, 1.0)) + slope[:, :, None] * (theta[:, None] - m[:, :, None])
    log_value = log_value - jnp.square(theta[:, None] - m[:, :, None]) / (2 * square)
    stride = h * skip
    scale = kink[key]
    coarse = stride / (2 * jnp.where(scale > 0, scale, 1.0))
    at_kink = jnp.log((1 / coarse - (1 / jnp.tanh(coarse) - 1)) / 2 / jnp.where(scale > 0, scale, 1.0))
    noise = _look_up(table, key, left[:, None] - real[:, None] * m)
    noise = jnp.where((scale > 0)[:, None] & (total == 0), at_kink[:, None], noise)
    weight = noise + jnp.where(has[:, others, None], top, 0.0).sum(axis=1)
    found = jax.nn.logsumexp(jnp.where(is_some, log_value + weight[:, :, None], -jnp.inf), axis=1)
    found = (
        found
        + (
            jnp.log(stride)
            + (real - 2) * jnp.log(h)
            - (real - 1) * (math.log(2) + math.log(2 * math.pi) / 2 + jnp.log(tau))
            - jnp.log(real) / 2
        )[:, None]
    )
    return theta[:, 0], h, found, high - low > _PLACES * h


@jax.jit
def at_sums(x: Any, first: Any, step: Any, log: Any) -> Any:
    place = (x - first[:, None]) / step[:, None]
    k = jnp.clip(jnp.floor(place), 1, log.shape[1] - 3).astype(int)
    row, t = jnp.arange(x.shape[0])[:, None], place - k
    around = [log[row, k + i] for i in (-1, 0, 1, 2)]
    # Next to where nothing is left no cubic: it would swing.
    is_some = functools.reduce(jnp.logical_and, (x > -jnp.inf for x in around)) & (place >= 0) & (place <= log.shape[1] - 1)
    b, c = (jnp.maximum(x, -_NOTHING) for x in around[1:3])
    return jnp.where(is_some, _cubic(t, *around), jnp.where((t < 0) | (t > 1), -_NOTHING, b + t * (c - b)))


@jax.jit
def at_equals(x: Any, y: Any, has: Any, left: Any, key: Any, table: Table) -> Any:
    """The same where all neighbours are equal to the cell."""
    others = jnp.where(has[:, 1:, None], -jnp.abs(y[:, 1:, None] - x[:, None]) - math.log(2), 0.0).sum(axis=1)
    return others + _look_up(table, key, left[:, None] - has.sum(axis=1)[:, None] * x)
