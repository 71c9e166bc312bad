"""Read the events of a Chrome trace one by one, so that a trace of any size needs little memory."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from taylor.base.errors import InputError
from taylor.base.files import no_such_file

CHUNK_BYTES = 4 * 2**20
MAX_VALUE_CHARS = 64 * 2**20
"""Longest single event or top-level entry; a real event is a millionth of it."""
MAX_TRACE_BYTES = 64 * 2**30
"""Most text of one trace, after decompression."""
MAX_EXPANSION, FREE_BYTES = 40, 2**20
"""Maximum text of a compressed trace: this multiple of its packed size, and some more. Published traces have 12 to 13
times, a file of blanks a thousand. With it the size on the disk bounds the time of reading."""

_SPACE = " \t\r\n"
_AFTER_VALUE = _SPACE + ",]}"
_BEGUN = re.compile(r"(?:t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?|-|\.|[eE][-+]?|u[0-9a-fA-F]{0,3})?")
"""End of a text that is cut inside a value: part of a word, of a number or of an escape."""
_BLANKS = re.compile(f"[{_SPACE}]*")


def stream_events(path: str | Path, on_entry: Callable[[str, Any], None] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace: a bare list of them, or the ``traceEvents`` of an object.

    Parameters
    ----------
    path : path
        Plain or gzip-compressed JSON.
    on_entry : callable, optional
        Called with each other top-level entry of an object (``distributedInfo``, …) as it is met.

    Raises
    ------
    InputError
        When the file is missing, is not JSON, ends too early (with the place), or contains no list of events.
    """
    file = Path(path)
    with _open(file) as stream:
        window = _Window(file, stream)
        start = window.peek()
        if start == "[":
            yield from _elements(window)
        elif start == "{":
            found = False
            for key in _keys(window):
                if key == "traceEvents" and window.peek() == "[":
                    found = True
                    yield from _elements(window)
                else:
                    value = window.value()
                    if on_entry is not None:
                        on_entry(key, value)
            if not found:
                raise InputError("contains no list of events", file=file, field="traceEvents", cure="is this a trace?")
        else:
            raise window.error("must be a list of events or an object with traceEvents")
        window.end()


class _Window:
    """A sliding piece of the text, and the place in it."""

    def __init__(self, file: Path, stream: BinaryIO) -> None:
        self._file, self._stream = file, stream
        self._most_bytes = MAX_TRACE_BYTES
        if isinstance(stream, gzip.GzipFile):
            self._most_bytes = min(MAX_TRACE_BYTES, FREE_BYTES + MAX_EXPANSION * file.stat().st_size)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0
        self._passed, self._bytes, self._complete = 0, 0, False

    def peek(self) -> str:
        """The next character that is not white space."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            assert blanks is not None
            self._at = blanks.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise self.error("is cut short: the text ends inside the trace")

    def take(self, wanted: str) -> None:
        """Pass one expected character."""
        found = self.peek()
        if found != wanted:
            raise self.error(f"is not JSON: {wanted!r} expected, {found!r} found")
        self._at += 1

    def value(self) -> Any:
        """Parse the next value whole."""
        start = self.peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except RecursionError:
                raise self.error("is nested too deeply") from None
            except ValueError as error:
                # A value that the window cuts off looks wrong until more of it is there.
                if len(self._text) - self._at > MAX_VALUE_CHARS:
                    raise self.error(f"contains a value of more than {MAX_VALUE_CHARS} characters") from None
                place, problem = getattr(error, "pos", self._at) - self._at, getattr(error, "msg", str(error))
                if not self._more():
                    rest = self._text[self._at + place :].rstrip()
                    if "Unterminated" in problem or _BEGUN.fullmatch(rest):
                        raise self.error("is cut short: the text ends inside a value") from None
                    self._at += place
                    raise self.error(f"is not JSON: {problem}") from None
                continue
            # A number may go on in the next piece: it has ended only where something else follows.
            whole = start in '{["' or (end < len(self._text) and self._text[end] in _AFTER_VALUE)
            if not whole and self._more():
                continue
            self._at = end
            return value

    def end(self) -> None:
        """Require that nothing but white space follows."""
        while True:
            rest = self._text[self._at :].strip()
            if rest:
                raise self.error("has text after the trace")
            self._at = len(self._text)
            if not self._more():
                return

    def error(self, problem: str) -> InputError:
        """An error at the present place."""
        return InputError(
            problem,
            file=self._file,
            field=f"character {self._passed + self._at}",
            cure="write the profile again, or take the file from where it was written",
        )

    def _more(self) -> bool:
        if self._complete:
            return False
        try:
            data = self._stream.read(CHUNK_BYTES)
        except (EOFError, OSError, zlib.error) as error:
            raise self.error(f"is cut short or damaged: {error}") from None
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            if self._most_bytes == MAX_TRACE_BYTES:
                raise self.error(f"is larger than {MAX_TRACE_BYTES} bytes")
            raise self.error(f"unpacks to more than {MAX_EXPANSION} times its size, which no profiler's trace does")
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise self.error(f"is not UTF-8 text: {error.reason}") from None
        self._complete = not data
        self._passed += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        return bool(data)


def _elements(window: _Window) -> Iterator[dict[str, Any]]:
    window.take("[")
    if window.peek() == "]":
        window.take("]")
        return
    while True:
        event = window.value()
        if isinstance(event, dict):
            yield event
        if window.peek() == "]":
            window.take("]")
            return
        window.take(",")


def _keys(window: _Window) -> Iterator[str]:
    """Keys of an object; the caller takes each value before it asks for the next key."""
    window.take("{")
    if window.peek() == "}":
        window.take("}")
        return
    while True:
        if window.peek() != '"':
            raise window.error("is not JSON: a key expected")
        key = window.value()
        window.take(":")
        window.peek()
        yield cast(str, key)
        if window.peek() == "}":
            window.take("}")
            return
        window.take(",")


def _open(file: Path) -> BinaryIO:
    try:
        if file.is_dir():
            raise InputError("is a folder, a trace is needed", file=file)
        with open(file, "rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        return cast(BinaryIO, gzip.open(file, "rb")) if packed else open(file, "rb")
    except FileNotFoundError:
        raise no_such_file(file) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=file) from error
