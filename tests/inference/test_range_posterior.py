"""Two passes with inflation beside dense algebra; ranges of sparse histograms beside least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.inference import range_posterior, tilted_cells
from dpinfer.inference.level_passes import cell_sums, node_sums, rungs_of, two_passes
from dpinfer.inference.rate_chain import mixture
from dpinfer.inference.rate_states import rate_states

Tree = dpi.queries.Tree
TREES = [
    Tree.complete(8, 2, True),
    Tree.complete(11, 3, True),
    Tree.grid((4, 6), 2, True),
    Tree.from_parents([-1, 0, 0, 2, 1, 1]),
]


def dense(tree):
    """[nodes, n], the cells below each node."""
    return np.asarray(tree.dense()) if tree.root_measured else np.vstack([np.ones(tree.shape[1]), tree.dense()])


def problem(tree, rng):
    counts, noise = rng.normal(50, 20, tree.num_nodes), rng.uniform(5, 50, tree.num_nodes)
    noise[rng.random(tree.num_nodes) < 0.3] = np.inf
    return rng.normal(10, 5, tree.shape[1]), rng.uniform(1, 30, tree.shape[1]), counts, noise


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_without_inflation_it_is_least_squares(tree):
    rng = np.random.default_rng(0)
    means, variances, counts, noise = problem(tree, rng)
    inner = np.setdiff1d(np.flatnonzero(np.isfinite(noise)), tree.leaves)
    rows = np.vstack([np.eye(means.size), dense(tree)[inner]])
    weights = 1 / np.concatenate([variances, noise[inner]])
    covariance = np.linalg.inv(rows.T * weights @ rows)
    expected = covariance @ (rows.T @ (weights * np.concatenate([means, counts[inner]])))
    found = two_passes(rungs_of(tree), *map(jnp.asarray, (means, variances, counts, noise)), inflated=False)
    np.testing.assert_allclose(found.cells, expected, rtol=1e-9)
    some = rng.normal(size=(3, means.size))
    spread = found.variances_of(rungs_of(tree), jnp.asarray(some))
    np.testing.assert_allclose(spread, np.einsum("mi,ij,mj->m", some, covariance, some), rtol=1e-9)
    np.testing.assert_array_equal(found.inflation, 1.0)


def test_inflation_is_fitted_and_errors_have_it_in_common():
    rng = np.random.default_rng(1)
    tree = Tree.complete(8, 2, True)
    means, variances, counts, noise = problem(tree, rng)
    noise = np.full(15, 4.0)
    found = two_passes(rungs_of(tree), *map(jnp.asarray, (means, variances, counts, noise)), inflated=True)
    # By hand, matrices level by level: diag blocks, factors by moments, covariances diag(V) + (k - 1) / sum V V V'.
    value, blocks, factors = means, [np.array([[v]]) for v in variances], []
    for first, size in ((3, 4), (1, 2), (0, 1)):
        spread = np.array([blocks[2 * i].sum() + blocks[2 * i + 1].sum() for i in range(size)])
        sums = np.add.reduceat(value, np.arange(0, 8, 8 // size))
        off = counts[first : first + size] - sums
        factor = max(1.0, (np.square(off).sum() - 4 * size + 2 * spread.mean()) / (spread.sum() + 2 * spread.mean()))
        factors.append(factor)
        merged = []
        for i in range(size):
            own = np.zeros((8 // size, 8 // size))
            half = own.shape[0] // 2
            own[:half, :half], own[half:, half:] = blocks[2 * i], blocks[2 * i + 1]
            common = own.sum(axis=1)
            own = own + (factor - 1) / spread[i] * np.outer(common, common)
            gain = own.sum(axis=1) / (own.sum() + 4)
            part = slice(i * (8 // size), (i + 1) * (8 // size))
            value = value.copy()
            value[part] += gain * off[i]
            merged.append(own - np.outer(gain, own.sum(axis=0)))
        blocks = merged
    assert min(factors) > 1
    np.testing.assert_allclose(found.inflation, factors[::-1], rtol=1e-9)
    np.testing.assert_allclose(found.cells, value, rtol=1e-9)
    some = rng.normal(size=(3, 8))
    expected = np.einsum("mi,ij,mj->m", some, blocks[0], some)
    np.testing.assert_allclose(found.variances_of(rungs_of(tree), jnp.asarray(some)), expected, rtol=1e-9)


@pytest.mark.slow
def test_an_exact_total_is_kept():
    tree = Tree.complete(8, 2, True)
    means, variances, counts, noise = problem(tree, np.random.default_rng(2))
    noise[0] = 0.0
    found = two_passes(rungs_of(tree), *map(jnp.asarray, (means, variances, counts, noise)), inflated=True)
    np.testing.assert_allclose(found.cells.sum(), counts[0], rtol=1e-12)
    np.testing.assert_allclose(found.variances_of(rungs_of(tree), jnp.ones((1, 8))), 0.0, atol=1e-9)


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_sums_of_nodes_and_of_what_is_above(tree):
    rng = np.random.default_rng(3)
    rows, inner = dense(tree), np.ones(tree.num_nodes)
    inner[tree.leaves] = 0
    x, entries = rng.normal(size=tree.shape[1]), rng.normal(size=tree.num_nodes)
    np.testing.assert_allclose(node_sums(rungs_of(tree), jnp.asarray(x), tree.num_nodes), rows @ x, atol=1e-12)
    np.testing.assert_allclose(cell_sums(rungs_of(tree), jnp.asarray(entries)), rows.T @ (inner * entries), atol=1e-12)


@pytest.mark.slow
def test_pulls_are_what_counts_and_tilted_sums_differ_by(monkeypatch):
    monkeypatch.setattr(tilted_cells, "_FITS", 1)
    monkeypatch.setattr(tilted_cells, "_STILL", 1e-11)
    rng = np.random.default_rng(4)
    tree = Tree.complete(16, 4, True)
    cells = np.where(rng.random(16) < 0.4, rng.poisson(40, 16), 0)
    values = dense(tree) @ cells + np.round(rng.laplace(0, 8, 21))
    noise = np.full(21, 128.0)
    states = rate_states(dpi.Measurement(dpi.queries.Identity(16), values[5:], "laplace", 8.0))
    # Of two problems at once the second.
    tilted = jax.jit(jax.vmap(lambda counts: tilted_cells.tilted_cells(states, rungs_of(tree), counts, jnp.asarray(noise))))
    means, variances = (found[1] for found in tilted(jnp.stack([1.5 * values, values])))
    fit = two_passes(rungs_of(tree), means, variances, jnp.asarray(values), jnp.asarray(noise), inflated=False)
    pulls = (values - dense(tree) @ np.asarray(fit.cells)) / noise
    # Tilted by these pulls, the posterior's mean is the fit's: the function's slope in every pull is 0.
    evidence = states.evidence(cell_sums(rungs_of(tree), jnp.asarray(pulls)))
    plain = states.evidence().log
    start = mixture(plain).start
    odds = np.asarray(plain + jnp.log(start)[None])
    possible = odds > odds.max(axis=1, keepdims=True) + np.log(1e-4)
    weights = jax.nn.softmax(jnp.where(possible, evidence.log + jnp.log(start)[None], -jnp.inf), axis=1)
    offsets, spread = evidence.moments(weights)
    np.testing.assert_allclose(values[5:] + offsets, fit.cells, atol=1e-4)
    np.testing.assert_allclose(spread, variances, rtol=1e-5)
    assert np.abs(pulls[:5]).max() > 0.01


def sparse(rng, n):
    cells = np.zeros(n, np.int64)
    cells[n // 4 : n // 4 + 20], cells[n // 2] = rng.poisson(60, 20), 3000
    return cells


def measured(cells, tree, rng, scale=30.0, noise="discrete_laplace"):
    share = 1 - np.exp(-1 / scale)
    drawn = rng.geometric(share, tree.shape[0]) - rng.geometric(share, tree.shape[0])
    return dpi.Measurement(tree, np.asarray(tree @ cells) + drawn, noise, scale)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["combined", "tilted"])
def test_ranges_are_nearer_than_least_squares_and_intervals_cover(method):
    rng = np.random.default_rng(5)
    tree = Tree.complete(512, 8, True)
    ours, theirs, inside = 0.0, 0.0, []
    for _ in range(6):
        cells = sparse(rng, 512)
        release = measured(cells, tree, rng)
        workload = dpi.queries.Ranges(512, *np.sort(rng.integers(0, 513, (2, 300)), axis=0))
        truth = np.asarray(workload @ cells)
        answers = range_posterior(release, method).answer(workload)
        ours += np.square(answers.values - truth).mean()
        theirs += np.square(dpi.least_squares(release).answer(workload).values - truth).mean()
        if method == "combined":
            lower, upper = answers.interval(0.9)
            inside.append(np.mean((truth >= lower) & (truth <= upper)))
    assert ours < 0.7 * theirs
    assert method == "tilted" or 0.8 < np.mean(inside) < 0.99


@pytest.mark.slow
def test_a_batch_on_a_grid_is_its_rows():
    rng = np.random.default_rng(6)
    tree = Tree.grid((8, 8), 2)
    rows = [measured(rng.poisson(3, 64), tree, rng, scale=5.0) for _ in range(2)]
    batch = dpi.Measurement.batch(tree, np.stack([m.values for m in rows]), rows[0].noise, 5.0)
    workload = dpi.queries.Boxes((8, 8), [[0, 1]], [[5, 7]])

    def found(release):
        estimate = range_posterior(release)
        answers = estimate.answer(workload)
        return estimate.cells, estimate.inflation, answers.values, answers.stddev

    alone = jax.jit(found)
    for i, each in enumerate(zip(*jax.jit(jax.vmap(found))(batch), strict=True)):
        for ours, other in zip(each, alone(rows[i]), strict=True):
            np.testing.assert_allclose(ours, other, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_what_it_is_not_for_is_refused():
    with pytest.raises(ValueError, match="must be of a Tree"):
        range_posterior(dpi.Measurement(dpi.queries.Identity(2), [1.0, 2.0], "laplace", 1.0))
    with pytest.raises(ValueError, match="leaves are all at one depth"):
        range_posterior(dpi.Measurement(Tree.from_parents([-1, 0, 0, 1, 1]), np.zeros(5), "laplace", 1.0))
    tree = Tree.complete(4, 2)
    with pytest.raises(ValueError, match="method must be one of"):
        range_posterior(dpi.Measurement(tree, np.zeros(6), "laplace", 1.0), "exact")
    answers = range_posterior(dpi.Measurement(tree, np.zeros(6), "laplace", 1.0)).answer(dpi.queries.Total(4))
    with pytest.raises(ValueError, match="level must be between"):
        answers.interval(0.0)
