"""Priors of histograms as numpyro models, one a file; imported as ``dpinfer.models``, for ``inference.posterior``."""

from dpinfer.models.count_of_counts import count_of_counts
from dpinfer.models.log_gaussian import log_gaussian
from dpinfer.models.ordered_counts import ordered_counts
from dpinfer.models.poisson_gamma import poisson_gamma
from dpinfer.models.polya_tree import polya_tree
from dpinfer.models.region_counts import region_counts
from dpinfer.models.segmented_counts import segmented_counts
from dpinfer.models.sparse_counts import sparse_counts

__all__ = [
    "count_of_counts",
    "log_gaussian",
    "ordered_counts",
    "poisson_gamma",
    "polya_tree",
    "region_counts",
    "segmented_counts",
    "sparse_counts",
]
