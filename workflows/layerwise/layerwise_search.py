"""Layer-wise search from profiles or estimates: the best plan, and Galvatron's own under the same costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from taylor.base.budget import TimeBudget
from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.measured.cost_table import CostProvider
from taylor.cost_model.measured.estimate import EstimatedCosts
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan
from taylor.layerwise.checker import LayerwiseCheck, check_plan
from taylor.layerwise.galvatron.search import GalvatronSearch, layout_prices
from taylor.layerwise.galvatron.tasks import Task, hetu_tasks, paddle_tasks
from taylor.layerwise.job import LayerwiseJob
from taylor.layerwise.search import OuterSpace, SearchResult, Tried, search
from taylor.layerwise.space import SpaceLimits
from taylor.nd_search.stated import barred_shapes
from taylor.parsers.galvatron.folder import Cluster, ProfileFolder, read_folders
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import UNDER_GALVATRON
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.report.layerwise import outcome_of
from taylor.workflows.layerwise.estimated_costs import named_model
from taylor.workflows.layerwise.layerwise import LayerwiseRequest, plan_formula_s
from taylor.workflows.running.process_pool import open_pool
from taylor.workflows.showing.verdict_data import Rival as OtherPlan
from taylor.workflows.showing.verdict_data import VerdictFacts, figures_fit, no_plan
from taylor.workflows.statement.options import NO_ORIGIN, Origin

PROVEN_GAP = 1e-3
"""Relative gap up to which a plan counts as optimal."""
ESTIMATE = "estimate"
HETU, PADDLE = "hetu", "paddle"


@dataclass(frozen=True)
class SearchRequest:
    """A requested search.

    Parameters
    ----------
    of : LayerwiseRequest
        Job and its costs.
    world : int
    layers : tuple of int or None
        By kind, in model order; None: as the model of the estimate has them.
    space : OuterSpace
    zeros : tuple of int or None
        ZeRO stages of replicated layers; None: those of the launcher's own search.
    device : str, DeviceSpec or None
        Of the estimate.
    gap : float
    time_limit : float or None
        Seconds.
    rival : bool
        Whether Galvatron's plan is searched too.
    model : ModelSpec or None
        Of the estimate, where it is read already; else `of` names it.
    workers : int
        Processes that bound outer choices; they start where one takes long, and change no result.
    """

    of: LayerwiseRequest
    world: int
    layers: tuple[int, ...] | None
    space: OuterSpace
    zeros: tuple[int, ...] | None = None
    device: str | DeviceSpec | None = None
    gap: float = 1e-3
    time_limit: float | None = None
    rival: bool = True
    model: ModelSpec | None = None
    workers: int = 1


@dataclass(frozen=True)
class Rival:
    """Plan of Galvatron's own search for the job, with our costs.

    Parameters
    ----------
    plan : LayerwisePlan
    found : LayerwiseCheck
    formula_s : float
        Step by its own formula, s.
    seconds : float
        Time of its search here.
    """

    plan: LayerwisePlan
    found: LayerwiseCheck
    formula_s: float
    seconds: float


@dataclass(frozen=True)
class SearchedJob:
    """A search and its results.

    Parameters
    ----------
    job : LayerwiseJob
    provider : CostProvider
    launcher : str
        ``hetu`` or ``paddle``: the form of the strategy file.
    model : str
    cluster : Cluster or None
    result : SearchResult
    found : LayerwiseCheck or None
        The checker's simulation and check of the plan; None without a plan.
    formula_s : float or None
        Step of the plan by Galvatron's formula, s.
    rival : Rival or None
    assumed : tuple of str
    """

    job: LayerwiseJob
    provider: CostProvider
    launcher: str
    model: str
    cluster: Cluster | None
    result: SearchResult
    found: LayerwiseCheck | None
    formula_s: float | None
    rival: Rival | None
    assumed: tuple[str, ...] = field(default=())

    def verdict_dict(self, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """Verdict on the plan; the runner-up is that of Galvatron's own search."""
        if self.found is None:
            status = status_of(self)
            solution, fit = no_plan(f"the search ended as {status}", proven=status == "infeasible")
        else:
            peaks = [stage.peak_mib for stage in self.found.stages]
            solution, fit = figures_fit(peaks, [self.found.usable_mib] * len(peaks))
        step_ms = None if self.result.plan is None else 1e3 * self.result.step_s
        rival = None if self.rival is None else OtherPlan("Galvatron's plan", 1e3 * self.rival.found.step_s)
        facts = VerdictFacts(
            None, None, fit, solution, None, step_ms, self.provider.name == ESTIMATE, runner_up=rival, origin=origin,
            framework="galvatron",
        )  # fmt: skip
        return facts.to_dict()

    def to_dict(self, origin: Origin = NO_ORIGIN) -> Mapping[str, Any]:
        """Search as plain data."""
        result, plan = self.result, self.result.plan
        return {
            "model": self.model,
            "world": self.job.world,
            "layers": self.job.layers,
            "costs": self.provider.name,
            "status": status_of(self),
            "verdict": self.verdict_dict(origin),
            "step_s": None if plan is None else result.step_s,
            "samples_a_s": None if plan is None else result.samples_a_s,
            "most_samples_a_s": result.most_samples_a_s if math.isfinite(result.most_samples_a_s) else None,
            "gap": None if plan is None or not math.isfinite(result.gap) else result.gap,
            "seconds": result.seconds,
            "galvatron_formula_s": self.formula_s,
            "plan": None if plan is None else plan_record(plan),
            "usable_mib": None if self.found is None else self.found.usable_mib,
            "stages": [] if self.found is None else [asdict(stage) for stage in self.found.stages],
            "galvatron": None if self.rival is None else _rival_record(self.rival),
            "tried": [tried_record(each) for each in result.tried],
            "left_out": list(result.left_out),
            "assumed": list(self.assumed),
        }


def status_of(searched: SearchedJob) -> str:
    """``optimal``, ``feasible``, ``infeasible`` or ``no_solution``."""
    result = searched.result
    if result.plan is None:
        return "infeasible" if result.most_samples_a_s == 0 else "no_solution"
    return "optimal" if result.gap <= PROVEN_GAP else "feasible"


def plan_record(plan: LayerwisePlan) -> dict[str, Any]:
    """Plan as plain data."""
    return {
        "stages": plan.stages,
        "interleaves": plan.interleaves,
        "schedule": plan.schedule,
        "global_batch": plan.global_batch,
        "micro_batches": plan.micro_batches,
        "division": list(plan.division),
        "ends": asdict(plan.ends),
        "layers": [asdict(layer) for layer in plan.layers],
    }


def tried_record(tried: Tried) -> dict[str, Any]:
    """Outcome of one outer choice, as plain data."""
    outer, solution = tried.outer, tried.solution
    return {
        "global_batch": outer.global_batch,
        "micro_batches": outer.micro_batches,
        "stages": outer.stages,
        "interleaves": outer.interleaves,
        "schedule": outer.schedule.name,
        "ends": outer.ends.name,
        "buffer_tp": outer.buffer_tp,
        "only": None if tried.only is None else tried.only.name,
        "bound_s": tried.bound_s if math.isfinite(tried.bound_s) else None,
        "step_s": None if solution is None or solution.plan is None else solution.step_s,
        "outcome": outcome_of(tried),
    }


def _rival_record(rival: Rival) -> dict[str, Any]:
    return {
        "step_s": rival.found.step_s,
        "samples_a_s": rival.plan.global_batch / rival.found.step_s,
        "formula_s": rival.formula_s,
        "faults": list(rival.found.faults),
        "plan": plan_record(rival.plan),
    }


def search_job(
    request: SearchRequest,
    *,
    report: Callable[[str], None] | None = None,
    moved: Callable[[int, str], None] | None = None,
    budget: TimeBudget | None = None,
) -> SearchedJob:
    """Search a job's best layer-wise plan, check it, and add Galvatron's own for comparison.

    Parameters
    ----------
    report, moved : callable, optional
        As in `search`.
    budget : TimeBudget, optional
        Time of the whole command; where it is omitted, the request's time limit counts from here.

    Raises
    ------
    InputError
        When a profile is missing or contradicts the job.
    """
    budget = budget or TimeBudget.of(request.time_limit)
    priced = _priced(request)
    job, provider = priced.job, priced.provider
    space = replace(request.space, limits=priced.limits)
    with open_pool(request.workers) if request.workers > 1 else nullcontext() as pool:
        result = search(
            job, provider, space, gap=request.gap, time_limit=budget.left, report=report, moved=moved, executor=pool
        )
    found = formula = None
    if result.plan is not None:
        found = check_plan(job, result.plan, provider, claimed_s=result.step_s)
        assert not found.faults, found.faults
        formula = plan_formula_s(job, result.plan, provider)
    rival = None
    if request.rival and priced.folder is not None and len(job.stack) == 1 and not result.interrupted:
        try:
            if report is not None:
                report("Galvatron's own search, to compare with")
            rival = _rival(request, priced, space, Stopper(budget.deadline))
        except OutOfTime:
            if report is not None:
                report("Galvatron's own search: left out, the time is up")
    return SearchedJob(
        job, provider, priced.launcher, priced.model, priced.cluster, result, found, formula, rival, priced.assumed
    )


@dataclass(frozen=True)
class _PricedJob:
    job: LayerwiseJob
    provider: CostProvider
    limits: SpaceLimits
    launcher: str
    model: str
    folder: ProfileFolder | None
    cluster: Cluster | None
    assumed: tuple[str, ...]


def _priced(request: SearchRequest) -> _PricedJob:
    """Job and its source of costs."""
    of = request.of
    if of.costs == ESTIMATE:
        return _estimated(request)
    folder = read_folders(list(of.folders))
    model = folder.model(of.model)
    cluster, _ = folder.cluster(request.world)
    if request.layers is None:
        raise InputError("is missing, and the profiles do not say it", field="--layers", cure="give it")
    precision = model.name.split("_", 1)[0]
    if precision != of.precision:
        raise InputError(
            f"was measured in {precision}", file=folder.folders[0], field=model.name, value=of.precision,
            cure=f"take --mixed_precision {precision}, or profile in {of.precision}",
        )  # fmt: skip
    launcher = model.rules.name
    zeros = request.zeros or ((0, 2, 3) if launcher == PADDLE else (2, 3))
    if launcher == HETU and {0, 2} <= set(zeros):
        raise InputError(
            "has ZeRO 0 and 2 for the layers, and Hetu's runtime takes one of them", field="--zeros",
            value=",".join(map(str, zeros)), cure="take 0,3 or 2,3",
        )  # fmt: skip
    limits = replace(request.space.limits, zeros=zeros, by_replicas=True)
    if of.by_bandwidth:
        limits = replace(limits, disable_sp=True)
    total = sum(request.layers)
    provider, warnings = of.provider(folder, request.world, total)
    job = replace(of, by_kind=request.layers).job(request.world, total, provider.kinds)
    return _PricedJob(job, provider, limits, launcher, model.name, folder, cluster, warnings)


def _estimated(request: SearchRequest) -> _PricedJob:
    of = request.of
    if of.folders:
        cure = "leave the folders out, or take --costs taylor"
        raise InputError("takes no profiles", field="--costs", value=ESTIMATE, cure=cure)
    model = request.model or (None if of.model is None else named_model(of.model))
    if model is None or request.device is None:
        missing = "--model" if model is None else "--device"
        raise InputError("is missing, and the estimate needs it", field=missing, cure="give it")
    device = Registry.load().device(request.device) if isinstance(request.device, str) else request.device
    if of.hidden not in (0, model.hidden):
        raise InputError(
            f"is not the width of {model.name}, {model.hidden}", field="--hidden", value=of.hidden, cure="leave it out"
        )
    counts = model.kind_counts
    total = sum(counts.values())
    if request.layers not in (None, (total,), tuple(counts.values())):
        raise InputError(
            f"is not the number of layers of {model.name}, {total}", field="--layers", value=request.layers,
            cure="leave it out",
        )  # fmt: skip
    rules = TrainingRules(framework=UNDER_GALVATRON)
    provider = EstimatedCosts(model, rules, device)
    runs = list(model.layer_counts())
    if len(runs) > len(counts):
        raise InputError(
            f"has kinds of layers that alternate: {', '.join(runs[:6])} …", field="--model", value=model.name,
            cure="plan it with taylor solve",
        )  # fmt: skip
    limit_gb = of.limit_gb or device.usable_memory_mib / 1024
    estimated = replace(of, hidden=model.hidden, limit_gb=limit_gb, by_kind=tuple(counts.values()))
    job = estimated.job(request.world, total, provider.kinds)
    barred = barred_shapes(model, rules.replace(seq_length=of.tokens), device, request.world)
    limits = replace(request.space.limits, zeros=request.zeros or (2, 3), by_replicas=True, barred=barred)
    assumed = (f"costs: analytical model of {model.name} on {device.name}, nothing was measured",)
    return _PricedJob(job, provider, limits, HETU, model.name, None, None, assumed)


def _rival(request: SearchRequest, priced: _PricedJob, space: OuterSpace, stopper: Stopper) -> Rival | None:
    """Galvatron's plan of the same space, on its own costs, then with ours; None where it has none."""
    assert priced.folder is not None
    stopper.check()
    began = time.monotonic()
    of, job = replace(request.of, costs="galvatron"), priced.job
    paddle = priced.launcher == PADDLE
    provider, _ = of.provider(priced.folder, job.world, job.layers)
    _, hardware = priced.folder.cluster(job.world)
    prices = {1: 0.0}
    degree = 2
    while degree <= job.world:
        try:
            prices |= layout_prices([(degree, hardware.bandwidth(degree, True))])
        except InputError:
            prices[degree] = 0.0
        degree *= 2
    theirs = GalvatronSearch(
        job.replace(whole_mib=True, global_buffer=job.global_buffer and not paddle), provider, prices,
        one_for_all=space.one_for_all, paddle=paddle,
    )  # fmt: skip
    limits = replace(space.limits, by_replicas=False, all_degrees=False, offload=False)
    # Its search considers degrees up to 8 by default.
    limits = replace(
        limits, most_tp=limits.most_tp or 8, most_sp=limits.most_sp or 8, most_stages=limits.most_stages or 8
    )
    tasks: list[Task] = []
    make = paddle_tasks if paddle else hetu_tasks
    for micro_batches in space.micro_batches or (None,):
        for stages in space.stages or (None,):
            tasks += make(job.world, job.layers, limits, space.batches, micro_batches, stages)
    try:
        best = theirs.best(tasks, stopper)
    except InputError:
        return None  # It has no plan where a cost is missing that ours does without.
    if best is None:
        return None
    plan = best.plan if paddle else _as_run(best.plan, limits.zeros)
    seconds = time.monotonic() - began
    try:
        found = check_plan(job, plan, priced.provider)
    except InputError:
        return None
    return Rival(plan, found, best.step_s, seconds)


def _as_run(plan: LayerwisePlan, zeros: tuple[int, ...]) -> LayerwisePlan:
    """Plan of Hetu's search as its runtime runs it: one default for all layers that are not ZeRO-3."""
    default = next((zero for zero in zeros if zero != 3), 0)

    def run(layer: LayerStrategy) -> LayerStrategy:
        return replace(layer, zero=default) if layer.zero != 3 and layer.replicas > 1 else layer

    ends: EndStrategy = plan.ends
    if ends.zero != 3 and ends.replicas > 1:
        ends = replace(ends, zero=default)
    return replace(plan, layers=tuple(map(run, plan.layers)), ends=ends)
