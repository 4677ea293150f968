"""Where a method starts: near the estimate by non-negative least squares, in coordinates whose spread is about one."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpinfer._loops import fori_loop, while_loop
from dpinfer._pytree import pytree
from dpinfer.inference.posterior_methods.latent import CELLS, Centering, Centerings, Latent, decentered
from dpinfer.inference.posterior_methods.observed import Observed, information
from dpinfer.queries.base import Array

_MAX_STEPS = 200
_ROUNDS = 2
_PROBES = 32
_PRIOR_DRAWS = 15
# How many times what the prior says the data have to say of a value for half of its scale to be kept. Scales that the data let be
# near 0 are otherwise sampled with a bias, since chains seldom enter where the values have to be near 0 as well.
_CLEARLY = 10.0
# Sites of fewer than the largest one's numbers by this factor stay at their medians while the others are brought near the target:
# scales among them would grow until hardly any number had to move.
_FEW = 32
# Latent numbers up to which the whole curvature is taken: a product with its root is then cheap beside what it saves.
_MAX_DENSE = 2048


@pytree
class Start:
    """The posterior in coordinates u of its own: the latent vector is origin + spread u.

    Attributes:
        observed: the likelihood.
        centerings: of the model's normal sites.
        origin: [size], a latent vector whose cells are near the estimate.
        spread: [size, size], a root of the inverse of the curvature there; or where that is too large [size], about how far
            each latent number is uncertain, the others being fixed.
        log_volume: the logarithm of the spread's determinant.
    """

    observed: Observed
    centerings: Any
    origin: Array
    spread: Array
    log_volume: Array

    def vector(self, u: jax.Array) -> jax.Array:
        """The latent vector at coordinates, [size]."""
        return jnp.asarray(self.origin + (self.spread * u if self.spread.ndim == 1 else self.spread @ u))

    def values(self, latent: Latent, u: jax.Array) -> dict[str, jax.Array]:
        """The model's sites at coordinates, with possible cells as ``dpinfer.cells``."""
        found = latent.values(self.vector(u), self.centerings)
        return found | {CELLS: self.observed.possible(found[CELLS])}

    def potential(self, latent: Latent, u: jax.Array, *, smooth: bool = False) -> jax.Array:
        """Minus the log posterior density at coordinates, but for a constant that the evidence fixes."""
        return latent.potential(self.vector(u), self.centerings, _likelihood(self.observed, smooth)) - self.log_volume


@partial(jax.jit, static_argnames=("latent", "dense", "centered"))
def started(observed: Observed, target: Any, key: jax.Array, *, latent: Latent, dense: bool, centered: bool) -> Start:
    """A start near ``target``, [n]: as likely as a draw, under the prior and given the data, in the coordinates that suit it.

    A normal site whose values the data tell keeps its scale in its numbers; where they do not, standard normal numbers are taken
    and the scale comes after (each in its part: data's information / (data's + 10 times the prior's)). In the first case a scale
    that is sampled, too, would have to move with all of the numbers, and in the second they would have to move with it.

    ``dense`` says whether the coordinates may mix the numbers, by the whole curvature where these are few enough; ``centered``
    whether numbers may keep their scale, which a mode must not: the density is infinite where values and scales go to 0.
    """
    dense = dense and latent.size <= _MAX_DENSE
    near, typical, rounds = jax.random.split(key, 3)
    plain = latent.uncentered()
    potential = jnp.median(jax.lax.map(latent.drawn_potential, jax.random.split(typical, _PRIOR_DRAWS)))

    def begun(vector: jax.Array, key: jax.Array) -> Start:
        telling, curving = jax.random.split(key)
        written = _centered(latent, observed, vector, plain, telling) if centered else plain
        origin = latent.rewritten(vector, plain, written)
        return Start(observed, written, origin, *_spread(latent, observed, origin, written, curving, dense))

    def improved(number: jax.Array, carry: tuple[jax.Array, Start]) -> tuple[jax.Array, Start]:
        start = begun(carry[0], jax.random.fold_in(rounds, number))
        num_steps = jnp.where(number < _ROUNDS, _MAX_STEPS, 0)  # the last round only finds the coordinates
        return latent.rewritten(_down(latent, start, potential, num_steps), start.centerings, plain), start

    vector = _near(latent, observed, target, plain, near)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(begun, vector, key))
    _, start = fori_loop(0, _ROUNDS + 1, improved, (vector, nothing))
    to_sample = {name: Centering(start.centerings[name].kept) for name in plain}
    return Start(observed, to_sample, start.origin, start.spread, start.log_volume)


def minimized(
    function: Callable[[jax.Array], jax.Array],
    first: jax.Array,
    left: Callable[[jax.Array, jax.Array], jax.Array],
    num_steps: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where L-BFGS brings ``left(place, slope)`` to 1, or ends; the slope there and the steps it took."""
    solver: Any = optax.lbfgs(memory_size=10)
    value_and_grad = optax.value_and_grad_from_state(function)

    def goes_on(state: Any) -> jax.Array:
        place, _, slope, moved, step = state
        return (left(place, slope) > 1) & (moved > 0) & (step < num_steps)

    def advance(state: Any) -> Any:
        place, memory, _, _, step = state
        value, slope = value_and_grad(place, state=memory)
        change, memory = solver.update(slope, memory, place, value=value, grad=slope, value_fn=function)
        new: Any = optax.apply_updates(place, change)
        after: Any = optax.tree.get(memory, "grad")
        is_fine = jnp.isfinite(optax.tree.get(memory, "value")) & jnp.isfinite(after).all()
        return jnp.where(is_fine, new, place), memory, after, jnp.where(is_fine, jnp.abs(change).max(), 0.0), step + 1

    begun = (first, solver.init(first), jax.grad(function)(first), jnp.asarray(jnp.inf, first.dtype), 0)
    place, _, slope, _, steps = while_loop(goes_on, advance, begun)
    return place, slope, steps


def _near(latent: Latent, observed: Observed, target: Any, centerings: Centerings, key: jax.Array) -> jax.Array:
    """A latent vector whose cells differ from ``target`` by about as much as noise does, [size].

    From the prior's medians, the squared distance to the target in units of each cell's noise plus minus the log prior is made
    smaller until the distance is what noise explains (Morozov's discrepancy principle). Positive cells are mostly exponentials of
    something, and a square has no slope where these are far below their target: there it is a divergence of the same curvature.
    """
    weight = information(observed)
    informed = jnp.maximum((weight > 0).sum(), 1)
    first = jnp.asarray(latent.typical(key, centerings), weight.dtype)
    is_positive = (latent.values(first, centerings)[CELLS] > 0).all()
    least = 0.5 / jnp.sqrt(jnp.where(weight > 0, weight, 1.0))
    aim = jnp.maximum(target, least)

    def misfit(cells: jax.Array) -> jax.Array:
        return 0.5 * (weight * jnp.square(observed.possible(cells) - target)).sum()

    def divergence(cells: jax.Array) -> jax.Array:
        ratio = jnp.maximum(cells / aim, jnp.finfo(cells.dtype).tiny)
        return (weight * jnp.square(aim) * (ratio - 1 - jnp.log(ratio))).sum()

    largest = max(prod(shape) for _, shape in latent.shapes)
    moves = jnp.concatenate([jnp.full(prod(shape), _FEW * prod(shape) >= largest) for _, shape in latent.shapes])

    def objective(vector: jax.Array) -> jax.Array:
        vector = jnp.where(moves, vector, jax.lax.stop_gradient(vector))
        return latent.potential(
            vector,
            centerings,
            lambda cells: -jnp.where(is_positive, divergence(jnp.where(is_positive, cells, 1.0)), misfit(cells)),
        )

    def left(vector: jax.Array, _: jax.Array) -> jax.Array:
        return misfit(latent.values(vector, centerings)[CELLS]) / (0.5 * informed)

    return minimized(objective, first, left, _MAX_STEPS)[0]


def _down(latent: Latent, start: Start, typical: jax.Array, num_steps: jax.Array) -> jax.Array:
    """A latent vector that is as likely as a draw, [size]: both the values, given it, and by the prior, of ``typical`` potential.

    A mode would be far from where draws are: of many numbers at once it has none that deviate.
    """

    def potential(u: jax.Array) -> jax.Array:
        return start.potential(latent, u, smooth=True)

    def left(u: jax.Array, _: jax.Array) -> jax.Array:
        prior = latent.potential(start.vector(u), start.centerings, lambda _: jnp.zeros(()))
        missed = start.observed.units(start.values(latent, u)[CELLS])
        far = (jnp.sqrt(1 + missed * missed) - 1).sum() / (0.5 * jnp.maximum((missed != 0).sum(), 1))
        return jnp.maximum(far, 1 + (prior - typical) / latent.size**0.5)

    return start.vector(minimized(potential, jnp.zeros_like(start.origin), left, num_steps)[0])


def _centered(latent: Latent, observed: Observed, vector: jax.Array, plain: Centerings, key: jax.Array) -> Centerings:
    """How to write the normal sites, of which ``vector`` has standard normal numbers, whose prior has information 1."""
    told = latent.sites(_information(latent, observed, vector, plain, key))
    return {name: Centering(told[decentered(name)] / (_CLEARLY + told[decentered(name)]), plain=True) for name in plain}


def _spread(
    latent: Latent, observed: Observed, origin: jax.Array, centerings: Centerings, key: jax.Array, dense: bool
) -> tuple[jax.Array, jax.Array]:
    """A root of the inverse of the curvature, its sign dropped where it is negative, and the logarithm of the root's determinant.

    If not ``dense``, of the curvature's diagonal.
    """

    def potential(vector: jax.Array) -> jax.Array:
        return latent.potential(vector, centerings, _likelihood(observed, smooth=True))

    if not dense:
        first, second = jax.random.split(key)
        prior = _diagonal(lambda vector: latent.potential(vector, centerings, lambda _: jnp.zeros(())), origin, first)
        lengths = _lengths(jnp.maximum(prior, 0.0) + _information(latent, observed, origin, centerings, second))
        return lengths, jnp.log(lengths).sum()
    curvature = jax.lax.map(_product(potential, origin), jnp.eye(latent.size, dtype=origin.dtype))
    values, vectors = jnp.linalg.eigh(jnp.where(jnp.isfinite(curvature), (curvature + curvature.T) / 2, 0.0))
    lengths = _lengths(jnp.abs(values))
    return vectors * lengths[None, :], jnp.log(lengths).sum()


def _likelihood(observed: Observed, smooth: bool) -> Callable[[jax.Array], jax.Array]:
    return lambda cells: observed.log_likelihood(observed.possible(cells), smooth=smooth)


def _product(function: Callable[[jax.Array], jax.Array], place: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """The Hessian times a vector."""
    return lambda probe: jax.jvp(jax.grad(function), (place,), (probe,))[1]


def _information(latent: Latent, observed: Observed, origin: jax.Array, centerings: Centerings, key: jax.Array) -> jax.Array:
    """About the Fisher information of each latent number, [size]: squares of random combinations of the rows' derivatives."""

    def units(vector: jax.Array) -> jax.Array:
        return observed.units(observed.possible(latent.values(vector, centerings)[CELLS]))

    rows, back = jax.vjp(units, origin)
    probes = jax.random.rademacher(key, (_PROBES, *rows.shape), rows.dtype)
    found = jax.lax.map(lambda probe: jnp.square(back(probe)[0]), probes).mean(axis=0)
    return jnp.where(jnp.isfinite(found), found, 0.0)


def _diagonal(function: Callable[[jax.Array], jax.Array], place: jax.Array, key: jax.Array) -> jax.Array:
    """About the Hessian's diagonal, [size], from products with random signs (Hutchinson)."""
    probes = jax.random.rademacher(key, (_PROBES, place.shape[0]), place.dtype)
    product = _product(function, place)
    found = jax.lax.map(lambda probe: probe * product(probe), probes).mean(axis=0)
    return jnp.where(jnp.isfinite(found), found, 0.0)


def _lengths(curvature: jax.Array) -> jax.Array:
    """1 / sqrt(curvature), 1 where there is none."""
    is_known = (curvature > jnp.finfo(curvature.dtype).tiny) & jnp.isfinite(curvature)
    return jnp.where(is_known, 1 / jnp.sqrt(jnp.where(is_known, curvature, 1.0)), 1.0)
