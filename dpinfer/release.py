"""The host record of a private release: what was measured, what it cost, and the file that keeps both."""

import dataclasses
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer import noise as laws
from dpinfer._files import read_record, reading, write_record
from dpinfer.domain import Domain
from dpinfer.measurement import Measurement, check_spread
from dpinfer.privacy import epsilon_at, largest_change
from dpinfer.queries import (
    AllRange,
    Boxes,
    Dense,
    Haar,
    Identity,
    Kronecker,
    Partition,
    Prefix,
    Queries,
    Ranges,
    Suffix,
    Total,
    VStack,
    Weighted,
)
from dpinfer.queries.base import Array
from dpinfer.queries.dense import as_queries
from dpinfer.queries.grid_tree import GridTree
from dpinfer.queries.parent_tree import ParentTree
from dpinfer.queries.tree import CompleteTree

_FORMAT = "dpinfer release"
_VERSION = 1
_FAMILIES = {
    family.__name__: family
    for family in (
        *(Identity, Total, Prefix, Suffix, Ranges, AllRange, Boxes, Partition, Haar, Dense),
        *(CompleteTree, GridTree, ParentTree, VStack, Kronecker, Weighted),
    )
}


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Release:
    """Noisy answers with their provenance; made by :func:`dpinfer.measure`, :meth:`from_values` or :meth:`load`.

    Attributes:
        measurement: the queries, the noisy values and the law of the noise; what estimators work on.
        epsilon: the exact loss under pure differential privacy, a Fraction; None if unknown or counted in rho.
        rho: the exact loss under zero-concentrated differential privacy, a Fraction; None otherwise.
        neighbors: the relation under which the loss holds; None if unknown.
        simulated: whether the noise is pretended, so that nothing protects the cells.
        domain: what the cells mean, if it was given.
    """

    measurement: Measurement
    epsilon: Fraction | None = None
    rho: Fraction | None = None
    neighbors: str | None = None
    simulated: bool = False
    domain: Domain | None = None

    def __post_init__(self) -> None:
        check_domain(self.domain, self.queries)

    @property
    def queries(self) -> Queries:
        """The strategy: what was asked."""
        return self.measurement.queries

    @property
    def values(self) -> Array:
        """The noisy answers, one a row."""
        return self.measurement.values

    @property
    def noise(self) -> str:
        """The name of the noise law."""
        return self.measurement.noise

    @property
    def scale(self) -> Array:
        """The law's parameter, one number or one a row."""
        return self.measurement.scale

    @property
    def stddev(self) -> Array:
        """The noise's standard deviation, one number or one a row."""
        return self.measurement.stddev

    def epsilon_at(self, delta: Any) -> float:
        """The epsilon of (epsilon, ``delta``)-differential privacy, rounded up: from rho by :func:`privacy.epsilon_of_rho`.

        Of several releases of the same cells take that of their concat, whose rho is the sum.
        """
        return epsilon_at(delta, epsilon=self.epsilon, rho=self.rho)

    @staticmethod
    def from_values(
        queries: Any,
        values: Any,
        *,
        noise: str,
        scale: Any = None,
        stddev: Any = None,
        simulated: bool = False,
        domain: Domain | None = None,
    ) -> "Release":
        """Noisy counts made elsewhere, ready for every estimator here.

        Args:
            queries: what was counted, or a matrix [m, n].
            values: [m], the published numbers.
            noise: "laplace", "discrete_laplace", "gaussian" or "discrete_gaussian".
            scale: the law's parameter, one number or [m]: b in exp(-|k|/b), sigma in exp(-k^2/(2 sigma^2)); or
            stddev: its standard deviation. Exactly one of the two. Infinity: not measured; 0: an exact public count.
            simulated: whether the numbers are made up.
            domain: what the cells mean.
        """
        _checks.choice("noise", noise, laws.NAMES)
        if (scale is None) == (stddev is None):
            raise ValueError("from_values needs exactly one of scale= and stddev=.")
        queries = as_queries("queries", queries)
        if scale is None:
            scale = laws.scale_from_stddev(noise, check_spread("stddev", stddev, queries.shape[0]))
        return Release(Measurement(queries, values, noise, scale), simulated=simulated, domain=domain)

    @staticmethod
    def concat(releases: Sequence["Release"], *, adaptive: bool = True) -> "Release":
        """Several releases of the same cells as one: the rows of all, the losses composed.

        With ``adaptive=True`` the losses add up, which holds although later questions may have depended on earlier answers, as
        long as the total was fixed beforehand (a Ledger does that). With ``adaptive=False``, your word that nothing of what was
        asked depended on an answer, the loss is read off the stacked matrix and the scales: disjoint parts cost what the most
        expensive of them costs. It is never more than the sum.

        Raises:
            ValueError: if the releases differ in cells, noise, domain, neighbour relation or kind of loss.
        """
        releases = list(releases)
        if not releases or not all(isinstance(r, Release) for r in releases):
            raise ValueError("releases must be a non-empty list of Releases.")
        first = releases[0]
        for name in ("neighbors", "simulated"):
            if len({getattr(r, name) for r in releases}) > 1:
                raise ValueError(f"releases must agree in {name}, got {[getattr(r, name) for r in releases]}.")
        if any(r.domain != first.domain for r in releases):
            raise ValueError("releases must have the same domain, or none.")
        measurement = Measurement.concat([r.measurement for r in releases])
        losses = {}
        for unit, order in (("epsilon", 1), ("rho", 2)):
            known = [getattr(r, unit) for r in releases]
            if len({loss is None for loss in known}) > 1:
                raise ValueError(f"releases must all have a loss in {unit} or none, got {known}; the two do not mix.")
            losses[unit] = None if known[0] is None else sum(known, Fraction(0))
            if losses[unit] is not None and not adaptive and first.neighbors is not None:
                losses[unit] = min(losses[unit], _stacked_loss(measurement, order, first.neighbors))
        return Release(measurement, **losses, neighbors=first.neighbors, simulated=first.simulated, domain=first.domain)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the release to one file (a .npz with a JSON header; no pickle). The file appears whole or not at all."""
        arrays: dict[str, np.ndarray] = {}
        header = {
            "queries": _describe(self.queries, arrays),
            "values": _keep(self.values, arrays),
            "noise": self.noise,
            "scale": _keep(self.scale, arrays),
            "epsilon": None if self.epsilon is None else str(self.epsilon),
            "rho": None if self.rho is None else str(self.rho),
            "neighbors": self.neighbors,
            "simulated": self.simulated,
            "domain": None if self.domain is None else self.domain.to_dict(),
        }
        write_record(path, _FORMAT, _VERSION, header, arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Release":
        """The release that :meth:`save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no release, is damaged, or was written by a newer version.
        """
        header, arrays = read_record(path, _FORMAT, _VERSION)
        with reading(path, _FORMAT):
            queries = _rebuild(header["queries"], arrays)
            return Release(
                Measurement(queries, arrays[header["values"]], header["noise"], arrays[header["scale"]]),
                epsilon=None if header["epsilon"] is None else Fraction(header["epsilon"]),
                rho=None if header["rho"] is None else Fraction(header["rho"]),
                neighbors=header["neighbors"],
                simulated=header["simulated"],
                domain=None if header["domain"] is None else Domain.from_dict(header["domain"]),
            )

    def __repr__(self) -> str:
        spend = f"epsilon={self.epsilon}" if self.rho is None else f"rho={self.rho}"
        return f"Release({self.queries!r}, noise={self.noise!r}, {spend}, neighbors={self.neighbors!r})"


def _stacked_loss(measurement: Measurement, order: int, neighbors: str) -> Fraction:
    """The loss of all rows together from the matrix and the scales as they are stored, each the nearest float."""
    scales, rows = np.unique(np.broadcast_to(measurement.scale, measurement.values.shape), return_inverse=True)
    spreads = [Fraction(s) ** order if np.isfinite(s) else None for s in scales.tolist()]
    losses = [Fraction(0) if s is None else 1 / (order * s) for s in spreads]
    return largest_change(measurement.queries, losses, rows.reshape(-1), order, neighbors)


def check_domain(domain: Any, queries: Queries) -> None:
    """Refuse what is no domain (or None), and a domain of another number of cells than the queries'."""
    if domain is None:
        return
    if not isinstance(domain, Domain):
        raise ValueError(f"domain must be a Domain, got {type(domain).__name__}.")
    if domain.size != queries.shape[1]:
        raise ValueError(f"domain has {domain.size} cells, but the strategy has {queries.shape[1]}.")


def as_measurement(release: Any) -> Measurement:
    """The measurement of a release, or the measurement itself: what every estimator does at the door."""
    if isinstance(measurement := getattr(release, "measurement", None), Measurement):
        return measurement
    if isinstance(release, Measurement):
        if release.values.ndim != 1:
            raise ValueError(
                f"measurement must be one problem, got a batch with values of shape {list(release.values.shape)}: use "
                "map_problems(function, batch), with the estimator called in the function."
            )
        return release
    raise ValueError(f"measurement must be a Release or a Measurement, got {type(release).__name__}.")


def _keep(array: Any, arrays: dict[str, np.ndarray]) -> str:
    name = f"array_{len(arrays)}"
    arrays[name] = np.asarray(array)
    return name


def _describe(queries: Queries, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A family as plain values, its arrays kept apart by name."""
    fields: dict[str, Any] = {"family": type(queries).__name__}
    for field in dataclasses.fields(queries):  # pyright: ignore[reportArgumentType]
        value = getattr(queries, field.name)
        if isinstance(value, Queries):
            value = _describe(value, arrays)
        elif isinstance(value, tuple):
            value = [_describe(part, arrays) if isinstance(part, Queries) else part for part in value]
        elif value is not None and not isinstance(value, (bool, int)):
            value = {"array": _keep(value, arrays)}
        fields[field.name] = value
    return fields


def _rebuild(fields: dict[str, Any], arrays: dict[str, np.ndarray]) -> Queries:
    rest = dict(fields)
    family = _FAMILIES[rest.pop("family")]
    for name, value in rest.items():
        if isinstance(value, dict):
            rest[name] = _rebuild(value, arrays) if "family" in value else arrays[value["array"]]
        elif isinstance(value, list):
            rest[name] = tuple(_rebuild(part, arrays) if isinstance(part, dict) else part for part in value)
    return family(**rest)
