"""Regions within regions: the public hierarchy over which groups are counted."""

from numbers import Integral
from typing import Any, final

import numpy as np

from dpinfer import tables
from dpinfer.axes.categories import key_texts

Label = str | int


@final
class RegionTree:
    """Nodes on levels, the top first. A node is known by its labels from the top down to it; those of a level stand in the order
    of their labels (numbers by size, texts by their characters), and where two have the same label in that of the labels above.

    Attributes:
        num_levels: how many there are.
        parents: for each level int64 [nodes], the index of each node's parent on the level above; of the top all 0.
    """

    def __init__(self, leaf_paths: Any):
        """The tree with these lowest nodes, each given by its labels from the top down, all of them different."""
        if isinstance(leaf_paths, str) or any(isinstance(path, str) or not hasattr(path, "__iter__") for path in leaf_paths):
            raise ValueError("leaf_paths must hold paths, a tuple of labels each, from the top down.")
        paths = [tuple(_label(label) for label in path) for path in leaf_paths]
        if not paths or len({len(path) for path in paths}) > 1 or not paths[0]:
            raise ValueError("leaf_paths must hold at least one path, all with a label for each level.")
        if len(set(paths)) < len(paths):
            raise ValueError("leaf_paths must all be different.")
        self.num_levels = len(paths[0])
        self._paths = [
            sorted({path[: level + 1] for path in paths}, key=lambda path: [_order(label) for label in (path[-1], *path)])
            for level in range(self.num_levels)
        ]
        places = [{path: place for place, path in enumerate(level)} for level in self._paths]
        self.parents = [np.zeros(len(self._paths[0]), dtype=np.int64)] + [
            np.array([places[level - 1][path[:-1]] for path in self._paths[level]], dtype=np.int64)
            for level in range(1, self.num_levels)
        ]

    @staticmethod
    def from_table(hierarchy: Any) -> "tuple[RegionTree, dict[str, int]]":
        """The tree of a public table with the columns region, level_0 (the top), level_1, ..., and the leaf of each region.

        Args:
            hierarchy: one row a region; any table that :func:`dpinfer.count` reads. Regions with the same labels on all levels
                are one leaf.

        Raises:
            ValueError: if a column is missing, a field is empty, or a region is in two places.
        """
        names = tables.column_names(hierarchy)
        num_levels = sum(name.startswith("level_") for name in names)
        levels = tuple(f"level_{level}" for level in range(num_levels))
        if not num_levels or any(name not in names for name in ("region", *levels)):
            # What columns there are instead is not shown, in case it is the first record of another file.
            raise ValueError("hierarchy must have the columns region, level_0, level_1, ... without a gap.")
        parts = list(tables.chunks(hierarchy, ("region", *levels)))
        regions, *labels = (np.concatenate([key_texts(part[i]) for part in parts]) for i in range(1 + num_levels))
        for name, texts in zip(("region", *levels), (regions, *labels), strict=True):
            empty = [row for row, text in enumerate(texts) if text is None]
            if empty:
                raise ValueError(f"hierarchy has no {name} in row {empty[0] + 1}: every region needs a place.")
        columns = [_numbers(texts) for texts in labels]
        paths = list(zip(*columns, strict=True))
        if not paths:
            raise ValueError("hierarchy must have at least one region.")
        leaves: dict[str, tuple[Label, ...]] = {}
        for region, path in zip(regions.tolist(), paths, strict=True):
            if leaves.setdefault(region, path) != path:
                raise ValueError(f"hierarchy has region {region!r} in two places, {leaves[region]} and {path}.")
        tree = RegionTree(sorted(set(paths), key=lambda path: [_order(label) for label in path]))
        places = {path: place for place, path in enumerate(tree.paths(tree.num_levels - 1))}
        return tree, {region: places[path] for region, path in leaves.items()}

    def paths(self, level: int) -> list[tuple[Label, ...]]:
        """The labels of each node of a level, from the top down to it."""
        return list(self._paths[self.check_level(level)])

    def labels(self, level: int) -> list[Label]:
        """The label of each node of a level, in order."""
        return [path[-1] for path in self.paths(level)]

    def size(self, level: int) -> int:
        """How many nodes a level has."""
        return len(self._paths[self.check_level(level)])

    def sums(self, values: Any) -> list[np.ndarray]:
        """For each level, the top first, the sums over each node's lowest regions; ``values`` has those along its first axis."""
        levels = [np.asarray(values)]
        if levels[0].shape[:1] != (self.size(self.num_levels - 1),):
            raise ValueError(f"values must have an entry for each of the {self.size(self.num_levels - 1)} lowest regions.")
        for level in range(self.num_levels - 1, 0, -1):
            above = np.zeros((self.size(level - 1), *levels[0].shape[1:]), dtype=levels[0].dtype)
            np.add.at(above, self.parents[level], levels[0])
            levels.insert(0, above)
        return levels

    def check_level(self, level: int) -> int:
        """``level`` if there is such a one."""
        if level not in range(self.num_levels):
            raise ValueError(f"level must be from 0, the top, to {self.num_levels - 1}, got {level!r}.")
        return level

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegionTree) and self._paths == other._paths

    def __hash__(self) -> int:
        return hash(tuple(self._paths[-1]))

    def __repr__(self) -> str:
        return f"RegionTree({' x '.join(str(len(level)) for level in self._paths)} nodes)"


def _label(value: Any) -> Label:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise ValueError(f"leaf_paths must have texts or integers as labels, got {value!r}.")


def _order(label: Label) -> tuple[bool, Label]:
    return isinstance(label, str), label


def _numbers(texts: np.ndarray) -> list[Label]:
    """Whole numbers where all of a column are, spelled plainly; else the texts."""
    found = texts.tolist()
    return [int(text) for text in found] if all(_is_plain(text) for text in found) else found


def _is_plain(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < 19 and str(int(text)) == text
