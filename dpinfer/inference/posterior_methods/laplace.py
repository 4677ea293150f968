"""The normal law with the posterior's mode and curvature there: Laplace's approximation."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpinfer.inference.posterior_methods.latent import Latent
from dpinfer.inference.posterior_methods.start import Start, minimized

MAX_SIZE = 1 << 13


class Mode(NamedTuple):
    """A mode.

    Attributes:
        coordinates: [size].
        slope: the largest entry of the gradient there.
        num_steps: of L-BFGS.
        converged: whether the slope is small and the curvature that of a mode.
    """

    coordinates: jax.Array
    slope: jax.Array
    num_steps: jax.Array
    converged: jax.Array


@partial(jax.jit, static_argnames=("latent", "num_steps", "num_draws"))
def approximated(start: Start, key: jax.Array, *, latent: Latent, num_steps: int, num_draws: int) -> tuple[Mode, jax.Array]:
    """The mode and draws of the coordinates around it, [num_draws, size].

    A Laplace likelihood has kinks, where modes like to be, and no curvature elsewhere; they are rounded to hyperbolas of the same
    Fisher information (``Observed.log_likelihood``). Directions in which the density curves upwards take the curvature 1, that of
    a standard normal prior.
    """

    def potential(u: jax.Array) -> jax.Array:
        return start.potential(latent, u, smooth=True)

    good = 1e-6 if start.origin.dtype == jnp.float64 else 1e-2
    place = jnp.zeros_like(start.origin)
    mode, slope, steps = minimized(potential, place, lambda _, slope: jnp.abs(slope).max() / good, num_steps)
    gradient = jax.grad(potential)
    columns = jnp.eye(latent.size, dtype=mode.dtype)
    curvature = jax.lax.map(lambda e: jax.jvp(gradient, (mode,), (e,))[1], columns)
    curvature = (curvature + curvature.T) / 2
    factor = jnp.linalg.cholesky(curvature, symmetrize_input=False)
    is_mode = jnp.isfinite(factor).all()
    noise = jax.random.normal(key, (num_draws, latent.size), mode.dtype)

    def by_directions(noise: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(curvature)
        is_bowl = values > 1e-8 * jnp.abs(values).max()
        return (noise / jnp.sqrt(jnp.where(is_bowl, values, 1.0))[None, :]) @ vectors.T

    def by_factor(noise: jax.Array) -> jax.Array:
        return jax.scipy.linalg.solve_triangular(factor, noise.T, lower=True, trans=1).T

    draws = mode[None, :] + jax.lax.cond(is_mode, by_factor, by_directions, noise)
    steepest = jnp.abs(slope).max()
    return Mode(mode, steepest, steps, (steepest <= 1e3 * good) & is_mode), draws
