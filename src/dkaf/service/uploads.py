"""Files from outside: written to disk as they come, under names of our own, and looked at without running anything."""

import contextlib
import filecmp
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from dkaf.campaign.export import ADDED
from dkaf.errors import InputError
from dkaf.service.problems import Refusal, status_of
from dkaf.service.shelf import Shelf
from dkaf.service.tokens import write_private
from dkaf.sources.preparation import IGNORE, detected
from dkaf.sources.tables import SUFFIXES, Column, Table, detected_reading, is_missing, numbers, read_table
from dkaf.tasks import LARGEST_RESPONSE

POLICY = ".safetensors"
UPLOAD = re.compile(rf"[0-9a-f]{{32}}({'|'.join(map(re.escape, SUFFIXES))})")
SLOW = ("idna", "punycode")  # of domain names, in a time that grows with the square of the length
SHOWN = 3  # values of a column
LONGEST_SHOWN = 200  # characters of one
LONGEST_HEADER = 1 << 14
READING = ("delimiter", "encoding")
KEPT_SECONDS = 7 * 24 * 3600  # a campaign keeps its pool by itself


class _Part:
    """The part called `file` of a multipart body, on its way to the disk."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.filename: str | None = None
        self._name, self._value, self._headers = b"", b"", {b"": b""}
        self._taking = self.finished = False
        self._read = 0

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._headers, self._read, self._taking = {}, 0, False

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += self._short(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._short(data[start:end])

    def _short(self, data: bytes) -> bytes:
        self._read += len(data)
        if self._read > LONGEST_HEADER:
            raise InputError("the headers of an upload are short, these are not; send the file as multipart/form-data")
        return data

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if options.get(b"name") != b"file" or b"filename" not in options:
            return
        if self.filename is not None:
            raise InputError("an upload is one file, several came; send one after the other")
        self.filename = options[b"filename"].decode("utf-8", "replace")
        self._taking = True

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._taking:
            self._target.write(data[start:end])

    def _end(self) -> None:
        self.finished = True


class Uploads:
    """The folder of uploads."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.folder = shelf.folder / "uploads"

    def tidy(self, started: bool = False) -> None:
        """Remove what is old; when the service has just started, also what was never finished."""
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                if (started and path.suffix == ".part") or path.stat().st_mtime < time.time() - KEPT_SECONDS:
                    path.unlink()

    async def receive(self, content_type: str, body: AsyncIterator[bytes]) -> tuple[Path, str]:
        """Write a body's file to the disk as it comes; where it is now, and what its sender calls it."""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise Refusal(
                415, "an upload is multipart/form-data with a part called file, it came as something else; send it so"
            )
        self.tidy()
        beside = self.folder / f"{secrets.token_hex(16)}.part"
        try:
            with open(beside, "xb") as target:
                part = _Part(target)
                parser = MultipartParser(options[b"boundary"], part.callbacks())
                async for piece in body:
                    parser.write(piece)
                parser.finalize()
                target.flush()
                os.fsync(target.fileno())
            if part.filename is None or not part.finished:
                raise InputError("an upload has a part called file with a filename, none came whole; send it again")
            return beside, part.filename
        except BaseException as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            if isinstance(error, MultipartParseError):
                raise InputError(
                    f"an upload is multipart/form-data, this body is not ({error}); send it again"
                ) from None
            if isinstance(error, OSError):
                raise Refusal(507, f"the upload cannot be kept: {error.strerror or error}; make room") from error
            raise

    def accept(self, beside: Path, filename: str) -> dict[str, Any]:
        """Look at what came and keep it, or say why not and remove it."""
        plain = re.split(r"[/\\]", filename)[-1]
        suffix = Path(plain).suffix.lower()
        kept: Path | None = None
        try:
            if suffix == POLICY:
                return self._policy(beside, plain)
            if suffix not in SUFFIXES:
                raise InputError(
                    f"an upload is a {', '.join((*SUFFIXES, POLICY))} file, {plain!r} came; save it as one of these"
                )
            kept = self.folder / f"{beside.stem}{suffix}"
            beside.rename(kept)
            reading = dict(zip(READING, detected_reading(kept), strict=True))
            answer = self._table(kept, **reading) | {"filename": plain}
            write_private(self.folder / f"{kept.name}.json", {"filename": plain} | reading)
            return answer
        except BaseException as error:
            if kept is not None:
                kept.unlink(missing_ok=True)
            if not isinstance(error, InputError):
                raise
            (status, headers), sentence = status_of(error), str(error)
            for path in (kept, beside):
                sentence = sentence.replace(str(path), plain)
            raise Refusal(status, sentence, headers) from error
        finally:
            beside.unlink(missing_ok=True)

    def path(self, upload: str) -> Path:
        """Where an upload is, by the name that it was given."""
        path = self.folder / upload
        if not UPLOAD.fullmatch(upload) or not path.is_file():
            raise Refusal(404, f"there is no upload {upload!r}; send the pool to POST /api/uploads first")
        return path

    def filename(self, upload: str) -> str:
        """What its sender called it."""
        return str(self._about(upload).get("filename", upload))

    def reading(self, upload: str, delimiter: str | None, encoding: str | None) -> dict[str, str | None]:
        """How a table is read: as one says, and otherwise as it was found to be written when it came."""
        if encoding is not None and encoding.lower() in SLOW:
            raise InputError(f"an encoding is like utf-8 or cp1252, {encoding!r} is none of texts; name another")
        about = self._about(upload)
        return {name: said or about.get(name) for name, said in zip(READING, (delimiter, encoding), strict=True)}

    def look(self, upload: str, delimiter: str | None, encoding: str | None) -> dict[str, Any]:
        """What a table holds if it is read so."""
        path, filename = self.path(upload), self.filename(upload)
        try:
            return self._table(path, **self.reading(upload, delimiter, encoding)) | {"filename": filename}
        except InputError as error:
            raise InputError(str(error).replace(str(path), filename)) from error

    def measured(self, upload: str, id_: str | None, response: str, reading: dict[str, str | None]) -> Table | None:
        """The values that a pool has in its column of responses, as an export has them; None if there are none."""
        table = read_table(self.path(upload), **reading)
        if id_ is not None:
            table.column(id_, "id")
        values, other = numbers(table.column(response, "response"))
        if other:
            raise InputError(
                f"values that are known are numbers, row {other[0] + 1} of {table.name} has "
                f"{table.texts(response)[other[0]]!r} in column {response!r}; correct it, or begin without them"
            )
        rows = [row for row, value in enumerate(values.tolist()) if value == value]
        for row in rows:
            if not abs(values[row]) <= LARGEST_RESPONSE:
                raise InputError(
                    f"values that are known are finite and within +-{LARGEST_RESPONSE:g}, row {row + 1} of "
                    f"{table.name} has {values[row]} in column {response!r}; correct it, or begin without them"
                )
        if not rows:
            return None
        ids = [str(row + 1) for row in rows] if id_ is None else table.rows(rows).texts(id_)
        columns: dict[str, Column] = {name: [""] * len(rows) for name in ADDED}
        columns |= {"id": ids, "value": values[rows], "status": ["measured"] * len(rows)}
        return Table(table.name, columns, len(rows))

    def _about(self, upload: str) -> dict[str, Any]:
        import json

        try:
            about = json.loads((self.folder / f"{upload}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}

    def _policy(self, beside: Path, filename: str) -> dict[str, Any]:
        from dkaf.policies import describe, load

        load(beside)
        describe(beside)  # what it says of itself is shown to everybody
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(filename).stem)[:64]
        path = self._shelf.policy_path(name)
        try:
            os.link(beside, path)  # never over another one
        except FileExistsError:
            if not filecmp.cmp(beside, path, shallow=False):  # the same file again is one whose answer was lost
                raise Refusal(409, f"policies have names of their own, {name!r} is there; rename the file") from None
        return {"kind": "policy", "policy": name, "filename": filename}

    def _table(self, path: Path, delimiter: str | None, encoding: str | None) -> dict[str, Any]:
        table = read_table(path, delimiter=delimiter, encoding=encoding)
        if table.n_rows == 0:
            raise InputError(f"a pool has candidates, {path} has a header and no rows; name another")
        columns = []
        for name in table.columns:
            try:
                kind, reason = detected(name, [table.columns[name]])
            except InputError as error:
                kind, reason = IGNORE, str(error)
            first = [text[:LONGEST_SHOWN] for text in table.part(0, SHOWN).texts(name)]
            filled = sum(not is_missing(text) for text in table.texts(name))
            columns.append({"name": name, "kind": kind, "reason": reason, "first": first, "filled": filled})
        reading = dict(zip(READING, (delimiter, encoding), strict=True))
        return {"upload": path.name, "kind": "table", "rows": table.n_rows, "columns": columns} | reading
