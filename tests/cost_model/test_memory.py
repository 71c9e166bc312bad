"""Memory of a strategy: hand-worked figures, published ones, and the two roads to the same number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taylor.cost_model.job.parameters import layer_parameters
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.backward_workspace import gradient_workspace_bytes
from taylor.cost_model.memory.breakdown import memory_profile, stage_breakdown
from taylor.cost_model.memory.statics import (
    MIB,
    embedding_state_bytes,
    layer_state_bytes,
    logits_bytes,
    static_mib,
)
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.layers import AttentionSpec, LayerSpec, MlpSpec
from taylor.register.model import DENSE, MOE, ModelSpec, MoeSpec
from taylor.register.registry import Registry

REGISTRY = Registry.load()
DEEPSEEK = REGISTRY.model("deepseek-v3-671b")
LLAMA7 = REGISTRY.model("llama2-7b")
GPT = ModelSpec(
    "gpt", 8, 1024, 16, 16, 64, 4096, 51200, gated_mlp=False, tied_embedding=True, learned_positions=2048,
    norm_bias=True, attention_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
GPT_RULES = TrainingRules(
    framework=frameworks.MEGATRON,
    seq_length=512,
    parallel_optimizer=False,
    param_bytes=2,
    flash_attention=False,
    dropout=True,
)


@pytest.mark.parametrize(
    ("found", "published"),
    [
        (lambda p: p.layer_mib["dense"], 866),
        (lambda p: p.layer_mib["moe"], 10691),
        (lambda p: p.static_first_mib, 3383),
        (lambda p: p.static_middle_mib, 2382),
        (lambda p: p.static_last_mib, 8675),
        (lambda p: p.activation_mib["dense"]["none"], 479),
        (lambda p: p.activation_mib["dense"]["select"], 400),
        (lambda p: p.activation_mib["moe"]["none"], 765),
        (lambda p: p.activation_mib["moe"]["select"], 765),
        (lambda p: p.activation_mib["dense"]["full"], 30),
        (lambda p: p.activation_mib["moe"]["full"], 30),
    ],
    ids=[
        "dense layer",
        "moe layer",
        "first",
        "middle",
        "last",
        "dense",
        "dense select",
        "moe",
        "moe select",
        "dense full",
        "moe full",
    ],
)
def test_deepseek_v3_under_mindformers_is_within_a_tenth_of_the_published_fit(found, published) -> None:  # type: ignore[no-untyped-def]
    strategy = Strategy(16, 4, 16, 8, op=16, micro_batches=64)
    assert found(memory_profile(DEEPSEEK, strategy, TrainingRules(), 55296)) == pytest.approx(published, rel=0.10)


def test_a_model_with_one_kind_has_one_entry_and_mtp_none_of_its_own() -> None:
    assert list(memory_profile(LLAMA7, Strategy(8, 1, 1), TrainingRules(), 1).layer_mib) == [DENSE]
    assert list(memory_profile(DEEPSEEK, Strategy(16, 4, 16, 8), TrainingRules(), 1).layer_mib) == [DENSE, MOE]


@pytest.mark.parametrize(
    ("rules", "op", "bytes_a_parameter"),
    [
        (TrainingRules(parallel_optimizer=False), 1, 18),
        (TrainingRules(), 8, 6 + 12 / 8),
        (TrainingRules(), 2, 6 + 12 / 2),
        (TrainingRules(gradient_shard=True), 8, 2 + 16 / 8),
        (TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, parallel_optimizer=False), 1, 18),
        (TrainingRules(framework=frameworks.MEGATRON, param_bytes=2), 8, 6 + 12 / 8),
        (TrainingRules(framework=frameworks.TORCHTITAN, parameter_shard=True), 8, 16 / 8),
        (TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, parameter_shard=True), 8, 18 / 8),
        (TrainingRules(param_bytes=4, compute_bytes=4, parallel_optimizer=False), 1, 16),
        # MindFormers, 16-bit parameters: weight and accumulated gradient 2 + 2, two fp32 moments, no master weight.
        (TrainingRules(param_bytes=2, parallel_optimizer=False), 1, 2 + 2 + 8),
        # Split: the gathered weight and the gradient whole, moments and the stored weight split.
        (TrainingRules(param_bytes=2), 8, 2 + 2 + (8 + 2) / 8),
        (TrainingRules(param_bytes=2, gradient_shard=True), 8, 2 + (2 + 8 + 2) / 8),
    ],
)
def test_bytes_a_parameter_follow_the_framework_s_rule(rules: TrainingRules, op: int, bytes_a_parameter: float) -> None:
    # TP 1, so that every parameter of a dense layer is replicated dp = 8 times.
    state = layer_state_bytes(LLAMA7, DENSE, Strategy(8, 1, 1, op=op, micro_batches=2), rules)
    assert float(state.total) == pytest.approx(layer_parameters(LLAMA7, DENSE) * bytes_a_parameter, rel=1e-12)


@pytest.mark.parametrize("param_bytes", [2, 4])
def test_mindformers_gradients_follow_the_optimizer_where_nothing_accumulates_them(param_bytes: int) -> None:
    rules, at = TrainingRules(param_bytes=param_bytes), Strategy(8, 1, 1, op=8)
    gradients = layer_parameters(LLAMA7, DENSE) * param_bytes
    for strategy, shards in (
        (at, 8), (at.replace(micro_batches=2), 1), (at.replace(pp=2), 1), (at.replace(op=1), 1),
    ):  # fmt: skip
        assert float(layer_state_bytes(LLAMA7, DENSE, strategy, rules).gradients) == gradients / shards
    whole = layer_state_bytes(LLAMA7, DENSE, at, rules.replace(parallel_optimizer=False))
    assert float(whole.gradients) == gradients


def test_mindformers_batched_experts_are_split_over_tp_too() -> None:
    assert DEEPSEEK.moe is not None
    at, rules = Strategy(16, 4, 2, 8, op=16), TrainingRules(expert_tensor_parallel=True)
    bare = DEEPSEEK.replace(moe=replace(DEEPSEEK.moe, expert_hidden=0, shared_hidden=2048))
    held = layer_state_bytes(DEEPSEEK, MOE, at, rules).total - layer_state_bytes(bare, MOE, at, rules).total
    # Split over EP 8 and TP 4; replicated on DP / EP = 2 ranks.
    assert float(held) == pytest.approx(256 * 3 * 7168 * 2048 / 32 * (6 + 12 / 2), rel=1e-12)


def test_routed_experts_split_over_ep_and_their_optimizer_over_what_is_left_of_dp_tp() -> None:
    moe = DEEPSEEK.moe
    assert moe is not None
    experts = 256 * 3 * 7168 * 2048
    for ep, shards in ((8, 8), (64, 1)):
        at = Strategy(16, 4, 1, ep, op=16, micro_batches=2)
        with_experts = layer_state_bytes(DEEPSEEK, MOE, at, TrainingRules())
        without = layer_state_bytes(
            DEEPSEEK.replace(moe=replace(moe, expert_hidden=0, shared_hidden=2048)), MOE,
            at, TrainingRules(),
        )  # fmt: skip
        assert float(with_experts.total - without.total) == pytest.approx(experts / ep * (6 + 12 / shards), rel=1e-12)


def test_megatron_splits_experts_over_tp_unless_told_to_leave_them_whole() -> None:
    split = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, parallel_optimizer=False)
    whole = split.replace(expert_tensor_parallel=False)
    one, other = (float(layer_state_bytes(DEEPSEEK, MOE, Strategy(8, 4, 1, 8), r).total) for r in (split, whole))
    assert other - one == pytest.approx(18 * 256 * 3 * 7168 * 2048 / 8 * (1 - 1 / 4), rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("mbs", [1, 4])
def test_gpt_activations_are_korthikanti_s_formulas(tp: int, mbs: int) -> None:
    s, b, h, a = 512, mbs, 1024, 16
    at = Strategy(1, tp, 1, sp=False, mbs=mbs)
    both = at.replace(sp=True)
    # Equations 2 to 4 and section 5, arXiv:2205.05198.
    expected = {
        (at, NONE): s * b * h * (10 + 24 / tp + 5 * a * s / (h * tp)),
        (both, NONE): s * b * h / tp * (34 + 5 * a * s / h),
        (at, SELECT): s * b * h * (10 + 24 / tp),
        (both, SELECT): s * b * h / tp * 34,
        (at, FULL): 2 * s * b * h,
        (both, FULL): 2 * s * b * h / tp,
    }
    for (strategy, mode), value in expected.items():
        assert float(activation_bytes(GPT, DENSE, mode, strategy, GPT_RULES)) == pytest.approx(value, rel=1e-12)


def test_a_llama3_70b_layer_at_tp8_keeps_286_mib() -> None:
    rules = TrainingRules(framework=frameworks.MEGATRON, seq_length=8192)
    kept = activation_bytes(REGISTRY.model("llama3-70b"), DENSE, NONE, Strategy(1, 8, 1), rules)
    assert float(kept) / MIB == pytest.approx(286, rel=0.005)


def test_a_fused_deepseek_v3_moe_layer_at_tp4_keeps_478_mib() -> None:
    rules = TrainingRules(framework=frameworks.MEGATRON, expert_tensor_parallel=False)
    assert float(activation_bytes(DEEPSEEK, MOE, NONE, Strategy(8, 4, 1, 8), rules)) / MIB == pytest.approx(
        478, rel=0.005
    )


def test_context_parallel_halves_activations_and_leaves_weights() -> None:
    rules = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, parallel_optimizer=False)
    one, two = (memory_profile(LLAMA7, Strategy(4, 2, 2, cp=cp), rules, 1) for cp in (1, 2))
    assert two.activation_mib["dense"]["none"] == pytest.approx(one.activation_mib["dense"]["none"] / 2)
    assert two.layer_mib == one.layer_mib


def test_capacity_and_imbalance_scale_the_routed_share_alone() -> None:
    strategy, rules = Strategy(8, 4, 1, 8), TrainingRules()

    def kept(changed: TrainingRules) -> float:
        return float(activation_bytes(DEEPSEEK, MOE, NONE, strategy, changed))

    step = kept(rules.replace(imbalance=1.5)) - kept(rules)
    assert kept(rules.replace(imbalance=2.0)) - kept(rules) == pytest.approx(2 * step)
    assert kept(rules.replace(capacity_factor=1.5)) == pytest.approx(kept(rules.replace(imbalance=1.5)))
    # A slot keeps input and output, gate and up twice, their product: 2(2·7168 + 5·2048) bytes.
    assert 2 * step == pytest.approx(4096 * 8 / 4 * 2 * (2 * 7168 + 5 * 2048))


def test_a_chunked_loss_needs_one_chunk_s_logits() -> None:
    strategy = Strategy(1, 1, 1)
    whole = float(logits_bytes(LLAMA7, strategy, TrainingRules()))
    assert whole == 4096 * 32000 * 14
    assert float(logits_bytes(LLAMA7, strategy, TrainingRules(loss_chunks=8))) == whole / 8


def test_of_two_parts_of_a_micro_batch_one_is_at_its_loss_s_worst_moment() -> None:
    one, both = Strategy(1, 1, 1), Strategy(1, 1, 1, mbs=2)
    alone = float(logits_bytes(LLAMA7, one, TrainingRules()))
    parts = TrainingRules(interleaved_parts=2)
    assert float(logits_bytes(LLAMA7, both, parts)) == alone + 4096 * 32000 * 8
    # Three samples do not make two parts, and are written as one.
    three = Strategy(1, 1, 1, mbs=3)
    assert float(logits_bytes(LLAMA7, three, parts)) == 3 * alone


def test_a_tied_head_costs_nothing_on_a_single_stage_and_a_copy_on_the_last_of_several() -> None:
    tied = LLAMA7.replace(tied_embedding=True)
    rules = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, parallel_optimizer=False)
    head = 18 * 32000 * 4096 / MIB
    for pp, difference in ((1, head), (4, 0.0)):
        _, _, untied_last = static_mib(LLAMA7, Strategy(1, 1, pp), rules)
        _, _, tied_last = static_mib(tied, Strategy(1, 1, pp), rules)
        assert float(untied_last - tied_last) == pytest.approx(difference + (18 * 4096 / MIB if pp == 1 else 0))


def test_vocabulary_parallel_off_keeps_the_whole_embedding_on_every_tp_rank() -> None:
    rules = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, parallel_optimizer=False)
    split, whole = (
        float(embedding_state_bytes(LLAMA7, Strategy(1, 4, 1), rules.replace(vocab_parallel=on)).total)
        for on in (True, False)
    )
    assert whole == 4 * split == 18 * 32000 * 4096


def test_mindformers_old_classes_leave_a_vocabulary_whole_that_tp_does_not_divide() -> None:
    uneven, one, four = LLAMA7.replace(vocab=32001), Strategy(1, 1, 2), Strategy(1, 4, 2)
    for name, ways in (("mindformers", 1), ("megatron", 4)):
        rules = TrainingRules(framework=frameworks.FRAMEWORKS[name], core_models=False, parallel_optimizer=False)
        whole, share = (float(embedding_state_bytes(uneven, each, rules).total) for each in (one, four))
        assert whole == pytest.approx(ways * share, rel=0.01)
        whole, share = (float(logits_bytes(uneven, each, rules)) for each in (one, four))
        assert whole == pytest.approx(ways * share, rel=0.25)


@pytest.mark.parametrize("framework", ["mindformers", "megatron", "torchtitan"])
@pytest.mark.parametrize("model", [DEEPSEEK, LLAMA7, REGISTRY.model("qwen3-30b-a3b")], ids=lambda m: m.name)
def test_a_table_gives_the_same_profile_as_each_of_its_rows(framework: str, model: ModelSpec) -> None:
    rules = TrainingRules(framework=frameworks.FRAMEWORKS[framework], parameter_shard=framework == "torchtitan")
    rng = np.random.default_rng(7)
    table = _random_table(rng, 60)
    kind = MOE if model.moe else DENSE
    first, middle, last = (np.broadcast_to(value, len(table)) for value in static_mib(model, table, rules))
    layer = np.broadcast_to(layer_state_bytes(model, kind, table, rules).total, len(table))
    modes = (NONE, SELECT, FULL)
    kept = {m: np.broadcast_to(activation_bytes(model, kind, m, table, rules), len(table)) for m in modes}
    for i, strategy in enumerate(table):
        profile = memory_profile(model, strategy, rules, 1)
        assert (profile.static_first_mib, profile.static_middle_mib) == (first[i], middle[i])
        assert profile.static_last_mib == last[i]
        assert profile.layer_mib[kind] == layer[i] / MIB
        assert profile.activation_mib[kind] == {mode: value[i] / MIB for mode, value in kept.items()}


def test_the_breakdown_adds_up_to_what_the_profile_says_of_the_plan() -> None:
    strategy = Strategy(16, 4, 4, 8, op=16, micro_batches=16)
    plan = PipelinePlan(
        layers={"dense": ((3, 0, 0, 0),), "moe": ((11, 16, 16, 15),), "mtp": ((0, 0, 0, 1),)},
        recompute={FULL: ((10, 16, 8, 2),), SELECT: ((2, 0, 1, 0),)},
    )
    profile = memory_profile(DEEPSEEK, strategy, TrainingRules(), 55296)
    parts = stage_breakdown(DEEPSEEK, strategy, TrainingRules(), plan)
    act, static = profile.activation_mib, profile.static_mib(4)
    dense, moe = act["dense"], act["moe"]
    by_hand = [
        static[0] + 3 * profile.layer_mib["dense"] + 11 * profile.layer_mib["moe"]
        + 4 * (3 * dense["full"] + 7 * moe["full"] + 2 * moe["select"] + 2 * moe["none"]),
        static[1] + 16 * profile.layer_mib["moe"] + 3 * 16 * moe["full"],
        static[2] + 16 * profile.layer_mib["moe"] + 2 * (8 * moe["full"] + moe["select"] + 7 * moe["none"]),
        static[3] + 16 * profile.layer_mib["moe"] + 2 * moe["full"] + 14 * moe["none"],
    ]  # fmt: skip
    assert [part.total for part in parts] == pytest.approx(by_hand, rel=1e-12)
    assert [sum(part.categories().values()) for part in parts] == pytest.approx(by_hand, rel=1e-12)
    assert parts[3].logits > 0 == parts[0].logits


def test_a_plan_of_another_shape_is_refused() -> None:
    plan = PipelinePlan(layers={"dense": ((16, 16),)}, recompute={})
    with pytest.raises(ValueError, match="2 stages x 1 virtual stages.*4 x 1"):
        stage_breakdown(LLAMA7, Strategy(1, 1, 4), TrainingRules(), plan)


def test_one_interleaved_stage_keeps_the_published_share_of_activations() -> None:
    # GPT-3's 96 layers at pp 8, vpp 3: L·(1 + (p−1)/(p·m)) layers alive (Korthikanti 2022 §4.2.3).
    model, strategy = GPT.replace(n_layers=96), Strategy(1, 8, 8, sp=False, vpp=3, micro_batches=64)
    even = PipelinePlan(layers={"dense": ((4,) * 8,) * 3}, recompute={})
    parts = stage_breakdown(model, strategy, GPT_RULES, even, ScheduleSpec("megatron-interleaved"))
    layer = float(activation_bytes(model, DENSE, NONE, strategy, GPT_RULES)) / MIB
    assert parts[0].activations["dense"] == pytest.approx(layer * 96 * (1 + 7 / 24))


def _random_table(rng: np.random.Generator, n: int) -> StrategyTable:
    def pick(*values: int) -> list[int]:
        return [int(v) for v in rng.choice(values, n)]

    return StrategyTable.from_strategies([
        Strategy(
            dp=row[0], tp=row[1], pp=row[2], ep=row[3], cp=row[4], op=row[5], sp=bool(row[6]), vpp=row[7], mbs=row[8],
            micro_batches=row[9],
        )
        for row in zip(
            pick(1, 2, 8, 64), pick(1, 2, 4, 8), pick(1, 2, 4, 8), pick(1, 2, 8), pick(1, 2, 4), pick(1, 2, 8, 256),
            pick(0, 1), pick(1, 2), pick(1, 2), pick(1, 4, 7, 16, 33), strict=True,
        )
    ])  # fmt: skip


@pytest.mark.parametrize("framework", [frameworks.MEGATRON, frameworks.MINDFORMERS, frameworks.TORCHTITAN])
def test_experts_make_the_room_that_their_largest_part_makes(framework: frameworks.Framework) -> None:
    """A shared expert is an MLP of its width: beside narrow experts it is what needs most, beside wide ones nothing."""
    attention = AttentionSpec(1, 1, 16)
    rules, strategy = TrainingRules(framework=framework, seq_length=512), Strategy(1, 1, 1)

    def room(layer: LayerSpec) -> float:
        model = ModelSpec("one", 1, 512, 8, 8, 64, 64, 1024, kinds=(layer,), pattern=f"1 {layer.name}")
        return float(gradient_workspace_bytes(model, layer.name, strategy, rules))

    larger = set()
    for width in (16, 256, 30000):
        alone = room(LayerSpec("moe", attention, moe=MoeSpec(4, 2, 64)))
        shared = room(LayerSpec("dense", attention, mlp=MlpSpec(width)))
        both = room(LayerSpec("moe", attention, moe=MoeSpec(4, 2, 64, n_shared=1, shared_hidden=width)))
        assert both == max(alone, shared) > 0
        larger.add(shared > alone)
    assert larger == {True, False}
