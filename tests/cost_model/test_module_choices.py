"""Recompute and offload by module: bytes counted by hand, sets that cannot be, and what is worth offering."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taylor.cost_model.choices.module_choices import (
    MOST_CHOICES,
    ModuleChoice,
    ModuleWords,
    module_choices,
    spread,
    words_of,
)
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.offload import (
    CONTEXT,
    CORE_INPUTS,
    EXPERT_INNER,
    EXPERT_INPUT,
    HOST_LINK_SHARE,
    OFFLOADED,
    offloaded_bytes,
)
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.time.step import layer_time
from taylor.parsers.megatron.recompute import MODULE_WORDS
from taylor.pipeline.plan import FULL, NONE, even_plan
from taylor.register.frameworks import MEGATRON
from taylor.register.model import MOE
from taylor.register.registry import Registry

DEVICE = Registry.load().device("h100-80g")
LLAMA, DEEPSEEK = Registry.load().model("llama3-70b"), Registry.load().model("deepseek-v3-671b")
RULES = TrainingRules(MEGATRON, seq_length=4096, param_bytes=2)
STRATEGY = Strategy(dp=8, tp=4, pp=8, ep=8, sp=True, micro_batches=16)


def test_grouped_attention_moves_its_queries_keys_values_and_context():
    """LLaMA3-70B at TP 4: 16 heads and 2 key/value heads of 128, in 16 bits, for 4,096 tokens."""
    kind = LLAMA.body_kind
    assert offloaded_bytes(LLAMA, kind, (CORE_INPUTS,), STRATEGY, RULES) == 4096 * 2 * (16 + 2 + 2) * 128
    assert offloaded_bytes(LLAMA, kind, (CONTEXT,), STRATEGY, RULES) == 4096 * 2 * 16 * 128


def test_experts_move_their_input_and_that_of_their_activation_function():
    """DeepSeek-V3: 8 experts a token, 7,168 wide outside and 2 x 2,048 inside; sequence parallelism splits by 4."""
    inputs = offloaded_bytes(DEEPSEEK, MOE, (EXPERT_INPUT,), STRATEGY, RULES)
    inner = offloaded_bytes(DEEPSEEK, MOE, (EXPERT_INNER,), STRATEGY, RULES)
    slots = 4096 * 8 / (4 if RULES.whole_experts else 1)
    assert inputs == slots * 2 * 7168
    assert inner == slots * 2 * 2 * 2048 / (1 if RULES.whole_experts else 4)


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=lambda model: model.name)
def test_what_is_moved_is_part_of_what_is_kept(model):
    for kind in model.body_counts:
        moved = offloaded_bytes(model, kind, OFFLOADED, STRATEGY, RULES)
        assert 0 < moved < activation_bytes(model, kind, NONE, STRATEGY, RULES)


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=lambda model: model.name)
def test_choices_are_few_and_each_frees_more_memory_for_more_time_than_the_one_before(model):
    found = module_choices(model, STRATEGY, RULES, DEVICE, MODULE_WORDS)
    assert 2 < len(found) <= MOST_CHOICES

    def total(one, *names):
        return sum(n * sum(getattr(one.costs[k], name) for name in names) for k, n in model.body_counts.items())

    times = [total(one, "forward", "backward") for one in found]
    kept = [total(one, "kept_mib") for one in found]
    assert times == sorted(times) and kept == sorted(kept, reverse=True)
    for one in found:
        assert words_of(one.name) == (one.recompute, one.offload)
        assert "attn_proj" not in one.offload or "core_attn" in one.offload
        assert not {"moe_act", "shared_experts"} & set(one.recompute) or "moe" not in one.recompute
    full = sum(
        n * float(layer_time(model, k, STRATEGY, RULES, DEVICE).recompute[FULL]) for k, n in model.body_counts.items()
    )
    assert full > 0


def test_a_transfer_costs_what_it_takes_longer_than_the_layer_computes():
    words = ModuleWords({}, {"core_attn": CORE_INPUTS})
    slow = replace(DEVICE, host_link_gb_s=6.0)
    (one,) = module_choices(LLAMA, STRATEGY, RULES, slow, words)
    kind = LLAMA.body_kind
    time = layer_time(LLAMA, kind, STRATEGY, RULES, slow)
    moved = 4096 * 2 * 20 * 128
    link = moved / (6e6 * HOST_LINK_SHARE)
    cost = one.costs[kind]
    assert cost.host_mib == moved / MIB
    assert cost.link == pytest.approx(link / time.forward)
    assert cost.forward == pytest.approx(max(0.0, link - time.forward) / time.forward)
    assert cost.backward == pytest.approx(max(0.0, link - time.backward) / time.forward)
    (fast,) = module_choices(LLAMA, STRATEGY, RULES, DEVICE, words)
    assert (fast.costs[kind].forward, fast.costs[kind].backward) == (0.0, 0.0)


def test_without_a_link_to_the_host_nothing_is_moved():
    unlinked = replace(DEVICE, host_link_gb_s=None)
    assert all(not one.offload for one in module_choices(DEEPSEEK, STRATEGY, RULES, unlinked, MODULE_WORDS))


@pytest.mark.parametrize(
    ("most", "kept"),
    [
        (2, [100, 0]),
        (3, [100, 50, 0]),
        (4, [100, 50, 25, 0]),  # 50 MiB over 20 s, and before it 50 MiB over 3 s
        (5, [100, 50, 25, 10, 0]),  # 25 MiB over 10 s each, of which the later one; 50 MiB over 3 s are less
        (6, [100, 70, 50, 25, 10, 0]),
        (7, [100, 70, 60, 50, 25, 10, 0]),
    ],
)
def test_of_a_long_front_those_stay_between_which_the_largest_steps_lie(most: int, kept: list[float]) -> None:
    one = ModuleChoice((), (), {})
    front = [(time, mib, one) for time, mib in [(0, 100), (1, 70), (2, 60), (3, 50), (13, 25), (21, 10), (23, 0)]]
    assert [mib for _, mib, _ in spread(front, most)] == kept


def test_scores_that_are_kept_move_with_the_core_s_inputs() -> None:
    """A matrix of 4096 scores a head and token, of two bytes, beside queries, keys and values."""
    [kind] = LLAMA.body_counts
    flash = offloaded_bytes(LLAMA, kind, (CORE_INPUTS,), STRATEGY, RULES)
    unfused = offloaded_bytes(LLAMA, kind, (CORE_INPUTS,), STRATEGY, RULES.replace(flash_attention=False))
    assert unfused - flash == 4096 * 4096 * 16 * 2


def test_moved_inputs_leave_the_stage_but_for_the_layers_in_flight() -> None:
    strategy = STRATEGY.replace(pp=2, micro_batches=8)
    plan = even_plan(LLAMA.layer_counts(), 2, 1, recompute=NONE)
    [kind] = LLAMA.body_counts
    one = float(offloaded_bytes(LLAMA, kind, (CORE_INPUTS,), strategy, RULES)) / 2**20
    here = stage_breakdown(LLAMA, strategy, RULES, plan)[0]
    gone = stage_breakdown(LLAMA, strategy, RULES, plan, moved=(CORE_INPUTS,))[0]
    layers = here.layers[kind]
    assert here.activations[kind] - gone.activations[kind] == pytest.approx(2 * layers * one)
    assert here.total - gone.total == pytest.approx((2 * layers - 2) * one)
