"""Budgets of the 2020 redistricting data, learned for a stated set of tables: what it gains, and what others lose.

python examples/census_budgets.py [--blocks 5900000] [--rho 2.56] [--kept 0.5] [--tolerance 0.001] [--seed 0]

The tables are those of counties and tracts that districts are drawn by: everyone, everyone by race, and those of voting age by
Hispanic origin and race. The variances of their least squares estimates are known without any data, and so is the slope of these
variances in the share that each of 11 queries at each of 6 levels has of the budget. Along it the geometric mean of the variances
falls as far as it can while every query keeps half of its share (--kept).

The privacy loss is the same, rho. What these tables gain is taken from others: their standard deviations grow, to sqrt(2) times
what they were at the worst, 1 / sqrt(kept); some are printed too. All are of least squares estimates. Neither the totals of
states, which the published counts hold exactly, nor zeros, nor the bureau's own non-negative counts are looked at.

The geography is made up, of about as many areas of each level as the United States have (blocks: those where people may live).
The shares that are improved on are those of the Census Bureau's published code (PRODUCTION below); they illustrate, and are
checked against no release.
"""

import argparse
from itertools import pairwise

import jax
import numpy as np

import dpinfer as dpi
from dpinfer.spine import TreeShape, mean_table_variances, optimize_shares, pl94_persons, query_precisions

LEVELS = ("US", "state", "county", "tract", "block group", "block")
QUERIES = (
    "total",
    "cenrace",
    "hispanic",
    "votingage",
    "hhinstlevels",
    "hhgq",
    "hispanic * cenrace",
    "votingage * cenrace",
    "votingage * hispanic",
    "votingage * hispanic * cenrace",
    "detailed",
)
# The share of each level, of 4099, and of each query within it, each line of its sum.
PRODUCTION = {
    "US": (104, (0, 52, 26, 26, 26, 26, 130, 130, 26, 442, 3213)),
    "state": (1440, (3773, 6, 6, 6, 6, 6, 12, 12, 6, 34, 230)),
    "county": (447, (3126, 10, 10, 10, 10, 10, 28, 28, 10, 101, 754)),
    "tract": (687, (1567, 8, 5, 5, 5, 5, 1933, 20, 5, 67, 482)),
    "block group": (1256, (1705, 3, 3, 3, 3, 3, 1055, 9, 3, 24, 1288)),
    "block": (165, (5, 9, 5, 5, 5, 5, 21, 21, 5, 71, 3945)),
}
WANTED = [(level, query) for level in ("county", "tract") for query in ("total", "cenrace", "voting * hispanic * cenrace")]
OTHERS = [
    ("state", "cenrace"),
    ("county", "hhgq"),
    ("tract", "hhgq"),
    ("tract", "detailed"),
    *((level, query) for level in ("block group", "block") for query in ("total", "cenrace", "voting * hispanic * cenrace")),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Shares of the budget of the redistricting data, learned for stated tables.")
    parser.add_argument("--blocks", type=int, default=5_900_000)
    parser.add_argument("--rho", type=float, default=2.56)
    parser.add_argument("--kept", type=float, default=0.5, help="part of every share that is kept")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the geometric mean of the variances, relative")
    parser.add_argument("--seed", type=int, default=0, help="of the geography")
    options = parser.parse_args()
    dpi.enable_x64()
    shape, schema = TreeShape(geography(options.blocks, np.random.default_rng(options.seed))), pl94_persons()
    queries = [schema.query(name) for name in QUERIES]
    wanted, others = ([(LEVELS.index(level), schema.query(name)) for level, name in some] for some in (WANTED, OTHERS))
    budget = {"rho": options.rho, "neighbors": "replace_one"}
    found = optimize_shares(
        shape, schema, queries, wanted, production(), kept=options.kept, tolerance=options.tolerance, **budget
    )

    areas = ", ".join(f"{count:,}" for count in shape.num_nodes)
    print(f"areas by level, US to block: {areas}; {schema.size:,} cells in each")
    print(f"rho = {options.rho:g}, neighbours replace one record. Standard deviations, root mean squares over answers and areas:")
    print(f"  {'level':<13}{'table':<32}{'production':>12}{'learned':>12}{'ratio':>9}")
    variances = jax.jit(lambda shares: mean_table_variances(shape, schema, queries, query_precisions(shares, **budget), others))
    for title, tables, before, after in (
        ("wanted", WANTED, found.first_variances, found.variances),
        ("others", OTHERS, np.asarray(variances(production())), np.asarray(variances(found.shares))),
    ):
        print(title)
        for (level, name), old, new in zip(tables, before**0.5, after**0.5, strict=True):
            print(f"  {level:<13}{name:<32}{old:>12.2f}{new:>12.2f}{new / old:>9.3f}")
    mean = np.exp((found.objective - found.first_objective) / 2)
    least = np.exp(-found.gap / 2)
    print(f"wanted, geometric mean of the ratios: {mean:.4f}; no shares get below {mean * least:.4f} ({found.num_steps} steps)")

    print("shares of the budget, in %")
    print(f"  {'level':<13}{'production':>12}{'learned':>12}   most of it learned for")
    for level, old, new in zip(LEVELS, production(), found.shares, strict=True):
        most = [f"{QUERIES[i]} {100 * new[i]:.1f}" for i in np.argsort(-new)[:3]]
        print(f"  {level:<13}{100 * old.sum():>12.1f}{100 * new.sum():>12.1f}   {', '.join(most)}")


def production() -> np.ndarray:
    """[levels, queries]"""
    rows = [share / 4099 * np.array(parts) / sum(parts) for share, parts in PRODUCTION.values()]
    return np.stack(rows)


def geography(blocks: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The parents of the areas of each level below the US: to each 25 blocks, 2.8 block groups, and so on, but unequally many."""
    sizes = [1, *(max(2, blocks // one) for one in (115_000, 1_880, 70, 25, 1))]
    parents = []
    for above, below in pairwise(sizes):
        parts = rng.dirichlet(np.full(above, 2.0))
        parents.append(np.repeat(np.arange(above), 1 + rng.multinomial(below - above, parts)))
    return parents


if __name__ == "__main__":
    main()
