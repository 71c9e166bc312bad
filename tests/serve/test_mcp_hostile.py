"""`taylor mcp` under a hostile client: no crash, no write outside, less than a gigabyte."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.schemas.documents import check
from tests.serve.test_mcp import SCRIPT, folder  # noqa: F401

CALLS, PARALLEL, MOST_MIB = 1000, 50, 1024

STRANGE: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, -1e-308, "", "x" * 2000, "../../etc/passwd", "/etc/shadow", "-o", "--help",
    "\x00", "; rm -rf /", "$(touch pwned)", [], [[]], {}, {"a": {"b": []}}, "NaN", ["--json"], {"0": -5}, {"tp": 10**9},
]  # fmt: skip
STRANGE_NAMES = (
    "../../etc/passwd", "/etc/shadow", "; touch pwned", "$(touch pwned).sh", "`touch pwned`", "a\nb.sh", "~/.bashrc",
    "..", ".", "sub/../../secret.sh", "link.sh", "/dev/stdin", "C:\\x", "file:///etc/passwd", "x" * 300, "\u202egnp.sh",
)  # fmt: skip
"""Names that the schema allows."""

OUTPUTS = ("result_json", "html", "o")

FIELDS = (
    "file", "model", "device", "world_size", "seq", "gbs", "fix", "framework", "software", "override", "margin", "risk",
    "vpp", "schedule", "time_limit", "o", "result_json", "html", "stage", "first", "second", "launcher", "feature",
    "search", "stage_limit", "measured_peak", "out_of_memory", "command", "schema", "no_such_field",
)  # fmt: skip


class Server:
    """A server and its raw wire."""

    def __init__(self, *words: str, cwd: Path) -> None:
        command = [sys.executable, "-m", "taylor", "mcp", "--quiet", *words]
        environment = {"PYTHONPATH": str(ROOT), "HOME": str(cwd)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=cwd, stdin=pipe, stdout=pipe, env=environment)
        self.answers: dict[Any, dict[str, Any]] = {}
        self.most_kib, self._next = 0, 0
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._measure, daemon=True).start()
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        self.wait(self.send("initialize", hello))
        self.line({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _read(self) -> None:
        for line in self.process.stdout:
            answer = json.loads(line)
            self.answers[answer.get("id")] = answer

    def _measure(self) -> None:
        """Follow the resident memory of the server and all its processes."""
        while self.process.poll() is None:
            listed = subprocess.run(["ps", "-eo", "pid=,ppid=,rss="], capture_output=True, text=True).stdout
            rows = [tuple(map(int, line.split())) for line in listed.splitlines()]
            family, grown = {self.process.pid}, True
            while grown:
                more = {pid for pid, parent, _ in rows if parent in family} - family
                family, grown = family | more, bool(more)
            self.most_kib = max(self.most_kib, sum(rss for pid, _, rss in rows if pid in family))
            time.sleep(0.1)

    def line(self, message: Any) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: Any) -> int:
        self._next += 1
        self.line({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        return self._next

    def call(self, name: Any, arguments: Any) -> int:
        return self.send("tools/call", {"name": name, "arguments": arguments})

    def wait(self, number: int, seconds: float = 600.0) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while number not in self.answers:
            assert self.process.poll() is None and time.monotonic() < until, "no answer"
            time.sleep(0.01)
        return self.answers[number]

    def close(self) -> int:
        self.process.stdin.close()
        return self.process.wait(60)


@pytest.mark.slow
def test_a_hostile_client_gets_errors_as_data_and_leaves_no_trace(folder, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    server = Server("--folder", str(folder), "--output", str(out), "--time_limit", "5", cwd=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    drawn = random.Random(7)
    numbers = []
    for count in range(CALLS):
        name = drawn.choice(["solve", "evaluate", "search", "explain", "support", "compare", "shell", "", 5])
        # A support call of proper fields would be answered, which takes a process each: one wrong field makes sure.
        arguments: Any = {field: drawn.choice(STRANGE) for field in drawn.sample(FIELDS, drawn.randint(1, 6))}
        arguments = drawn.choice(
            [arguments | {"no_such_field": count}, arguments | {"command": 7}, [arguments], "text"]
        )
        numbers.append(server.call(name, arguments))
        if count % 50 == 0:
            server.line(drawn.choice([b"{", b"[]", b"\xff\xfe", b"{}", b"[" * 5000, b'"' + b"x" * (2 << 20)]))
    for number in numbers:
        answer = server.wait(number)
        if "result" in answer:
            document = check(answer["result"]["structuredContent"])
            assert answer["result"]["isError"] and document["code"] in ("bad_input", "too_much"), document
        else:
            assert answer["error"]["code"] < 0
    parallel = [
        server.call("evaluate", {"file": SCRIPT, "device": "h100-80g"}) if count % 2 else server.call("support", {})
        for count in range(PARALLEL)
    ]
    for number in parallel:
        found = check(server.wait(number)["result"]["structuredContent"])
        assert found["schema"] in ("taylor.result/1", "taylor.support/1")
    for text in STRANGE_NAMES:  # by name, so that no more wait than may
        one = {"file": SCRIPT, "device": "h100-80g", "time_limit": 1}
        fields = ("file", "device", "result_json", "html", "o", "stage_devices")
        valid = {field: server.call("solve", {**one, field: text}) for field in fields}
        valid["model"] = server.call("search", {"model": text, "world_size": 8})
        valid["prices"] = server.call("size", {"model": "llama3-8b", "max_devices": 8, "prices": text})
        valid["first"] = server.call("compare", {"first": text, "second": text})
        for field, number in valid.items():
            document = check(server.wait(number)["result"]["structuredContent"])
            written = field in OUTPUTS and document["schema"] == "taylor.result/1"
            assert written or document.get("code") in ("bad_input", "no_solution"), (field, text, document)
    huge = server.call("search", {"model": "deepseek-v3", "world_size": 10**6, "device": "h100-80g"})
    found = check(server.wait(huge)["result"]["structuredContent"])
    assert found["schema"] in ("taylor.search/1", "taylor.error/1")
    assert server.close() == 0
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    # Numba and matplotlib keep what they made in the user's folders.
    of_user = {".cache", ".config"}
    kept = {path: data for path, data in after.items() if not of_user & set(path.parts)}
    assert {path: data for path, data in kept.items() if not path.is_relative_to(out)} == before
    assert {path.name for path in kept if path.is_relative_to(out)} <= {Path(text).name for text in STRANGE_NAMES}
    assert server.most_kib < MOST_MIB * 1024, server.most_kib
