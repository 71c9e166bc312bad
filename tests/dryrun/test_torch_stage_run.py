"""The dry-run of a stage: exact peaks from a cut step, and agreement with the closed forms in every category."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

pytest.importorskip("torch")

from taylor.cost_model.job.optimizer import OptimizerStates  # noqa: E402
from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.cost_model.memory.activations import activation_bytes  # noqa: E402
from taylor.cost_model.memory.breakdown import stage_breakdown  # noqa: E402
from taylor.dryrun.torch_stage.probe import layer_memory  # noqa: E402
from taylor.dryrun.torch_stage.run import run_stage, settled_plan  # noqa: E402
from taylor.parsers.megatron.recompute import ACTIVATION_PARTS  # noqa: E402
from taylor.pipeline.generators import build_schedule  # noqa: E402
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan, even_plan  # noqa: E402
from taylor.pipeline.schedule import ScheduleSpec  # noqa: E402
from taylor.register.frameworks import (  # noqa: E402
    ATTENTION_CORE,
    DENSE_MLP,
    EXPERT_ACTIVATION,
    EXPERT_BLOCK,
    EXPERT_ROWS,
    LATENT_UP,
    NORMS,
    SHARED_EXPERTS,
)
from taylor.register.model import DENSE, MOE  # noqa: E402
from taylor.register.narrow_products import DELAYED, MXFP8, NVFP4  # noqa: E402
from taylor.register.registry import Registry  # noqa: E402
from tests import torch_stage_cases as cases  # noqa: E402

REGISTRY = Registry.load()
LLAMA7, LLAMA70 = REGISTRY.model("llama2-7b"), REGISTRY.model("llama3-70b")
DEEPSEEK, GPT3 = REGISTRY.model("deepseek-v3-671b"), REGISTRY.model("gpt3-175b")
MEGATRON = cases.MEGATRON.replace(seq_length=4096, expert_tensor_parallel=False)


@pytest.mark.parametrize(
    ("spec", "vpp", "micro_batches", "rules"),
    [
        (ScheduleSpec(), 1, 6, cases.MEGATRON),
        (ScheduleSpec(), 1, 6, cases.TORCHTITAN),
        (ScheduleSpec("gpipe"), 1, 4, cases.MINDFORMERS),
        (ScheduleSpec("interleaved", low_memory=True), 2, 7, cases.MEGATRON),
        (ScheduleSpec("interleaved", low_memory=False), 2, 6, cases.MINDFORMERS),
        (ScheduleSpec("megatron-interleaved"), 2, 6, cases.MEGATRON),
        (ScheduleSpec("torch-interleaved"), 2, 6, cases.TORCHTITAN),
        (ScheduleSpec("zbv"), 2, 6, cases.MEGATRON),
        (ScheduleSpec("seqpipe", seq_splits=2), 2, 4, cases.MINDFORMERS),
    ],
    ids=lambda value: getattr(value, "name", getattr(value, "framework", str(value))),
)
def test_the_cut_step_has_the_peak_of_the_whole_one(
    spec: ScheduleSpec, vpp: int, micro_batches: int, rules: TrainingRules
) -> None:
    strategy = Strategy(2, 1, 2, op=2, vpp=vpp, micro_batches=micro_batches)
    # Mixed recompute and uneven chunks, so that no two moments are alike by accident.
    layers = ((2, 3),) if vpp == 1 else ((1, 1), (2, 1))
    recompute = {FULL: ((1, 1),) if vpp == 1 else ((0, 1), (1, 0)), SELECT: ((0, 1),) if vpp == 1 else ((1, 0), (0, 1))}
    run = cases.job(cases.LLAMA, strategy, rules, spec, plan=PipelinePlan({DENSE: layers}, recompute))
    for stage in range(2):
        cut, whole = run_stage(run, stage), run_stage(run, stage, whole_step=True)
        assert cut.peak_mib == whole.peak_mib
        assert cut.moments == whole.moments[: len(cut.moments)]
        assert cut.categories == whole.categories
        if spec.name in ("1f1b", "interleaved"):
            assert len(cut.moments) < len(whole.moments)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "kept"), [(FULL, 4), (NONE, 1)])
def test_layers_that_run_again_keep_every_mask_in_flight_on_the_first_stage_alone(mode: str, kept: int) -> None:
    strategy, rules = Strategy(1, 1, 4, micro_batches=8), cases.MEGATRON
    mask = rules.seq_length**2 / 2**20
    for stage, count in enumerate((kept, 0, 0, 1)):
        found, without = (
            run_stage(cases.job(cases.LLAMA, strategy, chosen, mode=mode), stage)
            for chosen in (rules.replace(loads_masks=True), rules)
        )
        more = found.peak_mib - without.peak_mib
        assert more <= count * mask + 1e-9 and (mode == NONE or stage or more == pytest.approx(count * mask))


def test_one_forward_one_backward_needs_the_micro_batches_in_flight_and_one_more() -> None:
    run = cases.job(cases.LLAMA, Strategy(1, 1, 4, micro_batches=64), cases.MEGATRON)
    for stage in range(4):
        moments = run_stage(run, stage).moments
        assert max(moment.micro_batch for moment in moments) <= 4 - stage
        assert len(moments) <= (4 - stage) + 4


@pytest.mark.slow
@pytest.mark.parametrize("spec", [ScheduleSpec(), ScheduleSpec("zbv")], ids=["1f1b", "zero bubble"])
def test_when_the_step_is_over_only_states_and_buffers_are_left(spec: ScheduleSpec) -> None:
    vpp = 2 if spec.name == "zbv" else 1
    # In a V the model ends on the first stage, where an even split puts no prediction module.
    model = cases.LATENT.replace(mtp_layers=2 - vpp)
    run = cases.job(model, Strategy(2, 2, 2, 2, op=2, vpp=vpp, micro_batches=4),
                    cases.MEGATRON.replace(expert_tensor_parallel=False), spec)  # fmt: skip
    for stage in range(2):
        found = run_stage(run, stage, whole_step=True)
        states = sum(found.categories[name] for name in ("weights", "gradients", "optimizer", "overhead"))
        boundary_mib = 256 / 2 * 256 * 2 / 2**20
        assert states - 1e-9 <= found.moments[-1].live_mib <= states + 4 * boundary_mib


def test_leaving_out_a_kernel_s_arithmetic_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = cases.MEGATRON.replace(expert_tensor_parallel=False)
    run = cases.job(cases.LATENT, Strategy(2, 2, 2, 2, op=2, micro_batches=3), rules, mode=SELECT)
    quick = run_stage(run, 1)
    for module in ("kernels", "attention"):
        monkeypatch.setattr(f"taylor.dryrun.torch_stage.{module}.only_shapes", lambda _: False)
    whole = run_stage(run, 1)
    assert (quick.peak_mib, quick.categories, quick.moments) == (whole.peak_mib, whole.categories, whole.moments)


def test_the_categories_are_those_of_the_closed_forms_and_sum_to_the_peak() -> None:
    strategy = Strategy(2, 2, 2, 2, op=2, micro_batches=4)
    run = cases.job(cases.LATENT, strategy, cases.MEGATRON.replace(expert_tensor_parallel=False))
    closed = stage_breakdown(cases.LATENT, strategy, run.config.rules, run.plan)
    for stage in range(2):
        found = run_stage(run, stage)
        assert list(found.categories) == list(closed[stage].categories())
        assert sum(found.categories.values()) == pytest.approx(found.peak_mib, rel=1e-12)
        assert max(moment.peak_mib for moment in found.moments) == found.peak_mib


LAYERS = {
    "llama2-7b tp2": (LLAMA7, DENSE, Strategy(4, 2, 4, op=4), 4096),
    "llama2-7b cp2": (LLAMA7, DENSE, Strategy(4, 1, 4, cp=2, op=4), 4096),
    "llama3-70b tp8": (LLAMA70, DENSE, Strategy(4, 8, 4, op=4), 8192),
    "llama3-70b tp8 without sp": (LLAMA70, DENSE, Strategy(4, 8, 4, op=4, sp=False), 8192),
    "deepseek-v3 dense tp4": (DEEPSEEK, DENSE, Strategy(16, 4, 4, 64, op=16), 4096),
    "deepseek-v3 moe tp4 ep64": (DEEPSEEK, MOE, Strategy(16, 4, 4, 64, op=16), 4096),
    "mixtral tp2 ep4": (REGISTRY.model("mixtral-8x7b"), MOE, Strategy(8, 2, 4, 4, op=4), 4096),
    "qwen3 moe tp4 ep4": (REGISTRY.model("qwen3-30b-a3b"), MOE, Strategy(8, 4, 4, 4, op=4), 4096),
}


@pytest.mark.parametrize("mode", [NONE, SELECT, FULL])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "mindformers"])
@pytest.mark.parametrize("name", list(LAYERS))
def test_a_layer_keeps_what_its_closed_form_says(name: str, framework: str, mode: str) -> None:
    model, kind, strategy, sequence = LAYERS[name]
    rules = {"megatron": MEGATRON, "torchtitan": cases.TORCHTITAN.replace(expert_tensor_parallel=False),
             "mindformers": cases.MINDFORMERS}[framework].replace(seq_length=sequence)  # fmt: skip
    kept = layer_memory(model, kind, mode, strategy, rules).kept
    assert kept == pytest.approx(float(activation_bytes(model, kind, mode, strategy, rules)), rel=0.011)


MODULES = {
    "core_attn": ATTENTION_CORE, "layernorm": NORMS, "mla_up_proj": LATENT_UP, "mlp": DENSE_MLP, "moe": EXPERT_BLOCK,
    "moe_act": EXPERT_ACTIVATION, "shared_experts": SHARED_EXPERTS,
}  # fmt: skip


@pytest.mark.parametrize("name", ["llama3-70b tp8", "deepseek-v3 dense tp4", "deepseek-v3 moe tp4 ep64"])
@pytest.mark.parametrize("modules", [*MODULES, "layernorm mla_up_proj mlp moe_act", "layernorm moe"])
def test_a_layer_keeps_what_the_modules_that_run_again_leave(name: str, modules: str) -> None:
    model, kind, strategy, sequence = LAYERS[name]
    parts = tuple(MODULES[module] for module in modules.split())
    rules = MEGATRON.replace(seq_length=sequence, selective=parts, fused_norms=True)
    kept = layer_memory(model, kind, SELECT, strategy, rules).kept
    assert kept == pytest.approx(float(activation_bytes(model, kind, SELECT, strategy, rules)), rel=0.005)


@pytest.mark.parametrize("name", ["llama3-70b tp8", "deepseek-v3 dense tp4", "deepseek-v3 moe tp4 ep64"])
def test_a_layer_gives_up_the_results_of_its_activation_functions_alone(name: str) -> None:
    model, kind, strategy, sequence = LAYERS[name]
    rules = MEGATRON.replace(seq_length=sequence, selective=ACTIVATION_PARTS)
    kept, selected = (layer_memory(model, kind, mode, strategy, rules).kept for mode in (NONE, SELECT))
    assert selected == pytest.approx(float(activation_bytes(model, kind, SELECT, strategy, rules)), rel=0.005)
    layer = model.layer(kind)
    if layer.mlp is not None:
        width = layer.mlp.width
    else:
        assert layer.moe is not None
        width = layer.moe.shared_width + layer.moe.top_k * layer.moe.expert_hidden
    assert kept - selected == pytest.approx(2 * sequence * width / strategy.tp, rel=0.005)


@pytest.mark.parametrize("sp", [True, False])
@pytest.mark.parametrize("mode", [NONE, SELECT, FULL])
def test_a_gpt_layer_with_dropout_keeps_korthikanti_s_count(mode: str, sp: bool) -> None:
    rules = cases.UNFUSED_GPT.replace(seq_length=2048)
    s, h, a, tp = 2048, GPT3.hidden, GPT3.n_heads, 8
    split = tp if sp else 1
    scores = 5 * a * s / h if mode == NONE else 0
    expected = s * h * (2 / split if mode == FULL else (10 / split + 24 / tp + scores / tp))
    kept = layer_memory(GPT3, DENSE, mode, Strategy(1, tp, 4, sp=sp), rules).kept
    assert kept == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(
    ("model", "kind", "strategy", "sequence", "mib"),
    [
        (LLAMA70, DENSE, Strategy(1, 8, 1), 8192, 286),
        (DEEPSEEK, MOE, Strategy(8, 4, 1, 8), 4096, 478),
    ],
    ids=["llama3-70b", "deepseek-v3"],
)
def test_the_hand_counts_of_fused_layers_are_met(model, kind, strategy, sequence, mib) -> None:  # type: ignore[no-untyped-def]
    kept = layer_memory(model, kind, NONE, strategy, MEGATRON.replace(seq_length=sequence)).kept
    assert kept / 2**20 == pytest.approx(mib, rel=0.005)


JOBS = {
    "llama2-7b": (LLAMA7.replace(n_layers=8), Strategy(4, 2, 4, op=4, micro_batches=16), 4096),
    "llama3-70b": (LLAMA70.replace(n_layers=8), Strategy(4, 8, 4, op=4, micro_batches=16), 8192),
    "deepseek-v3": (DEEPSEEK.replace(n_layers=16, mtp_layers=1), Strategy(16, 4, 4, 64, op=16, micro_batches=16), 4096),
}


@pytest.mark.parametrize("recipe", [DELAYED, NVFP4], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("parts", [None, (LATENT_UP, EXPERT_ACTIVATION, EXPERT_ROWS), (SHARED_EXPERTS, DENSE_MLP)])
@pytest.mark.parametrize("name", ["llama3-70b tp8", "deepseek-v3 dense tp4", "deepseek-v3 moe tp4 ep64"])
def test_a_layer_of_narrow_products_keeps_what_its_closed_form_says(name: str, parts, recipe) -> None:  # type: ignore[no-untyped-def]
    model, kind, strategy, sequence = LAYERS[name]
    rules = MEGATRON.replace(seq_length=sequence, narrow=recipe, fused_norms=True, selective=parts)
    for mode in (NONE, SELECT):
        closed = float(activation_bytes(model, kind, mode, strategy, rules))
        assert layer_memory(model, kind, mode, strategy, rules).kept == pytest.approx(closed, rel=0.005), mode


@pytest.mark.slow
@pytest.mark.parametrize(("model", "strategy", "sequence"), JOBS.values(), ids=JOBS)
def test_a_stage_of_narrow_products_has_room_for_its_backward(model, strategy, sequence) -> None:  # type: ignore[no-untyped-def]
    rules = MEGATRON.replace(seq_length=sequence, narrow=MXFP8)
    run = cases.job(model, strategy, rules, mode=FULL)
    for stage, closed in enumerate(stage_breakdown(model, strategy, rules, run.plan)):
        assert run_stage(run, stage).peak_mib == pytest.approx(closed.total, rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [NONE, SELECT, FULL])
@pytest.mark.parametrize(("model", "strategy", "sequence"), JOBS.values(), ids=JOBS)
def test_a_stage_agrees_with_the_closed_forms_in_every_category(model, strategy, sequence, mode) -> None:  # type: ignore[no-untyped-def]
    rules = MEGATRON.replace(seq_length=sequence)
    run = cases.job(model, strategy, rules, mode=mode)
    closed = stage_breakdown(model, strategy, rules, run.plan)
    for stage in (0, 1, strategy.pp - 1):
        found = run_stage(run, stage)
        expected = closed[stage].categories()
        # Closed forms count a transfer at both ends of every stage, and keep room to rebuild a layer
        # whether or not one is rebuilt.
        slack = {"buffers": expected["buffers"] / 2, "workspace": 0.1 if mode == FULL else expected["workspace"] + 0.1}
        for name, value in expected.items():
            assert found.categories[name] == pytest.approx(value, rel=0.03, abs=slack.get(name, 0.1)), (stage, name)
        assert found.peak_mib <= closed[stage].total * 1.001
        if mode == FULL:
            assert found.peak_mib == pytest.approx(closed[stage].total, rel=0.005)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": OptimizerStates(2, 2, 4, 8, step_bytes=4, host_share=0.25)},
        {"narrow": MXFP8},
        {"narrow": NVFP4, "narrow_weights": True},
        {"parameter_shard": True, "gradient_shard": True, "whole_ends": True},
        {"parameter_shard": True, "gradient_shard": True, "stay_gathered": True},
        {"parameter_shard": True, "gradient_shard": True, "optimizer": OptimizerStates(2, 0, 4, reduced_bytes=4)},
        {"param_bytes": 4, "compute_bytes": 4},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_states_that_a_job_chooses_are_the_closed_form_s(changes) -> None:  # type: ignore[no-untyped-def]
    rules = cases.MEGATRON.replace(expert_tensor_parallel=False, **changes)
    run = cases.job(cases.LATENT, Strategy(4, 1, 2, 2, op=4, micro_batches=3), rules)
    for stage, closed in enumerate(stage_breakdown(cases.LATENT, run.strategy, rules, run.plan)):
        found = run_stage(run, stage).categories
        for name in ("weights", "gradients", "optimizer"):
            # Every tensor starts a block of 512 bytes.
            assert found[name] == pytest.approx(closed.categories()[name], abs=0.03), (stage, name)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "strategy", "sequence"), JOBS.values(), ids=JOBS)
def test_a_weight_s_gradient_made_by_itself_needs_its_room(model, strategy, sequence) -> None:  # type: ignore[no-untyped-def]
    rules = MEGATRON.replace(seq_length=sequence // 2, fused_accumulation=False)
    run = cases.job(model, strategy, rules, mode=FULL)
    fused = stage_breakdown(model, strategy, rules.replace(fused_accumulation=None), run.plan)
    for stage, closed in enumerate(stage_breakdown(model, strategy, rules, run.plan)):
        assert run_stage(run, stage).peak_mib == pytest.approx(closed.total, rel=0.002)
        assert closed.total > fused[stage].total


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), [(LLAMA7, "llama2-7b"), (DEEPSEEK, "deepseek-v3")])
def test_a_stage_of_the_whole_model_stays_below_1_5_gib(model, name) -> None:  # type: ignore[no-untyped-def]
    _, strategy, sequence = JOBS[name]
    run = cases.job(model, strategy, MEGATRON.replace(seq_length=sequence), mode=NONE)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert 100 < pool.submit(run_stage, run, 0).result(timeout=300).max_rss_mib < 1536


def test_imbalance_and_capacity_change_only_the_routed_share() -> None:
    strategy = Strategy(8, 4, 1, 8)
    kept = {
        name: layer_memory(DEEPSEEK, MOE, NONE, strategy, MEGATRON.replace(**changed)).kept
        for name, changed in {
            "even": {}, "imbalance": {"imbalance": 1.5}, "capacity": {"capacity_factor": 1.5},
            "more": {"imbalance": 2.0},
        }.items()
    }  # fmt: skip
    # A slot keeps its input, gate and up, their product and its probability.
    step = 4096 * 8 / 4 * (2 * (7168 + 3 * 2048) + 4)
    assert kept["imbalance"] == kept["capacity"]
    assert kept["imbalance"] - kept["even"] == pytest.approx(step / 2, rel=1e-3)
    assert kept["more"] - kept["even"] == pytest.approx(step, rel=1e-3)


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        (cases.MINDFORMERS, "interleaved"),
        (cases.MEGATRON, "megatron-interleaved"),
        (cases.TORCHTITAN, "torch-interleaved"),
    ],
    ids=["mindformers", "megatron", "torchtitan"],
)
def test_1f1b_with_several_interleaves_runs_in_the_framework_s_own_order(rules: TrainingRules, name: str) -> None:
    strategy = Strategy(1, 1, 2, vpp=2, micro_batches=4)
    run = cases.job(cases.LLAMA, strategy, rules, plan=PipelinePlan({DENSE: ((1, 1), (1, 1))}, {}))
    schedule = build_schedule(ScheduleSpec(name), 2, 2, 4)
    for stage in range(2):
        ran = [
            (each.direction, each.interleave, each.micro_batch)
            for each in run_stage(run, stage, whole_step=True).moments
        ]
        assert ran == [tuple(task[:3]) for task in schedule.order[stage].tolist()]


def test_without_a_plan_the_layers_are_spread_evenly_in_the_file_s_mode() -> None:
    strategy = Strategy(1, 1, 2, micro_batches=2)
    run = cases.job(cases.LLAMA, strategy, cases.MEGATRON)
    for mode in (NONE, SELECT, FULL):
        plan = even_plan(cases.LLAMA.layer_counts(), 2, 1, recompute=mode)
        asked = type(run)(run.config.replace(plan=plan), strategy, None)
        assert settled_plan(asked) == plan
    assert settled_plan(type(run)(run.config, strategy, None)) == even_plan(
        cases.LLAMA.layer_counts(), 2, 1, recompute=FULL
    )


def test_a_prediction_module_away_from_the_head_is_refused() -> None:
    plan = PipelinePlan({DENSE: ((2, 0),), MOE: ((2, 4),), "mtp": ((1, 0),)}, {})
    rules = cases.MEGATRON.replace(expert_tensor_parallel=False)
    with pytest.raises(ValueError, match="belongs to the chunk that ends the model"):
        run_stage(cases.job(cases.LATENT, Strategy(1, 1, 2), rules, plan=plan), 0)


def test_a_plan_of_another_shape_is_refused() -> None:
    run = cases.job(cases.LLAMA, Strategy(1, 1, 4), cases.MEGATRON, plan=PipelinePlan({DENSE: ((4, 4),)}, {}))
    with pytest.raises(ValueError, match="2 stages x 1 virtual stages.*4 x 1"):
        run_stage(run, 0)


def test_nothing_outside_the_package_needs_torch() -> None:
    root = Path(__file__).resolve().parents[2]
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import parallel_tool, pipeline_tool, pipeline_parallel, timeline_tool\n"
        "import taylor.dryrun.stage_memory, taylor.cost_model.memory.breakdown"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_layers_that_run_again_at_once_live_together(group: int) -> None:
    rules = MEGATRON.replace(recompute_group=group)
    model, plan = LLAMA7.replace(n_layers=16), PipelinePlan({DENSE: ((8, 8),)}, {FULL: ((8, 8),)})
    run = cases.job(model, Strategy(1, 1, 2, micro_batches=4), rules, plan=plan)
    for stage, closed in enumerate(stage_breakdown(model, run.strategy, rules, plan)):
        assert run_stage(run, stage).peak_mib == pytest.approx(closed.total, rel=0.002)
