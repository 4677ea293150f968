"""Histograms of few bins: lemmas against simulation, all segmentations by enumeration, and the table of unit errors of trees."""

from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpinfer as dp
from dpinfer import methods
from dpinfer.accuracy import chosen_bins_error, estimated_bins_error, fixed_bins_error, range_variance_by_size
from dpinfer.inference import noise_first, v_optimal
from dpinfer.queries import Identity, Ranges, Tree

ALICE = np.array([1.0, 2, 1, 3, 5, 1, 1])  # Xu et al. 2013, figure 1


def averaged(rows, stops):
    """Rows with every bin's mean in its cells, by numpy alone."""
    parts = np.split(rows, stops[:-1], axis=-1)
    return np.concatenate([np.broadcast_to(part.mean(axis=-1, keepdims=True), part.shape) for part in parts], axis=-1)


def test_bins_fixed_beforehand():
    found = fixed_bins_error(ALICE, [3, 5, 7], epsilon=0.5)
    np.testing.assert_allclose(found, [8 / 3, 26.667, 34.667], atol=5e-4)
    # Whichever way the noise is given, and whatever is common to all cells.
    ways: list[dict[str, Any]] = [{"scale": 2.0}, {"scale": 8**0.5, "noise": "gaussian"}]
    for other in ways:
        np.testing.assert_allclose(fixed_bins_error(ALICE.astype(int), np.array([3, 5, 7]), **other), found, rtol=1e-12)
    np.testing.assert_allclose(fixed_bins_error(ALICE + 2.0**40, [3, 5, 7], epsilon=0.5), found, rtol=1e-12)
    np.testing.assert_allclose(fixed_bins_error(ALICE[::-1].astype(np.uint64), [2, 4, 7], epsilon=0.5), found, rtol=1e-12)
    assert fixed_bins_error([4.0], [1], scale=3, noise="gaussian") == (0, 9, 0)
    for noise in ("discrete_laplace", "discrete_gaussian"):
        variance = dp.noise.stddev(noise, 0.7) ** 2
        found = fixed_bins_error(ALICE, range(1, 8), scale=0.7, noise=noise)
        np.testing.assert_allclose(found, [0, 7 * variance, 0], rtol=1e-12)


@pytest.mark.parametrize("noise", ["laplace", "discrete_laplace"])
def test_fixed_bins_in_simulation(noise):
    rng = np.random.default_rng(3)
    truth, stops, draws = rng.integers(0, 20, 30).astype(float), [4, 5, 17, 30], 20_000
    keys = jax.random.split(jax.random.key(0), draws)
    simulate = jax.jit(jax.vmap(lambda key: dp.simulate(truth, Identity(30), epsilon=0.8, noise=noise, key=key).values))
    rows = np.asarray(simulate(keys))
    means = averaged(rows, stops)
    cost, error = ((means - rows) ** 2).sum(axis=1), ((means - truth) ** 2).sum(axis=1)
    given = {"epsilon": 0.8, "noise": noise}
    expected = fixed_bins_error(truth, stops, **given)
    assert expected.inside == pytest.approx(((averaged(truth, stops) - truth) ** 2).sum())
    hopes = np.array([estimated_bins_error(np.full(4, x), 30, **given)[3] for x in cost[:2000]])
    for found, mean in ((cost, expected.distance), (error, expected.squared_error), (hopes, expected.squared_error)):
        assert abs(found.mean() - mean) < 4 * found.std() / found.size**0.5


def test_gradients_of_the_budget_and_of_the_truth():
    def error(epsilon, truth):
        return fixed_bins_error(truth, [3, 5, 7], epsilon=epsilon).squared_error

    found, along = jax.jit(jax.grad(error, argnums=(0, 1)))(0.5, ALICE)
    assert float(found) == pytest.approx(-4 * 3 / 0.5**3)
    np.testing.assert_allclose(along, 2 * (ALICE - averaged(ALICE, [3, 5, 7])), atol=1e-12)


@pytest.mark.slow
def test_equation_4():
    costs = v_optimal(ALICE, 7).costs
    assert costs is not None
    k = np.arange(1, 8)
    np.testing.assert_allclose(estimated_bins_error(costs, 7, epsilon=0.5), costs - (2 * 7 - 4 * k) / 0.5**2, rtol=1e-12)
    np.testing.assert_allclose(estimated_bins_error(costs[:3], 7, scale=1), costs[:3] - (14 - 4 * k[:3]), rtol=1e-12)


@pytest.mark.slow
def test_chosen_bins_against_all_segmentations():
    truth, draws, key, given = np.array([4.0, 4, 9, 9, 8, 0]), 12, jax.random.key(5), {"scale": 1.5, "noise": "gaussian"}
    n = truth.size
    found = chosen_bins_error(truth, **given, key=key, num_draws=draws)
    hopes, errors = np.zeros((2, draws, n))
    for draw in range(draws):
        own = jax.random.fold_in(key, draw)  # as map_problems
        values = np.asarray(dp.simulate(truth, Identity(n), rho=1 / (2 * 1.5**2), key=own).values)
        for k in range(1, n + 1):
            fits = [averaged(values, [*inner, n]) for inner in combinations(range(1, n), k - 1)]
            costs = [((fit - values) ** 2).sum() for fit in fits]
            hopes[draw, k - 1] = min(costs) - (n - 2 * k) * 1.5**2
            errors[draw, k - 1] = ((fits[int(np.argmin(costs))] - truth) ** 2).sum()
    best = hopes.argmin(axis=1)
    np.testing.assert_allclose(found.estimated, hopes.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(found.squared_error, errors.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(found.standard_error, errors.std(axis=0, ddof=1) / draws**0.5, rtol=1e-9)
    np.testing.assert_allclose(found.estimated_standard_error[:-1], hopes.std(axis=0, ddof=1)[:-1] / draws**0.5, rtol=1e-9)
    assert found.shares.tolist() == (np.bincount(best, minlength=n) / draws).tolist()
    own = hopes[np.arange(draws), best], errors[np.arange(draws), best]
    for mean, error, expected in (
        (found.best_estimated, found.best_estimated_standard_error, own[0]),
        (found.best_squared_error, found.best_standard_error, own[1]),
    ):
        assert (mean, error) == pytest.approx((expected.mean(), expected.std(ddof=1) / draws**0.5))
    # Fewer bins are a part of the same.
    few = chosen_bins_error(truth, 2, **given, key=key, num_draws=draws)
    np.testing.assert_allclose(few.squared_error, found.squared_error[:2], rtol=1e-10)
    assert few.shares.sum() == 1


@pytest.mark.slow
def test_the_estimate_is_too_hopeful_where_noise_chooses():
    found = chosen_bins_error(ALICE, epsilon=0.5, key=jax.random.key(0), num_draws=4000)
    # Of a reference simulation of 4,000 draws by another program: the difference has sqrt(2) of these standard errors.
    estimated = [21.936, 12.876, 7.466, 14.878, 26.443, 40.565, 56.0]
    squared = [22.134, 38.966, 48.243, 52.550, 55.043, 56.059, 56.374]
    assert (np.abs(found.estimated - estimated) < 4 * 2**0.5 * found.estimated_standard_error + 1e-3).all()
    assert (np.abs(found.squared_error - squared) < 4 * 2**0.5 * found.standard_error).all()
    # One bin and seven leave nothing to choose.
    for k in (1, 7):
        known = fixed_bins_error(ALICE, np.linspace(0, 7, k + 1)[1:].astype(int), epsilon=0.5).squared_error
        assert abs(found.squared_error[k - 1] - known) < 4 * found.standard_error[k - 1]
    assert found.best_estimated < found.estimated.min()
    assert found.squared_error.argmin() == 0
    assert found.estimated.argmin() == 2


@pytest.mark.slow
def test_constant_cells_and_the_papers_rule():
    n, draws, key = 496, 20, jax.random.key(1)
    found = chosen_bins_error(np.zeros(n), epsilon=1, key=key, num_draws=draws)
    # 0.15 bins a cell, a squared error of 1.25 for each and an estimate of -0.65, where one bin would have 2 / n.
    bins = found.shares @ np.arange(1, n + 1) / n
    for mean, spread, expected in (
        (found.best_squared_error, found.best_standard_error, 1.25),
        (found.best_estimated, found.best_estimated_standard_error, -0.65),
    ):
        assert abs(mean / n - expected) < 0.01 + 4 * spread / n
    assert bins == pytest.approx(0.15, abs=0.01)
    assert abs(found.squared_error[0] - 2) < 4 * found.standard_error[0]

    # It is what the estimator does.
    def error(key):
        fit = noise_first(dp.simulate(np.zeros(n), Identity(n), epsilon=1, key=key), penalty="paper")
        return jnp.square(fit.cells).sum(), fit.num_bins

    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(draws, dtype=np.uint32))
    errors, numbers = jax.jit(jax.vmap(error))(keys)
    assert float(numbers.mean()) / n == pytest.approx(bins)
    assert float(errors.mean()) == pytest.approx(found.best_squared_error)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fixed_bins_error(ALICE, [3, 5], epsilon=1), "stops must increase from at least 1 to the number of cells, 7"),
        (lambda: fixed_bins_error(ALICE, [3, 3, 7], epsilon=1), "stops must increase"),
        (lambda: fixed_bins_error(ALICE, [], epsilon=1), "stops must increase"),
        (lambda: fixed_bins_error(ALICE, np.array([7.0]), epsilon=1), "stops must hold integers"),
        (lambda: fixed_bins_error([], [1], epsilon=1), "truth must be a vector of at least one cell"),
        (lambda: fixed_bins_error([1, np.nan], [2], epsilon=1), "truth must be finite"),
        (lambda: fixed_bins_error(ALICE, [7]), "exactly one of epsilon and scale"),
        (lambda: fixed_bins_error(ALICE, [7], epsilon=1, scale=1), "exactly one of epsilon and scale"),
        (lambda: fixed_bins_error(ALICE, [7], epsilon=0), "epsilon must be one positive number"),
        (lambda: fixed_bins_error(ALICE, [7], scale=[1, 2]), "scale must be one positive number"),
        (lambda: fixed_bins_error(ALICE, [7], epsilon=1, noise="gaussian"), "give the scale of 'gaussian' noise"),
        (lambda: fixed_bins_error(ALICE, [7], scale=1, noise="normal"), "noise must be one of"),
        (lambda: estimated_bins_error([1, 0], 1, epsilon=1), "costs must be of 1, 2, ... and at most 1 bins"),
        (lambda: estimated_bins_error([1], 0, epsilon=1), "n must be at least 1"),
        (lambda: chosen_bins_error(ALICE, 8, epsilon=1, key=jax.random.key(0)), "most must be at most the number of cells, 7"),
        (lambda: chosen_bins_error(ALICE, epsilon=1, key=jax.random.key(0), num_draws=1), "num_draws must be at least 2"),
        (lambda: chosen_bins_error(ALICE, epsilon=1, key=jax.random.split(jax.random.key(0))), "key must be one typed key"),
        (lambda: chosen_bins_error(ALICE, scale=1, noise="discrete_gaussian", key=jax.random.key(0)), "noise must be one of"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_unit_errors_of_trees_in_the_papers_domains():
    # Xu et al. 2013, table 2, at epsilon = 0.01: the variance of a cell, of which the paper prints means of 20 runs.
    epsilon = 0.01
    for n, boost, wavelet in (
        (101, 774_214, 426_719),
        (496, 1_213_375, 666_672),
        (1423, 1_746_944, 960_000),
        (1678, 1_747_193, 960_000),
    ):
        padded = 1 << (n - 1).bit_length()
        levels = padded.bit_length()
        # A tree that is cut at n does a little better than Boost, which pads.
        own = range_variance_by_size(n, 2, [epsilon / levels] * levels, root=True)[0]
        assert (0.995 if n == 101 else 0.9998) * boost < own < boost
        known = 2 * levels**2 * (1 / padded**2 + (1 - 4.0 ** (1 - levels)) / 3) / epsilon**2
        assert known == pytest.approx(wavelet, abs=1)
        if n > 101:
            continue
        cells = Ranges(padded, np.arange(n), np.arange(n) + 1)
        # Privelet measures padding; to know that it is empty is a little better.
        assert unit_error(methods.privelet(padded), cells, epsilon) == pytest.approx(known, rel=1e-9)
        assert 0.99 * known < unit_error(methods.privelet(n), Identity(n), epsilon) < known
        assert unit_error(methods.consistent_tree(n, 2, root=True), Identity(n), epsilon) == pytest.approx(own, rel=1e-9)
        # Boost as the paper ran it: of a whole tree the nodes of padding alone are 0, without noise, and fitted like the others.
        tree, scale = Tree.complete(padded, 2, root=True), levels / epsilon

        def estimate(values, tree=tree, scale=scale, cells=cells):
            return dp.least_squares(dp.Measurement(tree, values, "laplace", scale)).answer(cells).values

        weights = np.asarray(jax.jit(jax.jacrev(estimate))(np.zeros(tree.shape[0])))
        is_noisy = tree @ (np.arange(padded) < n) > 0
        assert 2 * scale**2 * (weights[:, is_noisy] ** 2).sum(axis=1).mean() == pytest.approx(boost, abs=1)


def unit_error(method, workload, epsilon):
    release = method.simulate(np.zeros(method.strategy.shape[1]), epsilon=epsilon, key=jax.random.key(0))
    return float(np.square(method.estimate(release).expected_stddev(workload)).mean())
