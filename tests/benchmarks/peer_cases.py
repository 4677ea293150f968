"""The workloads of ``peers.py``: for each our call, the calls that it stands beside, and how far their results agree."""

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, stats
from scipy.spatial.distance import pdist

import dpinfer as dp
from dpinfer.accuracy import best_branching, expected_error, range_variance
from dpinfer.inference import (
    isotonic_regression,
    maximum_entropy,
    mmse,
    nonnegative_least_squares,
    penalized_v_optimal,
    v_optimal,
)
from dpinfer.noise import LaplaceSum
from dpinfer.privacy import epsilon_of_rho
from dpinfer.queries import AllRange, Identity, Kronecker, Ranges, Total, Tree, VStack
from tests.benchmarks import isotonic, laws, posteriors, trees
from tests.benchmarks.least_squares import mbi_estimator, scipy_operator

Call = Callable[[], Any]


class Agreement(NamedTuple):
    """How near a peer's result is to ours, in words; whether that is as near as it should be."""

    words: str
    is_met: bool


@dataclass(frozen=True)
class Peer:
    """A call that solves the same problem.

    Attributes:
        prepare: makes the call; only asked where the modules are installed.
        agreement: of our result and the peer's.
        modules: what it imports.
        package: what ``pip install`` calls them.
        is_slow: takes more than two seconds, and is timed once.
    """

    prepare: Callable[[], Call]
    agreement: Callable[[Any, Any], Agreement]
    modules: Sequence[str] = ()
    package: str = ""
    is_slow: bool = False

    @property
    def missing(self) -> str | None:
        """What to type, if it is not installed."""
        for module in self.modules:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    importlib.import_module(module)
            except ImportError:
                return f"not installed: pip install {self.package}"
        return None


@dataclass(frozen=True)
class Problem:
    """One problem: ``ours`` makes our call, which compiles when it is first made."""

    ours: Callable[[], Call]
    peers: Mapping[str, Peer]


class Case(NamedTuple):
    """A workload and its size in words; the arguments that build it as it is timed, and at a size that takes no time."""

    workload: str
    size: str
    build: Callable[..., Problem]
    arguments: tuple[Any, ...]
    tiny: tuple[Any, ...]


def opendp() -> Any:
    found = importlib.import_module("opendp.prelude")
    found.enable_features("contrib")
    return found


def difference(limit: float, *, of: str = "largest value", either: Callable[[Any], Any] = np.asarray) -> Any:
    """The largest difference over the largest of our values."""

    def compare(ours: Any, theirs: Any) -> Agreement:
        ours, theirs = either(ours), either(theirs)
        off = float(np.abs(ours - theirs).max() / np.abs(ours).max())
        return Agreement(f"difference {off:.0e} of the {of}" if off else "the same", off <= limit)

    return compare


def objective(
    cost: Callable[[Any], float], limit: float, name: str = "objective", our_cost: Callable[[Any], float] | None = None
) -> Any:
    """By how much the peer's result is worse than ours, of what both make small; where solutions may differ."""

    def compare(ours: Any, theirs: Any) -> Agreement:
        above = cost(theirs) / (our_cost or cost)(ours) - 1
        return Agreement(f"{name} {above:+.0e} of ours" if above else f"the same {name}", abs(above) <= limit)

    return compare


def another(reason: str, cost: Callable[[Any], float]) -> Any:
    """Another problem, whose solution cannot fit better than ours; by how much it fits worse is told."""

    def compare(ours: Any, theirs: Any) -> Agreement:
        above = cost(theirs) / cost(ours) - 1
        return Agreement(f"another problem: {reason}; squares {above:+.0e} of ours", above > -1e-9)

    return compare


def complete_tree(n: int, branching: int, batch: int | None = None) -> Problem:
    tree = Tree.complete(n, branching)
    rows = tree.shape[0]
    values = np.random.default_rng(0).integers(0, 1000, (batch, rows) if batch else rows).astype(float)

    def ours() -> Call:
        one = lambda v: dp.least_squares(dp.Measurement(tree, v, "laplace", jnp.asarray(1.0))).cells  # noqa: E731
        run, given = jax.jit(jax.vmap(one) if batch else one), jnp.asarray(values)
        return lambda: run(given)

    by_sums = Peer(lambda: lambda: trees.numpy_two_passes(values, n, branching), difference(1e-12))
    return Problem(ours, {"numpy, reshaped sums by hand": by_sums})


def rooted_tree(n: int, branching: int) -> Problem:
    """As OpenDP takes it: integers, the root measured too."""
    tree = Tree.complete(n, branching, root=True)
    below = np.random.default_rng(0).integers(0, 1000, tree.shape[0] - 1).astype(float)

    def ours() -> Call:
        given = jnp.asarray(np.concatenate([[below[:branching].sum()], below]))
        run = jax.jit(lambda v: dp.least_squares(dp.Measurement(tree, v, "laplace", jnp.asarray(1.0))).cells)
        return lambda: run(given)

    def theirs() -> Call:
        run = trees.opendp_consistency(below, branching)
        assert run is not None
        return run

    return Problem(ours, {"OpenDP consistent_b_ary_tree": Peer(theirs, difference(1e-12), ("opendp.prelude",), "opendp")})


def cells_and_marginals(grid: tuple[int, ...]) -> Problem:
    n = int(np.prod(grid))
    parts = [Kronecker([Identity(k) if a == axis else Total(k) for a, k in enumerate(grid)]) for axis in range(len(grid))]
    strategy, operator = VStack([Identity(n), *parts]), scipy_operator(grid)
    rng = np.random.default_rng(0)
    values = operator.matvec(rng.poisson(20, n).astype(float)) + rng.normal(size=operator.shape[0])

    def ours() -> Call:
        run = jax.jit(lambda v: dp.least_squares(dp.Measurement(strategy, v, "gaussian", jnp.asarray(1.0))).cells)
        given = jnp.asarray(values)
        return lambda: run(given)

    def iterative() -> Call:
        from scipy.sparse.linalg import lsmr

        return lambda: lsmr(operator, values, atol=1e-12, btol=1e-12)[0]

    def theirs() -> Call:
        estimate = mbi_estimator(grid, values)
        names = tuple(f"axis_{axis}" for axis in range(len(grid)))
        return lambda: np.asarray(estimate().project(names).datavector())

    squares = lambda x: float(np.square(operator.matvec(np.asarray(x)) - values).sum())  # noqa: E731
    agreement = another("cells not negative, of largest entropy", squares)
    return Problem(
        ours,
        {
            "scipy lsmr, implicit matrix (ektelo's way)": Peer(iterative, difference(1e-8)),
            "mbi MirrorDescent, defaults": Peer(theirs, agreement, ("mbi",), "mbi", n > 10**5),
        },
    )


def nonnegative_tree(n: int, branching: int, is_small: bool = True) -> Problem:
    """Most cells are empty."""
    tree = Tree.complete(n, branching)
    rng = np.random.default_rng(1)
    cells = np.where(rng.uniform(size=n) < 0.2, rng.poisson(20, n), 0)
    values = np.asarray(tree @ cells) + rng.laplace(scale=4.0, size=tree.shape[0])
    levels = [n // size for size in tree.level_sizes[1:]]

    def forward(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x.reshape(-1, leaves).sum(axis=1) for leaves in levels])

    def backward(y: np.ndarray) -> np.ndarray:
        total, stops = np.zeros(n), np.cumsum([n // leaves for leaves in levels])
        for part, leaves in zip(np.split(y, stops[:-1]), levels, strict=True):
            total += np.repeat(part, leaves)
        return total

    def loss_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
        residual = forward(x) - values
        return 0.5 * float(residual @ residual), backward(residual)

    def ours() -> Call:
        measurement = dp.Measurement(tree, values, "laplace", 4.0)
        return lambda: nonnegative_least_squares(measurement).cells

    def active_set() -> Call:
        matrix = np.asarray(tree.dense(), dtype=float)
        return lambda: optimize.nnls(matrix, values, maxiter=100 * n)[0]

    def quasi_newton() -> Call:
        settings = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-11, "gtol": 1e-4}
        bounds = optimize.Bounds(0, np.inf)  # pyright: ignore[reportArgumentType]
        start = np.zeros(n)
        return lambda: optimize.minimize(loss_and_slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options=settings).x

    cost = lambda x: loss_and_slope(np.asarray(x))[0]  # noqa: E731
    by_gradients = Peer(quasi_newton, objective(cost, 1e-8), is_slow=n > 10**4)
    peers = {"scipy L-BFGS-B, implicit matrix (ektelo's way)": by_gradients}
    if is_small:
        peers = {"scipy nnls": Peer(active_set, difference(1e-9))} | peers
    return Problem(ours, peers)


def monotone_squares(n: int, batch: int | None = None) -> Problem:
    rows = np.stack([isotonic.noisy_sorted_counts(n, seed) for seed in range(batch or 1)])
    values = rows if batch else rows[0]

    def ours() -> Call:
        one = lambda v: isotonic_regression(v).values  # noqa: E731
        run, given = jax.jit(jax.vmap(one) if batch else one), jnp.asarray(values)
        return lambda: run(given)

    def rows_by(fit: Callable[[np.ndarray], np.ndarray]) -> Call:
        return (lambda: np.stack([fit(row) for row in rows])) if batch else lambda: fit(values)

    def scipy_rows() -> Call:
        return rows_by(lambda row: optimize.isotonic_regression(row).x)

    def sklearn_rows() -> Call:
        from sklearn.isotonic import isotonic_regression as fit  # pyright: ignore[reportMissingImports]

        return rows_by(fit)

    loop = ", a loop" if batch else ""
    return Problem(
        ours,
        {
            f"scipy isotonic_regression{loop}": Peer(scipy_rows, difference(1e-12)),
            f"scikit-learn isotonic_regression{loop}": Peer(
                sklearn_rows, difference(1e-12), ("sklearn.isotonic",), "scikit-learn"
            ),
        },
    )


def monotone_deviations(n: int) -> Problem:
    values = isotonic.noisy_sorted_counts(n)

    def ours() -> Call:
        run, given = jax.jit(lambda v: isotonic_regression(v, norm="l1", solution="lower").values), jnp.asarray(values)
        return lambda: run(given)

    cost = objective(lambda x: float(np.abs(np.asarray(x) - values).sum()), 1e-9)
    return Problem(
        ours,
        {
            "heapq, slope trick by hand": Peer(lambda: lambda: isotonic.heapq_slope_trick(values), difference(0.0)),
            "scipy linprog (HiGHS)": Peer(lambda: lambda: isotonic.linear_program(values), cost, is_slow=n > 10**4),
        },
    )


def noisy_steps(n: int, seed: int = 0) -> np.ndarray:
    """Steps of 40 cells on average, with Laplace noise of scale 10."""
    rng = np.random.default_rng(seed)
    step = np.cumsum(rng.random(n) < 1 / 40)
    return rng.integers(0, 200, n)[step] + rng.laplace(0, 10, n)


def squares_of(values: np.ndarray, stops: Any) -> float:
    return float(sum(np.square(x - x.mean()).sum() for x in np.split(values, np.asarray(stops)[:-1])))


def kernel_search(values: np.ndarray, **options: Any) -> Any:
    """Ruptures' search that is written in C; the stops of the bins."""
    import ruptures  # pyright: ignore[reportMissingImports]

    return ruptures.KernelCPD(kernel="linear", min_size=1, jump=1).fit(values).predict(**options)


def given_bins(n: int, bins: int, with_numba: bool = True) -> Problem:
    values = noisy_steps(n)

    def ours() -> Call:
        given = jnp.asarray(values)
        return lambda: v_optimal(given, bins)

    def compiled() -> Call:
        from tests.benchmarks.segmentation import compiled_rows

        return lambda: compiled_rows(values, bins)

    def agreement(cost: Callable[[Any], float]) -> Any:
        return objective(cost, 1e-9, our_cost=lambda fit: float(fit.cost))

    searched = lambda: lambda: kernel_search(values, n_bkps=bins - 1)  # noqa: E731
    by_stops = agreement(lambda stops: squares_of(values, stops))
    is_slow = n * n * bins > 10**9
    peers = {"ruptures KernelCPD (in C)": Peer(searched, by_stops, ("ruptures",), "ruptures", is_slow)}
    if with_numba:
        packages = ("ruptures", "numba")
        loops = Peer(compiled, agreement(float), packages, " ".join(packages), is_slow)
        peers["all candidates by hand, compiled by numba"] = loops
    return Problem(ours, peers)


def priced_bins(n: int, batch: int | None = None, with_ruptures: bool = True, penalty: float = 400.0) -> Problem:
    rows = np.stack([noisy_steps(n, seed) for seed in range(batch or 1)])

    def ours() -> Call:
        one = lambda x: penalized_v_optimal(x, penalty)  # noqa: E731
        run, given = jax.jit(jax.vmap(one)) if batch else one, jnp.asarray(rows if batch else rows[0])
        return lambda: run(given)

    def compiled() -> Call:
        from tests.benchmarks.segmentation import compiled_pelt

        return lambda: [compiled_pelt(row, penalty) for row in rows]

    def agreement(cost: Callable[[Any], float]) -> Any:
        return objective(cost, 1e-9, our_cost=lambda fit: float(np.sum(fit.cost + penalty * fit.num_bins)))

    def of_stops(found: Any) -> float:
        return sum(squares_of(row, stops) + penalty * len(stops) for row, stops in zip(rows, found, strict=True))

    peers = {}
    if with_ruptures:
        searched = lambda: lambda: [kernel_search(row, pen=penalty) for row in rows]  # noqa: E731
        loop = ", a loop" if batch else ""
        peers[f"ruptures KernelCPD (in C){loop}"] = Peer(searched, agreement(of_stops), ("ruptures",), "ruptures")
    if not batch:
        packages = ("ruptures", "numba")
        peers["PELT by hand, compiled by numba"] = Peer(compiled, agreement(sum), packages, " ".join(packages))
    return Problem(ours, peers)


def equal_noises(num_points: int, num_terms: int) -> Problem:
    z = np.linspace(-60, 60, num_points)

    def ours() -> Call:
        run, given = jax.jit(lambda x: LaplaceSum(np.ones(num_terms)).log_prob(x)), jnp.asarray(z)
        return lambda: run(given)

    by_hand = Peer(lambda: lambda: laws.log_density_by_logsumexp(z, num_terms), difference(1e-11))
    return Problem(ours, {"scipy logsumexp, closed form by hand": by_hand})


def unequal_noises(num_points: int, num_terms: int, is_cdf: bool) -> Problem:
    """On a grid of 24 standard deviations."""
    scales = np.random.default_rng(0).uniform(0.5, 2, num_terms)
    reach = 12 * np.sqrt(2 * np.square(scales).sum())
    step = 2 * reach / num_points
    z = (np.arange(num_points) - num_points // 2) * step

    def ours() -> Call:
        method = LaplaceSum.cdf if is_cdf else lambda law, x: jnp.exp(law.log_prob(x))
        run, given = jax.jit(lambda x: method(LaplaceSum(scales), x)), jnp.asarray(z)
        return lambda: run(given)

    def summed(density: np.ndarray) -> np.ndarray:
        return np.cumsum((density + np.roll(density, 1)) / 2 * step) if is_cdf else density

    def convolved() -> np.ndarray:
        each = [np.exp(-np.abs(z) / b) / (2 * b) for b in scales]
        density = each[0]
        for other in each[1:]:
            full = np.convolve(density, other) * step
            density = full[num_points // 2 : num_points // 2 + num_points]
        return summed(density)

    def by_fourier() -> np.ndarray:
        t = 2 * np.pi * np.fft.rfftfreq(num_points, step)
        phi = np.exp(-np.log1p(np.square(scales[:, None] * t)).sum(axis=0))
        return summed(np.fft.fftshift(np.fft.irfft(phi, num_points)) / step)

    peak = "largest, its tails being lost"
    return Problem(
        ours,
        {
            "numpy convolve, one noise after the other": Peer(lambda: convolved, difference(0.5, of=peak)),
            "numpy, Fourier transform by hand": Peer(lambda: by_fourier, difference(1e-3, of=peak)),
        },
    )


def interval_ends(num_rows: int, num_terms: int) -> Problem:
    scales = np.random.default_rng(0).uniform(0.1, 1, (num_rows, num_terms))

    def ours() -> Call:
        run = jax.jit(lambda s: LaplaceSum(s).icdf(jnp.full(num_rows, 0.975)))
        given = jnp.asarray(scales)
        return lambda: run(given)

    by_hand = Peer(lambda: lambda: laws.half_widths_by_fourier(scales, 0.95), difference(1e-6))
    return Problem(ours, {"numpy, Fourier on the real axis by hand": by_hand})


def posterior_moments(num_regions: int, size: int, num_points: int = 1024) -> Problem:
    scales = np.random.default_rng(1).uniform(2, 6, num_regions)
    measurement = posteriors.release(size, num_regions, scales)
    starts = size * np.arange(num_regions)
    asked = Ranges(size * num_regions, starts, starts + -(-size // 2))
    by_grid = {1: posteriors.dense_single, 4: posteriors.dense_pairs}[size]

    def ours() -> Call:
        def run() -> tuple[np.ndarray, np.ndarray]:
            found = mmse(measurement, asked)
            return found.mean - found.centers, found.stddev

        return run

    peer = Peer(lambda: lambda: by_grid(measurement, num_points), difference(1e-3, either=np.stack))
    return Problem(ours, {f"numpy, densities on {num_points:,} points": peer})


def exact_noise(num_draws: int, law: str, scale: int = 10) -> Problem:
    cells = np.arange(num_draws)
    # Of the discrete laws at this scale; that of the Gaussian differs from scale^2 by less than rounding.
    p = np.exp(-1 / scale)
    variance = 2 * p / (1 - p) ** 2 if law == "laplace" else float(scale**2)

    def ours() -> Call:
        strategy = Identity(num_draws)
        epsilon, rho = (Fraction(1, scale), None) if law == "laplace" else (None, Fraction(1, 2 * scale**2))
        return lambda: dp.measure(cells, strategy, epsilon=epsilon, rho=rho).measurement.values

    def theirs() -> Call:
        odp = opendp()
        domain = odp.vector_domain(odp.atom_domain(T="i64"), num_draws)
        if law == "laplace":
            run = odp.m.make_laplace(domain, odp.l1_distance(T="i64"), scale=float(scale))
        else:
            run = odp.m.make_gaussian(domain, odp.l2_distance(T="f64"), scale=float(scale))
        given = cells.tolist()
        return lambda: run(given)

    def same_law(ours: Any, theirs: Any) -> Agreement:
        ours, theirs = np.asarray(ours) - cells, np.asarray(theirs) - cells
        p = float(stats.ks_2samp(ours, theirs).pvalue)  # pyright: ignore[reportAttributeAccessIssue]
        found = [float(x.var() / variance) for x in (ours, theirs)]
        words = f"Kolmogorov-Smirnov p = {p:.2g}; variance over the law's {found[0]:.3f} (ours), {found[1]:.3f}"
        return Agreement(words, p > 1e-6 and max(abs(x - 1) for x in found) < 15 / np.sqrt(num_draws))

    return Problem(ours, {f"OpenDP make_{law}": Peer(theirs, same_law, ("opendp.prelude",), "opendp")})


def all_ranges_error(n: int, branching: int = 2) -> Problem:
    def ours() -> Call:
        tree, workload = Tree.complete(n, branching), AllRange(n)
        return lambda: expected_error(workload, tree, 1.0)

    def dense() -> Call:
        matrix = np.asarray(Tree.complete(n, branching).dense(), dtype=float)
        i = np.arange(n)

        def formula() -> float:
            """The trace of (A'A)^-1 W'W, the latter from its closed form."""
            gram = (1.0 + np.minimum.outer(i, i)) * (n - np.maximum.outer(i, i))
            return 2 * np.trace(np.linalg.solve(matrix.T @ matrix, gram)) / (n * (n + 1) / 2)

        return formula

    return Problem(ours, {"numpy, matrix mechanism's formula by hand": Peer(dense, difference(1e-9))})


def tree_sensitivity(n: int, branching: int = 2) -> Problem:
    def ours() -> Call:
        return lambda: Tree.complete(n, branching).sensitivity(1, "replace_one")

    def pairs() -> Call:
        columns = np.asarray(Tree.complete(n, branching).dense(), dtype=float).T
        return lambda: pdist(columns, "cityblock").max()

    return Problem(ours, {"scipy pdist, all pairs of columns": Peer(pairs, difference(0.0))})


def branching(n: int) -> Problem:
    def choose() -> Call:
        choose_branching_factor = opendp().t.choose_branching_factor
        return lambda: choose_branching_factor(n)

    def errors(ours: Any, theirs: Any) -> Agreement:
        mine, other = (
            float(range_variance(n, int(b), dp.allocation.level_budgets(n, int(b), epsilon=1))) for b in (ours, theirs)
        )
        chosen = f"theirs ({int(theirs)}) has {other / mine:.2f} times the error of ours ({ours})"
        return Agreement(f"another problem: an approximation; {chosen}", other >= mine)

    peer = Peer(choose, errors, ("opendp.prelude",), "opendp")
    return Problem(lambda: lambda: best_branching(n), {"OpenDP choose_branching_factor": peer})


def pairs_of_axes(shape: tuple[int, ...], largest_entropy: bool, scale: float = 5.0) -> Problem:
    """The marginals of all pairs of axes under Gaussian noise, and the number of records, which is public."""
    names = [f"axis_{axis}" for axis in range(len(shape))]
    domain = dp.Domain({name: dp.Axis.integers(0, size) for name, size in zip(names, shape, strict=True)})
    pairs = [[a, b] for k, a in enumerate(names) for b in names[k + 1 :]]
    queries = dp.workloads.marginals(domain, *pairs)
    rng = np.random.default_rng(0)
    cells = rng.poisson(3 * rng.gamma(1.0, size=int(np.prod(shape))))
    values = np.asarray(queries @ cells) + rng.normal(0, scale, queries.shape[0])
    measurement = dp.Measurement(queries, values, "gaussian", scale)
    total = float(cells.sum())

    def ours() -> Call:
        if largest_entropy:
            known = measurement.with_exact(Total(cells.size), [total])
            return lambda: maximum_entropy(known).cells
        return lambda: dp.least_squares(measurement).answer(queries).values

    def theirs() -> Call:
        import mbi  # pyright: ignore[reportMissingImports]

        given, where = dp.interop.to_mbi(measurement, domain), mbi.Domain(tuple(names), shape)

        def run() -> np.ndarray:
            model = mbi.estimation.MirrorDescent().estimate(where, given, known_total=total)
            if largest_entropy:
                return np.asarray(model.project(tuple(names)).datavector())
            return np.concatenate([np.asarray(model.project(tuple(pair)).datavector()) for pair in pairs])

        return run

    squares = lambda answers: float(np.square(np.asarray(answers) - values).sum())  # noqa: E731
    if largest_entropy:
        agreement = objective(lambda x: squares(queries @ np.asarray(x)), 0.05, "squares")
    else:
        agreement = another("cells not negative, of largest entropy, a known total", squares)
    return Problem(ours, {"mbi MirrorDescent, defaults": Peer(theirs, agreement, ("mbi",), "mbi")})


def records(num_records: int, sizes: tuple[int, ...]) -> Problem:
    rng = np.random.default_rng(0)
    columns = {f"axis_{axis}": rng.integers(0, size, num_records) for axis, size in enumerate(sizes)}

    def ours() -> Call:
        domain = dp.Domain({name: dp.Axis.integers(0, size) for name, size in zip(columns, sizes, strict=True)})
        return lambda: dp.count(columns, domain)

    def binned() -> Call:
        edges = [np.arange(size + 1) - 0.5 for size in sizes]
        return lambda: np.histogramdd(list(columns.values()), bins=edges)[0].ravel()

    def grouped() -> Call:
        import pandas as pd

        frame = pd.DataFrame(columns)

        def run() -> np.ndarray:
            found = frame.groupby(list(columns), sort=False).size()
            index: Any = found.index
            cells = np.zeros(int(np.prod(sizes)), dtype=np.int64)
            cells[np.ravel_multi_index([index.get_level_values(name) for name in columns], sizes)] = found
            return cells

        return run

    return Problem(
        ours,
        {
            "numpy histogramdd": Peer(binned, difference(0.0)),
            "pandas groupby": Peer(grouped, difference(0.0), ("pandas",), "pandas"),
        },
    )


def accounting(num_budgets: int, delta: float = 1e-6) -> Problem:
    rhos = np.geomspace(0.001, 10, num_budgets).tolist()

    def ours() -> Call:
        return lambda: np.array([epsilon_of_rho(rho, delta) for rho in rhos])

    def curve() -> Call:
        odp = opendp()
        scalar = odp.atom_domain(T="i64"), odp.absolute_distance(T="i64")
        profiles = [odp.c.make_zCDP_to_approxDP(odp.m.make_gaussian(*scalar, scale=(2 * rho) ** -0.5)) for rho in rhos]
        return lambda: np.array([profile.map(1).epsilon(delta) for profile in profiles])

    def renyi() -> Call:
        import dp_accounting  # pyright: ignore[reportMissingImports]

        def one(rho: float) -> float:
            accountant = dp_accounting.rdp.RdpAccountant()
            accountant.compose(dp_accounting.ZCDpEvent(rho))
            return accountant.get_epsilon(delta)

        return lambda: np.array([one(rho) for rho in rhos])

    def above(limit: float) -> Any:
        def compare(ours: Any, theirs: Any) -> Agreement:
            ratios = np.asarray(theirs) / ours
            words = f"their epsilon {ratios.min() - 1:+.0e} to {ratios.max() - 1:+.0e} of ours"
            return Agreement(words, ratios.min() > 1 - 1e-9 and ratios.max() < 1 + limit)

        return compare

    return Problem(
        ours,
        {
            "OpenDP make_zCDP_to_approxDP": Peer(curve, above(1e-6), ("opendp.prelude",), "opendp"),
            "dp-accounting RdpAccountant": Peer(renyi, above(0.5), ("dp_accounting",), "dp-accounting"),
        },
    )


def block_group(blocks: int, persons: bool = True) -> Problem:
    """One block group of the redistricting data and its blocks: tables of sums, each with its own noise."""
    schema = dp.spine.pl94_persons() if persons else dp.spine.pl94_units()
    names = ("total", "cenrace", "votingage", "hispanic", "hhgq", "hhinstlevels", "votingage * hispanic * cenrace", "detailed")
    queries = [schema.query(name) for name in (names if persons else ("total", "h1"))]
    rng = np.random.default_rng(0)
    parents = np.array([-1] + [0] * blocks)
    variances = [50.0 + query.size % 7 for query in queries]
    values = [rng.normal(0, 8, (blocks + 1, query.size)) for query in queries]

    def ours() -> Call:
        given = [
            dp.spine.Measured(query, value, np.full(blocks + 1, each))
            for query, value, each in zip(queries, values, variances, strict=True)
        ]
        return lambda: dp.spine.tree_least_squares(schema, parents, given).areas().counts

    def dense() -> np.ndarray:
        gram, b = np.zeros((schema.size, schema.size)), np.zeros((blocks + 1, schema.size))
        for query, value, each in zip(queries, values, variances, strict=True):
            rows = query.answer(np.eye(schema.size)).T
            gram += rows.T @ rows / each
            b += value @ rows / each
        leaf = np.linalg.inv(gram)
        z = b[1:] @ leaf
        between = np.linalg.inv(blocks * leaf)
        root = np.linalg.solve(gram + between, b[0] + between @ z.sum(axis=0))
        return np.concatenate([root[None], z + (between @ (root - z.sum(axis=0))) @ leaf])

    is_slow = schema.size > 1000
    return Problem(ours, {"numpy, matrices by hand": Peer(lambda: dense, difference(1e-9), is_slow=is_slow)})


CASES: dict[str, Case] = {
    "tree-2": Case("tree, least squares", "2^20 leaves, b = 2", complete_tree, (2**20, 2), (8, 2)),
    "tree-16": Case("tree, least squares", "2^20 leaves, b = 16", complete_tree, (2**20, 16), (256, 16)),
    "trees-2": Case("trees, least squares", "1,000 x 4,096 leaves, b = 2", complete_tree, (4096, 2, 1000), (8, 2, 3)),
    "trees-16": Case("trees, least squares", "1,000 x 4,096 leaves, b = 16", complete_tree, (4096, 16, 1000), (256, 16, 3)),
    "rooted-2": Case("tree and its root, least squares", "2^20 leaves, b = 2", rooted_tree, (2**20, 2), (8, 2)),
    "rooted-16": Case("tree and its root, least squares", "2^20 leaves, b = 16", rooted_tree, (2**20, 16), (256, 16)),
    "cube": Case("cells and 3 marginals, least squares", "50 x 100 x 256", cells_and_marginals, ((50, 100, 256),), ((2, 3, 4),)),
    "small-cube": Case(
        "cells and 3 marginals, least squares", "16 x 16 x 32", cells_and_marginals, ((16, 16, 32),), ((2, 2, 3),)
    ),
    "nonnegative": Case("tree, non-negative least squares", "512 cells, b = 8", nonnegative_tree, (512, 8), (16, 4)),
    "nonnegative-large": Case(
        "tree, non-negative least squares", "4,096 cells, b = 16", nonnegative_tree, (4096, 16, False), (16, 4, False)
    ),
    "nonnegative-larger": Case(
        "tree, non-negative least squares", "16,384 cells, b = 16", nonnegative_tree, (16_384, 16, False), (16, 4, False)
    ),
    "monotone": Case("monotone fit, squares", "1,000,000", monotone_squares, (10**6,), (50,)),
    "monotone-batch": Case("monotone fits, squares", "1,000 x 4,096", monotone_squares, (4096, 1000), (50, 3)),
    "monotone-deviations": Case("monotone fit, absolute deviations", "100,000", monotone_deviations, (10**5,), (50,)),
    "bins": Case("V-optimal, 100 bins", "1,024 cells", given_bins, (1024, 100), (40, 4)),
    "bins-large": Case("V-optimal, 410 bins", "4,096 cells", given_bins, (4096, 410, False), (40, 4, False)),
    "priced": Case("V-optimal, a price a bin", "4,096 cells", priced_bins, (4096,), (80,)),
    "priced-large": Case("V-optimal, a price a bin", "65,536 cells", priced_bins, (65_536, None, False), (80, None, False)),
    "priced-batch": Case("V-optimal, a price a bin", "1,000 x 1,024 cells", priced_bins, (1024, 1000), (80, 3)),
    "noise-equal": Case("log density of 20 equal Laplace noises", "4,096 points", equal_noises, (4096, 20), (16, 3)),
    "noise-density": Case("density of 20 Laplace noises", "4,096 points", unequal_noises, (4096, 20, False), (512, 6, False)),
    "noise-cdf": Case("cdf of 20 Laplace noises", "4,096 points", unequal_noises, (4096, 20, True), (512, 6, True)),
    "noise-quantile": Case("quantile of sums of 500 Laplace noises", "1,000 sums", interval_ends, (1000, 500), (2, 20)),
    "posterior-single": Case("posterior mean, sd; regions of 1 cell", "10,000", posterior_moments, (10_000, 1), (5, 1)),
    "posterior-four": Case("posterior mean, sd; regions of 4 cells", "10,000", posterior_moments, (10_000, 4), (5, 4)),
    "draws-laplace": Case("exact discrete Laplace noise", "100,000 counts", exact_noise, (10**5, "laplace"), (400, "laplace")),
    "draws-gaussian": Case(
        "exact discrete Gaussian noise", "100,000 counts", exact_noise, (10**5, "gaussian"), (400, "gaussian")
    ),
    "error": Case("expected error, all ranges, binary tree", "1,024 cells", all_ranges_error, (1024,), (8,)),
    "sensitivity": Case("sensitivity of a binary tree", "1,024 cells", tree_sensitivity, (1024,), (8,)),
    "branching": Case("best branching for all ranges", "2^20 cells", branching, (2**20,), (64,)),
    "pairs": Case(
        "marginals of all pairs, least squares", "10 x 8 x 6 x 5", pairs_of_axes, ((10, 8, 6, 5), False), ((3, 2, 2), False)
    ),
    "pairs-entropy": Case(
        "marginals of all pairs, non-negative, of largest entropy",
        "10 x 8 x 6 x 5",
        pairs_of_axes,
        ((10, 8, 6, 5), True),
        ((3, 2, 2), True),
    ),
    "records": Case("records to cells, 3 columns", "1,000,000", records, (10**6, (24, 31, 60)), (100, (2, 3))),
    "accounting": Case("rho to (epsilon, delta)", "100 budgets", accounting, (100,), (3,)),
    "census": Case("census block group, 8 tables", "8 blocks, 2,016 cells", block_group, (8,), (3, False)),
}
