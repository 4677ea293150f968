"""Whether posteriors and intervals are right: ranks of the truth among draws, and how often intervals cover."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._progress import reporter
from dpinfer.inference.estimate import over_cells
from dpinfer.measurement import Measurement
from dpinfer.mechanisms import simulate
from dpinfer.queries import Queries
from dpinfer.scales import float_scale, one_budget

# Sites of more numbers are not followed: a histogram each would say little, and of cells one is drawn at random.
_MOST_NUMBERS = 8
# Problems that are drawn together, and how often it is tried.
_AT_ONCE, _MOST_ROUNDS = 256, 400
# A histogram of ranks has at most so many bins, each of so many problems at least.
_MOST_BINS, _LEAST_COUNT = 16, 10


@final
@dataclass(frozen=True)
class Calibration:
    """Where the truth was among draws from posteriors, in problems drawn from the prior.

    If the posteriors are right, each rank is equally likely. Ranks heaped in the middle: the posteriors are too wide; at both
    ends: too narrow; at one end: biased.

    Attributes:
        ranks: by the name of the quantity, int64 [num_problems]: how many draws were below the truth, from 0 to num_draws.
        num_draws: draws of each posterior that the truth was compared with.
        converged: [num_problems], what the inference itself said.
    """

    ranks: dict[str, np.ndarray]
    num_draws: int
    converged: np.ndarray

    @property
    def num_problems(self) -> int:
        return self.converged.size

    @property
    def num_bins(self) -> int:
        """Bins of the histograms: 16, or so many that some ten problems fall into each, but no more than there are ranks."""
        return min(self.num_draws + 1, _MOST_BINS, max(2, self.num_problems // _LEAST_COUNT))

    def _bins(self, ranks: np.ndarray) -> np.ndarray:
        return np.bincount(ranks * self.num_bins // (self.num_draws + 1), minlength=self.num_bins)

    @property
    def shares(self) -> np.ndarray:
        """What part of all ranks is in each bin, [num_bins]: the same, if num_bins divides their number."""
        return self._bins(np.arange(self.num_draws + 1)) / (self.num_draws + 1)

    def histogram(self, quantity: str) -> np.ndarray:
        """In how many problems the rank was in each bin, int64 [num_bins]."""
        return self._bins(self.ranks[quantity])

    @property
    def p_values(self) -> dict[str, float]:
        """Of a chi-squared test that the ranks are uniform, by quantity. With k quantities, look at k times the least."""
        from scipy.stats import chisquare

        expected = self.shares * self.num_problems
        return {name: float(chisquare(self.histogram(name), expected).pvalue) for name in self.ranks}

    def coverage(self, level: Any) -> dict[str, tuple[float, float]]:
        """How often the central interval of the posterior held the truth, by quantity, and its standard error.

        A rank stands for the whole step of the distribution function that it is, so that the expected share is ``level`` for
        any number of draws.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        steps = self.num_draws + 1
        found = {}
        for name, ranks in self.ranks.items():
            start, stop = np.maximum(ranks / steps, (1 - level) / 2), np.minimum((ranks + 1) / steps, (1 + level) / 2)
            inside = np.maximum(stop - start, 0.0) * steps
            found[name] = float(inside.mean()), float(inside.std(ddof=1) / inside.size**0.5)
        return found

    def table(self, levels: Sequence[float] = (0.5, 0.9)) -> dict[str, np.ndarray]:
        """Columns, a row a quantity: "quantity", "p_value", and by level "coverage_90", "standard_error_90"."""
        columns = {"quantity": np.array(list(self.ranks)), "p_value": np.array(list(self.p_values.values()))}
        for level in levels:
            shares = np.array(list(self.coverage(level).values()))
            columns |= {f"coverage_{100 * level:g}": shares[:, 0], f"standard_error_{100 * level:g}": shares[:, 1]}
        return columns


def simulation_based_calibration(
    strategy: Queries,
    model: Callable[[], Any],
    infer: Callable[[Measurement, jax.Array], Any],
    *,
    epsilon: Any = None,
    rho: Any = None,
    level_epsilons: Any = None,
    level_rhos: Any = None,
    noise: str = "laplace",
    row_weights: Any = None,
    neighbors: str = "add_remove",
    key: jax.Array,
    num_problems: int = 200,
    num_draws: int = 63,
    quantities: Mapping[str, Callable[[jax.Array], Any]] | None = None,
    accept: Callable[[Measurement], Any] | None = None,
    compiled: bool = True,
    progress: Any = False,
) -> Calibration:
    """Whether an inference gives the posterior under a model: truth is drawn from the model, measured, inferred, and ranked.

    The rank of the truth among draws from its exact posterior is uniform, whatever the model, the strategy and the noise. What
    is ranked: the model's sites of up to 8 numbers that ``infer`` returns, "a cell" (one at random in each problem), "total",
    "largest" and "likelihood" (log density of the noisy values: without it an inference that returns the prior would pass), and
    what ``quantities`` adds.

    Args:
        strategy: what is measured.
        model: a numpyro model that returns the cells, as for ``inference.posterior``; its draws are the truth.
        infer: from a Measurement and a key to an estimate with ``draws`` [draws, n] and perhaps ``sites``, such as
            ``lambda m, key: posterior(m, model, key=key, num_draws=250)``, or to the draws themselves. Another model in it
            shows what a wrong prior does.
        epsilon, rho, level_epsilons, level_rhos, noise, row_weights, neighbors: as in :func:`dpinfer.simulate`.
        key: a typed key.
        num_problems: how many truths.
        num_draws: draws of each posterior to compare with, evenly spaced among those that ``infer`` returns, which should be
            worth as many independent ones; ranks fall into equal bins best if num_draws + 1 is a power of two.
        quantities: by name, numbers that depend on the cells, [n].
        accept: whether to keep a problem, by its Measurement alone; ranks stay uniform whatever it says, since given the
            noisy values nothing else is known. For priors so wide that most problems are not of interest.
        compiled: whether ``infer`` runs under jit, where it is compiled once; problems share the processor's cores.
        progress: whether to show a bar on standard error, or a function of (problems done, problems in all).

    Cost: num_problems inferences.

    Reference: Talts et al. 2018 (ranks); Modrák et al. 2025 (the likelihood as a quantity, rejection by the data).

    Raises:
        ValueError: if an argument is wrong, or ``accept`` keeps hardly any problem.
    """
    num_problems = _checks.integer("num_problems", num_problems, least=2)
    num_draws = _checks.integer("num_draws", num_draws, least=1)
    taken = {"a cell", "total", "largest", "likelihood"} & set(quantities or {})
    if taken:
        raise ValueError(f"quantities must have names of their own, got {', '.join(map(repr, sorted(taken)))}.")
    release = _simulation(strategy, epsilon, rho, level_epsilons, level_rhos, noise, row_weights, neighbors)
    drawing, ranking = jax.random.split(_checked(key))
    truths, cells, values = _drawn_problems(model, release, accept, drawing, num_problems)

    def rank(truth: Any, key: jax.Array) -> Any:
        sites, cells, values = truth
        inferring, choosing, breaking = jax.random.split(key, 3)
        measurement = release(values)
        found = infer(measurement, inferring)
        draws = jnp.asarray(getattr(found, "draws", found))
        if draws.ndim != 2 or draws.shape[1] != cells.size or draws.shape[0] < num_draws:
            raise ValueError(
                f"infer must return at least num_draws={num_draws} draws of {cells.size} cells, got shape {list(draws.shape)}."
            )
        which = np.linspace(0, draws.shape[0] - 1, num_draws).round().astype(int)
        draws = draws[which]
        compared = _of_cells(measurement, jax.random.randint(choosing, (), 0, cells.size), quantities or {})
        pairs = {name: (jax.lax.map(number, draws), number(cells)) for name, number in compared.items()}
        own = getattr(found, "sites", None) or {}
        for name, value in sites.items():
            if name in own and value.size <= _MOST_NUMBERS:
                pairs |= _by_number(name, jnp.asarray(own[name])[which], value)
        ranks = {}
        for number, (name, (sample, value)) in enumerate(pairs.items()):
            ties = (sample == value).sum()
            above = jax.random.randint(jax.random.fold_in(breaking, number), (), 0, ties + 1)
            ranks[name] = (sample < value).sum() + above
        sampling = getattr(found, "sampling", None)
        return ranks, jnp.asarray(True if sampling is None else sampling.converged) & jnp.isfinite(draws).all()

    found = _one_by_one(rank, (truths, cells, values), ranking, num_problems, compiled, progress)
    ranks = {name: np.array([ranks[name] for ranks, _ in found], dtype=np.int64) for name in found[0][0]}
    return Calibration(ranks, num_draws, np.array([bool(converged) for _, converged in found]))


@final
@dataclass(frozen=True)
class SimulatedCoverage:
    """How often intervals covered the true answers, in simulated releases of one truth.

    Attributes:
        levels: what the intervals say, [levels].
        share: of answers that are inside, [levels].
        standard_error: of ``share``, from how releases differ (answers of one release err together).
        width: mean width of an interval, [levels].
        answer_share: of releases in which each answer was inside, [levels, m].
        num_releases: how many.
    """

    levels: np.ndarray
    share: np.ndarray
    standard_error: np.ndarray
    width: np.ndarray
    answer_share: np.ndarray
    num_releases: int


def simulate_coverage(
    strategy: Queries,
    infer: Callable[[Measurement, jax.Array], Any],
    truth: Any,
    workload: Any,
    *,
    epsilon: Any = None,
    rho: Any = None,
    level_epsilons: Any = None,
    level_rhos: Any = None,
    noise: str = "laplace",
    row_weights: Any = None,
    neighbors: str = "add_remove",
    levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95),
    joint: bool = False,
    whole: bool = False,
    key: jax.Array,
    num_releases: int = 200,
    compiled: bool = False,
    progress: Any = False,
) -> SimulatedCoverage:
    """How often an estimator's intervals cover, over simulated releases of one truth.

    Intervals of least squares cover at their level for any truth; those of a posterior for truths that are as the prior says
    (:func:`simulation_based_calibration`), and this says what they do for one that is not drawn from it.

    Args:
        strategy: what is measured.
        infer: from a Measurement and a key to an estimate whose ``answer(workload)`` has ``interval(level)``:
            ``lambda m, _: least_squares(m)``.
        truth: [n]; not private here.
        workload: the answers, queries of n cells or a matrix [m, n].
        epsilon, rho, level_epsilons, level_rhos, noise, row_weights, neighbors: as in :func:`dpinfer.simulate`.
        levels: of the intervals, between 0 and 1.
        joint: whether an interval counts as covering where all of a release do, by ``interval(level, joint=True)``.
        whole: whether ends are rounded to whole numbers first: a continuous posterior has a count k between k - 1/2 and k + 1/2.
        key: a typed key.
        num_releases: how many.
        compiled: whether ``infer`` and its intervals run under jit, once compiled, on all cores. Laws of errors are exact only
            outside (``answers.auto_method``).
        progress: whether to show a bar on standard error, or a function of (releases done, releases in all).

    Cost: num_releases inferences.
    """
    num_releases = _checks.integer("num_releases", num_releases, least=2)
    asked = np.asarray(levels, dtype=float)
    if asked.ndim != 1 or not asked.size or not ((asked > 0) & (asked < 1)).all():
        raise ValueError(f"levels must be numbers between 0 and 1, got {levels!r}.")
    queries = over_cells(workload, strategy.shape[1])
    cells = np.asarray(truth, dtype=float)
    if cells.shape != (strategy.shape[1],):
        raise ValueError(f"truth must have shape [{strategy.shape[1]}], got {list(cells.shape)}.")
    _checks.finite("truth", cells)
    budgets = (epsilon, rho, level_epsilons, level_rhos)
    release = _simulation(strategy, *budgets, noise, row_weights, neighbors)
    true = np.asarray(queries @ cells)
    options = {"joint": True} if joint else {}

    def cover(_: Any, key: jax.Array) -> Any:
        measuring, inferring = jax.random.split(key)
        answers = infer(release.of(jnp.asarray(cells), measuring), inferring).answer(queries)
        ends = [answers.interval(level, **options) for level in asked.tolist()]
        xp = jnp if compiled else np
        lower, upper = (xp.stack([xp.asarray(pair[side]) for pair in ends]) for side in (0, 1))
        lower, upper = (xp.round(lower), xp.round(upper)) if whole else (lower, upper)
        inside = (lower <= true[None]) & (true[None] <= upper)
        inside = xp.broadcast_to(inside.all(axis=1, keepdims=True), inside.shape) if joint else inside
        return inside, (upper - lower).mean(axis=1)

    found = _one_by_one(cover, (), _checked(key), num_releases, compiled, progress)
    inside = np.array([inside for inside, _ in found])
    shares = inside.mean(axis=2)
    return SimulatedCoverage(
        asked,
        shares.mean(axis=0),
        shares.std(axis=0, ddof=1) / num_releases**0.5,
        np.mean([width for _, width in found], axis=0),
        inside.mean(axis=0),
        num_releases,
    )


class _Simulation:
    """Simulated measurements of one strategy, budget and law."""

    def __init__(self, strategy: Queries, kind: str, value: Any, noise: str, row_weights: Any, neighbors: str):
        self.strategy = strategy
        self.settings = {kind: value, "noise": noise, "row_weights": row_weights, "neighbors": neighbors}
        order = 1 if kind.endswith(("epsilon", "epsilons")) else 2
        self.law = "gaussian" if order == 2 else noise
        self.scale = np.asarray(float_scale(strategy, kind, value, row_weights, order, neighbors))

    def of(self, cells: jax.Array, key: jax.Array) -> Measurement:
        return simulate(cells, self.strategy, key=key, **self.settings)

    def __call__(self, values: Any) -> Measurement:
        return Measurement(self.strategy, values, self.law, self.scale)


def _simulation(strategy: Any, epsilon: Any, rho: Any, level_epsilons: Any, level_rhos: Any, *law: Any) -> _Simulation:
    kind, value = one_budget(epsilon, rho, level_epsilons, level_rhos)
    for amount in np.atleast_1d(np.asarray(value, dtype=float)).tolist():
        _checks.budget(kind, amount, zero=kind.startswith("level"))
    return _Simulation(strategy, kind, value, *law)


def _checked(key: Any) -> jax.Array:
    _checks.typed_key(key)
    return key


def _drawn_problems(model: Any, release: _Simulation, accept: Any, key: jax.Array, num_problems: int) -> Any:
    """Sites, cells and noisy values of problems that are accepted, a row each."""
    from numpyro import handlers

    n = release.strategy.shape[1]

    def one(key: jax.Array) -> Any:
        drawing, measuring = jax.random.split(key)
        with handlers.trace() as trace, handlers.seed(rng_seed=drawing):
            cells = jnp.asarray(model())
        if cells.shape != (n,):
            raise ValueError(f"model must return the {n} cells of strategy, got shape {list(cells.shape)}.")
        sites = {
            name: jnp.asarray(site["value"])
            for name, site in trace.items()
            if site["type"] in ("sample", "deterministic") and not site.get("is_observed", False)
        }
        measurement = release.of(cells, measuring)
        is_kept = jnp.isfinite(jnp.asarray(measurement.values)).all()
        if accept is not None:
            is_kept = is_kept & accept(measurement)
        return (sites, cells, jnp.asarray(measurement.values)), is_kept

    draw = jax.jit(lambda keys: jax.lax.map(one, keys))
    kept, size = [], 0
    with jax.numpy_rank_promotion("allow"):  # which numpyro needs
        for number in range(_MOST_ROUNDS):
            problems, is_kept = draw(jax.random.split(jax.random.fold_in(key, number), _AT_ONCE))
            rows = np.flatnonzero(np.asarray(is_kept))
            kept.append(jax.tree.map(lambda x, rows=rows: np.asarray(x)[rows], problems))
            size += rows.size
            if size >= num_problems:
                return jax.tree.map(lambda *parts: np.concatenate(parts)[:num_problems], *kept)
    tried = _MOST_ROUNDS * _AT_ONCE
    raise ValueError(f"accept must keep more problems: of {tried} drawn from model it kept {size}, {num_problems} are needed.")


def _of_cells(measurement: Measurement, which: jax.Array, more: Mapping[str, Callable[[jax.Array], Any]]) -> dict[str, Any]:
    """The quantities that depend on cells, [n], and the noisy values."""
    from dpinfer.inference.posterior_methods.observed import observed

    likelihood = observed(measurement)
    return {
        "a cell": lambda cells: cells[which],
        "total": jnp.sum,
        "largest": jnp.max,
        "likelihood": likelihood.log_likelihood,
        **more,
    }


def _by_number(name: str, sample: jax.Array, value: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Draws of a site, [draws, ...], and its true value, a pair for each of its numbers."""
    if not value.ndim:
        return {name: (sample, value)}
    return {f"{name}[{', '.join(map(str, place))}]": (sample[:, *place], value[place]) for place in np.ndindex(*value.shape)}


def _one_by_one(
    function: Callable[[Any, jax.Array], Any], problems: Any, key: jax.Array, size: int, compiled: bool, progress: Any
) -> list[Any]:
    """``function`` of each of some problems, rows of ``problems``, and a key of its own, as numpy arrays."""
    in_64_bit = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    one = jax.jit(function) if compiled else function
    tell = reporter(progress, size, "problems")
    lock = Lock()

    def run(row: int) -> Any:
        with jax.enable_x64(in_64_bit):  # which a thread does not inherit
            own = jax.tree.map(lambda x: jnp.asarray(x[row]), problems)
            found = jax.tree.map(np.asarray, one(own, jax.random.fold_in(key, row)))
        with lock:
            tell(1)
        return found

    try:
        if not compiled:
            return [run(row) for row in range(size)]
        first = run(0)  # compiles
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return [first, *pool.map(run, range(1, size))]
    finally:
        tell(None)
