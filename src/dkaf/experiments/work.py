"""What a worker does: it gets a job and the files the job needs, and gives back files or a row.

Files travel as bytes, and every worker reads them the same way, so that it makes no difference where it runs.
"""

import dataclasses
import io
import json
import platform
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import dkaf
from dkaf.errors import FallbackWarning
from dkaf.evaluation import Result, evaluate
from dkaf.experiments.grid import KERNEL_OF, Grid, Job
from dkaf.experiments.peers import botorch_search, informed_search
from dkaf.experiments.rows import Cell, Row
from dkaf.learning.fit import fit
from dkaf.policies import Policy, Training, load
from dkaf.sources.corpora import Corpus
from dkaf.sources.similarity import hidden_representation, tasks_of_representation
from dkaf.tasks import FloatArray, TaskSet

Files = dict[str, bytes]


@dataclass(frozen=True)
class Failure:
    """Why a job came to nothing."""

    error: str


def corpus_files(corpus: Corpus) -> Files:
    """A corpus for the workers."""
    return {
        "features.npz": _saved(TaskSet.from_arrays(corpus.features, [], [])),
        "labels.json": json.dumps(corpus.labels.tolist()).encode(),
    }


def perform(job: Job, grid: Grid, needed: dict[str, Files]) -> Files | Row | Failure:
    """Do a job on one thread. What goes wrong is a Failure: one failing cell does not stop the others."""
    torch.set_num_threads(1)
    try:
        # NumPy's own threads too: products round otherwise on another number of them.
        with threadpool_limits(1), tempfile.TemporaryDirectory(prefix="dkaf-") as folder:
            for name, files in needed.items():
                (Path(folder) / name).mkdir()
                for file, data in files.items():
                    (Path(folder) / name / file).write_bytes(data)
            folders = [Path(folder) / name for name in job.needs]
            if job.kind == "tasks":
                return _make_tasks(job.cell, grid, folders[0])
            if job.kind == "kernel":
                return _train_kernel(job.cell, grid, folders[0])
            row = _fill(job.cell, grid, folders[0], folders[1] if len(folders) > 1 else None)
            json.dumps(dataclasses.asdict(row), allow_nan=False)  # a row that cannot be kept is none
            return row
    except Exception:
        return Failure(traceback.format_exc())


def _make_tasks(cell: Cell, grid: Grid, corpus: Path) -> Files:
    """The run's classifier, and its tasks: test, validation, then training, so that any size has the same tests."""
    features = TaskSet.load(corpus / "features.npz").features
    labels = np.array(json.loads((corpus / "labels.json").read_text()))
    seed = grid.seed_of(cell.run)
    hidden = hidden_representation(features, labels, seed)
    n_tasks = grid.test_tasks + grid.validation_tasks + max(grid.sizes)
    pool_size = grid.pool_size_of(len(labels))
    representation = io.BytesIO()
    np.save(representation, hidden)
    return {
        "tasks.npz": _saved(tasks_of_representation(features, hidden, n_tasks, pool_size, seed)),
        "hidden.npy": representation.getvalue(),
    }


def _parts(cell: Cell, grid: Grid, folder: Path) -> tuple[TaskSet, TaskSet, TaskSet]:
    """Training, validation and test tasks. Training sets are nested within a run: docs/paper.md, note 17."""
    test, validation, train = TaskSet.load(folder / "tasks.npz").split(
        grid.test_tasks, grid.validation_tasks, cell.size
    )
    return train, validation, test


def _train_kernel(cell: Cell, grid: Grid, tasks: Path) -> Files:
    train, validation, _ = _parts(cell, grid, tasks)
    policy = _fitted(cell, grid, train, validation, method=KERNEL_OF[cell.method], acquisition="ei")
    policy.save(tasks / "policy.safetensors")
    return {
        "policy.safetensors": (tasks / "policy.safetensors").read_bytes(),
        "seconds.json": json.dumps(policy.training_log.seconds).encode(),
    }


def _fill(cell: Cell, grid: Grid, tasks: Path, kernel: Path | None) -> Row:
    train, validation, test = _parts(cell, grid, tasks)
    seed, log = grid.seed_of(cell.run), Training()
    extra: tuple[str, ...] = ()
    settings = grid.settings_of(cell.recipe, cell.method, cell.acquisition)
    if cell.method == "informed":
        began = time.perf_counter()
        hidden = np.load(tasks / "hidden.npy", allow_pickle=False)
        result = informed_search(hidden, test, settings.queries, settings.initial, grid.starts, seed)
    elif cell.method == "botorch":
        began = time.perf_counter()
        result = botorch_search(test, settings.queries, settings.initial, grid.starts, seed)
        extra = ("botorch", "gpytorch")
    else:
        pretrained = None
        if kernel is not None:
            pretrained = load(kernel / "policy.safetensors")
            seconds = json.loads((kernel / "seconds.json").read_text())
            pretrained.training_log = dataclasses.replace(pretrained.training_log, seconds=seconds)
        policy = _fitted(cell, grid, train, validation, cell.method, cell.acquisition or "mi", pretrained)
        log = policy.training_log
        began = time.perf_counter()
        result = evaluate(policy, test, settings.queries, settings.initial, grid.starts, seed)
    return _row(cell, seed, result, log, time.perf_counter() - began, extra)


def _fitted(
    cell: Cell,
    grid: Grid,
    train: TaskSet,
    validation: TaskSet,
    method: str,
    acquisition: str,
    pretrained: Policy | None = None,
) -> Policy:
    seed, settings = grid.seed_of(cell.run), grid.settings_of(cell.recipe, method, acquisition)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # the row's log says it
        return fit(train, validation, method, acquisition, settings, seed, pretrained=pretrained)


def _row(cell: Cell, seed: int, result: Result, log: Training, search: float, extra: tuple[str, ...]) -> Row:
    return Row(
        **dataclasses.asdict(cell),
        seed=seed,
        gaps=_over_starts(result.gaps, result).tolist(),
        start_gaps=[gap for gap in _over_starts(result.start_gaps, result).tolist() if gap == gap],
        seconds=log.seconds | {"search": search},
        pretrain_updates=log.pretrain_updates,
        updates=log.updates,
        best_update=log.best_update,
        validation=[list(point) for point in log.validation],
        stopped=log.stopped,
        versions=_versions(extra),
        machine=_machine(),
    )


def _over_starts(values: FloatArray, result: Result) -> FloatArray:
    """Each task's mean over its starts."""
    means: FloatArray = values.reshape(-1, result.starts, *values.shape[1:]).mean(axis=1)
    return means


def _versions(extra: tuple[str, ...]) -> dict[str, str]:
    found = {"dkaf": dkaf.__version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "scipy", "scikit-learn", *extra):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def _machine() -> str:
    """The processor's name, as far as the system tells it."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, one core a cell"


def _saved(tasks: TaskSet) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dkaf-") as folder:
        path = Path(folder) / "tasks.npz"
        tasks.save(path)
        return path.read_bytes()
