"""Histograms from files of the user's own."""

import numpy as np
import pytest

from dpinfer.datasets import read_histogram


def test_neighbouring_cells_are_summed(tmp_path):
    counts = np.arange(48.0).reshape(6, 8)
    np.save(tmp_path / "grid.npy", counts)
    np.testing.assert_array_equal(read_histogram(tmp_path / "grid.npy"), counts.ravel())
    coarse = read_histogram(tmp_path / "grid.npy", (3, 2))
    assert coarse.dtype == np.int64
    expected = [[counts[2 * i : 2 * i + 2, 4 * j : 4 * j + 4].sum() for j in range(2)] for i in range(3)]
    np.testing.assert_array_equal(coarse.reshape(3, 2), expected)
    np.save(tmp_path / "line.npy", np.arange(12, dtype=np.uint8))
    np.testing.assert_array_equal(read_histogram(tmp_path / "line.npy", 4), [3, 12, 21, 30])


@pytest.mark.parametrize(
    ("counts", "shape", "said"),
    [
        ([1, -1], None, "whole numbers that are not negative"),
        ([1.5], None, "whole numbers that are not negative"),
        ([np.nan, 1], None, "whole numbers that are not negative"),
        ([], None, "must hold an array of counts"),
        (["a"], None, "must hold an array of counts"),
        ([1, 2, 3], 2, r"shape must divide the sides of the file \(3,\) without rest, got \(2,\)"),
        ([[1, 2], [3, 4]], 2, "shape must divide"),
    ],
)
def test_other_contents_are_refused(tmp_path, counts, shape, said):
    np.save(tmp_path / "some.npy", np.array(counts))
    with pytest.raises(ValueError, match=said):
        read_histogram(tmp_path / "some.npy", shape)


def test_what_is_no_array_file_is_refused(tmp_path):
    (tmp_path / "text.npy").write_text("1,2,3")
    with pytest.raises(ValueError, match="must be a .npy file of counts"):
        read_histogram(tmp_path / "text.npy")
    np.savez(tmp_path / "several.npz", a=np.ones(3))
    with pytest.raises(ValueError, match="must hold an array of counts"):
        read_histogram(tmp_path / "several.npz")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="must be a .npy file of counts"):
        read_histogram(tmp_path / "objects.npy")
