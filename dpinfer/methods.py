"""Ways to answer ranges and cells privately, under one roof: what is measured, how the budget is split, how it is estimated.

A method is swapped in one line:

    method = dpinfer.methods.consistent_tree(n, 16)
    release = method.measure(cells, epsilon=0.5)
    answers = method.estimate(release).answer(workload)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import numpy as np

from dpinfer import _checks
from dpinfer.accuracy import recommend
from dpinfer.accuracy.branching import empirical_shares
from dpinfer.allocation.level_budgets import level_budgets, within
from dpinfer.inference import cell_posterior, fewest_nodes, least_squares, range_posterior, zeroed_subtrees
from dpinfer.measurement import Measurement
from dpinfer.mechanisms import measure, simulate
from dpinfer.privacy import Ledger
from dpinfer.queries import Haar, Identity, Queries, Tree
from dpinfer.release import Release

_Estimator = Callable[[Measurement | Release], Any]


@final
@dataclass(frozen=True)
class Method:
    """A strategy, the split of its budget and an estimator.

    Attributes:
        name: as in figures.
        strategy: what is measured.
        shares: of the budget for each level, top first; None: one scale for all rows.
        estimator: from a Measurement or Release to something with ``.cells`` and ``.answer(workload)``.
    """

    name: str
    strategy: Queries
    shares: tuple[float, ...] | None
    estimator: _Estimator

    def measure(self, cells: Any, *, epsilon: Any, ledger: Ledger | None = None) -> Release:
        """A private release of the strategy, as :func:`dpinfer.measure` makes it; the cells are private."""
        return measure(cells, self.strategy, **self._budget(epsilon), ledger=ledger)

    def simulate(self, cells: Any, *, epsilon: Any, key: jax.Array, noise: str = "laplace") -> Measurement:
        """A simulated measurement, as :func:`dpinfer.simulate` makes it; under jit and vmap with the method's shares."""
        budget = self._budget(epsilon) if _checks.is_concrete(epsilon) else self._traced_budget(epsilon)
        return simulate(cells, self.strategy, **budget, noise=noise, key=key)

    def estimate(self, measurement: Measurement | Release) -> Any:
        """What the estimator makes of it."""
        return self.estimator(measurement)

    def _budget(self, epsilon: Any) -> dict[str, Any]:
        if self.shares is None:
            return {"epsilon": epsilon}
        return {"level_epsilons": within(_checks.budget("epsilon", epsilon), np.array(self.shares))}

    def _traced_budget(self, epsilon: Any) -> dict[str, Any]:
        return {"epsilon": epsilon} if self.shares is None else {"level_epsilons": epsilon * jax.numpy.array(self.shares)}


def noisy_cells(shape: int | Sequence[int]) -> Method:
    """Every cell by itself, and sums of them: L~ of Hay et al. 2010, the flat method of Qardaji et al. 2013."""
    return Method("flat", Identity(int(np.prod(_sides(shape)))), None, least_squares)


def tree_of_fewest_nodes(shape: int | Sequence[int], branching: int = 2, *, budgets: str = "equal", root: bool = True) -> Method:
    """A tree whose ranges are sums of the fewest nodes: H~ of Hay et al. 2010 (binary, with its root), H_b of Qardaji et al.

    Args:
        shape: n, or the cells along each axis of a grid, whose nodes are split along all axes at once.
        branching: parts along each axis.
        budgets: "equal", "geometric" or "optimal", as ``method`` of ``allocation.level_budgets``.
        root: whether the root is measured.
    """
    strategy = _tree(shape, branching, root)
    shares = _shares(shape, branching, root, budgets, consistent=False)
    return Method(f"tree of {branching}, fewest nodes", strategy, shares, fewest_nodes)


def consistent_tree(
    shape: int | Sequence[int],
    branching: int = 16,
    *,
    budgets: str = "equal",
    root: bool = False,
    nonnegative: bool = False,
    rounded: bool = False,
) -> Method:
    """A tree, estimated by least squares: H_b^c of Qardaji et al. 2013; with ``branching=2, root=True`` H-bar of Hay et al. 2010.

    Args:
        shape, branching, budgets, root: as in :func:`tree_of_fewest_nodes`.
        nonnegative, rounded: the postprocessing of Hay et al.'s experiments (section 5), ``inference.zeroed_subtrees``: a node
            whose estimate is not positive and all below it are set to 0, and all are rounded. Less error where many cells are
            empty; biased, no longer consistent, and without standard deviations.
    """
    estimator: _Estimator = least_squares
    if nonnegative or rounded:
        estimator = partial(zeroed_subtrees, nonnegative=bool(nonnegative), rounded=bool(rounded))
    shares = _shares(shape, branching, root, budgets, consistent=True)
    return Method(f"tree of {branching}, least squares", _tree(shape, branching, root), shares, estimator)


def quadtree(shape: int | Sequence[int]) -> Method:
    """A tree of branching 2 along each axis with budgets that grow toward the leaves, by least squares (Cormode et al. 2012)."""
    method = consistent_tree(shape, 2, budgets="geometric")
    return Method("quadtree", method.strategy, method.shares, method.estimator)


def privelet(n: int) -> Method:
    """The Haar wavelet (Xiao, Wang and Gehrke 2010): differences of the halves of each node, all with noise of one scale."""
    return Method("wavelet", Haar(n), None, least_squares)


def empirical_cells(shape: int | Sequence[int], prior: str = "stacked") -> Method:
    """Every cell by itself, estimated by ``inference.cell_posterior``: for single cells, not for ranges."""
    sides = _sides(shape)
    return Method(f"cells, {prior}", Identity(int(np.prod(sides))), None, partial(cell_posterior, prior=prior, shape=sides))


def empirical_tree(shape: int | Sequence[int], branching: int = 16, *, tilted: bool = False) -> Method:
    """A tree with a tenth of the budget for its root, estimated by ``inference.range_posterior``: for ranges, where cells are few
    or alike.

    Args:
        shape, branching: as in :func:`tree_of_fewest_nodes`; for two axes 4 has as many children as 16 for one.
        tilted: whether by ``method="tilted"``, which has no intervals.
    """
    tree: Any = _tree(shape, branching, True)
    estimator = partial(range_posterior, method="tilted" if tilted else "combined")
    return Method(f"tree of {branching}, posterior", tree, empirical_shares(len(tree.level_sizes)), estimator)


def recommended(shape: int | Sequence[int], *, workload: str = "ranges", epsilon: Any = None, total: Any = None) -> Method:
    """What :func:`dpinfer.accuracy.recommend` finds: what to measure, how the budget is split, and the estimator.

    Args:
        shape: n, or the cells along each axis.
        workload: "ranges" or "cells".
        epsilon, total: the budget and about how many records there are, public numbers; without a total the choice is the same
            for every epsilon.
    """
    if total is not None and epsilon is None:
        raise ValueError("total must come with epsilon: what matters is their product.")
    found = recommend(_sides(shape), epsilon=1 if epsilon is None else epsilon, workload=workload, total=total)
    if found.estimator == "cell_posterior":
        return empirical_cells(shape)
    if found.branching is not None and found.estimator == "range_posterior":
        return empirical_tree(shape, found.branching)
    if found.is_flat:
        return noisy_cells(shape)
    shares = tuple((found.budgets / found.budgets.sum()).tolist())
    return Method(f"tree of {found.branching}, optimal budgets", found.strategy, shares, least_squares)


def _sides(shape: int | Sequence[int]) -> tuple[int, ...]:
    return _checks.grid("shape", shape if isinstance(shape, Sequence) else [shape])


def _tree(shape: int | Sequence[int], branching: int, root: bool) -> Queries:
    sides = _sides(shape)
    return Tree.complete(sides[0], branching, root) if len(sides) == 1 else Tree.grid(sides, branching, root)


def _shares(shape: Any, branching: int, root: bool, budgets: str, *, consistent: bool) -> tuple[float, ...] | None:
    sides = _sides(shape)
    if budgets == "equal":
        return None
    given = {"method": budgets, "consistent": consistent, "root": root}
    return tuple(level_budgets(sides, branching, epsilon=1, **given).tolist())
