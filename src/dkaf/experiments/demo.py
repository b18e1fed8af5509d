"""The demo: every method on tasks from handwritten digits, 50 unseen searches each."""

import os
import queue
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch

from dkaf.allocator import keep_freed_memory
from dkaf.errors import FallbackWarning, InputError
from dkaf.evaluation import Result, evaluate, standard_error
from dkaf.experiments.names import NAMES
from dkaf.learning.fit import fit
from dkaf.learning.progress import Progress
from dkaf.policies import Training, load
from dkaf.settings import METHODS
from dkaf.sources.builtin import digits_tasks
from dkaf.tasks import TaskSet

TRAIN, VALIDATION, TEST = 100, 20, 50
STARTS = 4

# The longest first, so that the cores are busy to the end.
SLOWEST_FIRST = ("metabo", "rl", "dkaf", "dkl", "gp", "random")

Show = Callable[[str, str, int, int, str], None]
"""Called with a method, its stage, the updates done, the updates at most, and a note."""


@dataclass(frozen=True)
class MethodRow:
    """What one method did."""

    method: str
    result: Result
    training: Training

    @property
    def seconds(self) -> float:
        return sum(self.training.seconds.values())


@dataclass(frozen=True)
class Demo:
    """All rows, in the order of `METHODS`, and the tasks that were searched."""

    rows: tuple[MethodRow, ...]
    tasks: TaskSet
    seed: int

    def row(self, method: str) -> MethodRow:
        return next(row for row in self.rows if row.method == method)

    def difference(self, method: str, other: str) -> tuple[float, float]:
        """Paired over tasks: how much larger the gap of `method` is than that of `other`, and the standard error."""
        differences = self.row(method).result.task_gaps - self.row(other).result.task_gaps
        return float(differences.mean()), standard_error(differences)

    def findings(self) -> list[str]:
        """What came out, plainly, whichever way."""
        lines = []
        for method, other in (("dkaf", "dkl"), ("dkl", "random")):
            mean, error = self.difference(method, other)
            below = "below" if mean < 0 else "NOT below"
            clear = "clear" if abs(mean) > 2 * error else "within two standard errors"
            a, b = (self.row(name).result.cumulative_gap for name in (method, other))
            lines.append(
                f"{NAMES[method]} came out {below} {NAMES[other]}: "
                f"{a:.2f} against {b:.2f}, a paired difference of {mean:+.2f} +- {error:.2f} ({clear})."
            )
        return lines

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "rows": [
                {
                    "method": row.method,
                    "cumulative_gap": row.result.cumulative_gap,
                    "standard_error": row.result.standard_error,
                    "training_seconds": row.seconds,
                    "start_gap": float(row.result.start_gaps.mean()),
                    "gap_after_query": row.result.gaps.mean(axis=0).tolist(),
                }
                for row in self.rows
            ],
            "found": self.findings(),
        }


def run_demo(out: Path, seed: int, jobs: int | None, show: Show, **settings: Any) -> Demo:
    """Make the tasks, train and search with every method, `jobs` at a time; the numbers do not depend on `jobs`.

    Leaves the tasks and the policies in `out`, for `dkaf train` and `dkaf evaluate` to play with. `settings` override
    the recipe's, for all methods.
    """
    jobs = (os.cpu_count() or 1) if jobs is None else jobs
    if jobs < 1:
        raise InputError(f"--jobs is at least 1, {jobs} came")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the report's folder can be made, {out} cannot ({error.strerror}); name another") from error
    show("digits", "making tasks", 0, 1, "")
    torch.set_num_threads(1)  # one thread a worker, and the same sums here
    parts = digits_tasks(TRAIN + VALIDATION + TEST, seed=seed).split(TRAIN, VALIDATION, TEST)
    for name, tasks in zip(("train", "validation", "test"), parts, strict=True):
        tasks.save(out / f"{name}.npz")
    show("digits", "making tasks", 1, 1, "")
    context = get_context("spawn")
    news: Queue[tuple[str, Progress]] = context.Queue()
    with context.Pool(jobs, _start_worker, (news,)) as workers:  # leaving the block, however, ends the workers
        results = {method: workers.apply_async(_run_method, (method, out, seed, settings)) for method in SLOWEST_FIRST}
        _watch(list(results.values()), news, show)
        rows = tuple(results[method].get() for method in METHODS)
    return Demo(rows, parts[2], seed)


def _watch(results: list[AsyncResult[MethodRow]], news: "Queue[tuple[str, Progress]]", show: Show) -> None:
    while not all(result.ready() for result in results):
        try:
            method, progress = news.get(timeout=0.2)
        except queue.Empty:
            continue
        gap = progress.validation_gap
        note = "" if gap is None else f"validation gap {gap:.2f}"
        show(NAMES[method], progress.stage, progress.update, progress.updates, note)


_news: "Queue[tuple[str, Progress]] | None" = None


def _start_worker(news: "Queue[tuple[str, Progress]]") -> None:
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    keep_freed_memory()
    torch.set_num_threads(1)


def _run_method(method: str, out: Path, seed: int, settings: dict[str, Any]) -> MethodRow:
    def tell(progress: Progress) -> None:
        if _news is not None and (progress.update % 10 == 0 or progress.update == progress.updates):
            _news.put((method, progress))

    train, validation, test = (TaskSet.load(out / f"{name}.npz") for name in ("train", "validation", "test"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # the table shows it: a gap that is DKL's
        policy = fit(train, validation, method, seed=seed, progress=tell, **settings)  # as anyone would
    policy.save(out / f"{method}.safetensors")
    result = evaluate(load(out / f"{method}.safetensors"), test, starts=STARTS, seed=seed)
    return MethodRow(method, result, policy.training_log)
