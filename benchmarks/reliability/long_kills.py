"""The page and the planner of small runs killed: the processes in other sessions that they start end with them."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reliability.campaign import ROOT, Result
from benchmarks.reliability.sandbox import ORPHAN_SECONDS
from benchmarks.tune_kills import MARK, kill_often, marked
from taylor.workflows.measuring.history import Store

ASK = {"model": "llama2-7b", "device": "h100-80g", "ranks": 32, "tp": 2, "pp": 4, "gbs": 64, "seconds": 60.0}
LONGEST_S = 300.0


class Page:
    """A page in a folder of its own, with its processes."""

    def __init__(self, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.mark, self.log = secrets.token_hex(8), folder / "log"
        own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), MARK: self.mark}
        (folder / "tmp").mkdir(exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "taylor" / "__main__.py"), "serve", "--port", str(port)],
                cwd=folder, env={**os.environ, **own}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + LONGEST_S
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the page did not start: {self.log.read_text()}")
            time.sleep(0.05)
        found = re.search(r"token=(\S+)", self.log.read_text())
        self.token = found[1] if found else ""

    def ask(self, path: str, content: object = None) -> Any:
        """Answer to a question, a post where it has a content."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.address + path, data, {"X-Token": self.token})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def solved(self) -> dict[str, Any]:
        """Answer of a solve, without the name of its run."""
        name = self.ask("/api/jobs/solve", ASK)["job"]
        end = time.monotonic() + LONGEST_S
        while (state := self.ask(f"/api/job/{name}"))["state"] != "done":
            if time.monotonic() > end:
                raise RuntimeError(f"the page did not answer: {state}")
            time.sleep(0.05)
        return {key: value for key, value in state["answer"].items() if key != "run"}

    def kill(self, alone: bool) -> list[str]:
        """Kill the server, with all its processes or alone; what is wrong then."""
        if alone:
            self.process.kill()
        else:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return ["a process outlived the page"] if marked(self.mark, ORPHAN_SECONDS) else []

    def end(self) -> None:
        """End it as a user does."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


def served_and_killed(count: int, seed: int) -> Result:
    """Kill the page while it solves, look at what is left, start it again and ask the same."""
    rng = np.random.default_rng([7, seed])
    with tempfile.TemporaryDirectory(prefix="served-") as own:
        page = Page(Path(own))
        whole = page.solved()
        began = time.monotonic()
        page.solved()
        seconds = time.monotonic() - began
        page.end()
    found: list[str] = []
    early = 0
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="served-") as own:
            folder = Path(own)
            page = Page(folder)
            page.ask("/api/jobs/solve", ASK)
            moment = float(rng.uniform(0.0, 1.05)) * seconds
            time.sleep(moment)
            where = f"serve, seed {seed}, kill {number} after {moment:.3f} s"
            found += [f"{where}: {text}" for text in page.kill(number % 2 == 1)]
            kept = _runs(folder)
            early += not kept
            again = Page(folder)
            answer = again.solved()
            again.end()
            if answer != whole:
                found.append(f"{where}: started again, another answer: {answer.get('error') or answer.get('step_ms')}")
            if _runs(folder) != kept + 1 or kept > 1:
                found.append(f"{where}: {kept} runs remembered, then {_runs(folder)}")
            if len(list((folder / "tmp").glob("taylor-serve-*"))) > 1:
                found.append(f"{where}: the second page left its folder")
    return {"kills": count, "before_the_end": early, "kept_rows": 0, "debris": 0, "faults": found}


def _runs(folder: Path) -> int:
    """Runs that the page has remembered; a damaged store is an error."""
    file = folder / "pipeline_output" / "history.sqlite"
    return len(Store(str(file)).runs()) if file.is_file() else 0


def tuned_and_killed(count: int, seed: int) -> Result:
    """Kill the planner of small runs."""
    with tempfile.TemporaryDirectory(prefix="tuned-") as own:
        done = kill_often(Path(own), count, seed, second=False)
    return {
        "kills": done.kills, "before_the_end": done.kills, "kept_rows": done.found_again, "debris": 0,
        "faults": [f"tune, seed {seed}: {text}" for text in done.faults],
    }  # fmt: skip
