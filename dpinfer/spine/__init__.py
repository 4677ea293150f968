"""Noisy counts of a census-size geography: exact least squares over a tree whose nodes hold many cells each."""

from dpinfer.spine.areas import AreaAnswers, Areas
from dpinfer.spine.certificate import Certificate
from dpinfer.spine.classes import Classes
from dpinfer.spine.schema import Query, Schema, pl94_persons, pl94_units
from dpinfer.spine.tree import Measured, TreeEstimate, Zeros, tree_least_squares

__all__ = [
    "AreaAnswers",
    "Areas",
    "Certificate",
    "Classes",
    "Measured",
    "Query",
    "Schema",
    "TreeEstimate",
    "Zeros",
    "pl94_persons",
    "pl94_units",
    "tree_least_squares",
]
