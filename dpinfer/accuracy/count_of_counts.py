"""The expected error of count-of-counts histograms for somebody who knows which sizes there are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpinfer import _checks


class OmniscientError(NamedTuple):
    """Expected errors of a node.

    Attributes:
        histogram: the sum of |error| over the entries of H, numbers of groups.
        earth_movers_distance: with the same budget for H_c instead, before any fit.
    """

    histogram: float
    earth_movers_distance: float


def omniscient_count_of_counts_error(sizes: Sequence[int] | np.ndarray, *, epsilon: Any) -> OmniscientError:
    """What is off if all sizes that occur are known, and only how many groups have each is measured.

    A bound to compare with, of no mechanism: which sizes occur is private. An entity changes two entries of H, so that the noise
    has scale 2 / epsilon and an expected absolute value of 1 / sinh(epsilon / 2), which for small epsilon is 2 / epsilon. H_c
    changes by 1, and its error between two neighbouring sizes counts for all sizes between: (largest - smallest) / sinh(epsilon).

    Args:
        sizes: those that occur, increasing.
        epsilon: the budget of the node.

    Reference: Kuo et al. 2018, section 6.1, which has sqrt(2) / epsilon for each size: the standard deviation of noise for half
    the sensitivity, where the expected absolute value is meant; and compares it with an earth mover's distance.
    """
    occurring = _checks.index_array("sizes", np.asarray(sizes))
    if (np.diff(occurring, prepend=-1) <= 0).any():
        raise ValueError("sizes must increase, each there once and none negative.")
    budget = min(float(_checks.budget("epsilon", epsilon)), 700.0)  # beyond which nothing is off
    reach = float(occurring[-1] - occurring[0]) if occurring.size else 0.0
    return OmniscientError(occurring.size / float(np.sinh(budget / 2)), reach / float(np.sinh(budget)))
