"""Nodes of a tree, given noisy counts of them: their exact posteriors, by belief propagation on a lattice.

Cells are independent a priori, with weights prior(x) exp(-|y - x| / b); each further node's count is the sum of its children's,
and says exp(-|y_v - x| / b_v) of it. Up: what the measurements below a node say is the convolution of what its children's say,
times its own. Down: what all others say of a child is what they say of its parent, correlated with what its siblings' counts say.
A node's posterior is the product of both. Convolutions of a family are products of Fourier transforms on one lattice, as in
``lattice_laws``; a node's masses are kept in a window about where it is expected, and what lies outside is small, and reported.

Transforms are right to rounding relative to the largest mass of what they are of. So that this is where the posterior is, what is
said of a family's members is multiplied by exp(a x), with the same a for all of them, which changes nothing but a factor: a is
what the family's parent and the nodes above pull it by, found beforehand by least squares with weights 1 / |residual|.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import jax
import numpy as np

from dpinfer import _checks
from dpinfer.inference.cell_priors import CellPrior, as_prior, flat_prior
from dpinfer.inference.lattice_laws import log_likelihood, log_weights, stacked
from dpinfer.inference.least_squares import least_squares
from dpinfer.inference.mmse import PosteriorAnswers, laplace_law
from dpinfer.inference.posterior_grid import Laws
from dpinfer.measurement import Measurement
from dpinfer.queries import Total, Tree
from dpinfer.release import as_measurement

# Points a scale of the smallest noise; standard deviations that windows hold to either side; the most points of one.
_POINTS, _SPAN, _MOST = 16, 30.0, 1 << 17
# Standard deviations of a family's sum beside the window, so that nothing comes round.
_ROUND = 20.0
# How near the pull on a family comes to the rate at which its members' weights fall; most steps of least squares, and
# when they end, in units of the smallest scale; points for means.
_NEAR, _STEPS, _STILL, _GRID = 0.9, 200, 0.02, 401
# The least mass that is kept, of the largest; the most that is left out before windows are moved, and how often they are.
_KEPT, _NEGLECTED, _TRIES = 1e-13, 1e-9, 4
# The least that may be left of a node, above rounding.
_LEAST = 1e-9
_CONTRADICTION = "measurement must not contradict itself, or the prior, so much: what is left of some node is below rounding."


@final
@dataclass(frozen=True, eq=False)
class TreePosterior:
    """The posteriors of all nodes; made by :func:`tree_posterior`.

    Attributes:
        nodes: of the nodes, the root first, whether it was measured or not: means, standard deviations, densities, intervals.
        leaves: int64 [n], the node of each cell.
        neglected: how much of a node's law lies outside its window, at most, as the window's ends tell.
    """

    nodes: PosteriorAnswers
    leaves: np.ndarray
    neglected: float

    @property
    def mean(self) -> np.ndarray:
        """Of each node, float64 [nodes]; a node's is the sum of its children's."""
        return self.nodes.mean

    @property
    def stddev(self) -> np.ndarray:
        """Of each node, float64 [nodes]."""
        return self.nodes.stddev

    @cached_property
    def cells(self) -> np.ndarray:
        """Means of the cells, float64 [n]."""
        return self.nodes.mean[self.leaves]

    def density(self, node: int) -> tuple[np.ndarray, np.ndarray]:
        """The grid of a node and the probability at each of its points."""
        return self.nodes.density(node)

    def interval(self, level: float = 0.95, *, kind: str = "equal_tailed") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends, [nodes] each; as ``PosteriorAnswers.interval``."""
        return self.nodes.interval(level, kind=kind)


def tree_posterior(measurement: Any, prior: Any = "flat") -> TreePosterior:
    """The posterior of every node of a tree: means, of least mean squared error, standard deviations and intervals.

    Args:
        measurement: of a Tree, each node with a scale of its own, of inf where it was not measured, as are roots that have no
            row; all leaves measured. Laplace noise, or discrete, beside which, up to a scale of 64, the
            cells are taken to be integers.
        prior: of each cell, as in :func:`mmse`; under "flat" intervals cover exactly, whatever the cells are.

    Returns:
        A :class:`TreePosterior`. Of integers all is exact but for rounding and what is neglected; else right to about 1e-3 of the
        smallest scale.

    Cost: for each node two Fourier transforms of its window, some 60 standard deviations wide; seconds for 4,096 leaves.

    Reference: Xiao, Xiong and Yuan 2011, section 5.3.3, has the product of what each level at and below a node says, which is the
    posterior of the root only; here all levels count for all nodes.

    Raises:
        ValueError: if the measurement is of anything else, or a window would be too wide.
    """
    measurement = as_measurement(measurement)
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("tree_posterior needs 64-bit numbers: type dpinfer.enable_x64() first.")
    is_lattice = laplace_law(measurement) == "discrete_laplace"
    tree = measurement.queries
    if not isinstance(tree, Tree):
        raise ValueError(f"measurement must be of a Tree, got {tree!r}. mmse takes cells and sums of regions.")
    values = np.asarray(measurement.values, dtype=np.float64)
    _checks.finite("measurement", values)
    scale = np.broadcast_to(np.asarray(measurement.scale, dtype=np.float64), values.shape)
    if (scale == 0).any():
        raise ValueError("measurement must have noise in every row; exact counts, of scale 0, have no density.")
    if not tree.root_measured:
        values, scale = np.append(0.0, values), np.append(np.inf, scale)
    if not np.isfinite(scale[tree.leaves]).all():
        raise ValueError("measurement must have measured every leaf; got scale inf in some.")
    smallest = float(scale[np.isfinite(scale)].min())
    known = as_prior(prior, is_lattice=is_lattice, scale=smallest)
    beliefs = _Beliefs(tree, values, scale, known or flat_prior(is_lattice=is_lattice, scale=smallest))
    found = beliefs.posterior()
    for _ in range(_TRIES):
        if found.neglected <= _NEGLECTED:
            break
        beliefs.expect_as(found)
        found = beliefs.posterior()
    if beliefs.least < _LEAST:
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
        self.step = 1.0 if prior.integers else float(scale[np.isfinite(scale)].min()) / _POINTS
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
        for step in range(_STEPS):
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
            if np.abs(pull - before).max() * self.scale.min() < _STILL:
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
            off = np.minimum(off, _SPAN * stddev)
        self._hold(_SPAN * stddev + off)

    def _center_at(self, expected: np.ndarray) -> None:
        self.center = np.round((expected - self.base) / self.step).astype(np.int64)
        #: How much farther than its children's centers together a node's is.
        self.shift = np.zeros(self.values.size, dtype=np.int64)
        for v in self.downward:
            self.shift[v] = self.center[v] - self.center[self.children[v]].sum()

    def expect_as(self, found: TreePosterior) -> None:
        """Windows about what was found, wider."""
        half = np.maximum(1.5 * self.half * self.step, _SPAN * found.stddev)
        half += np.abs(found.mean - self.base - self.step * self.center)
        self._center_at(found.mean)
        self._hold(half)

    def _hold(self, half: np.ndarray) -> None:
        self.half = np.ceil(half / self.step).astype(np.int64) + 4
        if self.half.max() * 2 + 1 > _MOST:
            raise ValueError(
                f"measurement needs windows of more than {_MOST:,} points, steps of {self.step:g} (1 of integers): its scales "
                "are too far apart, or its counts contradict each other by too much."
            )

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
            most[v], rate[v] = _NEAR * slowest, rate[v] + slowest
        return most

    def _cells_given(self, pull: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of cells whose weights are multiplied by exp(pull x); roughly."""
        values, scale = self.values[self.leaves], self.scale[self.leaves]
        origin = np.maximum(values, self.prior.lower)
        reach = 40 / (1 - _NEAR) * scale + origin - values
        if self.prior.integers:
            # All integers nearby, and some of those farther out for all.
            places = np.unique(np.round(1.1 * np.sinh(np.linspace(-1, 1, _GRID) * np.arcsinh(reach.max() + 2))))
            x = np.round(origin)[:, None] + places
            width = np.gradient(places)
        else:
            u = np.linspace(-1, 1, _GRID) * np.arcsinh(reach / scale)[:, None]
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

    def posterior(self) -> TreePosterior:
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
            neglected = max(neglected, _beyond(law)) if self.least >= _LEAST else 1.0
            kept = np.flatnonzero(law > _KEPT * law.max())
            law = law[kept[0] : kept[-1] + 1]
            laws.append((self.base[v] + self.step * (self.center[v] - self.half[v] + int(kept[0])), law / law.sum()))
        places, masses = stacked(laws, [self.step] * len(laws), 8)
        grids = Laws(places, masses / self.step, masses, np.full(len(laws), self.prior.integers), places.shape[1] - 1)
        which = np.arange(len(laws))
        nodes = PosteriorAnswers(grids.means, grids.stddevs, np.zeros(which.size), lambda: (grids, which))
        return TreePosterior(nodes, self.leaves, neglected)

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
