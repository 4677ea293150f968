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
