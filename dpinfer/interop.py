"""Measurements to and from mbi (Private-PGM), whose estimators take noisy marginals of a table."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpinfer.domain import Domain
from dpinfer.inference.marginals_estimate import as_marginals, part_variances
from dpinfer.measurement import Measurement
from dpinfer.queries import Identity, Kronecker, Total, VStack
from dpinfer.release import Release, as_measurement


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
    table = Kronecker([Total(size) for size in shape])  # says the grid where only Identity and Total are in the stack
    found = as_marginals(VStack([table, measurement.queries]))
    if found is None or found.grid != shape:
        raise ValueError(f"measurement must be of marginals of the domain's table {list(shape)}, got {measurement.queries!r}.")
    known = measurement.known_stddev
    kept = found.kept[1:]
    variances = None if known is None else part_variances(found._replace(kept=kept), known)
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


def _mbi() -> Any:
    try:
        import mbi  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("This needs mbi: pip install mbi.") from None
    return mbi
