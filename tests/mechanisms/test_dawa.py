"""Buckets by noisy costs: what intervals cost, the law of the buckets and its loss, sums and their noise, files, errors."""

import importlib
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

import dpinfer as dp
from dpinfer.inference import least_squares
from dpinfer.mechanisms.dawa import BucketedCells, dawa, least_partition, lengths_of, noise_scales, noisy_rows
from dpinfer.mechanisms.interval_costs import IntervalCosts, largest_changes
from dpinfer.noise import exact
from dpinfer.queries import Partition, Ranges, Total, VStack
from dpinfer.testing import epsilon_lower_bound

CELLS = np.repeat([3, 50, 0, 7], [4, 3, 8, 2])
STOPS = [4, 7, 15, 17]


def in_grid(n, most):
    return [np.array(x) for x in itertools.product(range(most + 1), repeat=n)]


# Costs


def deviation(x, cost):
    x = [int(v) for v in x]
    center = Fraction(sum(x), len(x)) if cost == "mean" else sorted(x)[len(x) // 2]
    return sum(abs(v - center) for v in x)


@pytest.mark.parametrize("cost", ["mean", "median"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 23])
def test_costs_are_those_of_intervals(n, cost):
    for x in (np.random.default_rng(n).integers(-5, 12, n), np.zeros(n, int), np.arange(n) * 1000 % 7):
        starts, stops = np.triu_indices(n)
        found = IntervalCosts(x, cost, 3).between(starts, stops + 1)
        assert found.tolist() == [math.floor(8 * deviation(x[a : b + 1], cost)) for a, b in zip(starts, stops, strict=True)]


@pytest.mark.parametrize("cost", ["mean", "median"])
def test_costs_of_cells_of_any_size_are_exact(cost):
    bound = 2**40 // 4
    x = np.array([2**62, -(2**63), 3, 2**63 - 1])
    found = IntervalCosts(x, cost, 10).between(np.array([0, 0, 1]), np.array([4, 2, 4]))
    moved = np.clip(x, -bound, bound)
    assert found.tolist() == [math.floor(2**10 * deviation(moved[a:b], cost)) for a, b in ((0, 4), (0, 2), (1, 4))]


@pytest.mark.parametrize("bits", [0, 2])
@pytest.mark.parametrize("cost", ["mean", "median"])
def test_a_record_changes_the_cost_of_an_interval_by_no_more_than_is_said(cost, bits):
    for n, most in ((1, 2), (2, 3), (3, 3), (4, 2)):
        largest = 0
        for x in in_grid(n, most):
            costs = IntervalCosts(x, cost, bits).between(np.array([0]), np.array([n]))
            for j in range(n):
                other = IntervalCosts(x + np.eye(n, dtype=int)[j], cost, bits).between(np.array([0]), np.array([n]))
                largest = max(largest, abs(int(other[0]) - int(costs[0])))
        (said,) = largest_changes(np.array([n]), cost, bits)
        # Not rounded, 2 (1 - 1 / n) about means, which rounding may bring to the next whole number of units; 1 about medians.
        exactly = 2 * (1 - Fraction(1, n)) if cost == "mean" else Fraction(n > 1)
        assert said == math.ceil(exactly * 2**bits)
        assert largest <= said
        assert largest >= math.floor(exactly * 2**bits)


# The least partition


@pytest.mark.parametrize("intervals", ["dyadic", "all"])
def test_the_least_partition_is_that_of_brute_force(intervals):
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 9):
        lengths = lengths_of(n, intervals)
        for spread in (2, 1000):
            rows = [rng.integers(-spread, spread + 1, int((lengths <= end).sum())) for end in range(1, n + 1)]

            def order(stops, rows=rows, lengths=lengths):
                sizes = np.diff(stops, prepend=0).tolist()
                places = np.searchsorted(lengths, sizes)
                return sum(int(rows[end - 1][p]) for end, p in zip(stops, places, strict=True)), sizes[::-1]

            every = [(*c, n) for k in range(n) for c in itertools.combinations(range(1, n), k)]
            offered = [stops for stops in every if np.isin(np.diff(stops, prepend=0), lengths).all()]
            assert tuple(least_partition(iter(rows), n, lengths).tolist()) == min(offered, key=order)
    # Noise that sums of 64 bits do not hold takes Python's integers.
    rows = [np.array([2**62], object), np.array([2**62, 2**62 + 5], object), np.array([2**62, 2**62], object)]
    assert least_partition(iter(rows), 3, np.array([1, 2])).tolist() == [1, 3]


def test_intervals_on_offer():
    assert lengths_of(1, "dyadic").tolist() == lengths_of(1, "all").tolist() == [1]
    assert lengths_of(9, "dyadic").tolist() == [1, 2, 4, 8]
    assert lengths_of(8, "dyadic").tolist() == [1, 2, 4, 8]
    assert lengths_of(5, "all").tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("intervals", ["dyadic", "all"])
def test_every_interval_has_noise_of_its_own_and_as_much_as_the_proof_asks(intervals, monkeypatch):
    """What the sampler is asked for, in blocks of any size."""
    module, n, asked = importlib.import_module("dpinfer.mechanisms.dawa"), 21, []

    def sampler(scales, rows):
        asked.append(np.array(scales)[rows])
        return np.arange(rows.size) + sum(r.size for r in asked[:-1])

    monkeypatch.setattr(exact, "discrete_laplace", sampler)
    lengths = lengths_of(n, intervals)
    costs = IntervalCosts(np.arange(n) ** 2, "mean", 1)
    for at_once in (1, 50, 2**17):
        monkeypatch.setattr(module, "_AT_ONCE", at_once)
        asked.clear()
        rows = list(noisy_rows(costs, n, lengths, [Fraction(2, 1 + k // 2) for k in range(lengths.size)], 7))
        offered = [lengths[lengths <= end] for end in range(1, n + 1)]
        scales = [Fraction(2, 1 + k // 2) for o in offered for k in range(o.size)]
        assert np.concatenate(asked).tolist() == scales
        ends = [np.full(sizes.size, end) for end, sizes in enumerate(offered, 1)]
        noise = [row - 7 - costs.between(end - sizes, end) for row, end, sizes in zip(rows, ends, offered, strict=True)]
        assert np.concatenate(noise).tolist() == list(range(sum(o.size for o in offered)))


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
@pytest.mark.parametrize("cost", ["mean", "median"])
def test_scales_are_those_of_the_proof(cost, neighbors, monkeypatch):
    module, asked = importlib.import_module("dpinfer.mechanisms.dawa"), []

    def rows(costs, n, lengths, scales, price):
        asked.append((lengths, scales, price))
        return iter([np.zeros((lengths <= end).sum(), dtype=np.int64) for end in range(1, n + 1)])

    monkeypatch.setattr(module, "noisy_rows", rows)
    units = 2 if neighbors == "replace_one" else 1
    found = dawa(CELLS, epsilon=Fraction(2, 5), cost=cost, intervals="all", bucket_price=3, neighbors=neighbors)
    ((lengths, scales, price),) = asked
    assert found.partition_epsilon == Fraction(1, 10)
    n = CELLS.size
    for size, scale in zip(lengths.tolist(), scales, strict=True):
        if cost == "mean":
            least = (4 - Fraction(2, size) - Fraction(2, n)) * 10 * units
        else:
            least = (2 - (size == 1)) * Fraction(10) * units
        assert least <= scale / 2**10 <= least + Fraction(2 * 10 * units, 2**10)
    assert price == round(2**10 * units / Fraction(3, 10) + 3 * scales[0])


# The law of the buckets of three cells


def above(scale, k):
    """The probability that a discrete Laplace draw is at least k."""
    p = math.exp(-1 / scale)
    return np.where(k <= 0, 1 - p ** np.maximum(1 - k, 0) / (1 + p), p ** np.maximum(k, 0) / (1 + p))


def law_of_three(cells, cost, scales, price, bits):
    """How probable each partition of three cells is: stops (1, 2, 3), (2, 3), (1, 3) and (3).

    Less the noise of the first and of the last cell, all four totals have noise of their own alone, given these two; and sums
    over the two of a product whose last factor depends on their sum are convolutions.
    """
    pair, other, whole = IntervalCosts(np.array(cells), cost, bits).between(np.array([0, 1, 0]), np.array([2, 3, 3])).tolist()
    one, two, three = map(float, scales)
    reach, far = math.ceil(16 * one), math.ceil(16 * max(two, three))
    parts = [(one, 3 * price), (two, pair + 2 * price), (two, other + 2 * price), (three, whole + price)]
    offsets = [offset for _, offset in parts]
    v = np.arange(min(offsets) - far - 2 * reach, max(offsets) + far + 2 * reach + 1)[:, None]
    u, s = np.arange(-reach, reach + 1), np.arange(-2 * reach, 2 * reach + 1)
    mass = np.tanh(0.5 / one) * np.exp(-np.abs(u) / one)
    law = {}
    for chosen, stops in enumerate([(1, 2, 3), (2, 3), (1, 3), (3,)]):

        def factor(k, value, chosen=chosen):
            scale, offset = parts[k]
            # Of equal totals the one with the shorter last interval is taken, which is the order of this list.
            if k != chosen:
                return above(scale, value - offset + (k < chosen))
            return np.tanh(0.5 / scale) * np.exp(-np.abs(value - offset) / scale)

        first, last = mass * factor(1, v + u), mass * factor(2, v + u)
        size = 1 << s.size.bit_length()
        both = np.fft.irfft(np.fft.rfft(first, size) * np.fft.rfft(last, size), size)[:, : s.size]
        law[stops] = float((factor(0, v)[:, 0] * (both * factor(3, v + s)).sum(axis=1)).sum())
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    return law


def largest_loss(cost, shrink, price, bits, epsilon):
    """Over all three cells of up to 2 records and those with a record more, with the noise of the mechanism divided by shrink."""
    lengths = lengths_of(3, "all")
    scales = [scale / shrink for scale in noise_scales(largest_changes(lengths, cost, bits), epsilon)]
    laws = {tuple(x.tolist()): law_of_three(x, cost, scales, price, bits) for x in in_grid(3, 2)}
    pairs = [(x, tuple(y)) for x in laws for y in (np.array(x) + np.eye(3, dtype=int)).tolist() if tuple(y) in laws]
    return max(abs(math.log(p / laws[y][stops])) for x, y in pairs for stops, p in laws[x].items())


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["mean", "median"])
def test_buckets_of_three_cells_are_private_and_with_half_of_the_noise_they_are_not(cost):
    for price in (0, 10):
        assert largest_loss(cost, 1, price, 1, Fraction(1)) <= 1 + 1e-6
    # Where buckets are dear the loss comes near to what it may be; with half of the noise it is beyond.
    assert largest_loss(cost, 1, 10, 1, Fraction(1)) > (0.5 if cost == "mean" else 0.9)
    assert largest_loss(cost, 2, 10, 1, Fraction(1)) > 1.3


@pytest.mark.parametrize("cost", ["mean", "median"])
def test_buckets_of_two_cells_are_private(cost):
    scales = noise_scales(largest_changes(np.array([1, 2]), cost, 3), Fraction(1))
    one, two = map(float, scales)
    k = np.arange(-600, 601)
    mass = np.tanh(0.5 / one) * np.exp(-np.abs(k) / one)
    singles = np.convolve(mass, mass)
    sums = np.arange(-1200, 1201)
    for price in (0, 20):
        chances = []
        for gap in range(6):
            (whole,) = IntervalCosts(np.array([0, gap]), cost, 3).between(np.array([0]), np.array([2])).tolist()
            # Both cells in one bucket if that costs less than they do alone.
            chances.append(1 - float(singles @ above(two, sums + price - whole)))
        ratios = np.abs(np.diff(np.log([chances, 1 - np.array(chances)])))
        assert ratios.max() <= 1
        assert ratios.max() > 0.3


def test_without_noise_in_single_cells_there_is_no_privacy():
    """As in public code: noise of scale (2 - 1 / s - 1 / n) / epsilon in buckets of s > 1 cells, none in single cells.

    All cells end up alone if every other interval costs more than its cells do, which is a product of tails.
    """
    n, price = 3, 20.0
    intervals = [(0, 2), (1, 3), (0, 3)]
    logs = []
    for cells in ([0, 0, 0], [0, 1, 0]):
        beyond = 0.0
        for a, b in intervals:
            scale = 2 - 1 / (b - a) - 1 / n
            lacks = (b - a - 1) * price - float(deviation(cells[a:b], "mean"))
            beyond += math.log(0.5) - lacks / scale
        logs.append(beyond)
    assert logs[1] - logs[0] == pytest.approx(6 / 7 + 6 / 7 + 1)


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["mean", "median"])
def test_buckets_are_chosen_by_their_law(cost):
    cells, bits, price, draws = np.array([0, 3, 1]), 1, 6, 1200
    lengths = lengths_of(3, "all")
    scales = noise_scales(largest_changes(lengths, cost, bits), Fraction(1))
    law = law_of_three(cells, cost, scales, price, bits)
    costs, tally = IntervalCosts(cells, cost, bits), dict.fromkeys(law, 0)
    for _ in range(draws):
        tally[tuple(least_partition(noisy_rows(costs, 3, lengths, scales, price), 3, lengths).tolist())] += 1
    expected = np.array(list(law.values()))
    assert stats.chisquare(list(tally.values()), expected / expected.sum() * draws).pvalue > 1e-4


# The whole


@pytest.mark.parametrize("intervals", ["dyadic", "all"])
@pytest.mark.parametrize("values", ["tree", "identity"])
def test_buckets_that_are_plain_to_see(intervals, values):
    # With next to no noise, and a price far beyond it, buckets are those of least cost: 4, 3, 8 and 2 cells, or 2 and 1 for 3.
    found = dawa(CELLS, epsilon=10**4, intervals=intervals, values=values, bucket_price=20)
    assert found.stops.tolist() == (STOPS if intervals == "all" else found.stops.tolist())
    assert set(STOPS) <= set(found.stops.tolist())
    assert found.stops.size == (4 if intervals == "all" else 5)
    assert (found.epsilon, found.partition_epsilon, found.neighbors) == (10**4, 2500, "add_remove")
    np.testing.assert_allclose(found.cells, CELLS, atol=1e-9)
    assert found.block_ids.tolist() == np.repeat(np.arange(found.stops.size), found.sizes).tolist()
    queries = found.measurement.queries
    assert queries.shape[1] == CELLS.size
    np.testing.assert_array_equal(queries @ CELLS, found.noisy_values)
    assert isinstance(queries, VStack if values == "tree" else Partition)


@pytest.mark.slow
def test_estimates_are_those_of_least_squares_on_cells():
    found = dawa(np.arange(40) // 7 * 9, epsilon=3, partition_share=0.4, bucket_price=1)
    estimate = least_squares(found.measurement)
    np.testing.assert_allclose(estimate.cells, found.cells, atol=1e-9)
    # Sums of whole buckets have the same standard deviation by either way.
    workload = Ranges(40, found.stops - found.sizes, found.stops)
    np.testing.assert_allclose(found.noise_stddev(workload), estimate.answer(workload).stddev)
    assert float(found.answer(Total(40)).values[0]) == pytest.approx(found.cells.sum())
    with pytest.raises(ValueError, match="dawa gives no intervals"):
        found.answer(Total(40)).interval()


@pytest.mark.slow
@pytest.mark.parametrize("values", ["tree", "identity"])
def test_noise_given_the_buckets(values, monkeypatch):
    stops = np.array([1, 4, 6, 7, 12])
    monkeypatch.setattr(importlib.import_module("dpinfer.mechanisms.dawa"), "least_partition", lambda *_: stops)
    cells = np.repeat([9, 2, 30, 4, 1], [1, 3, 2, 1, 5])
    workload = Ranges(12, [0, 2, 5, 0], [1, 5, 12, 12])
    found = dawa(cells, epsilon=0.8, values=values)
    # Each level of the tree gets an equal share of 0.6; the noise of shares by dense least squares.
    levels = len(found.measurement.queries.parts) if values == "tree" else 1  # pyright: ignore[reportAttributeAccessIssue]
    assert found.scale == pytest.approx(levels / 0.6)
    gain = np.asarray(workload.dense(), float) @ np.linalg.pinv(np.asarray(found.measurement.queries.dense(), float))
    np.testing.assert_allclose(found.answer(workload).values, gain @ found.noisy_values, rtol=1e-9)
    expected = found.noise_stddev(workload)
    np.testing.assert_allclose(expected, np.linalg.norm(gain, axis=1) * dp.noise.stddev("discrete_laplace", found.scale))
    drawn = [gain @ dawa(cells, epsilon=0.8, values=values).noisy_values - workload @ cells for _ in range(400)]
    # A squared Laplace draw has a standard deviation of sqrt(5) of its mean; 4.5 standard errors.
    np.testing.assert_allclose(np.mean(np.square(drawn), axis=0), expected**2, rtol=4.5 * (5 / 400) ** 0.5)


@pytest.mark.slow
def test_the_whole_keeps_its_promise():
    def mechanism(cells):
        found = dawa(cells, epsilon=1, partition_share=0.5, values="identity")
        # Whatever the buckets are, a vector of one length.
        padded = np.zeros(4)
        padded[: found.noisy_values.size] = found.noisy_values
        return np.append(found.stops.sum() * 10 + found.stops.size, padded)

    assert epsilon_lower_bound(mechanism, np.array([0, 0, 0]), np.array([0, 1, 0]), num_samples=200).epsilon <= 1


def test_budgets_are_spent_once_or_not_at_all():
    ledger = dp.Ledger(epsilon=2)
    found = dawa(CELLS, epsilon=1, ledger=ledger, neighbors="replace_one", values="identity", partition_share=0.25)
    assert (ledger.spent, found.partition_epsilon, found.scale) == (1, Fraction(1, 4), pytest.approx(8 / 3))
    # One cell alone has no buckets to choose.
    single = dawa([5], epsilon=1, ledger=ledger, neighbors="replace_one")
    assert (single.stops.tolist(), single.partition_epsilon, single.scale) == ([1], 0, 2.0)
    with pytest.raises(ValueError, match="less than the"):
        dawa(CELLS, epsilon=1, ledger=ledger, neighbors="replace_one")
    assert ledger.spent == 2


def test_files(tmp_path):
    for values in ("tree", "identity"):
        found = dawa(CELLS, epsilon=Fraction(1, 3), neighbors="replace_one", values=values)
        found.save(tmp_path / "buckets.npz")
        again = BucketedCells.load(tmp_path / "buckets.npz")
        for name in ("stops", "noisy_values"):
            np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
        for name in ("scale", "branching", "epsilon", "partition_epsilon", "neighbors"):
            assert getattr(again, name) == getattr(found, name)
    with pytest.raises(ValueError, match="is no dpinfer release: its header"):
        dp.Release.load(tmp_path / "buckets.npz")


@pytest.mark.parametrize(
    ("cells", "options", "said"),
    [
        ([1.5, 2], {}, "cells must have an integer dtype"),
        ([[1, 2]], {}, "cells must be a vector"),
        ([1, 2], {"epsilon": 0}, "epsilon must be positive"),
        ([1, 2], {"epsilon": None}, "epsilon must be a positive number"),
        ([1, 2], {"epsilon": 1e-13}, "epsilon is too small"),
        ([1, 2], {"partition_share": 1}, "partition_share must be below 1, got 1"),
        ([1, 2], {"partition_share": 0}, "partition_share must be positive"),
        ([1, 2], {"partition_share": 1e-14}, "epsilon is too small"),
        ([1, 2], {"partition_share": 1 - 1e-14}, "epsilon is too small"),
        ([1, 2], {"bucket_price": -1}, "bucket_price must be non-negative"),
        ([1, 2], {"bucket_price": 1001}, "bucket_price must be at most 1000"),
        ([1, 2], {"intervals": "aligned"}, "intervals must be one of"),
        ([1, 2], {"cost": "sse"}, "cost must be one of"),
        ([1, 2], {"values": "mean"}, "values must be one of"),
        ([1, 2], {"neighbors": "all"}, "neighbors must be one of"),
        (np.zeros(2**20 + 1, np.int8), {}, "cells must be at most 1048576, got 1048577"),
    ],
)
def test_what_is_wrong_is_named(cells, options, said):
    ledger = dp.Ledger(epsilon=1)
    with pytest.raises(ValueError, match=said):
        dawa(cells, **({"epsilon": 1, "ledger": ledger} | options))
    assert ledger.spent == 0


def test_whatever_the_cells_are_nothing_is_raised():
    every: list[dict[str, Any]] = [{}, {"intervals": "all", "cost": "mean"}, {"values": "identity"}]
    for cells in ([-5, 2**63 - 1, 0, -(2**63)], [0] * 4, [2**62] * 5):
        for options in every:
            for neighbors in ("add_remove", "replace_one"):
                for epsilon in (1e-8, 1, 10**400):
                    found = dawa(np.array(cells), epsilon=epsilon, neighbors=neighbors, **options)
                    assert found.stops[-1] == len(cells)
    assert dawa(np.array([2**64 - 1, 3], np.uint64), epsilon=100, bucket_price=0).noisy_values.max() > 2**62
    assert dawa(CELLS, epsilon=1, bucket_price=1000).stops.tolist() != list(range(1, 18))
