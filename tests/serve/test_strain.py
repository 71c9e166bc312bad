"""The page under strain: its owner is answered whatever other users of the machine do, and it ends cleanly."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")

FILES = 128
"""Files that the server may have open."""


class Served:
    """A page of the command, with its link, its port and its folder."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        words = [sys.executable, ROOT / "taylor" / "__main__.py", "serve", "--port", str(self.port)]
        self.folder, self.log = folder, folder / "log"
        (folder / "tmp").mkdir()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(map(str, words)), cwd=folder, stderr=log, env=environment, preexec_fn=_few_files
            )
        while self.connect() is None:
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        found = re.search(r"http://\S+", self.log.read_text())
        assert found is not None
        self.link = found[0]

    def connect(self) -> socket.socket | None:
        one = socket.socket()
        if one.connect_ex(("127.0.0.1", self.port)) == 0:
            return one
        one.close()
        return None

    def answered(self) -> bool:
        with urllib.request.urlopen(self.link, timeout=60) as reply:
            return bool(reply.status == 200)


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.process.kill()
    served.process.wait()


@pytest.mark.slow
def test_idle_connections_of_others_keep_nobody_waiting_and_the_end_removes_the_folder(page: Served) -> None:
    with ExitStack() as held:
        for number in range(3 * FILES):
            one = page.connect()
            assert one is not None
            held.enter_context(one)
            if number % 3 == 0:
                one.sendall(b"GET / HTTP/1.1\r\nHost: 127.")
            elif number % 3 == 1:
                one.sendall(b"\x00\xff nonsense\r\n\r\n")
            if number % FILES == 0:
                assert page.answered()
        assert page.answered()
        body = page.connect()
        assert body is not None
        token = page.link.partition("token=")[2]
        body.sendall(f"POST /api/estimate HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Token: {token}\r\n".encode())
        body.sendall(b"Content-Length: 1000\r\n\r\n{")
        body.close()
        assert page.answered()
        assert any((page.folder / "tmp").glob("taylor-serve-*"))
        page.process.send_signal(signal.SIGTERM)
        assert page.process.wait(timeout=60) == 0
    assert not any((page.folder / "tmp").glob("taylor-serve-*"))
    assert len(page.log.read_text().splitlines()) == 1, page.log.read_text()


@contextmanager
def running(answer: object) -> Iterator[tuple[uvicorn.Server, int, threading.Thread]]:
    """A server of an application, with its port and its thread."""
    from taylor.serve import connections

    server = connections.server_of(answer, "127.0.0.1", 0)
    server.config.lifespan = "off"
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server, server.servers[0].sockets[0].getsockname()[1], thread
    finally:
        server.should_exit = True
        thread.join(60)


async def empty(scope: object, receive: object, send: Callable[[dict], Awaitable[None]]) -> None:
    """An answer without a body."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def closed_by_the_other(one: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        return one.recv(1) == b""
    return True


def test_a_connection_without_a_header_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import connections

    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.05)

    async def answer(scope: object, receive: object, send: object) -> None:
        raise AssertionError("no request came")

    with running(answer) as (_, port, _):
        for start in (b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
                one.sendall(start)
                assert closed_by_the_other(one)


def test_a_connection_that_stays_idle_after_an_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import connections

    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with running(empty) as (server, port, _):
        server.config.timeout_keep_alive = 3600  # uvicorn's own limit
        with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 204")
            assert closed_by_the_other(one)


def test_an_answer_that_takes_longer_than_a_header_may_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import connections

    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.05)

    async def slow(scope: object, receive: object, send: Callable[[dict], Awaitable[None]]) -> None:
        await asyncio.sleep(0.3)
        await empty(scope, receive, send)

    with running(slow) as (_, port, _), socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.1 204")


def test_of_idle_connections_beyond_the_limit_the_oldest_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import connections

    monkeypatch.setattr(connections, "HEADER_SECONDS", 3600)  # it closes idle connections too, all at once
    with running(empty) as (server, port, _), ExitStack() as held:
        monkeypatch.setattr(connections, "most_connections", lambda: 8)
        many = [held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(20)]
        assert all(closed_by_the_other(one) for one in many[:12])
        assert len(server.server_state.connections) <= 8
        many[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert many[-1].recv(4096).startswith(b"HTTP/1.1 204")


def test_the_server_ends_although_an_answer_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import connections

    assert connections.STOP_SECONDS < 5
    monkeypatch.setattr(connections, "STOP_SECONDS", 0.05)
    begun = threading.Event()

    async def never(scope: object, receive: object, send: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    with running(never) as (server, port, thread), socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert begun.wait(60)
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import app
    from taylor.serve.jobs import Jobs
    from taylor.serve.question import Models

    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)
    page = app.Page("right", Models(tmp_path / "models"), Jobs(tmp_path / "jobs", 1), None)
    with (
        running(app.application(page)) as (_, port, _),
        socket.create_connection(("127.0.0.1", port), timeout=60) as one,
    ):
        one.sendall(b"POST /api/estimate HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Token: right\r\nContent-Length: 9\r\n\r\n{")
        assert one.recv(4096).startswith(b"HTTP/1.1 400")


def test_a_server_with_few_files_keeps_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import connections

    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
    assert connections.most_connections() == 32
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connections.most_connections() == connections.MOST_CONNECTIONS
