"""Training files that a person gives to the page: bounded, kept in a folder of the server, read as any other."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import printable, reading_below, write_atomic
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL
from taylor.workflows.searching.model_job import FRAMEWORKS
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.stated_file import read_for

MOST_BYTES = 1 << 20
"""Longest file that is taken; the largest published recipe has a tenth of it."""

MOST_FILES = 64
"""Files kept; the oldest goes when a further one comes."""

OWN = "own"
"""Beginning of the name of a model from such a file: ``own/ID/FILE``."""

_NAME = re.compile(r"[0-9a-f]{16}/[\w.+-]{1,120}", re.ASCII)


@dataclass(frozen=True)
class OwnFiles:
    """Files given to the page.

    Parameters
    ----------
    folder : Path
        Each lies there in a folder of its own, whose name is a checksum of its text.
    """

    folder: Path

    def keep(self, name: str, data: bytes) -> str:
        """Keep a file and return its name as a model.

        Raises
        ------
        InputError
            When it is too long, no text, or has no name.
        """
        stem = re.sub(r"[^\w.+-]", "-", printable(PurePosixPath(name.replace("\\", "/")).name), flags=re.ASCII)[-120:]
        if not stem.strip(".-"):
            raise InputError("has no name", field="file", value=name, cure="give it a name that ends as its kind does")
        if len(data) > MOST_BYTES:
            problem = f"is longer than {MOST_BYTES >> 10} KiB, which no training file is"
            raise InputError(problem, field=stem, cure="give the file that starts the training")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"is no text: its byte {error.start} is {data[error.start]:#04x}"
            raise InputError(problem, field=stem, cure="give the training file, saved as UTF-8") from None
        if "\0" in text:
            raise InputError("is no text: it has a byte 0", field=stem, cure="give the training file")
        key = hashlib.sha256(stem.encode() + b"\0" + text.encode()).hexdigest()[:16]
        self._make_place()
        write_atomic(self.folder / key / stem, text)
        return f"{OWN}/{key}/{stem}"

    def path(self, name: str) -> Path:
        """File of a model's name.

        Raises
        ------
        InputError
            When there is none.
        """
        inside = name.removeprefix(f"{OWN}/")
        path = self.folder / inside
        if not _NAME.fullmatch(inside) or ".." in inside or not path.is_file():
            raise InputError(
                "is a file that this server does not have", field="model", value=name, cure="give it again"
            )
        return path

    def question(self, name: str) -> dict[str, Any]:
        """Fields of a question as a file states them, and what is known of it; no other file is read.

        Raises
        ------
        InputError
            When it cannot be read; the message begins with the file's name.
        """
        path = self.path(name)
        try:
            with reading_below([path.parent]):
                config = read_for(path)
        except InputError as error:
            raise InputError(str(error).replace(f"{path}: ", f"{path.name}: ").replace(str(path), path.name)) from None
        asked: dict[str, Any] = {"model": name, "seq": config.rules.seq_length}
        framework = config.rules.framework.name
        if framework in FRAMEWORKS:
            asked["framework"] = framework
        asked["device"] = choose_device(config).spec.name
        if config.strategy.world_size > 1 or config.strategy.global_batch > 1:
            asked |= _degrees(config)
        notes = [*config.notes, *(flag.sentence for flag in config.unmodelled)]
        return {
            "ask": asked,
            "title": launcher_of(config).title,
            "name": config.model.name,
            "notes": [note.replace(str(path), path.name) for note in notes],
        }

    def _make_place(self) -> None:
        """Remove the oldest files until a further one has its place."""
        if not self.folder.is_dir():
            return
        kept = sorted((each for each in self.folder.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
        for old in kept[: max(0, len(kept) - MOST_FILES + 1)]:
            for file in old.iterdir():
                file.unlink(missing_ok=True)
            old.rmdir()


def _degrees(config: TrainingConfig) -> dict[str, Any]:
    strategy, plan = config.strategy, config.plan
    asked = {name: getattr(strategy, name) for name in ("tp", "pp", "ep", "cp", "vpp", "mbs")}
    asked |= {"ranks": strategy.world_size, "gbs": strategy.global_batch, "sp": bool(strategy.sp)}
    if plan is not None:
        layers = sum(map(sum, plan.total_layers()))
        again = sum(map(sum, plan.recomputed(FULL)))
        asked["recompute"] = round(100.0 * again / layers / 5) * 5
    return asked
