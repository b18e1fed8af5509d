"""Who may do what: every route by everybody, and what else a stranger might try."""

import asyncio
import json
import re
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import campaigns
import pytest
import scenes
from services import Local, serving

import dkaf
from dkaf.cli import main
from dkaf.client import ServiceError

pytest.importorskip("fastapi", reason="needs the extra dkaf[serve]")

from starlette.routing import Mount, Route

from dkaf.service.app import create_app
from dkaf.service.auth import Buckets, Guard, Limits
from dkaf.service.tokens import Caller, Tokens, check_host

OPEN = {("GET", "/"), ("GET", "/static"), ("POST", "/api/session"), ("DELETE", "/api/session")}
"""What needs no token: the page, which asks for one, and where it is exchanged for a cookie."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def at(app: Any, token: str | None = None, **headers: str) -> Local:
    """A client that would see an exception of the service."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return Local(app, "http://127.0.0.1", headers)


def everything(app: Any) -> Iterator[tuple[str, str]]:
    """Every method of every route."""
    routes = list(app.routes)
    while routes:
        route = routes.pop()
        inside = getattr(route, "routes", None) if not isinstance(route, Mount) else None
        if isinstance(route, Mount):
            yield "GET", route.path
        elif isinstance(route, Route) or hasattr(route, "methods"):
            for method in (route.methods or set()) - {"HEAD"}:
                yield method, route.path
        else:
            included = inside or getattr(getattr(route, "original_router", None), "routes", None)
            assert included, f"a kind of route that this test does not know: {route!r}"
            routes += included


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)[^}]*\}", lambda match: "1" if match[1] in ("row", "game", "candidate") else "x", path)


def test_the_walk_sees_the_routes_that_the_description_has(folder: Path) -> None:
    app = create_app(folder, scene=scenes.scene())
    described = {(m.upper(), path) for path, methods in app.openapi()["paths"].items() for m in methods}
    assert described <= set(everything(app))
    assert len(described) > 20
    assert {("GET", "/api/demo"), ("GET", "/api/demo/games/{game}/race")} <= set(everything(app))


def test_every_route_is_closed_to_strangers_and_what_changes_something_to_viewers(folder: Path) -> None:
    tokens = Tokens(folder)
    operator, viewer, revoked = (
        tokens.create(n, r) for n, r in (("o", "operator"), ("v", "viewer"), ("r", "operator"))
    )
    tokens.revoke("r")
    app = create_app(folder, Limits(tries=1e6), scenes.scene())
    for method, path in everything(app):
        url, is_open = filled(path), (method, path) in OPEN
        for who in (None, revoked, "wrong", "", operator[:-1], operator + "x", "ä"):
            headers = {} if who is None else {"Authorization": f"Bearer {who}".encode()}
            answer = at(app).request(method, url, headers=headers)  # type: ignore[arg-type]
            assert is_open or answer.status_code == 401, (method, url, who, answer.status_code)
            if answer.status_code == 401:
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["status"] == 401
        for scheme in (f"Basic {operator}", operator, f"Bearer {operator} {operator}"):
            answer = at(app).request(method, url, headers={"Authorization": scheme})
            assert is_open or answer.status_code == 401, (method, url, scheme)
        answer = at(app, viewer).request(method, url, json={})
        if not is_open:
            assert (answer.status_code == 403) == (method != "GET"), (method, url, answer.status_code)
        answer = at(app, operator).request(method, url, json={})
        assert answer.status_code not in (401, 403) or (method, path) == ("POST", "/api/session"), (method, url)
        assert answer.status_code < 500


def test_every_answer_has_the_security_headers(folder: Path) -> None:
    token = Tokens(folder).create("o", "operator")
    app = create_app(folder)
    for who, path in (
        (token, "/api/campaigns"),
        (None, "/api/campaigns"),
        (token, "/nothing"),
        (None, "/"),
        (token, "/docs"),
    ):
        headers = at(app, who).get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "server" not in headers


def test_without_tokens_this_machine_alone_is_an_operator(folder: Path) -> None:
    app = create_app(folder)
    assert at(app).get("/api/about").json()["role"] == "operator"
    for host in ("localhost:8765", "127.0.0.1:1", "[::1]:8765", "127.8.0.1"):
        assert at(app, Host=host).get("/api/about").status_code == 200, host
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "",
        "[",
        "0.0.0.0",
        "x@127.0.0.2.e",
    ):
        assert at(app, Host=host).get("/api/about").status_code == 403, host
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        assert at(app, **{name: "127.0.0.1"}).get("/api/about").status_code == 403
    assert Local(app, "http://127.0.0.1", client="10.0.0.7").get("/api/about").status_code == 403


def test_a_token_file_that_goes_away_opens_nothing(folder: Path) -> None:
    token = Tokens(folder).create("o", "operator")
    app = create_app(folder)
    assert at(app, token).get("/api/about").status_code == 200
    (folder / "tokens.json").rename(folder / "elsewhere.json")
    assert at(app).get("/api/about").status_code == 401
    assert at(app, token).get("/api/about").status_code == 401
    assert at(create_app(folder)).get("/api/about").status_code == 200
    assert at(create_app(folder, local=False)).get("/api/about").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:9"}, {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
)  # fmt: skip
def test_another_sites_page_changes_nothing_even_without_tokens(folder: Path, headers: dict[str, str]) -> None:
    app = create_app(folder)
    for path in ("/api/campaigns", "/api/uploads", "/api/campaigns/x/undo"):
        assert at(app, **headers).post(path, json={}).status_code == 403
    assert at(app, Origin="http://127.0.0.1").post("/api/campaigns/x/undo", json={}).status_code == 404


def test_a_page_exchanges_its_token_for_a_cookie_and_shows_that_it_is_the_page(folder: Path) -> None:
    tokens = Tokens(folder)
    token = tokens.create("anna", "operator")
    app = create_app(folder)
    assert at(app).post("/api/session", json={"token": "wrong"}).status_code == 401
    page = at(app)
    begun = page.post("/api/session", json={"token": token})
    cookie = SimpleCookie(begun.headers["set-cookie"])["dkaf_session"]
    assert cookie["httponly"]
    assert cookie["samesite"].lower() == "strict"
    assert token not in begun.headers["set-cookie"]
    csrf = {"X-CSRF-Token": begun.json()["csrf"]}
    about = page.get("/api/about").json()
    assert (about["name"], about["csrf"]) == ("anna", csrf["X-CSRF-Token"])
    change = "/api/campaigns/x/undo"
    assert page.post(change, json={}).status_code == 403
    assert page.post(change, json={}, headers={"X-CSRF-Token": "wrong"}).status_code == 403
    assert page.post(change, json={}, headers=csrf).status_code == 404
    again = at(create_app(folder))  # the service was started again
    again.cookies.set("dkaf_session", cookie.value)
    assert again.post(change, json={}, headers=csrf).status_code == 404
    assert page.delete("/api/session").status_code == 200
    page.cookies.set("dkaf_session", cookie.value)  # kept by somebody
    assert page.get("/api/about").status_code == 401
    tokens.revoke("anna")
    assert again.get("/api/about").status_code == 401
    secure = Local(app, "https://lab.example")
    other = tokens.create("anna", "viewer")
    assert "Secure" in secure.post("/api/session", json={"token": other}).headers["set-cookie"]
    assert again.get("/api/about").status_code == 401  # the new token of that name is another one


def test_tokens_and_sessions_are_kept_as_hashes_that_only_the_owner_reads(folder: Path) -> None:
    token = Tokens(folder).create("anna", "operator")
    assert len(token) >= 43  # 32 bytes
    session = at(create_app(folder)).post("/api/session", json={"token": token}).cookies["dkaf_session"]
    for path in (folder / "tokens.json", folder / "sessions.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert token not in path.read_text()
        assert session not in path.read_text()
    (kept,) = json.loads((folder / "tokens.json").read_text())
    assert kept.keys() == {"name", "role", "digest", "created"}


def test_the_last_token_revoked_closes_the_service_and_opens_it_to_nobody(folder: Path) -> None:
    tokens = Tokens(folder)
    token = tokens.create("only", "operator")
    app = create_app(folder)
    assert at(app, token).get("/api/about").status_code == 200
    tokens.revoke("only")
    assert at(app, token).get("/api/about").status_code == 401
    assert at(app).get("/api/about").status_code == 401


def test_who_guesses_tokens_or_asks_too_often_is_slowed_down(folder: Path) -> None:
    token = Tokens(folder).create("o", "operator")
    app = create_app(folder, Limits(rate=1.0, burst=5.0, tries=3.0))
    assert [at(app, "wrong").get("/api/about").status_code for _ in range(5)] == [401] * 3 + [429] * 2
    assert at(app).post("/api/session", json={"token": "wrong"}).status_code == 429
    assert at(app, token).get("/api/about").status_code == 200, "who guesses locks nobody else out"
    assert at(app).post("/api/session", json={"token": token}).status_code == 200
    app = create_app(folder, Limits(rate=0.01, burst=5.0))
    answers = [at(app, token).get("/api/about") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[-1].headers["retry-after"] == "1"


def test_a_bucket_fills_again() -> None:
    bucket = Buckets(rate=1e9, size=1.0)
    assert all(bucket.take("a") for _ in range(10))
    empty = Buckets(rate=0.0, size=2.0)
    assert [empty.take("a") for _ in range(3)] == [True, True, False]
    assert empty.take("b")


def test_a_body_that_does_not_come_or_is_too_large_is_given_up(folder: Path) -> None:
    async def pieces(*each: bytes) -> AsyncIterator[bytes]:
        for piece in each:
            yield piece

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(20)

    answer = at(create_app(folder, Limits(seconds=0.1))).post("/api/campaigns/x/undo", content=stuck())
    assert (answer.status_code, answer.json()["status"]) == (408, 408)
    app = create_app(folder, Limits(body=10))
    assert at(app).post("/api/campaigns/x/undo", content=pieces(b"{")).status_code in (400, 422)
    assert at(app).post("/api/campaigns/x/undo", content=pieces(*[b"1" * 6] * 3)).status_code == 413
    assert at(app).post("/api/campaigns/x/undo", content=b"1" * 11).status_code == 413


def test_an_error_of_the_service_itself_says_nothing_of_its_inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dkaf.service.shelf import Shelf

    def broken(_: Shelf) -> Any:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(Shelf, "names", broken)
    answer = at(create_app(folder)).get("/api/campaigns")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
    assert "secret inside" in caplog.text


def test_the_command_line_makes_lists_and_revokes_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path / "new")]
    assert main(["token", "create", "anna", "--role", "viewer", *data]) == 0
    token = capsys.readouterr().out.splitlines()[0]
    assert Tokens(tmp_path / "new").of(token) is not None
    assert main(["token", "create", "anna", "--role", "viewer", *data]) == 2
    assert main(["token", "create", "a b", "--role", "viewer", *data]) == 2
    capsys.readouterr()
    assert main(["token", "list", "--json", *data]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["role"]) == ("anna", "viewer")
    assert main(["token", "revoke", "bert", *data]) == 2
    assert "'anna'" in capsys.readouterr().err
    assert main(["token", "revoke", "anna", *data]) == 0
    assert Tokens(tmp_path / "new").of(token) is None


def test_other_machines_are_not_served_without_a_token(folder: Path) -> None:
    check_host(folder, "127.0.0.1")
    for host in ("0.0.0.0", "::", "192.168.1.5", "lab.example"):
        with pytest.raises(dkaf.InputError, match="dkaf token create"):
            check_host(folder, host)
    tokens = Tokens(folder)
    tokens.create("o", "operator")
    check_host(folder, "0.0.0.0")
    tokens.revoke("o")
    with pytest.raises(dkaf.InputError, match="dkaf token create"):
        check_host(folder, "127.0.0.1")


def test_a_service_for_other_machines_refuses_to_start_and_says_why(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dkaf",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--host",
        "0.0.0.0",
        "--port",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("dkaf: where other machines reach")


def test_who_told_what_is_kept_and_a_token_is_revoked_while_the_service_runs(folder: Path, tmp_path: Path) -> None:
    tokens = Tokens(folder)
    anna, bert, eye = (tokens.create(n, r) for n, r in (("anna", "operator"), ("bert", "operator"), ("eye", "viewer")))
    truth = campaigns.pool(tmp_path / "pool.csv")
    with serving(folder) as service:
        first, second, viewer = (service.client(token) for token in (anna, bert, eye))
        first.create("team", first.upload(tmp_path / "pool.csv")["upload"], id="loaf")
        first.tell("team", "l1", truth["l1"], key="1")
        second.tell("team", "l2", truth["l2"], key="1")  # another's key
        assert [m["who"] for m in viewer.status("team")["history"]] == ["anna", "bert"]
        with pytest.raises(ServiceError, match="viewers read") as error:
            viewer.ask("team")
        assert error.value.status == 403
        listening = second.events("team")
        assert next(listening) == 2
        tokens.revoke("bert")
        assert list(listening) == []  # the stream ends
        with pytest.raises(ServiceError, match="revoked") as error:
            second.status("team")
        assert error.value.status == 401
        assert "Traceback" not in service.log()


def test_who_has_shown_no_token_sends_a_token_and_no_more(folder: Path) -> None:
    Tokens(folder).create("o", "operator")
    app = create_app(folder)
    for path in ("/api/session", "/", "/static/app.js"):
        assert at(app).post(path, content=b"x" * 5000).status_code == 413, path
    assert at(app).post("/api/session", json={"token": "x" * 1001}).status_code == 422


def test_many_sessions_of_one_token_end_nobody_elses(folder: Path) -> None:
    tokens = Tokens(folder)
    anna, viewer = tokens.create("anna", "operator"), tokens.create("v", "viewer")
    app = create_app(folder)
    page = at(app)
    assert page.post("/api/session", json={"token": anna}).status_code == 200
    first = at(app)
    first.post("/api/session", json={"token": viewer})
    for _ in range(25):
        assert at(app).post("/api/session", json={"token": viewer}).status_code == 200
    assert page.get("/api/about").status_code == 200
    assert first.get("/api/about").status_code == 401, "a token's oldest session makes room"
    app = create_app(folder, Limits(rate=0.01, burst=3.0))
    answers = [at(app).post("/api/session", json={"token": viewer}).status_code for _ in range(5)]
    assert answers == [200] * 3 + [429] * 2


def test_who_signs_out_is_told_no_more(folder: Path) -> None:
    token = Tokens(folder).create("o", "operator")
    guard = Guard(create_app(folder), folder, Limits())
    session = guard.log_in(token, "127.0.0.1")
    caller = Caller("o", "operator", guard.tokens.all()[0].digest, session)
    assert guard.still(caller)
    guard.sessions.end(session)
    assert not guard.still(caller)
