"""Support of combinations: its facts are those of registers, tables and records, and files that are made and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.support_page import PAGE, page
from taylor.base.errors import InputError
from taylor.command_lines import support as command
from taylor.parsers.registry import LAUNCHERS
from taylor.workflows.showing import support as module
from taylor.workflows.showing.support import LauncherSupport, Question, support
from tests.toy_launcher import Toy


def one(launcher: str, **asked: object) -> LauncherSupport:
    return support(Question(launcher=launcher, **asked))[0]  # type: ignore[arg-type]


def test_a_further_launcher_is_answered_for_without_a_list_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAUNCHERS", (*LAUNCHERS, Toy()))
    names = [answer.launcher for answer in support(Question())]
    assert names == [*(each.name for each in LAUNCHERS), Toy.name]


def test_a_precision_without_a_peak_counts_at_the_peak_of_16_bits() -> None:
    """NVIDIA's data sheet of the A100 names no FP8."""
    answer = one("megatron", device="a100-80g", precision="fp8")
    assert answer.evaluated
    assert any("no peak in fp8: GEMMs count at its peak in bf16" in reason for reason in answer.reasons)


def test_a_precision_that_no_option_names_is_refused_under_that_launcher() -> None:
    """PaddleNLP's trainer at b0bdd07 knows fp16 and bf16 alone."""
    assert not one("paddlenlp", precision="fp8").evaluated
    assert one("paddlenlp", precision="bf16").evaluated
    assert one("torchtitan", precision="fp8").evaluated


def test_a_schedule_is_a_feature_of_the_frameworks_that_run_it() -> None:
    found = {answer.launcher: answer.solved for answer in support(Question(features=("zbv",)))}
    assert found["torchtitan"] and found["primus-torchtitan"] and not found["megatron"]


def test_an_option_is_answered_for_by_its_row() -> None:
    """Megatron-LM: --log-interval only writes logs; sharding weights beyond TP changes memory and is not modelled."""
    assert one("megatron", features=("--log-interval",)).evaluated
    assert one("megatron", features=("log_interval",)).reasons[0].startswith("log_interval: neutral")
    answer = one("megatron", features=("tensor-parallel-num-weight-shards",))
    assert not answer.evaluated and "in no figure" in answer.reasons[0]


def test_a_model_that_a_file_cannot_be_made_of_says_which_part_it_lacks() -> None:
    assert one("megatron", model="qwen3-30b-a3b").new_file
    mamba = one("torchtitan", model="nemotron-3-nano-30b-a3b")
    assert not mamba.new_file and "flavours" in mamba.reasons[0]
    assert one("registered", model="nemotron-3-nano-30b-a3b").evaluated


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"model": "qwen3-31b"}, "did you mean qwen3-"),
        ({"device": "h1000"}, "did you mean"),
        ({"launcher": "megatronn"}, "did you mean megatron"),
        ({"precision": "int3"}, "--precision: is not known"),
        ({"features": ("cuda-graph-layers",)}, "--feature: is not known"),
    ],
)
def test_what_is_not_known_is_refused_with_its_neighbours(asked: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        support(Question(**asked))  # type: ignore[arg-type]


def test_the_command_prints_the_answers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    command.run(["--launcher", "torchtitan", "--feature", "pp", "--json"])
    [answer] = json.loads(capsys.readouterr().out)["launchers"]
    assert answer["launcher"] == "torchtitan" and answer["solved"]
    assert answer["reasons"] == ["pp: read from parallelism.pipeline_parallel_degree"]


@pytest.mark.slow
def test_the_page_of_support_is_as_the_registers_say() -> None:
    assert Path(PAGE).read_text(encoding="utf-8") == page(), "write it: python -m benchmarks.support_page"
