"""Files of a layer-wise search: the strategy file, the result for programs, page, trace and picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError, WriteError
from taylor.base.files import refuse_unwritable
from taylor.base.interrupts import delay_interrupts
from taylor.layerwise.exact.milp import write_milp
from taylor.parsers.galvatron.strategy_file import write_strategy
from taylor.report.chrome_trace import write_chrome_trace
from taylor.report.facts import BAD, GOOD, WARNING, Answer, PageFacts, PageTable
from taylor.report.html import write_html_report
from taylor.report.layerwise import MOST_TRIED, TRIED_COLUMNS, proof_text, tried_row, tried_text
from taylor.report.layerwise_page import layerwise_parts, layerwise_timeline
from taylor.report.picture import write_picture
from taylor.report.timeline import Timeline
from taylor.schemas.writing import write_document
from taylor.workflows.layerwise.layerwise_search import HETU, SearchedJob
from taylor.workflows.showing.planned_outputs import write_or_note

FOLDER = Path("output") / "layerwise"
OURS, THEIRS = "this plan", "Galvatron's plan"


@dataclass(frozen=True)
class Wanted:
    """Requested files.

    Parameters
    ----------
    strategy : Path or None
        Strategy file, or a folder for it; None: `FOLDER`.
    form : str or None
        ``hetu`` or ``paddle``; None: that of the profiles.
    result, page, trace, picture : Path or None
    model : Path or None
        The plan's outer choice as a MILP.
    batch_settled : bool
        Whether one batch was given, which Hetu's name of the file states.
    """

    strategy: Path | None = None
    form: str | None = None
    result: Path | None = None
    page: Path | None = None
    trace: Path | None = None
    picture: Path | None = None
    batch_settled: bool = False
    model: Path | None = None

    def refuse_unwritable(self) -> None:
        """Refuse a place that cannot be written, before the work.

        Raises
        ------
        InputError
            With the flag.
        """
        for path, flag in (
            (self.result, "--result_json"), (self.page, "--html"), (self.trace, "--trace"), (self.picture, "--png"),
            (self.model, "--mps"),
        ):  # fmt: skip
            if path is not None:
                refuse_unwritable(path, flag)


@dataclass(frozen=True)
class Written:
    """Written files.

    Parameters
    ----------
    files : dict
        Path of every file by role.
    notes : list of str
        Facts that no file can state.
    unwritten : list of str
        Requested files that could not be written; the reasons are logged.
    """

    files: dict[str, str]
    notes: list[str]
    unwritten: list[str]


def write_outputs(searched: SearchedJob, wanted: Wanted) -> Written:
    """Write the requested files, and the strategy file in any case; one that fails does not keep the others back."""
    files: dict[str, str] = {}
    notes: list[str] = []
    failed: list[str] = []
    plan = searched.result.plan
    with delay_interrupts():
        if plan is not None:
            form = wanted.form or searched.launcher
            place = strategy_place(searched, wanted, form)
            try:
                files["strategy"] = str(write_strategy(plan, form, place))
            except WriteError as error:
                log.warning("strategy is left out: %s", error)
                failed += [f"strategy ({place})"] if wanted.strategy is not None else []
            except InputError as error:
                result = wanted.result or place.with_name("layerwise_result.json")
                notes.append(f"no strategy file says the plan ({error.problem}); it is in {result}")
                wanted = replace(wanted, result=result)
            if wanted.model is not None and searched.result.problem is None:
                log.warning("model is left out: no outer choice of this plan was stated as a MILP")
                failed.append(f"model ({wanted.model})")
            for role, (path, write) in _views(searched, wanted).items():
                files |= write_or_note(role, path, write, failed)
        if wanted.result is not None:
            record = {**searched.to_dict(), "files": files | {"result": str(wanted.result)}}
            write = partial(write_document, wanted.result, "taylor.layerwise/1", record)
            files |= write_or_note("result", wanted.result, write, failed)
    return Written(files, notes, failed)


def strategy_place(searched: SearchedJob, wanted: Wanted, form: str) -> Path:
    """Path of the strategy, named as the launcher's search names it (search_engine.py:779-785 of Hetu's)."""
    place = wanted.strategy or FOLDER
    if place.suffix == ".json":
        return place
    if form != HETU:
        return place / "fine_grained_config.json"
    job, cluster = searched.job, searched.cluster
    machines = f"{cluster.nodes}nodes_{cluster.cards}gpus_per_node" if cluster else f"{job.world}ranks"
    name = searched.model.removeprefix(f"{job.precision}_").replace("/", "_")
    batch = f"_bsz{searched.result.plan.global_batch}" if wanted.batch_settled and searched.result.plan else ""
    limit = int(job.limit_mib // 1024)
    return place / f"galvatron_config_{name}_{machines}_{limit}GB_{job.precision}{batch}.json"


def _views(searched: SearchedJob, wanted: Wanted) -> dict[str, tuple[Path, Callable[[], object]]]:
    """Requested views and the model: path and writer by role."""
    plan = searched.result.plan
    assert plan is not None
    writers: dict[str, tuple[Path | None, Callable[[Path], object]]] = {}
    if wanted.trace or wanted.picture or wanted.page:
        ours = layerwise_timeline(searched.job, plan, searched.provider, OURS)
        writers = {
            "trace": (wanted.trace, partial(write_chrome_trace, ours)),
            "picture": (wanted.picture, partial(write_picture, ours)),
            "html": (wanted.page, partial(_write_page, searched, ours)),
        }
    if (problem := searched.result.problem) is not None:
        lines = [f"the plan's step: {searched.result.step_s!r}"]
        writers["model"] = (wanted.model, lambda path: write_milp(problem, path, lines))
    return {role: (path, partial(write, path)) for role, (path, write) in writers.items() if path is not None}


def _write_page(searched: SearchedJob, ours: Timeline, path: Path) -> Path:
    job, rival, provider, plan = searched.job, searched.rival, searched.provider, searched.result.plan
    assert plan is not None
    plans, parts = {OURS: ours}, {OURS: layerwise_parts(job, plan, provider)}
    if rival is not None and rival.found.stages:
        plans[THEIRS] = layerwise_timeline(job, rival.plan, provider, THEIRS)
        parts[THEIRS] = layerwise_parts(job, rival.plan, provider)
    tables = [_strategies(searched), _tried(searched)]
    return write_html_report(
        path,
        page_facts(searched),
        plans=plans,
        parts=parts,
        tables=tables,
        beside=THEIRS if THEIRS in plans else "",
    )


def page_facts(searched: SearchedJob) -> PageFacts:
    """Head of a search's page."""
    result, job = searched.result, searched.job
    plan, found = result.plan, searched.found
    assert plan is not None and found is not None
    verdict = f"A step takes {result.step_s:.6g} s, {_speed_text(searched)}; {proof_text(result)}."
    least = min(found.usable_mib - stage.peak_mib for stage in found.stages)
    answers = [
        Answer(
            "Which plan?", f"{plan.stages} stages, {plan.micro_batches} micro-batches",
            f"{len(set(plan.layers))} strategies of layers", GOOD if result.gap <= 1e-3 else WARNING,
        ),
        Answer("Does it fit?", f"{least:,.0f} MiB are free on the fullest stage", tone=GOOD),
    ]  # fmt: skip
    if searched.rival is not None:
        answers.insert(1, Answer("How much faster?", *_gain(searched)))
    return PageFacts(
        f"{searched.model} on {job.world:,} ranks, layer by layer", model=f"{searched.model}, {job.layers} layers",
        ranks=f"{job.world:,}", batch=f"{plan.global_batch:,} in {plan.micro_batches:,} micro-batches",
        sequence=f"{job.tokens:,} tokens", verdict=verdict, answers=tuple(answers), assumed=searched.assumed,
        notes=[tried_text(result), *result.left_out[:50]],
    )  # fmt: skip


def rival_text(searched: SearchedJob) -> str:
    """Galvatron's plan in a sentence; empty without one."""
    rival, result = searched.rival, searched.result
    if rival is None:
        return ""
    step = rival.found.step_s
    if not math.isfinite(step):
        return f"fails the check: {rival.found.faults[0]}"
    text = f"{step:.6g} s, {rival.plan.global_batch / step:.6g} samples/s, its formula {rival.formula_s:.6g} s"
    if rival.found.faults:
        return f"{text}; it does not fit here: {rival.found.faults[0]}"
    if result.plan is None:
        return text
    gain = result.samples_a_s / (rival.plan.global_batch / step) - 1
    return f"{text}; this plan is {gain:.2%} faster"


def _gain(searched: SearchedJob) -> tuple[str, str, str]:
    rival, result = searched.rival, searched.result
    assert rival is not None
    if rival.found.faults:
        return "Galvatron's plan does not fit", rival.found.faults[0], BAD
    gain = result.samples_a_s / (rival.plan.global_batch / rival.found.step_s) - 1
    return f"{gain:.2%} than Galvatron's plan", rival_text(searched), GOOD


def _strategies(searched: SearchedJob) -> PageTable:
    plan = searched.result.plan
    assert plan is not None
    rows = [[str(stage), str(count), layer.name] for stage, count, layer in plan.runs()]
    return PageTable("Strategies", ("stage", "layers", "strategy"), [*rows, ["ends", "", plan.ends.name]])


def _tried(searched: SearchedJob) -> PageTable:
    result = searched.result
    rows = [tried_row(each) for each in result.tried[: 10 * MOST_TRIED]]
    return PageTable("What was tried, and what cut it off", TRIED_COLUMNS, rows, note=tried_text(result))


def _speed_text(searched: SearchedJob) -> str:
    speed = searched.result.samples_a_s
    return f"{speed:.6g} samples/s, {speed * searched.job.tokens:,.0f} tokens/s"


def found_pairs(searched: SearchedJob) -> list[tuple[str, str]]:
    """Results of a search, a name and a sentence each."""
    result = searched.result
    pairs = []
    if result.plan is not None:
        pairs.append(("step", f"{result.step_s:.6g} s, {_speed_text(searched)}"))
        pairs.append(("proven", proof_text(result)))
        if searched.formula_s is not None:
            off = searched.formula_s / result.step_s - 1
            text = f"{searched.formula_s:.6g} s, {abs(off):.2%} {'above' if off > 0 else 'below'}"
            pairs.append(("Galvatron's formula", text))
    if searched.rival is not None:
        pairs.append(("Galvatron's plan", rival_text(searched)))
    pairs.append(("tried", f"{tried_text(result)}; {result.seconds:.1f} s"))
    if result.left_out:
        pairs.append(("without a cost", f"{len(result.left_out)}, the first: {result.left_out[0]}"))
    return pairs
