"""Folder of one run: always new, so that no later run changes the files in the run's table."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from taylor.base.errors import WriteError

RUNS = "runs"
"""Folder of the runs, below the folder of the results."""


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
