"""Sums of many independent noises, drawn at once and exactly: as many random words as the sum has digits, not terms.

A geometric variable, P(G = k) = (1 - q) q^k, is the number that independent bits spell: bit j is 1 with probability
q^(2^j) / (1 + q^(2^j)), since q^k is a product over the bits of k. What the bits from the J-th on spell is geometric again, with
q^(2^J). So the sum of n such variables is a sum of binomial variables, each with a power of two in front, and is finished once
none of the n has anything left above.

A binomial variable with any probability p is one with fair coins, again and again: of n uniform numbers, the first binary digit
is 0 for a Binomial(n, 1/2) of them. If p's digit is 1, those are below p, and the others wait for the next digit; if it is 0,
those wait, and the others are above. After some log2(n) digits nobody waits. The digits of p are computed as far as they are
asked for, with arithmetic of as many places as it takes to be certain of them.

Fair coins are counted by the word, or 4,096 at a time by a table of their law, whose entries have 4,096 bits: 64 random ones
decide all but one of some 2^53 draws, and for that one the others are drawn.
"""

import decimal
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import accumulate
from math import comb

import numpy as np
from jaxtyping import Int64

from dpinfer.noise.exact import MAX_SCALE, Words, operating_system_words

# Coins that one lookup tosses.
_COINS = 4096
# Random words held at a time.
_CHUNK = 1 << 18


def discrete_laplace_sums(
    scale: Fraction, lengths: Int64[np.ndarray, " m"], *, words: Words = operating_system_words
) -> Int64[np.ndarray, " m"]:
    """For each n in ``lengths`` the sum of n independent discrete Laplace variables of this scale; exact.

    A discrete Laplace variable is the difference of two geometric ones. For each of some log2(scale) + log(n) binomial variables
    O(n / 4096 + log n) random words, up to 64 of them for each of its log n digits. Sums beyond int64 saturate.

    Args:
        scale: a positive fraction up to 2^40.
        lengths: not negative, below 2^40.
        words: source of independent 64-bit words.
    """
    if not 0 < scale <= MAX_SCALE:
        raise ValueError(f"scale must be in (0, 2**40], got {float(scale)}.")
    both = _geometric_sums(scale, np.concatenate([lengths, lengths]), words)
    return _saturate([up - down for up, down in zip(both[: lengths.size], both[lengths.size :], strict=True)])


def _saturate(values: list[int]) -> np.ndarray:
    limits = np.iinfo(np.int64)
    return np.array([min(max(value, limits.min), limits.max) for value in values], dtype=np.int64)


def _geometric_sums(scale: Fraction, lengths: np.ndarray, words: Words) -> list[int]:
    """Of n geometric variables with q = exp(-1 / scale) each."""
    total = [0] * lengths.size
    rows, bit = np.arange(lengths.size), 0
    while rows.size:
        power = 1 << bit
        is_bit = power <= scale
        # Above the scale bits are rare. Those that have any left have one unit at least; what is beyond that is geometric again.
        counts = binomials(lengths, _Digits(power / scale, is_odds=is_bit), words)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            total[row] += power * count
        if is_bit:
            bit += 1
        else:
            rows, lengths = rows[counts > 0], counts[counts > 0]
    return total


def binomials(trials: Int64[np.ndarray, " m"], probability: "_Digits", words: Words) -> Int64[np.ndarray, " m"]:
    """How many of n coins show heads, for each n in ``trials``; ``probability`` of heads by its binary digits."""
    heads = np.zeros(trials.size, dtype=np.int64)
    rows, waiting = np.arange(trials.size), trials
    place = 0
    while True:
        rows, waiting = rows[waiting > 0], waiting[waiting > 0]
        if not rows.size:
            return heads
        zeros = fair_binomials(waiting, words)
        if probability[place]:
            heads[rows] += zeros
            waiting = waiting - zeros
        else:
            waiting = zeros
        place += 1


def fair_binomials(trials: Int64[np.ndarray, " m"], words: Words) -> Int64[np.ndarray, " m"]:
    """How many of n fair coins show heads, for each n in ``trials``."""
    tables, rest = np.divmod(trials, _COINS)
    full, coins = np.divmod(rest, 64)
    heads = _repeated(tables, lambda size: _tossed(words(size), _COINS, 64, words))
    heads += _repeated(full, lambda size: np.bitwise_count(words(size)).astype(np.int64))
    return heads + np.bitwise_count(words(trials.size) & ((np.uint64(1) << coins.astype(np.uint64)) - np.uint64(1)))


def _tossed(word: np.ndarray, coins: int, bits: int, words: Words) -> np.ndarray:
    """Heads among ``coins`` fair coins, a lookup for each word of ``bits`` random bits."""
    bounds, leading = _law(coins, bits)
    heads = np.searchsorted(leading, word, side="right")
    # A word that is that of a bound does not say on which side of it the number is.
    for i in np.flatnonzero(leading[np.maximum(heads - 1, 0)] == word):
        number, known = int(word[i]), bits
        while known < coins:
            number, known = (number << 64) | int(words(1)[0]), known + 64
        heads[i] = bisect_right(bounds, number >> (known - coins))
    return heads


@cache
def _law(coins: int, bits: int) -> tuple[list[int], np.ndarray]:
    """How many of the 2^coins outcomes have at most k heads, for k < coins, and the leading bits of these numbers."""
    bounds = list(accumulate(comb(coins, k) for k in range(coins)))
    return bounds, np.array([bound >> (coins - bits) for bound in bounds], dtype=np.uint64)


def _repeated(times: np.ndarray, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """For each entry of ``times`` the sum of so many draws."""
    ends = np.cumsum(times)
    sums = np.zeros(times.size, dtype=np.int64)
    size = int(times.sum())
    for begin in range(0, size, _CHUNK):
        end = min(begin + _CHUNK, size)
        totals = np.concatenate([[0], np.cumsum(draw(end - begin))])
        sums += totals[np.clip(ends, begin, end) - begin] - totals[np.clip(ends - times, begin, end) - begin]
    return sums


class _Digits:
    """The binary digits of p = exp(-x), or with ``is_odds`` of exp(-x) / (1 + exp(-x)), after the point."""

    def __init__(self, x: Fraction, *, is_odds: bool):
        self._x, self._is_odds = x, is_odds
        self._known, self._number = 0, 0

    def __getitem__(self, place: int) -> int:
        if place >= self._known:
            self._known = max(64, 2 * place)
            self._number = self._leading(self._known)
        return (self._number >> (self._known - 1 - place)) & 1

    def _leading(self, bits: int) -> int:
        """floor(p 2^bits)."""
        if self._x > bits:
            return 0  # p < 2^-bits
        digits = bits // 3 + 30
        while True:  # p is no rational number, so that some precision suffices
            with decimal.localcontext(decimal.Context(prec=digits + 10)):
                # x is off by its last place at most, and so is each step after it: far less than the error allowed.
                p = (-decimal.Decimal(self._x.numerator) / self._x.denominator).exp()
                p = p / (1 + p) if self._is_odds else p
                error, span = decimal.Decimal(10) ** -digits, 1 << bits
                lower, upper = int((p - error) * span), int((p + error) * span)
            if lower == upper and p > error:
                return lower
            digits *= 2
