"""One recompute choice for every chunk: the choices one after the other, each a problem of its own.

A choice is cut off as soon as its proven bound reaches the best plan so far. The many counts far above an even chunk's
layers are much alike, for most chunks recompute all layers then: one problem that no plan of any of them beats
(`at_least`) stands for all, until it holds a better plan or has had its time; then the least of them are tried one by
one, and the others as one again. Without a time limit each is tried by itself: no clock would end what stands for all.

Where layers have further choices, the problem in which no choice costs anything (`without_choices`) comes first, whose
bound holds for each of them: one proof for all where memory can be had for nothing, by offload that computation hides,
say.
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
from taylor.pipeline_solver.model.uniform_rule import counts_tell, distinct_choices, kept_choice, uniform_choice
from taylor.pipeline_solver.solving.turns import LONGEST, Turns
from taylor.pipeline_solver.tree.tree_memory import TreeMemory, closed_by_milp

FIRST_SHARE = 0.15
"""Share of the time limit, as turns reckon with it, that the problem without the rule may take, and that in which
choices cost nothing."""

RELAXED_SHARE = 0.85
"""Share of what is left of it that the problem without costs of choices may take while a plan is as good as its best
one."""

NO_LIMIT_MIB = 1e12
"""Memory that no stage fills."""

GREAT, MANY = 2, 4
"""How many times an even chunk's layers counts have that are tried as one, and how many they are at the least: with
smaller ones in between, what stands for them is far from each."""

NEAR = 0.004
"""Share of the step time to beat that later turns leave open until no choice is open by more: under a time limit all
choices are brought near to it before one is brought to it, for the last of a gap takes the longest."""

FURTHER, FURTHER_IN_VAIN = 0.25, 0.5
"""Where counts as one hold a better plan or stay open, those up to so many more, as a share, are tried one by one;
where probing rules out next to nothing, those up to twice as many more: the next ones are likely to take their time in
vain, too, that of two or three counts."""

SECOND = 0.25
"""Share of the time limit, as turns reckon with it, of the one later turn that counts have as one."""


class Case(NamedTuple):
    """A choice, or a count of recompute and all greater ones that the problem names."""

    mode: str
    most: int
    beyond: bool = False

    def __str__(self) -> str:
        return f"{self.mode} recompute of {self.most} layers a chunk{' or more' if self.beyond else ''}"


def without_choices(problem: PipelineProblem) -> PipelineProblem:
    """The problem in which every layer takes the time of no recompute and the least memory of all its choices.

    No plan of the problem is faster than the best one of this, whatever is recomputed or offloaded.
    """
    modes = (NONE, *problem.searched_modes)
    kinds = (
        kind
        if kind.pinned_last
        else replace(
            kind,
            layer_mib=kind.least_mib,
            activation_mib={NONE: min(kind.activation_mib[mode] for mode in modes)},
            choices={},
        )
        for kind in problem.kinds
    )
    nothing: dict[str, object] = {"unsearched": (), "choices": (), "uniform_recompute": (), "host_limit_mib": ()}
    return problem.replace(kinds=tuple(kinds), recompute_ratio={}, fixed_recompute={}, **nothing)


def at_least(problem: PipelineProblem, mode: str, most: int) -> PipelineProblem:
    """The problem in which chunks recompute `most` layers and keep no more of the others than of these.

    No plan under `most` or any greater count of the mode is faster than its best one.
    """
    kinds = (
        kind
        if kind.pinned_last
        else replace(
            kind, activation_mib={**kind.activation_mib, NONE: min(kind.activation_mib[of] for of in (NONE, mode))}
        )
        for kind in problem.kinds
    )
    return problem.replace(kinds=tuple(kinds), uniform_recompute=((mode, most),), fixed_recompute={})


class Choices:
    """The problem with one choice after the other, each against the best plan of all; a later solve goes on with it."""

    def __init__(self, problem: PipelineProblem, run: Solver, memory: TreeMemory, *, timed: bool) -> None:
        self.problem, self.run = problem, run
        self.paths, self.patience = memory.paths, memory.patience
        self.left, self.fruitless = memory.left, memory.fruitless
        self.options = SolveOptions()
        self.began = 0.0
        self.deadline: float | None = None
        self.floor = 0.0
        self.free = Solution(NO_SOLUTION)
        self.best: Solution | None = None
        self.on_progress: OnProgress | None = None
        self.proven: dict[Case, float] = {}
        self.memories: dict[Case, TreeMemory] = {}
        self.cut: dict[Case, float] = {}  # step times below which their last turns looked
        self.untried = self._cases() if timed else [Case(*choice) for choice in distinct_choices(problem)]
        self.done: list[Case] = []
        self.closed: set[str] = set()
        self.kept: tuple[str, int] | None = None  # what the best plan without the rule keeps to
        self.turns: Turns[Case] = Turns(None)
        # Of few chunks the MILP goes on, and begins anew each time.
        self.resumable = not closed_by_milp(problem)
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
        """Begin a solve, with what is known of the problem without the rule and the best plan that keeps it."""
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
        """Step time below which the open choices are to be looked through: `to_beat`, or a little less at first."""
        return self.to_beat() * (1.0 - NEAR if self.near else 1.0)

    def bound(self) -> float:
        """What no choice beats."""
        untried = [0.0 for case in self.untried if case not in self.proven]
        return min((max(bound, self.floor) for bound in [*self.proven.values(), *untried]), default=float("inf"))

    def solve(self) -> None:
        """Try every case a little while, then go on with those that are open, the most promising first."""
        self._relax()
        self._try_untried()
        while not self._over() and not self._settled():
            self.near = self.deadline is not None and self.bound() < (1.0 - NEAR) * self.to_beat()
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
                turn = seconds if seconds is None or part is None else min(seconds, SECOND * part)
                self._try_beyond(case, turn, again=True)
                self._try_untried()
                continue
            self._try(case, seconds)
            if seconds is None and self.proven[case] <= before:
                self.stopped = self.stopped or Termination.STALLED
                return

    def _try_untried(self) -> None:
        """Give every untried case its first turn; what a case of many counts falls into is untried then."""
        while self.untried and self.floor < self.to_beat() and not self._over():
            case, room = self.untried[0], self._room()
            seconds = self.turns.first(self._untried(room), resumable=True)
            self.untried.remove(case)
            if case.mode in self.problem.choices and self._hopeless(case):
                self.proven[case] = self.to_beat()
            elif case.mode in self.closed or self._tried_as_well(case, room):
                self.proven.pop(case, None)
            elif case.beyond:
                self._try_beyond(case, seconds)
            else:
                found = self._try(case, seconds)
                self.done.append(case)
                alone = not any(of.beyond and of.mode == case.mode for of in [*self.untried, *self.proven])
                if found.status == CUT_OFF and case.most and alone and self._hopeless(case):
                    self.closed.add(case.mode)

    def _tried_as_well(self, case: Case, room: int) -> bool:
        """Whether a count that no chunk of a better plan passes was tried: greater ones are the same."""
        return any(of.mode == case.mode and room <= of.most <= case.most for of in self.done)

    def _cases(self) -> list[Case]:
        """The choices that differ; of the counts of a recompute mode the great ones, where they are many, as one."""
        problem = self.problem
        choices = distinct_choices(problem)
        great = GREAT * -(-problem.layers // (problem.stages * problem.interleaves))
        many = {
            mode
            for mode in problem.recompute_ratio
            if sum(of == mode and most >= great for of, most in choices) >= MANY
        }
        cases: list[Case] = []
        for mode, most in choices:
            if mode not in many or most < great:
                cases.append(Case(mode, most))
            elif not any(case.beyond and case.mode == mode for case in cases):
                cases.append(Case(mode, most, beyond=True))
        return cases

    def _try_beyond(self, case: Case, seconds: float | None, *, again: bool = False) -> None:
        """Look for a bound of a count and all greater ones; where a better plan turns up, the least are cases again.

        So they are where probing rules out next to nothing, and where the case stays open after a later turn (`again`).
        """
        self.proven.setdefault(case, 0.0)
        told = _told(self, str(case), self.on_progress, plans=False)
        memory = self._memory(case, TreeMemory(self.floor, paths=self.paths, patience=self.patience))
        problem = at_least(self.problem, case.mode, case.most)
        found, better = self._until_better(problem, seconds, memory, told, self.asked)
        reached = self._reached(case, found)
        self._take_nearest(found)
        in_vain = _in_vain(memory)
        if (better or again or in_vain) and reached < self.asked():
            self._part(case, reached, FURTHER_IN_VAIN if in_vain else FURTHER)

    def _until_better(
        self,
        problem: PipelineProblem,
        seconds: float | None,
        memory: TreeMemory | None,
        told: OnProgress | None,
        below: Callable[[], float],
    ) -> tuple[Solution, bool]:
        """Solve a relaxed problem until a better plan is met, none is proven to be `below` or that is in vain; whether
        one is met."""
        better = False

        def watch(progress: Progress) -> None:
            nonlocal better
            better |= progress.objective is not None and progress.objective < self.to_beat()
            if told is not None:
                told(progress)

        # A better plan answers the question: nothing is left to beat then.
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
        """Run the solver; an interrupt ends the search of all cases."""
        found = self.run(problem, options, warm_start=warm_start, on_progress=on_progress)
        if found.termination is Termination.INTERRUPTED:
            self.stopped = Termination.INTERRUPTED
        return found

    def _memory(self, case: Case, fresh: TreeMemory) -> TreeMemory:
        """What earlier turns have left of a case: no tree that was cut off below what is asked for now."""
        memory = self.memories.setdefault(case, fresh)
        if self.asked() > self.cut.get(case, float("inf")):
            memory.tree = None
        return memory

    def _reached(self, case: Case, found: Solution) -> float:
        """Keep what a solve has proven of a case, and below which step time; all that is proven of it."""
        self.cut[case] = self.asked()
        reached = float("inf") if found.status == INFEASIBLE else max(found.bound or 0.0, self.floor)
        self.proven[case] = max(reached, self.proven[case])
        return self.proven[case]

    def _take_nearest(self, found: Solution) -> None:
        """Take the plan with the layers of a relaxed problem's that keeps the rule, where it is the best."""
        near = None if found.plan is None else nearest(self.problem, found.plan, found.solver)
        self.best = self.best if near is None else better_of_two(self.best, near)

    def _part(self, case: Case, reached: float, further: float) -> None:
        """Put the least counts of a case in its place, and the others as one again."""
        del self.proven[case], self.memories[case]
        counts = [most for mode, most in distinct_choices(self.problem) if mode == case.mode and most >= case.most]
        upto = max(case.most + 1, int(case.most * (1.0 + further)))
        parts = [Case(case.mode, most) for most in counts if most < upto]
        rest = [most for most in counts if most >= upto]
        if len(rest) >= MANY:
            parts.append(Case(case.mode, rest[0], beyond=True))
        else:
            parts += [Case(case.mode, most) for most in rest]
        self.proven |= {part: reached for part in parts}
        self.untried[:0] = parts

    def _room(self) -> int:
        """Layers of a chunk that no plan passes which beats the best: counts from there on are the same choice."""
        return self.problem.layers if self.best is None else _layers_within(self.problem, self.to_beat())

    def _untried(self, room: int) -> int:
        """Choices that are still to be tried and differ; those of one recompute mode count as one, for the counts
        rise and the first that cannot win ends them."""
        if self.problem.choices:
            return len({(case.mode, min(case.most, room)) for case in self.untried})
        return len({case.mode for case in self.untried})

    def _relax(self) -> None:
        """Look at the problem in which choices cost nothing, for as long as a plan at hand is as good as its best."""
        share = FIRST_SHARE
        while self.relaxed is not None and self.floor < self.to_beat() and not self._over():
            if self._try_relaxed(share) < self.to_beat():
                return
            share = RELAXED_SHARE

    def _try_relaxed(self, share: float) -> float:
        """Go on with the problem in which choices cost nothing for a share of what is left; its best plan's time."""
        assert self.relaxed is not None
        ahead = self.turns.ahead()
        left = None if ahead is None else max(0.5, share * ahead)
        told = _told(self, "choices without cost", self.on_progress, plans=False, whole=True)
        options = self._within(left).replace(memory=self.relaxed_memory)
        found = self._run(self.relaxed, options, on_progress=told)
        self.floor = max(self.floor, float("inf") if found.status == INFEASIBLE else found.bound or 0.0)
        if left is None or found.status in (OPTIMAL, INFEASIBLE, CUT_OFF):
            self.relaxed = None
        if found.plan is None or found.objective is None:
            return float("inf") if self.relaxed is None else 0.0
        self._take_nearest(found)
        return found.objective

    def _settled(self) -> bool:
        """Whether the best plan is proven as far as was asked; choices are cut off at half of that gap."""
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
        told = _told(self, str(case), self.on_progress)
        fresh = TreeMemory(self.floor, paths=self.paths, patience=self.patience)
        if choice == self.kept and self.resumable and self.left < float("inf") and not counts_tell(one):
            # The same optimum, and much the same tree, though what is to be beaten now is a hair less. Where counts
            # tell all it is another tree.
            fresh.left = min(self.left, self.to_beat())
            fresh.fruitless = self.fruitless
        memory = self._memory(case, fresh)
        options = self._within(seconds).replace(cutoff=self.asked, memory=memory)
        found = self._run(one, options, warm_start=known, on_progress=told)
        self.best = better_of_two(self.best, found)
        self._reached(case, found)
        return found

    def _hopeless(self, case: Case) -> bool:
        """Whether the choice, and with it any of its mode for more layers, cannot win even with all memory there is."""
        limits = tuple(NO_LIMIT_MIB for _ in self.problem.limit_mib)
        roomy = self.problem.replace(uniform_recompute=((case.mode, case.most),), limit_mib=limits, host_limit_mib=())
        found, better = self._until_better(roomy, 1.0, None, None, self.to_beat)
        return found.status == CUT_OFF and not better

    def _within(self, seconds: float | None) -> SolveOptions:
        left = None if self.deadline is None else max(0.01, self.deadline - time.monotonic())
        limit = left if seconds is None else seconds if left is None else min(left, seconds)
        return self.options.replace(time_limit=limit, cutoff=self.to_beat)


def _in_vain(memory: TreeMemory | None) -> bool:
    """Whether probing has ruled out next to nothing."""
    return memory is not None and memory.fruitless < float("inf")


def _layers_within(problem: PipelineProblem, step_time: float) -> int:
    """Layers that a stage can run forward and backward for all micro-batches within a step."""
    left = step_time * (1.0 + 1e-9) / (problem.micro_batches * (1.0 + problem.backward_ratio) * min(problem.least_pace))
    most = 0
    for kind in sorted(problem.free_kinds, key=lambda kind: kind.forward):
        held = kind.count if left >= kind.count * kind.forward else int(left / kind.forward)
        most += held
        left -= held * kind.forward
        if held < kind.count:
            break
    return most


def _told(
    choices: Choices, of: str, on_progress: OnProgress | None, *, plans: bool = True, whole: bool = False
) -> OnProgress | None:
    """Passes progress on as that of the whole.

    Parameters
    ----------
    plans : bool
        Whether what is found are plans of the problem.
    whole : bool
        Whether what is proven holds for every choice.
    """
    if on_progress is None:
        return None

    def tell(progress: Progress) -> None:
        known = None if choices.best is None else choices.best.objective
        found = [value for value in (progress.objective if plans else None, known) if value is not None]
        bound = max(choices.floor, progress.bound or 0.0) if whole else min([choices.bound(), *found])
        seconds = time.monotonic() - choices.began
        on_progress(Progress(seconds, min(found, default=None), bound or None, f"{of}: {progress.note}"))

    return tell
