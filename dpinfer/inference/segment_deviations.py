"""Bins of consecutive cells in absolute deviations: what each costs, and where the best begin for a price a bin.

All n (n + 1) / 2 bins in O(n^2): for each end, the cells before it are taken away from the front, one after the other, from a
list in the order of their values, along which the median moves by few places. For a price a bin no table is needed: a median is a
value of a cell, and the least cost as a function of the last bin's value is kept at all of these.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpinfer._loops import fori_loop, read, scan, while_loop, write
from dpinfer.inference.segment_squares import begins_of
from dpinfer.inference.segmented import by_rows


class Deviations(NamedTuple):
    """What bins cost in weighted absolute deviations from their weighted median: [i, j] of the cells j to i - 1, [n + 1, n].

    ``medians`` are these, [n + 1, n]; None unless asked for.
    """

    costs: jax.Array
    medians: jax.Array | None = None

    def cost(self, j: Any, i: Any) -> Any:
        """Of the cells j to i - 1 in one bin; j may be an array."""
        return self.costs.at[i, j].get(mode="promise_in_bounds")

    def starts(self, best: jax.Array) -> jax.Array:
        """As :meth:`Sums.starts`."""
        return best

    def total(self, starts: jax.Array, j: Any, i: Any) -> Any:
        """As :meth:`Sums.total`."""
        return read(starts, j) + self.cost(j, i)


class _Ranked(NamedTuple):
    """Some of the cells in the order of their values: places 1 to n, each with the next and the one before that is still there.

    ``middle`` is the first place where the weight up to it is at least half; ``mass`` and ``sum`` are those up to it, ``masses``
    and ``sums`` those of all.
    """

    after: jax.Array
    before: jax.Array
    middle: jax.Array
    mass: jax.Array
    sum: jax.Array
    masses: jax.Array
    sums: jax.Array


class _Ends(NamedTuple):
    """How bins are gone through: all cells in the order of their values, the place of each and the value at each place.

    ``bins_to(i, part)`` gives the costs (and medians) of the bins that end with cell i - 1, [n] each over their beginnings, from
    the cells before i; ``shortened(i, part)`` is that part without cell i - 1.
    """

    whole: _Ranked
    places: jax.Array
    values: jax.Array
    bins_to: Callable[[jax.Array, _Ranked], tuple[jax.Array, ...]]
    shortened: Callable[[jax.Array, _Ranked], _Ranked]


def _ends(values: jax.Array, weights: jax.Array | None, with_medians: bool) -> _Ends:
    n, dtype = values.shape[0], values.dtype
    is_plain = weights is None
    weights = jnp.ones(n, dtype) if weights is None else weights
    center = jnp.median(values)
    values = values - center
    order = jnp.argsort(values)
    places = jnp.zeros(n, jnp.int32).at[order].set(jnp.arange(1, n + 1, dtype=jnp.int32))
    pad = jnp.zeros(1, dtype)
    values, weights = (jnp.concatenate([pad, x[order], pad]) for x in (values, weights))
    spare = jnp.int32(n + 2)  # where a step without effect writes

    def settled(state: _Ranked, once: bool = False) -> _Ranked:
        """With the median where it belongs; ``once``: which is at most one place away, as after a cell of weight 1 went."""

        def is_high(carry: Any) -> jax.Array:
            middle, mass, _ = carry
            return (read(state.before, middle) > 0) & (2 * (mass - read(weights, middle)) >= state.masses)

        def down(carry: Any) -> Any:
            middle, mass, total = carry
            weight = read(weights, middle)
            return read(state.before, middle), mass - weight, total - weight * read(values, middle)

        def is_low(carry: Any) -> jax.Array:
            middle, mass, _ = carry
            return (2 * mass < state.masses) & (read(state.after, middle) <= n)

        def up(carry: Any) -> Any:
            middle, mass, total = carry
            middle = read(state.after, middle)
            weight = read(weights, middle)
            return middle, mass + weight, total + weight * read(values, middle)

        carry = state.middle, state.mass, state.sum
        if once:
            ways = zip(down(carry), up(carry), carry, strict=True)
            moved = tuple(jnp.where(is_high(carry), x, jnp.where(is_low(carry), y, z)) for x, y, z in ways)
        else:
            moved = while_loop(is_low, up, while_loop(is_high, down, carry))
        return state._replace(middle=moved[0], mass=moved[1], sum=moved[2])

    def unlinked(state: _Ranked, left: jax.Array, right: jax.Array) -> _Ranked:
        return state._replace(after=write(state.after, left, right), before=write(state.before, right, left))

    def without(state: _Ranked, place: jax.Array, left: jax.Array, right: jax.Array) -> _Ranked:
        """The numbers without a cell whose neighbours are these; its links are left to :func:`unlinked`."""
        weight = read(weights, place)
        total = weight * read(values, place)
        is_below = place <= state.middle
        is_middle = place == state.middle
        mass = state.mass - jnp.where(is_below, weight, 0)
        part = state.sum - jnp.where(is_below, total, 0)
        # The median itself goes: the one before it takes its place, or the one after, which counts then.
        forward = is_middle & (left == 0)
        middle = jnp.where(is_middle, jnp.where(forward, right, left), state.middle)
        return state._replace(
            middle=middle,
            mass=mass + jnp.where(forward, read(weights, right), 0),
            sum=part + jnp.where(forward, read(weights, right) * read(values, right), 0),
            masses=state.masses - weight,
            sums=state.sums - total,
        )

    def bins_to(i: jax.Array, part: _Ranked) -> tuple[jax.Array, ...]:
        def begin(j: jax.Array, carry: Any) -> Any:
            rows, state, left, right = carry
            state = settled(unlinked(state, left, right), is_plain)
            value = read(values, state.middle)
            cost = state.sums - 2 * state.sum + value * (2 * state.mass - state.masses)
            found = [jnp.maximum(cost, 0)]
            if with_medians:
                # Where half lies on either side, the middle of the two.
                high = read(values, jnp.where(2 * state.mass == state.masses, read(state.after, state.middle), state.middle))
                found.append(value + (high - value) / 2 + center)
            rows = tuple(write(row, j, x) for row, x in zip(rows, found, strict=True))
            place = read(places, j)
            left, right = read(state.before, place), read(state.after, place)
            return rows, without(state, place, left, right), left, right

        rows = (jnp.full(n, jnp.inf, dtype),) * (2 if with_medians else 1)
        return fori_loop(jnp.int32(0), i, begin, (rows, settled(part), spare, spare))[0]

    def shortened(i: jax.Array, part: _Ranked) -> _Ranked:
        place = read(places, i - 1)
        left, right = read(part.before, place), read(part.after, place)
        return unlinked(without(part, place, left, right), left, right)

    line = jnp.arange(n + 3, dtype=jnp.int32)
    whole = _Ranked(line + 1, line - 1, jnp.int32(1), weights[1], weights[1] * values[1], weights.sum(), (weights * values).sum())
    return _Ends(whole, places, values, bins_to, shortened)


def deviations(values: jax.Array, weights: jax.Array | None, *, with_medians: bool = False) -> Deviations:
    """The cost of every bin. Memory 8 (n + 1) n bytes in 64 bit, twice that with medians."""
    n = values.shape[0]
    ends = _ends(values, weights, with_medians)

    def end(k: jax.Array, carry: Any) -> Any:
        tables, part = carry
        i = n - k
        rows = ends.bins_to(i, part)
        return tuple(table.at[i].set(row) for table, row in zip(tables, rows, strict=True)), ends.shortened(i, part)

    tables = (jnp.full((n + 1, n), jnp.inf, values.dtype),) * (2 if with_medians else 1)
    return Deviations(*fori_loop(jnp.int32(0), jnp.int32(n), end, (tables, ends.whole))[0])


def deviations_to(values: jax.Array, i: Any) -> jax.Array:
    """One row of :func:`deviations`: what the bins that end with cell i - 1 cost, [n], infinite from cell i on. Memory O(n)."""
    n = values.shape[0]
    ends = _ends(values, None, False)
    line = jnp.arange(n + 3, dtype=jnp.int32)
    is_kept = jnp.zeros(n + 3, bool).at[ends.places].set(jnp.arange(n) < i)
    # Of each place the next that is kept, and the one before.
    after = lax.cummin(jnp.where(is_kept, line, n + 1), reverse=True)
    before = lax.cummax(jnp.where(is_kept, line, 0))
    first, kept = after[0], is_kept.astype(values.dtype)
    part = _Ranked(
        jnp.append(after[1:], n + 3),
        jnp.concatenate([jnp.full(1, -1, jnp.int32), before[:-1]]),
        first,
        jnp.ones((), values.dtype),
        ends.values[first],
        kept.sum(),
        (kept[: n + 2] * ends.values).sum(),
    )
    return ends.bins_to(jnp.asarray(i, jnp.int32), part)[0]


def _penalized(values: jax.Array, weights: jax.Array | None, penalty: jax.Array) -> jax.Array:
    values = values - jnp.median(values)
    weights = jnp.ones_like(values) if weights is None else weights

    def cell(carry: Any, given: Any) -> Any:
        costs, cuts, least = carry
        i, value, weight = given
        opens = least < costs
        costs = jnp.where(opens, least, costs) + weight * jnp.abs(value - values)
        cuts = jnp.where(opens, i, cuts)
        best = costs.argmin()
        return (costs, cuts, costs[best] + penalty), cuts[best]

    n = values.shape[0]
    start = (jnp.full(n, jnp.inf, values.dtype), jnp.zeros(n, jnp.int32), jnp.zeros((), values.dtype))
    last = scan(cell, start, (jnp.arange(n, dtype=jnp.int32), values, weights))[1]
    return begins_of(jnp.concatenate([jnp.zeros(1, jnp.int32), last]))


# (values [n], weights or None, penalty) -> bool [n], where the bins of least cost + penalty x bins begin.
penalized_begins = by_rows(_penalized, _penalized)
