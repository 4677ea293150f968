"""Trees at sizes where their structure matters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import complete_tree_parents, random_parents, tree_matrix

from dpinfer.queries import Tree


@pytest.mark.parametrize("branching", [2, 3, 16])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 9, 35040])
def test_incomplete_trees_have_the_structure_of_their_parents(n, branching):
    tree = Tree.complete(n, branching, root=True)
    parents = complete_tree_parents(n, branching)
    np.testing.assert_array_equal(tree.parents, parents)
    general = Tree.from_parents(parents)
    np.testing.assert_array_equal(tree.depths, general.depths)
    np.testing.assert_array_equal(tree.spans, general.spans)
    np.testing.assert_array_equal(tree.leaves, general.leaves)
    assert tree.level_sizes == general.level_sizes
    x = np.random.default_rng(0).integers(0, 9, n)
    np.testing.assert_array_equal(tree @ x, general @ x)
    y = np.random.default_rng(1).integers(0, 9, parents.size)
    np.testing.assert_array_equal(tree.T @ y, general.T @ y)
    # Qardaji et al.: h is the smallest integer with b^h >= n, and at least 1; in integers, no logarithm.
    height = len(tree.level_sizes) - 1
    assert branching**height >= n
    assert height == 1 or branching ** (height - 1) < n


@pytest.mark.parametrize("seed", range(6))
def test_any_tree_in_jax_equals_its_matrix(seed):
    rng = np.random.default_rng(seed)
    parents = random_parents(rng, int(rng.integers(2, 40)), shuffled=bool(seed % 2))
    matrix = tree_matrix(parents)
    tree = Tree.from_parents(parents)
    x, y = rng.normal(size=matrix.shape[1]), rng.normal(size=matrix.shape[0])
    np.testing.assert_allclose(tree @ jnp.asarray(x), matrix @ x, atol=1e-12)
    np.testing.assert_allclose(tree.T @ jnp.asarray(y), matrix.T @ y, atol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda v: tree @ v))(jnp.asarray([x, 2 * x]))[1], 2 * matrix @ x, atol=1e-12)
    assert tree.is_contiguous == all(np.ptp(np.flatnonzero(row)) + 1 == row.sum() for row in matrix)


def test_blocks_do_at_most_twice_the_work_and_never_unroll():
    rng = np.random.default_rng(0)
    for parents in (np.arange(-1, 9999), complete_tree_parents(4096, 16), random_parents(rng, 5000, shuffled=True)):
        tree = Tree.from_parents(parents)
        blocks = tree.blocks
        assert blocks.start.size * blocks.width <= 2 * tree.num_nodes + blocks.width * len(tree.level_sizes)
        assert blocks.start.size <= 2 * len(tree.level_sizes)
        covered = np.concatenate(
            [np.arange(a, b) for a, b in zip(np.asarray(blocks.start).tolist(), np.asarray(blocks.stop).tolist(), strict=True)]
        )
        np.testing.assert_array_equal(covered, np.arange(1, tree.num_nodes))
    short, long = (Tree.from_parents(np.arange(-1, depth)) for depth in (9, 9999))
    programs = [jax.make_jaxpr(lambda x, tree=tree: tree @ x)(jnp.ones(1)) for tree in (short, long)]
    assert len(programs[0].eqns) == len(programs[1].eqns)


def test_level_sensitivities_by_enumeration():
    rng = np.random.default_rng(5)
    trees = [Tree.complete(n, b, root) for n in (1, 2, 5, 9) for b in (2, 3) for root in (False, True)]
    trees += [Tree.from_parents(random_parents(rng, size, shuffled=True)) for size in (1, 2, 5, 12, 12, 12)]
    trees.append(Tree.from_parents([-1, 0, 0, 1]))  # a level with one node that a higher leaf can move into
    for tree in trees:
        matrix = tree.dense()
        for neighbors in ("add_remove", "replace_one"):
            for order in (1, 2):
                got = tree.level_sensitivities(order, neighbors)
                assert len(got) == tree.levels.max() + 1
                for level, size in enumerate(got):
                    rows = matrix[tree.levels == level]
                    shifts = rows if neighbors == "add_remove" else (rows[:, :, None] - rows[:, None, :]).reshape(len(rows), -1)
                    assert size == (np.abs(shifts) ** order).sum(axis=0).max()


def test_a_large_tree_knows_its_sensitivity_without_columns():
    tree = Tree.complete(2**20, 2, root=True)
    assert tree.sensitivity() == 21
    assert tree.sensitivity(neighbors="replace_one") == 40


@pytest.mark.parametrize(
    ("n", "branching", "root"), [(16, 4, False), (16, 4, True), (125, 5, False), (8, 2, False), (13, 4, False)]
)
def test_sums_over_the_lowest_families(n, branching, root):
    tree = Tree.complete(n, branching, root=root)
    rows = np.random.default_rng(0).normal(size=(3, tree.shape[0]))
    leaves = rows[:, -n:]
    expected = [[leaf[i : i + branching].sum() for i in range(0, n, branching)] for leaf in leaves]
    np.testing.assert_allclose(tree.sum_leaves(rows), expected, atol=1e-14)
    np.testing.assert_allclose(tree.sum_leaves(jnp.asarray(rows)), expected, atol=1e-14)


def test_a_grid_of_one_axis_is_the_complete_tree():
    for n, branching, root in ((1, 2, False), (9, 2, True), (35, 4, False)):
        line, tree = Tree.grid((n,), branching, root), Tree.complete(n, branching, root)
        np.testing.assert_array_equal(line.dense(), tree.dense())
        np.testing.assert_array_equal(line.parents, tree.parents)
        np.testing.assert_array_equal(line.levels, tree.levels)
        assert line.is_contiguous


def test_a_large_quadtree_is_applied_and_weighed_without_its_matrix():
    tree = Tree.grid((1024, 1024), 2)
    x = np.random.default_rng(0).integers(0, 9, tree.shape[1])
    y = tree @ x
    assert tree.shape == (4 * (4**10 - 1) // 3, 4**10)
    np.testing.assert_array_equal(y[:4], x.reshape(2, 512, 2, 512).sum(axis=(1, 3)).ravel())
    np.testing.assert_array_equal(y[-(4**10) :], x)
    np.testing.assert_array_equal(jax.jit(lambda v: tree @ v)(jnp.asarray(x)), y)
    assert tree.sensitivity() == 10
    assert tree.sensitivity(1, "replace_one") == 20
    assert not tree.is_contiguous
