"""Writers disturbed, in short: killed at every step and in mid-write, the disk full, the place read-only."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reliability.files import _after, _cut_off, _kill_at, _steps_of, _two_states, disturbed
from benchmarks.reliability.writers import WRITERS
from taylor.base.errors import WriteError


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "plan-into-yaml", "plan-into-shell", "memory"])
def test_a_disturbed_writer_leaves_the_old_file_or_the_new_one(name):
    result = disturbed(name)
    assert result["faults"] == []
    assert result["steps"] >= 5 and result["full"] >= 12


def test_a_full_disk_in_the_middle_of_an_emission_loses_no_file_of_an_earlier_one():
    """A write that fails is no reason to call a strategy inexpressible and to clear its old file away."""
    writer = WRITERS["profile-files"]
    with _two_states(writer) as (old, new):
        for size in (0, 300, 3000):
            assert _after(writer, old, new, "full", lambda size=size: _cut_off(size), refused=True) == []


def test_a_writer_that_truncates_first_is_found_out():
    """The campaign's own eyes: a plain open-and-write shows as half a file."""

    def careless(folder: Path, which: int) -> None:
        with open(folder / "a.txt", "w") as stream:
            stream.write(str(which) * 50_000)

    with _two_states(careless) as (old, new):
        killed = [_after(careless, old, new, "", lambda s=s: _kill_at(s)) for s in range(_steps_of(careless, old))]
        assert any("neither old nor new" in text for found in killed for text in found)
        full = _after(careless, old, new, "", lambda: _cut_off(100), refused=True)
        assert any("neither old nor new" in text for text in full) and any("ended by 1" in text for text in full)


def test_what_cannot_be_written_is_told_apart_from_what_cannot_be_said(tmp_path):
    from taylor.base.files import write_atomic

    (tmp_path / "a").write_text("a file, not a folder")
    with pytest.raises(WriteError, match="cannot be written"):
        write_atomic(tmp_path / "a" / "b", "x")
