"""Posteriors of single cells under fitted priors, beside tables of all states of all cells."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, poisson

import dpinfer as dpi
from dpinfer.inference import cell_posterior
from dpinfer.inference.rate_chain import (
    _GROUPS,
    _expectations,
    _first_moves,
    _refitted,
    _scaled,
    _steps,
    chain,
    joined,
    loosened,
    mixture,
    stacked,
)
from dpinfer.inference.rate_states import NUM_POISSON, NUM_STATES, rate_states

NOISES = ("laplace", "discrete_laplace", "gaussian", "discrete_gaussian")


def noisy(values, noise="discrete_laplace", scale: object = 10.0):
    return dpi.Measurement(dpi.queries.Identity(len(values)), np.asarray(values, float), noise, scale)


def sample(rng, cells, scale=10.0):
    share = 1 - np.exp(-1 / scale)
    return noisy(cells + rng.geometric(share, cells.size) - rng.geometric(share, cells.size), scale=scale)


def counts_of(states, k, is_discrete):
    """The counts of a state and their weights, on a fine grid where noise is continuous."""
    rate = float(states.rates[k])
    if k < NUM_POISSON:
        counts = np.arange(400.0)
        return counts, poisson.pmf(counts, rate)
    normal = np.asarray(states.normal_rates)
    spread = np.sqrt(rate + (rate * (1 - normal[0] / normal[1]) / 2) ** 2)
    step = 1.0 if is_discrete else 0.01
    counts = np.arange(-200, 600, step)
    return counts, step * norm.pdf(counts, rate, spread)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("scale", "near"), [(1.0, 3e-4), (7.0, 3e-5), (np.inf, 1e-9)])
def test_the_evidence_of_a_rate_is_a_sum_over_counts(noise, scale, near):
    states = rate_states(noisy([0.0, 30.0, -6.0, 21.0, 200.0], noise, np.array([scale] * 4 + [5.0])))
    is_discrete = noise.startswith("discrete")
    for tilt in (0.0, 0.02):
        evidence = states.evidence(jnp.full(5, tilt))
        for k in (0, 5, 30, 47, 48, 60):
            counts, weights = counts_of(states, k, is_discrete)
            for i in range(4):
                off = counts - float(states.values[i])
                said = -np.abs(off) / scale if "laplace" in noise else -((off / scale) ** 2) / 2
                terms = weights * np.exp(said + tilt * off)
                if terms.sum() < 1e-12:
                    continue
                mean = (terms * off).sum() / terms.sum()
                square = (terms * off**2).sum() / terms.sum()
                np.testing.assert_allclose(float(evidence.log[i, k]), np.log(terms.sum()), atol=30 * near)
                np.testing.assert_allclose(float(evidence.mean[i, k]), mean, atol=300 * near)
                np.testing.assert_allclose(float(evidence.square[i, k]), square, rtol=300 * near, atol=300 * near)


@pytest.mark.parametrize("noise", NOISES)
def test_the_probability_of_at_most_a_count_is_a_sum(noise):
    states = rate_states(noisy([0.0, 30.0, 21.0, 200.0], noise, 6.0))
    for k in (0, 20, 47, 48, 60):
        counts, weights = counts_of(states, k, True)
        for i in range(3):
            off = counts - float(states.values[i])
            said = -np.abs(off) / 6 if "laplace" in noise else -((off / 6) ** 2) / 2
            terms = weights * np.exp(said)
            chosen = jnp.zeros((4, NUM_STATES)).at[i, k].set(1.0)
            for count in (0.0, 20.0, 31.0):
                found = float(states.at_most(jnp.full(4, count), chosen)[i])
                np.testing.assert_allclose(found, terms[counts <= count].sum() / terms.sum(), atol=4e-3)


def table_of_paths(said, start, moves):
    """Every state of every cell: marginals, pairs and the likelihood, by adding up all paths."""
    walk = np.einsum("wk,wkl->kl", np.asarray(moves.walks)[:, _GROUPS], _steps()) if moves.walks.shape[0] else 0.0
    stay, restart = np.asarray(moves.stay)[_GROUPS], np.asarray(moves.restart)[_GROUPS]
    step = np.diag(stay) + restart[:, None] * start + walk
    n, states = said.shape
    likely = [k for k in range(states) if said[:, k].max() > 0]
    marginals, pairs, total = np.zeros((n, states)), np.zeros((states, states)), 0.0
    for path in itertools.product(likely, repeat=n):
        weight = start[path[0]] * np.prod([said[i, k] for i, k in enumerate(path)])
        weight *= np.prod([step[k, m] for k, m in itertools.pairwise(path)])
        total += weight
        for i, k in enumerate(path):
            marginals[i, k] += weight
        for k, m in itertools.pairwise(path):
            pairs[k, m] += weight / step[k, m]
    return np.log(total), marginals / total, pairs / total


@pytest.mark.parametrize("walks", [True, False])
def test_derivatives_of_the_likelihood_are_sums_over_all_paths(walks):
    rng = np.random.default_rng(0)
    said = np.zeros((4, NUM_STATES))
    said[:, [0, 3, 17, 60, 127]] = rng.uniform(0.1, 1, (4, 5))
    start = rng.dirichlet(np.ones(NUM_STATES))
    moves = _first_moves(walks, said.dtype)
    found = _expectations(jnp.asarray(said), jnp.asarray(start), moves)
    for ours, other in zip(found, table_of_paths(said, start, moves), strict=True):
        ours = np.asarray(ours)
        if ours.ndim == 2 and ours.shape[0] == NUM_STATES:  # pairs of states that no path takes count for nothing in a fit
            ours = ours * (other > 0)
        np.testing.assert_allclose(ours, other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_step_of_the_fit_never_lowers_the_likelihood_with_its_prior():
    rng = np.random.default_rng(1)
    measured = sample(rng, np.repeat([0, 40, 300, 0], 20))
    log = rate_states(measured).evidence().log
    said = _scaled(log)
    start, moves = mixture(log).start, _first_moves(True, said.dtype)
    last, expectations = -np.inf, jax.jit(_expectations)
    for _ in range(6):
        total, marginals, pairs = expectations(said, start, moves)
        prior = 0.5 * jnp.log(moves.stay).sum() + 0.1 * (jnp.log(moves.restart).sum() + jnp.log(moves.walks).sum())
        assert total + prior > last - 1e-6
        last = total + prior
        start, moves = _refitted(marginals[0], pairs, start, moves)
        np.testing.assert_allclose(moves.stay + moves.restart + moves.walks.sum(axis=0), 1.0)


@pytest.mark.slow
def test_what_others_say_of_a_cell_leaves_its_own_count_out():
    rng = np.random.default_rng(2)
    log = jnp.asarray(rng.normal(size=(6, NUM_STATES)))
    fit = chain(log, walks=True)
    # The posterior of a cell is what the others say times what its own count does.
    again = np.asarray(fit.others * jnp.exp(log))
    np.testing.assert_allclose(again / again.sum(axis=1, keepdims=True), fit.marginals, rtol=1e-9)


def test_a_stack_is_the_mixture_of_most_predictive_likelihood():
    rng = np.random.default_rng(3)
    log = jnp.asarray(3 * rng.normal(size=(30, NUM_STATES)))
    members = [jnp.asarray(rng.dirichlet(np.ones(NUM_STATES), 30)) for _ in range(2)]
    said = np.asarray(jnp.exp(log - log.max(axis=1, keepdims=True)))
    predicted = [np.asarray((said * others).sum(axis=1)) for others in members]
    shares = np.linspace(0, 1, 2001)
    best = shares[np.argmax([np.log(w * predicted[0] + (1 - w) * predicted[1]).sum() for w in shares])]
    mixed = said * np.asarray(best * members[0] + (1 - best) * members[1])
    np.testing.assert_allclose(stacked(log, members), mixed / mixed.sum(axis=1, keepdims=True), atol=2e-3)


def test_members_are_distributions_and_two_that_know_nothing_say_nothing_together():
    rng = np.random.default_rng(4)
    start = jnp.asarray(rng.dirichlet(np.ones(NUM_STATES)))
    others = jnp.asarray(rng.dirichlet(np.ones(NUM_STATES), 3))
    for member in loosened(others, start):
        np.testing.assert_allclose(member.sum(axis=1), 1.0)
    nothing = jnp.broadcast_to(start, others.shape)
    np.testing.assert_allclose(joined([others, nothing], start), others, rtol=1e-9)


@pytest.fixture(scope="module")
def sparse():
    rng = np.random.default_rng(5)
    cells = np.zeros(512, np.int64)
    cells[100:140], cells[300:310], cells[400] = rng.poisson(60, 40), rng.poisson(400, 10), 3000
    return cells, sample(rng, cells)


@pytest.mark.parametrize("prior", ["independent", "segments", "stacked"])
def test_it_is_nearer_than_clipped_cells_and_its_intervals_cover(sparse, prior):
    cells, measured = sparse
    found = cell_posterior(measured, prior)
    clipped = np.maximum(measured.values, 0)
    assert np.square(found.cells - cells).mean() < 0.45 * np.square(clipped - cells).mean()
    lower, upper = found.interval(0.9)
    assert np.all(lower == np.round(lower))
    assert np.all(lower >= 0)
    inside = (cells >= np.asarray(lower)) & (cells <= np.asarray(upper))
    assert inside.mean() > 0.9
    assert inside[100:140].mean() > 0.7
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0)


@pytest.mark.slow
def test_neighbours_count_along_both_axes_of_a_grid():
    rng = np.random.default_rng(6)
    cells = np.zeros((16, 16), np.int64)
    cells[3:9, 4:10] = rng.poisson(30, (6, 6))
    measured = sample(rng, cells.ravel())
    error = {shape: np.square(cell_posterior(measured, shape=shape).cells - cells.ravel()).mean() for shape in (None, (16, 16))}
    assert error[(16, 16)] < error[None]
    turned = dpi.Measurement(measured.queries, measured.values.reshape(16, 16).T.ravel(), measured.noise, measured.scale)
    np.testing.assert_allclose(
        cell_posterior(turned, "walk", shape=(16, 16)).cells.reshape(16, 16).T.ravel(),
        cell_posterior(measured, "walk", shape=(16, 16)).cells,
        atol=1e-6,
    )


@pytest.mark.slow
def test_an_unmeasured_cell_is_as_its_neighbours_and_an_exact_one_is_kept():
    values = np.full(64, 50.0) + np.random.default_rng(7).normal(0, 3, 64).round()
    scale = np.full(64, 5.0)
    scale[20], values[20], scale[40] = np.inf, -1e6, 0.0
    found = cell_posterior(noisy(values, scale=scale))
    assert 40 < found.cells[20] < 60
    assert found.stddev[20] > 5
    np.testing.assert_allclose(found.cells[40], values[40], atol=0.02)


@pytest.mark.slow
def test_a_batch_is_its_rows():
    rng = np.random.default_rng(8)
    rows = [sample(rng, rng.poisson(5, 64)) for _ in range(2)]
    batch = dpi.Measurement.batch(rows[0].queries, np.stack([m.values for m in rows]), rows[0].noise, 10.0)

    def ends(measured):
        found = cell_posterior(measured)
        return found.cells, found.stddev, *found.interval(0.9)

    for i, each in enumerate(zip(*jax.vmap(ends)(batch), strict=True)):
        for ours, other in zip(each, ends(rows[i]), strict=True):
            np.testing.assert_allclose(ours, other, rtol=1e-7, atol=1e-7)


def test_what_it_is_not_for_is_refused():
    tree = dpi.queries.Tree.complete(4, 2)
    with pytest.raises(ValueError, match="must be of Identity"):
        cell_posterior(dpi.Measurement(tree, np.zeros(6), "laplace", 1.0))
    with pytest.raises(ValueError, match="prior must be one of"):
        cell_posterior(noisy([1.0]), "hmm")
    with pytest.raises(ValueError, match="shape must have as many cells"):
        cell_posterior(noisy([1.0, 2.0]), shape=(3, 1))
    found = cell_posterior(noisy([1.0]), "independent")
    with pytest.raises(ValueError, match="gives no intervals"):
        found.answer(dpi.queries.Total(1)).interval()
    with pytest.raises(ValueError, match="level must be between"):
        found.interval(1.0)
