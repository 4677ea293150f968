"""One release read by month and by day: figure 7 of Hay, Rastogi, Miklau and Suciu 2010.

python examples/month_and_day.py [--data counts.npy] [--epsilon 0.1] [--branching 2] [--output month_and_day.png]

The departures from New York City in 2013 are measured once, by the quarter-hour and above. The same estimate answers a year by
month and one month by day, with intervals; sums of the noisy cells beside it are what it spares. With counts of your own (a .npy
file such as those of DPBench) the two views are twelfths of the cells, and thirtieths of the busiest of these.
"""

import argparse
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.evaluation import coverage
from dpinfer.plots import HistogramView, histogram_figure, save
from dpinfer.queries import Ranges, Tree


def main() -> None:
    parser = argparse.ArgumentParser(description="One release by month and by day (Hay et al. 2010, figure 7).")
    parser.add_argument("--data", type=Path, help="a .npy file of counts; left out, the departures of 2013")
    parser.add_argument("--epsilon", type=float, default=0.1)
    parser.add_argument("--branching", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("month_and_day.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    if options.data is None:
        counts = dpi.datasets.departures().cells()
        months = np.arange("2013-01", "2014-02", dtype="datetime64[M]")
        days = np.arange("2013-07-01", "2013-08-02", dtype="datetime64[D]")
        split = {"the year by month": months, "July by day": days}
        cuts = {name: (edges.astype("datetime64[m]") - np.datetime64("2013-01-01T00:00")) // 15 for name, edges in split.items()}
        cuts = {name: cut.astype(np.int64) for name, cut in cuts.items()}
        place = "scheduled departure"
    else:
        counts = dpi.datasets.read_histogram(options.data)
        twelfths = np.linspace(0, counts.size, 13).round().astype(np.int64)
        busiest = int(np.argmax(np.add.reduceat(counts, twelfths[:-1])))
        first, last = twelfths[busiest : busiest + 2]
        split = {"all cells, in twelfths": twelfths}
        split["the busiest twelfth, in thirtieths"] = np.unique(np.linspace(first, last, 31).round().astype(np.int64))
        cuts, place = split, "cell"

    release = dpi.measure(counts, Tree.complete(counts.size, options.branching, root=True), epsilon=options.epsilon)
    estimate = dpi.least_squares(release)
    noisy = release.values[-counts.size :]  # the tree's leaves alone
    print(f"{counts.size:,} cells, one release at epsilon = {options.epsilon:g}: root mean squared error of a sum")
    views = []
    for name, cut in cuts.items():
        ranges = Ranges(counts.size, cut[:-1], cut[1:])
        answers = estimate.answer(ranges)
        shown = (answers.values, *answers.interval(0.95), ranges @ noisy, ranges @ counts)
        values, lower, upper, raw, truth = map(np.asarray, shown)
        views.append(HistogramView(name, split[name], values, lower, upper, raw, truth))
        rms = [np.sqrt(np.mean(np.square(x - truth))) for x in (raw, values)]
        expected = np.sqrt(np.mean(np.square(answers.stddev)))
        print(f"{name:>36}: noisy cells {rms[0]:,.1f}, estimate {rms[1]:,.1f} (expected {expected:,.1f}); ", end="")
        covered = float(coverage(lower, upper, truth))
        print(f"{round(covered * truth.size)} of {truth.size} intervals cover the truth")
    save(histogram_figure(views, "records", place), options.output)
    print(f"Figure: {options.output}")


if __name__ == "__main__":
    main()
