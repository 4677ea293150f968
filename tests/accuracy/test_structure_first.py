"""Theory of StructureFirst: exact errors against sums over the law of the noise, bounds against laws written down, splits."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.accuracy import structure_excess_bound, structure_first_error, structure_first_split
from dpinfer.mechanisms import structure_first
from dpinfer.mechanisms.bin_costs import absolute_deviations
from dpinfer.mechanisms.joint_choice import SegmentationWeights, dyadic_rate

CELLS = np.array([1, 2, 1, 3, 5, 1, 1])


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
@pytest.mark.parametrize("values", ["mean", "median"])
def test_errors_given_the_bins_are_sums_over_the_noise(values, neighbors):
    stops, epsilon = [3, 5, 7], 0.5
    scale = (2 if neighbors == "replace_one" else 1) / epsilon
    k = np.arange(-400, 401)
    mass = np.exp(-np.abs(k) / scale)
    mass /= mass.sum()
    squared = absolute = 0.0
    for start, stop in itertools.pairwise([0, *stops]):
        part = CELLS[start:stop]
        middle = part.mean() if values == "mean" else np.median(part)
        divisor = part.size if values == "mean" else 1 if part.size % 2 else 2
        for x in part:
            squared += (mass * (middle + k / divisor - x) ** 2).sum()
            absolute += (mass * np.abs(middle + k / divisor - x)).sum()
    found = structure_first_error(CELLS, stops, epsilon=epsilon, values=values, neighbors=neighbors)
    assert found.squared_error == pytest.approx(squared)
    assert found.absolute_error == pytest.approx(absolute)
    assert found.noise < found.squared_error


def test_equal_cells_show_where_the_printed_bound_is_wrong():
    # Equal cells in one bin: the bound says 2 k / epsilon^2 = 2, the error is n E|Z|, n / epsilon for continuous noise. Here
    # E|Z| = 2 p / (1 - p^2), with an odd number of cells, since the middle two of an even number have half the noise.
    found = structure_first_error(np.full(101, 7), [101], epsilon=1, values="median")
    p = math.exp(-1)
    assert found.absolute_error == pytest.approx(101 * 2 * p / (1 - p * p))
    assert found.squared_error == found.noise == pytest.approx(101 * float(dp.noise.stddev("discrete_laplace", 1)) ** 2)
    even = structure_first_error(np.full(100, 7), [100], epsilon=1, values="median")
    assert even.absolute_error == pytest.approx(100 * p / (1 - p * p))
    assert found.absolute_error > even.absolute_error > 2


@pytest.mark.slow
def test_the_mechanism_errs_as_theory_says():
    # Two bins that are plain to see, given a budget that leaves no doubt about them; 5 standard errors of 300 releases.
    truth, stops = np.repeat([0, 400], [6, 4]), [6, 10]
    for values in ("mean", "median"):
        theory = structure_first_error(truth, stops, epsilon=0.5, values=values)
        errors = []
        for _ in range(300):
            found = structure_first(truth, 2, epsilon=20.5, structure_epsilon=20, values=values)
            assert found.stops.tolist() == stops
            errors.append([np.square(found.cells - truth).sum(), np.abs(found.cells - truth).sum()])
        mean, spread = np.mean(errors, axis=0), np.std(errors, axis=0) / 300**0.5
        assert (np.abs(mean - [theory.squared_error, theory.absolute_error]) < 5 * spread).all()


@pytest.mark.parametrize("epsilon", [0.3, 3])
def test_the_excess_is_below_its_bound(epsilon):
    for cells in (CELLS, np.array([0, 9, 0, 9, 0, 9, 4]), np.zeros(7, int)):
        costs = absolute_deviations(cells)
        for bins in (2, 3, 6):
            weights = SegmentationWeights(costs.row, 7, bins, dyadic_rate(Fraction(epsilon), 1, 7, bins))
            least, mean = math.inf, 0.0
            for cuts in itertools.combinations(range(1, 7), bins - 1):
                stops, chance, cost, left = [*cuts, 7], 1.0, 0, bins
                for begin, end in reversed(list(itertools.pairwise([0, *stops]))):
                    mantissas, exponents = weights.last_bins(end, left)
                    terms = mantissas * 2.0 ** np.maximum(exponents, -1000)
                    chance *= terms[begin] / terms.sum()
                    cost += costs.row(end)[begin]
                    left -= 1
                least, mean = min(least, cost), mean + chance * cost
            assert -1e-9 <= mean - least <= structure_excess_bound(7, bins, structure_epsilon=epsilon)


def test_bounds_and_splits_have_the_expected_values():
    assert structure_excess_bound(7, 3, structure_epsilon=0.5) == pytest.approx(2 * math.log(15) / 0.5)
    assert structure_excess_bound(7, 3, structure_epsilon=1, selection="noisy_min") == pytest.approx(8 * math.log(7))
    squares: dict[str, Any] = {"cost": "sse", "max_count": 7, "selection": "exponential"}
    assert structure_excess_bound(7, 3, structure_epsilon=1, **squares) == pytest.approx(8 * 15 * math.log(7))
    assert structure_excess_bound(9, 9, structure_epsilon=1) == structure_first_split(9, 9, epsilon=1) == 0
    # Computed by an independent program: cells, bins, the share of one boundary after the other and of all at once.
    for n, bins, one_by_one, joint in (
        (7, 3, 0.694932, 0.573313),
        (101, 11, 0.901578, 0.701866),
        (496, 50, 0.961, 0.715),
        (1678, 168, 0.980, 0.717),
    ):
        assert structure_first_split(n, bins, epsilon=1, selection="noisy_min") == pytest.approx(one_by_one, abs=6e-4)
        assert structure_first_split(n, bins, epsilon=0.1) == pytest.approx(0.1 * joint, abs=6e-5)
    assert structure_first_split(7, 3, epsilon=1, **squares) == pytest.approx(0.70541, rel=1e-4)
    # The split is the least of its objective.
    by_squares: dict[str, Any] = {"cost": "sse", "max_count": 5}
    every: list[dict[str, Any]] = [{}, {"values": "median"}, by_squares, {**by_squares, "values": "median"}]
    for options in every:
        best = structure_first_split(50, 6, epsilon=0.7, **options)
        of_bins: dict[str, Any] = {k: v for k, v in options.items() if k != "values"}
        parts = 50 if "values" in options else 6

        def total(e, of_bins=of_bins, parts=parts):
            bound = structure_excess_bound(50, 6, structure_epsilon=e, **of_bins)
            return bound + (2 * parts / (0.7 - e) ** 2 if of_bins else parts / (0.7 - e))

        assert total(best) < min(total(best * 0.99), total(best * 1.003))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: structure_first_error([1.5], [1], epsilon=1), "truth must hold integers"),
        (lambda: structure_first_error([1, 2], [1], epsilon=1), "stops must increase"),
        (lambda: structure_first_error([1, 2], [2], epsilon=1, values="mode"), "values must be one of"),
        (lambda: structure_excess_bound(3, 4, structure_epsilon=1), "bins must be at most n, 3, got 4"),
        (lambda: structure_excess_bound(3, 2, structure_epsilon=1, cost="sse"), "max_count, a public bound"),
        (lambda: structure_first_split(3, 2, epsilon=0), "epsilon must be positive"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
