"""Small and full-size jobs for the tests of the stage dry-run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.dryrun.interface import DryRun
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import NONE, PipelinePlan, even_plan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.model import MlaSpec, ModelSpec, MoeSpec

MEGATRON = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, seq_length=256)
TORCHTITAN = TrainingRules(
    framework=frameworks.TORCHTITAN, parameter_shard=True, gradient_shard=True, param_bytes=4, seq_length=256
)
MINDFORMERS = TrainingRules(seq_length=256)
UNFUSED_GPT = MEGATRON.replace(flash_attention=False, dropout=True, parallel_optimizer=False)

LLAMA = ModelSpec("llama", 8, 256, 8, 4, 32, 640, 2048)
GPT = ModelSpec(
    "gpt", 8, 256, 8, 8, 32, 1024, 2048, gated_mlp=False, tied_embedding=True, learned_positions=256,
    norm_bias=True, attention_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
MOE = LLAMA.replace(name="moe", moe=MoeSpec(8, 2, 128, n_shared=1, first_dense=2))
LATENT = MOE.replace(
    name="latent",
    n_kv_heads=8,
    head_dim=48,
    mla=MlaSpec(kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, q_lora_rank=96),
    moe=MoeSpec(8, 2, 128, n_shared=1, first_dense=2, correction_bias=True),
    mtp_layers=1,
)


def job(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    spec: ScheduleSpec | None = None,
    mode: str = NONE,
    plan: PipelinePlan | None = None,
) -> DryRun:
    """A run with a plan; without one, an even split in one recompute mode."""
    chosen = even_plan(model.layer_counts(), strategy.pp, strategy.vpp, recompute=mode) if plan is None else plan
    config = TrainingConfig(Path("job"), rules.framework.name, model, strategy, rules, spec or ScheduleSpec(), None)
    return DryRun(config, strategy, chosen)


def single(model: ModelSpec) -> ModelSpec:
    """Two layers of a model, one dense in front where it has experts."""
    moe = model.moe
    return model.replace(n_layers=2, moe=None if moe is None else replace(moe, first_dense=1))
