"""The hierarchy of regions: order, names that occur twice, what is wrong with a table."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dpinfer import RegionTree

HIERARCHY = {
    "region": ["r1", "r2", "r3", "r4"],
    "level_0": ["US"] * 4,
    "level_1": ["B", "A", "B", "C"],
    "level_2": [10, 9, 2, 9],
}


def test_labels_are_in_order():
    tree, leaf_of = RegionTree.from_table(HIERARCHY)
    assert tree.labels(0) == ["US"]
    assert tree.labels(1) == ["A", "B", "C"]
    assert tree.labels(2) == [2, 9, 9, 10]
    # Two are called 9, and are told apart by what is above them.
    assert tree.paths(2) == [("US", "B", 2), ("US", "A", 9), ("US", "C", 9), ("US", "B", 10)]
    assert tree.parents[2].tolist() == [1, 0, 2, 1]
    assert tree.parents[0].tolist() == [0]
    assert [tree.size(level) for level in range(3)] == [1, 3, 4]
    assert leaf_of == {"r1": 3, "r2": 1, "r3": 0, "r4": 2}
    assert [level.tolist() for level in tree.sums([1, 20, 300, 4000])] == [[4321], [20, 4001, 300], [1, 20, 300, 4000]]
    assert tree.sums(np.ones((4, 2)))[0].tolist() == [[4.0, 4.0]]
    with pytest.raises(ValueError, match="each of the 4 lowest regions"):
        tree.sums([1, 2])
    assert RegionTree(tree.paths(2)) == tree
    assert RegionTree(np.array([[1], [2]])).labels(0) == [1, 2]
    assert hash(RegionTree(tree.paths(2))) == hash(tree)
    assert RegionTree([("x",)]) != tree
    assert repr(tree) == "RegionTree(1 x 3 x 4 nodes)"


def test_codes_with_zeros_in_front_are_texts():
    tree, _ = RegionTree.from_table({"region": [1, 2, 3], "level_0": ["US"] * 3, "level_1": ["010", "9", "02"]})
    assert tree.labels(1) == ["010", "02", "9"]


def test_any_table(tmp_path):
    pd.DataFrame(HIERARCHY).to_csv(tmp_path / "hierarchy.csv", index=False)
    pd.DataFrame(HIERARCHY).to_parquet(tmp_path / "hierarchy.parquet")
    expected = RegionTree.from_table(HIERARCHY)
    tables = [pd.DataFrame(HIERARCHY), pl.DataFrame(HIERARCHY).lazy(), pl.DataFrame(HIERARCHY).to_arrow()]
    for table in [*tables, tmp_path / "hierarchy.csv", str(tmp_path / "hierarchy.parquet")]:
        assert RegionTree.from_table(table) == expected


def test_several_regions_of_one_leaf():
    tree, leaf_of = RegionTree.from_table({"region": ["a", "b", "a"], "level_0": ["x", "x", "x"]})
    assert tree.labels(0) == ["x"]
    assert leaf_of == {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"region": None}, "columns region, level_0"),
        ({"level_1": None}, "without a gap"),
        ({"level_0": None, "level_1": None, "level_2": None}, "columns region, level_0"),
        ({"level_1": ["A", None, "B", "C"]}, "no level_1 in row 2"),
        ({"region": ["r1", "r1", "r3", "r4"]}, "'r1' in two places"),
        ({"region": [], "level_0": [], "level_1": [], "level_2": []}, "at least one region"),
    ],
)
def test_what_is_wrong_with_a_table(change, message):
    table = {name: column for name, column in (HIERARCHY | change).items() if column is not None}
    with pytest.raises(ValueError, match=message):
        RegionTree.from_table(table)


def test_what_is_wrong_with_paths_and_levels():
    for paths in ([], [("a",), ("a", "b")], [("a",), ("a",)], ["CA", "NY"], "CA", [1, 2], [("a", None)], [("a", 0.5)]):
        with pytest.raises(ValueError, match="leaf_paths"):
            RegionTree(paths)
    with pytest.raises(ValueError, match="level must be from 0"):
        RegionTree([("a",)]).labels(1)
    with pytest.raises(ValueError, match="table must map"):
        RegionTree.from_table(7)
