"""Damage done to a text file: what a broken disk, a wrong tool, a careless or a hostile person would leave."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
WORD = re.compile(rb"[A-Za-z_][\w./-]{2,}")

ODD_VALUES = (
    b"NaN", b"nan", b".nan", b"Infinity", b"-inf", b".inf", b"1e308", b"1e999", b"-1", b"-999999999", b"0", b"0.5",
    b"9" * 40, b"9" * 400, b"9" * 5000, b"99999999", b"1" + b"0" * 18, b"''", b'""', b"null", b"true", b"[]", b"{}",
    b"[[[1]]]", b"text", b"2026-01-01", b"0x10", b"1_0", b"12:30:45", b"3 apples", "四".encode(), b"\xff\xfe",
    b"1e-400", b"-0.0", b"1.7976931348623157e308",
)  # fmt: skip
"""Values that stand where a sound number or word stood."""


@dataclass(frozen=True)
class Trap:
    """Signs of a sprung trap: `canary` must never come to be, nothing may be written below `outside`."""

    canary: Path
    outside: Path


Mutation = Callable[[bytes, np.random.Generator, str, Trap], bytes]


def truncated(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """Cut off anywhere."""
    return text[: int(rng.integers(0, len(text)))]


def bits_flipped(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """One to eight bits flipped."""
    data = bytearray(text)
    for place in rng.integers(0, len(data), int(rng.integers(1, 9))):
        data[int(place)] ^= 1 << int(rng.integers(0, 8))
    return bytes(data)


def number_replaced(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """A number becomes something else: NaN, infinite, huge, negative, another type."""
    return _replace(NUMBER, text, rng, lambda: _pick(rng, ODD_VALUES))


def word_replaced(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """A key or a word becomes something else."""
    return _replace(WORD, text, rng, lambda: _pick(rng, ODD_VALUES))


def numbers_all_replaced(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """Every number becomes the same odd value."""
    value = _pick(rng, ODD_VALUES)
    return NUMBER.sub(lambda match: value, text)


def lines_shuffled(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """A line is removed, doubled, or changes places with another."""
    lines = text.splitlines(keepends=True)
    a, b = (int(place) for place in rng.integers(0, len(lines), 2))
    how = int(rng.integers(3))
    if how == 0:
        del lines[a]
    elif how == 1:
        lines.insert(b, lines[a])
    else:
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def emptied(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """Nothing, a blank, a line end, a byte-order mark."""
    return _pick(rng, (b"", b" ", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf", b"\x00", b"#", b"---\n", b"null", b"[]", b"{}"))


def binary(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """Random bytes, alone or in the middle."""
    noise = rng.integers(0, 256, int(rng.integers(1, 4000)), dtype=np.uint8).tobytes()
    if rng.random() < 0.4:
        return noise
    place = int(rng.integers(0, len(text)))
    return text[:place] + noise + text[place:]


def encoded_wrongly(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """UTF-16, UTF-32, Latin-1, GBK, or compressed."""
    import gzip

    plain = text.decode("utf-8", "replace")
    form_of = str(rng.choice(["utf-16", "utf-16-le", "utf-32", "latin-1", "gbk", "gzip"]))
    if form_of == "gzip":
        return gzip.compress(text, mtime=0)
    return (plain + " 模型é").encode(form_of, "replace")


def nested_deeply(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """Brackets in brackets, thousands deep, alone or for a value."""
    depth = int(rng.choice([200, 2_000, 50_000]))
    opening, closing = (b"[", b"]") if rng.random() < 0.5 else (b'{"a":', b"}")
    nest = opening * depth + b"1" + closing * depth
    if form in ("sh",):
        nest = b"$((" + b"(" * depth + b"1" + b")" * depth + b"))"
    if form == "yaml" and rng.random() < 0.3:
        nest = b"".join(b" " * k + b"a:\n" for k in range(1, 800))
    return nest if rng.random() < 0.4 else _replace(NUMBER, text, rng, lambda: nest)


def aliases_exploding(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """Aliases of aliases, or a value that an expansion doubles thirty times: gigabytes if anybody expands it."""
    if form in ("sh",):
        lines = [b"A0=xxxxxxxxxx"] + [b"A%d=$A%d$A%d" % (k, k - 1, k - 1) for k in range(1, 40)]
        return b"\n".join(lines) + b"\n" + _replace(NUMBER, text, rng, lambda: b"$A39")
    bomb = b"a0: &a0 [1,1,1,1,1,1,1,1,1]\n"
    for k in range(1, 12):
        aliases = b",".join(b"*a%d" % (k - 1) for _ in range(9))
        bomb += b"a%d: &a%d [%s]\n" % (k, k, aliases)
    if form == "yaml" and rng.random() < 0.3:
        return b"a: &a\n  b: *a\n" + text  # a map that holds itself
    if form == "yaml":
        return bomb + _replace(NUMBER, text, rng, lambda: b"*a11")
    return bomb if rng.random() < 0.3 else text * int(rng.integers(2, 30))


def code_planted(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """Text that runs a program or Python where a reader is careless."""
    canary = str(trap.canary).encode()
    touch = b"touch " + canary
    python = b"__import__('os').system('" + touch + b"')"
    payloads = {
        "yaml": (b"!!python/object/apply:os.system ['" + touch + b"']",
                 b"!!python/object/new:os.system [" + touch + b"]",
                 b"!!python/name:os.system", b"!<tag:yaml.org,2002:python/object/apply:os.system> ['" + touch + b"']",
                 python, b'"${' + touch + b'}"'),
        "sh": (b"$(" + touch + b")", b"`" + touch + b"`", b"$((a[$(" + touch + b")]))", b"; " + touch + b" ;",
               b"<(" + touch + b")", b"${x:-$(" + touch + b")}", b"\neval " + touch + b"\n"),
        "csv": (b"=cmd|'/C " + touch + b"'!A0", b'"=SYSTEM(""' + touch + b'"")"', python, b"@SUM(1)*" + python),
    }.get(form, (python, b'{"__reduce__": "' + touch + b'"}', b"$(" + touch + b")",
                 b"cos\nsystem\n(S'" + touch + b"'\ntR.",
                 b"${{" + python + b"}}", b"{{" + python + b"}}"))  # fmt: skip
    pattern = NUMBER if rng.random() < 0.5 else WORD
    return _replace(pattern, text, rng, lambda: _pick(rng, payloads))


def path_escaping(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """Paths that lead out of the output folder where a name or a value stood."""
    outside = str(trap.outside).encode()
    paths = (b"../../../escape", outside + b"/escape", b"../" * 12 + b"tmp/escape", b"..", b"/", b"~/escape",
             b"a/../../escape", b"..%2f..%2fescape", b"a\\..\\..\\escape", b"x" * 5000, b"a\\0b")  # fmt: skip
    return _replace(WORD, text, rng, lambda: _pick(rng, paths))


def line_grown(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """A line of some megabytes, or a million short ones."""
    if rng.random() < 0.5:
        return _replace(WORD, text, rng, lambda: b"x" * int(rng.integers(1_000_000, 4_000_000)))
    place = int(rng.integers(0, len(text)))
    return text[:place] + _pick(rng, (b"\n", b",", b"a: 1\n", b"\t", b"#\n")) * 1_000_000 + text[place:]


def bytes_swapped(text: bytes, rng: np.random.Generator, form: str, trap: Trap) -> bytes:
    """A stretch goes missing, is doubled, or its punctuation is another."""
    a = int(rng.integers(0, len(text)))
    b = min(len(text), a + int(rng.integers(1, 200)))
    how = int(rng.integers(3))
    if how == 0:
        return text[:a] + text[b:]
    if how == 1:
        return text[:b] + text[a:]
    table = bytes.maketrans(b":,=[]{}\"'", bytes(rng.permutation(list(b":,=[]{}\"'")).tolist()))
    return text[:a] + text[a:b].translate(table) + text[b:]


MUTATIONS: Mapping[str, Mutation] = {
    function.__name__: function
    for function in (
        truncated, bits_flipped, number_replaced, word_replaced, numbers_all_replaced, lines_shuffled, emptied, binary,
        encoded_wrongly, nested_deeply, aliases_exploding, code_planted, path_escaping, line_grown, bytes_swapped,
    )
}  # fmt: skip
"""Every kind of damage by name."""


def _replace(pattern: re.Pattern[bytes], text: bytes, rng: np.random.Generator, value: Callable[[], bytes]) -> bytes:
    """One place where the pattern holds, chosen at random, with another value."""
    places = list(pattern.finditer(text[: 1 << 20]))
    if not places:
        return text + value()
    match = places[int(rng.integers(0, len(places)))]
    return text[: match.start()] + value() + text[match.end() :]


def _pick(rng: np.random.Generator, choices: tuple[bytes, ...]) -> bytes:
    return choices[int(rng.integers(0, len(choices)))]
