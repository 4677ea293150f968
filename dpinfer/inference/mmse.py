"""Sums of cells, given noisy cells and the noisy sums of disjoint regions: their exact posterior under a flat prior.

Of a region of s cells let y_i be the noisy cells, y_p the noisy sum, delta = y_p - sum y_i, and S some q of its cells. Given
everything, the sum of S is sum_S y_i + e with the density of e proportional to

    f_q(e) f_(s-q),p(delta - e)

f_q being the density of a sum of q noises of cells, and f_(s-q),p that of s - q of these and the sum's own: the cells that are
not asked for have been integrated out. It depends on (s, q, delta) alone, so that queries of as many cells of a region have one
law in common, about different centres. Regions have nothing to do with each other: a query of several has the sum of independent
e's, one of each.

A flat prior makes the mean the estimate of least squared error among those that move with the data (Pitman), and intervals cover
exactly, whatever the cells are. With the same noise in cells and sums it is that of least squares, delta / (s + 1) for each
cell; with more noise in the sum it hardly moves any more where delta is far out, since then it is the sum that is off.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.inference.estimate import over_cells
from dpinfer.inference.posterior_grid import Laws, convolved, laws_of
from dpinfer.noise import contour
from dpinfer.queries import Identity, Partition, Queries, Total, VStack
from dpinfer.release import as_measurement

# Nats below the highest density at which a law's grid ends; halvings until its ends and its mode are found.
_DEPTH, _GOLDEN, _HALVINGS = 36.0, 45, 30
# Rows of a workload that are looked at together.
_ENTRIES_AT_ONCE = 1 << 24


@final
@dataclass(frozen=True, eq=False)
class PosteriorAnswers:
    """The posteriors of answers; made by :func:`mmse`.

    Attributes:
        mean: float64 [m].
        stddev: float64 [m].
        centers: float64 [m], the noisy cells' own answers, about which the laws are.
        laws: the distinct laws of answer - center.
        which: int64 [m], the law of each.
    """

    mean: np.ndarray
    stddev: np.ndarray
    centers: np.ndarray
    laws: Laws
    which: np.ndarray

    def density(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """The grid of answer i and the probability at each of its points, which add up to 1."""
        if not 0 <= i < self.which.size:
            raise ValueError(f"i must be from 0 to the number of answers less 1, {self.which.size - 1}, got {i}.")
        law = self.which[i]
        return self.centers[i] + self.laws.places[law], self.laws.masses[law]

    def interval(self, level: float = 0.95, *, kind: str = "equal_tailed") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends, [m] each, of intervals that hold the answer with probability ``level``.

        Args:
            level: between 0 and 1.
            kind: "equal_tailed", as much below as above; or "highest", the shortest.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        _checks.choice("kind", kind, ("equal_tailed", "highest"))
        ends = self.laws.equal_tailed(level) if kind == "equal_tailed" else self.laws.highest(level)
        lower, upper = (self.centers + end[self.which] for end in ends)
        return lower, upper


def mmse(measurement: Any, queries: Any = None, *, num_points: int = 1024) -> PosteriorAnswers:
    """The posterior of sums of cells under a flat prior: means, of least mean squared error, and intervals that cover exactly.

    Args:
        measurement: noisy cells, of Identity, with the noise of one scale; beside them the noisy sums of disjoint regions, of a
            Partition or the Total, each with its own scale: what ``mechanisms.ispe`` releases. Laplace noise, or discrete.
        queries: of n cells, each the sum of some: Ranges, Boxes, Prefix, Partition, ..., or a matrix of 0 and 1. Left out, the
            cells.
        num_points: of the grid of each law, at least 64.

    Returns:
        A :class:`PosteriorAnswers`. In units of the scales, means and standard deviations are right to about 1e-8, ends of
        intervals to 1e-5; of queries of several regions these to 1e-3.

    Cost: for each distinct (region, number of its cells that are asked for) some 1,100 densities of sums of noises, whatever the
    numbers of these; for a query of several regions a Fourier transform for each.

    Reference: Xiao, Xiong and Yuan 2011, section 4, whose product of posteriors this is, and no approximation.

    Raises:
        ValueError: if the measurement is of anything else, or a query is no sum of cells.
    """
    num_points = _checks.integer("num_points", num_points, least=64)
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("mmse needs 64-bit numbers: type dpinfer.enable_x64() first.")
    found = _parts(as_measurement(measurement))
    n = found.values.size
    asked = Identity(n) if queries is None else over_cells(queries, n)
    owner, region, count = _touched(asked, found.labels)
    size = np.bincount(found.labels)
    delta = found.sums - np.bincount(found.labels, found.values)
    # A region whose sum was not measured says nothing: as if delta were 0.
    delta = np.where(np.isfinite(found.sum_scales), delta, 0.0)
    numbers = np.stack([size[region], count, found.sum_scales[region], delta[region]], axis=1)
    rows, which = np.unique(numbers, axis=0, return_inverse=True)
    laws = _region_laws(rows, found.cell_scale, found.is_lattice, num_points)
    laws, which = convolved(laws, owner, which.reshape(-1), asked.shape[0])
    centers = np.asarray(asked @ found.values, dtype=float)
    return PosteriorAnswers(centers + laws.means[which], laws.stddevs[which], centers, laws, which)


@dataclass(frozen=True)
class _Parts:
    values: np.ndarray
    cell_scale: float
    labels: np.ndarray
    sums: np.ndarray
    sum_scales: np.ndarray
    is_lattice: bool


def _parts(measurement: Any) -> _Parts:
    """Noisy cells and the noisy sums of regions; each region by itself if none was measured."""
    law = measurement.noise
    if law not in ("laplace", "discrete_laplace"):
        raise ValueError(
            f"measurement must have (discrete) Laplace noise, got {law!r}. Of Gaussian noise least_squares is exact."
        )
    parts = measurement.queries.parts if isinstance(measurement.queries, VStack) else (measurement.queries,)
    cells = [part for part in parts if isinstance(part, Identity)]
    regions = [part for part in parts if isinstance(part, (Partition, Total))]
    if len(cells) != 1 or len(regions) > 1 or len(cells) + len(regions) != len(parts):
        raise ValueError(
            "measurement must be of Identity, and of at most one Partition or Total beside it, as mechanisms.ispe releases; got "
            f"{measurement.queries!r}. least_squares takes any."
        )
    n = cells[0].shape[1]
    values = np.asarray(measurement.values, dtype=np.float64)
    _checks.finite("measurement", values)
    scale = np.broadcast_to(np.asarray(measurement.scale, dtype=np.float64), values.shape)
    if (scale == 0).any():
        raise ValueError("measurement must have noise in every row; exact counts, of scale 0, have no density.")
    bounds = np.cumsum([0, *(part.shape[0] for part in parts)])
    own = [(slice(a, b), part) for a, b, part in zip(bounds[:-1], bounds[1:], parts, strict=True)]
    place = next(where for where, part in own if isinstance(part, Identity))
    if not (np.ptp(scale[place]) == 0 and np.isfinite(scale[place][0])):
        raise ValueError("measurement must have measured all cells with noise of one scale.")
    labels, sums, sum_scales = np.arange(n), np.zeros(n), np.full(n, np.inf)
    for where, part in own:
        if not isinstance(part, Identity):
            labels = part.labels if isinstance(part, Partition) else np.zeros(n, dtype=np.int64)
            sums, sum_scales = values[where], scale[where]
    return _Parts(values[place], float(scale[place][0]), labels, sums, sum_scales, law == "discrete_laplace")


def _touched(queries: Queries, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each query the regions that it asks for and how many of their cells: query, region, number; in order of queries."""
    m, n = queries.shape
    owners, regions, counts = [], [], []
    size = max(1, _ENTRIES_AT_ONCE // max(n, 1))
    for start in range(0, m, size):
        rows = np.asarray(queries.rows(start, min(start + size, m)))
        if not np.isin(rows, (0, 1)).all():
            bad = start + int(np.flatnonzero(~np.isin(rows, (0, 1)).all(axis=1))[0])
            raise ValueError(
                f"queries must be sums of cells, with entries 0 and 1; that of row {bad} is not. least_squares takes any."
            )
        query, cell = np.nonzero(rows)
        pairs, count = np.unique(np.stack([query + start, labels[cell]]), axis=1, return_counts=True)
        owners.append(pairs[0])
        regions.append(pairs[1])
        counts.append(count)
    return np.concatenate(owners), np.concatenate(regions), np.concatenate(counts)


def _region_laws(rows: np.ndarray, cell_scale: float, is_lattice: bool, num_points: int) -> Laws:
    """The laws of e for rows of (cells of the region, cells asked for, scale of its sum, delta)."""
    num_laws = rows.shape[0]
    if not num_laws:
        nothing = np.zeros((0, num_points))
        return Laws(nothing, nothing, nothing, np.zeros(0, dtype=bool))
    # As many as a power of 4, so that few programs are compiled.
    rows = np.concatenate([rows, np.repeat(rows[:1], 4 ** max(2, -(-(num_laws - 1).bit_length() // 2)) - num_laws, axis=0)])
    size, count, sum_scale, delta = rows.T
    log_density = partial(_log_density, numbers=_numbers(size, count, sum_scale, delta, cell_scale), is_lattice=is_lattice)
    low, high = np.minimum(delta, 0), np.maximum(delta, 0)
    # The mode is between the two centres, and the ends not farther out than those of the noises.
    mode = _highest(log_density, low, high)
    top = np.asarray(log_density(mode[:, None]))[:, 0]
    reach = cell_scale * (np.sqrt(4 * _DEPTH * count) + 2 * _DEPTH) + np.abs(delta)
    first, last = (_fallen(log_density, mode, mode + sign * reach, top - _DEPTH) for sign in (-1, 1))
    if is_lattice:
        first, last = np.floor(first), np.ceil(last)
    found = laws_of(log_density, first, last, low, high, top, num_points, is_lattice=is_lattice)
    return Laws(found.places[:num_laws], found.densities[:num_laws], found.masses[:num_laws], found.is_lattice[:num_laws])


def _numbers(size: Any, count: Any, sum_scale: Any, delta: Any, cell_scale: float) -> tuple[np.ndarray, ...]:
    """For each law: delta, the scale and number of the noises of cells, and scales and numbers of the others."""
    is_measured = np.isfinite(sum_scale)
    rest = np.where(is_measured, size - count, 0)
    # Scales that do not occur are those of others, so that they do not bend the path of integration.
    own = np.where(is_measured, sum_scale, cell_scale)
    scales = np.stack([np.where(rest > 0, cell_scale, own), own], axis=1)
    return delta, np.full(delta.size, cell_scale), count, scales, np.stack([rest, is_measured.astype(float)], axis=1)


def _log_density(e: np.ndarray, numbers: tuple[np.ndarray, ...], is_lattice: bool) -> np.ndarray:
    """Of each law at its points e [laws, points], but for a constant."""
    is_single = bool((numbers[2] == 1).all())
    return np.asarray(_compiled_log_density(e, *numbers, is_lattice=is_lattice, is_single=is_single))


@partial(jax.jit, static_argnames=("is_lattice", "is_single"))
def _compiled_log_density(
    e: Any, delta: Any, cell_scale: Any, count: Any, scales: Any, counts: Any, *, is_lattice: bool, is_single: bool
) -> Any:
    from dpinfer.noise.laws import widths  # which loads numpyro

    convert = widths if is_lattice else lambda x: x

    def at(e: Any, scales: Any, counts: Any) -> Any:
        scales, counts = convert(jnp.asarray(scales)), jnp.asarray(counts, float)
        many = [jnp.broadcast_to(x[:, None], (*e.shape, x.shape[-1])) for x in (scales, counts)]
        found = contour.log_density(jnp.abs(e), *many, lattice=is_lattice)
        if not is_lattice:
            return found
        # At 0 the path cannot keep clear of a cut: what the two tails leave.
        tail = contour.log_survival(jnp.full(scales.shape[0], 0.5), scales, counts, lattice=True)
        return jnp.where(e == 0, jnp.log1p(-2 * jnp.exp(tail))[:, None], found)

    # Of single cells the law is known.
    own = -jnp.abs(e) / cell_scale[:, None] if is_single else at(e, cell_scale[:, None], count[:, None])
    other = at(delta[:, None] - e, scales, counts)
    return own + jnp.where(counts[:, 1:] > 0, other, 0)


def _highest(log_density: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where the laws, log-concave, are highest between ``low`` and ``high``; by golden sections."""
    ratio = (np.sqrt(5) - 1) / 2
    a, b = low.astype(float), high.astype(float)
    left, right = b - ratio * (b - a), a + ratio * (b - a)
    at_left, at_right = (log_density(x[:, None])[:, 0] for x in (left, right))
    for _ in range(_GOLDEN):
        is_left = at_left >= at_right
        a, b = np.where(is_left, a, left), np.where(is_left, right, b)
        new = np.where(is_left, b - ratio * (b - a), a + ratio * (b - a))
        value = log_density(new[:, None])[:, 0]
        left, right = np.where(is_left, new, right), np.where(is_left, left, new)
        at_left, at_right = np.where(is_left, value, at_right), np.where(is_left, at_left, value)
    return (a + b) / 2


def _fallen(log_density: Any, mode: np.ndarray, far: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Where the laws have fallen to ``level`` between their mode and a place beyond."""
    near = mode.copy()
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        inside = log_density(middle[:, None])[:, 0] > level
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    return far
