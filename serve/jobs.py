"""Jobs of the page: each in a folder and a process of its own, a few at a time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text, write_atomic
from taylor.base.isolated import module_command
from taylor.base.orphans import PARENT
from taylor.serve.child import DONE, FILES, JOB, PROGRESS, STOPPED
from taylor.serve.own_files import OWN
from taylor.serve.question import Question

MOST_WAITING = 200
"""Jobs that may wait; more are refused."""

KINDS = ("solve", "rank", "size")

_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass
class Jobs:
    """All jobs of a server.

    Parameters
    ----------
    root : Path
        Parent of the jobs' folders.
    at_once : int
        Processes.
    folders : sequence of Path
        Folders from which models may be read.
    store : str
        Store of the runs; empty for none.
    """

    root: Path
    at_once: int
    folders: Sequence[Path] = ()
    store: str = ""
    waiting: int = 0
    _turns: asyncio.Semaphore | None = None
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _stopped: set[str] = field(default_factory=set)

    @property
    def own(self) -> Path:
        """Folder of the files that were given to the page."""
        return self.root / OWN

    def start(self, kind: str, ask: Question) -> str:
        """Start a job, now or as soon as a process is free; returns its name.

        Raises
        ------
        InputError
            When its kind is unknown, it would not heed a setting, or too many wait.
        """
        if kind not in KINDS:
            raise InputError("is no job", field="kind", value=kind)
        ask.refuse_for(kind)
        if self.waiting >= MOST_WAITING:
            raise InputError(f"{MOST_WAITING} jobs wait already", field="job", cure="try again later")
        name = secrets.token_hex(8)
        job = {
            "kind": kind,
            "ask": ask.model_dump(),
            "folders": [str(one) for one in self.folders],
            "store": self.store,
            "own": str(self.own),
        }
        write_atomic(self.root / name / JOB, json.dumps(job))
        self.waiting += 1
        task = asyncio.get_running_loop().create_task(self._run(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return name

    async def _run(self, name: str) -> None:
        if self._turns is None:
            self._turns = asyncio.Semaphore(self.at_once)
        folder = self.root / name
        async with self._turns:
            self.waiting -= 1
            if name in self._stopped:
                write_atomic(folder / DONE, json.dumps({"error": STOPPED}))
                return
            process = await asyncio.create_subprocess_exec(
                *module_command("taylor.serve.child", str(folder.resolve())),
                cwd=folder,
                # A job reads no file elsewhere, not even its own temporary ones.
                env={**os.environ, PARENT: str(os.getpid()), "TMPDIR": str(folder.resolve())},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            self._running[name] = process
            await process.wait()
            del self._running[name]
        if not (folder / DONE).is_file():
            why = STOPPED if name in self._stopped else "its process died: was it killed, or is the memory full?"
            write_atomic(folder / DONE, json.dumps({"error": why}))

    def stop(self, name: str) -> None:
        """End a job, now or once it starts; a solve keeps its best plan so far. A second call ends it at once."""
        process = self._running.get(self._folder(name).name)
        if process is not None:
            process.send_signal(signal.SIGKILL if name in self._stopped else signal.SIGINT)
        self._stopped.add(name)

    def state(self, name: str) -> dict[str, Any]:
        """State of a job: waiting, its best step and bound while it runs, or its answer."""
        folder = self._folder(name)
        done = _json(folder / DONE)
        if done is not None:
            there = [role for role, file in FILES.items() if (folder / file).is_file()]
            return {"state": "done", "answer": done, "files": there}
        if name in self._running:
            return {"state": "running", "progress": _json(folder / PROGRESS)}
        return {"state": "waiting", "waiting": self.waiting}

    def file(self, name: str, role: str) -> Path:
        """File that a job has written.

        Raises
        ------
        InputError
            When there is none of this name.
        """
        path = self._folder(name) / FILES.get(role, "none")
        if role not in FILES or not path.is_file():
            raise InputError("is no file of this job", field="file", value=role)
        return path

    async def close(self) -> None:
        """End all processes."""
        for task in list(self._tasks):
            task.cancel()
        for process in list(self._running.values()):
            process.kill()
            await process.wait()

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        if not _NAME.fullmatch(name) or not folder.is_dir():
            raise InputError("is no job", field="job", value=name)
        return folder


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (InputError, ValueError):
        return None
