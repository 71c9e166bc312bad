"""What a survey of dry-runs asks for next, step by step, with stand-ins for the design and for the runs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from taylor.dryrun import measure
from taylor.dryrun.fitting.design import Cell
from taylor.dryrun.fitting.fit import MemoryFit, Observation
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunResult, StagePeak
from taylor.dryrun.measure import MAX_PROBES, PROBE_STAGES, as_runs, observations_of
from taylor.pipeline.plan import FULL, PipelinePlan
from tests.dryrun.fitting.test_probes import case


def plan(stages: int) -> PipelinePlan:
    return PipelinePlan({"dense": ((1,) * stages,)}, {FULL: ((0,) * stages,)})


def fit_of(values, errors, rows=20, scatter=0.02):
    names = tuple(f"c{place}" for place in range(len(values)))
    return MemoryFit(names, np.array(values, float), np.array(errors, float), np.zeros(rows), scatter, 1.0, ())


class Told(measure._Survey):
    """Answers designs with as many cells as it is told, and runs with as many failures."""

    def ready(self, lengths, failing=0):
        self.lengths, self.failing, self.asked, self.ran = lengths, failing, [], []
        return self

    def design(self, number, seed, pool=None, goal=0.0):
        self.asked.append((number, seed, pool, goal))
        known = self.lengths[pool] if len(self.asked) <= self.tries else self.last
        return [Cell(plan(pool), 0)] * min(number, known)

    def run(self, cells):
        self.ran = list(cells)
        return self.failing


def told(lengths, start=0, probed=0, failing=0, last=10**6, scatter=0.02):
    survey = Told(None, None, None, "x", 1e6).ready(lengths, failing)
    survey.fit = fit_of([1.0], [0.1], scatter=scatter)
    survey.probe_stages, survey.probed, survey.last = start, probed, last
    survey.tries = sum(most >= start for most in PROBE_STAGES)
    return survey


@pytest.fixture(autouse=True)
def _pools(monkeypatch):
    monkeypatch.setattr(measure, "probe_cells", lambda memory, most, seed: most)


@pytest.mark.parametrize("probed", [0, 70])
def test_probes_have_the_fewest_stages_with_which_the_runs_left_suffice(probed):
    left = MAX_PROBES - probed
    for lengths in itertools.product((0, left - 1, left, left + 7), repeat=3):
        for start in (0, *PROBE_STAGES):
            survey = told(dict(zip(PROBE_STAGES, lengths, strict=True)), start, probed)
            tried = [most for most in PROBE_STAGES if most >= start]
            enough = [most for most in tried if survey.lengths[most] < left]
            survey.tries = len(tried) if not enough else tried.index(enough[0]) + 1
            assert survey.probe(3)
            assert survey.probe_stages == (enough[0] if enough else PROBE_STAGES[-1])
            *looked, (number, seed, pool, goal) = survey.asked
            assert [each[:3] for each in looked] == [(left, 3, most) for most in tried[: survey.tries]]
            assert (number, seed, pool) == (min(40, left), 3, survey.probe_stages)
            assert {each[3] for each in looked} == {0.0115 / (1.2 * 0.02)}
            assert goal == 0.0115 / (survey.fit.caution * 0.02)
            assert len(survey.ran) == min(40, left) and survey.probed == probed + len(survey.ran)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 40])
def test_probes_go_on_while_half_of_them_run(number):
    for failing in range(number + 1):
        survey = told(dict.fromkeys(PROBE_STAGES, 1), failing=failing, last=number)
        survey.tries = 1
        assert survey.probe(1) == (failing <= number / 2)


def test_peaks_that_do_not_scatter_leave_nothing_to_probe():
    survey = told(dict.fromkeys(PROBE_STAGES, 1), scatter=0.0)
    survey.tries = 1
    survey.probe(1)
    assert survey.asked[0][3] == pytest.approx(0.0115 / 1.2 * 1e9)


def test_a_coefficient_is_unsure_whose_error_is_above_the_goal_of_it_or_of_one_mib():
    survey = measure._Survey(SimpleNamespace(unknowns=("a", "b")), None, None, "x", 1e6)
    assert survey.unsure == ("a", "b") and not survey.sure
    for value, share in itertools.product((0.0, 0.5, 1.0, 3.0, 800.0), (0.9, 1.1)):
        fit = fit_of([value, 100.0], [0.0, 0.0])
        error = share * 0.0115 * (value if value > 1 else 1.0) / fit.caution
        survey.fit = replace(fit, standard_error=np.array([error, 0.0]))
        assert survey.unsure == (("c0",) if share > 1 else ())
        for count in (1, 2, 3):
            survey.own = [Observation(plan(2), 0, 1.0)] * count
            assert survey.sure == (share < 1 and count >= 2)


def test_the_caution_is_how_often_larger_the_scatter_may_be_at_99_percent():
    # The first percentile of a chi-squared distribution, from printed tables.
    for freedom, percentile in {1: 0.000157, 2: 0.0201, 5: 0.554, 10: 2.558, 30: 14.953}.items():
        assert fit_of([1.0, 1.0], [0, 0], rows=2 + freedom).caution == pytest.approx(
            math.sqrt(freedom / percentile), rel=2e-3
        )
    assert fit_of([1.0, 1.0], [0, 0], rows=2).caution == math.inf


class Backend:
    def __init__(self, memory, answer):
        self.memory, self.answer, self.runs = memory, answer, []

    def measure(self, runs):
        self.runs += runs
        return [DryRunResult(run, tuple(self.answer(run, stage) for stage in run.asked)) for run in runs]


def surveyed(answer):
    memory, prior = case("pretrain_llama3_70b")
    backend = Backend(memory, answer)
    survey = measure._Survey(memory, prior, backend, "x", 30_000.0)
    return survey, backend, survey.design(12, 0)


def test_what_fails_is_counted_kept_apart_and_not_designed_again():
    def answer(run, stage):
        if stage % 2:
            return StagePeak(stage, None, "x", failure="crashed", seconds=9.0)
        return StagePeak(stage, 1000.0 + stage, "x", seconds=float(stage))

    survey, _, cells = surveyed(answer)
    odd = [cell for cell in cells if cell.stage % 2]
    assert 0 < len(odd) < len(cells)
    assert survey.run(cells) == len(odd) == len(survey.failed)
    assert len(survey.own) == len(cells) - len(odd) and not survey.others and not survey.apart
    assert survey.seconds == 9.0 and survey.free_mib == 30_000.0
    assert not survey.too_large and not survey.hopeless
    again = survey.design(40, 0)
    assert len(again) == 40 and not contents(survey, cells) & contents(survey, again)


def contents(survey, cells):
    """What the stages hold, as the rows of the fit say it."""
    values = survey.memory.coefficients(survey.guess)
    return {survey.memory.rows(cell.plan, values, [cell.stage])[0].round(6).tobytes() for cell in cells}


def test_where_a_stage_runs_out_of_memory_smaller_ones_follow():
    survey, backend, cells = surveyed(lambda run, stage: StagePeak(stage, None, "x", failure=OUT_OF_MEMORY))
    assert survey.run(cells[:3]) == 3
    assert survey.too_large and survey.free_mib == pytest.approx(24_000.0)
    assert not survey.hopeless and survey.fit is None
    survey.run([])
    assert len(backend.runs) == len({id(cell.plan) for cell in cells[:3]}) and not survey.too_large


def test_where_nothing_runs_for_other_reasons_there_is_no_hope():
    survey, _, cells = surveyed(lambda run, stage: StagePeak(stage, None, "x", failure="crashed"))
    survey.run(cells)
    assert survey.hopeless and survey.guess is survey.prior


def test_cells_of_one_plan_share_a_run_with_their_stages_in_order():
    memory, _ = case("pretrain_llama3_70b")
    survey, _, _ = surveyed(None)
    first, second = (cell.plan for cell in survey.design(40, 1)[:2])
    runs = as_runs(memory, [Cell(first, 5), Cell(second, 1), Cell(first, 0), Cell(first, 3)])
    assert [run.plan is each for run, each in zip(runs, (first, second), strict=True)] == [True, True]
    assert [run.asked for run in runs] == [(0, 3, 5), (1,)]


def test_only_peaks_above_nothing_are_observed():
    run = DryRun(None, None, plan(4), (0, 1, 2, 3))
    peaks = (StagePeak(0, 5.0, "x"), StagePeak(1, 0.0, "x"), StagePeak(2, None, "x"), StagePeak(3, 0.5, "x"))
    seen = observations_of([DryRunResult(run, peaks)], 4.0)
    assert [(each.stage, each.peak_mib, each.weight) for each in seen] == [(0, 5.0, 4.0), (3, 0.5, 4.0)]
    assert observations_of([DryRunResult(run, peaks)])[0].weight == 1.0
