"""The command line: parse, call one library function, print. PyTorch is imported only when a command needs it."""

import io
import os
import sys
from collections.abc import Sequence

import dkaf
from dkaf.cli import campaign, data, demo, evaluate, paper, serve, train
from dkaf.cli.parser import BAD_INPUT, Parser
from dkaf.errors import InputError, Interrupted

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of candidates need not fit the terminal's encoding
    try:
        code: int | None = options.command(options)
        sys.stdout.flush()  # here, so that a reader that has gone is noticed here
    except InputError as error:
        print(f"dkaf: {error}", file=sys.stderr)
        return BAD_INPUT
    except Interrupted:
        return INTERRUPTED
    except KeyboardInterrupt:
        print("dkaf: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code or 0


def entry() -> None:
    """The `dkaf` command."""
    sys.exit(main())


def _parser() -> Parser:
    parser = Parser(prog="dkaf", description=dkaf.__doc__)
    parser.add_argument("--version", action="version", version=f"dkaf {dkaf.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (train, campaign, serve, evaluate, demo, data, paper):
        module.add_commands(commands)
    return parser
