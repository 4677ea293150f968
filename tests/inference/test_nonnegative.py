"""Non-negative least squares against an active-set solver, its own optimality conditions, and the equality it must keep."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize, nnls

import dpinfer as dp
from dpinfer.inference import nonnegative, nonnegative_least_squares
from dpinfer.queries import AllRange, Dense, Haar, Identity, Kronecker, Partition, Prefix, Ranges, Total, Tree, VStack

STRATEGIES = [
    Identity(1),
    Identity(7),
    Prefix(2),
    Prefix(9),
    AllRange(8),
    Haar(9),
    Tree.complete(27, 3),
    Tree.grid((4, 5), 2),
    VStack([Identity(12), Partition([0, 1, 2] * 4), Total(12)]),
    Kronecker([Prefix(3), Tree.complete(4, 2, root=True)]),
]


def noisy(strategy, seed=0, size=3.0):
    rng = np.random.default_rng(seed)
    cells = rng.poisson(1.0, strategy.shape[1]).astype(float)
    return np.asarray(strategy @ cells) + size * rng.laplace(size=strategy.shape[0])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_against_an_active_set_solver(strategy):
    rng = np.random.default_rng(1)
    for values, stddev in ((noisy(strategy), np.float64(2.0)), (noisy(strategy, 1), rng.uniform(0.5, 2, strategy.shape[0]))):
        estimate = nonnegative_least_squares(dp.Measurement(strategy, values, "gaussian", stddev))
        weights = np.broadcast_to(1 / stddev, values.shape)
        expected, _ = nnls(np.asarray(strategy.dense(), dtype=float) * weights[:, None], values * weights)
        np.testing.assert_allclose(estimate.cells, expected, atol=1e-8)
        assert np.all(np.asarray(estimate.cells) >= 0)
        assert float(estimate.kkt_residual) < 1e-10
        assert bool(estimate.converged)


@given(st.integers(0, 10**6))
@settings(max_examples=25)
def test_the_optimality_conditions_hold(seed):
    strategy = Tree.complete(16, 2)
    rng = np.random.default_rng(seed)
    values, stddev = noisy(strategy, seed, 10.0 ** rng.uniform(-3, 3)), 10.0 ** rng.uniform(-1, 1, 30)
    estimate = nonnegative_least_squares(dp.Measurement(strategy, values, "gaussian", stddev))
    cells = np.asarray(estimate.cells)
    matrix = np.asarray(strategy.dense(), dtype=float) / stddev[:, None]
    gradient = matrix.T @ (matrix @ cells - values / stddev)
    unit = np.abs(matrix.T @ (values / stddev)).max()
    assert gradient.min() > -1e-9 * unit
    assert np.abs(gradient[cells > 0]).max(initial=0) < 1e-9 * unit


@pytest.mark.parametrize("strategy", [Identity(6), Prefix(6), VStack([Identity(6), Haar(6)])], ids=repr)
@pytest.mark.parametrize("known", [Total(6), VStack([Total(6), Ranges(6, [0, 1], [2, 4])])], ids=["total", "three sums"])
def test_exact_counts_are_kept(strategy, known):
    rng = np.random.default_rng(3)
    cells = rng.integers(0, 3, 6).astype(float)
    values = np.asarray(strategy @ cells) + 4 * rng.normal(size=strategy.shape[0])
    estimate = nonnegative_least_squares(dp.Measurement(strategy, values, "gaussian", 1.0).with_exact(known, known @ cells))
    got = np.asarray(estimate.cells)
    np.testing.assert_allclose(known @ got, known @ cells, atol=1e-8)
    np.testing.assert_allclose(estimate.constraint_residual, 0, atol=1e-8)
    assert np.all(got >= 0)
    matrix, rows = np.asarray(strategy.dense(), dtype=float), np.asarray(known.dense(), dtype=float)
    other = minimize(
        lambda x: 0.5 * np.square(matrix @ x - values).sum(),
        np.ones(6),
        jac=lambda x: matrix.T @ (matrix @ x - values),
        bounds=[(0, None)] * 6,
        constraints={"type": "eq", "fun": lambda x: rows @ x - known @ cells, "jac": lambda x: rows},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert np.square(matrix @ got - values).sum() <= np.square(matrix @ other.x - values).sum() * (1 + 1e-9) + 1e-9
    np.testing.assert_allclose(got, other.x, atol=1e-4)


@pytest.mark.slow
def test_a_total_over_cells_that_no_row_tells_apart():
    starts, sizes = np.array([24, 47, 49, 17, 79, 45, 8, 54]), np.array([53, 45, 43, 26, 11, 39, 46, 31])
    values = np.array([5722, 4948, 3681, 2260, 668, 3821, 3157, 3204])
    strategy = Ranges(96, starts, starts + sizes)
    measurement = dp.Measurement(strategy, values, "discrete_laplace", 200.0).with_exact(Total(96), [6737])
    estimate = nonnegative_least_squares(measurement)
    cells = np.asarray(estimate.cells)
    assert int(estimate.num_steps) < 50
    assert cells.sum() == pytest.approx(6737, rel=1e-10)
    gradient = np.asarray(strategy.dense()).T @ (np.asarray(strategy @ cells) - values)
    # Nothing is won by moving a part of a cell elsewhere.
    assert gradient.min() >= gradient[cells > 0].max() - 1e-8 * np.abs(gradient).max()


@pytest.mark.slow
def test_repeated_columns_and_several_exact_counts_of_several_sizes():
    n = 40
    for seed in (2, 3, 6, 13, 17, 23, 26, 28, 34, 41):
        rng = np.random.default_rng(seed)
        starts, stops = np.sort(rng.integers(0, n, (2, 10)), axis=0)
        rows = ((np.arange(n) >= starts[:, None]) & (np.arange(n) <= stops[:, None]))[:, np.sort(rng.integers(0, n, n))].astype(
            float
        )
        matrix, known = rows[:8], np.concatenate([np.ones((1, n)), rows[8:]])
        truth = np.where(rng.random(n) < 0.5, 0, rng.poisson(50, n))
        stddev, totals = 10.0 ** rng.uniform(0, 3, 8), known @ truth * 10.0 ** rng.integers(-3, 4)
        values = matrix @ truth + 20 * rng.laplace(size=8)
        estimate = nonnegative_least_squares(
            dp.Measurement(Dense(matrix), values, "gaussian", stddev).with_exact(Dense(known), totals)
        )
        cells = np.asarray(estimate.cells)
        assert int(estimate.num_steps) < 400
        np.testing.assert_allclose(known @ cells, totals, rtol=1e-9, atol=1e-9 * totals.max())
        # The tangent plane is below the objective: no cells that keep the counts are better than the least of it.
        residual = (matrix @ cells - values) / stddev
        gradient = matrix.T @ (residual / stddev)
        unit = np.abs(gradient).max()
        least = linprog(gradient / unit, A_eq=known, b_eq=known @ cells / cells.max(), bounds=(0, None)).fun
        assert gradient @ cells - unit * cells.max() * least <= 1e-7 * np.square(values / stddev).sum()


@pytest.mark.slow
def test_a_total_on_the_identity_is_the_projection_on_the_simplex():
    import optax

    values = jnp.asarray(np.random.default_rng(0).normal(size=50))
    measurement = dp.Measurement(Identity(50), values, "gaussian", 1.0).with_exact(Total(50), [10.0])
    np.testing.assert_allclose(
        nonnegative_least_squares(measurement).cells, optax.projections.projection_simplex(values, 10.0), atol=1e-9
    )


@pytest.mark.slow
def test_bias_on_empty_cells_is_mended_by_a_known_total():
    strategy = Tree.complete(4096, 16)
    values = np.random.default_rng(0).laplace(size=strategy.shape[0])
    measurement = dp.Measurement(strategy, values, "laplace", 1.0)
    plain = np.asarray(dp.least_squares(measurement).cells)
    clamped, fitted = np.maximum(plain, 0).sum(), np.asarray(nonnegative_least_squares(measurement).cells).sum()
    known = nonnegative_least_squares(measurement.with_exact(Total(4096), [0.0]))
    assert clamped > 1000  # every error of a cell counts upward
    assert 0 < fitted < 0.05 * clamped
    np.testing.assert_allclose(known.cells, 0, atol=1e-9)


@pytest.mark.slow
def test_65536_cells():
    strategy = Tree.complete(2**16, 16)
    estimate = nonnegative_least_squares(dp.Measurement(strategy, noisy(strategy), "laplace", 1.0))
    assert float(estimate.kkt_residual) < 1e-10
    assert int(estimate.num_steps) < 100


def test_the_units_do_not_matter():
    strategy = Tree.complete(64, 2)
    values = noisy(strategy)
    first, second = (nonnegative_least_squares(dp.Measurement(strategy, k * values, "laplace", k)) for k in (1.0, 1e6))
    np.testing.assert_allclose(second.cells, 1e6 * np.asarray(first.cells), rtol=1e-9, atol=1e-4)
    assert int(first.num_steps) == int(second.num_steps)


@pytest.mark.parametrize("with_total", [False, True])
def test_transforms(with_total):
    strategy = VStack([Prefix(6), Identity(6)])
    queries = VStack([strategy, Total(6)]) if with_total else strategy
    base = np.random.default_rng(2).uniform(0.5, 2, queries.shape[0])
    values = jnp.asarray(np.concatenate([noisy(strategy, 5), [9.0]])[: queries.shape[0]])

    def loss(values, scale):
        # Which scales are zero has to be known.
        spread = np.append(base[:12], 0.0) if with_total else scale
        measurement = dp.Measurement(queries, values, "gaussian", spread)
        return (nonnegative_least_squares(measurement).cells ** 3).sum()

    scale, rng = jnp.asarray(base), np.random.default_rng(4)
    direction = jnp.asarray(rng.normal(size=values.shape)), jnp.asarray(rng.normal(size=scale.shape))
    step = 1e-6
    above, below = (loss(values + k * step * direction[0], scale + k * step * direction[1]) for k in (1, -1))
    value, forward = jax.jvp(loss, (values, scale), direction)
    assert float(forward) == pytest.approx(float(above - below) / (2 * step), rel=1e-5)
    gradient = jax.grad(loss, (0, 1))(values, scale)
    assert sum(float(g @ d) for g, d in zip(gradient, direction, strict=True)) == pytest.approx(float(forward), rel=1e-8)
    batch = jax.vmap(loss, (0, None))(jnp.stack([values, 2 * values]), scale)
    np.testing.assert_allclose(batch, [value, loss(2 * values, scale)], rtol=1e-9)
    assert float(jax.jit(loss)(values, scale)) == pytest.approx(float(value), rel=1e-9)


@pytest.mark.slow
def test_what_cannot_be_is_named():
    measurement = dp.Measurement(Prefix(4), np.arange(4.0), "laplace", 1.0)
    with pytest.raises(ValueError, match=r"No non-negative cells keep all exact counts: row 4, which says -3, is missed by"):
        nonnegative_least_squares(measurement.with_exact(Total(4), [-3.0]))
    with pytest.raises(ValueError, match="No non-negative cells keep all exact counts"):
        nonnegative_least_squares(measurement.with_exact(VStack([Total(4), Ranges(4, [0], [2])]), [3.0, 5.0]))
    estimate = nonnegative_least_squares(measurement)
    with pytest.raises(ValueError, match="workload must be over the estimate's 4 cells, got 3"):
        estimate.answer(Identity(3))
    answers = estimate.answer(Total(4))
    assert answers.values.shape == (1,)
    with pytest.raises(ValueError, match="nonnegative_least_squares gives no intervals: its errors depend on the true cells"):
        answers.interval(0.9)
    with pytest.raises(ValueError, match="gives no standard deviations"):
        _ = answers.stddev


def test_exact_counts_far_smaller_than_the_noisy_values():
    for total in (1e-6, 1e-3, 1e6):
        measurement = dp.Measurement(Identity(4), [3.0, 1, 2, 4], "laplace", 1.0).with_exact(Total(4), [total])
        assert np.asarray(nonnegative_least_squares(measurement).cells).sum() == pytest.approx(total, rel=1e-4)


@pytest.mark.slow
def test_nothing_measured_and_rows_left_out():
    nothing = dp.Measurement(Identity(3), np.ones(3), "laplace", np.inf)
    np.testing.assert_array_equal(nonnegative_least_squares(nothing).cells, 0)
    some = dp.Measurement(Dense([[1, 0, 0], [0, 1, 0]]), [-4.0, 2.0], "laplace", [1.0, 1.0])
    np.testing.assert_allclose(nonnegative_least_squares(some).cells, [0, 2, 0], atol=1e-12)


@pytest.mark.slow
def test_exact_counts_beside_cells_of_very_different_precision():
    stack = VStack([Identity(3), Total(3)])
    for far in (10.0, 30.0):
        measurement = dp.Measurement(stack, [4, 3, 6, 2], "gaussian", [1, np.inf, 1, far]).with_exact(Total(3), [3])
        np.testing.assert_allclose(nonnegative_least_squares(measurement).cells, [0.5, 0, 2.5], atol=1e-6)
    two = dp.Measurement(Identity(2), [4, 6], "gaussian", [1, 100]).with_exact(Total(2), [3])
    np.testing.assert_allclose(nonnegative_least_squares(two).cells, [3, 0], atol=1e-3)
    minus = dp.Measurement(Dense([[1, 0], [0, 1]]), [3.0, 3.0], "gaussian", 1.0).with_exact(Dense([[0, -1]]), [0])
    np.testing.assert_allclose(nonnegative_least_squares(minus).cells, [3, 0], atol=1e-9)


def test_the_noise_is_blamed_only_where_it_differs(monkeypatch):
    solve = nonnegative.solve
    monkeypatch.setattr(nonnegative, "solve", lambda given: replace(solve(given), converged=np.False_))
    measurement = dp.Measurement(Identity(2), [1.0, 2.0], "gaussian", [1.0, 2.0])
    with pytest.raises(
        ValueError, match=r"after \d+ rounds the optimality conditions are missed by .* and exact counts by .*e[+-]\d+\.$"
    ):
        nonnegative_least_squares(measurement)
    with pytest.raises(
        ValueError, match=r"The noise of some rows is 1e\+04 times that of others; leave out the least precise\.$"
    ):
        nonnegative_least_squares(replace(measurement, scale=np.array([1.0, 1e4])))
