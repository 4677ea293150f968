"""What a budget will buy, before any cells are seen."""

from dpinfer.accuracy.branching import (
    Recommendation,
    best_branching,
    estimated_range_variance,
    recommend,
    variance_by_branching,
)
from dpinfer.accuracy.count_of_counts import OmniscientError, omniscient_count_of_counts_error
from dpinfer.accuracy.explain import ExpectedError, Explanation, Noise, explain
from dpinfer.accuracy.few_bins import (
    ChosenBinsError,
    FixedBinsError,
    chosen_bins_error,
    estimated_bins_error,
    fixed_bins_error,
)
from dpinfer.accuracy.mean_variance import expected_error
from dpinfer.accuracy.range_variance import range_variance
from dpinfer.accuracy.single_ranges import range_variance_by_size, variance_of_ranges
from dpinfer.accuracy.sorted_counts import SortedCountsError, sorted_counts_error
from dpinfer.accuracy.structure_first import (
    GivenBinsError,
    structure_excess_bound,
    structure_first_error,
    structure_first_split,
)

__all__ = [
    "ChosenBinsError",
    "ExpectedError",
    "Explanation",
    "FixedBinsError",
    "GivenBinsError",
    "Noise",
    "OmniscientError",
    "Recommendation",
    "SortedCountsError",
    "best_branching",
    "chosen_bins_error",
    "estimated_bins_error",
    "estimated_range_variance",
    "expected_error",
    "explain",
    "fixed_bins_error",
    "omniscient_count_of_counts_error",
    "range_variance",
    "range_variance_by_size",
    "recommend",
    "sorted_counts_error",
    "structure_excess_bound",
    "structure_first_error",
    "structure_first_split",
    "variance_by_branching",
    "variance_of_ranges",
]
