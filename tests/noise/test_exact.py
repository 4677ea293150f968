"""The exact samplers: their law by enumeration where bits are few, by chi-square where they are many."""

import decimal
import itertools
import math
import os
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpinfer.noise import exact


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(7, 3), Fraction(1, 2), Fraction(20)])
def test_floor_of_scaled_exponential_is_geometric_by_enumeration(scale):
    # All 4096 values of the first 12 bits: 4 of them at first, which rarely decide, then 8 more (and a 1 behind them).
    law: Counter[int] = Counter()
    for first, second in itertools.product(range(16), range(256)):
        law[exact._settle(first, 4, scale, lambda n, w=second: np.full(n, (w << 56) | 1 << 55, dtype=np.uint64))] += 1
    p = math.exp(-1 / scale)
    assert sum(law.values()) == 4096
    for k in range(max(law) + 1):
        # An interval of length L holds L 4096 grid points, give or take one.
        assert abs(law[k] - 4096 * (1 - p) * p**k) <= 1


def seeded(rng, size):
    """Words that make a statistical test the same in every run."""
    return rng.integers(0, 2**64, size, dtype=np.uint64)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 5, 63])
def test_few_bits_give_the_same_law_as_many(bits):
    # With 2 or 5 bits almost every draw is settled in exact arithmetic, with 63 almost none.
    size, scale = 20_000, Fraction(5, 2)
    rng = np.random.default_rng(bits)
    draws = exact.discrete_laplace([scale], np.zeros(size, dtype=int), words=lambda n: seeded(rng, n), bits=bits)
    p = math.exp(-1 / scale)
    edges = np.arange(-8, 9)
    observed = np.array([(draws <= -9).sum(), *((draws == k).sum() for k in edges), (draws >= 9).sum()])
    inner = (1 - p) / (1 + p) * p ** np.abs(edges)
    tail = p**9 / (1 + p)
    expected = size * np.array([tail, *inner, tail])
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("bits", [3, 63])
def test_coins_fall_with_exact_chances(bits):
    rng, draws = np.random.default_rng(bits), 4000
    rate, ages = Fraction(2, 7), np.array([0, 1, 4, 15])
    coins = exact.survives(rate, np.repeat(ages, draws), words=lambda n: seeded(rng, n), bits=bits).reshape(4, draws)
    chances = np.exp(-float(rate) * ages)
    assert coins[0].all()
    assert (np.abs(coins.mean(axis=1) - chances) <= 4 * np.sqrt(chances * (1 - chances) / draws)).all()
    # Of ages and rates that no float holds.
    assert not exact.survives(Fraction(2**20), np.array([2**62])).any()
    assert exact.survives(Fraction(1, 10**400), np.array([2**40])).all()


def test_coins_agree_with_exact_arithmetic_at_every_boundary():
    # Words on both sides of P = exp(-x): the rounded logarithm decides wrongly there, or not at all.
    rate, ages = Fraction(1, 3), np.repeat(np.arange(1, 90, 3), 5)
    with decimal.localcontext(decimal.Context(prec=50)):
        exactly = [(-decimal.Decimal(a) / 3).exp() * 2**63 for a in range(1, 90, 3)]
    words = np.array([int(e) + d for e in exactly for d in (-2, -1, 0, 1, 2)])
    found = exact.survives(rate, ages, words=lambda n: (words << 1).astype(np.uint64) if n == words.size else _no_more(n))
    # U is the middle of its interval of 63 bits, once more bits are asked for: true if it is below exp(-x).
    expected = [
        decimal.Decimal(w) + decimal.Decimal(1) / 2 < e
        for w, e in zip(words.tolist(), [e for e in exactly for _ in range(5)], strict=True)
    ]
    assert found.tolist() == expected


def test_uniform_numbers_are_below_their_bounds_and_as_likely_as_each_other():
    rng = np.random.default_rng(3)
    for bound in (1, 2, 3, 5, 8, 9):
        found = exact.uniform_below(np.full(3000, bound), words=lambda n: seeded(rng, n))
        assert found.min() >= 0
        tally = np.bincount(found, minlength=bound)
        assert tally.size == bound
        assert bound == 1 or stats.chisquare(tally).pvalue > 1e-4
    # Bits that spell the bound itself are drawn again.
    script = [5, 7, 4]
    assert exact.uniform_below(np.array([5]), words=lambda n: np.array([script.pop(0)], dtype=np.uint64)).tolist() == [4]


def _no_more(size):
    return np.full(size, 2**63, dtype=np.uint64)


def test_scaled_floor_agrees_with_exact_arithmetic_at_every_boundary():
    # Words on both sides of P(E >= k / t): the place where a rounded logarithm would go wrong.
    scale = Fraction(1000)
    boundaries = [math.floor(2**63 * math.exp(-k / 1000)) for k in range(1, 3000, 7)]
    words = np.array([b + d for b in boundaries for d in (-2, -1, 0, 1, 2)], dtype=np.uint64)
    got = exact._scaled_floor(words, 63, [scale], np.array([1000.0]), np.zeros(words.size, dtype=int), _no_more)
    for word, value in zip(words.tolist(), got.tolist(), strict=True):
        assert value == exact._settle(word, 63, scale, _no_more)


@pytest.mark.parametrize("scale", [Fraction(1, 100), Fraction(1, 3), Fraction(1), Fraction(1000), Fraction(2**40)])
def test_discrete_laplace_has_the_right_law_over_many_scales(scale):
    size = 200_000
    draws = exact.discrete_laplace([scale], np.zeros(size, dtype=int))
    p = math.exp(-1 / scale)
    assert draws.dtype == np.int64
    # P(|k| >= m) = 2 p^m / (1 + p), at the median, at 1 in 100 and at 1 in 1000; five standard errors.
    for share in (0.5, 1e-2, 1e-3):
        m = max(1, round(-math.log(share * (1 + p) / 2) * float(scale)))
        truth = 2 * p**m / (1 + p)
        observed = (np.abs(draws) >= m).mean()
        assert abs(observed - truth) <= 5 * math.sqrt(truth * (1 - truth) / size) + 1e-12
    zero = (1 - p) / (1 + p)
    assert abs((draws == 0).mean() - zero) <= 5 * math.sqrt(zero * (1 - zero) / size) + 1e-12
    assert abs((draws > 0).sum() - (draws < 0).sum()) <= 5 * math.sqrt(max(1, (draws != 0).sum()))


def test_each_row_gets_its_own_scale():
    scales = [Fraction(1, 2), Fraction(50), Fraction(3000)]
    rows = np.arange(150_000) % 3
    draws = exact.discrete_laplace(scales, rows)
    for i, scale in enumerate(scales):
        p = math.exp(-1 / scale)
        variance = 2 * p / (1 - p) ** 2
        group = draws[rows == i].astype(float)
        # The fourth moment of a Laplace law is 24 b^4: the variance of the square is at most 6 variance^2.
        assert abs(np.square(group).mean() - variance) <= 5 * math.sqrt(6 * variance**2 / group.size) + variance * 0.02


@pytest.mark.parametrize("variance", [Fraction(1, 10), Fraction(1), Fraction(30), Fraction(10**6)])
@pytest.mark.parametrize("bits", [6, 63])
def test_discrete_gaussian_has_the_right_law(variance, bits):
    size = 4_000 if bits < 63 else 100_000
    rng = np.random.default_rng(bits)
    draws = exact.discrete_gaussian([variance], np.zeros(size, dtype=int), words=lambda n: seeded(rng, n), bits=bits)
    sigma = math.sqrt(variance)
    grid = np.arange(-20 * math.ceil(sigma) - 20, 20 * math.ceil(sigma) + 21)
    mass = np.exp(-(grid.astype(float) ** 2) / (2 * float(variance)))
    cumulative = np.cumsum(mass / mass.sum())
    # Some ten bins of like probability, or every value by itself where there are few.
    edges = np.unique(grid[np.searchsorted(cumulative, np.linspace(0, 1, 11)[1:-1])])
    expected = np.diff(np.concatenate([[0], cumulative[np.searchsorted(grid, edges)], [1]])) * size
    observed = np.bincount(np.searchsorted(edges, draws, side="left"), minlength=edges.size + 1)
    assert expected.min() > 5
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_samplers_refuse_scales_they_cannot_draw():
    for bad in (Fraction(0), Fraction(-1), Fraction(2**41)):
        with pytest.raises(ValueError, match="scales must be"):
            exact.discrete_laplace([bad], np.zeros(1, dtype=int))
    with pytest.raises(ValueError, match="variances must be"):
        exact.discrete_gaussian([Fraction(2**80)], np.zeros(1, dtype=int))


def test_all_bits_come_from_the_operating_system(monkeypatch):
    asked = itertools.count()
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: (next(asked), real(n))[1])
    exact.discrete_laplace([Fraction(3)], np.zeros(10, dtype=int))
    assert next(asked) > 0
