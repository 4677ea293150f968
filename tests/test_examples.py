"""The examples run as a user would run them, from the checkout."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "examples"
OWN_TESTS = ("range_errors", "range_tables")  # below, at smaller sizes
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in OWN_TESTS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path, tmp_path):
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_the_tables_explain_every_misprint():
    command = [sys.executable, FOLDER / "range_tables.py", "--most", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    notes = re.findall(r"printed +([\d.]+), exact ([\d.]+): (.*)", done.stdout)
    assert len(notes) == 30
    for printed, exact, why in notes:
        assert abs(float(printed) - float(exact)) > 0.005
        if found := re.search(r"(?:gives|\(exact) ([\d.]+)\)?$", why):
            off = abs(float(printed) - float(found[1]))
            assert off < (0.5 if "sampled" in why else 0.005)
        else:
            assert "sampled" in why
    # Rows of tables 1 to 3 at 2^10 as printed, but for the marked ones.
    for row in ("1600.00      1602.73       320.00           32       320.83", "684.00       398.22       160.65*      498.87"):
        assert row in done.stdout


def test_measured_errors_by_range_size_agree_with_theory(tmp_path):
    script, sizes = FOLDER / "range_errors.py", ["--cells", "64", "--releases", "200", "--epsilons", "0.5"]
    done = subprocess.run([sys.executable, script, *sizes], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert (tmp_path / "range_errors.png").read_bytes().startswith(b"\x89PNG")
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" +\d", line)]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16", "32", "64"]
    for row in rows:
        numbers = [float(text.strip("()").replace(",", "")) for text in row[1:]]
        cells, cells_theory, fewest, fewest_theory, consistent, consistent_theory, zeroed = numbers
        # Of one range of all cells, a squared error has a standard deviation of at most 2.3 times its mean: 4 standard errors of
        # 200. Of small ranges there are many, whose errors have little in common.
        close = 0.15 if int(row[0]) <= 8 else 4 * 2.3 / 200**0.5
        found, theory = [cells, fewest, consistent], [cells_theory, fewest_theory, consistent_theory]
        np.testing.assert_allclose(found, theory, rtol=close)
        assert consistent_theory < fewest_theory
        assert zeroed < 1.1 * consistent
