"""The only code that sees cells."""

from dpinfer.mechanisms.linear import measure, simulate
from dpinfer.mechanisms.sorted_counts import SortedCounts, sorted_counts

__all__ = ["SortedCounts", "measure", "simulate", "sorted_counts"]
