"""Estimators from here as the last step of an OpenDP measurement: plain functions from the noisy list to a list of estimates.

OpenDP itself is not imported: ``measurement >> opendp.prelude.new_function(function, TO="Vec<f64>")`` chains one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpinfer import _checks
from dpinfer import noise as laws
from dpinfer.inference import least_squares
from dpinfer.inference.estimate import over_cells
from dpinfer.measurement import Measurement, check_spread
from dpinfer.queries import Tree
from dpinfer.queries.dense import as_queries

_Postprocessor = Callable[[Any], list[float]]


def opendp_postprocessor(
    queries: Any,
    *,
    noise: str,
    scale: Any,
    infer: Callable[[Measurement], Any] = least_squares,
    answer: Any = None,
) -> _Postprocessor:
    """A function from the noisy list that an OpenDP measurement returns to estimated answers, a list of floats.

    It sees the list and nothing else, so that the loss of the chained measurement is that of the measurement. With OpenDP::

        opendp.prelude.enable_features("contrib", "honest-but-curious")
        chained = measurement >> opendp.prelude.new_function(function, TO="Vec<f64>")

    It is tried on zeros when it is made: what does not fit together is refused then, and not after a budget was spent. What a
    call refuses is a list of another length and numbers that are not finite; without ``dpinfer.enable_x64()`` also numbers
    above 2**24. **A call that raises has spent the budget all the same.**

    Args:
        queries: what was counted, in the order of the list; or a matrix [m, n].
        noise: the law: of ``make_laplace`` "discrete_laplace" over integers and "laplace" over floats, of ``make_gaussian``
            "discrete_gaussian" and "gaussian".
        scale: OpenDP's parameter, one number or [m].
        infer: from a Measurement to something with ``.answer(workload)`` or ``.cells``, or to cells; such as
            ``inference.nonnegative_least_squares`` or ``functools.partial(inference.cell_posterior, prior="independent")``.
        answer: what is estimated, queries of the same cells or a matrix; left out, the cells.

    Cost: that of ``infer``, in the process and on the thread that calls the measurement.

    Raises:
        ValueError: if the arguments do not fit each other, or the measurement does not determine ``answer``.
    """
    queries = as_queries("queries", queries)
    return _postprocessor(queries, np.arange(queries.shape[0]), queries.shape[0], noise, scale, infer, answer)


def opendp_tree_postprocessor(
    leaf_count: int,
    branching: int,
    *,
    noise: str,
    scale: Any,
    infer: Callable[[Measurement], Any] = least_squares,
    answer: Any = None,
) -> _Postprocessor:
    """:func:`opendp_postprocessor` for the nodes that OpenDP's ``make_b_ary_tree(..., leaf_count, branching)`` counts.

    Its list runs level by level from the root. All levels but the leaves are full; where ``leaf_count`` is no power of
    ``branching`` the last nodes of a level have no leaves, and their values, noise alone, are left out here. The rest are the
    rows of ``Tree.complete(leaf_count, branching, root=True)``, for which least squares is two passes.

    Args:
        leaf_count, branching: as in OpenDP.
        noise, scale, infer, answer: as in :func:`opendp_postprocessor`.
    """
    # Of a single leaf OpenDP has one node, and a tree with a root two.
    has_root = leaf_count != 1
    tree = Tree.complete(leaf_count, branching, has_root)
    sizes = np.array(tree.level_sizes if has_root else [1], dtype=np.int64)
    full = np.append(branching ** np.arange(sizes.size - 1), sizes[-1])
    starts = np.cumsum(full) - full
    rows = np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])
    return _postprocessor(tree, rows, int(full.sum()), noise, scale, infer, answer)


def _postprocessor(
    queries: Any, rows: np.ndarray, num_values: int, noise: str, scale: Any, infer: Callable[[Measurement], Any], answer: Any
) -> _Postprocessor:
    """Of a list of ``num_values`` numbers, of which those at ``rows`` are the queries' values."""
    _checks.choice("noise", noise, laws.NAMES)
    spread = np.asarray(check_spread("scale", scale, num_values))
    spread = spread[rows] if spread.ndim else spread
    wanted = None if answer is None else over_cells(as_queries("answer", answer), queries.shape[1])

    def estimated(values: Any) -> list[float]:
        array = np.asarray(values)
        if array.shape != (num_values,):
            raise ValueError(f"values must have shape [{num_values}], one for each query, got {list(array.shape)}.")
        found = infer(Measurement(queries, array[rows], noise, spread))
        if wanted is not None and hasattr(found, "answer"):
            return np.asarray(found.answer(wanted).values, dtype=float).tolist()
        cells = np.asarray(getattr(found, "cells", found), dtype=float)
        return (cells if wanted is None else np.asarray(wanted @ cells)).tolist()

    estimated(np.zeros(num_values, dtype=np.int64))
    return estimated
