"""Private cells behind a ledger."""

import pickle
from fractions import Fraction

import numpy as np
import pytest

import dpinfer as dp
from dpinfer.queries import Identity, Total, Tree


def test_questions_are_charged_and_refused_once_spent():
    private = dp.PrivateCells(np.arange(8), dp.Ledger(epsilon=0.3))
    for _ in range(3):
        release = private.measure(Identity(8), epsilon=0.1)
        assert release.epsilon == Fraction(1, 10)
    assert private.remaining == 0
    with pytest.raises(ValueError, match="Nothing was spent"):
        private.measure(Total(8), epsilon=1e-6)
    assert private.num_cells == 8


def test_answers_are_of_these_cells():
    source = np.array([1000, 0, 2000, 0])
    private = dp.PrivateCells(source, dp.Ledger(epsilon=100))
    source[:] = 0  # a copy was kept
    release = private.measure(Tree.complete(4, 2), epsilon=50)
    np.testing.assert_allclose(dp.least_squares(release).cells, [1000, 0, 2000, 0], atol=20)


def test_disjoint_parts_spend_in_parallel():
    ledger = dp.Ledger(epsilon=1)
    private = dp.PrivateCells(np.array([5000, 10, 20, 6000, 30]), ledger)
    first, second = private.partition([0, 1, 1, 0, 1])
    assert (first.num_cells, second.num_cells) == (2, 3)
    first.measure(Identity(2), epsilon=Fraction(1, 2))
    assert ledger.spent == Fraction(1, 2)
    second.measure(Identity(3), epsilon=Fraction(1, 4))
    second.measure(Total(3), epsilon=Fraction(1, 4))
    assert ledger.spent == Fraction(1, 2)  # the two parts have spent a half each
    second.measure(Total(3), epsilon=Fraction(1, 4))
    assert ledger.spent == Fraction(3, 4)
    assert (first.remaining, second.remaining, private.remaining) == (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4))
    private.measure(Total(5), epsilon=Fraction(1, 4))
    assert (first.remaining, second.remaining) == (Fraction(1, 4), 0)
    with pytest.raises(ValueError, match="Nothing was spent"):
        second.measure(Total(3), epsilon=Fraction(1, 100))
    found = np.asarray(first.measure(Identity(2), epsilon=Fraction(1, 4)).values)
    np.testing.assert_allclose(found, [5000, 6000], atol=200)
    assert first.remaining == 0


def test_parts_of_parts():
    ledger = dp.Ledger(epsilon=1)
    left, right = dp.PrivateCells(np.arange(4), ledger).partition([0, 0, 1, 1])
    for leaf in (*left.partition([0, 1]), *right.partition([0, 1])):
        leaf.measure(Identity(1), epsilon=1)
    assert ledger.spent == 1


def test_every_parallel_release_has_the_loss_of_its_matrix():
    # All releases of the parts together, as one matrix over all cells: its loss is what the ledger was charged.
    ledger = dp.Ledger(epsilon=1)
    first, second = dp.PrivateCells(np.arange(4), ledger).partition([0, 0, 1, 1])
    losses = {0: Fraction(1, 3), 1: Fraction(1, 2)}
    for label, part in enumerate((first, second)):
        part.measure(Identity(2), epsilon=losses[label])
    columns = [losses[0], losses[0], losses[1], losses[1]]
    assert ledger.spent == max(columns)


def test_what_is_refused():
    private = dp.PrivateCells(np.arange(4), dp.Ledger(epsilon=1), neighbors="replace_one")
    with pytest.raises(ValueError, match="partition needs"):
        private.partition([0, 0, 1, 1])
    with pytest.raises(ValueError, match="ledger, neighbors belong to the PrivateCells"):
        private.measure(Identity(4), epsilon=1, ledger=dp.Ledger(epsilon=9), neighbors="add_remove")
    assert private.measure(Identity(4), epsilon=1).neighbors == "replace_one"
    private = dp.PrivateCells(np.arange(4), dp.Ledger(epsilon=1))
    for labels, message in (([0, 1], "one label for each"), ([0, 2, 2, 0], "without gaps"), ([0, -1, 0, 0], "without gaps")):
        with pytest.raises(ValueError, match=message):
            private.partition(labels)
    with pytest.raises(ValueError, match="kept in epsilon"):
        private.partition([0, 0, 1, 1])[0].measure(Identity(2), rho=1)
    with pytest.raises(ValueError, match="ledger must be"):
        dp.PrivateCells(np.arange(4), 1.0)
    with pytest.raises(ValueError, match="integer dtype"):
        dp.PrivateCells(np.ones(4), dp.Ledger(epsilon=1))
    with pytest.raises(ValueError, match="at least one"):
        dp.PrivateCells(np.ones((2, 2), dtype=int), dp.Ledger(epsilon=1))


def test_nothing_of_the_cells_is_shown():
    private = dp.PrivateCells(np.array([123456789]), dp.Ledger(epsilon=1))
    assert "123456789" not in repr(private)
    with pytest.raises(TypeError, match="not to be pickled"):
        pickle.dumps(private)
