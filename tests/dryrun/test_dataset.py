"""The small data set: who is asked to write it, with how many samples of how many tokens, and what is said if not."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from taylor.dryrun.dataset import ensure_dataset

WRITER = '#!/bin/sh\n[ "$1" = -c ] && echo "$4 $5 $6 $TOLD" > "$3"\n'
SILENT = "#!/bin/sh\nexit 0\n"
FAILING = '#!/bin/sh\necho started >&2\necho "no module named mindspore" >&2\nexit 3\n'
WRITING_THEN_FAILING = '#!/bin/sh\necho half > "$3"\nexit 1\n'


def starter(folder: Path, program: str):
    interpreter = folder / "python"
    interpreter.write_text(program)
    interpreter.chmod(0o755)
    return SimpleNamespace(
        tools=SimpleNamespace(interpreter=str(interpreter)),
        environment={"TOLD": "so"},
        full_environment=lambda more: {"PATH": "/bin:/usr/bin", **more},
    )


def samples_that_fit(asked: int, tokens: int) -> int:
    """Tokens are of 4 bytes and all samples together of a GiB at most, but never fewer than 64."""
    most = 0
    step = 2**29
    while step:
        if (most + step) * tokens * 4 <= 1024**3:
            most += step
        step //= 2
    return 64 if asked < 64 or most < 64 else asked if asked < most else most


@pytest.mark.parametrize("seq", [1, 127, 4096, 131072, 2**22 - 1, 2**24])
@pytest.mark.parametrize("asked", [0, 63, 64, 65, 2047, 2048, 10**6])
def test_a_batch_of_samples_is_written_as_far_as_it_fits_and_64_at_least(tmp_path, seq, asked):
    path = tmp_path / "deep" / "folder" / "tokens.mindrecord"
    assert ensure_dataset(path, seq, 1000, starter(tmp_path, WRITER), asked) == path.resolve()
    assert path.read_text().split() == [str(seq + 1), str(samples_that_fit(asked, seq + 1)), "1000", "so"]


def test_64_samples_are_written_where_no_batch_is_named(tmp_path):
    path = tmp_path / "tokens"
    ensure_dataset(path, 8, 50, starter(tmp_path, WRITER))
    assert path.read_text().split() == ["9", "64", "50", "so"]


def test_a_data_set_that_is_there_stays_as_it_is(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("mine")
    assert ensure_dataset(path, 8, 50, starter(tmp_path, WRITER)) == path.resolve()
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "program, told",
    [
        (SILENT, "no reason given"),
        (FAILING, "no module named mindspore"),
        (WRITING_THEN_FAILING, "no reason given"),
    ],
)
def test_a_writer_that_fails_is_told_with_its_last_line_and_the_file_keeps_its_own_data(
    tmp_path, caplog, program, told
):
    with caplog.at_level(logging.WARNING):
        assert ensure_dataset(tmp_path / "tokens", 8, 50, starter(tmp_path, program)) is None
    [record] = caplog.records
    assert told in record.getMessage() and "started" not in record.getMessage()


def test_an_interpreter_that_cannot_start_is_told(tmp_path, caplog):
    missing = starter(tmp_path, WRITER)
    missing.tools.interpreter = str(tmp_path / "gone")
    with caplog.at_level(logging.WARNING):
        assert ensure_dataset(tmp_path / "tokens", 8, 50, missing) is None
    assert "could not be written" in caplog.records[0].getMessage()


def test_at_most_200_characters_of_a_reason_are_told(tmp_path, caplog):
    long = "#!/bin/sh\necho " + "x" * 300 + " >&2\nexit 1\n"
    with caplog.at_level(logging.WARNING):
        ensure_dataset(tmp_path / "tokens", 8, 50, starter(tmp_path, long))
    assert caplog.records[0].getMessage().count("x") == 200
