"""Average variances against the exact values of Qardaji et al.'s tables, and against dense least squares over every range."""

import itertools
import json
from functools import reduce
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import grid_tree_matrix, range_matrix, weighted_least_squares, widest_range_variance

from dpinfer import noise
from dpinfer.accuracy import range_variance, range_variance_by_size, variance_of_ranges
from dpinfer.accuracy.heights import num_levels, num_ranges
from dpinfer.accuracy.range_variance import level_usage
from dpinfer.queries import Boxes, Dense, Ranges, Tree

EXPECTED = json.loads((Path(__file__).parents[1] / "expected" / "range_variance.json").read_text())["averages"]


@pytest.mark.parametrize("kind", ["consistent", "fewest", "geometric", "with root"])
def test_tables_and_their_extension_to_a_million_cells(kind):
    found, expected = [], []
    for n, branching, dims, what, value in EXPECTED:
        if what != kind:
            continue
        levels = num_levels(n, branching) + (kind == "with root")
        budgets = branching ** (np.arange(levels) / 3) if kind == "geometric" else np.ones(levels)
        budgets = budgets / budgets.sum()
        found.append(range_variance(n, branching, budgets, dims=dims, root=kind == "with root", consistent=kind != "fewest"))
        expected.append(value)
    assert len(expected) >= 70
    np.testing.assert_allclose(found, expected, rtol=1e-9)


CASES = [
    *(((n,), b, root) for n, b, root in [(2, 2, False), (3, 5, True), (7, 2, True), (8, 2, True), (13, 3, False), (25, 4, True)]),
    *(((n, n), b, root) for n, b, root in [(4, 2, False), (5, 2, False), (7, 3, True)]),
    *(((n, n, n), b, root) for n, b, root in [(3, 2, True), (5, 4, False)]),
    *(
        (shape, 2, root)
        for shape, root in [((8, 3), True), ((2, 9), False), ((1, 6), False), ((5, 2, 5), True), ((4, 3, 7), False)]
    ),
]


def every_range(shape):
    """All ranges, or boxes: starts and stops, [m, dims] each, and their matrix."""
    ranges = [np.triu_indices(n) for n in shape]
    rows = reduce(np.kron, [range_matrix(n, first, last + 1) for n, (first, last) in zip(shape, ranges, strict=True)])
    starts = np.array(list(itertools.product(*(first for first, _ in ranges))))
    stops = np.array(list(itertools.product(*(last + 1 for _, last in ranges))))
    return starts, stops, rows


def every_variance(shape, branching, root, variances):
    """Of every range or box, by dense least squares; with its starts and stops."""
    matrix = grid_tree_matrix(shape, branching)[0 if root else 1 :]
    _, covariance = weighted_least_squares(matrix, np.zeros(len(matrix)), variances)
    starts, stops, rows = every_range(shape)
    return starts, stops, np.einsum("ij,jk,ik->i", rows, covariance, rows)


@pytest.mark.parametrize(("shape", "branching", "root"), CASES)
@pytest.mark.parametrize("skips", [False, True])
def test_every_range_by_dense_least_squares(shape, branching, root, skips):
    rng, n = np.random.default_rng(max(shape)), shape if len(shape) > 1 else shape[0]
    rhos = rng.uniform(0.1, 2, num_levels(max(shape), branching) + root)
    if skips and rhos.size > 1:
        rhos[rng.integers(rhos.size - 1)] = 0
    with np.errstate(divide="ignore"):
        variances = 1 / (2 * rhos)[Tree.grid(shape, branching, root).levels]
    starts, stops, every = every_variance(shape, branching, root, variances)
    given = {"level_rhos": rhos, "root": root}
    assert range_variance(n, branching, **given) == pytest.approx(every.mean(), rel=1e-11)
    if len(set(shape)) == 1:
        assert range_variance(shape[0], branching, dims=len(shape), **given) == range_variance(shape, branching, **given)
    if len(shape) == 1:
        by_size = [every[(stops - starts)[:, 0] == r].mean() for r in range(1, n + 1)]
        np.testing.assert_allclose(range_variance_by_size(n, branching, **given), by_size, rtol=1e-10)
        ranges = Ranges(n, starts[:, 0], stops[:, 0])
    else:
        some = slice(None, None, 1 + every.size // 300)
        ranges, every = Boxes(shape, starts[some], stops[some]), every[some]
    if skips and shape in ((4, 4), (8, 3), (13,)):  # the solver's own standard deviations, tested elsewhere
        np.testing.assert_allclose(variance_of_ranges(ranges, branching, **given), every, rtol=1e-9)


@pytest.mark.parametrize(("shape", "branching", "root"), CASES)
@pytest.mark.parametrize("skips", [False, True])
def test_every_range_from_the_fewest_nodes(shape, branching, root, skips):
    rng, n = np.random.default_rng(max(shape)), shape if len(shape) > 1 else shape[0]
    epsilons = rng.uniform(0.1, 2, num_levels(max(shape), branching) + root)
    if skips and epsilons.size > 1:
        epsilons[rng.integers(epsilons.size - 1)] = 0
    levels, matrix = Tree.grid(shape, branching, root).levels, grid_tree_matrix(shape, branching)[0 if root else 1 :]
    measured = epsilons[levels] > 0
    levels, matrix = levels[measured], matrix[measured]
    starts, stops, rows = every_range(shape)
    every = np.zeros(len(rows))
    for i, row in enumerate(rows):  # take the highest node that fits into what is left, again and again
        left = row.copy()
        for level, node in zip(levels, matrix, strict=True):
            if (node <= left).all():
                left, every[i] = left - node, every[i] + 2 / epsilons[level] ** 2
    given = {"level_epsilons": epsilons, "root": root, "consistent": False}
    assert range_variance(n, branching, **given) == pytest.approx(every.mean(), rel=1e-12)
    if len(shape) == 1:
        by_size = [every[(stops - starts)[:, 0] == r].mean() for r in range(1, n + 1)]
        np.testing.assert_allclose(range_variance_by_size(n, branching, **given), by_size, rtol=1e-12)
    ranges = Ranges(n, starts[:, 0], stops[:, 0]) if len(shape) == 1 else Boxes(shape, starts, stops)
    np.testing.assert_allclose(variance_of_ranges(ranges, branching, **given), every, rtol=1e-12)


@pytest.mark.slow
def test_sizes_add_up_to_the_average_at_a_million_cells():
    n = 2**20
    counts = np.arange(n, 0, -1.0)
    for branching, consistent in [(16, True), (12, True), (12, False)]:
        levels = num_levels(n, branching)
        by_size = range_variance_by_size(n, branching, np.full(levels, 1 / levels), consistent=consistent)
        whole = range_variance(n, branching, np.full(levels, 1 / levels), consistent=consistent)
        assert (by_size * counts).sum() / num_ranges(n) == pytest.approx(whole, rel=1e-10)


def test_usage_of_the_levels():
    # Qardaji et al. 2013, equation 2, with b nodes for the range of all cells; exact values, leaves first.
    expected = {(16, 2): [128, 112, 80, 18], (16, 12): [704, 18], (128, 12): [83552, 22891], (2048, 46): [92491280, 29158845]}
    for (n, branching), usage in expected.items():
        assert level_usage(n, branching).tolist() == usage[::-1]
    assert level_usage(9, 3, root=True).tolist()[0] == 1


@pytest.mark.parametrize(("law", "is_rho"), [("discrete_laplace", False), ("discrete_gaussian", True)])
def test_the_variance_of_every_law(law, is_rho):
    budgets = np.array([0.3, 1.5, 4.0])
    scale = 1 / budgets if not is_rho else 1 / np.sqrt(2 * budgets)
    rhos = 1 / (2 * np.asarray(noise.stddev(law, scale)) ** 2)
    for consistent in (True, False):
        found = range_variance(
            20, 3, None if is_rho else budgets, level_rhos=budgets if is_rho else None, noise=law, consistent=consistent
        )
        assert found == pytest.approx(range_variance(20, 3, level_rhos=rhos, consistent=consistent), rel=1e-12)


# Hay et al. 2010, theorem 4 (iii): some range gains by consistency as 3 / (2 (k-1) (h-1)), in a tree of branching k and h levels
# with its root. Its proof takes all leaves but the first and the last, and counts k nodes too many. Of that range: the nodes.
WIDEST = {(2, 11): 18, (4, 3): 8, (8, 4): 34}
# The least ratio over all ranges, where the theorem is false.
LEAST = {(5, 3): 0.19624, (8, 2): 2 / 9, (8, 3): 0.12405}


def with_and_without(ranges, branching, h):
    given = {"level_rhos": np.full(h, 0.5), "root": True}  # a variance of 1 a node
    return (np.asarray(variance_of_ranges(ranges, branching, consistent=c, **given)) for c in (True, False))


@pytest.mark.parametrize(("branching", "h"), WIDEST)
def test_the_range_of_theorem_4(branching, h):
    n = branching ** (h - 1)
    (consistent,), (fewest,) = with_and_without(Ranges(n, [1], [n - 1]), branching, h)
    assert fewest == WIDEST[branching, h] == 2 * (branching - 1) * (h - 1) - branching
    assert consistent == pytest.approx(float(widest_range_variance(branching, h)), rel=1e-14)
    assert (consistent / fewest > 3 / (2 * (branching - 1) * (h - 1))) == ((branching, h) in {(4, 3), (8, 4)})
    assert consistent / fewest <= 3 / (2 * (branching - 1) * (h - 1) - branching)


@pytest.mark.parametrize(("branching", "h"), [(3, 4), (4, 3), *LEAST])
def test_theorem_4_holds_for_small_branchings_only(branching, h):
    n = branching ** (h - 1)
    starts, stops = np.triu_indices(n)
    consistent, fewest = with_and_without(Ranges(n, starts, stops + 1), branching, h)
    least, printed = (consistent / fewest).min(), 3 / (2 * (branching - 1) * (h - 1))
    if (branching, h) in LEAST:
        assert least == pytest.approx(LEAST[branching, h], abs=5e-6)
        assert least > printed
    else:
        assert least <= printed
    assert least <= 3 / (2 * (branching - 1) * (h - 1) - branching)


@pytest.mark.slow
@pytest.mark.parametrize("n", [27, (7, 2)], ids=str)
@pytest.mark.parametrize("consistent", [True, False])
def test_derivatives_and_batches(n, consistent):
    epsilons = np.array([0.2, 0.5, 0.8])[-num_levels(np.max(n).item(), 3) :]

    def average(e):
        return range_variance(n, 3, e, consistent=consistent)

    gradient = jax.grad(average)(jnp.asarray(epsilons))
    steps = np.eye(epsilons.size) * 1e-6
    numeric = [(average(epsilons + s) - average(epsilons - s)) / 2e-6 for s in steps]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6)
    many = jnp.asarray(np.random.default_rng(0).uniform(0.1, 1, (1000, epsilons.size)))
    np.testing.assert_allclose(jax.jit(jax.vmap(average))(many), [average(np.asarray(e)) for e in many], rtol=1e-10)


def test_a_level_without_budget_is_not_measured_and_has_no_slope():
    gradient = jax.grad(lambda e: range_variance(16, 2, e))(jnp.array([0.0, 0.5, 0.0, 0.5]))
    np.testing.assert_array_equal(np.asarray(gradient)[[0, 2]], 0)
    assert range_variance(16, 2, [0, 0.5, 0, 0.5]) == pytest.approx(range_variance(16, 4, [0.5, 0.5]))
    assert range_variance(16, 2, [1, 1, 1, 0]) == np.inf
    assert range_variance(16, 2, [1, 1, 1, 0], consistent=False) == np.inf
    assert np.isinf(range_variance_by_size(16, 2, [1, 1, 1, 0])).all()
    assert variance_of_ranges(Ranges(4, [0, 2], [4, 2]), 2, [1, 0], consistent=False).tolist() == [np.inf, 0]
    assert range_variance(1, 2, [0.0, 1.0], root=True) == 2
    assert range_variance(1, 2, [1.0, 1.0], root=True) == range_variance_by_size(1, 2, [1.0, 1.0], root=True) == 1


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match=r"level_epsilons must have 4 entries.*Tree.complete\(16, 2, root=False\).*got 3"):
        range_variance(16, 2, [1, 1, 1])
    with pytest.raises(ValueError, match="exactly one of level_epsilons"):
        range_variance(16, 2)
    with pytest.raises(ValueError, match=r"noise \(with level_rhos\) must be one of 'gaussian'"):
        range_variance(16, 4, level_rhos=[1, 1], noise="laplace")
    with pytest.raises(ValueError, match="level_epsilons must be non-negative"):
        range_variance(16, 4, [1, -1])
    with pytest.raises(ValueError, match="dims must be left out where n lists the cells along each axis, got 3 and 2 axes"):
        range_variance((16, 4), 4, [1, 1], dims=3)
    with pytest.raises(ValueError, match="workload must be ranges, got Dense"):
        variance_of_ranges(Dense([[1, 0, 1]]), 2, [1, 1])
