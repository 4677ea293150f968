"""Clusters of cells with like noisy counts: which they are, what is measured, what it costs, whom the clusters depend on."""

import math
from fractions import Fraction

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.mechanisms.ahp import ClusteredCells, ahp, clusters
from dpinfer.noise import exact
from dpinfer.queries import Identity, Partition, Total, VStack

CELLS = np.repeat([0, 40, 900, 0, 40], [30, 5, 4, 20, 5])


def greedy(values, below, scale):
    """The rule word for word: sizes of the clusters along the sorted values."""
    x, sizes = sorted(0.0 if v <= below else float(v) for v in values), [1]

    def error(part):
        return float(np.square(np.array(part) - np.mean(part)).sum()) + 2 * scale**2 / len(part)

    for j in range(1, len(x)):
        present = x[j - sizes[-1] : j]
        alone = min((x[j] - np.mean(x[j:stop])) ** 2 + 2 * scale**2 / (stop - j) ** 2 for stop in range(j + 1, len(x) + 1))
        if error([*present, x[j]]) < error(present) + alone:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_those_of_the_rule(seed):
    rng = np.random.default_rng(seed)
    heaps = rng.integers(0, 5, 60) * 50 + rng.integers(-3, 4, 60)
    for values in (rng.integers(-20, 40, 90), heaps, np.array([7]), np.arange(80) * 3):
        for below, scale in ((0.0, 1.037), (10.0, 4.259), (3.0, 30.113)):  # such that there are no ties
            labels = clusters(values, below, scale)
            assert np.bincount(labels).tolist() == greedy(values, below, scale)
            # Numbered along the sorted values.
            moved = np.where(values <= below, 0, values)
            assert (np.diff(labels[np.argsort(moved, kind="stable")]) >= 0).all()


def test_clusters_by_hand():
    # Zeros and noise up to the threshold; values nearby; one far away.
    assert clusters(np.array([3, 100, -5, 101, 500, 0]), 4.0, 10.0).tolist() == [0, 1, 0, 1, 2, 0]
    assert clusters(np.array([3, 100, -5, 101, 500, 0]), 4.0, 0.1).tolist() == [0, 1, 0, 2, 3, 0]


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_what_is_measured_and_what_it_costs(neighbors):
    ledger = dp.Ledger(epsilon=2)
    found = ahp(CELLS, epsilon=1, neighbors=neighbors, ledger=ledger)
    assert (found.epsilon, found.neighbors, ledger.spent) == (1, neighbors, 1)
    queries, units = found.release.queries, 2 if neighbors == "replace_one" else 1
    assert isinstance(queries, VStack)
    assert [type(part) for part in queries.parts] == [Identity, Partition]
    scale = np.asarray(found.release.scale)
    np.testing.assert_allclose(scale[: CELLS.size], units / 0.85)
    np.testing.assert_allclose(scale[CELLS.size :], units / 0.15)
    # A record that is one more or less, or that moves, changes as much as the scales pay for: never more than the whole.
    losses = (np.abs(np.asarray(queries.dense())) / scale[:, None]).sum(axis=0)
    np.testing.assert_allclose(losses * units, 1)
    # Clusters are post-processing of the noisy cells, which are first.
    noisy = np.asarray(found.release.values)[: CELLS.size]
    below = 0.35 * math.log(CELLS.size) * units / 0.85
    assert found.labels.tolist() == clusters(noisy, below, units / 0.15).tolist()
    sums = np.asarray(found.release.values)[CELLS.size :]
    np.testing.assert_allclose(found.cells, (sums / np.bincount(found.labels))[found.labels])
    assert float(found.answer(Total(CELLS.size)).values[0]) == pytest.approx(sums.sum())
    with pytest.raises(ValueError, match="ahp gives no intervals"):
        found.answer(Total(CELLS.size)).interval()


def test_cells_that_are_plain_to_see():
    found = ahp(CELLS, epsilon=500)
    assert np.bincount(found.labels).tolist() == [50, 10, 4]
    np.testing.assert_allclose(found.cells, CELLS, atol=1e-2)


def test_clusters_depend_on_noisy_cells_alone(monkeypatch):
    # The same noisy cells from other cells give the same clusters.
    shown = np.array([10, 0, 10, 50, 51, 9])
    for cells in ([0, 0, 0, 0, 0, 0], [7, 1, 2, 90, 5, 5]):
        calls, difference = [], shown - np.array(cells)

        def noise(scales, rows, difference=difference, calls=calls, **_):
            calls.append(rows.size)
            return difference if len(calls) == 1 else np.zeros(rows.size, dtype=np.int64)

        monkeypatch.setattr(exact, "discrete_laplace", noise)
        assert ahp(np.array(cells), epsilon=1, cell_share=0.5).labels.tolist() == [1, 0, 1, 2, 2, 1]


def test_files(tmp_path):
    found = ahp(CELLS, epsilon=Fraction(1, 3))
    found.save(tmp_path / "clusters.npz")
    again = ClusteredCells.load(tmp_path / "clusters.npz")
    np.testing.assert_array_equal(again.release.values, found.release.values)
    np.testing.assert_array_equal(again.cells, found.cells)
    assert again.epsilon == Fraction(1, 3)
    assert dp.Release.load(tmp_path / "clusters.npz").epsilon == Fraction(1, 3)
    dp.measure(CELLS, Identity(64), epsilon=1).save(tmp_path / "cells.npz")
    with pytest.raises(ValueError, match="release must be of cells and of one partition"):
        ClusteredCells.load(tmp_path / "cells.npz")


@pytest.mark.parametrize(
    ("cells", "options", "said"),
    [
        ([1.5, 2], {}, "cells must have an integer dtype"),
        ([[1, 2]], {}, "cells must be a vector"),
        ([1, 2], {"epsilon": 0}, "epsilon must be positive"),
        ([1, 2], {"epsilon": 1e-14}, "epsilon is too small"),
        ([1, 2], {"cell_share": 0}, "cell_share must be positive"),
        ([1, 2], {"cell_share": 1}, "cell_share must be below 1"),
        ([1, 2], {"cell_share": 1e-15}, "epsilon is too small"),
        ([1, 2], {"cell_share": 1 - 1e-15}, "epsilon is too small"),
        ([1, 2], {"threshold": -1}, "threshold must be non-negative"),
        ([1, 2], {"neighbors": "all"}, "neighbors must be one of"),
    ],
)
def test_what_is_wrong_is_named(cells, options, said):
    ledger = dp.Ledger(epsilon=1)
    with pytest.raises(ValueError, match=said):
        ahp(cells, **({"epsilon": 1, "ledger": ledger} | options))
    assert ledger.spent == 0
    with pytest.raises(ValueError, match="less than the"):
        ahp([1, 2], epsilon=2, ledger=ledger)
    assert ledger.spent == 0


def test_whatever_the_cells_are_nothing_is_raised():
    for cells in ([-5, 2**63 - 1, 0, -(2**63)], [0] * 4, [2**62] * 5, [1]):
        for neighbors in ("add_remove", "replace_one"):
            for epsilon in (1e-9, 1, 10**400):
                found = ahp(np.array(cells), epsilon=epsilon, neighbors=neighbors, threshold=10**9)
                assert found.cells.shape == (len(cells),)
