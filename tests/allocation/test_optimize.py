"""Weights of rows and strategies made for a workload, against other optimisers, bounds, and releases that are really made."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import dpinfer as dp
from dpinfer.accuracy import expected_error, mean_variance, range_variance
from dpinfer.allocation import eigenvalue_strategy, level_budgets, optimize, p_identity
from dpinfer.queries import AllRange, Dense, Haar, Identity, Prefix, Ranges, Total, Tree, VStack

DOMAIN = dp.Domain({"a": dp.Axis.integers(0, 4), "b": dp.Axis.integers(0, 3), "c": dp.Axis.integers(0, 2)})
TABLES = [["a", "b"], ["b", "c"], ["a", "c"], ["a"], ["b"], ["c"], []]
MARGINALS = dp.workloads.marginals(DOMAIN, *TABLES)
TWO_WAY = dp.workloads.marginals(DOMAIN, *TABLES[:3])
SIZES = [12, 6, 8, 4, 3, 2, 1]
LABELS = np.repeat(np.arange(7), SIZES)


def error_of(workload, strategy, weights, order):
    """S^2 tr(W K^+ W') / rows by a pseudo-inverse, for epsilon = 1 or rho = 1."""
    rows = np.asarray(workload.dense(), dtype=float)
    matrix = np.asarray(strategy.dense(), dtype=float) * weights[:, None]
    largest = (np.abs(matrix) ** order).sum(axis=0).max() ** (2 / order)
    inverse = np.linalg.pinv(matrix.T @ matrix, rcond=1e-12, hermitian=True)
    return (2 if order == 1 else 0.5) * largest * np.einsum("ij,jk,ik->i", rows, inverse, rows).mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "strategy", "unit"),
    [
        (AllRange(8), Tree.complete(8, 2), "epsilon"),
        (Prefix(6), VStack([Identity(6), Prefix(6)]), "epsilon"),
        (AllRange(8), Haar(8), "rho"),
    ],
    ids=repr,
)
def test_no_other_optimiser_finds_better_weights(workload, strategy, unit):
    order = 1 if unit == "epsilon" else 2
    found = optimize(workload, strategy, epsilon=1) if unit == "epsilon" else optimize(workload, strategy, rho=1)
    assert found.expected_error == pytest.approx(error_of(workload, strategy, found.row_weights, order), rel=1e-9)
    assert found.first_error == pytest.approx(error_of(workload, strategy, np.ones(strategy.shape[0]), order), rel=1e-9)
    rng = np.random.default_rng(0)
    others = [
        minimize(
            lambda z: math.log(error_of(workload, strategy, np.exp(z), order)), z, method="Nelder-Mead", options={"maxfev": 3000}
        )
        for z in (np.log(np.maximum(found.row_weights, 1e-3)), *rng.normal(size=(1, strategy.shape[0])))
    ]
    assert found.expected_error <= math.exp(min(other.fun for other in others)) * (1 + 2e-4)


def test_under_rho_no_weights_can_be_better():
    # Convex in the squares of the weights: multipliers of the columns prove a lower bound by duality.
    workload, strategy = AllRange(16), Tree.complete(16, 4)
    found = optimize(workload, strategy, rho=1)
    matrix, rows = np.asarray(strategy.dense(), dtype=float), np.asarray(workload.dense(), dtype=float)
    squares = found.row_weights**2
    squares = squares / (matrix**2).T.dot(squares).max()
    inverse = np.linalg.inv(matrix.T @ (squares[:, None] * matrix))
    slopes = np.einsum("ij,jk,ik->i", matrix, inverse @ (rows.T @ rows / len(rows)) @ inverse, matrix)
    # Of any w with column sums of at most 1: tr >= the value at w0 plus slopes (w0 - w) >= value + slopes w0 - max of slopes w.
    from scipy.optimize import linprog

    most = -linprog(-slopes, A_ub=(matrix**2).T, b_ub=np.ones(16)).fun
    value = 2 * found.expected_error
    assert (value + slopes @ squares - most) / value > 1 - 1e-3


@pytest.mark.slow
def test_levels_of_a_tree():
    tied = optimize(AllRange(64), Tree.complete(64, 2), epsilon=1, tied="levels")
    budgets = level_budgets(64, 2, epsilon=1, method="optimal")
    assert tied.expected_error == pytest.approx(range_variance(64, 2, budgets), rel=1e-7)
    assert tied.first_error == pytest.approx(99.92121942573556, rel=1e-12)
    assert np.unique(tied.row_weights[Tree.complete(64, 2).levels == 0]).tolist() == [0.0]
    free = optimize(AllRange(16), Tree.complete(16, 2), rho=1)  # rows at the ends matter less
    assert free.expected_error < 0.99 * range_variance(16, 2, level_rhos=level_budgets(16, 2, rho=1, method="optimal"))


@pytest.mark.slow
def test_weights_of_marginals():
    found = optimize(TWO_WAY, MARGINALS, epsilon=1, tied=LABELS)

    def log_error(z):
        return math.log(error_of(TWO_WAY, MARGINALS, np.exp(z)[LABELS], 1))

    rng = np.random.default_rng(0)
    others = [minimize(log_error, z, method="L-BFGS-B", bounds=[(-12, 0)] * 7).fun for z in rng.uniform(-2, 0, (3, 7))]
    assert math.log(found.expected_error) <= min(others) + 1e-6
    release = dp.measure(np.zeros(24, dtype=int), MARGINALS, epsilon=1, row_weights=found.row_weights)
    assert release.epsilon == 1
    continuous = dp.Measurement(MARGINALS, np.zeros(MARGINALS.shape[0]), "laplace", release.scale)
    answers = dp.least_squares(continuous).expected_stddev(TWO_WAY)
    assert np.square(answers).mean() == pytest.approx(found.expected_error, rel=1e-6)


@pytest.mark.slow
def test_rows_that_do_not_help_are_not_measured():
    found = optimize(Total(6), VStack([Identity(6), Total(6)]), epsilon=1)
    assert found.row_weights.tolist() == [0.0] * 6 + [1.0]
    assert found.expected_error == pytest.approx(2)
    assert found.first_error == pytest.approx(8 * 6 / 7)


@pytest.mark.slow
def test_more_cells_than_a_matrix_is_formed_for(monkeypatch):
    starts = np.array([0, 3, 7, 2, 11])
    workload, strategy = Ranges(16, starts, starts + np.array([5, 10, 1, 12, 4])), Tree.complete(16, 4)
    given = {"tied": "levels", "start": np.ones(strategy.shape[0])}
    dense = optimize(workload, strategy, epsilon=1, **given)
    monkeypatch.setattr(mean_variance, "MAX_DENSE_CELLS", 8)
    sparse = optimize(workload, strategy, epsilon=1, **given)
    assert sparse.expected_error == pytest.approx(dense.expected_error, rel=1e-6)
    monkeypatch.setattr(mean_variance, "MAX_ANSWERS", 4)
    with pytest.raises(ValueError, match="workload must have at most 4 rows"):
        optimize(workload, strategy, epsilon=1)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["epsilon", "rho"])
def test_p_identity_strategies(unit):
    workload, n = AllRange(32), 32
    epsilon, rho, order = (1, None, 1) if unit == "epsilon" else (None, 1, 2)
    found = p_identity(workload, 8, epsilon=epsilon, rho=rho, key=jax.random.key(0))
    assert found.strategy.shape == (40, 32)
    assert found.expected_error == pytest.approx(error_of(workload, found.strategy, found.row_weights, order), rel=1e-9)
    # Better than every tree with any budgets of its levels, under epsilon and rho.
    trees = []
    for b in (2, 3, 4, 6, 32):
        budgets = level_budgets(n, b, epsilon=epsilon, rho=rho, method="optimal")
        trees.append(range_variance(n, b, *([budgets] if rho is None else []), level_rhos=None if rho is None else budgets))
    assert found.expected_error < (0.95 if unit == "epsilon" else 0.82) * min(trees)
    if unit == "rho":
        sizes = np.linalg.eigvalsh(np.asarray(workload.gram(), dtype=float) / workload.shape[0])
        bound = np.sqrt(np.maximum(sizes, 0)).sum() ** 2 / n / 2  # Li and Miklau 2013
        assert bound < found.expected_error < 1.06 * bound
    # The release spends what was asked, and its answers have the error that was promised.
    release = dp.measure(np.zeros(n, dtype=int), found.strategy, epsilon=epsilon, rho=rho, row_weights=found.row_weights)
    assert (release.epsilon if unit == "epsilon" else release.rho) == 1
    law = "laplace" if unit == "epsilon" else "gaussian"  # the discrete laws of a release vary a little less
    continuous = dp.Measurement(found.strategy, np.zeros(40), law, release.scale)
    answers = dp.least_squares(continuous).expected_stddev(workload)
    assert np.square(answers).mean() == pytest.approx(found.expected_error, rel=1e-6)
    assert np.square(dp.least_squares(release).expected_stddev(workload)).mean() < found.expected_error * (1 + 1e-6)


def test_the_eigenvalue_strategy_is_a_start():
    workload = AllRange(16)
    first = eigenvalue_strategy(workload, rho=0.5)
    assert first.expected_error == pytest.approx(2 * error_of(workload, first.strategy, first.row_weights, 2), rel=1e-9)
    better = optimize(workload, first.strategy, rho=0.5, start=first.row_weights)
    assert better.first_error == pytest.approx(first.expected_error, rel=1e-9)
    assert better.expected_error < 0.99 * first.expected_error
    # Fewer eigenvectors than cells: of the workload's row space.
    low = eigenvalue_strategy(Dense([[1, 1, 0, 0], [1, 1, 1, 1]]), epsilon=1)
    assert low.strategy.shape == (2, 4)


@pytest.mark.slow
def test_expected_error_is_the_matrix_mechanisms(monkeypatch):
    # N = 16, branching 4: the exact average over all ranges for epsilon 1 in equal parts, by trace and by answers.
    tree = Tree.complete(16, 4)
    assert expected_error(AllRange(16), tree, 2.0) == pytest.approx(16.658823529411762, rel=1e-12)
    assert expected_error(AllRange(16), tree, 2.0, noise="gaussian") == pytest.approx(16.658823529411762 / 2, rel=1e-12)
    scale = np.where(np.asarray(tree.levels) == 0, np.inf, 1.0)
    assert expected_error(AllRange(16), tree, scale) == pytest.approx(12)
    assert expected_error(Identity(4), Haar(4), [1, np.inf, 1, 1]) == np.inf
    # By a trace, where the answers are too many to look at each.
    by_level, rng = np.array([2.0, 4.0])[np.asarray(tree.levels)], np.random.default_rng(0)
    for scale in (by_level, by_level * rng.uniform(0.9, 1.1, by_level.size)):
        each = float(expected_error(AllRange(16), tree, scale))
        with monkeypatch.context() as patch:
            patch.setattr(mean_variance, "MAX_ANSWERS", 10)
            assert expected_error(AllRange(16), tree, scale) == pytest.approx(each, rel=1e-12)
    slope = jax.grad(lambda s: expected_error(AllRange(16), tree, s))(jnp.asarray(2.0))
    assert slope == pytest.approx(16.658823529411762, rel=1e-9)  # quadratic in the scale


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="must determine every answer of the workload"):
        optimize(Identity(4), Total(4), epsilon=1)
    with pytest.raises(ValueError, match="must determine every answer of the workload"):
        optimize(Identity(4), VStack([Identity(4), Total(4)]), epsilon=1, start=[0, 0, 0, 0, 1])
    with pytest.raises(ValueError, match="exactly one of epsilon and rho"):
        optimize(Total(4), Identity(4))
    with pytest.raises(ValueError, match="over the strategy's 4 cells, got 5"):
        optimize(Total(5), Identity(4), epsilon=1)
    with pytest.raises(ValueError, match=r"tied must have shape \[4\]"):
        optimize(Total(4), Identity(4), epsilon=1, tied=[0, 1])
    with pytest.raises(ValueError, match="tied='levels' needs a strategy with levels"):
        optimize(Total(4), Dense(np.eye(4, dtype=int)), epsilon=1, tied="levels")
    with pytest.raises(ValueError, match="start must be 4 non-negative weights"):
        optimize(Total(4), Identity(4), epsilon=1, start=[1, -1, 1, 1])
    with pytest.raises(ValueError, match="at most 4096 cells, got 5000"):
        eigenvalue_strategy(Total(5000), epsilon=1)
    with pytest.raises(ValueError, match="scale must be one number or 4"):
        expected_error(Total(4), Identity(4), [1.0, 2.0])
