"""The average variance of the sums over all ranges that a tree answers, exactly and without forming its matrix.

With consistency: given x_v, the least squares estimates of a node's children have covariance diag(V) - V V'/T, where V_c is the
variance of child c from the measurements at and below it and T the sum of these (``inference/tree.py``). With the weighted share
of a node's cells that lie in a range q, a_v = sum_c g_c a_c with g_c = V_c / T,

    var(q'x) = a_root^2 V_root + sum over the inner nodes v of [ sum_c V_c a_c^2 - T_v a_v^2 ].

In a full block all weights are equal, and the sums over all blocks of a level and all ranges are integers (``heights.py``). The
one block of a level that is cut at n has weights that are constant on few segments. So a cut tree costs little more than a full
one: O(height^3) along one axis. Over several axes nodes are told apart by the number of axes of each length along which they are
cut; a shorter axis is one cut block from the height on where that holds all of it.

Without: a range is the sum of the fewest nodes that it is made of, those inside it whose parent is not (Hay et al. 2010, section
4.1; Qardaji et al. 2013, section 3.1).
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from math import comb, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks, noise
from dpinfer.accuracy.heights import Axes, Height, axes_of, num_levels, num_ranges, sides_of
from dpinfer.queries.base import Array

# Along how many axes of each length a block is cut.
_Cut = tuple[int, ...]


def range_variance(
    n: int | Sequence[int],
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

    Of ``Tree.complete(n, branching, root)``, or with several axes of ``Tree.grid``, over all boxes. Exact for
    any n: a tree that is cut at n is left-aligned and without dummy leaves, as the strategy is. If the root is not measured, the
    range of all cells is the sum of the root's children (and not free, as equation 2 of the paper has it).

    Args:
        n: cells along each axis; or a list of them, one for each axis of a grid.
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

    Cost: O(height^3) for one axis, whatever n: under a millisecond at n = 2^20. With d axes of different lengths 3^d times that.

    Reference: Qardaji, Yang, Li 2013, "Understanding hierarchical methods for differentially private histograms", sections 3.2,
    3.3 and 5 (propositions 1 to 6, whose printed forms are approximations; with errata: the recurrences of section 3.3 hold for
    complete trees of equal budgets only).

    Raises:
        ValueError: if the number of budgets is not that of the levels, or one is negative.
    """
    sides, branching = sides_of(n, dims), _checks.integer("branching", branching, least=2)
    weights = level_precisions(max(sides), branching, level_epsilons, level_rhos, root, noise)
    if not root:
        weights.append(weights[0] * 0.0)
    axes = axes_of(sides, branching)
    return average_consistent(axes, weights) if consistent else average_of_fewest(axes, weights)


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


def average_consistent(axes: Sequence[Axes], weights: Sequence[Any]) -> Any:
    """The average under least squares, from the precision of each height, the leaves' first and the root's last."""
    xp = jnp if isinstance(weights[0], jax.Array) else np
    if all(its.n == 1 for its in axes):
        whole = sum(weights[1:], weights[0])
        return _one_over(xp, whole)
    branching, counts = axes[0].heights[1].size, [its.num_axes for its in axes]
    has_leaves, uncut = weights[0] > 0, (0,) * len(axes)
    # By the number of axes of each length along which a block is cut: V; and the weights of its segments along those axes.
    variances: dict[_Cut, Any] = {uncut: 1 / xp.where(has_leaves, weights[0], 1.0)}
    shares: dict[_Cut, Any] = {uncut: xp.ones(()) if sum(counts) > 1 else 1.0}
    forms: dict[_Cut, Any] = {uncut: 1.0}  # of these weights: the mean over all ranges of a^2
    total = 0.0
    for height, weight in enumerate(weights[1:], 1):
        levels, below = [its.heights[height] for its in axes], branching ** (height - 1)
        scales = [below**2 * num_ranges(its.n) for its in axes]
        new_variances, new_shares, new_forms = {}, {}, {}
        for cut in product(*(range(count + 1) for count in counts)):
            full = tuple(map(int.__sub__, counts, cut))
            if any((c and not level.rest) or (f and not level.num_full) for c, f, level in zip(cut, full, levels, strict=True)):
                continue
            ways, lost = _ways(levels, cut), float(branching) ** sum(full)
            whole = lost * sum(way * variances[j] for j, way in ways.items())
            if any(cut):
                new_shares[cut] = _shares(xp, levels, below, cut, {j: lost * variances[j] / whole * shares[j] for j in ways})
                new_forms[cut] = _form(xp, levels, cut, new_shares[cut])
                # Sums over all such nodes of V_c a_c^2 of their children, and of T a^2.
                rests = [level.shared_rest / scale for level, scale in zip(levels, scales, strict=True)]
                children = [
                    prod(map(comb, cut, j)) * _powers(rests, map(int.__sub__, cut, j)) * (forms[j] * variances[j]) for j in ways
                ]
                children_full = _powers([level.shared_below / scale for level, scale in zip(levels, scales, strict=True)], full)
                own_full = _powers([level.shared / (branching**2 * s) for level, s in zip(levels, scales, strict=True)], full)
                own = own_full * whole * new_forms[cut]
                total = total + prod(map(comb, counts, cut)) * (children_full * sum(children) - own)
            else:
                # The difference of two large numbers, taken in integers.
                spread = _powers([level.shared_below * branching for level in levels], counts)
                spread -= _powers([level.shared for level in levels], counts)
                total = total + variances[uncut] * (spread / _powers([branching * scale for scale in scales], counts))
                new_shares[uncut], new_forms[uncut] = shares[uncut], 1.0
            new_variances[cut] = 1 / (weight + 1 / whole)
        variances, shares, forms = new_variances, new_shares, new_forms
    tops = [its.heights[-1] for its in axes]
    cut = tuple(its.num_axes if top.rest else 0 for its, top in zip(axes, tops, strict=True))
    full_shares = [top.shared / (top.size**2 * num_ranges(its.n)) for its, top in zip(axes, tops, strict=True)]
    at_root = forms[cut] * _powers(full_shares, map(int.__sub__, counts, cut))
    return xp.where(has_leaves, total + variances[cut] * at_root, xp.inf)[()]


def _powers(bases: Iterable[Any], exponents: Iterable[int]) -> Any:
    """The product of the powers."""
    return prod(base**exponent for base, exponent in zip(bases, exponents, strict=True))


def _ways(levels: Sequence[Height], cut: _Cut) -> dict[_Cut, float]:
    """By along how many axes of each length they are cut, the children of a block cut along ``cut``, along those axes.

    Their number is a float, since 32-bit integers would not do.
    """
    found = {}
    for j in product(*(range(c + 1) for c in cut)):
        ways = [
            comb(c, i) * level.rest_full ** (c - i) * (level.rest_is_cut or i == 0)
            for c, i, level in zip(cut, j, levels, strict=True)
        ]
        if all(ways):
            found[j] = float(prod(ways))
    return found


def _one_over(xp: Any, weight: Any) -> Any:
    return xp.where(weight > 0, 1 / xp.where(weight > 0, weight, 1.0), xp.inf)[()]


def _shares(xp: Any, levels: Sequence[Height], below: int, cut: _Cut, portions: dict[_Cut, Any]) -> Any:
    """The weights of the segments of a block along the axes along which it is cut, [segments, ...]; its cells' add up to 1.

    ``portions`` are the same of its children, times their weights g and their number along the axes that are not cut; a full
    block of the next lower height has ``below`` cells along an axis.
    """
    along = [level for level, c in zip(levels, cut, strict=True) for _ in range(c)]
    found = xp.zeros(tuple(len(level.segments) for level in along))
    for j, portion in portions.items():
        value = portion / float(below) ** (sum(cut) - sum(j))
        ends = np.cumsum(cut)
        choices = [combinations(range(end - c, end), i) for end, c, i in zip(ends.tolist(), cut, j, strict=True)]
        for chosen in product(*choices):
            still_cut = {axis for group in chosen for axis in group}
            index = tuple(slice(bool(level.rest_full), None) if a in still_cut else 0 for a, level in enumerate(along))
            if xp is np:
                found[index] = value
            else:
                found = found.at[index].set(value)
    return found


def _form(xp: Any, levels: Sequence[Height], cut: _Cut, weights: Any) -> Any:
    """The quadratic form of the weights: the mean over all ranges of the square of the weight that a range holds."""
    image = weights
    for axis, level in enumerate(level for level, c in zip(levels, cut, strict=True) for _ in range(c)):
        image = xp.moveaxis(xp.tensordot(level.shared_segments, image, axes=([1], [axis])), 0, axis)
    return (weights * image).sum()


def average_of_fewest(axes: Sequence[Axes], weights: Sequence[Any]) -> Any:
    """The average with each range from the fewest measured nodes that make it up."""
    xp = jnp if isinstance(weights[0], jax.Array) else np
    boxes, total = prod(num_ranges(its.n) ** its.num_axes for its in axes), 0.0
    for height, weight in enumerate(weights):
        inside = _inside(axes, height)
        used = inside / boxes
        for above in range(len(weights) - 1, height, -1):
            # Those that are in a range together with the nearest measured node above.
            used = xp.where(weights[above] > 0, (inside - _hidden(axes, height, above)) / boxes, used)
        total = total + xp.where(weight > 0, used / xp.where(weight > 0, weight, 1.0), 0.0)
    return xp.where(weights[0] > 0, total, xp.inf)[()]


def _inside(axes: Sequence[Axes], height: int) -> int:
    """How many nodes of a height lie in a box, summed over all boxes."""
    return prod((its.heights[height].inside + its.heights[height].rest_inside) ** its.num_axes for its in axes)


def _hidden(axes: Sequence[Axes], height: int, above: int) -> int:
    """How many of them have a node of a greater height above them that lies in the box."""
    return prod(its.heights[above].inside_counted(its.heights[height]) ** its.num_axes for its in axes)


def level_usage(n: int | Sequence[int], branching: int, *, root: bool = False, dims: int = 1) -> np.ndarray:
    """How many nodes of each measured level all ranges together are made up of, every range of the fewest; top first.

    Along one axis, with n = branching^h: equation 2 of Qardaji et al. 2013, and ``branching`` nodes more in the top level for the
    range of all cells, which is not free.
    """
    axes = axes_of(sides_of(n, dims), branching)
    measured = len(axes[0].heights) - (not root)
    hidden = [*(_hidden(axes, height, height + 1) for height in range(measured - 1)), 0]
    return np.array([_inside(axes, height) - hidden[height] for height in range(measured)][::-1], dtype=float)
