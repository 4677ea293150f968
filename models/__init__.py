"""Priors of histograms as numpyro models, one a file; imported as ``dpinfer.models``, for ``inference.posterior``."""

from dpinfer.models.log_gaussian import log_gaussian
from dpinfer.models.region_counts import region_counts
from dpinfer.models.sparse_counts import sparse_counts

__all__ = ["log_gaussian", "region_counts", "sparse_counts"]
