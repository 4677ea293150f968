"""How many groups have each size, in every region of a hierarchy: count-of-counts histograms, released level by level.

What it promises. The unit is an entity (a person of a household), one more or less ("add_remove") or one in another group
("replace_one"). It changes the size of one group by one, from s to s + 1 say, and so in each region that holds the group

- the histogram H at s and at s + 1: by 2 in all;
- the cumulative H_c at s only: by 1;
- the sorted sizes H_g: by 1, as sorting brings vectors no farther apart (``sorted_counts``).

Cutting sizes off at a public max_size keeps this. It needs groups without entities to be counted, or a group would appear with
its first entity and change all of H_c. Regions of a level share no group, so that a level loses the epsilon of one region; levels
add up. H_c's last entry, the number of groups, is public and has no noise. Replacing an entity is one less and one more.

If the groups are private, the unit is an entity (of a group that there is) or an empty group, one more or less. Each region then
releases its number of groups G and the tails T_i, the number of groups larger than i. An empty group changes G by 1 and no tail,
an entity a tail by 1 and not G, so that all of them together change by 1. An entity that brings a group of its own is two steps.

A max_size that is estimated: the largest size changes by at most 1 whichever entity comes, goes or moves. The noisy one, raised
by 5 sqrt(2) / epsilon so that it is hardly ever too small (Kuo et al., footnote 6), is cut off at the public cap, and its
epsilon is added to the others (their theorem 1 leaves it out).

Nothing else of the entities leaves, and nothing of them raises. How long it takes with method "H_g" depends on how many sizes
there are (``sorted_runs``).
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from dpinfer import _checks
from dpinfer._files import read_record, reading, write_record
from dpinfer._progress import reporter
from dpinfer.mechanisms.group_noise import noisy_answers, runs_by_level
from dpinfer.mechanisms.group_tables import count_groups
from dpinfer.mechanisms.linear import host_integers
from dpinfer.mechanisms.sorted_runs import MOST_GROUPS
from dpinfer.noise import exact
from dpinfer.privacy import Ledger
from dpinfer.regions import RegionTree

_VERSION = 1
METHODS = ("H_c", "H_g", "fusion", "naive")
# Larger sizes have places of their own in no array.
_LARGEST_SIZE = 2**31
# How much one entity changes each query.
_CHANGES = {"cumulative": 1, "tails": 1, "sizes": 1, "runs": 1, "histogram": 2}


@final
@dataclass(frozen=True, eq=False)
class ReleasedLevel:
    """What a level releases of each of its regions.

    Attributes:
        method: "H_c", "H_g", "fusion" or "naive"; see :func:`count_of_counts`.
        epsilon: its exact loss; 0 if it is not measured.
        scales: of the discrete Laplace noise in each of ``arrays``, exact.
        arrays: int64 unless said otherwise, by name

            - "cumulative": [nodes, max_size], H_c plus noise, without its last entry, the public number of groups;
            - "tails": [nodes, max_size + 1], if groups are private: their number, and how many are larger than 0, 1, ...;
            - "run_values" (float64), "run_lengths", "run_nodes": the least-squares fit of noisy H_g, in runs; or
            - "sizes": [groups], H_g plus noise, one node after the other;
            - "histogram": [nodes, max_size + 1], H plus noise.
    """

    method: str
    epsilon: Fraction
    scales: dict[str, Fraction]
    arrays: dict[str, np.ndarray]


@final
@dataclass(frozen=True, eq=False)
class CountOfCounts:
    """Noisy count-of-counts histograms of regions; made by :func:`count_of_counts` or :meth:`load`.

    Attributes:
        regions: the public hierarchy.
        levels: what each level releases, the top first.
        max_size: larger groups count as of this size.
        num_groups: int64 [leaves], how many groups each lowest region has; None if that is private.
        epsilon: the exact loss, all in all.
        max_size_epsilon: how much of it went into max_size; None if that is public.
        neighbors: "add_remove" or "replace_one".
    """

    FORMAT: ClassVar[str] = "dpinfer release of count-of-counts histograms"

    regions: RegionTree
    levels: tuple[ReleasedLevel, ...]
    max_size: int
    num_groups: np.ndarray | None
    epsilon: Fraction
    max_size_epsilon: Fraction | None
    neighbors: str

    @property
    def unit(self) -> str:
        """What epsilon protects."""
        return "entity" if self.num_groups is not None else "entity of a group that there is, or empty group"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to one .npz file, which appears whole or not at all."""
        header = {
            "regions": self.regions.paths(self.regions.num_levels - 1),
            "levels": [
                {"method": level.method, "epsilon": str(level.epsilon), "scales": {k: str(v) for k, v in level.scales.items()}}
                for level in self.levels
            ],
            "max_size": self.max_size,
            "epsilon": str(self.epsilon),
            "max_size_epsilon": None if self.max_size_epsilon is None else str(self.max_size_epsilon),
            "neighbors": self.neighbors,
        }
        arrays = {f"{number} {name}": a for number, level in enumerate(self.levels) for name, a in level.arrays.items()}
        if self.num_groups is not None:
            arrays["num_groups"] = self.num_groups
        write_record(path, self.FORMAT, _VERSION, header, arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "CountOfCounts":
        """The record that :meth:`save` wrote; a ValueError if it is none, is damaged, or of a newer version."""
        header, arrays = read_record(path, CountOfCounts.FORMAT, _VERSION)
        with reading(path, CountOfCounts.FORMAT):
            levels = tuple(
                ReleasedLevel(
                    level["method"],
                    Fraction(level["epsilon"]),
                    {name: Fraction(scale) for name, scale in level["scales"].items()},
                    {name.split()[1]: array for name, array in arrays.items() if name.split()[0] == str(number)},
                )
                for number, level in enumerate(header["levels"])
            )
            size_epsilon, regions = header["max_size_epsilon"], RegionTree(header["regions"])
            if len(levels) != regions.num_levels or not levels[-1].arrays:
                raise KeyError("levels")  # of which the lowest is always measured
            return CountOfCounts(
                regions,
                levels,
                int(header["max_size"]),
                arrays.get("num_groups"),
                Fraction(header["epsilon"]),
                None if size_epsilon is None else Fraction(size_epsilon),
                header["neighbors"],
            )


def count_of_counts(
    entities: Any,
    groups: Any,
    hierarchy: Any,
    *,
    epsilon: Any = None,
    level_epsilons: Any = None,
    max_size: int,
    max_size_epsilon: Any = None,
    method: Any = "H_c",
    keep_sizes: bool = False,
    private_groups: bool = False,
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
    memory_limit: int = 1 << 30,
    progress: Any = False,
) -> CountOfCounts:
    """A private release of how many groups have each size in every region, with exact integer noise from the operating system.

    Args:
        entities: private; a table with the columns entity and group, one row an entity; of several rows with the same entity
            the first counts. Any table that :func:`dpinfer.count` reads.
        groups: public; a table with the columns group and region, of all groups, those without entities too.
        hierarchy: public; a table with the columns region and level_0 (the top), level_1, ..., the labels of each region.
        epsilon: the budget, of which each level gets the same part; or
        level_epsilons: the budget of each level, the top first; one of 0 is not measured. The lowest level must be.
        max_size: larger groups count as of this size; public.
        max_size_epsilon: if given, max_size is only a public cap, and the largest size is estimated, with this budget beside
            the others.
        method: what to release of a level, the same for all, one for each in a list, or "H_c x H_g x H_c":

            - "H_c": the cumulative histogram, best for most data;
            - "H_g": the sorted sizes, best for few different sizes that lie apart; their least-squares fit, in runs;
            - "fusion": both, with half of the budget each;
            - "naive": the histogram itself, far worse, for comparison.

        keep_sizes: whether "H_g" and "fusion" release the noisy size of every group, as a fit in absolute deviations needs.
        private_groups: whether groups is private too; see the module's text for what is protected then. Only with "H_c".
        neighbors: "add_remove" (one entity more or less) or "replace_one" (one is in another group), which takes twice the noise.
        ledger: charged the whole epsilon before any noise is drawn; its records are the entities.
        memory_limit: bytes for counting where ``entities`` is a Parquet file or a DuckDB relation. What does not fit lies in
            temporary files meanwhile, private and readable by their owner only: some 60 bytes an entity whose name is a number.
        progress: whether to show a bar on standard error, or a function of (nodes done, nodes in all).

    Returns:
        A :class:`CountOfCounts`; ``inference.consistent_count_of_counts`` makes the best of it. One exact draw for each region
        and size; for "H_g" some for each size that there is.

    Reference: Kuo, Chiu, Kifer, Hay and Machanavajjhala 2018, sections 3 to 5; its definition 3 of the noise misses a factor (the
    probabilities do not add up to 1 unless the sensitivity is 1), its SQL drops empty groups.

    Raises:
        ValueError: for anything wrong with the public arguments and tables, if the ledger does not have enough left, or if memory
            and disk do not hold the tables.
    """
    is_private = bool(private_groups)
    plan = _plan(epsilon, level_epsilons, max_size, max_size_epsilon, method, keep_sizes, is_private, neighbors)
    memory_limit = _checks.integer("memory_limit", memory_limit, least=1)
    counted = count_groups(entities, groups, hierarchy, private_groups=is_private, memory_limit=memory_limit)
    _check_levels(plan, counted.regions, ledger)
    return _released(plan, *counted, is_private, ledger, progress)


def count_of_counts_from_histograms(
    cells: Any,
    regions: RegionTree,
    *,
    epsilon: Any = None,
    level_epsilons: Any = None,
    max_size: int | None = None,
    max_size_epsilon: Any = None,
    method: Any = "H_c",
    keep_sizes: bool = False,
    private_groups: bool = False,
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
    progress: Any = False,
) -> CountOfCounts:
    """As :func:`count_of_counts`, from the histogram of each lowest region.

    Args:
        cells: private; int [leaves, sizes], how many groups of size 0, 1, ... each lowest region has, in the order of
            ``regions``. Negative numbers, which are none, count as 0. The sum of a row is public, and less than 2^31, unless
            ``private_groups``.
        regions: the public hierarchy.
        max_size: left out: the largest size that ``cells`` has room for.
    """
    if not isinstance(regions, RegionTree):
        raise ValueError(f"regions must be a RegionTree, got {type(regions).__name__}.")
    array = _histograms(cells, regions.size(regions.num_levels - 1))
    most = array.shape[1] - 1 if max_size is None else max_size
    is_private = bool(private_groups)
    plan = _plan(epsilon, level_epsilons, most, max_size_epsilon, method, keep_sizes, is_private, neighbors)
    _check_levels(plan, regions, ledger)
    if not is_private and (array.sum(axis=1, dtype=float) >= MOST_GROUPS).any():
        raise ValueError("cells must have less than 2**31 groups in each lowest region.")
    leaves, sizes = np.nonzero(array)
    # Larger entries only matter if the number of groups is private: then sums are cut off there, too.
    counts = np.minimum(array[leaves, sizes], MOST_GROUPS)
    return _released(plan, regions, leaves, sizes, counts, is_private, ledger, progress)


def _histograms(cells: Any, num_leaves: int) -> np.ndarray:
    """Private histograms as int64, none negative, checked by dtype and shape alone."""
    if isinstance(cells, (list, tuple)) and cells and all(isinstance(row, (list, tuple)) for row in cells):
        if len({len(row) for row in cells}) > 1:
            raise ValueError("cells must have rows of one length.")
        cells = np.stack([host_integers(row) for row in cells])
    array: Any = np.asarray(cells)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[0] != num_leaves or array.shape[1] < 2:
        # What there is instead may be private.
        raise ValueError(f"cells must be integers [{num_leaves} lowest regions, at least 2 sizes], got dtype {array.dtype}.")
    if array.dtype.kind == "u":
        array = np.minimum(array.astype(np.uint64), np.uint64(np.iinfo(np.int64).max))
    return np.maximum(array.astype(np.int64), 0)


class _Plan(NamedTuple):
    methods: tuple[str, ...] | str
    epsilons: tuple[Fraction, ...] | Fraction
    max_size: int
    max_size_epsilon: Fraction | None
    keep_sizes: bool
    neighbors: str


def _plan(
    epsilon: Any,
    level_epsilons: Any,
    max_size: Any,
    max_size_epsilon: Any,
    method: Any,
    keep: bool,
    private: bool,
    neighbors: Any,
) -> _Plan:
    if (epsilon is None) == (level_epsilons is None):
        raise ValueError("Exactly one of epsilon= and level_epsilons= is needed.")
    if epsilon is not None:
        epsilons: Any = _checks.budget("epsilon", epsilon)
    else:
        epsilons = tuple(
            _checks.budget(f"level_epsilons[{level}]", part, zero=True) for level, part in enumerate(_listed(level_epsilons))
        )
        if not epsilons or not epsilons[-1]:
            raise ValueError("level_epsilons must give the lowest level a budget: nothing says how groups divide otherwise.")
    methods: Any = method
    if isinstance(method, str):
        parts = tuple(part.strip() for part in method.split(" x "))
        methods = parts[0] if len(parts) == 1 else parts
    else:
        methods = tuple(_listed(method))
    for part in (methods,) if isinstance(methods, str) else methods:
        _checks.choice("method", part, METHODS)
        if private and part != "H_c":
            raise ValueError(f"method must be 'H_c' if groups are private, got {part!r}.")
    most = _checks.integer("max_size", max_size, least=1)
    if most >= _LARGEST_SIZE:
        raise ValueError(f"max_size must be less than 2**31, got {most}.")
    size_epsilon = None if max_size_epsilon is None else _checks.budget("max_size_epsilon", max_size_epsilon)
    return _Plan(methods, epsilons, most, size_epsilon, bool(keep), _checks.relation(neighbors))


def _listed(value: Any) -> Sequence[Any]:
    return list(value) if hasattr(value, "__iter__") else [value]


def _check_levels(plan: _Plan, regions: RegionTree, ledger: Any) -> None:
    for name, parts in (("method", plan.methods), ("level_epsilons", plan.epsilons)):
        if isinstance(parts, tuple) and len(parts) != regions.num_levels:
            raise ValueError(f"{name} must have one entry for each of the {regions.num_levels} levels, got {len(parts)}.")
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")


def _released(
    plan: _Plan,
    regions: RegionTree,
    leaves: np.ndarray,
    sizes: np.ndarray,
    counts: np.ndarray,
    is_private: bool,
    ledger: Ledger | None,
    progress: Any,
) -> CountOfCounts:
    """The release of so many groups of each size in each leaf, given by leaf and size upward."""
    num_levels = regions.num_levels
    epsilons = plan.epsilons if isinstance(plan.epsilons, tuple) else (plan.epsilons / num_levels,) * num_levels
    methods = plan.methods if isinstance(plan.methods, tuple) else (plan.methods,) * num_levels
    spend = sum(epsilons, Fraction(0)) + (plan.max_size_epsilon or 0)
    scales = [_scales(method, part, plan, is_private) for method, part in zip(methods, epsilons, strict=True)]
    size_scale = plan.max_size_epsilon and exact.check_scale("max_size_epsilon", 1 / plan.max_size_epsilon)
    if ledger is not None:
        ledger.charge(spend, unit="epsilon", neighbors=plan.neighbors)
    max_size = plan.max_size
    if size_scale is not None:
        max_size = _largest(int(sizes.max(initial=0)), size_scale, max_size)
    sizes = np.minimum(sizes, max_size)
    num_groups = np.zeros(regions.size(num_levels - 1), dtype=np.int64)
    np.add.at(num_groups, leaves, counts)

    runs = runs_by_level(regions, max_size, leaves, sizes, counts)
    report = reporter(progress, sum(of.num_nodes * len(queries) for of, queries in zip(runs, scales, strict=True)), "nodes")
    levels = []
    for method, part, queries, of in zip(methods, epsilons, scales, runs, strict=True):
        arrays: dict[str, np.ndarray] = {}
        for query, scale in queries.items():
            arrays |= noisy_answers(of, query, scale, report=report)
        levels.append(ReleasedLevel(method, part, queries, arrays))
    report(None)
    return CountOfCounts(
        regions,
        tuple(levels),
        max_size,
        None if is_private else num_groups,
        spend,
        plan.max_size_epsilon,
        plan.neighbors,
    )


def _scales(method: str, epsilon: Fraction, plan: _Plan, is_private: bool) -> dict[str, Fraction]:
    """The scale of the noise of each query of a level; ``epsilon`` for each node, which share no group."""
    queries = {
        "H_c": ["tails" if is_private else "cumulative"],
        "H_g": ["sizes" if plan.keep_sizes else "runs"],
        "fusion": ["cumulative", "sizes" if plan.keep_sizes else "runs"],
        "naive": ["histogram"],
    }[method]
    doubled = 2 if plan.neighbors == "replace_one" else 1
    own = "epsilon" if isinstance(plan.epsilons, Fraction) else "level_epsilons"
    return {
        name: exact.check_scale(own, Fraction(_CHANGES[name] * doubled * len(queries)) / epsilon) for name in queries if epsilon
    }


def _largest(true: int, scale: Fraction, cap: int) -> int:
    noise = int(exact.discrete_laplace([scale], np.zeros(1, dtype=np.int64))[0])
    return min(max(true + noise + math.ceil(5 * math.sqrt(2) * scale), 1), cap)
