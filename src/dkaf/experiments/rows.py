"""Rows: what an experiment leaves. One a cell, appended to a file and never edited; all else is a function of them."""

import dataclasses
import json
import lzma
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dkaf.errors import InputError
from dkaf.tasks import FloatArray


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """One square of the grid: a method, trained and measured once."""

    dataset: str
    recipe: str
    size: int
    """Training tasks."""
    run: int
    method: str
    acquisition: str
    """mi, ei or ucb; empty for methods that have none."""

    def __str__(self) -> str:
        name = f"{self.method}-{self.acquisition}" if self.acquisition else self.method
        return f"{self.dataset} {self.recipe} {self.size} tasks, run {self.run}, {name}"


@dataclasses.dataclass(frozen=True)
class Row:
    """What came of a cell. A failed one has an error and no gaps."""

    dataset: str
    recipe: str
    size: int
    run: int
    method: str
    acquisition: str
    seed: int
    """Of the tasks, the starts and the training."""
    gaps: list[list[float]] = dataclasses.field(default_factory=list)
    """Of each test task after each query, in units of y; the mean over its starts."""
    start_gaps: list[float] = dataclasses.field(default_factory=list)
    """Of each test task before the first query, likewise."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Of each stage: `likelihood` and `policy gradient` are the training, `search` all test tasks."""
    pretrain_updates: int = 0
    updates: int = 0
    best_update: int = 0
    validation: list[list[int | float]] = dataclasses.field(default_factory=list)
    """(update, gap on the validation tasks) of each validation."""
    stopped: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    commit: str | None = None
    machine: str = ""
    error: str | None = None

    @property
    def cell(self) -> Cell:
        return Cell(self.dataset, self.recipe, self.size, self.run, self.method, self.acquisition)

    @property
    def task_gaps(self) -> FloatArray:
        """The average cumulative gap of each test task."""
        gaps: FloatArray = np.array(self.gaps).mean(axis=1)
        return gaps

    @property
    def training_seconds(self) -> float:
        return sum((seconds for stage, seconds in self.seconds.items() if stage != "search"), 0.0)

    def without_timings(self) -> dict[str, Any]:
        """All that is the same whichever machine made the row."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in ("seconds", "machine")}


class RowFile:
    """Rows on disk, one JSON object a line. Only one process appends. `xz rows.jsonl` makes them small to publish."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Iterable[Row]) -> None:
        """On disk when the call returns. A line that a killed process left half-written is cut off first."""
        text = "".join(json.dumps(dataclasses.asdict(row), allow_nan=False) + "\n" for row in rows)
        try:
            with open(self.path, "ab+") as file:
                file.truncate(self._whole_bytes())
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"rows cannot be appended to {self.path}: {error.strerror}; make room") from error

    def _whole_bytes(self) -> int:
        """The file up to the end of its last whole line."""
        with open(self.path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            while end > 0:
                begin = max(0, end - 65536)
                file.seek(begin)
                newline = file.read(end - begin).rfind(b"\n")
                if newline >= 0:
                    return begin + newline + 1
                end = begin
            return 0

    def read(self) -> dict[Cell, Row]:
        """The newest row of each cell, in the order of cells."""
        newest = {row.cell: row for row in self._lines()}
        return {cell: newest[cell] for cell in sorted(newest)}

    def _lines(self) -> Iterator[Row]:
        """Of the compressed file, if there is one beside, as published rows are, and then of the file itself."""
        packed = self.path.with_name(self.path.name + ".xz")
        for path in (packed, self.path):
            if not path.exists():
                continue
            try:
                data = path.read_bytes()
                text = (lzma.decompress(data) if path == packed else data).decode()
            except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
                raise InputError(f"the rows in {path} cannot be read ({error}); restore the file") from error
            for number, line in enumerate(text.splitlines(keepends=True), 1):
                if not line.endswith("\n"):
                    break  # half-written when its process was killed; its cell is run again
                try:
                    yield _checked(Row(**json.loads(line)))
                except (ValueError, TypeError) as error:
                    raise InputError(f"line {number} of {path} is no row ({error}); restore the file") from error


def _checked(row: Row) -> Row:
    """Rows of a file may be anybody's: what would end later code in a traceback is refused here."""
    for field, kind in {
        "dataset": str,
        "recipe": str,
        "size": int,
        "run": int,
        "method": str,
        "acquisition": str,
    }.items():
        if type(getattr(row, field)) is not kind:
            raise TypeError(f"{field} is {getattr(row, field)!r}")
    if not isinstance(row.seconds, dict) or not all(isinstance(value, int | float) for value in row.seconds.values()):
        raise TypeError("seconds are not numbers by stage")
    if row.error is None and np.asarray(row.gaps, dtype=np.float64).ndim != 2:
        raise TypeError("gaps are not tasks x queries")
    return row
