"""A whole segmentation at once, with a probability that falls with its cost: the exponential mechanism over all of them.

The weight of a segmentation is the product of its bins' weights, 2^(-rate x cost), and the sums over segmentations of the first
cells follow from each other, so that one is drawn bin by bin from behind. No weight vanishes, however small: each number is a
float64 with a 64-bit exponent of its own, and a draw among bins is exact for these numbers (``exact_index``). What remains is the
rounding of the sums, a relative error of at most ``ROUNDING`` for each addition. It changes the probability of a segmentation
of K bins of n cells by no more than a factor of exp(2 K (n + 16) ROUNDING), either way, and the rate is lowered by as much
as makes the whole epsilon-differentially private for the epsilon that was asked, without a delta.

In detail: let t_j be the computed weight of all segmentations that end with the bin from j to i. It is the computed sum s_j of
those before, times the weight of the bin, to 12 ROUNDING: some five factors from tables, the price, and the product. And s_i is
the sum of the t_j to n ROUNDING. A bin is drawn with probability t_j / sum t exactly, so a segmentation with the product of its
bins' exact weights, times K factors within 1 +- (n + 13) ROUNDING, over the last sum. These probabilities add up to 1, so that
the last sum is that of the exact weights but for the same factors.
"""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpinfer.noise.exact import Words, operating_system_words

ROUNDING = Fraction(1, 2**53)
# Below log2(e).
_BITS_A_NAT = Fraction(14426950408889634, 10**16)
# Rates have about so many bits, and at most so many behind the binary point; digits of so many bits have tables.
_RATE_BITS, _MOST_PLACES, _DIGIT = 20, 55, 11
# Costs of whole segmentations must be below.
MAX_COST = 2**40
# So many numbers stay in the cache.
_ENTRIES_AT_ONCE = 2**15
_NOWHERE = np.int64(-(2**62))

# int64 [i], the costs of the bins that end with cell i - 1, by the cell they begin with.
Row = Callable[[int], np.ndarray]


def dyadic_rate(epsilon: Fraction, change: int, n: int, most_bins: int) -> tuple[int, int]:
    """The rate P / 2^S, in bits per unit of cost, that spends at most epsilon, as (P, S).

    Args:
        epsilon: the budget.
        change: by how much the cost of a segmentation differs between neighbours, at most.
        n: how many cells.
        most_bins: how many bins a segmentation has at most.

    Raises:
        ValueError: if rounding alone would spend more, or the rate would be 0.
    """
    left = epsilon - 4 * most_bins * (n + 16) * ROUNDING
    if left <= 0:
        raise ValueError(f"structure_epsilon must be above {float(epsilon - left):.1g} for so many cells, got {epsilon}.")
    wanted = left * _BITS_A_NAT / (2 * change)
    places = min(max(_RATE_BITS - (wanted.numerator.bit_length() - wanted.denominator.bit_length()), 0), _MOST_PLACES)
    rate = min(int(wanted * 2**places), 2 ** (_RATE_BITS + 1))
    if rate == 0:
        raise ValueError(f"structure_epsilon is too small to tell costs apart that a record changes by {change}, got {epsilon}.")
    return rate, places


class SegmentationWeights:
    """The weights of all segmentations, summed up by where they end; private, like the costs.

    Args:
        row: private; the costs of bins. Those of a whole segmentation are below ``MAX_COST``.
        n: how many cells.
        bins: how many bins; None: any number.
        rate: of :func:`dyadic_rate`.
        price: by how many nats a bin more makes a segmentation less probable, if the number is free.

    Cost: O(n^2) for any number of bins, O(n^2 bins) for a given one; memory O(n), or O(n bins).
    """

    def __init__(self, row: Row, n: int, bins: int | None, rate: tuple[int, int], price: float = 0.0) -> None:
        self._row, self._bins, self._rate = row, bins, rate
        self._price = _power(-price * float(_BITS_A_NAT))
        # A line for each number of bins from 0 on; of any number there is one, which follows from itself.
        lines = 1 if bins is None else bins + 1
        self._mantissas, self._exponents = np.zeros((lines, n + 1)), np.full((lines, n + 1), _NOWHERE)
        self._mantissas[0, 0], self._exponents[0, 0] = 1.0, 0
        for i in range(1, n + 1):
            weights = self._bins_to(i)
            # Of so many bins there are as many cells before, and enough behind for the others.
            first, last = (0, 1) if bins is None else (max(0, bins - 1 - (n - i)), min(bins, i))
            size = max(1, _ENTRIES_AT_ONCE // i)
            for low in range(first, last, size):
                high = min(low + size, last)
                found = _sum(*self._ending(i, low, high, weights))
                lines = slice(0, 1) if bins is None else slice(low + 1, high + 1)
                self._mantissas[lines, i], self._exponents[lines, i] = found

    def _bins_to(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """The weights of the bins that end with cell i - 1: mantissas and exponents."""
        costs = self._row(i) * self._rate[0]
        places = self._rate[1]
        mantissa, exponent = self._price
        return _powers(costs & ((1 << places) - 1), places) * mantissa, exponent - (costs >> places)

    def _ending(self, i: int, low: int, high: int, weights: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return self._mantissas[low:high, :i] * weights[0], self._exponents[low:high, :i] + weights[1]

    def last_bins(self, i: int, bins: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Of the segmentations of the first i cells (in so many bins) the weights by where the last bin begins, [i]."""
        line = 0 if bins is None else bins - 1
        mantissas, exponents = self._ending(i, line, line + 1, self._bins_to(i))
        return mantissas[0], exponents[0]

    def draw(self, *, words: Words = operating_system_words) -> np.ndarray:
        """Where the bins of a segmentation end, int64 [bins]; its probability falls by 2^-rate for each unit of cost."""
        stops, left, i = [], self._bins, self._mantissas.shape[1] - 1
        while i > 0:
            stops.append(i)
            i = exact_index(*self.last_bins(i, left), words=words)
            left = None if left is None else left - 1
        return np.array(stops[::-1], dtype=np.int64)


def _sum(mantissas: np.ndarray, exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of mantissas x 2^exponents along the last axis; what is below 2^-1022 of the largest counts as that."""
    most = exponents.max(axis=-1, initial=_NOWHERE)
    mantissa, shift = np.frexp((mantissas * _shifts(exponents - most[:, None])).sum(axis=-1))
    return mantissa, np.maximum(most + shift, _NOWHERE)


def _shifts(exponents: np.ndarray) -> np.ndarray:
    """2^exponents, for exponents up to 0; from 2^-1022 on, which stands for all that are less."""
    return ((np.maximum(exponents, -1022) + 1023) << 52).view(np.float64)


def _power(exponent: float) -> tuple[float, int]:
    """2^exponent as a mantissa and an exponent."""
    whole = int(np.floor(exponent))
    return float(2.0 ** (exponent - whole)), whole


def _powers(fractions: np.ndarray, places: int) -> np.ndarray:
    """2^-(fractions / 2^places), fractions below 2^places; by digits, each factor rounded once."""
    found = np.ones(fractions.shape)
    for digit in range(0, places, _DIGIT):
        upto = min(digit + _DIGIT, places)
        found *= _table(upto, upto - digit)[(fractions >> (places - upto)) & ((1 << (upto - digit)) - 1)]
    return found


@lru_cache(maxsize=64)
def _table(places: int, bits: int) -> np.ndarray:
    """2^-(k / 2^places) for k below 2^bits, each rounded to the nearest float64 (but for ties that decimals cannot see)."""
    with localcontext(Context(prec=50)):
        step, value, found = Decimal(2) ** (Decimal(-1) / 2**places), Decimal(1), []
        for _ in range(1 << bits):
            found.append(float(value))
            value *= step
    return np.array(found)


def exact_index(mantissas: np.ndarray, exponents: np.ndarray, *, words: Words = operating_system_words) -> int:
    """A place, drawn with a probability proportional to mantissas x 2^exponents: exactly, however small one is.

    A uniform number of which 63 bits are known falls surely into one place, or, with a probability of some n^2 2^-53, more bits
    are drawn and sums are formed in integers until it does.
    """
    most = int(exponents[mantissas > 0].max())
    upto = np.cumsum(mantissas * _shifts(np.minimum(exponents - most, 0)))
    word, bits = int(words(1)[0] >> np.uint64(1)), 63
    target = (word + 0.5) * 2.0**-bits * upto[-1]
    place = int(np.searchsorted(upto, target, side="right"))
    slack = (2 * mantissas.size + 32) * 2.0**-53 * upto[-1]
    if place < upto.size and upto[place] - target > slack and (place == 0 or target - upto[place - 1] > slack):
        return place
    whole, scaled = [int(m * 2.0**60) for m in mantissas.tolist()], (exponents - most).tolist()
    places = 128
    while True:
        bits += 64
        word = (word << 64) | int(words(1)[0])
        # Lower ends, in units of 2^-places; each number lost less than one.
        low = np.cumsum(np.array([_shifted(m, e + places - 60) for m, e in zip(whole, scaled, strict=True)], dtype=object))
        lost = np.arange(1, low.size + 1)
        above = [(word + 1) * (low[-1] + low.size) <= x << bits for x in low]
        below = [word * low[-1] >= (x + off) << bits for x, off in zip(low, lost.tolist(), strict=True)]
        for j in range(low.size):
            if above[j] and (j == 0 or below[j - 1]):
                return j
        places += 64


def _shifted(value: int, by: int) -> int:
    """floor(value x 2^by)."""
    return value << by if by >= 0 else value >> -by
