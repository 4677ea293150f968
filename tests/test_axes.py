"""Bins between edges and bins by label: every value on every edge, and values of every type."""

import datetime
from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpinfer import Axis, Domain, count
from dpinfer.workloads import named_ranges

NAN = float("nan")


def counts(axis, values):
    return count({"x": values}, Domain({"x": axis})).tolist()


def test_values_on_every_edge_belong_to_the_bin_that_begins_there():
    axis = Axis.edges([0, 10, 20, 50], below="other", above="other")
    assert axis.labels == ["0..10", "10..20", "20..50", "other"]
    values = [-1, 0, 9, 10, 19, 20, 49, 50, 51]
    for column in (
        values,
        np.array(values),
        np.array(values, dtype=np.int8),
        np.array(values, dtype=float),
        list(map(str, values)),
    ):
        assert counts(axis, column) == [2, 2, 2, 3]
    assert counts(axis, np.array([0, 10, 50, 2**64 - 1], dtype=np.uint64)) == [1, 1, 0, 2]
    assert counts(axis, [9.999, "9.999", Decimal("9.999"), Fraction(9999, 1000), np.nextafter(10, 0)]) == [5, 0, 0, 0]
    assert counts(Axis.edges([0, 1, 2], above="clip"), [2, 2.5, np.inf, 10**40]) == [0, 4]


def test_decimal_edges_are_where_they_print():
    edges = [f"0.{i}" for i in range(1, 10)]
    axis = Axis.edges(edges)
    # What arithmetic makes of the same numbers is off by a rounding error: np.arange(0.1, 1, 0.1)[2] is 0.30000000000000004.
    on_edges = [float(edge) for edge in edges[:-1]]
    assert counts(axis, on_edges) == [1] * 8
    assert counts(axis, np.array(on_edges)) == [1] * 8
    assert counts(axis, np.array(on_edges, dtype=np.float32)) == [1] * 8
    assert counts(axis, edges[:-1]) == [1] * 8
    assert counts(axis, [Decimal(edge) for edge in edges[:-1]]) == [1] * 8
    assert counts(axis, np.nextafter(np.array(on_edges), 0)) == [1] * 7 + [0]
    assert axis.labels[2] == "0.3..0.4"
    assert Axis.edges(["1/3", "2/3", 1]).labels == ["1/3..2/3", "2/3..1"]
    assert Axis.edges([Decimal("0.50"), Fraction(3, 4)]).to_dict()["edges"] == ["0.5", "0.75"]
    assert Axis.edges(np.array([0.0, 100.0, 1e6])).to_dict()["edges"] == [0, 100, 10**6]


def test_integers_beyond_what_floats_hold_are_compared_exactly():
    top = 2**60
    axis = Axis.edges([top - 1, top + 1, top + 3], below="other", above="other")
    values = [top - 2, top - 1, top, top + 1, top + 2, top + 3]
    for column in (values, np.array(values), np.array(values, dtype=np.uint64), list(map(str, values))):
        assert counts(axis, column) == [2, 2, 2]
    # 2^60 is a float, and below 2^60 + 1, whose nearest float it is.
    assert counts(axis, np.array([float(top)])) == [1, 0, 0]
    assert counts(axis, [float(top), float(top) + 256]) == [1, 0, 1]


@given(
    st.lists(st.fractions(-100, 100, max_denominator=64), min_size=2, max_size=6, unique=True).map(sorted),
    st.lists(st.one_of(st.integers(), st.floats(), st.none(), st.text(max_size=4)), max_size=20),
)
@pytest.mark.slow
def test_edges_agree_with_exact_comparison(edges, values):
    # Denominators that are powers of two, and whatever else: an edge that is no float counts as the nearest one.
    axis = Axis.edges(edges, null="other", below="other", above="clip")
    column = np.empty(len(values), dtype=object)
    column[:] = values
    expected = np.zeros(len(edges), dtype=int)
    for value in values:
        if isinstance(value, str):
            continue  # covered by the policies' own tests
        if value is None or value != value:
            expected[-1] += 1
        elif value in (np.inf, -np.inf):
            expected[-2 if value > 0 else -1] += 1
        else:
            exact = Fraction(value)
            places = edges if isinstance(value, int) else [Fraction(float(e)) for e in edges]
            place = bisect_right(places, exact) - 1
            expected[-1 if place < 0 else min(place, len(edges) - 2)] += 1
    kept = [not isinstance(value, str) for value in values]
    assert counts(axis, column[kept]) == expected.tolist()
    floats = np.array([value for value in values if isinstance(value, float)])
    assert counts(axis, floats) == counts(axis, list(floats))
    assert len(counts(axis, column)) == len(edges)


def test_categories_of_every_type():
    text = Axis.categories(["UA", "AA", "7", "NA"], null="other", above="other")
    assert text.labels == ["UA", "AA", "7", "NA", "other"]
    values = ["UA", b"UA", " AA ", "aa", 7, 7.0, "7", "NA", "", None, NAN, "n/a", [1], datetime.date(2013, 1, 1), "ZZ"]
    assert counts(text, values) == [2, 1, 3, 1, 8]
    assert counts(Axis.categories(["UA", "AA"]), np.array(["AA", "UA", "AA", "ZZ", ""])) == [1, 2]
    assert counts(Axis.categories(["1", "2"]), np.array([1, 2, 2, 3])) == [1, 2]
    assert counts(Axis.categories(["2013-01-01"]), [datetime.date(2013, 1, 1), "2013-01-01"]) == [2]

    integer = Axis.categories([10, -1, 2**40], null="other")
    assert counts(integer, [10, "10", 10.0, "-1", 2**40, 10.5, True, "x", None, np.inf]) == [3, 1, 1, 2]
    assert counts(integer, np.array([10, -1, 2**40, 2**40 + 1])) == [1, 1, 1, 0]
    assert counts(integer, np.array([10.0, NAN, np.inf])) == [1, 0, 0, 1]

    boolean = Axis.categories([False, True], null="other")
    assert boolean.labels == ["False", "True", "other"]
    assert counts(boolean, [True, False, "true", "FALSE", 1, 0.0, None, "yes"]) == [3, 3, 2]
    assert counts(boolean, np.array([True, True, False])) == [1, 2, 0]
    assert boolean != Axis.categories([0, 1], null="other")


@pytest.mark.parametrize("label", ["-0.0", "0", "0.0", "-0"])
def test_a_zero_counts_the_same_whatever_the_other_records(label):
    axis = Axis.categories([label, "x"], above="other")
    for kind in (float, object):
        alone = [axis.codes(np.array([zero], dtype=kind)).item() for zero in (0.0, -0.0)]
        assert len(set(alone)) == 1
        for zeros in ([0.0, -0.0], [-0.0, 0.0], [-0.0, 0.0, -0.0]):
            assert axis.codes(np.array(zeros, dtype=kind)).tolist() == alone[:1] * len(zeros)


def test_no_value_makes_counting_by_label_raise_or_changes_the_number_of_cells():
    columns = [
        np.array([2**64 - 1, 0, 2**63], dtype=np.uint64),
        np.array([np.inf, -np.inf, NAN]),
        np.array([complex(1), object(), [1], Decimal("sNaN"), datetime.timedelta(1), np.datetime64("NaT", "us")], dtype=object),
        np.array([b"\xff", "\ud800", "other"], dtype=object),
        np.array([], dtype=float),
    ]
    for axis in (
        Axis.categories(["a"], null="other", above="other"),
        Axis.categories([1], null="other", above="other"),
        Axis.edges([0, 1], null="other", below="other", above="other"),
    ):
        for column in columns:
            result = counts(axis, column)
            assert len(result) == 2
            assert sum(result) == len(column)


def test_a_time_axis_takes_numbers_as_nulls_whatever_type_a_missing_one_makes_of_them():
    axis = Axis.times("2013-01-01", "2013-01-02", "12h", null="other")
    for column in ([NAN, NAN], [1, 2], [1.0, NAN], [True, False], np.array([1, None], dtype=object)):
        assert counts(axis, np.array(column)) == [0, 0, 2]
    # Nine digits of a second, as some writers put.
    assert counts(axis, ["2013-01-01T11:59:59.999999999", "2013-01-01 12:00:00.000000000"]) == [1, 1, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Axis.edges([1]), "at least two numbers"),
        (lambda: Axis.edges("12"), "edges must be a list"),
        (lambda: Axis.edges([0, 2, 2]), "edges must increase, got 2 before 2 at position 1"),
        (lambda: Axis.edges([0, 0.1]), r"edges\[1\] must be an integer, or an exact decimal as text, got 0.1: write '0.1'"),
        (lambda: Axis.edges([0, NAN]), r"edges\[1\] must be finite"),
        (lambda: Axis.edges([0, "inf"]), r"edges\[1\] must be a number, got 'inf'"),
        (lambda: Axis.edges([0, 2**63]), r"edges\[1\] must be between"),
        (lambda: Axis.edges([0, None]), r"edges\[1\] must be a number"),
        (lambda: Axis.categories([]), "labels must be at least one category"),
        (lambda: Axis.categories("ab"), "labels must be a list of categories"),
        (lambda: Axis.categories(["a", 1]), "all texts, all integers or all booleans"),
        (lambda: Axis.categories(["a", "b", "a"]), "labels must all be different, got 'a'"),
        (lambda: Axis.categories(["a"], above="clip"), "above must be 'drop' or 'other', got 'clip'"),
        (lambda: Axis.categories(["other"], null="other"), "labels must not hold 'other'"),
    ],
)
def test_bad_axes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_columns_of_a_wrong_type_are_refused_with_and_without_records():
    days = np.array(["2013-01-01"], dtype="datetime64[D]")
    for axis in (Axis.categories(["a"]), Axis.edges([0, 1]), Axis.integers(0, 1)):
        for column in (days, days[:0]):
            with pytest.raises(ValueError, match="got a column of dtype datetime64"):
                counts(axis, column)


def test_domains_with_edges_and_categories_are_written_and_read(tmp_path):
    domain = Domain(
        {
            "naïve \x7f": Axis.edges([0, "0.5", "2/3", 10**18], above="clip"),
            "carrier": Axis.categories(["UA", 'Ü 🛫 "q" \\ \n'], above="other"),
            "stops": Axis.categories([0, 1, 2]),
            "late": Axis.categories([False, True], null="other"),
        }
    )
    assert Domain.from_dict(domain.to_dict()) == domain
    assert len({domain, Domain.from_dict(domain.to_dict())}) == 1
    path = tmp_path / "domain.toml"
    domain.save(path)
    assert Domain.load(path) == domain
    path.write_text('[x]\nkind = "edges"\nedges = [0, 0.1, 0.30]\n')
    assert Domain.load(path) == Domain({"x": Axis.edges([0, "0.1", "0.3"])})


def test_ranges_by_edges_and_by_labels():
    domain = Domain({"age": Axis.edges([0, 18, 65, 120]), "who": Axis.categories(["a", "b"], null="other")})
    names, queries = named_ranges(domain, ["work=age:18..65", "b=who:b", "lost=who:other", "young a=age:..18,who:a"])
    assert names == ["work", "b", "lost", "young a"]
    cells = np.arange(9)
    assert (queries @ cells).tolist() == [3 + 4 + 5, 1 + 4 + 7, 2 + 5 + 8, 0]
    for text, message in (
        ("x=age:5..18", "'5' must be one of the edges 0, 18, 65, 120"),
        ("x=who:c", "must be FROM..TO, TO excluded, or the label of one cell"),
        ("x=who:c..", "'c' must be one of the categories a, b"),
    ):
        with pytest.raises(ValueError, match=message):
            named_ranges(domain, [text])
