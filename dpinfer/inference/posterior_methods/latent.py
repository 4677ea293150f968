"""A numpyro model of the cells as a density of one vector: all its latent sites, unconstrained, one after the other."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import ExpandedDistribution, Independent, Normal
from numpyro.infer.initialization import init_to_median, init_to_sample
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import constrain_fn, initialize_model, potential_energy

from dpinfer._pytree import pytree, static

RESERVED = "dpinfer."
CELLS, VALUES = RESERVED + "cells", RESERVED + "values"
LOC, SCALE, VOLUME = RESERVED + "loc.", RESERVED + "scale.", RESERVED + "volume."


@pytree
class Centering:
    """How a normal site is written: value = loc + scale^(1 - kept) (number - kept loc), number ~ Normal(kept loc, scale^kept).

    Attributes:
        kept: how much of its location and scale each number keeps, from 0 (standard normal numbers) to 1 (the value itself).
        plain: whether the density is that of standard normal numbers, however they are written: without -kept log(scale), which
            is infinite where values and scales go to 0.
    """

    kept: Any
    plain: bool = static(default=False)


Centerings = dict[str, Centering]


@dataclass(frozen=True)
class Latent:
    """A model and the structure of its latent sites.

    Attributes:
        model: returns the cells.
        num_cells: how many.
        normals: (name, shape) of the normal sites, each of which has a :class:`Centering` (Gorinova, Moore and Hoffman 2020).
        shapes: (name, shape) of every latent site, unconstrained, normal ones so written.
        recorded: (name, shape) of every latent and deterministic site as the model has it.
    """

    model: Callable[[], Any]
    num_cells: int
    normals: tuple[tuple[str, tuple[int, ...]], ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    recorded: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(prod(shape) for _, shape in self.shapes)

    def sites(self, vector: jax.Array) -> dict[str, jax.Array]:
        """The unconstrained sites that a vector, [size], holds."""
        found, start = {}, 0
        for name, shape in self.shapes:
            stop = start + prod(shape)
            found[name] = vector[start:stop].reshape(shape)
            start = stop
        return found

    def uncentered(self) -> Centerings:
        """No number keeps any."""
        return {name: Centering(jnp.zeros(shape)) for name, shape in self.normals}

    def values(self, vector: jax.Array, centerings: Centerings) -> dict[str, jax.Array]:
        """What the model's sites are there, constrained, with the cells as ``dpinfer.cells``."""
        model = _with_cells(_written(self.model, centerings))
        return constrain_fn(model, (), {}, self.sites(vector), return_deterministic=True)

    def potential(self, vector: jax.Array, centerings: Centerings, log_likelihood: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Minus the log density of the prior and the likelihood at a vector, in its own coordinates."""

        def conditioned() -> None:
            numpyro.factor(VALUES, log_likelihood(_with_cells(_written(self.model, centerings))()))

        with handlers.block():  # no site of the model is one of the guide's or kernel's that asks
            return jnp.asarray(potential_energy(conditioned, (), {}, self.sites(vector)))

    def rewritten(self, vector: jax.Array, centerings: Centerings, others: Centerings) -> jax.Array:
        """The vector that has the same values with other centerings."""
        sites, values = self.sites(vector), self.values(vector, centerings)
        for name, other in others.items():
            loc, scale, kept = values[LOC + name], values[SCALE + name], other.kept
            sites[decentered(name)] = kept * loc + (values[name] - loc) * scale ** (kept - 1)
        return jnp.concatenate([sites[name].reshape(-1) for name, _ in self.shapes])

    def typical(self, key: jax.Array, centerings: Centerings) -> jax.Array:
        """The prior's medians, [size]."""
        return ravel_pytree(_medians(_written(self.model, centerings), key, 15))[0]

    def drawn_potential(self, key: jax.Array) -> jax.Array:
        """Minus the log density of the prior at a draw from it, in standard normal numbers."""
        model = _written(self.model, self.uncentered())
        return getattr(initialize_model(key, model, init_strategy=init_to_sample).param_info, "potential_energy")  # noqa: B009


def latent_of(model: Any, num_cells: int) -> Latent:
    """The structure of a model, which is run once, abstractly, for it.

    Raises:
        ValueError: if it is no model of ``num_cells`` cells, names a reserved site, or has discrete latent sites, parameters or
            nothing latent.
    """
    trace = _traced(model, num_cells)
    latent, normals, recorded = [], [], []
    for name, site in trace.items():
        if name.startswith(RESERVED):
            raise ValueError(f"model must not name a site {name!r}: names that start with {RESERVED!r} are reserved.")
        if site["type"] not in ("sample", "deterministic", "plate"):
            raise ValueError(f"model must have no {site['type']} sites, only priors; got {name!r}.")
        if site["type"] == "sample" and not site["is_observed"]:
            if site["fn"].support.is_discrete:
                raise ValueError(
                    f"model must have continuous latent sites, {name!r} is discrete: sum over it in the model, or make the cells "
                    "a continuous function of a continuous site (see dpinfer.models.sparse_counts)."
                )
            latent.append(name)
            if isinstance(_innermost(site["fn"]), Normal):
                normals.append((name, tuple(site["value"].shape)))
        if site["type"] == "deterministic" or name in latent:
            recorded.append((name, tuple(site["value"].shape)))
    if taken := [name for name, _ in normals if decentered(name) in trace]:
        raise ValueError(f"model must not name a site {decentered(taken[0])!r} beside the normal site {taken[0]!r}: rename it.")
    if not latent:
        raise ValueError("model must have at least one latent site, got none: there is nothing to infer.")
    plain = Latent(model, num_cells, tuple(normals), (), ()).uncentered()
    unconstrained = jax.eval_shape(lambda key: _medians(_written(model, plain), key, 1), jax.random.key(0))
    shapes = tuple((name, tuple(x.shape)) for name, x in sorted(unconstrained.items()))
    return Latent(model, num_cells, tuple(normals), shapes, tuple(recorded))


def decentered(name: str) -> str:
    """The latent site that stands for a normal one."""
    return f"{name}_decentered"


def _traced(model: Any, num_cells: int) -> dict[str, Any]:
    """The sites of a model by name, abstract, if it takes no arguments and returns the cells."""
    if not callable(model):
        raise ValueError(f"model must be a numpyro function that returns the cells, got {type(model).__name__}.")
    needed = [
        p.name
        for p in inspect.signature(model).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise ValueError(
            f"model must take no arguments, got one that needs {', '.join(needed)}: pass a closure or functools.partial."
        )
    trace: dict[str, Any] = {}

    def run() -> Any:
        with handlers.seed(rng_seed=0), handlers.trace() as sites:
            cells = model()
        trace.update(sites)
        return jnp.asarray(cells)

    cells = jax.eval_shape(run)
    if cells.shape != (num_cells,) or not jnp.issubdtype(cells.dtype, jnp.floating):
        raise ValueError(
            f"model must return cells of shape [{num_cells}], floating, got shape {list(cells.shape)} of {cells.dtype}."
        )
    return trace


class _Written(LocScaleReparam):
    """A normal site in its centering, with its location and scale recorded."""

    def __init__(self, centering: Centering):
        super().__init__(centering.kept)
        self.kept, self.plain = centering.kept, centering.plain

    def __call__(self, name: str, fn: Any, obs: Any) -> Any:
        law = _innermost(fn)
        loc, scale = (jnp.broadcast_to(x, fn.shape()) for x in (law.loc, law.scale))
        numpyro.deterministic(LOC + name, loc)
        numpyro.deterministic(SCALE + name, scale)
        if self.plain:  # a factor a number: a plate would count a single one many times
            numpyro.factor(VOLUME + name, self.kept * jnp.log(scale))
        return super().__call__(name, fn, obs)


def _written(model: Callable[[], Any], centerings: Centerings) -> Callable[[], Any]:
    return handlers.reparam(model, config={name: _Written(centering) for name, centering in centerings.items()})


def _with_cells(model: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: numpyro.deterministic(CELLS, jnp.asarray(model()))


def _medians(model: Callable[[], Any], key: jax.Array, num_samples: int) -> dict[str, jax.Array]:
    found = initialize_model(key, model, init_strategy=init_to_median(num_samples=num_samples)).param_info
    return getattr(found, "z")  # noqa: B009


def _innermost(law: Any) -> Any:
    while isinstance(law, (ExpandedDistribution, Independent)):
        law = law.base_dist
    return law
