"""Workloads by the names that a domain gives its cells, and workloads drawn at random."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from dpinfer import _checks
from dpinfer.domain import Domain
from dpinfer.queries import Boxes, Identity, Kronecker, Queries, Ranges, Total, VStack

Box = list[tuple[int, int]]


def named_ranges(domain: Domain, texts: Sequence[str]) -> tuple[list[str], Queries]:
    """Names and queries of sums written as 'NAME=FROM..TO', or 'NAME=AXIS:FROM..TO,AXIS:FROM..TO' over several axes.

    FROM and TO are boundaries of the axis (integers, edges, categories, or times as ISO text), TO excluded; left out, they are
    the axis' ends. In place of FROM..TO there may be the label of one cell. The extra cell "other" belongs to no range but has
    its label. An axis that is not named is summed over, its extra cell included.
    """
    parsed = [_parse(domain, text) for text in texts]
    return [name for name, _ in parsed], _sums(domain, [box for _, box in parsed])


def along_axis(domain: Domain, axis: str, every: int, texts: Sequence[str] = ()) -> tuple[list[str], Queries]:
    """Names and queries of one sum for each ``every`` cells of an axis, all other axes summed over; then named ranges."""
    size, place = _axis_size(domain, axis), list(domain.names).index(axis)
    parsed = [_parse(domain, text) for text in texts]
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
        bins = domain.axes[axis]
        if not dots:
            if ends not in bins.labels:
                raise ValueError(f"{part!r} in {text!r} must be FROM..TO, TO excluded, or the label of one cell.")
            spans[axis] = (bins.labels.index(ends), bins.labels.index(ends) + 1)
            continue
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
    return Boxes(shape, lows, np.maximum(lows, highs))


def product(domain: Domain, parts: Mapping[str, Queries]) -> Queries:
    """Every combination of queries of single axes: ``parts`` by the name of the axis, an axis not named being summed over.

    Rows in C order of the domain's axes, as those of a Kronecker product.
    """
    for name, part in parts.items():
        size = _axis_size(domain, name)
        if not isinstance(part, Queries) or part.shape[1] != size:
            raise ValueError(f"The queries of axis {name!r} must be over its {size} cells, got {part!r}.")
    return Kronecker([parts.get(name, Total(axis.size)) for name, axis in domain.axes.items()])


def marginals(domain: Domain, *axes: Sequence[str]) -> Queries:
    """The table of counts by each list of axis names in turn, all other axes summed over; an empty list is the total.

    ``marginals(domain, ["age"], ["age", "sex"])`` has the rows of the table by age, then those by age and sex, each in C order
    of the domain's axes (not of the list).
    """
    if not axes:
        raise ValueError("marginals needs at least one list of axis names.")
    for names in axes:
        if isinstance(names, str):
            raise ValueError(f"Give each marginal as a list of axis names, [{names!r}] and not {names!r}.")
    tables = [product(domain, {name: Identity(_axis_size(domain, name)) for name in names}) for names in axes]
    return tables[0] if len(tables) == 1 else VStack(tables)


def random_ranges(n: int, num_ranges: int, *, key: jax.Array, size: int | None = None) -> Ranges:
    """Ranges of n cells drawn with replacement, each of the n (n + 1) / 2 as likely; with ``size``, each of those of that size.

    Args:
        n: cells.
        num_ranges: how many.
        key: a typed key; the same key draws the same ranges.
        size: cells in each range.
    """
    boxes = random_boxes((n,), num_ranges, key=key, sizes=None if size is None else (size,))
    return Ranges(n, boxes.starts[:, 0], boxes.stops[:, 0])


def random_boxes(shape: Sequence[int], num_boxes: int, *, key: jax.Array, sizes: Sequence[int] | None = None) -> Boxes:
    """Boxes of a grid drawn with replacement, each as likely as any other; with ``sizes``, as any other of those sides.

    Args:
        shape: cells along each axis.
        num_boxes: how many.
        key: a typed key.
        sizes: cells along each axis of every box.
    """
    shape = _checks.grid("shape", shape)
    num_boxes = _checks.integer("num_boxes", num_boxes, least=0)
    _checks.typed_key(key)
    # The key seeds numpy, whose integers are 64 bit whatever JAX's setting.
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    cells = np.array(shape, dtype=np.int64)
    if sizes is not None:
        sides = _checks.grid("sizes", sizes)
        if len(sides) != len(shape) or any(side > n for side, n in zip(sides, shape, strict=True)):
            raise ValueError(f"sizes must be at most {shape}, one for each axis, got {tuple(sides)}.")
        starts = rng.integers(0, cells - np.array(sides, dtype=np.int64) + 1, (num_boxes, len(shape)))
        return Boxes(shape, starts, starts + sides)
    # Two different ones of the n + 1 boundaries of an axis, in either order, are a range of it.
    first = rng.integers(0, cells + 1, (num_boxes, len(shape)))
    second = rng.integers(0, cells, (num_boxes, len(shape)))
    second = second + (second >= first)
    return Boxes(shape, np.minimum(first, second), np.maximum(first, second))


def _axis_size(domain: Domain, name: str) -> int:
    if name not in domain.axes:
        raise ValueError(f"The domain has no axis {name!r}; its axes are {', '.join(domain.names)}.")
    return domain.axes[name].size
