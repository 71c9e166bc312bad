"""The rows of the MILPs against the checker: every assignment of layers and recompute of small problems, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import _exact_times as exact_times
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.milp.compact_model import CompactModel
from taylor.pipeline_solver.milp.plan_rows import layer_bounds, mode_prefix, pinned_mib, safe_name
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from tests.solver_cases import plan_of, small_problem

KEPT = {NONE: 4.0, FULL: 1.0, SELECT: 2.0, "off:x": 1.5}


def kind(name: str, count: int, forward: float = 1.0, layer_mib: float = 10.0, **more: Any) -> LayerKind:
    return LayerKind(name, count, forward, layer_mib, more.pop("kept", KEPT), **more)


def three_stages() -> PipelineProblem:
    """Two kinds, the first of which weighs more; some plans are too large for the first or the last stage."""
    return small_problem(
        stages=3,
        kinds=(kind("a", 2, 0.5, 20.0), kind("b-b", 2), kind("mtp", 1, 0.25, 3.0, pinned_last=True)),
        static_mib=(1.0, 2.0, 3.0),
        # One layer of the first kind more than its recompute frees; two of the second, recomputed, beside MTP's 3 + 4.
        limit_mib=(41.0 + 15.0, 50.0, 30.0 + 7.0 + 1.0),
        head_forward=0.75,
        embedding_forward=0.125,
    )  # fmt: skip


def folded() -> PipelineProblem:
    """Three kinds on four chunks that may be empty."""
    return small_problem(
        interleaves=2,
        micro_batches=2,
        kinds=(kind("a", 1), kind("b", 2, 0.5), kind("c", 1, 2.0)),
        schedule=ScheduleSpec("interleaved"),
        min_layers=0,
        recompute_ratio={},
    )


def given() -> PipelineProblem:
    """Two modes, chunks with a given, a greatest and no number of layers and of recomputed ones."""
    return small_problem(
        kinds=(kind("a", 2), kind("b", 2)),
        recompute_ratio={FULL: 1.0, SELECT: 0.5},
        max_layers={(0, 1): 2},
        fixed_recompute={(FULL, 0, 0): 1, (SELECT, 0, 1): 1},
    )


def fixed() -> PipelineProblem:
    return small_problem(
        stages=3, kinds=(kind("a", 1), kind("b", 3)), static_mib=(0.0,) * 3, limit_mib=(200.0,) * 3,
        fixed_layers={(0, 1): 2}, recompute_ratio={FULL: 1.0},
    )  # fmt: skip


def on_the_host() -> PipelineProblem:
    """A choice that moves states to a host, which is too small for some plans; weight gradients are tasks."""
    off = LayerChoice(0.25, 0.5, 0.125, -3.0, 2.0, 3.0)
    return small_problem(
        micro_batches=3,
        kinds=(kind("a", 2, 0.5, choices={"off:x": off}), kind("b", 1, 1.5, choices={"off:x": off})),
        schedule=ScheduleSpec("zb-h1"),
        weight_gradient_share=0.25,
        choices=("off:x",),
        # Stage 0 has 20 MiB of two layers and two micro-batches of 4 each: fits but for one byte with one moved.
        limit_mib=(5.0 + 20.0 - 3.0 + 2 * 5.5, 100.0),
        host_limit_mib=(7.0, 8.0),
        slowness=(1.0, 1.5),
        backward_ratio=2.0,
    )  # fmt: skip


def without_weight_tasks() -> PipelineProblem:
    off = LayerChoice(0.25, 0.5, 0.125, 2.0)
    return small_problem(kinds=(kind("a", 3, choices={"off:x": off}),), choices=("off:x",), recompute_ratio={FULL: 0.5})


def alone() -> PipelineProblem:
    """Embedding, MTP and head may stand alone; behind MTP no layer is free."""
    return small_problem(
        stages=4,
        kinds=(kind("a", 1), kind("b", 2), kind("mtp", 2, pinned_last=True, places=(2,), hand_over=1.0)),
        static_mib=(0.0,) * 4,
        limit_mib=(500.0,) * 4,
        entries_alone=True,
        recompute_ratio={},
    )


def in_pieces() -> PipelineProblem:
    return small_problem(
        kinds=(kind("a", 2),), micro_batches=2, schedule=ScheduleSpec("seqpipe", seq_splits=2),
        limit_mib=(5.0 + 10.0 + 4.0 * 1.5, 100.0), backward_ratio=1.5,
    )  # fmt: skip


Assignment = dict[tuple[str, str], dict[tuple[int, int], int]]
"""Layers of each kind by chunk (stage, interleave), under ("layers", kind) and (mode, kind)."""


def assignments(problem: PipelineProblem) -> Iterator[Assignment]:
    """Every way to deal each kind's layers over the chunks, and to take some of a chunk's layers of a kind by mode."""
    chunks = [(s, v) for v in range(problem.interleaves) for s in range(problem.stages)]
    modes = problem.searched_modes

    def of_kind(count: int) -> list[list[tuple[int, tuple[int, ...]]]]:
        ways = []
        for held in itertools.product(range(count + 1), repeat=len(chunks)):
            if sum(held) == count:
                taken = [
                    [(n, one) for one in itertools.product(range(n + 1), repeat=len(modes)) if sum(one) <= n]
                    for n in held
                ]
                ways += [list(way) for way in itertools.product(*taken)]
        return ways

    kinds = problem.placed_kinds
    for ways in itertools.product(*(of_kind(each.count) for each in kinds)):
        found: Assignment = {}
        for each, way in zip(kinds, ways, strict=True):
            found["layers", each.name] = {chunk: n for chunk, (n, _) in zip(chunks, way, strict=True)}
            for index, mode in enumerate(modes):
                found[mode, each.name] = {chunk: one[index] for chunk, (_, one) in zip(chunks, way, strict=True)}
        yield found


def plan_that_holds(problem: PipelineProblem, found: Assignment) -> PipelinePlan | None:
    """The plan that an assignment states, None where it breaks a rule of the problem."""

    def grid(of: dict[tuple[int, int], int]) -> list[list[int]]:
        return [[of[s, v] for s in range(problem.stages)] for v in range(problem.interleaves)]

    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    layers = {}
    for each in problem.kinds:
        if each.pinned_last:
            place = schedule.chunk_at(problem.places_of(each)[0])
            rows = [[each.count * ((v, s) == place) for s in range(problem.stages)] for v in range(problem.interleaves)]
            layers[each.name] = rows
        else:
            layers[each.name] = grid(found["layers", each.name])
    modes = problem.searched_modes
    by_mode = {
        mode: np.sum([grid(found[mode, each.name]) for each in problem.placed_kinds], axis=0).tolist() for mode in modes
    }
    plan = plan_of(layers, by_mode)
    by_kind = plan.recompute_by_kind()
    meant = all(
        by_kind[each.name][mode] == tuple(map(tuple, grid(found[mode, each.name])))
        for each in problem.placed_kinds
        for mode in modes
    )
    return plan if meant and not check(problem, plan) else None


class Rows:
    """The linear form of a problem's compact model, and the points at which its rows hold."""

    def __init__(self, problem: PipelineProblem) -> None:
        self.problem, self.model = problem, CompactModel.build(problem)
        form = self.model.form
        self.matrix = np.zeros((len(form.rows), len(form.names)))
        for index, row in enumerate(form.rows):
            self.matrix[index, list(row.columns)] = row.coefficients
        self.lower = np.array([row.lower for row in form.rows]) - 1e-6
        self.upper = np.array([row.upper for row in form.rows]) + 1e-6
        plans = self.model.plans
        counted = {("layers", name): variable for name, variable in plans.layers.items()} | plans.recompute
        self.columns = {key: {chunk: entry for chunk, entry in variable.items()} for key, variable in counted.items()}
        taken = {column for of in self.columns.values() for column in of.values()}
        free = [c for c in np.nonzero(form.integer)[0].tolist() if c not in taken]
        # Every combination of the switches.
        self.switched = np.zeros((2 ** len(free), len(form.names)))
        self.switched[:, free] = list(itertools.product((0, 1), repeat=len(free)))

    def satisfied_by(self, found: Assignment, times: np.ndarray) -> bool:
        """Whether all rows hold with some switches; a count that has no variable is 0."""
        form = self.model.form
        point = np.zeros(len(form.names))
        for key, of in found.items():
            for chunk, n in of.items():
                column = self.columns[key].get(chunk)
                if n and (column is None or n > form.upper[column]):
                    return False
                if column is not None:
                    point[column] = n
        for index, variable in self.model.plans.durations.items():
            point[variable] = times[index]
        bodies = (self.switched + point) @ self.matrix.T
        return bool(((bodies >= self.lower) & (bodies <= self.upper)).all(axis=1).any())

    def times_of(self, plan: PipelinePlan) -> np.ndarray:
        """Exact times of a plan's tasks by the event graph's classes."""
        problem = self.problem
        exact, _, _ = exact_times(problem, plan, self.model.plans.schedule)
        times = np.zeros(self.model.graph.classes)
        for (direction, v, s, _), time in exact.items():
            times[(direction * problem.interleaves + v) * problem.stages + s] = float(time)
        return times


@pytest.mark.parametrize(
    "problem", [three_stages, folded, given, fixed, on_the_host, without_weight_tasks, alone, in_pieces]
)
def test_the_rows_hold_for_every_plan_that_the_checker_passes_and_for_no_other(problem: Any) -> None:
    stated = problem()
    rows = Rows(stated)
    right, wrong = 0, []
    timeless = [r for r, row in enumerate(rows.model.form.rows) if row.name.startswith("duration")]
    for found in assignments(stated):
        plan = plan_that_holds(stated, found)
        if plan is None:
            wrong.append(found)
        else:
            right += 1
            assert rows.satisfied_by(found, rows.times_of(plan)), (found, "is a plan, and a row forbids it")
            assert rows.model.durations_of(rows.model.point_of(plan)) == pytest.approx(rows.times_of(plan), abs=1e-9)
    rows.lower[timeless], rows.upper[timeless] = -np.inf, np.inf
    for found in wrong:
        assert not rows.satisfied_by(found, np.zeros(rows.model.graph.classes)), (
            found,
            "is no plan, and all rows hold",
        )
    assert right >= 2 and len(wrong) >= 2, (right, len(wrong))


def test_a_kind_stands_where_the_least_layers_before_and_behind_leave_it_room() -> None:
    """Two and three layers on four chunks of one at least: the second chunk holds one of the first kind at most."""
    problem = small_problem(stages=4, kinds=(kind("a", 2), kind("b", 3)), static_mib=(0.0,) * 4, limit_mib=(500.0,) * 4)
    chunks = [(s, 0) for s in range(4)]

    def most(**changes: Any) -> list[list[int]]:
        changed = problem.replace(**changes)
        found = layer_bounds(changed, list(changed.placed_kinds), chunks)
        return [[found[name, chunk] for chunk in chunks] for name in ("a", "b")]

    assert most() == [[2, 1, 0, 0], [0, 1, 2, 2]]
    assert most(min_layers=0) == [[2, 2, 2, 2], [3, 3, 3, 3]]
    assert most(entries_alone=True) == [[2, 2, 1, 0], [1, 2, 3, 3]]
    assert most(max_layers={(0, 2): 1}) == [[2, 1, 0, 0], [0, 1, 1, 2]]
    assert most(fixed_layers={(0, 0): 1}) == [[1, 1, 0, 0], [0, 1, 2, 2]]


def test_names_of_variables_are_words() -> None:
    assert [mode_prefix(mode) for mode in (FULL, SELECT, "off:x")] == ["recompute", "select", "choice_off_x"]
    assert safe_name("gdn+moe#2") == "gdn_moe_2"


def test_pinned_kinds_take_their_states_and_what_they_keep() -> None:
    problem = alone().replace(min_layers=0)
    schedule = build_schedule(problem.schedule, 4, 1, 4)
    assert [pinned_mib(problem, schedule, s, [3.0]) for s in range(4)] == [0, 0, 2 * (10 + 3 * 4), 0]


def test_a_row_of_memory_bears_its_stage_and_where_there_are_several_its_moment() -> None:
    """On a V chunks are alive together in more than one way that may be the worst."""

    def names(problem: PipelineProblem) -> list[str]:
        return [row.name for row in CompactModel.build(problem).form.rows if row.name.startswith("memory")]

    assert names(small_problem()) == ["memory[0]", "memory[1]"]
    folded_twice = small_problem(interleaves=2, schedule=ScheduleSpec("zbv"))
    assert names(folded_twice) == ["memory[0,0]", "memory[0,1]", "memory[1,0]", "memory[1,1]"]
