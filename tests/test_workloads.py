"""Sums by the names that a domain gives its cells."""

import jax
import numpy as np
import pytest

from dpinfer import Axis, Domain
from dpinfer.queries import Boxes, Identity, Prefix, Ranges
from dpinfer.workloads import along_axis, marginals, named_ranges, product, random_boxes, random_ranges

DAY = Domain({"when": Axis.times("2013-01-01", "2013-01-03", "6h", null="other")})
TABLE = Domain({"age": Axis.integers(10, 14), "sex": Axis.integers(0, 2), "late": Axis.integers(0, 3, above="other")})


def test_ranges_of_one_axis():
    names, queries = named_ranges(
        DAY, ["first=2013-01-01..2013-01-02", "noon=2013-01-02T12:00..", "all=..", "none=2013-01-02..2013-01-02"]
    )
    assert names == ["first", "noon", "all", "none"]
    assert isinstance(queries, Ranges)
    expected = [[1] * 4 + [0] * 5, [0] * 6 + [1, 1, 0], [1] * 8 + [0], [0] * 9]
    np.testing.assert_array_equal(queries.dense(), expected)


def test_sums_over_several_axes_by_counting_cells():
    names, queries = named_ranges(TABLE, ["old=age:12..", "boys=sex:1..2,late:0..1", "first=age:10..11"])
    assert names == ["old", "boys", "first"]
    assert isinstance(queries, Boxes)
    age, sex, late = np.indices(TABLE.shape).reshape(3, -1)
    np.testing.assert_array_equal(queries.dense(), [age >= 2, (sex == 1) & (late == 0), age == 0])
    assert isinstance(named_ranges(TABLE, ["old=age:12.."])[1], Ranges)


def test_along_an_axis():
    names, queries = along_axis(TABLE, "late", 2, ["all=age:.."])
    late = np.indices(TABLE.shape).reshape(3, -1)[2]
    assert names == ["0", "2", "all"]
    np.testing.assert_array_equal(queries.dense(), [late < 2, late >= 2, late >= 0])
    assert along_axis(DAY, "when", 1)[0][-1] == "other"


@pytest.mark.parametrize(
    ("domain", "text", "message"),
    [
        (DAY, "2013-01-01..2013-01-02", "must be written 'NAME=FROM..TO'"),
        (DAY, "x=2013-01-01", "must be FROM..TO"),
        (DAY, "x=2013-01-01T01:00..", "in steps of"),
        (DAY, "x=..2014-01-01", "must be from 2013-01-01"),
        (DAY, "x=soon..", "must be a naive local time"),
        (DAY, "x=2013-01-02..2013-01-01", "ends before it begins"),
        (TABLE, "x=10..12", "must begin with one of the axes age, sex, late and a colon"),
        (TABLE, "x=age:ten..12", "must be an integer from 10 to 14"),
    ],
)
def test_what_cannot_be_read_is_named(domain, text, message):
    with pytest.raises(ValueError, match=message):
        named_ranges(domain, [text])


def test_marginals_by_counting_cells():
    cells = np.arange(np.prod(TABLE.shape))
    table = cells.reshape(TABLE.shape)
    expected = [table.sum(axis=(1, 2)), table.sum(axis=1), table.sum(), table]
    found = marginals(TABLE, ["age"], ["late", "age"], [], ["age", "sex", "late"]) @ cells
    np.testing.assert_array_equal(found, np.concatenate([np.ravel(x) for x in expected]))
    np.testing.assert_array_equal(marginals(TABLE, ["sex"]) @ cells, table.sum(axis=(0, 2)))


def test_products_by_axis():
    cells = np.arange(np.prod(TABLE.shape))
    table = cells.reshape(TABLE.shape)
    found = product(TABLE, {"late": Identity(4), "age": Prefix(4)}) @ cells
    np.testing.assert_array_equal(found, table.sum(axis=1).cumsum(axis=0).ravel())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: marginals(TABLE), "at least one list"),
        (lambda: marginals(TABLE, "age"), r"\['age'\] and not 'age'"),
        (lambda: marginals(TABLE, ["weight"]), "no axis 'weight'; its axes are age, sex, late"),
        (lambda: product(TABLE, {"weight": Identity(4)}), "no axis 'weight'"),
        (lambda: product(TABLE, {"age": Identity(5)}), "must be over its 4 cells"),
        (lambda: along_axis(TABLE, "weight", 1), "no axis 'weight'"),
    ],
)
def test_axes_must_be_the_domains(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_random_ranges_are_uniform():
    ranges = random_ranges(6, 42_000, key=jax.random.key(0))
    counts = np.zeros((6, 7))
    np.add.at(counts, (ranges.starts, ranges.stops), 1)
    starts, stops = np.triu_indices(6)
    expected = 42_000 / 21
    assert counts[starts, stops + 1].sum() == 42_000  # nothing empty
    chi_square = np.square(counts[starts, stops + 1] - expected).sum() / expected
    assert abs(chi_square - 20) < 4 * np.sqrt(40)  # 20 degrees of freedom, 4 standard errors
    again = random_ranges(6, 42_000, key=jax.random.key(0))
    assert again == ranges
    assert random_ranges(6, 42_000, key=jax.random.key(1)) != ranges
    some = random_ranges(10, 500, key=jax.random.key(2), size=7)
    assert sorted(set(some.starts.tolist())) == [0, 1, 2, 3]
    assert (some.stops - some.starts == 7).all()


def test_random_boxes():
    boxes = random_boxes((4, 6), 1000, key=jax.random.key(0))
    assert (boxes.starts < boxes.stops).all()
    assert boxes.stops.max(axis=0).tolist() == [4, 6]
    # The axes are drawn apart from each other.
    assert abs(np.corrcoef(boxes.starts.T)[0, 1]) < 4 / np.sqrt(1000)
    fixed = random_boxes((4, 6), 50, key=jax.random.key(0), sizes=(2, 6))
    assert ((fixed.stops - fixed.starts) == (2, 6)).all()
    with pytest.raises(ValueError, match=r"sizes must be at most \(4, 6\), one for each axis, got \(5, 1\)"):
        random_boxes((4, 6), 1, key=jax.random.key(0), sizes=(5, 1))
    with pytest.raises(ValueError, match="key must be one typed key"):
        random_boxes((4, 6), 1, key=jax.random.PRNGKey(3))
