"""Exchanges beside another micro-batch's pass, checked against a schedule of two streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taylor.cost_model.job.strategy import GRAPHED_EXPERTS, Strategy, TrainingRules
from taylor.cost_model.time.expert_exchange import EXCHANGE_PROCESSORS
from taylor.cost_model.time.paired_exchange import ALIGNED, PairedWork, paired_exchange_ms, unpaired_micro_batches
from taylor.cost_model.time.step import step_ms
from taylor.register import frameworks
from taylor.register.registry import Registry

PAIRED = TrainingRules(framework=frameworks.MEGATRON, overlap_experts=True, expert_tensor_parallel=False)
WHOLE = PAIRED.replace(graphed=(GRAPHED_EXPERTS,))


def _two_streams(exchange: float, work: PairedWork) -> float:
    """A pair's time by the three slots of Megatron's `TransformerLayerSchedulePlan.run`, without any slow-down."""
    half = exchange / 2
    slots = (
        (half, work.before),
        (2 * half, work.experts + work.experts_back),
        (half, work.before_back),
    )
    return sum(max(slot) for slot in slots)


@pytest.mark.parametrize("exchange", [0.0, 0.3, 2.0, 20.0])
@pytest.mark.parametrize("work", [PairedWork(1, 2, 3, 6), PairedWork(0.1, 0.2, 3, 6), PairedWork(2, 4, 0.2, 0.4)])
def test_a_graph_s_pair_takes_as_long_as_its_slots(exchange: float, work: PairedWork) -> None:
    """Apart from what the exchanges take from the processors."""
    forward, backward = paired_exchange_ms(exchange, work, WHOLE)
    computed = sum(work)
    overlapped = 2 * exchange + computed - _two_streams(exchange, work)
    found = computed + forward + backward
    assert found == pytest.approx(_two_streams(exchange, work) + EXCHANGE_PROCESSORS * overlapped)


def test_an_exchange_does_not_use_the_time_that_another_slot_has_left() -> None:
    # Long experts leave a combine beside short attention exposed.
    forward, backward = paired_exchange_ms(2.0, PairedWork(0.0, 0.0, 100.0, 200.0), WHOLE)
    assert min(forward, backward) > 1.0


def test_the_traced_fraction_runs_beside_computation_where_the_host_starts_both() -> None:
    plenty = PairedWork(10, 20, 10, 20)
    exchange = 1.0
    forward, backward = paired_exchange_ms(exchange, plenty, PAIRED)
    saved = 1 - (forward + backward) / (2 * exchange)
    assert saved == pytest.approx(0.3655 * (1 - EXCHANGE_PROCESSORS))
    assert ALIGNED == 0.3655


def test_without_the_flag_all_of_an_exchange_is_exposed() -> None:
    assert paired_exchange_ms(1.5, PairedWork(9, 9, 9, 9), PAIRED.replace(overlap_experts=False)) == (1.5, 1.5)


def test_more_chunks_mean_more_passes_alone() -> None:
    once = Strategy(dp=8, tp=1, pp=4, ep=8, micro_batches=64)
    assert unpaired_micro_batches(once.replace(pp=1)) == 1
    assert unpaired_micro_batches(once.replace(pp=4, vpp=2)) < unpaired_micro_batches(once.replace(pp=8, vpp=2))
    assert unpaired_micro_batches(once.replace(pp=16, vpp=4, micro_batches=3)) == 3


def test_the_overlap_gains_less_in_a_step_of_few_micro_batches() -> None:
    registry = Registry.load()
    model = registry.model("qwen3-30b-a3b")
    device = replace(registry.device("h100-80g"), operation_us=0.0)

    def gain(micro_batches: int) -> float:
        strategy = Strategy(dp=16, tp=1, pp=4, ep=16, op=16, sp=False, vpp=4, micro_batches=micro_batches)
        overlapped, plain = (
            float(step_ms(model, strategy, rules, device)) for rules in (PAIRED, PAIRED.replace(overlap_experts=False))
        )
        return 1 - overlapped / plain

    assert 0 < gain(8) < gain(128)
