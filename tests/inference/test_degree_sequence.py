"""Nearest degree sequences against all graphs of a few nodes, and against tests for graphs that are too large for that."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpinfer.inference import graphical_degree_sequence, unattributed_histogram
from dpinfer.mechanisms import sorted_counts


def degrees_of_all_graphs(n):
    pairs = list(combinations(range(n), 2))
    return np.unique([np.bincount([v for e, b in zip(pairs, bits, strict=True) if b for v in e], minlength=n)
                      for bits in product((0, 1), repeat=len(pairs))], axis=0)  # fmt: skip


def degrees_of_all_bipartite_graphs(n, m):
    tables = np.array(list(product((0, 1), repeat=n * m))).reshape(-1, n, m)
    return np.unique(np.concatenate([tables.sum(axis=2), tables.sum(axis=1)], axis=1), axis=0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_nearest_of_all_graphs(n):
    graphs = degrees_of_all_graphs(n)
    known = {tuple(row) for row in graphs}
    for degrees in product(range(-1, n + 2), repeat=n) if n < 5 else product(range(n), repeat=n):
        found = graphical_degree_sequence(degrees)
        assert tuple(found) in known
        assert np.abs(found - degrees).sum() == np.abs(graphs - degrees).sum(axis=1).min()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 3), (2, 2), (3, 2), (3, 3)])
def test_nearest_of_all_bipartite_graphs(n, m):
    graphs = degrees_of_all_bipartite_graphs(n, m)
    known = {tuple(row) for row in graphs}
    for degrees in (
        product(range(-1 if n + m < 5 else 0, max(n, m) + 2), repeat=n + m) if n + m < 6 else product(range(4), repeat=6)
    ):
        found = np.concatenate(graphical_degree_sequence(degrees[:n], degrees[n:]))
        assert tuple(found) in known
        assert np.abs(found - degrees).sum() == np.abs(graphs - degrees).sum(axis=1).min()


def is_graphical(degrees):
    """Havel and Hakimi: join the largest to the next largest, again and again."""
    left = sorted(degrees.tolist(), reverse=True)
    while left and left[0]:
        largest = left.pop(0)
        if largest > len(left) or left[largest - 1] == 0:
            return False
        left = sorted([d - 1 for d in left[:largest]] + left[largest:], reverse=True)
    return True


def is_bipartite_graphical(rows, columns):
    columns = sorted(columns.tolist(), reverse=True)
    for row in sorted(rows.tolist(), reverse=True):
        if row > len(columns) or (row and columns[row - 1] == 0):
            return False
        columns = sorted([c - 1 for c in columns[:row]] + columns[row:], reverse=True)
    return not any(columns)


@given(st.lists(st.integers(-5, 60), min_size=1, max_size=40), st.lists(st.integers(-5, 60), min_size=1, max_size=40))
def test_larger_ones_are_graphical_stay_in_order_and_are_left_alone_again(first, second):
    first, second = np.array(first), np.array(second)
    found = graphical_degree_sequence(first)
    assert is_graphical(found)
    np.testing.assert_array_equal(graphical_degree_sequence(found), found)
    assert (np.diff(found[np.argsort(first, kind="stable")]) >= -1).all()
    one, other = graphical_degree_sequence(first, second)
    assert is_bipartite_graphical(one, other)
    for side, again in zip((one, other), graphical_degree_sequence(one, other), strict=True):
        np.testing.assert_array_equal(again, side)


def test_released_degrees_become_those_of_a_graph():
    rng = np.random.default_rng(0)
    pairs = np.unique(np.sort(rng.integers(0, 40, (80, 2)), axis=1), axis=0)
    degrees = np.bincount(pairs[pairs[:, 0] < pairs[:, 1]].reshape(-1), minlength=40)
    estimate = unattributed_histogram(sorted_counts(degrees, epsilon=0.1, unit="edge"))
    found = graphical_degree_sequence(estimate.cells)
    assert found.dtype == np.int64
    assert is_graphical(found)


def test_sizes_and_what_is_wrong():
    assert graphical_degree_sequence([]).tolist() == []
    assert graphical_degree_sequence([7]).tolist() == [0]
    assert graphical_degree_sequence([3.0, 3.0, 3.0, 3.0]).tolist() == [3, 3, 3, 3]
    assert [side.tolist() for side in graphical_degree_sequence([2, 1], [])] == [[0, 0], []]
    assert graphical_degree_sequence(np.full(1000, 2**40)).tolist() == [999] * 1000
    big = graphical_degree_sequence(np.arange(200_000))
    assert big.sum() % 2 == 0
    with pytest.raises(ValueError, match=r"degrees must be whole numbers, got 1.5 at position 1: round them first"):
        graphical_degree_sequence([1, 1.5])
    with pytest.raises(ValueError, match="other_side must be a vector of whole numbers"):
        graphical_degree_sequence([1], [[1]])
    with pytest.raises(ValueError, match="degrees must be finite"):
        graphical_degree_sequence([np.nan])
