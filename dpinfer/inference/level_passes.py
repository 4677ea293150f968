"""Two passes over a tree whose cells come with means and variances, levels at a time; sums may be farther off than these say.

Up, each node's count is averaged by variance with the sum of what its children came to, whose variance is first inflated by one
factor for the level, at least 1. Down, each node's correction is shared among its children by their variances. With all factors 1
this is least squares with independent errors.

A factor k > 1 says that the errors of a node's children have something in common: their covariance is taken as
diag(V) + (k - 1) / (sum V) V V', of which the sum's variance is k sum V, and what is left given the sum is that of independent
errors.
"""

from functools import lru_cache
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._pytree import pytree
from dpinfer.inference.tree_levels import levels_of
from dpinfer.queries import Tree

# As many nodes more of each level count as if they were off by just what the variances say.
_DOUBT = 2.0


class Rungs(NamedTuple):
    """A tree whose leaves are all at one depth.

    Attributes:
        nodes: for each level, top first, the nodes' numbers in the tree.
        parents: the same but for the root, the place of each node's parent in the level above, increasing.
        cells: [n], the cell of each place in the lowest level.
    """

    nodes: tuple[np.ndarray, ...]
    parents: tuple[np.ndarray, ...]
    cells: np.ndarray


@lru_cache(maxsize=16)
def rungs_of(tree: Tree) -> Rungs:
    """The levels of ``tree``; a ValueError if its leaves are at several depths."""
    levels = levels_of(tree)
    if any(level.leaves.size for level in levels[:-1]):
        raise ValueError(f"measurement must be of a tree whose leaves are all at one depth, got {tree!r}.")
    cells = np.empty(tree.num_nodes, dtype=np.int64)
    cells[np.asarray(tree.leaves)] = np.arange(levels[-1].nodes.size)
    nodes, parents = tuple(level.nodes for level in levels), tuple(level.parents for level in levels[1:])
    return Rungs(nodes, parents, cells[levels[-1].nodes])


@final
@pytree
class Passed:
    """What both passes come to.

    Attributes:
        cells: [n].
        variances: of the cells' own means, [n] as the lowest level runs.
        sums: for each level but the lowest, top first, the sums of the variances of each node's children.
        posteriors: for the same levels the variance of each node given all counts at it and below.
        inflation: [levels - 1], the factors.
    """

    cells: jax.Array
    variances: jax.Array
    sums: tuple[jax.Array, ...]
    posteriors: tuple[jax.Array, ...]
    inflation: jax.Array

    def variances_of(self, rungs: Rungs, rows: jax.Array) -> jax.Array:
        """The variances of sums of cells with the weights ``rows`` [m, n], given all counts."""
        weights = rows.T[rungs.cells]
        # Of each node and row: the variance of what the row has below the node, and its covariance with the node's count.
        covariances = weights * self.variances[:, None]
        variances = weights * covariances
        for parents, sums, posterior in zip(reversed(rungs.parents), reversed(self.sums), reversed(self.posteriors), strict=True):
            common = _summed(covariances, parents, sums.shape[0])
            share = _over(common, sums[:, None])
            variances = _summed(variances, parents, sums.shape[0]) - common * share + jnp.square(share) * posterior[:, None]
            covariances = share * posterior[:, None]
        return variances[0]


def two_passes(
    rungs: Rungs, means: jax.Array, variances: jax.Array, counts: jax.Array, noise: jax.Array, *, inflated: bool
) -> Passed:
    """Cells given their own means and variances [n], and counts of the nodes with noise variances [nodes], as the tree runs.

    Args:
        rungs: the tree.
        means, variances: of the cells; what ``counts`` has for leaves is not looked at.
        counts: of the nodes.
        noise: their variances; infinite where there is no count, 0 where it is exact.
        inflated: whether factors are fitted, such that the squares of count less sum are on average what both variances say.
    """
    value, variance = means[rungs.cells], variances[rungs.cells]
    own, shares, found, sums, posteriors, factors = variance, [], [], [], [], []
    for nodes, parents in zip(reversed(rungs.nodes[:-1]), reversed(rungs.parents), strict=True):
        total, spread = _summed(value, parents, nodes.size), _summed(variance, parents, nodes.size)
        count, error = counts[nodes], noise[nodes]
        is_measured = jnp.isfinite(error)
        off = jnp.where(is_measured, count - total, 0.0)
        error = jnp.where(is_measured, error, 0.0)
        factor = jnp.ones((), value.dtype)
        if inflated:
            told = jnp.where(is_measured, spread, 0.0).sum()
            expected = _DOUBT * _over(told, jnp.asarray(is_measured.sum(), told.dtype))
            factor = jnp.maximum(_over((jnp.square(off) - error).sum() + expected, told + expected), 1.0)
        gain = jnp.where(is_measured, _over(factor * spread, factor * spread + error), 0.0)
        shares.append(_over(variance, spread[parents]))
        value, variance = total + gain * off, factor * spread * (1 - gain)
        found.append((value, total))
        sums.append(spread)
        posteriors.append(variance)
        factors.append(factor)
    # From the top: what was found of each node, and what its children had come to before.
    for height in reversed(range(len(rungs.parents))):
        below = found[height - 1][0] if height else means[rungs.cells]
        parents = rungs.parents[len(rungs.parents) - 1 - height]
        value = below + shares[height] * (value - found[height][1])[parents]
    cells = jnp.zeros_like(means).at[rungs.cells].set(value)
    inflation = jnp.stack(factors[::-1]) if factors else jnp.zeros(0, value.dtype)
    return Passed(cells, own, tuple(sums[::-1]), tuple(posteriors[::-1]), inflation)


def node_sums(rungs: Rungs, cells: jax.Array, num_nodes: int) -> jax.Array:
    """[nodes], the sums of the cells below each node."""
    value = cells[rungs.cells]
    found = jnp.zeros(num_nodes, cells.dtype).at[rungs.nodes[-1]].set(value)
    for nodes, parents in zip(reversed(rungs.nodes[:-1]), reversed(rungs.parents), strict=True):
        value = _summed(value, parents, nodes.size)
        found = found.at[nodes].set(value)
    return found


def cell_sums(rungs: Rungs, entries: jax.Array) -> jax.Array:
    """[n], for each cell the sum of ``entries`` [nodes] of the nodes above it, its own not counted."""
    value = jnp.zeros(1, entries.dtype)
    for nodes, parents in zip(rungs.nodes[:-1], rungs.parents, strict=True):
        value = (value + entries[nodes])[parents]
    return jnp.zeros(rungs.cells.size, entries.dtype).at[rungs.cells].set(value)


def _summed(entries: jax.Array, parents: np.ndarray, size: int) -> jax.Array:
    return jax.ops.segment_sum(entries, jnp.asarray(parents), size, indices_are_sorted=True)


def _over(part: jax.Array, whole: jax.Array) -> jax.Array:
    """``part / whole``, 0 where there is nothing."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 0.0)
