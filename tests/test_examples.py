"""The examples run as a user would run them, from the checkout."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path, tmp_path):
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_the_tables_explain_every_misprint():
    done = subprocess.run(
        [sys.executable, EXAMPLES[0].parent / "range_tables.py", "--most", "12"], capture_output=True, text=True, check=True
    )
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
