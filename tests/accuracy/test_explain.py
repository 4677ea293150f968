"""What is said before any data is what a release then has."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from references import range_matrix, weighted_least_squares

import dpinfer as dp
from dpinfer.accuracy import explain
from dpinfer.queries import AllRange, Haar, Identity, Kronecker, Prefix, Total, Tree, VStack


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("strategy", "budget"),
    [
        (Tree.complete(9, 3), {"epsilon": Fraction(1, 3)}),
        (Tree.complete(9, 3), {"level_epsilons": [0.1, 0.2]}),
        (Tree.grid((3, 3), 2), {"level_rhos": [0.1, 0.3]}),
        (VStack([Identity(9), Total(9)]), {"rho": 0.5}),
        (Haar(9), {"epsilon": 2}),
        (Kronecker([Identity(3), Prefix(3)]), {"epsilon": 1, "row_weights": [1] * 8 + [2]}),
    ],
    ids=repr,
)
def test_an_explanation_is_what_the_release_has(strategy, budget, neighbors):
    told = explain(strategy, **budget, neighbors=neighbors, delta=1e-6)
    if neighbors == "replace_one" and isinstance(strategy, VStack):
        assert told.sensitivity == pytest.approx(math.sqrt(2))
    release = dp.measure(np.zeros(9, dtype=int), strategy, **budget, neighbors=neighbors)
    assert told.spend == (release.rho if release.epsilon is None else release.epsilon)
    assert told.unit == ("epsilon" if release.rho is None else "rho")
    assert told.noise == release.noise
    assert told.sensitivity == strategy.sensitivity(told.order, neighbors)
    assert told.epsilon_at_delta == release.epsilon_at(1e-6)
    scales = np.broadcast_to(release.scale, release.values.shape)
    assert sorted(np.repeat([r.scale for r in told.rows], [r.num_rows for r in told.rows])) == sorted(scales)
    # The expected errors, by a dense solution of the same weighted least squares.
    variances = np.square(np.broadcast_to(release.stddev, release.values.shape))
    _, covariance = weighted_least_squares(np.asarray(strategy.dense()), np.zeros(len(variances)), variances)
    for error, rows in zip(told.errors, (np.eye(9), np.tril(np.ones((9, 9))), np.ones((1, 9))), strict=True):
        expected = np.diag(rows @ covariance @ rows.T)
        assert error.num_answers == len(rows)
        assert error.rms == pytest.approx(math.sqrt(expected.mean()), rel=1e-9)
        assert error.largest == pytest.approx(math.sqrt(expected.max()), rel=1e-9)


@pytest.mark.slow
def test_named_workloads_by_the_covariance_of_the_cells():
    # Qardaji et al. 2013, table 3: H_16 with consistency, N = 256, whose exact value is in hierarchical.json.
    strategy, n = Tree.complete(256, 16), 256
    told = explain(
        strategy, epsilon=1, workloads={"all ranges": AllRange(n), "one": np.ones(n), "quarter": [[1] * 64 + [0] * 192]}
    )
    assert [error.workload for error in told.errors] == ["all ranges", "one", "quarter"]
    estimate = dp.least_squares(dp.Measurement(strategy, np.zeros(272), "discrete_laplace", 2.0))
    starts, stops = np.triu_indices(n)
    covariance = np.asarray(estimate.covariance(Identity(n)))
    totals = np.pad(covariance.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    a, b = starts, stops + 1
    variances = totals[b, b] - totals[a, b] - totals[b, a] + totals[a, a]
    assert told.errors[0].rms == pytest.approx(math.sqrt(variances.mean()), rel=1e-9)
    rows = range_matrix(n, np.array([0]), np.array([64]))
    assert told.errors[2].largest == pytest.approx(math.sqrt((rows @ covariance @ rows.T).item()), rel=1e-9)


@pytest.mark.slow
def test_text_and_json():
    domain = dp.Domain({"age": dp.Axis.edges([0, 18, 65, 120]), "sex": dp.Axis.categories(["f", "m"])})
    strategy = dp.workloads.marginals(domain, ["age"], ["sex"])
    told = explain(strategy, level_rhos=[0.25, 0.25], domain=domain, neighbors="replace_one", delta=1e-6)
    facts = json.loads(told.to_json())
    assert facts["spend"] == "1/2"
    assert facts["neighbors"] == "replace_one"
    assert [error["workload"] for error in facts["errors"]] == ["cells", "by age", "by sex", "total"]
    assert facts["errors"][0]["rms"] is None  # marginals do not determine the cells
    assert told.errors[0].rms == math.inf
    assert facts["errors"][1]["largest"] == pytest.approx(told.errors[1].largest)
    text = str(told)
    assert "rho = 1/2, neighbours replace_one (one record changes its cell); epsilon = 5.22153 at delta = 1e-06" in text
    assert "sensitivity  2 (L2)" in text
    assert "undetermined" in text
    assert len({len(line) for line in text.splitlines()[-5:]}) == 1
    unmeasured = explain(Tree.complete(4, 2), level_epsilons=[0, 1])
    assert "not measured" in str(unmeasured)
    assert json.loads(unmeasured.to_json())["rows"][0]["scale"] is None


@pytest.mark.slow
def test_a_year_of_quarter_hours_is_explained_without_long_workloads():
    told = explain(Tree.complete(2**17, 16), epsilon=0.1)
    assert [error.workload for error in told.errors] == ["total"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Give exactly one of epsilon"),
        ({"epsilon": 1, "workloads": {}}, "workloads must map at least one name"),
        ({"epsilon": 1, "workloads": {"x": Identity(3)}}, "workload must be over the estimate's 4 cells, got 3"),
        ({"epsilon": 1, "workloads": {"x": "total"}}, r"workloads\['x'\] must be queries"),
        ({"rho": 1, "delta": 0}, "delta must be positive"),
        ({"level_epsilons": [1]}, "level_epsilons must have 2 entries"),
        ({"epsilon": 1, "domain": dp.Domain({"x": dp.Axis.integers(0, 3)})}, "domain has 3 cells"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        explain(Tree.complete(4, 2), **arguments)
