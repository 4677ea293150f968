"""The likelihood of a measurement: the log density of its noisy values as a function of the cells."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.inference.estimate import as_floats
from dpinfer.inference.iterative_estimate import symmetric_solution
from dpinfer.inference.nonnegative import Problem, known_rows, stated
from dpinfer.measurement import Measurement
from dpinfer.queries import Queries
from dpinfer.queries.base import Array

# An exact count is a normal observation while sampling, with this share of the standard deviation that the noisy ones leave it:
# narrow enough to be as good as exact once the draws are corrected, and wide enough for a sampler to move.
_SOFTNESS = 0.05
# From this sigma on the masses of a discrete normal law add up to its integral, to the last bit.
_SUM_BELOW, _TERMS = 2.0, 24


@pytree
class Observed:
    """Noisy values, and what they say of cells.

    Attributes:
        queries: m queries of n cells.
        values: [m].
        rate: [m], 1 / scale; 0 for a row that was not measured, or is exact.
        pull: [m], 1 / standard deviation of the normal observation that stands in for an exact count, else 0; None if none is.
        allowed: [n], 0 for a cell in a sum that is known to be 0, else 1; None if none is.
        constant: what the log likelihood has besides the distances.
        noise: the law.
    """

    queries: Queries
    values: Array
    rate: Array
    pull: Array | None
    allowed: Array | None
    constant: Array
    noise: str = static()

    def possible(self, cells: jax.Array) -> jax.Array:
        """The cells with those that are known to be 0 at 0."""
        return cells if self.allowed is None else cells * jnp.asarray(self.allowed)

    def units(self, cells: jax.Array) -> jax.Array:
        """What is missed of each value, in units of its scale; of exact counts of what stands in for it, [m]."""
        missed = self.values - jnp.asarray(self.queries._forward(cells))
        return jnp.asarray(missed * (jnp.asarray(self.rate) + (0.0 if self.pull is None else jnp.asarray(self.pull))))

    def log_likelihood(self, cells: jax.Array, *, smooth: bool = False) -> jax.Array:
        """Log density of the values, given possible cells. Cost: one product with the queries.

        Discrete laws are continued between the whole numbers by their own formulas. With ``smooth``, the kink of a Laplace law is
        rounded to a hyperbola of the same Fisher information, whose second derivative there is 1 / scale^2.
        """
        missed = self.values - jnp.asarray(self.queries._forward(cells))
        units = jnp.asarray(self.rate) * missed
        if "gaussian" in self.noise:
            total = 0.5 * (units @ units)
        elif smooth:
            total = (jnp.sqrt(1 + units * units) - 1).sum()
        else:
            total = jnp.abs(units).sum()
        if self.pull is not None:
            pulled = jnp.asarray(self.pull) * missed
            total = total + 0.5 * (pulled @ pulled)
        return jnp.asarray(self.constant - total)


def observed(measurement: Measurement) -> Observed:
    """The likelihood of a measurement, its rows of scale 0 as exact counts; which these are must be known outside jit."""
    values = as_floats(measurement.values)
    scale = jnp.broadcast_to(jnp.asarray(measurement.scale, values.dtype), values.shape)
    exact = known_rows(measurement)
    rate = jnp.where(jnp.isfinite(scale), 1 / jnp.where(jnp.isfinite(scale), scale, 1.0), 0.0)
    pull = allowed = None
    if exact.size:
        given = stated(measurement)
        spread = np.broadcast_to(np.asarray(measurement.known_stddev), values.shape)
        least = spread[(spread > 0) & np.isfinite(spread)].min(initial=np.inf)
        least = least if np.isfinite(least) else 1.0
        widths, allowed = _left_open(given.problem(), least)
        rate = rate.at[exact].set(0.0)
        is_open = jnp.asarray(measurement.queries._column_sums(jnp.square(rate), 2)) <= 0
        is_told = ~((given.rows != 0) & is_open[None, :]).any(axis=1)
        # Where a cell of a row was not measured, its own size is all there is to go by.
        widths = jnp.where(is_told, widths, jnp.maximum(jnp.abs(values[exact]), least))
        pull = jnp.zeros_like(values).at[exact].set(1 / (_SOFTNESS * widths))
        allowed = None if _checks.is_concrete(allowed) and bool((allowed == 1).all()) else allowed
    constant = _log_peaks(measurement.noise, rate).sum()
    if pull is not None:
        constant = constant + _log_peaks("gaussian", pull).sum()
    return Observed(measurement.queries, values, rate, pull, allowed, constant, measurement.noise)


def information(observed: Observed) -> jax.Array:
    """What the rows say of each cell by itself, [n]: the diagonal of A' diag(1 / scale^2) A."""
    weight = jnp.square(jnp.asarray(observed.rate))
    if observed.pull is not None:
        weight = weight + jnp.square(jnp.asarray(observed.pull))
    return jnp.asarray(observed.queries._column_sums(weight, 2))


@jax.jit
def _left_open(problem: Problem, least: Any) -> tuple[jax.Array, jax.Array]:
    """The standard deviation in which the noisy rows leave each exact count, [k], and which cells are allowed to be more than 0.

    By least squares, or as if each cell had its own information and no more, whichever is less. ``least`` is the least noise's
    standard deviation, the problem's unit.
    """
    length = problem.length
    scaled = jnp.asarray(problem.rows) * jnp.asarray(problem.allowed)[None, :] / length[None, :]

    def gram(z: jax.Array) -> jax.Array:
        # A trace of independent information about every cell, without which some sums would be left open altogether.
        return problem.gram(z / length) / length + 1e-6 * z

    solved = jax.lax.map(lambda row: symmetric_solution(gram, row, 1e-3), scaled)
    by_rows = jnp.sum(scaled * solved, axis=1)
    width = jnp.sqrt(jnp.minimum(by_rows, jnp.square(scaled).sum(axis=1)))
    return least * jnp.where(width > 0, width, 1.0), jnp.asarray(problem.allowed)


def _log_peaks(noise: str, rate: jax.Array) -> jax.Array:
    """The log density of each noise at 0, [m]; 0 where there is none."""
    some = jnp.where(rate > 0, rate, 1.0)
    if noise == "laplace":
        peak = jnp.log(some / 2)
    elif noise == "discrete_laplace":
        peak = jnp.log(jnp.tanh(some / 2))
    else:
        peak = jnp.log(some) - np.log(2 * np.pi) / 2
        if noise == "discrete_gaussian":
            squares = np.arange(1.0, _TERMS) ** 2
            short = jnp.maximum(some, 1 / _SUM_BELOW)
            masses = jnp.exp(-0.5 * jnp.square(short)[:, None] * jnp.asarray(squares, rate.dtype)[None, :]).sum(axis=1)
            peak = jnp.where(some > 1 / _SUM_BELOW, -jnp.log1p(2 * masses), peak)
    return jnp.where(rate > 0, peak, 0.0)


@jax.jit
def corrected(draws: jax.Array, rows: Any, known: Any) -> jax.Array:
    """Draws of the cells, [num_draws, n], moved to where they keep the exact counts: rows @ cells = known.

    Cells move as they depend on the counts over the draws, by linear regression, which for normal draws is exact (Matheron's
    rule); where no draw has a negative cell, by factors whose logarithms are in these proportions, which keep signs.
    """
    rows, known = jnp.asarray(rows, draws.dtype), jnp.asarray(known, draws.dtype)
    mean = draws.mean(axis=0)
    cells_off = draws - mean[None, :]
    counts_off = cells_off @ rows.T
    moves = (cells_off.T @ counts_off) @ jnp.linalg.pinv(counts_off.T @ counts_off, rtol=1e-10, hermitian=True)
    relative = moves / jnp.where(mean > 0, mean, 1.0)[:, None]

    def raked_by(relative: jax.Array, cells: jax.Array) -> jax.Array:
        def step(_: Any, amounts: jax.Array) -> jax.Array:
            raked = cells * jnp.exp(relative @ amounts)
            change = jnp.linalg.pinv(rows @ (raked[:, None] * relative), rtol=1e-10) @ (known - rows @ raked)
            return amounts + change / jnp.maximum(1.0, jnp.abs(relative @ change).max())

        return cells * jnp.exp(relative @ jax.lax.fori_loop(0, 20, step, jnp.zeros_like(known)))

    def rake(cells: jax.Array) -> jax.Array:
        return raked_by(rows.T, raked_by(relative, cells))  # the second where the first does not come to an end, far in the tails

    is_positive = (draws >= 0).all()
    return jax.lax.map(
        lambda cells: jax.lax.cond(is_positive, rake, lambda cells: cells + moves @ (known - rows @ cells), cells), draws
    )
