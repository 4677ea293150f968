"""The law of a sum of n independent Laplace noises of one scale, by a recurrence of positive terms.

In units of the scale, at u >= 0, the densities f_n are u^(n-1/2) K_(n-1/2)(u) up to a constant (Xiao et al. 2011, equation (9),
is the same in another form; its constant is right, but equation (22) for n = 3 is twice too large at scale 1). The recurrence of
the Bessel functions gives

    f_(n+1) = (2n-1)/(2n) f_n + u^2 / (4 n (n-1)) f_(n-1),        P_(n+1) = P_n + u/(2n) f_n

for the densities and the tails P_n = P(Z > u), with f_1 = P_1 = exp(-u)/2. Nothing is subtracted, so that the relative error
stays of the order n roundings, in the far tails too. What is carried are the ratios f_(n+1) / f_n and P_n / f_n, which neither
overflow nor vanish.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpinfer._loops import fori_loop, scan

# How many ratios, each up to u / 2, are multiplied before their logarithm is taken; and the largest u with which they are formed:
# farther out log f is -u but for a part in 10^28 (10^13 in 32 bit).
_GROUP, _LARGEST = 8, 1e30
_GROUP_32, _LARGEST_32 = 2, 1e15


@partial(jax.jit, static_argnames="n")
def log_density(u: jax.Array, n: int) -> jax.Array:
    """Log f_n at u >= 0; cost n a point."""
    return _carry(u, n)[0]


@partial(jax.jit, static_argnames="n")
def log_survival(u: jax.Array, n: int) -> jax.Array:
    """Log P(Z > u) at u >= 0; cost n a point."""
    log_f, tail = _carry(u, n)
    return log_f + jnp.log(tail)


@partial(jax.jit, static_argnames="n")
def upper_quantile(log_p: jax.Array, n: int) -> jax.Array:
    """The u >= 0 with log P(Z > u) = ``log_p`` <= log(1/2); cost some 12 n a point."""
    target = lax.stop_gradient(log_p)
    depth = jnp.maximum(-target - jnp.log(2.0), 0.0)
    variance = 2.0 * n
    u = jnp.where(depth > variance, depth, jnp.sqrt(1.5 * depth * variance))

    # The law is log-concave: after the first step, Newton's come down on the solution monotonically.
    def step(_: Any, u: jax.Array) -> jax.Array:
        log_f, tail = _carry(u, n)
        return jnp.clip(u + (log_f + jnp.log(tail) - target) * tail, 0.5 * u, 2.0 * u + 0.1)

    u = lax.stop_gradient(fori_loop(0, 12, step, u))
    log_f, tail = _carry(u, n)
    return u + (log_f + jnp.log(tail) - log_p) * lax.stop_gradient(tail)


def _carry(u: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """(log f_n, P_n / f_n)."""
    group, largest = (_GROUP, _LARGEST) if u.dtype == jnp.float64 else (_GROUP_32, _LARGEST_32)
    log_f, one, u = -u - jnp.log(2.0), jnp.ones_like(u), jnp.minimum(u, largest)
    state = (one, one, (1 + u) / 2)  # product of ratios, P_1 / f_1, f_2 / f_1
    if n <= 32:
        for k in range(1, n):
            state = _advance(state, float(k), u)
            if k % group == 0:
                log_f, state = log_f + jnp.log(state[0]), (one, *state[1:])
        return log_f + jnp.log(state[0]), state[1]

    def groups(carry: tuple, start: jax.Array) -> tuple[tuple, None]:
        log_f, *state = carry
        for k in range(group):
            is_in = start + k < n
            following = _advance(tuple(state), start + k, u)
            state = [jnp.where(is_in, new, old) for new, old in zip(following, state, strict=True)]
        return (log_f + jnp.log(state[0]), one, *state[1:]), None

    starts = jnp.arange(1, n, group, dtype=u.dtype)
    (log_f, _, tail, _), _ = scan(groups, (log_f, *state), starts)
    return log_f, tail


def _advance(state: tuple, k: float | jax.Array, u: jax.Array) -> tuple:
    """From k to k + 1 terms."""
    product, tail, ratio = state
    following = (2 * k + 1) / (2 * k + 2) + (u / (2 * k + 2)) * (u / (2 * k)) / ratio
    return product * ratio, (tail + u / (2 * k)) / ratio, following
