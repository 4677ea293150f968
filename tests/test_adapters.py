"""Estimators in the programs of others: what comes out is what the estimators here make of the same numbers."""

import importlib.util
import warnings
from collections import namedtuple
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer import interop, methods
from dpinfer.allocation import optimize
from dpinfer.inference import maximum_entropy, nonnegative_least_squares
from dpinfer.queries import AllRange, Boxes, Dense, Identity, Prefix, Ranges, Total, Tree, VStack, Weighted

COUNTS = np.array([12, 0, 3, 7, 40, 41, 38, 0, 0, 5, 9, 2, 30, 1, 0, 4])
GRID = COUNTS.reshape(4, 4)

# ---- DPBench ----

Span = namedtuple("Span", "lb ub wgt")


def dpbench(shape, *queries):
    """What dpcomp_core's Workload has: its queries are unions of (first cell, last cell, weight), both cells included."""
    unions = [SimpleNamespace(ranges=[Span(*span) for span in one]) for one in queries]
    return SimpleNamespace(domain_shape=shape, query_list=unions)


def by_hand(workload, x):
    def total(span):
        return x[tuple(slice(a, b + 1) for a, b in zip(span.lb, span.ub, strict=True))].sum() * span.wgt

    return [sum(total(span) for span in query.ranges) for query in workload.query_list]


@pytest.mark.parametrize(
    ("workload", "family"),
    [
        (dpbench((16,), [((0,), (15,), 1.0)], [((3,), (3,), 1.0)]), Ranges),
        (dpbench((4, 4), [((0, 1), (2, 3), 1.0)], [((3, 3), (3, 3), 1.0)]), Boxes),
        (dpbench((16,), [((0,), (5,), 2.0)], [((3,), (4,), 0.5)]), Weighted),
        (dpbench((4, 4), [((0, 0), (0, 1), 1.0), ((0, 1), (3, 1), 3.0)], [((1, 0), (2, 2), 1.0)]), Dense),
    ],
)
def test_a_workload_of_dpbench_asks_the_same_here(workload, family):
    queries = interop.dpbench_workload(workload)
    assert type(queries) is family
    x = COUNTS.reshape(workload.domain_shape)
    np.testing.assert_array_equal(queries @ COUNTS, by_hand(workload, x))
    assert queries.is_integer == all(span.wgt == int(span.wgt) for query in workload.query_list for span in query.ranges)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (dpbench((8,), [((0,), (7,), 1.0)]), "Q must be over the cells of"),
        (dpbench((16,)), "Q.query_list must hold"),
        (dpbench((16,), []), "Q.query_list must hold"),
        (dpbench((16,), [((0, 0), (1, 1), 1.0)]), "Q.query_list must hold"),
        (SimpleNamespace(query_list=[]), "Q.domain_shape must list"),
        (Prefix(8), "Q must be over the cells of"),
        ("ranges", "Q must be queries"),
        (None, "Q must be queries"),
    ],
)
def test_other_workloads_are_refused(workload, message):
    with pytest.raises(ValueError, match=message):
        interop.dpbench_workload(workload, (16,))


BY_NAME = {
    "noisy_cells": {},
    "consistent_tree": {"branching": 4},
    "quadtree": {},
    "privelet": {},
    "empirical_cells": {"prior": "independent"},
    "empirical_tree": {"branching": 4},
    "recommended": {"total": 200},
}


def some_slow(names, slow):
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in names]


@pytest.mark.parametrize("name", some_slow(BY_NAME, {"empirical_tree", "empirical_cells", "recommended", "quadtree"}))
def test_the_seed_decides_the_estimate(name):
    algorithm = interop.dpbench_algorithm(name, **BY_NAME[name])
    assert algorithm.is_seeded
    assert not algorithm.uses_workload
    kept = COUNTS.copy()
    first, again, other = (algorithm.Run(None, kept, 0.5, seed) for seed in (1, 1, 2))
    assert first.shape == (16,)
    assert first.dtype == float
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(kept, COUNTS)


@pytest.mark.parametrize(
    ("shape", "strategy", "noise"),
    [
        ((16,), Tree.complete(16, 4), "laplace"),
        pytest.param((4, 4), Tree.grid((4, 4), 4), "discrete_laplace", marks=pytest.mark.slow),
    ],
)
def test_it_is_least_squares_of_a_simulated_release(shape, strategy, noise):
    found = interop.dpbench_algorithm("consistent_tree", branching=4, noise=noise).Run(None, COUNTS.reshape(shape), 0.5, 3)
    expected = dp.least_squares(dp.simulate(COUNTS, strategy, epsilon=0.5, noise=noise, key=jax.random.key(3))).cells
    np.testing.assert_array_equal(found, np.reshape(expected, shape))


def test_other_estimators_and_strategies():
    measurement = methods.noisy_cells(16).simulate(COUNTS, epsilon=0.5, key=jax.random.key(0))
    clipped = interop.dpbench_algorithm("noisy_cells", estimator=lambda given: np.maximum(given.values, 0))
    np.testing.assert_array_equal(clipped.Run(None, COUNTS, 0.5, 0), np.maximum(measurement.values, 0))
    mine = interop.dpbench_algorithm(lambda n: methods.Method("prefixes", Prefix(n), None, dp.least_squares), short_name="P")
    assert mine.short_name == "P"
    values = dp.simulate(COUNTS, Prefix(16), epsilon=0.5, key=jax.random.key(0)).values
    np.testing.assert_allclose(mine.Run(None, COUNTS, 0.5, 0), np.diff(values, prepend=0), atol=1e-9)


@pytest.mark.slow
def test_the_tree_for_a_workload_has_the_error_that_was_optimised():
    halves = dpbench((16,), [((0,), (7,), 1.0)], [((8,), (15,), 1.0)], [((0,), (15,), 1.0)])
    queries = interop.dpbench_workload(halves)
    found = optimize(queries, Tree.complete(16, 2, True), epsilon=0.5, tied="levels")
    algorithm = interop.dpbench_algorithm("optimized_tree")
    assert algorithm.uses_workload
    errors = interop.dpbench_errors(algorithm, halves, COUNTS, epsilon=0.5, seeds=range(200)).mean(axis=1)
    assert abs(errors.mean() - found.expected_error) < 4 * errors.std() / np.sqrt(errors.size)
    assert found.expected_error < 0.5 * found.first_error
    # Queries of ours; and the seed decides.
    first, again, other = (algorithm.Run(queries, COUNTS, 0.5, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


class LaplaceCells:
    """Somebody else's algorithm."""

    def Run(self, Q, x, epsilon, seed):
        return x + np.random.RandomState(seed).laplace(0, 1 / epsilon, x.shape)


class Recorded:
    """Another algorithm, and what it gave."""

    def __init__(self, algorithm):
        self.algorithm, self.runs = algorithm, []

    def Run(self, Q, x, epsilon, seed):
        self.runs.append(self.algorithm.Run(Q, x, epsilon, seed))
        return self.runs[-1]


@pytest.mark.parametrize("algorithm", [LaplaceCells(), interop.dpbench_algorithm("noisy_cells")], ids=["theirs", "ours"])
def test_errors_of_an_algorithm(algorithm):
    """Each of the cells in a sum adds 2 / epsilon^2; and no cell is biased."""
    corner, recorded = dpbench((4, 4), [((0, 0), (1, 2), 1.0)], [((3, 3), (3, 3), 1.0)]), Recorded(algorithm)
    errors = interop.dpbench_errors(recorded, corner, GRID, epsilon=0.5, seeds=range(200))
    assert errors.shape == (200, 2)
    np.testing.assert_allclose(errors[0], np.square(np.subtract(by_hand(corner, recorded.runs[0]), by_hand(corner, GRID))))
    np.testing.assert_array_less(np.abs(errors.mean(axis=0) - [48, 8]), 4 * errors.std(axis=0) / np.sqrt(200))
    np.testing.assert_array_less(np.abs(np.mean(recorded.runs, axis=0) - GRID), 4 * np.sqrt(8 / 200))
    assert [stick.size for stick in dp.evaluation.candlesticks(errors, interop.dpbench_workload(corner))] == [1, 6]


@pytest.mark.parametrize(
    ("name", "settings"), [("ahp", {}), ("dawa", {}), ("structure_first", {"bins": 4}), ("mwem", {"total": 192, "rounds": 3})]
)
def test_mechanisms_that_look_at_the_counts_make_real_releases(name, settings):
    algorithm = interop.dpbench_algorithm(name, **settings)
    assert not algorithm.is_seeded
    assert algorithm.uses_workload == (name == "mwem")
    runs = [algorithm.Run(AllRange(16), COUNTS, 1, 0) for _ in range(3)]
    assert {run.shape for run in runs} == {(16,)}
    assert not all(np.array_equal(runs[0], run) for run in runs)
    # With noise that hardly is any, the total is right (and for mwem given).
    assert algorithm.Run(AllRange(16), COUNTS, 1e6, 0).sum() == pytest.approx(192, abs=0.1)
    with pytest.raises(ValueError, match="x must have an integer dtype"):
        algorithm.Run(AllRange(16), COUNTS * 1.0, 1, 0)
    other = interop.dpbench_algorithm(name, **settings, estimator=lambda found: np.full(16, found.queries.shape[1]))
    assert other.Run(AllRange(16), COUNTS, 1, 0).tolist() == [16.0] * 16


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tree", {}, "method must be one of 'noisy_cells'"),
        ("tree_of_fewest_nodes", {}, "method must be one of"),
        ("consistent_tree", {"branch": 3}, "a setting of consistent_tree must be one of 'branching'"),
        ("mwem", {"total": 3, "epsilon": 1}, "a setting of mwem must be one of"),
        ("mwem", {}, "mwem needs total="),
        ("noisy_cells", {"noise": "gaussian"}, "noise must be one of"),
    ],
)
def test_unknown_methods_and_settings(name, settings, message):
    with pytest.raises(ValueError, match=message):
        interop.dpbench_algorithm(name, **settings)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("noisy_cells", {"x": np.array(["a"])}, "x must be counts"),
        ("noisy_cells", {"x": np.zeros((0, 3))}, "x must be counts"),
        ("noisy_cells", {"x": 3}, "x must be counts"),
        ("noisy_cells", {"epsilon": 0}, "epsilon must be positive"),
        ("noisy_cells", {"seed": None}, "seed must be an integer"),
        ("noisy_cells", {"seed": -1}, "seed must be at least 0"),
        ("noisy_cells", {"seed": 2**32}, "seed must be below"),
        ("privelet", {"x": GRID}, "x must have one axis for privelet"),
        ("dawa", {"x": GRID}, "x must have one axis for dawa"),
        ("optimized_tree", {}, "Q must be a workload for optimized_tree"),
        ("optimized_tree", {"Q": Prefix(8)}, "Q must be over the cells"),
    ],
)
def test_bad_runs_name_the_argument(name, given, message):
    with pytest.raises(ValueError, match=message) as error:
        interop.dpbench_algorithm(name).Run(**{"Q": None, "x": COUNTS, "epsilon": 1, "seed": 0, **given})
    assert "41" not in str(error.value)


def test_an_algorithm_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="algorithm must return the shape of x"):
        interop.dpbench_errors(SimpleNamespace(Run=lambda *_: np.zeros(3)), AllRange(16), COUNTS, epsilon=1, seeds=[0])


# ---- OpenDP ----


@pytest.fixture
def odp():
    if importlib.util.find_spec("opendp") is None:
        pytest.skip("needs opendp installed")
    import opendp.prelude as odp  # pyright: ignore[reportMissingImports]

    odp.enable_features("contrib", "honest-but-curious")
    return odp


STACK = VStack([Identity(16), Prefix(16)])


def noisy(rows, seed=0):
    return np.random.default_rng(seed).integers(-5, 60, rows).tolist()


@pytest.mark.slow
def test_a_postprocessor_is_the_estimator_on_the_list():
    values, scale = noisy(32), np.repeat([2.0, 4.0], 16)
    given = {"noise": "discrete_laplace", "scale": scale}
    release = dp.Release.from_values(STACK, values, **given)
    estimate = dp.least_squares(release)
    cells = interop.opendp_postprocessor(STACK, **given)(values)
    assert isinstance(cells, list)
    assert {type(cell) for cell in cells} == {float}
    np.testing.assert_array_equal(cells, estimate.cells)
    # By another method: weighted least squares of the matrix.
    spread = np.asarray(release.stddev)
    dense = np.linalg.lstsq(STACK.dense() / spread[:, None], values / spread, rcond=None)[0]
    np.testing.assert_allclose(cells, dense, atol=1e-9)
    sums = interop.opendp_postprocessor(STACK, **given, answer=Prefix(16))(values)
    np.testing.assert_array_equal(sums, estimate.answer(Prefix(16)).values)
    matrix = interop.opendp_postprocessor(STACK.dense(), noise="laplace", scale=1, answer=np.ones((1, 16)))
    assert len(matrix([float(value) for value in values])) == 1


def test_postprocessors_of_other_estimators():
    values, given = noisy(16), {"noise": "laplace", "scale": 2.0}
    clipped = np.maximum(values, 0)
    for infer in (nonnegative_least_squares, lambda measurement: np.maximum(measurement.values, 0)):
        np.testing.assert_allclose(interop.opendp_postprocessor(Identity(16), **given, infer=infer)(values), clipped, atol=1e-9)
        total = interop.opendp_postprocessor(Identity(16), **given, infer=infer, answer=Total(16))(values)
        np.testing.assert_allclose(total, [clipped.sum()], atol=1e-9)


@pytest.mark.parametrize(("leaf_count", "branching"), [(1, 2), (9, 2), pytest.param(11, 3, marks=pytest.mark.slow)])
def test_the_nodes_of_opendps_tree(leaf_count, branching):
    """Those of its list that have no leaves count for nothing; the rest are a least squares problem as any other."""
    rows, width = [], branching ** next(h for h in range(9) if branching**h >= leaf_count)
    while width:
        nodes = np.arange(leaf_count) // width == np.arange(branching ** len(rows) if width > 1 else leaf_count)[:, None]
        rows.append(nodes.astype(float))
        width //= branching
    matrix = np.concatenate(rows)
    values = noisy(len(matrix))
    found = interop.opendp_tree_postprocessor(leaf_count, branching, noise="discrete_laplace", scale=3.0)
    np.testing.assert_allclose(found(values), np.linalg.lstsq(matrix, values, rcond=None)[0], atol=1e-9)
    with pytest.raises(ValueError, match=rf"values must have shape \[{len(matrix)}\]"):
        found(values[1:])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queries": "cells"}, "queries must be queries"),
        ({"noise": "geometric"}, "noise must be one of"),
        ({"scale": None}, "scale must be given"),
        ({"scale": [1.0, 2.0]}, r"scale must be a number or have shape \[16\]"),
        ({"answer": Prefix(8)}, "workload must be over the estimate's 16 cells"),
        ({"queries": Total(16), "answer": Identity(16)}, "does not determine"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_spent(given, message):
    with pytest.raises(ValueError, match=message):
        interop.opendp_postprocessor(**{"queries": Identity(16), "noise": "laplace", "scale": 1.0, **given})


def test_lists_of_another_length_are_refused():
    found = interop.opendp_postprocessor(Identity(16), noise="laplace", scale=1.0)
    for values in (noisy(15), [], [noisy(16)]):
        with pytest.raises(ValueError, match=r"values must have shape \[16\]"):
            found(values)
    with pytest.raises(ValueError, match="values must be finite"):
        found([np.nan] * 16)


def test_a_chained_measurement_costs_the_same(odp):
    space = odp.vector_domain(odp.atom_domain(T=int), size=16), odp.l1_distance(T=int)
    for number, atom in ((int, "discrete_laplace"), (float, "laplace")):
        if number is float:
            space = odp.vector_domain(odp.atom_domain(T=float, nan=False), size=16), odp.l1_distance(T=float)
        measurement = space >> odp.m.then_laplace(scale=4.0)
        function = interop.opendp_postprocessor(Identity(16), noise=atom, scale=4.0, answer=Prefix(16))
        seen = []

        def recorded(values, function=function, seen=seen):
            seen.append(values)
            return function(values)

        chained = measurement >> odp.new_function(recorded, TO="Vec<f64>")
        for distance in (number(1), number(3)):
            assert chained.map(distance) == measurement.map(distance)
        found = chained(COUNTS.astype(number).tolist())
        release = dp.Release.from_values(Identity(16), seen[0], noise=atom, scale=4.0)
        np.testing.assert_array_equal(found, dp.least_squares(release).answer(Prefix(16)).values)


def test_opendps_tree_and_its_own_consistent_one(odp):
    for leaf_count, branching in ((16, 2), (11, 3)):
        space = odp.vector_domain(odp.atom_domain(T=int), size=leaf_count), odp.l1_distance(T=int)
        tree = odp.t.make_b_ary_tree(*space, leaf_count=leaf_count, branching_factor=branching)
        measurement = tree >> odp.m.then_laplace(scale=4.0)
        function = interop.opendp_tree_postprocessor(leaf_count, branching, noise="discrete_laplace", scale=4.0)
        chained = measurement >> odp.new_function(function, TO="Vec<f64>")
        assert chained.map(1) == measurement.map(1)
        assert len(chained(COUNTS[:leaf_count].tolist())) == leaf_count
        exact = tree(COUNTS[:leaf_count].tolist())
        np.testing.assert_allclose(function(exact), COUNTS[:leaf_count], atol=1e-9)
        values = noisy(len(exact))
        theirs = odp.t.make_consistent_b_ary_tree(branching, TIA=int, TOA=float)
        np.testing.assert_allclose(function(values), theirs(values), atol=1e-9)


# ---- mbi ----

DOMAIN = dp.Domain({"a": dp.Axis.integers(0, 2), "b": dp.Axis.categories(["x", "y", "z"]), "c": dp.Axis.edges([0, 1, 5])})
TABLE = np.array([50, 30, 20, 81, 40, 11, 60, 25, 33, 70, 15, 44])


@pytest.fixture
def mbi():
    if importlib.util.find_spec("mbi") is None:
        pytest.skip("needs mbi installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own at import
        import mbi  # pyright: ignore[reportMissingImports]
    return mbi


def of_marginals(*axes, epsilon=1.0):
    return dp.simulate(TABLE, dp.workloads.marginals(DOMAIN, *axes), epsilon=epsilon, key=jax.random.key(1))


@pytest.mark.slow
def test_an_estimate_of_mbi_is_least_squares_where_no_cell_is_near_zero(mbi):
    measurement = of_marginals(["a", "b", "c"], ["a", "c"], [])
    ours = dp.least_squares(measurement)
    estimate = interop.mbi_estimate(measurement, DOMAIN)
    np.testing.assert_allclose(estimate.cells, ours.cells, rtol=1e-3)
    # Marginals from the model, in any order, and sums from the cells.
    for workload in (
        dp.workloads.marginals(DOMAIN, ["b", "c"], ["a"], []),
        Prefix(12),
        np.ones((1, 12)),
        Identity(12),
        Total(12),
    ):
        answers = estimate.answer(workload)
        np.testing.assert_allclose(answers.values, ours.answer(workload).values, rtol=1e-3)
    with pytest.raises(ValueError, match="mbi_estimate gives no standard deviations"):
        _ = answers.stddev
    with pytest.raises(ValueError, match="workload must be over the estimate's 12 cells"):
        estimate.answer(Prefix(5))


@pytest.mark.slow
def test_an_estimate_of_mbi_is_the_one_of_largest_entropy(mbi):
    measurement = of_marginals(["a", "b"], ["b", "c"], epsilon=0.05)
    given = measurement.with_exact(Total(12), [479])
    for estimate in (interop.mbi_estimate(given, DOMAIN), interop.mbi_estimate(measurement, DOMAIN, total=479)):
        assert float(np.sum(estimate.cells)) == pytest.approx(479)
        np.testing.assert_allclose(estimate.cells, maximum_entropy(given).cells, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["dual_averaging", "interior_gradient", "lbfgs", "accelerated", "own"])
def test_the_estimators_of_mbi_agree(mbi, estimator):
    measurement = of_marginals(["a", "b", "c"], ["a"])
    if estimator == "own":
        estimator = mbi.estimation.MirrorDescent(stepsize=None)
    estimate = interop.mbi_estimate(measurement, DOMAIN, estimator=estimator)
    np.testing.assert_allclose(estimate.cells, dp.least_squares(measurement).cells, atol=4)


def test_an_estimate_of_mbi_in_the_other_adapters(mbi):
    ages = dp.Domain({"age": dp.Axis.integers(0, 16)})
    infer = partial(interop.mbi_estimate, domain=ages, iters=50)
    found = interop.opendp_postprocessor(Identity(16), noise="laplace", scale=1.0, infer=infer)((COUNTS + 30).tolist())
    np.testing.assert_allclose(found, COUNTS + 30, rtol=1e-3)
    algorithm = interop.dpbench_algorithm("noisy_cells", estimator=infer)
    assert (algorithm.Run(None, COUNTS, 1, 0) >= 0).all()


def test_what_mbi_cannot_take_is_named(mbi):
    measurement = of_marginals(["a"], [])
    with pytest.raises(ValueError, match="estimator must be one of 'mirror_descent'"):
        interop.mbi_estimate(measurement, DOMAIN, estimator="newton")
    with pytest.raises(ValueError, match=r"estimator must be one of mirror_descent, .* or an mbi.Estimator"):
        interop.mbi_estimate(measurement, DOMAIN, estimator=3)
    with pytest.raises(ValueError, match="iters must be at least 1"):
        interop.mbi_estimate(measurement, DOMAIN, iters=0)
    with pytest.raises(ValueError, match="total must be positive"):
        interop.mbi_estimate(measurement, DOMAIN, total=0)
    with pytest.raises(ValueError, match="no exact counts"):
        interop.mbi_estimate(measurement.with_exact(dp.workloads.marginals(DOMAIN, ["a"]), [200, 279]), DOMAIN)
    with pytest.raises(ValueError, match="total must be left out"):
        interop.mbi_estimate(measurement.with_exact(Total(12), [479]), DOMAIN, total=479)


def test_without_mbi_the_estimate_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mbi", None)
    with pytest.raises(ValueError, match="needs mbi: pip install mbi"):
        interop.mbi_estimate(of_marginals(["a"]), DOMAIN)
