"""`dkaf campaign`, `ask`, `tell`, `release`, `undo`, `status`, `plot` and `export`."""

import argparse
from typing import Any

from dkaf.cli.output import print_json
from dkaf.cli.parser import add_json, add_table_options, table_options
from dkaf.errors import InputError


def add_commands(commands: Any) -> None:
    """Add them to the parser's commands."""
    _add_campaign(commands)
    ask = _add(
        commands, "ask", _ask, "which candidates to try next", "Name the candidates to try next and reserve them."
    )
    ask.add_argument("-n", type=int, default=1, metavar="N", help="how many (%(default)s)")
    ask.add_argument(
        "--ignore-pool-file", action="store_true", help="go on with the candidates kept, if the pool's file has changed"
    )
    tell = _add(
        commands,
        "tell",
        _tell,
        "what a candidate gave",
        "Tell what a candidate gave (dkaf tell screen.db ID VALUE), that it failed (dkaf tell screen.db ID "
        "--failed), or a table "
        "of results (dkaf tell screen.db --from results.csv). It is on disk when the command ends.",
    )
    tell.add_argument("id", metavar="ID", nargs="?", help="the candidate")
    tell.add_argument("value", metavar="VALUE", nargs="?", help="its response")
    tell.add_argument("--failed", action="store_true", help="it could not be measured")
    tell.add_argument("--from", dest="source", metavar="FILE", help="a table of results, all of which are told or none")
    tell.add_argument("--id", dest="id_column", metavar="COLUMN", help="the table's column of ids (the pool's)")
    tell.add_argument("--response", metavar="COLUMN", help="its column of responses (that of the past tasks)")
    tell.add_argument("--delimiter", metavar="C", help="what separates its columns (comma; in .tsv files tab)")
    tell.add_argument("--encoding", metavar="NAME", help="of its text (utf-8)")
    release = _add(
        commands,
        "release",
        _release,
        "let a candidate be asked for again",
        "Take back the reservation of a pending or failed candidate.",
    )
    release.add_argument("id", metavar="ID", help="the candidate")
    _add(commands, "undo", _undo, "take back the last tell", "Take back the last measurement, failure or release.")
    _add(
        commands, "status", _status, "where a campaign is", "Best so far, what was told, what is pending, what is left."
    )
    plot = _add(
        commands,
        "plot",
        _plot,
        "draw a campaign",
        "Draw the best so far, what is expected of the best candidates, and a map of the pool.",
    )
    plot.add_argument("-o", "--output", metavar="FILE", help="a .png, .svg or .pdf file (beside the campaign, .png)")
    export = _add(
        commands,
        "export",
        _export,
        "a campaign as CSV",
        "What was measured, is pending or failed, with the pool's columns.",
    )
    export.add_argument("-o", "--output", metavar="FILE", help="where it goes (printed)")


def _add(commands: Any, name: str, command: Any, words: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=words, description=description)
    parser.add_argument("campaign", metavar="CAMPAIGN", help="its file")
    add_json(parser)
    parser.set_defaults(command=command)
    return parser


def _add_campaign(commands: Any) -> None:
    campaign = commands.add_parser(
        "campaign",
        help="begin a campaign on a pool of candidates",
        description="Begin a campaign, or change its budget.",
    )
    actions = campaign.add_subparsers(required=True, metavar="create | budget")
    create = actions.add_parser(
        "create",
        help="begin one",
        description="Begin a campaign on the rows of a table. Its file keeps the pool, the policy and all that "
        "happens.",
    )
    create.add_argument("campaign", metavar="CAMPAIGN", help="its file, to be made")
    create.add_argument("--pool", metavar="FILE", required=True, help="the candidates: a CSV, TSV or Parquet file")
    create.add_argument(
        "--policy",
        metavar="FILE",
        required=True,
        help="what dkaf train wrote; or gp, a Gaussian process on this campaign's own observations: no past tasks "
        "needed",
    )
    create.add_argument(
        "--id", metavar="COLUMN", help="what names a candidate (that of the past tasks; else row numbers)"
    )
    create.add_argument("--budget", type=int, metavar="N", help="how many evaluations it may make (no limit)")
    create.add_argument(
        "--minimise", action="store_true", default=None, help="a smaller response is better (as the policy was trained)"
    )
    create.add_argument(
        "--import", dest="known", metavar="FILE", help="measurements of this pool made before, a table or a campaign"
    )
    create.add_argument(
        "--response", metavar="COLUMN", help="the column of responses of --import (that of the past tasks)"
    )
    create.add_argument("--seed", type=int, default=0, help="what chance draws by (%(default)s)")
    add_table_options(create)
    add_json(create)
    create.set_defaults(command=_create)
    budget = actions.add_parser(
        "budget", help="change its budget", description="Change how many evaluations it may make."
    )
    budget.add_argument("campaign", metavar="CAMPAIGN", help="its file")
    budget.add_argument("budget", metavar="N", help="how many, or none")
    add_json(budget)
    budget.set_defaults(command=_budget)


def _open(options: argparse.Namespace) -> Any:
    from dkaf.campaign.campaign import Campaign

    return Campaign.open(options.campaign)


def _create(options: argparse.Namespace) -> None:
    from dkaf.campaign.campaign import Campaign
    from dkaf.console import Bars

    with Bars() as bars:
        campaign = Campaign.create(
            options.campaign,
            options.pool,
            options.policy,
            id=options.id,
            budget=options.budget,
            minimise=options.minimise,
            known=options.known,
            response=options.response,
            seed=options.seed,
            progress=lambda done, total: bars.advance(options.campaign, "preparing candidates", done, total),
            **table_options(options),
        )
    if options.json:
        print_json(campaign.status())
        return
    status = campaign.status()
    for column, words in campaign.columns_in_words().items():
        print(f"  {column}: {words}")
    called = "by their row numbers" if campaign.id_column is None else f"as column {campaign.id_column!r} says"
    print(f"  candidates are called {called}")
    known = f", {len(status['history'])} measurements known" if status["history"] else ""
    print(
        f"{options.campaign}: {status['candidates']} candidates, policy {status['policy']}{known}; next: dkaf ask "
        f"{options.campaign}"
    )


def _budget(options: argparse.Namespace) -> None:
    campaign = _open(options)
    try:
        budget = None if options.budget.lower() == "none" else int(options.budget)
    except ValueError:
        raise InputError(f"a budget is a whole number or none, {options.budget!r} came") from None
    campaign.set_budget(budget)
    _print_status(campaign, options)


def _ask(options: argparse.Namespace) -> None:
    candidates = _open(options).ask(options.n, ignore_pool_file=options.ignore_pool_file)
    if options.json:
        print_json([candidate._asdict() for candidate in candidates])
        return
    for candidate in candidates:
        expected = "" if candidate.mean is None else f"  expected {candidate.mean:.4g} +- {candidate.deviation:.2g}"
        print(f"{candidate.id}{expected}")


def _tell(options: argparse.Namespace) -> None:
    campaign = _open(options)
    if options.source is not None:
        if options.id is not None or options.failed:
            raise InputError("--from tells a whole table, an id came too; leave it out")
        from dkaf.campaign.creation import results_of

        campaign.tell_all(
            results_of(
                campaign, options.source, options.id_column, options.response, options.delimiter, options.encoding
            )
        )
    elif options.id is None:
        raise InputError("tell takes an id and a value, none came; write dkaf tell CAMPAIGN ID VALUE, or --from FILE")
    elif options.failed:
        if options.value is not None:
            raise InputError(f"what failed has no value, {options.value!r} came; leave it or --failed out")
        campaign.fail(options.id)
    elif options.value is None:
        raise InputError(f"tell takes a value, none came for {options.id!r}; write it, or --failed")
    else:
        campaign.tell(options.id, options.value)
    _print_status(campaign, options)


def _release(options: argparse.Namespace) -> None:
    campaign = _open(options)
    campaign.release(options.id)
    _print_status(campaign, options)


def _undo(options: argparse.Namespace) -> None:
    campaign = _open(options)
    undone = campaign.undo()
    if options.json:
        print_json(undone)
        return
    value = "" if undone["value"] is None else f" {undone['value']:g}"
    print(f"taken back: {undone['id']} {undone['undone']}{value}")


def _status(options: argparse.Namespace) -> None:
    campaign = _open(options)
    if options.json:
        print_json(campaign.status())
        return
    status = campaign.status()
    _print_status(campaign, options, status)
    if status["pool_changed"]:
        print(f"careful: {status['pool']} has changed since the campaign was created")
    for what in ("pending", "failed"):
        for item in status[what]:
            print(f"  {what:<8} {item['id']}")
    for item in status["history"]:
        note = "  (imported)" if item["known"] else "" if item["asked"] else "  (not asked for)"
        print(f"  {item['value']:<12.6g} {item['id']}{note}")


def _print_status(campaign: Any, options: argparse.Namespace, status: dict[str, Any] | None = None) -> None:
    """Where the campaign is, in a line."""
    status = status or campaign.status()
    if options.json:
        print_json(status)
        return
    best = status["best"]
    so_far = "nothing told yet" if best is None else f"best so far {best['value']:g} by {best['id']}"
    left = "" if status["budget"] is None else f", {status['left']} of {status['budget']} evaluations left"
    print(f"{so_far}; {len(status['history'])} told, {len(status['pending'])} pending{left}")


def _plot(options: argparse.Namespace) -> None:
    from pathlib import Path

    output = options.output or str(Path(options.campaign).with_suffix(".png"))
    _open(options).plot(output)
    if options.json:
        print_json({"plot": output})
    else:
        print(output)


def _export(options: argparse.Namespace) -> None:
    campaign = _open(options)
    if options.json and options.output is not None:
        campaign.export(options.output)
        print_json({"export": options.output})
        return
    if options.json:
        from dkaf.campaign.export import rows

        header, lines = rows(campaign)
        print_json([dict(zip(header, line, strict=True)) for line in lines])
        return
    text = campaign.export(options.output)
    print(text if options.output is None else options.output, end="" if options.output is None else "\n")
