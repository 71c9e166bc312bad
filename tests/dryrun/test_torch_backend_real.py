"""The road with the real stage model on a small job: a tight plan that the dry-run confirms, in seconds."""

from __future__ import annotations

import json

import pytest

from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.dryrun.interface import DryRun
from taylor.dryrun.torch_backend import TorchBackend, settle
from taylor.parsers.read import read_config
from tests.conftest import ROOT

pytest.importorskip("torch")

SCRIPT = """\
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 8 --hidden-size 2048 --ffn-hidden-size 5632 \\
    --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --normalization RMSNorm --swiglu \\
    --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 32000 \\
    --use-flash-attn --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \\
    --use-distributed-optimizer --micro-batch-size 4 --global-batch-size 32 --bf16 --attention-dropout 0.0 \\
    --hidden-dropout 0.0
"""
LIMIT_MIB = 7200
"""Less than the first stage needs without recompute, more than it needs with it."""


@pytest.fixture
def job(tmp_path):
    """A small training script, and a register whose GPU is too small for it without recompute."""
    (tmp_path / "devices").mkdir()
    card = (ROOT / "register" / "devices" / "h100-80g.yaml").read_text()
    card = card.replace("name: h100-80g", "name: small-card").replace("81039", str(LIMIT_MIB))
    (tmp_path / "devices" / "small-card.yaml").write_text(card)
    (tmp_path / "job.sh").write_text(SCRIPT)
    return tmp_path / "job.sh"


def small_card_command(job):
    """The command line that plans the job on that GPU with dry-runs by torch."""
    command = ("pipeline_parallel.py", "-shell", job, "--dryrun_backend", "torch")
    return (*command, "--register_path", job.parent, "--device", "small-card", "--risk", "0")


@pytest.mark.slow
def test_a_child_process_gives_what_the_stage_model_gives_here(job, tmp_path):
    from taylor.dryrun.torch_stage.run import run_stage

    config = read_config(job)
    run = settle(DryRun(config, config.strategy, config.plan))
    with TorchBackend(tmp_path / "runs") as backend:
        result = backend.measure([run])[0]
    for peak in result.stages:
        here = run_stage(run, peak.stage)
        assert peak.memory.categories == here.categories and peak.memory.moments == here.moments
        assert peak.peak_mib == here.peak_mib == pytest.approx(sum(here.categories.values()), rel=1e-9)


@pytest.mark.slow
def test_the_check_finds_a_plan_within_a_tight_limit_that_the_stage_model_confirms(job, tmp_path, run_tool):
    done = run_tool(
        *small_card_command(job),
        "--result_json",
        "result.json",
        "--html",
        "page.html",
        "--trace",
        "trace.json",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["memory_source"] == "dry-run"
    assert any(any(row) for row in result["recompute"]["full"])
    peaks = [entry["peak_mib"] for entry in result["dryrun"]]
    assert len(peaks) == 2 and 0.85 * LIMIT_MIB < max(peaks) <= LIMIT_MIB
    config = read_config(job)
    assert config.plan is not None
    # What was written is what was checked: its own stages, run again, are all known.
    with TorchBackend(tmp_path / "pipeline_output" / "dryrun" / "torch") as backend:
        again = backend.measure([DryRun(config, config.strategy, config.plan)])[0]
    assert [peak.peak_mib for peak in again.stages] == peaks and all(peak.cached for peak in again.stages)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    counters = [event for event in events if event["name"] == "memory by dry-run MiB"]
    shown = [max(event["args"]["used"] for event in counters if event["pid"] == stage + 1) for stage in range(2)]
    assert shown == pytest.approx(peaks, rel=1e-9)
    assert "dry-run" in done.stdout and "forms" in done.stdout


@pytest.mark.slow
def test_the_files_own_plan_that_is_too_large_is_told_with_the_stages_that_are(job, tmp_path, run_tool):
    done = run_tool(
        *small_card_command(job),
        "-evaluate",
        "y",
        "-dryrun",
        "n",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    config = read_config(job)
    closed = stage_breakdown(config.model, config.strategy, config.rules, config.plan)
    assert closed[0].total > LIMIT_MIB > closed[1].total
    assert "check: over the limit: stage 0 needs" in done.stderr and "stage 1 needs" not in done.stderr
