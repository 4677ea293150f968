"""Whether estimates are the least-squares ones, seen from the measurements alone, at any size.

A leaf may vary freely, and a change of it changes all nodes above it. So at the optimum the sum over its path to the top of
b - G x is zero, where nothing is held at zero or exact. What is held at a node adds a multiple of what it holds to that sum
(Lagrange), for all leaves below alike. Together with children that add up to their parents this proves the optimum, whoever
found it. A sum of r at a cell whose estimate has the standard deviation d moves it by some d r of its standard deviations.
"""

from typing import NamedTuple

import numpy as np

from dpinfer.spine.passes import Below, Estimate, Level, add_up, by_kind, multipliers
from dpinfer.spine.supports import Supports


class Certificate(NamedTuple):
    """How far estimates are from the optimum; all numbers are zero but for rounding at the optimum, and only there.

    Attributes:
        gradient: the largest sum over a leaf's path of b - G x, less what is held, times the standard deviation of the cell: by
            how many standard deviations an estimate may be off, up to the number of cells.
        sums: the largest difference between a node and the sum of its children, relative to 1 + the count.
        held: the largest difference from what is zero or exact, relative to 1 + the value; 0 where nothing is held.
    """

    gradient: float
    sums: float
    held: float

    def holds(self, tolerance: float = 1e-6) -> bool:
        """Whether all three are at most ``tolerance``."""
        return all(number <= tolerance for number in self)


class Walk:
    """Goes down a tree level by level and keeps the largest residuals."""

    def __init__(self, supports: Supports):
        self._supports = supports
        self._gradient = self._sums = self._held = 0.0

    def result(self) -> Certificate:
        """What was seen."""
        return Certificate(float(self._gradient), float(self._sums), float(self._held))

    def step(self, level: Level, below: Below | None, estimate: Estimate, path: np.ndarray | None) -> np.ndarray:
        """Look at a level.

        Args:
            level: what is measured.
            below: what the children say; None where all are leaves.
            estimate: of the level, with the covariances of the optimum.
            path: [n in the level above, dense, columns], its path sums; None at the top.

        Returns:
            The level's path sums, less multiples of what is held.
        """
        classes, supports = self._supports.classes, self._supports
        total = level.vector - by_kind(classes, level.gram, level.pattern, estimate.mean)
        total = total if path is None else total + path[level.parent]
        own = np.array([supports.meet(0, constraint) for constraint in level.constraints], dtype=np.int64)[level.constraint]
        if not supports.are_whole(own):
            total = self._without_held(own, below, estimate, total)
            self._held = np.maximum(self._held, self._missed(level, estimate.mean))
        leaves = slice(None) if below is None else np.flatnonzero(below.families == 0)
        spread = np.sqrt(np.maximum(np.diagonal(estimate.covariance[leaves], axis1=-2, axis2=-1), 0.0))
        for number, columns in enumerate(classes.slices):
            self._gradient = np.maximum(self._gradient, _largest(total[leaves, :, columns] * spread[:, number, :, None]))
        return total

    def sums(self, parents: np.ndarray, children: np.ndarray, parent: np.ndarray, has_children: np.ndarray) -> None:
        """Look at whether children add up to their parents."""
        difference = (parents - add_up(children, parent, len(parents))) / (1 + np.abs(parents))
        self._sums = np.maximum(self._sums, _largest(difference[has_children]))

    def _without_held(self, own: np.ndarray, below: Below | None, estimate: Estimate, total: np.ndarray) -> np.ndarray:
        """Path sums less the multiple of what a node holds that leaves, of what its children see, what these push."""
        classes, supports = self._supports.classes, self._supports
        support, push = np.zeros(len(own), dtype=np.int64), np.zeros_like(total)
        if below is not None:
            push, _ = multipliers(classes, below, estimate, covariances=False)
            support = below.support
        pairs, place = np.unique(np.stack([own, support]), axis=1, return_inverse=True)
        eye = np.eye(classes.num_dense)
        held = eye - supports.projectors(pairs[0])
        seen = supports.projectors(pairs[1]) @ held
        # What is held is a matter of zeros and ones, so that singular values are 0 or far from it.
        solve = np.stack([[_inverse(one) for one in node] for node in seen])
        multiple = by_kind(classes, held @ solve @ supports.projectors(pairs[1]), place, total - push)
        return total - multiple

    def _missed(self, level: Level, mean: np.ndarray) -> float:
        classes, supports = self._supports.classes, self._supports
        worst = 0.0
        for place, constraint in enumerate(level.constraints):
            at = np.flatnonzero(level.constraint == place)
            if constraint == supports.free or not at.size:
                continue
            known = np.zeros((1, *mean.shape[1:])) if level.exact is None else level.exact[at]
            found = classes.apply(supports.held(constraint)[None], mean[at])
            worst = np.maximum(worst, _largest((known - found) / (1 + np.abs(known))))
        return float(worst)


def _inverse(matrix: np.ndarray) -> np.ndarray:
    left, sizes, right = np.linalg.svd(matrix)
    return (right.T * np.where(sizes > 1e-6, 1 / np.maximum(sizes, 1e-6), 0.0)) @ left.T


def _largest(x: np.ndarray) -> float:
    """The largest magnitude; nan if there is one."""
    return float(np.abs(x).max(initial=0.0))
