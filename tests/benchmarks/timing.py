"""Timing side by side: every candidate once in each round, so that a machine's drift meets all of them alike."""

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def interleaved(candidates: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each candidate in each round, after one round that is not counted.

    Results are waited for, but for lists, which are a peer's numbers and there already: to look at each would count as theirs.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for count in range(rounds + 1):
        for name, run in candidates.items():
            gc.collect()
            begin = time.perf_counter()
            result = run()
            if not isinstance(result, list):
                jax.block_until_ready(result)
            elapsed = time.perf_counter() - begin
            if count:
                seconds[name].append(elapsed)
    return seconds


def summary(seconds: dict[str, list[float]], reference: str) -> list[tuple[str, float, float, float, float]]:
    """(name, median ms, minimum ms, ratio of medians, ratio of minima) against the reference."""
    median = {name: statistics.median(values) for name, values in seconds.items()}
    least = {name: min(values) for name, values in seconds.items()}
    return [
        (name, 1e3 * median[name], 1e3 * least[name], median[name] / median[reference], least[name] / least[reference])
        for name in seconds
    ]


def machine() -> str:
    """The machine and the versions in a line."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            model = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}, jax {jax.__version__}, {jax.default_backend()}"
