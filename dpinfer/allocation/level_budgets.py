"""How much of a budget each level of a tree gets.

The average variance over all ranges, V(e) = sum_l a_l / e_l^2 for the estimator that is best at e, is the least over all linear
estimators of such sums. So to take the budgets that minimise the sum at the present a_l, e_l proportional to a_l^(1/3) with
a_l = -e_l^3 dV/de_l / 2, never makes V larger (Qardaji et al. 2013, section 3.5, who stop after a few rounds). But V is not
convex: a level without budget has no slope, so that for every choice of levels there is a minimum with the others switched off,
and with a small branching the best switches off most. Under rho, where V is convex, the same with square roots.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain, combinations
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._loops import fori_loop
from dpinfer.accuracy.heights import axes_of, num_levels, sides_of
from dpinfer.accuracy.range_variance import average_consistent, level_usage, precisions

_MAX_SUBSETS = 20_000
_SUBSETS_AT_ONCE = 4096
_ROUNDS = 100
_LAST_ROUNDS = 2000


def level_budgets(
    n: int | Sequence[int],
    branching: int,
    *,
    epsilon: Any = None,
    rho: Any = None,
    method: str = "equal",
    consistent: bool = True,
    root: bool = False,
    dims: int = 1,
) -> np.ndarray:
    """The budget of each measured level of ``Tree.complete(n, branching, root)``, top first: for ``measure(level_epsilons=...)``.

    They depend on n and the branching alone, so that choosing them costs no privacy, and add up, as exact fractions, to the
    budget or a few rounding errors less. A level whose budget is 0 is not measured.

    Args:
        n, branching, root: the tree; with ``dims`` axes that of a grid with n cells along each, or n lists the cells along each.
        epsilon, rho: the budget, one of the two; under rho the result is for ``measure(level_rhos=...)``.
        method: "equal"; "geometric": each level branching^(1/3) times the one above (Cormode et al. 2012; for d > 1 axes
            branching^((d-1)/3); under rho 1/2 in place of 1/3); or "optimal": the least average variance over all ranges, of
            Laplace (Gaussian) noise.
        consistent: whether the answers will be consistent, by least squares. Without, "optimal" is the cube-root rule, with every
            level measured (Qardaji et al. 2013, section 3.5; square roots under rho).

    Cost: "optimal" with consistency tries every choice of up to 15 levels, of more levels the 20,000 choices of fewest, and then
    adds, drops and moves single levels; seconds.
    """
    sides, branching = sides_of(n, dims), _checks.integer("branching", branching, least=2)
    _checks.choice("method", method, ("equal", "geometric", "optimal"))
    if (epsilon is None) == (rho is None):
        raise ValueError("Give exactly one of epsilon and rho.")
    whole = _checks.budget("epsilon", epsilon) if rho is None else _checks.budget("rho", rho)
    levels, power = num_levels(max(sides), branching) + bool(root), 1 / 3 if rho is None else 1 / 2
    if method == "equal":
        shares = np.ones(levels)
    elif method == "geometric":
        shares = float(branching) ** (power * max(len(sides) - 1, 1) * np.arange(levels))
    elif not consistent:
        shares = level_usage(sides, branching, root=root) ** power
    else:
        shares = _best_shares(sides, branching, bool(root), rho is None)
    return within(whole, shares / shares.sum())


def within(whole: Fraction, shares: np.ndarray) -> np.ndarray:
    """The budgets as floats whose decimals add up to no more than the whole."""
    budgets = shares * float(whole)
    while sum(map(Fraction, map(repr, budgets.tolist())), Fraction(0)) > whole:
        largest = int(budgets.argmax())
        budgets[largest] = np.nextafter(budgets[largest], 0)
    return budgets


def _best_shares(sides: tuple[int, ...], branching: int, root: bool, is_epsilon: bool) -> np.ndarray:
    """The best shares, top first, over choices of levels of which the lowest is always one."""
    levels = num_levels(max(sides), branching) + root
    descend = partial(_descend, sides, branching, root, is_epsilon)
    tried: dict[bytes, float] = {}

    def try_all(subsets: Iterable[np.ndarray]) -> None:
        new = [s for s in subsets if s.tobytes() not in tried]
        for first in range(0, len(new), _SUBSETS_AT_ONCE):
            block = np.stack(new[first : first + _SUBSETS_AT_ONCE])
            # Padded to a power of two, so that few programs are compiled.
            padding = (1 << (len(block) - 1).bit_length()) - len(block)
            padded = np.concatenate([block, np.repeat(block[-1:], padding, axis=0)])
            values = np.asarray(descend(padded / padded.sum(axis=1, keepdims=True), _ROUNDS)[1])[: len(block)]
            tried.update(zip((s.tobytes() for s in block), values.tolist(), strict=True))

    try_all(_subsets(levels))
    while True:
        best = np.frombuffer(min(tried, key=tried.__getitem__), dtype=np.float64)
        before = len(tried)
        try_all(_near(best))
        if len(tried) == before or tried[best.tobytes()] <= min(tried.values()):
            break
    # Choices of levels whose minima are nearly as low may overtake when they are run to the end.
    ranked = sorted(tried, key=tried.__getitem__)[:16]
    starts = np.stack([np.frombuffer(s, dtype=np.float64) for s in ranked])
    shares, values = descend(starts / starts.sum(axis=1, keepdims=True), _LAST_ROUNDS)
    return np.asarray(shares, dtype=float)[int(np.nanargmin(np.asarray(values)))]


def _subsets(levels: int) -> list[np.ndarray]:
    """0/1 for each level, the lowest always 1: all choices if there are few; else all of few levels, and all levels."""
    most, count = 0, 1
    while most < levels - 1 and (count := count + comb(levels - 1, most + 1)) <= _MAX_SUBSETS:
        most += 1
    chosen = chain.from_iterable(combinations(range(levels - 1), k) for k in range(most + 1))
    found = []
    for others in chain(chosen, [range(levels - 1)] if most < levels - 1 else []):
        subset = np.zeros(levels)
        subset[[*others, levels - 1]] = 1.0
        found.append(subset)
    return found


def _near(subset: np.ndarray) -> list[np.ndarray]:
    """The choices with one level more, one less, or one moved."""
    found = []
    for i in range(subset.size - 1):
        flipped = subset.copy()
        flipped[i] = 1 - flipped[i]
        found.append(flipped)
        for j in range(i):
            if flipped[j] == subset[i]:  # one of the two was measured and the other was not
                moved = flipped.copy()
                moved[j] = 1 - moved[j]
                found.append(moved)
    return found


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _descend(sides: tuple[int, ...], branching: int, root: bool, is_epsilon: bool, shares: Any, rounds: Any) -> Any:
    """Better shares of a budget of 1, and their average variance, from each of many starts [starts, levels]."""
    axes, law, power = axes_of(sides, branching), "laplace" if is_epsilon else "gaussian", 1 / 3 if is_epsilon else 1 / 2

    def average(budgets: jax.Array) -> jax.Array:
        weights = list(precisions(budgets, law)[::-1])
        return average_consistent(axes, weights if root else [*weights, weights[0] * 0.0])

    def once(budgets: jax.Array) -> jax.Array:
        moved = budgets * jnp.maximum(-jax.grad(average)(budgets), 0.0) ** power
        return moved / moved.sum()

    def all_rounds(budgets: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = fori_loop(0, rounds, lambda _, b: once(b), budgets)
        return found, average(found)

    return jax.vmap(all_rounds)(jnp.asarray(shares))
