"""Single noisy cells, given that cells nearby are alike: their posterior under a prior whose spread the noisy cells tell.

Let C be the K neighbours of cell i in its region, n = K + 1, and y noisy values. A priori x_i and the x_k of C are mu + tau z, z
standard normal, mu flat; all other cells are flat. These are integrated out: their noises and that of the region's sum make one,
of density f, in what remains of the sum, r = y_p - (the y of all cells but C and i). Neighbours are not among those: the noise of
each cell occurs once. With S = x_i + sum x_k and m = S / n

    int dmu prod N(x_j; mu, tau^2) = const exp(-sum (x_j - m)^2 / (2 tau^2))

so that given m the x_j are independent but for their sum: sums are convolutions, and one integral, over m, is left for each tau
(``_by_sums``). Where f hardly bends over tau / sqrt(n) it is simpler: f(r - n m) is what some density of mu spreads to, and given
mu the x_j are independent (``_by_means``).

The weights of the taus are those that make the noisy cells of all neighbourhoods most likely, as if these were independent of
each other. What they have in common makes no estimate wrong, only less sure than it looks.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._loops import fori_loop
from dpinfer.inference.mmse import PosteriorAnswers, _parts
from dpinfer.inference.posterior_grid import Laws
from dpinfer.inference.product_laws import product_laws
from dpinfer.release import as_measurement

METHODS = ("hierarchical", "printed")
# Nats below the highest density at which grids of laws end, and those of integrals.
_DEPTH, _INNER_DEPTH = 34.0, 26.0
# Points and rounds by which the ends of a log-concave integrand are found; steps to solve for a multiplier.
_SCAN, _ROUNDS, _HALVINGS = 17, 6, 40
# Nodes of the integral over mu; of that over m; points of convolutions and their step, in scales of the noise; of their results.
_MEANS, _SUMS, _POINTS, _STEP, _PLACES = 96, 128, 256, 0.25, 384
# Stands for the logarithm of 0.
_NOTHING = 1e6
# Nats by which densities have at least fallen at the ends of convolutions.
_FADED = 16.0
# How far the density of mu may be off, relatively, where log f is taken for a quadratic over tau / sqrt(n).
_TOLERANCE, _MOST_BENT = 5e-4, 0.3
# Neighbourhoods that are looked at together.
_CHUNK, _FEW = 256, 16
# Entries of tables of densities.
_TABLE = 512
# Steps of the estimate of weights; where it stops; nats below the best at which a spread is left out of a cell's mixture.
_UPDATES, _SETTLED, _LEFT_OUT = 1000, 1e-7, 14.0
# Steps of Boole's rule.
_PIECE = 4
_OFFSETS = np.array([0, 0.25, 0.5, 1, 2, 4, 8, 16, 32])


def neighborhood_posterior(
    measurement: Any,
    shape: int | Sequence[int],
    *,
    method: str = "hierarchical",
    distance: Any = 1,
    spreads: Any = None,
    num_points: int = 512,
) -> PosteriorAnswers:
    """The posterior of every cell, using that neighbouring cells of one region are alike.

    Args:
        measurement: noisy cells and the noisy sums of regions, as ``mechanisms.ispe`` releases and :func:`mmse` takes.
        shape: n, or the cells along each axis.
        method: "hierarchical": a cell and its neighbours differ by a normal law whose spread is a mixture, estimated from all
            noisy cells, so that cells that are not alike are left as they are. "printed": the paper's product of the noise's
            densities, as if neighbours were equal and the sum's remainder did not have their noise in it too; for comparison.
        distance: Euclidean, in cells, within which cells of a region are neighbours; as in ``grow_regions``.
        spreads: of "hierarchical", the standard deviations that are mixed, in units of the cells' noise scale; one alone is taken
            to be known. Left out, 0, 1/4, 1/2, 1, ... up to where neighbours say nothing.
        num_points: of the grid of each law, at least 64.

    Returns:
        A :class:`PosteriorAnswers`. "hierarchical": in units of the scale, means and standard deviations are right to about 1e-4
        given the weights of the spreads, where a sum is as sure as the cells and off by dozens of scales to 1e-2. Where cells are
        so far apart that their mean can be anywhere, a spread that is small against that counts as 0. A law may have several
        modes, and "highest" intervals need not be the shortest then. Discrete noise is taken as continuous: of scale b its
        variance is less by a part 1 / (12 b^2), and intervals end between integers. "printed": means to about 1e-6, ends of
        intervals to 1e-4.

    How it covers: with noise of scale 1 in five cells and of 3 in their sum, 90% intervals of "hierarchical" hold the middle cell
    with probability 0.9 where the cells' spread is 0, 0.3, 1 or 3 and known; those of "printed" with 0.92, 0.87, 0.66 and 0.42.
    With the spread estimated they cover 90% on average over cells, not of each kind of cell: among empty ones a peak is drawn to
    what lies around it, and held less often. Whatever the cells are only the intervals of :func:`mmse` cover.

    Cost: some milliseconds for each spread and each cell of a region of fewer than some 50 cells, a tenth of that for others.

    Reference: Xiao, Xiong and Yuan 2011, algorithm 3, neighbourhood reference. Its last factor is right where there is none.

    Raises:
        ValueError: for anything wrong with the arguments, or a measurement of anything else.
    """
    _checks.choice("method", method, METHODS)
    num_points = _checks.integer("num_points", num_points, least=64)
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("neighborhood_posterior needs 64-bit numbers: type dpinfer.enable_x64() first.")
    found = _parts(as_measurement(measurement))
    sides = _checks.grid("shape", shape if isinstance(shape, Sequence) else [shape])
    if math.prod(sides) != found.values.size:
        raise ValueError(f"shape must have the {found.values.size} cells of the measurement, got {sides}.")
    around = _neighbors(found.labels, sides, _distance(distance))
    given = None if spreads is None else _spreads(spreads)
    if method == "printed":
        if given is not None:
            raise ValueError(f'spreads must be left out with method "printed", which takes neighbours as equal; got {spreads!r}.')
        return _printed(found, around, num_points)
    unit = found.cell_scale
    values, count = found.values / unit, (around >= 0).sum(axis=1)
    left = (found.sums / unit - np.bincount(found.labels, values))[found.labels] + values
    left = left + np.where(around >= 0, values[around], 0.0).sum(axis=1)
    scale = found.sum_scales[found.labels] / unit
    is_measured = np.isfinite(scale)
    left = np.where(is_measured, left, 0.0)
    rest = np.where(is_measured, np.bincount(found.labels)[found.labels] - 1 - count, 0)
    # The first law is that of no sum.
    kinds, key = np.unique(np.concatenate([[[-1, np.inf]], np.stack([rest, scale], axis=1)]), axis=0, return_inverse=True)
    key = key.reshape(-1)[1:]
    groups = [
        _Group(rows, np.where(has, values[which], values[rows, None]), has, left[rows], key[rows])
        for rows, which, has in _by_width(around)
    ]
    far = max((float(np.ptp(group.y, axis=1).max()) for group in groups), default=0.0)
    if given is None:
        given = np.append(0.0, 0.25 * 2.0 ** np.arange(5 + max(0, math.ceil(math.log2(max(far, 1.0))))))
    most = float(np.abs(left).max(initial=0)) + around.shape[1] * (float(np.abs(values).max(initial=0)) + 200)
    noise = _rest_laws(kinds, most)
    tables = [_spread_table(tau, far + 200) if tau > 0 else None for tau in given]
    evidences = [_evidences(group, given, tables, noise) for group in groups]
    told = [evidence for evidence, group in zip(evidences, groups, strict=True) if group.has.shape[1] > 1]
    log_weights = _log_weights(np.concatenate([np.zeros((0, given.size)), *told]))
    num_pieces = -(-(num_points - 1) // _PIECE)
    places, densities, masses = (np.zeros((values.size, _PIECE * num_pieces + 1)) for _ in range(3))
    for group, evidence in zip(groups, evidences, strict=True):
        mixture = _mixture(group, given, tables, noise, log_weights, evidence)
        x, rule = _grid(group, *_ends(group, mixture), num_pieces)
        log = mixture(x)
        p = np.exp(log - log.max(axis=1, keepdims=True))
        p /= (p * rule).sum(axis=1, keepdims=True)
        rows = group.rows
        places[rows], densities[rows], masses[rows] = (x - group.y[:, :1]) * unit, p / unit, p * rule
    laws = Laws(places, densities, masses, np.zeros(values.size, dtype=bool), _PIECE)
    return PosteriorAnswers(found.values + laws.means, laws.stddevs, found.values, lambda: (laws, np.arange(values.size)))


class _Group(NamedTuple):
    """Cells with about as many neighbours, in units of the cells' scale.

    Attributes:
        rows: which cells, [c].
        y: noisy values of each and its neighbours, [c, n].
        has: whether there is such a neighbour, [c, n]; the cell itself is the first.
        left: what the others leave of the sum, [c].
        key: the law of its noise, [c].
    """

    rows: np.ndarray
    y: np.ndarray
    has: np.ndarray
    left: np.ndarray
    key: np.ndarray


class _Table(NamedTuple):
    """Logarithms of even densities at unit sinh(k step), k = -1, 0, 1, ... [laws, k]; lines behind the last."""

    log: Any
    unit: Any
    step: Any
    end: Any
    slope: Any


class _Spread(NamedTuple):
    """Logarithms of an even density at k step, k = -1, 0, 1, ...; behind the last it falls by 1 for 1."""

    log: Any
    step: Any


class _Noise(NamedTuple):
    """The laws of the noise in what is left of the sum: f.

    Attributes:
        table: of log f.
        kink: where f is the law of one noise its scale, else 0.
        steepest: the largest slope of log f; 0 where there is no sum.
        bends: the most of |l''|, |l''''| and |l' l'''|, of l = log f; [laws, 3].
    """

    table: _Table
    kink: np.ndarray
    steepest: np.ndarray
    bends: np.ndarray


def _distance(value: Any) -> float:
    number = float(_checks.fraction("distance", value))
    if number < 1:
        raise ValueError(f"distance must be at least 1, got {value!r}: the nearest cells are 1 apart.")
    return number


def _spreads(value: Any) -> np.ndarray:
    try:
        found = np.atleast_1d(np.asarray(value, dtype=float))
    except (TypeError, ValueError):
        raise ValueError(f"spreads must be numbers, got {value!r}.") from None
    if found.ndim != 1 or not found.size:
        raise ValueError(f"spreads must be one number or several, got {value!r}; leave it out for a grid that suits the data.")
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise ValueError(f"spreads must be finite and not negative, in units of the cells' noise scale, got {value!r}.")
    return np.unique(found)


def _neighbors(labels: np.ndarray, sides: tuple[int, ...], reach: float) -> np.ndarray:
    """The other cells of its region within ``reach`` of each cell, int64 [n, k]; -1 where there is none."""
    place, own = np.arange(labels.size).reshape(sides), labels.reshape(sides)
    found = []
    steps = [range(-min(math.floor(reach), side - 1), min(math.floor(reach), side - 1) + 1) for side in sides]
    for step in itertools.product(*steps):
        if any(step) and sum(x * x for x in step) <= reach * reach * (1 + 1e-12):
            here = tuple(slice(max(0, -x), side - max(0, x)) for x, side in zip(step, sides, strict=True))
            there = tuple(slice(max(0, x), side - max(0, -x)) for x, side in zip(step, sides, strict=True))
            neighbor = np.full(sides, -1)
            neighbor[here] = np.where(own[here] == own[there], place[there], -1)
            found.append(neighbor.reshape(-1))
    return np.stack(found, axis=1) if found else np.zeros((labels.size, 0), dtype=np.int64)


def _by_width(around: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Cells by how many neighbours they have, these rounded up to 0, 4, 8, ...: cells [c], cells and neighbours, whether any."""
    count = (around >= 0).sum(axis=1)
    width = np.where(count > 0, 2 ** np.maximum(2, np.ceil(np.log2(np.maximum(count, 1)))).astype(int), 0)
    found = []
    for some in np.unique(width).tolist():
        rows = np.flatnonzero(width == some)
        order = np.argsort(around[rows] < 0, axis=1, kind="stable")[:, :some]
        which = np.take_along_axis(around[rows], order, axis=1)
        missing = np.full((rows.size, some - which.shape[1]), -1)
        which = np.concatenate([rows[:, None], which, missing], axis=1)
        found.append((rows, which, which >= 0))
    return found


def _rest_laws(kinds: np.ndarray, most: float) -> _Noise:
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
    table = _Table(log, unit, step, u[:, -1], slope)
    steepest = np.where(is_measured, 1 / np.maximum(own, rest > 0), 0.0)
    return _Noise(table, np.where(is_kinked, own, 0.0), steepest, bends)


def _spread_table(tau: float, far: float) -> _Spread:
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

    return _Spread(np.logaddexp(side(d), side(-d)) - math.log(2), np.array(step))


def _with_spread(table: _Spread, d: Any) -> Any:
    """Log of that density at d; by cubics."""
    size, width = jnp.abs(d) / table.step, table.log.shape[0]
    near = jnp.minimum(size, width - 2.0)
    k = jnp.minimum(jnp.floor(near), width - 4.0)
    at = k.astype(int)
    return _cubic(near - k, *(table.log[at + i] for i in range(4))) - (size - near) * table.step


def _look_up(table: _Table, key: Any, x: Any) -> Any:
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
def _by_means(y: Any, has: Any, left: Any, key: Any, tau: Any, spread: _Spread, table: _Table, steepest: Any) -> tuple[Any, ...]:
    """The density of mu given all but cell i itself, at nodes: the first [c], step [c], logarithms [c, nodes]; evidence [c]."""
    n = has.sum(axis=1)
    variance = (jnp.square(tau) / n)[:, None]
    nudge = 0.05 * table.unit[key][:, None]

    def prior(mu: Any) -> Any:
        u = left[:, None] - n[:, None] * mu
        below, here, above = (_look_up(table, key, u + k * nudge) for k in (-1, 0, 1))
        slope = n[:, None] * (above - below) / (2 * nudge)
        bend = jnp.square(n)[:, None] * (2 * here - above - below) / jnp.square(nudge)
        kept = 1 - jnp.clip(bend * variance, 0.0, _MOST_BENT + 0.2)
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
def _at_means(x: Any, first: Any, step: Any, log: Any, tau: Any) -> Any:
    """Log of the density of the others given that the cell is x [c, points]."""
    # A grid too coarse for tau is not to show.
    wide = jnp.maximum(tau, 0.7 * step)
    mu = first[:, None] + step[:, None] * jnp.arange(_MEANS)[None]
    terms = log[:, None] - jnp.square((x[:, :, None] - mu[:, None]) / wide[:, None, None]) / 2
    return jax.nn.logsumexp(terms, axis=2) + (jnp.log(step / wide) - math.log(2 * math.pi) / 2)[:, None]


@jax.jit
def _by_sums(y: Any, has: Any, left: Any, key: Any, tau: Any, table: _Table, kink: Any, steepest: Any) -> tuple[Any, ...]:
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
def _at_sums(x: Any, first: Any, step: Any, log: Any) -> Any:
    place = (x - first[:, None]) / step[:, None]
    k = jnp.clip(jnp.floor(place), 1, log.shape[1] - 3).astype(int)
    row, t = jnp.arange(x.shape[0])[:, None], place - k
    around = [log[row, k + i] for i in (-1, 0, 1, 2)]
    # Next to where nothing is left no cubic: it would swing.
    is_some = functools.reduce(jnp.logical_and, (x > -jnp.inf for x in around)) & (place >= 0) & (place <= log.shape[1] - 1)
    b, c = (jnp.maximum(x, -_NOTHING) for x in around[1:3])
    return jnp.where(is_some, _cubic(t, *around), jnp.where((t < 0) | (t > 1), -_NOTHING, b + t * (c - b)))


@jax.jit
def _at_equals(x: Any, y: Any, has: Any, left: Any, key: Any, table: _Table) -> Any:
    """The same where all neighbours are equal to the cell."""
    others = jnp.where(has[:, 1:, None], -jnp.abs(y[:, 1:, None] - x[:, None]) - math.log(2), 0.0).sum(axis=1)
    return others + _look_up(table, key, left[:, None] - has.sum(axis=1)[:, None] * x)


def _in_turn(
    function: Callable[..., Any], arrays: Sequence[np.ndarray], fixed: Sequence[Any], size: int
) -> tuple[np.ndarray, ...]:
    """``function(*arrays, *fixed)`` for ``size`` rows at a time, one program for all."""
    total = arrays[0].shape[0]
    found = []
    for start in range(0, total, size):
        rows = np.minimum(np.arange(start, start + size), total - 1)
        value = function(*(x[rows] for x in arrays), *fixed)
        found.append([np.asarray(x)[: total - start] for x in (value if isinstance(value, tuple) else (value,))])
    return tuple(np.concatenate(x) for x in zip(*found, strict=True))


def _evidences(group: _Group, spreads: np.ndarray, tables: list[Any], noise: _Noise) -> np.ndarray:
    """Log of how likely the noisy cells of each neighbourhood are with each spread, whatever their mean; [c, spreads]."""
    y, has = group.y, group.has
    if has.shape[1] == 1:
        return np.zeros((y.shape[0], spreads.size))
    none = np.zeros(y.shape[0])
    found = []
    for tau, table in zip(spreads.tolist(), tables, strict=True):
        if tau > 0:
            arrays = (y, has, none, none.astype(int))
            found.append(_in_turn(_by_means, arrays, (tau, table, noise.table, noise.steepest), _CHUNK)[3])
        else:
            found.append(_equal_evidence(y, has))
    return np.stack(found, axis=1)


def _equal_evidence(y: np.ndarray, has: np.ndarray) -> np.ndarray:
    """The same with no spread: of exp(-sum |y - x|) / 2^n the integral, piece by piece."""
    order = np.argsort(y, axis=1)
    y, has = np.take_along_axis(y, order, axis=1), np.take_along_axis(has, order, axis=1)
    n = has.sum(axis=1, keepdims=True)
    log = -np.where(has[:, None], np.abs(y[:, :, None] - y[:, None]), 0.0).sum(axis=2)
    slope = (n - 2 * np.cumsum(has, axis=1))[:, :-1]
    width = np.diff(y, axis=1)
    high, low = np.maximum(log[:, 1:], log[:, :-1]), np.minimum(log[:, 1:], log[:, :-1])
    part = np.where(slope == 0, width, -np.expm1(low - high) / np.maximum(np.abs(slope), 1))
    top = log.max(axis=1, keepdims=True)
    total = (np.exp(high - top) * part).sum(axis=1) + (np.exp(log[:, [0, -1]] - top) / n).sum(axis=1)
    return np.log(total) + top[:, 0] - n[:, 0] * math.log(2)


def _log_weights(evidences: np.ndarray) -> np.ndarray:
    """The weights of the spreads that make all most likely; by EM."""
    m, k = evidences.shape
    weights = np.full(k, 1 / k)
    if not m or k == 1:
        return np.log(weights)
    likely = np.exp(evidences - evidences.max(axis=1, keepdims=True))
    for _ in range(_UPDATES):
        share = likely * weights
        new = (share / share.sum(axis=1, keepdims=True)).mean(axis=0)
        change, weights = np.abs(new - weights).max(), new
        if change < _SETTLED:
            break
    with np.errstate(divide="ignore"):
        return np.log(weights)


def _mixture(
    group: _Group, spreads: np.ndarray, tables: list[Any], noise: _Noise, log_weights: np.ndarray, evidence: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """The function that gives the log density of each cell, but for a constant, at places [c, points]."""
    y, has, left, key = group.y, group.has, group.left, group.key
    n = has.sum(axis=1)
    if has.shape[1] == 1:
        log_weights, spreads = np.zeros(1), np.zeros(1)
        evidence = np.zeros((y.shape[0], 1))
    support = log_weights + evidence
    is_in = support > support.max(axis=1, keepdims=True) - _LEFT_OUT
    parts: list[tuple[float, np.ndarray, Callable[[np.ndarray], np.ndarray]]] = []
    for t, tau in enumerate(spreads.tolist()):
        rows = np.flatnonzero(is_in[:, t])
        bends = noise.bends[key[rows]] * np.array([tau**2, tau**4 / 8, tau**4 / 2]) if tau > 0 else np.zeros((rows.size, 3))
        count = n[rows]
        is_simple = (bends[:, 0] * count < _MOST_BENT) & ((bends[:, 1] + bends[:, 2]) * count**2 < _TOLERANCE)
        is_small = ~is_simple & (count <= 3)
        for some, is_mean, width in (
            (rows[is_simple], True, None),
            (rows[is_small], False, 3),
            (rows[~is_simple & ~is_small], False, None),
        ):
            if not some.size:
                continue
            data = (y[some, :width], has[some, :width], left[some], key[some])
            if tau > 0 and is_mean:
                state = _in_turn(_by_means, data, (tau, tables[t], noise.table, noise.steepest), _CHUNK)[:3]
                parts.append((log_weights[t], some, functools.partial(_parts_at, _at_means, state, (tau,), _FEW)))
            elif tau > 0:
                *state, is_wide = _in_turn(_by_sums, data, (tau, noise.table, noise.kink, noise.steepest), _FEW)
                enough, state = some[~is_wide], [x[~is_wide] for x in state]
                parts.append((log_weights[t], enough, functools.partial(_parts_at, _at_sums, state, (), _CHUNK)))
                # Where the mean can be almost anywhere, a spread so small against that makes next to no difference.
                data, some = tuple(x[is_wide] for x in data), some[is_wide]
            if tau == 0 or not is_mean:
                parts.append((log_weights[t], some, functools.partial(_parts_at, _at_equals, data, (noise.table,), _CHUNK)))

    def log_density(x: np.ndarray) -> np.ndarray:
        found = np.full(x.shape, -np.inf)
        for weight, rows, at in parts:
            if not rows.size:
                continue
            found[rows] = np.logaddexp(found[rows], weight + at(x[rows]))
        return found - np.abs(x - y[:, :1])

    return log_density


def _parts_at(function: Any, state: Sequence[np.ndarray], fixed: Sequence[Any], size: int, x: np.ndarray) -> np.ndarray:
    return _in_turn(function, (x, *state), fixed, size)[0]


def _ends(group: _Group, log_density: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Where the grid of each law begins and ends."""
    offsets = np.concatenate([-_OFFSETS[:0:-1], _OFFSETS])
    by_sum = group.left / group.has.sum(axis=1)
    # Where the cell is if it alone makes up for what the sum is off by.
    alone = group.left - np.where(group.has, group.y, 0.0)[:, 1:].sum(axis=1)
    kinks = np.concatenate([group.y, by_sum[:, None], alone[:, None]], axis=1)
    x = np.sort((kinks[:, :, None] + offsets).reshape(group.rows.size, -1), axis=1)
    log = log_density(x)
    inside = log > log.max(axis=1, keepdims=True) - _DEPTH
    first, last = inside.argmax(axis=1), x.shape[1] - 1 - inside[:, ::-1].argmax(axis=1)
    row = np.arange(x.shape[0])
    ends = []
    for near, far in ((first, np.maximum(first - 1, 0)), (last, np.minimum(last + 1, x.shape[1] - 1))):
        # Between two places of which one is inside: a line through the logarithms.
        a, b, at_a, at_b = x[row, near], x[row, far], log[row, near], log[row, far]
        level = log.max(axis=1) - _DEPTH
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(np.isfinite(at_b) & (at_b < at_a), (at_a - level) / (at_a - at_b), 1.0)
        ends.append(a + (b - a) * np.clip(part, 0.0, 1.0))
    return ends[0], ends[1]


def _grid(group: _Group, first: np.ndarray, last: np.ndarray, num_pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """Places [c, points] and the weights of Boole's rule, on pieces of four steps with no kinks inside."""
    by_sum = group.left / group.has.sum(axis=1)
    kinks = np.sort(np.concatenate([group.y, by_sum[:, None]], axis=1), axis=1)
    kinks = np.clip(kinks, first[:, None], last[:, None])
    ends = np.concatenate([first[:, None], kinks, last[:, None]], axis=1)
    width = np.diff(ends, axis=1)
    # Between two kinks as many as suits the distance, at least one.
    is_some = width > 0
    spare = num_pieces - is_some.sum(axis=1, keepdims=True)
    number = is_some * (1 + (width / width.sum(axis=1, keepdims=True) * spare).astype(int))
    number[np.arange(width.shape[0]), width.argmax(axis=1)] += num_pieces - number.sum(axis=1)
    stop = np.cumsum(number, axis=1)
    point = np.arange(_PIECE * num_pieces)
    between = (point[None, :, None] // _PIECE >= stop[:, None]).sum(axis=2)
    begin = np.take_along_axis(stop - number, between, axis=1)
    step = np.take_along_axis(width / np.maximum(_PIECE * number, 1), between, axis=1)
    places = np.take_along_axis(ends, between, axis=1) + (point - _PIECE * begin) * step
    rule = np.array([7.0, 32, 12, 32])[point % _PIECE] * step
    rule[:, _PIECE::_PIECE] += 7 * step[:, _PIECE - 1 : -1 : _PIECE]
    places, rule = np.concatenate([places, last[:, None]], axis=1), np.concatenate([rule, 7 * step[:, -1:]], axis=1)
    return places, rule * (2 / 45)


def _printed(found: Any, around: np.ndarray, num_points: int) -> PosteriorAnswers:
    """The product of the laws of the cell, its neighbours and what all others leave of the sum."""
    values, unit = found.values, found.cell_scale
    scale = found.sum_scales[found.labels]
    is_measured = np.isfinite(scale)
    size = np.bincount(found.labels)[found.labels]
    left = np.where(is_measured, (found.sums - np.bincount(found.labels, values))[found.labels] + values, values)
    own = np.where(is_measured, scale, unit)
    groups = []
    for rows, which, has in _by_width(around):
        sum_scales = np.stack([np.where(size > 1, unit, own), own], axis=1)[rows]
        sum_counts = np.stack([size - 1, np.ones(size.size)], axis=1)[rows] * is_measured[rows, None]
        centers = np.concatenate([np.where(has, values[which], values[rows, None]), left[rows, None]], axis=1)
        scales = np.concatenate([np.full((*has.shape, 2), unit), sum_scales[:, None]], axis=1)
        counts = np.concatenate([np.stack([has, np.zeros_like(has)], axis=2), sum_counts[:, None]], axis=1)
        laws = product_laws(centers, scales, counts, is_lattice=found.is_lattice, num_points=num_points)
        groups.append((rows, laws))
    width = max(laws.places.shape[1] for _, laws in groups)
    places, densities, masses = (np.zeros((values.size, width)) for _ in range(3))
    is_lattice = np.zeros(values.size, dtype=bool)
    for rows, laws in groups:
        behind = width - laws.places.shape[1]
        # Points behind the last have no mass.
        more = laws.places[:, -1:] + 1 + np.arange(behind)
        places[rows] = np.concatenate([laws.places, more], axis=1) - values[rows, None]
        densities[rows], masses[rows] = (np.pad(x, ((0, 0), (0, behind))) for x in (laws.densities, laws.masses))
        is_lattice[rows] = laws.is_lattice
    laws = Laws(places, densities, masses, is_lattice, _PIECE)
    return PosteriorAnswers(values + laws.means, laws.stddevs, values, lambda: (laws, np.arange(values.size)))
