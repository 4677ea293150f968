"""Count-of-counts histograms with a heavy tail: how many groups have each size."""

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
from dpinfer.models._laws import poisson_counts


def count_of_counts(num_sizes: int) -> Callable[[], jax.Array]:
    """A prior for numbers of groups of sizes 0, 1, 2, ...: persons in households, flights of a plane, visits of a patient.

    Of the groups that reach a size, a share ends there. This share falls with the size s as tail / (tail + offset + s), which
    gives a power law, S(s) ~ s^-tail; its log odds deviate at sizes 0, 1, 3, 7, ... by normal amounts, linearly in the
    logarithm of the size between, and the expected number of groups of each size deviates by an amount of its own. Numbers of
    groups are Poisson counts of what that expects. Sites: ``groups`` (expected number of all), ``tail``, ``offset``, ``bend`` and
    ``bends`` [octaves], ``roughness`` and ``deviations`` [num_sizes], ``roots`` [num_sizes] (square roots of the counts).

    For tables by size as ``mechanisms.count_of_counts`` releases them, which are ``Prefix`` queries of these cells (method
    "H_c"). Where the number of groups is public, give it as an exact count.

    Args:
        num_sizes: the largest size plus 1; groups of larger sizes are not among the cells.

    Measured on planes by how often they left (examples/bayesian_models.py), at epsilon 0.01, 0.1 and 1 for a flight: root mean
    squared errors 17, 8.1, 1.5 of a size (non-negative least squares 87, 15, 1.8), .99, .97, .97 inside 90% intervals; two chains
    of 600 steps had not converged by their own checks.

    Cost: O(num_sizes) a gradient.

    Reference: Kuo et al. 2018 (the queries); Lomax 1954 (the tail); Singer and Willett 1993 (models of the share that ends).
    """
    return _model(_checks.integer("num_sizes", num_sizes, least=2))


@lru_cache(maxsize=64)
def _model(num_sizes: int) -> Callable[[], jax.Array]:
    sizes = np.arange(num_sizes)
    octaves = np.log2(1.0 + sizes)
    num_knots = int(np.ceil(octaves[-1])) + 1
    place = np.minimum(octaves.astype(int), num_knots - 2)
    between = octaves - place

    def model() -> jax.Array:
        groups = numpyro.sample("groups", dist.LogNormal(6.0, 3.0))
        tail = numpyro.sample("tail", dist.LogNormal(0.5, 0.7))
        offset = numpyro.sample("offset", dist.LogNormal(1.0, 1.5))
        bend = numpyro.sample("bend", dist.HalfNormal(1.0))
        bends = numpyro.sample("bends", dist.Normal(0.0, bend).expand([num_knots]))
        roughness = numpyro.sample("roughness", dist.HalfNormal(0.5))
        deviations = numpyro.sample("deviations", dist.Normal(0.0, roughness).expand([num_sizes]))
        bent = bends[place] + between * (bends[place + 1] - bends[place])
        odds = jnp.log(tail) - jnp.log(offset + sizes) + bent
        goes_on = jnp.cumsum(-jax.nn.softplus(odds))
        log_share = goes_on + odds  # goes on through all smaller sizes, and ends: log(odds / (1 + odds))
        return poisson_counts("roots", jnp.log(groups) + log_share + deviations)

    return model
