"""Stages of models whose layers differ: peaks and categories beside the closed forms, and what a step leaves."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from taylor.cost_model.job.strategy import Strategy  # noqa: E402
from taylor.cost_model.memory.breakdown import stage_breakdown  # noqa: E402
from taylor.dryrun.torch_stage.run import run_stage  # noqa: E402
from taylor.pipeline.plan import FULL, NONE, SELECT  # noqa: E402
from taylor.pipeline.schedule import ScheduleSpec  # noqa: E402
from taylor.register.layers import (  # noqa: E402
    GATED_DELTA,
    KIMI_DELTA,
    SLIDING,
    AttentionSpec,
    LayerSpec,
    LinearAttentionSpec,
    MambaSpec,
    MlaSpec,
    MlpSpec,
    MoeSpec,
)
from taylor.register.model import ModelSpec  # noqa: E402
from tests import torch_stage_cases as cases  # noqa: E402

HIDDEN, SIZE = 1024, 64
RULES = cases.MEGATRON.replace(seq_length=4096, expert_tensor_parallel=False)
STRATEGY = Strategy(8, 4, 2, 8, op=8, micro_batches=8)

ATTENTION = AttentionSpec(16, 8, SIZE)
NEAR = AttentionSpec(16, 8, SIZE, reach=SLIDING, window=512, qk_norm=True)
GATED = AttentionSpec(16, 4, SIZE, gate=1024, qk_norm=True)
LATENT = AttentionSpec(16, 16, 96, latent=MlaSpec(256, 32, 64, 64))
MLP, EXPERTS = MlpSpec(4096), MoeSpec(16, 4, 512, n_shared=1)


def stack(pattern: str, *kinds: LayerSpec, n_layers: int = 8, **fields) -> ModelSpec:  # type: ignore[no-untyped-def]
    return ModelSpec(
        "stack", n_layers, HIDDEN, 16, 8, SIZE, 4096, 32768, kinds=kinds, pattern=pattern, **fields
    )  # fmt: skip


STACKS = {
    "mamba, experts and attention": stack(
        "2 x (2 mamba, 1 moe, 1 attn)",
        LayerSpec("mamba", mamba=MambaSpec(2048, 32, 128, n_groups=8)),
        LayerSpec("moe", moe=EXPERTS),
        LayerSpec("attn", ATTENTION),
    ),
    "three gated delta nets to one attention": stack(
        "2 x (3 gdn+moe, 1 attn+moe)",
        LayerSpec("gdn+moe", linear=LinearAttentionSpec(GATED_DELTA, 16, 32, SIZE, SIZE), moe=EXPERTS),
        LayerSpec("attn+moe", GATED, moe=EXPERTS),
    ),
    "three kimi delta attentions to one latent": stack(
        "2 x (3 kda+moe, 1 mla+moe)",
        LayerSpec("kda+moe", linear=LinearAttentionSpec(KIMI_DELTA, 16, 16, SIZE, SIZE), moe=EXPERTS),
        LayerSpec("mla+moe", LATENT, moe=EXPERTS),
    ),
    "five sliding to one full": stack(
        "2 x (5 near, 1 far)",
        LayerSpec("near", NEAR, mlp=MLP, norms=4),
        LayerSpec("far", AttentionSpec(16, 8, SIZE, qk_norm=True), mlp=MLP, norms=4),
        n_layers=12,
    ),
    "dense and experts in turn": stack(
        "4 x (1 dense, 1 moe)", LayerSpec("dense", ATTENTION, mlp=MLP), LayerSpec("moe", ATTENTION, moe=EXPERTS)
    ),
    "a prediction module of two layers": stack(
        "4 x (1 mamba, 1 attn)",
        LayerSpec("mamba", mamba=MambaSpec(2048, 32, 128, n_groups=8)),
        LayerSpec("attn", ATTENTION, moe=EXPERTS),
        mtp_layers=1,
        mtp_kinds=("attn", "mamba"),
        extra_parameters=1_000_000,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", [NONE, FULL])
@pytest.mark.parametrize("model", STACKS.values(), ids=STACKS)
def test_a_stage_of_a_stack_needs_what_its_closed_form_says(model: ModelSpec, mode: str) -> None:
    run = cases.job(model, STRATEGY, RULES, mode=mode)
    for stage, closed in enumerate(stage_breakdown(model, STRATEGY, RULES, run.plan)):
        found, expected = run_stage(run, stage), closed.categories()
        assert list(found.categories) == list(expected)
        for name in ("weights", "gradients", "optimizer"):
            assert found.categories[name] == pytest.approx(expected[name], abs=0.1), (stage, name)
        taken, told = (each - expected["overhead"] for each in (found.peak_mib, closed.total))
        assert taken <= told * 1.005
        # Transfers count at both ends of a stage, and room to rebuild a layer whether or not one is rebuilt; the worst
        # layer may stand before others, whose inputs are gone by then.
        assert taken >= (told - expected["buffers"] / 2) * 0.98 - (expected["workspace"] if mode == NONE else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "spec", "mode"),
    [
        (RULES, ScheduleSpec(), NONE),
        (RULES, ScheduleSpec("zbv"), NONE),
        (cases.TORCHTITAN.replace(seq_length=1024), ScheduleSpec(), SELECT),
    ],
    ids=["1f1b", "zero bubble", "sharded"],
)
def test_the_step_of_a_stack_leaves_states_and_buffers_alone(rules, spec: ScheduleSpec, mode: str) -> None:  # type: ignore[no-untyped-def]
    vpp = 2 if spec.name == "zbv" else 1
    strategy = Strategy(2, 2, 2, 2, op=2, vpp=vpp, micro_batches=4)
    run = cases.job(STACKS["three gated delta nets to one attention"], strategy, rules, spec, mode)
    found = run_stage(run, 1, whole_step=True)
    states = sum(found.categories[name] for name in ("weights", "gradients", "optimizer", "overhead"))
    buffers = found.categories["buffers"]
    assert states - 1e-9 <= found.moments[-1].live_mib <= states + buffers + 4 * 1024 * HIDDEN * 2 / 2**20
