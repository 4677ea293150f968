"""Laws of one number each on grids of their own: moments, quantiles, shortest intervals, and sums of independent ones."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

_SECTIONS, _BISECTIONS = 60, 50
# Standard deviations on either side that the grid of a sum of several laws spans.
_SPAN = 14.0
# The least mass of a sum of integers that is kept, of the largest.
_LEAST = 1e-14


@final
@dataclass(frozen=True, eq=False)
class Laws:
    """Laws on grids.

    Attributes:
        places: float64 [laws, points], increasing.
        densities: [laws, points], whose logarithm is concave; of laws on integers the probabilities instead.
        masses: [laws, points], of each point, by which sums approximate integrals; they add up to 1.
        is_lattice: bool [laws], whether it is on integers, all of which are points.
        points_a_piece: pieces of so many points each, the next one's first being its last too, have no kinks and one step.
    """

    places: np.ndarray
    densities: np.ndarray
    masses: np.ndarray
    is_lattice: np.ndarray
    points_a_piece: int

    @cached_property
    def means(self) -> np.ndarray:
        return (self.masses * self.places).sum(axis=1)

    @cached_property
    def stddevs(self) -> np.ndarray:
        return np.sqrt((self.masses * np.square(self.places - self.means[:, None])).sum(axis=1))

    @cached_property
    def up_to(self) -> np.ndarray:
        """The probability up to each point, [laws, points]."""
        x, f = self.places, self.densities
        # By cubics through four points of the same piece: around the interval, or from its first or to its last on.
        rules = {0: (9, 19, -5, 1), -1: (-1, 13, 13, -1), -2: (1, -5, 19, 9)}
        num, piece = x.shape[1] - 1, self.points_a_piece
        begin = np.full(num, -1)
        begin[::piece], begin[piece - 1 :: piece] = 0, -2
        part = np.empty((x.shape[0], num))
        for shift, rule in rules.items():
            own = np.flatnonzero(begin == shift)
            part[:, own] = sum(weight * f[:, own + shift + k] for k, weight in enumerate(rule))
        part *= np.diff(x, axis=1) / 24
        total = np.cumsum(np.concatenate([np.zeros((x.shape[0], 1)), np.maximum(part, 0)], axis=1), axis=1)
        smooth = total / total[:, -1:]
        return np.where(self.is_lattice[:, None], np.cumsum(self.masses, axis=1), smooth)

    def quantile(self, p: np.ndarray) -> np.ndarray:
        """Of each law at its p, [laws]: the least integer up to which that much is, or between points by a cubic."""
        row = np.arange(p.size)
        after = np.minimum((self.up_to < p[:, None]).sum(axis=1), self.places.shape[1] - 1)
        before = np.maximum(after - 1, 0)
        x0, x1 = self.places[row, before], self.places[row, after]
        width = x1 - x0
        f0, f1 = (self.densities[row, k] * width for k in (before, after))
        a, b = self.up_to[row, before], self.up_to[row, after]
        low, high = np.zeros(p.size), np.ones(p.size)
        for _ in range(_BISECTIONS):
            t = (low + high) / 2
            there = a * (1 + 2 * t) * (1 - t) ** 2 + f0 * t * (1 - t) ** 2 + b * t * t * (3 - 2 * t) + f1 * t * t * (t - 1)
            low, high = np.where(there < p, t, low), np.where(there < p, high, t)
        return np.where(self.is_lattice, x1, x0 + width * (low + high) / 2)

    def equal_tailed(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        tail = np.full(self.places.shape[0], (1 - level) / 2)
        return self.quantile(tail), self.quantile(1 - tail)

    def highest(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """The shortest intervals; by golden sections over what is left below, of which their length is a convex function."""
        ratio = (np.sqrt(5) - 1) / 2
        a, b = np.zeros(self.places.shape[0]), np.full(self.places.shape[0], 1 - level)

        def length(below: np.ndarray) -> np.ndarray:
            return self.quantile(below + level) - self.quantile(below)

        for _ in range(_SECTIONS):
            left, right = b - ratio * (b - a), a + ratio * (b - a)
            is_left = length(left) <= length(right)
            a, b = np.where(is_left, a, left), np.where(is_left, right, b)
        below = (a + b) / 2
        return self.quantile(below), self.quantile(below + level)


def convolved(laws: Laws, owner: np.ndarray, which: np.ndarray, num_sums: int) -> tuple[Laws, np.ndarray]:
    """The laws of sums of independent numbers, and which of these each sum has.

    Args:
        laws: of the terms.
        owner: int64, the sum to which each term belongs, never decreasing.
        which: int64, the law of each term.
        num_sums: how many sums; one without terms is 0, with certainty.
    """
    terms = np.bincount(owner, minlength=num_sums)
    starts = np.cumsum(terms) - terms
    found = np.zeros(num_sums, dtype=np.int64)
    is_single = terms == 1
    found[is_single] = which[starts[is_single]]
    keys: dict[tuple[int, ...], int] = {}
    for place in np.flatnonzero(~is_single).tolist():
        key = tuple(sorted(which[starts[place] : starts[place] + terms[place]].tolist()))
        found[place] = laws.means.size + keys.setdefault(key, len(keys))
    if not keys:
        return laws, found
    width = laws.places.shape[1]
    new = [_integer_sum(laws, list(key), width) or _sum_of(laws, list(key), width) for key in keys]
    places, densities, masses, is_lattice = (
        np.concatenate([old, np.stack([np.asarray(law[k]) for law in new])])
        for k, old in enumerate((laws.places, laws.densities, laws.masses, laws.is_lattice))
    )
    return Laws(places, densities, masses, is_lattice, laws.points_a_piece), found


def _integer_sum(laws: Laws, terms: list[int], num_points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool] | None:
    """As ``_sum_of``, exactly, if all terms are integers and what is left of their sum fits."""
    if not terms or not laws.is_lattice[terms].all():
        return None
    spans = [int(np.flatnonzero(laws.masses[term])[-1]) + 1 for term in terms]
    size = 1 << (sum(spans) - 1).bit_length()
    product = np.ones(size // 2 + 1, dtype=complex)
    for term, span in zip(terms, spans, strict=True):
        product = product * np.fft.rfft(laws.masses[term, :span], size)
    masses = np.maximum(np.fft.irfft(product, size), 0)
    kept = np.flatnonzero(masses > _LEAST * masses.max())
    if kept[-1] + 1 - kept[0] > num_points:
        return None
    own = np.zeros(num_points)
    own[: kept[-1] + 1 - kept[0]] = masses[kept[0] : kept[-1] + 1]
    own /= own.sum()
    return laws.places[terms, 0].sum() + kept[0] + np.arange(num_points), own, own, True


def _sum_of(laws: Laws, terms: list[int], num_points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Places, densities and masses of the sum of independent numbers of these laws, by Fourier transforms of their masses."""
    if not terms:
        return np.arange(float(num_points)), np.eye(1, num_points)[0], np.eye(1, num_points)[0], True
    mean, variance = laws.means[terms].sum(), np.square(laws.stddevs[terms]).sum()
    step = 2 * _SPAN * np.sqrt(variance) / num_points
    edges = (np.arange(num_points + 1) - num_points / 2 - 0.5) * step
    product = np.ones(num_points // 2 + 1, dtype=complex)
    for term in terms:
        # About its mean, to a whole number of steps none: what is lost is put back below.
        cumulative = np.interp(edges + laws.means[term], laws.places[term], laws.up_to[term], left=0, right=1)
        product = product * np.fft.rfft(np.fft.ifftshift(np.diff(cumulative)))
    masses = np.maximum(np.fft.fftshift(np.fft.irfft(product, num_points)), 0)
    masses /= masses.sum()
    places = (np.arange(num_points) - num_points / 2) * step
    off = (masses * places).sum()
    spread = np.sqrt((masses * np.square(places - off)).sum())
    places = mean + (places - off) * (np.sqrt(variance) / spread)
    return places, masses / np.diff(places).mean(), masses, False
