"""What is counted in every area: attributes, recodes of them, and queries, each a product of one recode per attribute.

The 2020 redistricting data (P.L. 94-171) measure, for every area, a histogram over household or group-quarters type, voting age,
Hispanic origin and race: 8 x 2 x 2 x 63 cells. A query counts by some attributes in full, or by groups of their levels (a
*recode*), and adds up over all others.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, final

import numpy as np

# How the published files write an attribute that is added up over.
TOTAL = "*"


@final
@dataclass(frozen=True)
class Query:
    """Counts by a product of recodes, in C order of the attributes.

    Attributes:
        name: as in the files, without their suffix: "votingage * cenrace".
        groups: one array an attribute, [levels of the attribute]: which group each level is counted in, -1 for none.
        recodes: one name an attribute: "*" for its total, its own name for all its levels, or the name of a recode.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    recodes: tuple[str, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Groups of each attribute."""
        return tuple(max(codes) + 1 for codes in self.groups)

    @cached_property
    def size(self) -> int:
        """Number of answers."""
        return math.prod(self.shape)

    def is_total(self, attribute: int) -> bool:
        """Whether an attribute is added up over."""
        return not any(self.groups[attribute])

    def is_full(self, attribute: int) -> bool:
        """Whether an attribute is counted by each of its levels (one that has one level is both full and a total)."""
        return self.groups[attribute] == tuple(range(len(self.groups[attribute])))

    def matrix(self, attribute: int) -> np.ndarray:
        """[groups, levels], zeros and ones: row i adds up the levels in group i."""
        codes = np.array(self.groups[attribute])
        return (codes == np.arange(codes.max() + 1)[:, None]).astype(float)

    def answer(self, counts: np.ndarray) -> np.ndarray:
        """The query's answers, [..., size], to counts of all cells, [..., cells]: noisy, estimated or made-up ones."""
        lead = counts.shape[:-1]
        x = counts.reshape(-1, *(len(codes) for codes in self.groups))
        for axis in range(len(self.groups)):
            if self.is_total(axis):
                x = x.sum(axis=axis + 1, keepdims=True)
            elif not self.is_full(axis):
                x = np.moveaxis(np.tensordot(self.matrix(axis), x, (1, axis + 1)), 0, axis + 1)
        return x.reshape(*lead, self.size)


@final
class Schema:
    """Named attributes, and recodes of them by name.

    Args:
        attributes: the levels of each, as labels or as their number; the cells are all combinations, in C order.
        recodes: for each name the attribute that it groups, and the group of every level (from 0 on; -1 for levels that are in
            none). Labels of the groups may follow.
    """

    def __init__(
        self,
        attributes: Mapping[str, Sequence[str] | int],
        recodes: Mapping[str, tuple[Any, ...]] | None = None,
    ):
        if not attributes:
            raise ValueError("attributes must name at least one attribute.")
        self.labels = {name: _labels(name, levels) for name, levels in attributes.items()}
        self.names = tuple(self.labels)
        self.shape = tuple(map(len, self.labels.values()))
        self.size = math.prod(self.shape)
        self.recodes: dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]] = {}
        for name, (attribute, codes, *labels) in (recodes or {}).items():
            self.recodes[name] = _recode(name, attribute, codes, labels[0] if labels else None, self.labels)

    def query(self, name: str | Query) -> Query:
        """The query of a name: attributes and recodes joined by " * ", or "total" or "detailed" (all cells); or a query as it is.

        Raises:
            ValueError: if a part is neither attribute nor recode, an attribute comes twice, or a query is of another schema.
        """
        if isinstance(name, Query):
            if tuple(map(len, name.groups)) != self.shape:
                raise ValueError(f"{name.name!r} is a query over another schema than {self!r}.")
            return name
        parts = {"total": [], "detailed": list(self.names)}.get(name, [part.strip() for part in name.split("*")])
        chosen: dict[str, str] = {}
        for part in parts:
            attribute = part if part in self.labels else self.recodes[part][0] if part in self.recodes else None
            if attribute is None:
                known = ", ".join((*self.names, *self.recodes, "total", "detailed"))
                raise ValueError(f"{name!r} is no query of this schema: {part!r} is none of {known}.")
            if attribute in chosen:
                raise ValueError(f"{name!r} is no query: it counts by {attribute} twice.")
            chosen[attribute] = part
        return self.query_of(tuple(chosen.get(attribute, TOTAL) for attribute in self.names), name)

    def query_of(self, recodes: Sequence[str], name: str | None = None) -> Query:
        """The query with the given recode of each attribute: "*" (its total), "detailed" or its own name, or a recode's name."""
        if len(recodes) != len(self.names):
            raise ValueError(f"recodes must name one for each of {', '.join(self.names)}, got {tuple(recodes)!r}.")
        groups, used = [], []
        for attribute, recode in zip(self.names, recodes, strict=True):
            size = len(self.labels[attribute])
            if recode == TOTAL:
                codes = (0,) * size
            elif recode in (attribute, "detailed"):
                codes = tuple(range(size))
            elif recode in self.recodes and self.recodes[recode][0] == attribute:
                codes = self.recodes[recode][1]
            else:
                known = [TOTAL, attribute, *(key for key, value in self.recodes.items() if value[0] == attribute)]
                raise ValueError(f"{recode!r} is no recode of {attribute}: this schema has {', '.join(known)}.")
            groups.append(codes)
            used.append(attribute if recode == "detailed" else recode)
        used_names = [recode for recode in used if recode != TOTAL]
        everything = tuple(used) == self.names and len(self.names) > 1
        plain = "detailed" if everything else " * ".join(used_names) or "total"
        return Query(name or plain, tuple(groups), tuple(used))

    def answer_labels(self, query: Query) -> dict[str, np.ndarray]:
        """One column an attribute, [query.size]: the label of the group that each answer counts, "*" for totals."""
        columns = []
        for attribute, recode in zip(self.names, query.recodes, strict=True):
            if recode == TOTAL:
                columns.append((TOTAL,))
            else:
                columns.append(self.labels[attribute] if recode == attribute else self.recodes[recode][2])
        grid = np.meshgrid(*(np.array(column, dtype=object) for column in columns), indexing="ij")
        return {name: column.reshape(-1) for name, column in zip(self.names, grid, strict=True)}

    def __repr__(self) -> str:
        return f"Schema({', '.join(f'{name}: {size}' for name, size in zip(self.names, self.shape, strict=True))})"


def _labels(name: str, levels: Any) -> tuple[str, ...]:
    if isinstance(levels, (int, np.integer)) and levels > 0:
        return tuple(map(str, range(levels)))
    if isinstance(levels, Sequence) and not isinstance(levels, str) and levels and len(set(levels)) == len(levels):
        return tuple(map(str, levels))
    raise ValueError(f"attributes must give for {name} its number of levels or their labels, got {levels!r}.")


def _recode(name: str, attribute: str, codes: Any, labels: Any, known: Mapping[str, Any]) -> Any:
    if attribute not in known:
        raise ValueError(f"recodes: {name} groups the levels of {attribute!r}, which is no attribute.")
    if name in known or name in (TOTAL, "total", "detailed"):
        raise ValueError(f"recodes: {name} is the name of something else already.")
    groups = tuple(int(code) for code in codes)
    size = max(groups, default=-1) + 1
    if len(groups) != len(known[attribute]) or set(groups) - {-1} != set(range(size)) or not size:
        raise ValueError(
            f"recodes: {name} must give for each of the {len(known[attribute])} levels of {attribute} its group, numbered from 0 "
            f"on, or -1; got {codes!r}."
        )
    found = tuple(map(str, labels)) if labels is not None else tuple(f"{name} {i}" for i in range(size))
    if len(found) != size:
        raise ValueError(f"recodes: {name} has {size} groups and {len(found)} labels.")
    return attribute, groups, found


def _races() -> Iterator[str]:
    races = ("white", "black", "aian", "asian", "nhopi", "sor")
    for number in range(1, len(races) + 1):
        yield from ("+".join(some) for some in combinations(races, number))


_HHGQ = (
    "household",
    "correctional",
    "juvenile",
    "nursing",
    "other institutional",
    "college",
    "military",
    "other noninstitutional",
)


def pl94_persons() -> Schema:
    """The persons of the 2020 redistricting data: hhgq (8), votingage (2), hispanic (2), cenrace (63), and the recodes in use.

    The levels and their order as in the Census Bureau's noisy measurement files; ``cenrace`` runs over the combinations of six
    races by their number, then in the order of the races.
    """
    races = list(_races())
    return Schema(
        {
            "hhgq": _HHGQ,
            "votingage": ("under 18", "18 and over"),
            "hispanic": ("not hispanic", "hispanic"),
            "cenrace": races,
        },
        {
            "hhinstlevels": ("hhgq", (0, 1, 1, 1, 1, 2, 2, 2), ("household", "institutional", "noninstitutional")),
            "household": ("hhgq", (0, 1, 1, 1, 1, 1, 1, 1), ("household", "group quarters")),
            "gqNursingTotal": ("hhgq", (-1, -1, -1, 0, -1, -1, -1, -1), ("nursing",)),
            "voting": ("votingage", (-1, 0), ("18 and over",)),
            "nonvoting": ("votingage", (0, -1), ("under 18",)),
            "numraces": ("cenrace", [race.count("+") for race in races], ["1 race", *(f"{n} races" for n in range(2, 7))]),
        },
    )


def pl94_units() -> Schema:
    """The housing units of the 2020 redistricting data: vacant or occupied."""
    return Schema({"h1": ("vacant", "occupied")})
