"""`dkaf demo`."""

import argparse
from pathlib import Path
from typing import Any

from dkaf.cli.output import print_json


def add_commands(commands: Any) -> None:
    """Add it to the parser's commands."""
    parser = commands.add_parser(
        "demo",
        help="see every method search handwritten digits, in a few minutes",
        description="Train every method on similarity tasks from handwritten digits, search 50 unseen tasks with each, "
        "and show what came out, here and as a page.",
    )
    parser.add_argument("--out", metavar="FOLDER", default="runs/demo", help="where the report goes (%(default)s)")
    parser.add_argument("--jobs", type=int, metavar="N", help="methods trained at once (one a core)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same numbers (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.set_defaults(command=_demo)


def _demo(options: argparse.Namespace) -> None:
    from dkaf.console import Bars
    from dkaf.experiments.demo import run_demo
    from dkaf.experiments.report import terminal_report, write_report

    with Bars() as bars:
        demo = run_demo(Path(options.out), options.seed, options.jobs, bars.advance)
    page = write_report(demo, Path(options.out))
    if options.json:
        print_json(demo.as_json() | {"report": str(page)})
    else:
        terminal_report(demo)
        print(f"the same with figures: {page}")
