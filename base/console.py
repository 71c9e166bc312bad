"""The terminal: log lines with levels, progress where a person watches, exit codes at the end."""

from __future__ import annotations

import codecs
import errno
import io
import logging
import os
import re
import select
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from taylor.base.documents import asks_for_json, one_document, refused_path
from taylor.base.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_INTERRUPTED, OutsideProgramError, TaylorError
from taylor.base.interrupts import counted_interrupts, presses
from taylor.base.isolated import isolate_path
from taylor.base.plugins import at_fault, failure

if TYPE_CHECKING:  # a command's --help must not wait for imports that only its work needs
    from rich.console import Console, RenderableType

    _StreamHandler = logging.StreamHandler[Any]
else:  # Python 3.10 has no brackets behind it
    _StreamHandler = logging.StreamHandler

log = logging.getLogger("taylor")
"""The one logger: INFO for what a user reads, DEBUG for what a developer does."""

_PLAIN_LETTERS = "taylor.plain_letters"
"""Name of the error handler below."""

_PLAIN = {"×": "x", "−": "-", "–": "-", "…": "...", "«": '"', "»": '"', "·": ".", "≤": "<=", "≥": ">="}


_SHORTAGES = frozenset((
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
    errno.ENOENT,
))  # fmt: skip
"""Errors of the system that name no file and are no fault of ours: no space, no memory, no further file or process, and
no folder for temporary files."""

LEVEL_WIDTH = 8
"""Columns of a log line's level."""

_UNIT = re.compile(r"(?<=\d) (?=(?:%|ms|s|MiB|GiB|B|T|M)\b|%)")
"""The blank between a number and its unit."""


class _StandardErrorHandler(_StreamHandler):
    """Handler that writes to the current standard error: rich prints above a live line there."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        """Keep nothing: the stream is looked up at every line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; on a terminal it continues below its level, broken at blanks, so that no number is split."""
        text = without_controls(super().format(record))
        if not sys.stderr.isatty():
            return text
        width = shutil.get_terminal_size().columns
        return "\n".join(part for line in text.splitlines() for part in _broken(line, width))


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def without_controls(text: str) -> str:
    """A text whose control characters are escapes in letters: from a file they must not move a terminal's cursor."""
    return text.translate(_CONTROLS)


def _broken(line: str, width: int) -> list[str]:
    """A line in parts of a width, those behind the first indented as its text or its level's."""
    inner = max(LEVEL_WIDTH, len(line) - len(line.lstrip()))
    return wrapped(line, width, inner)


def wrapped(text: str, width: int, indent: int) -> list[str]:
    """A text in lines of a width, broken at blanks, never between a number and its unit.

    Parameters
    ----------
    indent : int
        Columns before the second and all further lines.
    """
    parts = textwrap.wrap(
        _UNIT.sub("\xa0", text),
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return [part.replace("\xa0", " ") for part in parts] or [""]


def start_logging(*, verbose: bool = False, quiet: bool = False) -> None:
    """Send log lines to standard error as ``LEVEL message``; standard output is for results."""
    handler = _StandardErrorHandler()
    handler.setFormatter(logging.Formatter("%(levelname)-7s %(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)


@cache
def error_console() -> Console:
    """The one console on standard error: log lines, bars and live lines use it together, so that none tears another."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def live_display(what: RenderableType, console: Console) -> Iterator[None]:
    """Keep lines at the foot of a terminal up to date while the block runs."""
    from rich.errors import LiveError
    from rich.live import Live

    shown = Live(what, console=console, refresh_per_second=4, transient=True)
    try:
        shown.start()
    except LiveError:  # rich before 14.1 supports a single one, and that is there
        yield
        return
    try:
        yield
    finally:
        shown.stop()


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar on standard error when it is a terminal; stay silent in a pipe.

    Yields ``advance(steps, note)``: moves the bar by `steps` and prints `note` behind it.
    """
    if not sys.stderr.isatty():
        yield lambda steps, note: None
        return
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
    bar = Progress(*columns, console=error_console())
    task = bar.add_task(title, total=total, note="")
    with live_display(bar, error_console()):
        yield lambda steps, note: bar.update(task, advance=steps, note=note)


def run_command(command: Callable[[], int | None], arguments: Sequence[str] = ()) -> int:
    """Run a command line's work and return an exit code for its end.

    With ``--json`` among its `arguments`, standard output is one JSON document, that of the error where one ends it.

    A `TaylorError` becomes one line on standard error and its own code, a path that the system refuses
    likewise, and what the system is short of (the traceback only with ``--verbose``); Ctrl-C becomes 130. Any other
    exception is a fault of Taylor itself and keeps its traceback. What the terminal's encoding lacks is printed in
    plain letters, or as an escape. Programs are not looked for in the working folder. A standard stream that is closed
    takes what is written to it.
    """
    isolate_path()
    _open_streams()
    codecs.register_error(_PLAIN_LETTERS, _plain_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAIN_LETTERS)
    before = presses()
    try:
        with counted_interrupts(), one_document(wanted=asks_for_json(arguments)):
            code = _run_naming_plugins(command)
        sys.stdout.flush()
        return EXIT_DONE if code is None else code
    except ImportError:
        # A compiled module that Ctrl-C broke into as it was loaded says that it cannot be imported.
        if presses() == before:
            raise
        log.error("interrupted; what was finished is kept")
        return EXIT_INTERRUPTED
    except TaylorError as error:
        log.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        log.error("interrupted; what was finished is kept")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        if not _reader_left():
            raise
        # The reader of our output has closed it (`| head`): no error, but Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except OSError as error:
        if error.filename is None and error.errno not in _SHORTAGES:
            raise
        short = f"the system refuses: {error.strerror}; free disk, memory, files or processes"
        log.error("%s", short if error.filename is None else refused_path(error))
        log.debug("it was met here", exc_info=True)
        _drop_refused_output()
        return EXIT_BAD_INPUT


def _open_streams() -> None:
    """Open the standard streams that are closed: else the next file that is opened would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _drop_refused_output() -> None:
    """Drop what standard output does not take, which Python would try to write again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_naming_plugins(command: Callable[[], int | None]) -> int | None:
    """Run a command; a fault in the code of a plug-in becomes an error that names it."""
    try:
        return command()
    except (TaylorError, OSError):
        raise
    except Exception as error:
        plugin = at_fault(error)
        if plugin is None:
            raise
        log.debug("it was met here", exc_info=True)
        cure = f"write to its authors, or `pip uninstall {plugin.distribution}`"
        raise OutsideProgramError(f"the {plugin} fails: {failure(error)}; {cure}") from error


def _plain_letters(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replacement of a sign that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = _PLAIN.get(error.object[error.start])
    return (plain, error.start + 1) if plain is not None else codecs.backslashreplace_errors(error)


def _reader_left() -> bool:
    """Return whether it is standard output whose reader is gone, and no pipe of our own."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    # A long text goes past the buffer, so that nothing remains to flush: the pipe itself knows.
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
