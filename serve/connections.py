"""Connections of the page: few at once, none idle for long, so that no local user keeps its owner waiting."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 256
"""Open connections; a browser keeps six."""

FILE_SHARE = 4
"""Open files of the process for each connection, at the least."""

HEADER_SECONDS = 10.0
"""Time for the header of a request, from the connection or the last answer on."""

STOP_SECONDS = 3
"""Time for running answers once the server ends; the rest of five seconds goes to its jobs."""


class Connection(H11Protocol):
    """Connection that closes where no request comes in time, or for a newer one where there are too many."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection in, and close the idle ones that have waited longest beyond the limit."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._wait_for_header()
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self and one.is_idle]
        excess = len(self.connections) - most_connections()
        for one in sorted(others, key=lambda one: one._since)[: max(0, excess)]:
            one.transport.abort()
            self.connections.discard(one)

    def data_received(self, data: bytes) -> None:
        """Read on; a complete header ends the wait for it."""
        super().data_received(data)
        if not self.is_idle:
            self._end_wait()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._since = self.loop.time()
        self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_wait()
        super().connection_lost(exc)

    def _wait_for_header(self) -> None:
        self._end_wait()
        self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def most_connections() -> int:
    """Connections that may be open: fewer where the system lets the process open few files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(8, min(MOST_CONNECTIONS, files // FILE_SHARE))


def server_of(application: Any, host: str, port: int) -> uvicorn.Server:
    """Make the server of an application: its limits on connections, and on the time that its end takes."""
    config = uvicorn.Config(
        application,
        host,
        port,
        http=Connection,
        ws="none",
        backlog=most_connections() // 2,  # new connections wait here until one closes
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)
