"""Settings, sizes and switches of small runs: what they hold where a launcher says nothing, and what follows."""

from __future__ import annotations

import itertools
from pathlib import Path

from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, ProfiledSteps, RunSetting, Switch
from taylor.pipeline.plan import PipelinePlan

DEGREES = ("tp", "cp", "ep", "pp", "dp", "mbs", "seq", "experts", "layers", "dense")


def test_a_setting_that_says_nothing_splits_nothing_and_has_no_dense_layer_ahead() -> None:
    single = RunSetting()
    assert {name: getattr(single, name) for name in (*DEGREES, "vpp")} == {
        **dict.fromkeys(DEGREES, 1), "vpp": 1, "dense": 0,
    }  # fmt: skip
    assert single.ranks == 1


def test_ranks_are_those_of_every_split_that_has_ranks_of_its_own() -> None:
    for tp, cp, pp, dp in itertools.product((1, 2, 3), repeat=4):
        run = RunSetting(tp=tp, cp=cp, pp=pp, dp=dp, ep=4, mbs=5, vpp=2)
        assert run.ranks == len(list(itertools.product(range(tp), range(cp), range(pp), range(dp))))


def test_differences_name_each_size_that_differs_with_both_values() -> None:
    one = RunSetting(*range(2, 13))
    assert one.differences(one) == ""
    for changed in itertools.combinations(DEGREES, 2):
        other = one.replace(**{name: getattr(one, name) + 10 for name in changed})
        told = [f"{name} {getattr(one, name)} -> {getattr(one, name) + 10}" for name in DEGREES if name in changed]
        assert one.differences(other) == ", ".join(told)


def test_sizes_that_a_file_does_not_restrict_leave_every_small_run_open() -> None:
    sizes = JobSizes(RunSetting(), 8)
    assert (sizes.top_k, sizes.expert_groups, sizes.cp_ways) == (1, 1, 0)
    assert (sizes.nodes, sizes.per_node, sizes.batch) == (None, None, None)
    assert sizes.hidden_reduction is False and sizes.dense_together is False


def test_the_smallest_model_has_a_layer_of_each_kind() -> None:
    for dense, layers in itertools.product(range(4), (4, 61)):
        sizes = JobSizes(RunSetting(layers=layers, dense=dense), 8)
        kinds = {"dense"[: at < dense] for at in range(layers)}
        assert sizes.least_layers == len(kinds) and sizes.least_dense == len(kinds) - 1


def test_a_switch_is_on_where_its_degrees_are_split_and_none_is_on_that_excludes_it() -> None:
    plain = Switch("a", "--a")
    assert (plain.on, plain.stays, plain.above, plain.apart) == (False, False, (), ())
    assert plain.may_be_on(RunSetting()) and plain.may_be_on(RunSetting(), ("b", "c"))
    switch = Switch("a", "--a", above=("tp", "cp"), apart=("b", "c"))
    for tp, cp in itertools.product((1, 2, 3), repeat=2):
        for others in ((), ("b",), ("d",), ("d", "c"), ("a",)):
            split = tp != 1 and cp != 1
            assert switch.may_be_on(RunSetting(tp=tp, cp=cp), others) == (split and others not in (("b",), ("d", "c")))


def test_a_planned_job_changes_nothing_that_it_does_not_name() -> None:
    job = PlannedJob(PipelinePlan({"dense": ((1,),)}, {}))
    assert (job.switches, job.batch) == ((), None)


def test_machines_and_profiled_steps_count_cards_and_steps() -> None:
    for nodes, cards in itertools.product((1, 2, 5), (1, 8)):
        machines = Machines(nodes, cards)
        assert machines.ranks == sum(cards for _ in range(nodes))
        assert (machines.master_addr, machines.master_port, machines.node_rank) == (None, None, None)
    for first, count in itertools.product(range(4), (1, 2, 3)):
        profiled = list(range(first, ProfiledSteps(Path("x"), count, first).iterations))
        assert len(profiled) == count
    assert ProfiledSteps(Path("x")).iterations == 10
