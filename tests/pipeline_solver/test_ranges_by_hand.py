"""Ranges of layers on LPs that a hand can solve, passes over answers written down, and work limits counted by hand."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.milp import chunk_ranges as module
from taylor.pipeline_solver.milp.chunk_ranges import (
    CHORD,
    RANGE,
    LayerRange,
    layer_ranges,
    narrow_ranges,
    rule_out_short,
)
from taylor.pipeline_solver.milp.compact_model import CompactModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpOutcome, MilpStatus
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.solver_cases import small_problem

INFINITE = float("inf")
KEPT = {NONE: 6.0, FULL: 1.0}

# Rows of a range


def chunk(least: int, most: int, switch: int | None = None) -> LayerRange:
    return LayerRange((3, 4), (5, 6), switch, least, most)


BOUNDS = (3, 4), (1.0, 1.0)


def test_a_stage_has_bounds_alone() -> None:
    assert LayerRange((3, 4), (), None, 2, 5).rows(3) == [Row(RANGE, *BOUNDS, 2.0, 5.0)]


@pytest.mark.parametrize(
    ("one", "slope", "side"),
    [
        # From one of one layer to three of five: half a recomputed layer for each.
        (chunk(1, 5), 0.5, 0.5),
        (chunk(4, 4), 0.0, 3.0),
        (chunk(2, 2), 0.0, 2.0),
        (chunk(3, 9), 0.0, 3.0),
        (chunk(1, 3), 1.0, 0.0),
        # With a switch that has nothing to tell, for all of them are recomputed or as many as there are to be.
        (chunk(1, 3, 7), 1.0, 0.0),
        (chunk(1, 2, 7), 1.0, 0.0),
        (chunk(3, 9, 7), 0.0, 3.0),
    ],
)
def test_the_chord_leads_from_the_fewest_layers_to_the_most(one: LayerRange, slope: float, side: float) -> None:
    bounds, chord = one.rows(3)
    assert bounds == Row(RANGE, *BOUNDS, float(one.least), float(one.most))
    assert (chord.name, chord.columns, chord.upper) == (CHORD, (5, 6, 3, 4), INFINITE)
    assert chord.coefficients == (1.0, 1.0, -slope, -slope) and chord.lower == side


def test_a_switch_parts_the_chord_in_two_rows_that_are_exact_once_it_is_set() -> None:
    """Of one to five layers three are recomputed: at least 3 - 2z, and at least all but the two beyond, unless z."""
    _, some, every = chunk(1, 5, 7).rows(3)
    assert some == Row(CHORD, (5, 6, 7), (1.0, 1.0, 2.0), 3.0)
    assert every == Row(CHORD, (5, 6, 3, 4, 7), (1.0, 1.0, -1.0, -1.0, -2.0), -2.0)
    for held, switch in itertools.product(range(1, 6), (0, 1)):
        if held in (4, 5) and switch:
            continue  # more than three layers are not all recomputed
        least = max(3.0 - 2.0 * switch, held - 2.0 + 2.0 * switch)
        assert least <= min(3, held) if switch == (held <= 3) else True
    # At either end of the range they are met, and with the switch between them so is the chord.
    for share in (0.0, 0.25, 1.0):
        held = 5.0 - 4.0 * share
        assert max(3.0 - 2.0 * share, held - 2.0 + 2.0 * share) == pytest.approx(0.5 * held + 0.5)


def interleaved(**changes: Any) -> PipelineProblem:
    """Two stages of two chunks, of whose layers each recomputes three."""
    return small_problem(
        interleaves=2,
        kinds=(LayerKind("a", 5, 1.0, 10.0, KEPT), LayerKind("b", 7, 1.0, 10.0, KEPT)),
        limit_mib=(400.0, 400.0),
        schedule=ScheduleSpec("megatron-interleaved"),
        uniform_recompute=((FULL, 3),),
    ).replace(**changes)


def ranges_of(problem: PipelineProblem) -> list[tuple[set[str], set[str], str | None, int, int]]:
    model = CompactModel.build(problem)
    names = model.form.names
    return [
        (
            {names[c] for c in one.layers},
            {names[c] for c in one.taken},
            None if one.switch is None else names[one.switch],
            one.least,
            one.most,
        )
        for one in layer_ranges(model)
    ]


def test_the_problem_gives_every_chunk_and_every_stage_its_range() -> None:
    """Twelve layers, one a chunk at the least: nine at the most, or four where that is given; on a stage all."""
    found = ranges_of(interleaved(max_layers={(1, 0): 4}))
    assert len(found) == 6
    for one, (s, v) in zip(found[:4], ((0, 0), (1, 0), (0, 1), (1, 1)), strict=True):
        held, taken = ({f"{name}_{k}[{s},{v}]" for k in "ab"} for name in ("x", "recompute"))
        assert one[:3] == (held, taken, f"whole_recompute[{s},{v}]") and one[3] == 1
    for s, stage in enumerate(found[4:]):
        assert stage[:4] == ({f"x_{k}[{s},{v}]" for k in "ab" for v in (0, 1)}, set(), None, 2)
    # Two a chunk at the least leave six for one, and of stages 10 where one chunk has four at the most.
    single = interleaved(kinds=(LayerKind("a", 12, 1.0, 10.0, KEPT),), min_layers=2, max_layers={(1, 0): 4})
    assert [(least, most) for *_, least, most in ranges_of(single)] == [
        (2, 6),
        (2, 6),
        (2, 4),
        (2, 6),
        (4, 10),
        (4, 12),
    ]


# Narrowing, on LPs of three columns


class Written:
    """A model of step time and two counts, whose longest path and its rows are written down."""

    def __init__(self, rows: list[Row], most: tuple[float, float], cuts: list[Row] | None = None) -> None:
        self.form = LinearForm(
            ("T", "x", "y"), np.zeros(3), np.array([INFINITE, *most]), np.array([1.0, 0.0, 0.0]),
            np.array([False, True, True]), rows,
        )  # fmt: skip
        self.step_time = 0
        self.found = cuts or []
        self.met: list[list[float]] = []

    def durations_of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        self.met.append(values.tolist())
        return values

    def cut_at(self, durations: NDArray[np.float64]) -> tuple[float, list[Row]]:
        """The path takes 2 for each x."""
        return 2.0 * float(durations[1]), self.found


PATH = Row("path", (0, 1), (1.0, -2.0), 0.0)


def narrowed(
    below: float,
    path: bool = True,
    cuts: bool = False,
    rounds: int = 4,
    deadline: float | None = None,
    slope: float = 1.0,
    path_of_x: float = 2.0,
) -> tuple[bool, list[tuple[int, int]], Written]:
    ranges = [LayerRange((1,), (), None, 1, 12), LayerRange((2,), (), None, 1, 9)]
    rows = [row for one in ranges for row in one.rows(3)]
    rows += [
        Row("all", (1, 2), (1.0, slope), 10.0, 10.0),
        *([Row("path", (0, 1), (1.0, -path_of_x), 0.0)] if path else []),
    ]
    model = Written(rows, (40.0, 40.0), [PATH] if cuts else None)
    possible = module._narrowed(model, ranges, below, deadline, rounds)  # type: ignore[arg-type]
    return possible, [(one.least, one.most) for one in ranges], model


def test_a_step_time_narrows_counts_on_both_sides() -> None:
    """x + y = 10 and 2x within the step time: at 8.9 x is 4 at the most, so y is 6 at the least."""
    assert narrowed(8.9)[:2] == (True, [(1, 4), (6, 9)])
    assert narrowed(8.0)[:2] == (True, [(1, 4), (6, 9)])
    assert narrowed(7.9)[:2] == (True, [(1, 3), (7, 9)])
    assert narrowed(100.0)[:2] == (True, [(1, 9), (1, 9)])
    # Within rounding a count is whole.
    assert narrowed(8.0 - 1e-6)[:2] == (True, [(1, 4), (6, 9)])
    assert narrowed(1.9)[0] is False
    # A step time may be as short as a tenth of a unit of time for each.
    assert narrowed(0.45, path_of_x=0.1)[:2] == (True, [(1, 4), (6, 9)])
    # One x is just within it.
    assert narrowed(2.0)[:2] == (True, [(1, 1), (9, 9)])


def test_what_one_range_loses_narrows_the_next_one_at_once() -> None:
    """x + y / 4 = 10, where y is 9 at the most and x is 8 at the least: 7.75 would do. At 16.2 x is no more than 8
    either, so that y is 8, where 8.1 would leave it 7.6 to 9. At 15.9 x would be 7 at the most."""
    assert narrowed(16.2, slope=0.25)[:2] == (True, [(8, 8), (8, 8)])
    assert narrowed(15.9, slope=0.25)[0] is False


def test_paths_met_at_an_end_narrow_it_further_for_as_many_rounds_as_given() -> None:
    """Without the path x is 9 at the most. The longest path there passes 8.9, so it is taken in, and x is 4."""
    assert narrowed(8.9, path=False)[:2] == (True, [(1, 9), (1, 9)])
    assert narrowed(8.9, path=False, cuts=True)[:2] == (True, [(1, 4), (6, 9)])
    # With one round x stays, and what was met narrows y.
    possible, ranges, model = narrowed(8.9, path=False, cuts=True, rounds=1)
    assert possible and ranges == [(1, 9), (6, 9)] and len(model.met) == 4
    # No path is taken in where the longest one is short enough.
    assert narrowed(18.0, path=False, cuts=True)[:2] == (True, [(1, 9), (1, 9)])
    assert narrowed(18.0, path=False, cuts=True)[2].met == narrowed(18.0, path=False)[2].met


def test_without_time_left_ranges_stay_as_they_are() -> None:
    assert narrowed(8.9, deadline=time.monotonic() - 1.0)[:2] == (True, [(1, 12), (1, 9)])
    assert narrowed(8.9, deadline=time.monotonic() + 60.0)[:2] == (True, [(1, 4), (6, 9)])


# Passes, over answers that are written down


class Told:
    """A model whose relaxation gives written bounds, one after another."""

    def __init__(self, *outcomes: MilpOutcome) -> None:
        self.outcomes = list(outcomes)
        self.problem = SimpleNamespace(uniform_recompute=((FULL, 3),))
        self.form = SimpleNamespace(
            rows=[Row("other", (1,), (1.0,)), Row(RANGE, (9,), (1.0,)), Row(CHORD, (9,), (1.0,))]
        )
        self.cuts = ["known"]
        self.forgotten: list[int] = []
        self.deadlines: list[float | None] = []

    def tighten_relaxation(self, deadline: float | None) -> MilpOutcome:
        self.deadlines.append(deadline)
        self.cuts.append("met")
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    def forget(self, known: int) -> None:
        self.forgotten.append(known)
        del self.cuts[known:]


def optimal(bound: float) -> MilpOutcome:
    return MilpOutcome(MilpStatus.OPTIMAL, None, bound)


def passes(
    monkeypatch: pytest.MonkeyPatch, model: Told, steps: list[int | None], widths: int = 100
) -> tuple[MilpOutcome, list[LayerRange], int]:
    """Narrow one range, by so many layers in each pass; None where there is no plan."""
    ranges = [LayerRange((1,), (2,), None, 0, widths)]
    calls: list[tuple[float, float | None, int]] = []

    def narrow(_: Any, given: list[LayerRange], below: float, deadline: float | None, rounds: int) -> bool:
        calls.append((below, deadline, rounds))
        step = steps[len(calls) - 1]
        given[0].most -= step or 0
        return step is not None

    monkeypatch.setattr(module, "_narrowed", narrow)
    outcome = narrow_ranges(model, ranges, 10.0, 77.0)  # type: ignore[arg-type]
    assert calls == [(10.0, 77.0, 4)] * len(calls) and model.deadlines == [77.0] * len(model.deadlines)
    return outcome, ranges, len(calls)


def test_passes_go_on_while_each_takes_off_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 layers 6, of 94 then 5, of 89 then 4, which is less than one in twenty."""
    model = Told(optimal(9.0), optimal(9.1), optimal(9.2), optimal(9.3))
    outcome, ranges, calls = passes(monkeypatch, model, [6, 5, 4, 50])
    assert calls == 3 and ranges[0].most == 85
    # Then what was met is forgotten, and the relaxation solved anew.
    assert outcome == optimal(9.3) and model.forgotten == [1] and model.cuts == ["known", "met"]
    # One in twenty is not enough.
    assert passes(monkeypatch, Told(optimal(9.0)), [5, 50])[2] == 1
    assert passes(monkeypatch, Told(optimal(9.0)), [10] * 9, 200)[2] == 1
    assert passes(monkeypatch, Told(optimal(9.0)), [1000] * 20, 10_000)[2] == 8


def test_passes_end_where_no_plan_is_left_or_the_relaxation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = MilpOutcome(MilpStatus.INFEASIBLE, None, INFINITE)
    assert passes(monkeypatch, Told(optimal(10.1)), [50])[::2] == (nothing, 0)
    assert passes(monkeypatch, Told(optimal(10.0)), [1])[::2] == (optimal(10.0), 1)
    assert passes(monkeypatch, Told(optimal(9.0), optimal(10.1)), [50, 50])[::2] == (nothing, 1)
    assert passes(monkeypatch, Told(optimal(9.0)), [50, None])[::2] == (nothing, 2)
    stopped = MilpOutcome(MilpStatus.STOPPED, None, 8.0)
    model = Told(optimal(9.0), stopped)
    assert passes(monkeypatch, model, [50, 50])[::2] == (stopped, 1) and model.forgotten == []


def test_ranges_take_the_place_of_the_rows_of_former_ones() -> None:
    model = Told(optimal(9.0))
    ranges = [chunk(1, 5), LayerRange((3, 4), (), None, 2, 6)]
    assert module._bounded(model, ranges, 5.0) == optimal(9.0)  # type: ignore[arg-type]
    assert model.form.rows == [*chunk(1, 5).rows(3), *ranges[1].rows(3), Row("other", (1,), (1.0,))]
    assert model.deadlines == [5.0]
    model = Told(optimal(9.0))
    assert module._length(model, ranges, 6.0) == 9.0  # type: ignore[arg-type]
    assert model.forgotten == [1] and model.deadlines == [6.0]


def test_chunks_that_cannot_be_short_hold_as_many_as_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three are recomputed. Chunks 0, 3 and 5 may hold fewer or as many; 1 holds as many anyway, 2 has fewer at the
    most, 4 is a stage. The longest relaxation comes first: chunk 3, then 5, which could be short, so that 0 is left."""
    ranges = [
        chunk(1, 5), chunk(3, 5), chunk(1, 2), chunk(2, 3), LayerRange((3,), (), None, 1, 9), chunk(1, 9),
    ]  # fmt: skip
    lengths, calls = {0: 6.0, 3: 8.0, 5: 7.0}, []
    model = Told(optimal(9.0))

    def short(given: list[LayerRange]) -> int:
        changed = [k for k, (one, own) in enumerate(zip(given, ranges, strict=True)) if one.most != own.most]
        assert len(changed) == 1 and given[changed[0]].most == 2 and given[changed[0]] is not ranges[changed[0]]
        assert all(one is not own for one, own in zip(given, ranges, strict=True))
        return changed[0]

    def length(_: Any, given: list[LayerRange], until: float | None) -> float:
        assert until == 20.0
        return lengths[short(given)]

    def narrow(_: Any, given: list[LayerRange], below: float, deadline: float | None, rounds: int = 4) -> MilpOutcome:
        model.cuts.append("met")
        if given is ranges:
            calls.append((None, below, deadline, rounds))
            return optimal(9.5)
        number = short(given)
        calls.append((number, below, deadline, rounds))
        return MilpOutcome(MilpStatus.INFEASIBLE, None, INFINITE) if number == 3 else optimal(9.0)

    monkeypatch.setattr(module, "_length", length)
    monkeypatch.setattr(module, "narrow_ranges", narrow)
    assert rule_out_short(model, ranges, 10.0, 20.0, 30.0) == optimal(9.5)  # type: ignore[arg-type]
    assert calls == [(3, 10.0, 20.0, 1), (5, 10.0, 20.0, 1), (None, 10.0, 30.0, 4)]
    assert [one.least for one in ranges] == [1, 3, 1, 3, 1, 1]
    assert model.forgotten == [1, 1] and model.cuts == ["known", "met"]


# Work limits


def limits_of(problem: PipelineProblem) -> WorkLimits:
    return WorkLimits(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))


def test_what_is_around_a_stages_work_is_the_way_down_to_it_and_the_way_up_from_it() -> None:
    """Three stages with one layer at the least: forwards of 1.5 with the embedding, 1 at half the speed, 1.25 with the
    head; backwards twice as long. The first stage has its tail alone around it. The second one waits for 1.5 and a
    transfer, and ends with a transfer, 3 and the first stage's tail. The last one waits for 1.5, 2 and two transfers,
    and is followed by as many, 4, 3 and that tail."""
    problem = small_problem(
        stages=3, static_mib=(0.0,) * 3, limit_mib=(500.0,) * 3, embedding_forward=0.5, head_forward=0.25,
        slowness=(1.0, 2.0, 1.0), lag=0.125, tail=(0.5, 1.0, 2.0),
    )  # fmt: skip
    around = [0.5, 1.5 + 0.125 + 0.125 + 3.0 + 0.5, 3.5 + 0.25 + 0.25 + 7.0 + 0.5]
    limits = limits_of(problem)
    expected = [(100.0 - time) / 4 + 1e-7 for time in around]
    assert limits.under(100.0).tolist() == pytest.approx(expected, rel=1e-12)
    # Four micro-batches of 4.75 and twice as long back, on stages of which the second works half as fast.
    work = 4 * 3 * 4.75
    assert limits.bound() == pytest.approx((work + around[0] + around[1] / 2 + around[2]) / 2.5, rel=1e-12)
    # The quickest kind counts where there are several, and all layers work.
    two = problem.replace(kinds=(*problem.kinds, LayerKind("b", 2, 0.25, 1.0, KEPT)))
    around = [0.5, 0.75 + 0.125 + 0.125 + 1.5 + 0.5, 1.25 + 0.25 + 0.25 + 2.5 + 0.5]
    assert limits_of(two).under(100.0).tolist() == pytest.approx([(100.0 - time) / 4 + 1e-7 for time in around])
    assert limits_of(two).bound() == pytest.approx((4 * 3 * 5.25 + around[0] + around[1] / 2 + around[2]) / 2.5)


def test_a_tail_of_its_own_may_be_the_longest_that_follows() -> None:
    limits = limits_of(small_problem(tail=(0.0, 9.0)))
    assert limits.under(24.0).tolist() == pytest.approx([24.0 / 4, (24.0 - 1.0 - 9.0) / 4], rel=1e-7)


def test_pieces_of_a_sequence_wait_for_a_piece() -> None:
    """With pieces of a half the last stage waits for half a forward, and half a backward follows it."""
    limits = limits_of(small_problem(schedule=ScheduleSpec("seqpipe", seq_splits=2)))
    assert limits.under(24.0)[1] == pytest.approx((24.0 - 0.5 - 1.0) / 4, rel=1e-7)


def test_weight_gradients_part_the_backward() -> None:
    """One micro-batch on F F B W B W of each stage, with backwards of 0.75 · 4 and weight gradients of 0.25 · 4.

    Between the two forwards of stage 0 those of stage 1 run. What stage 1 does between the backwards of stage 0 runs
    beside the weight gradient there, which is on the path. Before stage 1 there is one forward; between its second
    forward and its first backward stage 0 has one of each."""
    problem = small_problem(
        interleaves=2, micro_batches=1, schedule=ScheduleSpec("zbv"), backward_ratio=4.0, weight_gradient_share=0.25,
    )  # fmt: skip
    found = limits_of(problem).under(40.0)
    schedule = schedule_of(problem)
    assert [[tuple(task[:2]) for task in order] for order in schedule.order.tolist()] == [
        [(0, 0), (0, 1), (1, 1), (2, 1), (1, 0), (2, 0)]
    ] * 2
    assert found.tolist() == pytest.approx([40.0 - 1.0 - 1.0, 40.0 - 1.0 - 1.0 - 3.0], rel=1e-7)
