"""Weighted least squares: the best linear unbiased estimate of the cells from noisy answers."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.inference.constrained_estimate import solve_constrained
from dpinfer.inference.dense_estimate import solve_dense
from dpinfer.inference.estimate import LinearEstimate, as_floats, to_device
from dpinfer.inference.iterative_estimate import IterativeEstimate, solve_iteratively
from dpinfer.inference.kronecker_estimate import solve_kronecker
from dpinfer.inference.marginals_estimate import as_marginals, part_variances, solve_marginals
from dpinfer.inference.orthogonal_estimate import OrthogonalEstimate, solve_orthogonal
from dpinfer.inference.padded import PaddedTreeEstimate, Padding, padding_of, solve_padded
from dpinfer.inference.stacks import pool, stack_tree
from dpinfer.inference.tree import MAX_REGULAR_RATIO
from dpinfer.inference.tree_estimate import TreeEstimate, solve_complete, solve_deep, solve_shallow
from dpinfer.measurement import Measurement
from dpinfer.queries import Identity, Kronecker, Queries
from dpinfer.queries.grid_tree import GridTree
from dpinfer.queries.parent_tree import ParentTree
from dpinfer.queries.tree import CompleteTree
from dpinfer.release import Release, as_measurement

# m n min(m, n) of the largest matrix that is factorised densely: some ten seconds and a gigabyte.
_MAX_DENSE_WORK = 2**34
# Large trees of few levels are compiled level by level, which runs faster; all others in a loop over blocks of nodes, which
# compiles in a second whatever the depth.
_MAX_UNROLLED_LEVELS = 40
_MIN_UNROLLED_NODES = 2**16


def least_squares(measurement: Measurement | Release) -> LinearEstimate:
    """The weighted least squares estimate: among all linear unbiased ones that of least variance, for every answer.

    Minimises sum_i (A x - y)_i^2 / stddev_i^2 over real cells x. Structure that gives a closed form is found and used:

    - trees, and stacks of ever finer partitions (identity and total, identity and partition, several trees of one shape, the same
      strategy measured again): two passes for any noise, O(nodes), with every node's variance (``inference/tree.py``);
    - rows orthogonal to each other (wavelets of a power of two, one partition, products of such): one product with the transpose;
    - marginals of a table, one variance a marginal: averages over axes (``inference/marginals_estimate.py``);
    - a Kronecker product, one variance for all rows: axis by axis (``inference/kronecker_estimate.py``).

    Any other strategy is factorised as a dense matrix, O(m n min(m, n)), up to about 2,000 cells, and beyond that solved by
    conjugate gradients (``inference/iterative_estimate.py``): the result then has ``num_steps``, ``residual`` and
    ``converged``, and a standard deviation costs as much as an estimate. Whatever way, standard deviations are exact, and
    what the measurement leaves open is named when it is asked for. Runs eagerly or under jit, vmap and grad (in the values
    and in the scale).

    Args:
        measurement: a Release or a Measurement. An infinite scale leaves a row out. A zero scale is an exact count, such as a
            public total (``Measurement.with_exact``), which the estimate keeps; inside jit, where nobody can see which scales
            are zero, only on trees, stacks of partitions and orthogonal rows.

    Returns:
        A LinearEstimate: ``.cells``, ``.answer(workload)`` and ``.covariance(workload)``.

    Raises:
        ValueError: if the tree has two children of one node that no measurement tells apart, if exact counts contradict each
            other, if conjugate gradients do not converge, or if 32-bit floats would round the values. Inside jit, see
            ``is_determined`` and ``converged`` of the result.
    """
    measurement = as_measurement(measurement)
    _checks.exact_in_float("values", measurement.values)
    values = as_floats(measurement.values)
    stddev = to_device(measurement.stddev, values.dtype)
    match measurement.queries:
        case CompleteTree() as tree:
            estimate = _checked(_solve_complete_tree(tree, padding_of(tree), values, stddev), measurement)
        case ParentTree() as tree:
            estimate = _checked(_solve_parent_tree(tree, values, stddev), measurement)
        case GridTree() as tree:
            estimate = _checked(_solve_grid_tree(tree, values, stddev), measurement)
        case Identity(n):
            tree = CompleteTree(n, max(n, 2))
            estimate = _checked(_solve_complete_tree(tree, padding_of(Identity(n)), values, stddev), measurement)
        case _:
            estimate = _solve_other(measurement, values, stddev)
    return replace(estimate, measurement=measurement)


def _is_regular(stddev: jax.Array) -> bool:
    """Whether it can be seen, outside jit, that ``level_gains`` may take the simpler and faster way."""
    if not _checks.is_concrete(stddev):
        return False
    least, most = np.asarray(stddev).min(), np.asarray(stddev).max()
    return bool(least > 0 and most <= MAX_REGULAR_RATIO * least and np.isfinite(most))


def _solve_complete_tree(
    tree: CompleteTree, padding: Padding | None, values: jax.Array, stddev: jax.Array
) -> TreeEstimate | PaddedTreeEstimate:
    if padding is not None and _checks.is_concrete(values, stddev):
        return solve_padded(tree, padding, np.asarray(values), np.asarray(stddev))
    return solve_complete(tree, values, stddev, is_regular=_is_regular(stddev))


def _solve_parent_tree(tree: ParentTree, values: jax.Array, stddev: jax.Array) -> TreeEstimate:
    is_regular = _is_regular(stddev)
    stddev = jnp.broadcast_to(stddev, values.shape)
    if not tree.is_level_order:
        order = jnp.asarray(tree.order)
        values, stddev = values[order], stddev[order]
    if len(tree.level_sizes) <= _MAX_UNROLLED_LEVELS and tree.num_nodes >= _MIN_UNROLLED_NODES:
        return solve_shallow(tree, tree.links, values, stddev, is_regular=is_regular)
    return solve_deep(tree, tree.blocks, jnp.asarray(tree.num_children[tree.order]), values, stddev)


def _solve_grid_tree(tree: GridTree, values: jax.Array, stddev: jax.Array) -> TreeEstimate:
    if not tree.root:  # a root that was not measured
        values = jnp.concatenate([jnp.zeros((1,), values.dtype), values])
        stddev = jnp.concatenate([jnp.full((1,), jnp.inf, stddev.dtype), jnp.broadcast_to(stddev, values[1:].shape)])
    return _solve_parent_tree(tree.with_root, values, stddev)


def _solve_other(measurement: Measurement, values: jax.Array, stddev: jax.Array) -> Any:
    """The estimate of a strategy that is no tree by itself: by structure where there is some, else by what its size allows."""
    queries = measurement.queries
    stack = None if jax.tree.leaves(queries) else stack_tree(queries)
    if stack is not None:
        pooled = pool(stack.nodes, stack.tree.num_nodes, values, stddev)
        estimate = _solve_parent_tree(stack.tree, *pooled)
        if not _checks.is_concrete(estimate.is_determined) or bool(estimate.is_determined):
            return _checked(estimate, measurement, stack.nodes)
    known = measurement.known_stddev
    if queries.has_orthogonal_rows:
        return _keeping_exact(solve_orthogonal(queries, values, stddev), queries, values, known)
    if known is not None and np.any(known == 0):
        return solve_constrained(queries, values, known, lambda v, s: _solve_noisy(queries, v, jnp.asarray(s, v.dtype), s))
    return _solve_noisy(queries, values, stddev, known)


def _solve_noisy(queries: Queries, values: jax.Array, stddev: jax.Array, known: np.ndarray | None) -> Any:
    """The estimate of a strategy without exact rows that is no tree; ``known`` is ``stddev`` where it can be looked at."""
    marginals = as_marginals(queries)
    variances = None if marginals is None else part_variances(marginals, stddev if known is None else known)
    if marginals is not None and variances is not None:
        return solve_marginals(marginals, values, variances)
    if isinstance(queries, Kronecker) and all(_dense_work(part) <= _MAX_DENSE_WORK for part in queries.parts):
        common = _common(stddev, known)
        if common is not None:
            return solve_kronecker(queries, values, common)
    if _dense_work(queries) <= _MAX_DENSE_WORK:
        return solve_dense(queries.dense(), values, stddev)
    return _converged(solve_iteratively(queries, values, stddev))


def _keeping_exact(
    estimate: OrthogonalEstimate, queries: Queries, values: jax.Array, known: np.ndarray | None
) -> OrthogonalEstimate:
    if known is not None and np.any(known == 0) and _checks.is_concrete(values, estimate.cells):
        missed = np.abs(np.asarray(queries @ np.asarray(estimate.cells)) - np.asarray(values))
        bad = np.flatnonzero((known == 0) & (missed > 1e-9 * np.abs(np.asarray(values)).max()))
        if bad.size:
            raise ValueError(
                f"The exact counts (scale 0) contradict each other: row {bad[0]}, which says {float(values[bad[0]]):g}, is a row "
                "of zeros. Correct it, or give it a positive scale."
            )
    return estimate


def _dense_work(queries: Queries) -> int:
    m, n = queries.shape
    return m * n * min(m, n)


def _common(stddev: jax.Array, known: np.ndarray | None) -> jax.Array | None:
    """The one finite standard deviation of all rows, if it can be seen that there is one."""
    if stddev.ndim == 0:
        return stddev
    if known is None or not known.size:
        return None
    return stddev[0] if np.isfinite(known[0]) and np.all(known == known[0]) else None


def _converged(estimate: IterativeEstimate) -> IterativeEstimate:
    if _checks.is_concrete(estimate.converged) and not bool(estimate.converged):
        raise ValueError(
            f"Conjugate gradients did not converge on {estimate.queries!r}: after {int(estimate.num_steps)} steps the residual "
            f"is {float(estimate.residual):.1e} of what it was. The noise of its rows differs by too much; leave out the least "
            "precise."
        )
    return estimate


def _checked(estimate: Any, measurement: Measurement, nodes_of_rows: np.ndarray | None = None) -> Any:
    """The estimate, if it is determined and its exact counts agree; inside jit nobody can look.

    ``nodes_of_rows`` says which node each row measures, if not one after the other.
    """
    if not _checks.is_concrete(estimate.is_determined, measurement.scale):
        return estimate
    tree = estimate.tree
    if not np.all(np.asarray(estimate.is_determined)):
        bad = np.flatnonzero(np.isinf(np.asarray(estimate.node_variances)))
        nodes = bad if isinstance(tree, CompleteTree) else np.sort(tree.order[bad])
        raise ValueError(
            f"The measurement of {measurement.queries!r} does not determine {nodes.size} of its nodes, {nodes[:10].tolist()}"
            f"{'...' if nodes.size > 10 else ''} (counted from the root): siblings that were not measured cannot be told "
            "apart. Measure all but one of them, give their level a budget, or use a tree that ends above them."
        )
    if np.min(measurement.scale) == 0 and _checks.is_concrete(measurement.values):
        scale = np.broadcast_to(measurement.scale, measurement.values.shape)
        nodes = np.asarray(estimate.node_values)
        nodes = nodes if isinstance(tree, CompleteTree) else nodes[tree.position]
        if nodes_of_rows is None:
            nodes = nodes[tree.num_nodes - measurement.queries.shape[0] :]  # without a root that is no row
        else:
            nodes = np.append(nodes, 0.0)[nodes_of_rows]
        values = np.asarray(measurement.values, dtype=nodes.dtype)
        size = np.finfo(nodes.dtype).eps * 64 * max(1.0, float(np.abs(values).max()))
        bad = np.flatnonzero((scale == 0) & (np.abs(nodes - values) > size * np.sqrt(tree.num_nodes)))
        if bad.size:
            raise ValueError(
                f"The exact counts (scale 0) contradict each other: row {bad[0]} says {values[bad[0]]:g}, the others add up to "
                f"{nodes[bad[0]]:g} ({bad.size} such rows). Correct them, or give them a positive scale."
            )
    return estimate
