"""Axes: the bins that one attribute of a record falls into."""

from dpinfer.axes.base import Axis

__all__ = ["Axis"]
