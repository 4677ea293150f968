"""measure and simulate: the law of the noise, the spend, and what an outsider can see."""

import itertools
import math
import os
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import largest_change
from scipy import stats

import dpinfer as dp
from dpinfer.queries import Dense, Identity, Prefix, Ranges, Total, Tree, VStack

STRATEGIES = {
    "identity": Identity(4000),
    "tree": Tree.complete(4000, 4, root=True),
    "prefix": Prefix(4000),
    "stack": VStack([Identity(2000), Total(2000), Tree.complete(2000, 16)]),
}
CELLS = np.random.default_rng(0).integers(0, 50, 4000)


def p_value(noise: np.ndarray, scale: float) -> float:
    """Chi-square of integer noise against the discrete Laplace law of a scale, by some twenty bins of equal probability."""
    law = stats.dlaplace(1 / scale)
    edges = np.unique(law.ppf(np.linspace(0, 1, 21)[1:-1]))
    probability = np.diff(np.concatenate([[0], law.cdf(edges), [1]]))
    observed = np.bincount(np.searchsorted(edges, noise, side="left"), minlength=edges.size + 1)
    return float(stats.chisquare(observed, probability * noise.size).pvalue)


@pytest.mark.parametrize("name", STRATEGIES)
def test_noise_has_the_law_that_the_sensitivity_asks_for(name):
    strategy = STRATEGIES[name]
    cells = CELLS[: strategy.shape[1]]
    # Spread so wide that a scale off by a third shows: 4,000 rows, and twenty bins.
    release = dp.measure(cells, strategy, epsilon=Fraction(strategy.sensitivity(), 40))
    noise = np.asarray(release.values) - strategy @ cells
    assert release.values.dtype == np.int64
    assert float(release.scale) == 40
    assert p_value(noise, 40.0) > 1e-6
    # The same test catches what it must catch: a forgotten sensitivity, and forgotten cells.
    if strategy.sensitivity() > 1:
        forgot_sensitivity = dp.measure(cells, strategy, epsilon=Fraction(1, 40) * strategy.sensitivity() ** 2)
        assert p_value(np.asarray(forgot_sensitivity.values) - strategy @ cells, 40.0) < 1e-9
    forgot_cells = np.asarray(release.values) - 2 * (strategy @ cells)
    assert p_value(forgot_cells, 40.0) < 1e-9


def test_levels_have_their_own_scales_and_add_up():
    tree = Tree.complete(3000, 8)
    cells = CELLS[:3000]
    release = dp.measure(cells, tree, level_epsilons=[0.1, 0, Fraction(1, 30), Decimal("0.2")])
    assert release.epsilon == Fraction(1, 10) + Fraction(1, 30) + Fraction(1, 5)
    scale = np.asarray(release.scale)
    for level, expected in enumerate([10, np.inf, 30, 5]):
        np.testing.assert_array_equal(scale[tree.levels == level], expected)
    noise = np.asarray(release.values) - tree @ cells
    assert np.all(np.asarray(release.values)[tree.levels == 1] == 0)  # not measured: nothing of the cells
    assert p_value(noise[tree.levels == 3], 5.0) > 1e-6
    assert p_value(noise[tree.levels == 2], 30.0) > 1e-6


def test_row_weights_divide_the_scale():
    stack = VStack([Identity(2000), Total(2000)])
    weights = np.repeat([0.5, 0.0, 2.0], [1000, 1000, 1])
    release = dp.measure(CELLS[:2000], stack, epsilon=0.25, row_weights=weights)
    # A cell of the first half is counted twice, with weights 1/2 and 2.
    np.testing.assert_array_equal(np.asarray(release.scale), np.repeat([20.0, np.inf, 5.0], [1000, 1000, 1]))
    assert release.epsilon == Fraction(1, 4)
    assert np.all(np.asarray(release.values)[1000:2000] == 0)


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_the_spend_is_exactly_what_was_asked_for_and_never_more(neighbors):
    rng = np.random.default_rng(1)
    strategies = [
        Identity(5),
        Prefix(5),
        Tree.complete(5, 2),
        Tree.complete(9, 3),
        Tree.from_parents([-1, 0, 0, 1, 1, 2, 2, 3, 3]),
        Dense(rng.integers(-3, 4, (4, 5))),
        VStack([Tree.complete(5, 2), Prefix(5)]),
        Ranges(5, [0, 1, 2], [3, 5, 4]),
    ]
    for strategy, epsilon in itertools.product(strategies, [0.1, 0.3, 1 / 3, Decimal("0.7"), Fraction(3, 7), 2, np.float32(0.1)]):
        cells = np.zeros(strategy.shape[1], dtype=int)
        release = dp.measure(cells, strategy, epsilon=epsilon, neighbors=neighbors)
        asked = Fraction(str(epsilon))
        assert release.epsilon == asked
        assert release.neighbors == neighbors
        # The loss by enumeration, with the scale that was recorded.
        scale = np.broadcast_to(release.scale, release.values.shape)
        loss = largest_change(np.asarray(strategy.dense()), 1 / scale, 1, neighbors)
        assert loss == pytest.approx(float(asked), rel=1e-14)
        weights = rng.integers(0, 4, strategy.shape[0])
        weights[0] = 1
        weighted = dp.measure(cells, strategy, epsilon=epsilon, neighbors=neighbors, row_weights=weights)
        assert weighted.epsilon == asked
        loss = largest_change(np.asarray(strategy.dense()), 1 / np.asarray(weighted.scale), 1, neighbors)
        assert loss == pytest.approx(float(asked), rel=1e-14)


def test_level_budgets_under_replace_one_count_both_ends_of_a_move():
    tree = Tree.complete(9, 3, root=True)
    release = dp.measure(np.zeros(9, dtype=int), tree, level_epsilons=[0, 0.1, 0.2], neighbors="replace_one")
    assert release.epsilon == Fraction(3, 10)
    np.testing.assert_array_equal(np.unique(release.scale), [10, 20, np.inf])
    with pytest.raises(ValueError, match=r"level_epsilons\[0\] must be 0: no record can change that level"):
        dp.measure(np.zeros(9, dtype=int), tree, level_epsilons=[0.1, 0.1, 0.2], neighbors="replace_one")


def test_zero_concentrated_budgets_use_the_discrete_gaussian():
    tree = Tree.complete(3000, 16)
    cells = CELLS[:3000]
    release = dp.measure(cells, tree, rho=0.01)
    assert release.noise == "discrete_gaussian"
    assert release.rho == Fraction(1, 100)
    assert release.epsilon is None
    assert float(release.scale) == pytest.approx(math.sqrt(3 / 0.02))
    noise = np.asarray(release.values) - tree @ cells
    assert stats.kstest(noise + np.random.default_rng(0).uniform(-0.5, 0.5, noise.size), stats.norm(0, 12.247).cdf).pvalue > 1e-6
    levels = dp.measure(cells, tree, level_rhos=[0.1, 0.2, 0.005])
    assert levels.rho == Fraction(305, 1000)
    np.testing.assert_allclose(np.unique(levels.scale), [math.sqrt(2.5), math.sqrt(5), 10])


def test_enumerated_output_law_bounds_the_loss_and_reaches_it():
    # Identity and total of two cells: the exact law of every output on a grid, for every pair of neighbours with counts 0..2.
    strategy = VStack([Identity(2), Total(2)])
    release = dp.measure(np.zeros(2, dtype=int), strategy, epsilon=Fraction(1, 2))
    law: Any = stats.dlaplace(1 / float(release.scale))
    outputs = np.array(list(itertools.product(range(-6, 9), repeat=3)))

    def log_probability(cells):
        return law.logpmf(outputs - strategy @ np.array(cells)).sum(axis=1)

    losses = []
    for cells in itertools.product(range(3), repeat=2):
        for j in range(2):
            neighbor = np.array(cells)
            neighbor[j] += 1
            losses.append(np.abs(log_probability(cells) - log_probability(neighbor)).max())
    assert max(losses) == pytest.approx(0.5, rel=1e-12)
    assert max(losses) <= float(release.epsilon or 0) * (1 + 1e-12)


def test_no_seeded_generator_is_used(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("a seeded generator was used")

    for module in (np.random, random, jax.random):
        for name in dir(module):
            if not name.startswith("_") and callable(getattr(module, name)) and not isinstance(getattr(module, name), type):
                monkeypatch.setattr(module, name, forbidden)
    monkeypatch.setattr(np.random, "Generator", forbidden)
    monkeypatch.setattr(random.Random, "random", forbidden)
    asked = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: (asked.append(n), real(n))[1])
    first = dp.measure(CELLS, Identity(4000), epsilon=1)
    second = dp.measure(CELLS, Identity(4000), rho=1)
    again = dp.measure(CELLS, Identity(4000), epsilon=1)
    assert asked
    assert not np.array_equal(first.values, again.values)
    assert second.values.dtype == np.int64


def test_huge_counts_saturate_and_never_wrap():
    top = np.iinfo(np.int64).max
    tree = Tree.complete(2, 2, root=True)
    for cells in ([2**31 - 1, 1], [2**62, 2**62 - 5], [-(2**62), 17]):
        release = dp.measure(np.array(cells), tree, epsilon=100)
        assert np.abs(np.asarray(release.values).astype(object) - [sum(cells), *cells]).max() < 10
    release = dp.measure(np.array([top, 1]), tree, epsilon=1)
    assert release.values[0] > top - 1000
    assert release.values[1] > top - 1000
    lowest = dp.measure(np.array([-top, -top]), tree, epsilon=1)
    assert lowest.values[0] < -top + 1000
    unsigned = dp.measure(np.array([2**64 - 1, 0], dtype=np.uint64), Identity(2), epsilon=1)
    assert unsigned.values[0] > top - 1000


def test_a_ledger_is_charged_exactly_and_never_overdrawn():
    cells, identity = np.zeros(3, dtype=int), Identity(3)
    for parts in (3, 7, 10, 1000):
        ledger = dp.Ledger(epsilon=1)
        for _ in range(parts):
            dp.measure(cells, identity, epsilon=Fraction(1, parts), ledger=ledger)
        assert ledger.remaining == 0
        assert ledger.spent == 1
        for tiny in (5e-324, Fraction(1, 10**40)):
            with pytest.raises(ValueError, match="less than the|too small"):
                dp.measure(cells, identity, epsilon=tiny, ledger=ledger)
            with pytest.raises(ValueError, match="less than the"):
                ledger.charge(tiny, unit="epsilon", neighbors="add_remove")
    ledger = dp.Ledger(epsilon=Decimal("0.3"))
    for _ in range(3):
        dp.measure(cells, identity, epsilon=0.1, ledger=ledger)
    assert ledger.remaining == 0
    ledger = dp.Ledger(rho=1)
    with pytest.raises(ValueError, match="kept in rho and cannot be charged epsilon"):
        dp.measure(cells, identity, epsilon=0.1, ledger=ledger)
    ledger = dp.Ledger(epsilon=1)
    dp.measure(cells, identity, epsilon=0.5, ledger=ledger)
    with pytest.raises(ValueError, match="kept under 'add_remove'"):
        dp.measure(cells, identity, epsilon=0.1, ledger=ledger, neighbors="replace_one")
    with pytest.raises(ValueError, match=r"has 1/2 .* left, less than the 3/5"):
        dp.measure(cells, identity, epsilon=0.6, ledger=ledger)
    assert ledger.spent == Fraction(1, 2)  # a refusal spends nothing
    with pytest.raises(ValueError, match="cells must have an integer dtype"):
        dp.measure(np.zeros(3), identity, epsilon=0.1, ledger=ledger)
    assert ledger.spent == Fraction(1, 2)
    for bad in ({}, {"epsilon": 1, "rho": 1}):
        with pytest.raises(ValueError, match="exactly one of"):
            dp.Ledger(**bad)


@pytest.mark.parametrize("epsilon", [None, 0, -1, math.inf, math.nan, "much", True, 1j])
def test_budgets_that_are_none(epsilon):
    cases: list[dict[str, Any]] = [{"epsilon": epsilon}, {"level_epsilons": [epsilon]}, {"rho": epsilon}]
    for arguments in cases:
        with pytest.raises(ValueError, match="epsilon|rho"):
            dp.measure(np.zeros(2, dtype=int), Tree.complete(2, 2), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Give exactly one of epsilon, rho, level_epsilons, level_rhos; got none"),
        ({"epsilon": 1, "rho": 1}, "got epsilon, rho"),
        ({"cells": np.zeros(4)}, "cells must have an integer dtype to be measured exactly, got float64"),
        ({"cells": np.array([1, 2, 3, None])}, "cells must have an integer dtype"),
        ({"cells": np.zeros(4, dtype=bool)}, "cells must have an integer dtype"),
        ({"cells": np.zeros(5, dtype=int)}, "one entry for each of the strategy's 4 cells"),
        ({"strategy": Dense(np.ones((2, 4)))}, "strategy must have entries of an integer dtype"),
        ({"strategy": Dense([[2**40, 0, 0, 1]])}, "sum to less than 2"),
        ({"neighbors": "both"}, "neighbors must be one of"),
        ({"level_epsilons": [1], "epsilon": None}, "level_epsilons must have 2 entries, one for each level"),
        ({"level_epsilons": [0, 0], "epsilon": None}, "level_epsilons must have a positive entry"),
        ({"level_epsilons": [1, 1], "epsilon": None, "row_weights": np.ones(6)}, "cannot be combined"),
        ({"level_epsilons": [1], "epsilon": None, "strategy": Identity(4)}, "has no levels to budget"),
        ({"row_weights": np.ones(5)}, r"row_weights must have shape \[6\]"),
        ({"row_weights": -np.ones(6)}, "row_weights must be non-negative"),
        ({"row_weights": np.zeros(6)}, "nothing to protect"),
        ({"strategy": Total(4), "neighbors": "replace_one"}, "does not change under 'replace_one'"),
        ({"epsilon": 1e-15}, "too small: the noise would exceed"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    arguments = {"cells": np.zeros(4, dtype=int), "strategy": Tree.complete(4, 2), "epsilon": 1} | arguments
    arguments = {k: v for k, v in arguments.items() if v is not None}
    if message.startswith("Give"):
        arguments.pop("epsilon")
    with pytest.raises(ValueError, match=message):
        dp.measure(arguments.pop("cells"), arguments.pop("strategy"), **arguments)


def test_what_is_wrong_is_found_before_the_ledger_is_charged():
    ledger = dp.Ledger(epsilon=1)
    for arguments in (
        {"domain": dp.Domain({"x": dp.Axis.integers(0, 3)})},
        {"cells": np.zeros(3, dtype=int)},
        {"row_weights": [1]},
    ):
        call: dict[str, Any] = {"cells": np.zeros(4, dtype=int), "strategy": Identity(4), "epsilon": 1, "ledger": ledger}
        call |= arguments
        with pytest.raises(ValueError, match="domain|cells|row_weights"):
            dp.measure(call.pop("cells"), call.pop("strategy"), **call)
    with pytest.raises(ValueError, match="rho is too large: the noise would vanish"):
        dp.measure(np.zeros(2, dtype=int), Identity(2), rho=10**330)
    assert ledger.spent == 0


def test_narrow_and_unsigned_matrices_have_their_true_sensitivity():
    cells = np.array([5, 3])
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        for make in (np.array, jnp.array):
            matrix = make([[100, 0]], dtype=dtype)
            assert float(dp.measure(cells, Dense(matrix), rho=1).scale) == pytest.approx(100 / 2**0.5)
            assert float(dp.measure(cells, Dense(matrix), epsilon=1, neighbors="replace_one").scale) == 100
            assert float(dp.measure(cells, VStack([Dense(matrix)]), epsilon=1).scale) == 100
    big = 2**31 - 1
    stack = VStack([Dense(np.full((5, 1), big)), Total(1)])
    release = dp.measure(np.array([5]), stack, level_rhos=[1, 1])
    assert release.rho == 2
    assert float(release.scale[0]) == pytest.approx(big * math.sqrt(2.5))
    with pytest.raises(ValueError, match="matrix must fit 64-bit signed integers"):
        Dense(np.array([[2**64 - 1]], dtype=np.uint64))


def test_a_list_of_any_integers_saturates_like_an_array():
    top = np.iinfo(np.int64).max
    for cells in ([2**64, 1], [2**63, -1], (10**30, np.int8(3))):
        assert dp.measure(cells, Identity(2), epsilon=1).values[0] > top - 1000
    for cells in ([1.0, 2], ["1", 2]):
        with pytest.raises(ValueError, match="cells must have an integer dtype"):
            dp.measure(cells, Identity(2), epsilon=1)


def test_errors_and_releases_show_nothing_of_the_cells():
    secret = 987654321
    for cells in (np.full(4, float(secret)), np.full(5, secret), np.array([str(secret)] * 4), np.full(4, -secret)):
        try:
            release = dp.measure(cells, Identity(4), epsilon=0.001)
        except ValueError as error:
            assert str(secret) not in str(error)
            assert "5" not in str(error)  # not the length of what came either
        else:
            assert not any(np.array_equal(leaf, cells) for leaf in jax.tree.leaves(release.measurement))
            assert str(secret) not in repr(release)


def test_measure_refuses_to_be_traced():
    with pytest.raises(ValueError, match="measure runs on the host"):
        jax.jit(lambda c: dp.measure(c, Identity(3), epsilon=1).values)(jnp.zeros(3, dtype=int))


@pytest.mark.parametrize("name", STRATEGIES)
def test_simulate_has_the_scale_of_measure(name):
    strategy = STRATEGIES[name]
    cells = CELLS[: strategy.shape[1]]
    cases: list[dict[str, Any]] = [{"epsilon": 0.25}, {"rho": 0.1}, {"epsilon": 0.25, "neighbors": "replace_one"}]
    for arguments in cases:
        if name == "prefix" and "neighbors" in arguments:
            arguments["neighbors"] = "add_remove"
        real = dp.measure(cells, strategy, **arguments)
        pretended = dp.simulate(cells, strategy, **arguments, key=jax.random.key(0))
        np.testing.assert_allclose(pretended.scale, real.scale, rtol=1e-14)
    if strategy.levels is not None:
        budgets = np.linspace(0.1, 1, strategy.levels.max() + 1)
        budgets[1] = 0
        real = dp.measure(cells, strategy, level_epsilons=budgets)
        pretended = dp.simulate(cells, strategy, level_epsilons=budgets, key=jax.random.key(0))
        np.testing.assert_allclose(pretended.scale, real.scale, rtol=1e-14)
        assert np.all(np.asarray(pretended.values)[strategy.levels == 1] == 0)
    weights = np.random.default_rng(0).integers(1, 3, strategy.shape[0])
    real = dp.measure(cells, strategy, epsilon=0.5, row_weights=weights)
    pretended = dp.simulate(cells, strategy, epsilon=0.5, row_weights=weights, key=jax.random.key(0))
    np.testing.assert_allclose(pretended.scale, real.scale, rtol=1e-14)


@pytest.mark.parametrize("noise", ["laplace", "discrete_laplace", "gaussian"])
def test_simulated_noise_has_its_law(noise):
    budget: dict[str, Any] = {"rho": 1 / 50} if noise == "gaussian" else {"epsilon": 1 / 5}
    measurement = dp.simulate(CELLS, Identity(4000), **budget, noise=noise, key=jax.random.key(3))
    draws = np.asarray(measurement.values) - CELLS
    assert float(measurement.scale) == pytest.approx(5)
    if noise == "discrete_laplace":
        assert p_value(draws.astype(int), 5.0) > 1e-6
        assert np.all(draws == np.round(draws))
    else:
        law = stats.laplace(0, 5) if noise == "laplace" else stats.norm(0, 5)
        assert stats.kstest(draws, law.cdf).pvalue > 1e-6


@pytest.mark.parametrize("noise", ["laplace", "discrete_laplace", "gaussian"])
def test_a_key_is_consumed_once(noise):
    budget: dict[str, Any] = {"rho": 1.0} if noise == "gaussian" else {"epsilon": 1.0}
    with jax.debug_key_reuse(True):
        key = jax.random.key(5)
        values = jax.jit(lambda k: dp.simulate(np.zeros(3), Identity(3), **budget, noise=noise, key=k).values)(key)
    assert np.all(np.isfinite(values))


@pytest.mark.slow
def test_simulate_under_transforms():
    tree = Tree.complete(9, 3)
    cells, keys = jnp.arange(9.0), jax.random.split(jax.random.key(0), 4)

    def values(key, epsilon):
        return dp.simulate(cells, tree, epsilon=epsilon, key=key).values

    batch = jax.jit(jax.vmap(values, (0, None)))(keys, 0.5)
    for row, key in zip(batch, keys, strict=True):
        np.testing.assert_allclose(row, values(key, 0.5), rtol=1e-13)
    assert len({float(row[0]) for row in batch}) == 4
    measurements = jax.vmap(lambda key: dp.simulate(cells, tree, epsilon=1.0, key=key))(keys)
    estimates = jax.vmap(dp.least_squares)(measurements)
    assert estimates.cells.shape == (4, 9)
    # The noise is a scale times a draw that does not depend on it: d values / d epsilon = -noise / epsilon.
    slope = jax.jacobian(values, 1)(keys[0], 0.5)
    np.testing.assert_allclose(slope, -(values(keys[0], 0.5) - tree @ cells) / 0.5, rtol=1e-12)
    levels = jax.grad(lambda e: dp.simulate(cells, tree, level_epsilons=e, key=keys[0]).values.sum())(jnp.array([0.5, 0.0]))
    assert np.all(np.isfinite(levels))
    assert float(levels[1]) == 0


def test_sweeping_a_budget_compiles_once():
    compiled = []

    @jax.jit
    def error(key, epsilon):
        compiled.append(1)
        measurement = dp.simulate(jnp.zeros(9), Tree.complete(9, 3), epsilon=epsilon, key=key)
        return dp.least_squares(measurement).cells

    for epsilon in (0.1, 0.2, 1.0):
        error(jax.random.key(0), epsilon)
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": jax.random.PRNGKey(0)}, "key must be one typed key"),
        ({"key": jax.random.split(jax.random.key(0), 2)}, "key must be one typed key"),
        ({"noise": "gaussian"}, "noise must be 'laplace' or 'discrete_laplace' under epsilon, got 'gaussian'"),
        ({"epsilon": 0.0}, "epsilon must be positive, got 0.0"),
        ({"epsilon": math.inf}, "epsilon must be finite"),
        ({"row_weights": [1.0]}, r"row_weights must have shape \[3\]"),
        ({"row_weights": [1.0, -1.0, 1.0]}, "row_weights must be non-negative and finite"),
    ],
)
def test_simulate_names_bad_arguments(arguments, message):
    arguments = {"epsilon": 1.0, "key": jax.random.key(0)} | arguments
    with pytest.raises(ValueError, match=message):
        dp.simulate(np.zeros(3), Identity(3), **arguments)


@pytest.mark.slow
def test_ten_million_draws_stay_finite_and_reach_the_tails():
    release = dp.measure(np.zeros(2_000_000, dtype=np.int64), Identity(2_000_000), epsilon=1)
    largest = np.abs(np.asarray(release.values)).max()
    # P(max < m) = (1 - 2 p^m / (1 + p))^n: between its 1e-6 quantiles.
    n, p = 2_000_000, math.exp(-1)
    low, high = (math.log((-math.log(q) / n) * (1 + p) / 2) / -1 for q in (1e-6, 1 - 1e-6))
    assert low - 1 <= largest <= high + 1
