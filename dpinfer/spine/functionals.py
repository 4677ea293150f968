"""Sums over any set of nodes, with their variances, in one sweep up the tree.

A sum f = sum_v f_v'x_v reaches the parent of some nodes as e = J sum_c V_c h_c, h = f + e, and what the sum's variance does not
owe to the parent is sum_c h_c'V_c h_c - g'J g with g = sum_c V_c h_c. At the top h'P h is added. Only nodes that the sum touches,
and those above them, are visited.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dpinfer.spine.classes import Classes
from dpinfer.spine.passes import Belief, Below, add_up, by_kind


class Terms(NamedTuple):
    """Coefficients at nodes of one level: which sum, which node, and what it is multiplied by.

    Attributes:
        sums: [t], numbers of sums.
        nodes: [t], places in the level.
        factors: [t, rows, columns].
    """

    sums: np.ndarray
    nodes: np.ndarray
    factors: np.ndarray


@dataclass(frozen=True)
class Form:
    """What coefficients look like: how class matrices multiply them, and how two of them make a variance."""

    times: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    pair: Callable[[np.ndarray, np.ndarray], np.ndarray]
    shape: tuple[int, ...]


def by_cell(classes: Classes) -> Form:
    """Coefficients of every cell, [t, dense, columns]; a variance is a number."""

    def pair(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.einsum("tij,tij->t", left, right)

    return Form(partial(by_kind, classes), pair, (classes.num_dense, classes.num_columns))


def by_node(classes: Classes) -> Form:
    """One coefficient for all cells of a node, as a class matrix [t, classes, dense * dense]; so is a variance."""
    square = (classes.num_classes, classes.num_dense, classes.num_dense)

    def times(matrices: np.ndarray, kind: np.ndarray, x: np.ndarray) -> np.ndarray:
        return (matrices[kind] @ x.reshape(-1, *square)).reshape(x.shape)

    def pair(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.swapaxes(left.reshape(-1, *square), -1, -2) @ right.reshape(-1, *square)

    return Form(times, pair, (classes.num_classes, classes.num_dense**2))


def of_whole_nodes(classes: Classes, weights: np.ndarray) -> np.ndarray:
    """Weights of nodes, [t], as coefficients of :func:`by_node`."""
    eye = np.tile(np.eye(classes.num_dense).reshape(-1), (classes.num_classes, 1))
    return weights[:, None, None] * eye[None]


def with_weights(regions: Mapping[Any, Any]) -> list[Mapping[Any, float]]:
    """For each region its nodes and their weights, which are 1 where only nodes are listed.

    Raises:
        ValueError: if a node is listed twice.
    """
    found: list[Mapping[Any, float]] = []
    for name, one in regions.items():
        nodes = [one] if isinstance(one, (str, bytes)) else list(one)
        if len(set(nodes)) != len(nodes):
            raise ValueError(f"regions: {name!r} lists something twice; give it once, with a weight.")
        found.append(one if isinstance(one, Mapping) else dict.fromkeys(nodes, 1.0))
    return found


def as_vectors(given: Sequence[Any], size: int) -> np.ndarray:
    """[t, size]: coefficients of every cell, from arrays of any shape.

    Raises:
        ValueError: if one is not of that size.
    """
    vectors = [np.asarray(vector, dtype=float).reshape(-1) for vector in given]
    wrong = [len(vector) for vector in vectors if len(vector) != size]
    if wrong:
        raise ValueError(f"coefficients must be of all {size} cells, got {wrong[0]}.")
    return np.array(vectors).reshape(len(vectors), size)


def merge(left: Terms, right: Terms) -> Terms:
    """Both, added up where they meet."""
    sums, nodes = (np.concatenate([getattr(left, name), getattr(right, name)]) for name in ("sums", "nodes"))
    factors = np.concatenate([left.factors, right.factors])
    pairs, place = np.unique(np.stack([sums, nodes]), axis=1, return_inverse=True)
    return Terms(pairs[0], pairs[1], add_up(factors, place, pairs.shape[1]))


class Family(NamedTuple):
    """Terms of some children of parents.

    Attributes:
        sums, parents: [t].
        gathered: [t, rows, columns], the sum of V h.
        passed: [t, rows, columns], the sum of h of only children.
        variance: [t, ...], the sum of h'V h of all others.
    """

    sums: np.ndarray
    parents: np.ndarray
    gathered: np.ndarray
    passed: np.ndarray
    variance: np.ndarray


def lift(
    form: Form,
    sums: np.ndarray,
    parents: np.ndarray,
    is_only: np.ndarray,
    variance: np.ndarray,
    kind: np.ndarray,
    factors: np.ndarray,
) -> Family:
    """Terms at some nodes, with their parents, V by kinds, and whether they are only children, by families."""
    moved = form.times(variance, kind, factors)
    own = form.pair(factors, moved)
    own[is_only], moved[is_only] = 0.0, 0.0
    return _by_family(sums, parents, moved, np.where(is_only[:, None, None], factors, 0.0), own)


def _by_family(sums: np.ndarray, parents: np.ndarray, gathered: np.ndarray, passed: np.ndarray, variance: np.ndarray) -> Family:
    pairs, place = np.unique(np.stack([sums, parents]), axis=1, return_inverse=True)
    size = pairs.shape[1]
    return Family(pairs[0], pairs[1], *(add_up(x, place, size) for x in (gathered, passed, variance)))


def gathered(parts: Sequence[Family]) -> Family:
    """Families of several sets of nodes as one; those that come more than once are added up."""
    return _by_family(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def close(form: Form, family: Family, below: Below, num_sums: int) -> tuple[Terms, np.ndarray]:
    """What families mean for their parents, and the variance that they have of their own, [num_sums, ...]."""
    passed = form.times(below.matrix, family.parents, family.gathered)
    own = family.variance - form.pair(family.gathered, passed)
    return Terms(family.sums, family.parents, passed + family.passed), add_up(own, family.sums, num_sums)


def rise(form: Form, terms: Terms, parent: np.ndarray, belief: Belief, below: Below, num_sums: int) -> tuple[Terms, np.ndarray]:
    """What terms at a level mean for the level above, and the variance that they have of their own, [num_sums, ...]."""
    parents = parent[terms.nodes]
    is_only = below.families[parents] == 1
    family = lift(form, terms.sums, parents, is_only, belief.variance, belief.kind[terms.nodes], terms.factors)
    return close(form, family, below, num_sums)


def at_the_top(form: Form, terms: Terms, covariance: np.ndarray, num_sums: int) -> np.ndarray:
    """The variance that terms at the top have, [num_sums, ...]."""
    moved = form.times(covariance, terms.nodes, terms.factors)
    return add_up(form.pair(terms.factors, moved), terms.sums, num_sums)
