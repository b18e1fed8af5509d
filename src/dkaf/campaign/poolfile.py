"""The file that a pool came from: whether it is still the same."""

import hashlib
import os
from pathlib import Path
from typing import Any

from dkaf.errors import InputError


def identity(path: Path) -> dict[str, Any]:
    """What tells a file from another one."""
    try:
        status = path.stat()
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; make it readable") from error
    return {"path": os.path.abspath(path), "size": status.st_size, "changed": status.st_mtime_ns, "digest": digest}


def changed(known: dict[str, Any]) -> bool:
    """Whether the file is there and has another content; one that is gone, or was only touched, has not."""
    if known["path"] is None:
        return False
    path = Path(known["path"])
    try:
        status = path.stat()
    except OSError:
        return False
    if (status.st_size, status.st_mtime_ns) == (known["size"], known["changed"]):
        return False
    return bool(status.st_size != known["size"] or identity(path)["digest"] != known["digest"])
