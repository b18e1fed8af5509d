"""Who may use a service: tokens and the sessions of browsers, kept as hashes in files that only their owner reads.

Where `tokens.json` exists, a token is needed, also when the last one was revoked: taking the last one back never opens
the service to everybody. The standard library and a file lock are enough: `dkaf token` answers at once.
"""

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from dkaf.errors import InputError
from dkaf.files import whole_file

VIEWER, OPERATOR = "viewer", "operator"
ROLES = (VIEWER, OPERATOR)
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
SESSION_SECONDS = 12 * 3600
MOST_SESSIONS = 20  # of a token


class Token(NamedTuple):
    """What is kept of a token."""

    name: str
    role: str
    digest: str
    created: str


class Caller(NamedTuple):
    """Who a request is from."""

    name: str
    role: str
    digest: str | None
    """Of the token; None where none is needed."""
    session: str | None = None
    """Of a browser, which has to show that its page made the request."""


class Tokens:
    """The tokens of a data folder; another process may add and revoke some at any time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tokens.json"
        self._read: tuple[tuple[int, int, int], list[Token]] | None = None
        self._needed = False

    @property
    def needed(self) -> bool:
        """Whether requests need one. A file that goes away while the service runs does not open it."""
        self._needed = self._needed or self._path.exists()
        return self._needed

    def all(self) -> list[Token]:
        """Those that hold now."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._read is None or self._read[0] != seen:
                self._read = seen, [Token(**each) for each in json.loads(self._path.read_bytes())]
            return self._read[1]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{self._path} is not as dkaf token wrote it ({error}); bring back a copy") from error

    def create(self, name: str, role: str) -> str:
        """A new token: this is the only time that it is seen."""
        if not NAME.fullmatch(name):
            raise InputError(f"a token's name is 1 to 64 letters, digits, - and _, {name!r} came; choose another")
        if role not in ROLES:
            raise InputError(f"a role is {' or '.join(ROLES)}, {role!r} came; choose one")
        with self._changing() as tokens:
            if any(token.name == name for token in tokens):
                raise InputError(f"tokens have names of their own, {name!r} is there; revoke it first, or name another")
            secret = secrets.token_urlsafe(32)
            tokens.append(Token(name, role, _digest(secret), datetime.now(UTC).isoformat(timespec="seconds")))
        return secret

    def revoke(self, name: str) -> None:
        """Take a token back; a running service refuses it, and its sessions, from now on."""
        with self._changing() as tokens:
            kept = [token for token in tokens if token.name != name]
            if len(kept) == len(tokens):
                names = ", ".join(repr(token.name) for token in tokens) or "none"
                raise InputError(f"a token of {self._path} is revoked by its name, {name!r} is none; there are {names}")
            tokens[:] = kept

    def of(self, secret: str) -> Token | None:
        """Whose it is. All are compared, each in constant time."""
        digest, found = _digest(secret), None
        for token in self.all():
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        from filelock import FileLock

        if not self._path.parent.is_dir():
            raise InputError(f"tokens are kept in a service's folder, {self._path.parent} is none; make it")
        with FileLock(self._path.with_name(".tokens.lock")):
            tokens = list(self.all())
            yield tokens
            write_private(self._path, [token._asdict() for token in tokens])


class Sessions:
    """Browsers that showed a token. They outlive the process, end with their token, and are kept as hashes too."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sessions.json"
        self._lock = threading.Lock()
        try:
            read = json.loads(self._path.read_bytes())
            self._known: dict[str, dict[str, Any]] = {str(key): dict(value) for key, value in read.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._known = {}  # people show their tokens again

    def begin(self, token: Token) -> str:
        """The secret that the browser keeps as a cookie."""
        secret = secrets.token_urlsafe(32)
        with self._lock:
            now = time.time()
            self._known = {key: value for key, value in self._known.items() if value.get("until", 0) > now}
            same = [key for key, value in self._known.items() if value.get("token") == token.digest]
            for key in same[: max(0, len(same) - MOST_SESSIONS + 1)]:
                del self._known[key]  # the oldest of this token; nobody else's
            self._known[_digest(secret)] = {"token": token.digest, "until": now + SESSION_SECONDS}
            write_private(self._path, self._known)
        return secret

    def end(self, secret: str) -> None:
        """Log out."""
        with self._lock:
            if self._known.pop(_digest(secret), None) is not None:
                write_private(self._path, self._known)

    def token_of(self, secret: str, tokens: Tokens) -> Token | None:
        """Who is behind a cookie; nobody when the time is over or the token was revoked."""
        session = self._known.get(_digest(secret))
        if session is None or session.get("until", 0) < time.time():
            return None
        return next((token for token in tokens.all() if token.digest == session.get("token")), None)


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, for itself only."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(folder: Path, host: str) -> None:
    """Other machines need tokens, so there has to be one."""
    tokens = Tokens(folder)
    if tokens.all() or (is_loopback(host) and not tokens.needed):
        return
    rule = "where tokens.json is" if is_loopback(host) else f"where other machines reach a service (--host {host})"
    raise InputError(
        f"{rule}, a token is needed, {folder} has none; make one: dkaf token create NAME --role operator --data "
        f"{folder}"
    )


def csrf_of(session: str) -> str:
    """What a page has to send beside its cookie: another site cannot read it."""
    return hmac.new(session.encode(), b"dkaf csrf", hashlib.sha256).hexdigest()


def write_private(path: Path, value: Any) -> None:
    """JSON, whole or not at all, that only the owner reads."""
    with whole_file(path, 0o600) as file:
        file.write(json.dumps(value).encode())


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
