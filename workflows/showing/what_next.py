"""Changes of a solved job that would gain most, each solved again: more memory, another batch, fp8, more devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from taylor.base.budget import TimeBudget
from taylor.base.errors import TaylorError
from taylor.cost_model.profile import MemorySource, RatioSource
from taylor.cost_model.time.step import estimate_ratios
from taylor.dryrun.estimate import estimate_memory
from taylor.nd_search.stated import broken_rules
from taylor.parsers.new_files import NEW_FILES
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import RECOMPUTE_MODES
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import PROVEN_GAP, Solution, Termination
from taylor.pipeline_solver.solving.solve import solve
from taylor.register.narrow_products import DELAYED, TENSORWISE, NarrowProducts
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.showing.next_change import NextChange
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.showing.what_if import more_micro_batches
from taylor.workflows.statement.job_facts import degrees_text
from taylor.workflows.statement.module_choices import offered_words, with_module_choices
from taylor.workflows.statement.options import AskedModules
from taylor.workflows.statement.problem import build_problem
from taylor.workflows.statement.towers import with_tower

NEXT_SECONDS = 3.0
"""Longest time of all further solves together by default."""

GIB_MORE = 1024.0
"""Memory that is added to every device, MiB."""

SHOWN = 3
"""Most changes reported."""

LEAST_GAIN = 0.005
"""Relative gain below which a change is not reported."""


@dataclass(frozen=True)
class _Changed:
    """A changed problem; `samples` and `devices` over those of the job."""

    name: str
    state: Callable[[], PipelineProblem | None]
    samples: float = 1.0
    devices: float = 1.0


def next_changes(planned: PlannedFile, budget: TimeBudget, store: SolveStore | None = None) -> tuple[NextChange, ...]:
    """Changes that gain most of a device's speed, the best first, then twice the devices.

    Each is the job with one change, stated and solved as the job itself; a change without a plan, with hardly a gain,
    or not reached in time is left out.

    Parameters
    ----------
    budget : TimeBudget
        Time of all of them; Ctrl-C ends it.
    store : SolveStore, optional
        Finds the solves of an earlier run, and keeps these.
    """
    step = planned.solution.objective
    if step is None or planned.own is planned.solution:
        return ()
    found = []
    for change in _changes(planned):
        if budget.over:
            break
        try:
            solution = _solved(change, budget, store)
        except (TaylorError, ValueError):
            continue
        if solution is not None and solution[1].termination is Termination.INTERRUPTED:
            break
        if solution is not None and (gained := _gain(planned, change, *solution)) is not None:
            found.append(gained)
    better = sorted((one for one in found if one.gain_per_device > LEAST_GAIN), key=lambda one: -one.gain_per_device)
    further = [one for one in found if one not in better and one.gain > LEAST_GAIN][:1]
    return (*better[: SHOWN - len(further)], *further)


def _solved(change: _Changed, budget: TimeBudget, store: SolveStore | None) -> tuple[PipelineProblem, Solution] | None:
    """Changed problem with its solution, proven solves of earlier runs found again; None where it cannot be stated."""
    problem = change.state()
    if problem is None:
        return None
    how = SolveOptions(time_limit=budget.left, workers=1)
    kept = None if store is None else store.find(problem, how)
    if kept is not None:
        return problem, kept.solution
    solution = solve(problem, how)
    if store is not None and solution.plan is not None and solution.termination is not Termination.INTERRUPTED:
        store.keep(problem, how, solution)
    return problem, solution


def _gain(planned: PlannedFile, change: _Changed, problem: PipelineProblem, solution: Solution) -> NextChange | None:
    """Gain of a changed job; None where it has no plan."""
    before = planned.solution.objective
    if solution.objective is None or before is None:
        return None
    unit, old = problem.unit_ms, planned.problem.unit_ms
    ratio = before / solution.objective * (1.0 if unit is None or old is None else old / unit) * change.samples
    proven = solution.gap is not None and solution.gap <= PROVEN_GAP
    milliseconds = None if unit is None else solution.objective * unit
    return NextChange(change.name, milliseconds, ratio - 1.0, ratio / change.devices - 1.0, proven)


def _changes(planned: PlannedFile) -> Iterator[_Changed]:
    """Changes, those that gain most in most jobs first, as the time may end before the last.

    Times and memory of a changed job are estimated again, so that of other jobs the problem alone is changed.
    """
    problem, plan = planned.problem, planned.solution.plan
    recomputed = plan is not None and any(plan.uses(mode) for mode in RECOMPUTE_MODES)
    if _is_estimated(planned):
        yield from _restated(planned)
    if recomputed:
        more = problem.replace(limit_mib=tuple(limit + GIB_MORE for limit in problem.limit_mib))
        yield _Changed("1 GiB more a device", lambda: more)
        if _is_estimated(planned):
            yield _Changed("recompute of single modules", lambda: _by_module(planned))
    if (longer := more_micro_batches(problem)) is not None:
        count = longer.micro_batches
        yield _Changed(f"{count:,} micro-batches a step", lambda: longer, samples=count / problem.micro_batches)
    strategy = planned.config.strategy
    if _is_estimated(planned) and strategy.micro_batches % 2 == 0:
        large = strategy.replace(mbs=2 * strategy.mbs, micro_batches=strategy.micro_batches // 2)
        larger = planned.config.replace(strategy=large)
        yield _Changed(f"micro-batches of {large.mbs} samples", lambda: _stated(planned, larger))


def _is_estimated(planned: PlannedFile) -> bool:
    """Return whether the problem is wholly that of the configuration by the analytical model."""
    facts = planned.facts
    if facts.ratios is None or facts.stages is not None or facts.learned is not None or planned.variant:
        return False
    return facts.ratios.ratios.source == RatioSource.ESTIMATE and planned.memory.source == MemorySource.ESTIMATE


def _restated(planned: PlannedFile) -> Iterator[_Changed]:
    """GEMMs in 8 bits, and twice the devices on the same batch."""
    config, rules, strategy = planned.config, planned.config.rules, planned.config.strategy
    recipe = _fp8(config)
    if recipe is not None and rules.narrow is None and planned.facts.device.spec.peak_precision("fp8") == "fp8":
        eighth = config.replace(rules=rules.replace(narrow=recipe))
        yield _Changed(f"GEMMs in fp8 ({recipe.name})", lambda: _stated(planned, eighth))
    if strategy.micro_batches % 2 == 0:
        op = 2 * strategy.op if strategy.op == strategy.dp * strategy.cp else strategy.op
        twice = strategy.replace(dp=2 * strategy.dp, op=op, micro_batches=strategy.micro_batches // 2)
        wide = config.replace(strategy=twice)
        name = f"twice the devices ({degrees_text(twice).partition(',')[0]})"
        yield _Changed(name, lambda: _stated(planned, wide), devices=2.0)


def _fp8(config: TrainingConfig) -> NarrowProducts | None:
    """Recipe in 8 bits by transformer engine that the job's framework has a flag for; None where it has none."""
    own = NEW_FILES.get(config.rules.framework.name)
    known = {} if own is None else own.features.get("fp8", {})
    return TENSORWISE if {DELAYED.name, TENSORWISE.name} <= set(known) else None


def _stated(planned: PlannedFile, config: TrainingConfig) -> PipelineProblem | None:
    """Problem of a changed job, limits as in the job's; None where the framework refuses the job."""
    config, device = config.replace(plan=None), planned.facts.device.spec
    allowed = tuple(rule.name for rule in broken_rules(planned.config, device))
    if broken_rules(config, device, allowed):
        return None
    ratios = estimate_ratios(config.model, config.strategy, config.rules, device)
    problem = build_problem(config, estimate_memory(config, device), ratios, device=device)
    problem = with_tower(problem, config, device, MemorySource.ESTIMATE)
    return problem.replace(limit_mib=planned.problem.limit_mib)


def _by_module(planned: PlannedFile) -> PipelineProblem | None:
    """The problem with recompute of single modules; None where it has it, or the launcher cannot state it."""
    if planned.problem.choices:
        return None
    config, device = planned.config, planned.facts.device.spec
    words = offered_words(config, device, AskedModules(recompute=True))
    return with_module_choices(planned.problem, config, device, words)
