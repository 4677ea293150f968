"""Realised error against its definition."""

import jax
import numpy as np
import pytest
from references import range_matrix

from dpinfer import evaluation


def test_squared_error_by_range_size_by_enumeration():
    rng = np.random.default_rng(0)
    cells, truth = rng.normal(size=11), rng.integers(0, 9, 11)
    sizes = [1, 2, 5, 11]
    expected = []
    for size in sizes:
        starts = np.arange(11 - size + 1)
        expected.append(np.mean((range_matrix(11, starts, starts + size) @ (cells - truth)) ** 2))
        np.testing.assert_array_equal(evaluation.ranges_of_size(11, size).starts, starts)
    np.testing.assert_allclose(evaluation.squared_error_by_range_size(cells, truth, sizes), expected, rtol=1e-12)
    batch = jax.vmap(lambda c: evaluation.squared_error_by_range_size(c, truth, sizes))(np.stack([cells, truth * 1.0]))
    np.testing.assert_allclose(batch, [expected, [0] * 4], rtol=1e-12)
    # A count common to both costs no digits.
    np.testing.assert_allclose(evaluation.squared_error_by_range_size(cells + 2**20, truth + 2**20, sizes), expected, rtol=1e-8)


def test_evenly_spaced_ranges():
    ranges = evaluation.ranges_of_size(100, 10, most=5)
    assert ranges.starts.tolist() == [0, 22, 45, 68, 90]
    assert evaluation.ranges_of_size(100, 10, most=1000).starts.size == 91


def test_coverage():
    assert float(evaluation.coverage([0.0, 1.0, 2.0], [1.0, 2.0, 2.0], [1, 0, 2])) == pytest.approx(2 / 3)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="sizes must be from 1 to the number of cells 3, got 4"):
        evaluation.squared_error_by_range_size(np.zeros(3), np.zeros(3), [4])
    with pytest.raises(ValueError, match=r"vectors of one length, got \[3\] and \[4\]"):
        evaluation.squared_error_by_range_size(np.zeros(3), np.zeros(4), [1])
