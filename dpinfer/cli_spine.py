"""The commands ``dpinfer spine infer | messages | example``: noisy measurement files of a census-size geography."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from dpinfer._terminal import busy, errors, refuse_overwriting


def application() -> Any:
    """The group of commands."""
    import typer

    app = typer.Typer(no_args_is_help=True, help="Noisy measurement files of a census-size geography.")
    folder_argument = typer.Argument(..., help="The product: a folder with County.parquet/DPQuery and so on.")
    zeros_option = typer.Option(
        "pushed_down", help="Cells that constraints say are zero: pushed_down, stated (as the Bureau), none."
    )
    exact_option = typer.Option("", help="Levels whose other equalities hold exactly, such as state.")
    top_option = typer.Option(None, help="The level to begin at, such as state for the files of some states only.")
    cut_option = typer.Option(None, help="The level at which the tree is cut; by default the lowest that fits into memory.")
    memory_option = typer.Option(2.0, min=0.01, help="GB that arrays should stay below.")

    @app.command()
    def infer(
        folder: Path = folder_argument,
        level: Annotated[str, typer.Option(help="Levels of the tables, with commas: county,tract.")] = "county,tract",
        output: Annotated[Path, typer.Option("--output", "-o", help="A .parquet or .csv file.")] = Path("tables.parquet"),
        query: Annotated[
            list[str] | None,
            typer.Option(
                help="What to count, such as 'votingage * cenrace'; once for each. By default the redistricting tables."
            ),
        ] = None,
        coverage: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
        zeros: str = zeros_option,
        exact: str = exact_option,
        top: str | None = top_option,
        cut: str | None = cut_option,
        memory: float = memory_option,
        work: Annotated[Path | None, typer.Option(help="A folder for finished parts, from which a stopped run goes on.")] = None,
        single: Annotated[bool, typer.Option("--float32", help="The lowest level's arithmetic in 32 bit.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
        force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
    ) -> None:
        """Estimate every unit by generalised least squares, and write tables with standard deviations and intervals."""
        with errors():
            options = {"work": work, "memory": memory, "cut": cut, "single": single}
            _infer(_open(folder, zeros, exact, top), output, level, query, coverage, options, as_json, force)

    @app.command()
    def messages(
        folder: Path = folder_argument,
        under: Annotated[str, typer.Option(help="Beginnings of codes, with commas: 050,150.")] = ...,  # pyright: ignore[reportArgumentType]
        work: Annotated[Path, typer.Option(help="The folder that infer is given too.")] = ...,  # pyright: ignore[reportArgumentType]
        zeros: str = zeros_option,
        exact: str = exact_option,
        top: str | None = top_option,
        cut: str | None = cut_option,
        memory: float = memory_option,
    ) -> None:
        """Prepare what some states say of the rest, for infer with the same --work: states in turn, or on several machines."""
        with errors():
            from dpinfer import spine

            product = _open(folder, zeros, exact, top)
            options: dict[str, Any] = {"memory": int(memory * 1e9), "progress": sys.stderr.isatty()}
            count = spine.prepare_messages(product, work, under=_names(under), cut=cut, **options)
            print(f"{work}: {count} messages of the units under {under}")

    @app.command()
    def example(
        folder: Annotated[Path, typer.Argument(help="Where the product's folder goes.")],
        blocks: Annotated[int, typer.Option(min=1, help="Census blocks.")] = 10_000,
        seed: Annotated[int, typer.Option(min=0, help="Of people and noise.")] = 0,
    ) -> None:
        """Write made-up files in the published layout, to try things on."""
        with errors():
            from dpinfer import spine

            truth = spine.write_product(folder, num_blocks=blocks, seed=seed, progress=sys.stderr.isatty())
            sizes = ", ".join(f"{len(codes):,} {level}" for level, codes in truth.geocodes.items())
            print(f"{folder}: {sizes}, {blocks:,} Block")

    return app


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _open(folder: Path, zeros: str, exact: str, top: str | None) -> Any:
    from dpinfer import spine

    with busy("reading codes, variances and zeros"):
        return spine.Product(folder, zeros=zeros, exact_levels=_names(exact), top=top)


def _infer(
    product: Any,
    output: Path,
    level: str,
    queries: list[str] | None,
    coverage: float,
    options: dict[str, Any],
    as_json: bool,
    force: bool,
) -> None:
    import numpy as np

    from dpinfer import spine
    from dpinfer.spine.tables import table_format

    refuse_overwriting(output, force)
    table_format(output)
    if not 0 < coverage < 1:
        raise ValueError(f"--coverage must be between 0 and 1, got {coverage}.")
    if not output.parent.is_dir():
        raise ValueError(f"--output must lie in a folder that exists, got {output}.")
    levels = [product.level_names[product.depth(name)] for name in _names(level)]
    asked = None if not queries else [product.schema.query(query) for query in queries]
    begun, shows = time.perf_counter(), sys.stderr.isatty()
    estimate = spine.product_least_squares(
        product,
        work=options["work"],
        memory=int(options["memory"] * 1e9),
        cut=options["cut"],
        leaf_dtype=np.float32 if options["single"] else np.float64,
        progress=shows,
    )
    rows = spine.write_tables(estimate, output, levels, asked, coverage=coverage, progress=shows)
    facts = {
        "output": str(output),
        "rows": rows,
        "units": {units.name: len(units) for units in product.units},
        "coordinates": product.classes.explain(),
        "seconds": round(time.perf_counter() - begun, 1),
    }
    if as_json:
        print(json.dumps(facts))
        return
    units = ", ".join(f"{size:,} {name}" for name, size in facts["units"].items())
    print(f"{output}: {rows:,} rows of {', '.join(levels)}; estimated {units} in {facts['seconds']} s")
    print(f"coordinates: {facts['coordinates']}")
    print("Intervals cover the noise that was added for privacy, and nothing else.")
    if product.level_names[-1] in levels:
        print(f"Counts of single units of {product.level_names[-1]} are rough: add them up to the area in question (regions).")
