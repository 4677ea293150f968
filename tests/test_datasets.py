"""What ships, what is made up, and histograms from files of the user's own."""

import numpy as np
import pytest

from dpinfer.datasets import (
    GROUP_SHAPES,
    HISTOGRAM_SHAPES,
    plane_flights,
    read_histogram,
    synthetic_groups,
    synthetic_histogram,
)
from dpinfer.mechanisms.group_tables import count_groups


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


@pytest.mark.slow
def test_planes_that_left():
    flights = plane_flights()
    found = count_groups(flights.entities, flights.groups, flights.hierarchy, private_groups=False)
    assert [found.regions.size(level) for level in range(3)] == [1, 3, 35]
    assert found.regions.labels(1) == ["EWR", "JFK", "LGA"]
    assert (found.counts.sum(), found.counts @ found.sizes) == (7945, 334_264)
    assert (found.sizes.max(), found.sizes.min()) == (567, 1)
    assert np.unique(found.sizes).size == 328
    assert flights.licence == "CC0"


@pytest.mark.parametrize("shape", GROUP_SHAPES)
def test_groups_that_are_made_up(shape):
    cells, regions = synthetic_groups(shape, num_groups=100_000, states=3, counties=4, max_size=2000, seed=5)
    assert cells.shape == (12, 2001)
    assert [regions.size(level) for level in range(3)] == [1, 3, 12]
    assert cells.min() >= 0
    assert cells.sum() == 100_000 + (150 if shape == "households" else 0)
    again, _ = synthetic_groups(shape, num_groups=100_000, states=3, counties=4, max_size=2000, seed=5)
    assert (again == cells).all()
    whole = cells.sum(axis=0)
    occurring = (whole > 0).sum()
    if shape == "households":
        # Within 5 standard errors of the census' shares; 50 outliers a state.
        np.testing.assert_allclose(whole[1:7] / 1e5, [0.267, 0.328, 0.161, 0.134, 0.065, 0.026], atol=5 * (0.25 / 1e5) ** 0.5)
        assert 130 < whole[60:].sum() <= 150
    assert occurring < 200 if shape in ("households", "sparse") else occurring > 250
    assert (whole[0] > 80_000) == (shape == "sparse")


def test_what_cannot_be_made_up():
    with pytest.raises(ValueError, match="shape must be one of"):
        synthetic_groups("flats")
    with pytest.raises(ValueError, match="counties must be at least 1"):
        synthetic_groups("taxis", counties=0)
    assert synthetic_groups("households", num_groups=10, states=1, counties=1, max_size=3)[0].shape == (1, 4)


@pytest.mark.parametrize("shape", HISTOGRAM_SHAPES)
def test_histograms_that_are_made_up(shape):
    cells = synthetic_histogram(shape, size=2000, total=500_000, seed=3)
    assert (cells.dtype, cells.shape, cells.sum(), cells.min() >= 0) == (np.int64, (2000,), 500_000, True)
    assert (cells == synthetic_histogram(shape, size=2000, total=500_000, seed=3)).all()
    assert (cells != synthetic_histogram(shape, size=2000, total=500_000, seed=4)).any()
    # How many cells are empty, what the largest hundred hold, and how much of all is a step from one cell to the next.
    empty, largest, steps = (cells == 0).mean(), np.sort(cells)[-100:].sum() / 5e5, np.abs(np.diff(cells)).sum() / 1e6
    if shape == "sparse":
        assert (empty == 0.98, largest == 1, steps > 0.9) == (True, True, True)
    elif shape == "degrees":
        assert empty > 0.4
        assert (np.diff(cells[:15]) < 0).all()
        assert cells[0] / cells[9] == pytest.approx(100, rel=0.2)  # some 3,000 records, with a standard error of 1.8%
    elif shape == "spiky":
        assert cells[::50].mean() > 8 * np.delete(cells, np.s_[::50]).mean()
        assert steps > 0.3
    elif shape == "bursty":
        assert 0.1 < largest < 0.9
        assert steps < 0.15
        rise, fall = np.diff(cells).max(), -np.diff(cells).min()
        assert rise > 2 * fall
    elif shape == "smooth":
        # Little more than what draws of some 250 records differ by, 1.13 standard deviations on average.
        assert steps < 0.6 * 1.2 * (500_000 / 2000) ** -0.5
    else:
        assert empty == 0
        assert 0.1 < steps < 0.25


def test_histograms_of_other_sizes():
    for shape in HISTOGRAM_SHAPES:
        assert [synthetic_histogram(shape, size=size, total=10).sum() for size in (1, 2, 7)] == [10, 10, 10]
        assert synthetic_histogram(shape, size=3, total=0).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="shape must be one of 'sparse', 'degrees'"):
        synthetic_histogram("flat")
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        synthetic_histogram("smooth", size=0)
    with pytest.raises(ValueError, match="total must be at least 0"):
        synthetic_histogram("smooth", total=-1)
