"""Posteriors of trees under jit and vmap: against one tree at a time, tables of all cells, and what windows cannot hold."""

from functools import partial
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import CellPrior, poisson_gamma, tree_posterior
from dpinfer.inference.grid_intervals import grid_interval
from dpinfer.inference.lattice_laws import log_likelihood, log_weights
from dpinfer.inference.level_beliefs import traced_node_laws
from dpinfer.inference.mmse import PosteriorAnswers
from dpinfer.inference.posterior_grid import Laws
from dpinfer.inference.tree_levels import levels_of, side_by_side, windows_of
from dpinfer.inference.tree_priors import Known, hat_log_likelihood, hat_log_weights
from dpinfer.queries import Tree

LOPSIDED = Tree.from_parents([-1, 0, 0, 1, 1, 0, 1, 1, 0, 0], leaf_cells=[2, 0, 3, 4, 1, 6, 7, 5])
GAMMA = poisson_gamma(0.5, 0.05)


def posterior(tree, law, scale, prior, values, num_points=None):
    return tree_posterior(dp.Measurement(tree, values, law, scale), prior, num_points=num_points)


def draws(tree, law, scale, num, seed=3):
    rng = np.random.default_rng(seed)
    cells = rng.negative_binomial(0.5, 0.05, (num, tree.shape[1]))
    noise = rng.laplace(0, np.where(np.isfinite(scale), scale, 0.0), (num, tree.shape[0]))
    return np.asarray(tree @ cells.T).T + (np.round(noise) if law == "discrete_laplace" else noise)


def close(found, known, unit, off):
    for name in ("mean", "stddev", "cells"):
        np.testing.assert_allclose(getattr(found, name), getattr(known, name), rtol=0, atol=off * unit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tree", "law", "scale", "prior"),
    [
        (LOPSIDED, "discrete_laplace", [3, np.inf, 1, 0.8, 1.2, 1.1, 0.9, 1, 4, 2], GAMMA),
        (Tree.complete(3, 3), "laplace", 0.5, CellPrior(lambda x: -0.1 * x, lower=0.0)),
    ],
)
def test_a_batch_is_as_one_at_a_time(tree, law, scale, prior):
    scale = np.broadcast_to(np.asarray(scale, dtype=float), tree.shape[:1])
    values, unit = draws(tree, law, scale, 3), float(scale.min())

    def asked(y):
        found = posterior(tree, law, scale, prior, y)
        return found, found.interval(0.9), found.density(1)

    found, ends, (places, masses) = jax.jit(jax.vmap(asked))(values)
    assert found.neglected.shape == (3,)
    assert np.asarray(found.neglected).max() < 1e-9
    for i, row in enumerate(values):
        known, one = posterior(tree, law, scale, prior, row), jax.tree.map(lambda x, i=i: x[i], found)
        close(one, known, unit, 1e-9)
        where, own = known.density(1)
        for x, p in ((places[i], masses[i]), one.density(1)):
            np.testing.assert_allclose(np.interp(where, x, p)[own > 0], own[own > 0], atol=1e-9)
        for given in (one.interval(0.9), [end[i] for end in ends]):
            np.testing.assert_allclose(given, known.interval(0.9), rtol=0, atol=1e-6 * unit)
    np.testing.assert_array_equal(found.density(1)[0], places)  # of all problems together


@pytest.mark.slow
def test_a_table_of_all_cells_and_what_windows_cannot_hold():
    # Scales that are traced: each problem with its own, in windows of the size that is asked for.
    tree = Tree.complete(3, 2, root=True)
    values = [[9, 3, 4, 2, 0, 1.0], [15, 3, 5, -2, 1, 5], [300, 3, 4, 2, 0, 1], [50, 0, 0, 0, 0, 0]]
    scales = [[2, 1.5, 1.5, 1, 1, 1], [1, np.inf, 3, 1, 0.8, 2], [2, np.inf, np.inf, 20, 20, 20], [0.05, 0.1, 0.1, 5, 5, 5]]
    batch = dp.Measurement.batch(tree, np.array(values), "discrete_laplace", np.array(scales))
    found = jax.jit(jax.vmap(partial(tree_posterior, num_points=129)))(batch)
    cells = np.array(list(product(range(-18, 25), repeat=3)))
    nodes = cells @ np.asarray(tree.dense()).T
    for i in range(2):
        own = np.isfinite(batch.scale[i])
        log = -(np.abs(batch.values[i] - nodes)[:, own] / batch.scale[i][own]).sum(axis=1)
        weights = np.exp(log - log.max())
        weights /= weights.sum()
        mean = weights @ nodes
        np.testing.assert_allclose(found.mean[i], mean, atol=1e-5)
        np.testing.assert_allclose(found.stddev[i], np.sqrt(weights @ np.square(nodes - mean)), rtol=1e-4)
        assert found.neglected[i] < 1e-9
    one = [partial(tree_posterior, dp.Measurement(tree, y, batch.noise, b)) for y, b in zip(values, scales, strict=True)]
    close(jax.tree.map(lambda x: x[1], found), one[1](), 1.0, 1e-9)
    # Three cells about 100 each, and anything from 0 to 300, where windows have 64 to either side.
    assert found.neglected[2] > 1e-3
    assert one[2]().neglected < 1e-9
    wide = jax.jit(tree_posterior)(dp.Measurement(tree, np.array(values[2]), batch.noise, np.array(scales[2])))
    assert wide.neglected < 1e-9
    close(wide, one[2](), 20.0, 1e-9)
    # A sum, and parts, that are sure not to be those of each other.
    assert found.neglected[3] == 1
    last = jax.tree.map(lambda x: x[3], found)
    assert np.isnan([*last.mean, *last.stddev, *np.ravel(last.interval(0.9)), *last.masses[0]]).all()
    with pytest.raises(ValueError, match="next to nothing is left of some node"):
        _ = last.nodes
    with pytest.raises(ValueError, match="contradict itself"):
        one[3]()


@pytest.mark.slow
def test_what_comes_round_is_told():
    # A transform that has no room for the sum of four cells that are far off, beside the window of their parent.
    tree, known = Tree.complete(4, 4, root=True), Known(np.zeros_like, -np.inf, True)
    windows, scale = windows_of(tree, np.array([4.0] * 5), 1.0), jnp.full(5, 4.0)
    narrow, values = windows._replace(sizes=(2 * windows.halves[1] + 20,)), jnp.array([50.0, 2, -2, 3, 1])
    laws, mean, _ = traced_node_laws(tree, known, narrow, values, scale)
    exact = tree_posterior(dp.Measurement(tree, values, "discrete_laplace", 4.0)).mean
    assert np.abs(mean - exact).max() > 1e-6
    assert laws.neglected > 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: jax.jit(lambda y: posterior(Tree.complete(2, 2), "laplace", [1, 0.0], "flat", y))(m.values),
            "noise in every row",
        ),
        (lambda m: jax.jit(lambda y: posterior(Tree.complete(2, 2), "laplace", [1, np.inf], "flat", y))(m.values), "every leaf"),
        (
            lambda m: jax.jit(lambda y: posterior(Tree.complete(2, 2), "laplace", [1.0, 1e6], "flat", y))(m.values),
            "131,072 points",
        ),
        (
            lambda m: jax.jit(lambda y: posterior(m.queries, "laplace", 1.0, CellPrior(lambda x: np.minimum(x, 0.0)), y))(
                m.values
            ),
            "prior must have a log density of JAX arrays",
        ),
        (lambda m: tree_posterior(m, num_points=8), "num_points must be at least 9"),
        (
            lambda m: tree_posterior(
                dp.Measurement(Tree.from_parents(np.arange(65) - 1), np.zeros(65), "laplace", 1.0), num_points=9
            ),
            "at most 64 levels under jit and vmap, got 65",
        ),
        (
            lambda m: jax.jit(lambda y: posterior(m.queries, "laplace", 1.0, "flat", y, 9).density(3))(m.values),
            "node must be from 0 to the number of nodes less 1, 2, got 3",
        ),
        (
            lambda m: jax.jit(lambda y: posterior(m.queries, "laplace", 1.0, "flat", y, 9).interval(2.0))(m.values),
            "level must be between 0 and 1",
        ),
        (
            lambda m: jax.jit(lambda y: posterior(m.queries, "laplace", 1.0, "flat", y, 9).nodes.mean)(m.values),
            "nodes are of one tree",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(dp.Measurement(Tree.complete(2, 2), np.array([1.0, 2]), "laplace", 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("is_lattice", [True, False])
def test_intervals_are_those_of_numpy(is_lattice):
    places = np.arange(160.0)
    masses = np.exp(-np.square(places - np.array([[40.3], [90.1]])) / np.array([[90.0], [260.0]]))
    masses[0, :35], masses[:, 120:] = 0.0, 0.0  # one begins with a jump
    masses[1] += np.exp(-np.abs(places - 80))
    masses /= masses.sum(axis=1, keepdims=True)
    first = 35  # laws on grids begin where they are above 0
    one = Laws(places[None, first:], masses[:1, first:], masses[:1, first:], np.array([is_lattice]), 159 - first)
    known = PosteriorAnswers(one.means, one.stddevs, np.zeros(1), lambda: (one, np.zeros(1, dtype=np.int64)))
    for kind in ("equal_tailed", "highest"):
        found = grid_interval(jnp.asarray(masses), 0.8, kind=kind, is_lattice=is_lattice)
        np.testing.assert_allclose([end[0] for end in found], np.ravel(known.interval(0.8, kind=kind)), atol=1e-5)
        inside = [m[int(np.ceil(a)) : int(np.floor(b)) + 1].sum() for m, a, b in zip(masses, *found, strict=True)]
        assert (np.array(inside) > 0.8 - 0.06 * (not is_lattice) - 1e-12).all()


@pytest.mark.parametrize("lower", [-np.inf, 0.0])
def test_hats_are_those_of_numpy(lower):
    values, scale, step, places = np.array([[0.3], [-2.0], [7.1]]), np.array([[1.0], [2.5], [1.6]]), 1 / 16, np.arange(-70, 40)
    places = np.stack([places, places + 10, places - 60])
    prior = CellPrior(lambda x: -0.2 * x, lower) if lower == 0 else CellPrior(np.zeros_like)
    known = Known(prior.log_density, lower, False)
    own = jax.jit(partial(hat_log_weights, known.log_density(), lower))(values, scale, values, step, places)
    for i, b in enumerate(scale[:, 0]):
        row = slice(i, i + 1)
        expected = log_weights(prior, values[row, 0], float(b), values[row, 0], step, places[row])
        np.testing.assert_allclose(own[row], expected, rtol=1e-12)
        off = step * places[row] + 0.01 * i
        says = jax.jit(hat_log_likelihood)(off, scale[row], step)
        np.testing.assert_allclose(says, log_likelihood(off, float(b), step), atol=1e-10)
        if known.is_flat:  # what weights are then, but for a factor
            weights = jax.jit(hat_log_likelihood)(step * places[row], scale[row], step)
            np.testing.assert_allclose(weights - weights.max(), expected - expected.max(), atol=1e-7)


def test_priors_that_are_looked_up_end():
    known = Known(GAMMA.log_density, 0.0, True)
    assert not known.is_traceable
    cells = np.array([[0.0, 1, 262_143], [-1, 7, 30]])
    np.testing.assert_allclose(jax.jit(known.log_density())(cells), GAMMA.at(cells), rtol=1e-14)
    assert known.is_held((jnp.array(-50), jnp.array(262_143)))
    assert not known.is_held((jnp.array(0), jnp.array(262_144)))
    both = Known(lambda x: -np.abs(x), -np.inf, True)
    np.testing.assert_array_equal(both.log_density()(jnp.array([[-131_072.0, 0, 3]])), [[-131_072, 0, -3]])
    assert both.is_held((jnp.array(-131_072), jnp.array(131_071)))
    assert not both.is_held((jnp.array(-131_073), jnp.array(0)))


@pytest.mark.parametrize("tree", [LOPSIDED, Tree.complete(10, 3), Tree.grid((3, 5), 2), Tree.from_parents([-1])])
def test_levels_hold_every_node_once(tree):
    levels = levels_of(tree)
    nodes = np.concatenate([level.nodes for level in levels])
    np.testing.assert_array_equal(np.sort(nodes), np.arange(tree.num_nodes))
    place = np.argsort(nodes)
    along = side_by_side(levels, place[np.asarray(tree.leaves)])
    at = np.argsort(along)
    for cells in np.asarray(tree.dense()) > 0:
        own = at[cells]
        assert np.ptp(own) == own.size - 1
    for above, level in pairwise(levels):
        np.testing.assert_array_equal(above.nodes[level.parents], np.asarray(tree.parents)[level.nodes])
        members = np.concatenate([family.reshape(-1) for family in above.families])
        np.testing.assert_array_equal(np.sort(members[members < level.nodes.size]), np.arange(level.nodes.size))
        rows = [row for family in above.families for row in family]
        for node, row in zip(above.nodes[above.inner], rows, strict=True):
            children = np.flatnonzero(np.asarray(tree.parents) == node)
            np.testing.assert_array_equal(np.sort(level.nodes[row[row < level.nodes.size]]), children)
