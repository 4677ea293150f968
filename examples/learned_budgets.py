"""Budgets and a shrinkage that are learned, by gradients through simulated releases and least squares.

python examples/learned_budgets.py [--data counts.npy] [--cells 64] [--branching 4] [--epsilon 0.03] [--steps 1000] [--batch 64]
    [--seed 0] [--output learned_budgets.png]

Every step simulates releases of a tree with fresh noise and follows the gradient of their mean squared error over all ranges, in
the budgets of the levels and in a factor by which all answers are multiplied. The optimum of this error is known, so that the two
can be compared; another loss or estimator would only change the function whose gradient is taken.

The error is not a convex function of the budgets: a level whose budget has gone to 0 has no slope and never comes back. Descent
from equal budgets finds the optimum with 64 cells and branching 4, but with --cells 256 it ends in another minimum, 12% above.
`level_budgets(method="optimal")` therefore tries the choices of levels.

This is a study, which learns from the true cells. Here they are public: the first departures from New York City in 2013 by the
quarter-hour, or counts of your own (a .npy file such as those of DPBench, its neighbouring cells summed). To learn from private
cells would cost privacy; give a made-up histogram with about as many records in their place. The best budgets are the same for
all cells, since the noise is; only the shrinkage depends on them.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import dpinfer as dpi
from dpinfer.accuracy import range_variance
from dpinfer.allocation import level_budgets
from dpinfer.plots import BLUE, GREY, ORANGE, save
from dpinfer.queries import AllRange, Tree


class Parameters(NamedTuple):
    """What is learned: shares of the budget as logits, so that they are positive and add up to 1, and the shrinkage."""

    logits: jax.Array
    shrinkage: jax.Array


def main() -> None:
    parser = argparse.ArgumentParser(description="Budgets and a shrinkage, learned by gradients through simulated releases.")
    parser.add_argument("--data", type=Path, help="a .npy file of counts; left out, the departures of 2013")
    parser.add_argument("--cells", type=int, default=64)
    parser.add_argument("--branching", type=int, default=4)
    parser.add_argument("--epsilon", type=float, default=0.03)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64, help="simulated releases a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("learned_budgets.png"))
    options = parser.parse_args()
    dpi.enable_x64()
    n, branching, epsilon = options.cells, options.branching, options.epsilon
    truth = dpi.datasets.departures().cells()[:n] if options.data is None else dpi.datasets.read_histogram(options.data, n)
    equal, optimal = (level_budgets(n, branching, epsilon=epsilon, method=method) for method in ("equal", "optimal"))
    start = Parameters(jnp.zeros(equal.size), jnp.array(1.0))
    learned, visited, simulated = learn(start, truth, branching, epsilon, options)

    signal = float(np.square(AllRange(n) @ truth).mean())
    splits = {"equal": equal, "learned": np.asarray(budgets_of(learned, epsilon)), "optimal": optimal}
    variances = {name: float(range_variance(n, branching, budgets)) for name, budgets in splits.items()}
    factors = {name: signal / (signal + variance) for name, variance in variances.items()} | {"learned": float(learned.shrinkage)}
    errors = {name: shrunken_error(factors[name], variance, signal) for name, variance in variances.items()}
    print(f"{n:,} cells, {truth.sum():,} records, branching {branching}, epsilon = {epsilon:g}; exact mean squared errors:")
    print(f"  {'budgets':<10}{'unshrunken':>12}{'shrinkage':>12}{'shrunken':>12}   share of each level, top first")
    for name, budgets in splits.items():
        shares = " ".join(f"{budget / epsilon:.4f}" for budget in budgets)
        print(f"  {name:<10}{variances[name]:>12,.1f}{factors[name]:>12.4f}{errors[name]:>12,.1f}   {shares}")
    print(f"learned over optimal, unshrunken: {variances['learned'] / variances['optimal']:.4f}")

    by_step = jax.jit(jax.vmap(lambda budgets: range_variance(n, branching, budgets)))(budgets_of(visited, epsilon))
    exact = shrunken_error(visited.shrinkage, by_step, signal)
    save(figure_of(splits, errors, np.asarray(simulated), np.asarray(exact)), options.output)
    print(f"Figure: {options.output}")


def budgets_of(parameters: Parameters, epsilon: float) -> jax.Array:
    return epsilon * jax.nn.softmax(parameters.logits)


def shrunken_error(shrinkage: Any, variance: Any, signal: float) -> Any:
    """Variance and squared bias of answers whose mean square is the signal; least at signal / (signal + variance)."""
    return shrinkage**2 * variance + (1 - shrinkage) ** 2 * signal


def learn(
    start: Parameters, truth: np.ndarray, branching: int, epsilon: float, options: argparse.Namespace
) -> tuple[Parameters, Parameters, jax.Array]:
    """The parameters in the end; those before each step, and the simulated loss there."""
    tree, ranges, cells = Tree.complete(truth.size, branching), AllRange(truth.size), jnp.asarray(truth, float)
    # From errors of the cells, the mean squared error over all ranges.
    form = jnp.asarray(ranges.gram() / ranges.shape[0])
    solver = optax.adam(optax.cosine_decay_schedule(0.1, options.steps))  # ever shorter steps average the noise out
    key = jax.random.key(options.seed)

    def loss(parameters: Parameters, key: jax.Array) -> jax.Array:
        level_epsilons = budgets_of(parameters, epsilon)

        def one(key: jax.Array) -> jax.Array:
            release = dpi.simulate(cells, tree, level_epsilons=level_epsilons, key=key)
            error = parameters.shrinkage * dpi.least_squares(release).cells - cells
            return error @ form @ error

        return jax.vmap(one)(jax.random.split(key, options.batch)).mean()

    def step(state: Any, number: jax.Array) -> Any:
        parameters, memory = state
        value, slope = jax.value_and_grad(loss)(parameters, jax.random.fold_in(key, number))
        update, memory = solver.update(slope, memory)
        return (optax.apply_updates(parameters, update), memory), (parameters, value)

    steps = jnp.arange(options.steps)
    (learned, _), (visited, values) = jax.jit(lambda state: jax.lax.scan(step, state, steps))((start, solver.init(start)))
    return learned, visited, values


def figure_of(splits: dict[str, np.ndarray], errors: dict[str, float], simulated: np.ndarray, exact: np.ndarray) -> Figure:
    """The loss by step, and the budgets by level."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    steps = np.arange(1, exact.size + 1)
    left.plot(steps, simulated, ".", color=GREY, alpha=0.4, markersize=3, label="simulated")
    left.plot(steps, exact, color=BLUE, linewidth=1.6, label="exact")
    left.axhline(errors["equal"], color=ORANGE, linestyle=":", linewidth=1.4, label="equal budgets, best shrinkage")
    left.axhline(errors["optimal"], color=ORANGE, linestyle="--", linewidth=1.4, label="optimal budgets, best shrinkage")
    left.set_ylim(0, 1.2 * exact.max())
    left.set_xscale("log")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter("{x:,g}")
    left.set_xlabel("step")
    left.set_ylabel("mean squared error of a range (records squared)")
    left.set_title("Error while budgets and shrinkage are learned", loc="left")
    levels = np.arange(1, splits["equal"].size + 1)
    for (name, budgets), color, shift in zip(splits.items(), (GREY, BLUE, ORANGE), (-0.27, 0, 0.27), strict=True):
        right.bar(levels + shift, budgets, 0.27, color=color, label=name)
    right.set_xticks(levels)
    right.set_xlabel("level below the root")
    right.set_ylabel("budget (epsilon)")
    right.set_title("Budget of each level", loc="left")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


if __name__ == "__main__":
    main()
