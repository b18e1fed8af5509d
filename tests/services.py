"""A service in a process of its own, for several test files."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dkaf


class Service:
    """`dkaf serve` on a free port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self._options = folder, options
        self.start()

    def start(self, port: int = 0) -> None:
        command = [sys.executable, "-m", "dkaf", "serve", "--data", str(self.folder), "--port", str(port)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._log = open(self.folder.with_name(f"{self.folder.name}.log"), "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " is served at " in line, line + self.log()
        self.address = line.split(" is served at ")[1].split()[0].rstrip("/")
        self.port = int(self.address.rsplit(":", 1)[1])

    def log(self) -> str:
        """What it said on its error stream."""
        return Path(self._log.name).read_text()

    def client(self, token: str | None = None) -> dkaf.Client:
        return dkaf.Client(self.address, token, timeout=60.0)

    def kill(self) -> None:
        """As a power cut does."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate()
        self._log.close()


MOLECULES = ("CCO", "CCN", "CCC", "CCCl", "CC=O", "CCS", "CCCO", "CCCN", "CC(C)O", "CC(C)N", "c1ccccc1", "c1ccccc1O")


def example_pool(folder: Path) -> None:
    """The upload that the interface's examples name."""
    from dkaf.service.bodies import POOL

    rows = [f"{smiles},{0.5 * number:g}" for number, smiles in enumerate(MOLECULES, 1)]
    (folder / "uploads" / POOL).write_text("\n".join(["smiles,dose", *rows, ""]))


def check_described(described: dict[str, Any], method: str, path: str, answer: Any) -> str:
    """An answer has the status, the kind and the fields that the description says; which route it is of."""
    import jsonschema

    (route,) = [
        known
        for known in described["paths"]
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path.partition("?")[0])
        and method.lower() in described["paths"][known]
    ]
    answers = described["paths"][route][method.lower()]["responses"]
    assert str(answer.status_code) in answers, (method, path, answer.status_code, answer.text)
    content = answers[str(answer.status_code)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in content, (method, path, kind)
    value = answer.json() if kind.endswith("json") else answer.text
    jsonschema.validate(value, content[kind]["schema"] | {"components": described["components"]})
    return f"{method} {route}"


class Local:
    """A client of an application in this process; an exception of the application is one here."""

    def __init__(
        self, app: Any, address: str, headers: dict[str, str] | None = None, client: str = "127.0.0.1"
    ) -> None:
        import httpx

        self._app, self._address, self._headers, self._client = app, address, headers or {}, client
        self.cookies = httpx.Cookies()

    def request(self, method: str, path: str, **options: Any) -> Any:
        import httpx

        async def send() -> Any:
            transport = httpx.ASGITransport(self._app, client=(self._client, 1234))
            async with httpx.AsyncClient(
                transport=transport, base_url=self._address, headers=self._headers, cookies=self.cookies
            ) as client:
                answer = await client.request(method, path, **options)
                self.cookies.update(client.cookies)
                return answer

        return asyncio.run(send())

    def get(self, path: str, **options: Any) -> Any:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> Any:
        return self.request("POST", path, **options)

    def delete(self, path: str, **options: Any) -> Any:
        return self.request("DELETE", path, **options)


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Service]:
    service = Service(folder, *options)
    try:
        yield service
    finally:
        service.end()
