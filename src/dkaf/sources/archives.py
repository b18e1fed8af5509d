"""The files of a corpus, read from a folder or straight out of an archive.

Nothing is ever unpacked onto the disk, so no member of an archive can land anywhere; one that tries is refused all the
same, as are links, devices, and archives that grow beyond the limits.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import cast

from dkaf.errors import InputError

MOST_BYTES = 512 * 1024**2
"""Of all members together, unpacked; the largest of the corpora has a tenth of it."""
MOST_MEMBERS = 100_000

SUFFIXES = (".tar.xz", ".tar.gz", ".gtar.gz", ".tgz", ".tar.bz2", ".tar", ".zip", ".whl")

WEB_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|\?xml|!--)", re.IGNORECASE)
"""How the answer of a portal starts that asks to log in, say."""

# The unpackers trust numbers, names and tables that they find, so damage ends them in errors of every kind.
_DAMAGE = (
    *(EOFError, OSError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, struct.error),
    *(ValueError, LookupError, OverflowError, RuntimeError),
)
_UNPACKERS = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\x00", lzma.open), (b"BZh", bz2.open))


def read_files(source: Path, wanted: re.Pattern[str]) -> dict[str, bytes]:
    """The files whose path matches, by the name in the pattern's first group, sorted by it.

    The name starts where the corpus does, so the same files have the same names however they were packed.
    """
    files: dict[str, bytes] = {}
    for path, content in _folder(source, wanted) if source.is_dir() else _archive(source, wanted):
        found = wanted.search(path)
        if found is None:
            continue
        name = found[1]
        if files.setdefault(name, content) != content:
            raise InputError(f"each file is there once, {source} has two different {name}; name the folder of one copy")
    return dict(sorted(files.items()))


def content_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the files' names and contents."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(files[name]).digest())
    return digest.hexdigest()


def _folder(source: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    def unreadable(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}; make it readable") from error

    total = 0
    for folder, _, names in os.walk(source, onerror=unreadable):
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(source.parent).as_posix()  # the folder itself may be the class, say
            if not wanted.search(relative):
                continue
            try:
                if path.is_file():  # and no pipe that never ends
                    total += path.stat().st_size
                    _check_total(source, total)
                    yield relative, path.read_bytes()
            except OSError as error:
                raise InputError(f"{path} cannot be read: {error.strerror}; make it readable") from error


def _archive(source: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    start = b""
    try:
        with source.open("rb") as file:
            start = file.read(512)
            file.seek(0)
            if start.startswith(b"PK"):
                yield from _zip(source, file, wanted)
            else:
                yield from _tar(source, file, start, wanted)
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{source} asks for more memory than there is; it is no corpus, get it again") from error
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{source} cannot be read: {error.strerror}; name another") from error
        if WEB_PAGE.match(start):
            raise InputError(f"an archive is wanted, {source} is a web page; get the archive itself") from error
        raise InputError(
            f"an archive is a whole {', '.join(SUFFIXES)} file, {source} is damaged, cut off or none ({error}); "
            "get it again"
        ) from error


def _tar(source: Path, file: io.BufferedReader, start: bytes, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    unpacked: io.BufferedIOBase = file
    for magic, unpacker in _UNPACKERS:
        if start.startswith(magic):
            unpacked = cast("io.BufferedIOBase", unpacker(file))
    limited = _Limited(source, unpacked)
    with tarfile.open(fileobj=limited, mode="r|") as archive:
        total = 0
        for number, member in enumerate(archive):
            kind = "a link" if member.islnk() or member.issym() else "a device or a pipe"
            _check_member(source, number, member.name, None if member.isreg() or member.isdir() else kind)
            total += member.size  # of a sparse file, far more than the stream has
            _check_total(source, total)
            if member.isreg() and wanted.search(member.name):
                content = archive.extractfile(member)
                assert content is not None
                yield member.name, content.read()
        if archive.offset == 0:
            raise tarfile.ReadError("it is empty")
    while limited.read(1 << 16):  # to its end, where the unpacker finds the checksum
        pass


def _zip(source: Path, file: io.BufferedReader, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        total = 0
        for number, member in enumerate(archive.infolist()):
            mode = member.external_attr >> 16
            special = stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR)
            _check_member(source, number, member.filename, "a link or a device" if special else None)
            if member.flag_bits & 1:
                raise InputError(f"archives are read without a password, {source} needs one; unpack it first")
            total += member.file_size
            _check_total(source, total)
            if not member.is_dir() and wanted.search(member.filename):
                yield member.filename, archive.read(member)


def _check_member(source: Path, number: int, name: str, special: str | None) -> None:
    if number >= MOST_MEMBERS:
        raise InputError(f"an archive has at most {MOST_MEMBERS:,} files, {source} has more; it is no corpus")
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:/", str(path)):
        raise InputError(
            f"archives stay in their folder, {source} has a file {name!r} that leaves it; get another copy"
        )
    if special is not None:
        raise InputError(f"archives hold files and folders, {name!r} in {source} is {special}; get another copy")


def _check_total(source: Path, total: int) -> None:
    if total > MOST_BYTES:
        raise InputError(
            f"a corpus has at most {MOST_BYTES // 1024**2} MB unpacked, {source} has more; name the folder or archive "
            "of the corpus alone"
        )


class _Limited(io.RawIOBase):
    """What comes out of the unpacker, up to the limit: tar's own headers count too."""

    def __init__(self, source: Path, file: io.BufferedIOBase) -> None:
        self._source, self._file, self._total = source, file, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        _check_total(self._source, self._total + max(size, 0))
        content = self._file.read(min(size, MOST_BYTES) if size >= 0 else MOST_BYTES)
        self._total += len(content)
        return content
