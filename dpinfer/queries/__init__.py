"""Linear counting queries: maps from a vector of cells to the answers asked for."""

from dpinfer.queries.base import Queries
from dpinfer.queries.combine import VStack
from dpinfer.queries.dense import Dense
from dpinfer.queries.identity import Identity, Total
from dpinfer.queries.ranges import AllRange, Prefix, Ranges
from dpinfer.queries.tree import Tree

__all__ = ["AllRange", "Dense", "Identity", "Prefix", "Queries", "Ranges", "Total", "Tree", "VStack"]
