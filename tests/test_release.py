"""Releases: provenance, and a file that keeps it."""

import contextlib
import json
import os
import pickle
import zipfile
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.queries import (
    AllRange,
    Boxes,
    Dense,
    Haar,
    Identity,
    Kronecker,
    Partition,
    Prefix,
    Ranges,
    Suffix,
    Total,
    Tree,
    VStack,
    Weighted,
)

FAMILIES = [
    Identity(5),
    Total(5),
    Prefix(5),
    AllRange(5),
    Ranges(5, [0, 1], [2, 5]),
    Tree.complete(5, 2),
    Tree.complete(5, 3, root=True),
    Tree.from_parents([-1, 0, 0, 1, 1, 2, 2, 2], [4, 2, 3, 0, 1]),
    Tree.grid((5, 1), 2),
    Suffix(5),
    Haar(5),
    Partition([0, 2, 2, 0, 1]),
    Boxes((5, 1), [[0, 0], [1, 0]], [[2, 1], [5, 1]]),
    Kronecker([Prefix(5), Total(1)]),
    Weighted(Total(5), [3]),
    Dense([[1, -1, 0, 2**40, 0]]),
    VStack([Identity(5), VStack([Total(5), Ranges(5, [1], [4])])]),
]


@pytest.mark.parametrize("queries", FAMILIES, ids=repr)
def test_saved_and_loaded(queries, tmp_path):
    domain = dp.Domain({"x": dp.Axis.integers(0, 5)})
    strategy = queries if queries.sensitivity() < 2**31 else Identity(5)
    release = dp.measure(np.arange(5), strategy, epsilon=0.3, domain=domain)
    if strategy is not queries:
        release = dp.Release.from_values(queries, [17], noise="gaussian", stddev=2, domain=domain)
    path = tmp_path / "a release.npz"
    release.save(path)
    loaded = dp.Release.load(path)
    np.testing.assert_array_equal(loaded.queries.dense(), queries.dense())
    np.testing.assert_array_equal(loaded.values, release.values)
    np.testing.assert_array_equal(loaded.scale, release.scale)
    assert loaded.values.dtype == release.values.dtype
    for name in ("noise", "epsilon", "rho", "neighbors", "simulated", "domain"):
        assert getattr(loaded, name) == getattr(release, name), name
    assert isinstance(loaded.epsilon, Fraction) or release.epsilon is None
    assert os.listdir(tmp_path) == ["a release.npz"]
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            assert pickle.PROTO not in archive.read(name)[:1]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "release.npz"
    dp.Release.from_values(Total(2), [1], noise="laplace", scale=1).save(path)
    before = path.read_bytes()

    def interrupted(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dp.Release.from_values(Total(2), [2], noise="laplace", scale=1).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["release.npz"]


def test_files_that_are_no_release_say_so(tmp_path):
    path = tmp_path / "release.npz"
    with pytest.raises(FileNotFoundError):
        dp.Release.load(path)
    for content in (b"", b"hello", b"PK\x03\x04 not really"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is no dpinfer release"):
            dp.Release.load(path)
    np.savez(path, values=np.ones(3))
    with pytest.raises(ValueError, match="is no dpinfer release"):
        dp.Release.load(path)
    np.savez(path, header=np.frombuffer(b'{"format": "other"}', dtype=np.uint8))
    with pytest.raises(ValueError, match="its header does not say so"):
        dp.Release.load(path)
    np.savez(path, header=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="no dpinfer release, or it is damaged"):
        dp.Release.load(path)


def test_no_flipped_byte_raises_anything_else(tmp_path):
    path = tmp_path / "release.npz"
    dp.measure(np.arange(2), Identity(2), epsilon=1).save(path)
    content = bytearray(path.read_bytes())
    for i in range(0, len(content), 3):
        damaged = content.copy()
        damaged[i] ^= 0xFF
        path.write_bytes(bytes(damaged))
        with contextlib.suppress(ValueError):
            dp.Release.load(path)


def rewritten(path, change):
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    header = json.loads(arrays["header"].tobytes())
    change(header, arrays)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, a: h.update(version=2), "format version 2; this dpinfer reads version 1. Upgrade"),
        (lambda h, a: h.pop("noise"), "damaged dpinfer release.*noise"),
        (lambda h, a: h.update(values="array_9"), "damaged dpinfer release"),
        (lambda h, a: h["queries"].update(family="Oracle"), "damaged dpinfer release.*Oracle"),
        (lambda h, a: h["queries"].update(spam=1), "damaged dpinfer release"),
        (lambda h, a: h["queries"].update(n=7), "values must have shape|domain has"),
        (lambda h, a: a.update({h["values"]: np.array([np.nan, 1.0])}), "values must be finite"),
    ],
)
def test_damaged_and_newer_files_say_so(tmp_path, change, message):
    path = tmp_path / "release.npz"
    dp.measure(np.arange(2), Identity(2), epsilon=1).save(path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=message):
        dp.Release.load(path)


def test_values_made_elsewhere():
    for noise in dp.noise.NAMES:
        by_stddev = dp.Release.from_values(Identity(4), [1, 2, 3, 4], noise=noise, stddev=[1.5, 3.0, 0, np.inf])
        np.testing.assert_allclose(by_stddev.stddev, [1.5, 3.0, 0, np.inf], rtol=1e-12)
        by_scale = dp.Release.from_values(Identity(4), [1.0, 2.0, 3.0, 4.0], noise=noise, scale=2)
        assert float(by_scale.scale) == 2
    matrix = dp.Release.from_values([[1, 1], [0, 1]], [3, 1], noise="gaussian", stddev=1)
    np.testing.assert_allclose(dp.least_squares(matrix).cells, [2, 1], rtol=1e-14)
    assert matrix.epsilon is None
    assert matrix.neighbors is None
    cases: list[dict[str, Any]] = [{}, {"scale": 1, "stddev": 1}]
    for wrong in cases:
        with pytest.raises(ValueError, match="exactly one of scale= and stddev="):
            dp.Release.from_values(Total(2), [1], noise="laplace", **wrong)
    with pytest.raises(ValueError, match="noise must be one of"):
        dp.Release.from_values(Total(2), [1], noise="uniform", scale=1)
    with pytest.raises(ValueError, match="domain has 3 cells, but the strategy has 2"):
        dp.Release.from_values(Total(2), [1], noise="laplace", scale=1, domain=dp.Domain({"x": dp.Axis.integers(0, 3)}))


def test_concatenated_losses_add_up_or_are_read_off_the_matrix():
    domain = dp.Domain({"x": dp.Axis.integers(0, 4)})
    halves = [Ranges(4, [0], [2]), Ranges(4, [2], [4])]
    first, second = (dp.measure(np.arange(4), half, epsilon=0.25, domain=domain) for half in halves)
    third = dp.measure(np.arange(4), Total(4), epsilon=0.5, domain=domain)
    both = dp.Release.concat([first, second, third])
    assert both.epsilon == 1
    assert both.domain == domain
    np.testing.assert_array_equal(both.values, [first.values[0], second.values[0], third.values[0]])
    np.testing.assert_array_equal(both.scale, [4, 4, 2])
    # The halves are disjoint: no record counts in both.
    assert dp.Release.concat([first, second, third], adaptive=False).epsilon == Fraction(3, 4)
    moved = [dp.measure(np.arange(4), half, epsilon=0.25, neighbors="replace_one") for half in halves]
    assert dp.Release.concat(moved, adaptive=False).epsilon == Fraction(1, 2)
    gaussian = [dp.measure(np.arange(4), half, rho=0.125) for half in halves]
    assert dp.Release.concat(gaussian).rho == Fraction(1, 4)
    stacked = dp.Release.concat(gaussian, adaptive=False).rho
    assert stacked is not None
    assert stacked <= Fraction(1, 4)
    assert dp.Release.concat([first]).epsilon == first.epsilon
    found = dp.least_squares(both).answer(Total(4))
    np.testing.assert_allclose(found.stddev, np.sqrt(1 / (1 / (2 * first.stddev**2) + 1 / third.stddev**2)), rtol=1e-9)


def test_a_stacked_loss_is_never_above_the_sum():
    # Scales such as 10/3 are stored as the nearest float, whose loss may lie a rounding above.
    releases = [dp.measure(np.arange(3), Identity(3), epsilon=Fraction(3, 10)) for _ in range(3)]
    stacked = dp.Release.concat(releases, adaptive=False).epsilon
    assert stacked is not None
    assert stacked <= Fraction(9, 10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: [], "non-empty list"),
        (lambda r: [r.measurement], "non-empty list"),
        (lambda r: [r, dp.measure(np.arange(3), Identity(3), epsilon=1, neighbors="replace_one")], "agree in neighbors"),
        (lambda r: [r, dp.measure(np.arange(3), Identity(3), rho=1)], "share one noise law"),
        (lambda r: [r, dp.measure(np.arange(2), Identity(2), epsilon=1)], "same cells"),
        (lambda r: [r, dp.Release.from_values(Identity(3), [1, 2, 3], noise="discrete_laplace", scale=1)], "agree in neighbors"),
    ],
)
def test_releases_that_do_not_go_together(make, message):
    release = dp.measure(np.arange(3), Identity(3), epsilon=1)
    with pytest.raises(ValueError, match=message):
        dp.Release.concat(make(release))
