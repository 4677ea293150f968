"""Which branching, and whether a tree at all; and which estimator."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer.accuracy.heights import Axes, heights, num_levels, num_ranges, sides_of
from dpinfer.accuracy.range_variance import average_consistent, average_of_fewest, level_precisions, range_variance
from dpinfer.queries import Identity, Queries, Tree

_MAX_BRANCHING = 1024
# Branchings whose budgets are optimised, the best under equal ones.
_SHORTLIST = 3
WORKLOADS = ("ranges", "cells")
# Below so many standard deviations of a noisy cell's noise, a cell on average, empirical Bayes has less error in ranges.
_SPARSE = 10.0
# What is measured for it: parts along each axis by the number of axes, some 16 children; and the root's share of the budget.
_PARTS = {1: 16, 2: 4, 3: 3}
_ROOT_SHARE = 0.1


def best_branching(
    n: int | Sequence[int],
    *,
    consistent: bool = True,
    dims: int = 1,
    root: bool = False,
    max_branching: int = _MAX_BRANCHING,
    unit: str = "epsilon",
) -> int:
    """The branching whose tree has the least average variance over all ranges, every level with the same share of the budget.

    Exact, for every n, by trying all from 2 to ``max_branching``. If n itself is among these and wins, no tree is better than the
    flat histogram. ``recommend`` also weighs unequal budgets.

    Args:
        n, consistent, dims, root: as in :func:`range_variance`.
        max_branching: the largest to try.
        unit: of the budget, "epsilon" or "rho"; under rho levels cost less, and the best branching is smaller.

    Cost: a third of a second for n = 2^20 and all branchings up to 1,024.

    Reference: Qardaji et al. 2013, section 3, whose algorithms 1 and 2 approximate this (:func:`estimated_range_variance`).
    """
    curve = variance_by_branching(n, consistent=consistent, dims=dims, root=root, max_branching=max_branching, unit=unit)
    return min(curve, key=lambda pair: pair[1])[0]


def variance_by_branching(
    n: int | Sequence[int],
    *,
    consistent: bool = True,
    dims: int = 1,
    root: bool = False,
    max_branching: int = _MAX_BRANCHING,
    unit: str = "epsilon",
) -> list[tuple[int, float]]:
    """Each branching from 2 to n or ``max_branching``, and the average variance over all ranges for a budget of 1 in equal parts.

    Arguments as in :func:`best_branching`. For another epsilon divide by its square, for another rho by it.
    """
    sides = sides_of(n, dims)
    most = _checks.integer("max_branching", max_branching, least=2)
    _checks.choice("unit", unit, ("epsilon", "rho"))
    average, found = average_consistent if consistent else average_of_fewest, []
    for branching in range(2, max(2, min(max(sides), most)) + 1):
        top = num_levels(max(sides), branching)
        levels = top + bool(root)
        weights = [np.float64(0.5 / levels**2 if unit == "epsilon" else 2 / levels)] * levels
        weights = weights if root else [*weights, np.float64(0.0)]
        # Not through their cache: these heights are looked at once.
        axes = [Axes(side, sides.count(side), heights.__wrapped__(side, branching, top)) for side in sorted(set(sides))]
        found.append((branching, float(average(axes, weights))))
    return found


@final
@dataclass(frozen=True)
class Recommendation:
    """A strategy and its budgets; ``measure(cells, strategy, level_epsilons=level_epsilons)`` as it stands (or level_rhos).

    Attributes:
        strategy: ``Identity``, the flat histogram, or a tree.
        is_flat: whether it is flat.
        branching: of the tree; None if flat.
        level_epsilons: the budget of each level, top first; None under rho.
        level_rhos: the same under rho; None under epsilon.
        variance: the average variance over all ranges that it will have, with consistency unless that was not wanted; by least
            squares, whatever the estimator.
        flat_variance: what the flat histogram would have.
        estimator: the name of what to estimate it with: "least_squares", "cell_posterior" or "range_posterior".
        reason: why that one.
    """

    strategy: Queries
    is_flat: bool
    branching: int | None
    level_epsilons: np.ndarray | None
    level_rhos: np.ndarray | None
    variance: float
    flat_variance: float
    estimator: str = "least_squares"
    reason: str = ""

    @property
    def budgets(self) -> np.ndarray:
        """Those of the levels, in whichever unit."""
        return np.asarray(self.level_rhos if self.level_epsilons is None else self.level_epsilons)


def recommend(
    n: int | Sequence[int],
    dims: int = 1,
    *,
    epsilon: Any = None,
    rho: Any = None,
    budgets: str = "optimal",
    consistent: bool = True,
    max_branching: int = _MAX_BRANCHING,
    workload: str = "ranges",
    total: Any = None,
) -> Recommendation:
    """What to measure for all ranges, or for single cells, with which budgets, and what to estimate it with.

    From public numbers alone, so that the choice costs no privacy. No release is best for both: the cells of a tree for ranges
    have more than twice the error of cells measured alone, and sums of the posteriors of cells several times that of a tree.

    - "ranges", and nothing known of the records: the flat histogram or the tree, with its branching and budgets, of least average
      variance by least squares. Unbiased, and its errors are what they are said to be for any cells.
    - "ranges", with a guess of the ``total`` that leaves fewer than 10 / epsilon records to a cell: a 16-ary tree with its root,
      estimated by ``inference.range_posterior``, for which most cells being empty or alike is an advantage. On the histograms of
      ``examples/frontier.py`` it beats that tree on average the more, the fewer records there are, and is level with DAWA or
      better, but where a few buckets of equal cells are all there is.
    - "cells": all of the budget for the cells, estimated by ``inference.cell_posterior``. Where intervals must hold for each cell
      whatever the others are, take ``least_squares``.

    Args:
        n: cells along each axis; or a list of them, one for each axis of a grid.
        dims: number of axes, if n is one number.
        epsilon, rho: the budget, one of the two.
        budgets: how to split it over the levels, as ``method`` of ``allocation.level_budgets``. The optimal split is found for
            the three branchings that are best with equal ones.
        consistent, max_branching: as in :func:`best_branching`.
        workload: "ranges" or "cells".
        total: about how many records there are, a public number; never the private one. The order of magnitude is enough.
    """
    from dpinfer.allocation.level_budgets import level_budgets  # which stands on this module's neighbours

    if (epsilon is None) == (rho is None):
        raise ValueError("Give exactly one of epsilon and rho.")
    whole: Fraction = _checks.budget("epsilon", epsilon) if rho is None else _checks.budget("rho", rho)
    _checks.choice("workload", workload, WORKLOADS)
    records = None if total is None else float(_checks.budget("total", total))

    def variance(branching: int, split: np.ndarray, *, root: bool = False) -> float:
        epsilons, rhos = (split, None) if rho is None else (None, split)
        return float(range_variance(sides, branching, epsilons, level_rhos=rhos, consistent=consistent, root=root))

    sides = sides_of(n, dims)
    flat = variance(max(*sides, 2), np.array([float(whole)]))
    level_epsilons, level_rhos = (np.array([float(whole)]), None) if rho is None else (None, np.array([float(whole)]))
    if workload == "cells":
        reason = "cells one by one: no budget for sums; their posteriors learn from each other"
        identity = Identity(prod(sides))
        return Recommendation(identity, True, None, level_epsilons, level_rhos, flat, flat, "cell_posterior", reason)
    # Epsilon, or what has the same noise in a cell.
    precision = float(whole) if rho is None else 2 * float(whole) ** 0.5
    if records is not None and precision * records / prod(sides) < _SPARSE and len(sides) in _PARTS and min(sides) > 1:
        parts = _PARTS[len(sides)]
        tree = Tree.complete(sides[0], parts, True) if len(sides) == 1 else Tree.grid(sides, parts, True)
        shares = np.array(empirical_shares(len(tree.level_sizes)))
        split = float(whole) * shares
        reason = f"some {precision * records / prod(sides):.2g} records a cell, times epsilon: below {_SPARSE:g}"
        given = (split, None) if rho is None else (None, split)
        return Recommendation(tree, False, parts, *given, variance(parts, split, root=True), flat, "range_posterior", reason)
    most = min(max_branching, max(*sides, 3) - 1)
    unit = "epsilon" if rho is None else "rho"
    curve = variance_by_branching(sides, consistent=consistent, max_branching=most, unit=unit)
    ranked = sorted(curve, key=lambda pair: pair[1])
    best: tuple[float, int | None, np.ndarray] = (flat, None, np.array([float(whole)]))
    for branching, _ in ranked[: _SHORTLIST if budgets == "optimal" else 1]:
        split = level_budgets(sides, branching, epsilon=epsilon, rho=rho, method=budgets, consistent=consistent)
        if variance(branching, split) < best[0] * (1 - 1e-9):  # more than rounding errors
            best = (variance(branching, split), branching, split)
    found, branching, split = best
    tree = None if branching is None else (Tree.complete(sides[0], branching) if len(sides) == 1 else Tree.grid(sides, branching))
    return Recommendation(
        strategy=Identity(prod(sides)) if tree is None else tree,
        is_flat=tree is None,
        branching=branching,
        level_epsilons=split if rho is None else None,
        level_rhos=None if rho is None else split,
        variance=found,
        flat_variance=flat,
        reason="least variance of all ranges on average, for any cells",
    )


def empirical_shares(num_levels: int) -> tuple[float, ...]:
    """The shares of the budget of a tree's levels, its root first, for ``inference.range_posterior``; they add up to 1."""
    if num_levels < 2:
        return (1.0,)
    return (_ROOT_SHARE, *[(1 - _ROOT_SHARE) / (num_levels - 1)] * (num_levels - 1))


def estimated_range_variance(n: int, branching: int, level_epsilons: Any) -> float:
    """Qardaji et al.'s estimate of the average variance over all ranges with consistency, for epsilon budgets, top first.

    Algorithms 1 and 2 of Qardaji et al. 2013 with their misprints corrected: in algorithm 1 the variance of a level is 2 / e_i^2;
    in algorithm 2, Z_i is to be divided by b (b - 1) / 2 V_O, Z_h is Vdown_h e_h^2 / 2, M_h includes the range of all cells, and
    the result is to be divided by N (N + 1) / 2. It takes the tree for a complete one and the ends of a range for independent,
    and so is off by some per cent, either way; :func:`range_variance` is exact and as fast.
    """
    n, b = _checks.integer("n", n, least=1), _checks.integer("branching", branching, least=2)
    precise = np.asarray(level_precisions(n, b, level_epsilons, None, False, "laplace"), dtype=float)
    if not precise.all():
        raise ValueError("level_epsilons must be positive: the estimate knows no level that is not measured.")
    own, h = (1 / precise).tolist(), precise.size
    down, up = [own[0]], [own[-1]]
    for v in own[1:]:
        down.append(1 / (1 / v + 1 / (b * down[-1])))
    for v, below in zip(own[-2::-1], down[-2::-1], strict=True):
        up.insert(0, 1 / (1 / v + 1 / (up[0] + (b - 1) * below)))
    total = 0.0
    for i in range(1, h):
        d, u = down[i - 1], up[i]
        nodes = (b - 1) * (n**2 / 2 - n * (b + 1) * b ** (i - 1) / 3 + n)
        total += nodes * ((b + 1) * d**2 + 3 * u * d) / (3 * (u + b * d))
    size = b ** (h - 1)
    top = sum((k * size + 1) * (n - (k + 1) * size + 1) - 1 for k in range(n // size)) + b
    return (total + top * down[-1]) / num_ranges(n)
