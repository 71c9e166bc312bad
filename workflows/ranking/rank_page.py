"""Page of a ranking: the best candidate and its basis, every row, the pipelines of the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.profile import MemorySource, RatioSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.solving.result import plan_of_row
from taylor.report.compress import compress_grid, number, parse_json, strategy_text
from taylor.report.facts import GOOD, WARNING, Answer, PageFacts
from taylor.report.html import write_html_report
from taylor.report.memory_parts import MemoryParts, from_breakdown, from_problem
from taylor.report.planned import planned_timeline
from taylor.report.ranking import NOT_CERTAIN, percent_text
from taylor.report.timeline import Timeline
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.showing.fit import odds_text
from taylor.workflows.showing.page_facts import (
    EQUAL_GAIN,
    NOT_KNOWN,
    gap_words,
    interval_text,
    memory_answer,
    memory_text,
)
from taylor.workflows.showing.verdict import TIGHT
from taylor.workflows.statement.devices import ChosenDevice
from taylor.workflows.statement.job_facts import parameters_text

DRAWN_CANDIDATES = 20
"""Candidates whose pipeline the page draws: the best, as many as a search emits."""

SECONDS_FROM = 10_000.0
"""Step from which it is written in seconds, ms."""

NEXT = "How far ahead of the next one?"
OWN_WORDS = "the plan in the file"

Row = Mapping[str, Any]
"""Cells of a candidate."""


def write_ranking_page(
    path: Path,
    table: pd.DataFrame,
    problems: Mapping[str, PipelineProblem],
    candidates: Sequence[CandidateFile],
    pruned: pd.DataFrame | None = None,
) -> None:
    """Write the page of a ranked table.

    Parameters
    ----------
    problems : mapping of str to PipelineProblem
        Problem of every candidate that has one, by its file's name.
    pruned : DataFrame, optional
        Strategies that the search removed and why.
    """
    configs = {one.path.name: one.config for one in candidates if one.config is not None}
    timelines: dict[str, Timeline] = {}
    parts: dict[str, MemoryParts] = {}
    stems = Counter(Path(name).stem for name in problems)
    for _, row in table.head(DRAWN_CANDIDATES).iterrows():
        plan, file = plan_of_row(row), Path(row["file"])
        if plan is None or row.get("own") or file.name not in problems:
            continue
        # Files of several kinds may share a stem, and so do the baseline and the solved plan of a file; the page also
        # takes
        # the whole path.
        alone = stems[file.stem] == 1 and not _is_own(row.get("own"))
        name = file.stem if alone else row["file"]
        problem = problems[file.name]
        timelines[name] = planned_timeline(problem, plan, file.name if name != file.stem else name)
        parts[name] = _parts(timelines[name], problem, plan, configs.get(file.name))
    write_html_report(path, ranking_facts(table, candidates), table, plans=timelines, parts=parts, pruned=pruned)


def ranking_facts(table: pd.DataFrame, candidates: Sequence[CandidateFile]) -> PageFacts:
    """Head of a ranking's page: the common facts of all candidates, and the best one."""
    devices = {one.device.spec.name: one.device for one in candidates if one.device is not None}
    device = next(iter(devices.values())) if len(devices) == 1 else None
    configs = [one.config for one in candidates if one.config is not None]
    ranked = table[~table["own"].map(_is_own)] if "own" in table else table
    solved = ranked[ranked["objective"].notna()]
    count = f"{len(ranked)} strategies" + (f", {len(solved)} of them solved" if len(solved) < len(ranked) else "")
    model = _shared([config.model.name for config in configs])
    ranks = _shared([f"{config.strategy.world_size:,}" for config in configs])
    on = f" on {ranks} × {device.spec.name}" if device is not None and ranks else f" on {ranks} ranks" if ranks else ""
    facts = PageFacts(
        title=f"{model or 'Strategies'}{on}: {count}, ranked by step time",
        model=_shared([f"{config.model.name}, {parameters_text(config.model)}" for config in configs]),
        device="" if device is None else device.described,
        ranks=ranks,
        batch=_shared([f"{config.strategy.global_batch:,}" for config in configs]),
        sequence=_shared([f"{config.rules.seq_length:,} tokens" for config in configs]),
        file=_shared([one.path.parent.name for one in candidates]),
    )
    if not len(solved):
        return replace(facts, verdict="No candidate has a plan: the table says why.")
    answers = _answers([{str(name): cell for name, cell in row.items()} for row in solved.head(2).to_dict("records")])
    best = next((one for one in candidates if one.path.name == Path(solved["file"].iloc[0]).name), None)
    if interval := _interval(solved.iloc[0].to_dict(), best):
        answers = (*answers[:-1], replace(answers[-1], detail=f"{answers[-1].detail}; {interval}"))
    answers = (_with_interval(answers[0], solved.iloc[0].get("cost"), best), *answers[1:])
    step = answers[0].detail.partition(";")[0]
    gain, fit = answers[1], answers[2]
    against = ""
    if gain.answer.endswith(("faster", "slower")):
        against = f", {gain.answer} than {'the next one' if gain.question == NEXT else OWN_WORDS}"
    return replace(
        facts,
        verdict=f"The fastest is {answers[0].answer}: {step}{against}; {memory_text(fit)}.",
        answers=answers,
        assumed=_assumed(candidates, configs, device),
        unmodelled=list(dict.fromkeys(flag.sentence for config in configs for flag in config.unmodelled)),
    )


def _with_interval(answer: Answer, cost: object, best: CandidateFile | None) -> Answer:
    """Answer with the interval of an estimated step."""
    step = number(cost)
    estimated = best is not None and best.ratios is not None and best.ratios.source == RatioSource.ESTIMATE
    if best is None or step is None or not estimated or best.config is None or best.device is None:
        return answer
    known, risk = best.config.step_error(best.device.spec), best.config.margin.stated_risk
    ends = " to ".join(
        _step({"cost": step * factor}).removesuffix(" a step") for factor in (known.lower(risk), known.upper(risk))
    )
    return replace(answer, detail=f"{answer.detail}; {ends} {odds_text(risk)}")


def _is_own(cell: object) -> bool:
    """Return whether a row is the plan in a file before, from its cell `own`."""
    return bool(number(cell))


def _parts(
    timeline: Timeline, problem: PipelineProblem, plan: PipelinePlan, config: TrainingConfig | None
) -> MemoryParts:
    peaks = [steps.peak_mib for steps in timeline.memory]
    closed = None
    if config is not None:
        stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
        closed = from_breakdown(stages, peaks)
    return from_problem(problem, plan, peaks) if closed is None else closed


def _answers(solved: Sequence[Row]) -> tuple[Answer, ...]:
    best = solved[0]
    offset, recompute = (compress_grid(best.get(name)).replace(",", ", ") for name in ("offset", "recompute"))
    plan = f"offset {offset}; recompute {recompute}"
    gap = number(best.get("gap"))
    proof = "" if gap is None else f"; {gap_words(gap)}"
    return (
        Answer("Which plan?", strategy_text(best), f"{_step(best)}; {plan}{proof}"),
        _gain(solved),
        _fit(best),
    )


def _gain(solved: Sequence[Row]) -> Answer:
    best = solved[0]
    gain, rate = number(best.get("gain")), number(best.get("tokens_per_second"))
    speed = _step(best) + ("" if rate is None else f", {rate:,.0f} tokens/s")
    if gain is not None:
        question = f"How much faster than {OWN_WORDS}?"
        if abs(gain) < EQUAL_GAIN:
            return Answer(question, "as fast", speed)
        return Answer(
            question, f"{abs(gain):.1f} % {'faster' if gain > 0 else 'slower'}", speed, GOOD if gain > 0 else ""
        )
    if len(solved) < 2:
        return Answer("How fast is it?", _step(best), speed)
    second, time = solved[1], "cost" if number(best.get("cost")) is not None else "objective"
    first, other = number(best.get(time)), number(second.get(time))
    lead = f"{100 * (other / first - 1):.1f} % faster" if first and other else "not comparable"
    return Answer(NEXT, lead, f"{strategy_text(second)}: {_step(second)}")


def _fit(best: Row) -> Answer:
    peaks, limits = parse_json(best.get("peak_memory")), parse_json(best.get("memory_limit"))
    if not isinstance(peaks, list) or not isinstance(limits, list) or len(peaks) != len(limits) or not peaks:
        return Answer("Does it fit?", "not known", tone=WARNING)
    source = str(best.get("memory_source") or "")
    answer = memory_answer(peaks, limits, source, None)
    if answer.tone == GOOD and str(best.get("certainty")).startswith(NOT_CERTAIN):
        stage, free_text = best.get("fullest_stage"), answer.answer.partition(", ")[2]
        detail = f"{best.get('certainty')}; {answer.detail}"
        return replace(
            answer, answer=f"{NOT_KNOWN}, {free_text} predicted on stage {stage}", detail=detail, tone=WARNING
        )
    if answer.tone == GOOD and (risk := number(best.get("risk"))) is not None:
        sure = f"yes with {percent_text(100 * (1 - risk))} probability"
        answer = replace(answer, answer=answer.answer.replace("yes", sure, 1))
    if answer.tone != GOOD or not str(best.get("certainty")).startswith(TIGHT):
        return answer
    return replace(answer, answer=f"{answer.answer} (tight)", tone=WARNING)


def _interval(best: Row, candidate: CandidateFile | None) -> str:
    """Interval of the best candidate's fullest stage, in words; empty where no error of its peaks is known."""
    config = None if candidate is None else candidate.config
    peaks, limits = parse_json(best.get("peak_memory")), parse_json(best.get("memory_limit"))
    source = next((one for one in MemorySource if one.value == best.get("memory_source")), None)
    if (
        config is None
        or source is None
        or not isinstance(peaks, list)
        or not isinstance(limits, list)
        or len(peaks) != len(limits)
    ):
        return ""
    known = config.memory_error(source)
    if known is None or not peaks:
        return ""
    stage = max(range(len(peaks)), key=lambda at: peaks[at] - limits[at])
    return interval_text(known, config.margin.stated_risk, peaks[stage], stage)


def _step(row: Row) -> str:
    cost, objective = number(row.get("cost")), number(row.get("objective"))
    if cost is not None:
        return f"{cost / 1e3:,.2f} s a step" if cost >= SECONDS_FROM else f"{cost:,.1f} ms a step"
    return "" if objective is None else f"{objective:,.2f} units a step"


def _assumed(
    candidates: Sequence[CandidateFile], configs: Sequence[TrainingConfig], device: ChosenDevice | None
) -> list[str]:
    """Sentence for each value that no input gave, as far as they apply to every candidate."""
    sentences = [device.assumption] if device is not None and device.assumption else []
    for what, estimated in (
        ("time ratios", [one.ratios.source == RatioSource.ESTIMATE for one in candidates if one.ratios is not None]),
        ("memory", [one.memory.source == MemorySource.ESTIMATE for one in candidates if one.memory is not None]),
    ):
        guessed = sum(estimated)
        if guessed:
            many = "" if guessed == len(estimated) else f" of {guessed} of {len(estimated)} candidates"
            sentences.append(f"{what}{many} estimated{' by the analytical model' if what == 'memory' else ''}")
    notes = Counter(note for config in configs for note in dict.fromkeys(config.notes))
    return sentences + [note for note, times in notes.items() if times == len(configs)]


def _shared(values: Sequence[str]) -> str:
    """Value that all have; empty where they differ or there is none."""
    return values[0] if values and len(set(values)) == 1 else ""
