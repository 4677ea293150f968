"""Posteriors under numpyro models: against normal laws and quadrature, where they start, what they refuse, what they return."""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.stats
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import autoguide

import dpinfer as dp
from dpinfer import inference
from dpinfer.inference.posterior_methods import laplace
from dpinfer.inference.posterior_methods.latent import latent_of
from dpinfer.inference.posterior_methods.observed import observed
from dpinfer.queries import Dense, Identity, Total, Tree

# Of no type: that there is a ``sampling`` is known only when it runs.
posterior: Any = inference.posterior

# How many standard errors of the draws a mean, a standard deviation or a share may be off: one comparison in two million is by
# chance.
K = 5
# Settings are compiled in, so that most tests share these.
NUTS = {"method": "nuts", "num_chains": 2, "num_warmup": 500, "num_draws": 4000}
SVI = {"method": "svi", "guide": "multivariate", "num_draws": 8000}
LAPLACE = {"method": "laplace", "num_draws": 8000}
FINE = np.arange(0.025, 1, 0.05)


def moments(draws, weights=None):
    """Mean and standard deviation along the first axis, of draws or of a grid with weights."""
    mean = np.average(draws, axis=0, weights=weights)
    return mean, np.sqrt(np.average((draws - mean) ** 2, axis=0, weights=weights))


def assert_draws_are_of(draws, num_chains, mean, stddev, below, *, slack=0.0):
    """Draws [num_draws, m] have means and standard deviations [m] within K standard errors, and so have the shares of draws that
    are below given points, {share: [m]}. Standard errors are of as many draws as those of the chains are worth; ``slack`` is
    added, in standard deviations and shares: what an optimiser leaves.
    """
    draws = np.asarray(draws)

    def error(values):
        if num_chains == 1:
            return values.std(axis=0) / np.sqrt(len(values))
        chains, worth = values.reshape(num_chains, -1, values.shape[1]), np.full(values.shape[1], len(values))
        varies = np.ptp(values, axis=0) > 0
        worth[varies] = effective_sample_size(chains[:, :, varies])
        return values.std(axis=0) / np.sqrt(worth)

    found_mean, found_stddev = moments(draws)
    np.testing.assert_array_less(np.abs(found_mean - mean), K * error(draws) + slack * stddev)
    # Of a square's mean, and of its root by the chain rule.
    of_stddev = error((draws - found_mean) ** 2) / (2 * found_stddev)
    np.testing.assert_array_less(np.abs(found_stddev - stddev), K * of_stddev + slack * stddev)
    for share, points in below.items():
        is_below = (draws <= points).astype(float)
        np.testing.assert_array_less(np.abs(is_below.mean(axis=0) - share), K * error(is_below) + slack)


def assert_normal(estimate, mean, covariance, *, slack=0.0):
    """Cells, answers and their intervals are those of a normal law."""
    rows, chains = np.asarray(WORKLOAD.matrix), estimate.sampling.num_chains
    center, spread = rows @ mean, np.sqrt(np.einsum("mi,ij,mj->m", rows, covariance, rows))
    answers = estimate.answer(WORKLOAD)
    draws = np.asarray(answers.values) - np.asarray(answers.errors)
    np.testing.assert_allclose(draws, np.asarray(estimate.draws) @ rows.T, rtol=1e-9, atol=1e-9)
    shares = {share: center + spread * scipy.stats.norm.ppf(share) for share in (0.05, 0.3, 0.7, 0.95)}
    assert_draws_are_of(draws, chains, center, spread, shares, slack=slack)
    np.testing.assert_allclose(answers.values, rows @ np.asarray(estimate.cells), atol=1e-9)
    np.testing.assert_allclose(answers.stddev, draws.std(axis=0), rtol=1e-9)
    # The ends of an interval are where the law has the stated shares; single draws in its tails count half as much in a chain.
    lower, upper = (np.asarray(end) for end in answers.interval(0.9))
    worth = len(draws) if chains == 1 else np.min(estimate.sampling.ess) / 2
    for end, share in ((lower, 0.05), (upper, 0.95)):
        off = np.abs(scipy.stats.norm.cdf(end, center, spread) - share)
        np.testing.assert_array_less(off, K * np.sqrt(0.05 * 0.95 / worth) + slack)
    if estimate.sampling.ess is not None:
        error = np.sqrt(np.diagonal(covariance) / estimate.sampling.ess)
        np.testing.assert_array_less(np.abs(np.asarray(estimate.cells) - mean), K * error)


# --- A normal prior, and a survey of the first cell that the model has observed by itself. ---

MEANS, SPREADS = np.array([3.0, 7.0, 0.0, 13.0]), np.array([2.0, 3.0, 4.0, 1.0])


def normal_prior():
    cells: Any = numpyro.sample("cells", dist.Normal(MEANS, SPREADS))
    numpyro.sample("survey", dist.Normal(cells[0], 1.5), obs=jnp.asarray(5.0))
    numpyro.deterministic("total", cells.sum())
    numpyro.deterministic("pair", cells[:2])
    return cells


def level_prior():
    """Of cells that depend on each other, and can change places."""
    level = numpyro.sample("level", dist.Normal(3.0, 2.0))
    return numpyro.sample("cells", dist.Normal(level, 2.0).expand([4]).to_event(1))


# Of the same shape as the other strategies and workloads: most programs then serve all.
QUERIES = Dense(np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 2, -1, 1]]))
WORKLOAD = Dense(np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 1, -2, 1]]))
NOISY = dp.Measurement(QUERIES, [4.0, 9, 10, 12, 31, 25], "gaussian", np.array([1.0, 2, 1.5, 4, 3, 2]))


def exact_law(measurement, mean, covariance):
    """Mean and covariance of normal cells given the noisy and the exact counts."""
    rows, values = np.asarray(measurement.queries @ np.eye(len(mean))), np.asarray(measurement.values)
    variance = np.broadcast_to(measurement.scale, len(rows)) ** 2
    gain = covariance @ rows.T @ np.linalg.inv(rows @ covariance @ rows.T + np.diag(variance))
    return mean + gain @ (values - rows @ mean), covariance - gain @ rows @ covariance


SURVEY = dp.Measurement(Dense(np.eye(1, 4, dtype=int)), [5], "gaussian", 1.5)
SURVEYED = dp.Measurement.concat([NOISY, SURVEY])
normal_law = partial(exact_law, mean=MEANS, covariance=np.diag(SPREADS**2))
level_law = partial(exact_law, mean=np.full(4, 3.0), covariance=4 * np.eye(4) + 4)


@pytest.mark.slow
def test_the_nearest_normal_law_to_a_normal_posterior_is_about_itself():
    estimate = posterior(NOISY, normal_prior, key=jax.random.key(1), **SVI)
    # What the last steps of the fit leave.
    assert_normal(estimate, *normal_law(SURVEYED), slack=0.1)
    assert set(estimate.sites) == {"total", "pair"}
    np.testing.assert_allclose(estimate.sites["total"], np.sum(estimate.draws, axis=1), rtol=1e-9)
    np.testing.assert_allclose(estimate.sites["pair"], np.asarray(estimate.draws)[:, :2], rtol=1e-9)
    assert estimate.sampling.converged
    # Its loss then is minus the log evidence, however the coordinates are chosen.
    losses = np.asarray(estimate.sampling.losses)
    rows, noise = np.asarray(SURVEYED.queries @ np.eye(4)), np.diag(np.asarray(SURVEYED.scale) ** 2)
    normal: Any = scipy.stats.multivariate_normal
    evidence = normal(rows @ MEANS, rows @ np.diag(SPREADS**2) @ rows.T + noise).logpdf(SURVEYED.values)
    assert losses[np.isfinite(losses)][-1] == pytest.approx(-evidence, abs=0.1)


EXACT, TWICE, EMPTY = (Dense(np.array(rows)) for rows in ([[1, 1, 1, 1], [1, 0, 0, 1]], [[1, 1, 1, 1]] * 2, [[0, 0, 0, 0]] * 2))
# That sums of no cells are 0 says nothing, and shares a program with what says something.
FREE = NOISY.with_exact(EMPTY, [0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [NUTS, LAPLACE], ids=["nuts", "laplace"])
def test_of_a_normal_prior_and_gaussian_noise_it_is_the_normal_posterior(options):
    estimate = posterior(FREE, level_prior, key=jax.random.key(1), **options)
    assert_normal(estimate, *level_law(NOISY))
    assert estimate.sampling.converged


@pytest.mark.slow
@pytest.mark.parametrize("options", [NUTS, LAPLACE], ids=["nuts", "laplace"])
def test_exact_counts_condition_a_normal_law(options):
    measurement = NOISY.with_exact(EXACT, [33.0, 14.5])
    estimate = posterior(measurement, level_prior, key=jax.random.key(2), **options)
    np.testing.assert_allclose(np.asarray(estimate.draws) @ np.asarray(EXACT.matrix).T, [[33.0, 14.5]] * 8000, rtol=1e-12)
    # The counts are softened to 5% of what noise leaves open, and what is missed of them goes to the cells in proportion to their
    # own variances rather than as the law would have it: below half a percent of a variance.
    assert_normal(estimate, *level_law(measurement), slack=0.01)


@pytest.mark.slow
def test_a_known_total_of_cells_that_can_change_places_leaves_their_exact_law():
    # Noise and prior alike for all cells: what is missed of the total belongs to all in equal parts, so that there is no slack.
    alike = Dense(np.vstack([np.eye(4, dtype=int), np.ones((2, 4), dtype=int)]))
    noisy = dp.Measurement(alike, [1.0, 6, 2, 9, 20, 33], "gaussian", np.array([1.5, 1.5, 1.5, 1.5, 4, 4]))
    estimate = posterior(noisy.with_exact(TWICE, [30, 30]), level_prior, key=jax.random.key(3), **LAPLACE)
    np.testing.assert_allclose(np.sum(estimate.draws, axis=1), 30, rtol=1e-12)
    assert_normal(estimate, *level_law(noisy.with_exact(Total(4), [30])))


@pytest.mark.slow
def test_contradictory_exact_counts_name_a_row():
    with pytest.raises(ValueError, match=r"No cells of the model keep all exact counts: row [67], which says (33|34), is missed"):
        posterior(NOISY.with_exact(TWICE, [33.0, 34.0]), level_prior, key=jax.random.key(0), **LAPLACE)


# --- Laplace noise and positive cells: quadrature. ---

SHAPES, RATE = np.array([2.0, 1.0, 3.0, 2.0]), 0.5
# The last two are never measured.
PAIR = Dense(np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]))
POINTS = np.linspace(0, 60, 2401)[1:] - 0.0125


def gamma_prior():
    """Of which the second is exponential."""
    with numpyro.plate("people", 4):
        return numpyro.sample("cells", dist.Gamma(SHAPES, RATE))


def log_gamma(x, i):
    return (SHAPES[i] - 1) * np.log(x) - RATE * x


def assert_on_grid(draws, points, logs, *, slack=0.0):
    """One column of draws, of two chains, is of a density known on a grid of equal steps: its logarithm, but for a constant."""
    weights = np.exp(logs - logs.max())
    mean, stddev = moments(points, weights)
    right = points + (points[1] - points[0]) / 2  # up to where a point's weight reaches
    quantiles = np.interp(FINE, np.cumsum(weights) / weights.sum(), right)
    below = dict(zip(FINE, quantiles, strict=True))
    assert_draws_are_of(np.asarray(draws)[:, None], 2, mean, stddev, below, slack=slack)


def of_gamma(values, scale, key, row=(0, 0, 0, 1), count=0):
    """A posterior where the last cell, and maybe another sum, is known: with them in every test there is one program."""
    exact = Dense(np.array([row, [0, 0, 0, 1]]))
    values, scale = np.append(values, [3.0, 4.0]), np.append(scale, [np.inf, np.inf])
    measurement = dp.Measurement(PAIR, values, "laplace", scale).with_exact(exact, [count, 0])
    estimate = posterior(measurement, gamma_prior, key=jax.random.key(key), **NUTS, max_tree_depth=7, target_accept=0.95)
    draws = np.asarray(estimate.draws)
    assert np.isfinite(draws).all()
    np.testing.assert_array_equal(draws[:, 3], 0)
    np.testing.assert_allclose(draws @ np.array(row), count, rtol=1e-12)
    assert np.all(draws >= 0)
    return draws, estimate


@pytest.mark.slow
def test_laplace_noise_and_a_gamma_prior_are_as_by_quadrature():
    values, scale = [-1, 4, 7, 6], [2, 3, 1.5, 4]
    draws, estimate = of_gamma(values, scale, 4)
    assert np.all(draws[:, :3] > 0)
    x, y = POINTS[:, None], POINTS[None, :]
    logs = log_gamma(x, 0) + log_gamma(y, 1) - np.abs(x + y - values[3]) / scale[3]
    logs = logs - np.abs(x - values[0]) / scale[0] - np.abs(y - values[1]) / scale[1]
    for i in (0, 1):
        assert_on_grid(draws[:, i], POINTS, np.log(np.exp(logs).sum(axis=1 - i)))
    assert_on_grid(draws[:, 2], POINTS, log_gamma(POINTS, 2) - np.abs(POINTS - values[2]) / scale[2])
    ends = np.asarray(estimate.answer(WORKLOAD).interval(0.9))
    np.testing.assert_allclose(ends, np.quantile(draws @ np.asarray(WORKLOAD.matrix).T, [0.05, 0.95], axis=0), atol=1e-9)
    assert not estimate.sites  # the only one is as many numbers as the cells


@pytest.mark.slow
def test_exact_counts_of_positive_cells_are_as_by_quadrature():
    draws, estimate = of_gamma([12, 22, 7, 1], [2, 3, 1.5, np.inf], 5, [1, 1, 0, 0], 30)
    x = (np.arange(6000) + 0.5) / 200
    # Softening and raking leave less than a hundredth.
    logs = log_gamma(x, 0) + log_gamma(30 - x, 1) - np.abs(x - 12) / 2 - np.abs(30 - x - 22) / 3
    assert_on_grid(draws[:, 0], x, logs, slack=0.01)
    assert_on_grid(draws[:, 2], POINTS, log_gamma(POINTS, 2) - np.abs(POINTS - 7) / 1.5)
    assert np.max(estimate.sampling.r_hat) < 1.02
    assert estimate.sampling.divergences <= 8, estimate.sampling.divergences  # one of a thousand draws


@pytest.mark.slow
def test_cells_of_a_sum_known_to_be_zero_are_zero():
    draws, _ = of_gamma([3, 4, 7, 1], [2, 3, 1.5, 4], 7, [1, 1, 0, 0])
    np.testing.assert_array_equal(draws[:, :2], 0)
    assert_on_grid(draws[:, 2], POINTS, log_gamma(POINTS, 2) - np.abs(POINTS - 7) / 1.5)
    draws, _ = of_gamma([3, 4, 7, 1], [2, 3, 1.5, 4], 8, [1, 0, 0, 0])
    np.testing.assert_array_equal(draws[:, 0], 0)
    assert_on_grid(draws[:, 1], POINTS, log_gamma(POINTS, 1) - np.abs(POINTS - 4) / 3 - np.abs(POINTS - 1) / 4)


@pytest.mark.slow
def test_a_known_total_of_cells_that_noise_hardly_tells_leaves_the_prior_given_it():
    # Noise about as large as the cells.
    draws, estimate = of_gamma([3, 4, 7, 1], [2, 3, 1.5, np.inf], 5, [1, 1, 0, 0], 10)
    x = (np.arange(4000) + 0.5) / 400
    logs = log_gamma(x, 0) + log_gamma(10 - x, 1) - np.abs(x - 3) / 2 - np.abs(10 - x - 4) / 3
    assert_on_grid(draws[:, 0], x, logs, slack=0.01)
    assert np.min(estimate.sampling.ess) > 400
    # Nothing measured but the total: a Dirichlet law.
    law = scipy.stats.beta(SHAPES[:3], SHAPES[:3].sum() - SHAPES[:3])
    for total in (12, 300):
        draws, estimate = of_gamma(np.zeros(4), np.full(4, np.inf), 6, [1, 1, 1, 0], total)
        below = {share: law.ppf(share) for share in (0.1, 0.5, 0.9)}
        assert_draws_are_of(draws[:, :3] / total, 2, law.mean(), law.std(), below, slack=0.01)
        assert np.max(estimate.sampling.r_hat) < 1.05, total
        assert np.min(estimate.sampling.ess) > 100, total


# --- The likelihood. ---


def log_density(noise, missed, scale):
    """Of one noise, each of the four laws from its definition; at whole numbers."""
    if noise == "laplace":
        return scipy.stats.laplace.logpdf(missed, scale=scale)
    if noise == "gaussian":
        return scipy.stats.norm.logpdf(missed, scale=scale)
    if noise == "discrete_laplace":
        return scipy.stats.dlaplace.logpmf(np.round(missed), 1 / scale)
    far = np.arange(-2000.0, 2001.0)
    return -(missed**2) / (2 * scale**2) - np.log(np.exp(-(far**2) / (2 * scale**2)).sum())


@pytest.mark.parametrize("noise", dp.noise.NAMES)
def test_the_likelihood_is_the_law_of_the_noise(noise):
    queries, cells = Tree.complete(4, 2), np.array([3.0, 0.0, 7.0, 2.0])
    missed, scale = np.array([0.0, 4, -3, 1, -90, 2]), np.array([0.15, 0.7, 1.9, 2.1, 60.0, np.inf])
    values = np.asarray(queries @ cells) + missed
    one = observed(dp.Measurement(queries, values, noise, scale))
    expected = sum(log_density(noise, k, b) for k, b in zip(missed[:-1], scale[:-1], strict=True))
    assert one.log_likelihood(jnp.asarray(cells)) == pytest.approx(expected, rel=1e-12)
    # Each law falls by its own formula between the whole numbers, too, and the row that was not measured plays no part.
    rng = np.random.default_rng(0)
    rows, power = np.asarray(queries @ np.eye(4))[:-1], 2 if "gaussian" in noise else 1

    def formula(cells):
        units = np.abs(values[:-1] - rows @ cells) / scale[:-1]
        return -(units**power / power).sum()

    at_mean = float(one.log_likelihood(jnp.asarray(cells))) - formula(cells)
    slope = jax.jit(jax.value_and_grad(one.log_likelihood))
    for other in rng.uniform(-5, 10, (5, 4)):
        found, gradient = slope(jnp.asarray(other))
        assert found == pytest.approx(formula(other) + at_mean, rel=1e-12)
        finite = [(formula(other + 1e-6 * e) - formula(other - 1e-6 * e)) / 2e-6 for e in np.eye(4)]
        np.testing.assert_allclose(gradient, finite, rtol=1e-6, atol=1e-6)


def test_the_smooth_likelihood_has_the_curvature_of_the_law_and_is_near_it():
    scale = np.array([0.5, 3.0, 20.0])
    one = observed(dp.Measurement(Identity(3), [1.0, -2, 5], "laplace", scale))
    curvature = jax.jit(jax.hessian(partial(one.log_likelihood, smooth=True)))(jnp.asarray([1.0, -2, 5]))
    np.testing.assert_allclose(curvature, -np.diag(1 / scale**2), rtol=1e-12, atol=1e-12)
    cells = np.random.default_rng(1).normal(0, 50, (200, 3))
    plain, smooth = (
        np.asarray(jax.jit(jax.vmap(partial(one.log_likelihood, smooth=s)))(jnp.asarray(cells))) for s in (False, True)
    )
    assert np.all((smooth >= plain) & (smooth <= plain + 3))
    gaussian = observed(dp.Measurement(Identity(3), [1.0, -2, 5], "gaussian", scale))
    at = jnp.asarray(cells[0])
    assert gaussian.log_likelihood(at, smooth=True) == gaussian.log_likelihood(at)


@pytest.mark.slow
def test_exact_counts_are_narrow_normal_observations_and_zero_sums_close_cells():
    each = Dense(np.vstack([np.eye(4, dtype=int), np.ones((2, 4), dtype=int)]))
    noisy = dp.Measurement(each, [1.0, 2, 3, 4, 0, 0], "gaussian", np.array([2, 2, 2, 2, np.inf, np.inf]))
    one = observed(noisy.with_exact(Dense(np.array([[1, 1, 1, 1], [0, 0, 1, 1]])), [11, 7]))
    cells = jnp.asarray([1.0, 2, 3, 4.5])
    # Noise of 2 on each of four cells leaves their sum a standard deviation of 4, of which a twentieth is taken; and of two.
    expected = (
        scipy.stats.norm.logpdf([0, 0, 0, 0.5], scale=2).sum() + scipy.stats.norm.logpdf(0.5, scale=[0.2, 0.1 * 2**0.5]).sum()
    )
    assert one.log_likelihood(cells) == pytest.approx(expected, rel=1e-3)
    assert one.allowed is None
    np.testing.assert_array_equal(one.possible(cells), cells)
    closed = observed(noisy.with_exact(Dense(np.array([[1, 0, 1, 0], [0, 0, 0, 0]])), [0, 0]))
    np.testing.assert_array_equal(closed.possible(cells), [0, 2, 0, 4.5])


# --- A scale that is inferred. ---


def unknown_scale():
    scale = numpyro.sample("scale", dist.HalfNormal(3.0))
    with numpyro.plate("people", 8):
        return numpyro.sample("cells", dist.Normal(0.0, scale))


def with_noise(noise, key):
    """Asserts the law of scale and cells. Cells integrate out: values are normal with variance scale^2 + noise^2."""
    truth = np.array([-2.0, 0.4, 1.5, -3.1, 2.6, 0.9, -1.2, 0.3])
    values = truth + noise * np.array([0.7, -1.1, 0.2, 1.6, -0.4, 0.8, -0.9, 0.1])
    scale = (np.arange(8000) + 0.5) / 500
    variance = scale**2 + noise**2
    logs = -(scale**2) / 18 - 4 * np.log(variance) - (values**2).sum() / (2 * variance)
    measurement = dp.Measurement(Identity(8), values, "gaussian", np.full(8, noise))
    estimate = posterior(measurement, unknown_scale, key=jax.random.key(key), **NUTS)
    assert set(estimate.sites) == {"scale"}
    assert np.max(estimate.sampling.r_hat) < 1.02
    assert estimate.sampling.divergences <= 8, estimate.sampling.divergences  # one of a thousand draws
    assert_on_grid(estimate.sites["scale"], scale, logs)
    # Given the scale cells are values shrunken by a share.
    weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    share = scale**2 / variance
    mean = (weights * share).sum() * values
    square = (weights * share).sum() * noise**2 + (weights * share**2).sum() * values**2
    assert_draws_are_of(estimate.draws, 2, mean, np.sqrt(square - mean**2), {})


@pytest.mark.slow
def test_an_inferred_scale_is_as_by_quadrature_whether_the_data_tell_or_not():
    # Cells keep their scale in the first case, and are standard normal numbers in the last.
    for noise in (0.02, 0.3, 12.0):
        with_noise(noise, 10)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_an_inferred_scale_is_as_by_quadrature_where_the_data_tell_some(noise):
    # The data do not exclude that the scale is near 0, and the cells with it.
    with_noise(noise, 11)


# --- Where it starts. ---


@pytest.mark.slow
def test_it_starts_wherever_the_data_are():
    # Millions where the prior says some: a prior's slope of 1/2 against the noise's of 1 and 2.
    draws, estimate = of_gamma([1e6, 2e6, 3e6, 3e6], np.ones(4), 11)
    np.testing.assert_allclose(draws[:, :3].mean(axis=0), [1e6, 2e6, 3e6], atol=5)
    assert np.max(estimate.sampling.r_hat) < 1.02
    # Less than nothing: a gamma law of the rate that the noise's slopes add to.
    draws, estimate = of_gamma([-50, -60, -70, -80], np.ones(4), 11)
    law = scipy.stats.gamma(SHAPES[:3], scale=1 / (RATE + np.array([2.0, 2, 1])))
    assert_draws_are_of(draws[:, :3], 2, law.mean(), law.std(), {share: law.ppf(share) for share in (0.1, 0.9)})
    # Nothing measured: the prior.
    draws, estimate = of_gamma(np.zeros(4), np.full(4, np.inf), 11)
    law = scipy.stats.gamma(SHAPES[:3], scale=1 / RATE)
    assert_draws_are_of(draws[:, :3], 2, law.mean(), law.std(), {share: law.ppf(share) for share in (0.1, 0.9)})


def flat_prior():
    """Nearly."""
    return numpyro.sample("cells", dist.Normal(0.0, 1e6).expand([4]))


@pytest.mark.slow
def test_in_32_bit_a_nearly_flat_prior_leaves_large_values_to_rounding():
    with jax.enable_x64(False):
        values = np.array([1e7, 1.2e7, 9e6, 1.5e7])
        estimate = posterior(dp.Measurement(Identity(4), values, "gaussian", 10.0), flat_prior, key=jax.random.key(13), **NUTS)
        assert estimate.cells.dtype == np.float32
        assert np.isfinite(estimate.draws).all()
        # Numbers of this size are at most 1 apart.
        np.testing.assert_allclose(estimate.cells, values / (1 + 1e-10), atol=2)
        np.testing.assert_allclose(np.std(estimate.draws, axis=0), 10, rtol=0.1)


def test_in_32_bit_counts_that_floats_cannot_tell_apart_are_refused():
    with jax.enable_x64(False):
        measurement = dp.Measurement(Identity(4), np.array([1.0, 2, 2.0**24 + 2, 4]), "gaussian", 10.0)
        with pytest.raises(ValueError, match=r"values holds magnitudes above 2\*\*24"):
            posterior(measurement, flat_prior, key=jax.random.key(13))


# --- Many problems, and inside jit. ---


@pytest.mark.slow
def test_many_problems_at_once_are_what_each_is_alone():
    values = np.asarray(NOISY.values) + np.arange(18).reshape(3, 6)
    scale, key = np.asarray(NOISY.scale) * np.arange(1.0, 4)[:, None], jax.random.key(14)

    def fit(measurement, key):
        estimate = posterior(measurement, normal_prior, key=key, **SVI)
        sampling = estimate.sampling
        assert sampling.r_hat is sampling.ess is sampling.site_r_hat is sampling.site_ess is sampling.divergences is None
        answers = estimate.answer(Total(4))
        return estimate.cells, answers.stddev, answers.interval(0.9, joint=True), estimate.sites, sampling

    many = dp.map_problems(fit, dp.Measurement.batch(QUERIES, values, "gaussian", scale), key=key)
    for i in range(3):
        alone = fit(dp.Measurement(QUERIES, values[i], "gaussian", scale[i]), jax.random.fold_in(key, i))
        for found, expected in zip(jax.tree.leaves(many), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(found[i], expected, rtol=1e-6, atol=1e-6)


def exponential_cell():
    return numpyro.sample("cells", dist.Exponential(0.2).expand([1]).to_event(1))


@pytest.mark.slow
def test_chains_run_inside_jit_on_a_single_cell_with_discrete_noise():
    @jax.jit
    def inside(values, key):
        estimate = posterior(dp.Measurement(Identity(1), values, "discrete_laplace", 2.0), exponential_cell, key=key, **NUTS)
        sampling = estimate.sampling
        assert sampling.r_hat is sampling.ess is sampling.site_r_hat is sampling.site_ess is None
        return estimate.cells, estimate.draws, sampling.divergences, sampling.accept

    cells, draws, divergences, accept = inside(jnp.asarray([3]), jax.random.key(9))
    assert draws.shape == (8000, 1)
    np.testing.assert_allclose(cells, draws.mean(axis=0), rtol=1e-12)
    assert_on_grid(np.asarray(draws)[:, 0], POINTS, -0.2 * POINTS - np.abs(POINTS - 3) / 2)
    assert divergences == 0
    assert accept.shape == (2,)


# --- What comes out. ---


@pytest.mark.slow
def test_the_result_has_draws_sites_and_diagnostics_by_chain():
    domain = dp.Domain({"sex": dp.Axis.categories(["f", "m"]), "age": dp.Axis.integers(0, 2)})
    release = dp.Release.from_values(FREE.queries, FREE.values, noise="gaussian", scale=FREE.scale, domain=domain)
    estimate = posterior(release, level_prior, key=jax.random.key(1), **NUTS)
    assert isinstance(estimate, inference.SampledEstimate)
    assert estimate.sampling is not None
    assert estimate.domain == domain
    assert estimate.draws.shape == estimate.errors.shape == (8000, 4)
    np.testing.assert_allclose(np.asarray(estimate.draws).mean(axis=0), estimate.cells, rtol=1e-12)
    sampling = estimate.sampling
    assert (sampling.method, sampling.num_chains, sampling.num_draws, sampling.losses) == ("nuts", 2, 4000, None)
    assert np.shape(sampling.r_hat) == np.shape(sampling.ess) == (4,)
    assert np.all(np.abs(sampling.r_hat - 1) < 0.01)
    assert np.all(sampling.ess > 1000)
    assert set(sampling.site_r_hat) == set(sampling.site_ess) == {"level"}
    assert sampling.site_r_hat["level"].shape == sampling.site_ess["level"].shape == ()
    assert sampling.divergences == 0
    assert np.shape(sampling.accept) == (2,)
    assert np.all((sampling.accept > 0.6) & (sampling.accept <= 1))
    assert sampling.num_steps >= 8000
    dataset = estimate.dataset()
    assert dataset["cells"].dims == ("chain", "draw", "sex", "age")
    assert dict(dataset.sizes) == {"chain": 2, "draw": 4000, "sex": 2, "age": 2}
    np.testing.assert_array_equal(dataset["cells"].values.reshape(8000, 4), estimate.draws)
    np.testing.assert_array_equal(dataset["cells"].sel(sex="m", age="0").values.ravel(), np.asarray(estimate.draws)[:, 2])
    assert dataset["level"].dims == ("chain", "draw")
    assert dataset.attrs == {"method": "nuts"}
    other = estimate.dataset(dp.Domain({"place": dp.Axis.integers(0, 4)}))
    assert other["cells"].dims == ("chain", "draw", "place")
    with pytest.raises(ValueError, match="domain must have the estimate's 4 cells, got 3"):
        estimate.dataset(dp.Domain({"place": dp.Axis.integers(0, 3)}))
    with pytest.raises(ValueError, match="An axis must not be called draw"):
        estimate.dataset(dp.Domain({"draw": dp.Axis.integers(0, 4)}))
    # Single and joint intervals.
    answers = estimate.answer(WORKLOAD)
    (lower, upper), (low, high) = (np.asarray(answers.interval(0.8, joint=joint)) for joint in (False, True))
    assert np.all((low < lower) & (high > upper))
    draws = np.asarray(answers.values) - np.asarray(answers.errors)
    assert ((draws >= low) & (draws <= high)).all(axis=1).mean() == pytest.approx(0.8, abs=1e-3)
    assert np.all(np.abs(((draws >= lower) & (draws <= upper)).mean(axis=0) - 0.8) < 1e-3)
    # The same key to the bit, without a domain; and another.
    again = posterior(FREE, level_prior, key=jax.random.key(1), **NUTS)
    np.testing.assert_array_equal(again.draws, estimate.draws)
    assert again.domain is None
    assert again.dataset()["cells"].dims == ("chain", "draw", "cell")
    assert not np.array_equal(posterior(FREE, level_prior, key=jax.random.key(2), **NUTS).draws, estimate.draws)


@pytest.mark.slow
def test_the_sites_asked_for_are_kept_beside_the_cells():
    estimate = posterior(NOISY, normal_prior, key=jax.random.key(1), sites=["pair", "cells"], **SVI)
    assert set(estimate.sites) == {"pair", "cells"}
    np.testing.assert_allclose(estimate.sites["cells"], estimate.draws, atol=1e-12)
    assert posterior(NOISY, normal_prior, key=jax.random.key(1), sites=[], **SVI).sites == {}
    sampling = estimate.sampling
    assert (sampling.method, sampling.num_chains, sampling.r_hat, sampling.divergences) == ("svi", 1, None, None)
    domain = dp.Domain({"age": dp.Axis.integers(0, 4)})
    dataset = estimate.dataset(domain)
    assert dataset["cells"].dims == ("chain", "draw", "age")
    assert dataset["pair"].shape == (1, 8000, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "options"), [((FREE, level_prior), NUTS), ((NOISY, normal_prior), SVI)], ids=["nuts", "svi"])
def test_progress_is_told_in_order_and_to_the_end(given, options):
    told = []

    def tell(done, in_all):
        if len(told) < 5 and done // 100 % 2:
            time.sleep(0.02)
        told.append((done, in_all))

    posterior(*given, key=jax.random.key(1), progress=tell, **options)
    assert len(told) > 3
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


@pytest.mark.slow
def test_a_fit_takes_no_more_steps_than_it_may():
    # With a guide and a schedule of one's own.
    options = {"guide": autoguide.AutoDiagonalNormal, "learning_rate": optax.cosine_decay_schedule(0.05, 300)}
    sampling = posterior(
        NOISY, normal_prior, method="svi", key=jax.random.key(1), num_steps=300, num_draws=100, **options
    ).sampling
    assert (sampling.method, sampling.num_chains, sampling.num_draws) == ("svi", 1, 100)
    assert not sampling.converged
    assert np.all(np.isfinite(sampling.losses))
    assert sampling.num_steps <= 300


# --- What it refuses. ---


def one_normal(name="cells", n=4) -> Any:
    return numpyro.sample(name, dist.Normal().expand([n]))


def with_parameter():
    numpyro.param("rate", 1.0)
    return one_normal()


def discrete():
    return one_normal() + numpyro.sample("kind", dist.Poisson(3.0))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda rate, more=2: one_normal(), "model must take no arguments, got one that needs rate"),
        (partial(one_normal, n=5), r"model must return cells of shape \[4\], floating, got shape \[5\] of float64"),
        (lambda: one_normal()[:, None], r"model must return cells of shape \[4\], floating, got shape \[4, 1\]"),
        (lambda: jnp.round(one_normal()).astype(int), r"model must return cells of shape \[4\], floating, .* of int64"),
        (partial(one_normal, "dpinfer.cells"), "model must not name a site 'dpinfer.cells': names that start with 'dpinfer.'"),
        (discrete, "model must have continuous latent sites, 'kind' is discrete"),
        (lambda: jnp.arange(4.0), "model must have at least one latent site, got none"),
        (with_parameter, "model must have no param sites, only priors; got 'rate'"),
    ],
)
def test_models_that_are_none_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        posterior(NOISY, model, key=jax.random.key(0))


def test_a_model_must_be_a_function():
    with pytest.raises(ValueError, match="model must be a numpyro function that returns the cells, got int"):
        latent_of(3, 4)  # which is where ``posterior`` looks; tests have its arguments' types checked before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "mcmc"}, "method must be one of 'nuts', 'svi', 'laplace', got 'mcmc'"),
        ({"guide": "normal"}, "guide is for method='svi', got it with method='nuts'"),
        ({"method": "svi", "num_chains": 2}, "num_chains is for method='nuts', got it with method='svi'"),
        ({"method": "laplace", "learning_rate": 0.1}, "learning_rate is for method='svi', got it with method='laplace'"),
        ({"num_steps": 10}, "num_steps is for method='svi', 'laplace', got it with method='nuts'"),
        ({"num_draws": 3}, "num_draws must be at least 4"),
        ({"num_chains": 0}, "num_chains must be at least 1"),
        ({"num_warmup": 0}, "num_warmup must be at least 1"),
        ({"max_tree_depth": 0}, "max_tree_depth must be at least 1"),
        ({"target_accept": 1.0}, "target_accept must be between 0 and 1, got 1.0"),
        ({"key": jax.random.PRNGKey(0)}, "key must be one typed key"),
        ({"key": jax.random.split(jax.random.key(0), 2)}, "key must be one typed key"),
        ({"sites": ["total", "totals"]}, "sites must list names of the model's sites .cells, total, pair., got 'totals'"),
        ({"sites": ["survey"]}, "sites must list names of the model's sites .cells, total, pair., got 'survey'"),
        ({"sites": "total"}, "sites must list names of the model's sites .cells, total, pair., got 'total'"),
        ({"method": "svi", "learning_rate": 0.0}, "learning_rate must be a positive number or an optax schedule, got 0.0"),
        ({"method": "svi", "learning_rate": -1}, "learning_rate must be a positive number or an optax schedule, got -1"),
        ({"method": "svi", "learning_rate": np.nan}, "learning_rate must be a positive number or an optax schedule, got nan"),
        ({"method": "svi", "learning_rate": "fast"}, "learning_rate must be a positive number or an optax schedule, got 'fast'"),
        ({"method": "svi", "guide": "flow"}, "guide must be one of 'normal', 'low_rank', 'multivariate', got 'flow'"),
        ({"method": "svi", "num_steps": 0}, "num_steps must be at least 1"),
        ({"num_draws": 2**25}, r"draws x cells must be at most 2\*\*28, got 134217728 x 4"),
        ({"measurement": np.zeros(4)}, "measurement"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        posterior(**{"measurement": NOISY, "model": normal_prior, "key": jax.random.key(0), **arguments})


@pytest.mark.slow
def test_too_many_numbers_for_a_curvature_are_refused(monkeypatch):
    monkeypatch.setattr(laplace, "MAX_SIZE", 4)
    with pytest.raises(ValueError, match="method='laplace' takes up to 4 latent numbers, model has 5: use 'svi' or 'nuts'"):
        posterior(FREE, level_prior, method="laplace", key=jax.random.key(0))


@pytest.mark.slow
def test_exact_counts_hold_inside_jit_where_their_scale_is_known():
    outside = dp.Measurement(Identity(4), np.zeros(4), "laplace", 2.0).with_exact([[1, 1, 0, 0], [0, 0, 0, 1]], [30, 0])

    @jax.jit
    def draws(values):
        measurement = dp.Measurement(outside.queries, values, outside.noise, outside.scale)
        return posterior(measurement, gamma_prior, method="laplace", key=jax.random.key(0), num_draws=50).draws

    found = np.asarray(draws(jnp.array([12.0, 22, 7, 1, 30, 0])))
    np.testing.assert_allclose(found[:, :2].sum(axis=1), 30, rtol=1e-9)
    np.testing.assert_array_equal(found[:, 3], 0)


@pytest.mark.slow
def test_a_mode_is_not_where_a_scale_and_its_values_vanish():
    def model():
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        return jnp.exp(numpyro.sample("logs", dist.Normal(1.0, scale).expand([4])))

    values = np.array([3.0, 4, 5, 6])
    found = posterior(dp.Measurement(Identity(4), values, "laplace", 1.5), model, method="laplace", key=jax.random.key(0))
    assert found.sampling.converged
    cells = np.asarray(found.cells)
    assert np.all(np.diff(cells) > 0.2)  # in the values' order, drawn to each other
    np.testing.assert_allclose(cells, values, atol=1.5)


@pytest.mark.slow
def test_a_known_total_leaves_cells_that_were_not_measured_their_law():
    draws, estimate = of_gamma([30, 20, 0, 0], [0.05, 0.05, np.inf, np.inf], 12, [1, 1, 1, 0], 100)
    np.testing.assert_allclose(draws[:, :2].mean(axis=0), [30, 20], atol=0.1)
    # The third cell is what the others leave: 50 less noise of the two, each with a standard deviation of at most 0.07.
    assert draws[:, 2].mean() == pytest.approx(50, abs=0.2)
    assert draws[:, 2].std() < 0.15
    assert np.max(estimate.sampling.r_hat) < 1.02
