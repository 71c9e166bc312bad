"""A configuration file with its plan, solved or evaluated, and its output files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from taylor.base.documents import RESULT
from taylor.base.files import printable
from taylor.cost_model.errors.step_interval import NARROWED_BY, WIDE
from taylor.cost_model.profile import MemoryProfile, MemorySource, RatioSource
from taylor.cost_model.time.throughput import Throughput
from taylor.dryrun.interface import DryRunResult
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.solution import Solution, Termination
from taylor.pipeline_solver.solving.result import Result
from taylor.register.model import MTP
from taylor.workflows.showing.alternative import Alternative
from taylor.workflows.showing.card_memory import CardMemory, card_memory
from taylor.workflows.showing.chosen_order import ChosenOrder
from taylor.workflows.showing.dryrun_result import dryrun_dict
from taylor.workflows.showing.fit import Fit, FitVerdict, fit_verdict, shortage
from taylor.workflows.showing.memory_interval import Interval, peak_intervals
from taylor.workflows.showing.memory_levers import Lever, can_be_judged, narrow_change_of, smallest_change_of
from taylor.workflows.showing.next_change import NextChange
from taylor.workflows.showing.verdict_data import Rival, VerdictFacts
from taylor.workflows.statement.bubbles import BubblePlan
from taylor.workflows.statement.job_facts import JobFacts
from taylor.workflows.statement.module_choices import own_plan
from taylor.workflows.statement.options import Export, Origin
from taylor.workflows.statement.own_ranks import BesidePlan
from taylor.workflows.statement.problem import plan_in_terms_of
from taylor.workflows.statement.spread_ways import SpreadPlan

FITS: Mapping[Fit, bool | None] = {Fit.FITS: True, Fit.AT_RISK: False, Fit.DOES_NOT_FIT: False, Fit.UNKNOWN: None}
"""Fit in the result's JSON: within the job's risk."""

PLACE_WORDS = {
    "spread": "on several stages",
    "beside": "on ranks of its own",
    "bubbles": "in the pipeline's bubbles",
}
"""Places of an encoder beyond the first stage, in words."""
SMALLEST_CHANGE = "the smallest change of the job that makes it fit"
NARROWED = "with states in lower precision it fits as it is"


@dataclass(frozen=True)
class PlannedFile:
    """A configuration with its problem and solution.

    Parameters
    ----------
    config : TrainingConfig
        As it was read.
    facts : JobFacts
        Facts of the job, with the virtual stages and the schedule of the solution.
    memory : MemoryProfile
        Memory that the problem rests on.
    alternatives : tuple of Alternative
        Variants of the job that were tried, where its flags leave something open.
    dryrun : DryRunResult or None
        Dry-run of the solution's plan, where the check made one.
    files : dict
        Path of every file written, by role.
    exports : sequence of (Export, str)
        The plan in the formats of other launchers.
    unwritten : tuple of str
        Requested files that could not be written, each with the reason.
    own : Solution or None
        The baseline evaluated, under the same memory and times; None where it has none that can be.
    even : Solution or None
        Best plan of evenly spread layers, where stages differ in their devices.
    order : ChosenOrder or None
        Facts of the order of tasks, where it was chosen for the plan.
    variant : str
        Name of the chosen variant; empty where there was none to choose.
    compared : bool
        Whether the plan in the file is somebody's, to compare with.
    origin : Origin
        Command of the result.
    following : tuple of NextChange
        Changes that would gain most.
    beside : BesidePlan or None
        Best plan with the encoder on ranks of its own, where it was asked for.
    bubbles : BubblePlan or None
        Best plan with the encoder in the pipeline's bubbles, where it was asked for.
    spread : SpreadPlan or None
        Comparison with an encoder on several stages, where it was asked for; where that is faster, `config`, `problem`
        and `solution` are its.
    """

    config: TrainingConfig
    facts: JobFacts
    memory: MemoryProfile
    problem: PipelineProblem
    solution: Solution
    alternatives: tuple[Alternative, ...] = ()
    dryrun: DryRunResult | None = None
    files: dict[str, str] = field(default_factory=dict)
    exports: Sequence[tuple[Export, str]] = ()
    own: Solution | None = None
    even: Solution | None = None
    order: ChosenOrder | None = None
    variant: str = ""
    compared: bool = True
    origin: Origin = Origin()
    following: tuple[NextChange, ...] = ()
    unwritten: tuple[str, ...] = ()
    beside: BesidePlan | None = None
    bubbles: BubblePlan | None = None
    spread: SpreadPlan | None = None

    @property
    def name(self) -> str:
        """Name of its files and drawings."""
        return printable(self.config.path.stem)

    @property
    def plan(self) -> PipelinePlan:
        """Plan; a planned file has one."""
        assert self.solution.plan is not None
        return self.solution.plan

    @property
    def mtp_among_layers(self) -> int:
        """MTP layers that the problem counts with the kind before them."""
        return 0 if any(kind.name == MTP for kind in self.problem.kinds) else self.config.model.mtp_layers

    @property
    def peak_intervals(self) -> tuple[Interval, ...] | None:
        """Interval of each stage's peak when flags that no figure includes take effect."""
        return peak_intervals(self.config, self.problem, self.solution, self.memory)

    @property
    def fit(self) -> FitVerdict:
        """Fit of the plan."""
        evaluated = self.solution.termination is Termination.NOT_SOLVED
        cure = "solve it: leave out -evaluate" if evaluated else ""
        cure = "; ".join(filter(None, [cure, self.changes_text()]))
        return self.fit_of(self.solution, confirmed=self.dryrun is not None, cure=cure)

    def changes_text(self) -> str:
        """Smallest change that makes a job fit, and the states in lower precision that do; empty where it fits."""
        change = self.smallest_change()
        parts = [] if change is None else [f"{SMALLEST_CHANGE}: {change.name}"]
        if (change is None or not change.narrows) and (narrow := self._change_by(narrow_change_of)) is not None:
            parts.append(f"{NARROWED}: {narrow.name}")
        return "; ".join(parts)

    def smallest_change(self) -> Lever | None:
        """Smallest single change that makes a job fit; None where it fits or its memory is no estimate."""
        return self._change_by(smallest_change_of)

    def _change_by(self, find: Callable[..., Lever | None]) -> Lever | None:
        solution, plan, facts = self.solution, self.solution.plan, self.facts
        if not any(shortage(solution.peak_memory_mib, solution.memory_limit_mib)):
            return None
        if not can_be_judged(self.memory.source, self.problem, plan):
            return None
        return find(facts.config, plan, facts.device.spec, solution.memory_limit_mib, facts.learned)

    def fit_of(self, solution: Solution, *, confirmed: bool = False, cure: str = "") -> FitVerdict:
        """Fit of a plan of this job, as far as its figures and their unmodelled flags allow an answer.

        Parameters
        ----------
        confirmed, cure
            As in `fit_verdict`.
        """
        config, memory, plan = self.config, self.memory, solution.plan
        shape = (self.problem.interleaves, self.problem.stages)
        intervals: tuple[Interval, ...] | None = ((None, None),) * len(solution.peak_memory_mib)
        if plan is None or (plan.interleaves, plan.stages) == shape:
            intervals = peak_intervals(config, self.problem, solution, memory)
        return fit_verdict(
            solution,
            () if memory.every_flag else config.unmodelled,
            None if intervals is None else [most for _, most in intervals],
            config.memory_error(memory.source),
            config.margin,
            least_mib=None if intervals is None else [least for least, _ in intervals],
            confirmed=confirmed,
            cure=cure,
        )

    @property
    def step_interval_ms(self) -> tuple[float, float] | None:
        """Interval of the step, ms; None where its time is not estimated or not known."""
        step, ratios = self._milliseconds(self.solution), self.facts.ratios
        if step is None or ratios is None or ratios.ratios.source != RatioSource.ESTIMATE:
            return None
        known, risk = self.config.step_error(self.facts.device.spec), self.config.margin.stated_risk
        return step * known.lower(risk), step * known.upper(risk)

    @property
    def narrowed_by(self) -> str:
        """Measurement that narrows the step's interval, in words; empty where it is narrow or was made."""
        device = self.facts.device.spec
        known = self.config.step_error(device)
        wide = known.upper() - known.lower() > 2 * WIDE and not device.is_calibrated
        return NARROWED_BY if wide else ""

    def own_plan(self) -> dict[str, PipelinePlan]:
        """Baseline by its name on a page; empty where it has another shape than the solved plan, or a recompute mode
        whose costs the problem does not know.
        """
        plan, problem = own_plan(self.config), self.problem
        if (
            plan is None
            or not self.compared
            or (plan.interleaves, plan.stages) != (problem.interleaves, problem.stages)
        ):
            return {}
        if any(plan.uses(mode) for mode in plan.recompute if mode not in (*problem.recompute_ratio, *problem.choices)):
            return {}
        return {"as in the file": plan_in_terms_of(self.problem, plan)}

    @property
    def speed(self) -> Throughput | None:
        """Step in ms with its throughput; None without a step time."""
        step = self._milliseconds(self.solution)
        return None if step is None else self.facts.throughput(step)

    @property
    def card_memory(self) -> tuple[CardMemory, ...] | None:
        """Allocated and reserved memory of every stage; None without torch's allocator or by other peaks."""
        config, plan = self.facts.config, self.solution.plan
        if plan is None or self.memory.source != MemorySource.ESTIMATE:
            return None
        if any(plan.uses(name) for name in self.problem.choices) or self.facts.stages is not None:
            return None
        return card_memory(config, plan, self.facts.device.spec)

    @property
    def assumed(self) -> list[str]:
        """Sentence for each value that no input gave."""
        memory = ["memory estimated by the analytical model"] if self.memory.source == MemorySource.ESTIMATE else []
        return [*self.facts.assumptions, *memory]

    def job_dict(self) -> dict[str, Any]:
        """Facts of the job that a result states in addition to problem and solution, as plain data."""
        speed, own, known = self.speed, self.own, self.config.memory_error(self.memory.source)
        return (
            {"schema": RESULT}
            | self.facts.to_dict()
            | {
                "assumed": self.assumed,
                **dict.fromkeys(one.name for one in fields(Throughput)),
                **({} if speed is None else asdict(speed)),
                "step_interval_ms": self.step_interval_ms,
                **({} if (cards := self.card_memory) is None else {"card_memory": [each.to_dict() for each in cards]}),
                "risk": self.config.margin.stated_risk,
                "planned_risk": self.config.margin.planned_risk(known),
                "peak_error": None if known is None else [known.below, known.above, known.typical],
                "verdict": self.verdict_dict(),
                "own_plan": None if own is None else self._own_dict(own),
                **({} if self.even is None else {"even_split": self._own_dict(self.even)}),
                **({} if self.order is None else {"order": self.order.to_dict()}),
                **({"what_next": [one.to_dict() for one in self.following]} if self.following else {}),
            }
        )

    def verdict_dict(self, fit: FitVerdict | None = None) -> dict[str, Any]:
        """Verdict's object (`schemas.verdict`); of another `fit` than that of the plan, where one is given."""
        own, ratios = self.own if self.compared else None, self.facts.ratios
        step = self._milliseconds(self.solution)
        return VerdictFacts(
            self.config,
            self.facts.device.spec,
            fit or self.fit,
            self.solution,
            self.config.memory_error(self.memory.source),
            step,
            ratios is not None and ratios.ratios.source == RatioSource.ESTIMATE,
            self.smallest_change(),
            None if own is None or own is self.solution else self._rival("the plan in the file", own.objective),
            self._runner_up(),
            self.origin,
        ).to_dict()

    def _runner_up(self) -> Rival | None:
        """Next best strategy or variant that was solved."""
        if self.origin.runner_up is not None:
            return Rival(*self.origin.runner_up)
        others = [one for one in self.alternatives if one.name != self.variant and one.objective is not None]
        best = min(others, key=lambda one: one.objective or 0.0, default=None)
        return None if best is None else self._rival(best.name, best.objective)

    def _rival(self, name: str, objective: float | None) -> Rival | None:
        unit = self.problem.unit_ms
        return None if objective is None or unit is None else Rival(name, objective * unit)

    def _own_dict(self, own: Solution) -> dict[str, Any]:
        return {
            "step_ms": self._milliseconds(own),
            "peak_memory": [round(value, 3) for value in own.peak_memory_mib],
            "fits": FITS[self.fit_of(own).fit],
        }

    def _milliseconds(self, solution: Solution) -> float | None:
        unit = self.problem.unit_ms
        return None if solution.objective is None or unit is None else solution.objective * unit

    @property
    def nested_ms(self) -> float:
        """Step with an encoder on the first stage, ms; 0 without a plan."""
        return (
            self.spread.nested_ms if self.spread else (self.solution.objective or 0.0) * (self.problem.unit_ms or 1.0)
        )

    @property
    def encoder_places(self) -> dict[str, str]:
        """Sentence on the encoder in each place beyond the first stage where it was planned, and on the best place."""
        if self.solution.objective is None:
            return {}
        nested = self.nested_ms
        places = [(name, plan) for name, plan in self._other_places() if plan is not None]
        found = {name: plan.sentence(nested) for name, plan in places}
        if len(places) > 1:
            steps = {"on the first stage": nested, **{PLACE_WORDS[name]: plan.step_ms for name, plan in places}}
            best = min(steps, key=lambda name: steps[name])
            found["best place"] = f"the encoder {best}: {steps[best]:,.0f} ms a step"
        return found

    def _encoder_dicts(self) -> list[dict[str, Any]]:
        """The encoder in other places as more alternatives, where it was planned there."""
        notes, unit = self.encoder_places, self.problem.unit_ms or 1.0
        return [plan.to_dict(unit, notes.get(name, "")) for name, plan in self._other_places() if plan is not None]

    def _other_places(self) -> list[tuple[str, SpreadPlan | BesidePlan | BubblePlan | None]]:
        return [("spread", self.spread), ("beside", self.beside), ("bubbles", self.bubbles)]

    def result(self) -> Result:
        """Result that files, pages and tables show."""
        return Result(
            self.problem,
            self.solution,
            memory_source=self.memory.source,
            mtp_layers=self.mtp_among_layers,
            dryrun=None if self.dryrun is None else dryrun_dict(self.dryrun),
            alternatives=[*(one.to_dict() for one in self.alternatives), *self._encoder_dicts()],
            unmodelled=[flag.sentence for flag in self.config.unmodelled],
            peak_interval_mib=self.peak_intervals,
            files=self.files,
            job=self.job_dict(),
        )


def over_limit(solution: Solution) -> list[int]:
    """Stages whose peak memory is above their limit."""
    stages = zip(solution.peak_memory_mib, solution.memory_limit_mib, strict=True)
    return [stage for stage, (peak, limit) in enumerate(stages) if peak > limit + MEMORY_TOLERANCE_MIB]
