"""Nothing private goes beyond the mechanisms: neither by imports, nor by arguments, nor in what a release holds."""

import ast
import decimal
import functools
import gc
import importlib
import inspect
import itertools
import numbers
import re
import sys
import traceback
import types
import weakref
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpinfer as dp
import dpinfer.models
from dpinfer.queries import AllRange, Dense, Identity, Kronecker, Partition, Prefix, Total, Tree, VStack

# ---- what the code after a release imports, calls and asks for ----

ROOT = Path(dp.__file__).parent
AFTER_RELEASE = ("inference", "models", "accuracy", "allocation")
# Of the package: what knows of no cells, so that it may be used there. Imports for annotations only count as well.
WITHOUT_CELLS = {
    *(*AFTER_RELEASE, "measurement", "release", "queries", "noise", "privacy", "scales", "regions", "workloads", "batching"),
    *("domain.Domain", "evaluation.earth_movers_distance", "_checks", "_chunks", "_loops", "_progress", "_pytree"),
}
# Of other packages: what reads files or looks at what others hold.
READS_FILES = (
    *("pathlib", "io", "csv", "pickle", "shelve", "mmap", "zipfile", "tomllib", "sqlite3", "shutil", "glob", "fileinput"),
    *("subprocess", "socket", "urllib", "ctypes", "pandas", "polars", "pyarrow", "narwhals", "duckdb", "h5py"),
    *("gc", "inspect", "importlib", "sys", "weakref", "traceback"),
)
# Names in the code that open files, or reach what an object or a frame keeps to itself.
TRICKS = re.compile(
    r"open|exec|eval|__import__|globals|load(s|txt)?|genfromtxt|from_?file|memmap|read_\w+|readlines?|currentframe|_getframe|"
    r"get_objects|get_referrers|get_referents|f_locals|f_back|_cells|__closure__|__globals__|__subclasses__|cell_contents"
)
# Who may have which of these all the same, and why.
ALLOWED = {
    ("inference.unattributed", "mechanisms.sorted_runs.SortedRuns"): "a record of what was released",
    ("inference.count_of_counts", "mechanisms.count_of_counts.CountOfCounts"): "a record of what was released",
    ("inference.node_histograms", "mechanisms.count_of_counts.ReleasedLevel"): "a record of what was released",
    ("inference.group_bootstrap", "mechanisms.count_of_counts.CountOfCounts"): "a record of what was released",
    ("inference.group_bootstrap", "mechanisms.group_noise.runs_by_level"): "of groups that were estimated",
    ("inference.group_bootstrap", "mechanisms.group_noise.noisy_answers"): "simulated noise on groups that were estimated",
    ("accuracy.sorted_counts", "mechanisms.sorted_counts.CHANGES"): "a public constant",
    ("accuracy.structure_first", "mechanisms.structure_first.SELECTIONS"): "public names of options",
    ("accuracy.structure_first", "mechanisms.bin_costs.largest_change"): "a public sensitivity",
    ("accuracy.few_bins", "mechanisms.linear.simulate"): "simulated noise on a truth that is known",
    ("allocation.group_levels", "mechanisms.count_of_counts.count_of_counts_from_histograms"): "on groups drawn from a seed",
    ("inference.run_store", "_files.read_record"): "finished parts of an estimate, named by what was released",
    ("inference.run_store", "_files.write_record"): "finished parts of an estimate, named by what was released",
    ("inference.run_store", "read_record"): "the same, where it is called",
    ("inference.run_store", "pathlib.Path"): "the folder of these parts",
    ("inference.posterior_methods.latent", "inspect"): "the arguments of the caller's model",
}


def parsed(code):
    """The parts of a program that import or name something."""
    return [
        x for x in ast.walk(ast.parse(code)) if isinstance(x, (ast.Import, ast.ImportFrom, ast.Name, ast.Attribute, ast.Constant))
    ]


def modules():
    """The modules that work on releases: name, whether it is a package, parts."""
    for path in sorted(path for folder in AFTER_RELEASE for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), is_package, parsed(path.read_text(encoding="utf-8"))


def imported(name, is_package, nodes):
    """Full names of what a module imports, anywhere in it, each where it is defined and not where it was passed on."""
    package = ["dpinfer", *name.split(".")][: None if is_package else -1]
    for node in nodes:
        if isinstance(node, ast.Import):
            # Without a name of its own it is the whole package that is at hand.
            yield from (
                "dpinfer" if alias.name.startswith("dpinfer.") and not alias.asname else alias.name for alias in node.names
            )
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (defined(module, alias.name) for alias in node.names)


def defined(module, name):
    if module.partition(".")[0] == "dpinfer" and name != "*":
        found: Any = getattr(importlib.import_module(module), name, None)
        if hasattr(found, "__module__") and hasattr(found, "__qualname__"):
            return f"{found.__module__}.{found.__qualname__}"
    return f"{module}.{name}"


def is_under(name, prefixes):
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def suspects(name, is_package, nodes):
    """What a module should have a reason for."""
    for full in imported(name, is_package, nodes):
        own = full.removeprefix("dpinfer.")
        # All of a package or module could be anything.
        is_fine = is_under(own, WITHOUT_CELLS) if own != full else full != "dpinfer" and not is_under(full, READS_FILES)
        if not is_fine or full.endswith(".*"):
            yield own
    for node in nodes:
        text = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", None)
        # A function of a module's own may be called _cells.
        if isinstance(text, str) and TRICKS.fullmatch(text) and not (isinstance(node, ast.Name) and text == "_cells"):
            yield text


@pytest.mark.slow
def test_what_works_on_releases_imports_nothing_that_sees_cells_and_opens_no_files():
    names, found, used = set(), set(), set()
    for module in modules():
        names.add(module[0])
        found |= {(module[0], name) for name in suspects(*module)}
        used |= {full.removeprefix("dpinfer.") for full in imported(*module)}
    assert names >= {"inference", "inference.posterior_methods.latent", "models.log_gaussian", "accuracy", "allocation.optimize"}
    # Nor is anything allowed in vain.
    assert sorted(found) == sorted(ALLOWED)
    assert not [name for name in WITHOUT_CELLS if not any(is_under(full, {name}) for full in used)]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from dpinfer.private_cells import PrivateCells", "private_cells.PrivateCells"),
        ("from dpinfer import PrivateCells", "private_cells.PrivateCells"),
        ("from dpinfer import count", "domain.count"),
        ("from ..domain import count as counted", "domain.count"),
        ("from .. import tables", "tables"),
        ("from dpinfer import measure", "mechanisms.linear.measure"),
        ("from dpinfer.private_cells import measure", "mechanisms.linear.measure"),
        ("from dpinfer.evaluation import simulate", "mechanisms.linear.simulate"),
        ("from dpinfer.private_cells import *", "private_cells.*"),
        ("from dpinfer.release import *", "release.*"),
        ("import dpinfer.datasets as d", "datasets"),
        ("import dpinfer", "dpinfer"),
        ("import dpinfer.queries", "dpinfer"),
        ("from dpinfer.domain import Domain, count", "domain.count"),
        ("from dpinfer.evaluation import simulate_error", "evaluation.simulate_error"),
        ("def f():\n    from dpinfer.mechanisms.linear import host_integers", "mechanisms.linear.host_integers"),
        ("if TYPE_CHECKING:\n    from dpinfer.mechanisms import ahp", "mechanisms.ahp.ahp"),
        ("import pandas as pd", "pandas"),
        ("import pathlib", "pathlib"),
        ("open('cells')", "open"),
        ("np.load(path)", "load"),
        ("getattr(private, '_cells')", "_cells"),
        ("private._cells", "_cells"),
        ("sys._getframe(1).f_locals", "f_locals"),
    ],
)
def test_such_imports_are_found(code, name):
    assert name in set(suspects("inference.new", False, parsed(code)))


# Arguments by these names would be private ones.
PRIVATE_NAMES = {"cells", "table", "entities", "groups", "records", "truth", "data", "private"}
PUBLIC_ARGUMENTS = {
    "inference.CellPosterior(cells)": "estimated",
    "inference.MultiplicativeWeightsEstimate(cells)": "estimated",
    "inference.NoiseFirstEstimate(cells)": "estimated",
    "inference.SampledEstimate(cells)": "estimated",
    "inference.SegmentationAverage(cells)": "estimated",
    "inference.CellPrior.at(cells)": "possible counts, of which a prior has the density",
    "accuracy.chosen_bins_error(truth)": "known, for a study",
    "accuracy.fixed_bins_error(truth)": "known, for a study",
    "accuracy.structure_first_error(truth)": "known, for a study",
}


def arguments(module):
    for name in module.__all__:
        public = getattr(module, name)
        methods = vars(public).items() if isinstance(public, type) else ()
        own = [(key, getattr(public, key)) for key, _ in methods if not key.startswith("_") and callable(getattr(public, key))]
        for label, function in ((name, public), *((f"{name}.{key}", method) for key, method in own)):
            yield from (f"{module.__name__.partition('.')[2]}.{label}({p})" for p in inspect.signature(function).parameters)


def test_no_estimator_model_or_error_asks_for_cells():
    found = [text for module in AFTER_RELEASE for text in arguments(getattr(dp, module))]
    assert "inference.least_squares(measurement)" in found
    assert "models.log_gaussian(shape)" in found
    asked = [text for text in found if re.findall(r"\((\w+)\)", text)[0] in PRIVATE_NAMES]
    assert sorted(asked) == sorted(PUBLIC_ARGUMENTS)


# ---- what a release holds, and what is alive once it is made ----


class Private(np.ndarray):
    """An array of its own memory that a weak reference can watch."""


def private(seed, shape: Any = 8, digits=10):
    """Numbers whose sums are told from each other, and from those with noise."""
    rng, found = np.random.default_rng(zlib.crc32(seed.encode())), Private(shape, dtype=np.int64)
    found[...] = rng.integers(10**digits, 10 ** (digits + 1), shape)
    return found


def secrets_of(cells, public=()):
    """The sums of all sets of cells but those that are public; turned negative, not to be found themselves."""
    each = np.asarray(cells).ravel()
    sums = np.array(list(itertools.product([0, 1], repeat=each.size)))[1:] @ each
    return -np.setdiff1d(sums, np.asarray(public, dtype=np.int64)).astype(float)


def numbers_of(leaf):
    """The numbers that a number, text, buffer or array says."""
    if isinstance(leaf, np.generic):
        leaf = leaf.item()
    if isinstance(leaf, (numbers.Real, decimal.Decimal)):
        try:
            return [float(leaf)]
        except OverflowError:
            return []
    if isinstance(leaf, str):
        return [float(digits) for digits in re.findall(r"\d+", leaf)]
    if isinstance(leaf, (bytes, bytearray, memoryview)):
        text = bytes(leaf)
        parts = [text[i : i + (len(text) - i) // 8 * 8] for i in range(min(8, len(text)))]
        words = [np.frombuffer(part, kind).astype(float) for part in parts for kind in ("<i8", "<f8")]
        return np.concatenate([numbers_of(text.decode("latin1")), *words])
    if isinstance(leaf, (np.ndarray, jax.Array)) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        array = np.asarray(leaf)
        if array.dtype.kind in "biuf":
            told = array.ravel().astype(float)
            # Of the places of something large, some are a secret by chance; they say where they begin and end.
            return told[[0, -1]] if told.size > 10**5 and (np.diff(told) == 1).all() else told
        return [number for entry in array.ravel().tolist() for number in numbers_of(entry)]
    return []


def holders(objects, secrets):
    """Those of some objects that say a secret."""
    objects = list(objects)
    said = [numbers_of(x) for x in objects]
    owners = np.repeat(np.arange(len(said)), [len(x) for x in said])
    return [objects[i] for i in np.unique(owners[np.isin(-np.concatenate([np.zeros(0), *said]), secrets)])]


def reachable(start):
    """All that an object leads to, but for modules, types and what functions find in their modules."""
    seen = {id(vars(module)): module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)}
    left = [start]
    while left:
        new = left.pop()
        if id(new) in seen or isinstance(new, (type, types.ModuleType)):
            continue
        seen[id(new)] = new
        yield new
        if isinstance(new, np.ndarray):
            left += [new.base, *(new.ravel().tolist() if new.dtype.kind == "O" else [])]
        if isinstance(new, memoryview):
            left.append(new.obj)
        if isinstance(new, dict):
            left += new  # keys that are texts are not among its referents
        if not isinstance(new, jax.Array):
            left += gc.get_referents(new)


def everything():
    """All arrays and numbers in the process, and texts of digits only."""
    kinds = (np.ndarray, np.generic, int, float)
    found: dict[int, Any] = {id(x): x for x in jax.live_arrays()}
    left, containers = gc.get_objects(), set()
    found |= {id(x): x for x in left if issubclass(type(x), kinds)}
    while left:
        reached = gc.get_referents(*left)
        texts = [key for x in left if type(x) is dict for key in x if type(key) is str and key.isdecimal()]
        found |= {id(x): x for x in texts}
        found |= {id(x): x for x in reached if (x.isdecimal() if type(x) is str else issubclass(type(x), kinds))}
        # What holds nothing but numbers is not tracked, and no place to start from.
        new = {id(x): x for x in reached if type(x) in (dict, tuple) and not gc.is_tracked(x)}
        left = [x for key, x in new.items() if key not in containers]
        containers |= new.keys()
    return list(found.values())


# So little that no noisy number is a true one, but for one of some million.
EPSILON = 1e-6
REGIONS = dp.RegionTree([("a", "b"), ("a", "c")])
PLACES = {"region": ["here", "there"], "level_0": ["all", "all"], "level_1": ["here", "there"]}
AGES = dp.Domain({"age": dp.Axis.edges([0, 3 * 10**10, 6 * 10**10, 10**11], above="clip")})


def asked(cells, strategy, **how):
    """Of private cells behind a ledger."""
    ledger = dp.Ledger(epsilon=1)
    return dp.PrivateCells(cells, ledger).measure(strategy, **how), ledger


def asked_in_parts(cells, labels, **how):
    ledger = dp.Ledger(epsilon=1)
    parts = dp.PrivateCells(cells, ledger).partition(labels)
    return [part.measure(Identity(part.num_cells), **how) for part in parts], ledger


def by_method(cells, method, **how):
    return method.measure(cells, **how)


def counted(ages, **how):
    return dp.measure(dp.count({"age": ages}, AGES), Identity(AGES.size), domain=AGES, **how)


def of_entities(names, **how):
    groups = {"group": np.arange(4), "region": np.array(["here", "there"] * 2)}
    return dp.mechanisms.count_of_counts({"entity": names, "group": np.arange(8) % 3}, groups, PLACES, max_size=9, **how)


def of_private_groups(names, **how):
    groups = {"group": names, "region": np.array(["here", "there"] * 4)}
    entities = {"entity": np.arange(16), "group": np.repeat(names, 2)}
    return dp.mechanisms.count_of_counts(entities, groups, PLACES, max_size=9, private_groups=True, **how)


def with_multiplicities(cells, **how):
    return dp.mechanisms.sorted_runs(cells, multiplicities=np.arange(1, 9), **how)


HISTOGRAMS = dp.mechanisms.count_of_counts_from_histograms
ONE = {"epsilon": EPSILON}
PURE = {"rho": EPSILON**2}
# Of what, by which function, with which arguments. The first option is a budget.
RELEASES = {
    "measure cells": (dp.measure, (Identity(8),), ONE),
    "measure tree": (dp.measure, (Tree.complete(8, 2),), {"level_rhos": [PURE["rho"]] * 3}),
    "measure prefixes": (dp.measure, (Prefix(8),), {**PURE, "neighbors": "replace_one"}),
    "measure grid": (dp.measure, (Kronecker([Prefix(2), Identity(4)]),), {**ONE, "row_weights": [1, 2] * 4}),
    "measure stack": (dp.measure, (VStack([Partition([0, 1] * 4), Total(8)]),), {"level_epsilons": [0, EPSILON]}),
    "measure matrix": (dp.measure, (Dense(np.eye(8, dtype=int)),), ONE),
    "measure counted": (counted, (), ONE),
    "measure method": (by_method, (dp.methods.consistent_tree(8, 2),), ONE),
    "measure PrivateCells": (asked, (Tree.complete(8, 2),), ONE),
    "measure parts": (asked_in_parts, ([0, 1] * 4,), ONE),
    "ahp": (dp.mechanisms.ahp, (), ONE),
    "dawa": (dp.mechanisms.dawa, (), ONE),
    "dawa all": (dp.mechanisms.dawa, (), {**ONE, "intervals": "all", "cost": "mean", "values": "identity"}),
    "ispe": (dp.mechanisms.ispe, (8,), {"cell_epsilon": EPSILON, "partition_epsilon": EPSILON}),
    "mwem": (dp.mechanisms.mwem, (AllRange(8),), {**ONE, "total": 10**11, "rounds": 2, "passes": 2}),
    "sorted_counts": (dp.mechanisms.sorted_counts, (), ONE),
    "sorted_counts of a private number": (dp.mechanisms.sorted_counts, (), {**ONE, "size_epsilon": 1}),
    "sorted_runs": (dp.mechanisms.sorted_runs, (), ONE),
    "sorted_runs with multiplicities": (with_multiplicities, (), ONE),
    "structure_first": (dp.mechanisms.structure_first, (), ONE),
    "structure_first tree": (dp.mechanisms.structure_first, (3,), {**ONE, "inside": "tree"}),
    "structure_first medians": (
        dp.mechanisms.structure_first,
        (3,),
        {**ONE, "cost": "sse", "max_count": 10**7, "selection": "noisy_min", "values": "median"},
    ),
    "count_of_counts": (of_entities, (), {"epsilon": 1, "method": "naive"}),
    "count_of_counts of private groups": (of_private_groups, (), {"epsilon": 1, "max_size_epsilon": 1}),
    "count_of_counts_from_histograms": (HISTOGRAMS, (REGIONS,), ONE),
    "count_of_counts_from_histograms naive": (HISTOGRAMS, (REGIONS,), {**ONE, "method": "naive"}),
    "count_of_counts_from_histograms sizes": (HISTOGRAMS, (REGIONS,), {**ONE, "method": "H_g", "max_size_epsilon": 1}),
    "count_of_counts_from_histograms of private groups": (HISTOGRAMS, (REGIONS,), {**ONE, "private_groups": True}),
}


def made(case, seed):
    """Private numbers, and the secrets about them."""
    if "histograms" not in case:
        cells = private(seed)
        return cells, secrets_of(cells)
    cells = private(seed, (2, 4), 6)
    # How many groups a region has is public, unless said otherwise.
    rows = [] if "private" in case else [int(row.sum()) for row in cells]
    return cells, secrets_of(cells, [*rows, sum(rows)])


def released(case, seed):
    """A release, a weak reference to the cells that nobody else has, and the secrets."""
    function, given, options = RELEASES[case]
    cells, secrets = made(case, seed)
    return function(cells, *given, **options), weakref.ref(cells), secrets


def test_every_mechanism_is_tried():
    public = {name for name in dp.mechanisms.__all__ if inspect.isfunction(getattr(dp.mechanisms, name))}
    # What ``simulate`` makes is not private, and says so.
    assert {case.split()[0] for case in RELEASES} == public - {"simulate"}


def some_slow(names, slow):
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in names]


@pytest.mark.parametrize("case", some_slow(RELEASES, {"count_of_counts_from_histograms sizes"}))
def test_a_release_does_not_hold_or_keep_the_cells(case):
    release, cells, secrets = released(case, case)
    if cells() is not None:
        gc.collect()
    assert cells() is None
    assert not holders(reachable(release), secrets)


@pytest.mark.slow
def test_nothing_in_the_process_holds_the_cells_afterwards():
    found = [released(case, f"{case}, of all") for case in RELEASES]
    gc.collect()
    assert not holders(everything(), np.concatenate([secrets for *_, secrets in found]))


def test_a_release_that_is_not_private_is_found_out():
    cells = private("simulated")
    secrets = secrets_of(cells)
    assert holders(reachable(dp.simulate(cells, Prefix(8), epsilon=1e12, key=jax.random.key(0))), secrets)
    assert holders(reachable(dp.PrivateCells(cells, dp.Ledger(epsilon=1))), secrets)


class Slots:
    __slots__ = ("kept",)


def in_slots(x):
    found = Slots()
    found.kept = x.tolist()
    return found


def generated(x):
    yield 0
    yield x


def in_a_generator(x):
    found = generated(x.copy())
    next(found)
    return found


PLANTS = {
    "attribute": lambda x: types.SimpleNamespace(kept=x.copy()),
    "list": lambda x: [x.tolist()],
    "one number": lambda x: (0, {"first": int(x[0])}),
    "key": lambda x: {int(x[1]): 0},
    "text as a key": lambda x: {str(x[1]): 0},
    "numpy number": lambda x: [np.float64(x[2])],
    "prefix sums": lambda x: (np.cumsum(x)[3:],),
    "sum": lambda x: {"sum": float(x.sum())},
    "closure": lambda x: lambda: x.sum(),
    "default": lambda x: types.FunctionType((lambda kept: kept).__code__, {}, "f", (x.copy(),)),
    "partial": lambda x: functools.partial(sum, x.copy()),
    "cache": lambda x: (cached := functools.lru_cache(lambda i: x[i]), cached(3))[:1],
    "bound method": lambda x: x.copy().sum,
    "slots": in_slots,
    "generator": in_a_generator,
    "base of a view": lambda x: x.copy()[:0],
    "objects": lambda x: np.array([None, x.tolist()], dtype=object),
    "two axes": lambda x: x.astype(np.uint64).reshape(2, 4),
    "device array": lambda x: jnp.asarray(x, dtype=float),
    "bytes": lambda x: b"abc" + x.tobytes(),
    "bytes of floats": lambda x: memoryview(bytearray(x.astype(float).tobytes())),
    "text": lambda x: f"cells {x.tolist()}",
    "texts": lambda x: x.astype(str),
    "decimal": lambda x: [decimal.Decimal(int(x[4]))],
    "dataclass": lambda x: dp.mechanisms.SortedCounts(x.copy(), Fraction(1), Fraction(1), None, "row", "add_remove"),
    "release": lambda x: dp.Release.from_values(Dense(np.diag(x)), np.zeros(8), noise="laplace", scale=1),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_whatever_is_planted_in_a_release_is_found(plant):
    release = dp.measure(np.zeros(8, dtype=int), Tree.complete(8, 2), epsilon=1)
    cells = private(plant)
    secrets = secrets_of(cells)
    assert not holders(reachable(types.SimpleNamespace(release=release)), secrets)
    assert holders(reachable(types.SimpleNamespace(release=release, more=PLANTS[plant](cells))), secrets)


_kept: dict[str, Any] = {}


@pytest.mark.slow
def test_whatever_is_planted_in_the_process_is_found():
    plants = ["attribute", "one number", "key", "text as a key", "closure", "cache", "slots", "device array"]
    secrets = {name: secrets_of(private(f"{name}, anywhere")) for name in plants}
    for name in plants:
        _kept[name] = PLANTS[name](private(f"{name}, anywhere"))
    found = holders(everything(), np.concatenate(list(secrets.values())))
    assert [name for name in plants if holders(found, secrets[name])] == plants
    _kept.clear()


@pytest.mark.slow
def test_a_view_keeps_the_cells_alive():
    cells = private("view")
    view, watched = np.asarray(cells), weakref.ref(cells)
    del cells
    gc.collect()
    assert watched() is not None
    del view
    assert watched() is None


# ---- what an error says ----


def as_floats(cells):
    found = Private(cells.shape)
    found[...] = cells
    return found


def one_axis_more(cells):
    found = Private((*cells.shape, 1), dtype=np.int64)
    found[..., 0] = cells
    return found


REFUSED = {
    "no budget": (lambda cells: cells, lambda options: {**options, next(iter(options)): -1}),
    "relation": (lambda cells: cells, lambda options: {**options, "neighbors": "many"}),
    "ledger": (lambda cells: cells, lambda options: {**options, "ledger": dp.Ledger(epsilon=EPSILON / 9)}),
    "floats": (as_floats, dict),
    "one axis more": (one_axis_more, dict),
}
# Where the private numbers are keys, which may be of any kind.
KEYS = ("measure counted", "count_of_counts", "count_of_counts of private groups")


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_neither_shows_nor_keeps_the_cells(reason):
    changed, options_for = REFUSED[reason]
    for case, (function, given, options) in RELEASES.items():
        if case in KEYS and reason in ("floats", "one axis more"):
            continue
        cells, secrets = made(case, f"{case}, {reason}")
        cells = changed(cells)
        watched = weakref.ref(cells)
        try:
            function(cells, *given, **options_for(options))
        except (ValueError, TypeError) as error:
            # A few digits would be too many.
            text = "".join(traceback.format_exception(error)).replace(".", "")
            assert not [number for number in cells.ravel().tolist() if str(number).replace(".", "")[:6] in text], case
            assert not holders(reachable([error.args, vars(error)]), secrets), case
        else:
            raise AssertionError(f"{case} was not refused")
        del cells
        if watched() is not None:
            gc.collect()
        assert watched() is None, case


# ---- estimates know the release only ----

ESTIMATORS = {
    "least_squares": ("measure tree", dp.least_squares),
    "nonnegative_least_squares": ("measure tree", dp.inference.nonnegative_least_squares),
    "cell_posterior": ("measure cells", lambda release: dp.inference.cell_posterior(release, "independent")),
    "noise_first": ("measure cells", dp.inference.noise_first),
    "unattributed_histogram": ("sorted_counts", dp.inference.unattributed_histogram),
    "ahp": ("ahp", lambda release: release.cells),
    "dawa": ("dawa", lambda release: release.cells),
    "structure_first": ("structure_first", lambda release: release.cells),
}


@pytest.mark.parametrize("name", some_slow(ESTIMATORS, {"cell_posterior", "noise_first"}))
def test_an_estimate_from_the_file_is_the_same_to_the_last_bit(name, tmp_path):
    case, estimator = ESTIMATORS[name]
    release, *_ = released(case, name)
    release.save(tmp_path / "release.npz")
    loaded = type(release).load(tmp_path / "release.npz")
    assert vars(loaded).keys() == vars(release).keys()
    first, second = (jax.tree.leaves(estimator(each)) for each in (release, loaded))
    assert first
    assert [np.asarray(x).tobytes() for x in first] == [np.asarray(x).tobytes() for x in second]
