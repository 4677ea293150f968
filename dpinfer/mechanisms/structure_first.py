"""StructureFirst: a private histogram of few bins, where the bins are chosen privately before their cells are measured.

What it promises. Of the budget epsilon, ``structure_epsilon`` goes into the bins and the rest into their values; the two add up.

- The bins are chosen by costs that one record changes by at most ``BinCosts.change`` (``bin_costs``), one boundary after the
  other, from behind, each with its share of the budget (``exact_choice``); or all at once (``joint_choice``). Nothing else of the
  costs is looked at, and none is returned.
- The values are sums over the bins, or nodes within them, released by ``measure`` with a loss that is read off their matrix; or
  medians. The median of an odd number of cells changes by at most 1 if one of these does; the sum of the two middle ones of an
  even number too, since the sum of the changes of cells in their order is at most 1.

Everything else is public: the number of cells and of bins, the bound of counts and the split of the budget are arguments and
never computed from the cells. What can raise depends on these, the dtype and the ledger, before the cells are looked at. Running
times depend on the cells: keep them to yourself.

The paper's pseudo-code, as printed, does not do this: its squares assume a bound of counts that it does not enforce, which it
and its split of the budget take from the private number of records; and its set of candidates can be empty (line 7 of
algorithms 3 and 6 starts at k - 1 where line 5 starts at j).
"""

import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer import noise as laws
from dpinfer._files import read_record, reading, write_record
from dpinfer.inference.answers import Answers, PointAnswers
from dpinfer.inference.estimate import over_cells
from dpinfer.inference.least_squares import least_squares
from dpinfer.inference.segment_numbers import least_costs
from dpinfer.measurement import Measurement
from dpinfer.mechanisms.bin_costs import BinCosts, absolute_deviations, host, on_host, squares
from dpinfer.mechanisms.bin_nodes import INSIDES, bin_nodes, most_levels
from dpinfer.mechanisms.exact_choice import exponential_mechanism, permute_and_flip
from dpinfer.mechanisms.joint_choice import SegmentationWeights, dyadic_rate
from dpinfer.mechanisms.linear import host_integers, measure, saturating_sum
from dpinfer.noise import exact
from dpinfer.privacy import Ledger

_FORMAT = "dpinfer release of bins"
_VERSION = 1
# A budget that says more is not spent: floats hold this times any cost.
_MOST_RATE = Fraction(2**21)
SELECTIONS = ("joint", "noisy_min", "exponential")


@final
@dataclass(frozen=True, eq=False)
class StructuredCells:
    """Cells in bins that were chosen privately, with noisy values; made by :func:`structure_first` or :meth:`load`.

    Attributes:
        stops: int64 [bins], where each bin ends, exclusive.
        noisy_values: int64, the noisy sums: of the bins, or of the nodes of ``measurement``; or the noisy medians, twice them for
            bins of an even number of cells.
        scales: floats, of the discrete Laplace noise of each; infinite for nodes that were not measured.
        statistic: "mean" or "median".
        inside: "flat", "two_level" or "tree".
        epsilon: the exact loss, all in all.
        structure_epsilon: how much of it went into the bins.
        neighbors: "add_remove" or "replace_one".
    """

    stops: np.ndarray
    noisy_values: np.ndarray
    scales: np.ndarray
    statistic: str
    inside: str
    epsilon: Fraction
    structure_epsilon: Fraction
    neighbors: str

    @property
    def sizes(self) -> np.ndarray:
        """int64 [bins], how many cells each bin has."""
        return np.diff(self.stops, prepend=0)

    @property
    def block_ids(self) -> np.ndarray:
        """int64 [n], the bin of each cell."""
        return np.repeat(np.arange(self.stops.size), self.sizes)

    @property
    def measurement(self) -> Measurement:
        """The noisy sums, of a Partition into the bins or of a tree over the cells; for estimators. Medians are no sums."""
        if self.statistic != "mean":
            raise ValueError("measurement is of sums; medians were released.")
        return Measurement(bin_nodes(self.stops, self.inside)[0], self.noisy_values, "discrete_laplace", self.scales)

    @property
    def cells(self) -> np.ndarray:
        """float64 [n]: each cell its share of the bin's sum, or its bin's median; of nodes inside the bins by least squares."""
        if self.inside != "flat":
            return np.asarray(least_squares(self.measurement).cells)
        return (self.noisy_values / self._divisors)[self.block_ids]

    @property
    def _divisors(self) -> np.ndarray:
        """How many times the cells of a flat bin its noisy value is, [bins]."""
        return self.sizes if self.statistic == "mean" else np.where(self.sizes % 2, 1, 2)

    def answer(self, workload: Any) -> Answers | PointAnswers:
        """Sums of the cells: unbiased with nodes inside the bins, and with their exact standard deviations and intervals.

        Flat bins take their cells for equal, by how much in error nobody can say: no intervals. :meth:`noise_stddev` knows the
        noise's part.
        """
        queries = over_cells(workload, int(self.stops[-1]))
        if self.inside != "flat":
            return least_squares(self.measurement).answer(queries)
        return PointAnswers(jnp.asarray(queries @ self.cells), "structure_first")

    def noise_stddev(self, workload: Any) -> np.ndarray:
        """[m], the exact standard deviation of the answers over the noise of the values, the bins being as they are."""
        queries = over_cells(workload, int(self.stops[-1]))
        if self.inside != "flat":
            return np.asarray(least_squares(self.measurement).answer(queries).stddev)
        each = np.asarray(laws.stddev("discrete_laplace", self.scales))
        variance = np.zeros(queries.shape[0])
        for start, stop, spread in zip(self.stops - self.sizes, self.stops, each / self._divisors, strict=True):
            share = np.zeros(int(self.stops[-1]))
            share[start:stop] = spread
            variance += np.square(np.asarray(queries @ share, dtype=float))
        return np.sqrt(variance)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to one .npz file, which appears whole or not at all."""
        header = {
            "statistic": self.statistic,
            "inside": self.inside,
            "epsilon": str(self.epsilon),
            "structure_epsilon": str(self.structure_epsilon),
            "neighbors": self.neighbors,
        }
        arrays = {"stops": self.stops, "noisy_values": self.noisy_values, "scales": self.scales}
        write_record(path, _FORMAT, _VERSION, header, arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "StructuredCells":
        """The record that :meth:`save` wrote; a ValueError if it is none, is damaged, or of a newer version."""
        header, arrays = read_record(path, _FORMAT, _VERSION)
        with reading(path, _FORMAT):
            return StructuredCells(
                arrays["stops"],
                arrays["noisy_values"],
                arrays["scales"],
                header["statistic"],
                header["inside"],
                Fraction(header["epsilon"]),
                Fraction(header["structure_epsilon"]),
                header["neighbors"],
            )


def structure_first(
    cells: Any,
    bins: int | None = None,
    *,
    epsilon: Any,
    structure_epsilon: Any = None,
    cost: str = "sae",
    max_count: int | None = None,
    selection: str = "joint",
    bin_price: Any = 2.0,
    values: str = "mean",
    inside: str = "flat",
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
) -> StructuredCells:
    """A private histogram of few bins, the bins chosen privately too; exact integer noise from the operating system.

    Good for sums over bins and wide ranges of cells that come in few levels. For single cells ``measure`` and
    ``inference.noise_first`` are mostly better.

    Args:
        cells: private; an integer vector [n].
        bins: how many bins, a public number; None: any, of which each more is less probable by ``bin_price`` nats (selection
            "joint").
        epsilon: the budget.
        structure_epsilon: how much of it goes into the bins; None: half, and nothing if there is no choice (1 or n bins).
        cost: of bins: "sae", absolute deviations from the median, which a record changes by at most 1; or "sse", squares about
            the mean, of which this is known only for counts up to a bound.
        max_count: that bound, a public number; larger counts are taken for it, and negative ones for 0, when bins are chosen.
        selection: how bins are chosen: "joint", all at once, with a probability that falls by exp(-structure_epsilon / (2 D)) for
            each unit of cost, D being what a record changes; or one boundary after the other from behind, each with an equal
            share of the budget: "noisy_min", the noisy minimum with exponential noise (permute-and-flip), or "exponential", the
            paper's exponential mechanism, for squares with its D of 2 max_count + 1.
        bin_price: nats by which a segmentation of one bin more is less probable to begin with, if ``bins`` is None.
        values: "mean", the sums of the bins, shared out evenly, with noise of scale 1 / (epsilon - structure_epsilon) for each
            bin's sum; or "median", with noise of that scale for each cell (half of it if the bin has an even number of cells).
        inside: what of a bin is measured: "flat", one sum; "two_level", sum and cells; "tree", all sums of a binary tree.
        neighbors: "add_remove" (one record more or less) or "replace_one" (a record moves), which takes twice the noise.
        ledger: charged the whole of epsilon before anything is drawn.

    Returns:
        A :class:`StructuredCells`.

    Cost: "joint" O(n^2), for a given number of bins O(n^2 bins) with memory O(n bins) (14 s for 4,096 cells in 410 bins);
    the others as :func:`dpinfer.inference.v_optimal`, with a table of 8 n (n + 1) bytes. Deviations need 64 bit
    (``dpinfer.enable_x64``).

    Reference: Xu et al. 2013, sections 4, 5.2 and 6.2. McKenna and Sheldon 2020, "Permute-and-flip". The joint choice is the
    exponential mechanism (McSherry and Talwar 2007) over segmentations.

    Raises:
        ValueError: for anything wrong with the public arguments, or if the ledger does not have enough left.
    """
    whole = _checks.budget("epsilon", epsilon)
    for name, given, allowed in (
        ("cost", cost, ("sae", "sse")),
        ("selection", selection, SELECTIONS),
        ("values", values, ("mean", "median")),
        ("inside", inside, INSIDES),
    ):
        _checks.choice(name, given, allowed)
    if values == "median" and inside != "flat":
        raise ValueError(f"inside must be 'flat' for medians, got {inside!r}.")
    if bins is None and selection != "joint":
        raise ValueError(f"bins must be given for selection={selection!r}; 'joint' can choose how many.")
    if (max_count is None) != (cost == "sae"):
        raise ValueError("max_count, a public bound of counts, is needed for cost='sse', and for nothing else.")
    most = None if max_count is None else _checks.integer("max_count", max_count, least=1)
    price = _checks.budget("bin_price", bin_price, zero=True)
    if price > 1000:
        raise ValueError(f"bin_price must be at most 1000 nats, got {bin_price!r}.")
    units = 2 if _checks.relation(neighbors) == "replace_one" else 1
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("structure_first needs 64-bit numbers: type dpinfer.enable_x64() first.")
    host()
    private = host_integers(cells)
    n = private.size
    if bins is not None:
        bins = _checks.integer("bins", bins, least=1)
        if bins > n:
            raise ValueError(f"bins must be at most the number of cells, {n}, got {bins}.")
    is_chosen = bins not in (1, n) and n > 1
    if structure_epsilon is None:
        structure = whole / 2 if is_chosen else Fraction(0)
    else:
        structure = _checks.budget("structure_epsilon", structure_epsilon)
        if not is_chosen:
            raise ValueError("structure_epsilon must be None where there is no choice of bins.")
        if structure >= whole:
            raise ValueError(f"structure_epsilon must be below epsilon, {whole}, got {structure_epsilon!r}.")
    value_scale = units / (whole - structure)
    # The most that any bins would ask for, so that nothing is charged or chosen in vain.
    if 4 * value_scale * most_levels(n, inside) >= exact.MAX_SCALE:
        raise ValueError(f"epsilon is too small: the noise would exceed what 64-bit counts can hold. Got {epsilon!r}.")
    costs = absolute_deviations(private) if most is None else squares(private, most, is_paper=selection == "exponential")
    change = costs.change * units
    rate = dyadic_rate(structure, change, n, bins or n) if is_chosen and selection == "joint" else (0, 0)
    if ledger is not None:
        ledger.charge(whole, unit="epsilon", neighbors=neighbors)

    if not is_chosen:
        stops = np.arange(1, n + 1) if bins == n else np.array([n])
    elif bins is None or selection == "joint":
        stops = SegmentationWeights(costs.row, n, bins, rate, float(price) if bins is None else 0.0).draw()
    else:
        stops = _one_by_one(costs, n, bins, structure / ((bins - 1) * 2 * change), selection)
    if values == "median":
        drawn = exact.discrete_laplace([value_scale], np.zeros(stops.size, dtype=np.int64))
        noisy, scales = saturating_sum(_middles(private, stops), drawn), np.full(stops.size, float(value_scale))
    else:
        nodes, weights = bin_nodes(stops, inside)
        # A record that moves is one less and one more, twice the loss of either. (Within one bin for all cells less is lost.)
        release = measure(private, nodes, epsilon=(whole - structure) / units, row_weights=weights)
        noisy, scales = np.asarray(release.values), np.broadcast_to(release.scale, release.values.shape).astype(float)
    return StructuredCells(stops, noisy, scales, values, inside, whole, structure, neighbors)


def _one_by_one(costs: BinCosts, n: int, bins: int, rate: Fraction, selection: str) -> np.ndarray:
    """Where bins end, each chosen by the least cost of all that it leaves open, from behind."""
    choose = permute_and_flip if selection == "noisy_min" else exponential_mechanism
    table = costs.table()
    least, table = np.asarray(on_host(least_costs, table, bins - 1)), np.asarray(table)
    stops, rate = [n], min(rate, _MOST_RATE)
    for left in range(bins - 1, 0, -1):
        end = stops[-1]
        total = least[left - 1, left:end] + table[end, left:end]
        stops.append(left + choose(total.astype(np.int64), rate))
    return np.array(stops[::-1], dtype=np.int64)


def _middles(private: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The median of each bin, or the sum of its two middle ones."""
    parts = [np.sort(part) for part in np.split(private, stops[:-1])]
    low, high = (np.array([part[(part.size - 1 + off) // 2] for part in parts]) for off in (0, 1))
    return np.where(np.diff(stops, prepend=0) % 2, low, saturating_sum(low, high))
