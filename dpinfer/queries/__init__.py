"""Linear counting queries: maps from a vector of cells to the answers asked for."""

from dpinfer.queries.base import Queries
from dpinfer.queries.boxes import Boxes
from dpinfer.queries.combine import VStack
from dpinfer.queries.dense import Dense
from dpinfer.queries.haar import Haar
from dpinfer.queries.identity import Identity, Total
from dpinfer.queries.kronecker import Kronecker, Weighted
from dpinfer.queries.partition import Partition
from dpinfer.queries.ranges import AllRange, Prefix, Ranges, Suffix
from dpinfer.queries.tree import Tree

__all__ = [
    "AllRange",
    "Boxes",
    "Dense",
    "Haar",
    "Identity",
    "Kronecker",
    "Partition",
    "Prefix",
    "Queries",
    "Ranges",
    "Suffix",
    "Total",
    "Tree",
    "VStack",
    "Weighted",
]
