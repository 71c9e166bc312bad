"""A plan in the words of every launcher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.export import export_forms, export_plan
from taylor.parsers.read import read_config
from taylor.parsers.write_back import write_plan
from taylor.pipeline.chunks import Placement
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.register.model import DENSE, MOE, MTP
from tests.conftest import ROOT

PLAN = PipelinePlan(
    {DENSE: ((1, 0), (0, 0)), MOE: ((2, 3), (3, 2)), MTP: ((0, 0), (0, 1))},
    {FULL: ((1, 2), (0, 3)), SELECT: ((1, 0), (2, 0))},
)


def test_exports_say_the_plan_in_each_launchers_words() -> None:
    assert export_plan(PLAN, "megatron-layout") == "Ettt|ttt|ttt|ttmL"
    assert json.loads(export_plan(PLAN, "json"))["layers"] == {
        "dense": [[1, 0], [0, 0]],
        "moe": [[2, 3], [3, 2]],
        "mtp": [[0, 0], [0, 1]],
    }
    parts = json.loads(export_plan(PLAN, "torchtitan").partition("=")[2])
    assert parts[0] == ["tok_embeddings", "layers.0", "layers.1", "layers.2"] and parts[-1][-1] == "output"
    flat = PipelinePlan({DENSE: ((3, 5),)}, {})
    assert export_plan(flat, "mindspeed-list") == "3,5"
    for form, plan in (("mindspeed-list", PLAN), ("nothing", PLAN)):
        with pytest.raises(InputError):
            export_plan(plan, form)
    with pytest.raises(InputError, match="V"):
        export_plan(PLAN, "megatron-layout", placement=Placement.shaped(PLAN.stages, PLAN.interleaves, v_shape=True))
    free = Placement((0, 0, 1, 1))
    for form in ("megatron-layout", "mindformers", "torchtitan"):
        with pytest.raises(InputError, match="not on freely chosen stages"):
            export_plan(PLAN, form, placement=free)
    assert json.loads(export_plan(PLAN, "json", placement=free))["order"] == [list(chunk) for chunk in free.chunks]


def test_the_yaml_fragment_says_what_a_written_file_says(tmp_path: Path) -> None:
    assert set(export_forms()) == {
        "megatron-layout",
        "mindspeed-list",
        "mindformers",
        "torchtitan",
        "torch-actions",
        "json",
    }
    config = read_config(ROOT / "config" / "pretrain_llama3_70b.yaml")
    plan = PipelinePlan(
        {DENSE: ((9, 11, 10, 10, 10, 10, 10, 10),)},
        {FULL: ((9, 2, 0, 0, 0, 0, 0, 0),), SELECT: ((0, 3, 4, 0, 0, 0, 0, 0),)},
    )
    fragment = yaml.safe_load(export_plan(plan, "mindformers"))
    written = yaml.safe_load(write_plan(config, plan, output=tmp_path / "w.yaml").read_text())
    assert fragment["model"]["model_config"]["offset"] == written["model"]["model_config"]["offset"]
    for key in ("recompute", "select_recompute"):
        assert fragment["recompute_config"][key] == written["recompute_config"][key]
