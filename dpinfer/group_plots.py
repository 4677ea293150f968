"""Figures of count-of-counts histograms."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from dpinfer.plots import BLUE, COLORS, _plain

# Points along a line: the mean of neighbouring groups where there are more.
_POINTS = 2000


def positions_figure(sizes: np.ndarray, errors: Mapping[str, np.ndarray], title: str) -> Figure:
    """The error of the size of each group by its position, the smallest first, and the sizes (Kuo et al. 2018, figure 1).

    Args:
        sizes: [groups], the true ones in order.
        errors: by the method's name, the mean absolute error of each group's size, [groups].
        title: what is shown.
    """
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    edges = np.unique(np.linspace(0, sizes.size, _POINTS + 1).astype(np.int64))
    starts, lengths = edges[:-1], np.diff(edges)
    position = (edges[:-1] + edges[1:]) / 2
    for number, (name, error) in enumerate(errors.items()):
        upper.plot(
            position, np.add.reduceat(error, starts) / lengths, color=COLORS[number % len(COLORS)], linewidth=1, label=name
        )
    upper.set_yscale("symlog", linthresh=0.01)
    upper.set_ylabel("mean absolute error of a size")
    upper.set_title(title, loc="left")
    upper.legend(frameon=False)
    lower.plot(position, np.add.reduceat(sizes, starts) / lengths, color="black", linewidth=1)
    lower.set_yscale("symlog", linthresh=1)
    lower.set_ylabel("true size")
    lower.set_xlabel("group, the smallest first")
    for axes in (upper, lower):
        _plain(axes)
    return figure


class Panel(NamedTuple):
    """A region: its name and, [sizes] each, how many groups have at most each size and the ends of the band around that."""

    name: str
    values: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def cumulative_figure(sizes: np.ndarray, panels: Sequence[Panel], *, level: float) -> Figure:
    """How many groups have at most each size, in each region, with its band.

    Args:
        sizes: [sizes], increasing.
        panels: one for each region.
        level: of the band.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3 * rows + 0.6), layout="constrained")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        band = {"step": "post", "color": BLUE, "alpha": 0.25, "linewidth": 0, "label": f"{level:.0%} interval"}
        axes.fill_between(sizes, panel.lower, panel.upper, **band)
        axes.step(sizes, panel.values, where="post", color=BLUE, linewidth=1.2, label="estimate")
        axes.set_xscale("symlog", linthresh=10)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.set_title(panel.name, loc="left")
        axes.set_xlabel("size")
        axes.set_ylabel("groups of at most this size")
        _plain(axes)
        if not number:
            axes.legend(frameon=False, loc="lower right")
    return figure
