"""NoiseFirst: the number of bins against the whole curve, the paper's rules, its theory and where that misleads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import bootstrap, noise_first, v_optimal
from dpinfer.inference.segmentation import bin_means
from dpinfer.queries import Identity, Prefix

ALICE = np.array([1.0, 2, 1, 3, 5, 1, 1])
N = 40


def noisy(values, scale: Any = 1.0, law="laplace"):
    return dp.Measurement(Identity(len(values)), values, law, scale)


def vectors():
    rng = np.random.default_rng(4)
    steps = np.repeat([0.0, 30.0, 31.0, 5.0], N // 4)
    return {
        "constant": rng.laplace(size=N),
        "steps": steps + rng.laplace(size=N),
        "rough": rng.integers(0, 100, N) + rng.laplace(size=N),
        "ties": rng.integers(0, 4, N).astype(float),
        "zeros": np.zeros(N),
        "one spike": np.where(np.arange(N) == 9, 1e6, rng.laplace(size=N)),
        "walk": rng.normal(size=N).cumsum() * 2,
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", vectors())
def test_the_number_of_bins_is_the_best_of_all(kind):
    values, scale = vectors()[kind], 0.8
    k = np.arange(1, N + 1)
    squares, deviations = (np.asarray(v_optimal(values, N, cost=cost).costs) for cost in ("sse", "sae"))
    variance = 2 * scale**2
    nats = {"paper": k * 1.0, "lebarbier": k * (2.5 + np.log(N / k)), "cautious": k * (1.25 + np.log(N / k))}
    close = 1e-10 + 1e-16 * N * np.abs(values).max() ** 2  # of running sums
    for name, price in nats.items():
        fit = noise_first(noisy(values, scale), penalty=name)
        total = float(fit.cost) + price[int(fit.num_bins) - 1]
        assert total == pytest.approx((squares / (2 * variance) + price).min(), rel=1e-10, abs=close)
        assert float(fit.cost) == pytest.approx(squares[int(fit.num_bins) - 1] / (2 * variance), rel=1e-9, abs=close)
    # Equation 4, in epsilon: cost - (2 n - 4 k) / epsilon^2 is least; equation 15: cost - 3 (n - k) / epsilon.
    epsilon = 1 / scale
    fit = noise_first(noisy(values, scale), penalty="paper")
    equation = squares - (2 * N - 4 * k) / epsilon**2
    assert equation[int(fit.num_bins) - 1] == pytest.approx(equation.min(), rel=1e-10, abs=close)
    fit = noise_first(noisy(values, scale), statistic="median")
    equation = deviations - 3 * (N - k) / epsilon
    assert equation[int(fit.num_bins) - 1] == pytest.approx(equation.min(), rel=1e-10, abs=1e-9)
    # Equations 22 and 23 change nothing there.
    for statistic in ("mean", "median"):
        kept = noise_first(noisy(values, scale), statistic=statistic, penalty="paper", keep_unequal=True)
        without = noise_first(noisy(values, scale), statistic=statistic, penalty="paper")
        assert (kept.cells == without.cells).all()


@pytest.mark.slow
def test_bins_that_are_too_few_may_stay_as_measured():
    values = np.array([0.0, 0.1, 900, 901, 0.2, 0.1])
    for statistic in ("mean", "median"):
        assert np.ptp(noise_first(noisy(values), 1, statistic=statistic).cells) == 0
        assert noise_first(noisy(values), 1, statistic=statistic, keep_unequal=True).cells.tolist() == values.tolist()
        same = noise_first(noisy(values), 3, statistic=statistic, keep_unequal=True)
        assert (same.cells == noise_first(noisy(values), 3, statistic=statistic).cells).all()
    # At the edge: two cells, a squares' sum of 2 (s - 1) variances of 2, that is 4, stays; a little less is averaged.
    for gap, stays in ((8**0.5 + 1e-6, True), (8**0.5 - 1e-6, False)):
        assert (np.ptp(noise_first(noisy([0.0, gap]), 1, keep_unequal=True).cells) > 0) == stays
    for gap, stays in ((5 + 1e-6, True), (5 - 1e-6, False)):  # (4 s - 3) scales
        assert (np.ptp(noise_first(noisy([0.0, gap]), 1, statistic="median", keep_unequal=True).cells) > 0) == stays


def test_theory_holds_for_fixed_bins_and_misleads_for_chosen_ones():
    # Xu et al., lemmas 1 and 2 and theorem 1, on their figure 1 at epsilon = 0.5: bins (3, 5, 7), variance 8.
    draws, epsilon, n, k = 20_000, 0.5, 7, 3
    rows = ALICE + np.random.default_rng(1).laplace(0, 1 / epsilon, (draws, n))
    ids = jnp.array([0, 0, 0, 1, 1, 2, 2])
    means = np.asarray(jax.jit(jax.vmap(lambda y: bin_means(y, None, ids)))(rows))
    off_noisy, off_true = ((means - rows) ** 2).sum(axis=1), ((means - ALICE) ** 2).sum(axis=1)
    inside, variance = 8 / 3, 2 / epsilon**2
    for found, expected in (
        (off_noisy, inside + (n - k) * variance),  # 34.667
        (off_true, inside + k * variance),  # 26.667
        (off_noisy - (n - 2 * k) * variance, inside + k * variance),
    ):
        assert abs(found.mean() - expected) < 4 * found.std() / draws**0.5
    # Of three bins chosen on the same noise it says 7.5, and the error is 48.2 (4,000 draws of a reference simulation, 1 apart).
    chosen = np.asarray(jax.jit(jax.vmap(lambda y: noise_first(noisy(y, 1 / epsilon), k).cells))(rows))
    hopes = ((chosen - rows) ** 2).sum(axis=1) - (n - 2 * k) * variance
    assert float(hopes.mean()) == pytest.approx(7.5, abs=1)
    assert float(((chosen - ALICE) ** 2).sum(axis=1).mean()) == pytest.approx(48.2, abs=1)


@pytest.mark.slow
def test_constant_cells():
    # Square and absolute error of a cell, and bins a cell, of 60 releases of 496 zeros at epsilon = 1 (identity: 2, 1, 1). A
    # reference simulation of 20 gave 1.27, 0.619, 0.155 for the paper's means, 0.369, 0.211, 0.029 for its medians.
    rows = np.random.default_rng(0).laplace(size=(60, 496))
    for options, expected in (
        ({"penalty": "paper"}, (1.27, 0.619, 0.155)),
        ({"statistic": "median"}, (0.369, 0.211, 0.029)),
    ):
        fits = jax.jit(jax.vmap(lambda y, options=options: noise_first(noisy(y), **options)))(rows)
        found = (fits.cells**2).mean(), jnp.abs(fits.cells).mean(), fits.num_bins.mean() / 496
        np.testing.assert_allclose(found, expected, rtol=0.08)
    # The price that grows with the ways to choose bins is an order better.
    fits = jax.jit(jax.vmap(lambda y: noise_first(noisy(y))))(rows)
    assert float((fits.cells**2).mean()) < 0.127


@pytest.mark.slow
def test_any_measurement_of_cells():
    values = vectors()["steps"]
    release = dp.Release.from_values(Identity(N), values, noise="gaussian", stddev=2.0)
    fit = noise_first(release)
    assert int(fit.num_bins) == 3
    # The same noise as one number, for each cell, or traced; as means and as medians.
    for statistic in ("mean", "median"):
        one = noise_first(noisy(values), statistic=statistic)
        for other in (
            noise_first(noisy(values, np.ones(N)), statistic=statistic),
            jax.jit(lambda s, statistic=statistic: noise_first(noisy(values, s), statistic=statistic))(1.0),
            jax.jit(lambda s, statistic=statistic: noise_first(noisy(values, s), statistic=statistic))(np.ones(N)),
        ):
            np.testing.assert_allclose(other.cells, one.cells, rtol=1e-12)
            assert float(other.cost) == pytest.approx(float(one.cost), rel=1e-12)
    # Cells count by their precision; one that was not measured takes its neighbours' value.
    scales = np.where(np.arange(N) % 2, 1.0, 3.0)
    scales[[5, 25]] = np.inf
    strange = np.where(np.isinf(scales), 1e5, values)
    fit = noise_first(noisy(strange, scales), penalty=5.0)
    weights = np.where(np.isinf(scales), 0, 1 / scales**2)
    assert int(fit.num_bins) == 3
    for block in range(3):
        inside = np.asarray(fit.block_ids) == block
        np.testing.assert_allclose(fit.cells[inside], np.average(strange[inside], weights=weights[inside]), rtol=1e-12)
    # Gaussian noise has the deviations of a Laplace scale of its standard deviation / sqrt(2).
    normal = noise_first(noisy(values, 2**0.5, "gaussian"), statistic="median")
    assert (normal.cells == noise_first(noisy(values), statistic="median").cells).all()


@pytest.mark.slow
def test_answers_and_error_bars():
    measurement = noisy(vectors()["steps"], 2.0)
    fit = noise_first(measurement)
    answers = fit.answer(Prefix(N))
    np.testing.assert_allclose(answers.values, np.cumsum(fit.cells), rtol=1e-12)
    with pytest.raises(ValueError, match="noise_first gives no intervals"):
        answers.interval()
    sampled = bootstrap(measurement, noise_first, key=jax.random.key(0), num_draws=20)
    np.testing.assert_allclose(sampled.cells, fit.cells)
    # Far less than the noise of 2.8: most cells share a bin with nine or more.
    assert 0 < float(np.median(np.asarray(sampled.answer(Identity(N)).stddev))) < 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise_first(dp.Measurement(Prefix(2), [1, 2], "laplace", 1)), "measurement must be of Identity"),
        (lambda: noise_first(noisy([1.0, 2]), 3), "bins must be at most the number of cells, 2, got 3"),
        (lambda: noise_first(noisy([1.0, 2]), 1, penalty=1), "At most one of bins and penalty"),
        (lambda: noise_first(noisy([1.0, 2]), penalty="aic"), "penalty must be one of"),
        (lambda: noise_first(noisy([1.0, 2]), penalty=-1), "penalty must be a number, at least 0"),
        (lambda: noise_first(noisy([1.0, 2]), statistic="median", penalty="lebarbier"), "a number of nats for medians"),
        (lambda: noise_first(noisy([1.0, 2]), statistic="mode"), "statistic must be one of"),
        (lambda: noise_first(noisy([1.0, 2], [1.0, 0])), "noise in every cell"),
        (lambda: noise_first(noisy([1.0, 2], np.inf)), "at least one cell of finite scale"),
        (lambda: noise_first(noisy([1.0, 2], [np.inf, np.inf])), "at least one cell of finite scale"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
