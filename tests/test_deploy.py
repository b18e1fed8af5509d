"""What docs/deploy.md says, done: its unit is one, its nginx stands before the service, its backup is restored."""

import contextlib
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import campaigns
import pytest
from services import serving

import dkaf
from dkaf.service.tokens import Tokens

pytest.importorskip("fastapi", reason="needs the extra dkaf[serve]")

GUIDE = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text()
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
TOKEN = "Authorization"


def snippet(first: str) -> str:
    """The block of the guide that begins so."""
    (found,) = [block for block in re.findall(r"```\w*\n(.*?)```", GUIDE, re.DOTALL) if block.startswith(first)]
    return str(found)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_the_unit_is_one(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("needs systemd-analyze")
    unit = snippet("[Unit]").replace("/opt/dkaf/bin/dkaf", sys.executable).replace("User=dkaf", "User=root")
    (tmp_path / "dkaf.service").write_text(unit)
    said = subprocess.run([verify, "verify", tmp_path / "dkaf.service"], capture_output=True, text=True, timeout=60)
    if "Failed to initialize" in said.stderr or "Failed to connect" in said.stderr:
        pytest.skip(f"systemd-analyze does not work here: {said.stderr.strip()[:100]}")
    about_it = [line for line in said.stderr.splitlines() if "dkaf.service" in line]
    assert (said.returncode, about_it) == (0, [])


class Proxy:
    """nginx with the guide's server, on a free port of this machine and with a certificate of its own."""

    def __init__(self, folder: Path, service_port: int) -> None:
        self.port = free_port()
        certificate, key = folder / "cert.pem", folder / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=dkaf.lab.example",
             "-addext", "subjectAltName=DNS:dkaf.lab.example,IP:127.0.0.1", "-keyout", key, "-out", certificate],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        server = snippet("server {")
        for old, new in (
            ("listen 443 ssl;", f"listen 127.0.0.1:{self.port} ssl;"),
            ("/etc/letsencrypt/live/dkaf.lab.example/fullchain.pem", str(certificate)),
            ("/etc/letsencrypt/live/dkaf.lab.example/privkey.pem", str(key)),
            ("http://127.0.0.1:8765", f"http://127.0.0.1:{service_port}"),
        ):
            assert old in server
            server = server.replace(old, new)
        paths = "\n".join(
            f"{name}_temp_path {folder / name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{paths}\n{server}\n}}\n"
        )
        assert NGINX is not None
        self._process = subprocess.Popen(
            [NGINX, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")],
            stderr=subprocess.PIPE,
        )
        self.context = ssl.create_default_context(cafile=certificate)
        self.address = f"https://127.0.0.1:{self.port}"
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.1)
        self.end()
        raise AssertionError(self._process.stderr and self._process.stderr.read())

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        if self._process.stderr is not None:
            self._process.stderr.close()

    @contextlib.contextmanager
    def asked(self, method: str, path: str, body: Any = None, **headers: str) -> Iterator[HTTPResponse]:
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(
            method, path, None if body is None else json.dumps(body), sent | {"Content-Type": "application/json"}
        )
        with contextlib.closing(connection):
            yield connection.getresponse()


@pytest.mark.skipif(NGINX is None, reason="needs nginx")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_the_service_behind_nginx_as_the_guide_says(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    token = Tokens(tmp_path / "data").create("anna", "operator")
    truth = campaigns.pool(tmp_path / "pool.csv")
    (tmp_path / "nginx").mkdir()
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(serving(tmp_path / "data"))
        proxy = Proxy(tmp_path / "nginx", service.port)
        stack.callback(proxy.end)
        client = dkaf.Client(proxy.address, token, context=proxy.context)
        client.create("screen", client.upload(tmp_path / "pool.csv")["upload"], id="loaf")

        with proxy.asked("POST", "/api/session", {"token": token}, Origin=proxy.address) as answer:
            assert answer.status == 200
            assert answer.headers["strict-transport-security"]
            cookie, csrf = answer.headers["set-cookie"], json.loads(answer.read())["csrf"]
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
        cookie = cookie.split(";")[0]
        same = {"Cookie": cookie, "Origin": proxy.address}
        for headers, status in (
            ({**same, "X_CSRF_Token": csrf}, 200),
            (same, 403),
            ({**same, "X_CSRF_Token": csrf, "Origin": "https://elsewhere.example"}, 403),
        ):
            with proxy.asked("POST", "/api/campaigns/screen/ask", {"n": 1}, **headers) as answer:
                assert answer.status == status, answer.read()
        with proxy.asked("POST", "/api/campaigns/screen/ask", {"n": 1}) as answer:
            assert answer.status == 401

        with proxy.asked("GET", "/api/campaigns/screen/events", Cookie=cookie) as stream:
            assert stream.readline() == b"event: changed\n"  # at once, though the answer has not ended
            (candidate,) = client.ask("screen")
            client.tell("screen", candidate["id"], truth[candidate["id"]])
            while b'"events": 3' not in (line := stream.readline()):
                assert line

        limit = client.about()["upload_limit"]
        assert f"client_max_body_size {limit >> 20}m;" not in GUIDE, "multipart headers come on top of the file"
        with proxy.asked(
            "POST", "/api/uploads", None, Authorization=f"Bearer {token}", Content_Length=str(400 << 20)
        ) as answer:
            assert answer.status == 413
        assert len(client.status("screen")["history"]) == 1


def test_a_folder_is_restored_as_the_guide_says(tmp_path: Path) -> None:
    """Backed up while it runs, restored to an empty folder of another service, where all of it is there."""
    if shutil.which("sqlite3") is None:
        pytest.skip("needs the command sqlite3")
    (tmp_path / "data").mkdir(mode=0o700)
    token = Tokens(tmp_path / "data").create("anna", "operator")
    truth = campaigns.pool(tmp_path / "pool.csv")
    backup = snippet("cd /srv/dkaf/campaigns")
    restore = snippet("systemctl stop dkaf").replace("systemctl stop dkaf\n", "").replace("systemctl start dkaf\n", "")
    (tmp_path / "backup").mkdir()
    with serving(tmp_path / "data") as service:
        client = service.client(token)
        client.upload(campaigns.policy(tmp_path))
        for name in ("one", "two"):
            client.create(name, client.upload(tmp_path / "pool.csv")["upload"], id="loaf")
            (candidate,) = client.ask(name, request_id="r")
            client.tell(name, candidate["id"], truth[candidate["id"]])
        client.ask("two", 2)
        told = [client.status(name) for name in ("one", "two")]
        policies = client.policies()
        _run(backup, tmp_path)
        client.ask("one")  # after the backup
    shutil.rmtree(tmp_path / "data")
    _run(restore, tmp_path)
    with serving(tmp_path / "data") as service:
        assert service.log().count("Traceback") == 0
        client = service.client(token)
        assert client.about()["name"] == "anna"
        assert [without_pool(client.status(name)) for name in ("one", "two")] == [without_pool(each) for each in told]
        assert client.policies() == policies
        with pytest.raises(dkaf.InputError, match="token"):
            service.client().campaigns()
        (candidate,) = client.ask("one")
        client.tell("one", candidate["id"], truth[candidate["id"]])


def without_pool(status: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in status.items() if key != "pool"}  # uploads are not backed up


def _run(commands: str, folder: Path) -> None:
    """A block of the guide, with its folders here and its user this one."""
    import getpass

    here = commands.replace("/srv/dkaf", str(folder / "data")).replace("/backup", str(folder / "backup"))
    here = here.replace("-o dkaf ", f"-o {getpass.getuser()} ")
    subprocess.run(["bash", "-euc", here], check=True, timeout=60)
