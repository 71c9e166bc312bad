"""Runs that are recorded by hand: their bytes, the collectives of their gradients, the groups of the others."""

from __future__ import annotations

from typing import Any

import pytest

from taylor.blackbox.blocks import Condition, LawfulOperator
from taylor.blackbox.collective_lines import ALL_REDUCE, TRANSFER, Collective
from taylor.blackbox.group_laws import (
    GROUPS,
    LawfulCollective,
    buffer_of,
    data_parallel,
    expert_data_parallel,
    kind_of,
    lawful_collective,
)
from taylor.blackbox.laws import Fitter
from taylor.blackbox.recorded import RecordedRun, _in_order
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.profiles.transfers import Transfer
from taylor.parsers.small_run import RunLog, RunSetting

LOG = RunLog({}, None, None)


def run_of(setting: RunSetting, parameters: dict[str, dict[str, int]], *sent: tuple[str, str, int]) -> RecordedRun:
    """A run with collectives: kind, group, bytes."""
    samples = [OperatorSample(Operator(kind, "HCCL"), 10 * at, 5, 0, f"c{at}") for at, (kind, _, _) in enumerate(sent)]
    transfers = {f"c{at}": Transfer(group, size, 4.0) for at, (_, group, size) in enumerate(sent)}
    return RecordedRun(setting, tuple(samples), transfers, (), RunLog(parameters, None, None))


def test_a_run_begins_with_what_is_there_before_its_first_tensor():
    first, later = Allocation("a", 300, 50, None, 1000), Allocation("b", 10, 60, 70, 1010)
    weights = Allocation("w", 40, 20, None, 900)

    def shown(own: Any, weights: Any = (), peak: int | None = None) -> RecordedRun:
        return RecordedRun(RunSetting(), (), {}, own, RunLog({}, peak, None), (), weights)

    assert shown((first, later)).start_bytes == 700 and shown((first, later), (weights,)).start_bytes == 860
    assert shown((first,), (Allocation("w", 40, 55, None, 900),)).start_bytes == 700
    assert shown(()).start_bytes == 0 and shown((), (weights,)).start_bytes == 860
    # The log's peak counts where it is more, and alone where no tensor was recorded.
    assert shown((first, later)).peak_bytes == 1010 and shown((first,), (weights,), 1200).peak_bytes == 1200
    assert shown((later,), (Allocation("w", 1, 1, 2, 5000),), 1200).peak_bytes == 5000
    assert shown((), (), 77).peak_bytes == 77 and shown(()).peak_bytes == 0 and shown((), (weights,)).peak_bytes == 0


@pytest.mark.parametrize(
    ("kind", "times", "each"),
    [("hcom_reduceScatter_", 1, 4), ("hcom_allGather_", 1, 2), ("hcom_allReduce_", 2, 4), ("hcom_allGather_", 1, 1)],
)
def test_collectives_that_send_each_parameter_once_are_gradients(kind, times, each):
    setting = RunSetting(tp=2, cp=2, dp=4, ep=2, experts=4, layers=3, dense=1)
    parameters = {"layer": {"w": 1 << 20, "v": 1 << 18}, "dense": {"w": 1 << 19}, "embedding": {"e": 1 << 21}}
    elements = [*[1 << 20, 1 << 18] * 2, 1 << 19, 1 << 21]
    for ranks, stride in ((8, 2), (4, 4)):
        sent = [round(each * times * size * (ranks - 1) / ranks) for size in elements]
        run = run_of(setting, parameters, *((kind, "g", size) for size in sent), ("hcom_alltoallv_", "g", sent[0]))
        assert run.gradients == {kind: each} and len(run.gradient_samples) == 6 and len(run.kept_samples) == 1
        assert run.group_of(run.samples[0]) == (ranks, stride) and run.group_of(run.samples[-1]) is None
        # One tensor that is sent once more is a tensor of tokens.
        again = run_of(setting, parameters, *((kind, "g", size) for size in (*sent, sent[0])))
        assert not again.gradients and len(again.kept_samples) == 7
        # Those of another group of ranks are others.
        two = run_of(setting, parameters, *((kind, "g", size) for size in sent), *((kind, "h", sent[0]),) * 4)
        assert two.gradients == {kind: each} and len(two.kept_samples) == 4


def test_gradients_go_over_dp_alone_too_and_of_sharded_weights_there_are_none():
    setting, parameters = RunSetting(cp=2, dp=4), {"layer": {"w": 1 << 20}}
    sent = 4 * (1 << 20) * 3 // 4
    run = run_of(setting, parameters, ("hcom_reduceScatter_", "g", sent))
    assert run.group_of(run.samples[0]) == (4, 2)
    alone = run_of(RunSetting(), parameters, ("hcom_reduceScatter_", "g", sent))
    assert not alone.gradients  # Over one rank nothing is sent.
    weights = (OperatorSample(Operator("nccl:allgather"), 0, 1, 0, "w"),)
    sharded = RecordedRun(setting, run.samples, run.transfers, (), run.log, weights)
    assert not sharded.gradients and run.waited_ns(run.samples[0]) == 1


def test_collectives_at_the_same_time_stand_in_the_order_of_their_types():
    def order(*each: tuple[str, int, int]) -> str:
        samples = [OperatorSample(Operator(kind), start, took, 0) for kind, start, took in each]
        return "".join(one.operator.type for one in _in_order(samples))

    assert order(("b", 0, 10), ("a", 9, 10)) == "ab" and order(("b", 0, 10), ("a", 10, 10)) == "ba"
    assert order(("c", 0, 30), ("b", 5, 30), ("a", 9, 10)) == "abc" and order(("a", 0, 9), ("b", 0, 9)) == "ab"
    assert order(("c", 0, 5), ("b", 4, 30), ("a", 9, 10)) == "bca"  # The first ends before the last begins.
    assert order(("b", 20, 5), ("a", 0, 9)) == "ab" and order(("a", 0, 9), ("a", 3, 9)) == "aa"


def test_kinds_and_buffers_are_those_of_rings():
    assert [kind_of(name) for name in ("hcom_allReduce_", "hcom_Send_", "RECEIVE", "hcom_allGather_")] == [
        ALL_REDUCE, TRANSFER, TRANSFER, "hcom_allGather_",
    ]  # fmt: skip
    assert (buffer_of("gather", 4, 300), buffer_of(ALL_REDUCE, 4, 300), buffer_of(TRANSFER, 4, 300)) == (400, 200, 300)
    run = RunSetting(tp=2, cp=4, ep=8, dp=16, replicas=2)
    assert {name: ranks(run) for name, ranks in GROUPS.items()} == {
        "tp": (2, 1), "cp": (4, 2), "ep": (8, 2), "tp and cp": (8, 1), "tp and ep": (16, 1),
    }  # fmt: skip
    assert data_parallel(run) == (32, 2) and expert_data_parallel(run) == (4, 16)
    # Of n ranks each sends n - 1 pieces, of an all-reduce twice.
    assert Collective("gather", 4, 1, 400).work == (1, 3, 300) and Collective(ALL_REDUCE, 4, 1, 400).work == (1, 6, 600)
    assert Collective(TRANSFER, 4, 1, 400).work == (1, 1, 400)


def collective(condition: Condition | None, runs: list[RunSetting], sizes: dict[int, int]) -> LawfulCollective | None:
    operator = LawfulOperator(Operator("hcom_allGather_"), condition, dict.fromkeys(sizes, 0), (), ())
    return lawful_collective(operator, list(sizes.values()), runs)


def test_the_group_of_a_collective_is_the_one_under_which_its_buffers_have_a_law():
    runs = [RunSetting(tp=tp, cp=cp, seq=4096, dp=4) for tp, cp in ((2, 2), (4, 2), (2, 4), (1, 2), (2, 1))]

    def sent(ranks: int, number: int, whole: int) -> int:
        return whole * (ranks - 1) // ranks

    over_tp = {at: sent(run.tp, at, 4096 * 64 // run.cp) for at, run in enumerate(runs) if run.tp > 1}
    found = collective(Condition((("tp", True),)), runs, over_tp)
    assert found is not None and found.group == "tp" and str(found.buffer.laws[0]) == "262144 · cp^-1"
    assert found.at(RunSetting(tp=8, cp=2, seq=4096)) == Collective("hcom_allGather_", 8, 1, 64 * 2048)
    over_cp = {at: sent(run.cp, at, 4096 * 64) for at, run in enumerate(runs) if run.cp > 1}
    found = collective(Condition((("cp", True),)), runs, over_cp)
    assert found is not None and found.group == "cp"
    assert found.at(RunSetting(tp=8, cp=2, seq=4096)) == Collective("hcom_allGather_", 2, 8, 64 * 4096)
    # One that runs where the group is one rank alone, or without a condition, has no group.
    assert collective(Condition(), runs, over_cp) is None and collective(None, runs, over_cp) is None
    # Of groups without an exact law the nearest counts.
    near = {at: size + size // 20 * (at == 1) for at, size in over_cp.items()}
    found = collective(Condition((("cp", True),)), runs, near)
    assert found is not None and found.group == "cp" and 0.04 < found.buffer.spread < 0.06
    open_law = LawfulCollective("k", "cp", Fitter([runs[0]] * 1).fit([4096]), Condition())
    assert open_law.at(RunSetting(cp=4, seq=1)) is None
