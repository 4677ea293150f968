"""Checks of a mechanism's privacy that its author can run: exactly from its output law, or statistically from its outputs.

A mechanism is epsilon-differentially private if no output is more than exp(epsilon) times as probable under some cells as under
neighbouring ones. Where the probabilities of all outputs can be written down, :func:`exact_epsilon` (and :func:`exact_rho`)
looks at each of them. Where there are only outputs, :func:`epsilon_lower_bound` looks for an event that gives the cells
away and bounds its probabilities by counting: a bound above what was promised is a proof, at the stated confidence, that the
promise is broken; a bound below it is no proof of the contrary.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer.release import Release

Law = Callable[[np.ndarray], Mapping[Any, Any]]

_MAX_OUTCOMES = 10**6
_NUM_BINS = 24
_MAX_COORDINATES = 64
_CHOICE_LEVEL = 1e-3


def neighboring_cells(cells: Any, neighbors: str = "add_remove") -> Iterator[np.ndarray]:
    """All cells that differ by one record from the given ones, [n] each: none of them negative.

    Args:
        cells: non-negative integers [n]; made up for a check, not private here.
        neighbors: "add_remove" (one record more or less) or "replace_one" (one record moves to another cell).
    """
    base = _checks.index_array("cells", cells)
    _checks.relation(neighbors)
    one = np.eye(base.size, dtype=np.int64)
    full = np.flatnonzero(base > 0)
    if neighbors == "add_remove":
        yield from (base + one[j] for j in range(base.size))
        yield from (base - one[j] for j in full)
    else:
        yield from (base - one[j] + one[k] for j in full for k in range(base.size) if j != k)


def output_law(release: Release, cells: Any, *, tail: float = 1e-9) -> Law:
    """The law of a release's values as a function of the cells: probabilities of all outputs near the answers to ``cells``.

    What :func:`dpinfer.measure` releases is the strategy's answers plus independent integer noise of the release's law and
    scales, so that the probability of an output is a product over its rows. The outputs listed are the same for all cells: a
    box around the answers to these cells that leaves out about ``tail`` of each row's noise. Beyond it ratios of discrete
    Laplace probabilities do not change any more.

    Args:
        release: with discrete noise, one that was measured; few rows.
        cells: [n].
    """
    if release.noise not in ("discrete_laplace", "discrete_gaussian"):
        raise ValueError(f"output_law needs integer noise, whose outputs can be listed, got {release.noise!r}.")
    scales = np.broadcast_to(np.asarray(release.scale, dtype=float), release.values.shape)
    measured = np.flatnonzero(np.isfinite(scales))
    spread = math.log(1 / tail)
    if release.noise == "discrete_laplace":
        reach = np.ceil(scales[measured] * spread)
    else:
        reach = np.ceil(scales[measured] * math.sqrt(2 * spread))
    reach = np.maximum(reach, 2).astype(np.int64)
    if np.prod(2.0 * reach + 1) > _MAX_OUTCOMES:
        raise ValueError(
            f"output_law would list {np.prod(2.0 * reach + 1):.3g} outputs, more than {_MAX_OUTCOMES:.0e}: take fewer rows, a "
            "larger budget or a larger tail."
        )
    center = (release.queries @ _checks.index_array("cells", cells))[measured]
    axes = [np.arange(c - r, c + r + 1) for c, r in zip(center.tolist(), reach.tolist(), strict=True)]
    outcomes = list(itertools.product(*(axis.tolist() for axis in axes)))

    def law(other: np.ndarray) -> Mapping[Any, float]:
        answers = (release.queries @ np.asarray(other, dtype=np.int64))[measured]
        logs: Any = np.zeros(1)
        for axis, answer, scale in zip(axes, answers, scales[measured], strict=True):
            logs = np.add.outer(logs, _log_mass(release.noise, scale, axis - answer))
        return dict(zip(outcomes, np.exp(logs).ravel().tolist(), strict=True))

    return law


def _log_mass(noise: str, scale: float, k: np.ndarray) -> np.ndarray:
    if noise == "discrete_laplace":
        return math.log(math.tanh(0.5 / scale)) - np.abs(k) / scale
    support = np.arange(-math.ceil(40 * scale) - 2, math.ceil(40 * scale) + 3)
    return -np.square(k / scale) / 2 - math.log(np.exp(-np.square(support / scale) / 2).sum())


def exact_epsilon(law: Law, cells: Any, *, neighbors: str = "add_remove") -> float:
    """The largest log ratio of an output's probabilities between ``cells`` and any of their neighbours, either way round.

    Infinite if some output is possible under one and not under the other. It is the loss at these cells; a mechanism whose
    noise depends on the cells wants several.

    Args:
        law: from cells [n] to the probability of each output, a mapping with floats or fractions; all outputs, or the same ones
            for all cells, as of :func:`output_law`.
        cells: [n], tiny.
        neighbors: as in :func:`neighboring_cells`.
    """
    here = law(_checks.index_array("cells", cells))
    return max((_largest_log_ratio(here, law(other)) for other in neighboring_cells(cells, neighbors)), default=0.0)


def _largest_log_ratio(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> float:
    largest = 0.0
    for outcome in first.keys() | second.keys():
        p, q = first.get(outcome, 0), second.get(outcome, 0)
        if p == q:
            continue
        if p == 0 or q == 0:
            return math.inf
        # Fractions of any size have a logarithm where their float would be 0.
        largest = max(largest, abs(_log(p) - _log(q)))
    return largest


def _log(probability: Any) -> float:
    if isinstance(probability, float):
        return math.log(probability)
    fraction = _checks.fraction("law", probability)
    return math.log(fraction.numerator) - math.log(fraction.denominator)


def exact_rho(
    law: Law, cells: Any, *, neighbors: str = "add_remove", orders: Sequence[Any] = (1.01, 1.5, 2, 4, 8, 16, 32)
) -> float:
    """The largest Renyi divergence over its order between ``cells`` and any neighbour, either way round: the rho of zCDP.

    A mechanism is rho-zCDP if D_a <= rho a for all a > 1 (Bun and Steinke 2016, Definition 1.1); here at the ``orders`` given.
    Arguments as in :func:`exact_epsilon`; outputs that are not listed are left out, which can only lower the result.
    """
    here = law(_checks.index_array("cells", cells))
    pairs = ((here, law(other)) for other in neighboring_cells(cells, neighbors))
    both = (order_pair for p, q in pairs for order_pair in ((p, q), (q, p)))
    return max((_renyi(p, q, order) / order for p, q in both for order in orders), default=0.0)


def _renyi(first: Mapping[Any, Any], second: Mapping[Any, Any], order: Any) -> float:
    """Ln sum p^a q^(1-a) / (a - 1)."""
    terms = []
    for outcome, p in first.items():
        if p > 0:
            q = second.get(outcome, 0)
            if q == 0:
                return math.inf
            terms.append(order * _log(p) + (1 - order) * _log(q))
    logs = np.array(terms)
    return float((np.log(np.exp(logs - logs.max()).sum()) + logs.max()) / (order - 1))


@final
@dataclass(frozen=True)
class EpsilonBound:
    """What :func:`epsilon_lower_bound` found.

    Attributes:
        epsilon: the mechanism is not (e, delta)-differentially private for any e below this, at the ``confidence`` stated; 0 if
            nothing was found.
        event: the event that tells the two apart, in words.
        frequencies: how often it happened under the likelier cells and under the others, in samples that did not choose it.
        num_samples: how many samples of each these are.
        delta, confidence: as given.
    """

    epsilon: float
    event: str
    frequencies: tuple[float, float]
    num_samples: int
    delta: float
    confidence: float


def epsilon_lower_bound(
    mechanism: Callable[[Any], Any],
    cells: Any,
    other: Any,
    *,
    num_samples: int = 10_000,
    delta: Any = 0.0,
    confidence: Any = 0.999,
    statistic: Callable[[Any], Any] | None = None,
) -> EpsilonBound:
    """A lower bound of a mechanism's epsilon at one pair of neighbouring inputs, from its outputs alone.

    A quarter of the samples learns what may tell the two apart: single coordinates, the direction that separates them best
    (Fisher), the log likelihood ratio as if coordinates were independent, and that of whole outputs. A quarter chooses an event,
    a threshold of one of these. The other half bounds its two probabilities by Chernoff's inequality, at level
    (1 - confidence) / 2 each; the choice costs nothing, since these samples did not make it. The bound is ln((p - delta) / q).

    Args:
        mechanism: called with ``cells`` or ``other``, and with nothing else, ``num_samples`` times each; its output a number, an
            array, a Release (its values count) or anything that can be hashed. Its randomness must be fresh at every call.
        cells, other: two inputs that are neighbours, of whatever type the mechanism takes; made up, not private here.
        num_samples: what n of them can show is limited to about ln(n / 15).
        delta: of (epsilon, delta)-differential privacy.
        confidence: the probability that the bound is right, whatever the mechanism.
        statistic: what of an output to look at, if the whole tells too little.

    Returns:
        An EpsilonBound. In a test: ``assert epsilon_lower_bound(...).epsilon <= promised``, which fails by chance with
        probability at most ``1 - confidence``.
    """
    num_samples = _checks.integer("num_samples", num_samples, least=100)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be from 0 to below 1, got {delta!r}.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}.")
    read = statistic or (lambda output: output)
    outputs = [[_plain(read(mechanism(x))) for _ in range(num_samples)] for x in (cells, other)]
    quarter, half, level = num_samples // 4, num_samples // 2, (1 - confidence) / 2
    learning, choosing = ([side[a:b] for side in outputs] for a, b in ((0, quarter), (quarter, half)))
    best: tuple[float, str, Callable[[list[Any]], np.ndarray], int]
    best = (-math.inf, "none", lambda outputs: np.zeros(len(outputs), dtype=bool), 0)
    for name, score in _scores(*learning):
        values = [score(side) for side in choosing]
        thresholds = np.unique(np.concatenate(values))
        if thresholds.size > 200:
            thresholds = np.unique(np.quantile(np.concatenate(values), np.linspace(0, 1, 200), method="nearest"))
        ranked = [np.sort(side) for side in values]
        above = [side.size - np.searchsorted(side, thresholds, side="left") for side in ranked]
        below = [np.searchsorted(side, thresholds, side="right") for side in ranked]
        for sign, tallies in ((1, above), (-1, below)):
            for first in (0, 1):
                # A choice may err: at the level of the proof, few samples would prefer events that say nothing.
                bound = _log_ratio_bound(tallies[first], tallies[1 - first], half - quarter, delta, _CHOICE_LEVEL)
                place = int(bound.argmax())
                if bound[place] > best[0]:
                    t = thresholds[place]
                    event = f"{name} {'>=' if sign > 0 else '<='} {t:g}"
                    best = (float(bound[place]), event, lambda o, s=score, t=t, sign=sign: sign * s(o) >= sign * t, first)
    _, event, happens, first = best
    tested = [int(happens(side[half:]).sum()) for side in (outputs[first], outputs[1 - first])]
    size = num_samples - half
    bound = float(_log_ratio_bound(np.array([tested[0]]), np.array([tested[1]]), size, delta, level)[0])
    return EpsilonBound(max(0.0, bound), event, (tested[0] / size, tested[1] / size), size, delta, confidence)


def _plain(output: Any) -> Any:
    """An output as a tuple of floats; or as it is, or as it prints, if it is none."""
    output = output.values if isinstance(output, Release) else output
    if not isinstance(output, (str, bytes)):
        try:
            return tuple(np.asarray(output, dtype=float).ravel().tolist())
        except (TypeError, ValueError):
            pass
    try:
        hash(output)
    except TypeError:
        return repr(output)
    return output


def _scores(first: list[Any], second: list[Any]) -> Iterator[tuple[str, Callable[[list[Any]], np.ndarray]]]:
    """Numbers that may tell outputs of two laws apart, each with its name, learnt from samples of both."""
    yield "log ratio of whole outputs", _table_of_ratios(first, second)
    sizes = {len(o) if isinstance(o, tuple) else -1 for o in (*first, *second)}
    if len(sizes) > 1 or sizes <= {-1, 0} or not all(isinstance(x, float) for x in first[0]):
        return
    samples = [np.array(side) for side in (first, second)]
    dims = samples[0].shape[1]
    if all(np.isfinite(side).all() for side in samples):
        gap = samples[0].mean(axis=0) - samples[1].mean(axis=0)
        spread = np.atleast_2d(np.cov(samples[0].T)) + np.atleast_2d(np.cov(samples[1].T))
        direction = np.linalg.solve(spread + np.eye(dims) * (1e-9 * np.trace(spread) / dims + 1e-300), gap)
        direction = direction / max(np.abs(direction).max(), 1e-300)
        shown = "the direction that separates best" if dims > 1 else "the output"
        # Rounded: where noise cancels exactly, rounding errors must not split an atom.
        yield shown, lambda outputs: np.round(np.array(outputs) @ direction, 9)
    for j in range(min(dims, _MAX_COORDINATES) if dims > 1 else 0):
        yield f"coordinate {j}", lambda outputs, j=j: np.array(outputs)[:, j]
    edges = [
        np.unique(np.quantile(np.concatenate([s[:, j] for s in samples]), np.linspace(0, 1, _NUM_BINS))) for j in range(dims)
    ]

    def bins(outputs: list[Any]) -> np.ndarray:
        return np.stack([np.searchsorted(e, column, side="right") for e, column in zip(edges, np.array(outputs).T, strict=True)])

    tallies = [np.array([np.bincount(b, minlength=_NUM_BINS + 2) for b in bins(side)]) for side in (first, second)]
    ratios = np.log(tallies[0] + 1.0) - np.log(tallies[1] + 1.0)
    yield "log ratio, coordinates taken as independent", lambda outputs: np.take_along_axis(ratios, bins(outputs), 1).sum(axis=0)


def _table_of_ratios(first: list[Any], second: list[Any]) -> Callable[[list[Any]], np.ndarray]:
    tallies: list[dict[Any, int]] = [{}, {}]
    for tally, side in zip(tallies, (first, second), strict=True):
        for outcome in side:
            tally[outcome] = tally.get(outcome, 0) + 1

    def score(outputs: list[Any]) -> np.ndarray:
        return np.array([math.log(tallies[0].get(o, 0) + 1) - math.log(tallies[1].get(o, 0) + 1) for o in outputs])

    return score


def _log_ratio_bound(first: np.ndarray, second: np.ndarray, size: int, delta: Any, level: float) -> np.ndarray:
    """A lower confidence bound of ln((p - delta) / q), -infinity where there is none, from counts out of ``size``."""
    p, q = _chernoff(first / size, size, level, is_upper=False), _chernoff(second / size, size, level, is_upper=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > delta, np.log(np.maximum(p - delta, 0)) - np.log(q), -np.inf)


def _chernoff(share: np.ndarray, size: int, level: float, *, is_upper: bool) -> np.ndarray:
    """The probability beyond ``share`` at which ``size`` KL(share || probability) = ln(1 / level); by bisection."""
    limit = math.log(1 / level) / size

    def divergence(p: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            hit = np.where(share > 0, share * (np.log(share) - np.log(p)), 0.0)
            miss = np.where(share < 1, (1 - share) * (np.log1p(-share) - np.log1p(-p)), 0.0)
        return hit + miss

    near, far = share.astype(float), np.full(share.shape, 1.0 if is_upper else 0.0)
    for _ in range(60):
        middle = (near + far) / 2
        inside = divergence(middle) <= limit
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    return far
