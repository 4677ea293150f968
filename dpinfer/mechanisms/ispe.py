"""Adaptive release in two steps: noisy cells, and then the sums of regions that the noisy cells suggest.

What it promises. The cells are measured with ``cell_epsilon``. Smoothing and growing regions look at the noisy cells only. Each
partition into regions is measured with its own budget; which partition it is may depend on what was released before, and the
losses add up (adaptive composition, with budgets fixed beforehand). The regions of a partition are disjoint, so that one record
changes one of its sums.
"""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any

from dpinfer import _checks
from dpinfer.domain import Domain
from dpinfer.inference.region_growing import SMOOTHINGS, grow_regions, smoothed_cells
from dpinfer.mechanisms.linear import host_integers, measure
from dpinfer.privacy import Ledger
from dpinfer.queries import Identity, Partition, Queries
from dpinfer.release import Release, check_domain
from dpinfer.scales import plan


def ispe(
    cells: Any,
    shape: int | Sequence[int],
    *,
    cell_epsilon: Any,
    partition_epsilon: Any,
    threshold: Any = 6,
    distance: Any = 1,
    smoothing: str = "gaussian",
    iterations: int = 5,
    boundary: str = "nearest",
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
    domain: Domain | None = None,
) -> Release:
    """A private release of the cells and of sums over regions of cells that are alike; exact integer noise.

    Args:
        cells: private; an integer vector [n], flat in C order.
        shape: n, or the cells along each axis.
        cell_epsilon: the budget of the cells.
        partition_epsilon: the budget of the sums; or one for each of several ``thresholds``.
        threshold: smoothed cells that differ by less are joined, a public number in counts; or several, increasing, each of which
            makes a partition into regions of the one before: a hierarchy. Some three to four standard deviations of what is left
            of the noise between neighbours: 0.19 of a cell's, after 5 times in two dimensions.
        distance: between cells that are compared, as in ``inference.grow_regions``.
        smoothing, iterations, boundary: ``method`` and so on of ``inference.smoothed_cells``.
        neighbors: "add_remove" or "replace_one".
        ledger: charged the whole before anything is drawn.
        domain: what the cells mean; kept in the release.

    Returns:
        A Release of VStack([Identity(n), Partition(labels), ...]), for every estimator; ``inference.mmse`` has its posterior. Its
        epsilon is the sum of the budgets.

    Cost: O(n) but for sorting the regions, and an exact draw for each cell and region.

    Reference: Xiao, Xiong and Yuan 2011, "ISPE: Differentially private data release via inference, smoothing, partition and
    estimation", sections 3.1 and 3.2 (Emory TR-2011-005), here with regions that do not overlap; the hierarchy is of their
    section on future work.

    Raises:
        ValueError: for anything wrong with the public arguments, or if the ledger does not have enough left.
    """
    sides = _checks.grid("shape", shape if isinstance(shape, Sequence) else [shape])
    size = prod(sides)
    budgets = _list("partition_epsilon", partition_epsilon, _checks.budget)
    thresholds = _list("threshold", threshold, _checks.budget)
    if len(budgets) != len(thresholds):
        raise ValueError(
            f"partition_epsilon must have one entry for each threshold, {len(thresholds)}, got {partition_epsilon!r}."
        )
    if any(low >= high for low, high in pairwise(thresholds)):
        raise ValueError(f"threshold must increase, got {threshold!r}.")
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
    whole = _checks.budget("cell_epsilon", cell_epsilon)
    changes = 2 if _checks.relation(neighbors) == "replace_one" else 1
    # What would be refused later is refused now, before anything is charged.
    for budget in (whole, *budgets):
        plan(Identity(1), epsilon=budget / changes)
    _checks.choice("smoothing", smoothing, SMOOTHINGS)
    growing = {"method": smoothing, "iterations": iterations, "boundary": boundary}
    smoothed_cells([0.0], 1, **growing)
    grow_regions([0.0], 1, threshold=thresholds[0], distance=distance)
    check_domain(domain, Identity(size))
    private = host_integers(cells, size)
    if ledger is not None:
        ledger.charge(whole + sum(budgets, Fraction(0)), unit="epsilon", neighbors=neighbors)

    def measured(queries: Queries, budget: Fraction) -> Release:
        # A record that moves is one less and one more. (Of a partition in one part nothing moves, and nothing would be lost.)
        found = measure(private, queries, epsilon=budget / changes, domain=domain)
        return dataclasses.replace(found, epsilon=budget, neighbors=neighbors)

    releases = [measured(Identity(size), whole)]
    smooth = smoothed_cells(releases[0].values, sides, **growing)
    for limit, budget in zip(thresholds, budgets, strict=True):
        regions = Partition(grow_regions(smooth, sides, threshold=limit, distance=distance))
        releases.append(measured(regions, budget))
    return Release.concat(releases)


def _list(name: str, given: Any, check: Any) -> list[Fraction]:
    """One entry, or several."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    if several and not given:
        raise ValueError(f"{name} must not be empty.")
    return [check(f"{name}[{i}]" if several else name, x) for i, x in enumerate(given if several else [given])]
