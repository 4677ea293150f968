"""Controlled rounding: neighbouring integers, totals kept at every node, never negative."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import random_parents

import dpinfer as dp
from dpinfer.inference import round_preserving_total
from dpinfer.queries import Identity, Tree


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(0, 10**6))
def test_every_node_of_a_tree_keeps_its_total(values, seed):
    rng = np.random.default_rng(seed)
    n = len(values)
    values = np.array(values)
    while True:
        parents = random_parents(rng, int(rng.integers(n, 3 * n + 2)), shuffled=bool(seed % 2))
        tree = Tree.from_parents(parents)
        if tree.shape[1] <= n:
            break
    values = values[: tree.shape[1]]
    rounded = round_preserving_total(values, tree)
    assert rounded.dtype == np.int64
    assert rounded.min() >= 0
    nodes, real = tree @ rounded, tree @ values
    assert np.all(np.abs(nodes - real) < 1 + 1e-9)
    assert abs(rounded.sum() - values.sum()) <= 0.5 + 1e-9


@pytest.mark.parametrize("tree", [Tree.complete(9, 2), Tree.complete(9, 3, root=True), Tree.grid((3, 3), 2), Tree.complete(1, 2)])
def test_trees_of_every_kind(tree):
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1.0, 1e9):
        values = rng.exponential(size=tree.shape[1]) * scale
        rounded = round_preserving_total(values, tree)
        assert np.all(np.abs(tree @ rounded - tree @ values) < 1 + 1e-6)
        whole = np.floor(values)
        np.testing.assert_array_equal(round_preserving_total(whole, tree), whole)


def test_a_vector_is_rounded_with_the_least_change_of_squares():
    rng = np.random.default_rng(1)
    for total in (None, 6, 7):
        values = rng.dirichlet(np.ones(5)) * 6.4
        rounded = round_preserving_total(values, total=total)
        goal = 6 if total is None else total
        assert rounded.sum() == goal
        choices = (np.array(c) for c in itertools.product(*((np.floor(v), np.floor(v) + 1) for v in values)))
        best = min(np.square(c - values).sum() for c in choices if c.sum() == goal)
        assert np.square(rounded - values).sum() == pytest.approx(best)


def test_sums_that_rounding_errors_would_upset():
    # 0.1 + 0.2 + ... in binary: floors of sums and sums of floors must not disagree.
    values = np.array([0.1, 0.2, 0.7] * 1000 + [1 / 3] * 3000)
    tree = Tree.complete(6000, 3, root=True)
    rounded = round_preserving_total(values, tree)
    assert rounded.sum() == 2000
    assert np.all(np.abs(tree @ rounded - tree @ values) < 1 + 1e-9)


def test_a_consistent_estimate_becomes_whole_numbers():
    tree = Tree.complete(64, 4)
    values = np.random.default_rng(0).laplace(size=tree.shape[0]) * 5 + np.asarray(tree @ np.full(64, 3.0))
    estimate = dp.inference.nonnegative_least_squares(dp.Measurement(tree, values, "laplace", 5.0))
    rounded = round_preserving_total(estimate.cells, tree)
    assert np.all(rounded >= 0)
    assert np.all(np.abs(tree @ rounded - tree @ np.asarray(estimate.cells)) < 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: round_preserving_total([0.5, -0.5]), "values must not be negative, got -0.5 at position 1"),
        (lambda: round_preserving_total([1.5, 2.0], total=2), "total must be 3 or 4, .* got 2"),
        (lambda: round_preserving_total([1.0, 2.0], total=4), "total must be 3, since every cell is rounded"),
        (lambda: round_preserving_total([1.0, 2.0], total=3.0), "total must be an integer"),
        (lambda: round_preserving_total([1.0, np.nan]), "values must be finite"),
        (lambda: round_preserving_total([]), "at least one cell"),
        (lambda: round_preserving_total([1.0], Tree.complete(2, 2)), "tree must be a Tree of 1 cells"),
        (lambda: round_preserving_total([1.0], Identity(1)), "tree must be a Tree of 1 cells"),
        (lambda: round_preserving_total([2.0**52]), r"less than 2\*\*52"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
