"""The pages of the documentation run, block after block, and say what they print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[pytest.mark.slow] * (page.stem in ("census", "data_aware", "few_bins", "hierarchies", "regions")),
            id=page.stem,
        )
        for page in sorted(DOCS.glob("*.md"))
    ],
)
def test_page(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (DOCS / target).exists(), target
    if page.stem == "student_grades":
        assert "sensitivity  3 (L1)" in done.stdout
        assert "scale 3" in done.stdout
        assert done.stdout.count("consistent") == 7
