"""What ``inference.posterior`` is made of: the likelihood, the model as a density of one vector, the start, and the methods."""
