"""Many problems at once: the same bits whatever the chunks, devices and processes, and memory that stays where it was put."""

import os
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batching_script import NUM, batches
from jax.sharding import Mesh, PartitionSpec

import dpinfer as dp
from dpinfer import _blocks, batching
from dpinfer.queries import Dense, Identity, Prefix, Tree

BATCHES = batches()
SCRIPT = Path(__file__).with_name("batching_script.py")


def leaves_of(name):
    function, problems, key = BATCHES[name]
    return jax.tree.leaves(dp.map_problems(function, *problems, key=key))


def one_by_one(name):
    function, problems, key = BATCHES[name]
    rows = []
    for row in range(NUM):
        own = [
            dp.Measurement(p.queries, p.values[row], p.noise, p.scale[row]) if isinstance(p, dp.Measurement) else p[row]
            for p in problems
        ]
        rows.append(function(*own) if key is None else function(*own, key=jax.random.fold_in(key, row)))
    return [np.stack(parts) for parts in zip(*(jax.tree.leaves(row) for row in rows), strict=True)]


@pytest.mark.parametrize("name", BATCHES)
def test_each_problem_is_solved_as_by_itself(name):
    got = leaves_of(name)
    assert all(isinstance(leaf, np.ndarray) and leaf.shape[0] == NUM for leaf in got)
    if name in ("tree", "ragged tree", "study", "non-negative"):
        for leaf, expected in zip(got, one_by_one(name)[: len(got)], strict=False):
            np.testing.assert_allclose(leaf, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["tree", "iterative", "study"])
def test_chunks_change_no_bit(name, monkeypatch):
    whole = leaves_of(name)
    for size in (1, 400, 3000):
        monkeypatch.setattr(batching, "_DISPATCH_BYTES", size)
        for got, expected in zip(leaves_of(name), whole, strict=True):
            np.testing.assert_array_equal(got, expected)
    function, problems, key = BATCHES[name]
    pieces = list(dp.stream_problems(function, *problems, key=key, memory_limit=200_000))
    assert [p.start for p, _ in pieces] == [0, *(p.stop for p, _ in pieces[:-1])]
    for number, expected in enumerate(whole):
        np.testing.assert_array_equal(np.concatenate([jax.tree.leaves(found)[number] for _, found in pieces]), expected)


@pytest.mark.slow
def test_devices_and_processes_change_no_bit(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        coordinator = f"localhost:{probe.getsockname()[1]}"

    def start(output, devices, *more):
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        environment = os.environ | {"XLA_FLAGS": flags}
        command = [sys.executable, str(SCRIPT), str(tmp_path / output), *more]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    started = [start("eight", 8), start("first", 2, coordinator, "0"), start("second", 2, coordinator, "1")]
    for process in started:
        output, _ = process.communicate(timeout=500)
        assert process.returncode == 0, output
    for name, devices in (("eight", 8), ("first", 4), ("second", 4)):
        with np.load(tmp_path / f"{name}.npz") as found:
            assert found["num_devices"] == devices
            for batch in BATCHES:
                for number, expected in enumerate(leaves_of(batch)):
                    np.testing.assert_array_equal(found[f"{batch} {number}"], expected, err_msg=f"{name}, {batch}")


@pytest.mark.parametrize("name", BATCHES)
def test_solvers_run_inside_shard_map(name):
    function, problems, key = BATCHES[name]
    mesh, axis = Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x")
    shared = [p.queries for p in problems if isinstance(p, dp.Measurement)]

    def one(leaves, row):
        own, queries = iter(leaves), iter(shared)
        args = [
            dp.Measurement(next(queries), next(own), p.noise, next(own)) if isinstance(p, dp.Measurement) else next(own)
            for p in problems
        ]
        return function(*args) if key is None else function(*args, key=jax.random.fold_in(key, row))

    leaves = [x for p in problems for x in ((p.values, p.scale) if isinstance(p, dp.Measurement) else (p,))]
    mapped = jax.jit(jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=(axis, axis), out_specs=axis))
    found = mapped([jnp.asarray(x) for x in leaves], jnp.arange(NUM, dtype=jnp.uint32))
    for got, expected in zip(jax.tree.leaves(found), leaves_of(name), strict=False):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-10)


def test_queries_with_numbers_belong_to_all_problems():
    matrix = np.random.default_rng(0).normal(size=(5, 3))
    values = np.random.default_rng(1).normal(size=(20, 5))
    batch = dp.Measurement.batch(Dense(matrix), values, "gaussian", 1.0)
    got = dp.map_problems(lambda m: dp.least_squares(m).cells, batch)
    np.testing.assert_allclose(got, np.linalg.lstsq(matrix, values.T)[0].T, rtol=1e-10)


def test_exact_rows_that_cannot_be_seen_give_no_false_certainty():
    batch = dp.Measurement.batch(Dense(np.tri(3)), np.ones((2, 3)), "laplace", np.array([[0, 1, 1.0], [0, 1, 1]]))
    stddev = dp.map_problems(lambda m: dp.least_squares(m).answer(np.ones((1, 3))).stddev, batch)
    assert np.all(np.isnan(stddev))


@pytest.mark.slow
def test_inside_jit_and_grad():
    def mean_square(epsilon, key):
        cells = dp.least_squares(dp.simulate(jnp.zeros(4), Tree.complete(4, 2), epsilon=epsilon, key=key)).cells
        return jnp.square(cells).mean()

    epsilons, key = np.linspace(0.5, 2, 9), jax.random.key(0)
    outside = dp.map_problems(mean_square, epsilons, key=key)
    np.testing.assert_allclose(jax.jit(lambda e: dp.map_problems(mean_square, e, key=key))(epsilons), outside, rtol=1e-12)
    gradient = jax.grad(lambda e: dp.map_problems(mean_square, e, key=key).sum())(jnp.asarray(epsilons))
    np.testing.assert_allclose(gradient, -2 * outside / epsilons, rtol=1e-10)  # the error is proportional to 1 / epsilon


def test_what_is_traced_around_a_call():
    def square(x):
        return x * x

    inside = jax.jit(lambda y: y + dp.map_problems(square, np.arange(7.0))[2])
    assert float(inside(1.0)) == 5
    with pytest.raises(ValueError, match="function must not close over a value that is being traced"):
        jax.grad(lambda y: dp.map_problems(lambda x: x * y, np.ones(7)).sum())(1.0)
    passed = jax.grad(lambda y: dp.map_problems(lambda x, y: x * y, np.ones(7), jnp.broadcast_to(y, (7,))).sum())(1.0)
    assert float(passed) == 7


@pytest.mark.slow
def test_keys_and_numbers_of_problems():
    def draw(key):
        return jax.random.normal(key, (2,))

    drawn = dp.map_problems(draw, key=jax.random.key(5), num_problems=6)
    expected = [jax.random.normal(jax.random.fold_in(jax.random.key(5), i), (2,)) for i in range(6)]
    np.testing.assert_array_equal(drawn, np.stack(expected))
    keys = jax.random.split(jax.random.key(1), 5)
    np.testing.assert_array_equal(dp.map_problems(draw, keys), jax.vmap(draw)(keys))
    assert dp.map_problems(lambda x: x, np.zeros((3, 0))).shape == (3, 0)
    assert dp.map_problems(draw, key=jax.random.key(5), num_problems=0).shape == (0, 2)
    assert dp.map_problems(draw, key=jax.random.key(5), num_problems=1).shape == (1, 2)


def test_whatever_can_be_called_and_returned():
    class Shift:
        __hash__ = None  # pyright: ignore[reportAssignmentType]

        def __call__(self, x):
            return {"moved": x + 1, "nothing": None, "constant": 2.0}

    found = dp.map_problems(Shift(), np.arange(3))
    np.testing.assert_array_equal(found["moved"], [1, 2, 3])
    np.testing.assert_array_equal(found["constant"], [2.0, 2.0, 2.0])
    assert found["nothing"] is None
    nested = dp.map_problems(
        lambda d, flag: jnp.where(flag, d["x"][0], d["y"]),
        {"x": [np.arange(3)], "y": np.ones(3, np.float32)},
        np.array([True, False, True]),
    )
    np.testing.assert_array_equal(nested, [0, 1, 2])


def test_a_second_call_compiles_nothing():
    def double(x):
        return 2 * x

    dp.map_problems(double, np.arange(50.0))
    before = _blocks.compiled.cache_info().misses
    np.testing.assert_array_equal(dp.map_problems(double, np.arange(50.0)[::-1]), 2 * np.arange(50.0)[::-1])
    assert _blocks.compiled.cache_info().misses == before


@pytest.mark.slow
def test_a_stream_holds_the_memory_that_it_may(tmp_path):
    rows = 40_000
    stored = np.lib.format.open_memmap(tmp_path / "values.npy", mode="w+", dtype=np.float32, shape=(rows, 256))
    stored[:] = np.arange(256, dtype=np.float32)
    stored.flush()
    values = np.load(tmp_path / "values.npy", mmap_mode="r")
    seen, told = 0, []

    def total(v):
        return jnp.cumsum(v.astype(float))

    tracemalloc.start()
    for piece, found in dp.stream_problems(total, values, memory_limit=20_000_000, progress=lambda *p: told.append(p)):
        assert piece.start == seen
        np.testing.assert_array_equal(found[:, -1], 255 * 128)
        seen = piece.stop
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == rows
    assert told[-1] == (rows, rows)
    assert len(told) > 10
    assert most < 20_000_000  # all results are 82 million bytes


def test_progress_bar(capfd):
    dp.map_problems(lambda x: x + 1, np.arange(100.0), progress=True)
    assert "100/100" in capfd.readouterr().err


def test_what_is_no_batch_is_named():
    with pytest.raises(
        ValueError, match=r"problems must all be of one number along their first axes, got problems\[0\]: 3, problems\[1\]"
    ):
        dp.map_problems(lambda x, y: x + y, np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match=r"problems\[1\] must have the problems along its first axis, got the single value 2"):
        dp.map_problems(lambda x, y: x + y, np.ones(3), 2)
    with pytest.raises(ValueError, match="num_problems must be given where no problems are"):
        dp.map_problems(lambda key: key, key=jax.random.key(0))
    with pytest.raises(ValueError, match="key must be one typed key"):
        dp.map_problems(lambda x, key: x, np.ones(3), key=jax.random.PRNGKey(0))
    with pytest.raises(ValueError, match=r"memory_limit must be at least [0-9]+ bytes \(blocks hold 125 problems\), got 1000"):
        dp.map_problems(lambda x: jnp.cumsum(x), np.ones((1000, 100)), memory_limit=1000)
    with pytest.raises(ValueError, match="devices must not be empty"):
        dp.map_problems(lambda x: x, np.ones(3), devices=[])
    with pytest.raises(ValueError, match=r"problems\[0\] must hold numbers, got dtype <U1"):
        dp.map_problems(lambda x: x, np.array(["a"]))
    with pytest.raises(ValueError, match="function must return arrays of numbers, got typed keys"):
        dp.map_problems(lambda key: key, key=jax.random.key(0), num_problems=3)
    batch = dp.Measurement.batch(Prefix(3), np.ones((4, 3)), "laplace", 1.0)
    with pytest.raises(
        ValueError, match=r"measurement must be one problem, got a batch with values of shape \[4, 3\]: use map_problems"
    ):
        dp.least_squares(batch)
    for values, scale, message in (
        (np.ones(3), 1.0, r"values must have shape \[number of problems, 3\], got \[3\]"),
        (np.ones((4, 3)), np.ones(3), r"scale must be a number or have shape \[4\] or \[4, 3\], got \[3\]"),
        (np.ones((4, 3)), -1.0, "scale must not be negative"),
        (np.full((4, 3), np.nan), 1.0, "values must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            dp.Measurement.batch(Prefix(3), values, "laplace", scale)
    with pytest.raises(ValueError, match="queries must be a family from dpinfer.queries, got list"):
        dp.Measurement.batch([[1, 0]], np.ones((4, 1)), "laplace", 1.0)
    with pytest.raises(ValueError, match="noise must be one of"):
        dp.Measurement.batch(Prefix(3), np.ones((4, 3)), "normal", 1.0)


def test_counts_that_32_bit_would_round_are_refused():
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match=r"problems\[0\] holds magnitudes above 2\*\*24"):
            dp.map_problems(lambda x: x, np.array([2**24 + 1, 0]))
        batch = dp.Measurement.batch(Identity(2), np.ones((3, 2), dtype=np.int64), "laplace", 1.0)
        assert dp.map_problems(lambda m: dp.least_squares(m).cells, batch).dtype == np.float32
    finally:
        jax.config.update("jax_enable_x64", True)
