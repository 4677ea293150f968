"""Choices among a few candidates by their costs, with exactly the probabilities that privacy rests on: integers and coins.

A candidate's chances fall with its cost, by about exp(-rate x cost). If the costs of neighbours differ by at most D each, a rate
of epsilon / (2 D) makes the choice epsilon-differentially private: McSherry and Talwar 2007 for the exponential mechanism,
McKenna and Sheldon 2020 (theorem 1) for permute-and-flip.
"""

from fractions import Fraction

import numpy as np

from dpinfer.noise.exact import Words, operating_system_words, survives, uniform_below

# Candidates tried at a time.
_TRIES = 64


def permute_and_flip(costs: np.ndarray, rate: Fraction, *, words: Words = operating_system_words) -> int:
    """The place of a cheap candidate: the noisy minimum with exponential noise of scale 1 / rate (Ding et al. 2021).

    Candidates are visited in random order, and the first whose coin falls true, with probability exp(-rate (cost - least)), is
    taken. That is any of those with true coins, each as likely. Never a higher cost on average than the exponential mechanism's.

    Args:
        costs: private; int64 [m].
        rate: per unit of cost.
        words: source of independent 64-bit words.
    """
    taken = np.flatnonzero(survives(rate, costs - costs.min(), words=words))
    return int(taken[uniform_below(np.array([taken.size]), words=words)[0]])


def exponential_mechanism(costs: np.ndarray, rate: Fraction, *, words: Words = operating_system_words) -> int:
    """The place of a cheap candidate, each with a probability proportional to exp(-rate x cost); arguments as above.

    Candidates are proposed, each as likely, until a coin of probability exp(-rate (cost - least)) falls true.
    """
    gaps = costs - costs.min()
    while True:
        tried = uniform_below(np.full(_TRIES, costs.size), words=words)
        taken = np.flatnonzero(survives(rate, gaps[tried], words=words))
        if taken.size:
            return int(tried[taken[0]])
