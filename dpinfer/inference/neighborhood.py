"""Single noisy cells, given that cells nearby are alike: their posterior under a prior whose spread the noisy cells tell.

Let C be the K neighbours of cell i in its region, n = K + 1, and y noisy values. A priori x_i and the x_k of C are mu + tau z, z
standard normal, mu flat; all other cells are flat. These are integrated out: their noises and that of the region's sum make one,
of density f, in what remains of the sum, r = y_p - (the y of all cells but C and i). Neighbours are not among those: the noise of
each cell occurs once. With S = x_i + sum x_k and m = S / n

    int dmu prod N(x_j; mu, tau^2) = const exp(-sum (x_j - m)^2 / (2 tau^2))

so that given m the x_j are independent but for their sum: sums are convolutions, and one integral, over m, is left for each tau
(``by_sums``). Where f hardly bends over tau / sqrt(n) it is simpler: f(r - n m) is what some density of mu spreads to, and given
mu the x_j are independent (``by_means``).

The weights of the taus are those that make the noisy cells of all neighbourhoods most likely, as if these were independent of
each other. What they have in common makes no estimate wrong, only less sure than it looks.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dpinfer import _checks
from dpinfer._chunks import in_chunks
from dpinfer.inference.mmse import PosteriorAnswers, noisy_parts
from dpinfer.inference.neighborhood_densities import (
    MOST_BENT,
    TOLERANCE,
    Noise,
    at_equals,
    at_means,
    at_sums,
    by_means,
    by_sums,
    rest_laws,
    spread_table,
)
from dpinfer.inference.posterior_grid import Laws
from dpinfer.inference.product_laws import product_laws
from dpinfer.release import as_measurement

METHODS = ("hierarchical", "printed")
# Nats below the highest density at which grids of laws end.
_DEPTH = 34.0
# Neighbourhoods that are looked at together.
_CHUNK, _FEW = 256, 16
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
    found = noisy_parts(as_measurement(measurement))
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
    noise = rest_laws(kinds, most)
    tables = [spread_table(tau, far + 200) if tau > 0 else None for tau in given]
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


def _in_turn(function: Callable[..., Any], rows: tuple[Any, ...], fixed: Sequence[Any], size: int) -> Any:
    """``function(*rows, *fixed)``, ``size`` rows at a time."""
    return in_chunks(lambda *some: function(*some, *fixed), rows, size, least=size)


def _evidences(group: _Group, spreads: np.ndarray, tables: list[Any], noise: Noise) -> np.ndarray:
    """Log of how likely the noisy cells of each neighbourhood are with each spread, whatever their mean; [c, spreads]."""
    y, has = group.y, group.has
    if has.shape[1] == 1:
        return np.zeros((y.shape[0], spreads.size))
    none = np.zeros(y.shape[0])
    found = []
    for tau, table in zip(spreads.tolist(), tables, strict=True):
        if tau > 0:
            arrays = (y, has, none, none.astype(int))
            found.append(_in_turn(by_means, arrays, (tau, table, noise.table, noise.steepest), _CHUNK)[3])
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
    group: _Group, spreads: np.ndarray, tables: list[Any], noise: Noise, log_weights: np.ndarray, evidence: np.ndarray
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
        is_simple = (bends[:, 0] * count < MOST_BENT) & ((bends[:, 1] + bends[:, 2]) * count**2 < TOLERANCE)
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
                state = _in_turn(by_means, data, (tau, tables[t], noise.table, noise.steepest), _CHUNK)[:3]
                parts.append((log_weights[t], some, functools.partial(_parts_at, at_means, state, (tau,), _FEW)))
            elif tau > 0:
                *state, is_wide = _in_turn(by_sums, data, (tau, noise.table, noise.kink, noise.steepest), _FEW)
                enough, state = some[~is_wide], [x[~is_wide] for x in state]
                parts.append((log_weights[t], enough, functools.partial(_parts_at, at_sums, state, (), _CHUNK)))
                # Where the mean can be almost anywhere, a spread so small against that makes next to no difference.
                data, some = tuple(x[is_wide] for x in data), some[is_wide]
            if tau == 0 or not is_mean:
                parts.append((log_weights[t], some, functools.partial(_parts_at, at_equals, data, (noise.table,), _CHUNK)))

    def log_density(x: np.ndarray) -> np.ndarray:
        found = np.full(x.shape, -np.inf)
        for weight, rows, at in parts:
            if not rows.size:
                continue
            found[rows] = np.logaddexp(found[rows], weight + at(x[rows]))
        return found - np.abs(x - y[:, :1])

    return log_density


def _parts_at(function: Any, state: Sequence[np.ndarray], fixed: Sequence[Any], size: int, x: np.ndarray) -> np.ndarray:
    return _in_turn(function, (x, *state), fixed, size)


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
