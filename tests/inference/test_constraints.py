"""Exact counts, signs and whole numbers, each against another way to the same answer."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import weighted_least_squares

import dpinfer as dp
from dpinfer.inference.constrained_estimate import ConstrainedEstimate
from dpinfer.inference.tree_estimate import TreeEstimate
from dpinfer.queries import AllRange, Dense, Haar, Identity, Kronecker, Partition, Prefix, Ranges, Total, VStack, Weighted

# What is measured, and what is known.
INVARIANTS = {
    "total of prefixes": (Prefix(6), Total(6)),
    "two sums": (VStack([Prefix(6), Haar(6)]), Ranges(6, [0, 2], [3, 5])),
    "one sum twice": (Prefix(6), Dense([[1, 1, 1, 0, 0, 0], [2, 2, 2, 0, 0, 0]])),
    "only what is known is determined": (Dense([[1, -1, 0, 0, 0, 0]]), VStack([Total(6), Ranges(6, [2, 3, 4], [3, 4, 5])])),
    "marginals and total": (
        VStack([Kronecker([Identity(2), Total(3)]), Kronecker([Total(2), Identity(3)]), Identity(6)]),
        Total(6),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INVARIANTS)
def test_invariants_against_the_null_space_method(name):
    strategy, known = INVARIANTS[name]
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 20, 6).astype(float)
    scale = rng.uniform(0.5, 2, strategy.shape[0]) if "marginals" not in name else 1.5
    noisy = dp.Measurement(strategy, np.asarray(strategy @ cells) + rng.normal(size=strategy.shape[0]), "gaussian", scale)
    measurement = noisy.with_exact(known, known @ cells)
    estimate = dp.least_squares(measurement)
    assert isinstance(estimate, ConstrainedEstimate)
    np.testing.assert_allclose(known @ np.asarray(estimate.cells), known @ cells, atol=1e-9)
    assert estimate.constraint_residual.shape == known.shape[:1]
    np.testing.assert_allclose(estimate.constraint_residual, 0, atol=1e-9)
    np.testing.assert_array_equal(estimate.answer(known).stddev, 0)
    matrix = np.asarray(measurement.queries.dense(), dtype=float)
    variances = np.square(np.broadcast_to(measurement.stddev, measurement.values.shape))
    expected, covariance = weighted_least_squares(matrix, np.asarray(measurement.values, dtype=float), variances)
    workload = VStack([Identity(6), AllRange(6)])
    rows = np.asarray(workload.dense(), dtype=float)
    space = np.linalg.pinv(matrix) @ matrix
    known_rows = np.abs(rows - rows @ space).max(axis=1) < 1e-9
    stddev = np.asarray(estimate.expected_stddev(workload))
    truth = np.sqrt(np.maximum(np.diag(rows @ covariance @ rows.T), 0))
    np.testing.assert_allclose(stddev[known_rows], truth[known_rows], atol=1e-7)
    assert np.all(np.isinf(stddev[~known_rows]))
    if known_rows.all():
        answers = estimate.answer(workload)
        np.testing.assert_allclose(answers.values, rows @ expected, atol=1e-8)
        np.testing.assert_allclose(estimate.covariance(workload), rows @ covariance @ rows.T, atol=1e-8)
        lower, upper = answers.interval(0.9)
        np.testing.assert_allclose(np.asarray(upper) - lower, 2 * 1.6448536 * truth, atol=1e-6)


def test_a_known_total_on_a_stack_of_partitions_is_kept_by_the_tree():
    noisy = dp.Measurement(Identity(4), [3.0, 1.0, -2.0, 5.0], "laplace", 1.0)
    estimate = dp.least_squares(noisy.with_exact(Total(4), [11]))
    assert isinstance(estimate, TreeEstimate)
    np.testing.assert_allclose(estimate.cells, [4, 2, -1, 6])
    np.testing.assert_allclose(estimate.constraint_residual, [0], atol=1e-12)
    assert dp.least_squares(noisy).constraint_residual.shape == (0,)
    with pytest.raises(ValueError, match="cannot be seen inside jit"):
        jax.jit(lambda s: dp.least_squares(dp.Measurement(Identity(2), [1, 2], "laplace", s)).constraint_residual)(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 5])
@pytest.mark.parametrize("law", ["laplace", "discrete_laplace", "gaussian"])
def test_intervals_beside_an_exact_cell(n, law):
    scale = np.r_[0.0, np.ones(n - 1)]
    whole = dp.least_squares(dp.Measurement(Identity(n), np.arange(n), law, scale)).answer(Total(n)).interval(0.9)
    dense = dp.least_squares(dp.Measurement(Dense(np.eye(n)), np.arange(n), law, scale)).answer(Total(n)).interval(0.9)
    np.testing.assert_allclose(whole, dense, atol=1e-9)


def test_what_is_not_determined_is_named_under_grad_too():
    def total(values):
        scale = np.array([1.0, np.inf, np.inf, 1.0])
        return dp.least_squares(dp.Measurement(Identity(4), values, "laplace", scale)).cells.sum()

    with pytest.raises(ValueError, match=r"does not determine 3 of its nodes, \[0, 2, 3\]"):
        jax.grad(total)(jnp.ones(4))


@pytest.mark.slow
def test_invariants_that_contradict_each_other_are_named_with_the_amount():
    noisy = dp.Measurement(Prefix(4), np.arange(4.0), "laplace", 1.0)
    known = VStack([Total(4), Ranges(4, [0, 2], [2, 4])])
    with pytest.raises(ValueError, match=r"contradict each other: row 4 says 10, the others leave [+-]\d\.?\d* between"):
        dp.least_squares(noisy.with_exact(known, [10, 4, 7]))
    with pytest.raises(ValueError, match="over the measurement's 4 cells, got 3"):
        noisy.with_exact(Total(3), [1])


@pytest.mark.slow
def test_invariants_beside_a_large_strategy_without_structure(monkeypatch):
    n = 150
    monkeypatch.setattr(importlib.import_module("dpinfer.inference.least_squares"), "_MAX_DENSE_WORK", 1000)
    rng = np.random.default_rng(0)
    strategy = VStack([Weighted(Identity(n), 2.0), Prefix(n)])
    cells = rng.poisson(4, n).astype(float)
    noisy = dp.Measurement(strategy, np.asarray(strategy @ cells) + rng.normal(size=2 * n), "gaussian", 1.0)
    known = Ranges(n, [0, 52], [n, 148])
    estimate = dp.least_squares(noisy.with_exact(known, known @ cells))
    np.testing.assert_allclose(known @ np.asarray(estimate.cells), known @ cells, rtol=1e-10)
    answers = estimate.answer(Ranges(n, [0, 52, 50], [n, 148, 150]))
    np.testing.assert_array_equal(answers.stddev[:2], 0)
    free = dp.least_squares(noisy).answer(Ranges(n, [50], [150]))
    assert 0 < float(answers.stddev[2]) < float(free.stddev[0])


@pytest.mark.slow
def test_transforms_with_known_invariants():
    strategy = VStack([Prefix(5), Haar(5)])
    scale = np.where(np.arange(14) == 13, 0.0, 1.5)
    queries = VStack([strategy, Total(5)])
    values = jnp.asarray(np.random.default_rng(1).normal(size=14))

    def loss(values):
        return (jnp.asarray(dp.least_squares(dp.Measurement(queries, values, "gaussian", scale)).cells) ** 3).sum()

    direction = jnp.asarray(np.random.default_rng(2).normal(size=14))
    slope = (loss(values + 1e-6 * direction) - loss(values - 1e-6 * direction)) / 2e-6
    assert float(jax.jvp(loss, (values,), (direction,))[1]) == pytest.approx(float(slope), rel=1e-6)
    assert float(jax.grad(loss)(values) @ direction) == pytest.approx(float(slope), rel=1e-6)
    np.testing.assert_allclose(jax.vmap(loss)(jnp.stack([values, -values])), [loss(values), loss(-values)], rtol=1e-9)


@pytest.mark.slow
def test_partition_is_kept():
    noisy = dp.Measurement(VStack([Identity(5), Partition([0, 0, 1, 1, 1])]), np.arange(7.0), "laplace", [1.0] * 5 + [0.0] * 2)
    np.testing.assert_allclose(Partition([0, 0, 1, 1, 1]) @ np.asarray(dp.least_squares(noisy).cells), [5, 6], atol=1e-12)
