"""Measured peaks and stages out of memory correct the plan: a run of the file teaches the next plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import taylor
from benchmarks.brute_force import enumerate_optimum
from taylor.base.errors import InfeasibleError, InputError
from taylor.command_lines import pipeline_parallel
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.measured_run import CARD, MeasuredRun
from taylor.workflows.statement.options import FileJob, Outputs
from tests.parsers.megatron.test_scripts import BASE as SHELL_FLAGS
from tests.parsers.megatron.test_scripts import script_of

STAGES = 4
LIMIT = 1000.0
MEMORY = {
    "device_limit": LIMIT,
    "static": {"first": 300, "middle": 100, "last": 250},
    "layer": {"dense": 40},
    "activation": {"dense": {"none": 30, "select": 20, "full": 2}},
}


@pytest.fixture
def job(tmp_path: Path) -> FileJob:
    """A small job under a memory profile of its own, whose even plan has peaks of 780, 490, 400 and 460 MiB."""
    (tmp_path / "memory.json").write_text(json.dumps(MEMORY), encoding="utf-8")
    flags = SHELL_FLAGS.replace("--num-layers 24", "--num-layers 12").replace("batch-size 64", "batch-size 8")
    return FileJob(script_of(tmp_path, flags), memory_file=tmp_path / "memory.json", check=False)


def outputs_in(folder: Path, **more: object) -> Outputs:
    """Outputs below a folder."""
    return Outputs(folder=folder / "out", **more)  # type: ignore[arg-type]


def solved(job: FileJob, folder: Path, run: MeasuredRun | None = None, **more: object) -> PlannedFile:
    """The job solved with what a run showed; the file is not written."""
    changed = replace(job, measured=run or MeasuredRun(), **more)  # type: ignore[arg-type]
    return solve_file(changed, outputs=outputs_in(folder, write=False))


def by_hand(problem: PipelineProblem, extra: list[float]) -> PipelineProblem:
    """The problem with so much more static memory by stage."""
    return problem.replace(static_mib=tuple(a + b for a, b in zip(problem.static_mib, extra, strict=True)))


def test_the_plan_of_measured_peaks_has_them_under_the_corrected_memory(job: FileJob, tmp_path: Path) -> None:
    predicted = evaluate_file(job, outputs_in(tmp_path)).solution.peak_memory_mib
    run = MeasuredRun(((0, predicted[0] + 150.0), (3, predicted[3] - 40.0)), peak_of=CARD)
    found = evaluate_file(replace(job, measured=run), outputs_in(tmp_path)).solution.peak_memory_mib
    assert found == pytest.approx([predicted[0] + 150.0, predicted[1], predicted[2], predicted[3] - 40.0])


@pytest.mark.parametrize("extra", [[0.0, 350.0, 0.0, 0.0], [400.0, 0.0, 300.0, -50.0], [250.0, -20.0, 0.0, 420.0]])
def test_the_corrected_plan_is_optimal_by_brute_force(job: FileJob, tmp_path: Path, extra: list[float]) -> None:
    plain = evaluate_file(job, outputs_in(tmp_path))
    peaks = plain.solution.peak_memory_mib
    run = MeasuredRun(tuple((s, peaks[s] + more) for s, more in enumerate(extra) if more), peak_of=CARD)
    found = solved(job, tmp_path, run)
    base = solved(job, tmp_path / "plain").problem
    # The run's peaks may move unmeasured stages too: all of it is in the written correction.
    learned = found.facts.learned
    assert learned is not None
    for stage, more in enumerate(extra):
        assert not more or learned.correction.extra_mib[stage] == pytest.approx(more)
    truth = enumerate_optimum(by_hand(base, list(learned.correction.extra_mib)))
    assert truth is not None and found.solution.objective == pytest.approx(truth.objective)
    assert found.solution.objective >= base_objective(job, tmp_path)


def base_objective(job: FileJob, tmp_path: Path) -> float:
    """Step of the best plan without a correction."""
    found = solved(job, tmp_path / "plain").solution.objective
    assert found is not None
    return found


@pytest.mark.parametrize(
    "hidden",
    [
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 520.0, 0.0, 0.0],
        [260.0, 330.0, 400.0, 0.0],
        [330.0, 380.0, 480.0, 430.0],
        [0.0, 520.0, 610.0, 120.0],
    ],
)
def test_runs_out_of_memory_lead_to_a_plan_that_fits(job: FileJob, tmp_path: Path, hidden: list[float]) -> None:
    plain = evaluate_file(job, outputs_in(tmp_path / "plain")).problem
    over: list[int] = []

    def real_peaks(plan: PipelinePlan) -> list[float]:
        return [a + b for a, b in zip(peak_memory_mib(plain, plan), hidden, strict=True)]

    solve_file(job, outputs=outputs_in(tmp_path))
    runs = 0
    while runs < 15:
        runs += 1
        planned = evaluate_file(job, outputs_in(tmp_path))
        over = [stage for stage, peak in enumerate(real_peaks(planned.plan)) if peak > LIMIT]
        if not over:
            break
        # A launcher reports the rank that failed first: one stage at a time.
        solve_file(replace(job, measured=MeasuredRun(out_of_memory=(over[0],))), outputs=outputs_in(tmp_path))
    assert not over
    best = enumerate_optimum(by_hand(solved(job, tmp_path / "best").problem, hidden))
    assert best is not None and planned.solution.objective is not None
    assert planned.solution.objective >= best.objective - 1e-9
    assert (runs > 1) == any(hidden) and runs <= 1 + 3 * sum(map(bool, hidden))


def test_what_an_earlier_plan_taught_is_kept_for_a_copy_of_the_file(job: FileJob, tmp_path: Path) -> None:
    out = outputs_in(tmp_path, write_to=tmp_path / "next.sh")
    first = solve_file(replace(job, measured=MeasuredRun(out_of_memory=(1,))), outputs=out)
    second = evaluate_file(
        replace(job, path=tmp_path / "next.sh", measured=MeasuredRun(out_of_memory=(0,))), outputs_in(tmp_path)
    )
    assert first.facts.learned is not None and second.facts.learned is not None
    assert [one.stage for one in second.facts.learned.seen] == [1, 0]
    assert second.facts.learned.correction.extra_mib[1] == first.facts.learned.correction.extra_mib[1]


def test_a_changed_record_of_measurements_is_not_used(job: FileJob, tmp_path: Path) -> None:
    evaluate_file(replace(job, measured=MeasuredRun(out_of_memory=(1,))), outputs_in(tmp_path))
    (record,) = (tmp_path / "out" / "memory_info").glob("measured-*.json")
    record.write_text(record.read_text(encoding="utf-8").replace('"stage": 1', '"stage": 2'), encoding="utf-8")
    again = evaluate_file(replace(job, measured=MeasuredRun(out_of_memory=(0,))), outputs_in(tmp_path))
    assert again.facts.learned is not None and [one.stage for one in again.facts.learned.seen] == [0]


def test_a_job_that_can_no_longer_fit_is_proven_not_to(job: FileJob, tmp_path: Path) -> None:
    peaks = tuple((stage, 60_000.0) for stage in range(STAGES))
    with pytest.raises(InfeasibleError):
        solved(job, tmp_path, MeasuredRun(peaks, peak_of=CARD))


def test_a_limit_by_stage_is_that_of_the_best_plan_by_brute_force(job: FileJob, tmp_path: Path) -> None:
    limits = {0: 700.0, 2: 420.0}
    found = solved(job, tmp_path, stage_limits=tuple(limits.items()))
    assert found.solution.memory_limit_mib == (700.0, 1000.0, 420.0, 1000.0)
    base = solved(job, tmp_path / "plain").problem
    truth = enumerate_optimum(base.replace(limit_mib=(700.0, 1000.0, 420.0, 1000.0)))
    assert truth is not None and found.solution.objective == pytest.approx(truth.objective)
    assert all(p <= m + 1e-6 for p, m in zip(found.solution.peak_memory_mib, (700, 1000, 420, 1000), strict=True))


@pytest.mark.parametrize(
    ("run", "field", "words"),
    [
        (MeasuredRun(out_of_memory=(4,)), "--out_of_memory", "names no stage of 4.*0 to 3"),
        (MeasuredRun(((7, 500.0),)), "--measured_peak", "names no stage of 4"),
        (MeasuredRun(((1, 90_000.0),)), "--measured_peak", "is above the 81,559 MiB of h100-80g.*--device"),
        (MeasuredRun(((1, 600.0),), (1,)), "--measured_peak", "contradicts --out_of_memory 1.*one of the two"),
        (MeasuredRun(((1, 600.0), (1, 601.0))), "--measured_peak", "names a stage twice"),
        (MeasuredRun(((1, 60.0),)), "--measured_peak", r"less than the 120 MiB of weights.*'1=60'"),
    ],
)
def test_measurements_that_contradict_are_refused(
    job: FileJob, tmp_path: Path, run: MeasuredRun, field: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as refused:
        evaluate_file(replace(job, measured=run), outputs_in(tmp_path))
    assert refused.value.field == field and refused.value.cure
    assert not (tmp_path / "out").exists()


def test_a_limit_above_the_card_is_refused(job: FileJob, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--stage_limit: is above the 81,559 MiB"):
        solved(job, tmp_path, stage_limits=((1, 100_000.0),))


def test_an_allocated_peak_counts_with_what_the_job_takes_beside_it(job: FileJob, tmp_path: Path) -> None:
    estimated = replace(job, memory_file=None, dryrun=False)
    run = MeasuredRun(((1, 30_000.0),))
    found = evaluate_file(replace(estimated, measured=run), outputs_in(tmp_path)).solution.peak_memory_mib[1]
    # The runtime and the buffers of communication are 1,536 MiB of Megatron's; 2 x 32 + 40 MiB of workspaces of cuBLAS
    # and TransformerEngine are among what torch allocates.
    assert 30_000.0 + 1536.0 - 128.0 <= found <= 30_000.0 + 1536.0


def test_the_command_says_what_was_learned(
    job: FileJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-shell", str(job.path), "-memory", str(job.memory_file), "-check", "n", "--out_of_memory", "1"]
    pipeline_parallel.run([*words, "-o", "next.sh", "--result_json", "next.json"])
    text = " ".join(capsys.readouterr().out.split())
    assert "stage 1 needed at least 510 MiB more than predicted" in text
    assert "planned with 520 MiB more" in text
    data = json.loads((tmp_path / "next.json").read_text(encoding="utf-8"))
    assert data["measured_memory"]["extra_mib"] == [0.0, 520.0, 0.0, 0.0]
    assert max(data["peak_memory"]) <= 1000.0


def test_a_run_of_a_model_is_that_of_the_file_written_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="-o names no file that can have run") as refused:
        pipeline_parallel.run(["--model", "qwen3-8b", "--world_size", "8", "--out_of_memory", "0"])
    assert refused.value.field == "--out_of_memory"


def test_python_takes_the_measurements_of_an_earlier_plan(job: FileJob) -> None:
    memory = str(job.memory_file)
    first = taylor.evaluate(job.path, memory=memory, out_of_memory=[1])
    second = taylor.solve(job.path, memory=memory, out_of_memory=[0], earlier=first.measurements)
    assert [one.stage for one in second.measurements] == [1, 0]
    assert any("stage 0 needed at least" in sentence for sentence in second.learned)
    limited = taylor.evaluate(job.path, memory=memory, stage_limits={2: 400.0})
    assert limited.solution.memory_limit_mib[2] == 400.0
