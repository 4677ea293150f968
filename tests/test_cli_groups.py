"""Count-of-counts histograms on the command line: three files to a release, to estimates, to answers."""

import csv
import json

import numpy as np
import pytest
from command_line import inside

import dpinfer as dp

GROUPS = 600


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """600 groups of sizes 0 to 5 in three counties of two states; the folder and the true sizes of each group."""
    folder = tmp_path_factory.mktemp("groups")
    rng = np.random.default_rng(0)
    sizes, county = rng.integers(0, 6, GROUPS), rng.integers(0, 3, GROUPS)
    group = np.repeat(np.arange(GROUPS), sizes)
    lines = {
        "entities": ["entity,group", *(f"{i},{g}" for i, g in enumerate(group))],
        "groups": ["group,region", *(f"{g},{c}" for g, c in enumerate(county))],
        "hierarchy": ["region,level_0,level_1,level_2", "0,US,CA,Alameda", "1,US,CA,Yolo", "2,US,NY,Kings"],
    }
    for name, text in lines.items():
        (folder / f"{name}.csv").write_text("\n".join(text) + "\n")
    return folder, sizes, county


TABLES = ("entities.csv", "groups.csv", "hierarchy.csv")
ENOUGH = ("--count-of-counts", "--epsilon", "600", "--max-size", "9")


@pytest.mark.slow
def test_from_three_files_to_answers(files, monkeypatch, capsys):
    folder, sizes, county = files
    assert inside(monkeypatch, folder, "measure", *TABLES, *ENOUGH, "--force", "-o", "release.npz") == 0
    said = capsys.readouterr().out
    assert "count-of-counts histograms (H_c x H_c x H_c) of 1 x 2 x 3 regions up to size 9, epsilon = 600" in said
    assert inside(monkeypatch, folder, "inspect", "release.npz", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["groups"], facts["regions"], facts["epsilon"], facts["unit"]) == (GROUPS, [1, 2, 3], "600", "entity")
    assert inside(monkeypatch, folder, "inspect", "release.npz") == 0
    assert "200, 200, 200" in capsys.readouterr().out

    options = ["--plot", "figure.png", "--at-level", "1", "--draws", "5", "--force", "-o", "sizes.csv"]
    assert inside(monkeypatch, folder, "infer", "release.npz", *options) == 0
    assert f"{GROUPS} groups with {sizes.sum():,} entities in 6 regions" in capsys.readouterr().out
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "sizes.csv").open() as file:
        rows = list(csv.DictReader(file))
    kings = {int(row["size"]): int(row["groups"]) for row in rows if row["region"] == "US/NY/Kings"}
    assert kings == {size: (sizes[county == 2] == size).sum() for size in range(6)}

    asked = ["--quantile", "0.5", "--largest", "1", "--largest", "1000", "--share", "2", "--at-level", "2", "--draws", "5"]
    assert inside(monkeypatch, folder, "answer", "release.npz", *asked, "--json") == 0
    answers = {(row["region"], row["asked"]): row for row in json.loads(capsys.readouterr().out)["answers"]}
    assert len(answers) == 3 * 4
    yolo = np.sort(sizes[county == 1])
    assert answers["US/CA/Yolo", "quantile 0.5"]["estimate"] == yolo[(yolo.size + 1) // 2 - 1]
    assert answers["US/CA/Yolo", "largest 1"] == {
        "region": "US/CA/Yolo", "asked": "largest 1", "estimate": 5.0, "lower": 5.0, "upper": 5.0,
    }  # fmt: skip
    assert answers["US/CA/Yolo", "largest 1000"]["estimate"] is None
    assert answers["US/CA/Yolo", "share of size 2"]["estimate"] == pytest.approx((yolo == 2).mean())
    assert inside(monkeypatch, folder, "answer", "release.npz", *asked) == 0
    shown = capsys.readouterr().out
    assert "US/CA/Yolo" in shown
    assert "none to none" in shown


def test_every_option_of_measure(files, monkeypatch, capsys):
    folder, _, _ = files
    options = ["--method", "H_c x H_g x fusion", "--max-size-epsilon", "300", "--neighbors", "replace_one", "-o", "other.npz"]
    assert inside(monkeypatch, folder, "measure", *TABLES, *ENOUGH, *options) == 0
    release = dp.mechanisms.CountOfCounts.load(folder / "other.npz")
    assert [level.method for level in release.levels] == ["H_c", "H_g", "fusion"]
    assert (release.epsilon, release.neighbors, release.max_size) == (900, "replace_one", 6)
    assert inside(monkeypatch, folder, "measure", *TABLES, *ENOUGH, "--private-groups", "--force", "-o", "other.npz") == 0
    assert dp.mechanisms.CountOfCounts.load(folder / "other.npz").num_groups is None
    capsys.readouterr()
    assert inside(monkeypatch, folder, "inspect", "other.npz") == 0
    shown = capsys.readouterr().out
    assert "private" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure", *TABLES[:2], "--count-of-counts", "--epsilon", "1", "--max-size", "9"], "needs three files"),
        (["measure", *TABLES, "--count-of-counts", "--epsilon", "1"], "needs --max-size"),
        (["measure", *TABLES, "--count-of-counts", "--max-size", "9"], "exactly one of --epsilon"),
        (["measure", *TABLES, *ENOUGH, "--method", "H_d"], "method must be one of"),
        (["measure", *TABLES, *ENOUGH, "-o", "taken.npz"], "exists already"),
        (["measure", *TABLES, "--epsilon", "1"], "is for --count-of-counts"),
        (["measure", *TABLES[1:], TABLES[0], *ENOUGH], "hierarchy must have the columns region, level_0"),
        (["answer", "kept.npz"], "Nothing is asked for"),
        (["answer", "kept.npz", "--range", "a=1..2"], "give --quantile, --largest or --share"),
        (["answer", "kept.npz", "--largest", "0"], "ranks must be at least 1"),
        (["answer", "kept.npz", "--share", "99"], "sizes must be from 0 to max_size 9"),
        (["answer", "kept.npz", "--quantile", "2"], "shares must be numbers from 0 to 1"),
        (["answer", "kept.npz", "--share", "1", "--at-level", "7"], "level must be from 0"),
        (["infer", "kept.npz", "-o", "taken.npz"], "exists already"),
        (["infer", "kept.npz", "-o", "new.csv", "--plot", "x.png", "--at-level", "5"], "level must be from 0"),
        (["inspect", "kept.npz", "--delta", "1e-6"], "--delta is for releases under rho"),
    ],
)
def test_errors_in_one_line(files, monkeypatch, capsys, arguments, message):
    folder, _, _ = files
    (folder / "taken.npz").touch()
    if not (folder / "kept.npz").exists():
        assert inside(monkeypatch, folder, "measure", *TABLES, *ENOUGH, "-o", "kept.npz") == 0
        capsys.readouterr()
    if arguments[0] == "measure" and "-o" not in arguments:
        arguments = [*arguments, "-o", "new.npz"]
    assert inside(monkeypatch, folder, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("dpinfer: ")
    assert error.count("\n") == 1
    assert not (folder / "new.csv").exists()
    assert not (folder / "new.npz").exists()


def test_what_is_for_groups_only(files, monkeypatch, capsys, tmp_path):
    release = dp.measure(np.arange(4), dp.queries.Identity(4), epsilon=1)
    release.save(tmp_path / "cells.npz")
    assert inside(monkeypatch, tmp_path, "answer", "cells.npz", "--largest", "1") == 1
    assert "--largest and --share are for group sizes" in capsys.readouterr().err
    # Files that are no releases at all are named as before.
    np.save(tmp_path / "array.npy", np.arange(3))
    (tmp_path / "text.npz").write_text("nothing")
    for name, message in (
        ("array.npy", "it is not an .npz file"),
        ("text.npz", "it is not an .npz file"),
        ("none.npz", "No such"),
    ):
        for command in ("inspect", "answer", "infer"):
            assert inside(monkeypatch, tmp_path, command, name, *(["--quantile", "0.5"] if command == "answer" else [])) == 1
            assert message in capsys.readouterr().err
