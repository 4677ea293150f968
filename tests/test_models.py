"""The numpyro models: their priors as they are described, and what is inferred under them from cells that they drew."""

import jax
import numpy as np
import pytest
import scipy.stats
from numpyro import handlers

import dpinfer as dp
from dpinfer import models
from dpinfer.inference import posterior
from dpinfer.queries import Identity

N = 24
MODELS = {
    "log_gaussian": lambda: models.log_gaussian(N),
    "log_gaussian_grid": lambda: models.log_gaussian((3, 8)),
    "sparse_counts": lambda: models.sparse_counts(N),
    "region_counts": lambda: models.region_counts(np.repeat([1, 0, 2], 8)),
}


def drawn(model, num_draws, **fixed):
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


def test_of_a_rough_histogram_the_logarithms_are_independent():
    held = {"level": 0.0, "amplitude": 1e-6, "length": np.array([0.1, 0.1]), "roughness": 0.7}
    logs = np.log(np.asarray(drawn(models.log_gaussian((5, 6)), 4000, **held)[""]))
    np.testing.assert_allclose(logs.T @ logs / 4000, 0.49 * np.eye(30), atol=5 * 0.49 * (2 / 4000) ** 0.5)


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
@pytest.mark.parametrize("name", ["log_gaussian", "sparse_counts", "region_counts"])
def test_of_cells_from_the_prior_the_posterior_errs_less_than_the_noise_and_covers(name):
    model = MODELS[name]()
    held = {
        "log_gaussian": {"level": 3.0, "amplitude": 1.0, "length": np.array([0.2]), "roughness": 0.1},
        "sparse_counts": {"level": 0.0, "tail": 2.0, "floor": 1.0},
        "region_counts": {"level": 3.0, "variation": 1.0, "spread": 0.2},
    }[name]
    truth = np.asarray(drawn(model, 6, **held)[""])
    errors, noises, covered = [], [], []
    for number, cells in enumerate(truth):
        noisy = dp.simulate(cells, Identity(N), epsilon=0.1, key=jax.random.key(number))
        found = posterior(noisy, model, key=jax.random.key(number), num_draws=300, num_chains=2, max_tree_depth=8)
        errors.append(np.square(found.cells - cells).mean())
        noises.append(np.square(np.asarray(noisy.values) - cells).mean())
        lower, upper = found.answer(Identity(N)).interval(0.9)
        covered.append(((np.asarray(lower) <= cells) & (cells <= np.asarray(upper))).mean())
    assert np.mean(errors) < 0.6 * np.mean(noises)
    # Cells of a release err together: by the number of releases, 6, a standard error of at most 0.12.
    assert np.mean(covered) > 0.9 - 0.2
