"""How much of a budget each row of a strategy gets, for the workload that is wanted: by the gradient of the expected error.

With row weights u, noise of standard deviation proportional to S(u) / u_i, where S is the sensitivity of diag(u) A, least squares
answers the rows of W with the mean squared error

    J(u) = c S(u)^2 tr(W K^-1 W') / rows,    K = A' diag(u^2) A,    c = 2 / epsilon^2 or 1 / (2 rho)

(Li et al. 2010 call A with these weights the strategy, and S^2 tr(...) its error). Under rho S^2 is the largest column sum of
u_i^2 A_ij^2 and J is convex in u^2; under epsilon it is not, and rows tend to be switched off, so that it is started from several
places. S is a largest column sum: it is approached from above by log-sum-exp at falling temperatures, each solved by L-BFGS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.accuracy.mean_variance import MAX_DENSE_CELLS, mean_variance
from dpinfer.allocation.level_budgets import level_budgets
from dpinfer.queries import Dense, Queries, VStack
from dpinfer.queries.base import Array
from dpinfer.queries.dense import as_queries
from dpinfer.queries.grid_tree import GridTree
from dpinfer.queries.tree import CompleteTree

_TEMPERATURES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
# All starts are run some way, and the best of them to the end.
_SCREENING, _SCREENING_STEPS, _NUM_FINISHED = (0.03,), 40, 2
# Weights below this share of the largest are set to 0 if that costs no more than a millionth.
_NEGLIGIBLE = 3e-3
_FLOOR = 1e-4
# Parts of a strategy that are each tried as the main one.
_MAX_PARTS = 16


@final
@dataclass(frozen=True)
class Allocation:
    """A strategy with row weights: ``measure(cells, strategy, epsilon=..., row_weights=row_weights)`` (or ``rho``) as it stands.

    Attributes:
        strategy: m queries.
        row_weights: [m], the largest 1; 0: not measured.
        expected_error: the mean squared error of the workload's answers by least squares, for Laplace noise under epsilon and
            Gaussian under rho, with neighbours that add or remove one record.
        first_error: the same with the weights it was started from.
    """

    strategy: Queries
    row_weights: np.ndarray
    expected_error: float
    first_error: float


def optimize(
    workload: Any,
    strategy: Queries,
    *,
    epsilon: Any = None,
    rho: Any = None,
    tied: Any = None,
    start: Any = None,
    max_steps: int = 100,
) -> Allocation:
    """The row weights of a strategy with which least squares answers a workload best, from public facts alone.

    Args:
        workload: queries of the same cells, or a matrix [k, n]; what counts is the mean over its rows.
        strategy: what may be measured. Its rows stay as they are; those that do not help end with a weight of 0.
        epsilon, rho: the budget, one of the two. It sets the size of the error; the weights do not depend on it.
        tied: which rows share a weight: "levels" of the strategy, or integers [m], equal for those that do. Left out, each row
            has its own.
        start: [m] weights to start from; left out, equal ones, and for trees under epsilon those of ``level_budgets`` too.
        max_steps: of L-BFGS, at each of seven temperatures.

    Returns:
        An Allocation, never worse than where it started.

    Cost: a step factorises a matrix of the cells, up to 4,096 cells: 0.1 s for 1,024, 3 s for 4,096 on two cores. For all ranges
    on a tree whose levels are tied O(levels). Anything larger needs a strategy whose least squares has a closed form, and at most
    65,536 answers, whose variances are then computed in each step.

    Reference: Li, Hay, Rastogi, Miklau, McGregor 2010, "Optimizing linear counting queries under differential privacy",
    proposition 7; McKenna et al. 2018, "Optimizing error of high-dimensional statistical queries", for the gradient.

    Raises:
        ValueError: if the strategy does not determine the workload, or without 64-bit floats.
    """
    order, scale = unit_of(epsilon, rho)
    queries = as_queries("workload", workload)
    if not isinstance(strategy, Queries):
        raise ValueError(f"strategy must be a family from dpinfer.queries, got {type(strategy).__name__}.")
    if queries.shape[1] != strategy.shape[1]:
        raise ValueError(f"workload must be over the strategy's {strategy.shape[1]} cells, got {queries.shape[1]}.")
    max_steps = _checks.integer("max_steps", max_steps, least=1)
    labels = _labels(strategy, tied)
    problem = _posed(queries, strategy, labels)
    starts = _starts(problem, labels, start, order)
    first = float(_error(problem, jnp.asarray(starts[0]), order))
    if not np.isfinite(first):
        raise ValueError(
            f"strategy must determine every answer of the workload, and {strategy!r} (with the weights to start from) does not."
        )
    screening = min(_SCREENING_STEPS, max_steps)
    found = [(first, starts[0]), *(_descent(problem, order, w, _SCREENING, screening) for w in starts)]
    found = sorted(found, key=lambda pair: pair[0])[:_NUM_FINISHED]
    found += [_descent(problem, order, weights, _TEMPERATURES, max_steps) for _, weights in found]
    lowest, best = min(found, key=lambda pair: pair[0])
    error, few = _of_fewer_rows(queries, strategy, labels, best, order, max_steps)
    if error <= lowest * (1 + 1e-6):
        best, lowest = few, error
    rows = best[labels]
    return Allocation(strategy, rows / rows.max(), scale * lowest, scale * first)


@pytree
class _Problem:
    """The mean variance as a function of the rows' weights, ``function(arrays, weights)``; the rows' queries and groups."""

    function: Callable[[Any, jax.Array], jax.Array] = static()
    arrays: Any
    strategy: Queries
    labels: Array


def _posed(workload: Queries, strategy: Queries, labels: np.ndarray) -> _Problem:
    return _Problem(*mean_variance(workload, strategy, labels), strategy, jnp.asarray(labels))


def unit_of(epsilon: Any, rho: Any) -> tuple[int, float]:
    """The order of the sensitivity, and what S^2 tr(...) / rows is multiplied by."""
    if (epsilon is None) == (rho is None):
        raise ValueError("Give exactly one of epsilon and rho.")
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("Strategies are optimised in 64-bit floats. Type dpinfer.enable_x64() first (before the first array).")
    if rho is None:
        return 1, 2 / float(_checks.budget("epsilon", epsilon)) ** 2
    return 2, 1 / (2 * float(_checks.budget("rho", rho)))


def _labels(strategy: Queries, tied: Any) -> np.ndarray:
    """The group of each row, from 0."""
    m = strategy.shape[0]
    if tied is None:
        return np.arange(m)
    if isinstance(tied, str):
        _checks.choice("tied", tied, ("levels",))
        if strategy.levels is None:
            raise ValueError(f"tied='levels' needs a strategy with levels, which {strategy!r} has not.")
        return np.asarray(strategy.levels)
    array = _checks.index_array("tied", tied)
    if array.shape != (m,):
        raise ValueError(f"tied must have shape [{m}], one for each row, got {list(array.shape)}.")
    return np.unique(array, return_inverse=True)[1]


def _starts(problem: _Problem, labels: np.ndarray, start: Any, order: int) -> list[np.ndarray]:
    """Weights of the groups to start from; the first are those that it is compared with."""
    strategy, size = problem.strategy, int(labels.max()) + 1
    if start is not None:
        rows = np.asarray(start, dtype=float)
        if rows.shape != (labels.size,) or not (np.isfinite(rows) & (rows >= 0)).all() or not rows.any():
            raise ValueError(f"start must be {labels.size} non-negative weights, not all 0, got shape {list(rows.shape)}.")
        groups = np.zeros(size)
        np.maximum.at(groups, labels, rows / rows.max())
        return [groups]
    starts = [np.ones(size)]
    if order == 2:  # convex
        return starts
    emphasised = []  # rows that the others hardly count beside
    if isinstance(strategy, VStack) and len(strategy.parts) <= _MAX_PARTS:
        part = np.repeat(np.arange(len(strategy.parts)), [queries.shape[0] for queries in strategy.parts])
        emphasised = [(part == i).astype(float) for i in range(len(strategy.parts))]
    if isinstance(strategy, CompleteTree) or (isinstance(strategy, GridTree) and len(set(strategy.sides)) == 1):
        sides = strategy.sides if isinstance(strategy, GridTree) else (strategy.n,)
        root, dims = strategy.root_measured, len(sides)
        budgets = level_budgets(sides[0], strategy.branching, epsilon=1, method="optimal", root=root, dims=dims)
        emphasised.append(budgets[strategy.levels])
    for rows in emphasised:
        groups = np.zeros(size)
        np.maximum.at(groups, labels, rows / rows.max())
        starts.append(np.maximum(groups, 1e-2))  # a weight of 0 would stay where it is
    if not emphasised:  # what is best under rho, where nothing has to be guessed
        starts.append(_descent(problem, 2, starts[0], _SCREENING, _SCREENING_STEPS)[1])
    return starts


def _log_error(problem: _Problem, weights: jax.Array, order: int, temperature: Any) -> jax.Array:
    """The logarithm of S^2 times the mean variance; S as the largest column sum if the temperature is None."""
    rows = weights[problem.labels]
    sums = jnp.asarray(problem.strategy._column_sums(rows**order, order))
    positive = sums > 0
    logs = jnp.where(positive, jnp.log(jnp.where(positive, sums, 1.0)), -jnp.inf)
    largest = logs.max() if temperature is None else temperature * jax.nn.logsumexp(logs / temperature)
    return (2 / order) * largest + jnp.log(problem.function(problem.arrays, rows))


@partial(jax.jit, static_argnums=2)
def _error(problem: _Problem, weights: jax.Array, order: int) -> jax.Array:
    error = jnp.exp(_log_error(problem, weights, order, None))
    return jnp.where(jnp.isnan(error), jnp.inf, error)


def _of_fewer_rows(
    workload: Queries, strategy: Queries, labels: np.ndarray, weights: np.ndarray, order: int, max_steps: int
) -> tuple[float, np.ndarray]:
    """The error without the groups of negligible weight, infinite if they are needed or there are none; and the weights."""
    kept = weights >= _NEGLIGIBLE * weights.max()
    if kept.all():
        return np.inf, weights
    groups, found, rows = np.flatnonzero(kept), np.zeros(weights.size), kept[labels]
    if strategy.shape[1] <= MAX_DENSE_CELLS and not isinstance(strategy, CompleteTree):
        # The other rows may not determine all cells, which the matrix of all rows would have to.
        strategy, labels = Dense(np.asarray(strategy.dense())[rows]), np.searchsorted(groups, labels[rows])
        start = weights[groups]
    else:
        groups, start = np.arange(weights.size), np.where(kept, weights, 0.0)
    try:
        problem = _posed(workload, strategy, labels)
    except ValueError:  # not determined any more
        return np.inf, weights
    error, found[groups] = _descent(problem, order, start, _TEMPERATURES[-1:], max_steps)
    return error, found


def _descent(
    problem: _Problem, order: int, weights: np.ndarray, temperatures: Sequence[float], max_steps: int
) -> tuple[float, np.ndarray]:
    """The error and better weights of the groups, zeros staying zeros."""
    kept, lowest = weights > 0, float(_error(problem, jnp.asarray(weights), order))
    logs = np.log(np.where(kept, np.maximum(weights / weights.max() - _FLOOR, _FLOOR), 1.0))
    for temperature in temperatures:
        logs, candidate = _descend(problem, order, jnp.asarray(logs), jnp.asarray(kept), temperature, max_steps)
        error = float(_error(problem, candidate, order))
        if error < lowest:
            weights, lowest = np.asarray(candidate), error
    return lowest, weights


@partial(jax.jit, static_argnums=1)
def _descend(problem: _Problem, order: int, logs: Any, kept: Any, temperature: Any, steps: Any) -> tuple[jax.Array, jax.Array]:
    """L-BFGS in the logarithms of the weights that are kept, above a floor without which matrices become singular."""

    def weights(z: jax.Array) -> jax.Array:
        return jnp.where(kept, jnp.exp(z - jnp.where(kept, z, -jnp.inf).max()) + _FLOOR, 0.0)

    found = minimized(lambda z: _log_error(problem, weights(z), order, temperature), logs, steps)
    return found, weights(found)


def minimized(objective: Callable[[jax.Array], jax.Array], start: jax.Array, steps: Any) -> jax.Array:
    """The best place that L-BFGS passes in some steps, or until the gradient is below 1e-9.

    It ends where the objective or its gradient is not finite, as where a matrix becomes singular to rounding.
    """
    import optax  # which whoever does not optimise need not wait for

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def goes_on(carry: tuple[Any, ...]) -> jax.Array:
        *_, count, size = carry
        return (count < steps) & (size > 1e-9)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        z, state, best, lowest, count, _ = carry
        value, gradient = value_and_grad(z, state=state)
        is_better = value < lowest
        best, lowest = jnp.where(is_better, z, best), jnp.where(is_better, value, lowest)
        update, state = solver.update(gradient, state, z, value=value, grad=gradient, value_fn=objective)
        size = jnp.linalg.norm(gradient)
        size = jnp.where(jnp.isfinite(size) & jnp.isfinite(value), size, 0.0)
        return optax.apply_updates(z, update), state, best, lowest, count + 1, size

    infinite = jnp.asarray(jnp.inf, start.dtype)
    first = (start, solver.init(start), start, infinite, jnp.zeros((), jnp.int32), infinite)
    return jax.lax.while_loop(goes_on, step, first)[2]
