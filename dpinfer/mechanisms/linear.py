"""Linear queries with independent noise: ``measure`` for real releases, ``simulate`` for studies.

What ``measure`` promises. The noise of row i is discrete Laplace of scale b_i (or discrete Gaussian of variance s_i), drawn
exactly, and the rows of the matrix A are integers, so the answers move by integers. Between neighbouring cells x and x' the
probability of any output changes by at most the factor exp(sum_i |A_i (x - x')| / b_i) (Laplace), and the output is
sum_i (A_i (x - x'))^2 / (2 s_i)-zCDP (Gaussian). Both sums are maximised over all neighbours from the matrix itself, in
fractions (``privacy.largest_change``), and the scales are fractions chosen so that the maximum is at most what was asked.

Saturation to 64 bit does not break this: clipping the exact answers is a map under which neighbours come no farther apart,
and clipping the noisy sum is post-processing. Everything that can raise depends on public facts (dtype, the strategy, the
budget, the ledger) and happens before the cells are read. Noise is drawn before the answers are formed.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dpinfer import _checks
from dpinfer.domain import Domain
from dpinfer.measurement import Measurement
from dpinfer.noise import exact
from dpinfer.privacy import Ledger
from dpinfer.queries import Queries
from dpinfer.queries.base import Array
from dpinfer.release import Release, check_domain
from dpinfer.scales import float_scale, one_budget, plan


def measure(
    cells: Any,
    strategy: Queries,
    *,
    epsilon: Any = None,
    rho: Any = None,
    level_epsilons: Sequence[Any] | Array | None = None,
    level_rhos: Sequence[Any] | Array | None = None,
    row_weights: Any = None,
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
    domain: Domain | None = None,
) -> Release:
    """A private release of ``strategy @ cells``: integer answers with exact integer noise.

    Discrete Laplace noise under ``epsilon`` (pure differential privacy), discrete Gaussian noise under ``rho`` (zero-concentrated
    differential privacy). All rows get the same scale, unless levels or row weights say otherwise. The randomness comes
    from the operating system and cannot be seeded. Runs on the host, never under jit. Time and memory are those of one
    application of the strategy and of one exact draw a row.

    Args:
        cells: private; an integer vector [n].
        strategy: integer queries of n cells. Weights do not belong into it but into ``row_weights``.
        epsilon, rho, level_epsilons, level_rhos: exactly one of them. Numbers are read exactly, a float as the decimal number it
            prints as. By level: one entry a level of a tree (top to bottom) or a part of a VStack, each level getting the
            scale that spends its own entry; the entries add up, and a level with 0 is not measured.
        row_weights: non-negative numbers [m]; the scale of a row is inversely proportional to its weight, and a row of
            weight 0 is not measured. Not together with level budgets.
        neighbors: "add_remove" (one record more or less) or "replace_one" (one record changes).
        ledger: charged the exact spend before the noise is drawn.
        domain: what the cells mean; kept in the release.

    Returns:
        A Release whose ``epsilon`` (or ``rho``) is the loss computed from the matrix and the scales, never more than asked for.
        Rows that were not measured hold 0 with an infinite scale.

    Raises:
        ValueError: for anything wrong with the public arguments, or if the ledger does not have enough left.
    """
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
    budgets = {"epsilon": epsilon, "rho": rho, "level_epsilons": level_epsilons, "level_rhos": level_rhos}
    planned = plan(strategy, **budgets, row_weights=row_weights, neighbors=neighbors)
    check_domain(domain, strategy)
    private = host_integers(cells, strategy.shape[1])
    if ledger is not None:
        ledger.charge(planned.spend, unit=planned.unit, neighbors=neighbors)

    spreads, index = planned.spreads, planned.index
    taken = np.array([s is not None for s in spreads])[index]
    place = np.cumsum([s is not None for s in spreads]) - 1
    sampler = exact.discrete_laplace if planned.order == 1 else exact.discrete_gaussian
    drawn = np.zeros(strategy.shape[0], dtype=np.int64)
    drawn[taken] = sampler([s for s in spreads if s is not None], place[index[taken]])
    values = np.where(taken, saturating_sum(saturating_answers(strategy, private), drawn), 0)
    return Release(
        Measurement(strategy, values, planned.noise, planned.scale),
        epsilon=planned.spend if planned.order == 1 else None,
        rho=planned.spend if planned.order == 2 else None,
        neighbors=neighbors,
        domain=domain,
    )


def simulate(
    cells: Any,
    strategy: Queries,
    *,
    epsilon: Any = None,
    rho: Any = None,
    level_epsilons: Any = None,
    level_rhos: Any = None,
    noise: str = "laplace",
    row_weights: Any = None,
    neighbors: str = "add_remove",
    key: jax.Array,
) -> Measurement:
    """A pretended release for studies and tests: the same scales as :func:`measure`, but floating-point noise from a seed.

    Not private: the noise is reproducible and floating-point arithmetic leaks (Mironov 2012). Runs under jit, vmap (over keys,
    budgets, cells) and grad (the noise is a scale times a draw that does not depend on it, except for the discrete law).

    Args:
        cells: [n], integers or floats.
        strategy: any queries of n cells.
        epsilon, rho, level_epsilons, level_rhos, row_weights, neighbors: as in :func:`measure`; numbers or arrays, traced or
            not, in floating point.
        noise: "laplace" or "discrete_laplace" under epsilon; "gaussian" under rho (the default there).
        key: a typed key, ``jax.random.key(seed)``.
    """
    kind, value = one_budget(epsilon, rho, level_epsilons, level_rhos)
    order = 1 if kind.endswith(("epsilon", "epsilons")) else 2
    if order == 2 and noise == "laplace":
        noise = "gaussian"
    allowed = ("laplace", "discrete_laplace") if order == 1 else ("gaussian",)
    if noise not in allowed:
        raise ValueError(f"noise must be {' or '.join(map(repr, allowed))} under {kind}, got {noise!r}.")
    if not isinstance(strategy, Queries):
        raise ValueError(
            f"strategy must be a family from dpinfer.queries, got {type(strategy).__name__}; a matrix goes into queries.Dense."
        )
    _checks.typed_key(key)
    # Host integers go through 64-bit floats: as 32-bit integers they would wrap where x64 is off.
    truth = jnp.asarray(cells if isinstance(cells, jax.Array) else np.asarray(cells) * 1.0)
    truth = truth if jnp.issubdtype(truth.dtype, jnp.floating) else truth.astype(float)
    answers = jnp.asarray(strategy @ truth)
    scale = float_scale(strategy, kind, value, row_weights, order, neighbors).astype(answers.dtype)

    measured = jnp.isfinite(scale)
    spread = jnp.where(measured, scale, 0.0)
    if noise == "laplace":
        draws = spread * jax.random.laplace(key, answers.shape, answers.dtype)
    elif noise == "gaussian":
        draws = spread * jax.random.normal(key, answers.shape, answers.dtype)
    else:
        # The difference of two geometric variables, each the floor of a scaled exponential.
        first, second = jnp.floor(spread * jax.random.exponential(key, (2, *answers.shape), answers.dtype))
        draws = first - second
    values = jnp.where(measured, answers + draws, 0.0)
    if not jax.config.jax_enable_x64 and _checks.is_concrete(values):  # pyright: ignore[reportAttributeAccessIssue]
        _checks.exact_in_float("the noisy values", np.asarray(values, dtype=np.float64))
    return Measurement(strategy, values, noise, scale)


def host_integers(cells: Any, size: int | None = None) -> np.ndarray:
    """Private cells as int64, checked by dtype and public size alone; unsigned counts beyond int64 saturate."""
    if isinstance(cells, Tracer):
        raise ValueError("measure runs on the host, not under jit, vmap or grad; simulate does.")
    if isinstance(cells, (list, tuple)) and all(isinstance(x, Integral) and not isinstance(x, (bool, np.bool_)) for x in cells):
        # Without this, integers beyond 64 bit would choose another dtype for the whole list.
        limits = np.iinfo(np.int64)
        cells = np.array([min(max(int(x), limits.min), limits.max) for x in cells], dtype=np.int64)
    array = np.asarray(cells)
    if array.dtype.kind not in "iu":
        raise ValueError(f"cells must have an integer dtype to be measured exactly, got {array.dtype}. Round them first.")
    if array.ndim != 1 or (size is None and array.size == 0):
        raise ValueError("cells must be a vector with one entry for each cell, at least one.")
    if size is not None and array.size != size:
        raise ValueError(f"cells must be a vector with one entry for each of the strategy's {size} cells.")
    if array.dtype.kind == "u":
        array = np.minimum(array, np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64)


def saturating_answers(strategy: Queries, private: np.ndarray) -> np.ndarray:
    """Strategy @ cells in exact arithmetic, clipped to int64: high and low halves are summed apart, so that nothing wraps."""
    low = strategy._forward(private & np.int64(0xFFFFFFFF))
    high = strategy._forward(private >> np.int64(32)) + (low >> np.int64(32))
    joined = (high << np.int64(32)) | (low & np.int64(0xFFFFFFFF))
    limits = np.iinfo(np.int64)
    return np.where(high >= 2**31, limits.max, np.where(high < -(2**31), limits.min, joined))


def saturating_sum(answers: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Their int64 sum, clipped where 64 bits do not hold it."""
    total = answers + noise
    limits = np.iinfo(np.int64)
    return np.where((noise > 0) & (total < answers), limits.max, np.where((noise < 0) & (total > answers), limits.min, total))
