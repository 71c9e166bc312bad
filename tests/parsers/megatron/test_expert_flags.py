"""Flags of a Megatron script by which the time of layers with experts is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from taylor.cost_model.job.strategy import GRAPHED_EXPERTS, GRAPHED_MIXER, GRAPHED_ROUTER
from taylor.cost_model.memory.alive import alive_micro_batches
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT
from taylor.workflows.statement.problem import uniform_choices

BASE = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--vocab-size 1000 --micro-batch-size 1 --global-batch-size 64 --swiglu --bf16 "
    "--num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 256 --expert-model-parallel-size 4"
)
BOTH = (GRAPHED_MIXER, GRAPHED_ROUTER)
WHOLE = (*BOTH, GRAPHED_EXPERTS)
PADDED = "--moe-expert-capacity-factor 1.0 --moe-pad-expert-input-to-capacity"


def read(folder: Path, flags: str = "") -> TrainingConfig:
    path = folder / "pretrain.sh"
    path.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {BASE} {flags}\n")
    return read_config(path)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("", ()),
        ("--cuda-graph-impl none", ()),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router moe_preprocess", BOTH),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn,moe_router", BOTH),
        ("--external-cuda-graph --cuda-graph-scope attn", (GRAPHED_MIXER,)),
        ("--enable-cuda-graph", BOTH),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", WHOLE),
        ("--cuda-graph-impl full_iteration", WHOLE),
        (f"--cuda-graph-impl transformer_engine {PADDED}", WHOLE),
        (f"--cuda-graph-impl transformer_engine --cuda-graph-modules attn {PADDED}", (GRAPHED_MIXER,)),
        (f"--cuda-graph-impl transformer_engine --cuda-graph-modules moe {PADDED}", (GRAPHED_EXPERTS,)),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules moe", ()),
    ],
)
def test_a_graph_holds_experts_only_where_their_rows_are_known(
    tmp_path: Path, flags: str, parts: tuple[str, ...]
) -> None:
    assert read(tmp_path, flags).rules.graphed == parts


def test_padding_without_a_capacity_pads_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, PADDED).rules.static_experts
    assert not read(tmp_path, "--moe-pad-expert-input-to-capacity").rules.static_experts
    assert not read(tmp_path, "--moe-expert-capacity-factor 1.0").rules.static_experts


@pytest.mark.parametrize(
    ("flags", "gathers"),
    [
        ("", True),
        ("--moe-token-dispatcher-type allgather", True),
        ("--moe-token-dispatcher-type alltoall", False),
        ("--moe-token-dispatcher-type flex", False),
        ("--moe-expert-capacity-factor 1.5", False),
    ],
)
def test_without_a_word_tokens_are_gathered_unless_experts_have_a_capacity(
    tmp_path: Path, flags: str, gathers: bool
) -> None:
    assert read(tmp_path, flags).rules.gathers_tokens is gathers


@pytest.mark.parametrize("flag", ["--overlap-moe-expert-parallel-comm", "--moe-fb-overlap"])
def test_exchanges_beside_computation_are_read(tmp_path: Path, flag: str) -> None:
    assert read(tmp_path, flag).rules.overlap_experts
    assert not read(tmp_path).rules.overlap_experts


OVERLAP = "--overlap-moe-expert-parallel-comm --moe-token-dispatcher-type alltoall"
STAGES = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2"


def test_an_overlapped_exchange_warms_up_one_forward_longer_and_bars_full_recompute(tmp_path: Path) -> None:
    (other := tmp_path / "plain").mkdir()
    config, plain = read(tmp_path, f"{STAGES} {OVERLAP}"), read(other, STAGES)
    assert not config.misfits
    assert config.schedule == replace(plain.schedule, one_ahead=True)
    told = [alive_micro_batches(one.schedule, 2, 2, 16)[1] for one in (config, plain)]
    assert max(map(sum, told[0])) == max(map(sum, told[1])) + 1
    assert uniform_choices(config, (FULL, SELECT)) == ((FULL, 0), (SELECT, 8))
    assert (FULL, 8) in uniform_choices(plain, (FULL, SELECT))
    words = [launcher_of(one).module_words(one).recompute for one in (config, plain)]
    assert set(words[1]) - set(words[0]) == {"moe"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (f"--pipeline-model-parallel-size 2 {OVERLAP}", "several stages without virtual stages"),
        (f"{STAGES} {OVERLAP} --recompute-granularity full --recompute-method uniform", "full recompute"),
        (f"{OVERLAP} --recompute-granularity selective --recompute-modules moe", "a block of experts"),
        (f"{OVERLAP} --expert-model-parallel-size 1", "expert parallel 1"),
        ("--overlap-moe-expert-parallel-comm", "--moe-token-dispatcher-type allgather"),
    ],
)
def test_jobs_that_do_not_start_with_an_overlapped_exchange_are_named(tmp_path: Path, flags: str, said: str) -> None:
    (misfit,) = read(tmp_path, flags).misfits
    assert misfit.field == "--overlap-moe-expert-parallel-comm" and said in misfit.problem


def test_shared_experts_beside_the_exchange_and_aligned_rows_are_read(tmp_path: Path) -> None:
    rules = read(tmp_path, "--moe-shared-expert-overlap --moe-router-padding-for-fp8").rules
    assert rules.overlap_shared and rules.aligned_rows


@pytest.mark.parametrize(
    ("flags", "groups"),
    [
        ("", (1, 1)),
        ("--moe-router-num-groups 8 --moe-router-group-topk 4", (8, 4)),
        ("--n-group 4 --topk-group 2", (4, 2)),
        ("--moe-router-num-groups 4", (4, 4)),
        ("--moe-router-num-groups 2 --moe-router-group-topk 8", (2, 2)),
    ],
)
def test_the_groups_that_a_token_s_experts_lie_in_are_read(tmp_path: Path, flags: str, groups: tuple[int, int]) -> None:
    moe = read(tmp_path, flags).model.moe
    assert moe is not None and (moe.n_groups, moe.top_groups) == groups


@pytest.mark.parametrize(
    ("flags", "way"),
    [
        ("", "module an expert"),
        ("--moe-grouped-gemm", "GEMM an expert"),
        ("--moe-grouped-gemm --use-fused-rmsnorm", "one kernel"),
        ("--use-fused-rmsnorm", "module an expert"),
    ],
)
def test_experts_run_as_modules_in_one_module_or_in_mindspeed_s_kernel(tmp_path: Path, flags: str, way: str) -> None:
    assert read(tmp_path, flags).rules.expert_gemms == way


@pytest.mark.parametrize(
    ("flags", "sliced"),
    [("--use-mc2", True), ("--use-mc2 --moe-grouped-gemm", False), ("--use-ascend-mc2", False), ("", False)],
)
def test_experts_of_old_mindspeed_scripts_run_on_slices_without_a_grouped_product(
    tmp_path: Path, flags: str, sliced: bool
) -> None:
    assert read(tmp_path, flags).rules.sliced_experts is sliced
