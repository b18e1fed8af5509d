"""The command line: the same numbers as in Python, one sentence for bad input, and Ctrl-C loses nothing."""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkaf
from dkaf.cli import main
from dkaf.settings import METHODS

DKAF = Path(sys.executable).with_name("dkaf")
TINY = ["--pretrain-updates", "5", "--updates", "3", "--scale-updates", "2", "--validate-every", "1", "--queries", "3"]
SEARCH = ["--queries", "3"]
TINY_IN_PYTHON = {"pretrain_updates": 5, "updates": 3, "scale_updates": 2, "validate_every": 1, "queries": 3}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys) -> Run:
    """Exit code, output and errors of one command."""

    def call(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:  # as argparse ends
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def folder(tiny_tasks, tmp_path) -> Path:
    """A folder with tasks and a policy trained in Python."""
    tiny_tasks.save(tmp_path / "tasks.npz")
    dkaf.fit(tiny_tasks, method="random", **TINY_IN_PYTHON).save(tmp_path / "random.safetensors")
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def assert_refused(result: tuple[int, str, str], *fragments: str) -> None:
    code, out, err = result
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("dkaf: ")
    assert err.count("dkaf: ") == 1
    for fragment in fragments:
        assert fragment in last


def assert_usage(result: tuple[int, str, str], *fragments: str) -> None:
    assert_refused(result, *fragments)
    assert "--help" in result[2]


# What it does


def test_a_fresh_process_trains_and_evaluates_as_python_does(folder, tiny_tasks):
    policy = folder / "policy.safetensors"
    train = subprocess.run(
        [DKAF, "train", folder / "tasks.npz", "-o", policy, "--seed", "4", "--json", *TINY],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = dkaf.fit(*tiny_tasks.split(9, 1), seed=4, **TINY_IN_PYTHON)
    printed = json.loads(train.stdout)
    assert (printed["policy"], printed["method"]) == (str(policy), "dkaf")
    assert printed["training"]["updates"] == 3
    assert printed["training"]["validation"] == [list(point) for point in expected.training_log.validation]
    expected.save(folder / "expected.safetensors")
    assert policy.read_bytes() == (folder / "expected.safetensors").read_bytes()

    evaluate = subprocess.run(
        [DKAF, "evaluate", policy, folder / "tasks.npz", "--starts", "2", "--seed", "9", "--json", *SEARCH],
        capture_output=True,
        text=True,
        check=True,
    )
    result = dkaf.evaluate(expected, tiny_tasks, queries=3, starts=2, seed=9)
    printed = json.loads(evaluate.stdout)
    assert printed["tasks"] == 10
    assert printed["cumulative_gap"] == result.cumulative_gap
    assert printed["standard_error"] == result.standard_error
    assert printed["gaps"] == result.gaps.tolist()
    assert printed["start_gaps"] == result.start_gaps.tolist()
    assert evaluate.stderr == ""


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_writes_the_same_file_and_another_does_not(run, folder, method):
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        code, out, err = run(
            *("train", folder / "tasks.npz", "-o", folder / name, "--method", method, "--acquisition", "mi"),
            *("--seed", seed, *TINY),
        )
        assert (code, "Traceback" in err) == (0, False)
        kernel = " with mi" if method in ("dkaf", "dkl", "gp") else ""
        assert out.startswith(f"{folder / name}: {method}{kernel}, trained in ")
    written = files(folder)
    assert written["one"] == written["two"]
    assert (written["one"] == written["three"]) == (method == "random")  # it has nothing to learn


@pytest.mark.parametrize("method", ["dkl", "gp", "random"])
def test_methods_without_policy_gradient_do_not_speak_of_its_validation(run, folder, method):
    options = ("--method", method, "--acquisition", "mi", *TINY)
    code, out, _ = run("train", folder / "tasks.npz", "-o", folder / "policy", *options)
    assert code == 0
    assert "validation gap" not in out


def test_settings_reach_the_policy_as_they_are_given(run, folder):
    options = ["--patience", "none", "--learned-mean", "no", "--learning-rate", "1e-2", "--acquisition", "ei"]
    assert run("train", folder / "tasks.npz", "-o", folder / "policy", "--recipe", "paper", *options, *TINY)[0] == 0
    policy = dkaf.load(folder / "policy")
    changes = {"patience": None, "learned_mean": False, "learning_rate": 0.01}
    assert policy.settings == dkaf.recipe("paper", "dkaf", "ei", **changes, **TINY_IN_PYTHON)


def test_tasks_to_stop_by_are_held_out_or_given(run, folder, tiny_tasks):
    tiny_tasks.split(4)[0].save(folder / "train.npz")
    tiny_tasks.subset([4, 5]).save(folder / "validation.npz")
    tiny_tasks.subset(range(6)).save(folder / "both.npz")
    given = ["--validation", folder / "validation.npz"]
    assert run("train", folder / "train.npz", *given, "-o", folder / "given", *TINY)[0] == 0
    assert run("train", folder / "both.npz", "--hold-out", "2", "-o", folder / "held", *TINY)[0] == 0
    assert run("train", folder / "both.npz", "--hold-out", "0", "-o", folder / "none", *TINY)[0] == 0
    assert (folder / "given").read_bytes() == (folder / "held").read_bytes()
    assert dkaf.load(folder / "none").training_log.validation == ()


def test_numbers_that_are_none_are_null_in_json(run, folder, tiny_tasks):
    tiny_tasks.split(1)[0].save(folder / "one.npz")
    options = ["--initial", "0", "--json", *SEARCH]
    code, out, _ = run("evaluate", folder / "random.safetensors", folder / "one.npz", *options)
    assert code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    printed = json.loads(out, parse_constant=refuse)
    assert (printed["standard_error"], printed["start_gap"], printed["start_gaps"]) == (None, None, [None])


def test_evaluation_shows_the_gap_after_every_query(run, folder, tiny_tasks):
    code, out, err = run("evaluate", folder / "random.safetensors", folder / "tasks.npz", *SEARCH)
    result = dkaf.evaluate(dkaf.load(folder / "random.safetensors"), tiny_tasks, queries=3)
    assert (code, err) == (0, "")
    assert f"cumulative gap  {result.cumulative_gap:.4g}" in out
    assert out.splitlines()[-1].split()[1:] == [f"{gap:.4g}" for gap in result.gaps.mean(axis=0)]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], ["evaluate", "--help"]])
def test_help_needs_no_torch(arguments):
    code = f"""
import sys
from dkaf.cli import main
try:
    main({arguments})
except SystemExit as end:
    assert not end.code
assert "dkaf.cli" in sys.modules
sys.exit(7 if "torch" in sys.modules else 0)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "dkaf" in shown.stdout


def test_help_of_training_lists_every_setting_with_its_sentence(run):
    code, out, _ = run("train", "--help")
    words = " ".join(out.split())
    assert code == 0
    for line in str(dkaf.recipe("paper")).splitlines():
        name, _, *sentence = line.split()
        assert f"--{name.replace('_', '-')} X" in words
        assert " ".join(sentence) in words


# Bad input


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ([], ["COMMAND"]),
        (["fly"], ["fly"]),
        (["train"], ["PAST"]),
        (["train", "tasks.npz"], ["-o"]),
        (["train", "tasks.npz", "-o", "p", "--method", "gpp"], ["gpp", "metabo"]),
        (["train", "tasks.npz", "-o", "p", "--acquisition", "pi"], ["pi", "ucb"]),
        (["train", "tasks.npz", "-o", "p", "--recipe", "best"], ["best", "paper"]),
        (["train", "tasks.npz", "-o", "p", "--magic", "3"], ["--magic"]),
        (["train", "tasks.npz", "-o", "p", "--seed", "x"], ["--seed", "x"]),
        (["train", "tasks.npz", "-o", "p", "--hold-out", "1", "--validation", "tasks.npz"], ["--validation"]),
        (["evaluate", "random.safetensors"], ["TASKS"]),
        (["evaluate", "random.safetensors", "tasks.npz", "--queries", "many"], ["--queries", "many"]),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_refused_and_writes_nothing(run, folder, monkeypatch, arguments, fragments):
    monkeypatch.chdir(folder)
    before = files(folder)
    assert_usage(run(*arguments), *fragments)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (["--updates", "many"], ["updates", "whole number", "many"]),
        (["--updates", "-3"], ["updates", "at least 0", "-3"]),
        (["--dropout", "1"], ["dropout", "below 1"]),
        (["--learned-mean", "maybe"], ["learned_mean", "true or false"]),
        (["--inputs", "log"], ["inputs", "counts"]),
        (["--baseline", "leave-one-out", "--episodes", "1"], ["leave-one-out", "episodes"]),
        (["--queries", "9"], ["pool 0 has 7 candidates", "9 queries", "lower"]),
        (["--queries", "6", "--initial", "2"], ["pool 0 has 7 candidates", "6 queries", "2 starting points"]),
        (["--hold-out", "10"], ["--hold-out and --report leave at least one of the 10 tasks"]),
        (["--hold-out", "11"], ["hold-out", "11", "10"]),
        (["--hold-out", "-1"], ["hold-out", "-1"]),
        (["--validation", "nowhere.npz"], ["nowhere.npz", "No such file"]),
        (["--validation", "wide.npz"], ["4 features", "5"]),
        (["--threads", "0"], ["--threads", "0"]),
        (["--device", "abacus"], ["device", "abacus", "cpu"]),
        (["--device", "meta"], ["device", "meta", "cpu"]),
        (["-o", "nowhere/policy"], ["nowhere", "folder"]),
        (["-o", "."], ["folder"]),
        (["-o", "x" * 300], ["the output"]),
        (["-o", "tasks.npz"], ["tasks.npz"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_training_refuses_what_it_cannot_do_and_writes_nothing(run, folder, monkeypatch, options, fragments):
    monkeypatch.chdir(folder)
    dkaf.TaskSet.from_arrays(np.eye(9, 5), [np.arange(9)], [np.arange(9.0)]).save("wide.npz")
    before = files(folder)
    assert_refused(run("train", "tasks.npz", "-o", "policy", *TINY, *options), *fragments)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (["--queries", "9"], ["pool 0 has 7 candidates", "9 queries", "lower"]),
        (["--queries", "0"], ["at least 1 query", "0 queries"]),
        (["--initial", "-1"], ["starting points", "-1"]),
        (["--starts", "0"], ["at least 1 start", "0"]),
        (["--threads", "-1"], ["--threads", "-1"]),
        (["--device", "abacus"], ["device", "abacus"]),
        (["--device", "meta"], ["device", "meta"]),
    ],
    ids=" ".join,
)
def test_evaluation_refuses_what_it_cannot_do(run, folder, options, fragments):
    policy, tasks = folder / "random.safetensors", folder / "tasks.npz"
    assert_refused(run("evaluate", policy, tasks, *SEARCH, *options), *fragments)


def test_features_of_another_count_are_refused(run, folder):
    wide = folder / "wide.npz"
    dkaf.TaskSet.from_arrays(np.eye(9, 5), [np.arange(9)], [np.arange(9.0)]).save(wide)
    assert_refused(run("evaluate", folder / "random.safetensors", wide, *SEARCH), "4 features", "5")


CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a response too few": ({"responses": [0.0, 1.0, 2.0]}, ["response"]),
    "a response too many": ({"responses": [0.0, 1.0, 2.0, 3.0, 4.0]}, ["response"]),
    "a row that is not there": ({"pools": [0, 1, 2, 9]}, ["0 to 3", "9"]),
    "a negative row": ({"pools": [0, -1, 2, 3]}, ["0 to 3", "-1"]),
    "a repeated row": ({"pools": [0, 1, 1, 3]}, ["repeats row 1"]),
    "NaN features": ({"features": np.full((4, 3), np.nan)}, ["features are finite", "row 0"]),
    "infinite features": ({"features": np.full((4, 3), np.inf)}, ["features are finite", "row 0"]),
    "NaN responses": ({"responses": [0.0, np.nan, 2.0, 3.0]}, ["responses are finite", "candidate 1 of pool 0"]),
    "infinite responses": ({"responses": [0.0, 1.0, 2.0, -np.inf]}, ["responses are finite", "candidate 3 of pool 0"]),
    "an empty pool": ({"sizes": [4, 0]}, ["pool 1 is empty"]),
    "no task": (
        {"sizes": np.zeros(0, dtype=int), "pools": np.zeros(0, dtype=int), "responses": []},
        ["at least one task"],
    ),
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_tasks_that_break_a_rule_are_refused_and_nothing_is_written(run, folder, command, case):
    changes, fragments = CHANGES[case]
    path = folder / "bad.npz"
    dkaf.TaskSet.from_arrays(np.eye(4, 3), [[0, 1, 2, 3]], [[0.0, 1.0, 2.0, 3.0]]).save(path)
    np.savez(path, **dict(np.load(path)) | changes)
    before = files(folder)
    if command == "train":
        assert_refused(run("train", path, "-o", folder / "policy", *TINY), *fragments)
    else:
        assert_refused(run("evaluate", folder / "random.safetensors", path, *SEARCH), *fragments)
    assert files(folder) == before


@pytest.mark.parametrize("recipe", ["paper", "default"])
def test_the_largest_responses_that_are_allowed_can_be_trained_on(run, folder, tiny_tasks, recipe):
    path = folder / "large.npz"
    responses = [0.99e15 * values / np.abs(values).max() for values in tiny_tasks.responses]
    dkaf.TaskSet.from_arrays(tiny_tasks.features, tiny_tasks.pools, responses).save(path)
    assert run("train", path, "-o", folder / "policy", "--recipe", recipe, *TINY)[0] == 0
    dkaf.load(folder / "policy")


FOREIGN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "text": lambda whole: b"1,2,3\n",
    "png": lambda whole: b"\x89PNG\r\n\x1a\n" + bytes(100),
    "pickle": lambda whole: pickle.dumps([1, 2, 3]),
    "cut off": lambda whole: whole[: len(whole) // 2],
    "cut off by one": lambda whole: whole[:-1],
}


@pytest.mark.parametrize("case", FOREIGN)
def test_foreign_and_cut_off_files_are_refused_and_nothing_is_written(run, folder, case):
    tasks, policy, bad = folder / "tasks.npz", folder / "random.safetensors", folder / "bad"
    bad.write_bytes(FOREIGN[case](tasks.read_bytes()))
    before = files(folder)
    assert_refused(run("train", bad, "-o", folder / "policy", *TINY), str(bad))
    assert_refused(run("evaluate", policy, bad, *SEARCH), str(bad))
    assert files(folder) == before
    bad.write_bytes(FOREIGN[case](policy.read_bytes()))
    assert_refused(run("evaluate", bad, tasks, *SEARCH), str(bad))


def test_missing_and_exchanged_files_are_refused(run, folder):
    tasks, policy, nowhere = folder / "tasks.npz", folder / "random.safetensors", folder / "nowhere"
    assert_refused(run("train", nowhere, "-o", folder / "policy"), "nowhere", "No such file")
    assert_refused(run("train", folder, "-o", folder / "policy", "--response", "y"), "has none; name another")
    assert_refused(run("train", policy, "-o", folder / "policy"), policy.name)
    assert_refused(run("evaluate", nowhere, tasks), "nowhere", "No such file")
    assert_refused(run("evaluate", policy, nowhere), "nowhere", "No such file")
    assert_refused(run("evaluate", tasks, policy), tasks.name)
    assert not (folder / "policy").exists()


def test_a_refused_training_leaves_the_old_policy(run, folder):
    before = files(folder)
    assert_refused(run("train", folder / "tasks.npz", "-o", folder / "random.safetensors", "--queries", "99"), "99")
    assert files(folder) == before


def test_a_fresh_process_ends_bad_input_in_one_sentence(folder):
    command = [DKAF, "train", folder / "tasks.npz", "-o", folder / "policy", "--updates", "many"]
    bad = subprocess.run(command, capture_output=True, text=True)
    assert_refused((bad.returncode, bad.stdout, bad.stderr), "updates", "many")
    assert len(bad.stderr.splitlines()) == 1
    assert not (folder / "policy").exists()


def test_a_full_disk_ends_in_one_sentence_and_leaves_nothing(run, folder):
    before = files(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))  # the policy does not fit
    try:
        code, out, err = run("train", folder / "tasks.npz", "-o", folder / "policy", *TINY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code != 0
    assert out == ""
    assert err.splitlines()[-1].startswith("dkaf: ")
    assert files(folder) == before


def test_a_reader_that_has_gone_is_no_error(folder):
    command = [DKAF, "evaluate", folder / "random.safetensors", folder / "tasks.npz", "--json", *SEARCH]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=buffered)
    finally:
        os.close(write)
    assert ended.stderr == ""


# Ctrl-C


def interrupted(folder: Path, line: str, *options: str) -> tuple[int, str]:
    """Start a long training, interrupt it once `line` is in what it says, and return its exit code and errors."""
    command = [DKAF, "train", folder / "tasks.npz", "-o", folder / "policy", "--queries", "3", *options]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child of a job in the background ignores it
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    too_long = threading.Timer(60, process.kill)
    too_long.start()
    with process:
        assert process.stderr is not None
        said = ""
        for text in process.stderr:
            said += text
            if line in text:
                process.send_signal(signal.SIGINT)
                break
        said += process.stderr.read()
        code = process.wait()
    too_long.cancel()
    return code, said


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("likelihood", ["--pretrain-updates", "1000000"]),
        ("policy gradient", ["--pretrain-updates", "2", "--updates", "1000000", "--patience", "none"]),
    ],
    ids=["likelihood", "policy gradient"],
)
def test_ctrl_c_leaves_the_best_policy_so_far(folder, tiny_tasks, line, options):
    code, said = interrupted(folder, line, *options)
    assert code == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1] == f"interrupted; the best policy so far is in {folder / 'policy'}"
    policy = dkaf.load(folder / "policy")
    assert policy.training_log.stopped == "interrupted"
    assert policy.training_log.pretrain_updates >= 1
    assert dkaf.evaluate(policy, tiny_tasks, queries=3).gaps.shape == (10, 3)
    assert set(files(folder)) == {"tasks.npz", "random.safetensors", "policy"}
