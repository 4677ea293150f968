"""The expected error of counts in order of their size, from how many of them are equal."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpinfer import _checks
from dpinfer import noise as laws
from dpinfer.mechanisms.sorted_counts import CHANGES


class SortedCountsError(NamedTuple):
    """Expected squared errors, summed over all ranks.

    Attributes:
        noisy: of the noisy counts.
        isotonic: of the isotonic fit, at most; exactly if there is one run, or if the runs are so far apart that noise never
            mixes them.
    """

    noisy: float
    isotonic: float


def sorted_counts_error(
    run_lengths: Sequence[int] | np.ndarray, *, epsilon: Any, unit: str = "row", noise: str = "discrete_laplace"
) -> SortedCountsError:
    """What ``mechanisms.sorted_counts`` and its isotonic fit will be off by, for true counts with runs of these lengths.

    With noise of variance s^2 a run of n equal counts contributes n s^2 to the error of the noisy counts, and s^2 H_n to that of
    the isotonic fit, H_n = 1 + 1/2 + ... + 1/n: the blocks of a fit to n equal counts are as long as the cycles of a random
    permutation, and each contributes s^2 (Sparre Andersen 1954; for any independent noise of one law). Several runs that are far
    apart are fitted by themselves. Closer ones only gain, since a projection onto a convex set moves no farther than that onto
    its tangent cone (Oymak and Hassibi 2016, theorem 2.2). Clipping at 0 only gains, too; rounding adds at most 1/4 a rank.

    Theorem 2 of Hay et al. 2010 has the cube of a logarithm, (c_1 log^3 n + c_2) / epsilon^2 with unknown constants, where the
    truth is 2 H_n / epsilon^2 (Laplace noise).

    Args:
        run_lengths: how often each true count occurs; a matter of the truth, so for studies.
        epsilon: the budget of the counts.
        unit: as in ``mechanisms.sorted_counts``, with neighbours that differ by one unit.
        noise: "discrete_laplace", that of real releases, or "laplace".
    """
    lengths = _checks.index_array("run_lengths", run_lengths)
    if lengths.size and lengths.min() < 1:
        raise ValueError(f"run_lengths must be positive, got {lengths.min()}.")
    _checks.choice("noise", noise, ("discrete_laplace", "laplace"))
    scale = CHANGES[_checks.choice("unit", unit, tuple(CHANGES))] / float(_checks.budget("epsilon", epsilon))
    variance = float(np.square(laws.stddev(noise, scale)))
    return SortedCountsError(variance * float(lengths.sum()), variance * float(_harmonic(lengths).sum()))


def _harmonic(n: np.ndarray) -> np.ndarray:
    """1 + 1/2 + ... + 1/n, to 1e-15."""
    few = np.concatenate([[0.0], np.cumsum(1 / np.arange(1.0, 1000))])
    large = np.maximum(n, 999).astype(float)
    asymptotic = np.log(large) + np.euler_gamma + 1 / (2 * large) - 1 / (12 * large**2)
    return np.where(n < few.size, few[np.minimum(n, few.size - 1)], asymptotic)
