"""Draws by the No-U-Turn sampler, several chains, a stretch at a time so that progress can be told."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer import NUTS

from dpinfer import _checks
from dpinfer.inference.posterior_methods.latent import Latent
from dpinfer.inference.posterior_methods.start import Start

# Stretches that the steps of a chain are cut into, where there is progress to tell.
_STRETCHES = 40
# Chains start this far from the origin, in its units, so that they show whether they come together.
_SPREAD = 0.3


class Settings(NamedTuple):
    """How to sample; static."""

    num_warmup: int
    num_draws: int
    target_accept: float
    dense_mass: bool
    max_tree_depth: int


class Chain(NamedTuple):
    """Draws of one chain or, with a first axis more, of several.

    Attributes:
        coordinates: [num_draws, size].
        divergent: [num_draws].
        accept: [num_draws], the mean probability of acceptance on the way.
        num_steps: [num_draws], gradients on the way.
    """

    coordinates: jax.Array
    divergent: jax.Array
    accept: jax.Array
    num_steps: jax.Array


def sampled(latent: Latent, start: Start, keys: jax.Array, settings: Settings, tell: Callable[[int | None], None]) -> Chain:
    """Chains from each of some keys, [num_chains, num_draws, ...]. On a CPU they share its cores, elsewhere they are a batch."""
    if not _checks.is_concrete(start, keys):
        whole = partial(_whole_chain, latent=latent, settings=settings)
        return jax.lax.map(lambda key: whole(start, key), keys)
    total = settings.num_warmup + settings.num_draws
    stretch = max(1, min(total, -(-total // _STRETCHES)))
    if jax.default_backend() != "cpu":
        begun = jax.vmap(partial(_begun, latent=latent, settings=settings), in_axes=(None, 0))(start, keys)
        go_on = jax.vmap(partial(_stretch, latent=latent, settings=settings, count=stretch), in_axes=(None, 0))
        return _by_stretches(lambda state: go_on(start, state), begun, settings, stretch, lambda n: tell(n * keys.shape[0]))

    in_64_bit = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    lock = Lock()

    def tell_in_turn(steps: int) -> None:
        with lock:
            tell(steps)

    def chain(key: jax.Array) -> Chain:
        with jax.enable_x64(in_64_bit), jax.numpy_rank_promotion("allow"):  # which a thread does not inherit
            state = _begun(start, key, latent=latent, settings=settings)
            go_on = partial(_stretch, start, latent=latent, settings=settings, count=stretch)
            return jax.block_until_ready(_by_stretches(go_on, state, settings, stretch, tell_in_turn))

    with ThreadPoolExecutor(max(1, min(keys.shape[0], os.cpu_count() or 1))) as pool:
        chains = list(pool.map(chain, keys))
    return jax.tree.map(lambda *parts: jnp.stack(parts), *chains)


def _by_stretches(
    go_on: Callable[[Any], Any], state: Any, settings: Settings, stretch: int, tell: Callable[[int], None]
) -> Chain:
    total, parts = settings.num_warmup + settings.num_draws, []
    for done in range(0, total, stretch):
        state, part = go_on(state)
        if done + stretch > settings.num_warmup:
            parts.append(part)
        jax.block_until_ready(state)
        tell(min(stretch, total - done))
    axis = parts[0].divergent.ndim - 1
    first = settings.num_warmup - settings.num_warmup // stretch * stretch
    joined = jax.tree.map(lambda *pieces: jnp.concatenate(pieces, axis), *parts)
    return jax.tree.map(lambda x: jax.lax.slice_in_dim(x, first, first + settings.num_draws, axis=axis), joined)


def _kernel(latent: Latent, start: Start, settings: Settings) -> NUTS:
    return NUTS(
        potential_fn=lambda u: start.potential(latent, u),
        target_accept_prob=settings.target_accept,
        dense_mass=settings.dense_mass,
        max_tree_depth=settings.max_tree_depth,
    )


def _first(latent: Latent, start: Start, key: jax.Array, settings: Settings) -> tuple[NUTS, Any]:
    place, sampling = jax.random.split(key)
    near = _SPREAD * jax.random.normal(place, start.origin.shape, start.origin.dtype)
    potential, slope = jax.value_and_grad(lambda u: start.potential(latent, u))(near)
    is_fine = jnp.isfinite(potential) & jnp.isfinite(slope).all()
    kernel = _kernel(latent, start, settings)
    return kernel, kernel.init(sampling, settings.num_warmup, init_params=jnp.where(is_fine, near, 0.0))


@partial(jax.jit, static_argnames=("latent", "settings"))
def _begun(start: Start, key: jax.Array, *, latent: Latent, settings: Settings) -> Any:
    return _first(latent, start, key, settings)[1]


@partial(jax.jit, static_argnames=("latent", "settings", "count"))
def _stretch(start: Start, state: Any, *, latent: Latent, settings: Settings, count: int) -> tuple[Any, Chain]:
    kernel = _kernel(latent, start, settings)
    kernel.init(
        state.rng_key, settings.num_warmup, init_params=state.z
    )  # which tells the kernel how it adapts; its state is unused

    def step(state: Any, _: None) -> tuple[Any, Chain]:
        state = kernel.sample(state, (), {})
        return state, Chain(state.z, state.diverging, state.accept_prob, state.num_steps)

    return jax.lax.scan(step, state, None, length=count)


def _whole_chain(start: Start, key: jax.Array, *, latent: Latent, settings: Settings) -> Chain:
    state = _begun(start, key, latent=latent, settings=settings)
    state, _ = _stretch(start, state, latent=latent, settings=settings, count=settings.num_warmup)
    return _stretch(start, state, latent=latent, settings=settings, count=settings.num_draws)[1]
