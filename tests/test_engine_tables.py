"""The same records give the same cells whichever engine counts them; Spark's tests run where pyspark is installed."""

import datetime
import subprocess
import sys
import warnings
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from dpinfer import Axis, Domain, count, tables
from dpinfer.engine_tables import _WHITE, _Places

pytestmark = [
    pytest.mark.skipif(find_spec("ibis") is None, reason="needs ibis installed"),
    # DuckDB's and pandas' words to ibis about calls of theirs that are to go.
    pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),
]

NAN, INF = float("nan"), float("inf")
BIG = 2**53 + 1
WHEN = datetime.datetime
TIMES = [
    *(None, WHEN(2013, 1, 1), WHEN(2013, 1, 1, 23, 59, 59, 999999), WHEN(2013, 1, 2), WHEN(2012, 12, 31, 23, 59, 59, 999999)),
    *(WHEN(2013, 1, 3), WHEN(1700, 2, 28, 23, 59), WHEN(2200, 1, 1), WHEN(2013, 1, 2, 11, 59, 59), WHEN(2013, 3, 10, 2, 30)),
    *(WHEN(1969, 12, 31, 23, 59, 59, 999999), WHEN(1969, 12, 31), WHEN(1970, 1, 1), WHEN(2013, 1, 2, 12)),
]
WORDS = [
    *(None, "UA", " UA", "UA ", "\u3000UA\n", "\x0b\x1cUA\x85", "ua", "AA", "", "  ", "NA", "n/a", "NaN", " null ", "None"),
    *("false", "TRUE", "true", "True", " tRue ", "FALSE", "it's", 'a"b', "a\\b", "a\\nb", "a\nb", "é", "😀", "\uffff"),
    *("zz", "v", "f", "1", "1.0", "0.1", "UAA", "UA\u200b", "$x", "\\", "\u212a", "%s", "?", "{x}", ":x"),
]


def near(kind, *marks):
    marks = [kind(mark) for mark in marks]
    return [*marks, *(np.nextafter(m, kind(INF)) for m in marks), *(np.nextafter(m, kind(-INF)) for m in marks)]


def whole(low, high):
    marks = (0, 1, 3, 18, 65, BIG, BIG + 3, 2**60 + 1, 2**62)
    values = {sign * mark + more for mark in marks for sign in (1, -1) for more in (-1, 0, 1)} | {low, low + 1, high - 1, high}
    return [None, *sorted(value for value in values if low <= value <= high)]


def floats(kind):
    values = near(kind, 0, 0.1, 0.2, 0.3, 1 / 3, 1, 1.5, 3, 18, 65, BIG, 2.0**60, -3, 1e22)
    return [*map(float, values), -0.0, NAN, INF, -INF, None]


def decimals(digits, scale):
    units = {mark * 10**scale // 10 + more for mark in (0, 1, 2, 3, 10, 15, 30, 180, 650, 10 * BIG) for more in (-1, 0, 1)}
    units |= {-u for u in units} | {10**digits - 1, 1 - 10**digits}
    return [None, *(Decimal(f"{u}E-{scale}") for u in sorted(units) if abs(u) < 10**digits)]


COLUMNS = {
    **{f"int{n}": pa.array(whole(-(2 ** (n - 1)), 2 ** (n - 1) - 1), f"int{n}") for n in (8, 32, 64)},
    **{f"uint{n}": pa.array(whole(0, 2**n - 1), f"uint{n}") for n in (8, 64)},
    "float32": pa.array(floats(np.float32), pa.float32(), from_pandas=False),
    "float64": pa.array(floats(np.float64), pa.float64(), from_pandas=False),
    **{f"decimal{p}_{s}": pa.array(decimals(p, s), pa.decimal128(p, s)) for p, s in ((7, 2), (5, 5), (37, 0), (38, 10))},
    "boolean": pa.array([True, False, None, True]),
    "text": pa.array(WORDS),
    "s": pa.array([t and t.replace(microsecond=0) for t in TIMES], pa.timestamp("s")),
    "us": pa.array(TIMES, pa.timestamp("us")),
    "ns": pa.array([-1, -999, -1000, -1001, 0, 1, -(10**9) - 1, 1356998400 * 10**9 - 1, 2**62, None], pa.timestamp("ns")),
    "far": pa.array([2**59, -(2**59), 0, None], pa.timestamp("us")),
    "zoned": pa.array(TIMES, pa.timestamp("us", "UTC")),
    "date": pa.array([t and t.date() for t in TIMES], pa.date32()),
    "far date": pa.array([-(10**6), 10**7, None, -1], pa.date32()),
    "list": pa.array([[1], None, [2, 3]]),
    "clock": pa.array([1, None, 2], pa.time64("us")),
    "none": pa.array([], pa.float64()),
}
# Types that Spark's Parquet reader does not know, or reads as others that are there; each column takes it a second.
NOT_IN_SPARK = ("ns", "clock", "int8", "uint8", "s", "none")
POLICIES = [
    {"null": null, "below": below, "above": above}
    for null in ("drop", "other")
    for below in ("drop", "clip", "other")
    for above in ("drop", "clip", "other")
]


def axes(policy):
    listed = {name: "other" if what == "clip" else what for name, what in policy.items()}
    ranges = [(0, 5), (-3, 100), (-100_000, -99_000), (BIG, BIG + 3), (2**62 - 2, 2**62)]
    edges = [[0, 18, 65], ["0", "0.1", "0.2", "0.3", "1"], ["-1/3", "1/3", "1.5"], [BIG - 1, BIG, 2**60 + 1], [-(2**62), 0]]
    times = [("2013-01-01", "2013-01-03", "12h"), ("1969-12-31", "1970-01-02", "1h"), ("2013-01-01T06:30", "2013-01-03", "15min")]
    texts = [["UA", "AA"], [" UA", "UA", "TRUE", "NA", "False"], ["true", "True"], ["false", "zz"]]
    texts += [[word for word in WORDS if word and word.strip() and "\x0b" not in word]]
    texts += [["1", "0.1", "0.10", "1.50", "inf", "1e+22", "10" + "0" * 21, "0", "0.000", str(BIG), "-1", "18.0"]]
    numbers = [[0, 1, 18, BIG, -1], [True, False], [2**60 + 1, 2**63, 2**64 - 1]]
    return [
        *(Axis.integers(*ends, **policy) for ends in ranges),
        *(Axis.edges(marks, **policy) for marks in edges),
        *(Axis.times(*ends, **policy) for ends in times),
        *(Axis.categories(labels, **listed) for labels in (*texts, *numbers)),
    ]


def compare(name, held, table, policy):
    """Every axis on a column: as the Arrow table has it, or both refuse the type, or the engine's expressions cannot say it."""
    counted = 0
    for axis in axes(policy):
        domain = Domain({"x": axis})
        try:
            expected = count(held, domain)
        except ValueError:
            expected = None
        try:
            cells = count(table, domain)
        except ValueError as error:
            assert expected is None or is_refused(name, axis), (name, axis, str(error))
            assert "evaluated" not in str(error), (name, axis)
            continue
        np.testing.assert_array_equal(cells, expected, err_msg=f"{name} {axis!r}")
        counted += 1
    return counted


def is_refused(name, axis):
    """What the engine may refuse to read and the other tables do not."""
    if name == "text":
        return axis.kind != "categories" or not isinstance(axis.values[0], str)
    if not name.startswith("decimal") or name.endswith("_0") or axis.kind == "times":
        return False
    # Decimals that are nearer to each other than 64-bit floats of that size are.
    if axis.kind == "integers":
        return axis.stop > 2**50
    digits, scale = map(int, name.removeprefix("decimal").split("_"))
    numbers = axis.exact if axis.kind == "edges" else [int(n) for n in axis.values if str(n).isdecimal() and float(n) == int(n)]
    return digits - scale > 16 and any(abs(n) >= 2**53 for n in numbers)


@pytest.mark.slow
def test_duckdb_counts_every_type_on_every_axis():
    import ibis

    engine = ibis.duckdb.connect()
    for place, (name, column) in enumerate(COLUMNS.items()):
        held = pa.table({"x": column})
        counted = compare(name, held, engine.create_table(name, held), POLICIES[5 * place % 18])
        assert counted >= (3 if name in ("s", "us", "ns", "far", "zoned", "date", "far date") else 6), name


def test_every_policy_drops_clips_or_keeps_alike():
    import ibis

    engine = ibis.duckdb.connect()
    for name, axis in (
        ("float64", lambda **policy: Axis.edges(["0", "0.1", "1"], **policy)),
        ("int64", lambda **policy: Axis.integers(0, 3, **policy)),
        ("us", lambda **policy: Axis.times("2013-01-01", "2013-01-02", "6h", **policy)),
    ):
        held = pa.table({"x": COLUMNS[name]})
        table = engine.create_table(name, held)
        for policy in POLICIES:
            domain = Domain({"x": axis(**policy)})
            cells = count(table, domain)
            np.testing.assert_array_equal(cells, count(held, domain), err_msg=str(policy))
            assert cells.shape == (domain.size,)


# The rows of the joint tables: a null key, NaN, both infinities, values on every edge and outside, in several columns at once.
ROWS = {
    "age": [0, 17, 18, 64, 65, 120, -1, None, 18, 40, None, 10**6],
    "income": [0.0, 0.1, 0.2, 0.3, NAN, INF, -INF, None, 0.29999999999999999, 1.0, -0.0, 0.25],
    "carrier": ["UA", "AA", None, "ZZ", "UA", "", "ua", "AA", "UA", "NA", "AA", " UA"],
}
SEVERAL = Domain(
    {
        "age": Axis.edges([0, 18, 65, 120], null="other", below="clip"),
        "income": Axis.edges(["0", "0.1", "0.2", "0.3", "1"], null="other", below="drop", above="clip"),
        "carrier": Axis.categories(["UA", "AA", "DL"], null="other"),
    }
)


def test_several_axes_in_duckdb_beside_frames_and_files(tmp_path):
    import ibis

    held = pa.table({**ROWS, "income": pa.array(ROWS["income"], pa.float64(), from_pandas=False)})
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(held, path)
    engine = ibis.duckdb.connect()
    table = engine.read_parquet(path)
    expected = count(ROWS, SEVERAL)
    assert expected.sum() == 8  # below on income, above on age and not listed
    for same in (held, path, table, nw.from_native(table), table.select("income", "carrier", "age"), table.filter(True)):
        np.testing.assert_array_equal(count(same, SEVERAL), expected)
    twice = table.union(table)
    np.testing.assert_array_equal(count(twice, SEVERAL), 2 * expected)
    assert count(table.filter(False), SEVERAL).tolist() == [0] * SEVERAL.size
    cut = ibis.options.sql.default_limit
    ibis.options.sql.default_limit = 1
    try:
        np.testing.assert_array_equal(count(table, SEVERAL), expected)
    finally:
        ibis.options.sql.default_limit = cut


def test_duckdb_types_that_arrow_has_not():
    import ibis

    engine = ibis.duckdb.connect()
    engine.raw_sql("CREATE TYPE letters AS ENUM ('z', 'a', 'm')")
    engine.raw_sql(
        """CREATE TABLE t AS SELECT * FROM (VALUES
        (170141183460469231731687303715884105727::HUGEINT, 'infinity'::TIMESTAMP, 'z'::letters,
            '550e8400-e29b-41d4-a716-446655440000'::UUID),
        (-170141183460469231731687303715884105727, '-infinity', 'a', NULL), (5, '2013-01-01 01:59:59', 'm', NULL),
        (NULL, NULL, NULL, NULL)) rows(huge, time, letter, name)"""
    )
    table = engine.table("t")
    policy = {"null": "other", "below": "other", "above": "clip"}
    clip = {"null": "other", "below": "clip", "above": "clip"}
    for axis, expected in (
        (("huge", Axis.integers(4, 7, **policy)), [0, 1, 1, 2]),
        (("huge", Axis.edges([0, 6], **policy)), [2, 2]),
        (("huge", Axis.categories([5, 2**63 + 3], null="other", above="drop")), [1, 0, 1]),
        (("huge", Axis.categories(["5", "-7"], null="other", above="drop")), [1, 0, 1]),
        (("time", Axis.times("2013-01-01", "2013-01-02", "2h", **clip)), [2, *[0] * 10, 1, 1]),
        (("letter", Axis.categories(["a", "m", "b"], null="other", above="drop")), [1, 1, 0, 1]),
        (("name", Axis.categories(["550e8400-e29b-41d4-a716-446655440000"], null="other")), [1, 3]),
        (("name", Axis.integers(0, 1, null="other")), [0, 4]),
    ):
        assert count(table, Domain(dict([axis]))).tolist() == expected, axis
    with pytest.raises(ValueError, match="labels beyond 64 bits"):
        count(table, Domain({"huge": Axis.categories([2**65])}))


def test_what_is_wrong_is_named_by_names_and_types_only():
    import ibis

    engine = ibis.duckdb.connect()
    table = engine.create_table("t", pa.table({"x": ["1", "secret"], "y": [1, 2], "b": [b"1", b"2"], "o": [[1], [2]]}))
    number, letters = Domain({"x": Axis.integers(0, 3)}), Axis.categories(["1"])
    dated, first = table.mutate(y=table.x.try_cast("date")), Axis.times("0001-01-01", "0001-01-02", "1d")
    for wrong, domain, message in (
        (table, Domain({"secret": letters}), "table has no column 'secret'; its columns are 'x', 'y', 'b', 'o'"),
        (table, number, "column 'x' has the type string, and an axis of integers reads no text in an engine: cast text"),
        (table.filter(False), number, "column 'x' has the type string, and an axis of integers reads no text in an engine"),
        (table, Domain({"b": letters}), "column 'b' has the type binary"),
        (table, Domain({"x": Axis.categories(["a\x0cb"])}), "axis 'x' must have labels without control characters"),
        (table.mutate(x=table.x.cast("int64")), number, "table could not be evaluated by its engine"),
        (ibis.table({"x": "int64"}, name="nowhere"), number, "table could not be evaluated by its engine"),
        (dated, Domain({"y": Axis.edges([0, 1])}), "An axis of numbers reads numbers or text"),
        (dated, Domain({"y": first}), "axis 'y' must be of the years 1 to 9999"),
        (table.y, number, "table must map column names to arrays"),
        (ibis, number, "table must map column names to arrays"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            count(wrong, domain)
        if "secret" not in domain.names:
            assert "secret" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert count(table.mutate(x=table.x.try_cast("int64")), number).tolist() == [0, 1, 0]
    assert count(table, Domain({"o": Axis.integers(0, 3, null="other")})).tolist() == [0, 0, 0, 2]


def test_what_python_strips_is_stripped():
    signs = [sign for sign in map(chr, range(sys.maxunicode + 1)) if sign.isspace()]
    import re

    assert [sign for sign in map(chr, range(sys.maxunicode + 1)) if re.fullmatch(f"[{_WHITE}]", sign)] == signs


def test_importing_the_package_or_counting_other_tables_loads_no_ibis(tmp_path):
    code = "import sys, dpinfer as d; d.count({'x': [1]}, d.Domain({'x': d.Axis.integers(0, 2)})); print('ibis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_spark_counts_what_the_other_tables_count(tmp_path):
    if find_spec("pyspark") is None:
        pytest.skip("needs pyspark installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, of pandas and of files that its processes leave to be closed
        with_spark(tmp_path)


def with_spark(folder: Path) -> None:
    import ibis
    from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.ansi.enabled": "true",  # the stricter way, in which arithmetic raises
        "spark.sql.session.timeZone": "America/New_York",  # where the clock skips an hour
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # Spark 3 asks which calendar it was
        "spark.sql.warehouse.dir": str(folder),
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        session.sparkContext.setLogLevel("OFF")
        engine = ibis.pyspark.connect(session)
        for place, (name, column) in enumerate(COLUMNS.items()):
            if name not in NOT_IN_SPARK:
                assert compare_codes(engine, folder, name, column, POLICIES[5 * place % 18]) >= 3
        held = pa.table({**ROWS, "income": pa.array(ROWS["income"], pa.float64(), from_pandas=False)})
        pyarrow.parquet.write_table(held, folder / "rows.parquet")
        table = engine.read_parquet(folder / "rows.parquet")
        np.testing.assert_array_equal(count(table, SEVERAL), count(ROWS, SEVERAL))
        with pytest.raises(ValueError, match="table could not be evaluated by its engine") as caught:
            count(table.mutate(age=table.carrier.cast("int64")), SEVERAL)
        assert "UA" not in str(caught.value)
    finally:
        session.stop()


def compare_codes(engine, folder, name, column, policy):
    """The cell of each record on every axis in one query, since every query of Spark takes half a second."""
    path = folder / f"{name}.parquet"
    pyarrow.parquet.write_table(pa.table({"x": column}), path)
    table = engine.read_parquet(path)
    expected, places = [], {}
    for axis in axes(policy):
        try:
            codes = [axis.codes(part) for (part,) in tables.chunks({"x": column}, ("x",))]
        except ValueError:
            continue
        if not is_refused(name, axis):
            places[f"axis{len(expected)}"] = _Places(axis, table["x"], 1, -1, "pyspark").expression()
            expected.append((axis, np.concatenate(codes)))
    found = table.select(**places).to_pyarrow()
    for (axis, codes), place in zip(expected, found.columns, strict=True):
        np.testing.assert_array_equal(place.to_numpy(), codes, err_msg=f"{name} {axis!r}")
    return len(expected)
