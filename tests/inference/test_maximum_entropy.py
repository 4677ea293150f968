"""Maximum entropy against independence, a general-purpose optimiser, multiplicative weights run to the end, and differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import dpinfer as dp
from dpinfer.inference import maximum_entropy, nonnegative_least_squares
from dpinfer.queries import Dense, Identity, Kronecker, Partition, Prefix, Ranges, Total, Tree, VStack, Weighted

GRID = (3, 4)
MARGINALS = VStack([Kronecker([Identity(3), Total(4)]), Kronecker([Total(3), Identity(4)])])


def noisy(strategy, seed, size=3.0):
    rng = np.random.default_rng(seed)
    cells = rng.poisson(2.0, strategy.shape[1]).astype(float)
    return np.asarray(strategy @ cells) + size * rng.laplace(size=strategy.shape[0])


def entropy(cells):
    cells = np.asarray(cells)
    return -(cells[cells > 0] * np.log(cells[cells > 0])).sum()


@pytest.mark.slow
def test_two_marginals_give_the_independent_table():
    table = np.random.default_rng(0).poisson(6, GRID)
    estimate = maximum_entropy(dp.Measurement(MARGINALS, MARGINALS @ table.ravel(), "laplace", 1.0))
    independent = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    np.testing.assert_allclose(estimate.cells, independent.ravel(), rtol=1e-12)
    assert float(estimate.fit_residual) < 1e-14
    assert bool(estimate.converged)


@pytest.mark.parametrize(
    "strategy",
    [
        MARGINALS,
        VStack([Partition([0, 0, 1, 1, 1, 2]), Prefix(6)]),
        Weighted(VStack([Total(5), Ranges(5, [0, 1], [3, 4])]), [1, 2, 3]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_against_a_general_optimiser(strategy, seed):
    values, stddev = noisy(strategy, seed, 4.0), np.random.default_rng(seed).uniform(1, 3, strategy.shape[0])
    measurement = dp.Measurement(strategy, values, "gaussian", stddev)
    estimate, fit = maximum_entropy(measurement), nonnegative_least_squares(measurement)
    matrix = np.asarray(strategy.dense(), dtype=float)
    answers = matrix @ np.asarray(fit.cells)
    np.testing.assert_allclose(matrix @ np.asarray(estimate.cells), answers, atol=1e-12 * np.abs(answers).max())
    free = np.asarray(fit.bound_multipliers) < 1e-9
    _, sizes, right = np.linalg.svd(matrix[:, free], full_matrices=False)
    rows = right[sizes > 1e-9]
    other = minimize(
        lambda x: (x * np.log(np.maximum(x, 1e-300))).sum(),
        np.full(free.sum(), answers.max() / free.sum()),
        jac=lambda x: np.log(np.maximum(x, 1e-300)) + 1,
        bounds=[(1e-12, None)] * int(free.sum()),
        constraints={"type": "eq", "fun": lambda x: rows @ (x - np.asarray(fit.cells)[free]), "jac": lambda x: rows},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    np.testing.assert_allclose(np.asarray(estimate.cells)[free], other.x, atol=2e-5)
    np.testing.assert_array_equal(np.asarray(estimate.cells)[~free], 0)
    assert entropy(estimate.cells) >= entropy(fit.cells) - 1e-9


def test_multiplicative_weights_end_here():
    values = noisy(MARGINALS, 4)
    matrix, cells = np.asarray(MARGINALS.dense(), dtype=float), np.ones(12)
    for _ in range(20_000):
        cells = cells * np.exp(-0.01 * matrix.T @ (matrix @ cells - values))
    estimate = maximum_entropy(dp.Measurement(MARGINALS, values, "laplace", 2.0))
    np.testing.assert_allclose(estimate.cells, cells, atol=1e-8)


@pytest.mark.slow
def test_what_determines_every_cell_leaves_nothing_to_even_out():
    for strategy in (Identity(7), Tree.complete(8, 2), Prefix(5)):
        measurement = dp.Measurement(strategy, noisy(strategy, 1), "laplace", 1.0)
        np.testing.assert_allclose(maximum_entropy(measurement).cells, nonnegative_least_squares(measurement).cells, atol=1e-9)


@pytest.mark.slow
def test_exact_counts_are_kept():
    values = noisy(MARGINALS, 2)
    known = VStack([Total(12), Ranges(12, [2], [5])])
    estimate = maximum_entropy(dp.Measurement(MARGINALS, values, "laplace", 1.0).with_exact(known, [30.0, 11.0]))
    np.testing.assert_allclose(known @ np.asarray(estimate.cells), [30, 11], atol=1e-9)
    np.testing.assert_allclose(estimate.constraint_residual, 0, atol=1e-9)
    empty = maximum_entropy(dp.Measurement(MARGINALS, values, "laplace", 1.0).with_exact(Total(12), [0.0]))
    np.testing.assert_array_equal(empty.cells, 0)


@pytest.mark.slow
def test_the_total_must_be_determined():
    measurement = dp.Measurement(Ranges(6, [0, 2], [3, 4]), [4.0, 5.0], "laplace", 1.0)
    with pytest.raises(ValueError, match=r"does not determine the total.* measurement.with_exact\(queries.Total\(n\)"):
        maximum_entropy(measurement)
    cells = np.asarray(maximum_entropy(measurement.with_exact(Total(6), [12.0])).cells)
    assert cells.sum() == pytest.approx(12)
    np.testing.assert_allclose([cells[0], cells[4]], [cells[1], cells[5]], rtol=1e-10)  # nothing tells these apart
    one = maximum_entropy(dp.Measurement(Dense([[1.0]]), [3.0], "laplace", 1.0))
    np.testing.assert_allclose(one.cells, [3.0])
    with pytest.raises(ValueError, match="maximum_entropy gives no intervals"):
        one.answer(Total(1)).interval(0.9)


def test_the_units_do_not_matter():
    values = noisy(MARGINALS, 6)
    first, second = (maximum_entropy(dp.Measurement(MARGINALS, k * values, "laplace", k)) for k in (1.0, 1e6))
    np.testing.assert_allclose(second.cells, 1e6 * np.asarray(first.cells), rtol=1e-9)
    assert int(first.num_steps) == int(second.num_steps)


@pytest.mark.parametrize("with_total", [False, True])
def test_transforms(with_total):
    queries = VStack([MARGINALS, Total(12)])
    base = np.random.default_rng(2).uniform(0.5, 2, 8)
    values = jnp.asarray(np.append(noisy(MARGINALS, 7), 25.0))

    def loss(values, scale):
        spread = np.append(base[:7], 0.0) if with_total else scale  # which scales are zero has to be known
        return (maximum_entropy(dp.Measurement(queries, values, "gaussian", spread)).cells ** 2 * weights).sum()

    weights = jnp.asarray(np.random.default_rng(3).normal(size=12))
    scale, rng = jnp.asarray(base), np.random.default_rng(4)
    direction = jnp.asarray(rng.normal(size=8)), jnp.asarray(rng.normal(size=8))
    step = 1e-6
    above, below = (loss(values + k * step * direction[0], scale + k * step * direction[1]) for k in (1, -1))
    value, forward = jax.jvp(loss, (values, scale), direction)
    assert float(forward) == pytest.approx(float(above - below) / (2 * step), rel=1e-5)
    gradient = jax.jit(jax.grad(loss, (0, 1)))(values, scale)
    assert sum(float(g @ d) for g, d in zip(gradient, direction, strict=True)) == pytest.approx(float(forward), rel=1e-7)
    batch = jax.jit(jax.vmap(loss, (0, None)))(jnp.stack([values, 2 * values]), scale)
    np.testing.assert_allclose(batch, [value, loss(2 * values, scale)], rtol=1e-9)


@pytest.mark.slow
def test_the_derivative_in_the_queries():
    def loss(matrix):
        queries = VStack([MARGINALS, Dense(matrix)])
        return (maximum_entropy(dp.Measurement(queries, values, "gaussian", 1.0)).cells ** 2 * weights).sum()

    rng = np.random.default_rng(8)
    values, weights = np.append(noisy(MARGINALS, 9, 0.5), 20.0), rng.normal(size=12)
    matrix, direction = jnp.asarray(rng.uniform(0, 1, (1, 12))), jnp.asarray(rng.normal(size=(1, 12)))
    step = 1e-6
    difference = float(loss(matrix + step * direction) - loss(matrix - step * direction)) / (2 * step)
    assert float((jax.grad(loss)(matrix) * direction).sum()) == pytest.approx(difference, rel=1e-5)
