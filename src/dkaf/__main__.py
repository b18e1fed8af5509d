"""`python -m dkaf` is the `dkaf` command."""

from dkaf.cli import entry

if __name__ == "__main__":
    entry()
