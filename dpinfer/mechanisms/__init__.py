"""The only code that sees cells."""

from dpinfer.mechanisms.linear import measure, simulate

__all__ = ["measure", "simulate"]
