"""How accurate every way to release a histogram is at one epsilon: cells, and ranges of them, after DPBench (Hay et al. 2016).

python examples/frontier.py [--quick] [--sets departures steps ...] [--data counts.npy FOLDER ...] [--cells 4096] [--epsilon 0.1]
    [--scales 1e3 1e4 1e5 1e6 native] [--trials 20] [--slow-trials 5] [--ranges 2000] [--estimators NAME ...]
    [--json frontier.json] [--plot frontier.png]

On counts that ship with the package or are made up, and on your own (.npy files of one axis, such as those of DPBench, or folders
of them), always the first so many cells. A scale is a number of records, drawn anew to the shape of the counts in every trial
(multinomial); "native" are the counts as they are, of real data alone. Errors are root mean squares over cells, or over ranges
drawn once at random; means over trials and their standard errors. Neighbours differ by one record; all noise is discrete Laplace.

Estimators that only process noisy linear queries get simulated ones from a seed, all the same where the queries are; mechanisms
that look at the data run as they are, with noise that cannot be seeded, so that their numbers differ from run to run by their
standard errors. The slow ones get fewer trials. MWEM is told the number of records, which nobody else is.

``cell_posterior`` and ``range_posterior`` as they come are compared with one baseline each, and with the best of all others on
each counts and scale: chosen in hindsight by the very errors that are printed, which is generous to the others. Other settings
of the two are shown and count on neither side. All verdicts are computed from the numbers.
"""

import argparse
import json
import os
import platform
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from tqdm import tqdm

import dpinfer as dpi
from dpinfer import methods
from dpinfer.accuracy import best_branching
from dpinfer.datasets import adult_age_hours, departures, plane_flights, read_histogram, synthetic_histogram
from dpinfer.inference import (
    CellPosterior,
    RangePosterior,
    cell_posterior,
    multiplicative_weights,
    noise_first,
    nonnegative_least_squares,
    range_posterior,
    segmentation_average,
)
from dpinfer.mechanisms import BucketedCells, ahp, dawa, mwem, structure_first
from dpinfer.plots import COLORS, MARKERS, save
from dpinfer.queries import Identity, Ranges, Total, Tree

SETS = ("departures", "adult", "planes", "sparse", "smooth", "bursty", "steps", "zipf")
QUICK_SETS = ("departures", "zipf")
NATIVE = "native"
WORKLOADS = ("cells", "ranges")
NOISY, CLIPPED, TREE = "noisy cells", "noisy cells, clipped at 0", "tree of 16"
CELLS, RANGES = "cell_posterior", "range_posterior"
# For each workload what is put to the test, and the baseline it always meets.
HEADLINES = {"cells": (CELLS, CLIPPED), "ranges": (RANGES, TREE)}
BEST = "the best of the others in hindsight"
WORDS = ("better", "level", "worse")
LEVEL = 0.9
ROUNDS = 10
# As many as can be told apart.
DRAWN = {
    "cells": (CELLS, RANGES, "NoiseFirst", "DAWA, buckets", "AHP", TREE),
    "ranges": (RANGES, CELLS, NOISY, "DAWA, tree", "AHP", "wavelet"),
}


class Way(NamedTuple):
    """From private cells and a key to cells, or an estimate that has them; whether it is on trial, and whether slow."""

    estimate: Callable[[np.ndarray, jax.Array], Any]
    is_own: bool = False
    is_slow: bool = False


@dataclass(frozen=True)
class Comparison:
    """Of an estimator with a rival, one baseline or the best of all: the ratio of their errors, and who is better."""

    data: str
    scale: str
    workload: str
    estimator: str
    against: str
    rival: str
    ratio: float
    standard_error: float
    word: str


@dataclass(frozen=True)
class Case:
    """Counts at a scale: ``cells`` int64 [trials, n]; and by the name of the way the errors, [trials, workloads]."""

    title: str
    scale: str
    cells: np.ndarray
    errors: dict[str, np.ndarray]
    coverage: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        return f"{self.title} {self.scale}"

    def of(self, way: str, workload: str) -> np.ndarray:
        return self.errors[way][:, WORKLOADS.index(workload)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy of all estimators at one epsilon, on cells and on ranges of them.")
    parser.add_argument("--quick", action="store_true", help="fewer sets, scales and trials where these are not given")
    parser.add_argument("--sets", nargs="*", choices=SETS, help="that ship or are made up; left out, all")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help=".npy files of counts of one axis, or folders of them")
    parser.add_argument("--cells", type=int, default=4096, help="the first so many of the data; fewer are filled up with zeros")
    parser.add_argument("--epsilon", type=Fraction, default=Fraction("0.1"))
    parser.add_argument("--scales", nargs="+", help=f"numbers of records, or {NATIVE}; left out, 1e3 1e4 1e5 1e6 {NATIVE}")
    parser.add_argument("--trials", type=int, help="left out, 20")
    parser.add_argument("--slow-trials", type=int, help="of slow estimators and of intervals; left out, 5")
    parser.add_argument("--ranges", type=int, default=2000)
    parser.add_argument("--estimators", nargs="*", metavar="NAME", help="of the others, as in the tables; left out, all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="trials that run at once")
    parser.add_argument("--json", type=Path, help="a file for all numbers")
    parser.add_argument("--plot", type=Path, help="a file for the figure")
    options = parser.parse_args()
    for name, quick, full in (
        ("sets", QUICK_SETS, SETS),
        ("scales", ["1e3", "1e5"], ["1e3", "1e4", "1e5", "1e6", NATIVE]),
        ("trials", 3, 20),
        ("slow_trials", 2, 5),
    ):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    if options.trials < 2 or options.slow_trials < 2:
        parser.error("standard errors take two trials at least")
    if options.cells < 16:
        parser.error(f"--cells must be at least 16, got {options.cells}")
    dpi.enable_x64()
    n = options.cells
    ranges = dpi.workloads.random_ranges(n, options.ranges, key=jax.random.key(options.seed))
    ways = estimators(n, options.epsilon, ranges)
    if options.estimators is not None:
        if unknown := set(options.estimators) - set(ways):
            parser.error(f"no such estimators: {', '.join(sorted(unknown))}; there are {', '.join(ways)}")
        kept = {*options.estimators, *(name for pair in HEADLINES.values() for name in pair)}
        ways = {name: way for name, way in ways.items() if name in kept}
    cases = drawn_cases(options)
    if not cases:
        parser.error("no counts at any scale; --sets, --data or --scales leave nothing")
    trials = {name: min(options.slow_trials, options.trials) if way.is_slow else options.trials for name, way in ways.items()}

    print(f"Errors at epsilon = {float(options.epsilon):g}; {n:,} cells, {options.ranges:,} ranges, neighbours one record apart.")
    print(f"Root mean squares, means of {options.trials} trials or the number named, +- standard errors; * the least of all.")
    print("Every row is a release of its own that spends all of epsilon. MWEM is told the number of records.")
    seconds = run(cases, ways, trials, ranges, options)
    found = comparisons(cases, ways)
    print_ratios(found, scales_of(cases))
    report = {
        "settings": {name: text_of(value) for name, value in vars(options).items() if name not in ("json", "plot")},
        "versions": {"dpinfer": dpi.__version__, "jax": jax.__version__, "python": platform.python_version()},
        "errors": [
            {"data": case.title, "scale": case.scale, "workload": workload, "estimator": name} | summary(case.of(name, workload))
            for case in cases
            for workload in WORKLOADS
            for name in ways
        ],
        "comparisons": [asdict(one) for one in found],
        "geometric_means": print_geometric_means(cases, ways),
        "coverage": print_coverage(cases),
        "verdict": print_verdict(found, cases, ways),
        "seconds": seconds,
    }
    print("Seconds of a trial: " + "; ".join(f"{name} {spent:.2g}" for name, spent in seconds.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1))
        print(f"Numbers: {options.json}")
    if options.plot is not None:
        save(figure_of(cases), options.plot)
        print(f"Figure: {options.plot}")


def estimators(n: int, epsilon: Fraction, ranges: Ranges) -> dict[str, Way]:
    """All that are compared, in the order of the tables."""
    flat, tree, branching = methods.noisy_cells(n), methods.consistent_tree(n, 16), best_branching(n)
    total = methods.Method("total", Total(n), None, dpi.least_squares)

    def simulated(method: methods.Method, estimate: Callable[[dpi.Measurement], Any] | None = None) -> Any:
        """What is made of the method's measurement, by itself if nothing else is said, compiled."""
        make = estimate or (lambda measurement: method.estimate(measurement).cells)
        return jax.jit(lambda cells, key: make(method.simulate(cells, epsilon=epsilon, key=key, noise="discrete_laplace")))

    def of_cells(prior: str) -> Any:
        return simulated(flat, lambda measurement: cell_posterior(measurement, prior))

    def of_ranges(method: str) -> Any:
        return simulated(methods.empirical_tree(n), lambda measurement: range_posterior(measurement, method=method))

    def noise_first_cells(cells: np.ndarray, key: jax.Array) -> Any:
        # On the host it is faster by far than under jit.
        return noise_first(flat.simulate(cells, epsilon=epsilon, key=key, noise="discrete_laplace")).cells

    def learnt(cells: np.ndarray, _: jax.Array, workload: Any) -> Any:
        records = int(cells.sum())
        release = mwem(cells, workload, epsilon=epsilon, total=records, rounds=min(ROUNDS, workload.shape[0]))
        return multiplicative_weights(release, records).cells

    return {
        CELLS: Way(of_cells("stacked"), is_own=True),
        **{f"{CELLS}, {name}": Way(of_cells(name), is_own=True, is_slow=True) for name in ("independent", "segments", "walk")},
        RANGES: Way(of_ranges("combined"), is_own=True),
        f"{RANGES}, tilted": Way(of_ranges("tilted"), is_own=True, is_slow=True),
        NOISY: Way(simulated(flat)),
        CLIPPED: Way(simulated(flat, lambda measurement: jnp.maximum(measurement.values, 0.0))),
        TREE: Way(simulated(tree)),
        f"tree of {branching}": Way(simulated(methods.consistent_tree(n, branching))),
        "tree, optimal budgets": Way(simulated(methods.recommended(n))),
        "tree of 16, not negative": Way(simulated(tree, lambda measurement: nonnegative_least_squares(measurement).cells)),
        "wavelet": Way(simulated(methods.privelet(n))),
        "NoiseFirst": Way(noise_first_cells),
        "segmentation average": Way(simulated(flat, lambda measurement: segmentation_average(measurement).cells), is_slow=True),
        "StructureFirst, joint": Way(lambda cells, _: structure_first(cells, epsilon=epsilon).cells, is_slow=True),
        "DAWA, buckets": Way(lambda cells, _: cells_of(dawa(cells, epsilon=epsilon, values="identity"))),
        "DAWA, tree": Way(lambda cells, _: cells_of(dawa(cells, epsilon=epsilon))),
        "AHP": Way(lambda cells, _: ahp(cells, epsilon=epsilon).cells),
        "MWEM, ranges": Way(partial(learnt, workload=ranges), is_slow=True),
        "MWEM, cells": Way(partial(learnt, workload=Identity(n)), is_slow=True),
        "uniform": Way(simulated(total, lambda measurement: jnp.repeat(jnp.maximum(measurement.values, 0.0) / n, n))),
    }


def cells_of(release: BucketedCells) -> np.ndarray:
    """These are release.cells too, for which a program would be compiled for every new number of buckets."""
    sums = release.noisy_values
    if release.branching is not None:
        rows = np.asarray(Tree.complete(release.stops.size, release.branching).dense(), dtype=float)
        sums = np.linalg.solve(rows.T @ rows, rows.T @ sums)
    return (sums / release.sizes)[release.block_ids]


def intervals(ranges: Ranges) -> dict[str, Any]:
    """By the name of the posterior, from that and the true cells to shares of truths in intervals, and the mean width of these.

    For cells: of all, of those with a posterior standard deviation above 1 (nan if there is none), mean width.
    """

    def of_cells(posterior: CellPosterior, cells: jax.Array) -> jax.Array:
        lower, upper = posterior.interval(LEVEL)
        inside, active = (lower <= cells) & (cells <= upper), posterior.stddev > 1
        return jnp.stack([inside.mean(), (inside & active).sum() / active.sum(), (upper - lower).mean()])

    def of_ranges(posterior: RangePosterior, cells: jax.Array) -> jax.Array:
        lower, upper = posterior.answer(ranges).interval(LEVEL)
        truth = ranges @ (cells * 1.0)
        return jnp.stack([((lower <= truth) & (truth <= upper)).mean(), (upper - lower).mean()])

    return {CELLS: jax.jit(of_cells), RANGES: jax.jit(of_ranges)}


def drawn_cases(options: argparse.Namespace) -> list[Case]:
    n, found = options.cells, []
    real = {"departures": lambda: departures().cells(), "adult": lambda: adult_age_hours().cells(), "planes": flights_by_plane}
    counts = {title: real[title]() if title in real else made_up(title, n) for title in options.sets}
    files = [file for path in options.data for file in (sorted(path.glob("*.npy")) if path.is_dir() else [path])]
    own = {file.stem: read_histogram(file) for file in files if np.load(file, mmap_mode="r").ndim == 1}
    for title, whole in (counts | own).items():
        cells = np.pad(whole[:n], (0, max(n - whole.size, 0)))
        for scale in options.scales:
            if not cells.sum() or (scale == NATIVE and title not in real and title not in own):
                continue
            if scale == NATIVE:
                drawn = np.broadcast_to(cells, (options.trials, n))
            else:
                records = int(float(scale))
                # The same whatever else is asked for.
                rng = np.random.default_rng([options.seed, zlib.crc32(title.encode()), records])
                drawn = rng.multinomial(records, cells / cells.sum(), size=options.trials)
            found.append(Case(title, scale, drawn, {}, {}))
    return found


def flights_by_plane() -> np.ndarray:
    """How often each plane left for a carrier from an airport: neighbours have little in common, few have most."""
    table = plane_flights()
    return np.bincount(table.entities["group"], minlength=table.groups["group"].size)


def made_up(shape: str, n: int, records: int = 1_000_000) -> np.ndarray:
    rng = np.random.default_rng(11)
    if shape == "steps":
        # Some hundred cells each, of very unlike heights.
        stops = np.sort(rng.choice(np.arange(1, n), size=min(n // 100 + 2, n - 1), replace=False))
        shares = rng.gamma(0.5, size=stops.size + 1)[np.searchsorted(stops, np.arange(n), side="right")]
    elif shape == "zipf":
        shares = 1 / (rng.permutation(n) + 1.0) ** 1.2
    else:
        return synthetic_histogram(shape, size=n, total=records)
    return rng.multinomial(records, shares / shares.sum())


def run(
    cases: list[Case], ways: dict[str, Way], trials: dict[str, int], ranges: Ranges, options: argparse.Namespace
) -> dict[str, float]:
    """Fills in the errors and the coverage of every case; seconds of a trial by way."""
    covered = intervals(ranges)
    asked = min(options.slow_trials, options.trials)
    seconds: dict[str, float] = {}
    work = len(cases) * (sum(trials.values()) + asked * len(covered))
    with ThreadPoolExecutor(options.threads) as pool, tqdm(total=work, unit=" trials", disable=None) as bar:

        def mapped(name: str, one: Callable[[int], Any], count: int) -> list[Any]:
            bar.set_description(name)
            # Compiled by one of the threads, and not in the time that is reported.
            first = [] if name in seconds else [one(0)]
            start = time.perf_counter()
            found = first + list(pool.map(one, range(len(first), count)))
            spent = (time.perf_counter() - start) / (count - len(first))
            seconds[name] = seconds.get(name, 0.0) + spent / len(cases)
            bar.update(count)
            return found

        for case in cases:
            start = jax.random.fold_in(jax.random.key(options.seed), zlib.crc32(case.name.encode()))

            def tried(trial: int, name: str, case: Case = case, start: jax.Array = start) -> tuple[np.ndarray, Any]:
                found = ways[name].estimate(case.cells[trial], jax.random.fold_in(start, trial))
                off = np.asarray(getattr(found, "cells", found), dtype=float) - case.cells[trial]
                return np.sqrt([np.square(off).mean(), np.square(ranges @ off).mean()]), found if trial < asked else None

            for name in ways:
                errors, estimates = zip(*mapped(name, partial(tried, name=name), trials[name]), strict=True)
                case.errors[name] = np.array(errors)
                if ask := covered.get(name):

                    def inside(trial: int, case: Case = case, ask: Any = ask, estimates: Any = estimates) -> np.ndarray:
                        return np.asarray(ask(estimates[trial], case.cells[trial]))

                    case.coverage[name] = np.array(mapped(f"{name}, intervals", inside, asked))
            alike = by_title(cases)[case.title]
            if case is alike[-1]:
                with tqdm.external_write_mode():
                    print_errors(alike, ways, trials, options.trials)
                    sys.stdout.flush()
    return seconds


def by_title(cases: list[Case]) -> dict[str, list[Case]]:
    return {title: [case for case in cases if case.title == title] for title in dict.fromkeys(case.title for case in cases)}


def scales_of(cases: list[Case]) -> list[str]:
    return list(dict.fromkeys(case.scale for case in cases))


def text_of(value: Any) -> Any:
    return [str(x) for x in value] if isinstance(value, (list, tuple)) else str(value)


def shown(number: float, digits: int = 4) -> str:
    return f"{number:,.0f}" if 10 ** (digits - 1) <= number < 1e7 else f"{number:.{digits}g}"


def mean_and_spread(errors: np.ndarray) -> tuple[float, float]:
    """Over trials, and the mean's standard error."""
    return float(errors.mean()), float(errors.std(ddof=1) / np.sqrt(errors.size))


def summary(errors: np.ndarray) -> dict[str, Any]:
    mean, spread = mean_and_spread(errors)
    return {"mean": mean, "standard_error": spread, "trials": errors.size}


def ratio(errors: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Of the means, and its standard error as if both were of different trials."""
    (mean, spread), (other, other_spread) = mean_and_spread(errors), mean_and_spread(others)
    return mean / other, mean / other * float(np.hypot(spread / mean, other_spread / other))


def compared(errors: np.ndarray, others: np.ndarray) -> str:
    (mean, spread), (other, other_spread) = mean_and_spread(errors), mean_and_spread(others)
    gap = other - mean
    limit = 2 * np.hypot(spread, other_spread)
    return WORDS[0 if gap > limit else 2 if gap < -limit else 1]


def comparisons(cases: list[Case], ways: dict[str, Way]) -> list[Comparison]:
    """Of each workload's headline with its fixed baseline, and with the best of the others."""
    found = []
    for workload, (headline, fixed) in HEADLINES.items():
        for against in (fixed, BEST):
            for case in cases:
                rival = best_other(case, ways, workload) if against == BEST else fixed
                errors, others = case.of(headline, workload), case.of(rival, workload)
                over = (case.title, case.scale, workload, headline, against, rival)
                found.append(Comparison(*over, *ratio(errors, others), compared(errors, others)))
    return found


def best_other(case: Case, ways: dict[str, Way], workload: str) -> str:
    return min((name for name, way in ways.items() if not way.is_own), key=lambda name: case.of(name, workload).mean())


def geometric_mean(ratios: list[tuple[float, float]]) -> tuple[float, float]:
    """Of ratios with standard errors, and its own standard error over trials, the counts being what they are."""
    values, spreads = np.array(ratios).T
    mean = float(np.exp(np.log(values).mean()))
    return mean, mean * float(np.sqrt(np.square(spreads / values).sum()) / len(ratios))


def print_errors(cases: list[Case], ways: dict[str, Way], trials: dict[str, int], most: int) -> None:
    for workload in WORKLOADS:
        word = "a cell" if workload == "cells" else "a range"
        print(f"{cases[0].title}, error of {word}")
        print(f"  {'records':<36}" + "".join(f"{f'{case.cells[0].sum():,} ({case.scale})':>22}" for case in cases))
        for name in ways:
            label = name if trials[name] == most else f"{name} ({trials[name]} trials)"
            line = f"  {label:<36}"
            for case in cases:
                mean, spread = mean_and_spread(case.of(name, workload))
                mark = "*" if mean == min(case.of(other, workload).mean() for other in ways) else ""
                line += f"{f'{shown(mean)} +- {shown(spread, 2)}{mark}':>22}"
            print(line)


def print_ratios(found: list[Comparison], scales: list[str]) -> None:
    for workload, (headline, fixed) in HEADLINES.items():
        print(f"Error of {workload}: that of {headline} over others', +- standard errors; {', '.join(WORDS)}: by two of them")
        print(f"  {'':<28}{fixed:>32}    {BEST}")
        pair = [[one for one in found if (one.workload, one.against) == (workload, against)] for against in (fixed, BEST)]
        for one, other in zip(*pair, strict=True):
            texts = [f"{x.ratio:.2f} +- {x.standard_error:.2f} {x.word:<6}" for x in (one, other)]
            print(f"  {f'{one.data} {one.scale}':<28}{texts[0]:>32}    {texts[1]} {other.rival}")
        for scale in scales:
            at_scale = [[(x.ratio, x.standard_error) for x in own if x.scale == scale] for own in pair]
            first, second = ("{:.2f} +- {:.2f}       ".format(*geometric_mean(ratios)) for ratios in at_scale)
            print(f"  {f'geometric mean, {scale}':<28}{first:>32}    {second}".rstrip())


def grouped(found: list[Comparison]) -> dict[tuple[str, str, str], list[Comparison]]:
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for one in found:
        groups.setdefault((one.workload, one.estimator, one.against), []).append(one)
    return groups


def print_geometric_means(cases: list[Case], ways: dict[str, Way]) -> list[dict[str, Any]]:
    found, scales = [], scales_of(cases)
    for workload in WORKLOADS:
        print(f"Error of {workload} over that of the best of the others of each counts and scale: geometric means")
        print(f"  {'':<28}" + "".join(f"{scale:>18}" for scale in [*scales, "all"]))
        for name in ways:
            line = f"  {name:<28}"
            for scale in [*scales, "all"]:
                mean, spread = over_best([case for case in cases if scale in (case.scale, "all")], ways, name, workload)
                line += f"{f'{shown(mean, 3)} +- {shown(spread, 2)}':>18}"
                entry = {"estimator": name, "workload": workload, "scale": scale, "ratio": mean, "standard_error": spread}
                found.append(entry)
            print(line)
    return found


def over_best(cases: list[Case], ways: dict[str, Way], name: str, workload: str) -> tuple[float, float]:
    return geometric_mean([ratio(case.of(name, workload), case.of(best_other(case, ways, workload), workload)) for case in cases])


def print_coverage(cases: list[Case]) -> list[dict[str, Any]]:
    found, scales = [], scales_of(cases)
    kinds = {
        "cells": (CELLS, 0, 2),
        "cells with a posterior standard deviation above 1": (CELLS, 1, None),
        "ranges": (RANGES, 0, 1),
    }
    trials = cases[0].coverage[CELLS].shape[0]
    print(f"Share of truths in {LEVEL:.0%} intervals +- standard errors over {trials} trials; their mean width")
    for kind, (name, place, width) in kinds.items():
        print(f"  {f'{kind}, {name}':<62}" + "".join(f"{scale:>24}" for scale in scales))
        shares: dict[str, list[float]] = {scale: [] for scale in scales}
        for title, own in by_title(cases).items():
            texts = dict.fromkeys(scales, "")
            for case in own:
                known = case.coverage[name][:, place]
                known = known[~np.isnan(known)]
                if known.size < 2:
                    texts[case.scale] = "none"
                    continue
                mean, spread = mean_and_spread(known)
                wide = None if width is None else float(case.coverage[name][:, width].mean())
                shares[case.scale].append(mean)
                texts[case.scale] = f"{mean:.3f} +- {spread:.3f}" + ("" if wide is None else f"; {shown(wide, 3)}")
                entry = {"data": title, "scale": case.scale, "estimator": name, "kind": kind, "share": mean}
                found.append(entry | {"standard_error": spread, "trials": known.size, "width": wide})
            print(f"    {title:<60}" + "".join(f"{text:>24}" for text in texts.values()))
        mean_shares = (f"{np.mean(x):.3f}" if x else "none" for x in shares.values())
        print(f"    {'mean':<60}" + "".join(f"{text:>24}" for text in mean_shares))
    return found


def print_verdict(found: list[Comparison], cases: list[Case], ways: dict[str, Way]) -> dict[str, Any]:
    verdict: dict[str, Any] = {}
    print(f"Verdict from {len(cases)} pairs of counts and a scale; better and worse: by more than two standard errors")
    for (workload, headline, against), own in grouped(found).items():
        counts = {word: sum(one.word == word for one in own) for word in WORDS}
        mean, spread = geometric_mean([(one.ratio, one.standard_error) for one in own])
        in_order = sorted(own, key=lambda one: one.ratio)
        least, most = (f"{one.ratio:.2f} ({one.data} {one.scale})" for one in (in_order[0], in_order[-1]))
        worse = [f"{one.data} {one.scale} ({one.ratio:.2f} of {one.rival})" for one in own if one.word == WORDS[2]]
        print(f"  {headline}, {workload}, against {against}: " + ", ".join(f"{word} {count}" for word, count in counts.items()))
        print(f"    geometric mean {mean:.2f} +- {spread:.2f}, from {least} to {most}")
        if worse:
            print(f"    worse on {'; '.join(worse)}")
        verdict[f"{headline}, {workload}, against {against}"] = counts | {"geometric_mean": mean, "worse_on": worse}
    both = {name: [over_best(cases, ways, name, workload)[0] for workload in WORKLOADS] for name in ways}
    print("  One release has to serve both workloads. Over the best of the others, geometric means on cells | ranges:")
    even = min(both, key=lambda name: max(both[name]))
    for name in dict.fromkeys([CELLS, RANGES, even]):
        note = "; the least that any has on both" if name == even else ""
        print(f"    {name}: {shown(both[name][0], 3)} | {shown(both[name][1], 3)}{note}")
    winners = [name for name, own in both.items() if max(own) <= 1]
    least = {workload: min(both, key=lambda name, place=place: both[name][place]) for place, workload in enumerate(WORKLOADS)}
    wins = ", ".join(f"{name} on {workload}" for workload, name in least.items())
    said = ", ".join(winners) if winners else "no single one"
    print(f"    the least each: {wins}; no more than the best of the others on both: {said}")
    return verdict | {"on_both": both, "least": least, "at_most_the_best_on_both": winners}


def figure_of(cases: list[Case]) -> Figure:
    """Errors over those of the fixed baselines by scale: geometric means over the counts; of headlines also each one's."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    scales, panels = scales_of(cases), figure.subplots(1, 2)
    for (workload, (headline, fixed)), axes in zip(HEADLINES.items(), panels, strict=True):
        for name, color, marker in zip(DRAWN[workload], COLORS, MARKERS, strict=True):
            if name not in cases[0].errors:
                continue
            ratios = [
                [ratio(case.of(name, workload), case.of(fixed, workload)) for case in cases if case.scale == scale]
                for scale in scales
            ]
            means, spreads = np.array([geometric_mean(own) for own in ratios]).T
            axes.errorbar(scales, means, 2 * spreads, color=color, marker=marker, fillstyle="none", linewidth=1, label=name)
            if name == headline:
                for scale, own in zip(scales, ratios, strict=True):
                    axes.plot([scale] * len(own), [mean for mean, _ in own], ".", color=color, alpha=0.4, markersize=5)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"Error of {workload} over that of {fixed}", loc="left")
        axes.set_xlabel("records")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3, frameon=False, fontsize="small")
    panels[0].set_ylabel("ratio of root mean square errors")
    return figure


if __name__ == "__main__":
    main()
