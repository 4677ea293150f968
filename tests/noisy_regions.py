"""Measurements of cells and of the sums of their regions, with the numbers that a test gives."""

from typing import Any

import numpy as np

import dpinfer as dp
from dpinfer.queries import Identity, Partition, Total, VStack


def release(cells: Any, sums: Any, cell_scale: Any, sum_scale: Any, labels: Any = None, law: str = "laplace") -> dp.Measurement:
    """Noisy cells and sums; of all cells where there are no labels of regions."""
    n = len(cells)
    regions = Total(n) if labels is None else Partition(labels)
    scale = np.concatenate([np.full(n, float(cell_scale)), np.broadcast_to(np.asarray(sum_scale, float), regions.shape[0])])
    return dp.Measurement(VStack((Identity(n), regions)), np.concatenate([cells, np.atleast_1d(sums)]), law, scale)
