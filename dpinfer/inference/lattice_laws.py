"""Sums of cells with a prior of their own, given noisy cells and the noisy sum of all of them: exact laws on a lattice.

Cell i has the weight w_i(x) = prior(x) exp(-|y_i - x| / b). Of a set S of cells the sum theta has the law proportional to

    A(theta) sum_t B(t) L(theta + t)

with A the convolution of the weights of S, B that of the others', and L(s) = exp(-|y_p - s| / b_p). Weights are masses on points
a step apart: of integer cells the integers, of others the projections onto hat functions about the points, which keep the mass
and the mean of every piece, so that what is off is of the order of the step's square.

Convolutions are products of Fourier transforms, right to rounding relative to the largest mass. Where the sum and the cells
disagree the law lies in the tails of A and B; so all weights are first multiplied by exp(a x), and L by exp(-a s), which leaves
the law as it is, with a such that the sum of the cells, so weighted, is on average where the law is (the saddle point).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from dpinfer.inference.cell_priors import CellPrior

# Points a scale of a cell's noise and of the sum's; nats below the largest mass that are left out.
_POINTS, _SUM_POINTS, _DEPTH = 32, 8, 36.0
# The most points of a cell's weights, and of all cells'; and how many at least are looked at for the saddle point.
_MOST, _MOST_OF_ALL, _FEW = 1 << 19, 1 << 27, 512
# Standard deviations of the sum that the lattice spans to either side.
_SPAN = 10.0
# The least mass that is kept, of the largest; the least that may be left of all, above rounding; numbers held at once.
_KEPT, _LEAST, _AT_ONCE = 1e-13, 1e-9, 1 << 22
# Gauss and Legendre's points and weights between 0 and 1.
_NODES, _WEIGHTS = np.array([0.5 - 0.15**0.5, 0.5, 0.5 + 0.15**0.5]), np.array([5, 8, 5]) / 18


class LatticeSums:
    """The cells of one region.

    Args:
        values: [cells], noisy.
        scale: of their noise.
        total, total_scale: the noisy sum; inf if it was not measured.
        prior: of each cell.
    """

    def __init__(self, values: np.ndarray, scale: float, total: float, total_scale: float, prior: CellPrior) -> None:
        self.scale, self.prior, self.values = scale, prior, values
        self.total, self.total_scale = total, total_scale
        self.step = 1.0 if prior.integers else min(scale / _POINTS, total_scale / _SUM_POINTS)
        # A cell is at base + step * integer, the noisy value itself among these.
        self.base = np.zeros(values.size) if prior.integers else values
        tilted = self._tilted()
        weights = np.exp(tilted - tilted.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        place = np.arange(weights.shape[1])
        mean = weights @ place
        self.variance = np.maximum(weights @ np.square(place) - np.square(mean), 0.0)
        # Masses about their mean, so that sums are about 0.
        center = np.round(mean).astype(np.int64)
        used = np.flatnonzero((weights > np.exp(-_DEPTH)).any(axis=0))
        self.first, self.weights = int(used[0]) - center, weights[:, used[0] : used[-1] + 1]
        self.center = self.start + center
        span = self.weights.shape[1] + 2 * _SPAN * np.sqrt(self.variance.sum())
        self.size = 1 << int(np.ceil(np.log2(span + 2)))
        self.outside = self._outside()

    def _tilted(self) -> np.ndarray:
        """Log weights, tilted, on as many points as they need."""
        off = abs(self.total - self.values.sum()) if np.isfinite(self.total_scale) else 0.0
        largest = min(_MOST, _MOST_OF_ALL // self.values.size)
        # As far as the sum pulls; or, if weights do not fall on any points then, as far as the noise of cells lets them, three
        # times as far as the sum and the cells disagree, so that they fall even if nearly all of it is to be one cell's.
        for is_free, least in ((True, 2 * _DEPTH * self.scale), (False, _DEPTH * self.scale + 3 * off)):
            reach = int(np.ceil(least / self.step)) + 2
            while 2 * reach + 1 <= largest:
                log_weights = self._log_weights(reach)
                most = np.inf if is_free else 1 / self.scale - _DEPTH / (reach * self.step)
                self.tilt = self._tilt(log_weights, most)
                tilted = log_weights + self.tilt * self.step * np.arange(log_weights.shape[1])
                if self._is_held(tilted):
                    return tilted
                reach *= 2
        raise ValueError(
            f"prior needs masses on more than {largest:,} points a cell, steps of {self.step:g} (1 of integers): noise or prior "
            "are too wide for it, or the measured sums are too far off. mmse without a prior has no such limit."
        )

    def _is_held(self, tilted: np.ndarray) -> bool:
        """Whether next to nothing lies beyond the points."""
        edges = tilted[:, [0, -1]] < tilted.max(axis=1, keepdims=True) - 0.9 * _DEPTH
        edges[:, 0] |= self.base + self.step * self.start <= self.prior.lower
        return bool(edges.all())

    def _log_weights(self, reach: int) -> np.ndarray:
        """Log weights from ``start`` on, [cells, 2 reach + 1]."""
        nearest = np.round((self.values - self.base) / self.step).astype(np.int64)
        self.start = nearest - reach
        if np.isfinite(self.prior.lower):
            self.start = np.maximum(self.start, np.ceil((self.prior.lower - self.base) / self.step - 1e-9).astype(np.int64))
            if not self.prior.integers:  # part of the hat about the point below is above the bound
                self.start -= 1
        found = np.empty((self.values.size, 2 * reach + 1))
        rows = max(1, _AT_ONCE // found.shape[1])
        for begin in range(0, self.values.size, rows):
            some = slice(begin, begin + rows)
            places = self.start[some, None] + np.arange(2 * reach + 1)
            found[some] = log_weights(self.prior, self.values[some], self.scale, self.base[some], self.step, places)
        if not np.isfinite(found.max(axis=1)).all():
            raise ValueError("prior must allow for what was measured: it is -inf all around some noisy cell.")
        return found

    def _tilt(self, log_weights: np.ndarray, most: float) -> float:
        """The a such that the sum is on average at the noisy sum, no farther from 0 than the sum's noise makes it or ``most``."""
        if not np.isfinite(self.total_scale):
            return 0.0
        # Of some points together the sum and the mean.
        num_points = log_weights.shape[1]
        num_together = max(1, num_points // max(_FEW, _AT_ONCE // log_weights.shape[0]))
        begins = np.arange(0, num_points, num_together)
        top = np.maximum.reduceat(log_weights, begins, axis=1)
        shift = np.where(np.isfinite(top), top, 0.0)
        weights = np.exp(log_weights - np.repeat(shift, np.diff(begins, append=num_points), axis=1))
        mass = np.add.reduceat(weights, begins, axis=1)
        place = np.add.reduceat(weights * np.arange(num_points), begins, axis=1)
        place = self.step * np.where(mass > 0, place / np.where(mass > 0, mass, 1.0), begins)
        few = top + np.log(np.where(mass > 0, mass, 1.0))
        origin = (self.base + self.step * self.start).sum()
        high = max(0.0, min(1 / self.total_scale, most))
        low = -high
        for _ in range(40):
            middle = (low + high) / 2
            tilted = few + middle * place
            weights = np.exp(tilted - tilted.max(axis=1, keepdims=True))
            mean = origin + ((weights * place).sum(axis=1) / weights.sum(axis=1)).sum()
            low, high = (middle, high) if mean < self.total else (low, middle)
        return (low + high) / 2

    def _outside(self) -> np.ndarray | None:
        """The transform of L exp(-a s), at the points of the lattice of all cells' sum; None if the sum was not measured."""
        if not np.isfinite(self.total_scale):
            return None
        offsets = np.fft.ifftshift(np.arange(self.size) - self.size // 2)
        s = self.base.sum() + self.step * (self.center.sum() + offsets) - self.total
        log = log_likelihood(s, self.total_scale, None if self.prior.integers else self.step)
        log = log - self.tilt * s
        return np.fft.rfft(np.exp(log - log.max()))

    def _transforms(self, cells: np.ndarray) -> np.ndarray:
        found = np.zeros((cells.size, self.size))
        where = (self.first[cells, None] + np.arange(self.weights.shape[1])) % self.size
        np.put_along_axis(found, where, self.weights[cells], axis=1)
        return np.fft.rfft(found, axis=1)

    def _product(self, cells: np.ndarray) -> np.ndarray:
        found = np.ones(self.size // 2 + 1, dtype=complex)
        rows = max(1, _AT_ONCE // self.size)
        for begin in range(0, cells.size, rows):
            found *= self._transforms(cells[begin : begin + rows]).prod(axis=0)
        return found

    def _law(self, own: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Masses about 0, [..., size], from the transforms of the cells asked for and of the others."""
        masses = np.fft.irfft(own, self.size)
        if self.outside is not None:
            masses = np.maximum(masses, 0) * np.maximum(np.fft.irfft(self.outside * np.conj(others), self.size), 0)
        masses = np.fft.fftshift(np.maximum(masses, 0), axes=-1)
        total = masses.sum(axis=-1, keepdims=True)
        if (total < _LEAST).any():
            raise ValueError(
                "prior must allow for what was measured: the noisy sum and cells with this prior contradict each other too much."
            )
        return masses / total

    def sum_of(self, cells: np.ndarray) -> tuple[float, np.ndarray]:
        """Where the first mass is, and the masses, of the sum of some cells (their numbers)."""
        others = np.setdiff1d(np.arange(self.values.size), cells)
        law = self._law(self._product(cells), self._product(others))
        return self._cropped(law, float(self.base[cells].sum()), int(self.center[cells].sum()))

    def each(self) -> Iterator[tuple[float, np.ndarray]]:
        """The same of every cell by itself, in their order."""
        rows = max(1, min(self.values.size, _AT_ONCE // self.size))
        blocks = [np.arange(begin, min(begin + rows, self.values.size)) for begin in range(0, self.values.size, rows)]
        products = [self._product(block) for block in blocks] if self.outside is not None else []
        for place, block in enumerate(blocks):
            own = self._transforms(block)
            others = own
            if self.outside is not None:
                rest = np.ones(self.size // 2 + 1, dtype=complex)
                for other, product in enumerate(products):
                    rest = rest * product if other != place else rest
                ones = np.ones_like(own[:1])
                before = np.concatenate([ones, np.cumprod(own[:-1], axis=0)])
                after = np.concatenate([np.cumprod(own[:0:-1], axis=0)[::-1], ones])
                others = before * after * rest
            for cell, law in zip(block.tolist(), self._law(own, others), strict=True):
                yield self._cropped(law, float(self.base[cell]), int(self.center[cell]))

    def _cropped(self, law: np.ndarray, base: float, center: int) -> tuple[float, np.ndarray]:
        kept = np.flatnonzero(law > _KEPT * law.max())
        masses = law[kept[0] : kept[-1] + 1]
        return base + self.step * (center + int(kept[0]) - self.size // 2), masses / masses.sum()


def log_weights(
    prior: CellPrior, values: np.ndarray, scale: float, base: np.ndarray, step: float, places: np.ndarray
) -> np.ndarray:
    """Log weights of cells at ``base + step * places``, [cells, points], the places next to each other.

    Of cells that are not integers the weights of hat functions about these, by Gauss's rule in each interval, which is cut where
    the prior begins; the noisy values, where weights have kinks, must be among the points.
    """
    base, values = base[:, None], values[:, None]
    if prior.integers:
        x = base + step * places
        return prior.at(x) - np.abs(values - x) / scale
    # Of each interval behind a point the parts that go to either end.
    begin = base + step * np.concatenate([places[:, :1] - 1, places], axis=1)
    cut = np.clip((prior.lower - begin) / step, 0.0, 1.0)
    largest, parts = np.full(begin.shape, -np.inf), []
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        u = cut + (1 - cut) * node
        x = begin + step * u
        parts.append((prior.at(x) - np.abs(values - x) / scale, weight * (1 - cut), u))
        largest = np.maximum(largest, parts[-1][0])
    shift = np.where(np.isfinite(largest), largest, 0.0)
    shift = np.maximum(shift[:, 1:], shift[:, :-1])
    total = np.zeros(shift.shape)
    with np.errstate(divide="ignore"):
        for log, weight, u in parts:
            total += np.exp(log[:, 1:] - shift) * (weight * (1 - u))[:, 1:] + np.exp(log[:, :-1] - shift) * (weight * u)[:, :-1]
        return np.log(total) + shift


def log_likelihood(off: np.ndarray, scale: float, step: float | None) -> np.ndarray:
    """-|off| / scale, or the logarithm of the average of its exponential over hats of width ``step`` to either side."""
    log = -np.abs(off) / scale
    if step is None:
        return log

    # F'' = exp(-|s| / b) for F = b^2 exp(-|s| / b) + b |s|.
    def twice(s: np.ndarray) -> np.ndarray:
        return scale * scale * np.expm1(-np.abs(s) / scale) + scale * np.abs(s)

    is_near = np.abs(off) < step
    bent = (twice(off + step) - 2 * twice(off) + twice(off - step)) / step**2
    near = np.log(bent, where=is_near, out=np.zeros(off.shape))
    return np.where(is_near, near, log + 2 * np.log(2 * scale / step * np.sinh(step / (2 * scale))))


def stacked(laws: Sequence[tuple[float, np.ndarray]], steps: Sequence[float], num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Places and masses of laws of different lengths, [laws, ``num_points`` or more]; points behind a law's last have no mass."""
    width = max(num_points, *(masses.size for _, masses in laws))
    places = np.array([first for first, _ in laws])[:, None] + np.asarray(steps)[:, None] * np.arange(width)
    masses = np.zeros(places.shape)
    for row, (_, own) in zip(masses, laws, strict=True):
        row[: own.size] = own
    return places, masses
