"""Least squares on a tree in two passes, for any tree and any noise.

The problem: every node v has a noisy count y_v with variance s_v (infinite: not measured; 0: exact), and true counts add up,
each parent being the sum of its children. The best linear unbiased estimate minimises sum_v (x_v - y_v)^2 / s_v subject to that.

Up, children before parents: z_v is the best estimate of node v from the measurements at and below v, V_v its variance. With
S and T the sums of z and V over the children (a leaf has T = infinity),

    z_v = (T y_v + s_v S) / (T + s_v),    V_v = T s_v / (T + s_v)

Down, parents first: a parent's correction is shared among its children c in proportion to V_c,

    x_c = z_c + g_c (x_v - S_v),    g_c = V_c / T_v,    var x_c = V_c (1 - g_c) + g_c^2 var x_v

Hay et al. 2010, section 4.1, is the case of equal variances and a complete tree, where its printed weight h(v)^-1 must read
k^(h(v)-1); Qardaji et al. 2013, section 3.3, leaves the root unmeasured.

One child of infinite V is determined by its parent and its siblings: it takes the whole correction. The children of a node
with T = 0, all exact, take equal parts of a correction that is zero if the exact counts agree.
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from dpinfer._loops import fori_loop
from dpinfer._pytree import pytree, static
from dpinfer.inference.segmented import in_turn
from dpinfer.queries.base import Array
from dpinfer.queries.parent_tree import Blocks, Links, ParentTree
from dpinfer.queries.tree import CompleteTree


class Gains(NamedTuple):
    """What the two passes multiply by, and the variances they imply; node arrays run level by level from the root.

    Attributes:
        own, children: weights of the node's own value and of its children's sum in z.
        up_variances: V, with 0 in place of infinity.
        shares: g; 1 for the root.
        variances: of the final estimate; infinite where it is not determined.
        is_loose: whether a node leaves two of its children undetermined (or is a root without any measurement).
    """

    own: Float[jax.Array, " nodes"]
    children: Float[jax.Array, " nodes"]
    up_variances: Float[jax.Array, " nodes"]
    shares: Float[jax.Array, " nodes"]
    variances: Float[jax.Array, " nodes"]
    is_loose: Bool[jax.Array, " nodes"]


def node_variances(stddev: Float[jax.Array, "*m"]) -> Float[jax.Array, "*m"]:
    """Stddev squared, with a derivative of 0 and no nan where it is infinite."""
    finite = jnp.isfinite(stddev)
    return jnp.where(finite, jnp.square(jnp.where(finite, stddev, 0.0)), jnp.inf)


def _combine(s: jax.Array, total: jax.Array, num_open: jax.Array, is_leaf: jax.Array) -> tuple[jax.Array, ...]:
    """(own weight, children's weight, V, whether V is infinite) from s and the children's T and count of infinite V."""
    measured = jnp.isfinite(s)
    below = jnp.logical_not(jnp.logical_or(is_leaf, num_open > 0))  # the children determine the node
    finite = jnp.where(measured, s, 0.0)
    both = measured & below & (total + finite > 0)
    own = jnp.where(both, total / jnp.where(both, total + finite, 1.0), jnp.where(measured, 1.0, 0.0))
    children = jnp.where(both, finite / jnp.where(both, total + finite, 1.0), jnp.where(measured | ~below, 0.0, 1.0))
    variance = jnp.where(measured, own * finite, jnp.where(below, total, 0.0))
    return own, children, variance, ~(measured | below)


def _share(variance: jax.Array, is_open: jax.Array, total: jax.Array, num_open: jax.Array, num: jax.Array) -> jax.Array:
    """G of each child from its own V and its parent's T, count of infinite V and number of children."""
    regular = (num_open == 0) & (total > 0)
    proportional = variance / jnp.where(regular, total, 1.0)
    rest = jnp.where(num_open > 0, is_open / jnp.maximum(num_open, 1.0), 1.0 / num)
    return jnp.where(regular, proportional, rest)


def _settle(variance: jax.Array, others: jax.Array, is_open: jax.Array, total: jax.Array, num_open: jax.Array) -> jax.Array:
    """The part of a child's final variance that does not come from its parent: V_c (1 - g_c) = V_c (T - V_c) / T."""
    alone = jnp.where(is_open, jnp.where(num_open > 1, jnp.inf, total), 0.0)
    return jnp.where(num_open > 0, variance, variance * (others / jnp.where(total > 0, total, 1.0))) + alone


MAX_REGULAR_RATIO = 4.0

# Of a batch, binary trees of so many leaves go one by one on a CPU of few cores. All at once, half of the time is spent on fresh
# memory for what is passed between the levels; more cores make up for it.
_IN_TURN = (1 << 12, 1 << 15)
_FEW_CORES = 2

# Level by level: one array a level, the root's first. An array of length 1 may stand for a level of equal entries.


@pytree
class CompleteLevels:
    """How the levels of a complete tree hang together: by reshaping."""

    tree: CompleteTree = static()

    def sum_children(self, entries: jax.Array, depth: int, most: jax.Array | None = None) -> jax.Array:
        """From the level at ``depth``, each parent's sum over its children: over those of at most ``most``, if that is given."""
        if entries.shape[0] == 1 and self.tree.level_sizes[depth] > 1:
            return entries * self.tree.branching if most is None else jnp.where(entries <= most, entries * self.tree.branching, 0)
        if most is not None:
            entries = jnp.where(entries <= self.hand_down(most, depth), entries, 0)
        return jnp.asarray(self.tree.sum_children(entries))

    def hand_down(self, entries: jax.Array, depth: int) -> jax.Array:
        """To the level at ``depth``, each parent's entry for each of its children."""
        size = self.tree.level_sizes[depth]
        return entries if entries.shape[0] == 1 else jnp.asarray(self.tree.to_children(entries, size))

    def is_leaf(self, depth: int) -> jax.Array:
        return jnp.array(depth == len(self.tree.level_sizes) - 1)

    def num_siblings(self, depth: int) -> Array:
        """How many children the parent of each node at ``depth`` has."""
        above, size = self.tree.level_sizes[depth - 1 : depth + 1]
        if self.tree.is_full:
            return np.array([self.tree.branching])
        num = np.full(above, self.tree.branching)
        num[-1] = size - self.tree.branching * (above - 1)
        return self.tree.to_children(num, size)

    def correct(self, up: jax.Array, share: jax.Array, correction: jax.Array, depth: int) -> jax.Array:
        """Up + share * correction of the parent."""
        if share.shape[0] == 1:  # equal shares of a full level: added group by group, the form that compiles best
            return (up.reshape(correction.shape[0], -1) + (share * correction)[:, None]).reshape(-1)
        return up + share * jnp.asarray(self.tree.to_children(correction, up.shape[0]))


def level_gains(levels: CompleteLevels | Links, variances: Sequence[jax.Array], *, is_regular: bool) -> list[Gains]:
    """Gains of each level from the variances of its nodes (infinite: not measured), the root's level first.

    ``is_regular`` promises that every node (but a root that is no row) was measured, none exactly, with standard deviations
    that differ by no more than MAX_REGULAR_RATIO. Then every V is positive and finite, and none so much larger than its
    siblings' together that T - V would lose digits: V is at most the largest variance, and at least the smallest over the height.
    """
    zero = jnp.zeros((1,), variances[0].dtype)
    last = len(variances) - 1
    up = [(*_combine(variances[-1], zero, zero, jnp.array(True)), zero, zero)]
    for depth in range(last, 0, -1):
        _, _, variance, is_open, _, _ = up[0]
        total = levels.sum_children(variance, depth)
        num_open = zero if is_regular else levels.sum_children(is_open.astype(variance.dtype), depth)
        up.insert(0, (*_combine(variances[depth - 1], total, num_open, levels.is_leaf(depth - 1)), total, num_open))

    own, children, variance, is_open, _, num_open = up[0]
    root = jnp.where(is_open, jnp.inf, variance)
    gains = [Gains(own, children, variance, jnp.ones_like(variance), root, is_open | (num_open > 1))]
    for depth in range(1, last + 1):
        *_, parent_total, parent_open = up[depth - 1]
        own, children, variance, is_open, _, num_open = up[depth]
        total = levels.hand_down(parent_total, depth)
        if is_regular:
            count, share = zero, variance / total
        else:
            count = levels.hand_down(parent_open, depth)
            share = _share(variance, is_open, total, count, jnp.asarray(levels.num_siblings(depth), variance.dtype))
        others = total - variance
        if not is_regular:
            # A child of more than half of T: T - V would lose digits. At most one of siblings is that large.
            rest = levels.hand_down(levels.sum_children(variance, depth, most=0.5 * parent_total), depth)
            others = jnp.where(variance > 0.5 * total, rest, others)
        above = levels.hand_down(gains[-1].variances, depth)
        final = _settle(variance, others, is_open, total, count) + jnp.where(share > 0, share**2 * above, 0.0)
        gains.append(Gains(own, children, variance, share, final, num_open > 1))
    return gains


def level_values(
    levels: CompleteLevels | Links,
    values: Sequence[jax.Array],
    gains: list[Gains],
    *,
    is_regular: bool,
    leaf_sums: jax.Array | None = None,
    apart: bool = False,
) -> list[jax.Array]:
    """The estimate of each level from the values of its nodes, the root's level first.

    ``leaf_sums`` are the sums of the values over the children of the lowest parents, if the leaves all weigh alike. With
    ``apart`` each level is written down before the next: else XLA goes down to each leaf from the root.
    """
    up, sums = [values[-1] if is_regular else gains[-1].own * values[-1]], []
    for depth in range(len(values) - 1, 0, -1):
        if leaf_sums is not None and not sums:
            sums.append(gains[-1].own * leaf_sums)
        else:
            sums.insert(0, levels.sum_children(up[0], depth))
        up.insert(0, gains[depth - 1].own * values[depth - 1] + gains[depth - 1].children * sums[0])
    final = [up[0]]
    for depth in range(1, len(values)):
        corrected = levels.correct(up[depth], gains[depth].shares, final[-1] - sums[depth - 1], depth)
        final.append(jax.lax.optimization_barrier(corrected) if apart else corrected)
    return final


def complete_variances(tree: CompleteTree, stddev: jax.Array) -> list[jax.Array]:
    """Variances by level of a complete tree, an unmeasured root as infinity; ``stddev`` a scalar or one a row."""
    s = node_variances(stddev)
    if s.ndim == 0:
        variances = [s.reshape(1) if tree.is_full else jnp.broadcast_to(s, (size,)) for size in tree.measured_sizes]
    else:
        variances = [jnp.asarray(level) for level in tree.split(s)]
    return variances if tree.root else [jnp.full((1,), jnp.inf, s.dtype), *variances]


def complete_values(tree: CompleteTree, values: jax.Array, gains: list[Gains], *, is_regular: bool) -> list[jax.Array]:
    """The estimate of each level of a complete tree from the values of its rows, the root's level first."""
    levels = CompleteLevels(tree)

    def of_values(values: jax.Array, gains: list[Gains], *, apart: bool = False) -> list[jax.Array]:
        leaf_sums = jnp.asarray(tree.sum_leaves(values)) if gains[-1].own.shape[0] == 1 else None
        own = [jnp.asarray(level) for level in tree.split(values)]
        own = own if tree.root else [jnp.zeros((1,), values.dtype), *own]
        return level_values(levels, own, gains, is_regular=is_regular, leaf_sums=leaf_sums, apart=apart)

    found = of_values(values, gains)
    if tree.branching == 2 and _IN_TURN[0] <= tree.shape[1] <= _IN_TURN[1] and (os.cpu_count() or 1) <= _FEW_CORES:

        def one_by_one(values: jax.Array, gains: list[Gains]) -> jax.Array:
            # With gains that are constants in it jax 0.10 runs the loop half as fast.
            return of_values(values, jax.lax.optimization_barrier(gains), apart=True)[-1]

        # The leaves alone, which is what is mostly asked for: to put all levels into their places takes longer than is won.
        found[-1] = in_turn(one_by_one, lambda *given: of_values(*given)[-1])(values, gains)
    return found


# Deep trees: blocks of nodes of one level, in a compiled loop whose size does not depend on the depth.


def deep_gains(blocks: Blocks, num_children: Int[jax.Array, " nodes"], s: Float[jax.Array, " nodes"]) -> Gains:
    """Gains of every node by position; ``s`` and ``num_children`` by position."""
    size, is_leaf = s.shape[0], num_children == 0
    leaf_block, s_block = blocks.pad(is_leaf), blocks.pad(s)

    def contribution(start: jax.Array, own: jax.Array) -> jax.Array:
        _, _, variance, is_open = _combine(blocks.own(s_block, start), own[:, 0], own[:, 1], blocks.own(leaf_block, start))
        return jnp.stack([variance, is_open.astype(s.dtype)], axis=-1)

    sums = blocks.upward(contribution, blocks.pad(jnp.zeros((size, 2), s.dtype)))
    total, num_open = sums[:size, 0], sums[:size, 1]
    own, children, variance, is_open = _combine(s, total, num_open, is_leaf)
    parent = jnp.asarray(blocks.parent[:size])
    above = (sums[parent, 0], sums[parent, 1])
    is_root = jnp.arange(size) == 0
    share = jnp.where(
        is_root, 1.0, _share(variance, is_open, *above, jnp.maximum(blocks.pad(num_children)[parent], 1).astype(s.dtype))
    )
    dominates = (variance > 0.5 * above[0]) & ~is_root
    small = jax.ops.segment_sum(jnp.where(dominates | is_root, 0.0, variance), parent, num_segments=size + 1)[parent]
    others = jnp.where(dominates, small, above[0] - variance)
    first = jnp.where(is_root, jnp.where(is_open, jnp.inf, variance), _settle(variance, others, is_open, *above))
    shares = blocks.pad(share)

    def down(start: jax.Array, own: jax.Array, parent: jax.Array) -> jax.Array:
        g = blocks.own(shares, start)
        return own + jnp.where(g > 0, g**2 * parent, 0.0)

    variances = blocks.downward(down, blocks.pad(first))[:size]
    return Gains(own, children, variance, share, variances, (num_open > 1) | (is_root & is_open))


def deep_values(blocks: Blocks, values: Float[jax.Array, " nodes"], gains: Gains) -> Float[jax.Array, " nodes"]:
    """The estimate of every node by position."""
    size = values.shape[0]
    own_part, children = blocks.pad(gains.own * values), blocks.pad(gains.children)

    def contribution(start: jax.Array, own: jax.Array) -> jax.Array:
        return blocks.own(own_part, start) + blocks.own(children, start) * own

    sums = blocks.upward(contribution, jnp.zeros_like(own_part))
    up = own_part + children * sums
    parent = jnp.asarray(blocks.parent)
    # x_c = (z_c - g_c S_parent) + g_c x_parent: the first part is known before the loop.
    shares = blocks.pad(gains.shares.at[0].set(0.0))
    first = up - shares * sums[parent]
    return blocks.downward(lambda start, own, above: own + blocks.own(shares, start) * above, first)[:size]


# Ranges: climb from both ends to the lowest common ancestor.


def sibling_sums(tree: CompleteTree | ParentTree, entries: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each node, the sums of ``entries`` over its siblings before and over those after it in cell order.

    Each by itself: the difference of a total and the rest would lose the digits of the smaller siblings.
    """
    if isinstance(tree, CompleteTree):
        before, after, start = [jnp.zeros((1,), entries.dtype)], [jnp.zeros((1,), entries.dtype)], 1
        for size in tree.level_sizes[1:]:
            groups = jnp.asarray(tree.by_parent(entries[start : start + size]))
            zero = jnp.zeros_like(groups[:, :1])
            left = jnp.concatenate([zero, jnp.cumsum(groups, axis=-1)[:, :-1]], axis=-1)
            right = jnp.concatenate([jnp.cumsum(groups[:, ::-1], axis=-1)[:, ::-1][:, 1:], zero], axis=-1)
            before.append(left.reshape(-1)[:size])
            after.append(right.reshape(-1)[:size])
            start += size
        return jnp.concatenate(before), jnp.concatenate(after)
    order, is_first = tree.sibling_order

    def add(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return left[0] | right[0], jnp.where(right[0], right[1], left[1] + right[1])

    zero, by_parent = jnp.zeros((1,), entries.dtype), entries[order]
    is_last = np.append(is_first[1:], True)
    _, running = jax.lax.associative_scan(add, (jnp.asarray(is_first), by_parent))
    before = jnp.where(is_first, 0.0, jnp.concatenate([zero, running[:-1]]))
    _, running = jax.lax.associative_scan(add, (jnp.asarray(is_last[::-1].copy()), by_parent[::-1]))
    after = jnp.where(is_last, 0.0, jnp.concatenate([running[::-1][1:], zero]))
    return jnp.zeros_like(entries).at[order].set(before), jnp.zeros_like(entries).at[order].set(after)


class Climb(NamedTuple):
    """What climbing needs of every node, by position."""

    parent: jax.Array
    depth: jax.Array
    variance: jax.Array
    share: jax.Array
    final: jax.Array
    before: jax.Array
    after: jax.Array
    share_before: jax.Array
    share_after: jax.Array


def _between(before: jax.Array, after: jax.Array, u: jax.Array, w: jax.Array, at_u: jax.Array, at_w: jax.Array) -> jax.Array:
    """The sum over the siblings strictly between u and w, from the side on which less has to be taken away again."""
    by_left, by_right = before[w] - before[u] - at_u, after[u] - after[w] - at_w
    return jnp.maximum(jnp.where(before[w] <= after[u], by_left, by_right), 0.0)


class End(NamedTuple):
    """One end of a range on its way up: the node, a of its part of the range, the variance gathered below it."""

    node: jax.Array
    weight: jax.Array
    gathered: jax.Array


def range_variances(climb: Climb, first: Int[jax.Array, " m"], last: Int[jax.Array, " m"], depth: int) -> Float[jax.Array, " m"]:
    """The variance of the sum over a range of cells, from the leaf ``first`` to the leaf ``last``, for many ranges at once.

    Write q for the 0/1 weights of the cells in the range, a_leaf = q and a_v = sum_c g_c a_c. Given x_v, the estimates of v's
    children have covariance diag(V) - V V'/T, hence

        var(q'x) = a_v^2 var x_v + sum over the nodes c below v of V_c (a_c - a_parent(c))^2

    for any v that holds the whole range. A node inside the range has a = 1 and one outside has a = 0, so that only the
    siblings along the two paths from the ends of the range to their lowest common ancestor v add to the sum: O(depth) a range.
    """

    def up(end: End, is_left: bool) -> End:
        node, weight, gathered = end
        v, g, before, after = climb.variance[node], climb.share[node], climb.before[node], climb.after[node]
        a = g * weight + (climb.share_after if is_left else climb.share_before)[node]
        inside, outside = (after, before) if is_left else (before, after)
        return End(climb.parent[node], a, gathered + v * (weight - a) ** 2 + inside * (1.0 - a) ** 2 + outside * a**2)

    def meet(left: End, right: End) -> jax.Array:
        v, w = climb.variance[left.node], climb.variance[right.node]
        g, h = climb.share[left.node], climb.share[right.node]
        between = _between(climb.before, climb.after, left.node, right.node, v, w)
        outside = climb.before[left.node] + climb.after[right.node]
        shared = _between(climb.share_before, climb.share_after, left.node, right.node, g, h)
        a = g * left.weight + h * right.weight + shared
        return (
            left.gathered
            + right.gathered
            + v * (left.weight - a) ** 2
            + w * (right.weight - a) ** 2
            + between * (1.0 - a) ** 2
            + outside * a**2
            + a**2 * climb.final[climb.parent[left.node]]
        )

    def step(_: jax.Array, state: tuple[End, End, jax.Array, jax.Array]) -> tuple[End, End, jax.Array, jax.Array]:
        left, right, result, is_done = state
        meets = (climb.parent[left.node] == climb.parent[right.node]) & ~is_done
        result = jnp.where(meets, meet(left, right), result)
        is_done = is_done | meets
        low, high = climb.depth[left.node], climb.depth[right.node]
        left = jax.tree.map(partial(jnp.where, ~is_done & (low >= high)), up(left, True), left)
        right = jax.tree.map(partial(jnp.where, ~is_done & (high >= low)), up(right, False), right)
        return left, right, result, is_done

    one = jnp.ones(first.shape, climb.variance.dtype)
    ends = End(first, one, jnp.zeros_like(one)), End(last, one, jnp.zeros_like(one))
    single = first == last
    _, _, result, _ = fori_loop(0, depth, step, (*ends, jnp.where(single, climb.final[first], 0.0), single))
    return result
