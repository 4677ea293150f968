"""Ranks and coverage against posteriors and laws that are known exactly."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

import dpinfer as dp
from dpinfer.evaluation import Calibration, simulate_coverage, simulation_based_calibration
from dpinfer.queries import Identity, Total, VStack

SPREAD, N = 3.0, 4
STRATEGY = VStack([Identity(N), Total(N)])
MATRIX = np.vstack([np.eye(N), np.ones(N)])


def normal_cells():
    with numpyro.plate("cells", N):
        return numpyro.sample("x", dist.Normal(10.0, SPREAD))


def drawn(factor=1.0, shift=0.0):
    """Draws from the exact posterior of normal cells, their deviations times a factor and shifted."""

    def infer(measurement, key):
        weight = MATRIX.T / jnp.asarray(measurement.scale) ** 2
        covariance = jnp.linalg.inv(weight @ MATRIX + np.eye(N) / SPREAD**2)
        mean = covariance @ (weight @ measurement.values + 10.0 / SPREAD**2)
        noise = jax.random.normal(key, (200, N)) @ jnp.linalg.cholesky(covariance).T
        return mean[None] + factor * noise + shift

    return infer


def of_prior(_, key):
    return 10 + SPREAD * jax.random.normal(key, (200, N))


def calibration(infer, **options):
    settings = {"rho": 0.02, "key": jax.random.key(3), "num_problems": 400, **options}
    return simulation_based_calibration(STRATEGY, normal_cells, infer, **settings)


@pytest.mark.slow
def test_exact_posteriors_have_uniform_ranks():
    found = calibration(drawn(), num_problems=800, quantities={"first twice": lambda cells: 2 * cells[0]})
    assert set(found.ranks) == {"a cell", "total", "largest", "likelihood", "first twice"}
    for name, p in found.p_values.items():
        assert p > 0.01, name
        ranks = found.ranks[name]
        assert ranks.shape == (800,)
        assert ranks.min() >= 0
        assert ranks.max() <= found.num_draws == 63
        # The mean and the variance of a uniform rank of 64, within 4 standard errors of 800 (kurtosis 1.8).
        assert ranks.mean() == pytest.approx(31.5, abs=4 * 18.5 / 800**0.5)
        assert ranks.var() == pytest.approx((64**2 - 1) / 12, rel=4 * (0.8 / 800) ** 0.5)
    for level in (0.5, 0.9):
        for share, error in found.coverage(level).values():
            assert share == pytest.approx(level, abs=4 * error)
            assert error < 0.02
    assert found.converged.all()


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["narrow", "wide", "shifted", "prior"])
def test_wrong_posteriors_do_not(wrong):
    infer = {"narrow": drawn(factor=0.6), "wide": drawn(factor=1.6), "shifted": drawn(shift=1.0), "prior": of_prior}[wrong]
    found = calibration(infer)
    if wrong == "prior":  # which only the likelihood tells
        assert found.p_values["likelihood"] < 1e-6
        assert all(p > 0.01 for name, p in found.p_values.items() if name != "likelihood")
        return
    assert found.p_values["a cell"] < 1e-6
    assert found.p_values["total"] < 1e-6
    # And the shape of the histogram says what is wrong.
    bins = found.histogram("total")
    middle = bins[7:9]
    if wrong == "narrow":
        assert min(bins[0], bins[-1]) > 1.4 * middle.max()
    elif wrong == "wide":
        assert max(bins[0], bins[-1]) < 0.6 * middle.min()
    else:  # draws too large: hardly any below the truth
        assert bins[0] > 3 * bins[-1]


@pytest.mark.slow
def test_problems_may_be_chosen_by_their_noisy_values():
    found = calibration(drawn(), accept=lambda measurement: measurement.values[-1] > 45)
    assert all(p > 0.01 for p in found.p_values.values())
    with pytest.raises(ValueError, match="accept must keep more problems: of 102400 drawn from model it kept 0, 2 are needed"):
        calibration(drawn(), accept=lambda measurement: jnp.asarray(False), num_problems=2)


@pytest.mark.slow
def test_the_same_ranks_compiled_or_not_and_for_any_number_of_cores(monkeypatch):
    ways = [calibration(drawn(), num_problems=4, compiled=compiled).ranks for compiled in (True, False)]
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    ways.append(calibration(drawn(), num_problems=4).ranks)
    for other in ways[1:]:
        for name, ranks in ways[0].items():
            np.testing.assert_array_equal(ranks, other[name])


@pytest.mark.slow
def test_ties_are_broken_evenly():
    # Cells that are 0 in half of the problems, and draws that are always 0: where the truth is, any rank is as likely.
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return jnp.maximum(x, 0.0)[None]

    found = simulation_based_calibration(
        Identity(1), model, lambda _, key: jnp.zeros((3, 1)), epsilon=1, key=jax.random.key(0), num_problems=400, num_draws=3
    )
    counts = np.bincount(found.ranks["a cell"], minlength=4)
    # 1/8 of the problems each, and the other half above all draws.
    for count, share in zip(counts, [0.125, 0.125, 0.125, 0.625], strict=True):
        assert scipy.stats.binomtest(int(count), 400, share).pvalue > 1e-3


@pytest.mark.slow
def test_sites_of_few_numbers_are_ranked_number_by_number():
    def model():
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        pair = numpyro.sample("pair", dist.Normal(mean, 1.0).expand([2]))
        numpyro.deterministic("many", jnp.ones(9))
        return jnp.concatenate([pair, pair])

    def infer(measurement, key):
        draws = jnp.zeros((8, 4))
        sites = {"mean": jnp.full(8, -9.0), "pair": jnp.full((8, 2), 9.0), "many": jnp.ones((8, 9))}
        return dp.inference.SampledEstimate(draws[0], draws, sites)

    found = simulation_based_calibration(Identity(4), model, infer, epsilon=1, key=jax.random.key(0), num_problems=5, num_draws=7)
    assert set(found.ranks) == {"a cell", "total", "largest", "likelihood", "mean", "pair[0]", "pair[1]"}
    assert (found.ranks["mean"] == 7).all()
    assert (found.ranks["pair[1]"] == 0).all()


def test_histograms_and_coverage_by_hand():
    found = Calibration({"x": np.array([0, 0, 1, 2, 3])}, 3, np.ones(5, dtype=bool))
    assert found.num_bins == 2
    assert found.histogram("x").tolist() == [3, 2]
    assert found.p_values["x"] == pytest.approx(scipy.stats.chisquare([3, 2]).pvalue)
    # The steps are quarters: the central half is all of ranks 1 and 2, the central three quarters half of 0 and 3, too.
    assert found.coverage(0.5)["x"][0] == pytest.approx(2 / 5)
    assert found.coverage(0.75)["x"] == pytest.approx((3.5 / 5, np.std([0.5, 0.5, 1, 1, 0.5], ddof=1) / 5**0.5))
    table = found.table(levels=[0.75])
    assert list(table) == ["quantity", "p_value", "coverage_75", "standard_error_75"]
    assert table["coverage_75"].tolist() == [0.7]
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 1"):
        found.coverage(1)
    uneven = Calibration({"x": np.repeat(np.arange(5), 4)}, 4, np.ones(20, dtype=bool))  # five ranks in two bins
    assert uneven.shares.tolist() == [0.6, 0.4]
    assert uneven.histogram("x").tolist() == [12, 8]
    assert uneven.p_values["x"] == pytest.approx(1)


@pytest.mark.slow
def test_intervals_of_least_squares_cover():
    truth = np.array([3, 0, 7, 1])

    def covered(**options):
        settings: dict[str, Any] = {"num_releases": 40, "levels": [0.5, 0.9], **options}
        return simulate_coverage(STRATEGY, infer, truth, MATRIX, epsilon=0.5, key=jax.random.key(1), **settings)

    def infer(measurement, _):
        return dp.least_squares(measurement)

    found = covered(num_releases=200)
    assert found.answer_share.shape == (2, 5)
    np.testing.assert_allclose(found.share, [0.5, 0.9], atol=4 * found.standard_error.max())
    assert found.standard_error.max() < 0.03
    np.testing.assert_allclose(found.share, found.answer_share.mean(axis=1), rtol=1e-12)
    exact = dp.least_squares(dp.Measurement(STRATEGY, np.zeros(5), "laplace", np.full(5, 4.0))).answer(MATRIX)
    widths = [float(np.mean(np.asarray(upper) - np.asarray(lower))) for lower, upper in map(exact.interval, (0.5, 0.9))]
    np.testing.assert_allclose(found.width, widths, rtol=1e-9)
    joint = covered(joint=True)
    assert (joint.share > [0.5 - 4 * 0.08, 0.9 - 4 * 0.05]).all()  # at least
    assert set(joint.answer_share[:, 0]) == set(joint.share)  # all answers of a release, or none
    assert (joint.width > 1.1 * found.width).all()
    compiled = covered(compiled=True)
    # Under jit intervals are those of normal errors.
    spreads = np.sqrt(np.diag(MATRIX @ np.linalg.inv(MATRIX.T @ MATRIX) @ MATRIX.T)) * 4 * 2**0.5
    np.testing.assert_allclose(compiled.width, 2 * scipy.stats.norm.ppf([0.75, 0.95]) * spreads.mean(), rtol=1e-6)
    np.testing.assert_allclose(compiled.share, [0.5, 0.9], atol=4 * 0.06)


def test_ends_may_be_rounded_to_whole_numbers():
    def infer(measurement, _):
        # Draws from 2.6 to 3.4: no interval of theirs holds 2 or 4, and rounded ends are 3.
        draws = jnp.linspace(2.6, 3.4, 9)[:, None]
        return dp.inference.SampledEstimate(jnp.array([3.0]), 3.0 - draws)

    shares = [
        simulate_coverage(
            Identity(1), infer, [truth], [[1.0]], epsilon=1, key=jax.random.key(0), num_releases=2, levels=[0.1], whole=whole
        ).share[0]
        for truth, whole in ((2.9, False), (2.9, True), (3.0, True), (4.0, True))
    ]
    assert shares == [0.0, 0.0, 1.0, 0.0]


def test_bad_arguments_are_named():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match=r"infer must return at least num_draws=300 draws of 4 cells, got shape \[200, 4\]"):
        calibration(drawn(), num_draws=300)
    with pytest.raises(ValueError, match="quantities must have names of their own, got 'total'"):
        calibration(drawn(), quantities={"total": jnp.sum})
    with pytest.raises(ValueError, match=r"model must return the 3 cells of strategy, got shape \[4\]"):
        simulation_based_calibration(Identity(3), normal_cells, of_prior, epsilon=1, key=key)
    with pytest.raises(ValueError, match="exactly one of"):
        simulation_based_calibration(STRATEGY, normal_cells, of_prior, key=key)
    with pytest.raises(ValueError, match="epsilon"):
        simulation_based_calibration(STRATEGY, normal_cells, of_prior, epsilon=-1, key=key)
    with pytest.raises(ValueError, match="levels must be numbers between 0 and 1"):
        simulate_coverage(STRATEGY, of_prior, np.zeros(4), MATRIX, epsilon=1, key=key, levels=[1.5])
    with pytest.raises(ValueError, match=r"truth must have shape \[4\], got \[3\]"):
        simulate_coverage(STRATEGY, of_prior, np.zeros(3), MATRIX, epsilon=1, key=key)
