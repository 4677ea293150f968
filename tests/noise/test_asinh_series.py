"""Series in asinh(z / unit): functions that are known, laws of sums far out, and few terms where few are needed."""

import jax.numpy as jnp
import numpy as np
import pytest

from dpinfer.noise.asinh_series import AsinhSeries, evaluated, fitted


def values(series: AsinhSeries, z: np.ndarray) -> np.ndarray:
    return np.asarray(evaluated(jnp.asarray(z), AsinhSeries(*map(jnp.asarray, series))))


def test_known_functions():
    unit, least, most = np.array([1.0, 2.0, 0.5]), np.array([0.0, 1.0, 0.0]), np.array([60.0, 1e6, 5.0])
    widths = np.array([1.0, 0.3, 3.0])
    asked = []

    def function(z, rows):
        asked.append(rows.tolist())
        return peak(z, unit[rows, None], widths[rows, None])

    def peak(z, unit, width):
        return 1 / (1 + np.square((np.arcsinh(z / unit) - 1) / width))

    series = fitted(function, unit, least, most)
    z = np.stack(
        [np.concatenate([[low], np.geomspace(max(low, 1e-3), high, 300)]) for low, high in zip(least, most, strict=True)]
    )
    np.testing.assert_allclose(values(series, z), peak(z, unit[:, None], widths[:, None]), rtol=0, atol=1e-8)
    # Those that need more values get more, and at new points only.
    assert asked[0] == [0, 1, 2]
    assert len(asked) > 1
    assert set(asked[-1]) < {0, 1, 2}


def test_several_functions_of_one_row_and_short_series():
    series = fitted(
        lambda z, _: np.stack([np.full(z.shape, 3.0), np.arcsinh(z)], axis=-1), np.ones(1), np.zeros(1), np.array([100.0])
    )
    assert series.coefficients.shape == (1, 2, 2)
    own = series._replace(coefficients=series.coefficients[0].T)
    z = np.array([[0.0, 0.1, 7.0, 100.0]])
    np.testing.assert_allclose(values(own, z), [[3.0] * 4, np.arcsinh(z[0])], rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [0.0, 1e-12])
def test_no_room(most):
    series = fitted(lambda z, _: np.cosh(z), np.ones(1), np.zeros(1), np.array([most]))
    np.testing.assert_allclose(values(series, np.zeros((1, 1))), [[1.0]], atol=1e-12)
