"""Long texts are read in linear time, deep ones and huge numbers are refused: whatever a file repeats."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.reliability.specimens import SHELL as SCRIPT
from benchmarks.reliability.specimens import TOML as SETTINGS
from taylor.base.errors import InputError, TaylorError
from taylor.parsers.read import read_config
from taylor.parsers.text.shell_words import Char, Word, read_again
from tests.conftest import ROOT
from tests.parsers import hostile_texts
from tests.parsers.hostile_texts import TABLES, table_of, with_huge_numbers

MINDFORMERS = (ROOT / "config" / "pretrain_llama2_7b.yaml").read_text(encoding="utf-8")
MODEL = (
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, '
    '"num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, '
)
FORMATS = {
    # A shell meets what stands in front of the job; a table of TOML and a key of YAML may follow.
    "run.sh": (hostile_texts.SHELL, lambda grown: grown + SCRIPT),
    "run.yaml": (hostile_texts.YAML, lambda grown: MINDFORMERS + grown),
    "run.toml": (hostile_texts.TOML, lambda grown: SETTINGS + grown),
    "config.json": (hostile_texts.JSON, lambda grown: MODEL + grown + "}"),
}
CASES = [(name, kind) for name, (texts, _) in FORMATS.items() for kind in texts]

LEAST_S, LONGEST_S = 0.05, 20.0
"""CPU time from which two readings are compared, and in which the largest text must be read, s."""

MOST_BYTES = 6 << 30
"""Private memory of the process that reads; a reading of the largest text takes a twentieth."""

LARGEST = 2**18
"""Characters of the largest text: that of a script, above which readers refuse it."""

GROWTH = 8
MOST = 20
"""Growth of the text, and growth of the time that is allowed: 8 is linear, 64 quadratic.

A busy machine doubles the time of either reading; both limits are further off than that.
"""


def config_of(folder: Path, name: str, kind: str, size: int) -> Path:
    texts, placed = FORMATS[name]
    (folder / name).write_text(placed(texts[kind](size)), encoding="utf-8")
    return folder / name


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let a reading take `MOST_BYTES` at most: one whose memory grows with the square would take the whole machine."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES if hard == resource.RLIM_INFINITY else hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def timed(read: Callable[[], object], times: int = 3) -> tuple[float, str]:
    """Least CPU seconds of a reading, and the kind of its end; a refusal asks other readers too.

    The collector of unreachable objects is off meanwhile: its time depends on the objects of earlier tests.
    """
    seconds, end = [], "read"
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            began = time.process_time()
            try:
                with bounded_memory():
                    read()
            except TaylorError as refused:
                end = type(refused).__name__
            seconds.append(time.process_time() - began)
    finally:
        gc.enable()
    return min(seconds), end


def growth(read: Callable[[int], Callable[[], object]], size: int, largest: int) -> tuple[float, float]:
    """Growth of a reading's CPU time when its text grows by `GROWTH`, and CPU seconds of the longest reading.

    The text grows until two readings of one end can be compared of which the first takes `LEAST_S`, or it is as large
    as files may be.
    """
    before, end = timed(read(size))
    ratio = 0.0
    while True:
        size *= GROWTH
        now, now_end = timed(read(size), 3 if before < 1 else 1)
        if end == now_end:
            ratio = now / max(before, LEAST_S)
        if (end == now_end and before >= LEAST_S) or size >= largest or now > LONGEST_S:
            return ratio, now
        before, end = now, now_end


def least_growth(read: Callable[[int], Callable[[], object]], size: int, largest: int) -> tuple[float, float]:
    """`growth` again, twice at most, where it is up to twice too much: other work slows one reading or the other."""
    found = growth(read, size, largest)
    for _ in range(2):
        if (found[0] < MOST and found[1] < LONGEST_S) or found[0] > 2 * MOST or found[1] > 2 * LONGEST_S:
            break
        found = min(found, growth(read, size, largest))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES, ids=["-".join(case) for case in CASES])
def test_the_time_to_read_a_configuration_grows_with_its_length_and_no_faster(tmp_path: Path, name: str, kind: str):
    def read(size: int) -> Callable[[], object]:
        path = config_of(tmp_path, name, kind, size)
        return lambda: read_config(path)

    ratio, longest = least_growth(read, LARGEST // GROWTH**3, LARGEST)
    assert ratio < MOST and longest < LONGEST_S


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, parts in TABLES.items() if parts[3]])
def test_the_time_to_read_a_table_grows_with_its_length_and_no_faster(tmp_path: Path, kind: str):
    def reading(rows: int) -> Callable[[], object]:
        read, name, text = table_of(kind, rows)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return lambda: read(tmp_path / name)

    ratio, longest = least_growth(reading, 50, 50 * GROWTH**3)
    assert ratio < MOST and longest < LONGEST_S


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["a", "\\a", "'a'"], ids=["letters", "backslashes", "quotes"])
def test_the_time_of_a_second_shell_grows_with_the_length_of_its_text_and_no_faster(piece: str):
    def read(size: int) -> Callable[[], object]:
        word = Word(tuple(Char(char, None) for char in piece * (size // len(piece))))
        return lambda: read_again([word])

    assert least_growth(read, 25_000, 200_000)[0] < MOST


@pytest.mark.slow
def test_a_reader_of_quadratic_time_would_be_found():
    def read(size: int) -> Callable[[], object]:
        return lambda: sum(1 for _ in range(size) for _ in range(size))

    assert growth(read, 2_000, 10**6)[0] > MOST


@pytest.mark.parametrize(("name", "kind"), CASES, ids=["-".join(case) for case in CASES])
def test_whatever_a_configuration_repeats_it_is_read_or_refused_in_words(tmp_path: Path, name: str, kind: str):
    for size in (3000, 30_000):
        path = config_of(tmp_path, name, kind, size)
        try:
            assert read_config(path).model.n_layers > 0
        except InputError as refused:
            assert len(str(refused)) < 2500


@pytest.mark.parametrize(("name", "text"), [("run.yaml", MINDFORMERS), ("run.toml", SETTINGS)], ids=["yaml", "toml"])
def test_a_configuration_of_more_lines_than_any_has_is_refused(tmp_path: Path, name: str, text: str):
    """A search reads such a file dozens of times, to write its copies."""
    lines = text.count("\n")
    (tmp_path / name).write_text(text + "#\n" * (4_999 - lines), encoding="utf-8")
    assert read_config(tmp_path / name).model.n_layers == 32
    (tmp_path / name).write_text(text + "#\n" * (5_001 - lines), encoding="utf-8")
    with pytest.raises(InputError, match="has more than 5,000 lines"):
        read_config(tmp_path / name)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_read_with_its_rows_and_a_number_of_100_000_digits_is_no_traceback(tmp_path: Path, kind: str):
    read, name, text = table_of(kind, 3)
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert read(path) is not None
    for number, huge in with_huge_numbers(text):
        path.write_text(huge, encoding="utf-8")
        try:
            read(path)
        except InputError as refused:
            assert len(str(refused)) < 2500, number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [("run.sh", SCRIPT), ("run.yaml", MINDFORMERS), ("run.toml", SETTINGS), ("config.json", MODEL[:-2] + "}")],
    ids=["sh", "yaml", "toml", "json"],
)
def test_a_number_of_100_000_digits_in_a_configuration_is_no_traceback(tmp_path: Path, name: str, text: str):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert read_config(path).model.n_layers == 32
    for number, huge in with_huge_numbers(text, digits=10_000):
        path.write_text(huge, encoding="utf-8")
        try:
            read_config(path)
        except InputError as refused:
            assert len(str(refused)) < 2500, number
