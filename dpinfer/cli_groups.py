"""The commands of the command line where a release is of count-of-counts histograms; see ``cli``."""

import csv
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpinfer._terminal import budget_of, busy, number, print_table, refuse_overwriting

# Regions in one figure, and points along each of its lines.
_PANELS, _POINTS = 12, 300
Row = dict[str, Any]


def is_of_groups(path: Path) -> bool:
    """Whether a file is a release of count-of-counts histograms."""
    from dpinfer._files import record_kind
    from dpinfer.mechanisms import CountOfCounts

    return record_kind(path) == CountOfCounts.FORMAT


def measure(
    tables: tuple[Path, Path, Path | None], output: Path, epsilon: str | None, options: dict[str, Any], force: bool
) -> None:
    """Count, release and save."""
    from dpinfer.mechanisms import count_of_counts

    refuse_overwriting(output, force)
    entities, groups, hierarchy = tables
    if hierarchy is None:
        raise ValueError("--count-of-counts needs three files: entities, groups and the hierarchy of regions.")
    if options["max_size"] is None:
        raise ValueError("--count-of-counts needs --max-size, a public number: larger groups count as of this size.")
    if options["max_size_epsilon"] is not None:
        options = options | {"max_size_epsilon": number("max-size-epsilon", options["max_size_epsilon"])}
    budget = budget_of(epsilon, None)
    with busy("counting and measuring"):
        release = count_of_counts(entities, groups, hierarchy, **budget, **options)
    release.save(output)
    regions = " x ".join(f"{release.regions.size(level):,}" for level in range(release.regions.num_levels))
    methods = " x ".join(level.method for level in release.levels)
    print(
        f"{output}: count-of-counts histograms ({methods}) of {regions} regions up to size {release.max_size:,}, "
        f"epsilon = {release.epsilon} ({release.neighbors}; unit: {release.unit})"
    )


def inspect(path: Path, as_json: bool) -> None:
    """Say what a release holds."""
    from rich.table import Table

    from dpinfer.mechanisms import CountOfCounts

    release = CountOfCounts.load(path)
    facts = {
        "file": str(path),
        "regions": [release.regions.size(level) for level in range(release.regions.num_levels)],
        "method": [level.method for level in release.levels],
        "level_epsilons": [str(level.epsilon) for level in release.levels],
        "noise": "discrete_laplace",
        "scale": [float(scale) for level in release.levels for scale in level.scales.values()],
        "max_size": release.max_size,
        "groups": None if release.num_groups is None else int(release.num_groups.sum()),
        "epsilon": str(release.epsilon),
        "unit": release.unit,
        "neighbors": release.neighbors,
    }
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        shown = "private" if value is None else value
        table.add_row(name, ", ".join(map(str, shown)) if isinstance(shown, list) else str(shown))
    print_table(table)


def infer(
    path: Path, output: Path, level: float, as_json: bool, plot: Path | None, at_level: int, num_draws: int, force: bool
) -> None:
    """Write the estimated histograms of all levels as CSV, a line for each size that there is."""
    from dpinfer._files import replacing
    from dpinfer.inference import consistent_count_of_counts

    refuse_overwriting(output, force)
    release = _load(path)
    names = [_names(release, number) for number in range(release.regions.num_levels)]
    if plot is not None and len(names[release.regions.check_level(at_level)]) > _PANELS:
        raise ValueError(f"--plot shows {_PANELS} regions at most, level {at_level} has {len(names[at_level])}: use --at-level.")
    with busy("estimating every region"):
        estimate = consistent_count_of_counts(release)
        with replacing(output) as file:
            text = csv.writer(file, lineterminator="\n")
            text.writerow(["level", "region", "size", "groups"])
            for number, own in enumerate(names):
                runs = estimate.runs(number).without_variances()
                rows = zip(runs.nodes.tolist(), runs.sizes.tolist(), runs.counts.tolist(), strict=True)
                text.writerows([number, own[node], size, count] for node, size, count in rows)
    if plot is not None:
        from dpinfer import plots

        with busy("simulating releases"):
            plots.save(_figure(release, estimate, at_level, level, num_draws), plot)
    whole = estimate.runs(0)
    groups, entities = int(whole.counts.sum()), int((whole.sizes * whole.counts).sum())
    if as_json:
        print(json.dumps({"output": str(output), "regions": sum(map(len, names)), "groups": groups, "entities": entities}))
    else:
        print(f"{output}: {groups:,} groups with {entities:,} entities in {sum(map(len, names)):,} regions")


def answer(
    path: Path,
    at_level: int,
    shares: list[float],
    ranks: list[int],
    sizes: list[int],
    level: float,
    num_draws: int,
    as_json: bool,
) -> None:
    """A row for each region of a level and each thing that is asked for, with an interval by the bootstrap."""
    import numpy as np
    from rich.table import Table

    if not (shares or ranks or sizes):
        raise ValueError("Nothing is asked for: give --quantile, --largest or --share.")
    release = _load(path)
    names = _names(release, at_level)
    asked = [*(f"quantile {q:g}" for q in shares), *(f"largest {k}" for k in ranks), *(f"share of size {s}" for s in sizes)]

    def statistic(estimate: Any) -> Any:
        parts = estimate.quantiles(at_level, shares), estimate.largest(at_level, ranks), estimate.shares(at_level, sizes)
        return np.concatenate([part for part, some in zip(parts, (shares, ranks, sizes), strict=True) if some], axis=1)

    with busy("simulating releases"):
        columns = _bootstrap(release, statistic, level, num_draws)
    rows: list[Row] = [
        {"region": name, "asked": what} | {key: None if np.isnan(x) else float(x) for key, x in zip(_ENDS, found, strict=True)}
        for name, *of_region in zip(names, *columns, strict=True)
        for what, *found in zip(asked, *of_region, strict=True)
    ]
    if as_json:
        print(json.dumps({"level": level, "answers": rows}))
        return
    table = Table()
    for column in ("region", "asked"):
        table.add_column(column, no_wrap=True)
    for column in ("estimate", f"{level:.0%} interval"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        estimate, lower, upper = ("none" if row[key] is None else f"{row[key]:,.4g}" for key in _ENDS)
        table.add_row(row["region"], row["asked"], estimate, f"{lower} to {upper}")
    print_table(table)


_ENDS = ("estimate", "lower", "upper")


def _load(path: Path) -> Any:
    import dpinfer
    from dpinfer._program_cache import keep_programs

    dpinfer.enable_x64()
    keep_programs()
    return dpinfer.mechanisms.CountOfCounts.load(path)


def _names(release: Any, level: int) -> list[str]:
    """Each region by its labels from the top down, with strokes between."""
    return ["/".join(map(str, path)) for path in release.regions.paths(level)]


def _bootstrap(release: Any, statistic: Callable[[Any], Any], level: float, num_draws: int) -> list[Any]:
    """The statistic and the ends of its intervals."""
    import jax
    import numpy as np

    from dpinfer.inference import bootstrap_count_of_counts

    key = jax.random.key(secrets.randbits(31))
    found = bootstrap_count_of_counts(release, statistic, key=key, num_draws=num_draws)
    return [np.asarray(x) for x in (found.values, *found.interval(level))]


def _figure(release: Any, estimate: Any, at_level: int, level: float, num_draws: int) -> Any:
    """H_c of the regions of a level with its band."""
    import numpy as np

    from dpinfer.group_plots import Panel, cumulative_figure

    most = int(estimate.runs(0).sizes.max(initial=1))
    sizes = np.unique(np.round(np.geomspace(1, most + 1, _POINTS)).astype(np.int64)) - 1
    columns = _bootstrap(release, lambda e: e.cumulative(at_level)[:, sizes], level, num_draws)
    return cumulative_figure(sizes, [Panel(*row) for row in zip(_names(release, at_level), *columns, strict=True)], level=level)
