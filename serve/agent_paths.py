"""Paths in an agent's questions: read only from the folders of the server, written only to its output folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError

MODEL_FILE = ".json"
QUOTED = set(" \t\n\r'\"\\")
"""Signs that a path must not have: a script's path is followed by its arguments."""

DEVICE_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class AgentPaths:
    """Folders that questions may name files in.

    Parameters
    ----------
    folders : tuple of Path
        Read; a relative path is looked up in each, in this order.
    output : Path or None
        Written; None refuses every output.
    """

    folders: tuple[Path, ...] = ()
    output: Path | None = None

    def settled(self, flags: dict[str, Any]) -> dict[str, Any]:
        """Flags of a question with its paths absolute.

        Raises
        ------
        InputError
            When a path lies elsewhere, or there is no such file.
        """
        done = dict(flags)
        if (file := done.get("file")) is not None:
            done["file"] = self._script(file)
        for name in ("model", "model_as"):
            if (model := done.get(name)) is not None and _is_path(model):
                done[name] = str(self.readable(model, name))
        if isinstance(devices := done.get("device"), list):
            done["device"] = [self._device(each) for each in devices]
        elif devices is not None:
            done["device"] = self._device(devices)
        if (prices := done.get("prices")) is not None:
            done["prices"] = str(self.readable(prices, "prices"))
        if "/" in done.get("stage_devices", "") or "\\" in done.get("stage_devices", ""):
            raise InputError("names registered devices only", field="stage_devices", value=done["stage_devices"])
        for name in ("o", "result_json", "html"):
            if done.get(name) is not None:
                done[name] = str(self.writable(done[name], name))
        return done

    def readable(self, text: str, field: str) -> Path:
        """File or folder of the folders.

        Raises
        ------
        InputError
            When it lies in none of them, is not there, or has a sign that a command line would have to quote.
        """
        if (path := self._found(text)) is not None:
            refuse_quoted(path, field)
            return path
        cure = "name a file in " + (" or ".join(map(str, self.folders)) or "a folder given by taylor mcp --folder")
        raise InputError("is no file in the folders of this server", field=field, value=text, cure=cure)

    def _found(self, text: str) -> Path | None:
        """What a path names in the first of the folders that has it."""
        for folder in self.folders:
            try:
                path = (folder / text).resolve()
                if path.is_relative_to(folder.resolve()) and path.exists():
                    return path
            except (OSError, RuntimeError, ValueError):  # too long a name, a circle of links
                continue
        return None

    def writable(self, text: str, field: str) -> Path:
        """Path of an output in the output folder.

        Raises
        ------
        InputError
            When the server writes nothing, the path lies elsewhere, or there is such a file.
        """
        if self.output is None:
            cure = "leave it out, or start the server with taylor mcp --output DIR"
            raise InputError("is not written: this server is read-only", field=field, value=text, cure=cure)
        root = self.output.resolve()
        try:
            path = (root / text).resolve()
            refused = path == root or not path.is_relative_to(root) or path.is_dir()
        except (OSError, RuntimeError, ValueError):
            refused = True
        if refused:
            raise InputError("lies outside the output folder", field=field, value=text, cure=f"name a file in {root}")
        if os.path.lexists(path):
            raise InputError("is there already", field=field, value=text, cure="name a file that is new")
        return path

    def _script(self, text: str) -> str:
        """Path of a file, with the arguments of a script that follow its name."""
        name, space, arguments = text.partition(" ")
        if not space or self._found(text) is not None:
            return str(self.readable(text, "file"))
        return f"{self.readable(name, 'file')} {arguments}"

    def _device(self, text: str) -> str:
        """Name of a device; a file's is its path."""
        return str(self.readable(text, "device")) if Path(text).suffix in DEVICE_FILES else text


def refuse_quoted(path: Path, field: str) -> None:
    """Refuse a path with a sign of `QUOTED`.

    Raises
    ------
    InputError
        With the path.
    """
    if set(str(path)) & QUOTED:
        problem = "has a space, a quote or a backslash, which paths given to this server must not have"
        raise InputError(problem, field=field, value=str(path), cure="rename it")


def _is_path(model: str) -> bool:
    """Return whether a model is named by a path; other names are only looked up among the registered ones.

    An answer is computed in an empty folder, where no relative name is a file.
    """
    return model.endswith(MODEL_FILE) or model.startswith(("/", "~")) or ".." in model or "\\" in model
