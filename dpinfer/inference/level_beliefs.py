"""The belief propagation of ``tree_beliefs`` under jit and vmap: the same laws on the same lattice, level by level.

There each window is as large as the values ask for. Here values are not known before the program is made: the windows of a level
are all of one size, found from the scales, and the levels' messages are one array each, so that few large Fourier transforms are
taken, and few operations compiled, however many nodes there are. Windows still move with the values, a few times if need be;
what they do not hold is reported.

Centers are rounded such that a node's is the sum of its children's, exactly: so convolutions stay about 0 and nothing is shifted.
A product of all members of a family but one is what is left in a tree of pairs of them: no division, and log2 rounds.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpinfer._loops import while_loop
from dpinfer.inference.least_squares import least_squares
from dpinfer.inference.tree_beliefs import GRID, LEAST, NEAR, NEGLECTED, POINTS, SPAN, STEPS, STILL, TRIES, NodeLaws
from dpinfer.inference.tree_levels import Windows, levels_of, side_by_side
from dpinfer.inference.tree_priors import Known, hat_log_likelihood, hat_log_weights
from dpinfer.measurement import Measurement
from dpinfer.queries import Tree
from dpinfer.queries.base import Array

# Rates, of one over what a child's window holds to a side, at which it is looked how much of a family's sum comes round.
_RATES = np.geomspace(2.0, 64.0, 16)


@partial(jax.jit, static_argnames=("known", "windows"))
def traced_node_laws(
    tree: Tree, known: Known, windows: Windows, values: jax.Array, scale: jax.Array
) -> tuple[NodeLaws, jax.Array, jax.Array]:
    """The laws of all nodes, their means and their standard deviations; arguments as of ``node_laws``.

    Where what is left of a node is below rounding, all are nan, and ``neglected`` is 1.
    """
    beliefs = _LevelBeliefs(tree, known, windows, values, scale)
    centers = beliefs.centers_at(beliefs.expected())

    def goes_on(state: Any) -> jax.Array:
        tries, _, has_moved, (laws, *_) = state
        return (tries == 0) | ((tries <= TRIES) & has_moved & ~(laws.neglected <= NEGLECTED))

    def again(state: Any) -> Any:
        tries, centers, _, _ = state
        found = beliefs.posterior(centers)
        fresh = beliefs.centers_at(jnp.where(jnp.isfinite(found[1]), found[1], beliefs.at(centers)[beliefs.place])[beliefs.order])
        # What is less than a standard deviation changes nothing.
        has_moved = (jnp.abs(fresh - centers) * SPAN > beliefs.half_of).any()
        return tries + 1, fresh, has_moved, found

    width = 2 * max(windows.halves) + 1
    nothing = jnp.zeros(values.shape, values.dtype)
    laws = NodeLaws(nothing, beliefs.step, jnp.zeros((*values.shape, width), values.dtype), jnp.ones((), values.dtype))
    start = jnp.zeros((), jnp.int64), centers, jnp.array(True), (laws, nothing, nothing)
    return while_loop(goes_on, again, start)[-1]


class _LevelBeliefs:
    """All that is passed up and down. Arrays of nodes run level by level; lists have an array for each level."""

    def __init__(self, tree: Tree, known: Known, windows: Windows, values: jax.Array, scale: jax.Array) -> None:
        self.tree, self.known, self.halves, self.sizes = tree, known, windows.halves, windows.sizes
        self.levels = levels_of(tree)
        self.order = np.concatenate([level.nodes for level in self.levels])
        self.place = np.argsort(self.order)
        self.cells = self.place[np.asarray(tree.leaves)]
        self.is_in_order = np.array_equal(self.order, np.arange(self.order.size))
        counts = [level.nodes.size for level in self.levels]
        begins = np.cumsum([0, *counts])
        self.cuts = begins[1:-1].tolist()
        self.half_of = np.repeat(windows.halves, counts)
        #: The inner nodes, and the first child of each.
        self.inner = np.concatenate([level.inner + begin for level, begin in zip(self.levels, begins, strict=False)])
        pairs = zip(self.levels, self.levels[1:], begins[1:], strict=False)
        firsts = [begin + np.searchsorted(below.parents, level.inner) for level, below, begin in pairs]
        self.first = np.concatenate([np.zeros(0, dtype=np.int64), *firsts])
        #: The cells, those below a node side by side.
        self.along = side_by_side(self.levels, self.cells)
        self.values, self.scale = values[self.order], scale[self.order]
        self.is_measured = jnp.isfinite(self.scale)
        self.safe = jnp.where(self.is_measured, self.scale, 1.0)
        self.smallest = self.scale.min()
        self.step = jnp.ones((), values.dtype) if known.integers else self.smallest / POINTS
        base = jnp.zeros(tree.shape[1:], values.dtype)
        self.base = self._nodes(base if known.integers else self.values[self.cells])
        self.prior = known.log_density()

    def _split(self, entries: Array) -> list[Any]:
        return list(jnp.split(entries, self.cuts))

    def _nodes(self, cells: jax.Array) -> jax.Array:
        """Entries of cells, with their sums in the other nodes."""
        rows = jnp.asarray(self.tree @ cells)
        return (rows if self.tree.root_measured else jnp.concatenate([cells.sum()[None], rows]))[self.order]

    def at(self, centers: jax.Array) -> jax.Array:
        """Where these are."""
        return self.base + self.step * centers

    def centers_at(self, expected: jax.Array) -> jax.Array:
        """Steps from the base, near to ``expected``; of a node as many as of its children together."""
        along = self.cells[self.along]
        upto = jnp.round(jnp.cumsum((expected - self.base)[along] / self.step))
        steps = upto - jnp.concatenate([jnp.zeros(1, upto.dtype), upto[:-1]])
        return self._nodes(jnp.zeros_like(steps).at[self.along].set(steps)).astype(jnp.int64)

    # Where nodes are expected, and the pull on each family, by least squares again and again.

    def expected(self) -> jax.Array:
        own = self.is_measured.at[self.cells].set(False)
        hardest = self._split(self._hardest(jnp.stack([self._falls(-1), self._falls(1)], axis=1)))
        given = self._cells_given()
        skipped = 0 if self.tree.root_measured else 1

        def again(state: Any) -> Any:
            step, pull, (mean, variance), spread, _ = state
            value = self.values.at[self.cells].set(mean - variance * pull[self.cells])
            spread = spread.at[self.cells].set(jnp.sqrt(variance))
            fit = least_squares(Measurement(self.tree, value[self.place][skipped:], "gaussian", spread[self.place][skipped:]))
            off = jnp.where(own, self.values - self._nodes(jnp.asarray(fit.cells)), 0.0)
            pulls = jnp.where(own, jnp.clip(off / jnp.square(jnp.where(own, spread, 1.0)), -1 / self.safe, 1 / self.safe), 0.0)
            spread = jnp.where(own, jnp.sqrt(self.safe * jnp.maximum(jnp.abs(off), self.safe / 2)), jnp.inf)
            pulls = self._split(pulls)
            fresh = [jnp.zeros(1, pull.dtype)]
            for depth, below in enumerate(self.levels[1:]):
                lowest, most = hardest[depth].T
                fresh.append(jnp.clip(fresh[-1] + pulls[depth], -lowest, most)[below.parents])
            joined = jnp.concatenate(fresh)
            joined = jnp.where(step == 0, joined, (pull + joined) / 2)
            change = jnp.abs(joined - pull).max() * self.smallest
            return step + 1, joined, given(joined[self.cells]), spread, change

        def goes_on(state: Any) -> jax.Array:
            return (state[0] < STEPS) & (state[-1] >= STILL)

        nothing = jnp.zeros(self.values.shape, self.values.dtype)
        spread = jnp.where(own, jnp.sqrt(2.0) * self.scale, jnp.inf)
        start = jnp.zeros((), jnp.int64), nothing, given(nothing[self.cells]), spread, jnp.full((), jnp.inf, nothing.dtype)
        _, self.pull, (mean, _), _, _ = while_loop(goes_on, again, start)
        return self._nodes(mean)

    def _falls(self, sign: int) -> jax.Array:
        """How fast the prior of each cell falls far out on that side; infinitely where it ends."""
        scale, values = self.scale[self.cells], self.values[self.cells]
        if sign < 0 and np.isfinite(self.known.lower):
            return jnp.full(scale.shape, jnp.inf, scale.dtype)
        reach = jnp.ceil(20 * jnp.maximum(scale, 1.0 if self.known.integers else 0.0))
        x = jnp.maximum(values, self.known.lower)[:, None] + sign * reach[:, None] * jnp.array([[1.0, 2.0]])
        near, far = self.prior(jnp.round(x) if self.known.integers else x).T
        return jnp.where(jnp.isneginf(far), jnp.inf, jnp.maximum(near - far, 0.0) / reach)

    def _hardest(self, falls: jax.Array) -> jax.Array:
        """How hard each family may be pulled to either side, so that the weights of its members still fall."""
        rates = self._split(jnp.repeat(1 / self.scale[:, None], 2, axis=1).at[self.cells].add(falls))
        hardest = [jnp.full(rates[-1].shape, jnp.inf, falls.dtype)]
        for depth in range(len(rates) - 2, -1, -1):
            below, own = self.levels[depth + 1].parents, rates[depth]
            slowest = jax.ops.segment_min(rates[depth + 1], below, num_segments=own.shape[0], indices_are_sorted=True)
            is_leaf = np.bincount(below, minlength=own.shape[0])[:, None] == 0
            hardest.insert(0, NEAR * slowest)
            rates[depth] = own + jnp.where(is_leaf, 0.0, slowest)
        return jnp.concatenate(hardest)

    def _cells_given(self) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
        """From pulls on cells, means and variances of weights that are multiplied by exp(pull x); roughly."""
        values, scale = self.values[self.cells][:, None], self.scale[self.cells][:, None]
        origin, reach = jnp.maximum(values, self.known.lower), 40 / (1 - NEAR)
        u = jnp.linspace(-1.0, 1.0, GRID)[None, :]
        if self.known.integers:
            places = jnp.round(1.1 * jnp.sinh(u * jnp.arcsinh(reach * scale + 2)))
            x = jnp.round(origin) + places
            # Places that are there several times have the width of one together.
            inside = (places[:, 2:] - places[:, :-2]) / 2
            width = jnp.concatenate([places[:, 1:2] - places[:, :1], inside, places[:, -1:] - places[:, -2:-1]], axis=1)
        else:
            u = u * float(np.arcsinh(reach))
            x = origin + scale * jnp.sinh(u)
            width = jnp.broadcast_to(jnp.cosh(u), x.shape)
        log = self.prior(x) - jnp.abs(values - x) / scale + jnp.log(width)

        def given(pull: jax.Array) -> tuple[jax.Array, jax.Array]:
            # About the origin, where exponents are small.
            tilted = log + pull[:, None] * (x - origin)
            weights = jnp.exp(tilted - tilted.max(axis=1, keepdims=True))
            weights = weights / weights.sum(axis=1, keepdims=True)
            mean = (weights * x).sum(axis=1, keepdims=True)
            variance = (weights * jnp.square(x - mean)).sum(axis=1)
            return mean[:, 0], jnp.maximum(variance, 1e-6 * jnp.square(scale[:, 0]))

        return given

    # Belief propagation.

    def posterior(self, centers: jax.Array) -> tuple[NodeLaws, jax.Array, jax.Array]:
        """Laws, means and standard deviations, as the tree's nodes."""
        last, own = len(self.levels) - 1, self._own(centers)
        ups, families, around = [], [], []
        for depth in range(last, -1, -1):
            level, rows = self.levels[depth], []
            if level.inner.size:
                below = self._families(depth, ups[0], around)
                families.insert(0, below)
                ahead = _turned(self.halves[depth], self.sizes[depth])
                sums = jnp.concatenate([jnp.fft.irfft(total * ahead, self.sizes[depth], axis=-1) for total, _ in below])
                rows.append(own[depth] * _window(sums, self.halves[depth]))
            if level.leaves.size:
                rows.append(self._of_leaves(depth, centers))
            joined, place = jnp.concatenate(rows), np.argsort(np.concatenate([level.inner, level.leaves]))
            ups.insert(0, _scaled(joined if np.array_equal(place, np.arange(place.size)) else joined[place]))
        laws, down = [ups[0]], jnp.ones_like(ups[0])
        for depth in range(last):
            inner = self.levels[depth].inner
            outside = own[depth] * (down if np.array_equal(inner, np.arange(down.shape[0])) else down[inner])
            down = _scaled(self._down(depth, families[depth], outside))
            laws.append(ups[depth + 1] * down)
        return self._found(centers, laws, jnp.stack([jnp.zeros((), self.values.dtype), *around]).max())

    def _own(self, centers: jax.Array) -> list[jax.Array]:
        """What inner nodes' own counts say, times the difference of pulls below and above; of each level in its windows."""
        inner, half = self.inner, max(self.halves)
        if not inner.size:
            return []
        offsets = np.arange(-half, half + 1)[None, :]
        some = (x[inner, None] for x in (self.base, self.values, self.safe, self.is_measured))
        base, values, scale, is_measured = some
        pull = (self.pull[inner] - self.pull[self.first])[:, None]
        off = base + self.step * (centers[inner, None] + offsets) - values
        log = -jnp.abs(off) / scale if self.known.integers else hat_log_likelihood(off, scale, self.step)
        log = jnp.where(is_measured, log, 0.0) + pull * (self.step * offsets)
        halves = np.repeat(self.halves, [level.nodes.size for level in self.levels])[inner, None]
        found = _from_logs(log if (halves == half).all() else jnp.where(np.abs(offsets) <= halves, log, -jnp.inf))
        cuts = np.cumsum([level.inner.size for level in self.levels])[:-1].tolist()
        rows = zip(jnp.split(found, cuts), self.halves, strict=True)
        return [x[:, half - own : half + own + 1] for x, own in rows]

    def _of_leaves(self, depth: int, centers: jax.Array) -> jax.Array:
        half, some = self.halves[depth], self.levels[depth].leaves + ([0, *self.cuts])[depth]
        offsets = np.arange(-half, half + 1)[None, :]
        values, scale, base, pull = (x[some, None] for x in (self.values, self.scale, self.base, self.pull))
        places = centers[some, None] + offsets
        if self.known.integers:
            x = places.astype(values.dtype)
            log = self.prior(x) - jnp.abs(values - x) / scale
        elif self.known.is_flat:
            log = hat_log_likelihood(base + self.step * places - values, scale, self.step)
        else:
            log = hat_log_weights(self.prior, self.known.lower, values, scale, base, self.step, places)
        return _from_logs(log + pull * (self.step * offsets))

    def _families(self, depth: int, ups: jax.Array, around: list[jax.Array]) -> list[tuple[jax.Array, list[jax.Array]]]:
        """Of each group of families the transform of all members' sum, and what those of all but one are made of."""
        level, below, size, half = self.levels[depth], self.levels[depth + 1], self.sizes[depth], self.halves[depth + 1]
        masses = ups / ups.sum(axis=1, keepdims=True)
        transforms = jnp.fft.rfft(masses, size, axis=-1) * _turned(-half, size)
        found = []
        for family in level.families:
            num, members = family.shape
            if np.array_equal(family.reshape(-1), np.arange(below.nodes.size)):
                own = transforms.reshape(num, members, -1)
            else:
                own = jnp.concatenate([transforms, jnp.ones_like(transforms[:1])])[family]
            found.append(_products(own))
        widest = max(family.shape[1] for family in level.families)
        if size < self.halves[depth] + widest * half + 1:
            # Chernoff's bound on what comes round, into the parent's window or into a child's.
            offsets, rates = np.arange(-half, half + 1)[:, None], _RATES[None, :] / half
            growth = jnp.maximum(jnp.log(masses @ np.exp(np.concatenate([rates, -rates], axis=1) * offsets)), 0.0)
            sums = jax.ops.segment_sum(growth, below.parents, num_segments=level.nodes.size, indices_are_sorted=True)
            log = sums - np.tile(rates * (size - half - self.halves[depth]), 2)
            around.append(2 * jnp.exp(log.reshape(-1, 2, _RATES.size).min(axis=2).max()))
        return found

    def _down(self, depth: int, families: list[Any], outside: jax.Array) -> jax.Array:
        """What is said of each child by its siblings and by all but its family, which is of the parent in its window."""
        level, below, size, half = self.levels[depth], self.levels[depth + 1], self.sizes[depth], self.halves[depth]
        # Correlations are convolutions with what is turned about.
        around = jnp.conj(jnp.fft.rfft(outside, size, axis=-1) * _turned(self.halves[depth + 1] - half, size))
        parts, begin = [], 0
        for family, (_, stages) in zip(level.families, families, strict=True):
            num, members = family.shape
            others = _of_others(stages, around[begin : begin + num])[:, :members]
            parts.append(
                _window(jnp.fft.irfft(jnp.conj(others), size, axis=-1), self.halves[depth + 1]).reshape(num * members, -1)
            )
            begin += num
        joined, where = jnp.concatenate(parts), np.concatenate([family.reshape(-1) for family in level.families])
        if np.array_equal(where, np.arange(below.nodes.size)):
            return joined
        return joined[np.argsort(where, kind="stable")[: below.nodes.size]]

    def _found(self, centers: jax.Array, laws: list[jax.Array], around: jax.Array) -> tuple[NodeLaws, jax.Array, jax.Array]:
        half = max(self.halves)
        beside = [(half - own, half - own) for own in self.halves]
        masses = jnp.concatenate([jnp.pad(law, ((0, 0), own)) for law, own in zip(laws, beside, strict=True)])
        least = masses.max(axis=1).min()
        is_sound = least >= LEAST
        masses = masses / masses.sum(axis=1, keepdims=True)
        offsets = np.arange(-half, half + 1)
        mean = masses @ jnp.asarray(offsets, masses.dtype)
        variance = (masses * jnp.square(offsets[None, :] - mean[:, None])).sum(axis=1)
        # Where windows end.
        ends = np.repeat(half - np.array(self.halves), [level.nodes.size for level in self.levels])
        rows = np.arange(ends.size)
        low, high = (masses[rows, at(ends)] for at in (lambda k: k, lambda k: 2 * half - k))
        within_low, within_high = (masses[rows, at(ends)] for at in (lambda k: k + 1, lambda k: 2 * half - k - 1))
        beyond = jnp.maximum((_beyond(low, within_low) + _beyond(high, within_high)).max(), around / least)
        reach = half - ends[self.cells]
        center = centers[self.cells]
        is_held = self.known.is_held(((center - reach).min(), (center + reach).max()))
        neglected = jnp.where(is_sound & is_held & (beyond <= 1), beyond, 1.0)
        nothing = jnp.where(is_sound, 0.0, jnp.nan)
        start, mean = self.at(centers - half) + nothing, self.at(centers + mean) + nothing
        stddev = self.step * jnp.sqrt(variance) + nothing
        start, mean, stddev, masses = (x if self.is_in_order else x[self.place] for x in (start, mean, stddev, masses + nothing))
        return NodeLaws(start, self.step, masses, neglected), mean, stddev


def _turned(steps: int, size: int) -> np.ndarray:
    """What transforms of so many points are multiplied by so that what they are of is farther on by as many steps."""
    turns = (steps * np.arange(size // 2 + 1)) % size
    return np.exp(-2j * np.pi * turns / size)[None, :]


def _window(found: jax.Array, half: int) -> jax.Array:
    """The first points, as many as a window has."""
    return jnp.maximum(found[..., : 2 * half + 1], 0.0)


def _from_logs(log: jax.Array) -> jax.Array:
    most = log.max(axis=1, keepdims=True)
    # Else XLA compiles, and computes, all of it again wherever a part is used.
    return lax.optimization_barrier(jnp.exp(log - jnp.where(jnp.isfinite(most), most, 0.0)))


def _scaled(masses: jax.Array) -> jax.Array:
    """With 1 as the largest of each row; nan where there is nothing."""
    return masses / masses.max(axis=1, keepdims=True)


def _products(factors: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """The product over [families, members, ...]'s members; and all that was multiplied on the way, pair by pair."""
    stages = []
    while factors.shape[1] > 1:
        if factors.shape[1] % 2:
            factors = jnp.concatenate([factors, jnp.ones_like(factors[:, :1])], axis=1)
        stages.append(factors)
        factors = factors[:, 0::2] * factors[:, 1::2]
    return factors[:, 0], stages


def _of_others(stages: list[jax.Array], given: jax.Array) -> jax.Array:
    """Of each member ``given`` times the product of all others."""
    found = given[:, None]
    for factors in reversed(stages):
        pairs = factors.reshape(factors.shape[0], -1, 2, factors.shape[2])[:, :, ::-1]
        found = (found[:, : pairs.shape[1], None] * pairs).reshape(factors.shape)
    return found


def _beyond(end: jax.Array, inner: jax.Array) -> jax.Array:
    """What lies outside of windows if laws go on falling as at their ends."""
    falls = (end < inner) & (end > 0)
    ratio = jnp.where(falls, end / jnp.where(falls, inner, 1.0), 0.0)
    return jnp.where(falls, end / (1 - ratio), end)
