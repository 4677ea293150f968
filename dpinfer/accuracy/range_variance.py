"""The average variance of the sums over all ranges that a tree answers, exactly and without forming its matrix.

With consistency: given x_v, the least squares estimates of a node's children have covariance diag(V) - V V'/T, where V_c is the
variance of child c from the measurements at and below it and T the sum of these (``inference/tree.py``). With the weighted share
of a node's cells that lie in a range q, a_v = sum_c g_c a_c with g_c = V_c / T,

    var(q'x) = a_root^2 V_root + sum over the inner nodes v of [ sum_c V_c a_c^2 - T_v a_v^2 ].

In a full block all weights are equal, and the sums over all blocks of a level and all ranges are integers (``heights.py``). The
one block of a level that is cut at n has weights that are constant on few segments. So a cut tree costs little more than a full
one: O(height^3) along one axis. Over d axes nodes are told apart by the number of axes along which they are cut.

Without: a range is the sum of the fewest nodes that it is made of, those inside it whose parent is not (Hay et al. 2010, section
4.1; Qardaji et al. 2013, section 3.1).
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks, noise
from dpinfer.accuracy.heights import Height, heights, num_levels, num_ranges
from dpinfer.queries.base import Array


def range_variance(
    n: int,
    branching: int,
    level_epsilons: Any = None,
    *,
    level_rhos: Any = None,
    root: bool = False,
    consistent: bool = True,
    dims: int = 1,
    noise: str | None = None,
) -> Any:
    """The variance of the sum over a range, averaged over all n(n+1)/2 ranges, that a measured tree will answer with.

    Of ``Tree.complete(n, branching, root)``, or with ``dims`` axes of n cells each of ``Tree.grid``, over all boxes. Exact for
    any n: a tree that is cut at n is left-aligned and without dummy leaves, as the strategy is. If the root is not measured, the
    range of all cells is the sum of the root's children (and not free, as equation 2 of the paper has it).

    Args:
        n: cells along each axis.
        branching: parts of a node along each axis; with ``branching >= n`` and without a root it is the flat histogram.
        level_epsilons: the budget of each measured level, top to bottom as in ``measure``; 0: not measured. Under the relation
            ``replace_one`` a budget buys what half of it buys here.
        level_rhos: the same for Gaussian noise.
        root: whether the root is measured, its budget the first.
        consistent: by least squares; else each range from the fewest nodes that make it up.
        dims: number of axes.
        noise: with epsilons "laplace" (the default) or "discrete_laplace", with rhos "gaussian" (the default) or
            "discrete_gaussian".

    Returns:
        A number; infinite if the leaves are not measured. A JAX array if the budgets are one: differentiable in them (with a
        derivative of 0 where a level's budget is 0), and under jit and vmap, in one call for thousands of budgets.

    Cost: O(height^3) for one axis, whatever n: under a millisecond at n = 2^20.

    Reference: Qardaji, Yang, Li 2013, "Understanding hierarchical methods for differentially private histograms", sections 3.2,
    3.3 and 5 (propositions 1 to 6, whose printed forms are approximations; with errata: the recurrences of section 3.3 hold for
    complete trees of equal budgets only).

    Raises:
        ValueError: if the number of budgets is not that of the levels, or one is negative.
    """
    n, branching = _checks.integer("n", n, least=1), _checks.integer("branching", branching, least=2)
    dims = _checks.integer("dims", dims, least=1)
    weights = level_precisions(n, branching, level_epsilons, level_rhos, root, noise)
    if not root:
        weights.append(weights[0] * 0.0)
    found = heights(n, branching)
    return average_consistent(n, found, dims, weights) if consistent else average_of_fewest(n, found, dims, weights)


def level_precisions(n: int, branching: int, level_epsilons: Any, level_rhos: Any, root: bool, law: str | None) -> list[Any]:
    """One over the variance of each measured level, the leaves first; each an entry of a JAX array if the budgets are one."""
    if (level_epsilons is None) == (level_rhos is None):
        raise ValueError("Give exactly one of level_epsilons (Laplace noise) and level_rhos (Gaussian noise).")
    name, budgets = ("level_epsilons", level_epsilons) if level_rhos is None else ("level_rhos", level_rhos)
    laws = ("laplace", "discrete_laplace") if level_rhos is None else ("gaussian", "discrete_gaussian")
    chosen: str = _checks.choice(f"noise (with {name})", laws[0] if law is None else law, laws)
    if isinstance(budgets, jax.Array) or not _checks.is_concrete(budgets):
        budgets = jnp.asarray(budgets)
    else:
        budgets = np.array([float(x) for x in budgets])
    levels = num_levels(n, branching) + bool(root)
    if budgets.shape != (levels,):
        raise ValueError(
            f"{name} must have {levels} entries, one for each level of Tree.complete({n}, {branching}, root={bool(root)}) "
            f"from the top, got {'shape ' + str(list(budgets.shape)) if budgets.ndim != 1 else len(budgets)}."
        )
    if _checks.is_concrete(budgets) and not (np.isfinite(budgets) & (np.asarray(budgets) >= 0)).all():
        raise ValueError(f"{name} must be non-negative and finite, got {np.asarray(budgets).tolist()}.")
    return list(precisions(budgets, chosen)[::-1])


def precisions(budgets: Array, law: str) -> Array:
    """One over the variance of the noise that each budget buys for a count that a record changes by one; smooth at 0."""
    xp = jnp if isinstance(budgets, jax.Array) else np
    if law == "laplace":
        return budgets**2 / 2
    if law == "discrete_laplace":
        return 2 * xp.sinh(budgets / 2) ** 2
    if law == "gaussian":
        return 2 * budgets
    some = budgets > 0
    spread = noise.stddev("discrete_gaussian", 1 / xp.sqrt(2 * xp.where(some, budgets, 1.0)))
    return xp.where(some, 1 / spread**2, 0.0)


def average_consistent(n: int, levels: Sequence[Height], dims: int, weights: Sequence[Any]) -> Any:
    """The average under least squares, from the precision of each height, the leaves' first and the root's last."""
    xp = jnp if isinstance(weights[0], jax.Array) else np
    if n == 1:
        whole = sum(weights[1:], weights[0])
        return _one_over(xp, whole)
    branching, ranges = levels[1].size, num_ranges(n)
    has_leaves = weights[0] > 0
    # By the number of axes along which a block is cut: V; and the weights of its segments along those axes.
    variances: dict[int, Any] = {0: 1 / xp.where(has_leaves, weights[0], 1.0)}
    shares: dict[int, Any] = {0: xp.ones(()) if dims > 1 else 1.0}
    forms: dict[int, Any] = {0: 1.0}  # of these weights: the mean over all ranges of a^2
    total = 0.0
    for level, below, weight in zip(levels[1:], levels, weights[1:], strict=False):
        new_variances, new_shares, new_forms = {}, {}, {}
        scale = below.size**2 * ranges
        for cut in range(dims + 1):
            if (cut and not level.rest) or (cut < dims and not level.num_full):
                continue
            # Its children that are cut along j axes, for each node: their number is a float, since 32-bit integers would not do.
            ways = {j: float(comb(cut, j) * level.rest_full ** (cut - j)) for j in range(cut + 1)}
            ways = {j: way for j, way in ways.items() if way and (j == 0 or level.rest_is_cut)}
            whole = float(branching) ** (dims - cut) * sum(way * variances[j] for j, way in ways.items())
            if cut:
                new_shares[cut] = _shares(
                    xp, level, below, float(branching) ** (dims - cut), cut, {j: variances[j] / whole for j in ways}, shares
                )
                new_forms[cut] = _form(xp, level.shared_segments, new_shares[cut], cut)
                # Sums over all such nodes of V_c a_c^2 of their children, and of T a^2.
                children = sum(comb(cut, j) * (level.shared_rest / scale) ** (cut - j) * forms[j] * variances[j] for j in ways)
                children = (level.shared_below / scale) ** (dims - cut) * children
                own = (level.shared / (level.size**2 * ranges)) ** (dims - cut) * whole * new_forms[cut]
                total = total + comb(dims, cut) * (children - own)
            else:
                # The difference of two large numbers, taken in integers.
                spread = (level.shared_below * branching) ** dims - level.shared**dims
                total = total + variances[0] * (spread / (branching * scale) ** dims)
                new_shares[0], new_forms[0] = shares[0], 1.0
            new_variances[cut] = 1 / (weight + 1 / whole)
        variances, shares, forms = new_variances, new_shares, new_forms
    top = levels[-1]
    cut = dims if top.rest else 0
    at_root = forms[cut] if cut else (top.shared / (top.size**2 * ranges)) ** dims
    return xp.where(has_leaves, total + variances[cut] * at_root, xp.inf)[()]


def _one_over(xp: Any, weight: Any) -> Any:
    return xp.where(weight > 0, 1 / xp.where(weight > 0, weight, 1.0), xp.inf)[()]


def _shares(xp: Any, level: Height, below: Height, lost: float, cut: int, shared: dict[int, Any], shares: dict[int, Any]) -> Any:
    """The weights of the segments of a block that is cut along ``cut`` axes, [segments, ...]; its cells' weights add up to 1.

    ``shared`` are the weights g of the children, by the number of axes along which they are cut; ``lost`` is what the children
    are fewer in cells along the axes that are not.
    """
    first = 1 if level.rest_full else 0
    found = xp.zeros((len(level.segments),) * cut)
    for j, share in shared.items():
        value = share * lost * float(below.size) ** (j - cut) * shares[j]
        for axes in combinations(range(cut), j):
            index = tuple(slice(first, None) if axis in axes else 0 for axis in range(cut))
            if xp is np:
                found[index] = value
            else:
                found = found.at[index].set(value)
    return found


def _form(xp: Any, shared: np.ndarray, weights: Any, cut: int) -> Any:
    """The quadratic form of the weights, the same matrix along each axis."""
    image = weights
    for axis in range(cut):
        image = xp.moveaxis(xp.tensordot(shared, image, axes=([1], [axis])), 0, axis)
    return (weights * image).sum()


def average_of_fewest(n: int, levels: Sequence[Height], dims: int, weights: Sequence[Any]) -> Any:
    """The average with each range from the fewest measured nodes that make it up."""
    xp = jnp if isinstance(weights[0], jax.Array) else np
    total = 0.0
    for height, (level, weight) in enumerate(zip(levels, weights, strict=True)):
        inside = (level.inside + level.rest_inside) ** dims
        used = inside / num_ranges(n) ** dims
        for above, its in zip(reversed(levels[height + 1 :]), reversed(weights[height + 1 :]), strict=True):
            # Those that are in a range together with the nearest measured node above.
            used = xp.where(its > 0, (inside - above.inside_counted(level) ** dims) / num_ranges(n) ** dims, used)
        total = total + xp.where(weight > 0, used / xp.where(weight > 0, weight, 1.0), 0.0)
    return xp.where(weights[0] > 0, total, xp.inf)[()]


def level_usage(n: int, branching: int, *, root: bool = False, dims: int = 1) -> np.ndarray:
    """How many nodes of each measured level all ranges together are made up of, every range of the fewest; top first.

    Along one axis, with n = branching^h: equation 2 of Qardaji et al. 2013, and ``branching`` nodes more in the top level for the
    range of all cells, which is not free.
    """
    levels = heights(n, branching)
    measured = levels if root else levels[:-1]
    found = []
    for level, above in zip(measured, [*measured[1:], None], strict=True):
        inside = (level.inside + level.rest_inside) ** dims
        found.append(inside - (0 if above is None else above.inside_counted(level) ** dims))
    return np.array(found[::-1], dtype=float)
