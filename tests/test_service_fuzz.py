"""Requests that nobody would think of, made from the service's own description by schemathesis."""

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from services import MOLECULES, example_pool

pytest.importorskip("fastapi", reason="needs the extra dkaf[serve]")

import schemathesis
import uvicorn
from schemathesis.checks import CHECKS, load_all_checks

import dkaf
from dkaf.service.app import create_app
from dkaf.service.auth import Limits
from dkaf.service.bodies import POOL
from dkaf.service.tokens import Tokens

LONGER = os.environ.get("DKAF_FUZZ")
EXAMPLES = int(LONGER or 12)
"""Of each route, right ones and wrong ones, beside those that schemathesis enumerates; DKAF_FUZZ=500 draws others."""
NO_CHECK = {
    "positive_data_acceptance",  # a body may be well formed and name what there is not
    "missing_required_header",
}
COLUMNS = ("smiles", "dose", None, "nobody")
NEVER_ENDS = "/api/campaigns/{name}/events"


class Running(NamedTuple):
    address: str
    headers: dict[str, str]
    client: dkaf.Client


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with the campaign, the pool and the measurements that the examples are about."""
    folder = tmp_path_factory.mktemp("fuzz") / "data"
    folder.mkdir()
    token = Tokens(folder).create("anna", "operator")
    app = create_app(folder, Limits(rate=1e9, burst=1e9, tries=1e9))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    client = dkaf.Client(address, token)
    example_pool(folder)
    client.create("screen", POOL, id="smiles", response="potency")
    client.tell_all("screen", [(smiles, float(len(smiles))) for smiles in MOLECULES[:5]], failed=[MOLECULES[5]])
    client.ask("screen", 1)
    yield Running(address, {"Authorization": f"Bearer {token}"}, client)
    for job in client.jobs():
        client.cancel(job["job"])
    server.should_exit = True
    thread.join()


def described() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return create_app(Path(folder) / "data").openapi()


schema = schemathesis.openapi.from_dict(described()).exclude(path=NEVER_ENDS)
load_all_checks()
QUIET = settings(
    max_examples=EXAMPLES,
    derandomize=LONGER is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def checks() -> list[Any]:
    return [check for check in CHECKS.get_all() if check.__name__ not in NO_CHECK]


@schema.parametrize()
@QUIET
def test_whatever_is_sent_the_answer_is_one_that_is_described(case: Any, running: Running) -> None:
    case.call_and_validate(base_url=running.address, headers=running.headers, checks=checks())


REAL = {"pool": POOL, "policy": "gp", "campaigns": ["screen"]}
DEEP = [
    ("POST", "/api/campaigns"),
    ("POST", "/api/campaigns/{name}/ask"),
    ("POST", "/api/campaigns/{name}/tell"),
    ("POST", "/api/campaigns/{name}/release"),
    ("POST", "/api/campaigns/{name}/undo"),
    ("GET", "/api/campaigns/{name}/candidates"),
    ("GET", "/api/campaigns/{name}/candidates/{row}"),
    ("POST", "/api/jobs"),
]


@pytest.mark.parametrize(("method", "path"), DEEP)
def test_what_names_things_that_there_are_is_answered_as_described_too(
    running: Running, method: str, path: str
) -> None:
    """The same with the campaign, the pool and the candidates of the examples put in, so that there is work to do."""
    answered = []

    @QUIET
    @given(
        case=schema[path][method].as_strategy(), molecule=st.sampled_from(MOLECULES), column=st.sampled_from(COLUMNS)
    )
    def fuzz(case: Any, molecule: str, column: str | None) -> None:
        if "name" in (case.path_parameters or {}):
            case.path_parameters["name"] = "screen"
        if "id" in (case.query or {}):
            case.query["id"] = molecule
        if isinstance(case.body, dict):
            case.body |= {name: value for name, value in REAL.items() if name in case.body}
            if "id" in case.body:
                case.body["id"] = column if "pool" in case.body else molecule
            for measured in case.body.get("measurements", []):
                measured["id"] = molecule
        answer = case.call_and_validate(base_url=running.address, headers=running.headers, checks=checks())
        answered.append(answer.status_code)
        if answer.status_code == 202:  # it was begun; this machine has other things to do
            running.client.cancel(answer.json()["job"])

    fuzz()
    assert any(status < 300 for status in answered), answered
    assert 422 not in answered  # what is as described is not refused for its form
