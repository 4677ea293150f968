"""How to split a budget over the levels of count-of-counts histograms, from what is public."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import jax
import numpy as np

from dpinfer import _checks
from dpinfer.evaluation import earth_movers_distance
from dpinfer.inference.count_of_counts import CountOfCountsEstimate, consistent_count_of_counts
from dpinfer.inference.group_bootstrap import released_again, seeded_words
from dpinfer.inference.size_runs import SizeRuns
from dpinfer.mechanisms import count_of_counts_from_histograms
from dpinfer.regions import RegionTree

# How many times as much a level gets as the one above; None: the lowest level gets all.
RATIOS: tuple[Fraction | None, ...] = (Fraction(1), Fraction(1, 4), Fraction(1, 2), Fraction(2), Fraction(4), Fraction(8), None)


@final
@dataclass(frozen=True)
class GroupLevels:
    """A split of a budget over levels, the top first.

    Attributes:
        level_epsilons: exact; for ``mechanisms.count_of_counts``.
        ratio: how many times as much a level gets as the one above; None: the lowest gets all.
        errors: by ratio, the mean earth mover's distance of each level's regions in simulated releases, [levels].
    """

    level_epsilons: tuple[Fraction, ...]
    ratio: Fraction | None
    errors: dict[Fraction | None, np.ndarray]


def group_levels(
    regions: RegionTree,
    num_groups: Any,
    *,
    epsilon: Any,
    max_size: int,
    method: str = "H_c",
    size_shares: Any = None,
    key: Any,
    num_draws: int = 4,
) -> GroupLevels:
    """The split of ``epsilon`` over levels that is best on made-up groups in these regions, among splits by a ratio.

    Groups of presumed sizes are released and estimated with each split. The best has the least sum over levels of the mean earth
    mover's distance, divided by that of the equal split: each level counts as much as the others. Nothing private is
    looked at: regions, their numbers of groups, max_size and what is presumed are public.

    Args:
        regions: the hierarchy.
        num_groups: integers [lowest regions], how many groups each has.
        epsilon, max_size, method: as in ``mechanisms.count_of_counts``; one method for all levels.
        size_shares: [max_size + 1], the share of groups of each size that is presumed, from an earlier census or another public
            source; left out: proportional to 1 / size^2 from 1 on.
        key: a typed key.
        num_draws: simulated releases of each split.

    Returns:
        A :class:`GroupLevels`. The cost of seven times num_draws releases and estimates.

    Raises:
        ValueError: if an argument is wrong.
    """
    _checks.typed_key(key)
    budget = _checks.budget("epsilon", epsilon)
    most = _checks.integer("max_size", max_size, least=1)
    num_draws = _checks.integer("num_draws", num_draws, least=1)
    totals = _checks.index_array("num_groups", np.asarray(num_groups))
    num_leaves = regions.size(regions.num_levels - 1)
    if totals.shape != (num_leaves,) or (totals < 0).any():
        raise ValueError(f"num_groups must have a number for each of the {num_leaves} lowest regions, none negative.")
    shares = np.append(0.0, 1.0 / np.arange(1.0, most + 1) ** 2) if size_shares is None else np.asarray(size_shares, dtype=float)
    if shares.shape != (most + 1,) or not np.isfinite(shares).all() or (shares < 0).any() or not shares.sum() > 0:
        raise ValueError(f"size_shares must have a share that is not negative for each of the sizes 0 to {most}.")
    made, drawn = jax.random.split(key)
    cells = np.random.default_rng(np.asarray(jax.random.key_data(made)).astype(np.uint32)).multinomial(
        totals, shares / shares.sum()
    )
    truth = regions.sums(cells)
    known = CountOfCountsEstimate(regions, most, [SizeRuns.of_histograms(level) for level in truth])
    errors: dict[Fraction | None, np.ndarray] = {}
    for ratio in RATIOS:
        template = count_of_counts_from_histograms(cells, regions, level_epsilons=_split(budget, ratio, regions), method=method)
        words = seeded_words(drawn)
        estimates = [consistent_count_of_counts(released_again(template, known, words)) for _ in range(num_draws)]
        distances = [
            [earth_movers_distance(found.level(number), true).mean() for number, true in enumerate(truth)] for found in estimates
        ]
        errors[ratio] = np.mean(distances, axis=0)
    equal = np.maximum(errors[RATIOS[0]], 1e-12)
    best = min(RATIOS, key=lambda ratio: float((errors[ratio] / equal).sum()))
    return GroupLevels(_split(budget, best, regions), best, errors)


def _split(budget: Fraction, ratio: Fraction | None, regions: RegionTree) -> tuple[Fraction, ...]:
    if ratio is None:
        return (*(Fraction(0),) * (regions.num_levels - 1), budget)
    parts = [ratio**level for level in range(regions.num_levels)]
    return tuple(budget * part / sum(parts) for part in parts)
