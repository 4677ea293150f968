"""Bayesian models of histograms in numpyro, one a file; imported as ``dpinfer.models``."""
