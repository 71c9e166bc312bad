"""Published runs that did run, by the memory that is told for them."""

from __future__ import annotations

import pytest

from benchmarks.measured_runs import MEASURED, measured_runs, summary
from taylor.parsers.read import read_config
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

needs_runs = pytest.mark.skipif(not MEASURED.is_dir(), reason="the measured runs lie outside the repository")


@pytest.mark.slow
@needs_runs
def test_runs_that_ran_are_told_to_fit_and_large_ones_are_met_within_four_percent() -> None:
    runs, refused = measured_runs(MEASURED)
    assert refused == []
    table = summary(runs).set_index("set")
    assert table.loc["all", "false «does not fit»"] <= 0.03 * len(runs)
    assert table.loc["all", "false «fits»"] == 0
    assert table.loc["megatron-ci-large", "median error %"] <= 4.0


@needs_runs
def test_two_jobs_that_differ_by_their_rotation_are_told_as_far_apart_as_measured() -> None:
    """LLaMA 3 and 3.1 8B of MindSpeed-LLM 1.0.RC3's README, 27,307 and 28,744 ms a step; one has no
    ``--use-fused-rotary-pos-emb``."""
    files = ("llama3__pretrain_llama3_8b_ptd", "llama31__pretrain_llama31_8b_8k_ptd")
    card = Registry.load().device("ascend-910b")
    one, single = (planned_step_ms(read_config(MEASURED / "mindspeed-dense" / f"{file}.sh"), card) for file in files)
    assert single / one == pytest.approx(28743.86 / 27306.67, abs=0.005)
