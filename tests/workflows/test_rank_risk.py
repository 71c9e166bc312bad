"""Rankings and searches by the risk, the limits and the corrections of a single solve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.errors.peak_correction import PeakCorrection
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import best_case_peak_mib, stage_breakdown
from taylor.cost_model.profile import MemorySource
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.solution import FEASIBLE, OVER_LIMIT
from taylor.workflows.ranking.candidates import load_candidates, rank_folder
from taylor.workflows.ranking.own_plans import problem_of
from taylor.workflows.ranking.rank import RankOptions
from taylor.workflows.ranking.rank_table import RankEntry, ranked_table, solved_row
from taylor.workflows.searching.learned_peaks import LearnedPeaks
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.measured_peaks import with_measured
from taylor.workflows.statement.measured_run import CARD, LearnedMemory, MeasuredRun, SeenMemory
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.stated_file import StatedFile
from tests.conftest import ROOT

FILE, DEVICE = ROOT / "config" / "pretrain_llama3_70b.sh", "h100-80g"
JOB = FileJob(FILE, device=DEVICE, dryrun=False, check=False)


def test_a_plan_above_the_risk_is_marked_with_it_and_comes_after_the_slower_ones_within(tmp_path: Path) -> None:
    (candidate,) = load_candidates([FILE], DEVICE)
    problem, evaluated = problem_of(candidate), evaluate_file(JOB).solution
    limit = problem.limit_mib[0]
    assert candidate.config is not None
    known = candidate.config.memory_error(MemorySource.ESTIMATE)
    assert known is not None and evaluated.objective is not None
    peaks = {"fits": limit - 1000.0, "exceeds the risk": limit * known.upper(0.2), "does not fit": limit * 1.2}
    entries = []
    for place, (word, peak) in enumerate(peaks.items()):
        solution = evaluated.replace(
            objective=evaluated.objective / (1 + place),
            status=FEASIBLE if word == "fits" else OVER_LIMIT,
            peak_memory_mib=(peak, *evaluated.peak_memory_mib[1:]),
        )
        entries.append(RankEntry(candidate, solved_row(problem, solution), own=place > 0))
    table = ranked_table(entries, tmp_path)
    assert list(table["status"]) == ["feasible", "over_limit", "over_limit"]
    reasons = sorted(str(reason) for reason in table["reason"][1:])
    assert reasons[0].startswith("does not fit: ") and reasons[1].startswith("exceeds the risk: ")
    risks = {str(row["reason"])[:4]: row["risk"] for row in table.to_dict("records")}
    assert table["risk"][0] < 0.05 < risks["exce"] < 0.5 < risks["does"]


def test_a_candidate_has_the_limits_and_the_corrected_memory_of_a_solve_of_its_file() -> None:
    job = replace(JOB, measured=MeasuredRun(((0, 70_000.0), (1, 66_000.0)), (), CARD), stage_limits=((2, 60_000.0),))
    file = StatedFile.read(job)
    memory = estimate_memory(file.running, file.device)
    stated = with_measured(file, memory)
    alone = stated.problem(memory)
    seen = SeenMemory(stated.learned, job.stage_limits)
    (candidate,) = load_candidates([FILE], DEVICE, seen=seen)
    problem = problem_of(candidate)
    assert problem.limit_mib == pytest.approx(alone.limit_mib) and problem.limit_mib[2] < problem.limit_mib[1]
    assert problem.static_mib == pytest.approx(alone.static_mib)
    (plain,) = load_candidates([FILE], DEVICE)
    assert problem.static_mib[0] != pytest.approx(problem_of(plain).static_mib[0])


def test_a_correction_of_other_stages_is_the_part_that_all_have() -> None:
    learned = LearnedMemory(PeakCorrection((100.0, 300.0), 1.1, 50.0))
    assert learned.for_stages(2) is learned
    assert learned.for_stages(4).correction == PeakCorrection((50.0,) * 4, 1.1, 50.0)


@given(
    st.lists(st.floats(-2000, 4000), min_size=2, max_size=2), st.floats(0.8, 1.3), st.floats(-500, 2000),
    st.sampled_from((None, 30_000.0, 60_000.0)),
)  # fmt: skip
def test_pruned_peaks_are_lower_bounds_of_the_corrected_peaks(
    extra: list[float], factor: float, common: float, limit: float | None
) -> None:
    config = read_config(ROOT / "config" / "pretrain_llama2_7b.yaml")
    correction = PeakCorrection(tuple(extra), factor, common)
    strategies = [config.strategy.replace(dp=8 // pp, pp=pp, vpp=1, op=1) for pp in (1, 2, 4)]
    table = StrategyTable.from_strategies(strategies)
    peaks, _ = LearnedPeaks(best_case_peak_mib, correction)(config.model, config.rules, table, device_limit_mib=limit)
    for strategy, bound in zip(strategies, peaks, strict=True):
        each = correction.extra_mib if strategy.pp == 2 else (common,) * strategy.pp
        stages = stage_breakdown(config.model, strategy, config.rules, config.even_plan(strategy, FULL))
        real = max(
            stage.total + more + (factor - 1) * sum(stage.activations.values())
            for stage, more in zip(stages, each, strict=True)
        )
        assert bound <= max(real, 0.0) + 1e-6 or (limit is not None and real > limit)


def test_runs_of_candidates_from_no_file_and_limits_of_no_stage_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "candidates"
    folder.mkdir()
    (folder / "one.sh").write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    options = RankOptions(output=tmp_path / "out", report=False)
    with pytest.raises(InputError, match="which is not known"):
        rank_folder(folder, options, device=DEVICE, measured=MeasuredRun(out_of_memory=(0,)))
    with pytest.raises(InputError, match="--stage_limit: names a stage that no candidate has"):
        rank_folder(folder, options, device=DEVICE, stage_limits=((9, 1000.0),))
    with pytest.raises(InputError, match="is above the 81,559 MiB of h100-80g"):
        rank_folder(folder, options, device=DEVICE, stage_limits=((0, 90_000.0),))


def test_less_risk_never_gives_a_candidate_more_memory() -> None:
    limits = [
        candidate.memory.device_limit_mib
        for risk in (0.01, None, 0.2, 0.0)
        for candidate in load_candidates([FILE], DEVICE, margin=MemoryMargin(risk=risk))
        if candidate.memory is not None
    ]
    assert limits == sorted(limits) and len(set(limits)) == 4 and np.isclose(limits[-1], 81_039)
