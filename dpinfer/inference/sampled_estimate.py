"""Estimates that carry draws: of the errors in simulated releases, or from a posterior."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer._pytree import pytree, static
from dpinfer.domain import Domain
from dpinfer.inference.estimate import over_cells
from dpinfer.queries.base import Array


@final
@pytree
class SampledAnswers:
    """Answers with what their errors were in simulated releases, or are in draws from a posterior.

    Attributes:
        values: [m]; or of another shape, and so is what follows.
        errors: [num_draws, m].
    """

    values: Array
    errors: Array

    @property
    def bias(self) -> jax.Array:
        """The mean of the errors, [m]; 0 for a posterior."""
        return jnp.asarray(self.errors).mean(axis=0)

    @property
    def stddev(self) -> jax.Array:
        """The standard deviation of the errors, [m]."""
        return jnp.asarray(self.errors).std(axis=0)

    def interval(self, level: Any = 0.95, *, joint: bool = False) -> tuple[Array, Array]:
        """Lower and upper ends, [m] each: values less the upper and the lower quantile of the errors.

        Of a posterior these are its own quantiles. With ``joint=True`` all of them together: values - bias -+ c stddev, c the
        quantile of the largest deviation from the bias in these units.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        errors = jnp.asarray(self.errors)
        if not joint:
            tail = (1 - level) / 2
            return self.values - jnp.quantile(errors, 1 - tail, axis=0), self.values - jnp.quantile(errors, tail, axis=0)
        spread = self.stddev
        unit = jnp.where(spread > 0, spread, 1.0)[None]
        deviations = jnp.abs((errors - self.bias[None]) / unit).reshape(errors.shape[0], -1)
        largest = deviations.max(axis=1, initial=0.0)
        half = jnp.quantile(largest, level) * spread
        return self.values - self.bias - half, self.values - self.bias + half


@final
@pytree
class Sampling:
    """How a posterior was sampled, and how well.

    Attributes:
        method: "nuts", "svi" or "laplace".
        num_chains: chains, whose draws follow each other.
        num_draws: draws of each chain.
        num_steps: gradients of all chains after the warm-up; steps of the fit otherwise.
        converged: of the fit: whether its loss had stopped falling, or a mode was found; of chains: whether every r_hat is below
            1.05 and no draw divergent.
        r_hat: [n], split r-hat of each cell: by which factor its standard deviation may shrink if chains go on; 1 where a cell
            does not vary. None inside jit, and where draws are independent.
        ess: [n], to how many independent draws those of each cell are worth. None as above.
        site_r_hat, site_ess: the same of each site that was kept.
        divergences: draws whose path broke off, where the posterior is too steep for the step. None but for chains.
        accept: [num_chains], the mean probability of acceptance. None but for chains.
        losses: minus the evidence lower bound, the mean of each stretch of some 250 steps, nan where it had stopped; None but for
            "svi".
    """

    method: str = static()
    num_chains: int = static()
    num_draws: int = static()
    num_steps: Any
    converged: Any
    r_hat: Any = None
    ess: Any = None
    site_r_hat: Any = None
    site_ess: Any = None
    divergences: Any = None
    accept: Any = None
    losses: Any = None


@final
@pytree
class SampledEstimate:
    """An estimate of the cells with draws of its error.

    Attributes:
        cells: [n]; of a posterior its mean.
        errors: [num_draws, n], of a bootstrap the estimate of each simulated release less the cells it was simulated from; of a
            posterior its mean less each draw.
        sites: of a posterior's model, the draws of each site that was kept, [num_draws, ...] each.
        sampling: how it was sampled, and how well; None if there is nothing to say.
        domain: what the cells mean, if the release said.
    """

    cells: Array
    errors: Array
    sites: Any = None
    sampling: Sampling | None = None
    domain: Domain | None = static(default=None)

    @property
    def draws(self) -> Array:
        """The cells less each error, [num_draws, n]: draws from a posterior."""
        return self.cells[None] - self.errors

    def answer(self, workload: Any) -> SampledAnswers:
        """Sums of the cells and of their errors."""
        queries = over_cells(workload, self.cells.shape[0])
        return SampledAnswers(jnp.asarray(queries @ self.cells), jnp.asarray(queries @ jnp.asarray(self.errors).T).T)

    def dataset(self, domain: Domain | None = None) -> Any:
        """The draws as an xarray Dataset: ``cells`` by chain, draw and the axes of the domain, and the sites that were kept.

        A site of the model that is called "cells" is left out.

        Args:
            domain: of as many cells; left out, the release's, or one axis "cell".

        Raises:
            ValueError: if xarray is not installed (the extra ``posterior``), or the domain has another number of cells.
        """
        try:
            import xarray
        except ImportError:
            raise ValueError("A Dataset needs xarray: pip install 'dpinfer[posterior]'.") from None
        domain = self.domain if domain is None else domain
        size = self.cells.shape[0]
        if domain is not None and domain.size != size:
            raise ValueError(f"domain must have the estimate's {size} cells, got {domain.size}.")
        chains = 1 if self.sampling is None else self.sampling.num_chains
        axes: dict[str, Any] = {"cell": np.arange(size)} if domain is None else {n: a.labels for n, a in domain.axes.items()}
        if taken := {"chain", "draw", "cells", *(self.sites or {})} & axes.keys():
            raise ValueError(f"An axis must not be called {', '.join(sorted(taken))}, which is what the Dataset has.")

        def by_chain(draws: Any) -> np.ndarray:
            host = np.asarray(draws)
            return host.reshape(chains, -1, *host.shape[1:])

        cells = by_chain(self.draws)
        shape = [len(labels) for labels in axes.values()]
        variables: dict[str, Any] = {"cells": (("chain", "draw", *axes), cells.reshape(*cells.shape[:2], *shape))}
        for name, draws in (self.sites or {}).items():
            if name in variables:
                continue
            values = by_chain(draws)
            variables[name] = (("chain", "draw", *(f"{name}_{i}" for i in range(values.ndim - 2))), values)
        coordinates = {"chain": np.arange(chains), "draw": np.arange(cells.shape[1])} | axes
        attributes = {} if self.sampling is None else {"method": self.sampling.method}
        return xarray.Dataset(variables, coordinates, attributes)

    def __repr__(self) -> str:
        shape: Any = getattr(self.errors, "shape", None)
        return f"SampledEstimate(errors of shape {shape})"
