"""The page under load: twenty sessions at once from a model to a script, and requests that must be refused."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from benchmarks.reliability.campaign import ROOT, Figure, Part, Portion, Result

SESSIONS, QUESTIONS = 20, 8
MOST_MS = 50.0
NO_PLAN = "no plan fits the memory"
"""Answer where a model is too large for its ranks, as in some of the settings."""
SETTINGS = [
    {"model": model, "device": "h100-80g", "ranks": 128, "tp": tp, "pp": pp, "mbs": mbs, "seconds": 10.0}
    for model in ("llama3-70b", "llama3-8b") for tp, pp in ((8, 4), (4, 4), (8, 2), (4, 8), (2, 8)) for mbs in (1, 2)
]  # fmt: skip
BAD = (
    ("POST", "/api/estimate", b"{", True, 400),
    ("POST", "/api/estimate", b'{"model": "../../etc/passwd", "device": "h100-80g", "ranks": 64}', True, 400),
    ("POST", "/api/jobs/solve", b"[" * 60_000, True, 400),
    ("GET", "/api/job/..%2f..%2fetc/passwd", None, True, 404),
    ("GET", "/api/history", None, False, 403),
    ("POST", "/api/estimate", json.dumps(SETTINGS[0]).encode(), False, 403),
)
"""Method, path, content, whether the token is right, and the answer that there must be."""


class Session:
    """A person at the page."""

    def __init__(self, link: str) -> None:
        self.link = urlsplit(link)
        self.token = self.link.query.removeprefix("token=")

    def ask(self, method: str, path: str, content: bytes | None = None, right: bool = True) -> tuple[int, bytes]:
        """A request of its own; its status and what came back."""
        line = http.client.HTTPConnection(str(self.link.hostname), self.link.port, timeout=300)
        line.request(method, path, content, {"X-Token": self.token if right else "wrong"})
        reply = line.getresponse()
        return reply.status, reply.read()

    def reply(self, path: str, content: Mapping[str, Any] | None = None) -> Any:
        """Response to a request that must succeed."""
        method = "GET" if content is None else "POST"
        status, text = self.ask(method, path, None if content is None else json.dumps(content).encode())
        assert status == 200, text
        return json.loads(text)

    def go(self, number: int) -> Result:
        """Settings, estimates, a solve, its files; what must be refused in between."""
        refused = [self.ask(method, path, content, right)[0] == want for method, path, content, right, want in BAD]
        estimates = [self.reply("/api/estimate", {**SETTINGS[number], "recompute": 100.0 * share / QUESTIONS})
                     for share in range(QUESTIONS)]  # fmt: skip
        job = self.reply("/api/jobs/solve", SETTINGS[number])["job"]
        while (state := self.reply(f"/api/job/{job}"))["state"] != "done":
            time.sleep(0.5)
        answer = state["answer"]
        files = {role: self.ask("GET", f"/api/job/{job}/{role}") for role in state["files"]}
        ms = [one["answered_in_ms"] for one in estimates]
        return {"refused": all(refused), "ms": ms, "steps": [one["step_ms"] for one in estimates],
                "solved": answer.get("step_ms"), "error": answer.get("error"), "run": answer.get("run"),
                "files": sorted(role for role, (status, text) in files.items() if status == 200 and text)}  # fmt: skip


def sessions() -> Result:
    """Twenty at once; then each one's estimates again, alone."""
    with tempfile.TemporaryDirectory(prefix="page-") as own:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        words = [sys.executable, str(ROOT / "taylor" / "__main__.py"), "serve", "--port", port, "--workers", "4"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        server = subprocess.Popen(words, cwd=own, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            found = re.search(r"http://\S+", server.stderr.readline())
            assert found is not None
            one = Session(found[0])
            while True:
                try:
                    one.reply("/api/choices")
                    break
                except OSError:
                    time.sleep(0.2)
            with ThreadPoolExecutor(SESSIONS) as pool:
                together = list(pool.map(lambda number: Session(found[0]).go(number), range(SESSIONS)))
            alone = [
                [
                    one.reply("/api/estimate", {**setting, "recompute": 100.0 * share / QUESTIONS})
                    for share in range(QUESTIONS)
                ]
                for setting in SETTINGS
            ]
            remembered = {run["id"] for run in one.reply("/api/history")["runs"]}
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()
    ms = [reply["answered_in_ms"] for row in alone for reply in row]
    return {
        "sessions": SESSIONS,
        "refused": all(each["refused"] for each in together),
        "same": [[reply["step_ms"] for reply in row] for row in alone] == [each["steps"] for each in together],
        "solved": sum(each["solved"] is not None for each in together),
        "unfit": sum(NO_PLAN in (each["error"] or "") for each in together),
        "errors": sorted({each["error"] for each in together if each["error"]}),
        "scripts": sum("script" in each["files"] for each in together),
        "remembered": len({each["run"] for each in together} & remembered),
        "alone_ms": [statistics.median(ms), max(ms)],
        "together_ms": statistics.median(each for row in together for each in row["ms"]),
    }  # fmt: skip


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The row of the sessions."""
    [one] = results.values()
    whole = one["sessions"]
    return [
        Figure(
            "page", "20 sessions at once; a malformed request, a path outside, a wrong token: refused, nothing lost",
            f"{one['solved']} of {whole} solved, {one['remembered']} of them remembered, {one['scripts']} start "
            f"scripts; {one['unfit']} answered that no plan fits, and by how much; "
            f"{'every' if one['refused'] else 'not every'} bad request refused; "
            f"{'each' if one['same'] else 'not each'} answer that of the same question asked alone",
            one["refused"] and one["same"] and one["solved"] + one["unfit"] == whole
            and one["solved"] == one["remembered"] == one["scripts"],
            "a real server, 20 connections; tests/serve clicks the same way in Chromium",
        ),
        Figure(
            "page", f"memory, step and MFU at once: under {MOST_MS:g} ms",
            f"{one['alone_ms'][0]:.0f} ms (median), {one['alone_ms'][1]:.0f} at most; {one['together_ms']:.0f} with "
            "20 at once",
            one["alone_ms"][0] < MOST_MS,
            f"{len(SETTINGS) * QUESTIONS} settings of two models, as the server timed them",
        ),
    ]  # fmt: skip


SOURCES = ("serve",)
PAGE = Part("page", lambda share: [Portion("sessions", sessions)], figures, at_once=1, sources=SOURCES)
