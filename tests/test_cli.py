"""The command line as a user meets it."""

import csv
import dataclasses
import json
import os
import re
import shlex
import shutil
from fractions import Fraction

import numpy as np
import pytest
from command_line import ROOT, command, inside

import dpinfer as dp
from dpinfer import demo, plots

PERIOD = demo.Period("2013-01-01", 100, 90.0, 98.0, 95.0, 101.0)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return command("demo", cwd=folder, JAX_ENABLE_X64="0"), folder


@pytest.mark.slow
def test_demo_prints_its_tables_and_names_the_figure(shown):
    done, folder = shown
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    text = done.stdout
    assert "336,776 flights left New York City in 2013" in text
    assert "epsilon = 1/10 (add_remove)" in text
    assert "scale 40" in text
    assert len(re.findall(r"^│ 2013-\d\d +│", text, re.M)) == 12
    assert len(re.findall(r"^│ 2013-\d\d-\d\d +│", text, re.M)) == 53
    assert re.search(r"│ 2013-01 +│ 27,004 │", text)
    assert "Figure: dpinfer-demo.png" in text
    assert (folder / "dpinfer-demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
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


@pytest.mark.slow
def test_demo_says_that_it_cannot_write(tmp_path, monkeypatch, capsys):
    done = command("demo", "--figure", "missing/figure.png", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "dpinfer: --figure must be in a folder that exists, got missing/figure.png.\n"
    # A disk that fills up afterwards costs the figure alone.
    release = dp.Release.from_values(dp.queries.Total(1), [1], noise="laplace", scale=1)
    release = dataclasses.replace(release, epsilon=Fraction(1))
    result = demo.Demo(
        release, np.zeros(1, dtype=int), 0.1, [PERIOD], [PERIOD], [demo.SizeError("1 hour", 4, 1.0, 2.0, 3.0, 4.0)]
    )

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo, "run", lambda *_, **__: result)
    monkeypatch.setattr(plots, "save", full)
    assert inside(monkeypatch, tmp_path, "demo", "--figure", "figure.png") == 0
    assert "could not be written to figure.png: No space left on device" in capsys.readouterr().out


@pytest.fixture(scope="module")
def july(tmp_path_factory):
    """The README's four lines, in a folder that has the examples."""
    folder = tmp_path_factory.mktemp("july")
    shutil.copytree(ROOT / "examples", folder / "examples")
    lines = re.findall(r"^dpinfer (?:measure|inspect|infer|answer) .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert len(lines) == 4
    return folder, [command(*shlex.split(line)[1:], cwd=folder) for line in lines]


@pytest.mark.slow
def test_the_four_lines_of_the_readme(july):
    folder, (measured, inspected, inferred, answered) = july
    for done in (measured, inspected, inferred, answered):
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    assert "epsilon = 1/5 (add_remove)" in measured.stdout
    assert re.search(r"^ epsilon +1/5", inspected.stdout, re.M)
    assert (folder / "july.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "july.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["dep_time"] for row in rows] == [str(i) for i in range(2400)]
    release, domain = dp.Release.load(folder / "july.npz"), dp.Domain.load(folder / "examples/data/departures.toml")
    assert release.domain == domain
    result = dp.least_squares(release)
    np.testing.assert_allclose([float(row["estimate"]) for row in rows], result.cells, atol=1e-9)
    facts = json.loads(answered.stdout)
    morning, evening = facts["answers"]
    assert (morning["name"], evening["name"]) == ("morning", "evening")
    expected = result.answer(dp.queries.Ranges(2400, [600, 1800], [1200, 2400]))
    np.testing.assert_allclose([morning["estimate"], evening["estimate"]], expected.values, rtol=1e-12)
    np.testing.assert_allclose([morning["stddev"], evening["stddev"]], expected.stddev, rtol=1e-12)
    # Far more than the noise: these intervals miss with odds of one in millions.
    cells = dp.count(folder / "examples/data/departures_2013_07.csv", domain)
    assert abs(morning["estimate"] - cells[600:1200].sum()) < 6 * morning["stddev"]
    assert int(facts["quantiles"][0]["lower"]) - 100 < 1359 < int(facts["quantiles"][0]["upper"]) + 100


@pytest.mark.slow
def test_nothing_private_is_shown(july, tmp_path):
    folder, runs = july
    cells = dp.count(folder / "examples/data/departures_2013_07.csv", dp.Domain.load(folder / "examples/data/departures.toml"))
    for done in runs[:2]:
        assert f"{cells.sum()}" not in done.stdout + done.stderr
        assert f"{cells.sum():,}" not in done.stdout + done.stderr
    # A file whose every value is out of place counts all the same, and says nothing of them.
    (tmp_path / "t.csv").write_text("dep_time\nsecret\n12:30\n-7\n")
    (tmp_path / "d.toml").write_text((folder / "examples/data/departures.toml").read_text())
    done = command("measure", "t.csv", "d.toml", "--epsilon", "1", cwd=tmp_path)
    assert done.returncode == 0
    assert "secret" not in done.stdout + done.stderr
    (tmp_path / "t.parquet").write_text("secret")
    done = command("measure", "t.parquet", "d.toml", "--epsilon", "1", "-o", "other.npz", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "dpinfer: t.parquet cannot be read as Parquet.\n"
    assert sorted(os.listdir(tmp_path)) == ["d.toml", "release.npz", "t.csv", "t.parquet"]


@pytest.mark.slow
def test_errors_are_one_line_and_exit_code_1(july, monkeypatch, capsys):
    folder, _ = july
    data = ("examples/data/departures_2013_07.csv", "examples/data/departures.toml")
    for arguments, message in [
        (("measure", *data, "--epsilon", "0.2", "-o", "july.npz"), "july.npz exists already"),
        (("measure", *data, "-o", "x.npz"), "Give exactly one of epsilon, rho"),
        (("measure", *data, "--epsilon", "lots", "-o", "x.npz"), "--epsilon must be a number such as 0.1 or 1/3, got 'lots'"),
        (("measure", *data, "--epsilon", "-1", "-o", "x.npz"), "epsilon must be positive"),
        (("measure", data[0], "none.toml", "--epsilon", "1", "-o", "x.npz"), "No such file or directory: none.toml"),
        (("measure", "none.csv", data[1], "--epsilon", "1", "-o", "x.npz"), "No such file or directory: none.csv"),
        (("measure", *data[::-1], "--epsilon", "1", "-o", "x.npz"), "is no TOML"),
        (("inspect", "july.csv"), "july.csv is no dpinfer release"),
        (("inspect", "july.npz", "--delta", "2"), "delta must be below 1, got 2.0"),
        (("answer", "july.npz"), "Nothing is asked for"),
        (("answer", "july.npz", "--range", "600..700"), "must be written 'NAME=FROM..TO'"),
        (("answer", "july.npz", "--range", "x=0..9999"), "'9999' must be from 0 to 2400"),
        (("answer", "july.npz", "--axis", "day"), "has no axis 'day'; its axes are dep_time"),
        (("answer", "july.npz", "--quantile", "50"), "shares must be strictly between 0 and 1, got 50.0"),
        (("infer", "july.npz", "-o", "july.csv"), "july.csv exists already"),
    ]:
        assert inside(monkeypatch, folder, *arguments) == 1, arguments
        output, error = capsys.readouterr()
        assert output == ""
        assert error.startswith("dpinfer: ")
        assert message in error
        assert error.count("\n") == 1
    assert not (folder / "x.npz").exists()


@pytest.mark.slow
def test_a_loss_in_rho_is_shown_as_an_epsilon_at_a_delta(tmp_path):
    dp.measure(np.arange(4), dp.queries.Identity(4), rho=0.5).save(tmp_path / "r.npz")
    done = command("inspect", "r.npz", "--delta", "1e-6", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert facts["rho"] == "1/2"
    assert facts["epsilon at delta = 1e-6"] == pytest.approx(5.2215, abs=1e-4)


@pytest.mark.slow
def test_compiled_programs_are_kept_by_what_reads_releases(july, tmp_path):
    folder, _ = july
    cache = tmp_path / "cache"
    question = ("answer", "july.npz", "--range", "x=600..700", "--json")
    first = command(*question, cwd=folder, XDG_CACHE_HOME=str(cache))
    assert (first.returncode, first.stderr) == (0, "")
    kept = sorted(path.name for path in cache.glob("dpinfer/jax-*/*-cache"))
    assert kept
    second = command(*question, cwd=folder, XDG_CACHE_HOME=str(cache))
    assert second.stdout == first.stdout
    assert sorted(path.name for path in cache.glob("dpinfer/jax-*/*-cache")) == kept
    # Nothing is kept of what sees records, and a folder that cannot be written costs only time.
    data = ("examples/data/departures_2013_07.csv", "examples/data/departures.toml")
    command("measure", *data, "--epsilon", "1", "-o", tmp_path / "x.npz", cwd=folder, XDG_CACHE_HOME=str(tmp_path / "other"))
    assert (tmp_path / "x.npz").exists()
    assert not (tmp_path / "other").exists()
    none = command(*question, cwd=folder, XDG_CACHE_HOME="/dev/null")
    assert (none.returncode, none.stdout, none.stderr) == (0, first.stdout, "")


@pytest.mark.slow
def test_answers_along_an_axis(july):
    folder, _ = july
    done = command("answer", "july.npz", "--axis", "dep_time", "--every", "100", "--plot", "hours.svg", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^│ \d+ +│", done.stdout, re.M)) == 24
    assert "<svg" in (folder / "hours.svg").read_text()


@pytest.mark.slow
def test_a_plan_reads_no_records_and_is_what_measure_does(july, tmp_path, monkeypatch, capsys):
    data = ROOT / "examples/data"
    domain = str(data / "departures.toml")
    assert inside(monkeypatch, tmp_path, "plan", domain, "--epsilon", "0.2", "--plot", "plan.svg") == 0
    shown = capsys.readouterr().out
    assert "2,400 cells, epsilon = 1/5: error of a sum, on average over all ranges" in shown
    assert re.search(r"flat histogram +│ all +│ +200.08", shown)  # sqrt(2402 / 3 * 2 / 0.2^2)
    assert "Recommended: tree of branching 15. dpinfer measure RECORDS" in shown
    assert "--epsilon 1/5 --branching 15 --levels optimal" in shown
    assert "branching of the tree" in (tmp_path / "plan.svg").read_text()
    assert inside(monkeypatch, tmp_path, "plan", domain, "--epsilon", "0.2", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["variance"] == pytest.approx(dp.accuracy.range_variance(2400, 15, facts["level_epsilons"]))
    assert facts["compared"][-1]["variance"] == facts["variance"] < facts["compared"][0]["variance"]
    measure = ("measure", str(data / "departures_2013_07.csv"), domain, "--epsilon", "0.2", "--branching", "15")
    assert inside(monkeypatch, tmp_path, *measure, "--levels", "optimal", "-o", "july.npz") == 0
    release = dp.Release.load(tmp_path / "july.npz")
    assert release.epsilon is not None
    assert release.epsilon <= Fraction(1, 5)
    scales = 1 / np.array(facts["level_epsilons"])
    np.testing.assert_allclose(np.unique(release.scale), np.sort(scales), rtol=1e-12)
    capsys.readouterr()
    assert inside(monkeypatch, tmp_path, *measure[:-1], "0", "--levels", "optimal", "-o", "x.npz") == 1
    assert "--branching 0 has none; got --levels optimal" in capsys.readouterr().err
    assert inside(monkeypatch, tmp_path, "plan", domain) == 1
    assert "exactly one of --epsilon and --rho" in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.slow
def test_a_plan_for_axes_of_different_lengths(tmp_path, monkeypatch, capsys):
    axes = '[age]\nkind = "integers"\nstart = 0\nstop = 60\n[sex]\nkind = "integers"\nstart = 0\nstop = 2\n'
    (tmp_path / "two.toml").write_text(axes)
    (tmp_path / "records.csv").write_text("age,sex\n3,1\n50,0\n")
    assert inside(monkeypatch, tmp_path, "plan", "two.toml", "--epsilon", "1") == 0
    shown = capsys.readouterr().out
    best = dp.accuracy.recommend((60, 2), epsilon=1)
    command = f"measure RECORDS two.toml --epsilon 1 --branching {best.branching} --levels optimal"
    assert f"dpinfer {command}" in shown
    assert inside(monkeypatch, tmp_path, *command.replace("RECORDS", "records.csv").split()) == 0
    release = dp.Release.load(tmp_path / "release.npz")
    assert release.queries == best.strategy
    assert repr(release.queries) == f"Tree.grid((60, 2), {best.branching}, root=False)"
    np.testing.assert_allclose(np.unique(release.scale), np.sort(1 / best.budgets), rtol=1e-12)


@pytest.mark.slow
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
