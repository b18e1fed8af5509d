"""Tables as people have them: CSV, TSV and Parquet files, pandas and polars frames; one message for what is wrong.

A column is a list of texts, or, where the source knows its numbers, an array of them. Missing values are empty texts
and NaN. Rows are counted from 1, the header not among them, as a person counts them.
"""

import csv
import io
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dkaf.errors import InputError
from dkaf.tasks import FloatArray

Column: TypeAlias = FloatArray | list[str]

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
NO_TEXT = {
    b"PK\x03\x04": "a spreadsheet or a zip archive; save it as CSV",
    b"\xd0\xcf\x11\xe0": "a spreadsheet; save it as CSV",
    b"\x1f\x8b": "compressed; unpack it with gunzip",
    b"\xff\xfe": "in UTF-16; pass --encoding utf-16, or save it as UTF-8",
    b"\xfe\xff": "in UTF-16; pass --encoding utf-16, or save it as UTF-8",
}
LONGEST_FIELD = 1 << 28
MOST_DECODED, ROWS_AT_ONCE = 1 << 30, 4096  # bytes and rows of a Parquet file, which can be small on disk
EXCEL = re.compile(r"sep=(.)\r?\n")
"""A first line by which Excel tells what separates the columns."""
LOOKED_AT = 20  # rows, to tell what separates columns
# As programs write them; "Na" is sodium and "none" an additive.
MISSING = frozenset({"", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "<NA>"})


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of one length."""

    name: str
    """What messages call it: a file's path."""
    columns: dict[str, Column]
    n_rows: int
    first: int = 0
    """The row, from 0, that it begins with in the table that it is a part of."""

    def column(self, name: str, option: str) -> Column:
        """A column that the caller named by an option."""
        if name not in self.columns:
            raise InputError(
                f"{option} names a column, {self.name} has {self._has()} and no {name!r}; name one of them"
            )
        return self.columns[name]

    def texts(self, name: str) -> list[str]:
        """A column as texts, the same whichever source it came from; numbers that are whole without a point."""
        column = self.columns[name]
        if isinstance(column, list):
            return column
        return ["" if np.isnan(value) else _written(value) for value in column.tolist()]

    def part(self, start: int, stop: int) -> "Table":
        """Rows from `start` to before `stop`; messages count on."""
        columns: dict[str, Column] = {name: column[start:stop] for name, column in self.columns.items()}
        return Table(self.name, columns, min(stop, self.n_rows) - start, self.first + start)

    def rows(self, chosen: Sequence[int], name: str | None = None) -> "Table":
        """Some of its rows."""
        columns: dict[str, Column] = {
            key: [column[row] for row in chosen] if isinstance(column, list) else column[np.asarray(chosen, dtype=int)]
            for key, column in self.columns.items()
        }
        return Table(self.name if name is None else name, columns, len(chosen))

    def _has(self) -> str:
        names = [repr(name) for name in self.columns]
        return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def read_table(source: Any, *, delimiter: str | None = None, encoding: str | None = None) -> Table:
    """A table from a path, or from a pandas or polars frame; a table stays as it is."""
    if isinstance(source, Table):
        return source
    if not isinstance(source, str | os.PathLike):
        return _frame(source)
    path = Path(source)
    if not path.is_file():
        raise InputError(
            f"a table is a file, {path} {'is a folder' if path.is_dir() else 'does not exist'}; correct it"
        )
    if path.suffix.lower() in (".parquet", ".pq"):
        return _parquet(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; make it readable") from error
    return _csv(str(path), path.suffix.lower(), content, delimiter, encoding)


def detected_reading(path: Path) -> tuple[str | None, str | None]:
    """How a text file seems to be written, its delimiter and its encoding; None where that is the usual.

    For who looks at the result before it counts: a command says nothing of what it guessed, so it does not guess.
    """
    if path.suffix.lower() not in (".csv", ".tsv"):
        return None, None
    content = path.read_bytes()
    for encoding in ("utf-16",) if content.startswith((b"\xff\xfe", b"\xfe\xff")) else (None, "cp1252"):
        try:
            text = content.decode(encoding or "utf-8").removeprefix("\ufeff")
        except UnicodeError:
            continue
        if EXCEL.match(text):
            return None, encoding  # it says so itself
        usual = "\t" if path.suffix.lower() == ".tsv" else ","
        best = max((usual, *DELIMITERS), key=lambda delimiter: _width(text, delimiter))  # of equal ones, the first
        return None if best == usual else best, encoding
    return None, None


def _width(text: str, delimiter: str) -> int:
    """How many columns the first rows have, if all have as many; else one."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        widths = {len(row) for row in itertools.islice(filter(None, reader), LOOKED_AT)}
    except csv.Error:
        return 1
    return widths.pop() if len(widths) == 1 else 1


def is_missing(text: str) -> bool:
    """Whether a field says that it holds nothing."""
    return text.strip() in MISSING


def number_of(text: str) -> float | None:
    """The number that a field holds, as people write them; NaN for a missing one, None where it is none."""
    try:
        return float(text) if _plain(text) else None
    except ValueError:
        return float("nan") if is_missing(text) or text.strip() in ("none", "None") else None


def _plain(text: str) -> bool:
    """Python reads 1_000 and the digits of every alphabet; a well called 1_2 is no number."""
    return "_" not in text and text.isascii()


def numbers(column: Column) -> tuple[FloatArray, list[int]]:
    """A column as numbers, NaN where one is missing; and which rows, from 0, hold something else."""
    if not isinstance(column, list):
        return column, []
    try:
        if all(map(_plain, column)):
            return np.array(column, dtype=np.float64), []
        raise ValueError
    except ValueError:
        values = [number_of(text) for text in column]
        other = [row for row, value in enumerate(values) if value is None]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64), other


def _written(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _csv(name: str, suffix: str, content: bytes, delimiter: str | None, encoding: str | None) -> Table:
    text = _decoded(name, content, encoding)
    separator = delimiter or ("\t" if suffix == ".tsv" else ",")
    if said := EXCEL.match(text):
        separator, text = delimiter or said[1], text[said.end() :]
    if len(separator) != 1:
        raise InputError(f"--delimiter is one character, {delimiter!r} came; quote it in the shell")
    if "\0" in text:
        raise InputError(f"a table is text, {name} holds zero bytes; is it a spreadsheet? Save it as CSV")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    take_long_fields(LONGEST_FIELD)
    try:
        header = [column.strip() for column in next(reader, [])]
        _check_header(name, header, separator)
        rows = []
        for number, row in enumerate((row for row in reader if row), 1):
            if len(row) != len(header):
                raise InputError(
                    f"every row has the header's {len(header)} columns, row {number} of {name} (line "
                    f"{reader.line_num}) has {len(row)}; correct it, or put fields with "
                    f"{DELIMITERS.get(separator, repr(separator))} in quotes"
                )
            rows.append(row)
    except csv.Error as error:
        raise InputError(f"line {reader.line_num} of {name} is no CSV ({error}); correct it") from error
    fields: Iterable[Sequence[str]] = zip(*rows, strict=True) if rows else [()] * len(header)
    columns: dict[str, Column] = {key: list(values) for key, values in zip(header, fields, strict=True)}
    return Table(name, columns, len(rows))


def take_long_fields(most: int) -> None:
    """Let the csv module take them, in all threads: putting its limit back would end another one's reading."""
    csv.field_size_limit(max(most, csv.field_size_limit()))


def _decoded(name: str, content: bytes, encoding: str | None) -> str:
    for start, what in NO_TEXT.items():
        if content.startswith(start) and encoding is None:
            raise InputError(f"a table is text, {name} is {what}")
    try:
        return content.decode(encoding or "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"a table is UTF-8 unless --encoding says otherwise, line {line} of {name} is not {encoding or 'UTF-8'}; "
            "convert it, or try --encoding cp1252"
        ) from error
    except (LookupError, UnicodeError) as error:
        raise InputError(f"--encoding names an encoding, {encoding!r} is unknown; try utf-8 or cp1252") from error


def _check_header(name: str, header: list[str], separator: str) -> None:
    if not header:
        raise InputError(f"a table starts with the names of its columns, {name} is empty; add them")
    if len(header) == 1:
        for other in DELIMITERS:
            if other != separator and other in header[0]:
                raise InputError(
                    f"columns are separated by {DELIMITERS.get(separator, repr(separator))}, the header of {name} is "
                    f"one column, {header[0]!r}; for {DELIMITERS[other]} pass --delimiter {_shell(other)}"
                )
    if "" in header:
        raise InputError(f"columns have names, column {header.index('') + 1} of {name} has none; name it")
    seen = set()
    for column in header:
        if column in seen:
            raise InputError(f"columns have names of their own, {name} has two called {column!r}; rename one")
        seen.add(column)


def _shell(delimiter: str) -> str:
    return "$'\\t'" if delimiter == "\t" else f"'{delimiter}'"


def _parquet(path: Path) -> Table:
    from dkaf.sources.pools import need_pyarrow

    need_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    values: dict[str, list[Any]] = {}
    decoded = 0
    try:
        schema = pq.read_schema(path)
        _check_schema(str(path), schema)
        values = {name: [] for name in schema.names}
        # As dictionaries: a text that is repeated a million times is a few bytes, until it is written out.
        texts = [field.name for field in schema if _is_text(field.type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            n_rows = file.metadata.num_rows
            if n_rows * len(values) * 8 > MOST_DECODED:
                raise _too_large(str(path))
            for batch in file.iter_batches(ROWS_AT_ONCE):
                decoded += sum(map(_decoded_bytes, batch.columns))
                if decoded > MOST_DECODED:
                    raise _too_large(str(path))
                for name, column in zip(schema.names, batch.columns, strict=True):
                    values[name] += column.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is not a whole Parquet file ({reason}); write or copy it again") from error
    return Table(str(path), {name: _values(str(path), name, column) for name, column in values.items()}, n_rows)


def _check_schema(name: str, schema: Any) -> None:
    import pyarrow.types as kinds

    if len(set(schema.names)) != len(schema.names):
        raise InputError(f"columns have names of their own, {name} repeats one; rename it")
    for field in schema:
        kind = field.type.value_type if kinds.is_dictionary(field.type) else field.type
        plain = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_null)
        if not (_is_text(kind) or any(is_kind(kind) for is_kind in plain)):
            raise InputError(
                f"a field is a number or a text, column {field.name!r} of {name} has {kind}; convert the column or "
                "leave it out"
            )


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _decoded_bytes(column: Any) -> int:
    """What a column takes once its texts are written out."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    if not kinds.is_dictionary(column.type):
        return int(column.nbytes)
    if not _is_text(column.type.value_type):
        return 8 * len(column)
    return int(pc.sum(pc.take(pc.binary_length(column.dictionary), column.indices)).as_py() or 0) + 50 * len(column)


def _too_large(name: str) -> InputError:
    return InputError(
        f"a table is read whole, into at most {MOST_DECODED >> 20} MiB, {name} takes more; leave columns or rows out, "
        "or search it with dkaf.Search, which reads it in pieces"
    )


def _frame(frame: Any) -> Table:
    """What pandas and polars agree on."""
    try:
        names = list(frame.columns)
        if len(set(map(str, names))) != len(names):
            raise InputError("columns have names of their own, the frame repeats one; rename it")
        columns = {str(name): _values("the frame", str(name), _listed(frame[name], str(name))) for name in names}
    except (AttributeError, TypeError, KeyError):
        raise InputError(
            f"a table is a path, or a pandas or polars frame, {type(frame).__name__} came; pass one of these"
        ) from None
    return Table("the frame", columns, len(frame))


def _listed(column: Any, name: str) -> list[Any]:
    values = column.to_numpy()
    if values.dtype.kind in "mM":
        raise InputError(
            f"a field is a number or a text, column {name!r} of the frame has dates or times; convert it or leave it "
            "out"
        )
    listed: list[Any] = values.tolist()
    return listed


def _values(table: str, name: str, values: list[Any]) -> Column:
    """What a source of typed values holds, as a column; whole numbers that would lose digits stay texts."""
    if any(isinstance(value, int) and abs(value) > 2**53 for value in values):
        return ["" if value is None else str(value) for value in values]
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        try:
            return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        except OverflowError:
            raise InputError(
                f"numbers are finite, column {name!r} of {table} has one that is not; rescale it"
            ) from None
    texts = []
    for row, value in enumerate(values, 1):
        if value is None or (isinstance(value, float) and np.isnan(value)):
            texts.append("")
        elif isinstance(value, str | bool | int | float):
            texts.append(str(value))
        elif type(value).__name__ in ("NAType", "NaTType"):  # pandas' own words for nothing
            texts.append("")
        else:
            raise InputError(
                f"a field is a number or a text, row {row} of {table} has {type(value).__name__} in column {name!r}; "
                "convert the column or leave it out"
            )
    return texts
