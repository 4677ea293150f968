"""A compiled function of many rows, called with few different numbers of them, so that few programs are compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def in_chunks(function: Callable[..., Any], rows: Any, at_once: int, *, least: int = 16) -> Any:
    """``function(*rows)`` as numpy arrays; rows are filled up by repeating some.

    Args:
        function: of arrays with as many rows, to arrays with as many, which do not depend on each other.
        rows: a tuple of arrays, or of tuples of them, with one or more rows.
        at_once: the most rows of a call, ``least`` times a power of 4.
        least: the fewest rows; as many as ``at_once`` make one program of a function that takes long to compile.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    found = []
    for start in range(0, num_rows, at_once):
        given = min(at_once, num_rows - start)
        size = least
        while size < given:
            size *= 4
        some = jax.tree.map(lambda x, start=start, size=size: _filled(x[start : start + at_once], size), rows)
        # Calls are begun before the results of others are asked for.
        found.append((function(*some), given))
    parts = [jax.tree.map(lambda x, given=given: np.asarray(x)[:given], part) for part, given in found]
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *part: np.concatenate(part), *parts)


def _filled(x: Any, size: int) -> jax.Array:
    return jnp.asarray(x if x.shape[0] == size else np.resize(x, (size, *x.shape[1:])))
