"""The only code that sees cells."""

from dpinfer.mechanisms.linear import measure, simulate
from dpinfer.mechanisms.sorted_counts import SortedCounts, sorted_counts
from dpinfer.mechanisms.sorted_runs import SortedRuns, sorted_runs

__all__ = ["SortedCounts", "SortedRuns", "measure", "simulate", "sorted_counts", "sorted_runs"]
