"""The three forms of a count-of-counts histogram, and their distance."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from dpinfer.evaluation import earth_movers_distance
from dpinfer.group_sizes import from_cumulative, from_sizes, to_cumulative, to_sizes


def test_the_papers_examples():
    assert to_sizes([0, 2, 1, 2]).tolist() == [1, 1, 2, 3, 3]
    assert to_cumulative([0, 2, 1, 2]).tolist() == [0, 2, 3, 5]
    # The introduction prints [2, 1, 0, 1]: sizes from 1 there, from 0 in section 3.
    assert from_sizes([1, 1, 2, 4]).tolist() == [0, 2, 1, 0, 1]
    assert from_sizes([1, 4]).tolist() == [0, 1, 0, 0, 1]
    assert from_sizes(to_sizes([1, 2, 0, 3, 1, 2]), max_size=3).tolist() == [1, 2, 0, 6]
    assert earth_movers_distance([0, 20, 0], [0, 0, 20]) == 20
    assert earth_movers_distance([0, 20], [0] * 10 + [20]) == 180
    assert earth_movers_distance([0, 2, 1, 2], [1, 0, 3, 1]) == 3


@hypothesis.given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.data())
def test_the_forms_and_the_distance(sizes, data):
    other = data.draw(st.permutations(range(len(sizes))).map(lambda p: [min(6, x + p[0]) for x in sizes]))
    histogram, truth = from_sizes(sizes, max_size=6), from_sizes(other, max_size=6)
    assert to_sizes(histogram).tolist() == sorted(sizes)
    assert from_cumulative(to_cumulative(histogram)).tolist() == histogram.tolist()
    cost = np.abs(np.subtract.outer(sizes, other))
    best = cost[linear_sum_assignment(cost)].sum()
    assert earth_movers_distance(histogram, truth) == best
    assert np.abs(np.sort(sizes) - np.sort(other)).sum() == best


def test_many_nodes_large_counts_and_floats():
    large = np.array([[2**40, 0, 0], [5, 5, 0]])
    moved = np.array([[0, 0, 2**40], [5, 0, 5]])
    assert earth_movers_distance(large, moved).tolist() == [2**41, 5]
    assert to_cumulative(large.astype(np.uint32)).dtype == np.int64
    assert earth_movers_distance([0.5, 1.5], [1.0, 1.0]) == pytest.approx(0.5)
    assert earth_movers_distance(np.zeros(0, int), np.zeros(3, int)) == 0
    assert to_sizes(np.zeros(0, int)).shape == (0,)


def test_what_is_refused():
    with pytest.raises(ValueError, match="same number of groups"):
        earth_movers_distance([1, 2], [1, 1])
    with pytest.raises(ValueError, match="truth must be numbers"):
        earth_movers_distance([1, 2], "ab")
    for function in (to_cumulative, from_cumulative, lambda x: earth_movers_distance(x, x)):
        with pytest.raises(ValueError, match="64-bit signed"):
            function(np.array([2**63], dtype=np.uint64))
    with pytest.raises(ValueError, match="sizes must not be negative"):
        from_sizes([1, -1])
    with pytest.raises(ValueError, match="histogram must not be negative"):
        to_sizes([1, -1])
    with pytest.raises(ValueError, match="cumulative must be a vector of integers"):
        from_cumulative([0.5])
