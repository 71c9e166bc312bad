"""Where files may be read and written, and up to which size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taylor.base import files
from taylor.base.database import is_database, shown
from taylor.base.errors import InputError
from taylor.base.files import (
    form_of,
    may_read,
    printable,
    read_text,
    reading_below,
    refuse_unwritable,
    text_of,
    why_unwritable,
    write_atomic,
)


def test_a_new_file_has_the_rights_that_the_user_s_mask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "new", "text")
        assert os.umask(0o027) == 0o027, "the mask is as it was"
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o640


def test_a_text_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_text(tmp_path / "a", limit_bytes=5) == "12345"
    with pytest.raises(InputError, match="is larger than 4 bytes"):
        read_text(tmp_path / "a", limit_bytes=4)
    assert text_of(b"12345", "a", 5) == "12345"
    with pytest.raises(InputError, match="byte 1 is 0xff"):
        text_of(b"1\xff", "a")
    assert files.MAX_TEXT_BYTES == 67_108_864


def test_text_is_read_below_the_named_folders_and_the_shipped_one_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in" / "a", tmp_path / "b"
    inside.parent.mkdir()
    for file in (inside, outside):
        file.write_text("x")
    (tmp_path / "in" / "link").symlink_to(outside)
    with reading_below([tmp_path / "in", tmp_path / "other"]):
        assert may_read(inside) and read_text(inside) == "x"
        assert not may_read(outside) and not may_read(tmp_path / "in" / "link")
        assert may_read(Path(files.__file__))
        assert read_text(outside, anywhere=True) == "x"
        with pytest.raises(InputError, match="lies outside the folders that may be read"):
            read_text(outside)
    assert may_read(outside)


def test_a_place_that_takes_no_file_is_refused_before_there_is_anything_to_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    refuse_unwritable(file, "--csv")
    refuse_unwritable(tmp_path / "new" / "deep" / "file", "--csv")
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="--csv: is a folder"):
        refuse_unwritable(tmp_path, "--csv")
    with pytest.raises(InputError, match=f"{file} is no folder to write in"):
        refuse_unwritable(file / "below", "--csv")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(InputError, match="is read-only"):
        refuse_unwritable(file, "--csv")
    with pytest.raises(InputError, match="is no folder to write in"):
        refuse_unwritable(tmp_path / "other", "--csv")


def test_a_folder_is_tried_where_it_would_be_made(tmp_path: Path) -> None:
    assert why_unwritable(tmp_path / "new" / "deep") is None
    (tmp_path / "file").write_text("")
    assert why_unwritable(tmp_path / "file" / "deep") == "Not a directory"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_file_s_form_is_its_suffix_and_that_of_a_script_is_one() -> None:
    names = ["a.SH", "a.bash", "a.sbatch", "a.slurm", "a.YAML", "a"]
    assert [form_of(Path(name)) for name in names] == [".sh", ".sh", ".sh", ".sh", ".yaml", ""]
    assert printable("a\udcff") == "a\\udcff"


def test_a_store_is_named_by_its_address_or_suffix_and_shown_without_its_password() -> None:
    named = [
        "postgresql://h/n",
        "postgres://h/n",
        "sqlite:///a",
        "a.sqlite",
        "a.sqlite3",
        "a.db",
        "a.csv",
        "http://h/n",
    ]
    assert [is_database(name) for name in named] == [True] * 6 + [False] * 2
    assert shown("postgresql://me:secret@host/name") == "postgresql://me:***@host/name"
    assert shown("sqlite:///a:b@c") == "sqlite:///a:b@c"
