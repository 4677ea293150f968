"""Noisy measurement files on the command line: made-up ones, tables from them, and what goes wrong."""

import json
from typing import Any

import duckdb
import numpy as np
import pytest
from command_line import inside

from dpinfer import spine
from dpinfer.spine.tables import PL94_TABLES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("census")


def read(path) -> Any:
    return duckdb.execute(f"SELECT * FROM '{path}'").fetchnumpy()


@pytest.mark.slow
def test_from_files_to_tables(folder, monkeypatch, capsys):
    assert inside(monkeypatch, folder, "spine", "example", "files", "--blocks", "80", "--seed", "2") == 0
    assert "80 Block" in capsys.readouterr().out
    assert inside(monkeypatch, folder, "spine", "infer", "files", "--level", "county,tract", "-o", "tables.csv") == 0
    said = capsys.readouterr()
    assert "rows of County, Tract" in said.out
    assert "clean attributes: hispanic, cenrace; dense: hhgq (by" in said.out
    assert "nothing else" in said.out
    assert said.err == ""
    table = read(folder / "tables.csv")
    assert set(table["query"]) == set(PL94_TABLES)
    estimate = spine.product_least_squares(spine.Product(folder / "files"))
    own = (table["level"] == "Tract") & (table["query"] == "voting * cenrace")
    answers = estimate.areas("Tract").answer("voting * cenrace")
    np.testing.assert_allclose(np.asarray(table["value"][own], float), answers.values.ravel(), rtol=1e-9)
    np.testing.assert_allclose(np.asarray(table["stddev"][own], float), answers.stddev.ravel(), rtol=1e-9)

    # Other options: the country's total is exact, blocks in single precision, parts prepared beforehand.
    same = ["--exact", "state", "--zeros", "stated", "--cut", "block_group", "--memory", "0.05", "--work", "parts"]
    assert inside(monkeypatch, folder, "spine", "messages", "files", "--under", "050,150", *same) == 0
    assert "messages of the units under 050,150" in capsys.readouterr().out
    asked = [
        "--level",
        "US, Block Group,block",
        "--query",
        "total",
        "--query",
        "numraces",
        "--coverage",
        "0.9",
        "--float32",
        "--json",
    ]
    assert inside(monkeypatch, folder, "spine", "infer", "files", *asked, *same, "--float32", "-o", "tables.parquet") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["units"]["Block"] == 80
    table = read(folder / "tables.parquet")
    assert len(table["value"]) == facts["rows"] == 7 * (1 + facts["units"]["Block_Group"] + 80)
    assert table["stddev"][0] < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["infer", "nowhere"], "there is no folder nowhere"),
        (["infer", "files", "--level", "place", "-o", "new.csv"], "level must be one of"),
        (["infer", "files", "--query", "race", "-o", "new.csv"], "'race' is none of"),
        (["infer", "files", "-o", "tables.txt"], "must end in .parquet or .csv"),
        (["infer", "files", "-o", "there.csv"], "there.csv exists already"),
        (["infer", "files", "--zeros", "some", "-o", "new.csv"], "zeros must be one of"),
        (["messages", "files", "--under", "9", "--work", "new"], "under must be beginnings"),
        (["example", "files"], "exists already"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, monkeypatch, capsys, arguments, message):
    if not (folder / "files").exists():
        spine.write_product(folder / "files", num_blocks=30, seed=2)
    (folder / "there.csv").write_text("")
    before = sorted(path.name for path in folder.iterdir())
    assert inside(monkeypatch, folder, "spine", *arguments) == 1
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("dpinfer: ")
    assert said.err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before
