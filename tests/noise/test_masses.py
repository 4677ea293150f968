"""Laws on a grid: printed masses, closed forms in the far cells, and the two algorithms that are there for reference."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import Normal

from dpinfer.noise import DiscreteLaplace, LaplaceSum, convolved_masses, discretize, sampled_masses

EXPECTED = json.loads((Path(__file__).parents[1] / "expected" / "laplace_sums.json").read_text())


def entries(key):
    return [(entry["inputs"], entry["expected"]) for entry in EXPECTED if entry["key"] == key]


def arrays(found):
    return tuple(np.asarray(x) for x in found)


def laplace_cells(scale, step, loc, first, last):
    """P((k - 1/2) step < X <= (k + 1/2) step) for k = first .. last of a single Laplace noise around ``loc``."""
    masses = []
    for k in range(first, last + 1):
        lower, upper = sorted(abs(x) for x in ((k - 0.5) * step - loc, (k + 0.5) * step - loc))
        if (k - 0.5) * step < loc < (k + 0.5) * step:
            masses.append(-(math.expm1(-lower / scale) + math.expm1(-upper / scale)) / 2)
        else:
            masses.append(-math.exp(-lower / scale) * math.expm1((lower - upper) / scale) / 2)
    return np.array(masses)


def variance(found):
    points, masses, _ = arrays(found)
    return masses @ points**2 - (masses @ points) ** 2


# ---- discretize


@pytest.mark.parametrize("key", ["disc_laplace_pmf", "disc_sum_pmf"])
@pytest.mark.parametrize("number", range(3))
def test_expected_masses(key, number):
    x, values = entries(key)[number]
    assert len(entries(key)) == 3
    points, masses, missing = arrays(discretize(LaplaceSum(np.full(x.get("n", 1), x["b"]))))
    middle = int(np.flatnonzero(points == 0)[0])
    for sign in (1, -1):
        np.testing.assert_allclose(masses[middle + sign * np.array(x["k"])], values, rtol=1e-11)
    assert masses.sum() + missing == pytest.approx(1, abs=1e-14)
    # Up to a cell more at either end than needed.
    assert 1e-15 * math.exp(-2 / x["b"]) < missing <= 1e-15


@pytest.mark.parametrize(("scale", "step", "loc"), [(10.0, 1.0, 0.3), (20.0, 7.0, -7.75)])
def test_far_cells_keep_their_accuracy(scale, step, loc):
    points, masses, missing = arrays(discretize(LaplaceSum(np.array([scale]), loc), step, missing=1e-200))
    k = np.rint(points / step).astype(int)
    np.testing.assert_allclose(points, k * step, rtol=1e-15)
    np.testing.assert_array_equal(np.diff(k), 1)
    np.testing.assert_allclose(masses, laplace_cells(scale, step, loc, k[0], k[-1]), rtol=1e-11)
    assert masses.min() < 1e-195
    assert missing <= 1e-200
    assert masses.sum() == pytest.approx(1, abs=1e-14)
    # What is left out is exactly that.
    below, above = loc - (k[0] - 0.5) * step, (k[-1] + 0.5) * step - loc
    assert missing == pytest.approx((math.exp(-below / scale) + math.exp(-above / scale)) / 2, rel=1e-11)


def test_masses_of_one_noise_in_closed_form():
    b = 10.0
    points, masses, _ = arrays(discretize(LaplaceSum(np.array([b]))))
    truth = np.where(points == 0, -np.expm1(-1 / (2 * b)), np.exp(-np.abs(points) / b) * np.sinh(1 / (2 * b)))
    np.testing.assert_allclose(masses, truth, rtol=1e-12)


def test_masses_are_differences_of_the_cdf():
    law = LaplaceSum(np.full(2, 20.0))
    points, masses, _ = arrays(discretize(law))
    differences = np.asarray(law.cdf(points + 0.5)) - np.asarray(law.cdf(points - 0.5))
    # Below the centre the cdf keeps its digits, but for those that it shares with the next; above they are those of 1.
    np.testing.assert_allclose(masses[points < 0], differences[points < 0], rtol=1e-11)
    np.testing.assert_allclose(masses, differences, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize(("loc", "step"), [(3.0, 1.0), (0.0, 2.0), (0.5, 1.0)])
def test_discrete_laws_on_any_grid(loc, step):
    # Cells are open below and closed above, which matters where a value of the law lies on the edge of one.
    points, masses, missing = arrays(discretize(DiscreteLaplace(2.0, loc), step))
    away = np.arange(-200, 201)
    values, probabilities = loc + away, math.tanh(0.25) * np.exp(-np.abs(away) / 2.0)
    truth = [probabilities[(values > point - step / 2) & (values <= point + step / 2)].sum() for point in points]
    assert masses.sum() + missing == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(masses, truth, rtol=1e-11)


def test_refuses_what_it_cannot_discretize():
    law = LaplaceSum(np.array([2.0]))
    with pytest.raises(ValueError, match="law must be one of"):
        discretize(Normal(0.0, 1.0))
    with pytest.raises(ValueError, match="one at a time"):
        discretize(LaplaceSum(np.ones((3, 1))))
    with pytest.raises(ValueError, match="one at a time"):
        discretize(DiscreteLaplace(np.ones(2)))
    for step in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="step must be positive"):
            discretize(law, step)
    for missing in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="missing must be between"):
            discretize(law, missing=missing)


# ---- The algorithms for reference


@pytest.mark.parametrize(("scale", "n", "gap"), [(10.0, 2, 1.5e-4), (1.0, 10, 0.017)])
def test_a_sum_of_rounded_noises_is_not_the_rounded_sum(scale, n, gap):
    rounded, convolved = discretize(LaplaceSum(np.full(n, scale))), convolved_masses([scale] * n)
    assert float(convolved.masses.sum()) + float(convolved.missing) == pytest.approx(1, abs=1e-12)
    # cosh(x) / (2 sinh(x)^2) with x = 1/(2b) is the variance of a rounded noise, about 2 b^2 + 1/12.
    x = 1 / (2 * scale)
    assert variance(convolved) == pytest.approx(n * math.cosh(x) / (2 * math.sinh(x) ** 2), rel=1e-9)
    assert variance(convolved) - 2 * n * scale**2 == pytest.approx(n / 12, rel=0.1)
    assert variance(rounded) - 2 * n * scale**2 == pytest.approx(1 / 12, rel=0.1)
    points, exact, _ = arrays(rounded)
    reach = int(points[-1])
    middle = convolved.masses.size // 2
    inner = np.asarray(convolved.masses)[middle - reach : middle + reach + 1]
    np.testing.assert_array_equal(np.asarray(convolved.points)[middle - reach : middle + reach + 1], points)
    assert np.abs(inner - exact).sum() == pytest.approx(gap, rel=0.1)


def test_convolved_masses_by_enumeration():
    one, two = (arrays(discretize(LaplaceSum(np.array([scale])))) for scale in (10.0, 0.5))
    points, masses, missing = arrays(convolved_masses([10.0, 0.5]))
    sums = one[0][:, None] + two[0]
    for i in range(0, points.size, 40):
        truth = (one[1][:, None] * two[1])[sums == points[i]].sum()
        assert masses[i] == pytest.approx(truth, rel=1e-12)
    assert missing == pytest.approx(one[2] + two[2], abs=5e-16)
    single = arrays(convolved_masses([10.0]))
    np.testing.assert_array_equal(single[0], one[0])
    np.testing.assert_array_equal(single[1], one[1])


@pytest.mark.parametrize(("scales", "step"), [([20.0], 1.0), ([5.0], 0.5), ([4.0, 4.0], 0.2)])
def test_sampled_masses_come_as_near_as_a_proportion_does(scales, step):
    num_draws = 40_000
    points, masses, missing = arrays(sampled_masses(scales, num_draws, key=jax.random.key(0), step=step))
    assert masses.sum() == pytest.approx(1, abs=1e-12)
    assert missing == 0
    np.testing.assert_allclose(masses * num_draws, np.rint(masses * num_draws), rtol=1e-12)
    exact = discretize(LaplaceSum(np.array(scales)), step)
    law = dict(zip(np.rint(np.asarray(exact.points) / step).astype(int).tolist(), np.asarray(exact.masses), strict=True))
    drawn = dict(zip(np.rint(points / step).astype(int).tolist(), masses, strict=True))
    distance = sum(abs(law.get(k, 0.0) - drawn.get(k, 0.0)) for k in law | drawn)
    p = np.asarray(exact.masses)
    assert 2 / 3 < distance / np.sqrt(2 * p * (1 - p) / (np.pi * num_draws)).sum() < 1.5


def test_sampled_masses_are_the_same_for_the_same_key():
    first, again, other = (sampled_masses([3.0], 500, key=jax.random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(first.masses, again.masses)
    assert first.masses.shape != other.masses.shape or np.any(np.asarray(first.masses) != np.asarray(other.masses))


def test_the_algorithms_refuse_bad_arguments():
    key = jax.random.key(0)
    for bad in (0, -1, True):
        with pytest.raises(ValueError, match="num_draws must be"):
            sampled_masses([1.0], bad, key=key)
    with pytest.raises(ValueError, match="key must be"):
        sampled_masses([1.0], 10, key=jnp.arange(3))
    for scales in (1.0, [], [[1.0]], [1.0, -1.0], [0.0], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="scales must be a row"):
            sampled_masses(scales, 10, key=key)
        with pytest.raises(ValueError, match="scales must be a row"):
            convolved_masses(scales)
    for step in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="step must be positive"):
            sampled_masses([1.0], 10, key=key, step=step)
        with pytest.raises(ValueError, match="step must be positive"):
            convolved_masses([1.0], step)
