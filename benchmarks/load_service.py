"""Clients of a running `dkaf serve`, in a process of their own: each asks and tells on one campaign until time is over.

    python -m benchmarks.load_service ADDRESS SECONDS CLIENTS CAMPAIGN...

Each keeps a connection open, and sends a request whose answer was lost again under its key. What they saw is printed
as JSON.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 60.0  # seconds without an answer, a restart of the service included


@dataclass
class Seen:
    """What clients saw."""

    asks: list[float] = field(default_factory=list)
    tells: list[float] = field(default_factory=list)
    """Seconds of each request that was answered at its first try."""
    again: int = 0
    """Requests that were sent again."""
    errors: list[str] = field(default_factory=list)
    given: dict[str, list[str]] = field(default_factory=dict)
    acknowledged: dict[str, list[str]] = field(default_factory=dict)
    """Candidates of each campaign."""
    seconds: float = 0.0


class Connection:
    """One that stays open; HTTP as far as it is needed here, so that the clients cost little."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname, parts.port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        reader, writer = self._streams
        sent = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(sent)}\r\n\r\n".encode()
            + sent
        )
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        (length,) = (int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length:"))
        return int(head.split()[1]), json.loads(await reader.readexactly(length))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _post(connection: Connection, path: str, body: Any, times: list[float], seen: Seen) -> Any:
    """The answer; None where there is none, or it is an error."""
    began, tries = time.perf_counter(), 0
    while time.perf_counter() - began < PATIENCE:
        try:
            status, answer = await asyncio.wait_for(connection.post(path, body), PATIENCE)
        except (OSError, EOFError, TimeoutError):
            connection.close()
            tries, seen.again = tries + 1, seen.again + 1
            await asyncio.sleep(0.1)
            continue
        if status != 200:
            seen.errors.append(f"{status} {path} {answer}")
            return None
        if not tries:
            times.append(time.perf_counter() - began)
        return answer
    seen.errors.append(f"no answer {path}")
    return None


async def _client(address: str, number: int, campaign: str, until: float, seen: Seen) -> None:
    connection, at = Connection(address), f"/api/campaigns/{campaign}"
    turn = 0
    while time.perf_counter() < until and not seen.errors:
        turn += 1
        asked = await _post(connection, f"{at}/ask", {"n": 1, "request_id": f"a{number}-{turn}"}, seen.asks, seen)
        if asked is None:
            break
        (candidate,) = asked
        seen.given.setdefault(campaign, []).append(candidate["id"])
        value = -sum((float(x) - 0.3) ** 2 for name, x in candidate["columns"].items() if name != "id")
        told = {"measurements": [{"id": candidate["id"], "value": value}], "key": f"t{number}-{turn}"}
        if await _post(connection, f"{at}/tell", told, seen.tells, seen) is None:
            break
        seen.acknowledged.setdefault(campaign, []).append(candidate["id"])
    connection.close()


async def _all(address: str, seconds: float, clients: int, campaigns: list[str]) -> Seen:
    seen, began = Seen(), time.perf_counter()
    each = [_client(address, n, campaigns[n % len(campaigns)], began + seconds, seen) for n in range(clients)]
    await asyncio.gather(*each)
    seen.seconds = time.perf_counter() - began
    return seen


if __name__ == "__main__":
    seen = asyncio.run(_all(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
    print(json.dumps(asdict(seen)))
