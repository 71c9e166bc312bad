"""A job of a model alone: what its flags mean together."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.command_lines.model_start import model_job
from taylor.command_lines.pipeline_parallel import build_parser


def fixed(tmp_path, *words):
    parsed = build_parser().parse(["--model", "llama3-8b", "--world_size", "16", *words])
    return model_job(parsed, tmp_path / "config.json").fix


def test_named_devices_are_the_stages_that_the_strategy_has(tmp_path):
    mixed = ["--stage_devices", "h100-80g:3,a100-80g:1"]
    assert fixed(tmp_path, *mixed, "--fix", "tp=2") == {"pp": 4, "tp": 2}
    assert fixed(tmp_path, *mixed, "--fix", "pp=4") == {"pp": 4}
    assert fixed(tmp_path) == {}
    with pytest.raises(InputError, match="--fix: contradicts --stage_devices, which names 4 stages"):
        fixed(tmp_path, *mixed, "--fix", "pp=2")
