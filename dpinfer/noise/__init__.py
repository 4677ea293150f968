"""Laws of noise: their moments, their densities and tails, the laws of their sums, and samplers that are exact."""

from typing import TYPE_CHECKING, Any

from dpinfer.noise.moments import NAMES, scale_from_stddev, stddev

if TYPE_CHECKING:
    from dpinfer.noise.laws import DiscreteLaplace, DiscreteLaplaceSum, LaplaceSum
    from dpinfer.noise.masses import DiscretizedLaw, convolved_masses, discretize, sampled_masses

__all__ = [
    "NAMES",
    "DiscreteLaplace",
    "DiscreteLaplaceSum",
    "DiscretizedLaw",
    "LaplaceSum",
    "convolved_masses",
    "discretize",
    "sampled_masses",
    "scale_from_stddev",
    "stddev",
]


def __getattr__(name: str) -> Any:
    # The laws are numpyro's kind of distributions, which takes a while to import; whoever measures does not need it.
    if name in ("DiscreteLaplace", "DiscreteLaplaceSum", "LaplaceSum"):
        from dpinfer.noise import laws

        return getattr(laws, name)
    if name in ("DiscretizedLaw", "convolved_masses", "discretize", "sampled_masses"):
        from dpinfer.noise import masses

        return getattr(masses, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
