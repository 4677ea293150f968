"""Figures show what they are given, with axes that name their units."""

from typing import Any

import numpy as np
import pytest
import scipy.stats

from dpinfer import group_plots, plots
from dpinfer.evaluation import Calibration, candlesticks


def panels_of(figure: Any) -> list[Any]:
    return figure.axes


def test_a_histogram_has_its_band_and_what_stands_beside_it(tmp_path):
    values = np.array([3.0, 5.0, 4.0])
    days = np.arange("2013-07-01", "2013-07-05", dtype="datetime64[D]")
    views = [
        plots.HistogramView("by day", days, values, values - 1, values + 2, raw=values + 9, truth=np.ones(3)),
        plots.HistogramView("by cell", np.arange(4), values, values - 1, values + 1),
    ]
    figure = plots.histogram_figure(views, "flights", "day", level=0.9)
    left, right = panels_of(figure)
    assert left.get_ylabel() == "flights"
    assert left.get_xlabel() == right.get_xlabel() == "day"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "90% interval", "estimate", "sum of the noisy cells", "truth",
    ]  # fmt: skip
    band, line = left.patches
    np.testing.assert_array_equal(band.get_data().values, values + 2)
    np.testing.assert_array_equal(band.get_data().baseline, values - 1)
    np.testing.assert_array_equal(line.get_data().values, values)
    raw, truth = left.lines
    np.testing.assert_array_equal(raw.get_ydata(), values + 9)
    np.testing.assert_array_equal(truth.get_ydata(), 1)
    assert str(raw.get_xdata()[0]) == "2013-07-01T12:00:00.000000"
    assert not right.lines
    plots.save(figure, tmp_path / "two.svg")
    assert "<svg" in (tmp_path / "two.svg").read_text()


def test_budgets_of_trees_stand_beside_each_other_from_the_cells_up():
    figure = plots.budgets_figure({"tall": np.array([0.1, 0.2, 0.7]), "low": np.array([0.4, 0.6])}, "epsilon")
    (axes,) = panels_of(figure)
    assert axes.get_xlabel() == "budget (epsilon)"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2 above the cells", "1 above the cells", "cells"]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [0.1, 0.2, 0.7, 0.4, 0.6]
    places = [round(bar.get_y() + bar.get_height() / 2) for bar in axes.patches]
    assert places == [0, 1, 2, 1, 2]


@pytest.mark.parametrize("kind", ["range", "branching"])
def test_errors_have_points_and_theory(kind):
    measured = np.array([1.0, np.nan, 4.0])
    series = [
        plots.ErrorSeries("with theory", measured, measured / 10, np.array([1.0, 2.0, 4.0])),
        plots.ErrorSeries("without", measured, measured / 10, None),
    ]
    if kind == "range":
        with pytest.raises(ValueError, match="at most 6 series each"):
            plots.range_error_figure([1, 2, 4], [("one", series * 4)], "records squared")
        figure = plots.range_error_figure([1, 2, 4], [("one", series), ("two", series)], "records squared")
    else:
        figure = plots.branching_error_figure([("one", [1, 2, 4], series), ("two", [2, 4, 8], series)], "records squared")
    first, second = panels_of(figure)
    assert first.get_ylabel() == "mean squared error (records squared)"
    assert (
        first.get_xlabel() == second.get_xlabel() == {"range": "cells in the range", "branching": "branching of the tree"}[kind]
    )
    assert first.get_yscale() == "log"
    np.testing.assert_array_equal(first.lines[0].get_ydata(), [1, 2, 4])
    np.testing.assert_array_equal(first.lines[1].get_ydata(), measured)
    assert len(first.lines) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["with theory; line: expected", "without"]


def test_candlesticks_show_their_quantiles():
    (stick,) = candlesticks(np.arange(1.0, 102.0))
    figure = plots.candlestick_figure(
        [("here", [plots.Sticks("flat", stick, 50.0), plots.Sticks("tree", stick)])], "error (records)"
    )
    (axes,) = panels_of(figure)
    assert axes.get_ylabel() == "error (records)"
    box = axes.patches[0]
    assert (box.get_y(), box.get_y() + box.get_height()) == (stick.lower_quartile, stick.upper_quartile) == (26, 76)
    mean, expected = axes.lines
    np.testing.assert_array_equal(mean.get_ydata(), [51, 51])
    np.testing.assert_array_equal(expected.get_ydata(), [50, np.nan])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["flat", "tree"]


def test_errors_by_position_are_means_of_neighbouring_groups():
    sizes = np.repeat([1, 2, 9], [3000, 900, 100])
    errors = {"H_g": np.arange(4000.0), "H_c": np.ones(4000)}
    figure = group_plots.positions_figure(sizes, errors, "four thousand")
    upper, lower = panels_of(figure)
    assert upper.get_title(loc="left") == "four thousand"
    assert [text.get_text() for text in upper.get_legend().get_texts()] == ["H_g", "H_c"]
    line = upper.lines[0]
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1.0, 4000, 2))
    np.testing.assert_array_equal(line.get_ydata(), np.arange(0.5, 4000, 2))
    assert lower.lines[0].get_ydata().tolist() == sizes[::2].tolist()
    few = group_plots.positions_figure(np.array([3, 4]), {"H_c": np.array([0.0, 1.0])}, "two")
    np.testing.assert_array_equal(panels_of(few)[0].lines[0].get_ydata(), [0.0, 1.0])


def test_ranks_of_truths_are_histograms_with_the_range_of_right_ones(tmp_path):
    ranks = np.arange(40) % 8
    found = {
        "one": Calibration({"total": ranks, "a cell": np.zeros(40, dtype=np.int64)}, 7, np.ones(40, dtype=bool)),
        "other": Calibration({"total": ranks}, 7, np.ones(40, dtype=bool)),
    }
    figure = plots.rank_histogram_figure(found)
    total, cell, other, nothing = panels_of(figure)
    assert [axes.get_title() for axes in (total, cell, other)] == ["total", "a cell", "total"]
    assert (total.get_ylabel(), other.get_ylabel()) == ("one", "other")
    assert not nothing.axison
    band, expected, drawn = (patch.get_data() for patch in total.patches)
    np.testing.assert_array_equal(drawn.values, [10, 10, 10, 10])
    np.testing.assert_array_equal(expected.values, drawn.values)
    np.testing.assert_array_equal(cell.patches[2].get_data().values, [40, 0, 0, 0])
    ends = scipy.stats.binom.ppf([0.005, 0.995], 40, 1 / 4)
    np.testing.assert_array_equal(np.stack([band.baseline, band.values]), np.repeat(ends[:, None], 4, axis=1))
    plots.save(figure, tmp_path / "ranks.png")
