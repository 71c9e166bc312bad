"""How sizes follow the degrees of a run."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.standin_network import CARDS, JOB, LARGE, HiddenSize, hidden_network, hidden_size
from taylor.blackbox.blocks import RunOperators, lawful_operators
from taylor.blackbox.foretold import foretell, showing_run
from taylor.blackbox.laws import Fitter, SizeFit, deciding_runs
from taylor.blackbox.small_runs import candidate_runs, legal, plan_small_runs
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import JobSizes, RunSetting

RUNS = [run.setting for run in plan_small_runs(JOB, CARDS).runs]


def fit(size: HiddenSize, runs: list[RunSetting]) -> SizeFit:
    return Fitter(runs).fit([size.of(run) for run in runs])


@settings(max_examples=60)
@given(st.integers(0, 10**9))
def test_a_hidden_law_is_found_from_the_small_runs_and_holds_at_a_thousand_ranks(seed):
    size = hidden_size(random.Random(seed))
    found = fit(size, RUNS)
    assert found.laws
    for large in LARGE:
        if size.unit == 1:
            assert found.at(large) == size.of(large)
        else:  # How far a padded size is above the true one, small runs tell within a unit.
            assert abs(found.laws[0].at(large) - size.of(large)) <= size.unit


@settings(max_examples=30)
@given(st.integers(0, 10**9), st.sets(st.sampled_from(range(1, len(RUNS))), max_size=4))
def test_with_runs_missing_the_hidden_law_is_among_those_that_fit(seed, missing):
    size = hidden_size(random.Random(seed))
    runs = [run for at, run in enumerate(RUNS) if at not in missing]
    found = fit(size, runs)
    assert any(all(law.at(large) == size.of(large) for large in LARGE) for law in found.laws) or size.unit > 1


def test_a_law_of_experts_is_found_although_one_run_has_a_single_expert():
    runs = [RUNS[0].replace(ep=1, experts=experts) for experts in (1, 4, 6)]
    found = Fitter(runs).fit([7 * run.experts for run in runs])
    assert found.at(RUNS[0].replace(ep=1, experts=64)) == 7 * 64


def test_a_law_that_was_not_varied_is_ambiguous_and_the_run_that_decides_is_named():
    length = HiddenSize(1, ("seq",), ("cp",))
    base = RUNS[0]
    only_tp = [base, base.replace(tp=2 * base.tp, dp=base.dp // 2)]
    found = fit(length, only_tp)
    assert not found.settled and found.at(base.replace(cp=8)) is None
    named = deciding_runs([found], candidate_runs(base, JOB, CARDS.ranks))
    assert named
    assert all(legal(run.setting, JOB) is None and run.setting.ranks == CARDS.ranks for run in named)
    decided = fit(length, [*only_tp, *(run.setting for run in named)])
    assert all(decided.at(large) == length.of(large) for large in LARGE)


def test_runs_that_tell_nothing_more_are_not_named():
    settled = fit(HiddenSize(5120), RUNS)
    assert settled.settled and deciding_runs([settled], candidate_runs(RUNS[0], JOB, CARDS.ranks)) == ()


def test_key_and_value_heads_stay_one_where_tp_is_above_their_number():
    heads = HiddenSize(2, (), ("tp",))
    runs = [RunSetting(tp=tp) for tp in (1, 2, 4)]
    assert [fit(heads, runs).at(RunSetting(tp=tp)) for tp in (8, 64)] == [1, 1]


def test_tokens_of_an_expert_that_scatter_leave_their_law_by_what_is_said():
    runs = [RunSetting(seq=length, experts=experts) for length in (4096, 8192) for experts in (4, 8, 16)]
    sizes = [round(run.seq / run.experts * (1 + 0.03 * (-1) ** at)) for at, run in enumerate(runs)]
    found = Fitter(runs).fit(sizes)
    assert not found.settled and 0 < found.spread < 0.1
    assert found.laws[0].at(RunSetting(seq=32768, experts=64)) == pytest.approx(512, rel=0.05)


def test_sizes_without_any_law_have_none():
    runs = [RunSetting(tp=tp) for tp in (1, 2, 4, 8)]
    assert Fitter(runs).fit([7, 1000, 3, 5]).laws == ()


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 10**9))
def test_every_operator_of_a_hidden_network_is_predicted_at_large_sizes(seed):
    network = hidden_network(seed)
    found = lawful_operators([network.step(run) for run in RUNS])
    for large in random.Random(seed).sample(LARGE, 6):
        truth = network.step(large).operators
        hidden = [one for one in (*network.before, *network.layer * 2, *network.after) if one.runs(large)]
        predicted = [one for one in found if one.condition is not None and one.condition.is_met(large)]
        assert [one.like.type for one in predicted] == [one.type for one in truth]
        for mine, its, law in zip(predicted, truth, hidden, strict=True):
            sizes = [fit.laws[0].at(large) for fit in mine.fits]
            true = [size for shape in (*its.inputs, *its.outputs) for size in shape]
            units = [size.unit for shape in law.shapes for size in shape]
            for size, real, unit in zip(sizes, true, units, strict=True):
                # Where a padded size begins, small runs tell within its unit.
                assert size == real or (unit > 1 and abs(size - real) <= unit)


def test_small_runs_take_all_cards_and_vary_one_thing_at_a_time():
    planned = plan_small_runs(JOB, CARDS)
    assert len(planned.runs) <= 16 and not planned.left_out
    base = planned.runs[0].setting
    for run in planned.runs:
        assert run.setting.ranks == CARDS.ranks and legal(run.setting, JOB) is None
        changed = {part.split()[0] for part in base.differences(run.setting).split(", ") if part} - {"dp"}
        # One expert a rank takes EP and experts together.
        assert len(changed - {"layers"}) <= 1 or (changed == {"ep", "experts"} and run.setting.local_experts == 1)


def test_runs_that_cannot_start_are_left_out_with_the_reason():
    narrow = JobSizes(RunSetting(seq=4096, layers=8), tp_ways=1)
    planned = plan_small_runs(narrow, CARDS)
    assert {run.setting.tp for run in planned.runs} == {1}
    assert any("heads" in reason for reason in planned.left_out)


def test_a_run_whose_degrees_and_sizes_shrink_together_shows_the_operators_of_the_job():
    job = RunSetting(tp=8, cp=8, ep=16, mbs=1, seq=131072, experts=64, layers=61, pp=16, dp=8)
    network = hidden_network(4)
    found = lawful_operators([network.step(run) for run in RUNS])
    foretold = foretell(found, job)
    truth = {one.of(job) for one in (*network.before, *network.layer, *network.after)}
    assert foretold.unsure == 0
    settled = {one for one in foretold.operators if one in truth}
    assert len(settled) > 0.8 * len(truth)  # The rest differ by the unit of a padded size.
    run = showing_run(found, foretold.operators, job, JOB, CARDS.ranks)
    assert run is not None and run.setting.ranks == CARDS.ranks and run.setting.seq < job.seq
    shown = set(network.step(run.setting).operators)
    assert len(settled & shown) > 0.7 * len(settled)


def test_a_run_without_what_is_missing_is_not_proposed():
    found = lawful_operators([hidden_network(4).step(run) for run in RUNS])
    assert showing_run(found, [], RunSetting(tp=8, seq=16384, dp=2), JOB, CARDS.ranks) is None


def test_a_run_is_laid_beside_the_one_that_is_most_like_it():
    # A head's product that under TP 4 happens to be as large as a layer's under TP 2.
    def product(outer: int) -> Operator:
        return Operator("MatMul", "AI_CORE", ("DT_BF16",) * 2, ((4096, 4096), (4096, outer)), ((4096, outer),))

    def run(tp: int, layers: int) -> RunOperators:
        norm = Operator("Norm", "AI_CORE", ("DT_BF16",), ((4096, 4096),), ((4096, 4096),))
        return RunOperators(
            RunSetting(tp=tp, layers=layers), (*(norm, product(8192 // tp)) * layers, norm, product(16384 // tp))
        )

    operators = lawful_operators([run(2, 1), run(1, 1), run(4, 1), run(2, 2)])
    own = [one for one in operators if not one.further]
    assert [one.at(RunSetting(tp=8)).outputs[0][1] for one in own if one.like.type == "MatMul"] == [1024, 2048]
