"""Largest work of a stage in a plan of a step time: its tasks fill the step except for warm-up and cool-down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.columns.chunk_types import chunk_bounds
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.durations import graph_of, schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph


def least_step_time(problem: PipelineProblem) -> float:
    """Lower bound of the step time from work alone, for all places of kinds; body-layer forwards."""
    return WorkLimits(problem, graph_of(problem)).bound()


class WorkLimits:
    """Work against step time: the largest work of a stage for a step time, and the least step time for all work."""

    def __init__(self, problem: PipelineProblem, graph: EventGraph) -> None:
        # Under a pairing, at best every layer is paired.
        plain = problem.pairing is None
        self.problem, self.graph = problem, graph if plain else graph_of(problem.replace(pairing=None))

    def under(self, step_time: float) -> NDArray[np.float64]:
        """Greatest time of one micro-batch on each stage in plans of at most `step_time`, float64 [S]."""
        return self._of_stages(self._least_forward(), step_time)

    def _least_forward(self) -> NDArray[np.float64]:
        """Least forward time of each chunk, float64 [V, S]."""
        problem, schedule = self.problem, schedule_of(self.problem)
        lower, _ = chunk_bounds(problem, schedule)
        of = [problem.on_stage(s) for s in range(problem.stages)]
        lightest = np.array([min(kind.forward for kind in one.placed_kinds) for one in of], dtype=np.float64)
        least: NDArray[np.float64] = lower * lightest
        least[schedule.chunk_at(0)] += problem.embedding_forward
        least[schedule.chunk_at(schedule.chunks - 1)] += problem.head_forward
        return least

    def _of_stages(self, least: NDArray[np.float64], best: float) -> NDArray[np.float64]:
        """Greatest work of each stage in a plan that beats `best`: its tasks fill the step except for warm-up and
        cool-down.

        `least` float64 [V, S] is the least forward time of each chunk.
        """
        return (best - self._around(least)) / self.problem.micro_batches + 1e-9 * best

    def bound(self) -> float:
        """Step time of all work, spread by the stages' speed, with warm-up and cool-down around it."""
        problem = self.problem
        forward = problem.head_forward + problem.embedding_forward + sum(k.count * k.forward for k in problem.kinds)
        work = problem.micro_batches * (1.0 + problem.backward_ratio) * forward
        speed = 1.0 / np.array(problem.least_pace)
        return float((work + (self._around(self._least_forward()) * speed).sum()) / speed.sum())

    def _around(self, least: NDArray[np.float64]) -> NDArray[np.float64]:
        """Least time before the first and after the last task of each stage, tails included, float64 [S]."""
        S, V = self.problem.stages, self.problem.interleaves
        graph = self.graph
        least = least / self.problem.schedule.seq_splits
        share = self.problem.weight_gradient_share if graph.directions == 3 else 0.0
        ratio = np.array(self.problem.backward_ratios)
        blocks = [least, ratio * (1 - share) * least, ratio * share * least]
        blocks = [block * np.array(self.problem.pace) for block in blocks]
        tails = np.array([self.problem.tail or [0.0] * S])
        shortest = np.concatenate([*blocks[: graph.directions], tails]).reshape(-1)
        # Where each task of a stage is longer than all others together, the longest path runs through all of them.
        long = 1.0 + float(shortest[graph.task_class].sum() + graph.edge_lag.sum() + tails.sum())
        result = np.empty(S)
        for s in range(S):
            durations = shortest.copy()
            durations[np.arange(graph.directions * V) * S + s] = long
            result[s] = graph.longest_path(durations) - long * graph.place.shape[1]
        return result
