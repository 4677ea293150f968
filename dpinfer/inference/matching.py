"""Which groups of regions are which of the regions within them, and what both together say of their sizes.

A region's groups are those of its children, but the noisy estimates do not agree on their sizes. Matching the groups of the
parent in order of size with those of all children in order of size is a matching of least total difference (so is any way to
match two multisets of numbers in order). Among the children's groups of one size it is open which child's go to which of the
parent's: they go in proportion to how many each child has left, by largest remainders, the first child first where these are
equal. A child never gets more than it has, since its quota is no more.

Runs of equal groups are matched at once, so that the cost is in the number of different sizes.
"""

import numpy as np

from dpinfer.inference.size_runs import SizeRuns


def match(parents: SizeRuns, children: SizeRuns, parent_of: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matched groups: a run of the parents, a run of the children, and how many groups of both are the same; int64 [matches].

    Args:
        parents: the runs of all parents.
        children: those of all their children, with as many groups for each parent as that has.
        parent_of: int64 [child nodes].

    The runs are sorted; and where one size of children meets several runs of a parent, there is a step for each with as many
    operations as there are such children.

    Reference: Kuo et al. 2018, algorithm 2, where line 9 must run over the children's groups; footnote 10.
    """
    order = np.lexsort((children.nodes, children.sizes, parent_of[children.nodes]))
    owners, sizes, counts = parent_of[children.nodes][order], children.sizes[order], children.counts[order]
    # Children's runs of one parent and size are a block. Parents and blocks, end to end, cover the same groups.
    is_new = np.ones(order.size, dtype=bool)
    is_new[1:] = (owners[1:] != owners[:-1]) | (sizes[1:] != sizes[:-1])
    block_of, block_starts = np.cumsum(is_new) - 1, np.flatnonzero(is_new)
    block_ends = np.cumsum(np.add.reduceat(counts, block_starts)) if order.size else np.zeros(0, dtype=np.int64)
    parent_ends = np.cumsum(parents.counts)
    stops = np.union1d(block_ends, parent_ends)
    starts = np.concatenate([[0], stops[:-1]]) if stops.size else stops
    blocks, runs = np.searchsorted(block_ends, starts, side="right"), np.searchsorted(parent_ends, starts, side="right")
    pieces = np.bincount(blocks, minlength=block_starts.size)

    # A block that meets one run only: all of it.
    first_piece = np.cumsum(pieces) - pieces
    whole = pieces[block_of] == 1
    found = [(runs[first_piece[block_of[whole]]], order[whole], counts[whole])]
    bounds = np.append(block_starts, order.size)
    for block in np.flatnonzero(pieces > 1).tolist():
        members = slice(bounds[block], bounds[block + 1])
        left = counts[members].copy()
        for piece in range(first_piece[block], first_piece[block] + pieces[block]):
            given = in_proportion(int(stops[piece] - starts[piece]), left)
            left -= given
            some = np.flatnonzero(given)
            found.append((np.full(some.size, runs[piece]), order[members][some], given[some]))
    parent_runs, child_runs, amounts = (np.concatenate(column) for column in zip(*found, strict=True))
    return parent_runs.astype(np.int64), child_runs.astype(np.int64), amounts.astype(np.int64)


def in_proportion(amount: int, shares: np.ndarray) -> np.ndarray:
    """``amount`` divided in proportion to ``shares``, int64, into whole parts: largest remainders, the first of equal ones."""
    total = int(shares.sum())
    if amount == total:
        return shares.copy()
    if total and amount > np.iinfo(np.int64).max // total:  # products beyond 64 bit
        quotas = [divmod(amount * share, total) for share in shares.tolist()]
        parts, rests = (np.array(column, dtype=np.int64) for column in zip(*quotas, strict=True))
    else:
        parts, rests = np.divmod(amount * shares, max(total, 1))
    more = amount - int(parts.sum())
    parts[np.argsort(-rests, kind="stable")[:more]] += 1
    return parts


MERGING = ("weighted", "naive", "parent")


def merge(parents: SizeRuns, children: SizeRuns, parent_of: np.ndarray, merging: str) -> SizeRuns:
    """The children's groups with sizes and variances from both estimates, rounded half upward and in order again.

    Args:
        parents, children, parent_of: as in :func:`match`.
        merging: "weighted" by the inverse variances (Kuo et al., equations 5 and 6), "naive" for the mean, or "parent" for the
            parent's.
    """
    above, below, amounts = match(parents, children, parent_of)
    size, variance = parents.sizes[above].astype(float), parents.variances[above]
    own_size, own_variance = children.sizes[below].astype(float), children.variances[below]
    if merging == "weighted":
        both = variance + own_variance
        share = np.where(both > 0, own_variance / np.where(both > 0, both, 1.0), 0.5)  # the parent's
        # A weighted mean may put the larger first, so that it is sorted again.
        size, variance = own_size + share * (size - own_size), share * variance
    elif merging == "naive":
        size, variance = (size + own_size) / 2, (variance + own_variance) / 4
    rounded = np.floor(size + 0.5).astype(np.int64)
    return SizeRuns.gather(children.nodes[below], rounded, amounts, variance)
