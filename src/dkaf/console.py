"""What a person sees while it works: bars on a terminal, plain lines elsewhere. All of it on the error stream."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

SECONDS_BETWEEN_LINES = 10.0


class Bars:
    """Progress of several labelled jobs.

    >>> with Bars() as bars:  # doctest: +SKIP
    ...     bars.advance("dkaf", "likelihood", 10, 2000)
    """

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._bars: Progress | None = None
        if self.console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
            )
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._printed: dict[tuple[str, str], float] = {}

    def __enter__(self) -> "Bars":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def advance(self, label: str, stage: str, done: int, total: int, note: str = "") -> None:
        """`done` of at most `total`, for one stage of one job."""
        key = (label, stage)
        if self._bars is not None:
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task(f"{label}: {stage}", total=total, note="")
            self._bars.update(self._tasks[key], completed=done, note=note)
            return
        now = time.monotonic()
        if key not in self._printed:
            self._printed[key] = now - SECONDS_BETWEEN_LINES  # the first one at once
        if done == total or now - self._printed[key] >= SECONDS_BETWEEN_LINES:
            self._printed[key] = now
            self.say(f"{label}: {stage} {done} of {total} {note}".rstrip())

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
