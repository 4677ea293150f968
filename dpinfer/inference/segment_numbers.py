"""The best bins of consecutive cells for each number of bins up to a given one.

By rows, one for each number: best_k(i) = min over j of best_{k-1}(j) + the cost of the cells j to i - 1. A cut j that is no
better than one bin less, best_{k-1}(j) + cost(j, i) >= best_{k-1}(i), never is again, whichever cells follow, since cutting at i
as well costs no more: it is dropped for good. Only the table of best_k is kept; the cuts are found again on the way back.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from dpinfer._loops import AT_ONCE, fori_loop, read, scan, while_loop, write
from dpinfer.inference.segment_deviations import Deviations, deviations
from dpinfer.inference.segment_squares import running_sums
from dpinfer.inference.segmented import by_rows


def _table_by_scan(bins: Any, whole: jax.Array, num_bins: int) -> jax.Array:
    """The least costs of the first i cells in k + 1 bins, [num_bins, n + 1]."""
    n, dtype = whole.shape[0] - 1, whole.dtype
    zero, infinity = jnp.int32(0), jnp.asarray(jnp.inf, dtype)
    nothing = [(zero, zero)] * AT_ONCE

    def written(cuts: jax.Array, found: Any) -> jax.Array:
        for place, cut in found:
            cuts = write(cuts, place, cut)
        return cuts

    def row(k: jax.Array, carry: Any) -> Any:
        table, before = carry
        starts = bins.starts(before)

        # As in ``segment_squares``: a list of cuts from place 1 on, and what a step finds is written by the next.
        def cell(i: jax.Array, carry: Any) -> Any:
            costs, cuts, kept, found, low = carry
            costs, cuts = write(costs, i - 1, low), written(cuts, found)
            cuts = write(cuts, kept + 1, i - 1)
            count, bar = kept + 1, read(before, i)

            def look(carry: Any) -> Any:
                at, kept, found, cuts, low = carry
                cuts = written(cuts, found)
                several, found = [read(cuts, at + ahead) for ahead in range(AT_ONCE)], []
                for ahead, j in enumerate(several):
                    cost = bins.total(starts, j, i)
                    cost = jnp.where(at + ahead <= count, cost, infinity) if ahead else cost
                    keeps = cost < bar
                    kept = kept + keeps
                    found.append((jnp.where(keeps, kept, 0), j))
                    low = jnp.minimum(low, cost)
                return at + AT_ONCE, kept, found, cuts, low

            start = (jnp.int32(1), zero, nothing, cuts, infinity)
            _, kept, found, cuts, low = while_loop(lambda carry: carry[0] <= count, look, start)
            return costs, cuts, kept, found, low

        start = (jnp.full(n + 1, jnp.inf, dtype), jnp.zeros(n + 1 + AT_ONCE, jnp.int32), zero, nothing, infinity)
        found = fori_loop(k + 1, jnp.int32(n + 1), cell, start)
        costs = write(found[0], n, found[-1])
        return table.at[k].set(costs), costs

    table = jnp.full((num_bins, n + 1), jnp.inf, dtype).at[0].set(whole)
    return fori_loop(jnp.int32(1), jnp.int32(num_bins), row, (table, whole))[0]


def _table_at_once(bins: Any, whole: jax.Array, num_bins: int) -> jax.Array:
    ends = jnp.arange(whole.shape[0], dtype=jnp.int32)

    def row(before: jax.Array, _: Any) -> Any:
        def cell(i: jax.Array) -> jax.Array:
            return jnp.where(
                ends[:-1] < i, before[:-1] + bins.cost(jnp.minimum(ends[:-1], jnp.maximum(i - 1, 0)), i), jnp.inf
            ).min()

        costs = jax.vmap(cell)(ends)
        return costs, costs

    return jnp.concatenate([whole[None], scan(row, whole, jnp.zeros(num_bins - 1))[1]])


def _in_one(bins: Any, n: int, dtype: Any) -> jax.Array:
    """The costs of the first i cells in one bin, [n + 1]; infinite for none."""
    ends = jnp.arange(1, n + 1, dtype=jnp.int32)
    return jnp.concatenate([jnp.full(1, jnp.inf, dtype), jax.vmap(lambda i: bins.cost(jnp.int32(0), i))(ends)])


@partial(jax.jit, static_argnums=1, static_argnames="at_once")
def least_costs(costs: jax.Array, num_bins: int, *, at_once: bool = False) -> jax.Array:
    """The least costs of the first i cells in 1 to ``num_bins`` bins, [num_bins, n + 1], from those of bins, [n + 1, n].

    These are as in :class:`Deviations`; two bins together cost no more than the one of all of their cells. ``at_once`` is for
    devices other than CPUs.
    """
    bins = Deviations(costs)
    return (_table_at_once if at_once else _table_by_scan)(bins, _in_one(bins, costs.shape[1], costs.dtype), num_bins)


@lru_cache(maxsize=64)
def begins_of_number(is_l1: bool, num_bins: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A function of (values [n], weights or None).

    It returns where the best ``num_bins`` bins begin, bool [n], and the least costs of 1 to ``num_bins`` bins, [num_bins].
    """

    def found(values: jax.Array, weights: jax.Array | None, by: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
        bins = (deviations if is_l1 else running_sums)(values, weights)
        n = values.shape[0]
        ends = jnp.arange(1, n + 1, dtype=jnp.int32)
        table = by(bins, _in_one(bins, n, values.dtype), num_bins)

        def back(carry: Any, before: jax.Array) -> Any:
            i, begins = carry
            costs = jnp.where(ends <= i, before[:-1] + bins.cost(jnp.minimum(ends - 1, i - 1), i), jnp.inf)
            j = costs.argmin().astype(jnp.int32)
            return (j, begins.at[j].set(True)), None

        begins = jnp.zeros(n, bool).at[0].set(True)
        (_, begins), _ = scan(back, (jnp.int32(n), begins), table[:-1], reverse=True)
        return begins, jnp.maximum(table[:, n], 0)

    return by_rows(
        lambda values, weights: found(values, weights, _table_by_scan),
        lambda values, weights: found(values, weights, _table_at_once),
    )
