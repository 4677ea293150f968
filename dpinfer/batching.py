"""Many problems at once: one way for every function of one problem, whatever it estimates.

Rows are dealt into blocks of a width that depends on the function and the number of rows alone. A block is one ``vmap``; blocks
follow each other in a loop on each device, as many at once as the memory limit allows; what is left over is dispatched
afterwards. Since a row always is at the same place of the same block, and its key is ``fold_in(key, row)``, its result does not
depend on the limit, the number of devices or of processes, to the last bit (``_blocks.py`` says what that takes).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpinfer import _blocks, _checks
from dpinfer._blocks import AXIS, MIN_COUNT, Form, Program, compiled, is_key, of_block, one_of, traced
from dpinfer._progress import reporter
from dpinfer.queries import Queries

# Rows of input and output that are dispatched together, if the limit allows: enough to hide what a dispatch costs.
_DISPATCH_BYTES = 1 << 26


def map_problems(
    function: Callable[..., Any],
    *problems: Any,
    key: jax.Array | None = None,
    num_problems: int | None = None,
    memory_limit: int = 1 << 30,
    devices: Sequence[Any] | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Any:
    """``function`` of each of many problems, the results stacked: ``jax.vmap`` in bounded memory, on all devices.

    ``map_problems(lambda m: dp.least_squares(m).cells, batch)`` estimates a ``Measurement.batch``;
    ``map_problems(study, epsilons, key=key)`` calls ``study(epsilon, key=...)`` with a key of its own for each epsilon. Row i
    gets the key ``fold_in(key, i)``, and its result is the same to the last bit whatever the memory limit and the devices. Over
    several processes (``jax.distributed``) each calls it with the same arguments, and gets all results.

    Args:
        function: of one problem; it is traced under vmap, so that it returns arrays (or a pytree of them) and errors that depend
            on numbers cannot be raised: look at ``converged`` and the like. Calls with the same function object and shapes
            share one compiled program.
        problems: pytrees of arrays with the problems along the first axis: values, epsilons, cells, a ``Measurement.batch``.
            Queries among them belong to all problems and have no such axis. Host arrays, memory maps too, are read piece by
            piece.
        key: a typed key; then ``function`` is called with ``key=``.
        num_problems: how many, where there is nothing but a key.
        memory_limit: bytes of each device for inputs, results and what is in between.
        devices: those to use; left out, all of them.
        progress: whether to show a bar on standard error, or a function of (problems done, problems in all).

    Returns:
        The stacked results as numpy arrays. Called inside jit or grad, with traced problems, JAX arrays; the blocks then follow
        each other within the caller's program, on its device, and the limit is not looked at.

    Raises:
        ValueError: if the problems are not of one number, or if a single block needs more than ``memory_limit``.
    """
    batch = _batch(problems, key, num_problems)
    # Inside jit even a constant is traced, and nothing can be run before the whole is compiled.
    if any(isinstance(leaf, Tracer) for leaf in (*batch.leaves, *jax.tree.leaves((batch.shared, key)), jnp.zeros(()))):
        return _inside_jit(function, batch, key)
    whole = None
    for rows, result in _stream(function, batch, key, memory_limit, devices, progress):
        if whole is None:
            if rows.stop - rows.start == batch.size:
                return result
            whole = jax.tree.map(lambda x: np.empty((batch.size, *x.shape[1:]), x.dtype), result)
        jax.tree.map(lambda into, x, r=rows: into.__setitem__(r, x), whole, result)
    return whole


def stream_problems(
    function: Callable[..., Any],
    *problems: Any,
    key: jax.Array | None = None,
    num_problems: int | None = None,
    memory_limit: int = 1 << 30,
    devices: Sequence[Any] | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Iterator[tuple[slice, Any]]:
    """The results of :func:`map_problems` piece by piece, as pairs (rows, their results), for more than the host's memory holds.

    Arguments and errors as there. A piece is about a tenth of the limit and 64 MiB at most, but two blocks of problems at least.
    """
    return _stream(function, _batch(problems, key, num_problems), key, memory_limit, devices, progress)


class _Batch(NamedTuple):
    """Problems taken apart: arrays with a row a problem, queries that all share, and how to put one problem together."""

    leaves: tuple[Any, ...]
    shared: tuple[Queries, ...]
    structure: Any
    is_shared: tuple[bool, ...]
    size: int


def _batch(problems: tuple[Any, ...], key: Any, num_problems: int | None) -> _Batch:
    if key is not None:
        _checks.typed_key(key)
    paths, structure = jax.tree_util.tree_flatten_with_path(problems, is_leaf=lambda x: isinstance(x, Queries))
    is_shared = tuple(isinstance(leaf, Queries) for _, leaf in paths)
    leaves, sizes = [], {}
    for path, leaf in paths:
        if isinstance(leaf, Queries):
            continue
        array = leaf if isinstance(leaf, (jax.Array, np.ndarray)) else np.asarray(leaf)
        name = f"problems{jax.tree_util.keystr(path)}"
        if not (isinstance(array, jax.Array) or array.dtype.kind in "biufc"):
            raise ValueError(f"{name} must hold numbers, got dtype {array.dtype}.")
        if array.ndim == 0:
            raise ValueError(
                f"{name} must have the problems along its first axis, got the single value {leaf!r}; let the function close over "
                "what all problems share."
            )
        if not isinstance(array, jax.Array):
            _checks.exact_in_float(name, array)
        sizes[name] = array.shape[0]
        leaves.append(array)
    if num_problems is not None:
        sizes["num_problems"] = _checks.integer("num_problems", num_problems, least=0)
    if not sizes:
        raise ValueError("num_problems must be given where no problems are.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"problems must all be of one number along their first axes, got {listed}.")
    size = next(iter(sizes.values()))
    if size >= 2**32:
        raise ValueError(f"problems must be fewer than 2**32, each with a key of its own, got {size}.")
    return _Batch(tuple(leaves), tuple(leaf for _, leaf in paths if isinstance(leaf, Queries)), structure, is_shared, size)


def _inside_jit(function: Callable[..., Any], batch: _Batch, key: Any) -> Any:
    one = one_of(function, batch.structure, batch.is_shared)
    specs = tuple(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in batch.leaves)
    jaxpr = jax.make_jaxpr(one)(specs, batch.shared, key, jax.ShapeDtypeStruct((), np.uint32))
    width = _blocks.width(jaxpr, specs, batch.size, jax.default_backend())
    blocks = -(-batch.size // width)
    rows = jnp.minimum(jnp.arange(blocks * width, dtype=np.uint32), max(batch.size - 1, 0)).reshape(blocks, width)
    leaves = tuple(jnp.asarray(leaf)[rows] for leaf in batch.leaves)
    found = jax.lax.map(lambda block: of_block(one, block[0], batch.shared, key, block[1]), (leaves, rows))
    return jax.tree.map(lambda x: x.reshape(blocks * width, *x.shape[2:])[: batch.size], found)


def _stream(
    function: Callable[..., Any], batch: _Batch, key: Any, memory_limit: int, devices: Any, progress: Any
) -> Iterator[tuple[slice, Any]]:
    memory_limit = _checks.integer("memory_limit", memory_limit, least=1)
    devices = tuple(jax.devices() if devices is None else devices)
    if not devices:
        raise ValueError("devices must not be empty; leave it out for all devices.")
    if not isinstance(function, Hashable):  # no program can be found by it
        function = partial(function)
    # Typed keys among the problems travel as the numbers they are made of.
    kinds = tuple(str(jax.random.key_impl(x)) if is_key(x) else None for x in batch.leaves)
    batch = batch._replace(leaves=tuple(jax.random.key_data(x) if is_key(x) else x for x in batch.leaves))
    shared_leaves, shared_structure = jax.tree.flatten(batch.shared)
    form = Form(
        function,
        batch.structure,
        batch.is_shared,
        tuple((x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype)) for x in batch.leaves),
        kinds,
        None if key is None else str(jax.random.key_impl(key)),
        shared_structure,
        tuple((x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in shared_leaves),
        devices,
        bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        batch.size,
    )
    width = traced(form).width
    if not batch.size:
        yield slice(0, 0), jax.tree.map(lambda x: np.zeros((0, *x.shape), x.dtype), traced(form).result)
        return
    count, program = _fitting(form, memory_limit)
    mesh = Mesh(np.array(devices), (AXIS,))
    everywhere, dealt = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (AXIS,)))
    shared = [_placed(np.asarray(x), everywhere) for x in shared_leaves]
    seed = None if key is None else _placed(np.asarray(jax.random.key_data(key)), everywhere)
    step = count * len(devices) * width
    report = reporter(progress, batch.size, "problems")

    def dispatch(first: int) -> Any:
        left = -(-(batch.size - first) // width)
        counts = np.clip(left - count * np.arange(len(devices)), 0, count)
        rows = np.minimum(np.arange(first, first + step), batch.size - 1)
        last = int(min(first + step, batch.size))
        leaves = []
        for leaf in batch.leaves:
            piece = np.asarray(leaf[first:last])
            if last - first < step:  # the last row again and again
                piece = np.concatenate([piece, np.broadcast_to(piece[-1:], (step - piece.shape[0], *piece.shape[1:]))])
            leaves.append(_placed(piece.reshape(step // width, width, *piece.shape[1:]), dealt))
        rows = _placed(rows.astype(np.uint32).reshape(-1, width), dealt)
        return slice(first, last), program.run(tuple(leaves), shared, seed, rows, _placed(counts.astype(np.int32), dealt))

    waiting: list[tuple[slice, Any]] = []
    try:
        for first in range(0, batch.size, step):
            waiting.append(dispatch(first))  # runs while the results before are taken and used
            if len(waiting) > 1:
                yield _taken(waiting.pop(0), report)
        for last in waiting:
            yield _taken(last, report)
    finally:
        report(None)


def _fitting(form: Form, memory_limit: int) -> tuple[int, Program]:
    """How many blocks a device takes at once, and the program for them."""
    given, num_devices = traced(form), len(form.devices)
    blocks = -(-form.size // given.width)
    room = min(memory_limit // 10, _DISPATCH_BYTES) // max(given.width * given.row_bytes, 1)
    count = max(1, min(room, -(-blocks // num_devices)))
    # As few dispatches as that needs, and no more room in each than they fill.
    dispatches = -(-blocks // (count * num_devices))
    count = max(MIN_COUNT, -(-blocks // (dispatches * num_devices)))
    program = compiled(form, count)
    while program.bytes_held > memory_limit and count > MIN_COUNT:
        count = max(MIN_COUNT, -(-count // 2))
        program = compiled(form, count)
    if program.bytes_held > memory_limit:
        raise ValueError(
            f"memory_limit must be at least {program.bytes_held} bytes (blocks hold {given.width} problems), got {memory_limit}."
        )
    return count, program


def _taken(dispatched: tuple[slice, Any], report: Callable[[int | None], None]) -> tuple[slice, Any]:
    rows, found = dispatched

    def take(x: jax.Array) -> np.ndarray:
        if not x.is_fully_addressable:
            from jax.experimental import multihost_utils

            x = multihost_utils.process_allgather(x, tiled=True)
        array = np.asarray(x)
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])[: rows.stop - rows.start]

    result = jax.tree.map(take, found)
    report(rows.stop - rows.start)
    return rows, result


def _placed(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A host array that every process has, spread over the devices of all."""
    array = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
