"""What lies exactly on a limit of the laws, and what lies just beyond it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.blackbox import degree_search
from taylor.blackbox.blocks import MOST_OPERATORS, RunOperators, align
from taylor.blackbox.collective_lines import BETWEEN, IN_NODE, MIXED, Collective, CollectiveLines
from taylor.blackbox.degree_search import _near, _ProcessorShare
from taylor.blackbox.host_pace import host_pace
from taylor.blackbox.laws import Fitter
from taylor.blackbox.memory_laws import PredictedPeak
from taylor.blackbox.module_subsets import CandidateModule, unbeaten_subsets
from taylor.blackbox.operator_base import MOST_NS, MOST_SAMPLES, _samples_cell
from taylor.blackbox.recorded import RecordedRun, _once
from taylor.blackbox.rejection import FIRST_LAUNCH, NO_TIME, STRAGGLER, WARM_UP, clean
from taylor.blackbox.small_runs import legal, plan_small_runs
from taylor.blackbox.step_laws import _after_start, _behind_another, _length, _overlap, _to_next_stage
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.profiles.transfers import Transfer
from taylor.parsers.small_run import JobSizes, Machines, RunLog, RunSetting, ShardedWeights

GEMM, SEND = Operator("MatMul", "AI_CORE"), Operator("hcom_send_", "HCCL")


def sample(start: int, took: int, operator: Operator = GEMM, step: int = 0, name: str = "") -> OperatorSample:
    return OperatorSample(operator, start, took, step, name)


def run_of(*samples: OperatorSample, **transfers: Transfer) -> RecordedRun:
    return RecordedRun(RunSetting(), samples, transfers, (), RunLog({}, None, None))


def test_a_run_may_have_as_many_operators_as_a_small_one_can():
    most = RunOperators(RunSetting(), (GEMM,) * MOST_OPERATORS)
    assert MOST_OPERATORS == 20_000 and len(align([most])) == MOST_OPERATORS
    with pytest.raises(InputError, match="more than 20000 operators"):
        align([RunOperators(RunSetting(), (GEMM,) * (MOST_OPERATORS + 1))])


@pytest.mark.parametrize(
    ("group", "stride", "link"),
    [(8, 1, IN_NODE), (9, 1, MIXED), (2, 4, IN_NODE), (3, 4, MIXED), (2, 7, MIXED), (2, 8, BETWEEN), (2, 9, BETWEEN)],
)
def test_a_group_that_just_fills_a_node_stays_in_it(group, stride, link):
    assert Collective("gather", group, stride, 1).link(8) == link


def test_a_line_needs_three_collectives_of_several_ranks_that_took_some_time():
    seen = [(Collective("gather", 2, 1, size), 100.0 + size / 2) for size in (100, 200, 400)]
    asked = Collective("gather", 2, 1, 1000)
    nothing = (Collective("gather", 2, 1, 800), 0.0)
    alone = (Collective("gather", 1, 1, 800), 7.0)
    line = CollectiveLines([*seen, nothing, alone], 8).line(asked)
    assert line is not None and line.points == 3 and line.at(asked) == pytest.approx(600)
    assert CollectiveLines([*seen[:2], nothing, alone], 8).line(asked) is None
    shortest = CollectiveLines([*seen[:2], (Collective("gather", 2, 1, 800), 0.5)], 8).line(asked)
    assert shortest is not None and shortest.points == 3


def test_a_stage_that_takes_just_its_limit_fits():
    peak = PredictedPeak(1.0, 2.0, 3.0)
    assert peak.fits(3.0) and not peak.fits(2.999) and not PredictedPeak(1.0, 2.0, 3.0, ("w",)).fits(9.0)


def test_samples_just_on_a_rules_limit_are_kept():
    def rejected(*durations: int) -> Any:
        return clean([sample(at, took) for at, took in enumerate(durations)]).rejected

    assert rejected(300, 100) == {} and rejected(301, 100) == {FIRST_LAUNCH: 1}
    assert rejected(1, 0, -1) == {NO_TIME: 2}
    assert rejected(100, 100, 100, 150) == {} and rejected(100, 100, 100, 151) == {STRAGGLER: 1}
    assert rejected(100, 100, 290) == {}  # Three samples show no straggler.
    # Half of these deviate by 10 from their middle: six robust deviations are 88.956 above it.
    spread = (90, 110, 90, 110, 100, 100, 90, 110)
    assert rejected(*spread, 188) == {} and rejected(*spread, 189) == {STRAGGLER: 1}
    steps = [sample(0, 120, step=1), sample(1, 100, step=2), sample(2, 100, step=3)]
    assert clean(steps).rejected == {}
    assert clean([sample(0, 121, step=1), *steps[1:]]).rejected == {WARM_UP: 1}
    assert clean([sample(0, 121, step=1), steps[1]]).rejected == {}
    assert clean([sample(at, took, step=at) for at, took in enumerate((11, 9, 9))]).rejected == {WARM_UP: 1}


def test_a_base_keeps_so_many_samples_and_no_longer_times():
    assert len(_samples_cell(str([1] * MOST_SAMPLES))) == MOST_SAMPLES == 64
    assert _samples_cell(f"[{MOST_NS - 1}]") == [2**53 - 1]
    for cell in (str([1] * (MOST_SAMPLES + 1)), "[]", f"[{MOST_NS}]", "[0]", "[1.5]", "[true]", "{}", "[", "[1, 0]"):
        with pytest.raises(ValueError, match="is no list"):
            _samples_cell(cell)


def test_a_size_may_leave_its_law_by_a_quarter_and_no_more():
    runs = [RunSetting(tp=tp) for tp in (1, 2, 4, 8)]
    quarter = Fitter(runs).fit([1000, 1250, 1000, 1250])
    assert quarter.spread == 0.25 and quarter.at(RunSetting(tp=16)) == 1125
    assert Fitter(runs).fit([1000, 1251, 1000, 1250]).laws == ()
    with pytest.raises(ValueError, match="one size of at least 0"):
        Fitter(runs).fit([1, -1, 1, 1])
    with pytest.raises(ValueError, match="one size of at least 0"):
        Fitter(runs).fit([1, 1, 1])
    assert Fitter(runs).fit([0, 0, 0, 0]).at(RunSetting(tp=16)) == 0
    assert Fitter(runs).fit([0, 1, 1, 1]).laws == ()


def test_a_size_in_the_thousands_of_millions_is_rounded_up_exactly():
    runs = [RunSetting(tp=1), RunSetting(tp=2)]
    found = Fitter(runs).fit([4_000_000_001, 2_000_000_001])
    assert found.spread == 0 and str(found.laws[0]) == "4000000001 · tp^-1"
    # One that a single run misses by one is no exact law.
    off = Fitter([*runs, RunSetting(tp=4)]).fit([8_000_000_000, 4_000_000_000, 2_000_000_001])
    assert 0 < off.spread < 1e-9


def test_a_shard_is_rounded_up_where_it_has_eight_rows_at_least():
    runs = [RunSetting(tp=tp, seq=seq) for tp in (1, 2, 4) for seq in (1, 3)]

    def fit(rows: int) -> Any:
        return Fitter(runs).fit([-(-rows // run.tp) * 7 * run.seq for run in runs])

    assert str(fit(9).laws[0]) == "7 · ceil(9 / tp) · seq" and fit(9).at(RunSetting(tp=8, seq=5)) == 2 * 7 * 5
    assert fit(7).spread > 0 or not fit(7).laws
    # Fifteen over two, three and four are 8, 5 and 4.
    least = [RunSetting(tp=tp, seq=seq) for tp in (2, 3, 4) for seq in (1, 3)]
    assert str(Fitter(least).fit([-(-15 // run.tp) * 7 * run.seq for run in least]).laws[0]).startswith(
        "7 · ceil(15 / tp)"
    )
    two = [run for run in runs if run.tp < 4]
    assert not any(law.rows for law in Fitter(two).fit([-(-9 // run.tp) * 7 * run.seq for run in two]).laws)


def test_units_of_a_size_are_an_eighth_of_the_largest_at_most():
    runs = [RunSetting(tp=tp) for tp in (1, 2, 4, 8)]
    # Of 3.2 units, of which one run has four and the others two or one.
    exact = Fitter(runs).fit([128 * -(-1030 // (tp * 128)) for tp in (1, 2, 4, 8)])
    assert exact.laws[0].unit == 128 and [exact.at(run) for run in runs] == [1152, 640, 384, 256]
    small = Fitter(runs[:3]).fit([8 * 7, 8 * 4, 8 * 2])
    assert all(law.unit == 1 for law in small.laws)
    eight = Fitter(runs[:3]).fit([8 * 8, 8 * 5, 8 * 3])
    assert {law.unit for law in eight.laws} <= {1, 8}


def test_parameters_are_sent_once_each_with_little_padding():
    assert _once([1000, 2000], [2000.0, 1000.0]) and not _once([1000, 1000], [1000.0, 3000.0])
    # A page of 1024 bytes, or a fifth of a percent of what is large.
    assert _once([9024], [8000.0]) and not _once([9025], [8000.0])
    assert _once([6976], [8000.0]) and not _once([6975], [8000.0])
    assert _once([1_000_000], [1_002_000.0]) and not _once([1_000_000], [1_002_001.0])
    # Others may go by another way, but what goes is a hundredth of all at least.
    assert _once([1000], [1000.0, 99_000.0]) and not _once([1000], [1000.0, 99_001.0])
    assert not _once([], [])


def test_a_pause_of_just_what_is_late_is_no_wait():
    long, short = Operator("Long", "AI_CORE"), Operator("Short", "AI_CORE")

    def paced(idle: int, own: int = 500) -> Any:
        # Late is what waits beyond the pause behind the long ones and 1000 ns, and beyond twice that pause.
        samples, now = list[OperatorSample](), 0
        for operator, took, pause in ((long, 9000, own), (long, 9000, own), *[(short, 100, idle)] * 3):
            samples.append(sample(now, took, operator))
            now += took + pause
        return host_pace([run_of(*samples, sample(now, 100, short))])

    assert paced(4000, 2000).usual == 0 and paced(4001, 2000).by_type == {"Short": 4101}
    assert paced(1500).usual == 0 and paced(1501).by_type == {"Short": 1601} and paced(1501).pause == 500


def test_a_module_without_a_negative_figure_is_taken():
    empty = CandidateModule("layer", (0,), (0,), (0,))
    assert [one.modules for one in unbeaten_subsets(empty)] == [()]
    for figures in (((-1,), (0,), (0,)), ((0,), (-1,), (0,)), ((0,), (0,), (-1,))):
        with pytest.raises(InputError, match="at least 0"):
            unbeaten_subsets(CandidateModule("layer", *figures))


def test_spans_share_the_time_that_both_cover():
    assert _length([(0, 10), (5, 20), (30, 40)]) == 30 and _length([(0, 10), (2, 3)]) == 10 and _length([]) == 0
    busy = [(0, 10), (20, 30), (40, 50)]
    assert [_overlap(sample(*span), busy) for span in ((5, 20), (10, 10), (0, 10), (25, 40), (45, 100))] == [
        10 / 20, 0, 1, (5 + 10) / 40, 5 / 100,
    ]  # fmt: skip
    assert _overlap(sample(5, 0), busy) == 0 and _overlap(sample(0, 20), [(0, 10), (5, 20)]) == 1


def test_an_operator_beside_a_collective_shares_a_fifth_of_the_shorter_ones_time():
    assert _after_start(sample(900, 125), (1000, 2000)) == 0  # Just 25 of 125.
    assert _after_start(sample(900, 126), (1000, 2000)) == 1
    assert _after_start(sample(1800, 5000), (1000, 2000)) == 0
    # Of an operator that began before the collective only what follows that counts.
    assert _after_start(sample(1799, 5000), (1000, 2000)) == 0.201
    assert _after_start(sample(1200, 300), (1000, 2000)) == 0.8


def test_of_two_collectives_at_the_same_time_the_later_one_is_behind():
    first, second = sample(0, 100, SEND, name="a"), sample(50, 100, SEND, name="b")
    run = run_of(first, sample(40, 100), second)
    assert (_behind_another(first, run), _behind_another(second, run)) == (0, 0.5)


def test_what_a_layer_hands_on_may_be_padded_by_a_fifth_of_a_percent():
    def sent(size: int) -> int:
        run = run_of(
            *(sample(at, 1, SEND, name=name) for at, name in enumerate("abc")),
            a=Transfer("near", 7, 1.0), b=Transfer("far", size, 1.0), c=Transfer("far", size, 1.0),
        )  # fmt: skip
        return len(_to_next_stage(run, 10_000))

    assert [sent(size) for size in (9980, 10_020, 10_021, 9979)] == [2, 2, 1, 1]


def test_runs_can_start_that_meet_each_condition_exactly():
    sizes = JobSizes(RunSetting(tp=1, seq=8192), tp_ways=4, top_k=4, expert_groups=2, cp_ways=8)
    good = RunSetting(tp=4, cp=2, ep=2, seq=4096, experts=4, dp=1)
    assert legal(good, sizes) is None
    reasons = [
        ({"tp": 3}, "TP 3 does not divide the heads' 4"),
        ({"cp": 4}, "TP 4 and CP 4 do not divide the heads' 8"),
        ({"seq": 4104}, "4104 tokens do not split over TP and CP"),
        ({"experts": 5}, "EP 2 does not divide 5 experts"),
        ({"dp": 2, "replicas": 4}, "4 copies do not divide DP 2"),
        ({"cp": 1}, "EP 2 does not divide DP·CP"),
        ({"layers": 3, "pp": 2}, "3 layers do not split over 2 stages"),
        ({"experts": 2}, "a token goes to 4 experts"),
        ({"seq": 4080}, "less than 2048 tokens a rank"),
    ]
    assert [legal(good.replace(**change), sizes) for change, _ in reasons] == [reason for _, reason in reasons]
    odd = JobSizes(sizes.own, tp_ways=4, expert_groups=3)
    assert legal(good, odd) == "experts stand in groups of 3"
    sharded = JobSizes(sizes.own, tp_ways=4, weights=ShardedWeights(2, 4))
    assert legal(good, sharded) is None
    assert legal(RunSetting(tp=4, seq=4096), sharded) == "no ranks share the weights, so that they stay in fp32"
    assert legal(RunSetting(seq=1024), JobSizes(sizes.own, tp_ways=4)) is None


def test_four_cards_suffice_and_three_do_not():
    sizes = JobSizes(RunSetting(seq=8192, layers=4), tp_ways=4)
    assert plan_small_runs(sizes, Machines(1, 4)).runs[0].setting.ranks == 4
    with pytest.raises(InputError, match="at least 4 cards"):
        plan_small_runs(sizes, Machines(1, 3))


def test_small_runs_begin_with_two_of_each_degree_where_they_can():
    sizes = JobSizes(RunSetting(tp=2, seq=8192, experts=2, layers=4), tp_ways=4)
    base = plan_small_runs(sizes, Machines(2, 8)).runs[0].setting
    assert (base.tp, base.cp, base.ep, base.experts, base.dp) == (2, 2, 2, 2, 4)
    # Three data parallel ranks do not split two experts.
    odd = plan_small_runs(sizes, Machines(1, 6), ("tp", "ep")).runs[0].setting
    assert (odd.tp, odd.cp, odd.ep, odd.dp) == (2, 1, 1, 3)


def test_a_solve_on_a_shared_processor_may_take_ten_times_as_long(monkeypatch):
    clocks = {"monotonic": 100.0, "process_time": 5.0}
    names = {name: lambda name=name: clocks[name] for name in clocks}
    monkeypatch.setattr(degree_search, "time", SimpleNamespace(**names))
    share = _ProcessorShare()

    def seconds(passed: float, used: float) -> float:
        clocks.update(monotonic=100.0 + passed, process_time=5.0 + used)
        return share.seconds(3.0)

    assert [seconds(8, 2), seconds(2, 8), seconds(50, 2), seconds(90, 0.09)] == [12, 3, 30, 3]
    monkeypatch.setattr(share, "began", (100.0, 0.0))
    clocks.update(monotonic=104.0, process_time=0.1)
    assert share.seconds(3.0) == 3.0  # A tenth of a second says nothing yet.


def test_choices_tie_within_half_an_interval_that_holds_nine_of_ten():
    assert _near(SimpleNamespace(step_ms=1000.0, error=0.1)) == pytest.approx(1164.5)
