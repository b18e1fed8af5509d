"""`dkaf train` and `dkaf inspect`."""

import argparse
import dataclasses
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dkaf
from dkaf.cli.output import print_json
from dkaf.cli.parser import add_computing, add_json, add_table_options, table_options, use_threads
from dkaf.errors import FallbackWarning, InputError, Interrupted
from dkaf.settings import ACQUISITIONS, AUTO, KERNEL_METHODS, METHODS, RECIPES, Settings

if TYPE_CHECKING:
    from dkaf.console import Bars
    from dkaf.policies import Policy
    from dkaf.sources.past import PastTasks


class _Parts(NamedTuple):
    """Past tasks by what they are for."""

    train: "dkaf.TaskSet"
    validation: "dkaf.TaskSet | None"
    report: "dkaf.TaskSet | None"


def add_commands(commands: Any) -> None:
    """Add them to the parser's commands."""
    _add_train(commands)
    _add_inspect(commands)


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="learn from finished searches how to make the next one",
        description="Train a policy on finished searches and write it as a safetensors file: tables (CSV, TSV, "
        "Parquet), "
        "one a search or all in one with --task, folders of them, campaigns, or one .npz file that TaskSet.save wrote.",
    )
    parser.add_argument(
        "tasks", metavar="PAST", nargs="+", help="finished searches: folders, tables, campaigns, or one .npz"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where the policy goes")
    columns = parser.add_argument_group("columns of tables")
    columns.add_argument("--response", metavar="COLUMN", help="what was measured")
    columns.add_argument("--id", metavar="COLUMN", help="what names a candidate")
    columns.add_argument("--task", metavar="COLUMN", help="which search a row is of, where a table holds several")
    columns.add_argument("--minimise", action="store_true", help="a smaller response is better")
    add_table_options(parser)
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
    held_out.add_argument(
        "--validation", metavar="FILE", help="tasks to stop and choose by, instead of held-out ones; .npz"
    )
    held_out.add_argument(
        "--hold-out",
        type=int,
        metavar="N",
        help="N tasks to stop and choose by, and to learn the kernel's scales on (one in six; 0: none)",
    )
    parser.add_argument(
        "--report",
        type=int,
        metavar="N",
        help="N more tasks are kept out, to measure on them what is gained (of six tables or more one in six, else 0)",
    )
    add_computing(parser)
    settings = parser.add_argument_group("settings", "each overrides the recipe's")
    for field in dataclasses.fields(Settings):
        sentence = field.metadata["sentence"].replace("%", "%%")
        settings.add_argument(f"--{field.name.replace('_', '-')}", metavar="X", dest=f"set_{field.name}", help=sentence)
    parser.set_defaults(command=_train)


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
    for read in (*options.tasks, options.validation):
        if read is not None and os.path.realpath(options.output) == os.path.realpath(read):
            raise InputError(f"the policy goes to a file of its own, {options.output} holds the tasks; name another")
    with Bars() as bars, warnings.catch_warnings():
        parts = _parts(options, bars, overrides)
        use_threads(options)
        warnings.simplefilter("always", FallbackWarning)
        warnings.showwarning = lambda message, *_: bars.say(f"warning: {message}")
        bars.say(f"training on {parts.train!r}")

        def fit(method: str, acquisition: str, **settings: Any) -> "Policy":
            def show(progress: "dkaf.Progress") -> None:
                gap = progress.validation_gap
                note = "" if gap is None else f"validation gap {gap:.4g}"
                bars.advance(method, progress.stage, progress.update, progress.updates, note)

            return dkaf.fit(
                parts.train,
                parts.validation,
                method,
                acquisition,
                options.recipe,
                options.seed,
                device=options.device,
                progress=show,
                **settings,
            )

        try:
            policy = fit(options.method, options.acquisition, **overrides)
        except Interrupted as interrupted:
            interrupted.policy.save(options.output)
            bars.say(f"interrupted; the best policy so far is in {options.output}")
            raise
        policy.save(options.output)  # before what may still be interrupted
        if parts.report is not None:
            from dkaf.gain import measure_gain

            try:
                gp = fit("gp", "ucb", **{name: overrides[name] for name in ("queries", "initial") if name in overrides})
                gain = measure_gain(policy, gp, parts.report, options.seed)
            except KeyboardInterrupt:
                bars.say(f"interrupted; the policy is in {options.output}, what it gains was not measured")
                raise Interrupted(policy) from None
            policy.training_log = dataclasses.replace(policy.training_log, gain=gain)
            policy.save(options.output)
    _print_training(options, policy)


def _parts(options: argparse.Namespace, bars: "Bars", overrides: dict[str, Any]) -> _Parts:
    from dkaf.sources.tables import SUFFIXES

    for path in options.tasks:
        if not os.path.lexists(path) and (len(options.tasks) > 1 or options.response is not None):
            raise InputError(f"past tasks are folders or files, {path} does not exist; correct it")
    tabular = all(_is_table(path) for path in options.tasks)
    if not tabular:
        if len(options.tasks) > 1:
            raise InputError(
                f"several past tasks are folders, {', '.join(SUFFIXES)} or .db files, "
                f"{next(path for path in options.tasks if not _is_table(path))} is none of these; train on it alone"
            )
        for option in ("response", "id", "task"):
            if getattr(options, option) is not None:
                raise InputError(f"--{option} names a column of a table, {options.tasks[0]} is none; leave it out")
        tasks = dkaf.TaskSet.load(options.tasks[0])
    else:
        tasks = _large_enough(_tables(options, bars), bars, overrides)
    report = options.report
    if report is None:
        report = len(tasks) // 6 if tabular else 0
    held_out = len(tasks) // 6 if options.hold_out is None else options.hold_out
    if options.validation is not None:
        held_out = 0
    for option, count in (("--hold-out", held_out), ("--report", report)):
        if count < 0:
            raise InputError(f"{option} is at least 0, {count} came")
    if held_out + report > max(len(tasks) - 1, 0):
        raise InputError(
            f"--hold-out and --report leave at least one of the {len(tasks)} tasks, {held_out} and {report} came; "
            "lower them"
        )
    train, validation, kept = tasks.split(len(tasks) - held_out - report, held_out, report)
    if options.validation is not None:
        validation = dkaf.TaskSet.load(options.validation)
        if len(validation) == 0:
            raise InputError(f"--validation has at least one task, {options.validation} has none; use --hold-out 0")
    return _Parts(train, validation, kept if report else None)


def _large_enough(tasks: "PastTasks", bars: "Bars", overrides: dict[str, Any]) -> "PastTasks":
    """Searches of training make as many queries as the smallest past task has room for, unless the user says how "
    "many.
    """
    from dkaf.sources.past import SMALLEST_TASK, fitting_queries, searchable

    for name, size in zip(tasks.names, tasks.sizes, strict=True):
        if size < SMALLEST_TASK:
            bars.say(f"left out: {name} has {size} candidates, a search has {SMALLEST_TASK} or more")
    tasks = searchable(tasks)
    fewer = fitting_queries(tasks, overrides)
    if fewer:
        smallest = tasks.names[int(tasks.sizes.argmin())]
        bars.say(
            f"searches of training make {fewer['queries']} queries, since {smallest} has {tasks.sizes.min()} "
            "candidates (--queries sets it)"
        )
    overrides |= fewer
    return tasks


def _is_table(path: str) -> bool:
    from dkaf.campaign.store import is_sqlite
    from dkaf.sources.tables import SUFFIXES

    return Path(path).is_dir() or path.lower().endswith(SUFFIXES) or is_sqlite(Path(path))


def _tables(options: argparse.Namespace, bars: "Bars") -> "PastTasks":
    """The tasks of tables, in an order that the seed draws, since names of files often have a meaning."""
    import numpy as np

    from dkaf.sources.past import follows_response

    tasks = dkaf.read_tasks(
        _sources(options),
        response=options.response,
        id=options.id,
        task=options.task,
        minimise=options.minimise,
        progress=lambda done, total: bars.advance("past tasks", "reading", done, total),
        **table_options(options),
    )
    sizes = f"{tasks.sizes.min()} to {tasks.sizes.max()}" if np.ptp(tasks.sizes) else str(tasks.sizes[0])
    bars.say(f"read {len(tasks)} tasks of {sizes} candidates")
    assert tasks.preparation is not None
    used = {feature.column: feature for feature in tasks.preparation.features}
    for column, (_, reason) in (tasks.columns or {}).items():
        if column not in used:
            bars.say(f"  {column}: not used ({reason})")
            continue
        bars.say(f"  {column}: {used[column].in_words()} ({reason})")
        if used[column].kind == "numeric" and follows_response(tasks, column):
            bars.say(
                f"warning: {column} ranks the candidates as the response does. If it is another form of it, the "
                f"policy learns nothing else: leave it out, --kind '{column}=ignore'"
            )
    order = np.random.default_rng(options.seed).permutation(len(tasks))
    return tasks.subset(order.tolist())


def _sources(options: argparse.Namespace) -> list[Any]:
    """Tables and campaigns; a campaign says by itself what was measured, and how candidates are called."""
    from dkaf.campaign.store import is_sqlite

    paths: list[str] = []
    for path in options.tasks:
        inside = sorted(str(file) for file in Path(path).glob("*") if is_sqlite(file)) if Path(path).is_dir() else []
        paths += inside or [path]
    campaigns = {path: dkaf.Campaign.open(path) for path in paths if is_sqlite(Path(path))}
    for path, campaign in campaigns.items():
        options.response = options.response or campaign.response or "response"
        options.id = options.id or campaign.id_column
        if campaign.id_column != options.id:
            raise InputError(
                f"past tasks call candidates by one column, {options.id!r}, and {path} by {campaign.id_column!r}; "
                "export the campaign and rename its column, or train on them apart"
            )
    directions = {campaign.minimise for campaign in campaigns.values()} | ({True} if options.minimise else set())
    if len(directions) > 1:
        raise InputError(
            "past tasks have one direction, of these campaigns and --minimise some say smaller and some larger; "
            "train on them apart"
        )
    if campaigns:
        options.minimise = directions.pop()
    if options.response is None:
        raise InputError(
            "--response names the column that was measured, it did not come; name one of the table's columns"
        )
    return [campaigns[path].table(options.response) if path in campaigns else path for path in paths]


def _print_training(options: argparse.Namespace, policy: "Policy") -> None:
    log = policy.training_log
    if options.json:
        described = {"policy": options.output, "method": policy.method, "acquisition": policy.acquisition}
        print_json(described | {"training": log.describe() | {"seconds": log.seconds}})
        return
    print(
        f"{options.output}: {_name(policy.method, policy.acquisition)}, trained in {sum(log.seconds.values()):.1f} s; "
        f"{log.in_words()}"
    )
    if log.gain is not None:
        print(log.gain.in_words())


def _name(method: str, acquisition: str) -> str:
    return f"{method} with {acquisition}" if method in KERNEL_METHODS else method


def _add_inspect(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="what a policy was trained on, and what it expects",
        description="Show what a policy file says of itself: its tasks, the features it expects, its validation gaps.",
    )
    parser.add_argument("policy", metavar="POLICY", help="a policy file")
    add_json(parser)
    parser.set_defaults(command=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    from dkaf.policies import describe

    about = describe(options.policy)
    if options.json:
        print_json(about)
        return
    training, preparation = about["training"], about["preparation"]
    print(f"{options.policy}: {_name(about['method'], about['acquisition'])}, {about['n_features']} features")
    if preparation is not None:
        better = "smaller" if preparation["minimise"] else "larger"
        print(f"  response   {preparation['response']} ({better} is better)")
        if preparation["id"] is not None:
            print(f"  id         {preparation['id']}")
        for column, words in about["columns"].items():
            print(f"  feature    {column}: {words}")
    for name, size in training["tasks"]:
        print(f"  task       {name}, {size} candidates")
    print(f"  training   {about['in_words']}")
    if training["validation"]:
        print("  validation " + ", ".join(f"{gap:.4g} at {update}" for update, gap in training["validation"]))
    if about["gain_in_words"]:
        print(f"  gain       {about['gain_in_words']}")
