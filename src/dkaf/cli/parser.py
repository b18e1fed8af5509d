"""How every command refuses a wrong call, and what several commands ask for."""

import argparse
import re
from typing import Any, NoReturn

from dkaf.errors import InputError

BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """One sentence for a wrong call, as for any other bad input."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf$|nan$)")  # -1e-3 too is a number, no option

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: -"):
            message += " (what begins with a dash and is no option goes after --)"
        self.exit(BAD_INPUT, f"dkaf: {message}; see {self.prog} --help\n")


def add_json(parser: argparse.ArgumentParser) -> None:
    """What every command that prints a result takes."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_computing(parser: argparse.ArgumentParser) -> None:
    """What commands take that compute."""
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same result (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch (%(default)s)")
    add_json(parser)


def use_threads(options: argparse.Namespace) -> None:
    """Compute as the options say."""
    import torch

    from dkaf.allocator import keep_freed_memory

    if options.threads < 1:
        raise InputError(f"--threads is at least 1, {options.threads} came")
    torch.set_num_threads(options.threads)
    keep_freed_memory()


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """How a table is read."""
    group = parser.add_argument_group("tables", "CSV, TSV and Parquet files")
    group.add_argument(
        "--kind",
        action="append",
        default=[],
        dest="kinds",
        metavar="COLUMN=KIND",
        help="what a column is, where detection errs: numeric, categorical, text, smiles or ignore; may be repeated",
    )
    group.add_argument("--impute", action="store_true", help="fill in missing features instead of refusing them")
    group.add_argument("--delimiter", metavar="C", help="what separates columns (comma; in .tsv files tab)")
    group.add_argument("--encoding", metavar="NAME", help="of text files (utf-8)")


def table_options(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_table_options` added, as the library's functions take it."""
    kinds = {}
    for assignment in options.kinds:
        column, sign, kind = assignment.rpartition("=")
        if not sign or not column:
            raise InputError(
                f"--kind takes COLUMN=KIND, {assignment!r} came; write for example --kind solvent=categorical"
            )
        kinds[column] = kind.strip()
    return {
        "kinds": kinds,
        "impute": options.impute,
        "delimiter": options.delimiter,
        "encoding": options.encoding,
    }
