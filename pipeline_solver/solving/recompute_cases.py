"""One recompute choice for every chunk: the choices one after the other, each a subproblem.

A choice is cut off as soon as its lower bound reaches the best plan so far. Counts far above an even chunk's layers are
much alike, because most chunks then recompute all layers. One relaxed problem that no plan of any of them beats
(`at_least`) replaces them all, until it has a better plan or its time is used up. Then the smallest counts are tried
one by one, and the others as one again. Without a time limit each count is tried by itself: no clock would end the
relaxed problem.

Where layers have further choices, the problem in which no choice costs time (`without_choices`) comes first. Its bound
is valid for each of them: one proof for all where memory is free, for example by overlapped offload.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from taylor.pipeline.plan import NONE, PipelinePlan
from taylor.pipeline_solver.heuristics.uniform_plans import better_of_two, nearest
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import (
    CUT_OFF,
    INFEASIBLE,
    NO_SOLUTION,
    OPTIMAL,
    Solution,
    Termination,
    proven_within,
)
from taylor.pipeline_solver.model.solver import Solver
from taylor.pipeline_solver.model.uniform_rule import counts_suffice, distinct_choices, kept_choice, uniform_choice
from taylor.pipeline_solver.solving.turns import LONGEST, Turns
from taylor.pipeline_solver.tree.tree_memory import TreeMemory, closed_by_milp

NO_LIMIT_MIB = 1e12
"""More memory than any stage fills, MiB."""


class Case(NamedTuple):
    """A choice, or a count of recompute and all greater ones that the problem names."""

    mode: str
    most: int
    beyond: bool = False

    def __str__(self) -> str:
        return f"{self.mode} recompute of {self.most} layers a chunk{' or more' if self.beyond else ''}"


def without_choices(problem: PipelineProblem) -> PipelineProblem:
    """The problem in which every layer takes the time of no recompute and the least memory of all its choices.

    Its optimum bounds every plan of the problem, whatever is recomputed or offloaded.
    """
    modes = (NONE, *problem.searched_modes)
    kinds = (
        kind
        if kind.pinned
        else replace(
            kind,
            layer_mib=kind.least_mib,
            activation_mib={NONE: min(kind.activation_mib[mode] for mode in modes)},
            choices={},
        )
        for kind in problem.kinds
    )
    nothing = dict.fromkeys(("unsearched", "choices", "uniform_recompute", "host_limit_mib", "lent_limit_mib"), ())
    return problem.replace(kinds=tuple(kinds), recompute_ratio={}, fixed_recompute={}, **nothing)


def at_least(problem: PipelineProblem, mode: str, most: int) -> PipelineProblem:
    """The problem in which chunks recompute `most` layers, and the other layers keep no more than these.

    Its optimum bounds every plan with `most` or any greater count of the mode.
    """
    kinds = (
        kind
        if kind.pinned
        else replace(
            kind, activation_mib={**kind.activation_mib, NONE: min(kind.activation_mib[of] for of in (NONE, mode))}
        )
        for kind in problem.kinds
    )
    return problem.replace(kinds=tuple(kinds), uniform_recompute=((mode, most),), fixed_recompute={})


class Choices:
    """One choice after the other, each against the best plan of all; a later solve resumes it."""

    def __init__(
        self, problem: PipelineProblem, run: Solver, memory: TreeMemory, options: SolveOptions, *, timed: bool
    ) -> None:
        self.problem, self.run, self.params = problem, run, options.params.solving
        self.paths, self.patience = memory.paths, memory.patience
        self.left, self.fruitless = memory.left, memory.fruitless
        self.options = options
        self.began = 0.0
        self.deadline: float | None = None
        self.floor = 0.0
        self.free = Solution(NO_SOLUTION)
        self.best: Solution | None = None
        self.on_progress: OnProgress | None = None
        self.proven: dict[Case, float] = {}
        self.memories: dict[Case, TreeMemory] = {}
        self.cut: dict[Case, float] = {}  # step times below which their last time slices searched
        self.untried = self._cases() if timed else [Case(*choice) for choice in distinct_choices(problem)]
        self.done: list[Case] = []
        self.closed: set[str] = set()
        self.kept: tuple[str, int] | None = None  # the choice that the best plan without the rule obeys
        self.turns: Turns[Case] = Turns(None)
        # With few chunks the MILP takes over, and starts from nothing each time.
        self.resumable = not closed_by_milp(problem, options.params.milp)
        self.stopped: Termination | None = None
        self.near = False
        self.relaxed = without_choices(problem) if problem.choices else None
        self.relaxed_memory = TreeMemory()

    def begin(
        self,
        options: SolveOptions,
        began: float,
        deadline: float | None,
        on_progress: OnProgress | None,
        free: Solution,
        best: Solution | None,
    ) -> None:
        """Begin a solve with the results of the problem without the rule and the best plan that obeys it."""
        self.options, self.began, self.deadline, self.on_progress = options, began, deadline, on_progress
        self.turns, self.stopped, self.near = Turns(deadline), None, False
        self.free, self.floor = free, max(self.floor, free.bound or 0.0)
        self.relaxed_memory.bound = max(self.relaxed_memory.bound, self.floor)
        self.best = self.best if best is None else better_of_two(self.best, best)
        self.kept = self.kept if free.plan is None else kept_choice(self.problem, free.plan)

    def to_beat(self) -> float:
        """Step time that a choice must beat."""
        best = float("inf") if self.best is None or self.best.objective is None else self.best.objective
        asked = float("inf") if self.options.cutoff is None else self.options.cutoff()
        return min(best * (1.0 - self.options.gap / 2), asked)

    def asked(self) -> float:
        """Step time below which the open choices are searched: `to_beat`, or a little less at first."""
        return self.to_beat() * (1.0 - self.params.near if self.near else 1.0)

    def bound(self) -> float:
        """Lower bound of all choices."""
        untried = [0.0 for case in self.untried if case not in self.proven]
        return min((max(bound, self.floor) for bound in [*self.proven.values(), *untried]), default=float("inf"))

    def solve(self) -> None:
        """Try every subproblem briefly, then resume the open ones, the most promising first."""
        self._relax()
        self._try_untried()
        while not self._over() and not self._settled():
            self.near = self.deadline is not None and self.bound() < (1.0 - self.params.near) * self.to_beat()
            known = [(max(bound, self.floor), case) for case, bound in self.proven.items()]
            pending = [entry for entry in known if entry[0] < self.asked()]
            if not pending:
                return
            if self.relaxed is not None and sum(bound <= self.floor for bound, _ in pending) > 1:
                self._try_relaxed(LONGEST)
                continue
            case, seconds = self.turns.later(pending, resumable=self.resumable)
            before = self.proven[case]
            if case.beyond:
                part = self.turns.reckoned()
                turn = seconds if seconds is None or part is None else min(seconds, self.params.second * part)
                self._try_beyond(case, turn, again=True)
                self._try_untried()
                continue
            self._try(case, seconds)
            if seconds is None and self.proven[case] <= before:
                self.stopped = self.stopped or Termination.STALLED
                return

    def _try_untried(self) -> None:
        """Give every untried subproblem its first time slice; the parts of a split one count as untried."""
        while self.untried and self.floor < self.to_beat() and not self._over():
            case, most = self.untried[0], self._most_layers()
            seconds = self.turns.first(self._untried(most), resumable=True)
            self.untried.remove(case)
            if case.mode in self.problem.choices and self._hopeless(case):
                self.proven[case] = self.to_beat()
            elif case.mode in self.closed or self._tried_as_well(case, most):
                self.proven.pop(case, None)
            elif case.beyond:
                self._try_beyond(case, seconds)
            else:
                found = self._try(case, seconds)
                self.done.append(case)
                alone = not any(of.beyond and of.mode == case.mode for of in [*self.untried, *self.proven])
                if found.status == CUT_OFF and case.most and alone and self._hopeless(case):
                    self.closed.add(case.mode)

    def _tried_as_well(self, case: Case, most: int) -> bool:
        """Return whether a count that no chunk of a better plan exceeds was tried: greater ones are the same."""
        return any(of.mode == case.mode and most <= of.most <= case.most for of in self.done)

    def _cases(self) -> list[Case]:
        """The distinct choices; the great counts of a recompute mode, where they are many, as one."""
        problem = self.problem
        choices = distinct_choices(problem)
        great = self.params.great * -(-problem.layers // (problem.stages * problem.interleaves))
        many = {
            mode
            for mode in problem.recompute_ratio
            if sum(of == mode and most >= great for of, most in choices) >= self.params.many
        }
        cases: list[Case] = []
        for mode, most in choices:
            if mode not in many or most < great:
                cases.append(Case(mode, most))
            elif not any(case.beyond and case.mode == mode for case in cases):
                cases.append(Case(mode, most, beyond=True))
        return cases

    def _try_beyond(self, case: Case, seconds: float | None, *, again: bool = False) -> None:
        """Bound a count and all greater ones; split off the smallest where a better plan is found.

        Split them off, too, where probing rules out next to nothing, and where the subproblem stays open after a later
        time slice (`again`).
        """
        self.proven.setdefault(case, 0.0)
        report = _reported(self, str(case), self.on_progress, plans=False)
        memory = self._memory(case, TreeMemory(self.floor, paths=self.paths, patience=self.patience))
        problem = at_least(self.problem, case.mode, case.most)
        found, better = self._until_better(problem, seconds, memory, report, self.asked)
        reached = self._reached(case, found)
        self._take_nearest(found)
        in_vain = _in_vain(memory)
        if (better or again or in_vain) and reached < self.asked():
            self._part(
                case,
                reached,
                self.params.further_without_progress if in_vain else self.params.further,
            )

    def _until_better(
        self,
        problem: PipelineProblem,
        seconds: float | None,
        memory: TreeMemory | None,
        report: OnProgress | None,
        below: Callable[[], float],
    ) -> tuple[Solution, bool]:
        """Solve a relaxed problem until a better plan is found, none is proven to be `below`, or progress stops; return
        the solution, and whether one is found."""
        better = False

        def watch(progress: Progress) -> None:
            nonlocal better
            better |= progress.objective is not None and progress.objective < self.to_beat()
            if report is not None:
                report(progress)

        # A better plan answers the question: nothing remains to beat then.
        asked = self._within(seconds).replace(
            cutoff=lambda: 0.0 if better or _in_vain(memory) else below(), memory=memory
        )
        found = self._run(problem, asked, on_progress=watch)
        return found, better or (found.objective is not None and found.objective < self.to_beat())

    def _run(
        self,
        problem: PipelineProblem,
        options: SolveOptions,
        *,
        warm_start: PipelinePlan | None = None,
        on_progress: OnProgress | None = None,
    ) -> Solution:
        """Run the solver; an interrupt ends the search of all subproblems."""
        found = self.run(problem, options, warm_start=warm_start, on_progress=on_progress)
        if found.termination is Termination.INTERRUPTED:
            self.stopped = Termination.INTERRUPTED
        return found

    def _memory(self, case: Case, fresh: TreeMemory) -> TreeMemory:
        """The memory of a subproblem's earlier time slices, without a tree whose cutoff was below the one asked now."""
        memory = self.memories.setdefault(case, fresh)
        if self.asked() > self.cut.get(case, float("inf")):
            memory.tree = None
        return memory

    def _reached(self, case: Case, found: Solution) -> float:
        """Record the bound that a solve proved of a subproblem, and its cutoff; return the best bound of it."""
        self.cut[case] = self.asked()
        reached = float("inf") if found.status == INFEASIBLE else max(found.bound or 0.0, self.floor)
        self.proven[case] = max(reached, self.proven[case])
        return self.proven[case]

    def _take_nearest(self, found: Solution) -> None:
        """Give a relaxed problem's layers the recompute that obeys the rule, and keep the plan where it is the best."""
        near = None if found.plan is None else nearest(self.problem, found.plan, found.solver)
        self.best = self.best if near is None else better_of_two(self.best, near)

    def _part(self, case: Case, reached: float, further: float) -> None:
        """Replace a subproblem by its smallest counts, and the others as one again."""
        del self.proven[case], self.memories[case]
        counts = [most for mode, most in distinct_choices(self.problem) if mode == case.mode and most >= case.most]
        upto = max(case.most + 1, int(case.most * (1.0 + further)))
        parts = [Case(case.mode, most) for most in counts if most < upto]
        rest = [most for most in counts if most >= upto]
        if len(rest) >= self.params.many:
            parts.append(Case(case.mode, rest[0], beyond=True))
        else:
            parts += [Case(case.mode, most) for most in rest]
        self.proven |= {part: reached for part in parts}
        self.untried[:0] = parts

    def _most_layers(self) -> int:
        """Layers of a chunk that no better plan exceeds: counts from there on are the same choice."""
        return self.problem.layers if self.best is None else _layers_within(self.problem, self.to_beat())

    def _untried(self, most: int) -> int:
        """Number of distinct untried choices; those of one recompute mode count as one, because counts rise and the
        first that cannot win ends them."""
        if self.problem.choices:
            return len({(case.mode, min(case.most, most)) for case in self.untried})
        return len({case.mode for case in self.untried})

    def _relax(self) -> None:
        """Solve the problem in which choices cost nothing, as long as a known plan is as good as its best."""
        share = self.params.first_share
        while self.relaxed is not None and self.floor < self.to_beat() and not self._over():
            if self._try_relaxed(share) < self.to_beat():
                return
            share = self.params.relaxed_share

    def _try_relaxed(self, share: float) -> float:
        """Resume the problem in which choices cost nothing for a fraction of the remaining time; its best plan's
        time."""
        assert self.relaxed is not None
        ahead = self.turns.ahead()
        left = None if ahead is None else max(0.5, share * ahead)
        report = _reported(self, "choices without cost", self.on_progress, plans=False, whole=True)
        options = self._within(left).replace(memory=self.relaxed_memory)
        found = self._run(self.relaxed, options, on_progress=report)
        self.floor = max(self.floor, float("inf") if found.status == INFEASIBLE else found.bound or 0.0)
        if left is None or found.status in (OPTIMAL, INFEASIBLE, CUT_OFF):
            self.relaxed = None
        if found.plan is None or found.objective is None:
            return float("inf") if self.relaxed is None else 0.0
        self._take_nearest(found)
        return found.objective

    def _settled(self) -> bool:
        """Return whether the best plan is proven to the asked gap; choices are cut off at half of that gap."""
        known = None if self.best is None else self.best.objective
        return known is not None and proven_within(known, self.bound(), self.options.gap)

    def _over(self) -> bool:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.stopped = self.stopped or Termination.TIME_LIMIT
        return self.stopped is not None

    def _try(self, case: Case, seconds: float | None) -> Solution:
        """Solve with one choice, for some seconds."""
        self.proven.setdefault(case, 0.0)
        choice = case.mode, case.most
        one = self.problem.replace(uniform_recompute=(choice,))
        known = self.best.plan if self.best is not None else None
        if known is not None and uniform_choice(one, known) is None:
            known = None  # a plan for another choice says nothing of this one
        report = _reported(self, str(case), self.on_progress)
        fresh = TreeMemory(self.floor, paths=self.paths, patience=self.patience)
        if choice == self.kept and self.resumable and self.left < float("inf") and not counts_suffice(one):
            # The same optimum, and much the same tree, though the cutoff is now a hair lower. Where the LP is over
            # counts it is another tree.
            fresh.left = min(self.left, self.to_beat())
            fresh.fruitless = self.fruitless
        memory = self._memory(case, fresh)
        options = self._within(seconds).replace(cutoff=self.asked, memory=memory)
        found = self._run(one, options, warm_start=known, on_progress=report)
        self.best = better_of_two(self.best, found)
        self._reached(case, found)
        return found

    def _hopeless(self, case: Case) -> bool:
        """Return whether the choice, and any of its mode for more layers, cannot win even with unlimited memory."""
        limits = tuple(NO_LIMIT_MIB for _ in self.problem.limit_mib)
        roomy = self.problem.replace(uniform_recompute=((case.mode, case.most),), limit_mib=limits, host_limit_mib=())
        if roomy.lent_limit_mib:
            roomy = roomy.replace(lent_limit_mib=limits)
        found, better = self._until_better(roomy, 1.0, None, None, self.to_beat)
        return found.status == CUT_OFF and not better

    def _within(self, seconds: float | None) -> SolveOptions:
        left = None if self.deadline is None else max(0.01, self.deadline - time.monotonic())
        limit = left if seconds is None else seconds if left is None else min(left, seconds)
        return self.options.replace(time_limit=limit, cutoff=self.to_beat)


def _in_vain(memory: TreeMemory | None) -> bool:
    """Return whether probing has ruled out next to nothing."""
    return memory is not None and memory.fruitless < float("inf")


def _layers_within(problem: PipelineProblem, step_time: float) -> int:
    """Layers that a stage can run forward and backward for all micro-batches within a step."""
    left = step_time * (1.0 + 1e-9) / (problem.micro_batches * (1.0 + problem.backward_ratio) * min(problem.least_pace))
    most = 0
    for kind in sorted(problem.free_kinds, key=lambda kind: kind.forward):
        layers = kind.count if left >= kind.count * kind.forward else int(left / kind.forward)
        most += layers
        left -= layers * kind.forward
        if layers < kind.count:
            break
    return most


def _reported(
    choices: Choices, of: str, on_progress: OnProgress | None, *, plans: bool = True, whole: bool = False
) -> OnProgress | None:
    """Pass progress on as that of the whole problem.

    Parameters
    ----------
    plans : bool
        The plans found are plans of the problem.
    whole : bool
        The bounds proven are valid for every choice.
    """
    if on_progress is None:
        return None

    def passed_on(progress: Progress) -> None:
        known = None if choices.best is None else choices.best.objective
        found = [value for value in (progress.objective if plans else None, known) if value is not None]
        bound = max(choices.floor, progress.bound or 0.0) if whole else min([choices.bound(), *found])
        seconds = time.monotonic() - choices.began
        on_progress(Progress(seconds, min(found, default=None), bound or None, f"{of}: {progress.note}"))

    return passed_on
