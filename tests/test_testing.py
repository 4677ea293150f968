"""The privacy harness: what it says of every mechanism of the library, and that it catches planted faults."""

import math
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.queries import Haar, Identity, Kronecker, Partition, Prefix, Suffix, Total, Tree, VStack
from dpinfer.testing import epsilon_lower_bound, exact_epsilon, exact_rho, neighboring_cells, output_law

RELATIONS = ("add_remove", "replace_one")


def test_neighbours_by_hand():
    assert [n.tolist() for n in neighboring_cells([1, 0])] == [[2, 0], [1, 1], [0, 0]]
    assert [n.tolist() for n in neighboring_cells([1, 0, 2], "replace_one")] == [[0, 1, 2], [0, 0, 3], [2, 0, 1], [1, 1, 1]]
    assert list(neighboring_cells([0, 0], "replace_one")) == []


# What a real release says of itself, against the probabilities of its outputs.


@pytest.mark.parametrize("neighbors", RELATIONS)
@pytest.mark.parametrize(
    ("strategy", "budget"),
    [
        (Identity(2), {"epsilon": 1}),
        (VStack([Identity(2), Total(2)]), {"epsilon": 5}),
        (VStack([Identity(2), Prefix(2)]), {"level_epsilons": [3, Fraction(7, 2)]}),
        (Tree.grid((1, 2), 2, root=True), {"epsilon": 4}),
        (Prefix(3), {"epsilon": 9}),
        (Suffix(2), {"epsilon": 2}),
        (Haar(2), {"epsilon": 3}),
        (Partition([0, 1, 0]), {"epsilon": 1}),
        (Kronecker([Identity(2), Total(2)]), {"epsilon": 1}),
        (Tree.from_parents([-1, 0, 0]), {"epsilon": 6, "row_weights": [1, 2, 0]}),
    ],
    ids=repr,
)
def test_the_loss_of_a_release_is_that_of_its_outputs(strategy, budget, neighbors):
    cells = np.arange(strategy.shape[1])
    release = dp.measure(cells, strategy, neighbors=neighbors, **budget)
    epsilon = exact_epsilon(output_law(release, cells, tail=1e-6), cells, neighbors=neighbors)
    assert epsilon == pytest.approx(float(release.epsilon or 0), rel=1e-9)


@pytest.mark.parametrize("neighbors", RELATIONS)
@pytest.mark.parametrize("strategy", [Identity(2), VStack([Identity(2), Total(2)]), Haar(2)], ids=repr)
def test_the_rho_of_a_release_is_that_of_its_outputs(strategy, neighbors):
    cells = np.array([1, 2])
    release = dp.measure(cells, strategy, rho=2, neighbors=neighbors)
    rho = exact_rho(output_law(release, cells), cells, neighbors=neighbors, orders=(1.01, 2, 3))
    assert 1.5 < rho <= 2 * (1 + 1e-9)
    # A discrete Gaussian has no epsilon: ratios grow with the distance.
    narrow, wide = (exact_epsilon(output_law(release, cells, tail=tail), cells) for tail in (1e-3, 1e-6))
    assert wide > narrow


@pytest.mark.slow
def test_parts_in_parallel_lose_what_the_most_expensive_loses():
    cells = np.array([1, 0, 2])
    private = dp.PrivateCells(cells, dp.Ledger(epsilon=2))
    left, right = private.partition([0, 1, 1])
    releases = left.measure(Identity(1), epsilon=2), right.measure(Prefix(2), epsilon=2)
    laws = output_law(releases[0], cells[:1], tail=1e-6), output_law(releases[1], cells[1:], tail=1e-6)

    def both(x):
        first, second = laws[0](x[:1]), laws[1](x[1:])
        return {(a, b): p * q for a, p in first.items() for b, q in second.items()}

    assert exact_epsilon(both, cells) == pytest.approx(2, rel=1e-9)
    # A record that moves from one part to the other would lose more, which is why replace_one has no partition.
    assert exact_epsilon(both, cells, neighbors="replace_one") == pytest.approx(4, rel=1e-9)
    assert private.remaining == 0


def test_laws_with_fractions_and_laws_that_give_everything_away():
    def randomized_response(cells):
        return {0: Fraction(3, 4), 1: Fraction(1, 4)} if cells[0] == 0 else {0: Fraction(1, 4), 1: Fraction(3, 4)}

    assert exact_epsilon(randomized_response, [0]) == pytest.approx(math.log(3))
    tiny = Fraction(1, 10**400)
    assert exact_epsilon(lambda cells: {0: 1 - tiny, 1: tiny} if cells[0] else {0: 1 - 2 * tiny, 1: 2 * tiny}, [0]) == (
        pytest.approx(math.log(2))
    )
    assert exact_epsilon(lambda cells: {int(cells[0]): 1}, [3]) == math.inf
    assert exact_epsilon(lambda cells: {"nothing": 1.0}, [3, 4]) == 0
    assert exact_rho(lambda cells: {int(cells[0]): 1}, [3]) == math.inf


def test_a_planted_scale_that_forgets_a_level_is_caught_exactly():
    # Every cell is counted twice, and the noise is that of one count.
    strategy = Tree.complete(2, 2, root=True)
    release = dp.Release.from_values(strategy, np.zeros(3), noise="discrete_laplace", scale=1 / 2)
    assert exact_epsilon(output_law(release, [1, 1]), [1, 1]) == pytest.approx(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: output_law(dp.Release.from_values(Identity(1), [0], noise="laplace", scale=1), [0]), "needs integer noise"),
        (lambda: output_law(dp.measure(np.zeros(9, int), Identity(9), epsilon=0.1), [0] * 9), "more than 1e\\+06"),
        (lambda: exact_epsilon(lambda cells: {0: 1.0}, [0.5]), "cells must hold integers"),
        (lambda: exact_epsilon(lambda cells: {0: 1.0}, [0], neighbors="any"), "neighbors must be one of"),
        (lambda: epsilon_lower_bound(lambda x: x, 0, 1, num_samples=5), "num_samples must be at least 100"),
        (lambda: epsilon_lower_bound(lambda x: x, 0, 1, delta=1.0), "delta must be from 0 to below 1"),
        (lambda: epsilon_lower_bound(lambda x: x, 0, 1, confidence=1.0), "confidence must be between 0 and 1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# From samples alone. Confidence 1 - 1e-6: an upper assertion fails by chance once in a million runs of a sound mechanism.

SURE = 1 - 1e-6


def table_of(ages):
    return {"age": np.array(ages, dtype=float)}


def count_and_measure(table):
    domain = dp.Domain({"age": dp.Axis.edges([0, 18, 65], null="other", above="clip")})
    return dp.measure(dp.count(table, domain), Tree.complete(3, 2), epsilon=1, domain=domain)


def adaptive(cells):
    private = dp.PrivateCells(cells, dp.Ledger(epsilon=1))
    first = private.measure(Total(2), epsilon=Fraction(1, 2))
    # The second question depends on the first answer.
    second = private.measure(Identity(2) if int(first.values[0]) % 2 else Prefix(2), epsilon=private.remaining)
    return [*first.values, *second.values, second.queries == Identity(2)]


def in_parts(cells):
    parts = dp.PrivateCells(cells, dp.Ledger(epsilon=1)).partition([0, 1])
    return np.concatenate([part.measure(Identity(1), epsilon=1).values for part in parts])


SOUND: dict[str, tuple[Any, Any, Any, float]] = {
    "epsilon": (lambda x: dp.measure(x, Tree.complete(2, 2, root=True), epsilon=1), np.array([3, 0]), np.array([4, 0]), 1),
    "replaced": (
        lambda x: dp.measure(x, Identity(2), epsilon=1, neighbors="replace_one"),
        np.array([1, 0]),
        np.array([0, 1]),
        1,
    ),
    "count and measure": (count_and_measure, table_of([5, 20, np.nan]), table_of([5, 20, np.nan, 70]), 1),
    "adaptive": (adaptive, np.array([3, 0]), np.array([4, 0]), 1),
    "parts": (in_parts, np.array([3, 0]), np.array([4, 0]), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_no_sound_mechanism_is_found_above_its_promise(name):
    mechanism, cells, other, promised = SOUND[name]
    bound = epsilon_lower_bound(mechanism, cells, other, num_samples=1000, confidence=SURE)
    assert bound.epsilon <= promised
    # Something is seen; the log ratio of two frequencies near 0.5 and 0.3 from 500 samples each has a standard error of 0.08.
    assert math.log(bound.frequencies[0] / bound.frequencies[1]) > 0.05


@pytest.mark.slow
def test_gaussian_noise_stays_below_its_epsilon_at_a_delta():
    release = dp.measure(np.array([3]), Identity(1), rho=0.5)
    delta = 1e-3
    bound = epsilon_lower_bound(
        lambda x: dp.measure(x, Identity(1), rho=0.5),
        np.array([3]),
        np.array([4]),
        num_samples=2000,
        delta=delta,
        confidence=SURE,
    )
    assert bound.epsilon <= release.epsilon_at(delta)
    assert math.log(bound.frequencies[0] / bound.frequencies[1]) > 0.05


def test_simulated_noise_has_the_loss_of_its_scale():
    # 20,000 pretended releases at once; the harness takes one after the other.
    strategy = Tree.complete(2, 2, root=True)
    keys = iter(jax.random.split(jax.random.key(0), 2))
    draw = jax.jit(jax.vmap(lambda key, x: dp.simulate(x, strategy, epsilon=1.0, key=key).values, in_axes=(0, None)))

    def mechanism_of(cells):
        return iter(np.asarray(draw(jax.random.split(next(keys), 10_000), np.asarray(cells, dtype=float))))

    outputs = {0: mechanism_of([3, 0]), 1: mechanism_of([4, 0])}
    bound = epsilon_lower_bound(lambda which: next(outputs[which]), 0, 1, num_samples=10_000, confidence=SURE)
    assert 0.6 < bound.epsilon <= 1
    assert bound.num_samples == 5000
    assert bound.frequencies[0] > bound.frequencies[1]


def broken_mechanisms():
    rng = np.random.default_rng(0)
    laplace = lambda scale, size: rng.laplace(0, scale, size)  # noqa: E731
    tree = Tree.complete(2, 2, root=True)
    shared = laplace(1, 1)
    return {
        # A tree whose noise is that of one level.
        "sensitivity of one level": lambda x: tree @ x + laplace(1, 3),
        # The same noise for two answers, whose difference is exact.
        "one key for two answers": lambda x: x + laplace(1, 1),
        "the same noise every time": lambda x: x + shared,
        "no noise at all": lambda x: x,
        # Rounding the noise and not the count.
        "a fraction that stays": lambda x: x * 0.1 + np.round(laplace(1, 2)),
        "as many outputs as records": lambda x: np.zeros(int(x.sum())),
        "text": lambda x: "many" if x.sum() + rng.laplace() / 5 > 6.5 else "few",
        "selection by the largest count": lambda x: int(np.argmax(x + laplace(0.2, 2))),
        "noise by the data": lambda x: laplace(1 if x[0] > 3 else 6, 1),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", broken_mechanisms())
def test_planted_faults_are_caught(name):
    cells, other = np.array([3, 3]), np.array([4, 3])
    bound = epsilon_lower_bound(broken_mechanisms()[name], cells, other, num_samples=20_000, confidence=SURE)
    assert bound.epsilon > 1, bound
    assert bound.event != "none"
    assert bound.frequencies[0] > bound.frequencies[1]


@pytest.mark.slow
def test_what_tells_nothing_is_bounded_by_zero_and_bounds_are_valid_in_repetition():
    rng = np.random.default_rng(1)
    assert epsilon_lower_bound(lambda x: rng.normal(), 0, 1, num_samples=400).epsilon == 0
    assert epsilon_lower_bound(lambda x: None, 0, 1, num_samples=400).epsilon == 0
    # At confidence 0.8 a bound of randomised response may be above the truth in at most a fifth of many runs; Chernoff's
    # inequality leaves it well below that.
    truth = math.log(3)
    bounds = [
        epsilon_lower_bound(lambda x: (rng.random() < 0.75) == x, True, False, num_samples=1000, confidence=0.8).epsilon
        for _ in range(60)
    ]
    assert np.mean(np.array(bounds) > truth) <= 0.2
    assert np.mean(bounds) > 0.8 * truth


def test_a_statistic_may_choose_what_to_look_at():
    rng = np.random.default_rng(2)

    def mechanism(x):
        return {"noise": rng.laplace(size=3), "leak": x}

    assert epsilon_lower_bound(mechanism, 0, 1, num_samples=1000, statistic=lambda output: output["leak"]).epsilon > 3
    assert epsilon_lower_bound(mechanism, 0, 1, num_samples=400).epsilon == 0  # no two of these outputs are ever the same
