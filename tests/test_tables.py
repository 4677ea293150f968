"""The same records give the same cells whatever holds them."""

import datetime
import math

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from dpinfer import Axis, Domain, count

# Twelve records with nulls, values out of range on both sides, values on edges, integers beyond 2^53.
NAN = float("nan")
BIG = 2**60 + 1
RECORDS: dict[str, list] = {
    "age": [0, 17, 18, 64, 65, 120, -1, None, 18, 40, None, 10**6],
    "income": [0.0, 0.1, 0.2, 0.3, NAN, math.inf, -math.inf, None, 0.29999999999999999, 1.0, -0.0, 0.25],
    "carrier": ["UA", "AA", None, "ZZ", "UA", "", "ua", "AA", "UA", "NA", "AA", "UA"],
    "when": [
        datetime.datetime(2013, 1, 1),
        datetime.datetime(2013, 1, 1, 23, 59, 59, 999999),
        datetime.datetime(2013, 1, 2),
        None,
        datetime.datetime(2012, 12, 31, 23, 59, 59),
        datetime.datetime(2013, 1, 3),
        datetime.datetime(1677, 10, 1),
        datetime.datetime(2200, 1, 1),
        datetime.datetime(2013, 1, 2, 12),
        None,
        datetime.datetime(2013, 1, 1, 0, 0, 1),
        datetime.datetime(2013, 1, 2, 1),
    ],
    "day": [datetime.date(2013, 1, 1 + i % 4) if i % 5 else None for i in range(12)],
    "number": [BIG, BIG + 1, None, BIG + 2, BIG - 2, BIG, BIG, None, BIG + 1, 0, -1, BIG],
    "late": [True, False, None, True, False, True, None, True, False, True, False, False],
    "ignored": list("abcdefghijkl"),
}
AXES = {
    "age": Axis.edges([0, 18, 65, 120], null="other", below="clip", above="other"),
    "income": Axis.edges(["0", "0.1", "0.2", "0.3", "1"], null="other", above="clip", below="other"),
    "carrier": Axis.categories(["UA", "AA", "DL"], null="other", above="other"),
    "when": Axis.times("2013-01-01", "2013-01-03", "12h", null="other", below="clip", above="clip"),
    "day": Axis.times("2013-01-01", "2013-01-04", "1d", null="other", above="other"),
    "number": Axis.integers(BIG - 2, BIG + 3, null="other", below="other"),
    "late": Axis.categories([False, True], null="other"),
}
EXPECTED = {
    "age": [3, 4, 1, 4],
    "income": [2, 1, 2, 4, 3],
    "carrier": [4, 3, 0, 5],
    "when": [4, 1, 2, 3, 2],
    "day": [2, 2, 2, 6],
    "number": [1, 0, 4, 2, 1, 4],
    "late": [5, 5, 2],
}
ARROW = pa.table(
    {
        "age": pa.array(RECORDS["age"], pa.int32()),
        "income": pa.array(RECORDS["income"], pa.float64(), from_pandas=False),
        "carrier": pa.array(RECORDS["carrier"], pa.string()),
        "when": pa.array(RECORDS["when"], pa.timestamp("us")),
        "day": pa.array(RECORDS["day"], pa.date32()),
        "number": pa.array(RECORDS["number"], pa.int64()),
        "late": pa.array(RECORDS["late"], pa.bool_()),
        "ignored": pa.array(RECORDS["ignored"]),
    }
)


def duckdb_relation():
    import duckdb

    return duckdb.from_arrow(ARROW)


HOLDERS = {
    "lists": lambda path: RECORDS,
    "pandas objects": lambda path: pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in RECORDS.items()}),
    "pandas as it infers": lambda path: pd.DataFrame({k: v for k, v in RECORDS.items() if k != "number"}).assign(
        number=pd.Series(RECORDS["number"], dtype="Int64")
    ),
    "pandas nullable": lambda path: pd.DataFrame(RECORDS | {"number": pd.array(RECORDS["number"], "Int64")}).convert_dtypes(),
    "pandas on arrow": lambda path: ARROW.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas categories": lambda path: pd.DataFrame({"carrier": pd.Categorical(RECORDS["carrier"])}),
    "polars": lambda path: pl.from_arrow(ARROW),
    "polars lazy": lambda path: pl.from_arrow(ARROW).lazy(),  # pyright: ignore[reportAttributeAccessIssue]
    "polars nanoseconds": lambda path: pl.from_arrow(ARROW).with_columns(  # pyright: ignore[reportAttributeAccessIssue]
        pl.col("when").cast(pl.Datetime("ns")), pl.col("carrier").cast(pl.Categorical), pl.col("age").cast(pl.Int128)
    ),
    "pyarrow": lambda path: ARROW,
    "pyarrow dictionary": lambda path: ARROW.set_column(2, "carrier", ARROW["carrier"].dictionary_encode()),
    "duckdb": lambda path: duckdb_relation(),
    "narwhals": lambda path: nw.from_native(ARROW),
    "csv of polars": lambda path: written(path / "polars.csv", lambda p: pl.from_arrow(ARROW).write_csv(p)),  # pyright: ignore[reportAttributeAccessIssue]
    "csv of pandas": lambda path: written(path / "pandas.csv", lambda p: ARROW.to_pandas(types_mapper=pd.ArrowDtype).to_csv(p)),
    "csv of duckdb": lambda path: written(path / "duckdb.csv", lambda p: duckdb_relation().write_csv(str(p))),
    "parquet": lambda path: written(path / "arrow.parquet", lambda p: pyarrow.parquet.write_table(ARROW, p)),
}


def written(path, write):
    write(path)
    return path


@pytest.mark.parametrize("holder", HOLDERS)
def test_every_holder_of_the_same_records_gives_the_same_cells(holder, tmp_path):
    table = HOLDERS[holder](tmp_path)
    names = ["carrier"] if holder == "pandas categories" else list(AXES)
    for name in names:
        assert count(table, Domain({name: AXES[name]})).tolist() == EXPECTED[name], name
    if len(names) > 1:
        two = Domain({name: AXES[name] for name in ("late", "carrier", "age")})
        assert count(table, two).tolist() == count(RECORDS, two).tolist()
        assert count(table, two).sum() == 12


@pytest.mark.parametrize("holder", ["pandas on arrow", "polars", "polars lazy", "pyarrow", "duckdb", "csv of polars", "parquet"])
def test_chunks_and_empty_tables(holder, tmp_path, monkeypatch):
    table = HOLDERS[holder](tmp_path)
    monkeypatch.setattr("dpinfer.tables._CHUNK_ROWS", 5)
    for name, axis in AXES.items():
        assert count(table, Domain({name: axis})).tolist() == EXPECTED[name]
    empty = ARROW.slice(0, 0)
    holders = {"polars": pl.from_arrow(empty), "pyarrow": empty, "pandas on arrow": empty.to_pandas(types_mapper=pd.ArrowDtype)}
    if holder in holders:
        assert count(holders[holder], Domain(AXES)).sum() == 0


def test_times_with_a_zone_are_nulls_everywhere(tmp_path):
    zoned = pa.table({"when": ARROW["when"].cast(pa.timestamp("us", "UTC"))})
    path = tmp_path / "zoned.parquet"
    pyarrow.parquet.write_table(zoned, path)
    domain = Domain({"when": AXES["when"]})
    for table in (zoned, pl.from_arrow(zoned), zoned.to_pandas(), zoned.to_pandas(types_mapper=pd.ArrowDtype), path):
        assert count(table, domain).tolist() == [0, 0, 0, 0, 12]


def test_what_is_wrong_with_a_frame_is_named_without_its_records(tmp_path):
    domain = Domain({"x": Axis.integers(0, 3)})
    frame = pd.DataFrame([[1, 2]], columns=["x", "x"])
    with pytest.raises(ValueError, match="'x' 2 times"):
        count(frame, domain)
    path = tmp_path / "twice.csv"
    path.write_text("x,x\n1,2\n")
    with pytest.raises(ValueError, match="table has more than one column 'x'"):
        count(path, domain)
    with pytest.raises(ValueError, match="table has no column 'x'; its columns are 'y'"):
        count(pl.DataFrame({"y": ["secret"]}), domain)
    for empty in (False, True):
        with pytest.raises(ValueError, match="reads numbers or text, got a column of dtype datetime64"):
            count(
                ARROW.slice(0, 0 if empty else 2).rename_columns(["x" if n == "when" else n for n in ARROW.column_names]), domain
            )
    broken = pl.LazyFrame({"x": ["secret"]}).with_columns(pl.col("x").cast(pl.Int64))
    with pytest.raises(ValueError, match="could not be evaluated by its engine") as caught:
        count(broken, domain)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    import duckdb

    connection = duckdb.connect()
    relation = connection.sql("SELECT CAST(y AS INTEGER) AS x FROM (VALUES ('secret')) t(y)")
    with pytest.raises(ValueError, match="could not be evaluated by its engine") as caught:
        count(relation, domain)
    assert "secret" not in str(caught.value)


def test_numbers_of_every_width(tmp_path):
    domain = Domain({"x": Axis.integers(0, 200, above="other", below="other")})
    for kind in (pl.Int8, pl.UInt8, pl.Int16, pl.UInt32, pl.UInt64, pl.Int128, pl.Float32, pl.Float64, pl.Decimal(10, 2)):
        frame = pl.DataFrame({"x": pl.Series([1, 100, None, 3, 1], dtype=kind)})
        cells = count(frame, domain)
        assert np.flatnonzero(cells).tolist() == [1, 3, 100]
        assert cells[1] == 2
        path = tmp_path / "x.parquet"
        if kind != pl.Int128:
            frame.write_parquet(path)
            np.testing.assert_array_equal(count(path, domain), cells)


def everywhere(arrow, path, **csv):
    """The same Arrow column as most holders have it, and as Parquet."""
    table = pa.table({"x": arrow})
    pyarrow.parquet.write_table(table, path / "x.parquet")
    yield table
    yield pl.from_arrow(table)
    yield table.to_pandas(types_mapper=pd.ArrowDtype)
    yield {"x": table["x"]}
    yield {"x": arrow}
    yield path / "x.parquet"


def test_single_precision_counts_where_its_decimals_are(tmp_path):
    domain = Domain({"x": Axis.edges(["0", "0.7", "1"])})
    for table in everywhere(pa.array([0.7, 0.5], pa.float32()), tmp_path):
        assert count(table, domain).tolist() == [1, 1]
    assert count({"x": [np.float32(0.7), np.float16(0.5)]}, domain).tolist() == [1, 1]
    labels = Domain({"x": Axis.categories(["0.1"])})
    assert count({"x": np.array([0.1], dtype=np.float32)}, labels).tolist() == [1]


def test_instants_beyond_python_and_before_1970(tmp_path):
    axis = Axis.times("1969-12-31", "1970-01-02", "1d", null="other", below="clip", above="clip")
    domain = Domain({"x": axis})
    for arrow, expected in (
        (pa.array([-1, 0, None], pa.timestamp("ns")), [1, 1, 1]),
        (pa.array([-(10**6), 10**7, None, -1], pa.date32()), [2, 1, 1]),
        (pa.array([2**59, -(2**59), None], pa.timestamp("us")), [1, 1, 1]),
    ):
        for table in everywhere(arrow, tmp_path):
            assert count(table, domain).tolist() == expected, type(table)
    assert count({"x": [np.datetime64(-1, "as"), np.datetime64(-1, "ns")]}, domain).tolist() == [2, 0, 0]


def test_types_that_no_axis_reads_are_nulls(tmp_path):
    domain = Domain({"x": Axis.integers(0, 3, null="other")})
    for arrow in (pa.array([1, 2**62], pa.duration("s")), pa.array([[1], [2, 3]]), pa.array([1, 2], pa.time64("us"))):
        for table in (pa.table({"x": arrow}), pa.table({"x": arrow}).to_pandas(types_mapper=pd.ArrowDtype)):
            assert count(table, domain).tolist() == [0, 0, 0, 2]


def test_text_that_is_no_text_is_not_shown():
    broken = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(np.array([0, 3, 4], np.int32)), pa.py_buffer(b"k\xffz1")])
    assert count(pa.table({"x": broken}), Domain({"x": Axis.integers(0, 3, null="other")})).tolist() == [0, 1, 0, 1]


def test_whole_numbers_are_exact_whatever_writes_them(tmp_path):
    import decimal

    big = 2**60 + 1
    domain = Domain({"x": Axis.integers(big - 1, big + 2, null="other", above="other")})
    for value in (big, decimal.Decimal(big), f"{big}", f"{big}.00", np.uint64(big)):
        assert count({"x": [value]}, domain).tolist() == [0, 1, 0, 0], value
    for table in everywhere(pa.array([decimal.Decimal(big)], pa.decimal128(38, 0)), tmp_path):
        assert count(table, domain).tolist() == [0, 1, 0, 0]
    assert count({"x": [10**400, decimal.Decimal(10) ** 400, "1e400", "9" * 5000]}, domain).tolist() == [0, 0, 0, 4]


def test_objects_that_raise_when_they_are_asked_are_nulls():
    class Angry:
        def __float__(self):
            raise RuntimeError("secret")

        def __ne__(self, other):
            raise RuntimeError("secret")

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    column = [Angry(), np.ma.masked, np.complex128(2 + 1j), 10**5000, 1]
    assert count({"x": column}, Domain({"x": Axis.integers(0, 3, null="other", above="clip")})).tolist() == [0, 1, 1, 3]
    assert count({"x": column}, Domain({"x": Axis.categories(["1"], null="other", above="other")})).tolist() == [1, 4]
    assert count({"x": column}, Domain({"x": Axis.categories([1], null="other", above="other")})).tolist() == [1, 4]


def test_files_are_read_as_they_are_named(tmp_path):
    domain = Domain({"x": Axis.integers(0, 4, null="other")})
    folder = tmp_path / "x=3"
    folder.mkdir()
    pyarrow.parquet.write_table(pa.table({"x": [1, 1, 2]}), folder / "t.parquet")
    assert count(folder / "t.parquet", domain).tolist() == [0, 2, 1, 0, 0]
    pyarrow.parquet.write_table(pa.table({"x": [1]}), tmp_path / "a[1].parquet")
    with pytest.raises(ValueError, match="reads as a pattern of several files"):
        count(tmp_path / "a[1].parquet", domain)
    pyarrow.parquet.write_table(pa.table({"x": pa.array([], pa.timestamp("us"))}), tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="reads numbers or text, got a column of dtype datetime64"):
        count(tmp_path / "empty.parquet", domain)


def test_csv_lines_that_are_empty_or_very_long(tmp_path):
    path = tmp_path / "x.csv"
    pl.DataFrame({"x": [1, None, 2]}).write_csv(path)
    assert count(path, Domain({"x": Axis.integers(0, 3, null="other")})).tolist() == [0, 1, 1, 1]
    long = "a" * 200_000
    path.write_text(f'x,notes,y\n1,{long},2\n2,"{long},""b"", c",1\n', encoding="utf-8")
    assert count(path, Domain({"x": Axis.integers(0, 3), "y": Axis.integers(0, 3)})).reshape(3, 3)[[1, 2], [2, 1]].tolist() == [
        1,
        1,
    ]
    assert count(path, Domain({"notes": Axis.categories([long, long + ',"b", c'])})).tolist() == [1, 1]


def test_booleans_and_blanks_as_text():
    axis = Axis.categories(["True", "false"], null="other")
    assert count({"x": ["true", "True", True, "FALSE", False, ""]}, Domain({"x": axis})).tolist() == [3, 2, 1]
    with pytest.raises(ValueError, match="labels must not be blank"):
        Axis.categories(["a", " "])
    lowest = Axis.edges([-100000, 0], below="other")
    assert count({"x": np.array([-np.inf, -1], dtype=np.float16)}, Domain({"x": lowest})).tolist() == [1, 1]
    assert count({"x": np.array([np.nextafter(np.longdouble(3), 0)])}, Domain({"x": Axis.integers(0, 4)})).tolist() == [
        0,
        0,
        1,
        0,
    ]
