"""Releases of count-of-counts histograms: what an entity changes, by enumeration of all tables; the law of the noise; tables."""

import os
import stat
import tempfile
import uuid
from dataclasses import replace
from datetime import datetime, tzinfo
from fractions import Fraction
from itertools import product
from pathlib import Path

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import stats

import dpinfer as dp
from dpinfer.axes.categories import key_texts
from dpinfer.inference import consistent_count_of_counts
from dpinfer.mechanisms import CountOfCounts, count_of_counts, count_of_counts_from_histograms
from dpinfer.mechanisms.group_files import GroupCounter
from dpinfer.mechanisms.group_tables import count_groups
from dpinfer.noise import exact

HIERARCHY = {"region": ["x", "y"], "level_0": ["US", "US"], "level_1": ["CA", "NY"]}
GROUPS = {"group": ["a", "b", "c"], "region": ["x", "x", "y"]}


def people(groups):
    return {"entity": range(len(groups)), "group": list(groups)}


def runs_of(found):
    return list(zip(found.leaves.tolist(), found.sizes.tolist(), found.counts.tolist(), strict=True))


@pytest.fixture
def without_noise(monkeypatch):
    monkeypatch.setattr(exact, "discrete_laplace", lambda scales, rows, **_: np.zeros(rows.size, dtype=np.int64))


def answers(release):
    """What the release would answer without noise, each with its scale: a flat list."""
    found = []
    for level in release.levels:
        for name, array in level.arrays.items():
            found += [(int(value), level.scales[name]) for value in array.ravel()]
    return found


def loss(first, second):
    """How much more likely one output can be under one of two tables: the sum of |difference| / scale, exact."""
    pairs = zip(answers(first), answers(second), strict=True)
    return sum((Fraction(abs(one - other)) / scale for (one, scale), (other, _) in pairs), Fraction(0))


@pytest.mark.parametrize("method", ["H_c", "H_g", "fusion", "naive", "naive x H_c"])
def test_one_entity_loses_epsilon_by_enumeration(without_noise, method):
    # All tables of up to three entities in three groups of two regions; sizes are cut off at 2.
    tables = {groups: None for size in range(4) for groups in product("abc", repeat=size) if sorted(groups) == list(groups)}
    options = {"epsilon": 0.75, "max_size": 2, "method": method, "keep_sizes": True}
    for neighbors in ("add_remove", "replace_one"):
        releases = {
            groups: count_of_counts(people(groups), GROUPS, HIERARCHY, neighbors=neighbors, **options) for groups in tables
        }
        largest = Fraction(0)
        for groups in tables:
            for new in "abc":
                for place in range(len(groups)) if neighbors == "replace_one" else [None]:
                    rest = groups if place is None else groups[:place] + groups[place + 1 :]
                    other = tuple(sorted((*rest, new)))
                    if other in releases:
                        largest = max(largest, loss(releases[groups], releases[other]))
        # Reached: no noise is wasted.
        assert largest == Fraction(3, 4)
        assert all(release.epsilon == Fraction(3, 4) for release in releases.values())


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_private_groups_lose_epsilon_by_enumeration(without_noise, neighbors):
    # Up to three groups of sizes 0 to 3 in one region; one entity of a group that there is, or an empty group, more.
    hierarchy = {"region": ["x"], "level_0": ["US"]}

    def released(sizes):
        groups = {"group": [f"g{i}" for i in range(len(sizes))], "region": ["x"] * len(sizes)}
        entities = people([f"g{i}" for i, size in enumerate(sizes) for _ in range(size)])
        return count_of_counts(entities, groups, hierarchy, epsilon=2, max_size=2, private_groups=True, neighbors=neighbors)

    def one_more(sizes):
        return [(*sizes, 0), *(tuple(s + (i == j) for j, s in enumerate(sizes)) for i in range(len(sizes)))]

    def all_sizes():
        return [sizes for number in range(4) for sizes in product(range(3), repeat=number)]

    largest = Fraction(0)
    for sizes in all_sizes():
        if len(sizes) < 3:
            before = released(sizes)
            assert before.num_groups is None
            for other in one_more(sizes):
                for after in [other] if neighbors == "add_remove" else [x for x in all_sizes() if other in one_more(x)]:
                    largest = max(largest, loss(before, released(after)))
    assert largest == 2
    # The tails are the number of groups, and of those larger than 0, 1.
    assert released((0, 2, 3)).levels[0].arrays["tails"].tolist() == [[3, 2, 2]]


def noise_law(scale, drawn):
    """The p-value of a chi-square test against the discrete Laplace law."""
    p = np.exp(-1 / float(scale))
    width = max(2, int(2 * float(scale)))
    edges = np.arange(-width, width + 1)
    inner = (1 - p) / (1 + p) * p ** np.abs(edges)
    tail = p ** (width + 1) / (1 + p)
    observed = [(drawn < -width).sum(), *((drawn == k).sum() for k in edges), (drawn > width).sum()]
    return stats.chisquare(observed, drawn.size * np.array([tail, *inner, tail])).pvalue


@pytest.mark.parametrize("people", [0, 1])
def test_an_empty_and_a_one_person_hierarchy_are_noisy(people, monkeypatch):
    monkeypatch.setattr(os, "urandom", np.random.default_rng(people).bytes)
    # 1,000 groups without anybody, or with one person in one of them.
    groups = {"group": np.arange(1000), "region": np.where(np.arange(1000) < 600, "x", "y")}
    entities = {"entity": np.arange(people), "group": np.full(people, 7)}
    truth = np.array([[600 - people, *[600] * 1999], [400] * 2000])
    for method, name, scale in (("H_c", "cumulative", 2), ("fusion", "cumulative", 4), ("naive", "histogram", 4)):
        release = count_of_counts(entities, groups, HIERARCHY, epsilon=1, max_size=2000, method=method)
        assert release.levels[1].scales[name] == scale
        noisy = release.levels[1].arrays[name]
        exactly = truth if name == "cumulative" else np.diff(truth, axis=1, prepend=0, append=truth[:, -1:])
        assert noise_law(scale, (noisy - exactly).ravel()) > 1e-3
    release = count_of_counts(entities, groups, HIERARCHY, epsilon=1, max_size=2000, method="H_g", keep_sizes=True)
    exactly = np.array([0] * (600 - people) + [1] * people + [0] * 400)
    assert noise_law(2, release.levels[1].arrays["sizes"] - exactly) > 1e-3
    private = count_of_counts(entities, groups, HIERARCHY, epsilon=1, max_size=2000, private_groups=True)
    tails = np.concatenate([truth[:, -1:], truth[:, -1:] - truth], axis=1)
    assert noise_law(2, (private.levels[1].arrays["tails"] - tails).ravel()) > 1e-3


@pytest.mark.slow
def test_whichever_table_gives_the_same_counts(tmp_path):
    entities = {"entity": [1, 2, 3, 4, 2, 6, 7, None, 9], "group": ["a", "b", "b", "c", "a", "zz", None, "a", " b "]}
    pd.DataFrame(entities).to_csv(tmp_path / "entities.csv", index=False)
    pd.DataFrame(GROUPS).to_parquet(tmp_path / "groups.parquet")
    pl.DataFrame(entities).write_parquet(tmp_path / "entities.parquet")
    tables = [entities, pd.DataFrame(entities), pl.DataFrame(entities), pl.DataFrame(entities).lazy(), tmp_path / "entities.csv"]
    relation = duckdb.from_arrow(pl.DataFrame(entities).to_arrow())
    for table in (*tables, tmp_path / "entities.parquet", relation, nw.from_native(relation)):
        for groups in (GROUPS, pl.DataFrame(GROUPS), tmp_path / "groups.parquet"):
            found = count_groups(table, groups, HIERARCHY, private_groups=False)
            # The second row of entity 2, those of no listed group and the one without a name do not count.
            assert runs_of(found) == [(0, 1, 1), (0, 3, 1), (1, 1, 1)]
    # Numbers are told apart by what they are worth, however they are spelled.
    numbered = {"group": [1, 2], "region": ["x", "y"]}
    for column in ([1, 2, 2], ["1", "2.0", " 2 "], [1.0, 2.0, 2.0], np.array([1, 2, 2], dtype=np.uint8)):
        entities = {"entity": range(3), "group": column}
        assert runs_of(count_groups(entities, numbered, HIERARCHY, private_groups=False)) == [(0, 1, 1), (1, 2, 1)]
    names = [uuid.UUID(int=1), True, "NA"]
    pd.DataFrame({"entity": [1, 2, 3], "group": [str(names[0]), "true", "NA"]}).to_parquet(tmp_path / "entities.parquet")
    named = {"group": names, "region": ["x", "y", "y"]}
    found = count_groups(tmp_path / "entities.parquet", named, HIERARCHY, private_groups=False)
    assert runs_of(found) == [(0, 1, 1), (1, 1, 2)]


# Names that are the same though spelled differently, or not though alike; in columns of all types that files have.
NAMES = [
    "1",
    " 1",
    "1.0",
    "01",
    "1.50",
    "-0",
    "true",
    "TRUE",
    "False ",
    "NA",
    "nan",
    "",
    " ",
    None,
    "a b",
    "\u2003é",
    'x\n"y',
    "ab",
    "1e3",
]
COLUMNS = {
    "texts": pl.Series(NAMES),
    "numbers": pl.Series([1.0, 2.0, -0.0, 1.5, float("nan"), float("inf"), None, 1e300, 1000.0]),
    "singles": pl.Series([1.0, 2.0, 0.1, 1.5, None], dtype=pl.Float32),
    "booleans": pl.Series([True, False, None]),
    "integers": pl.Series([1, 2, 0, 1000, None]),
    "bytes": pl.Series([1, 2, 0, None], dtype=pl.UInt8),
    "largest": pl.Series([1, 2**64 - 1, None], dtype=pl.UInt64),
    "decimals": pl.Series(["1.00", "1.50", "1000.00", None]).cast(pl.Decimal(10, 2)),
    "blobs": pl.Series([b"1", b"ab", b"\xff", None]),
}


@pytest.mark.slow
@pytest.mark.parametrize("of_entities", COLUMNS)
def test_files_give_the_counts_that_frames_give(tmp_path, of_entities):
    generator = np.random.default_rng(len(of_entities))
    kind = COLUMNS[of_entities]
    for of_groups, is_private in ((of_entities, False), (of_entities, True), ("texts", True), ("integers", False)):
        entities = pl.DataFrame(
            {"entity": kind[generator.integers(0, len(kind), 60)], "group": kind[generator.integers(0, len(kind), 60)]}
        )
        # Every second name is the entity's own, so that more than the first few count.
        entities = pl.concat(
            [entities, entities.with_columns(entity=pl.Series(range(60)).cast(pl.String))], how="vertical_relaxed"
        )
        entities.write_parquet(tmp_path / "entities.parquet")
        groups = pl.DataFrame({"group": COLUMNS[of_groups], "region": generator.choice(["x", "y"], len(COLUMNS[of_groups]))})
        if not is_private:
            keys = key_texts(groups["group"].to_numpy() if of_groups in ("numbers", "singles") else groups["group"].to_list())
            groups = groups.filter(pl.Series([key is not None and key not in keys[:i] for i, key in enumerate(keys)]))
        groups.write_parquet(tmp_path / "groups.parquet")
        expected = count_groups(entities, groups, HIERARCHY, private_groups=is_private)
        assert expected.sizes.max() > 0 or of_groups != of_entities
        for table in (groups, tmp_path / "groups.parquet"):
            found = count_groups(tmp_path / "entities.parquet", table, HIERARCHY, private_groups=is_private)
            assert runs_of(found) == runs_of(expected)


@pytest.mark.slow
def test_more_entities_than_memory_holds(tmp_path, monkeypatch):
    aside = tmp_path / "aside"
    aside.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(aside))
    # 300,000 people whose names take 32 characters each, in 100,000 households, counted in 64 MiB. Every name comes twice.
    entities, groups = tmp_path / "entities.parquet", tmp_path / "groups.parquet"
    for path, query in (
        (
            entities,
            'md5((range % 300000)::VARCHAR) AS entity, if(range < 300000, range * 7 % 100000, 5) AS "group" FROM range(600000)',
        ),
        (groups, "range AS \"group\", if(range % 2 = 0, 'y', 'x') AS region FROM range(100001)"),
    ):
        duckdb.execute(f"COPY (SELECT {query}) TO '{path}' (FORMAT parquet)")
    found = count_groups(entities, groups, HIERARCHY, private_groups=False, memory_limit=64 << 20)
    sizes = np.bincount(np.arange(300_000) * 7 % 100_000, minlength=100_001)
    runs, counts = np.unique([np.arange(100_001) % 2 == 0, sizes], axis=1, return_counts=True)
    assert runs_of(found) == list(zip(*runs.tolist(), counts.tolist(), strict=True))
    with pytest.raises(ValueError, match="memory_limit is too small"):
        count_groups(entities, groups, HIERARCHY, private_groups=False, memory_limit=1 << 20)
    # What was put aside is gone.
    assert list(aside.iterdir()) == []


def test_what_is_put_aside_is_the_owners(monkeypatch):
    seen = []
    run = GroupCounter.sizes

    def look(self, entities):
        folder = Path(self._folder.name)
        seen.append(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        return run(self, entities)

    monkeypatch.setattr(GroupCounter, "sizes", look)
    count_groups(duckdb.from_arrow(pl.DataFrame(people("ab")).to_arrow()), GROUPS, HIERARCHY, private_groups=False)
    assert not seen[0].exists()


@pytest.mark.slow
def test_public_tables_are_checked_and_private_ones_are_not(tmp_path):
    entities = people("a")
    pl.DataFrame(entities).write_parquet(tmp_path / "entities.parquet")
    for change, message in (
        ({"region": ["x", "x", "z"]}, "'c' in region 'z', which hierarchy does not have"),
        ({"group": ["a", "b", "a"]}, "'a' in two regions"),
        ({"group": ["a", None, "c"]}, "no group in row 2"),
        ({"region": ["x", None, "y"]}, "no region in row 2"),
    ):
        pl.DataFrame(GROUPS | change).write_parquet(tmp_path / "groups.parquet")
        for people_of in (entities, tmp_path / "entities.parquet"):
            for groups in (GROUPS | change, tmp_path / "groups.parquet"):
                with pytest.raises(ValueError, match=message):
                    count_of_counts(people_of, groups, HIERARCHY, epsilon=1, max_size=3)
                # The same are passed over without a word if the table is private.
                count_of_counts(people_of, groups, HIERARCHY, epsilon=1, max_size=3, private_groups=True)
    # Twice the same says nothing new.
    twice = {"group": ["a", "a"], "region": ["x", "x"]}
    for people_of in (entities, tmp_path / "entities.parquet"):
        assert runs_of(count_groups(people_of, twice, HIERARCHY, private_groups=False)) == [(0, 1, 1)]
    for groups, some in ((GROUPS, {"entity": [1]}), ({"group": ["a"]}, entities), (GROUPS, {"group": ["a"]})):
        with pytest.raises(ValueError, match="must have the columns"):
            count_of_counts(some, groups, HIERARCHY, epsilon=1, max_size=3)
    times = {"entity": [1], "group": np.array(["2020-01-01"], dtype="datetime64[s]")}
    with pytest.raises(ValueError, match="got a column of dtype datetime64"):
        count_of_counts(times, GROUPS, HIERARCHY, epsilon=1, max_size=3)


def test_a_first_line_that_is_a_record_is_not_shown(tmp_path):
    (tmp_path / "entities.csv").write_text("Alice Secret,a\nBob,b\n")
    with pytest.raises(ValueError, match="columns entity and group") as caught:
        count_of_counts(tmp_path / "entities.csv", GROUPS, HIERARCHY, epsilon=1, max_size=3)
    assert "Alice" not in str(caught.value)


def test_nothing_of_the_entities_raises():
    class Odd:
        def __float__(self):
            return 1.5

        def __str__(self):
            raise KeyError("secret")

    names = [object(), {}, b"\xff", float("nan"), 2**80, Fraction(10**5000 + 1, 10**5000), Odd(), pd.NaT]
    groups = ["a", [1], b"b", float("inf"), 2**80, datetime(2020, 1, 1, tzinfo=tzinfo()), Odd(), "c"]
    for odd in ({"entity": names, "group": groups}, {"entity": groups, "group": names}):
        release = count_of_counts(odd, GROUPS, HIERARCHY, epsilon=1, max_size=3)
        assert release.levels[0].arrays["cumulative"].shape == (1, 3)
    count_of_counts({"entity": np.zeros(0), "group": np.zeros(0)}, GROUPS, HIERARCHY, epsilon=1, max_size=3)
    nobody = {"group": [], "region": []}
    release = count_of_counts(people("a"), nobody, HIERARCHY, epsilon=1, max_size=3)
    assert np.array_equal(np.asarray(release.num_groups), [0, 0])


def test_more_groups_than_fit(without_noise):
    # Private numbers of groups are cut off where they are summed, so that a step stays a step.
    regions, most = dp.RegionTree([("x",)]), 2**31
    for cells, other in (([[0, most, 0]], [[0, most - 1, 1]]), ([[0, 2**62, 2**62]], [[0, 2**62 - 1, 2**62 + 1]])):
        releases = [count_of_counts_from_histograms(np.array(c), regions, epsilon=1, private_groups=True) for c in (cells, other)]
        assert loss(*releases) <= 1
    with pytest.raises(ValueError, match=r"less than 2\*\*31 groups"):
        count_of_counts_from_histograms(np.array([[0, most, 0]]), regions, epsilon=1)
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.uint64):
        release = count_of_counts_from_histograms(np.array([[3, 100]], dtype=dtype), regions, epsilon=1)
        assert release.levels[0].arrays["cumulative"].tolist() == [[3]]
    listed = count_of_counts_from_histograms(
        [[1, 2**70], [-5, 1]], dp.RegionTree([("x",), ("y",)]), epsilon=1, private_groups=True
    )
    assert listed.levels[0].arrays["tails"].tolist() == [[most, most], [1, 1]]


def test_an_estimated_largest_size(monkeypatch):
    entities = people("aaaaaaacc")
    asked = []

    def drawn(scales, rows, **_):
        asked.append((scales[0], rows.size))
        return np.full(rows.size, -5 if len(asked) == 1 else 0)

    monkeypatch.setattr(exact, "discrete_laplace", drawn)
    ledger = dp.Ledger(epsilon=3)
    release = count_of_counts(
        entities, GROUPS, HIERARCHY, epsilon=2, max_size=1000, max_size_epsilon=Fraction(1, 2), ledger=ledger
    )
    # 7 - 5 + ceil(5 sqrt(2) 2): the noise of scale 2 comes first.
    assert release.max_size == 7 - 5 + 15
    assert asked == [(2, 1), (1, 17), (1, 2 * 17)]
    assert release.epsilon == ledger.spent == Fraction(5, 2)
    assert release.max_size_epsilon == Fraction(1, 2)
    for cap, expected in ((9, 9), (1, 1)):
        asked.clear()
        assert count_of_counts(entities, GROUPS, HIERARCHY, epsilon=2, max_size=cap, max_size_epsilon=1).max_size == expected
    # P(it is too small), with the scale 1 / epsilon: footnote 6 has 1 - exp(-5 sqrt(2)) / 2.
    for epsilon in (1e-4, 1.0):
        offset = np.ceil(5 * np.sqrt(2) / epsilon)
        assert 1 - np.exp(-epsilon * (offset + 1)) / (1 + np.exp(-epsilon)) >= 0.99957


def test_budgets_levels_and_files(tmp_path):
    hierarchy = {"region": ["x", "y", "z"], "level_0": ["US"] * 3, "level_1": ["B", "A", "A"], "level_2": ["b", "a", "c"]}
    groups = {"group": list("pqrs"), "region": ["x", "y", "y", "z"]}
    entities = {"entity": range(6), "group": list("ppqqqs")}
    release = count_of_counts(
        entities, groups, hierarchy, level_epsilons=[0, 0.1, 0.2], max_size=4, method="H_g x fusion x H_c", keep_sizes=True
    )
    assert release.epsilon == Fraction(3, 10)
    assert [level.method for level in release.levels] == ["H_g", "fusion", "H_c"]
    assert release.levels[0].arrays == {}
    assert release.levels[1].scales == {"cumulative": 20, "sizes": 20}
    assert release.levels[2].arrays["cumulative"].shape == (3, 4)
    assert np.array_equal(np.asarray(release.num_groups), [2, 1, 1])
    release.save(tmp_path / "release.npz")
    again = CountOfCounts.load(tmp_path / "release.npz")
    assert (again.regions, again.epsilon, again.max_size, again.neighbors) == (release.regions, release.epsilon, 4, "add_remove")
    assert [level.scales for level in again.levels] == [level.scales for level in release.levels]
    for level in range(3):
        assert (consistent_count_of_counts(again).level(level) == consistent_count_of_counts(release).level(level)).all()
    private = count_of_counts(entities, groups, hierarchy, epsilon=1, max_size=4, max_size_epsilon=1, private_groups=True)
    private.save(tmp_path / "release.npz")
    again = CountOfCounts.load(tmp_path / "release.npz")
    assert again.num_groups is None
    assert again.max_size_epsilon == 1
    with pytest.raises(ValueError, match="is no dpinfer release of sorted counts"):
        dp.mechanisms.SortedCounts.load(tmp_path / "release.npz")
    unmeasured = replace(private.levels[-1], arrays={})
    for levels in ((), (*private.levels[:-1], unmeasured)):
        replace(private, levels=levels).save(tmp_path / "damaged.npz")
        with pytest.raises(ValueError, match="damaged"):
            CountOfCounts.load(tmp_path / "damaged.npz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Exactly one of epsilon= and level_epsilons="),
        ({"epsilon": 1, "level_epsilons": [1, 1]}, "Exactly one of epsilon= and level_epsilons="),
        ({"level_epsilons": [1, 0]}, "lowest level a budget"),
        ({"level_epsilons": [1, 1, 1]}, "one entry for each of the 2 levels"),
        ({"epsilon": 1, "method": ["H_c"] * 3}, "one entry for each of the 2 levels"),
        ({"epsilon": 1, "method": "H_d"}, "method must be one of"),
        ({"epsilon": 1, "method": "H_c x H_g", "private_groups": True}, "method must be 'H_c' if groups are private"),
        ({"epsilon": 1, "max_size": 0}, "max_size must be at least 1"),
        ({"epsilon": 1, "max_size": 2**31}, r"max_size must be less than 2\*\*31"),
        ({"epsilon": 1e-14}, "epsilon is too small"),
        ({"level_epsilons": [1, 1e-14]}, "level_epsilons is too small"),
        ({"epsilon": 1, "max_size_epsilon": 1e-14}, "max_size_epsilon is too small"),
        ({"epsilon": 1, "max_size_epsilon": 0}, "max_size_epsilon must be positive"),
        ({"epsilon": 1, "neighbors": "swap"}, "neighbors must be one of"),
    ],
)
def test_what_is_refused(options, message):
    ledger = dp.Ledger(epsilon=10)
    with pytest.raises(ValueError, match=message):
        count_of_counts(people("a"), GROUPS, HIERARCHY, ledger=ledger, **({"max_size": 3} | options))
    assert ledger.spent == 0


def test_histograms_are_checked():
    regions = dp.RegionTree([("x",), ("y",)])
    for cells, message in (
        (np.zeros((3, 2), int), "2 lowest regions"),
        (np.zeros((2, 2)), "must be integers"),
        (np.zeros((2, 1), int), "at least 2 sizes"),
        ([[1, 2], [3]], "rows of one length"),
    ):
        with pytest.raises(ValueError, match=message):
            count_of_counts_from_histograms(cells, regions, epsilon=1)
    # Larger sizes than max_size count as that.
    cells = np.array([[0, 1, 2, 3], [0, 0, 0, 4]])
    release = count_of_counts_from_histograms(cells, regions, epsilon=1000, max_size=2)
    assert consistent_count_of_counts(release).level(0).tolist() == [[0, 1, 5], [0, 0, 4]]
