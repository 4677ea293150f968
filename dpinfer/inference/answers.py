"""Answers to a workload, with their standard deviations and intervals."""

from statistics import NormalDist
from typing import Any, final

from dpinfer import _checks
from dpinfer._pytree import pytree
from dpinfer.queries.base import Array


@final
@pytree
class Answers:
    """Unbiased answers, one for each row of the workload.

    Attributes:
        values: [m].
        stddev: [m], the exact standard deviation of each answer's error over the noise, the cells being fixed. Inside jit,
            infinity marks an answer that the measurement does not determine.
    """

    values: Array
    stddev: Array

    def interval(self, level: float = 0.95, *, method: str = "auto", joint: bool = False) -> tuple[Array, Array]:
        """Lower and upper ends, [m] each, of intervals that cover the true answer with probability about ``level``.

        ``method="normal"`` takes the error as normally distributed: values -+ z stddev. The standard deviation is exact but the
        law is not: for one cell with Laplace noise the 95% interval covers 93.75%, and the more noises an answer adds up the
        nearer it comes. ``"auto"`` is ``"normal"``. Each interval covers by itself, not all of them at once.

        Args:
            level: between 0 and 1.
            method: "auto" or "normal"; "exact" is a ValueError, since the law of a sum of Laplace noises is not there yet.
            joint: must be False; intervals that cover jointly are not there yet.
        """
        _checks.choice("method", method, ("auto", "exact", "normal"))
        if method == "exact":
            raise ValueError("method='exact' needs the law of weighted Laplace sums, which this version lacks; use 'normal'.")
        if joint:
            raise ValueError("joint=True needs the joint law of the answers, which this version lacks; use joint=False.")
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        half = NormalDist().inv_cdf((1 + level) / 2) * self.stddev
        return self.values - half, self.values + half

    def __repr__(self) -> str:
        shape: Any = getattr(self.values, "shape", None)
        return f"Answers(shape={shape})"
