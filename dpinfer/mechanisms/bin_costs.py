"""What bins cost, in whole numbers, so that choices by cost can be exact; and by how much a record changes it.

The cost of a segmentation is the sum of its bins' costs. One cell changed by 1 changes the cost of one of its bins:

- absolute deviations from the median by at most 1, since the old median is one of the values that the new one is the best of;
- squares about the mean, of counts from 0 to F, by at most (1 - 1 / s) (2 F - 1) for s cells. Rounded down to a whole number of
  units they still change by no more than the next whole number of units. Lemma 3 of Xu et al. 2013 has the looser 2 F + 1.

So does the least cost of any set of segmentations, which is what is compared. Cells beyond a public bound are moved to it for
the costs only, a map under which neighbours come no farther apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer.inference.segment_deviations import deviations, deviations_to
from dpinfer.mechanisms.joint_choice import MAX_COST

# Squares are counted in units of at least 2^-16.
_FINEST = 16
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class BinCosts:
    """Private: the costs of bins of private cells.

    Attributes:
        row: int64 [i], of the bins that end with cell i - 1, by the cell they begin with.
        table: all rows, float64 [n + 1, n] with whole numbers; infinite where there is no bin.
        change: by how many units one cell that is one more or less changes the cost of a segmentation.
    """

    row: Callable[[int], np.ndarray]
    table: Callable[[], jax.Array]
    change: int


def absolute_deviations(cells: np.ndarray) -> BinCosts:
    """Of private int64 cells; those beyond about 2^40 / n count as that."""
    n, most = cells.size, (MAX_COST - 1) // cells.size
    at_once = min(_ROWS_AT_ONCE, n)
    values = np.clip(cells, -most, most).astype(np.float64)
    kept: dict[int, np.ndarray] = {}

    def row(i: int) -> np.ndarray:
        block = (i - 1) // at_once
        if block not in kept:
            kept.clear()
            ends = np.minimum(np.arange(1, at_once + 1) + block * at_once, n)
            kept[block] = np.asarray(on_host(_deviation_rows, values, ends))
        return kept[block][(i - 1) % at_once, :i].astype(np.int64)

    return BinCosts(row, lambda: on_host(_deviation_table, values), largest_change(None))


def squares(cells: np.ndarray, max_count: int, *, is_paper: bool = False) -> BinCosts:
    """Of private int64 cells, moved into 0 to ``max_count``; with ``is_paper`` their change is taken as 2 max_count + 1.

    Raises:
        ValueError: if there are too many cells for so large a count.
    """
    n = cells.size
    if n * max_count >= 2**31:
        raise ValueError(f"max_count must be below 2**31 / {n} for so many cells, got {max_count}.")
    values = np.clip(cells, 0, max_count)
    sums, of_squares = (np.concatenate([[0], np.cumsum(x)]) for x in (values, values * values))
    # Whole segmentations cost at most n F^2 / 4.
    bits = min(_FINEST, (MAX_COST - 1).bit_length() - (n * max_count * max_count // 4 + 1).bit_length() - 1)

    def row(i: int) -> np.ndarray:
        size = i - np.arange(i)
        total = sums[i] - sums[:i]
        whole, rest = np.divmod(size * (of_squares[i] - of_squares[:i]) - total * total, size)
        return (whole << bits) + (rest << bits) // size if bits >= 0 else whole >> -bits

    def table() -> jax.Array:
        rows = np.full((n + 1, n), np.inf)
        for i in range(1, n + 1):
            rows[i, :i] = row(i)
        return on_host(jnp.asarray, rows)

    return BinCosts(row, table, math.ceil(largest_change(max_count, is_paper=is_paper) * Fraction(2) ** bits))


def largest_change(max_count: int | None, *, is_paper: bool = False) -> int:
    """By how much a record changes the deviations (no ``max_count``) or squares of a segmentation; or what the paper says."""
    if max_count is None:
        return 1
    return 2 * max_count + 1 if is_paper else 2 * max_count - 1


def host() -> Any:
    """Where the cells are, whatever other devices there are."""
    return jax.local_devices(backend="cpu")[0]


def on_host(program: Callable[..., jax.Array], *given: Any) -> jax.Array:
    with jax.default_device(host()):
        return program(*given)


@jax.jit
def _deviation_rows(values: jax.Array, ends: jax.Array) -> jax.Array:
    return jax.lax.map(partial(deviations_to, values), ends)


@jax.jit
def _deviation_table(values: jax.Array) -> jax.Array:
    return deviations(values, None).costs
