"""A black-box network divided over stages by the exact solver."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.standin_cluster import stage_order
from benchmarks.standin_memory import WITHIN, hidden_memory
from taylor.base.errors import InputError
from taylor.blackbox.degree_search import AHEAD, Job, search
from taylor.blackbox.memory_laws import PredictedPeak
from taylor.blackbox.quick_steps import quick_step
from taylor.blackbox.stage_problem import MIB, BlockTimes, schedule_of, stage_blocks, stage_peaks, stage_problem
from taylor.parsers.small_run import JobSizes, RunSetting
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.solve import solve

RUN = RunSetting(tp=8, cp=1, ep=8, mbs=1, seq=8192, experts=64, layers=22, pp=4, dp=16)
TIMES = BlockTimes(embedding=0.5, layer=10.0, head=14.0, backward=20.0, transfer=0.2, update=(30.0,) * 4)


@pytest.mark.parametrize("seed", range(4))
def test_plans_between_all_recompute_and_none_fit_on_the_hidden_cluster(seed):
    hidden = hidden_memory(seed)
    laws = hidden.laws()
    ample = stage_problem(laws, RUN, TIMES, 16, 1e15)
    free = solve(ample, SolveOptions(time_limit=20))
    roomy = max(peak.upper for peak in stage_peaks(laws, RUN, free.plan, 16))
    assert sum(map(sum, free.plan.recompute.get("full", ((0,),)))) == 0
    recomputed = replace(free.plan, recompute={"full": free.plan.layers["layer"]})
    least = max(peak.upper for peak in stage_peaks(laws, RUN, recomputed, 16))
    limit = max(least * 1.01, (least + roomy) / 2)
    tight = solve(stage_problem(laws, RUN, TIMES, 16, limit), SolveOptions(time_limit=20))
    assert tight.plan is not None and tight.objective > free.objective * 0.999
    for stage, (blocks, peak) in enumerate(
        zip((chunks[0] for chunks in stage_blocks(tight.plan)), stage_peaks(laws, RUN, tight.plan, 16), strict=True)
    ):
        true = hidden.peak(RUN, list(blocks), RUN.pp - stage)
        assert peak.fits(limit) and true <= limit and peak.peak == pytest.approx(true, rel=WITHIN)


def test_layers_are_divided_unevenly_where_the_head_is_dear():
    plan = solve(stage_problem(hidden_memory(1).laws(), RUN, TIMES, 16, 1e15), SolveOptions(time_limit=20)).plan
    counts = plan.total_layers()[0]
    assert sum(counts) == RUN.layers and counts[-1] < max(counts)


@pytest.mark.parametrize("seed", range(3))
def test_interleaved_plans_fit_on_the_hidden_cluster(seed):
    hidden, run = hidden_memory(seed), RUN.replace(vpp=2)
    laws = hidden.laws()
    ample = solve(stage_problem(laws, run, TIMES, 16, 1e15), SolveOptions(time_limit=5, gap=0.01))
    least = replace(ample.plan, recompute={"full": ample.plan.layers["layer"]})
    limits = [max(peak.upper for peak in stage_peaks(laws, run, plan, 16)) for plan in (least, ample.plan)]
    tight = solve(stage_problem(laws, run, TIMES, 16, sum(limits) / 2), SolveOptions(time_limit=5, gap=0.01)).plan
    assert tight is not None and tight.interleaves == 2
    for stage, (chunks, peak) in enumerate(zip(stage_blocks(tight), stage_peaks(laws, run, tight, 16), strict=True)):
        true = hidden.peak_of_chunks(run, list(map(list, chunks)), stage_order(stage, run, 16))
        assert peak.fits(sum(limits) / 2) and true <= sum(limits) / 2 and peak.peak == pytest.approx(true, rel=WITHIN)


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(4, 1, 6), (4, 2, 8), (3, 4, 12), (4, 3, 4)])
def test_stages_run_in_the_order_that_the_stand_in_says_for_itself(stages, chunks, micro_batches):
    order = build_schedule(schedule_of(chunks), stages, chunks, micro_batches).order
    for stage in range(stages):
        said = stage_order(stage, RunSetting(pp=stages, vpp=chunks), micro_batches)
        assert [("FB"[what], chunk, batch) for what, chunk, batch in order[stage, :, :3].tolist()] == said


def test_a_layer_without_time_is_refused():
    with pytest.raises(InputError, match="time of a layer"):
        stage_problem(hidden_memory(1).laws(), RUN, replace(TIMES, layer=0.0), 16, 1e15)


def test_a_choice_whose_even_plan_does_not_fit_has_a_nearly_even_one_near_the_best():
    kind = LayerKind("layer", 32, 1.0, 100.0, {"none": 50.0, "full": 5.0})
    uniform = tuple(("full", count) for count in range(33))
    static = (700.0, 0.0, 0.0, 0.0)
    problem = PipelineProblem(4, 1, 16, (kind,), static, (1500.0,) * 4, uniform_recompute=uniform)
    even = PipelinePlan({"layer": ((8,) * 4,)}, {"full": ((8,) * 4,)})
    assert check(problem, even)
    best = solve(problem, SolveOptions(time_limit=10)).objective
    assert best <= quick_step(problem).ms <= best / AHEAD
    assert quick_step(problem.replace(limit_mib=(720.0,) * 4)).ms == float("inf")


@pytest.mark.parametrize("seed", range(3))
def test_moments_that_no_kept_layer_leaves_room_for_are_counted_on_stages_that_may_have_them_alone(seed):
    laws = hidden_memory(seed).laws()
    sharp, all_again = (stage_problem(laws, RUN, TIMES, 16, 1e12, all_again=which) for which in ((), None))
    assert all(own <= other for own, other in zip(sharp.static_mib, all_again.static_mib, strict=True))
    assert stage_problem(laws, RUN, TIMES, 16, 1e12, all_again=range(RUN.pp)) == all_again
    free = solve(sharp, SolveOptions(time_limit=20)).plan
    for room in (0.999, 1.001):  # of what the plan without any recompute takes
        limit = room * max(peak.upper for peak in stage_peaks(laws, RUN, free, 16))
        problem = stage_problem(laws, RUN, TIMES, 16, limit, all_again=())
        peaks = stage_peaks(laws, RUN, free, 16)
        assert (not check(problem, free)) == all(peak.fits(limit) for peak in peaks) == (room > 1)


class _MoreThanItsBlocks:
    """Memory in which several layers on a stage take 40 MiB more than each of them alone."""

    margin, weights = 0.0, None

    @property
    def largest(self):
        return self

    def stage(self, run, blocks, in_flight, *, accumulates=True):
        layers = [block for block in blocks if block[0] == "layer"]
        static = 100 * MIB * len(layers)
        kept = sum(self.micro_batch(run, block)[0] for block in layers)
        peak = static + in_flight * kept + 40 * MIB * (len(layers) > 1)
        return PredictedPeak(static, peak, peak)

    def micro_batch(self, run, block):
        kept = (5 if block[1] else 50) * MIB * (block[0] == "layer")
        return kept, kept

    def step_bytes(self, run, blocks):
        return 0.0


@pytest.mark.parametrize("over_mib", [1, 20, 39])
def test_a_choice_whose_plan_takes_more_than_its_blocks_is_solved_under_a_tighter_limit(over_mib):
    run = RunSetting(tp=1, cp=1, ep=1, mbs=1, seq=1024, experts=1, layers=8, pp=2, dp=1)
    times = BlockTimes(0.0, 1.0, 0.0, 2.0)
    sizes = JobSizes(own=run, tp_ways=1, interleaves=False)
    steps = SimpleNamespace(
        memory=_MoreThanItsBlocks(), block_times=lambda run: times, relative_error=lambda run: 0.0,
        tails_ms=lambda run, stages: (0.0,) * run.pp,
    )  # fmt: skip
    # Four layers, three of them run again, and what is in flight of two micro-batches, by the blocks alone.
    limit = (4 * 100 + 2 * (50 + 3 * 5) + 40 - over_mib) * MIB
    (found,) = search(Job(sizes, 2, 8, limit, ()), steps).best
    assert all(peak.fits(limit) for peak in found.peaks)
    exact = solve(stage_problem(steps.memory, run, times, 8, limit - 40 * MIB), SolveOptions(time_limit=10))
    assert found.step_ms == pytest.approx(exact.objective, rel=1e-3)
