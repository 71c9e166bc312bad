"""`taylor tune` on a Megatron-LM script whose runs leave PyTorch traces, beside the same runs in Ascend's tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.standin_build import hidden_cluster
from benchmarks.standin_files import log_lines, write_run
from benchmarks.standin_script import script_text
from taylor.blackbox.small_runs import plan_small_runs
from taylor.command_lines import tune as command
from taylor.parsers.profiles.folder import rank_sources
from taylor.parsers.registry import launchers_for
from taylor.parsers.small_run import Machines
from taylor.workflows.tuning.tune import launcher_for
from tests.kineto_cases import write_trace
from tests.parsers.primus.files import checkout
from tests.parsers.primus.second_reader import megatron_facts, options_of

CLUSTER = hidden_cluster(3)
WORDS = ["--nnodes", "2", "--nproc-per-node", "8", "--search", "tp,pp", "--dry", "--memory_gib", "8"]


def megatron_script(folder: Path) -> Path:
    """The user's script without a flag of MindSpeed."""
    file = folder / "pretrain.sh"
    file.write_text(script_text(CLUSTER, "torchrun").replace("--use-fused-rmsnorm", ""))
    return file


def write_runs(folder: Path, traces: bool, memory: bool = True) -> None:
    """What the runs leave: Megatron-LM's traces, or the same as tables of Ascend."""
    script = megatron_script(folder)
    sizes = launchers_for(script)[0].job_sizes(script)
    for run in plan_small_runs(sizes, Machines(2, 8), {"tp", "pp"}).runs:
        place = folder / "tune" / run.name
        tables = folder / "tables" / run.name if traces else place / "profile"
        took = write_run(CLUSTER, run.setting, tables, range(8, 8 + run.steps))
        for rank, source in enumerate(rank_sources(tables) if traces else ()):
            # Where Megatron-LM writes: d98e8a64 megatron/training/training.py:4491-4494.
            write_trace(source, place / "torch_profile" / f"rank-{8 * rank}.json.gz", memory)
        place.mkdir(parents=True, exist_ok=True)
        (place / "run.log").write_text(log_lines(CLUSTER, run.setting, 8 + run.steps, took))


@pytest.mark.slow
def test_traces_with_memory_lead_to_the_plans_that_tables_of_the_same_runs_lead_to(tmp_path, monkeypatch, capsys):
    found = []
    for name, traces in (("tables", False), ("traces", True)):
        folder = tmp_path / name
        folder.mkdir()
        write_runs(folder, traces)
        monkeypatch.chdir(folder)
        command.run(["--shell_path", "pretrain.sh", *WORDS])
        assert "with exact laws" in capsys.readouterr().out
        found.append(json.loads((folder / "tune" / "best.json").read_text())["best"])
    ours, theirs = found
    assert [one["strategy"] for one in ours] == [one["strategy"] for one in theirs] and len(ours) == 3
    for one, other in zip(ours, theirs, strict=True):
        assert one["layers"] == other["layers"] and one["peak_memory"] == other["peak_memory"]
        # A trace has the outputs of GEMMs and of attention alone: lines over bytes of other operators differ a little.
        assert one["step_ms"] == pytest.approx(other["step_ms"], rel=0.005)


def test_traces_by_megatrons_flags_give_laws_and_say_which_setting_plans_lack(tmp_path, monkeypatch, capsys):
    write_runs(tmp_path, traces=True, memory=False)
    monkeypatch.chdir(tmp_path)
    command.run(["--shell_path", "pretrain.sh", *WORDS, "--base", "base.sqlite", "--device", "h100-80g"])
    printed = capsys.readouterr().out
    assert "with exact laws" in printed and "the base has" in printed
    assert "no plan searched:" in printed and "profile_memory=True" in printed


PRIMUS = """\
work_group: amd
user_name: me
exp_name: mine
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: small.yaml
    overrides:
      micro_batch_size: {job.mbs}
      global_batch_size: {batch}
      seq_length: {job.seq}
      num_layers: {job.layers}
      hidden_size: {width}
      num_attention_heads: {heads}
      num_query_groups: {groups}
      tensor_model_parallel_size: {job.tp}
      pipeline_model_parallel_size: {job.pp}
      overlap_grad_reduce: {reduction}
"""


@pytest.mark.slow
def test_traces_of_a_primus_experiment_lead_to_the_plans_of_a_script_of_the_same_job(tmp_path, monkeypatch, capsys):
    job = CLUSTER.job
    (tmp_path / "script").mkdir()
    write_runs(tmp_path / "script", traces=True)
    monkeypatch.chdir(tmp_path / "script")
    command.run(["--shell_path", "pretrain.sh", *WORDS])
    theirs = json.loads(Path("tune/best.json").read_text())["best"]
    facts = {name: CLUSTER.facts[name] for name in ("width", "heads", "groups")}
    text = PRIMUS.format(job=job, batch=CLUSTER.batch, reduction=str(CLUSTER.hidden_reduction).lower(), **facts)
    file = checkout(tmp_path / "primus", text)
    monkeypatch.chdir(file.parent)
    words = ["--yaml_path", file.name, *WORDS, "--world_size", str(job.ranks)]
    command.run(words)
    for run in plan_small_runs(launcher_for(file).job_sizes(file), Machines(2, 8), {"tp", "pp"}).runs:
        # Below the file's workspace (fd1eeabb primus/backends/megatron/patches/args/tensorboard_path_patches.py:33-46).
        place = file.parent / "tune" / run.name
        shutil.copytree(
            tmp_path / "script" / "tune" / run.name / "torch_profile", place / "profile/amd/me/mine/tensorboard"
        )
        shutil.copy(tmp_path / "script" / "tune" / run.name / "run.log", place / "run.log")
    capsys.readouterr()
    command.run(words)
    assert "no plan searched" not in capsys.readouterr().out
    ours = json.loads(Path("tune/best.json").read_text())["best"]
    same = ("strategy", "layers", "recompute", "peak_memory", "step_ms")
    assert [[one[name] for name in same] for one in ours] == [[one[name] for name in same] for one in theirs]
    for place, one in enumerate(ours, 1):
        _, options = options_of(file.parent / "tune" / "best" / f"{file.stem}_{place}.yaml", tmp_path / "primus")
        facts = megatron_facts(options, job.ranks)
        wanted = {name: one["strategy"][name] for name in ("dp", "tp", "pp", "cp", "mbs")}
        assert {name: facts[name] for name in wanted} == wanted and facts["global batch"] == CLUSTER.batch
