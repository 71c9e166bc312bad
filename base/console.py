"""The terminal: log lines with levels, progress where a person watches, exit codes at the end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from base.errors import EXIT_DONE, EXIT_INTERRUPTED, TaylorError

log = logging.getLogger("taylor")
"""The one logger: INFO for what a user reads, DEBUG for what a developer does."""


def start_logging(*, verbose: bool = False, quiet: bool = False) -> None:
    """Send log lines to standard error as ``LEVEL message``; standard output is for results."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)-7s %(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar on standard error when it is a terminal; stay silent in a pipe.

    Yields ``advance(steps, note)``: moves the bar on by `steps` and shows `note` behind it.
    """
    if not sys.stderr.isatty():
        yield lambda steps, note: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda steps, note: bar.update(task, advance=steps, note=note)


def run_command(command: Callable[[], int | None]) -> int:
    """Run a command line's work and turn how it ends into an exit code.

    A `TaylorError` becomes one line on standard error and its own code; Ctrl-C becomes 130. Any
    other exception is a fault of Taylor itself and keeps its traceback.
    """
    try:
        code = command()
        sys.stdout.flush()
        return EXIT_DONE if code is None else code
    except TaylorError as error:
        log.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        log.error("interrupted; what was finished is kept")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`| head`): nothing to tell, but Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
