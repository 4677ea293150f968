"""Variances of tables by types of nodes against dense least squares over all nodes, their slopes, and the shares they lead to."""

from functools import partial
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpinfer.spine import (
    LearnedShares,
    Schema,
    TreeShape,
    mean_table_variances,
    optimize_shares,
    query_precisions,
    table_variances,
)

SCHEMA = Schema({"a": 3, "b": 2, "c": 2}, {"coarse": ("a", (0, 1, 1)), "some": ("b", (-1, 0))})
MEASURED = [SCHEMA.query(name) for name in ("total", "coarse", "b", "b * c", "detailed")]
TABLES = [SCHEMA.query(name) for name in ("coarse", "some * c", "a * c")]
# Two, five and eight nodes below two at the top; two of the five are alike.
PARENTS = ([0, 1, 0, 1, 1], [0, 0, 1, 2, 4, 3, 3, 4])
SHAPE = TreeShape(PARENTS)
LEVELS = range(SHAPE.num_levels)
ALL_TABLES = [(level, query) for level in LEVELS for query in TABLES]
FEW_TABLES = [(level, TABLES[2]) for level in LEVELS]
CASES = ("all", "no middle", "only leaves")


def random_precisions(case="all", seed=0):
    found = np.exp(np.random.default_rng(seed).normal(0, 2, (3, len(MEASURED))))
    found[0, 1] = found[2, 0] = 0.0
    if case != "all":
        found[1] = 0
    if case == "only leaves":
        found[0] = 0
        found[2, :-1] = 0
    return found


@jax.jit
def all_variances(precisions):
    return table_variances(SHAPE, SCHEMA, MEASURED, precisions, ALL_TABLES)


@jax.jit
def few_means(precisions):
    return mean_table_variances(SHAPE, SCHEMA, MEASURED, precisions, FEW_TABLES)


@jax.jit
def few_tangents(precisions, direction):
    return jax.jvp(few_means, (precisions,), (direction,))


few_slopes = jax.jit(jax.jacrev(few_means))


def rows_of(query):
    return query.answer(np.eye(SCHEMA.size)).T


def leaves_of(parents):
    """For each level [nodes, leaves]: which leaves lie in which node."""
    inside = [np.eye(len(parents[-1]))]
    for parent in reversed(parents):
        inside.append((np.arange(max(parent) + 1)[:, None] == np.array(parent)).astype(float) @ inside[-1])
    return inside[::-1]


def dense_variances(parents, precisions):
    """Variances [nodes, answers] for each level and table, by the inverse of the information of all cells of all leaves."""
    inside = leaves_of(parents)
    grams = [sum(w * rows_of(query).T @ rows_of(query) for w, query in zip(row, MEASURED, strict=True)) for row in precisions]
    covariance = np.linalg.inv(sum(np.kron(some.T @ some, gram) for some, gram in zip(inside, grams, strict=True)))
    found = []
    for level, query in product(range(len(inside)), TABLES):
        rows = np.kron(inside[level], rows_of(query))
        found.append(np.einsum("ri,ij,rj->r", rows, covariance, rows, optimize=True).reshape(len(inside[level]), -1))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_as_dense_least_squares_over_all_nodes(case):
    precisions = random_precisions(case)
    dense = dense_variances(PARENTS, precisions)
    found = all_variances(precisions)
    for (level, query), answers, expected in zip(ALL_TABLES, found, dense, strict=True):
        np.testing.assert_allclose(answers, expected.mean(axis=0), rtol=1e-9, err_msg=f"{query.name} at level {level}")
    np.testing.assert_allclose(few_means(precisions), [expected.mean() for expected in dense[2::3]], rtol=1e-9)


def node_by_node(parents, grams):
    """P of every node of every level, each by itself: the same two passes without types."""
    V = [np.linalg.inv(grams[-1])[None].repeat(len(parents[-1]), axis=0)]
    T = []
    for parent, gram in zip(reversed(parents), grams[-2::-1], strict=True):
        T.append(np.stack([V[-1][parent == node].sum(axis=0) for node in range(parent.max() + 1)]))
        V.append(np.linalg.inv(gram + np.linalg.inv(T[-1])))
    P = [V[-1]]
    for parent, above, below in zip(parents, T[::-1], V[-2::-1], strict=True):
        J = np.linalg.inv(above)
        P.append(below - below @ (J - J @ P[-1] @ J)[parent] @ below)
    return P


@pytest.mark.slow
def test_types_stand_for_their_nodes():
    rng = np.random.default_rng(1)
    sizes = [1, 3, 20, 60, 150]
    parents = [rng.permutation(np.append(np.arange(a), rng.integers(0, a, b - a))) for a, b in pairwise(sizes)]
    shape = TreeShape(parents)
    assert shape.num_nodes == tuple(sizes)
    assert shape.num_types[-1] == 1
    assert shape.num_types[-2] == len(set(np.bincount(parents[-1])))
    assert shape.num_types[2] < 20
    assert [int(counts.sum()) for counts in shape.type_sizes] == sizes
    precisions = np.exp(rng.normal(size=(5, len(MEASURED))))
    grams = [sum(w * rows_of(query).T @ rows_of(query) for w, query in zip(row, MEASURED, strict=True)) for row in precisions]
    tables = [(level, SCHEMA.query("a * c")) for level in range(5)]
    rows = rows_of(tables[0][1])
    found = jax.jit(lambda precisions: table_variances(shape, SCHEMA, MEASURED, precisions, tables))(precisions)
    for answers, P in zip(found, node_by_node(parents, grams), strict=True):
        np.testing.assert_allclose(answers, np.einsum("ri,nij,rj->nr", rows, P, rows).mean(axis=0), rtol=1e-9)


def test_shapes_are_compared_by_value():
    assert TreeShape(PARENTS) == SHAPE
    assert hash(TreeShape(PARENTS)) == hash(SHAPE)
    assert TreeShape([[0, 1, 0, 1, 0], PARENTS[1]]) != SHAPE
    assert SHAPE != PARENTS
    assert repr(SHAPE) == "TreeShape(nodes and types by level: 2 (2), 5 (2), 8 (1))"
    assert TreeShape([]).num_nodes == (1,)


@pytest.mark.slow
def test_one_cell_in_a_binary_tree_in_closed_form():
    one = Schema({"x": 1})
    levels = 5
    shape = TreeShape([np.arange(2**level) // 2 for level in range(1, levels)])
    assert shape.num_types == (1,) * levels
    total = one.query("total")
    tables = [(level, total) for level in range(levels)]
    found = mean_table_variances(shape, one, [total], np.full((levels, 1), 0.25), tables)
    # The root by Hay et al. 2010: of all levels' weighted answers; the others by dense least squares.
    assert found[0] == pytest.approx(4 * (2**levels - 2 ** (levels - 1)) / (2**levels - 1), rel=1e-12)
    rows = np.concatenate([np.kron(np.eye(2**level), np.ones(2 ** (levels - 1 - level))) for level in range(levels)])
    covariance = 4 * np.linalg.inv(rows.T @ rows)
    variances = np.einsum("ri,ij,rj->r", rows, covariance, rows)
    means = [variances[2**level - 1 : 2 ** (level + 1) - 1].mean() for level in range(levels)]
    np.testing.assert_allclose(found, means, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["all", "only leaves"])
def test_slopes_in_both_modes(case):
    """Also of what is not measured, whose precision can only grow."""
    precisions = jnp.asarray(random_precisions(case, seed=3))
    direction = jnp.asarray(np.random.default_rng(4).uniform(0.5, 1, precisions.shape)) * jnp.where(
        precisions > 0, precisions, 1e-2
    )
    step = 1e-4
    values = [np.asarray(few_means(precisions + k * step * direction)) for k in range(4)]
    differences = (-11 * values[0] + 18 * values[1] - 9 * values[2] + 2 * values[3]) / (6 * step)
    _, forward = few_tangents(precisions, direction)
    np.testing.assert_allclose(forward, differences, rtol=1e-6)
    backward = np.asarray(few_slopes(precisions))
    assert backward.shape == (3, *precisions.shape)
    np.testing.assert_allclose((backward * np.asarray(direction)).sum(axis=(1, 2)), forward, rtol=1e-9)
    assert (backward <= 1e-12 * np.abs(backward).max()).all()  # to measure more never hurts


# One level of four areas below one, 2 cells: 4 shares.
SMALL = Schema({"x": 2})
PAIR = [SMALL.query("total"), SMALL.query("detailed")]
FOUR = TreeShape([[0, 0, 0, 0]])
START = np.array([[0.1, 0.2], [0.3, 0.4]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "weights", "start"),
    [
        ([(0, PAIR[0]), (1, PAIR[1])], None, START),
        ([(0, PAIR[1]), (1, PAIR[0])], [3, 1], [[0, 0], [0, 1]]),
    ],
    ids=["some of each", "from the leaves alone"],
)
def test_no_shares_on_a_grid_are_better(tables, weights, start):
    kept = 0.05
    found = optimize_shares(FOUR, SMALL, PAIR, tables, start, rho=2, weights=weights, kept=kept, tolerance=1e-6)
    parts = np.full(2, 0.5) if weights is None else np.array(weights) / np.sum(weights)
    units = 25
    grid = (
        np.array([(i, j, k, units - i - j - k) for i, j, k in product(range(units + 1), repeat=3) if i + j + k <= units]) / units
    )
    shares = jnp.asarray(kept * np.asarray(start, dtype=float).ravel() + (1 - kept) * grid).reshape(-1, 2, 2)

    @jax.jit
    @jax.vmap
    def objective(shares):
        return parts @ jnp.log(mean_table_variances(FOUR, SMALL, PAIR, query_precisions(shares, rho=2), tables))

    values = np.asarray(objective(shares))
    assert found.converged
    assert 0 <= found.gap <= 1e-6
    assert found.objective <= np.nanmin(values) + 1e-6
    assert found.objective == pytest.approx(np.nanmin(values), abs=0.01)
    assert found.objective < found.first_objective - 0.1
    # Convex, which is why the slope bounds what is left.
    i, j = np.random.default_rng(0).integers(0, len(values), (2, 300))
    middle = np.asarray(objective((shares[i] + shares[j]) / 2))
    assert (middle <= (values[i] + values[j]) / 2 + 1e-9).all()
    # What it says of itself.
    assert found.shares.sum() == pytest.approx(1, abs=1e-12)
    assert (found.shares >= kept * np.asarray(start) - 1e-12).all()
    for s, variances, value in (
        (np.asarray(start, dtype=float), found.first_variances, found.first_objective),
        (found.shares, found.variances, found.objective),
    ):
        expected = np.asarray(mean_table_variances(FOUR, SMALL, PAIR, query_precisions(s, rho=2), tables))
        np.testing.assert_allclose(variances, expected, rtol=1e-12)
        assert value == pytest.approx(parts @ np.log(expected), abs=1e-12)


@pytest.mark.slow
def test_one_table_gets_all_that_can_be_moved():
    """With one table, of the top: all but what must be kept goes to it."""
    tables = [(0, PAIR[0])]
    search = partial(optimize_shares, FOUR, SMALL, PAIR, tables, rho=1, neighbors="replace_one", kept=0.5)
    found = search(START)
    assert isinstance(found, LearnedShares)
    np.testing.assert_allclose(found.shares, [[0.55, 0.1], [0.15, 0.2]], atol=2e-3)
    short = search(START, max_steps=1)
    assert short.num_steps == 1
    assert not short.converged
    assert found.objective < short.objective <= short.first_objective


def test_precisions_of_shares():
    np.testing.assert_allclose(query_precisions(START, rho=0.5), START)
    np.testing.assert_allclose(query_precisions(START, rho=0.5, neighbors="replace_one"), START / 2)


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([[0, 0], [0, 0, 2]], r"parents\[1\] must name every node of the level above, 0 to 1"),
        ([[0, 2]], r"parents\[0\] must name every node"),
        ([[0, -1]], r"parents\[0\] must name every node"),
        ([[0.0, 1.0]], r"parents\[0\] must hold integers"),
        ([[]], r"parents\[0\] must name every node"),
    ],
)
def test_shapes_that_are_none(parents, message):
    with pytest.raises(ValueError, match=message):
        TreeShape(parents)


def test_variances_that_cannot_be_had():
    variances = partial(table_variances, FOUR, SMALL)
    precisions, tables = np.ones((2, 2)), [(0, PAIR[0])]
    with pytest.raises(ValueError, match="queries must hold at least one"):
        variances([], precisions, tables)
    with pytest.raises(ValueError, match="tables must hold at least one"):
        variances(PAIR, precisions, [])
    with pytest.raises(ValueError, match="queries: 'total' is not over the attributes of Schema"):
        variances(MEASURED, precisions, tables)
    with pytest.raises(ValueError, match="tables: 'total' is wanted at level 2; levels are 0, the top, to 1"):
        variances(PAIR, precisions, [(2, PAIR[0])])
    with pytest.raises(ValueError, match=r"precisions must have shape \[2, 2\]"):
        variances(PAIR, precisions[:1], tables)
    with pytest.raises(ValueError, match="precisions must be finite and not negative"):
        variances(PAIR, -precisions, tables)
    with pytest.raises(ValueError, match="precisions must be finite and not negative"):
        variances(PAIR, precisions * np.inf, tables)
    with pytest.raises(ValueError, match="precisions must determine every cell at the lowest level"):
        variances(PAIR, np.array([[1, 1], [1, 0]]), tables)
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"type dpinfer.enable_x64\(\) first"):
        variances(PAIR, precisions, tables)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": START[0]}, r"start must have shape \[2, 2\]"),
        ({"start": [[1, 1], [1, 0]]}, "start must determine every cell"),
        ({"start": [[1, 1], [-1, 1]]}, "start must be finite and not negative"),
        ({"kept": 0}, "kept must be positive"),
        ({"kept": 1}, "kept must be below 1, got 1"),
        ({"tolerance": 0}, "tolerance must be positive"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"weights": [1, 2]}, "weights must be 1 numbers"),
        ({"weights": [0]}, "weights must be 1 numbers"),
        ({"rho": 0}, "rho must be positive"),
        ({"neighbors": "all"}, "neighbors must be one of"),
    ],
    ids=str,
)
def test_searches_that_are_refused(change, message):
    options = {"start": START, "rho": 1} | change
    with pytest.raises(ValueError, match=message):
        optimize_shares(FOUR, SMALL, PAIR, [(0, PAIR[0])], **options)
