"""A campaign that runs on another machine: what `dkaf serve` offers, from Python, with the standard library alone.

What changes something carries a key, so that a request whose answer was lost is sent again and happens once.
"""

import json
import os
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any, SupportsFloat, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from dkaf.errors import InputError

PIECE = 1 << 16  # bytes of an upload at once
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ServiceError(InputError):
    """What the service said when it refused; `status` is HTTP's."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """The service at an address.

    >>> import dkaf
    >>> service = dkaf.Client("http://127.0.0.1:8765", token="...")  # doctest: +SKIP
    >>> pool = service.upload("library.csv")["upload"]  # doctest: +SKIP
    >>> service.create("screen", pool, "gp", id="smiles", budget=20)  # doctest: +SKIP
    >>> for candidate in service.ask("screen", 2):  # doctest: +SKIP
    ...     service.tell("screen", candidate["id"], measure(candidate["columns"]))

    `token` is what `dkaf token create` showed; a service of this machine alone needs none. A request is given `timeout`
    seconds, and sent again up to `retries` times where no answer came.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        timeout: float = 120.0,
        retries: int = 3,
        context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"a service's address is like http://127.0.0.1:8765, {address!r} came; correct it")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InputError("a token is what dkaf token create showed, other characters came; copy it again")
        self._address, self._token = address.rstrip("/"), token
        self._timeout, self._retries = timeout, retries
        self._opener = _opener(parts.hostname, context)

    def __repr__(self) -> str:
        return f"Client({self._address!r})"

    def about(self) -> dict[str, Any]:
        """Which version the service is, and what this client may do."""
        return cast("dict[str, Any]", self._call("GET", "/api/about"))

    def campaigns(self) -> list[dict[str, Any]]:
        """Every campaign in a few words."""
        return cast("list[dict[str, Any]]", self._call("GET", "/api/campaigns"))

    def upload(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Send a pool or a policy; what a pool is called from now on is `["upload"]`."""
        path = Path(path)
        boundary = uuid.uuid4().hex
        filename = path.name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        try:
            size = path.stat().st_size
            open(path, "rb").close()
        except OSError as error:
            raise InputError(f"an upload is a file, {path} cannot be read: {error.strerror}; correct it") from error

        def body() -> Iterator[bytes]:
            yield head
            with open(path, "rb") as file:
                while piece := file.read(PIECE):
                    yield piece
            yield tail

        headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(head) + size + len(tail)),
        }
        for tries_left in range(self._retries, -1, -1):  # kept twice, a pool has two names, and one is used
            try:
                with self._open("POST", "/api/uploads", body(), headers) as answer:
                    return cast("dict[str, Any]", json.loads(answer.read()))
            except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
                limit = int(self.about()["upload_limit"])  # who closes the door in the middle has a reason
                if size > limit:
                    sentence = f"an upload has at most {limit} bytes, {path} has {size}; send less, or raise"
                    raise ServiceError(413, f"{sentence} --upload-limit") from error
                if not tries_left:
                    raise InputError(f"{self._address} gives no answer ({error}); send {path} again") from error
        raise AssertionError

    def create(
        self,
        name: str,
        pool: str,
        policy: str = "gp",
        *,
        id: str | None = None,  # noqa: A002 - what the user calls it
        response: str | None = None,
        budget: int | None = None,
        minimise: bool | None = None,
        kinds: Mapping[str, str] | None = None,
        impute: bool = False,
        known: bool = False,
        delimiter: str | None = None,
        encoding: str | None = None,
        seed: int = 0,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Begin a campaign on an uploaded pool; where it is.

        `known`: the values that the pool has in its column `response` are taken over as measurements. The pool is read
        with the `delimiter` and `encoding` that `upload` found and says, unless others are passed.
        """
        body = {
            "name": name, "pool": pool, "policy": policy, "id": id, "response": response, "budget": budget,
            "minimise": minimise, "kinds": dict(kinds or {}), "impute": impute, "known": known,
            "delimiter": delimiter, "encoding": encoding, "seed": seed, "key": key or uuid.uuid4().hex,
        }  # fmt: skip
        return cast("dict[str, Any]", self._call("POST", "/api/campaigns", body))

    def status(self, campaign: str) -> dict[str, Any]:
        """Best so far, history, pending, what is left."""
        return cast("dict[str, Any]", self._call("GET", _at(campaign)))

    def ask(
        self, campaign: str, n: int = 1, *, ignore_pool_file: bool = False, request_id: str | None = None
    ) -> list[dict[str, Any]]:
        """The candidates to try next; they stay reserved until told, failed or released."""
        body: dict[str, Any] = {"n": n, "request_id": request_id or uuid.uuid4().hex}
        if ignore_pool_file:
            body["ignore_pool_file"] = True
        return cast("list[dict[str, Any]]", self._call("POST", _at(campaign, "ask"), body))

    def tell(
        self,
        campaign: str,
        id: str,  # noqa: A002
        value: SupportsFloat | str,
        *,
        key: str | None = None,
    ) -> dict[str, Any]:
        """What a candidate gave; it is on the service's disk when this returns."""
        return self.tell_all(campaign, [(id, value)], key=key)

    def tell_all(
        self,
        campaign: str,
        measurements: Sequence[tuple[str, SupportsFloat | str]],
        *,
        failed: Sequence[str] = (),
        key: str | None = None,
    ) -> dict[str, Any]:
        """Several measurements, and candidates that failed, all of them or none."""
        told: list[dict[str, Any]] = [
            {"id": id_, "value": value if isinstance(value, str) else float(value)} for id_, value in measurements
        ]
        told += [{"id": id_, "failed": True} for id_ in failed]
        body = {"measurements": told, "key": key or uuid.uuid4().hex}
        return cast("dict[str, Any]", self._call("POST", _at(campaign, "tell"), body))

    def fail(self, campaign: str, id: str, *, key: str | None = None) -> dict[str, Any]:  # noqa: A002
        """A candidate could not be measured."""
        return self.tell_all(campaign, [], failed=[id], key=key)

    def release(self, campaign: str, id: str, *, key: str | None = None) -> dict[str, Any]:  # noqa: A002
        """A candidate that is pending or failed may be asked for again."""
        body = {"id": id, "key": key or uuid.uuid4().hex}
        return cast("dict[str, Any]", self._call("POST", _at(campaign, "release"), body))

    def undo(self, campaign: str, *, key: str | None = None) -> dict[str, Any]:
        """Take back the last measurement, failure or release; what it was."""
        return cast("dict[str, Any]", self._call("POST", _at(campaign, "undo"), {"key": key or uuid.uuid4().hex}))

    def candidate(self, campaign: str, id: str) -> dict[str, Any]:  # noqa: A002
        """Why this candidate: what is expected of it, and which measured ones are near."""
        return cast("dict[str, Any]", self._call("GET", f"{_at(campaign, 'candidates')}?{urlencode({'id': id})}"))

    def plots(self, campaign: str) -> dict[str, Any]:
        """The numbers behind the plots."""
        return cast("dict[str, Any]", self._call("GET", _at(campaign, "plots")))

    def export(self, campaign: str) -> str:
        """What was measured, is pending or failed, as CSV."""
        with self._open("GET", _at(campaign, "export.csv")) as answer:
            return cast("str", answer.read().decode())

    def events(self, campaign: str) -> Iterator[int]:
        """How much has happened, now and whenever that changes, until the service ends."""
        with self._open("GET", _at(campaign, "events")) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield int(json.loads(line[6:])["events"])

    def policies(self) -> list[dict[str, Any]]:
        """What each policy says of itself."""
        return cast("list[dict[str, Any]]", self._call("GET", "/api/policies"))

    def remove_policy(self, name: str) -> None:
        """Remove a policy; campaigns that began with it keep a copy of their own."""
        self._call("DELETE", f"/api/policies/{quote(name, safe='')}")

    def train(
        self,
        campaigns: Sequence[str],
        name: str,
        *,
        response: str | None = None,
        settings: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Begin to train a policy on finished campaigns; the job, which goes on by itself."""
        body = {
            "campaigns": list(campaigns), "name": name, "response": response, "settings": dict(settings or {}),
            "key": key or uuid.uuid4().hex,
        }  # fmt: skip
        return cast("dict[str, Any]", self._call("POST", "/api/jobs", body))

    def jobs(self) -> list[dict[str, Any]]:
        """All trainings, the newest first."""
        return cast("list[dict[str, Any]]", self._call("GET", "/api/jobs"))

    def job(self, job: str) -> dict[str, Any]:
        """How far a training is."""
        return cast("dict[str, Any]", self._call("GET", f"/api/jobs/{quote(job, safe='')}"))

    def cancel(self, job: str) -> dict[str, Any]:
        """End a training."""
        return cast("dict[str, Any]", self._call("DELETE", f"/api/jobs/{quote(job, safe='')}"))

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """One JSON request, sent again where no answer came, since twice is once."""
        data = None if body is None else json.dumps(body).encode()
        for tries_left in range(self._retries, -1, -1):
            try:
                with self._open(method, path, data, {"Content-Type": "application/json"} if data else {}) as answer:
                    return json.loads(answer.read())
            except (URLError, HTTPException, ConnectionError, TimeoutError, ValueError) as error:
                if isinstance(error, InputError):
                    raise
                if not tries_left:
                    raise InputError(f"{self._address} gives no answer ({error}); is the service running?") from error
                time.sleep(0.2 * 2 ** (self._retries - tries_left))
        raise AssertionError

    def _open(self, method: str, path: str, data: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        request = Request(self._address + path, data, dict(headers or {}), method=method)
        if self._token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            return self._opener.open(request, timeout=self._timeout)
        except HTTPError as error:
            with error:
                raise ServiceError(error.code, _sentence(error)) from None


class _NoRedirects(HTTPRedirectHandler):
    """The service sends nobody elsewhere, and a token goes nowhere else."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        return None


def _opener(host: str, context: ssl.SSLContext | None) -> OpenerDirector:
    handlers: list[Any] = [_NoRedirects()]
    if host in LOOPBACK:
        handlers.append(ProxyHandler({}))  # a proxy does not reach this machine's own services
    if context is not None:
        handlers.append(HTTPSHandler(context=context))
    return build_opener(*handlers)


def _sentence(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read(PIECE))["detail"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"the service answered {error.code} {error.reason}"


def _at(campaign: str, *rest: str) -> str:
    return "/".join(["/api/campaigns", quote(campaign, safe=""), *rest])
