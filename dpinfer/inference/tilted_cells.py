"""Posteriors of cells given the counts of nodes above them, approximately: each cell's own posterior, tilted.

What the counts above a cell say of it is taken to be exp(t x), t the sum over the nodes above of how hard each pulls. A node with
count y, noise of variance r and the posterior mean S of the cells below pulls with (y - S) / r. These pulls are where a convex
function is least, the cells' log partition functions less what the counts say of the pulls, plus r pull^2 / 2 each; by Newton
steps, each of which is least squares on the tree, with the cells' posterior variances.
"""

from typing import Any, final

import jax
import jax.numpy as jnp

from dpinfer._loops import fori_loop, while_loop
from dpinfer._pytree import pytree
from dpinfer.inference.level_passes import Rungs, cell_sums, node_sums, two_passes
from dpinfer.inference.rate_chain import mixture
from dpinfer.inference.rate_states import RateStates

# Newton steps at most for one distribution of states, how often it is fitted anew, and by how many steps.
_STEPS, _FITS, _FIT_STEPS = 30, 3, 50
# A step is shortened to a third until the function falls, down to this; steps end when it falls by less than this.
_SHORTEST, _STILL = 1e-4, 1e-3
# States that are this much less probable than the likeliest, before any tilt, no tilt can make probable: far from the noisy cell
# they are held off by its tail alone, which a tilt outgrows.
_LEAST_ODDS = 1e-4
# Exact counts are taken to have noise of so small a variance.
_LEAST_VARIANCE = 1e-6


@final
@pytree
class _Tilted:
    """Cells under a tilt: the function's value, means less the noisy cells, and variances."""

    value: jax.Array
    means: jax.Array
    variances: jax.Array


def tilted_cells(states: RateStates, rungs: Rungs, counts: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Means and variances [n] of what each cell's own posterior amounts to near where the counts above have it.

    That is the normal factor which, tilted alike, has the mean and variance of the tilted posterior: mean - variance t.

    Args:
        states: of the noisy cells.
        rungs: the tree.
        counts, noise: of its nodes and their variances, infinite where there is no count; those of leaves are not looked at.
    """
    num_nodes = counts.shape[0]
    is_measured = jnp.isfinite(noise).at[rungs.nodes[-1]].set(False)
    error = jnp.where(is_measured, jnp.maximum(noise, _LEAST_VARIANCE), 1.0)
    off = jnp.where(is_measured, counts - node_sums(rungs, states.values, num_nodes), 0.0)
    plain = states.evidence().log
    start = mixture(plain).start

    def evidence(pulls: jax.Array, start: jax.Array) -> Any:
        found = states.evidence(cell_sums(rungs, pulls))
        odds = plain + jnp.log(start)[None]
        is_possible = odds > odds.max(axis=1, keepdims=True) + jnp.log(_LEAST_ODDS)
        return found, jnp.where(is_possible, found.log, -jnp.inf)

    def at(pulls: jax.Array, start: jax.Array) -> _Tilted:
        found, log = evidence(pulls, start)
        joint = log + jnp.log(start)[None]
        total = jax.nn.logsumexp(joint, axis=1)
        means, variances = found.moments(jnp.exp(joint - total[:, None]))
        value = total.sum() - (pulls * off).sum() + (error * jnp.square(pulls)).sum() / 2
        return _Tilted(value, means, jnp.maximum(variances, 1e-12))

    def newton(carry: Any) -> Any:
        step, pulls, here, _, start = carry
        target = here.means - here.variances * cell_sums(rungs, pulls)
        noises = jnp.where(is_measured, error, jnp.inf)
        fit = two_passes(rungs, target, here.variances, off, noises, inflated=False)
        toward = jnp.where(is_measured, (off - node_sums(rungs, fit.cells, num_nodes)) / error, 0.0) - pulls

        def is_worse(tried: Any) -> jax.Array:
            share, there = tried
            return ~(there.value < here.value) & (share > _SHORTEST)

        def shorten(tried: Any) -> Any:
            share = tried[0] / 3
            return share, at(pulls + share * toward, start)

        one = jnp.ones((), pulls.dtype)
        share, there = while_loop(is_worse, shorten, (one, at(pulls + toward, start)))
        falls = here.value - there.value
        is_better = falls > 0
        kept = jax.tree.map(lambda new, old: jnp.where(is_better, new, old), (pulls + share * toward, there), (pulls, here))
        return step + 1, *kept, jnp.where(is_better, falls, 0.0), start

    def solved(pulls: jax.Array, start: jax.Array) -> tuple[jax.Array, _Tilted]:
        first = (jnp.zeros((), int), pulls, at(pulls, start), jnp.full((), jnp.inf, pulls.dtype), start)
        return while_loop(lambda carry: (carry[0] < _STEPS) & (carry[3] > _STILL), newton, first)[1:3]

    def refit(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        pulls, _ = solved(*carry)
        start = mixture(evidence(*(pulls, carry[1]))[1], carry[1], steps=_FIT_STEPS).start
        return pulls, jnp.maximum(start, jnp.finfo(start.dtype).tiny)

    pulls, start = fori_loop(0, _FITS - 1, refit, (jnp.zeros(num_nodes, states.values.dtype), start))
    pulls, here = solved(pulls, start)
    return states.values + here.means - here.variances * cell_sums(rungs, pulls), here.variances
