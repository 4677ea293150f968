"""Counts in order: what one record or edge changes, by enumeration; what is spent; the law of the noise; files."""

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.mechanisms import SortedCounts, sorted_counts
from dpinfer.noise import exact


def sorted_change(first, second):
    return int(np.abs(np.sort(first) - np.sort(second)).sum())


def degrees(edges, nodes=5):
    return np.bincount(np.array(sorted(edges), dtype=int).reshape(-1), minlength=nodes)


def test_one_record_changes_sorted_counts_by_one():
    largest = {"add_remove": 0, "replace_one": 0}
    for cells in product(range(4), repeat=4):
        rows = np.array(cells)
        more = [rows + step for step in np.eye(4, dtype=int)]
        largest["add_remove"] = max(largest["add_remove"], *(sorted_change(rows, other) for other in more))
        moved = [other - step for other in more for step in np.eye(4, dtype=int) if (other - step >= 0).all()]
        largest["replace_one"] = max(largest["replace_one"], *(sorted_change(rows, other) for other in moved))
    for neighbors, change in largest.items():
        release = sorted_counts(np.ones(4, int), epsilon=0.25, neighbors=neighbors)
        assert release.scale == change / Fraction(1, 4)
        assert change == {"add_remove": 1, "replace_one": 2}[neighbors]


def test_one_edge_changes_two_degrees():
    every = list(combinations(range(5), 2))
    largest = {"add_remove": 0, "replace_one": 0}
    for bits in product((0, 1), repeat=10):
        graph = {edge for edge, bit in zip(every, bits, strict=True) if bit}
        for edge in every:
            without, other = graph - {edge}, graph ^ {edge}
            largest["add_remove"] = max(largest["add_remove"], sorted_change(degrees(graph), degrees(other)))
            if edge in graph:
                for new in set(every) - graph:
                    moved = sorted_change(degrees(graph), degrees(without | {new}))
                    largest["replace_one"] = max(largest["replace_one"], moved)
    assert largest["add_remove"] == 2
    assert largest["replace_one"] == 4
    for neighbors, change in largest.items():
        assert sorted_counts(np.ones(5, int), epsilon=2, unit="edge", neighbors=neighbors).scale == Fraction(change, 2)


def test_a_private_number_of_cells_costs_its_own_budget(monkeypatch):
    # Groups that appear with their first record: the number changes by at most 1, and at any cut the largest counts by at most 1.
    def cut(counts, size):
        largest = sorted(counts, reverse=True)[:size]
        return np.array(sorted(largest + [0] * (size - len(largest))))

    for groups in range(4):
        for counts in product(range(1, 4), repeat=groups):
            neighbors = [(*counts, 1)] + [tuple(c + (i == j) for j, c in enumerate(counts)) for i in range(groups)]
            for other in neighbors:
                for size in range(1, 6):
                    assert np.abs(cut(counts, size) - cut(other, size)).sum() <= 1
    # The noise that is drawn: of the number, then of the counts, at the cut that the noisy number says.
    asked = []

    def drawn(scales, rows):
        asked.append((scales[0], rows.size))
        return np.full(rows.size, 2 if len(asked) == 1 else 0)

    monkeypatch.setattr(exact, "discrete_laplace", drawn)
    release = sorted_counts([5, 1, 3], epsilon=1, size_epsilon=0.5, unit="edge")
    assert asked == [(4, 1), (2, 5)]
    assert release.values.tolist() == [0, 0, 1, 3, 5]
    assert release.epsilon == Fraction(3, 2)
    assert release.size_epsilon == Fraction(1, 2)
    asked.clear()

    def falls(scales, rows):
        asked.append(scales)
        return np.full(rows.size, -2 if len(asked) == 1 else 0)

    monkeypatch.setattr(exact, "discrete_laplace", falls)
    assert sorted_counts([5, 1, 3], epsilon=1, size_epsilon=1).values.tolist() == [5]
    asked.clear()
    assert sorted_counts([], epsilon=1, size_epsilon=1).values.tolist() == [0]
    asked.clear()
    assert sorted_counts([4, 9], epsilon=1, size_epsilon=1).values.shape == (1,)


def test_the_noise_has_the_law_that_is_promised():
    n, scale = 40_000, 4
    release = sorted_counts(np.arange(n), epsilon=0.5, unit="edge")
    assert release.values.dtype == np.int64
    noise = release.values - np.arange(n)
    variance = float(dp.noise.stddev("discrete_laplace", scale)) ** 2
    # The fourth moment of a Laplace variable is 6 times the square of its variance.
    assert abs(noise.var() / variance - 1) < 6 * (5 / n) ** 0.5
    assert abs(noise.mean()) < 6 * (variance / n) ** 0.5
    assert not np.array_equal(noise, sorted_counts(np.arange(n), epsilon=0.5, unit="edge").values - np.arange(n))


def test_the_ledger_is_charged_once_or_not_at_all():
    ledger = dp.Ledger(epsilon=1)
    release = sorted_counts([3, 1], epsilon=0.3, size_epsilon=0.2, ledger=ledger)
    assert ledger.spent == release.epsilon == Fraction(1, 2)
    with pytest.raises(ValueError, match="less than the 3/5"):
        sorted_counts([3, 1], epsilon=0.3, size_epsilon=0.3, ledger=ledger)
    assert ledger.spent == Fraction(1, 2)


def test_files(tmp_path):
    release = sorted_counts([3, 1, 2**62], epsilon=Fraction(1, 3), unit="edge", size_epsilon=2, neighbors="replace_one")
    release.save(tmp_path / "degrees.npz")
    again = SortedCounts.load(tmp_path / "degrees.npz")
    np.testing.assert_array_equal(again.values, release.values)
    for name in ("scale", "epsilon", "size_epsilon", "unit", "neighbors"):
        assert getattr(again, name) == getattr(release, name)
    assert again.measurement.queries == dp.queries.Identity(release.values.size)
    with pytest.raises(ValueError, match="is no dpinfer release: its header"):
        dp.Release.load(tmp_path / "degrees.npz")
    dp.measure([1, 2], dp.queries.Identity(2), epsilon=1).save(tmp_path / "cells.npz")
    with pytest.raises(ValueError, match="is no dpinfer release of sorted counts"):
        SortedCounts.load(tmp_path / "cells.npz")


@pytest.mark.parametrize(
    ("cells", "options", "said"),
    [
        ([1.5, 2], {}, "cells must have an integer dtype"),
        ([[1, 2]], {}, "cells must be a vector"),
        ([], {}, "cells must"),
        (np.zeros(0), {"size_epsilon": 1}, "cells must have an integer dtype"),
        (np.zeros(2), {"size_epsilon": 1}, "cells must have an integer dtype"),
        ([1], {"epsilon": 0}, "epsilon must be positive"),
        ([1], {"size_epsilon": 0}, "size_epsilon must be positive"),
        ([1], {"unit": "node"}, "unit must be one of 'row', 'edge', got 'node'"),
        ([1], {"neighbors": "all"}, "neighbors must be one of"),
    ],
)
def test_what_is_wrong_is_named(cells, options, said):
    with pytest.raises(ValueError, match=said):
        sorted_counts(cells, **({"epsilon": 1} | options))


def test_negative_and_huge_cells_raise_nothing():
    assert sorted_counts([-5, 2**63 - 1], epsilon=1e-3).values.shape == (2,)
    assert sorted_counts(np.array([2**64 - 1], np.uint64), epsilon=1).values[0] > 2**62
    assert sorted_counts([-5], epsilon=1, size_epsilon=5).values.size >= 1
