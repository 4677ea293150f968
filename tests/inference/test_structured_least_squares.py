"""Least squares by structure and by conjugate gradients, against a dense solution by other means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import weighted_least_squares

import dpinfer as dp
from dpinfer.inference import iterative_estimate, least_squares
from dpinfer.inference.dense_estimate import DenseEstimate
from dpinfer.inference.iterative_estimate import IterativeEstimate, solve_iteratively
from dpinfer.inference.kronecker_estimate import KroneckerEstimate
from dpinfer.inference.marginals_estimate import MarginalsEstimate
from dpinfer.inference.orthogonal_estimate import OrthogonalEstimate
from dpinfer.inference.stacks import stack_tree
from dpinfer.inference.tree_estimate import TreeEstimate
from dpinfer.queries import (
    AllRange,
    Boxes,
    Dense,
    Haar,
    Identity,
    Kronecker,
    Partition,
    Prefix,
    Ranges,
    Total,
    Tree,
    VStack,
    Weighted,
)

CUBE = (2, 3, 4)


def marginal(*kept):
    return Kronecker([Identity(n) if axis in kept else Total(n) for axis, n in enumerate(CUBE)])


# Strategy, how it should be solved, whether every row of a part has one variance (else one a row).
CASES = {
    "identity and total": (VStack([Identity(6), Total(6)]), TreeEstimate, "rows"),
    "measured twice": (VStack([Identity(6), Partition([0, 1, 0, 1, 2, 2]), Identity(6), Total(6)]), TreeEstimate, "rows"),
    "two trees": (VStack([Tree.complete(8, 2), Tree.complete(8, 4, root=True)]), TreeEstimate, "rows"),
    "nested marginals": (VStack([marginal(0), marginal(0, 1), marginal(0, 1, 2), Total(24)]), TreeEstimate, "rows"),
    "quadtree and total": (VStack([Tree.grid((4, 4), 2), Total(16)]), TreeEstimate, "rows"),
    "wavelet": (Haar(8), OrthogonalEstimate, "rows"),
    "partition": (Partition([2, 0, 1, 0, 2]), OrthogonalEstimate, "rows"),
    "wavelets": (Kronecker([Haar(4), Haar(2)]), OrthogonalEstimate, "rows"),
    "weighted wavelet": (Weighted(Haar(4), [1, 2, 3, 4]), OrthogonalEstimate, "rows"),
    "marginals": (VStack([marginal(0, 1), marginal(1, 2), marginal(0, 2)]), MarginalsEstimate, "parts"),
    "cells and marginals": (VStack([Identity(24), marginal(0), VStack([marginal(1), marginal(2)])]), MarginalsEstimate, "parts"),
    "product": (Kronecker([Prefix(3), Tree.complete(4, 2)]), KroneckerEstimate, "all"),
    "deficient product": (Kronecker([Ranges(3, [0], [2]), AllRange(4)]), KroneckerEstimate, "all"),
    "padded wavelet": (Haar(6), DenseEstimate, "rows"),
    "anything": (VStack([Prefix(5), Dense(np.arange(10).reshape(2, 5))]), DenseEstimate, "rows"),
}


def measurement_of(strategy, sharing, seed=0):
    rng = np.random.default_rng(seed)
    parts = strategy.parts if sharing == "parts" else [strategy]
    if sharing == "rows":
        variances = 10.0 ** rng.uniform(-1, 1, strategy.shape[0])
    else:
        flat = [q for part in parts for q in (part.parts if isinstance(part, VStack) else [part])]
        variances = np.concatenate([np.full(q.shape[0], v) for q, v in zip(flat, rng.uniform(0.5, 4, len(flat)), strict=True)])
    return rng.normal(size=strategy.shape[0]) * 5, variances


def workloads_of(strategy):
    n = strategy.shape[1]
    yield Identity(n)
    yield Ranges(n, [0, 1, n // 2], [n, n // 2 + 1, n])
    if n == 24:
        yield marginal(1)
        yield Boxes(CUBE, [[0, 0, 1], [1, 2, 0]], [[2, 2, 3], [2, 3, 4]])
        yield VStack([marginal(0, 2), Total(24), Prefix(24)])
        yield Total(n)
    if isinstance(strategy, Kronecker) and len(strategy.parts) == 2:
        a, b = (part.shape[1] for part in strategy.parts)
        yield Kronecker([Prefix(a), Total(b)])
        yield Boxes((a, b), [[0, 1]], [[a, b]])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_structure_against_dense_least_squares(name):
    strategy, kind, sharing = CASES[name]
    values, variances = measurement_of(strategy, sharing)
    matrix = np.asarray(strategy.dense(), dtype=float)
    scale = np.sqrt(variances) if sharing != "all" else np.sqrt(variances[0])
    estimate = dp.least_squares(dp.Measurement(strategy, values, "gaussian", scale))
    assert isinstance(estimate, kind)
    check_against_dense(estimate, strategy, matrix, values, variances)


def check_against_dense(estimate, strategy, matrix, values, variances, rtol=1e-8):
    cells, covariance = weighted_least_squares(matrix, values, variances)
    space = np.linalg.pinv(matrix[np.isfinite(variances)]) @ matrix[np.isfinite(variances)]
    for workload in workloads_of(strategy):
        rows = np.asarray(workload.dense(), dtype=float)
        known = np.abs(rows - rows @ space).max(axis=1) < 1e-8
        expected = np.sqrt(np.maximum(np.diag(rows @ covariance @ rows.T), 0))
        got = np.asarray(estimate.expected_stddev(workload))
        np.testing.assert_allclose(got[known], expected[known], rtol=rtol, atol=1e-9)
        assert np.all(np.isinf(got[~known]))
        if known.all():
            answers = estimate.answer(workload)
            np.testing.assert_allclose(answers.values, rows @ cells, atol=rtol * 10 * np.abs(values).max())
            if isinstance(workload, Ranges):
                np.testing.assert_allclose(estimate.covariance(workload), rows @ covariance @ rows.T, atol=rtol * 10)
            if isinstance(workload, Total):
                np.testing.assert_allclose(answers.interval(0.9)[1] - answers.values, 1.6448536 * expected, rtol=1e-6)
        elif (~known).any():
            with pytest.raises(ValueError, match="does not determine"):
                estimate.answer(workload)


@pytest.mark.parametrize("name", ["measured twice", "marginals", "deficient product", "anything"])
def test_conjugate_gradients_find_the_same(name):
    strategy, _, sharing = CASES[name]
    values, variances = measurement_of(strategy, sharing, seed=1)
    estimate = solve_iteratively(strategy, jnp.asarray(values), jnp.asarray(np.sqrt(variances)))
    assert bool(estimate.converged)
    check_against_dense(estimate, strategy, np.asarray(strategy.dense(), dtype=float), values, variances, rtol=1e-7)


@pytest.mark.parametrize("name", ["measured twice", "wavelet", "marginals", "product"])
def test_rows_that_were_not_measured(name):
    strategy, _, sharing = CASES[name]
    values, variances = measurement_of(strategy, sharing)
    if sharing == "parts":
        variances[-8:] = np.inf  # the last marginal
    elif sharing == "rows":
        variances[1] = np.inf
    scale = np.sqrt(variances) if sharing != "all" else np.full(strategy.shape[0], 2.0)
    if sharing == "all":
        scale[1], variances = np.inf, np.full(strategy.shape[0], 4.0)
        variances[1] = np.inf
    estimate = dp.least_squares(dp.Measurement(strategy, values, "gaussian", scale))
    check_against_dense(estimate, strategy, np.asarray(strategy.dense(), dtype=float), values, variances)


@pytest.mark.slow
def test_exact_rows_in_stacks_and_wavelets():
    stack = VStack([Identity(3), Total(3), Identity(3)])
    release = dp.Measurement(stack, [1.0, 2, 3, 12, 3, 4, 5], "laplace", [1, 1, 1, 0, 1, 1, 1])
    estimate = dp.least_squares(release)
    np.testing.assert_allclose(estimate.cells, [3, 4, 5])  # averages 2, 3, 4, three short of 12 together
    np.testing.assert_allclose(estimate.answer(Total(3)).stddev, [0], atol=1e-12)
    with pytest.raises(ValueError, match=r"contradict each other: row 0 says 1"):
        dp.least_squares(dp.Measurement(stack, [1.0, 2, 3, 12, 3, 4, 5], "laplace", [0, 0, 0, 0, 1, 1, 1]))
    wavelet = dp.least_squares(dp.Measurement(Haar(4), [10.0, 2, 1, 1], "laplace", [0, 1, 1, 1]))
    assert float(wavelet.answer(Total(4)).values[0]) == 10
    assert float(wavelet.answer(Total(4)).stddev[0]) == 0


@pytest.mark.parametrize("name", ["measured twice", "wavelet", "marginals", "product", "conjugate gradients"])
def test_transforms(name):
    strategy, _, sharing = CASES["anything" if name == "conjugate gradients" else name]
    values, variances = measurement_of(strategy, sharing)
    row = np.sqrt(variances)
    base = jnp.asarray(row if sharing == "rows" else row[0])
    part = jnp.asarray(values)

    def loss(values, spread):
        if name == "conjugate gradients":
            cells = solve_iteratively(strategy, values, spread).cells
        else:
            cells = least_squares(dp.Measurement(strategy, values, "laplace", spread)).cells
        return (cells**3).sum()

    rng = np.random.default_rng(5)
    direction = jnp.asarray(rng.normal(size=values.shape)), jnp.asarray(rng.normal(size=base.shape))
    step = 1e-6
    above, below = (loss(part + k * step * direction[0], base + k * step * direction[1]) for k in (1, -1))
    value, forward = jax.jvp(loss, (part, base), direction)
    assert float(forward) == pytest.approx(float(above - below) / (2 * step), rel=1e-5)
    gradient = jax.jit(jax.grad(loss, (0, 1)))(part, base)
    backward = sum(float((g * d).sum()) for g, d in zip(gradient, direction, strict=True))
    assert backward == pytest.approx(float(forward), rel=1e-8)
    batch = jax.jit(jax.vmap(loss, (0, None)))(jnp.stack([part, 2 * part]), base)
    np.testing.assert_allclose(batch, [value, loss(2 * part, base)], rtol=1e-8)


@pytest.mark.slow
def test_standard_deviations_have_the_same_derivative_by_conjugate_gradients():
    rng = np.random.default_rng(6)
    ranges, workload = Ranges(5, [0, 1, 2], [3, 5, 4]), VStack([Identity(5), Total(5)])

    def loss(matrix, spread, solve):
        strategy = VStack([Prefix(5), Weighted(ranges, jnp.asarray([1.0, 2.0, 3.0])), Dense(matrix)])
        return (solve(strategy, jnp.zeros(strategy.shape[0]), spread).expected_stddev(workload) ** 3).sum()

    def dense(strategy, values, spread):
        return least_squares(dp.Measurement(strategy, values, "gaussian", spread))

    matrix, spread = jnp.asarray(rng.normal(size=(2, 5))), jnp.asarray(rng.uniform(1, 3, 10))
    for got, expected in zip(
        jax.jit(jax.grad(lambda m, s: loss(m, s, solve_iteratively), (0, 1)))(matrix, spread),
        jax.grad(lambda m, s: loss(m, s, dense), (0, 1))(matrix, spread),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-7)


def test_steps_do_not_depend_on_the_units():
    rng = np.random.default_rng(0)
    strategy = VStack([Identity(200), Ranges(200, np.arange(0, 190), np.arange(10, 200))])
    values, spread = jnp.asarray(rng.normal(size=390) * 100), jnp.asarray(rng.uniform(1, 3, 390))
    first, second = (solve_iteratively(strategy, k * values, k * spread) for k in (1.0, 2.0**20))
    np.testing.assert_array_equal(second.cells, first.cells * 2**20)
    assert int(first.num_steps) == int(second.num_steps)
    third = solve_iteratively(strategy, 1e6 * values, 1e6 * spread)
    np.testing.assert_allclose(third.cells, 1e6 * np.asarray(first.cells), rtol=1e-9)
    assert abs(int(third.num_steps) - int(first.num_steps)) <= 1  # where rounding decides the last step
    assert int(first.num_steps) < 200


@pytest.mark.slow
def test_a_large_strategy_without_structure():
    n = 20_000
    rng = np.random.default_rng(0)
    starts = rng.integers(0, n - 50, 3000)
    strategy = VStack([Weighted(Identity(n), 2.0), Ranges(n, starts, starts + 50)])
    cells = rng.poisson(5, n).astype(float)
    values = strategy @ cells + rng.normal(size=strategy.shape[0])
    estimate = dp.least_squares(dp.Measurement(strategy, values, "gaussian", 1.0))
    assert isinstance(estimate, IterativeEstimate)
    assert bool(estimate.converged)
    assert int(estimate.num_steps) < 300
    # The normal equations hold, and a standard deviation agrees with the realised error of a few answers.
    gradient = np.asarray(strategy.T @ (values - np.asarray(strategy @ np.asarray(estimate.cells))))
    assert np.abs(gradient).max() < 1e-6 * np.abs(np.asarray(strategy.T @ values)).max()
    workload = Ranges(n, [0, 100], [100, 5000])
    answers = estimate.answer(workload)
    errors = (np.asarray(answers.values) - np.asarray(workload @ cells)) / np.asarray(answers.stddev)
    assert np.abs(errors).max() < 5


def test_cells_and_marginals_of_a_large_cube_are_a_closed_form():
    grid = (16, 30, 64)
    n = int(np.prod(grid))
    parts = [Identity(n), *(Kronecker([Identity(k) if a == axis else Total(k) for a, k in enumerate(grid)]) for axis in range(3))]
    strategy = VStack(parts)
    rng = np.random.default_rng(0)
    values = rng.normal(size=strategy.shape[0])
    estimate = dp.least_squares(dp.Measurement(strategy, values, "laplace", 2.0))
    assert isinstance(estimate, MarginalsEstimate)
    by_steps = solve_iteratively(strategy, jnp.asarray(values), jnp.asarray(2.0 * 2**0.5))
    np.testing.assert_allclose(estimate.cells, by_steps.cells, atol=1e-9)
    assert int(by_steps.num_steps) <= 10  # one for each of the few eigenvalues
    box = Boxes(grid, [[0, 0, 0], [3, 4, 5]], [[16, 30, 1], [4, 5, 6]])
    np.testing.assert_allclose(estimate.answer(box).stddev, by_steps.answer(box).stddev, rtol=1e-8)
    cells = estimate.answer(Identity(n)).stddev
    np.testing.assert_allclose(cells, cells[0])


@pytest.mark.slow
def test_what_did_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(iterative_estimate, "MAX_STEPS", 3)
    strategy = VStack([Weighted(Prefix(3001), 3), Prefix(3001)])  # of a size that no other test has compiled
    values = np.random.default_rng(0).normal(size=6002)
    with pytest.raises(ValueError, match="Conjugate gradients did not converge .* after 3 steps"):
        dp.least_squares(dp.Measurement(strategy, values, "laplace", 1.0))
    estimate = solve_iteratively(strategy, jnp.asarray(values), jnp.asarray(1.0))
    assert not bool(estimate.converged)
    with pytest.raises(ValueError, match="standard deviations of 1 answers did not converge"):
        estimate.answer(Ranges(3001, [7], [1234]))


def test_stacks_that_are_no_tree_are_seen():
    assert stack_tree(VStack([Identity(6), Partition([0, 0, 1, 1, 2, 2]), Partition([0, 1, 1, 1, 1, 1])])) is None
    assert stack_tree(VStack([Partition([0, 0, 1]), Total(3)])) is None
    for queries in (VStack([Identity(6), Partition([5, 0, 5, 0, 1, 1]), Total(6)]), VStack([Identity(1), Total(1)]), Identity(3)):
        tree = stack_tree(queries)
        assert tree is not None
        matrix = np.vstack([tree.tree.dense(), np.zeros((1, queries.shape[1]))])
        np.testing.assert_array_equal(matrix[tree.nodes], queries.dense())


def gaussian(queries, values, stddev):
    return dp.least_squares(dp.Measurement(queries, values, "gaussian", stddev))


@pytest.mark.slow
@pytest.mark.parametrize("far", [1e3, 1e6, 1e8])
def test_noise_of_very_different_size_keeps_its_digits(far):
    # Exact values by hand: the first row tells next to nothing, so that the second alone answers.
    answers = gaussian(Prefix(4), [100, -38, 50, 70], [far, 1, 1, 1e4]).answer([[1, 1, 0, 0]])
    np.testing.assert_allclose([answers.values[0], answers.stddev[0]], [-38, 1], rtol=1e-6)
    # Rows and columns of a table measured well, its cells badly.
    table = VStack([Kronecker([Identity(2), Total(3)]), Kronecker([Total(2), Identity(3)]), Identity(6)])
    values = [6, 15, 5, 7, 9, 1, 2, 3, 4, 5, 6.5]
    estimate = gaussian(table, values, np.repeat([1, 1, far], [2, 3, 6]))
    assert isinstance(estimate, MarginalsEstimate)
    np.testing.assert_allclose(estimate.answer([[1, 1, 1, 0, 0, 0]]).values, 6, atol=10 / far**2 + 1e-7)
    known = VStack([Prefix(3), Total(3)])
    np.testing.assert_allclose(gaussian(known, [3, 8, 12, 10], [1, far, far, 0]).expected_stddev([[0, 1, 1]]), 1, rtol=1e-6)


def test_small_shares_of_what_is_open_are_seen():
    for stddev in ([1, 1e9], [1, 1]):
        with pytest.raises(ValueError, match="does not determine"):
            gaussian(Dense([[1, 1, 0], [0, 0, 1]]), [5, 7], stddev).answer([[1, 0, 1e6]])
    table = VStack([Kronecker([Identity(2), Total(3)]), Kronecker([Total(2), Identity(3)])])
    with pytest.raises(ValueError, match="does not determine"):
        gaussian(table, [6, 15, 5, 7, 9], 1.0).answer([[10000, 10000, 10001, 0, 0, 0]])
    twice = VStack([Kronecker([Total(8), Total(8)])] * 2)
    single = np.float32(1)
    estimate = dp.least_squares(dp.Measurement(twice, jnp.asarray([100, 102], jnp.float32), "gaussian", jnp.asarray(single)))
    assert np.isinf(estimate.expected_stddev(Ranges(64, [0], [63]))).all()


@pytest.mark.slow
def test_rows_of_zeros_have_no_error_and_no_derivative():
    empty = Ranges(6, [0, 1], [0, 3])
    for queries in (
        Tree.complete(6, 2),
        VStack([Prefix(6), Haar(6)]),
        Kronecker([Prefix(2), Prefix(3)]),
    ):
        n = queries.shape[1]
        workload = Ranges(n, empty.starts, empty.stops)

        def total(scale, queries=queries, workload=workload):
            values = jnp.zeros(queries.shape[0])
            return dp.least_squares(dp.Measurement(queries, values, "gaussian", scale)).answer(workload).stddev.sum()

        assert np.isfinite(float(jax.grad(total)(jnp.asarray(2.0))))
    for queries in (Kronecker([Prefix(2)] * 2), Dense([[1, 1]])):
        nothing = gaussian(queries, np.ones(queries.shape[0]), np.inf)
        np.testing.assert_array_equal(nothing.expected_stddev(np.zeros((1, queries.shape[1]))), 0)
    assert Boxes((2, 2), [[0, 0]], [[2, 2]]).rows(1, 1).shape == (0, 4)


def test_an_exact_row_of_zeros_that_says_something_is_named():
    with pytest.raises(ValueError, match="row 1, which says 5, is a row of zeros"):
        gaussian(Weighted(Identity(2), [1, 0]), [1, 5], 0.0)
