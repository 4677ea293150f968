"""Multiplicative weights: the update by hand, what is kept, transforms, and where the steps lead."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference.multiplicative_weights import multiplicative_weights
from dpinfer.queries import Dense, Haar, Identity, Prefix, Ranges, Total

RANGES = Ranges(6, [0, 2, 1], [3, 5, 6])


def by_hand(matrix, values, total, passes):
    x = np.full(matrix.shape[1], total / matrix.shape[1])
    for _ in range(passes):
        for q, y in zip(matrix, values, strict=True):
            x = x * np.exp(q * (y - q @ x) / (2 * total))
            x = x * total / x.sum()
    return x


@pytest.mark.parametrize("queries", [RANGES, Haar(8), Identity(3)])
@pytest.mark.parametrize("passes", [1, 7])
def test_steps_are_those_of_the_paper(queries, passes):
    values = np.random.default_rng(passes).normal(20, 15, queries.shape[0])
    found = multiplicative_weights(dp.Measurement(queries, values, "laplace", 2.0), 40, passes=passes)
    expected = by_hand(np.asarray(queries.dense(), float), values, 40.0, passes)
    np.testing.assert_allclose(found.cells, expected, rtol=1e-10)
    residual = np.abs(np.asarray(queries.dense()) @ expected - values).max() / 40
    assert float(found.residual) == pytest.approx(residual)


def test_the_total_is_kept_and_cells_are_not_negative():
    for values in ([1e6, -1e6, 3.0], [0.0, 0.0, 0.0], [-5.0, -5.0, -5.0]):
        found = multiplicative_weights(dp.Measurement(RANGES, np.array(values), "laplace", 2.0), 12.5)
        assert float(found.cells.sum()) == pytest.approx(12.5)
        assert float(found.cells.min()) >= 0
        assert float(found.answer(Total(6)).values[0]) == pytest.approx(12.5)
        with pytest.raises(ValueError, match="multiplicative_weights gives no intervals"):
            found.answer(Total(6)).interval()


def test_rows_that_were_not_measured_are_left_out():
    values = np.array([7.0, 9.0, 11.0])
    some = dp.Measurement(RANGES, values, "laplace", np.array([2.0, np.inf, 2.0]))
    fewer = dp.Measurement(Ranges(6, [0, 1], [3, 6]), values[[0, 2]], "laplace", 2.0)
    np.testing.assert_allclose(multiplicative_weights(some, 15).cells, multiplicative_weights(fewer, 15).cells, rtol=1e-12)
    none = dp.Measurement(RANGES, values, "laplace", np.inf)
    np.testing.assert_allclose(multiplicative_weights(none, 15).cells, 2.5)


def test_run_to_the_end_it_has_the_largest_entropy():
    measurement = dp.Measurement(Ranges(6, [0, 2], [3, 5]), np.array([7.0, 4.0]), "laplace", 2.0)
    found = multiplicative_weights(measurement, 12, passes=5000)
    # The answers are met by cells whose logarithms are sums of a number for each query: no others have as large an entropy.
    assert float(found.residual) < 1e-12
    x = np.asarray(found.cells)
    np.testing.assert_allclose([x[0], x[3], x[0] * x[3]], [x[1], x[4], x[2] * x[5]], rtol=1e-9)


@pytest.mark.slow
def test_transforms():
    values = jnp.asarray(np.random.default_rng(0).uniform(0, 30, (3, 3)))

    def cells(values, total):
        return multiplicative_weights(dp.Measurement(RANGES, values, "laplace", 2.0), total, passes=5).cells

    each = jnp.stack([cells(v, 40.0) for v in values])
    np.testing.assert_allclose(jax.jit(cells)(values[0], 40.0), each[0], rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(lambda v: cells(v, 40.0))(values), each, rtol=1e-12)
    direction, step = jnp.array([1.0, -2.0, 0.5]), 1e-5
    slope = jax.jvp(lambda v: cells(v, 40.0), (values[0],), (direction,))[1]
    far, near = cells(values[0] + step * direction, 40.0), cells(values[0] - step * direction, 40.0)
    np.testing.assert_allclose(slope, (far - near) / (2 * step), rtol=1e-5, atol=1e-9)
    weight = jnp.arange(6.0)
    gradient = jax.grad(lambda v: weight @ cells(v, 40.0))(values[0])
    assert float(gradient @ direction) == pytest.approx(float(weight @ slope))


def test_integers_and_releases():
    release = dp.measure(np.arange(9), Prefix(9), epsilon=5)
    found = multiplicative_weights(release, total=36)
    assert found.cells.dtype == jnp.float64
    assert found.cells.shape == (9,)


def test_what_is_wrong_is_named():
    measurement = dp.Measurement(RANGES, np.zeros(3), "laplace", 2.0)
    for total in (0, -1, np.nan, np.inf, [1.0]):
        with pytest.raises(ValueError, match="total must be one positive number"):
            multiplicative_weights(measurement, total)
    with pytest.raises(ValueError, match="passes must be at least 1"):
        multiplicative_weights(measurement, 1, passes=0)
    with pytest.raises(ValueError, match="measurement must be of queries with entries from -1 to 1"):
        multiplicative_weights(dp.Measurement(Dense(np.array([[2, 0]])), np.zeros(1), "laplace", 1.0), 1)
