"""Least squares with cells that are not negative, and exact counts kept.

Minimise (1/2) sum_i (A x - y)_i^2 / stddev_i^2 subject to x >= 0 and C x = d for the rows of standard deviation 0. In units of
the columns' lengths the quadratic form G has ones on its diagonal and bounds keep their sign. The bounds by gradient projection
and conjugate gradients on the free cells (More and Toraldo 1991): a projected step along the gradient chooses which cells are
zero, conjugate gradients solve for the others, and a projected line search accepts what lowers the objective, so that it ends
whatever the strategy. The equations by the method of multipliers, whose penalty begins at ten times the largest eigenvalue of G
and grows tenfold whenever they are not kept and did not come nearer fourfold.
Cells whose sum is known to be 0 are 0 and left out beforehand: no multiplier would be large enough for them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._loops import fori_loop, while_loop
from dpinfer._pytree import pytree
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import as_floats, over_cells, to_device
from dpinfer.inference.iterative_estimate import MAX_STEPS, symmetric_solution
from dpinfer.inference.padded import padding_of
from dpinfer.measurement import Measurement
from dpinfer.queries import Dense, Queries
from dpinfer.queries.base import Array
from dpinfer.release import Release, as_measurement

_MAX_ROUNDS = 500
_MAX_MULTIPLIER_ROUNDS = 40
_MAX_HALVINGS = 30
# Rounds without a smaller residual (which goes up and down on the way), after which rounding is all that is left.
_PATIENCE = 100


@final
@pytree
class NonnegativeEstimate:
    """The cells of least weighted squares among those that are not negative; biased upward where counts are small.

    Attributes:
        cells: [n].
        kkt_residual: how far the optimality conditions are missed: the largest |min(x, gradient)| in units of the columns'
            lengths, over the largest entry of the gradient at 0.
        constraint_residual: [k], by how much each exact count is missed.
        bound_multipliers: [n], how fast the weighted squares would fall if a cell could be negative, in the units of
            ``kkt_residual``; a cell where this is positive is zero in every best fit. Infinite where a sum known to be 0 says so.
        num_steps: rounds of gradient projection and conjugate gradients.
        converged: whether both residuals are at most 1e-8 of their units (1e-3 in 32 bit).
    """

    cells: Array
    kkt_residual: Array
    constraint_residual: Array
    bound_multipliers: Array
    num_steps: Array
    converged: Array

    def answer(self, workload: Any) -> PointAnswers:
        """Sums of the cells; without standard deviations, since the bounds make the errors' law depend on the cells."""
        queries = over_cells(workload, self.cells.shape[0])
        return PointAnswers(jnp.asarray(queries @ self.cells), "nonnegative_least_squares")


def nonnegative_least_squares(measurement: Measurement | Release) -> NonnegativeEstimate:
    """The non-negative cells that fit a measurement best: least squares with x >= 0, exact counts (scale 0) kept.

    Less error than :func:`least_squares` where many cells are small, but biased: on empty cells every error is positive, so that
    sums of many are too large, which a known total (``Measurement.with_exact``) mends. **Ranges of a sparse histogram have more
    error than by least squares**, as with every estimator that shrinks cells one by one; :func:`range_posterior` shrinks them and
    has less.

    Args:
        measurement: of any strategy. An infinite scale leaves a row out.

    Returns:
        A NonnegativeEstimate, with the residuals of the optimality conditions and of each exact count.

    Cost: some tens of rounds, each some tens of products with the strategy and its transpose. Runs under jit, vmap (one problem
    after the other) and grad (the cells that are zero stay zero); which scales are zero must be known outside jit.

    Raises:
        ValueError: if the exact counts contradict each other or the signs, or if it does not converge; inside jit see
            ``converged``.
    """
    measurement = as_measurement(measurement)
    n = measurement.queries.shape[1]
    given = stated(measurement, padded=True)
    estimate = solve(given)
    if given.queries.shape[1] != n:
        cut = [to_device(np.asarray(x)[:n], x.dtype) for x in (estimate.cells, estimate.bound_multipliers)]
        estimate = replace(estimate, cells=cut[0], bound_multipliers=cut[1])
    if _checks.is_concrete(estimate.converged) and not bool(estimate.converged):
        exact = known_rows(measurement)
        rows, known = np.asarray(given.rows), np.asarray(measurement.values)[exact]
        if exact.size and (row := _impossible(rows, known)) is not None:
            says, amount = float(known[row]), float(estimate.constraint_residual[row])
            raise ValueError(
                f"No non-negative cells keep all exact counts: row {exact[row]}, which says {says:g}, is missed by {amount:+g}. "
                "Correct it, or give it a positive scale."
            )
        raise ValueError(
            f"Non-negative least squares did not converge: after {int(estimate.num_steps)} rounds the optimality conditions are "
            f"missed by {float(estimate.kkt_residual):.1e} and exact counts by up to "
            f"{np.abs(np.asarray(estimate.constraint_residual)).max(initial=0.0):.1e}.{_likely_cause(measurement)}"
        )
    return estimate


def _likely_cause(measurement: Measurement) -> str:
    """What to do about it, where that is known."""
    stddev = np.asarray(measurement.stddev)
    stddev = stddev[(stddev > 0) & np.isfinite(stddev)]
    if stddev.size and (ratio := stddev.max() / stddev.min()) > 1e3:
        return f" The noise of some rows is {ratio:.0e} times that of others; leave out the least precise."
    return "" if jnp.result_type(float) == jnp.float64 else " Numbers of 32 bit may be too coarse: dpinfer.enable_x64()."


def _impossible(rows: np.ndarray, known: np.ndarray) -> int | None:
    """The exact count that non-negative cells miss most when they are fitted to nothing else; None if they keep all."""
    weights = 1 / np.maximum(np.abs(rows).max(axis=1), 1e-300)
    values, n = jnp.asarray(known, float), rows.shape[1]
    empty, none = jnp.zeros((0, n), values.dtype), jnp.zeros((0,), jnp.int32)
    alone = solve(Given(Dense(rows), values, 1 / jnp.asarray(weights), empty, none, jnp.ones((n,), values.dtype)))
    missed = np.abs(rows @ np.asarray(alone.cells) - known) * weights
    return int(missed.argmax()) if missed.max() > 1e-6 * np.abs(known * weights).max(initial=1e-300) else None


@pytree
class Problem:
    """Minimise |weights (A x - values)|^2 / 2 over x >= 0 with rows @ x = known, and x = 0 where ``allowed`` is 0 and not 1."""

    queries: Queries
    weights: Array
    values: Array
    rows: Array
    known: Array
    allowed: Array

    def gradient(self, x: jax.Array) -> jax.Array:
        """A' W^2 (A x - values)."""
        residual = self.weights * (jnp.asarray(self.queries._forward(x)) - self.values)
        return jnp.asarray(self.queries._backward(self.weights * residual))

    def gram(self, x: jax.Array) -> jax.Array:
        """A' W^2 A x."""
        return jnp.asarray(self.queries._backward(jnp.square(self.weights) * jnp.asarray(self.queries._forward(x))))

    @property
    def length(self) -> jax.Array:
        """The lengths of the columns of W A, 1 for one of zeros."""
        squares = jnp.asarray(self.queries._column_sums(jnp.square(self.weights), 2))
        return jax.lax.stop_gradient(jnp.sqrt(jnp.where(squares > 0, squares, 1.0)))


class Given(NamedTuple):
    """What poses a problem: a measurement, its rows that are known exactly and which they are, 1 for each cell, 0 for padding."""

    queries: Queries
    values: Array
    stddev: Array
    rows: Array
    exact: Array
    inside: Array

    def problem(self) -> Problem:
        """The problem that non-negative cells solve; to be traced together with what solves it."""
        values, rows = jnp.asarray(self.values), jnp.asarray(self.rows)
        known = values[self.exact]
        stddev = jnp.broadcast_to(jnp.asarray(self.stddev), values.shape).at[self.exact].set(jnp.inf)
        measured = jnp.isfinite(stddev)
        least = jnp.where(measured, stddev, jnp.inf).min(initial=jnp.inf)
        least = jax.lax.stop_gradient(jnp.where(jnp.isfinite(least), least, 1.0))
        weights = jnp.where(measured, least / jnp.where(measured, stddev, 1.0), 0.0)
        # Cells in a sum of what is not negative that is known to be 0.
        is_zero_sum = ((rows >= 0).all(axis=1) | (rows <= 0).all(axis=1)) & (known == 0)
        allowed = jnp.where(((rows != 0) & is_zero_sum[:, None]).any(axis=0), 0.0, self.inside)
        return Problem(self.queries, weights, jnp.where(measured, values, 0.0), rows, known, allowed.astype(values.dtype))


def known_rows(measurement: Measurement) -> np.ndarray:
    """Which rows are known exactly."""
    known = measurement.known_stddev
    return np.flatnonzero(np.broadcast_to(1.0 if known is None else known, measurement.values.shape) == 0)


def stated(measurement: Measurement, *, padded: bool = False) -> Given:
    """The problem of a measurement; with ``padded`` maybe one of more cells, all zero (``inference/padded.py``)."""
    _checks.exact_in_float("values", measurement.values)
    queries, exact = measurement.queries, known_rows(measurement)
    n = queries.shape[1]
    empty = np.zeros((0, n), dtype=np.int64)
    rows = np.concatenate([empty, *(np.asarray(queries.rows(i, i + 1)) for i in exact.tolist())])
    values = as_floats(measurement.values)
    padding = padding_of(queries) if padded and _checks.is_concrete(measurement) else None
    known = measurement.known_stddev
    if padding is None or known is None:
        inside, places = np.ones(n), exact
        entries = (values, measurement.stddev, rows)
    else:
        host = np.asarray(values)
        spread = np.array(np.broadcast_to(known, host.shape), dtype=host.dtype)
        queries, width = padding.queries, padding.queries.shape[1] - n
        inside, places = np.pad(np.ones(n), (0, width)), padding.rows[exact]
        entries = (padding.spread(host, 0.0), padding.spread(spread, np.inf), np.pad(rows, ((0, 0), (0, width))))
    dtype = values.dtype
    values, stddev, rows = (to_device(x, dtype) for x in entries)
    return Given(queries, values, stddev, rows, to_device(places, np.int32), to_device(inside, dtype))


@jax.jit
def solve(given: Given) -> NonnegativeEstimate:
    problem = given.problem()
    x, kkt, missed, bounds, steps = _optimum(problem)
    good = 1e-8 if problem.values.dtype == jnp.float64 else 1e-3
    rows = jnp.abs(problem.rows)
    size = rows @ (jnp.abs(x) + jnp.abs(x).max()) + jnp.abs(problem.known)
    # And what rounding leaves of much larger noisy values, where the exact counts are tiny beside them.
    size = size + 1e-3 * rows.max(axis=1, initial=0.0) * jnp.abs(problem.values).max(initial=0.0)
    converged = (kkt <= good) & jnp.all(jnp.abs(missed) <= good * jnp.max(size, initial=jnp.finfo(x.dtype).tiny))
    return NonnegativeEstimate(x, kkt, missed, bounds, steps, converged)


@jax.custom_jvp
def _optimum(problem: Problem) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """The cells, the residual of the optimality conditions, of each exact count, the multipliers of the bounds, the rounds."""
    leaves, structure = jax.tree.flatten(problem)
    return jax.custom_batching.sequential_vmap(lambda *leaves: _search(jax.tree.unflatten(structure, leaves)))(*leaves)


@_optimum.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    (problem,), (change,) = primals, tangents
    found = x, _, _, _, steps = _optimum(problem)
    zeros = (*(jnp.zeros_like(part) for part in found[1:4]), np.zeros(steps.shape, jax.dtypes.float0))
    return found, (change_of_optimum(problem, x, change), *zeros)


def change_of_optimum(problem: Problem, x: jax.Array, change: Any) -> jax.Array:
    """The derivative of A' W^2 (A x - y) = C' nu on the cells that are not zero, and of C x = d."""
    length = problem.length
    free = jnp.where(x > 0, 1.0, 0.0) / length

    def gram(z: jax.Array) -> jax.Array:
        return free * problem.gram(free * z) + jnp.where(x > 0, 0.0, z)

    def solve(wanted: jax.Array) -> jax.Array:
        return jax.lax.custom_linear_solve(gram, wanted, lambda _, b: symmetric_solution(gram, b), symmetric=True)

    _, moved = jax.jvp(lambda p: p.gradient(x), (problem,), (change,))
    _, missed = jax.jvp(lambda p: p.rows @ x - p.known, (problem,), (change,))
    plain = solve(free * -moved)
    rows = jnp.asarray(problem.rows * free[None, :])
    spread = jax.vmap(solve)(rows)
    multipliers = jnp.linalg.pinv(rows @ spread.T, rtol=1e-10, hermitian=True) @ (missed + rows @ plain)
    return free * (plain - spread.T @ multipliers)


class _State(NamedTuple):
    """Of the method of multipliers: the gradient is that of the Lagrangian, without the penalty."""

    x: jax.Array
    gradient: jax.Array
    multipliers: jax.Array
    kkt: jax.Array
    missed: jax.Array
    penalty: jax.Array
    rounds: jax.Array


def _search(problem: Problem) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    length, dtype = problem.length, problem.values.dtype
    good = 1e-12 if dtype == jnp.float64 else 1e-5
    # In units of the columns' lengths: z = length x, and every row of the constraints of length 1.
    scaled = problem.rows * (problem.allowed / length)[None, :]
    size = jnp.sqrt(jnp.square(scaled).sum(axis=1))
    size = jnp.where(size > 0, size, 1.0)
    constraints, known = scaled / size[:, None], problem.known / size
    pull = jnp.asarray(problem.queries._backward(jnp.square(problem.weights) * problem.values))
    linear = pull * problem.allowed / length
    unit = jnp.maximum(jnp.abs(linear).max(), jnp.finfo(dtype).tiny)
    unit = jnp.maximum(unit, jnp.abs(known).max(initial=0.0))

    def gram(z: jax.Array) -> jax.Array:
        # A cell that must be zero has a row and a column of the identity in place of its own, and nothing pulls at it.
        allowed = jnp.asarray(problem.allowed)
        return allowed * problem.gram(allowed * z / length) / length + (1 - allowed) * z

    def bounds(z: jax.Array, gradient: jax.Array) -> jax.Array:
        return jnp.where(problem.allowed == 1, jnp.where(z > 0, 0.0, gradient / unit), jnp.inf)

    if not constraints.shape[0]:
        z, gradient, kkt, rounds = _bounded(gram, lambda z: gram(z) - linear, jnp.zeros_like(linear), -linear, unit, good)
        return z / length, kkt / unit, jnp.zeros((0,), dtype), bounds(z, gradient), rounds

    def far(z: jax.Array, missed: jax.Array) -> jax.Array:
        """Whether more than rounding is missed: a penalty that grows beyond that leaves nothing but rounding in the gradient."""
        return (jnp.abs(missed) > good * (jnp.abs(constraints) @ z + jnp.abs(known))).any()

    def goes_on(carry: tuple[_State, jax.Array]) -> jax.Array:
        state, turn = carry
        return (far(state.x, state.missed) | (state.kkt > good * unit)) & (turn < _MAX_MULTIPLIER_ROUNDS)

    def turn(carry: tuple[_State, jax.Array]) -> tuple[_State, jax.Array]:
        state, number = carry
        penalty = state.penalty

        def augmented(z: jax.Array) -> jax.Array:
            return gram(z) + penalty * (constraints.T @ (constraints @ z))

        def gradient_at(z: jax.Array) -> jax.Array:
            # One product with the constraints: what rounding adds is then a combination of their rows, which a step can undo, as
            # it could not if the large penalties of z and of what is known were multiplied apart.
            return gram(z) - linear + constraints.T @ (state.multipliers + penalty * (constraints @ z - known))

        slope = state.gradient + penalty * (constraints.T @ state.missed)
        z, gradient, kkt, rounds = _bounded(augmented, gradient_at, state.x, slope, unit, good)
        missed = jnp.asarray(constraints @ z - known)
        multipliers = jnp.asarray(state.multipliers + penalty * missed)
        is_slow = far(z, missed) & (jnp.abs(missed).max() > 0.25 * jnp.abs(state.missed).max())
        penalty = jnp.where(is_slow, 10 * penalty, penalty)
        return _State(z, gradient, multipliers, kkt, missed, penalty, state.rounds + rounds), number + 1

    start = jnp.zeros_like(length)
    infinite = jnp.asarray(jnp.inf, dtype)
    missed = jnp.asarray(constraints @ start - known)
    penalty = 10 * _largest_eigenvalue(gram, length.shape[0], dtype)
    first = _State(start, -linear, jnp.zeros_like(known), infinite, missed, penalty, jnp.zeros((), jnp.int32))
    state, _ = while_loop(goes_on, turn, (first, jnp.zeros((), jnp.int32)))
    return state.x / length, state.kkt / unit, state.missed * size, bounds(state.x, state.gradient), state.rounds


def _largest_eigenvalue(gram: Callable[[jax.Array], jax.Array], size: int, dtype: Any) -> jax.Array:
    """About the largest eigenvalue, by twenty power iterations."""
    start = jnp.ones((size,), dtype) / np.sqrt(size)

    def step(_: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        image = gram(state[0])
        norm = jnp.linalg.norm(image)
        return image / jnp.where(norm > 0, norm, 1.0), norm

    return jnp.maximum(fori_loop(0, 20, step, (start, jnp.ones((), dtype)))[1], 1.0)


def _bounded(
    gram: Callable[[jax.Array], jax.Array],
    gradient_at: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    slope: jax.Array,
    unit: jax.Array,
    good: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The minimiser over z >= 0 of what has the gradient gradient_at(z) = gram(z) - a constant, its gradient, the largest
    |min(z, gradient)|, and the rounds.

    ``slope`` is the gradient at ``start``. Compiling takes a time for each product with the gram matrix in the text below, so
    that none is written twice: both halves of a round are one text.
    """

    def violation(z: jax.Array, gradient: jax.Array) -> jax.Array:
        return jnp.abs(jnp.minimum(z, gradient)).max()

    def line_search(z: jax.Array, gradient: jax.Array, direction: jax.Array) -> jax.Array:
        """Where the projected step, halved until the objective falls in proportion, leads to."""

        def goes_on(state: tuple[Any, ...]) -> jax.Array:
            *_, accepted, count = state
            return ~accepted & (count < _MAX_HALVINGS)

        def attempt(state: tuple[Any, ...]) -> tuple[Any, ...]:
            length, *_, count = state
            step = jnp.maximum(z + length * direction, 0.0) - z
            fall = gradient @ step
            # The change of the objective from the step itself: differences of the objective would lose it to rounding.
            return length / 2, step, fall + 0.5 * step @ gram(step) <= 0.01 * jnp.minimum(fall, 0.0), count + 1

        first = (jnp.ones((), z.dtype), jnp.zeros_like(z), jnp.zeros((), bool), jnp.zeros((), jnp.int32))
        _, step, accepted, _ = while_loop(goes_on, attempt, first)
        return jnp.where(accepted, z + step, z)

    def goes_on(state: tuple[Any, ...]) -> jax.Array:
        *_, residual, _, since, count = state
        return (residual > good * unit) & (count < 2 * _MAX_ROUNDS) & (since < 2 * _PATIENCE)

    def half_round(state: tuple[Any, ...]) -> tuple[Any, ...]:
        z, gradient, residual, best, since, count = state
        # First a single conjugate gradient, that is down the gradient to the least along it, zeros that it pushes further down
        # left alone; then as accurately as the bounds are settled, with all zeros left alone.
        is_first = count % 2 == 0
        free = (z > 0) | (is_first & (gradient < 0))

        def among_free(d: jax.Array) -> jax.Array:
            return jnp.where(free, gram(jnp.where(free, d, 0.0)), 0.0)

        wanted = jnp.where(free, -gradient, 0.0)
        # No further than ends the search: what is left below is rounding, which no step undoes where columns repeat, and
        # conjugate gradients that try take steps without bound.
        enough = jnp.minimum(0.5 * good * unit / jnp.maximum(jnp.linalg.norm(wanted), jnp.finfo(z.dtype).tiny), 1.0)
        direction = symmetric_solution(
            among_free,
            wanted,
            jnp.where(is_first, 0.0, jnp.maximum(jnp.clip(residual / unit, 1e-10, 0.1), enough)),
            max_steps=jnp.where(is_first, 1, MAX_STEPS),
        )
        z = line_search(z, gradient, direction)
        gradient = gradient_at(z)  # afresh: what is added up has rounding errors of its own
        residual = violation(z, gradient)
        since = jnp.where(residual < 0.99 * best, 0, since + 1)
        return z, gradient, residual, jnp.minimum(best, residual), since, count + 1

    first, zero = violation(start, slope), jnp.zeros((), jnp.int32)
    z, gradient, residual, _, _, halves = while_loop(goes_on, half_round, (start, slope, first, first, zero, zero))
    return z, gradient, residual, (halves + 1) // 2
