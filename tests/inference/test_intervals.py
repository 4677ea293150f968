"""Intervals of linear answers: exact laws, coverage one by one and jointly."""

import itertools
import math
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import random_parents, tree_matrix

import dpinfer as dp
from dpinfer.inference.condense import alike, condensed, tail_quantile
from dpinfer.inference.lattice import discrete_half_widths
from dpinfer.noise import contour
from dpinfer.queries import AllRange, Dense, Identity, Prefix, Total, Tree

LEVELS = (0.9, 0.95, 0.99)


def least_squares_coefficients(matrix, variances):
    """(A' S A)^-1 A' S with S the inverse variances, by the normal equations."""
    weights = np.where(np.isfinite(variances), 1 / np.where(np.isfinite(variances), variances, 1.0), 0.0)
    return np.linalg.solve(matrix.T @ (weights[:, None] * matrix), matrix.T * weights)


@pytest.mark.parametrize("kind", ["complete", "ragged", "dense", "identity"])
def test_coefficients_are_those_of_the_normal_equations(kind):
    rng = np.random.default_rng(3)
    queries = {
        "complete": Tree.complete(13, 3),
        "ragged": Tree.from_parents(random_parents(rng, 24, shuffled=True)),
        "dense": Dense(rng.integers(-2, 3, (9, 5)).astype(float)),
        "identity": Identity(6),
    }[kind]
    scale = rng.uniform(0.5, 4, queries.shape[0])
    if kind == "ragged":
        scale[np.unique(queries.parents[queries.parents >= 0])[:3]] = np.inf
    measurement = dp.Measurement(queries, rng.normal(size=queries.shape[0]), "laplace", scale)
    matrix = np.asarray(queries.dense(), dtype=float)
    expected = least_squares_coefficients(matrix, 2 * scale**2)
    answers = dp.least_squares(measurement).answer(Identity(queries.shape[1]))
    assert answers.error is not None
    found = np.concatenate(list(answers.error.coefficients()))
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.slow
def test_one_cell_has_the_interval_of_its_noise():
    for scale, level in itertools.product((0.5, 3.0), LEVELS):
        answers = dp.least_squares(dp.Measurement(Identity(2), np.array([3.0, 5.0]), "laplace", scale)).answer(Identity(2))
        lower, upper = answers.interval(level)
        np.testing.assert_allclose((upper - lower) / 2, -scale * math.log(1 - level), rtol=1e-13)
        np.testing.assert_allclose((upper + lower) / 2, answers.values)


def test_gaussian_answers_are_normal():
    tree = Tree.complete(8, 2)
    answers = dp.least_squares(dp.Measurement(tree, np.arange(14.0), "gaussian", 2.0)).answer(Prefix(8))
    lower, upper = answers.interval(0.9, method="exact")
    half = NormalDist().inv_cdf(0.95) * np.asarray(answers.stddev)
    np.testing.assert_allclose((upper - lower) / 2, half, rtol=1e-12)
    joint = answers.interval(0.9, joint=True)
    half = NormalDist().inv_cdf(1 - 0.05 / 8) * np.asarray(answers.stddev)
    np.testing.assert_allclose((joint[1] - joint[0]) / 2, half, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 5, 40, 3000])
def test_condensed_sums_have_the_same_quantiles(terms):
    rng = np.random.default_rng(terms)
    scales = np.stack([rng.uniform(0, 1, terms), 10.0 ** rng.uniform(-5, 0, terms), np.ones(terms), 1 + rng.pareto(1.5, terms)])
    single, many, counts = condensed(scales)
    squares = np.square(scales).sum(axis=1)
    np.testing.assert_allclose(np.square(single).sum(axis=1) + (counts * many**2).sum(axis=1), squares, rtol=1e-12)
    for p in (0.25, 0.025, 1e-8):
        direct = contour.upper_quantile(jnp.full(4, np.log(p)), jnp.asarray(scales))
        np.testing.assert_allclose(tail_quantile(scales, np.log(p)), direct, rtol=1e-9)


def test_rows_of_a_kind():
    coefficients = np.array([[1.0, 2, 0], [2, 0, 1], [1, 2, 1e-3], [0, 0, 0], [1, 1 + 1e-13, 2], [1, 1, 2], [2, 1, 0]])
    first, kind = alike(coefficients, np.ones(3))
    assert kind[0] == kind[1] == kind[6]
    assert kind[4] == kind[5]
    assert len({kind[0], kind[2], kind[3], kind[4]}) == len(first) == 4
    assert alike(np.array([[1.0, 2], [2, 1]]), np.array([1.0, 3]))[0].size == 2


def law_of_sum(coefficients, scale):
    """(values, probabilities) of |sum c_i D_i| by enumerating every combination of noises that is not negligible."""
    values, masses = np.zeros(1), np.ones(1)
    for c, b in zip(coefficients, scale, strict=True):
        k = np.arange(-math.ceil(22 * b), math.ceil(22 * b) + 1)
        p = np.exp(-np.abs(k) / b) * math.tanh(0.5 / b)
        values, place = np.unique(np.round((values[:, None] + c * k).ravel(), 9), return_inverse=True)
        masses = np.bincount(place.ravel(), (masses[:, None] * p).ravel())
    return np.abs(values), masses


@pytest.mark.parametrize(
    ("coefficients", "scale"),
    [
        ([1.0], [1.0]),
        ([0.5, 0.5, 0.0], [1.0, 2.0, 7.0]),
        ([1.0] * 8, [1.0] * 8),
        ([1.0, 2.0], [1.0, 1.0]),
        ([1.0, 0.5, 0.3], [0.6, 1.0, 2.0]),
        ([0.7, 0.31, 0.11, 0.05], [1.0, 1.0, 1.0, 1.0]),
        ([2 / 3, 1 / 3, 1 / 3, 1 / 3], [2.0, 2.0, 2.0, 2.0]),
    ],
)
def test_discrete_half_widths_against_enumeration(coefficients, scale):
    sizes, masses = law_of_sum(coefficients, scale)
    stddev = math.sqrt((masses * sizes**2).sum())
    for level in LEVELS:
        half = discrete_half_widths(np.array([coefficients]), np.array(scale), level)[0]
        assert masses[sizes <= half].sum() >= level - 1e-9
        # And it is no wider than it must be: a little narrower does not cover.
        assert masses[sizes <= half - 0.15 * stddev - 1e-3].sum() < level
        is_even = len(set(coefficients) - {0.0}) == 1
        if is_even:
            assert masses[sizes <= half - 0.01].sum() < level


@pytest.mark.slow
def test_discrete_sums_of_many_terms_come_close_to_the_level():
    rng = np.random.default_rng(0)
    coefficients, scale = rng.uniform(0, 1, (1, 60)), rng.uniform(0.5, 2, 60)
    draws = rng.geometric(-np.expm1(-1 / scale), (200_000, 60)) - rng.geometric(-np.expm1(-1 / scale), (200_000, 60))
    errors = np.abs(draws @ coefficients[0])
    for level in LEVELS:
        half = discrete_half_widths(coefficients, scale, level)[0]
        assert abs((errors <= half).mean() - level) < 3 * math.sqrt(level * (1 - level) / errors.size)


SIMULATED = 4000


def simulated_errors(strategy, noise, workload, seed):
    """The answers' half-widths and the errors of many simulated releases, through the whole pipeline."""
    truth = np.random.default_rng(seed).integers(0, 100, strategy.shape[1]).astype(float)

    def release(key):
        return dp.simulate(truth, strategy, epsilon=1.0, noise=noise, key=key)

    answers = dp.least_squares(release(jax.random.key(seed))).answer(workload)
    cells = jax.jit(jax.vmap(lambda key: dp.least_squares(release(key)).cells))(
        jax.random.split(jax.random.key(seed + 1), SIMULATED)
    )
    rows = np.asarray(workload.dense(), dtype=float)
    return answers, np.abs((np.asarray(cells) - truth) @ rows.T)


@pytest.fixture(scope="module", params=[("laplace", 2), ("discrete_laplace", 4)], ids=str)
def tree_errors(request):
    noise, branching = request.param
    return noise, simulated_errors(Tree.complete(64, branching), noise, AllRange(64), seed=7)


@pytest.mark.slow
def test_single_intervals_cover(tree_errors):
    noise, (answers, errors) = tree_errors
    size = np.array([stop - start for start, stop in zip(*AllRange(64).as_ranges(), strict=True)])
    for level in LEVELS:
        lower, upper = answers.interval(level)
        half = (np.asarray(upper) - np.asarray(lower)) / 2
        for kind in (size == 1, (size > 1) & (size < 64), size == 64):
            coverage = (errors[:, kind] <= half[kind] + 1e-12).mean()
            assert abs(coverage - level) < 2 * math.sqrt(level * (1 - level) / SIMULATED), (noise, level, coverage)


@pytest.mark.slow
def test_normal_intervals_of_cells_do_not_cover():
    answers, errors = simulated_errors(Identity(64), "laplace", Identity(64), seed=1)
    lower, upper = answers.interval(0.95, method="normal")
    assert abs((errors <= (upper - lower)[None, :] / 2).mean() - 0.9375) < 0.003
    lower, upper = answers.interval(0.95)
    assert abs((errors <= (upper - lower)[None, :] / 2).mean() - 0.95) < 0.003


@pytest.mark.slow
def test_joint_intervals_cover_jointly(tree_errors):
    noise, (answers, errors) = tree_errors
    for level in LEVELS:
        error = math.sqrt(level * (1 - level) / SIMULATED)
        lower, upper = answers.interval(level, joint=True)
        bonferroni = (np.asarray(upper) - np.asarray(lower)) / 2
        assert (errors <= bonferroni + 1e-12).all(axis=1).mean() > level - 2 * error, (noise, level)
        lower, upper = answers.interval(level, joint=True, key=jax.random.key(5), num_draws=SIMULATED)
        band = (np.asarray(upper) - np.asarray(lower)) / 2
        # The band's own draws scatter as much as the releases do.
        assert abs((errors <= band + 1e-12).all(axis=1).mean() - level) < 2 * math.sqrt(2) * error + 1 / SIMULATED, (noise, level)
        assert band.mean() < bonferroni.mean()


def test_normal_bonferroni_would_fail_and_is_refused():
    answers, errors = simulated_errors(Identity(64), "laplace", Identity(64), seed=2)
    z = NormalDist().inv_cdf(1 - 0.05 / 2 / 64)
    assert (errors <= z * np.asarray(answers.stddev)[None, :]).all(axis=1).mean() < 0.75
    with pytest.raises(ValueError, match="exact law"):
        answers.interval(joint=True, method="normal")


@pytest.mark.slow
def test_published_counts_with_unequal_noise_on_a_ragged_tree():
    rng = np.random.default_rng(5)
    parents = random_parents(rng, 40, shuffled=True)
    scale = rng.uniform(0.3, 5, 40)
    tree = Tree.from_parents(parents)
    matrix = tree_matrix(parents)
    rows = rng.integers(-1, 2, (6, tree.shape[1])).astype(float)
    answers = dp.least_squares(dp.Measurement(tree, rng.normal(size=40), "laplace", scale)).answer(rows)
    lower, upper = answers.interval(0.99)
    coefficients = rows @ least_squares_coefficients(matrix, 2 * scale**2)
    errors = np.abs(rng.laplace(size=(400_000, 40)) * scale @ coefficients.T)
    coverage = (errors <= np.asarray(upper - lower)[None, :] / 2).mean(axis=0)
    np.testing.assert_allclose(coverage, 0.99, atol=4 * math.sqrt(0.99 * 0.01 / 400_000))


@pytest.mark.slow
def test_exact_answers_have_no_width():
    tree = Tree.from_parents([-1, 0, 0])
    measurement = dp.Measurement(tree, np.array([10.0, 4.0, 5.0]), "laplace", np.array([0.0, 1.0, 2.0]))
    lower, upper = dp.least_squares(measurement).answer(Total(2)).interval()
    assert float(lower[0]) == float(upper[0]) == 10.0
    lower, upper = (
        dp.least_squares(dp.Measurement(tree, np.array([10, 4, 5]), "discrete_laplace", np.array([0.0, 1, 2])))
        .answer(Identity(2))
        .interval()
    )
    assert np.all(np.asarray(lower) < np.asarray(upper))


@pytest.mark.slow
def test_what_is_asked_for_must_be_possible():
    tree = Tree.complete(4, 2)
    answers = dp.least_squares(dp.Measurement(tree, np.arange(6.0), "laplace", 1.0)).answer(Identity(4))
    with pytest.raises(ValueError, match="level"):
        answers.interval(1.0)
    with pytest.raises(ValueError, match="method"):
        answers.interval(method="bootstrap")
    with pytest.raises(ValueError, match="key is for joint"):
        answers.interval(key=jax.random.key(0))
    with pytest.raises(ValueError, match="num_draws"):
        answers.interval(0.99, joint=True, key=jax.random.key(0), num_draws=50)
    with pytest.raises(ValueError, match="2e-09"):
        discrete_half_widths(np.ones((1, 1)), np.ones(1), 1 - 1e-10)
    discrete = dp.least_squares(dp.Measurement(tree, np.arange(6), "discrete_gaussian", 2.0)).answer(Identity(4))
    with pytest.raises(ValueError, match="discrete Gaussian"):
        discrete.interval(method="exact")
    discrete.interval()


def test_inside_jit_intervals_are_normal():
    tree = Tree.complete(4, 2)

    def half(values, method):
        answers = dp.least_squares(dp.Measurement(tree, values, "laplace", 1.0)).answer(Identity(4))
        lower, upper = answers.interval(method=method)
        return (upper - lower) / 2 / answers.stddev

    np.testing.assert_allclose(jax.jit(half, static_argnums=1)(jnp.arange(6.0), "auto"), NormalDist().inv_cdf(0.975))
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(half, static_argnums=1)(jnp.arange(6.0), "exact")


def test_large_workloads_are_normal_unless_asked(monkeypatch):
    from dpinfer.inference import error_law

    monkeypatch.setattr(error_law, "_MAX_COEFFICIENTS", 10)
    answers = dp.least_squares(dp.Measurement(Identity(4), np.arange(4.0), "laplace", 1.0)).answer(Identity(4))
    lower, upper = answers.interval()
    np.testing.assert_allclose((upper - lower) / 2, NormalDist().inv_cdf(0.975) * 2**0.5)
    lower, upper = answers.interval(method="exact")
    np.testing.assert_allclose((upper - lower) / 2, -math.log(0.05))
    with pytest.raises(ValueError, match="exact law"):
        answers.interval(joint=True)


@pytest.mark.slow
def test_a_saved_release_has_the_same_intervals(tmp_path):
    release = dp.measure(np.arange(8), Tree.complete(8, 2), epsilon=1)
    release.save(tmp_path / "release.npz")
    again = dp.Release.load(tmp_path / "release.npz")
    for first, second in zip(*(dp.least_squares(r).answer(Prefix(8)).interval() for r in (release, again)), strict=True):
        np.testing.assert_array_equal(first, second)
