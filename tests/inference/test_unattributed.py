"""Counts by rank: what the order gains, against the papers' numbers, exact enumeration and simulation."""

from fractions import Fraction
from itertools import product

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.accuracy import sorted_counts_error
from dpinfer.inference import bootstrap, isotonic_regression, unattributed_histogram
from dpinfer.mechanisms import sorted_counts
from dpinfer.queries import Identity, Prefix

EXAMPLE_3 = np.repeat([10, 14, 18], [20, 1, 4])  # Hay et al. 2010


@pytest.mark.slow
def test_order_sign_and_whole_numbers():
    release = sorted_counts(np.array([0, 0, 3, 1, 5, 0]), epsilon=0.5)
    for method in ("isotonic", "sorted"):
        for norm in ("l2", "l1"):
            cells = np.asarray(unattributed_histogram(release, method=method, norm=norm).cells)
            assert (np.diff(cells) >= 0).all()
            assert cells.min() >= 0
            np.testing.assert_array_equal(cells, np.round(cells))
    values = np.array([2.0, -3.0, 4.5, 4.0])
    measurement = dp.Measurement(Identity(4), values, "laplace", 1.0)
    assert unattributed_histogram(measurement, rounded=False).cells.tolist() == [0, 0, 4.25, 4.25]
    assert unattributed_histogram(measurement, method="sorted").cells.tolist() == [0, 2, 4, 5]
    estimate = unattributed_histogram(measurement)
    assert estimate.answer(Prefix(4)).values.tolist() == [0, 0, 4, 8]
    with pytest.raises(ValueError, match="unattributed_histogram gives no intervals"):
        estimate.answer(Prefix(4)).interval()


def realised(truth, epsilon, draws, key, **options):
    """Squared errors of simulated releases, summed over the ranks, [draws]."""

    def one(key):
        noisy = dp.simulate(truth, Identity(truth.size), epsilon=epsilon, key=key)
        return ((unattributed_histogram(noisy, rounded=False, **options).cells - truth) ** 2).sum()

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(key), draws)))


def test_example_3_of_the_paper():
    errors = realised(EXAMPLE_3, 1.0, 4000, 0)
    spread = errors.std() / errors.size**0.5
    assert abs(errors.mean() - 12.833) < 4 * (spread**2 + 0.047**2) ** 0.5
    expected = sorted_counts_error([20, 1, 4], epsilon=1, noise="laplace")
    assert expected.noisy == pytest.approx(50)
    assert expected.isotonic == pytest.approx(13.3621, abs=5e-5)
    assert errors.mean() < expected.isotonic + 4 * spread


@pytest.mark.parametrize("gap", [1, 20])
def test_runs_that_are_apart_reach_the_bound_and_others_stay_below(gap):
    truth = 1000 + gap * np.repeat(np.arange(10), 100)
    errors = realised(truth, 1.0, 1500, gap)
    spread = errors.std() / errors.size**0.5
    bound = sorted_counts_error(np.full(10, 100), epsilon=1, noise="laplace").isotonic
    assert bound == pytest.approx(103.748, abs=5e-4)
    assert errors.mean() < bound + 4 * spread
    reached = {1: 67.34, 20: 103.23}[gap]  # by another program, with standard errors of 0.42 and 0.71
    assert abs(errors.mean() - reached) < 4 * (spread**2 + 0.71**2) ** 0.5


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_error_of_one_run_by_enumeration(n):
    """Noise of -1, 0, 2 with unequal odds, mean 0: every outcome, in fractions, by the min-max formula."""
    law = {-1: Fraction(1, 2), 0: Fraction(1, 4), 2: Fraction(1, 4)}
    variance = sum(p * x**2 for x, p in law.items())
    total = Fraction(0)
    for outcome in product(law, repeat=n):
        chance = Fraction(1)
        for x in outcome:
            chance *= law[x]
        fit = [
            min(max(Fraction(sum(outcome[i : j + 1]), j - i + 1) for i in range(j + 1)) for j in range(k, n)) for k in range(n)
        ]
        total += chance * sum(x**2 for x in fit)
    assert total == variance * sum(Fraction(1, k) for k in range(1, n + 1))
    ours = sorted_counts_error([n], epsilon=2, unit="edge")
    assert ours.isotonic / ours.noisy == pytest.approx(float(total / variance) / n)


def test_harmonic_numbers_of_long_runs():
    for n, exact in [(999, 7.4844708605503449), (1000, 7.4854708605503449), (10**5, 12.090146129863428)]:
        found = sorted_counts_error([n], epsilon=1, noise="laplace")
        assert found.isotonic / 2 == pytest.approx(exact, rel=1e-14)
    assert sorted_counts_error([], epsilon=1) == (0, 0)
    with pytest.raises(ValueError, match="run_lengths must be positive, got 0"):
        sorted_counts_error([3, 0], epsilon=1)


@pytest.mark.slow
def test_error_bars_by_the_bootstrap():
    truth = np.repeat([2, 30, 60], [30, 20, 10])
    release = sorted_counts(truth, epsilon=1)
    estimate = bootstrap(release, unattributed_histogram, key=jax.random.key(0), num_draws=50)
    lower, upper = estimate.answer(Identity(60)).interval(0.9)
    assert np.all(np.asarray(lower) <= np.asarray(upper))
    assert np.mean((lower <= truth) & (truth <= upper)) > 0.5


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="release must be of Identity, one count for each rank"):
        unattributed_histogram(dp.measure([1, 2], Prefix(2), epsilon=1))
    unequal = dp.Measurement(Identity(2), np.ones(2), "laplace", np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="release must have the same noise in each count"):
        unattributed_histogram(unequal)
    with pytest.raises(ValueError, match="method must be one of 'isotonic', 'sorted'"):
        unattributed_histogram(dp.measure([1, 2], Identity(2), epsilon=1), method="best")
    assert isotonic_regression(np.array([1.0])).values.tolist() == [1]
