"""How to spend a budget: on the levels of a tree, on the rows of any strategy."""

from dpinfer.allocation.level_budgets import level_budgets

__all__ = ["level_budgets"]
