"""What a person sees while the grid runs: a live table on a terminal, a line a finished cell elsewhere."""

import time
from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dkaf.experiments.grid import KERNEL_OF, Job
from dkaf.experiments.names import method_name
from dkaf.experiments.paper import State
from dkaf.experiments.rows import Cell, Row
from dkaf.experiments.work import Failure, Files


class Board:
    """Shows progress, the time left and the standings so far; `show` is what `run_grid` calls."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.slots = 1
        """Jobs at once; whoever starts the engine says."""
        self._live = Live(console=self.console, refresh_per_second=2) if self.console.is_terminal else None
        self._began: dict[str, float] = {}
        self._took: dict[str, list[float]] = defaultdict(list)
        self._greeted = False

    def __enter__(self) -> "Board":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, state: State, job: Job | None, outcome: Files | Row | Failure | None) -> None:
        if not self._greeted:
            self._learn_times(state.rows.values())
        if job is not None and outcome is None:
            self._began[job.name] = time.monotonic()
        if job is not None and outcome is not None:
            self._took[_like(job)].append(time.monotonic() - self._began.pop(job.name))
        if self._live is not None:
            self._live.update(self._table(state))
        elif not self._greeted:
            self.say(f"{state.done} of {len(state.cells)} cells are done")
        elif job is not None and outcome is not None and not isinstance(outcome, dict):
            self.say(f"[{len(state.rows)}/{len(state.cells)}] {_news(job, outcome)}; {self._left(state)}")
        self._greeted = True

    def _learn_times(self, rows: Iterable[Row]) -> None:
        """What work took when the grid was run before."""
        for row in rows:
            likelihood = row.seconds.get("likelihood", 0.0)
            if row.method in KERNEL_OF:
                self._took[_kind("kernel", row.cell)].append(likelihood)
            self._took[_kind("cell", row.cell)].append(sum(row.seconds.values()) - likelihood)

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _left(self, state: State) -> str:
        """From the time that work of the same kind took so far."""
        if not self._took:
            return "time left: not known yet"
        usual = float(np.mean([np.mean(times) for times in self._took.values()]))
        now = time.monotonic()
        seconds = 0.0
        for job in (*state.waiting, *state.running):
            expected = float(np.mean(self._took[_like(job)])) if _like(job) in self._took else usual
            seconds += max(0.0, expected - (now - self._began.get(job.name, now)))
        minutes = round(seconds / self.slots / 60)
        return f"about {minutes // 60} h {minutes % 60:02d} min left" if minutes else "less than a minute left"

    def _table(self, state: State) -> Group:
        done = len(state.rows)
        head = Text(f"{state.done} of {len(state.cells)} cells, {self._left(state)}")
        if state.failed:
            head.append(f", {len(state.failed)} failed", style="red")
        now = time.monotonic()
        running = [f"  {now - self._began[job.name]:5.0f} s  {_called(job)}" for job in state.running]
        datasets = list(dict.fromkeys(cell.dataset for cell in state.cells))
        table = Table(title="mean gap so far (cells)", title_justify="left")
        table.add_column("method")
        for dataset in datasets:
            table.add_column(dataset, justify="right")
        for name, means in standings(state.rows.values()):
            table.add_row(name, *(f"{means[d][0]:.2f} ({means[d][1]})" if d in means else "" for d in datasets))
        return Group(head, ProgressBar(total=len(state.cells), completed=done), table, *map(Text, running))


def standings(rows: Iterable[Row]) -> list[tuple[str, dict[str, tuple[float, int]]]]:
    """Each method's mean gap in each dataset over the cells it has, and their number; the best method first."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.error is None:
            found[f"{row.recipe} {method_name(row.method, row.acquisition)}"][row.dataset].append(
                float(np.mean(row.gaps))
            )
    means = {
        name: {dataset: (float(np.mean(gaps)), len(gaps)) for dataset, gaps in of_datasets.items()}
        for name, of_datasets in found.items()
    }
    return sorted(means.items(), key=lambda item: float(np.mean([mean for mean, _ in item[1].values()])))


def _like(job: Job) -> str:
    return _kind(job.kind, job.cell)


def _kind(kind: str, cell: Cell) -> str:
    """Work that takes about as long."""
    if kind == "tasks":
        return f"tasks {cell.dataset}"
    method = KERNEL_OF[cell.method] if kind == "kernel" else cell.method
    return f"{kind} {method} {cell.recipe} {cell.dataset}"


def _called(job: Job) -> str:
    what = {"tasks": "making tasks for ", "kernel": "likelihood for ", "cell": ""}[job.kind]
    return what + str(job.cell)


def _news(job: Job, outcome: Row | Failure) -> str:
    if isinstance(outcome, Failure):
        return f"{_called(job)}: FAILED, {outcome.error.strip().splitlines()[-1]}"
    return f"{_called(job)}: gap {np.mean(outcome.gaps):.3g}, {outcome.training_seconds:.0f} s of training"
