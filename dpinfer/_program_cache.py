"""Compiled programs that outlive a command."""

import os
from pathlib import Path

import jax

# Some 10 kB each.
_MAX_PROGRAMS = 5000


def keep_programs() -> None:
    """Let JAX keep what it compiles in the user's cache folder, so that the next command need not compile it again.

    Called where releases are read or public data shown, never by ``measure``: no program that saw records is kept. A folder named
    by JAX_COMPILATION_CACHE_DIR goes before ours.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    try:
        home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
        folder = Path(home) / "dpinfer" / f"jax-{jax.__version__}"
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return
        programs = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in programs[: max(0, len(programs) - _MAX_PROGRAMS)]:
            path.unlink(missing_ok=True)
    except (OSError, RuntimeError):  # no home, or none of ours to write in: compile again each time
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
