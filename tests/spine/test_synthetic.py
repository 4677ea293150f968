"""Made-up products: the layout of the real files, noise of the stated variance around counts that obey what is known of them."""

import os
from collections import Counter, defaultdict
from itertools import pairwise

import duckdb
import numpy as np
import pytest

from dpinfer.spine import synthetic
from dpinfer.spine.schema import pl94_persons
from dpinfer.spine.synthetic import LEVEL_SHARES, LEVELS, QUERY_SHARES, write_product

SCHEMA = pl94_persons()
WIDTHS = (0, 3, 9, 15, 18, 34)
CELLS = 2016
DATABASE = duckdb.connect()


def rows_of(product, level, kind, columns="*"):
    """Dicts in the order of the files and of the rows in them."""
    files = sorted(map(str, (product / f"{level}.parquet" / kind).rglob("*.parquet")))
    if not files:
        return []
    read = "read_parquet(?, union_by_name=true, filename=true, hive_partitioning=false)"
    result = DATABASE.execute(f"SELECT {columns}, filename FROM {read}", [files])
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def rows_of_file(file, columns):
    return DATABASE.execute(f"SELECT {columns} FROM read_parquet(?, hive_partitioning=false)", [str(file)]).fetchall()


def types_of(file):
    described = DATABASE.execute("DESCRIBE FROM read_parquet(?, hive_partitioning=false)", [str(file)])
    return {row[0]: row[1] for row in described.fetchall()}


def everything(product):
    """Noisy answers and variances by level, code and query."""
    return {
        (level, row["geocode"], row["query_name"]): (tuple(row["value"]), row["variance"])
        for level in LEVELS
        for row in rows_of(product, level, "DPQuery")
    }


def write_and_watch(folder, monkeypatch, **arguments):
    """The product's folder, and what was counted: for each level [units, cells], blocks too."""
    counts, codes = defaultdict(list), defaultdict(list)
    write = synthetic._Writer.unit_rows

    def watched(self, depth, chunk, people, most):
        counts[LEVELS[depth]].append(people[0])
        codes[LEVELS[depth]].extend(self.levels[depth].geocodes[chunk])
        return write(self, depth, chunk, people, most)

    monkeypatch.setattr(synthetic._Writer, "unit_rows", watched)
    truth = write_product(folder, **arguments)
    cells = {level: dict(zip(codes[level], np.concatenate(counts[level]), strict=True)) for level in LEVELS}
    return folder / arguments.get("product", "US_Person_PL_PROD"), truth, cells


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Of this seed there is a block and a block group without noisy counts."""
    with pytest.MonkeyPatch.context() as patch:
        return write_and_watch(tmp_path_factory.mktemp("made"), patch, num_blocks=300, seed=1)


def test_truth_is_of_all_levels_above_blocks_and_adds_up(made):
    _, truth, cells = made
    assert list(truth.counts) == list(truth.geocodes) == list(LEVELS[:5])
    assert len(cells["Block"]) == 300
    for i, level in enumerate(LEVELS[:5]):
        codes, counts = truth.geocodes[level], truth.counts[level]
        assert counts.dtype == np.int32
        assert counts.shape == (codes.size, CELLS)
        assert list(codes) == sorted(set(codes)) == list(cells[level])
        below = defaultdict(int)
        for code, row in cells[LEVELS[i + 1]].items():
            below[code[: WIDTHS[i]]] += row
        assert set(below) == set(codes)
        for code, row in zip(codes, counts, strict=True):
            np.testing.assert_array_equal(row, below[code])
    assert truth.counts["US"].sum() > 5000


def test_codes_are_prefixes_of_fixed_width(made):
    product, truth, cells = made
    for level, width in zip(LEVELS, WIDTHS, strict=True):
        codes = list(cells[level])
        assert {len(code) for code in codes} == {width}
        assert {row["geocode"] for row in rows_of(product, level, "Constraint", "geocode")} == set(codes)
    assert list(truth.geocodes["State"]) == ["050", "150"]
    real = {code[-16:] for code in cells["Block"]}
    assert len(real) == 300
    for code in cells["Block"]:
        state, county, tract, group, block = code[18:20], code[20:23], code[23:29], code[29], code[30:]
        assert (state, county, tract) == (code[1:3], code[6:9], code[9:15])
        assert block[0] == group
        assert int(group) > 0
    # Block groups of the tree and those of the real codes cut across each other.
    assert len({(code[:15], code[29]) for code in cells["Block"]}) != len({code[:18] for code in cells["Block"]})


def test_codes_of_a_large_state_are_unique_and_blocks_few_to_a_group():
    levels = synthetic._geography(20_000, 2.56, np.random.default_rng(0))
    for level, width in zip(levels, WIDTHS, strict=True):
        codes = list(level.geocodes)
        assert codes == sorted(set(codes))
        assert {len(code) for code in codes} == {width}
        assert all(code[:1] == "1" for code in codes[level.outside :])
        assert not any(code[:1] == "1" for code in codes[: level.outside])
    blocks = levels[5]
    assert len({code[-16:] for code in blocks.geocodes}) == blocks.geocodes.size == 20_000
    assert blocks.geocodes.size - blocks.outside == 600
    fan_out = [level.geocodes.size / above.geocodes.size for above, level in pairwise(levels[2:])]
    assert 30 < fan_out[2] < 48
    assert 2.4 < fan_out[1] < 4
    sizes = np.bincount(blocks.parents)
    assert sizes.min() == 1
    assert sizes.max() > 100
    # One real tract may lie in both parts.
    tracts = [code[1:] for code in levels[3].geocodes]
    assert len(set(tracts)) < len(tracts)


def test_folders_columns_and_types(made):
    product, _, _ = made
    assert {entry.name for entry in product.iterdir()} == {f"{level}.parquet" for level in LEVELS}
    recodes = dict.fromkeys(SCHEMA.names, "VARCHAR")
    start = {"geocode": "VARCHAR", "query_name": "VARCHAR", **recodes, "query_shape": "INTEGER[]"}
    seen = set()
    for level in LEVELS:
        for file in sorted((product / f"{level}.parquet").rglob("*.parquet")):
            kind, *states = file.relative_to(product / f"{level}.parquet").parts[:-1]
            assert states == ([] if level == "US" else [f"State={rows_of_file(file, 'geocode')[0][0][:3]}"])
            seen.add((level, kind, *states))
            outside = states != ["State=150"]
            width = ("BIGINT" if level in LEVELS[:3] else "INTEGER") if outside else "SMALLINT"
            types = types_of(file)
            if kind == "DPQuery":
                extra = {"variance": "FLOAT", **({"plb": "DOUBLE"} if outside else {})}
                assert types == {**start, "value": f"{width}[]", **extra}
            elif outside:
                assert types == {**start, "value": f"{width}[]", "variance": "FLOAT", "sign": "VARCHAR", "plb": "DOUBLE"}
            else:
                signs = (
                    {}
                    if {row[0] for row in rows_of_file(file, "query_name")} <= {"nurse_nva_0_con", "total_con"}
                    else {"sign": "VARCHAR"}
                )
                assert types == {**start, "value": "INTEGER[]", **signs}
    wanted = {
        (level, kind, f"State={code}") for level in LEVELS[1:] for kind in ("DPQuery", "Constraint") for code in ("050", "150")
    }
    wanted |= {("US", "DPQuery"), ("US", "Constraint")}
    # The only block group of the areas left its budget to its tract.
    assert seen == wanted - {("Block_Group", "DPQuery", "State=150")}


def test_every_measured_unit_answers_every_query(made):
    product, _, cells = made
    for level in LEVELS:
        asked = defaultdict(list)
        for row in rows_of(product, level, "DPQuery"):
            assert row["query_name"].endswith("_dpq")
            name = row["query_name"][:-4]
            query = SCHEMA.query(name)
            assert tuple(row["query_shape"]) == query.shape
            assert len(row["value"]) == query.size
            assert tuple(row[attribute] for attribute in SCHEMA.names) == query.recodes
            asked[row["geocode"]].append(name)
        assert set(asked) <= set(cells[level])
        assert all(names == list(QUERY_SHARES) for names in asked.values())


def test_shares_are_whole():
    assert sum(LEVEL_SHARES) == 4099
    assert np.array(list(QUERY_SHARES.values())).sum(axis=0).tolist() == [100] * 6
    assert np.array(list(QUERY_SHARES.values())).min() > 0


def test_units_alone_may_leave_their_budget_to_the_one_above(made):
    product, _, cells = made
    children = {level: Counter(code[:width] for code in cells[level]) for level, width in zip(LEVELS[1:], WIDTHS, strict=False)}
    variances, absent = {}, set()
    for i, level in enumerate(LEVELS):
        found = defaultdict(dict)
        for row in rows_of(product, level, "DPQuery", "geocode, query_name, variance"):
            found[row["geocode"]][row["query_name"][:-4]] = row["variance"]
        variances[level] = found
        for code in set(cells[level]) - set(found):
            absent.add(level)
            assert children[level][code[: WIDTHS[i - 1]]] == 1
    assert absent == {"Block_Group", "Block"}

    def precision(depth, code, query):
        """Of the unit as if measured, and of the one unit below that is not."""
        total = 2.56 * LEVEL_SHARES[depth] / 4099 * QUERY_SHARES[query][depth] / 100
        if depth < 5:
            below = [other for other in cells[LEVELS[depth + 1]] if other[: WIDTHS[depth]] == code]
            missing = [other for other in below if other not in variances[LEVELS[depth + 1]]]
            total += sum(precision(depth + 1, other, query) for other in missing)
        return total

    for depth, level in enumerate(LEVELS[:5]):
        for code, known in variances[level].items():
            for query, variance in known.items():
                assert 1 / variance == pytest.approx(precision(depth, code, query), rel=1e-6)
    for row in rows_of(product, "Tract", "DPQuery"):
        assert row["plb"] is None or row["plb"] == pytest.approx(1 / row["variance"] / 2.56)


def test_noise_has_the_stated_variance(made):
    product, _, cells = made
    scores = defaultdict(list)
    for level in LEVELS:
        for row in rows_of(product, level, "DPQuery"):
            exact = SCHEMA.query(row["query_name"][:-4]).answer(cells[level][row["geocode"]])
            scores[row["query_name"]].append((np.array(row["value"]) - exact) / np.sqrt(row["variance"]))
    by_query = [np.concatenate(parts) for parts in scores.values()]
    for z in (*by_query, np.concatenate(by_query)):
        assert abs(z.mean()) < 4 / np.sqrt(z.size)
        assert abs(z.var() - 1) < 4 * np.sqrt(2 / z.size)
    assert sum(z.size for z in by_query) > 800_000
    neighbours = np.concatenate(scores["detailed_dpq"])
    assert abs(np.mean(neighbours[1:] * neighbours[:-1])) < 4 / np.sqrt(neighbours.size)


def test_counts_obey_the_constraints(made):
    product, _, cells = made
    zeros = 0
    above = {}
    for depth, level in enumerate(LEVELS):
        names, upper = defaultdict(list), {}
        for row in rows_of(product, level, "Constraint"):
            name, sign, value = row["query_name"], row.get("sign") or "=", np.array(row["value"])
            names[row["geocode"]].append(name)
            query = SCHEMA.query_of([row[attribute] for attribute in SCHEMA.names])
            assert tuple(row["query_shape"]) == query.shape
            assert not row["variance"]
            exact = query.answer(cells[level][row["geocode"]])
            assert {"=": exact == value, "<=": exact <= value, ">=": exact >= value}[sign].all()
            assert sign == {"hhgq_total_lb_con": ">=", "hhgq_total_ub_con": "<="}.get(name, "=")
            if name == "nurse_nva_0_con":
                assert value.tolist() == [0]
            if name == "hhgq_total_ub_con":
                upper[row["geocode"]] = value
                zeros += int((value[1:] == 0).sum())
        total = ["total_con"] if depth < 2 else []
        wanted = sorted(["nurse_nva_0_con", *total, "hhgq_total_lb_con", "hhgq_total_ub_con"])
        assert set(names) == set(cells[level])
        assert all(sorted(found) == wanted for found in names.values())
        if above:
            sums = defaultdict(int)
            for code, value in upper.items():
                sums[code[: WIDTHS[depth - 1]]] += value
            for code, value in above.items():
                np.testing.assert_array_equal(value, sums[code])
        above = upper
    assert zeros > 1000
    homes = [value[0] for value in above.values()]
    assert 0 < sum(bound == 0 for bound in homes) < 100


@pytest.mark.slow
def test_same_seed_same_values_however_arranged(tmp_path):
    write_product(tmp_path, num_blocks=40, seed=1, product="C")
    write_product(tmp_path, num_blocks=40, seed=1, product="A", num_parts=3, shuffle=True)
    write_product(tmp_path, num_blocks=40, seed=1, product="B", num_parts=2)
    first = everything(tmp_path / "C")
    assert everything(tmp_path / "A") == first
    assert everything(tmp_path / "B") == first

    def places(name):
        rows = rows_of(tmp_path / name, "Block", "DPQuery", "geocode, query_name")
        outside = [row for row in rows if row["geocode"][0] == "0"]
        return [row["geocode"] for row in outside], Counter(row["filename"] for row in outside)

    codes, files = places("C")
    assert (codes == sorted(codes), len(files)) == (True, 1)
    codes, files = places("B")
    assert (codes == sorted(codes), len(files)) == (True, 2)
    codes, files = places("A")
    assert (codes == sorted(codes), len(files)) == (False, 3)
    assert max(files.values()) - min(files.values()) <= 1


@pytest.mark.slow
def test_other_seed_other_values(tmp_path):
    first = write_product(tmp_path, num_blocks=20, seed=0, product="A")
    other = write_product(tmp_path, num_blocks=20, seed=1, product="B")
    assert first.counts["US"].tolist() != other.counts["US"].tolist()
    mine, theirs = everything(tmp_path / "A"), everything(tmp_path / "B")
    assert mine["US", "", "detailed_dpq"] != theirs["US", "", "detailed_dpq"]


def test_chunks_end_with_block_groups_and_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "_CHUNK_UNITS", 20)
    told = []
    product, truth, cells = write_and_watch(
        tmp_path, monkeypatch, num_blocks=150, seed=0, progress=lambda done, whole: told.append((done, whole))
    )
    files = sorted((product / "Block.parquet/DPQuery/State=050").iterdir())
    assert [file.name for file in files] == [f"part-{i:05d}.parquet" for i in range(len(files))]
    assert len(files) > 2
    groups = [{row[0][:18] for row in rows_of_file(file, "geocode")} for file in files]
    assert sum(map(len, groups)) == len(set().union(*groups))
    total = sum(cells["Block"].values())
    np.testing.assert_array_equal(truth.counts["US"][0], total)
    assert told == sorted(told)
    assert told[-1] == (150, 150)
    assert len(told) > len(files)


@pytest.mark.parametrize("shuffle", [False, True])
def test_lists_keep_their_order(tmp_path, monkeypatch, shuffle):
    """Over several threads and row groups."""
    monkeypatch.setattr(synthetic, "_ROW_GROUP", 2048)
    levels = synthetic._geography(700, 2.56, np.random.default_rng(0))
    values = np.arange(600 * 2603, dtype=np.int32).reshape(600, 2603)
    with synthetic._Writer(tmp_path, levels, 2.56, 0, 2, shuffle) as writer:
        writer.connection.execute("SET threads = 4")
        writer._write_rows(5, 0, "DPQuery", levels[5].geocodes[:600], range(11), values, {})
        starts = dict(
            zip([f"{name}_dpq" for name in QUERY_SHARES], np.cumsum(writer.sizes[:11]) - writer.sizes[:11], strict=True)
        )
    steps = "list_max(value) - list_min(value) + 1 = len(value) AND value = list_sort(value)"
    rows = rows_of(
        tmp_path, "Block", "DPQuery", f"geocode, query_name, value[1] AS first, len(value) AS size, {steps} AS ordered"
    )
    assert len(rows) == 600 * 11
    assert all(row["ordered"] for row in rows)
    place = {code: i for i, code in enumerate(levels[5].geocodes[:600])}
    assert all(row["first"] == place[row["geocode"]] * 2603 + starts[row["query_name"]] for row in rows)
    found = [row["first"] for row in rows]
    assert (found == sorted(found)) is not shuffle


def test_large_noise_takes_wider_integers(tmp_path):
    write_product(tmp_path, num_blocks=40, seed=0, rho=1e-7)
    widest = {types_of(f)["value"] for f in (tmp_path / "US_Person_PL_PROD/Block.parquet/DPQuery").rglob("*.parquet")}
    assert widest == {"INTEGER[]"}


def test_one_block(tmp_path):
    truth = write_product(tmp_path, num_blocks=1, seed=0, product="PR_Person_PL_PROD")
    assert [codes.size for codes in truth.geocodes.values()] == [1] * 5
    assert os.listdir(tmp_path / "PR_Person_PL_PROD/State.parquet/DPQuery") == ["State=050"]


def test_an_existing_product_is_left_alone(tmp_path):
    (tmp_path / "US_Person_PL_PROD").mkdir()
    with pytest.raises(ValueError, match="US_Person_PL_PROD exists already"):
        write_product(tmp_path, num_blocks=3, seed=0)
    assert list((tmp_path / "US_Person_PL_PROD").iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_of_an_interrupted_run(tmp_path, monkeypatch, error):
    calls = []

    def interrupted(self, depth, *_):
        calls.append(depth)
        if depth < 5:
            raise error
        return write(self, depth, *_)

    write = synthetic._Writer.unit_rows
    monkeypatch.setattr(synthetic._Writer, "unit_rows", interrupted)
    with pytest.raises(error):
        write_product(tmp_path / "new", num_blocks=5, seed=0)
    assert calls[0] == 5
    assert list((tmp_path / "new").iterdir()) == []


def test_quotes_in_paths(tmp_path):
    write_product(tmp_path / "it's", num_blocks=2, seed=0, product="a 'product'")
    assert (tmp_path / "it's/a 'product'/US.parquet/DPQuery/part-00000.parquet").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_blocks", value) for value in (0, -1, True, 1_000_001)),
        *(("seed", value) for value in (-1, True)),
        *(("num_parts", value) for value in (0, True)),
        *(("rho", value) for value in (0, -1, float("nan"), None, "a", 20)),
        *(("product", value) for value in ("", "a/b", "..")),
    ],
)
def test_bad_arguments_are_named(tmp_path, name, value):
    with pytest.raises(ValueError, match=name):
        write_product(tmp_path / "new", **{"num_blocks": 10, "seed": 0, name: value})
    assert list(tmp_path.iterdir()) == []
