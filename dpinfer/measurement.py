"""What every estimator takes: queries, their noisy values, and the law of the noise."""

from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks, noise
from dpinfer._pytree import any_array, leaf, pytree, static
from dpinfer.queries import Queries, VStack
from dpinfer.queries.base import Array, as_array
from dpinfer.queries.dense import as_queries


@final
@pytree
class Measurement:
    """Noisy values of counting queries: values = queries @ cells + independent noise.

    A pytree: values, scale and float matrices are leaves, the structure of the queries is static. It holds nothing private.

    Args:
        queries: m queries of n cells.
        values: [m], the noisy answers; host integers are kept as int64.
        noise: "laplace", "discrete_laplace", "gaussian" or "discrete_gaussian".
        scale: the law's parameter, one number or [m]: b in exp(-|k|/b), or sigma in exp(-k^2/(2 sigma^2)). Infinity: the row
            was not measured (its value is ignored); 0: the value is an exact public count.
    """

    queries: Queries
    values: Array = leaf(converter=any_array)
    noise: str = static()
    scale: Array = leaf(converter=any_array)

    def __post_init__(self) -> None:
        if not isinstance(self.queries, Queries):
            raise ValueError(f"queries must be a family from dpinfer.queries, got {type(self.queries).__name__}.")
        _checks.choice("noise", self.noise, noise.NAMES)
        values = as_array("values", self.values)
        rows = self.queries.shape[0]
        if values.shape != (rows,):
            raise ValueError(f"values must have shape [{rows}], one for each row of {self.queries!r}, got {list(values.shape)}.")
        _checks.finite("values", values)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "scale", check_spread("scale", self.scale, rows))

    @property
    def stddev(self) -> Array:
        """The standard deviation of each row's noise: a scalar if ``scale`` is one, else [m]."""
        return noise.stddev(self.noise, self.scale)

    @property
    def known_stddev(self) -> np.ndarray | None:
        """:attr:`stddev` on the host, also inside jit where it is a constant there; None if it is traced."""
        return np.asarray(noise.stddev(self.noise, np.asarray(self.scale))) if _checks.is_concrete(self.scale) else None

    @staticmethod
    def batch(queries: Any, values: Any, noise: str, scale: Any) -> "Measurement":
        """Many measurements of the same queries as one pytree, for ``map_problems``.

        Args:
            queries: those of every measurement.
            values: [num_problems, m].
            noise: the law of all.
            scale: one number for all, [num_problems], or [num_problems, m].

        Returns:
            A Measurement whose values and scales have the problems along their first axis; estimators take one problem and
            refuse it: call them in the function that is mapped.
        """
        rows = queries.shape[0] if isinstance(queries, Queries) else 0
        one = Measurement(queries, np.zeros(rows), noise, 1.0)  # which checks the queries and the noise
        many, spread = any_array(values), any_array(scale)
        if many.ndim != 2 or many.shape[1] != queries.shape[0]:
            raise ValueError(f"values must have shape [number of problems, {queries.shape[0]}], got {list(many.shape)}.")
        if spread.shape not in ((), many.shape[:1], many.shape):
            raise ValueError(
                f"scale must be a number or have shape {list(many.shape[:1])} or {list(many.shape)}, got {list(spread.shape)}."
            )
        many = as_array("values", many)
        _checks.finite("values", many)
        if spread.ndim == 0:
            spread = (np if isinstance(spread, np.ndarray) else jnp).broadcast_to(spread, many.shape[:1])
        spread = check_spread("scale", spread.reshape(-1), spread.size).reshape(spread.shape)
        structure = jax.tree.structure(one, is_leaf=lambda x: isinstance(x, Queries))
        return jax.tree.unflatten(structure, [queries, many, spread])

    @staticmethod
    def concat(measurements: Sequence["Measurement"]) -> "Measurement":
        """All the rows of several measurements of the same cells, in order, as one measurement of a VStack."""
        measurements = list(measurements)
        if not measurements:
            raise ValueError("measurements must not be empty.")
        laws = {m.noise for m in measurements}
        if len(laws) > 1:
            raise ValueError(f"measurements must share one noise law to be concatenated, got {', '.join(sorted(laws))}.")
        if len(measurements) == 1:
            return measurements[0]
        is_host = all(isinstance(m.values, np.ndarray) and isinstance(m.scale, np.ndarray) for m in measurements)
        xp = np if is_host else jnp
        return Measurement(
            VStack(tuple(m.queries for m in measurements)),
            xp.concatenate([m.values for m in measurements]),
            measurements[0].noise,
            xp.concatenate([xp.broadcast_to(m.scale, m.values.shape) for m in measurements]),
        )

    def with_exact(self, queries: Any, values: Any) -> "Measurement":
        """These rows and, as rows of scale 0, public counts that every estimate is to keep: a known total, other invariants.

        Args:
            queries: [k, n], or a matrix; ``queries.Total(n)`` for the total.
            values: [k], what they are known to be.
        """
        exact = as_queries("queries", queries)
        if exact.shape[1] != self.queries.shape[1]:
            raise ValueError(f"queries must be over the measurement's {self.queries.shape[1]} cells, got {exact.shape[1]}.")
        return Measurement.concat([self, Measurement(exact, values, self.noise, 0.0)])

    def __repr__(self) -> str:
        return f"Measurement({self.queries!r}, noise={self.noise!r})"


def check_spread(name: str, value: Any, rows: int) -> Array:
    """``value`` as one non-negative float or one a row."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be given as numbers: without it the noise is not known. Got {value!r}.")
    array = array if isinstance(array, jax.Array) else array.astype(np.float64)
    if array.shape not in ((), (rows,)):
        raise ValueError(f"{name} must be a number or have shape [{rows}], one for each row, got {list(array.shape)}.")
    if _checks.is_concrete(array) and array.size and not np.asarray(array).min() >= 0:
        bad = np.flatnonzero(~(np.asarray(array) >= 0))
        raise ValueError(
            f"{name} must not be negative or nan, got {np.asarray(array).ravel()[bad[0]]} at position {bad[0]}. "
            "Use inf for a row that was not measured and 0 for an exact public count."
        )
    return array
