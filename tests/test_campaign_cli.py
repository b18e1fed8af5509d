import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import campaigns
import pytest

import dkaf
from dkaf.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    try:
        code = main(arguments)
    except SystemExit as stop:  # the parser's own refusal
        code = int(stop.code or 0)
    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    lines = output.err.strip().splitlines()
    assert lines[-1].startswith("dkaf: ")
    assert "Traceback" not in output.err
    return lines[-1]


SMALL = ("--pretrain-updates", "40", "--updates", "2", "--scale-updates", "2", "--queries", "4")


def test_from_csv_files_to_the_best_loaf(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaigns.past(folder / "past")
    truth = campaigns.pool(folder / "pool.csv")
    trained = run(
        capsys, "train", "past", "--response", "rise", "--id", "loaf", "-o", "bread.st", "--acquisition", "ucb", *SMALL
    )
    assert "finds a top-1% candidate after" in trained
    assert "(median of 1 held-out task)" in trained
    inspected = run(capsys, "inspect", "bread.st")
    for words in (
        "rise (larger is better)",
        "oven: categorical, 2 values: gas, wood",
        "flour: text, 5 words",
        "24 candidates",
    ):
        assert words in inspected
    about = run_json(capsys, "inspect", "bread.st")
    assert about["training"]["gain"]["tasks"] == 1
    assert len(about["training"]["tasks"]) == 6

    created = run(
        capsys, "campaign", "create", "bread.db", "--policy", "bread.st", "--pool", "pool.csv", "--budget", "9"
    )
    assert created.splitlines()[-1].startswith("bread.db: 60 candidates, policy dkaf ucb")
    for _ in range(4):
        batch = run_json(capsys, "ask", "bread.db", "-n", "2")
        assert len({item["id"] for item in batch}) == 2
        for item in batch:
            run(capsys, "tell", "bread.db", item["id"], str(truth[item["id"]]))
    status = run_json(capsys, "status", "bread.db")
    best = max(status["history"], key=lambda item: item["value"])
    assert status["best"] == {"id": best["id"], "value": best["value"], "measurements": 1}
    assert (status["left"], status["pending"], len(status["history"])) == (1, [], 8)
    assert best["value"] >= sorted(truth.values())[-6]
    assert run(capsys, "plot", "bread.db") == "bread.png\n"
    assert (folder / "bread.png").read_bytes().startswith(b"\x89PNG")
    assert len(run(capsys, "export", "bread.db").splitlines()) == 9
    assert run(capsys, "export", "bread.db", "-o", "out.csv") == "out.csv\n"
    again = run(
        capsys, "train", "bread.db", "-o", "again.st", "--method", "gp", "--hold-out", "0", "--pretrain-updates", "5"
    )
    assert again.startswith("again.st: gp with ucb")


def test_tell_takes_negative_numbers_failures_and_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaigns.pool(folder / "pool.csv")
    run(capsys, "campaign", "create", "b.db", "--policy", "gp", "--pool", "pool.csv", "--id", "loaf", "--minimise")
    for text, value in (("-3.5", -3.5), ("-1e-3", -0.001), ("-.5", -0.5), ("2e2", 200.0)):
        assert run_json(capsys, "tell", "b.db", "l1", text)["history"][-1]["value"] == value
    assert run_json(capsys, "tell", "b.db", "l2", "--failed")["failed"][0]["id"] == "l2"
    (folder / "results.csv").write_text("loaf,score\nl3,-7\nl4,2\n")
    told = run_json(capsys, "tell", "b.db", "--from", "results.csv", "--response", "score")
    assert [item["value"] for item in told["history"][-2:]] == [-7.0, 2.0]
    assert told["best"]["id"] == "l3"
    assert run(capsys, "undo", "b.db") == "taken back: l4 told 2\n"
    run(capsys, "release", "b.db", "l2")
    status = run_json(capsys, "status", "b.db")
    assert (status["failed"], len(status["history"])) == ([], 5)
    assert run_json(capsys, "campaign", "budget", "b.db", "7")["left"] == 2
    assert run_json(capsys, "campaign", "budget", "b.db", "none")["left"] is None


def test_wrong_calls_are_refused_in_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaigns.past(folder / "past", 2)
    campaigns.pool(folder / "pool.csv")
    run(capsys, "campaign", "create", "b.db", "--policy", "gp", "--pool", "pool.csv", "--id", "loaf")
    before = (folder / "b.db").read_bytes()
    (folder / "results.csv").write_text("loaf,score\nl3,-7\nl4,\n")
    for arguments, message in (
        (("train", "past", "-o", "x.st"), "--response names the column"),
        (("train", "past", "-o", "x.st", "--response", "price"), "no 'price'"),
        (("train", "past", "-o", "x.st", "--response", "rise", "--kind", "oven"), "--kind takes COLUMN=KIND"),
        (("train", "past", "-o", "x.st", "--response", "rise", "--report", "2"), "leave at least one of the 2 tasks"),
        (("train", "past", "-o", "x.st", "--response", "rise", "--report", "-1"), "--report is at least 0"),
        (("train", "past", "results.csv", "b.db", "nix", "-o", "x.st"), "nix does not exist"),
        (("train", "past", __file__, "-o", "x.st"), "is none of these; train on it alone"),
        (("train", "nowhere.csv", "-o", "x.st", "--response", "rise"), "does not exist"),
        (("train", "b.db", "-o", "x.st"), "the campaign b.db has none"),
        (("campaign", "create", "b.db", "--policy", "gp", "--pool", "pool.csv"), "is there already"),
        (("campaign", "create", "c.db", "--policy", "pool.csv", "--pool", "pool.csv"), "is a safetensors file"),
        (("campaign", "budget", "b.db", "many"), "whole number or none"),
        (("ask", "b.db", "-n", "0"), "at least 1 candidate"),
        (("ask", "b.db", "-n", "61"), "61 candidates were asked for, 60"),
        (("ask", "nowhere.db"), "does not exist"),
        (("tell", "b.db"), "tell takes an id and a value"),
        (("tell", "b.db", "l1"), "none came for 'l1'"),
        (("tell", "b.db", "l1", "high"), "a response is a number, 'high' came for 'l1'"),
        (("tell", "b.db", "l1", "-inf"), "finite"),
        (("tell", "b.db", "nix", "1"), "'nix' names none"),
        (("tell", "b.db", "l1", "3", "--failed"), "has no value"),
        (("tell", "b.db", "l1", "--from", "results.csv"), "leave it out"),
        (("tell", "b.db", "--from", "results.csv"), "pass --response"),
        (
            ("tell", "b.db", "--from", "results.csv", "--response", "score"),
            "row 2 of results.csv has none in column 'score'",
        ),
        (("release", "b.db", "l1"), "is neither"),
        (("undo", "b.db"), "has none; nothing to do"),
        (("plot", "b.db", "-o", "x.bmp"), "a plot is a .png"),
        (("plot", "b.db", "-o", "nowhere/x.png"), "folder must exist"),
        (("export", "b.db", "-o", "x.xlsx"), "an export is a .csv file"),
        (("inspect", "pool.csv"), "is not a whole one"),
    ):
        assert message in refused(capsys, *arguments), arguments
    assert (folder / "b.db").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["b.db", "past", "pool.csv", "results.csv"]


@pytest.mark.parametrize("command", [["--help"], ["status", "b.db"], ["tell", "b.db", "l1", "-2"], ["undo", "b.db"]])
def test_commands_that_compute_nothing_import_no_pytorch(folder: Path, command: list[str]) -> None:
    campaigns.pool(folder / "pool.csv")
    dkaf.Campaign.create("b.db", "pool.csv", "gp", id="loaf").tell("l0", 1.0)
    program = (
        "import sys\nfrom dkaf.cli import main\n"
        f"try:\n    code = main({command!r})\nexcept SystemExit as stop:\n    code = stop.code\n"
        "print(sorted({'torch', 'numpy', 'scipy'} & set(sys.modules)), code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_a_column_that_follows_the_response_is_pointed_at(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    past = folder / "past"
    past.mkdir()
    for day in range(2):
        rows = [row | {"weight": str(-(float(row["rise"]) ** 3))} for row in campaigns.bread(day)]
        campaigns.write(past / f"{day}.csv", rows)
    main(["train", "past", "--response", "rise", "--id", "loaf", "-o", "x.st", "--method", "random"])
    said = capsys.readouterr().err
    assert "warning: weight ranks the candidates as the response does" in said
    assert "heat ranks" not in said


def test_the_same_seed_gives_the_same_campaign(folder: Path) -> None:
    truth = campaigns.pool(folder / "pool.csv")
    histories = []
    for name in ("one.db", "two.db"):
        campaign = dkaf.Campaign.create(name, "pool.csv", "gp", id="loaf", seed=3)
        for _ in range(6):
            candidate = campaign.ask()[0]
            campaign.tell(candidate.id, truth[candidate.id])
        histories.append([measurement.id for measurement in campaign.history])
    assert histories[0] == histories[1]


def test_small_campaigns_lower_the_queries_of_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = campaigns.pool(folder / "pool.csv")
    (folder / "done").mkdir()
    for number, size in enumerate((2, 5, 8)):
        campaign = dkaf.Campaign.create(folder / "done" / f"c{number}", "pool.csv", "gp", id="loaf")
        campaign.tell_all(list(truth.items())[:size])
    assert main(["train", "done", "-o", "x.st", "--method", "gp", "--pretrain-updates", "3"]) == 0
    said = capsys.readouterr().err
    assert "left out: c0 has 2 candidates" in said
    assert "make 4 queries, since c1 has 5 candidates" in said


def test_creation_shows_what_the_columns_are_taken_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaigns.pool(folder / "pool.csv")
    shown = run(capsys, "campaign", "create", "b.db", "--policy", "gp", "--pool", "pool.csv", "--id", "loaf")
    for words in ("oven: categorical, 2 values", "loaf: not used", "called as column 'loaf' says"):
        assert words in shown
    assert "by their row numbers" in run(capsys, "campaign", "create", "c.db", "--policy", "gp", "--pool", "pool.csv")
    arguments = ("--policy", "gp", "--pool", "pool.csv", "--id", "loaf", "--response", "loaf")
    wrong = refused(capsys, "campaign", "create", "d.db", *arguments)
    assert "columns of their own" in wrong


def test_odd_ids_and_results_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaigns.write(folder / "p.csv", [{"n": "-x", "v": "1"}, {"n": "\u00e9\u21921", "v": "2"}, {"n": "NA", "v": "3"}])
    run(capsys, "campaign", "create", "b.db", "--policy", "gp", "--pool", "p.csv", "--id", "n")
    assert "goes after --" in refused(capsys, "tell", "b.db", "-x", "3")
    assert run(capsys, "tell", "b.db", "--", "-x", "3").startswith("best so far 3 by -x")
    assert run(capsys, "tell", "b.db", " NA ", "4").startswith("best so far 4 by NA")
    assert "names none" in refused(capsys, "tell", "b.db", "\udcff", "3")
    told = ("tell", "b.db", "--from", "r.csv", "--response", "score")
    (folder / "r.csv").write_text("n,score\nNA,1\nnix,2\n")
    assert "'nix' (row 2 of r.csv, column 'n')" in refused(capsys, *told)
    (folder / "r.csv").write_text("n,score\n")
    assert "r.csv has none" in refused(capsys, *told)
    assert run_json(capsys, "export", "b.db", "-o", "out.csv") == {"export": "out.csv"}
    run(capsys, "ask", "b.db")
    done = subprocess.run(
        [sys.executable, "-m", "dkaf", "status", "b.db"],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert b"best so far 4" in done.stdout
    assert b"pending  \\xe9\\u21921" in done.stdout
