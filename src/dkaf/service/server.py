"""The process of `dkaf serve`: bound to an address, alone with its folder, until it is interrupted."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn

from dkaf.errors import InputError
from dkaf.service.app import create_app, make_folder
from dkaf.service.auth import Limits
from dkaf.service.connections import patient_for
from dkaf.service.scene import Scene
from dkaf.service.tokens import check_host, is_loopback

THREADS = 160


class Server(uvicorn.Server):
    """As many threads as clients that may wait for one another, who are then answered together; an end that waits."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.config.app.state.closing = True  # type: ignore[union-attr] # who listens is let go
        super().handle_exit(sig, frame)


def serve(
    folder: Path,
    host: str,
    port: int,
    limits: Limits,
    scene: Scene | None = None,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until interrupted; `started` gets the address when it is bound."""
    check_host(folder, host)
    make_folder(folder)
    with _alone(folder), contextlib.closing(_bound(host, port)) as bound:
        config = uvicorn.Config(
            create_app(folder, limits, scene, local=is_loopback(host)),
            log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3, lifespan="off",
            http=patient_for(limits.headers), ws="none",
        )  # fmt: skip
        shown = f"[{host}]" if ":" in host else host
        started(f"http://{shown}:{bound.getsockname()[1]}/")
        Server(config).run(sockets=[bound])


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One service a folder: a second one would take the first one's unfinished uploads for left-overs."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".serving.lock", timeout=0):
            yield
    except Timeout:
        raise InputError(
            f"one service serves a folder, another one serves {folder}; end it, or name another folder with --data"
        ) from None


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family[0], socket.SOCK_STREAM)
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(family[4])
        bound.listen(2048)
        return bound
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(
            f"--host and --port are free to bind, {host} {port} is not ({error}); choose others"
        ) from error
