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
from collections.abc import Iterator
from contextlib import ExitStack, suppress
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


def test_a_connection_without_a_header_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import connections

    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.05)

    async def answer(scope: object, receive: object, send: object) -> None:
        raise AssertionError("no request came")

    config = uvicorn.Config(answer, "127.0.0.1", 0, http=connections.Connection, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        for start in (b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
                one.sendall(start)
                with suppress(ConnectionResetError):
                    assert one.recv(1) == b""
    finally:
        server.should_exit = True
        thread.join(60)


def test_a_server_with_few_files_keeps_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    from taylor.serve import connections

    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
    assert connections.most_connections() == 32
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connections.most_connections() == connections.MOST_CONNECTIONS
