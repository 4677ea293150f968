"""Stacks of measurements that are a tree in disguise: partitions of the cells, each finer than the one before.

The identity with a partition, a total, a marginal, another measurement of the same cells, or all levels of several trees of
one shape: whatever divides the cells more and more finely is solved in two passes (``inference/tree.py``), for any noise.
"""

from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer.queries import Identity, Kronecker, Partition, Queries, Total, VStack
from dpinfer.queries.base import Array
from dpinfer.queries.grid_tree import GridTree
from dpinfer.queries.parent_tree import ParentTree
from dpinfer.queries.tree import CompleteTree


class StackTree(NamedTuple):
    """A stack as a tree: the node that each row measures; the number of nodes for a row of zeros."""

    tree: ParentTree
    nodes: np.ndarray


class Level(NamedTuple):
    """Rows that divide the cells: the part of each cell, [n], and the row of each part."""

    labels: np.ndarray
    rows: np.ndarray


@lru_cache(maxsize=32)
def stack_tree(queries: Queries) -> StackTree | None:
    """The tree whose nodes a stack measures, or None if its rows are no chain of ever finer partitions down to the cells."""
    levels = _levels(queries, 0)
    if levels is None:
        return None
    n = queries.shape[1]
    compressed = []
    for level in levels:
        used, labels = np.unique(level.labels, return_inverse=True)
        compressed.append(Level(labels.reshape(-1), level.rows[used]))
    compressed.sort(key=lambda level: level.rows.size)
    if compressed[-1].rows.size < n:
        return None
    chain: list[np.ndarray] = [np.zeros(n, dtype=np.int64)]
    places, nodes_of_rows = [], np.full(queries.shape[0], -1)
    for level in compressed:
        size = int(chain[-1].max()) + 1
        above = np.zeros(level.rows.size, dtype=np.int64)
        above[level.labels] = chain[-1]
        if not np.array_equal(above[level.labels], chain[-1]):
            return None  # a part lies in two parts of a coarser partition
        if level.rows.size == size:
            places.append((len(chain) - 1, above, level.rows))  # the same partition, numbered in another way
        else:
            chain.append(level.labels)
            places.append((len(chain) - 1, np.arange(level.rows.size), level.rows))
    if len(chain) == 1:
        chain.append(np.arange(n))  # one cell
    # The last level in the order of the cells, so that leaf k is cell k.
    renumber = np.empty(n, dtype=np.int64)
    renumber[chain[-1]] = np.arange(n)
    chain[-1], last = np.arange(n), len(chain) - 1
    sizes = [int(labels.max()) + 1 for labels in chain]
    starts = np.cumsum([0, *sizes])
    parents = [np.array([-1])]
    for depth, (above, below) in enumerate(pairwise(chain)):
        parent = np.zeros(sizes[depth + 1], dtype=np.int64)
        parent[below] = above + starts[depth]
        parents.append(parent)
    for depth, place, rows in places:
        nodes_of_rows[rows] = starts[depth] + (renumber[place] if depth == last else place)
    tree = ParentTree(np.concatenate(parents))
    return StackTree(tree, np.where(nodes_of_rows < 0, tree.num_nodes, nodes_of_rows))


def _levels(queries: Queries, first: int) -> list[Level] | None:
    """The partitions that a family's rows are, its first row being number ``first``; None if they are anything else."""
    m, n = queries.shape
    match queries:
        case Identity():
            return [Level(np.arange(n), first + np.arange(n))]
        case Total():
            return [Level(np.zeros(n, dtype=np.int64), np.array([first]))]
        case Partition(labels):
            return [Level(labels, first + np.arange(m))]
        case Kronecker(parts) if all(isinstance(part, (Identity, Total)) for part in parts):
            shape = [part.shape[1] for part in parts]
            kept = [np.arange(size) * isinstance(part, Identity) for size, part in zip(shape, parts, strict=True)]
            labels = np.ravel_multi_index(np.ix_(*kept), [part.shape[0] for part in parts]).reshape(-1)
            return [Level(np.broadcast_to(labels, n), first + np.arange(m))]
        case CompleteTree():
            sizes, branching, levels = queries.measured_sizes, queries.branching, []
            for height, size in reversed(list(enumerate(reversed(sizes)))):
                levels.append(Level(np.arange(n) // branching**height, first + np.arange(size)))
                first += size
            return levels
        case GridTree():
            grids, levels = queries.measured_grids, []
            for height, grid in reversed(list(enumerate(reversed(grids)))):
                boxes = [np.arange(side) // queries.branching**height for side in queries.sides]
                size = int(np.prod(grid))
                levels.append(Level(np.ravel_multi_index(np.ix_(*boxes), grid).reshape(-1), first + np.arange(size)))
                first += size
            return levels
        case VStack(parts):
            levels = []
            for part in parts:
                own = _levels(part, first)
                if own is None:
                    return None
                levels += own
                first += part.shape[0]
            return levels
        case _:
            return None


@partial(jax.jit, static_argnums=1)
def pool(nodes: Array, num_nodes: int, values: jax.Array, stddev: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The value and the standard deviation of each node from all rows that measure it, weighted by their precision.

    A node that nobody measures has an infinite standard deviation, and one with an exact row has that row's value.
    """
    stddev = jnp.broadcast_to(stddev, values.shape)
    exact, measured = stddev == 0, jnp.isfinite(stddev) & (stddev > 0)
    # Relative to the most precise row of each node, so that no square overflows.
    best = jnp.full((num_nodes + 1,), jnp.inf, values.dtype).at[nodes].min(jnp.where(measured, stddev, jnp.inf))
    best = jax.lax.stop_gradient(best)
    ratio = jnp.where(measured, best[nodes] / jnp.where(measured, stddev, 1.0), 0.0)
    weight = jnp.where(exact, 1.0, jnp.square(ratio))
    is_exact = jnp.zeros((num_nodes + 1,), bool).at[nodes].max(exact)
    weight = jnp.where(is_exact[nodes] & ~exact, 0.0, weight)
    zero = jnp.zeros((num_nodes + 1,), values.dtype)
    total, weighted = zero.at[nodes].add(weight), zero.at[nodes].add(weight * jnp.where(weight > 0, values, 0.0))
    safe = jnp.where(total > 0, total, 1.0)
    spread = jnp.where(is_exact, 0.0, jnp.where(total > 0, jnp.where(total > 0, best, 1.0) / jnp.sqrt(safe), jnp.inf))
    return (weighted / safe)[:num_nodes], spread[:num_nodes]
