"""The mechanism as a whole: what is measured inside bins and with how much noise, what is spent, medians, files, errors."""

import importlib
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import least_squares
from dpinfer.mechanisms import StructuredCells, structure_first
from dpinfer.mechanisms.bin_nodes import bin_nodes
from dpinfer.mechanisms.structure_first import _middles
from dpinfer.noise import exact
from dpinfer.privacy import largest_change
from dpinfer.queries import Identity, Ranges, Total
from dpinfer.testing import epsilon_lower_bound, neighboring_cells

CELLS = np.repeat([3, 50, 0, 7], [5, 3, 6, 2])
STOPS = np.array([5, 8, 14, 16])


@pytest.mark.slow
def test_bins_that_are_plain_to_see():
    for selection in ("joint", "noisy_min", "exponential"):
        found = structure_first(CELLS, 4, epsilon=60, selection=selection)
        assert found.stops.tolist() == STOPS.tolist()
        # Noise of scale 1 / 30 is none but for 2e-13.
        np.testing.assert_allclose(found.cells, CELLS, atol=1e-12)
        assert found.structure_epsilon == 30
        assert (found.epsilon, found.neighbors, found.statistic, found.inside) == (60, "add_remove", "mean", "flat")
        assert found.sizes.tolist() == [5, 3, 6, 2]
        assert found.block_ids.tolist() == np.repeat(range(4), [5, 3, 6, 2]).tolist()
    free = structure_first(CELLS, epsilon=60)
    assert set(STOPS) <= set(free.stops.tolist())
    # Squares need a budget that stands up to a change of 2 max_count + 1; larger counts are taken for the bound.
    for selection in ("joint", "noisy_min", "exponential"):
        found = structure_first(CELLS, 4, epsilon=4000, cost="sse", max_count=45, selection=selection)
        assert found.stops.tolist() == STOPS.tolist()
        np.testing.assert_allclose(found.cells, CELLS, atol=1e-2)


@pytest.mark.parametrize("inside", ["flat", "two_level", "tree"])
@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_no_node_is_without_noise_and_the_budget_is_spent(inside, neighbors):
    # Bins that begin beyond their own size are those that one public program releases without noise inside.
    stops = np.array([1, 3, 11, 16, 32, 33])
    nodes, weights = bin_nodes(stops, inside)
    spread = [Fraction(w) for w in sorted(set(weights))]
    rows = np.array([spread.index(w) for w in weights])
    units = 2 if neighbors == "replace_one" else 1
    assert largest_change(nodes, spread, rows, 1, neighbors) == units
    matrix = np.asarray(nodes.dense())
    every = np.array([float(w) for w in weights]) @ matrix
    np.testing.assert_allclose(every, 1, rtol=1e-12)
    assert [i for i, w in enumerate(weights) if not w] == ([] if inside == "flat" else [0])
    release = dp.measure(np.arange(33), nodes, epsilon=1, row_weights=weights, neighbors=neighbors)
    scales = np.broadcast_to(release.scale, len(weights))
    assert (scales[np.array(weights) > 0] >= units).all()
    # Each bin's own sum is a row, and each sum of a tree splits its parent.
    for start, stop in zip([0, *stops[:-1]], stops, strict=True):
        assert any((row[start:stop] == 1).all() and row.sum() == stop - start for row in matrix)


def variances(size, inside):
    """Of a cell, of the bin and of its first two cells, by dense least squares, for a budget of 1 and continuous noise."""
    nodes, weights = bin_nodes(np.array([3, 3 + size]), inside)
    kept = np.array([float(w) for w in weights])
    matrix, kept = np.asarray(nodes.dense(), float)[kept > 0], kept[kept > 0]
    covariance = np.linalg.inv(matrix.T @ np.diag(kept**2 / 2) @ matrix)[3:, 3:]
    return covariance[0, 0], covariance.sum(), covariance[:2, :2].sum()


@pytest.mark.slow
def test_errors_inside_bins_are_those_of_theory():
    # Two levels: (8 / epsilon^2) (m - m^2 / (s + 1)) for m of s cells (Xu et al. 2013, section 6.2); a bin of one cell 2.
    for size in (2, 3, 4, 7):
        cell, whole, two = variances(size, "two_level")
        assert cell == pytest.approx(8 * (1 - 1 / (size + 1)))
        assert whole == pytest.approx(8 * size / (size + 1))
        assert two == pytest.approx(8 * (2 - 4 / (size + 1)))
    assert variances(1, "two_level")[0] == pytest.approx(2)
    # Trees: computed by an independent program for 2 and 4 cells; h^2 times 2 times 0.6667, 0.6190.
    assert variances(2, "tree")[:2] == pytest.approx((16 / 3, 16 / 3))
    assert variances(4, "tree")[:2] == pytest.approx((11.142857142857142, 10.285714285714285))
    # The record's own, with its discrete noise; answers without and with intervals.
    stops = np.array([2, 7, 8])
    workload = Ranges(8, [0, 2, 3, 0], [1, 7, 5, 8])
    for inside in ("two_level", "tree"):
        nodes, weights = bin_nodes(stops, inside)
        release = dp.measure(np.arange(8), nodes, epsilon=0.5, row_weights=weights)
        found = StructuredCells(
            stops,
            np.asarray(release.values),
            np.asarray(release.scale),
            "mean",
            inside,
            Fraction(1),
            Fraction(1, 2),
            "add_remove",
        )
        kept = np.isfinite(found.scales)
        matrix = np.asarray(nodes.dense(), float)[kept]
        precision = np.diag(1 / np.asarray(dp.noise.stddev("discrete_laplace", found.scales[kept])) ** 2)
        w = np.asarray(workload.dense(), float)
        expected = np.sqrt(np.diag(w @ np.linalg.inv(matrix.T @ precision @ matrix) @ w.T))
        np.testing.assert_allclose(found.noise_stddev(workload), expected, rtol=1e-9)
        answers = found.answer(workload)
        np.testing.assert_allclose(answers.stddev, expected, rtol=1e-9)
        np.testing.assert_allclose(answers.values, workload @ found.cells, rtol=1e-9)
        lower, upper = answers.interval(0.9)
        assert (np.asarray(lower) < np.asarray(answers.values)).all()
        assert (np.asarray(upper) > np.asarray(answers.values)).all()


@pytest.mark.slow
def test_noise_given_the_bins(monkeypatch):
    # Flat: 2 / epsilon^2 sum 1 / s_j for all cells together, here with discrete noise; of sums across bins by their shares.
    monkeypatch.setattr(importlib.import_module("dpinfer.mechanisms.structure_first"), "_one_by_one", lambda *_: STOPS)
    workload = Ranges(16, [0, 4, 0], [1, 9, 16])

    def release(values):
        return structure_first(CELLS, 4, epsilon=0.6, structure_epsilon=0.1, selection="noisy_min", values=values)

    for values in ("mean", "median"):
        found, drawn, answers = release(values), [], []
        for _ in range(400):
            found = release(values)
            drawn.append(found.cells - CELLS)
            answers.append(np.asarray(found.answer(workload).values) - workload @ CELLS)
        spread = found.noise_stddev(Identity(16))
        variance = float(dp.noise.stddev("discrete_laplace", 2)) ** 2
        size = np.repeat([5, 3, 6, 2], [5, 3, 6, 2])
        expected = variance / size**2 if values == "mean" else np.where(size % 2, variance, variance / 4)
        np.testing.assert_allclose(spread**2, expected, rtol=1e-9)
        # A squared Laplace draw has a standard deviation of sqrt(5) of its mean; 4.5 standard errors.
        np.testing.assert_allclose(np.mean(np.square(drawn), axis=0), expected, rtol=4.5 * (5 / 400) ** 0.5)
        np.testing.assert_allclose(
            np.mean(np.square(answers), axis=0), found.noise_stddev(workload) ** 2, rtol=4.5 * (5 / 400) ** 0.5
        )
        with pytest.raises(ValueError, match="structure_first gives no intervals"):
            found.answer(workload).interval()
        assert found.scales.tolist() == [2] * 4


def test_medians_change_by_one():
    for size in range(1, 6):
        for cells in np.ndindex(*[4] * size):
            x = np.array(cells)
            middle = _middles(x, np.array([size]))[0]
            assert middle == (np.median(x) if size % 2 else 2 * np.median(x))
            if max(cells) < 3:
                for other in neighboring_cells(x, "add_remove"):
                    assert abs(_middles(other, np.array([size]))[0] - middle) <= 1
    assert _middles(np.array([2**62, 2**62 + 1]), np.array([2]))[0] == 2**63 - 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"selection": "noisy_min", "values": "median"}, {"bins": None, "inside": "two_level"}])
def test_the_whole_keeps_its_promise(options):
    given: dict[str, Any] = {"bins": 2} | options

    def mechanism(cells):
        found = structure_first(cells, epsilon=1, **given)
        # Whatever the bins are, a vector of one length.
        padded = np.zeros(8)
        padded[: found.noisy_values.size] = found.noisy_values
        return np.append(found.stops.sum() * 10 + found.stops.size, padded)

    for cells, other in (([0, 3, 3], [0, 2, 3]), ([0, 0, 1], [0, 0, 0])):
        assert epsilon_lower_bound(mechanism, np.array(cells), np.array(other), num_samples=300).epsilon <= 1


def test_one_bin_or_a_bin_for_each_cell_costs_nothing_to_choose():
    ledger = dp.Ledger(epsilon=3)
    one = structure_first(CELLS, 1, epsilon=1, ledger=ledger)
    each = structure_first(CELLS, 16, epsilon=1, ledger=ledger)
    single = structure_first([4], epsilon=1, ledger=ledger)
    assert ledger.remaining == 0
    assert (one.stops.tolist(), each.stops.tolist(), single.stops.tolist()) == ([16], list(range(1, 17)), [1])
    for found in (one, each, single):
        assert found.structure_epsilon == 0
        assert set(found.scales.tolist()) == {1.0}
    assert structure_first(CELLS, 3, epsilon=1, neighbors="replace_one").scales.tolist() == [4.0] * 3
    with pytest.raises(ValueError, match="structure_epsilon must be None"):
        structure_first(CELLS, 1, epsilon=1, structure_epsilon=0.5)
    with pytest.raises(ValueError, match="less than the"):
        structure_first(CELLS, 3, epsilon=1, ledger=ledger)


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("cost", "options"), [("sae", {}), ("sse", {"max_count": 9})])
def test_bins_are_chosen_at_the_rate_that_the_budget_buys(cost, options, neighbors, monkeypatch):
    """What is handed to the rules, whose privacy at that rate is another test's."""
    module, asked = importlib.import_module("dpinfer.mechanisms.structure_first"), []
    units = 2 if neighbors == "replace_one" else 1
    given: dict[str, Any] = {"epsilon": 3, "structure_epsilon": 2, "cost": cost, "neighbors": neighbors} | options

    def one_by_one(costs, n, bins, rate, selection):
        asked.append((costs.change, n, bins, rate, selection))
        return STOPS

    class Weights:
        def __init__(self, row, n, bins, rate, price):
            asked.append((n, bins, rate, price))

        def draw(self):
            return STOPS

    monkeypatch.setattr(module, "_one_by_one", one_by_one)
    monkeypatch.setattr(module, "SegmentationWeights", Weights)
    monkeypatch.setattr(module, "dyadic_rate", lambda epsilon, change, n, bins: (epsilon, change, n, bins))
    unit = 2**16 if cost == "sse" else 1
    for selection, change in (("noisy_min", 17), ("exponential", 19)):
        change = change * unit if cost == "sse" else 1
        structure_first(CELLS, 4, selection=selection, **given)
        assert asked.pop() == (change, 16, 4, Fraction(2) / (3 * 2 * change * units), selection)
    change = 17 * unit if cost == "sse" else 1
    structure_first(CELLS, 4, **given)
    assert asked.pop() == (16, 4, (2, change * units, 16, 4), 0.0)
    structure_first(CELLS, bin_price=1.5, **given)
    assert asked.pop() == (16, None, (2, change * units, 16, 16), 1.5)
    for values in ("mean", "median"):
        assert structure_first(CELLS, 4, values=values, **given).scales.tolist() == [float(units)] * 4


@pytest.mark.slow
def test_nothing_is_raised_once_the_budget_is_charged():
    # One bin for all cells does not change where a record moves; the bins that are drawn decide how large noise is.
    for inside in ("flat", "two_level", "tree"):
        for cells in ([0] * 6, [0, 0, 0, 9, 9, 9]):
            for _ in range(20):
                assert structure_first(cells, epsilon=1, neighbors="replace_one", inside=inside).epsilon == 1
        assert structure_first([4], epsilon=1, neighbors="replace_one", inside=inside).scales.min() >= 2
        assert structure_first(CELLS, 1, epsilon=1, neighbors="replace_one", inside=inside).stops.tolist() == [16]
    ledger = dp.Ledger(epsilon=1)
    for options in ({"bins": 3, "epsilon": Fraction(1, 2**37)}, {"bins": 2, "epsilon": Fraction(3, 2**37), "inside": "tree"}):
        with pytest.raises(ValueError, match="epsilon is too small"):
            structure_first([0] * 4, ledger=ledger, selection="noisy_min", **options)
    with pytest.raises(ValueError, match="structure_epsilon is too small"):
        structure_first([0] * 4, 2, epsilon=1, structure_epsilon=2e-14, cost="sse", max_count=10**8, ledger=ledger)
    assert ledger.spent == 0
    # Budgets beyond all reason, with noise that is nothing then.
    for epsilon in (1e300, 10**400):
        for selection in ("joint", "noisy_min", "exponential"):
            found = structure_first(CELLS * 10**9, 4, epsilon=epsilon, selection=selection)
            assert found.stops.tolist() == STOPS.tolist()


def test_sums_are_a_measurement():
    found = structure_first(CELLS, 4, epsilon=5)
    assert isinstance(found.measurement.queries, dp.queries.Partition)
    np.testing.assert_allclose(least_squares(found.measurement).cells, found.cells, rtol=1e-9)
    assert float(found.answer(Total(16)).values[0]) == pytest.approx(found.noisy_values.sum())
    with pytest.raises(ValueError, match="medians were released"):
        _ = structure_first(CELLS, 4, epsilon=5, values="median").measurement


def test_files(tmp_path):
    for inside in ("flat", "tree"):
        found = structure_first(CELLS, epsilon=Fraction(1, 3), structure_epsilon=0.1, inside=inside, neighbors="replace_one")
        found.save(tmp_path / "bins.npz")
        again = StructuredCells.load(tmp_path / "bins.npz")
        for name in ("stops", "noisy_values", "scales"):
            np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
        for name in ("statistic", "inside", "epsilon", "structure_epsilon", "neighbors"):
            assert getattr(again, name) == getattr(found, name)
        np.testing.assert_allclose(again.cells, found.cells)
    with pytest.raises(ValueError, match="is no dpinfer release: its header"):
        dp.Release.load(tmp_path / "bins.npz")


@pytest.mark.parametrize(
    ("cells", "options", "said"),
    [
        ([1.5, 2], {}, "cells must have an integer dtype"),
        ([[1, 2]], {}, "cells must be a vector"),
        ([1, 2], {"epsilon": 0}, "epsilon must be positive"),
        ([1, 2], {"bins": 3}, "bins must be at most the number of cells, 2, got 3"),
        ([1, 2], {"bins": 0}, "bins must be at least 1"),
        ([1, 2], {"selection": "noisy_min"}, "bins must be given for selection='noisy_min'"),
        ([1, 2], {"cost": "sse"}, "max_count, a public bound of counts, is needed"),
        ([1, 2], {"max_count": 3}, "max_count, a public bound of counts, is needed"),
        ([1, 2], {"cost": "sse", "max_count": 0}, "max_count must be at least 1"),
        ([1, 2], {"cost": "sse", "max_count": 2**31}, "max_count must be below"),
        ([1, 2, 3], {"structure_epsilon": 1}, "structure_epsilon must be below epsilon, 1, got 1"),
        ([1, 2, 3], {"structure_epsilon": 1e-15}, "structure_epsilon must be above"),
        ([1, 2], {"values": "mode"}, "values must be one of"),
        ([1, 2], {"inside": "haar"}, "inside must be one of"),
        ([1, 2], {"values": "median", "inside": "tree"}, "inside must be 'flat' for medians"),
        ([1, 2], {"selection": "greedy"}, "selection must be one of"),
        ([1, 2], {"cost": "sup"}, "cost must be one of"),
        ([1, 2], {"bin_price": -1}, "bin_price must be non-negative"),
        ([1, 2], {"bin_price": 10**400}, "bin_price must be at most 1000"),
        ([1, 2], {"neighbors": "all"}, "neighbors must be one of"),
    ],
)
def test_what_is_wrong_is_named(cells, options, said):
    ledger = dp.Ledger(epsilon=1)
    with pytest.raises(ValueError, match=said):
        structure_first(cells, **({"epsilon": 1, "ledger": ledger} | options))
    assert ledger.spent == 0


def test_32_bit_numbers_are_refused():
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match=r"type dpinfer.enable_x64\(\) first"):
            structure_first([1, 2, 3], 2, epsilon=1)
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.slow
def test_whatever_the_cells_are_nothing_is_raised(monkeypatch):
    # With the noise and the coins as they come: cells of any size, below zero, all alike.
    for cells in ([-5, 2**63 - 1, 0, -(2**63)], [0] * 4, [2**62] * 4):
        every: list[dict[str, Any]] = [
            {"bins": 2},
            {},
            {"bins": 3, "selection": "noisy_min"},
            {"bins": 2, "cost": "sse", "max_count": 9},
        ]
        for options in every:
            for inside in ("flat", "tree"):
                assert structure_first(np.array(cells), epsilon=1e-3, inside=inside, **options).cells.shape == (4,)
    assert structure_first(np.array([2**64 - 1, 3], np.uint64), 2, epsilon=1).noisy_values[0] > 2**62
    # Scales that no float holds are refused before anything is charged.
    monkeypatch.setattr(exact, "MAX_SCALE", Fraction(10))
    ledger = dp.Ledger(epsilon=1)
    with pytest.raises(ValueError, match="epsilon is too small"):
        structure_first([1, 2], 1, epsilon=0.01, ledger=ledger)
    assert ledger.spent == 0
