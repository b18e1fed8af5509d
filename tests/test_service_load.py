"""A hundred clients at once on ten campaigns, and the power fails in the middle. Speed: `python -m benchmarks.load`."""

import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import campaigns
import pytest
from services import serving

import dkaf
from dkaf.client import ServiceError

pytest.importorskip("fastapi", reason="needs the extra dkaf[serve]")

CAMPAIGNS, CLIENTS, SECONDS, PATIENCE = 10, 100, 6.0, 90.0


def test_a_hundred_clients_and_a_kill_9_lose_nothing_and_get_nothing_twice(tmp_path: Path) -> None:
    truth = campaigns.pool(tmp_path / "pool.csv", n=2000)
    names = [f"c{number}" for number in range(CAMPAIGNS)]
    given: list[tuple[str, str]] = []
    acknowledged: list[tuple[str, str]] = []
    errors: list[BaseException] = []
    with serving(tmp_path / "data", "--rate", "100000") as service:  # by default a token makes 100 requests a second
        client = service.client()
        upload = client.upload(tmp_path / "pool.csv")["upload"]
        for name in names:
            client.create(name, upload, id="loaf")
        until = time.monotonic() + SECONDS

        def ask_and_tell(number: int) -> None:
            own, name = dkaf.Client(service.address, retries=0, timeout=PATIENCE), names[number % CAMPAIGNS]

            def sure(call: Any, *arguments: Any, **key: str) -> Any:
                """The answer, also where the service went away in between: it is asked again under the same key."""
                while True:
                    try:
                        return call(*arguments, **key)
                    except ServiceError:
                        raise
                    except dkaf.InputError:
                        if time.monotonic() > until + PATIENCE:
                            raise
                        time.sleep(0.2)

            try:
                while time.monotonic() < until:
                    (candidate,) = sure(own.ask, name, request_id=uuid.uuid4().hex)
                    given.append((name, candidate["id"]))
                    sure(own.tell, name, candidate["id"], truth[candidate["id"]], key=uuid.uuid4().hex)
                    acknowledged.append((name, candidate["id"]))
            except BaseException as error:
                errors.append(error)

        clients = [threading.Thread(target=ask_and_tell, args=(number,)) for number in range(CLIENTS)]
        for thread in clients:
            thread.start()
        time.sleep(SECONDS / 2)
        before = len(acknowledged)
        service.kill()
        service.start(service.port)
        for thread in clients:
            thread.join()
        kept = [(name, told["id"]) for name in names for told in client.status(name)["history"]]
        assert "Traceback" not in service.log()
    assert not errors
    assert 0 < before < len(acknowledged)
    assert max(Counter(given).values()) == 1
    assert Counter(kept) == Counter(acknowledged)
