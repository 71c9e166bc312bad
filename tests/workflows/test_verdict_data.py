"""The verdict of a result as data: ties, tight stages, and the fit of figures of a table."""

from __future__ import annotations

import pytest

from taylor.cost_model.errors.known_error import KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.solution import Solution, Status
from taylor.workflows.showing.fit import Fit, FitVerdict
from taylor.workflows.showing.verdict import TIGHT, sure_text
from taylor.workflows.showing.verdict_data import Rival, VerdictFacts, figures_fit, tight_stages
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import Origin
from tests.conftest import ROOT

CONFIG = read_config(ROOT / "config" / "pretrain_llama3_70b.sh")
KNOWN = KnownError(0.1, 0.1, 0.02, "estimated peaks are")


def solution(*peaks: float, limit: float = 100.0) -> Solution:
    return Solution(Status.FEASIBLE, peak_memory_mib=peaks, memory_limit_mib=(limit,) * len(peaks))


def facts(step: float, other: float, *, estimated: bool) -> dict:
    found = VerdictFacts(
        CONFIG, choose_device(CONFIG, None).spec, FitVerdict(Fit.FITS, risk=0.02), solution(10.0), KNOWN, step,
        estimated, None, Rival("the plan in the file", other), None, Origin("taylor solve", ("no CUDA graphs",)),
    )  # fmt: skip
    return found.to_dict()


@pytest.mark.parametrize(
    "step, other, estimated, tie",
    [
        (100.0, 107.0, True, True), (100.0, 109.0, True, False), (109.0, 100.0, True, False),
        (100.0, 100.0, True, True),
        (100.0, 107.0, False, False), (100.0, 100.02, False, True),
    ],
)  # fmt: skip
def test_two_steps_are_a_tie_within_the_models_error_where_they_are_estimated(step, other, estimated, tie):
    against = facts(step, other, estimated=estimated)["baseline"]
    assert against["tie"] is tie and against["gain"] == pytest.approx(other / step - 1)


def test_a_verdict_says_what_it_rests_on():
    found = facts(100.0, 120.0, estimated=True)
    assert found["command"] == "taylor solve" and found["software"]["assumed"] == ["no CUDA graphs"]
    assert found["software"]["framework"] == "megatron" and found["probability"] == pytest.approx(0.98)
    assert found["runner_up"] is None and found["version"]


def test_stages_that_may_run_out_are_listed_the_fullest_first():
    margin = MemoryMargin(risk=0.0)
    found = tight_stages(solution(50.0, 104.0, 99.0, 89.0), KNOWN, margin)
    assert [one["stage"] for one in found] == [1, 2]
    assert found[0]["free_mib"] == pytest.approx(-4.0) and found[0]["risk"] > 0.5 > found[1]["risk"] > 0.05
    assert [one["stage"] for one in tight_stages(solution(99.0, 101.0), None, margin)] == [1]


@pytest.mark.parametrize("known", [None, KNOWN])
@pytest.mark.parametrize("peak", [50.0, 92.0, 98.9, 99.5, 100.5])
def test_the_listed_stages_are_those_that_the_verdict_calls_tight(known, peak):
    # Peaks of an unknown error are tight from 99 of 100 on.
    listed = bool(tight_stages(solution(peak), known, MemoryMargin(risk=0.0)))
    assert listed is (TIGHT in sure_text(known, MemoryMargin(risk=0.0), peak, 100.0))
    assert listed is (peak > (90.0 if known else 99.0))


@pytest.mark.parametrize("share, fit", [(0.6, Fit.FITS), (1.03, Fit.AT_RISK), (1.2, Fit.DOES_NOT_FIT)])
def test_peaks_of_a_table_have_the_fit_of_a_plan(share, fit):
    limit = CONFIG.memory_limit_mib(choose_device(CONFIG, None).spec)
    known = CONFIG.memory_error("estimate")
    _, found = figures_fit([share * limit], [limit], CONFIG, known)
    assert found.fit is fit
