"""Trees that are cut share the programs of the full tree, and their estimates are those of a program of their own."""

from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from references import weighted_least_squares

import dpinfer as dp
from dpinfer.inference import nonnegative_least_squares
from dpinfer.inference.padded import PaddedTreeEstimate, padding_of
from dpinfer.queries import Dense, Haar, Identity, Prefix, Ranges, Total, Tree


@contextmanager
def counting_compilations():
    """A list that grows by one with each program that XLA compiles."""
    compiled = []

    def listen(event, duration_secs, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(
    ("tree", "case"),
    [
        (Tree.complete(5, 2), "equal"),
        (Tree.complete(5, 2), "exact"),
        (Tree.complete(11, 3, root=True), "rows"),
        (Tree.complete(11, 3, root=True), "unmeasured"),
        (Tree.complete(17, 16), "equal"),
        (Tree.complete(17, 16), "unmeasured"),
        (Identity(5), "rows"),
        (Identity(5), "exact"),
    ],
    ids=repr,
)
def test_padded_estimates_against_dense_least_squares(tree, case):
    rng = np.random.default_rng(0)
    m, n = tree.shape
    values = rng.integers(0, 9, m).astype(float)
    variances = np.full(m, 2.0) if case == "equal" else rng.uniform(0.5, 3, m)
    if case == "unmeasured" and isinstance(tree, Tree):
        variances[0] = np.inf
    if case == "exact":
        variances[-1] = 0.0
    measurement = dp.Measurement(tree, values, "gaussian", np.sqrt(variances) if case != "equal" else np.sqrt(2.0))
    estimate = dp.least_squares(measurement)
    assert isinstance(estimate, PaddedTreeEstimate)
    assert isinstance(estimate.cells, jax.Array)
    cells, covariance = weighted_least_squares(np.asarray(tree.dense(), dtype=float), values, variances)
    np.testing.assert_allclose(estimate.cells, cells, atol=1e-10)
    for workload in (Identity(n), Prefix(n), Dense(rng.normal(size=(3, n)))):
        rows = np.asarray(workload.dense(), dtype=float)
        answers = estimate.answer(workload)
        np.testing.assert_allclose(answers.values, rows @ cells, atol=1e-10)
        np.testing.assert_allclose(answers.stddev, np.sqrt(np.diag(rows @ covariance @ rows.T)), atol=1e-10)
    np.testing.assert_allclose(
        estimate.covariance(Prefix(n)), np.asarray(Prefix(n).dense()) @ covariance @ np.asarray(Prefix(n).dense()).T, atol=1e-10
    )

    @jax.jit
    def inside(v):
        found: Any = dp.least_squares(dp.Measurement(tree, v, "gaussian", measurement.scale))
        return found.node_variances

    np.testing.assert_allclose(estimate.node_variances, inside(values), atol=1e-12)
    if isinstance(tree, Tree):
        skipped = 0 if tree.root_measured else 1
        np.testing.assert_allclose(np.asarray(estimate.node_values)[skipped:], np.asarray(tree @ cells), atol=1e-10)


@pytest.mark.slow
def test_padded_non_negative_cells():
    for tree in (Tree.complete(11, 3), Identity(5)):
        values = np.random.default_rng(1).normal(size=tree.shape[0]) * 3
        measurement = dp.Measurement(tree, values, "laplace", 2.0).with_exact(Total(tree.shape[1]), [4.0])
        for padded in (dp.Measurement(tree, values, "laplace", 2.0), measurement):
            inside = jax.jit(lambda v, m=padded: nonnegative_least_squares(dp.Measurement(m.queries, v, m.noise, m.scale)))
            got, expected = nonnegative_least_squares(padded), inside(padded.values)
            np.testing.assert_allclose(got.cells, expected.cells, atol=1e-9)
            np.testing.assert_allclose(got.bound_multipliers, expected.bound_multipliers, atol=1e-9)


def test_what_is_not_determined_is_named_by_its_own_rows():
    tree = Tree.complete(5, 2)
    scale = np.ones(tree.shape[0])
    scale[[-5, -4]] = np.inf
    with pytest.raises(ValueError, match=r"does not determine 2 of its nodes, \[6, 7\] \(counted from the root\)"):
        dp.least_squares(dp.Measurement(tree, np.ones(tree.shape[0]), "laplace", scale))
    exact = np.zeros(tree.shape[0])
    with pytest.raises(ValueError, match="The exact counts .* contradict each other: row . says 1, the others add up to"):
        dp.least_squares(dp.Measurement(tree, np.ones(tree.shape[0]), "laplace", exact))


def test_what_is_padded():
    assert padding_of(Tree.complete(16, 2)) is None
    assert padding_of(Haar(6)) is None
    assert padding_of(Tree.complete(2**16 + 1, 2)) is None
    assert padding_of(Identity(8)) is None
    padding = padding_of(Tree.complete(5, 2))
    assert padding is not None
    assert padding.queries == Tree.complete(8, 2)
    assert padding.rows.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


@pytest.mark.slow
def test_many_sizes_compile_a_handful_of_programs():
    def work(n, kind):
        tree = Identity(n) if kind == "identity" else Tree.complete(n, 16)
        measurement = dp.Measurement(tree, np.ones(tree.shape[0]), "laplace", 2.0)
        if kind == "non-negative":
            nonnegative_least_squares(measurement)
        else:
            dp.least_squares(measurement).answer(Ranges(n, [0, 3], [n, 9]))

    sizes = np.linspace(300, 4000, 50).astype(int).tolist()
    for kind, most in (("tree", 6), ("identity", 16), ("non-negative", 4)):
        work(sizes[0], kind)
        with counting_compilations() as compiled:
            work(sizes[0], kind)
        assert not compiled  # the same again
        jax.clear_caches()
        with counting_compilations() as compiled:
            for n in sizes:
                work(n, kind)
        assert 0 < len(compiled) <= most, (kind, len(compiled))
    with counting_compilations() as compiled:
        for scale in (0.5, 1.0, 3.0):
            nonnegative_least_squares(dp.Measurement(Tree.complete(1000, 16), np.arange(1067.0), "laplace", scale))
    assert not compiled  # nor do new numbers
