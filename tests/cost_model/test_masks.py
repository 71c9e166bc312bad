"""Dense masks of attention that come with each micro-batch, as Megatron-LM's data loader makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.breakdown import memory_profile, stage_breakdown
from taylor.cost_model.memory.statics import MIB, mask_bytes
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, even_plan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.registry import Registry
from tests.parsers.megatron.test_scripts import BASE, script_of

MODEL = Registry.load().model("llama2-7b")
RULES = TrainingRules(framework=frameworks.MEGATRON, seq_length=8192, loads_masks=True)
ONE = 8192**2 / MIB


@pytest.mark.parametrize(
    ("strategy", "first", "last"),
    [
        (Strategy(1, 1, 1, micro_batches=8), 1, 0),
        (Strategy(1, 1, 4, micro_batches=8), 4, 1),
        (Strategy(1, 1, 4, micro_batches=2), 2, 1),
        (Strategy(1, 1, 4, mbs=2, micro_batches=8), 8, 2),
        (Strategy(1, 8, 4, micro_batches=8, sp=True), 4, 1),
        (Strategy(1, 1, 4, cp=4, micro_batches=8), 1, 0.25),
        (Strategy(1, 1, 4, vpp=2, micro_batches=16), 7, 1),
    ],
)
def test_every_micro_batch_in_flight_keeps_its_mask_on_the_first_stage_and_one_on_the_last(
    strategy: Strategy, first: float, last: float
) -> None:
    found = mask_bytes(strategy, RULES, ScheduleSpec())
    assert [float(each) / MIB for each in found] == [first * ONE, last * ONE]


@pytest.mark.parametrize("strategy", [Strategy(1, 1, 1, micro_batches=8), Strategy(1, 2, 4, micro_batches=8, sp=True)])
def test_the_mask_is_beside_what_the_first_and_the_last_stage_hold(strategy: Strategy) -> None:
    without = RULES.replace(loads_masks=False)
    more, less = (memory_profile(MODEL, strategy, rules, 1e5).static_mib(strategy.pp) for rules in (RULES, without))
    masks = [1.0] if strategy.pp == 1 else [4.0, 0.0, 0.0, 1.0]
    assert [a - b for a, b in zip(more, less, strict=True)] == pytest.approx([ONE * count for count in masks])
    plan = even_plan(MODEL.layer_counts(), strategy.pp, 1, recompute=FULL)
    parts, plain = (stage_breakdown(MODEL, strategy, rules, plan) for rules in (RULES, without))
    assert [a.total - b.total for a, b in zip(parts, plain, strict=True)] == pytest.approx([ONE * n for n in masks])


@pytest.mark.parametrize(
    ("more", "loads"),
    [
        ("", True),
        ("--no-create-attention-mask-in-dataloader\n", False),
        ("--dataloader-inter-document-masking\n", False),
        ("--use-fused-rmsnorm\n--use-flash-attn\n", False),
    ],
)
def test_megatron_loads_masks_unless_a_flag_says_otherwise_and_mindspeed_does_not(
    more: str, loads: bool, tmp_path: Path
) -> None:
    assert read_config(script_of(tmp_path, BASE + more, "command")).rules.loads_masks is loads
