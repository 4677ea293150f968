"""How many groups of each size there are in the nodes of a hierarchy, and the noisy answers about them.

The groups are private ones in a mechanism, and estimated ones where a release is simulated again.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpinfer.mechanisms.fitted_runs import fitted_runs
from dpinfer.mechanisms.linear import saturating_sum
from dpinfer.mechanisms.sorted_runs import MOST_GROUPS
from dpinfer.noise import exact
from dpinfer.noise.exact import Words, operating_system_words
from dpinfer.regions import RegionTree

# Entries of histograms that are formed at a time.
_CHUNK = 1 << 22
Report = Callable[[int], None]


class GroupRuns(NamedTuple):
    """How many groups of each size there are in each node of a level, by node and size upward.

    Attributes:
        num_nodes: of the level.
        max_size: the largest size.
        nodes, sizes, counts: int64 [runs].
    """

    num_nodes: int
    max_size: int
    nodes: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray

    def histograms(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The histograms of some nodes after the other: which, and int64 [nodes, max_size + 1]."""
        width = self.max_size + 1
        step = max(1, _CHUNK // width)
        for begin in range(0, self.num_nodes, step):
            stop = min(begin + step, self.num_nodes)
            first, last = np.searchsorted(self.nodes, [begin, stop])
            found = np.zeros((stop - begin, width), dtype=np.int64)
            found[self.nodes[first:last] - begin, self.sizes[first:last]] = self.counts[first:last]
            yield slice(begin, stop), found


def runs_by_level(
    regions: RegionTree, max_size: int, leaves: np.ndarray, sizes: np.ndarray, counts: np.ndarray
) -> list[GroupRuns]:
    """The runs of every level, the top first, from ``counts`` groups of each size in each leaf, in any order."""
    levels: list[GroupRuns] = []
    nodes = leaves
    for level in reversed(range(regions.num_levels)):
        key, place = np.unique(nodes * (max_size + 1) + sizes, return_inverse=True)
        merged = np.zeros(key.size, dtype=np.int64)
        np.add.at(merged, place.reshape(-1), counts)
        nodes, sizes = np.divmod(key, max_size + 1)
        levels.insert(0, GroupRuns(regions.size(level), max_size, nodes, sizes, merged))
        nodes, counts = regions.parents[level][nodes], merged
    return levels


def noisy_answers(
    runs: GroupRuns, query: str, scale: Fraction, *, words: Words = operating_system_words, report: Report = lambda _: None
) -> dict[str, np.ndarray]:
    """The arrays of a ``ReleasedLevel`` for one query, with discrete Laplace noise; ``report`` is told of each node."""
    if query == "runs":
        values, lengths, nodes = fitted_runs(runs.sizes, runs.counts, runs.nodes, scale, words=words)
        report(runs.num_nodes)
        return {"run_values": values, "run_lengths": lengths, "run_nodes": nodes}
    if query == "sizes":
        answers = np.repeat(runs.sizes, runs.counts)
        report(runs.num_nodes)
        return {"sizes": saturating_sum(answers, _drawn(scale, answers.size, words))}
    noisy = np.empty((runs.num_nodes, runs.max_size + (query != "cumulative")), dtype=np.int64)
    for rows, histograms in runs.histograms():
        answers = histograms if query == "histogram" else np.cumsum(histograms, axis=1, out=histograms)
        if query == "cumulative":
            answers = answers[:, :-1]
        elif query == "tails":
            total = answers[:, -1:]
            # The least of a sum and a constant changes by no more than the sum.
            answers = np.minimum(np.concatenate([total, total - answers[:, :-1]], axis=1), MOST_GROUPS)
        noisy[rows] = saturating_sum(answers, _drawn(scale, answers.size, words).reshape(answers.shape))
        report(rows.stop - rows.start)
    return {query: noisy}


def _drawn(scale: Fraction, size: int, words: Words) -> np.ndarray:
    return exact.discrete_laplace([scale], np.zeros(size, dtype=np.int64), words=words)
