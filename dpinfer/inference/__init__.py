"""Estimators: pure post-processing, which never sees cells."""

from dpinfer.inference.answers import Answers
from dpinfer.inference.estimate import LinearEstimate
from dpinfer.inference.least_squares import least_squares

__all__ = ["Answers", "LinearEstimate", "least_squares"]
