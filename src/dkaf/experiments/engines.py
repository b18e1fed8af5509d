"""Where jobs run: processes of this machine, or a Ray cluster. The results are the same."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from dkaf.allocator import keep_freed_memory, large_pages
from dkaf.errors import InputError
from dkaf.experiments.grid import Grid, Job
from dkaf.experiments.rows import Row
from dkaf.experiments.work import Failure, Files, perform

TRIES = 3
"""How often a job is begun whose worker dies: of one that kills its worker every time, enough is enough."""

KEPT_IN_STORE = 32
"""Files of shared work that a Ray cluster keeps for further jobs."""

Outcome = Files | Row | Failure


class Engine(Protocol):
    """Runs jobs, up to `slots` at once, and gives back what came of each once."""

    @property
    def slots(self) -> int: ...
    def start(self, job: Job, grid: Grid, needed: dict[str, Files]) -> None: ...
    def finished(self, seconds: float) -> Iterator[tuple[Job, Outcome]]:
        """What has finished, waiting at most so long for the first."""

    def close(self) -> None: ...


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    task: tuple[Job, Grid, dict[str, Files]] | None = None
    tries: int = 0


class LocalEngine:
    """Processes of this machine, one thread each."""

    def __init__(self, jobs: int | None = None) -> None:
        self.slots = (os.cpu_count() or 1) if jobs is None else jobs
        self._context = multiprocessing.get_context("spawn")
        self._scratch = tempfile.mkdtemp(prefix="dkaf-")
        self._workers: list[_Worker] = []

    def start(self, job: Job, grid: Grid, needed: dict[str, Files]) -> None:
        self._give((job, grid, needed), tries=1)

    def _give(self, task: tuple[Job, Grid, dict[str, Files]], tries: int) -> None:
        worker = next((w for w in self._workers if w.task is None), None)
        if worker is None:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, self._scratch), daemon=True)
            with large_pages():
                process.start()
            theirs.close()
            worker = _Worker(process, ours)
            self._workers.append(worker)
        worker.task, worker.tries = task, tries
        with contextlib.suppress(BrokenPipeError):  # it died idle: noticed when its answer is read
            worker.pipe.send(task)

    def finished(self, seconds: float) -> Iterator[tuple[Job, Outcome]]:
        busy = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        for pipe in wait(list(busy), seconds):
            worker = busy[pipe]  # type: ignore[index]
            assert worker.task is not None
            task, job = worker.task, worker.task[0]
            try:
                outcome = worker.pipe.recv()
                worker.task = None
            except (EOFError, OSError):  # before its answer, or in the middle of it
                worker.process.join()
                self._workers.remove(worker)
                if worker.tries < TRIES:
                    self._give(task, worker.tries + 1)
                    continue
                outcome = Failure(f"the worker process died {TRIES} times, with exit code {worker.process.exitcode}")
            yield job, outcome

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers = []
        shutil.rmtree(self._scratch, ignore_errors=True)


def _serve(pipe: Connection, scratch: str) -> None:
    """A worker's life: it answers jobs until its parent is gone, and then leaves nothing running."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    keep_freed_memory()
    parent = multiprocessing.parent_process()
    assert parent is not None

    tempfile.tempdir = scratch  # one place for all, which the parent removes, or the last of its children

    def watch() -> None:
        wait([parent.sentinel])
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(perform(*pipe.recv()))


class RayEngine:
    """A Ray cluster, one processor a job. A job whose node dies is run again on another."""

    def __init__(self, address: str | None = None, jobs: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError("--engine ray needs Ray, which is not here; pip install 'dkaf[ray]'") from error
        self._ray = ray
        self._was_there = ray.is_initialized()
        if not self._was_there:
            _check_answers(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level="error")
            except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
                raise _no_cluster(address, error) from error
        self._jobs = jobs
        self._perform = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_perform_remotely)
        self._running: dict[Any, Job] = {}
        self._sent: dict[str, Any] = {}

    @property
    def slots(self) -> int:
        """One a processor of the cluster as it is now; nodes come and go."""
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        return max(1, processors if self._jobs is None else min(processors, self._jobs))

    def start(self, job: Job, grid: Grid, needed: dict[str, Files]) -> None:
        for name, files in needed.items():
            if name not in self._sent:
                self._sent[name] = self._ray.put(files)
        for name in list(self._sent)[:-KEPT_IN_STORE]:
            if name not in needed:
                del self._sent[name]  # jobs that use it keep it alive
        reference = self._perform.remote(job, grid, *(self._sent[name] for name in job.needs))
        self._running[reference] = job

    def finished(self, seconds: float) -> Iterator[tuple[Job, Outcome]]:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        for reference in ready:
            job = self._running.pop(reference)
            try:
                outcome: Outcome = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                outcome = Failure(f"the cluster lost the job: {error}")
            yield job, outcome

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running, self._sent = {}, {}
        if not self._was_there:
            self._ray.shutdown()


def _check_answers(address: str | None) -> None:
    """Whether anything listens there. Ray itself would ask for ten minutes before it says no."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return  # auto, local or a name of Ray's own: for Ray to say
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str | None, error: Exception) -> InputError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return InputError(
        f"a Ray cluster answers at the --address, {address} does not ({reason}); "
        "start one with `ray start --head` or leave --address out"
    )


def _perform_remotely(job: Job, grid: Grid, *needed: Files) -> Outcome:
    keep_freed_memory()
    return perform(job, grid, dict(zip(job.needs, needed, strict=True)))
