"""`dkaf paper run` and `dkaf paper report`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkaf.cli.data import get_with_bars
from dkaf.errors import InputError
from dkaf.settings import ACQUISITIONS, METHODS, RECIPES, SEARCHERS

if TYPE_CHECKING:
    from dkaf.experiments.engines import Engine
    from dkaf.experiments.paper import State

FAILED_CELLS = 1


def add_commands(commands: Any) -> None:
    """Add them to the parser's commands."""
    paper = commands.add_parser(
        "paper",
        help="the paper's experiments: run them, and draw their figures and tables",
        description="The paper's experiments: run them, and draw their figures and tables.",
    )
    verbs = paper.add_subparsers(required=True, metavar="run | report")
    _add_run(verbs)
    _add_report(verbs)


def _add_run(verbs: Any) -> None:
    run = verbs.add_parser(
        "run",
        help="fill a folder with one row a cell: dataset x tasks x run x method",
        description="Run every cell of the grid that the folder lacks. Interrupted or killed, the same command goes on "
        "where it was. Exit code 1: some cells failed, and the same command tries them again.",
    )
    run.add_argument("--out", metavar="FOLDER", required=True, help="where the rows go")
    parts = run.add_argument_group("parts of the grid")
    parts.add_argument(
        "--datasets",
        type=_words,
        default="reuters,neurips,webkb",
        metavar="A,B",
        help="see `dkaf data list`; those that are not here yet are got (%(default)s)",
    )
    parts.add_argument(
        "--sizes", type=_numbers, default="20,40,60,80,100", metavar="N,M", help="training tasks (%(default)s)"
    )
    parts.add_argument(
        "--runs", type=int, default=10, metavar="N", help="runs, each with tasks of its own (%(default)s)"
    )
    parts.add_argument(
        "--methods",
        type=_words,
        default=",".join((*METHODS, "informed")),
        metavar="A,B",
        help=f"of {', '.join(SEARCHERS)}, or all; botorch needs dkaf[bench] (%(default)s)",
    )
    parts.add_argument(
        "--acquisitions", type=_words, default=",".join(ACQUISITIONS), metavar="A,B", help="(%(default)s)"
    )
    parts.add_argument(
        "--recipe", type=_words, default="default", metavar="A,B", help=f"of {', '.join(RECIPES)} (%(default)s)"
    )
    parts.add_argument("--extend", action="store_true", help="let a grid that is there grow by these parts")
    tasks = run.add_argument_group("what decides the numbers")
    tasks.add_argument("--seed", type=int, default=0, help="run r uses seed + r (%(default)s)")
    tasks.add_argument("--pool-size", type=int, default=500, metavar="N", help="candidates of a task (%(default)s)")
    tasks.add_argument("--validation-tasks", type=int, default=20, metavar="N", help="(%(default)s)")
    tasks.add_argument("--test-tasks", type=int, default=50, metavar="N", help="(%(default)s)")
    tasks.add_argument("--starts", type=int, default=8, metavar="N", help="of each test task (%(default)s)")
    tasks.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="override a setting of the recipes, for every method; may be repeated",
    )
    where = run.add_argument_group("where it runs; the rows are the same everywhere")
    where.add_argument("--jobs", type=int, metavar="N", help="cells at once, one thread each (one a core)")
    where.add_argument("--engine", choices=("local", "ray"), default="local", help="ray needs dkaf[ray] (%(default)s)")
    where.add_argument("--address", metavar="ADDRESS", help="of a Ray cluster, as ray.init takes it")
    run.set_defaults(command=_run)


def _add_report(verbs: Any) -> None:
    report = verbs.add_parser(
        "report",
        help="figures, tables and a page from the rows of a folder",
        description="Draw Figure 3, Figure 4, Table 1 and the paired comparisons from the rows of a folder, whatever "
        "cells it has, as PNG, SVG, CSV and one page, report.html.",
    )
    report.add_argument("folder", metavar="FOLDER", help="what `dkaf paper run --out` filled")
    report.set_defaults(command=_report)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"whole numbers with commas between them are wanted, {text!r} came") from None


def _settings(assignments: list[str]) -> tuple[tuple[str, str], ...]:
    for assignment in assignments:
        if "=" not in assignment:
            raise InputError(f"--set takes NAME=VALUE, {assignment!r} came; write for example --set updates=300")
    pairs = (assignment.split("=", 1) for assignment in assignments)
    named = [(name.strip().replace("-", "_"), value.strip()) for name, value in pairs]
    return tuple(sorted(named))


def _run(options: argparse.Namespace) -> int:
    from dkaf.experiments.board import Board
    from dkaf.experiments.engines import LocalEngine, RayEngine
    from dkaf.experiments.grid import Grid
    from dkaf.experiments.paper import run_grid
    from dkaf.sources.corpora import NotHereError, load_corpus

    grid = Grid(
        datasets=options.datasets,
        recipes=options.recipe,
        sizes=options.sizes,
        runs=options.runs,
        methods=SEARCHERS if options.methods == ("all",) else options.methods,
        acquisitions=options.acquisitions,
        seed=options.seed,
        pool_size=options.pool_size,
        validation_tasks=options.validation_tasks,
        test_tasks=options.test_tasks,
        starts=options.starts,
        settings=_settings(options.settings),
    )
    if options.jobs is not None and options.jobs < 1:
        raise InputError(f"--jobs is at least 1, {options.jobs} came; raise it")
    if options.address is not None and options.engine != "ray":
        raise InputError("--address is for --engine ray, the engine is local; add --engine ray or leave it out")
    for name in grid.datasets:
        try:
            load_corpus(name)
        except NotHereError:
            get_with_bars(name)
    board = Board()

    def engine() -> "Engine":
        made: Engine = (
            RayEngine(options.address, options.jobs) if options.engine == "ray" else LocalEngine(options.jobs)
        )
        board.slots = made.slots
        return made

    out = Path(options.out)
    with board:
        try:
            command = shlex.join(["dkaf", *sys.argv[1:]])
            state = run_grid(grid, out, engine, board.show, extend=options.extend, command=command)
        except KeyboardInterrupt:
            board.say(f"interrupted; finished cells are in {out}, the same command goes on from there")
            raise
    return _summary(state, out)


def _summary(state: "State", out: Path) -> int:
    print(f"{state.done} of {len(state.cells)} cells are in {out}; dkaf paper report {out} draws them")
    if not state.failed:
        return 0
    for cell, error in list(state.failed.items())[:5]:
        print(f"failed: {cell}: {error.strip().splitlines()[-1]}")
    more = f" ({len(state.failed) - 5} more are in rows.jsonl)" if len(state.failed) > 5 else ""
    again = f"the same command tries them again; if files in {out / 'work'} are damaged, delete that folder first"
    print(f"{len(state.failed)} cells failed{more}; {again}")
    return FAILED_CELLS


def _report(options: argparse.Namespace) -> None:
    from dkaf.experiments.paper_report import write_paper_report

    print(write_paper_report(Path(options.folder)))
