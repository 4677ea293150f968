"""Estimates from files of the published layout, against the same tree in memory, whatever it is cut into."""

import shutil
from typing import Any

import duckdb
import numpy as np
import pytest

from dpinfer import spine
from dpinfer.spine import Measured, Zeros, chunks

QUERIES = ("total", "hhgq", "voting * cenrace", "numraces")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """120 blocks, rows in random order over two files each, and their true counts."""
    target = tmp_path_factory.mktemp("product")
    truth = spine.write_product(target, num_blocks=120, seed=3, num_parts=2, shuffle=True)
    return target, truth


@pytest.fixture(scope="module")
def product(folder):
    return spine.Product(folder[0])


def in_memory(product, push):
    """The same tree without files; nodes level by level."""
    sizes = [len(units) for units in product.units]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    parents = np.full(starts[-1], -1)
    for depth in range(1, len(sizes)):
        parents[starts[depth] : starts[depth + 1]] = starts[depth - 1] + product.units[depth].parent
    measured, zeros = [], []
    for number, query in enumerate(product.queries):
        values, variances = np.zeros((starts[-1], query.size)), np.full(starts[-1], np.inf)
        for depth, units in enumerate(product.units):
            at, found = product.values(depth, 0, len(units))[number]
            values[starts[depth] + at] = found
            variances[starts[depth] : starts[depth + 1]] = units.variances[:, number]
        measured.append(Measured(query, values, variances))
    by_cell = product.schema.query("hhgq * votingage")
    for depth, units in enumerate(product.units):
        zeros.append(Zeros(by_cell, units.is_zero, starts[depth] + np.arange(len(units))))
    return spine.tree_least_squares(product.schema, parents, measured, zeros=zeros, push_down_zeros=push), starts


@pytest.fixture(scope="module")
def tree(product):
    return in_memory(product, True)


def assert_same(found, expected):
    scale = np.abs(expected.mean).max()
    np.testing.assert_allclose(found.mean, expected.mean, rtol=0, atol=1e-9 * scale)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=0, atol=1e-9 * np.abs(expected.covariance).max())


@pytest.mark.parametrize("cut", ["US", "County", "Block_Group", None])
def test_any_cut_gives_the_same_as_the_tree_in_memory(product, tree, cut):
    # So little memory that blocks are read 50 at a time, in several chunks.
    estimate = spine.product_least_squares(product, cut=cut, memory=2**20)
    expected, starts = tree
    assert len(estimate._chunks) > 1 or estimate.cut == "US"
    for depth, name in enumerate(product.level_names):
        nodes = np.arange(starts[depth], starts[depth + 1])
        assert_same(estimate.areas(name), expected.areas(nodes))
    blocks = product.units[-1].codes
    some = [blocks[i] for i in (70, 3, 119, 3)]
    assert_same(estimate.areas("Block", some), expected.areas(starts[-2] + np.array([70, 3, 119, 3])))
    # An area of blocks, a block group and a county less a block.
    codes = {name: product.units[depth].codes for depth, name in enumerate(product.level_names)}
    area = {blocks[2]: 1.0, blocks[60]: 2.0, codes["Block_Group"][1]: 1.0, codes["County"][0]: -1.0, blocks[0]: 1.0}
    place = {code: int(starts[depth] + i) for depth, u in enumerate(product.units) for i, code in enumerate(u.codes)}
    nodes = {place[code]: weight for code, weight in area.items()}
    found = estimate.regions({"area": area, "plain": list(some[:2]), "none": []})
    assert_same(found, expected.regions({"area": nodes, "plain": dict.fromkeys((place[c] for c in some[:2]), 1.0), "none": {}}))
    rng = np.random.default_rng(0)
    coefficients = {code: rng.normal(size=2016) for code in area}
    with pytest.raises(ValueError, match="'twice' lists something twice"):
        estimate.regions({"twice": [blocks[0], blocks[0]]})
    one = estimate.functional([coefficients, {}])
    other = expected.functional([{place[code]: vector for code, vector in coefficients.items()}, {}])
    np.testing.assert_allclose(one.values, other.values, rtol=1e-8)
    np.testing.assert_allclose(one.stddev, other.stddev, rtol=1e-8)


@pytest.mark.slow
def test_zeros_as_stated_and_exact_totals(folder):
    stated = spine.Product(folder[0], zeros="stated")
    assert not stated.units[-1].is_zero.any()
    estimate = spine.product_least_squares(stated, cut="County")
    expected, starts = in_memory(stated, False)
    assert_same(estimate.areas("Block"), expected.areas(np.arange(starts[-2], starts[-1])))
    assert estimate.certificate().holds(1e-9)
    exact = spine.Product(folder[0], exact_levels=["State"])
    found = spine.product_least_squares(exact, cut="County")
    states = found.areas("State").answer("total")
    np.testing.assert_allclose(states.values[:, 0], folder[1].counts["State"].sum(axis=1), rtol=1e-12)
    assert np.abs(states.stddev).max() < 1e-5
    assert found.certificate().holds(1e-9)
    assert_same(found.areas("Tract"), in_memory(exact, True)[0].areas(np.arange(starts[3], starts[4])))
    without = spine.Product(folder[0], zeros="none")
    assert without.classes.dense_names == ("hhgq",)
    assert spine.product_least_squares(without).certificate().holds(1e-9)


@pytest.mark.slow
def test_the_certificate_holds_and_sees_what_is_not_the_optimum(product, monkeypatch):
    estimate = spine.product_least_squares(product, cut="Tract", memory=2**22)
    assert estimate.certificate().holds(1e-10)
    original = chunks.Chunk.leaves

    def shifted(self, *args, **kwargs):
        for span, level, found, kinds in original(self, *args, **kwargs):
            yield span, level, found._replace(mean=found.mean + 1e-3), kinds

    monkeypatch.setattr(chunks.Chunk, "leaves", shifted)
    assert estimate.certificate().gradient > 1e-7


def test_estimates_are_of_the_counts_with_the_stated_spread(folder, product):
    estimate = spine.product_least_squares(product)
    for name in ("County", "Tract"):
        areas, truth = estimate.areas(name), folder[1].counts[name]
        for query in ("cenrace", "votingage * hispanic * cenrace"):
            answers = areas.answer(query)
            z = (answers.values - product.schema.query(query).answer(truth.astype(float))) / answers.stddev
            # Cells of one release hang together little: 5 standard errors as if they did not.
            assert abs(np.mean(z**2) - 1) < 5 * np.sqrt(2 / z.size)
            assert abs(z.mean()) < 5 / np.sqrt(z.size)


def test_single_precision_of_blocks_changes_little(product):
    double, single = (spine.product_least_squares(product, leaf_dtype=dtype).areas("Block") for dtype in (np.float64, np.float32))
    answers = double.answer("votingage * cenrace")
    assert single.mean.dtype == np.float32
    assert (np.abs(single.answer("votingage * cenrace").values - answers.values) <= 1e-4 * answers.stddev + 1e-9).all()
    with pytest.raises(ValueError, match="leaf_dtype"):
        spine.product_least_squares(product, leaf_dtype=np.int32)


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_parts_may_be_prepared_apart(product, tmp_path, monkeypatch):
    done = []
    original = chunks.Chunk._leaf_sums

    def counted(self):
        done.append(self.cut.start)
        return original(self)

    monkeypatch.setattr(chunks.Chunk, "_leaf_sums", counted)
    options = {"cut": "Tract", "memory": 2**20}
    whole = spine.product_least_squares(product, **options)
    parts = len(done)
    assert parts >= 2

    class StoppedError(Exception):
        pass

    def stop(units, size):
        raise StoppedError

    with pytest.raises(StoppedError):
        spine.product_least_squares(product, work=tmp_path, progress=stop, **options)
    before = len(done)
    assert before == parts + 1
    resumed = spine.product_least_squares(product, work=tmp_path, **options)
    assert len(done) == 2 * parts  # each part once
    np.testing.assert_array_equal(resumed.areas("Tract").mean, whole.areas("Tract").mean)
    # A damaged part is made anew, and so are parts of other zeros.
    message = sorted(tmp_path.glob("message-*.npz"))[0]
    message.write_bytes(message.read_bytes()[:1000])
    done.clear()
    spine.product_least_squares(product, work=tmp_path, **options)
    assert len(done) == 1
    done.clear()
    spine.product_least_squares(spine.Product(product.folder, zeros="stated"), work=tmp_path, **options)
    assert len(done) == parts
    # What was measured in another part, but in the same chunk, is other.
    copy = tmp_path / "copy" / "files"
    shutil.copytree(product.folder, copy)
    one = {"work": tmp_path / "copy", "cut": "US"}
    spine.product_least_squares(spine.Product(copy), **one)
    done.clear()
    spine.product_least_squares(spine.Product(copy), **one)
    assert not done
    part = sorted((copy / "Block.parquet" / "DPQuery" / "State=150").glob("*.parquet"))[0]
    duckdb.execute(f"COPY (SELECT * REPLACE ([x + 1 FOR x IN value] AS value) FROM '{part}') TO '{part}.new' (FORMAT parquet)")
    (part.parent / f"{part.name}.new").replace(part)
    spine.product_least_squares(spine.Product(copy), **one)
    assert len(done) == 1
    # States one by one.
    apart = tmp_path / "apart"
    first = spine.prepare_messages(product, apart, under=["050"], **options)
    second = spine.prepare_messages(product, apart, under=["150"], **options)
    assert (first > 0, second > 0, first + second) == (True, True, parts)
    done.clear()
    found = spine.product_least_squares(product, work=apart, **options)
    assert not done
    np.testing.assert_array_equal(found.areas("County").mean, whole.areas("County").mean)
    with pytest.raises(ValueError, match="under must be"):
        spine.prepare_messages(product, apart, under=["9"], **options)


@pytest.mark.slow
def test_states_on_their_own(folder, tmp_path):
    # Files of one part only, without the country above it.
    for level in ("State", "County", "Tract", "Block_Group", "Block"):
        for kind in ("DPQuery", "Constraint"):
            source = next(folder[0].iterdir()) / f"{level}.parquet" / kind / "State=050"
            if source.exists():  # of bypassed units there are no measurements
                shutil.copytree(source, tmp_path / "US_Person_PL_PROD" / f"{level}.parquet" / kind / "State=050")
    product = spine.Product(tmp_path / "US_Person_PL_PROD")
    assert [len(units) for units in product.units[:1]] == [1]
    estimate = spine.product_least_squares(product)
    assert estimate.certificate().holds(1e-10)
    with pytest.raises(ValueError, match="constraints of County hold no equality"):
        spine.Product(tmp_path, exact_levels="county")
    # Without the large part of the state, sums do not fit the country's own numbers.
    shutil.copytree(next(folder[0].iterdir()), tmp_path / "lacking" / "US_Person_PL_PROD")
    for lost in list((tmp_path / "lacking").rglob("State=050")):
        shutil.rmtree(lost)
    with pytest.raises(ValueError, match="US '': its own total is .* from what the units below it say"):
        spine.product_least_squares(spine.Product(tmp_path / "lacking"))
    # The same from all files, beginning at the states.
    both = spine.product_least_squares(spine.Product(folder[0], top="State"))
    assert_same(estimate.areas("County"), both.areas("County", list(product.units[1].codes)))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_tables(product, tmp_path, suffix):
    estimate = spine.product_least_squares(product, cut="County")
    path = tmp_path / f"tables{suffix}"
    told = []
    rows = spine.write_tables(
        estimate, path, ["County", "Block_Group"], QUERIES, coverage=0.9, progress=lambda done, size: told.append((done, size))
    )
    assert told[-1][0] == told[-1][1] == len(product.units[2]) + len(product.units[4])
    found: Any = duckdb.execute(f"SELECT * FROM '{path}'").fetchnumpy()
    names = ["level", "geocode", "query", "hhgq", "votingage", "hispanic", "cenrace", "value", "stddev", "lower", "upper"]
    assert list(found) == names
    assert len(found["value"]) == rows
    group = found["level"] == "Block_Group"
    answers = estimate.areas("Block_Group").answer("numraces")
    own = group & (found["query"] == "numraces")
    np.testing.assert_allclose(np.asarray(found["value"][own], float), answers.values.ravel(), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(found["upper"][own], float), answers.interval(0.9)[1].ravel(), rtol=1e-12, atol=1e-9)
    assert set(found["cenrace"][own]) == set(product.schema.recodes["numraces"][2])
    assert sorted(set(found["geocode"][group])) == sorted(product.units[4].codes)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # nothing else is left


def test_interrupted_tables_leave_the_old_file(product, tmp_path):
    estimate = spine.product_least_squares(product)
    path = tmp_path / "tables.csv"
    path.write_text("old")

    def stop(done, size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spine.write_tables(estimate, path, ["County"], QUERIES, progress=stop)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["tables.csv"]
    for arguments, message in (
        (("tables.txt", ["County"], None), "must end in"),
        ((path, ["Place"], None), "level must be one of"),
        ((path, ["County"], ["race"]), "no query"),
        ((path, [], None), "at least one"),
    ):
        name, levels, queries = arguments
        with pytest.raises(ValueError, match=message):
            spine.write_tables(estimate, name, levels, queries)


def row(code, name, values, variance: Any = 1.0, hhgq="*", **changes):
    fields = {"geocode": f"'{code}'", "query_name": f"'{name}'", "hhgq": f"'{hhgq}'", "votingage": "'*'", "hispanic": "'*'"}
    fields |= {"cenrace": "'*'", "value": f"{values}::INTEGER[]", "variance": f"{variance}::FLOAT"} | changes
    if variance is None:
        del fields["variance"]
    return "SELECT " + ", ".join(f"{value} AS {key}" for key, value in fields.items() if value)


def write(folder, level, rows, kind="DPQuery"):
    path = folder / "P" / f"{level}.parquet" / kind
    path.mkdir(parents=True, exist_ok=True)

    part = path / f"part-{len(list(path.iterdir()))}.parquet"
    duckdb.execute(f"COPY ({' UNION ALL BY NAME '.join(rows)}) TO '{part}' (FORMAT parquet)")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("1", "total_dpq", "[1, 2]")], "a row of 'total' holds 2 values, its recodes make 1"),
        ([row("1", "total_dpq", "[1]"), row("1", "total_dpq", "[2]")], "'1' has two rows of 'total'"),
        ([row("1", "hhgq_dpq", "[1]", hhgq="races")], "which the schema does not know"),
        ([row("1", "total_dpq", "[1]", -1.0)], "negative variance"),
        ([row("1", "total_dpq", "[1]"), row("22", "total_dpq", "[1]")], "must all be equally long"),
        ([row("1", "total_dpq", "[1]", value="")], "lacks the columns value"),
        ([row("1", "total_dpq", "[1]", None)], "lacks the column variance"),
        ([row("1", "total_dpq", "[1]"), row("2", "total_dpq", "[8]", hhgq="hhgq")], "two sets of recodes"),
        ([row("1", "hhgq_dpq", "[1, 2, 3, 4, 5, 6, 7, NULL]", hhgq="hhgq")], "holds a null, or one among its values"),
        ([row("1", "total_dpq", "[1]", value="['nan'::DOUBLE]")], "holds a value that is not finite"),
        ([row("1", "total_dpq", "[1]", value="['1']")], "must hold lists of numbers, got VARCHAR"),
        ([row("1", "total_dpq", "[1]", geocode="1")], "geocode of DPQuery must hold text, got INTEGER"),
        ([row("1", "total_dpq", "[1]", query_name="NULL::VARCHAR")], "without a query_name"),
        ([row("1", "total_dpq", "[1]"), row("1", "total", "[1]")], "'1' has two rows of 'total'"),
    ],
)
def test_files_that_are_not_what_they_should_be(tmp_path, rows, message):
    write(tmp_path, "US", [row("", "total_dpq", "[1]")])
    write(tmp_path, "State", rows)
    with pytest.raises(ValueError, match=message):
        spine.Product(tmp_path).values(1, 0, 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("1", "total_con", "[0]", sign="'=='")], "must be '=', '<=' or '>=', got '=='"),
        ([row("1", "total_con", "[5]"), row("1", "total_con", "[6]")], "'1' has two rows of 'total_con'"),
        ([row("1", "hhgq_total_ub_con", "[0, 1]", hhgq="hhgq")], "does not hold 8 values"),
    ],
)
def test_constraints_that_are_not_what_they_should_be(tmp_path, rows, message):
    for level, code in (("US", ""), ("State", "1")):
        write(tmp_path, level, [row(code, "total_dpq", "[1]")])
    write(tmp_path, "State", rows, "Constraint")
    with pytest.raises(ValueError, match=message):
        spine.Product(tmp_path, exact_levels="State")


def test_signs_that_are_missing_are_told_by_the_name(tmp_path):
    for level, code in (("US", ""), ("State", "1")):
        write(tmp_path, level, [row(code, "total_dpq", "[1]")])
    bounds = [
        row("1", f"hhgq_total_{end}_con", "[1, 0, 1, 1, 1, 1, 1, 1]", hhgq="hhgq", sign="NULL::VARCHAR") for end in ("lb", "ub")
    ]
    write(tmp_path, "State", bounds[:1], "Constraint")
    assert spine.Product(tmp_path).classes.dense_names == ()
    write(tmp_path, "State", bounds[1:], "Constraint")
    assert spine.Product(tmp_path).units[1].is_zero.tolist() == [[i == 1 for i in range(8)]]


@pytest.mark.parametrize("country", ["", "0", "US", "0100000US"])
def test_the_country_is_above_all_whatever_its_code(tmp_path, country):
    for level, codes in (("US", [country]), ("State", ["1", "2"])):
        # A suffix at one level, none at the other.
        write(tmp_path, level, [row(code, "total_dpq" if code == country else "total", "[5]") for code in codes])
    product = spine.Product(tmp_path)
    assert [units.codes.tolist() for units in product.units] == [[country], ["1", "2"]]
    assert [query.name for query in product.queries] == ["total"]
    assert np.isfinite(product.units[0].variances).all()
    assert np.isfinite(product.units[1].variances).all()


def test_states_without_counties(tmp_path):
    write(tmp_path, "State", [row(code, "total_dpq", "[5]") for code in ("1", "2")])
    write(tmp_path, "County", [row("11", "total_dpq", "[5]")])
    with pytest.raises(ValueError, match="State '2' has no units below it"):
        spine.Product(tmp_path)


def test_housing_units_whose_totals_are_exact_everywhere(tmp_path):
    rng = np.random.default_rng(0)
    occupied = {"11": (3, 9), "12": (1, 4), "21": (0, 7)}
    for level, codes in (("US", [""]), ("State", ["1", "2"]), ("County", ["11", "12", "21"])):
        truth = [np.sum([x for code, x in occupied.items() if code.startswith(unit)], axis=0) for unit in codes]
        noisy = [f"{list(map(int, x + rng.integers(-3, 4, 2)))}" for x in truth]
        plain = {"hhgq": "", "votingage": "", "hispanic": "", "cenrace": ""}
        write(tmp_path, level, [row(c, "detailed_dpq", x, 4.0, **plain, h1="'h1'") for c, x in zip(codes, noisy, strict=True)])
        totals = [row(c, "total_con", f"[{x.sum()}]", 0.0, **plain, h1="'*'") for c, x in zip(codes, truth, strict=True)]
        write(tmp_path, level, totals, "Constraint")
    product = spine.Product(tmp_path, exact_levels=["US", "State", "County"])
    assert product.schema.shape == (2,)
    estimate = spine.product_least_squares(product)
    found = estimate.areas("County").answer("total")
    np.testing.assert_allclose(found.values[:, 0], [12, 5, 7], rtol=1e-12)
    assert np.abs(found.stddev).max() < 1e-6
    assert estimate.certificate().holds(1e-9)


def test_folders_that_are_no_product(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="one sub-folder a level"):
            spine.Product(folder)
    write(tmp_path, "US", [row("", "total_dpq", "[1]")])
    with pytest.raises(ValueError, match="two levels or more"):
        spine.Product(tmp_path)
    path = tmp_path / "P" / "State.parquet" / "DPQuery"
    path.mkdir(parents=True)
    (path / "part-0.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="State: files are not readable: .*Parquet"):
        spine.Product(tmp_path)


def test_units_without_rows_and_missing_variances(tmp_path):
    # A country of two states, one of which has one county that nobody measured, and none of whose own rows has a variance.
    times = {"": 3, "1": 1, "2": 2, "11": 1, "21": 1, "22": 1}
    names = {"hhgq": "hhgq", "votingage": "'votingage'", "hispanic": "'hispanic'", "cenrace": "'cenrace'"}
    for level, codes in (("US", [""]), ("State", ["1", "2"]), ("County", ["11", "21", "22"])):
        known = [code for code in codes if code != "11"]
        cells = [f"[i % 7 * {times[code]} FOR i IN range(2016)]" for code in known]
        write(tmp_path, level, [row(code, "detailed_dpq", x, **names) for code, x in zip(known, cells, strict=True)])
        totals = [(code, f"[{times[code] * 6048}]", "NULL" if code == "1" else 4.0) for code in known]
        write(tmp_path, level, [row(code, "total_dpq", x, variance) for code, x, variance in totals])
        bound = row("11", "total_ub_con", "[100]", 0.0, sign="'<='")
        write(tmp_path, level, [bound] if level == "County" else [row(codes[0], "pl94_con", "[9]", 0.0)], "Constraint")
    product = spine.Product(tmp_path)
    assert np.isinf(product.units[2].variances[0]).all()
    assert np.isinf(product.units[1].variances[0]).tolist() == [query.name == "total" for query in product.queries]
    estimate = spine.product_least_squares(product)
    assert estimate.certificate().holds(1e-10)
    assert_same(estimate.areas("County", ["11"]), estimate.areas("State", ["1"]))
    with pytest.raises(ValueError, match="no unit '33'"):
        estimate.areas("County", ["33"])
    with pytest.raises(ValueError, match="codes must be of State"):
        estimate.areas("State", ["11"])
