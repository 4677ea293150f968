"""Estimators: pure post-processing, which never sees cells."""

from dpinfer.inference.answers import Answers, NormalAnswers
from dpinfer.inference.bootstrap import bootstrap
from dpinfer.inference.bootstrap_penalty import bootstrap_penalty
from dpinfer.inference.cell_posterior import CellPosterior, cell_posterior
from dpinfer.inference.cell_priors import CellPrior, poisson_gamma
from dpinfer.inference.count_of_counts import CountOfCountsEstimate, consistent_count_of_counts
from dpinfer.inference.degree_sequence import graphical_degree_sequence
from dpinfer.inference.estimate import LinearEstimate
from dpinfer.inference.fewest_nodes import fewest_nodes
from dpinfer.inference.group_bootstrap import bootstrap_count_of_counts
from dpinfer.inference.isotonic import IsotonicFit, isotonic_regression
from dpinfer.inference.least_squares import least_squares
from dpinfer.inference.maximum_entropy import maximum_entropy
from dpinfer.inference.mmse import PosteriorAnswers, mmse
from dpinfer.inference.multiplicative_weights import MultiplicativeWeightsEstimate, multiplicative_weights
from dpinfer.inference.neighborhood import neighborhood_posterior
from dpinfer.inference.noise_first import NoiseFirstEstimate, noise_first
from dpinfer.inference.nonnegative import nonnegative_least_squares
from dpinfer.inference.posterior import posterior
from dpinfer.inference.range_posterior import RangePosterior, range_posterior
from dpinfer.inference.region_growing import grow_regions, smoothed_cells
from dpinfer.inference.rounding import round_preserving_total
from dpinfer.inference.sampled_estimate import SampledEstimate
from dpinfer.inference.segmentation import Segmentation, penalized_v_optimal, v_optimal
from dpinfer.inference.segmentation_average import SegmentationAverage, segmentation_average, segmentation_draws
from dpinfer.inference.tree_posterior import TreePosterior, tree_posterior
from dpinfer.inference.unattributed import unattributed_histogram
from dpinfer.inference.zeroed_subtrees import zeroed_subtrees

__all__ = [
    "Answers",
    "CellPosterior",
    "CellPrior",
    "CountOfCountsEstimate",
    "IsotonicFit",
    "LinearEstimate",
    "MultiplicativeWeightsEstimate",
    "NoiseFirstEstimate",
    "NormalAnswers",
    "PosteriorAnswers",
    "RangePosterior",
    "SampledEstimate",
    "Segmentation",
    "SegmentationAverage",
    "TreePosterior",
    "bootstrap",
    "bootstrap_count_of_counts",
    "bootstrap_penalty",
    "cell_posterior",
    "consistent_count_of_counts",
    "fewest_nodes",
    "graphical_degree_sequence",
    "grow_regions",
    "isotonic_regression",
    "least_squares",
    "maximum_entropy",
    "mmse",
    "multiplicative_weights",
    "neighborhood_posterior",
    "noise_first",
    "nonnegative_least_squares",
    "penalized_v_optimal",
    "poisson_gamma",
    "posterior",
    "range_posterior",
    "round_preserving_total",
    "segmentation_average",
    "segmentation_draws",
    "smoothed_cells",
    "tree_posterior",
    "unattributed_histogram",
    "v_optimal",
    "zeroed_subtrees",
]
