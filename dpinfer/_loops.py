"""JAX's loops, such that they also run inside ``jax.shard_map``.

There a value that differs between devices has another type than one that does not. A carry that starts as a constant and becomes
such a value would change its type, which JAX refuses; here it is cast beforehand.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# How many turns of a short loop make one step: XLA takes longer to begin a step than to do a few of them, but before jax 0.11
# compiles longer ones apart.
AT_ONCE = 2 if jax.__version_info__ >= (0, 11) else 1


def while_loop(goes_on: Callable[[Any], Any], step: Callable[[Any], Any], start: Any) -> Any:
    """``jax.lax.while_loop``."""
    return lax.while_loop(goes_on, step, _as_carried(step, start))


def fori_loop(first: Any, last: Any, step: Callable[[Any, Any], Any], start: Any) -> Any:
    """``jax.lax.fori_loop``."""
    return lax.fori_loop(first, last, step, _as_carried(lambda carry: step(jnp.asarray(first), carry), start))


def scan(step: Callable[[Any, Any], Any], start: Any, xs: Any, *, reverse: bool = False) -> Any:
    """``jax.lax.scan``."""
    if all(x.shape[0] for x in jax.tree.leaves(xs)):
        start = _as_carried(lambda carry: step(carry, jax.tree.map(lambda x: x[0], xs))[0], start)
    return lax.scan(step, start, xs, reverse=reverse)


def _as_carried(step: Callable[[Any], Any], start: Any) -> Any:
    """``start`` with the types that ``step`` gives it."""
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return start
    leaves, structure = jax.tree.flatten(start)
    for _ in range(len(leaves) + 1):  # one value that varies may make another vary in the next round
        after = jax.tree.leaves(jax.eval_shape(step, jax.tree.unflatten(structure, leaves)))
        missing = [_varying(new) - _varying(jax.typeof(old)) for old, new in zip(leaves, after, strict=True)]
        if not any(missing):
            break
        leaves = [lax.pcast(x, tuple(axes), to="varying") if axes else x for x, axes in zip(leaves, missing, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def varying_as(tree: Any, given: Any) -> Any:
    """``tree`` with all of its leaves of the type of those that differ between devices, if a leaf of ``given`` does."""
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    axes = frozenset().union(*(_varying(jax.typeof(x)) for x in jax.tree.leaves(given)))

    def cast(x: Any) -> Any:
        missing = axes - _varying(jax.typeof(x))
        return lax.pcast(x, tuple(missing), to="varying") if missing else x

    return jax.tree.map(cast, tree)


def _varying(aval: Any) -> frozenset[str]:
    return frozenset(getattr(getattr(aval, "manual_axis_type", None), "varying", ()))


def read(array: jax.Array, place: Any) -> jax.Array:
    """One entry; the place is known to be inside."""
    return array.at[place].get(mode="promise_in_bounds")


def write(array: jax.Array, place: Any, value: Any) -> jax.Array:
    """The array with one entry set; the place is known to be inside.

    In a loop XLA writes in place, but copies the whole array at every step where that also reads the old one, unless the reading
    is done by a loop within the step. So let a step write first, what the step before has carried over, and then read.
    """
    return array.at[place].set(value, mode="promise_in_bounds")
