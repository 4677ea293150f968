"""Which rate each cell has, given what noisy counts say: mixtures and chains of rates, fitted by expectation maximisation.

Independent cells take their states from one distribution. Along a chain a cell keeps the state of the one before, or goes to a
state near it, or starts anew from that distribution; how probable each is depends on how high the rate is. Kept and started anew
alone, that is Bayes' rule over all ways to cut the cells into bins, each bin with a rate of its own.

The marginals need no pass backward of their own: let the probabilities p_i of cell i's states, given the cells before, be free
variables. The derivatives of the log likelihood L in them are what the cells from i on say, over what they say in all, so that
p_i dL/dp_i are the posterior probabilities, the derivative of L in the logarithm of what cell i's count says of them; and how
often the chain goes from state k to l is the sum over cells of a_k t_kl dL/dp_l, with the a_k of the cell before given all up
to it. Every step of the fit is one sweep along the cells and its derivative.
"""

from functools import lru_cache, partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._loops import fori_loop, scan
from dpinfer._pytree import pytree
from dpinfer.inference.rate_states import NUM_STATES
from dpinfer.inference.segmented import by_rows

# Steps of the fits.
_MIXTURE_STEPS, _CHAIN_STEPS = 100, 18
# How many steps of the grid walks go, on average about; the state 0 is the neighbour of the lowest rate.
_REACHES = (1.0, 4.0, 16.0)
# States whose moves have the same probabilities: 0, and runs of so many.
_GROUP = 16
_GROUPS = np.append(0, 1 + np.arange(NUM_STATES - 1) // _GROUP)
_NUM_GROUPS = int(_GROUPS[-1]) + 1
# How many steps of the grid blurred members spread over.
_BLURS = (2.0, 6.0)
# How probable moves are to begin with: staying, a new start, walks; and as how many moves that counts in the fit.
_STAY, _RESTART, _WALK = 0.9, 0.04, 0.02
_PRIOR_MOVES = (0.5, 0.1, 0.1)


@final
@pytree
class Moves:
    """How a chain goes from a state to the next, [groups] each; they add up to 1.

    Attributes:
        stay: probability that the state stays.
        restart: that it is drawn anew.
        walks: [walks, groups], that it goes a few steps of the grid; [0, groups] if it never does.
    """

    stay: jax.Array
    restart: jax.Array
    walks: jax.Array


@final
@pytree
class Fitted:
    """A fitted model of the states.

    Attributes:
        marginals: [n, states], posterior probabilities of each cell's states.
        others: [n, states], or [1, states] for all cells alike: those given the noisy counts of all cells but this one.
        start: [states], the distribution that states are drawn from.
    """

    marginals: jax.Array
    others: jax.Array
    start: jax.Array


def mixture(log_evidence: jax.Array, start: jax.Array | None = None, *, steps: int = _MIXTURE_STEPS) -> Fitted:
    """Independent cells; the distribution of their states of most likelihood, nearly, from ``start`` (None: all alike) on."""
    said = _scaled(log_evidence)
    n, states = said.shape
    by_state = said.T  # by rows, since XLA takes six times as long for products along columns

    def step(_: Any, weights: jax.Array) -> jax.Array:
        return weights * (by_state @ (1 / (weights @ by_state))) / max(n, 1)

    weights = jnp.full(states, 1 / states, said.dtype) if start is None else start
    weights = fori_loop(0, steps, step, weights)
    return Fitted(_normalised(said * weights[None]), weights[None], weights)


def chain(log_evidence: jax.Array, *, walks: bool) -> Fitted:
    """Cells along a chain, [n >= 1]; without ``walks`` states stay or start anew. A batch goes row by row on a CPU."""
    return _chains(walks)(log_evidence)


@lru_cache(maxsize=2)
def _chains(walks: bool) -> Any:
    fit = partial(_chain, walks)
    return by_rows(fit, fit)


def _chain(walks: bool, log_evidence: jax.Array) -> Fitted:
    said = _scaled(log_evidence)
    start = mixture(log_evidence).start
    moves = _first_moves(walks, said.dtype)

    def step(_: Any, fit: tuple[jax.Array, Moves]) -> tuple[jax.Array, Moves]:
        _, marginals, pairs = _expectations(said, *fit)
        return _refitted(marginals[0], pairs, *fit)

    start, moves = fori_loop(0, _CHAIN_STEPS, step, (start, moves))
    _, ahead, _, slopes = _sweep(said, start, moves)
    # What the cells behind say of each state here: what they say of the next cell's, by where the chain may have gone.
    behind = slopes * moves.stay[_GROUPS][None] + (slopes @ start)[:, None] * moves.restart[_GROUPS][None]
    if (walk := _walk(moves)) is not None:
        behind = behind + slopes @ walk.T
    others = _normalised(ahead * jnp.concatenate([behind[1:], jnp.ones_like(behind[:1])]))
    return Fitted(ahead * slopes, others, start)


def stacked(log_evidence: jax.Array, members: list[jax.Array]) -> jax.Array:
    """The mixture of members that predicts the noisy counts best, each from all others.

    Args:
        log_evidence: [n, states].
        members: [n, states] or [1, states] each, ``others`` of fitted models or made of such.

    Returns:
        The marginals, [n, states].
    """
    said = _scaled(log_evidence)
    predicted = jnp.stack([(said * others).sum(axis=1) for others in members])

    def step(_: Any, weights: jax.Array) -> jax.Array:
        return weights * (predicted / (weights @ predicted)[None]).mean(axis=1)

    weights = fori_loop(0, _MIXTURE_STEPS, step, jnp.full(len(members), 1 / len(members), said.dtype))
    mixed = sum(weight * others for weight, others in zip(weights, members, strict=True))
    return _normalised(said * mixed)


def joined(members: list[jax.Array], start: jax.Array) -> jax.Array:
    """What members [n, states] say together if, given the state, they know of it independently: their product over
    start^(members - 1).
    """
    logs = sum(jnp.log(jnp.maximum(others, jnp.finfo(others.dtype).tiny)) for others in members)
    return jax.nn.softmax(logs - (len(members) - 1) * jnp.log(start)[None], axis=1)


def loosened(others: jax.Array, start: jax.Array) -> list[jax.Array]:
    """``others`` [n, states], and less sure of it: halfway to the distribution of all cells, and blurred along the grid."""
    blurs = np.exp(-np.abs(np.subtract.outer(np.arange(NUM_STATES), np.arange(NUM_STATES))) / np.array(_BLURS)[:, None, None])
    blurs = blurs / blurs.sum(axis=2, keepdims=True)
    halfway = _normalised(jnp.sqrt(others * start[None]))
    return [others, halfway, *(others @ jnp.asarray(blur, others.dtype) for blur in blurs)]


def _normalised(weights: jax.Array) -> jax.Array:
    return weights / weights.sum(axis=1, keepdims=True)


def _scaled(log_evidence: jax.Array) -> jax.Array:
    """The evidence itself, of each cell's likeliest state 1."""
    return jnp.exp(log_evidence - log_evidence.max(axis=1, keepdims=True))


def _first_moves(walks: bool, dtype: Any) -> Moves:
    ones = jnp.ones(_NUM_GROUPS, dtype)
    if not walks:
        return Moves(_STAY * ones, (1 - _STAY) * ones, jnp.zeros((0, _NUM_GROUPS), dtype))
    return Moves(_STAY * ones, _RESTART * ones, jnp.full((len(_REACHES), _NUM_GROUPS), _WALK, dtype))


def _steps() -> np.ndarray:
    """[walks, states, states], where walks go from each state."""
    states = np.arange(NUM_STATES)
    away = np.abs(states[:, None] - states)
    found = np.stack([np.where(away > 0, np.exp(-(away - 1) / reach), 0.0) for reach in _REACHES])
    return found / found.sum(axis=2, keepdims=True)


def _sweep(said: jax.Array, start: jax.Array, moves: Moves) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The log likelihood; and, [n, states] each, p of the states given the cells before, a given the own as well, and dL/dp."""
    stay, restart, walk = moves.stay[_GROUPS], moves.restart[_GROUPS], _walk(moves)

    def likelihood(nudges: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        def step(before: jax.Array, cell: tuple[jax.Array, jax.Array]) -> Any:
            own, nudge = cell
            ahead = before * stay + (before @ restart) * start
            if walk is not None:
                ahead = ahead + before @ walk
            joint = own * (ahead + nudge)
            total = joint.sum()
            return joint / total, (jnp.log(total), ahead, joint / total)

        # The first cell comes after none: its state is drawn.
        first = said[0] * (start + nudges[0])
        _, (logs, ahead, given) = scan(step, first / first.sum(), (said[1:], nudges[1:]))
        given = jnp.concatenate([(first / first.sum())[None], given])
        return jnp.log(first.sum()) + logs.sum(), (jnp.concatenate([start[None], ahead]), given)

    (total, (ahead, given)), slopes = jax.value_and_grad(likelihood, has_aux=True)(jnp.zeros_like(said))
    return total, ahead, given, slopes


def _walk(moves: Moves) -> jax.Array | None:
    """[states, states], the probabilities of walking from a state to another; None if no walk is possible."""
    if not moves.walks.shape[0]:
        return None
    return jnp.einsum("wk,wkl->kl", moves.walks[:, _GROUPS], jnp.asarray(_steps(), moves.walks.dtype))


def _expectations(said: jax.Array, start: jax.Array, moves: Moves) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The log likelihood, the marginals, and the sums over cells of a_k dL/dp_l [states, states]."""
    total, ahead, given, slopes = _sweep(said, start, moves)
    return total, ahead * slopes, given[:-1].T @ slopes[1:]


def _refitted(first: jax.Array, pairs: jax.Array, start: jax.Array, moves: Moves) -> tuple[jax.Array, Moves]:
    """The distribution and the moves that make what is expected of the states most probable."""

    def of_groups(counts: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(counts, jnp.asarray(_GROUPS), _NUM_GROUPS, indices_are_sorted=True)

    stay_prior, restart_prior, walk_prior = _PRIOR_MOVES
    stay = moves.stay * of_groups(jnp.diag(pairs)) + stay_prior
    restart = moves.restart * of_groups(pairs @ start) + restart_prior
    walks = moves.walks
    if walks.shape[0]:
        walked = jnp.einsum("wkl,kl->wk", jnp.asarray(_steps(), pairs.dtype), pairs)
        walks = walks * jax.vmap(of_groups)(walked) + walk_prior
    total = stay + restart + walks.sum(axis=0)
    drawn = start * (moves.restart[_GROUPS] @ pairs) + first + 1e-9
    return drawn / drawn.sum(), Moves(stay / total, restart / total, walks / total[None])
