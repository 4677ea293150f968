"""Sums of cells, given noisy cells and the noisy sums of disjoint regions: their exact posterior under a flat prior.

Of a region of s cells let y_i be the noisy cells, y_p the noisy sum, delta = y_p - sum y_i, and S some q of its cells. Given
everything, the sum of S is sum_S y_i + e with the density of e proportional to

    f_q(e) f_(s-q),p(delta - e)

f_q being the density of a sum of q noises of cells, and f_(s-q),p that of s - q of these and the sum's own: the cells that are
not asked for have been integrated out. It depends on (s, q, delta) alone, so that queries of as many cells of a region have one
law in common, about different centres. Regions have nothing to do with each other: a query of several has the sum of independent
e's, one of each.

A flat prior makes the mean the estimate of least squared error among those that move with the data (Pitman), and intervals cover
exactly, whatever the cells are; for regions that are chosen by the noisy cells the posterior is the same, and both are true on
average over cells. With the same noise in cells and sums the mean is that of least squares, delta / (s + 1) for each cell; with
more noise in the sum it hardly moves any more where delta is far out, since then it is the sum that is off.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import jax
import numpy as np

from dpinfer import _checks
from dpinfer.inference.cell_priors import CellPrior, as_prior
from dpinfer.inference.estimate import over_cells
from dpinfer.inference.lattice_laws import LatticeSums, stacked
from dpinfer.inference.observed_laws import observed_laws
from dpinfer.inference.posterior_grid import Laws, convolved
from dpinfer.inference.product_laws import product_laws
from dpinfer.inference.region_moments import region_moments
from dpinfer.queries import Identity, Partition, Queries, Total, VStack
from dpinfer.release import as_measurement

# Rows of a workload that are looked at together.
_ENTRIES_AT_ONCE = 1 << 24
# Single cells from which on all of their region are found at once.
_EACH = 3


@final
@dataclass(frozen=True, eq=False)
class PosteriorAnswers:
    """The posteriors of answers; made by :func:`mmse`.

    Attributes:
        mean: float64 [m].
        stddev: float64 [m].
        centers: float64 [m], of which the laws are the differences.
        find_laws: the distinct laws of answer - center, and which each answer has, int64 [m]; called once, when asked for.
    """

    mean: np.ndarray
    stddev: np.ndarray
    centers: np.ndarray
    find_laws: Callable[[], tuple[Laws, np.ndarray]]

    @cached_property
    def _laws(self) -> tuple[Laws, np.ndarray]:
        return self.find_laws()

    @property
    def laws(self) -> Laws:
        return self._laws[0]

    @property
    def which(self) -> np.ndarray:
        return self._laws[1]

    def density(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """The grid of answer i and the probability at each of its points, which add up to 1."""
        if not 0 <= i < self.mean.size:
            raise ValueError(f"i must be from 0 to the number of answers less 1, {self.mean.size - 1}, got {i}.")
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


def mmse(
    measurement: Any, queries: Any = None, *, prior: Any = "flat", observations: Any = None, num_points: int = 1024
) -> PosteriorAnswers:
    """The posterior of sums of cells: means, of least mean squared error, and intervals.

    Under a flat prior the mean has the least error of all estimates that move with the data, and intervals cover exactly,
    whatever the cells are, for regions fixed beforehand; for regions that the noisy cells choose (``mechanisms.ispe``) on average
    over what the cells might be. Under another prior both hold on average over cells that are as it says.

    Args:
        measurement: noisy cells, of Identity, with the noise of one scale; beside them the noisy sums of disjoint regions, of a
            Partition or the Total, each with its own scale: what ``mechanisms.ispe`` releases. With ``observations`` any counting
            queries. Laplace noise, or discrete.
        queries: of n cells, each the sum of some: Ranges, Boxes, Prefix, Partition, ..., or a matrix of 0 and 1; with
            ``observations`` any. Left out, the cells.
        prior: of each cell, independently: "flat"; "nonnegative", flat from 0 on; a :class:`CellPrior`, such as
            :func:`poisson_gamma`; or the logarithm of a density, a function of arrays. Of discrete noise the cells are taken to
            be integers while its scale is 64 at most, unless a CellPrior says otherwise.
        observations: what is known of each query, where the posterior given all that was measured is not to be had: for each a
            matrix [k, rows of the measurement]. Each of its rows combines measured answers to the query, without bias and with
            noise of its own: no answer is in two of them. The posterior is that given these k numbers, under a flat prior.
        num_points: of the grid of each law, at least 64.

    Returns:
        A :class:`PosteriorAnswers`. Under the flat prior, in units of the scales, means and standard deviations are right to
        about 1e-7 (with ``observations`` 1e-6), ends of intervals to 1e-5; of queries of several regions these to 1e-3. With a
        prior of integers all are exact but for rounding, with another right to about 1e-3. Where sums and cells disagree by
        hundreds of scales, ends are right to 1e-4 of that.

    Cost: means and standard deviations take an integral of 48 points for each region (a table for many of one size), whatever
    the queries; densities and intervals, found when first asked for, a grid for each distinct (region, number of its cells), and
    for a query of several regions a Fourier transform for each. With a prior some Fourier transforms for each cell of a region,
    once for all queries of single cells and once for any other: seconds for 4,096 cells.

    Reference: Xiao, Xiong and Yuan 2011, section 4, whose product of posteriors this is. Without ``observations`` it is the
    posterior given everything: what is left out is known to be independent of the query.

    Raises:
        ValueError: if the measurement is of anything else, a query is no sum of cells, or an observation is biased or shares
            noise with another.
    """
    num_points = _checks.integer("num_points", num_points, least=64)
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("mmse needs 64-bit numbers: type dpinfer.enable_x64() first.")
    measurement = as_measurement(measurement)
    if observations is not None:
        if not isinstance(prior, str) or prior != "flat":
            raise ValueError("prior must be flat with observations: these are of queries, and a prior is of cells.")
        return _given_observations(measurement, queries, observations, num_points)
    found = noisy_parts(measurement)
    n = found.values.size
    asked = Identity(n) if queries is None else over_cells(queries, n)
    known = as_prior(prior, is_lattice=found.is_lattice, scale=found.cell_scale)
    if known is not None:
        return _with_prior(found, asked, known, num_points)
    owner, region, count = _touched(asked, found.labels)
    size = np.maximum(np.bincount(found.labels), 1)  # nothing is asked of a region without cells
    delta = found.sums - np.bincount(found.labels, found.values)
    # A region whose sum was not measured says nothing: as if delta were 0.
    delta = np.where(np.isfinite(found.sum_scales), delta, 0.0)
    centers = np.asarray(asked @ found.values, dtype=float)
    shift, spread, bend, whole_mean, whole_variance = region_moments(
        size, delta, found.cell_scale, found.sum_scales, is_lattice=found.is_lattice
    )
    is_whole = (count == size[region]) & (found.sum_scales[region] < found.cell_scale)
    shifts = np.where(is_whole, whole_mean[region], count * shift[region])
    variances = np.where(is_whole, whole_variance[region], count * (count * spread[region] + bend[region]))
    mean, variance = (np.bincount(owner, x, minlength=asked.shape[0]) for x in (shifts, variances))

    def find_laws() -> tuple[Laws, np.ndarray]:
        numbers = np.stack([size[region], count, found.sum_scales[region], delta[region]], axis=1)
        rows, which = np.unique(numbers, axis=0, return_inverse=True)
        laws = _region_laws(rows, found.cell_scale, found.is_lattice, num_points)
        return convolved(laws, owner, which.reshape(-1), asked.shape[0])

    return PosteriorAnswers(centers + mean, np.sqrt(variance), centers, find_laws)


@dataclass(frozen=True)
class _Parts:
    values: np.ndarray
    cell_scale: float
    labels: np.ndarray
    sums: np.ndarray
    sum_scales: np.ndarray
    is_lattice: bool


def noisy_parts(measurement: Any) -> _Parts:
    """Noisy cells and the noisy sums of regions; each region by itself if none was measured."""
    law = laplace_law(measurement)
    parts = measurement.queries.parts if isinstance(measurement.queries, VStack) else (measurement.queries,)
    cells = [part for part in parts if isinstance(part, Identity)]
    regions = [part for part in parts if isinstance(part, (Partition, Total))]
    if len(cells) != 1 or len(regions) > 1 or len(cells) + len(regions) != len(parts):
        raise ValueError(
            "measurement must be of Identity, and of at most one Partition or Total beside it, as mechanisms.ispe releases; got "
            f"{measurement.queries!r}. Give observations, or use least_squares, which takes any."
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


def _with_prior(found: _Parts, asked: Queries, prior: CellPrior, num_points: int) -> PosteriorAnswers:
    # Cells whose sum was not measured have nothing to do with each other: one region, for all.
    labels = np.where(np.isfinite(found.sum_scales)[found.labels], found.labels, found.sum_scales.size)
    scales, sums = np.append(found.sum_scales, np.inf), np.append(found.sums, 0.0)
    pairs = [np.zeros((2, 0), dtype=np.int64)]
    pairs += [np.stack([np.arange(labels.size)] * 2)] if isinstance(asked, Identity) else [np.stack(x) for x in _entries(asked)]
    query, cell = np.concatenate(pairs, axis=1)
    order = np.lexsort((cell, labels[cell], query))
    query, cell = query[order], cell[order]
    begins = np.flatnonzero(np.append(True, (np.diff(query) != 0) | (np.diff(labels[cell]) != 0))[: query.size])
    sets = np.split(cell, begins[1:]) if query.size else []
    # The distinct sets of cells of each region, and where their laws are.
    wanted: dict[int, dict[bytes, int]] = {}
    which = np.zeros(len(sets), dtype=np.int64)
    laws: list[tuple[float, np.ndarray]] = []
    steps: list[float] = []
    for place, own in enumerate(sets):
        region = wanted.setdefault(int(labels[own[0]]), {})
        which[place] = region.setdefault(own.tobytes(), len(region))
    starts = {}
    for region, keys in wanted.items():
        starts[region] = len(laws)
        members = np.flatnonzero(labels == region)
        sums_of = LatticeSums(found.values[members], found.cell_scale, sums[region], scales[region], prior)
        given = [np.searchsorted(members, np.frombuffer(key, dtype=np.int64)) for key in keys]
        num_single = sum(own.size == 1 for own in given)
        each = list(sums_of.each()) if num_single > _EACH else None
        laws += [each[own[0]] if each is not None and own.size == 1 else sums_of.sum_of(own) for own in given]
        steps += [sums_of.step] * len(given)
    which += np.array([starts[int(labels[own[0]])] for own in sets], dtype=np.int64)
    if not laws:
        laws, steps = [(0.0, np.ones(1))], [1e-300]
    places, masses = stacked(laws, steps, num_points)
    is_lattice = np.full(len(laws), prior.integers)
    densities = masses if prior.integers else masses / np.array(steps)[:, None]
    grids, whole = convolved(
        Laws(places, densities, masses, is_lattice, places.shape[1] - 1), query[begins], which, asked.shape[0]
    )
    return PosteriorAnswers(grids.means[whole], grids.stddevs[whole], np.zeros(whole.size), lambda: (grids, whole))


def laplace_law(measurement: Any) -> str:
    """The noise's law, if it is one of those that are covered."""
    law = measurement.noise
    if law not in ("laplace", "discrete_laplace"):
        raise ValueError(
            f"measurement must have (discrete) Laplace noise, got {law!r}. Of Gaussian noise least_squares is exact."
        )
    return law


def _touched(queries: Queries, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each query the regions that it asks for and how many of their cells: query, region, number; in order of queries."""
    if isinstance(queries, Identity):
        return np.arange(labels.size), labels, np.ones(labels.size, dtype=np.int64)
    if isinstance(queries, Partition):
        return _counted(queries.labels, labels)
    found = [_counted(query, labels[cell]) for query, cell in _entries(queries)]
    owner, region, count = (np.concatenate([np.zeros(0, dtype=np.int64), *parts]) for parts in zip(*found, strict=True))
    return owner, region, count


def _entries(queries: Queries) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The (query, cell) of each entry 1, of some queries at a time and in their order; no other entry may there be but 0."""
    m, n = queries.shape
    ranges = queries.as_ranges()
    if ranges is None:
        size = max(1, _ENTRIES_AT_ONCE // max(n, 1))
        for start in range(0, m, size):
            rows = np.asarray(queries.rows(start, min(start + size, m)))
            if not queries.has_zero_one_entries and not np.isin(rows, (0, 1)).all():
                bad = start + int(np.flatnonzero(~np.isin(rows, (0, 1)).all(axis=1))[0])
                raise ValueError(
                    f"queries must be sums of cells, with entries 0 and 1; that of row {bad} is not. least_squares takes any."
                )
            query, cell = np.nonzero(rows)
            yield query + start, cell
        return
    starts, stops = ranges
    lengths = stops - starts
    ends = np.cumsum(lengths)
    for chunk in np.split(np.arange(m), np.flatnonzero(np.diff(ends // _ENTRIES_AT_ONCE)) + 1):
        length = lengths[chunk]
        first = np.cumsum(length) - length
        yield np.repeat(chunk, length), np.arange(length.sum()) + np.repeat(starts[chunk] - first, length)


def _counted(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct pairs, in order, and how often each occurs."""
    width = int(second.max(initial=0)) + 1
    pairs = first * width + second
    if (pairs[1:] < pairs[:-1]).any():
        pairs = np.sort(pairs)
    begins = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1])[: pairs.size])
    count, pairs = np.diff(begins, append=pairs.size), pairs[begins]
    return pairs // width, pairs % width, count


def _given_observations(measurement: Any, queries: Any, observations: Any, num_points: int) -> PosteriorAnswers:
    law, n = laplace_law(measurement), measurement.queries.shape[1]
    asked = Identity(n) if queries is None else over_cells(queries, n)
    matrices = list(observations)
    if len(matrices) != asked.shape[0]:
        raise ValueError(f"observations must be a matrix for each of the {asked.shape[0]} queries, got {len(matrices)}.")
    center, laws = observed_laws(measurement, asked, matrices, is_lattice=law == "discrete_laplace", num_points=num_points)
    return PosteriorAnswers(center + laws.means, laws.stddevs, center, lambda: (laws, np.arange(center.size)))


def _region_laws(rows: np.ndarray, cell_scale: float, is_lattice: bool, num_points: int) -> Laws:
    """The laws of e for rows of (cells of the region, cells asked for, scale of its sum, delta)."""
    size, count, sum_scale, delta = rows.T
    is_measured = np.isfinite(sum_scale)
    centers = np.stack([np.zeros(delta.size), delta], axis=1)
    scales = np.stack([np.full(delta.size, cell_scale), np.where(is_measured, sum_scale, cell_scale)], axis=1)
    counts = np.zeros((delta.size, 2, 2))
    counts[:, 0, 0] = count
    counts[:, 1] = np.stack([size - count, np.ones(delta.size)], axis=1) * is_measured[:, None]
    return product_laws(centers, np.repeat(scales[:, None], 2, axis=1), counts, is_lattice=is_lattice, num_points=num_points)
