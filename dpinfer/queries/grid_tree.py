"""Trees over a grid of cells: every node is a box that is split along all axes at once."""

from functools import cached_property, reduce
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, read_only, static
from dpinfer.queries.base import Array, namespace
from dpinfer.queries.parent_tree import ParentTree
from dpinfer.queries.tree import Tree


@final
@pytree
class GridTree(Tree):
    """A tree of boxes, cut at the grid's ends; see :meth:`Tree.grid`. One application costs O(nodes)."""

    sides: tuple[int, ...] = static()
    branching: int = static()
    root: bool = static(default=False)

    def __post_init__(self) -> None:
        sides = _checks.grid("shape", self.sides)
        object.__setattr__(self, "sides", sides)
        object.__setattr__(self, "branching", _checks.integer("branching", self.branching, least=2))
        if not isinstance(self.root, (bool, np.bool_)):
            raise ValueError(f"root must be True or False, got {self.root!r}.")
        object.__setattr__(self, "root", bool(self.root))

    def __repr__(self) -> str:
        return f"Tree.grid({self.sides}, {self.branching}, root={self.root})"

    @cached_property
    def grids(self) -> tuple[tuple[int, ...], ...]:
        """Nodes along each axis for each level, the root's first."""
        grids = [self.sides]
        while len(grids) == 1 or max(grids[0]) > 1:
            grids.insert(0, tuple(-(-size // self.branching) for size in grids[0]))
        return tuple(grids)

    @cached_property
    def level_sizes(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(int(np.prod(grid, dtype=object)) for grid in self.grids)

    @property
    def root_measured(self) -> bool:
        return self.root

    @property
    def measured_grids(self) -> tuple[tuple[int, ...], ...]:
        """Nodes along each axis for each measured level, top first."""
        return self.grids if self.root else self.grids[1:]

    @property
    def num_nodes(self) -> int:
        return sum(self.level_sizes)

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_nodes - (not self.root), self.level_sizes[-1]

    @property
    def has_typical_first_cell(self) -> bool:
        return True

    @property
    def levels(self) -> np.ndarray:
        measured = self.level_sizes if self.root else self.level_sizes[1:]
        return np.repeat(np.arange(len(measured)), measured)

    @cached_property
    def depths(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return read_only(np.repeat(np.arange(len(self.grids)), self.level_sizes))

    @cached_property
    def parents(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        parents, start = [np.array([-1])], 0
        for above, below in zip(self.grids, self.grids[1:], strict=False):
            places = [np.arange(size) // self.branching for size in below]
            parents.append(start + np.ravel_multi_index(np.ix_(*places), above).ravel())
            start += int(np.prod(above))
        return read_only(np.concatenate(parents))

    @cached_property
    def with_root(self) -> ParentTree:
        """The same nodes, all of them rows, as a tree by its parents."""
        return ParentTree(self.parents)

    @property
    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        return self.with_root.spans

    @property
    def leaves(self) -> np.ndarray:
        return np.arange(self.num_nodes - self.shape[1], self.num_nodes)

    @property
    def is_contiguous(self) -> bool:
        return self.with_root.is_contiguous

    def _forward(self, x: Array) -> Array:
        batch, rows = x.shape[:-1], [x]
        table = x.reshape(*batch, *self.sides)
        for _ in self.measured_grids[1:]:
            for axis in range(len(self.sides)):
                table = _sum_groups(table, len(batch) + axis, self.branching)
            rows.insert(0, table.reshape(*batch, -1))
        return namespace(x).concatenate(rows, axis=-1)

    def _backward(self, y: Array) -> Array:
        xp, batch, stop, table = namespace(y), y.shape[:-1], 0, None
        for grid in self.measured_grids:
            start, stop = stop, stop + int(np.prod(grid))
            level = y[..., start:stop].reshape(*batch, *grid)
            if table is not None:
                for axis, size in enumerate(grid, start=len(batch)):
                    table = xp.repeat(table, self.branching, axis=axis)
                    table = table[(*[slice(None)] * axis, slice(size))]
                level = level + table
            table = level
        return namespace(y).reshape(table, (*batch, self.shape[1]))

    def gram(self) -> Array:
        total: Any = 0
        for height in range(len(self.measured_grids)):
            blocks = (np.arange(size) // self.branching**height for size in self.sides)
            total = total + reduce(np.kron, ((block[:, None] == block).astype(np.int64) for block in blocks))
        return total

    def _change_at_equal_weights(self, order: int, neighbors: str) -> int:
        del order
        if neighbors == "add_remove":
            return len(self.measured_grids)
        # The first and the last cell share a node only where a level has no other.
        return 2 * sum(max(grid) > 1 for grid in self.measured_grids)

    def _largest_pair(self, weights: Array, order: int) -> Any:
        if not self.root:
            weights = namespace(weights).concatenate([weights[:1] * 0, weights])
        return self.with_root._largest_pair(weights, order)


def _sum_groups(table: Array, axis: int, size: int) -> Array:
    """Sums over ``size`` neighbours at a time along an axis, the last group being what is left."""
    missing = -table.shape[axis] % size
    table = namespace(table).pad(table, [(0, missing if i == axis else 0) for i in range(table.ndim)])
    return table.reshape(*table.shape[:axis], -1, size, *table.shape[axis + 1 :]).sum(axis=axis + 1)
