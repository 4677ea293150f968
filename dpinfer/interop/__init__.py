"""Estimators from here in the programs of others: DPBench's experiments, OpenDP's measurements, mbi's graphical models.

None of them is imported until it is needed.
"""

from dpinfer.interop.dpbench import DPBenchAlgorithm, dpbench_algorithm, dpbench_errors, dpbench_workload
from dpinfer.interop.mbi import MbiEstimate, from_mbi, mbi_estimate, to_mbi
from dpinfer.interop.opendp import opendp_postprocessor, opendp_tree_postprocessor

__all__ = [
    "DPBenchAlgorithm",
    "MbiEstimate",
    "dpbench_algorithm",
    "dpbench_errors",
    "dpbench_workload",
    "from_mbi",
    "mbi_estimate",
    "opendp_postprocessor",
    "opendp_tree_postprocessor",
    "to_mbi",
]
