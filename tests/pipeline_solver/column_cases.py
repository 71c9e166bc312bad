"""Problems of few columns, their columns, and prices for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.bounds.path_lp import Prices
from taylor.pipeline_solver.columns.columns import ColumnSet, build_columns
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from tests.solver_cases import small_problem

KEPT = {NONE: 4.0, FULL: 1.0, SELECT: 2.0, "off": 1.5}
"""MiB that a layer keeps for a micro-batch by what is recomputed or chosen of it."""


def kind(name: str, count: int, forward: float = 1.0, layer_mib: float = 10.0, **more: Any) -> LayerKind:
    """A kind of layers that keeps `KEPT`: 4 MiB, 1 when recomputed and 2 when partly."""
    return LayerKind(name, count, forward, layer_mib, more.pop("kept", KEPT), **more)


def straight(**changes: Any) -> PipelineProblem:
    """Three stages of which the first two need recompute in some plans."""
    problem = small_problem(
        stages=3,
        kinds=(kind("a", 2, 0.5), kind("b", 3), kind("mtp", 1, 0.25, pinned_last=True)),
        static_mib=(0.0, 1.0, 2.0),
        limit_mib=(46.0, 45.0, 200.0),
        head_forward=0.75,
        embedding_forward=0.125,
        slowness=(1.0, 1.5, 1.0),
    )
    return problem.replace(**changes)


def folded(**changes: Any) -> PipelineProblem:
    """Three kinds on four chunks that may be empty."""
    problem = small_problem(
        interleaves=2,
        micro_batches=2,
        kinds=(kind("a", 1), kind("b", 3, 0.5), kind("c", 1, 2.0)),
        schedule=ScheduleSpec("interleaved"),
        min_layers=0,
        limit_mib=(52.0, 54.0),
        lag=0.25,
        tail=(0.5, 1.0),
    )
    return problem.replace(**changes)


PROBLEMS = [straight(), folded(), straight(recompute_ratio={FULL: 1.0, SELECT: 0.25}), folded(slowness=(1.0, 1.5))]
"""Problems whose stages have few columns."""


def listed(problem: PipelineProblem) -> ColumnSet:
    """All columns of a problem that has few of them."""
    return build_columns(problem, stage_tuples(problem, 10_000), 10_000)


def two_kinds(**changes: Any) -> PipelineProblem:
    """Two kinds on two stages of two chunks each, with an entry, a head and a pinned kind."""
    problem = small_problem(
        interleaves=2,
        micro_batches=2,
        kinds=(kind("a", 3, 0.5, 8.0), kind("b", 4), kind("mtp", 1, 0.25, 6.0, pinned_last=True)),
        schedule=ScheduleSpec("interleaved"),
        limit_mib=(72.0, 78.0),
        head_forward=0.75,
        embedding_forward=0.125,
        slowness=(1.0, 1.5),
    )
    return problem.replace(**changes)


def three_kinds() -> PipelineProblem:
    """Three kinds on the stages of `two_kinds`, whose chunks may be empty."""
    return two_kinds(kinds=(kind("a", 2), kind("b", 2, 0.5), kind("c", 2, 2.0)), min_layers=0, limit_mib=(70.0, 90.0))


def priced(rng: np.random.Generator, problem: PipelineProblem, ordered: bool = True) -> Prices:
    """Prices of an LP, drawn at random; without those of the order of kinds if it is not kept."""
    S, V, K = problem.stages, problem.interleaves, len(problem.placed_kinds)
    late, early = rng.normal(size=(2, K - 1, V, S)) * ordered
    return Prices(rng.normal(size=S), rng.normal(size=K), rng.normal(size=(2, V, S)), late, early)
