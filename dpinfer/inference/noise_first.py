"""NoiseFirst: noisy cells made better by averaging over bins that the noisy cells themselves suggest.

Only what was released is used (the paper's algorithm 2, as printed, reads the true cells in its second line, and is not private
at all), so that any number of bins, penalty or clipping is post-processing.

The number of bins. A bin of s cells replaces s noises of variance v by one of v / s, and errs by how unequal its cells are. That
is the sum of squares about its mean, less (s - 1) v on average; and with v for each bin, the error of k bins of n cells is their
cost less (n - 2 k) v (theorem 1, equation 4). It holds for bins fixed beforehand. Of bins chosen by the same noise it is far too
hopeful: on constant cells, where one bin is best, its minimum takes 0.15 n of them and claims an error below zero. Minimising it
is a price of 2 v a bin, one nat of the noise's likelihood. Prices that grow with the number of ways to choose the bins,
v (2 ln(n / k) + 5) for each of k (Lebarbier 2005), halve the error.
"""

from functools import lru_cache, partial
from typing import Any, final

import jax
import jax.numpy as jnp

from dpinfer import _checks
from dpinfer._loops import while_loop
from dpinfer._pytree import pytree
from dpinfer.inference import segment_deviations, segment_squares
from dpinfer.inference.answers import PointAnswers
from dpinfer.inference.estimate import over_cells
from dpinfer.inference.noisy_cells import NoisyCells, nats, noisy_cells
from dpinfer.inference.segment_numbers import begins_of_number
from dpinfer.inference.segmentation import bin_means, bin_medians
from dpinfer.inference.segmented import by_rows

PENALTIES = ("lebarbier", "cautious", "paper")
# Nats a bin of the paper's rules: 4 / epsilon^2 of squares over twice the variance, 3 / epsilon of deviations over the scale.
_PAPER = {"mean": 1.0, "median": 3.0}
# Beside ln(n / k), nats for each of k bins.
_CONSTANT = {"lebarbier": 2.5, "cautious": 1.25}


@final
@pytree
class NoiseFirstEstimate:
    """Cells in bins.

    Attributes:
        cells: [n], of each cell the mean or median of its bin's noisy cells.
        block_ids: int32 [n], the bin of each cell, from 0 along the vector.
        num_bins: int32, how many there are.
        cost: how far the noisy cells are from these, in nats: the sum of squares over twice their variances, or of absolute
            deviations over their scales.
    """

    cells: jax.Array
    block_ids: jax.Array
    num_bins: jax.Array
    cost: jax.Array

    def answer(self, workload: Any) -> PointAnswers:
        """Sums of the cells; without standard deviations, since bins were chosen by the noise: ``bootstrap`` has some."""
        queries = over_cells(workload, self.cells.shape[0])
        return PointAnswers(jnp.asarray(queries @ self.cells), "noise_first")


def noise_first(
    measurement: Any,
    bins: int | None = None,
    *,
    statistic: str = "mean",
    penalty: Any = None,
    keep_unequal: bool = False,
) -> NoiseFirstEstimate:
    """Noisy cells averaged over bins of consecutive ones, which the noisy cells themselves suggest.

    The bins are the V-optimal ones of the noisy cells (:func:`v_optimal`), for a given number or for a price a bin.

    Args:
        measurement: noisy cells, of Identity: of ``measure``, or published ones; cells of infinite scale count for nothing, of
            unequal scales by their precision.
        bins: how many; None: as ``penalty`` says.
        statistic: "mean" with bins by squares, or "median" with bins by absolute deviations, the better of the two under Laplace
            noise if a bin has many cells.
        penalty: what a bin costs, in nats of the noise's likelihood (squares over twice the variance; deviations over the scale,
            of Gaussian noise over its standard deviation / sqrt(2)): a number, or

            - "lebarbier", 2.5 + ln(n / k) for each of k bins; the default for means;
            - "cautious", 1.25 + ln(n / k), hardly ever worse than the noisy cells;
            - "paper", 1 for means and 3 for medians (Xu et al., equations 4 and 15); the default for medians.

            ``inference.bootstrap_penalty`` finds a number by simulation.

        keep_unequal: whether a bin whose cells differ by more than the noise explains stays as it was measured (equations 22 and
            23). It happens for ``bins`` that are too few; never at the paper's own number of bins, since splitting such a bin
            into single cells would pay.

    Returns:
        A :class:`NoiseFirstEstimate`; ``inference.bootstrap(measurement, noise_first, key=...)`` gives it error bars, which do
        not know that the bins may be wrong: intervals that cover are those of ``inference.segmentation_draws``.

    Cost: of :func:`penalized_v_optimal`, some ten times for prices that depend on the number of bins; of :func:`v_optimal` for
    ``bins``. A batch under vmap is solved row by row on a CPU.

    Reference: Xu et al. 2013, sections 3, 5.1 and 6.1. Lebarbier 2005, "Detecting multiple change-points in the mean of
    Gaussian process by model selection".

    Raises:
        ValueError: if the measurement is not of Identity, has exact cells, or an argument is wrong.
    """
    noisy = noisy_cells(measurement, statistic)
    if bins is not None and penalty is not None:
        raise ValueError("At most one of bins and penalty is possible.")
    n = noisy.values.shape[0]
    if bins is not None:
        bins = _checks.integer("bins", bins, least=1)
        if bins > n:
            raise ValueError(f"bins must be at most the number of cells, {n}, got {bins}.")
    rule = penalty if penalty is not None else "lebarbier" if statistic == "mean" else "paper"
    if isinstance(rule, str):
        _checks.choice("penalty", rule, PENALTIES)
        if statistic == "median" and rule != "paper":
            raise ValueError(f"penalty must be 'paper' or a number of nats for medians, got {rule!r}.")
        price: Any = _PAPER[statistic] if rule == "paper" else _CONSTANT[rule]
        grows = rule != "paper"
    else:
        price, grows = nats(rule, f", or one of {', '.join(PENALTIES)}"), False
    return _estimate(noisy, price, statistic == "median", bins, bool(grows), bool(keep_unequal))


@partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _estimate(noisy: NoisyCells, price: Any, is_l1: bool, bins: int | None, grows: bool, keeps: bool) -> NoiseFirstEstimate:
    values, weights, unit = noisy.in_nats(is_l1)
    given = jax.lax.stop_gradient((values, weights))
    prices = jax.lax.stop_gradient((jnp.asarray(price, values.dtype), unit))
    if bins is not None:
        begins = begins_of_number(is_l1, bins)(*given)[0]
    elif grows:
        begins = _begins_of_growing(is_l1)(*given, *prices)
    else:
        find = (segment_deviations if is_l1 else segment_squares).penalized_begins
        begins = find(*given, prices[0] / unit)
    ids = jnp.cumsum(begins, dtype=jnp.int32) - 1
    cells = (bin_medians if is_l1 else bin_means)(values, weights, ids)
    off = _off(values, cells, weights, is_l1) * unit
    if keeps:
        options: dict[str, Any] = {"num_segments": values.shape[0], "indices_are_sorted": True}
        size = jax.ops.segment_sum(jnp.ones_like(values), ids, **options)
        # Equation 22: squares below 4 (s - 1) / epsilon^2, which is 2 (s - 1) variances; equation 23: below (4 s - 3) scales.
        most = 4 * size - 3 if is_l1 else size - 1
        is_unequal = (jax.ops.segment_sum(off, ids, **options) >= most) & (size > 1)
        cells = jnp.where(is_unequal[ids], values, cells)
        off = _off(values, cells, weights, is_l1) * unit
    return NoiseFirstEstimate(cells, ids, ids[-1] + 1, off.sum())


def _off(values: jax.Array, cells: jax.Array, weights: jax.Array | None, is_l1: bool) -> jax.Array:
    off = jnp.abs(values - cells) if is_l1 else jnp.square(values - cells)
    return off if weights is None else weights * off


@lru_cache(maxsize=4)
def _begins_of_growing(is_l1: bool) -> Any:
    """A function of (values, weights or None, constant, unit): where the bins of least cost begin, with k (constant + ln(n / k))
    nats for k of them.

    Exact, though the price is no multiple of k: it is concave in k, so that the best number is one that some price a bin would
    choose. Such are found between two that are known by the price at which these two would be equally good; a pair is passed over
    if even the lowest costs that the known prices leave possible between them are not below the best.
    """
    find = (segment_deviations if is_l1 else segment_squares).penalized_begins

    def search(values: jax.Array, weights: jax.Array | None, constant: jax.Array, unit: jax.Array) -> jax.Array:
        n, dtype = values.shape[0], values.dtype
        infinity = jnp.asarray(jnp.inf, dtype)

        def price(k: jax.Array) -> jax.Array:
            return k * (constant + jnp.log(n / k))

        def cost(begins: jax.Array) -> tuple[jax.Array, jax.Array]:
            ids = jnp.cumsum(begins, dtype=jnp.int32) - 1
            fit = (bin_medians if is_l1 else bin_means)(values, weights, ids)
            return (ids[-1] + 1).astype(dtype), _off(values, fit, weights, is_l1).sum() * unit

        one = jnp.zeros(n, bool).at[0].set(True)
        _, whole = cost(one)
        single = jnp.ones(n, bool)
        # Pairs of numbers of bins: (k, cost, price a bin at which k is best) of the lower and of the higher.
        pairs = jnp.zeros((n + 2, 6), dtype).at[0].set(jnp.stack([1.0, whole, infinity, n, 0.0, 0.0]))
        ends = price(jnp.ones((), dtype)) + whole, price(jnp.asarray(n, dtype))
        best = jnp.minimum(*ends)
        begins = jnp.where(ends[0] <= ends[1], one, single)

        def step(carry: Any) -> Any:
            pairs, height, best, begins = carry
            low, low_cost, low_price, high, high_cost, high_price = pairs[height - 1]
            # Where the lines from both ends cross, no cost is lower.
            is_open = jnp.isinf(low_price)
            slope = jnp.where(is_open, 1.0, low_price - high_price)
            meets = (low_cost + jnp.where(is_open, 0, low_price) * low - high_cost - high_price * high) / jnp.where(
                slope > 0, slope, 1
            )
            meets = jnp.where(is_open, low, jnp.clip(meets, low, high))
            hope = high_cost + high_price * (high - meets) + price(meets)
            between = (low_cost - high_cost) / (high - low)
            is_worth = (hope < best) & (high - low > 1) & (between > 0)

            def look() -> Any:
                found = find(values, weights, between / unit)
                k, k_cost = cost(found)
                is_new = (k > low) & (k < high) & (k_cost + between * k < low_cost + between * low)
                return found, k, k_cost, is_new

            nothing = single, jnp.ones((), dtype), infinity, jnp.bool_(False)
            found, k, k_cost, is_new = jax.lax.cond(is_worth, look, lambda: nothing)
            left = jnp.stack([low, low_cost, low_price, k, k_cost, between])
            right = jnp.stack([k, k_cost, between, high, high_cost, high_price])
            pairs = pairs.at[height - 1].set(jnp.where(is_new, left, pairs[height - 1]))
            pairs = pairs.at[height].set(right)
            total = jnp.where(is_new, k_cost + price(jnp.maximum(k, 1)), infinity)
            begins = jnp.where(total < best, found, begins)
            return pairs, height + jnp.where(is_new, 1, -1), jnp.minimum(best, total), begins

        start = (pairs, jnp.int32(1), best, begins)
        return while_loop(lambda carry: carry[1] > 0, step, start)[3]

    return by_rows(search, search)
