"""The peak of a plan follows the backward of one micro-batch, chunk by chunk."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.cost_model.memory.alive import heavy_backwards
from taylor.cost_model.memory.breakdown import StageBreakdown, stage_breakdown
from taylor.parsers.read import read_config
from taylor.pipeline.alive import backward_starts
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import SEARCHED, ScheduleSpec
from tests.solver_cases import plan_of

SCRIPT = Path(__file__).resolve().parents[2] / "config" / "pretrain_llama3_70b.sh"


def allocated(stage: StageBreakdown) -> float:
    """Memory of a stage's tensors under its plan, MiB."""
    return stage.total - stage.spare


def test_a_chunk_without_layers_adds_nothing_to_its_stage() -> None:
    """Stage 1 has its 20 layers in the first chunk, whose micro-batches are alive longer than those of the second."""
    config = read_config(SCRIPT)
    strategy = config.strategy.replace(vpp=2)
    empty, even = (
        stage_breakdown(config.model, strategy, config.rules, plan_of({"dense": layers}), config.schedule)
        for layers in ([[10, 20, 10, 10], [10, 0, 10, 10]], [[10, 10, 10, 10], [10, 10, 10, 10]])
    )
    assert allocated(empty[1]) > allocated(even[1]) and allocated(empty[2]) == allocated(even[2])
    assert empty[1].total > even[1].total and empty[2].total == even[2].total


def test_a_weight_gradient_that_makes_way_for_a_forward_counts_with_it() -> None:
    """A third micro-batch is alive behind the forwards of stage 0, and two where a backward begins."""
    config = read_config(SCRIPT)
    strategy = config.strategy.replace(pp=2, vpp=1, micro_batches=4)
    words = ("F0 F0 B0 F0 W0 B0 F0 W0 B0 W0 B0 W0", "F0 B0 W0 F0 B0 W0 F0 B0 W0 F0 B0 W0")
    stage = stage_breakdown(
        config.model, strategy, config.rules, plan_of({"dense": [[40, 40]]}), ScheduleSpec(SEARCHED, words=words)
    )[0]
    assert stage.alive == 3
    kept = stage.weights + stage.gradients + stage.optimizer + stage.overhead + sum(stage.activations.values())
    assert allocated(stage) >= kept > 0


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 9])
def test_the_backwards_by_formula_are_those_of_the_order(name: str, micro_batches: int) -> None:
    schedule, stages = ScheduleSpec(name), 4
    simulated = backward_starts(build_schedule(schedule, stages, 1, micro_batches))
    for formula, order in zip(heavy_backwards(schedule, stages, 1, micro_batches), simulated, strict=True):
        # With as many alive, a backward behind another one needs no less.
        heaviest = {
            one for one in formula if not any(each.begun > one.begun and each.alive >= one.alive for each in formula)
        }
        assert heaviest == set(order)
