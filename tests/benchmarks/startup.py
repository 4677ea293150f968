"""What an installation costs, and how long the first answer takes: python -m tests.benchmarks.startup [--install]

Times of fresh processes, in turn, medians over the rounds, with and without compiled bytecode; with ``--install`` also fresh
virtual environments of each extra from this checkout: seconds, megabytes, and the largest packages.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.timing import machine

ROOT = Path(__file__).parents[2]
FIRST_ANSWER = """
import numpy as np, dpinfer as dpi
dpi.enable_x64()
cells = np.arange(4096)
release = dpi.measure(cells, dpi.queries.Tree.complete(cells.size, 16), epsilon=1)
dpi.least_squares(release).answer(dpi.queries.Ranges(cells.size, [0], [96])).interval(0.95)
"""
STARTS = {
    "python": "pass",
    "import numpy": "import numpy",
    "import jax": "import jax",
    "import dpinfer": "import dpinfer",
    "import numpyro": "import numpyro",
    "count, measure, estimate, an interval": FIRST_ANSWER,
    "dpinfer --help": "import sys; sys.argv = ['dpinfer', '--help']; from dpinfer.cli import main; main()",
    "dpinfer spine --help": "import sys; sys.argv = ['dpinfer', 'spine', '--help']; from dpinfer.cli import main; main()",
}
PEERS = {"import opendp.prelude": "import opendp.prelude", "import mbi": "import mbi", "import tmlt": "import tmlt.core"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--extras", nargs="*", default=["", "cli", "posterior", "ibis", "test"])
    options = parser.parse_args()
    print(machine())
    starts(options.rounds)
    if options.install:
        for extra in options.extras:
            install(extra)


def starts(rounds: int) -> None:
    """Seconds from the start of a process to its end, with bytecode kept from before, and without any."""
    cases = {name: code for name, code in (STARTS | PEERS).items() if run(code, kept=True) is not None}
    with tempfile.TemporaryDirectory() as folder:
        seconds: dict[tuple[str, bool], list[float]] = {(name, kept): [] for name in cases for kept in (True, False)}
        for count in range(rounds + 1):
            for (name, kept), taken in seconds.items():
                found = run(cases[name], kept=kept, folder=folder)
                if count and found is not None:
                    taken.append(found)
    print(f"\n{'seconds':40} {'bytecode kept':>14} {'without':>9}")
    for name in cases:
        kept, without = (statistics.median(seconds[name, way]) for way in (True, False))
        print(f"{name:40} {kept:14.2f} {without:9.2f}")


def run(code: str, *, kept: bool, folder: str | None = None) -> float | None:
    """Seconds of a fresh process; None if it fails, as where something is not installed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if kept:
        environment["PYTHONPYCACHEPREFIX"] = folder or tempfile.gettempdir() + "/dpinfer-bytecode"
    else:
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/nowhere"}
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, cwd=ROOT, check=False)
    return time.perf_counter() - begin if done.returncode == 0 else None


def install(extra: str) -> None:
    """A fresh virtual environment with an extra: seconds of pip (its cache filled before), megabytes without pip's own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        packages = next((environment / "lib").iterdir()) / "site-packages"
        shutil.copytree(ROOT, Path(folder) / "checkout", ignore=shutil.ignore_patterns(".git", ".venv", "*.egg-info", "build"))
        target = f"{Path(folder) / 'checkout'}[{extra}]" if extra else str(Path(folder) / "checkout")
        before = size(packages)
        begin = time.perf_counter()
        subprocess.run([environment / "bin" / "pip", "install", "-q", "--disable-pip-version-check", target], check=True)
        seconds = time.perf_counter() - begin
        parts = sorted(((size(path), path.name) for path in packages.iterdir() if path.suffix != ".dist-info"), reverse=True)
        largest = ", ".join(f"{name} {megabytes:.0f}" for megabytes, name in parts[:6])
        print(f"{f'dpinfer[{extra}]' if extra else 'dpinfer':20} {seconds:6.0f} s {size(packages) - before:7.0f} MB: {largest}")


def size(path: Path) -> float:
    """Megabytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return sum(file.stat().st_size for file in files) / 1e6


if __name__ == "__main__":
    main()
