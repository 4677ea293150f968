"""Smoothing against values computed otherwise, and regions against Xiao et al.'s example and a search from cell to cell."""

import numpy as np
import pytest

from dpinfer.inference import grow_regions, smoothed_cells

CELLS = np.array([10, 21, 37, 20, 0, 0, 53, 0, 0])


def test_smoothed_cells_have_known_values():
    # Of 3 x 3 cells, first row, by convolution with the whole mask of sum 1.
    for boundary, iterations, row in (
        ("zero", 1, [9.630070043462409, 17.17267914557452, 24.67604975246198]),
        ("nearest", 1, [11.88499072398987, 19.466044385670212, 31.53662990221828]),
        ("nearest", 10, [17.012989691015516, 16.443421671248903, 16.263037416940257]),
        ("reflect", 5, [15.840808441104166, 17.125751921841655, 20.27405097123733]),
        ("mirror", 5, [14.038650136342577, 12.857504607113215, 12.76871568308913]),
        ("wrap", 10, [16.05997152694988, 15.634358059639482, 15.752731603487938]),
    ):
        found = smoothed_cells(CELLS, (3, 3), iterations=iterations, boundary=boundary)
        np.testing.assert_allclose(found[:3], row, atol=1e-9)
    # The mask in two dimensions, and what is left of independent noise inside: 0.41221, 0.07967.
    impulse = np.zeros((41, 41))
    impulse[20, 20] = 1
    one = smoothed_cells(impulse.ravel(), (41, 41), iterations=1).reshape(41, 41)
    np.testing.assert_allclose(one[19:22, 19], [0.0113437366, 0.0838195058, 0.0113437366], atol=1e-9)
    assert (one**2).sum() == pytest.approx(0.41221, abs=1e-5)
    assert (smoothed_cells(impulse.ravel(), (41, 41)) ** 2).sum() == pytest.approx(0.07966974575803926, rel=1e-9)
    assert smoothed_cells(CELLS, (3, 3), iterations=0).tolist() == CELLS.tolist()
    # The median of each three in a row; one dimension, and four.
    assert smoothed_cells([5, 1, 9, 2, 2], 5, method="median", iterations=1).tolist() == [5, 5, 2, 2, 2]
    assert smoothed_cells(np.arange(16.0), (2, 2, 2, 2)).sum() == pytest.approx(120)


def test_the_papers_regions():
    # Partition P of their figure, {1, 2, 4}, {3}, {5, 6, 8, 9}, {7}, for thresholds above 11 and up to 16.
    for threshold, distance, expected in (
        (10, 1, [[1], [2], [3], [4], [5, 6, 8, 9], [7]]),
        (11, 1, [[1, 4], [2], [3], [5, 6, 8, 9], [7]]),
        (11.5, 1, [[1, 2, 4], [3], [5, 6, 8, 9], [7]]),
        (16, 1, [[1, 2, 4], [3], [5, 6, 8, 9], [7]]),
        (20, 1, [[1, 2, 3, 4], [5, 6, 8, 9], [7]]),
        (34, 1, [[1, 2, 3, 4, 5, 6, 7, 8, 9]]),
        (1, 2**0.5, [[1], [2], [3], [4], [5, 6, 8, 9], [7]]),
        (6, 2**0.5, [[1], [2, 4], [3], [5, 6, 8, 9], [7]]),
    ):
        labels = grow_regions(CELLS, (3, 3), threshold=threshold, distance=distance)
        assert [(np.flatnonzero(labels == k) + 1).tolist() for k in range(labels.max() + 1)] == expected


def searched(grid, threshold, distance):
    """Regions by a search from each cell that has none, to cells nearby that are alike."""
    labels, places = np.full(grid.shape, -1), list(np.ndindex(grid.shape))
    for start in places:
        if labels[start] < 0:
            labels[start], open_cells = labels.max() + 1, [start]
            while open_cells:
                here = open_cells.pop()
                for there in places:
                    is_near = np.square(np.subtract(here, there)).sum() <= distance**2 + 1e-9
                    if labels[there] < 0 and is_near and abs(grid[here] - grid[there]) < threshold:
                        labels[there] = labels[start]
                        open_cells.append(there)
    return labels.ravel()


@pytest.mark.parametrize("shape", [(12,), (4, 5), (2, 3, 4), (1,), (1, 6)])
@pytest.mark.parametrize("distance", [1, 1.5, 2.3])
def test_regions_are_what_hangs_together(shape, distance):
    rng = np.random.default_rng(3)
    for threshold in (0.5, 3, 8):
        grid = rng.integers(0, 20, shape).astype(float)
        found = grow_regions(grid.ravel(), shape, threshold=threshold, distance=distance)
        assert found.tolist() == searched(grid, threshold, distance).tolist()
        coarser = grow_regions(grid.ravel(), shape, threshold=threshold + 2, distance=distance)
        assert len(set(zip(found.tolist(), coarser.tolist(), strict=True))) == found.max() + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: smoothed_cells([1, 2], 3), r"values must be a vector of the 3 cells of shape \(3,\), got \[2\]"),
        (lambda: smoothed_cells([1, np.nan], 2), "values must be finite"),
        (lambda: smoothed_cells([1], 1, method="mean"), "method must be one of 'gaussian', 'median'"),
        (lambda: smoothed_cells([1], 1, boundary="none"), "boundary must be one of"),
        (lambda: smoothed_cells([1], 1, iterations=-1), "iterations must be at least 0"),
        (lambda: grow_regions([1], 1, threshold=0), "threshold must be positive"),
        (lambda: grow_regions([1], 1, threshold=1, distance=0.5), "distance must be at least 1, got 0.5"),
        (lambda: grow_regions([1], (0,), threshold=1), "shape must be at least 1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
