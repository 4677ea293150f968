"""Fits of runs of a vector: a scan where one core walks along it, whole arrays at once where there are thousands."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

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
        rows = _rows(axis_size, in_batched, given)
        found = _by_platform(partial(_row_by_row, fit), partial(_as_segments, fit), *rows)
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
        rows = _rows(axis_size, in_batched, given)
        found = _by_platform(partial(_row_by_row, fit), jax.vmap(at_once), *rows)
        return found, jax.tree.map(lambda _: True, found)

    return fit


def _rows(axis_size: int, in_batched: Any, given: Any) -> Any:
    """The arguments, each with a row for every problem."""
    flat, structure = jax.tree.flatten(given)
    are_batched = jax.tree.leaves(in_batched)
    rows = [x if b else jnp.broadcast_to(x, (axis_size, *x.shape)) for x, b in zip(flat, are_batched, strict=True)]
    return jax.tree.unflatten(structure, rows)


def _by_platform(on_cpu: Fit, elsewhere: Fit, *given: Any) -> Any:
    branches = [lambda *args, run=run: varying_as(run(*args), args) for run in (on_cpu, elsewhere)]
    return lax.platform_dependent(*given, cpu=branches[0], default=branches[1])


def _row_by_row(fit: Fit, *rows: Any) -> Any:
    return lax.map(lambda row: fit(*row), rows)


def _as_segments(fit: Fit, values: jax.Array, weights: jax.Array | None, starts: jax.Array | None) -> Any:
    begins = jnp.zeros(values.shape, bool) if starts is None else starts
    begins = begins.at[:, :1].set(True)
    found = fit(values.reshape(-1), None if weights is None else weights.reshape(-1), begins.reshape(-1))
    return jax.tree.map(lambda x: x.reshape(values.shape), found)
