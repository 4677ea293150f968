"""The most even cells among the non-negative ones that fit a measurement best.

Non-negative least squares decides the answers m = A x, which are the same for all best fits, and the cells that are zero in each
of them. Of the fits that are left the one of largest entropy has the form x = u exp(A'l): an exponential family whose sufficient
statistics are the measured queries, here found by Newton's method on its dual, sum_j x_j - m'l, whose Hessian is A diag(x) A'.
Multiplicative weights (Hardt, Ligett and McSherry 2012), entropic mirror descent and graphical models (McKenna, Sheldon and
Miklau 2019) that start from a uniform table stay in this family as well, and end here if they are run to the end.
"""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._loops import while_loop
from dpinfer._pytree import pytree
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import over_cells
from dpinfer.inference.iterative_estimate import symmetric_solution
from dpinfer.inference.nonnegative import Given, Problem, change_of_optimum, nonnegative_least_squares, stated
from dpinfer.measurement import Measurement
from dpinfer.queries.base import Array
from dpinfer.release import Release, as_measurement

_MAX_ROUNDS = 300
_MAX_HALVINGS = 60
# Rounds without a residual a tenth smaller than any before, after which rounding is all that is left.
_PATIENCE = 10


@final
@pytree
class MaximumEntropyEstimate:
    """The cells of largest entropy among the non-negative ones that fit best; biased as those of non-negative least squares.

    Attributes:
        cells: [n].
        kkt_residual: of the best fit, as in ``NonnegativeEstimate``.
        fit_residual: the largest difference between the measured queries of the cells and those of the best fit, over the largest
            of the latter.
        constraint_residual: [k], by how much each exact count is missed.
        num_steps: Newton steps.
        converged: whether the fit has converged and ``fit_residual`` is at most 1e-8 (1e-3 in 32 bit).
        is_determined: whether the measurement determines the total, without which there is no largest entropy.
    """

    cells: Array
    kkt_residual: Array
    fit_residual: Array
    constraint_residual: Array
    num_steps: Array
    converged: Array
    is_determined: Array

    def answer(self, workload: Any) -> PointAnswers:
        """Sums of the cells; without standard deviations, since the bounds make the errors' law depend on the cells."""
        queries = over_cells(workload, self.cells.shape[0])
        return PointAnswers(jnp.asarray(queries @ self.cells), "maximum_entropy")


def maximum_entropy(measurement: Measurement | Release) -> MaximumEntropyEstimate:
    """The non-negative cells of largest entropy among those that fit a measurement best, exact counts (scale 0) kept.

    Maximises -sum_j x_j log x_j over the minimisers of sum_i (A x - y)_i^2 / stddev_i^2 with x >= 0. It fills in what the
    measurement leaves open by as little as can be assumed: from the marginals of two axes alone, their independent table. Where
    the measurement determines every cell it is :func:`nonnegative_least_squares`. It is what multiplicative weights converge to
    (``inference/maximum_entropy.py``).

    Args:
        measurement: of any strategy that determines the total; else add it, ``Measurement.with_exact(Total(n), [total])``. An
            infinite scale leaves a row out.

    Cost: non-negative least squares, and some tens of Newton steps, each some tens of products with the strategy and its
    transpose. Runs under jit, vmap (one problem after the other) and grad (the cells that are zero stay zero); which scales are
    zero must be known outside jit.

    Raises:
        ValueError: as :func:`nonnegative_least_squares` does, or if the total is not determined; inside jit see ``converged`` and
            ``is_determined``.
    """
    measurement = as_measurement(measurement)
    fit = nonnegative_least_squares(measurement)
    estimate = _solve(stated(measurement), fit.cells, fit.bound_multipliers, fit.kkt_residual, fit.converged)
    if _checks.is_concrete(estimate.converged):
        if not bool(estimate.is_determined):
            raise ValueError(
                f"The measurement of {measurement.queries!r} does not determine the total, without which no cells have the "
                "largest entropy. Measure it, or add a public one: measurement.with_exact(queries.Total(n), [total])."
            )
        if not bool(estimate.converged):
            raise ValueError(
                f"Maximum entropy did not converge: after {int(estimate.num_steps)} steps the measured queries are "
                f"{float(estimate.fit_residual):.1e} of the largest away from their best fit."
            )
    return estimate


@jax.jit
def _solve(
    given: Given, fit: jax.Array, multipliers: jax.Array, kkt: jax.Array, fit_converged: jax.Array
) -> MaximumEntropyEstimate:
    problem = given.problem()
    good = 1e-8 if fit.dtype == jnp.float64 else 1e-3
    family = _Family(problem, jnp.where((fit > 0) | (multipliers <= jnp.maximum(good, 1e3 * kkt)), 1.0, 0.0))
    x, missed, is_determined, steps = _most_even(family, jax.lax.stop_gradient(fit))
    constraint_residual = problem.rows @ x - problem.known
    return MaximumEntropyEstimate(
        x, kkt, missed, constraint_residual, steps, fit_converged & is_determined & (missed <= good), is_determined
    )


@pytree
class _Family:
    """Cells u exp(A'l), zero where ``allowed`` is 0 and not 1; A are the rows that were measured and the exact ones."""

    problem: Problem
    allowed: Array

    def forward(self, x: jax.Array) -> jax.Array:
        measured = jnp.where(self.problem.weights > 0, jnp.asarray(self.problem.queries._forward(x)), 0.0)
        return jnp.concatenate([measured, x @ jnp.asarray(self.problem.rows).T], axis=-1)

    def backward(self, y: jax.Array) -> jax.Array:
        m = self.problem.weights.shape[0]
        measured = jnp.where(self.problem.weights > 0, y[..., :m], 0.0)
        return jnp.asarray(self.problem.queries._backward(measured)) + y[..., m:] @ jnp.asarray(self.problem.rows)


@jax.custom_jvp
def _most_even(family: _Family, fit: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The cells, by how much their answers miss the fit's, whether the total is determined, and the steps it took."""
    x, _, missed, is_determined, steps = _found(family, fit)
    return x, missed, is_determined, steps


def _found(family: _Family, fit: jax.Array) -> Any:
    leaves, structure = jax.tree.flatten((family, fit))
    return jax.custom_batching.sequential_vmap(lambda *leaves: _search(*jax.tree.unflatten(structure, leaves)))(*leaves)


@_most_even.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The answers move as those of the best fit do, A dx = A dz, and the cells within the family: dx = x (dA'l + A'dl)."""
    family, fit = primals
    x, dual, *rest = _found(family, fit)
    moved = change_of_optimum(family.problem, x, tangents[0].problem)
    _, tilt = jax.jvp(lambda f: f.backward(dual), (family,), (tangents[0],))
    unit = _row_unit(family.forward(x))

    def hessian(step: jax.Array) -> jax.Array:
        return unit * family.forward(x * family.backward(unit * step))

    wanted = unit * family.forward(moved - x * tilt)
    step = jax.lax.custom_linear_solve(hessian, wanted, lambda _, b: symmetric_solution(hessian, b), symmetric=True)
    dx = x * (tilt + family.backward(unit * step))
    missed, is_determined, steps = rest
    zeros = jnp.zeros_like(missed), *(np.zeros(y.shape, jax.dtypes.float0) for y in (is_determined, steps))
    return (x, *rest), (dx, *zeros)


def _row_unit(answers: jax.Array) -> jax.Array:
    """1 / sqrt of the diagonal of A diag(x) A' where entries are 0 and 1, and of about its size where they are not, from A x."""
    size = jnp.abs(answers)
    largest = size.max(initial=0.0)
    largest = jnp.where(largest > 0, largest, 1.0)
    return jax.lax.stop_gradient(1 / jnp.sqrt(jnp.maximum(size, jnp.finfo(answers.dtype).eps * largest)))


def _search(family: _Family, fit: jax.Array) -> tuple[jax.Array, ...]:
    dtype, allowed = fit.dtype, jnp.asarray(family.allowed)
    eps = float(jnp.finfo(dtype).eps)
    target = family.forward(fit)
    largest = jnp.maximum(jnp.abs(target).max(initial=0.0), jnp.finfo(dtype).tiny)
    uniform = allowed * fit.sum() / jnp.maximum(allowed.sum(), 1.0)

    def missed_by(answers: jax.Array) -> jax.Array:
        return jnp.abs(answers - target).max(initial=0.0) / largest

    def goes_on(state: tuple[Any, ...]) -> jax.Array:
        *_, missed, _, since, _, count = state
        return (count == 0) | ((missed > 16 * eps) & (since < _PATIENCE) & (count <= _MAX_ROUNDS))

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        dual, tilt, answers, missed, lowest, since, is_determined, count = state
        x, unit = uniform * jnp.exp(jnp.minimum(tilt, 600.0)), _row_unit(answers)

        def hessian(step: jax.Array) -> jax.Array:
            return unit * family.forward(x * family.backward(unit * step))

        # The first time around no step is taken: the total is determined if the sum of the allowed cells is a combination of the
        # rows, which the solution for the uniform cells' answers then is. (In this loop to compile the products only once.)
        is_first = count == 0
        wanted = jnp.where(is_first, answers, target - answers)
        # As accurate as the step is good for, but not into the rounding errors of the target.
        rounding = 64 * eps * jnp.linalg.norm(unit * target) / jnp.linalg.norm(unit * wanted)
        accuracy = jnp.where(is_first, 64 * eps, jnp.clip(jnp.maximum(missed, rounding), 1e-10, 0.1))
        direction = unit * symmetric_solution(hessian, unit * wanted, accuracy)
        turn, slope, pull = family.backward(direction), wanted @ direction, target @ direction
        is_determined = jnp.where(is_first, jnp.abs(allowed * (turn - 1)).max(initial=0.0) <= eps**0.5, is_determined)

        def falls(length: jax.Array) -> jax.Array:
            # The change of the dual objective from the step itself: differences of the objective would lose it to rounding.
            change = (x * jnp.expm1(jnp.minimum(length * turn, 600.0))).sum() - length * pull
            return change <= -0.01 * length * slope + eps * (jnp.abs(length * pull) + x.sum())

        length, _ = while_loop(
            lambda s: ~falls(s[0]) & (s[1] < _MAX_HALVINGS),
            lambda s: (s[0] / 2, s[1] + 1),
            (jnp.where(is_first, 0.0, jnp.ones((), dtype)), jnp.zeros((), jnp.int32)),
        )
        dual, tilt = dual + length * direction, tilt + length * turn
        answers = family.forward(uniform * jnp.exp(jnp.minimum(tilt, 600.0)))
        missed = missed_by(answers)
        since = jnp.where(missed < 0.9 * lowest, 0, since + 1)
        return dual, tilt, answers, missed, jnp.minimum(lowest, missed), since, is_determined, count + 1

    zero, answers = jnp.zeros((), jnp.int32), family.forward(uniform)
    first = missed_by(answers)
    start = (jnp.zeros_like(target), jnp.zeros_like(uniform), answers, first, first, zero, jnp.zeros((), bool), zero)
    dual, tilt, _, missed, _, _, is_determined, count = while_loop(goes_on, step, start)
    return uniform * jnp.exp(jnp.minimum(tilt, 600.0)), dual, missed, is_determined, count - 1
