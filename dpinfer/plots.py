"""Figures: what a release says and how far to trust it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter, StrMethodFormatter
from scipy.stats import binom

if TYPE_CHECKING:
    from dpinfer.calibration import Calibration
    from dpinfer.demo import Demo
    from dpinfer.evaluation import Candlestick

# Okabe and Ito's colours, told apart with any colour vision; markers and dashes say the same again.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"
COLORS = (ORANGE, "#009E73", BLUE, "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("x", "s", "o", "^", "v", "D")


def demo_figure(demo: "Demo") -> Figure:
    """Weekly flights with their interval beside the truth, and the error of ranges by their size."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    full = [week for week, following in zip(demo.weeks, [*demo.weeks[1:], None], strict=True) if following is not None]
    begins = np.array([week.name for week in full], dtype="datetime64[D]")
    left.fill_between(
        begins,
        [w.lower for w in full],
        [w.upper for w in full],
        color=BLUE,
        alpha=0.25,
        linewidth=0,
        label="95% interval",
    )
    left.plot(begins, [w.estimate for w in full], color=BLUE, linewidth=1.6, label="least squares on the tree")
    left.plot(begins, [w.noisy_sum for w in full], "x", color=ORANGE, markersize=5, label="sum of the noisy quarter-hours")
    left.plot(begins, [w.truth for w in full], ".", color="black", markersize=5, label="truth (public here)")
    left.set_title(f"Flights from New York City by week, one release at epsilon = {demo.epsilon:g}", loc="left")
    left.set_ylabel("scheduled departures a week")
    left.set_xlabel("week of 2013")
    low, high = left.get_ylim()
    left.set_ylim(low - 0.2 * (high - low), high)  # room for the legend below every point
    left.legend(frameon=False, loc="lower center", ncols=2)
    left.xaxis.set_major_formatter(ConciseDateFormatter(AutoDateLocator()))

    sizes = [e.size for e in demo.errors]
    for name, color, marker in (("identity", ORANGE, "x"), ("tree", BLUE, "o")):
        label = {"identity": "noisy cells alone, summed", "tree": "16-ary tree, least squares"}[name]
        right.plot(
            sizes,
            [getattr(e, f"{name}_theory") for e in demo.errors],
            "--",
            color=color,
            linewidth=1.2,
            label=f"{label}: expected",
        )
        right.plot(
            sizes,
            [getattr(e, name) for e in demo.errors],
            marker,
            color=color,
            fillstyle="none",
            label=f"{label}: 20 simulations",
        )
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xticks(sizes, [e.name for e in demo.errors], rotation=40, ha="right")
    right.minorticks_off()
    right.set_title("Error of a sum, by the length of its range", loc="left")
    right.set_xlabel("length of the range")
    right.set_ylabel("mean squared error (flights squared)")
    right.legend(frameon=False)
    for axes in (left, right):
        _plain(axes)
    return figure


def answers_figure(
    labels: list[str], values: np.ndarray, lower: np.ndarray, upper: np.ndarray, level: float, *, axis: str | None = None
) -> Figure:
    """Answers with their intervals: points with error bars, or a line with a band where they are many along an axis."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(labels))
    if axis is not None and len(labels) > 60:
        axes.fill_between(place, lower, upper, color=BLUE, alpha=0.25, linewidth=0, label=f"{level:.0%} interval")
        axes.plot(place, values, color=BLUE, linewidth=0.8, label="estimate")
    else:
        spread = np.clip(np.stack([values - lower, upper - values]), 0, None)
        axes.errorbar(place, values, spread, fmt="o", color=BLUE, capsize=3, label=f"estimate and {level:.0%} interval")
    step = -(-len(labels) // 16)
    axes.set_xticks(place[::step], [labels[i] for i in place[::step]], rotation=40, ha="right")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_ylabel("records")
    axes.set_xlabel(axis or "")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6, axis="y")
    axes.set_axisbelow(True)
    return figure


class HistogramView(NamedTuple):
    """Sums over neighbouring bins with their intervals, as one panel shows them.

    Attributes:
        title: of the panel.
        edges: [bins + 1], numbers or numpy dates.
        values, lower, upper: [bins].
        raw: sums of the noisy cells beside them, or None.
        truth: true sums, where they are public, or None.
    """

    title: str
    edges: np.ndarray
    values: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    raw: np.ndarray | None = None
    truth: np.ndarray | None = None


def histogram_figure(views: Sequence[HistogramView], unit: str, place: str, *, level: float = 0.95) -> Figure:
    """Histograms with interval bands, a panel each.

    Args:
        views: what the panels show, for instance one release by month and by day.
        unit: of the counts.
        place: what the horizontal axis is.
        level: of the intervals.
    """
    figure = Figure(figsize=(6.2 * len(views), 4.4), layout="constrained")
    for view, axes in zip(views, figure.subplots(1, len(views), squeeze=False)[0], strict=True):
        edges = np.asarray(view.edges)
        are_dates = edges.dtype.kind == "M"
        if are_dates:
            edges = edges.astype("datetime64[us]")
        axes.stairs(view.upper, edges, baseline=view.lower, fill=True, color=BLUE, alpha=0.25, label=f"{level:.0%} interval")
        axes.stairs(view.values, edges, baseline=None, color=BLUE, linewidth=1.6, label="estimate")
        middles = edges[:-1] + (edges[1:] - edges[:-1]) / 2
        if view.raw is not None:
            axes.plot(middles, view.raw, "x", color=ORANGE, markersize=5, label="sum of the noisy cells")
        if view.truth is not None:
            axes.plot(middles, view.truth, ".", color="black", markersize=5, label="truth")
        if are_dates:
            axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
        axes.set_title(view.title, loc="left")
        axes.set_xlabel(place)
        _plain(axes)
    figure.axes[0].set_ylabel(unit)
    _legend_below(figure)
    return figure


def budgets_figure(splits: Mapping[str, np.ndarray], unit: str) -> Figure:
    """What each level of a tree gets of the budget, top first, a group of bars for each way to split it.

    Args:
        splits: by name, the budget of each level [levels]; their numbers of levels may differ.
        unit: "epsilon" or "rho".
    """
    figure = Figure(figsize=(6, 1.6 + 0.22 * sum(map(np.size, splits.values()))), layout="constrained")
    _budget_bars(figure.subplots(), splits, unit)
    _legend_below(figure)
    return figure


def _budget_bars(axes: Any, splits: Mapping[str, np.ndarray], unit: str) -> None:
    colors = (BLUE, *(color for color in COLORS if color != BLUE))
    most, height = max(map(np.size, splits.values())), 0.8 / len(splits)
    for number, (name, budgets) in enumerate(splits.items()):
        # Levels below the root; the cells are the last of each, so that those of several trees stand beside each other.
        place = np.arange(most - np.size(budgets), most) + (number - (len(splits) - 1) / 2) * height
        axes.barh(place, budgets, height, color=colors[number % len(colors)], label=name)
    axes.set_yticks(range(most), [*(f"{most - 1 - depth} above the cells" for depth in range(most - 1)), "cells"])
    axes.invert_yaxis()
    axes.set_xlabel(f"budget ({unit})")
    _plain(axes)


class ErrorSeries(NamedTuple):
    """One method's errors along an axis: measured means (nan: not measured), their standard errors, and what theory expects
    (None: nothing).
    """

    name: str
    measured: np.ndarray
    standard_errors: np.ndarray
    expected: np.ndarray | None


def range_error_figure(sizes: Sequence[int], panels: Sequence[tuple[str, Sequence[ErrorSeries]]], unit: str) -> Figure:
    """Mean squared error by range size, a panel for each setting: measured points with 2 standard errors, theory as lines.

    Args:
        sizes: cells of a range, of all series.
        panels: a title and its series; the same methods in each.
        unit: of the squared error.
    """
    along = [(title, sizes, series) for title, series in panels]
    return _error_figure(along, "cells in the range", f"mean squared error ({unit})")


def branching_error_figure(panels: Sequence[tuple[str, Sequence[int], Sequence[ErrorSeries]]], unit: str) -> Figure:
    """Mean squared error of ranges by the branching of the tree: measured points with 2 standard errors, theory as lines.

    Args:
        panels: a title, the branchings and the series over them; the same methods in each.
        unit: of the squared error.
    """
    return _error_figure(panels, "branching of the tree", f"mean squared error ({unit})")


def budget_error_figure(epsilons: Sequence[float], panels: Sequence[tuple[str, Sequence[ErrorSeries]]], error: str) -> Figure:
    """Errors by the privacy budget: measured points with 2 standard errors, theory as lines.

    Args:
        epsilons: of all series.
        panels: a title and its series; the same methods in each.
        error: what the vertical axis is, with its unit.
    """
    return _error_figure([(title, epsilons, series) for title, series in panels], "epsilon", error)


def _error_figure(panels: Sequence[tuple[str, Sequence[Any], Sequence[ErrorSeries]]], along: str, error: str) -> Figure:
    most = max((len(series) for *_, series in panels), default=0)
    if most > len(COLORS):
        raise ValueError(f"panels must show at most {len(COLORS)} series each, which can be told apart; got {most}.")
    figure = Figure(figsize=(4.6 * len(panels), 4.6), layout="constrained")
    for (title, places, series), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        for one, color, marker in zip(series, COLORS, MARKERS, strict=False):
            if one.expected is not None:
                axes.plot(places, one.expected, color=color, linewidth=1.2)
            axes.errorbar(
                places,
                one.measured,
                2 * one.standard_errors,
                fmt=marker,
                color=color,
                fillstyle="none",
                markersize=5,
                elinewidth=0.8,
                label=one.name if one.expected is None else f"{one.name}; line: expected",
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_xlabel(along)
        _by_powers_of_ten(axes)
        axes.set_title(title, loc="left")
        _plain(axes)
    figure.axes[0].set_ylabel(error)
    _legend_below(figure)
    return figure


def _by_powers_of_ten(axes: Any) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend_below(figure: Figure) -> None:
    """What the first panel's signs mean, below all panels, where it covers nothing."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = max(1, min(len(labels), int(figure.get_figwidth() / 2.6)))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize="small")


class Sticks(NamedTuple):
    """One method's errors as a candlestick, and the mean that theory expects (None: nothing)."""

    name: str
    stick: "Candlestick"
    expected_mean: float | None = None


def candlestick_figure(panels: Sequence[tuple[str, Sequence[Sticks]]], error: str) -> Figure:
    """Candlesticks of errors, a panel for each setting: quartiles as a box, median and mean in it, the 95th percentile above.

    Args:
        panels: a title and the methods in it.
        error: what the vertical axis is, with its unit.
    """
    figure = Figure(figsize=(1.6 + 3.4 * len(panels), 4.8), layout="constrained")
    for (title, sticks), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        place = np.arange(len(sticks))
        found = [one.stick for one in sticks]
        lower, upper = (np.array([getattr(one, name) for one in found]) for name in ("lower_quartile", "upper_quartile"))
        axes.vlines(place, upper, [one.percentile_95 for one in found], color=GREY, linewidth=1.2)
        axes.bar(place, upper - lower, 0.55, lower, color="#9ecae1", edgecolor=BLUE, label="quartiles, to the 95th percentile")
        axes.hlines([one.median for one in found], place - 0.27, place + 0.27, color=BLUE, label="median")
        axes.plot(place, [one.mean for one in found], "o", color="black", markersize=5, label="mean")
        expected = np.array([np.nan if one.expected_mean is None else one.expected_mean for one in sticks], dtype=float)
        if not np.isnan(expected).all():
            axes.plot(place, expected, "_", color=ORANGE, markersize=22, markeredgewidth=2, label="mean, expected")
        axes.set_xticks(place, [one.name for one in sticks], rotation=40, ha="right")
        _by_powers_of_ten(axes)
        if (lower > 0).all():
            axes.set_ylim(bottom=lower.min() / 1.3)
        axes.set_title(title, loc="left")
        _plain(axes)
    figure.axes[0].set_ylabel(error)
    _legend_below(figure)
    return figure


def rank_figure(
    truth: np.ndarray,
    errors: Mapping[str, np.ndarray],
    band: tuple[np.ndarray, np.ndarray, np.ndarray],
    unit: str,
    *,
    level: float,
) -> Figure:
    """Counts in order of their size: one estimate with its band beside the truth, and the errors of methods rank by rank.

    Args:
        truth: [ranks], true counts, the smallest first.
        errors: by the method's name, the mean squared error at each rank, [ranks].
        band: an estimate, its lower and its upper ends, [ranks] each.
        unit: of the counts.
        level: of the band.
    """
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    rank = np.arange(1, truth.size + 1)
    estimate, lower, upper = band
    left.fill_between(rank, lower, upper, color=BLUE, alpha=0.25, linewidth=0, label=f"{level:.0%} interval")
    left.plot(rank, estimate, color=BLUE, linewidth=1.4, label="estimate")
    left.plot(rank, truth, color="black", linewidth=1, linestyle="--", label="truth")
    left.set_ylabel(unit)
    left.set_yscale("symlog", linthresh=10)
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    left.set_title("One release, by rank", loc="left")
    left.legend(frameon=False)
    for number, (name, error) in enumerate(errors.items()):
        right.plot(rank, error, color=COLORS[number % len(COLORS)], linewidth=1, label=name)
    _by_powers_of_ten(right)
    right.set_ylabel(f"mean squared error ({unit} squared)")
    right.set_title("Error along the sequence", loc="left")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.set_xlabel("rank, the smallest first")
        _plain(axes)
    return figure


def rank_histogram_figure(found: Mapping[str, "Calibration"]) -> Figure:
    """Ranks of the truth among draws from posteriors: a row a study, a panel a quantity, and the range of 99% of bins if all is
    right.

    Args:
        found: by the name of the study, what :func:`dpinfer.evaluation.simulation_based_calibration` returned.
    """
    columns = max(len(one.ranks) for one in found.values())
    figure = Figure(figsize=(1.2 + 1.7 * columns, 0.4 + 1.55 * len(found)), layout="constrained")
    for (title, one), row in zip(found.items(), figure.subplots(len(found), columns, squeeze=False), strict=True):
        low, high = (binom.ppf(tail, one.num_problems, one.shares) for tail in (0.005, 0.995))
        for axes in row[len(one.ranks) :]:
            axes.set_axis_off()
        for quantity, axes in zip(one.ranks, row, strict=False):
            axes.stairs(high, baseline=low, fill=True, color="#dddddd")
            axes.stairs(one.num_problems * one.shares, baseline=None, color=GREY, linewidth=0.8)
            axes.stairs(one.histogram(quantity), fill=True, color=BLUE, alpha=0.6)
            axes.set_title(quantity, fontsize="small")
            axes.set_xticks([])
            axes.set_ylim(0, None)
            axes.tick_params(labelsize="x-small")
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel(title, fontsize="small")
    figure.supxlabel(
        "rank of the truth among draws: the least at the left; grey: 99% of bins of right posteriors", fontsize="small"
    )
    return figure


def plan_figure(
    curve: list[tuple[int, float]], flat: float, recommended: tuple[int | None, float], budgets: np.ndarray, unit: str
) -> Figure:
    """The expected error of a range by the branching of the tree, and the budgets of the levels that are recommended.

    Args:
        curve: branchings and the average variance over all ranges with equal budgets.
        flat: that of the flat histogram.
        recommended: the branching (None: flat) and its variance with its own budgets.
        budgets: of each level, top first.
        unit: "epsilon" or "rho".
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    branchings, variances = np.array(curve).T
    left.plot(branchings, np.sqrt(variances), color=BLUE, linewidth=1.6, label="tree, equal budgets")
    left.axhline(np.sqrt(flat), color=ORANGE, linestyle="--", linewidth=1.4, label="flat histogram")
    branching, variance = recommended
    if branching is not None:
        left.plot([branching], [np.sqrt(variance)], "o", color="black", label="recommended, with its budgets")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(ScalarFormatter())
    left.set_xlabel("branching of the tree")
    _by_powers_of_ten(left)
    left.set_ylabel("root mean squared error of a range (records)")
    left.set_title("Error of a sum, on average over all ranges", loc="left")
    left.legend(frameon=False)
    _plain(left)
    _budget_bars(right, {"recommended": budgets}, unit)
    right.set_title("Recommended budget of each level", loc="left")
    return figure


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the ending of the path says in which format."""
    figure.savefig(path, dpi=150)
