"""What runs at the same time in small runs: collectives beside operators, waits beside waits, two streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from taylor.blackbox.blocks import Condition, LawfulOperator, lawful_operators
from taylor.blackbox.collective_lines import Collective
from taylor.blackbox.foretold import foretell
from taylor.blackbox.group_laws import LawfulCollective
from taylor.blackbox.host_pace import HostPace, host_pace
from taylor.blackbox.laws import Fitter
from taylor.blackbox.operator_speed import Estimate
from taylor.blackbox.passes import PassPart
from taylor.blackbox.recorded import RecordedRun
from taylor.blackbox.step_laws import StepLaws
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.profiles.transfers import Transfer
from taylor.parsers.small_run import RunLog, RunSetting
from tests.blackbox.test_turns_and_orders import SETTINGS, ring

RUN = RunSetting(tp=2, cp=2, seq=8192, dp=4)
GEMM, GATHER = Operator("MatMul", "AI_CORE"), Operator("hcom_allToAll_", "HCCL")


def sample(operator: Operator, start: int, took: int, name: str = "") -> OperatorSample:
    return OperatorSample(operator, start, took, 0, name)


def recorded(samples: Iterable[OperatorSample], transfers: dict[str, Transfer] | None = None) -> RecordedRun:
    return RecordedRun(RUN, tuple(samples), transfers or {}, (), RunLog({}, None, None))


def placed(gemms: list[tuple[int, int]]) -> Any:
    """A collective from 1000 to 2000 ns with one operator that runs have at these times."""
    gemm, gather = (LawfulOperator(like, Condition(), {}, (), ()) for like in (GEMM, GATHER))
    samples = {run: sample(GATHER, 1000, 1000) for run in range(len(gemms))}
    runs = [recorded([samples[run]]) for run in samples]
    law = LawfulCollective("hcom_allToAll_", "cp", Fitter([RUN]).fit([1 << 20]), Condition())
    computing = [[(start, start + took, gemm)] for start, took in gemms]
    return StepLaws._placed(gather, law, samples, runs, computing)


class Laws(StepLaws):
    """Collectives of 1000 ns, 10 % uncertain, and operators of 400 ns."""

    def __init__(self) -> None:
        self._least, self.pace = 1, HostPace(0.0)

    def collective_ns(self, collective: Collective) -> tuple[float, float]:
        return 1000.0, 0.1

    def _estimate(self, operator: Operator) -> Estimate:
        return Estimate(400.0, 0.05, False)


def test_what_one_run_alone_shows_beside_a_collective_hides_nothing():
    assert placed([(1200, 400), (2000, 400), (2100, 400)]).beside == ()
    assert [share for _, share in placed([(1200, 400), (1300, 400), (2100, 400)]).beside] == [1.0]


def test_of_an_operator_that_began_before_a_collective_only_the_rest_hides_it():
    assert [share for _, share in placed([(700, 400), (900, 400), (900, 400)]).beside] == [0.75]
    # What is left of it when the collective ends would hide a longer one.
    assert [share for _, share in placed([(1700, 400)] * 3).beside] == [1.0]


def test_the_exposed_part_of_a_collective_has_the_error_of_the_whole():
    laws = Laws()
    ns, error, _ = laws._exposed(placed([(900, 400)] * 3), RUN)
    assert (ns, error) == pytest.approx((1000 - 0.75 * 400, 100))
    # Nothing of it is exposed where what runs beside it takes longer by more than that.
    hidden = placed([(1200, 400)] * 3)
    hidden = type(hidden)(hidden.operator, hidden.law, hidden.shown, hidden.beside * 3)
    assert laws._exposed(hidden, RUN)[:2] == (0.0, 0.0)


def test_the_time_of_some_operators_of_a_pass_is_theirs_alone():
    laws = Laws()
    operators = [LawfulOperator(GEMM, Condition(), {}, (), ()) for _ in range(3)]
    laws.operators, laws._order = tuple(operators), {PassPart.FORWARD: tuple(operators)}

    def ns(only: tuple[int, ...] | None) -> float:
        return laws._timed_part(PassPart.FORWARD, RUN, only=only).ns

    assert (ns(None), ns((0, 1, 2)), ns((1, 2)), ns((2,)), ns(())) == (1200, 1200, 800, 400, 0)


def test_waits_at_the_same_time_count_once_and_not_beside_operators():
    laws = Laws()
    laws._compute = {PassPart.STEP: []}
    send, receive = Operator("hcom_send_", "HCCL"), Operator("hcom_receive_", "HCCL")
    samples = [sample(GEMM, 0, 1000), sample(send, 1000, 900, "s"), sample(receive, 1100, 900, "r")]
    samples += [sample(GEMM, 1300, 200), sample(GEMM, 2000, 500)]
    # They wait from 1000 to 1700 and from 1100 to 1800: 800 ns together, 200 of them beside an operator.
    run = recorded(samples, {"s": Transfer("1", 10, 200.0), "r": Transfer("1", 10, 200.0)})
    assert run.waited_ns(samples[1]) == run.waited_ns(samples[2]) == 700
    assert laws.measured_passes_ns(run) == 2500 - 600
    assert run.waited_ns(samples[0]) == 0  # It is no collective.


def test_a_collective_stands_before_the_operator_that_is_running_on_either_stream():
    long, short, late = (Operator(name, "AI_CORE") for name in ("Long", "Short", "Late"))
    samples = [sample(long, 0, 1000), sample(short, 100, 100), sample(GATHER, 500, 50, "g"), sample(late, 1100, 100)]
    kept = recorded(samples).kept_samples
    assert [one.operator.type for one in kept] == ["hcom_allToAll_", "Long", "Short", "Late"]


def test_the_pace_of_a_host_is_shown_by_operators_that_begin_late_one_after_another():
    samples, now = [], 0
    for took in (50_000, 50_000, 50_000, 100, 100, 100, 100):
        samples.append(sample(Operator("Long" if took > 100 else "Short", "AI_CORE"), now, took))
        now = max(now + took + 500, now + 20_000)
    pace = host_pace([recorded(samples)])
    assert pace.pause == 500 and pace.usual == 20_000 and pace.by_type == {"Short": 20_000}
    quick = host_pace([recorded(sample(GEMM, 1500 * at, 1000) for at in range(8))])
    assert quick.pause == 500 and quick.usual == 0


def test_what_waits_for_gradients_says_nothing_of_the_host():
    short, reduce, update = (Operator(name, "AI_CORE") for name in ("Short", "hcom_reduceScatter_", "Update"))
    samples = [sample(GEMM, 50_500 * at, 50_000) for at in range(4)]
    samples += [sample(short, 220_000 + 20_000 * at, 100) for at in range(4)]
    samples += [sample(reduce, 280_200, 400_000, "r"), sample(update, 690_000, 100)]
    elements, sent = 1 << 20, 4 * (1 << 20) * 7 // 8  # Over DP and CP, eight ranks.
    log = RunLog({"layer": {"w": elements}}, None, None)
    run = RecordedRun(RUN, tuple(samples), {"r": Transfer("1", sent, 400_000.0)}, (), log)
    assert run.gradients and host_pace([run]).by_type == {"Short": 20_000}


def test_operators_of_a_loop_are_foretold_as_often_as_it_turns():
    found = lawful_operators([ring(run) for run in SETTINGS])
    large = RunSetting(tp=8, cp=16, seq=65536)
    foretold = foretell(found, large)
    assert foretold.unsure == 0 and sorted(foretold.operators) == sorted(ring(large).operators)
    open_ones = lawful_operators([ring(run) for run in SETTINGS if run.cp < 4])
    assert foretell(open_ones, large).unsure >= 2
