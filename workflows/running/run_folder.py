"""Folders of the results: that of a command, and in it one of each run, so that no later run changes its files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError, WriteError
from taylor.base.files import why_unwritable

RUNS = "runs"
"""Folder of the runs, below the folder of the results."""


@dataclass(frozen=True)
class ResultsFolder:
    """Folder of files that a command writes unasked.

    Parameters
    ----------
    path : Path
        Folder of the results, where earlier ones are found.
    work : Path
        Folder of the files that the command itself needs; a temporary one where `path` cannot be written.
    """

    path: Path
    work: Path


@contextmanager
def results_folder(path: Path, *, named: bool, field: str = "--output_path") -> Iterator[ResultsFolder]:
    """Folder of files that nobody asked for, with a temporary one beside it where it cannot be written.

    Parameters
    ----------
    named : bool
        Whether the user named the folder; such a one must be writable.

    Raises
    ------
    InputError
        When a named folder cannot be written.
    """
    problem = why_unwritable(path)
    if problem is None:
        yield ResultsFolder(path, path)
        return
    if named:
        raise InputError(f"cannot be written: {problem}", field=field, value=str(path), cure="choose another folder")
    log.warning(
        "%s cannot be written (%s): model files, history and finished solves are not kept; %s names another folder",
        path,
        problem,
        field,
    )
    try:
        temporary = tempfile.TemporaryDirectory(prefix="taylor-", ignore_cleanup_errors=True)
    except OSError:  # nowhere at all: what needs a file says so
        yield ResultsFolder(path, path)
        return
    with temporary as other:
        yield ResultsFolder(path, Path(other))


def new_run_folder(output: Path) -> Path:
    """Make a folder that no run has had: named by the time, with a number behind it for others of the same second.

    Raises
    ------
    WriteError
        When it cannot be made.
    """
    stamp = datetime.now().strftime("%Y%m%d%H%M%S")
    number = 1
    while True:
        folder = output / RUNS / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.is_dir():
                raise WriteError("is no folder", file=folder.parent, cure="move it away") from None
            number += 1
        except OSError as error:
            raise WriteError(
                f"cannot be made: {error.strerror or error}", file=folder, cure="free the disk or choose another place"
            ) from error
