"""Without virtual stages, every run of layers that a stage may have: first layer, length, cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline_solver.columns.chunk_types import ChunkType
from taylor.pipeline_solver.columns.stage_tuples import TooManyColumns, stage_tuples
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import duration_blocks, pinned_times, schedule_of

MOST_RUNS = 8_000_000
"""Most entries of a table of all runs: some seconds' work."""

MOST_TYPES = 5_000
"""Most types of runs of one stage that are listed."""


@dataclass(frozen=True)
class StageRuns:
    """The runs of every stage, each with the quickest recompute that fits its memory.

    Tables are indexed by the stage, the number of layers as an index into `counts`, and the layer that the run
    begins with.

    Parameters
    ----------
    counts : int64 [C]
        Possible numbers of layers of a stage.
    forward : float64 [S, C, L + 1]
        Forward time of a run, head and embedding included; inf where there is no such run.
    extra : float64 [3, S, C, L + 1]
        Time that its recompute and other choices add to forward, backward and weight gradient; 0 without any.
    kind : int64 [S, C, L + 1]
        Index into the stage's part of `types`.
    types : list by stage of list of ChunkType
    choice : list by stage of int64
        The recompute choice of each type.
    """

    problem: PipelineProblem
    counts: NDArray[np.int64]
    forward: NDArray[np.float64]
    extra: NDArray[np.float64]
    kind: NDArray[np.int64]
    types: list[list[ChunkType]]
    choice: list[NDArray[np.int64]]

    @cached_property
    def blocks(self) -> NDArray[np.float64]:
        """Time of a task of each direction, float64 [D, S, C, L + 1]; inf where there is no such run."""
        stage = np.arange(self.problem.stages)[:, None, None]
        problem, beside = self.problem, None
        if problem.adds_pinned:
            beside = np.stack([pinned_times(problem, s, 2) for s in range(problem.stages)], axis=1)[..., None]
        blocks = np.stack(duration_blocks(problem, self.forward, self.extra, stage, beside))
        blocks[:, ~np.isfinite(self.forward)] = np.inf
        return blocks

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """Time of one micro-batch on the stage, float64 [S, C, L + 1]; inf where there is no such run."""
        work: NDArray[np.float64] = self.blocks.sum(axis=0) * self.problem.schedule.seq_splits
        return work

    def plan(self, chosen: list[tuple[int, int]]) -> PipelinePlan:
        """The plan of one run a stage: index into `counts`, first layer."""
        problem = self.problem
        picked = [(s, int(self.kind[s, c, p])) for s, (c, p) in enumerate(chosen)]
        layers = {}
        placed = problem.placed_kinds
        for kind in problem.kinds:
            row = [0] * problem.stages
            if kind in placed:
                row = [self.types[s][t].layers[placed.index(kind)] for s, t in picked]
            elif kind.pinned:
                row[problem.places_of(kind)[0]] = kind.count
            layers[kind.name] = as_grid([row])
        recompute = {
            mode: as_grid([[int(self.types[s][t].choices.recompute[self.choice[s][t], j]) for s, t in picked]])
            for j, mode in enumerate(problem.searched_modes)
        }
        return PipelinePlan(layers, recompute)


def stage_runs(problem: PipelineProblem, stopper: Stopper | None = None) -> StageRuns | None:
    """All runs of a problem without virtual stages; None where they are too many for a table, or one of them has no
    choice that is the quickest in every task.

    A stage without possible runs has no finite entry.

    Raises
    ------
    OutOfTime
        If the stopper's deadline passes first.
    """
    assert problem.interleaves == 1
    try:
        tuples = stage_tuples(problem, MOST_TYPES, stopper)
    except TooManyColumns:
        return None
    alive = alive_vectors(schedule_of(problem))
    sums = [part.totals.sum(axis=1) for part in tuples]
    counts = np.unique(np.concatenate(sums)).astype(np.int64)
    shape = (problem.stages, len(counts), problem.layers + 1)
    if np.prod(shape) > MOST_RUNS:
        return None
    forward, extra = np.full(shape, np.inf), np.zeros((3, *shape))
    kind = np.full(shape, -1, dtype=np.int64)
    types, choices = [], []
    for s, part in enumerate(tuples):
        of_stage = part.types[0] if part.types else []
        choice = np.full(len(of_stage), -1, dtype=np.int64)
        for row, member in enumerate(part.members[:, 0].tolist()):
            chunk_type = of_stage[member]
            need = chunk_type.choices.need(alive[s][:, 0])
            fits = (need <= part.free_mib[row][:, None] + MEMORY_TOLERANCE_MIB).all(axis=0)
            elsewhere = chunk_type.choices.needs_elsewhere(problem, alive[s][:, 0])
            for limit, mib in zip(problem.limits_elsewhere(s), elsewhere, strict=True):
                fits &= (mib <= limit + MEMORY_TOLERANCE_MIB).all(axis=0)
            if not fits.any():
                continue
            times = chunk_type.choices.extra[:, fits]
            quickest = int((times.sum(axis=0)).argmin())
            if problem.choices and (times[:, quickest] > times.min(axis=1)).any():
                return None
            choice[member] = first = int(np.flatnonzero(fits)[quickest])
            c, places = int(np.searchsorted(counts, sums[s][row])), slice(chunk_type.first, chunk_type.last + 1)
            forward[s, c, places], kind[s, c, places] = part.forward[row, 0], member
            extra[:, s, c, places] = chunk_type.choices.extra[:, first, None]
        types.append(of_stage)
        choices.append(choice)
    return StageRuns(problem, counts, forward, extra, kind, types, choices)
