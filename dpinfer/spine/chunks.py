"""Parts of a product that are estimated by themselves: all units below some neighbouring units of one level, the *cut*.

What a chunk says of the units of the cut is its message, a few kB a unit, from which everything above is estimated. On the way
up, units of the lowest level that lie in one unit, with the same variances and zeros, differ by their values alone, which are
added up as integers before anything else is done with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from dpinfer.spine.levels import build_level
from dpinfer.spine.passes import (
    Belief,
    Below,
    Estimate,
    Level,
    absorb,
    add_up,
    covariance_below,
    descend,
    gather,
    multipliers,
    nothing_below,
)
from dpinfer.spine.product import Product
from dpinfer.spine.supports import Supports
from dpinfer.spine.tree import Stage, down


class Range(NamedTuple):
    """The units of a chunk: their first and last + 1 places, of each level from the cut down."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]


@final
@dataclass(frozen=True)
class Plan:
    """Where a product is cut, and its chunks.

    Attributes:
        cut: the depth of the cut, above the lowest level.
        chunks: in order.
        at_once: units of the lowest level that are read at a time.
    """

    cut: int
    chunks: list[Range]
    at_once: int


def make_plan(product: Product, memory: int, cut: int | None) -> Plan:
    """The deepest cut and the largest chunks for which arrays stay within some bytes, as far as one can tell beforehand."""
    classes, lowest = product.classes, len(product.units) - 1
    square = classes.num_classes * classes.num_dense**2
    answers = sum(query.size for query in product.queries)
    # Of a unit of a level that is held as a whole: matrices and vectors of both passes, and values.
    unit = 8 * (8 * square + 6 * classes.schema.size + answers)
    if cut is None:
        sizes = np.cumsum([len(units) for units in product.units[:lowest]])
        cut = int(max(0, np.searchsorted(sizes * unit, memory // 3, side="right") - 1))
    bounds = _descendants(product, cut)
    groups = _leaf_groups(product)
    first = np.searchsorted(groups.parent, np.arange(len(product.units[lowest - 1]) + 1))
    # Of each unit of the cut: sums of values, and the levels between.
    inside = sum(np.diff(bounds[depth]) for depth in range(1, lowest - cut)) * unit if lowest - cut > 1 else 0
    own = np.diff(first[bounds[lowest - 1 - cut]]) * 8 * (answers + 3 * classes.schema.size) + inside
    leaves = np.diff(bounds[-1])
    # A chunk is at most of one unit of the second level, so that these can be estimated apart.
    part = np.arange(len(product.units[cut])) if cut == 1 else np.zeros(len(product.units[cut]), dtype=np.int64)
    if cut > 1:
        part = product.units[cut].parent
        for depth in range(cut - 1, 1, -1):
            part = product.units[depth].parent[part]
    chunks: list[Range] = []
    begin, size, many = 0, 0, 0
    for place in range(len(own) + 1):
        is_over = place < len(own) and (size + own[place] > memory // 3 or many + leaves[place] > _MOST_LEAVES)
        is_full = place > begin and (place == len(own) or is_over or part[place] != part[begin])
        if is_full:
            chunks.append(Range(tuple(int(b[begin]) for b in bounds), tuple(int(b[place]) for b in bounds)))
            begin, size, many = place, 0, 0
        if place < len(own):
            size, many = size + own[place], many + leaves[place]
    at_once = int(np.clip(memory // (8 * 4 * (answers + classes.schema.size)), 50, _AT_ONCE))
    return Plan(cut, chunks, at_once)


# Units of the lowest level in a chunk, and of those read at a time.
_MOST_LEAVES, _AT_ONCE = 40_000, 5_000


def _descendants(product: Product, cut: int) -> list[np.ndarray]:
    """For the cut and each level below, [units of the cut + 1]: where the descendants of each begin."""
    found = [np.arange(len(product.units[cut]) + 1)]
    for units in product.units[cut + 1 :]:
        found.append(np.searchsorted(units.parent, found[-1]))
    return found


class Groups(NamedTuple):
    """Units of the lowest level by parent, variances and zeros.

    Attributes:
        group: of each unit.
        parent, example, times: of each group its parent, one of its units, and how many it has.
    """

    group: np.ndarray
    parent: np.ndarray
    example: np.ndarray
    times: np.ndarray


def _leaf_groups(product: Product, start: int = 0, stop: int | None = None) -> Groups:
    units = product.units[-1]
    rows = slice(start, stop)
    kinds = np.concatenate([units.variances[rows], units.is_zero[rows]], axis=1)
    # Rows as bytes compare faster than column by column.
    kinds = np.ascontiguousarray(kinds).view(f"V{kinds.shape[1] * 8}")[:, 0]
    _, kind = np.unique(kinds, return_inverse=True)
    parent = units.parent[rows]
    pairs = parent * (int(kind.max(initial=0)) + 1) + kind
    _, first, group, count = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
    return Groups(group, parent[first], first + start, count)


@final
class Chunk:
    """The units below some units of the cut.

    Args:
        product: where the values are.
        supports: of the tree.
        plan: where it is cut.
        range: the chunk's units.
    """

    def __init__(self, product: Product, supports: Supports, plan: Plan, range: Range):
        self._product, self._supports, self._plan, self._range = product, supports, plan, range
        self.cut = slice(range.starts[0], range.stops[0])

    def __len__(self) -> int:
        """Units of the lowest level."""
        return self._range.stops[-1] - self._range.starts[-1]

    def span(self, depth: int) -> tuple[int, int]:
        """The first and last + 1 units of a level."""
        return self._range.starts[depth - self._plan.cut], self._range.stops[depth - self._plan.cut]

    def up(self) -> tuple[Below, list[Stage]]:
        """What the chunk says of the units of the cut, and its levels above the lowest, from below the cut down."""
        product, lowest = self._product, len(self._product.units) - 1
        level = self._leaf_sums()
        stages: list[Stage] = []
        below = nothing_below(self._supports.classes, level.size, len(product.queries))
        for depth in range(lowest, self._plan.cut, -1):
            if depth < lowest:
                level = whole_level(product, self._supports, depth, self.span(depth), self.span(depth - 1)[0])
            belief, passed = absorb(level, below, self._supports)
            if depth < lowest:
                stages.append(Stage(level, below, belief))
            first, last = self.span(depth - 1)
            below = gather(level, belief, passed, last - first, self._supports)
        return below, stages[::-1]

    def _leaf_sums(self) -> Level:
        product, (start, stop) = self._product, self.span(len(self._product.units) - 1)
        groups = _leaf_groups(product, start, stop)
        sums = [np.zeros((len(groups.parent), query.size), dtype=np.int64) for query in product.queries]
        for first in range(start, stop, self._plan.at_once):
            last = min(stop, first + self._plan.at_once)
            for number, (at, values) in enumerate(product.values(len(product.units) - 1, first, last)):
                if len(at):
                    used, place = np.unique(groups.group[at - start], return_inverse=True)
                    total = add_up(values, place, len(used))
                    if total.dtype.kind == "f" and sums[number].dtype.kind == "i":
                        sums[number] = sums[number].astype(float)
                    sums[number][used] += total
        units, above = product.units[-1], self.span(len(product.units) - 2)[0]
        variances = units.variances[groups.example].T
        rows = list(zip(product.queries, sums, variances, strict=True))
        return build_level(
            self._supports,
            groups.parent - above,
            np.arange(len(groups.parent)),
            rows,
            units.is_zero[groups.example],
            count=groups.times,
            names=_Names(units.packed[groups.example]),
        )

    def down(self, top: Estimate, below: Below, stages: Sequence[Stage]) -> list[Estimate]:
        """Estimates of the levels between the cut and the lowest, given those of the units of the cut."""
        if not stages:
            return []
        classes = self._supports.classes
        first = descend(classes, stages[0].level.parent, stages[0].belief, below, top)
        return down(stages, classes, first)

    def leaves(
        self, above: Estimate, below: Below, *, covariances: bool, dtype: Any, wanted: tuple[int, int] | None = None
    ) -> Iterator[tuple[tuple[int, int], Level, Estimate, Belief]]:
        """Estimates of the units of the lowest level, some at a time, given those above and what is said of these.

        Args:
            above: estimates of the level above, of the chunk.
            below: what all units of the lowest level say of it.
            covariances: whether covariances are wanted.
            dtype: of the arithmetic with values.
            wanted: the first and last + 1 unit; all of the chunk by default.
        """
        product, classes, lowest = self._product, self._supports.classes, len(self._product.units) - 1
        push, spread = multipliers(classes, below, above, covariances)
        start, stop = wanted if wanted is not None else self.span(lowest)
        offset = self.span(lowest - 1)[0]
        for first in range(start, stop, self._plan.at_once):
            last = min(stop, first + self._plan.at_once)
            level = whole_level(product, self._supports, lowest, (first, last), offset, dtype=dtype)
            heard = nothing_below(classes, level.size, len(product.queries))
            # With what the parents push, as if it were measured, the first pass gives the last estimate.
            belief, _ = absorb(level, heard._replace(vector=push[level.parent].astype(dtype)), self._supports)
            is_only = below.families[level.parent] == 1
            mean = belief.mean
            mean[is_only] = above.mean[level.parent[is_only]]
            covariance = above.covariance[:0]
            if covariances:
                covariance = covariance_below(level.parent, belief, below, above, spread)
            yield (first, last), level, Estimate(mean, covariance), belief


class _Names:
    """Codes for messages."""

    def __init__(self, codes: np.ndarray):
        self._codes = codes

    def __getitem__(self, place: int) -> str:
        return f"unit {self._codes[place].decode()!r}"


def whole_level(
    product: Product, supports: Supports, depth: int, span: tuple[int, int], above: int, dtype: Any = np.float64
) -> Level:
    """What the units of a level in a range say by themselves; ``above`` is where the level above begins."""
    start, stop = span
    units = product.units[depth]
    rows = []
    for number, (query, (at, values)) in enumerate(zip(product.queries, product.values(depth, start, stop), strict=True)):
        if len(at) == stop - start and (np.diff(at) == 1).all():
            whole = values
        else:
            whole = np.zeros((stop - start, query.size), values.dtype)
            whole[at - start] = values
        rows.append((query, whole, units.variances[start:stop, number]))
    own = np.arange(stop - start)
    parent = units.parent[start:stop] - above
    return build_level(
        supports, parent, own, rows, units.is_zero[start:stop], names=_Names(units.packed[start:stop]), dtype=dtype
    )
