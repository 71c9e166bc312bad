"""`taylor tune` as a user types it, on a training command whose network nobody told it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.standin_build import hidden_cluster
from benchmarks.standin_script import script_text
from taylor.base.errors import InputError
from taylor.blackbox.blocks import RunOperators, lawful_operators
from taylor.blackbox.small_runs import MOST_RUNS, plan_small_runs
from taylor.command_lines import tune as command
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.registry import launchers_for
from taylor.parsers.small_run import Machines, PlannedJob, ProfiledRun, ProfiledSteps
from taylor.pipeline.plan import PipelinePlan
from taylor.workflows.tuning.tune import Written, _law_summary, launcher_for
from tests.conftest import ROOT, SHARED

STANDIN = Path(__file__).with_name("standin_training.py")
CLUSTER = hidden_cluster(3)


def script(folder: Path, failing: str = "none", hanging: str = "none") -> Path:
    file = folder / "pretrain.sh"
    command = f"{sys.executable} {STANDIN} {CLUSTER.seed} {failing} {hanging} --"
    file.write_text(script_text(CLUSTER, command))
    return file


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taylor", "tune", "--shell_path", "pretrain.sh", "--work_dir", "small", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


@pytest.fixture
def tune_here(tmp_path, monkeypatch, capsys):
    """The same in this process, which spares the starts: returns what it prints and what it logs."""

    def run(*words: str) -> tuple[str, str]:
        monkeypatch.chdir(tmp_path)
        command.run(["--shell_path", "pretrain.sh", "--work_dir", "small", *words])
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


TWO_NODES = ("--nnodes", "2", "--nproc-per-node", "8")


def test_dry_writes_the_small_runs_and_starts_none(tmp_path):
    file = script(tmp_path)
    before = file.read_text()
    done = tune(tmp_path, *TWO_NODES, "--dry")
    assert done.returncode == 0, done.stderr
    assert file.read_text() == before and not (tmp_path / "started.txt").exists()
    runs = sorted(path.parent.name for path in (tmp_path / "small").glob("*/pretrain.sh"))
    assert len(runs) == 10 and all(name in done.stdout for name in runs)
    small = (tmp_path / "small" / "base" / "pretrain.sh").read_text()
    assert "NNODES=2\n" in small and "--num-layers 1 " in small and "--load" not in small
    assert "--ddp-bucket-size 1" in small and "--overlap-grad-reduce" in small
    assert "--my-own-module 3" in small


def test_the_page_of_runs_that_are_not_started_names_them_as_what_to_run(tmp_path, tune_here):
    script(tmp_path)
    printed, _ = tune_here(*TWO_NODES, "--dry", "--html", "tune.html")
    page = (tmp_path / "tune.html").read_text()
    assert "html: tune.html" in printed and "No plan yet" in page and "What to run next" in page
    assert page.count("<td>tp4</td>") == 2 and "not started" in page and "Best plans" not in page
    with pytest.raises(InputError, match="--html"):
        tune_here(*TWO_NODES, "--dry", "--html", "pretrain.sh/tune.html")


def test_what_a_scheduler_started_is_read_by_the_next_dry_call(tmp_path, tune_here):
    script(tmp_path)
    words = (*TWO_NODES, "--search", "tp", "--dry")
    tune_here(*words)
    for name in ("base", "tp1"):
        subprocess.run(["bash", f"small/{name}/pretrain.sh"], cwd=tmp_path, check=True, capture_output=True)
    printed, _ = tune_here(*words, "--base", "base.sqlite", "--device", "ascend-910b")
    assert "with exact laws" in printed and "undecided: a run with" in printed
    assert "the base has" in printed and (tmp_path / "base.sqlite").is_file()


@pytest.mark.slow
def test_runs_are_started_once_and_tell_the_hidden_laws_though_one_fails_and_one_hangs(tmp_path, tune_here):
    file = script(tmp_path, failing="tp1", hanging="tp4")
    # As most scripts end: with the exit code of tee, whatever the training does.
    file.write_text(file.read_text().rstrip() + " | tee train.log\n")
    words = (*TWO_NODES, "--search", "tp", "--timeout", "3")
    # What a killed start left behind.
    half = tmp_path / "small" / "base" / "profile" / "a_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    half.parent.mkdir(parents=True)
    half.write_text("Name,Type,Acc")
    printed, logged = tune_here(*words)
    assert "failed (timed out after 3 s)" in printed and "out of memory" in logged
    assert "failed (ended without a profile)" in printed
    printed, _ = tune_here(*words)
    started = Counter((tmp_path / "started.txt").read_text().split())
    assert set(started.values()) == {1} and len(started) >= 6
    laws = json.loads((tmp_path / "small" / "laws.json").read_text())
    blocks = CLUSTER.blocks
    front, layer, head = (blocks[name] for name in ("embedding", "layer", "head"))
    forward = [*front.forward, *layer.forward * 2, *head.forward]
    backward = [*head.backward, *(*layer.forward, *layer.backward) * 2, *front.backward]
    hidden = [one.kind for one in (*forward, *backward) if not one.group]
    assert [one["type"] for one in laws] == [*hidden, "ApplyFusedAdam"]
    assert all(fit["laws"] for one in laws[:-1] for shape in one["inputs"] for fit in shape)
    assert "no plan searched: say --memory_gib" in printed


@pytest.mark.slow
def test_the_best_plans_of_a_large_job_are_told_verified_and_written_from_small_runs_alone(tmp_path, tune_here):
    file = script(tmp_path)
    words = (*TWO_NODES, "--search", "tp,vpp", "--memory_gib", "8", "--switches", "mc2", "--html", "tune.html")
    printed, logged = tune_here(*words)
    page = (tmp_path / "tune.html").read_text()
    for one in ("Best plans", "predicted beside measured", "Laws of the computing operators", "What to run next"):
        assert one in page
    told = json.loads((tmp_path / "small" / "best.json").read_text())
    assert len(told["best"]) == 3 and "plan 1: layers" in printed, (printed, logged)
    own = {one["name"]: one for one in told["small_runs"]}
    assert own.keys() >= {"base", "tp4", "layers2"} and f"<td>{own['base']['measured_ms']:,.2f}</td>" in page
    assert all(one["predicted_ms"] == pytest.approx(one["measured_ms"], rel=0.05) for one in own.values())
    for one in told["best"]:
        # Degrees that small runs did not vary are the file's own.
        run = replace(CLUSTER.job, **one["strategy"])
        again = one["recompute"].get("full", [[0] * run.pp] * run.vpp)
        stages = [
            [(*[("embedding", False)] * (at == chunk == 0),
              *[("layer", place < again[chunk][at]) for place in range(one["layers"][chunk][at])],
              *[("head", False)] * (at == run.pp - 1 and chunk == run.vpp - 1)) for chunk in range(run.vpp)]
            for at in range(run.pp)
        ]  # fmt: skip
        on = [each["switch"] for each in one["switches"] if each["on"]]
        assert on == ["mc2"] * (run.tp > 1) and ("--use-ascend-mc2" in Path(one["script"]).read_text()) == (run.tp > 1)
        true_ms = CLUSTER.with_links(2 if on else 1).step_ns(run, stages) / 1e6
        assert one["step_ms"] == pytest.approx(true_ms, rel=0.05)
        for at, chunks in enumerate(stages):
            true = CLUSTER.peak_of_chunks(run, chunks, at, one["micro_batches"])
            assert one["peak_memory"][at] == pytest.approx(true, rel=0.03) and true <= told["memory_limit"]
        written = Path(one["script"]).read_text()
        assert f"TP={run.tp}\n" in written and "--my-own-module 3" in written and "--load $LOAD" in written
    # These degrees' operators are those of the small runs.
    assert "the base has its operators" in printed and "num-layer-list" not in file.read_text()
    started = Counter((tmp_path / "started.txt").read_text().split())
    tune_here(*words)
    assert Counter((tmp_path / "started.txt").read_text().split()) == started and set(started.values()) == {1}
    assert len([name for name in started if "mc2" not in name and "layers" not in name]) <= 16


@pytest.mark.slow
def test_the_best_plans_are_run_themselves_where_the_job_has_no_more_ranks_than_cards(tmp_path, tune_here):
    script(tmp_path)
    words = (*TWO_NODES, "--search", "tp", "--memory_gib", "200", "--full_size")
    with pytest.raises(InputError, match="--world_size 16"):
        tune_here(*words)
    printed, logged = tune_here(*words, "--world_size", "16", "--gbs", "64")
    best = json.loads((tmp_path / "small" / "best.json").read_text())["best"]
    assert best and printed.count("at full size: ") == len(best), (printed, logged)
    measured = [one["full_size"]["step_ms"] for one in best]
    assert measured == sorted(measured)
    for one in best:
        assert one["full_size"]["step_ms"] == pytest.approx(one["step_ms"], rel=0.05)
        run = (tmp_path / "small" / one["full_size"]["run"] / "pretrain.sh").read_text()
        assert "--global-batch-size 64" in run and "--train-iters 10 " in run and "--load" not in run
        assert "--profile" not in run and "--load" in (planned := Path(one["script"]).read_text())
        assert "--global-batch-size 64" in planned


def test_switches_are_those_that_the_script_starts_with(tmp_path, tune_here):
    file = script(tmp_path)
    launcher, by_heads = launcher_for(file), ("cp_ulysses", False, False)
    assert [(one.name, one.on, one.stays) for one in launcher.switches(file)] == [("mc2", False, False), by_heads]
    with_mc2 = file.with_name("mc2.sh")
    with_mc2.write_text(file.read_text().replace("--num-layers", "--use-ascend-mc2 --num-layers"))
    assert [(one.name, one.on, one.stays) for one in launcher.switches(with_mc2)] == [("mc2", False, True), by_heads]
    with pytest.raises(InputError, match="this file has mc2"):
        tune_here(*TWO_NODES, "--switches", "token_permute", "--dry")
    experts = "--num-experts 32 --moe-grouped-gemm --moe-token-dispatcher-type alltoall"
    file.write_text(file.read_text().replace("--num-layers", f"--moe-alltoall-overlap-comm {experts} --num-layers"))
    found = {one.name: one for one in launcher.switches(file)}
    assert found.keys() == {"token_permute", "alltoall_overlap", "cp_ulysses"} and found["alltoall_overlap"].on
    cards, profile = Machines(2, 8), ProfiledSteps(tmp_path)
    small = CLUSTER.job.replace(layers=1, pp=1, dp=2, experts=32, ep=2)
    both = launcher.small_run(file, ProfiledRun(small, cards, profile, ("token_permute", "alltoall_overlap")))
    assert "--use-fused-moe-token-permute-and-unpermute" in both and "--moe-alltoall-overlap-comm" not in both
    # Without expert parallel MindSpeed does not start with the overlap.
    alone = launcher.small_run(file, ProfiledRun(small.replace(ep=1), cards, profile))
    assert "--moe-alltoall-overlap-comm" not in alone and "--moe-alltoall" in launcher.small_run(
        file, ProfiledRun(small, cards, profile)
    )
    file.write_text(file.read_text().replace("alltoall ", "alltoall_seq "))
    assert [one.name for one in launcher.switches(file)] == ["token_permute", "cp_ulysses"]


def test_a_script_on_too_few_cards_is_refused_with_the_flags_to_change(tmp_path, tune_here):
    script(tmp_path)
    with pytest.raises(InputError, match="--nnodes"):
        tune_here("--nnodes", "1", "--nproc-per-node", "2", "--dry")


@pytest.mark.skipif(not SHARED.is_dir(), reason="real scripts are not here")
def test_the_scripts_of_mindspeed_are_cut_down_to_small_runs():
    for file in sorted((SHARED / "data" / "shells").glob("*mcore_deepseek3*.sh")):
        launcher = launcher_for(file)
        sizes = launcher.job_sizes(file)
        cards = Machines(2, 8, "10.0.0.1", 6005)
        for run in plan_small_runs(sizes, cards).runs[-1:]:
            text = launcher.small_run(file, ProfiledRun(run.setting, cards, ProfiledSteps(Path("/profiles"))))
            assert text != file.read_text(encoding="utf-8") and launchers_for(file)[0].recognises(file, text)


@pytest.mark.parametrize("held", [((4, 4, 4, 4), (4, 4, 4, 4)), ((3, 4, 4, 4), (4, 4, 4, 5))])
def test_a_script_with_a_plan_of_several_chunks_is_read_as_that_plan(tmp_path, held):
    file = script(tmp_path)
    plan = PipelinePlan({"layer": held}, {"full": ((1,) * 4,) * 2})
    launcher = launcher_for(file)
    file.write_text(launcher.planned_job(file, CLUSTER.job.replace(pp=4, vpp=2, dp=16), PlannedJob(plan)))
    read = launcher.read(file)
    assert read.strategy.vpp == 2 and read.schedule.name == "megatron-interleaved"
    assert read.plan.total_layers() == held and read.plan.recompute == plan.recompute


@pytest.mark.parametrize("flag", [("--switches", "mc2"), ("--full_size", "--world_size", "16")])
@pytest.mark.parametrize("without", ["--dry", "--no_verify"])
def test_what_verifying_runs_alone_would_tell_is_refused_without_them(tmp_path, tune_here, flag, without):
    script(tmp_path)
    with pytest.raises(InputError, match=f"{flag[0]}: needs runs of the plans found, and {without} starts none"):
        tune_here(*TWO_NODES, "--search", "tp", *flag, without)
    assert not (tmp_path / "small").exists()


def test_nodes_that_share_a_disk_have_a_file_of_each_run_each(tmp_path, tune_here):
    file = script(tmp_path)
    file.write_text(file.read_text().replace("--nproc_per_node 8", "--nproc_per_node 8 --node_rank 0"))
    for rank in ("0", "1"):
        tune_here(*TWO_NODES, "--search", "tp", "--node_rank", rank, "--dry")
    base = tmp_path / "small" / "base"
    assert "--node_rank 0 " in (base / "pretrain.sh").read_text()
    assert "--node_rank 1 " in (base / "pretrain_1.sh").read_text()


def test_the_names_of_mindspeeds_manual_are_taken(tmp_path, tune_here):
    script(tmp_path)
    words = ["--auto-tuning-ranks", "32", "--auto-tuning-log-level", "info", "--auto-tuning"]
    printed, logged = tune_here(*TWO_NODES, *words, "--auto-tuning-work-dir", "manual", "--tokens", "4096", "--dry")
    assert "32 ranks" in printed and (tmp_path / "manual" / "base" / "pretrain.sh").is_file()
    assert "--tokens 4096 is short where CP is searched" in logged
    printed, logged = tune_here("--nnodes", "1", "--nproc-per-node", "8", "--target-nnodes", "8", "--dry")
    assert "64 ranks" in printed and "8 cards are few where CP is searched" in logged
    # The script says how many cards a node has.
    printed, _ = tune_here("--target-nnodes", "4", "--dry")
    assert "32 ranks" in printed
    # The manual gives both; the ranks are those that MindSpeed searches.
    printed, logged = tune_here(*TWO_NODES, "--auto-settings-ranks", "64", "--target-nnodes", "2", "--dry")
    assert "64 ranks" in printed and "64 ranks are planned as said, not the 16 of 2 nodes" in logged


def test_runs_in_place_of_failed_ones_count_where_further_ones_are_proposed(tmp_path):
    sizes, cards = launcher_for(script(tmp_path)).job_sizes(tmp_path / "pretrain.sh"), Machines(2, 8)
    runs = [Written(one, Path(one.name)) for one in plan_small_runs(sizes, cards).runs]
    # What one run alone shows is open.
    shown = [RunOperators(runs[0].run.setting, (Operator("Gelu", "AI_CORE", (), (), ((4096,),)),))]
    laws = lawful_operators(shown)
    assert len(runs) < MOST_RUNS and _law_summary(laws, runs, sizes, cards).deciding
    assert not _law_summary(laws, [*runs, *runs[:6]], sizes, cards).deciding
    failed = [replace(one, ended="exit code 1") for one in runs[:6]]
    assert _law_summary(laws, [*runs, *failed], sizes, cards).deciding
