"""What a budget will buy, before any cells are seen: noise, sensitivity and the expected error of the answers wanted."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from dpinfer import _checks, noise
from dpinfer.domain import Domain
from dpinfer.inference import least_squares
from dpinfer.measurement import Measurement
from dpinfer.privacy import epsilon_at
from dpinfer.queries import Identity, Prefix, Queries, Total
from dpinfer.queries.dense import as_queries
from dpinfer.release import check_domain
from dpinfer.scales import Plan, plan
from dpinfer.workloads import marginals

_RELATIONS = {"add_remove": "one record more or less", "replace_one": "one record changes its cell"}
# Answers whose standard deviations are found one after the other, for workloads that nobody asked for by name.
_MAX_DEFAULT_ANSWERS = 2**16


@final
@dataclass(frozen=True)
class ExpectedError:
    """The error that answers to one workload will have, whatever the cells are.

    Attributes:
        workload: its name.
        num_answers: how many sums it asks for.
        rms: the square root of their mean squared error; infinite if the strategy does not determine them all.
        largest: the largest standard deviation among them.
    """

    workload: str
    num_answers: int
    rms: float
    largest: float


@final
@dataclass(frozen=True)
class Noise:
    """The noise of some of the rows: its law's parameter and standard deviation; infinite if they are not measured."""

    num_rows: int
    scale: float
    stddev: float


@final
@dataclass(frozen=True)
class Explanation:
    """What a release would cost and be worth; text by ``str``, JSON by :meth:`to_json`.

    Attributes:
        strategy: what would be asked, as it prints.
        num_queries, num_cells: its shape.
        unit, spend: the loss that all rows together would have, "epsilon" or "rho", exact.
        neighbors: the relation under which it holds.
        order, sensitivity: the largest L1 (order 1) or L2 (order 2) change of all answers between neighbours.
        noise: the law.
        rows: the noise of the rows, one entry for each different scale; those of a level together where levels have budgets.
        errors: the expected error of each workload under least squares.
        delta, epsilon_at_delta: the loss as (epsilon, delta)-differential privacy, if a delta was given.
    """

    strategy: str
    num_queries: int
    num_cells: int
    unit: str
    spend: Fraction
    neighbors: str
    order: int
    sensitivity: float
    noise: str
    rows: tuple[Noise, ...]
    errors: tuple[ExpectedError, ...]
    delta: float | None = None
    epsilon_at_delta: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values; what is infinite (not measured, not determined) is None."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return [plain(entry) for entry in value]
            if isinstance(value, (Noise, ExpectedError)):
                return {name: plain(field) for name, field in vars(value).items()}
            if isinstance(value, Fraction):
                return str(value)
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return {name: plain(value) for name, value in vars(self).items()}

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        loss = f"{self.unit} = {self.spend}, neighbours {self.neighbors} ({_RELATIONS[self.neighbors]})"
        if self.epsilon_at_delta is not None:
            loss += f"; epsilon = {self.epsilon_at_delta:.6g} at delta = {self.delta:g}"
        lines = [
            f"{self.strategy}: {self.num_queries:,} queries of {self.num_cells:,} cells",
            f"loss         {loss}",
            f"sensitivity  {self.sensitivity:.6g} (L{self.order})",
            f"noise        {self.noise}",
        ]
        for row in self.rows:
            spread = "not measured" if math.isinf(row.scale) else f"scale {row.scale:.6g}, standard deviation {row.stddev:.6g}"
            lines.append(f"  {row.num_rows:>11,} rows  {spread}")
        width = max(len("expected error"), *(len(error.workload) + 2 for error in self.errors))
        lines.append(f"{'expected error':<{width}} {'answers':>12} {'rms':>12} {'largest':>12}")
        for error in self.errors:
            rms, largest = ("undetermined" if math.isinf(x) else f"{x:.6g}" for x in (error.rms, error.largest))
            lines.append(f"{'  ' + error.workload:<{width}} {error.num_answers:>12,} {rms:>12} {largest:>12}")
        return "\n".join(lines)


def explain(
    strategy: Queries,
    *,
    epsilon: Any = None,
    rho: Any = None,
    level_epsilons: Any = None,
    level_rhos: Any = None,
    row_weights: Any = None,
    neighbors: str = "add_remove",
    workloads: Mapping[str, Any] | None = None,
    domain: Domain | None = None,
    delta: Any = None,
) -> Explanation:
    """What :func:`dpinfer.measure` with the same arguments would cost and be worth; it needs no cells and spends nothing.

    The expected error is that of :func:`dpinfer.least_squares`, which is unbiased and whose standard deviations depend on the
    strategy and on the noise alone. They are exact.

    Args:
        strategy, epsilon, rho, level_epsilons, level_rhos, row_weights, neighbors: as for ``measure``.
        workloads: queries (or matrices [k, n]) by name. Left out: the cells, the prefixes and the total; with a ``domain`` of
            several axes the table of each axis in place of the prefixes; those of more than 65,536 answers are left out.
        domain: what the cells mean.
        delta: for a loss in rho, also say its epsilon at this delta.

    Raises:
        ValueError: as ``measure`` and ``least_squares`` do.
    """
    planned = plan(
        strategy,
        epsilon=epsilon,
        rho=rho,
        level_epsilons=level_epsilons,
        level_rhos=level_rhos,
        row_weights=row_weights,
        neighbors=neighbors,
    )
    check_domain(domain, strategy)
    named = _default_workloads(strategy.shape[1], domain) if workloads is None else workloads
    if not isinstance(named, Mapping) or not named:
        raise ValueError(f"workloads must map at least one name to queries, got {workloads!r}.")
    estimate = least_squares(Measurement(strategy, np.zeros(strategy.shape[0]), planned.noise, planned.scale))
    errors = []
    for name, value in named.items():
        workload = as_queries(f"workloads[{name!r}]", value)
        stddev = np.asarray(estimate.expected_stddev(workload), dtype=float)
        rms, largest = (math.sqrt(np.square(stddev).mean()), float(stddev.max())) if stddev.size else (0.0, 0.0)
        errors.append(ExpectedError(str(name), stddev.size, rms, largest))
    in_unit = {planned.unit: planned.spend}
    return Explanation(
        strategy=repr(strategy),
        num_queries=strategy.shape[0],
        num_cells=strategy.shape[1],
        unit=planned.unit,
        spend=planned.spend,
        neighbors=neighbors,
        order=planned.order,
        sensitivity=float(strategy.sensitivity(planned.order, neighbors)),
        noise=planned.noise,
        rows=_noise_of_rows(planned),
        errors=tuple(errors),
        delta=None if delta is None else float(_checks.fraction("delta", delta)),
        epsilon_at_delta=None if delta is None else epsilon_at(delta, **in_unit),
    )


def _default_workloads(n: int, domain: Domain | None) -> dict[str, Queries]:
    named: dict[str, Queries] = {"cells": Identity(n), "prefixes": Prefix(n)}
    if domain is not None and len(domain.axes) > 1:
        named |= {f"by {axis}": marginals(domain, [axis]) for axis in domain.names}
        del named["prefixes"]  # an order of the cells that means nothing
    named = {name: queries for name, queries in named.items() if queries.shape[0] <= _MAX_DEFAULT_ANSWERS}
    return named | {"total": Total(n)}


def _noise_of_rows(planned: Plan) -> tuple[Noise, ...]:
    counts = np.bincount(planned.index, minlength=len(planned.spreads)).tolist()
    scales = [math.inf if s is None else float(s) ** (1 / planned.order) for s in planned.spreads]
    return tuple(
        Noise(count, scale, float(noise.stddev(planned.noise, scale)))
        for count, scale in zip(counts, scales, strict=True)
        if count
    )
