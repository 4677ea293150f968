"""Estimated counts of areas, and what any query says of them, with standard deviations and intervals.

The intervals cover the noise that was added, and nothing else: not the editing and imputation before it, nor the census itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, final

import numpy as np

from dpinfer.spine.classes import Classes
from dpinfer.spine.schema import Query


@final
@dataclass(frozen=True)
class AreaAnswers:
    """Unbiased answers with their standard deviations over the noise, the counts being fixed.

    Attributes:
        values: [areas, answers].
        stddev: [areas, answers].
    """

    values: np.ndarray
    stddev: np.ndarray

    def interval(self, level: float = 0.95, *, joint: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends: values -+ z stddev, since sums of Gaussian noises are normal, of discrete ones nearly.

        With ``joint=True`` all intervals of these answers cover at once with probability ``level`` or more (Bonferroni).

        Raises:
            ValueError: if the level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        tail = (1 - level) / (2 * max(1, self.values.size if joint else 1))
        half = -NormalDist().inv_cdf(tail) * self.stddev
        return self.values - half, self.values + half


@final
@dataclass(frozen=True)
class Areas:
    """Estimates of all cells of some areas, and their exact covariances.

    Attributes:
        names: [areas].
        classes: the coordinates.
        mean: [areas, dense, columns], in these coordinates.
        covariance: [areas, classes, dense, dense].
    """

    names: np.ndarray
    classes: Classes
    mean: np.ndarray
    covariance: np.ndarray

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        return f"Areas({len(self)} of {self.classes.schema!r})"

    @cached_property
    def counts(self) -> np.ndarray:
        """Estimates of every cell, [areas, cells], in C order of the schema's attributes."""
        return self.classes.unrotate(self.mean)

    def answer(self, query: Query | str) -> AreaAnswers:
        """Answers to a query, measured or not, of these areas.

        Args:
            query: a query of the schema, or its name.

        Cost: O(areas * cells).
        """
        query = self.classes.schema.query(query)
        variances = self.classes.variances(query, self.covariance)
        return AreaAnswers(query.answer(self.counts), np.sqrt(np.maximum(variances, 0.0)))

    def table(self, queries: Iterable[Query | str], level: float = 0.95) -> dict[str, np.ndarray]:
        """One row an area and answer: area, query, a column of labels an attribute, value, stddev, lower, upper.

        pandas, polars, pyarrow and DuckDB take the columns as they are. Intervals are single ones.
        """
        schema = self.classes.schema
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS[:2] + schema.names + _COLUMNS[2:]}
        for one in queries:
            query = schema.query(one)
            answers = self.answer(query)
            ends = answers.interval(level)
            found = {
                "area": np.repeat(self.names, query.size),
                "query": np.full(len(self) * query.size, query.name, dtype=object),
            }
            found |= {name: np.tile(labels, len(self)) for name, labels in schema.answer_labels(query).items()}
            found |= dict(zip(_COLUMNS[2:], (x.reshape(-1) for x in (answers.values, answers.stddev, *ends)), strict=True))
            for name, column in found.items():
                columns[name].append(column)
        return {name: np.concatenate(parts) if parts else np.array([]) for name, parts in columns.items()}

    @staticmethod
    def join(parts: Sequence["Areas"]) -> "Areas":
        """All areas of several, one after the other."""
        fields = ([getattr(part, name) for part in parts] for name in ("names", "mean", "covariance"))
        names, mean, covariance = (np.concatenate(field) for field in fields)
        return Areas(names, parts[0].classes, mean, covariance)


_COLUMNS = ("area", "query", "value", "stddev", "lower", "upper")
