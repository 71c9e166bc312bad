"""Ratios, their scatter and what is said of them, from times of pieces that are written down here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.profile import TimeRatios
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.profiling.extract import ExtractedRatios
from taylor.profiling.fit import LinearFit, centre
from taylor.profiling.memory import ProfiledMemory
from taylor.profiling.pattern import KernelWindow, Piece
from taylor.profiling.pool import Pooled, PooledTimes
from taylor.profiling.ratios import RatioFigures, ratios_of
from taylor.profiling.table import COLUMNS, write_profiling_result

PLAN = PipelinePlan({"dense": ((1, 0),), "moe": ((1, 2),)}, {FULL: ((1, 0),)})
ONE_BY_ONE: Mapping[Piece, float] = {
    ("before", ""): 3.0, ("after", "moe"): 7.0, ("after", "dense"): 1.0, ("again before", ""): 2.0,
    ("again after", "moe"): 6.0, ("again after", "dense"): 1.5, ("back before", "moe"): 9.0,
    ("back before", "dense"): 3.0, ("back after", ""): 5.0, ("head", ""): 8.0, ("back head", ""): 16.0,
    ("embedding", ""): 1.0, ("back embedding", ""): 2.0, ("select", "moe"): 2.5,
}  # fmt: skip
"""Times of pieces, ms: a MoE layer takes 10 forwards and 14 backwards, a dense one 4 and 8."""


def made_of(
    pieces: Mapping[Piece, float], transfer_ms: float | None = None, scatter: float = 0.0,
    spec: ScheduleSpec = ScheduleSpec(), plan: PipelinePlan = PLAN,  # noqa: B008 - frozen
) -> RatioFigures:  # fmt: skip
    """The ratios of pieces that are each measured alone, three times, one of them late and one early."""
    windows = {
        KernelWindow(((piece, 1.0),), 0): Pooled(value + scatter * np.array([-1.0, 0.0, 1.0]), 3)
        for piece, value in pieces.items()
    }
    return ratios_of(plan, build_schedule(spec, 2, 1, 2), PooledTimes(windows), transfer_ms)


def test_ratios_are_those_of_the_pieces_times() -> None:
    found = made_of(ONE_BY_ONE, transfer_ms=0.5)
    assert found.problems == found.missing == found.notes == ()
    ratios = found.ratios
    assert ratios is not None
    assert ratios.unit_ms == pytest.approx(10.0)
    assert ratios.dense_forward == pytest.approx(0.4)
    assert ratios.backward == pytest.approx(1.4)
    assert ratios.recompute == {FULL: pytest.approx(0.8), SELECT: pytest.approx(0.25), "none": 0.0}
    # What a step pays for the head both ways, under one backward ratio.
    assert ratios.head == pytest.approx(24.0 / 2.4 / 10.0)
    assert ratios.embedding == pytest.approx(3.0 / 2.4 / 10.0)
    assert ratios.lag == pytest.approx(0.05)
    assert found.samples["moe_bw"] == 3


def test_a_backward_without_time_is_named_and_does_not_hide_the_forward() -> None:
    windows = {
        KernelWindow(((("before", ""), 1.0), (("after", "dense"), 1.0)), 0): Pooled(np.full(3, 10.0), 3),
        KernelWindow(((("back before", "dense"), 1.0), (("back after", ""), 1.0)), 0): Pooled(np.zeros(3), 3),
    }
    plan = PipelinePlan({"dense": ((2, 0),)}, {FULL: ((0, 0),)})
    found = ratios_of(plan, build_schedule(ScheduleSpec(), 2, 1, 2), PooledTimes(windows), None)
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "the backward of a dense layer comes out at or below 0 ms"
    ]


def test_scatter_adds_up_in_squares() -> None:
    """Every piece scatters by 0.1: a sum of two by 0.1 sqrt(2), a ratio by the root of both relative squares."""
    found = made_of(ONE_BY_ONE, scatter=0.1)
    two = 0.1 * sqrt(2)
    assert found.spread["moe_bw"] == pytest.approx(two / 10)
    assert found.spread["dmratio"] == pytest.approx(hypot(two / 4, two / 10))
    assert found.spread["bfratio"] == pytest.approx(hypot(two / 14, two / 10))
    assert found.spread["re_grow_ration"] == pytest.approx(hypot(two / 8, two / 10))
    assert found.spread["hratio"] == pytest.approx(hypot(two / 24, two / 10))
    assert set(found.samples.values()) == {3}


def test_what_is_not_seen_is_missing_and_taken_as_usual() -> None:
    usual = TimeRatios()
    found = made_of({piece: ONE_BY_ONE[piece] for piece in [("before", ""), ("after", "moe")]})
    assert found.ratios is not None and set(found.missing) == {"dmratio", "bfratio", "re_grow_ration", "hratio"}
    assert (found.ratios.dense_forward, found.ratios.backward) == (usual.dense_forward, usual.backward)
    assert (found.ratios.head, found.ratios.recompute[FULL]) == (usual.head, usual.recompute[FULL])
    assert found.ratios.recompute[SELECT] == pytest.approx(usual.recompute[SELECT] * usual.recompute[FULL])
    assert (found.ratios.embedding, found.ratios.lag) == (0.0, 0.0)
    assert {name for name, count in found.samples.items() if count} == {"moe_bw"}
    # A head that shows forward alone counts as it is.
    some = {piece: ONE_BY_ONE[piece] for piece in [("before", ""), ("after", "moe"), ("head", "")]}
    alone = made_of(some)
    assert alone.ratios is not None and alone.ratios.head == pytest.approx(0.8)


def test_selective_recompute_counts_what_of_it_precedes_attention() -> None:
    found = made_of({**ONE_BY_ONE, ("select before", "moe"): 1.5})
    assert found.ratios is not None and found.ratios.recompute[SELECT] == pytest.approx(0.4)


def test_weight_gradients_are_part_of_a_backward() -> None:
    spec = ScheduleSpec("zb-h1")
    weights = {("weight", "moe"): 2.0, ("weight", "dense"): 1.0, ("weight head", ""): 4.0}
    found = made_of({**ONE_BY_ONE, **weights}, spec=spec)
    assert found.ratios is not None
    assert found.ratios.backward == pytest.approx(1.6)
    assert found.ratios.head == pytest.approx(28.0 / 2.6 / 10.0)


@pytest.mark.parametrize(("time", "told"), [(10.5, True), (10.0, False), (9.0, False)])
def test_recompute_that_is_seen_with_the_backward_alone_is_a_forward_once_more(time: float, told: bool) -> None:
    """Where both take no longer than a forward nothing is shared out."""
    both = (
        (("again after", "moe"), 1.0), (("again before", ""), 1.0), (("back after", ""), 1.0),
        (("back before", "moe"), 1.0),
    )  # fmt: skip
    windows = {
        KernelWindow(((("after", "moe"), 1.0), (("before", ""), 1.0)), 0): Pooled(np.array([9.9, 10.0, 10.1]), 3),
        KernelWindow(both, 0): Pooled(time + np.array([-0.2, 0.0, 0.2, 0.0]), 3),
    }
    found = ratios_of(PLAN, build_schedule(ScheduleSpec(), 2, 1, 2), PooledTimes(windows), None)
    if not told:
        assert "bfratio" in found.missing and found.notes == ()
        return
    assert found.ratios is not None and found.ratios.backward == pytest.approx((time - 10) / 10)
    assert found.ratios.recompute[FULL] == pytest.approx(1.0)
    assert found.notes == ("every moe layer is recomputed: its recompute is taken as long as its forward",)
    scatter = hypot(0.1, sqrt(0.08 / 3))
    assert found.spread["bfratio"] == pytest.approx(0.05 * hypot(scatter / 0.5, 0.01) / 0.05)
    assert found.samples["bfratio"] == 3


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({("after", "moe"): -4.0}, "no rank shows the forward of a moe layer"),
        ({("after", "dense"): -4.0}, "the forward of a dense layer comes out at or below 0"),
        ({("back before", "dense"): -6.0}, "the backward of a dense layer comes out at or below 0"),
        ({("again after", "dense"): -3.0}, "the recompute of a dense layer comes out at or below 0"),
        ({("head", ""): -17.0}, "hratio comes out below 0"),
    ],
)
def test_times_of_nothing_and_less_are_no_times(changed: Mapping[Piece, float], says: str) -> None:
    found = made_of({**ONE_BY_ONE, **changed})
    assert found.ratios is None and any(says in problem for problem in found.problems)


def test_a_time_of_exactly_nothing_is_none() -> None:
    schedule = build_schedule(ScheduleSpec(), 2, 1, 2)
    forward = KernelWindow(((("after", "moe"), 1.0), (("before", ""), 1.0)), 0)
    backward = KernelWindow(((("back after", ""), 1.0), (("back before", "moe"), 1.0)), 0)
    found = ratios_of(PLAN, schedule, PooledTimes({forward: Pooled(np.zeros(3), 3)}), None)
    assert found.ratios is None and "no rank shows the forward of a moe layer" in found.problems[0]
    windows = {forward: Pooled(np.full(3, 10.0), 3), backward: Pooled(np.array([-0.125, 0.0, 0.125]), 3)}
    found = ratios_of(PLAN, schedule, PooledTimes(windows), None)
    assert found.ratios is None and "the backward of a moe layer comes out at or below 0" in found.problems[0]


@pytest.mark.parametrize(("scatter", "fits"), [(2.1, True), (2.15, False)])
def test_a_forward_that_scatters_by_a_third_is_no_figure(scatter: float, fits: bool) -> None:
    """Two pieces, together 10 ms; 0.3 of it is 3 ms, and 2.1213 ms of each."""
    found = made_of(ONE_BY_ONE, scatter=scatter)
    assert any("the forward of a moe layer scatters by 30%" in problem for problem in found.problems) is not fits


def test_an_embedding_of_less_than_nothing_is_none() -> None:
    found = made_of({**ONE_BY_ONE, ("back embedding", ""): -2.0, ("select", "moe"): -1.0})
    assert found.ratios is not None and found.ratios.embedding == 0.0 and found.ratios.recompute[SELECT] == 0.0


def test_another_kind_s_ratio_is_taken_where_the_body_shows_none_and_that_is_said() -> None:
    rest = {piece: time for piece, time in ONE_BY_ONE.items() if piece != ("back before", "moe")}
    found = made_of(rest)
    assert found.ratios is not None and found.ratios.backward == pytest.approx(2.0)
    assert found.notes == ("bfratio is that of the dense layers: no moe layer shows it",)


def test_a_fit_s_worst_miss_is_relative_to_what_was_measured() -> None:
    """x is 9 and 11: its mean is 10, off by 1/9 of the smaller; both are trusted alike."""
    fit = LinearFit()
    for value in (9.0, 11.0):
        fit.add({("x", ""): 1.0}, replace(centre(np.full(3, value)), scatter=1.0), 0.0)
    solved = fit.solve()
    found = solved.sum_of([("x", "")])
    assert found is not None and found.value == pytest.approx(10.0) and found.scatter == pytest.approx(sqrt(0.5))
    assert solved.worst_residual() == pytest.approx(1 / 9)
    twice = solved.sum_of([("x", ""), ("x", "")])
    assert twice is not None and twice.value == pytest.approx(20.0)
    assert LinearFit().solve().sum_of([("x", "")]) is None


def test_a_configuration_is_written_once_and_only_with_a_time(tmp_path: Path) -> None:
    def found(unit_ms: float | None) -> ExtractedRatios:
        config: Any = None
        memory = {1: ProfiledMemory(7.25, None), 0: ProfiledMemory(5.0, 3.0)}
        return ExtractedRatios(
            config, TimeRatios(unit_ms=unit_ms, embedding=0.25), {"hratio": 0.125}, {"hratio": 9}, transfer_ms=0.5,
            memory=memory, steps=4, stages=(0, 1), missing=("dmratio", "bfratio"),
        )  # fmt: skip

    first = Strategy(dp=1, tp=2, pp=3, ep=1)
    lost: Any = ExtractedRatios(found(1.0).config, None)
    rows = [
        (replace(first, tp=1), found(None)), (replace(first, tp=4), lost), (first, found(12.5)), (first, found(99.0)),
        (replace(first, dp=2), found(2.0)),
    ]  # fmt: skip
    lines = write_profiling_result(rows, tmp_path / "t.csv").read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS) and len(lines) == 3
    row = dict(zip(COLUMNS, lines[1].split(","), strict=True))
    assert [row[name] for name in ("dp", "tp", "pp", "ep", "moe_bw")] == ["1", "2", "3", "1", "12.5"]
    assert (row["hratio_spread"], row["hratio_samples"], row["bfratio_spread"], row["bfratio_samples"]) == (
        "0.125", "9", "", "0",
    )  # fmt: skip
    assert (row["peak_mib"], row["static_mib"], row["steps"], row["stages_seen"]) == ("0:5.0;1:7.2", "0:3.0", "4", "2")
    assert row["not_measured"] == "dmratio;bfratio" and lines[2].startswith("2,2,3,1")
