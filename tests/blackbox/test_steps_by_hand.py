"""Passes that stand twice, blocks' events, and times of stages, written down by hand."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taylor.base.errors import InputError
from taylor.blackbox.block_memory import TURN
from taylor.blackbox.blocks import Condition, CountLaw, LawfulOperator
from taylor.blackbox.collective_lines import Collective
from taylor.blackbox.host_pace import HostPace
from taylor.blackbox.laws import Fitter
from taylor.blackbox.memory_laws import MemoryLaws, PredictedPeak
from taylor.blackbox.operator_speed import Estimate
from taylor.blackbox.passes import MOST_STARTS, PassPart, _inserted, _passes, _squares, follows_tokens
from taylor.blackbox.recorded import RecordedRun
from taylor.blackbox.sharded_weights import GroupTimes
from taylor.blackbox.stage_problem import (
    MIB,
    AgainTimes,
    BlockTimes,
    even_stages,
    layer_counts,
    stage_blocks,
    stage_peaks,
    stage_problem,
)
from taylor.blackbox.step_laws import StepLaws, Time
from taylor.blackbox.tensor_traces import _crossing, _given, _late, _layer, _most, _Stretch, _stretches, _trace, _turned
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.profiles.transfers import Transfer
from taylor.parsers.small_run import RunLog, RunSetting
from taylor.pipeline.plan import PipelinePlan

ALWAYS = Condition()


def test_stretches_that_stand_twice_are_found_the_longest_first():
    assert [(one.length, one.starts) for one in _squares("xababy")] == [(2, (1,))]
    assert [(one.length, one.starts) for one in _squares("xababay")] == [(2, (1, 2))]
    assert [(one.length, one.starts) for one in _squares("aab")] == [(1, (0,))] and _squares("abc") == []
    assert [(one.length, one.starts) for one in _squares("abcabc")] == [(3, (0,))]
    (most,) = [one.starts for one in _squares("ab" * 10) if one.length == 2]
    assert most == tuple(range(12)) and MOST_STARTS == 12
    front, back = _passes("xababyabcdabcdz")
    assert (front.length, front.starts, back.length, back.starts) == (2, (1,), 4, (6,))
    # The first may end just where the second begins, and may be one operator.
    assert _passes("aabcbc")[0].starts == (0,) and _passes("aaxbcbc")[0].length == 1
    for lacking in ("abcabc", "abcabcxx", "abc"):
        with pytest.raises(InputError, match="do not show a layer's two passes"):
            _passes(lacking)


def test_a_dense_layers_passes_are_what_one_run_has_twice_around_the_layers():
    assert _inserted("edDLLxYye", "edDdDLLxYyxYye", 3, 5, 8) == (2, 3)
    assert _inserted("edLYe", "eddLYYe", 2, 3, 4) == (1, 1)
    assert _inserted("edLYe", "edxLYYe", 2, 3, 4) is None and _inserted("edLYe", "fddLYYe", 2, 3, 4) is None
    # The backward pass is no shorter than the forward pass, and what is behind it stays.
    assert _inserted("edLYZe", "eddLYZYZe", 2, 3, 5) == (1, 2) and _inserted("edLYZe", "eddLYYZe", 2, 3, 5) == (1, 1)
    assert _inserted("LYe", "LLYYe", 0, 1, 2) is None


def test_operators_follow_tokens_by_their_first_laws():
    runs = [RunSetting(seq=seq, mbs=mbs) for seq, mbs in ((1, 1), (2, 1), (1, 2))]
    fits = {
        name: Fitter(runs).fit(sizes)
        for name, sizes in {"fixed": (8, 8, 8), "seq": (8, 16, 8), "mbs": (8, 8, 16)}.items()
    }

    def follows(*names: str, kind: str = "Gelu") -> bool:
        shape = tuple(fits[name] for name in names)
        return follows_tokens(LawfulOperator(Operator(kind, "AI_CORE"), ALWAYS, {}, (shape,), ()))

    assert (
        [follows(name) for name in fits] == [False, True, True]
        and follows("fixed", "mbs")
        and not follows("fixed", "fixed")
    )
    assert follows("fixed", kind="hcom_allGather_")


def stretch(events: str, carried: str = "", left: str = "", kept: str = "") -> _Stretch:
    each = events.split()
    sizes = {name[1:]: 10 ** int(name[1:]) for name in each if name[0] == "+"}
    return _Stretch(each, sizes, {f"carried {one}": 7 for one in carried.split()}, left.split(), kept.split())


def test_a_layers_second_forward_pass_ends_where_as_many_tensors_were_allocated_as_in_the_first():
    given = _Stretch(["+0", "-carried 9", "+1", "-0", "+2", "-3"], {}, {"carried 9": 7}, ["1", "2"], [])
    assert _turned(given, 2) == (["+0", "+1", "-0"], ["+carried 9", "-carried 9", "+2", "-3", "-1", "-2"])
    assert _turned(given, 3) == (given.events, ["-1", "-2"]) and _turned(given, 0)[0] == []


def test_a_blocks_trace_has_its_input_its_turn_and_what_it_gives_on():
    one = _trace(5, ["+1"], ["-1"], stretch("+1 -1", carried="4"))
    assert one.sizes == {"input": 5, "1": 10, "carried 4": 7} and one.kept_input == "input"
    assert one.events == ("+input", "+1", TURN, "-1", "-input")
    assert _given(stretch("+1 +2", left="1 2", kept="2")) == ["-1"] and _late(stretch("", kept="2 3")) == ["-2", "-3"]
    layer = _layer(stretch("+1 +2 -1", left="2"), stretch("+3 +4 -3", carried="8", left="4"))
    assert layer.sizes["input"] == 100 and layer.events == ("+input", "+3", "+4", "-3", TURN, "-4", "-input")
    assert _most(stretch("+1 +2 -1 +1 -2 -1")) == 110 and _most(stretch("")) == 0 and _most(stretch("+2 -2 +1")) == 100
    parts = {PassPart.FORWARD: stretch("+1", left="1", carried="5"), PassPart.HEAD: stretch("+2", left="2"),
             PassPart.DENSE: stretch("+1", left="1"), PassPart.AFTER: stretch("+3", left="3"),
             PassPart.STEP: stretch("+3", left="3"), None: stretch("+3", left="3")}  # fmt: skip
    # What crosses a border counts once, what remains of a layer twice; behind the layers nothing does.
    assert _crossing(parts) == (10 + 10) + (7 + 10) + 100 + 10


def test_nothing_of_the_step_comes_before_the_micro_batch_is_done():
    runs = [RunSetting(seq=seq) for seq in (1, 2)]
    tokens, fixed = Fitter(runs).fit([8, 16]), Fitter(runs).fit([8, 8])
    tensors = [LawfulOperator(Operator("t", "tensor"), ALWAYS, {0: at}, (), ((fit,),))
               for at, fit in enumerate((tokens, fixed, fixed, fixed))]  # fmt: skip
    times = ((0, 100), (50, 60), (70, 80), (150, None))
    allocations = [Allocation("t", 8, start, end, 0) for start, end in times]
    parts = (PassPart.FORWARD, PassPart.STEP, PassPart.BACKWARD, PassPart.STEP)
    found = _stretches(allocations, tensors, parts, 0)
    assert {part and part.name: each.events for part, each in found.items()} == {
        "FORWARD": ["+0"], "BEFORE": ["+1", "-1"], "BACKWARD": ["+2", "-2"], "STEP": ["+3"],
    }  # fmt: skip
    # Behind the backward pass it is the embedding's.
    later = _stretches([*allocations[:3], Allocation("t", 8, 90, 95, 0)], tensors, parts, 0)
    assert later[PassPart.AFTER].events == ["+3", "-3", "-carried 0"] and PassPart.STEP not in later


RUN = RunSetting(tp=2, cp=2, seq=8192, dp=4)


class Laws(StepLaws):
    """Operators of 100 ns a letter of their type, 10 % uncertain; collectives of 1 ns a byte, 20 %."""

    def __init__(self, **parts: list[LawfulOperator]) -> None:
        self._least, self.pace, self.weights, self.modules = 1, HostPace(0.0), None, {}
        self._order = defaultdict(list, {PassPart[name]: list(each) for name, each in parts.items()})
        self._known, self._block_times, self.hidden_reduction = {}, {}, False
        self._update, self.gradients = (1000.0, 2.0, 3.0), {"hcom_reduceScatter_": 4.0, "hcom_allGather_": 2.0}
        self.memory = cast(MemoryLaws, SimpleNamespace(
            elements=lambda run, names: (80.0 * names.count("layer"), 16.0 * names.count("layer")),
            micro_batch=lambda run, block: ((100.0, 0.0) if block[1] else (999.0, 0.0)),
        ))  # fmt: skip

    def collective_ns(self, collective: Collective) -> tuple[float, float]:
        return float(collective.bytes), 0.2

    def _estimate(self, operator: Operator) -> Estimate:
        return Estimate(100.0 * len(operator.type), 0.1, operator.type.startswith("E"))


def one(kind: str, condition: Condition = ALWAYS, **more: Any) -> LawfulOperator:
    return LawfulOperator(Operator(kind, "AI_CORE"), condition, {}, (), (), **more)


def test_a_parts_errors_add_up_by_type_and_single_operators_apart():
    twice = CountLaw(2)
    laws = Laws(
        FORWARD=[one("Exact"), one("Exact", count=twice), one("Add"), one("Add"), one("Mul")],
        BACKWARD=[one("Add", Condition((("ep", True),))), one("Add", Condition((("layers", False),)))],
    )
    time = laws.part(PassPart.FORWARD, RUN)
    assert time.ns == 500 + 1000 + 300 + 300 + 300
    error = 50**2 + 100**2 + (1.4826 * 60) ** 2 + (1.4826 * 30) ** 2
    assert time.error == pytest.approx(error**0.5)
    # Whatever the layers, stages and copies are; EP is not above one.
    assert laws.part(PassPart.BACKWARD, RUN.replace(layers=9, pp=4, dp=1, vpp=2)).ns == 300 and len(laws._known) == 2
    assert laws.part(PassPart.FORWARD, RUN.replace(layers=9, pp=4, dp=64, vpp=2)) is time
    assert laws.relative_error(RUN) == pytest.approx((time.error + 1.4826 * 30) / 2700)


def test_after_a_stage_gradients_are_reduced_and_weights_updated_and_gathered():
    laws, blocks = Laws(), [("embedding", False), ("layer", True), ("layer", False)]
    run = RunSetting(tp=2, dp=4, ep=2, experts=4)
    update = 1000 + 2 * (160 / 4 + 32 / 2) + 3 * 192
    assert laws.tail_ns(run, blocks, 100.0) == 4 * (160 + 32) + 2 * (160 + 32) + update
    laws.hidden_reduction = True
    assert (
        laws.tail_ns(run, blocks, 100.0) == 768 - 100 + 384 + update and laws.tail_ns(run, blocks, 1e4) == 384 + update
    )
    # Over one rank nothing is exchanged.
    assert laws.tail_ns(run.replace(dp=1, ep=1), blocks, 0.0) == 1000 + 2 * 192 + 3 * 192
    assert laws.tail_ns(run.replace(ep=4), blocks, 0.0) == 4 * 160 + 2 * 160 + 1000 + 2 * (160 / 4 + 32) + 576
    assert laws.tail_ns(run, [("head", False)], 0.0) == 1000


def test_both_passes_of_a_small_run_are_those_of_all_its_blocks():
    kinds = {"BEFORE": "A", "DENSE": "AB", "FORWARD": "ABC", "HEAD": "ABCD", "DENSE_BACKWARD": "ABCDE",
             "BACKWARD": "ABCDEF", "AFTER": "ABCDEFG"}  # fmt: skip
    laws = Laws(**{name: [one(kind)] for name, kind in kinds.items()})
    run = RunSetting(layers=5, dense=2)
    assert laws.passes_ns(run) == 100 * ((1 + 4 + 7) + 2 * (2 + 5) + 3 * (3 + 6))
    times = laws.block_times(run.replace(pp=1, vpp=3))
    # A layer's backward pass takes as long as its forward pass: half of the ends' passes is forward.
    assert times.layer == pytest.approx(3e-4) and times.backward == pytest.approx(3e-4) and times.ratio == 1
    assert times.embedding == pytest.approx(8e-4 / 2) and times.head == pytest.approx(4e-4 / 2) and times.transfer == 0
    assert times.dense == pytest.approx((2e-4, 3e-4)) and times.dense_forward == pytest.approx(2.5e-4)
    assert laws.block_times(run.replace(pp=2, layers=6, dp=4)).transfer == pytest.approx(100 / 1e6)
    tails = laws.tails_ms(run, [[("layer", False), ("layer", True), ("dense", True), ("embedding", False)]])
    assert tails == pytest.approx([(1000 + 2 * 192 + 3 * 192) / 1e6])
    laws.hidden_reduction = True
    late = RunSetting(layers=5, dense=2, dp=4)
    both = laws.tail_ns(late, [("layer", False)] * 9, 0.0) - laws.tails_ms(late, [[("layer", False)] * 9])[0] * 1e6
    assert both == pytest.approx(9 * 300)


def sample(start: int, took: int, name: str = "") -> OperatorSample:
    return OperatorSample(
        Operator("hcom_send_" if name else "MatMul", "HCCL" if name else "AI_CORE"), start, took, 0, name
    )


def test_a_collective_nine_tenths_of_which_are_beside_an_earlier_one_is_still_exposed():
    def shown(begin: int) -> float:
        first, second = sample(0, 1000, "a"), sample(begin, 1000, "b")
        run = RecordedRun(RUN, (first, second), {}, (), RunLog({}, None, None))
        law = cast(Any, SimpleNamespace())
        return StepLaws._placed(one("hcom_send_"), law, {0: second}, [run], [[]]).shown

    assert shown(100) == 1.0 and shown(99) == 0.0


def test_transfers_between_stages_are_those_of_what_a_layer_hands_on_where_it_runs_again():
    samples = (sample(0, 9, "a"), sample(9, 9, "b"), sample(20, 9, "c"))
    transfers = {"a": Transfer("ring", 999, 5.0), "b": Transfer("stage", 100, 6.0), "c": Transfer("stage", 100, 7.0)}
    run = RecordedRun(RUN.replace(pp=2), samples, transfers, (), RunLog({}, None, None))
    laws = Laws()
    laws._collectives = defaultdict(list)
    assert laws._samples([], [run]) == [
        (Collective("transfer", 2, 16, 100), 6.0),
        (Collective("transfer", 2, 16, 100), 7.0),
    ]


def test_a_layer_without_stages_takes_the_longer_of_its_operators_and_weights():
    laws = Laws()
    run = RunSetting(layers=4, dense=1, dp=8)

    def groups(run: RunSetting, *, again: bool) -> list[GroupTimes]:
        layer = GroupTimes(10.0, 30.0 + 10 * again, 16.0, 8.0)
        return [GroupTimes(1.0, 2.0, 3.0, 4.0), GroupTimes(20.0, 9.0 + again, 5.0, 6.0), *[layer] * 3,
                GroupTimes(5.0, 6.0, 7.0, 8.0)]  # fmt: skip

    laws._groups = groups  # type: ignore[method-assign]
    times = laws._gathered_blocks(run, (7.0,))
    assert (times.layer, times.backward) == pytest.approx((16e-6, 30e-6)) and times.dense == pytest.approx(
        (20e-6, 11e-6)
    )
    assert times.whole_again == pytest.approx(10 / 16) and times.update == (7.0,) and times.head == times.transfer == 0
    from taylor.blackbox.sharded_weights import both_ns

    whole = both_ns(groups(run, again=False)).all
    assert times.embedding == pytest.approx(max(0.0, whole - 3 * 46 - 31) / (1 + 30 / 16) / 1e6)


# Problems -------------------------------------------------------------------------------------------------------------


class Memory:
    """Layers of 100 MiB that keep 50, or 5 where they run again; ends of 30 and 20; a step of 7 MiB a layer."""

    margin, weights = 0.25, None

    @property
    def largest(self) -> Memory:
        return self

    def stage(self, run: Any, blocks: Any, in_flight: int, *, accumulates: bool = True) -> PredictedPeak:
        static = 10 + sum({"embedding": 30, "head": 20, "layer": 100, "dense": 60}[name] for name, _ in blocks)
        peak = static + in_flight * sum(self.micro_batch(run, block)[0] / MIB for block in blocks) + 1000 * accumulates
        return PredictedPeak(static * MIB, peak * MIB, peak * MIB)

    def micro_batch(self, run: Any, block: Any) -> tuple[float, float]:
        kept, most = {("embedding", False): (4, 90), ("head", False): (6, 60), ("layer", False): (50, 70),
                      ("layer", True): (5, 80), ("dense", False): (40, 45), ("dense", True): (3, 4),
                      ("layer", "mlp"): (20, 75), ("dense", "mlp"): (40, 45)}[block]  # fmt: skip
        return kept * MIB, most * MIB

    def step_bytes(self, run: Any, blocks: Any) -> float:
        return 7 * MIB * sum(name in ("layer", "dense") for name, _ in blocks)

    def chunks(self, run: Any, chunks: Any, tasks: Any) -> Any:
        return [len(each) for each in chunks], len(tasks)


def problem(run: RunSetting, limit: float = 1000.0, micro: int = 8, all_again: Any = None, **more: Any) -> Any:
    times = BlockTimes(1.0, 2.0, 3.0, 4.0, 0.5, (6.0,) * run.pp, (1.0, 2.0), **more)
    return stage_problem(cast(Any, Memory()), run, times, micro, limit * MIB, (("full", 3),), all_again)


def test_a_problem_has_the_layers_states_and_what_stages_hold_besides():
    run = RunSetting(layers=8, pp=4, dense=2)
    found = problem(run, again=(AgainTimes("mlp", {"dense": 0.0, "layer": 1.5}),), whole_again=0.75)
    dense, layer = found.kinds
    assert (dense.name, dense.count, dense.layer_mib, layer.count, layer.layer_mib) == ("dense", 2, 60, 6, 100)
    assert dense.forward == pytest.approx(3 / (1 + 2) / 2) and layer.forward == 1
    assert layer.activation_mib == {"none": 50, "full": 5, "mlp": 20} and dense.activation_mib["full"] == 3
    assert layer.choices["mlp"].backward == 0.75 and dense.choices["mlp"].backward == 0
    # Moments: 75 of a layer that runs again whole, 54 of the head, of the embedding 86 less what a layer keeps.
    assert found.static_mib == pytest.approx([10 + 83 + 30 + 4 * 4, 10 + 75, 10 + 75, 10 + 75 + 20 + 6])
    assert problem(run, all_again=(1,)).static_mib == pytest.approx([10 + 46 + 46, 10 + 75, 10 + 20, 10 + 54 + 26])
    assert found.limit_mib == (800.0,) * 4 and found.uniform_recompute == (("full", 3), ("mlp", 8))
    # By the step: a dense layer takes 67 MiB of 800 less what the ends take.
    assert problem(run).max_layers == {(0, stage): 8 for stage in range(4)}
    few = problem(run, 500.0).max_layers
    assert few == {(0, 0): (400 - 40) // 67, (0, 1): 390 // 67, (0, 2): 390 // 67, (0, 3): (400 - 30) // 67}
    assert problem(run, 1.0).max_layers == {(0, stage): 0 for stage in range(4)}
    assert problem(run.replace(vpp=2), 500.0).max_layers == {(v, s): few[0, s] for v in range(2) for s in range(4)}
    assert (found.unit_ms, found.lag, found.tail) == (2.0, 0.25, (3.0,) * 4)
    assert (found.embedding_forward, found.head_forward, found.backward_ratio) == (0.5, 1.5, 2.0)
    assert found.recompute_ratio == {"full": 0.75}


def test_layers_are_dealt_evenly_the_first_stages_having_one_more():
    run = RunSetting(layers=7, pp=3, dense=2)
    dense, layer = ("dense", False), ("layer", False)
    assert layer_counts(run) == {"dense": 2, "layer": 5} and layer_counts(run.replace(dense=0)) == {"layer": 7}
    assert even_stages(run) == [
        [("embedding", False), dense, dense, layer],
        [layer, layer],
        [layer, layer, ("head", False)],
    ]


def test_layers_that_run_again_whole_come_first_in_a_chunk_and_those_by_module_next():
    plan = PipelinePlan({"dense": ((1, 0),), "layer": ((3, 4),)}, {"full": ((1, 2),), "mlp": ((2, 1),)})
    first, second = stage_blocks(plan)
    assert first == ((("embedding", False), ("dense", True), ("layer", "mlp"), ("layer", "mlp"), ("layer", False)),)
    assert second == ((("layer", True), ("layer", True), ("layer", "mlp"), ("layer", False), ("head", False)),)


def test_the_peaks_of_a_plan_are_of_as_many_micro_batches_as_are_in_flight():
    plan, memory = PipelinePlan({"layer": ((1, 1),)}, {"full": ((0, 1),)}), cast(Any, Memory())
    run = RunSetting(layers=2, pp=2)

    def peaks(micro: int) -> list[float]:
        return [peak.peak / MIB for peak in stage_peaks(memory, run, plan, micro)]

    assert peaks(8) == [140 + 2 * 54 + 1000, 130 + 11 + 1000] and peaks(2) == [140 + 2 * 54, 130 + 11 + 1000]
    assert peaks(1) == [140 + 54, 130 + 11]
    chunks = PipelinePlan({"layer": ((1, 1), (2, 1))}, {"full": ((0, 1), (0, 0))})
    # Rounds beyond the fourth show nothing more: 8 micro-batches of two chunks, forward and back.
    assert stage_peaks(memory, run, chunks, 64) == (([2, 2], 32), ([1, 2], 32))
    assert stage_peaks(memory, run, chunks, 4) == (([2, 2], 16), ([1, 2], 16))
    assert Time(1.0, 2.0).error == 2.0
