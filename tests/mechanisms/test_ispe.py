"""Cells, and sums of regions that the noisy cells suggest: what is measured, what it costs, whom the regions depend on."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import grow_regions, smoothed_cells
from dpinfer.mechanisms import ispe
from dpinfer.noise import exact
from dpinfer.queries import Identity, Partition, VStack

CELLS = np.repeat([40, 900, 3], [20, 10, 34])


def partitions_of(release):
    """Of the regions, the cells being the first part."""
    assert isinstance(release.queries, VStack)
    cells, *partitions = release.queries.parts
    assert isinstance(cells, Identity)
    return [part for part in partitions if isinstance(part, Partition)]


@pytest.mark.slow
def test_cells_and_sums_of_their_regions():
    release = ispe(CELLS, (8, 8), cell_epsilon=0.6, partition_epsilon=0.2, threshold=30)
    assert release.epsilon == Fraction(4, 5)
    assert release.neighbors == "add_remove"
    (regions,) = partitions_of(release)
    smooth = smoothed_cells(release.values[:64], (8, 8))
    assert regions.labels.tolist() == grow_regions(smooth, (8, 8), threshold=30).tolist()
    scale = np.asarray(release.scale)
    assert scale[:64].tolist() == pytest.approx([5 / 3] * 64)
    assert set(scale[64:].tolist()) == {5}
    noise = np.asarray(release.values) - release.queries @ CELLS
    assert np.abs(noise / scale).max() < 25
    np.testing.assert_allclose(dp.least_squares(release).cells, CELLS, atol=60)
    # A hierarchy: coarser partitions of the same smoothed cells, with a budget each.
    release = ispe(CELLS, 64, cell_epsilon=1, partition_epsilon=[0.2, 0.1], threshold=[5, 400], iterations=1)
    fine, coarse = partitions_of(release)
    assert release.epsilon == Fraction(13, 10)
    assert coarse.labels.max() < fine.labels.max()
    assert len(set(zip(fine.labels.tolist(), coarse.labels.tolist(), strict=True))) == fine.labels.max() + 1


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_the_loss_is_the_sum_of_the_budgets(neighbors, monkeypatch):
    """The law of the values given what was released before, for all neighbours of tiny cells, and for every partition."""
    monkeypatch.setattr(exact, "discrete_laplace", lambda scales, rows, **_: np.zeros(rows.size, dtype=np.int64))
    changes = 2 if neighbors == "replace_one" else 1
    for values in itertools.product([0, 3, 9], repeat=3):
        # Without noise the first values are the cells: so each of these partitions is one that noise may suggest.
        options = {"threshold": 4, "iterations": 0, "neighbors": neighbors}
        release = ispe(np.array(values), 3, cell_epsilon=0.5, partition_epsilon=0.25, **options)
        losses = 1 / np.asarray(release.scale)
        matrix = np.asarray(release.queries.dense())
        moves = np.eye(3) if changes == 1 else np.array([a - b for a, b in itertools.permutations(np.eye(3), 2)])
        for change in moves:
            first, second = (np.abs(matrix @ change) * losses)[:3].sum(), (np.abs(matrix @ change) * losses)[3:].sum()
            assert first <= 0.5 + 1e-12
            assert second <= 0.25 + 1e-12
        assert release.epsilon == Fraction(3, 4)
        assert release.neighbors == neighbors
        assert set(np.asarray(release.scale).tolist()) == {2.0 * changes, 4.0 * changes}


def test_regions_are_grown_from_noisy_cells_alone(monkeypatch):
    # The same noisy cells from other cells give the same partition.
    shown = np.array([10, 10, 50, 50, 50, 9])
    for cells in ([0, 0, 0, 0, 0, 0], [7, 1, 2, 90, 5, 5]):
        calls, difference = [], shown - np.array(cells)

        def noise(scales, rows, difference=difference, calls=calls, **_):
            calls.append(rows.size)
            return difference if len(calls) == 1 else np.zeros(rows.size, dtype=np.int64)

        monkeypatch.setattr(exact, "discrete_laplace", noise)
        release = ispe(np.array(cells), 6, cell_epsilon=1, partition_epsilon=1, iterations=0)
        assert partitions_of(release)[0].labels.tolist() == [0, 0, 1, 1, 1, 2]
        assert calls == [6, 3]


def test_the_ledger_is_charged_once_or_not_at_all():
    ledger = dp.Ledger(epsilon=1)
    ispe([3, 1], 2, cell_epsilon=0.3, partition_epsilon=[0.2, 0.1], threshold=[1, 2], ledger=ledger)
    assert ledger.spent == Fraction(3, 5)
    with pytest.raises(ValueError, match="less than the"):
        ispe([3, 1], 2, cell_epsilon=0.3, partition_epsilon=0.3, ledger=ledger)
    assert ledger.spent == Fraction(3, 5)


def test_files_and_domains(tmp_path):
    domain = dp.Domain({"row": dp.Axis.integers(0, 8), "column": dp.Axis.integers(0, 8)})
    release = ispe(CELLS, domain.shape, cell_epsilon=1, partition_epsilon=1, domain=domain)
    release.save(tmp_path / "ispe.npz")
    again = dp.Release.load(tmp_path / "ispe.npz")
    assert again.domain == domain
    np.testing.assert_array_equal(again.values, release.values)
    assert partitions_of(again)[0].labels.tolist() == partitions_of(release)[0].labels.tolist()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cells": [1.5, 2]}, "cells must have an integer dtype"),
        ({"cells": [1, 2, 3]}, "cells must be a vector with one entry for each of the strategy's 2"),
        ({"shape": (0,)}, "shape must be at least 1"),
        ({"cell_epsilon": 0}, "cell_epsilon must be positive"),
        ({"cell_epsilon": 1e-14}, "epsilon is too small"),
        ({"partition_epsilon": None}, "partition_epsilon must be a positive number"),
        ({"partition_epsilon": [1, 0], "threshold": [1, 2]}, r"partition_epsilon\[1\] must be positive"),
        ({"partition_epsilon": [1, 1]}, "partition_epsilon must have one entry for each threshold, 1"),
        ({"partition_epsilon": []}, "partition_epsilon must not be empty"),
        ({"partition_epsilon": 1e-14, "neighbors": "replace_one"}, "epsilon is too small"),
        ({"threshold": 0}, "threshold must be positive"),
        ({"threshold": [2, 2], "partition_epsilon": [1, 1]}, "threshold must increase"),
        ({"distance": 0}, "distance must be positive"),
        ({"smoothing": "mean"}, "smoothing must be one of"),
        ({"iterations": -1}, "iterations must be at least 0"),
        ({"boundary": "edge"}, "boundary must be one of"),
        ({"neighbors": "all"}, "neighbors must be one of"),
    ],
)
def test_what_is_wrong_is_named(options, said):
    ledger = dp.Ledger(epsilon=9)
    given = {"cells": [1, 2], "shape": 2, "cell_epsilon": 1, "partition_epsilon": 1, "ledger": ledger} | options
    with pytest.raises(ValueError, match=said):
        ispe(**given)
    assert ledger.spent == 0


def test_whatever_the_cells_are_nothing_is_raised():
    for cells in ([-5, 2**63 - 1, 0, -(2**63)], [0] * 4):
        for neighbors in ("add_remove", "replace_one"):
            release = ispe(np.array(cells), (2, 2), cell_epsilon=1, partition_epsilon=1, neighbors=neighbors)
            assert release.values.size >= 5
