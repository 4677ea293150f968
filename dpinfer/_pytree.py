"""Frozen dataclasses that JAX can take apart: numbers are leaves, structure is static."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

T = TypeVar("T")


def static(*, converter: Callable[[Any], Any] | None = None, **kwargs: Any) -> Any:
    """A dataclass field that is structure: hashable, compared by value, never traced.

    ``converter`` makes of the constructor's argument what the field holds; it runs before ``__post_init__``.
    """
    return dataclasses.field(metadata={"static": True, "converter": converter}, **kwargs)


def leaf(*, converter: Callable[[Any], Any], **kwargs: Any) -> Any:
    """A dataclass field that JAX traces, with a ``converter`` as in :func:`static`."""
    return dataclasses.field(metadata={"converter": converter}, **kwargs)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static, leaf))
def pytree(cls: type[T]) -> type[T]:
    """A frozen dataclass registered as a pytree.

    A class whose fields are all static is one opaque constant to JAX: unflattening returns the very same object, so what it
    has cached (index arrays, a hash) is kept. Any other class is rebuilt without running ``__init__``, since its leaves may
    be tracers or placeholders that no validation could accept.
    """
    check = getattr(cls, "__post_init__", lambda _: None)

    def convert_and_check(obj: T) -> None:
        for field in dataclasses.fields(obj):  # pyright: ignore[reportArgumentType]
            if (converter := field.metadata.get("converter")) is not None:
                object.__setattr__(obj, field.name, converter(getattr(obj, field.name)))
        check(obj)

    cls.__post_init__ = convert_and_check  # pyright: ignore[reportAttributeAccessIssue]
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)  # pyright: ignore[reportAssignmentType]
    # Constructors validate by themselves, with errors that name the argument; a run-time type checker must not come first.
    cls.__no_type_check__ = True  # pyright: ignore[reportAttributeAccessIssue]
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    leaves = [f.name for f in fields if not f.metadata.get("static")]
    statics = [f.name for f in fields if f.metadata.get("static")]
    if not leaves:
        return jax.tree_util.register_static(cls)

    def flatten(obj: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(obj, name) for name in leaves), tuple(getattr(obj, name) for name in statics)

    def flatten_with_keys(obj: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children, aux = flatten(obj)
        return tuple((jax.tree_util.GetAttrKey(k), c) for k, c in zip(leaves, children, strict=True)), aux

    def unflatten(aux: Any, children: Any) -> T:
        obj = object.__new__(cls)
        for name, value in (*zip(leaves, children, strict=True), *zip(statics, aux, strict=True)):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def host_array(value: Any) -> np.ndarray:
    """``value`` as a numpy array."""
    return np.asarray(value)


def any_array(value: Any) -> jax.Array | np.ndarray:
    """``value`` itself if it is a JAX array, else as a numpy array."""
    return value if isinstance(value, jax.Array) else np.asarray(value)


def read_only(values: Any, dtype: Any = np.int64) -> np.ndarray:
    """A private copy of an array that nobody can write to."""
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array


def content_key(value: Any) -> Any:
    """A hashable stand-in for a field: arrays by a 128-bit digest of their bytes, everything else by itself."""
    if isinstance(value, np.ndarray):
        digest = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest()
        return value.shape, value.dtype.str, digest
    return value
