"""What scripts really do: loops over CP's ranks, another order under TP, tensors that collectives allocate."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from statistics import median

import pytest

from benchmarks.second_campaign import SecondNetwork
from benchmarks.second_cluster.cluster import Passes, second_cluster
from benchmarks.second_cluster.machine import Clock, tasks_of
from benchmarks.second_cluster.program import Exchange, Kernel, Wait
from benchmarks.tune_campaign import MEMORY_WITHIN, shapes_and_memory
from taylor.blackbox.block_memory import TURN, BlockTrace
from taylor.blackbox.blocks import RunOperators, lawful_operators
from taylor.blackbox.host_pace import HostPace
from taylor.blackbox.law_summary import law_summary, laws_as_data
from taylor.blackbox.laws import Fitter
from taylor.blackbox.memory_fit import memory_laws
from taylor.blackbox.memory_laws import RunMemory
from taylor.blackbox.small_runs import (
    MOST_RUNS,
    SmallRun,
    candidate_runs,
    plan_small_runs,
    start_runs,
    substitute,
)
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import JobSizes, Machines, RunSetting
from taylor.workflows.tuning.tune_search import TunedLaws

BASE = RunSetting(tp=2, cp=2, seq=8192, dp=4)
SIZES = JobSizes(replace(BASE, layers=32), tp_ways=8, nodes=2, per_node=8)
SETTINGS = [BASE, *(BASE.replace(**change) for change in ({"tp": 4}, {"tp": 1}, {"cp": 4}, {"cp": 1}, {"seq": 4096}))]


def operator(kind: str, *output: int) -> Operator:
    return Operator(kind, "AI_CORE", (), (), (output,))


def ring(run: RunSetting) -> RunOperators:
    """Attention to the own keys, then a turn for each other rank of CP."""
    rows = run.seq // run.cp
    turn = [operator("Flash", rows // 2, 4096 // run.tp), operator("Update", rows, 4096 // run.tp)]
    order = [operator("Norm", rows, 4096), operator("Flash", rows, 4096 // run.tp), *turn * (run.cp - 1)]
    return RunOperators(run, (*order, operator("Gelu", rows, 8192 // run.tp)))


def test_a_loop_over_the_ranks_of_cp_is_counted():
    found = lawful_operators([ring(run) for run in SETTINGS])
    large = RunSetting(tp=8, cp=16, seq=65536)
    shown = [one.at(large) for one in found if not one.repeats for _ in range(one.count.at(large))]
    assert sorted(shown) == sorted(ring(large).operators)
    assert {str(one.count) for one in found if one.like.type == "Update" and not one.repeats} == {"cp - 1"}


def test_the_second_cluster_plays_a_record_as_its_events_one_by_one():
    cluster = second_cluster(3)
    run = RunSetting(tp=2, cp=2, ep=2, seq=8192, experts=cluster.design.experts, dp=4)
    passes = Passes(cluster.design, run, (("layer", True), ("head", False)), (False, True))
    passes.forward()
    passes.backward()
    whole, single = Clock(cluster.machine, run), Clock(cluster.machine, run)
    for one in passes.rank.events:
        if isinstance(one, Kernel):
            single.kernel(one)
        elif isinstance(one, Exchange):
            single.exchange(one)
        elif isinstance(one, Wait):
            single.wait()
    single.wait()
    assert whole.play(tasks_of(cluster.machine, run, passes.rank.events)) == single.now > 0


def test_turns_that_one_cp_alone_shows_are_open_and_name_the_run_that_decides():
    runs = [run for run in SETTINGS if run.cp < 4]
    found = lawful_operators([ring(run) for run in runs])
    summary = law_summary(found, candidate_runs(BASE, SIZES, 16), 3)
    assert summary.ambiguous >= 2
    assert summary.deciding[0].setting.cp == 4


@pytest.mark.parametrize(
    ("counts", "at_16", "settled"),
    [
        ({2: 1, 4: 3}, 15, True),
        ({2: 2, 4: 4}, 16, True),
        ({2: 1, 4: 2}, 8, False),  # Or 4, as the logarithm of CP.
        ({2: 3, 4: 4}, 10, False),
        ({2: 2, 4: 3, 8: 5}, 9, True),
    ],
)
def test_two_cps_settle_whole_turns_alone(counts, at_16, settled):
    def passes(run: RunSetting) -> RunOperators:
        rows = run.seq // run.cp
        turns = [operator("Update", rows, 64)] * counts.get(run.cp, 0)
        return RunOperators(run, (operator("Norm", rows, 4096), *turns, operator("Gelu", rows, 8192 // run.tp)))

    runs = [*SETTINGS, BASE.replace(cp=8, tp=1)]
    found = lawful_operators([passes(run) for run in runs if run.cp in {1, *counts}])
    mine = [one for one in found if one.like.type == "Update" and not one.repeats]
    assert sum(one.count.at(BASE.replace(cp=16)) for one in mine) == at_16
    assert all(one.is_counted for one in mine) == settled
    summary = law_summary(found, candidate_runs(BASE, SIZES, 16), 3)
    assert settled or (summary.deciding[0].setting.cp == 8 and summary.ambiguous)


def test_operators_in_another_order_under_tp_keep_one_law_each():
    def swapped(run: RunSetting) -> RunOperators:
        rows = run.seq // run.cp
        query, key = operator("MatMul", rows, 4096 // run.tp), operator("MatMul", rows, 512 // run.tp)
        order = [query, key] if run.tp == 1 else [key, query]
        return RunOperators(run, (operator("Norm", rows, 4096), *order, operator("Flash", rows, 4096 // run.tp)))

    found = lawful_operators([swapped(run) for run in SETTINGS])
    for large in (RunSetting(tp=8, cp=8, seq=32768), RunSetting(tp=1, cp=4, seq=16384)):
        shown = [one.at(large) for one in found if one.condition.is_met(large)]
        assert sorted(shown) == sorted(swapped(large).operators)


def test_two_operators_in_one_place_that_share_no_condition_are_two():
    """A copy where CP is 1 and another where it is above 2: as one operator it would be there for no reason."""

    def crossing(run: RunSetting) -> RunOperators:
        rows = run.seq // run.cp
        copies = [operator("Copy", rows, 4096)] if run.cp != 2 else []
        return RunOperators(run, (operator("Norm", rows, 4096), *copies, operator("Gelu", rows, 8192 // run.tp)))

    settings = [*SETTINGS[:4], BASE.replace(cp=1, tp=4), *SETTINGS[5:]]
    found = lawful_operators([crossing(run) for run in settings])
    assert {str(one.condition) for one in found if one.like.type == "Copy"} == {"cp > 2", "cp = 1"}
    for large in (RunSetting(tp=8, cp=8, seq=32768), RunSetting(tp=2, cp=2, seq=32768), RunSetting(tp=8, seq=32768)):
        shown = [one.like.type for one in found if one.condition.is_met(large)]
        assert shown == [one.type for one in crossing(large).operators]


def test_a_padded_vocabulary_times_other_sizes_follows_one_law():
    runs = [*SETTINGS, BASE.replace(tp=8)]
    sizes = [-(-45_373 // (128 * run.tp)) * 128 * run.seq // run.cp * 2 for run in runs]
    fit = Fitter(runs).fit(sizes)
    large = RunSetting(tp=16, cp=4, seq=32768)
    assert fit.settled and fit.at(large) == -(-45_373 // (128 * 16)) * 128 * 8192 * 2
    shown = [RunOperators(run, (operator("Logits", size),)) for run, size in zip(runs, sizes, strict=True)]
    (stored,) = laws_as_data(lawful_operators(shown))[0]["outputs"][0][0]["laws"]
    # Who reads the file alone can do the same: rows times the shard, which is rounded up.
    rows, whole, others = Fraction(stored["rows"]), Fraction(stored["coefficient"]), stored["powers"]
    assert others == {"tp": -1, "cp": -1, "seq": 1}
    assert rows * math.ceil(whole / 16) * large.seq / large.cp == fit.at(large)


def test_a_tensor_lives_as_long_as_runs_show_under_each_condition():
    def trace(run: RunSetting) -> RunMemory:
        # Under TP the sum of ranks is a tensor of its own, and the part is freed before the next one.
        rows = run.seq // run.cp
        sizes = {"input": 512, "part": rows * 8192, "next": rows * 8192 // run.tp}
        events = ["+input", "+part"]
        if run.tp > 1:
            sizes["sum"] = rows * 8192 // run.tp
            events += ["+sum", "-part", "+next", "-sum", "-next"]
        else:
            events += ["+next", "-part", "-next"]
        block = BlockTrace(sizes, (*events, TURN, "-input"), "input")
        weights = {"layer": {"w": 1 << 20}}
        return RunMemory(run, (("layer", True),), 1, weights, 0, 10 << 20, {"layer": block}, 10 << 20)

    laws = memory_laws([trace(run) for run in SETTINGS])
    for tp, most in ((1, 2.0), (4, 1.25)):
        run = RunSetting(tp=tp, cp=2, seq=16384)
        assert laws.micro_batch(run, ("layer", False))[1] == pytest.approx(512 + most * 8192 * 8192)


def test_a_tensor_may_live_longer_without_further_turns_and_longest_without_tp():
    def trace(run: RunSetting) -> RunMemory:
        sizes = {"input": 512, "key": 4096, "next": 10, "wide": 10, "first": 10, "second": 4000}
        kept, early, late = run.cp <= 2, run.tp > 1, run.tp == 1
        events = ["+input", "+key", "+next", *["-key"] * (not kept), "+wide", "-next", "-wide", TURN, "+first"]
        events += [*["-key"] * (kept and early), "+second", *["-key"] * (kept and late), "-first", "-second", "-input"]
        block = BlockTrace(sizes, tuple(events), "input")
        return RunMemory(run, (("layer", True),), 1, {"layer": {"w": 1}}, 0, 1 << 20, {"layer": block}, 1 << 20)

    laws = memory_laws([trace(run) for run in (*SETTINGS, BASE.replace(tp=1, cp=4))])
    expected = {(1, 2): (4608, 8618), (8, 2): (4608, 4628), (1, 8): (512, 4618), (8, 8): (512, 4618)}
    for (tp, cp), figures in expected.items():
        assert laws.micro_batch(RunSetting(tp=tp, cp=cp, seq=16384), ("layer", False)) == figures


def test_a_tensor_that_is_given_back_late_sees_as_many_allocations_where_others_are_missing():
    def trace(run: RunSetting, late: int, cp: bool, seq: bool) -> RunMemory:
        # Of four allocations after its use a run has the two of CP or of none, and the largest always.
        after = [("exchanged", 10)] * cp + [("short", 10)] * seq + [("large", 4000), ("last", 10)]
        events = ["+input", "+lent"]
        for number, (name, _) in enumerate(after):
            events += [f"+{name}", *["-lent"] * (number + 1 == late)]
        events += [f"-{name}" for name, _ in after]
        block = BlockTrace({"input": 512, "lent": 1000, **dict(after)}, (*events, TURN, "-input"), "input")
        return RunMemory(run, (("layer", True),), 1, {"layer": {"w": 1}}, 0, 1 << 20, {"layer": block}, 1 << 20)

    # Where runs lack nothing it is given back up to two allocations late, before the largest one.
    shown = [trace(run, 1 + number % 2, True, True) for number, run in enumerate(SETTINGS) if run.cp > 1]
    shown += [trace(run, 1, False, True) for run in SETTINGS if run.cp == 1]
    run = RunSetting(tp=2, cp=1, seq=8192)
    assert memory_laws(shown).micro_batch(run, ("layer", False))[1] == 512 + 1000 + 10 + 4000


def test_a_host_that_is_slower_than_short_operators_sets_their_pace_alone():
    pace = HostPace(pause=1.0, usual=10.0)
    assert pace.passes_ns([("a", 2.0)] * 20) == pytest.approx(200)
    assert pace.passes_ns([("a", 50.0)] * 20) == pytest.approx(1020)
    mixed = [("a", 2.0)] * 10 + [("b", 500.0)] + [("a", 2.0)] * 10
    # Behind the long one the host is ahead: the device alone sets the time.
    assert pace.passes_ns(mixed) == pytest.approx(20 * 3 + 501)


def test_another_run_takes_the_place_of_one_that_failed():
    planned = plan_small_runs(SIZES, Machines(2, 8)).runs
    for run in planned[1:]:
        other = substitute(run, planned, SIZES, 16)
        assert other is not None and other.setting not in {each.setting for each in planned}
        assert other.setting.ranks == 16 and other.name.startswith(run.name)
        base = planned[0].setting
        changed = [
            name
            for name in ("tp", "cp", "pp", "mbs", "seq", "layers")
            if getattr(run.setting, name) != getattr(base, name)
        ]
        assert changed and all(getattr(other.setting, name) != getattr(base, name) for name in changed)


@pytest.mark.parametrize(("heads", "name", "cp"), [(32, "tp8", 2), (40, "tp8_cp1", 1)])
def test_tp_of_a_whole_node_has_a_run_where_heads_do_not_split_over_cp_too(heads, name, cp):
    """Without it nothing shows how sizes are padded there, nor any link between nodes."""
    ulysses = replace(SIZES, cp_ways=heads)
    found = plan_small_runs(ulysses, Machines(2, 8))
    (run,) = [one for one in found.runs if one.setting.tp == 8]
    assert (run.name, run.setting.cp, run.setting.ranks) == (name, cp, 16) and not found.left_out


@pytest.mark.parametrize(
    ("planned", "fail", "started"), [(4, 1, 5), (4, 2, 6), (4, 3, 4), (MOST_RUNS - 1, 2, MOST_RUNS + 1)]
)
def test_failed_runs_have_others_in_their_place_where_most_end_well(planned, fail, started):
    runs = [SmallRun(f"seq{at}", BASE.replace(seq=4096 * (at + 1)), "") for at in range(planned)]
    failing = {one.name for one in runs[1 : fail + 1]}
    found = start_runs(runs, lambda run: run.name, failing.__contains__, SIZES, 16)
    assert len(found) == len(set(found)) == started and found[:planned] == [one.name for one in runs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "ring", "dense"), [(2, True, 0), (3, True, 0), (5, False, 2), (9, False, 3), (60, False, 0)]
)
def test_another_authors_networks_are_predicted(seed, ring, dense, tmp_path):
    cluster = second_cluster(seed)
    assert (cluster.design.ring, cluster.design.dense) == (ring, dense)
    network = SecondNetwork(cluster, tmp_path)
    laws = TunedLaws(network.small_runs(), network.launcher, network.sizes, network.options(False))
    found = shapes_and_memory(cluster, laws, seed, stages=20)
    assert found["operators_exact"] == found["operators"]
    assert found["memory_worst"] <= MEMORY_WITHIN and not found["false_fits"]
    assert median(one.error for one in laws.own_runs()) < 0.02


def test_a_run_with_a_layer_more_may_stand_anywhere_among_the_runs():
    def passes(run: RunSetting) -> RunOperators:
        rows = run.seq // run.cp
        layer = [operator(kind, rows, 4096 // run.tp) for kind in ("Norm", "MatMul", "Cast", "Mul", "Add")]
        if run.tp == 1:
            layer = [*layer[3:], *layer[:3]]
        return RunOperators(run, (operator("Lookup", rows, 4096), *layer * run.layers, operator("Head", rows, 512)))

    more, later = BASE.replace(layers=2), BASE.replace(tp=1, seq=4096)
    for runs in ([*SETTINGS, later, more], [*SETTINGS, more, later], [more, *SETTINGS, later]):
        found = lawful_operators([passes(run) for run in runs])
        assert all(one.condition is not None for one in found), runs
        for tp in (1, 8):
            large = RunSetting(tp=tp, cp=8, seq=32768)
            shown = [one.at(large) for one in found if one.condition.is_met(large)]
            assert sorted(shown) == sorted(passes(large).operators)
