"""The memory of large stages from the tensors of small runs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.standin_memory import WITHIN, HiddenMemory, campaign, hidden_memory, large
from benchmarks.standin_network import CARDS, JOB, HiddenSize
from taylor.base.errors import InputError
from taylor.blackbox.block_memory import TURN, BlockTrace
from taylor.blackbox.memory_fit import memory_laws
from taylor.blackbox.memory_laws import LEAST_MARGIN, RunMemory
from taylor.blackbox.small_runs import plan_small_runs
from taylor.blackbox.stage_problem import BlockTimes, stage_problem
from taylor.parsers.small_run import RunSetting

LARGE = RunSetting(8, 4, 16, 1, 32768, 64, 61, 16, 2)


def test_the_peaks_of_large_stages_are_near_and_none_is_falsely_said_to_fit():
    errors, false_fits, missed = campaign(networks=4, configurations=25, seed=7)
    assert max(map(abs, errors)) < WITHIN
    assert false_fits == 0 and missed < len(errors) / 4


def test_a_changed_network_is_foretold_as_well():
    hidden = hidden_memory(3)
    layer = hidden.blocks["layer"]
    wider = [replace(one, size=replace(one.size, number=2 * one.size.number)) for one in layer.parameters]
    added = replace(layer.parameters[-1], name="my_module", size=HiddenSize(999 * 1000))
    changed = HiddenMemory(
        hidden.seed,
        {**hidden.blocks, "layer": replace(layer, parameters=(*wider, added))},
        hidden.sharded,
        hidden.rest,
        hidden.step_bytes,
    )
    laws, draw = changed.laws(), random.Random(3)
    for _ in range(10):
        run, stage, in_flight = large(draw)
        assert laws.stage(run, stage, in_flight).peak == pytest.approx(changed.peak(run, stage, in_flight), rel=WITHIN)


def test_layers_that_run_again_keep_less_and_more_micro_batches_keep_more():
    laws = hidden_memory(5).laws()
    again, kept = [("layer", True)] * 4, [("layer", False)] * 4
    assert laws.stage(LARGE, again, 4).peak < laws.stage(LARGE, kept, 4).peak < laws.stage(LARGE, kept, 8).peak
    assert laws.stage(LARGE, again, 4).static == laws.stage(LARGE, kept, 4).static


def test_a_tensor_without_a_law_is_named_and_its_stage_never_said_to_fit():
    hidden, draw = hidden_memory(5), random.Random(1)
    runs = [one for run in plan_small_runs(JOB, CARDS).runs for one in hidden.small(run.setting)]
    for one in runs:
        trace = one.traces["layer"]
        lawless = {**trace.sizes, "layer0": draw.randint(1, 10**9)}
        one.traces["layer"] = replace(trace, sizes=lawless)
    stage = memory_laws(runs).stage(LARGE, [("layer", True)], 1)
    assert stage.unsure == ("layer.layer0",) and not stage.fits(float("inf"))


def test_a_block_that_no_run_had_is_refused():
    with pytest.raises(InputError, match="was in no small run"):
        hidden_memory(5).laws().stage(LARGE, [("vision", True)], 1)
    with pytest.raises(InputError, match="missing"):
        memory_laws([])


def test_optimizer_of_experts_that_tp_does_not_split_is_found_sharded_over_tp_too():
    trace = {"layer": BlockTrace({"input": 512}, ("+input", TURN, "-input"), "input")}

    def shown(run: RunSetting) -> RunMemory:
        dense, expert = 30_000_000 // run.tp, 5_000_000 * (run.experts // run.ep)
        shards = dense // (run.dp * run.cp) + expert * run.ep // (run.tp * run.dp * run.cp)
        elements = {"layer": {"attention": dense, "experts": expert}}
        return RunMemory(run, (("layer", True),), 1, elements, 0, 12 * shards, trace, 0)

    runs = [shown(one.setting) for one in plan_small_runs(JOB, CARDS).runs if one.setting.pp == 1]
    large = RunSetting(tp=8, cp=4, ep=64, seq=16384, experts=64, dp=32)
    peak = memory_laws(runs).stage(large, [("layer", True)], 1)
    assert peak.unsure == ()
    assert peak.static == pytest.approx(shown(large).start, rel=1e-5)  # Shards are whole numbers.


def test_the_margin_is_what_one_more_run_stays_under_at_the_risk_asked_for():
    laws = hidden_memory(1).laws()
    few, many = (replace(laws, risk=risk).margin for risk in (0.001, 0.2))
    own = [one.peak / laws.stage(one.setting, one.blocks, one.in_flight).peak - 1 for one in laws.runs]
    assert few > laws.margin >= many >= LEAST_MARGIN and laws.margin >= max(own)


def test_a_tensor_of_several_laws_has_its_neighbours_in_the_peak_and_the_largest_in_the_upper_limit():
    base = RunSetting(tp=2, cp=2, seq=8192, dp=4)
    changes: tuple[dict[str, int], ...] = ({}, {"tp": 4}, {"tp": 1}, {"cp": 4}, {"cp": 1}, {"seq": 4096}, {"mbs": 2})

    def shown(run: RunSetting, lone: int) -> RunMemory:
        # Without CP alone there is a copy, so that one run shows its size.
        sizes = {"input": 512, "sent": 4096 * run.seq * run.mbs // run.cp}
        sizes |= {"copy": lone} if run.cp == 1 else {}
        events = ("+input", "+sent", *["+copy", "-copy"] * (run.cp == 1), "-sent", TURN, "-input")
        end = BlockTrace({"input": 512}, ("+input", TURN, "-input"), "input")
        traces = {"embedding": end, "layer": BlockTrace(sizes, events, "input"), "head": end}
        return RunMemory(run, (("layer", True),), 1, {"layer": {"w": 1 << 10}}, 0, 0, traces, sum(sizes.values()))

    runs = [base.replace(**change) for change in changes]
    laws = memory_laws([shown(run, 4096 * run.seq) for run in runs])
    large = RunSetting(tp=4, cp=1, seq=32768, dp=4)
    peak, once = laws.stage(large, [("layer", True)], 1), 4096 * large.seq
    assert peak.peak == pytest.approx(2 * once, rel=1e-4)
    # As far as one run shows, the copy may grow with the square of the sequence and with TP.
    assert peak.upper > once + 4 * 2 * once and not peak.fits(3 * once)
    problem = stage_problem(laws, large, BlockTimes(0.0, 1.0, 0.0, 2.0, 0.0), 4, peak.upper)
    assert problem.static_mib[0] > problem.limit_mib[0] - 1
    with_cp = laws.stage(large.replace(cp=2), [("layer", True)], 1)
    assert with_cp.upper == pytest.approx(with_cp.peak * (1 + laws.margin))


def test_a_gradient_stays_while_a_layer_runs_its_forward_pass_again():
    sizes = {"input": 512, "wide": 1 << 20, "carried 7": 1 << 18, "narrow": 1 << 10}
    backward = ("+carried 7", "+narrow", "-narrow", "-carried 7", "-input")
    trace = BlockTrace(sizes, ("+input", "+wide", "-wide", TURN, *backward), "input")
    changes: tuple[dict[str, int], ...] = ({}, {"tp": 2}, {"seq": 2})
    runs = [
        RunMemory(RunSetting(**one), (("layer", True),), 1, {"layer": {"w": 1}}, 0, 0, {"layer": trace}, 0)
        for one in changes
    ]
    laws = memory_laws(runs)
    assert laws.micro_batch(RunSetting(), ("layer", False))[1] == 512 + (1 << 20)
    assert laws.micro_batch(RunSetting(), ("layer", True))[1] == 512 + (1 << 20) + (1 << 18)


def test_an_end_late_by_chance_is_no_matter_of_three_degrees():
    # What would explain these ends is whether CP, EP and the micro-batch are above one.
    late = {(2, 2, 1): 1, (2, 2, 2): 2, (2, 1, 1): 2, (1, 2, 1): 0, (1, 1, 1): 0, (1, 2, 2): 0, (2, 1, 2): 2}

    def shown(run: RunSetting, after: int) -> RunMemory:
        sizes = {"input": 512, "lent": 1 << 20} | {f"own{number}": 1 << 19 for number in range(4)}
        events = ["+input", TURN, "+lent"]
        for number in range(4):
            events += [f"+own{number}", *["-lent"] * (number == after), f"-own{number}"]
        trace = BlockTrace(sizes, (*events, "-input"), "input")
        return RunMemory(run, (("layer", True),), 1, {"layer": {"w": 1}}, 0, 0, {"layer": trace}, 0)

    runs = [shown(RunSetting(cp=cp, ep=ep, mbs=mbs, experts=2, dp=2), after) for (cp, ep, mbs), after in late.items()]
    (lent,) = (life for life in memory_laws(runs).blocks["layer"].lives if life.name == "lent")
    assert len(lent.ends) == 1 and lent.ends[0].late == 2
