"""Connections: who begins a request ends its headers in time, or is disconnected."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's, which waits for headers forever. Bytes that dribble in do not move the deadline."""

    seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.seconds, self._end)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


def patient_for(seconds: float) -> type[Connection]:
    """Connections whose headers come within so many seconds."""
    return type("Connection", (Connection,), {"seconds": seconds})
