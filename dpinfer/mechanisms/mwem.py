"""MWEM: the queries of a workload that a public estimate answers worst, found privately and measured, round after round.

What it promises. Each round spends an equal share of the budget, half of it on the choice of a query and half on its noisy
answer:

- Errors are differences between the true answer and that of the present estimate, which is made of noisy answers alone, rounded
  to a whole number. With entries from -1 to 1 one record changes each by at most 1, and the query is taken by
  ``permute_and_flip`` at the rate that half of the round's budget buys, exactly.
- The answer has exact discrete Laplace noise. What is asked may depend on what was released before; the losses add up.

A record that moves changes sums of cells (entries 0 and 1) by at most 1 as well, and others by 2.

The number of records is given by the caller and is public. It is never computed from the cells; if it is not known, measure it
first with a budget of its own. DPBench's MWEM takes the true total of the private cells: side information that others do
without.
"""

from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer.inference.multiplicative_weights import scaled_cells
from dpinfer.measurement import Measurement
from dpinfer.mechanisms.exact_choice import permute_and_flip
from dpinfer.mechanisms.linear import host_integers, saturating_answers, saturating_sum
from dpinfer.noise import exact
from dpinfer.privacy import Ledger
from dpinfer.queries import Dense, Queries, Ranges
from dpinfer.queries.dense import as_queries
from dpinfer.release import Release

# Answers beyond are moved to it when a query is chosen, so that differences fit 64 bits.
_MOST_ANSWER = 2**61
# A budget that says more is not spent: floats hold this times any error.
_MOST_RATE = Fraction(2**21)


def mwem(
    cells: Any,
    workload: Any,
    *,
    epsilon: Any,
    total: Any,
    rounds: int = 10,
    passes: int = 100,
    neighbors: str = "add_remove",
    ledger: Ledger | None = None,
) -> Release:
    """A private release of those queries of a workload that were answered worst by what was released before; exact integer noise.

    Good where few records and many queries leave little to be told from noise: ``rounds`` numbers are all that is learnt.

    Args:
        cells: private; an integer vector [n].
        workload: m queries of n cells with entries -1, 0 and 1, of which some are to be measured; or a matrix.
        epsilon: the budget.
        total: how many records there are, a positive public number.
        rounds: how many queries are measured, at most m; each once.
        passes: of multiplicative weights between rounds, as in ``inference.multiplicative_weights``.
        neighbors: "add_remove" (one record more or less) or "replace_one" (a record moves).
        ledger: charged the whole of epsilon before anything is drawn.

    Returns:
        A Release of the queries in the order in which they were measured, for every estimator;
        ``inference.multiplicative_weights(release, total)`` has the cells of the paper.

    Cost: each round O(passes x queries measured x n), and the workload's answers.

    Reference: Hardt, Ligett and McSherry 2012, "A simple and practical algorithm for differentially private data release",
    figure 1. There queries are chosen by the exponential mechanism, than which permute-and-flip (McKenna and Sheldon 2020) is
    never worse.

    Raises:
        ValueError: for anything wrong with the public arguments, or if the ledger does not have enough left.
    """
    whole = _checks.budget("epsilon", epsilon)
    rounds, passes = _checks.integer("rounds", rounds, least=1), _checks.integer("passes", passes, least=1)
    queries = as_queries("workload", workload)
    if not (queries.is_integer and queries.has_unit_entries):
        raise ValueError(f"workload must be of queries with entries -1, 0 and 1, got {queries!r}.")
    if rounds > queries.shape[0]:
        raise ValueError(f"rounds must be at most the number of queries, {queries.shape[0]}, got {rounds}.")
    known = _checks.budget("total", total)
    if known > 2**53:
        raise ValueError(f"total must be at most 2**53, got {total!r}.")
    units = 2 if _checks.relation(neighbors) == "replace_one" and not queries.has_zero_one_entries else 1
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ValueError(f"ledger must be a dpinfer.Ledger, got {type(ledger).__name__}.")
    half = whole / (2 * rounds)
    scale = units / half
    if 4 * scale >= exact.MAX_SCALE:
        raise ValueError(f"epsilon is too small: the noise would exceed what 64-bit counts can hold. Got {epsilon!r}.")
    private = host_integers(cells, queries.shape[1])
    if ledger is not None:
        ledger.charge(whole, unit="epsilon", neighbors=neighbors)

    truth = saturating_answers(queries, private)
    rate, chosen = choice_rate(half, units), np.zeros(0, dtype=np.int64)
    drawn = exact.discrete_laplace([scale], np.zeros(rounds, dtype=np.int64))
    # Of one size in all rounds, so that one program serves them.
    rows, values = np.zeros((rounds, queries.shape[1])), np.zeros(rounds, dtype=np.int64)
    for i in range(rounds):
        estimate = scaled_cells(
            jnp.asarray(rows), jnp.asarray(values, float), jnp.arange(rounds) < i, jnp.asarray(float(known)), passes
        )
        left = np.setdiff1d(np.arange(queries.shape[0]), chosen)
        answers = np.asarray(queries @ np.asarray(estimate.cells, dtype=float))
        place = left[permute_and_flip(-errors(truth[left], answers[left]), rate)]
        chosen = np.append(chosen, place)
        rows[i] = np.asarray(queries.rows(int(place), int(place) + 1))[0]
        values[i] = saturating_sum(truth[place : place + 1], drawn[i : i + 1])[0]
    measurement = Measurement(_subset(queries, chosen), values, "discrete_laplace", float(scale))
    return Release(measurement, epsilon=whole, neighbors=neighbors)


def choice_rate(epsilon: Fraction, units: int) -> Fraction:
    """The rate at which queries are chosen by errors that a record changes by at most ``units``."""
    return min(epsilon / (2 * units), _MOST_RATE)


def errors(truth: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """By how much public answers, rounded, are off the true ones, int64 [m]; private."""
    bounded = np.clip(truth, -_MOST_ANSWER, _MOST_ANSWER)
    return np.abs(bounded - np.rint(np.clip(answers, -_MOST_ANSWER, _MOST_ANSWER)).astype(np.int64))


def _subset(queries: Queries, places: np.ndarray) -> Queries:
    """Some of the rows, as ranges where they are."""
    ranges = queries.as_ranges()
    if ranges is not None:
        return Ranges(queries.shape[1], ranges[0][places], ranges[1][places])
    return Dense(np.concatenate([np.asarray(queries.rows(i, i + 1)) for i in places.tolist()]))
