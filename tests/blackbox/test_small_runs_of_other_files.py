"""Small runs of files that are no scripts: MindFormers' YAML is cut down, others say why they cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source
from benchmarks.standin_build import hidden_cluster
from benchmarks.standin_files import write_run
from taylor.base.errors import InputError
from taylor.blackbox.small_runs import plan_small_runs
from taylor.command_lines import tune as command
from taylor.parsers.registry import launchers_for
from taylor.parsers.small_run import Machines, ProfiledRun, ProfiledSteps
from taylor.parsers.text.yaml_source import YamlSource
from taylor.pipeline.plan import FULL
from taylor.workflows.tuning.tune import launcher_for
from tests.conftest import SHARED
from tests.parsers.primus.files import EXPERIMENT, checkout
from tests.parsers.primus.second_reader import megatron_facts, options_of

FILES = SHARED / "data" / "mindformers_yaml"
CARDS = Machines(2, 8)
real = pytest.mark.skipif(not FILES.is_dir(), reason="real files are not here")
SOME = ("qwen3_30b_a3b", "mtp_offset__pretrain_deepseek3_671b", "llama2_70b_bf16_32p")


def real_file(part: str) -> Path:
    return next(file for file in sorted(FILES.iterdir()) if part in file.name)


@real
@pytest.mark.parametrize("part", SOME)
def test_mindformers_files_are_cut_down_and_read_again_as_what_was_asked_for(tmp_path, part):
    file = real_file(part)
    launcher = launcher_for(file)
    sizes = launcher.job_sizes(file)
    written = tmp_path / "small.yaml"
    for run in plan_small_runs(sizes, CARDS).runs:
        asked = run.setting
        written.write_text(
            launcher.small_run(file, ProfiledRun(asked, CARDS, ProfiledSteps(tmp_path / "profile", run.steps)))
        )
        read = launcher.read(written)
        model, strategy = read.model, read.strategy
        found = (
            strategy.tp,
            strategy.cp,
            strategy.ep,
            strategy.mbs,
            read.rules.seq_length,
            model.n_layers,
            strategy.pp,
        )
        assert found == (asked.tp, asked.cp, asked.ep, asked.mbs, asked.seq, asked.layers, asked.pp)
        assert strategy.dp == asked.dp and strategy.op == asked.dp * asked.cp and strategy.vpp == 1
        assert (1 if model.moe is None else model.moe.n_experts) == asked.experts
        assert (0 if model.moe is None else model.n_dense) == asked.dense
        assert model.mtp_layers or read.plan.recomputed(FULL) == read.plan.total_layers()
        data = YamlSource.read(written).data
        assert (data["profile"], data["profile_start_step"], data["profile_stop_step"]) == (True, 8, 9)
        assert data["profile_rank_ids"] == [stage * 16 // asked.pp for stage in range(asked.pp)]
        counted = data["train_dataset"]["data_loader"].get("sizes")
        assert counted is None or counted[0] == 10 * asked.dp * asked.mbs * asked.pp
    assert file.read_bytes() != written.read_bytes()


@real
@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@pytest.mark.parametrize("release", ["r1.6.0", "r1.7.0", "r1.8.0"])
def test_mindformers_own_monitor_takes_as_many_steps_as_were_asked_for_and_saves_them(tmp_path, release):
    profiler = pytest.importorskip("torch.profiler")
    try:
        text = source("mindformers", f"refs/heads/{release}", "mindformers/core/callback/callback.py")
    except NotHere as here:
        pytest.skip(str(here))
    begin = text.index("class ProfileMonitor")
    # torch's schedule counts as MindSpore's does: from 0, at the profiler's start.
    monitor = loaded(
        "profile_monitor", text[begin : text.index("\n@MindFormerRegister", begin)],
        Callback=object, logger=MagicMock(), schedule=profiler.schedule, ms=MagicMock(),
    ).ProfileMonitor  # fmt: skip
    file = real_file(SOME[0])
    setting = plan_small_runs(launcher_for(file).job_sizes(file), CARDS).runs[0].setting
    profile = ProfiledSteps(tmp_path, 3)
    written = tmp_path / "small.yaml"
    written.write_text(launcher_for(file).small_run(file, ProfiledRun(setting, CARDS, profile)))
    data = YamlSource.read(written).data
    first, last = monitor._check_step(data["profile_start_step"], data["profile_stop_step"])
    acts = monitor._get_schedule(monitor._check_start_profile(data["init_start_profile"], first), first, last)
    told = SimpleNamespace(mstx_enabled=False, is_profiler_start=False, profiler=MagicMock(), stop_step=last,
                           output_path="")  # fmt: skip
    run = SimpleNamespace(original_args=lambda: SimpleNamespace(cur_step_num=step))
    taken, saved = [], False
    for step in range(1, profile.iterations + 1):
        monitor.on_train_step_begin(told, run)
        before = acts(told.profiler.step.call_count)
        monitor.on_train_step_end(told, run)
        taken += [step] * (before != profiler.ProfilerAction.NONE)
        saved = saved or before == profiler.ProfilerAction.RECORD_AND_SAVE
    assert len(taken) == profile.count and saved


@real
def test_too_few_profiles_that_a_scheduler_left_of_mindformers_give_operators_and_no_plan(
    tmp_path, monkeypatch, capsys
):
    shutil.copy(real_file("qwen3_32b_4k"), tmp_path / "train.yaml")
    monkeypatch.chdir(tmp_path)
    words = ["--shell_path", "train.yaml", "--nnodes", "2", "--nproc-per-node", "8", "--search", "tp"]
    with pytest.raises(InputError, match="run_mindformer.py"):
        command.run(words)
    words += ["--dry", "--memory_gib", "64"]
    command.run(words)
    cluster = hidden_cluster(3)
    planned = plan_small_runs(
        launchers_for(tmp_path / "train.yaml")[0].job_sizes(tmp_path / "train.yaml"), CARDS, {"tp"}
    )
    for run in planned.runs[:3]:
        # Where MindFormers' ranks write: mindformers/core/callback/callback.py:1717-1721.
        write_run(cluster, run.setting, tmp_path / "tune" / run.name / "profile" / "profile" / "rank_0", (9, 10))
    capsys.readouterr()
    command.run(words)
    printed = capsys.readouterr().out
    assert "with exact laws" in printed and "undecided: a run with" in printed
    assert "no plan searched: small runs: do not show which operators are a layer's" in printed


def asked(launcher, file, folder):
    """Each small run with the path that it is written to."""
    sizes = launcher.job_sizes(file)
    for run in plan_small_runs(sizes, CARDS).runs:
        written = file.with_name(f"{run.name}.yaml")
        profile = ProfiledSteps(folder / run.name / "profile", run.steps)
        written.write_text(launcher.small_run(file, ProfiledRun(run.setting, CARDS, profile)))
        yield run.setting, written


EXPERTS = EXPERIMENT.replace("model: small.yaml", "model: experts.yaml")


@pytest.mark.parametrize("text", [EXPERIMENT, EXPERTS], ids=["dense", "experts"])
def test_primus_experiments_are_cut_down_as_a_second_reader_understands_them(tmp_path, text):
    file = checkout(tmp_path / "primus", text)
    before = file.read_text()
    for setting, written in asked(launcher_for(file), file, tmp_path):
        backend, options = options_of(written, tmp_path / "primus")
        facts = megatron_facts(options, CARDS.ranks)
        names = ("tp", "pp", "cp", "ep", "dp", "mbs", "sequence", "layers")
        wanted = (setting.tp, setting.pp, setting.cp, setting.ep, setting.dp, setting.mbs, setting.seq, setting.layers)
        assert backend == "megatron" and tuple(facts[name] for name in names) == wanted
        assert facts["global batch"] == setting.dp * setting.pp * setting.mbs
        assert (options.get("num_experts") or 1) == setting.experts
        recomputed = [options[f"recompute_{name}"] for name in ("granularity", "method", "num_layers")]
        assert recomputed == ["full", "block", setting.layers // setting.pp]
        assert options["profile"] and options["use_pytorch_profiler"] and options["torch_profiler_record_shapes"]
        assert options["profile_step_end"] == options["train_iters"] == 10 and options["ddp_bucket_size"] == 1
        assert str(tmp_path) in YamlSource.read(written).data["workspace"]
    assert file.read_text() == before


def test_primus_experiments_are_written_for_the_users_own_scheduler(tmp_path, monkeypatch, capsys):
    file = checkout(tmp_path / "primus")
    monkeypatch.chdir(file.parent)
    words = ["--shell_path", file.name, "--nnodes", "2", "--nproc-per-node", "8", "--search", "tp"]
    with pytest.raises(InputError, match="started by another program.*--dry"):
        command.run(words)
    command.run([*words, "--dry"])
    assert "6 on 2 x 8 cards" in capsys.readouterr().out
    assert (file.parent / "tune" / "base" / file.name).is_file()
