"""Trees of any shape, given by each node's parent."""

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpinfer import _checks
from dpinfer._loops import scan
from dpinfer._pytree import host_array, pytree, read_only, static
from dpinfer.queries.base import Array
from dpinfer.queries.tree import Tree


@pytree
class Blocks:
    """A tree's nodes level by level from the root, cut into blocks of at most ``width`` nodes of one level.

    ``width`` is the mean size of a level, so that the blocks number at most twice the levels and the padded work at most
    twice the nodes, whether the tree is a bush or a chain. Its arrays are leaves, so that a compiled pass takes them as
    arguments and does not carry them as constants.

    Attributes:
        width: nodes a block, some of the last ones of a level unused.
        start, stop: first position of each block after the root's, and one past its last.
        parent: the parent's position for each position, one block longer than the nodes; its entries for the root and the
            padding are the number of nodes, a slot that nobody reads.
    """

    width: int = static()
    start: Array
    stop: Array
    parent: Array

    def window(self, start: jax.Array, stop: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Which of the ``width`` places from ``start`` are in use, and their parents' positions."""
        inside = start + jnp.arange(self.width) < stop
        return inside, lax.dynamic_slice(jnp.asarray(self.parent), (start,), (self.width,))

    def own(self, entries: jax.Array, start: jax.Array) -> jax.Array:
        """The entries (by position, padded by one block) of the block that begins at ``start``."""
        return lax.dynamic_slice_in_dim(entries, start, self.width)

    def pad(self, entries: jax.Array) -> jax.Array:
        """Entries by position with one block of zeros behind them."""
        return jnp.concatenate([entries, jnp.zeros((self.width, *entries.shape[1:]), entries.dtype)])

    def upward(self, contribution: Callable[[jax.Array, jax.Array], jax.Array], sums: jax.Array) -> jax.Array:
        """``sums`` (padded) with each node's contribution added to its parent's entry, deepest level first.

        ``contribution(start, own)`` sees the finished entries of a block and returns what they hand up.
        """

        def step(sums: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            start, stop = bounds
            inside, parent = self.window(start, stop)
            given = contribution(start, self.own(sums, start))
            mask = inside.reshape(-1, *[1] * (given.ndim - 1))
            return sums.at[parent].add(jnp.where(mask, given, 0)), None

        return scan(step, sums, (jnp.asarray(self.start), jnp.asarray(self.stop)), reverse=True)[0]

    def downward(self, update: Callable[[jax.Array, jax.Array, jax.Array], jax.Array], entries: jax.Array) -> jax.Array:
        """``entries`` (padded) updated from the root's children to the deepest level.

        ``update(start, own, parent)`` sees the block's own entries and the parents' finished ones and returns the block's.
        """

        def step(entries: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            start, stop = bounds
            inside, parent = self.window(start, stop)
            own = self.own(entries, start)
            new = jnp.where(inside, update(start, own, entries[parent]), own)
            return lax.dynamic_update_slice_in_dim(entries, new, start, 0), None

        return scan(step, entries, (jnp.asarray(self.start), jnp.asarray(self.stop)))[0]


@pytree
class Links:
    """A tree's nodes level by level from the root, siblings side by side, and what leads from one level to the next.

    Attributes:
        fan_outs: for each level, the most children a node has, and whether all nodes have that many.
        parents: for each level below the root's, the parent's place within the level above.
        num_children: for each level, the children of each node.
    """

    fan_outs: tuple[tuple[int, bool], ...] = static()
    parents: tuple[Array, ...]
    num_children: tuple[Array, ...]

    def sum_children(self, entries: jax.Array, depth: int, most: jax.Array | None = None) -> jax.Array:
        """From the level at ``depth``, each parent's sum over its children: over those of at most ``most``, if that is given."""
        widest, is_even = self.fan_outs[depth - 1]
        if is_even:
            groups = entries.reshape(-1, widest)
            groups = groups if most is None else jnp.where(groups <= most[:, None], groups, 0)
            return jnp.matmul(groups, jnp.ones(widest, entries.dtype), precision=lax.Precision.HIGHEST)
        parents = jnp.asarray(self.parents[depth - 1])
        kept = entries if most is None else jnp.where(entries <= self.hand_down(most, depth), entries, 0)
        return jax.ops.segment_sum(
            kept, parents, self.num_children[depth - 1].shape[0], indices_are_sorted=True, mode="promise_in_bounds"
        )

    def hand_down(self, entries: jax.Array, depth: int) -> jax.Array:
        """To the level at ``depth``, each parent's entry for each of its children."""
        widest, is_even = self.fan_outs[depth - 1]
        if is_even:
            return jnp.broadcast_to(entries[:, None], (entries.shape[0], widest)).reshape(-1)
        return entries.at[jnp.asarray(self.parents[depth - 1])].get(mode="promise_in_bounds")

    def is_leaf(self, depth: int) -> jax.Array:
        return jnp.asarray(self.num_children[depth]) == 0

    def num_siblings(self, depth: int) -> Array:
        """How many children the parent of each node at ``depth`` has."""
        return self.hand_down(jnp.asarray(self.num_children[depth - 1]), depth)

    def correct(self, up: jax.Array, share: jax.Array, correction: jax.Array, depth: int) -> jax.Array:
        """Up + share * correction of the parent."""
        return up + share * self.hand_down(correction, depth)


@final
@pytree
class ParentTree(Tree):
    """A tree by its parents; see :meth:`Tree.from_parents`. One application costs O(nodes)."""

    parents: np.ndarray = static(converter=host_array)  # pyright: ignore[reportIncompatibleMethodOverride]
    leaf_cells: np.ndarray | None = static(default=None)

    def __post_init__(self) -> None:
        parents = read_only(_checks.index_array("parents", self.parents))
        size = parents.size
        if size == 0 or parents.min() < -1 or parents.max() >= size:
            raise ValueError(f"parents must be node indices from 0 to {size - 1}, or -1 for the root.")
        roots = np.flatnonzero(parents == -1)
        if roots.size != 1:
            raise ValueError(f"parents must name exactly one root by -1, got {roots.size}: nodes {roots[:10].tolist()}.")
        object.__setattr__(self, "parents", parents)
        if (cycle := np.flatnonzero(self.depths < 0)).size:
            raise ValueError(f"parents must lead to the root from every node; {cycle[:10].tolist()} go round in circles.")
        num_leaves = int((self.num_children == 0).sum())
        cells = np.arange(num_leaves) if self.leaf_cells is None else _checks.index_array("leaf_cells", self.leaf_cells)
        if cells.size != num_leaves or not np.array_equal(np.sort(cells), np.arange(num_leaves)):
            raise ValueError(
                f"leaf_cells must be a permutation of 0 to {num_leaves - 1}, one cell for each of the {num_leaves} leaves "
                f"in index order, got {cells.size} entries."
            )
        object.__setattr__(self, "leaf_cells", read_only(cells))

    @property
    def shape(self) -> tuple[int, int]:
        return self.parents.size, self.leaves.size

    @property
    def num_nodes(self) -> int:
        return self.parents.size

    @property
    def root_measured(self) -> bool:
        return True

    @property
    def levels(self) -> np.ndarray:
        return self.depths

    @cached_property
    def num_children(self) -> np.ndarray:
        """Children of each node."""
        return read_only(np.bincount(self.parents[self.parents >= 0], minlength=self.num_nodes))

    @cached_property
    def sibling_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions sorted by parent, siblings in cell order, and which of them is its parent's first child."""
        parent = self.blocks.parent[: self.num_nodes]
        order = np.lexsort((self.spans[0][self.order], parent))
        is_first = np.append(True, parent[order][1:] != parent[order][:-1])
        return read_only(order), read_only(is_first, dtype=bool)

    @cached_property
    def depths(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Pointer doubling: log2(depth) rounds. Whoever has not met the root after n steps is on a cycle: depth -1.
        ancestor, depth = self.parents.copy(), (self.parents >= 0).astype(np.int64)
        for _ in range(max(1, self.num_nodes.bit_length())):
            going = ancestor >= 0
            depth[going] += depth[ancestor[going]]
            ancestor[going] = ancestor[ancestor[going]]
            if not (ancestor >= 0).any():
                return read_only(depth)
        return read_only(np.where(ancestor >= 0, -1, depth))

    @cached_property
    def level_sizes(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(np.bincount(self.depths).tolist())

    @cached_property
    def leaves(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        leaves = np.flatnonzero(self.num_children == 0)
        out = np.empty_like(leaves)
        out[self.leaf_cells] = leaves
        return read_only(out)

    @cached_property
    def order(self) -> np.ndarray:
        """Nodes by level from the root; within a level siblings side by side in index order, families in their parents' order."""
        bounds = np.cumsum((0, *self.level_sizes)).tolist()
        order, position = np.argsort(self.depths, kind="stable"), np.zeros(self.num_nodes, dtype=np.int64)
        for start, stop in pairwise(bounds):
            nodes = order[start:stop]
            families = position[self.parents[nodes]]
            if np.any(families[1:] < families[:-1]):
                nodes = order[start:stop] = nodes[np.argsort(families, kind="stable")]
            position[nodes] = np.arange(start, stop)
        return read_only(order)

    @cached_property
    def is_level_order(self) -> bool:
        """Whether the nodes are numbered level by level already."""
        return bool(np.array_equal(self.order, np.arange(self.num_nodes)))

    @cached_property
    def links(self) -> Links:
        """How the levels hang together: the order of work of passes over trees of few levels."""
        bounds = np.cumsum((0, *self.level_sizes)).tolist()
        parents = np.split(np.asarray(self.blocks.parent[: self.num_nodes]), bounds[1:-1])[1:]
        children = np.split(self.num_children[self.order], bounds[1:-1])
        places = (p - bound for p, bound in zip(parents, bounds, strict=False))
        return Links(
            tuple((int(c.max()), bool((c == c[0]).all())) for c in children),
            tuple(p.astype(np.int32) for p in places),
            tuple(c.astype(np.int32) for c in children),
        )

    @cached_property
    def position(self) -> np.ndarray:
        """Where each node stands in :attr:`order`."""
        position = np.empty_like(self.order)
        position[self.order] = np.arange(self.num_nodes)
        return read_only(position)

    @cached_property
    def blocks(self) -> Blocks:
        """The order of work of every pass over the tree that JAX compiles."""
        width = -(-self.num_nodes // len(self.level_sizes))
        bounds = np.cumsum((0, *self.level_sizes))
        per_level = -(-np.asarray(self.level_sizes) // width)
        level = np.repeat(np.arange(len(self.level_sizes)), per_level)
        within = np.arange(level.size) - np.repeat(np.cumsum(per_level) - per_level, per_level)
        start = bounds[level] + within * width
        stop = np.minimum(start + width, bounds[level + 1])
        parent = np.full(self.num_nodes + width, self.num_nodes)
        parent[1 : self.num_nodes] = self.position[self.parents[self.order[1:]]]
        return Blocks(width, start[1:], stop[1:], parent)

    @cached_property
    def spans(self) -> tuple[np.ndarray, np.ndarray]:  # pyright: ignore[reportIncompatibleMethodOverride]
        start = np.full(self.num_nodes, self.shape[1])
        stop = np.zeros(self.num_nodes, dtype=np.int64)
        start[self.leaves] = np.arange(self.shape[1])
        stop[self.leaves] = start[self.leaves] + 1
        for nodes in self._levels_upward():
            np.minimum.at(start, self.parents[nodes], start[nodes])
            np.maximum.at(stop, self.parents[nodes], stop[nodes])
        return read_only(start), read_only(stop)

    @cached_property
    def is_contiguous(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        start, stop = self.spans
        cells_below = self._forward(np.ones(self.shape[1], dtype=np.int64))
        return bool(np.array_equal(stop - start, cells_below))

    def _levels_upward(self) -> list[np.ndarray]:
        """Node indices of every level but the root's, the deepest first."""
        return np.split(self.order, np.cumsum(self.level_sizes)[:-1])[:0:-1]

    def _forward(self, x: Array) -> Array:
        if isinstance(x, np.ndarray):
            sums = np.zeros((*x.shape[:-1], self.num_nodes), dtype=x.dtype)
            sums[..., self.leaves] = x
            for nodes in self._levels_upward():
                np.add.at(sums, (..., self.parents[nodes]), sums[..., nodes])  # pyright: ignore[reportArgumentType]
            return sums
        if x.ndim > 1:
            return jax.vmap(self._forward)(x)
        sums = self.blocks.pad(jnp.zeros((self.num_nodes,), x.dtype).at[self.position[self.leaves]].set(x))
        return self.blocks.upward(lambda _, own: own, sums)[self.position]

    def _backward(self, y: Array) -> Array:
        if isinstance(y, np.ndarray):
            sums = y.copy()
            for nodes in reversed(self._levels_upward()):
                sums[..., nodes] += sums[..., self.parents[nodes]]
            return sums[..., self.leaves]
        if y.ndim > 1:
            return jax.vmap(self._backward)(y)
        sums = self.blocks.downward(lambda _, own, parent: own + parent, self.blocks.pad(y[self.order]))
        return sums[self.position[self.leaves]]

    def _largest_pair(self, weights: Array, order: int) -> Any:
        if not isinstance(weights, np.ndarray):
            return super()._largest_pair(weights, order)
        # As in a complete tree: the two heaviest paths below each node; siblings lie side by side once sorted by weight.
        heaviest, best = weights.copy(), weights.sum() * 0
        for nodes in self._levels_upward():
            parent = self.parents[nodes]
            ranked = np.lexsort((heaviest[nodes], parent)) if weights.dtype != object else _object_rank(heaviest[nodes], parent)
            nodes, parent = nodes[ranked], parent[ranked]
            last = np.append(parent[1:] != parent[:-1], True)
            second = np.flatnonzero(last) - 1
            has_second = (second >= 0) & (parent[second] == parent[last])
            pairs = heaviest[nodes[last]][has_second] + heaviest[nodes[second[has_second]]]
            best = max(best, pairs.max()) if pairs.size else best
            heaviest[parent[last]] += heaviest[nodes[last]]
        return best


def _object_rank(values: np.ndarray, parent: np.ndarray) -> np.ndarray:
    return np.array(sorted(range(values.size), key=lambda i: (parent[i], values[i])), dtype=np.int64)
