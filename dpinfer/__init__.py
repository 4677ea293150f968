"""dpinfer: probabilistic inference for differentially private histograms, on JAX."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax

from dpinfer import (
    accuracy,
    allocation,
    answer_tables,
    datasets,
    evaluation,
    group_sizes,
    inference,
    mechanisms,
    methods,
    noise,
    queries,
    testing,
    workloads,
)
from dpinfer.axes import Axis
from dpinfer.batching import map_problems, stream_problems
from dpinfer.domain import Domain, count
from dpinfer.inference import Answers, LinearEstimate, least_squares
from dpinfer.measurement import Measurement
from dpinfer.mechanisms import measure, simulate
from dpinfer.privacy import Ledger
from dpinfer.private_cells import PrivateCells
from dpinfer.regions import RegionTree
from dpinfer.release import Release

if TYPE_CHECKING:
    from dpinfer import interop, spine

__version__ = version("dpinfer")

__all__ = [
    "Answers",
    "Axis",
    "Domain",
    "Ledger",
    "LinearEstimate",
    "Measurement",
    "PrivateCells",
    "RegionTree",
    "Release",
    "accuracy",
    "allocation",
    "answer_tables",
    "count",
    "datasets",
    "enable_x64",
    "evaluation",
    "group_sizes",
    "inference",
    "interop",
    "least_squares",
    "map_problems",
    "measure",
    "mechanisms",
    "methods",
    "noise",
    "queries",
    "simulate",
    "spine",
    "stream_problems",
    "testing",
    "workloads",
]


# What takes a while to import, such as the models, which are numpyro's, and not everyone needs.
_WHEN_ASKED_FOR = ("interop", "models", "spine")


def __getattr__(name: str) -> Any:
    if name in _WHEN_ASKED_FOR:
        return import_module(f"dpinfer.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def enable_x64() -> None:
    """Let JAX compute in 64 bit from now on. Call it before the first array is made."""
    jax.config.update("jax_enable_x64", True)
