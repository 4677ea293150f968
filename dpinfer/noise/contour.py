"""The law of a sum of independent Laplace noises of any scales, by integration along a bent path in the complex plane.

The sum of Lap(a_i) has the moment generating function M(s) = prod_i 1 / (1 - a_i^2 s^2) for |Re s| < 1 / max a, and

    f(z) = 1/(2 pi i) int M(s) exp(-s z) ds,        P(Z > z) = 1/(2 pi i) int M(s) exp(-s z) / s ds,     z >= 0

along any path from below to above that crosses the real axis between 0 and the first pole, 1 / max a. It is taken through the
saddle point c, where the integrand is largest on the path and does not oscillate, so that nothing cancels however far out z is;
from there it bends to the right around the poles, on which side exp(-s z) decays too:

    s(u) = c + w (sin(A) (cosh u - 1) + i cos(A) sinh u)

a hyperbola whose points lie exponentially far apart, so that scales of very different sizes and z near 0 take no more of them.
The integrand is analytic in a strip of half-width about 1 around the real u, and the trapezoidal rule converges like
exp(-2 pi / step). (Daniels 1954, "Saddlepoint approximations in statistics", has the saddle point; Weideman and Trefethen 2007,
"Parabolic and hyperbolic contours for computing the Bromwich integral", the hyperbola.)

The functions here take z >= 0 and the distance t = 1 - s max(a) from the first pole in place of s: far out the saddle point is
so close to the pole that 1 - (1 - t) would have lost its digits.

Discrete Laplace noises are the same with another kernel. Their generating function is 1 / (1 - B^2 w^2) with w = 2 sinh(s/2) and
B = 1 / (2 sinh(1 / (2b))), so that in w, with ds = dw / sqrt(1 + w^2/4),

    P(K = k) = 1/(2 pi i) int M(w) exp(-2 k asinh(w/2)) / sqrt(1 + w^2/4) dw
    P(K > k) = 1/(2 pi i) int M(w) exp(-(2k + 1) asinh(w/2)) / (w sqrt(1 + w^2/4)) dw

where M is that of Laplace noises of scales B: the integral over one period in s becomes one from below to above in w, since
along Im s = pi and -pi the integrand is the same. ``lattice=True`` means these: scales are the B, z is k or k + 1/2.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpinfer._loops import fori_loop, scan

_ANGLE = 0.4
_NUM_NODES, _FEWER_NODES = 96, 48
# The path ends where the integrand has fallen by exp(-42), below a rounding error of the whole; looked for at these u.
_FALL, _LESS_FALL = 42.0, 32.0
_ENDS = (2.0, 2.4, 2.8, 3.2, 3.6, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 17.0, 20.0, 25.0, 30.0, 40.0)
_BISECTIONS = 18
# Factors that are multiplied before their logarithm is taken; in 32 bit a product of two could overflow already.
_GROUP = 8
# From here on x^2 + 1 is x^2, and XLA's asinh and log square large complex numbers once too often.
_LARGE = 1e8
# Farther out, in units of the largest scale, a logarithm of the law falls by the first pole times z but for a part in 10^10.
_FAR = 1e12
# Points whose paths are held at once: a few hundred megabytes.
_MAX_POINTS = 1 << 14


class Path(NamedTuple):
    """A path for each z; all but ``middle``'s entries have the nodes along a first axis. In units of the largest scale.

    Attributes:
        log_mgf: log M at the nodes, with the kernel's factor that does not depend on z.
        place: s at the nodes.
        rate: what z is multiplied by in the exponent, less that of the middle.
        weight: ds / (pi du) times the step; half of it at the first node.
        middle_rate: what z is multiplied by where the path crosses the real axis.
        log_middle: the same there as ``log_mgf`` at the nodes.
        left: 1 - s at the nodes, s being ``place``.
    """

    log_mgf: jax.Array
    place: jax.Array
    rate: jax.Array
    weight: jax.Array
    middle_rate: jax.Array
    log_middle: jax.Array
    left: jax.Array


def log_density(z: jax.Array, scales: jax.Array, counts: jax.Array | None = None, *, lattice: bool = False) -> jax.Array:
    """Log f(z), or of P(K = z), for z >= 0 [...], scales [..., n] that broadcast; cost 130 n a point.

    ``counts`` as in :func:`upper_quantile`.
    """
    return _by_scales(partial(_log_law, lattice=lattice, is_tail=False), z, scales, counts)


def log_survival(z: jax.Array, scales: jax.Array, counts: jax.Array | None = None, *, lattice: bool = False) -> jax.Array:
    """Log P(Z > z), or of P(K > z - 1/2), for z >= 0 [...], scales [..., n] that broadcast; cost 130 n a point.

    ``counts`` as in :func:`upper_quantile`.
    """
    return _by_scales(partial(_log_law, lattice=lattice, is_tail=True), z, scales, counts)


def upper_quantile(log_p: jax.Array, scales: jax.Array, counts: jax.Array | None = None, *, lattice: bool = False) -> jax.Array:
    """The z >= 0 with log P(Z > z) = ``log_p`` <= log(1/2) [...], scales [..., n] that broadcast; cost 300 n a point.

    M is evaluated along a path that suits a first guess, and the equation solved with the values found; then once more along the
    path that suits the solution. Newton's method from above converges monotonically, the law being log-concave.

    ``counts`` [..., n], if given, say how many noises have each scale; they need not be integers.
    """
    return _by_scales(partial(_upper_quantile, lattice=lattice), log_p, scales, counts)


@partial(jax.jit, static_argnames="lattice")
def parts_given_sum(
    z: jax.Array, scales: jax.Array, counts: jax.Array, *, lattice: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What the noises of a sum are, given that the sum is z >= 0 (on the lattice >= 1): three arrays [..., n], an entry a scale.

    Some k of the noises of a scale have a sum with mean k a and variance k^2 b + k c, where a, b, c are the three. Since
    d/ds exp(k K) = k K' exp(k K), K being the logarithm of one noise's generating function, a is the mean of K', b its variance,
    and c the mean of K'', with M(s) exp(-s z) along the path in the place of a density. Arguments [...], twice [..., n]; right
    to about 1e-7 (1e-12 but for sums near 0 of two or three noises); cost 70 n a point.
    """
    kernel = Kernel(_unit(scales), lattice)
    r = scales / kernel.unit[..., None]
    z = kernel.in_units(z)
    path = _path(z, r, kernel, counts, is_tail=False, num_nodes=_FEWER_NODES, fall_by=_LESS_FALL)
    values = jnp.exp(path.log_mgf - path.log_middle[None] - path.rate * z[None]) * path.weight
    first, second = _slopes(path, r, kernel)
    total = values.imag.sum(0)[..., None]
    mean = (values[..., None] * first).imag.sum(0) / total
    spread = (values[..., None] * jnp.square(first - mean[None])).imag.sum(0) / total
    return mean, spread, (values[..., None] * second).imag.sum(0) / total


@jax.jit
def parts_given_no_sum(scales: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``parts_given_sum`` on the lattice at 0, where no path keeps clear of a cut: what all sums have, less either side."""
    kernel = Kernel(_unit(scales), True)
    r = scales / kernel.unit[..., None]
    z = jnp.full(scales.shape[:-1], 0.5)
    path = _path(z, r, kernel, counts, is_tail=True)
    values = jnp.exp(path.log_mgf - (path.middle_rate[None] + path.rate) * z[None]) * path.weight / path.place
    first, second = _slopes(path, r, kernel)
    left = (1 - 2 * values.imag.sum(0))[..., None]
    spread = -2 * (values[..., None] * jnp.square(first)).imag.sum(0) / left
    bend = (2 * jnp.square(scales) - 2 * (values[..., None] * second).imag.sum(0)) / left
    return jnp.zeros_like(scales), spread, bend


def _by_scales(function: Callable[..., jax.Array], z: jax.Array, scales: jax.Array, counts: jax.Array | None) -> jax.Array:
    if counts is None:
        return _by_points(function, z, scales)
    # One array for both, so that points can be taken in turn.
    both = jnp.concatenate([scales, counts], axis=-1)
    return _by_points(lambda z, both: function(z, *jnp.split(both, 2, axis=-1)), z, both)


def _by_points(function: Callable[..., jax.Array], z: jax.Array, scales: jax.Array) -> jax.Array:
    """``function(z, scales)``, for many points in turn: a path takes some 100 numbers a point."""
    shape = jnp.broadcast_shapes(z.shape, scales.shape[:-1])
    size = math.prod(shape)
    z = jnp.broadcast_to(z, shape)
    if size <= _MAX_POINTS:
        return function(z, scales.reshape((1,) * (z.ndim + 1 - scales.ndim) + scales.shape))
    z = z.reshape(-1)
    if scales.ndim == 1:
        found = lax.map(lambda point: function(point, scales), z, batch_size=_MAX_POINTS)
    else:
        rows = jnp.broadcast_to(scales, (*shape, scales.shape[-1])).reshape(size, -1)
        found = lax.map(lambda point: function(*point), (z, rows), batch_size=_MAX_POINTS)
    return found.reshape(shape)


@partial(jax.jit, static_argnames=("lattice", "is_tail"))
def _log_law(z: jax.Array, scales: jax.Array, counts: jax.Array | None = None, *, lattice: bool, is_tail: bool) -> jax.Array:
    kernel = Kernel(_unit(scales), lattice)
    z = kernel.in_units(z)
    near = jnp.minimum(z, _FAR * jnp.maximum(kernel.unit, 1.0) if lattice else _FAR)
    path = _path(near, scales / kernel.unit[..., None], kernel, counts, is_tail=is_tail)
    log = path.log_middle - path.middle_rate * near + jnp.log(_integral(path, near, is_tail=is_tail))
    log = log - (z - near) * kernel.rate(jnp.ones_like(z))
    return log if is_tail else log - jnp.log(kernel.unit)


@partial(jax.jit, static_argnames="lattice")
def _upper_quantile(log_p: jax.Array, scales: jax.Array, counts: jax.Array | None = None, *, lattice: bool) -> jax.Array:
    kernel = Kernel(_unit(scales), lattice)
    r = scales / kernel.unit[..., None]
    fixed, p = lax.stop_gradient(r), lax.stop_gradient(log_p)
    # P(Z > z) is about exp(-z^2 / (2 variance)) for a normal law, and about exp(-z) far out.
    variance, depth = 2.0 * _total(jnp.square(fixed), counts), jnp.maximum(-p - jnp.log(2.0), 0.0)
    z = jnp.where(depth > variance, depth, jnp.sqrt(1.5 * depth * variance)) + 0.0 * variance
    z = z * kernel.unit if lattice else z
    z = _solve(_path(z, fixed, kernel, counts, is_tail=True), p, z)
    path = _path(z, r, kernel, counts, is_tail=True)
    z = lax.stop_gradient(_solve(path, p, z))
    # One more step for the derivatives with respect to p and the scales.
    tail, slope = _tail_and_slope(path, z)
    miss = path.log_middle - path.middle_rate * z + jnp.log(tail) - log_p
    z = z + miss * lax.stop_gradient(tail / slope)
    return z if lattice else z * kernel.unit


def _solve(path: Path, log_p: jax.Array, z: jax.Array) -> jax.Array:
    tiny = jnp.finfo(z.dtype).tiny

    def step(_: Any, z: jax.Array) -> jax.Array:
        tail, slope = (jnp.maximum(x, tiny) for x in _tail_and_slope(path, z))
        miss = path.log_middle - path.middle_rate * z + jnp.log(tail) - log_p
        # A path serves the z it was made for and those nearby: no step of more than a factor.
        return jnp.clip(z + miss * tail / slope, 0.5 * z, 2.0 * z + 0.1)

    return fori_loop(0, 8, step, z)


class Kernel(NamedTuple):
    """The kernel exp(-z rate(s)) factor(s), s in units of the largest scale."""

    unit: jax.Array
    is_lattice: bool

    def in_units(self, z: jax.Array) -> jax.Array:
        return z if self.is_lattice else z / self.unit

    def rate(self, s: jax.Array) -> jax.Array:
        return 2 * _asinh(s / (2 * self.unit)) if self.is_lattice else s

    def slope(self, s: jax.Array) -> jax.Array:
        """The derivative of the rate."""
        return 1 / (self.unit * jnp.sqrt(1 + jnp.square(s / (2 * self.unit)))) if self.is_lattice else jnp.ones_like(s)

    def bend(self, s: jax.Array) -> jax.Array:
        """The negative of the rate's second derivative."""
        if not self.is_lattice:
            return jnp.zeros_like(s)
        x = s / (2 * self.unit)
        # One factor after the other: none of them overflows, as a power of 3/2 of 1 + x^2 would.
        return 0.5 / self.unit / self.unit / (1 + x * x) * (x / jnp.sqrt(1 + x * x))

    def log_factor(self, s: jax.Array) -> jax.Array:
        if not self.is_lattice:
            return jnp.zeros_like(s)
        x = s / (2 * self.unit)
        is_large = jnp.abs(x) > _LARGE
        small = jnp.where(is_large, 0.0, x)
        return -jnp.where(is_large, jnp.log(jnp.where(is_large, x, 1.0)), 0.5 * jnp.log(1 + small * small))


def _asinh(x: jax.Array) -> jax.Array:
    """Asinh for Re x >= 0."""
    is_large = jnp.abs(x) > _LARGE
    return jnp.where(is_large, jnp.log(2 * jnp.where(is_large, x, 1.0)), jnp.arcsinh(jnp.where(is_large, 0.0, x)))


def _unit(scales: jax.Array) -> jax.Array:
    # Any fixed unit will do, so that no derivative has to pass through it.
    return lax.stop_gradient(scales.max(-1))


def _integral(path: Path, z: jax.Array, *, is_tail: bool) -> jax.Array:
    """The integral divided by exp(log_middle - middle_rate z)."""
    values = jnp.exp(path.log_mgf - path.log_middle[None] - path.rate * z[None]) * path.weight
    return (values / path.place if is_tail else values).imag.sum(0)


def _tail_and_slope(path: Path, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """P(Z > z) and the negative of its derivative, both divided by exp(log_middle - middle_rate z)."""
    values = jnp.exp(path.log_mgf - path.log_middle[None] - path.rate * z[None]) * path.weight / path.place
    return values.imag.sum(0), (values * (path.middle_rate[None] + path.rate)).imag.sum(0)


def _path(
    z: jax.Array,
    r: jax.Array,
    kernel: Kernel,
    counts: jax.Array | None,
    *,
    is_tail: bool,
    num_nodes: int = _NUM_NODES,
    fall_by: float = _FALL,
) -> Path:
    """The path for each z [...] and scales r [..., n] whose largest is 1."""
    fixed, z = lax.stop_gradient(r), lax.stop_gradient(z)
    middle, distance, width = _saddle_point(z, fixed, kernel, counts, is_tail=is_tail)
    along = partial(_hyperbola, distance=distance, width=width)
    log_middle, middle_rate = _log_mgf(distance, r, counts) + kernel.log_factor(middle), kernel.rate(middle)

    def fall(u: jax.Array) -> jax.Array:
        turn, slope = along(u)
        rate = kernel.rate(middle + turn) - middle_rate
        size = (_log_mgf(distance - turn, fixed, counts) + kernel.log_factor(middle + turn) - rate * z).real
        size = size + jnp.log(jnp.abs(slope) / width) - (jnp.log(jnp.abs(middle + turn) / middle) if is_tail else 0.0)
        return lax.stop_gradient(log_middle) - size

    ends = jnp.asarray(_ENDS, r.dtype)
    has_fallen = lax.map(fall, ends) > fall_by
    end = jnp.where(has_fallen.any(0), ends[jnp.argmax(has_fallen, axis=0)], ends[-1])
    step = end / num_nodes

    @jax.checkpoint
    def node(_: None, k: jax.Array) -> tuple[None, tuple[jax.Array, ...]]:
        turn, slope = along(k * step)
        place = middle + turn
        rate = kernel.rate(place) - middle_rate if kernel.is_lattice else turn
        weight = slope * (step / jnp.pi) * jnp.where(k == 0, 0.5, 1.0)
        return None, (_log_mgf(distance - turn, r, counts) + kernel.log_factor(place), place, rate, weight, distance - turn)

    _, (log_mgf, place, rate, weight, left) = scan(node, None, jnp.arange(num_nodes, dtype=r.dtype))
    return Path(log_mgf, place, rate, weight, middle_rate, log_middle, left)


def _slopes(path: Path, r: jax.Array, kernel: Kernel) -> tuple[jax.Array, jax.Array]:
    """The first and second derivatives of -log(1 - r^2 s^2) at the nodes with respect to the kernel's rate, [..., n]."""
    rt, s = r[None] * path.left[..., None], path.place[..., None]
    factors = (1 - r[None] + rt) * (1 + r[None] - rt)
    unit = kernel.unit[None, ..., None]
    if kernel.is_lattice:
        w = s / unit
        sinh, cosh = w * jnp.sqrt(1 + w * w / 4), 1 + w * w / 2
    else:
        sinh, cosh = s / unit, jnp.ones_like(s)
    twice = 2 * jnp.square(r * kernel.unit[..., None])[None] / factors
    return twice * sinh, twice * cosh + jnp.square(twice * sinh)


def _hyperbola(u: jax.Array, *, distance: jax.Array, width: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(s(u) - c, s'(u))."""
    sin, cos = math.sin(_ANGLE), math.cos(_ANGLE)
    # By one exponential, and without cancellation near 0.
    x = jnp.expm1(u)
    rest = x / (1 + x)
    sinh, less = (x + rest) / 2, x * rest / 2  # less being cosh u - 1
    return width * lax.complex(sin * less, cos * sinh) + 0.0 * distance, width * lax.complex(sin * sinh, cos * (1 + less))


def _saddle_point(
    z: jax.Array, r: jax.Array, kernel: Kernel, counts: jax.Array | None, *, is_tail: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(c, 1 - c, width of the integrand across the real axis); roughly, since any path gives the integral."""

    def derivatives(c: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        right, left = r / (1 - r + r * t[..., None]), r / (1 + r * c[..., None])
        first, second = _total(right - left, counts), _total(right**2 + left**2, counts)
        return (first - 1 / c, second + 1 / c**2) if is_tail else (first, second)

    def halve(_: Any, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        v = (low + high) / 2
        c, t = jax.nn.sigmoid(v), jax.nn.sigmoid(-v)
        below = derivatives(c, t)[0] < z * kernel.slope(c)
        return jnp.where(below, v, low), jnp.where(below, high, v)

    # In v = log(c / (1 - c)), which resolves both ends. The lowest is far below the saddle point of a tail, and where that of the
    # density is lower still, so near 0 does as well; at the highest the nearest pole alone exceeds what is looked for.
    variance = 2.0 * _total(jnp.square(r), counts)
    low = jnp.log(0.05 / jnp.sqrt(variance)) + 0.0 * z
    low, high = fori_loop(0, _BISECTIONS, halve, (low, jnp.log(z * kernel.slope(jnp.zeros_like(z)) + 4.0) + 0.0 * low))
    v = (low + high) / 2
    c, t = jax.nn.sigmoid(v), jax.nn.sigmoid(-v)
    return c, t, 1 / jnp.sqrt(derivatives(c, t)[1] + z * kernel.bend(c))


def _total(x: jax.Array, counts: jax.Array | None) -> jax.Array:
    """The sum over the noises, along the last axis."""
    return (x if counts is None else counts * x).sum(-1)


def _log_mgf(t: jax.Array, r: jax.Array, counts: jax.Array | None) -> jax.Array:
    """Log M at s = 1 - t [...]: -sum_i log(1 - r_i s) + log(1 + r_i s), with 1 - r s as 1 - r + r t."""
    rt = r * t[..., None]
    factors = (1 - r + rt) * (1 + r - rt)
    if counts is not None:  # neither factor's argument leaves (-pi/2, pi), nor does their product's leave (-pi, pi)
        return -(counts * _log(factors)).sum(-1)
    group = _GROUP if factors.real.dtype == jnp.float64 else 1
    missing = -factors.shape[-1] % group
    if missing:
        factors = jnp.concatenate([factors, jnp.ones((*factors.shape[:-1], missing), factors.dtype)], axis=-1)
    while group > 1:  # a logarithm costs as much as a dozen products
        half = factors.shape[-1] // 2
        factors, group = factors[..., :half] * factors[..., half:], group // 2
    return -jnp.log(factors).sum(-1)


def _log(x: jax.Array) -> jax.Array:
    """Of complex numbers; in 64 bit none here is so large that its square overflows, and XLA takes twice as long to be safe."""
    if x.dtype != jnp.complex128:
        return jnp.log(x)
    return lax.complex(0.5 * jnp.log(jnp.square(x.real) + jnp.square(x.imag)), jnp.arctan2(x.imag, x.real))
