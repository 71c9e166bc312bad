"""Answers to an agent's questions: each in a process of its own, bounded in time and memory, a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taylor.base.documents import ERROR, RESULT
from taylor.base.errors import InputError, TaylorError
from taylor.base.files import READ_BELOW
from taylor.base.isolated import module_command
from taylor.base.memory_limit import MOST_BYTES as MOST_OF_PROCESS
from taylor.base.orphans import PARENT
from taylor.schemas.reading import read_request
from taylor.schemas.request import Search
from taylor.schemas.writing import write_document
from taylor.serve.agent_paths import AgentPaths

MOST_BYTES = 64 * 1024
"""Longest question."""

MOST_ANSWER_BYTES = 32 << 20
"""Longest answer of a process that is read."""

MOST_WAITING = 100
"""Questions that may wait; more are refused."""

MOST_KEPT = 50
"""Results that a session remembers for comparison."""

MARGIN_SECONDS = 60.0
"""Time beyond the limit of a solve in which its process starts, reads and writes."""

KEPT = re.compile(r"r[0-9]{1,9}")

SUBCOMMANDS = {"evaluate": "solve"}
"""Command line of a request's command, where it has another name."""

ESTIMATES = ("-dryrun=n", "-check=n", "--dryrun_backend=estimate", "-workers=1", "--store=none")
FIXED_FLAGS: Mapping[str, tuple[str, ...]] = {
    "solve": ESTIMATES,
    "search": ("--dryrun_backend=estimate", "--workers=1", "--store=none"),
    "size": ("--workers=1",),
}
"""Flags of every question: no outside program is started, no history is written."""


@dataclass
class AgentQuestions:
    """Questions of one session.

    Parameters
    ----------
    paths : AgentPaths
        Folders of the files that they may name.
    work : Path
        Folder of the files on the way to an answer; nothing else is written.
    seconds : float
        Longest time limit of a solve.
    bytes_each : int
        Most memory of a process.
    at_once : int
        Processes.
    """

    paths: AgentPaths
    work: Path
    seconds: float = 60.0
    bytes_each: int = 420 << 20
    at_once: int = 2
    waiting: int = 0
    _turns: asyncio.Semaphore | None = None
    _kept: dict[str, Path] = field(default_factory=dict)
    _count: int = 0

    async def answer(self, command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The document that answers a question; that of an error where it has none.

        Parameters
        ----------
        command : str
            Command of the request.
        arguments : mapping
            Its fields.
        """
        try:
            if len(json.dumps(arguments)) > MOST_BYTES:
                raise InputError(f"is longer than {MOST_BYTES} bytes", field="arguments", code="too_much")
            if named := sorted({"command", "schema"} & set(arguments)):
                raise InputError(
                    "is no argument of a tool", field=named[0], value=arguments[named[0]], cure="leave it out"
                )
            flags = read_request({**arguments, "command": command}).flags()
            flags = self._settled(command, flags)
            if self.waiting >= MOST_WAITING:
                raise InputError(f"{MOST_WAITING} questions wait already", cure="ask again later", code="too_much")
        except (TaylorError, ValueError, RecursionError) as error:
            return _error_document(error)
        self._turns = self._turns or asyncio.Semaphore(self.at_once)
        self.waiting += 1
        try:
            async with self._turns:
                document = await self._in_process(SUBCOMMANDS.get(command, command), flags)
        finally:
            self.waiting -= 1
        return self._remembered(document)

    def _settled(self, command: str, flags: dict[str, Any]) -> dict[str, Any]:
        """Flags with paths and names of results settled, and a time limit."""
        if command == "compare":
            for name in ("first", "second"):
                flags[name] = str(self._result(flags[name], name))
            return flags
        done = self.paths.settled(flags)
        if command in ("solve", "evaluate", "search", "size"):
            done["time_limit"] = min(done.get("time_limit", self.seconds), self.seconds)
        if command in ("solve", "evaluate"):
            done["write"] = "o" in done
        return done

    def _result(self, text: str, field_name: str) -> Path:
        if KEPT.fullmatch(text):
            if text not in self._kept:
                known = ", ".join(self._kept) or "none yet"
                cure = f"this session has {known}; files.compare of an answer names its result"
                raise InputError("is no result of this session", field=field_name, value=text, cure=cure)
            return self._kept[text]
        return self.paths.readable(text, field_name)

    async def _in_process(self, subcommand: str, flags: Mapping[str, Any]) -> dict[str, Any]:
        """Document of a process that runs a command in a folder of its own."""
        words = [subcommand, "--json", "--quiet", "--config", "-", *FIXED_FLAGS.get(subcommand, ())]
        seconds = float(flags.get("time_limit", self.seconds))
        limit = seconds + MARGIN_SECONDS
        if subcommand == "search":
            flags = _with_shared_time(flags, seconds)
        with tempfile.TemporaryDirectory(dir=self.work, prefix="question-") as folder:
            process = await asyncio.create_subprocess_exec(
                *module_command("taylor.command_lines.bounded", *words),
                cwd=folder,
                env=_environment(self.bytes_each, (*self.paths.folders, self.work)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                text = await asyncio.wait_for(_talk(process, json.dumps(flags).encode()), limit)
            except asyncio.TimeoutError:
                cure = "name fewer ranks or layers, fix degrees, or name a shorter time_limit"
                why = f"took more than {limit:g} s and was ended"
                return _error_document(InputError(why, field=subcommand, cure=cure, code="too_much"))
            except InputError as error:
                return _error_document(error)
            finally:
                await _end(process)
        return _document(text)

    def _remembered(self, document: dict[str, Any]) -> dict[str, Any]:
        """A result with its name in this session, without the problem, which only programs read."""
        shown: dict[str, Any] = without_lost_files(document, self.work.resolve())
        if document.get("schema") != RESULT or not document.get("layers"):
            return shown
        self._count += 1
        name = f"r{self._count}"
        self._kept[name] = write_document(self.work / "results" / f"{name}.json", RESULT, document)
        while len(self._kept) > MOST_KEPT:
            self._kept.pop(next(iter(self._kept))).unlink()
        shown.pop("problem", None)
        return shown | {"files": {**shown["files"], "compare": name}}


def without_lost_files(value: Any, work: Path) -> Any:
    """A document without the files that went with the folder of its process: relative paths, and those below `work`."""
    if not isinstance(value, dict):
        return value
    kept = {name: without_lost_files(each, work) for name, each in value.items()}
    if isinstance(files := kept.get("files"), dict):
        lasting = {role: Path(path) for role, path in files.items() if Path(path).is_absolute()}
        kept["files"] = {role: str(path) for role, path in lasting.items() if not path.is_relative_to(work)}
    return kept


async def _talk(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    """Answer of a process to a question on its standard input.

    Raises
    ------
    InputError
        When it is too long.
    """
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(question)
        await process.stdin.drain()
        process.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended before it read: its answer says why
    pieces, size = [], 0
    while piece := await process.stdout.read(1 << 16):
        size += len(piece)
        if size > MOST_ANSWER_BYTES:
            cure = "name fewer ranks or layers, or fix degrees"
            raise InputError(f"has an answer of more than {MOST_ANSWER_BYTES >> 20} MiB", cure=cure, code="too_much")
        pieces.append(piece)
    await process.wait()
    return b"".join(pieces)


def _with_shared_time(flags: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Flags of a search whose solves, one after the other, share the time; without ``full`` nothing is solved."""
    rest = {name: value for name, value in flags.items() if name != "time_limit"}
    if not flags.get("full"):
        return rest
    return rest | {"time_limit": seconds / flags.get("profile_num", Search.model_fields["profile_num"].default)}


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process with all that it started, which is a group of its own."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _document(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and "schema" in found:
        return found
    why = "the process that computed the answer died: the question needs more memory than it may take"
    return _error_document(InputError(why, cure="name fewer ranks or layers, or fix degrees", code="too_much"))


def _environment(most_bytes: int, folders: Sequence[Path]) -> dict[str, str]:
    """Environment of a process that reads below some folders; the user's cluster and store are not used."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TAYLOR_")}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    below = os.pathsep.join(os.path.realpath(folder) for folder in folders)
    return {**kept, **threads, PARENT: str(os.getpid()), MOST_OF_PROCESS: str(most_bytes), READ_BELOW: below}


def _error_document(error: BaseException) -> dict[str, Any]:
    stated = error if isinstance(error, TaylorError) else InputError(f"is no request: {error}", field="arguments")
    return {"schema": ERROR, **stated.to_dict()}
