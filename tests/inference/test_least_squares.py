"""Least squares for strategies that are no tree, and the answers' intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import weighted_least_squares

import dpinfer as dp
from dpinfer.queries import AllRange, Dense, Identity, Prefix, Ranges, Total, Tree, VStack


@pytest.mark.parametrize(
    "strategy",
    [Prefix(6), AllRange(6), VStack([Identity(6), Total(6)]), VStack([Tree.complete(6, 2), Tree.complete(6, 3)])],
    ids=repr,
)
def test_any_strategy_against_dense_least_squares(strategy):
    rng = np.random.default_rng(0)
    matrix = np.asarray(strategy.dense(), dtype=float)
    values, variances = rng.normal(size=len(matrix)), 10.0 ** rng.uniform(-2, 2, len(matrix))
    if len(matrix) > 6:
        variances[-1] = np.inf
    cells, covariance = weighted_least_squares(matrix, values, variances)
    result = dp.least_squares(dp.Measurement(strategy, values, "gaussian", np.sqrt(variances)))
    np.testing.assert_allclose(result.cells, cells, atol=1e-10 * np.abs(cells).max())
    np.testing.assert_allclose(result.covariance(Identity(6)), covariance, atol=1e-10 * np.abs(covariance).max())
    answers = result.answer(AllRange(6))
    rows = np.asarray(AllRange(6).dense())
    np.testing.assert_allclose(np.square(answers.stddev), np.einsum("ij,jk,ik->i", rows, covariance, rows), rtol=1e-9)


@pytest.mark.slow
def test_the_identity_is_its_own_estimate():
    for n in (1, 2, 5):
        result = dp.least_squares(dp.Measurement(Identity(n), np.arange(float(n)), "laplace", np.arange(1.0, n + 1)))
        np.testing.assert_array_equal(result.cells, np.arange(n))
        np.testing.assert_allclose(result.answer(Total(n)).stddev, [np.sqrt(2 * np.sum(np.arange(1.0, n + 1) ** 2))])


def test_what_is_determined_is_answered_and_what_is_not_is_named():
    strategy = Ranges(5, [0, 2], [2, 4])
    result = dp.least_squares(dp.Measurement(strategy, [10.0, 20.0], "gaussian", [1.0, 2.0]))
    answers = result.answer(Ranges(5, [0, 0], [4, 2]))
    np.testing.assert_allclose(answers.values, [30, 10])
    np.testing.assert_allclose(answers.stddev, [np.sqrt(5), 1])
    with pytest.raises(ValueError, match=r"does not determine 2 of the 3 answers asked for: rows \[1, 2\]"):
        result.answer(Ranges(5, [0, 0, 4], [4, 1, 5]))
    with pytest.raises(ValueError, match="does not determine"):
        result.covariance(Identity(5))
    inside = jax.jit(lambda r: r.answer(Ranges(5, [0, 0], [4, 1])).stddev)(result)
    np.testing.assert_allclose(inside, [np.sqrt(5), np.inf])


@pytest.mark.slow
def test_determined_answers_survive_very_different_noise():
    strategy = VStack([Identity(4), Total(4)])
    result = dp.least_squares(dp.Measurement(strategy, [1.0, 2.0, 3.0, 4.0, 10.0], "gaussian", [1, 1, 1, 1, 1e-5]))
    np.testing.assert_allclose(result.answer(Identity(4)).stddev, np.sqrt(0.75), rtol=1e-6)
    tiny = dp.least_squares(dp.Measurement(Prefix(10), np.arange(10), "gaussian", 1e-100))
    np.testing.assert_allclose(tiny.answer(Total(10)).stddev, 1e-100, rtol=1e-9)


@pytest.mark.slow
def test_derivatives_of_the_dense_solution():
    rng = np.random.default_rng(1)
    strategy = VStack([Identity(4), Total(4)])  # its singular values repeat
    values, spread = jnp.asarray(rng.normal(size=5)), jnp.asarray(rng.uniform(0.5, 2, 5))
    direction = (jnp.asarray(rng.normal(size=5)), jnp.asarray(rng.normal(size=5)))

    @jax.jit
    def loss(v, s):
        result = dp.least_squares(dp.Measurement(strategy, v, "laplace", s))
        return (result.cells**3).sum() + (result.answer(AllRange(4)).stddev ** 2).sum()

    step = 1e-6
    above, below = (loss(values + k * step * direction[0], spread + k * step * direction[1]) for k in (1, -1))
    _, forward = jax.jvp(loss, (values, spread), direction)
    gradient = jax.grad(loss, (0, 1))(values, spread)
    assert float(forward) == pytest.approx(float(above - below) / (2 * step), rel=1e-6)
    backward = sum(float(g @ d) for g, d in zip(gradient, direction, strict=True))
    assert backward == pytest.approx(float(forward), rel=1e-10)
    batch = jax.vmap(loss, (0, None))(jnp.stack([values, 2 * values]), spread)
    np.testing.assert_allclose(batch, [loss(values, spread), loss(2 * values, spread)], rtol=1e-12)


@pytest.mark.slow
def test_workloads_are_checked():
    result = dp.least_squares(dp.Measurement(Tree.complete(4, 2), np.zeros(6), "laplace", 1.0))
    with pytest.raises(ValueError, match="workload must be over the estimate's 4 cells, got 5"):
        result.answer(Identity(5))
    with pytest.raises(ValueError, match="workload must be queries"):
        result.answer("everything")
    batch = jax.vmap(lambda v: dp.least_squares(dp.Measurement(Tree.complete(4, 2), v, "laplace", 1.0)))(jnp.zeros((3, 6)))
    with pytest.raises(ValueError, match="is a batch"):
        batch.answer(Identity(4))
    one_each = jax.vmap(lambda r: r.answer(Total(4)).stddev)(batch)
    assert one_each.shape == (3, 1)


@pytest.mark.slow
def test_host_scales_may_meet_traced_values():
    for strategy in (Tree.complete(9, 3), Tree.from_parents([-1, 0, 0, 1, 1]), Identity(5), Prefix(5)):
        m, n = strategy.shape
        values, scale = jnp.arange(float(m)), np.linspace(1, 2, m)

        def answers(v, strategy=strategy, scale=scale, n=n):
            return dp.least_squares(dp.Measurement(strategy, v, "laplace", scale)).answer(Total(n))

        eager, compiled = answers(values), jax.jit(answers)(values)
        np.testing.assert_allclose(compiled.values, eager.values, rtol=1e-12)
        np.testing.assert_allclose(compiled.stddev, eager.stddev, rtol=1e-12)


def test_normal_intervals():
    result = dp.least_squares(dp.Measurement(Identity(2), [10.0, 20.0], "gaussian", [1.0, 2.0]))
    answers = result.answer(Identity(2))
    lower, upper = answers.interval()
    np.testing.assert_allclose(lower, [10 - 1.959963984540054, 20 - 2 * 1.959963984540054], rtol=1e-12)
    np.testing.assert_allclose(upper, [10 + 1.959963984540054, 20 + 2 * 1.959963984540054], rtol=1e-12)
    np.testing.assert_array_equal(answers.interval(0.95, method="auto"), answers.interval(0.95, method="normal"))
    narrow, wide = answers.interval(0.5), answers.interval(0.999)
    assert np.all(np.asarray(narrow[0]) > np.asarray(wide[0]))
    for level in (0.0, 1.0, -0.5, 95.0, float("nan")):
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            answers.interval(level)
    with pytest.raises(ValueError, match="method must be one of"):
        answers.interval(method="bootstrap")


def test_cells_and_workload_may_be_integers_or_plain_lists():
    release = dp.Release.from_values(Tree.complete(4, 2), [5, 1, 2, 2, 1, 0], noise="discrete_laplace", scale=2)
    result = dp.least_squares(release)
    np.testing.assert_allclose(result.answer([[1, 1, 0, 0]]).values, [np.asarray(result.cells)[:2].sum()])
    np.testing.assert_allclose(result.answer([1, 1, 1, 1]).values, [np.asarray(result.cells).sum()])
    assert isinstance(result.answer(Dense([[1, 0, 0, 1]])), dp.Answers)
