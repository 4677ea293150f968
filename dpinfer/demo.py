"""The whole way once, on real data: records, a private release, consistent estimates, answers with intervals, their error."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import datasets
from dpinfer.evaluation import ranges_of_size, squared_error_by_range_size
from dpinfer.inference import least_squares
from dpinfer.mechanisms import measure, simulate
from dpinfer.queries import Identity, Queries, Ranges, Tree
from dpinfer.queries.base import Array
from dpinfer.release import Release

BRANCHING = 16
NUM_STEPS = 8
TRIALS = 20
# Cells of 15 minutes: from one cell over an hour, a day, a week to the year.
SIZES = {
    "15 minutes": 1,
    "1 hour": 4,
    "6 hours": 24,
    "1 day": 96,
    "1 week": 672,
    "4 weeks": 2688,
    "13 weeks": 8736,
    "26 weeks": 17472,
    "1 year": 35040,
}
# Theory averages the squared standard deviation over at most so many ranges of a size, evenly spaced.
_THEORY_RANGES = 5000


@dataclasses.dataclass(frozen=True)
class Period:
    """Flights in one month or week: the public truth, and what the release says of it."""

    name: str
    truth: int
    noisy_sum: float
    estimate: float
    lower: float
    upper: float

    @property
    def is_covered(self) -> bool:
        return self.lower <= self.truth <= self.upper


@dataclasses.dataclass(frozen=True)
class SizeError:
    """Mean squared error over ranges of one size, realised in simulated releases and expected."""

    name: str
    size: int
    identity: float
    identity_theory: float
    tree: float
    tree_theory: float


@dataclasses.dataclass(frozen=True)
class Demo:
    """Everything the demonstration shows."""

    release: Release
    cells: np.ndarray
    epsilon: float
    months: list[Period]
    weeks: list[Period]
    errors: list[SizeError]


def run(epsilon: float = 0.1, level: float = 0.95, *, progress: Callable[[str], None] = lambda _: None) -> Demo:
    """Count the shipped flights, measure a 16-ary tree, estimate, answer by month and week, and measure the error.

    Args:
        epsilon: spent on one release of all flights of 2013, a flight being a record.
        level: of the intervals.
        progress: called with the name of each step before it begins.
    """
    progress("counting the flights")
    data = datasets.departures()
    cells = data.cells()
    tree = Tree.complete(cells.size, BRANCHING)
    progress("measuring a 16-ary tree")
    release = measure(cells, tree, epsilon=epsilon, domain=data.domain)
    progress("least squares")
    estimate = least_squares(release)
    noisy_cells = np.asarray(release.values)[-cells.size :]

    def periods(names: list[str], stops: np.ndarray) -> list[Period]:
        ranges = Ranges(cells.size, np.concatenate([[0], stops[:-1]]), stops)
        answers = estimate.answer(ranges)
        lower, upper = answers.interval(level)
        columns = (ranges @ cells, ranges @ noisy_cells, answers.values, lower, upper)
        rows = zip(names, *(np.asarray(column).tolist() for column in columns), strict=True)
        return [Period(*row) for row in rows]

    progress("answers by month and by week")
    day = np.datetime64("2013-01-01", "D")
    month_starts = np.arange("2013-02", "2014-02", dtype="datetime64[M]").astype("datetime64[D]")
    months = periods(
        [str(m) for m in np.arange("2013-01", "2014-01", dtype="datetime64[M]")], (month_starts - day).astype(int) * 96
    )
    week_days = np.minimum(np.arange(7, 372, 7), 365)
    weeks = periods([str(day + int(d)) for d in np.arange(0, 365, 7)], week_days * 96)
    errors = _errors(cells, tree, epsilon, progress)
    return Demo(release, cells, epsilon, months, weeks, errors)


def _errors(cells: np.ndarray, tree: Tree, epsilon: float, progress: Callable[[str], None]) -> list[SizeError]:
    sizes = list(SIZES.values())
    truth = jnp.asarray(cells, float)

    def trial(strategy: Queries) -> Callable[[jax.Array], Array]:
        def error(key: jax.Array) -> Array:
            measurement = simulate(truth, strategy, epsilon=epsilon, noise="discrete_laplace", key=key)
            return squared_error_by_range_size(least_squares(measurement).cells, truth, sizes)

        return jax.jit(error)

    keys = jax.random.split(jax.random.key(2013), TRIALS)
    realised, expected = {}, {}
    for name, strategy in (("identity", Identity(cells.size)), ("tree", tree)):
        progress(f"{TRIALS} simulated releases of the {name}")
        one = trial(strategy)
        realised[name] = np.mean([one(key) for key in keys], axis=0)
        progress(f"expected error of the {name}")
        estimate = least_squares(simulate(truth, strategy, epsilon=epsilon, noise="discrete_laplace", key=keys[0]))
        workloads = [ranges_of_size(cells.size, size, most=_THEORY_RANGES) for size in sizes]
        expected[name] = [float(np.mean(np.square(estimate.answer(w).stddev))) for w in workloads]
    columns = (realised["identity"].tolist(), expected["identity"], realised["tree"].tolist(), expected["tree"])
    return [SizeError(name, size, *row) for (name, size), *row in zip(SIZES.items(), *columns, strict=True)]


def period_table(title: str, periods: list[Period]) -> Any:
    """A rich table of periods."""
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


def error_table(errors: list[SizeError]) -> Any:
    """A rich table of errors by the length of the range."""
    from rich.table import Table

    table = Table(
        title="Mean squared error of a sum over neighbouring cells: mean of 20 simulated releases, and expected",
        title_justify="left",
    )
    table.add_column("range", justify="left", no_wrap=True)
    for name in ("identity", "expected", "tree", "expected", "identity / tree"):
        table.add_column(name, justify="right", no_wrap=True)
    for e in errors:
        numbers = (e.identity, e.identity_theory, e.tree, e.tree_theory)
        table.add_row(e.name, *(f"{x:,.0f}" for x in numbers), f"{e.identity_theory / e.tree_theory:.2f}")
    return table
