"""What StructureFirst will be off by: exactly for given bins, and bounds of what choosing them privately costs."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpinfer import _checks
from dpinfer import noise as laws
from dpinfer.accuracy.few_bins import bin_sizes
from dpinfer.mechanisms.bin_costs import largest_change
from dpinfer.mechanisms.structure_first import SELECTIONS


class GivenBinsError(NamedTuple):
    """Expected errors, summed over all cells, of flat bins.

    Attributes:
        squared_error: of cell - true cell, squared.
        absolute_error: its size.
        noise: the part of ``squared_error`` that is noise; the rest is how unequal the cells of a bin are.
    """

    squared_error: float
    absolute_error: float
    noise: float


def structure_first_error(
    truth: Any, stops: Sequence[int] | np.ndarray, *, epsilon: Any, values: str = "mean", neighbors: str = "add_remove"
) -> GivenBinsError:
    """The exact expected error of ``mechanisms.structure_first`` once it has chosen these bins.

    A bin of s cells x_i with noise Z of scale b = 1 / epsilon says mean + Z / s for each, and is off by a_i + Z / s, a_i = mean -
    x_i; or median + Z (Z / 2 if s is even). Z is discrete Laplace, for which E|k + Z| = |k| + 2 p^(|k| + 1) / (1 - p^2) for whole
    k, p = exp(-1 / b). For continuous noise the squares of all noise add up to 2 / epsilon^2 sum 1 / s_j, or to
    2 n / epsilon^2 for medians.

    Args:
        truth: [n], whole numbers, for studies.
        stops: where each bin ends, exclusive.
        epsilon: the budget of the values, without that of the bins.
        values: "mean" or "median".
        neighbors: as there.

    Reference: Xu et al. 2013, theorems 3 and 6, whose terms for the noise are bounds: 2 k / epsilon^2 for means, and for medians
    one that is wrong (absolute errors are up to n / epsilon, not 2 k / epsilon^2: of 100 equal cells in one bin at epsilon = 1 it
    says 2 where 100 is true).

    Raises:
        ValueError: if ``truth`` is not whole, or ``stops`` do not increase to n.
    """
    cells = _checks.index_array("truth", truth)
    sizes = bin_sizes(stops, cells.size)
    _checks.choice("values", values, ("mean", "median"))
    scale = (2 if _checks.relation(neighbors) == "replace_one" else 1) / float(_checks.budget("epsilon", epsilon))
    variance, p = float(laws.stddev("discrete_laplace", scale)) ** 2, math.exp(-1 / scale)
    squared = absolute = noise = 0.0
    for part, size in zip(np.split(cells, np.cumsum(sizes)[:-1]), sizes.tolist(), strict=True):
        ranked = np.sort(part)
        # Whole numbers: the cells' deviations times the divisor of the noise.
        divisor = size if values == "mean" else 2 - size % 2
        middle = part.sum() if values == "mean" else ranked[(size - 1) // 2] + (0 if size % 2 else ranked[size // 2])
        off = np.abs(middle - divisor * part).astype(float)
        noise += size * variance / divisor**2
        squared += float(np.square(off / divisor).sum())
        absolute += float((off + 2 * p ** (off + 1) / ((1 + p) * -math.expm1(-1 / scale))).sum()) / divisor
    return GivenBinsError(squared + noise, absolute, noise)


def structure_excess_bound(
    n: int,
    bins: int,
    *,
    structure_epsilon: Any,
    selection: str = "joint",
    cost: str = "sae",
    max_count: int | None = None,
    neighbors: str = "add_remove",
) -> float:
    """By how much the cost of the bins that are chosen is above the least, at most, on average.

    An exponential mechanism among m candidates with rate c is above the best by at most ln(m) / c. All segmentations at once:
    2 D ln C(n - 1, k - 1) / epsilon. One boundary after the other, each with a (k - 1)th of the budget, the excesses add up to
    2 (k - 1)^2 D ln(n) / epsilon. D is what a record changes: 1 for deviations, 2 max_count - 1 for squares (2 max_count + 1 for
    the paper's rule). Permute-and-flip is never above the exponential mechanism.

    Theorems 3 and 6 of Xu et al. 2013 bound the same, and say nothing: for every split of the budget they are at least
    2 (k - 1) n F^2 / 4 for squares and 4 (k - 1) n F / 2 for deviations, of cells up to F, where n F^2 / 4 and n F / 2 hold for
    whatever bins.

    Args:
        n: how many cells.
        bins: how many bins.
        structure_epsilon: the budget of the bins.
        selection, cost, max_count, neighbors: as in ``mechanisms.structure_first``.
    """
    _checks.choice("selection", selection, SELECTIONS)
    return _slope(n, bins, selection, cost, max_count, neighbors) / float(_checks.budget("structure_epsilon", structure_epsilon))


def structure_first_split(
    n: int,
    bins: int,
    *,
    epsilon: Any,
    selection: str = "joint",
    cost: str = "sae",
    max_count: int | None = None,
    values: str = "mean",
    neighbors: str = "add_remove",
) -> float:
    """The ``structure_epsilon`` at which the bound of the excess and the error of the noise are least together.

    For deviations A / e + B / (epsilon - e), with A / e the bound of :func:`structure_excess_bound` and B the number of bins
    (means) or of cells (medians): e = epsilon / (1 + sqrt(B / A)). For squares A / e + B / (epsilon - e)^2 with B = 2 k or
    2 n: where A (epsilon - e)^3 = 2 B e^2. Public numbers only. It is the worst case: on real histograms an even split does
    better, which is the mechanism's default.

    Args: as in :func:`structure_excess_bound`, and
        epsilon: the whole budget.
        values: "mean" or "median".
    """
    _checks.choice("selection", selection, SELECTIONS)
    _checks.choice("values", values, ("mean", "median"))
    whole = float(_checks.budget("epsilon", epsilon))
    slope = _slope(n, bins, selection, cost, max_count, neighbors)
    if slope == 0:
        return 0.0
    change = 2 if neighbors == "replace_one" else 1
    if cost == "sae":
        return whole / (1 + math.sqrt(change * (bins if values == "mean" else n) / slope))
    parts = 2 * change**2 * (bins if values == "mean" else n)
    low, high = 0.0, whole
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if slope * (whole - middle) ** 3 > 2 * parts * middle**2 else (low, middle)
    return low


def _slope(n: int, bins: int, selection: str, cost: str, max_count: int | None, neighbors: str) -> float:
    """The bound of the excess, times the budget."""
    n = _checks.integer("n", n, least=1)
    bins = _checks.integer("bins", bins, least=1)
    if bins > n:
        raise ValueError(f"bins must be at most n, {n}, got {bins}.")
    _checks.choice("cost", cost, ("sae", "sse"))
    if (max_count is None) != (cost == "sae"):
        raise ValueError("max_count, a public bound of counts, is needed for cost='sse', and for nothing else.")
    most = None if max_count is None else _checks.integer("max_count", max_count, least=1)
    change = largest_change(most, is_paper=selection == "exponential")
    change *= 2 if _checks.relation(neighbors) == "replace_one" else 1
    if bins in (1, n):
        return 0.0
    ways = math.lgamma(n) - math.lgamma(bins) - math.lgamma(n - bins + 1)
    return 2 * change * (ways if selection == "joint" else (bins - 1) ** 2 * math.log(n))
