"""Answers to a workload, with their standard deviations and intervals."""

from statistics import NormalDist
from typing import Any, final

import jax

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.inference.error_law import ErrorLaw
from dpinfer.queries.base import Array


@final
@pytree
class Answers:
    """Unbiased answers, one for each row of the workload.

    Attributes:
        values: [m].
        stddev: [m], the exact standard deviation of each answer's error over the noise, the cells being fixed. Inside jit,
            infinity marks an answer that the measurement does not determine.
        error: the law of the errors, which intervals are computed from; None inside jit and vmap.
    """

    values: Array
    stddev: Array
    error: ErrorLaw | None = None

    def interval(
        self,
        level: float = 0.95,
        *,
        method: str = "auto",
        joint: bool = False,
        key: jax.Array | None = None,
        num_draws: int = 4000,
    ) -> tuple[Array, Array]:
        """Lower and upper ends, [m] each, of intervals that cover the true answers with probability ``level``.

        The error of an answer is a sum of the measurement's independent noises with known coefficients. ``method="exact"`` takes
        the quantiles of that sum itself: for Laplace noise by inverting its law (``noise/contour.py``) to rounding; for discrete
        Laplace noise so that the coverage is at least ``level``, and no more than the sum's steps make necessary
        (``inference/lattice.py``); for Gaussian noise the sum is normal. ``method="normal"`` takes values -+ z stddev for any
        noise: for one cell with Laplace noise its 95% interval covers 93.75%, and 99.9% only 99.1%; the more noises an answer
        adds up the nearer it comes. ``"auto"`` is exact, except for discrete Gaussian noise, inside jit, and where more than
        6e7 coefficients would have to be found (answers times measured rows), where it is normal.

        Args:
            level: between 0 and 1.
            method: "auto", "exact" or "normal".
            joint: whether all intervals are to cover at once with probability ``level``: each is then given the level
                1 - (1 - level) / m (Bonferroni); with a ``key``, these are shrunk by one factor for all, found from simulated
                noise, to a coverage of ``level`` on average over the draws: by much where answers have much in common.
            key: a typed key for ``joint=True``.
            num_draws: simulated releases for ``key``.

        Cost: exact intervals take a pass through the solver for each answer to find its coefficients, O(measured rows), and
            some 400 operations for each coefficient that matters.

        Raises:
            ValueError: if the level, the method or their combination is not possible.
        """
        _checks.choice("method", method, ("auto", "exact", "normal"))
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        if not joint and key is not None:
            raise ValueError("key is for joint=True: single intervals need no simulation.")
        half = self._half_widths(level, self._resolve(method), joint=joint, key=key, num_draws=num_draws)
        return self.values - half, self.values + half

    @property
    def auto_method(self) -> str:
        """Which of "exact" and "normal" ``method="auto"`` is for these answers."""
        return self._resolve("auto")

    def _resolve(self, method: str) -> str:
        if method == "normal":
            return method
        if self.error is None or not _checks.is_concrete(self):
            if method == "exact":
                raise ValueError(
                    "method='exact' finds quantiles outside jit and vmap only: take the intervals of answers that came out, "
                    "or use method='normal'."
                )
            return "normal"
        if method == "exact" and not self.error.is_known:
            raise ValueError(
                "method='exact' does not know sums of discrete Gaussian noises; they are normal but for rounding: use 'normal'."
            )
        return "exact" if method == "exact" or (self.error.is_known and self.error.is_affordable) else "normal"

    def _half_widths(self, level: float, method: str, *, joint: bool, key: jax.Array | None, num_draws: int) -> Array:
        if not joint:
            return self._single_half_widths(level, method)
        each = 1 - (1 - level) / max(1, self.values.shape[0])
        is_normal = self.error is not None and self.error.measurement.noise in ("gaussian", "discrete_gaussian")
        if key is not None:
            if self.error is None:
                raise ValueError("joint intervals by simulation are made outside jit and vmap only.")
            num_draws = _checks.integer("num_draws", num_draws, least=1)
            # In units of single intervals, so that answers of heavier tails do not widen those of lighter ones.
            unit = self._single_half_widths(each, method)
            return self.error.simultaneous_half_widths(unit, level, key=key, num_draws=num_draws)
        if method == "normal" and not is_normal:
            raise ValueError(
                "joint intervals need the exact law: in the tails that they reach to, a normal law is far too light. Use "
                "method='exact' outside jit, or give a key."
            )
        return self._single_half_widths(each, method)

    def _single_half_widths(self, level: float, method: str) -> Array:
        if method == "exact" and self.error is not None:
            return self.error.half_widths(level, self.stddev)
        return NormalDist().inv_cdf((1 + level) / 2) * self.stddev

    def __repr__(self) -> str:
        shape: Any = getattr(self.values, "shape", None)
        return f"Answers(shape={shape})"


@final
@pytree
class NormalAnswers:
    """Answers of a posterior that is taken to be normal: means and standard deviations under the prior, not over the noise alone.

    Attributes:
        values: [m], posterior means.
        stddev: [m], posterior standard deviations.
    """

    values: Array
    stddev: Array

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper ends, [m] each: values -+ z stddev."""
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        half = NormalDist().inv_cdf((1 + level) / 2) * self.stddev
        return self.values - half, self.values + half


@final
@pytree
class PointAnswers:
    """Answers of an estimate whose errors have no exact law: values without standard deviations.

    Attributes:
        values: [m].
        estimator: the name of what they come from.
    """

    values: Array
    estimator: str = static()

    def _refuse(self, what: str) -> ValueError:
        return ValueError(
            f"{self.estimator} gives no {what}: its errors depend on the true cells. Take the {what} of least_squares, which is "
            "unbiased."
        )

    @property
    def stddev(self) -> Array:
        """Refused by a ValueError."""
        raise self._refuse("standard deviations")

    def interval(self, *args: Any, **kwargs: Any) -> tuple[Array, Array]:
        """Refused by a ValueError."""
        raise self._refuse("intervals")
