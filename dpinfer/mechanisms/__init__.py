"""The only code that sees cells."""

from dpinfer.mechanisms.ahp import ClusteredCells, ahp
from dpinfer.mechanisms.count_of_counts import CountOfCounts, ReleasedLevel, count_of_counts, count_of_counts_from_histograms
from dpinfer.mechanisms.dawa import BucketedCells, dawa
from dpinfer.mechanisms.ispe import ispe
from dpinfer.mechanisms.linear import measure, simulate
from dpinfer.mechanisms.mwem import mwem
from dpinfer.mechanisms.sorted_counts import SortedCounts, sorted_counts
from dpinfer.mechanisms.sorted_runs import SortedRuns, sorted_runs
from dpinfer.mechanisms.structure_first import StructuredCells, structure_first

__all__ = [
    "BucketedCells",
    "ClusteredCells",
    "CountOfCounts",
    "ReleasedLevel",
    "SortedCounts",
    "SortedRuns",
    "StructuredCells",
    "ahp",
    "count_of_counts",
    "count_of_counts_from_histograms",
    "dawa",
    "ispe",
    "measure",
    "mwem",
    "simulate",
    "sorted_counts",
    "sorted_runs",
    "structure_first",
]
