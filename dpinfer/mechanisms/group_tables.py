"""From private records to how many groups of each size there are in each region.

An entity counts once, in its group, or not at all: if its group is null or not among the groups, or its own name is null. Of
several rows with the same entity the first counts. So one entity more or less changes the size of one group by one; nothing
else depends on the entities, and no value of theirs raises.
"""

from typing import Any, NamedTuple

import numpy as np

from dpinfer import tables
from dpinfer.axes.categories import key_texts
from dpinfer.regions import RegionTree


class Groups(NamedTuple):
    """Attributes:
    regions: public.
    leaves: int64 [groups], the lowest region of each group.
    sizes: private; int64 [groups], how many entities each has.
    """

    regions: RegionTree
    leaves: np.ndarray
    sizes: np.ndarray


def count_groups(entities: Any, groups: Any, hierarchy: Any, *, private_groups: bool) -> Groups:
    """The size and the region of every group; groups without entities have size 0.

    Args:
        entities: private; rows with the columns entity and group.
        groups: rows with the columns group and region; public, or with ``private_groups`` private: then of several rows with the
            same group the first counts, and one without a group, or in no region of the hierarchy, not at all.
        hierarchy: public; see :meth:`RegionTree.from_table`.
    """
    regions, leaf_of = RegionTree.from_table(hierarchy)
    names, leaves = _keys(groups, ("group", "region"), "groups")
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
    return Groups(regions, np.array(where, dtype=np.int64), _sizes(entities, places))


def _check_public(row: int, name: Any, region: Any, leaf: int | None, leaf_before: int | None) -> None:
    if name is None or region is None:
        raise ValueError(f"groups has no {'group' if name is None else 'region'} in row {row + 1}.")
    if leaf is None:
        raise ValueError(f"groups has group {name!r} in region {region!r}, which hierarchy does not have.")
    if leaf != leaf_before:
        raise ValueError(f"groups has group {name!r} in two regions, {region!r} and another: a group has one place.")


def _keys(table: Any, names: tuple[str, ...], argument: str) -> list[np.ndarray]:
    _check_columns(table, names, argument)
    parts = [[key_texts(column) for column in chunk] for chunk in tables.chunks(table, names)]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _check_columns(table: Any, names: tuple[str, ...], argument: str) -> None:
    # What columns there are instead is not shown: without a header, the first line of a file is a record.
    present = tables.column_names(table)
    if any(name not in present for name in names):
        raise ValueError(f"{argument} must have the columns {' and '.join(names)}.")


def _sizes(entities: Any, places: dict[str, int]) -> np.ndarray:
    _check_columns(entities, ("entity", "group"), "entities")
    sizes = np.zeros(len(places), dtype=np.int64)
    seen: set[str] = set()
    for names, groups in tables.chunks(entities, ("entity", "group")):
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
