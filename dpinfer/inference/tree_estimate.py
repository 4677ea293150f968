"""The least squares estimate of a measured tree, and its answers."""

from functools import partial
from itertools import pairwise
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.inference import tree as passes
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, root, row_blocks, to_device
from dpinfer.measurement import Measurement
from dpinfer.queries import Identity, Queries
from dpinfer.queries.base import Array
from dpinfer.queries.parent_tree import Blocks, Links, ParentTree
from dpinfer.queries.tree import CompleteTree

# Ranges a compiled call, which bounds the working memory.
_RANGES_AT_ONCE = 1 << 18


@final
@pytree
class TreeEstimate(LinearEstimate):
    """Estimates of all nodes of a tree, consistent: every node is the sum of its children.

    Node arrays run level by level from the root (for a complete tree, the order of its rows). They are kept in pieces, one for
    each level or a single one for the whole tree, and joined when asked for: the copy would cost as much as the estimate. A
    piece of one entry may stand for a level of equal entries.

    Attributes:
        tree: the tree that was measured.
        value_pieces: the estimated counts.
        variance_pieces: the exact variance of each; infinite where it is not determined.
        up_pieces, share_pieces: V and g of the two passes (``inference/tree.py``).
        is_determined: False if a node has two children that nothing tells apart; outside jit that is a ValueError.
    """

    tree: CompleteTree | ParentTree = static()
    value_pieces: tuple[Array, ...]
    variance_pieces: tuple[Array, ...]
    up_pieces: tuple[Array, ...]
    share_pieces: tuple[Array, ...]
    is_determined: Array
    measurement: Measurement | None = None

    @property
    def node_values(self) -> Array:
        """[num_nodes], the estimated counts."""
        return self._whole(self.value_pieces)

    @property
    def node_variances(self) -> Array:
        """[num_nodes], the exact variance of each count."""
        return self._whole(self.variance_pieces)

    @property
    def up_variances(self) -> Array:
        """[num_nodes], V of the pass up, with 0 in place of infinity."""
        return self._whole(self.up_pieces)

    @property
    def shares(self) -> Array:
        """[num_nodes], g of the pass down; 1 for the root."""
        return self._whole(self.share_pieces)

    def _whole(self, pieces: tuple[Array, ...]) -> Array:
        sizes = self.tree.level_sizes if len(pieces) == len(self.tree.level_sizes) else (self.tree.num_nodes,)
        level = (jnp.broadcast_to(p, (*p.shape[:-1], size)) for p, size in zip(pieces, sizes, strict=True))
        return jnp.concatenate(list(level), axis=-1)

    @property
    def cells(self) -> Array:
        if isinstance(self.tree, CompleteTree):
            return self.value_pieces[-1]
        return self.node_values[..., self.tree.position[self.tree.leaves]]

    @property
    def _dtype(self) -> Any:
        return self.value_pieces[-1].dtype

    @property
    def _num_cells(self) -> int:
        return self.tree.shape[1]

    def _answer(self, workload: Queries) -> Answers:
        if isinstance(workload, Identity):  # variances that are at hand already
            nodes = self.tree.leaves if isinstance(self.tree, CompleteTree) else self.tree.position[self.tree.leaves]
            return Answers(jnp.asarray(self.cells), root(jnp.asarray(self.node_variances[..., nodes])))
        ranges = workload.as_ranges()
        if ranges is not None and self.tree.is_contiguous:
            answers = self._answer_ranges(*ranges)
            if not _checks.is_concrete(answers):
                return answers
            # Running totals lose digits in 32 bit; outside jit they are formed in 64 bit on the host.
            values = workload @ np.asarray(self.cells, dtype=np.float64)
            return Answers(jnp.asarray(values, answers.values.dtype), answers.stddev)
        structure = _structure(self.tree)
        blocks = row_blocks(workload, self.tree.num_nodes, self._dtype)
        pieces = [_answer_rows(self, structure, rows) for rows in blocks]
        return _join(pieces, self._dtype)

    def _covariance(self, workload: Queries) -> Array:
        return self.covariance_of_rows(workload.dense())

    def stddev_of_rows(self, rows: Array) -> jax.Array:
        """The standard deviations of answers with given cell weights, [k, n]."""
        return jnp.asarray(_answer_rows(self, _structure(self.tree), to_device(rows, self._dtype)).stddev)

    def covariance_of_rows(self, rows: Array) -> jax.Array:
        """Their covariance matrix, [k, k]."""
        return _covariance(self, _structure(self.tree), to_device(rows, self._dtype))

    def _answer_ranges(self, starts: np.ndarray, stops: np.ndarray) -> Answers:
        structure = _structure(self.tree)
        climb, totals = _prepare_ranges(self, structure)
        pieces = []
        for begin in range(0, starts.size, _RANGES_AT_ONCE):
            first, last = starts[begin : begin + _RANGES_AT_ONCE], stops[begin : begin + _RANGES_AT_ONCE]
            # Padded to a power of two, so that workloads of many sizes share few compiled programs.
            padding = (0, (1 << (first.size - 1).bit_length()) - first.size)
            ends = (jnp.asarray(np.pad(end, padding)) for end in (first, last))
            answers = _range_answers(climb, totals, structure.leaves, *ends, len(self.tree.level_sizes))
            # Outside jit the padding is cut off on the host, where no program has to be compiled for it.
            is_host = _checks.is_concrete(answers)
            pieces.append(jax.tree.map(lambda x, n=first.size, h=is_host: (np.asarray(x) if h else x)[:n], answers))
        return _join(pieces, self._dtype)


@pytree
class _Structure:
    """A tree's index arrays by position, as arguments of compiled functions and not as constants in them."""

    parent: Array
    depth: Array
    leaves: Array
    blocks: Blocks | None


def _structure(tree: CompleteTree | ParentTree) -> _Structure:
    if isinstance(tree, CompleteTree):
        return _Structure(tree.parents, tree.depths, tree.leaves, None)
    return _Structure(tree.blocks.parent[: tree.num_nodes], tree.depths[tree.order], tree.position[tree.leaves], tree.blocks)


def _join(pieces: list[Answers], dtype: Any) -> Answers:
    if len(pieces) == 1:
        return Answers(jnp.asarray(pieces[0].values), jnp.asarray(pieces[0].stddev))
    empty = jnp.zeros((0,), dtype)
    values, stddev = (jnp.concatenate([empty, *(getattr(p, name) for p in pieces)]) for name in ("values", "stddev"))
    return Answers(values, stddev)


@jax.jit
def _prepare_ranges(estimate: TreeEstimate, structure: _Structure) -> tuple[passes.Climb, jax.Array]:
    """What every range needs of the tree, and running totals of the cells."""
    variance, share = jnp.asarray(estimate.up_variances), jnp.asarray(estimate.shares)
    parent = jnp.maximum(jnp.asarray(structure.parent), 0)  # nobody climbs past the root
    parent = jnp.where(parent < variance.size, parent, 0)
    before, after = passes.sibling_sums(estimate.tree, variance)
    share_before, share_after = passes.sibling_sums(estimate.tree, share)
    climb = passes.Climb(
        parent=parent,
        depth=jnp.asarray(structure.depth),
        variance=variance,
        share=share,
        final=jnp.asarray(estimate.node_variances),
        before=before,
        after=after,
        share_before=share_before,
        share_after=share_after,
    )
    cells = jnp.asarray(estimate.cells)
    return climb, jnp.concatenate([jnp.zeros((1,), cells.dtype), jnp.cumsum(cells)])


@partial(jax.jit, static_argnames="depth")
def _range_answers(
    climb: passes.Climb, totals: jax.Array, leaves: jax.Array, starts: jax.Array, stops: jax.Array, depth: int
) -> Answers:
    is_empty = starts == stops
    leaves = jnp.asarray(leaves)
    first = leaves[jnp.where(is_empty, 0, starts)]
    last = leaves[jnp.where(is_empty, 0, stops - 1)]
    variances = jnp.where(is_empty, 0.0, passes.range_variances(climb, first, last, depth))
    return Answers(totals[stops] - totals[starts], root(variances))


@jax.jit
def _answer_rows(estimate: TreeEstimate, structure: _Structure, rows: jax.Array) -> Answers:
    spread = jnp.square(_innovations(estimate, structure, rows)) @ _innovation_variances(estimate)
    return Answers(rows @ estimate.cells, root(spread))


@jax.jit
def _covariance(estimate: TreeEstimate, structure: _Structure, rows: jax.Array) -> jax.Array:
    innovations = _innovations(estimate, structure, rows)
    return (innovations * _innovation_variances(estimate)[None, :]) @ innovations.T


def _innovation_variances(estimate: TreeEstimate) -> jax.Array:
    return jnp.asarray(estimate.up_variances).at[0].set(estimate.variance_pieces[0][0])


def _innovations(estimate: TreeEstimate, structure: _Structure, rows: jax.Array) -> jax.Array:
    """a_c - a_parent(c) for every node c (a_root for the root) and each row of cell weights, [k, num_nodes].

    The error of an answer is the sum of these times independent errors of variance V_c (the final variance for the root);
    ``passes.range_variances`` says why.
    """
    tree, shares = estimate.tree, jnp.asarray(estimate.shares)
    if isinstance(tree, CompleteTree):
        sizes, levels = tree.level_sizes, [rows]
        for cut, size in zip(np.cumsum(sizes)[:0:-1], sizes[:0:-1], strict=True):
            levels.insert(0, jnp.asarray(tree.sum_children(shares[None, cut - size : cut] * levels[0])))
        below = (low - tree.to_children(up, low.shape[-1]) for up, low in pairwise(levels))
        return jnp.concatenate([levels[0], *below], axis=-1)
    blocks, parent, leaves = structure.blocks, jnp.asarray(structure.parent), jnp.asarray(structure.leaves)
    if blocks is None:
        raise TypeError("A tree given by its parents comes with its blocks.")
    padded = blocks.pad(shares)

    def of_row(row: jax.Array) -> jax.Array:
        weights = blocks.pad(jnp.zeros(parent.shape, row.dtype).at[leaves].set(row))
        weights = blocks.upward(lambda start, own: own * blocks.own(padded, start), weights)
        return weights[: parent.size] - weights[parent]  # the root's parent is a slot that holds 0

    return jax.vmap(of_row)(rows)


@partial(jax.jit, static_argnames="is_regular")
def solve_complete(tree: CompleteTree, values: jax.Array, stddev: jax.Array, *, is_regular: bool) -> TreeEstimate:
    """The estimate of a complete tree; ``stddev`` a scalar or one a row; ``is_regular`` as in ``level_gains``."""
    variances = passes.complete_variances(tree, stddev)
    gains = passes.level_gains(passes.CompleteLevels(tree), variances, is_regular=is_regular)
    return _collect(tree, passes.complete_values(tree, values, gains, is_regular=is_regular), gains)


@partial(jax.jit, static_argnames="is_regular")
def solve_shallow(tree: ParentTree, links: Links, values: jax.Array, stddev: jax.Array, *, is_regular: bool) -> TreeEstimate:
    """The estimate of a tree of few levels; ``values`` and ``stddev`` by position."""
    cuts = np.cumsum(tree.level_sizes)[:-1].tolist()
    variances = jnp.split(passes.node_variances(stddev), cuts)
    gains = passes.level_gains(links, variances, is_regular=is_regular)
    return _collect(tree, passes.level_values(links, jnp.split(values, cuts), gains, is_regular=is_regular), gains)


@jax.jit
def solve_deep(tree: ParentTree, blocks: Blocks, num_children: jax.Array, values: jax.Array, stddev: jax.Array) -> TreeEstimate:
    """The estimate of a tree of any depth; ``values``, ``stddev`` and ``num_children`` by position."""
    gains = passes.deep_gains(blocks, num_children, passes.node_variances(stddev))
    nodes = passes.deep_values(blocks, values, gains)
    return TreeEstimate(tree, (nodes,), (gains.variances,), (gains.up_variances,), (gains.shares,), ~gains.is_loose.any())


def _collect(tree: CompleteTree | ParentTree, values: list[jax.Array], gains: list[passes.Gains]) -> TreeEstimate:
    loose = jnp.stack([g.is_loose.any() for g in gains]).any()
    return TreeEstimate(
        tree,
        tuple(values),
        tuple(g.variances for g in gains),
        tuple(g.up_variances for g in gains),
        tuple(g.shares for g in gains),
        ~loose,
    )
