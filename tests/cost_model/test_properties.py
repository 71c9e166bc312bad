"""What must hold of memory and time for any model, strategy and plan."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.breakdown import best_case_peak_mib, memory_profile, stage_breakdown
from taylor.cost_model.memory.statics import layer_state_bytes, static_mib
from taylor.cost_model.time.step import estimate_ratios, quick_step_ms
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.frameworks import FRAMEWORKS
from taylor.register.model import DENSE, MOE, ModelSpec
from taylor.register.registry import Registry

REGISTRY = Registry.load()
MODELS = [REGISTRY.model(name) for name in ("deepseek-v3-671b", "llama3-8b", "qwen3-30b-a3b", "gpt2-13b")]
DEVICES = [device for device in map(REGISTRY.device, REGISTRY.device_names()) if device.fabric is not None]
POWERS = st.sampled_from([1, 2, 4, 8])

PARTS = (
    frameworks.ATTENTION_CORE, frameworks.NORMS, frameworks.LATENT_UP, frameworks.DENSE_MLP, frameworks.EXPERT_BLOCK,
    frameworks.DENSE_ACTIVATION, frameworks.EXPERT_ACTIVATION, frameworks.SHARED_EXPERTS,
    frameworks.SHARED_ACTIVATION, frameworks.EXPERT_ROWS,
)  # fmt: skip
any_rules = st.builds(
    TrainingRules,
    framework=st.sampled_from(list(FRAMEWORKS.values())),
    seq_length=st.sampled_from([1024, 4096, 32768]),
    parallel_optimizer=st.booleans(),
    gradient_shard=st.booleans(),
    parameter_shard=st.booleans(),
    param_bytes=st.sampled_from([2, 4]),
    flash_attention=st.booleans(),
    capacity_factor=st.sampled_from([None, 1.0, 1.5]),
    imbalance=st.sampled_from([1.0, 1.3]),
    vocab_parallel=st.booleans(),
    dropout=st.booleans(),
    loss_chunks=st.sampled_from([1, 4]),
    loss_kernel=st.sampled_from([None, frameworks.COMPILED_LOSS, frameworks.ENGINE_LOSS]),
    expert_tensor_parallel=st.booleans(),
    selective=st.none() | st.lists(st.sampled_from(PARTS), unique=True).map(tuple),
    fused_norms=st.booleans(),
)
any_strategy = st.builds(
    Strategy, dp=POWERS, tp=POWERS, pp=st.sampled_from([1, 2, 3, 4]), ep=POWERS, cp=st.sampled_from([1, 2]), op=POWERS,
    sp=st.booleans(), vpp=st.sampled_from([1, 1, 2]), mbs=st.sampled_from([1, 2]), micro_batches=st.integers(1, 12),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(model=st.sampled_from(MODELS), strategy=any_strategy, rules=any_rules)
def test_recompute_never_keeps_more_and_every_figure_is_finite(
    model: ModelSpec, strategy: Strategy, rules: TrainingRules
) -> None:
    for kind in (DENSE, MOE):
        if kind in model.layer_counts():
            none, select, full = (
                float(activation_bytes(model, kind, mode, strategy, rules)) for mode in (NONE, SELECT, FULL)
            )
            assert select >= full > 0
            # An operator's saved result need not be one that backward keeps: a product before its reduce-scatter.
            assert none >= select or frameworks.UNSAVED_OPERATORS in rules.recomputed_parts
            assert none >= full
    profile = memory_profile(model, strategy, rules, 1)
    ends = [profile.static_first_mib, profile.static_last_mib]
    figures = [profile.static_middle_mib, *ends, *profile.layer_mib.values()]
    assert all(math.isfinite(value) and value > 0 for value in figures)
    assert min(ends) >= profile.static_middle_mib


@settings(max_examples=100, deadline=None)
@given(model=st.sampled_from(MODELS), strategy=any_strategy, rules=any_rules)
def test_splitting_further_never_needs_more(model: ModelSpec, strategy: Strategy, rules: TrainingRules) -> None:
    kind = MOE if model.moe else DENSE
    # With one data rank op is 1 and yet full, so a wider cp takes op with it.
    for wider in (
        strategy.replace(tp=2 * strategy.tp),
        strategy.replace(cp=2 * strategy.cp, op=2 * strategy.op),
        strategy.replace(op=2 * strategy.op),
    ):
        assert float(layer_state_bytes(model, kind, wider, rules).total) <= float(
            layer_state_bytes(model, kind, strategy, rules).total
        ) * (1 + 1e-12)
        for mode in (NONE, FULL):
            assert float(activation_bytes(model, kind, mode, wider, rules)) <= float(
                activation_bytes(model, kind, mode, strategy, rules)
            ) * (1 + 1e-12)
        before, after = (max(map(float, static_mib(model, each, rules))) for each in (strategy, wider))
        assert after <= before * (1 + 1e-12)


@st.composite
def planned(draw: st.DrawFn) -> tuple[ModelSpec, Strategy, PipelinePlan, ScheduleSpec]:
    """A shallow model, a strategy, and any plan of it that a file could express."""
    model = draw(st.sampled_from(MODELS[:2])).replace(n_layers=draw(st.integers(8, 12)), mtp_layers=0)
    pp, vpp = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2]))
    spec = ScheduleSpec("1f1b") if vpp == 1 else ScheduleSpec("interleaved", low_memory=draw(st.booleans()))
    strategy = Strategy(4, 4, pp, 4, op=4, vpp=vpp, micro_batches=draw(st.integers(1, 9)))
    cuts = sorted(draw(st.sets(st.integers(1, model.n_layers - 1), min_size=pp * vpp - 1, max_size=pp * vpp - 1)))
    edges = [0, *cuts, model.n_layers]
    sizes = [b - a for a, b in zip(edges, edges[1:], strict=False)]
    dense = [max(0, min(b, model.n_dense) - a) for a, b in zip(edges, edges[1:], strict=False)]
    full = [draw(st.integers(0, size)) for size in sizes]

    def grid(values: list[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(values[v * pp : (v + 1) * pp]) for v in range(vpp))

    layers = {DENSE: grid(dense)}
    if model.n_moe:
        layers[MOE] = grid([size - d for size, d in zip(sizes, dense, strict=True)])
    return model, strategy, PipelinePlan(layers=layers, recompute={FULL: grid(full)}), spec


@settings(max_examples=80, deadline=None)
@given(case=planned())
def test_no_plan_stays_below_the_best_case(case: tuple[ModelSpec, Strategy, PipelinePlan, ScheduleSpec]) -> None:
    model, strategy, plan, spec = case
    rules = TrainingRules()
    best, _ = best_case_peak_mib(model, rules, StrategyTable.from_strategies([strategy]), schedule=spec)
    parts = stage_breakdown(model, strategy, rules, plan, spec)
    assert max(part.total for part in parts) >= best[0] - 1e-6


@settings(max_examples=60, deadline=None)
@given(model=st.sampled_from(MODELS), strategy=any_strategy, rules=any_rules, device=st.sampled_from(DEVICES))
def test_ratios_and_step_times_are_finite_and_positive(model, strategy, rules, device) -> None:  # type: ignore[no-untyped-def]
    ratios = estimate_ratios(model, strategy, rules, device)
    figures = [ratios.dense_forward, ratios.backward, ratios.head, ratios.unit_ms, ratios.recompute[FULL]]
    assert all(math.isfinite(value) and value > 0 for value in figures)
    assert ratios.lag >= 0 and ratios.tail > 0 and ratios.recompute[SELECT] >= 0
    quick = quick_step_ms(model, rules, StrategyTable.from_strategies([strategy]), device)
    assert np.isfinite(quick).all() and quick[0] > float(ratios.unit_ms or 0)
