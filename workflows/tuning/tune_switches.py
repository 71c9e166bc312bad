"""Switches of a plan's layers (MC2, fused token rearrangement, overlapped exchanges), compared by small runs.

No law of the small runs knows how a switch changes a layer's operators. So runs with the plan's shapes are started with
a switch and without, everything else the same: with few layers and with one more, whose difference is a layer. The
switch is kept where the time falls by more than the noise of the steps; the next one is then compared with it on.

The search goes on behind the best plans: a choice of degrees that would be among them if a switch saved all that it can
is compared too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from taylor.base.console import log
from taylor.blackbox.degree_search import Job, Ranked, solved_choice, within_reach
from taylor.blackbox.foretold import showing_run
from taylor.blackbox.operator_speed import MEDIAN_VARIANCE
from taylor.blackbox.rejection import spread_of
from taylor.blackbox.small_runs import SmallRun
from taylor.blackbox.stage_problem import DENSE
from taylor.blackbox.step_laws import StepLaws
from taylor.parsers.launcher import Launcher
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.small_run import JobSizes, Machines, RunSetting, Switch
from taylor.pipeline_solver.timing.evaluate import step_time
from taylor.workflows.tuning.tune_record import LOG, read_steps

MOST_OTHERS = 3
"""Choices of degrees that are compared because a switch could bring them among the best: four small runs each."""
SURE = 2.0
"""Standard errors by which a switch has to be faster."""


@dataclass(frozen=True)
class Compared:
    """Switch of one plan.

    Parameters
    ----------
    on : bool
        Whether the plan has it.
    before_ms, after_ms : float
        Time of a layer's forward pass, the same again and its backward pass for one micro-batch, without the switch and
        with it; infinite where that failed.
    memory : float
        Memory of the tensors with the switch, relative to those without.
    fits : bool
        Whether the plan has memory for that.
    """

    switch: Switch
    on: bool
    before_ms: float
    after_ms: float
    memory: float = 1.0
    fits: bool = True


@dataclass(frozen=True)
class SwitchedPlan:
    """Plan with its switches: its prediction includes the time they save and the memory they take."""

    ranked: Ranked
    compared: tuple[Compared, ...]


@dataclass(frozen=True)
class _Shown:
    """A layer's passes and their standard error, ns; the most bytes of a run's tensors at once, and of all together."""

    ns: float
    error: float
    most: int
    total: int


class Comparison:
    """Small runs of switches, each started once for all plans that it covers.

    Parameters
    ----------
    start : callable
        As in `SearchOptions.verify`.
    name : callable
        Name of the run of a setting.
    limit : float
        Bytes of a device.
    """

    def __init__(
        self,
        switches: Sequence[Switch],
        launcher: Launcher,
        sizes: JobSizes,
        machines: Machines,
        start: Callable[[SmallRun], Path | None],
        name: Callable[[RunSetting], str],
        limit: float,
    ) -> None:
        self.switches, self.launcher, self.sizes, self.machines = switches, launcher, sizes, machines
        self.start, self.name, self.limit = start, name, limit
        self._known: dict[tuple[RunSetting, tuple[str, ...]], _Shown | None] = {}

    def switched(self, ranked: Ranked, steps: StepLaws, profiled: int) -> SwitchedPlan:
        """Plan with the switches that pay, compared one after the other.

        Parameters
        ----------
        profiled : int
            Steps of a run that are profiled.
        """
        run = ranked.run
        shown = showing_run(steps.operators, steps.operators_of(run), run, self.sizes, self.machines.ranks)
        on = {one.name: one.on and one.may_be_on(run) for one in self.switches}
        compared, switched = list[Compared](), tuple[str, ...]()
        for one in self.switches:
            others = [name for name, state in on.items() if state and name != one.name]
            if shown is None or not one.may_be_on(run, others) or not one.may_be_on(shown.setting, others):
                continue
            if not one.is_shown_by(shown.setting, run):
                log.info("%s is not compared: the cards show no run with %s", one.name, run.differences(shown.setting))
                continue
            before = self._shown(shown.setting, switched, steps, profiled)
            if before is None or before.ns <= 0:
                break
            after = self._shown(shown.setting, (*switched, one.name), steps, profiled)
            if after is None or after.ns <= 0:
                compared.append(Compared(one, on[one.name], before.ns / 1e6, math.inf))
                continue
            # Tensors are not split into kept and temporary ones: each is charged the larger ratio.
            memory = max(after.most / max(1, before.most), after.total / max(1, before.total))
            fits = memory <= 1 or all(peak.upper * memory <= self.limit for peak in ranked.peaks)
            pays = before.ns - after.ns > SURE * math.hypot(before.error, after.error)
            if pays and fits:
                switched, on[one.name] = (*switched, one.name), not on[one.name]
                ranked = _with(ranked, one, after.ns / before.ns, max(1.0, memory))
            compared.append(Compared(one, on[one.name], before.ns / 1e6, after.ns / 1e6, memory, fits))
        return SwitchedPlan(ranked, tuple(compared))

    def best_of(self, best: Sequence[Ranked], job: Job, steps: StepLaws, profiled: int) -> tuple[SwitchedPlan, ...]:
        """As many plans, the best first: those given, and others that a switch could bring among them.

        Parameters
        ----------
        profiled : int
            Steps of a run that are profiled.
        """
        found = [self.switched(one, steps, profiled) for one in best]
        fraction = self._least_fraction(found, steps)
        found.sort(key=_step_ms)
        known = {one.run for one in best}
        others = within_reach(job, steps, _step_ms(found[-1]), fraction, known) if found else []
        for place, choice in enumerate(others):
            third = _step_ms(found[len(best) - 1])
            if place == MOST_OTHERS:
                log.info("%d further combinations could be faster with a switch than predicted", len(others) - place)
                break
            ranked = solved_choice(choice, job, steps, third / fraction(choice.run))
            if ranked is not None and ranked.step_ms * fraction(ranked.run) < third:
                found = sorted([*found, self.switched(ranked, steps, profiled)], key=_step_ms)
        return tuple(found[: len(best)])

    def _least_fraction(self, found: Sequence[SwitchedPlan], steps: StepLaws) -> Callable[[RunSetting], float]:
        """Least fraction of their time that a choice's layers take with the switches.

        What overlaps collectives saves their exposed time at most. Of others the best saving counts that was measured.
        """
        seen = dict[str, float]()
        for one in (each for plan in found for each in plan.compared):
            seen[one.switch.name] = min(seen.get(one.switch.name, 1.0), one.after_ms / one.before_ms)

        def fraction(run: RunSetting) -> float:
            may = [one for one in self.switches if one.may_be_on(run)]
            overlapped = {group for one in may if not one.on for group in one.overlaps}
            measured = [seen.get(one.name, 1.0) for one in may if one.on or not one.overlaps]
            return math.prod(measured, start=steps.least_fraction(run, overlapped) if overlapped else 1.0)

        return fraction

    def _shown(self, setting: RunSetting, switched: tuple[str, ...], steps: StepLaws, profiled: int) -> _Shown | None:
        key = (setting, switched)
        if key not in self._known:
            few = self._read(setting, switched, steps, profiled)
            more = (
                None
                if few is None
                else self._read(setting.replace(layers=setting.layers + 1), switched, steps, profiled)
            )
            layer = None
            if few is not None and more is not None:
                layer = replace(more, ns=more.ns - few.ns, error=math.hypot(more.error, few.error))
            self._known[key] = layer
        return self._known[key]

    def _read(self, setting: RunSetting, switched: tuple[str, ...], steps: StepLaws, profiled: int) -> _Shown | None:
        """All passes of a run."""
        one_more = setting.layers > self.sizes.least_layers
        name = "_".join((self.name(setting), *switched, *[f"layers{setting.layers}"] * one_more))
        why = f"with {', '.join(switched) or 'nothing'} switched"
        folder = self.start(SmallRun(name, setting, why, profiled, switched))
        if folder is None:
            return None
        runs = read_steps(folder, folder / LOG, setting, self.launcher)
        took = [steps.measured_passes_ns(run) for run in runs]
        error = median(took) * spread_of(took) * math.sqrt(MEDIAN_VARIANCE / len(took))
        return _Shown(float(median(took)), error, *_bytes(runs[-1].allocations))


def _step_ms(plan: SwitchedPlan) -> float:
    return plan.ranked.step_ms


def _with(ranked: Ranked, switch: Switch, time: float, memory: float) -> Ranked:
    """A plan whose layers take these fractions of time and memory; embedding, head and tails take what they did."""
    peaks = tuple(replace(one, peak=one.peak * memory, upper=one.upper * memory) for one in ranked.peaks)
    problem = ranked.problem
    of_experts = any(name in switch.above for name in ("ep", "experts"))
    kinds = tuple(
        replace(kind, forward=kind.forward / time) if of_experts and kind.name == DENSE else kind
        for kind in problem.kinds
    )
    unit = (problem.unit_ms or 1.0) * time
    problem = problem.replace(
        kinds=kinds,
        unit_ms=unit,
        head_forward=problem.head_forward / time,
        embedding_forward=problem.embedding_forward / time,
        lag=problem.lag / time,
        tail=tuple(each / time for each in problem.tail),
    )
    return replace(ranked, step_ms=step_time(problem, ranked.plan) * unit, peaks=peaks, problem=problem)


def _bytes(tensors: Sequence[Allocation]) -> tuple[int, int]:
    """Most bytes of tensors alive at once, and of all."""
    events = [(one.start_ns, one.bytes) for one in tensors]
    events += [(one.end_ns, -one.bytes) for one in tensors if one.end_ns is not None]
    alive = most = 0
    for _, size in sorted(events):
        alive += size
        most = max(most, alive)
    return most, sum(one.bytes for one in tensors)
