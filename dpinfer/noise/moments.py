"""Standard deviations of the four noise laws, and the scales that give them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NAMES = ("laplace", "discrete_laplace", "gaussian", "discrete_gaussian")

# Below this sigma the discrete Gaussian's variance is summed term by term; from it on the variance is sigma^2 to the last
# bit: by Poisson summation the difference is of the order exp(-2 pi^2 sigma^2).
_SUM_BELOW = 2.0
_TERMS = 24


def stddev(noise: str, scale: Any) -> Any:
    """The standard deviation of noise with the given scale parameter, elementwise; 0 stays 0 and infinity stays infinity.

    ``scale`` is b in exp(-|k|/b) for the (discrete) Laplace law, sigma in exp(-k^2/(2 sigma^2)) for the (discrete) Gaussian.
    """
    xp = jnp if isinstance(scale, jax.Array) else np
    scale = xp.asarray(scale)
    if noise == "laplace":
        return xp.asarray(scale * 2**0.5)
    scale = scale if xp.issubdtype(scale.dtype, xp.floating) else scale * 1.0
    if noise == "gaussian":
        return xp.asarray(scale)
    regular = (scale > 0) & xp.isfinite(scale)
    safe = xp.where(regular, scale, 1.0)
    if noise == "discrete_laplace":
        # 2p / (1-p)^2 with p = exp(-1/b). Beyond 1/(2b) = 340 the value is below 1e-147 and sinh would overflow soon.
        inner = 0.5**0.5 / xp.sinh(xp.minimum(0.5 / safe, 340.0 if safe.dtype == np.float64 else 40.0))
    else:
        small = xp.minimum(safe, _SUM_BELOW)
        mass, moment = 1.0, 0.0
        for k in range(1, _TERMS):
            term = 2 * xp.exp(-((k / small) ** 2) / 2)
            mass, moment = mass + term, moment + k * k * term
        # The square root of a moment that underflows has no derivative; such noise is zero anyway.
        tiny = xp.finfo(safe.dtype).tiny
        inner = xp.where(safe < _SUM_BELOW, xp.sqrt(xp.maximum(moment / mass, tiny)), safe)
    return xp.asarray(xp.where(regular, inner, scale))


def scale_from_stddev(noise: str, value: Any) -> Any:
    """The scale parameter whose noise has the given standard deviation, elementwise: the inverse of :func:`stddev`."""
    xp = jnp if isinstance(value, jax.Array) else np
    value = xp.asarray(value) * 1.0
    if noise == "laplace":
        return xp.asarray(value * 0.5**0.5)
    if noise == "gaussian":
        return xp.asarray(value)
    regular = (value > 0) & xp.isfinite(value)
    safe = xp.where(regular, value, 1.0)
    if noise == "discrete_laplace":
        inner = 0.5 / xp.arcsinh(0.5**0.5 / safe)
    else:
        # Bisection on the increasing map below _SUM_BELOW; 60 halvings of (0, 2) exhaust double precision.
        lower, upper = xp.zeros_like(safe), xp.full_like(safe, _SUM_BELOW)
        for _ in range(60):
            middle = (lower + upper) / 2
            below = stddev(noise, middle) < safe
            lower, upper = xp.where(below, middle, lower), xp.where(below, upper, middle)
        inner = xp.where(safe < _SUM_BELOW, (lower + upper) / 2, safe)
    return xp.asarray(xp.where(regular, inner, value))
