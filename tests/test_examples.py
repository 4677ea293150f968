"""The examples run as a user would run them, from the checkout."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import dpinfer as dp

FOLDER = Path(__file__).parents[1] / "examples"
OWN_TESTS = (
    "bayesian_models",
    "branching_errors",
    "calibration",
    "census_budgets",
    "count_of_counts",
    "degree_sequences",
    "few_bins",
    "frontier",
    "learned_budgets",
    "month_and_day",
    "one_histogram",
    "published_counts",
    "range_candlesticks",
    "range_errors",
    "range_tables",
    "regions",
    "structure_first",
)  # below, smaller
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in OWN_TESTS)


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.slow] * (path.stem == "adult_age_hours"), id=path.stem) for path in EXAMPLES]
)
def test_example(path, tmp_path):
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_budgets_of_the_redistricting_data(tmp_path):
    command = [sys.executable, FOLDER / "census_budgets.py", "--blocks", "2000", "--tolerance", "0.01"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "areas by level, US to block: 1, 2, 2, 28, 80, 2,000; 2,016 cells in each"
    wanted, others = lines.index("wanted"), lines.index("others")
    ratios = [[float(line.split()[-1]) for line in lines[a + 1 : b]] for a, b in ((wanted, others), (others, others + 11))]
    assert (len(ratios[0]), len(ratios[1])) == (6, 10)
    assert max(max(some) for some in ratios) <= 1.415  # every query keeps half of its share
    mean, least = map(float, re.findall(r"\d\.\d{4}", lines[others + 11]))
    assert 0.99 * mean < least <= mean < 0.6
    assert sum(float(line[27:39]) for line in lines[-6:]) == pytest.approx(100, abs=0.4)


@pytest.mark.slow
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


@pytest.mark.slow
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


def run_small(folder, script, *options):
    """What an example prints, and the numbers of each of its lines; it draws its figure."""
    done = subprocess.run(
        [sys.executable, FOLDER / f"{script}.py", *options], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert (folder / f"{script}.png").read_bytes().startswith(b"\x89PNG")
    number = r"-?[\d,]*\d(?:\.\d+)?"
    lines = done.stdout.splitlines()
    return lines, [[float(text.replace(",", "")) for text in re.findall(number, line)] for line in lines]


@pytest.mark.slow
def test_measured_errors_by_branching_agree_with_theory(tmp_path):
    np.save(tmp_path / "grid.npy", np.arange(48).reshape(8, 6))
    options = ["--data", "grid.npy", "--shapes", "8x3", "--releases", "300", "--ranges", "500", "--epsilon", "0.5"]
    lines, numbers = run_small(tmp_path, "branching_errors", *options)
    assert "8x3 cells" in lines[0]
    rows = [row for line, row in zip(lines, numbers, strict=True) if re.match(r" +\d", line)]
    assert [row[0] for row in rows] == [2, 3, 4, 6]
    for row in rows:  # the flat histogram is measured once
        pairs = np.array(row[1:]).reshape(-1, 2)
        # 300 releases, whose mean squared errors have standard deviations of about their mean, and 500 of 216 boxes.
        np.testing.assert_allclose(pairs[:, 0], pairs[:, 1], rtol=4 * (1 / 300 + 1 / 500) ** 0.5)
    assert len(rows[-1]) == 1 + 2 * 4
    optimal = dp.allocation.level_budgets((8, 3), 2, epsilon=0.5, method="optimal")
    assert rows[0][-1] == pytest.approx(float(dp.accuracy.range_variance((8, 3), 2, optimal)), abs=0.01)


@pytest.mark.slow
def test_candlesticks_of_every_method(tmp_path):
    options = ["--cells", "32", "--releases", "60", "--ranges", "200", "--epsilons", "0.5"]
    lines, numbers = run_small(tmp_path, "range_candlesticks", *options)
    found = {line[:24].strip(): row for line, row in zip(lines[2:-1], numbers[2:-1], strict=True)}
    names = list(found)
    assert (names[0], names[-1], len(names)) == ("flat", "wavelet", 7)
    for row in found.values():
        lower, median, upper, highest, mean, expected = row[-6:]
        assert 0 < lower < median < upper < highest
        # The mean of a normal error is 0.8 of its standard deviation, that of one Laplace variable 0.71.
        assert mean == pytest.approx(expected, rel=0.2)
    assert found["flat"][-1] < found["binary, least squares"][-1] < found["binary, fewest nodes"][-1]


@pytest.mark.slow
def test_one_release_read_in_two_ways(tmp_path):
    np.save(tmp_path / "counts.npy", np.random.default_rng(0).poisson(50, 360))
    lines, numbers = run_small(tmp_path, "month_and_day", "--data", "counts.npy", "--epsilon", "1")
    assert "one release at epsilon = 1:" in lines[0]
    for line, row, answers in zip(lines[1:3], numbers[1:3], (12, 30), strict=True):
        noisy, estimate, expected, covered, asked = row[-5:]
        assert "intervals cover the truth" in line
        assert asked == answers
        assert covered >= answers / 2  # of 12 or 30 intervals at 95%: fewer with odds of one in a million
        assert estimate < 6 * expected
        assert noisy > 0


@pytest.mark.slow
def test_degree_sequences_of_a_graph(tmp_path):
    np.save(tmp_path / "degrees.npy", np.repeat([1, 2, 3, 30], [200, 60, 30, 4]))
    options = ["--graph", "degrees.npy", "--releases", "30", "--epsilons", "1"]
    lines, numbers = run_small(tmp_path, "degree_sequences", *options)
    assert "294 nodes, 265 edges, 4 different degrees" in lines[0]
    epsilon, noisy, ordered, isotonic, graphical, at_most, covered = numbers[3]
    assert (tmp_path / "degree_sequences_by_epsilon.png").read_bytes().startswith(b"\x89PNG")
    assert epsilon == 1
    # 8,820 squared errors, each with a standard deviation of sqrt(5) times its mean.
    assert noisy == pytest.approx(1, abs=4 * (5 / 8820) ** 0.5)
    assert isotonic < ordered < noisy
    # Rounding to whole degrees adds at most 1/4 to a variance of 8.
    assert isotonic < at_most + 0.25 / 8
    assert graphical == pytest.approx(isotonic, rel=0.2)
    assert 0.5 < covered <= 1


@pytest.mark.slow
def test_count_of_counts_of_flights(tmp_path):
    options = ["--releases", "2", "--epsilons", "1", "--max-size", "600"]
    lines, _ = run_small(tmp_path, "count_of_counts", *options)
    assert lines[0] == "flights: 7,945 groups of 328 sizes from 1 to 567 in 1 x 3 x 35 regions; max_size 600."
    rows = {
        (line[:17].strip(), line[17:36].strip()): [float(x.replace(",", "")) for x in re.findall(r"([\d,.]+) \+-", line)]
        for line in lines[4:19]
    }
    assert len(rows) == 15
    assert [len(row) for row in rows.values()] == [1, *[3] * 14]
    # By factors of 50, 2 and 4, where two standard errors are less than a fifth.
    whole = {way: row[0] for way, row in rows.items()}
    assert whole["naive", "unmerged"] > 10 * whole["H_c", "weighted"]
    assert rows["H_c", "bottom up"][2] < 0.5 * rows["H_c", "unmerged"][2]
    known = dp.accuracy.omniscient_count_of_counts_error(range(328), epsilon=1).histogram
    assert f"{known:,.0f} groups of the whole" in lines[-2]


@pytest.mark.slow
def test_few_bins_beside_noisy_cells_and_trees(tmp_path):
    np.save(tmp_path / "steps.npy", np.repeat([0, 400, 90], [30, 14, 20]))
    options = ["--data", "steps.npy", "--shapes", "rough", "--epsilons", "0.5", "--releases", "60"]
    lines, numbers = run_small(tmp_path, "few_bins", *options)
    assert lines[0] == "Mean errors of 60 releases, +- their standard errors."
    assert lines[1] == "steps: 64 cells, 7,400 records; in brackets what theory says"
    names = [line[:30].strip() for line in lines[3:12]]
    assert names[:2] == ["noisy cells (Dwork)", "tree of 2 (Boost)"]
    for first in (0, 21):  # of either histogram
        tables = [lines[first + 3 + k * 10 : first + 12 + k * 10] for k in (0, 1)]
        found = [
            {
                name: [float(x.replace(",", "")) for x in re.findall(r"[\d.,e+]*\d", row[30:])]
                for name, row in zip(names, table, strict=True)
            }
            for table in tables
        ]
        for squared, absolute in zip(*(table.values() for table in found), strict=True):
            assert len(squared) == len(absolute)
            for row in (squared, absolute):
                if len(row) == 3:
                    mean, error, known = row
                    assert abs(mean - known) < 4 * error
        # 2 / epsilon^2 and 1 / epsilon; (2 / 3) (1 + log2 n)^2 / epsilon^2 and a little.
        assert [table["noisy cells (Dwork)"][2] for table in found] == [8, 2]
        assert found[0]["wavelet (Privelet)"][2] == pytest.approx(2 * 7**2 * (1 / 64**2 + (1 - 1 / 64**2) / 3) / 0.25, rel=5e-4)
        if not first:
            assert found[0]["NoiseFirst"][0] < 0.5 * found[0]["noisy cells (Dwork)"][0]
    # Ranges of one cell are the cells, here of the last histogram; the sum of all records is far above the sanity bound.
    place = lines.index("rough, epsilon = 0.5: errors of sums by the cells of their range")
    kinds = [numbers[place + 1 + kind * 10 : place + 11 + kind * 10] for kind in (0, 1, 2)]  # squared, absolute, relative
    for header, *rows in kinds:
        assert header == [1, 4, 16, 64]
        assert len(rows) == 9
    for table, (_, *rows) in zip(found, kinds[:2], strict=True):
        assert [row[-4] for row in rows] == [own[0] for own in table.values()]
    relative = [float(line.split()[-1]) for line in lines[place + 22 : place + 31]]
    np.testing.assert_allclose(relative, [row[-1] / 1e6 for row in kinds[1][1:]], rtol=2e-3)
    # Of one another: the paper's method takes as long as itself.
    times = [line for line in lines if line.startswith("  NoiseFirst, paper's means")][-1]
    assert times.split()[-2:] == ["1", "1"]


@pytest.mark.slow
def test_bins_chosen_privately(tmp_path):
    # So unlike are neighbouring steps that every choice of 12 bins finds them: what remains is the noise of the values.
    steps = np.repeat(np.arange(12) % 2 * 1_000_000, 10)
    np.save(tmp_path / "steps.npy", steps)
    options = ["--data", "steps.npy", "--shapes", "--epsilons", "1", "--releases", "60"]
    lines, _ = run_small(tmp_path, "structure_first", *options)
    assert lines[1] == "steps, epsilon = 1: 120 cells, 60,000,000 records"
    assert lines[2].split() == ["1", "4", "16", "64"]
    found = {line[:29].strip(): [float(x.replace(",", "")) for x in re.findall(r"(\S+) \+- ", line)] for line in lines[3:22]}
    assert list(found)[:3] == ["one bin", "joint, 8 bins", "joint, 12 bins"]
    assert list(found)[-1] == "noisy cells"

    def variance(epsilon):
        """Of discrete Laplace noise of scale 1 / epsilon."""
        q = np.exp(-epsilon)
        return 2 * q / (1 - q) ** 2

    halves = ("paper's means", "bins as for medians, means", "noisy minimum", "joint, 12 bins")
    means = dict.fromkeys(halves, 1 / 2) | dict.fromkeys(["paper's means, 1/20", "joint, 1/20"], 0.95)
    for place, size in enumerate((1, 4)):
        ranges = dp.evaluation.ranges_of_size(120, size)
        of_bins = ranges.dense() @ np.repeat(np.eye(12), 10, axis=0)
        squares = np.square(of_bins).sum(axis=1).mean()
        known = {name: variance(epsilon) * squares / 100 for name, epsilon in means.items()}
        # The median of ten cells is half the sum of two.
        known |= dict.fromkeys(["paper's medians", "joint, medians"], variance(1 / 2) * squares / 4)
        # Of m of a bin's s cells, by its sum and its cells with half the budget each: m - m^2 / (s + 1) variances.
        known["joint, two levels"] = variance(1 / 4) * (size - squares / 11)
        for name, nodes in (("joint, two levels", "two_level"), ("joint, tree", "tree")):
            release = dp.mechanisms.structure_first(steps, 12, epsilon=1, inside=nodes)
            of_noise = np.square(release.noise_stddev(ranges)).mean()
            assert known.setdefault(name, of_noise) == pytest.approx(of_noise)
        # 60 times the noise of 12 bins, whose square has a standard deviation of sqrt(5) times its mean, and a little for
        # ranges over two bins: 5 standard errors.
        for name, expected in known.items():
            assert found[name][place] == pytest.approx(expected, rel=5 * (1.2 * 5 / 12 / 60) ** 0.5), name
        # Of 120 cells; ranges of four overlap.
        for name in ("120 bins", "noisy cells"):
            assert found[name][place] == pytest.approx(variance(1) * size, rel=5 * (1.6 * 5 / 120 / 60) ** 0.5)
        # Here the noise is nothing.
        one = np.square(ranges @ (steps - 500_000.0)).mean()
        assert found["one bin"][place] == pytest.approx(one, rel=1e-3)

    # A bin's sum has the noise of one cell, the mean of its noisy cells a tenth of ten.
    assert lines.count("  the best of the others: better than 1, level with 0, worse than 0 times of 1") == 2
    assert lines.count("  noisy cells: better than 1, level with 0, worse than 0 times of 1") == 2
    table = {line[:29].strip(): [float(x.replace(",", "")) for x in line[29:].split()] for line in lines[-16:-1]}
    assert table["noisy cells"] == [1, 1, 1, 1]
    np.testing.assert_allclose(table["NoiseFirst"], np.divide(found["NoiseFirst"], found["noisy cells"]), rtol=6e-3)


@pytest.mark.slow
def test_regions_of_cells_that_are_alike(tmp_path):
    # Two regions of 72 equal cells each, which are found in every release.
    np.save(tmp_path / "blocks.npy", np.repeat([[0] * 6 + [1_000_000] * 6], 12, axis=0))
    options = ["--data", "blocks.npy", "--threshold", "1000", "--iterations", "0", "--releases", "40"]
    options += ["--slow-releases", "2", "--sweep-releases", "0"]
    lines, _ = run_small(tmp_path, "regions", *options)
    assert lines[0].startswith("epsilon = 0.2, 75% of it for cells; regions by differences below 1000 after 0 rounds")
    assert lines[2] == "blocks: 12 x 12 cells, 72,000,000 records; 2 regions, the largest of 72 cells"
    absolute, squared = (
        {line[:28].strip(): [float(x.replace(",", "")) for x in re.findall(r"(\S+) \+- ", line)] for line in lines[i : i + 9]}
        for i in (4, 14)
    )
    names = list(absolute)
    assert names == list(squared)
    assert (len(names), names[0], names[-1]) == (9, "noisy cells, whole budget", "even in regions")

    def variance(epsilon):
        """Of discrete Laplace noise of scale 1 / epsilon."""
        q = np.exp(-epsilon)
        return 2 * q / (1 - q) ** 2

    whole, cell, total, s = *map(variance, (0.2, 0.15, 0.05)), 72
    best = 1 / (1 / total + 1 / (s * cell))  # the variance of a region's sum by least squares
    known = {
        "noisy cells, whole budget": (whole, s * whole),
        "noisy cells of the release": (cell, s * cell),
        "least squares": (cell - cell**2 / (total + s * cell), best),
        "least squares, unweighted": (
            cell * (1 - 2 / (s + 1)) + (total + s * cell) / (s + 1) ** 2,
            (s * cell + s**2 * total) / (s + 1) ** 2,
        ),
        "posterior mean": (cell - cell**2 / (total + s * cell), best),
        "even in regions": (best / s**2, best),
    }
    for name, expected in known.items():
        # 40 releases of 144 cells and 2 regions; squares have standard deviations of up to sqrt(5) times their means.
        for place, number in enumerate((5760, 80)):
            many = 80 if name == "even in regions" else number
            assert squared[name][place] == pytest.approx(expected[place], rel=4.5 * (5 / many) ** 0.5), (name, place)
    # E|k| of discrete Laplace noise, and a standard deviation of its size.
    for name, epsilon in (("noisy cells, whole budget", 0.2), ("noisy cells of the release", 0.15)):
        assert absolute[name][0] == pytest.approx(1 / np.sinh(epsilon), rel=4.5 / 5760**0.5)
    # A cell and up to four neighbours that are equal to it.
    for name in ("neighbourhood", "neighbourhood, as printed"):
        assert squared[name][0] < 0.5 * squared["noisy cells of the release"][0]
    by_side = {line[:28].strip(): [float(x.replace(",", "")) for x in line[28:].split()] for line in lines[24:33]}
    assert lines[23].split()[-4:] == ["1", "2", "4", "8"]
    for name, row in absolute.items():
        assert by_side[name][0] == row[0]
        assert len(by_side[name]) == 4
    summary = lines[lines.index("In short, beside noisy cells, whole budget:") :]
    assert "  posterior mean, cell                      worse on blocks" in summary
    assert "  posterior mean, region                    better on blocks" in summary
    assert "  even in regions, cell                     better on blocks" in summary


@pytest.mark.slow
def test_the_frontier_of_accuracy(tmp_path):
    np.save(tmp_path / "blocks.npy", np.repeat([0, 300, 0, 1000], 16))
    np.save(tmp_path / "table.npy", np.ones((8, 8)))
    options = ["--data", ".", "--sets", "--cells", "64", "--scales", "1e3", "native", "--trials", "10", "--slow-trials", "2"]
    options += ["--ranges", "300", "--estimators", "AHP", "noisy cells", "--plot", "frontier.png", "--json", "frontier.json"]
    lines, _ = run_small(tmp_path, "frontier", *options)
    assert lines[0] == "Errors at epsilon = 0.1; 64 cells, 300 ranges, neighbours one record apart."
    assert not [line for line in lines if "table" in line]  # a table of two axes is no histogram of one
    names = ["cell_posterior", "range_posterior", "noisy cells", "noisy cells, clipped at 0", "tree of 16", "AHP"]
    found = {}
    for workload in ("cells", "ranges"):
        place = lines.index(f"blocks, error of a {workload[:-1]}")
        assert lines[place + 1].split() == ["records", "1,000", "(1e3)", "20,800", "(native)"]
        rows = lines[place + 2 : place + 8]
        assert [row[:38].strip() for row in rows] == names
        means = np.array([[float(x.replace(",", "")) for x in re.findall(r"(\S+) \+- ", row)] for row in rows])
        starred = np.array([["*" in part for part in re.findall(r"\+- (\S+)", row)] for row in rows])
        np.testing.assert_array_equal(starred, means == means.min(axis=0))
        found[workload] = dict(zip(names, means, strict=True))

    def variance(epsilon):
        """Of discrete Laplace noise of scale 1 / epsilon."""
        q = np.exp(-epsilon)
        return 2 * q / (1 - q) ** 2

    # 640 squares with standard deviations of up to sqrt(5) times their means, roots of which vary by half as much.
    np.testing.assert_allclose(found["cells"]["noisy cells"], variance(0.1) ** 0.5, rtol=2 * (5 / 640) ** 0.5)
    ranges = dp.workloads.random_ranges(64, 300, key=jax.random.key(0))
    for name, method in (("noisy cells", dp.methods.noisy_cells(64)), ("tree of 16", dp.methods.consistent_tree(64, 16))):
        release = method.simulate(np.zeros(64), epsilon=0.1, key=jax.random.key(0))
        expected = np.square(dp.least_squares(release).expected_stddev(ranges)).mean() ** 0.5
        # Errors of ranges in one trial have much in common; the mean of roots is less than the root of the mean.
        np.testing.assert_allclose(found["ranges"][name], expected, rtol=0.4)
    # Few levels, most of them far above the noise.
    assert (found["cells"]["cell_posterior"] < 0.75 * found["cells"]["noisy cells, clipped at 0"]).all()
    assert (found["ranges"]["range_posterior"] < found["ranges"]["tree of 16"]).all()

    report = json.loads((tmp_path / "frontier.json").read_text())
    assert len(report["errors"]) == 2 * 2 * 6
    for entry in report["errors"]:
        shown = found[entry["workload"]][entry["estimator"]][int(entry["scale"] == "native")]
        assert entry["mean"] == pytest.approx(shown, rel=1e-3)
        assert entry["trials"] == 10
    baselines = {"cells": "noisy cells, clipped at 0", "ranges": "tree of 16"}
    assert len(report["comparisons"]) == 2 * 2 * 2
    for one in report["comparisons"]:
        place, errors = int(one["scale"] == "native"), found[one["workload"]]
        others = {name: row[place] for name, row in errors.items() if name in names[2:]}
        is_fixed = one["against"] == baselines[one["workload"]]
        assert one["rival"] == (baselines[one["workload"]] if is_fixed else min(others, key=lambda name: others[name]))
        assert one["ratio"] == pytest.approx(errors[one["estimator"]][place] / others[one["rival"]], rel=2e-3)
        far = abs(one["ratio"] - 1) > 3 * one["standard_error"]
        assert one["word"] == ("better" if one["ratio"] < 1 else "worse") or not far
    assert any(line.startswith("Verdict from 2 pairs of counts and a scale") for line in lines)
    assert "  cell_posterior, cells, against noisy cells, clipped at 0: better 2, level 0, worse 0" in lines
    for kind in ("cells", "ranges"):
        shares = [entry["share"] for entry in report["coverage"] if entry["kind"] == kind]
        assert len(shares) == 2
        assert 0.6 < min(shares) <= max(shares) <= 1


@pytest.mark.slow
def test_budgets_learned_through_simulated_releases(tmp_path):
    lines, numbers = run_small(tmp_path, "learned_budgets", "--steps", "400")
    assert lines[0].startswith("64 cells, 522 records, branching 4, epsilon = 0.03;")
    found = {line.split()[0]: row for line, row in zip(lines[2:5], numbers[2:5], strict=True)}
    assert list(found) == ["equal", "learned", "optimal"]
    truth = dp.datasets.departures().cells()[:64]
    signal = np.square(dp.queries.AllRange(64) @ truth).mean()
    for name in ("equal", "optimal"):
        budgets = dp.allocation.level_budgets(64, 4, epsilon=0.03, method=name)
        variance = dp.accuracy.range_variance(64, 4, budgets)
        shrinkage = signal / (signal + variance)
        np.testing.assert_allclose(found[name][:3], [variance, shrinkage, shrinkage * variance], rtol=1e-4)
        np.testing.assert_allclose(found[name][3:], budgets / 0.03, atol=1e-4)
    for shown in (0, 2):  # unshrunken, shrunken
        equal, learned, optimal = (row[shown] for row in found.values())
        # With 40 other seeds 0.1% to 0.5% above: the level in the middle is not quite switched off.
        assert optimal < learned < 1.01 * optimal
        assert learned < 0.9 * equal
    # Five standard deviations over other seeds.
    assert found["learned"][1] == pytest.approx(found["optimal"][1], abs=0.015)
    assert numbers[5][0] == pytest.approx(found["learned"][0] / found["optimal"][0], abs=1e-4)


@pytest.mark.slow
def test_published_counts_to_a_posterior(tmp_path):
    header, names, *rows = re.split(r"\n(?!#)", (FOLDER / "data" / "noisy_departures_2013_07_16.csv").read_text().strip())
    np.random.default_rng(0).shuffle(rows)
    (tmp_path / "noisy.csv").write_text("\n".join([header, names, *rows]))
    lines, numbers = run_small(tmp_path, "published_counts", "--data", "noisy.csv", "--draws", "100", "--chains", "2")
    assert lines[0].startswith("976 flights in all, exactly; 64 quarter-hours and 16 hours with discrete_laplace noise")
    chains, draws, r_hat, ess, divergences = numbers[1]
    assert (chains, draws) == (2, 100)
    assert 0.99 < r_hat < 1.5
    assert 2 < ess < 1000
    assert divergences < 20
    assert ("not converged" in lines[1]) == (divergences > 0 or r_hat >= 1.05)

    table = np.array(numbers[4:22])
    hours, peaks = table[:16], table[16:]
    np.testing.assert_array_equal(table[:, :2], [*((hour, hour + 1) for hour in range(6, 22)), (6, 10), (16, 20)])
    np.testing.assert_allclose(
        peaks[:, [2, 3, 4, 7]], [hours[:4, [2, 3, 4, 7]].sum(axis=0), hours[10:14, [2, 3, 4, 7]].sum(axis=0)], atol=0.25
    )
    np.testing.assert_allclose(hours[:, [4, 7]].sum(axis=0), 976, atol=0.9)  # 16 numbers of one digit

    def variance(scale):
        q = np.exp(-1 / scale)
        return 2 * q / (1 - q) ** 2

    # An hour by itself and by its quarters; the total is known. The mean of both is near to a normal variable.
    by_hand = 15 / 16 / (1 / variance(10) + 1 / (4 * variance(5)))
    np.testing.assert_allclose(hours[:, 6] - hours[:, 5], 2 * 1.645 * by_hand**0.5, rtol=0.03)
    truth = dp.datasets.departures().cells().reshape(365, 24, 4)[196, 6:22].sum(axis=1)  # of the 16th of July
    for lower, upper in ((5, 6), (8, 9)):  # 90% intervals
        assert np.mean((hours[:, lower] <= truth) & (truth <= hours[:, upper])) >= 0.75
    np.testing.assert_allclose(1 - (hours[:, 9] - hours[:, 8]) / (hours[:, 6] - hours[:, 5]), hours[:, 10] / 100, atol=0.02)
    assert 10 < numbers[22][-1] < 40
    assert numbers[22][-1] < numbers[23][-1] < 60
    likely = numbers[24][2::3]
    assert likely == sorted(likely, reverse=True)
    assert 50 < sum(likely) <= 101
    assert lines[25] == "every draw has 976.000 to 976.000 flights in all"


@pytest.mark.slow
def test_bayesian_models_beside_least_squares(tmp_path):
    options = ["--data-sets", "day", "people", "--side", "40", "--epsilons", "0.01", "--releases", "1"]
    lines, _ = run_small(tmp_path, "bayesian_models", *options, "--draws", "100", "--chains", "1")
    assert lines[0].startswith("1 releases. cell: root mean squared error")
    assert lines[4].split() == ["data", "epsilon", "estimator", "cell", "ranges", "inside", "empty", "length", "s", "r-hat"]
    rows = [re.split(r" {2,}", line) for line in lines[5:11]]
    assert [(row[0], row[1].strip()) for row in rows] == [("day", "0.01")] * 3 + [("people", "0.01")] * 3
    found = {(row[0], row[2]): [np.nan if text == "-" else float(text) for text in row[3:]] for row in rows}
    models = {"day": "log_gaussian, nuts", "people": "sparse_counts, svi"}
    q = np.exp(-0.01)
    for name, size in (("day", 40), ("people", 1600)):
        error, ranges, inside, empty, length, _, r_hat = found[name, "least squares"]
        # Of the squares of discrete Laplace noise, whose standard deviations are sqrt(5) times their mean, the root.
        assert error == pytest.approx((2 * q) ** 0.5 / (1 - q), rel=2 * (5 / size) ** 0.5)
        assert ranges == 1
        # 400 cells at most; the shortest whole numbers that hold 90%.
        assert inside == pytest.approx(0.9, abs=4 * 0.3 / min(size, 400) ** 0.5)
        assert empty == pytest.approx(0.9, abs=0.2)
        assert length == 2 * 230
        assert np.isnan(r_hat)
        # Most cells are far below the noise: half the mass of non-negative ones is cut off, and a model knows most of the rest.
        nonnegative, model = found[name, "non-negative"], found[name, models[name]]
        assert np.isnan(nonnegative[2:5]).all()
        assert nonnegative[0] < 0.85 * error
        assert model[0] < 0.7 * error
        assert 0.3 < model[2] <= 1
        assert 0 < model[4] < 0.5 * length
        assert (model[6] > 0.99) if name == "day" else np.isnan(model[6])


@pytest.mark.slow
def test_every_estimator_on_one_page(tmp_path):
    truth = np.repeat([0, 300, 5, 120], 5)
    np.save(tmp_path / "steps.npy", np.concatenate([truth, [7] * 5]))
    names = ["noisy cells", "uniform", "DAWA buckets", "AHP", "sparse_counts"]
    options = ["--data", "steps.npy", "--cells", "20", "--releases", "30", "--slow-releases", "2", "--ranges", "50"]
    options += ["--draws", "100", "--chains", "1", "--estimators", *names[1:], "--json", "numbers.json"]
    lines, _ = run_small(tmp_path, "one_histogram", *options)
    assert lines[0] == "steps.npy: 20 cells, 2,125 records. Each estimator spends epsilon = 0.1;"
    assert lines[1].endswith(" 14.14. 30 releases, 2 of slow ones.")
    report = json.loads((tmp_path / "numbers.json").read_text())
    found = {entry["name"]: entry for entry in report["estimators"]}
    assert list(found) == names
    assert report["verdict"]["failed"] == {}
    q = np.exp(-0.1)
    variance = 2 * q / (1 - q) ** 2
    assert report["noise_stddev"] == pytest.approx(variance**0.5)
    # 600 squares of discrete Laplace noise, whose standard deviations are sqrt(5) times their mean, and the root.
    noisy = found["noisy cells"]
    relative = (5 / 600) ** 0.5 / 2
    assert noisy["cells"]["mean"] == pytest.approx(variance**0.5, rel=4 * relative)
    assert noisy["cells"]["standard_error"] == pytest.approx(variance**0.5 * relative, rel=0.6)
    # The fewest whole numbers that hold 90%, from -23 to 23, hold 1 - 2 q^24 / (1 + q) of it.
    inside = 1 - 2 * q**24 / (1 + q)
    assert 0.9 < inside < 0.92
    assert noisy["width"] == pytest.approx(46, abs=1e-3)
    assert noisy["cells_inside"]["mean"] == pytest.approx(inside, abs=4 * (inside * (1 - inside) / 600) ** 0.5)
    # Ranges of one release have errors in common.
    assert noisy["ranges_inside"]["mean"] > 0.9 - 4 * noisy["ranges_inside"]["standard_error"]
    # The total's noise in twenty equal parts.
    assert found["uniform"]["cells"]["mean"] == pytest.approx((truth.var() + variance / 400) ** 0.5, rel=1e-3)
    for name, entry in found.items():
        is_slow = name == "sparse_counts"
        assert entry["releases"] == list(range(2 if is_slow else 30))
        error, score = (np.array(entry[kind]["by_release"]) for kind in ("cells", "held_out"))
        assert entry["cells"]["mean"] == pytest.approx(error.mean() ** 0.5)
        # Squares of the second release's noise in 20 cells, and twice its products with the errors.
        spread = ((5 * variance**2 + 4 * variance * error.mean()) / 20) ** 0.5
        assert abs((score - error).mean()) < 4 * spread / error.size**0.5
        if not is_slow:
            assert (score - error).std(ddof=1) == pytest.approx(spread, rel=0.6)
    assert found["AHP"]["cells_inside"] is None
    assert found["AHP"]["width"] is None
    # A posterior from a hundred draws, in two releases.
    assert found["sparse_counts"]["cells"]["mean"] < noisy["cells"]["mean"]
    assert 0.5 < found["sparse_counts"]["cells_inside"]["mean"] <= 1

    table = {line[2:30].strip(): line[30:].split() for line in lines if "+-" in line and line.startswith("  ")}
    assert list(table) == names
    for kind, place in (("cells", 0), ("ranges", 3), ("held_out", 6)):
        least = min(found, key=lambda name, kind=kind: found[name][kind]["mean"])
        assert report["verdict"][kind]["least"] == least
        for name, row in table.items():
            assert float(row[place]) == pytest.approx(found[name][kind]["mean"], rel=1e-3)
            assert row[place + 2].endswith("*") == (name == least)
    for kind, word in (("cells", "error of a cell"), ("ranges", "error of a range"), ("held_out", "held-out score")):
        assert any(line.startswith(f"Least {word}: {report['verdict'][kind]['least']}. Near it: ") for line in lines)
    assert "uniform" not in report["verdict"]["cells"]["near"]


@pytest.mark.slow
def test_calibration_of_one_model(tmp_path):
    options = ["--models", "ordered_counts", "--cells", "12", "--problems", "40", "--draws", "200", "--seed", "1"]
    lines, numbers = run_small(tmp_path, "calibration", *options)
    assert lines[0] == "40 problems of 12 cells at epsilon = 0.3; 200 draws each."
    rows = {line[2:20].strip(): row for line, row in zip(lines, numbers, strict=True) if " +- " in line and len(row) == 5}
    assert set(rows) == {"a cell", "largest", "likelihood", "total", "tail", "clumping"}
    for name, (p, half, half_error, most, most_error) in rows.items():
        assert p > 1e-3, name
        assert half == pytest.approx(0.5, abs=4 * 0.079), name
        assert most == pytest.approx(0.9, abs=4 * 0.047), name
        assert 0 < max(half_error, most_error) < 0.09
    title, p, converged = re.split(r" {2,}", lines[-2].strip())
    assert title == "ordered_counts, nuts"
    assert float(p) == pytest.approx(min(1, 6 * min(row[0] for row in rows.values())), abs=6 * 5e-4)
    assert float(converged) > 0.8


@pytest.mark.calibration
def test_every_model_is_calibrated(tmp_path):
    """The full run, some twenty minutes on two cores."""
    lines, _ = run_small(tmp_path, "calibration")
    start = next(place for place, line in enumerate(lines) if line.startswith("Least p-value"))
    found = {line.split(",")[0].strip(): float(line.split()[2]) for line in lines[start + 1 : -1]}
    assert set(found) == set(dp.models.__all__)
    for name, p in found.items():
        assert p > 1e-3, name


def test_the_tables_of_bayesian_models():
    spec = importlib.util.spec_from_file_location("bayesian_models", FOLDER / "bayesian_models.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    routes = dp.datasets.plane_routes().table
    by_name = {name: script.table(name) for name in ("airports", "ranks", "carriers", "sizes", "hours")}
    assert by_name["airports"].sum() == routes["airport"].size
    np.testing.assert_array_equal(by_name["ranks"], np.sort(by_name["airports"]))
    assert by_name["carriers"].sum() == 334_264
    assert by_name["hours"].sum() == dp.datasets.adult_age_hours().cells().sum()
    assert by_name["sizes"].size == 96
    assert by_name["sizes"].sum() < 7945
    queries, _ = script.queries_and_model("carriers", (35,))
    answers = queries @ by_name["carriers"]
    assert answers[0] == 334_264
    assert answers[1:4].sum() == 334_264  # EWR, JFK, LGA
    assert answers[3] == by_name["carriers"][22:].sum()
    for name, counts in by_name.items():
        queries, model = script.queries_and_model(name, counts.shape)
        assert queries.shape[1] == counts.size
        assert callable(model)
