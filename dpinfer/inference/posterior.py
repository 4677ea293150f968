"""Posteriors of the cells under a numpyro model of one's own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._progress import reporter
from dpinfer.inference.nonnegative import solve, stated
from dpinfer.inference.sampled_estimate import SampledEstimate, Sampling
from dpinfer.release import as_measurement

if TYPE_CHECKING:  # numpyro takes a while to import; whoever measures does not need it
    from dpinfer.inference.posterior_methods.latent import Latent
    from dpinfer.inference.posterior_methods.start import Start

METHODS = ("nuts", "svi", "laplace")
_MAX_ENTRIES = 1 << 28
# Cells whose chains are looked at together.
_CELLS_AT_ONCE = 1024
# Largest r-hat of chains that have come together.
_ALIKE = 1.05


def posterior(
    measurement: Any,
    model: Callable[[], Any],
    *,
    method: str = "nuts",
    key: jax.Array,
    num_draws: int = 1000,
    num_chains: int | None = None,
    num_warmup: int | None = None,
    target_accept: float | None = None,
    dense_mass: bool | None = None,
    max_tree_depth: int | None = None,
    guide: Any = None,
    num_steps: int | None = None,
    learning_rate: Any = None,
    sites: Sequence[str] | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> SampledEstimate:
    """The posterior of the cells, given noisy answers to any queries, under a prior written as a numpyro model.

    ``model()`` draws whatever the prior is made of and returns the cells, [n], continuous::

        def model():
            rate = numpyro.sample("rate", dist.LogNormal(3, 2))
            with numpyro.plate("people", 64):
                return numpyro.sample("cells", dist.Gamma(0.5, 0.5 / rate))

    The likelihood is added: values = queries @ cells + noise, of any strategy and any of the four laws; discrete laws are
    continued between the whole numbers by their own formulas, since a sampler moves in small steps. Rows of scale 0 (known
    totals and other invariants, ``Measurement.with_exact``) are conditioned on: sampled as normal observations of a twentieth
    of the standard deviation that the noise leaves them, after which each draw is moved to where it keeps them, as cells
    depend on the counts over the draws, by factors where none is negative. Cells of a sum known to be 0 are 0. The model may
    have observed sites of its own. Names that start with "dpinfer." are reserved: the cells are ``dpinfer.cells``, the
    likelihood is ``dpinfer.values``, and the vector of all latent sites, shifted and scaled, is ``dpinfer.coordinates`` with
    the density ``dpinfer.density``.

    Every method starts where the model's cells are about those of non-negative least squares, in coordinates that the curvature
    there has scaled. What comes out is right under the model: intervals cover on average over cells that are as the prior says.

    Args:
        measurement: of any strategy; a Release's domain is kept for ``dataset``.
        model: takes no arguments; with continuous latent sites only. The same function object compiles once.
        method: "nuts" (Markov chains: right in the limit, some 1e4 to 1e6 gradients), "svi" (the nearest law of a
            family: quick, for many cells or many problems; it tends to be too sure) or "laplace" (a normal law at the mode, of up
            to 8,192 latent numbers: quick and rough; kinks of Laplace laws are rounded).
        key: a typed key.
        num_draws: draws that are kept, of each chain.
        num_chains, num_warmup, target_accept, dense_mass, max_tree_depth: of "nuts": 4 chains, as many steps of adaptation
            as draws, and numpyro's 0.8, False and 10.
        guide: of "svi": "normal" (independent; the default), "low_rank" or "multivariate"; or a function of a model that returns
            a numpyro guide with ``sample_posterior``, such as ``numpyro.infer.autoguide.AutoIAFNormal``.
        num_steps: the most steps of "svi" (5,000; it stops where the loss no longer falls) or of the search for the mode (2,000).
        learning_rate: of "svi", a number (0.05 if left out) that is reduced where the loss stalls, or an optax schedule; in
            scaled coordinates.
        sites: names of the model's sites whose draws are kept; left out, those of fewer numbers than there are cells.
        progress: whether to show a bar on standard error, or a function of (steps done, steps in all); eager only.

    Returns:
        A :class:`SampledEstimate`: ``cells`` (means), ``draws``, ``answer(workload)`` with intervals, single and joint,
        ``sites``, ``sampling`` (r-hat, effective sample sizes, divergences, losses), ``dataset()`` for xarray.

    Cost: a gradient is a product with the queries, one with their transpose and the model's own. 4,096 cells by "nuts" take
    minutes, 65,536 by "svi" as well. Runs under jit and vmap (with a key a problem: many fits in one call), where r-hat is left
    out and which scales are 0 must be known.

    Reference: Hoffman and Gelman 2014 (NUTS); Kucukelbir et al. 2017 (automatic guides); Gorinova, Moore and Hoffman 2020 (how
    normal sites are written); Deville and Särndal 1992 (moving by factors).

    Raises:
        ValueError: if the model is none as above, an argument is wrong or of another method, or the density is not finite where
            it starts.
    """
    from dpinfer.inference.posterior_methods.latent import latent_of
    from dpinfer.inference.posterior_methods.observed import observed
    from dpinfer.inference.posterior_methods.start import started

    domain = getattr(measurement, "domain", None)
    measurement = as_measurement(measurement)
    _checks.exact_in_float("values", measurement.values)
    _checks.choice("method", method, METHODS)
    _checks.typed_key(key)
    given = {
        "num_chains": num_chains,
        "num_warmup": num_warmup,
        "target_accept": target_accept,
        "dense_mass": dense_mass,
        "max_tree_depth": max_tree_depth,
        "guide": guide,
        "num_steps": num_steps,
        "learning_rate": learning_rate,
    }
    settings = _settings(method, _checks.integer("num_draws", num_draws, least=4), given)
    n = measurement.queries.shape[1]
    draws_in_all = num_draws * settings.get("num_chains", 1)
    if draws_in_all * n > _MAX_ENTRIES:
        raise ValueError(f"draws x cells must be at most 2**28, got {draws_in_all} x {n}: take fewer draws or chains.")
    with jax.numpy_rank_promotion("allow"):  # which numpyro needs
        latent = latent_of(model, n)
        names = _kept(latent, sites)

        first, fit = jax.random.split(key)
        start = started(
            observed(measurement),
            solve(stated(measurement)).cells,
            first,
            latent=latent,
            dense=method != "svi",
            centered=method != "laplace",
        )
        if _checks.is_concrete(start) and not np.isfinite(np.asarray(start.origin)).all():
            raise ValueError("model must have a finite density near the noisy values; its latent sites came out as nan.")
        if _checks.is_concrete(start) and not np.isfinite(float(_potential(start, latent=latent))):
            raise ValueError(
                "model must have a finite log density at its own medians and where its cells are near the noisy values; it is "
                "not: look for priors that leave their support."
            )
        run = {"nuts": _by_chains, "svi": _by_fit, "laplace": _at_mode}[method]
        coordinates, sampling = run(latent, start, fit, settings, progress)
        found = _values(start, coordinates.reshape(-1, latent.size), latent=latent, names=names)
        draws = found.pop("dpinfer.cells")
        draws = _exactly(measurement, draws)
        sampling = replace(sampling, converged=sampling.converged & jnp.isfinite(draws).all())
        if method == "nuts" and _checks.is_concrete(draws):
            sampling = _diagnosed(sampling, draws, found)
        cells = draws.mean(axis=0)
        return SampledEstimate(cells, cells[None] - draws, found, sampling, domain)


_OPTIONS: dict[str, dict[str, Any]] = {
    "nuts": {"num_chains": 4, "num_warmup": None, "target_accept": 0.8, "dense_mass": False, "max_tree_depth": 10},
    "svi": {"guide": "normal", "num_steps": 5000, "learning_rate": None},
    "laplace": {"num_steps": 2000},
}


def _settings(method: str, num_draws: int, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a method, seen to be good, with ``num_draws``."""
    from dpinfer.inference.posterior_methods.svi import GUIDES

    options = _OPTIONS[method]
    for name, value in given.items():
        if value is not None and name not in options:
            others = ", ".join(repr(other) for other, names in _OPTIONS.items() if name in names)
            raise ValueError(f"{name} is for method={others}, got it with method={method!r}: leave it out.")
    found = {name: options[name] if given[name] is None else given[name] for name in options} | {"num_draws": num_draws}
    if method == "nuts" and found["num_warmup"] is None:
        found["num_warmup"] = num_draws
    for name in ("num_chains", "num_warmup", "num_steps", "max_tree_depth"):
        if name in found:
            found[name] = _checks.integer(name, found[name], least=1)
    if "target_accept" in found and not 0 < found["target_accept"] < 1:
        raise ValueError(f"target_accept must be between 0 and 1, got {found['target_accept']!r}.")
    if "guide" in found and not callable(found["guide"]):
        _checks.choice("guide", found["guide"], GUIDES)
    rate = found.get("learning_rate")
    if rate is not None and not callable(rate) and not (isinstance(rate, (int, float, np.number)) and rate > 0):
        raise ValueError(f"learning_rate must be a positive number or an optax schedule, got {rate!r}.")
    return found


def _kept(latent: "Latent", sites: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the sites whose draws are kept."""
    sizes = {name: int(np.prod(shape, dtype=np.int64)) for name, shape in latent.recorded}
    if sites is None:
        return tuple(name for name, size in sizes.items() if size < latent.num_cells)
    unknown = [sites] if isinstance(sites, str) else [name for name in sites if name not in sizes]
    if unknown:
        raise ValueError(f"sites must list names of the model's sites ({', '.join(sizes)}), got {', '.join(map(repr, unknown))}.")
    return tuple(sites)


def _by_chains(latent: "Latent", start: "Start", key: jax.Array, settings: dict[str, Any], progress: Any) -> tuple[Any, Sampling]:
    from dpinfer.inference.posterior_methods.nuts import Settings, sampled

    chains = settings.pop("num_chains")
    static = Settings(**settings)
    tell = reporter(progress, chains * (static.num_warmup + static.num_draws), "steps")
    try:
        found = sampled(latent, start, jax.random.split(key, chains), static, tell)
    finally:
        tell(None)
    divergences = found.divergent.sum()
    sampling = Sampling(
        "nuts",
        chains,
        static.num_draws,
        found.num_steps.sum(),
        divergences == 0,
        divergences=divergences,
        accept=found.accept.mean(axis=1),
    )
    return found.coordinates, sampling


def _by_fit(latent: "Latent", start: "Start", key: jax.Array, settings: dict[str, Any], progress: Any) -> tuple[Any, Sampling]:
    from dpinfer.inference.posterior_methods.svi import Settings, drawn, fitted

    num_draws = settings.pop("num_draws")
    static = Settings(**settings)
    fit, draw = jax.random.split(key)
    tell = reporter(progress, static.num_steps, "steps")
    try:
        found = fitted(latent, start, fit, static, tell)
    finally:
        tell(None)
    draws = drawn(start, found.params, draw, latent=latent, settings=static, num_draws=num_draws)
    return draws, Sampling("svi", 1, num_draws, found.num_steps, found.converged, losses=found.losses)


def _at_mode(latent: "Latent", start: "Start", key: jax.Array, settings: dict[str, Any], progress: Any) -> tuple[Any, Sampling]:
    from dpinfer.inference.posterior_methods.laplace import MAX_SIZE, approximated

    if latent.size > MAX_SIZE:
        raise ValueError(f"method='laplace' takes up to {MAX_SIZE} latent numbers, model has {latent.size}: use 'svi' or 'nuts'.")
    tell = reporter(progress, settings["num_steps"], "steps")
    try:
        mode, draws = approximated(start, key, latent=latent, **settings)
        tell(settings["num_steps"])
    finally:
        tell(None)
    return draws, Sampling("laplace", 1, settings["num_draws"], mode.num_steps, mode.converged)


@partial(jax.jit, static_argnames="latent")
def _potential(start: "Start", *, latent: "Latent") -> jax.Array:
    return start.potential(latent, jnp.zeros_like(start.origin))


@partial(jax.jit, static_argnames=("latent", "names"))
def _values(start: "Start", coordinates: jax.Array, *, latent: "Latent", names: tuple[str, ...]) -> dict[str, jax.Array]:
    """The cells and the sites that are kept, at each of some coordinates, [num_draws, size]."""

    def one(u: jax.Array) -> dict[str, jax.Array]:
        found = start.values(latent, u)
        return {name: found[name] for name in ("dpinfer.cells", *names)}

    return jax.lax.map(one, coordinates)


def _exactly(measurement: Any, draws: jax.Array) -> jax.Array:
    """Draws that keep the exact counts."""
    from dpinfer.inference.posterior_methods.observed import corrected

    given = stated(measurement)
    if not given.exact.shape[0]:
        return draws
    problem = given.problem()
    moved = corrected(draws, problem.rows, problem.known)
    if _checks.is_concrete(moved):
        known = np.asarray(problem.known)
        missed = np.abs(np.asarray(moved) @ np.asarray(problem.rows).T - known[None, :]).max(axis=0)
        row = int(missed.argmax())
        # A thousandth of a count, or of rounding in 32 bit.
        if not missed[row] <= 1e-3 * max(1.0, abs(known[row]) * 1e-3):
            raise ValueError(
                f"No cells of the model keep all exact counts: row {int(given.exact[row])}, which says {known[row]:g}, is missed "
                f"by up to {missed[row]:g}. Correct it, or give it a positive scale."
            )
    return moved


def _diagnosed(sampling: Sampling, draws: jax.Array, sites: dict[str, jax.Array]) -> Sampling:
    """With r-hat and effective sample sizes of chains."""
    cells = _chain_statistics(np.asarray(draws), sampling.num_chains)
    others = {name: _chain_statistics(np.asarray(x), sampling.num_chains) for name, x in sites.items()}
    largest = max(float(r_hat.max(initial=1.0)) for r_hat, _ in (cells, *others.values()))
    return replace(
        sampling,
        converged=bool(sampling.converged) and largest < _ALIKE,
        r_hat=cells[0],
        ess=cells[1],
        site_r_hat={name: r_hat for name, (r_hat, _) in others.items()},
        site_ess={name: ess for name, (_, ess) in others.items()},
    )


def _chain_statistics(draws: np.ndarray, num_chains: int) -> tuple[np.ndarray, np.ndarray]:
    """Split r-hat and effective sample size of each of some numbers, draws [num_chains x num_draws, ...]."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    shape = draws.shape[1:]
    flat = draws.reshape(num_chains, -1, int(np.prod(shape, dtype=np.int64)))
    r_hat, ess = np.ones(flat.shape[2]), np.full(flat.shape[2], float(draws.shape[0]))
    varies = np.flatnonzero(np.ptp(flat, axis=(0, 1)) > 0)
    for start in range(0, varies.size, _CELLS_AT_ONCE):
        place = varies[start : start + _CELLS_AT_ONCE]
        with np.errstate(divide="ignore", invalid="ignore"):
            r_hat[place] = np.nan_to_num(split_gelman_rubin(flat[:, :, place]), nan=np.inf)
            ess[place] = effective_sample_size(flat[:, :, place])
    return r_hat.reshape(shape), ess.reshape(shape)
