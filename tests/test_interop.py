"""To mbi and back: the same marginals, values and noise; and counts of other libraries by hand."""

import importlib.util
import warnings

import numpy as np
import pytest

import dpinfer as dp
from dpinfer import interop
from dpinfer.queries import Identity, Prefix, Total, VStack

DOMAIN = dp.Domain({"a": dp.Axis.integers(0, 2), "b": dp.Axis.categories(["x", "y", "z"]), "c": dp.Axis.edges([0, 1, 5])})


@pytest.fixture
def mbi():
    if importlib.util.find_spec("mbi") is None:
        pytest.skip("needs mbi installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own at import
        import mbi  # pyright: ignore[reportMissingImports]
    return mbi


def measured():
    strategy = VStack([dp.workloads.marginals(DOMAIN, ["a", "b"], ["c"], []), Identity(12), Total(12)])
    rows = [6, 2, 1, 12, 1]
    values = np.random.default_rng(0).normal(size=sum(rows))
    return dp.Measurement(strategy, values, "gaussian", np.repeat([1.0, 2, 3, 4, 5], rows))


def test_there_and_back(mbi):
    measurement = measured()
    theirs = interop.to_mbi(measurement, DOMAIN)
    assert [m.clique for m in theirs] == [("a", "b"), ("c",), (), ("a", "b", "c"), ()]
    assert [m.stddev for m in theirs] == [1, 2, 3, 4, 5]
    back = interop.from_mbi(theirs, DOMAIN)
    np.testing.assert_array_equal(back.queries.dense(), measurement.queries.dense())
    np.testing.assert_array_equal(back.values, measurement.values)
    np.testing.assert_array_equal(back.scale, measurement.scale)
    turned = mbi.LinearMeasurement(np.arange(6.0).reshape(3, 2).ravel(), ("b", "a"), 1.0)
    np.testing.assert_array_equal(interop.from_mbi([turned], DOMAIN).values, [0, 2, 4, 1, 3, 5])


def test_what_cannot_be_converted_is_named(mbi):
    with pytest.raises(ValueError, match="must be of marginals of the domain's table"):
        interop.to_mbi(dp.Measurement(Prefix(12), np.zeros(12), "laplace", 1.0), DOMAIN)
    with pytest.raises(ValueError, match="one scale for all rows of a marginal"):
        interop.to_mbi(dp.Measurement(Identity(12), np.zeros(12), "laplace", np.arange(1.0, 13)), DOMAIN)
    with pytest.raises(ValueError, match="is of 'd', which domain does not have"):
        interop.from_mbi([mbi.LinearMeasurement(np.zeros(2), ("d",), 1.0)], DOMAIN)
    with pytest.raises(ValueError, match="has 3 values for a marginal of"):
        interop.from_mbi([mbi.LinearMeasurement(np.zeros(3), ("a",), 1.0)], DOMAIN)


def test_without_mbi_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mbi", None)
    with pytest.raises(ValueError, match="needs mbi: pip install mbi"):
        interop.to_mbi(measured(), DOMAIN)
