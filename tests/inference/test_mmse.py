"""Posteriors of sums of cells: against quadrature, sums over integers, least squares where that is the same, and coverage."""

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import mmse
from dpinfer.queries import Dense, Identity, Partition, Prefix, Ranges, Total, Tree
from tests.noisy_regions import release


@pytest.mark.slow
def test_known_posteriors():
    # Computed by quadrature elsewhere: three cells with noise of epsilon 0.15, their sum with 0.05.
    found = mmse(release([12.3, -4.1, 7.8], 31.0, 1 / 0.15, 1 / 0.05), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    np.testing.assert_allclose(found.mean, [14.300195886595636, 12.20039177319127, 22.00058766], atol=1e-7)
    np.testing.assert_allclose(found.stddev[:2], [8.415238783966949, 11.060476119872446], atol=1e-7)
    for level, lower, upper in (
        (0.95, [-2.1513871756124825, -9.847351184516087], [32.97899757070048, 34.687288812227095]),
        (0.90, [1.3884704938485816, -5.587954548119017], [28.967055571490764, 30.439815527384294]),
    ):
        ends = found.interval(level)
        np.testing.assert_allclose([end[:2] for end in ends], [lower, upper], atol=1e-5)
    # Xiao et al.'s example, two cells of four: printed -5.9707, two standard errors of their own simulation away from the truth.
    cells, total = [-15.4486, 41.0775, -2.938, 50.6616], -5.2668
    for epsilon, mean, stddev in (
        (0.025, 3.42891, 35.149),
        (0.05, -5.81882, 33.22288442547664),
        (0.15, -12.544323908206978, 32.20161960572641),
        (0.95, -13.65180, 32.148),
    ):
        found = mmse(release(cells, total, 20, 1 / epsilon), Ranges(4, [0], [2]))
        assert found.mean[0] == pytest.approx(mean, abs=1e-5)
        assert found.stddev[0] == pytest.approx(stddev, abs=1e-3)
    # How far a cell moves by a sum that is off: a limit, (2 b1^2 / b2) / (1 - b1^2 / b2^2), where the sum has more noise.
    for delta, shift in ((5.0, 0.6717761621910903), (30.0, 0.749999978357895), (1e6, 0.75)):
        assert mmse(release([0.0], delta, 1, 3)).mean[0] == pytest.approx(shift, abs=1e-7)


@pytest.mark.slow
def test_two_cells_against_a_table():
    cells, total, b1, b2 = np.array([0.7, -2.2]), 3.1, 1.3, 0.8
    found = mmse(release(cells, total, b1, b2), [[1, 0], [0, 1], [1, 1]])
    x = np.linspace(-25, 25, 2501)
    first, second = np.meshgrid(x, x, indexing="ij")
    weights = np.exp(-(np.abs(cells[0] - first) + np.abs(cells[1] - second)) / b1 - np.abs(total - first - second) / b2)
    weights /= weights.sum()
    for i, values in enumerate((first, second, first + second)):
        mean = (weights * values).sum()
        assert found.mean[i] == pytest.approx(mean, abs=2e-4)
        assert found.stddev[i] == pytest.approx(((weights * (values - mean) ** 2).sum()) ** 0.5, abs=2e-4)
        for level in (0.5, 0.9):
            lower, upper = (end[i] for end in found.interval(level))
            assert weights[values < lower].sum() == pytest.approx((1 - level) / 2, abs=5e-3)
            assert weights[values > upper].sum() == pytest.approx((1 - level) / 2, abs=5e-3)
            low, high = (end[i] for end in found.interval(level, kind="highest"))
            assert high - low <= upper - lower + 1e-6
            assert weights[(values >= low) & (values <= high)].sum() == pytest.approx(level, abs=5e-3)
        grid, mass = found.density(i)
        assert mass.sum() == pytest.approx(1)
        assert (mass * grid).sum() == pytest.approx(found.mean[i])


@pytest.mark.slow
def test_integers_against_all_of_them():
    cells, total, b1, b2 = np.array([3, -1]), 6, 1.5, 0.7
    found = mmse(release(cells, total, b1, b2, law="discrete_laplace"), [[1, 0], [1, 1]])
    k = np.arange(-60, 61)
    first, second = np.meshgrid(k, k, indexing="ij")
    weights = np.exp(-(np.abs(cells[0] - first) + np.abs(cells[1] - second)) / b1 - np.abs(total - first - second) / b2)
    weights /= weights.sum()
    for i, values in enumerate((first, first + second)):
        mean = (weights * values).sum()
        assert found.mean[i] == pytest.approx(mean, rel=1e-9)
        assert found.stddev[i] == pytest.approx(((weights * (values - mean) ** 2).sum()) ** 0.5, rel=1e-9)
        grid, mass = found.density(i)
        for value in range(-3, 9):
            assert mass[grid == value].sum() == pytest.approx(weights[values == value].sum(), rel=1e-8)
        lower, upper = (end[i] for end in found.interval(0.9))
        assert weights[values < lower].sum() <= 0.05 < weights[values <= lower].sum()
        assert weights[values <= upper].sum() >= 0.95 > weights[values < upper].sum()


@pytest.mark.slow
@pytest.mark.parametrize("law", ["laplace", "discrete_laplace"])
def test_equal_noise_gives_least_squares(law):
    # Exactly, whatever the regions and the queries: each cell moves by delta / (s + 1).
    rng = np.random.default_rng(1)
    labels = np.array([0, 1, 0, 2, 1, 1, 0, 2, 3])
    cells, sums = rng.integers(-9, 30, 9).astype(float), rng.integers(0, 90, 4).astype(float)
    measurement = release(cells, sums, 2.5, 2.5, labels, law)
    fit = dp.least_squares(measurement)
    np.testing.assert_allclose(mmse(measurement).mean, fit.cells, atol=2e-6)
    queries = Prefix(9)
    np.testing.assert_allclose(mmse(measurement, queries).mean, fit.answer(queries).values, atol=2e-5)


@pytest.mark.slow
def test_queries_of_several_regions_add_independent_parts():
    rng = np.random.default_rng(2)
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    measurement = release(rng.normal(0, 9, 9), rng.normal(0, 9, 3), 2, [7.0, 3, 1], labels)
    parts = mmse(measurement, [[0, 1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1, 0]])
    found = mmse(measurement, [[0, 1, 1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0, 0, 0, 0], [0] * 9])
    assert found.mean[0] == pytest.approx(parts.mean.sum(), abs=1e-6)
    assert found.stddev[0] == pytest.approx(np.square(parts.stddev).sum() ** 0.5, abs=1e-6)
    draws = []
    for i in range(3):
        grid, mass = parts.density(i)
        draws.append(rng.choice(grid, p=mass, size=200_000))
    for i, several in ((0, sum(draws)), (1, draws[0] + draws[1])):
        for p, end in zip((0.05, 0.95), found.interval(0.9), strict=True):
            # Four standard errors of the share of draws below.
            assert (several < end[i]).mean() == pytest.approx(p, abs=4 * (0.05 * 0.95 / 200_000) ** 0.5)
    assert (found.mean[2], found.stddev[2]) == (0, 0)
    assert mmse(measurement, [[0] * 9]).mean.tolist() == [0]
    assert [float(end[2]) for end in found.interval()] == [0, 0]


@pytest.mark.slow
def test_a_sum_that_was_not_measured_says_nothing():
    cells = np.array([4.0, 1, 7])
    alone = mmse(dp.Measurement(Identity(3), cells, "laplace", 2.0), Total(3))
    unmeasured = mmse(release(cells, 99.0, 2.0, np.inf), Total(3))
    for found in (alone, unmeasured):
        assert found.mean[0] == pytest.approx(12)
        assert found.stddev[0] == pytest.approx((3 * 2 * 4) ** 0.5)
    np.testing.assert_allclose(
        unmeasured.interval(0.9), dp.noise.LaplaceSum([2.0] * 3, 12.0).icdf(np.array([[0.05], [0.95]])), atol=1e-4
    )


@pytest.mark.slow
def test_errors_and_coverage():
    # 1,024 regions of two cells, sums with three times the noise: mean squared errors of the regions' sums 3.1626, of weighted
    # least squares 3.2727, of unweighted ones 8.444 (by quadrature elsewhere). Errors that are paired, to 5 standard errors.
    rng, regions = np.random.default_rng(4), 1024
    labels = np.repeat(np.arange(regions), 2)
    cells, sums = rng.laplace(0, 1, 2 * regions), rng.laplace(0, 3, regions)
    measurement = release(cells, sums, 1, 3, labels)
    found = mmse(measurement, Partition(labels), num_points=64)
    weighted = np.asarray(dp.least_squares(measurement).answer(Partition(labels)).values)
    delta = sums - np.bincount(labels, cells)
    unweighted = sums - delta / 3
    for errors, known in ((found.mean, 3.1626), (weighted, 3.2727), (unweighted, 8.444)):
        squares = errors**2
        assert abs(squares.mean() - known) < 5 * squares.std() / regions**0.5
    gain = weighted**2 - found.mean**2
    assert gain.mean() > 0
    assert (unweighted**2).mean() > (weighted**2).mean()
    # Intervals cover, also where the sum and the cells disagree most.
    far = np.argsort(-np.abs(delta))[: regions // 10]
    for level in (0.9, 0.95):
        for kind in ("equal_tailed", "highest"):
            lower, upper = found.interval(level, kind=kind)
            inside = (lower <= 0) & (upper >= 0)
            spread = (level * (1 - level)) ** 0.5
            assert abs(inside.mean() - level) < 4 * spread / regions**0.5
            assert abs(inside[far].mean() - level) < 4 * spread / far.size**0.5


@pytest.mark.slow
def test_mean_squared_errors_of_many_sizes():
    # The error's second moment is the posterior variance, on average over delta; the first column by quadrature elsewhere.
    cases = [
        ((1, 1, 3.0), 1.756500),
        ((1, 1, 10.0), 1.967028),
        ((2, 1, 1 / 3), 1.052325),
        ((2, 2, 3.0), 3.162594),
        ((2, 2, 1 / 3), 0.209309),
        ((4, 2, 3.0), 3.331740),
        ((4, 2, 1 / 3), 2.053998),
        ((4, 3, 10.0), 5.741545),
        ((8, 4, 10.0), 7.589451),
        ((8, 4, 1.0), 4.444444),
        ((8, 8, 0.1), 0.019972),
        ((16, 16, 3.0), 11.297638),
        ((32, 31, 10.0), 45.109319),
        ((32, 32, 10.0), 46.001978),
    ]
    for (size, count, scale), known in cases:
        # Points at the middles of equal shares of delta's law, far into its tails.
        law = dp.noise.LaplaceSum([1.0] * size + [scale])
        t = (np.arange(400) + 0.5) / 400
        step = 0.5 * np.tanh(np.pi / 2 * np.sinh(6 * t - 3)) + 0.5
        p, weights = step[step < 0.5], np.diff(0.5 * np.tanh(np.pi / 2 * np.sinh(6 * np.arange(401) / 400 - 3)) + 0.5)[step < 0.5]
        delta = -np.asarray(law.icdf(p))
        labels = np.repeat(np.arange(delta.size), size)
        measurement = release(np.zeros(labels.size), delta, 1.0, scale, labels)
        own = np.arange(delta.size) * size
        variance = np.square(mmse(measurement, Ranges(labels.size, own, own + count)).stddev)
        mmse_error = (weights * variance).sum() / weights.sum()
        assert mmse_error == pytest.approx(known, rel=5e-4)
        # Weighted least squares moves each cell by delta / (s + b^2), unweighted by delta / (s + 1).
        rest = 2 * (count + count**2 * (size + scale**2) / np.square(size + np.array([scale**2, 1])))
        weighted, unweighted = rest - 4 * count**2 / (size + np.array([scale**2, 1]))
        assert mmse_error <= weighted * (1 + 5e-4)
        assert weighted <= unweighted * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["laplace", "discrete_laplace"])
def test_many_regions_alike_share_a_series(law):
    rng, regions = np.random.default_rng(6), 600
    labels = np.repeat(np.arange(regions), 3)
    delta = np.round(rng.laplace(0, 9, regions))
    delta[:4] = [0, 1, -1, 4000]
    measurement = release(np.zeros(labels.size), delta, 2.0, 1.5, labels, law)
    pairs = Ranges(labels.size, 3 * np.arange(regions), 3 * np.arange(regions) + 2)
    together, whole = mmse(measurement, pairs), mmse(measurement, Partition(labels))
    some = np.r_[:10, 590:600]
    alone = release(np.zeros(60), delta[some], 2.0, 1.5, np.repeat(np.arange(20), 3), law)
    for found, apart in (
        (together, mmse(alone, Ranges(60, 3 * np.arange(20), 3 * np.arange(20) + 2))),
        (whole, mmse(alone, Partition(np.repeat(np.arange(20), 3)))),
    ):
        np.testing.assert_allclose(found.mean[some], apart.mean, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(found.stddev[some], apart.stddev, rtol=1e-8)
        # Grids find the same, where one has points enough for what is between sum and cells.
        near = np.arange(20) != 3
        np.testing.assert_allclose((apart.laws.means[apart.which] + apart.centers - apart.mean)[near], 0, atol=1e-6)
        np.testing.assert_allclose((apart.laws.stddevs[apart.which] - apart.stddev)[near], 0, atol=1e-6)


@pytest.mark.slow
def test_regions_of_one_cell():
    # In closed form, beside the law on a grid, with scales that are equal, nearly so, and far apart.
    scales = np.array([3.0, 2.0, 2.0 + 1e-7, 2.0 - 1e-4, 2.002, 1.9, 0.1, 40.0])
    for delta in (0.0, 1e-9, 0.3, -7.0, 60.0):
        labels = np.arange(scales.size)
        found = mmse(release(np.zeros(scales.size), np.full(scales.size, delta), 2.0, scales, labels))
        laws, which = found.laws, found.which
        np.testing.assert_allclose(found.mean, (found.centers + laws.means[which]), atol=2e-6)
        np.testing.assert_allclose(found.stddev, laws.stddevs[which], atol=2e-6)
    # Continuous in the scale, where the formula changes.
    near = [mmse(release([0.0], 5.0, 2.0, 2.0 + 8e-4 * x)).mean[0] for x in (0.99999, 1.00001)]
    assert near[0] == pytest.approx(near[1], abs=1e-7)


@pytest.mark.slow
def test_sums_and_cells_that_disagree_by_a_million_scales():
    # With less noise in a region's sum than in its cell all of the difference is the cell's but a limit; and the other way round.
    for b1, b2, limit in ((3.0, 1.0, 0.75), (1.0, 3.0, 0.75)):
        found = mmse(release([0.0], 1e6, b1, b2))
        assert (1e6 - found.mean[0] if b1 > b2 else found.mean[0]) == pytest.approx(limit, abs=1e-6)
        assert found.stddev[0] == pytest.approx(mmse(release([0.0], 400.0, b1, b2)).stddev[0], rel=1e-6)
    # With the same noise anything between is as likely.
    found = mmse(release([0.0], 1e6, 1.0, 1.0))
    assert found.mean[0] == pytest.approx(5e5, rel=1e-9)
    assert found.stddev[0] == pytest.approx(1e6 / 12**0.5, rel=1e-4)


@pytest.mark.slow
def test_integers_with_next_to_no_noise_and_with_huge_noise():
    # Of four numbers that add up to 7 (three cells and the sum's own) all with as many units in all are as likely: 36 of them.
    for scale in (0.05, 0.001):
        found = mmse(release([0, 0, 0], 7.0, scale, scale, law="discrete_laplace"), [[1, 0, 0], [1, 1, 1]])
        np.testing.assert_allclose(found.mean, [1.75, 5.25])
        places, masses = found.density(0)
        ways = np.array([(9 - k) * (8 - k) / 2 for k in range(8)])
        for value in range(8):
            assert masses[places == value].sum() == pytest.approx(ways[value] / ways.sum(), rel=1e-6)
        assert [float(end[1]) for end in found.interval(0.9)] == [2, 7]
    # Discrete noise of a trillion is as continuous noise of a trillion, at 0 too.
    for delta in (0.0, 1.0, 3e12):
        wide, smooth = (mmse(release([0, 0, 0], delta, 1e12, 3e12, law=law), Total(3)) for law in ("discrete_laplace", "laplace"))
        for a, b in (
            (wide.mean, smooth.mean),
            (wide.stddev, smooth.stddev),
            *zip(wide.interval(0.9), smooth.interval(0.9), strict=True),
        ):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e4)


@pytest.mark.slow
def test_observations_with_noises_of_their_own():
    # Xiao et al.'s example again: two of four cells, by themselves and by the sum less the others.
    cells, total = [-15.4486, 41.0775, -2.938, 50.6616], -5.2668
    example = release(cells, total, 20, 1 / 0.15)
    asked, given = Ranges(4, [0], [2]), [np.array([[1, 1, 0, 0, 0], [0, 0, -1, -1, 1]])]
    found = mmse(example, asked, observations=given)
    assert found.mean[0] == pytest.approx(-12.544323908206978, abs=1e-5)
    assert found.stddev[0] == pytest.approx(32.20161960572641, abs=1e-4)
    np.testing.assert_allclose(found.interval(0.9), mmse(example, asked).interval(0.9), atol=1e-4)
    # A tree with noise of its own in every level: the root by each of its levels, of different numbers of noises.
    tree = Tree.complete(4, 2, root=True)
    values, scale = np.array([7.0, 2, 3, 1, 0, 4, -2]), np.array([4.0, 2, 2, 1, 1, 1, 1])
    by_level = [[1, 0, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]]
    half = [[0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0]]
    measured = dp.Measurement(tree, values, "laplace", scale)
    found = mmse(measured, [[1, 1, 1, 1], [1, 1, 0, 0]], observations=[by_level, half])
    x = np.linspace(-60, 60, 24_001)
    four, two = np.abs(x - 3), np.abs(x - 1)
    one = -np.abs(x - 7) / 4 + np.log1p(np.abs(x - 5) / 2) - np.abs(x - 5) / 2
    # Four noises of scale 1: (15 + 15 u + 6 u^2 + u^3) exp(-u) / 96.
    one += np.log(15 + 15 * four + 6 * four**2 + four**3) - four
    other = -np.abs(x - 2) / 2 + np.log1p(two) - two
    for i, log_density in enumerate((one, other)):
        weights = np.exp(log_density - log_density.max())
        weights /= weights.sum()
        mean = (weights * x).sum()
        assert found.mean[i] == pytest.approx(mean, abs=1e-5)
        assert found.stddev[i] == pytest.approx((weights * np.square(x - mean)).sum() ** 0.5, abs=1e-5)
    # Fractions of answers, exact ones, of which there is no noise, and one that was not measured.
    mixed = dp.Measurement(Dense([[1, 1], [1, 0], [2, 2], [0, 1]]), [5.0, 1, 11, 77], "laplace", [1.0, 0, 3, np.inf])
    found = mmse(mixed, [[0, 1]], observations=[[[1, -1, 0, 0], [0, -1, 0.5, 0]]])
    known = mmse(release([4.0], 4.5, 1.0, 1.5))
    assert found.mean[0] == pytest.approx(known.mean[0], abs=1e-6)


@pytest.mark.slow
def test_what_ispe_releases():
    cells = np.repeat([40, 900, 3], [60, 30, 166])
    measured = dp.mechanisms.ispe(cells, (16, 16), cell_epsilon=0.15, partition_epsilon=0.05, threshold=30)
    found = mmse(measured, num_points=64)
    assert np.isfinite(found.mean).all()
    lower, upper = found.interval(0.9)
    assert 0.8 < ((lower <= cells) & (cells <= upper)).mean() < 0.97
    # Far fewer laws than cells: at most one for each region.
    assert found.laws.means.size <= measured.values.size - cells.size
    boxes = dp.queries.Boxes((16, 16), [[0, 0], [3, 4]], [[16, 16], [12, 9]])
    several = mmse(measured, boxes, num_points=64)
    assert (np.abs(several.mean - boxes @ cells) < 6 * several.stddev).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: mmse(dp.Measurement(Tree.complete(4, 2), np.zeros(6), "laplace", 1.0)),
            "measurement must be of Identity, and of",
        ),
        (lambda m: mmse(dp.Measurement(Identity(2), [1, 2], "gaussian", 1.0)), "got 'gaussian'. Of Gaussian noise least_squares"),
        (lambda m: mmse(dp.Measurement(Identity(2), [1, 2], "laplace", [1.0, 2])), "with noise of one scale"),
        (lambda m: mmse(dp.Measurement(Identity(2), [1, 2], "laplace", 0.0)), "noise in every row"),
        (lambda m: mmse(m, Dense(np.array([[1, 0], [1, -1]]))), "entries 0 and 1; that of row 1 is not"),
        (lambda m: mmse(m, observations=[[[1, 0, 0]]]), "a matrix for each of the 2 queries, got 1"),
        (lambda m: mmse(m, [[1, 0]], observations=[[[1, 0]]]), r"observations\[0\] must be a matrix \[k, 3\]"),
        (lambda m: mmse(m, [[1, 0]], observations=[[[1, 0, 0], [-1, -2, 2]]]), r"use no noisy answer twice; that of row 0"),
        (lambda m: mmse(m, [[1, 0]], observations=[[[1, 0, 0], [0, -1, 2]]]), "without bias: observation 1 is of another"),
        (
            lambda m: mmse(dp.Measurement(Identity(1), [1.0], "laplace", np.inf), observations=[[[1]]]),
            r"not use what was not measured \(scale inf\)",
        ),
        (
            lambda m: mmse(dp.Measurement(Identity(1), [1.0], "laplace", 0.0), observations=[[[1]]]),
            "noise in every observation; one is exact",
        ),
        (
            lambda m: mmse(dp.Measurement(Dense([[2]]), [1], "discrete_laplace", 1.0), observations=[[[0.5]]]),
            "entries -1, 0 and 1 only",
        ),
        (lambda m: mmse(m, num_points=10), "num_points must be at least 64"),
        (lambda m: mmse(m).interval(1.0), "level must be between 0 and 1"),
        (lambda m: mmse(m).interval(kind="least"), "kind must be one of"),
        (lambda m: mmse(m).density(2), "i must be from 0 to the number of answers less 1, 1, got 2"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(release([1.0, 2.0], 4.0, 1, 2))


def test_32_bit_numbers_are_refused():
    measurement = release([1.0, 2.0], 4.0, 1, 2)
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match=r"type dpinfer.enable_x64\(\) first"):
            mmse(measurement)
    finally:
        jax.config.update("jax_enable_x64", True)
