"""Runs comparisons, each in a process of its own; of their rows: a table, a chart, a list of what got worse.

One that fails does not stop the others, and its peak of memory is nobody else's. Exit code 1: two sides did not compute
the same, or a comparison failed.
"""

import dataclasses
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import baseline, page, table
from benchmarks.comparison import Row
from benchmarks.slopes import Curve

ROOT = Path(__file__).parents[1]
OUT = ROOT / "runs" / "bench"
IMAGES = ROOT / "docs" / "images"
SCALING = "scaling"
BUSY = 0.8  # of a core; with less, the table says so
About = dict[str, Any]
PACKAGES = ("dkaf", "torch", "gpytorch", "botorch", "numpy", "scipy")


@dataclass(frozen=True)
class Outcome:
    """What a child process left: rows of a comparison, curves of an axis, or why there are none."""

    name: str
    rows: tuple[Row, ...] = ()
    curves: tuple[tuple[str, tuple[Curve, ...]], ...] = ()
    size: str = ""
    disagreement: str | None = None
    failure: str | None = None

    @classmethod
    def of(cls, name: str, answer: dict[str, Any]) -> "Outcome":
        rows = tuple(Row(**row) for row in answer.pop("rows", ()))
        curves = tuple(
            (across, tuple(Curve(**curve | {k: tuple(curve[k]) for k in ("sizes", "costs")}) for curve in of_axis))
            for across, of_axis in answer.pop("curves", ())
        )
        return cls(name, rows, curves, **answer)


def run(names: Sequence[str], turns: int | None = None) -> list[Outcome]:
    """Each after the other, so that none takes time from another."""
    outcomes = []
    for place, name in enumerate(names, 1):
        print(f"[{place}/{len(names)}] {name}", file=sys.stderr, flush=True)
        outcomes.append(_in_child(name, turns))
        if outcomes[-1].disagreement or outcomes[-1].failure:
            print(f"  {outcomes[-1].disagreement or outcomes[-1].failure}", file=sys.stderr, flush=True)
    return outcomes


def _in_child(name: str, turns: int | None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="dkaf-bench-") as folder:
        answer = Path(folder) / "answer.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.child",
            name,
            str(answer),
            *([] if turns is None else [str(turns)]),
        ]
        # One thread a side, for NumPy's and SciPy's libraries too.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        # In a group of its own, so that Ctrl-C reaches it once, from here.
        with subprocess.Popen(command, cwd=ROOT, env=os.environ | threads, process_group=0) as child:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                child.send_signal(signal.SIGINT)  # it may have files to delete
                child.wait()
                raise
        if not answer.exists():
            return Outcome(name, failure=f"{name} ended with exit code {code}; its error is above")
        return Outcome.of(name, json.loads(answer.read_text()))


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    return [row for outcome in outcomes for row in outcome.rows]


def report(outcomes: Sequence[Outcome]) -> str:
    """All that is printed: the table, the slopes, what was shared with other processes, what got worse."""
    rows, parts = rows_of(outcomes), []
    if rows:
        parts += [table.text(rows), "ratio: how many times faster ours is; times are the processor's, medians of turns"]
        low = min(rows, key=lambda row: row.core)
        if low.core < BUSY:
            parts.append(
                f"the machine was busy: {low.comparison} got {low.core:.0%} of a core; ratios are less certain"
            )
        parts.append(str(baseline.difference(baseline.read(), rows, [outcome.name for outcome in outcomes])))
    slopes = slope_lines(outcomes)
    if slopes:
        parts.append("\n".join(slopes))
    failed = [o for o in outcomes if o.disagreement or o.failure]
    parts += [f"{o.name}: {o.disagreement or o.failure}" for o in failed]
    return "\n\n".join(parts)


def slope_lines(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"{curve.name} over {across}: slope {curve.whole}, upper half {curve.upper}, expected {curve.expected:g}"
        + ("  STEEPER" if curve.steeper else "")
        for outcome in outcomes
        for across, curves in outcome.curves
        for curve in curves
    ]


def as_json(outcomes: Sequence[Outcome], about: About) -> dict[str, Any]:
    return {"about": about, "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes]}


def write(outcomes: Sequence[Outcome], about: About, out: Path = OUT) -> None:
    """results.json and the figures."""
    from benchmarks import figures

    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(as_json(outcomes, about), indent=2) + "\n")
    if rows := rows_of(outcomes):
        figures.save(figures.chart(rows), out / "ratios")
    if panels := [panel for outcome in outcomes for panel in outcome.curves]:
        figures.save(figures.scaling(panels), out / "scaling")


def record(outcomes: Sequence[Outcome], about: About) -> None:
    """The baseline, the figures of the documentation, and its tables, which name what made them."""
    from benchmarks import figures

    rows, made = rows_of(outcomes), _made_by(about)
    if rows:
        baseline.record(rows, [outcome.name for outcome in outcomes if outcome.rows])
        _record_rows(rows, made)
    if panels := [panel for outcome in outcomes for panel in outcome.curves]:
        figures.save(figures.scaling(panels), IMAGES / "scaling")
        head = ["| what | over | slope | upper half | expected at most |", "|---|---|---|---|---|"]
        lines = [
            f"| {c.name} | {across} | {c.whole} | **{c.upper}** | {c.expected:g} |" for across, cs in panels for c in cs
        ]
        page.write("slopes", "\n".join([*head, *lines, "", made]))


def _record_rows(rows: Sequence[Row], made: str) -> None:
    """The rows of large and of usual comparisons have tables of their own, each renewed by itself and as a whole."""
    from benchmarks import figures
    from benchmarks.registry import COMPARISONS

    for name, large in (("table", False), ("large table", True)):
        part = [row for row in rows if COMPARISONS[row.comparison].large == large]
        missing = {c.name for c in COMPARISONS.values() if c.large == large} - {row.comparison for row in part}
        if part and missing:
            print(f"the {name} of the page stays: {', '.join(sorted(missing))} did not run", file=sys.stderr)
        elif part:
            stem = "ratios-large" if large else "ratios"
            figures.save(figures.chart(part), IMAGES / stem)
            page.write(name, "\n".join([table.markdown(part), "", made]))


def about_now(command: str) -> About:
    """What numbers are made by, on and with; asked before the first of them is."""
    return {
        "command": command,
        "machine": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "commit": _commit(),
        "sources": sources(),
    }


def sources() -> str:
    """A digest of what is measured and measures: two that differ were not one state of the code."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in ("src", "benchmarks") for path in (ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _made_by(about: About) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in about["versions"].items())
    machine = f"{about['machine']}, {about['cores']} cores, one thread"
    return f"(`{about['command']}` at commit {about['commit']}; {machine}; {versions})"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str:
    """Of the tree this runs from, with a mark if the sources differ from it."""
    try:
        git = ["git", "-C", str(ROOT)]
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "src", "benchmarks"], capture_output=True, text=True, check=True
        )
        return commit.stdout.strip() + ("+changes" if changed.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
