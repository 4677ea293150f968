"""Laws of noise: their moments, and samplers that are exact."""

from dpinfer.noise.moments import NAMES, scale_from_stddev, stddev

__all__ = ["NAMES", "scale_from_stddev", "stddev"]
