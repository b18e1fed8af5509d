"""The grid: its cells, what they share, resuming, failing, and the same rows from every engine."""

import contextlib
import dataclasses
import json
import lzma
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dkaf
from dkaf.cli import main
from dkaf.experiments import engines, paper, work
from dkaf.experiments.board import Board, standings
from dkaf.experiments.engines import LocalEngine, Outcome, RayEngine
from dkaf.experiments.grid import KERNEL_OF, Grid, Job, plan
from dkaf.experiments.paper import State, Store, run_grid
from dkaf.experiments.rows import Cell, Row, RowFile
from dkaf.experiments.work import Failure, Files, perform
from dkaf.settings import RECIPES

TINY_OPTIONS = [
    *("--datasets", "digits", "--sizes", "2,3", "--runs", "2", "--acquisitions", "mi,ei", "--pool-size", "30"),
    *("--test-tasks", "3", "--validation-tasks", "3", "--starts", "2"),
    *("--set", "updates=2", "--set", "pretrain_updates=3", "--set", "queries=3", "--set", "validation_starts=1"),
    *("--set", "scale_updates=2"),
]
TINY = Grid(
    datasets=("digits",),
    sizes=(2, 3),
    runs=2,
    acquisitions=("mi", "ei"),
    pool_size=30,
    test_tasks=3,
    starts=2,
    validation_tasks=3,
    settings=(
        *(("pretrain_updates", "3"), ("queries", "3"), ("scale_updates", "2"), ("updates", "2")),
        ("validation_starts", "1"),
    ),
)


def quiet(state: State, job: Job | None, outcome: Outcome | None) -> None:
    pass


class Here:
    """Jobs run in this process, at once: the plainest engine there could be."""

    slots = 1

    def __init__(self, perform: Callable[[Job, Grid, dict[str, Files]], Outcome] = perform) -> None:
        self.perform = perform
        self.performed: list[Job] = []
        self.results: list[tuple[Job, Outcome]] = []

    def start(self, job: Job, grid: Grid, needed: dict[str, Files]) -> None:
        self.performed.append(job)
        self.results.append((job, self.perform(job, grid, needed)))

    def finished(self, seconds: float) -> Iterator[tuple[Job, Outcome]]:
        results, self.results = self.results, []
        yield from results

    def close(self) -> None:
        pass


def comparable(out: Path) -> dict[Cell, dict[str, object]]:
    """Rows without timings, and without the commit: whoever works on the tree may make one while its tests run."""
    rows = RowFile(out / "rows.jsonl").read()
    return {cell: row.without_timings() | {"commit": None} for cell, row in rows.items()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Here]:
    """The tiny grid, run by the plainest engine without interruption."""
    out, engine = tmp_path_factory.mktemp("grid") / "out", Here()
    run_grid(TINY, out, lambda: engine, quiet)
    return out, engine


def test_every_cell_of_the_paper_is_there_once() -> None:
    cells = Grid().cells
    assert len(cells) == len(set(cells)) == 3 * 5 * 10 * (3 * 3 + 3 + 1)
    assert Counter(c.method for c in cells)["dkaf"] == 450


def test_shared_work_is_done_once(reference: tuple[Path, Here]) -> None:
    _, engine = reference
    kinds = Counter(job.kind for job in engine.performed)
    assert kinds["tasks"] == 2  # one classifier a run
    assert kinds["kernel"] == 2 * 2 * 2  # one for DKL and ours, one for GP and MetaBO, in each run and size
    searched = Counter(job.cell.method for job in engine.performed if job.kind == "cell")
    assert searched["random"] == searched["informed"] == 2  # they do not learn, so sizes share a search
    assert searched["dkaf"] == searched["dkl"] == 2 * 2 * 2


def test_tests_and_starts_of_a_run_are_the_same_for_every_method_and_size(reference: tuple[Path, Here]) -> None:
    rows = RowFile(reference[0] / "rows.jsonl").read().values()
    for run in range(TINY.runs):
        starts = {tuple(row.start_gaps) for row in rows if row.run == run}
        assert len(starts) == 1
    assert len({tuple(row.start_gaps) for row in rows}) == TINY.runs  # and other ones in every run


def test_a_row_is_what_fit_and_evaluate_give(reference: tuple[Path, Here]) -> None:
    """By hand, without the grid: the tasks of the run's seed, fit and evaluate with that seed."""
    out, _ = reference
    seed, size = 1, 3
    corpus = dkaf.load_corpus("digits")
    tasks = dkaf.similarity_tasks(corpus.features, corpus.labels, 3 + 3 + size, 30, seed=seed)
    test, validation, train = tasks.split(3, 3, size)
    few = dict(TINY.settings)
    rows = RowFile(out / "rows.jsonl").read()
    for method, acquisition in (
        ("dkaf", "ei"),
        ("dkl", "mi"),
        ("gp", "mi"),
        ("metabo", ""),
        ("rl", ""),
        ("random", ""),
    ):
        policy = dkaf.fit(train, validation, method, acquisition or "mi", seed=seed, **few)
        result = dkaf.evaluate(policy, test, queries=3, starts=2, seed=seed)
        row = rows[Cell("digits", "default", size, 1, method, acquisition)]
        np.testing.assert_array_equal(row.gaps, (result.gaps[::2] + result.gaps[1::2]) / 2)
        np.testing.assert_array_equal(row.start_gaps, (result.start_gaps[::2] + result.start_gaps[1::2]) / 2)
        assert (row.seed, row.updates, row.stopped) == (seed, policy.training_log.updates, policy.training_log.stopped)
        assert [tuple(point) for point in row.validation] == list(policy.training_log.validation)


def test_a_larger_grid_keeps_the_rows_of_a_smaller_one(reference: tuple[Path, Here], tmp_path: Path) -> None:
    small = dataclasses.replace(TINY, sizes=(2,), runs=1, methods=("dkl", "random"), acquisitions=("mi",))
    run_grid(small, tmp_path / "small", Here, quiet)
    before = comparable(tmp_path / "small")
    everything = comparable(reference[0])
    assert before == {cell: everything[cell] for cell in before}
    engine = Here()
    state = run_grid(TINY, tmp_path / "small", lambda: engine, quiet, extend=True)
    assert state.done == len(TINY.cells)
    assert comparable(tmp_path / "small") == everything
    assert not {job.cell for job in engine.performed if job.kind == "cell"} & set(small.cells)


@pytest.mark.parametrize("jobs", [1, 3])
def test_rows_are_the_same_on_any_number_of_processes(reference: tuple[Path, Here], tmp_path: Path, jobs: int) -> None:
    run_grid(TINY, tmp_path / "out", lambda: LocalEngine(jobs), quiet)
    assert comparable(tmp_path / "out") == comparable(reference[0])
    lines = (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
    assert len(lines) == len(TINY.cells)


def command(out: Path) -> list[str]:
    return [sys.executable, "-m", "dkaf", "paper", "run", "--out", str(out), "--jobs", "2", *TINY_OPTIONS]


def processes_of_group(group: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = status.read_text().split(" (", 1)
            fields = rest.rsplit(") ", 1)[1].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(pid))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for left processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_random_moments_it_goes_on_and_ends_in_the_same_rows(
    reference: tuple[Path, Here], tmp_path: Path, how: signal.Signals
) -> None:
    out, moments, was = tmp_path / "out", random.Random(int(how)), 0
    for _ in range(4):
        process = subprocess.Popen(command(out), stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        rows, deadline = out / "rows.jsonl", time.monotonic() + 300
        wanted = was + moments.randint(1, 3)  # rows more, then some moments more, so that it is killed inside a job
        while process.poll() is None and time.monotonic() < deadline:
            if rows.exists() and rows.read_bytes().count(b"\n") >= wanted:
                break
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 0.3))
        if how == signal.SIGINT:
            os.killpg(process.pid, how)  # a terminal's Ctrl-C reaches the workers too
        else:
            process.send_signal(how)
        code = process.wait(timeout=30)
        process.communicate()
        if how == signal.SIGINT and code != 0:
            assert code == 130
        for _ in range(100):  # no worker outlives its parent
            if not processes_of_group(process.pid):
                break
            time.sleep(0.1)
        assert not processes_of_group(process.pid)
        was = rows.read_bytes().count(b"\n")
    with open(out / "rows.jsonl", "ab") as file:
        file.write(b'{"dataset": "digits", "siz')  # as a kill in the middle of a write leaves it
    done = subprocess.run(command(out), capture_output=True, text=True, check=True)
    assert f"{len(TINY.cells)} of {len(TINY.cells)} cells" in done.stdout
    assert comparable(out) == comparable(reference[0])
    lines = (out / "rows.jsonl").read_text().splitlines()
    assert len(lines) == len({json.dumps({**json.loads(line), "seconds": 0}) for line in lines}) == len(TINY.cells)


def test_a_failing_cell_is_recorded_and_does_not_stop_the_others(
    reference: tuple[Path, Here], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes(job: Job, grid: Grid, needed: dict[str, Files]) -> Outcome:
        if job.kind == "kernel" and job.cell.size == 3 and job.cell.method in ("dkl", "dkaf"):
            return Failure("Traceback\nMemoryError: no kernel today")
        return perform(job, grid, needed)

    monkeypatch.setattr(engines, "LocalEngine", lambda jobs: Here(sometimes))
    out = tmp_path / "out"
    options = ["paper", "run", "--out", str(out), *TINY_OPTIONS]
    assert main(options) == 1
    printed = capsys.readouterr().out
    lost = [cell for cell in TINY.cells if cell.size == 3 and cell.method in ("dkl", "dkaf")]
    assert f"{len(TINY.cells) - len(lost)} of {len(TINY.cells)} cells" in printed
    assert f"{len(lost)} cells failed" in printed
    assert "no kernel today" in printed
    rows = RowFile(out / "rows.jsonl").read()
    assert {cell for cell, row in rows.items() if row.error} == set(lost)
    monkeypatch.setattr(engines, "LocalEngine", lambda jobs: Here())
    assert main(options) == 0
    assert comparable(out) == comparable(reference[0])


def test_what_a_worker_raises_becomes_a_failure_with_its_cause() -> None:
    job = plan(TINY, set(TINY.cells))[0]
    outcome = perform(job, TINY, {job.needs[0]: {"features.npz": b"not one", "labels.json": b"[]"}})
    assert isinstance(outcome, Failure)
    assert "InputError" in outcome.error.splitlines()[-1]


def test_a_worker_that_is_killed_is_replaced(reference: tuple[Path, Here], tmp_path: Path) -> None:
    """As by the system when memory runs out: the job is begun again, and its row comes once."""
    engine, killed = LocalEngine(2), []

    def kill_one(state: State, job: Job | None, outcome: Outcome | None) -> None:
        if job is not None and outcome is None and len(killed) < 4 and random.Random(len(killed)).random() < 0.9:
            worker = next(w for w in engine._workers if w.task is not None and w.task[0] is job)
            os.kill(worker.process.pid, signal.SIGKILL)
            killed.append(job)

    run_grid(TINY, tmp_path / "out", lambda: engine, kill_one)
    assert killed
    assert comparable(tmp_path / "out") == comparable(reference[0])
    assert len((tmp_path / "out" / "rows.jsonl").read_text().splitlines()) == len(TINY.cells)


def test_a_job_that_kills_its_worker_every_time_is_given_up() -> None:
    engine = LocalEngine(1)
    job = plan(TINY, set(TINY.cells))[0]
    engine.start(job, TINY, {})
    try:
        outcomes: list[tuple[Job, Outcome]] = []
        while not outcomes:
            for worker in engine._workers:
                worker.process.kill()
            outcomes = list(engine.finished(5.0))
    finally:
        engine.close()
    assert isinstance(outcomes[0][1], Failure)
    assert "died 3 times" in outcomes[0][1].error


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--seed", "1"], "another seed"),
        (["--test-tasks", "4"], "another protocol"),
        (["--starts", "1"], "another protocol"),
        (["--set", "gamma=0.5"], "another protocol"),
        (["--sizes", "2,4"], "without these sizes; add --extend"),
        (["--methods", "dkl,botorch"], "without these methods; add --extend"),
    ],
)
def test_the_folder_of_another_grid_is_refused_and_stays(
    reference: tuple[Path, Here], capsys: pytest.CaptureFixture[str], change: list[str], says: str
) -> None:
    out, _ = reference
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main(["paper", "run", "--out", str(out), *TINY_OPTIONS, *change]) == 2
    assert says in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("change", [["--sizes", "3,2"], ["--methods", "random,dkl", "--runs", "1"]])
def test_a_part_of_the_grid_in_any_order_is_that_grid(reference: tuple[Path, Here], change: list[str]) -> None:
    before = (reference[0] / "grid.json").read_bytes()
    assert main(["paper", "run", "--out", str(reference[0]), *TINY_OPTIONS, *change]) == 0
    assert (reference[0] / "grid.json").read_bytes() == before


def test_a_grid_that_grew_takes_its_old_command_and_keeps_one_record_of_each(tmp_path: Path) -> None:
    small = dataclasses.replace(TINY, sizes=(2,), runs=1, methods=("random",))
    larger = dataclasses.replace(small, sizes=(3,))
    for grid, extend, command in ((small, False, "A"), (larger, True, "B"), (larger, True, "B"), (small, False, "A")):
        run_grid(grid, tmp_path / "out", Here, quiet, extend=extend, command=command)
    about = json.loads((tmp_path / "out" / "grid.json").read_text())
    assert about["cells"]["sizes"] == [2, 3]
    assert about["command"] == "A && B"


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"format": "dkaf-grid-1"}'])
def test_a_damaged_description_of_the_grid_is_refused(tmp_path: Path, damage: str) -> None:
    (tmp_path / "grid.json").write_text(damage)
    with pytest.raises(dkaf.InputError, match="does not describe a grid"):
        run_grid(TINY, tmp_path, Here, quiet)


def test_a_folder_left_by_a_kill_before_the_first_write_is_empty(tmp_path: Path) -> None:
    for name in (".lock", ".abc.part"):
        (tmp_path / name).touch()
    run_grid(dataclasses.replace(TINY, methods=("random",)), tmp_path, Here, quiet)


def test_another_corpus_of_the_same_name_is_refused(
    reference: tuple[Path, Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = dkaf.load_corpus("digits")
    other = dataclasses.replace(corpus, labels=corpus.labels[::-1])
    monkeypatch.setattr(paper, "load_corpus", lambda name: other)
    with pytest.raises(dkaf.InputError, match="another digits corpus"):
        run_grid(TINY, reference[0], Here, quiet)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--datasets", "imdb"], "imdb"),
        (["--methods", "dkaf,optuna"], "'optuna' came"),
        (["--acquisitions", "pi"], "'pi' came"),
        (["--recipe", "best"], "'best' came"),
        (["--sizes", "2,two"], "whole numbers"),
        (["--sizes", "2,2"], "each once"),
        (["--acquisitions", "mi,mi"], "each once"),
        (["--recipe", ""], "--recipe names at least one"),
        (["--set", "updates=4"], "each once"),
        (["--methods", "botorch", "--set", "initial=0"], "starts from at least 1 point"),
        (["--runs", "0"], "--runs is at least 1"),
        (["--jobs", "0"], "--jobs is at least 1"),
        (["--set", "updates"], "NAME=VALUE"),
        (["--set", "speed=3"], "'speed' is none of them"),
        (["--set", "initial=28"], "raise --pool-size"),
        (["--address", "auto"], "--engine ray"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    try:
        code = main(["paper", "run", "--out", str(tmp_path / "out"), *TINY_OPTIONS, *options])
    except SystemExit as stopped:  # argparse's own refusals
        code = int(str(stopped.code))
    assert code == 2
    error = capsys.readouterr().err.strip()
    assert says in error
    assert "Traceback" not in error
    assert not (tmp_path / "out" / "rows.jsonl").exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    assert main(["paper", "run", "--out", str(tmp_path), *TINY_OPTIONS]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_fill_one_folder(tmp_path: Path) -> None:
    def again(state: State, job: Job | None, outcome: Outcome | None) -> None:
        with pytest.raises(dkaf.InputError, match="one process at a time"):
            run_grid(TINY, tmp_path / "out", Here, quiet)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(TINY, tmp_path / "out", Here, again)


def test_no_room_for_rows_says_so_and_leaves_whole_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engines, "LocalEngine", lambda jobs: Here())
    monkeypatch.setattr("dkaf.experiments.rows.os", SimpleNamespace(fsync=full, SEEK_END=os.SEEK_END))
    assert main(["paper", "run", "--out", str(tmp_path / "out"), *TINY_OPTIONS]) == 2
    assert (tmp_path / "out" / "work").is_dir()  # so it was the rows that found no room
    assert "No space left on device" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(engines, "LocalEngine", lambda jobs: Here())
    assert main(["paper", "run", "--out", str(tmp_path / "out"), *TINY_OPTIONS]) == 0


def test_rows_survive_the_file_byte_by_byte(reference: tuple[Path, Here], tmp_path: Path) -> None:
    """Cut anywhere, the file reads as the rows before the cut, and appending heals it."""
    whole = (reference[0] / "rows.jsonl").read_bytes()
    rows = list(RowFile(reference[0] / "rows.jsonl").read().values())
    file = RowFile(tmp_path / "rows.jsonl")
    for cut in (0, 1, whole.index(b"\n"), whole.index(b"\n") + 1, len(whole) // 2, len(whole) - 1):
        file.path.write_bytes(whole[:cut])
        assert len(file.read()) == whole[:cut].count(b"\n")
        file.append(rows[:2])
        assert file.path.read_bytes().count(b"\n") == whole[:cut].count(b"\n") + 2
        assert {row.cell for row in rows[:2]} <= set(file.read())


def test_compressed_rows_are_read_and_may_be_added_to(reference: tuple[Path, Here], tmp_path: Path) -> None:
    whole = (reference[0] / "rows.jsonl").read_bytes()
    rows = RowFile(reference[0] / "rows.jsonl").read()
    (tmp_path / "rows.jsonl.xz").write_bytes(lzma.compress(whole))
    file = RowFile(tmp_path / "rows.jsonl")
    assert file.read() == rows
    newer = dataclasses.replace(next(iter(rows.values())), stopped="again")
    file.append([newer])
    assert file.read() == rows | {newer.cell: newer}
    (tmp_path / "rows.jsonl.xz").write_bytes(b"cut")
    with pytest.raises(dkaf.InputError, match="cannot be read"):
        file.read()


@pytest.mark.parametrize("damage", [{"size": "2"}, {"dataset": ["x"]}, {"seconds": None}, {"gaps": [1]}, {"sizes": 2}])
def test_a_damaged_row_in_the_middle_is_named(
    reference: tuple[Path, Here], tmp_path: Path, damage: dict[str, object]
) -> None:
    line = json.loads((reference[0] / "rows.jsonl").read_text().splitlines()[0])
    (tmp_path / "rows.jsonl").write_text(json.dumps(line | damage) + "\n")
    with pytest.raises(dkaf.InputError, match=r"line 1 of .*rows.jsonl is no row"):
        RowFile(tmp_path / "rows.jsonl").read()


def test_shared_work_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "work")

    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "os", SimpleNamespace(replace=killed))  # the folder's renaming alone
    with pytest.raises(KeyboardInterrupt):
        store.put("tasks", {"a": b"1", "b": b"2"})
    assert not store.has("tasks")
    monkeypatch.undo()
    store.put("tasks", {"a": b"1", "b": b"2"})
    assert store.get("tasks") == {"a": b"1", "b": b"2"}


def test_lines_say_what_came_and_the_standings_rank(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (
        Row("digits", "default", 2, 0, method, "", seed=0, gaps=[[gap, gap]])
        for method, gap in (("rl", 1.0), ("random", 2.0))
    )
    assert standings([bad, good]) == [("default RL", {"digits": (1.0, 1)}), ("default Random", {"digits": (2.0, 1)})]
    board, job = Board(), plan(TINY, set(TINY.cells))[-1]
    state = State(TINY.cells, {good.cell: good}, [], [job])
    with board:
        board.show(state, None, None)
        board.show(state, job, None)
        board.show(state, job, Failure("Traceback\nValueError: no luck"))
    said = capsys.readouterr().err
    assert "1 of" in said
    assert "FAILED, ValueError: no luck" in said
    assert "left" in said


def test_the_live_table_renders_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    jobs = plan(TINY, set(TINY.cells))
    row = Row("digits", "default", 2, 0, "dkaf", "mi", seed=0, gaps=[[1.5, 0.5]])
    with Board() as board:
        board.show(State(TINY.cells, {}, jobs[1:], [jobs[0]]), jobs[0], None)
        board.show(State(TINY.cells, {row.cell: row}, jobs[1:]), jobs[0], {})
    shown = capsys.readouterr().err
    assert "Ours MI" in shown
    assert "1.00 (1)" in shown


@pytest.mark.parametrize("method", ["informed", "botorch"])
def test_a_searcher_beside_the_papers_sees_only_what_it_asked_for(method: str) -> None:
    """Responses that were never asked for may be anything: the choices stay the same. Policies: conformance.py."""
    corpus = dkaf.load_corpus("digits")
    hidden = dkaf.sources.similarity.hidden_representation(corpus.features, corpus.labels, 0)
    tasks = dkaf.sources.similarity.tasks_of_representation(corpus.features, hidden, 2, 25, 0)

    def search(tasks: dkaf.TaskSet) -> dkaf.Result:
        if method == "informed":
            return work.informed_search(hidden, tasks, 3, 1, 1, 0)
        return work.botorch_search(tasks, 3, 1, 1, 0)

    first = search(tasks)
    responses = []
    for values, chosen in zip(tasks.responses, first.chosen, strict=True):
        other = np.random.default_rng(0).normal(size=len(values))
        other[chosen] = values[chosen]
        responses.append(other)
    again = search(dkaf.TaskSet.from_arrays(tasks.features, tasks.pools, responses))
    np.testing.assert_array_equal(again.chosen, first.chosen)


def test_the_informed_searcher_takes_the_starts_that_policies_get() -> None:
    corpus = dkaf.load_corpus("digits")
    hidden = dkaf.sources.similarity.hidden_representation(corpus.features, corpus.labels, 0)
    tasks = dkaf.sources.similarity.tasks_of_representation(corpus.features, hidden, 2, 25, 0)
    ours, chance = work.informed_search(hidden, tasks, 3, 1, 4, 5), dkaf.fit(tasks, method="random")
    np.testing.assert_array_equal(ours.chosen[:, 0], dkaf.evaluate(chance, tasks, 3, 1, 4, 5).chosen[:, 0])
    assert (ours.starts, ours.gaps.shape) == (4, (8, 3))
    assert work.informed_search(hidden, tasks, 3, 0, 4, 5).gaps.shape == (8, 3)  # without a starting point


def test_the_informed_searcher_finds_the_best_as_soon_as_it_can_be_known() -> None:
    """Two documents mirror each other about the start: its response tells nothing, the first query tells all."""
    hidden = np.array([[0.0], [-1.0], [1.0], [-1.1], [1.1]])  # start, two candidates, and two possible targets
    tasks = dkaf.TaskSet.from_arrays(np.eye(5), [[0, 1, 2]], [[-1.1, -2.1, -0.1]])
    for seed in range(20):
        result = work.informed_search(hidden, tasks, 2, 1, 1, seed)
        if result.chosen[0, 0] == 0:
            assert result.gaps[0, 1] == 0
            return
    pytest.fail("no seed started in the middle")


def test_a_method_whose_package_is_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botorch", None)
    with pytest.raises(dkaf.InputError, match=r"pip install 'dkaf\[bench\]'"):
        run_grid(dataclasses.replace(TINY, methods=("botorch",)), tmp_path / "out", Here, quiet)
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(dkaf.InputError, match=r"pip install 'dkaf\[ray\]'"):
        RayEngine()


def test_shared_work_is_of_the_same_settings() -> None:
    """What a shared kernel or search stands for must not depend on which of its cells asked first."""
    for name in RECIPES:
        for method, family in KERNEL_OF.items():
            ours, theirs = dkaf.recipe(name, method), dkaf.recipe(name, family)
            for field in dataclasses.fields(ours):
                shared = field.name.startswith("pretrain") or field.name in ("layers", "width", "dropout", "inputs")
                if shared or (field.name == "weight_decay" and family == "dkl"):  # GP's three scalars do not decay
                    assert getattr(ours, field.name) == getattr(theirs, field.name), (name, method, field.name)
        assert (dkaf.recipe(name).queries, dkaf.recipe(name).initial) == (10, 1)


def test_a_corpus_too_small_for_a_search_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = dkaf.load_corpus("digits")
    few = dataclasses.replace(corpus, features=corpus.features[:4], labels=corpus.labels[:4])
    monkeypatch.setattr(paper, "load_corpus", lambda name: few)
    with pytest.raises(dkaf.InputError, match="pools of 3 do not fit 3 queries"):
        run_grid(TINY, tmp_path / "out", Here, quiet)


def test_a_worker_that_dies_while_answering_is_replaced() -> None:
    engine = LocalEngine(1)
    job = plan(TINY, set(TINY.cells))[0]
    try:
        engine.start(job, TINY, {})
        ours, theirs = multiprocessing.Pipe()
        engine._workers[0].pipe = ours
        os.write(theirs.fileno(), b"\x00\x00\x01\x00half")  # a length, and less than that
        theirs.close()
        assert list(engine.finished(5.0)) == []  # begun again
        outcomes: list[tuple[Job, Outcome]] = []
        while not outcomes:
            outcomes = list(engine.finished(60.0))
    finally:
        engine.close()
    assert isinstance(outcomes[0][1], Failure)  # for want of its files, and not of an answer
    assert "died" not in outcomes[0][1].error


def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = LocalEngine(1)
    engine.start(plan(TINY, set(TINY.cells))[0], TINY, {})
    engine.close()
    assert list(tmp_path.iterdir()) == []
