"""Methods from here as algorithms of DPBench (dpcomp_core), ``Run(Q, x, epsilon, seed)``, and such algorithms measured here.

For experiments. The interface asks for noise from a seed, and such noise protects nobody.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import jax
import numpy as np

from dpinfer import _checks, methods
from dpinfer.allocation import Allocation, optimize
from dpinfer.evaluation import squared_error
from dpinfer.inference import least_squares, multiplicative_weights
from dpinfer.mechanisms import ahp, dawa, mwem, simulate, structure_first
from dpinfer.queries import Boxes, Dense, Queries, Ranges, Tree, Weighted
from dpinfer.queries.dense import as_queries

_Shape = tuple[int, ...]
# Of a Run: the private counts, flat; their shape, the workload if it is used, epsilon and the seed.
_Estimate = Callable[[np.ndarray, _Shape, Queries | None, Any, int], Any]

_METHODS: dict[str, Callable[..., methods.Method]] = {
    "noisy_cells": methods.noisy_cells,
    "consistent_tree": methods.consistent_tree,
    "quadtree": methods.quadtree,
    "privelet": methods.privelet,
    "empirical_cells": methods.empirical_cells,
    "empirical_tree": methods.empirical_tree,
    "recommended": methods.recommended,
}
_MECHANISMS: dict[str, Callable[..., Any]] = {"ahp": ahp, "dawa": dawa, "structure_first": structure_first, "mwem": mwem}
_ONE_AXIS = ("privelet", "dawa", "structure_first")
_OPTIMIZED = "optimized_tree"
_OF_THE_WORKLOAD = (_OPTIMIZED, "mwem")
_NAMES = (*_METHODS, _OPTIMIZED, *_MECHANISMS)
# What Run gives, so that no setting may.
_OF_RUN = ("cells", "shape", "n", "workload", "epsilon")


@final
@dataclass(frozen=True)
class DPBenchAlgorithm:
    """An algorithm in the manner of DPBench; made by :func:`dpbench_algorithm`.

    Attributes:
        short_name: as in the tables of an experiment.
        is_seeded: whether the noise comes from the seed. If not, ``Run`` makes a real release: exact noise from the operating
            system, which no seed repeats.
        uses_workload: whether ``Q`` has to be given.
    """

    short_name: str
    is_seeded: bool
    uses_workload: bool
    _estimate: _Estimate

    def Run(self, Q: Any, x: Any, epsilon: Any, seed: Any) -> np.ndarray:
        """An estimate of the counts, float64 and of their shape, for ``epsilon`` under the noise that the seed gives.

        **Not a private release** where ``is_seeded``: the noise is pseudo-random and in floating point, so that whoever knows or
        guesses the seed takes it off again. ``dpinfer.measure`` and ``Method.measure`` release.

        Args:
            Q: the workload (:func:`dpbench_workload`); not looked at unless ``uses_workload``.
            x: **private**, counts along one or more axes; the argument of that name in DPBench's interface.
            epsilon: the budget, all of which is spent; neighbours differ by one record.
            seed: an integer from 0 to 2**32 - 1. The same seed, the same estimate, if ``is_seeded``.

        Raises:
            ValueError: for anything wrong with the public arguments, or with the dtype and the shape of ``x``.
        """
        array = np.asarray(x)
        if array.dtype.kind not in "iuf" or not array.size or not array.ndim:
            raise ValueError(f"x must be counts along one or more axes, got shape {list(array.shape)}, dtype {array.dtype}.")
        _checks.budget("epsilon", epsilon)
        if _checks.integer("seed", seed, least=0) >= 2**32:
            raise ValueError(f"seed must be below 2**32, got {seed}.")
        if self.uses_workload and Q is None:
            raise ValueError(f"Q must be a workload for {self.short_name}, which depends on it; got None.")
        workload = dpbench_workload(Q, array.shape) if self.uses_workload else None
        found = self._estimate(array.reshape(-1), array.shape, workload, epsilon, int(seed))
        return np.asarray(getattr(found, "cells", found), dtype=float).reshape(array.shape)


def dpbench_algorithm(
    method: str | Callable[..., methods.Method],
    *,
    estimator: Callable[..., Any] | None = None,
    noise: str = "laplace",
    short_name: str | None = None,
    **settings: Any,
) -> DPBenchAlgorithm:
    """One of the methods here as an object with ``Run(Q, x, epsilon, seed)``; for experiments, since its noise is not private.

    - "noisy_cells", "consistent_tree", "quadtree", "privelet" (one axis), "empirical_cells", "empirical_tree", "recommended": of
      ``dpinfer.methods``, simulated from the seed. A grid of two axes has its tree over both (``Tree.grid``).
    - "optimized_tree": a tree whose levels' budgets ``allocation.optimize`` fits to ``Q``; estimated by least squares.
    - "ahp", "dawa" (one axis), "structure_first" (one axis), "mwem": of ``dpinfer.mechanisms``. They look at the counts and have
      no simulated form: **the seed is not used**, ``x`` must be integers, and what comes back is from a real release.

    The interface hands back cells alone. Intervals are lost, and so are answers of ranges that are no sums of cells:
    ``tree_of_fewest_nodes`` is not offered, and a tree with ``nonnegative=True`` is worse here than by its own ``answer``.

    Args:
        method: one of these names, or a function from n (of several axes: their sizes) to a ``methods.Method``.
        estimator: in place of the method's own: from a Measurement or Release to cells, or to something that has them; for
            instance ``inference.nonnegative_least_squares``, or ``inference.noise_first`` of "noisy_cells".
        noise: "laplace" or "discrete_laplace", where it is simulated.
        short_name: left out, the method's name.
        settings: further arguments of the method by name, such as ``branching=4``, and ``total=`` for "mwem", a public number. Of
            "optimized_tree": ``branching`` (2), ``root`` (True) and ``tied`` ("levels"; None: a weight for each node, slower).

    Cost: that of a release and its estimate; "optimized_tree" once for each workload that of ``allocation.optimize``.

    Reference: Hay, Machanavajjhala, Miklau, Chen and Zhang 2016, "Principled evaluation of differentially private algorithms
    using DPBench" (SIGMOD).

    Raises:
        ValueError: for an unknown method or setting.
    """
    _checks.choice("noise", noise, ("laplace", "discrete_laplace"))
    if callable(method):
        name = getattr(method, "__name__", "method")
        return DPBenchAlgorithm(short_name or name, True, False, _simulated(name, method, estimator, noise, settings))
    name = _checks.choice("method", method, _NAMES)
    function = _tree_for if name == _OPTIMIZED else {**_METHODS, **_MECHANISMS}[name]
    known = [setting for setting in inspect.signature(function).parameters if setting not in _OF_RUN]
    for setting in settings:
        _checks.choice(f"a setting of {name}", setting, known)
    if name == "mwem" and "total" not in settings:
        raise ValueError("mwem needs total=, how many records there are, as a public number.")
    if name in _MECHANISMS:
        estimate = _released(name, estimator, settings)
    elif name == _OPTIMIZED:
        estimate = _simulated_optimum(estimator, noise, settings)
    else:
        estimate = _simulated(name, _METHODS[name], estimator, noise, settings)
    return DPBenchAlgorithm(short_name or name, name not in _MECHANISMS, name in _OF_THE_WORKLOAD, estimate)


def dpbench_workload(Q: Any, shape: Sequence[int] | None = None) -> Queries:
    """A workload of DPBench as queries of the cells in C order: Ranges, or Boxes of a grid, in the order of its list.

    Args:
        Q: an object with ``query_list`` and ``domain_shape`` whose queries have ``ranges``, each with ``lb`` and ``ub`` (both
            included) along every axis and a weight ``wgt``, as dpcomp_core makes them; or queries of ours, or a matrix [m, n].
        shape: cells along each axis, which must be the workload's; left out, whatever it has.

    Raises:
        ValueError: if it is none of these, or is over other cells.
    """
    if not hasattr(Q, "query_list"):
        queries = as_queries("Q", Q)
        if shape is not None and queries.shape[1] != np.prod(shape, dtype=np.int64):
            raise ValueError(f"Q must be over the cells of {list(shape)}, got {queries.shape[1]} cells.")
        return queries
    grid = _checks.grid("Q.domain_shape", getattr(Q, "domain_shape", None))
    if shape is not None and grid != tuple(shape):
        raise ValueError(f"Q must be over the cells of {list(shape)}, got domain_shape {list(grid)}.")
    rows, starts, stops, weights = [], [], [], []
    for row, query in enumerate(Q.query_list):
        for part in getattr(query, "ranges", ()):
            rows.append(row)
            starts.append(np.atleast_1d(part.lb))
            stops.append(np.atleast_1d(part.ub) + 1)
            weights.append(part.wgt)
    number = len(Q.query_list)
    if not number or len(set(rows)) < number or any(len(ends) != len(grid) for ends in (*starts, *stops)):
        raise ValueError(f"Q.query_list must hold queries whose ranges have lb, ub and wgt along the {len(grid)} axes.")
    first, last, weight = np.array(starts), np.array(stops), np.asarray(weights, dtype=float)
    boxes = Ranges(grid[0], first[:, 0], last[:, 0]) if len(grid) == 1 else Boxes(grid, first, last)
    if (weight == np.rint(weight)).all():
        weight = weight.astype(np.int64)  # so that the queries are known to have integer rows
    if len(rows) == number:
        return boxes if (weight == 1).all() else Weighted(boxes, weight)
    matrix = np.zeros((number, boxes.shape[1]), dtype=weight.dtype)
    np.add.at(matrix, rows, weight[:, None] * np.asarray(boxes.dense()))
    return Dense(matrix)


def dpbench_errors(algorithm: Any, Q: Any, truth: Any, *, epsilon: Any, seeds: Sequence[int]) -> np.ndarray:
    """The squared errors of a workload's answers by any algorithm with ``Run``, of others or ours, float64 [seeds, m].

    ``evaluation.candlesticks`` takes them as they are; their mean is the ``squared_error`` of ``evaluation.simulate_error``.

    Args:
        algorithm: has ``Run(Q, x, epsilon, seed)``, which returns an estimate of ``x`` of its shape.
        Q: what :func:`dpbench_workload` takes; handed to the algorithm as it is, so that DPBench's own need one of DPBench.
        truth: the counts, along one or more axes; not private here.
        epsilon: the budget of each run.
        seeds: one for each run.

    Raises:
        ValueError: if it returns another shape.
    """
    counts = np.asarray(truth)
    queries = dpbench_workload(Q, counts.shape)
    true_answers = np.asarray(queries @ counts.reshape(-1), dtype=float)
    found = []
    for seed in seeds:
        estimate = np.asarray(algorithm.Run(Q, counts.copy(), epsilon, seed), dtype=float)
        if estimate.shape != counts.shape:
            raise ValueError(f"algorithm must return the shape of x, {list(counts.shape)}, got {list(estimate.shape)}.")
        found.append(np.asarray(squared_error(np.asarray(queries @ estimate.reshape(-1)), true_answers)))
    return np.array(found).reshape(len(found), queries.shape[0])


def _simulated(name: str, function: Callable[..., methods.Method], estimator: Any, noise: str, settings: Any) -> _Estimate:
    """A method's strategy with noise from the seed."""

    def estimate(x: np.ndarray, shape: _Shape, _workload: Queries | None, epsilon: Any, seed: int) -> Any:
        _check_axes(name, shape)
        own = {"epsilon": epsilon} if name == "recommended" else {}
        method = function(shape[0] if len(shape) == 1 else shape, **own, **settings)
        return (estimator or method.estimate)(method.simulate(x, epsilon=epsilon, key=jax.random.key(seed), noise=noise))

    return estimate


def _simulated_optimum(estimator: Any, noise: str, settings: Any) -> _Estimate:
    """A tree with budgets for the workload, and noise from the seed."""

    def estimate(x: np.ndarray, shape: _Shape, workload: Queries | None, epsilon: Any, seed: int) -> Any:
        found = _tree_for(shape, workload, **settings)
        given = {"row_weights": found.row_weights, "noise": noise, "key": jax.random.key(seed)}
        return (estimator or least_squares)(simulate(x, found.strategy, epsilon=float(epsilon), **given))

    return estimate


def _released(name: str, estimator: Any, settings: Any) -> _Estimate:
    """A mechanism that looks at the counts, with noise from the operating system."""

    def estimate(x: np.ndarray, shape: _Shape, workload: Queries | None, epsilon: Any, _seed: int) -> Any:
        _check_axes(name, shape)
        if x.dtype.kind == "f":
            raise ValueError(f"x must have an integer dtype for {name}, whose noise is exact, got {x.dtype}.")
        found = _MECHANISMS[name](x, *([] if workload is None else [workload]), epsilon=epsilon, **settings)
        if estimator is not None:
            return estimator(found if name == "mwem" else found.measurement)
        return multiplicative_weights(found, settings["total"]) if name == "mwem" else found

    return estimate


@lru_cache(maxsize=8)
def _tree_for(shape: _Shape, workload: Any, branching: int = 2, root: bool = True, tied: str | None = "levels") -> Allocation:
    """A tree with row weights for the workload, whatever the budget."""
    strategy = Tree.complete(shape[0], branching, root) if len(shape) == 1 else Tree.grid(shape, branching, root)
    return optimize(workload, strategy, epsilon=1, tied=tied)


def _check_axes(name: str, shape: _Shape) -> None:
    if name in _ONE_AXIS and len(shape) > 1:
        raise ValueError(f"x must have one axis for {name}, got shape {list(shape)}.")
