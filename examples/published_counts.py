"""From published noisy counts, without any raw data, to a posterior with intervals and a figure.

python examples/published_counts.py [--data noisy.csv] [--prior smooth] [--draws 1000] [--chains 4] [--seed 0]
    [--output published_counts.png]

How many flights were to leave New York City on a day of 2013 is published by the quarter-hour and by the hour with noise, and in
all exactly. The two tables contradict each other. Least squares makes them agree and assumes nothing of the counts. A posterior
assumes a prior: here positive counts that are alike in neighbouring quarter-hours. Its intervals are shorter, and its draws
answer what no sum does, such as which hour is the busiest. How much hangs on the prior, another one tells: by --prior
independent, five lines below, neighbours say nothing of each other. Intervals are as right as the prior. This one would be wrong
of a night without flights and the rush after it, which is why the tables begin at six o'clock.

A file of your own has the same columns, and rows for the same intervals in any order.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.figure import Figure

import dpinfer as dpi
from dpinfer import models
from dpinfer.plots import BLUE, GREY, ORANGE, save
from dpinfer.queries import Identity, Kronecker, Ranges, Total, VStack

DATA = Path(__file__).parent / "data" / "noisy_departures_2013_07_16.csv"
FIRST, LAST = 6, 22  # o'clock
N = 4 * (LAST - FIRST)
QUARTERS, HOURS = Identity(N), Kronecker([Identity(N // 4), Total(4)])
TABLES = VStack([QUARTERS, HOURS, Total(N)])
# From which hour to which: each, then the peaks of the morning and the evening.
ASKED = np.array([*((hour, hour + 1) for hour in range(FIRST, LAST)), (6, 10), (16, 20)])
LEVEL = 0.9


def main() -> None:
    priors = {"smooth": models.log_gaussian(N), "independent": independent}
    parser = argparse.ArgumentParser(description="Published noisy counts, without raw data, to a posterior with intervals.")
    parser.add_argument("--data", type=Path, default=DATA, help="a .csv file of noisy counts; left out, the shipped one")
    parser.add_argument("--prior", choices=priors, default="smooth")
    parser.add_argument("--draws", type=int, default=1000, help="of each chain, after as many in which it adapts")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("published_counts.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    release = read(options.data)
    quarters, hours, total = TABLES.split(np.asarray(release.values))
    print(f"{total[0]:,} flights in all, exactly; {N} quarter-hours and {N // 4} hours with {release.noise} noise")

    least_squares = dpi.least_squares(release)
    posterior = dpi.inference.posterior(
        release,
        priors[options.prior],
        method="nuts",
        key=jax.random.key(options.seed),
        num_draws=options.draws,
        num_chains=options.chains,
    )
    print(f"posterior, {options.prior} prior: {options.chains} chains of {options.draws:,} draws; {trust(posterior.sampling)}")

    bounds = 4 * (ASKED - FIRST).T
    published = np.stack([Ranges(N // 4, *bounds // 4) @ hours, Ranges(N, *bounds) @ quarters], axis=1)
    answers = [estimate.answer(Ranges(N, *bounds)) for estimate in (least_squares, posterior)]
    ends = np.array([each.interval(LEVEL) for each in answers])
    lengths = ends[:, 1] - ends[:, 0]
    print(f"{'':9}{'published, by the':>21}{'least squares':>28}{'posterior':>28}{'interval':>10}")
    print(f"{'':9}{'hour':>7}{'quarter-hour':>14}" + f"{'':8}{f'{LEVEL:.0%} interval':>20}" * 2 + f"{'shorter':>10}")
    for row, (start, stop) in enumerate(ASKED):
        line = f"{f'{start} to {stop}':>9}{published[row, 0]:>7}{published[row, 1]:>14}"
        for each, (lower, upper) in zip(answers, ends[:, :, row], strict=True):
            line += f"{each.values[row]:>11.1f}{f'{lower:.1f} to {upper:.1f}':>17}"
        print(f"{line}{1 - lengths[1, row] / lengths[0, row]:>10.0%}")
    for name, asked in (("hours", HOURS), ("quarter-hours", QUARTERS)):
        shorter = 1 - length(posterior, asked) / length(least_squares, asked)
        print(f"{LEVEL:.0%} intervals of all {name} together: shorter by {shorter:.0%}")

    # What a sum and its interval cannot say: of each draw, the largest hour.
    draws = np.asarray(posterior.draws)
    busiest = np.bincount(np.argmax(HOURS @ draws.T, axis=0), minlength=N // 4) / len(draws)
    likely = ", ".join(f"{FIRST + hour} to {FIRST + hour + 1} {busiest[hour]:.0%}" for hour in np.argsort(-busiest)[:4])
    print(f"the busiest hour is, with probability: {likely}")
    totals = draws.sum(axis=1)
    print(f"every draw has {totals.min():,.3f} to {totals.max():,.3f} flights in all")
    save(figure_of(quarters, least_squares, posterior), options.output)
    print(f"Figure: {options.output}")


def read(path: Path) -> dpi.Release:
    """The published tables: the intervals, their noisy counts, and the law and the scale of the noise."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    rows.sort(key=lambda row: (int(row["minutes"]), row["start"]))
    if [int(row["minutes"]) for row in rows] != [15] * N + [60] * (N // 4) + [15 * N]:
        raise SystemExit(
            f"{path} must have the quarter-hours and the hours from {FIRST}:00 to {LAST}:00, and one row of them all."
        )
    (law,) = {row["noise"] for row in rows}
    counts, scales = [int(row["flights"]) for row in rows], [float(row["scale"]) for row in rows]
    return dpi.Release.from_values(TABLES, counts, noise=law, scale=scales)


def independent() -> Any:
    """A prior of one's own: gamma counts of a mean and a shape that all share, and that the noisy counts tell."""
    mean = numpyro.sample("mean", dist.LogNormal(3, 2))
    shape = numpyro.sample("shape", dist.LogNormal(0, 1))
    with numpyro.plate("quarter_hours", N):
        return numpyro.sample("flights", dist.Gamma(shape, shape / mean))


def trust(sampling: Any) -> str:
    """How well the chains went, by the worst of the cells and of the prior's own numbers."""
    r_hat = max(np.max(x) for x in (sampling.r_hat, *sampling.site_r_hat.values()))
    ess = min(np.min(x) for x in (sampling.ess, *sampling.site_ess.values()))
    found = f"largest r-hat {r_hat:.3f}, least ess {ess:,.0f}, {sampling.divergences} divergences"
    return found if sampling.converged else f"{found}: not converged, take more --draws"


def length(estimate: Any, asked: Any) -> float:
    """Of the intervals of all answers together."""
    lower, upper = estimate.answer(asked).interval(LEVEL)
    return float((upper - lower).sum())


def figure_of(quarters: Any, least_squares: Any, posterior: Any) -> Figure:
    """The published quarter-hours, and what both estimates make of them."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    axes, edges = figure.subplots(), np.linspace(FIRST, LAST, N + 1)
    lower, upper = posterior.answer(QUARTERS).interval(LEVEL)
    axes.stairs(upper, edges, baseline=lower, fill=True, color=BLUE, alpha=0.25, label=f"posterior: {LEVEL:.0%} interval")
    axes.stairs(posterior.cells, edges, baseline=None, color=BLUE, linewidth=1.8, label="posterior: mean")
    axes.stairs(least_squares.cells, edges, baseline=None, color=GREY, linewidth=0.8, label="least squares")
    axes.plot(edges[:-1] + 1 / 8, quarters, "x", color=ORANGE, markersize=5, label="published")
    axes.set_xticks(range(FIRST, LAST + 1, 2), [f"{hour}:00" for hour in range(FIRST, LAST + 1, 2)])
    axes.set_xlim(FIRST, LAST)
    axes.set_ylabel("flights in a quarter-hour")
    axes.set_title("Flights by the quarter-hour: published with noise, and estimated from all tables", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize="small")
    return figure


if __name__ == "__main__":
    main()
