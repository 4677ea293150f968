"""What the commands have in common: errors in one line, a spinner, exact numbers from text, tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def errors() -> Iterator[None]:
    """Expected errors as one line on standard error and exit code 1; nothing else of the program is shown."""
    import typer

    try:
        yield
    except (ValueError, OSError) as error:
        text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.strerror else str(error)
        typer.echo(f"dpinfer: {text}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def busy(step: str) -> Iterator[None]:
    """A spinner on standard error with the time that has passed; nothing where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(step, total=None)
        yield


def budget_of(epsilon: str | None, rho: str | None) -> dict[str, Any]:
    """The one budget that is given, exactly, by its name."""
    given = {name: number(name, text) for name, text in (("epsilon", epsilon), ("rho", rho)) if text is not None}
    if len(given) != 1:
        raise ValueError("Give exactly one of --epsilon and --rho.")
    return given


def number(name: str, text: str) -> Any:
    """The exact fraction that an option spells."""
    from fractions import Fraction

    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--{name} must be a number such as 0.1 or 1/3, got {text!r}.") from None


def refuse_overwriting(output: Path, force: bool) -> None:
    """A ValueError if there is such a file and nobody said --force."""
    if output.exists() and not force:
        raise ValueError(f"{output} exists already; give another --output, or --force to overwrite it.")


def print_table(table: Any) -> None:
    """A table of rich on standard output."""
    from rich.console import Console

    Console().print(table)
