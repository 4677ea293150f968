"""Integer noise whose law is exact: no draw depends on a rounded number, and every bit comes from the operating system.

Everything rests on one device. A uniform U in (0, 1) is an endless stream of random bits, of which the first 63 are drawn;
E = -ln U is then a standard exponential known to within an interval. Floating point answers a question about E only where
the whole interval, widened by far more than the error of the logarithm, gives the same answer. Where it does not (about
three in 10^11 draws at scale 1,000), more bits are drawn and the question is settled in decimal arithmetic of as many digits
as it takes.

    floor(t E)  is geometric: P(G >= k) = exp(-k / t)
    E >= x      happens with probability exp(-x)

The running time of the draws depends on how many were rejected, hence a little on the noise; draws are made in batches
before the answers are formed, so that it says nothing about the data.
"""

import decimal
import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Int64, UInt64

# Draws a chunk: the working set stays in the cache.
_CHUNK = 1 << 16
# Relative half-width given to float logarithms and products; their true error is below 2**-50.
_SLACK = 2.0**-47
# Beyond this scale float intervals stop deciding and 64-bit counts lose their meaning.
MAX_SCALE = Fraction(2**40)
# Below this variance a discrete Gaussian is 0 but for one draw in exp(2^99).
MIN_VARIANCE = Fraction(1, 2**100)

Words = Callable[[int], np.ndarray]


def operating_system_words(size: int) -> UInt64[np.ndarray, " size"]:
    """``size`` independent 64-bit words from the operating system's generator."""
    return np.frombuffer(os.urandom(8 * size), dtype=np.uint64)


def check_scale(name: str, scale: Fraction) -> Fraction:
    """``scale`` if it can be drawn; what made it so large is called ``name``. To be asked before a budget is charged."""
    if scale > MAX_SCALE:
        raise ValueError(f"{name} is too small: it would take noise of scale {float(scale):g}, more than 2**40.")
    return scale


def discrete_laplace(
    scales: Sequence[Fraction], rows: Int64[np.ndarray, " m"], *, words: Words = operating_system_words, bits: int = 63
) -> Int64[np.ndarray, " m"]:
    """Independent discrete Laplace draws, P(k) = (1-p)/(1+p) p^|k| with p = exp(-1/scale); int64, one for each entry of ``rows``.

    A geometric magnitude and a sign, "minus zero" drawn again (Canonne, Kamath and Steinke 2020, Algorithm 2, whose
    geometric draw is here the floor of a scaled exponential). The law is exact, tails included.

    Args:
        scales: the distinct scales, positive fractions up to 2^40.
        rows: int array; the index into ``scales`` of each draw.
        words: source of independent 64-bit words.
        bits: how many bits of a word are looked at before arithmetic is tried; fewer only make exact arithmetic more frequent.
    """
    for scale in scales:
        if not 0 < scale <= MAX_SCALE:
            raise ValueError(f"scales must be in (0, 2**40], got {float(scale)}.")
    float_scales = np.array([float(scale) for scale in scales])
    out = np.empty(rows.size, dtype=np.int64)
    for begin in range(0, rows.size, _CHUNK):
        chunk = rows[begin : begin + _CHUNK]
        todo: slice | np.ndarray = slice(0, chunk.size)
        while chunk.size:
            word = words(chunk.size)
            sign = 1 - 2 * (word & np.uint64(1)).astype(np.int64)
            magnitude = _scaled_floor(word >> np.uint64(64 - bits), bits, scales, float_scales, chunk, words)
            out[begin : begin + _CHUNK][todo] = sign * magnitude
            again = np.flatnonzero((magnitude == 0) & (sign < 0))
            todo = np.arange(chunk.size)[again] if isinstance(todo, slice) else todo[again]
            chunk = chunk[again]
    return out


def discrete_gaussian(
    variances: Sequence[Fraction], rows: Int64[np.ndarray, " m"], *, words: Words = operating_system_words, bits: int = 63
) -> Int64[np.ndarray, " m"]:
    """Independent discrete Gaussian draws, P(k) proportional to exp(-k^2 / (2 variance)); int64, one for each entry of ``rows``.

    Rejection from a discrete Laplace of scale t = floor(sigma) + 1, accepted with probability
    exp(-(|k| - variance/t)^2 / (2 variance)) (Canonne, Kamath and Steinke 2020, Algorithm 3). Exact. ``variances`` are the
    law's parameters sigma^2, fractions from 2^-100 to (2^40 - 1)^2; the rest is as in :func:`discrete_laplace`.
    """
    for variance in variances:
        if not MIN_VARIANCE <= variance < (MAX_SCALE - 1) ** 2:
            raise ValueError(f"variances must be in [2**-100, (2**40 - 1)**2), got {float(variance)}.")
    proposals = [Fraction(_integer_root(variance) + 1) for variance in variances]
    float_proposals = np.array([float(t) for t in proposals])
    float_variances = np.array([float(v) for v in variances])
    out = np.empty(rows.size, dtype=np.int64)
    todo = np.arange(rows.size)
    while todo.size:
        row = rows[todo]
        draws = discrete_laplace(proposals, row, words=words, bits=bits)
        center = float_variances[row] / float_proposals[row]
        distance = np.abs(np.abs(draws) - center)
        exponent = distance**2 / (2 * float_variances[row])
        # The rounding of |k| - center is relative to |k| + center, not to their difference.
        error = _SLACK * (exponent + distance * (np.abs(draws) + center) / float_variances[row] + 1e-300)
        accepted = _exceeds(
            words(todo.size) >> np.uint64(64 - bits),
            bits,
            exponent,
            error,
            lambda i, row=row, draws=draws: (
                (abs(int(draws[i])) - variances[row[i]] / proposals[row[i]]) ** 2 / (2 * variances[row[i]])
            ),
            words,
        )
        out[todo[accepted]] = draws[accepted]
        todo = todo[~accepted]
    return out


def survives(
    rate: Fraction, ages: Int64[np.ndarray, " m"], *, words: Words = operating_system_words, bits: int = 63
) -> Bool[np.ndarray, " m"]:
    """Independent coins, each true with probability exp(-rate x age), exactly; ``rate`` and ``ages`` are not negative."""
    exponent = float(rate) * ages
    return _exceeds(
        words(ages.size) >> np.uint64(64 - bits),
        bits,
        exponent,
        _SLACK * exponent + 1e-300,
        lambda i: rate * int(ages[i]),
        words,
    )


def uniform_below(bounds: Int64[np.ndarray, " m"], *, words: Words = operating_system_words) -> Int64[np.ndarray, " m"]:
    """For each bound n, at least 1 and below 2^53, an integer from 0 to n - 1, each as likely."""
    result = np.zeros(bounds.size, dtype=np.int64)
    todo = np.arange(bounds.size)
    bits = np.array([math.frexp(n - 1)[1] for n in bounds.tolist()], dtype=np.uint64)  # of n - 1; up to 2^53 exactly
    while todo.size:
        # As many bits as n - 1 has, until they spell a number below n.
        mask = (np.uint64(1) << bits[todo]) - np.uint64(1)
        draw = (words(todo.size) & mask).astype(np.int64)
        result[todo] = draw
        todo = todo[draw >= bounds[todo]]
    return result


def _exponential(word: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """E = -ln U and how far it may be off, for U anywhere in [word, word + 1) / 2^bits."""
    middle = -np.log((word + 0.5) * 2.0**-bits)
    with np.errstate(divide="ignore"):
        # ln(1 + x) <= x gives the half-width 1 / (2 word) of the interval; the rest is the rounding of the logarithm.
        return middle, 0.5 / word + _SLACK * (1 + middle)


def _scaled_floor(
    word: np.ndarray, bits: int, scales: Sequence[Fraction], float_scales: np.ndarray, rows: np.ndarray, words: Words
) -> np.ndarray:
    """floor(scale E) for each word."""
    middle, radius = _exponential(word, bits)
    scale = float_scales[rows] if len(scales) > 1 else float_scales[0]
    # The slack in the radius is some thirty times the rounding of these products.
    floor = np.floor((middle - radius) * scale)
    decided = (floor == np.floor((middle + radius) * scale)) & (floor >= 0)
    result = floor.astype(np.int64) if decided.all() else np.where(decided, floor, 0).astype(np.int64)
    for i in np.flatnonzero(~decided):
        result[i] = _settle(int(word[i]), bits, scales[rows[i]], words)
    return result


def _exceeds(
    word: np.ndarray, bits: int, exponent: np.ndarray, error: np.ndarray, exact: Callable[[int], Fraction], words: Words
) -> np.ndarray:
    """Whether E >= x for each word, where x is ``exact(i)`` and within ``error`` of ``exponent``."""
    middle, radius = _exponential(word, bits)
    result = middle - radius >= exponent + error
    for i in np.flatnonzero(~result & (middle + radius >= exponent - error)):
        x = exact(int(i))
        # E >= x is floor(E / x) >= 1.
        result[i] = x == 0 or _settle(int(word[i]), bits, 1 / x, words) >= 1
    return result


def _settle(word: int, bits: int, scale: Fraction, words: Words) -> int:
    """floor(scale E) for U in [word, word + 1) / 2^bits, with more bits of U drawn until it is certain."""
    while True:
        if word > 0:
            digits = bits // 3 + 60
            with decimal.localcontext(decimal.Context(prec=digits)):
                error = decimal.Decimal(10) ** (40 - digits)
                # Decimal's logarithm is correctly rounded; the other operations each add one unit in the last place.
                t = decimal.Decimal(scale.numerator) / scale.denominator
                span = decimal.Decimal(2) ** bits
                upper = -(decimal.Decimal(word) / span).ln() * t + error * (1 + t)
                lower = -(decimal.Decimal(word + 1) / span).ln() * t - error * (1 + t)
                if lower >= 0 and int(lower) == int(upper):
                    return int(lower)
                if upper < 1 and lower < 0:  # a floor of a non-negative number below 1
                    return 0
        word = (word << 32) | int(words(1)[0] >> np.uint64(32))
        bits += 32


def _integer_root(value: Fraction) -> int:
    """floor(sqrt(value)) for a positive fraction."""
    return math.isqrt(value.numerator // value.denominator)
