"""The nearest law of a family to the posterior, by stochastic variational inference with numpyro's automatic guides."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

from dpinfer import _checks
from dpinfer._loops import while_loop
from dpinfer.inference.posterior_methods.latent import RESERVED, Latent
from dpinfer.inference.posterior_methods.start import Start

GUIDES = ("normal", "low_rank", "multivariate")
_COORDINATES = RESERVED + "coordinates"
# Steps between looks at the loss. Where it has fallen by no more than noise explains, the learning rate is reduced, and after
# some times of that the fit is done.
_STRETCH = 250
_LEARNING_RATE, _REDUCTION, _REDUCTIONS = 0.05, 0.3, 3
_SPREAD = 0.5


class Settings(NamedTuple):
    """How to fit; static."""

    guide: Any
    num_steps: int
    learning_rate: Any

    @property
    def looks(self) -> tuple[int, int]:
        """The most looks at the loss, and the steps before each."""
        looks = -(-self.num_steps // _STRETCH)
        return looks, self.num_steps // looks


class Fit(NamedTuple):
    """What came of it.

    Attributes:
        params: of the guide.
        losses: [looks], minus the evidence lower bound, each the mean over a stretch of steps; nan where it had stopped.
        num_steps: how many were made.
        converged: whether the loss had stopped falling.
    """

    params: Any
    losses: jax.Array
    num_steps: jax.Array
    converged: jax.Array


class _State(NamedTuple):
    svi: Any
    losses: jax.Array
    last: jax.Array
    error: jax.Array
    stalls: jax.Array
    looks: jax.Array


def fitted(latent: Latent, start: Start, key: jax.Array, settings: Settings, tell: Callable[[int | None], None]) -> Fit:
    """The fit of a guide; runs under jit and vmap."""
    static = {"latent": latent, "settings": settings}
    looks, stretch = settings.looks
    if _checks.is_concrete(start, key):
        state = _begun(start, key, **static)
        while bool(state.stalls <= _REDUCTIONS) and int(state.looks) < looks:
            state = _stretch(start, state, **static)
            tell(stretch)
        tell(settings.num_steps - stretch * int(state.looks))  # what need not be made
    else:
        state = while_loop(
            lambda state: (state.stalls <= _REDUCTIONS) & (state.looks < looks),
            lambda state: _stretch(start, state, **static),
            _begun(start, key, **static),
        )
    params = _svi(latent, start, settings).optim.get_params(state.svi.optim_state)
    return Fit(params, state.losses, state.looks * stretch, state.stalls > _REDUCTIONS)


@partial(jax.jit, static_argnames=("latent", "settings", "num_draws"))
def drawn(start: Start, params: Any, key: jax.Array, *, latent: Latent, settings: Settings, num_draws: int) -> jax.Array:
    """Coordinates drawn from a fitted guide, [num_draws, size]."""
    svi: Any = _ready(latent, start, settings, key)[0]
    return svi.guide.sample_posterior(key, svi.constrain_fn(params), sample_shape=(num_draws,))[_COORDINATES]


def _svi(latent: Latent, start: Start, settings: Settings) -> SVI:
    def model() -> None:
        u = numpyro.sample(_COORDINATES, dist.ImproperUniform(dist.constraints.real_vector, (), (latent.size,)))
        numpyro.factor(RESERVED + "density", -start.potential(latent, jnp.asarray(u)))

    near: Any = {"init_loc_fn": init_to_value(values={_COORDINATES: jnp.zeros_like(start.origin)})}
    if settings.guide == "normal":
        guide = autoguide.AutoDiagonalNormal(model, init_scale=_SPREAD, **near)
    elif settings.guide == "low_rank":
        guide = autoguide.AutoLowRankMultivariateNormal(model, init_scale=_SPREAD, **near)
    elif settings.guide == "multivariate":
        guide = autoguide.AutoMultivariateNormal(model, init_scale=_SPREAD, **near)
    else:
        guide = settings.guide(model)
    rate = _LEARNING_RATE if settings.learning_rate is None else settings.learning_rate
    return SVI(model, guide, optax.inject_hyperparams(optax.adam)(learning_rate=rate), Trace_ELBO())


def _ready(latent: Latent, start: Start, settings: Settings, key: jax.Array) -> tuple[SVI, Any]:
    svi = _svi(latent, start, settings)
    return svi, svi.init(key)


@partial(jax.jit, static_argnames=("latent", "settings"))
def _begun(start: Start, key: jax.Array, *, latent: Latent, settings: Settings) -> _State:
    state = _ready(latent, start, settings, key)[1]
    dtype, zero = start.origin.dtype, jnp.zeros((), jnp.int32)
    losses = jnp.full((settings.looks[0],), jnp.nan, dtype)
    return _State(state, losses, jnp.asarray(jnp.inf, dtype), jnp.asarray(0.0, dtype), zero, zero)


@partial(jax.jit, static_argnames=("latent", "settings"))
def _stretch(start: Start, state: _State, *, latent: Latent, settings: Settings) -> _State:
    svi = _ready(latent, start, settings, state.svi.rng_key)[0]  # which sets the guide up; its state is unused
    inner, losses = jax.lax.scan(lambda s, _: svi.update(s), state.svi, None, length=settings.looks[1])
    mean, error = losses.mean(), losses.std() / settings.looks[1] ** 0.5
    falls = (state.last - mean > 2 * jnp.hypot(error, state.error)) | ~jnp.isfinite(state.last)
    if not callable(settings.learning_rate):
        rate: Any = optax.tree.get(inner.optim_state, "learning_rate")
        inner = inner._replace(
            optim_state=optax.tree.set(inner.optim_state, learning_rate=jnp.where(falls, rate, _REDUCTION * rate))
        )
    stalls = state.stalls + jnp.where(falls, 0, 1)
    return _State(inner, state.losses.at[state.looks].set(mean), mean, error, stalls, state.looks + 1)
