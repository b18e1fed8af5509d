"""Files are written whole or not at all: beside the target, flushed to disk, then renamed over it."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dkaf.errors import InputError, NoRoomError


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open `path` for writing; under its name, with these rights, it appears only when all went well."""
    path = Path(os.path.realpath(path))  # a link stays, and what it points at is replaced
    check_writable(path)
    try:
        beside = path.with_name(f".{secrets.token_hex(8)}.part")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        flush_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise


def _unwritable(path: Path, error: OSError) -> NoRoomError:
    return NoRoomError(f"the output {path} cannot be written: {error.strerror or error}; name another or make room")


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before the work whose result would be lost."""
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFREG  # it will be one
    except OSError as error:
        raise _unwritable(path, error) from error
    if not stat.S_ISREG(kind):
        what = "a folder; name a file in it" if stat.S_ISDIR(kind) else "a device or a pipe; name another"
        raise InputError(f"the output must be a file, {path} is {what}")
    if not path.parent.is_dir():
        raise InputError(f"the output's folder must exist, {path.parent} does not; make it or name another")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"the output's folder must be writable, {path.parent} is not; name another")


def flush_folder(folder: Path) -> None:
    with contextlib.suppress(
        OSError
    ):  # some systems cannot flush a folder; the rename is then as durable as they make it
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
