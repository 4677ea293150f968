"""Consistent count-of-counts histograms: worked examples, every promise on thousands of random hierarchies, baselines."""

import os
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.evaluation import earth_movers_distance
from dpinfer.inference import CountOfCountsEstimate, consistent_count_of_counts, isotonic_regression
from dpinfer.inference.count_of_counts import group_counts, summed_up, top_down
from dpinfer.inference.matching import MERGING
from dpinfer.inference.node_histograms import Way, node_histograms
from dpinfer.inference.size_runs import SizeRuns
from dpinfer.mechanisms import CountOfCounts, ReleasedLevel, count_of_counts_from_histograms


def released(regions, levels, max_size, num_groups):
    return CountOfCounts(regions, tuple(levels), max_size, num_groups, Fraction(1), None, "add_remove")


def printed(histograms, epsilon):
    runs = SizeRuns.of_histograms(np.array(histograms))
    return runs._replace(variances=4 / (epsilon**2 * runs.counts))


TWO_LEVELS = [[[0, 3, 2, 1, 0, 1]], [[0, 2, 1, 0, 0, 0], [0, 0, 2, 1, 1, 0]]]
THREE_LEVELS = [
    [[0, 28, 12, 5, 5, 6, 3, 0, 1, 0]],
    [[0, 10, 9, 1, 2, 0, 1, 0, 0, 0], [0, 19, 11, 3, 1, 2, 0, 1, 0, 0]],
    [
        [0, 6, 0, 1, 1, 0, 0, 0, 0, 1],
        [0, 6, 6, 0, 1, 0, 0, 0, 1, 0],
        [0, 4, 0, 0, 1, 1, 0, 0, 0, 0],
        [0, 9, 4, 2, 1, 3, 0, 1, 0, 0],
        [0, 7, 3, 1, 0, 0, 0, 0, 0, 0],
    ],
]


def test_two_levels_by_hand():
    regions = dp.RegionTree([("US", "a"), ("US", "b")])
    lowest = top_down([printed(level, 1.0) for level in TWO_LEVELS], regions, "weighted")
    assert lowest.histograms(2, 5).tolist() == [[0, 2, 1, 0, 0, 0], [0, 1, 1, 1, 0, 1]]
    root = summed_up(lowest, regions)[0]
    assert root is not None
    assert root.histograms(1, 5).tolist() == [[0, 3, 2, 1, 0, 1]]


@pytest.mark.parametrize(
    ("merging", "leaves", "root"),
    [
        (
            "naive",
            [
                [0, 5, 1, 1, 1, 0, 0, 0, 1, 0],
                [0, 5, 4, 3, 0, 1, 0, 1, 0, 0],
                [0, 4, 0, 0, 1, 0, 1, 0, 0, 0],
                [0, 8, 4, 3, 1, 2, 1, 0, 1, 0],
                [0, 6, 3, 2, 0, 0, 0, 0, 0, 0],
            ],
            [0, 28, 12, 9, 3, 3, 2, 1, 2, 0],
        ),
        (
            "weighted",
            [
                [0, 5, 1, 1, 0, 1, 0, 1, 0, 0],
                [0, 5, 6, 1, 0, 2, 0, 0, 0, 0],
                [0, 4, 0, 0, 1, 0, 1, 0, 0, 0],
                [0, 9, 5, 1, 2, 1, 1, 0, 1, 0],
                [0, 6, 4, 1, 0, 0, 0, 0, 0, 0],
            ],
            [0, 29, 16, 4, 3, 4, 2, 1, 1, 0],
        ),
    ],
)
def test_three_levels_worked_out_elsewhere(merging, leaves, root):
    regions = dp.RegionTree([("US", "A", 1), ("US", "A", 2), ("US", "B", 3), ("US", "B", 4), ("US", "B", 5)])
    lowest = top_down([printed(level, 0.5) for level in THREE_LEVELS], regions, merging)
    found = lowest.histograms(5, 9)
    assert found.tolist() == leaves
    above = summed_up(lowest, regions)[0]
    assert above is not None
    assert above.histograms(1, 9).tolist() == [root]


def level_of(name, array, scale, method="H_c"):
    return ReleasedLevel(method, Fraction(1), {name: Fraction(scale)}, {name: np.array(array)})


def estimate(level, num_groups, max_size, norm="l1", size_norm="l2", variances="corrected"):
    return node_histograms(level, np.array(num_groups), max_size, Way(norm, size_norm, variances))


def test_the_last_entry_is_known_before_the_fit():
    # Fitting it with the others and writing 10 over it would give 3, 6, 6, 10.
    runs = estimate(level_of("cumulative", [[3, 9, 7]], 1), [10], 3, norm="l2")
    assert np.cumsum(runs.histograms(1, 3)).tolist() == [3, 8, 8, 10]


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_cumulative_estimates_of_several_nodes(norm):
    rng = np.random.default_rng(1)
    noisy = rng.integers(-4, 12, (5, 9))
    totals = np.array([8, 0, 3, 6, 1])
    runs = estimate(level_of("cumulative", noisy, 2), totals, 9, norm=norm)
    for node in range(5):
        fit = np.asarray(isotonic_regression(noisy[node], norm=norm, lower=0, upper=int(totals[node])).values)
        expected = np.diff([*np.floor(fit + 0.5), totals[node]], prepend=0)
        assert runs.histograms(5, 9)[node].tolist() == expected.tolist()


def test_printed_and_corrected_variances():
    histogram = np.array([[0, 3, 2, 1, 0, 4]])
    exact = level_of("cumulative", np.cumsum(histogram, axis=1)[:, :-1], 2)
    plain = estimate(exact, [10], 5, variances="printed")
    assert plain.variances.tolist() == pytest.approx([16 / 3, 8, 16, 4])
    gaps = estimate(exact, [10], 5)
    # Sizes 1, 2, 3, 5: ((s - before)^2 + (after - s)^2) / (2 n sinh(1/2)); below 1 as above it, beyond the largest nothing.
    sinh = np.sinh(0.5)
    assert gaps.variances.tolist() == pytest.approx([2 / (6 * sinh), 2 / (4 * sinh), 5 / (2 * sinh), 4 / (8 * sinh)])
    sizes = level_of("sizes", np.repeat([1, 2, 3, 5], [3, 2, 1, 4]), 2, "H_g")
    assert estimate(sizes, [10], 5, variances="printed").variances.tolist() == pytest.approx([8 / 3, 4, 8, 2])
    variance = 1 / (2 * np.sinh(0.25) ** 2)
    assert estimate(sizes, [10], 5).variances.tolist() == pytest.approx([variance / n for n in (3, 2, 1, 4)])
    # Two blocks that round to one size are two means.
    runs = ReleasedLevel(
        "H_g",
        Fraction(1),
        {"runs": Fraction(2)},
        {"run_values": np.array([0.8, 1.2, 7.4]), "run_lengths": np.array([2, 3, 1]), "run_nodes": np.array([0, 0, 0])},
    )
    found = estimate(runs, [6], 5)
    assert (found.sizes.tolist(), found.counts.tolist()) == ([1, 5], [5, 1])
    assert found.variances.tolist() == pytest.approx([2 * variance / 5, variance])


def test_variances_are_what_they_say(monkeypatch):
    # One run of many groups: the mean squared error a group, by simulation, within a tenth (printed: 4.7 times too large).
    monkeypatch.setattr(os, "urandom", np.random.default_rng(6).bytes)
    histogram = np.zeros((400, 12), dtype=np.int64)
    histogram[:, [4, 5, 6]] = 2000
    regions = dp.RegionTree([(i,) for i in range(400)])
    release = count_of_counts_from_histograms(histogram, regions, epsilon=1)
    estimated = consistent_count_of_counts(release)
    runs = estimated.runs(0)
    error = np.square(np.sort(np.repeat(runs.sizes, runs.counts).reshape(400, 6000)) - np.repeat([4, 5, 6], 2000))
    claimed = np.repeat(runs.variances, runs.counts).reshape(400, 6000)
    middle = slice(2000, 4000)
    assert error[:, middle].mean() / claimed[:, middle].mean() == pytest.approx(1, abs=0.1)


def test_naive_histograms():
    release = level_of("histogram", [[5, 2, -3, 1, 0, 4], [-1, -1, -1, -1, -1, -1]], 2, "naive")
    # (11/3, 2/3, 0, 0, 0, 8/3): 3 + 0 + 2 leave two for the first two of equal fractions.
    runs = estimate(release, [7, 0], 5)
    assert runs.histograms(2, 5).tolist() == [[4, 1, 0, 0, 0, 2], [0, 0, 0, 0, 0, 0]]
    assert (runs.variances > 0).all()


def check_promises(estimated, regions, num_groups, max_size):
    for level in range(regions.num_levels):
        histograms = estimated.level(level)
        assert histograms.dtype == np.int64
        assert histograms.shape == (regions.size(level), max_size + 1)
        assert (histograms >= 0).all()
        assert (histograms.sum(axis=1) == num_groups[level]).all()
        if level:
            above = np.zeros((regions.size(level - 1), max_size + 1), dtype=np.int64)
            np.add.at(above, regions.parents[level], histograms)
            assert (above == estimated.level(level - 1)).all()


def random_hierarchy(rng):
    depth = int(rng.integers(1, 5))
    regions = dp.RegionTree(sorted({tuple(rng.integers(0, 3, depth).tolist()) for _ in range(rng.integers(1, 7))}))
    cells = rng.integers(0, 7, (regions.size(depth - 1), int(rng.integers(2, 10))))
    return regions, cells * (rng.random(cells.shape) < 0.7)


def random_estimate(rng, totals, max_size):
    """Any histograms with these numbers of groups, variances over six orders of magnitude."""
    histograms = np.array([rng.multinomial(total, rng.dirichlet(np.full(max_size + 1, 0.3))) for total in totals])
    runs = SizeRuns.of_histograms(histograms)
    return runs._replace(variances=10.0 ** rng.uniform(-3, 3, runs.counts.size))


@pytest.mark.slow
def test_every_promise_on_thousands_of_random_hierarchies():
    rng = np.random.default_rng(0)
    for _ in range(3000):
        regions, cells = random_hierarchy(rng)
        max_size, lowest = cells.shape[1] - 1, regions.num_levels - 1
        num_groups = [runs.totals(regions.size(i)) for i, runs in enumerate(levels_of(cells, regions)) if runs is not None]
        estimates = [
            random_estimate(rng, totals, max_size) if level == lowest or rng.random() < 0.8 else None
            for level, totals in enumerate(num_groups)
        ]
        merged = summed_up(top_down(estimates, regions, rng.choice(MERGING)), regions)
        check_promises(CountOfCountsEstimate(regions, max_size, merged), regions, num_groups, max_size)


def levels_of(cells, regions):
    return summed_up(SizeRuns.of_histograms(cells), regions)


@pytest.mark.slow
def test_every_promise_of_releases():
    rng = np.random.default_rng(1)
    for _ in range(60):
        regions, cells = random_hierarchy(rng)
        num_levels = regions.num_levels
        method = rng.choice(["H_c", "H_g", "fusion", "naive"], num_levels).tolist()
        epsilons = [*rng.choice([0, 0.05, 0.5, 5], num_levels - 1).tolist(), 0.5]
        keep = bool(rng.integers(2))
        release = count_of_counts_from_histograms(cells, regions, level_epsilons=epsilons, method=method, keep_sizes=keep)
        num_groups = group_counts(release)
        assert num_groups[-1].tolist() == cells.sum(axis=1).tolist()
        options = {
            "merging": rng.choice(MERGING),
            "variances": rng.choice(["corrected", "printed"]),
            "norm": rng.choice(["l1", "l2"]),
            "size_norm": rng.choice(["l1", "l2"]) if keep else "l2",
        }
        for way in ("top_down", "bottom_up"):
            estimated = consistent_count_of_counts(release, **options, method=way)
            check_promises(estimated, regions, num_groups, release.max_size)
        raw = consistent_count_of_counts(release, **options, method="unmerged")
        for level, epsilon in enumerate(epsilons):
            if epsilon:
                histograms = raw.level(level)
                assert (histograms >= 0).all()
                assert (histograms.sum(axis=1) == num_groups[level]).all()
            else:
                with pytest.raises(ValueError, match="was not measured"):
                    raw.level(level)


def household_cells(leaves=12, groups=3000, max_size=40):
    rng = np.random.default_rng(3)
    cells = np.zeros((leaves, max_size + 1), dtype=np.int64)
    cells[:, 1:8] = rng.multinomial(groups, [0.267, 0.328, 0.161, 0.134, 0.065, 0.026, 0.019], size=leaves)
    return cells, dp.RegionTree([("US", leaf // 4, leaf) for leaf in range(leaves)])


@pytest.mark.slow
def test_a_large_budget_gives_the_truth():
    cells, regions = household_cells()
    for method in ("H_c", "H_g", "fusion", "naive", "H_c x H_g x H_c"):
        release = count_of_counts_from_histograms(cells, regions, epsilon=300, method=method)
        assert (consistent_count_of_counts(release).level(2) == cells).all()


def test_what_each_method_uses():
    cells, regions = household_cells()
    release = count_of_counts_from_histograms(cells, regions, epsilon=0.3)
    estimates = {m: consistent_count_of_counts(release, method=m) for m in ("top_down", "bottom_up", "unmerged")}
    assert (estimates["bottom_up"].level(2) == estimates["unmerged"].level(2)).all()
    assert (estimates["bottom_up"].level(0)[0] == estimates["unmerged"].level(2).sum(axis=0)).all()
    assert (estimates["unmerged"].level(0)[0] != estimates["unmerged"].level(2).sum(axis=0)).any()
    assert estimates["top_down"].labels(1) == [0, 1, 2]
    assert estimates["top_down"].runs(2).counts.sum() == cells.sum()
    # With the lowest level alone, there is nothing to merge.
    alone = count_of_counts_from_histograms(cells, regions, level_epsilons=[0, 0, 0.3])
    assert (consistent_count_of_counts(alone).level(1) == consistent_count_of_counts(alone, method="bottom_up").level(1)).all()


def test_consistency_helps_the_lowest_level():
    # Four counties with a budget of a hundredth, the state with plenty: what the state knows reaches them.
    cells, regions = household_cells()
    release = count_of_counts_from_histograms(cells, regions, level_epsilons=[0, 1, 0.01])
    merged, raw = consistent_count_of_counts(release), consistent_count_of_counts(release, method="unmerged")
    assert earth_movers_distance(merged.level(2), cells).mean() < 0.7 * earth_movers_distance(raw.level(2), cells).mean()


@pytest.mark.slow
def test_private_numbers_of_groups():
    cells, regions = household_cells()
    release = count_of_counts_from_histograms(cells, regions, epsilon=3, private_groups=True)
    assert release.num_groups is None
    assert "empty group" in release.unit
    counts = group_counts(release)
    # 12 leaves, each with a standard deviation of at most sqrt(1.85), on a tree: 6 of them are never reached.
    assert np.abs(counts[2] - cells.sum(axis=1)).max() < 12
    estimated = consistent_count_of_counts(release)
    check_promises(estimated, regions, counts, release.max_size)
    # As measured together: the tails' noise is that of H_c.
    expected = np.abs(np.cumsum(estimated.level(2), axis=1) - np.cumsum(cells, axis=1)).max()
    assert expected < 25


def test_what_is_refused():
    cells, regions = household_cells(leaves=2, groups=5)
    release = count_of_counts_from_histograms(cells, regions, epsilon=1, method="H_g")
    with pytest.raises(ValueError, match="keep_sizes=True"):
        consistent_count_of_counts(release, size_norm="l1")
    for name in ("method", "merging", "variances", "norm", "size_norm"):
        wrong: Any = {name: "none"}
        with pytest.raises(ValueError, match=f"{name} must be one of"):
            consistent_count_of_counts(release, **wrong)
    estimated = consistent_count_of_counts(release)
    for method in (estimated.labels, estimated.level, estimated.runs):
        for level in (-1, 3):
            with pytest.raises(ValueError, match="level must be from 0"):
                method(level)


def test_accuracy_of_knowing_the_sizes():
    # E|X| of discrete Laplace noise of scale 2 / epsilon, for each size; on H_c the gaps times that of 1 / epsilon.
    error = dp.accuracy.omniscient_count_of_counts_error([1, 2, 5, 100], epsilon=0.5)
    assert error.histogram == pytest.approx(4 / np.sinh(0.25))
    assert error.earth_movers_distance == pytest.approx(99 / np.sinh(0.5))
    small = dp.accuracy.omniscient_count_of_counts_error(range(23_520), epsilon=0.001)
    assert small.histogram == pytest.approx(23_520 * 2 / 0.001, rel=1e-6)  # the print has sqrt(2) in place of 2
    assert dp.accuracy.omniscient_count_of_counts_error([1, 2], epsilon=10**6).histogram == pytest.approx(0)
    for sizes in ([2, 1], [-1, 2]):
        with pytest.raises(ValueError, match="sizes must increase"):
            dp.accuracy.omniscient_count_of_counts_error(sizes, epsilon=1)
