"""Posteriors given that neighbours are alike: against quadrature, a flat prior's, closed forms, and simulated coverage."""

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import mmse
from dpinfer.inference.neighborhood import _equal_evidence, _log_weights, neighborhood_posterior
from dpinfer.queries import Identity, Partition, VStack
from tests.noisy_regions import release


@pytest.mark.slow
def test_two_cells():
    # By quadrature elsewhere; the spread between them known.
    measurement = release([0.0, 4.0], 10.0, 1, 3)
    for spread, mean, near in (
        (0, [3.306162980779308] * 2, 1e-8),
        (0.3, [3.2058], 6e-5),
        (1, [2.3599699556844307, 3.544199231052017], 2e-5),
        (3, [1.0354953348326417, 4.239845373259497], 2e-5),
        (30, [0.663768797001311, 4.65286437625317], 2e-5),
    ):
        found = neighborhood_posterior(measurement, 2, spreads=[spread])
        np.testing.assert_allclose(found.mean[: len(mean)], mean, atol=near)
        np.testing.assert_allclose(found.mean, neighborhood_posterior(measurement, (1, 2), spreads=spread).mean)
    # In other units, and as the product that it is when there is no spread.
    scaled = neighborhood_posterior(release([0.0, 28.0], 70.0, 7, 21), 2, spreads=[1])
    np.testing.assert_allclose(scaled.mean, [7 * 2.35997, 7 * 3.54420], atol=2e-4)
    x = np.linspace(-20, 20, 40_001)
    density = np.exp(-np.abs(x) - np.abs(x - 4) - np.abs(10 - 2 * x) / 3)
    found = neighborhood_posterior(measurement, 2, spreads=0)
    mean = (x * density).sum() / density.sum()
    assert found.stddev[0] == pytest.approx(((x - mean) ** 2 @ density / density.sum()) ** 0.5, abs=1e-6)
    upper = found.interval(0.9)[1]
    assert density[x < upper[0]].sum() / density.sum() == pytest.approx(0.95, abs=1e-4)


def nodes(kink, reach=30.0):
    """Gauss-Legendre nodes and weights on either side of a kink."""
    t, w = np.polynomial.legendre.leggauss(14)
    ends = kink + reach * np.concatenate([-((np.arange(4, 0, -1) / 4) ** 2), (np.arange(5) / 4) ** 2])
    half = np.diff(ends)[:, None] / 2
    return (half * t + (ends[1:] + ends[:-1])[:, None] / 2).ravel(), (half * w).ravel()


@pytest.mark.slow
def test_three_cells_and_a_fourth_by_quadrature():
    # The second of four in a row: of the fourth's noise and that of the sum the law is known.
    y, total, b = np.array([-1.3, 0.4, 2.7, 5.0]), 11.0, 3.0
    (x1, w1), (x2, w2), (x3, w3) = (nodes(value) for value in y[:3])
    a, c, d = np.meshgrid(x1, x2, x3, indexing="ij")
    off = np.abs(total - y[3] - a - c - d)
    noise = (b * np.exp(-off / b) - np.exp(-off)) / (2 * (b * b - 1))
    likely = noise * np.exp(-np.abs(a - y[0]) - np.abs(c - y[1]) - np.abs(d - y[2]))
    for spread in (0.5, 1, 3, 20):
        apart = np.square([a, c, d]).sum(axis=0) - np.square(a + c + d) / 3
        density = np.einsum("acd,a,c,d->c", likely * np.exp(-apart / (2 * spread**2)), w1, w2, w3)
        density /= density.sum()
        mean = x2 @ density
        found = neighborhood_posterior(release(y, total, 1, b), 4, spreads=[spread])
        assert found.mean[1] == pytest.approx(mean, abs=2e-4)
        assert found.stddev[1] == pytest.approx(np.square(x2 - mean).dot(density) ** 0.5, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sum_scale", [0.05, 3.0])
def test_neighbours_that_may_be_anything_say_nothing(sum_scale):
    # Then it is the posterior under a flat prior, whatever they are and however far the sum is off.
    y = np.random.default_rng(1).normal(size=6) * 2
    for off, near in ((6.0, 4e-4), (50.0, 8e-3)):
        measurement = release(y, y.sum() + off, 1, sum_scale)
        flat = mmse(measurement)
        found = neighborhood_posterior(measurement, (2, 3), spreads=[1e4], distance=1.5)
        np.testing.assert_allclose(found.mean, flat.mean, atol=near)
        np.testing.assert_allclose(found.stddev, flat.stddev, rtol=near / 4)


@pytest.mark.slow
def test_large_regions_are_treated_as_small_ones(monkeypatch):
    # Of 60 cells: with the density of mu, and without.
    import dpinfer.inference.neighborhood as module

    rng = np.random.default_rng(3)
    y = 5 + rng.laplace(size=60)
    measurement = release(y, 320.0, 1, 3)
    quick = [neighborhood_posterior(measurement, (6, 10), spreads=[spread]) for spread in (0.5, 1)]
    monkeypatch.setattr(module, "TOLERANCE", 0.0)
    for spread, one in zip((0.5, 1), quick, strict=True):
        other = neighborhood_posterior(measurement, (6, 10), spreads=[spread])
        assert (np.abs(one.mean - y) > 0.5).any()
        assert not np.array_equal(one.mean, other.mean)
        np.testing.assert_allclose(one.mean, other.mean, atol=6e-4)
        np.testing.assert_allclose(one.stddev, other.stddev, atol=3e-4)


@pytest.mark.slow
def test_without_a_sum():
    # Two cells alone: with no spread the mean is between them, by symmetry; and nothing else is said where nothing was measured.
    y = np.array([1.0, 4.0, 4.0])
    alone = dp.Measurement(VStack((Identity(3), Partition([0, 0, 1]))), [*y, 99.0, 99.0], "laplace", [2.0] * 3 + [np.inf] * 2)
    for spread in (0, 0.5, 2):
        found = neighborhood_posterior(alone, 3, spreads=[spread])
        assert found.mean[:2].sum() == pytest.approx(5, abs=1e-6)
        assert found.mean[0] - 1 > 0.1
        # The third is in another region.
        assert found.mean[2] == pytest.approx(4)
        assert found.stddev[2] == pytest.approx(2 * 2**0.5, abs=1e-5)
    assert neighborhood_posterior(alone, 3, spreads=0).mean[0] == pytest.approx(2.5, abs=1e-6)


def test_weights_are_those_of_least_surprise():
    # Three cells with no spread: of exp(-sum |y - x|) / 8 the integral.
    y = np.array([[0.3, -1.2, 2.0], [1.0, 1.0, 1.0], [0.0, 5.0, 0.0]])
    has = np.array([[True] * 3, [True] * 3, [True, True, False]])
    x = np.linspace(-40, 40, 400_001)
    for row, some, log in zip(y, has, _equal_evidence(y, has), strict=True):
        each = np.exp(-np.abs(row[some][:, None] - x)) / 2
        assert log == pytest.approx(np.log(each.prod(axis=0).sum() * (x[1] - x[0])), abs=1e-6)
    # Of two laws the weights have a closed form where each cell speaks of one alone, and a maximum elsewhere.
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(np.exp(_log_weights(np.log([[1.0, 0], [1, 0], [0, 1]]))), [2 / 3, 1 / 3], atol=1e-6)
    likely = np.random.default_rng(0).uniform(0.2, 1, (50, 2)) * [1, 0.9]
    weight = np.linspace(0, 1, 100_001)
    best = weight[np.log(likely @ [weight, 1 - weight]).sum(axis=0).argmax()]
    assert np.exp(_log_weights(np.log(likely)))[0] == pytest.approx(best, abs=1e-4)


@pytest.mark.slow
def test_mixtures_weigh_their_parts_by_what_they_say():
    # Pairs whose sums were not measured: the density of the difference of two noisy cells is one integral.
    apart, spreads = np.array([0.1, 0.3, 0.5, 1.0, 8.0, 10.0]), [0, 0.5, 4]
    labels = np.repeat(np.arange(6), 2)
    y = np.stack([np.zeros(6), apart], axis=1).reshape(-1)
    measured = dp.Measurement(VStack((Identity(12), Partition(labels))), [*y, *[9.0] * 6], "laplace", [1.0] * 12 + [np.inf] * 6)
    z = np.linspace(-12, 12, 4801)
    normal = np.exp(-np.square(z) / 2)
    off = np.abs(apart[:, None, None] - 2**0.5 * np.reshape(spreads, (3, 1)) * z)
    likely = ((1 + off) * np.exp(-off) / 4) @ (normal / normal.sum())
    weights = np.full(3, 1 / 3)
    for _ in range(3000):
        weights = (likely * weights / (likely @ weights)[:, None]).mean(axis=0)
    share = likely * weights / (likely @ weights)[:, None]
    found = neighborhood_posterior(measured, (6, 2), spreads=spreads)
    alone = np.stack([neighborhood_posterior(measured, (6, 2), spreads=[spread]).mean for spread in spreads])
    assert (share.max(axis=1) < 0.999).any()
    np.testing.assert_allclose(found.mean, (np.repeat(share, 2, axis=0).T * alone).sum(axis=0), atol=5e-4)


@pytest.mark.slow
def test_printed():
    # By quadrature elsewhere: three cells with noise of epsilon 0.15, their sum with 0.05; and two cells.
    measurement = release([12.3, -4.1, 7.8], 31.0, 1 / 0.15, 1 / 0.05)
    both = neighborhood_posterior(measurement, 3, method="printed", distance=2)
    assert both.mean[0] == pytest.approx(7.40651090, abs=2e-6)
    assert both.stddev[0] == pytest.approx(5.012767168493182, abs=2e-6)
    lower, upper = both.interval(0.95)
    assert (lower[0], upper[0]) == pytest.approx((-3.6910830453968297, 16.45171356459152), abs=1e-3)
    assert neighborhood_posterior(measurement, 3, method="printed").mean[0] == pytest.approx(6.29867008, abs=2e-5)
    two = neighborhood_posterior(release([0.0, 4.0], 10.0, 1, 3), 2, method="printed")
    assert two.mean[0] == pytest.approx(2.689654589790833, abs=1e-6)
    # On integers all of them: here the sum over many.
    k = np.arange(-80, 81)
    u = np.abs(6 + 1 - k)
    other = np.array([(np.exp(-np.abs(k) / 1.5 - np.abs(j - k) / 0.7)).sum() for j in u])
    mass = np.exp(-(np.abs(3 - k) + np.abs(-1 - k)) / 1.5) * other
    exact = neighborhood_posterior(release([3, -1], 6, 1.5, 0.7, law="discrete_laplace"), 2, method="printed")
    assert exact.mean[0] == pytest.approx((k * mass).sum() / mass.sum(), abs=1e-8)
    assert exact.laws.is_lattice.all()
    grid, masses = exact.density(0)
    assert masses[grid == 2].sum() == pytest.approx(mass[k == 2].sum() / mass.sum(), abs=1e-8)


@pytest.mark.slow
def test_errors_and_coverage_of_a_cross():
    # The middle of crosses of five cells that differ as much as the noise of scale 1, with noise of 3 in their sums. The mean
    # squared error, 0.78, and how often "printed" covers, 0.64, are simulated elsewhere, with standard errors.
    rng, num = np.random.default_rng(7), 100
    cross = np.zeros((3, 3), dtype=bool)
    cross[1], cross[:, 1] = True, True
    labels = np.where(cross, 0, [[1, 0, 2], [0, 0, 0], [3, 0, 4]]).reshape(-1)
    labels = (5 * np.arange(num)[:, None] + labels).reshape(-1)
    middle = 9 * np.arange(num) + 4
    cells = 20 + rng.normal(size=labels.size)
    sums = np.bincount(labels, cells) + rng.laplace(0, 3, 5 * num)
    measurement = release(cells + rng.laplace(size=cells.size), sums, 1, 3, labels)
    for method, given, known, spread in (("hierarchical", [1], 0.9, 0), ("printed", None, 0.64, 0.028)):
        found = neighborhood_posterior(measurement, (num, 3, 3), method=method, spreads=given, num_points=128)
        lower, upper = (end[middle] for end in found.interval(0.9))
        share = ((lower <= cells[middle]) & (cells[middle] <= upper)).mean()
        assert abs(share - known) < 4 * np.hypot(spread, (known * (1 - known) / num) ** 0.5)
        squares = np.square(found.mean - cells)[middle]
        if method == "hierarchical":
            assert abs(squares.mean() - 0.78) < 4 * np.hypot(0.074, squares.std() / num**0.5)


@pytest.mark.slow
def test_estimated_spreads():
    # Of a smooth field neighbours help, of a random one they are left alone: with intervals that cover, unlike "printed".
    rng, shape = np.random.default_rng(11), (32, 32)
    i, j = np.indices(shape)
    fields = (("smooth", 40 + 20 * np.sin(i / 10) + 15 * np.cos(j / 8), 6), ("random", rng.integers(0, 101, shape), 25))
    for name, field, threshold in fields:
        cells = np.rint(field).astype(int).reshape(-1)
        measured = dp.mechanisms.ispe(cells, shape, cell_epsilon=0.15, partition_epsilon=0.05, threshold=threshold)
        noisy = np.asarray(measured.values[: cells.size], dtype=float)
        found = neighborhood_posterior(measured, shape, num_points=128)
        error, of_noisy = (np.square(x - cells).mean() ** 0.5 for x in (found.mean, noisy))
        lower, upper = found.interval(0.9)
        # Cells share their neighbours' noise, so that more than the binomial's four standard errors are let pass.
        assert 0.85 < ((lower <= cells) & (cells <= upper)).mean() < 0.95
        if name == "smooth":
            assert error < 0.6 * of_noisy
        else:
            assert error < 1.02 * of_noisy
            printed = neighborhood_posterior(measured, shape, method="printed", num_points=128)
            assert np.square(printed.mean - cells).mean() ** 0.5 > 2 * of_noisy
            lower, upper = printed.interval(0.9)
            assert ((lower <= cells) & (cells <= upper)).mean() < 0.6


@pytest.mark.slow
def test_cells_far_from_their_neighbours_stay():
    y = np.array([0.0, 1e4, -1e4, 3, 0.5, -2])
    for total in (20.0, 1e5):
        measurement = release(y, total, 1, 3)
        for spreads in (None, [0.25]):
            found = neighborhood_posterior(measurement, (2, 3), spreads=spreads, num_points=128)
            ends = found.interval(0.9)
            assert np.isfinite([found.mean, found.stddev, *ends]).all()
            assert (ends[0] <= ends[1]).all()
            if spreads is None:
                assert (np.abs(found.mean - y) < 3).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: neighborhood_posterior(m, 3), r"shape must have the 4 cells of the measurement, got \(3,\)"),
        (lambda m: neighborhood_posterior(m, (2, 0)), "shape must be at least 1"),
        (lambda m: neighborhood_posterior(m, 4, distance=0.5), "distance must be at least 1, got 0.5"),
        (lambda m: neighborhood_posterior(m, 4, distance="far"), "distance must be a number"),
        (lambda m: neighborhood_posterior(m, 4, spreads=[]), "spreads must be one number or several"),
        (lambda m: neighborhood_posterior(m, 4, spreads=[1, -1]), "spreads must be finite and not negative"),
        (lambda m: neighborhood_posterior(m, 4, spreads=[np.nan]), "spreads must be finite and not negative"),
        (lambda m: neighborhood_posterior(m, 4, spreads="wide"), "spreads must be numbers, got 'wide'"),
        (lambda m: neighborhood_posterior(m, 4, method="printed", spreads=[1]), 'spreads must be left out with method "printed"'),
        (lambda m: neighborhood_posterior(m, 4, method="mean"), "method must be one of 'hierarchical', 'printed'"),
        (lambda m: neighborhood_posterior(m, 4, num_points=8), "num_points must be at least 64"),
        (
            lambda m: neighborhood_posterior(dp.Measurement(Identity(4), m.values[:4], "gaussian", 1.0), 4),
            "measurement must have",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(release([1.0, 2.0, 3.0, 4.0], 4.0, 1, 2))


def test_32_bit_numbers_are_refused():
    measurement = release([1.0, 2.0], 4.0, 1, 2)
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match=r"type dpinfer.enable_x64\(\) first"):
            neighborhood_posterior(measurement, 2)
    finally:
        jax.config.update("jax_enable_x64", True)
