"""Least squares for any strategy by conjugate gradients: products with the strategy and its transpose, and nothing else.

With B = diag(1/stddev) A D^(-1/2), D the diagonal of A' diag(1/stddev^2) A, the cells are D^(-1/2) times the shortest minimiser
of |B z - y/stddev|. The variance of an answer w is the squared length of the shortest u with B'u = D^(-1/2) w, which is another
problem of the same kind; the answer is determined if that u exists. Conjugate gradients on the normal equations in the form
that keeps the residual (CGLS: Hestenes and Stiefel 1952, section 10; Bjorck 1996, section 7.4) start from zero and so find
the shortest. Columns of equal length, and values and noise only ever in relation to each other, make the steps independent of
the units.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._loops import while_loop
from dpinfer._pytree import pytree
from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate, joined, root, row_blocks
from dpinfer.measurement import Measurement
from dpinfer.queries import Queries
from dpinfer.queries.base import Array

MAX_STEPS = 5000
# Steps without a gradient a tenth shorter than any before, after which rounding is all that is left.
_PATIENCE = 300


class Solution(NamedTuple):
    """Where conjugate gradients ended: the vector, its residual, the steps taken, |gradient| over that at the start."""

    vector: jax.Array
    residual: jax.Array
    num_steps: jax.Array
    gradient: jax.Array


def conjugate_gradients(
    forward: Callable[[jax.Array], jax.Array],
    adjoint: Callable[[jax.Array], jax.Array],
    wanted: jax.Array,
    *,
    tolerance: float,
) -> Solution:
    """The shortest minimiser of |forward(x) - wanted| for each row of ``wanted``, [k, length].

    Stops once the gradient's length has fallen to ``tolerance`` of what it was, or no longer falls: after 300 steps without a
    new low.
    """
    start = adjoint(wanted)
    first = jnp.square(start).sum(axis=-1)
    live = first > 0

    def goes_on(state: tuple[Any, ...]) -> jax.Array:
        *_, gamma, _, since, step = state
        return (live & (gamma > first * tolerance**2) & (since < _PATIENCE)).any() & (step < MAX_STEPS)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        x, residual, direction, gamma, lowest, since, count = state
        going = live & (gamma > first * tolerance**2) & (since < _PATIENCE)
        image = forward(direction)
        length = jnp.square(image).sum(axis=-1)
        alpha = jnp.where(going & (length > 0), gamma / jnp.where(length > 0, length, 1.0), 0.0)[:, None]
        x, residual = x + alpha * direction, residual - alpha * image
        gradient = adjoint(residual)
        new = jnp.where(going, jnp.square(gradient).sum(axis=-1), gamma)
        beta = jnp.where(going, new / jnp.where(gamma > 0, gamma, 1.0), 0.0)[:, None]
        direction = jnp.where(going[:, None], gradient + beta * direction, direction)
        since = jnp.where(new < 0.9 * lowest, 0, since + going)
        return x, residual, direction, new, jnp.minimum(lowest, new), since, count + 1

    zero = jnp.zeros_like(start)
    counts = jnp.zeros(first.shape, jnp.int32)
    x, residual, _, gamma, _, _, steps = while_loop(
        goes_on, step, (zero, wanted, start, first, first, counts, jnp.zeros((), jnp.int32))
    )
    return Solution(x, residual, steps, jnp.sqrt(gamma / jnp.where(live, first, 1.0)))


@pytree
class _Scaled:
    """B = diag(weights) A / length, and its transpose; rows of vectors in, rows of vectors out."""

    queries: Queries
    weights: Array
    length: Array

    def forward(self, z: jax.Array) -> jax.Array:
        return jnp.asarray(self.queries._forward(z / self.length)) * self.weights

    def adjoint(self, u: jax.Array) -> jax.Array:
        return jnp.asarray(self.queries._backward(u * self.weights)) / self.length


def _scaled(queries: Queries, weights: jax.Array) -> _Scaled:
    squares = jnp.asarray(queries._column_sums(jnp.square(weights), 2))
    length = jax.lax.stop_gradient(jnp.sqrt(jnp.where(squares > 0, squares, 1.0)))
    return _Scaled(queries, weights[None, :], length[None, :])


@jax.custom_jvp
def weighted_solution(queries: Queries, weights: jax.Array, values: jax.Array) -> Solution:
    """The cells x, [n], that minimise sum_i weights_i^2 (A x - values)_i^2, the shortest such in units of the columns' lengths.

    Differentiable in all of its arguments by the derivative of A' W^2 (values - A x) = 0, whose linear system is solved in the
    same way.
    """
    scaled = _scaled(queries, weights)
    tolerance = float(jnp.finfo(values.dtype).eps) * 64
    found = conjugate_gradients(scaled.forward, scaled.adjoint, (weights * values)[None, :], tolerance=tolerance)
    return Solution((found.vector / scaled.length)[0], found.residual[0], found.num_steps, found.gradient[0])


@weighted_solution.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Solution, Solution]:
    found = weighted_solution(*primals)
    queries, weights, _ = primals

    def gradient(queries: Queries, weights: jax.Array, values: jax.Array) -> jax.Array:
        residual = weights * (values - jnp.asarray(queries._forward(found.vector)))
        return jnp.asarray(queries._backward(weights * residual))

    _, change = jax.jvp(gradient, primals, tangents)
    scaled = _scaled(queries, weights)

    def gram(x: jax.Array) -> jax.Array:
        return scaled.adjoint(scaled.forward(x[None, :]))[0]

    def solve(_: Any, wanted: jax.Array) -> jax.Array:
        return symmetric_solution(gram, wanted)

    change = change / scaled.length[0]
    vector = jax.lax.custom_linear_solve(gram, change, solve, symmetric=True) / scaled.length[0]
    zeros = [np.zeros(found.num_steps.shape, jax.dtypes.float0), jnp.zeros_like(found.gradient)]
    return found, Solution(vector, jnp.zeros_like(found.residual), *zeros)


def symmetric_solution(
    gram: Callable[[jax.Array], jax.Array], wanted: jax.Array, accuracy: Any = None, *, max_steps: Any = MAX_STEPS
) -> jax.Array:
    """About the shortest solution of a positive semi-definite system, by conjugate gradients.

    Until the residual's length is ``accuracy`` of what it was (left out: some rounding errors of it), or no longer falls.
    """
    accuracy = float(jnp.finfo(wanted.dtype).eps) * 64 if accuracy is None else accuracy
    first = wanted @ wanted

    def goes_on(state: tuple[Any, ...]) -> jax.Array:
        *_, gamma, curvature, _, since, count = state
        return (gamma > first * accuracy**2) & (curvature > 0) & (since < _PATIENCE) & (count < max_steps)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        x, residual, direction, gamma, _, lowest, since, count = state
        image = gram(direction)
        curvature = direction @ image
        alpha = jnp.where(curvature > 0, gamma / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        x, residual = x + alpha * direction, residual - alpha * image
        new = residual @ residual
        direction = residual + new / gamma * direction
        since = jnp.where(new < 0.9 * lowest, 0, since + 1)
        return x, residual, direction, new, curvature, jnp.minimum(lowest, new), since, count + 1

    one, zero = jnp.ones((), wanted.dtype), jnp.zeros((), jnp.int32)
    return while_loop(goes_on, step, (jnp.zeros_like(wanted), wanted, wanted, first, one, first, zero, zero))[0]


@final
@pytree
class IterativeEstimate(LinearEstimate):
    """The least squares estimate by conjugate gradients; standard deviations by a solution for each answer.

    Attributes:
        queries: A.
        solution: [n], the cells; what the measurement does not determine is filled in with the smallest that agree.
        weights: [m], the least standard deviation over each row's own; 0: not measured.
        least: the least standard deviation.
        num_steps: of conjugate gradients.
        residual: the length of A' diag(1/stddev^2) (y - A x), in units of the columns' lengths, over what it is at x = 0.
        converged: whether the residual is at most 4e-10 (7e-5 in 32 bit).
    """

    queries: Queries
    solution: Array
    weights: Array
    least: Array
    num_steps: Array
    residual: Array
    converged: Array
    measurement: Measurement | None = None

    def _answer(self, workload: Queries) -> Answers:
        weights, dtype = jnp.asarray(self.weights), self.solution.dtype
        blocks = row_blocks(workload, max(self.queries.shape), dtype)
        stddev = joined([_stddev_of_rows(self.queries, weights, rows) for rows in blocks], dtype)
        lost = int(np.isnan(np.asarray(stddev)).sum()) if _checks.is_concrete(stddev) else 0
        if lost:
            raise ValueError(
                f"The standard deviations of {lost} answers did not converge in {MAX_STEPS} steps: the noise of the rows differs "
                "by too much. Leave out the rows of least precision, or measure more evenly."
            )
        return Answers(jnp.asarray(workload @ self.cells), self.least * stddev)

    def _covariance(self, workload: Queries) -> Array:
        self.answer(workload)  # raises for what is not determined
        weights = jnp.asarray(self.weights)
        blocks = row_blocks(workload, max(self.queries.shape), self.solution.dtype)
        found = [_combinations(self.queries, weights, rows)[0] for rows in blocks]
        combinations = jnp.concatenate([*found, jnp.zeros((0, self.queries.shape[0]), self.solution.dtype)])
        return jnp.square(self.least) * combinations @ combinations.T


@jax.jit
def _combinations(queries: Queries, weights: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each row of cell weights the shortest combination u of measurements of variance 1 that adds up to it, [k, m].

    And 0 for each; infinity where there is none, nan where none was found and none excluded.
    """
    scaled = _scaled(queries, weights)
    wanted = rows / scaled.length
    eps = float(jnp.finfo(rows.dtype).eps)
    found = conjugate_gradients(scaled.adjoint, scaled.forward, wanted, tolerance=64 * eps)
    # In units of the cells: an imprecise cell is long in those of its column.
    size = jnp.sqrt(jnp.square(rows).sum(axis=1))
    rest = jnp.sqrt(jnp.square(found.residual * scaled.length).sum(axis=1))
    is_sure = found.gradient <= eps**0.6
    is_reached = rest <= eps**0.5 * size
    return found.vector, jnp.where(is_reached, 0.0, jnp.where(is_sure, jnp.inf, jnp.nan))


@jax.jit
def _stddev_of_rows(queries: Queries, weights: jax.Array, rows: jax.Array) -> jax.Array:
    """In units of the least of the measurement; infinite where not determined, nan where neither is certain."""
    variance, penalty = _variances(queries, weights, rows)
    return root(variance) + penalty


@jax.custom_jvp
def _variances(queries: Queries, weights: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The variance of each row of cell weights in units of the least, and what :func:`_combinations` adds, [k] each."""
    combination, penalty = _combinations(queries, weights, rows)
    return jnp.square(combination).sum(axis=1), penalty


@_variances.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The variance is the largest 2 w'x - |diag(weights) A x|^2 over x, so that x may be held where it is the largest."""
    queries, weights, rows = primals
    combination, penalty = _combinations(*primals)
    scaled = _scaled(queries, weights)
    tolerance = 64 * float(jnp.finfo(rows.dtype).eps)
    x = conjugate_gradients(scaled.forward, scaled.adjoint, combination, tolerance=tolerance).vector / scaled.length
    x = jnp.where((penalty == 0)[:, None], x, 0.0)

    def held(queries: Queries, weights: jax.Array, rows: jax.Array) -> jax.Array:
        answers = jnp.asarray(queries._forward(x)) * weights[None, :]
        return 2 * (rows * x).sum(axis=1) - jnp.square(answers).sum(axis=1)

    _, change = jax.jvp(held, primals, tangents)
    return (jnp.square(combination).sum(axis=1), penalty), (change, jnp.zeros_like(penalty))


@jax.jit
def solve_iteratively(queries: Queries, values: jax.Array, stddev: jax.Array) -> IterativeEstimate:
    """The estimate of any strategy; the work of one step is one product with it and one with its transpose."""
    stddev = jnp.broadcast_to(stddev, values.shape)
    measured = jnp.isfinite(stddev)
    least = jnp.where(measured, stddev, jnp.inf).min()
    least = jax.lax.stop_gradient(jnp.where(jnp.isfinite(least), least, 1.0))
    weights = jnp.where(measured, least / jnp.where(measured, stddev, 1.0), 0.0)
    found = weighted_solution(queries, weights, jnp.where(measured, values, 0.0))
    converged = found.gradient <= jnp.finfo(values.dtype).eps ** 0.6
    return IterativeEstimate(queries, found.vector, weights, least, found.num_steps, found.gradient, converged)
