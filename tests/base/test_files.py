"""Files are written whole or not at all, and read within bounds."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from taylor.base.errors import InputError, WriteError
from taylor.base.files import read_text, why_unwritable, write_atomic
from tests.conftest import ROOT


def test_a_file_takes_its_new_content_and_keeps_its_permission_bits(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    path.chmod(0o640)
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_a_folder_is_not_written_over(tmp_path):
    with pytest.raises(WriteError, match="is a folder"):
        write_atomic(tmp_path, "x")


def test_a_missing_folder_is_created(tmp_path):
    assert write_atomic(tmp_path / "a" / "b.txt", "x").read_text() == "x"


def test_line_ends_and_byte_order_marks_are_kept(tmp_path):
    write_atomic(tmp_path / "t", "\ufeffa\r\nb\n")
    assert read_text(tmp_path / "t") == "\ufeffa\r\nb\n"


def test_a_full_disk_leaves_the_old_file_and_no_debris(tmp_path, monkeypatch):
    path = tmp_path / "plan.yaml"
    path.write_text("old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_a_name_in_another_encoding_is_written_as_escapes(tmp_path):
    name = os.fsdecode("型".encode("gbk") + b".yaml")
    assert write_atomic(tmp_path / "t", f"file {name}").read_bytes() == b"file \\udcd0\\udccd.yaml"


def test_a_symbolic_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: p.write_bytes(b"\xff\xfe\x00"), "not UTF-8"),
        (lambda p: p.write_bytes(b"x" * 101), "larger than 100 bytes"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_name(tmp_path, make, words):
    path = tmp_path / "input.yaml"
    make(path)
    with pytest.raises(InputError, match=words) as caught:
        read_text(path, limit_bytes=100)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "missing, cure",
    [
        ("train_1024.yaml", "did you mean train_1024p.yaml?"),
        ("Train-1024p.yaml", "did you mean train_1024p.yaml?"),
        ("other.sh", "check the path"),
        ("link.yaml", "check the path"),
        ("none/train_1024p.yaml", "check the path: {folder}/none is no folder that can be read"),
    ],
)
def test_a_missing_file_is_refused_with_the_names_beside_it_that_are_nearly_its_own(tmp_path, missing, cure):
    (tmp_path / "train_1024p.yaml").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError) as caught:
        read_text(tmp_path / missing)
    assert str(caught.value).endswith(f"no such file; {cure.format(folder=tmp_path)}")


FULL = """
import resource, sys
from taylor.base.files import why_unwritable
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
print(why_unwritable(sys.argv[1]))
"""


def test_a_folder_whose_disk_takes_a_part_of_a_file_is_full(tmp_path):
    assert why_unwritable(tmp_path / "new" / "folder") is None and not any(tmp_path.iterdir())
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "the disk is full\n", done.stderr
