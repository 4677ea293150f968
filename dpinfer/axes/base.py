"""What every axis does: a stated policy for what fits no bin, codes for a column, labels, plain values for files."""

import abc
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpinfer import _checks

if TYPE_CHECKING:
    from dpinfer.axes.categories import CategoryAxis
    from dpinfer.axes.numeric import EdgeAxis, IntegerAxis
    from dpinfer.axes.times import TimeAxis


class Axis(abc.ABC):
    """One attribute of a record and the bins it falls into: :meth:`integers`, :meth:`edges`, :meth:`categories` or :meth:`times`.

    Each axis states, before any record is looked at, what becomes of a null, of a value below the first bin and of one above the
    last: ``"drop"`` leaves the record out, ``"clip"`` (below and above only) counts it in the nearest bin, ``"other"`` counts
    it in one extra public cell after the last bin, which all three may share. Text that cannot be read is a null.
    """

    kind: str

    def __init__(self, null: str, below: str, above: str):
        self.null = _checks.choice("null", null, ("drop", "other"))
        self.below = _checks.choice("below", below, ("drop", "clip", "other"))
        self.above = _checks.choice("above", above, ("drop", "clip", "other"))

    @staticmethod
    def integers(start: int, stop: int, *, null: str = "drop", below: str = "drop", above: str = "drop") -> "IntegerAxis":
        """One bin for each integer from ``start`` to ``stop - 1``. A number that is no integer counts at its floor."""
        from dpinfer.axes.numeric import IntegerAxis

        return IntegerAxis(start, stop, null=null, below=below, above=above)

    @staticmethod
    def edges(edges: Any, *, null: str = "drop", below: str = "drop", above: str = "drop") -> "EdgeAxis":
        """Bins between neighbouring edges: bin i holds ``edges[i] <= value < edges[i + 1]``; the last edge is above all bins.

        Args:
            edges: at least two, increasing. Integers; or exact decimals and fractions, given as text ("0.1", "1/3"), Decimal or
                Fraction. A float that is no whole number is refused: the 0.30000000000000004 that arithmetic makes of 3 * 0.1
                would put 0.3 into the bin before. In the comparison with floating-point values such an edge stands for the
                nearest number of their type, so that 0.3 is on the edge "0.3".
        """
        from dpinfer.axes.numeric import EdgeAxis

        return EdgeAxis(edges, null=null, below=below, above=above)

    @staticmethod
    def categories(labels: Any, *, null: str = "drop", below: str = "drop", above: str = "drop") -> "CategoryAxis":
        """One bin for each label, in the order given. A value that is not listed is above all bins; nothing is below them.

        Args:
            labels: different texts, integers or booleans. Texts match exactly, or without the blanks around them, and numbers by
                the digits they print as; integers match numbers of that value and text that reads as one.
            below, above: "drop" or "other".
        """
        from dpinfer.axes.categories import CategoryAxis

        return CategoryAxis(labels, null=null, below=below, above=above)

    @staticmethod
    def times(start: Any, stop: Any, step: Any, *, null: str = "drop", below: str = "drop", above: str = "drop") -> "TimeAxis":
        """Bins of equal length from ``start`` up to, not including, ``stop``, in naive local time.

        Args:
            start, stop: ISO text such as "2013-01-01" or "2013-01-01T06:30", datetime or numpy datetime64.
            step: text such as "15min" (units s, min, h, d, w), timedelta or numpy timedelta64; must divide stop - start.

        The hour 24:00 is the next day's midnight, as in ISO 8601. A value that carries a time zone is no naive local time
        and counts as a null, and so does a number.
        """
        from dpinfer.axes.times import TimeAxis

        return TimeAxis(start, stop, step, null=null, below=below, above=above)

    @property
    @abc.abstractmethod
    def num_bins(self) -> int:
        """Number of bins, without the extra cell."""

    @property
    def has_other(self) -> bool:
        """Whether there is an extra cell for what fits no bin."""
        return "other" in (self.null, self.below, self.above)

    @property
    def size(self) -> int:
        """Number of cells: the bins, and the extra cell if the policy asks for one."""
        return self.num_bins + self.has_other

    @cached_property
    def labels(self) -> list[str]:
        """What each cell is called."""
        return [*self._bin_labels(), *(["other"] if self.has_other else [])]

    def codes(self, values: Any) -> np.ndarray:
        """The cell of each value, int64; -1 for a record to leave out. Raises for the type of the column, never for a value."""
        number, null = self._read(values)
        below, above = ~null & (number < 0), ~null & (number >= self.num_bins)
        code = np.where(null | below | above, -1, number)
        for outside, policy, nearest in ((null, self.null, -1), (below, self.below, 0), (above, self.above, self.num_bins - 1)):
            if policy != "drop":
                code[outside] = nearest if policy == "clip" else self.num_bins
        return code

    @abc.abstractmethod
    def boundary(self, text: str) -> int:
        """The number of bins before a public boundary given as text, from 0 to ``num_bins``."""

    @abc.abstractmethod
    def _read(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Bin number of each value (int64, anything out of range meaning below or above) and which values are null."""

    @abc.abstractmethod
    def _bin_labels(self) -> list[str]: ...

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The axis as plain values, for files."""

    def _policies(self) -> dict[str, str]:
        return {"null": self.null, "below": self.below, "above": self.above}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "Axis":
        """The axis that :meth:`to_dict` described."""
        rest = dict(fields)
        kinds = {"integers": Axis.integers, "edges": Axis.edges, "categories": Axis.categories, "times": Axis.times}
        kind = _checks.choice("kind", rest.pop("kind", None), tuple(kinds))
        try:
            return kinds[kind](**rest)
        except TypeError as error:
            raise ValueError(f"An axis of kind {kind!r} is described by wrong fields: {error}.") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axis) and repr(self) == repr(other)  # since 1 == True

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Axis({', '.join(f'{k}={v!r}' for k, v in self.to_dict().items())})"
