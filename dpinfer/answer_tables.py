"""Answers as tables: columns by name, which pandas, polars, pyarrow and DuckDB take as they are; or an xarray Dataset.

``pandas.DataFrame(marginal_table(...))``, ``polars.DataFrame(...)`` and ``pyarrow.table(...)`` all work.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dpinfer.domain import Domain
from dpinfer.inference.estimate import LinearEstimate
from dpinfer.inference.quantiles import quantiles
from dpinfer.queries import Kronecker, Prefix
from dpinfer.workloads import marginals, named_ranges, product

Table = dict[str, np.ndarray]


def marginal_table(
    estimate: LinearEstimate,
    domain: Domain,
    axes: Sequence[str],
    *,
    level: Any = 0.95,
    joint: bool = False,
    key: jax.Array | None = None,
) -> Table:
    """The counts by some axes, all others summed over: a column of labels an axis, then value, stddev, lower and upper.

    One row a combination, in C order of the domain's axes. ``level``, ``joint`` and ``key`` as in ``Answers.interval``.
    """
    kept = [name for name in domain.names if name in set(axes)]
    workload = marginals(domain, list(axes))  # refuses names that are no axes
    labels = np.meshgrid(*(np.array(domain.axes[name].labels) for name in kept), indexing="ij")
    columns = {name: grid.reshape(-1) for name, grid in zip(kept, labels, strict=True)}
    return _with_answers(columns, estimate, workload, level, joint, key)


def range_table(
    estimate: LinearEstimate,
    domain: Domain,
    ranges: Sequence[str],
    *,
    level: Any = 0.95,
    joint: bool = False,
    key: jax.Array | None = None,
) -> Table:
    """Sums over named ranges, written as for ``workloads.named_ranges``: name, value, stddev, lower and upper."""
    names, workload = named_ranges(domain, ranges)
    return _with_answers({"name": np.array(names)}, estimate, workload, level, joint, key)


def cumulative_table(
    estimate: LinearEstimate,
    domain: Domain,
    axis: str,
    *,
    level: Any = 0.95,
    joint: bool = True,
    key: jax.Array | None = None,
) -> Table:
    """The cumulative counts along an axis, all others summed over: the label of the last cell counted in, value, ..., upper.

    With ``joint=True`` lower and upper are a band that holds the whole curve with probability ``level``: by Bonferroni, or with a
    ``key`` narrower, by simulation.
    """
    size = domain.axes[axis].size if axis in domain.axes else 1  # product refuses a name that is none
    workload = product(domain, {axis: Prefix(size)})
    if isinstance(workload, Kronecker) and len(workload.parts) == 1:
        workload = workload.parts[0]
    return _with_answers({axis: np.array(domain.axes[axis].labels)}, estimate, workload, level, joint, key)


def quantile_table(estimate: LinearEstimate, domain: Domain, shares: Sequence[float], *, level: Any = 0.95) -> Table:
    """For each share the cell where the cumulative count passes it, with an interval: share, cell, lower, upper (labels)."""
    if len(domain.axes) > 1:
        raise ValueError(f"quantile_table needs a domain of one axis, this one has {', '.join(domain.names)}.")
    labels = np.array(next(iter(domain.axes.values())).labels)
    cells, lower, upper = quantiles(estimate, shares, level)
    return {"share": np.array(shares, dtype=float), "cell": labels[cells], "lower": labels[lower], "upper": labels[upper]}


def marginal_dataset(
    estimate: LinearEstimate,
    domain: Domain,
    axes: Sequence[str],
    *,
    level: Any = 0.95,
    joint: bool = False,
    key: jax.Array | None = None,
) -> Any:
    """:func:`marginal_table` as an xarray Dataset with a coordinate an axis; needs xarray (the extra ``posterior``)."""
    try:
        import xarray
    except ImportError:
        raise ValueError("A Dataset needs xarray: pip install 'dpinfer[posterior]'.") from None
    table = marginal_table(estimate, domain, axes, level=level, joint=joint, key=key)
    kept = [name for name in domain.names if name in set(axes)]
    shape = [domain.axes[name].size for name in kept]
    variables = {name: (kept, table[name].reshape(shape)) for name in ("value", "stddev", "lower", "upper")}
    return xarray.Dataset(variables, {name: domain.axes[name].labels for name in kept}, {"level": level, "joint": int(joint)})


def _with_answers(
    columns: Table, estimate: LinearEstimate, workload: Any, level: Any, joint: bool, key: jax.Array | None
) -> Table:
    taken = {"value", "stddev", "lower", "upper"} & columns.keys()
    if taken:
        raise ValueError(
            f"An axis must not be called {', '.join(sorted(taken))}, which is what a column of the answers is called."
        )
    answers = estimate.answer(workload)
    lower, upper = answers.interval(level, joint=joint, key=key)
    found = {"value": answers.values, "stddev": answers.stddev, "lower": lower, "upper": upper}
    return columns | {name: np.asarray(column) for name, column in found.items()}
