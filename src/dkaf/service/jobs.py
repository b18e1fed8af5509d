"""Training in the background: a process for each job, whose state is a file that outlives the service.

The process holds a lock from its first instant to its last: a job that is running by its file and whose lock is free
has died. The service writes the file before the process begins and after it has ended, the process in between.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dkaf.errors import InputError
from dkaf.service.problems import Refusal
from dkaf.service.shelf import Shelf
from dkaf.service.tokens import write_private

RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"
SHOWN = ("job", "name", "state", "stage", "done", "total", "message", "policy", "campaigns", "who", "created")
MOST_RUNNING = 2
MOST_KEPT = 200
JOB = re.compile(r"[0-9a-f]{16}")
PATIENCE = 10.0  # seconds until a process that was asked to end is ended


class Jobs:
    """The jobs of a service's folder."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._folder = shelf.folder / "jobs"
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def begin(
        self,
        campaigns: Sequence[str],
        name: str,
        response: str | None = None,
        settings: Mapping[str, Any] | None = None,
        who: str | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Train a policy of that name on finished campaigns; what was begun under the same key is that training."""
        from dkaf.settings import Settings, recipe

        paths = [str(self._shelf.existing(campaign)) for campaign in dict.fromkeys(campaigns)]
        target = self._shelf.policy_path(name)
        if unknown := sorted(set(settings or {}) - {field.name for field in dataclasses.fields(Settings)}):
            raise InputError(f"settings have names of their own, {unknown[0]!r} is none; dkaf train --help lists them")
        recipe("default", "dkaf", "ucb", **(settings or {}))  # refuse before any work
        with self._lock:
            known = self._all()
            for before in known:
                if key is not None and before.get("key") == key:
                    return self._shown(before)
            running = [job for job in known if job["state"] == RUNNING]
            if target.exists() or any(job["name"] == name for job in running):
                raise Refusal(
                    409, f"policies have names of their own, {name!r} is there or in the making; name another"
                )
            if len(running) >= MOST_RUNNING:
                raise Refusal(
                    429,
                    f"{MOST_RUNNING} trainings run at once, so many do; wait for one, or cancel it",
                    {"retry-after": "60"},
                )
            job = secrets.token_hex(8)
            created = datetime.now(UTC).isoformat(timespec="milliseconds")
            value = {
                "job": job, "name": name, "state": RUNNING, "stage": "starting", "done": 0, "total": 0, "message": "",
                "policy": None, "campaigns": list(dict.fromkeys(campaigns)), "who": who, "created": created,
                "key": key,
                "request": {
                    "paths": paths, "target": str(target), "response": response, "settings": dict(settings or {}),
                },
            }  # fmt: skip
            write_private(self._path(job), value)
            self._start(job)
            self._forget_old()
        return self._shown(value)

    def all(self) -> list[dict[str, Any]]:
        """The newest first."""
        with self._lock:
            return [self._shown(job) for job in self._all()]

    def one(self, job: str) -> dict[str, Any]:
        """How far a job is."""
        with self._lock:
            return self._shown(self._read(job))

    def cancel(self, job: str) -> dict[str, Any]:
        """End a job's process; one that has ended stays as it is."""
        with self._lock:
            value = self._read(job)
            if value["state"] != RUNNING:
                return self._shown(value)
            self._end(job)
            value = self._read(job, look=False)
            if value["state"] == RUNNING:
                value |= {"state": CANCELLED, "message": "cancelled"}
                write_private(self._path(job), value)
            return self._shown(value)

    def _start(self, job: str) -> None:
        """The lock is taken here and left to the process, so that there is no instant without it."""
        with open(self._lock_path(job), "w") as lock, open(self._folder / f"{job}.log", "wb") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.Popen(
                [sys.executable, "-m", "dkaf.service.training", str(self._path(job))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock.fileno(),), start_new_session=True,
            )  # fmt: skip
            self._processes[job] = process
            lock.write(str(process.pid))

    def _alive(self, job: str) -> bool:
        process = self._processes.get(job)
        if process is not None and process.poll() is not None:
            del self._processes[job]
        try:
            with open(self._lock_path(job)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _end(self, job: str) -> None:
        """As long as the lock is held, the process's number is its own."""
        for number, seconds in ((signal.SIGTERM, PATIENCE / 5), (signal.SIGKILL, PATIENCE)):
            until = time.monotonic() + seconds
            with contextlib.suppress(OSError, ValueError):
                if self._alive(job):
                    os.killpg(int(self._lock_path(job).read_text()), number)
            while self._alive(job):
                if time.monotonic() > until:
                    break
                time.sleep(0.02)
            else:
                return

    def _read(self, job: str, look: bool = True) -> dict[str, Any]:
        if not JOB.fullmatch(job) or not self._path(job).is_file():
            raise Refusal(404, f"there is no job {job!r}; GET /api/jobs names those that there are")
        alive = look and self._alive(job)
        value = self._written(job)  # after: what it wrote last is there
        if look and value["state"] == RUNNING and not alive:
            value |= {"state": FAILED, "message": "the training's process has ended without a word; begin it again"}
            write_private(self._path(job), value)
        return value

    def _written(self, job: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads(self._path(job).read_bytes())
            if value.keys() >= set(SHOWN):
                return value
        except (OSError, ValueError, AttributeError):
            pass
        return dict.fromkeys(SHOWN, "") | {
            "job": job, "state": FAILED, "message": "the job's file is not as it was written; begin it again",
            "done": 0, "total": 0, "policy": None, "campaigns": [],
        }  # fmt: skip

    def _all(self) -> list[dict[str, Any]]:
        found = [self._read(path.stem) for path in self._folder.glob("*.json") if JOB.fullmatch(path.stem)]
        return sorted(found, key=lambda job: str(job["created"]), reverse=True)

    def _forget_old(self) -> None:
        for value in self._all()[MOST_KEPT:]:
            if value["state"] != RUNNING:
                for path in self._folder.glob(f"{value['job']}.*"):
                    path.unlink(missing_ok=True)

    def _shown(self, value: dict[str, Any]) -> dict[str, Any]:
        shown = {name: value[name] for name in SHOWN}
        return shown | {"message": self._shelf.public(str(value["message"]))}

    def _path(self, job: str) -> Path:
        return self._folder / f"{job}.json"

    def _lock_path(self, job: str) -> Path:
        return self._folder / f"{job}.lock"
