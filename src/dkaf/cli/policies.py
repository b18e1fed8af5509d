"""`dkaf train` and `dkaf evaluate`."""

import argparse
import dataclasses
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dkaf
from dkaf.allocator import keep_freed_memory
from dkaf.cli.output import print_json
from dkaf.errors import FallbackWarning, InputError, Interrupted
from dkaf.settings import ACQUISITIONS, AUTO, KERNEL_METHODS, METHODS, RECIPES, Settings

if TYPE_CHECKING:
    from dkaf.policies import Policy


def add_commands(commands: Any) -> None:
    """Add them to the parser's commands."""
    _add_train(commands)
    _add_evaluate(commands)


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="learn from finished searches how to make the next one",
        description="Train a policy on the tasks of an .npz file and write it as a safetensors file.",
    )
    parser.add_argument("tasks", metavar="TASKS", help="finished searches, an .npz file that TaskSet.save wrote")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where the policy goes")
    parser.add_argument("--method", choices=METHODS, default="dkaf", help="how to search (%(default)s)")
    parser.add_argument(
        "--acquisition",
        choices=(AUTO, *ACQUISITIONS),
        default=AUTO,
        help="acquisition function of dkaf, dkl and gp; auto: the best on the validation tasks (%(default)s)",
    )
    parser.add_argument(
        "--recipe", choices=tuple(RECIPES), default="default", help="the settings to start from (%(default)s)"
    )
    held_out = parser.add_mutually_exclusive_group()
    held_out.add_argument("--validation", metavar="FILE", help="tasks that say when to stop, instead of held-out ones")
    held_out.add_argument(
        "--hold-out", type=int, metavar="N", help="the last N tasks say when to stop (one in six; 0: train to the end)"
    )
    _add_common(parser)
    settings = parser.add_argument_group("settings", "each overrides the recipe's")
    for field in dataclasses.fields(Settings):
        sentence = field.metadata["sentence"].replace("%", "%%")
        settings.add_argument(f"--{field.name.replace('_', '-')}", metavar="X", dest=f"set_{field.name}", help=sentence)
    parser.set_defaults(command=_train)


def _add_evaluate(commands: Any) -> None:
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
    _add_common(parser)
    parser.set_defaults(command=_evaluate)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same result (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _train(options: argparse.Namespace) -> None:
    from dkaf.console import Bars
    from dkaf.files import check_writable

    overrides = {
        name.removeprefix("set_"): value
        for name, value in vars(options).items()
        if name.startswith("set_") and value is not None
    }
    for acquisition in ACQUISITIONS if options.acquisition == AUTO else (options.acquisition,):
        dkaf.recipe(options.recipe, options.method, acquisition, **overrides)  # refuse before any work
    check_writable(Path(options.output))
    for read in (options.tasks, options.validation):
        if read is not None and os.path.realpath(options.output) == os.path.realpath(read):
            raise InputError(f"the policy goes to a file of its own, {options.output} holds the tasks; name another")
    train, validation = _training_tasks(options)
    _use(options)
    with Bars() as bars, warnings.catch_warnings():
        warnings.simplefilter("always", FallbackWarning)
        warnings.showwarning = lambda message, *_: bars.say(f"warning: {message}")
        bars.say(f"training on {train!r}")

        def show(progress: "dkaf.Progress") -> None:
            gap = progress.validation_gap
            note = "" if gap is None else f"validation gap {gap:.4g}"
            bars.advance(options.method, progress.stage, progress.update, progress.updates, note)

        try:
            policy = dkaf.fit(
                train,
                validation,
                options.method,
                options.acquisition,
                options.recipe,
                options.seed,
                device=options.device,
                progress=show,
                **overrides,
            )
        except Interrupted as interrupted:
            interrupted.policy.save(options.output)
            bars.say(f"interrupted; the best policy so far is in {options.output}")
            raise
    policy.save(options.output)
    _print_training(options, policy)


def _training_tasks(options: argparse.Namespace) -> "tuple[dkaf.TaskSet, dkaf.TaskSet | None]":
    tasks = dkaf.TaskSet.load(options.tasks)
    if options.validation is not None:
        validation = dkaf.TaskSet.load(options.validation)
        if len(validation) == 0:
            raise InputError(f"--validation has at least one task, {options.validation} has none; use --hold-out 0")
        return tasks, validation
    held_out = len(tasks) // 6 if options.hold_out is None else options.hold_out
    if not 0 <= held_out <= max(len(tasks) - 1, 0):
        raise InputError(f"--hold-out leaves at least one of the {len(tasks)} tasks, {held_out} came; lower it")
    train, validation = tasks.split(len(tasks) - held_out, held_out)
    return train, validation


def _print_training(options: argparse.Namespace, policy: "Policy") -> None:
    log = policy.training_log
    if options.json:
        described = {"policy": options.output, "method": policy.method, "acquisition": policy.acquisition}
        print_json(described | {"training": dataclasses.asdict(log)})
        return
    name = f"{policy.method} with {policy.acquisition}" if policy.method in KERNEL_METHODS else policy.method
    print(f"{options.output}: {name}, trained in {sum(log.seconds.values()):.1f} s; {log.in_words()}")


def _evaluate(options: argparse.Namespace) -> None:
    _use(options)
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


def _use(options: argparse.Namespace) -> None:
    import torch

    if options.threads < 1:
        raise InputError(f"--threads is at least 1, {options.threads} came")
    torch.set_num_threads(options.threads)
    keep_freed_memory()
