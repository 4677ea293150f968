"""Budgets of levels: exact optima found by other means, conditions of optimality, and sums that never exceed the budget."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpinfer as dp
from dpinfer.accuracy import range_variance
from dpinfer.accuracy.heights import num_levels
from dpinfer.allocation import level_budgets
from dpinfer.allocation.level_budgets import _near, _subsets
from dpinfer.queries import Tree

# Global optima for epsilon = 1, by enumeration of all choices of levels and by descents from many starts; levels from the leaves.
OPTIMA = {
    (16, 2): (12.0, {1: 1.0}),
    (64, 2): (36.565224816, {1: 0.6622105, 5: 0.3377895}),
    (64, 8): (36.586228547, {1: 0.5404714, 2: 0.4595286}),
    (256, 2): (78.937598867, {1: 0.5190551, 5: 0.4809449}),
    (256, 4): (78.937598867, {1: 0.5190551, 3: 0.4809449}),
    (1024, 2): (154.510704401, {1: 0.4216349, 5: 0.2935970, 8: 0.2847681}),
    (1024, 4): (157.490893936, {1: 0.4158035, 3: 0.3772960, 5: 0.2069005}),
    (1024, 16): (157.490893936, {1: 0.4158035, 2: 0.3772960, 3: 0.2069005}),
    (4096, 8): (272.832815686, {1: 0.2823223, 2: 0.2421880, 3: 0.2398597, 4: 0.2356300}),
}


@pytest.mark.parametrize(("n", "branching"), OPTIMA)
def test_the_global_optimum(n, branching):
    found = level_budgets(n, branching, epsilon=1, method="optimal")
    value, levels = OPTIMA[n, branching]
    assert range_variance(n, branching, found) == pytest.approx(value, rel=1e-10)
    expected = np.zeros(found.size)
    for level, share in levels.items():
        expected[-level] = share
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert (found == 0).tolist() == (expected == 0).tolist()
    release = dp.measure(np.zeros(n, dtype=int), Tree.complete(n, branching), level_epsilons=found)
    assert release.epsilon is not None
    assert release.epsilon <= 1


@pytest.mark.slow
def test_a_choice_of_levels_that_is_not_tried_first():
    # 20 levels: all choices of up to six, then single changes; the best of branching 2 measures the levels of branching 16.
    found = level_budgets(2**20, 2, epsilon=1, method="optimal")
    assert np.flatnonzero(found).tolist() == [3, 7, 11, 15, 19]
    assert range_variance(2**20, 2, found) == pytest.approx(1193.1313828186, rel=1e-10)
    assert len(_subsets(20)) <= 20_001
    assert len({s.tobytes() for s in _near(_subsets(5)[3])}) == 4 + 3  # flips, and moves of the one level


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "branching", "given"),
    [(100, 3, {}), (30, 2, {"root": True}), (8, 3, {"dims": 2}), (9, 3, {"dims": 3, "root": True})],
)
@pytest.mark.parametrize("unit", ["epsilon", "rho"])
def test_no_budget_can_be_moved_to_advantage(n, branching, given, unit):
    def average(budgets):
        return range_variance(n, branching, **{f"level_{unit}s": budgets}, **given)

    found = level_budgets(n, branching, **{unit: 0.3}, method="optimal", **given)
    for method in ("equal", "geometric"):
        assert average(found) <= average(level_budgets(n, branching, **{unit: 0.3}, method=method, **given))
    slopes = np.asarray(jax.grad(average)(jnp.asarray(found)))
    used = found > 0
    np.testing.assert_allclose(slopes[used], slopes[used].mean(), rtol=1e-5)
    assert (slopes[~used] >= slopes[used].mean() * (1 + 1e-5)).all()


# Shares of the cube-root rule, from the leaves, and the least variances without and with consistency, for epsilon = 1.
CUBE_ROOTS = {
    (256, 4): ([0.28766423, 0.28384861, 0.26745099, 0.16103617], 249.76560267486494, 108.68439739026518),
    (256, 16): ([0.59615929, 0.40384071], 135.89755376916193, 83.50661605205877),
    (1024, 16): ([0.44154449, 0.41536362, 0.14309189], 344.9827472794231, 166.26521523408886),
}


@pytest.mark.parametrize(("n", "branching"), CUBE_ROOTS)
def test_the_cube_root_rule(n, branching):
    shares, fewest, consistent = CUBE_ROOTS[n, branching]
    found = level_budgets(n, branching, epsilon=1, method="optimal", consistent=False)
    np.testing.assert_allclose(found[::-1], shares, atol=1e-8)
    assert range_variance(n, branching, found, consistent=False) == pytest.approx(fewest, rel=1e-12)
    assert range_variance(n, branching, found) == pytest.approx(consistent, rel=1e-12)
    # Under rho square roots: no other split with all levels is better.
    rhos = level_budgets(n, branching, rho=1, method="optimal", consistent=False)
    slopes = jax.grad(lambda r: range_variance(n, branching, level_rhos=r, consistent=False))(jnp.asarray(rhos))
    np.testing.assert_allclose(slopes, slopes.mean(), rtol=1e-9)


def test_geometric_budgets_grow_toward_the_leaves():
    found = level_budgets(256, 2, epsilon=1, method="geometric")
    np.testing.assert_allclose(found[1:] / found[:-1], 2 ** (1 / 3))
    assert range_variance(256, 2, found) == pytest.approx(214.386435, rel=1e-8)
    assert range_variance(256, 16, level_budgets(256, 16, epsilon=1, method="geometric")) == pytest.approx(109.726089, rel=1e-8)


@pytest.mark.slow
@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.fractions(min_value=Fraction(1, 10**6), max_value=50) | st.floats(1e-6, 50),
    st.integers(1, 5000),
    st.integers(2, 9),
    st.sampled_from(["equal", "geometric"]),
    st.booleans(),
)
def test_never_more_than_the_budget(whole, n, branching, method, root):
    found = level_budgets(n, branching, epsilon=whole, method=method, root=root)
    spent = sum(Fraction(repr(x)) for x in found.tolist())
    exact = Fraction(repr(whole)) if isinstance(whole, float) else whole
    assert exact * (1 - Fraction(1, 10**12)) <= spent <= exact
    assert found.shape == (num_levels(n, branching) + root,)


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="exactly one of epsilon and rho"):
        level_budgets(8, 2)
    with pytest.raises(ValueError, match="method must be one of 'equal', 'geometric', 'optimal', got 'best'"):
        level_budgets(8, 2, epsilon=1, method="best")
    with pytest.raises(ValueError, match="epsilon must be positive"):
        level_budgets(8, 2, epsilon=0)
