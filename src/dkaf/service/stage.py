"""Sets the scene of `dkaf serve --demo`: the first time its policies are trained, then they come from the cache."""

import contextlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

import dkaf
from dkaf.errors import FallbackWarning, InputError
from dkaf.evaluation import Result, evaluate, standard_error
from dkaf.learning.fit import fit
from dkaf.learning.progress import Progress
from dkaf.policies import Policy, load
from dkaf.service.scene import PLAYERS, QUERIES, Scene
from dkaf.sources.corpora import DIGITS, NotHereError, load_corpus, read_texts
from dkaf.sources.corpus import Corpus, cache_folder, make_folder
from dkaf.sources.similarity import hidden_representation, tasks_of_representation
from dkaf.tasks import FloatArray, TaskSet

FIRST_CHOICE = "reuters"
TEST, VALIDATION, TRAIN, GAMES = 50, 20, 100, 500
POOL, SMALLEST_POOL = 500, 20
ACQUISITION = "ucb"  # with which ours has its lowest gaps on the paper's corpora
TOP = 0.01

Show = Callable[[str, str, int, int], None]
"""Called with what is made, its stage, and how far it is of how much."""


def open_scene(name: str | None = None, show: Show = lambda what, stage, done, total: None) -> Scene:
    """The scene of a corpus; without a name it is Reuters if that is here, else the handwritten digits."""
    corpus = _corpus(name)
    if len(corpus.documents) <= SMALLEST_POOL:
        raise InputError(
            f"a game has at least {SMALLEST_POOL} candidates and a target, {corpus.name} has {len(corpus.documents)} "
            "items; name a larger corpus"
        )
    shelf = make_folder(cache_folder() / "demo")
    folder = shelf / f"{corpus.name}-{corpus.digest[:16]}-{ACQUISITION}-{dkaf.__version__}"
    with FileLock(folder.with_name(f"{folder.name}.lock")):  # another process may be making it
        with contextlib.suppress(Exception):  # not there, or damaged in one of a dozen ways
            return _read(corpus, folder)
        with tempfile.TemporaryDirectory(dir=shelf, prefix=".") as beside:
            _make(corpus, Path(beside) / "scene", show)
            shutil.rmtree(folder, ignore_errors=True)
            (Path(beside) / "scene").rename(folder)
        return _read(corpus, folder)


def _corpus(name: str | None) -> Corpus:
    if name is not None:
        return load_corpus(name)
    try:
        return load_corpus(FIRST_CHOICE)
    except NotHereError:
        return load_corpus(DIGITS)


def _read(corpus: Corpus, folder: Path) -> Scene:
    tasks = _tasks(corpus, np.load(folder / "hidden.npy", allow_pickle=False))
    about: dict[str, Any] = json.loads((folder / "about.json").read_bytes())
    policies = {method: load(folder / f"{method}.safetensors") for method in PLAYERS}
    for method, policy in policies.items():
        if policy.method != method or about["record"]["players"][method].keys() != {"gap", "error", "found"}:
            raise ValueError(f"{folder} is not as it was written")
    _, _, past, games = tasks.split(TEST, VALIDATION, TRAIN, GAMES)
    return Scene(corpus, past, games, policies, about["record"], about["texts"])


def _make(corpus: Corpus, folder: Path, show: Show) -> None:
    folder.mkdir()
    show(corpus.name, "reading", 0, 1)
    texts = read_texts(corpus)
    show(corpus.name, "reading", 1, 1)
    show("what is alike", "learning from the labels", 0, 1)
    hidden = hidden_representation(corpus.features, corpus.labels)
    show("what is alike", "learning from the labels", 1, 1)
    np.save(folder / "hidden.npy", hidden)
    test, validation, past = _tasks(corpus, hidden).split(TEST, VALIDATION, TRAIN)
    players = {}
    for method, name in PLAYERS.items():
        policy = _fitted(method, name, past, validation, show)
        policy.save(folder / f"{method}.safetensors")
        players[method] = _outcome(evaluate(policy, test, QUERIES, starts=4), test)
    record = {"players": players, "tests": len(test)}
    (folder / "about.json").write_text(json.dumps({"record": record, "texts": texts}))


def _tasks(corpus: Corpus, hidden: FloatArray) -> TaskSet:
    """Tests, validation, training and then the games."""
    size = min(POOL, len(corpus.documents) - 1)
    return tasks_of_representation(corpus.features, hidden, TEST + VALIDATION + TRAIN + GAMES, size, seed=0)


def _fitted(method: str, name: str, past: TaskSet, validation: TaskSet, show: Show) -> Policy:
    def report(progress: Progress) -> None:
        show(name, progress.stage, progress.update, progress.updates)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # the record shows what came of it
        return fit(past, validation, method, ACQUISITION, progress=report)


def _outcome(result: Result, tests: TaskSet) -> dict[str, float]:
    """The gap, and in how many searches one of the best hundredth was found."""
    thresholds = np.array([np.quantile(task.responses, 1 - TOP) for task in tests])
    found = [
        tests[search // result.starts].responses[rows].max() >= thresholds[search // result.starts]
        for search, rows in enumerate(result.chosen.tolist())
    ]
    return {
        "gap": result.cumulative_gap,
        "error": standard_error(result.task_gaps),
        "found": float(np.mean(found)),
    }
