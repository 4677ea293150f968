"""Exact sums: coins by enumeration, digits against arithmetic of many places, sums by their closed law."""

import decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpinfer.noise import exact_sums


def seeded(seed):
    rng = np.random.default_rng(seed)
    return lambda size: rng.integers(0, 2**64, size, dtype=np.uint64)


def test_tosses_by_enumeration():
    # 8 coins from the first 4 bits, and where these leave it open from 64 more, of which the 4 leading ones count.
    law = np.zeros(9, dtype=int)
    for first in range(16):
        for second in range(16):
            word = np.array([first], dtype=np.uint64)
            law[exact_sums._tossed(word, 8, 4, lambda n, w=second: np.full(n, w << 60, dtype=np.uint64))[0]] += 1
    assert law.tolist() == [1, 8, 28, 56, 70, 56, 28, 8, 1]


def test_a_table_of_coins_is_as_single_ones():
    size = 4000
    heads = exact_sums.fair_binomials(np.full(size, 3 * 4096 + 2 * 64 + 5), seeded(1))
    assert stats.kstest(heads, stats.binom(3 * 4096 + 2 * 64 + 5, 0.5).cdf).pvalue > 1e-3  # conservative for a discrete law
    few = exact_sums.fair_binomials(np.arange(4).repeat(4000), seeded(2)).reshape(4, -1)
    assert not few[0].any()
    for n, drawn in enumerate(few[1:], start=1):
        expected = 4000 * stats.binom.pmf(np.arange(n + 1), n, 0.5)
        assert stats.chisquare(np.bincount(drawn, minlength=n + 1), expected).pvalue > 1e-3
    assert exact_sums.fair_binomials(np.zeros(0, int), seeded(3)).shape == (0,)


@pytest.mark.parametrize("x", [Fraction(1), Fraction(1, 2**40), Fraction(1000), Fraction(355, 113)])
def test_digits(x):
    with decimal.localcontext(decimal.Context(prec=2000)):
        p = (-decimal.Decimal(x.numerator) / x.denominator).exp()
        for is_odds in (False, True):
            digits = exact_sums._Digits(x, is_odds=is_odds)
            expected = int((p / (1 + p) if is_odds else p) * 2**3000)
            # Asked for out of order, and far beyond what was computed first.
            for place in (0, 5, 63, 64, 700, 2999, 1):
                assert digits[place] == (expected >> (2999 - place)) & 1


def pmf(scale, n, k):
    """P(sum of n discrete Laplace variables = k): one minus another negative binomial variable."""
    p = -np.expm1(-1 / float(scale))
    last = int(stats.nbinom.ppf(1 - 1e-14, n, p)) + 1
    one = stats.nbinom.pmf(np.arange(last + 1), n, p)
    both = np.convolve(one, one[::-1])
    return both[np.clip(k + last, 0, 2 * last)] * (np.abs(k) <= last)


@pytest.mark.parametrize(("scale", "n"), [(Fraction(1), 1), (Fraction(1, 3), 2), (Fraction(7, 2), 3), (Fraction(2), 70)])
def test_sums_have_their_law(scale, n):
    size = 20_000
    drawn = exact_sums.discrete_laplace_sums(scale, np.full(size, n), words=seeded(n))
    width = max(1, int(np.sqrt(n) * float(scale)))
    edges = np.arange(-3 * width, 3 * width + 1)
    inner = pmf(scale, n, edges)
    tail = (1 - inner.sum()) / 2
    observed = [(drawn < edges[0]).sum(), *((drawn == k).sum() for k in edges), (drawn > edges[-1]).sum()]
    expected = size * np.array([tail, *inner, tail])
    # Outcomes that are expected a few times only count together.
    often = (expected >= 20) & (expected > expected.min())
    observed = np.array(observed)
    counts, wanted = [*observed[often], observed[~often].sum()], [*expected[often], expected[~often].sum()]
    assert stats.chisquare(counts, wanted).pvalue > 1e-3


@pytest.mark.slow
def test_sums_of_many():
    # Their variance is n times one's: 1 / (2 sinh(1 / (2 scale))^2), within 4 standard errors; no sum of nothing is anything.
    lengths = np.tile([0, 10_000_000], 2000)
    drawn = exact_sums.discrete_laplace_sums(Fraction(3), lengths, words=seeded(5)).reshape(-1, 2)
    assert not drawn[:, 0].any()
    standard = drawn[:, 1] / np.sqrt(1e7 / (2 * np.sinh(1 / 6) ** 2))
    assert abs(standard.mean()) < 4 / np.sqrt(2000)
    assert abs(standard.var() - 1) < 4 * np.sqrt(2 / 2000)


def test_scales_that_are_none_are_refused():
    for scale in (Fraction(0), Fraction(2**41)):
        with pytest.raises(ValueError, match="scale"):
            exact_sums.discrete_laplace_sums(scale, np.ones(1, int))
