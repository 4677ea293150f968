"""Regions of cells that are alike, and what they are good for: the experiments of Xiao, Xiong and Yuan 2011 (ISPE), section 5.

python examples/regions.py [--data counts.npy] [--sets smooth random adult flights] [--side 40] [--epsilon 0.2] [--share 0.75]
    [--threshold 6] [--iterations 5] [--releases 4] [--slow-releases 4] [--sweep-releases 2] [--sweep-sets smooth adult]
    [--rectangles 1000] [--output regions.png]

On two made-up tables, smooth bumps and independent uniform counts; on the ages and weekly hours of work of the Adult data; and on
the flights from New York City in July 2013 by hour and destination, these in the order of the airports' codes. Or on counts of
your own (a .npy file of two axes). Of each table the first ``--side`` cells along either axis. Prints errors of cells, of whole
regions, of random rectangles and of squares by their side, all at one budget: of noisy cells that get all of it, of a tree, and
of the release in two steps by several estimators; then errors by the share that the cells get, by the threshold and by the rounds
of smoothing; and who is better, by these numbers. Every release is a real one, with exact noise. The figure shows what smoothing
does, the regions that are found, and errors by the side of a square, over the side: those of noisy cells then hardly change.
"""

import argparse
import csv
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.colors import AsinhNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

import dpinfer as dpi
from dpinfer import methods
from dpinfer.datasets import adult_age_hours, read_histogram
from dpinfer.inference import grow_regions, mmse, smoothed_cells
from dpinfer.inference.neighborhood import neighborhood_posterior
from dpinfer.mechanisms import ispe
from dpinfer.plots import COLORS, MARKERS, save
from dpinfer.queries import Boxes, Identity, Partition, VStack

SETS = ("smooth", "random", "adult", "flights")
WHOLE, TREE = "noisy cells, whole budget", "quadtree, whole budget"
CELLS, WEIGHTED, EQUAL, POSTERIOR = "noisy cells of the release", "least squares", "least squares, unweighted", "posterior mean"
NEAR, PRINTED, EVEN = "neighbourhood", "neighbourhood, as printed", "even in regions"
# As many as can be told apart.
DRAWN = (WHOLE, TREE, POSTERIOR, NEAR, PRINTED, EVEN)
COLUMNS = ("cell", "region", "largest region", "rectangle")
ROUNDS = (1, 5, 10)
# Of the grid of each law, few: these change a mean by less than a thousandth of its error.
POINTS = 64
SIDES = (1, 2, 4, 8, 16, 32, 64)
# Of squares in the sweeps: there are so many that two releases say much.
SWEPT_SIDE = 8
WORDS = ("better", "level", "worse")
# By the name of the way: [releases, absolute and squared, the columns and then squares by their sides].
Errors = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description="Regions of cells that are alike (Xiao, Xiong and Yuan 2011, section 5).")
    parser.add_argument("--data", type=Path, help="a .npy file of counts with two axes, instead of the sets")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--side", type=int, default=40, help="of the made-up tables, and the most of others, their first cells")
    parser.add_argument("--epsilon", type=Fraction, default=Fraction("0.2"))
    parser.add_argument(
        "--share", type=Fraction, default=Fraction("0.75"), help="of the budget, for the cells; the sums get the rest"
    )
    parser.add_argument("--threshold", type=float, default=6.0)
    parser.add_argument("--iterations", type=int, default=5, help="rounds of smoothing")
    parser.add_argument("--releases", type=int, default=4)
    parser.add_argument("--slow-releases", type=int, help="those among them that neighbourhoods are tried on; left out, all")
    parser.add_argument("--sweep-releases", type=int, default=2, help="for each setting; 0 leaves these out")
    parser.add_argument("--sweep-sets", nargs="+", choices=SETS, default=["smooth", "adult"])
    parser.add_argument("--rectangles", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=Path("regions.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    slow = options.releases if options.slow_releases is None else min(options.slow_releases, options.releases)
    if min(slow, options.sweep_releases or 2) < 2:
        parser.error("one release has no standard error")
    if options.data is None:
        tables = {name: table(name, options.side) for name in options.sets}
    else:
        tables = {options.data.stem: read_histogram(options.data).reshape(np.load(options.data, mmap_mode="r").shape)}
    if any(counts.ndim != 2 for counts in tables.values()):
        parser.error("the data must have two axes")
    tables = {title: counts[: options.side, : options.side] for title, counts in tables.items()}
    given = {"share": options.share, "threshold": options.threshold, "iterations": options.iterations}

    print(f"epsilon = {float(options.epsilon):g}, {float(options.share):.0%} of it for cells;", end=" ")
    print(f"regions by differences below {options.threshold:g} after {options.iterations} rounds of smoothing.")
    few = "" if slow == options.releases else f" (of neighbourhoods {slow})"
    print(f"Mean errors of {options.releases} releases{few}, +- their standard errors.")
    found, sides, pictures, swept = {}, {}, {}, {}
    for title, counts in tables.items():
        sides[title] = [side for side in SIDES if side <= min(counts.shape)]
        asked = Asked(counts, options.rectangles, sides[title])
        found[title], releases = measured(counts, asked, options.epsilon, given, (slow, options.releases))
        pictures[title] = counts, releases[0]
        sizes = [np.bincount(labels_of(release)) for release in releases]
        regions = f"{between([x.size for x in sizes])} regions, the largest of {between([int(x.max()) for x in sizes])} cells"
        print(f"{title}: {' x '.join(map(str, counts.shape))} cells, {counts.sum():,} records; {regions}")
        print_errors(found[title], sides[title])
    if options.sweep_releases:
        for title in [title for title in tables if options.data is not None or title in options.sweep_sets]:
            counts = tables[title]
            side = min(SWEPT_SIDE, *counts.shape)
            swept[title] = sweeps(counts, Asked(counts, 1, [side]), options.epsilon, given, options.sweep_releases)
            words = f"{options.sweep_releases} releases, absolute errors of a cell | of a square of side {side}"
            print_sweeps(f"{title}, {words}", swept[title])

    print_verdicts(found, sides)
    if swept:
        print_best(swept)
    save(figure_of(pictures, found, sides), options.output)
    print(f"Figure: {options.output}")


def table(name: str, side: int) -> np.ndarray:
    if name == "adult":
        people = adult_age_hours()
        return people.cells().reshape(people.domain.shape)
    if name == "flights":
        with (Path(__file__).parent / "data" / "departures_2013_07.csv").open(encoding="utf-8") as file:
            flights = [(int(row["sched_dep_time"]) // 100, row["dest"]) for row in csv.DictReader(file)]
        hours, codes = zip(*flights, strict=True)
        airports, airport = np.unique(codes, return_inverse=True)
        return np.bincount(np.array(hours) * airports.size + airport, minlength=24 * airports.size).reshape(24, -1)
    if name == "random":
        return np.random.default_rng(0).integers(0, 101, (side, side))
    along = (np.arange(side) + 0.5) / side
    bumps = [(120, 0.3, 0.35, 0.18), (80, 0.7, 0.6, 0.22), (60, 0.25, 0.85, 0.15)]
    heights = (h * np.outer(*(np.exp(-(((along - m) / w) ** 2) / 2) for m in (a, b))) for h, a, b, w in bumps)
    return np.round(sum(heights)).astype(np.int64)


class Asked:
    """The queries of a table, and mean absolute and squared errors of estimated cells in them."""

    def __init__(self, counts: np.ndarray, rectangles: int, sides: list[int]) -> None:
        self.truth = counts.reshape(-1).astype(float)
        self.boxes = [dpi.workloads.random_boxes(counts.shape, rectangles, key=jax.random.key(3))]
        for side in sides:
            starts = np.argwhere(np.ones([along - side + 1 for along in counts.shape], dtype=bool))
            self.boxes.append(Boxes(counts.shape, starts, starts + side))

    def errors(self, cells: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """[2, columns and sides]; regions are those of a release, also for what knows nothing of them."""
        off = cells - self.truth
        regions = np.bincount(labels, off)
        largest = regions[np.bincount(labels).argmax()]
        sums = [off, regions, largest, *(np.asarray(box @ off) for box in self.boxes)]
        return np.array([[np.abs(x).mean() for x in sums], [np.square(x).mean() for x in sums]])


def measured(
    counts: np.ndarray, asked: Asked, epsilon: Fraction, given: dict[str, Any], releases: tuple[int, int]
) -> tuple[Errors, list[dpi.Release]]:
    """Errors of all ways, the slow ones in the first so many releases; and the releases in two steps."""
    errors, kept = {}, []
    private = counts.reshape(-1)
    whole = {WHOLE: methods.noisy_cells(counts.size), TREE: methods.quadtree(counts.shape)}
    for number in range(releases[1]):
        release = in_two_steps(counts, epsilon, **given)
        cells = {name: np.asarray(way.estimate(way.measure(private, epsilon=epsilon)).cells) for name, way in whole.items()}
        for name, own in (cells | estimates(release, counts.shape, slow=number < releases[0])).items():
            errors.setdefault(name, []).append(asked.errors(own, labels_of(release)))
        kept.append(release)
    return {name: np.array(own) for name, own in errors.items()}, kept


def in_two_steps(counts: np.ndarray, epsilon: Fraction, *, share: Fraction, threshold: float, iterations: int) -> dpi.Release:
    return ispe(
        counts.reshape(-1),
        counts.shape,
        cell_epsilon=share * epsilon,
        partition_epsilon=(1 - share) * epsilon,
        threshold=threshold,
        iterations=iterations,
    )


def labels_of(release: dpi.Release) -> np.ndarray:
    assert isinstance(release.queries, VStack)
    regions = release.queries.parts[1]
    assert isinstance(regions, Partition)
    return regions.labels


def estimates(release: dpi.Release, shape: tuple[int, ...], *, slow: bool) -> dict[str, np.ndarray]:
    """Cells from one release. Answers are sums of them: least squares and posterior means are linear."""
    known = release.measurement
    # As if all noise were of one scale.
    equal = dpi.Measurement(known.queries, known.values, known.noise, 1.0)
    found = {
        CELLS: np.asarray(known.values[: known.queries.shape[1]], dtype=float),
        WEIGHTED: np.asarray(dpi.least_squares(known).cells),
        EQUAL: np.asarray(dpi.least_squares(equal).cells),
        POSTERIOR: mmse(known).mean,
    }
    if slow:
        found[NEAR] = neighborhood_posterior(known, shape, method="hierarchical", num_points=POINTS).mean
        found[PRINTED] = neighborhood_posterior(known, shape, method="printed", num_points=POINTS).mean
    return found | {EVEN: closed_forms(release)[EVEN]}


def closed_forms(release: dpi.Release) -> dict[str, np.ndarray]:
    """Least squares, a shift for all cells of a region; and each region's sum, by least squares, spread evenly over its cells."""
    labels = labels_of(release)
    values, stddevs = np.split(release.values, [labels.size]), np.split(np.asarray(release.stddev), [labels.size])
    sizes, sums = np.bincount(labels), np.bincount(labels, values[0])
    weights, others = 1 / np.square(stddevs[1]), 1 / (sizes * stddevs[0][0] ** 2)
    best = (weights * values[1] + others * sums) / (weights + others)
    return {WEIGHTED: values[0] + ((best - sums) / sizes)[labels], EVEN: (best / sizes)[labels]}


def between(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def mean_and_spread(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over releases, and the mean's standard error."""
    return errors.mean(axis=0), errors.std(axis=0, ddof=1) / np.sqrt(errors.shape[0])


def shown(number: float, digits: int = 4) -> str:
    return f"{number:,.0f}" if 10 ** (digits - 1) <= number < 1e7 else f"{number:.{digits}g}"


def print_errors(errors: Errors, sides: list[int]) -> None:
    for kind, word in enumerate(("absolute", "squared")):
        print(f"  {f'{word} error of a':<28}" + "".join(f"{column:>24}" for column in COLUMNS))
        for name, own in errors.items():
            pairs = zip(*mean_and_spread(own[:, kind, : len(COLUMNS)]), strict=True)
            print(f"  {name:<28}" + "".join(f"{f'{shown(mean)} +- {shown(spread, 2)}':>24}" for mean, spread in pairs))
    print(f"  {'absolute, squares of side':<28}" + "".join(f"{side:>12}" for side in sides))
    for name, own in errors.items():
        print(f"  {name:<28}" + "".join(f"{shown(mean):>12}" for mean in own[:, 0, len(COLUMNS) :].mean(axis=0)))


def sweeps(
    counts: np.ndarray, asked: Asked, epsilon: Fraction, given: dict[str, Any], releases: int
) -> dict[str, dict[str, Errors]]:
    """By the thing that is varied and its setting the errors of few ways."""
    varied = {
        "share": [Fraction(text) for text in ("0.25", "0.5", "0.75", "0.95")],
        "threshold": [0.5, 1.5, 3.0, 6.0, 12.0, 30.0],
        "iterations": [0, 1, 2, 5, 10],
    }
    found = {name: {f"{float(setting):g}": {} for setting in settings} for name, settings in varied.items()}
    for _ in range(releases):
        # Thresholds and rounds of smoothing are tried on the same noisy cells, so that these make no difference.
        cells = dpi.measure(counts.reshape(-1), Identity(counts.size), epsilon=given["share"] * epsilon)
        for name, settings in varied.items():
            for setting, errors in zip(settings, found[name].values(), strict=True):
                own = given | {name: setting}
                release = in_two_steps(counts, epsilon, **own) if name == "share" else with_regions(counts, cells, epsilon, **own)
                near = neighborhood_posterior(release.measurement, counts.shape, method="printed", num_points=POINTS)
                for way, means in (closed_forms(release) | {PRINTED: near.mean}).items():
                    errors.setdefault(way, []).append(asked.errors(means, labels_of(release)))
    return {
        name: {setting: {way: np.array(x) for way, x in errors.items()} for setting, errors in own.items()}
        for name, own in found.items()
    }


def with_regions(
    counts: np.ndarray, cells: dpi.Release, epsilon: Fraction, *, share: Fraction, threshold: float, iterations: int
) -> dpi.Release:
    """The second of the two steps, after noisy cells that there are."""
    smooth = smoothed_cells(cells.values, counts.shape, iterations=iterations)
    regions = Partition(grow_regions(smooth, counts.shape, threshold=threshold))
    return dpi.Release.concat([cells, dpi.measure(counts.reshape(-1), regions, epsilon=(1 - share) * epsilon)])


def print_sweeps(title: str, settings: dict[str, dict[str, Errors]]) -> None:
    print(title)
    for name, own in settings.items():
        print(f"  {name:<26}" + "".join(f"{setting:>14}" for setting in own))
        for way in (WEIGHTED, PRINTED, EVEN):
            means = [errors[way][:, 0].mean(axis=0)[[0, -1]] for errors in own.values()]
            print(f"  {way:<26}" + "".join(f"{f'{shown(cell, 3)} | {shown(square, 3)}':>14}" for cell, square in means))


def print_verdicts(found: dict[str, Errors], sides: dict[str, list[int]]) -> None:
    ways = (POSTERIOR, NEAR, PRINTED, EVEN)
    print(f"Absolute errors beside {WHOLE}: better or worse by more than two standard errors")
    verdicts = {}
    for place, column in enumerate(COLUMNS):
        print(f"  {column:<18}{WHOLE:>26}" + "".join(f"{name:>27}" for name in ways) + "    least")
        for title, errors in found.items():
            own = {name: x[:, 0, place] for name, x in errors.items()}
            words = verdicts[column, title] = {name: compared(own[name], own[WHOLE]) for name in ways}
            line = "".join(f"{f'{shown(own[name].mean())} {words[name]}':>27}" for name in ways)
            print(f"  {title:<18}{shown(own[WHOLE].mean()):>26}{line}    {min(own, key=lambda name: own[name].mean())}")
    print("Errors on a cell over those of noisy cells of the same release | of noisy cells with the whole budget")
    print(f"  {'':<18}" + "".join(f"{name:>27}" for name in ways))
    for title, errors in found.items():
        means = {name: own[:, 0, 0].mean() for name, own in errors.items()}
        pairs = (f"{means[name] / means[CELLS]:.2f} | {means[name] / means[WHOLE]:.2f}" for name in ways)
        print(f"  {title:<18}" + "".join(f"{pair:>27}" for pair in pairs))
    print("The side up to which squares are better than those of noisy cells with the whole budget")
    for title, errors in found.items():
        reach = (helps_up_to(errors[name], errors[WHOLE], sides[title]) or "none" for name in ways)
        print(f"  {title:<18}" + "".join(f"{side:>27}" for side in reach))
    print(f"Squared errors over those of {WEIGHTED}, +- standard errors")
    pairs = [(name, place) for place in (0, 1) for name in (POSTERIOR, EQUAL)]
    names = (f"{name} | {COLUMNS[place]}" for name, place in pairs)
    print(f"  {'':<11}" + "".join(f"{name.removeprefix(f'{WEIGHTED}, '):>27}" for name in names))
    for title, errors in found.items():
        ratios = (ratio(errors[name][:, 1, place], errors[WEIGHTED][:, 1, place]) for name, place in pairs)
        print(f"  {title:<11}" + "".join(f"{f'{mean:.4f} +- {spread:.4f}':>27}" for mean, spread in ratios))
    print(f"In short, beside {WHOLE}:")
    for name in ways:
        for column in COLUMNS:
            where = {word: [title for title in found if verdicts[column, title][name] == word] for word in WORDS}
            said = "; ".join(f"{word} on {', '.join(titles)}" for word, titles in where.items() if titles)
            print(f"  {f'{name}, {column}':<42}{said}")


def print_best(swept: dict[str, dict[str, dict[str, Errors]]]) -> None:
    print(f"Settings that err least on a cell ({PRINTED}), and how, the most in brackets; only the true cells tell which")
    for title, settings in swept.items():
        words = []
        for name, own in settings.items():
            means = {setting: errors[PRINTED][:, 0, 0].mean() for setting, errors in own.items()}
            best = min(means, key=lambda setting: means[setting])
            words.append(f"{name} {best}: {shown(means[best], 3)} ({shown(max(means.values()), 3)})")
        print(f"  {title:<18}" + "".join(f"{word:>32}" for word in words))


def compared(errors: np.ndarray, others: np.ndarray) -> str:
    (mean, spread), (other, other_spread) = mean_and_spread(errors), mean_and_spread(others)
    gap = (other - mean) / np.hypot(spread, other_spread)
    return WORDS[0 if gap > 2 else 2 if gap < -2 else 1]


def ratio(errors: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Of the means of errors in the same releases, and its standard error."""
    found = errors.mean() / others.mean()
    return found, (errors - found * others).std(ddof=1) / np.sqrt(errors.size) / others.mean()


def helps_up_to(errors: np.ndarray, others: np.ndarray, sides: list[int]) -> int:
    """The largest side at which, and at all smaller ones, the errors are less; 0 if at none."""
    reach = 0
    for place, side in enumerate(sides, len(COLUMNS)):
        if compared(errors[:, 0, place], others[:, 0, place]) != WORDS[0]:
            break
        reach = side
    return reach


def figure_of(
    pictures: dict[str, tuple[np.ndarray, dpi.Release]], found: dict[str, Errors], sides: dict[str, list[int]]
) -> Figure:
    """Of each table the counts, the noisy cells, these smoothed, and the regions, the largest in grey; below, the errors."""
    count = len(pictures)
    figure = Figure(figsize=(14, 2.4 * count + 4.6), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(2.4 * count, 4.6))
    lines = halves[0].subplots(count, 3 + len(ROUNDS), squeeze=False)
    for line, (title, (counts, release)) in zip(lines, pictures.items(), strict=True):
        noisy = np.asarray(release.values[: counts.size], dtype=float)
        shades = {title: counts, "noisy cells": noisy}
        for rounds in ROUNDS:
            smooth = smoothed_cells(noisy, counts.shape, iterations=rounds)
            shades[f"smoothed {rounds} times" if rounds > 1 else "smoothed once"] = smooth
        spread = float(np.asarray(release.stddev)[0])
        norm = AsinhNorm(linear_width=spread, vmin=-2 * spread, vmax=max(counts.max(), 2 * spread))
        for axes, (name, own) in zip(line, shades.items(), strict=False):
            axes.imshow(own.reshape(counts.shape), norm=norm, aspect="auto", interpolation="nearest")
            axes.set_title(name, loc="left")
        labels = labels_of(release)
        colors = np.random.default_rng(5).uniform(0, 0.9, (labels.max() + 1, 3))
        colors[np.bincount(labels).argmax()] = 0.88
        line[-1].imshow(colors[labels].reshape(*counts.shape, 3), aspect="auto", interpolation="nearest")
        line[-1].set_title(f"regions: {len(colors)}", loc="left")
        for axes in line:
            axes.set_xticks([])
            axes.set_yticks([])
    panels = halves[1].subplots(1, count, squeeze=False, sharey=True)[0]
    for axes, (title, errors) in zip(panels, found.items(), strict=True):
        for name, color, marker in zip(DRAWN, COLORS, MARKERS, strict=True):
            mean, spread = (x / sides[title] for x in mean_and_spread(errors[name][:, 0, len(COLUMNS) :]))
            axes.errorbar(sides[title], mean, 2 * spread, color=color, marker=marker, fillstyle="none", linewidth=1, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        axes.set_title(title, loc="left")
        axes.set_xlabel("side of the square")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("mean absolute error / side (records)")
    halves[1].legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=len(DRAWN), frameon=False)
    return figure


if __name__ == "__main__":
    main()
