"""The peak is found in every form of the line, in any encoding, and a log without it says so."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.dryrun import logs
from taylor.dryrun.logs import last_lines, read_peak, reports_out_of_memory
from tests.conftest import SHARED

VARIANTS = {
    "Used peak memory usage (without fragments): 48874M": 48874,
    "rank_0/mindformer.log:13340: Used peak memory usage (without fragments): 77698M": 77698,
    "\x1b[32m[INFO]\x1b[0m Used peak memory usage (without fragments): 23716M\r": 23716,
    "stage_0_rank_0/mindformer.log:5478:Actual peak memory usage (with fragments): 96643M": 96643,
    "Common mem pool info: Total allocated mem:1024M, peak used mem:80M, in used mem:0M": 80,
    "The dynamic memory pool total allocated mem:1024M, peak used mem:80M, actual peak used mem:83M, x": 80,
    "Total Static Memory size: 56M\nTotal Dynamic memory size: 944M\n": 1000,
    "Device MOC memory size: 62432M\nMindSpore Used memory size: 59392M\n": None,
    "": None,
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be", "utf-32", "gb18030"])
@pytest.mark.parametrize("line", VARIANTS)
def test_every_form_of_the_line_is_read_in_every_encoding(tmp_path, line, encoding):
    path = tmp_path / "a.log"
    path.write_bytes(f"日志开始\n{line}\n结束\n".encode(encoding))
    assert read_peak(path).used_mib == VARIANTS[line]


def test_the_peak_without_fragments_goes_before_the_one_with_them_and_the_largest_counts(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(
        "Used peak memory usage (without fragments): 55389M\nActual peak memory usage (with fragments): 55341M\n"
        "Used peak memory usage (without fragments): 100M\n"
    )
    peak = read_peak(path)
    assert (peak.used_mib, peak.actual_mib) == (55389, 55341)


def test_binary_rubbish_and_nuls_around_the_line_do_no_harm(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff\xfe\x00\x81" * 999 + b"\nUsed peak memory\x00 usage (without fragments): 7\x000M\n\x80\x00")
    assert read_peak(path).used_mib == 70


@pytest.mark.parametrize("shift", range(0, 70, 3))
def test_a_line_across_the_seam_of_two_reads_is_neither_missed_nor_cut(tmp_path, monkeypatch, shift):
    monkeypatch.setattr(logs, "_CHUNK", 256)
    path = tmp_path / "a.log"
    path.write_text("x" * (200 + shift) + "\nUsed peak memory usage (without fragments): 48874M\n" + "y" * 500)
    assert read_peak(path).used_mib == 48874


def test_the_sample_of_all_variants_gives_its_largest_line():
    sample = SHARED / "data" / "dryrun" / "line_variants.txt"
    if not sample.is_file():
        pytest.skip("no sample data here")
    peak = read_peak(sample)
    assert (peak.used_mib, peak.actual_mib) == (77698, 96643)


def test_the_lines_that_tell_of_an_error_are_kept_rather_than_the_last_ones(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("RuntimeError: Out of memory: no room\n" + "progress\n" * 50)
    assert last_lines(path) == ("RuntimeError: Out of memory: no room",)
    assert reports_out_of_memory(path)
    path.write_text("one\ntwo\n")
    assert last_lines(path) == ("one", "two") and not reports_out_of_memory(path)


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="gone.log"):
        read_peak(tmp_path / "gone.log")
