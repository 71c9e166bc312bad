"""The switches of overlaps that lie in a JSON file beside a MindFormers file are told as if they stood in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.parsers.read import read_config
from tests.conftest import ROOT

HARMLESS = '{"dataset_broadcast_opt_level": 3}'


def _memory_flags(folder: Path, name: str) -> list[str]:
    """Keys by which the memory of a file in `folder` that names the JSON `name` may differ from the figures."""
    text = (ROOT / "config" / "pretrain_llama2_7b.yaml").read_text()
    file = folder / "model.yaml"
    file.write_text(
        text.replace("context:\n", f"context:\n  ascend_config: {{parallel_speed_up_json_path: {name}}}\n", 1)
    )
    return [flag.name for flag in read_config(file).unmodelled if flag.may_raise_memory]


NAME, INSIDE = "context.ascend_config.parallel_speed_up_json_path", "context.ascend_config.parallel_speed_up_json"


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (None, [NAME]),
        (HARMLESS, []),
        ('{"matmul_grad_comm_overlap": true, "recompute_comm_overlap": false}', [f"{INSIDE}.matmul_grad_comm_overlap"]),
        ("{broken", [NAME]),
        ("[1]", [NAME]),
        ("[" * 50_000, [NAME]),
        ('{"a": "' + "x" * 70_000 + '"}', [NAME]),
    ],
)
def test_a_file_of_switches_that_is_at_hand_is_read(tmp_path: Path, held: str | None, expected: list[str]) -> None:
    if held is not None:
        (tmp_path / "speed.json").write_text(held)
    assert _memory_flags(tmp_path, "./speed.json") == expected


def test_a_name_that_begins_with_the_file_s_own_folder_means_that_folder(tmp_path: Path) -> None:
    folder = tmp_path / "configs" / "mine"
    folder.mkdir(parents=True)
    (folder / "speed.json").write_text(HARMLESS)
    assert _memory_flags(folder, "configs/mine/speed.json") == []
    assert _memory_flags(folder, "configs/other/speed.json") == [NAME]


def test_no_file_outside_the_folder_is_opened(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(HARMLESS)
    (tmp_path / "in").mkdir()
    for name in ("../speed.json", tmp_path / "speed.json"):
        assert _memory_flags(tmp_path / "in", str(name)) == [NAME]
