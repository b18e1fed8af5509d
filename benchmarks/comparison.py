"""A comparison: the same work done by us and by named peers, checked to be the same before it is timed."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from torch import Tensor

from benchmarks.memory import peak_memory

Work = Callable[[], object]
"""Does the work once; what it returns is thrown away."""

TURN = 0.1  # seconds at least, where work can be done again and again

NAMES = {"torch": "PyTorch", "gpytorch": "GPyTorch", "botorch": "BoTorch", "baybe": "BayBE"}


class DisagreementError(Exception):
    """Two sides did not compute the same, so that their times would not compare."""


@dataclass(frozen=True)
class Peer:
    """A package, and how it was used."""

    package: str
    how: str
    key: str = ""
    """Tells two uses of one package apart, in the baseline and on the command line."""

    @property
    def name(self) -> str:
        return f"{NAMES[self.package]} {version(self.package).partition('+')[0]}, {self.how}"

    @property
    def short(self) -> str:
        return f"{self.package}-{self.key}" if self.key else self.package


@dataclass(frozen=True)
class Case:
    """One comparison, ready to run. Each side is built before it works; only the work is timed."""

    size: str
    ours: Callable[[], Work]
    peers: dict[Peer, Callable[[], Work]]
    check: Callable[[], str]
    """Raises a DisagreementError, or says what agreed and how well."""
    warm: bool = True
    """Whether an untimed piece of work goes before each timed one; not where work goes on from where it was."""
    waits: bool = False
    """Whether it waits for a disk, so that its time is that of a clock on the wall."""
    calls: int = 2
    """Pieces of work whose peak of memory is taken."""
    close: Callable[[], object] = lambda: None
    """Deletes what the case put on disk."""


@dataclass(frozen=True)
class Comparison:
    """An entry of the registry."""

    name: str
    what: str
    unit: str
    """What the times are of."""
    case: Callable[[], Case]
    turns: int = 15
    large: bool = False


@dataclass(frozen=True)
class Row:
    """One line of the table: us against one peer."""

    comparison: str
    what: str
    unit: str
    peer: str
    """Short and without a version: `gpytorch`, `gpytorch-public`."""
    name: str
    ours_seconds: float
    peer_seconds: float
    ratio: float
    """The peer's median time over ours: how many times faster we are."""
    low: float
    high: float
    """Quartiles of the ratio over the turns."""
    ours_mib: float | None
    peer_mib: float | None
    core: float
    """The share of a core that the process got while it was timed; well below 1, the machine was busy."""
    agreement: str
    """What was found equal before anything was timed."""

    @property
    def key(self) -> str:
        return f"{self.comparison}/{self.peer}"


def measure(comparison: Comparison, case: Case) -> list[Row]:
    """Memory, each side in a process of its own that finds a clean heap; whether all agree; then times, in turns."""
    memory = {peer: peak_memory(build, case.calls, rehearse=case.warm) for peer, build in _sides(case)}
    agreement = case.check()
    works = {peer: build() for peer, build in _sides(case)}
    times, core = turns(works, comparison.turns, warm=case.warm, waits=case.waits)
    ours = times.pop(None)
    rows = []
    for peer, theirs in times.items():
        assert peer is not None
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
        seconds = statistics.median(ours), statistics.median(theirs)
        about = (comparison.name, comparison.what, comparison.unit, peer.short, peer.name)
        rows.append(
            Row(*about, *seconds, seconds[1] / seconds[0], low, high, memory[None], memory[peer], core, agreement)
        )
    return rows


def _sides(case: Case) -> Iterable[tuple[Peer | None, Callable[[], Work]]]:
    return [(None, case.ours), *case.peers.items()]


def turns(
    works: dict[Any, Work], count: int, *, warm: bool = True, waits: bool = False
) -> tuple[dict[Any, list[float]], float]:
    """Seconds of each piece of work, and the share of a core that they got.

    The sides take turns, so that what else the machine does hits all alike. A turn of quick work is many calls, as a
    training is many updates. Seconds are the processor's: with one thread those of the wall if the machine is idle,
    and disturbed less than those if it is not.
    """
    times: dict[Any, list[float]] = {side: [] for side in works}
    wall = cpu = 0.0
    for _ in range(count):
        for side, work in works.items():
            if warm:
                work()  # finds the caches and the heap as another side left them
            began, began_cpu, calls = time.perf_counter(), time.process_time(), 0
            while calls == 0 or (warm and time.perf_counter() - began < TURN):
                work()
                calls += 1
            seconds, seconds_cpu = time.perf_counter() - began, time.process_time() - began_cpu
            wall, cpu = wall + seconds, cpu + seconds_cpu
            times[side].append((seconds if waits else seconds_cpu) / calls)
    return times, cpu / wall


def agree(what: str, ours: Tensor, theirs: Tensor, name: str, tolerance: float = 1e-6) -> float:
    """The relative difference, or a DisagreementError if it is above the tolerance."""
    difference = float((theirs - ours).detach().norm() / ours.detach().norm())
    if not difference < tolerance:
        raise DisagreementError(
            f"{what} agree to {tolerance:g} before anything is timed; ours and {name} differ by {difference:.3g}"
        )
    return difference
