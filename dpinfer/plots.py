"""Figures: what a release says and how far to trust it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter, StrMethodFormatter

if TYPE_CHECKING:
    from dpinfer.demo import Demo

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
    left.set_yscale("log")
    left.xaxis.set_major_formatter(ScalarFormatter())
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("branching of the tree")
    left.set_ylabel("root mean squared error of a range (records)")
    left.set_title("Error of a sum, on average over all ranges", loc="left")
    left.legend(frameon=False)
    names = [f"level {depth + 1}" for depth in range(budgets.size - 1)]
    right.barh([*names, "cells"], budgets, color=BLUE)
    right.invert_yaxis()
    right.set_xlabel(f"budget ({unit})")
    right.set_title("Recommended budget of each level", loc="left")
    for axes in (left, right):
        _plain(axes)
    return figure


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


class ErrorSeries(NamedTuple):
    """One method's errors by range size: measured means, their standard errors, and what theory expects (None: nothing)."""

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
    figure = Figure(figsize=(4.6 * len(panels), 4.6), layout="constrained")
    for place, ((title, series), axes) in enumerate(zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True)):
        for one, color, marker in zip(series, COLORS, MARKERS, strict=False):
            if one.expected is not None:
                axes.plot(sizes, one.expected, color=color, linewidth=1.2)
            axes.errorbar(
                sizes,
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
        axes.set_yscale("log")
        axes.set_xlabel("cells in the range")
        axes.set_title(title, loc="left")
        if not place:
            axes.set_ylabel(f"mean squared error ({unit})")
            axes.legend(frameon=False, fontsize="small")
        _plain(axes)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the ending of the path says in which format."""
    figure.savefig(path, dpi=150)
