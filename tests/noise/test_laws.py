"""Laws of noise: printed values, partial fractions and convolutions, derivatives, draws, and their manners as numpyro's."""

import itertools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.distributions import Normal
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from references import discrete_laplace_sum, laplace_sum_by_partial_fractions
from scipy import stats

from dpinfer import noise
from dpinfer.noise import DiscreteLaplace, DiscreteLaplaceSum, LaplaceSum, contour, equal_scales, laws

EXPECTED = json.loads((Path(__file__).parents[1] / "expected" / "laplace_sums.json").read_text())

# One law of each kind and path, with a centre that is not 0. The integrals are compiled for each shape, so that most tests
# take three scales and 20 values.
UNEQUAL = LaplaceSum(np.array([1.0, 2.5, 0.3]), 1.5)
EQUAL = LaplaceSum(np.full(3, 2.0), 1.5)
ONE = LaplaceSum(np.array([2.0]), 1.5)
DISCRETE_SUM = DiscreteLaplaceSum(np.array([1.0, 2.5, 0.3]), 2.0)
DISCRETE = DiscreteLaplace(1.7, 2.0)
CONTINUOUS = {"unequal": UNEQUAL, "equal": EQUAL, "one": ONE}
LATTICE = {"discrete sum": DISCRETE_SUM, "discrete sum of one": DiscreteLaplaceSum(np.array([0.8]), 2.0), "discrete": DISCRETE}
ALL = CONTINUOUS | LATTICE
INTEGERS = np.arange(-10.0, 10.0)


def each(cases):
    return pytest.mark.parametrize("law", list(cases.values()), ids=list(cases))


def entries(key):
    return [(entry["inputs"], entry["expected"]) for entry in EXPECTED if entry["key"] == key]


def lengthened(scales, length=500):
    """More scales, of noises too small to count: lists of one length take one compilation."""
    return np.concatenate([scales, np.full(length - len(scales), 1e-50)])


def probability(law, name, z):
    method = {"pdf": law.log_prob, "cdf": law.cdf, "sf": law.log_survival}[name]
    return np.asarray(method(z)) if name == "cdf" else np.exp(np.asarray(method(z)))


# ---- Printed values


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 50])
def test_expected_values_of_equal_scales(n):
    for name in ("pdf", "cdf", "sf"):
        found = [(x["b"], x["z"], value) for x, value in entries(f"lap_sum_iid.{name}") if x["n"] == n]
        # Repeated to one shape.
        b, z, values = np.resize(found, (20, 3)).T
        np.testing.assert_allclose(probability(LaplaceSum(b[:, None] * np.ones(n)), name, z), values, rtol=1e-13)


@pytest.mark.slow
def test_expected_values_of_unequal_scales():
    rows = {}
    for name in ("pdf", "cdf", "sf"):
        for x, value in entries(f"lap_sum_unequal.{name}"):
            rows.setdefault((name, str(x["groups"])), (x["groups"], []))[1].append((x["z"], value))
    assert len(rows) == 3 * 10
    for (name, _), (groups, found) in rows.items():
        scales = list(itertools.chain.from_iterable([float(scale)] * count for scale, count in groups))
        z, values = np.resize(found, (20, 2)).T
        np.testing.assert_allclose(probability(LaplaceSum(lengthened(scales)), name, z), values, rtol=2e-14)


def test_all_expected_values_are_read():
    assert {x["n"] for name in ("pdf", "cdf", "sf") for x, _ in entries(f"lap_sum_iid.{name}")} == {1, 2, 3, 5, 10, 50}
    assert {x["n"] for x, _ in entries("lap_sum_iid.logpdf_large_n")} == {100, 1000}


@pytest.mark.parametrize("n", [100, 1000])
def test_expected_log_densities_of_many_terms(n):
    ((x, values),) = (entry for entry in entries("lap_sum_iid.logpdf_large_n") if entry[0]["n"] == n)
    # A rounding error of each of the n factors of the density.
    np.testing.assert_allclose(LaplaceSum(np.full(n, x["b"])).log_prob(np.array(x["z"])), values, rtol=0, atol=2e-15 * n)


@pytest.mark.parametrize(("x", "value"), entries("E_abs_over_b"), ids=lambda x: x["n"] if isinstance(x, dict) else "")
def test_expected_absolute_value_is_twice_the_integral_of_the_tail(x, value):
    # The tail is smooth on z >= 0: 40 panels of 20 Gauss-Legendre nodes, up to where exp(-80) is left.
    nodes, weights = np.polynomial.legendre.leggauss(20)
    width = (80 + 10 * math.sqrt(x["n"])) / 40
    points = ((np.arange(40)[:, None] + (nodes + 1) / 2) * width).reshape(-1)
    tails = probability(LaplaceSum(np.ones(x["n"])), "sf", points)
    assert 2 * float(tails @ np.tile(weights * width / 2, 40)) == pytest.approx(value, rel=1e-12)


def test_the_printed_density_of_three_terms_is_twice_too_large():
    ((x, value),) = entries("f3_at_1_b1")
    found = float(np.exp(LaplaceSum(np.full(x["n"], float(x["b"]))).log_prob(float(x["z"]))))
    u = x["z"] / x["b"]
    assert found == pytest.approx(value, rel=1e-13)
    assert (3 / 8 + 3 * u / 8 + u**2 / 8) * math.exp(-u) == pytest.approx(2 * found, rel=1e-13)


@pytest.mark.parametrize(("x", "weights"), entries("banach_weights"), ids=lambda x: x["n"] if isinstance(x, dict) else "")
def test_density_is_a_mixture_of_gamma_densities(x, weights):
    # p_k is the law of the matches left in Banach's matchbox, k + 1 the shape of the gamma law.
    z = np.concatenate([[0.0], np.geomspace(1e-3, 300, 19)])
    truth = sum(p * z**k * np.exp(-z) / (2 * math.factorial(k)) for k, p in enumerate(weights))
    np.testing.assert_allclose(probability(LaplaceSum(np.ones(x["n"])), "pdf", z), truth, rtol=1e-12)


def test_expected_variance_and_kurtosis():
    ((x, values),) = entries("var_and_excess_kurtosis")
    law = LaplaceSum(np.full(x["n"], x["b"]))
    np.testing.assert_allclose([law.variance, law.kurtosis], values, rtol=1e-14)
    # A single noise of that scale, and one beside many that are too small to count.
    np.testing.assert_allclose([ONE.variance, ONE.kurtosis], [8, 3], rtol=1e-14)
    np.testing.assert_allclose(LaplaceSum(np.array([1e200, 1e-200, 1.0])).kurtosis, 3, rtol=1e-14)


# ---- Sums of continuous noises by other means


@pytest.mark.slow
@pytest.mark.parametrize(("n", "length"), [(2, 500), (3, 500), (3, 3), (20, 500), (500, 500), (10_000, 10_000)])
def test_the_integral_agrees_with_the_recurrence_on_equal_scales(n, length):
    scales = jnp.asarray(lengthened(np.ones(n), length))
    z = jnp.asarray(np.sqrt(2 * n) * np.concatenate([[0.0], np.geomspace(1e-4, 100, 19)]))
    for name in ("log_density", "log_survival"):
        direct = getattr(equal_scales, name)(z, n)
        integral = getattr(contour, name)(z, scales)
        # A rounding error of each of the n factors.
        np.testing.assert_allclose(integral, direct, rtol=1e-14, atol=max(1e-13, 2e-15 * n))


RNG = np.random.default_rng(0)
# (scales, digits of the reference)
HARD = {
    "three": (np.array([1.0, 2.5, 0.3]), 60),
    "100 at random": (RNG.uniform(1, 3, 100), 200),
    "500 at random": (RNG.uniform(0.5, 1, 500), 600),
    "six decades": (10.0 ** np.linspace(-6, 0, 7), 100),
    "ten decades": (10.0 ** np.linspace(-10, 0, 21), 150),
    "ten within half a percent": (1 + 0.005 * RNG.uniform(size=10), 150),
    "one of 1000 among 20 about 1": (np.array([1000.0, *(1 + 0.1 * RNG.uniform(-1, 1, 20))]), 250),
}


@pytest.mark.parametrize(("scales", "digits"), list(HARD.values()), ids=list(HARD))
def test_unequal_scales_against_partial_fractions_far_into_the_tails(scales, digits):
    # A unit of few digits, so that its multiples are exact: 0, 0.001, 0.5, 3, 20 and 100 standard deviations.
    unit = float(np.float32(np.sqrt(2 * np.square(scales).sum()) / 1000))
    multiples = [0, 1, 500, 3000, 20_000, 100_000]
    density, survival = laplace_sum_by_partial_fractions(unit, multiples, scales, digits)
    # The reference has digits enough: half of the law is above 0.
    assert survival[0] == pytest.approx(math.log(0.5), rel=1e-15)
    law = LaplaceSum(scales if scales.size == 3 else lengthened(scales))
    z = np.resize(unit * np.array(multiples), 20)
    allowed = 1e-14 + 1e-15 * len(scales) ** 0.5
    np.testing.assert_allclose(law.log_prob(z)[:6], density, rtol=1e-14, atol=allowed)
    np.testing.assert_allclose(law.log_survival(z)[:6], survival, rtol=1e-14, atol=allowed)
    # Exact in relative terms in the lower tail, where it does not underflow.
    np.testing.assert_allclose(law.cdf(-z)[:5], np.exp(survival[:5]), rtol=1e-12)


def test_units_do_not_matter():
    # Units so small and so large that squares of the scales under- and overflow.
    scales, z = np.array([1.0, 2.5, 0.3]), np.linspace(0, 50, 20)
    for unit in (1e-200, 1e200):
        law = LaplaceSum(unit * scales)
        np.testing.assert_allclose(law.log_prob(unit * z) + math.log(unit), LaplaceSum(scales).log_prob(z), rtol=1e-13)
        np.testing.assert_allclose(law.log_survival(unit * z), LaplaceSum(scales).log_survival(z), rtol=1e-13)


@pytest.mark.parametrize("scales", [[1.0, 2.5, 0.3], [2.0, 2.0, 2.0]], ids=["unequal", "equal"])
def test_32_bit_stays_32_bit(scales):
    law, wide = LaplaceSum(np.array(scales, dtype=np.float32)), LaplaceSum(np.array(scales))
    z = np.linspace(-60, 60, 20, dtype=np.float32)
    for name in ("log_prob", "cdf"):
        found = getattr(law, name)(z)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, getattr(wide, name)(z.astype(np.float64)), rtol=1e-5)
    assert jax.eval_shape(law.icdf, z).dtype == np.float32


# ---- Symmetry, tails, quantiles


@each(ALL)
def test_symmetric_and_monotone_with_tails_that_add_up(law):
    is_discrete, loc = law.support.is_discrete, float(law.loc)
    away = np.arange(20) * (1.0 if is_discrete else 1.3)
    below, above = loc - away, loc + away
    density, survival = np.asarray(law.log_prob(above)), np.asarray(law.log_survival(above))
    np.testing.assert_allclose(law.log_prob(below), density, rtol=1e-14)
    # P(X <= loc - z) = P(X >= loc + z)
    np.testing.assert_allclose(law.cdf(below), probability(law, "sf", above - is_discrete), rtol=1e-12)
    for z in (below, above):
        np.testing.assert_allclose(probability(law, "cdf", z) + probability(law, "sf", z), 1, rtol=1e-15)
    assert np.all(np.diff(probability(law, "cdf", below)) < 0)
    assert np.all(np.diff(survival) < 0)
    assert np.all(np.diff(density) < 0)
    # The centre itself counts as a half on either side.
    assert np.exp(survival[0]) == pytest.approx((1 - is_discrete * np.exp(density[0])) / 2, rel=1e-13)


@each(CONTINUOUS)
def test_quantiles_invert_the_law(law):
    q = np.array([1e-300, 1e-100, 1e-20, 1e-9, 1e-4, 0.01, 0.1, 0.2, 0.3, 0.4, 0.499, 0.5, 0.501, 0.6, 0.7, 0.8, 0.9, 0.99])
    q = np.append(q, [1 - 1e-4, 1 - 1e-10])
    value = np.asarray(law.icdf(q))
    assert np.all(np.diff(value) > 0)
    np.testing.assert_allclose(law.cdf(value), q, rtol=1e-12)
    # The nearer tail, which 1 - cdf has lost, is met too.
    np.testing.assert_allclose(probability(law, "sf", value), 1 - q, rtol=1e-12)
    assert value[11] == pytest.approx(float(law.loc), abs=1e-14)


@each(LATTICE)
def test_quantiles_are_the_smallest_values_that_reach(law):
    q = np.concatenate([np.geomspace(1e-300, 1e-3, 6), np.linspace(0.01, 0.99, 12), [1 - 1e-6, 1 - 1e-10]])
    value = np.asarray(law.icdf(q))
    assert np.all(value == np.round(value))
    assert np.all(np.diff(value) >= 0)
    assert np.all(probability(law, "cdf", value) >= q * (1 - 1e-9))
    assert np.all(probability(law, "cdf", value - 1) < q)
    # At the steps themselves and next to them, where 1 - q still has the digits.
    k = float(law.loc) + np.arange(-16.0, 4.0)
    cdf = probability(law, "cdf", k)
    np.testing.assert_array_equal(law.icdf(cdf), k)
    np.testing.assert_array_equal(law.icdf(cdf * (1 - 1e-7)), k)
    np.testing.assert_array_equal(law.icdf(cdf + (1 - cdf) * cdf * 1e-7), k + 1)


@each(ALL)
def test_ends_of_the_quantiles(law):
    q = np.array([0.0, 1.0, -0.1, 1.1, np.nan, *np.full(15, 0.5)])
    value = np.asarray(law.icdf(q))
    np.testing.assert_array_equal(value[:5], [-np.inf, np.inf, np.nan, np.nan, np.nan])
    np.testing.assert_allclose(value[5:], float(law.loc), atol=1e-14)


@each(ALL)
def test_infinity_is_never_exceeded(law):
    ends = np.repeat([-np.inf, np.inf], 10)
    np.testing.assert_array_equal(law.cdf(ends), np.repeat([0, 1], 10))
    np.testing.assert_array_equal(law.log_survival(ends), np.repeat([0, -np.inf], 10))


@each(CONTINUOUS | {"fifty": LaplaceSum(np.ones(50))})
def test_logarithms_stay_finite_far_beyond_all_draws(law):
    # log f(z) = -z / b but for terms of the order log z.
    value = np.geomspace(1e4, 1e15, 20)
    truth = -value / float(law.scales.max())
    np.testing.assert_allclose(law.log_prob(value), truth, rtol=0.05)
    np.testing.assert_allclose(law.log_survival(value), truth, rtol=0.05)


# ---- Derivatives

# On both sides of the median, near it, and itself.
AWAY = np.array([-30, -12, -5, -2, -1, -0.5, -0.1, -1e-3, 0, 1e-3, 0.05, 0.2, 0.4, 0.8, 1.5, 3, 5, 7, 12, 40])
SHARES = np.array([1e-12, 1e-6, *np.linspace(0.01, 0.49, 7), 0.499, 0.5, 0.501, *np.linspace(0.52, 0.99, 7), 0.9999])


def of(kind, name):
    return lambda scales, loc, value: getattr(kind(scales, loc), name)(value)


def derivatives(function, *arguments):
    """[20, n + 2]: of ``function`` (scales [n], loc, value [20]) at each value in the scales, loc and that value."""
    _, pull = jax.vjp(function, *map(jnp.asarray, arguments))
    rows = [pull(jnp.asarray(row)) for row in np.eye(20)]
    return np.array([np.append(np.concatenate([np.atleast_1d(x) for x in row[:-1]]), np.sum(row[-1])) for row in rows])


def differences(function, scales, loc, value, steps):
    """The same by central differences, one call after another so that all have the same shapes."""
    columns = []
    for i, step in enumerate(steps):
        move = np.zeros(scales.size + 1)
        move[i : i + 1] = step if i <= scales.size else 0
        shift = step if i > scales.size else 0
        up, down = (
            np.asarray(function(scales + sign * move[:-1], loc + sign * move[-1], value + sign * shift)) for sign in (1, -1)
        )
        columns.append((up - down) / (2 * step))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("name", ["log_prob", "log_survival", "cdf", "icdf"])
@pytest.mark.parametrize("scales", [[1.0, 2.5, 0.3], [2.0, 2.0, 2.0], [2.0]], ids=["unequal", "equal", "one"])
def test_derivatives_against_differences(scales, name):
    scales, loc = np.array(scales), 1.5
    value = SHARES if name == "icdf" else loc + AWAY
    function = of(LaplaceSum, name)
    steps = [*(1e-5 * scales), 1e-5, 1e-5 * value * (1 - value) if name == "icdf" else 1e-5]
    # Of scales that a derivative is taken in, nobody can say whether they are equal: by the general path.
    found = derivatives(function, scales, loc, value)
    truth = differences(function, scales, loc, value, steps)
    # A single noise has a corner at its median, where it is enough that the density does not get lost.
    smooth = np.full(20, True) if scales.size > 1 else (SHARES != 0.5 if name == "icdf" else AWAY != 0)
    assert np.all(np.isfinite(found))
    if name in ("cdf", "icdf"):
        density = float(np.exp(LaplaceSum(scales).log_prob(np.zeros(20))[0])) ** (1 if name == "cdf" else -1)
        assert found[np.argmin(np.abs(value - (0.5 if name == "icdf" else loc))), -1] == pytest.approx(density, rel=1e-9)
    np.testing.assert_allclose(found[smooth], truth[smooth], rtol=1e-6, atol=1e-8)
    if np.all(scales == scales[0]):
        # Where the scales are seen to be equal, by the recurrence.
        fixed = derivatives(lambda loc, value: function(scales, loc, value), loc, value)
        np.testing.assert_allclose(fixed[smooth], found[smooth][:, -2:], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_second_derivatives():
    rows = np.array([(*scales, 1.5, 1.5 + z) for scales in ((1.0, 2.5, 0.3), (2.0, 2.0, 2.0)) for z in AWAY[::4]])
    one = lambda row: LaplaceSum(row[:3], row[3]).log_prob(row[4])  # noqa: E731
    both = jax.jit(jax.vmap(lambda row: (jax.grad(one)(row), jax.hessian(one)(row))))
    first, second = (np.asarray(x) for x in both(rows))
    assert np.all(np.isfinite(second))
    np.testing.assert_allclose(second, second.swapaxes(1, 2), rtol=1e-10, atol=1e-12)
    # In other units the log density differs by a constant: x . grad = -1 for x = (scales, loc, value), so that H x = -grad.
    np.testing.assert_allclose((first * rows).sum(1), -1, rtol=1e-12)
    np.testing.assert_allclose(np.einsum("mij,mj->mi", second, rows), -first, rtol=1e-9, atol=1e-10)
    by_recurrence = jax.jit(jax.vmap(jax.grad(jax.grad(EQUAL.log_prob))))(rows[5:, 4])
    np.testing.assert_allclose(second[5:, 4, 4], by_recurrence, rtol=1e-9)


def test_derivatives_pass_through_a_law_as_argument():
    derivative = jax.grad(lambda law: law.log_prob(2.5))(EQUAL)
    in_loc = float(jax.grad(lambda loc: LaplaceSum(EQUAL.scales, loc).log_prob(2.5))(1.5))
    assert float(derivative.loc) == pytest.approx(in_loc, rel=1e-12)
    # All three alike, and x . grad = -1 for x = (scales, loc, value).
    np.testing.assert_allclose(derivative.scales, np.full(3, (-1 + in_loc * (2.5 - 1.5)) / 6), rtol=1e-10)


@pytest.mark.parametrize("name", ["log_prob", "log_survival"])
def test_derivatives_of_discrete_laws_in_the_scales(name):
    # Values around the centre, and the centre itself.
    arguments = np.array([1.0, 2.5, 0.3]), 2.0, 2.0 + INTEGERS
    for kind in (DiscreteLaplaceSum, lambda scales, loc: DiscreteLaplace(scales[1], loc)):
        function = of(kind, name)
        truth = differences(function, *arguments, 1e-5 * arguments[0])
        np.testing.assert_allclose(derivatives(function, *arguments)[:, :3], truth, rtol=1e-6, atol=1e-9)


def test_a_real_centre_has_a_derivative_under_discrete_noise():
    found = jax.grad(lambda loc: DiscreteLaplace(1.7, loc).log_prob(4.0))(2.6)
    assert float(found) == pytest.approx(1 / 1.7, rel=1e-14)


# ---- Shapes and transformations

BATCH = np.array([[1.0, 2.5, 0.3], [2.0, 2.0, 2.0], [0.5, 3.0, 3.0]])
CENTRES = np.array([0.0, 1.0, -2.0])
KINDS = {
    "laplace": LaplaceSum,
    "equal": lambda scales, loc=0.0: LaplaceSum(scales[..., [0, 0, 0]], loc),
    "discrete": DiscreteLaplaceSum,
    "discrete one": lambda scales, loc=0.0: DiscreteLaplace(scales[..., 0], loc),
}


@each({name: KINDS[name] for name in ("laplace", "equal", "discrete one")})
@pytest.mark.parametrize("name", ["log_prob", "log_survival", "cdf", "icdf"])
def test_batches_equal_a_loop(law, name):
    value = np.linspace(0.02, 0.98, 60).reshape(20, 3) if name == "icdf" else np.arange(-30.0, 30.0).reshape(20, 3)
    batch = getattr(law(BATCH, CENTRES), name)(value)
    assert batch.shape == (20, 3)
    rows = [getattr(law(row, at), name)(value[:, i]) for i, (row, at) in enumerate(zip(BATCH, CENTRES, strict=True))]
    np.testing.assert_allclose(batch, np.stack(rows, axis=1), rtol=1e-12, atol=1e-15)


@each({"laplace": LaplaceSum, "discrete one": KINDS["discrete one"]})
def test_mapped_laws_equal_a_batch(law):
    # Under jit and vmap scales cannot be looked at.
    value = np.arange(-30.0, 30.0).reshape(20, 3)
    mapped = jax.jit(jax.vmap(lambda row, at, value: law(row, at).log_prob(value), in_axes=(0, 0, 1), out_axes=1))
    np.testing.assert_allclose(mapped(BATCH, CENTRES, value), law(BATCH, CENTRES).log_prob(value), rtol=1e-12)


@pytest.mark.slow
def test_many_points_are_taken_in_turn(monkeypatch):
    z = np.arange(60.0).reshape(20, 3)
    whole, one_row = LaplaceSum(BATCH).log_survival(z), LaplaceSum(BATCH[0]).log_survival(z[:, 0])
    monkeypatch.setattr(contour, "_MAX_POINTS", 10)
    # With their own scales, and with the same for all points.
    np.testing.assert_allclose(LaplaceSum(BATCH).log_survival(z), whole, rtol=1e-14)
    np.testing.assert_allclose(contour.log_survival(jnp.asarray(z[:, 0]), jnp.asarray(BATCH[0])), one_row, rtol=1e-14)


@each(KINDS)
def test_shapes_broadcast(law):
    def shapes(scales, loc, value):
        def all_of_it(scales, loc, value):
            one = law(scales, loc)
            of_values = one.log_prob(value), one.log_survival(value), one.cdf(value), one.icdf(0.0 * value + 0.25)
            return of_values, (one.mean, one.variance, one.kurtosis, jnp.zeros(one.batch_shape))

        # Nothing is computed.
        found = jax.eval_shape(all_of_it, jnp.zeros(scales), jnp.zeros(loc), jnp.zeros(value))
        return tuple({x.shape for x in part} for part in found)

    assert shapes((3,), (), ()) == ({()}, {()})
    assert shapes((3,), (), (5, 3)) == ({(5, 3)}, {()})
    assert shapes((3,), (5, 3), ()) == ({(5, 3)}, {(5, 3)})
    assert shapes((3, 3), (5, 3), (5, 3)) == ({(5, 3)}, {(5, 3)})
    assert shapes((3, 3), (), (5, 1)) == ({(5, 3)}, {(3,)})
    assert shapes((2, 1, 3), (3,), ()) == ({(2, 3)}, {(2, 3)})


@each({name: KINDS[name] for name in ("equal", "discrete one")})
def test_a_centre_moves_the_law(law):
    loc = np.arange(60.0).reshape(20, 3)
    np.testing.assert_allclose(law(BATCH, loc).log_prob(loc + 2), law(BATCH).log_prob(0 * loc + 2), rtol=1e-13)
    np.testing.assert_allclose(law(BATCH, loc).cdf(loc - 2), law(BATCH).cdf(0 * loc - 2), rtol=1e-13)
    np.testing.assert_allclose(law(BATCH, 3.0).cdf(loc), law(BATCH).cdf(loc - 3), rtol=1e-13)


def test_numbers_and_lists_will_do():
    assert float(LaplaceSum([2], 1).log_prob(3)) == pytest.approx(-1 - math.log(4), rel=1e-14)
    assert float(DiscreteLaplaceSum([2], 1).log_prob(3)) == pytest.approx(math.log(math.tanh(0.25)) - 1, rel=1e-14)
    assert float(DiscreteLaplace(2, 1).log_prob(3)) == pytest.approx(math.log(math.tanh(0.25)) - 1, rel=1e-14)


# ---- Discrete noises

LISTS = {
    "0.1, 1, 20, 50": [0.1, 1.0, 20.0, 50.0],
    "ten of 3": [3.0] * 10,
    "ten of 0.1": [0.1] * 10,
    "three": [1.0, 2.5, 0.3],
    "four about 7": [7.0, 7.01, 6.99, 7.0],
    "one": [5.0],
}


@pytest.mark.parametrize("scales", list(LISTS.values()), ids=list(LISTS))
def test_discrete_sums_against_convolutions(scales):
    masses, tails = discrete_laplace_sum(np.array(scales), min(int(600 * max(scales)), 2000))
    # Twenty of the k up to where the reference underflows, the first ones among them.
    reach = int(np.argmin(tails > 1e-280)) or tails.size
    k = np.resize(np.unique([*range(5), *np.linspace(5, reach - 1, 15).astype(int)]), 20)
    # Lists of four are made as long as those of ten by noises that are 0 but for exp(-100).
    law = DiscreteLaplaceSum(np.array(scales + [0.01] * 6 if len(scales) == 4 else scales))
    np.testing.assert_allclose(probability(law, "pdf", k), masses[k], rtol=1e-11)
    np.testing.assert_allclose(probability(law, "sf", k), tails[k], rtol=1e-11)
    np.testing.assert_allclose(law.cdf(-k - 1.0), tails[k], rtol=1e-11)
    # Moments over the whole law, whose masses add up to 1.
    both, i = np.concatenate([masses[:0:-1], masses]), np.arange(1.0 - masses.size, masses.size)
    assert both.sum() == pytest.approx(1, rel=1e-12)
    variance = float(both @ i**2)
    assert float(law.mean) == 0
    assert float(law.variance) == pytest.approx(variance, rel=1e-12)
    assert float(law.kurtosis) == pytest.approx(float(both @ i**4) / variance**2 - 3, rel=1e-10, abs=1e-12)


TWO_ALIKE = np.array([0.002, 0.01, 0.02, 0.05, 0.3, 1.0, 20.0, 1e4, 1e8])


@pytest.mark.slow
@pytest.mark.parametrize("scale", TWO_ALIKE)
def test_two_discrete_noises_of_any_scale(scale):
    # All scales at once, which takes one compilation.
    law, i = DiscreteLaplaceSum(np.stack([TWO_ALIKE, TWO_ALIKE], axis=1)), TWO_ALIKE.tolist().index(scale)
    # Those below 0.01, a noise of which is 0 but for 1e-43, count as that.
    scale = max(scale, 0.01)
    # P(k) = tanh(1/(2b))^2 a^k (k + 1 + 2 a^2 / (1 - a^2)) with a = exp(-1/b), and its sum from k + 1 on.
    k = np.arange(4.0)
    a, rest = math.exp(-1 / scale), -math.expm1(-1 / scale)
    more = 2 * a**2 / (rest * (1 + a))
    mass = 2 * math.log(math.tanh(0.5 / scale)) - k / scale + np.log(k + 1 + more)
    tail = 2 * math.log(math.tanh(0.5 / scale)) - (k + 1) / scale - math.log(rest) + np.log(k + 2 + a / rest + more)
    k = np.repeat(k[:, None], TWO_ALIKE.size, axis=1)
    np.testing.assert_allclose(np.asarray(law.log_prob(k))[:, i], mass, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.asarray(law.log_survival(k))[:, i], tail, rtol=1e-12)


@pytest.mark.parametrize("scale", [0.05, 0.7, 1.0, 12.0])
def test_one_discrete_noise_against_its_definition(scale):
    k = np.arange(-400, 401)
    # Up to where a normal number can hold what is left.
    kept = np.abs(k) < 600 * scale
    law = DiscreteLaplace(scale)
    masses = probability(law, "pdf", k)
    np.testing.assert_allclose(masses[kept], np.tanh(0.5 / scale) * np.exp(-np.abs(k) / scale)[kept], rtol=1e-12)
    assert masses.sum() == pytest.approx(1, rel=1e-12)
    cdf = probability(law, "cdf", k)
    # But for the half of the tails beyond, below 1e-14.
    np.testing.assert_allclose(cdf, np.cumsum(masses), rtol=1e-10, atol=1e-13)
    # The cdf stays where it is between integers.
    np.testing.assert_array_equal(law.cdf(k + 0.5), cdf)
    variance = float(law.variance)
    assert variance == pytest.approx(float(noise.stddev("discrete_laplace", scale)) ** 2, rel=1e-14)
    assert variance == pytest.approx(float(masses @ k.astype(float) ** 2), rel=1e-10)
    assert float(law.kurtosis) == pytest.approx(float(masses @ k.astype(float) ** 4) / variance**2 - 3, rel=1e-7)
    # A sum of one.
    one = DiscreteLaplaceSum(np.array([scale]))
    np.testing.assert_allclose(probability(one, "pdf", k)[kept], masses[kept], rtol=1e-14)
    np.testing.assert_allclose(one.cdf(k), cdf, rtol=1e-14)
    np.testing.assert_allclose([one.variance, one.kurtosis], [law.variance, law.kurtosis], rtol=1e-14)


def test_a_real_centre_extends_the_mass_continuously():
    scale, k = 1.7, np.arange(-400, 401)
    totals = []
    for loc in (-1.0, -0.75, -0.5, -0.25, 0.0):
        found = np.asarray(DiscreteLaplace(scale, loc).log_prob(k))
        np.testing.assert_allclose(found, math.log(math.tanh(0.5 / scale)) - np.abs(k - loc) / scale, rtol=1e-13)
        totals.append(np.exp(found).sum())
    # The masses of the integers then add up to less than 1, least where the centre is halfway between two of them.
    np.testing.assert_allclose(np.array(totals)[[0, 2, 4]], [1, 1 / math.cosh(0.5 / scale), 1], rtol=1e-12)
    assert totals[1] == pytest.approx(totals[3], rel=1e-12)
    assert totals[2] < totals[1] < 1


# ---- Draws

DRAWS = 10_000


@each(CONTINUOUS)
def test_draws_follow_the_continuous_law(law):
    draws = np.asarray(law.sample(jax.random.key(0), (DRAWS,)))
    assert draws.shape == (DRAWS,)
    assert stats.kstest(draws, lambda x: np.asarray(law.cdf(x))).pvalue > 1e-4


@pytest.mark.slow
def test_draws_of_a_batch_follow_their_laws():
    law = LaplaceSum(BATCH[:, [0, 0, 0]], CENTRES)
    draws = law.sample(jax.random.key(1), (DRAWS // 4, 4))
    assert draws.shape == (DRAWS // 4, 4, 3)
    shares = np.asarray(law.cdf(draws))
    for i in range(3):
        assert stats.kstest(shares[..., i].reshape(-1), "uniform").pvalue > 1e-4
    # Each with noise of its own.
    assert np.all(np.abs(np.corrcoef(shares.reshape(-1, 3).T) - np.eye(3)) < 0.05)


@each(LATTICE | {"batch": DiscreteLaplace(np.array([0.5, 4.0]), np.arange(2.0))})
def test_draws_follow_the_discrete_law(law):
    draws = np.asarray(law.sample(jax.random.key(2), (DRAWS,)))
    assert draws.shape == (DRAWS, *law.batch_shape)
    assert np.all(draws == np.floor(draws))
    # Twenty values around the centres; all others are one.
    k = INTEGERS + 1
    masses = probability(law, "pdf", k[:, None] if law.batch_shape else k).reshape(20, -1)
    for column, law_of_column in zip(draws.reshape(DRAWS, -1).T, masses.T, strict=True):
        often = DRAWS * law_of_column > 10
        observed = np.array([(column == value).sum() for value in k[often]])
        expected = DRAWS * law_of_column[often]
        observed, expected = np.append(observed, DRAWS - observed.sum()), np.append(expected, DRAWS - expected.sum())
        assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_draws_of_many_terms_are_made_some_at_a_time(monkeypatch):
    # Two terms, then the third; were their noises the same ones, the variance would be 5/3 as large.
    monkeypatch.setattr(laws, "_DRAWS_AT_ONCE", 2 * DRAWS)
    draws = np.asarray(EQUAL.sample(jax.random.key(3), (DRAWS,)))
    assert stats.kstest(draws, lambda x: np.asarray(EQUAL.cdf(x))).pvalue > 1e-4


@each(ALL)
def test_draws_have_the_moments(law):
    draws = np.asarray(law.sample(jax.random.key(4), (DRAWS,)))
    variance = float(law.variance)
    assert float(law.mean) == float(law.loc)
    assert draws.mean() == pytest.approx(float(law.mean), abs=5 * (variance / DRAWS) ** 0.5)
    assert draws.var() == pytest.approx(variance, abs=5 * variance * ((float(law.kurtosis) + 2) / DRAWS) ** 0.5)


@each(ALL)
def test_keys_of_both_kinds_and_no_other(law):
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert law.sample(key, (20,)).shape == (20,)
    assert jax.eval_shape(law.sample, jax.random.key(5)).shape == ()
    for bad in (0, None, np.arange(3), "key"):
        with pytest.raises(ValueError, match="key"):
            law.sample(bad)


# ---- As numpyro's distributions


def model(law, y=None):
    mu = numpyro.sample("mu", Normal(0.0, 10.0))
    return numpyro.sample("y", law(mu), obs=y)


MODELS = {
    "unequal": lambda mu: LaplaceSum(np.array([1.0, 2.5, 0.3]), mu * jnp.ones(20)).to_event(1),
    "equal": lambda mu: LaplaceSum(np.full(3, 2.0), mu * jnp.ones(20)).to_event(1),
    "discrete": lambda mu: DiscreteLaplace(1.7, mu * jnp.ones(20)).to_event(1),
}


@each(MODELS)
def test_a_model_has_the_density_of_its_parts(law):
    joint = lambda mu: log_density(model, (law, INTEGERS), {}, {"mu": mu})[0]  # noqa: E731
    mu = 0.75
    assert float(joint(mu)) == pytest.approx(float(Normal(0.0, 10.0).log_prob(mu) + law(mu).log_prob(INTEGERS)), rel=1e-12)
    difference = (joint(mu + 1e-5) - joint(mu - 1e-5)) / 2e-5
    assert float(jax.grad(joint)(mu)) == pytest.approx(float(difference), rel=1e-6)


@each(MODELS)
def test_models_draw(law):
    draw = np.asarray(handlers.seed(model, 0)(law))
    assert draw.shape == (20,)
    assert np.all(draw == np.asarray(handlers.seed(model, 0)(law)))
    assert np.all(draw != np.asarray(handlers.seed(model, 1)(law)))


def test_predictive():
    assert Predictive(model, num_samples=7)(jax.random.key(0), MODELS["unequal"])["y"].shape == (7, 20)


@each({"equal": EQUAL, "discrete sum": DISCRETE_SUM})
def test_plates_expand(law):
    def model(y=None):
        with numpyro.plate("i", 20):
            return numpyro.sample("y", law, obs=y)

    assert np.shape(np.asarray(handlers.seed(model, 0)())) == (20,)
    total = float(np.asarray(law.log_prob(INTEGERS)).sum())
    assert float(log_density(model, (INTEGERS,), {}, {})[0]) == pytest.approx(total, rel=1e-13)


@each(ALL)
def test_expand_and_to_event(law):
    wide = law.expand((20,))
    assert wide.batch_shape == (20,)
    direct = np.asarray(law.log_prob(INTEGERS))
    np.testing.assert_allclose(wide.log_prob(INTEGERS), direct, rtol=1e-14)
    assert wide.sample(jax.random.key(0)).shape == (20,)
    event = wide.to_event(1)
    assert (event.batch_shape, event.event_shape) == ((), (20,))
    assert float(event.log_prob(INTEGERS)) == pytest.approx(direct.sum(), rel=1e-13)


@each(ALL)
def test_laws_pass_through_jit(law):
    leaves, structure = jax.tree.flatten(law)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    direct = law.log_prob(INTEGERS)
    again = jax.tree.unflatten(structure, leaves)
    # Handed in, and made inside and handed out.
    make = jax.jit(lambda law: type(law)(*[getattr(law, name) for name in law.arg_constraints]))
    for other in (again, make(law)):
        assert type(other) is type(law)
        assert other.batch_shape == law.batch_shape
        np.testing.assert_allclose(other.log_prob(INTEGERS), direct, rtol=1e-12)
    if law is not DISCRETE_SUM:  # whose integrals would be compiled anew
        np.testing.assert_allclose(jax.jit(lambda law, value: law.log_prob(value))(law, INTEGERS), direct, rtol=1e-12)


def test_laws_pass_through_vmap():
    law = LaplaceSum(BATCH[:, [0, 0, 0]], CENTRES)
    np.testing.assert_allclose(jax.vmap(lambda law: law.log_prob(2.0))(law), law.log_prob(2.0), rtol=1e-13)


@each(ALL)
def test_support(law):
    is_discrete = isinstance(law, (DiscreteLaplaceSum, DiscreteLaplace))
    assert law.support.is_discrete is law.is_discrete is is_discrete
    assert law.event_shape == ()
    np.testing.assert_array_equal(law.support(np.array([-3.0, 0.5, 2.0])), [True, not is_discrete, True])
    assert law.support.feasible_like(jnp.ones(2)).shape == (2,)


@pytest.mark.parametrize("kind", [LaplaceSum, DiscreteLaplaceSum, DiscreteLaplace])
def test_parameters_out_of_range(kind):
    for bad in ([1.0, -2.0], [1.0, 0.0], [1.0, np.nan]):
        with pytest.raises(ValueError, match="scale"):
            kind(np.array(bad), validate_args=True)
    with pytest.raises(ValueError, match="loc"):
        kind(np.array([1.0, 2.0]), np.nan, validate_args=True)


@pytest.mark.parametrize("kind", [LaplaceSum, DiscreteLaplaceSum])
@pytest.mark.parametrize("scales", [1.0, np.zeros(0), np.zeros((3, 0))], ids=["none", "empty", "empty rows"])
def test_sums_need_terms(kind, scales):
    with pytest.raises(ValueError, match="scales must have"):
        kind(scales)


@each(LATTICE)
def test_what_is_no_integer_has_no_probability(law):
    checked = type(law)(*[getattr(law, name) for name in law.arg_constraints], validate_args=True)
    is_integer = np.arange(20) % 2 == 1
    with pytest.warns(UserWarning, match="support"):
        found = np.asarray(checked.log_prob(np.where(is_integer, INTEGERS, INTEGERS + 0.5)))
    np.testing.assert_array_equal(found, np.where(is_integer, np.asarray(law.log_prob(INTEGERS)), -np.inf))


def test_what_is_no_integer_has_no_probability_unseen_by_python():
    found = jax.jit(DISCRETE.log_prob)(np.array([1.0, 1.5]))
    np.testing.assert_array_equal(np.isfinite(found), [True, False])


def test_public_names():
    for name in noise.__all__:
        assert name == "NAMES" or getattr(noise, name).__doc__, name
    with pytest.raises(AttributeError, match="no_such_law"):
        _ = noise.no_such_law


@pytest.mark.slow
def test_logarithms_at_values_beyond_all_use():
    for law in (LaplaceSum(2 * np.ones(50)), LaplaceSum(2 * np.ones(3)), LaplaceSum([1.0, 2.0, 0.3])):
        value = 10.0 ** np.array([13.0, 18, 20, 24, 26, 42, 158, 300])
        np.testing.assert_allclose(law.log_prob(value), -value / 2, rtol=1e-7)
        np.testing.assert_allclose(law.log_survival(value), -value / 2, rtol=1e-7)


def test_scales_that_were_changed_in_place_are_looked_at_again():
    changed = jax.tree.map(lambda x: x * jnp.array([1.0, 3.0]) if x.ndim else x, LaplaceSum([1.0, 1.0]))
    np.testing.assert_allclose(changed.log_prob(1.0), LaplaceSum([1.0, 3.0]).log_prob(1.0), rtol=1e-14)
