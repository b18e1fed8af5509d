"""Files from the web and wheels from the package index.

A file has its name only once it is whole. What has come of it until then is `NAME.part`, and `NAME.part.from` says what
it is a part of, so that the next attempt goes on where this one broke off.
"""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import dkaf
from dkaf.errors import InputError
from dkaf.sources.archives import MOST_BYTES, WEB_PAGE
from dkaf.sources.catalogue import Address, Package

Progress = Callable[[str, int, int | None], None]
"""A stage, how much of it is done, and how much it has where that is known."""

SECONDS_OF_SILENCE = 30.0
CHUNK = 1 << 16
WAY_OUT = "download it elsewhere and pass --from PATH, or set DKAF_DATA to a folder that holds it"


class UnreachableError(InputError):
    """Nothing answers there, or not with the file."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; {WAY_OUT}")
        self.reason = reason


def fetch(origin: Address | Package, folder: Path, progress: Progress) -> Path:
    """The file in `folder`, downloaded if it is not there."""
    target = folder / origin.file
    if not target.exists():
        if isinstance(origin, Address):
            _fetch_address(origin.url, target, progress)
        else:
            _fetch_package(origin, target, progress)
    return target


def _fetch_address(url: str, target: Path, progress: Progress) -> None:
    part, label = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.from")
    with _writing(target):
        while not target.exists():
            with _locked(part, target) as ours:
                if not ours:
                    continue
                if target.exists():
                    part.unlink(missing_ok=True)
                else:
                    _complete(url, part, label, target, progress)
                    os.replace(part, target)
                label.unlink(missing_ok=True)


def _complete(url: str, part: Path, label: Path, target: Path, progress: Progress) -> None:
    try:
        with part.open("ab") as file:
            _fill(url, file, target, label, progress)
            os.fsync(file.fileno())
    except UnreachableError:
        if not part.stat().st_size:
            part.unlink()
            label.unlink(missing_ok=True)
        raise


def _fill(url: str, file: BinaryIO, target: Path, label: Path, progress: Progress) -> None:
    """Go on until it is whole, as long as an attempt brings something."""
    furthest = 0
    while True:
        try:
            return _go_on(url, file, target, label, progress)
        except (OSError, http.client.HTTPException) as error:
            have = _size(file)
            if isinstance(error, urllib.error.HTTPError) or have <= furthest:
                raise UnreachableError(_reason(url, error, have)) from error
            furthest = have


def _go_on(url: str, file: BinaryIO, target: Path, label: Path, progress: Progress) -> None:
    """Append what is missing; from the start where the server cannot go on or its file has changed."""
    version = _version(label, url)
    if version is None:
        file.truncate(0)
    have = _size(file)
    request = urllib.request.Request(url, headers={"User-Agent": f"dkaf/{dkaf.__version__}"})
    if have and version is not None:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", version)
    with _opened(request, file) as answer:
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            if not (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
                file.truncate(0)
                raise http.client.HTTPException("it sent another part than it was asked for")
        else:
            have = 0
            with _writing(target):
                file.truncate(0)
                _write_version(label, url, answer.headers)
        length = answer.headers.get("Content-Length") or ""
        total = have + int(length) if length.isdigit() else None
        if (total or 0) > MOST_BYTES:
            raise InputError(_too_large(url))
        for chunk in iter(lambda: answer.read(CHUNK), b""):
            if not have and WEB_PAGE.match(chunk):
                raise UnreachableError(f"{url} answers with a web page (is there a portal to log in to?)")
            have += len(chunk)
            if have > MOST_BYTES:
                raise InputError(_too_large(url))
            with _writing(target):
                file.write(chunk)
                file.flush()
            progress(f"kB of {url}", have // 1000, None if total is None else max(total, have) // 1000 + 1)
        if total is not None and have != total:
            raise http.client.HTTPException(f"{have:,} of {total:,} bytes came")
        progress(f"kB of {url}", have // 1000 + 1, have // 1000 + 1)


def _too_large(url: str) -> str:
    return f"a corpus has at most {MOST_BYTES // 1024**2} MB, {url} has more; {WAY_OUT}"


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(
            f"{target} cannot be written: {why}; make room, or set DKAF_CACHE to another folder"
        ) from error


@contextlib.contextmanager
def _opened(request: urllib.request.Request, file: BinaryIO) -> Iterator[http.client.HTTPResponse]:
    try:
        answer = urllib.request.urlopen(request, timeout=SECONDS_OF_SILENCE)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        file.truncate(0)  # more has come than there is
        request.remove_header("Range")
        request.remove_header("If-range")
        answer = urllib.request.urlopen(request, timeout=SECONDS_OF_SILENCE)
    with answer:
        yield answer


def _version(label: Path, url: str) -> str | None:
    """What the server called the version of which we have a part."""
    try:
        known = json.loads(label.read_text("utf-8"))
        return str(known["version"]) if known["url"] == url else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_version(label: Path, url: str, headers: http.client.HTTPMessage) -> None:
    etag = headers.get("ETag") or ""
    version = headers.get("Last-Modified") if not etag or etag.startswith("W/") else etag
    if version is None:
        label.unlink(missing_ok=True)
    else:
        label.write_text(json.dumps({"url": url, "version": version}), "utf-8")


def _reason(url: str, error: Exception, have: int) -> str:
    why = getattr(error, "reason", None) or str(error) or type(error).__name__
    if isinstance(error, urllib.error.HTTPError):
        return f"{url} answers {error.code} {error.reason}"
    if have:
        return f"{url} broke off after {have:,} bytes ({why}), which are kept for the next attempt"
    return f"{url} cannot be reached ({why})"


def _size(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


@contextlib.contextmanager
def _locked(part: Path, target: Path) -> Iterator[bool]:
    """Keep others from the part until it has its name; false where it was renamed or deleted before it was ours."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks nor renames open files, and the content is checked anyway
        yield True
        return
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process is downloading {target}; wait for it") from None
        try:
            ours = os.path.samestat(os.fstat(file.fileno()), part.stat())
        except FileNotFoundError:
            ours = False
        yield ours


def _fetch_package(package: Package, target: Path, progress: Progress) -> None:
    """By pip, so that the user's own index, proxies and certificates are used; it checks the SHA-256."""
    stage = f"{package.name} {package.version} from the package index"
    progress(stage, 0, 1)
    with _writing(target), tempfile.TemporaryDirectory(dir=target.parent) as folder:
        requirements, wheel = Path(folder, "requirements.txt"), Path(folder, package.file)
        requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", "utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--require-hashes"]
        command += ["--dest", folder, "--requirement", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or not wheel.exists():
            why = f"pip ended with {done.returncode}"
            if "DO NOT MATCH THE HASHES" in done.stderr:
                why = "its SHA-256 is not the expected one"
            elif errors := [line for line in done.stderr.splitlines() if line and not line.startswith("WARNING")]:
                why = errors[-1].removeprefix("ERROR: ")
            raise UnreachableError(f"the package index does not give {package.name} {package.version} ({why})")
        os.replace(wheel, target)
    progress(stage, 1, 1)
