"""The average over segmentations against all of them written down, and its draws against their law."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import dpinfer as dp
from dpinfer.inference import noise_first, segmentation_average, segmentation_draws
from dpinfer.inference.segmentation_average import laplace_levels
from dpinfer.queries import Identity, Prefix

N = 7


def noisy(values, scale: Any = 1.0, law="laplace"):
    return dp.Measurement(Identity(len(values)), values, law, scale)


def vectors():
    rng = np.random.default_rng(8)
    return {
        "noise": rng.laplace(size=N),
        "steps": np.array([0.0, 0.5, 0.2, 4, 5, 4.4, 1]),
        "ties": np.array([1.0, 2, 1, 3, 5, 1, 1]),
        "large": np.array([1e9, 1e9 + 1, 1e9, 0, 1, 2, 0.5]),
    }


def weighted_median(values, weights):
    order = np.argsort(values)
    values, up_to = values[order], weights[order].cumsum()
    half = up_to[-1] / 2
    return (values[np.searchsorted(up_to, half - 1e-12)] + values[np.searchsorted(up_to, half + 1e-12)]) / 2


def all_segmentations(values, spread, statistic, penalty):
    """Posterior mean, probability of each beginning, and of each segmentation, {stops: probability}."""
    n, found = len(values), {}
    for cuts in itertools.product([0, 1], repeat=n - 1):
        stops = (*(place + 1 for place in range(n - 1) if cuts[place]), n)
        cost, cells, begins, start = penalty * len(stops), np.zeros(n), np.zeros(n), 0
        for stop in stops:
            y, s = values[start:stop], spread[start:stop]
            weights = 1 / s if statistic == "median" else 1 / (2 * s * s)
            if not weights.any():
                cost = np.inf
            else:
                level = weighted_median(y, weights) if statistic == "median" else np.average(y, weights=weights)
                cost += (weights * (np.abs(y - level) if statistic == "median" else (y - level) ** 2)).sum()
                cells[start:stop] = level
            begins[start] = 1
            start = stop
        found[stops] = (-cost, cells, begins)
    logs = np.array([f[0] for f in found.values()])
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    cells, begins = (chances @ np.stack([f[k] for f in found.values()]) for k in (1, 2))
    return cells, begins, dict(zip(found, chances, strict=True))


@pytest.mark.parametrize("statistic", ["mean", "median"])
@pytest.mark.parametrize("kind", vectors())
def test_every_segmentation_counts_by_its_weight(kind, statistic):
    values, scale, penalty = vectors()[kind], 0.7, 1.3
    spread = np.full(N, scale if statistic == "median" else scale * 2**0.5)
    cells, begins, _ = all_segmentations(values, spread, statistic, penalty)
    found = segmentation_average(noisy(values, scale), statistic=statistic, penalty=penalty)
    close = {"rtol": 1e-9, "atol": 1e-15 * np.abs(values).max()}
    np.testing.assert_allclose(found.cells, cells, **close)
    np.testing.assert_allclose(found.begin_probabilities, begins, rtol=1e-8, atol=1e-12)
    assert float(found.num_bins) == pytest.approx(begins.sum())
    np.testing.assert_allclose(found.answer(Prefix(N)).values, np.cumsum(found.cells), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_cells_count_by_their_noise(statistic):
    values = vectors()["steps"]
    scales = np.array([np.inf, 1, 2, 1, np.inf, 0.5, 1.0])  # a cell that was not measured makes no bin alone
    spread = scales if statistic == "median" else scales * 2**0.5
    with np.errstate(divide="ignore"):
        cells, begins, _ = all_segmentations(values, spread, statistic, 1.0)
    found = segmentation_average(noisy(values, scales), statistic=statistic, penalty=1.0)
    np.testing.assert_allclose(found.cells, cells, rtol=1e-10)
    np.testing.assert_allclose(found.begin_probabilities, begins, rtol=1e-10, atol=1e-12)
    # One scale, the same for each cell, or traced.
    one = segmentation_average(noisy(values), statistic=statistic)
    for other in (
        segmentation_average(noisy(values, np.ones(N)), statistic=statistic),
        jax.jit(lambda s: segmentation_average(noisy(values, s), statistic=statistic))(1.0),
    ):
        np.testing.assert_allclose(other.cells, one.cells, rtol=1e-12)


@pytest.mark.slow
def test_a_batch_and_derivatives():
    rows = np.stack([v for k, v in vectors().items() if k != "large"])

    def cells(values):
        return segmentation_average(noisy(values)).cells

    together = jax.jit(jax.vmap(cells))(rows)
    for row, found in zip(rows, together, strict=True):
        np.testing.assert_allclose(found, cells(row), rtol=1e-10, atol=1e-12)
    y, step = jnp.asarray(rows[0]), 1e-5
    direction = jnp.linspace(-1, 1, N)
    slope = (cells(y + step * direction) - cells(y - step * direction)) / (2 * step)
    np.testing.assert_allclose(jax.jvp(cells, (y,), (direction,))[1], slope, rtol=1e-6, atol=1e-8)


def test_sizes_and_limits():
    assert segmentation_average(noisy([5.0])).cells.tolist() == [5.0]
    values = vectors()["noise"]
    # Dear bins: one of all cells; cheap ones and little noise: each cell by itself.
    np.testing.assert_allclose(segmentation_average(noisy(values), penalty=500.0).cells, values.mean(), rtol=1e-12)
    np.testing.assert_allclose(segmentation_average(noisy(values, 1e-6), penalty=0.0).cells, values, rtol=1e-9)
    # Far from any float: the noise is a billionth of what the cells differ by.
    far = segmentation_average(noisy(values * 1e12, 1e-3))
    assert np.isfinite(far.cells).all()
    np.testing.assert_allclose(far.cells, values * 1e12, rtol=1e-12)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_segmentations_are_drawn_by_their_weight(statistic):
    values, scale, draws = vectors()["steps"][:5], 1.0, 4000
    spread = np.full(5, scale if statistic == "median" else 2**0.5)
    cells, _, chances = all_segmentations(values, spread, statistic, 1.0)
    sampled = segmentation_draws(noisy(values, scale), statistic=statistic, penalty=1.0, key=jax.random.key(3), num_draws=draws)
    np.testing.assert_allclose(sampled.cells, cells, rtol=1e-9)
    rows = np.round(np.asarray(sampled.cells)[None] - np.asarray(sampled.errors), 9)
    tally = dict.fromkeys(chances, 0)
    for row in rows:
        tally[(*(np.flatnonzero(np.diff(row)) + 1).tolist(), 5)] += 1
    expected = np.array(list(chances.values())) * draws
    often = expected > 5
    seen, due = (np.append(np.array(x)[often], np.array(x)[~often].sum() + 1e-9) for x in (list(tally.values()), expected))
    assert stats.chisquare(seen, due).pvalue > 1e-4
    # Given the bins, means are normal with the bin's variance; four standard errors of it.
    if statistic == "mean":
        is_one = ~np.diff(rows).any(axis=1)
        one = rows[is_one, 0] if is_one.sum() > 50 else None
        first = np.array([row[:3] for row in rows if not np.diff(row[:3]).any() and row[3] != row[2]])[:, 0]
        assert abs(first.mean() - values[:3].mean()) < 4 * (2 / 3 / first.size) ** 0.5
        assert first.var() == pytest.approx(2 / 3, rel=4 * (2 / first.size) ** 0.5)
        assert one is None or abs(one.mean() - values.mean()) < 4 * (2 / 5 / one.size) ** 0.5


@pytest.mark.parametrize("bins", [[1.0, 2, 4], [0.0], [3.0, 3], [0.0, 1, 5, 6]])
def test_levels_of_a_bin_follow_its_likelihood(bins):
    y, masses = np.array(bins), np.linspace(0.5, 1.5, len(bins))
    ids = jnp.zeros(len(bins), int)
    keys = jax.random.split(jax.random.key(1), 4000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: laplace_levels(jnp.asarray(y), jnp.asarray(masses), ids, key)))(keys))
    assert (np.ptp(drawn, axis=1) == 0).all()

    def density(x):
        return np.exp(-(masses * np.abs(y - x)).sum())

    grid = np.linspace(y.min() - 40, y.max() + 40, 20_001)
    mass = integrate.cumulative_trapezoid([density(x) for x in grid], grid, initial=0)
    assert stats.kstest(drawn[:, 0], lambda x: np.interp(x, grid, mass / mass[-1])).pvalue > 1e-4


@pytest.mark.slow
def test_intervals_cover_where_cells_are_equal():
    # Steps of ten and more cells: of 40 releases of 60 cells, the share of cells and of the sums over all prefixes inside.
    truth = np.repeat([3.0, 40.0, 11.0, 12.0], 15)
    rows = truth + np.random.default_rng(5).laplace(0, 2, (40, truth.size))
    prefix = Prefix(truth.size)

    def inside(values, key):
        sampled = segmentation_draws(noisy(values, 2.0), key=key)
        return jnp.stack(
            [dp.evaluation.coverage(*sampled.answer(q).interval(0.9), q @ truth) for q in (Identity(truth.size), prefix)]
        )

    keys = jax.random.split(jax.random.key(0), len(rows))
    found = np.asarray(jax.jit(jax.vmap(inside))(rows, keys)).mean(axis=0)
    assert (found > 0.8).all()


@pytest.mark.slow
def test_it_is_nearer_than_the_noisy_cells_and_the_papers_bins():
    # Of 20 releases of few levels.
    truth = np.repeat([0.0, 6.0, 2.0], [40, 10, 50])
    rows = truth + np.random.default_rng(2).laplace(0, 1, (20, truth.size))

    def error(estimate):
        return float(((np.asarray(jax.jit(jax.vmap(lambda y: estimate(noisy(y)).cells))(rows)) - truth) ** 2).mean())

    paper = error(lambda m: noise_first(m, penalty="paper"))
    assert error(segmentation_average) < 0.75 * paper < 0.75 * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: segmentation_average(dp.Measurement(Prefix(2), [1, 2], "laplace", 1)), "measurement must be of Identity"),
        (lambda: segmentation_average(noisy([1.0, 2]), penalty=-1), "penalty must be a number, at least 0 and finite, got -1"),
        (lambda: segmentation_average(noisy([1.0, 2]), statistic="mode"), "statistic must be one of"),
        (lambda: segmentation_average(noisy([1.0, 2], [1.0, 0])), "noise in every cell"),
        (lambda: segmentation_draws(noisy([1.0, 2]), key=jnp.zeros(2, "uint32")), "key must be one typed key"),
        (lambda: segmentation_draws(noisy([1.0, 2]), key=jax.random.key(0), num_draws=1), "num_draws must be"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
