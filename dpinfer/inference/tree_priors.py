"""What is known of cells that are traced, before they are measured, and what counts say of them; as in ``lattice_laws``."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer.inference.cell_priors import CellPrior

# Gauss and Legendre's points and weights between 0 and 1.
_NODES, _WEIGHTS = (0.5 - 0.15**0.5, 0.5, 0.5 + 0.15**0.5), (5 / 18, 8 / 18, 5 / 18)
# Integers at which a prior of NumPy is looked up.
_TABLE = 1 << 18


class Known(NamedTuple):
    """A prior as a static argument: what a CellPrior is made of."""

    density: Callable[..., Any]
    lower: float
    integers: bool

    @property
    def is_flat(self) -> bool:
        return self.density is np.zeros_like and self.lower == -np.inf

    @property
    def is_traceable(self) -> bool:
        """Whether JAX can take the log density apart; of one that is 0 everywhere it need not."""
        if self.density is np.zeros_like:
            return True
        try:
            jax.eval_shape(self.density, jax.ShapeDtypeStruct((2, 3), np.float64))
        except TypeError:  # those of tracers that are taken for numbers among them
            return False
        return True

    @property
    def _first(self) -> int:
        """The first integer of the table."""
        return int(np.ceil(self.lower)) if np.isfinite(self.lower) else -_TABLE // 2

    def log_density(self) -> Callable[[jax.Array], jax.Array]:
        """The log density of cells that are traced."""
        found = self._unbounded()

        def bounded(cells: jax.Array) -> jax.Array:
            if np.isneginf(self.lower):
                return found(cells)
            return jnp.where(cells < self.lower, -jnp.inf, found(jnp.maximum(cells, self.lower)))

        return bounded

    def _unbounded(self) -> Callable[[jax.Array], jax.Array]:
        if self.density is np.zeros_like:
            return jnp.zeros_like
        if self.is_traceable:
            return self._traced
        if not self.integers:
            raise ValueError(
                "prior must have a log density of JAX arrays under jit and vmap, where cells are not known beforehand (jax.numpy "
                "and jax.scipy in place of numpy and scipy); one of integers may be NumPy's."
            )
        first = self._first
        cells = np.arange(first, first + _TABLE, dtype=np.float64)
        table = jnp.asarray(CellPrior(self.density, self.lower, True).at(cells))
        return lambda cells: table[jnp.clip(cells - first, 0, _TABLE - 1).astype(jnp.int64)]

    def _traced(self, cells: jax.Array) -> jax.Array:
        found = jnp.asarray(self.density(cells), dtype=cells.dtype)
        if found.shape != cells.shape:
            raise ValueError(
                f"prior must give a log density for each of its argument's entries, {list(cells.shape)}, got {list(found.shape)}."
            )
        return found

    def is_held(self, reach: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Whether the table, if there is one, holds all cells between these."""
        if not self.integers or self.is_traceable:
            return jnp.array(True)
        is_below = jnp.array(False) if np.isfinite(self.lower) else reach[0] < self._first
        return ~is_below & (reach[1] < self._first + _TABLE)


def hat_log_weights(
    prior: Callable[[jax.Array], jax.Array],
    lower: float,
    values: jax.Array,
    scale: jax.Array,
    base: jax.Array,
    step: jax.Array,
    places: jax.Array,
) -> jax.Array:
    """``lattice_laws.log_weights`` of cells that are not integers; all but ``places``, [cells, points], are [cells, 1]."""
    # Of each interval behind a point the parts that go to either end.
    begin = base + step * jnp.concatenate([places[:, :1] - 1, places], axis=1)
    cut = jnp.clip((lower - begin) / step, 0.0, 1.0)
    largest, parts = jnp.full(begin.shape, -jnp.inf, begin.dtype), []
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        u = cut + (1 - cut) * node
        x = begin + step * u
        parts.append((prior(x) - jnp.abs(values - x) / scale, weight * (1 - cut), u))
        largest = jnp.maximum(largest, parts[-1][0])
    shift = jnp.where(jnp.isfinite(largest), largest, 0.0)
    shift = jnp.maximum(shift[:, 1:], shift[:, :-1])
    total = jnp.zeros(shift.shape, begin.dtype)
    for log, weight, u in parts:
        total += jnp.exp(log[:, 1:] - shift) * (weight * (1 - u))[:, 1:]
        total += jnp.exp(log[:, :-1] - shift) * (weight * u)[:, :-1]
    return jnp.log(total) + shift


def hat_log_likelihood(off: jax.Array, scale: jax.Array, step: jax.Array) -> jax.Array:
    """``lattice_laws.log_likelihood`` with a step, which is between the next ``off`` [counts, points]; ``scale`` [counts, 1]."""

    # F'' = exp(-|s| / b) for F = b^2 exp(-|s| / b) + b |s|.
    def twice(s: jax.Array) -> jax.Array:
        return scale * scale * jnp.expm1(-jnp.abs(s) / scale) + scale * jnp.abs(s)

    found = -jnp.abs(off) / scale + 2 * jnp.log(2 * scale / step * jnp.sinh(step / (2 * scale)))
    # At the points next to 0, two at most, hats hold the kink.
    before = jnp.floor(-off[:, :1] / step)
    place = jnp.arange(off.shape[1], dtype=off.dtype)[None, :]
    for k in (before, before + 1):
        s = off[:, :1] + step * k
        bent = (twice(s + step) - 2 * twice(s) + twice(s - step)) / step**2
        found = jnp.where((place == k) & (jnp.abs(s) < step), jnp.log(bent), found)
    return found
