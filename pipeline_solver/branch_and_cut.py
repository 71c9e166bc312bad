"""Exact solver: branch and cut over stage configurations, with proof of the gap.

Columns (`columns`), an LP over them with path cuts (`master`), plans by DP and annealing
(`incumbents`), and a tree that splits one stage's configurations (`tree_search`). The open nodes are
worked on in a fixed number of shares, measured in simplex iterations, so that without a time limit the
result depends on the seed alone, whatever the number of worker processes.
"""

from __future__ import annotations

import time

import numpy as np

from taylor.base.console import log
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver import annealing, event_kernels, stage_programs
from taylor.pipeline_solver import columns as columns_module
from taylor.pipeline_solver.columns import ColumnSet, build_columns
from taylor.pipeline_solver.compiled import announce_compilation
from taylor.pipeline_solver.durations import schedule_of
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.first_plans import FirstPlans
from taylor.pipeline_solver.least_memory import most_frugal_plan, over_limit
from taylor.pipeline_solver.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.progress import OnProgress, Progress
from taylor.pipeline_solver.root import bound_root, start_search
from taylor.pipeline_solver.solution import FEASIBLE, INFEASIBLE, Solution, Termination
from taylor.pipeline_solver.stage_tuples import StageTuples, TooManyColumns, stage_tuples
from taylor.pipeline_solver.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.tree_search import LpTrouble, Search
from taylor.pipeline_solver.work_limits import WorkLimits
from taylor.pipeline_solver.worker_pool import SHARES, WorkerPool

SOLVER_NAME = "branch-and-cut"
KERNELS = (
    event_kernels.longest_path, event_kernels.critical_path, columns_module.minimal_choices, annealing.anneal,
    stage_programs.stage_program,
)  # fmt: skip
"""What every solve needs compiled; what only some need, a few seconds' work, is not announced."""
FEW_TUPLES = 2000
"""Layer tuples up to which all configurations are listed at once."""

MANY_COLUMNS = 20_000
NARROWINGS = 4
NARROWING_GAIN = 0.003
"""With many columns, how often and for what gain of the first plan they are listed anew under its step time."""

NODES_A_SHARE = 3
FIRST_SLICE, LAST_SLICE = 2_000, 20_000
"""Simplex iterations that a share of the tree gets in the first rounds and at most."""

LEAST_GAP = 2e-7
"""Gap below which LP tolerances decide, not the search."""

STAGED_AFTER = 3
STAGED_SHARE = 0.5
STAGED_GAP = 5e-4
"""With several interleaves: rounds after which, when less than this share of the root's gap is closed, the bound is
raised target by target, each half-way to the best plan, until so much of the step time is open."""

HAND_OVER_ROUNDS = 3
"""With one interleave, rounds after which the compact MILP goes on with the plan and the cuts: HiGHS's own
cuts close what splits of stages leave open when many stages hold one or two layers each."""
MANY_STAGES = 24
"""Stages from which it goes on after the first round: further ones close little of the gap there."""

REPORTED_CUTS = 500


def branch_and_cut(
    problem: PipelineProblem,
    options: SolveOptions = DEFAULT_OPTIONS,
    *,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
) -> Solution:
    """Find the plan of least step time, and prove it.

    Parameters
    ----------
    problem : PipelineProblem
    options : SolveOptions
        At the time limit the best plan is returned with its proven bound. A gap below about 4e-7 is out of
        reach: there the rounding in LPs decides.
    warm_start : PipelinePlan, optional
        A plan that keeps the problem's rules, to start from.
    on_progress : callable, optional

    Returns
    -------
    Solution
        `cuts` are the path cuts found: R class counts, then the path's lag. A keyboard interrupt ends
        the search as a time limit does.

    When the stage configurations are too many to list, the compact MILP solves the problem instead.
    """
    announce_compilation(KERNELS)
    run = _TreeRun(problem, options, on_progress)
    try:
        with run.stopper.catching_interrupts():
            run.solve(warm_start)
    except TooManyColumns as reason:
        from taylor.pipeline_solver.compact_milp import solve_compact  # here, for Pyomo takes a second to load

        log.warning("%s: the compact MILP takes over", reason)
        left, (_, known) = run.left(1.0), run._best()
        return solve_compact(
            problem, options.replace(time_limit=left), warm_start=known or warm_start, on_progress=on_progress
        )
    except (KeyboardInterrupt, OutOfTime) as stop:
        run.stopped = Termination.INTERRUPTED if isinstance(stop, KeyboardInterrupt) else Termination.TIME_LIMIT
    finally:
        run.close()
    solution = run.solution()
    if not run.hand_over or run.stopped is not None:
        return solution
    from taylor.pipeline_solver.compact_milp import solve_compact

    # One thread: what the MILP finds must not depend on the number of workers.
    closed = solve_compact(
        problem,
        options.replace(time_limit=run.left(), workers=1),
        warm_start=solution.plan,
        cuts=solution.cuts,
        on_progress=on_progress,
    )
    return _merged(solution, closed, options.gap).replace(seconds=time.monotonic() - run.began)


class _TreeRun:
    """One call of `branch_and_cut`: its clock, its search, what it has proven."""

    def __init__(self, problem: PipelineProblem, options: SolveOptions, on_progress: OnProgress | None) -> None:
        self.problem, self.seed, self.workers = problem, options.seed, options.workers
        self.gap = options.gap
        self.closing_gap = max(0.5 * options.gap, LEAST_GAP)
        self.began = time.monotonic()
        deadline = None if options.time_limit is None else self.began + options.time_limit
        self.stopper = Stopper(deadline, options.cutoff)
        self.on_progress = on_progress
        self.graph = EventGraph.from_schedule(schedule_of(problem), problem.lag)
        self.limits = WorkLimits(problem, self.graph, self.stopper)
        self.first: FirstPlans | None = None
        self.search: Search | None = None
        self.pool: WorkerPool | None = None
        self.plan: PipelinePlan | None = None
        self.bound = 0.0
        self.infeasible = False
        self.finished = False
        self.hand_over = False
        self.stopped: Termination | None = None
        self.nodes = 0
        self.solves = 0
        self.rounds = 0

    def left(self, least: float = 0.0) -> float | None:
        """Seconds left of the time limit, at least so many; None without a limit."""
        deadline = self.stopper.deadline
        return None if deadline is None else max(least, deadline - time.monotonic())

    def report(self, note: str) -> None:
        """Tell the listener where the search stands."""
        if self.on_progress is not None:
            best, _ = self._best()
            self.on_progress(
                Progress(
                    time.monotonic() - self.began,
                    float(best) if np.isfinite(best) else None,
                    float(self.bound) if self.bound > 0 else None,
                    note,
                )
            )

    def _best(self) -> tuple[float, PipelinePlan | None]:
        """The best step time so far and its plan; inf and None before there is one."""
        first, search = self.first, self.search
        time, plan = (np.inf, None) if first is None or first.plan is None else (first.time, first.plan)
        if search is not None and search.plans.best is not None and search.plans.best_time <= time:
            return float(search.plans.best_time), search.columns.plan(search.plans.best)
        return float(time), plan

    def solve(self, warm_start: PipelinePlan | None) -> None:
        """List columns, bound the root, search the tree."""
        self.report("listing stage configurations")
        try:
            tuples: list[StageTuples] | None = stage_tuples(self.problem, most=FEW_TUPLES)
        except TooManyColumns:
            tuples = None
        if tuples is not None and any(not len(part.members) for part in tuples):
            self.infeasible = True
            return
        if tuples is not None and sum(len(part.members) for part in tuples) > FEW_TUPLES:
            tuples = None
        search = self._search(tuples, warm_start)
        if search is None:
            self.infeasible = True
            return
        self.report("solving the root")
        root = bound_root(search)
        if np.isinf(root) and root > 0 and search.plans.best is None:
            self.infeasible = True
            return
        self.bound = max(self.bound, min(root, search.closing_bound))
        self.report(f"root solved, {search.plans.pool.size} cuts" if not search.open else "searching the tree")
        try:
            self._tree(search)
        except LpTrouble as trouble:
            log.warning("%s: the compact MILP goes on", trouble)
            self.hand_over = True
        if self.hand_over:
            return
        self.bound = max(self.bound, search.cutoff)
        self.finished = self.bound < self.stopper.cutoff()
        if search.plans.best is None and self.finished:
            self.infeasible = True
        self.report("done")

    def _search(self, tuples: list[StageTuples] | None, warm_start: PipelinePlan | None) -> Search | None:
        """The search with its first plan; with many configurations, only those that the first plan leaves.

        `tuples` is None where they are too many to list without a plan.
        """
        problem = self.problem
        if tuples is not None:
            columns = build_columns(problem, tuples)
            if (np.diff(columns.start) == 0).any():
                return None
            if len(columns) <= MANY_COLUMNS:
                search = Search(problem, columns, self.graph, self.closing_gap, self.seed, self.stopper)
                self.search = search
                if search.plans.programs.exact and search.plans.programs.best(columns.work) is None:
                    return None
                start_search(search, columns.find(warm_start) if warm_start is not None else None)
                return search
        first = self._first_plans(warm_start)
        if first is None:
            return None
        left: ColumnSet | None = None
        for narrowing in range(NARROWINGS):
            best = first.time
            self.report(f"listing stage configurations under {best:.6g}")
            try:
                left = self.limits.columns_under(best)
            except TooManyColumns:
                if narrowing == NARROWINGS - 1:
                    raise
            if left is not None and len(left) <= MANY_COLUMNS:
                break
            # A better plan leaves fewer configurations worth having.
            first.go_on(narrowing)
            if left is not None and first.time > best * (1 - NARROWING_GAIN):
                break
        assert left is not None and first.plan is not None
        search = Search(problem, left, self.graph, self.closing_gap, self.seed, self.stopper)
        chosen = left.find(first.plan)
        assert chosen is not None, "the first plan is among the configurations that it leaves"
        self.search = search
        start_search(search, chosen)
        return search

    def _first_plans(self, warm_start: PipelinePlan | None) -> FirstPlans | None:
        """Walks that have found a plan; None when there is no plan at all."""
        first = FirstPlans(self.problem, self.graph, self.seed, self.stopper)
        self.first = first
        self.bound = max(self.bound, self.limits.bound())
        first.begin(warm_start)
        if first.plan is None:
            frugal = most_frugal_plan(self.problem, self.left())
            if frugal is None or over_limit(self.problem, frugal):
                return None
            first.begin(frugal)
        self.report("first plan")
        return first

    def _tree(self, search: Search) -> None:
        """Search the tree here, and in worker processes when there are several."""
        if not search.open:
            return
        if search.plans.programs.places is not None:
            # Many kinds: splits of stages close slowly what the MILP's rows by kind hold together.
            self.hand_over = True
            return
        search.process(FIRST_SLICE, most_open=NODES_A_SHARE * SHARES)
        self._note(search)
        if not search.open or search.open[0][0] >= search.cutoff:
            return
        self.pool = WorkerPool(self.workers, search, self.seed)
        slice_size = FIRST_SLICE
        while search.open and search.open[0][0] < search.cutoff:
            self.stopper.check()
            self.pool.round(search, slice_size)
            self.rounds += 1
            enough = 1 if self.problem.stages >= MANY_STAGES else HAND_OVER_ROUNDS
            if self.problem.interleaves == 1 and self.rounds >= enough and search.open:
                self.hand_over = True
                return
            slice_size = min(LAST_SLICE, slice_size + FIRST_SLICE)
            self._note(search)
            if self.rounds == STAGED_AFTER and self.problem.interleaves > 1:
                best, root = search.plans.best_time, search.root_bound
                if self.bound - root < STAGED_SHARE * (best - root):
                    self._raise_targets(search)

    def _raise_targets(self, search: Search) -> None:
        """Prove step times below the best plan's one after the other, each in a tree of its own.

        Under a target the reduced costs leave far fewer columns than under the best plan, and the LP can mix no
        others: such a tree is done long before the whole one has raised its bound as far.
        """
        while min(best := search.plans.best_time, self.stopper.cutoff()) - self.bound > STAGED_GAP * best:
            target = 0.5 * (self.bound + best)
            columns = self.limits.columns_under(target)
            if (np.diff(columns.start) == 0).any():
                self.bound = target
                continue
            tree = Search(self.problem, columns, self.graph, self.closing_gap, self.seed, self.stopper, target)
            tree.plans.pool = search.plans.pool
            start_search(tree, None)
            self._prove(tree)
            if tree.plans.best is not None and tree.plans.best_time < best:
                found = search.columns.find(columns.plan(tree.plans.best))
                assert found is not None, "what beats the best plan is among the configurations that it leaves"
                search.plans.try_choice(found)
            search.nodes += tree.nodes
            search.foreign_solves += tree.lp_solves()
            self.bound = max(self.bound, min(tree.cutoff, search.cutoff))
            self._note(search)

    def _prove(self, tree: Search) -> None:
        """Search the tree under a target to its end; what it proves on the way counts too."""
        root = bound_root(tree)
        self.bound = max(self.bound, min(root, tree.cutoff))
        pool: WorkerPool | None = None
        slice_size = FIRST_SLICE
        try:
            while tree.open and tree.open[0][0] < tree.cutoff:
                self.stopper.check()
                pool = pool or WorkerPool(self.workers, tree, self.seed)
                pool.round(tree, slice_size)
                self.rounds += 1
                slice_size = min(LAST_SLICE, slice_size + FIRST_SLICE)
                self.bound = max(self.bound, tree.lower_bound())
                self.report(f"{tree.nodes} nodes, {len(tree.open)} open, no plan below {tree.cutoff:.6g} so far")
        finally:
            if pool is not None:
                pool.close()

    def _note(self, search: Search) -> None:
        self.bound = max(self.bound, search.lower_bound())
        self.report(f"{search.nodes} nodes, {len(search.open)} open, {search.plans.pool.size} cuts")

    def close(self) -> None:
        """End the worker processes."""
        if self.pool is not None:
            self.pool.close()

    def solution(self) -> Solution:
        """What has been found and proven."""
        seconds = time.monotonic() - self.began
        search = self.search
        statistics: dict[str, float] = {"rounds": self.rounds}
        if search is not None:
            statistics |= {
                "columns": len(search.columns),
                "nodes": search.nodes,
                "cuts": search.plans.pool.size,
                "lp_solves": search.lp_solves(),
            }
            if not self.finished:
                tree = search.lower_bound() if search.open else 0.0
                self.bound = max(self.bound, tree, min(search.root_bound, search.cutoff))
        base = Solution(FEASIBLE, solver=SOLVER_NAME, seconds=seconds, statistics=statistics)
        stopped = self.stopped or Termination.SOLVER_FAILURE
        if self.bound >= self.stopper.cutoff() and stopped is not Termination.INTERRUPTED:
            stopped = Termination.CUT_OFF
        if self.infeasible:
            return base.replace(status=INFEASIBLE, termination=Termination.INFEASIBLE)
        best, plan = self._best()
        if plan is None:
            return base.replace(bound=self.bound or None).ended_by(stopped)
        bound = min(self.bound, best)
        optimal = best - bound <= self.gap * abs(best) or self.finished
        cuts = () if search is None or search.plans.best is None else _reported_cuts(search, self.graph)
        found = base.replace(plan=plan, objective=best, bound=bound, cuts=cuts)
        return found.closed(interrupted=stopped is Termination.INTERRUPTED) if optimal else found.ended_by(stopped)


def _merged(first: Solution, second: Solution, gap: float) -> Solution:
    """The better plan and the better bound of two solutions of one problem."""
    if second.status == INFEASIBLE:
        return second
    plans = [part for part in (first, second) if part.objective is not None]
    if not plans:
        return second
    best = min(plans, key=lambda part: float(part.objective or 0.0))
    objective = float(best.objective or 0.0)
    bound = min(objective, max(float(part.bound or 0.0) for part in (first, second)))
    merged = best.replace(
        bound=bound,
        solver=SOLVER_NAME,
        statistics={**second.statistics, **first.statistics},
        cuts=tuple(dict.fromkeys((*first.cuts, *second.cuts))),
    )
    optimal = objective - bound <= gap * abs(objective)
    if optimal:
        return merged.closed(interrupted=second.termination is Termination.INTERRUPTED)
    return merged.ended_by(second.termination or Termination.STALLED)


def _reported_cuts(search: Search, graph: EventGraph) -> tuple[tuple[float, ...], ...]:
    """The plan's longest paths, the LP's cuts and the newest others: R class counts and the lag total each."""
    pool = search.plans.pool
    held = search.master.held if search.master is not None else []
    durations = search.plans.durations_of(search.plans.chosen())
    own = [search.plans.cut_on(durations, prefer) for prefer in (0, 1)]
    numbers = list(dict.fromkeys([*own, *held, *range(max(0, pool.size - REPORTED_CUTS), pool.size)]))
    stages = search.problem.stages
    rows = []
    for g in numbers:
        # The pool's constant holds the path's lags and the tail it ends with, so the tail counts stay 0.
        rows.append((*pool.counts[g].tolist(), *[0.0] * stages, float(pool.constant[g])))
    assert all(len(row) == graph.classes + 1 for row in rows)
    return tuple(rows)
