"""How to spend a budget: on the levels of a tree, on the rows of any strategy, on a strategy made for the workload."""

from dpinfer.allocation.group_levels import GroupLevels, group_levels
from dpinfer.allocation.level_budgets import level_budgets
from dpinfer.allocation.optimize import Allocation, optimize
from dpinfer.allocation.templates import eigenvalue_strategy, p_identity

__all__ = ["Allocation", "GroupLevels", "eigenvalue_strategy", "group_levels", "level_budgets", "optimize", "p_identity"]
