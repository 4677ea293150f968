"""Every test runs in 64 bit, with shapes and types checked at every call of the package and no silent broadcasting."""

import gc
import itertools
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

install_import_hook("dpinfer", "beartype.beartype")

import hypothesis  # noqa: E402

import dpinfer  # noqa: E402, F401

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("fixed")


_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    """Compiled programs hold some nine memory maps each, of which a process may have 65,530 as Linux comes."""
    yield
    maps = Path("/proc/self/maps")
    if next(_tests) % 50 == 0 and maps.exists() and len(maps.read_bytes().splitlines()) > 25_000:
        jax.clear_caches()
        gc.collect()
