"""MindSpeed's recompute in the bubble: PP x VPP chunks of a stage keep all, further ones their inputs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.cost_model.memory.activations import activation_bytes
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.pipeline_solver.check.checker import exact_peak_memory
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.statement.options import FileJob, Outputs

WORDS = (
    "--use-mcore-models --use-flash-attn --use-fused-rmsnorm --use-fused-swiglu --num-layers 16 --hidden-size 4096 "
    "--ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --padded-vocab-size 32000 "
    "--untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer --num-layers-per-virtual-pipeline-stage 2"
)


def script(folder: Path, more: str) -> Path:
    path = folder / f"job{more.replace(' ', '')}.sh"
    path.write_text(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {WORDS} {more}\n")
    return path


def test_chunks_beyond_pp_times_vpp_keep_their_inputs_alone(tmp_path: Path) -> None:
    plain, bubble = (
        evaluate_file(FileJob(script(tmp_path, more), dryrun=False, check=False), Outputs(folder=tmp_path / "out"))
        for more in ("", "--recompute-in-bubble")
    )
    config = plain.config
    none, full = (
        activation_bytes(config.model, "dense", mode, config.strategy, config.rules) / 2**20
        for mode in ("none", "full")
    )
    # num_warmup_microbatches + 1 - vpp * pp, of two layers each: 2 (4 - 1 - s) + 4 + 1 - 8.
    for stage, beyond in enumerate((3, 1, 0, 0)):
        saved = plain.solution.peak_memory_mib[stage] - bubble.solution.peak_memory_mib[stage]
        assert saved == pytest.approx(2 * beyond * (none - full), abs=1e-3)
    exact = exact_peak_memory(bubble.problem, bubble.plan)
    assert peak_memory_mib(bubble.problem, bubble.plan) == pytest.approx([float(one) for one in exact])


def test_two_rounds_of_micro_batches_are_needed(tmp_path: Path) -> None:
    assert read_config(script(tmp_path, "--recompute-in-bubble")).recomputes_in_bubble
    assert not read_config(script(tmp_path, "--recompute-in-bubble --global-batch-size 8")).recomputes_in_bubble


def test_a_plan_is_written_with_the_recompute_that_it_was_solved_with(tmp_path: Path) -> None:
    config = read_config(script(tmp_path, "--recompute-in-bubble"))
    assert config.plan is not None
    written = launcher_of(config).with_plan(config, config.plan, None)
    assert "--recompute-in-bubble" not in written
