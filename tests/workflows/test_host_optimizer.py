"""The optimizer on the host as a choice of one job: the better of both plans, its flags, and what cannot be chosen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.showing.verdict import gain_line
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile

CONFIG = Path(__file__).resolve().parents[2] / "config"
SCRIPT = CONFIG / "pretrain_llama3_70b.sh"


def job(path=SCRIPT, **changes):
    return FileJob(path=path, dryrun=False, check=False, **changes)


def solved(folder, **changes):
    outputs = Outputs(folder / "out", write_to=folder / "plan.sh")
    return solve_file(job(**changes), SolveOptions(time_limit=60), outputs)


def test_the_better_of_both_is_kept_and_the_script_reads_back_as_the_plan_that_was_solved(tmp_path):
    """In a long step that lacks memory the states' way spares recompute; a short one that has enough gains nothing."""
    tight = MemoryMargin(mib=36_000, risk=0)
    long = tmp_path / "long.sh"
    long.write_text(re.sub(r"(--global-batch-size) \d+", r"\1 256", SCRIPT.read_text()))
    alone, chosen = (solved(tmp_path, path=long, margin=tight, offload_optimizer=choose) for choose in (False, True))
    assert chosen.solution.objective < alone.solution.objective
    assert [one.name for one in chosen.alternatives if one.objective == chosen.solution.objective] == [
        "optimizer on the host"
    ]
    assert gain_line(chosen).startswith("optimizer on the host: ")
    text = (tmp_path / "plan.sh").read_text()
    for flag in ("optimizer-cpu-offload", "use-precision-aware-optimizer", "overlap-cpu-optimizer-d2h-h2d"):
        assert f"--{flag}" in text
    again = evaluate_file(job(tmp_path / "plan.sh", margin=tight), Outputs(tmp_path / "again"))
    assert again.solution.objective == pytest.approx(chosen.solution.objective, rel=1e-9)
    assert again.solution.peak_memory_mib == pytest.approx(chosen.solution.peak_memory_mib, rel=1e-9)
    assert not any("offload" in flag.name for flag in again.config.unmodelled)
    assert any("the host's update takes 0.25 s a billion" in sentence for sentence in again.assumed)
    wide = solved(tmp_path, offload_optimizer=True)
    assert wide.solution.objective == {one.name: one.objective for one in wide.alternatives}["optimizer on the device"]
    assert "--optimizer-cpu-offload" not in (tmp_path / "plan.sh").read_text()


def with_flags(folder, words):
    path = folder / "job.sh"
    path.write_text(SCRIPT.read_text().replace("--bf16", f"--bf16 {words}", 1))
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--optimizer-cpu-offload", "does not start without --use-precision-aware-optimizer"),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer --fp8-format e4m3 --fp8-recipe mxfp8 "
         "--fp8-param-gather", "recipe other than delayed"),
        ("--swap-optimizer --reuse-fp32-param", "--swap-optimizer does not go with --reuse-fp32-param"),
    ],
)  # fmt: skip
def test_a_job_that_would_not_start_with_its_optimizer_on_the_host_is_refused(tmp_path, words, said):
    with pytest.raises(InputError, match=said):
        StatedFile.read(job(with_flags(tmp_path, words)))


def test_a_swapped_optimizer_is_warned_of_only_where_the_link_is_not_known(tmp_path):
    path = with_flags(tmp_path, "--swap-optimizer")
    named = {
        device: {flag.name for flag in StatedFile.read(job(path, device=device)).config.unmodelled}
        for device in ("ascend-910b", "ascend-a3")
    }
    assert "--swap-optimizer" in named["ascend-910b"] and "--swap-optimizer" not in named["ascend-a3"]


def test_what_cannot_be_chosen_is_refused_before_anything_is_solved(tmp_path):
    cases = [
        (
            {"path": CONFIG / "pretrain_llama2_7b.yaml", "device": "h100-80g"},
            "MindFormers YAML has no optimizer on the host",
        ),
        ({"device": "ascend-910b"}, "needs the bandwidth between ascend-910b and its host"),
        ({"path": with_flags(tmp_path, "--optimizer sgd")}, "does not go with any but Adam"),
    ]
    for changes, said in cases:
        with pytest.raises(InputError, match=said):
            solve_file(job(**changes, offload_optimizer=True), SolveOptions(), Outputs(tmp_path))
    both = "--optimizer-cpu-offload --use-precision-aware-optimizer"
    assert not read_config(with_flags(tmp_path, both)).misfits
    with pytest.raises(InputError, match="is set already"):
        solve_file(job(with_flags(tmp_path, both), offload_optimizer=True), SolveOptions(), Outputs(tmp_path))
