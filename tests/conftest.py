"""Every test runs in 64 bit, with shapes and types checked at every call of the package and no silent broadcasting."""

import gc

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


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_programs():
    """Compiled programs hold memory maps, of which a process has a limited number (65,530 as Linux comes)."""
    yield
    jax.clear_caches()
    gc.collect()
