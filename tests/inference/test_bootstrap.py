"""The bootstrap: right where the exact law is known, and its coverage where it is not, as the documentation states it."""

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import bootstrap, nonnegative_least_squares
from dpinfer.queries import AllRange, Identity, Prefix, Total, Tree


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["laplace", "discrete_laplace", "gaussian", "discrete_gaussian"])
def test_of_least_squares_it_finds_the_exact_standard_deviations(noise):
    tree = Tree.complete(9, 3)
    measurement = dp.Measurement(tree, np.arange(12.0), noise, np.linspace(2, 4, 12))
    exact = dp.least_squares(measurement).answer(AllRange(9))
    answers = bootstrap(measurement, dp.least_squares, key=jax.random.key(0), num_draws=4000).answer(AllRange(9))
    # A standard deviation from 4,000 draws has a relative standard error of at most 2%.
    np.testing.assert_allclose(answers.stddev, exact.stddev, rtol=0.08)
    np.testing.assert_allclose(np.asarray(answers.bias) / np.asarray(exact.stddev), 0, atol=5 / np.sqrt(4000))
    np.testing.assert_allclose(answers.values, exact.values, atol=1e-9)
    lower, upper = answers.interval(0.9)
    if noise != "discrete_gaussian":
        expected = exact.interval(0.9)
        np.testing.assert_allclose(np.asarray(upper) - lower, expected[1] - expected[0], rtol=0.12)


def test_joint_intervals_hold_all_errors_in_their_share_of_the_draws():
    measurement = dp.Measurement(Prefix(6), np.arange(6.0), "laplace", 1.0)
    answers = bootstrap(measurement, dp.least_squares, key=jax.random.key(1), num_draws=500).answer(AllRange(6))
    lower, upper = answers.interval(0.8, joint=True)
    errors = np.asarray(answers.errors)
    inside = (errors >= np.asarray(answers.values - upper)) & (errors <= np.asarray(answers.values - lower))
    assert inside.all(axis=1).mean() == pytest.approx(0.8, abs=0.01)
    single = answers.interval(0.8)
    assert np.all(np.asarray(upper - lower) > 0.9 * np.asarray(single[1] - single[0]))


@pytest.mark.slow
def test_exact_counts_stay_exact_and_keys_decide():
    noisy = dp.Measurement(Identity(5), [3.0, -1, 2, 0, 1], "laplace", 2.0).with_exact(Total(5), [6])
    one, again, other = (
        bootstrap(noisy, nonnegative_least_squares, key=jax.random.key(seed), num_draws=20) for seed in (0, 0, 1)
    )
    np.testing.assert_allclose(one.answer(Total(5)).errors, 0, atol=1e-8)
    np.testing.assert_array_equal(one.errors, again.errors)
    assert not np.array_equal(one.errors, other.errors)
    as_cells = bootstrap(noisy, lambda m: nonnegative_least_squares(m).cells, key=jax.random.key(0), num_draws=20)
    np.testing.assert_array_equal(as_cells.errors, one.errors)


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "of_cells", "of_ranges"), [(50, (0.84, 0.94), (0.75, 0.97)), (2, (0.40, 0.58), (0.64, 0.92))])
def test_measured_coverage_of_nonnegative_least_squares(mean, of_cells, of_ranges):
    # The documented shares (89% and 87%, 49% and 78% at a nominal 90%, from 40 and 60 releases), about five standard errors wide.
    n, covered = 64, []
    tree, rng = Tree.complete(n, 4), np.random.default_rng(0)
    for seed in range(10):
        truth = rng.poisson(mean, n).astype(float)
        values = np.asarray(tree @ truth) + 4 * rng.laplace(size=tree.shape[0])
        measurement = dp.Measurement(tree, values, "laplace", 4.0)
        estimate = bootstrap(measurement, nonnegative_least_squares, key=jax.random.key(seed), num_draws=100)
        for workload in (Identity(n), AllRange(n)):
            lower, upper = estimate.answer(workload).interval(0.9)
            covered.append(float(dp.evaluation.coverage(lower, upper, np.asarray(workload @ truth))))
    cells, ranges = np.mean(covered[::2]), np.mean(covered[1::2])
    assert of_cells[0] < cells < of_cells[1]
    assert of_ranges[0] < ranges < of_ranges[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_draws": 1}, "num_draws must be at least 2"),
        ({"memory_limit": 0}, "memory_limit must be at least 1"),
        ({"num_draws": 2**26}, r"num_draws x cells must be at most 2\*\*27"),
        ({"estimator": lambda m: m.values}, "estimator must return 4 cells"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    measurement = dp.Measurement(Tree.complete(4, 2), np.zeros(6), "laplace", 1.0)
    with pytest.raises(ValueError, match=message):
        bootstrap(measurement, **{"estimator": dp.least_squares, "key": jax.random.key(0), **arguments})
    with pytest.raises(ValueError, match="workload must be over the estimate's 4 cells"):
        bootstrap(measurement, dp.least_squares, key=jax.random.key(0), num_draws=2).answer(Identity(5))
