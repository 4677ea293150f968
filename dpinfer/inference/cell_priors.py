"""What is known of cells before they are measured: each one's log density, the same for all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dpinfer import _checks

PRIORS = ("flat", "nonnegative")
# The largest scale of discrete noise beside which cells are taken as integers, where the prior does not say.
_FINE = 64.0


@final
@dataclass(frozen=True, eq=False)
class CellPrior:
    """A prior that cells have independently of each other.

    Args:
        log_density: of an array of cells, entry by entry, but for a constant; -inf where no cell can be.
        lower: no cell is less. Say it where the density jumps there, which would else be found to a part of a scale only.
        integers: whether cells are integers, and ``log_density`` the logarithm of probabilities.
    """

    log_density: Callable[[np.ndarray], Any]
    lower: float = -np.inf
    integers: bool = False

    def at(self, cells: np.ndarray) -> np.ndarray:
        """Log densities, checked."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.asarray(self.log_density(np.maximum(cells, self.lower)), dtype=np.float64)
        if found.shape != cells.shape:
            raise ValueError(
                f"prior must give a log density for each of its argument's entries, {list(cells.shape)}, got {list(found.shape)}."
            )
        if np.isnan(found).any() or (found == np.inf).any():
            raise ValueError("prior must give log densities below inf, and -inf where no cell can be; it gave nan or inf.")
        return np.where(cells < self.lower, -np.inf, found)


def poisson_gamma(shape: Any, rate: Any) -> CellPrior:
    """Integer cells that are Poisson, their means gamma with mean ``shape / rate`` and variance ``shape / rate^2``.

    Taken together that is negative binomial: most cells small and a few large, for a small ``shape``.
    """
    shape, rate = (_positive(name, value) for name, value in (("shape", shape), ("rate", rate)))
    from scipy.special import gammaln  # a dependency of jax, and slow to import

    def log_probability(cells: np.ndarray) -> np.ndarray:
        return gammaln(cells + shape) - gammaln(shape) - gammaln(cells + 1) - shape * np.log1p(1 / rate) - cells * np.log1p(rate)

    return CellPrior(log_probability, lower=0.0, integers=True)


def as_prior(prior: Any, *, is_lattice: bool, scale: float) -> CellPrior | None:
    """``prior`` as it is given to estimators; None if it is flat. Noise of that scale, discrete or not, is in the cells."""
    if isinstance(prior, CellPrior):
        return prior
    integers = is_lattice and scale <= _FINE
    if callable(prior):
        return CellPrior(prior, integers=integers)
    if not isinstance(prior, str):
        raise ValueError(f"prior must be one of {PRIORS}, a CellPrior, or a log density, got {type(prior).__name__}.")
    _checks.choice("prior", prior, PRIORS)
    return None if prior == "flat" else CellPrior(np.zeros_like, lower=0.0, integers=integers)


def flat_prior(*, is_lattice: bool, scale: float) -> CellPrior:
    """The same for all cells, of which no estimator makes a case of its own."""
    return CellPrior(np.zeros_like, integers=is_lattice and scale <= _FINE)


def _positive(name: str, value: Any) -> float:
    number = float(_checks.fraction(name, value))
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}.")
    return number
