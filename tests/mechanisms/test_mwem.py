"""Queries that are answered worst: the law of the choice and its loss, what is measured, what it costs, errors."""

import importlib
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference.multiplicative_weights import multiplicative_weights
from dpinfer.mechanisms.mwem import choice_rate, errors, mwem
from dpinfer.noise import exact
from dpinfer.queries import AllRange, Dense, Haar, Identity, Prefix, Ranges, Tree
from dpinfer.testing import neighboring_cells

CELLS = np.repeat([1, 60, 3], [12, 8, 12])


def law_of_flips(costs, rate):
    """Of permute-and-flip: any of those whose coin is true, each as likely; given that there are some."""
    keep = np.exp(-float(rate) * (np.asarray(costs) - min(costs)))
    law = np.zeros(len(costs))
    for kept in itertools.product([False, True], repeat=len(costs)):
        if any(kept):
            law += np.where(kept, keep, 1 - keep).prod() * np.array(kept) / sum(kept)
    return law


@pytest.mark.parametrize(
    ("queries", "neighbors"),
    [(AllRange(3), "add_remove"), (AllRange(3), "replace_one"), (Haar(2), "add_remove"), (Haar(2), "replace_one")],
)
def test_choices_are_private(queries, neighbors):
    units = 2 if neighbors == "replace_one" and not queries.has_zero_one_entries else 1
    n, epsilon, largest = queries.shape[1], Fraction(1), 0.0
    for answers in (np.zeros(queries.shape[0]), np.linspace(0.4, 2.6, queries.shape[0])):
        laws = {}
        for x in itertools.product(range(4), repeat=n):
            costs = -errors(queries @ np.array(x), answers)
            laws[x] = law_of_flips(costs.tolist(), choice_rate(epsilon, units))
        for x, law in laws.items():
            for other in map(tuple, neighboring_cells(np.array(x), neighbors)):
                if other in laws:
                    largest = max(largest, float(np.abs(np.log(law / laws[other])).max()))
    assert 0.4 < largest <= 1 + 1e-9


def test_errors_are_whole_numbers_whatever_the_answers():
    found = errors(np.array([3, -4, 2**63 - 1, -(2**63)]), np.array([1.4, 0.6, -1e300, 1e300]))
    assert found.tolist() == [2, 5, 2**62, 2**62]


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
@pytest.mark.parametrize("workload", [AllRange(8), Haar(8)])
def test_each_round_spends_its_share_half_on_the_choice(workload, neighbors, monkeypatch):
    module, asked = importlib.import_module("dpinfer.mechanisms.mwem"), []

    def choose(costs, rate):
        asked.append((costs.size, rate))
        return int(costs.argmin())

    def sampler(scales, rows):
        assert scales == [10 * units]
        return np.arange(rows.size) - 50

    units = 2 if neighbors == "replace_one" and isinstance(workload, Haar) else 1
    monkeypatch.setattr(module, "permute_and_flip", choose)
    monkeypatch.setattr(exact, "discrete_laplace", sampler)
    ledger = dp.Ledger(epsilon=1)
    release = mwem(CELLS[::4], workload, epsilon=Fraction(3, 5), total=300, rounds=3, neighbors=neighbors, ledger=ledger)
    # A choice of m, then of m - 1, ..., each with the rate of a tenth, and an answer with the scale of a tenth.
    assert asked == [(workload.shape[0] - i, Fraction(1, 10) / (2 * units)) for i in range(3)]
    assert float(release.scale) == 10 * units
    assert (np.asarray(release.values) - release.queries @ CELLS[::4]).tolist() == [-50, -49, -48]
    # The choices and the answers, one after the other, add up to what is stated and charged.
    choices = sum(2 * units * rate for _, rate in asked)
    matrix = np.asarray(release.queries.dense())
    moved = np.eye(8) if neighbors == "add_remove" else np.eye(8)[:, None] - np.eye(8)
    answers = Fraction(int(np.abs(np.asarray(moved).reshape(-1, 8) @ matrix.T).max(axis=0).sum()), 10 * units)
    assert choices + answers <= ledger.spent == release.epsilon == Fraction(3, 5)
    assert release.neighbors == neighbors


@pytest.mark.slow
def test_what_is_answered_worst_is_measured():
    # With next to no noise: first the prefix that is farthest from uniform, and none twice.
    release = mwem(CELLS, Prefix(32), epsilon=10**5, total=528, rounds=6)
    assert isinstance(release.queries, Ranges)
    even = np.abs(np.cumsum(CELLS) - 528 * (np.arange(32) + 1) / 32)
    assert release.queries.stops[0] == 1 + int(even.argmax())
    assert len(set(release.queries.stops.tolist())) == 6
    np.testing.assert_array_equal(release.values, release.queries @ CELLS)
    estimate = multiplicative_weights(release, 528)
    assert float(estimate.cells.sum()) == pytest.approx(528)
    assert np.abs(np.cumsum(estimate.cells) - np.cumsum(CELLS)).max() < even.max() / 10


def test_workloads_of_any_kind():
    for workload in (Identity(32), Tree.complete(32, 2), Haar(32), Dense(np.eye(32, dtype=int)[:5]), np.ones((3, 32), int)):
        release = mwem(CELLS, workload, epsilon=1, total=528, rounds=2, passes=3)
        assert release.queries.shape == (2, 32)
        assert np.abs(np.asarray(release.values) - release.queries @ CELLS).max() < 4 * 30


@pytest.mark.slow
def test_errors_fall_with_epsilon():
    workload = AllRange(32)
    truth, found = workload @ CELLS, []
    for epsilon in (0.02, 1.0, 50.0):
        each = []
        for _ in range(4):
            estimate = multiplicative_weights(mwem(CELLS, workload, epsilon=epsilon, total=528, rounds=8), 528)
            each.append(float(np.abs(np.asarray(workload @ np.asarray(estimate.cells)) - truth).mean()))
        found.append(np.mean(each))
    assert found[0] > 1.5 * found[1]
    assert found[1] > 1.5 * found[2]


def test_releases_are_saved(tmp_path):
    release = mwem(CELLS, AllRange(32), epsilon=1, total=528, rounds=2)
    release.save(tmp_path / "worst.npz")
    again = dp.Release.load(tmp_path / "worst.npz")
    np.testing.assert_array_equal(again.values, release.values)
    assert again.epsilon == 1


@pytest.mark.parametrize(
    ("cells", "options", "said"),
    [
        ([1.5, 2], {}, "cells must have an integer dtype"),
        ([1, 2, 3], {}, "cells must be a vector with one entry for each of the strategy's 2"),
        ([1, 2], {"epsilon": 0}, "epsilon must be positive"),
        ([1, 2], {"epsilon": 1e-13}, "epsilon is too small"),
        ([1, 2], {"rounds": 0}, "rounds must be at least 1"),
        ([1, 2], {"rounds": 4}, "rounds must be at most the number of queries, 3, got 4"),
        ([1, 2], {"passes": 0}, "passes must be at least 1"),
        ([1, 2], {"total": 0}, "total must be positive"),
        ([1, 2], {"total": None}, "total must be a positive number, got None"),
        ([1, 2], {"total": 2**54}, r"total must be at most 2\*\*53"),
        ([1, 2], {"workload": np.array([[2, 0]])}, "workload must be of queries with entries -1, 0 and 1"),
        ([1, 2], {"workload": np.array([[1.0, 0]])}, "workload must be of queries with entries -1, 0 and 1"),
        ([1, 2], {"neighbors": "all"}, "neighbors must be one of"),
    ],
)
def test_what_is_wrong_is_named(cells, options, said):
    ledger = dp.Ledger(epsilon=1)
    given = {"workload": AllRange(2), "epsilon": 1, "total": 3, "rounds": 1, "ledger": ledger} | options
    with pytest.raises(ValueError, match=said):
        mwem(cells, **given)
    assert ledger.spent == 0


def test_whatever_the_cells_are_nothing_is_raised():
    for cells in ([-5, 2**63 - 1, 0, -(2**63)], [0] * 4):
        for epsilon in (1e-9, 10**400):
            release = mwem(np.array(cells), AllRange(4), epsilon=epsilon, total=0.5, rounds=2, passes=2)
            assert math.isfinite(float(multiplicative_weights(release, 0.5).cells.sum()))
