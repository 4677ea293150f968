"""Standard deviations of the noise laws against sums of their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpinfer import noise


@pytest.mark.parametrize("scale", [0.05, 0.3, 0.9, 1.0, 1.7, 1.999, 2.0, 3.3, 40.0])
def test_discrete_laws_against_their_definition(scale):
    k = np.arange(-4000, 4001).astype(float)
    laplace = np.exp(-np.abs(k) / scale)
    gaussian = np.exp(-(k**2) / (2 * scale**2))
    for name, mass in (("discrete_laplace", laplace), ("discrete_gaussian", gaussian)):
        truth = np.sqrt((k**2 * mass).sum() / mass.sum())
        assert float(noise.stddev(name, scale)) == pytest.approx(truth, rel=1e-12, abs=1e-80)


def test_continuous_laws():
    assert noise.stddev("laplace", 3.0) == pytest.approx(3 * np.sqrt(2), rel=1e-15)
    assert noise.stddev("gaussian", 3.0) == 3.0


@pytest.mark.parametrize("name", noise.NAMES)
def test_scale_and_stddev_invert_each_other_and_keep_the_ends(name):
    scale = np.array([0.0, 0.4, 1.0, 1.95, 7.0, 1e6, np.inf])
    for module in (np, jnp):
        spread = noise.stddev(name, module.asarray(scale))
        assert spread[0] == 0
        assert np.isinf(spread[-1])
        np.testing.assert_allclose(noise.scale_from_stddev(name, spread), scale, rtol=1e-9)


@pytest.mark.parametrize("name", noise.NAMES)
def test_derivatives_are_finite_and_right(name):
    def spread(scale):
        return noise.stddev(name, scale)

    for scale in (0.3, 1.2, 5.0):
        step = 1e-6 * scale
        difference = (spread(scale + step) - spread(scale - step)) / (2 * step)
        assert jax.grad(spread)(scale) == pytest.approx(difference, rel=1e-6)
    for end in (0.0, np.inf):
        assert np.isfinite(jax.grad(spread)(end))


@pytest.mark.parametrize("name", noise.NAMES)
def test_float32_stays_float32(name):
    assert noise.stddev(name, jnp.float32(2.5)).dtype == jnp.float32
