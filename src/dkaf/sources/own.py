"""A user's own documents: a folder `class/document`, or a table with a column of texts and one of labels."""

import csv
import io
import re
from pathlib import Path

from dkaf.errors import InputError
from dkaf.sources.archives import MOST_BYTES, content_digest, read_files
from dkaf.sources.tables import take_long_fields
from dkaf.sources.words import Document

# Below the folder that was named, nothing hidden: class/document, or class/folder/document.
_DOCUMENT = re.compile(r"^[^/]*/((?!\.)[^/]+/(?!\.)(?!.*/\.).+)$")


def read_own(path: Path, text: str, label: str) -> tuple[str, list[Document], str]:
    """Its form, its documents, and the digest of its content."""
    if not path.exists():
        raise InputError(f"a corpus is a folder or a CSV file, {path} does not exist; correct it")
    if path.is_dir():
        files = read_files(path.resolve(), _DOCUMENT)
        return "folder", _folder(path, files), content_digest(files)
    if not path.is_file():
        raise InputError(f"a corpus is a folder or a CSV file, {path} is neither; name one")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"a corpus has at most {MOST_BYTES // 1024**2} MB, {path} has more; split it")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; make it readable") from error
    return "csv", _table(path, content, text, label), content_digest({path.name: content})


def _folder(path: Path, files: dict[str, bytes]) -> list[Document]:
    documents = []
    for name, content in files.items():
        if b"\0" in content:
            raise InputError(f"documents are plain text, {path / name} is not; convert it or take it out")
        # Only a to z count, so an encoding that is not UTF-8 costs no word.
        documents.append(Document(name, name.split("/")[0], content.decode("utf-8", "replace")))
    if not documents:
        raise InputError(f"a corpus has a folder a class with its documents, {path} has none; make it class/document")
    return _of_several_classes(path, documents)


def _table(path: Path, content: bytes, text: str, label: str) -> list[Document]:
    try:
        table = io.StringIO(content.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"a table is UTF-8, line {line} of {path} is not; convert it") from error
    reader = csv.reader(table, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    take_long_fields(MOST_BYTES)
    try:
        columns = next(reader, [])
        for option, column in (("--text", text), ("--label", label)):
            _check_column(path, columns, option, column)
        documents = [_row(path, number, row, columns, text, label) for number, row in enumerate(reader, 1) if row != []]
    except csv.Error as error:
        raise InputError(f"line {reader.line_num} of {path} is no CSV ({error}); correct it") from error
    if not documents:
        raise InputError(f"a table has a row a document, {path} has a header and no rows; name another")
    return _of_several_classes(path, documents)


def _check_column(path: Path, columns: list[str], option: str, column: str) -> None:
    if not columns:
        raise InputError(f"a table starts with the names of its columns, {path} does not; add them")
    if len(columns) == 1:
        raise InputError(
            f"a table has a column of texts and one of labels, {path} has only {columns[0]!r}; separate columns by "
            "commas, or by tabs in a .tsv file"
        )
    if column not in columns:
        has = ", ".join(map(repr, columns))
        raise InputError(f"{option} names a column, {path} has {has} and no {column!r}; name one of them")
    if columns.count(column) > 1:
        raise InputError(
            f"{option} names one column, {path} has {columns.count(column)} called {column!r}; rename the others"
        )


def _row(path: Path, number: int, row: list[str], columns: list[str], text: str, label: str) -> Document:
    if len(row) != len(columns):
        raise InputError(
            f"every row has the header's {len(columns)} columns, row {number} of {path} has {len(row)}; correct it, or "
            "put its text in quotes"
        )
    if not row[columns.index(label)].strip():
        raise InputError(f"every row has a label, row {number} of {path} has none; fill it in or take the row out")
    return Document(str(number), row[columns.index(label)].strip(), row[columns.index(text)])


def _of_several_classes(path: Path, documents: list[Document]) -> list[Document]:
    labels = {document.label for document in documents}
    if len(labels) < 2:
        raise InputError(f"a corpus has at least two classes, {path} has only {labels.pop()!r}; add another")
    return documents
