"""Running the grid: what is missing is computed, rows are appended as they come, and nothing is lost in between."""

import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dkaf.errors import InputError
from dkaf.experiments.engines import Engine
from dkaf.experiments.grid import Grid, Job, plan
from dkaf.experiments.peers import check_botorch
from dkaf.experiments.rows import Cell, Row, RowFile
from dkaf.experiments.work import Failure, Files, corpus_files
from dkaf.files import whole_file
from dkaf.sources.corpora import Corpus, load_corpus


@dataclasses.dataclass
class State:
    """How far a grid is."""

    cells: list[Cell]
    rows: dict[Cell, Row]
    waiting: list[Job]
    running: list[Job] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> dict[Cell, str]:
        return {cell: row.error for cell, row in self.rows.items() if row.error is not None}

    @property
    def done(self) -> int:
        return sum(row.error is None for row in self.rows.values())


Show = Callable[[State, Job | None, "Files | Row | Failure | None"], None]
"""Called with how far the grid is, and the job that was begun (with None) or ended (with what came of it), if any."""


def run_grid(
    grid: Grid, out: Path, engine: Callable[[], Engine], show: Show, *, extend: bool = False, command: str = ""
) -> State:
    """Fill the cells of the grid that `out` lacks. Interrupted or killed at any time, the same call goes on."""
    corpora = {name: load_corpus(name) for name in grid.datasets}
    for corpus in corpora.values():
        grid.pool_size_of(len(corpus.labels))  # refuses one that is too small
    if "botorch" in grid.methods:
        check_botorch()
    _make_folder(out)
    lock = FileLock(out / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(f"one process at a time fills a grid, another is at work in {out}; wait for it") from error
    except OSError as error:
        raise InputError(f"--out is a folder to write in, {out} is not ({error.strerror}); name another") from error
    try:
        _claim(grid, out, corpora, extend, command)
        return _fill_grid(grid, out, corpora, engine, show)
    finally:
        lock.release()


def _fill_grid(
    grid: Grid, out: Path, corpora: dict[str, Corpus], make_engine: Callable[[], Engine], show: Show
) -> State:
    row_file, store, commit = RowFile(out / "rows.jsonl"), Store(out / "work"), _commit()
    wanted = set(grid.cells)
    known = {cell: row for cell, row in row_file.read().items() if cell in wanted}
    missing = {cell for cell in wanted if cell not in known or known[cell].error is not None}
    state = State(grid.cells, {c: r for c, r in known.items() if c not in missing}, plan(grid, missing))
    state.waiting = [job for job in state.waiting if not store.has(job.name)]
    show(state, None, None)
    if not state.waiting:
        return state
    for name, corpus in corpora.items():
        if not store.has(f"corpus-{name}"):
            store.put(f"corpus-{name}", corpus_files(corpus))

    def keep(job: Job, outcome: Files | Row | Failure) -> None:
        """On disk before anything else is done with it."""
        if isinstance(outcome, dict):
            store.put(job.name, outcome)
            return
        if isinstance(outcome, Row):
            rows = [dataclasses.replace(outcome, **dataclasses.asdict(c), commit=commit) for c in job.serves]
        else:
            lost = [job, *(other for other in state.waiting if job.name in other.needs)]
            state.waiting = [other for other in state.waiting if other not in lost]
            rows = [
                Row(**dataclasses.asdict(cell), seed=grid.seed_of(cell.run), commit=commit, error=outcome.error)
                for each in lost
                for cell in each.serves
            ]
        row_file.append(rows)
        state.rows |= {row.cell: row for row in rows}

    engine = make_engine()
    try:
        while state.waiting or state.running:
            for job in [job for job in state.waiting if all(map(store.has, job.needs))]:
                if len(state.running) >= engine.slots:
                    break
                engine.start(job, grid, {name: store.get(name) for name in job.needs})
                state.waiting.remove(job)
                state.running.append(job)
                show(state, job, None)
            for job, outcome in engine.finished(1.0):
                state.running.remove(job)
                keep(job, outcome)
                show(state, job, outcome)
            show(state, None, None)
    finally:
        engine.close()
    return state


class Store:
    """Shared work on disk: a folder of files a name, there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        return (self.folder / name).is_dir()

    def get(self, name: str) -> Files:
        return {path.name: path.read_bytes() for path in sorted((self.folder / name).iterdir())}

    def put(self, name: str, files: Files) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            beside = Path(tempfile.mkdtemp(dir=self.folder, prefix="."))
        except OSError as error:
            raise InputError(f"{self.folder} cannot be written: {error.strerror}; make room") from error
        try:
            for file, data in files.items():
                with whole_file(beside / file) as opened:
                    opened.write(data)
            os.replace(beside, self.folder / name)
        except BaseException as error:
            shutil.rmtree(beside, ignore_errors=True)
            if isinstance(error, OSError):
                raise InputError(
                    f"{self.folder / name} cannot be made ({error.strerror}); clear {self.folder}"
                ) from error
            raise


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        others = [
            path.name for path in out.iterdir() if not path.name.startswith(".")
        ]  # a lock, or a half-written file
    except OSError as error:
        raise InputError(f"--out is a folder, {out} cannot be one ({error.strerror}); name another") from error
    if others and not (out / "grid.json").exists():
        raise InputError(f"--out is a new folder, an empty one or a grid's, {out} holds other files; name another")


def _claim(grid: Grid, out: Path, corpora: dict[str, Corpus], extend: bool, command: str) -> None:
    """Write what the folder is of, or check that the grid is part of it; to extend it is to let it grow."""
    about = {
        name: {"digest": c.digest, "documents": len(c.labels), "terms": len(c.terms), "form": c.form}
        for name, c in corpora.items()
    }
    path, new = out / "grid.json", grid.describe(about) | {"command": command}
    if path.exists():
        try:
            old = json.loads(path.read_text())
            differs, merged = _differences(old, new), _merged(old, new)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} does not describe a grid ({error}); restore it or name another --out") from error
        if differs:
            raise InputError(
                f"the folder of a grid takes rows of that grid alone, {out} holds one with another "
                f"{', '.join(differs)}; name another --out"
            )
        if merged["cells"] == old["cells"]:
            return
        if not extend:
            parts = ", ".join(part for part in merged["cells"] if merged["cells"][part] != old["cells"][part])
            raise InputError(
                f"{out} holds a grid without these {parts}; add --extend to let it grow, or name another --out"
            )
        new = merged
    with whole_file(path) as file:
        file.write(json.dumps(new, indent=2).encode())


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Both grids' cells, with what decides about them."""
    return new | {
        "cells": {
            part: old["cells"][part] + [value for value in values if value not in old["cells"][part]]
            for part, values in new["cells"].items()
        },
        "corpora": old["corpora"] | new["corpora"],
        "recipes": {
            name: old["recipes"].get(name, {}) | new["recipes"].get(name, {})
            for name in old["recipes"] | new["recipes"]
        },
        "command": f"{old['command']} && {new['command']}",
    }


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What decides about rows that both have, and is not the same."""
    differs = [part for part in ("format", "seed", "protocol") if old[part] != new[part]]
    differs += [
        f"{name} corpus"
        for name in old["corpora"].keys() & new["corpora"].keys()
        if old["corpora"][name]["digest"] != new["corpora"][name]["digest"]
    ]
    for name in old["recipes"].keys() & new["recipes"].keys():
        both = old["recipes"][name].keys() & new["recipes"][name].keys()
        if any(old["recipes"][name][variant] != new["recipes"][name][variant] for variant in both):
            differs.append(f"{name} recipe")
    return differs


def _commit() -> str | None:
    """The commit of the source tree this runs from, if it is one; with a mark if the tree differs from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # an installed copy inside another project is not ours
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
