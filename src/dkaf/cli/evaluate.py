"""`dkaf evaluate`."""

import argparse
from typing import Any

import dkaf
from dkaf.cli.output import print_json
from dkaf.cli.parser import add_computing, use_threads


def add_commands(commands: Any) -> None:
    """Add it to the parser's commands."""
    parser = commands.add_parser(
        "evaluate",
        help="search tasks with a trained policy and measure the gap",
        description="Search every task of an .npz file with a trained policy; prints the gap after each query.",
    )
    parser.add_argument("policy", metavar="POLICY", help="a policy file")
    parser.add_argument("tasks", metavar="TASKS", help="searches to make, an .npz file that TaskSet.save wrote")
    parser.add_argument("--queries", type=int, default=10, help="queries of a search (%(default)s)")
    parser.add_argument("--initial", type=int, default=1, help="candidates known before the first query (%(default)s)")
    parser.add_argument("--starts", type=int, default=1, help="searches of each task (%(default)s)")
    add_computing(parser)
    parser.set_defaults(command=_evaluate)


def _evaluate(options: argparse.Namespace) -> None:
    use_threads(options)
    policy = dkaf.load(options.policy, device=options.device)
    tasks = dkaf.TaskSet.load(options.tasks)
    result = dkaf.evaluate(policy, tasks, options.queries, options.initial, options.starts, options.seed)
    after_each = result.gaps.mean(axis=0).tolist()
    if options.json:
        print_json(
            {
                "policy": options.policy,
                "method": policy.method,
                "tasks": len(tasks),
                "cumulative_gap": result.cumulative_gap,
                "standard_error": result.standard_error,
                "start_gap": result.start_gaps.mean(),
                "gap_after_query": after_each,
                "gaps": result.gaps.tolist(),
                "start_gaps": result.start_gaps.tolist(),
            }
        )
        return
    print(f"{policy.method} on {len(tasks)} tasks, {options.starts} searches each, {options.queries} queries")
    print(f"cumulative gap  {result.cumulative_gap:.4g} +- {result.standard_error:.2g} (standard error over tasks)")
    print("gap at start    " + f"{result.start_gaps.mean():.4g}")
    print("after query     " + " ".join(f"{number:>7}" for number in range(1, options.queries + 1)))
    print("gap             " + " ".join(f"{gap:>7.4g}" for gap in after_each))
