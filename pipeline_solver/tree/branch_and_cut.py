"""Exact solver: branch and cut over columns, with proof of the gap.

Columns (`columns`), an LP over them with path cuts (`master`), plans by DP and annealing
(`incumbents`), and a tree that splits one stage's columns (`tree_search`). A fixed number of subtree batches
processes the open nodes, with budgets in simplex iterations. So without a time limit the result depends on the seed
alone, whatever the number of worker processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from taylor.base.compiled import announce_compilation
from taylor.base.console import log
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.generation import Generation
from taylor.pipeline_solver.columns import columns as columns_module
from taylor.pipeline_solver.columns import stage_programs
from taylor.pipeline_solver.columns.columns import ColumnSet, build_columns
from taylor.pipeline_solver.columns.phases import period_of
from taylor.pipeline_solver.columns.positions import State
from taylor.pipeline_solver.columns.stage_tuples import FEW_KINDS, TooManyColumns, stage_tuples
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.heuristics import annealing, walk_kernels
from taylor.pipeline_solver.heuristics.border_annealing import BorderAnnealing
from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
from taylor.pipeline_solver.heuristics.plan_walk import alternates
from taylor.pipeline_solver.milp.least_memory import most_frugal_plan, over_limit
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress, going_on
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, Solution, Termination, better_of
from taylor.pipeline_solver.model.stopping import LpTrouble, OutOfTime, Stopper
from taylor.pipeline_solver.timing import event_kernels
from taylor.pipeline_solver.timing.durations import chunk_durations, graph_of
from taylor.pipeline_solver.tree.flow_tree import FlowTree
from taylor.pipeline_solver.tree.phase_flow import PhaseFlow, covers
from taylor.pipeline_solver.tree.root import bound_root, start_search
from taylor.pipeline_solver.tree.targets import Targets
from taylor.pipeline_solver.tree.tree_memory import TreeMemory, closed_by_milp
from taylor.pipeline_solver.tree.tree_run import TreeEnd, TreeRun
from taylor.pipeline_solver.tree.tree_search import Search
from taylor.pipeline_solver.tree.tree_state import Account, BestPlan, Outcome

SOLVER_NAME = "branch-and-cut"
KERNELS = (
    event_kernels.longest_path, event_kernels.walk_back, columns_module.minimal_choices, annealing.anneal,
    stage_programs.stage_program,
)  # fmt: skip
"""Kernels that every solve needs; those that only some need compile in a few seconds and are not announced."""
KERNELS_OF_LIMITED = (*KERNELS, walk_kernels.walk, walk_kernels.fit_all, walk_kernels.task_durations)
"""Kernels compiled before a solve with a time limit begins: the local search takes longest."""
LEAST_GAP = 2e-7
"""Gap below which LP tolerances decide, not the search."""

REPORTED_CUTS = 500


def branch_and_cut(
    problem: PipelineProblem,
    options: SolveOptions = DEFAULT_OPTIONS,
    *,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
    cuts: Sequence[tuple[float, ...]] = (),
) -> Solution:
    """Find the plan of least step time, and prove it.

    Parameters
    ----------
    problem : PipelineProblem
    options : SolveOptions
        At the time limit the best plan is returned with its lower bound. A gap below about 4e-7 is out of reach: there
        the rounding in LPs decides.
    warm_start : PipelinePlan, optional
        A plan that keeps the problem's rules, to start from.
    on_progress : callable, optional
    cuts : sequence of tuple of float
        Known path cuts, in the form of the result's.

    Returns
    -------
    Solution
        `cuts` are the path cuts found: R class counts, then the path's lag. A keyboard interrupt ends
        the search as a time limit does.

    With too many columns to list, the compact MILP solves the problem instead.
    """
    announce_compilation(KERNELS)
    run = _TreeRun(problem, options, on_progress)
    for cut in cuts:
        run.paths.pool.add(np.array(cut[: run.paths.classes]), cut[-1])
    try:
        with run.stopper.catching_interrupts():
            run.solve_listed(warm_start)
    except (KeyboardInterrupt, OutOfTime, TimeoutError) as stop:
        run.outcome.stopped = Termination.INTERRUPTED if isinstance(stop, KeyboardInterrupt) else Termination.TIME_LIMIT
    solution = run.solution()
    crowded = run.outcome.crowded
    if not run.outcome.hand_over or run.outcome.stopped is not None:
        return solution
    from taylor.pipeline_solver.milp.compact_milp import solve_compact  # here: Pyomo takes a second to load

    # One thread after a tree: the MILP's result must not depend on the number of workers. Where no tree could begin, it
    # starts without a plan: its paths come from the plans that it finds, and from the best plan on it finds few.
    closed = solve_compact(
        problem,
        options.replace(time_limit=run.left(), workers=options.workers if crowded else 1),
        warm_start=None if crowded else solution.plan,
        cuts=() if crowded or closed_by_milp(problem, options.params.milp) else solution.cuts,
        on_progress=going_on(on_progress, solution.seconds, solution.objective, solution.bound),
    )
    run.keep(closed)
    whole = better_of(solution, closed, options.gap)
    name = closed.solver if crowded else SOLVER_NAME
    return whole.replace(solver=name, seconds=time.monotonic() - run.began)


class _TreeRun:
    """One call of `branch_and_cut`: its columns and trees, one after the other, and the bound that they prove."""

    def __init__(self, problem: PipelineProblem, options: SolveOptions, on_progress: OnProgress | None) -> None:
        self.problem, self.seed, self.workers = problem, options.seed, options.workers
        self.gap, self.params = options.gap, options.params
        self.closing_gap = max(0.5 * options.gap, LEAST_GAP)
        self.began = time.monotonic()
        deadline = None if options.time_limit is None else self.began + options.time_limit
        self.stopper = Stopper(deadline, options.cutoff)
        self.on_progress = on_progress
        self.graph = graph_of(problem)
        self.memory = memory = options.memory if isinstance(options.memory, TreeMemory) else TreeMemory()
        self.paths = memory.paths = memory.paths or PathCuts(problem, self.graph)
        self.limits = WorkLimits(problem, self.graph)
        # With virtual stages and many kinds, the local search and, at the end, the MILP choose positions.
        self.ordered = problem.interleaves == 1 or len(problem.placed_kinds) <= FEW_KINDS
        self.best_plan = BestPlan(problem, self.graph)
        self.borders: BorderAnnealing | None = None
        self.flow: FlowTree | None = None
        self.bound = memory.bound
        self.outcome, self.account = Outcome(), Account()

    def left(self, least: float = 0.0) -> float | None:
        """Remaining seconds of the time limit, not below `least`; None without a limit."""
        deadline = self.stopper.deadline
        return None if deadline is None else max(least, deadline - time.monotonic())

    def report(self, note: str) -> None:
        """Report the state of the search to the listener."""
        if self.on_progress is not None:
            best = self.best_plan.time
            self.on_progress(
                Progress(
                    time.monotonic() - self.began,
                    float(best) if np.isfinite(best) else None,
                    float(self.bound) if self.bound > 0 else None,
                    note,
                )
            )

    def solve_listed(self, warm_start: PipelinePlan | None) -> None:
        """`solve`; where columns are too many, over chunks or by the compact MILP."""
        try:
            self.solve(warm_start)
        except TooManyColumns as reason:
            if self.go_on_over_chunks():
                self.outcome.finished = self.bound < self.stopper.cutoff()
                return
            log.warning("%s: the compact MILP takes over", reason)
            self.outcome.hand_over = self.outcome.crowded = True
            self.memory.unlisted = min(self.memory.unlisted, self.aim())

    def solve(self, warm_start: PipelinePlan | None) -> None:
        """Resume the tree of an earlier solve, or begin."""
        try:
            try:
                if isinstance(self.memory.tree, TreeRun):
                    self._go_on(self.memory.tree)
                elif self._slow():
                    self.best_plan.know(warm_start)
                else:
                    self._begin(warm_start)
            except LpTrouble as trouble:
                few = self.problem.stages * self.problem.interleaves <= self.params.milp.few_chunks
                if few or not self._distinguish_phases():  # the MILP's rows by kind bound few chunks well
                    raise
                log.info("%s: configurations are distinguished by their phases", trouble)
                self._leave()
                self._raise_targets(Targets(self.memory, self.aim(), self.bound, self.params.tree))
        except LpTrouble as trouble:
            log.warning("%s: the compact MILP goes on", trouble)
            self.outcome.hand_over = True
        if not self.outcome.infeasible:
            self.report("done")

    def _slow(self) -> bool:
        """Return whether the MILP is to continue an abandoned tree, or no tree could begin under much the same step
        time."""
        self.outcome.crowded |= self.aim() > self.params.tree.listed_below * self.memory.unlisted
        self.outcome.hand_over |= self.outcome.crowded
        self.outcome.hand_over |= closed_by_milp(self.problem, self.params.milp) and self.memory.left < np.inf
        return self.outcome.hand_over

    def _begin(self, warm_start: PipelinePlan | None) -> None:
        """List the columns, or generate them where they are many; bound the root, search the tree."""
        self.bound = max(self.bound, self.limits.bound())
        # With many kinds or virtual stages, listing takes seconds: a plan comes before it.
        quick = self.ordered and self.problem.interleaves <= self.params.tree.few_virtual_stages
        first = None if quick else self._first_plans(warm_start)
        if first is None:
            self.best_plan.know(warm_start)
        self.report("listing stage configurations")
        try:
            columns = self._all_columns() if first is not None or self.ordered else None
        except OutOfTime:
            if first is None:
                self._first_plans(warm_start)  # takes the even plans before it looks at the clock
            raise
        if columns is not None:
            self._all(columns, warm_start if first is None else first.plan)
            return
        first = first or self._first_plans(warm_start)
        if first is None:
            self.outcome.infeasible = True
        else:
            self._some(first)

    def _all_columns(self) -> ColumnSet | None:
        """All columns; None where they are many."""
        problem, own = self.problem, self.params.tree
        try:
            if not self.ordered and self._period() == 1:
                tuples = stage_tuples(problem, own.many_kinds_tuples, self.stopper)
                return build_columns(problem, tuples, own.most_columns)
            tuples = stage_tuples(problem, own.few_tuples, self.stopper)
            if sum(len(part.members) for part in tuples) > own.few_tuples:
                return None
            columns = build_columns(problem, tuples, own.few_columns)
        except TooManyColumns:
            return None
        return columns if len(columns) <= own.few_columns else None

    def _all(self, columns: ColumnSet, warm_start: PipelinePlan | None) -> None:
        """Search all columns."""
        if (np.diff(columns.start) == 0).any():
            self.outcome.infeasible = True
            return
        self.best_plan.search = search = self._tree_of(columns)
        if search.plans.programs.exact and search.plans.programs.best(columns.work) is None:
            self.outcome.infeasible = True
            return
        start_search(search, columns.find(warm_start) if warm_start is not None else None)
        end = self._searched(search)
        if end is not None and not self.outcome.hand_over:
            self._searched_all(end)

    def _searched_all(self, end: TreeEnd) -> None:
        """Process the end of the tree of all columns: where it was abandoned, prove lower targets first."""
        if end is TreeEnd.LEFT:
            self.memory.left = self.aim()
            if self._slow():
                return
            self._raise_targets(Targets(self.memory, self.aim(), self.bound, self.params.tree))
            return
        self.outcome.finished = self.bound < self.stopper.cutoff()
        self.outcome.infeasible = self.outcome.finished and self.best_plan.plan() is None

    def _some(self, first: FirstPlans) -> None:
        """Generate columns against the best plan, and search those that are not ruled out."""
        own = self.params.heuristics
        settled = walked = self.memory.walked
        self.memory.walked = True
        if self._repeats() and self.problem.interleaves >= own.border_first_stages and not walked:
            self._anneal_borders(first, own.border_first_runs, own.border_first_share)
            settled = True
        generation = self._generation(first.time)
        for attempt in range(own.long_searches + 1):
            aim = self.aim()
            self.report(f"pricing stage configurations under {aim:.6g}")
            self.bound = max(self.bound, min(generation.bound(aim), aim))
            if self._closed() or settled or attempt == own.long_searches:
                break
            before, left = first.time, self.left()
            seconds = None if left is None else own.long_share * left
            settled = attempt == 0 and first.start_again(seconds) and not self._far(first.time)
            if not settled and first.time <= self.stopper.cutoff():
                met = first.time
                first.go_on(attempt, seconds)
                settled = first.time > met * (1 - own.long_gain)
            if first.time >= before:
                break
        few = not (self.ordered or self._closed()) and self._few_loose(generation)
        if not (self.ordered or walked or few) and self._far(self.aim()):
            self._walk_on(first, generation)
        many = self.problem.stages * self.problem.interleaves >= self.params.bounds.flow_chunks
        if (many or not few) and not self._closed() and self._flows():
            self._search_flow(self._flow_tree(first))
        if few and self._distinguish_phases():
            generation = self._generation(self.aim(), generation.kept)
        self._raise_targets(Targets(self.memory, self.aim(), self.bound, self.params.tree), generation)

    def _far(self, step_time: float) -> bool:
        """Return whether the gap below a step time is so large that a longer local search may well find a better
        plan."""
        return self.bound < (1.0 - self.params.heuristics.far_gap) * step_time

    def _few_loose(self, generation: Generation) -> bool:
        """Return whether columns without order are so few that their phases distinguish them from the start."""
        period, own = self._period(), self.params.tree
        if period == 1:
            return False
        most = own.many_loose if period**self.problem.interleaves <= own.most_borders else own.few_loose
        return generation.few_under(self.aim(), most)

    def _period(self) -> int:
        """The period of the phases that distinguish columns with open order, 1 without."""
        return period_of(self.problem) if self.params.tree.phases else 1

    def _distinguish_phases(self) -> bool:
        """Distinguish columns without order by their phases from now on; False where that is so already."""
        period = 1 if self.ordered else self._period()
        if self.memory.period == period:
            return False
        self.memory.period = period
        self.memory.forget_trees()
        return True

    def _repeats(self) -> bool:
        """Return whether kinds alternate on several virtual stages, where plans come from border annealing."""
        alternating = alternates(self.problem, self.params.heuristics)
        return self.params.heuristics.border_annealing and not self.ordered and alternating

    def _anneal_borders(self, first: FirstPlans, runs: int, share: float) -> None:
        """Anneal from unlike starts for a fraction of the remaining time."""
        left = self.left()
        seconds = None if left is None else share * left
        self.borders = self.borders or BorderAnnealing(first, self.seed)
        enough = self.bound / (1.0 - self.closing_gap)
        self.borders.run(runs, seconds, enough, lambda: self.report("annealing borders"))

    def _flows(self) -> bool:
        """Return whether the phase-flow LP bounds the problem."""
        own = self.params.bounds
        enough = 0 < own.flow_stages <= self.problem.interleaves
        return enough and not self.ordered and covers(self.problem)

    def _flow_tree(self, first: FirstPlans) -> FlowTree | None:
        """The tree over chunks; None where they have too many choices."""
        flow = PhaseFlow(self.problem, first.walk, self.paths, self.limits, self.aim())
        if flow.count > self.params.bounds.flow_columns:
            return None

        def offer(state: State | None) -> float:
            if state is not None:
                first.offer(state)
            return self.aim()

        for cut in self.paths.seeds():
            flow.keep(cut)
        self.flow = FlowTree(flow, self.params.bounds, self.closing_gap, offer)
        return self.flow

    def _search_flow(self, tree: FlowTree | None, share: float | None = None) -> None:
        """Branch over chunks for a fraction of the remaining time, and use the bound that this proves."""
        if tree is None:
            return
        own, left = self.params.bounds, self.left()
        share = own.flow_share if share is None else share
        until = np.inf if left is None else time.monotonic() + share * left

        def note() -> None:
            self._note(min(tree.lower_bound(), self.aim()), f"{tree.nodes} nodes over chunks, {len(tree.open)} open")

        tree.search(self.stopper, own.flow_nodes, lambda: time.monotonic() >= until, note)

    def go_on_over_chunks(self) -> bool:
        """Continue the tree over chunks where columns are too many; return whether that closes the gap."""
        if self.flow is not None and not self._closed():
            self._search_flow(self.flow, 1.0)
        return self._closed()

    def _walk_on(self, first: FirstPlans, generation: Generation) -> None:
        """Repeat long local searches while they find better plans: columns with open order of kinds give no plan."""
        own, left, in_vain = self.params.heuristics, self.left(), 0
        if self._repeats():
            self._anneal_borders(first, own.border_runs, own.loose_share)
            self.bound = max(self.bound, min(generation.bound(self.aim()), self.aim()))
            return
        until = np.inf if left is None else time.monotonic() + own.loose_share * left
        for attempt in range(own.loose_searches):
            beaten = first.time > self.stopper.cutoff()
            if beaten or in_vain == own.loose_without_success or time.monotonic() >= until:
                break
            before = first.time
            first.go_on(attempt, None if left is None else until - time.monotonic())
            in_vain = 0 if first.time < before else in_vain + 1
            self.report("searching longer")
        self.bound = max(self.bound, min(generation.bound(self.aim()), self.aim()))

    def aim(self) -> float:
        """The step time that a plan must beat: the best plan's, or a lower cutoff set by others."""
        return min(self.best_plan.time, self.stopper.cutoff())

    def _closed(self) -> bool:
        """Return whether nothing remains to prove."""
        return self.bound >= min(self.best_plan.time * (1.0 - self.closing_gap), self.stopper.cutoff())

    def _first_plans(self, warm_start: PipelinePlan | None) -> FirstPlans | None:
        """The local searches that have found a plan; None when there is no plan at all."""
        first = FirstPlans(self.problem, self.graph, self.seed, self.stopper, self.params.heuristics)
        self.best_plan.first = first
        first.begin(warm_start)
        if first.plan is None:
            frugal = most_frugal_plan(self.problem, self.left())
            if frugal is None or over_limit(self.problem, frugal):
                return None
            first.begin(frugal)
        self.report("first plan")
        return first

    def _tree_of(self, columns: ColumnSet, target: float = np.inf) -> Search:
        prices = self.memory.prices if columns.ordered else self.memory.loose_prices
        return Search(
            self.problem, columns, self.paths, self.closing_gap, self.seed, self.stopper, target, prices, self.params
        )

    def _go_on(self, run: TreeRun) -> None:
        """Resume a tree that an earlier solve had no time for, and then prove what remains."""
        self.memory.tree = None
        self.best_plan.search = tree = run.tree
        run.resume(self.stopper, self._note)
        self.report("going on")
        targets = Targets(self.memory, self.aim(), self.bound, self.params.tree)
        targets.target = min(tree.target, targets.target)
        end = self._run(run)
        if self.outcome.hand_over:
            return
        if np.isinf(tree.target):  # of all columns
            self._searched_all(end)
        else:
            targets.searched(end, self.aim(), self.bound, self.account.tree_seconds, self.left())
            if not self._slow():
                self._raise_targets(targets)

    def _raise_targets(self, targets: Targets, generation: Generation | None = None) -> None:
        """Prove step times up to the best plan's, each in a separate tree."""
        most = self.params.tree.most_columns
        while not self._closed():
            generation = generation or self._generation(self.aim())
            target = targets.settle(self.aim(), self.bound)
            if targets.hemmed_in:
                if self.best_plan.first is not None:
                    self._walk_on(self.best_plan.first, generation)
                raise TooManyColumns(f"the stages have more than {most} configurations just above the bound")
            self.report(f"pricing stage configurations under {target:.6g}")
            self.bound = max(self.bound, min(generation.bound(target), target))
            if self.bound >= target:
                targets.proven(self.bound)
                continue
            try:
                found = generation.columns_under(target, most)
            except TooManyColumns:
                if targets.patient or self.problem.stages * self.problem.interleaves <= self.params.milp.few_chunks:
                    raise
                targets.crowded()
                continue
            if found is None:
                self.bound = target
                targets.proven(target)
                continue
            whole = targets.whole
            self._leave()
            self.best_plan.search = tree = self._tree_of(found.columns, self.aim() if whole else target)
            plan = self.best_plan.plan()
            chosen = found.columns.find(plan) if whole and plan is not None and self.ordered else None
            start_search(tree, chosen, found.first, found.kept)
            end = self._searched(tree, targets.patient)
            if self.outcome.hand_over:
                return
            assert end is not None, "a target bounds the tree"
            targets.searched(end, self.aim(), self.bound, self.account.tree_seconds, self.left())
            if self._slow():
                return
        self.outcome.finished = self.bound < self.stopper.cutoff()

    def _generation(self, step_time: float, kept: Sequence[int] = ()) -> Generation:
        return Generation(
            self.problem,
            step_time,
            self.limits,
            self.paths,
            self.stopper,
            self.ordered,
            self.memory.period,
            kept,
            self.workers,
            self.params.bounds,
        )

    def _leave(self) -> None:
        """Keep the results of the present tree, because another replaces it."""
        search = self.best_plan.leave_tree()
        if search is not None:
            self.account.add(search)

    def _searched(self, tree: Search, patient: bool = False) -> TreeEnd | None:
        """Search a tree and use the bounds that it proves on the way. None when its columns have no plan at all."""
        self.account.tree_seconds = 0.0
        self.account.columns = max(self.account.columns, len(tree.columns))
        self.report("solving the root")
        root = bound_root(tree)
        if np.isinf(root) and root > 0 and tree.plans.best is None and np.isinf(tree.target):
            self.outcome.infeasible = True
            return None
        self.bound = max(self.bound, min(root, tree.cutoff))
        own = self.params.heuristics
        many = own.root_search and tree.alive.sum() > own.few_to_search
        if (
            self.best_plan.first is None
            and tree.open
            and self.problem.interleaves > 1
            and many
            and self._far(self.aim())
        ):
            self._walk_at_the_root(tree)
        if tree.open and tree.plans.programs.places is not None:
            # Many kinds: splits of stages close slowly what the MILP's rows by kind bound well.
            return self._ended(TreeEnd.HANDED_OVER)
        return self._run(TreeRun(tree, self.workers, self.seed, self._note, self.memory, patient))

    def _walk_at_the_root(self, tree: Search) -> None:
        """Run a local search where all columns are listed and the root's gap is large: the tree's annealing is
        short."""
        first, left = self._first_plans(self.best_plan.plan()), self.left()
        if first is None:
            return
        seconds = None if left is None else self.params.heuristics.long_share * left
        first.start_again(seconds)
        if first.time * (1.0 - self.params.heuristics.far_gap) <= self.stopper.cutoff():
            first.go_on(0, seconds)
        chosen = tree.columns.find(first.plan) if first.plan is not None else None
        if chosen is not None:
            tree.plans.try_choice(chosen)

    def _run(self, run: TreeRun) -> TreeEnd:
        """Search a tree whose root is bounded; a later solve resumes it where time runs out."""
        before, began = run.rounds, time.monotonic()
        try:
            end = run.search()
        except (OutOfTime, KeyboardInterrupt):
            run.tree.rest()
            self.memory.tree = run
            raise
        finally:
            self.account.rounds += run.rounds - before
            run.seconds += time.monotonic() - began
            self.account.tree_seconds = run.seconds
        if end is TreeEnd.DONE:
            self.bound = max(self.bound, run.tree.cutoff)
        return self._ended(end)

    def _ended(self, end: TreeEnd) -> TreeEnd:
        self.outcome.hand_over = self.outcome.hand_over or end is TreeEnd.HANDED_OVER
        return end

    def _note(self, bound: float, text: str) -> None:
        self.bound = max(self.bound, bound)
        self.report(text)

    def solution(self) -> Solution:
        """The best plan and the lower bound."""
        seconds = time.monotonic() - self.began
        search = self.best_plan.search
        if search is not None:
            self.account.add(search)
            if not self.outcome.finished:
                tree = search.lower_bound() if search.open else 0.0
                self.bound = max(self.bound, tree, min(search.root_bound, search.cutoff))
        statistics = self.account.statistics(self.paths.pool.size)
        base = Solution(FEASIBLE, solver=SOLVER_NAME, seconds=seconds, statistics=statistics)
        stopped = self.outcome.stopped or Termination.SOLVER_FAILURE
        if self.bound >= self.stopper.cutoff() and stopped is not Termination.INTERRUPTED:
            stopped = Termination.CUT_OFF
        if self.outcome.infeasible:
            return base.replace(status=INFEASIBLE, termination=Termination.INFEASIBLE)
        self.memory.bound = max(self.memory.bound, min(self.bound, self.best_plan.time))
        best, plan = self.best_plan.time, self.best_plan.plan()
        if plan is None:
            return base.replace(bound=self.bound or None).ended_by(stopped)
        bound = min(self.bound, best)
        optimal = best - bound <= self.gap * abs(best) or self.outcome.finished
        found = base.replace(plan=plan, objective=best, bound=bound, cuts=self._reported_cuts(plan))
        return found.closed(interrupted=stopped is Termination.INTERRUPTED) if optimal else found.ended_by(stopped)

    def keep(self, closed: Solution) -> None:
        """Keep another solver's bound and paths for a later solve."""
        best = np.inf if closed.objective is None else closed.objective
        self.memory.bound = max(self.memory.bound, min(closed.bound or 0.0, best))
        for cut in closed.cuts:
            self.paths.pool.add(np.array(cut[: self.paths.classes]), cut[-1])

    def _reported_cuts(self, plan: PipelinePlan) -> tuple[tuple[float, ...], ...]:
        """The plan's longest paths, the LP's cuts and the newest others: R class counts and the lag total each."""
        pool = self.paths.pool
        if not pool.size:
            return ()
        search = self.best_plan.search
        of_lp = search.master.kept if search is not None and search.master is not None else []
        durations = chunk_durations(self.problem, plan)[: self.paths.classes]
        own = [self.paths.path(durations, prefer)[1] for prefer in (0, 1)]
        numbers = dict.fromkeys([*own, *of_lp, *range(max(0, pool.size - REPORTED_CUTS), pool.size)])
        # The pool's constant includes the path's lags and its final tail, so the tail counts stay 0.
        tails = [0.0] * self.problem.stages
        return tuple((*pool.counts[g].tolist(), *tails, float(pool.constant[g])) for g in numbers)
