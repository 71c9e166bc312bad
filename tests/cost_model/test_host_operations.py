"""Operations that the host starts, against torch's own count and published costs of recompute."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.measured_runs import MEASURED
from taylor.cost_model.job.strategy import (
    GEMM_AN_EXPERT,
    GRAPHED_EXPERTS,
    GRAPHED_MIXER,
    GRAPHED_ROUTER,
    MODULE_AN_EXPERT,
    ONE_KERNEL,
    Strategy,
    TrainingRules,
)
from taylor.cost_model.time.host_operations import ROUTER, layer_tensors, stage_tensors
from taylor.cost_model.time.launches import host_time, shown_together, update_ms
from taylor.cost_model.time.step import head_time, layer_time
from taylor.cost_model.time.tail import tail_ms
from taylor.cost_model.time.torch_operations import DENSE
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, SELECT
from taylor.register import frameworks
from taylor.register.adapters import ALL_MEGATRON, Adapters
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms
from tests.cost_model.test_short_steps import _counted, _Started

REGISTRY = Registry.load()
LLAMA, DEEPSEEK = REGISTRY.model("llama2-7b"), REGISTRY.model("deepseek-v3-671b")
NEMOTRON, QWEN_NEXT = REGISTRY.model("nemotron-3-nano-30b-a3b"), REGISTRY.model("qwen3-next-80b-a3b")
H100 = REGISTRY.device("h100-80g")
MEGATRON = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, expert_tensor_parallel=False)
TITAN = TrainingRules(framework=frameworks.TORCHTITAN)
ONE = Strategy(1, 1, 1)
WHOLE = (GRAPHED_MIXER, GRAPHED_ROUTER, GRAPHED_EXPERTS)
MOONLIGHT = MEASURED.parent / "mlperf" / "recompute_moonlight.csv"
MOONLIGHT_JOB = MEASURED.parent / "measured_runs_2026" / "mbridge-moonlight" / "tp2ep8_none.sh"


def test_a_router_starts_what_torch_counts() -> None:
    """The steps of megatron/core/transformer/moe/router.py and moe_utils.py, behind norm and product."""
    logits = torch.randn(32, 16, requires_grad=True)

    def chosen(scores: Tensor) -> tuple[Tensor, Tensor]:
        best, rows = torch.topk(scores, 4, dim=1)
        return best, torch.zeros_like(scores).int().scatter(1, rows, 1).bool()

    def steps(values: Tensor) -> list[Tensor]:
        best, rows = torch.topk(values, 4, dim=1)
        weights = torch.softmax(best, dim=-1, dtype=torch.float32)
        weights = torch.zeros_like(values).scatter(1, rows, weights)
        torch.zeros_like(values).int().scatter(1, rows, 1).bool()
        scores = torch.softmax(values, dim=-1, dtype=torch.float32)
        of_each = chosen(scores)[1].sum(dim=0)
        loss = torch.sum(scores.sum(dim=0) * of_each) * 0.1
        return [weights, loss]

    ahead, _ = _counted(steps, logits)
    # Beside them: norm and product, the loss's record (its division and sum), and its gradient's scale.
    assert ROUTER.forward == pytest.approx(ahead + 2 + 2 + 1, abs=1)


def test_a_layer_has_the_tensors_of_its_modules() -> None:
    """Names of a Megatron checkpoint: qkv, proj, fc1, fc2 and two norms; a matrix for each expert and GEMM."""
    assert layer_tensors(LLAMA, LLAMA.layers_of("dense")[0], ONE, MEGATRON) == (0.0, 6.0)
    moe = DEEPSEEK.layers_of("moe")[0]
    # Two norms, four latent GEMMs and the output's, two latent norms; router, two of the shared expert.
    assert layer_tensors(DEEPSEEK, moe, ONE.replace(ep=64), MEGATRON) == (2 * 256 / 64, 2 + 5 + 2 + 1 + 2)


def test_one_kernel_for_all_experts_starts_no_more_for_many_of_them() -> None:
    def starts(way: str, ep: int) -> tuple[float, float]:
        host = host_time(DEEPSEEK, "moe", ONE.replace(ep=ep), MEGATRON.replace(expert_gemms=way), H100)
        return float(host.experts), float(host.backward)

    assert starts(ONE_KERNEL, 16) == starts(ONE_KERNEL, 64)
    for way in (GEMM_AN_EXPERT, MODULE_AN_EXPERT):
        assert all(many > few for many, few in zip(starts(way, 16), starts(way, 64), strict=True))
    assert starts(ONE_KERNEL, 16) < starts(GEMM_AN_EXPERT, 16) < starts(MODULE_AN_EXPERT, 16)


def test_adapters_of_grouped_experts_start_a_gemm_an_expert_and_scale_together() -> None:
    """Per expert, of the fused gate and up and of down: two GEMMs each; the scaling and the sum once a matrix."""
    experts, rules = 256 / 64, MEGATRON.replace(expert_gemms=GEMM_AN_EXPERT)
    plain, grouped, modules = (
        host_time(DEEPSEEK, "moe", ONE.replace(ep=64), each, H100)
        for each in (
            rules,
            rules.replace(adapters=Adapters(8, ALL_MEGATRON)),
            rules.replace(adapters=Adapters(8, ALL_MEGATRON), expert_gemms=MODULE_AN_EXPERT),
        )
    )
    more = (float(grouped.experts) - float(plain.experts)) * 1e3 / H100.operation_us
    assert more == pytest.approx(2 * (2 * experts + 2))
    assert float(grouped.routed + grouped.experts) < float(modules.routed + modules.experts)


def test_a_distributed_optimizer_updates_its_part_of_the_tensors() -> None:
    split = MEGATRON.replace(parallel_optimizer=True)
    times = [float(update_ms(LLAMA, Strategy(dp, 1, 1, op=dp), split)) for dp in (1, 8, 64)]
    assert times[0] == pytest.approx(8 * times[1]) == pytest.approx(64 * times[2])
    whole = float(update_ms(LLAMA, Strategy(8, 1, 1), MEGATRON.replace(parallel_optimizer=False)))
    assert whole == pytest.approx(times[0])
    assert (
        float(stage_tensors(LLAMA, ONE.replace(pp=4), MEGATRON).other)
        < float(stage_tensors(LLAMA, ONE, MEGATRON).other) / 3
    )


def test_a_step_of_tiny_shards_takes_as_long_as_its_tensors_are_listed() -> None:
    fast = replace(H100, memory_gb_s=1e9, links=H100.links)
    rules = MEGATRON.replace(parallel_optimizer=True)
    tail = float(tail_ms(LLAMA, ONE, rules, fast)) - frameworks.MEGATRON.step_ms
    assert tail == pytest.approx(float(update_ms(LLAMA, ONE, rules)), rel=1e-3)


@pytest.mark.parametrize(("model", "kind"), [(NEMOTRON, "mamba"), (QWEN_NEXT, "gdn+moe")])
def test_every_kind_of_mixer_has_host_time(model: ModelSpec, kind: str) -> None:
    kind = next(name for name in model.kind_counts if kind in name)
    host = host_time(model, kind, ONE, MEGATRON, H100)
    assert host.routed > 0 and host.backward > host.routed
    none = host_time(model, kind, ONE, MEGATRON.replace(graphed=WHOLE), H100)
    assert (none.routed, none.experts, none.backward, none.again_full) == pytest.approx((0, 0, 0, 0))


def test_head_and_embedding_wait_for_the_host_where_a_micro_batch_is_short() -> None:
    slow, none = (replace(H100, operation_us=us) for us in (1e5, 0.0))
    late, early = (head_time(LLAMA, ONE, MEGATRON, card) for card in (slow, none))
    assert late[0] > 100 * early[0] and late[1] > 100 * early[1]
    fused = MEGATRON.replace(loss_kernel=frameworks.ENGINE_LOSS)
    assert head_time(LLAMA, ONE, fused, slow)[0] < head_time(LLAMA, ONE, MEGATRON, slow)[0]


def test_a_compiled_layer_of_torch_starts_fewer_operations_and_no_dtensors() -> None:
    def forward(rules: TrainingRules, tp: int = 1) -> float:
        return float(host_time(LLAMA, "dense", Strategy(1, tp, 1), rules, H100).routed)

    compiled = TITAN.replace(compiled=True)
    assert forward(compiled) < forward(TITAN)
    assert forward(TITAN, 2) > 5 * forward(TITAN), "every product and norm is dispatched by Python"
    assert forward(compiled, 2) < forward(TITAN, 2) / 3
    sharded = forward(TITAN.replace(parameter_shard=True))
    assert sharded - forward(TITAN) == pytest.approx(1.0), "1 ms, pytorch issue 173680"


def test_an_eager_block_of_torch_starts_what_torch_counts() -> None:
    """The steps of torchtitan v0.2.2 models/llama3/model/model.py ``FeedForward`` with norm and residual."""
    x = torch.randn(4, 8, requires_grad=True)
    one, two, three = (torch.randn(8, 8, requires_grad=True) for _ in range(3))

    def steps(hidden: Tensor, one: Tensor, two: Tensor, three: Tensor) -> list[Tensor]:
        gated = torch.nn.functional.silu(hidden @ one) * (hidden @ three)
        return [hidden + gated @ two]

    with _Started() as ahead:
        steps(x, one, two, three)
    # The norm beside them is one kernel on a device, and several steps on a CPU.
    assert DENSE.forward == ahead.number + 1


def test_what_runs_again_and_its_backward_take_the_larger_of_both_times() -> None:
    # The device is busy: ms more of the host do not show. The host is late: all of them do.
    assert shown_together(10.0, 4.0, 1.0, 3.0) == pytest.approx(1.0)
    assert shown_together(4.0, 10.0, 1.0, 3.0) == pytest.approx(3.0)
    assert shown_together(4.0, 5.0, 4.0, 1.0) == pytest.approx(3.0)
    assert np.allclose(shown_together(np.array([10.0, 4.0]), np.array([4.0, 10.0]), 1.0, 3.0), [1.0, 3.0])


def test_long_layers_pay_no_more_for_a_checkpoint_than_the_device_does() -> None:
    long = MEGATRON.replace(seq_length=65536)
    with_host, without = (
        layer_time(LLAMA, "dense", ONE, long, replace(H100, operation_us=us)).recompute for us in (H100.operation_us, 0)
    )
    assert all(float(with_host[mode]) == pytest.approx(float(without[mode])) for mode in (FULL, SELECT))


@pytest.mark.skipif(not MOONLIGHT.is_file(), reason="the measured costs lie outside the repository")
def test_recompute_by_module_costs_what_nvidia_measured_where_the_host_bounds_the_step(tmp_path: Path) -> None:
    """Megatron-Bridge PR5570, Moonlight on eight H100; one row recomputes the MLP of one layer of 27 too: noise.

    Three of the four costs are a third too low and more: the step itself is predicted 40 % too short.
    """
    with MOONLIGHT.open(encoding="utf-8", newline="") as stream:
        measured = {row["modules"]: float(row["measured_ms"]) for row in csv.DictReader(stream)}
    job = MOONLIGHT_JOB.read_text(encoding="utf-8").rstrip()

    def predicted(modules: str) -> float:
        file = tmp_path / "job.sh"
        more = f" \\\n --recompute-granularity selective --recompute-modules {modules}" if modules else ""
        file.write_text(f"{job}{more}\n", encoding="utf-8")
        return planned_step_ms(read_config(file), H100)

    none = predicted("")
    for modules in ("core_attn", "mla_up_proj", "moe_act", "layernorm moe_act"):
        ratio = (predicted(modules) - none) / (measured[modules] - measured[""])
        assert 1 / 1.7 < ratio < 1.5, modules
