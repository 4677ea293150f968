"""Posteriors under priors of the cells: against tables of all cells, the flat prior, and cells drawn from the prior."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

import dpinfer as dp
from dpinfer.inference import CellPrior, lattice_laws, mmse, poisson_gamma
from dpinfer.queries import Identity, Prefix, Ranges, Total
from tests.noisy_regions import release

INTEGERS = CellPrior(np.zeros_like, lower=0.0, integers=True)
POISSON = CellPrior(lambda x: x * np.log(5.0) - gammaln(x + 1), lower=0.0, integers=True)


def test_known_means():
    # By quadrature and sums elsewhere.
    pair = release([3.2, -2.1], 4.0, 2, 4)
    queries = [[1, 0], [0, 1], [1, 1]]
    found = mmse(pair, queries, prior="nonnegative")
    np.testing.assert_allclose(found.mean, [3.2782356, 1.5419180, 3.2782356 + 1.5419180], atol=1e-4)
    found = mmse(pair, queries, prior=INTEGERS)
    np.testing.assert_allclose(found.mean, [3.2987587334247124, 1.161664264609312, 4.460422998034024], atol=1e-8)
    found = mmse(pair, queries, prior=POISSON)
    np.testing.assert_allclose(found.mean, [3.5309375863195083, 2.4634265204207795, 5.994364106740288], atol=1e-8)
    three = mmse(release([3.2, -2.1, 9.7], 4.0, 2, 4), [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], prior=POISSON)
    np.testing.assert_allclose(
        three.mean, [3.4344251864456896, 2.3626240893904167, 6.056464159689345, 11.853513435525452], atol=1e-8
    )


@pytest.mark.parametrize("law", ["laplace", "discrete_laplace"])
def test_a_table_of_all_integers(law):
    # Two regions, one of three cells, one of a cell whose sum is not measured, and a fifth cell far below 0.
    labels, b, scales = np.array([0, 0, 1, 0, 2]), 1.2, np.array([0.9, np.inf, 2.0])
    values = np.array([2.0, -1.0, 1.0, 3.0, -9.0]) if law == "discrete_laplace" else np.array([2.3, -1.4, 0.6, 3.1, -9.2])
    sums = np.array([7.0, 50.0, -3.0])
    prior = poisson_gamma(0.7, 0.4)
    queries = np.array([[1, 0, 0, 0, 0], [0, 1, 0, 1, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]])
    found = mmse(release(values, sums, b, scales, labels, law), queries, prior=prior)
    k = np.arange(26)
    log_prior = stats.nbinom.logpmf(k, 0.7, 0.4 / 1.4)
    log = [log_prior - np.abs(y - k) / b for y in values]
    cells = np.array(list(product(k, k, k)))
    table = log[0][cells[:, 0]] + log[1][cells[:, 1]] + log[3][cells[:, 2]] - np.abs(7 - cells.sum(axis=1)) / 0.9
    last = log[4] - np.abs(-3 - k) / 2
    parts = {
        0: (cells, np.exp(table - table.max())),
        1: (k[:, None], np.exp(log[2] - log[2].max())),
        2: (k[:, None], np.exp(last - last.max())),
    }
    members = {0: [0, 1, 3], 1: [2], 2: [4]}
    for i, query in enumerate(queries):
        mass = np.ones(1)
        for region, (own, weight) in parts.items():
            mass = np.convolve(mass, np.bincount(own @ query[members[region]], weight / weight.sum()))
        grid = np.arange(mass.size)
        mean = mass @ grid
        assert found.mean[i] == pytest.approx(mean, rel=1e-9, abs=1e-9)
        assert found.stddev[i] == pytest.approx((mass @ np.square(grid - mean)) ** 0.5, rel=1e-8)
        places, masses = found.density(i)
        for value in range(12):
            assert masses[places == value].sum() == pytest.approx(mass[value], abs=1e-11)
        lower, upper = (end[i] for end in found.interval(0.9))
        assert mass[grid < lower].sum() <= 0.05 < mass[grid <= lower].sum()
        assert mass[grid <= upper].sum() >= 0.95 > mass[grid < upper].sum()


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.0, 8.0, -300.0])
def test_a_flat_log_density_is_the_flat_prior(delta):
    for b1, b2 in ((1.0, 3.0), (3.0, 1.0), (1.0, 1.0), (1.0, 0.1)):
        measurement = release([1.7, -3.0, 0.4], delta - 0.9, b1, b2)
        found, flat = mmse(measurement, Prefix(3), prior=np.zeros_like), mmse(measurement, Prefix(3))
        np.testing.assert_allclose(found.mean, flat.mean, atol=1e-3 * b1)
        np.testing.assert_allclose(found.stddev, flat.stddev, rtol=7e-4)
        for level in (0.5, 0.95):
            np.testing.assert_allclose(found.interval(level), flat.interval(level), atol=2e-3 * b1 + 1e-4 * abs(delta))


@pytest.mark.slow
def test_densities_of_real_cells_against_a_table():
    # An exponential prior of cells above -1, with its jump, and a noisy sum that is far off.
    prior = CellPrior(lambda x: -0.4 * x, lower=-1.0)
    values, total, b1, b2 = np.array([0.35, 2.0]), 9.0, 1.0, 1.7
    found = mmse(release(values, total, b1, b2), [[1, 0], [1, 1]], prior=prior)
    x = -1 + (np.arange(3000) + 0.5) * 0.01
    first, second = np.meshgrid(x, x, indexing="ij")
    log = -(np.abs(values[0] - first) + np.abs(values[1] - second)) / b1 - np.abs(total - first - second) / b2
    weights = np.exp(log - 0.4 * (first + second))
    weights /= weights.sum()
    for i, own in enumerate((first, first + second)):
        mean = (weights * own).sum()
        assert found.mean[i] == pytest.approx(mean, abs=1e-3)
        assert found.stddev[i] == pytest.approx((weights * np.square(own - mean)).sum() ** 0.5, abs=1e-3)
        lower, upper = (end[i] for end in found.interval(0.8))
        assert weights[own < lower].sum() == pytest.approx(0.1, abs=3e-3)
        assert weights[own > upper].sum() == pytest.approx(0.1, abs=3e-3)


def test_a_sum_that_few_cells_must_make_up_for():
    # Against a table: the prior falls faster than the noise of cells, and the noise of the sum faster than the prior.
    prior = poisson_gamma(0.5, 0.1)
    found = mmse(release([5.0, 0.0], 300.0, 1000.0, 1.0, law="discrete_laplace"), [[1, 0], [1, 1]], prior=prior)
    k = np.arange(700)
    first, second = np.meshgrid(k, k, indexing="ij")
    log = prior.at(k.astype(float))[first] + prior.at(k.astype(float))[second] - np.abs(300 - first - second)
    log = log - (np.abs(5 - first) + second) / 1000
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    for i, own in enumerate((first, first + second)):
        mean = (weights * own).sum()
        assert found.mean[i] == pytest.approx(mean, rel=1e-9)
        assert found.stddev[i] == pytest.approx((weights * np.square(own - mean)).sum() ** 0.5, rel=1e-8)


def test_single_cells_at_once_and_one_by_one(monkeypatch):
    rng = np.random.default_rng(3)
    cells = rng.negative_binomial(0.5, 0.1, 40)
    measurement = release(cells + np.round(rng.laplace(0, 4, 40)), cells.sum() - 7, 4, 6, law="discrete_laplace")
    prior = poisson_gamma(0.5, 0.1 / 0.9)
    found = mmse(measurement, prior=prior)
    few = mmse(measurement, [np.eye(40)[3], np.eye(40)[17]], prior=prior)
    np.testing.assert_allclose(found.mean[[3, 17]], few.mean, rtol=1e-9)
    # Cells add up to the sum, on average.
    assert found.mean.sum() == pytest.approx(mmse(measurement, Total(40), prior=prior).mean[0], rel=1e-9)
    monkeypatch.setattr(lattice_laws, "_AT_ONCE", 4096)
    blocks = mmse(measurement, prior=prior)
    np.testing.assert_allclose(blocks.mean, found.mean, rtol=1e-9)
    np.testing.assert_allclose(blocks.stddev, found.stddev, rtol=1e-9)


@pytest.mark.slow
def test_coverage_and_error_of_cells_from_the_prior():
    rng, n = np.random.default_rng(5), 1500
    cells = rng.negative_binomial(0.3, 0.05, n)
    labels = np.repeat(np.arange(n // 10), 10)
    sums = np.bincount(labels, cells)
    b1, b2 = 8.0, 3.0
    noisy = cells + np.round(rng.laplace(0, b1, n)), sums + np.round(rng.laplace(0, b2, sums.size))
    measurement = release(*noisy, b1, b2, labels, "discrete_laplace")
    flat = mmse(measurement)
    found = {
        prior if isinstance(prior, str) else "gamma": mmse(measurement, prior=prior)
        for prior in ("nonnegative", poisson_gamma(0.3, 0.05 / 0.95))
    }
    errors = [np.square(x.mean - cells).mean() for x in (found["gamma"], found["nonnegative"], flat)]
    assert errors[0] < 0.8 * errors[1] < 0.8 * errors[2]
    own = found["gamma"]
    # Of integers no less than said.
    lower, upper = own.interval(0.9)
    assert ((lower <= cells) & (cells <= upper)).mean() > 0.9 - 4 * (0.09 / n) ** 0.5
    z = (own.mean - cells) / own.stddev
    assert abs(np.square(z).mean() - 1) < 0.25
    pairs = Ranges(n, 10 * np.arange(n // 10) + 4, np.minimum(10 * np.arange(n // 10) + 15, n))
    own = mmse(measurement, pairs, prior=poisson_gamma(0.3, 0.05 / 0.95))
    lower, upper = own.interval(0.9)
    truth = np.asarray(pairs @ cells)
    assert ((lower <= truth) & (truth <= upper)).mean() > 0.9 - 4 * (0.09 * 20 / n) ** 0.5


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ("jeffreys", "prior must be one of"),
        (3, "prior must be one of .*, a CellPrior, or a log density, got int"),
        (lambda x: 0.0, "prior must give a log density for each of its argument's entries"),
        (lambda x: np.full(x.shape, np.nan), "below inf, and -inf where no cell can be; it gave nan or inf"),
        (CellPrior(lambda x: np.where(x < 900, -np.inf, 0.0), integers=True), "it is -inf all around some noisy cell"),
    ],
)
def test_bad_priors_are_named(prior, message):
    with pytest.raises(ValueError, match=message):
        mmse(release([1.0, 2.0], 4.0, 1, 2), prior=prior)


def test_bad_arguments_are_named():
    measurement = release([1.0, 2.0], 4.0, 1, 2)
    with pytest.raises(ValueError, match="prior must be flat with observations"):
        mmse(measurement, [[1, 0]], prior="nonnegative", observations=[[[1, 0, 0]]])
    with pytest.raises(ValueError, match="shape must be positive, got 0"):
        poisson_gamma(0, 1)
    with pytest.raises(ValueError, match="prior needs masses on more than 524,288 points a cell, steps of 1"):
        mmse(release([1.0, 2.0], 4.0, 1e5, 2e5), prior=INTEGERS)
    # Cells between 0 and 9, a priori, whose sum is a thousand.
    few = CellPrior(lambda x: np.where(x > 9, -np.inf, 0.0), lower=0.0, integers=True)
    assert mmse(release([1.0, 2.0], 1000.0, 1.0, 2.0), prior=few).mean.max() < 9
    # Nothing measured about sums: the noisy cells alone.
    alone = mmse(dp.Measurement(Identity(2), [-3.0, 4.0], "laplace", 1.0), prior="nonnegative")
    assert alone.mean[0] == pytest.approx(1.0, abs=1e-3)
    assert mmse(measurement, [[0, 0]], prior=POISSON).mean.tolist() == [0]
