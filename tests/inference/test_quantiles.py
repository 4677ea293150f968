"""Quantiles against their definition, and the coverage of their intervals."""

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference.quantiles import quantiles
from dpinfer.queries import Dense, Identity, Tree


@pytest.mark.slow
def test_without_noise_it_is_the_quantile():
    cells = np.array([3, 0, 5, 2, 0, 10])
    result = dp.least_squares(dp.Measurement(Identity(6), cells, "gaussian", 1e-9))
    found = quantiles(result, [0.1, 0.15, 0.5, 0.99])
    assert found.cell.tolist() == [0, 0, 3, 5]
    assert found.lower.tolist() == [0, 0, 3, 5]
    for share, upper in zip([0.1, 0.5], found.upper[[0, 2]], strict=True):
        running = np.cumsum(cells) - share * cells.sum()
        assert running[upper - 1] <= 1e-6 or upper == 0 or running[upper] >= 0


@pytest.mark.slow
def test_the_variance_behind_the_interval_is_that_of_the_linear_answer():
    rng = np.random.default_rng(0)
    tree = Tree.complete(9, 3)
    result = dp.least_squares(dp.Measurement(tree, rng.normal(50, 9, 12), "gaussian", rng.uniform(1, 3, 12)))
    share = 0.3
    rows = np.tril(np.ones((9, 9))) - share
    answers = result.answer(Dense(rows))
    lower, upper = (np.asarray(end) for end in answers.interval(0.9))
    possible = [i for i in range(9) if upper[i] >= 0 and (i == 0 or lower[i - 1] < 0)]
    found = quantiles(result, [share], 0.9)
    assert (found.lower[0], found.upper[0]) == (possible[0], possible[-1])


@pytest.mark.slow
def test_intervals_cover():
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 60, 64)
    running = np.cumsum(truth) / truth.sum()
    shares = [0.25, 0.5, 0.9]
    right = [int(np.flatnonzero(running >= share)[0]) for share in shares]
    tree = Tree.complete(64, 8)
    trials, hits = 200, np.zeros(3)
    for key in jax.random.split(jax.random.key(0), trials):
        found = quantiles(dp.least_squares(dp.simulate(truth, tree, epsilon=0.2, key=key)), shares, 0.9)
        hits += (found.lower <= right) & (right <= found.upper)
    # At least the level: four standard errors below 90%.
    assert np.all(hits / trials >= 0.9 - 4 * np.sqrt(0.09 / trials))


def test_bad_arguments_are_named():
    result = dp.least_squares(dp.Measurement(Identity(3), [1, 2, 3], "gaussian", 1.0))
    with pytest.raises(ValueError, match="shares must be strictly between 0 and 1, got 1.0"):
        quantiles(result, [1.0])
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 95"):
        quantiles(result, [0.5], 95.0)
