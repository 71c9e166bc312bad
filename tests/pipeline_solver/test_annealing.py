"""Annealing: the compiled kernel against its Python twin, and what it may never do."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.pipeline_solver.bounds.cut_pool import CutPool
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.stage_programs import StagePrograms
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.heuristics import annealing
from taylor.pipeline_solver.heuristics.annealing import Annealer, Cooling
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.solver_cases import python_of, reference_problem

KERNELS = [
    "anneal", "change_lengths", "chosen_length", "column_with", "consistent", "cut_lengths", "draw_choice",
    "draw_layer", "draw_move", "member_of", "path_length", "redraw", "take_columns", "take_durations", "trace_path",
]  # fmt: skip

COOLING = Cooling(steps=400, seed=7, hot=20.0, cold=0.1)


def case(interleaves):
    """An annealer of a case of four stages with two kinds, a lag and tails, and a choice to begin from."""
    problem = reference_problem(interleaves=interleaves).replace(
        stages=4,
        micro_batches=8,
        static_mib=(3383.0, 2382.0, 2382.0, 8675.0),
        limit_mib=(60000.0,) * 4,
        lag=0.1,
        tail=(0.5, 0.0, 0.25, 1.0),
        kinds=tuple(
            type(kind)(kind.name, count, kind.forward, kind.layer_mib / 2, kind.activation_mib)
            for kind, count in zip(reference_problem().kinds, (3, 13), strict=True)
        ),
    )
    columns = build_columns(problem, stage_tuples(problem, 100_000), 100_000)
    graph = EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags)
    tails = np.array(problem.tail)
    chosen = StagePrograms(columns).best(np.random.default_rng(3).random(len(columns)))
    return Annealer(columns, graph, tails), graph, chosen


def step_time(annealer, graph, chosen):
    durations = np.ascontiguousarray(annealer.moves.durations[chosen].T).reshape(-1)
    return graph.longest_path(np.concatenate([durations, annealer.tasks.tails]))


@pytest.mark.parametrize("interleaves", [1, 2])
def test_the_compiled_walk_is_that_of_its_python_twin(monkeypatch, interleaves):
    annealer, graph, chosen = case(interleaves)
    compiled = annealer.run(chosen, CutPool(graph.classes - 4), COOLING)
    for name in KERNELS:
        monkeypatch.setattr(annealing, name, python_of(getattr(annealing, name)))
    plain = annealer.run(chosen, CutPool(graph.classes - 4), COOLING)
    assert compiled[0] == pytest.approx(plain[0], rel=1e-12)
    assert compiled[1].tolist() == plain[1].tolist()
    np.testing.assert_allclose(compiled[2], plain[2], rtol=1e-12)


@pytest.mark.parametrize("interleaves", [1, 2])
def test_what_annealing_finds_is_attained_consistent_and_no_worse_than_the_start(interleaves):
    annealer, graph, chosen = case(interleaves)
    time, best, _ = annealer.run(chosen, CutPool(graph.classes - 4), COOLING)
    columns = annealer.columns
    assert time == pytest.approx(step_time(annealer, graph, best), rel=1e-12)
    assert time < step_time(annealer, graph, chosen)
    assert columns.totals[best].sum(axis=0).tolist() == [3, 13]
    assert columns.stage[best].tolist() == [0, 1, 2, 3]
    assert annealing.consistent(best, annealer.moves)


def test_every_path_met_on_the_way_is_a_lower_bound_at_any_durations():
    annealer, graph, chosen = case(2)
    _, _, paths = annealer.run(chosen, CutPool(graph.classes - 4), COOLING)
    assert len(paths)
    rng = np.random.default_rng(5)
    for _ in range(20):
        durations = rng.random(graph.classes - 4) * 10
        longest = graph.longest_path(np.concatenate([durations, annealer.tasks.tails]))
        assert (paths[:, :-1] @ durations + paths[:, -1]).max() <= longest * (1 + 1e-12)
