"""A file written for a plan has the plan's layers, by MindFormers' own count of them."""

from __future__ import annotations

import pytest
import yaml

from taylor.parsers.read import read_config
from taylor.parsers.write_back import emit_variant
from taylor.pipeline.plan import PipelinePlan
from tests.conftest import ROOT

FILES = ("pretrain_deepseek3_128p.yaml", "pretrain_deepseek3_671b_1024p.yaml")


def merged(plan):
    """The plan as a solver gives it that counts the MTP layer with the MoE layers."""
    return PipelinePlan({"dense": plan.layers["dense"], "moe": plan.total_layers(["moe", "mtp"])}, plan.recompute)


@pytest.mark.parametrize("name", FILES)
def test_a_plan_that_counts_the_mtp_layer_with_the_others_leaves_the_layer_counts(tmp_path, name):
    config = read_config(ROOT / "config" / name)
    before = yaml.safe_load(config.path.read_text())["model"]["model_config"]
    plan = config.even_plan(config.strategy)
    written = emit_variant(config, config.strategy, tmp_path / name, plan=merged(plan))
    after = yaml.safe_load(written.read_text())["model"]["model_config"]
    assert (after["num_layers"], after["mtp_depth"]) == (before["num_layers"], before["mtp_depth"])
    assert read_config(written).plan == plan


@pytest.mark.parametrize("name", FILES)
def test_a_plan_in_the_kinds_of_its_model_is_left_as_it_is(name):
    config = read_config(ROOT / "config" / name)
    plan = config.even_plan(config.strategy)
    assert config.in_kinds_of_model(plan) is plan
    assert config.in_kinds_of_model(merged(plan)) == plan


def test_a_file_of_other_layers_than_its_plan_is_an_internal_error(tmp_path):
    config = read_config(ROOT / "config" / FILES[0])
    plan = config.even_plan(config.strategy)
    extra = {"model.model_config.num_layers": 16}
    with pytest.raises(RuntimeError, match="internal error.*16 layers and 1 MTP"):
        emit_variant(config, config.strategy, tmp_path / "a.yaml", plan=plan, extra=extra)
