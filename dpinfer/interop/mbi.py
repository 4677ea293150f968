"""Measurements to and from mbi (Private-PGM), whose estimators take noisy marginals of a table, and what they make of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.domain import Domain
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import over_cells
from dpinfer.inference.marginals_estimate import Marginals, as_marginals, part_variances
from dpinfer.measurement import Measurement
from dpinfer.queries import Identity, Kronecker, Queries, Total, VStack
from dpinfer.queries.base import Array
from dpinfer.release import Release, as_measurement

_ESTIMATORS = {
    "mirror_descent": "MirrorDescent",
    "dual_averaging": "DualAveraging",
    "interior_gradient": "InteriorGradient",
    "lbfgs": "LBFGS",
    "accelerated": "UniversalAcceleratedMethod",
}


def to_mbi(measurement: Measurement | Release, domain: Domain) -> list[Any]:
    """The marginals of a measurement as mbi's LinearMeasurements; mbi takes their noise as normal.

    Args:
        measurement: of a stack of marginals of ``domain`` (``workloads.marginals``, Identity, Total), one scale a marginal.
        domain: its axes' names become mbi's attributes.

    Raises:
        ValueError: if mbi is not installed, or if the rows are anything else.
    """
    mbi = _mbi()
    measurement = as_measurement(measurement)
    shape = domain.shape
    found = _marginals(measurement.queries, domain)
    if found is None:
        raise ValueError(f"measurement must be of marginals of the domain's table {list(shape)}, got {measurement.queries!r}.")
    known, kept = measurement.known_stddev, found.kept
    variances = None if known is None else part_variances(found, known)
    if variances is None:
        raise ValueError("measurement must have one scale for all rows of a marginal, known outside jit.")
    sizes = [int(np.prod([shape[axis] for axis in axes], dtype=np.int64)) for axes in kept]
    pieces = np.split(np.asarray(measurement.values, dtype=float), np.cumsum(sizes)[:-1])
    return [
        mbi.LinearMeasurement(piece, tuple(domain.names[axis] for axis in axes), float(np.sqrt(variance)))
        for piece, axes, variance in zip(pieces, kept, np.asarray(variances), strict=True)
        if np.isfinite(variance)
    ]


def from_mbi(measurements: Sequence[Any], domain: Domain) -> Measurement:
    """Mbi's LinearMeasurements of whole marginals as one Measurement with Gaussian noise.

    Args:
        measurements: each the vector of a marginal (mbi's default query), its attributes in any order.
        domain: with the same attributes and sizes.
    """
    _mbi()
    parts = []
    for number, one in enumerate(measurements):
        unknown = [name for name in one.clique if name not in domain.axes]
        if unknown:
            raise ValueError(f"measurements[{number}] is of {', '.join(map(repr, unknown))}, which domain does not have.")
        if type(one.query).__name__ != "DatavectorQuery":
            raise ValueError(f"measurements[{number}] asks {one.query!r} of its marginal; only whole marginals can be converted.")
        sizes = [domain.axes[name].size for name in one.clique]
        values = np.asarray(one.noisy_measurement, dtype=float)
        if values.size != np.prod(sizes, dtype=np.int64):
            raise ValueError(f"measurements[{number}] has {values.size} values for a marginal of {sizes} cells.")
        kept = [name for name in domain.names if name in one.clique]
        in_order = values.reshape(sizes).transpose([list(one.clique).index(name) for name in kept]).reshape(-1)
        factors = [Identity(axis.size) if name in kept else Total(axis.size) for name, axis in domain.axes.items()]
        parts.append(Measurement(Kronecker(factors), in_order, "gaussian", float(one.stddev)))
    return Measurement.concat(parts)


@final
@dataclass(frozen=True, eq=False)
class MbiEstimate:
    """A table as a graphical model of mbi, for the answers of ours; made by :func:`mbi_estimate`.

    Attributes:
        model: mbi's, with all that it can do: ``synthetic_data()``, say.
        domain: the axes of the table.
    """

    model: Any
    domain: Domain

    @cached_property
    def cells(self) -> Array:
        """[n], the whole table, which is formed here and not before."""
        return jnp.asarray(self.model.project(self.domain.names).datavector())

    def answer(self, workload: Any) -> PointAnswers:
        """Sums of the cells; marginals from the model, without the table. Biased, so that there are no standard deviations."""
        queries = over_cells(workload, self.domain.size)
        found = _marginals(queries, self.domain)
        if found is None:
            return PointAnswers(jnp.asarray(queries @ self.cells), "mbi_estimate")
        names = [tuple(self.domain.names[axis] for axis in axes) for axes in found.kept]
        return PointAnswers(jnp.concatenate([jnp.asarray(self.model.project(own).datavector()) for own in names]), "mbi_estimate")


def mbi_estimate(
    measurement: Measurement | Release,
    domain: Domain,
    *,
    estimator: Any = "mirror_descent",
    total: Any = None,
    iters: int = 1000,
) -> MbiEstimate:
    """The estimate that mbi makes of our measurement of marginals: a non-negative table in the form of a graphical model.

    It minimises sum_i (A x - y)_i^2 / stddev_i^2 over the tables x >= 0 of a total that it estimates first, and fills in what is
    left open with the largest entropy. **Noise is taken as normal**: of Laplace noise mbi sees the variance alone. With the total
    as an exact count :func:`inference.maximum_entropy` has the same solution. mbi runs on the host, not under jit, so that
    ``evaluation.simulate_error`` does not take it.

    Args:
        measurement: what :func:`to_mbi` takes. A total that is exact (scale 0) is kept; mbi has no other exact counts.
        domain: its axes' names are mbi's attributes.
        estimator: "mirror_descent", "dual_averaging", "interior_gradient", "lbfgs" or "accelerated"; or an ``mbi.Estimator``.
        total: how many records there are, a positive public number; left out, mbi estimates it.
        iters: steps, rounded up to a multiple of 50.

    Cost: that of a junction tree for the measured marginals, in each step; mbi compiles anew for each set of them.

    Reference: McKenna, Sheldon and Miklau 2019, "Graphical-model based estimation and inference for differential privacy" (ICML).

    Raises:
        ValueError: if mbi is not installed, or for anything that it cannot take.
    """
    mbi = _mbi()
    if isinstance(estimator, str):
        estimator = getattr(mbi.estimation, _ESTIMATORS[_checks.choice("estimator", estimator, tuple(_ESTIMATORS))])()
    elif not isinstance(estimator, mbi.Estimator):
        raise ValueError(f"estimator must be one of {', '.join(_ESTIMATORS)} or an mbi.Estimator, got {estimator!r}.")
    iters = _checks.integer("iters", iters, least=1)
    given = to_mbi(measurement, domain)
    exact = [one for one in given if one.stddev == 0]
    if any(one.clique for one in exact):
        raise ValueError("measurement must have no exact counts (scale 0) but the total, which mbi cannot keep.")
    if exact and total is not None:
        raise ValueError("total must be left out where the measurement has it as an exact count.")
    if exact:
        total = float(np.asarray(exact[0].noisy_measurement).reshape(()))
    known = None if total is None else float(_checks.budget("total", total))
    rest = [one for one in given if one.stddev > 0]
    return MbiEstimate(estimator.estimate(mbi.Domain(domain.names, domain.shape), rest, known_total=known, iters=iters), domain)


def _marginals(queries: Queries, domain: Domain) -> Marginals | None:
    """The axes that each part of a stack of the domain's marginals keeps; None for anything else."""
    table = Kronecker([Total(size) for size in domain.shape])  # says the grid where only Identity and Total are in the stack
    found = as_marginals(VStack([table, queries]))
    return found._replace(kept=found.kept[1:]) if found is not None and found.grid == domain.shape else None


def _mbi() -> Any:
    try:
        import mbi  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("This needs mbi: pip install mbi.") from None
    return mbi
