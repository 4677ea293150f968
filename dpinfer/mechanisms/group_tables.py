"""From private records to how many groups of each size there are in each region.

An entity counts once, in its group, or not at all: if its group is null or not among the groups, or its own name is null. Of
several rows with the same entity the first counts. So one entity more or less changes the size of one group by one; nothing
else depends on the entities, and no value of theirs raises.
"""

from typing import Any, NamedTuple

import numpy as np

from dpinfer import tables
from dpinfer.axes.categories import key_texts
from dpinfer.mechanisms.group_files import GroupCounter, is_large
from dpinfer.regions import RegionTree

_ENTITIES, _GROUPS = ("entity", "group"), ("group", "region")


class Groups(NamedTuple):
    """How many groups of each size each lowest region has, in runs by region and size upward.

    Attributes:
        regions: public.
        leaves: private, as are the others; int64 [runs], the lowest region of each run.
        sizes: int64 [runs], how many entities each group of the run has; none twice in a region.
        counts: int64 [runs], how many groups it has, at least one.
    """

    regions: RegionTree
    leaves: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray


def count_groups(entities: Any, groups: Any, hierarchy: Any, *, private_groups: bool, memory_limit: int = 1 << 30) -> Groups:
    """How many groups there are of each size, those without entities too.

    Args:
        entities: private; rows with the columns entity and group.
        groups: rows with the columns group and region; public, or with ``private_groups`` private: then of several rows with the
            same group the first counts, and one without a group, or in no region of the hierarchy, not at all.
        hierarchy: public; see :meth:`RegionTree.from_table`.
        memory_limit: bytes for DuckDB, where ``entities`` is a Parquet file or a relation.
    """
    regions, leaf_of = RegionTree.from_table(hierarchy)
    _check_columns(groups, _GROUPS, "groups")
    _check_columns(entities, _ENTITIES, "entities")
    if is_large(entities):
        with GroupCounter(memory_limit) as counter:
            counter.place_groups(groups, leaf_of)
            if not private_groups:
                counter.check_public(_check_public)
            return Groups(regions, *counter.sizes(entities))
    names, leaves = _keys(groups)
    places: dict[str, int] = {}
    where: list[int] = []
    for row, (name, region) in enumerate(zip(names.tolist(), leaves.tolist(), strict=True)):
        leaf = leaf_of.get(region) if region is not None else None
        if not private_groups:
            _check_public(row, name, region, leaf, where[places[name]] if name in places else leaf)
        if name is None or leaf is None or name in places:
            continue
        places[name] = len(where)
        where.append(leaf)
    pairs = np.stack([np.array(where, dtype=np.int64), _sizes(entities, places)])
    (of_leaf, of_size), counts = np.unique(pairs, axis=1, return_counts=True)
    return Groups(regions, of_leaf, of_size, counts)


def _check_public(row: int, name: Any, region: Any, leaf: int | None, leaf_before: int | None) -> None:
    if name is None or region is None:
        raise ValueError(f"groups has no {'group' if name is None else 'region'} in row {row + 1}.")
    if leaf is None:
        raise ValueError(f"groups has group {name!r} in region {region!r}, which hierarchy does not have.")
    if leaf != leaf_before:
        raise ValueError(f"groups has group {name!r} in two regions, {region!r} and another: a group has one place.")


def _keys(groups: Any) -> list[np.ndarray]:
    parts = [[key_texts(column) for column in chunk] for chunk in tables.chunks(groups, _GROUPS)]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _check_columns(table: Any, names: tuple[str, ...], argument: str) -> None:
    # What columns there are instead is not shown: without a header, the first line of a file is a record.
    present = tables.column_names(table)
    if any(name not in present for name in names):
        raise ValueError(f"{argument} must have the columns {' and '.join(names)}.")


def _sizes(entities: Any, places: dict[str, int]) -> np.ndarray:
    sizes = np.zeros(len(places), dtype=np.int64)
    seen: set[str] = set()
    for names, groups in tables.chunks(entities, _ENTITIES):
        found = np.array([places.get(text, -1) for text in key_texts(groups).tolist()], dtype=np.int64)
        found = found[_are_new(key_texts(names), seen)]
        sizes += np.bincount(found[found >= 0], minlength=sizes.size)
    return sizes


def _are_new(names: np.ndarray, seen: set[str]) -> np.ndarray:
    """Which names are there for the first time; a null is none."""
    new = np.zeros(names.size, dtype=bool)
    for row, name in enumerate(names.tolist()):
        if name is not None and name not in seen:
            seen.add(name)
            new[row] = True
    return new
