"""What goes wrong around a service: several at once, files that are not what they seem, a disk that is full."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import campaigns
import pytest
from services import Service, serving

import dkaf
from dkaf import checkpoint
from dkaf.client import ServiceError
from dkaf.errors import BusyError, DamagedError, InputError, NoRoomError
from dkaf.service.jobs import Jobs
from dkaf.service.problems import status_of
from dkaf.service.shelf import Shelf


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("service") / "data", "--rate", "1000") as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def client(service: Service) -> dkaf.Client:
    return service.client()


def test_two_who_create_a_name_at_once_make_one_campaign(client: dkaf.Client, tmp_path: Path) -> None:
    campaigns.pool(tmp_path / "pool.csv")
    pool = client.upload(tmp_path / "pool.csv")["upload"]
    for turn in range(3):
        said: list[Any] = []

        def create(name: str, said: list[Any] = said) -> None:
            try:
                said.append(client.create(name, pool, id="loaf")["name"])
            except ServiceError as error:
                said.append(error.status)

        threads = [threading.Thread(target=create, args=(f"race{turn}",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, said)) == ["409"] * 3 + [f"race{turn}"]
        assert client.ask(f"race{turn}")


def test_a_campaign_that_another_process_holds_keeps_nobody_from_the_others(service: Service, tmp_path: Path) -> None:
    client = service.client()
    campaigns.pool(tmp_path / "pool.csv")
    pool = client.upload(tmp_path / "pool.csv")["upload"]
    client.create("held", pool, id="loaf")
    client.create("free", pool, id="loaf")
    copy = service.folder / "campaigns" / "copy.db"  # one that is not open yet
    shutil.copy(service.folder / "campaigns" / "held.db", copy)
    with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        waiting = threading.Thread(target=lambda: client.status("copy"))
        waiting.start()
        time.sleep(0.3)
        assert client.status("free")["name"] == "free"
        assert waiting.is_alive(), "this test shows nothing otherwise"
        db.execute("ROLLBACK")
    waiting.join()


def test_a_parquet_file_of_other_things_is_refused_and_removed(service: Service, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra dkaf[parquet]")
    import pyarrow.parquet as pq

    before = set((service.folder / "uploads").iterdir())
    for column, words in (
        (pa.array([2**62, 2], pa.timestamp("us")), "timestamp"),
        (pa.array([1, 2], pa.timestamp("us", "Nowhere/Bad")), "timestamp"),
        (pa.array([2**31 - 1, 2], pa.int32()).cast(pa.date32()), "date32"),
        (pa.array([2**62, 2], pa.duration("s")), "duration"),
        (pa.array([[1], [2]]), "list"),
        (pa.array([b"1", b"2"]), "binary"),
    ):
        pq.write_table(pa.table({"a": column}), tmp_path / "t.parquet")
        with pytest.raises(ServiceError, match=words) as refused:
            service.client().upload(tmp_path / "t.parquet")
        assert refused.value.status == 400
    assert set((service.folder / "uploads").iterdir()) == before


def test_a_policy_that_says_nonsense_of_its_training_is_refused(client: dkaf.Client, tmp_path: Path) -> None:
    tensors, description = checkpoint.read(campaigns.policy(tmp_path))
    for name, value in (("best_update", -1), ("stopped", 5), ("updates", "many")):
        wrong = description | {"training": description["training"] | {name: value}}
        checkpoint.write(tmp_path / "wrong.safetensors", tensors, {k: v for k, v in wrong.items() if k != "format"})
        with pytest.raises(ServiceError, match="does not describe a policy"):
            client.upload(tmp_path / "wrong.safetensors")
    assert "wrong" not in {policy["name"] for policy in client.policies()}


@pytest.mark.parametrize("name", ["name", "method", "acquisition", "self", "nothing"])
def test_a_setting_that_is_none_is_refused(client: dkaf.Client, tmp_path: Path, name: str) -> None:
    campaigns.pool(tmp_path / "pool.csv")
    with contextlib.suppress(ServiceError):  # there from the last time
        client.create("setting", client.upload(tmp_path / "pool.csv")["upload"], id="loaf")
    with pytest.raises(ServiceError, match="settings have names of their own") as refused:
        client.train(["setting"], "never", settings={name: 1})
    assert refused.value.status == 400


def test_a_job_whose_file_is_damaged_has_failed_and_hides_no_other(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    (tmp_path / "jobs").mkdir()
    jobs = Jobs(shelf)
    (tmp_path / "jobs" / f"{'0' * 16}.json").write_text("{")
    (tmp_path / "jobs" / f"{'1' * 16}.json").write_text("[]")
    assert [job["state"] for job in jobs.all()] == ["failed", "failed"]


def test_a_folder_has_one_service(service: Service) -> None:
    command = [sys.executable, "-m", "dkaf", "serve", "--data", str(service.folder), "--port", "0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert "another one serves" in second.stderr


def test_who_listens_does_not_keep_the_service_from_ending(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as service:
        client = service.client()
        campaigns.pool(tmp_path / "pool.csv")
        client.create("heard", client.upload(tmp_path / "pool.csv")["upload"], id="loaf")
        events = client.events("heard")
        next(events)
        service.process.send_signal(signal.SIGINT)
        assert list(events) == []
        service.process.wait(timeout=30)
        assert "Traceback" not in service.log()


def test_a_full_disk_and_a_busy_file_are_the_services_fault_and_not_the_callers() -> None:
    assert status_of(NoRoomError("x"))[0] == 507
    assert status_of(BusyError("x")) == (503, {"retry-after": "5"})
    assert status_of(DamagedError("x"))[0] == 409
    assert status_of(InputError("x"))[0] == 400


def test_old_uploads_go_away_while_the_service_runs(service: Service, tmp_path: Path) -> None:
    client = service.client()
    campaigns.pool(tmp_path / "pool.csv")
    old, new = (client.upload(tmp_path / "pool.csv")["upload"] for _ in range(2))
    os.utime(service.folder / "uploads" / old, (0, 0))
    client.upload(tmp_path / "pool.csv")
    assert not (service.folder / "uploads" / old).exists()
    assert (service.folder / "uploads" / new).exists()


def test_a_campaign_that_was_removed_and_begun_anew_is_the_new_one(service: Service, tmp_path: Path) -> None:
    client = service.client()
    campaigns.pool(tmp_path / "pool.csv")
    pool = client.upload(tmp_path / "pool.csv")["upload"]
    for turn in range(3):
        client.create("again", pool, id="loaf", budget=10 + turn)
        client.tell("again", "l1", float(turn))
        assert [told["value"] for told in client.status("again")["history"]] == [float(turn)]
        (service.folder / "campaigns" / "again.db").unlink()


def test_known_values_that_are_too_large_are_named_by_their_place(client: dkaf.Client, tmp_path: Path) -> None:
    (tmp_path / "known.csv").write_text("id,x,y\na,1,2\nb,2,\nc,3,inf\n")
    with pytest.raises(ServiceError, match=r"row 3 of known\.csv has inf in column 'y'"):
        client.create("known", client.upload(tmp_path / "known.csv")["upload"], id="id", response="y", known=True)
