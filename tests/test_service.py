"""The service as its users have it: `dkaf.Client` against `dkaf serve` in a process of its own."""

import csv
import io
import json
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import campaigns
import pytest
from services import Service, serving

import dkaf
from dkaf.client import ServiceError
from dkaf.service import training

TINY = {"pretrain_updates": 10, "updates": 1, "scale_updates": 1, "queries": 3}
MOLECULES = ["CCO", "CC(=O)Nc1ccc(O)cc1", "c1ccccc1", "CCN", "CCCl", "CC(C)O"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("service") / "data", "--upload-limit", "1", "--rate", "1000") as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def client(service: Service) -> dkaf.Client:
    return service.client()


def begin(client: dkaf.Client, folder: Path, name: str, **options: Any) -> dict[str, float]:
    """A campaign on bread; what each loaf would give."""
    truth = campaigns.pool(folder / f"{name}.csv", seed=len(name))
    upload = client.upload(folder / f"{name}.csv")["upload"]
    client.create(name, upload, options.pop("policy", "gp"), id="loaf", **options)
    return truth


def refused(status: int, call: Any, *arguments: Any, **options: Any) -> str:
    """The sentence of a refusal."""
    with pytest.raises(ServiceError) as error:
        call(*arguments, **options)
    assert error.value.status == status, error.value
    return str(error.value)


def kept(service: Service) -> list[str]:
    """The uploads there are."""
    return sorted(path.name for path in (service.folder / "uploads").iterdir())


def raw(service: Service, request: bytes) -> bytes:
    """What is answered to bytes that no client would send."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer and (piece := connection.recv(65536)):
            answer += piece
    return answer


def test_from_a_csv_file_to_the_best_candidate(client: dkaf.Client, tmp_path: Path) -> None:
    about = client.about()
    assert about["role"] == "operator"
    assert about["demo"] is None
    truth = campaigns.pool(tmp_path / "pool.csv")
    table = client.upload(tmp_path / "pool.csv")
    assert (table["kind"], table["rows"], table["filename"]) == ("table", 60, "pool.csv")
    assert [(c["name"], c["kind"], len(c["first"])) for c in table["columns"]] == [
        ("loaf", "ignore", 3), ("oven", "categorical", 3), ("heat", "numeric", 3), ("flour", "text", 3),
    ]  # fmt: skip
    status = client.create("first", table["upload"], "gp", id="loaf", response="rise", budget=12)
    assert (status["name"], status["response"], status["id_column"], status["pool"]) == (
        "first", "rise", "loaf", "pool.csv",
    )  # fmt: skip
    while client.status("first")["left"]:
        for candidate in client.ask("first", 3):
            assert candidate.keys() == {"id", "mean", "deviation", "score", "columns"}
            client.tell("first", candidate["id"], truth[candidate["id"]])
    status = client.status("first")
    assert {measurement["who"] for measurement in status["history"]} == {"local"}
    assert status["best"]["value"] >= sorted(truth.values())[-10]
    (listed,) = [campaign for campaign in client.campaigns() if campaign["name"] == "first"]
    assert (listed["told"], listed["pending"], listed["left"]) == (12, 0, 0)
    assert listed["best"] == {"id": status["best"]["id"], "value": status["best"]["value"]}
    rows = list(csv.DictReader(io.StringIO(client.export("first"))))
    assert [float(row["value"]) for row in rows] == [measurement["value"] for measurement in status["history"]]


def test_a_retry_asks_and_tells_once(client: dkaf.Client, tmp_path: Path) -> None:
    begin(client, tmp_path, "again", budget=9)
    asked = client.ask("again", 2, request_id="r-1")
    assert client.ask("again", 2, request_id="r-1") == asked
    assert len(client.status("again")["pending"]) == 2
    one, two = (candidate["id"] for candidate in asked)
    first = client.tell_all("again", [(one, 1.5)], failed=[two], key="k-1")
    assert client.tell_all("again", [(one, 1.5)], failed=[two], key="k-1") == first
    assert [(m["id"], m["value"]) for m in first["history"]] == [(one, 1.5)]
    assert [failed["id"] for failed in first["failed"]] == [two]
    assert client.release("again", two)["failed"] == []
    assert client.undo("again", key="u")["undone"] == "released"
    assert client.undo("again", key="u")["undone"] == "released"
    assert client.undo("again") == {"undone": "failed", "id": two, "value": None} | {"at": first["failed"][0]["at"]}


def test_two_clients_at_once_get_different_candidates_and_nothing_is_lost(service: Service, tmp_path: Path) -> None:
    truth = begin(service.client(), tmp_path, "both")

    def work(_: int) -> list[str]:
        client, mine = service.client(), []
        for _ in range(6):
            (candidate,) = client.ask("both")
            client.tell("both", candidate["id"], truth[candidate["id"]])
            mine.append(candidate["id"])
        return mine

    with ThreadPoolExecutor(3) as pool:
        found = [candidate for mine in pool.map(work, range(3)) for candidate in mine]
    assert len(found) == len(set(found)) == 18
    assert {m["id"]: m["value"] for m in service.client().status("both")["history"]} == {i: truth[i] for i in found}


def test_a_backup_taken_while_it_runs_is_a_whole_campaign(service: Service, tmp_path: Path) -> None:
    client = service.client()
    truth = begin(client, tmp_path, "kept")
    (candidate,) = client.ask("kept")
    client.tell("kept", candidate["id"], truth[candidate["id"]])
    with (
        sqlite3.connect(service.folder / "campaigns" / "kept.db") as source,
        sqlite3.connect(tmp_path / "copy.db") as copy,
    ):
        source.backup(copy)
    source.close()
    copy.close()
    os.replace(tmp_path / "copy.db", service.folder / "campaigns" / "restored.db")
    assert client.status("restored")["history"] == client.status("kept")["history"]
    assert client.ask("restored")[0]["id"] == client.ask("kept")[0]["id"]


def test_an_upload_says_how_it_is_written_and_is_read_so(client: dkaf.Client, tmp_path: Path) -> None:
    lines = ["größe;mass, in g;yield", *(f"ö{n};{n * n};{n / 2 if n < 2 else ''}" for n in range(6))]
    (tmp_path / "sheet.csv").write_bytes("\n".join(lines).encode("cp1252"))
    table = client.upload(tmp_path / "sheet.csv")
    assert (table["delimiter"], table["encoding"]) == (";", "cp1252")
    assert [(c["name"], c["filled"]) for c in table["columns"]] == [("größe", 6), ("mass, in g", 6), ("yield", 2)]
    status = client.create("sheet", table["upload"], id="größe", response="yield", known=True)
    assert [(m["id"], m["value"], m["known"]) for m in status["history"]] == [("ö0", 0.0, True), ("ö1", 0.5, True)]
    status = client.create("rows", table["upload"], response="yield", known=True)
    assert [m["id"] for m in status["history"]] == ["1", "2"]
    assert client.create("without", table["upload"], response="yield")["history"] == []
    assert "response" in refused(400, client.create, "x", table["upload"], known=True)
    assert "no 'loaf'" in refused(400, client.create, "x", table["upload"], id="loaf", response="yield", known=True)
    assert "row 1 of sheet.csv" in refused(400, client.create, "x", table["upload"], response="größe", known=True)
    assert "one column" in refused(400, client.create, "x", table["upload"], id="größe", delimiter="|")
    assert "is not utf-8" in refused(400, client.create, "x", table["upload"], id="größe", encoding="utf-8")
    (tmp_path / "wide.csv").write_bytes("a\tb\n1\t2,5\n3\t4,5\n".encode("utf-16"))
    table = client.upload(tmp_path / "wide.csv")
    assert (table["delimiter"], table["encoding"], len(table["columns"])) == ("\t", "utf-16", 2)
    campaigns.pool(tmp_path / "usual.csv")
    table = client.upload(tmp_path / "usual.csv")
    assert (table["delimiter"], table["encoding"]) == (None, None)


def test_why_a_candidate_and_plots_have_what_the_library_says(client: dkaf.Client, tmp_path: Path) -> None:
    truth = begin(client, tmp_path, "why", minimise=True)
    assert client.plots("why")["ranking"] == []  # nothing was measured, nothing is expected
    assert client.candidate("why", "l0")["mean"] is None
    for candidate in ("l1", "l2", "l3", "l4", "l5", "l6"):
        client.tell("why", candidate, truth[candidate])
    (asked,) = client.ask("why")
    reasons = client.candidate("why", asked["id"])
    assert reasons["columns"] == asked["columns"]
    assert reasons["mean"] == pytest.approx(asked["mean"], rel=1e-4)
    assert reasons["deviation"] == pytest.approx(asked["deviation"], rel=1e-4)
    assert len(reasons["near"]) == 5
    assert [near["value"] for near in reasons["near"]] == [truth[near["id"]] for near in reasons["near"]]
    assert [near["distance"] for near in reasons["near"]] == sorted(near["distance"] for near in reasons["near"])
    assert asked["id"] not in {near["id"] for near in client.candidate("why", "l1")["near"]}
    shown = client.plots("why")
    assert len(shown["measured"]) == len(shown["best"]) == 6
    assert shown["best"][-1] == min(shown["measured"])
    means = [ranked["mean"] for ranked in shown["ranking"]]
    assert means == sorted(means)
    assert {ranked["id"]: ranked["value"] for ranked in shown["ranking"]}["l1"] == truth["l1"]
    states = [point["state"] for point in shown["map"]]
    assert (states.count("measured"), states.count("pending"), len(states)) == (6, 1, 60)
    refused(404, client.candidate, "why", "nobody")


def test_a_molecule_is_drawn(client: dkaf.Client, tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="needs the extra dkaf[chem]")
    campaigns.write(tmp_path / "m.csv", [{"smiles": text, "dose": str(n)} for n, text in enumerate(MOLECULES)])
    client.create("drawn", client.upload(tmp_path / "m.csv")["upload"], id="smiles")
    svg = client.candidate("drawn", MOLECULES[1])["svg"]
    assert svg.startswith("<svg")
    assert "style=" not in svg
    assert "<script" not in svg


def test_a_change_is_announced_also_when_another_process_made_it(service: Service, tmp_path: Path) -> None:
    client = service.client()
    begin(client, tmp_path, "live")
    events = client.events("live")
    assert next(events) == 0
    dkaf.Campaign.open(service.folder / "campaigns" / "live.db").tell("l3", 4.5)  # not through the service
    assert next(events) == 1
    client.undo("live")
    assert next(events) == 2
    events.close()  # type: ignore[attr-defined]
    refused(404, lambda: next(client.events("nobody")))


def test_a_policy_is_trained_from_finished_campaigns_with_progress(service: Service, tmp_path: Path) -> None:
    client = service.client()
    for number in range(3):
        truth = begin(client, tmp_path, f"past{'-' * number}", response="rise")
        client.tell_all(f"past{'-' * number}", list(truth.items())[:12])
    names = ["past", "past-", "past--"]
    job = client.train(names, "learnt", settings=TINY)
    assert job["state"] == "running"
    refused(409, client.train, names, "learnt")
    seen = _until_ended(client, job["job"])
    assert seen[-1]["state"] == "done", seen[-1]
    assert any(state["total"] for state in seen[:-1])
    assert seen[-1]["policy"] == "learnt"
    assert client.jobs()[0] == seen[-1]
    (described,) = [policy for policy in client.policies() if policy["name"] == "learnt"]
    assert described["response"] == "rise"
    assert set(described["columns"]) == {"oven", "heat", "flour"}
    (tmp_path / "my bread.safetensors").write_bytes((service.folder / "policies" / "learnt.safetensors").read_bytes())
    sent = client.upload(tmp_path / "my bread.safetensors")
    assert (sent["kind"], sent["policy"]) == ("policy", "my-bread")
    assert client.upload(tmp_path / "my bread.safetensors") == sent  # the same again
    (tmp_path / "my bread.safetensors").write_bytes(campaigns.policy_bytes())
    refused(409, client.upload, tmp_path / "my bread.safetensors")
    begin(client, tmp_path, "next", policy="my-bread")
    assert client.ask("next")[0]["columns"]["loaf"]
    refused(404, client.train, ["nobody"], "other")
    refused(400, client.train, names, "other", settings={"speed": 11})


def test_a_training_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    campaigns.pool(tmp_path / "pool.csv")
    dkaf.Campaign.create(tmp_path / "empty.db", tmp_path / "pool.csv", "gp", id="loaf")
    request = {"paths": [str(tmp_path / "empty.db")], "target": "x", "response": None, "settings": {}}
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"state": "running", "stage": "starting", "request": request}))
    assert training.main(str(job)) == 1
    told = json.loads(job.read_text())
    assert told["state"] == "failed"
    assert "has none" in told["message"]


def test_a_job_is_cancelled_and_one_whose_process_died_has_failed(service: Service, tmp_path: Path) -> None:
    client = service.client()
    truth = begin(client, tmp_path, "long-past", response="rise")
    client.tell_all("long-past", list(truth.items())[:20])
    slow = {"pretrain_updates": 1_000_000}
    one, two = (client.train(["long-past"], name, settings=slow)["job"] for name in ("one", "two"))
    assert "wait" in refused(429, client.train, ["long-past"], "three")
    process = int((service.folder / "jobs" / f"{one}.lock").read_text())
    assert client.cancel(one)["state"] == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    os.kill(int((service.folder / "jobs" / f"{two}.lock").read_text()), signal.SIGKILL)
    assert _until_ended(client, two)[-1]["state"] == "failed"
    assert client.cancel(two)["state"] == "failed"
    assert client.job(one)["state"] == "cancelled"
    assert {policy["name"] for policy in client.policies()}.isdisjoint({"one", "two"})
    refused(404, client.job, "nobody")


def _until_ended(client: dkaf.Client, job: str) -> list[dict[str, Any]]:
    seen = [client.job(job)]
    until = time.monotonic() + 120
    while seen[-1]["state"] == "running" and time.monotonic() < until:
        time.sleep(0.05)
        seen.append(client.job(job))
    return seen


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.csv", b""),
        ("header.csv", b"a,b\n"),
        ("ragged.csv", b"a,b\n1\n"),
        ("zero.csv", b"a,b\n\0,1\n"),
        ("latin.csv", b"a,b\n\x81,1\n"),
        ("sheet.csv", b"PK\x03\x04rest"),
        ("twice.csv", b"a,a\n1,2\n"),
        ("broken.parquet", b"PAR1 nothing PAR1"),
        ("broken.safetensors", b"\x80\x04\x95pickle"),
        ("huge.safetensors", b"\xff" * 8 + b"{}"),
        ("table.exe", b"a,b\n1,2\n"),
        ("noname", b"a,b\n1,2\n"),
    ],
)
def test_a_malformed_upload_is_refused_in_a_sentence_and_leaves_nothing(
    service: Service, tmp_path: Path, name: str, content: bytes
) -> None:
    before = kept(service)
    (tmp_path / name).write_bytes(content)
    sentence = refused(400, service.client().upload, tmp_path / name)
    assert name in sentence
    assert str(service.folder) not in sentence
    assert kept(service) == before


def test_a_multipart_body_that_is_none_is_refused(service: Service) -> None:
    before = kept(service)
    part = b'Content-Disposition: form-data; name="file"; filename="../../etc/x.csv"\r\n'
    for status, kind, body in (
        (415, b"application/json", b"{}"),
        (415, b"multipart/form-data", b"--x--"),
        (400, b"multipart/form-data; boundary=x", b"nothing of that kind"),
        (400, b"multipart/form-data; boundary=x", b"--x\r\n" + part + b"\r\na,b\n1,2\n"),
        (400, b"multipart/form-data; boundary=x", b"--x\r\n" + part.replace(b'"file"', b'"other"') + b"\r\na\r\n--x--"),
        (400, b"multipart/form-data; boundary=x", b"--x\r\nA: " + b"a" * 20_000 + b"\r\n\r\na\r\n--x--\r\n"),
    ):
        assert _post(service, b"/api/uploads", kind, body).split()[1] == str(status).encode(), (kind, body[:60])
    assert kept(service) == before
    sent = _post(
        service, b"/api/uploads", b"multipart/form-data; boundary=x", b"--x\r\n" + part + b"\r\na,b\n1,2\r\n--x--\r\n"
    )
    assert sent.split()[1] == b"201"
    (new,) = [name for name in kept(service) if name not in before and name.endswith(".csv")]
    assert len(new) == 36  # the name is ours, whatever the sender calls it


def _post(service: Service, path: bytes, kind: bytes, body: bytes, more: bytes = b"") -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: " + kind + b"\r\n" + more
    return raw(service, head + b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)


def test_an_oversized_body_is_refused_whatever_it_says_of_its_length(service: Service, tmp_path: Path) -> None:
    head = b"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    assert raw(service, head + b"Content-Length: 99999999999\r\n\r\n").split()[1] == b"413"
    piece = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + hex(len(part))[2:].encode() + b"\r\n" + part + b"\r\n"
    assert raw(service, chunked + piece * 20).split()[1] == b"413"
    (tmp_path / "large.csv").write_bytes(b"a,b\n" + b"1,2\n" * 300_000)
    refused(413, service.client().upload, tmp_path / "large.csv")
    assert not [name for name in kept(service) if name.endswith(".part")]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"measurements": []}', b'{"measurements": [{"id": "l1"}]}',
        b'{"measurements": [{"id": "l1", "value": NaN}]}', b'{"measurements": [{"id": "l1", "value": true}]}',
        b'{"measurements": [{"id": "l1", "value": 1e999}]}', b'{"measurements": [{"id": "l1", "value": "x"}]}',
        b'{"measurements": [{"id": "l1", "value": 1, "failed": true}]}', b"[" * 100_000,
        b'{"measurements": [{"id": "nobody", "value": 1}]}', b'{"measurements": [{"id": "\\ud800", "value": 1}]}',
        b'{"measurements": [{"id": "l1", "value": 1}], "key": "a b\\u0000"}',
        b'{"measurements": [{"id": "l1", "value": ' + b"9" * 5000 + b"}]}",
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused_and_nothing_is_told(service: Service, tmp_path: Path, body: bytes) -> None:
    if not (service.folder / "campaigns" / "wrong.db").exists():
        begin(service.client(), tmp_path, "wrong")
    answer = _post(service, b"/api/campaigns/wrong/tell", b"application/json", body)
    assert answer.split()[1] in (b"400", b"422"), answer
    assert b"application/problem+json" in answer
    assert service.client().status("wrong")["history"] == []


def test_names_are_no_paths(service: Service, tmp_path: Path) -> None:
    client = service.client()
    campaigns.pool(tmp_path / "pool.csv")
    upload = client.upload(tmp_path / "pool.csv")["upload"]
    for name in ("../x", "a/b", "", ".", "a.db", "x" * 65, "a\0b", "a\r\nSet-Cookie: b=c", "ä", "a\n"):
        refused(422, client.create, name, upload)
        assert client.campaigns() == client.campaigns()
    for pool in ("../tokens.json", "/etc/passwd", f"../uploads/{upload}", upload + ".json", "x" * 36):
        refused(404, client.create, "fine", pool)
    for policy in ("../x", "/etc/passwd", "bread.safetensors"):
        assert "policy" in refused(400, client.create, "fine", upload, policy)
    refused(404, client.create, "fine", upload, "nobody")
    for path in (
        b"/api/campaigns/..%2f..%2fetc%2fpasswd", b"/api/campaigns/%2e%2e", b"/api/campaigns/a%00b/export.csv",
        b"/static/../app.py", b"/static/%2e%2e/app.py", b"/static/..%5capp.py", b"//etc/passwd", b"/api/jobs/..%2fx",
        b"/api/campaigns/x%0d%0aSet-Cookie:a=b/export.csv",
    ):  # fmt: skip
        answer = raw(service, b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert answer.split()[1] == b"404", (path, answer)
        assert b"set-cookie" not in answer.split(b"\r\n\r\n")[0].lower()  # the body quotes it
    client.create("taken", upload)
    assert "taken" in refused(409, client.create, "taken", upload)


def test_a_refusal_says_what_the_command_line_says_without_the_servers_paths(
    client: dkaf.Client, tmp_path: Path
) -> None:
    rows = [{"name": f"n{n}", "heat": str(n)} for n in range(5)] + [{"name": "n0", "heat": "x"}]
    campaigns.write(tmp_path / "p.csv", rows)
    upload = client.upload(tmp_path / "p.csv")["upload"]
    sentence = refused(400, client.create, "nope", upload, id="name")
    assert "p.csv" in sentence
    assert "/" not in sentence
    begin(client, tmp_path, "spent", budget=1)
    client.ask("spent")
    assert "budget" in refused(400, client.ask, "spent")
    assert "pending is" in refused(400, client.release, "spent", "l59")


def test_the_description_of_the_interface_is_whole_and_nothing_is_loaded_from_elsewhere(service: Service) -> None:
    def get(path: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(65536), b""))

    described = json.loads(get(b"/openapi.json").split(b"\r\n\r\n", 1)[1])
    assert "/api/campaigns/{name}/ask" in described["paths"]
    assert b"/api/campaigns/{name}/ask" in get(b"/docs")
    for page in (get(b"/"), get(b"/docs")):
        assert page.split()[1] == b"200"
        assert b"https://" not in page.replace(b"https://github.com", b"")


def test_after_kill_9_and_a_restart_it_goes_on_where_it_was(service: Service, tmp_path: Path) -> None:
    client = service.client()
    truth = begin(client, tmp_path, "power")
    asked = client.ask("power", 2, request_id="before")
    client.tell("power", asked[0]["id"], truth[asked[0]["id"]], key="told")
    acknowledged: list[str] = []

    def tell_on() -> None:
        for candidate, value in truth.items():
            try:
                dkaf.Client(service.address, retries=0).tell("power", candidate, value)
            except dkaf.InputError:
                return
            acknowledged.append(candidate)

    teller = threading.Thread(target=tell_on)
    teller.start()
    while len(acknowledged) < 5:
        time.sleep(0.01)
    service.kill()
    teller.join()
    service.start(service.port)
    status = client.tell("power", asked[0]["id"], truth[asked[0]["id"]], key="told")  # the same client
    told = [m["id"] for m in status["history"]]
    assert told[0] == asked[0]["id"]
    assert told[1 : 1 + len(acknowledged)] == acknowledged
    assert len(told) <= 2 + len(acknowledged)  # one more may have come before its answer was lost
    assert [c["id"] for c in client.ask("power", 2, request_id="before")] == [c["id"] for c in asked]
