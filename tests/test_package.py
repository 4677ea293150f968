"""What a newcomer touches first: the import, the README, the installed files."""

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import dpinfer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python(code, cwd, **options):
    return subprocess.run(
        [sys.executable, *options.get("flags", ()), "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_import_loads_nothing_heavy(tmp_path):
    heavy = ("numpyro", "scipy.optimize", "matplotlib", "typer", "rich", "pandas", "polars", "duckdb", "optax", "narwhals")
    heavy += ("ibis", "dpinfer.models", "dpinfer.spine", "dpinfer.interop")
    code = f"import sys, dpinfer; print([m for m in {heavy!r} if m in sys.modules])"
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_import_changes_no_configuration(tmp_path):
    code = (
        "import jax; before = dict(jax.config.values); import dpinfer; assert dict(jax.config.values) == before;"
        "dpinfer.enable_x64(); assert jax.config.jax_enable_x64"
    )
    assert python(code, tmp_path).returncode == 0


def test_readme_quickstart_runs_and_prints_what_it_says(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 1
    lines = [line for line in blocks[0].splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) == 5
    done = python(blocks[0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.match(r"\[[\d. ]+\]\n\(", done.stdout)


def test_readme_shows_the_two_commands():
    assert 'pip install ".[cli]" && dpinfer demo' in README
    assert 'pip install ".[test]" && pytest' in README
    assert "python3 -m venv" in README


def test_readme_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_installed_files():
    package = resources.files("dpinfer")
    for name in ("py.typed", "data/departures_2013.npz", "data/adult_age_hours.npz", "data/README.md", "models/__init__.py"):
        assert package.joinpath(name).is_file(), name
    import dpinfer.models

    assert dpinfer.models.__doc__
    assert dpinfer.__version__


def test_every_public_name_is_there_and_documented():
    for name in dpinfer.__all__:
        assert getattr(dpinfer, name).__doc__, name
    for module in (dpinfer.queries, dpinfer.inference, dpinfer.mechanisms):
        for name in module.__all__:
            assert getattr(module, name).__doc__, name
