"""One contract for every family of queries, against its matrix written from the definition."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import complete_tree_parents, grid_tree_matrix, largest_change, range_matrix, tree_matrix

import dpinfer as dp
from dpinfer.queries import (
    AllRange,
    Boxes,
    Dense,
    Haar,
    Identity,
    Kronecker,
    Partition,
    Prefix,
    Ranges,
    Suffix,
    Total,
    Tree,
    VStack,
    Weighted,
)
from dpinfer.queries.tree import CompleteTree

PARENTS = [3, 3, 5, -1, 0, 3, 5, 0, 6]  # node numbers in no particular order; one inner node has a single child


def haar_matrix(n):
    """The total, then left half less right half of each node of the padded binary tree, level by level."""
    size = 1 << (n - 1).bit_length()
    rows = [np.ones(size)]
    width = size
    while width > 1:
        for start in range(0, size, width):
            row = np.zeros(size)
            row[start : start + width // 2], row[start + width // 2 : start + width] = 1, -1
            rows.append(row)
        width //= 2
    return np.array(rows)[:, :n]


def box_matrix(shape, starts, stops):
    rows = []
    for start, stop in zip(starts, stops, strict=True):
        grid = np.zeros(shape)
        grid[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = 1
        rows.append(grid.ravel())
    return np.array(rows)


def families():
    rng = np.random.default_rng(0)
    for n in (1, 2, 6, 8, 11):
        yield f"Haar({n})", Haar(n), haar_matrix(n)
    for n in (1, 2, 7):
        yield f"Suffix({n})", Suffix(n), np.triu(np.ones((n, n)))
        labels = rng.integers(0, 4, n)
        yield f"Partition({n})", Partition(labels), (np.arange(labels.max() + 1)[:, None] == labels).astype(float)
        weights = rng.integers(-3, 4, n)
        yield f"Weighted({n})", Weighted(Prefix(n), weights), weights[:, None] * np.tril(np.ones((n, n)))
        yield f"Weighted({n},2)", Weighted(Total(n), 2), np.full((1, n), 2.0)
    yield "Partition of one", Partition([2, 2, 2]), np.array([[0.0] * 3, [0.0] * 3, [1.0] * 3])
    for shape in ((1,), (5,), (2, 3), (3, 1, 2)):
        starts = rng.integers(0, np.array(shape) + 1, (6, len(shape)))
        stops = rng.integers(starts, np.array(shape) + 1)
        yield f"Boxes{shape}", Boxes(shape, starts, stops), box_matrix(shape, starts, stops)
    for shape, branching, root in (
        ((1,), 2, False),
        ((5,), 2, True),
        ((2, 3), 2, False),
        ((4, 4), 2, True),
        ((3, 1, 5), 3, False),
    ):
        matrix = grid_tree_matrix(shape, branching)
        yield f"Tree.grid({shape},{branching},{root})", Tree.grid(shape, branching, root=root), matrix[0 if root else 1 :]
    small = rng.integers(-2, 3, (3, 2))
    for name, factors in {
        "one": [Prefix(3)],
        "marginal": [Identity(3), Total(2)],
        "ranges": [Prefix(3), Tree.complete(4, 2), Identity(2)],
        "signed": [Haar(3), Dense(small)],
        "wavelets": [Haar(3), Haar(4), Prefix(2)],
        "units": [Dense(np.sign(small)), VStack([Haar(2), Total(2)])],
        "stack": [VStack([Identity(2), Total(2)]), Total(1), Partition([0, 1, 0])],
    }.items():
        matrix = np.ones((1, 1))
        for factor in factors:
            matrix = np.kron(matrix, np.asarray(factor.dense()))
        yield f"Kronecker({name})", Kronecker(factors), matrix
    for n in (1, 2, 7):
        yield f"Identity({n})", Identity(n), np.eye(n)
        yield f"Total({n})", Total(n), np.ones((1, n))
        yield f"Prefix({n})", Prefix(n), np.tril(np.ones((n, n)))
        pairs = [(i, j) for i in range(n) for j in range(i + 1, n + 1)]
        yield f"AllRange({n})", AllRange(n), range_matrix(n, *np.array(pairs).T)
        starts = rng.integers(0, n + 1, 9)
        stops = np.array([rng.integers(s, n + 1) for s in starts])
        yield f"Ranges({n})", Ranges(n, starts, stops), range_matrix(n, starts, stops)
        matrix = rng.integers(-3, 4, (4, n))
        yield f"Dense({n})", Dense(matrix), matrix
        for branching in (2, 3, 8):
            full = tree_matrix(complete_tree_parents(n, branching))
            yield f"Tree.complete({n},{branching},root)", Tree.complete(n, branching, root=True), full
            yield f"Tree.complete({n},{branching})", Tree.complete(n, branching), full[1:]
        stack = VStack([Total(n), Dense(matrix), Tree.complete(n, 2)])
        yield f"VStack({n})", stack, np.vstack([np.ones((1, n)), matrix, tree_matrix(complete_tree_parents(n, 2))[1:]])
    yield "from_parents", Tree.from_parents(PARENTS), tree_matrix(np.array(PARENTS))
    cells = [2, 0, 3, 1, 4]
    yield "from_parents(cells)", Tree.from_parents(PARENTS, cells), tree_matrix(np.array(PARENTS), np.array(cells))
    yield "one node", Tree.from_parents([-1]), np.ones((1, 1))
    yield "no rows", Ranges(3, [], []), np.zeros((0, 3))
    yield "large cut tree", Tree.complete(23, 3), tree_matrix(complete_tree_parents(23, 3))[1:]


CASES = [pytest.param(queries, matrix, id=name) for name, queries, matrix in families()]


@pytest.mark.parametrize(("queries", "matrix"), CASES)
def test_matrix_and_products_on_the_host(queries, matrix):
    m, n = matrix.shape
    rng = np.random.default_rng(1)
    assert queries.shape == (m, n)
    np.testing.assert_array_equal(queries.dense(), matrix)
    np.testing.assert_array_equal(queries.gram(), matrix.T @ matrix)
    np.testing.assert_array_equal(queries.overlap_gram(), abs(matrix).T @ abs(matrix))
    assert not queries.has_zero_one_entries or np.isin(matrix, (0, 1)).all()
    assert not queries.has_unit_entries or np.isin(matrix, (-1, 0, 1)).all()
    if queries.has_typical_first_cell:
        norms = np.square(matrix).sum(axis=0)
        kinds = np.stack([matrix.T @ matrix, abs(matrix).T @ abs(matrix), norms[:, None] + norms])
        assert {*map(tuple, kinds.reshape(3, -1).T.tolist())} == {*map(tuple, kinds[:, 0].T.tolist())}
    np.testing.assert_array_equal(np.concatenate([queries.rows(0, m // 2), queries.rows(m // 2, m)]), matrix)
    for dtype in (np.int8, np.int32, np.int64, np.float64):
        x, y = rng.integers(-100, 100, (n, 3)).astype(dtype), rng.integers(-100, 100, (m, 3)).astype(dtype)
        np.testing.assert_array_equal(queries @ x, matrix @ x.astype(float))
        np.testing.assert_array_equal(queries.T @ y, matrix.T @ y.astype(float))
        assert (queries @ x[:, 0]).shape == (m,)
        assert (queries.T @ y[:, 0]).shape == (n,)
    # 64 bit on the host whatever JAX is set to, and exact.
    big = np.full(n, 2**40 + 1, dtype=np.int64)
    assert (queries @ big).dtype == np.int64
    np.testing.assert_array_equal((queries @ big).astype(object), matrix.astype(object) @ big.astype(object))


@pytest.mark.parametrize(("queries", "matrix"), CASES)
def test_products_in_jax(queries, matrix):
    m, n = matrix.shape
    rng = np.random.default_rng(2)
    x, y = jnp.asarray(rng.normal(size=n)), jnp.asarray(rng.normal(size=m))
    batch = jnp.asarray(rng.normal(size=(2, n)))

    @jax.jit
    def products(queries, x, y, batch):
        gradient = jax.grad(lambda v: ((queries @ v) * y).sum())(x)
        return queries @ x, queries.T @ y, jax.vmap(lambda v: queries @ v)(batch), gradient, queries @ x.astype(jnp.float32)

    forward, backward, many, gradient, narrow = products(queries, x, y, batch)
    np.testing.assert_allclose(forward, matrix @ x, atol=1e-13)
    np.testing.assert_allclose(backward, matrix.T @ y, atol=1e-13)
    np.testing.assert_allclose(many, np.asarray(batch) @ matrix.T, atol=1e-13)
    np.testing.assert_allclose(gradient, matrix.T @ y, atol=1e-13)
    assert narrow.dtype == jnp.float32


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("queries", "matrix"), [c for c in CASES if c.id != "no rows"])
def test_sensitivity_by_enumerating_neighbours(queries, matrix, order, neighbors):
    ones = np.ones(matrix.shape[0])
    truth = largest_change(matrix, ones, order, neighbors)
    got = queries.sensitivity(order, neighbors)
    assert got == (truth if order == 1 else pytest.approx(math.sqrt(truth), rel=1e-15))
    assert isinstance(got, int) or order == 2
    weights = np.random.default_rng(3).integers(0, 50, matrix.shape[0])
    truth = largest_change(matrix, weights, order, neighbors)
    assert queries.largest_change(weights, order, neighbors) == truth
    # Weights beyond 64 bit, as exact fractions with a large common denominator need.
    huge = np.array([int(w) * 3**50 for w in weights], dtype=object)
    assert queries.largest_change(huge, order, neighbors) == int(truth) * 3**50


@pytest.mark.parametrize(("queries", "matrix"), CASES)
def test_traced_row_weights_give_the_same_change(queries, matrix):
    weights = np.random.default_rng(4).uniform(size=matrix.shape[0])
    if matrix.shape[0] and matrix.shape[1] > 1:
        got = jax.jit(lambda w: queries.largest_change(w, 1, "add_remove"))(weights)
        assert got == pytest.approx(largest_change(matrix, weights, 1, "add_remove"), rel=1e-12)
        # Under replace_one a bound may stand in for the pairs that cannot be enumerated inside jit.
        bound = jax.jit(lambda w: queries.largest_change(w, 1, "replace_one"))(weights)
        assert bound >= largest_change(matrix, weights, 1, "replace_one") * (1 - 1e-12)


@pytest.mark.parametrize(("queries", "matrix"), CASES)
def test_ranges_are_what_the_rows_are(queries, matrix):
    ranges = queries.as_ranges()
    if ranges is not None:
        np.testing.assert_array_equal(range_matrix(matrix.shape[1], *ranges), matrix)


@pytest.mark.parametrize(("queries", "matrix"), CASES)
def test_a_family_is_a_pytree_whose_structure_is_static(queries, matrix):
    leaves, treedef = jax.tree.flatten(queries)
    rebuilt = jax.tree.unflatten(treedef, leaves)
    assert all(np.issubdtype(np.asarray(leaf).dtype, np.number) for leaf in leaves)
    np.testing.assert_array_equal(rebuilt.dense(), matrix)
    if not leaves and not isinstance(queries, Kronecker):
        assert rebuilt is queries  # so that what it has cached is kept


@pytest.mark.parametrize(("queries", "matrix"), CASES)
def test_wrong_lengths_are_refused(queries, matrix):
    m, n = matrix.shape
    with pytest.raises(ValueError, match=rf"cells must have shape \[{n}\]"):
        _ = queries @ np.ones(n + 1)
    with pytest.raises(ValueError, match=rf"values must have shape \[{m}\]"):
        _ = queries.T @ np.ones(m + 1)
    with pytest.raises(ValueError, match="order must be one of 1, 2"):
        queries.sensitivity(3)
    with pytest.raises(ValueError, match="neighbors must be one of 'add_remove', 'replace_one'"):
        queries.sensitivity(1, "bounded")


def test_equal_content_is_equal_and_compiles_once():
    compiled = []

    @jax.jit
    def total(queries, x):
        compiled.append(1)
        return (queries @ x).sum()

    for starts in ([0, 1], [0, 1], np.array([0, 1], dtype=np.int32)):
        total(Ranges(4, starts, [2, 3]), jnp.ones(4))
    assert len(compiled) == 1
    assert Ranges(4, [0, 1], [2, 3]) == Ranges(4, (0, 1), [2, 3])
    assert hash(Ranges(4, [0], [2])) == hash(Ranges(4, [0], [2]))
    assert Ranges(4, [0], [2]) != Ranges(4, [0], [3])
    assert Tree.complete(8, 2) != Tree.complete(8, 2, root=True)
    assert Identity(3) != Prefix(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Identity(0), "n must be at least 1, got 0"),
        (lambda: Identity(2.0), "n must be an integer, got 2.0"),  # pyright: ignore[reportArgumentType]
        (lambda: Total(True), "n must be an integer, got True"),
        (lambda: Ranges(4, [0], [1, 2]), "starts and stops must have the same length, got 1 and 2"),
        (lambda: Ranges(4, [0, 2], [1, 5]), r"row 1 is \[2, 5\)"),
        (lambda: Ranges(4, [-1], [1]), r"row 0 is \[-1, 1\)"),
        (lambda: Ranges(4, [3], [1]), r"row 0 is \[3, 1\)"),
        (lambda: Ranges(4, [0.5], [1]), "starts must hold integers, got dtype float64"),
        (lambda: Tree.complete(4, 1), "branching must be at least 2, got 1"),
        (lambda: Tree.grid((4, 4), 1), "branching must be at least 2, got 1"),
        (lambda: Tree.grid(4, 2), "shape must list the cells"),
        (lambda: Tree.grid((), 2), "at least one axis"),
        (lambda: CompleteTree(4, 2, 1), "root must be True or False, got 1"),  # pyright: ignore[reportArgumentType]
        (lambda: Tree.from_parents([-1, -1]), "exactly one root by -1, got 2"),
        (lambda: Tree.from_parents([1, 0]), "exactly one root by -1, got 0"),
        (lambda: Tree.from_parents([-1, 2, 1]), r"\[1, 2\] go round in circles"),
        (lambda: Tree.from_parents([-1, 5]), "node indices from 0 to 1"),
        (lambda: Tree.from_parents([]), "node indices"),
        (lambda: Tree.from_parents([-1, 0, 0], [0, 0]), "leaf_cells must be a permutation of 0 to 1"),
        (lambda: Tree.from_parents([-1, 0, 0], [0]), "leaf_cells must be a permutation"),
        (lambda: Dense([1, 2]), r"matrix must have shape \[m, n\]"),
        (lambda: Dense([[1.0, np.nan]]), "matrix must be finite, got nan at position 1"),
        (lambda: Haar(0), "n must be at least 1, got 0"),
        (lambda: Partition([]), "labels must hold one label"),
        (lambda: Partition([0, -1]), "labels must hold one label from 0"),
        (lambda: Partition([0.5]), "labels must hold integers"),
        (lambda: Kronecker([]), "parts must be a non-empty list of queries"),
        (lambda: Kronecker([np.eye(2)]), "parts must be a non-empty list of queries"),  # pyright: ignore[reportArgumentType]
        (lambda: Weighted(Identity(2), [1, 2, 3]), r"weights must be a number or have shape \[2\]"),
        (lambda: Weighted(Identity(2), [1, np.inf]), "weights must be finite"),
        (lambda: Weighted(np.eye(2), 1), "queries must be a family"),  # pyright: ignore[reportArgumentType]
        (lambda: Boxes((2, 2), [[0, 0]], [[1, 3]]), r"row 0 is \[0, 0\] to \[1, 3\]"),
        (lambda: Boxes((2, 2), [0, 0], [1, 1]), r"starts must have shape \[m, 2\]"),
        (lambda: Boxes(4, [[0]], [[1]]), "shape must list the cells"),  # pyright: ignore[reportArgumentType]
        (lambda: VStack([]), "parts must be a non-empty list of queries"),
        (lambda: VStack([Identity(2), Identity(3)]), r"same cells, got \[2, 3\] cells"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_structure_cannot_be_written_to():
    ranges = Ranges(4, [0], [2])
    with pytest.raises(ValueError, match="read-only"):
        ranges.starts[0] = 1
    source = np.array([0])
    kept = Ranges(4, source, [2])
    source[0] = 3
    assert kept.starts[0] == 0


def test_sensitivity_of_all_ranges_is_the_closed_form():
    for n in (1, 2, 3, 10, 11):
        assert AllRange(n).sensitivity() == (n + 1) ** 2 // 4
    assert dp.queries.AllRange(4096).sensitivity(neighbors="replace_one") == 4097**2 // 4


def test_sensitivity_of_large_entries_does_not_wrap():
    matrix = [[2**30, -(2**30)]] * 40
    assert Dense(matrix).sensitivity(2) == math.sqrt(40 * 2**60)
    assert Dense(matrix).sensitivity(1, "replace_one") == 40 * 2**31
    assert VStack([Dense(matrix), Identity(2)]).sensitivity(2, "replace_one") == math.sqrt(40 * 2**62 + 2)
    assert Dense([[2**62, 1]] * 4).sensitivity() == 2**64


def test_privacy_loss_is_an_exact_fraction():
    from dpinfer.privacy import largest_change as loss

    tree = Tree.complete(9, 3, root=True)
    weights = [Fraction(1, 7), Fraction(1, 11), Fraction(1, 13)]
    assert loss(tree, weights, tree.levels, 1, "add_remove") == sum(weights)
    assert loss(tree, weights, tree.levels, 1, "replace_one") == 2 * (weights[1] + weights[2])
    stack = VStack([Identity(9), Total(9)])
    assert loss(stack, weights[:2], stack.levels, 1, "add_remove") == weights[0] + weights[1]
    assert loss(stack, weights[:2], stack.levels, 1, "replace_one") == 2 * weights[0]
    assert loss(Prefix(5), [Fraction(1, 3)], None, 2, "add_remove") == Fraction(5, 3)


def test_sensitivity_of_a_large_product_forms_no_columns():
    cube = Kronecker([Prefix(2)] * 10)
    assert cube.shape == (1024, 1024)
    # Column (0, ..., 0) has 2^10 ones, and every column has the last row in common with it.
    assert cube.sensitivity() == 1024
    assert cube.sensitivity(1, "replace_one") == 1023
    grid = Kronecker([Identity(1024), Tree.complete(1024, 2)])
    assert grid.sensitivity() == 10
    assert grid.sensitivity(2, "replace_one") == math.sqrt(20)
    # Two dimensions of Privelet: cells that part at the roots of both axes have all their rows but the total to themselves,
    # where rows that only one has count once, and the rows of both with opposite signs twice.
    wavelets = Kronecker([Haar(8), Haar(8)])
    matrix = np.asarray(wavelets.dense())
    pairs = max(np.abs(matrix - matrix[:, [j]]).sum(axis=0).max() for j in range(64))
    assert wavelets.sensitivity(1, "replace_one") == pairs
    assert Kronecker([Haar(1024), Haar(1024)]).sensitivity(1, "replace_one") > 200
    stack = VStack([Identity(2**20), Total(2**20)])
    assert stack.sensitivity(1, "replace_one") == 2
    table = Kronecker([Identity(4)] * 10)
    x = np.arange(4**10)
    np.testing.assert_array_equal(table @ x, x)
    np.testing.assert_array_equal(Kronecker([Total(4)] * 9 + [Identity(4)]) @ x, x.reshape(-1, 4).sum(axis=0))


@pytest.mark.slow
def test_privelet_is_haar_at_equal_scales():
    # Xiao, Wang, Gehrke 2010: generalised sensitivity 1 + log2 n, and at most this variance for any range.
    for n in (2, 8, 64):
        assert Haar(n).sensitivity() == 1 + math.log2(n)
        scale = 1.0 + math.log2(n)
        estimate = dp.least_squares(dp.Measurement(Haar(n), np.zeros(n), "laplace", scale))
        variances = np.square(np.asarray(estimate.answer(AllRange(n)).stddev))
        assert variances.max() <= (2 + math.log2(n)) * scale**2
    assert repr(Haar(5)) == "Haar(5, padded to 8)"
