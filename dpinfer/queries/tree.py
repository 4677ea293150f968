"""Trees of counting queries: every node asks for the sum of the cells below it."""

import abc
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.queries.base import Array, Queries, namespace

if TYPE_CHECKING:
    from dpinfer.queries.grid_tree import GridTree
    from dpinfer.queries.parent_tree import ParentTree


class Tree(Queries):
    """A hierarchy of counts; one leaf a cell, and each node is the sum of its children.

    Make one with :meth:`complete`, :meth:`grid` or :meth:`from_parents`. The rows are the nodes in order; ``root_measured``
    says whether the root is one of them.

    Attributes:
        parents: the parent of each node, -1 for the root; read-only int64 [num_nodes].
    """

    parents: np.ndarray

    @staticmethod
    def complete(n: int, branching: int, root: bool = False) -> "CompleteTree":
        """The tree that groups ``branching`` neighbouring cells, then groups of groups, up to one root.

        Rows: top level first, each level from left to right. With ``root=False`` (Qardaji et al. 2013) the root's row is left
        out; with ``root=True`` (Hay et al. 2010) it is row 0. If ``n`` is no power of ``branching`` the tree is
        left-aligned and cut at ``n``: the last node of a level may have fewer children, and there are no dummy leaves.

        Args:
            n: number of cells, at least 1.
            branching: children of a full node, at least 2.
            root: whether the root is measured.
        """
        return CompleteTree(n, branching, root)

    @staticmethod
    def grid(shape: Any, branching: int, root: bool = False) -> "GridTree":
        """The tree over a grid of d axes whose nodes are boxes, each split into ``branching`` parts along every axis.

        A quadtree for two axes and ``branching=2``. The rows go level by level from the top, each level in C order. As in
        :meth:`complete`, boxes are left-aligned and cut at the grid's ends; a shorter axis is in one piece from some
        level up. ``Tree.grid((n,), b)`` has the rows of ``Tree.complete(n, b)``.

        Args:
            shape: cells along each axis; the cells are flat in C order.
            branching: parts along each axis, at least 2; a full node has branching^d children.
            root: whether the root is measured.
        """
        from dpinfer.queries.grid_tree import GridTree

        return GridTree(shape, branching, root)

    @staticmethod
    def from_parents(parents: Any, leaf_cells: Any = None) -> "ParentTree":
        """Any rooted tree, such as a geography: row i is node i, the root included.

        Args:
            parents: int array [number of nodes]; the parent's index of each node, -1 for the one root; in any order.
            leaf_cells: the cell of each leaf, leaves taken in index order; a permutation of 0 to number of leaves - 1.
                Left out: leaf k in index order is cell k.
        """
        from dpinfer.queries.parent_tree import ParentTree

        return ParentTree(parents, leaf_cells)

    @property
    @abc.abstractmethod
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""

    @property
    @abc.abstractmethod
    def level_sizes(self) -> tuple[int, ...]:
        """Nodes in each level by distance from the root, the root's level first."""

    @property
    @abc.abstractmethod
    def root_measured(self) -> bool:
        """Whether the root is a row."""

    @property
    @abc.abstractmethod
    def depths(self) -> np.ndarray:
        """The distance of each node from the root; read-only int64 [num_nodes]."""

    @property
    @abc.abstractmethod
    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """First cell below each node, and one past the last."""

    @property
    @abc.abstractmethod
    def leaves(self) -> np.ndarray:
        """The leaf of each cell, int64 [n]."""

    @property
    @abc.abstractmethod
    def is_contiguous(self) -> bool:
        """Whether the cells below every node are a contiguous range."""

    def as_ranges(self) -> tuple[np.ndarray, np.ndarray] | None:
        skipped = 0 if self.root_measured else 1
        return (self.spans[0][skipped:], self.spans[1][skipped:]) if self.is_contiguous else None

    def level_sensitivities(self, order: int, neighbors: str) -> list[int]:
        _checks.relation(neighbors)
        sizes = self.level_sizes if self.root_measured else self.level_sizes[1:]
        if neighbors == "add_remove":
            return [1] * len(sizes)
        # A record that moves leaves one node of a level and enters another. Where a level has one node only, it can still
        # enter it from a leaf that lies higher up.
        n = self.shape[1]
        holds_all = np.asarray(self._forward(np.ones(n, dtype=np.int64))) == n
        depths = self.depths if self.root_measured else self.depths[1:]
        all_below = {0, *depths[holds_all].tolist()}
        first = 0 if self.root_measured else 1
        return [2 if size > 1 else 0 if depth in all_below else 1 for depth, size in enumerate(sizes, first)]


@final
@pytree
class CompleteTree(Tree):
    """A complete tree, cut at n; see :meth:`Tree.complete`. No index array is ever formed to apply it."""

    n: int = static()
    branching: int = static()
    root: bool = static(default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _checks.integer("n", self.n, least=1))
        object.__setattr__(self, "branching", _checks.integer("branching", self.branching, least=2))
        if not isinstance(self.root, (bool, np.bool_)):
            raise ValueError(f"root must be True or False, got {self.root!r}.")
        object.__setattr__(self, "root", bool(self.root))

    def __repr__(self) -> str:
        return f"Tree.complete({self.n}, {self.branching}, root={self.root})"

    @cached_property
    def level_sizes(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        sizes = [self.n]
        while sizes[0] > 1 or len(sizes) == 1:
            sizes.insert(0, -(-sizes[0] // self.branching))
        return tuple(sizes)

    @property
    def root_measured(self) -> bool:
        return self.root

    @property
    def is_full(self) -> bool:
        """Whether every inner node has exactly ``branching`` children."""
        return all(a * self.branching == b for a, b in zip(self.level_sizes, self.level_sizes[1:], strict=False))

    @property
    def measured_sizes(self) -> tuple[int, ...]:
        """Nodes in each measured level, top first."""
        return self.level_sizes if self.root else self.level_sizes[1:]

    @property
    def has_typical_first_cell(self) -> bool:
        return True

    @property
    def levels(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.measured_sizes)), self.measured_sizes)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(self.measured_sizes), self.n

    @property
    def num_nodes(self) -> int:
        return sum(self.level_sizes)

    def split(self, rows: Array) -> list[Array]:
        """Something with one entry a row along its last axis, cut into the measured levels, top first."""
        stops = np.cumsum(self.measured_sizes).tolist()
        return [rows[..., stop - size : stop] for size, stop in zip(self.measured_sizes, stops, strict=True)]

    def sum_children(self, children: Array) -> Array:
        """Each parent's sum over its children, from one level to the next above, along the last axis."""
        groups = self.by_parent(children)
        if isinstance(groups, jax.Array) and jnp.issubdtype(groups.dtype, jnp.floating):
            # XLA's CPU code for a product with ones is three times as fast as for a sum over a short last axis.
            return jnp.matmul(groups, jnp.ones(self.branching, groups.dtype), precision=jax.lax.Precision.HIGHEST)
        return groups.sum(axis=-1)

    def sum_leaves(self, rows: Array) -> Array:
        """From one entry a row, along the last axis, the sum over the leaves of each of the lowest parents."""
        start, stop = self.shape[0] - self.n, self.shape[0]
        if not isinstance(rows, jax.Array) or self.branching > 16 or self.n % self.branching:
            return self.sum_children(rows[..., start:])
        # Every b-th row from the first, second, ... leaf on: no copy of the leaves has to be made. The barrier keeps XLA
        # from adding them up again wherever the sums are used.
        siblings = (jax.lax.slice_in_dim(rows, start + i, stop, self.branching, -1) for i in range(self.branching))
        return jax.lax.optimization_barrier(sum(siblings))

    def to_children(self, parents: Array, size: int) -> Array:
        """Each parent's entry, handed to each of its children (``size`` of them in all)."""
        xp = namespace(parents)
        shape = (*parents.shape, self.branching)
        children = xp.broadcast_to(parents[..., None], shape)
        return children.reshape(*parents.shape[:-1], parents.shape[-1] * self.branching)[..., :size]

    def by_parent(self, children: Array) -> Array:
        """A level's entries as [parents, branching], missing children as 0."""
        size = children.shape[-1]
        parents = -(-size // self.branching)
        missing = parents * self.branching - size
        if missing:
            xp = namespace(children)
            padding = xp.zeros((*children.shape[:-1], missing), dtype=children.dtype)
            children = xp.concatenate([children, padding], axis=-1)
        return children.reshape(*children.shape[:-1], parents, self.branching)

    def _forward(self, x: Array) -> Array:
        levels = [x]
        for _ in self.measured_sizes[1:]:
            levels.insert(0, self.sum_children(levels[0]))
        return namespace(x).concatenate(levels, axis=-1)

    def _backward(self, y: Array) -> Array:
        levels = self.split(y)
        above = levels[0]
        for level in levels[1:]:
            above = level + self.to_children(above, level.shape[-1])
        return above

    def gram(self) -> Array:
        index = np.arange(self.n)
        blocks = (index // self.branching**height for height in range(len(self.measured_sizes)))
        return sum((block[:, None] == block).astype(np.int64) for block in blocks)  # pyright: ignore[reportReturnType]

    def _change_at_equal_weights(self, order: int, neighbors: str) -> int:
        del order
        if neighbors == "add_remove":
            return len(self.measured_sizes)
        # The first and the last cell share a node only where a level has no other.
        return 2 * sum(size > 1 for size in self.measured_sizes)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        # The two cells whose paths from their lowest common ancestor down weigh most: a tree's diameter, one level at a time.
        xp = namespace(weights)
        levels = self.split(weights)
        if not self.root:
            levels.insert(0, xp.zeros((1,), dtype=weights.dtype))
        below, heaviest = levels[-1], [weights.sum() * 0]
        for level in reversed(levels[:-1]):
            paths = xp.sort(self.by_parent(below), axis=-1)
            pairs = paths[:, -1] + paths[:, -2]
            if below.size % self.branching == 1:  # the last parent has one child only, hence no pair
                pairs = pairs[:-1]
            if pairs.size:
                heaviest.append(pairs.max())
            below = level + paths[:, -1]
        return max(heaviest) if xp is np else xp.stack(heaviest).max()

    @cached_property
    def parents(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        starts = np.cumsum((0, *self.level_sizes))
        levels = [
            starts[depth - 1] + np.arange(size) // self.branching if depth else np.array([-1])
            for depth, size in enumerate(self.level_sizes)
        ]
        return _frozen(np.concatenate(levels))

    @cached_property
    def depths(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _frozen(np.repeat(np.arange(len(self.level_sizes)), self.level_sizes))

    @cached_property
    def spans(self) -> tuple[np.ndarray, np.ndarray]:  # pyright: ignore[reportIncompatibleMethodOverride]
        height = len(self.level_sizes) - 1
        # Python integers: the top level's width may be as large as branching * n.
        widths = [self.branching ** (height - depth) for depth in range(height + 1)]
        starts = np.concatenate([np.arange(s) * w for s, w in zip(self.level_sizes, widths, strict=True)])
        widths_of_nodes = np.repeat(widths, self.level_sizes)
        return _frozen(starts), _frozen(np.minimum(starts + widths_of_nodes, self.n))

    @cached_property
    def leaves(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _frozen(np.arange(self.num_nodes - self.n, self.num_nodes))

    @property
    def is_contiguous(self) -> bool:
        return True


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
