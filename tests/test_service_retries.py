"""Who got no answer sends again: twice is once, also after the service was started again."""

import contextlib
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
from dkaf.service.tokens import Tokens

SLOW = {"pretrain_updates": 1_000_000}


class Lossy:
    """A line to a service that carries requests there and loses the first answers."""

    def __init__(self, port: int, losses: int) -> None:
        self._port, self._losses, self.seen = port, losses, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self._port)) as there:
                lost = self.seen < self._losses
                self.seen += 1
                passing = threading.Thread(target=self._pass, args=(client, there), daemon=True)
                passing.start()
                while answer := there.recv(65536):
                    if lost:  # it was carried out
                        break
                    client.sendall(answer)
                client.shutdown(socket.SHUT_RDWR)  # also what is being read in the other thread

    def _pass(self, client: socket.socket, there: socket.socket) -> None:
        try:
            while piece := client.recv(65536):
                there.sendall(piece)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("retries") / "data") as running:
        yield running
        assert "Traceback" not in running.log()


def uploaded(client: dkaf.Client, folder: Path) -> str:
    campaigns.pool(folder / "pool.csv")
    return str(client.upload(folder / "pool.csv")["upload"])


def test_the_same_key_begins_one_campaign_and_one_training_also_after_a_restart(
    service: Service, tmp_path: Path
) -> None:
    client = service.client()
    truth = campaigns.pool(tmp_path / "pool.csv")
    pool = client.upload(tmp_path / "pool.csv")["upload"]
    begun = client.create("once", pool, id="loaf", response="rise", key="c-1")
    assert client.create("once", pool, id="loaf", response="rise", key="c-1") == begun
    for key in ("c-2", None):
        with pytest.raises(ServiceError, match="names of their own") as error:
            client.create("once", pool, id="loaf", key=key)
        assert error.value.status == 409
    client.tell_all("once", list(truth.items())[:20])
    job = client.train(["once"], "long", settings=SLOW, key="j-1")
    assert client.train(["once"], "long", settings=SLOW, key="j-1")["job"] == job["job"]
    with pytest.raises(ServiceError, match="names of their own"):
        client.train(["once"], "long", settings=SLOW, key="j-2")
    service.kill()
    service.start(service.port)
    assert client.create("once", pool, key="c-1")["created"] == begun["created"]
    assert client.train(["once"], "long", settings=SLOW, key="j-1")["job"] == job["job"]
    assert len(client.jobs()) == 1
    assert client.cancel(job["job"])["state"] == "cancelled"
    assert client.train(["once"], "long", settings=SLOW, key="j-1")["state"] == "cancelled"  # it is still that one


def test_a_client_whose_answers_are_lost_begins_one_of_each(service: Service, tmp_path: Path) -> None:
    truth = campaigns.pool(tmp_path / "pool.csv")
    line = Lossy(service.port, losses=0)
    client = dkaf.Client(line.address, timeout=60.0)

    def lose_the_next() -> None:
        line.seen, line._losses = 0, 1

    lose_the_next()
    pool = client.upload(tmp_path / "pool.csv")["upload"]
    assert line.seen == 3  # sent, looked why, sent again
    lose_the_next()
    client.create("lossy", pool, id="loaf", response="rise")
    assert line.seen == 2
    client.tell_all("lossy", list(truth.items())[:20])
    lose_the_next()
    job = client.train(["lossy"], "lossy", settings=SLOW)
    assert line.seen == 2
    assert [each["job"] for each in client.jobs() if each["name"] == "lossy"] == [job["job"]]
    client.cancel(job["job"])
    policy = tmp_path / "sent.safetensors"
    policy.write_bytes(campaigns.policy_bytes())
    lose_the_next()
    assert client.upload(policy)["policy"] == "sent"
    line.close()


def test_many_at_once_under_one_key_begin_one_and_under_their_own_keys_one_wins(
    service: Service, tmp_path: Path
) -> None:
    pool = uploaded(service.client(), tmp_path)

    def create(name: str, key: str | None) -> Any:
        try:
            return service.client().create(name, pool, id="loaf", key=key)["created"]
        except ServiceError as error:
            return error.status

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(lambda _: create("together", "k"), range(4)))) == 1
        each = list(threads.map(lambda n: create("apart", str(n)), range(4)))
    assert each.count(409) == 3
    assert not list((service.folder / "campaigns").glob(".*"))


def test_anothers_key_is_another_key(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    anna, bert = (Tokens(tmp_path / "data").create(name, "operator") for name in ("anna", "bert"))
    with serving(tmp_path / "data") as service:
        pool = uploaded(service.client(anna), tmp_path)
        service.client(anna).create("hers", pool, id="loaf", key="1")
        with pytest.raises(ServiceError, match="names of their own"):
            service.client(bert).create("hers", pool, id="loaf", key="1")


def test_a_campaign_from_elsewhere_goes_on_without_its_pool_file_if_it_is_told_to(
    service: Service, tmp_path: Path
) -> None:
    client = service.client()
    campaigns.pool(tmp_path / "pool.csv")
    dkaf.Campaign.create(service.folder / "campaigns" / "moved.db", tmp_path / "pool.csv", "gp", id="loaf")
    assert len(client.ask("moved")) == 1
    campaigns.pool(tmp_path / "pool.csv", n=7)
    assert client.status("moved")["pool_changed"]
    with pytest.raises(ServiceError, match="ignore_pool_file") as error:
        client.ask("moved")
    assert error.value.status == 409
    assert str(tmp_path) not in str(error.value)
    assert len(client.ask("moved", ignore_pool_file=True)) == 1
    (tmp_path / "pool.csv").unlink()  # gone is not changed
    assert len(client.ask("moved")) == 1


def test_who_goes_away_before_the_answer_has_nothing_reserved(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as service:
        client = service.client()
        campaigns.pool(tmp_path / "pool.csv")
        client.create("long", client.upload(tmp_path / "pool.csv")["upload"], id="loaf")
        client.status("long")
        with contextlib.closing(sqlite3.connect(service.folder / "campaigns" / "long.db", isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")  # so that the answer takes its time
            body = b'{"n": 3}'
            head = f"POST /api/campaigns/long/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            with socket.create_connection(("127.0.0.1", service.port)) as connection:
                connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
                time.sleep(2)
            time.sleep(1)
            db.execute("ROLLBACK")
        (candidate,) = client.ask("long")  # after the one that was given up: they are asked one after the other
        assert [pending["id"] for pending in client.status("long")["pending"]] == [candidate["id"]]
