"""Runs of fitted sorted counts: their law by enumeration of all noises; closed expectations; the record."""

import math
from collections import defaultdict
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import isotonic_regression, unattributed_histogram
from dpinfer.mechanisms import SortedRuns, fitted_runs, sorted_counts, sorted_runs
from dpinfer.noise import exact_sums


def seeded(seed):
    rng = np.random.default_rng(seed)
    return lambda size: rng.integers(0, 2**64, size, dtype=np.uint64)


def runs_of(values):
    """Adjacent equal exact means as (mean, length)."""
    found = []
    for value in values:
        if found and found[-1][0] == value:
            found[-1][1] += 1
        else:
            found.append([value, 1])
    return tuple((mean, length) for mean, length in found)


def pooled(values):
    """The isotonic fit in fractions, by the min-max formula."""
    n = len(values)

    def mean(i, j):
        return Fraction(sum(values[i : j + 1]), j + 1 - i)

    return [max(min(mean(i, j) for j in range(k, n)) for i in range(k + 1)) for k in range(n)]


# A lopsided noise with ties: the law of the blocks holds for any.
NOISE = {-1: Fraction(1, 2), 0: Fraction(1, 3), 2: Fraction(1, 6)}


def sums_of(length):
    law: dict[int, Fraction] = {0: Fraction(1)}
    for _ in range(length):
        law, before = defaultdict(Fraction), law
        for (total, p), (step, q) in product(before.items(), NOISE.items()):
            law[total + step] += p * q
    return law


def test_the_law_of_the_fit_by_enumeration(monkeypatch):
    # Two interacting runs, of 3 and 2 equal counts. All noises, fitted directly:
    counts = [0, 0, 0, 1, 1]
    direct: dict[Any, Fraction] = defaultdict(Fraction)
    for noise in product(NOISE, repeat=5):
        p = math.prod(NOISE[step] for step in noise)
        direct[runs_of(pooled([c + e for c, e in zip(counts, noise, strict=True)]))] += p
    # ... and all cycles of permutations with all sums of each, as the function puts them together.
    blocks: dict[Any, Fraction] = defaultdict(Fraction)
    cycles: dict[int, Any] = {3: defaultdict(Fraction), 2: defaultdict(Fraction)}
    for n, law in cycles.items():
        for order in permutations(range(n)):
            lengths, left = [], set(range(n))
            while left:
                start = here = min(left)
                length = 0
                while here in left:
                    left.remove(here)
                    here, length = order[here], length + 1
                lengths.append(length)
                assert here == start
            law[tuple(lengths)] += Fraction(1, 6 if n == 3 else 2)
    for (first, p), (second, q) in product(cycles[3].items(), cycles[2].items()):
        lengths = [*first, *second]
        run = np.array([0] * len(first) + [1] * len(second))
        monkeypatch.setattr(fitted_runs, "_cycles", lambda *_, run=run, lengths=lengths: (run, np.array(lengths)))
        for sums in product(*(sums_of(length).items() for length in lengths)):
            totals = np.array([total for total, _ in sums])
            monkeypatch.setattr(fitted_runs, "discrete_laplace_sums", lambda *_, totals=totals, **__: totals)
            means, found, _ = fitted_runs.fitted_runs(np.array([0, 1]), np.array([3, 2]), np.zeros(2, int), Fraction(1))
            exact = [Fraction(mean).limit_denominator(10) for mean in means.tolist()]
            blocks[tuple(zip(exact, found.tolist(), strict=True))] += p * q * math.prod(chance for _, chance in sums)
    assert sum(direct.values()) == 1
    assert blocks == direct


def test_cycles_of_permutations():
    # The number of cycles of n has mean 1 + 1/2 + ... + 1/n, and a cycle length is uniform.
    run, lengths = fitted_runs._cycles(np.full(20_000, 6), seeded(1))
    assert (np.bincount(run, weights=lengths) == 6).all()
    mean, variance = sum(1 / k for k in range(1, 7)), sum(1 / k - 1 / k**2 for k in range(1, 7))
    assert abs(run.size / 20_000 - mean) < 4 * np.sqrt(variance / 20_000)
    first = lengths[:20_000]
    assert np.abs(np.bincount(first, minlength=7)[1:] / 20_000 - 1 / 6).max() < 4 * np.sqrt(5 / 36 / 20_000)


def test_expected_errors_of_one_run():
    # 2 H_n / eps^2 with the discrete law's variance, and the earth mover's distance after rounding, within 4 standard errors.
    releases = 4000
    segments = np.arange(releases)
    means, lengths, where = fitted_runs.fitted_runs(
        np.full(releases, 5), np.full(releases, 1000), segments, Fraction(1), words=seeded(2)
    )
    squares = np.bincount(where, weights=lengths * (means - 5) ** 2)
    assert abs(squares.mean() - 13.783350723041165) < 4 * squares.std() / np.sqrt(releases)
    means, lengths, where = fitted_runs.fitted_runs(
        np.full(releases, 5), np.full(releases, 100), segments, Fraction(1), words=seeded(3)
    )
    distance = np.bincount(where, weights=lengths * np.abs(np.floor(means + 0.5) - 5))
    assert abs(distance.mean() - 7.102094513188885) < 4 * distance.std() / np.sqrt(releases)


@pytest.mark.slow
def test_runs_are_as_the_fit_of_noisy_counts():
    # Realistic counts: the same squared error on average as of the fit to counts with a noise each.
    cells = np.repeat([0, 1, 2, 9, 40], [300, 200, 60, 5, 1])

    def error(values, lengths):
        return float(np.square(np.repeat(values, lengths) - cells).sum())

    by_runs = np.array([error(r.values, r.lengths) for r in (sorted_runs(cells, epsilon=0.5) for _ in range(300))])
    direct = []
    for _ in range(300):
        fit = np.asarray(isotonic_regression(sorted_counts(cells, epsilon=0.5).values).values)
        direct.append(error(fit, 1))
    both = np.sqrt(by_runs.var() / 300 + np.var(direct) / 300)
    assert abs(by_runs.mean() - np.mean(direct)) < 4.5 * both  # fresh noise every time: 1 in 150,000


def test_record(tmp_path):
    release = sorted_runs([3, 1, 2], multiplicities=[10, 10**6, 0], epsilon=0.25, unit="edge", neighbors="replace_one")
    assert (release.scale, release.epsilon, release.unit) == (16, Fraction(1, 4), "edge")
    assert release.lengths.sum() == 10**6 + 10
    assert (np.diff(release.values) >= 0).all()
    assert release.whole_counts.dtype == np.int64
    assert release.whole_counts.min() >= 0
    release.save(tmp_path / "runs.npz")
    again = SortedRuns.load(tmp_path / "runs.npz")
    assert again.values.tolist() == release.values.tolist()
    assert again.lengths.tolist() == release.lengths.tolist()
    assert (again.scale, again.epsilon, again.unit, again.neighbors) == (16, Fraction(1, 4), "edge", "replace_one")
    with pytest.raises(ValueError, match="is no dpinfer release of sorted counts"):
        dp.mechanisms.SortedCounts.load(tmp_path / "runs.npz")


def test_unattributed_histogram_of_runs():
    release = SortedRuns(np.array([-2.0, 1.5, 7.2]), np.array([2, 1, 2]), Fraction(1), Fraction(1), "row", "add_remove")
    assert unattributed_histogram(release).cells.tolist() == [0, 0, 2, 7, 7]
    assert unattributed_histogram(release, rounded=False).cells.tolist() == [0, 0, 1.5, 7.2, 7.2]
    with pytest.raises(ValueError, match="sorted_counts"):
        unattributed_histogram(release, method="sorted")
    with pytest.raises(ValueError, match="sorted_counts"):
        unattributed_histogram(release, norm="l1")


def test_only_public_facts_raise():
    ledger = dp.Ledger(epsilon=1)
    sorted_runs([2, 2**63 - 1, -5], multiplicities=[20, -3, 1], epsilon=0.5, ledger=ledger)
    assert ledger.remaining == Fraction(1, 2)
    for multiplicities in ([2**31], [2**62]):
        with pytest.raises(ValueError, match=r"less than 2\*\*31"):
            sorted_runs([2], multiplicities=multiplicities, epsilon=0.5, ledger=ledger)
    for mechanism in (sorted_runs, sorted_counts):
        with pytest.raises(ValueError, match="epsilon is too small"):
            mechanism([2], epsilon=1e-14, ledger=ledger)
    with pytest.raises(ValueError, match="size_epsilon is too small"):
        sorted_counts([2], epsilon=0.1, size_epsilon=1e-14, ledger=ledger)
    assert ledger.remaining == Fraction(1, 2)
    with pytest.raises(ValueError, match="one entry for each"):
        sorted_runs([2, 3], multiplicities=[1], epsilon=0.5)
    with pytest.raises(ValueError, match="integer dtype"):
        sorted_runs([2.5], epsilon=0.5)
    with pytest.raises(ValueError, match="unit"):
        sorted_runs([2], epsilon=0.5, unit="node")
    with pytest.raises(ValueError, match="epsilon"):
        sorted_runs([2], epsilon=0.6, ledger=ledger)


def test_saturated_sums():
    assert exact_sums._saturate([2**70, -(2**70), 5]).tolist() == [2**63 - 1, -(2**63), 5]
