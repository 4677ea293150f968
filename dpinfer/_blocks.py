"""One block of problems and the program that runs blocks on every device; what ``batching.py`` dispatches.

A problem's result must not depend on how many blocks run together. So a block is compiled by itself, behind barriers, in a loop
over a number that the compiler does not know, with room for two blocks at least: a loop of one turn, or an axis of one block,
would be taken apart and the block compiled to other arithmetic.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "problems"
MIN_COUNT = 2
# Working memory of a block: what the caches of a CPU hold, what keeps an accelerator busy.
_BLOCK_BYTES = {"cpu": 1 << 22}
_BLOCK_BYTES_ELSEWHERE = 1 << 28
_MAX_WIDTH = {"cpu": 1 << 10}
_MAX_WIDTH_ELSEWHERE = 1 << 16
# Blocks that there are at least, so that several devices have something to do.
_MIN_BLOCKS = 8
_ROW = jax.ShapeDtypeStruct((), np.uint32)


class Form(NamedTuple):
    """All that a program depends on but the numbers.

    Attributes:
        function: of one problem.
        structure, is_shared: how a problem is put together of its leaves and the queries that all share.
        specs: shape and dtype of each leaf of one problem.
        kinds: for leaves that are typed keys, how to make them of numbers; else None.
        key_kind: the same for the key; None without one.
        shared_structure, shared_specs: of the queries that all share.
        devices: those that share the blocks.
        is_x64: JAX's setting, under which the function is traced.
        size: the number of problems.
    """

    function: Callable[..., Any]
    structure: Any
    is_shared: tuple[bool, ...]
    specs: tuple[Any, ...]
    kinds: tuple[str | None, ...]
    key_kind: str | None
    shared_structure: Any
    shared_specs: tuple[Any, ...]
    devices: tuple[Any, ...]
    is_x64: bool
    size: int


class Traced(NamedTuple):
    """A function of (leaves, shared leaves, key data, row), what it takes and returns, and how many problems a block holds."""

    one: Callable[..., Any]
    leaves: tuple[Any, ...]
    shared: list[Any]
    seed: Any
    result: Any
    width: int

    @property
    def row_bytes(self) -> int:
        """Bytes of what goes in and comes out for one problem."""
        return _bytes([*self.leaves, *jax.tree.leaves(self.result)])


class Program(NamedTuple):
    """A compiled program for [blocks, width, ...] leaves and rows, and the bytes of a device that it and its inputs hold."""

    run: Callable[..., Any]
    bytes_held: int


def one_of(function: Callable[..., Any], structure: Any, is_shared: tuple[bool, ...]) -> Callable[..., Any]:
    """The function of (leaves of one problem, shared queries, key or None, row)."""

    def call(leaves: Any, shared: Any, key: Any, row: Any) -> Any:
        own, common = iter(leaves), iter(shared)
        problem = jax.tree.unflatten(structure, [next(common if is_common else own) for is_common in is_shared])
        return function(*problem) if key is None else function(*problem, key=jax.random.fold_in(key, row))

    return call


def of_block(one: Callable[..., Any], leaves: Any, shared: Any, key: Any, rows: Any) -> Any:
    """The results of [width, ...] leaves and [width] rows, compiled apart from what is around them."""
    leaves, rows = jax.lax.optimization_barrier((leaves, rows))
    return jax.lax.optimization_barrier(jax.vmap(one, (0, None, None, 0))(leaves, shared, key, rows))


def _of_blocks(given: Traced, leaves: Any, shared: Any, key: Any, rows: Any, count: Any) -> Any:
    """The results of the first ``count`` blocks, [1]; of [blocks, width, ...] leaves and [blocks, width] rows."""

    def at(block: Any) -> Any:
        own, numbers = jax.tree.map(lambda x: x[block], (leaves, rows))
        return of_block(given.one, own, shared, key, numbers)

    results = jax.tree.map(lambda x: jnp.zeros((*rows.shape, *x.shape), x.dtype), given.result)
    return jax.lax.fori_loop(0, count[0], lambda b, found: jax.tree.map(lambda all_, x: all_.at[b].set(x), found, at(b)), results)


@lru_cache(maxsize=64)
def traced(form: Form) -> Traced:
    """The function traced once.

    Raises:
        ValueError: if it closes over what is being traced, or returns typed keys.
    """
    whole = one_of(form.function, form.structure, form.is_shared)

    def one(leaves: Any, shared: Any, seed: Any, row: Any) -> Any:
        pairs = zip(leaves, form.kinds, strict=True)
        leaves = tuple(x if kind is None else jax.random.wrap_key_data(x, impl=kind) for x, kind in pairs)
        key = None if form.key_kind is None else jax.random.wrap_key_data(seed, impl=form.key_kind)
        return whole(leaves, jax.tree.unflatten(form.shared_structure, shared), key, row)

    leaves = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in form.specs)
    shared = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in form.shared_specs]
    seed = None
    if form.key_kind is not None:
        seed = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=form.key_kind)))
    jaxpr, result = jax.make_jaxpr(one, return_shape=True)(leaves, shared, seed, _ROW)
    if any(isinstance(x, Tracer) for x in jaxpr.consts):
        raise ValueError(
            "function must not close over a value that is being traced (by grad or vmap around this call): pass it among the "
            "problems, repeated for each."
        )
    if any(is_key(x) for x in jax.tree.leaves(result)):
        raise ValueError("function must return arrays of numbers, got typed keys: return jax.random.key_data of them.")
    structure = jax.tree.structure(result)

    def again(*arguments: Any) -> Any:
        return jax.tree.unflatten(structure, jaxpr_as_fun(jaxpr)(*jax.tree.leaves(arguments)))

    return Traced(again, leaves, shared, seed, result, width(jaxpr, leaves, form.size, form.devices[0].platform))


@lru_cache(maxsize=64)
def compiled(form: Form, count: int) -> Program:
    """The program for ``count`` blocks a device."""
    given = traced(form)
    mesh = Mesh(np.array(form.devices), (AXIS,))
    everywhere, dealt = PartitionSpec(), PartitionSpec(AXIS)
    spread = jax.jit(
        jax.shard_map(
            partial(_of_blocks, given),
            mesh=mesh,
            in_specs=(dealt, everywhere, everywhere, dealt, dealt),
            out_specs=dealt,
            check_vma=False,
        )
    )

    def struct(spec: Any, leading: tuple[int, ...], where: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct((*leading, *spec.shape), spec.dtype, sharding=NamedSharding(mesh, where))

    blocks = (count * len(form.devices), given.width)
    program = spread.lower(
        tuple(struct(x, blocks, dealt) for x in given.leaves),
        [struct(x, (), everywhere) for x in given.shared],
        None if given.seed is None else struct(given.seed, (), everywhere),
        struct(_ROW, blocks, dealt),
        struct(jax.ShapeDtypeStruct((), np.int32), (len(form.devices),), dealt),
    ).compile()
    held = program.memory_analysis()
    taken = 0
    if held is not None:  # two dispatches are under way at a time, one of them running
        taken = 2 * (held.argument_size_in_bytes + held.output_size_in_bytes) + held.temp_size_in_bytes
    return Program(program, taken)


def is_key(array: Any) -> bool:
    """Whether an array (or the shape of one) is of typed keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def width(jaxpr: Any, leaves: Sequence[Any], size: int, platform: str) -> int:
    """How many problems a block holds: all blocks of one width, the last nearly full."""
    need = max(1, _bytes([*leaves, *jaxpr.out_avals]) + _largest(jaxpr.jaxpr))
    room = _BLOCK_BYTES.get(platform, _BLOCK_BYTES_ELSEWHERE) // need
    most = min(max(1, room), _MAX_WIDTH.get(platform, _MAX_WIDTH_ELSEWHERE), max(1, -(-size // _MIN_BLOCKS)))
    return max(1, -(-size // max(1, -(-size // most))))


def _bytes(specs: Sequence[Any]) -> int:
    return sum(int(np.prod(x.shape, dtype=np.int64)) * getattr(x.dtype, "itemsize", 8) for x in specs)


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
