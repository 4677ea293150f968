"""Many problems at once: one way for every function of one problem, whatever it estimates.

Rows are dealt into blocks of a width that depends on the function and the number of rows alone. A block is one ``vmap``; blocks
follow each other in a loop on each device, as many at once as the memory limit allows; what is left over is dispatched
afterwards. Since a row always is at the same place of the same block, and its key is ``fold_in(key, row)``, its result does not
depend on the limit, the number of devices or of processes, to the last bit.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpinfer import _checks
from dpinfer.queries import Queries

_AXIS = "problems"
# Working memory of a block: what the caches of a CPU hold, what keeps an accelerator busy.
_BLOCK_BYTES = {"cpu": 1 << 22}
_BLOCK_BYTES_ELSEWHERE = 1 << 28
_MAX_WIDTH = {"cpu": 1 << 10}
_MAX_WIDTH_ELSEWHERE = 1 << 16
# Blocks that there are at least, so that several devices have something to do.
_MIN_BLOCKS = 8
# Room for blocks that a dispatch has at least. With room for one the compiler drops the axis, and compiles the block to other
# arithmetic.
_MIN_COUNT = 2
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

    Arguments and errors as there. Each piece is a tenth of the limit or less.
    """
    return _stream(function, _batch(problems, key, num_problems), key, memory_limit, devices, progress)


class _Batch(NamedTuple):
    """Problems taken apart: arrays with a row a problem, queries that all share, and how to put one problem together."""

    leaves: tuple[Any, ...]
    shared: tuple[Queries, ...]
    structure: Any
    is_shared: tuple[bool, ...]
    size: int


def _problem(structure: Any, is_shared: tuple[bool, ...], leaves: Any, shared: Any) -> Any:
    own, common = iter(leaves), iter(shared)
    return jax.tree.unflatten(structure, [next(common if is_common else own) for is_common in is_shared])


def _batch(problems: tuple[Any, ...], key: Any, num_problems: int | None) -> _Batch:
    if key is not None and not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0):
        raise ValueError("key must be one typed key, jax.random.key(seed): every problem gets its own from it.")
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


def _one(function: Callable[..., Any], structure: Any, is_shared: tuple[bool, ...]) -> Callable[..., Any]:
    """The function of (leaves of one problem, shared queries, key or None, row)."""

    def call(leaves: Any, shared: Any, key: Any, row: Any) -> Any:
        problem = _problem(structure, is_shared, leaves, shared)
        return function(*problem) if key is None else function(*problem, key=jax.random.fold_in(key, row))

    return call


def _of_block(one: Callable[..., Any], leaves: Any, shared: Any, key: Any, rows: Any) -> Any:
    # Behind barriers the block is compiled by itself, and so to the same arithmetic whatever is around it.
    leaves, rows = jax.lax.optimization_barrier((leaves, rows))
    return jax.lax.optimization_barrier(jax.vmap(one, (0, None, None, 0))(leaves, shared, key, rows))


def _of_blocks(one: Callable[..., Any], leaves: Any, shared: Any, key: Any, rows: Any, count: Any) -> Any:
    """The results of the first ``count`` blocks, [1]; of [blocks, width, ...] leaves and [blocks, width] rows.

    A loop over a number that the compiler does not know, since it would take a loop of one turn apart and the block with it.
    """

    def at(block: Any) -> Any:
        own, numbers = jax.tree.map(lambda x: x[block], (leaves, rows))
        return _of_block(one, own, shared, key, numbers)

    results = jax.tree.map(lambda x: jnp.zeros((rows.shape[0], *x.shape), x.dtype), jax.eval_shape(at, 0))
    return jax.lax.fori_loop(0, count[0], lambda b, found: jax.tree.map(lambda all_, x: all_.at[b].set(x), found, at(b)), results)


def _inside_jit(function: Callable[..., Any], batch: _Batch, key: Any) -> Any:
    one = _one(function, batch.structure, batch.is_shared)
    specs = tuple(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in batch.leaves)
    jaxpr = jax.make_jaxpr(one)(specs, batch.shared, key, jax.ShapeDtypeStruct((), np.uint32))
    width = _width(jaxpr, specs, batch.size, jax.default_backend())
    blocks = -(-batch.size // width)
    rows = jnp.minimum(jnp.arange(blocks * width, dtype=np.uint32), max(batch.size - 1, 0)).reshape(blocks, width)
    leaves = tuple(jnp.asarray(leaf)[rows] for leaf in batch.leaves)
    found = jax.lax.map(lambda block: _of_block(one, block[0], batch.shared, key, block[1]), (leaves, rows))
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
    kinds = tuple(str(jax.random.key_impl(x)) if _is_key(x) else None for x in batch.leaves)
    batch = batch._replace(leaves=tuple(jax.random.key_data(x) if _is_key(x) else x for x in batch.leaves))
    specs = tuple((x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype)) for x in batch.leaves)
    impl = None if key is None else str(jax.random.key_impl(key))
    spread = partial(_compiled, function, batch.structure, batch.is_shared, specs, kinds, impl, devices)
    shared_leaves, shared_structure = jax.tree.flatten(batch.shared)
    shared_specs = tuple((np.shape(x), np.asarray(x).dtype) for x in shared_leaves)
    spread = partial(spread, shared_structure, shared_specs, bool(jax.config.jax_enable_x64))  # pyright: ignore[reportAttributeAccessIssue]
    program = spread(batch.size, None)
    per_block, blocks = program.width * program.row_bytes, -(-batch.size // program.width)
    count = max(1, min(min(memory_limit // 10, _DISPATCH_BYTES) // max(per_block, 1), -(-blocks // len(devices))))
    if blocks:
        # As few dispatches as that needs, and no more padding in the last than necessary.
        dispatches = -(-blocks // (count * len(devices)))
        count = max(_MIN_COUNT, -(-blocks // (dispatches * len(devices))))
        program = spread(batch.size, count)
        while program.bytes_held > memory_limit and count > _MIN_COUNT:
            count = max(_MIN_COUNT, -(-count // 2))
            program = spread(batch.size, count)
        if program.bytes_held > memory_limit:
            raise ValueError(
                f"memory_limit must be at least {program.bytes_held} bytes (blocks hold {program.width} problems), got "
                f"{memory_limit}."
            )
    mesh = Mesh(np.array(devices), (_AXIS,))
    everywhere, dealt = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (_AXIS,)))
    shared = [_placed(np.asarray(x), everywhere) for x in shared_leaves]
    seed = None if key is None else _placed(np.asarray(jax.random.key_data(key)), everywhere)
    step = count * len(devices) * program.width
    report = _reporter(progress, batch.size)

    def dispatch(first: int) -> Any:
        left = -(-(batch.size - first) // program.width)
        counts = np.clip(left - count * np.arange(len(devices)), 0, count)
        rows = np.minimum(np.arange(first, first + step), batch.size - 1)
        last = int(min(first + step, batch.size))
        leaves = []
        for leaf in batch.leaves:
            piece = np.asarray(leaf[first:last])
            if last - first < step:  # the last row again and again
                piece = np.concatenate([piece, np.broadcast_to(piece[-1:], (step - piece.shape[0], *piece.shape[1:]))])
            leaves.append(_placed(piece.reshape(step // program.width, program.width, *piece.shape[1:]), dealt))
        rows = _placed(rows.astype(np.uint32).reshape(-1, program.width), dealt)
        return slice(first, last), program.run(tuple(leaves), shared, seed, rows, _placed(counts.astype(np.int32), dealt))

    if not batch.size:
        yield slice(0, 0), jax.tree.map(lambda x: np.zeros((0, *x.shape), x.dtype), program.result)
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


def _taken(dispatched: tuple[slice, Any], report: Callable[[int | None], None]) -> tuple[slice, Any]:
    rows, found = dispatched

    def take(x: jax.Array) -> np.ndarray:
        if not x.is_fully_addressable:
            from jax.experimental import multihost_utils

            x = multihost_utils.process_allgather(x, tiled=True)
        array = np.asarray(x)
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])[: rows.stop - rows.start]

    result = jax.tree.map(take, found)
    report(rows.stop)
    return rows, result


def _is_key(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _placed(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A host array that every process has, spread over the devices of all."""
    array = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _reporter(progress: bool | Callable[[int, int], None], size: int) -> Callable[[int | None], None]:
    """Told how many problems are done, or None at the end."""
    if callable(progress):
        return lambda done: None if done is None else progress(done, size)
    if not progress:
        return lambda _: None
    from tqdm import tqdm  # which numpyro brings along

    bar = tqdm(total=size, unit=" problems", unit_scale=True)

    def show(done: int | None) -> None:
        if done is None:
            bar.close()
        else:
            bar.update(done - bar.n)

    return show


class _Program(NamedTuple):
    """A compiled program for [blocks, width, ...] rows, and the bytes of a device that it and its inputs hold."""

    width: int
    row_bytes: int
    result: Any
    run: Callable[..., Any]
    bytes_held: int


@lru_cache(maxsize=64)
def _compiled(
    function: Callable[..., Any],
    structure: Any,
    is_shared: tuple[bool, ...],
    specs: tuple[Any, ...],
    kinds: tuple[str | None, ...],
    impl: str | None,
    devices: tuple[Any, ...],
    shared_structure: Any,
    shared_specs: tuple[Any, ...],
    is_x64: bool,
    size: int,
    count: int | None,
) -> _Program:
    """The program for ``count`` blocks a device; without a count, only its width."""
    del is_x64  # for the cache alone: what is traced depends on it
    whole = _one(function, structure, is_shared)

    def one(leaves: Any, shared: Any, seed: Any, row: Any) -> Any:
        leaves = tuple(
            x if kind is None else jax.random.wrap_key_data(x, impl=kind) for x, kind in zip(leaves, kinds, strict=True)
        )
        key = None if impl is None else jax.random.wrap_key_data(seed, impl=impl)
        return whole(leaves, jax.tree.unflatten(shared_structure, shared), key, row)

    row = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs)
    shared = [jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype)) for shape, dtype in shared_specs]
    seed = None if impl is None else jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl)))
    jaxpr, result = jax.make_jaxpr(one, return_shape=True)(row, shared, seed, jax.ShapeDtypeStruct((), np.uint32))
    if any(isinstance(x, Tracer) for x in jaxpr.consts):
        raise ValueError(
            "function must not close over a value that is being traced (by grad or vmap around this call): pass it among the "
            "problems, repeated for each."
        )
    if any(_is_key(x) for x in jax.tree.leaves(result)):
        raise ValueError("function must return arrays of numbers, got typed keys: return jax.random.key_data of them.")
    width = _width(jaxpr, row, size, devices[0].platform)
    row_bytes = _bytes([*row, *jax.tree.leaves(result)])
    if count is None:
        return _Program(width, row_bytes, result, one, 0)
    mesh = Mesh(np.array(devices), (_AXIS,))
    everywhere, dealt = PartitionSpec(), PartitionSpec(_AXIS)
    spread = jax.jit(
        jax.shard_map(
            partial(_of_blocks, one),
            mesh=mesh,
            in_specs=(dealt, everywhere, everywhere, dealt, dealt),
            out_specs=dealt,
            check_vma=False,
        )
    )

    def struct(spec: Any, leading: tuple[int, ...], where: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct((*leading, *spec.shape), spec.dtype, sharding=NamedSharding(mesh, where))

    blocks = (count * len(devices), width)
    compiled = spread.lower(
        tuple(struct(x, blocks, dealt) for x in row),
        [struct(x, (), everywhere) for x in shared],
        None if seed is None else struct(seed, (), everywhere),
        struct(jax.ShapeDtypeStruct((), np.uint32), blocks, dealt),
        struct(jax.ShapeDtypeStruct((), np.int32), (len(devices),), dealt),
    ).compile()
    held = compiled.memory_analysis()
    taken = 0
    if held is not None:  # two dispatches are under way at a time, one of them running
        taken = 2 * (held.argument_size_in_bytes + held.output_size_in_bytes) + held.temp_size_in_bytes
    return _Program(width, row_bytes, result, compiled, taken)


def _bytes(specs: Sequence[Any]) -> int:
    return sum(int(np.prod(x.shape, dtype=np.int64)) * getattr(x.dtype, "itemsize", 8) for x in specs)


def _width(jaxpr: Any, row: tuple[Any, ...], size: int, platform: str) -> int:
    """How many problems a block holds."""
    need = max(1, _bytes([*row, *jaxpr.out_avals]) + _largest(jaxpr.jaxpr))
    room = _BLOCK_BYTES.get(platform, _BLOCK_BYTES_ELSEWHERE) // need
    most = min(max(1, room), _MAX_WIDTH.get(platform, _MAX_WIDTH_ELSEWHERE), max(1, -(-size // _MIN_BLOCKS)))
    blocks = -(-size // most)
    return max(1, -(-size // max(1, blocks)))  # all blocks of one width, the last nearly full


def _largest(jaxpr: Any) -> int:
    """Bytes of the largest results of one operation, anywhere inside."""
    largest = 0
    for equation in jaxpr.eqns:
        largest = max(largest, _bytes([v.aval for v in equation.outvars if hasattr(v.aval, "shape")]))
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                largest = max(largest, _largest(inner))
    return largest
