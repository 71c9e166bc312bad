"""Facts that the page of one configuration states before its charts: the job, the verdict, the plans compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taylor.cost_model.errors.known_error import KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.profile import MemorySource
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB
from taylor.pipeline_solver.model.solution import PROVEN_GAP, Solution
from taylor.report.compress import compress
from taylor.report.facts import BAD, GOOD, WARNING, Answer, PageFacts, PageTable
from taylor.report.memory_parts import MemoryParts, from_breakdown, from_dryrun
from taylor.report.ranking import percent_text
from taylor.report.tables import gap_text
from taylor.workflows.showing.dryrun_result import stage_memories
from taylor.workflows.showing.fit import UNKNOWN_FIT, Fit, risk_of
from taylor.workflows.showing.planned_file import PlannedFile, over_limit
from taylor.workflows.showing.verdict import (
    MEMORY_WORDS,
    TIGHT,
    fit_line,
    gain_line,
    over_text,
    proof_text,
    speed_text,
    step_text,
    sure_text,
)
from taylor.workflows.showing.verdict_data import EQUAL_SHARE
from taylor.workflows.statement.job_facts import JobFacts, degrees_text, parameters_text

NO_PROOF = 0.5
"""Relative gap from which on a bound says nothing."""

NOT_KNOWN = "not known"

EQUAL_GAIN = 100.0 * EQUAL_SHARE
"""Per cent below which a gain is reported as none."""


def page_facts(planned: PlannedFile, what_if: Sequence[str] = ()) -> PageFacts:
    """Head of a planned file's page."""
    answers = (_plan(planned), _gain(planned), _fit(planned))
    return replace(
        job_facts(planned.facts),
        verdict=_sentence(planned, answers),
        answers=answers,
        assumed=planned.assumed,
        unmodelled=[flag.sentence for flag in planned.config.unmodelled],
        what_if=what_if,
    )


def job_facts(facts: JobFacts) -> PageFacts:
    """Title, model, device, ranks, batch, sequence and file of a job."""
    config, strategy = facts.config, facts.config.strategy
    return PageFacts(
        title=f"{config.model.name} on {strategy.world_size:,} × {facts.device.spec.name}",
        model=f"{config.model.name}, {parameters_text(config.model)}",
        device=facts.device.described,
        ranks=f"{strategy.world_size:,}",
        batch=f"{strategy.global_batch:,} = DP {strategy.dp:,} × {strategy.micro_batches:,} micro-batches of "
        f"{strategy.mbs}",
        sequence=f"{config.rules.seq_length:,} tokens",
        file=config.path.name,
    )


def memory_parts(planned: PlannedFile) -> MemoryParts | None:
    """Parts of every stage's peak: by a dry-run of the plan, or by the analytical model where the peaks rest on it."""
    count, config = planned.problem.stages, planned.facts.config
    dryrun = from_dryrun(stage_memories(planned.dryrun), count)
    if dryrun is not None or planned.memory.source != MemorySource.ESTIMATE:
        return dryrun
    if any(planned.plan.uses(name) for name in planned.problem.choices):
        # The breakdown knows the modes of a file alone; the problem states what a choice by module keeps.
        return None
    stages = stage_breakdown(config.model, config.strategy, config.rules, planned.plan, config.schedule)
    return from_breakdown(stages, planned.solution.peak_memory_mib)


def page_tables(planned: PlannedFile) -> list[PageTable]:
    """Plan beside the baseline and the other schedules and virtual stages, where there are any."""
    own = planned.own
    rows: list[list[str]] = []
    schedule, vpp = planned.problem.schedule.name, planned.problem.interleaves
    alternatives = [one for one in planned.alternatives if one.name != planned.variant]
    if (own is None or own is planned.solution) and not alternatives:
        return []
    name = f"this plan: {schedule}" + (f", {vpp} virtual stages" if vpp > 1 else "")
    rows.append([name, *_figures(planned, planned.solution)])
    if own is not None and own is not planned.solution:
        rows.append(["the plan in the file", *_figures(planned, own)])
    for one in sorted(alternatives, key=lambda one: one.objective or one.bound or float("inf")):
        cells = _times(planned, one.objective)
        if one.objective is None and one.bound is not None:
            cells[0] = f"above {step_text(planned.problem, one.bound)}"
        rows.append([one.name, *cells, "", one.note or one.status])
    columns = ("plan", "step", "tokens/s", "against the plan in the file", "fullest stage", "status")
    return [PageTable("Plans compared", columns, rows, marked=0)]


def _figures(planned: PlannedFile, solution: Solution) -> list[str]:
    fit = planned.fit.fit if solution is planned.solution else planned.fit_of(solution).fit
    if fit in (Fit.DOES_NOT_FIT, Fit.AT_RISK):
        status = str(fit)
    elif solution is planned.own or over_limit(solution):
        status = NOT_KNOWN if fit is Fit.UNKNOWN else str(Fit.FITS)
    else:
        status = proof_text(planned.problem, solution)
    cells = _times(planned, solution.objective)
    if solution is planned.own:
        cells[2] = ""
    return [*cells, _fullest(solution), status]


def _times(planned: PlannedFile, objective: float | None) -> list[str]:
    """Step, tokens a second, and the gain over the baseline."""
    if objective is None:
        return ["", "", ""]
    unit, own = planned.problem.unit_ms, planned.own
    speed = "" if unit is None else f"{planned.facts.throughput(objective * unit).tokens_per_second:,.0f}"
    against = ""
    if own is not None and own.objective is not None:
        against = _change(own.objective / objective - 1.0)
    return [step_text(planned.problem, objective), speed, against]


def gap_words(gap: float) -> str:
    """Proof of a plan by its relative gap; a gap that says nothing is no proof."""
    if gap <= PROVEN_GAP:
        return "proven to be the fastest"
    return "not proven to be the fastest" if gap >= NO_PROOF else f"the fastest to within {gap_text(gap)}, proven"


def _change(share: float) -> str:
    if abs(share) < EQUAL_SHARE:
        return "as fast"
    return f"{100 * abs(share):.1f} % {'faster' if share > 0 else 'slower'}"


def _fullest(solution: Solution) -> str:
    peak, limit, stage = _heaviest(solution)
    return f"stage {stage}: {peak:,.0f} of {limit:,.0f} MiB"


def _heaviest(solution: Solution) -> tuple[float, float, int]:
    return _least_free(solution.peak_memory_mib, solution.memory_limit_mib)


def _least_free(peaks: Sequence[float], limits: Sequence[float]) -> tuple[float, float, int]:
    """Peak and limit of the stage with the least free memory, and its number."""
    stages = enumerate(zip(peaks, limits, strict=True))
    return min(((peak, limit, stage) for stage, (peak, limit) in stages), key=lambda one: one[1] - one[0])


def _plan(planned: PlannedFile) -> Answer:
    plan = planned.plan
    layers = {"layers by stage": plan.total_layers(list(plan.layers))}
    redone = {"recompute" if mode == FULL else f"{mode} recompute": grid for mode, grid in plan.recompute.items()}
    lists = [f"{name} {_listed(grid)}" for name, grid in (layers | redone).items() if any(map(any, grid))]
    return Answer(
        "Which plan?",
        f"{degrees_text(planned.facts.config.strategy)}, {planned.problem.schedule.name}",
        "; ".join([*lists, proof_text(planned.problem, planned.solution)]),
    )


def _listed(grid: Sequence[Sequence[int]]) -> str:
    return compress([list(row) for row in grid]).replace(",", ", ")


def _gain(planned: PlannedFile) -> Answer:
    question = "How much faster than the plan in the file?"
    own, mine, problem = planned.own, planned.solution, planned.problem
    step = f"{step_text(problem, mine.objective)} a step"
    rate = "" if planned.speed is None else speed_text(planned.speed, planned.facts.length)
    if own is mine:
        return Answer("How fast is it?", step, rate)
    if own is None or own.objective is None or not mine.objective:
        return Answer(question, "not comparable", f"{gain_line(planned)}; {rate}", WARNING)
    gain = own.objective / mine.objective - 1.0
    detail = f"the plan in the file takes {step_text(problem, own.objective)}{over_text(own, '; that one is')}"
    return Answer(question, _change(gain), f"{step}; {detail}; {rate}", GOOD if gain > EQUAL_SHARE else "")


def _fit(planned: PlannedFile) -> Answer:
    solution = planned.solution
    dry_run = planned.dryrun is not None
    source, margin = planned.memory.source, planned.config.margin
    known = planned.config.memory_error(source)
    answer = memory_answer(solution.peak_memory_mib, solution.memory_limit_mib, source, known, margin, dry_run=dry_run)
    if planned.fit.fit is Fit.UNKNOWN:
        answer = replace(answer, answer=f"{NOT_KNOWN}, {_fullest(solution)} predicted", tone=WARNING)
    detail = [fit_line(planned)]
    if solution.peak_memory_mib and known is not None and not dry_run:
        detail.append(interval_text(known, margin.stated_risk, *_heaviest(solution)[::2]))
    return replace(answer, detail="; ".join(detail))


def interval_text(known: KnownError, risk: float, peak_mib: float, stage: int) -> str:
    """Interval of a stage's measured peak around the predicted one, in words."""
    low, high = peak_mib * known.lower(risk), peak_mib * known.upper(risk)
    return f"stage {stage} peaks between {low:,.0f} and {high:,.0f} MiB with {100 * (1 - 2 * risk):g} % probability"


def memory_answer(
    peaks: Sequence[float],
    limits: Sequence[float],
    source: str,
    known: KnownError | None,
    margin: MemoryMargin = MemoryMargin(),  # noqa: B008 - frozen
    *,
    dry_run: bool = False,
) -> Answer:
    """Answer whether a plan fits, from the peak and the limit of every stage, MiB, and their sources.

    Parameters
    ----------
    known : KnownError or None
        Of the peaks; None where nothing is known.
    margin : MemoryMargin
        Memory that the limits leave free in addition.
    dry_run : bool
        Whether a dry-run of this very plan had these peaks.
    """
    question = "Does it fit?"
    peak, limit, stage = _least_free(peaks, limits)
    within, whole = margin.within(limit, known), margin.around(limit, known)
    memory_words = MEMORY_WORDS.get(source, f"memory: {source}" if source else "")
    words = [
        f"stage {stage} is the fullest: {peak:,.0f} of {within:,.0f} MiB",
        memory_words,
        known.sentence if known else "",
    ]
    detail, free = "; ".join(filter(None, words)), within - peak
    risk = None if dry_run else risk_of(known, peak, whole)
    sure = "" if risk is None else f" with {percent_text(100 * (1 - risk))} probability"
    if free < -MEMORY_TOLERANCE_MIB:
        return Answer(question, f"no, {peak - limit:,.0f} MiB too much", detail, BAD)
    if peak > limit + MEMORY_TOLERANCE_MIB:
        allowed = f"{100 * margin.planned_risk(known):g} % risk allows {limit:,.0f} MiB"
        return Answer(question, f"yes{sure} only, {free:,.0f} MiB free: {allowed}", detail, WARNING)
    if dry_run or TIGHT not in sure_text(known, margin, peak, limit):
        return Answer(question, f"yes{sure}, {free:,.0f} MiB free", detail, GOOD)
    return Answer(question, f"yes{sure}, {free:,.0f} MiB free (tight)", detail, WARNING)


def memory_text(answer: Answer) -> str:
    """Answer of `memory_answer` as part of a sentence."""
    word, _, rest = answer.answer.partition(", ")
    if word == NOT_KNOWN:
        return f"{UNKNOWN_FIT} ({rest})" if rest else UNKNOWN_FIT
    if answer.tone == BAD:
        return f"it does not fit: {rest}"
    probability = word.removeprefix("yes")
    return f"it fits{probability}{',' if probability else ' with'} {rest} on the fullest stage"


def _sentence(planned: PlannedFile, answers: Sequence[Answer]) -> str:
    return f"{gain_line(planned)}; {memory_text(answers[2])}."
