"""Files written whole or not at all, and text read within bounds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path

from taylor.base.errors import InputError, WriteError
from taylor.base.near import did_you_mean, near_names

MAX_TEXT_BYTES = 64 * 2**20
"""Largest text file read whole; configuration files are a thousandth of it."""

MOST_BESIDE, BESIDE_ALIKE = 1000, 0.8
"""Files of a folder among which a missing one's name is looked for, and how alike a name must be."""


def write_atomic(path: str | Path, content: str | bytes) -> Path:
    """Write a file atomically: a reader sees the old content or the new.

    The content goes to a temporary file in the same folder, is flushed to the disk, and takes the
    old file's place (and its permission bits) by a rename.

    Parameters
    ----------
    path : path
        The file; its folder is created when missing. A symbolic link is followed.
    content : str or bytes
        Text is encoded as UTF-8 with its line ends as they are; bytes of a file's name that are no UTF-8 are
        written as escapes (`printable`).

    Raises
    ------
    WriteError
        When the folder or the file cannot be written; the old file is untouched.
    """
    target = Path(os.path.realpath(path))
    data = printable(content).encode("utf-8") if isinstance(content, str) else content
    temporary: str | None = None
    if os.path.isdir(target):
        raise WriteError("is a folder, a file is needed", file=path, cure="name a file in it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(13, "the file is read-only")
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise WriteError(
            f"cannot be written: {error.strerror or error}", file=path, cure="free the disk or choose another place"
        ) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
    return target


def refuse_unwritable(path: str | Path, field: str) -> None:
    """Refuse a file that could not be written, before there is anything to lose.

    Parameters
    ----------
    field : str
        The flag that names it.

    Raises
    ------
    InputError
        When it is a folder or read-only, or its place is none to write in.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError("is a folder, a file is needed", field=field, value=str(path), cure="name a file in it")
    place = target if target.exists() else next(each for each in target.parents if each.exists())
    if not os.access(place, os.W_OK) or (place != target and not place.is_dir()):
        what = "is read-only" if place == target else f"cannot be written: {place} is no folder to write in"
        raise InputError(what, field=field, value=str(path), cure="choose another place")


PROBE_BYTES = 2**16
"""Bytes of the file that shows whether a folder takes files."""


def why_unwritable(folder: str | Path) -> str | None:
    """Return why no file can be written into a folder, or where it would be made, by writing one; None where it can."""
    path = Path(os.path.realpath(folder))
    place = next(each for each in (path, *path.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=place, buffering=0) as probe:
            written = probe.write(bytes(PROBE_BYTES))
            os.fsync(probe.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None if written == PROBE_BYTES else "the disk is full"


def printable(text: str) -> str:
    """The text with bytes of a file's name in another encoding as ``\\udcXX`` escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


READ_BELOW = "TAYLOR_READ_BELOW"
"""Variable with the folders below which a process reads text, as ``PATH`` has them; every folder where it is not set.

The files of a user's own machine may name others, those of a stranger may not: a script that takes in
``/home/me/.env`` would show it.
"""

_SHIPPED = Path(__file__).resolve().parents[1]
_stated = os.environ.get(READ_BELOW)
_FOLDERS: ContextVar[tuple[Path, ...] | None] = ContextVar(
    "folders", default=None if _stated is None else tuple(Path(each) for each in _stated.split(os.pathsep) if each)
)


@contextmanager
def reading_below(folders: Iterable[str | Path]) -> Iterator[None]:
    """Context in which `read_text` takes files below these folders, and shipped ones, alone."""
    token = _FOLDERS.set(tuple(Path(os.path.realpath(each)) for each in folders))
    try:
        yield
    finally:
        _FOLDERS.reset(token)


def may_read(path: str | Path) -> bool:
    """Return whether a file lies where text may be read."""
    folders = _FOLDERS.get()
    if folders is None:
        return True
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(folder) for folder in (*folders, _SHIPPED))


def read_text(path: str | Path, *, limit_bytes: int = MAX_TEXT_BYTES, anywhere: bool = False) -> str:
    """Read a UTF-8 text file, line ends and a byte-order mark kept as they are.

    Parameters
    ----------
    limit_bytes : int
        Largest file.
    anywhere : bool
        Whether the path comes from the command line or an installed plug-in, so that `reading_below` is no bound.

    Raises
    ------
    InputError
        When the file is missing (`no_such_file`), a folder, unreadable, larger than `limit_bytes`, not UTF-8, or
        where nothing may be read (`may_read`).
    """
    source = Path(path)
    if not anywhere and not may_read(source):
        cure = "name a file in the folders that were given"
        raise InputError("lies outside the folders that may be read", file=path, cure=cure)
    try:
        if source.is_dir():
            raise InputError("is a folder, a file is needed", file=path)
        with open(source, "rb") as stream:
            data = stream.read(limit_bytes + 1)
    except FileNotFoundError:
        raise no_such_file(path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from error
    return text_of(data, path, limit_bytes)


def text_of(data: bytes, path: str | Path, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """Text of a file's bytes.

    Raises
    ------
    InputError
        When there are more than `limit_bytes`, or they are not UTF-8.
    """
    if len(data) > limit_bytes:
        raise InputError(f"is larger than {limit_bytes} bytes", file=path, cure="is this the right file?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 text (byte {error.start} is {data[error.start]:#04x})", file=path, cure="save it as UTF-8"
        ) from None


def no_such_file(path: str | Path) -> InputError:
    """The error of a file that is not there: its cure names files beside it with a similar name."""
    folder, name = Path(path).parent, Path(path).name
    try:
        with os.scandir(folder) as entries:
            # A broken link has the very name.
            beside = [entry.name for entry in islice(entries, MOST_BESIDE) if entry.name != name]
    except OSError:
        return InputError("no such file", file=path, cure=f"check the path: {folder} is no folder that can be read")
    near = near_names(name, beside, alike=BESIDE_ALIKE)
    return InputError("no such file", file=path, cure=did_you_mean(name, near) if near else "check the path")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


SCRIPT = ".sh"
"""The form of shell scripts, whatever their suffix."""
SCRIPT_SUFFIXES = (SCRIPT, ".bash", ".sbatch", ".slurm")


def form_of(path: Path) -> str:
    """A file's suffix in small letters; that of a shell script is `SCRIPT`, whether Slurm or bash starts it."""
    suffix = path.suffix.lower()
    return SCRIPT if suffix in SCRIPT_SUFFIXES else suffix
