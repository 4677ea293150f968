"""The classical methods: what they measure and cost, and that theory says what their errors are."""

from fractions import Fraction

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer import methods
from dpinfer.accuracy import range_variance, variance_of_ranges
from dpinfer.inference import zeroed_subtrees
from dpinfer.queries import AllRange, Boxes, Haar, Identity, Tree

N = 27
CELLS = np.random.default_rng(0).integers(0, 9, N)
METHODS = [
    methods.noisy_cells(N),
    methods.tree_of_fewest_nodes(N, 3),
    methods.tree_of_fewest_nodes(N, 3, budgets="optimal", root=False),
    methods.consistent_tree(N, 3),
    methods.consistent_tree(N, 3, root=True, nonnegative=True, rounded=True),
    methods.quadtree(N),
    methods.privelet(N),
    methods.recommended(64),
    methods.empirical_cells(N, "independent"),
    methods.empirical_tree(N, 3),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name}-{m.strategy!r}")
def test_a_release_spends_what_was_asked(method):
    n = method.strategy.shape[1]
    ledger = dp.Ledger(epsilon=1)
    release = method.measure(np.resize(CELLS, n), epsilon=0.3, ledger=ledger)
    assert Fraction(3, 10) * (1 - Fraction(1, 10**12)) <= release.epsilon <= Fraction(3, 10)
    assert ledger.spent == release.epsilon
    assert np.asarray(method.estimate(release).answer(AllRange(n)).values).shape == (n * (n + 1) // 2,)
    # A study has the scales of the release, traced or not.
    given = {"key": jax.random.key(0)}
    plain = method.simulate(np.resize(CELLS, n), epsilon=0.3, **given)
    np.testing.assert_allclose(np.broadcast_to(plain.scale, release.values.shape), release.scale, rtol=1e-12)
    if method.shares is not None:
        traced = jax.jit(lambda e: method.simulate(np.resize(CELLS, n), epsilon=e, **given).values)(0.3)
        np.testing.assert_allclose(traced, plain.values, rtol=1e-9)


@pytest.mark.slow
def test_errors_are_what_theory_says():
    every = AllRange(N)
    expected = {
        METHODS[0]: range_variance(N, N, [1.0]),
        METHODS[1]: range_variance(N, 3, [0.25] * 4, root=True, consistent=False),
        METHODS[3]: range_variance(N, 3, [1 / 3] * 3),
        METHODS[5]: range_variance(N, 2, METHODS[5].shares),
    }
    for method, variance in expected.items():
        answers = method.estimate(method.simulate(CELLS, epsilon=1, key=jax.random.key(1))).answer(every)
        assert np.square(answers.stddev).mean() == pytest.approx(variance, rel=1e-10)
    wavelet = methods.privelet(16)
    assert wavelet.strategy == Haar(16)
    answers = wavelet.estimate(wavelet.simulate(np.zeros(16), epsilon=1, key=jax.random.key(0))).answer(AllRange(16))
    assert np.square(answers.stddev).mean() == pytest.approx(37.798713235294116, rel=1e-12)  # Qardaji et al., table 3


@pytest.mark.slow
def test_grids():
    for method, consistent in [
        (methods.tree_of_fewest_nodes((6, 7), 2, budgets="geometric", root=False), False),
        (methods.quadtree((6, 7)), True),
    ]:
        boxes = dp.workloads.random_boxes((6, 7), 30, key=jax.random.key(0))
        assert isinstance(boxes, Boxes)
        answers = method.estimate(method.simulate(np.ones(42), epsilon=1, key=jax.random.key(1))).answer(boxes)
        expected = variance_of_ranges(boxes, 2, method.shares, consistent=consistent)
        np.testing.assert_allclose(np.square(answers.stddev), expected, rtol=1e-9)
    assert methods.noisy_cells((4, 5)).strategy == Identity(20)
    assert methods.recommended((8, 9)).strategy == Identity(72)
    tall = methods.recommended((300, 2))
    found = dp.accuracy.recommend((300, 2), epsilon=1)
    assert tall.strategy == found.strategy
    np.testing.assert_allclose(np.array(tall.shares), found.budgets, rtol=1e-12)
    assert found.budgets.shape == (2,)
    assert methods.consistent_tree((9, 9), 3).strategy == Tree.grid((9, 9), 3)


@pytest.mark.slow
@pytest.mark.parametrize("tree", [Tree.complete(8, 2, root=True), Tree.grid((3, 4), 2)], ids=repr)
def test_zeroed_subtrees_by_walking_down(tree):
    values = np.random.default_rng(5).normal(1, 3, tree.shape[0])
    measurement = dp.Measurement(tree, values, "laplace", 1.0)
    nodes = tree @ np.asarray(dp.least_squares(measurement).cells)
    first = 0 if tree.root_measured else 1
    expected = nodes.copy()
    for v in range(first, tree.num_nodes):
        above = v
        while above >= first:
            if nodes[above - first] <= 0:
                expected[v - first] = 0
            above = tree.parents[above]
    n = tree.shape[1]
    assert 0 < (expected[-n:] == 0).sum() < n
    assert ((expected == 0) & (nodes > 0)).any()  # positive below a node that is not
    np.testing.assert_allclose(zeroed_subtrees(measurement, rounded=False).nodes.values, expected, atol=1e-12)
    rounded = zeroed_subtrees(measurement)
    np.testing.assert_array_equal(rounded.nodes.values, np.round(expected))
    np.testing.assert_array_equal(rounded.cells, np.round(expected[-n:]))
    np.testing.assert_array_equal(zeroed_subtrees(measurement, nonnegative=False).nodes.values, np.round(nodes))
    batch = jax.vmap(lambda v: zeroed_subtrees(dp.Measurement(tree, v, "laplace", 1.0)).nodes.values)(np.stack([values] * 2))
    np.testing.assert_array_equal(batch[1], np.round(expected))


@pytest.mark.slow
def test_zeroed_subtrees_answers_from_nodes_and_has_no_intervals():
    tree = Tree.complete(8, 2, root=True)
    values = np.array([20, 0.4, 19, 3, -2.6, 12, 7, 4, -1, -1, 2.4, 6.6, 5, 6.7, 0.2])
    estimate = zeroed_subtrees(dp.Measurement(tree, values, "laplace", 1.0))
    answers = estimate.answer(AllRange(8))
    assert answers.values[7] == estimate.nodes.values[0]  # all cells: the root
    with pytest.raises(ValueError, match="zeroed_subtrees gives no intervals"):
        answers.interval()
    with pytest.raises(ValueError, match="measurement must be of Tree.complete or Tree.grid"):
        zeroed_subtrees(dp.Measurement(Identity(4), np.zeros(4), "laplace", 1.0))


@pytest.mark.slow
def test_the_recommendation_depends_on_workload_and_records():
    assert methods.recommended(4096, workload="cells").strategy == Identity(4096)
    assert methods.recommended(4096, workload="cells").name == "cells, stacked"
    few = methods.recommended(4096, epsilon=0.1, total=10_000)
    assert few.strategy == Tree.complete(4096, 16, True)
    assert few.shares == pytest.approx((0.1, 0.3, 0.3, 0.3))
    # 10 / epsilon records a cell, and no guess at all: least squares.
    assert methods.recommended(4096, epsilon=0.1, total=410_000).strategy == methods.recommended(4096).strategy
    assert methods.recommended((64, 64), epsilon=0.1, total=10_000).strategy == Tree.grid((64, 64), 4, True)
    with pytest.raises(ValueError, match="total must come with epsilon"):
        methods.recommended(64, total=10)
    with pytest.raises(ValueError, match="workload must be one of"):
        methods.recommended(64, workload="both")


def test_a_recommendation_says_what_it_spends_and_why():
    found = dp.accuracy.recommend((64, 64), rho=0.02, total=1000)
    assert found.estimator == "range_posterior"
    assert found.level_rhos is not None
    assert found.level_rhos.sum() == pytest.approx(0.02)
    expected = range_variance((64, 64), 4, level_rhos=found.level_rhos, root=True)
    assert found.variance == pytest.approx(expected)
    assert "records a cell" in found.reason
    assert dp.accuracy.recommend(64, epsilon=1).estimator == "least_squares"
