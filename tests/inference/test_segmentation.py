"""V-optimal histograms: the paper's figure 3, all partitions by brute force, and each way of searching against the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references import best_partitions

from dpinfer.inference import penalized_v_optimal, segment_deviations, segment_numbers, segment_squares, v_optimal

ALICE = np.array([1, 2, 1, 3, 5, 1, 1])
WITHOUT_ALICE = np.array([1, 2, 1, 2, 5, 1, 1])


@pytest.mark.slow
def test_figure_3():
    # T[i, k] of Xu et al. 2013, figure 3, for k = 1, 2, 3; printed to two digits.
    table = {1: [0, 0.5, 0.67, 2.75, 11.2, 12.83, 14], 2: [0, 0.5, 0.67, 2.67, 8.67, 11.2], 3: [0, 0.5, 0.67, 2.67, 2.67]}
    sums = segment_squares.running_sums(jnp.asarray(ALICE, float), None)
    whole = jnp.asarray([np.inf, *(sums.cost(jnp.int32(0), jnp.int32(i)) for i in range(1, 8))])
    found = segment_numbers._table_by_scan(sums, whole, 3)
    for bins, printed in table.items():
        np.testing.assert_allclose(found[bins - 1, bins:], printed, atol=0.005)
    fit = v_optimal(ALICE, 3)
    assert fit.stops.tolist() == [3, 5, 7]
    np.testing.assert_allclose(fit.values, [4 / 3] * 3 + [4] * 2 + [1] * 2, rtol=1e-15)
    assert float(fit.cost) == pytest.approx(8 / 3, rel=1e-15)
    assert int(fit.num_bins) == 3
    np.testing.assert_allclose(np.asarray(v_optimal(ALICE, 7).costs), [14, 11.2, 8 / 3, 2 / 3, 0.5, 0, 0], atol=1e-14)
    np.testing.assert_allclose(np.asarray(v_optimal(ALICE, 7, cost="sae").costs), [7, 6, 3, 1, 1, 0, 0], atol=1e-14)
    # Figure 4: without Alice the boundaries move.
    other = v_optimal(WITHOUT_ALICE, 3)
    assert (other.stops.tolist(), float(other.cost)) == ([4, 5, 7], pytest.approx(1))
    np.testing.assert_allclose(other.values, [1.5] * 4 + [5] + [1] * 2, rtol=1e-15)
    # Figure 5.
    figure = v_optimal([5, 7, 7, 6, 7, 5, 5], 3)
    assert (figure.stops.tolist(), float(figure.cost)) == ([1, 5, 7], pytest.approx(0.75))


def cost_of(values, weights, ids, cost):
    """From scratch, of the bins alone."""
    total = 0.0
    for block in np.unique(ids):
        x, w = values[ids == block], weights[ids == block]
        if cost == "sse":
            total += (w * (x - (w @ x / w.sum() if w.sum() > 0 else 0)) ** 2).sum()
        else:
            total += min((w * np.abs(x - v)).sum() for v in x)
    return total


numbers = st.sampled_from([-3.0, 0.0, 0.5, 1.0, 1.0, 2.0, 7.25])


@pytest.mark.slow
@settings(max_examples=30)
@given(
    st.lists(numbers, min_size=9, max_size=9),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]), min_size=9, max_size=9),
    st.sampled_from([0.0, 0.1, 0.75, 2.0, 10.0, 1e4]),
    st.sampled_from(["sse", "sae"]),
    st.booleans(),
)
def test_against_all_partitions(values, weights, penalty, cost, is_weighted):
    values, weights = np.array(values), np.array(weights) if is_weighted else np.ones(9)
    given = weights if is_weighted else None
    best = best_partitions(values, weights, cost)
    for bins in (3, 9):
        fit = v_optimal(values, bins, cost=cost, weights=given)
        np.testing.assert_allclose(np.asarray(fit.costs), best[:bins], rtol=1e-12, atol=1e-12)
        assert int(fit.num_bins) == fit.stops.size == bins
        for found in (fit.cost, cost_of(values, weights, np.asarray(fit.block_ids), cost)):
            assert float(found) == pytest.approx(best[bins - 1], rel=1e-12, abs=1e-12)
    fit = penalized_v_optimal(values, penalty, cost=cost, weights=given)
    expected = (best + penalty * np.arange(1, 10)).min()
    assert float(fit.cost) + penalty * int(fit.num_bins) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert cost_of(values, weights, np.asarray(fit.block_ids), cost) == pytest.approx(float(fit.cost), rel=1e-12, abs=1e-12)


def vectors(n):
    rng = np.random.default_rng(3)
    steps = np.repeat(rng.integers(0, 100, n // 20), 20)
    return {
        "noise": rng.laplace(0, 10, n),
        "steps": steps + rng.laplace(0, 10, n),
        "constant": np.zeros(n),
        "alternating": np.arange(n) % 2.0,
        "ramp": np.arange(n) / 7,
        "walk": rng.normal(size=n).cumsum(),
        "offset": 1e9 + steps + rng.laplace(0, 10, n),
        "ties": rng.integers(0, 3, n).astype(float),
        "spike": np.where(np.arange(n) == n // 2, 1e8, rng.laplace(0, 1, n)),
    }


N = 200
VECTORS = vectors(N)
PENALIZED = jax.jit(segment_squares.penalized_begins)
FUNCTIONAL = jax.jit(lambda x, w, p: segment_squares._by_functions(segment_squares.running_sums(x, w), p))
AT_ONCE = jax.jit(segment_squares._penalized_at_once)
DEVIATIONS = jax.jit(segment_deviations.penalized_begins)
SQUARES_TABLE = jax.jit(lambda x, w: segment_numbers.begins_of_number(False, 30)(x, w))
DEVIATIONS_TABLE = jax.jit(lambda x, w: segment_numbers.begins_of_number(True, 30)(x, w))


def dense_costs(values, weights, cost):
    """[n + 1, n], of the cells j to i - 1 at [i, j], one by one."""
    n = values.size
    costs = np.full((n + 1, n), np.inf)
    for j in range(n):
        if cost == "sse":
            mass, total = np.cumsum(weights[j:]), np.cumsum(weights[j:] * values[j:])
            middle = total / np.where(mass > 0, mass, 1)
            # Around the first value, whose digits the sums need not carry.
            off = values[j:] - values[j]
            square = np.cumsum(weights[j:] * off**2) - mass * (middle - values[j]) ** 2
            costs[np.arange(j + 1, n + 1), j] = square
        else:
            for i in range(j + 1, n + 1):
                x, w = values[j:i], weights[j:i]
                order = np.argsort(x)
                place = np.searchsorted(np.cumsum(w[order]), w.sum() / 2)
                costs[i, j] = (w * np.abs(x - x[order][min(place, x.size - 1)])).sum()
    return costs


def optimal(costs, penalty):
    best = np.zeros(costs.shape[0])
    for i in range(1, best.size):
        best[i] = (best[:i] + costs[i, :i]).min() + penalty
    return best[-1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_every_way_finds_the_least_cost(kind, is_weighted):
    values = VECTORS[kind]
    near = values - values[0]  # exact, for the reference
    weights = np.random.default_rng(5).choice([0.0, 0.3, 1.0, 2.0], N) if is_weighted else np.ones(N)
    given = weights if is_weighted else None
    size = np.abs(values - np.median(values)).max() + 1e-300
    for cost, power in (("sse", 2), ("sae", 1)):
        costs = dense_costs(near, weights, cost)
        close = {"rtol": 1e-10, "atol": 1e-13 * N * size**power}
        if cost == "sae":
            found = segment_deviations.deviations(jnp.asarray(values), None if given is None else jnp.asarray(given)).costs
            np.testing.assert_allclose(found, costs, **close)
        for penalty in (0.01 * size**power, size**power, 20 * size**power, 400.0):
            expected = optimal(costs, penalty)
            ways: dict = {"sae": DEVIATIONS(values, given, penalty)}
            if cost == "sse":
                ways = {
                    "pruned, or functional where that takes long": PENALIZED(values, given, penalty),
                    "functional": segment_squares.begins_of(FUNCTIONAL(values, given, penalty)),
                    "at once": AT_ONCE(values, given, penalty),
                }
            for begins in ways.values():
                assert begins[0]
                ids = np.cumsum(begins) - 1
                found = cost_of(near, weights, ids, cost) + penalty * (ids[-1] + 1)
                np.testing.assert_allclose(found, expected, **close)
        begins, least = (SQUARES_TABLE if cost == "sse" else DEVIATIONS_TABLE)(values, given)
        best = np.full(N + 1, np.inf)
        best[1:] = costs[1:, 0]
        for bins in range(1, 31):
            np.testing.assert_allclose(least[bins - 1], best[N], **close)
            best = np.array([np.inf, *((best[:i] + costs[i, :i]).min() for i in range(1, N + 1))])
        ids = np.cumsum(begins) - 1
        assert ids[-1] == 29
        np.testing.assert_allclose(cost_of(near, weights, ids, cost), least[29], **close)


@pytest.mark.slow
def test_few_cuts_are_looked_at():
    # Where pruning gives up, functions take over with a handful of pieces; the bins are as good.
    rng = np.random.default_rng(0)
    for values, penalty in ((np.zeros(3000), 2.0), (np.arange(3000) % 2.0, 2000.0), (rng.laplace(size=3000), 4.0)):
        is_done = segment_squares._by_pruning(segment_squares.running_sums(jnp.asarray(values), None), jnp.asarray(penalty))[1]
        assert bool(is_done) == (penalty != 2000)
        fit = penalized_v_optimal(values, penalty)
        ids = np.cumsum(AT_ONCE(values, None, penalty)) - 1
        expected = cost_of(values, np.ones(3000), ids, "sse") + penalty * int(ids[-1] + 1)
        assert float(fit.cost) + penalty * int(fit.num_bins) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_batches_and_derivatives():
    rng = np.random.default_rng(2)
    rows = rng.laplace(0, 5, (4, 30)) + np.repeat([0, 40, 10], 10)
    weights = rng.uniform(0.5, 2, 30)
    for cost in ("sse", "sae"):

        def by_number(x, cost=cost):
            return v_optimal(x, 4, cost=cost, weights=weights)

        def by_price(x, cost=cost):
            return penalized_v_optimal(x, 60.0, cost=cost, weights=weights)

        for fit in (by_number,) if cost == "sse" else (by_price,):
            batch = jax.jit(jax.vmap(fit))(rows)
            for row, values in enumerate(rows):
                alone = fit(values)
                np.testing.assert_allclose(batch.values[row], alone.values, rtol=1e-13)
                assert (batch.block_ids[row] == alone.block_ids).all()
            # Inside the bins a small change moves means and medians as derivatives say.
            x, change, step = rows[0], rng.normal(size=30), 1e-6
            _, tangent = jax.jvp(lambda x, fit=fit: fit(x).values, (x,), (change,))
            np.testing.assert_allclose(
                tangent, (fit(x + step * change).values - fit(x - step * change).values) / (2 * step), atol=1e-7
            )
            gradient = jax.grad(lambda x, fit=fit: fit(x).cost)(x)
            expected = (fit(x + step * change).cost - fit(x - step * change).cost) / (2 * step)
            assert float(gradient @ change) == pytest.approx(float(expected), abs=1e-5)
        # A penalty may differ from row to row.
        prices = np.array([0.0, 30, 100, 1e6])
        found = jax.vmap(lambda x, p, cost=cost: penalized_v_optimal(x, p, cost=cost).num_bins)(rows, prices)
        assert found[0] == 30
        assert found[3] == 1
        assert found.tolist() == [int(penalized_v_optimal(x, p, cost=cost).num_bins) for x, p in zip(rows, prices, strict=True)]


@pytest.mark.slow
def test_sizes_and_dtypes():
    for cost in ("sse", "sae"):
        assert v_optimal([3], 1, cost=cost).values.tolist() == [3]
        for values in ([3, 4], [2, 2]):
            assert v_optimal(values, 2, cost=cost).stops.tolist() == [1, 2]
            assert penalized_v_optimal(values, 100, cost=cost).stops.tolist() == [2]
        fit = v_optimal(np.array([1, 2, 9], dtype=np.float32), 2, cost=cost)
        assert fit.values.dtype == np.float32
        assert fit.stops.tolist() == [2, 3]
        # Cells without weight do not count, and a bin of them alone has the value 0.
        alone = v_optimal([5.0, 1.0, 7.0], 3, cost=cost, weights=[0, 1, 1])
        assert alone.values.tolist() == [0, 1, 7]
    # The middle of all medians.
    assert v_optimal([1.0, 2.0, 4.0, 9.0], 1, cost="sae").values.tolist() == [3.0] * 4
    assert v_optimal([1.0, 2.0, 4.0], 1, cost="sae", weights=[1, 1, 2]).values.tolist() == [3.0] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: v_optimal([1, 2], 3), "bins must be at most the number of values, 2, got 3"),
        (lambda: v_optimal([1, 2], 0), "bins must be"),
        (lambda: v_optimal([], 1), "bins must be at most"),
        (lambda: v_optimal([[1, 2]], 1), "values must be a vector"),
        (lambda: v_optimal([1, np.nan], 1), "values"),
        (lambda: v_optimal([1, 2], 1, cost="l2"), "cost must be one of"),
        (lambda: v_optimal([1, 2], 1, weights=[1]), r"weights must have the shape of values, \[2\], got \[1\]"),
        (lambda: v_optimal([1, 2], 1, weights=[1, -1]), "weights must not be negative"),
        (lambda: v_optimal(["a"], 1), "values"),
        (lambda: penalized_v_optimal([1, 2], -1), "penalty must be at least 0 and finite, got -1"),
        (lambda: penalized_v_optimal([1, 2], [1, 2]), "penalty must be one number"),
        (lambda: penalized_v_optimal([], 1), "values must hold at least one value"),
        (lambda: jax.vmap(lambda x: v_optimal(x, 1))(np.ones((2, 3))).stops, "stops are of one segmentation"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
