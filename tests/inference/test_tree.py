"""Least squares on trees: printed examples, expected values, and a dense solution by other means."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references import complete_tree_parents, random_parents, tree_matrix, weighted_least_squares, widest_range_variance

import dpinfer as dp
from dpinfer.inference import tree as passes
from dpinfer.inference.tree_estimate import solve_shallow
from dpinfer.queries import AllRange, Dense, Identity, Prefix, Ranges, Total, Tree, VStack

EXPECTED = json.loads((Path(__file__).parents[1] / "expected" / "hierarchical.json").read_text())


def estimate(tree, values, variances) -> Any:
    spread = np.sqrt(np.asarray(variances, dtype=float))
    return dp.least_squares(dp.Measurement(tree, np.asarray(values, dtype=float), "gaussian", spread))


@pytest.mark.slow
def test_links():
    # Families of 0 to 40 children, numbered at random.
    rng = np.random.default_rng(0)
    parents = [
        -1,
        *[0] * 5,
        *np.repeat(np.arange(1, 6), [40, 0, 17, 1, 16]),
        *np.repeat(np.arange(6, 80), rng.integers(0, 3, 74)),
    ]
    name = np.append(0, 1 + rng.permutation(len(parents) - 1))
    shuffled = np.full(len(parents), -1)
    shuffled[name[1:]] = name[parents[1:]]
    tree = Tree.from_parents(shuffled)
    links = tree.links
    entries = jnp.asarray(rng.normal(size=tree.num_nodes))
    start = np.cumsum((0, *tree.level_sizes))
    for depth in range(1, len(tree.level_sizes)):
        own, parent = (
            entries[start[depth] : start[depth + 1]],
            tree.blocks.parent[start[depth] : start[depth + 1]] - start[depth - 1],
        )
        assert (np.diff(parent) >= 0).all()
        above = entries[start[depth - 1] : start[depth]]
        for most in (None, above):
            kept = own if most is None else np.where(own <= np.asarray(most)[parent], own, 0)
            expected = np.bincount(parent, kept, minlength=above.size)
            np.testing.assert_allclose(links.sum_children(own, depth, most), expected, atol=1e-14)
        np.testing.assert_array_equal(links.hand_down(above, depth), np.asarray(above)[parent])


def test_figure_1_of_hay():
    # The published noisy counts and their consistent version; the exact optimum happens to be integer.
    tree = Tree.complete(4, 2, root=True)
    np.testing.assert_array_equal(tree @ [2, 0, 10, 2], [14, 2, 12, 2, 0, 10, 2])
    release = dp.Release.from_values(tree, [13, 3, 11, 4, 1, 12, 1], noise="laplace", scale=3)
    result = dp.least_squares(release)
    np.testing.assert_allclose(tree @ result.cells, [14, 3, 11, 3, 0, 11, 0], atol=1e-13)


def test_figure_1_of_qardaji():
    # Root not measured, variance 1 a node: 13/21 for each leaf, 399/441 for the query of three of its children's leaves.
    result = estimate(Tree.complete(8, 2), np.zeros(14), 1.0)
    answers = result.answer(Ranges(8, [0, 3, 0, 4], [1, 4, 3, 7]))
    np.testing.assert_allclose(np.square(answers.stddev), [13 / 21, 13 / 21, 399 / 441, 399 / 441], rtol=1e-14)


@pytest.mark.slow
def test_an_irregular_tree_with_an_unmeasured_node():
    case = EXPECTED["irregular_tree"]
    tree = Tree.from_parents(case["parents"])
    result = estimate(tree, case["values"], [float(v) for v in case["variances"]])
    answers = result.answer(tree)
    np.testing.assert_allclose(answers.values, case["estimate"], rtol=1e-13)
    np.testing.assert_allclose(np.square(answers.stddev), case["estimate_variances"], rtol=1e-13)
    np.testing.assert_allclose(result.covariance(tree), case["covariance"], rtol=1e-12, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("case", EXPECTED["range_variance"], ids=lambda c: f"{c['method']}-{c['n']}")
def test_average_variance_over_all_ranges(case):
    # Table 3 of Qardaji et al. where least squares is right, and its extension: every range's variance enters the average.
    n, method = case["n"], case["method"]
    branching = n if method == "F" else int("".join(c for c in method if c.isdigit()))
    tree = Tree.complete(n, branching, root=method.endswith("root"))
    levels = int(tree.levels.max()) + 1
    epsilons = np.full(levels, 1 / levels)
    if "g_" in method:  # from the top, each level gets the cube root of the branching times the budget of the one above
        epsilons = branching ** (np.arange(levels) / 3)
        epsilons /= epsilons.sum()
    result = estimate(tree, np.zeros(tree.shape[0]), (2 / epsilons**2)[tree.levels])
    average = float(np.mean(np.square(result.answer(AllRange(n)).stddev)))
    assert average == pytest.approx(case["expected"], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("branching", "levels"), [(2, 3), (2, 11), (4, 3), (4, 11), (8, 4)])
def test_all_leaves_but_the_first_and_last(branching, levels):
    # The query of Hay et al., Theorem 4(iii); on its bound see tests/accuracy/test_range_variance.py.
    n = branching ** (levels - 1)
    tree = Tree.complete(n, branching, root=True)
    result = dp.least_squares(dp.Measurement(tree, np.zeros(tree.shape[0]), "gaussian", 1.0))
    truth = widest_range_variance(branching, levels)
    assert float(result.answer(Ranges(n, [1], [n - 1])).stddev[0] ** 2) == pytest.approx(float(truth), rel=1e-14)


def random_problem(seed, *, size=None):
    rng = np.random.default_rng(seed)
    parents = random_parents(rng, size or int(rng.integers(2, 40)), shuffled=bool(seed % 2))
    is_inner = np.isin(np.arange(parents.size), parents)
    variances = 10.0 ** rng.uniform(-3, 3, parents.size)
    variances[is_inner & (rng.random(parents.size) < 0.3)] = np.inf
    if seed % 3 == 0:  # one leaf that only its parent and siblings tell
        leaf = int(np.flatnonzero(~is_inner)[0])
        if np.isinf(variances[parents[leaf]]):
            variances[parents[leaf]] = 1.0
        variances[leaf] = np.inf
    if seed % 4 == 0:  # an exact public count
        variances[np.flatnonzero(np.isfinite(variances))[-1]] = 0.0
    return parents, rng.normal(size=parents.size) * 10, variances, rng


@pytest.mark.parametrize("seed", [0, 3, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_random_ragged_trees_against_dense_least_squares(seed):
    parents, values, variances, rng = random_problem(seed)
    matrix = tree_matrix(parents)
    tree = Tree.from_parents(parents)
    cells, covariance = weighted_least_squares(matrix, values, variances)
    result = estimate(tree, values, variances)
    np.testing.assert_allclose(result.cells, cells, rtol=0, atol=1e-10 * np.abs(cells).max())
    # The form for large trees, on the same small one.
    nodes, spread = (jnp.asarray(x[tree.order]) for x in (values, np.sqrt(variances)))
    is_regular = bool(0 < variances.max() <= 16 * variances.min() < np.inf)
    for regular in {False, is_regular}:
        unrolled = solve_shallow(tree, tree.links, nodes, spread, is_regular=regular)
        np.testing.assert_allclose(unrolled.cells, cells, rtol=0, atol=1e-10 * np.abs(cells).max())
        np.testing.assert_allclose(unrolled.node_variances, result.node_variances, rtol=1e-12, atol=1e-16)
        np.testing.assert_allclose(unrolled.shares, result.shares, rtol=1e-12, atol=1e-16)
    scale = np.abs(covariance).max()
    for workload in (tree, AllRange(tree.shape[1]), Dense(rng.normal(size=(5, tree.shape[1])))):
        rows = np.asarray(workload.dense(), dtype=float)
        answers = result.answer(workload)
        np.testing.assert_allclose(answers.values, rows @ cells, atol=1e-10 * max(1, np.abs(rows @ cells).max()))
        truth = np.einsum("ij,jk,ik->i", rows, covariance, rows)
        np.testing.assert_allclose(np.square(answers.stddev), truth, rtol=1e-10, atol=1e-10 * scale)
    rows = rng.normal(size=(4, tree.shape[1]))
    truth = rows @ covariance @ rows.T
    np.testing.assert_allclose(result.covariance(rows), truth, atol=1e-10 * np.abs(truth).max())


@pytest.mark.slow
@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize(("n", "branching"), [(1, 2), (27, 3), (50, 4)])
def test_complete_and_cut_trees_against_dense_least_squares(n, branching, root):
    rng = np.random.default_rng(n)
    matrix = tree_matrix(complete_tree_parents(n, branching))[0 if root else 1 :]
    tree = Tree.complete(n, branching, root=root)
    values = rng.normal(size=len(matrix)) * 10
    for variances in (np.array(2.0), 10.0 ** rng.uniform(-3, 3, len(matrix))):
        cells, covariance = weighted_least_squares(matrix, values, np.broadcast_to(variances, values.shape))
        result = estimate(tree, values, variances)
        np.testing.assert_allclose(result.cells, cells, atol=1e-10 * np.abs(cells).max())
        rows = AllRange(n).dense()
        truth = np.einsum("ij,jk,ik->i", rows, covariance, rows)
        np.testing.assert_allclose(np.square(result.answer(AllRange(n)).stddev), truth, rtol=1e-10, atol=1e-13 * truth.max())
        np.testing.assert_allclose(result.covariance(Identity(n)), covariance, atol=1e-11 * np.abs(covariance).max())
        # The same tree by its parents takes the other implementation.
        spread = np.full(tree.num_nodes, np.inf)
        spread[tree.num_nodes - tree.shape[0] :] = np.broadcast_to(variances, values.shape)
        padded = np.concatenate([np.zeros(tree.num_nodes - tree.shape[0]), values])
        other = estimate(Tree.from_parents(complete_tree_parents(n, branching)), padded, spread)
        np.testing.assert_allclose(other.cells, result.cells, atol=1e-11 * np.abs(cells).max())


@pytest.mark.parametrize(("shape", "root"), [((4, 4), False), ((5, 3), True), ((2, 3, 4), False), ((6, 1), False)])
def test_trees_over_grids_against_dense_least_squares(shape, root):
    rng = np.random.default_rng(1)
    tree = Tree.grid(shape, 2, root)
    values, scale = rng.normal(size=tree.shape[0]) * 9, rng.uniform(0.5, 3, tree.shape[0])
    for spread in (scale, np.float64(1.5)):
        estimate = dp.least_squares(dp.Measurement(tree, values, "gaussian", spread))
        cells, covariance = weighted_least_squares(np.asarray(tree.dense()), values, np.square(spread))
        np.testing.assert_allclose(estimate.cells, cells, atol=1e-10)
        box = dp.queries.Boxes(shape, [[0] * len(shape), [1] + [0] * (len(shape) - 1)], [[1] * len(shape), list(shape)])
        answers, rows = estimate.answer(box), box.dense()
        np.testing.assert_allclose(answers.values, rows @ cells, atol=1e-10)
        np.testing.assert_allclose(np.square(answers.stddev), np.diag(rows @ covariance @ rows.T), atol=1e-10)
        np.testing.assert_allclose(answers.interval()[1] - answers.values, 1.959964 * np.asarray(answers.stddev), rtol=1e-6)
    batch = jnp.asarray([values, 2 * values])
    many = jax.vmap(lambda v: dp.least_squares(dp.Measurement(tree, v, "gaussian", jnp.asarray(1.5))).cells)(batch)
    np.testing.assert_allclose(many[1], 2 * cells, atol=1e-9)


def test_a_quadtree_is_measured_level_by_level():
    tree = Tree.grid((4, 4), 2)
    cells = np.arange(16) * 10**6
    release = dp.measure(cells, tree, level_epsilons=[1, 0.5])
    assert release.epsilon == 1.5
    np.testing.assert_array_equal(release.scale, [1.0] * 4 + [2.0] * 16)
    np.testing.assert_allclose(dp.least_squares(release).cells, cells, atol=200)
    with pytest.raises(ValueError, match="exact counts .* contradict each other: row 4 says 0"):
        dp.least_squares(dp.Release.from_values(tree, [1] + [0] * 19, noise="laplace", scale=[0] * 20))


@pytest.mark.slow
def test_a_range_answer_takes_any_workload_the_same_way():
    tree = Tree.complete(35, 3)
    result = estimate(tree, np.arange(float(tree.shape[0])), 10.0 ** np.linspace(-1, 1, tree.shape[0]))
    for workload in (Identity(35), Total(35), Prefix(35), AllRange(35), tree, Tree.complete(35, 2), VStack([Total(35), tree])):
        ranges, rows = result.answer(workload), result.answer(Dense(workload.dense()))
        np.testing.assert_allclose(ranges.values, rows.values, rtol=1e-12, atol=1e-10)
        np.testing.assert_allclose(ranges.stddev, rows.stddev, rtol=1e-10)
    empty = result.answer(Ranges(35, [0, 7, 35], [0, 7, 35]))
    np.testing.assert_array_equal(empty.values, 0)
    np.testing.assert_array_equal(empty.stddev, 0)
    assert result.answer(Ranges(35, [], [])).values.shape == (0,)
    assert result.covariance(Ranges(35, [], [])).shape == (0, 0)
    one = result.answer(np.ones(35))
    np.testing.assert_allclose(one.stddev, result.answer(Total(35)).stddev, rtol=1e-12)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_properties_on_one_tree(seed):
    parents, _, _, _ = random_problem(7, size=18)
    tree = Tree.from_parents(parents)
    rng = np.random.default_rng(seed)
    variances = 10.0 ** rng.uniform(-2, 2, tree.num_nodes)
    values = rng.normal(size=tree.num_nodes) * 10.0 ** rng.uniform(-3, 6)
    result = estimate(tree, values, variances)
    nodes = np.asarray(tree @ result.cells)
    size = np.abs(values).max()
    # Consistent counts are a fixed point.
    again = estimate(tree, nodes, variances)
    np.testing.assert_allclose(again.cells, result.cells, atol=1e-12 * size * tree.num_nodes)
    # The residual is orthogonal to every cell's column in the metric of the noise.
    gradient = np.asarray(tree.T @ ((nodes - values) / variances))
    np.testing.assert_allclose(gradient, 0, atol=1e-10 * size / variances.min())
    # Scale-free.
    larger = estimate(tree, values * 1e6, variances * 1e12)
    np.testing.assert_allclose(larger.cells, np.asarray(result.cells) * 1e6, rtol=0, atol=1e-11 * size * 1e6 * tree.num_nodes)
    # No answer is worse than the measured one.
    assert np.all(np.square(result.answer(tree).stddev) <= variances * (1 + 1e-12))


@pytest.mark.slow
def test_the_estimate_is_unbiased_with_the_variance_it_states():
    tree = Tree.complete(20, 3)
    truth = np.arange(20.0)
    trials = 4000

    def one(key):
        return dp.least_squares(dp.simulate(truth, tree, epsilon=0.5, key=key)).cells

    cells = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), trials))
    stddev = np.asarray(
        dp.least_squares(dp.simulate(truth, tree, epsilon=0.5, key=jax.random.key(1))).answer(Identity(20)).stddev
    )
    errors = (np.asarray(cells) - truth) / stddev
    assert np.abs(errors.mean(axis=0)).max() <= 4.5 / np.sqrt(trials)
    # The kurtosis of a Laplace law is 6, hence 5 is the variance of a standardised square at most.
    assert np.abs(np.square(errors).mean(axis=0) - 1).max() <= 4.5 * np.sqrt(5 / trials)


@pytest.mark.slow
def test_public_exact_counts_are_kept():
    tree = Tree.complete(4, 2, root=True)
    result = estimate(tree, [100, 3, 11, 4, 1, 12, 1], [0, 1, 1, 1, 1, 1, 1])
    assert float(result.cells.sum()) == pytest.approx(100, rel=1e-14)
    assert float(result.answer(Total(4)).stddev[0]) == 0.0
    all_exact = estimate(tree, [14, 2, 12, 2, 0, 10, 2], 0.0)
    np.testing.assert_array_equal(all_exact.cells, [2, 0, 10, 2])
    with pytest.raises(ValueError, match="exact counts .* contradict"):
        estimate(Tree.from_parents([-1, 0, 0]), [5, 1, 1], 0.0)
    with pytest.raises(ValueError, match="exact counts .* contradict each other: row . says"):
        estimate(tree, [15, 2, 12, 2, 0, 10, 2], [0, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("ratio", [1e4, 1e9])
def test_siblings_of_very_different_noise_keep_their_digits(ratio):
    # Three cells, their sum measured, one cell hardly: its variance is that of the sum less the other two, 3.
    spread = np.array([1, ratio, 1, 1])
    expected = np.sqrt([3, 2, 1, 1, 2, 1])
    for tree in (Tree.complete(3, 3, root=True), Tree.from_parents([-1, 0, 0, 0])):
        result = estimate(tree, [10, 5, 2, 3], spread**2)
        np.testing.assert_allclose(result.answer(AllRange(3)).stddev, expected, rtol=3 / ratio**2 + 1e-14)
        np.testing.assert_allclose(result.answer(AllRange(3).dense()).stddev, expected, rtol=3 / ratio**2 + 1e-7)


@pytest.mark.slow
def test_what_is_not_determined_is_named():
    tree = Tree.complete(4, 2, root=True)
    with pytest.raises(ValueError, match=r"does not determine 2 of its nodes, \[3, 4\] .*Measure all but one of them"):
        estimate(tree, np.zeros(7), [1, 1, 1, np.inf, np.inf, 1, 1])
    with pytest.raises(ValueError, match="siblings that were not measured cannot be told apart"):
        estimate(Tree.from_parents([-1, 0, 0]), np.zeros(3), [1, np.inf, np.inf])
    with pytest.raises(ValueError, match="does not determine"):
        estimate(tree, np.zeros(7), np.inf)
    with pytest.raises(ValueError, match="does not determine 3 of its nodes"):
        # An unmeasured leaf below an unmeasured node that nothing else pins down.
        estimate(Tree.from_parents([-1, 0, 0, 1, 1]), np.zeros(5), [np.inf, np.inf, 1, np.inf, 1])
    inside = jax.jit(lambda s: dp.least_squares(dp.Measurement(tree, jnp.zeros(7), "gaussian", s)))
    assert not inside(jnp.array([1, 1, 1, jnp.inf, jnp.inf, 1, 1])).is_determined
    assert inside(jnp.array([1, 1, 1, jnp.inf, 1, 1, 1])).is_determined


@pytest.mark.parametrize(("n", "root"), [(32, False), (27, True)])
def test_batches_that_go_one_by_one(n, root, monkeypatch):
    """As batches of larger trees do on two cores."""
    monkeypatch.setattr(passes, "_IN_TURN", (1, 1 << 15))
    monkeypatch.setattr(passes, "_FEW_CORES", os.cpu_count())
    tree = Tree.complete(n, 2, root)
    rng = np.random.default_rng(5)
    values, spread = jnp.asarray(rng.normal(size=(2, 3, tree.shape[0]))), jnp.asarray(rng.uniform(1, 2, (2, 3)))
    each = jnp.asarray(rng.uniform(1, 2, tree.shape[0]))

    def cells(v, s):
        return dp.least_squares(dp.Measurement(tree, v, "gaussian", s)).cells

    def loss(v, s):
        return (cells(v, s) ** 3).sum()

    one, slope = jax.jit(cells), jax.jit(jax.grad(loss, (0, 1)))
    batch = jax.jit(jax.vmap(cells, (0, None)))
    assert "while" in batch.lower(values[0], each).as_text()
    np.testing.assert_allclose(batch(values[0], each), [one(v, each) for v in values[0]], rtol=1e-12)
    nested = jax.jit(jax.vmap(jax.vmap(lambda v, s: cells(v, s * each))))(values, spread)
    for found, v, s in zip(nested.reshape(6, n), values.reshape(6, -1), spread.reshape(6), strict=True):
        np.testing.assert_allclose(found, one(v, s * each), rtol=1e-12)
    slopes = jax.jit(jax.vmap(jax.grad(loss, (0, 1)), (0, None)))(values[0], each)
    for i, v in enumerate(values[0]):
        for found, expected in zip(slopes, slope(v, each), strict=True):
            np.testing.assert_allclose(found[i], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    "tree",
    [Tree.complete(7, 3), Tree.from_parents(random_parents(np.random.default_rng(3), 15, shuffled=True))],
    ids=["complete", "from_parents"],
)
def test_transforms(tree):
    rng = np.random.default_rng(4)
    m = tree.shape[0]
    values, spread = jnp.asarray(rng.normal(size=(3, m))), jnp.asarray(rng.uniform(0.5, 2, m))
    weights = jnp.asarray(rng.normal(size=tree.shape[1]))

    def loss(v, s):
        result = dp.least_squares(dp.Measurement(tree, v, "laplace", s))
        return (result.cells * weights).sum() + (result.answer(AllRange(tree.shape[1])).stddev ** 2).sum()

    compiled = jax.jit(loss)
    loop = jnp.stack([compiled(v, spread) for v in values])
    assert float(loss(values[0], spread)) == pytest.approx(float(loop[0]), rel=1e-13)
    np.testing.assert_allclose(jax.jit(jax.vmap(loss, (0, None)))(values, spread), loop, rtol=1e-12)
    step, point = 1e-6, (values[0], spread)
    direction = (jnp.asarray(rng.normal(size=m)), jnp.asarray(rng.normal(size=m)))
    above, below = (compiled(*(x + sign * step * d for x, d in zip(point, direction, strict=True))) for sign in (1, -1))
    _, forward = jax.jit(lambda p, d: jax.jvp(loss, p, d))(point, direction)
    gradient = jax.jit(jax.grad(loss, (0, 1)))(*point)
    np.testing.assert_allclose(forward, (above - below) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(sum(g @ d for g, d in zip(gradient, direction, strict=True)), forward, rtol=1e-11)


@pytest.mark.slow
def test_gradients_at_unmeasured_and_exact_nodes_are_finite():
    for tree in (Tree.complete(4, 2, root=True), Tree.from_parents([-1, 0, 0, 1, 1, 2, 2])):
        spread = jnp.array([0.0, 1.0, jnp.inf, 1.0, 1.0, 1.0, 1.0])

        def loss(s, tree=tree):
            result = dp.least_squares(dp.Measurement(tree, jnp.arange(7.0), "laplace", s))
            return (result.cells**2).sum() + (result.answer(Identity(4)).stddev ** 2).sum()

        gradient = jax.jit(jax.grad(loss))(spread)
        assert np.all(np.isfinite(gradient))
        assert gradient[2] == 0


@pytest.mark.slow
def test_dtypes_in_and_out():
    tree = Tree.complete(8, 2)
    for values, expected in (
        (np.zeros(14, dtype=np.int64), np.float64),
        (np.zeros(14, dtype=np.int32), np.float64),
        (jnp.zeros(14, dtype=jnp.float32), np.float32),
        ([0.0] * 14, np.float64),
    ):
        result = dp.least_squares(dp.Measurement(tree, values, "laplace", 1.0))
        assert result.cells.dtype == expected
        assert result.answer(Total(8)).stddev.dtype == expected


@pytest.mark.slow
def test_a_chain_of_ten_thousand_levels():
    # A spine of unmeasured nodes, each with a leaf of its own: nothing may unroll.
    depth = 10_000
    spine = np.arange(-1, depth - 1)
    parents = np.concatenate([spine, np.arange(depth)])
    tree = Tree.from_parents(parents)
    assert len(tree.level_sizes) == depth + 1
    values = np.concatenate([np.zeros(depth), np.arange(depth)])
    spread = np.concatenate([np.full(depth, np.inf), np.ones(depth)])
    spread[0], values[0] = 1.0, values.sum() + 10_001
    result = estimate(tree, values, spread**2)
    # One total against the sum of 10,000 cells: the discrepancy is shared equally.
    np.testing.assert_allclose(result.cells, np.arange(depth) + 1, rtol=1e-9)


@pytest.mark.slow
def test_a_large_tree_by_its_parents_equals_the_complete_one():
    rng = np.random.default_rng(0)
    tree = Tree.complete(2**17, 16, root=True)
    values, spread = rng.normal(size=tree.num_nodes), rng.uniform(1, 3, tree.num_nodes)
    result = estimate(tree, values, spread**2)
    other = estimate(Tree.from_parents(tree.parents), values, spread**2)
    np.testing.assert_allclose(other.node_values, result.node_values, atol=1e-11)
    np.testing.assert_allclose(other.node_variances, result.node_variances, rtol=1e-12)


@pytest.mark.slow
def test_a_million_leaves_and_ten_thousand_ranges():
    n = 2**20
    rng = np.random.default_rng(0)
    starts = rng.integers(0, n, 10_000)
    stops = rng.integers(starts + 1, n + 1)
    tree = Tree.complete(n, 16)
    release = dp.measure(np.zeros(n, dtype=np.int64), tree, level_epsilons=[0.1, 0.2, 0.1, 0.3, 0.3])
    result = dp.least_squares(release)
    answers = result.answer(Ranges(n, starts, stops))
    inside = np.abs(np.asarray(answers.values)) <= 4 * np.asarray(answers.stddev)
    assert inside.mean() > 0.99
    # Against the block formula for complete trees: Var = sum over levels of beta_l times the squared overlaps.
    precision = 1 / np.square(np.asarray(dp.noise.stddev("discrete_laplace", 1 / np.array([0.3, 0.3, 0.1, 0.2, 0.1]))))
    eigenvalues = np.cumsum(precision * 16.0 ** np.arange(5))
    beta = np.diff(np.concatenate([[0], 1 / eigenvalues])) / 16.0 ** np.arange(5)
    for i in range(20):
        edges = [np.arange(0, n + 1, 16**level) for level in range(5)]
        overlaps = [np.clip(np.minimum(e[1:], stops[i]) - np.maximum(e[:-1], starts[i]), 0, None).astype(float) for e in edges]
        truth = sum(b * (o**2).sum() for b, o in zip(beta, overlaps, strict=True))
        assert float(answers.stddev[i]) ** 2 == pytest.approx(truth, rel=1e-10)
