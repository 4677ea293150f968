"""Products of densities: against quadrature, sums over all integers, and laws that are known."""

import itertools

import numpy as np
import pytest
from scipy.integrate import quad

import dpinfer as dp
from dpinfer.inference.product_laws import product_laws


def known(theta, centers, scales, counts):
    """Up to a constant, one noise after the other in closed forms of one and of two equal noises."""
    found = 1.0
    for center, scale, count in zip(centers, scales, counts, strict=True):
        u = abs(theta - center) / scale
        found *= {0: 1.0, 1: np.exp(-u), 2: (1 + u) * np.exp(-u)}[count]
    return found


@pytest.mark.slow
def test_three_factors_against_quadrature():
    centers = np.array([[0.0, 3.0, -2.0], [5.0, 5.0, 5.0], [0.0, 400.0, 0.0], [7.0, -1.0, 99.0]])
    scales = np.array([[1.0, 2.0, 0.5], [1.0, 3.0, 2.0], [1.0, 9.0, 4.0], [2.0, 1.0, 1.0]])
    counts = np.array([[1, 2, 1], [2, 1, 1], [2, 1, 0], [1, 2, 0]])
    found = product_laws(centers, scales[:, :, None], counts[:, :, None], num_points=1024)
    for i in range(4):
        given = (centers[i], scales[i], counts[i])
        kinks = sorted({center for center, count in zip(centers[i], counts[i], strict=True) if count})
        ends = [kinks[0] - 90, *kinks, kinks[-1] + 90]

        def integral(function, given=given, ends=ends):
            pieces = (np.linspace(a, b, 12) for a, b in itertools.pairwise(ends))
            return sum(
                quad(lambda x: function(x) * known(x, *given), a, b, epsabs=0)[0]
                for piece in pieces
                for a, b in itertools.pairwise(piece)
            )

        total = integral(lambda x: 1.0)
        mean = integral(lambda x: x) / total
        stddev = (integral(lambda x, mean=mean: (x - mean) ** 2) / total) ** 0.5
        assert found.means[i] == pytest.approx(mean, abs=1e-6)
        assert found.stddevs[i] == pytest.approx(stddev, rel=1e-6)
    assert not found.is_lattice.any()
    np.testing.assert_allclose(found.masses.sum(axis=1), 1)


@pytest.mark.slow
def test_integers_against_all_of_them():
    # Two noises of different scales in one factor, a single one in the other: their masses, convolved.
    k = np.arange(-150, 151)
    one, two, three = (np.exp(-np.abs(k) / b) for b in (1.3, 0.6, 2.0))
    pair = np.convolve(one, two)[150:451]
    centers = np.array([[0.0, 6.0], [0.0, 0.0]])
    found = product_laws(centers, [[[1.3, 0.6], [2.0, 2.0]]] * 2, [[[1, 1], [1, 0]]] * 2, is_lattice=True, num_points=256)
    assert found.is_lattice.all()
    for i, center in enumerate((6, 0)):
        weights = pair * np.roll(three, center)
        weights /= weights.sum()
        own = {int(place): mass for place, mass in zip(found.places[i], found.masses[i], strict=True) if mass > 0}
        for value in range(-10, 15):
            assert own[value] == pytest.approx(weights[value + 150], rel=1e-8)


@pytest.mark.slow
def test_one_factor_is_the_law_of_a_sum():
    counts = np.array([[[1, 0]], [[3, 0]], [[2, 1]], [[200, 1]]])
    found = product_laws(np.full((4, 1), 2.5), np.broadcast_to([1.5, 4.0], (4, 1, 2)), counts)
    np.testing.assert_allclose(found.means, 2.5, atol=1e-9)
    for i, (first, second) in enumerate(counts[:, 0].tolist()):
        law = dp.noise.LaplaceSum([1.5] * first + [4.0] * second, 2.5)
        assert found.stddevs[i] == pytest.approx(float(law.variance) ** 0.5, rel=1e-8)
        p = np.array([0.01, 0.3, 0.9])
        ends = [found.quantile(np.full(4, x))[i] for x in p]
        np.testing.assert_allclose(ends, np.asarray(law.icdf(p)), rtol=0, atol=1e-5 * found.stddevs[i])


def test_far_apart():
    # Observations 10,000 and a million scales apart: no nan, and the law is about the one with less noise.
    for far in (1e4, 1e6):
        found = product_laws([[0.0, far]], [[[1.0], [3.0]]], [[[1], [1]]])
        assert found.means[0] == pytest.approx((2 / 3) / (1 - 1 / 9), abs=1e-6)
        assert np.isfinite(found.densities).all()
    assert product_laws(np.zeros((0, 2)), np.zeros((0, 2, 1)), np.zeros((0, 2, 1))).means.size == 0
