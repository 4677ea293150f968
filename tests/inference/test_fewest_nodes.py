"""Ranges from the fewest nodes, against taking the highest nodes that fit one by one."""

import jax
import numpy as np
import pytest
from references import range_matrix

import dpinfer as dp
from dpinfer.accuracy import variance_of_ranges
from dpinfer.inference import fewest_nodes
from dpinfer.queries import AllRange, Boxes, Dense, Haar, Identity, Ranges, Tree


def one_by_one(matrix, values, row):
    left, total, count = row.copy(), 0.0, 0
    for node, value in zip(matrix, values, strict=True):
        if (node <= left).all():
            left, total, count = left - node, total + value, count + 1
    return total, count


@pytest.mark.parametrize(("n", "branching", "root"), [(13, 3, False), (16, 2, True), (5, 8, False), (1, 2, True)])
def test_every_range(n, branching, root):
    tree = Tree.complete(n, branching, root)
    values = np.random.default_rng(n).normal(size=tree.shape[0])
    answers = fewest_nodes(dp.Measurement(tree, values, "gaussian", 3.0)).answer(AllRange(n))
    starts, stops = np.triu_indices(n)
    expected = [one_by_one(tree.dense(), values, row) for row in range_matrix(n, starts, stops + 1)]
    np.testing.assert_allclose(answers.values, [total for total, _ in expected], atol=1e-12)
    np.testing.assert_allclose(np.square(answers.stddev), [9 * count for _, count in expected], rtol=1e-12)


@pytest.mark.slow
def test_a_level_that_is_not_measured_is_passed_over():
    tree = Tree.complete(27, 3)
    budgets = [0.5, 0, 0.5]
    scale = np.array([2, np.inf, 2])[tree.levels]
    values = np.where(np.isinf(scale), 1e9, tree @ np.arange(27.0))
    answers = fewest_nodes(dp.Measurement(tree, values, "laplace", scale)).answer(AllRange(27))
    np.testing.assert_allclose(answers.values, AllRange(27) @ np.arange(27.0), atol=1e-9)
    np.testing.assert_allclose(
        np.square(answers.stddev), variance_of_ranges(AllRange(27), 3, budgets, consistent=False), rtol=1e-12
    )


@pytest.mark.slow
def test_boxes_of_a_grid_of_unequal_sides():
    tree, rng = Tree.grid((5, 7), 2), np.random.default_rng(0)
    values = rng.normal(size=tree.shape[0])
    first, last = rng.integers(0, (5, 7), (40, 2)), rng.integers(0, (6, 8), (40, 2))
    boxes = Boxes((5, 7), np.minimum(first, last), np.maximum(first, last))
    found = fewest_nodes(dp.Measurement(tree, values, "gaussian", 1.0))
    answers = found.answer(boxes)
    expected = [one_by_one(tree.dense(), values, np.asarray(row)) for row in boxes.dense()]
    np.testing.assert_allclose(answers.values, [total for total, _ in expected], atol=1e-12)
    np.testing.assert_allclose(np.square(answers.stddev), [count for _, count in expected], atol=1e-9)
    # The last cell alone is a block that is cut, higher up.
    np.testing.assert_allclose(found.answer(Identity(35)).values[:-1], values[-35:-1], atol=1e-12)
    np.testing.assert_allclose(found.answer(Identity(35)).values[-1], values[15], atol=1e-12)
    np.testing.assert_array_equal(found.cells, values[-35:])


@pytest.mark.slow
def test_transforms():
    tree, ranges = Tree.complete(13, 3), Ranges(13, [0, 2, 5], [13, 9, 5])
    values = np.random.default_rng(0).normal(size=(4, tree.shape[0]))

    def answer(v):
        return fewest_nodes(dp.Measurement(tree, v, "laplace", 1.0)).answer(ranges).values

    each = np.stack([answer(v) for v in values])
    np.testing.assert_allclose(jax.jit(jax.vmap(answer))(values), each, atol=1e-12)
    slopes = jax.jacobian(answer)(values[0])
    np.testing.assert_allclose(slopes @ values[0], each[0], atol=1e-12)  # linear


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="measurement must be of Tree.complete or Tree.grid, got Haar"):
        fewest_nodes(dp.Measurement(Haar(4), np.zeros(4), "laplace", 1.0))
    tree = Tree.complete(4, 2)
    flat = fewest_nodes(dp.Measurement(tree, np.zeros(6), "laplace", 1.0))
    with pytest.raises(ValueError, match="workload must be ranges"):
        flat.answer(Dense([[1, 0, 1, 0]]))
    top = fewest_nodes(dp.Measurement(tree, np.zeros(6), "laplace", [1, 1, np.inf, np.inf, np.inf, np.inf]))
    with pytest.raises(ValueError, match="leaves .* must be measured"):
        top.answer(Ranges(4, [0], [2]))
    some = fewest_nodes(dp.Measurement(tree, np.zeros(6), "laplace", [1, np.inf, 1, 1, 1, 1]))
    with pytest.raises(ValueError, match="Level 0 .* must be measured as a whole"):
        some.answer(Ranges(4, [0], [2]))
