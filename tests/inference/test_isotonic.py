"""Monotone fits against scipy, the min-max formula, linear programs and enumeration; both ways to compute each."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec
from references import least_deviation_fits, min_max_fit
from scipy.optimize import isotonic_regression as scipy_fit

import dpinfer as dp
from dpinfer.inference import isotonic_l1, isotonic_l2, isotonic_regression
from dpinfer.inference.segmented import _as_segments

# Few lengths, so that few programs are compiled.
small = st.lists(st.integers(-3, 3), min_size=7, max_size=7)
some_weights = st.lists(st.sampled_from([0, 1, 1, 2, 5]), min_size=7, max_size=7).filter(any)


def random_values(n, seed=0, spread=20.0):
    rng = np.random.default_rng(seed)
    return np.sort(np.minimum(rng.zipf(1.5, n), 10**5)).astype(float) + rng.laplace(0, spread, n)


def test_examples_of_the_paper():
    # Hay et al. 2010, example 2 and table 2, whose distances are squared ones.
    for values, expected, squared in [
        ([9, 10, 14], [9, 10, 14], 0),
        ([9, 14, 10], [9, 12, 12], 8),
        ([14, 9, 10, 15], [11, 11, 11, 15], 14),
    ]:
        fit = isotonic_regression(values)
        np.testing.assert_allclose(fit.values, expected, rtol=1e-14)
        assert np.square(np.asarray(fit.values) - values).sum() == pytest.approx(squared)
    assert isotonic_regression([14, 9, 10, 15]).block_ids.tolist() == [0, 0, 0, 1]
    assert int(isotonic_regression([9, 14, 10]).num_blocks) == 2


@pytest.mark.slow
@given(small, some_weights)
def test_squares_by_the_min_max_formula(values, weights):
    fit = isotonic_regression(np.array(values, float), np.array(weights, float))
    counted = np.flatnonzero(weights)
    expected = min_max_fit(np.array(values)[counted], np.array(weights)[counted])
    np.testing.assert_allclose(np.asarray(fit.values)[counted], expected, atol=1e-12)
    nearest = np.searchsorted(counted, np.arange(7), side="right") - 1
    np.testing.assert_array_equal(fit.values, np.asarray(fit.values)[counted[np.maximum(nearest, 0)]])
    assert fit.block_ids.tolist() == [0, *np.cumsum(np.diff(fit.values) != 0)]
    assert int(fit.num_blocks) == len(set(np.asarray(fit.values).tolist()))


@pytest.mark.parametrize("n", [1000, 20_000])
def test_squares_against_scipy(n):
    values = random_values(n)
    weights = np.random.default_rng(1).uniform(0.1, 3, n)
    for w in (None, weights):
        for increasing in (True, False):
            expected = scipy_fit(values, weights=w, increasing=increasing).x
            fit = isotonic_regression(values, w, increasing=increasing)
            np.testing.assert_allclose(fit.values, expected, rtol=0, atol=1e-15 * np.abs(values).max() * 64)
            assert fit.block_ids.tolist() == [0, *np.cumsum(np.diff(expected) != 0)]


ALL_AT_ONCE = jax.jit(isotonic_l2._by_splitting)
L2_BY_SCAN = jax.jit(isotonic_l2._by_scan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "falling", "rising", "constant", "powers", "one low at the end", "ties", "offset"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_stack_and_splits_find_the_same_blocks(kind, is_weighted):
    n = 300
    rng = np.random.default_rng(3)
    rising = np.arange(n, dtype=float)
    values = {
        "noise": rng.normal(size=n),
        "falling": -rising,
        "rising": rising,
        "constant": np.ones(n),
        "powers": 2.0 ** np.linspace(-100, 100, n),
        "one low at the end": np.append(rising[:-1], -1e9),
        "ties": rng.integers(0, 4, n).astype(float),
        "offset": 1e9 + rng.normal(size=n),
    }[kind]
    weights = rng.integers(1, 5, n).astype(float) if is_weighted else None
    starts = np.isin(np.arange(n), [0, 1, 50, 299])
    for s in (None, starts):
        fit, other = L2_BY_SCAN(values, weights, s), ALL_AT_ONCE(values, weights, s)
        np.testing.assert_allclose(other, fit, rtol=1e-12, atol=1e-15 * np.abs(values).max())
        begins = None if s is None else jnp.asarray(s)
        ids = isotonic_l2.level_sets(fit, begins)
        np.testing.assert_array_equal(isotonic_l2.level_sets(other, begins), ids)
        spread = isotonic_l2._means_at_once(jnp.asarray(values), ids, None)
        np.testing.assert_allclose(isotonic_l2.block_means(jnp.asarray(values), ids), spread, rtol=1e-12)


@pytest.mark.slow
@given(small, some_weights, st.booleans())
def test_absolute_deviations_by_enumeration(values, weights, is_weighted):
    values, weights = np.array(values), np.array(weights) if is_weighted else None
    counted = np.arange(7) if weights is None else np.flatnonzero(weights)
    best = least_deviation_fits(values[counted], np.ones(7) if weights is None else weights[counted])
    lower, upper = best.min(axis=0), best.max(axis=0)
    mid = np.floor((lower + upper + 1) / 2)
    for solution, expected in [("lower", lower), ("upper", upper), ("mid", mid)]:
        fit = isotonic_regression(values, weights, norm="l1", solution=solution)
        assert fit.values.dtype == np.int64
        np.testing.assert_array_equal(np.asarray(fit.values)[counted], expected)
        assert any((row == expected).all() for row in best)
        falling = isotonic_regression(-values, weights, norm="l1", solution=solution, increasing=False)
        if solution != "mid":
            other = {"lower": upper, "upper": lower}[solution]
            np.testing.assert_array_equal(-np.asarray(falling.values)[counted], other)
        else:
            np.testing.assert_array_equal(np.asarray(falling.values)[counted], np.floor((-lower - upper + 1) / 2))
    floats = isotonic_regression(values.astype(float), weights, norm="l1")
    np.testing.assert_array_equal(np.asarray(floats.values)[counted], (lower + upper) / 2)
    assert floats.block_ids.tolist() == [0, *np.cumsum(np.diff(floats.values) != 0)]


BY_SCAN, BY_THRESHOLDS = jax.jit(isotonic_l1._by_scan), jax.jit(isotonic_l1._by_thresholds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "ties", "falling"])
def test_a_heap_and_thresholds_find_the_same_fits(kind):
    n = 300
    rng = np.random.default_rng(4)
    values = {"noise": rng.normal(size=n) + np.arange(n) / 99, "ties": rng.integers(0, 9, n), "falling": -np.arange(n)}[kind]
    for starts in (None, np.isin(np.arange(n), [0, 1, 50, 299])):
        ends = BY_SCAN(values, None, starts)
        for end, other in zip(ends, BY_THRESHOLDS(values, None, starts), strict=True):
            np.testing.assert_array_equal(end, other)
        repeated = BY_THRESHOLDS(values, np.full(n, 3), starts)
        np.testing.assert_array_equal(np.stack(repeated), np.stack(ends))


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_repeated_entries_have_the_fit_of_weighted_ones(norm):
    rng = np.random.default_rng(5)
    lengths, runs = rng.integers(1, 9, 60), rng.integers(0, 40, 60)
    weighted = isotonic_regression(runs, lengths, norm=norm)
    expanded = isotonic_regression(np.repeat(runs, lengths), norm=norm)
    np.testing.assert_allclose(np.repeat(weighted.values, lengths), expanded.values, rtol=1e-13)
    assert int(weighted.num_blocks) == int(expanded.num_blocks)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_segments_are_fitted_by_themselves(norm):
    values, ids = random_values(300), np.repeat([2, 5, 6, 9], [1, 149, 100, 50])
    together = isotonic_regression(values, norm=norm, segments=ids)
    parts = [isotonic_regression(values[ids == i], norm=norm) for i in (2, 5, 6, 9)]
    np.testing.assert_allclose(together.values, np.concatenate([p.values for p in parts]), rtol=1e-13)
    assert int(together.num_blocks) == sum(int(p.num_blocks) for p in parts)
    assert (np.diff(together.block_ids)[np.diff(ids) > 0] == 1).all()
    one_value = isotonic_regression(np.ones(4), norm=norm, segments=[0, 0, 1, 1])
    assert one_value.block_ids.tolist() == [0, 0, 1, 1]


@given(small)
def test_bounds_by_enumeration(values):
    values = np.array(values)
    rows = np.array([x for x in product(range(-1, 2), repeat=5) if list(x) == sorted(x)])
    for norm, power in [("l1", 1), ("l2", 2)]:
        fit = isotonic_regression(values[:5], norm=norm, lower=-1, upper=1)
        found = (np.abs(np.asarray(fit.values) - values[:5]) ** power).sum()
        best = (np.abs(rows - values[:5]) ** power).sum(axis=1).min()
        assert found <= best + 1e-12  # squares are better in between
        assert min(fit.values) >= -1
        assert max(fit.values) <= 1
        if norm == "l1":
            assert found == best


@pytest.mark.slow
def test_small_sizes_and_large_counts():
    for norm in ("l2", "l1"):
        for values in ([], [4], [4, 3], [3, 4]):
            fit = isotonic_regression(np.array(values, int), norm=norm)
            expected = [3.5, 3.5] if values == [4, 3] and norm == "l2" else [4, 4] if values == [4, 3] else values
            assert fit.values.tolist() == expected
            assert int(fit.num_blocks) == len(set(expected))
    big = 2**53
    assert isotonic_regression([big + 2, big + 1, big], norm="l1").values.tolist() == [big + 1] * 3
    assert isotonic_regression(np.array([2**62 + 1, 2**62, 2**62 - 1]), norm="l1").values.tolist() == [2**62] * 3
    assert isotonic_regression([big + 4, big + 2, big]).values.tolist() == [float(big + 2)] * 3
    gaps = isotonic_regression(np.array([3e-300, 1e-300, 5e-300]))
    np.testing.assert_allclose(gaps.values, [2e-300, 2e-300, 5e-300], rtol=1e-14)
    far = isotonic_regression(1e9 + np.array([0.25, -0.25, 1.0]))
    assert far.values.tolist() == [1e9, 1e9, 1e9 + 1]


def test_a_large_offset_costs_no_digits():
    values = np.random.default_rng(0).normal(size=1000).round(3)
    plain = np.asarray(isotonic_regression(values).values)
    moved = np.asarray(isotonic_regression(values + 2.0**30).values) - 2.0**30
    np.testing.assert_allclose(moved, plain, atol=2.0**30 * 2.0**-52)
    scaled = isotonic_regression(values * 2.0**300).values
    np.testing.assert_array_equal(scaled, plain * 2.0**300)


@pytest.mark.slow
def test_float32_stays_and_integers_become_floats():
    assert isotonic_regression(np.array([2, 1], np.float32)).values.dtype == np.float32
    assert isotonic_regression(jnp.array([2, 1], jnp.float32), norm="l1").values.dtype == np.float32
    assert isotonic_regression([2, 1]).values.dtype == np.float64
    assert isotonic_regression(np.array([2, 1], np.uint8), norm="l1").values.dtype == np.int64
    narrow = jnp.array([100, -100, -100, 120], jnp.int8)
    np.testing.assert_allclose(isotonic_regression(narrow).values, [-100 / 3] * 3 + [120], rtol=1e-14)
    assert isotonic_regression(narrow, jnp.full(4, 100, jnp.int8), norm="l1").values.tolist() == [-100, -100, -100, 120]
    assert isotonic_regression(np.array([5, 0], np.uint64)).values.tolist() == [2.5, 2.5]
    for value in ([2, 1], np.array([2, 1]), np.array([2.0, 1]), jnp.array([2, 1], jnp.int32)):
        for weights in (None, [1, 1], np.ones(2), jnp.ones(2, jnp.float32)):
            np.testing.assert_array_equal(isotonic_regression(value, weights).values, [1.5, 1.5])


# No ties, where the fit has a kink (under "l1" jumps in the weights).
VALUES = np.array([3.0, 1.0, 2.25, 7.0, 6.5, 9.0, 8.0, 0.5])
WEIGHTS = np.array([1.1, 2.0, 0.52, 1.03, 3.0, 1.01, 1.3, 0.25])
DIRECTION = np.array([0.3, -0.2, 0.5, 1.0, -0.7, 0.1, 0.9, 0.4])


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize(("is_weighted", "increasing"), [(False, True), (True, False)])
def test_derivatives_against_differences(norm, is_weighted, increasing):
    ids = np.array([0, 0, 0, 0, 0, 0, 0, 1]) if is_weighted else None

    def fit(values, weights):
        weights = weights if is_weighted else None
        return isotonic_regression(values, weights, norm=norm, lower=1.2, increasing=increasing, segments=ids).values

    step = 1e-6
    tangents = (DIRECTION, DIRECTION[::-1].copy())
    _, forward = jax.jvp(fit, (VALUES, WEIGHTS), tangents)
    moved = [fit(*(p + sign * step * t for p, t in zip((VALUES, WEIGHTS), tangents, strict=True))) for sign in (1, -1)]
    np.testing.assert_allclose(forward, (moved[0] - moved[1]) / (2 * step), atol=2e-8)
    cotangent = np.linspace(-1, 2, 8)
    _, pull = jax.vjp(fit, VALUES, WEIGHTS)
    back = pull(jnp.asarray(cotangent))
    assert sum(float(b @ t) for b, t in zip(back, tangents, strict=True)) == pytest.approx(float(cotangent @ forward), rel=1e-12)


@pytest.mark.slow
def test_second_derivatives():
    def loss(values, weights):
        return (isotonic_regression(values, weights).values ** 3).sum()

    hessian = jax.jit(jax.hessian(loss, argnums=(0, 1)))(VALUES, WEIGHTS)
    step, gradient = 1e-5, jax.jit(jax.grad(loss, argnums=(0, 1)))
    for i in range(8):
        for place in (0, 1):
            shift = [np.zeros(8), np.zeros(8)]
            shift[place][i] = step
            up = gradient(VALUES + shift[0], WEIGHTS + shift[1])
            down = gradient(VALUES - shift[0], WEIGHTS - shift[1])
            for row in (0, 1):
                numeric = (np.asarray(up[row]) - np.asarray(down[row])) / (2 * step)
                np.testing.assert_allclose(np.asarray(hessian[row][place])[:, i], numeric, rtol=1e-6, atol=1e-4)


def test_the_derivative_takes_memory_in_proportion_to_the_length():
    n = 100_000
    values = random_values(n)
    pulled = jax.jit(lambda v, c: jax.vjp(lambda x: isotonic_regression(x).values, v)[1](c)[0])
    used: Any = pulled.lower(values, values).compile().memory_analysis()
    assert used.temp_size_in_bytes < 200 * n
    fit = isotonic_regression(values)
    mean = np.bincount(fit.block_ids, values) / np.bincount(fit.block_ids)
    np.testing.assert_allclose(pulled(values, values), mean[np.asarray(fit.block_ids)], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_batches_equal_a_loop(norm):
    rng = np.random.default_rng(6)
    values, weights = rng.normal(size=(5, 8)), rng.integers(0, 3, (5, 8)) + (np.arange(8) == 2)
    one = [isotonic_regression(v, w, norm=norm) for v, w in zip(values, weights, strict=True)]
    many = jax.jit(jax.vmap(lambda v, w: isotonic_regression(v, w, norm=norm)))(values, weights)
    for field in ("values", "block_ids", "num_blocks"):
        np.testing.assert_allclose(getattr(many, field), np.stack([getattr(fit, field) for fit in one]), rtol=1e-13)
    shared = jax.vmap(lambda v: isotonic_regression(v, weights[0], norm=norm, segments=np.arange(8) // 4).values)(values)
    np.testing.assert_allclose(
        shared[1], isotonic_regression(values[1], weights[0], norm=norm, segments=np.arange(8) // 4).values, rtol=1e-13
    )
    twice = jax.vmap(jax.vmap(lambda v: isotonic_regression(v, norm=norm).values))(values.reshape(5, 2, 4))
    np.testing.assert_allclose(twice[3, 1], isotonic_regression(values[3, 4:], norm=norm).values, rtol=1e-13)
    gradients = jax.vmap(jax.grad(lambda v: (isotonic_regression(v, norm=norm).values ** 2).sum()))(values)
    alone = jax.grad(lambda v: (isotonic_regression(v, norm=norm).values ** 2).sum())(values[2])
    np.testing.assert_allclose(gradients[2], alone, rtol=1e-13)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_batches_as_segments_of_one_vector(norm):
    """How a batch runs where there are thousands of cores."""
    values = jnp.asarray(np.random.default_rng(7).normal(size=(4, 50)))
    kernel = {"l2": isotonic_l2.least_squares_fit, "l1": isotonic_l1.least_deviations_ends}[norm]
    for weights in (None, jnp.ones((4, 50))):
        in_batched = (True, None if weights is None else True, None)
        together = np.stack(_as_segments(kernel, 4, in_batched, values, weights, None))
        alone = [np.stack(kernel(row, None, None)) for row in values]
        np.testing.assert_allclose(together, np.stack(alone, axis=0 if norm == "l2" else 1), rtol=1e-12)


@pytest.mark.slow
def test_inside_shard_map():
    mesh, spec = Mesh(np.array(jax.devices()[:1]), ("rows",)), PartitionSpec("rows")
    values = np.random.default_rng(8).normal(size=8)

    def fits(v):
        return isotonic_regression(v).values + isotonic_regression(v, norm="l1").values

    found = jax.jit(jax.shard_map(fits, mesh=mesh, in_specs=spec, out_specs=spec))(values)
    np.testing.assert_allclose(found, fits(values), rtol=1e-14)


def test_what_is_wrong_is_named():
    for values, message in [
        ([1.0, np.nan], "values must be finite, got nan at position 1 .*give them a weight of 0"),
        ([[1.0]], r"values must be a vector; jax.vmap takes a batch of them. Got shape \[1, 1\]"),
        (["a"], "values must hold real numbers"),
        ([1 + 2j], "values must hold real numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            isotonic_regression(values)
    for options, message in [
        ({"weights": [1.0, -1.0]}, "weights must not be negative, got -1.0 at position 1"),
        ({"weights": [0, 0]}, "weights must not all be 0"),
        ({"weights": [0, 1], "segments": [0, 1]}, "weights of segment 0 must not all be 0"),
        ({"weights": [1.0]}, r"weights must have the shape of values, \[2\], got \[1\]"),
        ({"weights": [1.0, np.inf]}, "weights must be finite"),
        ({"segments": [1, 0]}, "segments must never decrease"),
        ({"segments": [1]}, "segments must have the shape of values"),
        ({"norm": "l3"}, "norm must be one of 'l2', 'l1'"),
        ({"solution": "middle"}, "solution must be one of"),
        ({"lower": 2, "upper": 1}, "lower must not exceed upper, got 2 and 1"),
        ({"lower": [1, 2]}, "lower must be one number"),
        ({"upper": np.nan}, "upper must be a number"),
    ]:
        with pytest.raises(ValueError, match=message):
            isotonic_regression([1.0, 2.0], **options)
    traced = jax.jit(lambda v: isotonic_regression(v).values)(np.array([1.0, np.inf, 2.0]))
    assert np.isnan(traced).all()


def test_large_counts_need_64_bits(monkeypatch):
    with jax.enable_x64(False), pytest.raises(ValueError, match="dpinfer.enable_x64"):
        isotonic_regression(np.array([2**31, 5]))
    assert dp.inference.isotonic_regression is isotonic_regression
