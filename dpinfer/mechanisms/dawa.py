"""DAWA: buckets of neighbouring cells, chosen privately by noisy costs, and then the buckets' sums.

What it promises. Of the budget epsilon, ``partition_epsilon`` goes into the buckets and the rest into their sums; the two add
up. The sums are released by ``measure``, with a loss that is read off their matrix. The buckets are those of the least noisy
cost:

- The cost of an interval of cells is how much these deviate from their mean or median (``interval_costs``), and a price a
  bucket, a public number. Each interval on offer has noise N_I of its own, discrete Laplace of scale b_I, **the same wherever
  it is used**; the cost of a partition is the sum of its intervals' costs and noises. The least is found exactly, in integers.
- Let a record change one cell, let P be a partition and I its interval with this cell. Fix the noise of all other intervals.
  Among the partitions that use I, whether P is the best does not depend on the record, since no other interval of theirs holds
  the cell, nor on N_I, which all of them have. The partitions that do not use I cover the cell by some other interval J, whose
  cost may fall by D_J, the most that a record changes it, while the cost of I may rise by D_I. So wherever P was chosen with
  the noise v in I, it still is with v - D_I - max D, for the other cells: both sides are sums of whole numbers, and ties fall
  to the shorter last interval under both. The probability of v - D_I - max D is at least exp(-(D_I + max D) / b_I) times that
  of v. With b_I = (D_I + max D) / partition_epsilon the choice is partition_epsilon-differentially private. A record that moves
  is one less and one more, for which all scales are doubled.

The proof needs noise in every interval that a partition can consist of. That goes for single cells, whose deviation is always
0: all that tells how much cheaper the others became is the comparison with them. It also needs noise that is drawn once for
each interval and not once for each partition, or else one partition's chances would not move by a shift of one number.

Everything else is public: the number of cells, the price, the intervals on offer. What can raise depends on these, the dtype
and the ledger, before the cells are looked at.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._files import read_record, reading, write_record
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import LinearEstimate, over_cells, row_blocks
from dpinfer.inference.least_squares import least_squares
from dpinfer.measurement import Measurement
from dpinfer.mechanisms.interval_costs import COSTS, FINEST, MAX_CELLS, IntervalCosts, largest_changes
from dpinfer.mechanisms.linear import host_integers, measure
from dpinfer.noise import exact
from dpinfer.privacy import Ledger
from dpinfer.queries import Identity, Partition, Queries, Tree, VStack
from dpinfer.queries.dense import as_queries

_FORMAT = "dpinfer release of buckets"
_VERSION = 1
INTERVALS = ("dyadic", "all")
VALUES = ("tree", "identity")
# Scales and prices in units are below, so that sums over all cells fit 64 bits but for noise of 32 scales and more.
_MOST_UNITS = 2**36
_MOST_SUM = 2**61
# Intervals whose costs and noise are held at once.
_AT_ONCE = 2**17


@final
@dataclass(frozen=True, eq=False)
class BucketedCells:
    """Cells in buckets that were chosen privately, with noisy sums; made by :func:`dawa` or :meth:`load`.

    Attributes:
        stops: int64 [buckets], where each bucket ends, exclusive.
        noisy_values: int64, the noisy sums of the buckets; or of the nodes of a tree over them, level by level from below its
            root.
        scale: of the discrete Laplace noise in each.
        branching: of that tree; None if there is none.
        epsilon: the exact loss, all in all.
        partition_epsilon: how much of it went into the buckets.
        neighbors: "add_remove" or "replace_one".
    """

    stops: np.ndarray
    noisy_values: np.ndarray
    scale: float
    branching: int | None
    epsilon: Fraction
    partition_epsilon: Fraction
    neighbors: str

    @property
    def sizes(self) -> np.ndarray:
        """int64 [buckets], how many cells each bucket has."""
        return np.diff(self.stops, prepend=0)

    @property
    def block_ids(self) -> np.ndarray:
        """int64 [n], the bucket of each cell."""
        return np.repeat(np.arange(self.stops.size), self.sizes)

    @property
    def measurement(self) -> Measurement:
        """The noisy sums as queries of the cells, for estimators: a Partition, or one for each level of the tree in a VStack.

        It determines sums of whole buckets, and no cells within them.
        """
        return Measurement(_sums(self.stops, self.branching), self.noisy_values, "discrete_laplace", self.scale)

    @property
    def bucket_sums(self) -> LinearEstimate:
        """The least squares estimate of the buckets' sums, as of a histogram whose cells are the buckets."""
        tree = Identity(self.stops.size) if self.branching is None else Tree.complete(self.stops.size, self.branching)
        return least_squares(Measurement(tree, self.noisy_values, "discrete_laplace", self.scale))

    @property
    def cells(self) -> np.ndarray:
        """float64 [n]: each cell its share of the estimated sum of its bucket."""
        return (np.asarray(self.bucket_sums.cells, dtype=float) / self.sizes)[self.block_ids]

    def answer(self, workload: Any) -> PointAnswers:
        """Sums of the cells, which are taken for equal in their buckets: by how much in error nobody can say, so no intervals.

        :meth:`noise_stddev` knows the noise's part; for sums of whole buckets ``least_squares`` of the measurement knows all.
        """
        queries = over_cells(workload, int(self.stops[-1]))
        return PointAnswers(jnp.asarray(queries @ self.cells), "dawa")

    def noise_stddev(self, workload: Any) -> np.ndarray:
        """[m], the exact standard deviation of the answers over the noise of the sums, the buckets being as they are."""
        queries = over_cells(workload, int(self.stops[-1]))
        estimate, found = self.bucket_sums, []
        for rows in row_blocks(queries, queries.shape[1], float):
            shares = np.add.reduceat(np.asarray(rows), self.stops - self.sizes, axis=1) / self.sizes
            found.append(np.asarray(estimate.answer(as_queries("workload", shares)).stddev))
        return np.concatenate([np.zeros(0), *found])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to one .npz file, which appears whole or not at all."""
        header = {
            "scale": self.scale,
            "branching": self.branching,
            "epsilon": str(self.epsilon),
            "partition_epsilon": str(self.partition_epsilon),
            "neighbors": self.neighbors,
        }
        write_record(path, _FORMAT, _VERSION, header, {"stops": self.stops, "noisy_values": self.noisy_values})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "BucketedCells":
        """The record that :meth:`save` wrote; a ValueError if it is none, is damaged, or of a newer version."""
        header, arrays = read_record(path, _FORMAT, _VERSION)
        with reading(path, _FORMAT):
            return BucketedCells(
                arrays["stops"],
                arrays["noisy_values"],
                header["scale"],
                header["branching"],
                Fraction(header["epsilon"]),
                Fraction(header["partition_epsilon"]),
                header["neighbors"],
            )


def dawa(
    cells: Any,
    *,
    epsilon: Any,
    partition_share: Any = Fraction(1, 4),
    intervals: str = "dyadic",
    cost: str = "median",
    bucket_price: Any = 4,
    values: str = "tree",
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
) -> BucketedCells:
    """A private histogram of buckets whose cells are alike, the buckets chosen privately too; exact integer noise.

    Minimises sum_I (sum_{j in I} |x_j - c_I| + N_I + b) over the partitions of the cells into intervals I, where c_I is the
    mean or the median, b the price of a bucket and N_I noise for privacy; then measures the buckets' sums. Good for ranges
    where few buckets will do: see ``docs/data_aware.md``.

    Args:
        cells: private; an integer vector [n].
        epsilon: the budget.
        partition_share: how much of it goes into the buckets, a public number below 1; nothing does if there is one cell only.
        intervals: what buckets can be: "dyadic", intervals of 1, 2, 4, 8, ... cells anywhere, some n log2 n of them; or "all",
            n (n + 1) / 2.
        cost: of a bucket, how much its cells deviate from their "mean", as in the paper, or from their "median", which a record
            changes by half as much, so that half of the noise will do.
        bucket_price: what a bucket costs beyond 1 / (epsilon - partition_epsilon), the expected noise of its sum, in units of the
            noise's scale in a single cell. Among many intervals some look cheap by their noise alone; at 0, the paper's, there
            are about half as many buckets as cells, whatever the cells are.
        values: "tree", the sums of the nodes of a tree over the buckets, of the branching that is best for so many, with equal
            budgets for its levels; or "identity", the sums of the buckets, for cells and short ranges.
        neighbors: "add_remove" (one record more or less) or "replace_one" (a record moves), which takes twice the noise.
        ledger: charged the whole of epsilon before anything is drawn.

    Returns:
        A :class:`BucketedCells`.

    Cost: an exact draw and O(log n) for each interval; memory O(n log n).

    Reference: Li, Hay, Miklau and Wang 2014, "A data- and workload-aware algorithm for range queries under differential privacy",
    section 4, here with the noise that the proof above asks for. Their second stage adapts a tree to the workload
    (GreedyH); this one does not and serves all ranges alike.

    Raises:
        ValueError: for anything wrong with the public arguments, or if the ledger does not have enough left.
    """
    whole = _checks.budget("epsilon", epsilon)
    share = _checks.budget("partition_share", partition_share)
    if share >= 1:
        raise ValueError(f"partition_share must be below 1, got {partition_share!r}.")
    for name, given, allowed in (("intervals", intervals, INTERVALS), ("cost", cost, COSTS), ("values", values, VALUES)):
        _checks.choice(name, given, allowed)
    extra = _checks.budget("bucket_price", bucket_price, zero=True)
    if extra > 1000:
        raise ValueError(f"bucket_price must be at most 1000, got {bucket_price!r}.")
    units = 2 if _checks.relation(neighbors) == "replace_one" else 1
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
    private = host_integers(cells)
    n = private.size
    if n > MAX_CELLS:
        raise ValueError(f"cells must be at most {MAX_CELLS}, got {n}.")
    spent = whole * share if n > 1 else Fraction(0)
    value_scale = units / (whole - spent)
    bits = _bits(value_scale + (4 + 2 * extra) * units / spent) if spent else 0
    # The most that any buckets would ask for, so that nothing is charged in vain.
    if bits < 0 or 4 * value_scale * n.bit_length() >= exact.MAX_SCALE:
        raise ValueError(f"epsilon is too small: the noise would exceed what 64-bit counts can hold. Got {epsilon!r}.")
    if ledger is not None:
        ledger.charge(whole, unit="epsilon", neighbors=neighbors)

    if spent:
        lengths = lengths_of(n, intervals)
        scales = noise_scales(largest_changes(lengths, cost, bits), spent / units)
        price = round(value_scale * 2**bits + extra * scales[0])
        stops = least_partition(noisy_rows(IntervalCosts(private, cost, bits), n, lengths, scales, price), n, lengths)
    else:
        stops = np.array([1])
    branching = None
    if values == "tree":
        from dpinfer.accuracy.branching import best_branching  # which stands on mechanisms

        branching = best_branching(stops.size)
    # A record that moves is one less and one more, twice the loss of either. (Within one bucket less is lost.)
    release = measure(private, _sums(stops, branching), epsilon=(whole - spent) / units)
    return BucketedCells(stops, np.asarray(release.values), float(release.scale), branching, whole, spent, neighbors)


def lengths_of(n: int, intervals: str) -> np.ndarray:
    """How many cells an interval can have, int64, from 1 on."""
    return np.arange(1, n + 1) if intervals == "all" else 2 ** np.arange(n.bit_length())


def noise_scales(changes: list[int], epsilon: Fraction) -> list[Fraction]:
    """The scale of the noise in an interval by its length: what it may rise by and another may fall by, over ``epsilon``."""
    return [(own + max(changes)) / epsilon for own in changes]


def _bits(most: Fraction) -> int:
    """The finest units, 2^-bits, in which scales and prices up to ``most`` records are small enough; below 0 if none are."""
    bits = FINEST
    while bits >= 0 and most * 2**bits > _MOST_UNITS:
        bits -= 1
    return bits


def noisy_rows(costs: IntervalCosts, n: int, lengths: np.ndarray, scales: list[Fraction], price: int) -> Iterator[np.ndarray]:
    """For each end from 1 to n the noisy costs of the intervals that end there, by length; each with noise of its own."""
    offered = np.searchsorted(lengths, np.arange(n + 1), side="right")
    distinct = sorted(set(scales))
    which = np.searchsorted(np.array(distinct, dtype=object), np.array(scales, dtype=object))
    first = 1
    while first <= n:
        upto = np.cumsum(offered[first : first + _AT_ONCE])
        last = first + max(int(np.searchsorted(upto, _AT_ONCE, side="right")), 1)
        number = offered[first:last]
        rows = np.arange(upto[last - first - 1]) - np.repeat(np.cumsum(number) - number, number)
        drawn = exact.discrete_laplace(distinct, which[rows])
        stops = np.repeat(np.arange(first, last), number)
        found = costs.between(stops - lengths[rows], stops) + price
        if int(np.abs(drawn).max()) * n >= _MOST_SUM:
            # Hardly ever: sums may not fit 64 bits.
            found = found.astype(object)
        yield from np.split(found + drawn, np.cumsum(number)[:-1])
        first = last


def least_partition(rows: Iterator[np.ndarray], n: int, lengths: np.ndarray) -> np.ndarray:
    """Where the intervals of the partition of least cost end, int64; of several such the one whose last interval is shortest.

    Args:
        rows: for each end the costs of intervals by length.
        n: how many cells.
        lengths: what they are, increasing from 1.
    """
    least: np.ndarray = np.zeros(n + 1, dtype=np.int64)
    last = np.zeros(n + 1, dtype=np.int64)
    for end, row in enumerate(rows, 1):
        if row.dtype == object:
            least = least.astype(object)
        total = least[end - lengths[: row.size]] + row
        place = int(total.argmin())
        least[end], last[end] = total[place], lengths[place]
    stops = [n]
    while stops[-1] > last[stops[-1]]:
        stops.append(stops[-1] - int(last[stops[-1]]))
    return np.array(stops[::-1], dtype=np.int64)


def _sums(stops: np.ndarray, branching: int | None) -> Queries:
    """The buckets' sums; or those of all nodes of a tree over them but its root, level by level, each level a partition."""
    labels = np.repeat(np.arange(stops.size), np.diff(stops, prepend=0))
    if branching is None:
        return Partition(labels)
    levels = len(Tree.complete(stops.size, branching).level_sizes) - 1
    return VStack([Partition(labels // branching**height) for height in reversed(range(levels))])
