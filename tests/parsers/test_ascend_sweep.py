"""The sweep over repositories for Ascend devices: a row a file, read, refused or explained."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.ascend_sweep import Row, laid_out, summary, swept
from tests.conftest import ROOT

SCRIPT = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_scripts_of_a_repository_are_read_or_refused_with_their_device(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "pretrain_llama3_70b_A3.sh").write_text("export HCCL_BUFFSIZE=200\n" + SCRIPT, encoding="utf-8")
    (clone / "build.sh").write_text("make\n", encoding="utf-8")
    (clone / "notes.md").write_text("no configuration\n", encoding="utf-8")
    for words in (
        ["init", "-q"], ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "all", "--no-gpg-sign"],
    ):  # fmt: skip
        subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True)
    files = laid_out(clone, tmp_path / "out")
    assert [file.name for file in files] == ["build.sh", "pretrain_llama3_70b_A3.sh"]
    refused, read = (swept(tmp_path / "out", file) for file in files)
    assert "starts no training" in refused.refusal and not refused.launcher
    assert (read.launcher, read.device, read.named) == ("megatron", "ascend-a3", "ascend-a3")
    assert summary([refused, read])[0] == "2 files, 1 read, 0 tracebacks"


def test_a_plan_over_the_limit_is_explained_by_what_may_lower_it() -> None:
    over = Row("a.sh", "megatron", peak_mib=100.0, limit_mib=90.0, least_mib=95.0)
    assert over.over and over.explained == ""
    assert "may lower the peak" in Row("a.sh", peak_mib=100, limit_mib=90, least_mib=95, lowers="--lora-r").explained
    assert "may be off" in Row("a.sh", peak_mib=100, limit_mib=90, least_mib=80).explained
    assert "NOT EXPLAINED" in "\n".join(summary([over]))
