"""Realised error and calibration: estimates against a truth that is known, for studies and demonstrations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.batching import stream_problems
from dpinfer.calibration import Calibration, SimulatedCoverage, simulate_coverage, simulation_based_calibration
from dpinfer.inference import least_squares
from dpinfer.inference.estimate import over_cells
from dpinfer.measurement import Measurement
from dpinfer.mechanisms import simulate
from dpinfer.queries import Boxes, Queries, Ranges
from dpinfer.queries.base import Array, as_array, namespace
from dpinfer.scales import float_scale, one_budget

__all__ = [
    "Calibration",
    "Candlestick",
    "SimulatedCoverage",
    "SimulatedError",
    "absolute_error",
    "candlesticks",
    "coverage",
    "earth_movers_distance",
    "ranges_of_size",
    "relative_error",
    "simulate_coverage",
    "simulate_error",
    "simulation_based_calibration",
    "squared_error",
    "squared_error_by_range_size",
]


@final
@dataclass(frozen=True)
class SimulatedError:
    """The error of an estimator in simulated releases, a number for each truth and budget: [truths, budgets], without the axis
    of what was given singly.

    Attributes:
        squared_error: the mean over releases and answers of (answer - true answer)^2.
        standard_error: of ``squared_error``, from how the releases differ.
        expected: what ``squared_error`` would be for least squares on average over all releases: the mean of its exact variances;
            infinite if the strategy does not determine an answer.
        num_draws: releases for each truth and budget.
        answer_bias, answer_squared_error, answer_standard_error, answer_expected: the mean error and the same for each answer,
            one axis more, [..., m]; of no answers unless asked for.
    """

    squared_error: np.ndarray
    standard_error: np.ndarray
    expected: np.ndarray
    num_draws: int
    answer_bias: np.ndarray
    answer_squared_error: np.ndarray
    answer_standard_error: np.ndarray
    answer_expected: np.ndarray


def simulate_error(
    strategy: Queries,
    estimator: Callable[[Measurement], Any],
    truth: Any,
    workload: Any,
    *,
    epsilon: Any = None,
    rho: Any = None,
    level_epsilons: Any = None,
    level_rhos: Any = None,
    noise: str = "laplace",
    row_weights: Any = None,
    neighbors: str = "add_remove",
    key: jax.Array,
    num_draws: int = 1000,
    by_answer: bool = False,
    memory_limit: int = 1 << 30,
    progress: Any = False,
) -> SimulatedError:
    """The error of an estimator over many simulated releases, for several truths and budgets in one compiled program.

    Each release is :func:`dpinfer.simulate` of ``strategy``, estimated, and its answers compared with the true ones. All run
    through :func:`dpinfer.map_problems`, every one with a key of its own.

    Args:
        strategy: what is measured.
        estimator: from a Measurement to something with ``.cells``, or to the cells; it runs under jit and vmap.
        truth: [n], or [truths, n]; not private here.
        workload: the answers, queries of n cells or a matrix [m, n].
        epsilon, rho, level_epsilons, level_rhos: exactly one, as in :func:`dpinfer.simulate`; or several of them along a first
            axis more.
        noise, row_weights, neighbors: as in :func:`dpinfer.simulate`.
        key: a typed key.
        num_draws: releases for each truth and budget.
        by_answer: whether to give the errors of single answers as well.
        memory_limit, progress: as in :func:`dpinfer.map_problems`.
    """
    kind, value = one_budget(epsilon, rho, level_epsilons, level_rhos)
    num_draws = _checks.integer("num_draws", num_draws, least=2)
    queries = over_cells(workload, strategy.shape[1])
    truths = np.asarray(truth, dtype=float)
    if truths.ndim not in (1, 2) or truths.shape[-1] != strategy.shape[1]:
        raise ValueError(
            f"truth must have shape [{strategy.shape[1]}] or [truths, {strategy.shape[1]}], got {list(truths.shape)}."
        )
    _checks.finite("truth", truths)
    if not truths.size:
        raise ValueError(f"truth must hold at least one truth, got shape {list(truths.shape)}.")
    budgets = np.asarray(value, dtype=float)
    own_axes = 1 if kind.startswith("level") else 0
    if budgets.ndim not in (own_axes, own_axes + 1) or not budgets.size:
        raise ValueError(f"{kind} must have {own_axes} axes, or one more for several budgets, got shape {list(budgets.shape)}.")
    several = budgets.reshape(-1, *budgets.shape[budgets.ndim - own_axes :])
    for number, budget in enumerate(several):
        for amount in np.atleast_1d(budget).tolist():
            _checks.budget(f"{kind}[{number}]" if budgets.ndim > own_axes else kind, amount, zero=bool(own_axes))
    order = 1 if kind.endswith(("epsilon", "epsilons")) else 2
    law = "gaussian" if order == 2 else noise
    num_single = queries.shape[0] if by_answer else 0
    grid = (np.atleast_2d(truths).shape[0], several.shape[0])
    shape = (*truths.shape[:-1], *budgets.shape[: budgets.ndim - own_axes])

    def errors(which: Any, key: Any) -> tuple[jax.Array, jax.Array]:
        cells = jnp.asarray(np.atleast_2d(truths))[which // grid[1]]
        budget = jnp.asarray(several)[which % grid[1]]
        measurement = simulate(
            cells, strategy, **{kind: budget}, noise=law, row_weights=row_weights, neighbors=neighbors, key=key
        )
        found = estimator(measurement)
        estimated = jnp.asarray(getattr(found, "cells", found))
        if estimated.shape != cells.shape:
            raise ValueError(
                f"estimator must return {cells.shape[0]} cells, or something that has them, got shape {list(estimated.shape)}."
            )
        error = jnp.asarray(queries @ (estimated - cells))
        return jnp.square(error).mean(), error[:num_single]

    which = np.repeat(np.arange(grid[0] * grid[1]), num_draws)
    squares, powers = np.zeros(which.size), np.zeros((3, grid[0] * grid[1], num_single))
    for rows, (square, error) in stream_problems(errors, which, key=key, memory_limit=memory_limit, progress=progress):
        squares[rows] = square
        for number in np.unique(which[rows]):
            own = error[which[rows] == number]
            powers[:, number] += [own.sum(axis=0), np.square(own).sum(axis=0), (np.square(own) ** 2).sum(axis=0)]
    squares = squares.reshape(-1, num_draws)
    first, second, fourth = powers / num_draws

    def expected(budget: Any) -> np.ndarray:
        scale = float_scale(strategy, kind, jnp.asarray(budget), row_weights, order, neighbors)
        nothing = Measurement(strategy, np.zeros(strategy.shape[0]), law, np.asarray(scale))
        return np.square(np.asarray(least_squares(nothing).expected_stddev(queries)))

    variances = np.stack([expected(budget) for budget in several])
    variances = np.broadcast_to(variances, (grid[0], *variances.shape))
    spread = np.sqrt(np.maximum(fourth - np.square(second), 0.0) / (num_draws - 1))
    return SimulatedError(
        squares.mean(axis=1).reshape(shape),
        (squares.std(axis=1, ddof=1) / np.sqrt(num_draws)).reshape(shape),
        variances.mean(axis=-1).reshape(shape),
        num_draws,
        *(x.reshape(*shape, num_single) for x in (first, second, spread, variances[..., :num_single])),
    )


def squared_error(answers: Any, truth: Any) -> Array:
    """(answer - true answer)^2, elementwise; the truth is not private here."""
    answers, truth = _pair(answers, truth)
    return namespace(answers).square(answers - truth)


def absolute_error(answers: Any, truth: Any) -> Array:
    """|answer - true answer|, elementwise."""
    answers, truth = _pair(answers, truth)
    return namespace(answers).abs(answers - truth)


def relative_error(answers: Any, truth: Any, *, sanity_bound: Any) -> Array:
    """|answer - true answer| / max(true answer, sanity bound), elementwise (Xiao, Wang and Gehrke 2010, section 7).

    Args:
        answers, truth: of one shape, or shapes that broadcast.
        sanity_bound: positive; what counts below are not worth: the paper takes a thousandth of all records.
    """
    answers, truth = _pair(answers, truth)
    if _checks.is_concrete(sanity_bound) and not float(np.min(np.asarray(sanity_bound))) > 0:
        raise ValueError(f"sanity_bound must be positive, got {sanity_bound!r}.")
    xp = namespace(answers)
    return xp.abs(answers - truth) / xp.maximum(truth, sanity_bound)


def _pair(answers: Any, truth: Any) -> tuple[Array, Array]:
    answers, truth = as_array("answers", answers), as_array("truth", truth)
    return (jnp.asarray(answers), jnp.asarray(truth)) if isinstance(truth, jax.Array) else (answers, truth)


@final
@dataclass(frozen=True)
class Candlestick:
    """What errors are like, the numbers that the candlesticks of Qardaji et al. 2013 (figure 3) show.

    Attributes:
        size: cells of a range; 0 for errors of all sizes together.
        num_answers: how many errors.
        mean, lower_quartile, median, upper_quartile, percentile_95: of them.
    """

    size: int
    num_answers: int
    mean: float
    lower_quartile: float
    median: float
    upper_quartile: float
    percentile_95: float


def candlesticks(errors: Any, workload: Any = None) -> list[Candlestick]:
    """The quantiles of errors; with a workload of ranges or boxes, by the number of cells in each, the smallest first.

    Args:
        errors: [m], or [releases, m], any kind of error of each answer.
        workload: the m queries.
    """
    found = np.asarray(errors, dtype=float)
    found = np.atleast_2d(found)
    if found.ndim != 2 or not found.size:
        raise ValueError(f"errors must have shape [m] or [releases, m], got {list(np.shape(errors))}.")
    sizes = np.zeros(found.shape[1], dtype=np.int64)
    if workload is not None:
        ranges = workload.as_ranges() if isinstance(workload, Queries) else None
        if isinstance(workload, Boxes):
            sizes = (workload.stops - workload.starts).prod(axis=1)
        elif ranges is not None:
            sizes = ranges[1] - ranges[0]
        else:
            raise ValueError(f"workload must be ranges or Boxes, got {workload!r}.")
        if sizes.shape != found.shape[1:]:
            raise ValueError(f"errors must have one entry for each of the {sizes.size} queries, got {found.shape[1]}.")
    sticks = []
    for size in np.unique(sizes).tolist():
        own = found[:, sizes == size]
        quantiles = np.quantile(own, [0.25, 0.5, 0.75, 0.95]).tolist()
        sticks.append(Candlestick(size, own.size, float(own.mean()), *quantiles))
    return sticks


def squared_error_by_range_size(cells: Any, truth: Any, sizes: Sequence[int]) -> Array:
    """The mean squared error of the sums over all ranges of each size, [len(sizes)].

    For size s, the average over the n - s + 1 ranges of s neighbouring cells of (sum of ``cells`` - sum of ``truth``)^2. Exact,
    not sampled; O(n) for each size; runs under jit and vmap.

    Args:
        cells: [n], estimated.
        truth: [n], the true cells; not private here.
        sizes: how many cells a range holds, each from 1 to n.
    """
    cells, truth = as_array("cells", cells), as_array("truth", truth)
    if cells.ndim != 1 or cells.shape != truth.shape:
        raise ValueError(f"cells and truth must be vectors of one length, got {list(cells.shape)} and {list(truth.shape)}.")
    _check_sizes(cells.shape[0], sizes)
    error = cells - truth
    xp = namespace(error)
    # Sums of differences, so that a large count common to both costs no digits.
    totals = xp.concatenate([xp.zeros((1,), error.dtype), xp.cumsum(error)])
    return xp.stack([xp.square(totals[size:] - totals[: totals.shape[0] - size]).mean() for size in sizes])


def ranges_of_size(n: int, size: int, *, most: int | None = None) -> Ranges:
    """The ranges of ``size`` neighbouring cells of n, from left to right; with ``most``, only that many, evenly spaced."""
    n = _checks.integer("n", n, least=1)
    _check_sizes(n, [size])
    count = n - size + 1
    starts = np.arange(count)
    if most is not None and _checks.integer("most", most, least=1) < count:
        starts = np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))
    return Ranges(n, starts, starts + size)


def earth_movers_distance(histogram: Any, truth: Any) -> Any:
    """By how much the sizes of groups would have to change in all for one count-of-counts histogram to become another.

    The sum of |H_c - H_c'| over sizes, which is that of |H_g - H_g'| over groups matched in order of size; in 64 bit, on the
    host.

    Args:
        histogram, truth: [..., sizes], numbers of groups of size 0, 1, ...; the shorter is filled up with zeros. Both with the
            same number of groups.

    Returns:
        [...], int64 for integers, else float64.

    Reference: Kuo et al. 2018, section 3.1 and lemma 1.

    Raises:
        ValueError: if the numbers of groups differ.
    """
    first, second = np.asarray(histogram), np.asarray(truth)
    for name, array in (("histogram", first), ("truth", second)):
        if not array.ndim or array.dtype.kind not in "iuf":
            raise ValueError(f"{name} must be numbers of groups by size, got dtype {array.dtype}, shape {list(array.shape)}.")
        if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"{name} must fit 64-bit signed integers, got {array.max()}.")
    kind = np.float64 if "f" in first.dtype.kind + second.dtype.kind else np.int64
    size = max(first.shape[-1], second.shape[-1])
    first, second = (
        np.concatenate([x.astype(kind), np.zeros((*x.shape[:-1], size - x.shape[-1]), dtype=kind)], axis=-1)
        for x in (first, second)
    )
    difference = np.cumsum(first - second, axis=-1)
    scale = np.maximum(np.abs(first).sum(axis=-1), np.abs(second).sum(axis=-1))
    if size and (np.abs(difference[..., -1]) > (1e-9 * scale if kind is np.float64 else 0)).any():
        raise ValueError("histogram and truth must have the same number of groups: it has no distance otherwise.")
    return np.abs(difference).sum(axis=-1)


def coverage(lower: Any, upper: Any, truth: Any) -> Array:
    """The share of true answers inside their intervals, ends included; over all entries."""
    return ((jnp.asarray(lower) <= jnp.asarray(truth)) & (jnp.asarray(truth) <= jnp.asarray(upper))).mean()


def _check_sizes(n: int, sizes: Sequence[int]) -> None:
    for size in sizes:
        if not 1 <= size <= n:
            raise ValueError(f"sizes must be from 1 to the number of cells {n}, got {size}.")
