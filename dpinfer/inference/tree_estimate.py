"""The least squares estimate of a measured tree, and its answers."""

from collections.abc import Iterator
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._pytree import pytree, static
from dpinfer.inference import tree as passes
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, row_blocks
from dpinfer.queries import Queries
from dpinfer.queries.base import Array
from dpinfer.queries.parent_tree import Blocks, ParentTree
from dpinfer.queries.tree import CompleteTree

# Ranges a compiled call, and entries of a block of workload rows by nodes: both bound the working memory.
_RANGES_AT_ONCE = 1 << 18
_ROW_ENTRIES = 1 << 24


@final
@pytree
class TreeEstimate(LinearEstimate):
    """Estimates of all nodes of a tree, consistent: every node is the sum of its children.

    Node arrays run level by level from the root (for a complete tree, the order of its rows).

    Attributes:
        tree: the tree that was measured.
        node_values: [num_nodes], the estimated counts.
        node_variances: [num_nodes], the exact variance of each; infinite where it is not determined.
        up_variances, shares: V and g of the two passes (``inference/tree.py``).
        is_determined: False if a node has two children that nothing tells apart; outside jit that is a ValueError.
    """

    tree: CompleteTree | ParentTree = static()
    node_values: Array
    node_variances: Array
    up_variances: Array
    shares: Array
    is_determined: Array

    @property
    def cells(self) -> Array:
        if isinstance(self.tree, CompleteTree):
            return self.node_values[..., -self.tree.n :]
        return self.node_values[..., self.tree.position[self.tree.leaves]]

    @property
    def _num_cells(self) -> int:
        return self.tree.shape[1]

    def _answer(self, workload: Queries) -> Answers:
        values = jnp.asarray(workload @ self.cells)
        ranges = workload.as_ranges()
        if ranges is not None and self.tree.is_contiguous:
            return Answers(values, jnp.sqrt(self._range_variances(*ranges)))
        weights = jnp.asarray(self.up_variances).at[0].set(self.node_variances[0])
        pieces = [jnp.square(part) @ weights for part in self._innovations(workload)]
        return Answers(values, jnp.sqrt(jnp.concatenate([*pieces, jnp.zeros((0,), weights.dtype)])))

    def _covariance(self, workload: Queries) -> Array:
        weights = jnp.asarray(self.up_variances).at[0].set(self.node_variances[0])
        innovations = jnp.concatenate([*self._innovations(workload), jnp.zeros((0, weights.size), weights.dtype)])
        return (innovations * weights[None, :]) @ innovations.T

    def _innovations(self, workload: Queries) -> Iterator[jax.Array]:
        """Blocks [k, num_nodes] of a_c - a_parent(c) for every node c (a_root for the root) and each row of the workload.

        The error of an answer is the sum of these times independent errors of variance V_c (the final one for the root).
        """
        tree, shares = self.tree, jnp.asarray(self.shares)
        for block in row_blocks(workload, max(1, _ROW_ENTRIES // tree.num_nodes)):
            rows = jnp.asarray(block, shares.dtype)
            if isinstance(tree, CompleteTree):
                yield _complete_innovations(tree, rows, shares)
            else:
                leaves, parent = jnp.asarray(tree.position[tree.leaves]), jnp.asarray(tree.blocks.parent[: tree.num_nodes])
                yield _parent_tree_innovations(tree.blocks, leaves, parent, rows, shares)

    def _range_variances(self, starts: np.ndarray, stops: np.ndarray) -> jax.Array:
        tree = self.tree
        if isinstance(tree, CompleteTree):
            parent, depth, leaves = tree.parents, tree.depths, tree.leaves
        else:
            parent, depth, leaves = tree.blocks.parent[: tree.num_nodes], tree.depths[tree.order], tree.position[tree.leaves]
        parent = np.maximum(parent, 0)  # nobody climbs past the root
        climb = _climb(tree, jnp.asarray(parent), jnp.asarray(depth), self)
        is_empty = starts == stops
        first = np.where(is_empty, leaves[0], leaves[np.minimum(starts, leaves.size - 1)])
        last = np.where(is_empty, leaves[0], leaves[stops - 1])
        levels = len(tree.level_sizes)
        pieces = []
        for begin in range(0, starts.size, _RANGES_AT_ONCE):
            part = slice(begin, begin + _RANGES_AT_ONCE)
            # Padded to a power of two, so that workloads of many sizes share few compiled programs.
            num = first[part].size
            padding = (0, (1 << (num - 1).bit_length()) - num)
            ends = (jnp.asarray(np.pad(ends[part], padding)) for ends in (first, last))
            pieces.append(passes.range_variances(climb, *ends, levels)[:num])
        variances = jnp.concatenate([*pieces, jnp.zeros((0,), self.shares.dtype)])
        return jnp.where(is_empty, 0.0, variances)


@jax.jit
def _climb(tree: CompleteTree | ParentTree, parent: jax.Array, depth: jax.Array, estimate: TreeEstimate) -> passes.Climb:
    variance, share = jnp.asarray(estimate.up_variances), jnp.asarray(estimate.shares)
    before = passes.sibling_sums(tree, variance)
    share_before = passes.sibling_sums(tree, share)
    around = jax.ops.segment_sum(variance.at[0].set(0.0), parent, num_segments=variance.size)[parent]
    return passes.Climb(
        parent, depth, variance, share, jnp.asarray(estimate.node_variances), before, share_before, around
    )


@jax.jit
def _complete_innovations(tree: CompleteTree, rows: jax.Array, shares: jax.Array) -> jax.Array:
    sizes, levels = tree.level_sizes, [rows]
    for cut, size in zip(np.cumsum(sizes)[:0:-1], sizes[:0:-1], strict=True):
        levels.insert(0, tree.sum_children(shares[None, cut - size : cut] * levels[0]))
    pairs = zip(levels, levels[1:], strict=False)
    return jnp.concatenate([levels[0], *(low - tree.to_children(up, low.shape[-1]) for up, low in pairs)], axis=-1)


@jax.jit
def _parent_tree_innovations(
    blocks: Blocks, leaves: jax.Array, parent: jax.Array, rows: jax.Array, shares: jax.Array
) -> jax.Array:
    padded = blocks.pad(shares)

    def of_row(row: jax.Array) -> jax.Array:
        weights = blocks.pad(jnp.zeros(parent.shape, row.dtype).at[leaves].set(row))
        weights = blocks.upward(lambda start, own: own * blocks.own(padded, start), weights)
        return weights[: parent.size] - weights[parent]  # the root's parent is a slot that holds 0

    return jax.vmap(of_row)(rows)


@jax.jit
def solve_complete(tree: CompleteTree, values: jax.Array, stddev: jax.Array) -> TreeEstimate:
    """The estimate of a complete tree; ``stddev`` a scalar or one a row."""
    gains = passes.complete_gains(tree, stddev)
    values_by_level = passes.complete_values(tree, values, gains)
    sizes = tree.level_sizes

    def whole(name: str) -> jax.Array:
        return jnp.concatenate([jnp.broadcast_to(getattr(g, name), (s,)) for g, s in zip(gains, sizes, strict=True)])

    loose = jnp.stack([g.is_loose.any() for g in gains]).any()
    return TreeEstimate(
        tree, jnp.concatenate(values_by_level), whole("variances"), whole("up_variances"), whole("shares"), ~loose
    )


@jax.jit
def solve_parent_tree(
    tree: ParentTree, blocks: Blocks, num_children: jax.Array, values: jax.Array, stddev: jax.Array
) -> TreeEstimate:
    """The estimate of any tree; ``values``, ``stddev`` and ``num_children`` by position."""
    gains = passes.parent_tree_gains(blocks, num_children, passes.node_variances(stddev))
    nodes = passes.parent_tree_values(blocks, values, gains)
    return TreeEstimate(tree, nodes, gains.variances, gains.up_variances, gains.shares, ~gains.is_loose.any())
