"""A split over levels of count-of-counts histograms, from public numbers only."""

from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.allocation import group_levels

REGIONS = dp.RegionTree([("US", state, county) for state in range(2) for county in (2 * state, 2 * state + 1)])
GIVEN: dict[str, Any] = {"epsilon": 0.3, "max_size": 30, "key": jax.random.key(0)}


@pytest.mark.slow
def test_a_split_is_exact_and_the_best_that_was_tried():
    found = group_levels(REGIONS, [300, 200, 100, 400], num_draws=2, **GIVEN)
    assert sum(found.level_epsilons) == Fraction(3, 10)
    assert len(found.errors) == 7
    equal = found.errors[Fraction(1)]
    scores = {ratio: float((errors / equal).sum()) for ratio, errors in found.errors.items()}
    assert min(scores, key=scores.__getitem__) == found.ratio
    if found.ratio is not None:
        first, second, third = found.level_epsilons
        assert second / first == third / second == found.ratio
    again = group_levels(REGIONS, np.array([300, 200, 100, 400]), num_draws=2, **GIVEN)
    assert again.level_epsilons == found.level_epsilons
    assert all((again.errors[ratio] == errors).all() for ratio, errors in found.errors.items())
    # What was recommended can be released.
    cells = np.tile(np.arange(31), (4, 1))
    release = dp.mechanisms.count_of_counts_from_histograms(cells, REGIONS, level_epsilons=found.level_epsilons)
    assert release.epsilon == Fraction(3, 10)


def test_presumed_sizes_decide():
    # With much budget, and one size only, nothing is left to gain above the lowest level; errors are those of these groups.
    only = np.zeros(31)
    only[5] = 2.0
    given: dict[str, Any] = GIVEN | {"epsilon": 1000}
    found = group_levels(REGIONS, [50] * 4, size_shares=only, num_draws=1, **given)
    assert all((errors == 0).all() for errors in found.errors.values())
    assert found.ratio == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": 3}, "key must be one typed key"),
        ({"epsilon": 0}, "epsilon must be positive"),
        ({"num_groups": [1, 2]}, "each of the 4 lowest regions"),
        ({"num_groups": [1, 2, 3, -4]}, "none negative"),
        ({"size_shares": [1, 2]}, "sizes 0 to 30"),
        ({"size_shares": np.zeros(31)}, "sizes 0 to 30"),
        ({"method": "H_d"}, "method must be one of"),
        ({"num_draws": 0}, "num_draws must be at least 1"),
    ],
)
def test_what_is_refused(change, message):
    given: dict[str, Any] = GIVEN | {"num_groups": [1, 2, 3, 4]} | change
    with pytest.raises(ValueError, match=message):
        group_levels(REGIONS, given.pop("num_groups"), **given)
