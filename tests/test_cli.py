"""The command line as a user meets it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpinfer as dp
from dpinfer import demo, plots


def command(*arguments, cwd, **environment):
    # The script that stands beside this interpreter, so that the installed entry point is what runs.
    program = Path(sys.executable).with_name("dpinfer")
    return subprocess.run(
        [program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "100"} | environment,
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return command("demo", cwd=folder, JAX_ENABLE_X64="0"), folder


def test_demo_prints_its_tables_and_names_the_figure(shown):
    done, folder = shown
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    text = done.stdout
    assert "336,776 flights left New York City in 2013" in text
    assert "epsilon = 1/10 (0.1)" in text
    assert "scale 40" in text
    assert len(re.findall(r"^│ 2013-\d\d +│", text, re.M)) == 12
    assert len(re.findall(r"^│ 2013-\d\d-\d\d +│", text, re.M)) == 53
    assert re.search(r"│ 2013-01 +│ 27,004 │", text)
    assert "Figure: dpinfer-demo.png" in text
    assert (folder / "dpinfer-demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_errors_agree_with_theory(shown):
    done, _ = shown
    rows = re.findall(
        r"^│ (1 year|1 day|1 hour|15 minutes) +│ +([\d,]+) │ +([\d,]+) │ +([\d,]+) │ +([\d,]+) │", done.stdout, re.M
    )
    assert len(rows) == 4
    for name, *numbers in rows:
        identity, identity_theory, tree, tree_theory = (float(x.replace(",", "")) for x in numbers)
        # 20 releases: one sum of the year alone has a relative standard error of sqrt(2/20) or so; four of them.
        slack = 1.3 if name == "1 year" else 0.35 if name == "1 day" else 0.05
        assert identity == pytest.approx(identity_theory, rel=slack)
        assert tree == pytest.approx(tree_theory, rel=slack)


def test_demo_says_that_it_cannot_write(tmp_path):
    done = command("demo", "--figure", "missing/figure.png", cwd=tmp_path)
    assert done.returncode == 0
    assert "could not be written to missing/figure.png: No such file or directory" in done.stdout


def test_bad_options_exit_with_2(tmp_path):
    done = command("demo", "--epsilon", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--epsilon" in done.stderr
    assert command("dance", cwd=tmp_path).returncode == 2


def test_demo_figure_shows_what_the_numbers_say():
    period = demo.Period("2013-01-01", 100, 90.0, 98.0, 95.0, 101.0)
    assert period.is_covered
    assert not demo.Period("2013-01-01", 100, 90.0, 98.0, 97.0, 99.0).is_covered
    errors = [demo.SizeError("1 hour", 4, 1.0, 2.0, 3.0, 4.0), demo.SizeError("1 day", 96, 5.0, 6.0, 7.0, 8.0)]
    later = demo.Period("2013-01-08", 100, 90.0, 98.0, 95.0, 101.0)
    release = dp.Release.from_values(dp.queries.Total(1), [1], noise="laplace", scale=1)
    result = demo.Demo(release, np.zeros(1), 0.1, [period], [period, later], errors)
    figure = plots.demo_figure(result)
    left, right = figure.axes
    assert left.get_ylabel() == "scheduled departures a week"
    assert right.get_xscale() == right.get_yscale() == "log"
    assert len(right.lines) == 4
