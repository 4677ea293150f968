"""Nodes of a tree, given noisy counts of them: their exact posteriors, by belief propagation on a lattice.

Cells are independent a priori, with weights prior(x) exp(-|y - x| / b); each further node's count is the sum of its children's,
and says exp(-|y_v - x| / b_v) of it. Up: what the measurements below a node say is the convolution of what its children's say,
times its own. Down: what all others say of a child is what they say of its parent, correlated with what its siblings' counts say.
A node's posterior is the product of both. Convolutions of a family are products of Fourier transforms on one lattice, as in
``lattice_laws``; a node's masses are kept in a window about where it is expected, and what lies outside is small, and reported.

Transforms are right to rounding relative to the largest mass of what they are of. So that this is where the posterior is, what is
said of a family's members is multiplied by exp(a x), with the same a for all of them, which changes nothing but a factor: a is
what the family's parent and the nodes above pull it by, found beforehand by least squares with weights 1 / |residual|.

Here each window is as large as its node's values ask for, a family at a time; ``level_beliefs`` does the same for
values that are not known yet.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dpinfer.inference.cell_priors import CellPrior
from dpinfer.inference.lattice_laws import log_likelihood, log_weights, stacked
from dpinfer.inference.least_squares import least_squares
from dpinfer.measurement import Measurement
from dpinfer.queries import Total, Tree
from dpinfer.queries.base import Array

# Points a scale of the smallest noise; standard deviations that windows hold to either side; the most points of one.
POINTS, SPAN, MOST = 16, 30.0, 1 << 17
# Standard deviations of a family's sum beside the window, so that nothing comes round.
_ROUND = 20.0
# How near the pull on a family comes to the rate at which its members' weights fall; most steps of least squares, and
# when they end, in units of the smallest scale; points for means.
NEAR, STEPS, STILL, GRID = 0.9, 200, 0.02, 401
# The least mass that is kept, of the largest; the most that is left out before windows are moved, and how often they are.
_KEPT, NEGLECTED, TRIES = 1e-13, 1e-9, 4
# The least that may be left of a node, above rounding.
LEAST = 1e-9
_CONTRADICTION = "measurement must not contradict itself, or the prior, so much: what is left of some node is below rounding."


class NodeLaws(NamedTuple):
    """What is found of all nodes: the first point of each one's window, the points' distance, and what is on them."""

    start: Array
    step: Any
    masses: Array
    neglected: Any


def cropped(laws: Iterable[tuple[float, np.ndarray]], step: float) -> tuple[np.ndarray, float, np.ndarray]:
    """Start, step and masses of laws of different lengths, without what does not count of either end of each."""
    kept = []
    for first, law in laws:
        own = np.flatnonzero(law > _KEPT * law.max())
        inside = law[own[0] : own[-1] + 1]
        kept.append((first + step * int(own[0]), inside / inside.sum()))
    places, masses = stacked(kept, [step] * len(kept), 8)
    return places[:, 0].copy(), step, masses


def moments(found: NodeLaws) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations."""
    steps = np.arange(found.masses.shape[1])
    mean = found.masses @ steps
    variance = (found.masses * np.square(steps - mean[:, None])).sum(axis=1)
    return found.start + found.step * mean, found.step * np.sqrt(variance)


def too_wide(step: float) -> ValueError:
    return ValueError(
        f"measurement needs windows of more than {MOST:,} points, steps of {step:g} (1 of integers): its scales "
        "are too far apart, or its counts contradict each other by too much."
    )


def node_laws(tree: Tree, values: np.ndarray, scale: np.ndarray, prior: CellPrior) -> NodeLaws:
    """The laws of all nodes; their values and scales run as the tree's nodes, of scale inf where they were not measured."""
    beliefs = _Beliefs(tree, values, scale, prior)
    found = beliefs.posterior()
    for _ in range(TRIES):
        if found.neglected <= NEGLECTED:
            break
        beliefs.expect_as(found)
        found = beliefs.posterior()
    if beliefs.least < LEAST:
        raise ValueError(_CONTRADICTION)
    return found


class _Beliefs:
    """All that is passed up and down; arrays of nodes run as the tree's."""

    def __init__(self, tree: Tree, values: np.ndarray, scale: np.ndarray, prior: CellPrior) -> None:
        self.tree, self.values, self.scale, self.prior = tree, values, scale, prior
        parents, self.leaves = np.asarray(tree.parents), np.asarray(tree.leaves)  # pyright: ignore[reportAttributeAccessIssue]
        by_parent = np.argsort(parents, kind="stable")
        bounds = np.searchsorted(parents[by_parent], np.arange(-1, values.size + 1))
        self.children = [by_parent[bounds[v + 1] : bounds[v + 2]] for v in range(values.size)]
        self.downward = [v for v in np.argsort(tree.depths, kind="stable").tolist() if self.children[v].size]
        self.step = 1.0 if prior.integers else float(scale[np.isfinite(scale)].min()) / POINTS
        base = np.zeros(values.size)
        if not prior.integers:
            base[self.leaves] = values[self.leaves]
        self.base = self._summed(base)
        self._expect()

    def _summed(self, entries: np.ndarray) -> np.ndarray:
        """Entries of leaves, with the sums of those below in the other nodes."""
        found = entries.copy()
        for v in reversed(self.downward):
            found[v] = found[self.children[v]].sum()
        return found

    def _expect(self) -> None:
        """Where nodes are expected, how wide their windows are, and the pull on each family."""
        # How fast weights of a node's count fall, at least; and how hard a family may be pulled.
        lowest, most = -self._most(self._falls(-1)), self._most(self._falls(1))
        is_inner = np.ones(self.values.size, dtype=bool)
        is_inner[self.leaves] = False
        own = is_inner & np.isfinite(self.scale)
        pull = np.zeros(self.values.size)
        free_mean, free_variance = self._cells_given(np.zeros(self.leaves.size))
        mean, variance = free_mean, free_variance
        value, spread = self.values.copy(), np.where(own, np.sqrt(2) * self.scale, np.inf)
        expected = np.zeros(self.values.size)
        for step in range(STEPS):
            value[self.leaves] = mean - variance * pull[self.leaves]
            spread[self.leaves] = np.sqrt(variance)
            expected[self.leaves] = np.asarray(self._fit(value, spread).cells)
            expected = self._summed(expected)
            off = np.where(own, self.values - expected, 0.0)
            # What each count pulls by in this fit, and no harder than its noise lets it.
            pulls = np.where(own, np.clip(off / np.square(np.where(own, spread, 1.0)), -1 / self.scale, 1 / self.scale), 0.0)
            width = np.where(own, np.maximum(np.abs(off), self.scale / 2), 1.0)
            spread = np.where(own, np.sqrt(np.where(own, self.scale, 1.0) * width), np.inf)
            fresh = np.zeros(self.values.size)
            for v in self.downward:
                fresh[self.children[v]] = np.clip(fresh[v] + pulls[v], lowest[v], most[v])
            before, pull = pull, fresh if not step else (pull + fresh) / 2
            mean, variance = self._cells_given(pull[self.leaves])
            if np.abs(pull - before).max() * self.scale.min() < STILL:
                break
        #: Of each node the pull on the family that it is a member of.
        self.pull = pull
        expected[self.leaves] = mean
        expected = self._summed(expected)
        self._center_at(expected)
        # Windows hold where least squares is sure to have the node, counts that are far off with little weight.
        spread = np.where(own, np.maximum(spread, np.sqrt(2) * self.scale), np.inf)
        spread[self.leaves] = np.sqrt(np.maximum(variance, free_variance))
        value[self.leaves] = mean
        stddev = self._stddevs(value, spread)
        off = np.where(np.isfinite(self.scale), np.abs(self.values - expected), 0.0)
        if np.isfinite(self.prior.lower):  # a prior may be far off by itself
            off = np.minimum(off, SPAN * stddev)
        self._hold(SPAN * stddev + off)

    def _center_at(self, expected: np.ndarray) -> None:
        self.center = np.round((expected - self.base) / self.step).astype(np.int64)
        #: How much farther than its children's centers together a node's is.
        self.shift = np.zeros(self.values.size, dtype=np.int64)
        for v in self.downward:
            self.shift[v] = self.center[v] - self.center[self.children[v]].sum()

    def expect_as(self, found: NodeLaws) -> None:
        """Windows about what was found, wider."""
        mean, stddev = moments(found)
        half = np.maximum(1.5 * self.half * self.step, SPAN * stddev)
        half += np.abs(mean - self.base - self.step * self.center)
        self._center_at(mean)
        self._hold(half)

    def _hold(self, half: np.ndarray) -> None:
        self.half = np.ceil(half / self.step).astype(np.int64) + 4
        if self.half.max() * 2 + 1 > MOST:
            raise too_wide(self.step)

    def _falls(self, sign: int) -> np.ndarray:
        """How fast the prior of each cell falls far out on that side; infinitely where it ends."""
        if sign < 0 and np.isfinite(self.prior.lower):
            return np.full(self.leaves.size, np.inf)
        reach = 20 * np.maximum(self.scale[self.leaves], 1.0 if self.prior.integers else 0.0)
        x = np.maximum(self.values[self.leaves], self.prior.lower)[:, None] + sign * np.ceil(reach)[:, None] * np.array(
            [1.0, 2.0]
        )
        near, far = self.prior.at(np.round(x) if self.prior.integers else x).T
        with np.errstate(invalid="ignore"):
            return np.where(np.isneginf(far), np.inf, np.maximum(near - far, 0.0) / np.ceil(reach))

    def _most(self, falls: np.ndarray) -> np.ndarray:
        """How hard each family may be pulled, so that the weights of its members still fall."""
        rate, most = 1 / self.scale, np.full(self.values.size, np.inf)
        rate[self.leaves] += falls
        for v in reversed(self.downward):
            # A sum falls as its heaviest member does, and by what is said of the sum itself.
            slowest = rate[self.children[v]].min()
            most[v], rate[v] = NEAR * slowest, rate[v] + slowest
        return most

    def _cells_given(self, pull: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of cells whose weights are multiplied by exp(pull x); roughly."""
        values, scale = self.values[self.leaves], self.scale[self.leaves]
        origin = np.maximum(values, self.prior.lower)
        reach = 40 / (1 - NEAR) * scale + origin - values
        if self.prior.integers:
            # All integers nearby, and some of those farther out for all.
            places = np.unique(np.round(1.1 * np.sinh(np.linspace(-1, 1, GRID) * np.arcsinh(reach.max() + 2))))
            x = np.round(origin)[:, None] + places
            width = np.gradient(places)
        else:
            u = np.linspace(-1, 1, GRID) * np.arcsinh(reach / scale)[:, None]
            x = origin[:, None] + scale[:, None] * np.sinh(u)
            width = np.cosh(u)
        log = self.prior.at(x) - np.abs(values[:, None] - x) / scale[:, None] + pull[:, None] * x + np.log(width)
        top = log.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            raise ValueError("prior must allow for what was measured: it is -inf all around some noisy cell.")
        weights = np.exp(log - top)
        weights /= weights.sum(axis=1, keepdims=True)
        mean = (weights * x).sum(axis=1)
        return mean, np.maximum((weights * np.square(x - mean[:, None])).sum(axis=1), 1e-6 * np.square(scale))

    def _fit(self, value: np.ndarray, spread: np.ndarray) -> Any:
        """Least squares with a count of each node and its standard deviation."""
        skipped = 0 if self.tree.root_measured else 1
        return least_squares(Measurement(self.tree, value[skipped:], "gaussian", spread[skipped:]))

    def _stddevs(self, value: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """Standard deviations of all nodes by least squares."""
        fit = self._fit(value, spread)
        found = np.asarray(fit.answer(self.tree).stddev)
        if self.tree.root_measured:
            return found
        return np.append(np.asarray(fit.answer(Total(self.leaves.size)).stddev), found)

    def posterior(self) -> NodeLaws:
        ups: list[np.ndarray] = [np.zeros(0)] * self.values.size
        own: list[np.ndarray] = [np.zeros(0)] * self.values.size
        for begin in range(0, self.leaves.size, 256):
            self._leaf_weights(self.leaves[begin : begin + 256], ups)
        for v in reversed(self.downward):
            family = _Family(self, v, ups)
            own[v] = self._says(v)
            ups[v] = _scaled(family.sum_of_all() * own[v])
        downs: list[np.ndarray] = [np.zeros(0)] * self.values.size
        for v in self.downward:
            outside = None
            if downs[v].size or np.isfinite(self.scale[v]):
                outside = own[v] * downs[v] if downs[v].size else own[v]
            if outside is not None:
                for c, down in zip(self.children[v].tolist(), _Family(self, v, ups).given_others(outside), strict=True):
                    downs[c] = down
        laws, neglected = [], 0.0
        #: The largest mass of a node's law in units of what its children and all others say at most.
        self.least = 1.0
        for v in range(self.values.size):
            law = ups[v] * downs[v] if downs[v].size else ups[v].copy()
            if not law.max() > 0:
                raise ValueError(_CONTRADICTION)
            self.least = min(self.least, float(law.max()))
            law /= law.sum()
            neglected = max(neglected, _beyond(law)) if self.least >= LEAST else 1.0
            laws.append((self.base[v] + self.step * (self.center[v] - self.half[v]), law))
        return NodeLaws(*cropped(laws, self.step), neglected)

    def _leaf_weights(self, some: np.ndarray, ups: list[np.ndarray]) -> None:
        half = int(self.half[some].max())
        places = self.center[some, None] + np.arange(-half, half + 1)
        # Weights of cells are found for one scale at a time.
        for scale in np.unique(self.scale[some]).tolist():
            rows = np.flatnonzero(self.scale[some] == scale)
            nodes = some[rows]
            log = log_weights(self.prior, self.values[nodes], scale, self.base[nodes], self.step, places[rows])
            log += self.pull[nodes, None] * self.step * np.arange(-half, half + 1)
            for node, row in zip(nodes.tolist(), np.exp(log - log.max(axis=1, keepdims=True)), strict=True):
                ups[node] = row[half - self.half[node] : half + self.half[node] + 1]

    def _says(self, v: int) -> np.ndarray:
        """What the node's own count says, times the difference of pulls below and above it; in its window."""
        offsets = np.arange(-self.half[v], self.half[v] + 1)
        pull = self.pull[v] - self.pull[self.children[v][0]]
        if not np.isfinite(self.scale[v]):
            return np.exp(pull * self.step * offsets)
        x = self.base[v] + self.step * (self.center[v] + offsets)
        log = log_likelihood(x - self.values[v], self.scale[v], None if self.prior.integers else self.step)
        log = log + pull * self.step * offsets
        return np.exp(log - log.max())


class _Family:
    """A node's children, and the transforms of what is said of them from below."""

    def __init__(self, beliefs: _Beliefs, v: int, ups: list[np.ndarray]) -> None:
        from scipy.fft import next_fast_len  # a dependency of jax

        members = beliefs.children[v]
        self.halves, self.half, self.shift = beliefs.half[members].tolist(), int(beliefs.half[v]), int(beliefs.shift[v])
        variance, place = 0.0, 0.0
        for half, c in zip(self.halves, members.tolist(), strict=True):
            offsets, weights = np.arange(-half, half + 1), ups[c] / ups[c].sum()
            mean = weights @ offsets
            place += mean
            variance += weights @ np.square(offsets - mean)
        widest = 2 * max(self.half, *self.halves) + 1
        beside = abs(place - self.shift) + _ROUND * np.sqrt(variance)
        self.size = int(next_fast_len(widest + int(beside) + 1, real=True))  # pyright: ignore[reportArgumentType]
        rows = np.zeros((members.size, self.size))
        for row, half, c in zip(rows, self.halves, members.tolist(), strict=True):
            row[: half + 1], row[self.size - half :] = ups[c][half:], ups[c][:half]
            row /= row.sum()
        self.transforms = np.fft.rfft(rows, axis=1)

    def _window(self, found: np.ndarray, half: int) -> np.ndarray:
        """From ``half`` before 0 to as many behind."""
        return np.maximum(np.concatenate([found[self.size - half :], found[: half + 1]]), 0.0)

    def sum_of_all(self) -> np.ndarray:
        """What is said of the sum, in the parent's window."""
        return self._window(np.roll(np.fft.irfft(self.transforms.prod(axis=0), self.size), -self.shift), self.half)

    def given_others(self, outside: np.ndarray) -> list[np.ndarray]:
        """What is said of each member by its siblings and ``outside``, which is of the parent in its window."""
        row = np.zeros(self.size)
        row[: self.half + 1], row[self.size - self.half :] = outside[self.half :], outside[: self.half]
        row = np.roll(row, self.shift)
        ones = np.ones_like(self.transforms[:1])
        before = np.concatenate([ones, np.cumprod(self.transforms[:-1], axis=0)])
        after = np.concatenate([np.cumprod(self.transforms[:0:-1], axis=0)[::-1], ones])
        found = np.fft.irfft(np.fft.rfft(row) * np.conj(before * after), self.size, axis=1)
        return [_scaled(self._window(own, half)) for own, half in zip(found, self.halves, strict=True)]


def _scaled(masses: np.ndarray) -> np.ndarray:
    most = masses.max()
    if not most > 0:
        raise ValueError(_CONTRADICTION)
    return masses / most


def _beyond(law: np.ndarray) -> float:
    """What lies outside of a window if the law goes on falling as at its ends."""
    total = 0.0
    for end, inner in ((law[0], law[1]), (law[-1], law[-2])):
        total += float(end if inner <= end else end / (1 - end / inner)) if end > 0 else 0.0
    return total
