"""Nodes of a tree, given noisy counts of them: their exact posteriors. ``tree_beliefs`` says how they are found."""

from functools import cached_property
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.inference.cell_priors import as_prior, flat_prior
from dpinfer.inference.grid_intervals import grid_interval
from dpinfer.inference.level_beliefs import traced_node_laws
from dpinfer.inference.mmse import PosteriorAnswers, laplace_law
from dpinfer.inference.posterior_grid import Laws
from dpinfer.inference.tree_beliefs import POINTS, cropped, moments, node_laws
from dpinfer.inference.tree_levels import windows_of, windows_with
from dpinfer.inference.tree_priors import Known
from dpinfer.queries import Tree
from dpinfer.queries.base import Array
from dpinfer.release import as_measurement

# Of windows whose scales are not known beforehand.
_TRACED_POINTS = 2049


@final
@pytree
class TreePosterior:
    """The posteriors of all nodes; made by :func:`tree_posterior`.

    A pytree: functions that are mapped or compiled may return it, and have ``mean``, ``stddev``, ``cells``, ``neglected``,
    ``density`` and ``interval``; of many problems together each array has these along its first axis, and
    ``jax.tree.map(lambda x: x[i], posterior)`` is that of one.

    Attributes:
        tree: that was measured.
        integers: whether cells are taken to be integers.
        mean: of each node, the root first, whether measured or not, float64 [nodes]; a node's is the sum of its children's.
        stddev: of each node, float64 [nodes].
        start, step, masses: of each node's law the first point, the distance of points, and the probability at each,
            float64 [nodes], [] and [nodes, points].
        neglected: how much of a node's law lies outside its window, at most, as the window's ends tell; under jit and vmap 1
            where nothing can be said of it.
    """

    tree: Tree = static()
    integers: bool = static()
    mean: Array
    stddev: Array
    start: Array
    step: Any
    masses: Array
    neglected: Any

    @property
    def leaves(self) -> np.ndarray:
        """The node of each cell, int64 [n]."""
        return np.asarray(self.tree.leaves)

    @property
    def cells(self) -> Array:
        """Means of the cells, float64 [n]."""
        return self.mean[..., self.leaves]

    @cached_property
    def nodes(self) -> PosteriorAnswers:
        """Means, standard deviations, densities and intervals of the nodes of one tree, outside jit and vmap."""
        if not self._is_one:
            raise ValueError("nodes are of one tree, outside jit and vmap; take mean, stddev, interval, masses.")
        start, masses, step = (np.asarray(x, dtype=np.float64) for x in (self.start, self.masses, self.step))
        if not np.isfinite(start).all():
            raise ValueError("nodes are not known: mean, stddev, masses are nan, since next to nothing is left of some node.")
        start, step, masses = cropped(zip(start.tolist(), masses, strict=True), float(step))
        places = start[:, None] + step * np.arange(masses.shape[1])
        laws = Laws(places, masses / step, masses, np.full(start.size, self.integers), masses.shape[1] - 1)
        which = np.arange(start.size)
        return PosteriorAnswers(np.asarray(self.mean), np.asarray(self.stddev), np.zeros(start.size), lambda: (laws, which))

    @property
    def _is_one(self) -> bool:
        return _checks.is_concrete(self.masses) and self.masses.ndim == 2

    @property
    def _is_known(self) -> bool:
        return self._is_one and bool(np.isfinite(self.start).all())

    def density(self, node: int) -> tuple[Array, Array]:
        """The grid of a node and the probability at each of its points."""
        if self._is_known:
            return self.nodes.density(node)
        if not 0 <= node < self.start.shape[-1]:
            raise ValueError(f"node must be from 0 to the number of nodes less 1, {self.start.shape[-1] - 1}, got {node}.")
        steps = np.arange(self.masses.shape[-1], dtype=np.float64)
        first, step = self.start[..., node], self.step * jnp.ones(self.start.shape[:-1])
        return first[..., None] + jnp.expand_dims(step, -1) * steps.reshape((1,) * step.ndim + (-1,)), self.masses[..., node, :]

    def interval(self, level: float = 0.95, *, kind: str = "equal_tailed") -> tuple[Array, Array]:
        """Lower and upper ends, [nodes] each; as ``PosteriorAnswers.interval``."""
        if self._is_known:
            return self.nodes.interval(level, kind=kind)
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        _checks.choice("kind", kind, ("equal_tailed", "highest"))
        ends = grid_interval(jnp.asarray(self.masses), level, kind=kind, is_lattice=self.integers)
        step = jnp.expand_dims(jnp.asarray(self.step), -1)
        lower, upper = (self.start + step * end for end in ends)
        return lower, upper


def tree_posterior(measurement: Any, prior: Any = "flat", *, num_points: int | None = None) -> TreePosterior:
    """The posterior of every node of a tree: means, of least mean squared error, standard deviations and intervals.

    Under jit and vmap windows have sizes that are found from the scales beforehand: 30 standard deviations of least squares to
    either side. Where counts contradict each other, or the prior, by much more than the noise says, laws are wider; then
    ``neglected`` is more than 1e-9, up to 1, and all is nan where what is left of a node is below rounding. Outside, the same
    tree gets windows as wide as it needs, or an error that says why not.

    Args:
        measurement: of a Tree, each node with a scale of its own, of inf where it was not measured, as are roots that have no
            row; all leaves measured. Laplace noise, or discrete, beside which, up to a scale of 64, the
            cells are taken to be integers.
        prior: of each cell, as in :func:`mmse`; under "flat" intervals cover exactly, whatever the cells are. Under jit and vmap
            its log density must take JAX arrays; that of integers may be of NumPy as :func:`poisson_gamma`'s is, which is then
            looked up in a table of 262,144 cells, from ``lower`` on or about 0.
        num_points: of all nodes' windows, at least 9. Left out, windows are as wide as they need to be; but where the scales are
            traced too, as they are in a Measurement that is an argument of what is compiled or mapped, they have 2,049: enough
            for discrete noise of scales up to 24, and for other noise whose scales differ by up to one half. Cells are then
            taken to be integers beside any discrete noise.

    Returns:
        A :class:`TreePosterior`. Of integers all is exact but for rounding and what is neglected; else right to about 1e-3 of the
        smallest scale.

    Cost: for each node two Fourier transforms of its window, some 60 standard deviations wide; seconds for 4,096 leaves. Under
    jit and vmap the nodes of a level have windows of one size; the program has a part for each level, of which there may be 64.

    Reference: Xiao, Xiong and Yuan 2011, section 5.3.3, has the product of what each level at and below a node says, which is the
    posterior of the root only; here all levels count for all nodes.

    Raises:
        ValueError: if the measurement is of anything else, or a window would be too wide.
    """
    measurement = as_measurement(measurement)
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("tree_posterior needs 64-bit numbers: type dpinfer.enable_x64() first.")
    is_lattice = laplace_law(measurement) == "discrete_laplace"
    tree = measurement.queries
    if not isinstance(tree, Tree):
        raise ValueError(f"measurement must be of a Tree, got {tree!r}. mmse takes cells and sums of regions.")
    if num_points is not None:
        num_points = _checks.integer("num_points", num_points, least=9)
    scale = _known_scale(measurement, tree)
    smallest = 1.0 if scale is None else float(scale[np.isfinite(scale)].min())
    known = as_prior(prior, is_lattice=is_lattice, scale=smallest) or flat_prior(is_lattice=is_lattice, scale=smallest)
    # Inside jit even a constant is traced.
    is_host = _checks.is_concrete(measurement.values, measurement.scale, jnp.zeros(()))
    if is_host and scale is not None and num_points is None:
        values = np.asarray(measurement.values, dtype=np.float64)
        _checks.finite("measurement", values)
        laws = node_laws(tree, values if tree.root_measured else np.append(0.0, values), scale, known)
        return TreePosterior(tree, known.integers, *moments(laws), *laws)
    if scale is None or num_points is not None:
        windows = windows_with(tree, num_points or _TRACED_POINTS)
    else:
        windows = windows_of(tree, scale, 1.0 if known.integers else smallest / POINTS)
    values = jnp.asarray(measurement.values, dtype=jnp.float64)
    spread = jnp.asarray(measurement.scale, dtype=jnp.float64) if scale is None else jnp.asarray(scale)
    if scale is None:
        spread = jnp.broadcast_to(spread, values.shape)
    if not tree.root_measured:
        values = jnp.concatenate([jnp.zeros(1), values])
        spread = spread if scale is not None else jnp.concatenate([jnp.full(1, jnp.inf), spread])
    laws, mean, stddev = traced_node_laws(tree, Known(known.log_density, known.lower, known.integers), windows, values, spread)
    return TreePosterior(tree, known.integers, mean, stddev, *laws)


def _known_scale(measurement: Any, tree: Tree) -> np.ndarray | None:
    """Of each node, the root first and inf where it was not measured; None if it is traced."""
    if not _checks.is_concrete(measurement.scale):
        return None
    scale = np.broadcast_to(np.asarray(measurement.scale, dtype=np.float64), tree.shape[:1])
    if (scale == 0).any():
        raise ValueError("measurement must have noise in every row; exact counts, of scale 0, have no density.")
    if not tree.root_measured:
        scale = np.append(np.inf, scale)
    if not np.isfinite(scale[np.asarray(tree.leaves)]).all():
        raise ValueError("measurement must have measured every leaf; got scale inf in some.")
    return scale
