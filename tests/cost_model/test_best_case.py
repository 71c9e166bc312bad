"""The least peak of a strategy: never above what a plan can reach, and reached by one where it is exact."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.alive import alive_lower_bound, alive_micro_batches
from taylor.cost_model.memory.best_case import TOLERANCE_MIB, _average_and_dip, _LeastPeakSearch, lightest_layers
from taylor.cost_model.memory.breakdown import best_case_peak_mib, lightest_plan, memory_profile, stage_breakdown
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.register.trainers import TRANSFORMERS

DEEPSEEK = Registry.load().model("deepseek-v3-671b")
LLAMA7 = Registry.load().model("llama2-7b")
GLM = Registry.load().model("glm-5").replace(n_layers=9, pattern="3 mla-dsa+dense, 6 mla-dsa+moe")
"""A pattern of two runs: lighter layers in front of the body."""
RULES = TrainingRules()


def shallow(layers: int, first_dense: int, mtp: int = 0) -> ModelSpec:
    """DeepSeek-V3 with fewer layers."""
    assert DEEPSEEK.moe is not None
    return DEEPSEEK.replace(n_layers=layers, moe=replace(DEEPSEEK.moe, first_dense=first_dense), mtp_layers=mtp)


def least_peak_by_trying_all(model: ModelSpec, strategy: Strategy, mode: str, spec: ScheduleSpec) -> float:
    """The smallest peak over all offsets with a layer a chunk at least, MiB."""
    profile = memory_profile(model, strategy, RULES, 0, spec)
    kinds = [profile.kind_for(kind) for kind, count in model.layer_counts().items() for _ in range(count)]
    pp, vpp = strategy.pp, strategy.vpp
    vectors = alive_vectors(build_schedule(spec, pp, vpp, strategy.micro_batches))
    static, best = profile.static_mib(pp), float("inf")
    for cuts in itertools.combinations(range(1, len(kinds)), pp * vpp - 1):
        edges = [0, *cuts, len(kinds)]
        chunks = [kinds[a:b] for a, b in itertools.pairwise(edges)]
        peak = 0.0
        for s in range(pp):
            most_layers = [chunks[v * pp + s] for v in range(vpp)]
            kept = [sum(profile.activation_mib[kind][mode] for kind in chunk) for chunk in most_layers]
            layers = sum(profile.layer_mib[kind] for chunk in most_layers for kind in chunk)
            peak = max(peak, static[s] + layers + max(float(np.dot(row, kept)) for row in vectors[s]))
        best = min(best, peak)
    return best


@pytest.mark.parametrize("mode", [FULL, NONE])
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "model",
    [shallow(8, 0), shallow(9, 3), shallow(8, 5, 1), LLAMA7.replace(n_layers=9), GLM],
    ids=["8 moe", "3 dense + 6 moe", "5 dense + 3 moe + mtp", "9 dense", "a pattern of two runs"],
)
def test_without_interleaves_it_is_the_least_peak_over_all_offsets(model: ModelSpec, pp: int, mode: str) -> None:
    for m in (2, 16):
        strategy = Strategy(4, 4, pp, 4, op=4, micro_batches=m)
        peak, heaviest = best_case_peak_mib(model, RULES, StrategyTable.from_strategies([strategy]), mode)
        expected = least_peak_by_trying_all(model, strategy, mode, ScheduleSpec())
        assert expected - 1.01 * TOLERANCE_MIB <= peak[0] <= expected + 1e-6
        plan = lightest_plan(model, strategy, RULES, mode)
        assert stage_breakdown(model, strategy, RULES, plan)[heaviest[0]].total == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("spec", [
    ScheduleSpec("interleaved", low_memory=True), ScheduleSpec("interleaved"), ScheduleSpec("megatron-interleaved"),
    ScheduleSpec("zbv"), ScheduleSpec("gpipe"),
], ids=lambda spec: f"{spec.name}-{spec.low_memory}")  # fmt: skip
@pytest.mark.parametrize("model", [shallow(9, 3), LLAMA7.replace(n_layers=9)], ids=lambda model: model.name)
@pytest.mark.parametrize("mode", [FULL, NONE])
def test_with_interleaves_it_is_never_above_the_least_peak_and_not_far_below(
    model: ModelSpec, mode: str, spec: ScheduleSpec
) -> None:
    for pp, m in ((2, 4), (2, 12), (3, 6)):
        strategy = Strategy(4, 4, pp, 4, op=4, vpp=2, micro_batches=m)
        table = StrategyTable.from_strategies([strategy])
        peak, _ = best_case_peak_mib(model, RULES, table, mode, schedule=spec)
        expected = least_peak_by_trying_all(model, strategy, mode, spec)
        largest_layer = max(memory_profile(model, strategy, RULES, 0).layer_mib.values())
        assert peak[0] <= expected + 1e-6
        assert peak[0] >= expected - 2.5 * largest_layer


@pytest.mark.parametrize("mode", [FULL, NONE])
@pytest.mark.parametrize("strategy", [
    Strategy(16, 4, 16, 8, op=16, micro_batches=64), Strategy(8, 4, 5, 8, op=8, micro_batches=3),
    Strategy(64, 4, 1, 64),
], ids=lambda strategy: strategy.name)  # fmt: skip
def test_the_lightest_plan_reaches_the_least_peak(strategy: Strategy, mode: str) -> None:
    peak, _ = best_case_peak_mib(DEEPSEEK, RULES, StrategyTable.from_strategies([strategy]), mode)
    parts = stage_breakdown(DEEPSEEK, strategy, RULES, recompute=mode)
    assert sum(sum(part.layers.values()) for part in parts) == 62
    assert max(part.total for part in parts) == pytest.approx(peak[0], abs=1.01 * TOLERANCE_MIB)


@pytest.mark.parametrize("model", [shallow(20, 3), LLAMA7], ids=lambda model: model.name)
def test_the_lightest_plan_of_interleaves_holds_every_layer_once(model: ModelSpec) -> None:
    strategy = Strategy(4, 4, 4, 4, op=4, vpp=2, micro_batches=8)
    plan = lightest_plan(model, strategy, RULES)
    most_layers = {kind: sum(map(sum, grid)) for kind, grid in plan.layers.items()}
    assert most_layers == model.layer_counts()
    assert min(map(min, plan.total_layers())) >= 1
    peak, _ = best_case_peak_mib(model, RULES, StrategyTable.from_strategies([strategy]))
    assert max(part.total for part in stage_breakdown(model, strategy, RULES, plan)) >= peak[0]


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(16, 4, 16, 8, op=16, vpp=2, micro_batches=64), Strategy(16, 4, 8, 8, op=16, vpp=2, micro_batches=64),
        Strategy(16, 4, 8, 8, op=16, vpp=3, micro_batches=64), Strategy(16, 4, 4, 8, op=16, vpp=4, micro_batches=64),
    ],
    ids=lambda strategy: f"{strategy.name}_VPP{strategy.vpp}",
)  # fmt: skip
def test_the_lightest_plan_of_interleaves_stays_near_the_bound(strategy: Strategy) -> None:
    """What is told to fit and the table of stages below it speak of plans 2 % apart at most.

    In the low-memory order: the other one keeps more micro-batches of a stage's first chunks, for which the bound
    takes its cheapest moment.
    """
    spec = ScheduleSpec("interleaved", low_memory=True)
    table = StrategyTable.from_strategies([strategy])
    [peak], _ = best_case_peak_mib(DEEPSEEK, RULES, table, schedule=spec)
    parts = stage_breakdown(DEEPSEEK, strategy, RULES, schedule=spec)
    assert peak <= max(part.total for part in parts) <= 1.02 * peak


def test_a_stage_without_dense_layers_holds_a_body_layer_a_chunk() -> None:
    model, strategy = shallow(8, 3), Strategy(4, 4, 4, 4, op=4, vpp=2, micro_batches=8)
    [peak], _ = best_case_peak_mib(model, RULES, StrategyTable.from_strategies([strategy]))
    parts = stage_breakdown(model, strategy, RULES)  # Every chunk holds one layer: there is no other plan.
    assert [sum(part.layers.values()) for part in parts] == [2, 2, 2, 2]
    assert peak == pytest.approx(max(part.total for part in parts), rel=1e-3)


def test_seqpipe_counts_pieces_of_a_sequence() -> None:
    spec, model = ScheduleSpec("seqpipe", seq_splits=2), LLAMA7.replace(n_layers=6)
    strategy = Strategy(4, 4, 3, op=4, micro_batches=9)
    peak, _ = best_case_peak_mib(model, RULES, StrategyTable.from_strategies([strategy]), NONE, schedule=spec)
    expected = least_peak_by_trying_all(model, strategy, NONE, spec)
    assert expected - 0.05 <= peak[0] <= expected + 1e-6


@pytest.mark.parametrize(
    "spec", [ScheduleSpec("interleaved", low_memory=True), ScheduleSpec("interleaved"), ScheduleSpec("gpipe"),
             ScheduleSpec("megatron-interleaved"), ScheduleSpec("megatron-interleaved", one_ahead=True)], ids=str
)  # fmt: skip
def test_the_closed_form_of_alive_micro_batches_is_reached_by_the_schedule_itself(spec: ScheduleSpec) -> None:
    for stages, vpp, m in itertools.product((1, 2, 3, 4), (2, 3), (1, 2, 3, 4, 6, 8, 13)):
        if spec.name == "megatron-interleaved" and m % stages:
            continue
        vectors = alive_vectors(build_schedule(spec, stages, vpp, m))
        for stage in range(stages):
            found = np.array([float(a) for a in alive_lower_bound(spec, stages, vpp, stage, m)])
            assert (vectors[stage] >= found).all(axis=1).any(), (stages, vpp, m, stage)


def test_plain_1f1b_keeps_as_many_micro_batches_as_stages_follow() -> None:
    found = [rows[0][0] for rows in alive_micro_batches(ScheduleSpec(), 4, 1, 3)]
    assert found == [3, 3, 2, 1]


def a_hundred_thousand() -> StrategyTable:
    rng, n = np.random.default_rng(0), 100_000

    def pick(*values: int) -> np.ndarray:
        return rng.choice(np.array(values), n)

    return StrategyTable(
        dp=pick(1, 2, 4, 8, 16, 32, 64), tp=pick(1, 2, 4, 8), pp=pick(1, 2, 4, 8, 16, 32), ep=pick(1, 2, 4, 8, 16, 32),
        cp=pick(1, 2, 4), op=pick(1, 2, 4, 8, 16, 64), sp=pick(0, 1).astype(bool), vpp=pick(1, 2), mbs=pick(1, 2),
        micro_batches=pick(8, 16, 32, 64, 128),
    )  # fmt: skip


def test_a_hundred_thousand_strategies_at_once_equal_one_by_one() -> None:
    table = a_hundred_thousand()
    peak, heaviest = best_case_peak_mib(DEEPSEEK, RULES, table)
    for i in range(0, len(table), 997):
        alone_peak, alone_stage = best_case_peak_mib(DEEPSEEK, RULES, StrategyTable.from_strategies([table.row(i)]))
        assert (alone_peak[0], alone_stage[0]) == (peak[i], heaviest[i])


def test_a_limit_skips_refinement_but_never_changes_which_strategies_fit() -> None:
    table = a_hundred_thousand().select(slice(0, 3000))
    for limit in (20_000.0, 55_296.0, 200_000.0):
        whole, _ = best_case_peak_mib(DEEPSEEK, RULES, table)
        quick, _ = best_case_peak_mib(DEEPSEEK, RULES, table, device_limit_mib=limit)
        assert ((whole <= limit) == (quick <= limit)).all()
        assert (quick[whole <= limit] == whole[whole <= limit]).all()


def test_full_recompute_needs_less_than_none_and_best_is_full() -> None:
    table = a_hundred_thousand().select(slice(0, 2000))
    full, none, best = (best_case_peak_mib(DEEPSEEK, RULES, table, mode)[0] for mode in (FULL, NONE, "best"))
    assert (full <= none).all()
    assert (best == full).all()
    with pytest.raises(ValueError, match="best, none or full"):
        best_case_peak_mib(DEEPSEEK, RULES, table, "some")


def test_an_empty_table_gives_empty_answers() -> None:
    peak, heaviest = best_case_peak_mib(DEEPSEEK, RULES, StrategyTable.from_strategies([]))
    assert len(peak) == len(heaviest) == 0


def test_columns_of_different_lengths_are_refused() -> None:
    table = a_hundred_thousand().select(slice(0, 3))
    with pytest.raises(ValueError, match="equally long"):
        replace(table, dp=np.array([1, 2]))


def test_the_deepest_fall_below_the_average_is_that_of_every_stretch_of_layers() -> None:
    """All stretches of all layers, one by one, against one pass over the runs."""
    rng = np.random.default_rng(253)
    for _ in range(200):
        kinds = ["a", "b", "c"][: int(rng.integers(1, 4))]
        counts = {f"{rng.choice(kinds)}#{run}": int(rng.integers(1, 5)) for run in range(int(rng.integers(1, 6)))}
        costs = {kind: rng.integers(0, 9, size=2).astype(float) for kind in kinds}
        layers = np.array([costs[run.partition("#")[0]] for run, count in counts.items() for _ in range(count)])
        average, dip = _average_and_dip(counts, costs)
        assert average == pytest.approx(layers.mean(axis=0))
        n = len(layers)
        stretches = [
            (b - a) * layers.mean(axis=0) - layers[a:b].sum(axis=0) for b in range(n + 1) for a in range(b + 1)
        ]
        assert dip == pytest.approx(np.max(stretches, axis=0), abs=1e-9)


def test_stages_hold_what_a_walk_of_single_layers_from_the_front_finds():
    rng = np.random.default_rng(4)
    for interleaves in (1, 2):
        for _ in range(60):
            stages, dense = int(rng.integers(1, 5)), int(rng.integers(0, 6))
            base = rng.integers(10, 60, (stages, 3)).astype(float)
            slope = rng.integers(3, 12, (stages, 3)).astype(float)
            front = rng.integers(2, 9, (stages, 3)).astype(float)
            peak = base + rng.integers(0, 60, (stages, 3))
            search = _LeastPeakSearch(base, slope, front, 40, dense, interleaves)
            expected = np.zeros((stages, 3))
            for at in range(3):
                left = dense if interleaves == 1 else 0
                for stage in range(stages):
                    room = peak[stage, at] - base[stage, at]
                    # Every stage holds a layer at least, so dense ones reach no further than there are of them.
                    left = left if stage < dense else 0
                    while left and room >= front[stage, at]:
                        left, room = left - 1, room - front[stage, at]
                        expected[stage, at] += 1
                    # Behind dense layers that did not fit no body layer can follow.
                    if not left:
                        expected[stage, at] += room // slope[stage, at]
            assert search.most_layers(peak).tolist() == expected.tolist()


def test_layers_that_lie_on_the_host_whole_have_a_least_peak() -> None:
    rules = TrainingRules(
        framework=TRANSFORMERS,
        parameter_shard=True,
        gradient_shard=True,
        inputs_on_host=True,
        optimizer=OptimizerStates(0, moments_bytes=8, reduced_bytes=2, host_share=1.0, host_updates=True),
    )
    strategy = Strategy(8, 1, 1, op=8, sp=False)
    assert lightest_layers(Registry.load().model("qwen3-8b"), strategy, rules) == [36]
