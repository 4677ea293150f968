"""The scales that a budget buys, before any cells are seen: exact for real releases, in floating point for studies."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.noise import exact
from dpinfer.privacy import largest_change
from dpinfer.queries import Queries
from dpinfer.queries.base import Array, namespace

_BUDGETS = ("epsilon", "rho", "level_epsilons", "level_rhos")


@dataclass(frozen=True)
class Plan:
    """The noise that a budget buys, known before any cells are.

    Attributes:
        strategy: m queries.
        order: 1 under epsilon, where a row's loss is |change| / scale; 2 under rho, where it is change^2 / (2 variance).
        spreads: the distinct scales (order 1) or variances (order 2), exact; None: not measured.
        rows: which of them each row has, [m]; None if there is one for all.
        spend: the exact loss of all rows together.
    """

    strategy: Queries
    order: int
    spreads: list[Fraction | None]
    rows: np.ndarray | None
    spend: Fraction

    @property
    def unit(self) -> str:
        """What the loss is counted in."""
        return "epsilon" if self.order == 1 else "rho"

    @property
    def noise(self) -> str:
        """The law's name."""
        return "discrete_laplace" if self.order == 1 else "discrete_gaussian"

    @property
    def index(self) -> np.ndarray:
        """Which of the spreads each row has, [m]."""
        return np.zeros(self.strategy.shape[0], dtype=np.int64) if self.rows is None else self.rows

    @property
    def scale(self) -> np.ndarray:
        """The law's parameter as floats, one number or [m]; infinite where a row is not measured."""
        floats = np.array([np.inf if s is None else float(s) ** (1 / self.order) for s in self.spreads])
        return np.asarray(floats[0] if self.rows is None else floats[self.rows])


def plan(
    strategy: Any,
    *,
    epsilon: Any = None,
    rho: Any = None,
    level_epsilons: Any = None,
    level_rhos: Any = None,
    row_weights: Any = None,
    neighbors: str = "add_remove",
) -> Plan:
    """The noise with which :func:`dpinfer.measure` would spend a budget on a strategy; arguments and errors as there."""
    kind, value = one_budget(epsilon, rho, level_epsilons, level_rhos)
    order = 1 if kind.endswith(("epsilon", "epsilons")) else 2
    _checks.relation(neighbors)
    if not isinstance(strategy, Queries):
        raise ValueError(
            f"strategy must be a family from dpinfer.queries, got {type(strategy).__name__}; a matrix goes into queries.Dense."
        )
    if not strategy.is_integer:
        raise ValueError(
            "strategy must have entries of an integer dtype to be released exactly: convert whole numbers by .astype(int), put "
            "weights into row_weights."
        )
    if strategy._largest_row() >= 2**31:
        raise ValueError("strategy must have rows whose absolute entries sum to less than 2**31.")
    if kind.startswith("level"):
        if not hasattr(value, "__len__"):
            raise ValueError(f"{kind} must be a list with one entry for each level, got {value!r}.")
        budgets = [_checks.budget(f"{kind}[{i}]", x, zero=True) for i, x in enumerate(value)]
        asked = sum(budgets, Fraction(0))
        spreads, rows = _level_spreads(strategy, budgets, kind, order, neighbors)
    else:
        asked = _checks.budget(kind, value)
        spreads, rows = _row_spreads(strategy, asked, row_weights, order, neighbors)
    if kind.startswith("level") and row_weights is not None:
        raise ValueError(f"row_weights and {kind} cannot be combined: levels already say how the budget is split.")

    measured = [s for s in spreads if s is not None]
    limit = exact.MAX_SCALE**order / 4
    if max(measured) >= limit:
        raise ValueError(f"{kind} is too small: the noise would exceed what 64-bit counts can hold. Got {value!r}.")
    if order == 2 and min(measured) < exact.MIN_VARIANCE:
        raise ValueError(f"{kind} is too large: the noise would vanish. Got {value!r}.")
    # Laplace: loss = sum |change| / scale. Gaussian: loss = sum change^2 / (2 variance). A row not measured loses nothing.
    losses = [Fraction(0) if s is None else 1 / (order * s) for s in spreads]
    spend = largest_change(strategy, losses, rows, order, neighbors)
    if spend > asked:
        raise RuntimeError(f"The scales would spend {spend}, more than was asked for. Please report this; nothing was released.")
    return Plan(strategy, order, spreads, rows, spend)


def one_budget(epsilon: Any, rho: Any, level_epsilons: Any, level_rhos: Any) -> tuple[str, Any]:
    """The name and the value of the one budget that was given."""
    given = {k: v for k, v in zip(_BUDGETS, (epsilon, rho, level_epsilons, level_rhos), strict=True) if v is not None}
    if len(given) != 1:
        raise ValueError(f"Give exactly one of {', '.join(_BUDGETS)}; got {', '.join(given) or 'none of them'}.")
    return next(iter(given.items()))


def _level_spreads(
    strategy: Queries, budgets: list[Fraction], kind: str, order: int, neighbors: str
) -> tuple[list[Fraction | None], np.ndarray]:
    """Scale (or variance) of each level that spends its own budget, None if not measured; and the level of each row."""
    sensitivities = strategy.level_sensitivities(order, neighbors)
    _check_levels(kind, len(budgets), len(sensitivities), strategy)
    for i, (size, budget) in enumerate(zip(sensitivities, budgets, strict=True)):
        if size == 0 and budget > 0:
            raise ValueError(
                f"{kind}[{i}] must be 0: no record can change that level under {neighbors!r}, so its answers are public. "
                "Add them as exact counts with Release.from_values(..., stddev=0)."
            )
    if not any(budgets):
        raise ValueError(f"{kind} must have a positive entry, got only zeros.")
    spreads = [
        None if budget == 0 else Fraction(size) / (order * budget) for size, budget in zip(sensitivities, budgets, strict=True)
    ]
    return spreads, np.asarray(strategy.levels)


def _row_spreads(
    strategy: Queries, budget: Fraction, row_weights: Any, order: int, neighbors: str
) -> tuple[list[Fraction | None], np.ndarray | None]:
    """Distinct scales (or variances) that spend the budget in proportion to the weights, and the index of each row's."""
    if row_weights is None:
        weights, rows = [Fraction(1)], None
    else:
        array = np.asarray(row_weights)
        if array.shape != (strategy.shape[0],):
            raise ValueError(f"row_weights must have shape [{strategy.shape[0]}], one for each row, got {list(array.shape)}.")
        distinct, rows = np.unique(array, return_inverse=True)
        weights = [_checks.budget("row_weights", w, zero=True) ** order for w in distinct]
    change = largest_change(strategy, weights, rows, order, neighbors)
    if change == 0:
        raise ValueError(
            f"strategy does not change under {neighbors!r} (or all row_weights are 0), so there is nothing to protect and no "
            "scale to choose. Public answers are exact counts: Release.from_values(..., stddev=0)."
        )
    return [None if w == 0 else change / (order * budget * w) for w in weights], rows


def float_scale(strategy: Queries, kind: str, value: Any, row_weights: Any, order: int, neighbors: str) -> jax.Array:
    """The scales of ``measure`` in floating point, for numbers that may be traced: a scalar or [m]."""
    _checks.relation(neighbors)
    if kind.startswith("level"):
        if row_weights is not None:
            raise ValueError(f"row_weights and {kind} cannot be combined: levels already say how the budget is split.")
        sensitivities = np.array(strategy.level_sensitivities(order, neighbors), dtype=float)
        if not hasattr(value, "__len__") or getattr(value, "ndim", 1) != 1:
            raise ValueError(f"{kind} must be a list with one entry for each level, got {value!r}.")
        budgets = value if isinstance(value, jax.Array) else [value[i] for i in range(len(value))]
        if _checks.is_concrete(budgets):
            for i, x in enumerate(np.asarray(budgets).tolist() if isinstance(budgets, jax.Array) else budgets):
                _checks.budget(f"{kind}[{i}]", x, zero=True)
            budgets = np.array([float(x) for x in budgets])
        budgets = jnp.asarray(budgets)
        _check_levels(kind, budgets.shape[0], len(sensitivities), strategy)
        safe = jnp.where(budgets > 0, budgets, 1.0)
        scale = sensitivities / safe if order == 1 else jnp.sqrt(sensitivities / (2 * safe))
        return jnp.where(budgets > 0, scale, jnp.inf)[strategy.levels]
    if _checks.is_concrete(value):
        value = float(_checks.budget(kind, value))
    if row_weights is None:
        change = strategy.largest_change(np.ones(strategy.shape[0], dtype=np.int64), order, neighbors)
        return jnp.asarray(change / value if order == 1 else jnp.sqrt(change / (2 * value)))
    weights: Array = row_weights if isinstance(row_weights, jax.Array) else np.asarray(row_weights, dtype=float)
    if weights.shape != (strategy.shape[0],):
        raise ValueError(f"row_weights must have shape [{strategy.shape[0]}], one for each row, got {list(weights.shape)}.")
    if _checks.is_concrete(weights) and not (np.isfinite(weights) & (np.asarray(weights) >= 0)).all():
        raise ValueError("row_weights must be non-negative and finite.")
    change = strategy.largest_change(weights**order, order, neighbors)
    common = change / value if order == 1 else namespace(weights).sqrt(change / 2) / jnp.sqrt(value)
    return jnp.where(weights > 0, common / jnp.where(weights > 0, weights, 1.0), jnp.inf)


def _check_levels(kind: str, given: int, levels: int, strategy: Queries) -> None:
    if given != levels:
        raise ValueError(f"{kind} must have {levels} entries, one for each level of {strategy!r} from the top, got {given}.")
