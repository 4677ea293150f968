"""How many groups of each size, in runs: the form in which count-of-counts histograms are matched, merged and summed."""

from typing import NamedTuple

import numpy as np


class SizeRuns(NamedTuple):
    """Runs of groups of one node that share size and variance, ordered by node, size and variance; all [runs].

    Attributes:
        nodes: int64.
        sizes: int64.
        counts: int64, positive.
        variances: float64, of the size of each of these groups.
    """

    nodes: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray
    variances: np.ndarray

    @staticmethod
    def gather(nodes: np.ndarray, sizes: np.ndarray, counts: np.ndarray, variances: np.ndarray) -> "SizeRuns":
        """Runs in order, each once; those without groups left out."""
        order = np.lexsort((variances, sizes, nodes))
        order = order[counts[order] > 0]
        columns = nodes[order], sizes[order], variances[order]
        is_new = np.ones(order.size, dtype=bool)
        if order.size:
            is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
        starts = np.flatnonzero(is_new)
        merged = np.add.reduceat(counts[order], starts) if starts.size else np.zeros(0, dtype=np.int64)
        return SizeRuns(columns[0][starts], columns[1][starts], merged, columns[2][starts])

    @staticmethod
    def of_histograms(histograms: np.ndarray) -> "SizeRuns":
        """The runs of int64 [nodes, sizes], with no variances (nan)."""
        nodes, sizes = np.nonzero(histograms)
        return SizeRuns(nodes, sizes, histograms[nodes, sizes], np.full(nodes.size, np.nan))

    def without_variances(self) -> "SizeRuns":
        """One run for each size of a node."""
        return SizeRuns.gather(self.nodes, self.sizes, self.counts, np.zeros(self.counts.size))

    def histograms(self, num_nodes: int, max_size: int) -> np.ndarray:
        """int64 [num_nodes, max_size + 1]."""
        found = np.zeros((num_nodes, max_size + 1), dtype=np.int64)
        np.add.at(found, (self.nodes, self.sizes), self.counts)
        return found

    def totals(self, num_nodes: int) -> np.ndarray:
        """int64 [num_nodes], how many groups each node has."""
        found = np.zeros(num_nodes, dtype=np.int64)
        np.add.at(found, self.nodes, self.counts)
        return found
