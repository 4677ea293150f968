"""Realised error against its definition."""

import jax
import numpy as np
import pytest
from references import range_matrix

import dpinfer as dp
from dpinfer import evaluation
from dpinfer.inference import nonnegative_least_squares
from dpinfer.queries import Boxes, Dense, Identity, Prefix, Ranges, Total, Tree


@pytest.mark.slow
def test_squared_error_by_range_size_by_enumeration():
    rng = np.random.default_rng(0)
    cells, truth = rng.normal(size=11), rng.integers(0, 9, 11)
    sizes = [1, 2, 5, 11]
    expected = []
    for size in sizes:
        starts = np.arange(11 - size + 1)
        expected.append(np.mean((range_matrix(11, starts, starts + size) @ (cells - truth)) ** 2))
        np.testing.assert_array_equal(evaluation.ranges_of_size(11, size).starts, starts)
    np.testing.assert_allclose(evaluation.squared_error_by_range_size(cells, truth, sizes), expected, rtol=1e-12)
    batch = jax.vmap(lambda c: evaluation.squared_error_by_range_size(c, truth, sizes))(np.stack([cells, truth * 1.0]))
    np.testing.assert_allclose(batch, [expected, [0] * 4], rtol=1e-12)
    # A count common to both costs no digits.
    np.testing.assert_allclose(evaluation.squared_error_by_range_size(cells + 2**20, truth + 2**20, sizes), expected, rtol=1e-8)


def test_evenly_spaced_ranges():
    ranges = evaluation.ranges_of_size(100, 10, most=5)
    assert ranges.starts.tolist() == [0, 22, 45, 68, 90]
    assert evaluation.ranges_of_size(100, 10, most=1000).starts.size == 91


def test_coverage():
    assert float(evaluation.coverage([0.0, 1.0, 2.0], [1.0, 2.0, 2.0], [1, 0, 2])) == pytest.approx(2 / 3)


def test_errors_of_single_answers():
    answers, truth = np.array([9.0, -1.0, 30.0]), np.array([10, 0, 20])
    np.testing.assert_array_equal(evaluation.squared_error(answers, truth), [1, 1, 100])
    np.testing.assert_array_equal(evaluation.absolute_error(answers, truth), [1, 1, 10])
    np.testing.assert_allclose(evaluation.relative_error(answers, truth, sanity_bound=4), [0.1, 0.25, 0.5])
    slope = jax.grad(lambda a: evaluation.relative_error(a, truth, sanity_bound=4).sum())(jax.numpy.asarray(answers))
    np.testing.assert_allclose(slope, [-0.1, -0.25, 0.05])
    with pytest.raises(ValueError, match="sanity_bound must be positive, got 0"):
        evaluation.relative_error(answers, truth, sanity_bound=0)


def test_candlesticks_by_size():
    errors = np.arange(12.0).reshape(2, 6)
    workload = Ranges(9, [0, 1, 2, 3, 0, 1], [2, 3, 4, 5, 9, 9])
    small, large, whole = evaluation.candlesticks(errors, workload)
    assert (small.size, large.size, whole.size) == (2, 8, 9)
    own = np.array([0, 1, 2, 3, 6, 7, 8, 9.0])
    assert (small.num_answers, small.mean, small.median) == (8, own.mean(), np.median(own))
    assert (small.lower_quartile, small.upper_quartile, small.percentile_95) == tuple(np.quantile(own, [0.25, 0.75, 0.95]))
    assert (whole.mean, large.mean) == (7, 8)
    (together,) = evaluation.candlesticks(errors[0])
    assert (together.size, together.num_answers, together.median) == (0, 6, 2.5)
    boxes = Boxes((3, 3), [[0, 0], [0, 0]], [[2, 3], [1, 1]])
    assert [stick.size for stick in evaluation.candlesticks([1.0, 2.0], boxes)] == [1, 6]
    with pytest.raises(ValueError, match="one entry for each of the 2 queries, got 3"):
        evaluation.candlesticks([1.0, 2.0, 3.0], boxes)
    with pytest.raises(ValueError, match="workload must be ranges or Boxes"):
        evaluation.candlesticks([1.0], Dense([[1, 0, 1]]))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="sizes must be from 1 to the number of cells 3, got 4"):
        evaluation.squared_error_by_range_size(np.zeros(3), np.zeros(3), [4])
    with pytest.raises(ValueError, match=r"vectors of one length, got \[3\] and \[4\]"):
        evaluation.squared_error_by_range_size(np.zeros(3), np.zeros(4), [1])


TREE = Tree.complete(12, 3)


@pytest.mark.slow
def test_simulated_errors_are_what_theory_says():
    truths = np.random.default_rng(0).poisson(4, (2, 12))
    result = evaluation.simulate_error(
        TREE, dp.least_squares, truths, Prefix(12), epsilon=[0.5, 1, 2], key=jax.random.key(0), num_draws=600, by_answer=True
    )
    for name in ("squared_error", "standard_error", "expected"):
        assert getattr(result, name).shape == (2, 3)
    for epsilon, expected in zip([0.5, 1, 2], result.expected[0], strict=True):
        scale = TREE.sensitivity() / epsilon
        stddev = dp.least_squares(dp.Measurement(TREE, np.zeros(TREE.shape[0]), "laplace", scale)).answer(Prefix(12)).stddev
        assert expected == pytest.approx(np.square(stddev).mean())
    # Five standard errors, of six means and of 72 answers.
    assert np.all(np.abs(result.squared_error - result.expected) < 5 * result.standard_error)
    assert np.all(np.abs(result.answer_squared_error - result.answer_expected) < 5 * result.answer_standard_error)
    assert np.all(np.abs(result.answer_bias) < 5 * np.sqrt(result.answer_expected / 600))
    np.testing.assert_allclose(result.answer_squared_error.mean(axis=-1), result.squared_error, rtol=1e-10)


@pytest.mark.parametrize(
    ("budget", "shape"),
    [
        ({"rho": 0.5}, ()),
        ({"level_epsilons": [0.5, 0.25, 0.25]}, ()),
        ({"level_rhos": [[0.2, 0.2, 0.1], [0, 0.2, 0.3]]}, (2,)),
        ({"epsilon": 1.0, "noise": "discrete_laplace"}, ()),
    ],
    ids=str,
)
def test_simulated_errors_under_every_budget(budget, shape):
    result = evaluation.simulate_error(
        TREE, dp.least_squares, np.zeros(12), Identity(12), **budget, key=jax.random.key(1), num_draws=300
    )
    assert result.squared_error.shape == result.expected.shape == shape
    assert np.all(np.abs(result.squared_error - result.expected) < 5 * result.standard_error)


@pytest.mark.slow
def test_simulated_errors_of_a_biased_estimator():
    arguments = {"epsilon": 1.0, "key": jax.random.key(2), "num_draws": 100, "by_answer": True}
    result = evaluation.simulate_error(Identity(6), nonnegative_least_squares, np.zeros(6), Identity(6), **arguments)
    # Half of the noises are cut off: the mean of what is left is 1/2 (scale 1), the squares keep half of 2.
    assert np.all(np.abs(result.answer_bias - 0.5) < 5 * np.sqrt(0.75 / 100))
    assert abs(result.squared_error - 1) < 5 * result.standard_error
    assert result.expected == pytest.approx(2)
    again = evaluation.simulate_error(
        Identity(6), nonnegative_least_squares, np.zeros(6), Identity(6), **arguments, memory_limit=100_000
    )
    assert again.squared_error == result.squared_error
    half = evaluation.simulate_error(
        Identity(4), lambda m: m.values, np.ones(4), [[1, 0, 0, 0]], epsilon=1, key=jax.random.key(0), num_draws=2
    )
    assert half.answer_bias.shape == half.answer_expected.shape == (0,)
    open_answer = evaluation.simulate_error(
        Total(3), dp.least_squares, np.ones(3), Identity(3), epsilon=1.0, key=jax.random.key(0), num_draws=2
    )
    assert open_answer.expected == np.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"truth": np.zeros(5)}, r"truth must have shape \[12\] or \[truths, 12\], got \[5\]"),
        ({"epsilon": None}, "Give exactly one of"),
        ({"epsilon": -1}, "epsilon must be positive, got -1"),
        ({"epsilon": [1, 0]}, r"epsilon\[1\] must be positive, got 0"),
        ({"epsilon": np.ones((2, 2))}, "epsilon must have 0 axes, or one more for several budgets"),
        ({"num_draws": 1}, "num_draws must be at least 2"),
        ({"truth": np.full(12, np.nan)}, "truth must be finite"),
        ({"truth": np.zeros((0, 12))}, "truth must hold at least one truth"),
        ({"estimator": lambda m: m.values[:1]}, r"estimator must return 12 cells, or something that has them, got shape \[1\]"),
        ({"workload": Prefix(3)}, "workload must be over the estimate's 12 cells, got 3"),
    ],
)
def test_what_cannot_be_simulated_is_named(arguments, message):
    usual = {"truth": np.zeros(12), "workload": Identity(12), "epsilon": 1.0, "key": jax.random.key(0)}
    with pytest.raises(ValueError, match=message):
        evaluation.simulate_error(TREE, **({"estimator": dp.least_squares} | usual | arguments))
