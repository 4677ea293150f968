"""Laws of numbers about which several sums of noises say something: normalised products of their densities, on grids.

Of a number theta with a flat prior, observed as t_1 = theta + N_1, t_2 = theta + N_2, ... with independent noises, the posterior
density is proportional to f_1(t_1 - theta) f_2(t_2 - theta) ..., f_j being the density of N_j, a sum of Laplace noises or of
discrete ones. Log densities of sums of noises are concave, and so are their sums: one mode, and intervals beyond which nothing is
left.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._chunks import in_chunks
from dpinfer._loops import fori_loop, scan
from dpinfer.inference.posterior_grid import Laws
from dpinfer.noise import contour
from dpinfer.noise.asinh_series import AsinhSeries, evaluated, fitted

# Standard deviations in integers from which on neighbouring integers are as likely.
_WIDE = 1e5
# Nats below the highest density at which a law's grid ends; steps until its mode and its ends are found.
_DEPTH, _SECTIONS, _HALVINGS = 36.0, 40, 26
# Laws that are looked at together, and in one call; rows of series whose integrals are.
_BLOCK, _AT_ONCE, _PATHS = 16, 4096, 256


class _Factors(NamedTuple):
    """Of each factor of each law [laws, factors]: its log density, and where the law can be anything because of it.

    Attributes:
        series: of log f(z) + rate z, from z = 0 (of laws on integers from 1) on.
        rate: how fast log f falls far out; 0 of a factor that says nothing.
        at_zero: log f(0) of laws on integers.
    """

    series: AsinhSeries
    rate: np.ndarray
    at_zero: np.ndarray


def product_laws(centers: Any, scales: Any, counts: Any, *, is_lattice: bool = False, num_points: int = 1024) -> Laws:
    """Laws of theta, each proportional to the product over j of f_j(theta - centers_j).

    Args:
        centers: [laws, factors].
        scales, counts: [laws, factors, kinds]: f_j is the density of a sum of so many noises of each scale. A factor all of whose
            counts are 0 says nothing; every law has one that says something.
        is_lattice: of discrete Laplace noises and integers theta. What does not fit into the grid is taken as continuous.
        num_points: of each grid, at least.

    Cost: for each distinct f_j some dozens of integrals, and then a series for each point.

    Reference: Xiao, Xiong and Yuan 2011, theorem 4.1, which needs the observations independent given theta, and a denominator
    given the observations before (printed without).
    """
    centers, scales, counts = (np.asarray(x, dtype=float) for x in (centers, scales, counts))
    num_laws, num_factors = centers.shape
    count = 4 * -(-num_points // (4 * (num_factors + 1)))
    width = (num_factors + 1) * count + 1
    if not num_laws:
        nothing = np.zeros((0, width))
        return Laws(nothing, nothing, nothing, np.zeros(0, dtype=bool), count)
    if is_lattice:
        from dpinfer.noise.laws import widths  # which loads numpyro

        scales = np.asarray(widths(jnp.asarray(scales)))
    says = counts.sum(axis=2) > 0
    # Factors that say nothing are put where another is, so that they do not widen anything.
    first = np.take_along_axis(centers, says.argmax(axis=1)[:, None], axis=1)
    centers = np.where(says, centers, first)
    largest = np.where(counts > 0, scales, 0).max(axis=2)
    variance = 2 * (np.square(scales) * counts).sum(axis=2)
    reach = np.sqrt(2 * _DEPTH * variance) + 2 * _DEPTH * largest + is_lattice
    apart = np.ptp(centers, axis=1)
    margin = apart + np.where(says, reach, np.inf).min(axis=1)
    factors = _factors(scales, counts, (apart + margin)[:, None] + np.zeros(centers.shape), is_lattice)
    found = in_chunks(partial(_grids, count=count, is_lattice=is_lattice), (centers, margin, factors), _AT_ONCE)
    places, densities, masses, on_integers = found
    return Laws(places, densities, masses, on_integers, count)


def _factors(scales: np.ndarray, counts: np.ndarray, reach: np.ndarray, is_lattice: bool) -> _Factors:
    shape, kinds = counts.shape[:2], counts.shape[2]
    rows = np.concatenate([np.where(counts > 0, scales, 0), counts], axis=2).reshape(-1, 2 * kinds)
    # Kinds in one order, so that equal factors are found to be.
    order = np.argsort(rows[:, :kinds], axis=1)
    rows = np.concatenate([np.take_along_axis(part, order, axis=1) for part in (rows[:, :kinds], rows[:, kinds:])], axis=1)
    rows, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.reshape(shape)
    distances = np.zeros(rows.shape[0])
    np.maximum.at(distances, which, reach)
    says = rows[:, kinds:].sum(axis=1) > 0
    largest = np.where(says, rows[:, kinds - 1], 1.0)
    # Scales that do not occur are those of others, so that they do not bend the path of integration.
    own, num = np.where(rows[:, kinds:] > 0, rows[:, :kinds], largest[:, None]), np.where(says[:, None], rows[:, kinds:], 1.0)
    rate = np.where(says, 2 * np.arcsinh(1 / (2 * largest)) if is_lattice else 1 / largest, 0.0)
    stddev = np.sqrt(2 * (np.square(own) * num).sum(axis=1))

    def function(z: np.ndarray, some: np.ndarray) -> np.ndarray:
        log = in_chunks(partial(contour.log_density, lattice=is_lattice), (z, own[some, None], num[some, None]), _PATHS)
        return np.where(says[some, None], log + z * rate[some, None], 0.0)

    series = fitted(function, stddev, np.full(rate.size, float(is_lattice)), distances)
    at_zero = np.zeros(rate.size)
    if is_lattice:
        # At 0 the path cannot keep clear of a cut: what the two tails leave; of wide laws nothing, and there it is as at 1.
        tail = in_chunks(partial(contour.log_survival, lattice=True), (np.full(rate.size, 0.5), own, num), _PATHS)
        is_wide = stddev >= _WIDE
        near = np.log(np.where(is_wide, 1.0, -np.expm1(tail + np.log(2))))
        at_one = function(np.ones((rate.size, 1)), np.arange(rate.size))[:, 0] - rate
        at_zero = np.where(says, np.where(is_wide, at_one, near), 0.0)
    return _Factors(AsinhSeries(*(x[which] for x in series)), rate[which], at_zero[which])


@partial(jax.jit, static_argnames=("count", "is_lattice"))
def _grids(centers: Any, margin: Any, factors: _Factors, *, count: int, is_lattice: bool) -> tuple[jax.Array, ...]:
    """Places, densities, masses and whether the points are all integers; block by block, so that these stay close by."""
    given = jax.tree.map(lambda x: x.reshape(-1, _BLOCK, *x.shape[1:]), (centers, margin, factors))
    found = jax.lax.map(lambda block: _grid(*block, count=count, is_lattice=is_lattice), given)
    return tuple(x.reshape(-1, *x.shape[2:]) for x in found)


def _grid(centers: jax.Array, margin: jax.Array, factors: _Factors, *, count: int, is_lattice: bool) -> tuple[jax.Array, ...]:
    by_factor = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (centers, factors))

    def log_density(theta: jax.Array) -> jax.Array:
        # One factor after the other: a program for all would take as many times as long to compile.
        def add(total: jax.Array, factor: Any) -> tuple[jax.Array, None]:
            center, (series, rate, at_zero) = factor
            z = jnp.abs(theta - center[:, None])
            if not is_lattice:
                return total + evaluated(z, series) - rate[:, None] * z, None
            # Between 0 and 1, where no integers are, a line.
            least = jnp.maximum(z, 1.0)
            log = evaluated(least, series) - rate[:, None] * least
            return total + jnp.where(z < 1, at_zero[:, None] + z * (log - at_zero[:, None]), log), None

        return scan(add, jnp.zeros_like(theta), by_factor)[0]

    low, high = centers.min(axis=1), centers.max(axis=1)
    mode = _highest(log_density, low, high)
    top = log_density(mode[:, None])
    # Where the law has fallen, on either side.
    near = jnp.stack([mode, mode], axis=1)
    far = jnp.stack([low - margin, high + margin], axis=1)

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        near, far = ends
        middle = (near + far) / 2
        inside = log_density(middle) > top - _DEPTH
        return jnp.where(inside, middle, near), jnp.where(inside, far, middle)

    first, last = fori_loop(0, _HALVINGS, halve, (near, far))[1].T
    if is_lattice:
        first, last = jnp.floor(first), jnp.ceil(last)
    # Pieces between the kinks, which are where the centers are; Boole's rule in each.
    kinks = jnp.clip(jnp.sort(centers, axis=1), first[:, None], last[:, None])
    ends = jnp.concatenate([first[:, None], kinks, last[:, None]], axis=1)
    part = jnp.arange(count) / count
    places = (ends[:, :-1, None] + jnp.diff(ends, axis=1)[:, :, None] * part[None, None]).reshape(first.size, -1)
    places = jnp.concatenate([places, last[:, None]], axis=1)
    rule = np.full(count, 32.0)
    rule[::2], rule[::4] = 12, 14
    rule[0] = 7
    step = jnp.diff(ends, axis=1) * (2 / (45 * count))
    weights = jnp.concatenate(
        [(step[:, :, None] * rule[None, None]).reshape(first.size, -1), jnp.zeros_like(last)[:, None]], axis=1
    )
    # The last point of a piece is the first of the next.
    weights = weights.at[:, count::count].add(7 * step)
    on_integers = jnp.zeros(first.shape, dtype=bool)
    if is_lattice:
        on_integers = last - first + 1 <= places.shape[1]
        integers = first[:, None] + jnp.arange(places.shape[1])[None]
        # The points behind the last integer have no mass.
        places = jnp.where(on_integers[:, None], integers, places)
        weights = jnp.where(on_integers[:, None], (integers <= last[:, None]).astype(weights.dtype), weights)
    densities = jnp.exp(log_density(places) - top)
    densities = jnp.where(on_integers[:, None] & (weights == 0), 0.0, densities)
    densities = densities / (densities * weights).sum(axis=1, keepdims=True)
    return places, densities, densities * weights, on_integers


def _highest(log_density: Any, low: jax.Array, high: jax.Array) -> jax.Array:
    """Where concave functions are highest between ``low`` and ``high``; by golden sections."""
    ratio = (np.sqrt(5) - 1) / 2

    def section(_: Any, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        a, b, left, right, at_left, at_right = carry
        is_left = at_left >= at_right
        a, b = jnp.where(is_left, a, left), jnp.where(is_left, right, b)
        new = jnp.where(is_left, b - ratio * (b - a), a + ratio * (b - a))
        value = log_density(new[:, None])[:, 0]
        left, right = jnp.where(is_left, new, right), jnp.where(is_left, left, new)
        at_left, at_right = jnp.where(is_left, value, at_right), jnp.where(is_left, at_left, value)
        return a, b, left, right, at_left, at_right

    left, right = high - ratio * (high - low), low + ratio * (high - low)
    values = log_density(jnp.stack([left, right], axis=1))
    a, b, *_ = fori_loop(0, _SECTIONS, section, (low, high, left, right, values[:, 0], values[:, 1]))
    return (a + b) / 2
