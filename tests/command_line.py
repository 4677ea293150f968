"""Running the command as a user does, and inside this process."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dpinfer import _program_cache, cli

CACHE = Path(tempfile.mkdtemp(prefix="dpinfer-test-cache-"))
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
ROOT = Path(__file__).parents[1]


def command(*arguments, cwd, **environment):
    # The script that stands beside this interpreter, so that the installed entry point is what runs.
    program = Path(sys.executable).with_name("dpinfer")
    return subprocess.run(
        [program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "100", "XDG_CACHE_HOME": str(CACHE)} | environment,
    )


def inside(monkeypatch, folder, *arguments):
    """The exit code of a command in this process, which need not import everything anew."""
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["dpinfer", *arguments])
        patch.setenv("COLUMNS", "100")
        patch.setattr(_program_cache, "keep_programs", lambda: None)  # this process has a configuration of its own
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return ended.value.code or 0
