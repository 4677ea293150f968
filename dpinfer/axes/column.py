"""Columns of whatever came, value by value, and the words that mean that nothing came."""

from collections.abc import Iterable
from typing import Any

import numpy as np

# Compared in lower case.
NULL_WORDS = frozenset(("", "na", "n/a", "nan", "nat", "none", "null"))


def column(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """A column as an array, and its mask if it is a masked array."""
    array = values if isinstance(values, np.ndarray) else object_column(values)
    if array.dtype.kind == "T":  # numpy's text of any length
        array = array.astype(object)
    if isinstance(array, np.ma.MaskedArray):
        return array.data, np.ma.getmaskarray(array)
    return array, np.zeros(array.shape, dtype=bool)


def object_column(values: Iterable[Any]) -> np.ndarray:
    """A column of whatever came, one by one: a common dtype would let one record change how all the others are read."""
    values = list(values)
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def as_text(value: Any) -> Any:
    """Bytes as text; anything else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
