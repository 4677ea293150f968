"""Counts by rank: a histogram whose cells are sorted, such as the degrees of a graph."""

# numpyro says of samples only that they are like arrays.
# pyright: reportOperatorIssue=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from dpinfer import _checks
from dpinfer.models._laws import log_gamma_moments, splits
from dpinfer.queries import Tree


def ordered_counts(n: int) -> Callable[[], jax.Array]:
    """A prior for counts by rank, from the least to the largest: what ``mechanisms.sorted_counts`` measures.

    The counts rise from 0 to the ``largest``. About what share of a rise falls to the lower half of its ranks, to the lower half
    of these and so on is as among independent numbers in order from a Lomax law, whose tail is a power of exponent 1 / tail (an
    exponential law at 0); the log odds of these shares deviate by normal amounts, as much as those of n independent increments of
    gamma shape ``clumping`` do: below 1 many ranks tie and some jump. Sites: ``largest``, ``tail``, ``clumping``, ``splits``
    [n - 1] (the log odds).

    Use it for intervals, and where the noise is large beside the counts; with long runs of equal counts
    ``inference.unattributed_histogram`` is as good and costs nothing. Cells come out sorted and not negative.

    Args:
        n: how many ranks.

    Measured on 104 airports by rank (examples/bayesian_models.py), at epsilon 0.01, 0.1 and 1: root mean squared errors 32, 8.1,
    1.18 of a cell (isotonic 48, 9.6, 1.23), .91, .93, .95 inside 90% intervals.

    Cost: O(n log n) a gradient.

    Reference: Hay et al. 2010, section 3 (the queries); Rényi 1953 (order statistics).
    """
    return _model(_checks.integer("n", n, least=1))


@lru_cache(maxsize=64)
def _model(n: int) -> Callable[[], jax.Array]:
    tree = Tree.complete(n, 2, root=True)
    first, stop = tree.spans
    halves = splits(tree.parents, tree.depths, tree.leaves, (stop - first).astype(float))
    lower = halves.children[halves.taken]
    # Means of n exponential numbers in order (Rényi), and how far these rise over the lower and the upper half of each node.
    heights = np.concatenate([[0.0], np.cumsum(1 / np.arange(n, 0.0, -1))])
    rises = np.diff(heights[np.stack([first[lower], stop[lower], stop[tree.parents[lower]]])], axis=0)

    def model() -> jax.Array:
        largest = numpyro.sample("largest", dist.LogNormal(4.0, 3.0))
        tail = numpyro.sample("tail", dist.HalfNormal(1.0))
        clumping = numpyro.sample("clumping", dist.LogNormal(-1.0, 1.5))
        # Of Lomax's quantiles e^(tail height) - 1, up to a factor: what the lower half rises by over what the upper half does.
        below, above = tail * rises[0], tail * rises[1]
        typical = jnp.log(-jnp.expm1(-below)) - above - jnp.log(-jnp.expm1(-above))
        variances = (log_gamma_moments(clumping * weights)[1] for weights in (halves.own, halves.later))
        odds = numpyro.sample("splits", dist.Normal(typical, jnp.sqrt(sum(variances))))
        return jnp.asarray(largest * jnp.cumsum(jnp.exp(halves.log_shares(odds))))

    return model
