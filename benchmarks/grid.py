"""How long the paper's whole grid takes on two cores, from a random sample of its blocks.

    python -m benchmarks.grid --out runs/grid-estimate [--blocks 12]

A block is a corpus, a number of training tasks and a run: ours, DKL and GP with three acquisition functions each, RL
and MetaBO, with the training by likelihood that they share. There are 150. The sample is stratified: of each corpus
as many blocks, drawn at random. They are run as `dkaf paper run` runs them, by two processes of one thread, and every
job is timed. What a run shares between its blocks, the classifier, the tasks and the searchers that do not learn, is
counted once a run. The same command goes on where it was; timings and rows stay in --out.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from dkaf.errors import InputError
from dkaf.experiments.engines import LocalEngine
from dkaf.experiments.grid import Grid, Job
from dkaf.experiments.names import NAMES, UNTRAINED
from dkaf.experiments.paper import State, run_grid
from dkaf.experiments.paper_tables import PAPER_MACHINE, PAPER_SECONDS
from dkaf.experiments.rows import Cell, Row
from dkaf.experiments.work import Failure, Files
from dkaf.seeding import derive
from dkaf.settings import METHODS
from dkaf.sources.corpora import NotHereError, load_corpus

WORKERS = 2
ACQUISITIONS_TRAINED = {"dkaf": 3}  # the paper's own method is trained anew for each acquisition function
PAPER_HOURS = sum(50 * sum(s.values()) * ACQUISITIONS_TRAINED.get(m, 1) for m, s in PAPER_SECONDS.items()) / 3600
"""50 blocks a corpus. About 5 trainings of 1,000 seconds a block: 200 GPU hours."""


@dataclass(frozen=True)
class Block:
    """One square of dataset x size x run."""

    dataset: str
    size: int
    run: int


@dataclass(frozen=True)
class SampledGrid(Grid):
    """The paper's grid, of which only some blocks are run."""

    blocks: tuple[Block, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        return [cell for cell in super().cells if Block(cell.dataset, cell.size, cell.run) in self.blocks]


@dataclass(frozen=True)
class Timing:
    """Seconds that a job took on its core."""

    job: str
    kind: str
    dataset: str
    size: int
    run: int
    method: str
    seconds: float

    @property
    def shared(self) -> bool:
        """Whether it is done once a run, whatever sizes there are."""
        return self.kind == "tasks" or (self.kind == "cell" and self.method in UNTRAINED)


@dataclass(frozen=True)
class Estimate:
    """Hours on one core, and the standard error of that."""

    hours: float
    error: float

    def on(self, cores: int) -> str:
        return f"{self.hours / cores:.1f} ± {self.error / cores:.1f} hours"


def sample(grid: Grid, count: int, seed: int) -> tuple[Block, ...]:
    """Of each corpus as many blocks, drawn at random; a larger sample contains a smaller one."""
    per_dataset = math.ceil(count / len(grid.datasets))
    blocks: list[Block] = []
    for dataset in grid.datasets:
        everything = [Block(dataset, size, run) for size, run in product(grid.sizes, range(grid.runs))]
        order = np.random.default_rng(derive(seed, "blocks", dataset)).permutation(len(everything))
        blocks += [everything[number] for number in order[:per_dataset]]
    return tuple(blocks)


def estimate(grid: Grid, blocks: Sequence[Block], timings: Iterable[Timing], *, without: str = "botorch") -> Estimate:
    """The whole grid from its sample: each corpus's mean block and mean shared work of a run, times their number.

    The error is that of a stratified sample without replacement. `without` is a method that is counted apart.
    """
    counted = [timing for timing in timings if timing.method != without or timing.kind != "cell"]
    total = variance = 0.0
    for dataset in grid.datasets:
        of_dataset = [timing for timing in counted if timing.dataset == dataset]
        own = {
            block: sum(t.seconds for t in of_dataset if not t.shared and (t.size, t.run) == (block.size, block.run))
            for block in blocks
            if block.dataset == dataset
        }
        runs = {block.run: sum(t.seconds for t in of_dataset if t.shared and t.run == block.run) for block in own}
        for seconds, population in (
            (list(own.values()), len(grid.sizes) * grid.runs),
            (list(runs.values()), grid.runs),
        ):
            total += population * statistics.fmean(seconds)
            spread = statistics.variance(seconds) if len(seconds) > 1 else math.nan
            if len(seconds) < population:
                variance += population**2 * spread / len(seconds) * (1 - len(seconds) / population)
    return Estimate(total / 3600, math.sqrt(variance) / 3600)


def apart(grid: Grid, timings: Iterable[Timing], method: str = "botorch") -> Estimate | None:
    """A method that is done once a run, over all corpora and runs."""
    total = variance = 0.0
    cells = [timing for timing in timings if timing.method == method and timing.kind == "cell"]
    for dataset in grid.datasets:
        seconds = [timing.seconds for timing in cells if timing.dataset == dataset]
        if not seconds:
            return None
        total += grid.runs * statistics.fmean(seconds)
        if len(seconds) < grid.runs:
            spread = statistics.variance(seconds) if len(seconds) > 1 else math.nan
            variance += grid.runs**2 * spread / len(seconds) * (1 - len(seconds) / grid.runs)
    return Estimate(total / 3600, math.sqrt(variance) / 3600)


class Stopwatch:
    """Times every job of a grid as it runs, and keeps the times in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began: dict[str, float] = {}

    def show(self, state: State, job: Job | None, outcome: Files | Row | Failure | None) -> None:
        """What `run_grid` calls when a job begins, and with its outcome when it ends."""
        if job is None:
            return
        if outcome is None:
            self.began[job.name] = time.perf_counter()
            return
        seconds = time.perf_counter() - self.began[job.name]
        if isinstance(outcome, Failure):
            print(f"failed: {job.name}: {outcome.error.strip().splitlines()[-1]}", file=sys.stderr)
            return
        cell = job.cell
        method = cell.method if job.kind == "cell" else ""
        line = Timing(job.name, job.kind, cell.dataset, cell.size, cell.run, method, seconds)
        with self.path.open("a") as file:
            file.write(json.dumps(vars(line)) + "\n")
        print(f"{job.name}: {seconds:.0f} s, {len(state.waiting)} jobs to go", file=sys.stderr, flush=True)

    def timings(self) -> list[Timing]:
        """The last one of each job."""
        if not self.path.exists():
            return []
        lines = [Timing(**json.loads(line)) for line in self.path.read_text().splitlines()]
        return list({line.job: line for line in lines}.values())


def complete(blocks: Sequence[Block], grid: SampledGrid, timings: Sequence[Timing]) -> list[Block]:
    """The blocks all of whose cells were timed: a timing is lost if the process is killed right after a job."""
    timed = {timing.job for timing in timings}
    trained = [cell for cell in grid.cells if cell.method not in UNTRAINED]
    lost = {Block(cell.dataset, cell.size, cell.run) for cell in trained if str(cell) not in timed}
    return [block for block in blocks if block not in lost]


def summary(grid: SampledGrid, blocks: Sequence[Block], timings: Sequence[Timing]) -> str:
    whole, peer = estimate(grid, blocks, timings), apart(grid, timings)
    squares = len(grid.datasets) * len(grid.sizes) * grid.runs
    hours = whole.hours / WORKERS
    lines = [
        f"{len(blocks)} of {squares} blocks measured; {', '.join(grid.datasets)}",
        f"the whole grid, {WORKERS} cores: {whole.on(WORKERS)}",
    ]
    if peer is not None:
        lines.append(f"BoTorch's own row apart, {WORKERS} cores: {peer.on(WORKERS)}")
    if squares == 150:
        ratio = PAPER_HOURS / hours
        lines.append(
            f"the paper: about {PAPER_HOURS:.0f} hours of a {PAPER_MACHINE} (Table 1), {ratio:.1f} times as long"
        )
    by_method: dict[str, list[float]] = {}
    for timing in timings:
        name = {"tasks": "classifier and tasks", "kernel": "training by likelihood"}.get(timing.kind)
        by_method.setdefault(name or NAMES[timing.method], []).append(timing.seconds)
    lines += [f"  {name}: {statistics.fmean(s):.0f} s a job, {len(s)} jobs" for name, s in by_method.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="rows and timings; resumed from")
    parser.add_argument("--blocks", type=int, default=12, metavar="N", help="at least so many (%(default)s)")
    parser.add_argument("--datasets", default="reuters,neurips,webkb", metavar="A,B", help="(%(default)s)")
    parser.add_argument("--sizes", default="20,40,60,80,100", metavar="N,M", help="(%(default)s)")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="(%(default)s)")
    parser.add_argument("--test-tasks", type=int, default=50, metavar="N", help="(%(default)s)")
    parser.add_argument("--recipe", default="default", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting, for trials"
    )
    parser.add_argument("--without-botorch", action="store_true", help="leave BoTorch's row out")
    options = parser.parse_args()
    try:
        grid = SampledGrid(
            datasets=tuple(options.datasets.split(",")),
            recipes=(options.recipe,),
            sizes=tuple(int(size) for size in options.sizes.split(",")),
            runs=options.runs,
            test_tasks=options.test_tasks,
            methods=(*METHODS, "informed", *(() if options.without_botorch else ("botorch",))),
            settings=tuple(tuple(pair.split("=", 1)) for pair in options.set),
        )
        for name in grid.datasets:
            try:
                load_corpus(name)
            except NotHereError as error:
                raise InputError(f"{error}; or set DKAF_DATA to a folder that has the corpora") from error
        blocks = sample(grid, options.blocks, options.seed)
        grid = SampledGrid(**vars(grid) | {"blocks": blocks})
        options.out.mkdir(parents=True, exist_ok=True)
        stopwatch = Stopwatch(options.out / "timings.jsonl")
        run_grid(grid, options.out / "grid", lambda: LocalEngine(WORKERS), stopwatch.show, extend=True)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on from {options.out}", file=sys.stderr)
        return 130
    timings = stopwatch.timings()
    whole = complete(blocks, grid, timings)
    if not all(any(block.dataset == name for block in whole) for name in grid.datasets):
        print("of some corpus no block is complete; the same command tries again", file=sys.stderr)
        return 1
    print(summary(grid, whole, timings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
