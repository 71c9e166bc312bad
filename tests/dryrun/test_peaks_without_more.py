"""Results of dry-runs say what the runs told and no more: of one stage, and of all stages together."""

from __future__ import annotations

import itertools

from taylor.cost_model.job.strategy import Strategy
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunResult, StagePeak
from taylor.dryrun.stage_memory import Moment, StageMemory
from taylor.pipeline.plan import FULL, PipelinePlan


def test_a_stage_whose_count_tells_no_host_figures_has_none():
    stage = StageMemory(2, 100.0, {"parameters": 60.0, "activations": 40.0})
    assert (stage.moments, stage.seconds, stage.max_rss_mib) == ((), 0.0, 0.0)
    told = StageMemory(2, 100.0, {}, (Moment(0, 0, 0, 50.0, 80.0),), 3.0, 900.0)
    assert (told.seconds, told.max_rss_mib, told.moments[0].live_mib) == (3.0, 900.0, 50.0)


def test_a_peak_that_says_no_more_took_no_time_and_is_no_failure():
    peak = StagePeak(1, 5.0, "x")
    assert (peak.actual_mib, peak.log, peak.failure, peak.lines, peak.seconds, peak.cached) == (
        None, None, "", (), 0.0, False,
    )  # fmt: skip


def test_a_run_asks_for_the_stages_that_are_named():
    plan = PipelinePlan({"dense": ((1, 1, 1),)}, {FULL: ((0, 0, 0),)})
    assert DryRun(None, None, plan, (2, 0)).asked == (2, 0)


def test_a_runs_peak_is_its_heaviest_stages_if_every_stage_has_one():
    told = {
        "low": StagePeak(0, 5.0, "x"),
        "high": StagePeak(1, 7.0, "x"),
        "short": StagePeak(2, None, "x", failure=OUT_OF_MEMORY),
        "crashed": StagePeak(3, None, "x", failure="crashed"),
    }
    for count in range(4):
        for names in itertools.product(told, repeat=count):
            result = DryRunResult(DryRun(None, Strategy(2, 1, 4), None, ()), tuple(told[name] for name in names))
            failed = [name for name in names if name in ("short", "crashed")]
            assert len(result.failures) == len(failed)
            heaviest = 7.0 if "high" in names else 5.0 if "low" in names else None
            assert result.peak_mib == (None if failed else heaviest)
            assert result.says_nothing == (set(names) == {"crashed"})
            reason = "out of memory" if failed[:1] == ["short"] else "crashed"
            where = ", ".join({"short": "2", "crashed": "3"}[name] for name in failed)
            assert result.describe_failure() == (f"{Strategy(2, 1, 4).name} stage {where}: {reason}" if failed else "")
