"""How every command refuses a wrong call."""

import argparse
from typing import Any, NoReturn

BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """One sentence for a wrong call, as for any other bad input."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"dkaf: {message}; see {self.prog} --help\n")
