"""The LP over chunks: a variable for each chunk, phase, length and recompute, with phases passed on along the model.

Columns of whole stages multiply the chunks' choices by one another, and with many virtual stages they are too many to
list. Here a variable is one chunk alone: chunk k begins in phase q, holds n layers and recomputes the first r of them.
A chunk begins in the phase in which the one before it ended (`phases`), chunks hold all layers, and every stage's
memory is a row for each vector of alive micro-batches. The LP mixes what a stage cannot combine, so it proves less for
each node than columns of stages do, in a fraction of their time. Its bound is valid for every plan: it is computed from
the dual values alone, whatever the accuracy of the LP.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.columns.phases import MOST_PERIOD
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.heuristics.plan_walk import PlanWalk
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import duration_blocks

INFINITY = highspy.kHighsInf


def exact_period(problem: PipelineProblem) -> int | None:
    """Period with which all layers of the model repeat, 1 where they are alike; None where there is none."""
    costs: dict[object, int] = {}
    layers = np.repeat(
        [costs.setdefault(kind.costs, len(costs)) for kind in problem.placed_kinds],
        [kind.count for kind in problem.placed_kinds],
    )
    for period in range(1, MOST_PERIOD + 2):
        if len(layers) > period and (layers[period:] == layers[:-period]).all():
            return period
    return None


def covers(problem: PipelineProblem) -> bool:
    """Return whether the LP states the problem: one recompute mode at most, no pairs, stages with the same ratios."""
    free = problem.uniform_recompute or problem.fixed_recompute or problem.choices or problem.stage_times
    return not free and problem.pairing is None and len(problem.searched_modes) <= 1


@dataclass(frozen=True)
class ChunkChoices:
    """The variables: chunks in model order.

    Parameters
    ----------
    chunk, phase, length, taken : int64 [n]
        Place in the model, phase of the first layer, layers, and recomputed ones.
    forward : float64 [n]
        Forward time of the layers.
    states, kept : float64 [n]
        MiB of weights and optimizer, and of one micro-batch's activations.
    durations : float64 [D, n]
        Task times by direction.
    """

    chunk: NDArray[np.int64]
    phase: NDArray[np.int64]
    length: NDArray[np.int64]
    taken: NDArray[np.int64]
    forward: NDArray[np.float64]
    states: NDArray[np.float64]
    kept: NDArray[np.float64]
    durations: NDArray[np.float64]

    def take(self, rows: NDArray[np.bool_]) -> ChunkChoices:
        """Some of them."""
        return ChunkChoices(
            self.chunk[rows],
            self.phase[rows],
            self.length[rows],
            self.taken[rows],
            self.forward[rows],
            self.states[rows],
            self.kept[rows],
            self.durations[:, rows],
        )


def chunk_choices(
    problem: PipelineProblem, walk: PlanWalk, period: int, most_layers: NDArray[np.int64]
) -> ChunkChoices:
    """All choices of every chunk with at most `most_layers` layers, int64 [C]."""
    stack, line, layers = walk.stack, walk.line, problem.layers
    chunks = len(line.stage)
    upper = np.minimum(line.upper, most_layers)
    before, behind = np.concatenate([[0], np.cumsum(line.lower)]), np.cumsum(line.lower[::-1])[::-1]
    rows: list[tuple[int, int, int, int]] = []  # chunk, phase, a first position, length
    for k in range(chunks):
        last = layers - (int(behind[k + 1]) if k + 1 < chunks else 0)
        for phase in range(period):
            at = int(before[k]) + (phase - int(before[k])) % period
            if k == 0 and phase:
                continue
            for length in range(int(line.lower[k]), min(int(upper[k]), last - at) + 1):
                if k == chunks - 1 and (phase + length - layers) % period:
                    continue
                rows.append((k, phase, at, length))
    cells = np.array(rows, dtype=np.int64).reshape(-1, 4)
    times = cells[:, 3] + 1 if problem.searched_modes else np.ones(len(cells), dtype=np.int64)
    cells = np.repeat(cells, times, axis=0)
    taken = np.arange(len(cells)) - np.repeat(np.cumsum(times) - times, times)
    k, phase, at, length = cells.T
    end, kept = at + length, stack.kept[0, at + length] - stack.kept[0, at]
    extra = np.zeros((3, len(k)))
    if problem.searched_modes:
        again = at + taken
        kept = stack.kept[0, end] - stack.kept[0, again] + stack.kept[1, again] - stack.kept[1, at]
        extra[1] = stack.extra[0, 0, again] - stack.extra[0, 0, at]
    forward = stack.forward[0, end] - stack.forward[0, at]
    beside = line.pinned_times[:, k]
    blocks = duration_blocks(problem, forward + line.besides[k], extra, line.stage[k], beside)
    return ChunkChoices(
        k, phase, length, taken, forward, stack.states[end] - stack.states[at], kept, np.array(blocks)
    )  # fmt: skip


class PhaseFlow:
    """The LP of a problem for plans of at most a step time.

    Parameters
    ----------
    cutoff : float
        Step time of plans to rule out: choices that exceed it alone are left out.
    """

    def __init__(
        self, problem: PipelineProblem, walk: PlanWalk, paths: PathCuts, limits: WorkLimits, cutoff: float
    ) -> None:
        self.problem, self.walk, self.paths, self.cutoff = problem, walk, paths, cutoff
        period = exact_period(problem)
        self.period = period or problem.layers + 1
        self.line = walk.line
        self.choices = self._within(limits)
        self.cells = len(self.line.stage)
        self.directions = len(self.choices.durations)
        self.place = self.line.interleave * problem.stages + self.line.stage  # cell of each chunk in a direction
        self._build()

    def _within(self, limits: WorkLimits) -> ChunkChoices:
        """The choices that a plan of the cutoff may hold, by time and memory."""
        line, problem = self.line, self.problem
        choices = chunk_choices(problem, self.walk, self.period, np.full(len(line.stage), problem.layers))
        most = limits.under(self.cutoff) * (1 + 1e-9)
        chunks = len(line.stage)
        time = choices.durations.sum(axis=0) * problem.schedule.seq_splits
        least = np.full(chunks, np.inf)
        np.minimum.at(least, choices.chunk, time)
        of_stage = np.bincount(line.stage, weights=least, minlength=problem.stages)
        stage = line.stage[choices.chunk]
        fits = time + of_stage[stage] - least[choices.chunk] <= most[stage]
        # Memory alone, with the least of the stage's other chunks at each alive vector.
        for p in range(line.free.shape[1]):
            need = choices.states + line.alive[stage, p, line.interleave[choices.chunk]] * choices.kept
            low = np.full(chunks, np.inf)
            np.minimum.at(low, choices.chunk, need)
            total = np.bincount(line.stage, weights=low, minlength=problem.stages)
            fits &= need + total[stage] - low[choices.chunk] <= line.free[stage, p] + MEMORY_TOLERANCE_MIB
        return choices.take(fits)

    def _build(self) -> None:
        """State the LP."""
        problem, line, own = self.problem, self.line, self.choices
        n, chunks, S = len(own.chunk), self.cells, problem.stages
        self.lp = lp = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("presolve", "off"),
            ("threads", 1),
            ("simplex_strategy", 1),
            ("simplex_dual_edge_weight_strategy", 1),
        ):
            lp.setOptionValue(option, value)
        self.count, self.first_duration = n, n
        self.step = n + self.directions * chunks
        self.low = np.zeros(self.step + 1)
        self.high = np.ones(self.step + 1)
        self.low[n:], self.high[n:] = 0.0, self.cutoff * 2
        lp.addVars(self.step + 1, self.low, self.high)
        lp.changeColCost(self.step, 1.0)
        rows: list[tuple[float, float, NDArray[np.int64], NDArray[np.float64]]] = []
        of = [np.nonzero(own.chunk == k)[0] for k in range(chunks)]
        ends = (own.phase + own.length) % self.period
        for k in range(chunks):
            rows.append((1.0, 1.0, of[k], np.ones(len(of[k]))))
        rows.append((float(problem.layers), float(problem.layers), np.arange(n), own.length.astype(float)))
        for k in range(chunks - 1):
            leaving, entering = ends[of[k]], own.phase[of[k + 1]]
            for q in np.union1d(leaving, entering)[:-1]:
                one, two = of[k][leaving == q], of[k + 1][entering == q]
                rows.append((0.0, 0.0, np.concatenate([one, two]), np.repeat([1.0, -1.0], [len(one), len(two)])))
        for d in range(self.directions):
            for k in range(chunks):
                column = n + d * chunks + self.place[k]
                values = own.durations[d, of[k]]
                rows.append((0.0, 0.0, np.append(of[k], column), np.append(values, -1.0)))
                self.high[column] = values.max(initial=0.0)
        for s in range(S):
            members = np.nonzero(line.stage[own.chunk] == s)[0]
            for p in range(line.free.shape[1]):
                free = line.free[s, p]
                if not np.isfinite(free):
                    continue
                need = own.states[members] + line.alive[s, p, line.interleave[own.chunk[members]]] * own.kept[members]
                scale = max(abs(free), 1.0)
                rows.append((-INFINITY, (free + MEMORY_TOLERANCE_MIB) / scale, members, need / scale))
        lp.changeColsBounds(len(self.low), np.arange(len(self.low), dtype=np.int32), self.low, self.high)
        starts = np.concatenate([[0], np.cumsum([len(one[2]) for one in rows])])
        lp.addRows(
            len(rows),
            np.array([one[0] for one in rows]),
            np.array([one[1] for one in rows]),
            int(starts[-1]),
            starts[:-1].astype(np.int32),
            np.concatenate([one[2] for one in rows]).astype(np.int32),
            np.concatenate([one[3] for one in rows]),
        )
        self.base_rows = len(rows)
        self.row_low = [one[0] for one in rows]
        self.row_high = [one[1] for one in rows]
        self.kept: list[int] = []

    def keep(self, cut: int) -> None:
        """Add a path of the pool."""
        counts, constant = self.paths.pool.counts[cut], self.paths.pool.constant[cut]
        used = np.nonzero(counts)[0]
        scale = 1.0 / self.problem.micro_batches
        self.lp.addRow(
            -INFINITY,
            -constant * scale,
            len(used) + 1,
            np.append(self.first_duration + used, self.step).astype(np.int32),
            np.append(counts[used], -1.0) * scale,
        )
        self.row_low.append(-INFINITY)
        self.row_high.append(-constant * scale)
        self.kept.append(cut)

    def allow(self, allowed: NDArray[np.bool_]) -> None:
        """Restrict the LP to some choices, bool [n]."""
        self.high[: self.count] = allowed
        self.lp.changeColsBounds(
            self.count, np.arange(self.count, dtype=np.int32), self.low[: self.count], self.high[: self.count]
        )

    def solve(self) -> tuple[float, NDArray[np.float64] | None, NDArray[np.float64]]:
        """Valid lower bound, the point of all variables (None: infeasible), reduced costs of the choices."""
        self.lp.run()
        status = self.lp.getModelStatus()
        none = np.zeros(self.count)
        if status == highspy.HighsModelStatus.kInfeasible:
            return np.inf, None, none
        if status != highspy.HighsModelStatus.kOptimal:
            return -np.inf, None, none
        found = self.lp.getSolution()
        dual, reduced = np.array(found.row_dual), np.array(found.col_dual)
        bound = self._safe(dual, reduced)
        return bound, np.array(found.col_value), reduced[: self.count]

    def _safe(self, dual: NDArray[np.float64], reduced: NDArray[np.float64]) -> float:
        """The bound that dual values prove: rows at the side they press on, columns at their better bound."""
        low, high = np.array(self.row_low), np.array(self.row_high)
        dual = np.where((dual > 0) & ~np.isfinite(low), 0.0, dual)
        sides = np.where(dual > 0, low, high)
        rows = float(dual @ np.where(dual == 0, 0.0, sides))
        return rows + float(np.where(reduced > 0, reduced * self.low, reduced * self.high).sum())

    def bound(
        self, stopper: Stopper, rounds: int, stall: float = 1e-4, cutoff: float | None = None
    ) -> tuple[float, NDArray[np.float64] | None, NDArray[np.float64], float]:
        """Cut until the LP's value is the step time at its durations, or rounds end.

        Returns
        -------
        (float, float64 [columns] or None, float64 [n], float)
            Lower bound, the last point, its reduced costs, and the step time at its durations.
        """
        best = -np.inf
        cutoff = self.cutoff if cutoff is None else cutoff
        centre, length_of_centre, length = None, np.inf, np.inf
        point, reduced = None, np.zeros(self.count)
        for _ in range(rounds):
            stopper.check()
            value, point, reduced = self.solve()
            best = max(best, value)
            if point is None or best >= cutoff:
                break
            durations = point[self.first_duration : self.step]
            length, cut = self.paths.path(durations)
            new = [cut, self.paths.path(durations, 1)[1]]
            if centre is not None:
                for share in (0.5, 0.2):
                    middle = share * durations + (1 - share) * centre
                    length_middle, cut = self.paths.path(middle)
                    new.append(cut)
                    if length_middle < length_of_centre and share == 0.5:
                        centre, length_of_centre = middle, length_middle
            if length < length_of_centre:
                centre, length_of_centre = durations, length
            known = set(self.kept)
            new = [cut for cut in dict.fromkeys(new) if cut not in known]
            if length - best <= stall * length or not new:
                break
            self._purge()
            for cut in new:
                self.keep(cut)
        return best, point, reduced, length

    def _purge(self) -> None:
        """Drop slack cuts where they are many."""
        if len(self.kept) < 400:
            return
        dual = np.array(self.lp.getSolution().row_dual)[self.base_rows :]
        slack = np.nonzero(np.abs(dual) < 1e-9)[0]
        if len(slack) < 150:
            return
        self.lp.deleteRows(len(slack), (self.base_rows + slack).astype(np.int32))
        gone = set(slack.tolist())
        keep = [i for i in range(len(self.kept)) if i not in gone]
        self.kept = [self.kept[i] for i in keep]
        self.row_low = self.row_low[: self.base_rows] + [self.row_low[self.base_rows + i] for i in keep]
        self.row_high = self.row_high[: self.base_rows] + [self.row_high[self.base_rows + i] for i in keep]
