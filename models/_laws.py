"""Laws that several models share: counts continued between the whole numbers, and shares of a whole down a tree."""

# numpyro says of samples only that they are like arrays.
# pyright: reportOperatorIssue=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false, reportAssignmentType=false

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import softplus
from jax.scipy.special import gammaln
from numpyro.distributions import constraints


def poisson_counts(name: str, log_rate: jax.Array) -> jax.Array:
    """Poisson counts of given rates, [n], continued between the whole numbers.

    Squares of normal roots, the site ``name``, 0 where a root is negative. The nearest whole number is as a Poisson count, to
    within 0.03 of every cumulative probability, whatever the rate: the square root of a Poisson count has a standard deviation of
    about 1/2 (Bartlett 1936), and the shift of its mean near 0 leaves empty what should be.
    """
    root = jnp.exp(0.5 * log_rate)
    return jnp.square(jnp.maximum(numpyro.sample(name, dist.Normal(root - 1 / (8 * root + 1), 0.5)), 0.0))


def log_gamma_moments(shape: Any) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the logarithm of a gamma variable of rate 1: the digamma and trigamma functions, to 1e-5.

    Jax's own go by Hurwitz's zeta function, whose derivatives take long to compile.
    """
    steps = [jnp.asarray(shape) + i for i in range(4)]
    z = steps[-1] + 1
    mean = jnp.log(z) - 1 / (2 * z) - 1 / (12 * z**2) + 1 / (120 * z**4) - sum(1 / x for x in steps)
    return mean, 1 / z + 1 / (2 * z**2) + 1 / (6 * z**3) - 1 / (30 * z**5) + sum(1 / x**2 for x in steps)


class LogGamma(dist.Distribution):
    """The logarithm of gamma variables of rate 1: shapes far below 1 do not underflow."""

    arg_constraints = {"concentration": constraints.positive}  # noqa: RUF012
    support = constraints.real

    def __init__(self, concentration: Any, *, validate_args: bool | None = None):
        self.concentration = jnp.asarray(concentration)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return jax.random.loggamma(key, self.concentration, sample_shape + self.batch_shape)

    def log_prob(self, value: Any) -> jax.Array:
        return self.concentration * value - jnp.exp(value) - gammaln(self.concentration)


@dataclass(frozen=True, eq=False)
class Splits:
    """A tree whose nodes share out what their parents have, child after child, each a part of what is left.

    Attributes:
        parents: [nodes], the root its own.
        leaves: the leaf of each cell, [n].
        depth: of the deepest node.
        children: the nodes below the root, siblings side by side, [nodes - 1].
        firsts: for each of these the place of its first sibling.
        taken: places of those that are not the last of their siblings: these take a part, [parts].
        above: the depth of their parents, [parts].
        own, later: weights of each such child and of the siblings after it, [parts].
    """

    parents: np.ndarray
    leaves: np.ndarray
    depth: int
    children: np.ndarray
    firsts: np.ndarray
    taken: np.ndarray
    above: np.ndarray
    own: np.ndarray
    later: np.ndarray

    def log_shares(self, odds: jax.Array) -> jax.Array:
        """The logarithm of each cell's share of the whole, [n], from the log odds of the parts, [parts]."""
        part, rest = (jnp.zeros(self.children.size).at[self.taken].set(-softplus(x)) for x in (-odds, odds))
        left = jnp.cumsum(rest) - rest
        shares = jnp.zeros(self.parents.size).at[self.children].set(part + left - left[self.firsts])
        ancestors = self.parents
        for _ in range(max(self.depth - 1, 0).bit_length()):
            shares = shares + shares[ancestors]
            ancestors = ancestors[ancestors]
        return shares[self.leaves]


def splits(parents: np.ndarray, depths: np.ndarray, leaves: np.ndarray, weights: np.ndarray) -> Splits:
    """How a tree's nodes share; ``parents`` has -1 for the root, ``weights`` are those of each node among its siblings."""
    root = parents < 0
    above = np.where(root, np.flatnonzero(root)[0], parents)
    children = np.argsort(np.where(root, -1, parents), kind="stable")[1:]
    group = parents[children]
    is_first = np.diff(group, prepend=-1) != 0
    is_last = np.append(is_first[1:], True)
    firsts = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    own = weights[children]
    # From the last sibling backwards.
    sums = np.cumsum(own[::-1])[::-1]
    later = sums - own - np.append(sums[np.flatnonzero(is_first)[1:]], 0.0)[np.cumsum(is_first) - 1]
    taken = np.flatnonzero(~is_last)
    return Splits(above, leaves, int(depths.max()), children, firsts, taken, depths[group[taken]], own[taken], later[taken])
