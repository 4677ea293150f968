"""Axes of labels."""

import datetime
import uuid
from numbers import Integral
from typing import Any, final

import numpy as np

from dpinfer.axes.base import Axis
from dpinfer.axes.column import NULL_WORDS, as_text, column, object_column
from dpinfer.axes.numeric import number


@final
class CategoryAxis(Axis):
    """See :meth:`Axis.categories`."""

    kind = "categories"

    def __init__(self, labels: Any, *, null: str = "drop", below: str = "drop", above: str = "drop"):
        super().__init__(null, below, above)
        for name, policy in (("below", below), ("above", above)):
            if policy == "clip":
                raise ValueError(f"{name} must be 'drop' or 'other', got 'clip': categories have no nearest one.")
        if isinstance(labels, str) or not hasattr(labels, "__iter__"):
            raise ValueError(f"labels must be a list of categories, got {labels!r}.")
        self.values = [value.item() if isinstance(value, np.generic) else value for value in labels]
        self._is_text = all(isinstance(value, str) for value in self.values)
        is_boolean = all(isinstance(value, bool) for value in self.values)
        is_integer = all(isinstance(value, Integral) and not isinstance(value, bool) for value in self.values)
        if not self.values or not (self._is_text or is_boolean or is_integer):
            raise ValueError(f"labels must be at least one category, all texts, all integers or all booleans, got {labels!r}.")
        self._places = {value: place for place, value in enumerate(self.values)}
        if len(self._places) < len(self.values):
            twice = next(value for place, value in enumerate(self.values) if self._places[value] != place)
            raise ValueError(f"labels must all be different, got {twice!r} more than once.")
        if self._is_text and any(not value.strip() for value in self.values):
            raise ValueError("labels must not be blank: a field without text is a null, which null= is for.")
        if self.has_other and "other" in self._places:
            raise ValueError("labels must not hold 'other', which is what the extra cell for null or unlisted values is called.")

    @property
    def num_bins(self) -> int:
        return len(self.values)

    def boundary(self, text: str) -> int:
        names = self._bin_labels()
        if text not in names:
            raise ValueError(
                f"{text!r} must be one of the categories {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}."
            )
        return names.index(text)

    def _bin_labels(self) -> list[str]:
        return [str(value) for value in self.values]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "labels": self.values, **self._policies()}

    def _read(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        array, null = column(values)
        if array.dtype.kind not in "biufOSU":
            raise ValueError(f"An axis of categories reads text, numbers or booleans, got a column of dtype {array.dtype}.")
        place = self._place_of_text if self._is_text else self._place_of_number
        # Each distinct value is read once, but objects, which need not be comparable nor hashable, one by one.
        if array.dtype.kind != "O":
            distinct, index = np.unique(array, return_inverse=True)
            places = np.array([place(value) for value in distinct], dtype=np.int64)[index.reshape(-1)]
        else:
            places = np.array([place(value) for value in array.tolist()], dtype=np.int64)
        return np.where(places == _NULL, 0, places), null | (places == _NULL)

    def _place_of_text(self, value: Any) -> int:
        spellings = _spellings(value)
        for text in spellings:
            if text in self._places:
                return self._places[text]
        return _NULL if not spellings or spellings[-1].lower() in NULL_WORDS else self.num_bins

    def _place_of_number(self, value: Any) -> int:
        found = number(value)
        return _NULL if found is None else self._places.get(found, self.num_bins)


_NULL = -2
_MAX_PRINTED = 10**400


def key_texts(values: Any) -> np.ndarray:
    """Each value of a column as the text by which it is told from others; None for a null.

    The same for 12, 12.0, "12", "12.0" and " 12 ", and for True, "True" and "true". "NA" is a name like any other.
    """
    array, null = column(values)
    if array.dtype.kind not in "biufOSU":
        raise ValueError(f"Names are text, numbers or booleans, got a column of dtype {array.dtype}.")
    if array.dtype.kind == "O":
        texts = object_column(key_text(value) for value in array.tolist())
    else:
        distinct, index = np.unique(array, return_inverse=True)
        texts = object_column(key_text(value) for value in distinct.tolist())[index.reshape(-1)]
    texts[null] = None
    return texts


def key_text(value: Any) -> str | None:
    """As :func:`key_texts`, of one value."""
    spellings = _spellings(value)
    text = spellings[0].strip() if spellings else ""
    whole, point, rest = text.partition(".")
    if point and not rest.strip("0") and whole.removeprefix("-").isdecimal():
        return whole
    return text.lower().title() if text.lower() in ("true", "false") else text or None


def _spellings(value: Any) -> list[str]:
    """The texts that a value may be listed as; none if it is null or nothing that has a text."""
    if isinstance(value, (float, np.floating)):
        value = value + 0.0  # -0.0 is 0.0, as it is where distinct values are told apart
    try:
        return _texts_of(as_text(value))
    except Exception:  # a value's own methods may raise anything; whatever it says must not be seen
        return []


def _texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        text = value.strip()
        # Writers do not agree on how true is spelled.
        return [value, *([text.title(), text.lower()] if text.lower() in ("true", "false") else []), text]
    if isinstance(value, (bool, np.bool_)):
        return [str(bool(value)), str(bool(value)).lower()]
    if isinstance(value, uuid.UUID):
        return [str(value)]
    if isinstance(value, (datetime.date, datetime.time)):
        return [value.isoformat()]  # but for pandas.NaT, which is a date, and then it is not
    found = number(value)
    if found is None:
        return []
    if abs(found) >= _MAX_PRINTED:
        return ["more digits than any label"]
    whole = [str(int(found))] if isinstance(found, int) or found.is_integer() else []
    return [*whole, *([] if isinstance(value, (int, np.integer)) else [str(value)])]
