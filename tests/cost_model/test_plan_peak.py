"""The peak of a plan follows the backward of one micro-batch, chunk by chunk."""

from __future__ import annotations

from pathlib import Path

from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.parsers.read import read_config
from tests.solver_cases import plan_of

SCRIPT = Path(__file__).resolve().parents[2] / "config" / "pretrain_llama3_70b.sh"


def test_a_chunk_without_layers_adds_nothing_to_its_stage() -> None:
    """Stage 1 has its 20 layers in the first chunk, whose micro-batches are alive longer than those of the second."""
    config = read_config(SCRIPT)
    strategy = config.strategy.replace(vpp=2)
    empty, even = (
        stage_breakdown(config.model, strategy, config.rules, plan_of({"dense": layers}), config.schedule)
        for layers in ([[10, 20, 10, 10], [10, 0, 10, 10]], [[10, 10, 10, 10], [10, 10, 10, 10]])
    )
    assert empty[1].total > even[1].total and empty[2].total == even[2].total
