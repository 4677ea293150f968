"""Workloads by the names that a domain gives its cells."""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from dpinfer.domain import Domain
from dpinfer.queries import Dense, Queries, Ranges

# Entries of a matrix that is written out for sums that are no contiguous ranges of cells.
_MAX_DENSE = 2**27

Box = list[tuple[int, int]]


def named_ranges(domain: Domain, texts: Sequence[str]) -> tuple[list[str], Queries]:
    """Names and queries of sums written as 'NAME=FROM..TO', or 'NAME=AXIS:FROM..TO,AXIS:FROM..TO' over several axes.

    FROM and TO are boundaries of the axis (integers, or times as ISO text), TO excluded; left out, they are the axis' ends. The
    extra cell "other" belongs to no range. An axis that is not named is summed over, its extra cell included.
    """
    parsed = [_parse(domain, text) for text in texts]
    return [name for name, _ in parsed], _sums(domain, [box for _, box in parsed])


def along_axis(domain: Domain, axis: str, every: int, texts: Sequence[str] = ()) -> tuple[list[str], Queries]:
    """Names and queries of one sum for each ``every`` cells of an axis, all other axes summed over; then named ranges."""
    if axis not in domain.axes:
        raise ValueError(f"The domain has no axis {axis!r}; its axes are {', '.join(domain.names)}.")
    parsed = [_parse(domain, text) for text in texts]
    size, place = domain.axes[axis].size, domain.names.index(axis)
    boxes = []
    for start in range(0, size, every):
        box = [(0, n) for n in domain.shape]
        box[place] = (start, min(start + every, size))
        boxes.append(box)
    names = [*domain.axes[axis].labels[::every], *(name for name, _ in parsed)]
    return names, _sums(domain, [*boxes, *(box for _, box in parsed)])


def _parse(domain: Domain, text: str) -> tuple[str, Box]:
    name, equals, rest = text.partition("=")
    if not equals or not name:
        raise ValueError(f"A range must be written 'NAME=FROM..TO', got {text!r}.")
    spans = {axis: (0, domain.axes[axis].size) for axis in domain.names}
    for part in rest.split(","):
        axis, _, ends = part.partition(":")
        if axis not in domain.axes:
            if len(domain.names) > 1:
                raise ValueError(f"{part!r} in {text!r} must begin with one of the axes {', '.join(domain.names)} and a colon.")
            axis, ends = next(iter(domain.axes)), part  # the colon, if any, is one of a time
        first, dots, last = ends.partition("..")
        if not dots:
            raise ValueError(f"{part!r} in {text!r} must be FROM..TO, TO excluded.")
        bins = domain.axes[axis]
        start = bins.boundary(first.strip()) if first.strip() else 0
        stop = bins.boundary(last.strip()) if last.strip() else bins.num_bins
        if start > stop:
            raise ValueError(f"{part!r} in {text!r} ends before it begins.")
        spans[axis] = (start, stop)
    return name, [spans[axis] for axis in domain.names]


def _sums(domain: Domain, boxes: Sequence[Box]) -> Queries:
    """One row a box; ranges where every box is a contiguous run of the flat cells."""
    shape = domain.shape
    lows = np.array([[a for a, _ in box] for box in boxes], dtype=np.int64).reshape(-1, len(shape))
    highs = np.array([[b for _, b in box] for box in boxes], dtype=np.int64).reshape(-1, len(shape))
    count = (highs - lows).prod(axis=1)
    strides = np.cumprod((1, *shape[:0:-1]))[::-1]
    first, last = lows @ strides, (highs - 1) @ strides
    first, stops = np.where(count > 0, first, 0), np.where(count > 0, last + 1, 0)
    if np.array_equal(stops - first, count):
        return Ranges(domain.size, first, stops)
    if len(boxes) * domain.size > _MAX_DENSE:
        raise ValueError(
            f"{len(boxes)} sums over {domain.size:,} cells are too many to be written out as a matrix; ask for fewer."
        )
    rows = [
        [((a <= np.arange(n)) & (np.arange(n) < b)).astype(np.int64) for (a, b), n in zip(box, shape, strict=True)]
        for box in boxes
    ]
    return Dense(np.array([reduce(np.kron, row) for row in rows]))
