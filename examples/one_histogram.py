"""All estimators of a histogram on one page: their errors, and how often their intervals cover, held out, at one epsilon.

python examples/one_histogram.py [--data departures|adult|planes|FILE.npy] [--cells 96] [--epsilon 0.1] [--releases 10]
    [--slow-releases 3] [--ranges 500] [--estimators NAME ...] [--level 0.9] [--seed 0] [--draws 500] [--chains 2]
    [--json FILE] [--output one_histogram.png]

The departures from New York City in a week of July 2013 by the quarter-hour, adults by age, planes by how many flights they made,
or counts of your own, always the first so many cells. Held out means three things:

- estimators see noisy answers only; the true counts are for scores only;
- what is scored are cells, and ranges drawn from a key of their own before any noise; MWEM chooses its queries from others;
- the held-out score needs no truth, but a second release of the cells with the same epsilon, which no estimator sees. Its mean
  squared difference from an estimate, less the variance of its noise, is on average the mean squared error of the cells. An
  analyst can compute it, for a budget of its own. It stands beside the true error, so that one sees how near it is.

Each estimator spends all of epsilon; neighbours differ by one record, all noise is discrete Laplace. Errors are roots of mean
squares over releases, which are also what standard errors are over. Estimators of one strategy see the same releases, from a key;
those of mechanisms that look at the data are real ones, which differ from run to run. Ends of posterior intervals are rounded to
whole numbers, since a continuous prior has a count k spread over k - 1/2 to k + 1/2; exact intervals of linear estimates are as
they are. Some of the others have bootstrap intervals, which are known not to cover where counts are near 0.

Clipped noisy cells are non-negative least squares of them. Estimators of counts by rank and of numbers of groups by size are left
out: they answer other questions (``degree_sequences.py``, ``count_of_counts.py``); and so is ``region_counts``, which is another
model in every release (``bayesian_models.py``). Most of the time goes into compiling: some seven minutes on two cores.
"""

import argparse
import json
import platform
import textwrap
import time
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from tqdm import tqdm

import dpinfer as dpi
from dpinfer import inference, mechanisms, methods, models
from dpinfer.accuracy import best_branching
from dpinfer.datasets import adult_age_hours, departures, plane_flights, read_histogram
from dpinfer.plots import COLORS, GREY, MARKERS, save
from dpinfer.queries import Identity, Partition, Ranges, Total, Tree, VStack

CLIPPED, NONNEGATIVE, NOISE_FIRST = BOOTSTRAPPED = ("clipped at 0", "tree of 16 not negative", "NoiseFirst")
NOISY = "noisy cells"
BY_CHAINS = "numpyro models"
# With all that is done by chains tried on --slow-releases only.
SLOW = ("mmse flat", "ISPE least squares", "ISPE mmse", "MWEM maximum entropy")
# ISPE: the share of epsilon that the cells get, and which differences of smoothed neighbours join them, in units of 1 / epsilon:
# some three and a half standard deviations of what is left of the noise.
SHARE, THRESHOLD = Fraction(3, 4), 2.4
PRIORS = ("independent", "segments", "walk", "stacked")
# Cells in a sum for maximum entropy, which leaves open how a sum falls to them; queries that MWEM asks.
BLOCK, ROUNDS = 8, 10
SQUARES, SHARES = ("cells", "ranges", "held_out"), ("cells_inside", "ranges_inside")


class Found(NamedTuple):
    """Cells [n] and sums [ranges], and the ends of their intervals, [2, ...] each; whether chains converged."""

    cells: np.ndarray
    sums: np.ndarray
    cell_ends: np.ndarray | None = None
    sum_ends: np.ndarray | None = None
    converged: bool = True


class Way(NamedTuple):
    """An estimator: from private cells and a key to what it sees, and from that and another key to what it makes of it."""

    release: Callable[[np.ndarray, jax.Array], Any]
    estimate: Callable[[Any, jax.Array], Found]
    group: str = ""


class Row(NamedTuple):
    """An estimator's scores, [releases] each: mean squares, shares and widths, nan where there are no intervals."""

    numbers: np.ndarray
    cells: np.ndarray
    ranges: np.ndarray
    held_out: np.ndarray
    cells_inside: np.ndarray
    ranges_inside: np.ndarray
    width: np.ndarray
    seconds: np.ndarray
    converged: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description="All estimators of one histogram: errors and coverage, held out.")
    parser.add_argument("--data", default="departures", help="departures, adult, planes, or a .npy file of counts of one axis")
    parser.add_argument("--cells", type=int, default=96, help="the first so many")
    parser.add_argument("--epsilon", type=Fraction, default=Fraction("0.1"))
    parser.add_argument("--releases", type=int, default=10)
    parser.add_argument("--slow-releases", type=int, default=3, help="those among them that slow estimators are tried on")
    parser.add_argument("--ranges", type=int, default=500)
    parser.add_argument("--estimators", nargs="+", metavar="NAME", help="as in the table; left out, all")
    parser.add_argument("--level", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=500, help="of a chain, after as many in which it adapts")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for all numbers")
    parser.add_argument("--output", type=Path, default=Path("one_histogram.png"))
    options = parser.parse_args()
    if min(options.releases, options.slow_releases) < 2:
        parser.error("standard errors take two releases at least")
    dpi.enable_x64()
    counts = histogram(options.data)[: options.cells]
    n, slow = counts.size, min(options.slow_releases, options.releases)
    keys = jax.random.split(jax.random.key(options.seed), options.releases + 2)
    ranges, others = (dpi.workloads.random_ranges(n, options.ranges, key=key) for key in keys[:2])
    ways = estimators(n, ranges, others, options)
    if unknown := set(options.estimators or ways) - set(ways):
        parser.error(f"no such estimators: {', '.join(sorted(unknown))}; there are {', '.join(ways)}")
    ways = {name: way for name, way in ways.items() if name in {NOISY, *(options.estimators or ways)}}
    stddev = float(ways[NOISY].release(counts, keys[0]).stddev)

    print(f"{options.data}: {n:,} cells, {counts.sum():,} records. Each estimator spends epsilon = {float(options.epsilon):g};")
    print(f"noise in one cell has a standard deviation of {stddev:.4g}. {options.releases} releases, {slow} of slow ones.")
    print("Held out: estimators see noisy answers only, the true counts are for scores only; scored are cells, and")
    print(f"{options.ranges} random ranges drawn before any noise; the held-out score needs no truth, but a second release of")
    print("the cells that no estimator sees: its square is on average that of the error of a cell. Errors: roots of mean")
    print(f"squares; inside: shares of truths in {options.level:.0%} intervals; +- standard errors over releases; *: least in a")
    print(f"column. Bootstrap intervals: {', '.join(BOOTSTRAPPED)}. MWEM and 'total known' are told the")
    print("number of records. width: of a cell's interval, mean; s: median seconds of a release, estimate and intervals.")
    rows, failures = measured(ways, counts, ranges, keys[2:], options)
    print_table(ways, rows)
    verdict = print_verdict(rows, options.level)
    for name, texts in failures.items():
        say(f"{name} failed in {len(texts)} of its releases, which its row leaves out: {texts[0]}")
    if options.json is not None:
        report = {
            "settings": {name: str(value) for name, value in vars(options).items() if name not in ("json", "output")},
            "versions": {"dpinfer": dpi.__version__, "jax": jax.__version__, "python": platform.python_version()},
            "noise_stddev": stddev,
            "estimators": [{"name": name, "group": ways[name].group} | summary(row) for name, row in rows.items()],
            "verdict": verdict | {"failed": failures},
        }
        options.json.write_text(json.dumps(report, indent=1))
        print(f"Numbers: {options.json}")
    save(figure_of(ways, rows, options.level), options.output)
    print(f"Figure: {options.output}")


def histogram(name: str) -> np.ndarray:
    """The true counts, int64."""
    if name == "departures":
        days = np.arange("2013-01-01", "2014-01-01", dtype="datetime64[D]")
        quarters = departures().cells().reshape(days.size, 96)
        return quarters[(days >= np.datetime64("2013-07-15")) & (days < np.datetime64("2013-07-22"))].sum(axis=0)
    if name == "adult":
        people = adult_age_hours()
        return people.cells().reshape(people.domain.shape).sum(axis=1)
    if name == "planes":
        # A plane counts for each carrier and airport that it left from; from one flight on.
        return np.bincount(np.bincount(plane_flights().entities["group"]))[1:]
    return read_histogram(Path(name))


def estimators(n: int, ranges: Ranges, others: Ranges, options: argparse.Namespace) -> dict[str, Way]:
    """All of them, in the order of the table; MWEM gets the other ranges."""
    level, epsilon, each = options.level, options.epsilon, Ranges(n, np.arange(n), np.arange(n) + 1)

    def seeded(make: Callable[..., methods.Method], *given: Any, **settings: Any) -> Any:
        method = cache(partial(make, *given, **settings))
        return lambda cells, key: method().simulate(cells, epsilon=epsilon, key=key, noise="discrete_laplace")

    def private(mechanism: Callable[..., Any], **settings: Any) -> Any:
        return lambda cells, _: mechanism(cells, epsilon=epsilon, **settings)

    def ispe(cells: np.ndarray, _: jax.Array) -> Any:
        budgets = {"cell_epsilon": SHARE * epsilon, "partition_epsilon": (1 - SHARE) * epsilon}
        return mechanisms.ispe(cells, n, **budgets, threshold=THRESHOLD / float(epsilon)).measurement

    def mwem(cells: np.ndarray, _: jax.Array, workload: Any) -> Any:
        total, rounds = int(cells.sum()), min(ROUNDS, workload.shape[0])
        return mechanisms.mwem(cells, workload, epsilon=epsilon, total=total, rounds=rounds).measurement, total

    def answers(estimate: Any, change: Callable[[Any], np.ndarray] = np.asarray) -> Found:
        cells, sums = estimate.answer(each), estimate.answer(ranges)
        ends = [change(found.interval(level)) for found in (cells, sums)]
        return Found(np.asarray(cells.values), np.asarray(sums.values), ends[0], ends[1])

    def points(estimate: Any) -> Found:
        return Found(np.asarray(estimate.cells), np.asarray(estimate.answer(ranges).values))

    def summed(cells: Any, ends: Any = None) -> Found:
        return Found(np.asarray(cells), np.asarray(ranges @ np.asarray(cells)), ends)

    def linear(release: Any, _: jax.Array) -> Found:
        return answers(dpi.least_squares(release))

    def nonnegative(release: Any) -> Any:
        return inference.nonnegative_least_squares(release).cells

    def bootstrapped(estimate: Callable[[Any], Any]) -> Any:
        return lambda release, key: answers(inference.bootstrap(release, estimate, key=key))

    def by_mmse(release: Any, _: jax.Array, prior: Any = "flat") -> Found:
        cells, sums = inference.mmse(release, prior=prior), inference.mmse(release, ranges, prior=prior)
        return Found(cells.mean, sums.mean, np.round(cells.interval(level)), np.round(sums.interval(level)))

    def by_moments(release: Any, key: jax.Array) -> Found:
        """The prior's mean and variance are those of the noisy cells, less what the noise adds."""
        values = np.asarray(release.values)
        mean = max(values.mean(), 0.5)
        excess = max(values.var() - float(release.stddev) ** 2 - mean, 0.01 * mean)
        return by_mmse(release, key, inference.poisson_gamma(mean**2 / excess, mean / excess))

    def by_tree(release: Any, _: jax.Array) -> Found:
        found = inference.tree_posterior(release, "nonnegative")
        return summed(found.cells, np.round(found.interval(level))[:, found.leaves])

    def by_cells(release: Any, _: jax.Array, prior: str) -> Found:
        found = inference.cell_posterior(release, prior)
        return summed(found.cells, np.asarray(found.interval(level)))

    def by_neighbors(release: Any, _: jax.Array) -> Found:
        found = inference.neighborhood_posterior(release, n, method="hierarchical")
        return summed(found.mean, np.round(found.interval(level)))

    def of(make: Callable[[Any], Any] = lambda release: release) -> Any:
        return lambda release, _: points(make(release))

    def known_total(release: Any) -> Any:
        return release[0].with_exact(Total(n), [release[1]])

    def by_model(release: Any, key: jax.Array, model: Any) -> Found:
        settings = {"num_draws": options.draws, "num_chains": options.chains}
        found: Any = inference.posterior(release, model, method="nuts", key=key, **settings)
        return answers(found, np.round)._replace(converged=bool(found.sampling.converged))

    shifted = VStack([Partition((np.arange(n) + shift) // BLOCK) for shift in (0, BLOCK // 2)])
    cells, tree = seeded(methods.noisy_cells, n), seeded(methods.consistent_tree, n, 16)
    binary, learnt = seeded(methods.consistent_tree, n, 2, root=True), seeded(methods.empirical_tree, n)
    queries = partial(mwem, workload=others)
    groups = {
        "linear": {
            NOISY: Way(cells, linear),
            "tree of 2": Way(seeded(methods.consistent_tree, n, 2), linear),
            "tree of 16": Way(tree, linear),
            "tree of best branching": Way(seeded(lambda: methods.consistent_tree(n, best_branching(n))), linear),
            "tree of optimal budgets": Way(seeded(methods.recommended, n), linear),
            "wavelet": Way(seeded(methods.privelet, n), linear),
            "tree of fewest nodes": Way(binary, lambda r, _: answers(inference.fewest_nodes(r))),
        },
        "constrained": {
            CLIPPED: Way(cells, bootstrapped(lambda r: jnp.maximum(r.values, 0.0))),
            "not negative and total known": Way(
                lambda x, key: cells(x, key).with_exact(Total(n), [x.sum()]), lambda r, _: summed(nonnegative(r))
            ),
            NONNEGATIVE: Way(tree, bootstrapped(nonnegative)),
            "zeroed subtrees": Way(binary, of(inference.zeroed_subtrees)),
            "maximum entropy of blocks": Way(
                seeded(methods.Method, "blocks", shifted, None, dpi.least_squares), of(inference.maximum_entropy)
            ),
        },
        "posteriors in closed form": {
            "mmse flat": Way(cells, by_mmse),
            "mmse nonnegative": Way(cells, partial(by_mmse, prior="nonnegative")),
            "mmse poisson_gamma": Way(cells, by_moments),
            "tree_posterior nonnegative": Way(tree, by_tree),
            **{f"cell_posterior {prior}": Way(cells, partial(by_cells, prior=prior)) for prior in PRIORS},
            "range_posterior combined": Way(learnt, lambda r, _: answers(inference.range_posterior(r), np.round)),
            "range_posterior tilted": Way(learnt, of(partial(inference.range_posterior, method="tilted"))),
        },
        "bins": {
            NOISE_FIRST: Way(cells, bootstrapped(inference.noise_first)),
            "segmentation average": Way(cells, lambda r, key: answers(inference.segmentation_draws(r, key=key), np.round)),
            "uniform": Way(
                seeded(methods.Method, "total", Total(n), None, dpi.least_squares),
                lambda r, _: summed(np.full(n, max(float(r.values[0]), 0.0) / n)),
            ),
        },
        "looking at the data": {
            "ISPE least squares": Way(ispe, linear),
            "ISPE mmse": Way(ispe, by_mmse),
            "ISPE neighborhood": Way(ispe, by_neighbors),
            "DAWA buckets": Way(private(mechanisms.dawa, values="identity"), of()),
            "DAWA tree": Way(private(mechanisms.dawa), of()),
            "AHP": Way(private(mechanisms.ahp), of()),
            "StructureFirst": Way(private(mechanisms.structure_first), of()),
            "MWEM ranges": Way(queries, of(lambda r: inference.multiplicative_weights(*r))),
            "MWEM cells": Way(partial(mwem, workload=Identity(n)), of(lambda r: inference.multiplicative_weights(*r))),
            "MWEM maximum entropy": Way(queries, of(lambda r: inference.maximum_entropy(known_total(r)))),
        },
        BY_CHAINS: {
            "log_gaussian": Way(cells, partial(by_model, model=models.log_gaussian(n))),
            "log_gaussian on tree of 16": Way(tree, partial(by_model, model=models.log_gaussian(n))),
            "sparse_counts": Way(cells, partial(by_model, model=models.sparse_counts(n))),
            "poisson_gamma": Way(cells, partial(by_model, model=models.poisson_gamma(n))),
            "segmented_counts": Way(cells, partial(by_model, model=models.segmented_counts(n))),
            "polya_tree": Way(cells, partial(by_model, model=models.polya_tree(Tree.complete(n, 4)))),
        },
    }
    return {name: way._replace(group=group) for group, own in groups.items() for name, way in own.items()}


def measured(
    ways: dict[str, Way], counts: np.ndarray, ranges: Ranges, keys: jax.Array, options: argparse.Namespace
) -> tuple[dict[str, Row], dict[str, list[str]]]:
    """Scores by estimator, and what those said that failed."""
    truth, cells = np.asarray(ranges @ counts), ways[NOISY].release
    scores: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    failures: dict[str, list[str]] = {}
    slow = [name for name, way in ways.items() if name in SLOW or way.group == BY_CHAINS]
    work = [(i, name) for i in range(len(keys)) for name in ways if i < options.slow_releases or name not in slow]
    seeds = [jax.random.split(key, 3) for key in keys]
    seconds = [cells(counts, second_key) for _, second_key, _ in seeds]
    made: dict[Any, tuple[Any, float]] = {}
    for number, name in tqdm(work, unit=" estimates", leave=False, disable=None):
        noise_key, _, own_key = seeds[number]
        source, second = (number, ways[name].release), seconds[number]
        try:
            if source not in made:
                made[source] = timed(ways[name].release, counts, noise_key)
            found, spent = timed(ways[name].estimate, made[source][0], own_key)
        except ValueError as error:
            failures.setdefault(name, []).append(str(error))
            continue
        held_out = np.square(found.cells - second.values).mean() - float(second.stddev) ** 2
        squares = np.square(found.cells - counts).mean(), np.square(found.sums - truth).mean(), held_out
        shares = share_inside(found.cell_ends, counts), share_inside(found.sum_ends, truth)
        width = np.nan if found.cell_ends is None else (found.cell_ends[1] - found.cell_ends[0]).mean()
        scores[name].append((number, *squares, *shares, width, made[source][1] + spent, found.converged))
    return {name: Row(*np.transpose(own)) for name, own in scores.items() if len(own) > 1}, failures


def timed(call: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    return call(*given), time.perf_counter() - begin


def share_inside(ends: np.ndarray | None, truth: np.ndarray) -> float:
    return np.nan if ends is None else float(((ends[0] <= truth) & (truth <= ends[1])).mean())


def mean_and_spread(numbers: np.ndarray) -> tuple[float, float]:
    """Over releases, and the mean's standard error."""
    return float(numbers.mean()), float(numbers.std(ddof=1) / numbers.size**0.5)


def root_and_spread(squares: np.ndarray) -> tuple[float, float]:
    """The root of the mean, and its standard error by the delta method; 0 and nan where the mean is negative."""
    mean, spread = mean_and_spread(squares)
    return (mean**0.5, spread / (2 * mean**0.5)) if mean > 0 else (0.0, np.nan)


def print_table(ways: dict[str, Way], rows: dict[str, Row]) -> None:
    print(f"{'':<30}{'error of a cell ':>18}{'error of a range ':>18}{'held-out score ':>18}{'cells inside':>16}", end="")
    print(f"{'ranges inside':>16}{'width':>8}{'s':>7}")
    least = {kind: min(root_and_spread(getattr(row, kind))[0] for row in rows.values()) for kind in SQUARES}
    group = ""
    for name, row in rows.items():
        if ways[name].group != group:
            group = ways[name].group
            print(f"{group}:")
        line = f"  {name:<28}"
        for kind in SQUARES:
            root, spread = root_and_spread(getattr(row, kind))
            line += f"{f'{root:.4g} +- {spread:.2g}' + ('*' if root == least[kind] else ' '):>18}"
        for kind in SHARES:
            mean, spread = mean_and_spread(getattr(row, kind))
            line += f"{'-' if np.isnan(mean) else f'{mean:.3f} +- {spread:.3f}':>16}"
        line += f"{'-' if np.isnan(row.width.mean()) else f'{row.width.mean():.4g}':>8}{np.median(row.seconds):>7.2f}"
        print(line)


def print_verdict(rows: dict[str, Row], level: float) -> dict[str, Any]:
    """From the numbers alone."""
    verdict: dict[str, Any] = {}
    say("Near the least: not two standard errors above it, by means or by differences in the releases that both have.")
    for kind, word in zip(SQUARES, ("error of a cell", "error of a range", "held-out score"), strict=True):
        best = min(rows, key=lambda name, kind=kind: getattr(rows[name], kind).mean())
        near = [name for name in rows if name != best and is_near(rows[name], rows[best], kind)]
        say(f"Least {word}: {best}. Near it:", near)
        verdict[kind] = {"least": best, "near": near}
    ratio = (rows[verdict["held_out"]["least"]].cells.mean() / rows[verdict["cells"]["least"]].cells.mean()) ** 0.5
    say(f"What has the least held-out score has {ratio:.2f} times the least error of a cell.")
    gaps = {name: mean_and_spread(row.held_out - row.cells) for name, row in rows.items()}
    off = [name for name, (mean, spread) in gaps.items() if abs(mean) > 2 * spread]
    say("Held-out scores in a release share its second one, and are off together.")
    say(f"By over two standard errors from the true ones are {len(off)} of {len(rows)}:", off)
    for kind in SHARES:
        shares = {name: mean_and_spread(getattr(row, kind)) for name, row in rows.items()}
        verdict[kind] = [name for name, (mean, spread) in shares.items() if mean < level - 2 * spread]
        say(f"{kind.split('_')[0].capitalize()} inside less often than {level:.0%} by two standard errors:", verdict[kind])
    doubtful = {name: int((row.converged == 0).sum()) for name, row in rows.items() if not row.converged.all()}
    counted = [f"{name} ({count} of {rows[name].converged.size})" for name, count in doubtful.items()]
    say("Chains that by their own checks have not converged:", counted)
    return verdict | {"held_out_off": off, "not_converged": doubtful}


def say(words: str, names: list[str] | None = None) -> None:
    text = words if names is None else f"{words} {', '.join(names) or 'none'}."
    print(textwrap.fill(text, 126, subsequent_indent="  "))


def is_near(row: Row, best: Row, kind: str) -> bool:
    """Differences see what is left of noise that both have in common, means see all releases of either."""
    squares, least = getattr(row, kind), getattr(best, kind)
    (mean, spread), (other, other_spread) = mean_and_spread(squares), mean_and_spread(least)
    both, own, others = np.intersect1d(row.numbers, best.numbers, return_indices=True)
    if mean - other > 2 * np.hypot(spread, other_spread) or both.size < 2:
        return False
    mean, spread = mean_and_spread(squares[own] - least[others])
    return mean <= 2 * spread


def summary(row: Row) -> dict[str, Any]:
    """What the table has, and the numbers of each release; None for nan."""
    found: dict[str, Any] = {}
    for kind in (*SQUARES, *SHARES):
        numbers = getattr(row, kind)
        mean, spread = (root_and_spread if kind in SQUARES else mean_and_spread)(numbers)
        entry = {"mean": mean, "standard_error": None if np.isnan(spread) else spread, "by_release": numbers.tolist()}
        found[kind] = None if np.isnan(mean) else entry
    width = None if np.isnan(row.width).any() else float(row.width.mean())
    return found | {"width": width, "seconds": float(np.median(row.seconds)), "releases": row.numbers.astype(int).tolist()}


def figure_of(ways: dict[str, Way], rows: dict[str, Row], level: float) -> Figure:
    """Errors over those of noisy cells, and coverage: an estimator a line, bars of two standard errors either way."""
    lines: list[str] = []
    for name in rows:
        lines += [name] if ways[name].group in (ways[last].group for last in lines if last in ways) else [ways[name].group, name]
    figure = Figure(figsize=(12, 1.6 + 0.23 * len(lines)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.6, 1))
    for kind, share, color, marker, shift in zip(SQUARES, SHARES, COLORS[::2], MARKERS[::2], (-0.17, 0.17), strict=False):
        look = {"color": color, "marker": marker, "fillstyle": "none", "linestyle": "", "elinewidth": 1, "markersize": 4.5}
        least = root_and_spread(getattr(rows[NOISY], kind))[0]
        places = [lines.index(name) + shift for name in rows]
        roots, spreads = np.transpose([root_and_spread(getattr(row, kind)) for row in rows.values()])
        left.errorbar(roots / least, places, xerr=2 * spreads / least, **look, label=kind)
        means, spreads = np.transpose([mean_and_spread(getattr(row, share)) for row in rows.values()])
        right.errorbar(means, places, xerr=2 * spreads, **look)
    left.set_xscale("log")
    left.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.xaxis.set_major_formatter("{x:g}")
    left.xaxis.set_minor_formatter(NullFormatter())
    right.set_xlim(None, 1.02)
    left.set_yticks(range(len(lines)), lines)
    for line, text in zip(lines, left.get_yticklabels(), strict=True):
        text.set_fontweight("normal" if line in ways else "bold")
    left.set_ylim(len(lines) - 0.5, -0.5)
    for axes, place, title in ((left, 1, f"Error over that of {NOISY}"), (right, level, f"Share inside {level:.0%} intervals")):
        axes.axvline(place, color=GREY, linewidth=0.8)
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False)
    return figure


if __name__ == "__main__":
    main()
