"""Posteriors under the models of dpinfer.models beside least squares: error and coverage on real counts.

python examples/bayesian_models.py [--data-sets day month people ...] [--epsilons 0.01 0.1 1] [--releases 3] [--side 12]
    [--method nuts] [--draws 500] [--chains 4] [--ranges 1000] [--seed 0] [--output bayesian_models.png]

- day: departures from New York City in a week of July 2013 by the quarter-hour of the day, under ``log_gaussian``;
- month: those on the 15th of each month of 2013 by month and hour, under ``log_gaussian`` of two axes;
- people: adults by their age and weekly hours of work, under ``sparse_counts``;
- regions: the same, measured in two steps as by ``mechanisms.ispe``: the cells with three quarters of epsilon, and with the rest
  sums over regions that the noisy cells suggest, under ``region_counts`` of these regions;
- airports: planes that flew from New York City to each of 104 airports in 2013, under ``poisson_gamma``;
- ranks: the same numbers in order of their size, under ``ordered_counts``;
- carriers: departures in 2013 by airport and carrier, 35 pairs, measured with those of airports and of all, under ``polya_tree``
  of this hierarchy;
- sizes: planes by how often they left, 1 to 96 times, measured by how many left at most so often, under ``count_of_counts``;
  what epsilon protects here is a flight;
- hours: adults by weekly hours of work, under ``segmented_counts``.

Non-negative estimates are non-negative least squares; of ranks they are monotone as well. Every release is simulated from a
key, so that runs repeat; every epsilon meets the same noise in its own size. No count is as a model says: what a model gains
or costs is in the numbers, those of empty cells (a night, when nothing leaves) beside those of all. Intervals of a posterior
are rounded to whole numbers, since a continuous prior has a count k spread over k - 1/2 to k + 1/2; those of least squares,
which assume nothing, are exact. Ranges are boxes where there are two axes. Where chains would take minutes the fit is by
"svi", which tends to be too sure; --method nuts asks for chains all the same.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from tqdm import tqdm

import dpinfer as dpi
from dpinfer import models
from dpinfer.datasets import adult_age_hours, departures, plane_flights, plane_routes
from dpinfer.inference import grow_regions, isotonic_regression, nonnegative_least_squares, posterior, smoothed_cells
from dpinfer.plots import COLORS, GREY, MARKERS, save
from dpinfer.queries import Boxes, Identity, Partition, Prefix, Queries, Ranges, Tree

# By data set.
MODELS = {
    "day": "log_gaussian",
    "month": "log_gaussian",
    "people": "sparse_counts",
    "regions": "region_counts",
    "airports": "poisson_gamma",
    "ranks": "ordered_counts",
    "carriers": "polya_tree",
    "sizes": "count_of_counts",
    "hours": "segmented_counts",
}
LINEAR, NONNEGATIVE = "least squares", "non-negative"
LEVEL = 0.9
# Up to so many cells chains take seconds.
MOST_BY_CHAINS = 110
# Cells whose exact intervals by least squares are worked out, evenly spaced: after regions each takes a law of its own.
MOST_INTERVALS = 400
# In two steps: the share of epsilon that the cells get, and which differences join neighbours after five rounds of smoothing, in
# units of 1 / epsilon; public, and as in mechanisms.ispe's own example.
SHARE, THRESHOLD = 0.75, 1.2


class Fit(NamedTuple):
    """What an estimator says of the cells, [n]; intervals of some of them, [3, cells]: which, and their ends; r-hat of chains."""

    cells: np.ndarray
    intervals: np.ndarray | None = None
    r_hat: float = np.nan
    converged: bool = True


@dataclass(frozen=True)
class Row:
    """Of an estimator on one data set at one epsilon: [releases] each; nan where there is nothing to say."""

    error: np.ndarray
    range_error: np.ndarray
    coverage: np.ndarray
    empty_coverage: np.ndarray
    length: np.ndarray
    seconds: np.ndarray
    r_hat: np.ndarray
    converged: np.ndarray


HEADS, WIDTHS = ("cell", "ranges", "inside", "empty", "length", "s", "r-hat"), (21, 10, 9, 9, 9, 8, 8)
# By data set, epsilon and estimator.
Table = dict[tuple[str, float, str], Row]


def main() -> None:
    parser = argparse.ArgumentParser(description="Posteriors under the models of dpinfer.models beside least squares.")
    parser.add_argument("--data-sets", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.01, 0.1, 1.0])
    parser.add_argument("--releases", type=int, default=3)
    parser.add_argument("--side", type=int, help="the most cells along an axis, the first ones; left out, all")
    parser.add_argument("--method", choices=("nuts", "svi", "laplace"), help=f"left out, nuts up to {MOST_BY_CHAINS} cells")
    parser.add_argument("--draws", type=int, default=500, help="of a chain, after as many in which it adapts, or of a fit")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--ranges", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("bayesian_models.png"))
    options = parser.parse_args()
    dpi.enable_x64()

    print(f"{options.releases} releases. cell: root mean squared error, +- its standard error. ranges: mean squared error over")
    print(
        f"that of least squares. inside: share of cells in their {LEVEL:.0%} intervals; empty: of cells without records; length:"
    )
    print("the median. A posterior's ends are rounded to whole numbers, as a count k stands for k - 1/2 to k + 1/2. s: median")
    print("seconds of a fit, compiling included where every release has a program of its own (regions). r-hat: the largest.")
    heads = "".join(f"{text:>{width}}" for text, width in zip(HEADS, WIDTHS, strict=True))
    print(f"{'data':<9}{'epsilon':>7}  {'estimator':<20}{heads}")
    found: Table = {}
    for name in options.data_sets:
        counts = table(name)
        counts = counts[(slice(options.side),) * counts.ndim]
        for epsilon in options.epsilons:
            rows = measured(name, counts, epsilon, options)
            print_rows(name, epsilon, rows)
            found |= {(name, epsilon, estimator): row for estimator, row in rows.items()}
    for (name, epsilon, estimator), row in found.items():
        if missed := int((row.converged == 0).sum()):
            print(f"By its own checks not converged, {missed} of {options.releases}: {name}, {epsilon:g}, {estimator}")
    save(figure_of(found), options.output)
    print(f"Figure: {options.output}")


def table(name: str) -> np.ndarray:
    """The true counts, int64, an axis each."""
    if name in ("people", "regions"):
        people = adult_age_hours()
        return people.cells().reshape(people.domain.shape)[:60, 19:59]  # ages 16 to 75, 20 to 59 hours
    if name == "hours":
        people = adult_age_hours()
        return people.cells().reshape(people.domain.shape).sum(axis=0)
    if name in ("airports", "ranks"):
        planes = np.bincount(plane_routes().table["airport"])
        return np.sort(planes) if name == "ranks" else planes
    if name in ("carriers", "sizes"):
        groups = plane_flights()
        flights = np.bincount(groups.entities["group"], minlength=groups.groups["group"].size)
        if name == "sizes":
            return np.bincount(flights)[1:97]
        _, pair = np.unique(groups.groups["region"], return_inverse=True)
        return np.bincount(pair, flights).astype(np.int64)
    days = np.arange("2013-01-01", "2014-01-01", dtype="datetime64[D]")
    quarters = departures().cells().reshape(days.size, 96)
    if name == "day":
        return quarters[(days >= np.datetime64("2013-07-15")) & (days < np.datetime64("2013-07-22"))].sum(axis=0)
    return quarters[days - days.astype("datetime64[M]") == np.timedelta64(14, "D")].reshape(12, 24, 4).sum(axis=2)


def measured(name: str, counts: np.ndarray, epsilon: float, options: argparse.Namespace) -> dict[str, Row]:
    """Each estimator's numbers; all see the same releases."""
    truth, n = counts.reshape(-1), counts.size
    ranges = dpi.workloads.random_boxes(counts.shape, options.ranges, key=jax.random.key(options.seed))
    method = options.method or ("nuts" if n <= MOST_BY_CHAINS else "svi")
    settings = {"num_draws": options.draws, **({"num_chains": options.chains} if method == "nuts" else {})}
    found: dict[str, list[list[float]]] = {}
    for number in tqdm(range(options.releases), desc=f"{name}, {epsilon:g}", leave=False, disable=None):
        noise_key, fit_key = jax.random.split(jax.random.fold_in(jax.random.key(options.seed), number))
        release, model = simulated(name, counts, epsilon, noise_key)

        def by_model(release: dpi.Measurement = release, model: Any = model, key: jax.Array = fit_key) -> Fit:
            return posterior_fit(posterior(release, model, method=method, key=key, **settings))

        title = f"{MODELS[name]}, {method}"
        ways = {LINEAR: lambda r=release: linear_fit(r), NONNEGATIVE: lambda r=release: nonnegative_fit(r, name), title: by_model}
        for way, fit in ways.items():
            found.setdefault(way, []).append(numbers(fit, truth, ranges))
    return {way: Row(*np.transpose(own)) for way, own in found.items()}


def simulated(name: str, counts: np.ndarray, epsilon: float, key: jax.Array) -> tuple[dpi.Measurement, Callable[[], Any]]:
    """A release and the model for it: the same object for the same cells and regions, so that it compiles once."""
    if name != "regions":
        strategy, model = queries_and_model(name, counts.shape)
        # A flight more or less changes one plane's size by one, and one of the cumulative numbers by one; a plane all of them.
        budget = epsilon * counts.size if name == "sizes" else epsilon
        return dpi.simulate(counts.reshape(-1), strategy, epsilon=budget, noise="discrete_laplace", key=key), model
    first, second = jax.random.split(key)
    cells = dpi.simulate(counts.reshape(-1), Identity(counts.size), epsilon=SHARE * epsilon, noise="discrete_laplace", key=first)
    # Only what was released chooses the regions, so that the losses add up.
    labels = grow_regions(smoothed_cells(cells.values, counts.shape), counts.shape, threshold=THRESHOLD / epsilon)
    sums = dpi.simulate(
        counts.reshape(-1), Partition(labels), epsilon=(1 - SHARE) * epsilon, noise="discrete_laplace", key=second
    )
    return dpi.Measurement.concat([cells, sums]), models.region_counts(labels)


def queries_and_model(name: str, shape: tuple[int, ...]) -> tuple[Queries, Callable[[], Any]]:
    n = int(np.prod(shape))
    if name == "carriers":
        tree = hierarchy(n)
        return tree, models.polya_tree(tree)
    if name == "sizes":
        return Prefix(n), models.count_of_counts(n)
    of_cells = {
        "people": models.sparse_counts,
        "airports": models.poisson_gamma,
        "ranks": models.ordered_counts,
        "hours": models.segmented_counts,
    }
    return Identity(n), of_cells[name](n) if name in of_cells else models.log_gaussian(shape)


def hierarchy(n: int) -> Tree:
    """The city, its airports, and pairs of an airport and a carrier, the first n: public."""
    airports = plane_flights().hierarchy["level_1"][:n]
    labels, place = np.unique(airports, return_inverse=True)
    return Tree.from_parents([-1, *[0] * labels.size, *(1 + place)])


def linear_fit(release: dpi.Measurement) -> Fit:
    estimate = dpi.least_squares(release)
    n = release.queries.shape[1]
    some = np.unique(np.linspace(0, n - 1, MOST_INTERVALS).round().astype(int))
    return Fit(np.asarray(estimate.cells), np.stack([some, *estimate.answer(Ranges(n, some, some + 1)).interval(LEVEL)]))


def nonnegative_fit(release: dpi.Measurement, name: str) -> Fit:
    if name == "ranks":
        return Fit(np.asarray(isotonic_regression(release.values, lower=0.0).values))
    return Fit(np.asarray(nonnegative_least_squares(release).cells))


def posterior_fit(found: Any) -> Fit:
    n = found.cells.size
    ends = np.round(found.answer(Identity(n)).interval(LEVEL))
    sampling = found.sampling
    r_hats = [] if sampling.r_hat is None else [sampling.r_hat, *sampling.site_r_hat.values()]
    largest = max((float(np.max(x, initial=1.0)) for x in r_hats), default=np.nan)
    return Fit(np.asarray(found.cells), np.stack([np.arange(n), *ends]), largest, bool(sampling.converged))


# Draws of exp of a score that is hardly known overflow: the table says inf.
@np.errstate(over="ignore", invalid="ignore")
def numbers(fit: Callable[[], Fit], truth: np.ndarray, ranges: Boxes) -> list[float]:
    """In the order of a Row."""
    begin = time.perf_counter()
    found = fit()
    seconds = time.perf_counter() - begin
    off = found.cells - truth
    shares = [np.nan] * 3
    if found.intervals is not None:
        which, lower, upper = found.intervals
        true = truth[which.astype(int)]
        inside = (lower <= true) & (true <= upper)
        empty = inside[true == 0]
        shares = [inside.mean(), empty.mean() if empty.size else np.nan, np.median(upper - lower)]
    squared = np.square(np.asarray(ranges @ off)).mean()
    return [np.square(off).mean() ** 0.5, squared, *shares, seconds, found.r_hat, found.converged]


@np.errstate(over="ignore", invalid="ignore")
def print_rows(name: str, epsilon: float, rows: dict[str, Row]) -> None:
    for estimator, row in rows.items():
        spread = f"+- {row.error.std(ddof=1) / row.error.size**0.5:.2g}" if row.error.size > 1 else ""
        compared = row.range_error.mean() / rows[LINEAR].range_error.mean()
        shares = [f"{share.mean():.3f}" for share in (row.coverage, row.empty_coverage)]
        texts = [
            f"{row.error.mean():.4g} {spread:<9}",
            f"{compared:.2f}" if compared < 1000 else f"{compared:.2g}",
            *shares,
            f"{row.length.mean():.4g}",
        ]
        texts += [f"{np.median(row.seconds):.2g}", f"{row.r_hat.max():.3f}"]
        line = "".join(f"{text.replace('nan', '-'):>{width}}" for text, width in zip(texts, WIDTHS, strict=True))
        print(f"{name:<9}{epsilon:>7g}  {estimator:<20}{line}", flush=True)


def figure_of(found: Table) -> Figure:
    """Errors of a cell over those of least squares, and coverage, by epsilon: a line a data set and estimator."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    names, epsilons = dict.fromkeys(name for name, _, _ in found), sorted({epsilon for _, epsilon, _ in found})
    styles = {LINEAR: ":", NONNEGATIVE: "--"}
    for name in names:
        place = list(MODELS).index(name)
        color, marker = COLORS[place % len(COLORS)], MARKERS[(place + place // len(MARKERS)) % len(MARKERS)]
        for estimator in dict.fromkeys(way for own, _, way in found if own == name):
            rows = [found[name, epsilon, estimator] for epsilon in epsilons]
            linear = [found[name, epsilon, LINEAR] for epsilon in epsilons]
            look = {"color": color, "marker": marker, "fillstyle": "none", "linestyle": styles.get(estimator, "-")}
            if estimator != LINEAR:
                ratios = [row.error.mean() / other.error.mean() for row, other in zip(rows, linear, strict=True)]
                left.plot(epsilons, ratios, **look, label=f"{name}: {estimator}")
            right.plot(epsilons, [row.coverage.mean() for row in rows], **look)
    left.axhline(1, color=GREY, linewidth=0.8)
    left.set_yscale("log")
    left.yaxis.set_minor_formatter(NullFormatter())
    left.yaxis.set_major_formatter("{x:g}")
    left.set_yticks([0.1, 0.2, 0.5, 1, 2])
    left.set_ylim(0.15, 3)  # means that overflow leave the panel
    left.set_title("Root mean squared error of a cell over that of least squares", loc="left")
    right.axhline(LEVEL, color=GREY, linewidth=0.8)
    right.set_title(f"Share of cells inside their {LEVEL:.0%} intervals", loc="left")
    right.set_ylim(None, 1.0)
    right.legend(
        [Line2D([], [], color=GREY, linestyle=style) for style in ("-", ":")],
        ["posterior", LINEAR],
        frameon=False,
        loc="lower right",
    )
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        axes.set_xlabel("epsilon")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    main()
