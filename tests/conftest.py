"""Every test runs in 64 bit, with shapes and types checked at every call of the package and no silent broadcasting."""

import gc
import itertools
import os
import zlib
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

install_import_hook("dpinfer", "beartype.beartype")

import hypothesis  # noqa: E402

import dpinfer  # noqa: E402, F401

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("fixed")


def pytest_addoption(parser):
    parser.addoption(
        "--share", default="1/1", help="K/N: of tests marked slow or with several cases only every Nth, from the Kth on"
    )


def _unit(item):
    """What is run as a whole: a test, or all slow tests with a module's fixture."""
    definitions = item._fixtureinfo.name2fixturedefs
    own = [name for name, found in definitions.items() if found[-1].scope == "module" and found[-1].baseid in item.nodeid]
    return (item.path, *own) if own and item.get_closest_marker("slow") else item.nodeid


def pytest_collection_modifyitems(config, items):
    first, share = map(int, config.getoption("--share").split("/"))
    cases = Counter(item.nodeid.partition("[")[0] for item in items)
    shared = [item for item in items if item.get_closest_marker("slow") or cases[item.nodeid.partition("[")[0]] > 1]
    # Slow tests that need the same fixture of their module stay together, so that it is made once.
    places = {unit: place for place, unit in enumerate(dict.fromkeys(map(_unit, shared)))}
    others = {item for item in shared if places[_unit(item)] % share != first - 1}
    if others:
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]


@pytest.fixture(autouse=True)
def _same_noise_every_time(request):
    """The bits of the operating system, of which exact noise is made, the same in every run of a test: none fails by chance."""
    bits, os.urandom = os.urandom, np.random.default_rng(zlib.crc32(request.node.nodeid.encode())).bytes
    yield
    os.urandom = bits


_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    """Compiled programs hold some nine memory maps each, of which a process may have 65,530 as Linux comes."""
    yield
    maps = Path("/proc/self/maps")
    if next(_tests) % 50 == 0 and maps.exists() and len(maps.read_bytes().splitlines()) > 25_000:
        jax.clear_caches()
        gc.collect()
