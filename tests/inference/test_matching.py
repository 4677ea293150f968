"""Matching groups of regions: against assignments of least cost and the algorithm read literally; division in proportion."""

from math import prod

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from dpinfer.inference.matching import in_proportion, match, merge
from dpinfer.inference.size_runs import SizeRuns


@pytest.mark.parametrize(
    ("amount", "shares", "parts"),
    [(300, [200, 100, 100], [150, 75, 75]), (7, [3, 3, 3], [3, 2, 2]), (1, [1, 1, 1], [1, 0, 0]), (5, [7, 2, 1], [4, 1, 0])],
)
def test_the_papers_proportions(amount, shares, parts):
    assert in_proportion(amount, np.array(shares)).tolist() == parts


@hypothesis.given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.data())
def test_proportions_never_exceed_the_shares(shares, data):
    amount = data.draw(st.integers(0, sum(shares)))
    for factor in (1, 10**9 // 50):  # products beyond 32 and beyond 64 bit
        many = np.array(shares) * factor
        parts = in_proportion(amount * factor, many)
        assert parts.sum() == amount * factor
        assert (parts >= 0).all()
        assert (parts <= many).all()
        exact = [amount * factor * int(share) / max(int(many.sum()), 1) for share in many]
        assert np.abs(parts - exact).max() <= 1


def literal(parent_sizes, child_sizes):
    """Algorithm 2 group by group: parents' sizes from the smallest, children's of the smallest size in proportion."""
    left = [sorted(sizes) for sizes in child_sizes]
    table = {}
    tops = sorted(parent_sizes)
    while tops:
        top, bottom = tops[0], min(sizes[0] for sizes in left if sizes)
        have = np.array([sizes.count(bottom) for sizes in left])
        m = min(tops.count(top), int(have.sum()))
        for child, part in enumerate(in_proportion(m, have).tolist()):
            if part:
                table[top, bottom, child] = table.get((top, bottom, child), 0) + part
            left[child] = left[child][part:]
        tops = tops[m:]
    return table


def as_runs(nodes, sizes, variance=1.0):
    nodes, sizes = np.asarray(nodes, dtype=np.int64), np.asarray(sizes, dtype=np.int64)
    return SizeRuns.gather(nodes, sizes, np.ones(sizes.size, dtype=np.int64), np.full(sizes.size, variance))


@hypothesis.given(st.data())
def test_matching_has_least_cost_and_is_the_literal_algorithm(data):
    # Two parents; the first with up to 3 children, the second with 1 or 2, interleaved.
    parent_of = np.array(data.draw(st.permutations([0, 0, 0, 1, 1])))
    child_sizes = [data.draw(st.lists(st.integers(0, 5), max_size=5)) for _ in parent_of]
    totals = [sum(len(child_sizes[c]) for c in np.flatnonzero(parent_of == p)) for p in (0, 1)]
    parent_sizes = [data.draw(st.lists(st.integers(0, 5), min_size=t, max_size=t)) for t in totals]
    parents = as_runs(np.repeat([0, 1], totals), [*parent_sizes[0], *parent_sizes[1]])
    children = as_runs(np.repeat(np.arange(5), [len(s) for s in child_sizes]), [size for sizes in child_sizes for size in sizes])
    above, below, amounts = match(parents, children, parent_of)
    assert (amounts > 0).all()
    for p in (0, 1):
        own = parents.nodes[above] == p
        assert (parent_of[children.nodes[below[own]]] == p).all()
        members = np.flatnonzero(parent_of == p)
        expected = literal(parent_sizes[p], [child_sizes[c] for c in members])
        found = {}
        for a, b, amount in zip(above[own], below[own], amounts[own], strict=True):
            key = parents.sizes[a], children.sizes[b], np.flatnonzero(members == children.nodes[b])[0]
            found[key] = found.get(key, 0) + amount
        assert found == expected
        if totals[p]:
            bottoms = [size for c in members for size in child_sizes[c]]
            cost = np.abs(np.subtract.outer(parent_sizes[p], bottoms))
            matched = sum(abs(int(top) - int(bottom)) * n for (top, bottom, _), n in found.items())
            assert matched == cost[linear_sum_assignment(cost)].sum()
    # Every group of both is matched once.
    assert np.bincount(above, weights=amounts, minlength=parents.counts.size).tolist() == parents.counts.tolist()
    assert np.bincount(below, weights=amounts, minlength=children.counts.size).tolist() == children.counts.tolist()


def test_greedy_matching_by_distance_is_worse():
    # Taking the nearest pair first, as section 5.2 has it, costs 83 where 37 is possible.
    parents, children = as_runs([0, 0, 0], [3, 52, 43]), as_runs([0, 1, 2], [63, 48, 24])
    above, below, amounts = match(parents, children, np.zeros(3, int))
    assert (np.abs(parents.sizes[above] - children.sizes[below]) * amounts).sum() == 37


def test_merging():
    # Equations 5 and 6: (12, 2) and (13, 6) give 12.25 and 1.5.
    parents, children = as_runs([0], [12], 2.0), as_runs([0], [13], 6.0)
    one = np.zeros(1, int)
    merged = merge(parents, children, one, "weighted")
    assert (merged.sizes.tolist(), merged.variances.tolist()) == ([12], [1.5])
    assert merge(parents, children, one, "naive").sizes.tolist() == [13]  # 12.5 half upward
    assert merge(parents, children, one, "naive").variances.tolist() == [2.0]
    assert merge(parents, children, one, "parent").sizes.tolist() == [12]
    # Weighted means of sizes in order need not be in order: (1, 2) and (10, 10) give 9.1 and 2.8.
    groups = np.ones(2, dtype=np.int64)
    parents = SizeRuns(np.zeros(2, int), np.array([1, 2]), groups, np.array([9.0, 1.0]))
    children = SizeRuns(np.zeros(2, int), np.array([10, 10]), groups, np.array([1.0, 9.0]))
    merged = merge(parents, children, one, "weighted")
    assert merged.sizes.tolist() == [3, 9]
    assert prod(merged.variances) == pytest.approx(0.81)


def test_no_groups():
    nothing = as_runs([], [])
    assert all(column.size == 0 for column in match(nothing, nothing, np.zeros(3, int)))
    assert merge(nothing, nothing, np.zeros(3, int), "weighted").sizes.size == 0
