"""Strategies beside each other for a domain and a budget, before any records: what ``dpinfer plan`` shows."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from dpinfer.accuracy import Recommendation, best_branching, range_variance, recommend, variance_by_branching
from dpinfer.allocation import level_budgets
from dpinfer.domain import Domain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


class Row(NamedTuple):
    """A strategy, how its budget is split, and the average variance over all ranges."""

    strategy: str
    budgets: str
    variance: float


@final
@dataclass(frozen=True)
class Comparison:
    """What a budget buys; the last row is what is recommended.

    Attributes:
        shape: cells along each axis.
        unit, budget: "epsilon" or "rho", exact.
        rows: the strategies.
        recommended: the best.
    """

    shape: tuple[int, ...]
    unit: str
    budget: Fraction
    rows: tuple[Row, ...]
    recommended: Recommendation

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "cells": prod(self.shape),
            self.unit: str(self.budget),
            "branching": self.recommended.branching,
            f"level_{self.unit}s": self.recommended.budgets.tolist(),
            "variance": self.recommended.variance,
            "compared": [{**row._asdict(), "rms": row.variance**0.5} for row in self.rows],
        }

    def table(self) -> "Table":
        """For a terminal."""
        from rich.table import Table

        title = f"{prod(self.shape):,} cells, {self.unit} = {self.budget}: error of a sum, on average over all ranges"
        table = Table(title=title, title_justify="left")
        table.add_column("strategy")
        table.add_column("budget of each level, top first")
        table.add_column("root mean squared error", justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(row.strategy, row.budgets, f"{row.variance**0.5:,.2f}")
        return table

    def figure(self) -> "Figure":
        """The error by branching, and the recommended budgets."""
        from dpinfer import plots

        found, power = self.recommended, 2 if self.unit == "epsilon" else 1
        curve = variance_by_branching(self.shape, max_branching=128, unit=self.unit)
        curve = [(branching, value / float(self.budget) ** power) for branching, value in curve]
        return plots.plan_figure(curve, found.flat_variance, (found.branching, found.variance), found.budgets, self.unit)


def compare(domain: Domain, *, epsilon: Any = None, rho: Any = None) -> Comparison:
    """The flat histogram, trees with equal budgets, and the recommendation, for all ranges (boxes) of a domain.

    Args:
        domain: of any number of axes.
        epsilon, rho: the budget, one of the two, exact.
    """
    shape = domain.shape
    found = recommend(shape, epsilon=epsilon, rho=rho)
    unit, budget = ("epsilon", epsilon) if rho is None else ("rho", rho)

    def variance(branching: int, budgets: np.ndarray) -> float:
        epsilons, rhos = (budgets, None) if rho is None else (None, budgets)
        return float(range_variance(shape, branching, epsilons, level_rhos=rhos))

    rows = []
    for branching in sorted({2, best_branching(shape, unit=unit)} - {max(shape)}):
        equal = level_budgets(shape, branching, epsilon=epsilon, rho=rho)
        rows.append(Row(f"tree of branching {branching}", "equal", variance(branching, equal)))
    flat = Row("flat histogram", "all", found.flat_variance)
    if found.is_flat:
        rows.append(flat)
    else:
        budgets = ", ".join(f"{x:.4g}" for x in found.budgets.tolist())
        rows = [flat, *rows, Row(f"tree of branching {found.branching}", budgets, found.variance)]
    return Comparison(shape, unit, Fraction(budget), tuple(rows), found)
