"""Laws of noise as numpyro distributions: (discrete) Laplace noises and their sums, exact in the far tails."""

# numpyro declares properties where its own laws set class attributes, and log_prob with any intermediates.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportAssignmentType=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import is_prng_key

from dpinfer import _checks
from dpinfer.noise import contour, equal_scales

# Draws of single noises that are held at once by the samplers of sums.
_DRAWS_AT_ONCE = 1 << 24
# From this B on the probability of 0 is better had from the integral than as the difference of two tails.
_CUT_IS_FAR = 100.0
# The integral spans the range of w, 1 / B, whose squares have to be numbers.
_LEAST_SCALE = 0.01


class _Integers(constraints.ParameterFreeConstraint):
    is_discrete = True

    def __call__(self, x: Any) -> Any:
        return jnp.floor(x) == x

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.zeros_like(prototype)


integers = _Integers()


class _SymmetricSum(Distribution):
    """What the two kinds of sums share: parameters, moments, and the two tails by the upper one."""

    arg_constraints: dict[str, Any] = {  # noqa: RUF012
        "scales": constraints.independent(constraints.positive, 1),
        "loc": constraints.real,
    }
    pytree_data_fields = ("scales", "loc")

    def __init__(self, scales: Any, loc: Any = 0.0, *, validate_args: bool | None = None) -> None:
        scales = _as_float(scales)
        if scales.ndim == 0 or scales.shape[-1] == 0:
            raise ValueError(f"scales must have the terms of the sum along their last axis, at least one, got {scales.shape}.")
        loc = _as_float(loc)
        batch_shape: Any = jax.lax.broadcast_shapes(scales.shape[:-1], loc.shape)
        self.scales = scales
        self.loc = jnp.broadcast_to(loc, batch_shape)
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    def _aligned(self, value: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(value, loc, scales) with as many axes as one another, the scales' last one apart."""
        value = _as_float(value)
        rank = max(value.ndim, self.loc.ndim)
        return _with_rank(value, rank), _with_rank(self.loc, rank), _with_rank(self.scales, rank + 1)

    @property
    def num_terms(self) -> int:
        return self.scales.shape[-1]

    @property
    def mean(self) -> jax.Array:
        return self.loc

    def _add_noises(self, key: jax.Array, draws: Any, shape: tuple[int, ...]) -> jax.Array:
        """The sum over the terms of ``draws(key, shape, scales)``, some terms at a time."""
        size = max(1, _DRAWS_AT_ONCE // max(1, int(np.prod(shape))))
        total = jnp.zeros(shape, self.scales.dtype)
        for number, start in enumerate(range(0, self.num_terms, size)):
            scales = self.scales[..., start : start + size]
            noises = draws(jax.random.fold_in(key, number), (*shape, scales.shape[-1]), scales)
            total = total + noises.sum(-1)
        return total


class LaplaceSum(_SymmetricSum):
    """The law of loc + sum_i a_i L_i with independent standard Laplace noises L_i: of any least squares error.

    Exact, in the far tails too: log densities and tail probabilities keep a relative accuracy of about 1e-13 for up to some
    thousand terms, in 64 bit. Equal scales (if they can be looked at) take a recurrence of positive terms
    (``noise/equal_scales.py``, cost n a point), others an integral along a bent path (``noise/contour.py``, cost about 130 n a
    point). Scales may differ by ten orders of magnitude. Gradients pass to value, scales and loc.

    Xiao, Xiong, Yuan 2011, section 4.2 and appendix F, has the equal case; its equation (22), n = 3, is twice too large at
    scale 1 (right: (3/16 + 3u/16 + u^2/16) exp(-u) / b with u = |z|/b), and a discretised convolution loses the tails.

    Args:
        scales: [..., n], positive, |coefficient| times Laplace scale of each of the n terms.
        loc: [...], the median.
    """

    support: constraints.Constraint = constraints.real
    reparametrized_params: list[str] = ["scales", "loc"]  # noqa: RUF012
    pytree_aux_fields = ("_is_equal",)

    def __init__(self, scales: Any, loc: Any = 0.0, *, validate_args: bool | None = None) -> None:
        # As given: inside jit, jnp.asarray would hide the numbers of a numpy array or a list.
        self._is_equal = _checks.is_concrete(scales) and _are_equal(scales)
        super().__init__(scales, loc, validate_args=validate_args)

    @property
    def _is_known_equal(self) -> bool:
        # Looked at again where that can be done: whoever maps a function over a law's leaves may have changed them.
        return self.num_terms == 1 or (_are_equal(self.scales) if _checks.is_concrete(self.scales) else self._is_equal)

    def _log_tail(self, z: jax.Array, scales: jax.Array) -> jax.Array:
        if self._is_known_equal:
            return _where_finite(lambda z: equal_scales.log_survival(z / _common(scales), self.num_terms), z)
        return _where_finite(lambda z: contour.log_survival(z, scales), z)

    @validate_sample
    def log_prob(self, value: Any) -> jax.Array:
        """Log density at ``value`` [...]."""
        value, loc, scales = self._aligned(value)
        z = jnp.abs(value - loc)
        if self._is_known_equal:
            scale = _common(scales)
            return _where_finite(lambda z: equal_scales.log_density(z / scale, self.num_terms) - jnp.log(scale), z)
        return _where_finite(lambda z: contour.log_density(z, scales), z)

    def log_survival(self, value: Any) -> jax.Array:
        """Log P(X > value) [...], exact in relative terms however small the probability."""
        value, loc, scales = self._aligned(value)
        z = value - loc
        tail = self._log_tail(jnp.abs(z), scales)
        return jnp.where(z >= 0, tail, jnp.log1p(-jnp.exp(tail)))

    def cdf(self, value: Any) -> jax.Array:
        """P(X <= value) [...], exact in relative terms in the lower tail."""
        value, loc, scales = self._aligned(value)
        z = value - loc
        tail = jnp.exp(self._log_tail(jnp.abs(z), scales))
        return jnp.where(z >= 0, 1.0 - tail, tail)

    def icdf(self, q: Any) -> jax.Array:
        """The value at which the cdf is ``q`` [...]; -inf at 0 and inf at 1."""
        q, loc, scales = self._aligned(q)
        is_upper, log_p = _nearer_tail(q)
        if self._is_known_equal:
            z = equal_scales.upper_quantile(log_p, self.num_terms) * _common(scales)
        else:
            z = contour.upper_quantile(log_p, scales)
        z = jnp.where((q > 0) & (q < 1), z, jnp.inf)
        return jnp.where((q >= 0) & (q <= 1), loc + jnp.where(is_upper, z, -z), jnp.nan)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws for studies, in floating point: not for the release of private counts, which ``measure`` makes exactly."""
        _check_key(key)
        shape = sample_shape + self.batch_shape
        draws = lambda key, shape, scales: _with_rank(scales, len(shape)) * jax.random.laplace(key, shape, scales.dtype)  # noqa: E731
        return _with_rank(self.loc, len(shape)) + self._add_noises(key, draws, shape)

    @property
    def variance(self) -> jax.Array:
        return jnp.broadcast_to(2 * jnp.square(self.scales).sum(-1), self.batch_shape)

    @property
    def kurtosis(self) -> jax.Array:
        """Excess kurtosis: 0 would be a normal law, 3 is a single Laplace noise."""
        squares = jnp.square(self.scales / self.scales.max(-1, keepdims=True))
        return jnp.broadcast_to(3 * jnp.square(squares).sum(-1) / jnp.square(squares.sum(-1)), self.batch_shape)


class DiscreteLaplaceSum(_SymmetricSum):
    """The law of loc + sum_i D_i with independent discrete Laplace noises D_i of scales b_i: of a sum of released counts.

    Exact as :class:`LaplaceSum` is, by the same integral with the kernel of the integers (``noise/contour.py``).

    Args:
        scales: [..., n], positive, b_i in P(D_i = k) ~ exp(-|k|/b_i). With two or more terms, scales below 0.01 count as 0.01,
            whose noise is not 0 with probability exp(-100).
        loc: [...], the centre; an integer if the sum is to be one.
    """

    support: constraints.Constraint = integers

    def _log_tail(self, k: jax.Array, scales: jax.Array) -> jax.Array:
        """Log P(D > k) for integers k >= 0."""
        if self.num_terms == 1:
            return _log_tail(k, scales[..., 0])
        width = widths(jnp.maximum(scales, _LEAST_SCALE))
        return _where_finite(lambda k: contour.log_survival(k + 0.5, width, lattice=True), k)

    @validate_sample
    def log_prob(self, value: Any) -> jax.Array:
        """Log probability of ``value`` [...]; of integers only."""
        value, loc, scales = self._aligned(value)
        k = jnp.abs(value - loc)
        if self.num_terms == 1:
            return _log_mass(k, scales[..., 0])
        width = widths(jnp.maximum(scales, _LEAST_SCALE))
        # At 0 the path cannot keep clear of the cut from w = 2i on, unless that is far away: what the two tails leave.
        at_zero = jnp.log1p(-2 * jnp.exp(self._log_tail(jnp.zeros_like(k), scales)))
        is_apart = (k == 0) & (width.max(-1) < _CUT_IS_FAR)
        at = _where_finite(lambda k: contour.log_density(k, width, lattice=True), jnp.where(is_apart, 1.0, k))
        return jnp.where(is_apart, at_zero, at)

    def log_survival(self, value: Any) -> jax.Array:
        """Log P(X > value) [...], exact in relative terms however small the probability."""
        value, loc, scales = self._aligned(value)
        k = jnp.floor(value - loc)
        tail = self._log_tail(jnp.where(k >= 0, k, -k - 1), scales)
        return jnp.where(k >= 0, tail, jnp.log1p(-jnp.exp(tail)))

    def cdf(self, value: Any) -> jax.Array:
        """P(X <= value) [...], exact in relative terms in the lower tail."""
        value, loc, scales = self._aligned(value)
        k = jnp.floor(value - loc)
        tail = jnp.exp(self._log_tail(jnp.where(k >= 0, k, -k - 1), scales))
        return jnp.where(k >= 0, 1.0 - tail, tail)

    def icdf(self, q: Any) -> jax.Array:
        """The smallest value at which the cdf is at least ``q`` [...], but for a relative rounding of 1e-9 in q."""
        q, loc, scales = self._aligned(q)
        is_upper, log_p = _nearer_tail(q)
        z = contour.upper_quantile(log_p, widths(jnp.maximum(scales, _LEAST_SCALE)), lattice=True)
        k = jnp.where(is_upper, jnp.maximum(jnp.ceil(z - 0.5 - 1e-9), 0.0), -jnp.floor(z + 0.5 + 1e-9))
        k = jnp.where((q > 0) & (q < 1), k, jnp.where(is_upper, jnp.inf, -jnp.inf))
        return jnp.where((q >= 0) & (q <= 1), loc + k, jnp.nan)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws for studies, in floating point: not for the release of private counts, which ``measure`` makes exactly."""
        _check_key(key)
        shape = sample_shape + self.batch_shape
        return _with_rank(self.loc, len(shape)) + self._add_noises(key, _draw_discrete_laplace, shape)

    @property
    def variance(self) -> jax.Array:
        return jnp.broadcast_to(2 * jnp.square(widths(self.scales)).sum(-1), self.batch_shape)

    @property
    def kurtosis(self) -> jax.Array:
        """Excess kurtosis."""
        squares = jnp.square(widths(self.scales))
        fourth = (12 * jnp.square(squares) + 2 * squares).sum(-1)
        return jnp.broadcast_to(fourth / jnp.square(2 * squares.sum(-1)), self.batch_shape)


class DiscreteLaplace(Distribution):
    """The discrete Laplace (two-sided geometric) law: P(X = k) = tanh(1/(2b)) exp(-|k - loc|/b) for integers k.

    The noise of ``measure`` under epsilon. With a real ``loc``, such as a sum of real cells of a model, log_prob is the
    continuous extension of this likelihood: the same formula, up to a factor between 1 and cosh(1/(2b)) that keeps the
    probabilities of the integers from adding up to exactly 1. (Ghosh, Roughgarden, Sundararajan 2009, section 2.)

    Args:
        scale: [...], b > 0.
        loc: [...], the centre.
    """

    arg_constraints: dict[str, Any] = {"scale": constraints.positive, "loc": constraints.real}  # noqa: RUF012

    def __init__(self, scale: Any, loc: Any = 0.0, *, validate_args: bool | None = None) -> None:
        scale, loc = _as_float(scale), _as_float(loc)
        batch_shape: Any = jax.lax.broadcast_shapes(scale.shape, loc.shape)
        self.scale, self.loc = (jnp.broadcast_to(x, batch_shape) for x in (scale, loc))
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    support: constraints.Constraint = integers

    def _aligned(self, value: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        value = _as_float(value)
        rank = max(value.ndim, self.loc.ndim)
        return _with_rank(value, rank), _with_rank(self.loc, rank), _with_rank(self.scale, rank)

    @validate_sample
    def log_prob(self, value: Any) -> jax.Array:
        """Log probability of ``value`` [...], or its continuous extension."""
        value, loc, scale = self._aligned(value)
        return _log_mass(jnp.abs(value - loc), scale)

    def log_survival(self, value: Any) -> jax.Array:
        """Log P(X > value) [...], exact in relative terms however small the probability."""
        value, loc, scale = self._aligned(value)
        k = jnp.floor(value - loc)
        tail = _log_tail(jnp.where(k >= 0, k, -k - 1), scale)
        return jnp.where(k >= 0, tail, jnp.log1p(-jnp.exp(tail)))

    def cdf(self, value: Any) -> jax.Array:
        """P(X <= value) [...], exact in relative terms in the lower tail."""
        value, loc, scale = self._aligned(value)
        k = jnp.floor(value - loc)
        tail = jnp.exp(_log_tail(jnp.where(k >= 0, k, -k - 1), scale))
        return jnp.where(k >= 0, 1.0 - tail, tail)

    def icdf(self, q: Any) -> jax.Array:
        """The smallest value at which the cdf is at least ``q`` [...], but for a relative rounding of 1e-12."""
        q, loc, scale = self._aligned(q)
        is_upper, log_p = _nearer_tail(q)
        # P(D > k) = exp(-(k + 1)/b) / (1 + exp(-1/b)) solved for k + 1.
        steps = -scale * (log_p + _log_one_plus_ratio(scale))
        k = jnp.where(is_upper, jnp.maximum(jnp.ceil(steps * (1 - 1e-12)) - 1, 0.0), -jnp.floor(steps * (1 + 1e-12)))
        # Below one half, the cells from P(D = 0) on that hold q are none below 0.
        k = jnp.where(~is_upper & (steps < 0), 0.0, k)
        k = jnp.where((q > 0) & (q < 1), k, jnp.where(is_upper, jnp.inf, -jnp.inf))
        return jnp.where((q >= 0) & (q <= 1), loc + k, jnp.nan)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws for studies, in floating point: not for the release of private counts, which ``measure`` makes exactly."""
        _check_key(key)
        shape = sample_shape + self.batch_shape
        return _with_rank(self.loc, len(shape)) + _draw_discrete_laplace(key, shape, self.scale)

    @property
    def mean(self) -> jax.Array:
        return self.loc

    @property
    def variance(self) -> jax.Array:
        """2 exp(-1/b) / (1 - exp(-1/b))^2 = 1 / (2 sinh(1/(2b))^2)."""
        return 2 * jnp.square(widths(self.scale))

    @property
    def kurtosis(self) -> jax.Array:
        """Excess kurtosis, 3 + 1/variance."""
        return 3 + 1 / self.variance


def _check_key(key: Any) -> None:
    # Of either kind: numpyro's seed handler hands out keys of the old one.
    if not is_prng_key(key):
        raise ValueError(f"key must be a key from jax.random.key, got {type(key).__name__}.")


def _as_float(x: Any) -> jax.Array:
    array = jnp.asarray(x)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def _with_rank(x: jax.Array, rank: int) -> jax.Array:
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _where_finite(log_law: Callable[[jax.Array], jax.Array], z: jax.Array) -> jax.Array:
    """``log_law(z)`` for z >= 0, with log 0 at infinity."""
    return jnp.where(jnp.isinf(z), -jnp.inf, log_law(jnp.where(jnp.isinf(z), 1.0, z)))


def _are_equal(scales: Any) -> bool:
    array = np.asarray(scales)
    return array.ndim > 0 and bool(np.all(array == array[..., :1]))


def _common(scales: jax.Array) -> jax.Array:
    """The one scale of equal ones; a derivative with respect to it is shared by all."""
    fixed = jax.lax.stop_gradient(scales)
    return fixed[..., 0] + (scales - fixed).mean(-1)


def _nearer_tail(q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether q is in the upper half, and the logarithm of the tail it leaves (some number where that is 0 or none)."""
    is_upper = q > 0.5
    p = jnp.where(is_upper, 1.0 - q, q)
    return is_upper, jnp.log(jnp.where(p > 0, p, 0.5))


def widths(scales: jax.Array) -> jax.Array:
    """B = 1 / (2 sinh(1/(2b))) of discrete Laplace noises of scales b: the variance is 2 B^2, elementwise."""
    # Where sinh would soon overflow, a noise is 0 but for 1e-147 (1e-17 in 32 bit).
    return 0.5 / jnp.sinh(jnp.minimum(0.5 / scales, 340.0 if scales.dtype == jnp.float64 else 40.0))


def _log_one_plus_ratio(scale: jax.Array) -> jax.Array:
    return jnp.log1p(jnp.exp(-1 / scale))


def _log_tail(k: jax.Array, scale: jax.Array) -> jax.Array:
    """Log P(D > k) for integers k >= 0."""
    return -_log_one_plus_ratio(scale) - (k + 1) / scale


def _log_mass(k: jax.Array, scale: jax.Array) -> jax.Array:
    return jnp.log(-jnp.expm1(-1 / scale)) - _log_one_plus_ratio(scale) - k / scale


def _draw_discrete_laplace(key: jax.Array, shape: tuple[int, ...], scale: jax.Array) -> jax.Array:
    """The difference of two geometric variables, each the floor of an exponential one."""
    first, second = jax.random.exponential(key, (2, *shape), scale.dtype) * _with_rank(scale, len(shape) + 1)
    return jnp.floor(first) - jnp.floor(second)
