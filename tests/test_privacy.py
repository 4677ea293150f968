"""From zero-concentrated to approximate differential privacy: an upper bound, the least there is, never rounded down."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import dpinfer as dp
from dpinfer.privacy import delta_of_rho, epsilon_of_rho


def by_minimising(rho, delta):
    """Canonne, Kamath and Steinke 2020, Corollary 13, minimised over the order by scipy."""

    def bound(log_below):
        below = math.exp(log_below)
        return (1 + below) * rho - (math.log1p(below) + math.log(delta)) / below + math.log(below / (1 + below))

    center = 0.5 * math.log(-math.log(delta) / rho)
    found: Any = minimize_scalar(bound, bounds=(center - 5, center + 5), method="bounded", options={"xatol": 1e-10})
    return found.fun


def delta_of_gaussian(rho, epsilon):
    """The exact delta of one Gaussian answer of sensitivity 1, sigma^2 = 1 / (2 rho): Balle and Wang 2018, theorem 8."""
    mu = math.sqrt(2 * rho)
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 0.5, 2.56, 10.0, 1e3])
@pytest.mark.parametrize("delta", [1e-12, 1e-10, 1e-6, 1e-3])
def test_the_bound_is_the_least_over_all_orders(rho, delta):
    epsilon = epsilon_of_rho(rho, delta)
    assert epsilon == pytest.approx(max(by_minimising(rho, delta), rho), rel=1e-9, abs=1e-12)
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))  # Bun and Steinke 2016, Proposition 1.3
    if epsilon > 2 * rho:
        assert delta_of_rho(rho, epsilon) == pytest.approx(delta, rel=1e-9)


@given(st.floats(1e-3, 30), st.floats(0, 40))
def test_delta_is_not_below_that_of_the_gaussian_mechanism(rho, epsilon):
    delta = delta_of_rho(rho, epsilon)
    assert delta >= delta_of_gaussian(rho, epsilon) * (1 - 1e-9)
    assert 0 < delta <= 1


def test_nothing_is_lost_at_the_extremes():
    # An order next to 1, and one beyond any table of orders.
    assert 1e6 < epsilon_of_rho(1e6, 1e-9) < 1e6 + 2 * math.sqrt(1e6 * math.log(1e9))
    assert 0 < epsilon_of_rho(1e-30, 1e-300) < 2 * math.sqrt(1e-30 * 300 * math.log(10))
    assert epsilon_of_rho(1e-12, 0.01) == pytest.approx(1e-12)  # (0, 0.01) would do; an epsilon of 0 is never claimed
    assert epsilon_of_rho(Fraction(1, 10**400), Fraction(1, 10**400)) > 0
    assert delta_of_rho(1, 10**6) == 5e-324
    assert delta_of_rho(Fraction(1, 10**400), 10**200) == 5e-324
    assert delta_of_rho(1e5, 0) == 1
    rhos = np.geomspace(1e-8, 1e4, 60)
    assert np.all(np.diff([epsilon_of_rho(float(r), 1e-6) for r in rhos]) > 0)


def test_what_is_spent_converts_once_at_the_end():
    tree = dp.queries.Tree.complete(8, 2)
    ledger = dp.Ledger(rho=1)
    releases = [dp.measure(np.arange(8), tree, rho=0.125, ledger=ledger) for _ in range(4)]
    together = dp.Release.concat(releases)
    assert together.rho == ledger.spent == Fraction(1, 2)
    assert together.epsilon_at(1e-6) == ledger.epsilon_at(1e-6) == epsilon_of_rho(0.5, 1e-6)
    assert together.epsilon_at(1e-6) < sum(release.epsilon_at(1e-6) for release in releases)
    pure = dp.measure(np.arange(8), tree, epsilon=Fraction(1, 3))
    assert Fraction(pure.epsilon_at(1e-6)) >= Fraction(1, 3) > Fraction(math.nextafter(pure.epsilon_at(1e-6), 0))
    assert dp.Ledger(epsilon=1).epsilon_at(1e-6) == 0
    with pytest.raises(ValueError, match="loss is not known"):
        dp.Release.from_values(tree, np.zeros(14), noise="laplace", scale=1).epsilon_at(1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: epsilon_of_rho(0, 1e-6), "rho must be positive"),
        (lambda: epsilon_of_rho(1, 0), "delta must be positive"),
        (lambda: epsilon_of_rho(1, 1), "delta must be below 1"),
        (lambda: epsilon_of_rho(math.inf, 1e-6), "rho must be finite"),
        (lambda: epsilon_of_rho(None, 1e-6), "rho must be a positive number, got None"),
        (lambda: delta_of_rho(1, -1), "epsilon must be non-negative"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
