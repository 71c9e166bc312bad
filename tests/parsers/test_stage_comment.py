"""The comment that says on what a file's stages lie: written once, found again, refused where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.stage_comment import comment_of, rows_of, stage_devices_in, text_of, with_stage_devices

ROWS = (("h100-80g", 4), ("a100-80g", 4))


@pytest.mark.parametrize(
    "text", ["", "a: 1\n", "#!/bin/bash\nset -e\n", "#!/bin/bash", "a: 1\r\nb: 2\r\n", "\ufeffa: 1\n"]
)
def test_what_is_written_is_read_and_taken_out_again(text: str) -> None:
    written = with_stage_devices(text, ROWS)
    assert stage_devices_in(written, Path("job.yaml")) == ROWS
    assert with_stage_devices(written, ROWS) == written
    other = with_stage_devices(written, ROWS[:1])
    assert stage_devices_in(other, Path("job.yaml")) == ROWS[:1]
    assert with_stage_devices(other, ()).rstrip("\r\n") == text.rstrip("\r\n")
    assert written.startswith(text[:1] if text[:1] in "#\ufeff" else comment_of(ROWS))
    assert ("\r\n" in text) == ("\r\n" in written)


def test_a_number_that_is_left_out_is_one_stage() -> None:
    assert rows_of("h100-80g, a100-80g:2") == (("h100-80g", 1), ("a100-80g", 2))
    assert rows_of(text_of(ROWS)) == ROWS


@pytest.mark.parametrize(
    "text", [":4", "h100-80g:0", "h100-80g:x", "h100-80g:5000", "a:4000,b:4000", "a:" + "9" * 5000]
)
def test_rows_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must name|no number|more than"):
        rows_of(text)
    with pytest.raises(InputError, match="taylor: stage_devices"):
        stage_devices_in(f"# taylor: stage_devices {text}\n", Path("job.sh"))


def test_two_comments_are_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        stage_devices_in(f"{comment_of(ROWS)}\n{comment_of(ROWS)}\n", Path("job.sh"))
