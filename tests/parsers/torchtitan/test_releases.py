"""The release of torchtitan that a file runs on, checked against the dates of torchtitan's own commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from tests.parsers.torchtitan.test_files import BASE

COMPILED = BASE.replace("[parallelism]", "[compile]\nenable = true\n[parallelism]", 1)
PIPED = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 32
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 8
pipeline_parallel_degree = 8
"""


def _read(tmp_path: Path, text: str) -> TrainingConfig:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return read_config(path)


@pytest.mark.parametrize(
    ("release", "compiled"),
    [
        # Commits e10cb9494, e8977b007 and bbb1b616e of pytorch/torchtitan.
        ("2024-10-21", False),
        ("2024-10-22", True),
        ("2024-12-17", True),
        ("2024-12-18", False),
        ("2025-04-01", False),
        ("2025-04-02", True),
        ("v0.1.0", True),
        ("v0.2.2", True),
    ],
)
def test_a_release_compiles_the_loss_as_its_commits_say(tmp_path: Path, release: str, compiled: bool) -> None:
    config = _read(tmp_path, f"# taylor: torchtitan_release {release}\n{COMPILED}")
    assert config.rules.compiled and config.rules.compiled_loss is compiled
    assert any(release in note or "torchtitan of" in note for note in config.notes)


def test_without_a_release_the_newest_is_taken_and_said(tmp_path: Path) -> None:
    config = _read(tmp_path, COMPILED)
    assert config.rules.compiled_loss and not config.rules.whole_ends
    assert any("the newest torchtitan" in note for note in config.notes)


def test_a_comment_that_names_torchtitan_dates_its_file(tmp_path: Path) -> None:
    """Table 1 of that document: torchtitan 9dec370 of 2024-12-26."""
    config = _read(tmp_path, f"# benchmarks/llama3_h100_202412_torchtitan.md\n{COMPILED}")
    assert not config.rules.compiled_loss and config.rules.whole_ends
    other = _read(tmp_path, f"# benchmarks/llama3_h100_202412.md\n{COMPILED}")
    assert other.rules.compiled_loss


def test_a_key_that_is_gone_dates_its_file(tmp_path: Path) -> None:
    """``batch_size`` became ``local_batch_size`` in June 2025, before embedding and head had groups of their own."""
    old = BASE.replace("local_batch_size", "batch_size")
    assert _read(tmp_path, BASE).rules.whole_ends is False
    assert _read(tmp_path, old).rules.whole_ends is True


def test_before_april_2025_a_pipeline_has_as_many_micro_batches_as_model_parts(tmp_path: Path) -> None:
    """5e2033c75 of 2025-04-07 took ``pipeline_parallel_microbatches`` away, whose default was the stages."""
    before = _read(tmp_path, f"# taylor: torchtitan_release 2024-12-26\n{PIPED}").strategy
    after = _read(tmp_path, f"# taylor: torchtitan_release 2025-04-07\n{PIPED}").strategy
    assert (before.micro_batches, before.mbs) == (8, 4)
    assert (after.micro_batches, after.mbs) == (32, 1)


def test_a_release_that_is_none_is_refused(tmp_path: Path) -> None:
    for wrong in ("yesterday", "2025-02-30", "v9"):
        with pytest.raises(InputError, match="torchtitan_release"):
            _read(tmp_path, f"# taylor: torchtitan_release {wrong}\n{BASE}")
