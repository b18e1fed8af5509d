"""`dkaf serve` and `dkaf token`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkaf.cli.output import print_json
from dkaf.cli.parser import add_json
from dkaf.errors import InputError

if TYPE_CHECKING:
    from dkaf.service.scene import Scene

FOLDER = "dkaf-data"
ANY = ""
"""The demo of whichever corpus is here."""


def add_commands(commands: Any) -> None:
    """Add them to the parser's commands."""
    serve = commands.add_parser(
        "serve",
        help="campaigns in the browser, and over HTTP",
        description="Serve the campaigns of a folder: a page for people, HTTP for machines. For this machine only, "
        "unless --host says otherwise; other machines need tokens (dkaf token create).",
    )
    _add_data(serve)
    serve.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where it listens (%(default)s)")
    serve.add_argument("--port", type=int, default=8765, metavar="N", help="where it listens; 0: any (%(default)s)")
    serve.add_argument(
        "--rate", type=float, default=100.0, metavar="N", help="requests a second of a token (%(default)g)"
    )
    serve.add_argument("--upload-limit", type=int, default=256, metavar="MB", help="of a file (%(default)s)")
    serve.add_argument(
        "--demo",
        nargs="?",
        const=ANY,
        metavar="CORPUS",
        help="with a game: rate documents until what you like is found, or race the policy to a hidden one; of a "
        "corpus (dkaf data list), or Reuters if it is here, else handwritten digits",
    )
    serve.add_argument("--threads", type=int, default=1, help="threads of PyTorch (%(default)s)")
    serve.set_defaults(command=_serve)
    token = commands.add_parser(
        "token", help="who may use a service", description="Make, list and revoke the tokens of a service."
    )
    actions = token.add_subparsers(required=True, metavar="create | list | revoke")
    create = actions.add_parser("create", help="make one", description="Make a token; it is shown this once.")
    create.add_argument("name", metavar="NAME", help="whose it is: it stands beside what they tell")
    create.add_argument("--role", choices=("viewer", "operator"), required=True, help="viewers read only")
    create.set_defaults(command=_create)
    shown = actions.add_parser("list", help="those that hold", description="List the tokens that hold.")
    shown.set_defaults(command=_list)
    revoke = actions.add_parser("revoke", help="take one back", description="Take a token back, at once.")
    revoke.add_argument("name", metavar="NAME", help="whose it is")
    revoke.set_defaults(command=_revoke)
    for parser in (create, shown, revoke):
        _add_data(parser)
        add_json(parser)


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="FOLDER", default=FOLDER, help="where everything is kept (%(default)s)")


def _serve(options: argparse.Namespace) -> None:
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f"dkaf serve needs {error.name}, which is not here; pip install dkaf[serve]") from None
    from dkaf.service.tokens import check_host

    check_host(Path(options.data), options.host)  # before what takes its time
    from dkaf.cli.parser import use_threads
    from dkaf.service.auth import Limits
    from dkaf.service.server import serve

    if not options.rate > 0 or options.upload_limit < 1:
        raise InputError(f"--rate and --upload-limit are above 0, {options.rate:g} and {options.upload_limit} came")
    use_threads(options)
    limits = Limits(rate=options.rate, burst=5 * options.rate, upload=options.upload_limit << 20)
    scene = None if options.demo is None else _scene(options.demo)

    def started(address: str) -> None:
        print(f"{options.data} is served at {address} (Ctrl-C ends it)", flush=True)
        if scene is not None:
            print(f"the demo, with {scene.corpus.name}: {address}#/demo", flush=True)

    serve(Path(options.data), options.host, options.port, limits, scene, started)


def _scene(name: str) -> "Scene":
    from dkaf.console import Bars
    from dkaf.service.stage import open_scene

    with Bars() as bars:
        return open_scene(None if name == ANY else name, bars.advance)


def _tokens(options: argparse.Namespace) -> Any:
    from dkaf.service.tokens import Tokens

    return Tokens(Path(options.data))


def _create(options: argparse.Namespace) -> None:
    try:
        Path(options.data).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--data is a folder, {options.data} cannot be made: {error.strerror}; name another"
        ) from error
    token = _tokens(options).create(options.name, options.role)
    if options.json:
        print_json({"name": options.name, "role": options.role, "token": token})
        return
    print(
        f"{token}\nThis is the token of {options.name} ({options.role}). It is kept as a hash: it is not shown again."
    )


def _list(options: argparse.Namespace) -> None:
    tokens = _tokens(options).all()
    if options.json:
        print_json([{"name": token.name, "role": token.role, "created": token.created} for token in tokens])
        return
    for token in tokens:
        print(f"{token.name:<20} {token.role:<10} {token.created}")
    if not tokens:
        print(f"{options.data} has no tokens")


def _revoke(options: argparse.Namespace) -> None:
    _tokens(options).revoke(options.name)
    if options.json:
        print_json({"revoked": options.name})
    else:
        print(f"revoked: {options.name}")
