"""The numpyro models: their priors as they are described, and what is inferred under them from cells that they drew."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from numpyro import handlers

from dpinfer import models
from dpinfer.evaluation import simulation_based_calibration
from dpinfer.inference import posterior
from dpinfer.models import _laws
from dpinfer.models.segmented_counts import Segments
from dpinfer.queries import Identity, Tree

N = 12
MODELS = {
    "log_gaussian": lambda: models.log_gaussian(N),
    "log_gaussian_grid": lambda: models.log_gaussian((3, 4)),
    "sparse_counts": lambda: models.sparse_counts(N),
    "region_counts": lambda: models.region_counts(np.repeat([1, 0, 2], 4)),
    "poisson_gamma": lambda: models.poisson_gamma(N),
    "ordered_counts": lambda: models.ordered_counts(N),
    "polya_tree": lambda: models.polya_tree(Tree.complete(N, 3)),
    "count_of_counts": lambda: models.count_of_counts(N),
    "segmented_counts": lambda: models.segmented_counts(N),
}


def drawn(model, num_draws, **fixed) -> Any:
    """Sites of draws from the prior, with the cells as ""."""
    held = handlers.condition(model, data=fixed) if fixed else model

    def one(key):
        with handlers.trace() as trace, handlers.seed(rng_seed=key):
            cells = held()
        return {name: site["value"] for name, site in trace.items() if site["type"] != "plate"} | {"": cells}

    return jax.vmap(one)(jax.random.split(jax.random.key(0), num_draws))


@pytest.mark.parametrize("name", MODELS)
def test_draws_are_cells(name):
    cells = np.asarray(drawn(MODELS[name](), 200)[""])
    assert cells.shape == (200, N)
    assert np.isfinite(cells).all()
    assert (cells >= 0).all()
    assert MODELS[name]() is MODELS[name]()  # so that the same model compiles once


@pytest.mark.slow
def test_the_logarithm_of_a_smooth_histogram_has_the_variance_and_the_correlation_it_says():
    n, amplitude, length, roughness = 64, 1.5, 0.15, 0.2
    held = {"level": 2.0, "amplitude": amplitude, "length": np.array([length]), "roughness": roughness}
    logs = np.log(np.asarray(drawn(models.log_gaussian(n), 4000, **held)[""])) - 2
    # Means over the cells; 4,000 draws of a process with some seven independent parts: a standard error of 1%.
    assert np.square(logs).mean() == pytest.approx(amplitude**2 + roughness**2, rel=0.05)
    far = np.array([1, 3, 6, 13, 26])
    found = [(logs * np.roll(logs, k, axis=1)).mean() for k in far]
    apart = np.sqrt(3) * far / n / length
    matern = amplitude**2 * (1 + apart) * np.exp(-apart)
    # Wavelets have the process's variance by octaves, not its covariance exactly.
    np.testing.assert_allclose(found, matern, atol=0.2 * amplitude**2)
    assert np.all(np.diff(found) < 0)


@pytest.mark.slow
def test_of_a_rough_histogram_the_logarithms_are_independent():
    held = {"level": 0.0, "amplitude": 1e-6, "length": np.array([0.1, 0.1]), "roughness": 0.7}
    logs = np.log(np.asarray(drawn(models.log_gaussian((5, 6)), 4000, **held)[""]))
    np.testing.assert_allclose(logs.T @ logs / 4000, 0.49 * np.eye(30), atol=5 * 0.49 * (2 / 4000) ** 0.5)


@pytest.mark.slow
def test_the_share_of_empty_cells_is_as_it_says():
    held = {"level": 0.5, "tail": 2.0, "floor": 1.5}
    found = drawn(models.sparse_counts(500), 200, **held)
    cells, scores = np.asarray(found[""]), np.asarray(found["scores"])
    share = float(np.asarray(found["share"])[0])
    assert share == pytest.approx(0.30854, abs=1e-4)  # of a standard normal number above 1/2
    assert (cells > np.exp(1.5) * 0.2).mean() == pytest.approx(share, abs=0.02)
    # Half a unit away from the floor, which is 2.5 times the rounding, they are what they are called.
    above, below = scores > 2.0, scores < 1.0
    np.testing.assert_allclose(cells[above], np.exp(scores[above]) - np.exp(1.5), rtol=0.07)
    assert cells[below].max() < 0.02 * np.exp(1.5)


@pytest.mark.slow
def test_cells_of_a_region_spread_around_its_mean():
    spreads = np.array([1.0, 0.5])
    held = {"level": 3.0, "variation": 1.0, "spread": 0.3, "spreads": spreads}
    found = drawn(models.region_counts(np.repeat([0, 1], 300)), 400, **held)
    cells, means = np.asarray(found[""]).reshape(400, 2, 300), np.asarray(found["means"])
    logs = np.log(cells) - means[:, :, None]
    # 0.3 is 3.3 standard deviations below where the factor turns from an exponential to a line: less than a thousandth is beyond.
    np.testing.assert_allclose(logs.mean(axis=(0, 2)), 0, atol=5 * 0.3 / 120_000**0.5)
    np.testing.assert_allclose(logs.std(axis=(0, 2)), 0.3 * spreads, rtol=0.01)
    held = {"level": 0.0, "variation": 1e-9, "spread": 5.0, "spreads": np.ones(1)}
    wide = np.asarray(drawn(models.region_counts(np.zeros(300, int)), 400, **held)[""])
    # Exponentials of deviations with a standard deviation of 5 would have a mean of 270,000; cut, by integrating both parts:
    normal = scipy.stats.norm
    mean = np.exp(12.5) * normal.cdf(1 / 5 - 5) + np.e * 5 * normal.pdf(1 / 5)
    assert wide.mean() == pytest.approx(mean, rel=0.02)  # some 1.6 standard deviations of 120,000 cells each: 0.5%
    assert wide.max() < np.e * 5 * 6


def test_labels_must_number_the_regions():
    with pytest.raises(ValueError, match="labels must number the regions from 0 on"):
        models.region_counts([0, 2, 2])
    with pytest.raises(ValueError, match="labels must hold integers"):
        models.region_counts([0.0, 1.0])
    with pytest.raises(ValueError, match="shape must"):
        models.log_gaussian(())
    with pytest.raises(ValueError, match="n must be at least 1"):
        models.sparse_counts(0)


@pytest.mark.slow
def test_counts_are_poisson_to_the_nearest_whole_number():
    rates = np.exp(np.linspace(-12, 9, 300))
    with handlers.trace() as trace, handlers.seed(rng_seed=0):
        cells = _laws.poisson_counts("roots", jnp.log(rates))
    law, root = trace["roots"]["fn"], np.asarray(trace["roots"]["value"])
    np.testing.assert_array_equal(cells, np.maximum(root, 0) ** 2)
    for k in np.unique(np.geomspace(1, 3e4, 200).astype(int)) - 1:
        below = scipy.stats.norm.cdf(((k + 0.5) ** 0.5 - np.asarray(law.loc)) / np.asarray(law.scale))
        np.testing.assert_allclose(below, scipy.stats.poisson.cdf(k, rates), atol=0.031)


@pytest.mark.slow
def test_logarithms_of_gamma_variables():
    shapes = np.array([0.01, 0.5, 3.0])
    law = _laws.LogGamma(shapes)
    for y in np.linspace(-30, 3, 7):
        np.testing.assert_allclose(law.log_prob(np.full(3, y)), scipy.stats.loggamma.logpdf(y, shapes), rtol=1e-9)
    mean, variance = _laws.log_gamma_moments(jnp.asarray(shapes))
    np.testing.assert_allclose(mean, scipy.special.digamma(shapes), atol=1e-5)
    np.testing.assert_allclose(variance, scipy.special.polygamma(1, shapes), rtol=1e-5)
    draws = np.asarray(law.sample(jax.random.key(0), (2000,)))
    for column, shape in enumerate(shapes):
        assert scipy.stats.kstest(draws[:, column], scipy.stats.loggamma(shape).cdf).pvalue > 1e-3


@pytest.mark.slow
def test_poisson_counts_of_gamma_rates_and_exposures():
    exposure = np.array([1.0, 10.0, 0.5])
    model = models.poisson_gamma(3, exposure=exposure)
    cells = np.asarray(drawn(model, 40_000, mean=20.0, shape=4.0)[""])
    mean = 20 * exposure
    variance = mean + mean**2 / 4
    np.testing.assert_allclose(cells.mean(axis=0), mean, atol=(5 * (variance / 40_000) ** 0.5 + 0.05).max())
    np.testing.assert_allclose(cells.var(axis=0), variance, rtol=0.06)
    for bad, text in (([1.0], "one entry for each of the 3 cells"), ([1, 0, 2], "positive and finite"), ([1, np.nan, 2], "nan")):
        with pytest.raises(ValueError, match=f"exposure must.*{text}"):
            models.poisson_gamma(3, exposure=bad)


@pytest.mark.slow
def test_shares_down_a_tree_are_about_dirichlet():
    # A root with a leaf, a chain of two to a leaf, and a node of three leaves; cells in another order.
    tree = Tree.from_parents([-1, 0, 0, 0, 2, 3, 3, 3], leaf_cells=[4, 0, 2, 3, 1])
    found = drawn(models.polya_tree(tree), 40_000, total=1000.0, concentration=np.array([8.0, 0.3]))
    cells = np.asarray(found[""])
    np.testing.assert_allclose(cells.sum(axis=1), 1000, rtol=1e-9)
    first, chain, group = cells[:, 4], cells[:, 0], cells[:, [2, 3, 1]].sum(axis=1)
    # Parameters 8 x 3 x 1/5, 1/5 and 3/5: a normal law of log odds is near a beta law where these are large.
    near = scipy.stats.dirichlet([4.8, 4.8, 14.4])
    shares = np.stack([first, chain, group], axis=1) / 1000
    np.testing.assert_allclose(shares.mean(axis=0), near.mean(), atol=0.005)
    np.testing.assert_allclose(shares.var(axis=0), near.var(), rtol=0.1)
    # Below 1 one of the three has most: 0.77 by a Dirichlet law, 1/3 if all had the same.
    assert 0.7 < (cells[:, [2, 3, 1]].max(axis=1) / group).mean() < 0.85
    odds = np.asarray(found["splits"])
    # The first of the root's children against the two others: the moments are exact.
    assert odds[:, 0].mean() == pytest.approx(scipy.special.digamma(4.8) - scipy.special.digamma(19.2), abs=0.02)
    assert odds[:, 0].var() == pytest.approx(scipy.special.polygamma(1, 4.8) + scipy.special.polygamma(1, 19.2), rel=0.05)
    # A chain as deep as it likes has one leaf, which has all.
    assert np.allclose(drawn(models.polya_tree(Tree.from_parents(np.arange(-1, 99))), 3, total=7.0)[""], 7)
    with pytest.raises(ValueError, match="tree must be a Tree, got int"):
        models.polya_tree(3)


@pytest.mark.slow
def test_counts_by_rank_rise_as_lomax_quantiles():
    n, tail = 11, 0.7
    found = drawn(models.ordered_counts(n), 200, largest=500.0, tail=tail, clumping=1e9)
    cells = np.asarray(found[""])
    heights = np.cumsum(1 / np.arange(n, 0.0, -1))
    np.testing.assert_allclose(
        cells, np.broadcast_to(500 * np.expm1(tail * heights) / np.expm1(tail * heights[-1]), cells.shape), rtol=0.01
    )
    loose = drawn(models.ordered_counts(n), 20_000, largest=500.0, tail=1e-12, clumping=1.0)
    cells, odds = np.asarray(loose[""]), np.asarray(loose["splits"])
    assert (np.diff(cells, axis=1) >= 0).all()
    np.testing.assert_allclose(cells[:, -1], 500, rtol=1e-9)
    # Exponential numbers in order: eight of eleven ranks below, three above, whose rises are known.
    below, above = np.sum(1 / np.arange(11, 3, -1)), np.sum(1 / np.arange(3, 0, -1))
    assert odds[:, 0].mean() == pytest.approx(np.log(below / above), abs=0.03)
    assert odds[:, 0].var() == pytest.approx(scipy.special.polygamma(1, 8) + scipy.special.polygamma(1, 3), rel=0.05)


@pytest.mark.slow
def test_group_sizes_have_the_tail_that_they_say():
    n, tail, offset = 200, 1.3, 2.5
    held = {"groups": 1e8, "tail": tail, "offset": offset, "bends": np.zeros(9), "deviations": np.zeros(n)}
    cells = np.asarray(drawn(models.count_of_counts(n), 50, **held)[""]).mean(axis=0)
    size = np.arange(n)
    reach = np.exp(
        scipy.special.gammaln(offset + size) - scipy.special.gammaln(offset)
        - scipy.special.gammaln(offset + tail + size) + scipy.special.gammaln(offset + tail)
    )  # fmt: skip
    np.testing.assert_allclose(cells, 1e8 * reach * tail / (tail + offset + size), rtol=0.01)
    assert np.log(reach[199] / reach[99]) / np.log(201.5 / 101.5) == pytest.approx(-tail, abs=0.02)
    # At sizes 0, 1, 3, 7, ... the log odds of ending deviate, elsewhere in between.
    bent = np.asarray(drawn(models.count_of_counts(n), 50, **(held | {"bends": np.array([0, 0, 1.0, 0, 0, 0, 0, 0, 0])}))[""])
    share = bent.mean(axis=0) / np.append(1e8, 1e8 - np.cumsum(bent.mean(axis=0))[:-1])
    odds = np.log(share / (1 - share)) - np.log(tail / (offset + size))
    np.testing.assert_allclose(odds[:8], [0, 0, np.log2(3) - 1, 1, 3 - np.log2(5), 3 - np.log2(6), 3 - np.log2(7), 0], atol=0.02)


@pytest.mark.slow
def test_segments_are_summed_over_all_segmentations():
    level, variation, cut, spread, n = 1.0, 2.0, 0.3, 0.1, 4
    law = Segments(n, level, variation, cut, spread)
    logs, total, cuts = np.array([1.2, 1.25, -0.5, -0.45]), 0.0, np.zeros(n - 1)
    normal = scipy.stats.norm.pdf
    for is_cut in itertools.product([False, True], repeat=n - 1):
        density = normal(logs[0], level, variation)
        for before, after, new in zip(logs, logs[1:], is_cut, strict=False):
            density *= cut * normal(after, level, variation) if new else (1 - cut) * normal(after, before, spread)
        total, cuts = total + density, cuts + density * np.array(is_cut)
    assert float(law.log_prob(logs)) == pytest.approx(np.log(total), rel=1e-12)
    held = {"level": level, "variation": variation, "cut": cut, "excess": spread - 0.05}
    np.testing.assert_allclose(drawn(models.segmented_counts(n), 1, **held, logs=logs)["cuts"][0], cuts / total, rtol=1e-9)
    draws = np.asarray(law.sample(jax.random.key(0), (40_000,)))
    # Correlated as far as no cut comes between, since every cell is Normal(level, variation) but for the steps.
    correlation = np.corrcoef(draws.T)
    np.testing.assert_allclose(correlation[0], 0.7 ** np.arange(n), atol=0.02)
    assert draws[:, 0].std() == pytest.approx(variation, rel=0.02)
    steps = np.diff(draws, axis=1)
    near = [scipy.stats.norm.cdf(0.25, scale=scale) * 2 - 1 for scale in (spread, 8**0.5)]
    assert (np.abs(steps) < 0.25).mean() == pytest.approx(0.7 * near[0] + 0.3 * near[1], abs=0.01)


def of_interest(measurement):
    """Whether a problem is neither all noise nor beyond any: by its noisy values alone, so that ranks stay uniform."""
    largest = jnp.abs(measurement.values).max()
    return (largest > 30) & (largest < 3000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poisson_gamma", "segmented_counts"])
def test_posteriors_are_calibrated(name):
    """A short, fixed part of what examples/calibration.py runs; another is in the test of that."""
    model = MODELS[name]()
    found = simulation_based_calibration(
        Identity(N),
        model,
        lambda measurement, key: posterior(
            measurement, model, key=key, num_draws=200, num_warmup=200, num_chains=1, max_tree_depth=7
        ),
        epsilon=0.3,
        key=jax.random.key(1),
        num_problems=40,
        num_draws=31,
        accept=of_interest,
    )
    assert min(found.p_values.values()) * len(found.ranks) > 1e-3, found.table()
    for quantity, (share, error) in found.coverage(0.8).items():
        assert share == pytest.approx(0.8, abs=4 * max(error, 0.063)), quantity
    assert found.converged.mean() > 0.6
