"""One campaign in one SQLite file: what it is, its candidates, and everything that happened, in order.

Events are appended and never edited; what is known, pending or failed is a function of them. An event is on disk before
the call that adds it returns, and one process at a time adds events, so that no candidate is given out twice. This
module needs nothing but the standard library: `dkaf tell` answers before NumPy is there.
"""

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from dkaf.errors import BusyError, DamagedError, InputError, NoRoomError
from dkaf.files import check_writable, flush_folder

APPLICATION = 0x646B6166  # "dkaf", where SQLite keeps who wrote a file
VERSION = 1
SECONDS_TO_WAIT = 60.0  # for another process that is choosing

_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value BLOB NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE candidates (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE blocks (first INTEGER PRIMARY KEY, columns BLOB NOT NULL, features BLOB NOT NULL);
CREATE TABLE events (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, row INTEGER NOT NULL, value REAL, of INTEGER, at TEXT NOT NULL,
    who TEXT, key TEXT, digest INTEGER NOT NULL
);
"""

KNOWN, ASKED, TOLD, FAILED, RELEASED, UNDONE = "known", "asked", "told", "failed", "released", "undone"


class Event(NamedTuple):
    """Something that happened to a candidate."""

    number: int
    kind: str
    row: int
    value: float | None
    """Of a measurement."""
    of: int | None
    """The event that is taken back."""
    at: str
    """When, in UTC."""
    who: str | None
    """By whom, where that is known."""
    key: str | None
    """What the caller calls this action: told twice under one key, it happened once."""


class Block(NamedTuple):
    """Consecutive candidates: their columns as they came, and their features."""

    first: int
    columns: bytes
    features: bytes


class Told(NamedTuple):
    """A measurement that counts."""

    number: int
    row: int
    value: float
    at: str
    asked: bool
    """Whether the campaign had asked for the candidate before."""
    known: bool
    """Whether it was imported at creation."""
    who: str | None


@dataclass
class State:
    """What the events say."""

    told: list[Told] = field(default_factory=list)
    pending: dict[int, Event] = field(default_factory=dict)
    failed: dict[int, Event] = field(default_factory=dict)
    last: Event | None = None
    """What undo would take back."""

    def taken(self) -> set[int]:
        """Rows that are told, pending or failed."""
        return {told.row for told in self.told} | self.pending.keys() | self.failed.keys()


def state_of(events: Sequence[Event]) -> State:
    """Go through the events; what was taken back never happened."""
    undone = {event.of for event in events if event.kind == UNDONE}
    state, asked = State(), set()
    for event in events:
        if event.number in undone or event.kind == UNDONE:
            continue
        row = event.row
        if event.kind == ASKED:
            asked.add(row)
            state.pending[row] = event
            state.failed.pop(row, None)
            continue
        state.pending.pop(row, None)
        if event.kind in (KNOWN, TOLD) and event.value is not None:
            known = event.kind == KNOWN
            state.told.append(
                Told(event.number, row, event.value, event.at, row in asked and not known, known, event.who)
            )
            state.failed.pop(row, None)
        elif event.kind == FAILED:
            state.failed[row] = event
        elif event.kind == RELEASED:
            state.failed.pop(row, None)
        if event.kind != KNOWN:
            state.last = event
    return state


class Store:
    """The file of a campaign."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise InputError(f"a campaign is a file, {path} {what}; make one with dkaf campaign create")
        with self.reading() as db:
            (application,), (version,) = (
                db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
            )
            if application != APPLICATION:
                raise InputError(f"{path} is another program's SQLite file, no campaign; name one that dkaf made")
            if version != VERSION:
                raise InputError(
                    f"this version of dkaf reads campaigns of format {VERSION}, {path} has format {version}; use the "
                    "version that wrote it: dkaf export there, and dkaf campaign create --import here"
                )

    @classmethod
    def create(
        cls,
        path: Path,
        about: dict[str, bytes],
        ids: Iterable[str],
        blocks: Iterable[Block],
        known: Sequence[tuple[int, float]],
    ) -> "Store":
        """Write a new file, whole or not at all."""
        if path.exists():
            raise InputError(
                f"a campaign goes to a file of its own, {path} is there already; name another or remove it"
            )
        check_writable(path)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")  # other threads create some, too
        try:
            with contextlib.closing(sqlite3.connect(beside, isolation_level=None)) as db:
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute(f"PRAGMA user_version = {VERSION}")
                db.executescript(_TABLES)
                db.execute("BEGIN")
                db.executemany("INSERT INTO about VALUES (?, ?, ?)", ((n, v, _digest(v)) for n, v in about.items()))
                db.executemany("INSERT INTO candidates VALUES (?, ?)", enumerate(ids))
                db.executemany("INSERT INTO blocks VALUES (?, ?, ?)", blocks)
                for row, value in known:
                    cls.add(db, KNOWN, row, value)
                db.execute("COMMIT")
            with open(beside, "rb") as file:
                os.fsync(file.fileno())
            _put(beside, path)
            flush_folder(path.parent)
        except FileExistsError:
            raise InputError(f"a campaign goes to a file of its own, {path} is there already; name another") from None
        except (OSError, sqlite3.Error) as error:
            raise NoRoomError(f"the campaign {path} cannot be written: {error}; name another or make room") from error
        finally:
            for rest in (beside, Path(f"{beside}-journal")):
                with contextlib.suppress(FileNotFoundError):
                    rest.unlink()
        return cls(path)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the file."""
        with self._connected() as db:
            db.execute("BEGIN")
            yield db
            db.execute("COMMIT")

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection that alone may write; what it wrote is on disk when the block ends, and all of it or nothing."""
        with self._connected() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                if db.in_transaction:  # on a full disk SQLite has rolled back by itself
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            uri = f"{self.path.resolve().as_uri()}?mode=rw"  # never makes a file
            with contextlib.closing(
                sqlite3.connect(uri, uri=True, timeout=SECONDS_TO_WAIT, isolation_level=None)
            ) as db:
                db.execute("PRAGMA synchronous = EXTRA")
                db.execute("PRAGMA trusted_schema = OFF")
                db.execute("PRAGMA cell_size_check = ON")
                yield db
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where SQLite quotes what is damaged
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> InputError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # without what it says in particular
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return BusyError(
                f"another process has been writing to {self.path} for {SECONDS_TO_WAIT:g} seconds; try again"
            )
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return NoRoomError(
                f"the campaign {self.path} cannot be written now ({error}), and is as it was; make room on its disk"
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return InputError(
                f"the campaign {self.path} cannot be opened for writing ({error}); check its and its folder's rights"
            )
        return self.damaged(str(error))

    def damaged(self, what: str) -> DamagedError:
        """What to say of a file that is not as it was written."""
        return DamagedError(f"{self.path} is no whole campaign file ({what}); bring back a copy of it")

    def about(self, db: sqlite3.Connection, name: str) -> bytes:
        """A thing that was written at creation."""
        found = db.execute("SELECT value, digest FROM about WHERE name = ?", (name,)).fetchone()
        if found is None or not isinstance(found[0], bytes) or _digest(found[0]) != found[1]:
            raise self.damaged(f"its {name} is not as it was written")
        return found[0]

    def set_about(self, db: sqlite3.Connection, name: str, value: bytes) -> None:
        db.execute("UPDATE about SET value = ?, digest = ? WHERE name = ?", (value, _digest(value), name))

    def last_event(self, db: sqlite3.Connection) -> int:
        """Its number; 0 before anything happened."""
        return int(db.execute("SELECT max(number) FROM events").fetchone()[0] or 0)

    def events(self, db: sqlite3.Connection, known: Sequence[Event] = ()) -> list[Event]:
        """All that happened. What is known is not read again, if the last of it is there as it was."""
        columns = "SELECT number, kind, row, value, of, at, who, key, digest FROM events"
        last = known[-1] if known else None
        if last is not None:
            found = db.execute(f"{columns} WHERE number = ?", (last.number,)).fetchone()
            last = last if found is not None and Event(*found[:-1]) == last else None
        events = [] if last is None else list(known)
        for *values, digest in db.execute(f"{columns} WHERE number > ? ORDER BY number", (len(events),)):
            event = Event(*values)
            if _event_digest(event) != digest or event.number != len(events) + 1:
                raise self.damaged(f"event {len(events) + 1} is not as it was written")
            events.append(event)
        return events

    @staticmethod
    def add(
        db: sqlite3.Connection,
        kind: str,
        row: int,
        value: float | None = None,
        of: int | None = None,
        *,
        who: str | None = None,
        key: str | None = None,
    ) -> Event:
        """Append an event."""
        (last,) = db.execute("SELECT max(number) FROM events").fetchone()
        value = None if value is None else value + 0.0  # SQLite gives -0.0 back as 0.0, which is not what was digested
        event = Event((last or 0) + 1, kind, row, value, of, now(), who, key)
        db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*event, _event_digest(event)))
        return event

    def rows_of_key(self, db: sqlite3.Connection, kinds: tuple[str, ...], key: str | None) -> list[int]:
        """The rows of what was done under a key; none for no key."""
        if key is None:
            return []
        found = db.execute("SELECT kind, row FROM events WHERE key = ? ORDER BY number", (key,))
        return [int(row) for kind, row in found if kind in kinds]

    def n_candidates(self, db: sqlite3.Connection) -> int:
        return int(db.execute("SELECT count(*) FROM candidates").fetchone()[0])

    def row_of(self, db: sqlite3.Connection, candidate: str) -> int:
        """Where a candidate is in the pool."""
        found = None
        with contextlib.suppress(UnicodeEncodeError):  # bytes of the shell that are no text: no candidate is called so
            found = db.execute("SELECT row FROM candidates WHERE id = ?", (candidate.strip(),)).fetchone()
        if found is None:
            some = [id_ for (id_,) in db.execute("SELECT id FROM candidates ORDER BY row LIMIT 3")]
            raise InputError(
                f"an id names a candidate of the pool, {candidate!r} names none in {self.path}; they look like "
                f"{', '.join(map(repr, some))}"
            )
        return int(found[0])

    def id_of(self, db: sqlite3.Connection, row: int) -> str:
        found = db.execute("SELECT id FROM candidates WHERE row = ?", (row,)).fetchone()
        if found is None or not isinstance(found[0], str):
            raise self.damaged(f"candidate {row} is missing")
        return found[0]

    def first_of(self, db: sqlite3.Connection, row: int) -> int:
        """The first row of the block that has a row."""
        found = db.execute("SELECT max(first) FROM blocks WHERE first <= ?", (row,)).fetchone()[0]
        if not isinstance(found, int):
            raise self.damaged(f"candidate {row} is missing")
        return found

    def blocks(self, db: sqlite3.Connection, row: int | None = None) -> Iterator[Block]:
        """All blocks, or the one that has a row."""
        if row is None:
            found = db.execute("SELECT first, columns, features FROM blocks ORDER BY first")
        else:
            found = db.execute(
                "SELECT first, columns, features FROM blocks WHERE first <= ? ORDER BY first DESC LIMIT 1", (row,)
            )
        for first, columns, features in found:
            if not (isinstance(first, int) and isinstance(columns, bytes) and isinstance(features, bytes)):
                raise self.damaged("a block of candidates is not as it was written")
            yield Block(first, columns, features)


def _put(beside: Path, path: Path) -> None:
    """Under its name; a file that came there in between stays."""
    try:
        os.link(beside, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        beside.rename(path)


def is_sqlite(path: Path) -> bool:
    """Whether a file begins as SQLite's do."""
    try:
        with open(path, "rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _digest(value: bytes) -> str:
    return hashlib.blake2b(value, digest_size=16).hexdigest()


def _event_digest(event: Event) -> int:
    return zlib.crc32(json.dumps(event, default=repr).encode())
