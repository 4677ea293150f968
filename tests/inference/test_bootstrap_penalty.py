"""The price a bin chosen on simulated releases: against the same done one fit at a time, and what it does at the extremes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import bootstrap_penalty, noise_first
from dpinfer.inference.error_law import draw_noise
from dpinfer.queries import Identity, Prefix

N = 60


def noisy(values, scale: Any = 1.0, law="laplace"):
    return dp.Measurement(Identity(len(values)), values, law, scale)


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_the_price_errs_least_on_releases_of_the_first_fit(statistic):
    values = np.repeat([0.0, 8.0, 3.0], N // 3) + np.random.default_rng(3).laplace(size=N)
    prices, key = [0.5, 2.0, 4.0, 30.0], jax.random.key(5)
    truth = np.asarray(noise_first(noisy(values), statistic=statistic, penalty=2.5).cells)
    draws = np.asarray(draw_noise(key, noisy(np.zeros(N)), 3))
    errors = [
        np.mean(
            [
                ((np.asarray(noise_first(noisy(truth + z), statistic=statistic, penalty=p).cells) - truth) ** 2).mean()
                for z in draws
            ]
        )
        for p in prices
    ]
    found = bootstrap_penalty(noisy(values), statistic=statistic, pilot=2.5, candidates=prices, num_draws=3, key=key)
    assert float(found) == prices[int(np.argmin(errors))]


@pytest.mark.slow
def test_bins_are_dear_where_cells_are_equal_and_cheap_where_they_are_not():
    rng, key = np.random.default_rng(0), jax.random.key(1)
    equal = bootstrap_penalty(noisy(rng.laplace(size=N)), key=key)
    unequal = bootstrap_penalty(noisy(rng.permutation(N) * 3.0 + rng.laplace(size=N)), key=key)
    assert float(unequal) < 1.5 < 3 < float(equal)
    # A price for noise_first, under jit as well; cells that were not measured take no part.
    scales = np.where(np.arange(N) % 7, 1.0, np.inf)

    def fit(values):
        measurement = noisy(values, scales)
        return noise_first(measurement, penalty=bootstrap_penalty(measurement, key=key)).cells

    assert np.isfinite(jax.jit(fit)(rng.laplace(size=N))).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: bootstrap_penalty(dp.Measurement(Prefix(2), [1, 2], "laplace", 1), key=key), "must be of Identity"),
        (lambda key: bootstrap_penalty(noisy([1.0, 2]), candidates=[], key=key), "candidates must be one or more"),
        (lambda key: bootstrap_penalty(noisy([1.0, 2]), candidates=[-1.0], key=key), "candidates must be one or more"),
        (lambda key: bootstrap_penalty(noisy([1.0, 2]), pilot=-1, key=key), "pilot must be a number"),
        (lambda key: bootstrap_penalty(noisy([1.0, 2]), num_draws=0, key=key), "num_draws must be"),
        (lambda key: bootstrap_penalty(noisy([1.0, 2]), key=jnp.zeros(2, "uint32")), "key must be one typed key"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(jax.random.key(0))
