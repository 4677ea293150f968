"""The least-squares isotonic fit of noisy sorted counts, drawn from its law without drawing the noise of every count.

Sorted counts come in runs of equal ones. Within a run the noise is independent and of one law, and the fit to a run by itself is
made of the faces of the greatest convex minorant of the noise's partial sums. Their lengths are those of the cycles of a random
permutation: with r counts left, the next is 1 to r long, each with the same probability. A face of length l has the sum of l
noises, independent of the other faces, and they stand in the order of their slopes (Sparre Andersen 1954; Abramson, Pitman, Ross
and Uribe Bravo 2011, for increments of any law, where equal slopes may be merged). The fit to all runs is that to the runs'
blocks, each weighted by its length, since pooling adjacent violators may begin anywhere. So some log(n) draws for each run of n
give exactly the law of the fit to n noisy counts, and what the fit may be used for without more loss, so may these.

All of it is in integers: lengths by exact uniform draws, sums by exact ones, slopes compared as fractions.
"""

from fractions import Fraction

import numpy as np

from dpinfer.noise.exact import Words, operating_system_words, uniform_below
from dpinfer.noise.exact_sums import discrete_laplace_sums


def fitted_runs(
    counts: np.ndarray,
    multiplicities: np.ndarray,
    segments: np.ndarray,
    scale: Fraction,
    *,
    words: Words = operating_system_words,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The blocks of the fit to noisy sorted counts, in each segment by itself: their means, lengths and segments.

    Args:
        counts: private; int64, the distinct counts of a segment upward, one segment after the other.
        multiplicities: private; int64, how often each occurs, below 2^31.
        segments: int64, never decreasing.
        scale: of the discrete Laplace noise.
        words: source of independent 64-bit words.

    Returns:
        float64 means (each the nearest to the exact fraction), int64 lengths and segments of blocks; the means of a segment
        increase strictly, but for what float64 cannot tell apart.
    """
    run, lengths = _cycles(multiplicities, words)
    sums = discrete_laplace_sums(scale, lengths, words=words)
    # Slopes to 2^-128, in which fractions with denominators below 2^40 all differ.
    slopes = [(total << 128) // length for total, length in zip(sums.tolist(), lengths.tolist(), strict=True)]
    order = sorted(range(len(slopes)), key=list(zip(run.tolist(), slopes, strict=True)).__getitem__)

    blocks: list[list[int]] = []  # total, length, segment
    rows = zip(
        counts[run[order]].tolist(), sums[order].tolist(), lengths[order].tolist(), segments[run[order]].tolist(), strict=True
    )
    for count, total, length, segment in rows:
        new = [count * length + total, length, segment]
        while blocks and blocks[-1][2] == segment and blocks[-1][0] * new[1] >= new[0] * blocks[-1][1]:
            before = blocks.pop()
            new = [new[0] + before[0], new[1] + before[1], segment]
        blocks.append(new)
    means = np.array([total / length for total, length, _ in blocks], dtype=np.float64)
    found = np.array([block[1:] for block in blocks], dtype=np.int64).reshape(-1, 2)
    return means, found[:, 0], found[:, 1]


def _cycles(multiplicities: np.ndarray, words: Words) -> tuple[np.ndarray, np.ndarray]:
    """For each run the cycle lengths of a random permutation of so many: the run's index and the length of each."""
    rows = np.flatnonzero(multiplicities > 0)
    left = multiplicities[rows]
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    while rows.size:
        length = 1 + uniform_below(left, words=words)
        found.append((rows, length))
        left = left - length
        rows, left = rows[left > 0], left[left > 0]
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))  # pyright: ignore[reportReturnType]
