"""Clients of Optuna's studies, some in each process: each asks and tells on one study until time is over.

    python -m benchmarks.load_optuna FOLDER KIND BEGIN SECONDS COLUMNS STUDY...

KIND is a storage and a sampler: `rdb-random`, `rdb-tpe`, `journal-random`. Threads of one process, a study each, begin
at the time BEGIN; what they saw is printed as JSON.
"""

import json
import sys
import threading
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend

from benchmarks.load_service import Seen

WAIT = 60.0  # seconds for SQLite's lock, as ours: longer than its default, so that none gives up under this load
ROWS = 2000
SAMPLERS = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}


def storage_of(folder: Path, kind: str, study: str) -> Any:
    """A file for each study, as ours has one for each campaign."""
    if kind.startswith("rdb"):
        url = f"sqlite:///{folder / study}.db"
        return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": WAIT}})
    backend = JournalFileBackend(str(folder / f"{study}.log"))
    return optuna.storages.JournalStorage(backend)


def _client(folder: Path, kind: str, study: str, begin: float, seconds: float, columns: int, seen: Seen) -> None:
    try:
        sampler = SAMPLERS[kind.split("-")[1]]()
        loaded = optuna.load_study(study_name=study, storage=storage_of(folder, kind, study), sampler=sampler)
        time.sleep(max(0.0, begin - time.time()))
        until = begin + seconds
        while time.time() < until:
            began = time.perf_counter()
            trial = loaded.ask()
            if kind.endswith("random"):  # the least to write: which row of a pool
                x: list[float] = [trial.suggest_int("row", 0, ROWS - 1) / ROWS]
            else:
                x = [trial.suggest_float(f"f{number}", 0.0, 1.0) for number in range(columns)]
            asked = time.perf_counter()
            loaded.tell(trial, -sum((value - 0.3) ** 2 for value in x))
            seen.asks.append(asked - began)
            seen.tells.append(time.perf_counter() - asked)
    except Exception as error:  # whatever goes wrong is counted
        seen.errors.append(repr(error)[:300])


def main(folder: Path, kind: str, begin: float, seconds: float, columns: int, studies: list[str]) -> Seen:
    seen = Seen()
    threads = [
        threading.Thread(target=_client, args=(folder, kind, study, begin, seconds, columns, seen)) for study in studies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen.seconds = time.time() - begin
    return seen


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    folder, kind, begin, seconds, columns = sys.argv[1:6]
    print(json.dumps(asdict(main(Path(folder), kind, float(begin), float(seconds), int(columns), sys.argv[6:]))))
