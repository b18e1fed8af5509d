"""The guard before every route: who asks, what they may do, how much and how often; and headers on every answer.

It stands before the body is read: who has no token cannot make the service read one. A new route is closed to
everybody without a token, and to viewers if it changes something, without a word of its own.
"""

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dkaf.errors import InputError
from dkaf.service.problems import MEDIA_TYPE, Refusal, problem_bytes, status_of
from dkaf.service.tokens import OPERATOR, Caller, Sessions, Token, Tokens, csrf_of, is_loopback

COOKIE = "dkaf_session"
READING = ("GET", "HEAD", "OPTIONS")
SESSION, UPLOADS = "/api/session", "/api/uploads"
LOCAL = Caller("local", OPERATOR, None)
MOST_BUCKETS = 10_000
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
log = logging.getLogger("dkaf.service")


@dataclass(frozen=True)
class Limits:
    """How much and how often."""

    rate: float = 100.0
    """Requests a second of one token, in the long run."""
    burst: float = 500.0
    """Requests at once."""
    tries: float = 20.0
    """Wrong tokens of one address at once; then one in a second."""
    body: int = 8 << 20
    """Bytes of a JSON body."""
    login: int = 4 << 10
    """Bytes of a body that comes without a token."""
    upload: int = 256 << 20
    """Bytes of an upload."""
    seconds: float = 60.0
    """Between two pieces of a body."""
    headers: float = 10.0
    """Seconds in which the headers of a request come."""


class Buckets:
    """A bucket of allowances for each name, filled at a steady rate; the oldest names are forgotten."""

    def __init__(self, rate: float, size: float) -> None:
        self._rate, self._size = rate, size
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def left(self, name: str) -> float:
        """How much a name has left."""
        left, at = self._left.get(name, (self._size, 0.0))
        return min(self._size, left + (time.monotonic() - at) * self._rate)

    def take(self, name: str) -> bool:
        """Whether there was one left, which is then taken."""
        left = self.left(name)
        enough = left >= 1.0
        self._left[name] = (left - enough, time.monotonic())
        self._left.move_to_end(name)
        while len(self._left) > MOST_BUCKETS:
            self._left.popitem(last=False)
        return enough


class Guard:
    """What stands between the network and the routes."""

    def __init__(self, app: ASGIApp, folder: Path, limits: Limits, *, local: bool = True) -> None:
        """`local`: other machines cannot reach it, so that it may be used without tokens."""
        self.app, self.limits, self._local = app, limits, local
        self.tokens, self.sessions = Tokens(folder), Sessions(folder)
        self._requests = Buckets(limits.rate, limits.burst)
        self._wrong = Buckets(1.0, limits.tries)

    @property
    def _needs_tokens(self) -> bool:
        return not self._local or self.tokens.needed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        begun = False

        async def guarded_send(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-cache" if _is_page(scope["path"]) else "no-store")
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_origin(scope, headers)
            limit = self._limit(scope["path"])
            if not _is_page(scope["path"]):
                caller = self._caller(scope, headers)
                scope["state"] = {**scope.get("state", {}), "caller": caller, "guard": self}
                self._check_may(scope, headers, caller)
            _check_length(headers, limit)
            await self.app(scope, self._counted(receive, limit), guarded_send)
        except InputError as error:
            status, more = status_of(error)
            if begun:
                raise
            await _send_problem(guarded_send, status, str(error), more)
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"].encode("ascii", "backslashreplace").decode())
            if begun:
                raise
            await _send_problem(guarded_send, 500, "something is wrong with the service, not with the request", {})

    def _limit(self, path: str) -> int:
        """Bytes of a body: who has shown no token sends one, and no more."""
        if path == UPLOADS:
            return self.limits.upload
        return self.limits.login if path == SESSION or _is_page(path) else self.limits.body

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """No other site's page uses this service, by whatever name it calls this machine."""
        host = headers.get("host", "")
        if not self._needs_tokens:
            if not is_loopback(_hostname(host)) or not is_loopback(_address(scope)):
                raise Refusal(
                    403,
                    "a service without tokens answers to localhost, the request names another host or comes from one; "
                    "use http://127.0.0.1, or make a token: dkaf token create",
                )
            if any(name in headers for name in ("x-forwarded-for", "forwarded", "x-real-ip")):
                raise Refusal(403, "a service behind a proxy needs tokens, it has none; make one: dkaf token create")
        if scope["method"] not in READING:
            origin = headers.get("origin")
            foreign = origin is not None and urlsplit_netloc(origin) != host.lower()
            if foreign or headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                raise Refusal(403, "changes are made from the service's own page, this comes from another site's")

    def _caller(self, scope: Scope, headers: Headers) -> Caller | None:
        """Who asks; None: somebody who wants to log in."""
        if not self._needs_tokens:
            return LOCAL
        address = _address(scope)
        if scope["path"] == SESSION:
            return None
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme:
            token = self._shown(secret.strip() if scheme.lower() == "bearer" else "", address)
            return Caller(token.name, token.role, token.digest)
        session = cookie_of(headers)
        if session is None:
            raise _unknown("the request has none")
        behind = self.sessions.token_of(session, self.tokens)
        if behind is None:
            raise _unknown("the session is over")
        return Caller(behind.name, behind.role, behind.digest, session)

    def _shown(self, secret: str, address: str) -> Token:
        """The token that was shown. An address that shows wrong ones is slowed down; right ones it may show always."""
        token = self.tokens.of(secret)
        if token is not None:
            return token
        if not self._wrong.take(address):
            raise Refusal(429, "too many wrong tokens came from this address; wait a minute", {"retry-after": "60"})
        raise _unknown("the token is wrong or was revoked")

    def log_in(self, secret: str, address: str) -> str:
        """Exchange a token for the secret of a session."""
        token = self._shown(secret, address)
        self._check_rate(token.digest)
        return self.sessions.begin(token)

    def still(self, caller: Caller) -> bool:
        """Whether a caller of a while ago may still read."""
        if caller.digest is None:
            return not self._needs_tokens
        if caller.session is not None:
            return self.sessions.token_of(caller.session, self.tokens) is not None
        return any(token.digest == caller.digest for token in self.tokens.all())

    def _check_may(self, scope: Scope, headers: Headers, caller: Caller | None) -> None:
        if caller is None:
            return
        self._check_rate(caller.digest or caller.name)
        if scope["method"] in READING or scope["path"] == SESSION:
            return
        if caller.role != OPERATOR:
            raise Refusal(403, f"viewers read, {caller.name!r} is one and this changes something; ask an operator")
        if caller.session is not None:
            sent = headers.get("x-csrf-token", "").encode("latin-1", "replace")
            if not hmac.compare_digest(csrf_of(caller.session).encode(), sent):
                raise Refusal(403, "a page sends X-CSRF-Token with what changes something, it is missing; log in again")

    def _check_rate(self, name: str) -> None:
        if not self._requests.take(name):
            raise Refusal(
                429,
                f"a token makes {self.limits.rate:g} requests a second in the long run, there were more; wait a second",
                {"retry-after": "1"},
            )

    def _counted(self, receive: Receive, limit: int) -> Receive:
        """The body, piece by piece, within its limits. HTTPException, since FastAPI hides others behind a 400."""
        seen, whole = 0, False

        async def counted() -> Message:
            nonlocal seen, whole
            if whole:  # what comes now is that the client has gone, at any time
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self.limits.seconds)
            except TimeoutError:
                raise HTTPException(
                    408, f"a body comes within {self.limits.seconds:g} seconds; send it again"
                ) from None
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if seen > limit:
                    raise HTTPException(413, _too_large(limit))
            return message

        return counted


def _check_length(headers: Headers, limit: int) -> None:
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise Refusal(413, _too_large(limit), {"connection": "close"})


def _too_large(limit: int) -> str:
    return f"a body here has at most {limit} bytes, more came; send less at once"


def _unknown(what: str) -> Refusal:
    return Refusal(
        401, f"this service needs a token, {what}; make one with dkaf token create", {"www-authenticate": "Bearer"}
    )


async def _send_problem(send: Send, status: int, detail: str, headers: dict[str, str]) -> None:
    body = problem_bytes(status, detail)
    sent: dict[str, str] = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **headers}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def cookie_of(headers: Headers) -> str | None:
    """The session's secret that a browser sends."""
    try:
        found: Any = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else str(found.value)


def urlsplit_netloc(origin: str) -> str:
    """Host and port of an origin; empty where it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("?", 0))[0])


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_page(path: str) -> bool:
    """The page itself, which asks for the token."""
    return path == "/" or path.startswith("/static/")
