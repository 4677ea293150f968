"""Tables of answers: the same numbers as the answers themselves, under the names of the domain."""

import jax
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpinfer as dp
from dpinfer.answer_tables import cumulative_table, marginal_dataset, marginal_table, quantile_table, range_table
from dpinfer.queries import Identity, Kronecker, Prefix, Total

DOMAIN = dp.Domain(
    {
        "age": dp.Axis.edges([0, 18, 65, 120]),
        "sex": dp.Axis.categories(["f", "m"], null="other"),
        "late": dp.Axis.categories([0, 1]),
    }
)


@pytest.fixture(scope="module")
def estimate():
    strategy = dp.workloads.marginals(DOMAIN, ["age", "sex", "late"], ["age"], ["sex"])
    values = np.random.default_rng(0).integers(0, 100, strategy.shape[0])
    return dp.least_squares(dp.Measurement(strategy, values, "laplace", 2.0))


@pytest.mark.slow
def test_a_marginal_by_two_axes(estimate):
    table = marginal_table(estimate, DOMAIN, ["late", "age"], level=0.9)
    assert list(table) == ["age", "late", "value", "stddev", "lower", "upper"]
    assert table["age"].tolist() == ["0..18", "0..18", "18..65", "18..65", "65..120", "65..120"]
    assert table["late"].tolist() == ["0", "1"] * 3
    answers = estimate.answer(Kronecker([Identity(3), Total(3), Identity(2)]))
    np.testing.assert_array_equal(table["value"], answers.values)
    np.testing.assert_array_equal(table["stddev"], answers.stddev)
    np.testing.assert_array_equal(table["upper"], answers.interval(0.9)[1])
    for frame in (pd.DataFrame(table), pl.DataFrame(table), pa.table(table)):
        assert frame.shape == (6, 6)
    assert marginal_table(estimate, DOMAIN, [])["value"].shape == (1,)


@pytest.mark.slow
def test_an_xarray_dataset(estimate):
    dataset = marginal_dataset(estimate, DOMAIN, ["age", "sex"], joint=True)
    assert dataset["value"].dims == ("age", "sex")
    assert dataset.attrs == {"level": 0.95, "joint": 1}
    table = marginal_table(estimate, DOMAIN, ["age", "sex"], joint=True)
    assert float(dataset["upper"].sel(age="18..65", sex="other")) == table["upper"][5]


@pytest.mark.slow
def test_named_ranges_and_the_cumulative_curve(estimate):
    table = range_table(estimate, DOMAIN, ["young=age:0..18", "late women=sex:f,late:1"])
    assert table["name"].tolist() == ["young", "late women"]
    cells = np.asarray(estimate.cells).reshape(3, 3, 2)
    np.testing.assert_allclose(table["value"], [cells[0].sum(), cells[:, 0, 1].sum()])
    curve = cumulative_table(estimate, DOMAIN, "age")
    np.testing.assert_allclose(curve["value"], cells.sum(axis=(1, 2)).cumsum())
    single = cumulative_table(estimate, DOMAIN, "age", joint=False)
    simulated = cumulative_table(estimate, DOMAIN, "age", key=jax.random.key(0))
    assert np.all(curve["upper"] > single["upper"])
    assert np.all(simulated["upper"] <= curve["upper"])


@pytest.mark.slow
def test_the_band_holds_the_whole_curve_as_often_as_it_says():
    domain, tree = dp.Domain({"x": dp.Axis.integers(0, 16)}), dp.queries.Tree.complete(16, 4)
    truth, held = np.arange(16.0), []
    for key in jax.random.split(jax.random.key(1), 60):
        estimate = dp.least_squares(dp.simulate(truth, tree, epsilon=1.0, key=key))
        band = cumulative_table(estimate, domain, "x", level=0.8, key=jax.random.fold_in(key, 1))
        curve = np.asarray(Prefix(16) @ truth)
        held.append(np.all((band["lower"] <= curve) & (curve <= band["upper"])))
    assert np.mean(held) > 0.8 - 3 * 0.4 / np.sqrt(60)


def test_quantiles_of_one_axis():
    domain = dp.Domain({"x": dp.Axis.integers(10, 14)})
    estimate = dp.least_squares(dp.Measurement(Identity(4), [10.0, 20, 40, 30], "laplace", 0.1))
    table = quantile_table(estimate, domain, [0.25, 0.5, 0.9])
    assert table["cell"].tolist() == ["11", "12", "13"]
    assert table["lower"].tolist() == ["11", "12", "13"]


def test_bad_arguments_are_named(estimate):
    with pytest.raises(ValueError, match="no axis 'income'; its axes are age, sex, late"):
        marginal_table(estimate, DOMAIN, ["income"])
    with pytest.raises(ValueError, match="no axis 'income'"):
        cumulative_table(estimate, DOMAIN, "income")
    with pytest.raises(ValueError, match="needs a domain of one axis"):
        quantile_table(estimate, DOMAIN, [0.5])
    domain = dp.Domain({"value": dp.Axis.integers(0, 2)})
    with pytest.raises(ValueError, match="An axis must not be called value"):
        marginal_table(dp.least_squares(dp.Measurement(Identity(2), [1.0, 2.0], "laplace", 1.0)), domain, ["value"])
