"""Measurements: what is checked, what is a leaf, how they are stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.queries import Identity, Ranges, Total, Tree, VStack


def test_stddev_of_each_law():
    for noise, expected in (("laplace", 5 * 2**0.5), ("gaussian", 5.0), ("discrete_gaussian", 5.0)):
        assert float(dp.Measurement(Identity(2), [1, 2], noise, 5).stddev) == pytest.approx(expected)
    discrete = dp.Measurement(Identity(2), [1, 2], "discrete_laplace", [5, np.inf])
    p = np.exp(-1 / 5)
    np.testing.assert_allclose(discrete.stddev, [np.sqrt(2 * p) / (1 - p), np.inf])


def test_values_and_scale_are_leaves_and_structure_is_not():
    measurement = dp.Measurement(Ranges(5, [0, 1], [2, 5]), np.array([1, 2]), "laplace", np.array(3.0))
    leaves, treedef = jax.tree.flatten(measurement)
    assert [np.asarray(leaf).tolist() for leaf in leaves] == [[1, 2], 3.0]
    assert treedef == jax.tree.structure(dp.Measurement(Ranges(5, [0, 1], [2, 5]), np.array([7, 8]), "laplace", np.array(1.0)))
    assert treedef != jax.tree.structure(dp.Measurement(Ranges(5, [0, 1], [2, 5]), np.array([7, 8]), "gaussian", np.array(1.0)))
    doubled = jax.jit(lambda m: jax.tree.map(lambda x: 2 * x, m))(measurement)
    np.testing.assert_array_equal(doubled.values, [2, 4])
    # Placeholders pass through, as JAX itself needs.
    assert jax.tree.unflatten(treedef, [object(), None]).noise == "laplace"


def test_host_integers_keep_64_bits():
    measurement = dp.Measurement(Identity(2), [2**53 + 1, -(2**62)], "discrete_laplace", 1)
    assert measurement.values.dtype == np.int64
    assert measurement.values.tolist() == [2**53 + 1, -(2**62)]


def test_concat():
    first = dp.Measurement(Identity(3), [1, 2, 3], "laplace", 2)
    second = dp.Measurement(Total(3), [7], "laplace", [4])
    both = dp.Measurement.concat([first, second])
    assert both.queries == VStack([Identity(3), Total(3)])
    np.testing.assert_array_equal(both.values, [1, 2, 3, 7])
    np.testing.assert_array_equal(both.scale, [2, 2, 2, 4])
    assert dp.Measurement.concat([first]) is first
    traced = jax.jit(lambda v: dp.Measurement.concat([dp.Measurement(Identity(3), v, "laplace", 2), second]).values)
    np.testing.assert_array_equal(traced(jnp.array([1, 2, 3])), both.values)
    with pytest.raises(ValueError, match="must share one noise law"):
        dp.Measurement.concat([first, dp.Measurement(Total(3), [7], "gaussian", 1)])
    with pytest.raises(ValueError, match="same cells"):
        dp.Measurement.concat([first, dp.Measurement(Total(4), [7], "laplace", 1)])
    with pytest.raises(ValueError, match="must not be empty"):
        dp.Measurement.concat([])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(2), [1, 2], "laplace", 1), "queries must be a family"),
        ((Identity(2), [1, 2, 3], "laplace", 1), r"values must have shape \[2\].*got \[3\]"),
        ((Identity(2), [[1, 2]], "laplace", 1), r"values must have shape \[2\].*got \[1, 2\]"),
        ((Identity(2), [1, np.nan], "laplace", 1), "values must be finite, got nan at position 1 .* stddev=inf"),
        ((Identity(2), [np.inf, 1], "laplace", 1), "values must be finite, got inf at position 0"),
        ((Identity(2), ["1", "2"], "laplace", 1), "values must hold real numbers"),
        ((Identity(2), [1, 2], "cauchy", 1), "noise must be one of 'laplace', 'discrete_laplace', 'gaussian'"),
        ((Identity(2), [1, 2], "laplace", None), "scale must be given"),
        ((Identity(2), [1, 2], "laplace", -1), "scale must not be negative or nan, got -1.0"),
        ((Identity(2), [1, 2], "laplace", [1, np.nan]), "got nan at position 1"),
        ((Identity(2), [1, 2], "laplace", [1]), r"scale must be a number or have shape \[2\].*got \[1\]"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        dp.Measurement(*arguments)


def test_32_bit_floats_refuse_counts_they_would_round():
    tree = Tree.complete(2, 2)
    jax.config.update("jax_enable_x64", False)
    try:
        small = dp.least_squares(dp.Measurement(tree, [2**24, -(2**24)], "laplace", 1.0))
        assert small.cells.dtype == np.float32
        np.testing.assert_array_equal(small.cells, [2**24, -(2**24)])
        for values in ([2**24 + 1, 0], [2.0**31, 0]):
            with pytest.raises(ValueError, match=r"above 2\*\*24.*Type dpinfer.enable_x64\(\) first"):
                dp.least_squares(dp.Measurement(tree, values, "laplace", 1.0))
        with pytest.raises(ValueError, match="enable_x64"):
            dp.simulate(np.array([2**31, 0]), tree, epsilon=1.0, key=jax.random.key(0))
        release = dp.measure(np.array([2**31, 5]), tree, epsilon=1.0)  # the host computes in 64 bit regardless
        assert abs(int(release.values[0]) - 2**31) < 1000
        dp.enable_x64()
        assert dp.least_squares(release).cells.dtype == np.float64
    finally:
        jax.config.update("jax_enable_x64", True)
