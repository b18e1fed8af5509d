"""Clients that send or read slowly, very many of them, keep nobody from being served."""

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

import campaigns
import pytest
from services import serving

pytest.importorskip("fastapi", reason="needs the extra dkaf[serve]")

MANY = 300


def connected(port: int, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(sent)
    return connection


def test_slow_clients_keep_nobody_from_being_served(tmp_path: Path) -> None:
    """A hundred that never end their headers, a hundred that never end their body, a hundred that never read."""
    truth = campaigns.pool(tmp_path / "pool.csv")
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(serving(tmp_path / "data", "--rate", "1000"))
        client = service.client()
        client.create("slow", client.upload(tmp_path / "pool.csv")["upload"], id="loaf")
        headers = b"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
        body = (
            b"POST /api/campaigns/slow/tell HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"measure'
        )
        events = b"GET /api/campaigns/slow/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        slow = [
            stack.enter_context(connected(service.port, sent))
            for sent in (headers, body, events)
            for _ in range(MANY // 3)
        ]
        for _ in range(3):
            for connection in slow[: 2 * MANY // 3]:
                connection.sendall(b"a")
            (asked,) = client.ask("slow")
            client.tell("slow", asked["id"], truth[asked["id"]])
        assert len(client.status("slow")["history"]) == 3
        assert "Traceback" not in service.log()


def test_who_does_not_end_the_headers_is_disconnected(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dkaf.service.server import serve; from dkaf.service.auth import *\n"
        "said = lambda address: print(address, flush=True)\n"
        "serve(Path(sys.argv[1]), '127.0.0.1', 0, Limits(headers=1.0), None, said)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rstrip("/\n").rsplit(":", 1)[1])
            dribbling = connected(port, b"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            silent = connected(port, b"")
            whole = b"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            second = connected(port, whole)
            assert second.recv(65536).startswith(b"HTTP/1.1 200")
            second.sendall(b"GET /api/about HTTP/1.1\r\nHo")  # another one, that never ends
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                while time.monotonic() - began < 20:
                    dribbling.sendall(b"a")  # does not move the deadline
                    time.sleep(0.1)
            assert time.monotonic() - began < 20
            for connection in (dribbling, silent, second):
                with contextlib.closing(connection), contextlib.suppress(ConnectionError):
                    while connection.recv(65536):
                        pass
            with connected(port, whole) as connection:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        finally:
            process.terminate()
