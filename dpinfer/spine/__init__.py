"""Noisy counts of a census-size geography: exact least squares over a tree whose nodes hold many cells each."""

from dpinfer.spine.areas import AreaAnswers, Areas
from dpinfer.spine.budgets import LearnedShares, optimize_shares
from dpinfer.spine.certificate import Certificate
from dpinfer.spine.classes import Classes
from dpinfer.spine.product import Product, Units
from dpinfer.spine.product_estimate import ProductEstimate, prepare_messages, product_least_squares
from dpinfer.spine.schema import Query, Schema, pl94_persons, pl94_units
from dpinfer.spine.synthetic import Truth, write_product
from dpinfer.spine.tables import default_queries, write_tables
from dpinfer.spine.tree import Measured, TreeEstimate, Zeros, tree_least_squares
from dpinfer.spine.tree_shape import TreeShape
from dpinfer.spine.variances import mean_table_variances, query_precisions, table_variances

__all__ = [
    "AreaAnswers",
    "Areas",
    "Certificate",
    "Classes",
    "LearnedShares",
    "Measured",
    "Product",
    "ProductEstimate",
    "Query",
    "Schema",
    "TreeEstimate",
    "TreeShape",
    "Truth",
    "Units",
    "Zeros",
    "default_queries",
    "mean_table_variances",
    "optimize_shares",
    "pl94_persons",
    "pl94_units",
    "prepare_messages",
    "product_least_squares",
    "query_precisions",
    "table_variances",
    "tree_least_squares",
    "write_product",
    "write_tables",
]
