"""Who listens: how many at once, with whose token, and until when; and how secrets are compared."""

import contextlib
import hmac
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import campaigns
import pytest
from services import Local, Service, serving

pytest.importorskip("fastapi", reason="needs the extra dkaf[serve]")

from dkaf.service.api import LISTENERS
from dkaf.service.app import create_app
from dkaf.service.tokens import Tokens, _digest

EVENTS = b"GET /api/campaigns/screen/events HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n\r\n"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    folder = tmp_path_factory.mktemp("listeners") / "data"
    folder.mkdir()
    return Tokens(folder)


@pytest.fixture(scope="module")
def operator(tokens: Tokens) -> str:
    return tokens.create("anna", "operator")


@pytest.fixture(scope="module")
def service(tokens: Tokens, operator: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    pool = tmp_path_factory.mktemp("pools") / "pool.csv"
    campaigns.pool(pool)
    with serving(tokens._path.parent, "--rate", "1000") as running:
        client = running.client(operator)
        client.create("screen", client.upload(pool)["upload"], id="loaf")
        yield running
        assert "Traceback" not in running.log()


def listen(service: Service, header: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=30)
    connection.sendall(EVENTS % header.encode())
    return connection


def status(connection: socket.socket) -> int:
    return int(connection.recv(4096).split()[1])


def ends(connection: socket.socket, seconds: float = 10) -> bool:
    """Whether a stream ends by itself, soon after it was last heard of."""
    connection.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        while connection.recv(65536):
            pass
        return True
    return False


def test_so_many_listen_and_no_more_until_one_goes_away(service: Service, operator: str) -> None:
    bearer = f"Authorization: Bearer {operator}"
    listening = [listen(service, bearer) for _ in range(LISTENERS)]
    assert {status(connection) for connection in listening} == {200}
    with listen(service, bearer) as refused:
        answer = refused.recv(4096)
        assert answer.split()[1] == b"429"
        assert b"retry-after: 10" in answer.lower()
    listening.pop().close()
    until = time.monotonic() + 20
    while True:
        last = listen(service, bearer)
        if status(last) == 200 or time.monotonic() > until:
            break
        last.close()
        time.sleep(0.1)
    assert time.monotonic() < until
    assert service.client(operator).status("screen")["left"] is None  # meanwhile the others are served
    with listen(service, bearer) as refused:
        assert status(refused) == 429
    for connection in [*listening, last]:
        connection.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:  # all places are free again
        again = [listen(service, bearer) for _ in range(20)]
        answers = [status(connection) for connection in again]
        for connection in again:
            connection.close()
        if answers == [200] * 20:
            break
    assert answers == [200] * 20


def test_every_listener_is_asked_who_it_is_at_first_and_from_then_on(service: Service, tokens: Tokens) -> None:
    for header in ("X-Nothing: 1", "Authorization: Bearer wrong"):
        with listen(service, header) as stranger:
            assert status(stranger) == 401
    viewer, other = tokens.create("eye", "viewer"), tokens.create("other", "viewer")
    with (
        listen(service, f"Authorization: Bearer {viewer}") as one,
        listen(service, f"Authorization: Bearer {other}") as two,
    ):
        assert (status(one), status(two)) == (200, 200)
        tokens.revoke("eye")
        assert ends(one)
        assert not ends(two, seconds=2)  # it has a token of its own


def test_a_browser_that_logs_out_listens_no_longer(service: Service, operator: str) -> None:
    login = b'{"token": "%s"}' % operator.encode()
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(
            b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(login), login)
        )
        cookie = connection.recv(4096).split(b"dkaf_session=")[1].split(b";")[0].decode()
        with listen(service, f"Cookie: dkaf_session={cookie}") as stream:
            assert status(stream) == 200
            head = f"DELETE /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: dkaf_session={cookie}\r\n\r\n"
            connection.sendall(head.encode())
            assert ends(stream)


def test_a_secret_is_compared_in_constant_time_with_every_token_and_nothing_else_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(tmp_path)
    secrets = [tokens.create(name, "operator") for name in ("a", "b", "c")]
    compared: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def spy(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr("dkaf.service.tokens.hmac.compare_digest", spy)
    for secret in (*secrets, "wrong", ""):
        compared.clear()
        assert (tokens.of(secret) is not None) == (secret in secrets)
        assert compared == [(token.digest, _digest(secret)) for token in tokens.all()]  # hashes, also after a hit
    monkeypatch.setattr("dkaf.service.tokens.hmac.compare_digest", lambda one, other: False)
    assert all(tokens.of(secret) is None for secret in secrets)


def test_what_a_page_shows_beside_its_cookie_is_compared_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    token = Tokens(tmp_path / "data").create("anna", "operator")
    page = Local(create_app(tmp_path / "data"), "http://127.0.0.1")
    csrf = page.post("/api/session", json={"token": token}).json()["csrf"]
    assert page.post("/api/campaigns/x/undo", json={}, headers={"X-CSRF-Token": csrf}).status_code == 404
    monkeypatch.setattr("dkaf.service.auth.hmac.compare_digest", lambda one, other: False)
    assert page.post("/api/campaigns/x/undo", json={}, headers={"X-CSRF-Token": csrf}).status_code == 403
