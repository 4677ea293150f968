"""Least squares over trees of vectors, against one dense problem over all cells of all leaves."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from dense_tree import dense_least_squares, leaves_of, random_parents, random_problem, without_only_leaves

from dpinfer import spine
from dpinfer.spine import Measured, Schema, Zeros

SCHEMA = Schema({"a": 4, "b": 2, "c": 3}, {"ai": ("a", [0, 1, 1, 2]), "a1": ("a", [-1, 0, -1, -1]), "b0": ("b", [0, -1])})
PLAIN = ["total", "a", "b", "b * c", "detailed"]
COARSE = ["total", "ai", "a * b", "c", "detailed"]


def problem(seed, names, most=10):
    rng = np.random.default_rng(seed)
    parents = random_parents(rng, most)
    truth, measured = random_problem(SCHEMA, names, parents, rng)
    return rng, parents, truth, measured


def held(case, rng, parents, truth, measured):
    """Measurements, zeros and whether these are pushed down, for a case."""
    size = len(truth)
    children = np.bincount(parents[parents >= 0], minlength=size)
    leaves, inner, roots = np.flatnonzero(children == 0), np.flatnonzero(children), np.flatnonzero(parents < 0)
    some = Zeros("a", rng.random((size, 4)) < 0.25)

    def exactly(name, nodes):
        return Measured(name, SCHEMA.query(name).answer(truth)[nodes], 0.0, nodes)

    return {
        "nothing held": (measured, [], True),
        "bypassed leaves": (without_only_leaves(parents, measured), [], True),
        "zeros pushed down": (measured, [some, Zeros("a1 * b0")], True),
        "zeros as stated": (measured, [some], False),
        "exact total": ([*measured, exactly("total", roots)], [], True),
        "exact counts inside": ([*measured, exactly("b * c", inner)], [], True),
        "exact totals of leaves, zeros": ([*measured, exactly("total", leaves)], [Zeros("a1 * b0", nodes=leaves)], True),
        "exact root over stated zeros": ([*measured, exactly("b", roots)], [Zeros("a1", nodes=inner)], False),
    }[case]


CASES = (
    "nothing held",
    "bypassed leaves",
    "zeros pushed down",
    "zeros as stated",
    "exact total",
    "exact counts inside",
    "exact totals of leaves, zeros",
    "exact root over stated zeros",
)


@pytest.mark.parametrize("names", [PLAIN, COARSE], ids=["plain", "coarse"])
@pytest.mark.parametrize("case", CASES)
def test_as_one_dense_problem(case, names):
    for seed in range(3):
        rng, parents, truth, measured = problem(seed, names)
        if case.startswith("exact"):  # consistent exact values come from counts that respect the zeros
            truth[:, SCHEMA.query("a1").matrix(0)[0].repeat(6) > 0] = 0
        measured, zeros, push = held(case, rng, parents, truth, measured)
        estimate = spine.tree_least_squares(SCHEMA, parents, measured, zeros=zeros, push_down_zeros=push)
        x, covariance = dense_least_squares(SCHEMA, parents, measured, zeros, push)
        size, k = truth.shape
        areas = estimate.areas()
        scale = np.abs(x).max()
        np.testing.assert_allclose(areas.counts, x.reshape(size, k), rtol=0, atol=1e-8 * scale)
        largest = np.diag(covariance).max()
        blocks = covariance.reshape(size, k, size, k)[np.arange(size), :, np.arange(size)]
        for name in ("total", "detailed", "a * c", "ai * b0"):
            rows = SCHEMA.query(name).answer(np.eye(k)).T
            expected = np.einsum("ri,nij,rj->nr", rows, blocks, rows)
            answers = areas.answer(name)
            np.testing.assert_allclose(answers.stddev**2, expected, rtol=1e-7, atol=1e-8 * largest)
            np.testing.assert_allclose(answers.values, x.reshape(size, k) @ rows.T, rtol=0, atol=1e-8 * k * scale)
        # In standard deviations; variances lie a factor of 1e5 apart.
        assert estimate.certificate().holds(1e-7)
        # Sums of nodes, and any coefficients.
        regions = {
            "all": dict.fromkeys(range(size), 1.0),
            "some": dict(zip(range(0, size, 2), rng.normal(size=size), strict=False)),
        }
        weights = np.array([[chosen.get(node, 0.0) for node in range(size)] for chosen in regions.values()])
        rows = SCHEMA.query("a * c").answer(np.eye(k)).T
        spread = np.einsum(
            "sn,ri,nimj,rj,sm->sr", weights, rows, covariance.reshape(size, k, size, k), rows, weights, optimize=True
        )
        found = estimate.regions(regions).answer("a * c")
        np.testing.assert_allclose(found.stddev**2, spread, rtol=1e-7, atol=1e-8 * largest)
        np.testing.assert_allclose(found.values, weights @ x.reshape(size, k) @ rows.T, rtol=0, atol=1e-7 * k * scale)
        coefficients = rng.normal(size=(size, k)) * (rng.random(size) < 0.5)[:, None]
        one = estimate.functional([{node: coefficients[node] for node in range(size) if coefficients[node].any()}, {}])
        flat = coefficients.reshape(-1)
        np.testing.assert_allclose(one.values[:, 0], [flat @ x, 0.0], rtol=0, atol=1e-7 * k * scale)
        np.testing.assert_allclose(one.stddev[:, 0] ** 2, [flat @ covariance @ flat, 0.0], rtol=1e-7, atol=1e-8 * largest)


def test_the_certificate_sees_what_is_not_the_optimum():
    _, parents, _, measured = problem(1, COARSE)
    estimate = spine.tree_least_squares(SCHEMA, parents, measured, zeros=[Zeros("a1 * b0")])
    counts = estimate.areas().counts
    assert estimate.certificate(counts).holds(1e-9)
    inside = leaves_of(parents)
    wrong = np.zeros((inside.shape[1], SCHEMA.size))
    wrong[0, 0] = 0.01  # adds up, but is not the best
    assert estimate.certificate(counts + inside @ wrong).gradient > 1e-6
    assert estimate.certificate(counts + np.eye(len(parents))[:, :1]).sums > 1e-4
    mask = SCHEMA.query("a1 * b0").answer(np.eye(SCHEMA.size)).T[0] * 0.01
    assert estimate.certificate(counts + inside.sum(axis=1)[:, None] * mask).held > 1e-6
    with pytest.raises(ValueError, match="counts must be"):
        estimate.certificate(counts[:2])


def test_the_certificate_knows_what_zeros_of_siblings_and_exact_sums_have_in_common():
    schema = Schema({"a": 3, "b": 2})
    measured = [
        Measured("total", [[10.0]], 0, [0]),
        Measured("a", np.arange(9.0).reshape(3, 3), 1.0),
        Measured("detailed", np.arange(12.0).reshape(2, 6), 2.0, [1, 2]),
    ]
    zeros = [Zeros("a", [[True, False, False]], [node]) for node in (1, 2)]
    assert spine.tree_least_squares(schema, np.array([-1, 0, 0]), measured, zeros=zeros).certificate().holds(1e-12)


def test_the_certificate_counts_in_standard_deviations():
    schema = Schema({"a": 2})
    measured = [
        Measured("detailed", [[1e8, 1e8]], 1e-2, [0]),
        Measured("detailed", [[5.0, 3.0], [2.0, 4.0]], 1e4, [1, 2]),
    ]
    estimate = spine.tree_least_squares(schema, np.array([-1, 0, 0]), measured)
    counts = estimate.areas().counts
    assert estimate.certificate(counts).holds(1e-3)  # counts of 1e8 with a standard deviation of 0.1 leave no more
    wrong = counts + np.array([[0, 0], [500, -500], [-500, 500]])  # by 7 standard deviations
    assert estimate.certificate(wrong).gradient > 1
    assert not estimate.certificate(np.full_like(counts, np.nan)).holds()


def test_one_cell_a_node_is_the_two_pass_estimate_of_a_binary_tree():
    # Hay et al. 2010, section 4.2: a complete binary tree of height 3 and equal variances.
    schema = Schema({"x": 1})
    noisy = np.array([13.0, 7, 4, 5, 2, 1, 3])
    estimate = spine.tree_least_squares(schema, np.array([-1, 0, 0, 1, 1, 2, 2]), [Measured("total", noisy[:, None], 1.0)])
    z = [(2 * 7 + 7) / 3, (2 * 4 + 4) / 3]
    root = (4 * 13 + 3 * sum(z)) / 7
    areas = estimate.areas([0, 1])
    np.testing.assert_allclose(areas.counts[:, 0], [root, z[0] + (root - sum(z)) / 2])
    np.testing.assert_allclose(areas.answer("total").stddev[0, 0] ** 2, 4 / 7)
    assert estimate.certificate().holds(1e-12)


def test_attributes_are_classified_by_what_is_asked_of_them():
    _, parents, _, measured = problem(0, PLAIN)
    clean = spine.tree_least_squares(SCHEMA, parents, measured).classes
    assert clean.clean_names == ("a", "b", "c")
    assert clean.num_classes == 8
    dense = spine.tree_least_squares(SCHEMA, parents, measured, zeros=[Zeros("a1 * b0")]).classes
    assert dense.reasons == {"a": "a1 * b0", "b": "a1 * b0"}
    assert "a (by 'a1 * b0')" in dense.explain()
    # Zeros of some levels only make an attribute dense too.
    some = spine.tree_least_squares(SCHEMA, parents, measured, zeros=[Zeros("a", [True, False, False, False])]).classes
    assert some.reasons == {"a": "a"}
    pl94 = spine.pl94_persons()
    strategy = ["total", "cenrace", "hhgq", "hhinstlevels", "votingage * hispanic * cenrace", "detailed"]
    found = spine.Classes(pl94, [pl94.query(name) for name in strategy])
    assert (found.dense_names, found.reasons["hhgq"]) == (("hhgq",), "hhinstlevels")


def test_zeros_pushed_down_make_estimates_better_and_stated_ones_hold_where_they_are():
    _, parents, _, measured = problem(2, PLAIN)
    root = np.flatnonzero(parents < 0)
    zeros = [Zeros("a1", nodes=root)]
    down, stated = (
        spine.tree_least_squares(SCHEMA, parents, measured, zeros=zeros, push_down_zeros=push).areas() for push in (True, False)
    )
    assert np.abs(down.answer("a1").values).max() == 0
    assert np.abs(stated.answer("a1").values[root]).max() < 1e-12
    assert np.abs(stated.answer("a1").values).max() > 1e-3
    assert (down.answer("total").stddev <= stated.answer("total").stddev * (1 + 1e-9)).all()


@pytest.mark.slow
def test_intervals_cover():
    rng, parents, truth, measured = problem(3, COARSE, most=8)
    hits = np.zeros(3)
    problems = 200
    for _ in range(problems):
        noisy = [
            dataclasses.replace(
                one,
                values=SCHEMA.query(one.query).answer(truth)
                + rng.normal(size=np.shape(one.values)) * np.sqrt(np.where(np.isinf(one.variances), 1.0, one.variances))[:, None],
            )
            for one in measured
        ]
        answers = spine.tree_least_squares(SCHEMA, parents, noisy).areas().answer("a * b")
        expected = SCHEMA.query("a * b").answer(truth)
        for place, (level, joint) in enumerate(((0.5, False), (0.95, False), (0.9, True))):
            lower, upper = answers.interval(level, joint=joint)
            inside = (lower <= expected) & (expected <= upper)
            hits[place] += inside.all() if joint else inside.mean()
    # 4 standard errors, the answers of a release taken as one.
    assert np.all(np.abs(hits[:2] / problems - [0.5, 0.95]) < 4 * np.sqrt([0.25, 0.05] / np.array(problems)))
    assert hits[2] / problems > 0.9 - 4 * np.sqrt(0.09 / problems)


def test_tables_name_what_they_count():
    _, parents, _, measured = problem(0, PLAIN)
    areas = spine.tree_least_squares(SCHEMA, parents, measured).areas([0, 2])
    table = areas.table(["total", "b * c"], level=0.9)
    assert list(table) == ["area", "query", "a", "b", "c", "value", "stddev", "lower", "upper"]
    assert len(table["area"]) == 2 * (1 + 6)
    row = 2 + 6 + 4  # of the second area b = 1, c = 1
    assert [table[name][row] for name in ("area", "query", "a", "b", "c")] == [2, "b * c", "*", "1", "1"]
    np.testing.assert_allclose(table["value"][row], areas.answer("b * c").values[1, 4])
    np.testing.assert_allclose(table["upper"][row] - table["value"][row], 1.6448536269514722 * table["stddev"][row])
    assert len(spine.Areas.join([areas, areas])) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parents": [1, 0]}, "round in a circle"),
        ({"parents": [-1, 5]}, "nodes, 0 to 1"),
        ({"parents": [[-1]]}, "list the node above"),
        ({"measured": [Measured("nothing", [[1.0]], 1.0)]}, "no query of this schema"),
        ({"measured": [Measured("total", np.ones((3, 1)), 1.0)]}, "hold 1 answers to 'total' for each of 2 nodes"),
        ({"measured": [Measured("total", np.ones((2, 1)), [1.0, -1.0])]}, "must not be negative"),
        ({"measured": [Measured("total", [[np.nan], [1.0]], 1.0)]}, "must be finite"),
        ({"measured": [Measured("total", np.ones((2, 1)), 1.0, [1, 1])]}, "lists a node twice"),
        ({"measured": [Measured("total", np.ones((2, 1)), 1.0)]}, "not determined"),
        ({"parents": [-1, 0, 0], "measured": [Measured("detailed", np.ones((2, 24)), 1.0, [0, 1])]}, "has siblings"),
        ({"zeros": [Zeros("a", np.ones((2, 3)))]}, "is_zero must be truths"),
        ({"zeros": [Zeros("a", nodes=[2])]}, "must be nodes"),
        ({"measured": []}, "at least one Measured"),
        ({"measured": [Measured("total", np.ones((2, 1)), [1.0, 1.0, 1.0])]}, "one number or one for each of 2 nodes"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    given = {"parents": [-1, 0], "measured": [Measured("detailed", np.ones((2, 24)), 1.0)], "zeros": []} | change
    with pytest.raises(ValueError, match=message):
        spine.tree_least_squares(SCHEMA, np.array(given["parents"]), given["measured"], zeros=given["zeros"])


def test_nothing_asked_and_lists_that_are_empty():
    measured = [Measured("detailed", np.ones((2, 24)), 1.0)]
    estimate = spine.tree_least_squares(SCHEMA, np.array([-1, 0]), measured, zeros=[Zeros("a", nodes=[])])
    assert estimate.functional([]).values.shape == (0, 1)
    assert estimate.functional([{}]).stddev.tolist() == [[0.0]]
    assert len(estimate.areas([])) == 0
    assert estimate.regions({"both": [0, 1]}).answer("total").values.shape == (1, 1)
    with pytest.raises(ValueError, match="coefficients must be of all 24 cells, got 3"):
        estimate.functional([{0: [1, 2, 3]}])


def test_variances_too_far_apart():
    measured = [Measured("detailed", np.ones((3, 24)), 1e20), Measured("ai", np.ones((3, 3)), 1e-20)]
    with pytest.raises(ValueError, match="further apart"):
        spine.tree_least_squares(SCHEMA, np.array([-1, 0, 0]), measured)


def test_exact_values_that_contradict_each_other():
    measured = [Measured("detailed", np.ones((3, 24)), 1.0), Measured("total", [[5.0], [2.0], [2.0]], 0.0)]
    with pytest.raises(ValueError, match="exact values of node 0 contradict"):
        spine.tree_least_squares(SCHEMA, np.array([-1, 0, 0]), measured)


def test_schemas_and_queries():
    pl94 = spine.pl94_persons()
    assert (pl94.shape, spine.pl94_units().shape) == ((8, 2, 2, 63), (2,))
    assert pl94.labels["cenrace"][6] == "white+black"
    assert pl94.labels["cenrace"][-1] == "white+black+aian+asian+nhopi+sor"
    counts = np.arange(2016.0)
    grid = counts.reshape(pl94.shape)
    np.testing.assert_array_equal(pl94.query("votingage * cenrace").answer(counts).reshape(2, 63), grid.sum(axis=(0, 2)))
    np.testing.assert_array_equal(pl94.query("gqNursingTotal * nonvoting").answer(counts), [grid[3, 0].sum()])
    np.testing.assert_array_equal(
        pl94.query("hhinstlevels").answer(counts), [grid[s].sum() for s in (0, slice(1, 5), slice(5, 8))]
    )
    np.testing.assert_array_equal(pl94.query("numraces").answer(counts)[-1], grid[..., -1].sum())
    assert pl94.query_of(["detailed", "*", "*", "*"]).name == "hhgq"
    for bad, message in (("race", "is none of"), ("hhgq * hhinstlevels", "twice")):
        with pytest.raises(ValueError, match=message):
            pl94.query(bad)
    with pytest.raises(ValueError, match="no recode of hhgq"):
        pl94.query_of(["voting", "*", "*", "*"])
    wrong: Any = (
        (({},), "at least one attribute"),
        (({"a": 0},), "number of levels"),
        (({"a": 2}, {"x": ("b", [0, 0])}), "no attribute"),
        (({"a": 2}, {"x": ("a", [0, 2])}), "numbered from 0"),
        (({"a": 2}, {"a": ("a", [0, 0])}), "something else already"),
        (({"a": 2}, {"x": ("a", [0, 1], ["one"])}), "2 groups and 1 labels"),
    )
    for arguments, message in wrong:
        with pytest.raises(ValueError, match=message):
            Schema(*arguments)
