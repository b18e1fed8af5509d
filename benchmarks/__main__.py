"""`python -m benchmarks`: side-by-side timings against named peers, one table."""

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times our work beside the same work of named peers, after checking that all computed the same. "
        "Writes runs/bench/results.json and charts. Exit code 1: something did not agree, or failed.",
    )
    parser.add_argument("--only", metavar="A,B", help="some comparisons by name; --list names them all")
    parser.add_argument("--large", action="store_true", help="those that need more time, memory or disk, instead")
    parser.add_argument("--list", action="store_true", help="name the comparisons and stop")
    parser.add_argument("--record", action="store_true", help="renew benchmarks/baseline.json and docs/performance.md")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of every comparison, for a quick look")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where results and charts go (runs/bench)")
    options = parser.parse_args()
    try:
        from benchmarks import run
        from benchmarks.registry import COMPARISONS
    except ModuleNotFoundError as error:
        print(f"the benchmarks need {error.name}, which is not here; pip install 'dkaf[bench]'", file=sys.stderr)
        return 2
    known = [*COMPARISONS, run.SCALING]
    if options.list:
        for comparison in COMPARISONS.values():
            print(f"{comparison.name:<16} {comparison.what}{' (large)' if comparison.large else ''}")
        print(f"{run.SCALING:<16} how cost grows with candidates, queries, non-zeros and tasks")
        return 0
    names = [name for name in known if name == run.SCALING or not COMPARISONS[name].large]
    if options.large:
        names = [name for name, comparison in COMPARISONS.items() if comparison.large]
    if options.only is not None:
        names = [name.strip() for name in options.only.split(",")]
        if unknown := [name for name in names if name not in known]:
            print(f"--only names of {', '.join(known)}; {', '.join(unknown)} came", file=sys.stderr)
            return 2
    if options.turns is not None and options.turns < 1:
        print(f"--turns is at least 1, {options.turns} came; raise it", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the child ends, too
    about = run.about_now(shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]))
    try:
        outcomes = run.run(names, options.turns)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    run.write(outcomes, about, options.out or run.OUT)
    print(json.dumps(run.as_json(outcomes, about), indent=2) if options.json else run.report(outcomes))
    failed = [outcome.name for outcome in outcomes if outcome.disagreement or outcome.failure]
    if options.record:
        if failed:
            print(f"nothing is recorded while {', '.join(failed)} failed; mend or leave out", file=sys.stderr)
        elif run.sources() != about["sources"]:
            print("nothing is recorded: the sources changed during the run; run it again", file=sys.stderr)
            return 1
        else:
            run.record(outcomes, about)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
