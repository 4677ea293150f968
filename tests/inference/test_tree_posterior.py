"""Posteriors of trees: against tables of all cells, quadrature, errors known from simulations, and cells from the prior."""

from itertools import product

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import CellPrior, mmse, poisson_gamma, tree_posterior
from dpinfer.queries import Identity, Tree

LOPSIDED = Tree.from_parents([-1, 0, 0, 1, 1, 2, 4, 4], leaf_cells=[2, 0, 3, 1])


def table(tree, values, scale, possible, log_prior):
    """Means and standard deviations of all nodes, and masses of each."""
    cells = np.array(list(product(possible, repeat=tree.shape[1])))
    nodes = cells @ np.asarray(tree.dense()).T
    own = np.isfinite(scale)
    log = log_prior(cells).sum(axis=1) - (np.abs(values - nodes)[:, own] / scale[own]).sum(axis=1)
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = weights @ nodes
    return nodes, weights, mean, np.sqrt(weights @ np.square(nodes - mean))


@pytest.mark.parametrize(
    ("tree", "values", "scale"),
    [
        (Tree.complete(4, 2, root=True), [9, 3, 4, 2, 0, 1, 5], [2, 1.5, 1.5, 1, 1, 1, 1]),
        (Tree.complete(4, 2, root=True), [15, 3, -5, 2, 0, 1, 5], [1, 0.5, 3, 1, 2, 1, 0.7]),
        (Tree.complete(3, 3), [2, -1, 4], [1.0, 0.6, 1.2]),
        (Tree.from_parents([-1, 0, 1, 1, 1]), [1, 8, 2, 9, 10], [0.31, 0.68, 0.64, 0.7, 1.14]),
        (Tree.from_parents([-1, 0, 1, 1, 1]), [-2, 5, 9, 5, 1], [0.54, 0.37, 0.41, 1.06, 0.62]),
        (LOPSIDED, [3, 6, -2, 1, 4, 0, 3, 2], [np.inf, 2, 1, 0.8, np.inf, 1.1, 0.9, 1]),
    ],
)
@pytest.mark.parametrize("prior", ["flat", "gamma", "nonnegative"])
def test_a_table_of_all_cells(tree, values, scale, prior):
    values, scale = np.array(values, dtype=float), np.array(scale, dtype=float)
    gamma = poisson_gamma(0.8, 0.3)
    given = gamma if prior == "gamma" else prior
    around = np.arange(-13, 18) if tree.shape[1] > 3 else np.arange(-30, 31)
    possible = around if prior == "flat" else np.arange(26)
    log_prior = gamma.at if prior == "gamma" else np.zeros_like
    nodes, weights, mean, stddev = table(tree, values, scale, possible, log_prior)
    found = tree_posterior(dp.Measurement(tree, values, "discrete_laplace", scale), given)
    skipped = 0 if tree.root_measured else 1
    np.testing.assert_allclose(found.mean[skipped:], mean, atol=2e-5)
    np.testing.assert_allclose(found.stddev[skipped:], stddev, rtol=1e-4)
    np.testing.assert_allclose(found.cells, found.mean[np.asarray(tree.leaves)])
    np.testing.assert_allclose(found.mean[0], found.cells.sum(), rtol=1e-9)
    assert found.neglected < 1e-9
    lower, upper = found.interval(0.9)
    for row in range(len(values)):
        node = row + skipped
        places, masses = found.density(node)
        for value in range(-2, 6):
            assert masses[places == value].sum() == pytest.approx(weights[nodes[:, row] == value].sum(), abs=1e-6)
        assert weights[nodes[:, row] < lower[node]].sum() <= 0.05 + 1e-6
        assert weights[nodes[:, row] > upper[node]].sum() <= 0.05 + 1e-6


@pytest.mark.slow
def test_cells_and_their_sum_are_what_mmse_says():
    # Means by quadrature elsewhere, and sums in conflict with their cells.
    star = Tree.complete(3, 3, root=True)
    for total, known in ((31.0, [22.00058766, 14.30019589, -2.0998041, 9.80019589]), (900.0, None), (-400.0, None)):
        measured = dp.Measurement(star, [total, 12.3, -4.1, 7.8], "laplace", [20.0, *[1 / 0.15] * 3])
        found = tree_posterior(measured)
        same = dp.Measurement(
            dp.queries.VStack((Identity(3), dp.queries.Total(3))), [12.3, -4.1, 7.8, total], "laplace", [*[1 / 0.15] * 3, 20.0]
        )
        exact = mmse(same, [[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
        np.testing.assert_allclose(exact.mean if known is None else known, exact.mean, atol=1e-7)
        np.testing.assert_allclose(found.mean, exact.mean, atol=1e-3 * 20)
        np.testing.assert_allclose(found.stddev, exact.stddev, rtol=3e-4)
        np.testing.assert_allclose(found.interval(0.9), exact.interval(0.9), atol=2e-3 * 20)


@pytest.mark.slow
def test_errors_of_a_binary_tree():
    # Four levels with the same noise: mean squared errors by simulation elsewhere, with standard errors of 0.03 and less; least
    # squares has 1.0667, 0.8381, 0.8762 and 1.2190.
    rng, tree, draws = np.random.default_rng(8), Tree.complete(8, 2, root=True), 120
    errors, inside = np.zeros((draws, 15)), np.zeros((draws, 15), dtype=bool)
    linear = np.zeros((draws, 15))
    for i in range(draws):
        measured = dp.Measurement(tree, rng.laplace(0, 1, 15), "laplace", 1.0)
        found = tree_posterior(measured)
        lower, upper = found.interval(0.9)
        errors[i], inside[i] = found.mean, (lower <= 0) & (upper >= 0)
        linear[i] = np.asarray(dp.least_squares(measured).answer(tree).values)
    levels = np.repeat(np.arange(4), [1, 2, 4, 8])
    for level, known in enumerate((0.999, 0.779, 0.803, 1.138)):
        squares = np.square(errors[:, levels == level]).mean(axis=1)
        assert abs(squares.mean() - known) < 4 * np.hypot(squares.std() / draws**0.5, 0.03)
        gain = np.square(linear[:, levels == level]).mean(axis=1) - squares
        assert gain.mean() > 0
        assert abs(inside[:, levels == level].mean() - 0.9) < 4 * (0.09 / draws) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("branching", [2, 16])
def test_true_priors_of_many_cells(branching):
    # Cells as the prior says: errors far below those of least squares, intervals that cover, and windows found by themselves.
    rng, n = np.random.default_rng(9), 512
    cells = rng.negative_binomial(0.2, 0.02, n)
    tree = Tree.complete(n, branching, root=True)
    values = np.asarray(tree @ cells) + np.round(rng.laplace(0, 12, tree.shape[0]))
    measured = dp.Measurement(tree, values, "discrete_laplace", 12.0)
    found = tree_posterior(measured, poisson_gamma(0.2, 0.02 / 0.98))
    fit = dp.least_squares(measured)
    assert found.neglected < 1e-9
    assert np.square(found.cells - cells).mean() < 0.5 * np.square(np.asarray(fit.cells) - cells).mean()
    truth = np.asarray(tree @ cells)
    lower, upper = found.interval(0.9)
    assert ((lower <= truth) & (truth <= upper)).mean() > 0.87
    assert abs(np.square((found.mean - truth) / found.stddev).mean() - 1) < 0.3
    flat = tree_posterior(measured)
    assert flat.neglected < 1e-9
    np.testing.assert_allclose(flat.cells, np.asarray(fit.cells), atol=40)
    # Non-negative cells, flat: each small cell is taken for larger than it is, and sums add that up.
    above = tree_posterior(measured, "nonnegative")
    assert above.neglected < 1e-9
    assert above.mean[0] > flat.mean[0] + flat.stddev[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tree_posterior(dp.Measurement(Identity(2), [1, 2], "laplace", 1.0)), "measurement must be of a Tree"),
        (lambda: tree_posterior(dp.Measurement(Tree.complete(2, 2), [1, 2], "gaussian", 1.0)), "got 'gaussian'"),
        (lambda: tree_posterior(dp.Measurement(Tree.complete(2, 2), [1, 2], "laplace", [1, 0.0])), "noise in every row"),
        (lambda: tree_posterior(dp.Measurement(Tree.complete(2, 2), [1, 2], "laplace", [1, np.inf])), "measured every leaf"),
        (lambda: tree_posterior(dp.Measurement(Tree.complete(2, 2), [1, 2], "laplace", 1.0), "none"), "prior must be one of"),
        (
            lambda: tree_posterior(dp.Measurement(Tree.complete(2, 2), [1, 2], "laplace", [1.0, 1e6])),
            "needs windows of more than 131,072 points",
        ),
        (
            lambda: tree_posterior(
                dp.Measurement(Tree.complete(2, 2), [1, 2], "laplace", 1.0),
                CellPrior(lambda x: np.where(x < 5000, -np.inf, 0.0), integers=True),
            ),
            "-inf all around some noisy cell",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
