"""The law of the errors of linear answers: known coefficients times the independent noises of a measurement."""

from collections.abc import Iterator
from functools import partial
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._pytree import pytree
from dpinfer.inference.condense import alike, tail_quantile
from dpinfer.inference.lattice import discrete_half_widths
from dpinfer.measurement import Measurement
from dpinfer.queries import Queries, Tree
from dpinfer.queries.base import Array

# Coefficients that are held at once, and how many "auto" is ready to work out.
_COEFFICIENTS_AT_ONCE = 1 << 24
_MAX_COEFFICIENTS = 1 << 26


@pytree
class ErrorLaw:
    """The errors of least squares answers to ``workload``: K z, with the noises z of ``measurement`` and K = W (A' S A)^-1 A' S.

    Each error is a sum of independent noises of known scales, so that quantiles of its size can be computed and not only
    bounded.

    Attributes:
        measurement: what the estimate was made from; its values play no part.
        workload: the answers, one a row.
    """

    measurement: Measurement
    workload: Queries

    @property
    def is_known(self) -> bool:
        """Whether quantiles can be computed for this noise."""
        return self.measurement.noise != "discrete_gaussian"

    @property
    def is_affordable(self) -> bool:
        """Whether few enough coefficients are needed for ``method="auto"``."""
        return (
            self.measurement.noise == "gaussian"
            or self.workload.shape[0] * self.measurement.queries.shape[0] <= _MAX_COEFFICIENTS
        )

    def coefficients(self) -> Iterator[np.ndarray]:
        """K in blocks of rows, [k, number of measured rows]."""
        num_answers, size = self.workload.shape[0], max(1, _COEFFICIENTS_AT_ONCE // self.measurement.queries.shape[0])
        for start in range(0, num_answers, size):
            rows = jnp.asarray(self.workload.rows(start, min(start + size, num_answers)), self.dtype)
            # Compiled, nobody could see which scales are zero: exact counts that no tree keeps take the slower way.
            has_exact = bool(np.any(np.asarray(self.measurement.scale) == 0)) and not isinstance(self.measurement.queries, Tree)
            yield np.asarray((_coefficients if has_exact else _compiled_coefficients)(self.measurement, rows))

    @property
    def dtype(self) -> Any:
        return jnp.zeros(()).dtype

    def half_widths(self, level: float, stddev: Array) -> np.ndarray:
        """For each answer the least h with P(|error| <= h) >= ``level``, [m]; ``stddev`` are the errors' standard deviations."""
        noise = self.measurement.noise
        if noise == "gaussian":
            return NormalDist().inv_cdf((1 + level) / 2) * np.asarray(stddev)
        scale = np.where(np.isfinite(self.measurement.scale), self.measurement.scale, 0.0)
        widths = [np.zeros(0)]
        for block in self.coefficients():
            scales = np.broadcast_to(scale, block.shape[1:])
            first, kind = alike(np.abs(block), scales)
            rows = np.abs(block[first])
            if noise == "laplace":
                found = tail_quantile(rows * scales, np.log((1 - level) / 2))
            else:
                found = discrete_half_widths(rows, scales, level)
            widths.append(found[kind])
        return np.concatenate(widths)

    def simultaneous_half_widths(self, unit: Array, level: float, *, key: jax.Array, num_draws: int) -> np.ndarray:
        """Half-widths proportional to ``unit``, [m], that hold all errors at once with probability at least ``level``.

        The largest error in these units is drawn ``num_draws`` times and the ceil((num_draws + 1) level)-th smallest taken. The
        true errors' largest is one more independent draw of the same law, equally likely to have any rank among them: over noise
        and draws together the coverage is at least ``level`` exactly, and at most 1/(num_draws + 1) more if there are no ties.
        """
        rank = int(np.ceil((num_draws + 1) * level))
        if rank > num_draws:
            raise ValueError(
                f"num_draws must be at least {int(np.ceil(level / (1 - level)))} for level {level}, got {num_draws}."
            )
        unit = np.asarray(unit)
        divisor = np.where(unit > 0, unit, 1.0)
        blocks = list(self.coefficients())
        size = max(1, _COEFFICIENTS_AT_ONCE // self.measurement.queries.shape[0])
        largest = []
        for number, start in enumerate(range(0, num_draws, size)):
            draws = min(size, num_draws - start)
            noises = np.asarray(draw_noise(jax.random.fold_in(key, number), self.measurement, draws))
            errors = np.concatenate([noises @ block.T for block in blocks], axis=1)
            largest.append((np.abs(errors) / divisor).max(axis=1, initial=0.0))
        return np.partition(np.concatenate(largest), rank - 1)[rank - 1] * unit


def _coefficients(measurement: Measurement, rows: jax.Array) -> jax.Array:
    """``rows`` @ d cells / d values, [k, number of measured rows]: a pass backwards through the solver for each row."""
    from dpinfer.inference.least_squares import least_squares  # which builds on this module

    def cells(values: jax.Array) -> jax.Array:
        return jnp.asarray(least_squares(Measurement(measurement.queries, values, measurement.noise, measurement.scale)).cells)

    _, pull_back = jax.vjp(cells, jnp.zeros(measurement.values.shape, rows.dtype))
    return jax.vmap(lambda row: pull_back(row)[0])(rows)


_compiled_coefficients = jax.jit(_coefficients)


@partial(jax.jit, static_argnames="num_draws")
def draw_noise(key: jax.Array, measurement: Measurement, num_draws: int) -> jax.Array:
    """Noises of every measured row, [num_draws, rows], in floating point; 0 where nothing was measured."""
    scale = jnp.asarray(measurement.scale)
    scale = jnp.broadcast_to(jnp.where(jnp.isfinite(scale), scale, 0.0), measurement.values.shape)[None, :]
    shape = (num_draws, scale.shape[1])
    if measurement.noise in ("gaussian", "discrete_gaussian"):
        return scale * jax.random.normal(key, shape, scale.dtype)
    if measurement.noise == "laplace":
        return scale * jax.random.laplace(key, shape, scale.dtype)
    first, second = jax.random.exponential(key, (2, *shape), scale.dtype)
    return jnp.floor(first * scale) - jnp.floor(second * scale)
