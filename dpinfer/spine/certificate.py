"""Whether estimates are the least-squares ones, seen from the measurements alone, at any size.

A leaf may vary freely, and a change of it changes all nodes above it. So at the optimum the sum over its path to the top of
b - G x is zero, where nothing is held at zero or exact; where something is, it is zero up to multipliers of what is held.
Together with children that add up to their parents this proves the optimum, whoever found it.
"""

from typing import NamedTuple

import numpy as np

from dpinfer.spine.passes import Below, Estimate, Level, add_up, by_kind, multipliers
from dpinfer.spine.supports import Supports


class Certificate(NamedTuple):
    """How far estimates are from the optimum; all numbers are zero but for rounding at the optimum, and only there.

    Attributes:
        gradient: the largest sum over a path of b - G x, up to multipliers, over the largest b.
        sums: the largest difference between a node and the sum of its children, over the largest count.
        held: the largest difference from what is zero or exact, over the largest count or exact value.
    """

    gradient: float
    sums: float
    held: float

    def holds(self, tolerance: float = 1e-8) -> bool:
        """Whether all three are at most ``tolerance``."""
        return max(self) <= tolerance


class Walk:
    """Goes down a tree level by level and keeps the largest residuals."""

    def __init__(self, supports: Supports):
        self._supports = supports
        self._gradient = self._sums = self._held = 0.0
        self._vector = self._count = self._exact = 0.0

    def step(self, level: Level, below: Below | None, estimate: Estimate, path: np.ndarray | None) -> np.ndarray:
        """Look at a level.

        Args:
            level: what is measured.
            below: what the children say; None where all are leaves.
            estimate: of the level.
            path: [n in the level above, dense, columns], its path sums; None at the top.

        Returns:
            The level's path sums.
        """
        classes, supports = self._supports.classes, self._supports
        own = np.array([supports.meet(0, constraint) for constraint in level.constraints])[level.constraint]
        total = level.vector - by_kind(classes, level.gram, level.pattern, estimate.mean)
        total = total if path is None else total + path[level.parent]
        # What the path sums are without children: zero. Their multipliers, where there are any.
        push = np.zeros_like(total)
        if below is not None:
            push, _ = multipliers(classes, below, estimate, covariances=False)
        if supports.are_whole(own):
            held = 0.0
        else:
            missed = total - push
            missed = missed - classes.apply(supports.projectors(own), missed)
            total = total - missed
            held = self._miss(level, estimate.mean)
        leaves = slice(None) if below is None else np.flatnonzero(below.families == 0)
        self._gradient = max(self._gradient, _largest(total[leaves]))
        self._held = max(self._held, held)
        self._vector = max(self._vector, _largest(level.vector))
        self._count = max(self._count, _largest(estimate.mean))
        return total

    def sums(self, parents: np.ndarray, children: np.ndarray, parent: np.ndarray, has_children: np.ndarray) -> None:
        """Look at whether children add up to their parents."""
        difference = parents - add_up(children, parent, len(parents))
        self._sums = max(self._sums, _largest(difference[has_children]))

    def _miss(self, level: Level, mean: np.ndarray) -> float:
        classes, supports = self._supports.classes, self._supports
        worst = 0.0
        for place, constraint in enumerate(level.constraints):
            at = np.flatnonzero(level.constraint == place)
            if constraint == supports.free or not at.size:
                continue
            known = np.zeros((1, *mean.shape[1:])) if level.exact is None else level.exact[at]
            self._exact = max(self._exact, _largest(known))
            worst = max(worst, _largest(known - classes.apply(supports.held(constraint)[None], mean[at])))
        return worst

    def result(self) -> Certificate:
        """What was seen."""
        return Certificate(
            self._gradient / (self._vector or 1.0),
            self._sums / (self._count or 1.0),
            self._held / (max(self._count, self._exact) or 1.0),
        )


def _largest(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0.0))
