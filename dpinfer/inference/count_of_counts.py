"""Consistent count-of-counts histograms: whole numbers of groups, none negative, that add up over a hierarchy."""

from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer._progress import reporter
from dpinfer.inference.matching import MERGING, merge
from dpinfer.inference.node_histograms import Way, node_histograms
from dpinfer.inference.nonnegative import nonnegative_least_squares
from dpinfer.inference.rounding import round_preserving_total
from dpinfer.inference.run_store import store_of
from dpinfer.inference.size_runs import SizeRuns
from dpinfer.measurement import Measurement
from dpinfer.mechanisms.count_of_counts import CountOfCounts
from dpinfer.queries import Tree
from dpinfer.regions import Label, RegionTree


@final
class CountOfCountsEstimate:
    """How many groups of each size there are in each region.

    Attributes:
        regions: the hierarchy.
        max_size: the largest size.
    """

    def __init__(self, regions: RegionTree, max_size: int, runs: list[SizeRuns | None]):
        self.regions, self.max_size, self._runs = regions, max_size, runs

    def labels(self, level: int) -> list[Label]:
        """The label of each region of a level, the top being level 0; in order."""
        return self.regions.labels(level)

    def runs(self, level: int) -> SizeRuns:
        """The histograms of a level in runs: the node, the size and the number of groups of each, and the variance of the size
        that the estimate went by; 0 on a level that was summed up.
        """
        found = self._runs[self.regions.check_level(level)]
        if found is None:
            raise ValueError(f"level {level} was not measured, so that it has no estimate of its own.")
        return found

    def level(self, level: int) -> np.ndarray:
        """int64 [regions of the level in label order, max_size + 1]: entry i is the number of groups of size i."""
        return self.runs(level).histograms(self.regions.size(level), self.max_size)

    def cumulative(self, level: int) -> np.ndarray:
        """int64 [regions, max_size + 1]: how many groups have at most each size."""
        return np.cumsum(self.level(level), axis=1)

    def quantiles(self, level: int, shares: Any) -> np.ndarray:
        """float64 [regions, shares]: the least size that so large a share of the groups does not exceed; nan without groups.

        A share of 0.5 is the median, 0 the smallest size, 1 the largest.
        """
        wanted = np.asarray(shares, dtype=float)
        if wanted.ndim != 1 or not ((wanted >= 0) & (wanted <= 1)).all():
            raise ValueError(f"shares must be numbers from 0 to 1, got {shares!r}.")
        totals = self.runs(level).totals(self.regions.size(level))
        # Half a group less than what a rounded product could say.
        return self._ranked(level, np.maximum(np.ceil(totals[:, None] * wanted - 1e-6).astype(np.int64), 1))

    def largest(self, level: int, ranks: Any) -> np.ndarray:
        """float64 [regions, ranks]: the size of the largest group (rank 1), of the second, ...; nan where there is none."""
        wanted = _checks.index_array("ranks", np.asarray(ranks))
        if wanted.size and wanted.min() < 1:
            raise ValueError(f"ranks must be at least 1, got {wanted.min()}.")
        return self._ranked(level, self.runs(level).totals(self.regions.size(level))[:, None] + 1 - wanted)

    def shares(self, level: int, sizes: Any) -> np.ndarray:
        """float64 [regions, sizes]: the share of the groups that have each size; nan without groups."""
        wanted = _checks.index_array("sizes", np.asarray(sizes))
        if wanted.size and not (wanted.min() >= 0 and wanted.max() <= self.max_size):
            raise ValueError(f"sizes must be from 0 to max_size {self.max_size}, got {sizes!r}.")
        runs, num_nodes = self.runs(level), self.regions.size(level)
        totals = runs.totals(num_nodes)[:, None]
        found = np.zeros((num_nodes, wanted.size))
        for column, size in enumerate(wanted.tolist()):
            own = runs.sizes == size
            found[:, column] = np.bincount(runs.nodes[own], weights=runs.counts[own], minlength=num_nodes)
        return np.where(totals > 0, found / np.maximum(totals, 1), np.nan)

    def _ranked(self, level: int, positions: np.ndarray) -> np.ndarray:
        """The size of the group at each position, [regions, ...], the smallest at 1."""
        runs = self.runs(level)
        ends = np.cumsum(runs.counts)
        totals = runs.totals(self.regions.size(level))[:, None]
        before = np.cumsum(totals, axis=0) - totals
        exists = (positions >= 1) & (positions <= totals)
        if not runs.sizes.size:
            return np.full(positions.shape, np.nan)
        place = np.searchsorted(ends, np.where(exists, before + positions, 1))
        return np.where(exists, runs.sizes[place], np.nan)


METHODS = ("top_down", "bottom_up", "unmerged")


def consistent_count_of_counts(
    release: CountOfCounts,
    *,
    method: str = "top_down",
    merging: str = "weighted",
    variances: str = "corrected",
    norm: str = "l1",
    size_norm: str = "l2",
    memory_limit: int = 1 << 30,
    resume_folder: Any = None,
    progress: Any = False,
) -> CountOfCountsEstimate:
    """Count-of-counts histograms that are whole, not negative, have the known number of groups, and add up over the hierarchy.

    Each region is estimated by itself. Then, from the top down, its groups are matched with those of the regions within, sizes
    that are matched are averaged by their variances, and these are the estimates from which the next level goes on. At the end
    the lowest level is summed up.

    Args:
        release: of ``mechanisms.count_of_counts``.
        method: "top_down"; "bottom_up" sums the estimates of the lowest level and looks at no other; "unmerged" leaves each
            region's estimate as it is, so that they do not add up.
        merging: "weighted" by the inverse variances; or, for comparison, "naive", their mean, or "parent", the parent's size.
        variances: "corrected", or "printed" as in the paper, which are off by up to a factor of 40 either way.
        norm: the fit of cumulative histograms, in absolute deviations "l1" (the middle one of the best) or squares "l2".
        size_norm: the fit of sorted sizes, "l2", or "l1" if the release keeps the sizes.
        memory_limit: bytes that the fits of histograms, cumulative or not, may take beside the release and the result; at least
            what one node takes. Kept sizes are fitted all at once.
        resume_folder: where finished parts are written, so that the same call goes on where a stopped one was; left for you to
            delete. None: nowhere.
        progress: whether to show a bar on standard error, or a function of (nodes done, nodes in all).

    Returns:
        A :class:`CountOfCountsEstimate`, on the host. If the release has private groups, their numbers are estimated first, by
        non-negative least squares on the hierarchy, and rounded so that they add up.

    Cost: the fits, O(regions max_size) a level, and the matching of runs, which is little beside it.

    Reference: Kuo et al. 2018, algorithm 1, with V_c = ((s - s_before)^2 + (s_after - s)^2) / (2 n sinh(epsilon)) for a run of n
    groups of size s and V_g = (blocks of the fit) sigma^2 / n in place of 4 / (n epsilon^2) and 2 / (n epsilon^2).

    Raises:
        ValueError: if the release does not hold what is asked for.
    """
    if not isinstance(release, CountOfCounts):
        raise ValueError(f"release must be a CountOfCounts from mechanisms.count_of_counts, got {type(release).__name__}.")
    _checks.choice("method", method, METHODS)
    _checks.choice("merging", merging, MERGING)
    _checks.choice("variances", variances, ("corrected", "printed"))
    _checks.choice("norm", norm, ("l1", "l2"))
    _checks.choice("size_norm", size_norm, ("l1", "l2"))
    memory_limit = _checks.integer("memory_limit", memory_limit, least=1)
    regions, num_groups = release.regions, group_counts(release)
    lowest = regions.num_levels - 1
    used = [bool(level.epsilon) and (method != "bottom_up" or number == lowest) for number, level in enumerate(release.levels)]
    num_nodes = [regions.size(number) * len(level.scales) * used[number] for number, level in enumerate(release.levels)]
    options = {"memory_limit": memory_limit, "store": store_of(resume_folder)}
    report = reporter(progress, sum(num_nodes), "nodes")
    way = Way(norm, size_norm, variances)
    estimates = [
        node_histograms(level, num_groups[number], release.max_size, way, **options, report=report) if used[number] else None
        for number, level in enumerate(release.levels)
    ]
    report(None)
    if method == "top_down":
        estimates[lowest] = top_down(estimates, regions, merging)
    if method != "unmerged":
        estimates = summed_up(estimates[lowest], regions)
    return CountOfCountsEstimate(regions, release.max_size, estimates)


def top_down(estimates: list[SizeRuns | None], regions: RegionTree, merging: str) -> SizeRuns:
    """The lowest level, merged with each level above in turn; one without an estimate is passed over."""
    merged, ancestors = None, np.zeros(0, dtype=np.int64)
    for level, own in enumerate(estimates):
        # Of each node, the one on the last level that has an estimate.
        ancestors = ancestors[regions.parents[level]] if merged is not None else ancestors
        if own is not None:
            merged = own if merged is None else merge(merged, own, ancestors, merging)
            ancestors = np.arange(regions.size(level))
    assert merged is not None  # the lowest level is always measured
    return merged


def summed_up(lowest: SizeRuns | None, regions: RegionTree) -> list[SizeRuns | None]:
    """All levels from the lowest."""
    assert lowest is not None
    levels = [lowest]
    for level in range(regions.num_levels - 1, 0, -1):
        below = levels[0]
        parents = regions.parents[level][below.nodes]
        levels.insert(0, SizeRuns.gather(parents, below.sizes, below.counts, np.full(below.sizes.size, 0.0)))
    return list(levels)


def group_counts(release: CountOfCounts) -> list[np.ndarray]:
    """How many groups each region has, for each level: as known, or as estimated from noisy numbers."""
    counts = release.num_groups if release.num_groups is not None else _estimated(release)
    return release.regions.sums(counts)


def _estimated(release: CountOfCounts) -> np.ndarray:
    """The numbers of groups of the lowest regions, whole, by non-negative least squares on the hierarchy."""
    regions = release.regions
    sizes = [regions.size(level) for level in range(regions.num_levels)]
    # Under one root, which is not measured.
    offsets = np.cumsum([1, *sizes])
    parents = [np.array([-1])] + [above + (offsets[level - 1] if level else 0) for level, above in enumerate(regions.parents)]
    values, scales = [np.zeros(1)], [np.full(1, np.inf)]
    for level, size in zip(release.levels, sizes, strict=True):
        is_measured = "tails" in level.arrays
        values.append(level.arrays["tails"][:, 0] if is_measured else np.zeros(size))
        scales.append(np.full(size, float(level.scales["tails"]) if is_measured else np.inf))
    tree = Tree.from_parents(np.concatenate(parents))
    noisy = Measurement(tree, np.concatenate(values), "discrete_laplace", np.concatenate(scales))
    return round_preserving_total(np.asarray(nonnegative_least_squares(noisy).cells), tree)
