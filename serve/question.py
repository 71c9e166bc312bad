"""Questions of the page: a model on a device with a strategy; validated, and answered by the analytical model."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from taylor.base.errors import InputError
from taylor.base.files import reading_below
from taylor.cost_model.errors.known_error import DEFAULT_RISK
from taylor.cost_model.errors.margin import HALF, MemoryMargin
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.cost_model.time.step import estimate_ratios
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.software import features_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, Grid, PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.register.registry import Registry
from taylor.register.tower import IN_FRONT
from taylor.report.memory_parts import from_breakdown, from_problem
from taylor.serve.assumptions import assumptions
from taylor.serve.own_files import OWN, OwnFiles
from taylor.workflows.searching.model_job import ModelJob, model_file, per_node, state_model
from taylor.workflows.showing.fit import Fit, shortage
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.measured_peaks import with_measured
from taylor.workflows.statement.devices import ChosenDevice, choose_device
from taylor.workflows.statement.job_facts import JobFacts
from taylor.workflows.statement.legality import require_legal
from taylor.workflows.statement.measured_run import MeasuredRun, SeenMemory
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of
from taylor.workflows.statement.schedules import require_schedule
from taylor.workflows.statement.stated_file import StatedFile, read_for
from taylor.workflows.statement.towers import with_images, with_tower

MOST_KNOWN = 64
"""Models kept in memory."""

MOST_FILES = 500
"""Model files of a folder that are listed."""

UNHEEDED = {"rank": ("limit_mib", "sp", "op"), "size": ("limit_mib", "sp", "op", "stage_limit", "run")}
"""Settings without effect on a job, by its kind."""

Stages = Annotated[dict[int, float], Field(max_length=1024)]
"""MiB by stage."""


class Degrees(BaseModel):
    """Degrees, samples of a micro-batch and percent of recomputed layers of an even plan; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tp: int = Field(default=1, ge=1, le=4096)
    pp: int = Field(default=1, ge=1, le=1024)
    ep: int = Field(default=1, ge=1, le=4096)
    cp: int = Field(default=1, ge=1, le=4096)
    vpp: int = Field(default=1, ge=1, le=64)
    mbs: int = Field(default=1, ge=1, le=4096)
    recompute: float = Field(default=100.0, ge=0.0, le=100.0)


class SeenRun(Degrees):
    """Memory seen in a run of other settings of the sliders: those of the even plan that ran."""

    measured_peak: Stages = Field(default_factory=dict)
    out_of_memory: tuple[int, ...] = Field(default=(), max_length=1024)
    peak_of: Literal["allocated", "card"] = "allocated"


class Question(Degrees):
    """One setting of the page; unknown keys and values out of bounds are refused.

    `sp` None is sequence parallelism wherever tensors are parallel; `op` the distributed optimizer; `limit_mib` a limit
    of every device in place of its own; `images` those of a model with a vision encoder.
    """

    model: str = Field(max_length=300)
    device: str = Field(max_length=100)
    ranks: int = Field(ge=1, le=10**6)
    seq: int = Field(default=4096, ge=1, le=10**7)
    gbs: int = Field(default=512, ge=1, le=10**7)
    seconds: float = Field(default=30.0, gt=0.0, le=3600.0)
    risk: float = Field(default=100.0 * DEFAULT_RISK, ge=0.0, le=100.0 * HALF)
    framework: str | None = Field(default=None, max_length=40)
    software: tuple[Annotated[str, Field(max_length=60)], ...] = Field(default=(), max_length=16)
    sp: bool | None = None
    op: bool = True
    limit_mib: float | None = Field(default=None, gt=0.0, le=1e8)
    stage_limit: Stages = Field(default_factory=dict)
    run: SeenRun | None = None
    images: str = Field(default="", max_length=40)

    @property
    def margin(self) -> MemoryMargin:
        """Memory that a plan leaves free."""
        return MemoryMargin(risk=self.risk / 100.0)

    @property
    def of_run(self) -> Question:
        """The settings of the run that was seen."""
        assert self.run is not None
        kept = self.run.model_dump(exclude={"measured_peak", "out_of_memory", "peak_of"})
        return self.model_copy(update={**kept, "run": None, "stage_limit": {}})

    def refuse_for(self, kind: str) -> None:
        """Refuse settings that a job of this kind would not heed.

        Raises
        ------
        InputError
            With the first such setting.
        """
        named = {
            "limit_mib": self.limit_mib is not None,
            "sp": self.sp is False,
            "op": not self.op,
            "stage_limit": bool(self.stage_limit),
            "run": self.run is not None,
        }
        for name in UNHEEDED.get(kind, ()):
            if named[name]:
                raise InputError(
                    "has no effect on a search of strategies", field=name, cure="set it back, or solve this strategy"
                )

    @classmethod
    def parse(cls, data: bytes) -> Question:
        """Read the data from a browser.

        Raises
        ------
        InputError
            With the field at fault.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise InputError(first["msg"], field=".".join(map(str, first["loc"])) or "request") from None


@dataclass(frozen=True)
class EvenJob:
    """Job of a question: what it was stated as, its problem, and the even plan with the question's recompute."""

    config: TrainingConfig
    device: ChosenDevice
    memory: MemoryProfile
    ratios: TimeRatios
    seen: SeenMemory
    problem: PipelineProblem
    plan: PipelinePlan


@dataclass
class Models:
    """Models available to questions: the registered ones, and files of the folders that the user gave.

    Parameters
    ----------
    work : Path
        Folder for files written on the way to an answer.
    folders : sequence of Path
        Nothing else on the disk is ever read.
    own : OwnFiles, optional
        Files that were given to the page.
    """

    work: Path
    folders: tuple[Path, ...] = ()
    own: OwnFiles | None = None
    _known: dict[tuple[object, ...], TrainingConfig] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Registered models, then files as ``NUMBER/PATH``, the number being that of their folder."""
        files = [
            f"{number}/{path.relative_to(folder)}"
            for number, folder in enumerate(self.folders)
            for path in sorted(folder.rglob("*.json"))[:MOST_FILES]
        ]
        return [*Registry.load(None).models, *files]

    def path(self, name: str) -> Path:
        """Configuration of a model.

        Raises
        ------
        InputError
            When it is neither registered nor in one of the folders.
        """
        number, slash, inside = name.partition("/")
        if number == OWN and slash and self.own is not None:
            return self.own.path(name)
        if not slash:
            if "\0" in name or Path(name).suffix == ".json" or Path(name).is_file():
                raise InputError("is no registered model", field="model", value=name)
            return model_file(name, self.work)
        outside = InputError("lies in none of the folders given", field="model", value=name)
        if not number.isdecimal() or "\0" in name or int(number[:6]) >= len(self.folders):
            raise outside
        folder = self.folders[int(number)].resolve()
        path = (folder / inside).resolve()
        if not path.is_relative_to(folder) or path.suffix != ".json" or not path.is_file():
            raise outside
        return path

    def folders_of(self, path: Path) -> tuple[Path, ...]:
        """Folders whose files the answer to a question on a model's file may read."""
        return (self.work, *self.folders, path.parent)

    def config(self, ask: Question) -> TrainingConfig:
        """Configuration of a question: the model with its strategy, and no plan.

        Raises
        ------
        InputError
            When the strategy is none for the ranks and the batch, or the job could not start with it.
        """
        registry = Registry.load(None)
        if ask.device not in registry.devices:  # elsewhere a device may be a file
            raise InputError("is no registered device", field="device", value=ask.device)
        card = registry.device(ask.device).memory_mib
        if ask.limit_mib is not None and ask.limit_mib > card:
            raise InputError(
                f"is above the {card:,} MiB of {ask.device}", field="limit_mib", value=ask.limit_mib,
                cure="name MiB that one device has",
            )  # fmt: skip
        host = min(ask.ranks, per_node(registry.device(ask.device)))
        key = (ask.model, ask.device, ask.seq, host, ask.framework, ask.software)
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            # One file for all numbers of ranks and batches: those of each question replace them.
            job = ModelJob(
                self.path(ask.model), host, ask.seq, host, device=ask.device, framework=ask.framework,
                software=features_of(ask.software),
            )  # fmt: skip
            place = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
            with reading_below(self.folders_of(job.path)):
                self._known[key] = read_for(state_model(job, self.work / "stated" / place))
        base = self._known[key]
        each = ask.tp * ask.pp * ask.cp
        if ask.ranks % each:
            raise InputError(f"is not divisible by TP x PP x CP = {each}", field="ranks", value=ask.ranks)
        dp = ask.ranks // each
        if ask.gbs % (dp * ask.mbs):
            raise InputError(f"is not divisible by DP x micro-batch = {dp * ask.mbs}", field="gbs", value=ask.gbs)
        strategy = base.strategy.replace(
            dp=dp, tp=ask.tp, pp=ask.pp, ep=ask.ep, cp=ask.cp, vpp=ask.vpp, mbs=ask.mbs,
            sp=ask.tp > 1 and ask.sp is not False, op=dp * ask.cp if ask.op else 1,
            micro_batches=ask.gbs // (dp * ask.mbs),
        )  # fmt: skip
        config = self.with_images(base, ask).replace(strategy=strategy, plan=None, margin=ask.margin)
        if not ask.op:
            config = config.replace(rules=config.rules.replace(parallel_optimizer=False))
        if ask.limit_mib is not None:
            config = config.replace(device_limit_mib=ask.limit_mib)
        config = config.replace(schedule=config.schedule_for(ask.vpp))
        try:
            config = require_legal(config, choose_device(config, ask.device).spec)
            require_schedule(config)
        except InputError as error:  # the file is the page's own, not the asker's
            raise InputError(str(error).removeprefix(f"{config.path}: ")) from None
        return config

    @staticmethod
    def with_images(config: TrainingConfig, ask: Question) -> TrainingConfig:
        """Configuration with the images of a question.

        Raises
        ------
        InputError
            When the text states none, or the model has no encoder that is known.
        """
        try:
            return with_images(config, ask.images)
        except InputError as error:
            raise InputError(error.problem, field="images", value=ask.images, cure=error.cure) from None

    def seen(self, ask: Question) -> SeenMemory:
        """What a run of other settings showed of the memory model, and limits of single stages.

        Raises
        ------
        InputError
            When the run's settings cannot run, or what was seen contradicts them.
        """
        every = {} if ask.limit_mib is None else dict.fromkeys(range(ask.pp), ask.limit_mib)
        limits = tuple((every | ask.stage_limit).items())
        if ask.run is None:
            return SeenMemory(None, limits)
        config = self.config(ask.of_run)
        config = config.replace(plan=self.even_plan(config, ask.of_run))
        chosen = choose_device(config, ask.device)
        run = MeasuredRun(tuple(ask.run.measured_peak.items()), ask.run.out_of_memory, ask.run.peak_of)
        job = FileJob(config.path, dryrun=False, check=False, device=ask.device, margin=ask.margin, measured=run)
        file = StatedFile.of(job, config, chosen)
        try:
            return SeenMemory(with_measured(file, estimate_memory(file.running, file.device)).learned, limits)
        except InputError as error:
            raise InputError(str(error).removeprefix(f"{config.path}: ")) from None

    @staticmethod
    def even_plan(config: TrainingConfig, ask: Question) -> PipelinePlan:
        """Even plan of a question, with its share of recomputed layers."""
        even = config.even_plan(config.strategy, FULL)
        return _recomputed(even, even.recomputed(FULL), ask)

    def stated(self, ask: Question) -> EvenJob:
        """Job of a question with its even plan.

        Raises
        ------
        InputError
            When the strategy cannot run.
        """
        config = self.config(ask)
        device = choose_device(config, ask.device)
        ratios = estimate_ratios(config.model, config.strategy, config.rules, device.spec)
        memory, seen = estimate_memory(config, device.spec), self.seen(ask)
        seen.refuse([config], device.spec)
        problem = with_tower(build_problem(config, memory, ratios), config, device.spec, memory.source)
        problem = seen.on(problem, config, memory.source)
        even = plan_in_terms_of(problem, config.even_plan(config.strategy, FULL))
        return EvenJob(
            config,
            device,
            memory,
            ratios,
            seen,
            problem,
            _recomputed(even, even.without(*IN_FRONT).total_layers(), ask),
        )

    def answer(self, ask: Question) -> dict[str, Any]:
        """Step, MFU and memory by stage of the even plan, by the analytical model and one pass over the event graph.

        Raises
        ------
        InputError
            When the strategy cannot run.
        """
        began = time.perf_counter()
        stated = self.stated(ask)
        config, device, memory, ratios = stated.config, stated.device, stated.memory, stated.ratios
        problem, plan, seen = stated.problem, stated.plan, stated.seen
        solution = evaluate(problem, plan)
        peaks, limits = solution.peak_memory_mib, solution.memory_limit_mib
        step = (solution.objective or 0.0) * (ratios.unit_ms or 1.0)
        facts = JobFacts(config, device, learned=seen.learned)
        speed = facts.throughput(step)
        planned = PlannedFile(config, facts, memory, problem, solution)
        intervals, known = planned.peak_intervals, config.memory_error(memory.source)
        judged = planned.fit_of(solution, cure=planned.changes_text())
        stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
        parts = from_breakdown(stages, peaks) or from_problem(problem, plan, peaks)
        known_step = config.step_error(device.spec)
        return {
            "step_ms": step,
            "step_interval_ms": [step * known_step.lower(), step * known_step.upper()],
            "narrowed_by": planned.narrowed_by,
            "over": [stage for stage, over in enumerate(shortage(peaks, limits)) if over],
            "assumed": assumptions(config, device.spec, ask.software) | {"sentences": planned.assumed},
            "mfu": speed.mfu,
            "mfu_precision": speed.mfu_precision,
            "tokens_per_second": speed.tokens_per_second,
            "dp": config.strategy.dp,
            "micro_batches": config.strategy.micro_batches,
            "limit_mib": memory.device_limit_mib,
            "limits_mib": list(limits),
            "whole_mib": [config.margin.within(limit, known) for limit in limits],
            "peak_mib": list(peaks),
            "peak_interval_mib": None if intervals is None else [list(each) for each in intervals],
            "fits": judged.fit is Fit.FITS,
            "verdict": planned.verdict_dict(judged),
            "learned": [] if seen.learned is None else list(seen.learned.sentences),
            "parts": {name: list(mib) for name, mib in parts.mib.items()},
            "layers": [sum(stage) for stage in zip(*plan.without(*IN_FRONT).total_layers(), strict=True)],
            "unmodelled": [flag.sentence for flag in config.unmodelled],
            "answered_in_ms": 1000.0 * (time.perf_counter() - began),
        }


def _recomputed(even: PipelinePlan, whole: Grid, ask: Question) -> PipelinePlan:
    """Even plan with a share of the layers of every chunk recomputed, of those that may be, int [vpp, pp]."""
    grid = tuple(tuple(round(ask.recompute / 100.0 * count) for count in row) for row in whole)
    return PipelinePlan(even.layers, {FULL: grid})
