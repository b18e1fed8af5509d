import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import conformance
import numpy as np
import pytest
from matplotlib.image import imread

import dkaf
from dkaf.cli import main
from dkaf.experiments.demo import NAMES, Demo, MethodRow, run_demo
from dkaf.experiments.report import terminal_report, text_curves, typical_search, write_report
from dkaf.settings import METHODS


def small_demo() -> Demo:
    train, test = dkaf.digits_tasks(n_tasks=9, pool_size=40).split(4, 5)
    rows = []
    for method in METHODS:
        policy = dkaf.fit(train, train, method, **conformance.TINY)
        rows.append(MethodRow(method, dkaf.evaluate(policy, test), policy.training_log))
    return Demo(tuple(rows), test, seed=0)


def demo_of(gaps: dict[str, float]) -> Demo:
    """A demo whose methods have the given gaps, nearly constant over tasks."""
    wiggle = np.linspace(-0.1, 0.1, 5)[:, None]
    rows = [
        MethodRow(
            method,
            dkaf.Result(gaps.get(method, 9.0) + wiggle, np.full(5, 10.0), np.zeros((5, 2), dtype=np.int64), 1),
            dkaf.fit(conformance.small_tasks(), method="random").training_log,
        )
        for method in METHODS
    ]
    return Demo(tuple(rows), conformance.small_tasks(), seed=0)


def test_the_page_holds_every_row_and_both_figures_and_loads_nothing(tmp_path: Path) -> None:
    demo = small_demo()
    text = write_report(demo, tmp_path).read_text()
    for row in demo.rows:
        line = (
            f"<td>{NAMES[row.method]}</td><td>{row.result.cumulative_gap:.2f}</td><td>{row.result.standard_error:.2f}"
        )
        assert line in text
    pictures = re.findall(r"src='data:image/png;base64,([^']+)'", text)
    assert len(pictures) == 2
    for picture in pictures:
        pixels = imread(io.BytesIO(base64.b64decode(picture)), format="png")
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].std() > 0.05  # something is drawn
    assert "http" not in text


@pytest.mark.parametrize(
    ("ours", "dkl", "chance", "shown"),
    [
        ([0, 1, 2, 3, 4], [0, 1, 3, 2, 4], [4, 3, 0, 2, 1], 3),  # in the third, chance finds its best
        ([0, 0, 0, 5, 6], [0, 0, 0, 5, 6], [2, 0, 1, 3, 4], 0),  # equals are equally near
        ([0, 1, 2, 99], [0, 1, 2, 99], [0, 1, 2, 99], 1),  # by rank: one that went astray moves nothing
    ],
)
def test_the_search_that_is_shown_is_nobodys_stroke_of_luck(
    ours: list[float], dkl: list[float], chance: list[float], shown: int
) -> None:
    demo, gaps = demo_of({}), {"dkaf": ours, "dkl": dkl, "random": chance}
    rows = [
        replace(row, result=replace(row.result, gaps=np.array(gaps.get(row.method, dkl), dtype=float)[:, None]))
        for row in demo.rows
    ]
    assert typical_search(replace(demo, rows=tuple(rows))) == shown


def test_the_terminal_shows_every_row_and_the_curves(capsys: pytest.CaptureFixture[str]) -> None:
    demo = small_demo()
    terminal_report(demo)
    shown = capsys.readouterr().out
    for row in demo.rows:
        assert re.search(rf"{NAMES[row.method]}\W+{row.result.cumulative_gap:.2f}", shown)
    assert "gap after each query" in shown


def test_curves_put_larger_gaps_higher() -> None:
    lines = text_curves(
        demo_of({"dkaf": 1.0, "random": 8.0} | dict.fromkeys(("dkl", "gp", "rl", "metabo"), 4.0))
    ).splitlines()
    height = {letter: [i for i, line in enumerate(lines) if line.rstrip().endswith(letter)] for letter in "OR"}
    assert height["R"] < height["O"]


def test_findings_say_plainly_who_won() -> None:
    good = demo_of({"dkaf": 3.0, "dkl": 4.0, "random": 8.0}).findings()
    assert good[0].startswith("Ours came out below DKL: 3.00 against 4.00, a paired difference of -1.00")
    assert good[1].startswith("DKL came out below Random")
    bad = demo_of({"dkaf": 5.0, "dkl": 4.0, "random": 3.0}).findings()
    assert bad[0].startswith("Ours came out NOT below DKL: 5.00 against 4.00")
    assert bad[1].startswith("DKL came out NOT below Random")


def test_paired_difference_is_over_tasks() -> None:
    mean, error = demo_of({"dkaf": 3.0, "dkl": 4.0}).difference("dkaf", "dkl")
    assert mean == pytest.approx(-1.0)
    assert error == pytest.approx(0.0, abs=1e-12)


def tiny_run(out: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> Demo:
    for name, size in (("TRAIN", 4), ("VALIDATION", 2), ("TEST", 3)):
        monkeypatch.setattr(f"dkaf.experiments.demo.{name}", size)
    shown: list[tuple[str, str]] = []
    demo = run_demo(out, 0, jobs, lambda label, stage, *_: shown.append((label, stage)), **conformance.TINY)
    for acquisition in ("mi", "ei", "ucb"):
        assert ("Ours", f"policy gradient, {acquisition}") in shown
    return demo


def test_the_demo_gives_the_same_numbers_on_one_worker_or_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (tiny_run(tmp_path / str(jobs), jobs, monkeypatch) for jobs in (1, 2))
    for first, second in zip(one.rows, two.rows, strict=True):
        assert first.method == second.method
        np.testing.assert_array_equal(first.result.gaps, second.result.gaps)
    policies = [dkaf.load(tmp_path / "1" / f"{method}.safetensors") for method in METHODS]
    assert METHODS[0] == "dkaf"  # of which a few updates make nothing that searches better than a GP, or chance
    assert policies[0].method in ("dkaf", "gp", "random")
    assert [policy.method for policy in policies[1:]] == list(METHODS[1:])
    assert len(dkaf.TaskSet.load(tmp_path / "2" / "test.npz")) == 3


def test_an_interrupt_ends_the_demo_and_its_workers(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("dkaf")), "demo", "--out", str(tmp_path / "out"), "--jobs", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "likelihood" in line or "policy gradient" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in rest
    for _ in range(100):
        time.sleep(0.1)
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
    pytest.fail("a worker outlived the demo")


@pytest.mark.slow
def test_ours_comes_out_below_dkl_and_dkl_below_random(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json", "--out", str(tmp_path)]) == 0
    gap = {row["method"]: row["cumulative_gap"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert gap["dkaf"] < gap["dkl"] < gap["random"]
    assert (tmp_path / "report.html").exists()
