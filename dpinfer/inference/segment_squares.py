"""The best bins of consecutive cells in squares: where each begins.

The cost of the cells j to i - 1 as one bin comes from three running sums, those of the weights, of the values and of their
squares. A cut never raises the cost, so that a last cut j which is no better now than one at the cell before never is again:
it is dropped for good, for a price a bin (Killick, Fearnhead and Eckley 2012, "Optimal detection of changepoints with a linear
computational cost"). Where few are dropped so, as on alternating cells, those are that are the best for no mean of the last bin
(Maidstone, Hocking, Rigaill and Fearnhead 2017, "On optimal multiple changepoint algorithms for large data", section 4).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpinfer._loops import AT_ONCE, fori_loop, read, scan, while_loop, write
from dpinfer.inference.segmented import by_rows

# Cuts looked at for each cell, on average, after which the other way of dropping them takes over.
_MOST_LOOKS = 24


class Sums(NamedTuple):
    """Running sums, [n + 1] each, from 0 on; ``masses`` is None where every weight is 1."""

    masses: jax.Array | None
    sums: jax.Array
    squares: jax.Array

    def mass(self, j: Any, i: Any) -> Any:
        return (i - j).astype(self.sums.dtype) if self.masses is None else read(self.masses, i) - read(self.masses, j)

    def fitted(self, j: Any, i: Any) -> Any:
        """By how much the mean of the cells j to i - 1 lowers their sum of squares; j and i may be arrays."""
        total = read(self.sums, i) - read(self.sums, j)
        mass = self.mass(j, i)
        return total * total / (mass if self.masses is None else jnp.where(mass > 0, mass, 1))

    def cost(self, j: Any, i: Any) -> Any:
        """Of the cells j to i - 1 in one bin."""
        return read(self.squares, i) - read(self.squares, j) - self.fitted(j, i)

    def starts(self, best: jax.Array) -> jax.Array:
        """Of the least costs before each cut, [n + 1], what :meth:`total` takes: a loop that reads fewer arrays is faster."""
        return best - self.squares

    def total(self, starts: jax.Array, j: Any, i: Any) -> Any:
        """The least cost before the cut j, and that of the cells j to i - 1 in one bin."""
        return read(starts, j) + read(self.squares, i) - self.fitted(j, i)


def running_sums(values: jax.Array, weights: jax.Array | None) -> Sums:
    # An offset common to all costs no digits. It is one of the values: their mean would not be subtracted exactly, and XLA may
    # subtract it in another way from the values whose squares are added up.
    values = values - jnp.maximum(values.min(), 0) - jnp.minimum(values.max(), 0)

    def running(x: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.zeros(1, values.dtype), jnp.cumsum(x)])

    if weights is None:
        return Sums(None, running(values), running(values * values))
    return Sums(running(weights), running(weights * values), running(weights * values * values))


def begins_of(last: jax.Array) -> jax.Array:
    """Where bins begin, [n], of the last cut before each end, [n + 1]."""
    n = last.shape[0] - 1

    def step(carry: Any) -> Any:
        i, begins = carry
        begin = read(last, i)
        return begin, write(begins, begin, True)

    return while_loop(lambda carry: carry[0] > 0, step, (jnp.int32(n), jnp.zeros(n, bool)))[1]


def _penalized_by_scan(values: jax.Array, weights: jax.Array | None, penalty: jax.Array) -> jax.Array:
    sums = running_sums(values, weights)
    last, is_done = _by_pruning(sums, penalty)
    return begins_of(lax.cond(is_done, lambda: last, lambda: _by_functions(sums, penalty)))


def _by_pruning(sums: Sums, penalty: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The last cut of the best bins up to each cell, [n + 1], and whether it did not take too long."""
    n, dtype = sums.sums.shape[0] - 1, sums.sums.dtype
    zero, most = jnp.int32(0), jnp.int32(min(_MOST_LOOKS * n + 1000, 2**31 - 2 * n - 2))

    # Lists of cuts and of what they cost at the cell before begin at place 1; to place 0 goes what is dropped. Each step writes
    # first what the one before has found (``write``): places, cuts and their costs.
    nothing = [(zero, zero, jnp.zeros((), dtype))] * AT_ONCE

    def written(cuts: jax.Array, costs: jax.Array, found: Any) -> tuple[jax.Array, jax.Array]:
        for place, cut, cost in found:
            cuts, costs = write(cuts, place, cut), write(costs, place, cost)
        return cuts, costs

    def cell(carry: Any) -> Any:
        i, starts, last, cuts, costs, kept, found, least, arg, looks = carry
        starts, last = write(starts, i - 1, least - read(sums.squares, i - 1)), write(last, i - 1, arg)
        cuts, costs = written(cuts, costs, [*found, (kept + 1, i - 1, -jnp.inf)])
        count = kept + 1

        def look(carry: Any) -> Any:
            at, kept, found, cuts, costs, low, arg = carry
            cuts, costs = written(cuts, costs, found)
            several, found = [(read(cuts, at + ahead), read(costs, at + ahead)) for ahead in range(AT_ONCE)], []
            for ahead, (j, before) in enumerate(several):
                keeps = (before < least) & (at + ahead <= count) if ahead else before < least
                cost = jnp.where(keeps, sums.total(starts, j, i), jnp.inf)
                kept = kept + keeps
                found.append((jnp.where(keeps, kept, 0), j, cost))
                low, arg = jnp.minimum(low, cost), jnp.where(cost < low, j, arg)
            return at + AT_ONCE, kept, found, cuts, costs, low, arg

        start = (jnp.int32(1), zero, nothing, cuts, costs, jnp.asarray(jnp.inf, dtype), zero)
        _, kept, found, cuts, costs, low, arg = while_loop(lambda carry: carry[0] <= count, look, start)
        return i + 1, starts, last, cuts, costs, kept, found, low + penalty, arg, looks + count

    empty, places = jnp.zeros(n + 1, dtype), jnp.zeros(n + 1, jnp.int32)
    lists = jnp.zeros(n + 1 + AT_ONCE, jnp.int32), jnp.zeros(n + 1 + AT_ONCE, dtype)
    start = (jnp.int32(1), empty, places, *lists, zero, nothing, jnp.zeros((), dtype), zero, zero)
    found = while_loop(lambda carry: (carry[0] <= n) & (carry[-1] < most), cell, start)
    return write(found[2], found[0] - 1, found[-2]), found[0] > n


def _by_functions(sums: Sums, penalty: jax.Array) -> jax.Array:
    """The same, by the least cost as a function of the last bin's mean: pieces, each from the best cut there.

    Up to cell i, cut j costs best_j + penalty + sum over the cells since of w (x - mean)^2. Against a new cut, which costs
    best_i + penalty whatever the mean, it keeps an interval about its own best mean.
    """
    n, dtype = sums.sums.shape[0] - 1, sums.sums.dtype
    zero, infinity = jnp.int32(0), jnp.asarray(jnp.inf, dtype)
    # A queue in a ring: two quadratics cross at most twice, so that n of them have at most 2 n - 1 pieces.
    size = 4 * n + 8

    def after(place: Any, step: Any) -> Any:
        moved = place + step
        return jnp.where(moved >= size, moved - size, moved)

    def cell(i: Any, carry: Any) -> Any:
        best, last, cuts, rights, head, count, tail, one, two, least, arg = carry
        best, last = write(best, i - 1, least), write(last, i - 1, arg)
        new = i - 1

        def piece(carry: Any) -> Any:
            left, cuts, rights, head, done, tail, edge, one, two, low, arg = carry
            # What the piece before has left of itself: the new cut up to a mean, then itself.
            cuts, rights = write(cuts, tail, one[0]), write(rights, tail, one[1])
            tail = after(tail, one[2])
            cuts, rights = write(cuts, tail, two[0]), write(rights, tail, two[1])
            tail = after(tail, two[2])
            j, right = read(cuts, head), read(rights, head)
            mass = sums.mass(j, new)
            slack = least - read(best, j) - sums.cost(j, new)
            middle = (read(sums.sums, new) - read(sums.sums, j)) / jnp.where(mass > 0, mass, 1)
            reach = jnp.where(mass > 0, jnp.sqrt(jnp.maximum(slack, 0) / jnp.where(mass > 0, mass, 1)), infinity)
            begin = jnp.maximum(left, middle - reach)
            end = jnp.minimum(right, middle + reach)
            stays = (slack > 0) & (begin < end)
            gap = stays & (begin > edge)
            cost = jnp.where(stays, read(best, j) + sums.cost(j, i), infinity)
            one = new, begin, gap.astype(jnp.int32)
            two = j, end, stays.astype(jnp.int32)
            edge = jnp.where(stays, end, edge)
            low, arg = jnp.minimum(low, cost), jnp.where(cost < low, j, arg)
            return right, cuts, rights, after(head, 1), done + 1, tail, edge, one, two, low, arg

        # The new cut by itself is a bin of one cell.
        alone = least + sums.cost(new, i)
        start = (-infinity, cuts, rights, head, zero, tail, -infinity, one, two, alone, new)
        _, cuts, rights, head, _, tail, edge, one, two, low, arg = while_loop(lambda c: c[4] < count, piece, start)
        cuts, rights = write(cuts, tail, one[0]), write(rights, tail, one[1])
        tail = after(tail, one[2])
        cuts, rights = write(cuts, tail, two[0]), write(rights, tail, two[1])
        tail = after(tail, two[2])
        opens = (edge < infinity).astype(jnp.int32)
        held = tail - head + jnp.where(tail < head, size, 0) + opens
        nothing = (zero, infinity, zero)
        return best, last, cuts, rights, head, held, tail, (new, infinity, opens), nothing, low + penalty, arg

    nothing = (zero, infinity, zero)
    start = (
        jnp.zeros(n + 1, dtype),
        jnp.zeros(n + 1, jnp.int32),
        jnp.zeros(size, jnp.int32),
        jnp.zeros(size, dtype),
        zero,
        zero,
        zero,
        nothing,
        nothing,
        jnp.zeros((), dtype),
        zero,
    )
    found = fori_loop(jnp.int32(1), jnp.int32(n + 1), cell, start)
    return write(found[1], n, found[-1])


def _penalized_at_once(values: jax.Array, weights: jax.Array | None, penalty: jax.Array) -> jax.Array:
    sums = running_sums(values, weights)
    n, place = values.shape[0], jnp.arange(values.shape[0], dtype=jnp.int32)

    def cell(best: jax.Array, i: jax.Array) -> Any:
        costs = jnp.where(place < i, best + sums.cost(jnp.minimum(place, i - 1), i), jnp.inf)
        cut = costs.argmin().astype(jnp.int32)
        return best.at[i].set(costs[cut] + penalty, mode="drop"), cut

    last = scan(cell, jnp.zeros(n, values.dtype), jnp.arange(1, n + 1, dtype=jnp.int32))[1]
    return begins_of(jnp.concatenate([jnp.zeros(1, jnp.int32), last]))


# (values [n], weights or None, penalty) -> bool [n], where the bins of least cost + penalty x bins begin.
penalized_begins = by_rows(_penalized_by_scan, _penalized_at_once)
