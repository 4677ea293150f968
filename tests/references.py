"""The same answers by other means: slow, dense, and written from the definitions."""

import itertools
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction

import numpy as np


def tree_matrix(parents: np.ndarray, leaf_cells: np.ndarray | None = None) -> np.ndarray:
    """Row v holds a 1 for every cell below node v, found by walking up from each leaf."""
    parents = np.asarray(parents)
    leaves = [v for v in range(parents.size) if v not in set(parents.tolist())]
    cells = range(len(leaves)) if leaf_cells is None else leaf_cells
    matrix = np.zeros((parents.size, len(leaves)))
    for leaf, cell in zip(leaves, cells, strict=True):
        node = leaf
        while node >= 0:
            matrix[node, cell] = 1
            node = parents[node]
    return matrix


def complete_tree_parents(n: int, branching: int) -> np.ndarray:
    """Parents of the left-aligned tree cut at n, level by level from the root."""
    sizes = [n]
    while sizes[0] > 1 or len(sizes) == 1:
        sizes.insert(0, (sizes[0] + branching - 1) // branching)
    parents, start = [-1], 0
    for size in sizes[1:]:
        parents += [start + i // branching for i in range(size)]
        start = len(parents) - size
    return np.array(parents)


def grid_tree_matrix(shape: tuple[int, ...], branching: int) -> np.ndarray:
    """One row a box of the tree over a grid, the root's first: boxes of side branching^height, cell by cell."""
    cells = list(np.ndindex(*shape))
    height = 1
    while branching**height < max(shape):
        height += 1
    rows = []
    for h in range(height, -1, -1):
        side = branching**h
        for box in np.ndindex(*(-(-size // side) for size in shape)):
            rows.append([float(all(c // side == b for c, b in zip(cell, box, strict=True))) for cell in cells])
    return np.array(rows)


def weighted_least_squares(matrix: np.ndarray, values: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cells and their covariance; variance 0 is an exact constraint, infinity no measurement. By null space and lstsq."""
    matrix = np.asarray(matrix, dtype=float)
    variances = np.broadcast_to(variances, values.shape)
    exact, free = variances == 0, (variances > 0) & np.isfinite(variances)
    particular = np.linalg.lstsq(matrix[exact], values[exact], rcond=None)[0] if exact.any() else np.zeros(matrix.shape[1])
    basis = np.eye(matrix.shape[1])
    if exact.any():
        _, sizes, right = np.linalg.svd(matrix[exact])
        rank = int((sizes > 1e-10 * sizes[0]).sum())
        basis = right[rank:].T
    weights = 1 / np.sqrt(variances[free])
    reduced = (matrix[free] @ basis) * weights[:, None]
    inverse = np.linalg.pinv(reduced)
    solution = inverse @ ((values[free] - matrix[free] @ particular) * weights)
    return particular + basis @ solution, basis @ (inverse @ inverse.T) @ basis.T


def random_parents(rng: np.random.Generator, size: int, *, shuffled: bool) -> np.ndarray:
    """A random rooted tree; node numbers in random order if shuffled."""
    parents = np.array([-1, *(int(rng.integers(max(0, v - 8), v)) for v in range(1, size))])
    if not shuffled:
        return parents
    names = rng.permutation(size)
    out = np.empty(size, dtype=int)
    out[names] = np.where(parents < 0, -1, names[np.maximum(parents, 0)])
    return out


def range_matrix(n: int, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Row i has ones from starts[i] to stops[i] - 1."""
    matrix = np.zeros((len(starts), n), dtype=np.int64)
    for row, start, stop in zip(matrix, starts, stops, strict=True):
        row[start:stop] = 1
    return matrix


def largest_change(matrix: np.ndarray, weights: np.ndarray, order: int, neighbors: str) -> float:
    """max over neighbouring databases of sum_i weights_i |change_i|^order, by enumerating records (and pairs of cells)."""
    n = matrix.shape[1]
    if neighbors == "add_remove":
        return max((weights * np.abs(matrix[:, j]) ** order).sum() for j in range(n))
    pairs = ((j, k) for j in range(n) for k in range(n))
    return max((weights * np.abs(matrix[:, j] - matrix[:, k]) ** order).sum() for j, k in pairs)


def widest_range_variance(branching: int, levels: int) -> Fraction:
    """Exact variance of the sum over all leaves but the first and the last, every node measured with variance 1.

    By the eigenvalues of a complete tree's precision matrix: Var = sum_l beta_l sum over level-l blocks of overlap^2.
    """
    n, eigenvalue, before, variance = branching ** (levels - 1), Fraction(0), Fraction(0), Fraction(0)
    for level in range(levels):
        size = branching**level
        eigenvalue += size
        blocks = n // size
        overlaps = (n - 2) ** 2 if blocks == 1 else (blocks - 2) * size**2 + 2 * (size - 1) ** 2
        variance += (1 / eigenvalue - before) / size * overlaps
        before = 1 / eigenvalue
    return variance


def laplace_sum_by_partial_fractions(
    unit: float, multiples: list[int], scales: np.ndarray, digits: int
) -> tuple[np.ndarray, np.ndarray]:
    """(log density, log survival) at each z = unit * multiple >= 0 of a sum of Laplace noises of different scales.

    f(z) = sum_i A_i exp(-z/b_i) / (2 b_i) with A_i = prod_{j != i} b_i^2 / (b_i^2 - b_j^2). The terms cancel down to any number
    of digits, so that it takes ``digits`` of them.
    """
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = digits, MIN_EMIN, MAX_EMAX
        exact = [Decimal(float(b)) for b in scales]
        squares = [b * b for b in exact]
        weights = []
        for i, square in enumerate(squares):
            below = Decimal(1)
            for other in squares[:i] + squares[i + 1 :]:
                below *= square - other
            weights.append(square ** (len(squares) - 1) / below / 2)
        # An exponential takes a thousand times as long as a product.
        decays = [(-Decimal(float(unit)) / b).exp() for b in exact]
        density, survival = np.zeros(len(multiples)), np.zeros(len(multiples))
        for k, multiple in enumerate(multiples):
            tails = [a * decay**multiple for a, decay in zip(weights, decays, strict=True)]
            density[k] = sum((tail / b for tail, b in zip(tails, exact, strict=True)), Decimal(0)).ln()
            survival[k] = sum(tails, Decimal(0)).ln()
    return density, survival


def discrete_laplace_sum(scales: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """(P(K = k), P(K > k)) for k = 0 .. reach of a sum of discrete Laplace noises, by convolution: all terms are positive."""
    # What is cut off is below exp(-40) of what is kept, at k = reach too.
    far = reach + int(40 * np.max(scales)) + 1
    k = np.abs(np.arange(-far, far + 1))
    masses = np.ones(1)
    for scale in scales:
        masses = np.convolve(masses, np.tanh(1 / (2 * scale)) * np.exp(-k / scale))
    middle = masses.size // 2
    masses = masses[middle : middle + far + 1]
    tails = np.cumsum(masses[::-1])[::-1]
    return masses[: reach + 1], tails[1 : reach + 2]


def min_max_fit(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The isotonic fit in squares: for each entry the least, over where a range ends, of the largest mean of such a range."""
    n = len(values)

    def mean(i: int, j: int) -> float:
        return float(np.average(values[i : j + 1], weights=weights[i : j + 1]))

    return np.array([min(max(mean(i, j) for i in range(j + 1)) for j in range(k, n)) for k in range(n)])


def least_deviation_fits(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """All monotone vectors of whole numbers from the least to the largest value that have the least sum of deviations."""
    rows = np.array(list(itertools.combinations_with_replacement(range(values.min(), values.max() + 1), len(values))))
    sums = np.abs(rows - values) @ weights
    return rows[sums == sums.min()]


def best_partitions(values: np.ndarray, weights: np.ndarray, cost: str) -> np.ndarray:
    """[n], the least cost of the values in 1, 2, ..., n bins of consecutive ones, by trying all 2^(n-1) partitions."""
    n = values.size

    def bin_cost(j: int, i: int) -> float:
        x, w = values[j:i], weights[j:i]
        if cost == "sse":
            middle = (w * x).sum() / w.sum() if w.sum() > 0 else 0.0
            return float((w * (x - middle) ** 2).sum())
        return float(min((w * np.abs(x - v)).sum() for v in x))

    costs = {(j, i): bin_cost(j, i) for j in range(n) for i in range(j + 1, n + 1)}
    best = np.full(n, np.inf)
    for cuts in range(2 ** (n - 1)):
        ends = [0, *(k for k in range(1, n) if cuts >> (k - 1) & 1), n]
        best[len(ends) - 2] = min(best[len(ends) - 2], sum(costs[pair] for pair in itertools.pairwise(ends)))
    return best
