"""Fits of runs of a vector: a scan where one core walks along it, whole arrays at once where there are thousands."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from dpinfer._loops import varying_as

Fit = Callable[..., Any]


def segmented(by_scan: Fit, at_once: Fit) -> Fit:
    """A function of (values [n], weights [n] or None, starts [n] or None) that runs ``by_scan`` on a CPU, elsewhere ``at_once``.

    Both must compute the same. ``starts`` marks where a segment begins that is fitted by itself. A batch is solved row by row
    on a CPU (``jax.vmap`` of a loop would step every row until the slowest ends, and copy the arrays of all at every step), and
    elsewhere as one long vector of segments.
    """

    @custom_vmap
    def fit(values: jax.Array, weights: jax.Array | None, starts: jax.Array | None) -> Any:
        return _by_platform(by_scan, at_once, values, weights, starts)

    @fit.def_vmap
    def _(axis_size: int, in_batched: Any, *given: Any) -> Any:
        found = _by_platform(partial(_row_by_row, fit, in_batched), partial(_as_segments, fit, axis_size, in_batched), *given)
        return found, jax.tree.map(lambda _: True, found)

    return fit


def by_rows(by_scan: Fit, at_once: Fit) -> Fit:
    """A function that runs ``by_scan`` on a CPU, a batch row by row, and elsewhere ``at_once``, a batch by ``jax.vmap``.

    Both must compute the same, of any arrays (None among them).
    """

    @custom_vmap
    def fit(*given: Any) -> Any:
        return _by_platform(by_scan, at_once, *given)

    @fit.def_vmap
    def _(axis_size: int, in_batched: Any, *given: Any) -> Any:
        del axis_size
        found = _by_platform(partial(_row_by_row, fit, in_batched), jax.vmap(at_once, _axes(in_batched)), *given)
        return found, jax.tree.map(lambda _: True, found)

    return fit


def in_turn(one_by_one: Fit, at_once: Fit) -> Fit:
    """``at_once``, but that a CPU does a batch of it row by row, each by ``one_by_one``, such that a row stays in its cache.

    Both must compute the same. Derivatives are those of ``at_once``, of batches too.
    """
    rows = by_rows(one_by_one, at_once)

    @custom_vmap
    def fit(*given: Any) -> Any:
        return at_once(*given)

    @fit.def_vmap
    def _(axis_size: int, in_batched: Any, *given: Any) -> Any:
        del axis_size
        found = jax.vmap(rows, _axes(in_batched))(*given)
        return found, jax.tree.map(lambda _: True, found)

    @jax.custom_jvp
    def derivable(*given: Any) -> Any:
        return fit(*given)

    def derive(primals: Any, tangents: Any) -> Any:
        flat, structure = jax.tree.flatten(primals)
        changes = jax.tree.leaves(tangents, is_leaf=lambda x: isinstance(x, SymbolicZero))
        moves = [not isinstance(change, SymbolicZero) for change in changes]

        def of_moving(moving: list[jax.Array]) -> Any:
            return at_once(*_merged(structure, flat, moves, moving))

        return jax.jvp(of_moving, (_those(flat, moves),), (_those(changes, moves),))

    derivable.defjvp(derive, symbolic_zeros=True)
    return derivable


def _by_platform(on_cpu: Fit, elsewhere: Fit, *given: Any) -> Any:
    if on_cpu is elsewhere:
        return on_cpu(*given)
    branches = [lambda *args, run=run: varying_as(run(*args), args) for run in (on_cpu, elsewhere)]
    return lax.platform_dependent(*given, cpu=branches[0], default=branches[1])


def _row_by_row(fit: Fit, in_batched: Any, *given: Any) -> Any:
    flat, structure = jax.tree.flatten(given)
    are_batched = jax.tree.leaves(in_batched)
    return lax.map(lambda row: fit(*_merged(structure, flat, are_batched, row)), _those(flat, are_batched))


def _as_segments(fit: Fit, axis_size: int, in_batched: Any, *given: Any) -> Any:
    flat, structure = jax.tree.flatten(given)
    are_batched = jax.tree.leaves(in_batched)
    rows = [x if b else jnp.broadcast_to(x, (axis_size, *x.shape)) for x, b in zip(flat, are_batched, strict=True)]
    values, weights, starts = jax.tree.unflatten(structure, rows)
    begins = jnp.zeros(values.shape, bool) if starts is None else starts
    begins = begins.at[:, :1].set(True)
    found = fit(values.reshape(-1), None if weights is None else weights.reshape(-1), begins.reshape(-1))
    return jax.tree.map(lambda x: x.reshape(values.shape), found)


def _axes(in_batched: Any) -> Any:
    return jax.tree.map(lambda is_batched: 0 if is_batched else None, in_batched)


def _those(flat: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    return [x for x, is_chosen in zip(flat, chosen, strict=True) if is_chosen]


def _merged(structure: Any, flat: Sequence[Any], chosen: Sequence[bool], others: Sequence[Any]) -> Any:
    """``flat`` as ``structure``, with ``others`` in place of those chosen."""
    rest = iter(others)
    return jax.tree.unflatten(structure, [next(rest) if is_chosen else x for x, is_chosen in zip(flat, chosen, strict=True)])
