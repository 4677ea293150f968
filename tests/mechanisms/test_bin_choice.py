"""Choices of bins: costs and by how much a record changes them, the law of each rule, and privacy by writing down everything."""

import importlib
import itertools
import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpinfer.mechanisms.bin_costs import absolute_deviations, squares
from dpinfer.mechanisms.exact_choice import exponential_mechanism, permute_and_flip
from dpinfer.mechanisms.joint_choice import SegmentationWeights, _powers, dyadic_rate, exact_index
from dpinfer.testing import neighboring_cells

module = importlib.import_module("dpinfer.mechanisms.structure_first")  # which the function of that name hides


def deviation(x):
    return int(np.abs(x - np.sort(x)[len(x) // 2]).sum())


def square(x):
    return Fraction(len(x) * int((x * x).sum()) - int(x.sum()) ** 2, len(x))


def in_grid(n, most):
    return [np.array(x) for x in itertools.product(range(most + 1), repeat=n)]


# Costs


@pytest.mark.parametrize("n", [1, 2, 7, 300])
def test_costs_are_those_of_bins(n):
    x = np.random.default_rng(n).integers(-3, 9, n)
    found, table = absolute_deviations(x), np.asarray(absolute_deviations(x).table())
    for i in range(1, n + 1, max(1, n // 7)):
        assert found.row(i).tolist() == [deviation(x[j:i]) for j in range(i)]
        np.testing.assert_array_equal(table[i, :i], found.row(i))
        assert np.isinf(table[i, i:]).all()
    clamped = np.clip(x, 0, 7)
    found = squares(x, 7)
    table = np.asarray(found.table())
    for i in range(1, n + 1, max(1, n // 7)):
        assert found.row(i).tolist() == [math.floor(square(clamped[j:i]) * 2**16) for j in range(i)]
        np.testing.assert_array_equal(table[i, :i], found.row(i))
    assert found.change == 13 * 2**16
    assert squares(x, 7, is_paper=True).change == 15 * 2**16


def test_large_counts_take_coarser_units():
    x = np.array([0, 10**8, 5, 10**8, 3])
    found = squares(x, 10**8)
    units = [float(square(x[j:4]) / int(found.row(4)[j])) for j in range(3)]
    np.testing.assert_allclose(units, units[0], rtol=1e-6)
    assert math.log2(units[0]) == pytest.approx(round(math.log2(units[0])), abs=1e-6)
    assert found.row(5).sum() < 2**42
    assert found.change >= (2 * 10**8 - 1) / 2 ** round(math.log2(units[0]))
    # Deviations of cells of any size are whole numbers that float64 holds.
    huge = absolute_deviations(np.array([2**62, -(2**62), 0])).row(3)
    assert huge[0] == 2 * ((2**40 - 1) // 3)
    with pytest.raises(ValueError, match=r"max_count must be below 2\*\*31 / 5"):
        squares(x, 2**30)


@pytest.mark.parametrize(("n", "most"), [(2, 1), (2, 3), (3, 2), (3, 4), (4, 2)])
def test_a_record_changes_the_cost_of_a_bin_by_no_more_than_is_said(n, most):
    # Two cells one apart, all of them: the largest changes are 1 and, before rounding to units, (1 - 1 / n) (2 F - 1).
    largest = [0.0, 0.0]
    for x in in_grid(n, most):
        rows = absolute_deviations(x).row(n)[0], squares(x, most).row(n)[0] / 2**16
        for j in range(n):
            if x[j] < most:
                other = x + np.eye(n, dtype=int)[j]
                others = absolute_deviations(other).row(n)[0], squares(other, most).row(n)[0] / 2**16
                largest = [max(a, abs(b - c)) for a, b, c in zip(largest, rows, others, strict=True)]
    assert largest[0] == 1 == absolute_deviations(np.zeros(n, int)).change
    assert largest[1] == pytest.approx((1 - 1 / n) * (2 * most - 1), abs=1e-4)
    assert largest[1] <= squares(np.zeros(n, int), most).change / 2**16


# Laws of the rules, from costs


def law_of_flips(costs, rate):
    keep = np.exp(-float(rate) * (np.asarray(costs) - min(costs)))
    law = np.zeros(len(costs))
    for kept in itertools.product([False, True], repeat=len(costs)):
        if any(kept):
            chance = np.where(kept, keep, 1 - keep).prod()
            law += chance * np.array(kept) / sum(kept)
    return law


def law_of_exponentials(costs, rate):
    weights = np.exp(-float(rate) * (np.asarray(costs) - min(costs)))
    return weights / weights.sum()


RULES = {"noisy_min": (permute_and_flip, law_of_flips), "exponential": (exponential_mechanism, law_of_exponentials)}


@pytest.mark.parametrize("rule", RULES)
def test_candidates_are_chosen_by_the_law(rule):
    choose, law = RULES[rule]
    costs, draws = np.array([4, 2, 7, 2, 3]), 3000
    tally = np.bincount([choose(costs, Fraction(2, 5)) for _ in range(draws)], minlength=5)
    assert stats.chisquare(tally, law(costs, 0.4) * draws).pvalue > 1e-4
    # Far dearer than the best, or with no budget at all.
    assert choose(np.array([10**15, 0, 2**60]), Fraction(1)) == 1
    assert {choose(np.array([10**6, 0]), Fraction(1, 10**12)) for _ in range(60)} == {0, 1}


def test_flips_are_never_dearer_than_exponentials():
    for costs in itertools.product(range(4), repeat=3):
        means = [float(law(costs, 0.7) @ np.array(costs)) for law in (law_of_flips, law_of_exponentials)]
        assert means[0] <= means[1] + 1e-12


def all_stops(n, bins):
    return [(*cuts, n) for k in ([bins] if bins else range(1, n + 1)) for cuts in itertools.combinations(range(1, n), k - 1)]


def segmentation_costs(x, cost, stops):
    return sum(cost(x[a:b]) for a, b in itertools.pairwise((0, *stops)))


@pytest.mark.parametrize("bins", [None, 3])
def test_weights_of_segmentations_are_those_of_their_costs(bins):
    x, price = np.random.default_rng(2).integers(0, 9, 7), 0.5
    rate = dyadic_rate(Fraction(1), 1, 7, 7)
    weights = SegmentationWeights(absolute_deviations(x).row, 7, bins, rate, 0.0 if bins else price)
    law = {
        stops: 2 ** (-rate[0] / 2 ** rate[1] * segmentation_costs(x, deviation, stops))
        * (1 if bins else math.exp(-price * len(stops)))
        for stops in all_stops(7, bins)
    }
    total = sum(law.values())
    for stops, weight in law.items():
        assert float(probability(weights, stops, bins)) == pytest.approx(weight / total, rel=1e-12)
    draws = 2000
    tally = dict.fromkeys(law, 0)
    for _ in range(draws):
        tally[tuple(weights.draw().tolist())] += 1
    expected = np.array(list(law.values())) / total * draws
    often = expected > 5
    seen, due = (np.append(np.array(v)[often], np.array(v)[~often].sum() + 1e-9) for v in (list(tally.values()), expected))
    assert stats.chisquare(seen, due).pvalue > 1e-4


def probability(weights, stops, bins):
    """Of a segmentation, exactly, from the numbers that are drawn by."""
    chance, i, left = Fraction(1), stops[-1], bins
    for begin in (*stops[-2::-1], 0):
        numbers = zip(*weights.last_bins(i, left), strict=True)
        terms = [Fraction(m) * Fraction(2) ** int(e) if m else Fraction(0) for m, e in numbers]
        chance *= terms[begin] / sum(terms)
        i, left = begin, None if left is None else left - 1
    return chance


def test_no_segmentation_is_impossible():
    # A gap of 1,600 nats and more: in floating point the probability of the worst would be 0, and the loss infinite.
    x = np.array([0, 4000, 0])
    weights = SegmentationWeights(absolute_deviations(x).row, 3, 2, dyadic_rate(Fraction(1), 1, 3, 2))
    chances = [probability(weights, stops, 2) for stops in ((1, 3), (2, 3))]
    assert chances[0] == chances[1] == Fraction(1, 2)
    x = np.array([0, 0, 4000])
    weights = SegmentationWeights(absolute_deviations(x).row, 3, 2, dyadic_rate(Fraction(1), 1, 3, 2))
    chance = probability(weights, (1, 3), 2)
    assert 0 < chance < Fraction(1, 2**2000)
    assert (math.log(chance.numerator) - math.log(chance.denominator)) == pytest.approx(-2000, rel=1e-5)


def test_a_place_is_drawn_exactly_whatever_its_size():
    class Words:
        def __init__(self, *given):
            self.given = list(given)

        def __call__(self, size):
            assert size == 1
            return np.array([self.given.pop(0) if self.given else 2**63], dtype=np.uint64)

    mantissas, exponents = np.array([0.5, 0.75, 0.0, 0.5]), np.array([0, -400, 5, 0])
    # In order: half, next to nothing, nothing, half. The bits of one half, and then those that decide.
    assert exact_index(mantissas, exponents, words=Words(2**62)) == 0
    assert exact_index(mantissas, exponents, words=Words(2**64 - 1)) == 3
    # With a total of S = 1 + 0.75 2^-400, the second place is from 1/2 to 1/2 + 0.75 2^-400: U S is there for a U of 1/2, but
    # not for one that is 2^-390 more, or less.
    ones, zeros = [2**64 - 1] * 7, [0] * 7
    assert exact_index(mantissas, exponents, words=Words(2**63, *zeros)) == 1
    assert exact_index(mantissas, exponents, words=Words(2**63 - 2, *ones)) == 1
    assert exact_index(mantissas, exponents, words=Words(2**63, *zeros[:5], 2**50, 0)) == 3
    assert exact_index(mantissas, exponents, words=Words(2**63 - 2, *ones[:5], 2**50, 0)) == 0
    draws = [exact_index(np.array([0.5, 0.75]), np.array([2, 1])) for _ in range(2000)]
    assert abs(sum(draws) - 2000 * 3 / 7) < 4 * (2000 * 12 / 49) ** 0.5


@pytest.mark.slow
def test_near_an_edge_places_are_those_of_exact_sums():
    rng = np.random.default_rng(6)
    mantissas, exponents = rng.uniform(0.25, 1, 400), rng.integers(-6, 1, 400)
    exact = np.cumsum([int(m * 2**60) << int(e + 6) for m, e in zip(mantissas, exponents, strict=True)], dtype=object)

    def words_of(number):
        """The bits of a multiple of 2^-191: 63 at first, of a word whose last bit nobody reads, then 64 at a time, then zeros."""
        parts = [number >> 128 << 1, (number >> 64) & (2**64 - 1), number & (2**64 - 1)]
        return lambda size: np.array([parts.pop(0) if parts else 0], dtype=np.uint64)

    for place in rng.integers(0, 399, 40).tolist():
        for off in (-3, -1, 0, 1, 3):
            # At, just before and just behind the end of a place: some 2^-120 of it, or some roundings of a float.
            for width in (0, 80, 130):
                number = (exact[place] << 191) // exact[-1] + (off << width)
                inside = next(j for j, end in enumerate(exact.tolist()) if number * exact[-1] < end << 191)
                assert exact_index(mantissas, exponents, words=words_of(number)) == inside


# Privacy, by all neighbours in a small grid


def law_one_by_one(x, bins, epsilon, selection, monkeypatch, costs, units=1):
    """The law of the bins' ends, by walking through every sequence of choices that the mechanism offers."""
    rule = RULES[selection][1]
    rate = epsilon / ((bins - 1) * 2 * costs.change * units)
    law, script, asked = {}, [], []

    def scripted(offered, given):
        assert given == rate
        chances = rule(offered.tolist(), given)
        place = script[len(asked)] if len(asked) < len(script) else 0
        asked.append((place, chances))
        return place

    monkeypatch.setattr(module, {"noisy_min": "permute_and_flip", "exponential": "exponential_mechanism"}[selection], scripted)
    while True:
        asked.clear()
        stops = module._one_by_one(costs, len(x), bins, rate, selection)
        law[tuple(stops.tolist())] = math.prod(chances[place] for place, chances in asked)
        script = [place for place, _ in asked]
        while script and script[-1] + 1 == len(asked[len(script) - 1][1]):
            script.pop()
        if not script:
            break
        script[-1] += 1
    assert sum(law.values()) == pytest.approx(1)
    return law


def law_at_once(x, bins, epsilon, costs, units=1, price=2.0):
    rate = dyadic_rate(epsilon, costs.change * units, len(x), bins or len(x))
    weights = SegmentationWeights(costs.row, len(x), bins, rate, 0.0 if bins else price)
    return {stops: float(probability(weights, stops, bins)) for stops in all_stops(len(x), bins)}


def largest_loss(law: Callable[[np.ndarray], dict[Any, float]], n: int, most: int, neighbors: str) -> float:
    laws = {tuple(x.tolist()): law(x) for x in in_grid(n, most)}
    return max(
        abs(math.log(p / laws[other][stops]))
        for x, chances in laws.items()
        for other in (tuple(y.tolist()) for y in neighboring_cells(np.array(x), neighbors))
        if other in laws
        for stops, p in chances.items()
    )


# Largest losses at epsilon, computed by an independent program: sequential and joint, absolute deviations; sequential, squares.
WORST = {
    (3, 2, 2, "1"): (0.6201145069582776, 0.6201145069582776, 0.1049916888216465),
    (3, 2, 6, "4"): (3.999670737820582, 3.999670737820582, 0.8373405156246615),
    (4, 3, 3, "0.1"): (0.038046714335690776, 0.05170686730565964, 0.009840162317476985),
    (5, 4, 2, "1"): (0.31950827253720354, 0.5764442158886274, 0.07489579597833611),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", WORST)
@pytest.mark.parametrize("rule", ["noisy_min", "exponential", "joint", "joint, free"])
def test_bins_are_private(rule, setting, monkeypatch):
    n, bins, most, text = setting
    epsilon = Fraction(text)
    sequential, joint, of_squares = WORST[setting]
    for cost, neighbors in (("sae", "add_remove"), ("sse", "add_remove"), ("sae", "replace_one")):
        is_paper = rule == "exponential"
        units = 2 if neighbors == "replace_one" else 1

        def law(x, cost=cost, is_paper=is_paper, units=units):
            costs = absolute_deviations(x) if cost == "sae" else squares(x, most, is_paper=is_paper)
            if rule.startswith("joint"):
                return law_at_once(x, bins if rule == "joint" else None, epsilon, costs, units)
            return law_one_by_one(x, bins, epsilon, rule, monkeypatch, costs, units)

        loss = largest_loss(law, n, most, neighbors)
        assert loss <= float(epsilon) * (1 + 1e-9)
        if neighbors == "replace_one":
            assert loss > float(epsilon) / 10
            continue
        if rule == "exponential":
            assert loss == pytest.approx(sequential if cost == "sae" else of_squares, rel=1e-3 if cost == "sse" else 1e-7)
        if rule == "joint" and cost == "sae":
            assert loss == pytest.approx(joint, rel=1e-5)
        assert loss > float(epsilon) / 40


def test_the_papers_distributions(monkeypatch):
    # F = 3, epsilon = 1, two bins: the probability that the first ends after one cell.
    for cells, by_squares, by_deviations in (([0, 3, 3], 0.579672, 0.817574), ([0, 2, 3], 0.526760, 0.622459)):
        x = np.array(cells)
        laws = [
            law_one_by_one(x, 2, Fraction(1), "exponential", monkeypatch, costs)
            for costs in (squares(x, 3, is_paper=True), absolute_deviations(x))
        ]
        assert laws[0][1, 3] == pytest.approx(by_squares, abs=1e-5)
        assert laws[1][1, 3] == pytest.approx(by_deviations, abs=1e-6)
        assert law_at_once(x, 2, Fraction(1), absolute_deviations(x))[1, 3] == pytest.approx(by_deviations, abs=1e-5)
    # Their figure 5 at F = 7, three bins: some of fifteen outcomes, by squares and by deviations.
    x = np.array([5, 7, 7, 6, 7, 5, 5])
    law = law_one_by_one(x, 3, Fraction(1), "exponential", monkeypatch, squares(x, 7, is_paper=True))
    found = [law[1, 2, 7], law[1, 5, 7], law[3, 4, 7], law[5, 6, 7]]
    np.testing.assert_allclose(found, [0.196028153, 0.053111730, 0.065274774, 0.040338181], rtol=1e-5)
    law = law_one_by_one(x, 3, Fraction(1), "exponential", monkeypatch, absolute_deviations(x))
    found = [law[1, 2, 7], law[1, 5, 7], law[3, 4, 7], law[5, 6, 7]]
    np.testing.assert_allclose(found, [0.143491040, 0.107735635, 0.060155598, 0.046155438], rtol=1e-7)


@pytest.mark.parametrize("epsilon", ["1/3", "1e-6", "1000", "1e9"])
def test_the_rate_spends_no_more_than_was_asked(epsilon):
    for change, n, bins in ((1, 10, 3), (7 * 2**16, 4096, 4096), (2 * 10**9, 100, 2)):
        budget = Fraction(epsilon)
        rate, places = dyadic_rate(budget, change, n, bins)
        spent = 2 * change * rate / Fraction(2) ** places * Fraction(6931471805599454, 10**16)  # above ln 2
        rounding = 4 * bins * (n + 16) * Fraction(1, 2**53)
        assert spent + rounding <= budget
        if rate < 2**21:
            assert spent > budget * (1 - Fraction(1, 2**18)) - rounding or places == 55
    with pytest.raises(ValueError, match="structure_epsilon must be above"):
        dyadic_rate(Fraction(1, 10**12), 1, 4096, 4096)


def test_weights_of_bins_come_from_correct_tables():
    rng = np.random.default_rng(0)
    for places in (0, 3, 11, 20, 40, 55):
        numbers = rng.integers(0, 2**places, 50)
        found = _powers(numbers, places)
        with localcontext(Context(prec=60)):
            for number, value in zip(numbers.tolist(), found.tolist(), strict=True):
                true = Decimal(2) ** (Decimal(-number) / 2**places)
                assert abs(Decimal(value) / true - 1) < Decimal(11) / 2**53
