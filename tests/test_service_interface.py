"""What the service says of itself is so: real answers are as described, and every example can be sent."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from lxml import html
from services import MOLECULES, Local, check_described, example_pool

pytest.importorskip("fastapi", reason="needs the extra dkaf[serve]")

from dkaf.service.app import create_app
from dkaf.service.bodies import POOL
from dkaf.service.description import example, operations
from dkaf.service.reference import as_html, as_markdown, walk

HERE = "http://127.0.0.1"


@pytest.fixture
def app(tmp_path: Path) -> Any:
    app = create_app(tmp_path / "data")
    example_pool(tmp_path / "data")
    return app


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema with fields inside a description."""
    if isinstance(value, dict):
        if isinstance(value.get("properties"), dict):
            yield value
        for inside in value.values():
            yield from schemas(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from schemas(inside)


def test_every_route_and_field_has_a_sentence_and_every_example_is_as_described(app: Any) -> None:
    described = app.openapi()
    for method, path, operation in operations(described):
        assert operation["description"].endswith("."), (method, path)
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (method, path, parameter)
        contents = [operation.get("requestBody", {}).get("content", {})]
        contents += [answer["content"] for answer in operation["responses"].values()]
        for content in contents:
            for kind, told in content.items():
                if kind != "multipart/form-data":
                    shown = told.get("example", example(described, told["schema"]) if "problem" in kind else None)
                    assert shown is not None, (method, path, kind)
                    jsonschema.validate(shown, told["schema"] | {"components": described["components"]})
    for schema in schemas(described):
        for name, field in schema["properties"].items():
            assert field.get("description") or "const" in field, (schema.get("title"), name)


def test_real_answers_of_every_route_are_as_described(app: Any, tmp_path: Path) -> None:
    here, described, seen = Local(app, HERE), app.openapi(), set()
    bodies = {
        f"{method} {path}": operation["requestBody"]["content"]["application/json"]["example"]
        for method, path, operation in operations(described)
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }

    def call(status: int, method: str, path: str, **options: Any) -> Any:
        answer = here.request(method, path, **options)
        assert answer.status_code == status, answer.text
        route = check_described(described, method, path, answer)
        if status < 400:
            seen.add(route)
        return answer

    def send(status: int, route: str, path: str | None = None) -> Any:
        """What the description gives as an example."""
        return call(status, "POST", path or route.removeprefix("POST "), json=bodies[route])

    screen, one = "/api/campaigns/screen", "POST /api/campaigns/{name}"
    call(200, "GET", "/api/about")
    send(404, f"{one}/ask", f"{screen}/ask")
    send(201, "POST /api/campaigns")
    call(200, "GET", f"{screen}/plots")
    call(200, "GET", f"{screen}/candidates/1")
    call(404, "GET", f"{screen}/candidates/99")
    call(422, "GET", f"{screen}/candidates/x")
    send(200, f"{one}/ask", f"{screen}/ask")
    send(200, f"{one}/tell", f"{screen}/tell")
    call(200, "POST", f"{screen}/tell", json={"measurements": [{"id": "CCN", "failed": True}]})
    assert call(200, "GET", screen).json()["failed"][0]["id"] == "CCN"
    send(200, f"{one}/release", f"{screen}/release")
    call(400, "POST", f"{screen}/release", json={"id": "CCN"})
    assert send(200, f"{one}/undo", f"{screen}/undo").json()["undone"] == "released"
    told = [{"id": molecule, "value": float(len(molecule))} for molecule in MOLECULES[1:-3]]
    call(200, "POST", f"{screen}/tell", json={"measurements": told})
    call(200, "POST", f"{screen}/ask", json={})
    call(200, "GET", f"{screen}/plots")
    call(200, "GET", f"{screen}/candidates?id=CCO")
    call(200, "GET", f"{screen}/export.csv")
    call(404, "GET", "/api/campaigns/nobody/events")
    (tmp_path / "data" / "campaigns" / "broken.db").write_bytes(b"none")
    call(200, "GET", "/api/campaigns")
    call(409, "GET", "/api/campaigns/broken")
    job = send(202, "POST /api/jobs").json()["job"]
    until = time.monotonic() + 120
    while call(200, "GET", f"/api/jobs/{job}").json()["state"] == "running" and time.monotonic() < until:
        time.sleep(0.2)
    call(200, "GET", "/api/jobs")
    assert call(200, "DELETE", f"/api/jobs/{job}").json()["state"] == "done"
    (tmp_path / "data" / "policies" / "broken.safetensors").write_bytes(b"none")
    assert [policy["name"] for policy in call(200, "GET", "/api/policies").json()] == ["assay", "broken"]
    trained = (tmp_path / "data" / "policies" / "assay.safetensors").read_bytes()
    call(201, "POST", "/api/uploads", files={"file": ("other.safetensors", trained)})
    call(201, "POST", "/api/uploads", files={"file": ("pool.csv", "a,b\n1,2\n2,1\n")})
    kept = call(201, "POST", "/api/uploads", files={"file": ("pool.csv", "a;b\n1;2\n2;1\n")}).json()
    assert kept["delimiter"] == ";"
    assert call(200, "GET", f"/api/uploads/{kept['upload']}").json() == kept
    call(400, "GET", f"/api/uploads/{kept['upload']}?delimiter=,")
    call(400, "GET", f"/api/uploads/{kept['upload']}?encoding=punycode")
    call(404, "GET", "/api/uploads/nothing")
    call(400, "POST", "/api/uploads", files={"file": ("pool.exe", "a,b\n1,2\n2,1\n")})
    call(415, "POST", "/api/uploads", json={})
    call(200, "DELETE", "/api/policies/broken")
    call(404, "DELETE", "/api/policies/broken")
    call(400, "DELETE", "/api/policies/gp")
    call(200, "DELETE", "/api/session")
    send(401, "POST /api/session")
    everything = {f"{method} {path}" for method, path, _ in operations(described)}
    assert everything - seen == {"GET /api/campaigns/{name}/events", "POST /api/session"}  # of which others hear


def test_the_reference_is_what_the_service_says_of_itself(app: Any) -> None:
    page = Path(__file__).parents[1] / "docs" / "http.md"
    assert page.read_text() == as_markdown(app.openapi()), (
        "write it anew: python -m dkaf.service.reference > docs/http.md"
    )
    for route in walk(app.openapi()):
        assert route.title in page.read_text()
        assert "{" not in route.call.split(" 'http")[1]


def test_the_reference_in_the_browser_is_whole_and_runs_nothing(app: Any) -> None:
    shown = Local(app, HERE).get("/docs")
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.text == as_html(app.openapi())
    root = html.document_fromstring(shown.text)
    titles = [heading.text_content() for heading in root.iter("h2")]
    assert titles == [f"{method} {path}" for method, path, _ in operations(app.openapi())]
    places = {section.get("id") for section in root.iter("section")}
    assert {link.get("href") for link in root.iterfind(".//li/a")} == {f"#{place}" for place in places}
    assert len(places) == len(titles)
    assert not list(root.iter("script", "style"))
    assert not [
        element for element in root.iter() if any(name == "style" or name[:2] == "on" for name in element.attrib)
    ]
    assert Local(app, HERE).get("/static/style.css").status_code == 200


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, {"n": 1.0}), (422, {"n": "1"}), (422, {"n": True}), (422, {"n": 1.5}), (422, {"n": None}), (422, {"m": 1})],
)
def test_a_body_is_taken_as_it_is_and_not_guessed_at(app: Any, status: int, body: Any) -> None:
    here = Local(app, HERE)
    assert here.post("/api/campaigns", json={"name": "screen", "pool": POOL, "budget": 20.0}).status_code == 201
    assert here.post("/api/campaigns/screen/ask", json=body).status_code == status


def test_an_address_says_what_it_takes(app: Any) -> None:
    answer = Local(app, HERE).request("PUT", "/api/campaigns")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert answer.json()["detail"] == "this address takes GET, POST, PUT came; use one"
    assert Local(app, HERE).request("PUT", "/docs").headers["allow"] == "GET"
